"""Emits quantisation: QuantizeLinear and DequantizeLinear where they are eager's arithmetic.

Eager multiplies by the reciprocal of the scale, and QuantizeLinear divides: now and then a number
falls to the other side of a half. So the product is a node of its own, before a QuantizeLinear of
scale 1, which rounds (halves to even), adds the zero point and saturates. Only a scale that is a
power of two goes into the operator. What has no such form (zero points that are computed, integers
of 32 bits, float64) is spelled out as Round, Add, Clip and Cast.

Weights stay in the small type that they have in the program, and take less where the range that is
said of them fits into 2 or 4 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graphport.errors import WeightsError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.emit.schemas import BITS
from graphport.ops.sizes import wrap_dim
from graphport.tensors.lazy import WeightlessTensor, lacks_data

Parameter = Value | int | float

HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, *HALVES)
_BYTES = (torch.int8, torch.uint8)
_BLOCKS_SINCE = 21
"""The opset from which on blocks of a dim have parameters of their own."""
_QUANTIZED = {torch.int8: 13, torch.uint8: 13, torch.int16: 21, torch.uint16: 21}
"""Integers that QuantizeLinear gives, and the opset from which on it does."""
_DEQUANTIZED = {
    **_QUANTIZED,
    torch.float8_e4m3fn: 19,
    torch.float8_e5m2: 19,
    torch.int2: 25,
    torch.uint2: 25,
    torch.int4: 21,
    torch.uint4: 21,
}
"""What DequantizeLinear takes, and from which opset on."""


# Which elements have a scale and a zero point in common


@dataclass(frozen=True)
class Blocks:
    """Blocks of a tensor, each with parameters of its own."""

    sizes: tuple[Any, ...]
    """Of the tensor."""
    split: tuple[Any, ...]
    """The same, where a dim of several blocks is their number and their size."""
    parameters: tuple[Any, ...]
    """Sizes of a parameter that is broadcast to those."""
    known: bool
    """Whether QuantizeLinear has them."""
    attributes: dict[str, int]
    """How it says them."""
    given: tuple[Any, ...]
    """Sizes of a parameter that it takes."""

    @classmethod
    def of(cls, x: Value, block: Sequence[Any]) -> Blocks:
        """By the size of a block along each dim."""
        sizes, pairs = x.sizes, list(zip(x.sizes, block, strict=True))
        split, parameters = list[Any](), list[Any]()
        for size, n in pairs:
            is_split = n not in (1, size)
            split += [size // n, n] if is_split else [size]
            parameters += [size // n, 1] if is_split else [1 if n == size else size]
        own = [d for d, (size, n) in enumerate(pairs) if n != size]
        wide = [d for d, n in enumerate(block) if n != 1]
        attributes: dict[str, int] = {}
        given: tuple[Any, ...] = ()
        known = not own
        if len(own) == 1 and block[own[0]] == 1:
            known, attributes, given = True, {"axis": own[0]}, (sizes[own[0]],)
        elif own and len(wide) == 1 and type(block[wide[0]]) is int:
            d, n = wide[0], block[wide[0]]
            known, attributes = True, {"axis": d, "block_size": n}
            given = (*sizes[:d], sizes[d] // n, *sizes[d + 1 :])
        return cls(sizes, tuple(split), tuple(parameters), known, attributes, given)

    def fit(self, opset: int) -> bool:
        """Whether QuantizeLinear of an opset knows them."""
        return self.known and ("block_size" not in self.attributes or opset >= _BLOCKS_SINCE)

    def combine(
        self, b: Builder, op: Callable[..., Value], x: Value, parameter: Parameter, dtype: Any
    ) -> Value:
        """An operator on each element and the parameter of its block."""
        x = x if self.split == self.sizes else b.reshape(x, self.split)
        made = op(x, self._broadcast(b, parameter, dtype))
        return made if self.split == self.sizes else b.reshape(made, self.sizes)

    def _broadcast(self, b: Builder, parameter: Parameter, dtype: torch.dtype) -> Value:
        if not isinstance(parameter, Value):
            return b.scalar(parameter, dtype)
        is_single = all(s == 1 for s in parameter.sizes) and parameter.rank <= len(self.split)
        return shape_parameter(
            b, parameter, dtype, parameter.sizes if is_single else self.parameters
        )


def whole(x: Value) -> Blocks:
    return Blocks.of(x, x.sizes)


def indices_of(x: Value, axis: int) -> Blocks:
    """Each index of a dim."""
    axis = wrap_dim(axis, x.rank)
    return Blocks.of(x, [1 if d == axis else size for d, size in enumerate(x.sizes)])


def rows_of(x: Value, size: Any = None) -> Blocks:
    """Each row, or parts of rows of this size."""
    return Blocks.of(x, [*[1] * (x.rank - 1), x.sizes[-1] if size is None else size])


# Parameters: numbers, constants, weights, or values that are computed


def find_data(b: Builder, x: Parameter | None) -> torch.Tensor | None:
    """What a parameter holds, if that is known: of a weight, it is looked at whenever it changes.

    A single number stands for a value that holds nothing else.
    """
    if not isinstance(x, Value):
        return torch.tensor(0 if x is None else x)
    if x in b.main.inputs:
        return None
    data = _find_uniform(x) if x.data is None else x.data
    if isinstance(data, WeightlessTensor) and data.has_data:
        return data.read()
    return None if data is None or lacks_data(data) else data


_UNIFORM = {"Expand", "Cast", "Reshape", "Unsqueeze", "Squeeze"}


def _find_uniform(x: Value) -> torch.Tensor | None:
    node = x.producer
    while node is not None and node.op in _UNIFORM and node.inputs[0] is not None:
        x = node.inputs[0]
        node = x.producer
    if node is not None and node.op == "ConstantOfShape":
        found = node.attributes.get("value")
        return torch.zeros(()) if found is None else found.reshape(())
    data = x.tensor
    return data.reshape(()) if data is not None and data.numel() == 1 else None


def _change_stored(b: Builder, x: Any, form: object, make: Callable[..., torch.Tensor]) -> Value:
    """A constant or weight in another form, in which the file has it."""
    name = str(form).removeprefix("torch.")
    return b.derived(f"{x.name or 'constant'}.{name}", make, x)


def shape_parameter(b: Builder, x: Parameter, dtype: torch.dtype, sizes: Sequence[Any]) -> Value:
    """A parameter in a dtype and of these sizes."""
    if not isinstance(x, Value):
        return b.scalar(x, dtype)
    if x.sizes != tuple(sizes):
        if b.is_stored(x) and all(type(s) is int for s in sizes):
            form = "x".join(map(str, sizes)) or "scalar"
            x = _change_stored(b, x, form, partial(torch.reshape, shape=tuple(sizes)))
        else:
            x = b.reshape(x, sizes)
    return b.cast(x, dtype)


def invert(b: Builder, scale: Parameter, dtype: torch.dtype) -> Parameter:
    """1 / scale, in a dtype. Of a Div and a Mul, ONNX Runtime makes a single division."""
    if isinstance(scale, Value) and scale.tensor is not None:
        return b.constant(1 / scale.tensor.to(dtype))
    if isinstance(scale, Value):
        return b.Reciprocal(b.cast(scale, dtype))
    return (1 / torch.tensor(scale, dtype=dtype)).item()


def _are_powers_of_two(b: Builder, x: Parameter) -> bool:
    """Whether x * (1 / scale) is x / scale, for scales that are fixed."""
    if isinstance(x, Value) and x.tensor is None:
        return False
    data = find_data(b, x)
    if data is None:
        return False
    normal = (data >= torch.finfo(torch.float32).tiny) & (1 / data >= _TINY)
    return bool((normal & (data.double().frexp().mantissa == 0.5)).all())


_TINY = torch.finfo(torch.float32).tiny


# The range of integers


def find_limits(dtype: torch.dtype) -> tuple[int, int]:
    """The smallest and the largest integer of a type, of any number of bits."""
    signed, bits = _INTEGER.fullmatch(str(dtype)).groups()  # type: ignore[union-attr]
    span = 1 << int(bits)
    return (0, span - 1) if signed else (-span // 2, span // 2 - 1)


_INTEGER = re.compile(r"torch\.(u?)int(\d+)")


def _holds(dtype: torch.dtype, data: torch.Tensor) -> bool:
    """Whether a type has all these numbers; of floats it is asked for 0."""
    if dtype.is_floating_point:
        return not data.any()
    low, high = find_limits(dtype)
    return bool(((data >= low) & (data <= high) & (data == data.round())).all())


class _Narrowed:
    """Integers in a smaller type, which has to hold them."""

    def __init__(self, dtype: torch.dtype, sizes: Sequence[int] | None = None) -> None:
        self.dtype, self.sizes = dtype, sizes

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        if not lacks_data(t) and not _holds(self.dtype, t):
            low, high = find_limits(self.dtype)
            raise WeightsError(
                f"integers from {low} to {high} were quantised when the model was exported, and "
                "there are others now",
                fix="export the model as it is now",
            )
        if self.sizes is not None:
            shape = tuple(self.sizes)
            t = t.reshape(()).expand(shape) if t.numel() == 1 else t.reshape(shape)
        if self.dtype in BITS:
            return t.to(torch.int8).contiguous().view(self.dtype)
        return t.to(self.dtype)


def _fit_types(
    limits: tuple[int, int] | None, types: Sequence[torch.dtype]
) -> Iterator[torch.dtype]:
    """Types that have a range of integers; none if it is not known."""
    for dtype in types if limits is not None else ():
        least, most = find_limits(dtype)
        if limits is not None and least <= limits[0] and limits[1] <= most:
            yield dtype


def store_zero(
    b: Builder, zero: Parameter | None, dtype: torch.dtype, sizes: Sequence[Any]
) -> Value | None:
    """A zero point that the file has in the type of the integers, if that holds it."""
    data = find_data(b, zero)
    if data is None or not _holds(dtype, data) or not all(type(s) is int for s in sizes):
        return None
    if data.numel() not in (1, math.prod(sizes)):
        return None
    make = _Narrowed(dtype, sizes)
    is_weight = isinstance(zero, Value) and zero.weight is not None
    return _change_stored(b, zero, dtype, make) if is_weight else b.constant(make(data))


def _is_zero(b: Builder, zero: Parameter | None) -> bool:
    """Whether a zero point is 0 for good."""
    data = find_data(b, zero)
    is_weight = isinstance(zero, Value) and zero.weight is not None
    return data is not None and not is_weight and not data.any()


# To integers


def emit_quantize(
    b: Builder,
    x: Value,
    scale: Parameter,
    inverse: Parameter,
    zero: Parameter | None,
    limits: tuple[int, int],
    dtype: torch.dtype,
    blocks: Blocks,
    zero_first: bool = False,
) -> Value:
    """x * inverse, rounded, with the zero point added, within the limits.

    The zero point may be added before it is rounded.
    """
    y = _quantize_linear(b, x, scale, inverse, zero, dtype, blocks, zero_first)
    if y is None:
        y = emit_grid(b, x, inverse, zero, blocks, zero_first)
        return b.cast(b.Clip(y, *map(float, limits)), dtype)
    low, high = find_limits(dtype)
    return y if limits[0] <= low and high <= limits[1] else b.Clip(y, *limits)


def emit_grid(
    b: Builder,
    x: Value,
    inverse: Parameter,
    zero: Parameter | None,
    blocks: Blocks,
    zero_first: bool = False,
) -> Value:
    """The integers as floats, before they are clipped."""
    y = blocks.combine(b, b.Mul, x, inverse, x.dtype)
    y = y if zero_first else b.Round(y)
    if isinstance(zero, Value) or zero:
        y = blocks.combine(b, b.Add, y, zero, x.dtype)
    return b.Round(y) if zero_first else y


def _quantize_linear(
    b: Builder,
    x: Value,
    scale: Parameter,
    inverse: Parameter,
    zero: Parameter | None,
    dtype: torch.dtype,
    blocks: Blocks,
    zero_first: bool,
) -> Value | None:
    known = b.opset >= _QUANTIZED.get(dtype, b.opset + 1) and blocks.fit(b.opset)
    if x.dtype is not torch.float32 or not known:
        return None
    base = store_zero(b, zero, dtype, blocks.given)
    if base is None or (zero_first and not _is_zero(b, zero)):
        return None
    if _are_powers_of_two(b, scale):
        step = shape_parameter(b, scale, torch.float32, blocks.given)
    else:
        x = blocks.combine(b, b.Mul, x, inverse, torch.float32)
        step = b.constant(torch.ones(blocks.given))
    return b.QuantizeLinear(x, step, base, dtype=dtype, **blocks.attributes)


# And back


def emit_dequantize(
    b: Builder,
    q: Value,
    scale: Parameter,
    zero: Parameter | None,
    blocks: Blocks,
    between: torch.dtype,
    product: torch.dtype,
    limits: tuple[int, int] | None = None,
) -> Value:
    """(q - zero) * scale: the difference of one dtype, the product of another.

    The limits are those of the integers of a weight, if that is known.
    """
    wide = isinstance(scale, Value) and scale.dtype not in _FLOATS
    halves = {between, product}.intersection(HALVES)
    if product in _FLOATS and not wide and (q.dtype in _BYTES or not halves):
        made = _dequantize_linear(b, q, scale, zero, blocks, between, limits)
        if made is not None:
            return b.cast(made, product)
    y = b.cast(q, between)
    if isinstance(zero, Value) or zero:
        y = _combine_rounded(b, b.Sub, y, zero, between, blocks)
    return _combine_rounded(b, b.Mul, b.cast(y, product), scale, product, blocks)


def _combine_rounded(
    b: Builder,
    op: Callable[..., Value],
    x: Value,
    parameter: Parameter,
    dtype: torch.dtype,
    blocks: Blocks,
) -> Value:
    """In a dtype; of halves in float32, to which torch does not round numbers of Python."""
    wide = torch.float32 if dtype in HALVES else dtype
    parameter = b.cast(parameter, dtype) if isinstance(parameter, Value) else parameter
    return b.cast(blocks.combine(b, op, b.cast(x, wide), parameter, wide), dtype)


def _dequantize_linear(
    b: Builder,
    q: Value,
    scale: Parameter,
    zero: Parameter | None,
    blocks: Blocks,
    between: torch.dtype,
    limits: tuple[int, int] | None,
) -> Value | None:
    types = [t for t, since in _DEQUANTIZED.items() if since <= b.opset]
    if q.dtype not in types or not blocks.fit(b.opset):
        return None
    # Differences of eager may wrap around.
    wraps = not between.is_floating_point and between.itemsize < 4
    if wraps and not _is_zero(b, zero):
        return None
    stored = b.is_stored(q)
    small = [t for t in types if t in BITS] if stored and q.dtype in _BYTES else []
    found = (store_zero(b, zero, t, blocks.given) for t in (*_fit_types(limits, small), q.dtype))
    base = next((z for z in found if z is not None), None)
    if base is not None and base.dtype is not q.dtype:
        q = _change_stored(b, q, base.dtype, _Narrowed(base.dtype))
    elif base is not None and q.dtype is torch.int8 and not stored:
        q, base = _requantize_unsigned(b, q, base)
    if base is None:
        return None
    step = shape_parameter(b, scale, torch.float32, blocks.given)
    return b.DequantizeLinear(q, step, base, dtype=torch.float32, **blocks.attributes)


def _requantize_unsigned(b: Builder, q: Value, zero: Value) -> tuple[Value, Value | None]:
    """Signed bytes that are computed, and their zero point, as unsigned ones; no zero point if not.

    From opset 21 on, a DequantizeLinear of signed bytes before a Reshape or the like is moved by
    ONNX Runtime to where it is invalid, or, before 1.26 and without a zero point, is wrong.
    """
    clip = q.producer if q.producer is not None and q.producer.op == "Clip" else None
    source = q if clip is None else clip.inputs[0]
    made = None if source is None else source.producer
    if made is None or made.op != "QuantizeLinear":
        return q, None
    x, step, base = made.inputs
    assert base is not None
    q = b.QuantizeLinear(x, step, _raise(b, base), dtype=torch.uint8, **made.attributes)
    if clip is not None:
        q = b.Clip(q, *(_raise(b, v) for v in clip.inputs[1:] if v is not None))
    return q, _raise(b, zero)


def _raise(b: Builder, x: Value) -> Value:
    return _change_stored(b, x, torch.uint8, _make_unsigned)


def _make_unsigned(t: torch.Tensor) -> torch.Tensor:
    return (t.to(torch.int16) + 128).to(torch.uint8)


# Fake quantisation: to integers and back


def emit_fake_quantize(
    b: Builder,
    x: Value,
    scale: Parameter,
    zero: Parameter,
    limits: tuple[int, int],
    blocks: Blocks,
    product: torch.dtype,
) -> Value:
    """Through integers where there is a type for them; else as floats of these numbers."""
    wide = b.cast(x, torch.float64 if x.dtype is torch.float64 else torch.float32)
    inverse = invert(b, scale, torch.float32)
    known = [t for t, since in _QUANTIZED.items() if since <= b.opset]
    dtype = next(_fit_types(limits, known), None)
    by_float = isinstance(zero, Value) and zero.dtype.is_floating_point
    given = blocks.given if isinstance(scale, Value) else ()
    if dtype is not None and wide.dtype is product is torch.float32 and not by_float:
        if store_zero(b, zero, dtype, given) is not None:
            q = emit_quantize(b, wide, scale, inverse, zero, limits, dtype, blocks)
            return emit_dequantize(b, q, scale, zero, blocks, torch.float32, torch.float32)
    y = emit_grid(b, wide, inverse, zero, blocks, zero_first=by_float)
    y = b.cast(b.Clip(y, *map(float, limits)), product)
    y = blocks.combine(b, b.Sub, y, zero, product)
    return blocks.combine(b, b.Mul, y, scale, product)


def emit_mask(
    b: Builder, x: Value, scale: Parameter, zero: Parameter, limits: tuple[int, int], blocks: Blocks
) -> Value:
    wide = b.cast(x, torch.float64 if x.dtype is torch.float64 else torch.float32)
    by_float = isinstance(zero, Value) and zero.dtype.is_floating_point
    inverse = invert(b, scale, torch.float32)
    y = emit_grid(b, wide, inverse, zero, blocks, zero_first=by_float)
    low, high = map(float, limits)
    return b.And(b.GreaterOrEqual(y, low), b.LessOrEqual(y, high))
