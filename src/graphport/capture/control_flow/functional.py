"""`gp.map` and `gp.scan`: loops that stay loops in a captured program.

In eager they are plain Python loops, which need no compiler and can be differentiated. While a
program is captured they are torch's operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport import source
from graphport.arguments import FLAG, FUNCTION, check_arguments, integer
from graphport.compat.torch import pytree
from graphport.errors import InputError, UserError
from graphport.types import Argument, PyTree


@check_arguments(f=FUNCTION)
def map(f: Callable[..., Any], xs: PyTree, *args: PyTree) -> PyTree:
    """Call `f(x, *args)` for each x along the first dim of `xs`, and stack what it returns.

    `xs` is a tensor or a container of tensors with one leading size, of at least 1.

    >>> import torch, graphport as gp
    >>> gp.map(lambda x, k: x.sum() * k, torch.ones(3, 2), 5)
    tensor([10., 10., 10.])
    """
    leaves, spec = pytree.tree_flatten(xs)
    count = _common_length("gp.map", leaves, 0)
    if torch.compiler.is_compiling():
        from graphport.compat.torch import higher_order_map as operator

        return operator(f, xs, *args)
    steps = [f(pytree.tree_unflatten([x[i] for x in leaves], spec), *args) for i in range(count)]
    return _stack_steps("gp.map", steps, 0)


@check_arguments(combine_fn=FUNCTION, dim=integer(), reverse=FLAG)
def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]],
    init: object,
    xs: object,
    *,
    dim: int = 0,
    reverse: bool = False,
) -> tuple[object, object]:
    """Call `carry, y = combine_fn(carry, x)` for each x along `dim` of `xs`, starting with `init`.

    The last carry, and all y stacked along `dim`. With `reverse` the last x comes first; y stays in
    the order of `xs`.

    >>> import torch, graphport as gp
    >>> gp.scan(lambda carry, x: (carry + x, carry * x), torch.tensor(0), torch.tensor([1, 2, 3]))
    (tensor(6), tensor([0, 2, 9]))
    """
    leaves, spec = pytree.tree_flatten(xs)
    if not leaves:
        return init, []
    first = leaves[0]
    rank = first.dim() if isinstance(first, torch.Tensor) else 0
    dim = dim + rank if dim < 0 else dim
    count = _common_length("gp.scan", leaves, dim)
    if torch.compiler.is_compiling():
        return _call_scan_operator(combine_fn, init, xs, dim, reverse)
    carry, ys = init, []
    for i in reversed(range(count)) if reverse else range(count):
        x = pytree.tree_unflatten([x.select(dim, i) for x in leaves], spec)
        after, y = _unpack_pair(combine_fn(carry, x))
        _check_carried(carry, after)
        carry = after
        ys.append(y)
    return carry, _stack_steps("gp.scan", ys[::-1] if reverse else ys, dim)


def _call_scan_operator(
    combine_fn: Callable[[Any, Any], Any], init: object, xs: object, dim: int, reverse: bool
) -> tuple[object, object]:
    from graphport.compat.torch import higher_order_scan as operator

    @functools.wraps(combine_fn)
    def step(carry: Any, x: Argument) -> tuple[Argument, Argument]:
        after, y = _unpack_pair(combine_fn(carry, x))
        if pytree.tree_structure(after) != pytree.tree_structure(carry):
            _check_carried(carry, after)
        return after, y

    if dim == 0:
        return operator(step, init, xs, reverse=reverse)
    # Not left to torch, some versions of which stack results along the first dim.
    moved = pytree.tree_map(lambda x: x.movedim(dim, 0), xs)
    carry, ys = operator(step, init, moved, reverse=reverse)
    return carry, pytree.tree_map(lambda y: y.movedim(0, dim) if dim < y.dim() else y, ys)


def _common_length(what: str, leaves: Sequence[Argument], dim: int) -> int:
    """The size that all have in a dim."""
    for x in leaves:
        if not isinstance(x, torch.Tensor) or x.dim() <= dim:
            got = f"one of {x.dim()} dims" if isinstance(x, torch.Tensor) else repr(x)
            raise InputError(
                f"{what} goes over tensors with at least {dim + 1} dims, got {got}",
                where=source.locate_user_line(),
                fix="pass other values as further arguments, or let the function close over them",
            )
    sizes = [x.shape[dim] for x in leaves]
    if not sizes or sizes[0] == 0 or any(s != sizes[0] for s in sizes):
        said = f"sizes {', '.join(str(s) for s in sizes)} in dim {dim}" if sizes else "no tensor"
        raise InputError(
            f"{what} goes over one or more elements, as many in each tensor; got {said}",
            where=source.locate_user_line(),
        )
    return sizes[0]


def _unpack_pair(out: object) -> tuple[object, object]:
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise UserError(
            f"the function of gp.scan returns (carry, y), got {type(out).__name__}",
            where=source.locate_user_line(),
        )
    return out[0], out[1]


def _check_carried(before: object, after: object) -> None:
    """What is carried stays the same in kind."""
    old, spec = pytree.tree_flatten(before)
    new, found = pytree.tree_flatten(after)
    kinds = [
        [
            (x.dtype, x.device, tuple(x.shape)) if isinstance(x, torch.Tensor) else type(x)
            for x in side
        ]
        for side in (old, new)
    ]
    if spec != found or kinds[0] != kinds[1]:
        raise UserError(
            f"gp.scan carries {_format_tree(before)}, but its function returns "
            f"{_format_tree(after)}",
            where=source.locate_user_line(),
            fix="carry values of one size and dtype; convert the first one before the loop",
        )


def _format_tree(tree: object) -> str:
    return str(
        pytree.tree_map(
            lambda x: (
                f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
                if isinstance(x, torch.Tensor)
                else x
            ),
            tree,
        )
    )


def _stack_steps(what: str, steps: Sequence[object], dim: int) -> Argument:
    """The results of all steps as one."""
    flat = [pytree.tree_flatten(step) for step in steps]
    leaves, spec = zip(*flat, strict=True)
    if any(s != spec[0] for s in spec):
        raise UserError(
            f"the steps of {what} return different structures", where=source.locate_user_line()
        )
    return pytree.tree_unflatten(
        [_stack_leaf(what, column, dim) for column in zip(*leaves, strict=True)], spec[0]
    )


def _stack_leaf(what: str, column: Sequence[object], dim: int) -> Argument:
    if all(x is None for x in column):
        return None
    if not all(isinstance(x, torch.Tensor) for x in column):
        raise UserError(
            f"the steps of {what} return tensors, got {column[0]!r}",
            where=source.locate_user_line(),
            fix="return torch.tensor(...) of a number",
        )
    stacked = torch.stack(list(column))
    return torch.movedim(stacked, 0, dim) if 0 < dim < stacked.dim() else stacked
