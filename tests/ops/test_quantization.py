"""Fake quantisation and the operators of PT2E, captured: as eager, at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphport as gp
from tests.helpers import check
from tests.quantized import PT2E

aten = torch.ops.aten
SCALES = torch.tensor([0.1, 0.2, 0.37])
ZEROS = torch.tensor([1, 5, 0])


def fakes(x: Tensor) -> Any:
    scale, zero = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
    return (
        torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
        torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255),
        torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS.int(), 1, 0, 255),
    )


def fakes_with_masks(x: Tensor) -> Any:
    scale, zero = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
    switched = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    return (
        *aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, 0, 15),
        *switched(x, scale, zero, torch.ones(1, dtype=torch.uint8), 0, 15),
        *aten.fake_quantize_per_channel_affine_cachemask(x, SCALES, ZEROS.int(), 1, 0, 15),
    )


def per_tensor(x: Tensor) -> Any:
    kind = 0.1, 3, -128, 127, torch.int8
    q = PT2E.quantize_per_tensor(x, *kind)
    by_tensor = torch.tensor(0.1), torch.tensor(3), -128, 127, torch.int8
    back = PT2E.dequantize_per_tensor(q, *by_tensor, out_dtype=torch.float16)
    return q, PT2E.dequantize_per_tensor(q, *kind), back, PT2E.quantize_per_tensor(x, *by_tensor)


def per_channel(x: Tensor) -> Any:
    kind = SCALES, ZEROS, 1, 0, 255, torch.uint8
    q = PT2E.quantize_per_channel(x, *kind)
    return (
        q,
        PT2E.dequantize_per_channel(q, *kind),
        PT2E.dequantize_per_channel(
            q, SCALES[:1], None, 1, 0, 255, torch.uint8, out_dtype=torch.bfloat16
        ),
    )


def per_token(x: Tensor) -> Any:
    return (
        *PT2E.choose_qparams_per_token(x, torch.int8),
        *PT2E.choose_qparams_per_token(x.half(), torch.int8),
        *PT2E.choose_qparams_per_token_asymmetric(x, torch.int8),
    )


@pytest.mark.parametrize("fn", [fakes, fakes_with_masks, per_tensor, per_channel, per_token])
def test_captured(fn: Callable[..., Any]) -> None:
    rows = gp.Dim("rows")
    others = [(torch.randn(n, 3) * 9,) for n in (1, 7, 0)]
    ep = check(fn, (torch.randn(4, 3),), dynamic_shapes=({0: rows},), others=others)
    assert not any("mul" in str(n.target) for n in ep.graph.nodes), "stay whole"


def test_strided() -> None:
    x = torch.randn(4, 6, 3).permute(2, 0, 1)[:, :, ::2]
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255), (x,))
    check(lambda x: PT2E.quantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8), (x,))


def test_halves() -> None:
    """Whose meta kernels convert them."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(4, 3, dtype=dtype)
        check(per_channel, (x,), dynamic_shapes=({0: gp.Dim("rows")},))


def test_gradients() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    ep = gp.export(fakes, (x,))
    for made, want in zip(ep.module()(x), fakes(x), strict=True):
        (one,) = torch.autograd.grad(made.sum(), x, retain_graph=True)
        (other,) = torch.autograd.grad(want.sum(), x)
        assert torch.equal(one, other)


X = torch.randn(4, 3)
CH = torch.fake_quantize_per_channel_affine
Z32 = ZEROS.int()
REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 300, 0, 255), "zero_point"),
    (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 5, 3), "quant_min"),
    (lambda x: torch.fake_quantize_per_tensor_affine(x.int(), 0.1, 0, 0, 9), "floats"),
    (lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES, Z32, 0, 9), "one element"),
    (lambda x: CH(x, SCALES, Z32, 0, 0, 9), "not consistent"),
    (lambda x: CH(x, SCALES, Z32, -1, 0, 9), "axis"),
    (lambda x: CH(x, SCALES, ZEROS, 1, 0, 9), "Int32"),
    (lambda x: PT2E.quantize_per_tensor(x.double(), 0.1, 0, 0, 9, torch.uint8), "float32"),
    (lambda x: PT2E.quantize_per_tensor(x, 0.1, 0, 0, 999, torch.uint8), "out of bounds"),
    (lambda x: PT2E.quantize_per_tensor(x, 0.1, 0, 0, 9, torch.int64), "Unsupported dtype"),
    (lambda x: PT2E.quantize_per_tensor(x, SCALES, ZEROS, 0, 9, torch.uint8), "one element"),
    (lambda x: PT2E.dequantize_per_tensor(x, 0.1, 0, 0, 9, torch.uint8), "Expecting input"),
    (lambda x: PT2E.quantize_per_channel(x, SCALES, ZEROS, 0, 0, 9, torch.uint8), "does not fit"),
    (lambda x: PT2E.choose_qparams_per_token(x, torch.uint8), "unsupported dtype"),
]


@pytest.mark.parametrize(("fn", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_refused(fn: Callable[..., Any], said: str) -> None:
    """As in eager, with the user's line."""
    with pytest.raises(Exception, match=r"."):  # each operator has its own
        fn(X)
    with pytest.raises(gp.errors.ExportError, match=said) as error:
        gp.export(fn, (X,))
    assert "test_quantization.py" in str(error.value)
