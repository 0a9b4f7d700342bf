"""Expressions as `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`.

PyTorch's symbolic numbers are shells around a *node*, a Python object that C++ and PyTorch's Python
call by method name. `SymNode` is that object for our expressions: arithmetic is the algebra of
`expr`, questions go to the `Scope`. `ShapeEnv` is the little that PyTorch's helper functions
(`guard_or_false`, `statically_known_true`, ...) reach for behind a node.

Questions that PyTorch says may be left open (`guard_or_false`, the memory layout of a tensor) are
answered by proof or by their default, and never become facts. This module is the only one of the
package that knows torch. It does not mix with symbolic numbers of other systems: `from_torch`
refuses them.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.errors import DataDependentError
from graphport.symbolic import expr, layout
from graphport.symbolic.expr import Expr, Number, Size, Value
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.ranges import Range
from graphport.symbolic.scope import Scope

# The magic methods of torch.SymInt test results and the operands of sym_ite against this class. It is
# taken from them: only its name is used, every method of the protocol is overridden.
_Protocol: Any = torch.SymInt.__add__.__globals__["SymNode"]

_SHELLS = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ShapeEnv:
    """The face of a `Scope` towards PyTorch's helper functions; also keeps the constant nodes."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.constants: dict[tuple[type, Number], SymNode] = {}

    def node(self, value: Value) -> SymNode:
        """The node of a value, one per expression."""
        if type(value) is Expr:
            return value.peer or SymNode(value, self, value.type, None)
        key = (type(value), value)
        found = self.constants.get(key)
        if found is None or type(value) is float:
            found = SymNode(value, self, type(value), value)
            self.constants[key] = found
        return found

    def evaluate_sym_node(
        self, node: SymNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Number:
        if fallback_value is not None:
            answer = self.scope.decide(node._expr)
            return fallback_value if answer is None else answer
        if size_oblivious:
            return node.guard_size_oblivious("", 0)
        if node.pytype is bool:
            return self.scope.guard(node._expr)
        return self.scope.specialize(node._expr)  # type: ignore[no-any-return]

    def evaluate_expr(self, e: Any, *args: Any, fallback_value: Any = None, **kwargs: Any) -> Any:
        return self.evaluate_sym_node(self.node(_unwrap(e)), fallback_value=fallback_value)

    def _maybe_evaluate_static(self, e: Any, **kwargs: Any) -> Number | None:
        value = self.scope.simplify(_unwrap(e))
        if type(value) is not Expr:
            return value  # type: ignore[no-any-return]
        return self.scope.decide(value) if value.type is bool else None

    def simplify(self, e: Any) -> Opaque | Number:
        return _opaque(self.scope.simplify(_unwrap(e)))

    def guarding_hint_or_throw(self, e: Any) -> Number:
        hint = self.scope.hint(_unwrap(e))
        if hint is None:
            raise DataDependentError(f"the value of {e} depends on the data of a tensor")
        return hint

    def optimization_hint(self, e: Any, fallback: int | None = None) -> Number:
        hint = self.scope.hint(_unwrap(e))
        return hint if hint is not None else (8192 if fallback is None else fallback)

    def bound_sympy(self, e: Any) -> _Bounds:
        r = self.scope.range(_unwrap(e))
        return _Bounds(r.lower, r.upper)

    def is_unbacked_symint(self, e: Any) -> bool:
        value = _unwrap(e)
        return type(value) is Expr and value.kind == "symbol" and self.scope.hint(value) is None

    def _constrain_range(self, e: Any, lower: Any, upper: Any) -> None:
        value = _unwrap(e)
        if type(lower) is int:
            self.scope.assume(expr.ge(value, lower))
        if type(upper) is int:
            self.scope.assume(expr.le(value, upper))

    def guard_or_defer_runtime_assert(self, e: Any, message: str, fx_node: Any = None) -> bool:
        return self.scope.expect(_unwrap(e), message=message)


class _Bounds(Range):
    """A range with the one question that PyTorch asks of it."""

    __slots__ = ()

    def is_singleton(self) -> bool:
        return self.is_single


class Opaque:
    """An expression as PyTorch's helpers may look at it: no symbols, no parts, not a number.

    They would otherwise take it apart with sympy.
    """

    __slots__ = ("value",)

    args = ()
    free_symbols: frozenset[Any] = frozenset()
    is_Symbol = is_symbol = is_number = is_Boolean = is_integer = False

    def __init__(self, value: Expr) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.value is self.value

    def __hash__(self) -> int:
        return hash(self.value)


def _unwrap(e: Any) -> Any:
    return e.value if type(e) is Opaque else e


def _opaque(value: Any) -> Any:
    return Opaque(value) if type(value) is Expr else value


class SymNode(_Protocol):  # type: ignore[misc]
    """The node protocol. `constant` is the value when it is one; then torch hands out plain numbers."""

    __slots__ = ("_expr", "constant", "pytype", "shape_env", "shell")

    def __init__(self, value: Value, env: ShapeEnv, pytype: type, constant: Number | None) -> None:
        self._expr = value
        self.shape_env = env
        self.pytype = pytype
        self.constant = constant
        self.shell: Any = None
        if type(value) is Expr:
            value.peer = self

    @property
    def scope(self) -> Scope:
        return self.shape_env.scope

    @property
    def expr(self) -> Any:
        return _opaque(self.shape_env.scope.simplify(self._expr))

    @property
    def hint(self) -> Number | None:
        return self.shape_env.scope.hint(self._expr)

    _hint = hint
    fx_node = None

    # What it is

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def nested_int_coeff(self) -> None:
        return None

    def is_constant(self) -> bool:
        return self.constant is not None

    def is_symbolic(self) -> bool:
        return self.constant is None

    def has_hint(self) -> bool:
        return self.hint is not None

    def require_hint(self, fallback: Any = None) -> Any:
        hint = self.hint
        return fallback if hint is None else hint

    def maybe_as_int(self) -> int | None:
        value = self.shape_env.scope.simplify(self._expr)
        return value if type(value) is int else None

    def maybe_as_float(self) -> float | None:
        value = self.shape_env.scope.simplify(self._expr)
        return value if type(value) is float else None

    def maybe_as_bool(self) -> bool | None:
        value = self.shape_env.scope.simplify(self._expr)
        return value if type(value) is bool else None

    def constant_int(self) -> int | None:
        return self.constant if type(self.constant) is int else None

    def constant_bool(self) -> bool | None:
        return self.constant if type(self.constant) is bool else None

    def clone(self) -> SymNode:
        return self

    def with_shape_env(self, shape_env: ShapeEnv) -> SymNode:
        return shape_env.node(self._expr)

    def wrap_int(self, num: int) -> SymNode:
        return self.shape_env.node(num)

    wrap_float = wrap_bool = wrap_int

    def str(self) -> builtins.str:
        return str(self.shape_env.scope.simplify(self._expr))

    __str__ = __repr__ = _graph_repr = str

    def _value_eq(self, other: SymNode) -> bool:
        return self._expr is other._expr or (
            self.pytype is other.pytype and self.constant is not None and self._expr == other._expr
        )

    def _value_hash(self) -> int:
        return hash(self._expr)

    # Questions

    def guard_int(self, file: builtins.str, line: int) -> int:
        return int(self.shape_env.scope.specialize(self._expr))

    def guard_float(self, file: builtins.str, line: int) -> float:
        return float(self.shape_env.scope.specialize(self._expr))

    def guard_bool(self, file: builtins.str, line: int) -> bool:
        e = self._expr if self.pytype is bool else expr.ne(self._expr, 0)
        return self.shape_env.scope.guard(e)

    def int_(self) -> int:
        return self.guard_int("", 0)

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def expect_true(self, file: builtins.str, line: int) -> bool:
        return self.shape_env.scope.expect(self._expr)

    def statically_known_true(self, file: builtins.str, line: int) -> bool:
        return self.shape_env.scope.decide(self._expr) is True

    def guard_or_false(self, file: builtins.str, line: int) -> bool:
        return self.shape_env.scope.decide(self._expr) is True

    def guard_or_true(self, file: builtins.str, line: int) -> bool:
        return self.shape_env.scope.decide(self._expr) is not False

    def guard_size_oblivious(self, file: builtins.str, line: int) -> bool:
        with self.shape_env.scope.operator():
            return self.shape_env.scope.guard(self._expr)

    def evaluate(self, size_oblivious: bool = False) -> Number:
        return self.shape_env.evaluate_sym_node(self, size_oblivious)

    # Arithmetic that is not a row of the tables below

    def pos(self) -> SymNode:
        return self

    def round(self, ndigits: int | None = None) -> SymNode:
        return self.shape_env.node(expr.round_(self._expr, ndigits))

    def is_integer(self) -> SymNode:
        return self.shape_env.node(expr.eq(expr.to_float(expr.floor(self._expr)), self._expr))

    def sym_ite(self, then_val: SymNode, else_val: SymNode) -> SymNode:
        return self.shape_env.node(expr.ite(self._expr, then_val._expr, else_val._expr))

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        return self.shape_env.node(expr.sum_([a._expr for a in args]))

    # Memory layout

    def is_contiguous(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(layout.is_contiguous, sizes, strides)

    def is_non_overlapping_and_dense(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self._layout(layout.is_non_overlapping_and_dense, sizes, strides)

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        dense = self._layout(layout.is_non_overlapping_and_dense, sizes, strides)
        return self.shape_env.node(int(bool(dense.constant)))

    def is_channels_last_contiguous_2d(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self._layout(layout.is_channels_last, sizes, strides)

    is_channels_last_contiguous_3d = is_channels_last_contiguous_2d

    def is_channels_last_strides_2d(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self._layout(layout.is_channels_last_strides, sizes, strides)

    is_channels_last_strides_3d = is_channels_last_strides_2d

    def _layout(
        self,
        question: Callable[[Scope, Sequence[Size], Sequence[Size]], bool],
        sizes: Sequence[SymNode],
        strides: Sequence[SymNode],
    ) -> SymNode:
        env = self.shape_env
        return env.node(question(env.scope, [s._expr for s in sizes], [s._expr for s in strides]))


_BINARY: dict[builtins.str, Callable[[Any, Any], Value]] = {
    "add": expr.add,
    "sub": expr.sub,
    "mul": expr.mul,
    "mod": expr.mod,
    "pow": expr.pow_,
    "float_pow": expr.pow_,
    "pow_by_natural": expr.pow_,
    "truediv": expr.truediv,
    "float_truediv": expr.truediv,
    "int_truediv": expr.truediv,
    "floordiv": expr.floordiv,
    "int_floordiv": expr.floordiv,
    "lshift": expr.lshift,
    "rshift": expr.rshift,
    "bitwise_and": expr.bitand,
    "bitwise_or": expr.bitor,
    "bitwise_xor": expr.bitxor,
    "eq": expr.eq,
    "ne": expr.ne,
    "lt": expr.lt,
    "le": expr.le,
    "gt": expr.gt,
    "ge": expr.ge,
    "sym_min": expr.min_,
    "sym_max": expr.max_,
    "and_": expr.and_,
    "or_": expr.or_,
    "sym_and": expr.and_,
    "sym_or": expr.or_,
}

_UNARY: dict[builtins.str, Callable[[Any], Value]] = {
    "neg": expr.neg,
    "abs": expr.abs_,
    "floor": expr.floor,
    "ceil": expr.ceil,
    "trunc": expr.to_int,
    "sym_int": expr.to_int,
    "sym_float": expr.to_float,
    "sym_not": expr.not_,
    **{f"sym_{name}": functools.partial(expr.func, name) for name in FUNCTIONS},
}


def _binary_method(operation: Callable[[Any, Any], Value]) -> Callable[..., SymNode]:
    def method(self: SymNode, other: SymNode) -> SymNode:
        value = operation(self._expr, other._expr)
        if type(value) is Expr and value.peer is not None:
            return value.peer  # type: ignore[no-any-return]
        return self.shape_env.node(value)

    return method


def _unary_method(operation: Callable[[Any], Value]) -> Callable[..., SymNode]:
    def method(self: SymNode) -> SymNode:
        return self.shape_env.node(operation(self._expr))

    return method


for _name, _binary in _BINARY.items():
    setattr(SymNode, _name, _binary_method(_binary))
for _name, _unary in _UNARY.items():
    setattr(SymNode, _name, _unary_method(_unary))


def environment(scope: Scope) -> ShapeEnv:
    """The one ShapeEnv of a scope."""
    if scope.peer is None:
        scope.peer = ShapeEnv(scope)
    return scope.peer  # type: ignore[no-any-return]


def to_torch(x: Value) -> Any:
    """A SymInt, SymFloat or SymBool, always the same one for the same expression."""
    if type(x) is not Expr:
        return x
    node = x.peer or environment(x.arena.owner).node(x)
    if node.shell is None:
        node.shell = _SHELLS[x.type](node)
    return node.shell


def from_torch(x: Any) -> Any:
    """The expression (or number) in a symbolic number of ours, or `x` if it is a plain number."""
    if isinstance(x, _SYMBOLIC):
        node = x.node
        if type(node) is SymNode:
            return node._expr
        constant = node.maybe_as_int() if isinstance(x, torch.SymInt) else None
        if constant is not None:
            return constant
        raise TypeError(f"{x} is a symbolic number of another system ({type(node).__name__})")
    if isinstance(x, (bool, int, float)):
        return x
    raise TypeError(f"{type(x).__name__} is not a number")


def is_symbolic(x: Any) -> bool:
    """Whether `x` is one of torch's symbolic numbers."""
    return isinstance(x, _SYMBOLIC)
