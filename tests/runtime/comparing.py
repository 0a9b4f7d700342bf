"""Compiled against eager: results, memory that is shared, and what is written to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from graphport.runtime import OrtBackend


def check(
    fn: Callable[..., Any],
    *calls: Sequence[Any],
    dynamic: bool | None = True,
    options: Any = None,
    strides: bool = True,
    **tolerances: Any,
) -> OrtBackend:
    """Call a compiled function or module, and the eager one, with copies of the same arguments.

    Results, arguments and buffers are compared afterwards: values, dtypes, sizes, strides, and
    which of them share memory.
    """
    backend = options if isinstance(options, OrtBackend) else OrtBackend(options)
    own = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
    compiled = torch.compile(own, backend=backend, dynamic=dynamic)
    for args in calls:
        given, expected_given = copy.deepcopy(args), copy.deepcopy(args)
        expected = fn(*expected_given)
        found = compiled(*given)
        same((found, given), (expected, expected_given), strides=strides, **tolerances)
        if isinstance(fn, nn.Module) and isinstance(own, nn.Module):
            same(dict(own.state_dict()), dict(fn.state_dict()), strides=False, **tolerances)
    assert not backend.refused, backend.explain()
    return backend


def same(found: Any, expected: Any, *, strides: bool = True, **tolerances: Any) -> None:
    leaves, spec = pytree.tree_flatten(found)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for x, y in zip(leaves, wanted, strict=True):
        assert type(x) is type(y), (x, y)
        if not isinstance(x, torch.Tensor):
            assert x == y or (x != x and y != y)
            continue
        torch.testing.assert_close(x, y, equal_nan=True, **tolerances)
        assert x.requires_grad == y.requires_grad
        if strides and x.numel():
            assert _strides(x) == _strides(y), (x.shape, x.stride(), y.stride())
    if strides:
        assert shared(leaves) == shared(wanted)


def _strides(t: torch.Tensor) -> list[int]:
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]


def shared(leaves: Iterable[Any]) -> list[tuple[int, int, int]]:
    """Pairs of tensors over the same memory, and how far the second begins after the first."""
    tensors = [
        (i, t) for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.numel() > 0
    ]
    return [
        (i, j, u.data_ptr() - t.data_ptr())
        for k, (i, t) in enumerate(tensors)
        for j, u in tensors[k + 1 :]
        if t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr()
    ]


def counts(backend: OrtBackend) -> list[int]:
    """How many sessions each graph has."""
    return [len(records) for records in backend.sessions.values()]


def operators(backend: OrtBackend) -> list[str]:
    """The operators of all models."""
    return [
        node.op_type
        for records in backend.sessions.values()
        for record in records
        for node in record.model_proto.graph.node
    ]
