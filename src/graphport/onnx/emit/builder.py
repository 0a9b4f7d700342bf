"""`Builder`: emits ONNX nodes and constants for lowerings, and runtime assertions.

A builder has a method per ONNX operator: `b.Add(x, y)`, `b.ReduceSum(x, [1], keepdims=0)`. Inputs
are values, or what becomes a constant: a number takes the dtype of the operand that it is combined
with, a list of integers is int64. The same operator on the same inputs is written once. Where ONNX
Runtime has no kernel for a dtype, the operator is computed in a wider one and cast back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from graphport import errors
from graphport.errors import UnsupportedError
from graphport.onnx.emit import older
from graphport.onnx.emit.inference import infer_shape
from graphport.onnx.emit.ir import Attributes, Derived, Graph, Node, Shape, Value, weight_versions
from graphport.onnx.emit.schemas import ONNX_OF, TORCH_OF, Signature, fixed_dtype
from graphport.onnx.emit.sizes import Sizes
from graphport.onnx.target.targets import TARGETS
from graphport.ops import promote
from graphport.symbolic import Expr, Scope

_LONGEST_MESSAGE = 200
"""Characters of a message that the name of a node takes."""


class Assertions:
    """What each graph of the file requires.

    ONNX has no operator for assertions. A `Reshape` of one element to the shape that a condition
    gives fails where the condition is false; every result of the graph depends on it. The node is
    called `requires <condition>`, which is what ONNX Runtime says when it stops there.
    """

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self._zeros: dict[Graph, Value] = {}
        """Of a graph: 0 if all that it requires holds."""

    def require(self, condition: Expr | Value | bool, message: str = "") -> None:
        """Let no result of the graph that is being written through unless a condition holds."""
        if isinstance(condition, Value) and condition.tensor is not None:
            condition = bool(condition.tensor)
        if isinstance(condition, Expr):
            truth = self.b.sizes.check(condition)
        elif isinstance(condition, Value):
            truth = self.b.reshape(condition, [1])
        elif condition:
            return
        else:
            truth = self.b.constant(torch.tensor([False]))
        zero = self._zero_or_fail(truth)
        zero.name = f"requires {errors.escape_line(message or str(condition))[:_LONGEST_MESSAGE]}"
        known = self._zeros.get(self.b.graph)
        self._zeros[self.b.graph] = zero if known is None else self.b.Add(known, zero)

    def _zero_or_fail(self, truth: Value) -> Value:
        b = self.b
        count = b.Where(truth, b.scalar(1, torch.int64), b.scalar(2, torch.int64))
        zero: Value = b.Reshape(b.constant(torch.zeros(1, dtype=torch.int64)), count)
        zero.shape = (1,)
        return zero

    def add_control_dependency(self, value: Value) -> Value:
        """A result of the graph that is being written: there only if all that it requires holds."""
        zero = self._zeros.get(self.b.graph)
        if zero is None:
            return value
        if value.shape == ():  # ONNX Runtime 1.24 cannot reshape to no sizes that are computed
            made = self.b.reshape(self.b.Gather(self.b.reshape(value, [1]), zero), ())
        else:
            made = self.b.Reshape(value, self.b.Add(self.b.Shape(value), zero), allowzero=1)
        made.shape = value.shape
        return made


# The builder.

Number = bool | int | float | Expr
Operand = Value | Number

# The result is not determined by the inputs.
_IMPURE = set(
    """
        Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Dropout
    """.split()
)

# What is beyond these is infinite, or not a number; Cast would give the largest number instead.
_NOT_SATURATED = {torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
_NARROW = {torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32}


_PRODUCTS = {"MatMul", "FusedMatMul"}
_SCALES = {"Mul", "Div"}
_SEEN_THROUGH = {"Transpose", "Cast", "Identity"}


def _is_constant_number(x: Value | None) -> bool:
    return x is not None and x.data is not None and math.prod(x.sizes) == 1


def _find_origin(x: Value) -> Node | None:
    node = x.producer
    while node is not None and node.op in _SEEN_THROUGH and node.inputs[0] is not None:
        node = node.inputs[0].producer
    return node


def _is_scaled(x: Value) -> bool:
    node = _find_origin(x)
    return node is not None and node.op in _SCALES and any(map(_is_constant_number, node.inputs))


def _is_product(x: Value) -> bool:
    node = _find_origin(x)
    return node is not None and node.op in _PRODUCTS


def is_float32(x: Number) -> bool:
    """Whether an attribute, which has 32 bits, holds a number as it is."""
    return isinstance(x, (int, float)) and torch.tensor(x, dtype=torch.float32).item() == x


class Builder:
    """Writes nodes to the graph that is being made."""

    def __init__(self, scope: Scope, opset: int, target: str = "onnx") -> None:
        self.scope = scope
        self.opset = opset
        self.target = target
        self._target = TARGETS[target]
        self.graph = Graph("main_graph")
        self.main = self.graph
        self.origin: Any = None
        """The node of the program that is being lowered."""
        self.result: Any = None
        """What it must give: `Abstract` tensors, numbers, or a tuple of them."""
        self.sizes = Sizes(self)
        self.assertions = Assertions(self)
        self.shared: set[Value] = set()
        """Weights with several uses: stored as they are, once."""
        self._constants: dict[Any, Value] = {}
        self._derived: dict[Any, Value] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of an ONNX operator."""
        if not name[:1].isupper():
            raise AttributeError(name)
        found = self._target.find_signature(name, self.opset)

        def emit(
            *inputs: Any, outputs: int = 1, dtype: torch.dtype | None = None, **attributes: Any
        ) -> Any:
            if found is None:
                older.require_newer(name, self.opset)
                raise AttributeError(f"there is no ONNX operator {name} at opset {self.opset}")
            return self._emit(found, inputs, outputs, dtype, attributes)

        method = older.find_form(self, name, emit) if self.opset < older.NEWEST_FORM else None
        method = method or emit
        setattr(self, name, method)
        return method

    def emit_by_name(
        self,
        op: str,
        domain: str,
        inputs: Sequence[Value | None],
        dtypes: Sequence[torch.dtype],
        attributes: Attributes,
    ) -> list[Value]:
        """An operator that a model names, of any domain; its results are of these dtypes."""
        known = self._target.find_signature(op, self.opset) if not domain else None
        if not domain and known is None:
            raise UnsupportedError(f"ONNX has no operator {op} at opset {self.opset}")
        signature = known or Signature(op, domain, ["T"], ["T"], None, True, 1)
        made = self._node(signature, list(inputs), len(dtypes), dtypes[0], {}, attributes)
        for value, dtype in zip(made, dtypes, strict=True):
            value.dtype = dtype
        return made

    def has(self, op: str, dtype: torch.dtype | None = None, *attributes: float) -> bool:
        """Whether the opset or the target has an operator, and a kernel for this dtype.

        Numbers in attributes are of 32 bits: a float64 has the operator if they are exact there.
        """
        if dtype is torch.float64 and not all(map(is_float32, attributes)):
            return False
        return self._target.has(op, self.opset, dtype)

    def newest_opset(self, op: str) -> int:
        """The opset, or the newest before it that the target has kernels of an operator in."""
        return self._target.newest_opset(op, self.opset)

    @property
    def is_tuned(self) -> bool:
        """Whether the file is for one runtime alone, and may be shaped to what is fast on it."""
        return self._target.is_tuned

    # Nodes

    def _emit(
        self,
        op: Signature,
        inputs: Sequence[Any],
        outputs: int,
        dtype: torch.dtype | None,
        attributes: Attributes,
    ) -> Any:
        if op.attributes is not None and not op.attributes.issuperset(attributes):
            attributes = {k: v for k, v in attributes.items() if v is not None}
            unknown = sorted(set(attributes) - op.attributes)
            if unknown:
                older.require_newer(op.op, self.opset, unknown)
                raise TypeError(f"{op.op} of opset {op.since} has no attributes {unknown}")
        if dtype is not None and op.attributes and "dtype" in op.attributes:
            attributes["dtype"] = ONNX_OF[dtype]
        types: dict[str, torch.dtype] = {}
        for i, x in enumerate(inputs):
            if type(x) is Value:
                types.setdefault(op.input_type(i), x.dtype)
        if op.op.startswith("Reduce") and len(inputs) > 1 and isinstance(inputs[1], (list, tuple)):
            # Of an empty tensor ONNX Runtime gives the wrong shape with negative axes.
            inputs = [inputs[0], [a % inputs[0].rank for a in inputs[1]], *inputs[2:]]
        elif op.op in ("ArgMax", "ArgMin") and attributes.get("axis", 0) < 0:
            attributes["axis"] += inputs[0].rank
        values = [self._input(op, i, x, types) for i, x in enumerate(inputs)]
        if torch.float64 in types.values():
            values = self._keep_scales(op.op, values)
        if op.op in _PRODUCTS and self._is_dequantized(values[1]):
            values = self._keep_factor(values)
        while values and values[-1] is None:
            values.pop()
        wide = self._target.kernels.widen_types(op, types)
        if wide is None:
            kinds = ", ".join(str(t).removeprefix("torch.") for t in types.values())
            raise UnsupportedError(f"{self._target.runtime} has no kernel of {op.op} for {kinds}")
        if wide:
            values = [
                self.cast(v, wide.get(op.input_type(i), v.dtype)) if v is not None else None
                for i, v in enumerate(values)
            ]
        made = self._node(op, values, outputs, dtype, {**types, **wide}, attributes)
        if wide:
            back = [(wide[t], types[t]) if t in wide else None for t in op.outputs]
            made = [
                self.cast(v, b[1]) if b is not None and v is not None and v.dtype is b[0] else v
                for v, b in zip(made, [*back, *[back[-1]] * len(made)], strict=False)
            ]
        return made[0] if outputs == 1 else tuple(made)

    def _keep_scales(self, op: str, values: list[Value | None]) -> list[Value | None]:
        """The operands of a product, or of a scale, with a copy between the two.

        ONNX Runtime makes one operator of a product and a constant factor before or after it, with
        the factor in an attribute of 32 bits. It looks through transposes and casts.
        """
        if op in _PRODUCTS:
            return [self.Sum(v) if v is not None and _is_scaled(v) else v for v in values]
        if op not in _SCALES or not any(map(_is_constant_number, values)):
            return values
        return [self.Sum(v) if v is not None and _is_product(v) else v for v in values]

    def _is_dequantized(self, x: Value | None) -> bool:
        """Whether a value is a quantised weight as floats."""
        made = None if x is None else x.producer
        if made is None or made.op != "DequantizeLinear":
            return False
        return made.inputs[0] is not None and self.is_stored(made.inputs[0])

    def _keep_factor(self, values: list[Value | None]) -> list[Value | None]:
        """A product with a quantised weight on the right, with a copy between the two.

        Of both ONNX Runtime makes MatMulNBits, which rounds the other factor to bytes, unless that
        is quantised as well.
        """
        x, weight = values
        if weight is None or (x is not None and x.producer and x.producer.op == "DequantizeLinear"):
            return values
        return [x, self.Sum(weight)]

    def _node(
        self,
        op: Signature,
        inputs: list[Value | None],
        outputs: int,
        dtype: torch.dtype | None,
        types: dict[str, torch.dtype],
        attributes: Attributes,
    ) -> list[Any]:
        kept = {k: v for k, v in attributes.items() if v is not None}
        for name, value in kept.items():
            if type(value) is Expr or (type(value) in (list, tuple) and Expr in map(type, value)):
                raise UnsupportedError(
                    f"{name} of {op.op} is an attribute, which ONNX cannot vary: {value}"
                )
        key = None
        if op.op not in _IMPURE:
            key = (op.op, op.domain, tuple(inputs), outputs, *map(make_hashable, kept.items()))
            for graph in self.graph.chain():
                known = graph.known.get(key)
                if known is not None:
                    return known
        node = Node(op.op, inputs, kept, op.domain, self.origin)
        for i in range(outputs):
            out = dtype or _output_type(op, i, types, kept)
            shape = infer_shape(op.op, inputs, kept) if i == 0 else None
            node.outputs.append(Value("", out, shape, self.graph, node))
        self.graph.nodes.append(node)
        if key is not None:
            self.graph.known[key] = node.outputs
        return node.outputs

    def _input(self, op: Signature, i: int, x: Any, types: dict[str, torch.dtype]) -> Value | None:
        if x is None or type(x) is Value:
            return x
        type_str = op.input_type(i)
        dtype = fixed_dtype(type_str) or types.get(type_str)
        if isinstance(x, (list, tuple)):
            return self.sizes.vector(x)
        if isinstance(x, torch.Tensor):
            return self.constant(x)
        if dtype is None:
            # A variable of its own (the exponent of Pow): as the first operand.
            dtype = next(iter(types.values()), None)
            if dtype is None:
                raise TypeError(f"{op.op}: the dtype of {x!r} is not known; use b.scalar")
        return self.scalar(x, dtype)

    # Constants

    def constant(self, tensor: torch.Tensor, name: str = "") -> Value:
        """A small tensor that is part of the model."""
        tensor = tensor.detach().contiguous()
        key = (tensor.dtype, tuple(tensor.shape), _copy_bytes(tensor))
        known = self._constants.get(key)
        if known is None:
            known = self._constants[key] = self.initializer(name, tensor)
        return known

    def initializer(self, name: str, tensor: Any) -> Value:
        """A constant that is part of the model."""
        return Value(name, tensor.dtype, tuple(tensor.shape), self.main, None, tensor)

    def weight(self, name: str, tensor: Any) -> Value:
        """A parameter or buffer: what it holds is not known when the model is made."""
        value = Value(name, tensor.dtype, tuple(tensor.shape), self.main)
        value.weight = tensor
        return value

    def scalar(self, x: Number, dtype: torch.dtype | None = None, *, like: Any = None) -> Value:
        """A number as a 0-d tensor of a dtype, or of the dtype of another value."""
        dtype = dtype or like.dtype
        if type(x) is Expr:
            return self.cast(self.sizes.number(x), dtype)
        if type(x) is int and dtype in _NARROW:  # wraps around, as an operand of torch's does
            return self.constant(torch.tensor(x).to(dtype))
        return self.constant(torch.tensor(x, dtype=dtype))

    def derived(self, name: str, make: Callable[..., Any], *sources: Value) -> Value:
        """A weight that is made of others, at export or when they are given."""
        if len(sources) == 1 and sources[0].derived is not None:
            first = sources[0].derived
            make, sources = partial(_make_in_turn, first.make, make), first.sources
        key = (name, sources)
        known = self._derived.get(key)
        if known is None:
            with torch.no_grad():
                tensor = make(*(v.data for v in sources))
            constant = all(v.weight is None for v in sources)
            known = (self.initializer if constant else self.weight)(name, tensor)
            known.derived = Derived(make, sources, weight_versions(sources))
            self._derived[key] = known
        return known

    def transposed(self, weight: Value) -> Value:
        """A matrix transposed; a weight that is used for nothing else is stored so."""
        if weight.data is None or weight in self.shared:
            return self.Transpose(weight, perm=[1, 0])
        return self.derived(f"{weight.name}.T", torch.t, weight)

    def is_stored(self, x: Value) -> bool:
        """Whether the file has a value as it is: a constant, or a weight that nothing writes to."""
        return x.data is not None and x not in self.main.inputs

    # Types

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """The same numbers in another dtype; nothing if they are of it."""
        if x.dtype is dtype:
            return x
        if x.tensor is not None and x.tensor.numel() <= 16:
            return self.constant(x.tensor.to(dtype))
        if dtype is torch.bool and x.dtype.is_floating_point:
            return self.Not(self.Equal(x, 0.0))  # nan is true, and Cast does not say so
        beyond = {"saturate": 0} if dtype in _NOT_SATURATED else {}
        return self.Cast(x, to=ONNX_OF[dtype], dtype=dtype, **beyond)

    def common(self, *operands: Operand, dtype: torch.dtype | None = None) -> list[Value]:
        """Operands in one dtype: the given one, or that which torch promotes them to."""
        dtype = dtype or self.result_type(*operands)
        return [
            self.cast(x, dtype) if type(x) is Value else self.scalar(x, dtype)  # type: ignore[arg-type]
            for x in operands
        ]

    def result_type(self, *operands: Operand) -> torch.dtype:
        """The dtype of operands together, as torch's `result_type`."""
        dims: torch.dtype | None = None
        zero: torch.dtype | None = None
        number = -1
        for x in operands:
            if type(x) is not Value:
                number = max(number, promote.number_category(x))
            elif x.shape == ():
                zero = x.dtype if zero is None else promote.promote_types(zero, x.dtype)
            else:
                dims = x.dtype if dims is None else promote.promote_types(dims, x.dtype)
        return promote.combine_dtypes(dims, zero, number)

    # Shapes

    def reshape(self, x: Value, sizes: Sequence[Any]) -> Value:
        """The same elements in another shape, which may be symbolic."""
        return self.sizes.reshape(x, tuple(sizes))

    def expand(self, x: Value, sizes: Sequence[Any]) -> Value:
        """Broadcast to a shape; nothing if it has it."""
        sizes = tuple(map(self.scope.simplify, sizes))
        if x.shape == sizes:
            return x
        lead = len(sizes) - x.rank
        gone = [i for i, have in enumerate(x.shape or ()) if have == 1 and sizes[lead + i] == 0]
        if gone:  # ONNX Runtime takes an Expand to a constant 0 away
            none = [0] * len(gone)
            left = [0 if i in gone else s for i, s in enumerate(x.shape or ())]
            return self.expand(self.shaped(self.Slice(x, none, none, gone), left), sizes)
        # Expand leaves a size as it is where the other is 1.
        own = (1,) * (len(sizes) - x.rank) + (x.shape or ())
        target = [1 if s == have else s for s, have in zip(sizes, own, strict=True)]
        return self.shaped(self.Expand(x, self.sizes.vector(target)), sizes)

    def shaped(self, x: Value, sizes: Sequence[Any]) -> Value:
        """Note the sizes of a value, where the builder cannot tell them; a constant has its own."""
        if x.tensor is None:
            x.shape = tuple(sizes)
        return x

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Dims in another order; nothing if it is the same one."""
        source = x.producer
        sizes = None if x.shape is None else tuple(x.shape[p] for p in perm)
        if source is not None and source.op == "Transpose" and source.inputs[0] is not None:
            x, first = source.inputs[0], source.attributes["perm"]
            perm = [first[p] for p in perm]
        made = x if list(perm) == sorted(perm) else self.Transpose(x, perm=list(perm))
        if made.shape is None or None in made.shape:
            made.shape = sizes  # what was moved twice may be known only by where it went first
        return made

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Dims of size 1 added, at their places in the result."""
        if not axes:
            return x
        new, rest = {a % (x.rank + len(axes)) for a in axes}, iter(x.shape or ())
        sizes = [1 if i in new else next(rest) for i in range(x.rank + len(axes))]
        return self.sizes.undo_reshape(x, sizes) or self.Unsqueeze(x, sorted(new))

    def squeeze(self, x: Value, *axes: int) -> Value:
        """Dims of size 1 taken away."""
        if not axes:
            return x
        gone = {a % x.rank for a in axes}
        sizes = [s for i, s in enumerate(x.shape or ()) if i not in gone]
        return self.sizes.undo_reshape(x, sizes) or self.Squeeze(x, sorted(gone))


def _make_in_turn(first: Callable[..., Any], second: Callable[..., Any], *given: Any) -> Any:
    return second(first(*given))


def _output_type(
    op: Signature, i: int, types: dict[str, torch.dtype], attributes: Attributes
) -> torch.dtype:
    type_str = op.outputs[min(i, len(op.outputs) - 1)]
    found = fixed_dtype(type_str) or types.get(type_str)
    if found is None:
        to = attributes.get("to") or attributes.get("dtype")
        if to is None:
            raise TypeError(f"{op.op}: the dtype of its result is not known; pass dtype=")
        found = TORCH_OF[to]
    return found


def make_hashable(item: tuple[str, Any]) -> Any:
    name, value = item
    if isinstance(value, list):
        return (name, tuple(value))
    if isinstance(value, torch.Tensor):
        return (name, value.dtype, tuple(value.shape), _copy_bytes(value))
    if isinstance(value, float):
        return (name, float, value.hex())  # 0.0 and -0.0 are two attributes
    return (name, type(value), value)


def _copy_bytes(t: torch.Tensor) -> bytes:
    """The bytes of a tensor, of any dtype."""
    # One element is contiguous with any stride, but to view it the stride has to be 1.
    flat = t.contiguous().as_strided((t.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy()) if t.numel() else b""


__all__ = ["Builder", "Number", "Operand", "Shape"]
