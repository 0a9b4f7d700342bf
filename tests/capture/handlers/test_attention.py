"""flex_attention: score and mask functions at open lengths, against eager and in ONNX Runtime."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    and_masks,
    create_block_mask,
    flex_attention,
)

import graphport as gp
from tests.helpers import check
from tests.onnx.helpers import check_onnx

# Eager says that it is slow, and its imports that TorchScript is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

Q, K = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
OTHERS = [(torch.randn(3, 4, 9, 8), torch.randn(3, 4, 9, 8)), (Q[:1, :, :1], K[:1, :, :1])]
SHAPES = (({0: gp.Dim("batch"), 2: (n := gp.Dim("n"))}, {0: gp.Dim("batch"), 2: n}),)
BIAS = torch.randn(4, 40)
DOCUMENTS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 3])


def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (i - j) * 0.1 * (h + 1) + BIAS[h, i]


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 5 * torch.tanh(score / 5) - (b == 1) * 0.5


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def same_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return DOCUMENTS[i] == DOCUMENTS[j]


def with_masks(q: Tensor, k: Tensor) -> Tensor:
    both = and_masks(causal, same_document)
    mask = create_block_mask(both, None, None, q.shape[2], k.shape[2], device="cpu")
    return flex_attention(q, k, k.sin(), block_mask=mask)


def nothing_is_seen(q: Tensor, k: Tensor) -> Tensor:
    mask = create_block_mask(
        lambda b, h, i, j: j < i - 1, q.shape[0], None, q.shape[2], k.shape[2], device="cpu"
    )
    return flex_attention(q, k, k.sin(), score_mod=capped, block_mask=mask, scale=0.3)


def statistics(q: Tensor, k: Tensor) -> Any:
    request = AuxRequest(lse=True)
    out, aux = flex_attention(q, k, k.cos(), score_mod=capped, return_aux=request)
    return out, aux.lse


def of_projections(q: Tensor, k: Tensor) -> Tensor:
    """Heads that are views of features: the result has their layout, and so has a view."""
    q, k = (t.reshape(t.shape[0], t.shape[2], 4, 8).transpose(1, 2) for t in (q, k))
    return (
        flex_attention(q, k, k.cos(), score_mod=relative)
        .transpose(1, 2)
        .view(q.shape[0], q.shape[2], -1)
    )


def grouped(q: Tensor, k: Tensor) -> Tensor:
    return flex_attention(q, k[:, :2], k[:, :2], score_mod=relative, enable_gqa=True)


PROGRAMS = {
    "plain": lambda q, k: flex_attention(q, k, k.sin()),
    "a bias": lambda q, k: flex_attention(q, k, k.sin(), score_mod=relative),
    "a cap": lambda q, k: flex_attention(q, k, k.sin(), score_mod=capped),
    "masks": with_masks,
    "rows without a key": nothing_is_seen,
    "statistics": statistics,
    "the layout of the query": of_projections,
    "groups": grouped,
}


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager without Dynamo, which takes seconds for each call."""
    module = sys.modules[flex_attention.__module__]
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", PROGRAMS)
def test_at_open_lengths(name: str) -> None:
    check(PROGRAMS[name], (Q, K), dynamic_shapes=SHAPES[0], others=OTHERS)
    program = PROGRAMS[name]
    check_onnx(lambda q, k: program(q, k), (Q, K), dynamic_shapes=SHAPES[0], others=OTHERS)


def test_compiled_functions_run_as_they_are_written() -> None:
    compiled = torch.compile(flex_attention, backend="eager")
    ep = gp.export(lambda q, k: compiled(q, k, k, score_mod=relative), (Q, K))
    scores = Q @ K.mT / 8**0.5 + (torch.arange(6)[:, None] - torch.arange(6)) * 0.1 * (
        torch.arange(4)[:, None, None] + 1
    )
    want = (scores + BIAS[:, :6, None]).softmax(-1) @ K
    torch.testing.assert_close(ep.module()(Q, K), want)
    inner = gp.export(lambda q: torch.compile(lambda t: t.sin() + 1, backend="eager")(q), (Q,))
    assert [n.name for n in inner.graph.nodes] == ["q", "sin", "add", "output"]
    assert torch.compile(torch.sin, backend="eager") is not torch.sin


@pytest.mark.usefixtures("uncompiled")
def test_a_mask_made_before_fixes_the_length() -> None:
    mask = create_block_mask(causal, None, None, 6, 6, device="cpu")
    program = lambda q, k: flex_attention(q, k, k, block_mask=mask)
    check(program, (Q, K))
    with pytest.raises(gp.errors.ExportError, match="n = 6"):
        gp.export(program, (Q, K), dynamic_shapes=SHAPES[0])


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    q, k = Q.to(dtype), K.to(dtype)
    check(PROGRAMS["a bias"], (q, k), dynamic_shapes=SHAPES[0])
