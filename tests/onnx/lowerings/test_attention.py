"""Scaled dot product attention in all its forms."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.compat import schemas
from tests.onnx.helpers import check_onnx

attend = nn.functional.scaled_dot_product_attention
TARGETS = pytest.mark.parametrize("target", ["onnx", "ort"])


def operators(program: Any) -> list[str]:
    return [n.op for n in program.graph.walk()]


def qkv(*sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(s, dtype=dtype) for s in sizes)


def some(*sizes: int) -> Tensor:
    """A mask with a row that attends to nothing."""
    mask = torch.rand(sizes) > 0.4
    mask[..., 1, :] = False
    return mask


def added(*sizes: int) -> Tensor:
    return torch.where(some(*sizes), torch.randn(sizes), -math.inf)


Q, K = (2, 4, 5, 8), (2, 4, 7, 8)
FORMS = {
    "plain": (qkv(Q, K, K), {}),
    "sizes of values": (qkv(Q, K, (2, 4, 7, 3)), {}),
    "scale": (qkv(Q, K, K), {"scale": 0.3}),
    "negative scale": (qkv(Q, K, K), {"scale": -0.3}),
    "causal": (qkv(Q, Q, Q), {"is_causal": True}),
    "causal, more keys": (qkv(Q, K, K), {"is_causal": True}),
    "causal, fewer keys": (qkv(K, Q, Q), {"is_causal": True}),
    "grouped": (qkv(Q, (2, 2, 7, 8), (2, 2, 7, 8)), {"enable_gqa": True}),
    "one group": (qkv(Q, (2, 1, 7, 8), (2, 1, 7, 8)), {"enable_gqa": True}),
    "groups of two kinds": (qkv(Q, (2, 2, 7, 8), (2, 1, 7, 8)), {"enable_gqa": True}),
    "one head for all": (qkv(Q, (2, 1, 7, 8), (2, 1, 7, 8)), {}),
    "one batch for all": (qkv(Q, (1, 4, 7, 8), (1, 4, 7, 8)), {}),
    "two dims": (qkv(*((5, 8), (7, 8), (7, 8))), {}),
    "three dims": (qkv(*((4, 5, 8), (4, 7, 8), (4, 7, 8))), {}),
    "five dims": (qkv((3, *Q), (3, *K), (3, *K)), {}),
    "double": (qkv(Q, K, K, dtype=torch.float64), {}),
    "half": (qkv(Q, K, K, dtype=torch.float16), {}),
    "bfloat16": (qkv(Q, K, K, dtype=torch.bfloat16), {}),
    "bfloat16, causal": (qkv(Q, K, K, dtype=torch.bfloat16), {"is_causal": True}),
}


def run(options: dict[str, Any], *tensors: Tensor) -> Tensor:
    q, k, v, *mask = tensors
    return attend(q, k, v, *mask, **options)


def spec(tensors: tuple[Tensor, ...]) -> Any:
    return (tuple({d: gp.Dim.AUTO for d, s in enumerate(t.shape) if s > 1} for t in tensors),)


def program(options: dict[str, Any]) -> Any:
    fn = functools.partial(run, options)
    return lambda *tensors: fn(*tensors)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    tensors, options = FORMS[name]
    check_onnx(program(options), tensors)


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_any_size(name: str) -> None:
    tensors, options = FORMS[name]
    check_onnx(program(options), tensors, dynamic_shapes=spec(tensors))


MASKS = {
    "two dims": some(5, 7),
    "rows": some(2, 1, 5, 7),
    "heads": some(4, 5, 7),
    "all": some(2, 4, 5, 7),
    "columns": torch.rand(2, 1, 1, 7) > 0.4,
    "nothing": torch.zeros(5, 7, dtype=torch.bool),
    "one column": some(2, 1, 5, 1),
    "added": added(5, 7),
    "added to heads": added(2, 4, 5, 7),
    "added to columns": added(2, 1, 2, 7)[:, :, :1],
}


def check_masked(options: dict[str, Any], tensors: tuple[Tensor, ...], **settings: Any) -> None:
    """As in eager, which from torch 2.14 on refuses a mask beside `is_causal`."""
    if options.get("is_causal") and schemas.MASKS_EXCLUDE_EACH_OTHER:
        with pytest.raises(RuntimeError, match="should not be set when is_causal"):
            program(options)(*tensors)
        with pytest.raises(gp.errors.ShapeError, match="exclude each other"):
            gp.export(program(options), tensors)
    else:
        check_onnx(program(options), tensors, **settings)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("form", ["plain", "grouped", "causal, more keys", "negative scale"])
def test_masks(name: str, form: str) -> None:
    tensors, options = FORMS[form]
    if name == "heads" and options.get("is_causal"):
        return  # torch refuses it
    check_masked(options, (*tensors, MASKS[name]))


@pytest.mark.parametrize("name", ["rows", "columns", "added to heads"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masks_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    mask = MASKS[name]
    given = (*qkv(Q, K, K, dtype=dtype), mask if mask.dtype is torch.bool else mask.to(dtype))
    check_onnx(program({}), given)


class Block(nn.Module):
    """Attention as models have it: heads are a view of rows."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.out = nn.Linear(16, 16)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, 4, 4).transpose(1, 2) for f in self.qkv)
        y = attend(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


@TARGETS
def test_rows_go_in_and_out_as_they_are(target: str) -> None:
    made = check_onnx(Block(), (torch.randn(2, 5, 16),), target=target)
    names = operators(made)
    assert names.count("Attention") == 1
    assert not {"Transpose", "Reshape"} & set(names)


def dims(least: int) -> Any:
    return ({0: gp.Dim("batch", min=least), 1: gp.Dim("length", min=least)},)


@TARGETS
@pytest.mark.parametrize("causal", [False, True])
def test_any_batch_and_length(target: str, causal: bool) -> None:
    others = [(torch.randn(1, 1, 16),), (torch.randn(3, 9, 16),)]
    x = (torch.randn(2, 5, 16),)
    made = check_onnx(Block(causal), x, dynamic_shapes=dims(1), others=others, target=target)
    assert "Attention" in operators(made) and "If" not in operators(made)
    others += [(torch.randn(0, 4, 16),), (torch.randn(2, 0, 16),)]
    check_onnx(Block(causal), x, dynamic_shapes=dims(0), others=others, target=target)


@TARGETS
@pytest.mark.parametrize("least", [0, 1])
def test_masks_of_any_size(target: str, least: int) -> None:
    batch, length = gp.Dim("batch", min=least), gp.Dim("length", min=least)
    shapes = ({0: batch, 1: length}, {0: batch, 3: length})
    sizes = [(2, 5), (1, 1), (3, 9), *([(0, 4), (2, 0)] if not least else [])]
    first, *others = [(torch.randn(b, n, 16), torch.rand(b, 1, 1, n) > 0.4) for b, n in sizes]
    check_onnx(Block(), first, dynamic_shapes=shapes, others=others, target=target)


def test_opset_without_attention() -> None:
    made = check_onnx(Block(), (torch.randn(2, 5, 16),), opset=18)
    assert "Softmax" in operators(made)


def test_finite_masks_need_no_care() -> None:
    """The least float in place of -inf: rows are an average then, in torch as here."""

    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        least = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        return attend(q, k, v, attn_mask=least[:, None, None])

    made = check_onnx(fn, (*qkv(Q, K, K), torch.rand(2, 7) > 0.5), opset=18)
    assert "ReduceMax" not in operators(made)


LOWEST = torch.finfo(torch.float32).min
HIDDEN = {
    "lowest": LOWEST,
    "-1e9": -1e9,
    "-inf": -math.inf,
    "nan": math.nan,
    "lowest half": -65504.0,
}


def hide(mask: Tensor, number: float) -> Tensor:
    """A row of that number, a row with one of -inf besides, and a row with some of it."""
    mask = mask.clone()
    mask[..., 2, :] = mask[..., 3, :] = mask[..., 1, 2:] = number
    mask[..., 3, 1] = -math.inf
    return mask


@TARGETS
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("form", ["plain", "grouped", "causal, more keys", "negative scale"])
@pytest.mark.parametrize("opset", [22, 23])
def test_rows_of_one_number(hidden: str, form: str, target: str, opset: int) -> None:
    tensors, options = FORMS[form]
    if hidden == "nan" and options.get("is_causal"):
        return  # which of the two is taken first is up to the kernel
    mask = hide(torch.randn(2, 1, 5, 7), HIDDEN[hidden])
    check_masked(options, (*tensors, mask), target=target, opset=opset)


@pytest.mark.parametrize("hidden", ["-1e4", "-inf", "lowest half"])
@pytest.mark.parametrize("form", ["plain", "causal, more keys"])
@pytest.mark.parametrize("opset", [22, 23])
def test_rows_of_one_half(hidden: str, form: str, opset: int) -> None:
    """Torch adds masks in float32, in which the lowest half is a number as any other."""
    number = {**HIDDEN, "-1e4": -1e4}[hidden]
    tensors = (t.half() for t in FORMS[form][0])
    mask = hide(torch.randn(2, 1, 5, 7), number).half()
    check_masked(FORMS[form][1], (*tensors, mask), opset=opset)


def least_where(mask: Tensor) -> Tensor:
    return torch.where(mask, 0.0, LOWEST)[:, None, None]


MADE = {
    "where": (least_where, 0),
    "filled": (lambda m: torch.zeros(2, 1, 5, 7).masked_fill(~m[:, None, None], LOWEST), 0),
    "product": (lambda m: (1.0 - m[:, None, None].float()) * LOWEST, 1),
    "sum": (lambda m: least_where(m) + torch.ones(5, 1), 1),
    "expanded": (lambda m: least_where(m).expand(2, 4, 5, 7), 0),
    "constant": (lambda m: least_where(m & False), 0),
}


@pytest.mark.parametrize("name", MADE)
def test_masks_with_the_lowest_float_made_in_the_graph(name: str) -> None:
    """Where its constants are in sight nothing has to be compared."""
    make, compared = MADE[name]

    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attend(q, k, v, attn_mask=make(mask))

    mask = torch.rand(2, 7) > 0.5
    mask[1] = False
    made = check_onnx(fn, (*qkv(Q, K, K), mask), others=[(*qkv(Q, K, K), ~mask)])
    assert "Attention" in operators(made)
    assert operators(made).count("Equal") == compared


def test_the_kernel_of_torch() -> None:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    check_onnx(lambda q, k, v: op(q, k, v, is_causal=True), qkv(Q, K, K))
    check_onnx(lambda q, k, v: op(q, k, v)[0], qkv(Q, K, K))


def test_dropout() -> None:
    """Of the weights: each is 0, or twice what it is."""
    q, k, v = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 64, 8), torch.ones(1, 1, 64, 8)
    made = gp.onnx.export(program({"dropout_p": 0.5}), (q, k, v))
    out = made(q, k, v)
    torch.testing.assert_close(out, (out * 32).round() / 32)
    assert (out > 0.4).all() and (out < 1.6).all() and (out != 1).any()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_module(need_weights: bool, batch_first: bool) -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = torch.randn(3, 5, 16)
    mask = torch.zeros(3, 5) if batch_first else torch.zeros(5, 3)

    def fn(x: Tensor, mask: Tensor) -> Any:
        return model(x, x, x, key_padding_mask=mask > 0.5, need_weights=need_weights)

    check_onnx(fn, (x, mask))


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first: bool) -> None:
    model = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation="gelu"
    ).eval()
    check_onnx(
        model, (torch.randn(2, 5, 16),), dynamic_shapes=dims(1), others=[(torch.randn(3, 7, 16),)]
    )


@TARGETS
def test_heads_of_any_size(target: str) -> None:
    """ONNX Runtime's operator refuses a size of 0, where every row counts alike."""
    d, e = gp.Dim("d"), gp.Dim("e")
    shapes = ({3: d}, {3: d}, {3: e})
    others = [qkv((2, 2, 3, m), (2, 2, 3, m), (2, 2, 3, n)) for m, n in ((0, 4), (4, 0), (0, 0))]
    tensors = qkv(*[(2, 2, 3, 4)] * 3)
    check_onnx(
        lambda q, k, v: attend(q, k, v, scale=0.5),
        tensors,
        dynamic_shapes=shapes,
        others=others,
        target=target,
    )
    check_onnx(lambda q: attend(q, q, q, scale=0.5), (torch.ones(2, 2, 3, 0),), target=target)
