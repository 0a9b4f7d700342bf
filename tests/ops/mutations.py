"""Calls that are not meant: samples of PyTorch's operator database with one argument changed.

A tensor gets another dtype, another dim or fewer elements; a number another number; a word another
word; a list one element more or fewer. What eager says to it is the oracle, as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from tests.ops import sweep

NUMBERS: dict[type, list[Any]] = {
    int: [0, -1, -7, 1000, 0.5, None],
    float: [-1.5, 0.0, 2.5, None],
    str: ["bogus", None],
    bool: [None],
    torch.dtype: [torch.int64, torch.complex64, torch.bool],
}
_MOST = 20_000
"""Elements of a sample that is worth changing."""


def mutations(op: Any, limit: int = 2) -> Iterator[tuple[str, SampleInput]]:
    """Of samples of floats that lie apart, and of the first of integers and truths."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        samples = list(sweep.samples(op, dtype, None))
        apart = samples[:: max(1, len(samples) // limit)][:limit]
        for sample in apart if dtype is torch.float32 else samples[:1]:
            leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
            if sum(x.numel() for x in leaves if isinstance(x, torch.Tensor)) <= _MOST:
                for what, changed in _changed(sample):
                    yield f"{dtype} {what}", changed


def _changed(sample: Any) -> Iterator[tuple[str, SampleInput]]:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    for i, x in enumerate(flat):
        others = _tensors(x.detach()) if isinstance(x, torch.Tensor) else _numbers(x)
        for what, other in others:
            yield (
                f"argument {i}: {what}",
                _sample(pytree.tree_unflatten([*flat[:i], other, *flat[i + 1 :]], spec)),
            )
    args, kwargs = sample.args, sample.kwargs
    for i, a in enumerate(args):
        for what, other in _lists(a):
            yield (
                f"argument {i}: {what}",
                _sample((sample.input, (*args[:i], other, *args[i + 1 :]), kwargs)),
            )
    for k, a in kwargs.items():
        for what, other in _lists(a):
            yield f"{k}: {what}", _sample((sample.input, args, {**kwargs, k: other}))
        rest = {name: value for name, value in kwargs.items() if name != k}
        yield f"without {k}", _sample((sample.input, args, rest))
    if args:
        yield "without the last", _sample((sample.input, args[:-1], kwargs))


def _sample(parts: Any) -> SampleInput:
    input, args, kwargs = parts
    return SampleInput(input, args=tuple(args), kwargs=kwargs)


def _tensors(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if t.layout is not torch.strided:
        return
    floats = (torch.int64, torch.float64, torch.bool, torch.complex64)
    others = floats if t.is_floating_point() else (torch.float32, torch.bool, torch.int32)
    for dtype in others:
        yield str(dtype), t.to(dtype)
    yield "a dim in front", t.unsqueeze(0)
    if not t.dim():
        yield "a vector", t.reshape(1).repeat(3)
        return
    yield "a dim behind", t.unsqueeze(-1)
    if t.shape[0]:
        yield "its first", t[0].clone()
    yield "nothing", t[:0].clone()
    yield "nothing behind", t[..., :0].clone()
    if t.shape[0] > 1:
        yield "without its first", t[1:].clone()
    if t.shape[-1] > 1:
        yield "without its first behind", t[..., 1:].clone()


def _numbers(x: Any) -> Iterator[tuple[str, Any]]:
    for other in NUMBERS.get(type(x), ()):
        if other != x:
            yield str(other), other


def _lists(x: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(x, (list, tuple)) and x:
        yield "one fewer", type(x)(x[:-1])
        yield "one more", type(x)((*x, x[-1]))
