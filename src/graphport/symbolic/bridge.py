"""Expressions as `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`.

PyTorch's symbolic numbers are shells around a *node*, a Python object that C++ and PyTorch's Python
call by method name. `SymNode` is that object for our expressions: arithmetic is the algebra of
`expr`, questions go to the `Scope`. `ShapeEnv` is the little that PyTorch's utility functions
(`guard_or_false`, `statically_known_true`, ...) reach for behind a node.

Questions that PyTorch says may be left open (`guard_or_false`, the memory layout of a tensor) are
answered by proof or by their default, and never become facts. This module is the only one of the
package that knows torch. It does not mix with the symbolic numbers of other systems: `from_torch`
refuses them. `torch.sym_ite` accepts PyTorch's own node class only; a `TorchFunctionMode` sees the
call and can answer it with `sym_ite` of this module.

Making one tensor with symbolic sizes calls a node about seventy times, so the methods are as short
as they can be: one node per expression, results remembered per pair of nodes.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphport.symbolic import expr
from graphport.symbolic.environment import Opaque, ShapeEnv, wrap_opaque
from graphport.symbolic.evaluation import evaluate, substitute
from graphport.symbolic.expr import Expr, Number, Size, Value
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.nodes import operands
from graphport.symbolic.scope import Scope

_SHELLS = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
_PYTHON_TYPES = {shell: plain for plain, shell in _SHELLS.items()}
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat)
SYMBOLIC = (*SYMBOLIC_NUMBERS, torch.SymBool)
NUMBERS = (int, float, bool, *SYMBOLIC)

# The answers of `is_int`, `is_float` and `is_bool`. None of them runs Python: torch asks them while
# it reads arguments, and takes an interrupt that comes then for an argument of the wrong type.
_KINDS: dict[type, tuple[Callable[[], bool], ...]] = {
    kind: tuple((kind is asked).__bool__ for asked in (int, float, bool))
    for kind in (int, float, bool)
}


class SymNode:
    """The node protocol.

    A constant node makes torch hand out the plain number, but not for a float: torch's magic
    methods unwrap ints and bools only, so a constant float stays in its shell.
    """

    __slots__ = """
        _expr constant is_bool is_float is_int pytype results shape_env shell simplified
    """.split()

    def __init__(self, value: Value, env: ShapeEnv) -> None:
        self._expr: Any = value
        self.shape_env = env
        self.simplified = env.simplified
        self.results = env.results
        self.shell: Any = None
        if type(value) is Expr:
            value.peer = self
            self.pytype, self.constant = value.type, None
        else:
            self.pytype, self.constant = type(value), value
        self.is_int, self.is_float, self.is_bool = _KINDS[self.pytype]

    @property
    def expr(self) -> Opaque | Number:
        return wrap_opaque(self.shape_env.scope.simplify(self._expr))

    @property
    def hint(self) -> Number | None:
        return self.shape_env.scope.hint(self._expr)

    _hint = hint
    fx_node = None

    # What it is

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def nested_int_coeff(self) -> None:
        return None

    def is_constant(self) -> bool:
        return self.constant is not None and self.pytype is not float

    def is_symbolic(self) -> bool:
        return self.constant is None

    def has_hint(self) -> bool:
        return self.hint is not None

    def maybe_as_int(self) -> int | None:
        value = self.simplified.get(self._expr)
        if value is None:
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
        return self.shape_env.integers.get(num) or self.shape_env.node(num)

    def wrap_float(self, num: float) -> SymNode:
        return self.shape_env.node(num)

    wrap_bool = wrap_float

    def str(self) -> builtins.str:
        return str(self.shape_env.scope.simplify(self._expr))

    __str__ = __repr__ = _graph_repr = str

    def _value_eq(self, other: SymNode) -> bool:
        return self._expr is other._expr or (
            self.pytype is other.pytype and self.constant is not None and self._expr == other._expr
        )

    def _value_hash(self) -> int:
        return hash(self._expr)

    # Questions. The file and line are those of C++; the scope looks up the user's.

    def guard_int(self, file: builtins.str, line: int) -> int:
        scope = self.shape_env.scope
        if not scope.specialises and type(scope.simplify(self._expr)) is Expr:
            raise RuntimeError(f"{self._expr} would be fixed")
        return int(scope.specialize(self._expr))

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
        return self.shape_env.decide(self._expr) is True

    guard_or_false = statically_known_true

    def guard_or_true(self, file: builtins.str, line: int) -> bool:
        return self.shape_env.decide(self._expr) is not False

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
        return self._layout(is_contiguous, sizes, strides)

    def is_non_overlapping_and_dense(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self._layout(is_non_overlapping_and_dense, sizes, strides)

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        dense = self._layout(is_non_overlapping_and_dense, sizes, strides)
        return self.shape_env.node(int(bool(dense.constant)))

    def is_channels_last_contiguous_2d(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self._layout(is_channels_last, sizes, strides)

    is_channels_last_contiguous_3d = is_channels_last_contiguous_2d

    def is_channels_last_strides_2d(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self._layout(is_channels_last_strides, sizes, strides)

    is_channels_last_strides_3d = is_channels_last_strides_2d

    def _layout(
        self,
        question: Callable[[Scope, Sequence[Size], Sequence[Size]], bool],
        sizes: Sequence[SymNode],
        strides: Sequence[SymNode],
    ) -> SymNode:
        env = self.shape_env
        return env.node(question(env.scope, [s._expr for s in sizes], [s._expr for s in strides]))


_BINARY: dict[str, Callable[[Any, Any], Value]] = {
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
    "xor": lambda a, b: expr.or_(expr.and_(a, expr.not_(b)), expr.and_(expr.not_(a), b)),
}

_UNARY: dict[str, Callable[[Any], Value]] = {
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
        key = (operation, self, other)
        node = self.results.get(key)
        if node is None:
            node = self.shape_env.node(operation(self._expr, other._expr))
            self.results[key] = node
        return node

    return method


def _dividing_method(operation: Callable[[Any, Any], Value]) -> Callable[..., SymNode]:
    """Python raises where the divisor is 0: the user's code has a fact of it, operators do not."""
    divided = _binary_method(operation)

    def method(self: SymNode, other: SymNode) -> SymNode:
        if other.constant is None and other.pytype is int:
            scope = self.shape_env.scope
            if not scope.internal and not scope.expect(expr.ne(other._expr, 0)):
                raise ZeroDivisionError("integer division or modulo by zero")
        return divided(self, other)

    return method


def _unary_method(operation: Callable[[Any], Value]) -> Callable[..., SymNode]:
    def method(self: SymNode) -> SymNode:
        return self.shape_env.node(operation(self._expr))

    return method


for _name, _binary in _BINARY.items():
    _divides = _binary in (expr.floordiv, expr.mod, expr.truediv)
    _make = _dividing_method if _divides else _binary_method
    setattr(SymNode, _name, _make(_binary))
for _name, _unary in _UNARY.items():
    setattr(SymNode, _name, _unary_method(_unary))


def get_shape_env(scope: Scope) -> ShapeEnv:
    """The one ShapeEnv of a scope."""
    if scope.peer is None:
        scope.peer = ShapeEnv(scope, SymNode)
    return scope.peer


def to_torch(x: Value) -> Any:
    """A SymInt, SymFloat or SymBool, always the same one for the same expression.

    >>> n = Scope().symbol("n", hint=4)
    >>> to_torch(n) * 2 + 1
    2*n + 1
    >>> to_torch(n) is to_torch(n), to_torch(3)
    (True, 3)
    """
    if type(x) is not Expr:
        return x
    node = x.peer or get_shape_env(x.arena.owner).node(x)
    if node.shell is None:
        node.shell = _SHELLS[x.type](node)
    return node.shell


def from_torch(x: Any) -> Any:
    """The expression in a symbolic number of ours; a plain number is returned as it is."""
    if isinstance(x, SYMBOLIC):
        node = x.node
        if type(node) is SymNode:
            return node._expr
        raise TypeError(f"{x} is a symbolic number of another system ({type(node).__name__})")
    if isinstance(x, (bool, int, float)):
        return x
    raise TypeError(f"{type(x).__name__} is not a number")


def evaluate_in_torch(e: Value, env: Mapping[Expr, Any]) -> Any:
    """The value of `e` where the symbols have values that may be symbolic numbers of torch."""
    if not any(isinstance(x, SYMBOLIC) for x in env.values()):
        return evaluate(e, env)
    return to_torch(substitute(e, {symbol: from_torch(x) for symbol, x in env.items()}))


def sym_ite(cond: Any, a: Any, b: Any) -> Any:
    """`torch.sym_ite` for symbolic numbers of ours and plain ones."""
    return to_torch(expr.ite(from_torch(cond), from_torch(a), from_torch(b)))


def is_symbolic(x: Any) -> bool:
    """Whether `x` is one of torch's symbolic numbers."""
    return isinstance(x, SYMBOLIC)


def python_type(x: Any) -> type:
    """The type of a number when the program runs; that of anything else as it is."""
    return _PYTHON_TYPES.get(type(x), type(x))


def to_expression(x: Any) -> Any:
    """A symbolic number of torch as our expression; anything else as it is."""
    return from_torch(x) if isinstance(x, SYMBOLIC) else x


# Contiguity and other memory formats, of symbolic sizes and strides.
#
# Every question is answered True only when it provably holds, and never records a fact: a tensor
# that is not provably contiguous is treated as one that is not. Where a size of zero would make a
# difference (an empty tensor is contiguous whatever its strides) the answer is the one for sizes
# that are not, so `max(1, n)` in a stride counts as `n`.

CHANNELS_LAST_2D = (1, 3, 2, 0)
CHANNELS_LAST_3D = (1, 4, 3, 2, 0)


def is_contiguous(scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    return _is_nested(scope, sizes, strides, range(len(sizes) - 1, -1, -1))


def is_channels_last(scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Contiguous in the order N..., C; for four and five dimensions."""
    order = {4: CHANNELS_LAST_2D, 5: CHANNELS_LAST_3D}.get(len(sizes))
    return order is not None and _is_nested(scope, sizes, strides, order)


def _is_nested(
    scope: Scope, sizes: Sequence[Size], strides: Sequence[Size], order: Sequence[int]
) -> bool:
    """Each stride is the product of the sizes inside it; a size of one has no say."""
    if any(scope.simplify(size) == 0 for size in sizes):
        return True
    step: Size = 1
    for d in order:
        size = scope.simplify(sizes[d])
        if size == 1:
            continue
        if not _is_same_stride(scope, strides[d], step):
            return False
        step = expr.mul(step, size)
    return True


def is_channels_last_strides(scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Strides in the order of channels last, gaps allowed. PyTorch's rule, step by step."""
    order = {4: CHANNELS_LAST_2D, 5: CHANNELS_LAST_3D}.get(len(sizes))
    if order is None or scope.simplify(strides[1]) == 0:
        return False
    least: Size = 0
    for d in order:
        size, stride = scope.simplify(sizes[d]), scope.simplify(strides[d])
        if size == 0 or scope.decide(expr.ge(_strip_max(stride), _strip_max(least))) is not True:
            return False
        if d == 0 and scope.same(least, strides[1]):
            return False
        least = stride if size == 1 else expr.mul(stride, size)
    return True


def is_non_overlapping_and_dense(
    scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]
) -> bool:
    """Some order of the dimensions is contiguous."""
    left = [d for d in range(len(sizes)) if scope.simplify(sizes[d]) != 1]
    step: Size = 1
    while left:
        match = next((d for d in left if _is_same_stride(scope, strides[d], step)), None)
        if match is None:
            return False
        left.remove(match)
        step = expr.mul(step, sizes[match])
    return True


def _is_same_stride(scope: Scope, stride: Size, step: Size) -> bool:
    if stride is step or scope.same(stride, step):
        return True
    return scope.same(_strip_max(stride), _strip_max(step))


def _strip_max(stride: Size) -> Size:
    """`stride` with max(1, n) read as n."""
    if type(stride) is not Expr:
        return stride
    found: dict[Expr, Size] = {}
    _collect_max(stride, found)
    return expr.substitute(stride, found) if found else stride


def _collect_max(e: Value, found: dict[Expr, Size]) -> None:
    if type(e) is not Expr:
        return
    if e.kind == "max" and len(e.args) == 2 and e.args[0] == 1:
        found[e] = _strip_max(e.args[1])
    elif e.kind in ("add", "mul"):
        for part in operands(e):
            _collect_max(part, found)
