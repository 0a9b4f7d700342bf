"""Writes operators for opsets before 20, where the standard has them in another form, or not yet.

Lowerings emit operators as newer opsets have them. A row here says until which opset one is written
otherwise, and how: axes as attributes, a part of a shape as a slice of it. What has no row is the
same operator in all opsets, or is refused with the first opset that has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.emit.ir import Value
from graphport.onnx.emit.schemas import Signature, find_signature

if TYPE_CHECKING:
    from graphport.onnx.emit.builder import Builder

NEWEST_FORM = 20
"""From this opset on, every operator is emitted as lowerings write it."""

Emit = Callable[..., Any]
"""Emits an operator as the opset has it."""

_FORMS: dict[str, list[tuple[int, Callable[..., Any]]]] = {}
_SLICE_END = (1 << 63) - 1


def before(opset: int, *names: str) -> Callable[[Emit], Emit]:
    """Write operators this way in older opsets than one."""

    def register(write: Emit) -> Emit:
        for name in " ".join(names).split():
            _FORMS.setdefault(name, []).append((opset, write))
        return write

    return register


def find_form(b: Builder, name: str, emit: Emit) -> Emit | None:
    """How an operator is written in the opset of a builder, if otherwise than by lowerings."""
    found = (write for opset, write in _FORMS.get(name, ()) if b.opset < opset)
    write = next(found, None)
    return None if write is None else functools.partial(write, b, emit)


def require_newer(op: str, opset: int, attributes: Sequence[str] = (), inputs: int = 0) -> None:
    """Refuse an operator, or a use of it, that a later opset has."""
    for newer in range(opset + 1, NEWEST_FORM + 1):
        found = find_signature(op, newer)
        if found is not None and _takes(found, attributes, inputs):
            what = f"{op} with {', '.join(attributes)}" if attributes else op
            raise UnsupportedError(
                f"ONNX has no {what} before opset {newer}", fix=f"opset={newer}, or a newer one"
            )


def _takes(op: Signature, attributes: Sequence[str], inputs: int) -> bool:
    known = op.attributes is None or op.attributes.issuperset(attributes)
    return known and (op.variadic or inputs <= len(op.inputs))


# Constants that become attributes


def _read_integers(op: str, given: Any) -> list[int]:
    if isinstance(given, Value) and given.tensor is not None:
        return given.tensor.reshape(-1).tolist()
    if isinstance(given, (list, tuple)) and all(type(x) is int for x in given):
        return list(given)
    raise UnsupportedError(
        f"{op} with what is computed needs an input, which it has from opset 13 on", fix="opset=13"
    )


@before(18, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin")
@before(18, "ReduceProd ReduceSumSquare")
@before(13, "ReduceSum")
def _reduce(b: Builder, emit: Emit, x: Value, axes: Any = None, **kept: Any) -> Value:
    if axes is None:
        return emit(x, **kept)
    return emit(x, axes=[a % x.rank for a in _read_integers("a reduction", axes)], **kept)


@before(13, "Squeeze Unsqueeze")
def _pass_axes(b: Builder, emit: Emit, x: Value, axes: Any) -> Value:
    return emit(x, axes=_read_integers("Squeeze or Unsqueeze", axes))


@before(13, "Split")
def _split(
    b: Builder,
    emit: Emit,
    x: Value,
    lengths: Any = None,
    *,
    axis: int,
    outputs: int,
    num_outputs: int | None = None,
) -> Any:
    said = None if lengths is None else _read_integers("Split", lengths)
    return emit(x, axis=axis, outputs=outputs, split=said)


@before(18, "Split")
def _split_equally(
    b: Builder,
    emit: Emit,
    x: Value,
    lengths: Any = None,
    *,
    axis: int,
    outputs: int,
    num_outputs: int | None = None,
) -> Any:
    """Lowerings say the number of pieces where these are equal, which they are without it."""
    return emit(x, lengths, axis=axis, outputs=outputs)


# Shapes


@before(15, "Shape")
def _shape(b: Builder, emit: Emit, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    whole = emit(x)
    if not start and end is None:
        return whole
    part = b.Slice(whole, [start], [_SLICE_END if end is None else end], [0])
    if x.shape is not None:
        part.shape = (len(range(x.rank)[start:end]),)
    return part


@before(14, "Reshape")
def _reshape(
    b: Builder, emit: Emit, x: Value, sizes: Any, *, allowzero: int | None = None
) -> Value:
    """A 0 is the size of the operand there; a tensor without elements has to be expanded."""
    if not allowzero:
        return emit(x, sizes)
    target = sizes if isinstance(sizes, Value) else b.sizes.vector(sizes)
    if target.tensor is not None and 0 not in target.tensor:
        return emit(x, target)
    if _is_own_shape(x, target):
        return emit(x, target)
    # Of no elements one is made, in as many dims of size 1, and these are expanded to sizes of 0.
    flat = emit(x, [-1])
    count = b.Shape(flat)
    empty = b.Equal(count, 0)
    zero, one = (b.constant(torch.tensor([n])) for n in (0, 1))
    padded = b.Pad(flat, b.Concat(b.cast(empty, torch.int64), zero, axis=0))
    ones = b.Expand(one, b.Shape(target))
    return b.Expand(emit(padded, b.Where(empty, ones, target)), target)


def _is_own_shape(x: Value, target: Value) -> bool:
    """Whether it is the shape of the operand, to which a number may have been added that is 0."""
    made = target.producer
    if made is None or made.op != "Add":
        return False
    shown = (v.producer for v in made.inputs if v is not None)
    return any(p is not None and p.op == "Shape" and p.inputs[0] is x for p in shown)


@before(18, "Pad")
def _pad(
    b: Builder,
    emit: Emit,
    x: Value,
    pads: Any,
    fill: Any = None,
    axes: Sequence[int] | None = None,
    **kept: Any,
) -> Value:
    """Lowerings list axes where these are all of them."""
    if axes is not None and list(axes) != list(range(x.rank)):
        require_newer("Pad", b.opset, inputs=4)
    return emit(x, pads, fill, **kept)


@before(13, "Resize")
def _resize(
    b: Builder, emit: Emit, x: Value, roi: Any, scales: Any, sizes: Any = None, **kept: Any
) -> Value:
    """What is optional later is empty here."""
    none = b.constant(torch.zeros(0))
    return emit(x, none, none if scales is None else scales, sizes, **kept)


# Arithmetic


@before(13, "Softmax LogSoftmax")
def _softmax(b: Builder, emit: Emit, x: Value, *, axis: int) -> Value:
    """Along all dims from an axis on, so that has to be the last."""
    last = x.rank - 1
    if axis in (-1, last):
        return emit(x, axis=last)
    perm = list(range(x.rank))
    perm[axis], perm[last] = perm[last], perm[axis]
    return b.transpose(emit(b.transpose(x, perm), axis=last), perm)


@before(14, "Trilu")
def _trilu(b: Builder, emit: Emit, x: Value, k: Any = None, *, upper: int = 1) -> Value:
    rows, columns = (_count_along(b, x, axis) for axis in (x.rank - 2, x.rank - 1))
    distance = b.Sub(columns, b.unsqueeze(rows, 1))
    least: Any = 0 if k is None else k
    kept = b.GreaterOrEqual(distance, least) if upper else b.LessOrEqual(distance, least)
    return b.shaped(b.Where(kept, x, b.scalar(0, like=x)), x.shape or ())


def _count_along(b: Builder, x: Value, axis: int) -> Value:
    size = b.Squeeze(b.Shape(x, start=axis, end=axis + 1), [0])
    return b.Range(b.scalar(0, torch.int64), size, b.scalar(1, torch.int64))


@before(12, "GreaterOrEqual")
def _greater_or_equal(b: Builder, emit: Emit, x: Value, y: Any) -> Value:
    return b.Or(b.Greater(x, y), b.Equal(x, y))


@before(12, "LessOrEqual")
def _less_or_equal(b: Builder, emit: Emit, x: Value, y: Any) -> Value:
    return b.Or(b.Less(x, y), b.Equal(x, y))


@before(12, "Max")
def _max(b: Builder, emit: Emit, x: Value, *others: Any) -> Value:
    return _choose(b, emit, b.Greater, x, others)


@before(12, "Min")
def _min(b: Builder, emit: Emit, x: Value, *others: Any) -> Value:
    return _choose(b, emit, b.Less, x, others)


def _choose(b: Builder, emit: Emit, wins: Emit, x: Value, others: Sequence[Any]) -> Value:
    """Of integers, for which the operator is not."""
    if x.dtype.is_floating_point:
        return emit(x, *others)
    for other in others:
        x = b.Where(wins(x, other), x, other)
    return x


@before(12, "Clip")
def _clip(b: Builder, emit: Emit, x: Value, low: Any = None, high: Any = None) -> Value:
    if x.dtype.is_floating_point:
        return emit(x, low, high)
    x = x if low is None else b.Max(x, low)
    return x if high is None else b.Min(x, high)


# Options


@before(16, "ScatterElements ScatterND")
def _scatter(b: Builder, emit: Emit, *inputs: Any, reduction: str = "none", **kept: Any) -> Value:
    return emit(*inputs, **kept, reduction=None if reduction == "none" else reduction)


@before(12, "ArgMax ArgMin")
def _find_extreme(
    b: Builder, emit: Emit, x: Value, *, axis: int, select_last_index: Any = None, **kept: Any
) -> Value:
    """The last one is the first from behind."""
    if not select_last_index:
        return emit(x, axis=axis, **kept)
    behind = b.Slice(x, [-1], [-_SLICE_END], [axis], [-1])
    last = b.Sub(b.Shape(x, start=axis, end=axis + 1), 1)
    return b.Sub(last, emit(b.shaped(behind, x.shape or ()), axis=axis, **kept))


@before(20, "GridSample")
def _grid_sample(b: Builder, emit: Emit, x: Value, grid: Value, *, mode: str, **kept: Any) -> Value:
    if x.rank != 4:
        raise UnsupportedError("ONNX samples grids of images only before opset 20", fix="opset=20")
    names = {"linear": "bilinear", "cubic": "bicubic"}
    return emit(x, grid, mode=names.get(mode, mode), **kept)
