"""Shapes by PyTorch's own meta kernels, for the operators that have no rule here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._library import simple_registry
from torch._ops import OpOverload

from graphport.errors import UnsupportedError
from graphport.ops.abstract import Abstract, Sizes, permuted, row_major
from graphport.ops.strides import at_example, typical
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, to_torch

_META = torch.device("meta")


def meta_tensor(a: Abstract) -> torch.Tensor:
    """A tensor on the meta device with the same sizes, strides and dtype."""
    sizes = [to_torch(s) for s in a.sizes]
    if a._strides is None:
        return torch.empty(sizes, dtype=a.dtype, device=_META)
    return torch.empty_strided(sizes, [to_torch(s) for s in a.strides], dtype=a.dtype, device=_META)


def from_meta(t: torch.Tensor, device: torch.device) -> Abstract:
    sizes = tuple(from_torch(s) for s in t.shape)
    strides: tuple[Any, ...] | None = tuple(from_torch(s) for s in t.stride())
    if strides == row_major(sizes):
        strides = None
    return Abstract(sizes, t.dtype, device, strides)


def _is_symbolic(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(map(_is_symbolic, x))
    if isinstance(x, Abstract):
        return any(isinstance(s, Expr) for s in (*x.sizes, *(x._strides or ())))
    return isinstance(x, Expr)


class SymbolicSizesError(Exception):
    """The meta kernel takes the example sizes, but not symbolic ones."""


def parts_of(op: OpOverload) -> list[Callable[..., Any]]:
    """The operator in terms of others, by torch's kernel for every backend and by its reference."""
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    found = []
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
        found.append(partial(op._op_dk, key))
    return [*found, decomposition_table[op]] if op in decomposition_table else found


def fake_of(op: OpOverload) -> Callable[..., Any] | None:
    """The fake implementation of a custom operator; it may ask for data-dependent sizes.

    Called by itself and not through the dispatcher, which would refuse to answer.
    """
    if op.namespace in ("aten", "prims"):
        return None
    return simple_registry.singleton.find(op.name()).fake_impl.kernel


def meta_rule(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the operator on meta tensors and read off the result."""
    if not _is_symbolic(args) and not _is_symbolic(list(kwargs.values())):
        return _by_meta(op, args, kwargs)
    try:
        return _by_meta(op, args, kwargs)
    except (RuntimeError, TypeError, AssertionError) as error:
        # What also fails at the example sizes is the user's mistake, and raises as such.
        _by_meta(op, example_of(args), example_of(kwargs))
        raise SymbolicSizesError from error


def refuse(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], seen: set[Any]) -> None:
    """Raise what torch's meta kernel raises at the example sizes, where a shape rule is content.

    Rules say what comes out; kernels also check windows, probabilities, dtypes and indices. Calls
    that were `seen` are not tried again, and those of sizes that only data tells not at all.
    """
    if not all(map(_has_example, (*args, *kwargs.values()))):
        return
    plain = (op, example_of(args), example_of(kwargs))
    key = repr(plain)
    if key in seen:
        return
    seen.add(key)
    with suppress(NotImplementedError, UnsupportedError):  # there is no such kernel
        _by_meta(*plain)


def _has_example(x: Any) -> bool:
    if isinstance(x, Abstract):
        return all(map(_has_example, (*x.sizes, *(x._strides or ()))))
    if isinstance(x, Expr):
        return x.scope.hint(x) is not None
    return all(map(_has_example, x)) if isinstance(x, (list, tuple)) else True


def example_of(x: Any) -> Any:
    """Arguments at the example sizes."""
    if isinstance(x, Abstract):
        return Abstract(tuple(map(at_example, x.sizes)), x.dtype, x.device,
                        x._strides and tuple(map(at_example, x._strides)))  # fmt: skip
    if isinstance(x, Expr):
        return x.scope.hint(x)
    if isinstance(x, dict):
        return {k: example_of(v) for k, v in x.items()}
    return [example_of(y) for y in x] if isinstance(x, (list, tuple)) else x


def _by_meta(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    devices: list[torch.device] = []

    def down(x: Any) -> Any:
        if isinstance(x, Abstract):
            devices.append(x.device)
            return meta_tensor(x)
        if isinstance(x, Expr):
            return to_torch(x)
        if isinstance(x, (list, tuple)):
            return [down(y) for y in x]
        if isinstance(x, torch.device):
            devices.append(x)
            return _META
        return x

    lowered = [down(a) for a in args]
    keywords = {k: down(v) for k, v in kwargs.items()}
    # Many C++ meta kernels refuse symbolic sizes; torch's reference in Python takes them.
    reference = decomposition_table.get(op) if _is_symbolic(args) else None
    try:
        out = (reference or fake_of(op) or op)(*lowered, **keywords)
    except (NotImplementedError, RuntimeError) as error:
        # torch.library.custom_op raises a plain RuntimeError where it has nothing to run.
        if not isinstance(error, NotImplementedError) and "no fake impl" not in str(error):
            raise
        custom = op.namespace not in ("aten", "prims")
        name = op.name().split(".")[0]
        raise UnsupportedError(
            f"{op} has no shape rule and no meta kernel, so its result cannot be described "
            "without running it",
            fix=[f'register one: @torch.library.register_fake("{name}")'] if custom else [],
        ) from error
    device = next((d for d in devices if d.type != "meta"), devices[0] if devices else None)

    def up(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return from_meta(x, device or x.device)
        if isinstance(x, (list, tuple)):
            return type(x)(up(y) for y in x) if type(x) in (list, tuple) else [up(y) for y in x]
        if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return from_torch(x)
        return x

    return up(out)


def layout_by_meta(op: OpOverload, sizes: Sizes, *args: Any, **kwargs: Any) -> Sizes | None:
    """Strides for a dense result, in the order that the meta kernel has at the example sizes.

    For operators whose sizes are plain and whose layout follows from how they are computed.
    """

    def down(x: Any) -> Any:
        if isinstance(x, Abstract):
            extent, strides = map(typical, x.sizes), map(typical, x.strides)
            return torch.empty_strided(list(extent), list(strides), dtype=x.dtype, device=_META)
        if isinstance(x, Expr):
            return typical(x)
        return [down(y) for y in x] if isinstance(x, (list, tuple)) else x

    found = op(*map(down, args), **kwargs).stride()
    order = sorted(range(len(sizes)), key=lambda d: -found[d])
    return None if order == list(range(len(sizes))) else permuted(sizes, order)
