"""PyTorch's own operator database as a test: every sample captured, and compared with eager.

A sample is a call of an operator. Its tensors become the inputs of a program, everything else is
part of the program. The program is captured with fixed sizes, with every size automatic, and with a
named dim for each size that occurs; the last is run at other sizes too, made by repeating or
dropping rows. A program may refuse sizes, at export or when it checks its inputs, and a kernel may
refuse empty ones; it may not be wrong about them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import graphport as gp
from tests.helpers import assert_same, clone, compare_metadata

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float16, torch.bfloat16)

HALVES = (torch.float16, torch.bfloat16)
WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

# What the database's own wrappers of random operators seed with.
SEED = 42

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def samples(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            if limit is not None and i >= limit:
                return
            yield sample


def variants(op: Any, sample: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The ways to write the call: as a function, in place, with out=."""
    yield "function", op.op
    if op.inplace_variant is not None and not sample.broadcasts_input:
        yield "inplace", _on_copy(op.inplace_variant) if _reshapes(op) else op.inplace_variant
    if op.supports_out:
        yield "out", _with_out(op.op)


def _reshapes(op: Any) -> bool:
    """`t_`, `squeeze_`, ...: they change the tensor itself, which an input cannot be."""
    packet = getattr(torch.ops.aten, getattr(op.inplace_variant, "__name__", ""), None)
    return packet is not None and any(
        torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads()
    )


def _on_copy(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda input, *args, **kwargs: op(input.clone(), *args, **kwargs)


def _with_out(op: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        results = op(input, *args, **kwargs)
        if isinstance(results, torch.Tensor):
            out: Any = torch.zeros_like(results)
        else:
            out = tuple(torch.zeros_like(r) for r in results)
        op(input, *args, **kwargs, out=out)
        return out if isinstance(out, torch.Tensor) else list(out)

    return call


def case(call: Callable[..., Any], sample: Any) -> Case:
    """The call as a function of its tensors."""
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[i].detach() for i in where]

    def run(tensors: Any) -> Any:
        leaves = list(flat)
        for i, t in zip(where, tensors, strict=True):
            leaves[i] = t
        input, args, kwargs = pytree.tree_unflatten(leaves, spec)
        result = call(input, *args, **kwargs)
        # Named tuples are a matter of Python, not of the program.
        return list(result) if isinstance(result, tuple) else result

    return run, (tensors,)


def eager(fn: Callable[..., Any], inputs: Any) -> Any:
    """What PyTorch computes, or None where it raises: such a call has nothing to be compared to."""
    torch.manual_seed(SEED)
    try:
        return fn(*clone(inputs))
    except (RuntimeError, IndexError, ValueError, TypeError, AssertionError):
        return None


def check_static(fn: Callable[..., Any], inputs: tuple[Any, ...], **options: Any) -> None:
    _check(gp.export(fn, inputs), fn, inputs, **options)


def check_automatic(fn: Callable[..., Any], inputs: tuple[Any, ...], **options: Any) -> None:
    spec = [{d: gp.Dim.AUTO for d, s in enumerate(t.shape) if s} for t in inputs[0]]
    ep = gp.export(fn, inputs, dynamic_shapes=(spec,))
    _check(ep, fn, inputs, **options)


def check_dynamic(fn: Callable[..., Any], inputs: tuple[Any, ...], **options: Any) -> None:
    """A dim per size; sizes of 1 are left alone, because to broadcast is what they are for."""
    spec = [{d: gp.Dim(f"d{s}") for d, s in enumerate(t.shape) if s > 1} for t in inputs[0]]
    try:
        ep = gp.export(fn, inputs, dynamic_shapes=(spec,))
    except gp.errors.ConstraintViolationError:
        check_static(fn, inputs, **options)
        return
    _check(ep, fn, inputs, **options)
    for size in {s for t in inputs[0] for s in t.shape if s > 1}:
        for other in (size + 1, 1, 0):
            check_resized(ep, fn, resized(inputs, size, other), **options)


def resized(inputs: tuple[Any, ...], size: int, other: int) -> tuple[Any, ...]:
    """The same inputs, with `other` rows wherever there were `size`."""

    def one(t: torch.Tensor) -> torch.Tensor:
        index = torch.arange(other).clamp(max=size - 1)
        # The layout is part of what was captured: dims stay in the order of their strides.
        order = sorted(range(t.dim()), key=lambda d: -t.stride(d))
        for d, s in enumerate(t.shape):
            if s == size:
                t = t.index_select(d, index)
        packed = t.permute(order).contiguous()
        return packed.permute([order.index(d) for d in range(t.dim())])

    return ([one(t) for t in inputs[0]],)


def check_resized(
    ep: gp.ExportedProgram, fn: Callable[..., Any], inputs: tuple[Any, ...], **options: Any
) -> None:
    if eager(fn, inputs) is None:
        return
    try:
        ep.checks(pytree.tree_leaves(inputs))
        ep.module()(*clone(inputs))
    except (RuntimeError, IndexError, ValueError) as error:
        empty = any(0 in t.shape for t in inputs[0])
        if not empty and not str(error).startswith(("Expected input", "Runtime assertion")):
            raise
        return
    try:
        _check(ep, fn, inputs, **options)
    except (AssertionError, RuntimeError) as error:
        sizes = [list(t.shape) for t in inputs[0]]
        raise AssertionError(f"at {sizes}: {error}\n{ep}") from error


def _check(
    ep: gp.ExportedProgram, fn: Callable[..., Any], inputs: tuple[Any, ...], values: bool = True
) -> None:
    ep.validate()
    ours, theirs = clone(inputs), clone(inputs)
    torch.manual_seed(SEED)
    want = fn(*theirs)
    torch.manual_seed(SEED)
    have = ep.module()(*ours)
    if not values:
        have, want = (pytree.tree_map_only(torch.Tensor, torch.zeros_like, x) for x in (have, want))
    # Kernels with and without out= may round differently.
    halves = any(getattr(x, "dtype", None) in HALVES for x in pytree.tree_leaves(want))
    close = 1e-2 if halves else None
    try:
        assert_same(have, want, "results differ", close, close)
    except AssertionError:
        if not _is_as_near(have, want, fn, inputs):
            raise
    assert_same(ours, theirs, "inputs are left differently", close, close)
    compare_metadata(ep, (inputs, {}))


def _is_as_near(have: Any, want: Any, fn: Callable[..., Any], inputs: Any) -> bool:
    """Whether results are as near the truth as eager's, up to a rounding.

    Where numbers of both signs are added up in another order, as a product of three matrices is
    that was captured at other sizes, what is left of them is off by a rounding of the largest. How
    much that is of a result depends on the values, and on how a processor adds them up. The truth
    is what eager gives in float64.
    """
    truth = eager(fn, pytree.tree_map_only(torch.Tensor, _widened, inputs))
    if any(pytree.tree_structure(x) != pytree.tree_structure(want) for x in (have, truth)):
        return False
    flat = [pytree.tree_leaves(x) for x in (have, want, truth)]
    sizes = [t.abs().max().item() for t in inputs[0] if t.dtype in WIDER and t.numel()]
    return all(
        _is_near(*leaves, max(sizes, default=0.0))
        if isinstance(leaves[1], torch.Tensor)
        else leaves[0] == leaves[1]
        for leaves in zip(*flat, strict=True)
    )


def _is_near(have: Any, want: Any, truth: Any, size: float) -> bool:
    """By the dtype's eps, of the largest number that goes in or comes out."""
    if have.dtype is not want.dtype or not have.shape == want.shape == truth.shape:
        return False
    if truth.dtype is not WIDER.get(want.dtype):
        return torch.equal(have, want)
    regular = have.isfinite() & want.isfinite() & truth.isfinite()
    if not torch.allclose(have[~regular], want[~regular], equal_nan=True):
        return False
    ours, theirs = ((x - truth)[regular].abs() for x in (have, want))
    if not ours.numel():
        return True
    largest = max(size, truth[regular].abs().max().item())
    return bool(ours.max() <= theirs.max() + torch.finfo(want.dtype).eps * largest)


def _widened(t: torch.Tensor) -> torch.Tensor:
    return t.to(WIDER.get(t.dtype, t.dtype))
