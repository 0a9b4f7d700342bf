"""Infers the shapes of intermediate ONNX values.

The results of the program's own operators have their sizes from capture. This is for the values in
between, so that a lowering can ask for their rank: sizes may come out as None, a shape as None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphport.onnx.emit.ir import Attributes, Shape, Size, Value

Inputs = list[Value | None]
Rule = Callable[[Inputs, Attributes], Shape | None]
_RULES: dict[str, Rule] = {}

_SAME_SHAPE = """Abs Acos Acosh Asin Asinh Atan Atanh Bernoulli BitwiseNot Cast Ceil Celu Clip Cos
Cosh CumProd CumSum Elu Erf Exp Floor Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN
LayerNormalization LeakyRelu Log LogSoftmax LpNormalization Mish Neg Not RMSNormalization
RandomNormalLike RandomUniformLike Reciprocal Relu Round ScatterElements ScatterND Selu Sigmoid Sign
Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu ReverseSequence
EyeLike QuickGelu FastGelu GroupNormalization InstanceNormalization RotaryEmbedding""".split()

_BROADCAST = """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual
Less LessOrEqual Max Min Mod Mul Or PRelu Pow Sub Sum Where Xor Mean""".split()

_REDUCE = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum ReduceSumSquare""".split()


def infer_shape(op: str, inputs: Inputs, attributes: Attributes) -> Shape | None:
    """The sizes of the first output."""
    rule = _RULES.get(op)
    return None if rule is None else rule(inputs, attributes)


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """Broadcast sizes of operands; one that cannot be inferred is None."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known), default=0)
    out: list[Any] = [1] * rank
    for shape in known:
        for i, size in enumerate(shape, rank - len(shape)):
            out[i] = _broadcast_size(out[i], size)
    return tuple(out)


def _broadcast_size(a: Any, b: Any) -> Size | None:
    if (type(a) is int and a == 1) or a is b:
        return b
    if (type(b) is int and b == 1) or a == b:
        return a
    return a if type(a) is int else b if type(b) is int else None


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            _RULES[op] = rule
        return rule

    return register


def _shape(v: Value | None) -> Shape | None:
    return None if v is None else v.shape


def _constant_integers(inputs: list[Value | None], i: int) -> list[int] | None:
    """A constant list of integers among the inputs; None if there is none."""
    v = inputs[i] if i < len(inputs) else None
    return None if v is None or v.tensor is None else v.tensor.reshape(-1).tolist()


def _find_axes(inputs: Inputs, attributes: Attributes) -> list[int] | None:
    """An attribute in older opsets, an input in newer ones."""
    return attributes["axes"] if "axes" in attributes else _constant_integers(inputs, 1)


@_rule(*_SAME_SHAPE)
def _same(inputs: Inputs, attributes: Attributes) -> Shape | None:
    return _shape(inputs[0])


@_rule(*_BROADCAST)
def _broadcast(inputs: Inputs, attributes: Attributes) -> Shape | None:
    return broadcast_shapes([_shape(v) for v in inputs])


@_rule(*_REDUCE)
def _reduce(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, keep = _shape(inputs[0]), attributes.get("keepdims", 1)
    if shape is None:
        return None
    axes = _find_axes(inputs, attributes)
    if axes is None:
        if len(inputs) > 1 and inputs[1] is not None:
            return None
        axes = [] if attributes.get("noop_with_empty_axes") else list(range(len(shape)))
    return _drop_axes(shape, axes, keep)


@_rule("ArgMax", "ArgMin")
def _arg(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape = _shape(inputs[0])
    axes = [attributes.get("axis", 0)]
    return None if shape is None else _drop_axes(shape, axes, attributes.get("keepdims", 1))


def _drop_axes(shape: Shape, axes: list[int], keep: int) -> Shape:
    gone = {a % len(shape) for a in axes} if shape else set()
    return tuple(1 if i in gone else s for i, s in enumerate(shape) if keep or i not in gone)


@_rule("Shape")
def _of_shape(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape = _shape(inputs[0])
    if shape is None:
        return (None,)
    return (len(range(len(shape))[attributes.get("start", 0) : attributes.get("end")]),)


@_rule("Size")
def _size(inputs: Inputs, attributes: Attributes) -> Shape | None:
    return ()


@_rule("Transpose")
def _transpose(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape = _shape(inputs[0])
    if shape is None:
        return None
    perm = attributes.get("perm")
    return shape[::-1] if perm is None else tuple(shape[p] for p in perm)


@_rule("Unsqueeze")
def _unsqueeze(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, axes = _shape(inputs[0]), _find_axes(inputs, attributes)
    if shape is None or axes is None:
        return None
    rank = len(shape) + len(axes)
    new, rest = {a % rank for a in axes}, iter(shape)
    return tuple(1 if i in new else next(rest) for i in range(rank))


@_rule("Squeeze")
def _squeeze(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, axes = _shape(inputs[0]), _find_axes(inputs, attributes)
    if shape is None or axes is None:
        return None
    return _drop_axes(shape, axes, 0)


@_rule("Reshape")
def _reshape(inputs: Inputs, attributes: Attributes) -> Shape | None:
    sizes = _constant_integers(inputs, 1)
    if sizes is None:
        target = _shape(inputs[1])
        count = target[0] if target else None
        return (None,) * count if isinstance(count, int) else None
    old = _shape(inputs[0])
    copies = not attributes.get("allowzero", 0)
    return tuple(
        None if s == -1 else (old[i] if old is not None else None) if s == 0 and copies else s
        for i, s in enumerate(sizes)
    )


@_rule("Expand")
def _expand(inputs: Inputs, attributes: Attributes) -> Shape | None:
    sizes = _constant_integers(inputs, 1)
    if sizes is not None:
        return broadcast_shapes([_shape(inputs[0]), tuple(sizes)])
    shape, target = _shape(inputs[0]), _shape(inputs[1])
    if shape is None or not target or not isinstance(target[0], int):
        return None
    return (None,) * max(len(shape), target[0])


@_rule("ConstantOfShape")
def _constant_of_shape(inputs: Inputs, attributes: Attributes) -> Shape | None:
    sizes = _constant_integers(inputs, 0)
    if sizes is not None:
        return tuple(sizes)
    target = _shape(inputs[0])
    return (None,) * target[0] if target and isinstance(target[0], int) else None


@_rule("Concat")
def _concat(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shapes = [_shape(v) for v in inputs]
    first = next((s for s in shapes if s is not None), None)
    if first is None:
        return None
    out = list(first)
    axis = attributes["axis"]
    out[axis] = None
    if all(s is not None and s[axis] is not None for s in shapes):
        total: Any = 0
        for s in shapes:
            total = total + s[axis]  # type: ignore[index]
        out[axis] = total
    return tuple(out)


@_rule("Gather")
def _gather(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, index = _shape(inputs[0]), _shape(inputs[1])
    if shape is None or index is None:
        return None
    axis = attributes.get("axis", 0) % len(shape)
    return (*shape[:axis], *index, *shape[axis + 1 :])


@_rule("GatherElements")
def _gather_elements(inputs: Inputs, attributes: Attributes) -> Shape | None:
    return _shape(inputs[1])


@_rule("Slice")
def _slice(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, axes = _shape(inputs[0]), _constant_integers(inputs, 3)
    if shape is None:
        return None
    cut = range(len(shape)) if axes is None else {a % len(shape) for a in axes}
    return tuple(None if i in cut else s for i, s in enumerate(shape))


@_rule("Pad")
def _pad(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, pads = _shape(inputs[0]), _constant_integers(inputs, 1)
    if shape is None or pads is None or len(inputs) > 3:
        return None if shape is None else (None,) * len(shape)
    ends = zip(pads[: len(shape)], pads[len(shape) :], strict=True)
    return tuple(None if s is None else s + a + b for s, (a, b) in zip(shape, ends, strict=True))


@_rule("Flatten")
def _flatten(inputs: Inputs, attributes: Attributes) -> Shape | None:
    return (None, None)


@_rule("Compress")
def _compress(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape, axis = _shape(inputs[0]), attributes.get("axis")
    if axis is None or shape is None:
        return (None,) if axis is None else None
    return tuple(None if i == axis % len(shape) else s for i, s in enumerate(shape))


@_rule("Split", "TopK")
def _parts(inputs: Inputs, attributes: Attributes) -> Shape | None:
    """Of every output."""
    shape, axis = _shape(inputs[0]), attributes.get("axis", 0 if len(inputs) < 2 else -1)
    return (
        None
        if shape is None
        else tuple(None if i == axis % len(shape) else s for i, s in enumerate(shape))
    )


@_rule("Tile", "Resize", "Conv", "ConvTranspose")
def _same_rank(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape = _shape(inputs[0])
    return None if shape is None else (None,) * len(shape)


@_rule("MatMul", "FusedMatMul")
def _matmul(inputs: Inputs, attributes: Attributes) -> Shape | None:
    a, b = _shape(inputs[0]), _shape(inputs[1])
    if a is None or b is None or attributes.keys() - {"transB", "alpha"}:
        return None
    if attributes.get("transB"):
        b = (*b[:-2], *b[:-3:-1])
    batch = broadcast_shapes([a[:-2], b[:-2]]) or ()
    rows = a[-2:-1] if len(a) > 1 else ()
    columns = b[-1:] if len(b) > 1 else ()
    return (*batch, *rows, *columns)


@_rule("Gemm")
def _gemm(inputs: Inputs, attributes: Attributes) -> Shape | None:
    a, b = _shape(inputs[0]), _shape(inputs[1])
    if a is None or b is None:
        return None
    return (a[1 if attributes.get("transA") else 0], b[0 if attributes.get("transB") else 1])


@_rule("Range")
def _range(inputs: Inputs, attributes: Attributes) -> Shape | None:
    return (None,)


@_rule("NonZero")
def _nonzero(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape = _shape(inputs[0])
    return None if shape is None else (len(shape), None)


@_rule("OneHot")
def _one_hot(inputs: Inputs, attributes: Attributes) -> Shape | None:
    shape = _shape(inputs[0])
    return None if shape is None else (None,) * (len(shape) + 1)
