"""The part of torch's `ShapeEnv` that its utilities ask of a symbolic number.

`torch.fx.experimental.symbolic_shapes` offers meta functions `guard_or_false`,
`statically_known_true`, `guarding_hint_or_throw` and the like; they reach for `node.shape_env` and
`node.expr`. `ShapeEnv` and `Opaque` answer them from the scope, without sympy. Nothing else of a
shape environment is offered: symbols are created by the scope alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphport.errors import DataDependentError
from graphport.symbolic import expr
from graphport.symbolic.expr import Expr, Number, Value
from graphport.symbolic.ranges import Range
from graphport.symbolic.scope import Scope

# What a size is taken to be where PyTorch only wants a number to optimise for.
_USUAL_SIZE = 8192


class ShapeEnv:
    """The face of a `Scope` towards PyTorch. Also keeps its nodes and the results of operations."""

    def __init__(self, scope: Scope, make_node: Callable[[Value, ShapeEnv], Any]) -> None:
        self.scope = scope
        self.decide = scope.decide
        self.simplified = scope.simplified
        self.integers: dict[int, Any] = {}
        self.results: dict[tuple[Any, ...], Any] = {}
        self._truths: dict[bool, Any] = {}
        self._make_node = make_node

    def node(self, value: Value) -> Any:
        """The node of a value, one per expression, integer and bool."""
        if type(value) is Expr:
            return value.peer or self._make_node(value, self)
        if type(value) is float:
            return self._make_node(value, self)
        known: dict[Any, Any] = self._truths if type(value) is bool else self.integers
        node = known.get(value)
        if node is None:
            node = known[value] = self._make_node(value, self)
        return node

    def evaluate_sym_node(
        self, node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Number:
        if fallback_value is not None:
            answer = self.decide(node._expr)
            return fallback_value if answer is None else answer
        if size_oblivious:
            with self.scope.operator():
                return self.scope.guard(node._expr)
        return self.scope.specialize(node._expr)

    def evaluate_expr(
        self, e: Any, *args: object, fallback_value: Any = None, **kwargs: object
    ) -> Any:
        return self.evaluate_sym_node(self.node(_unwrap_opaque(e)), fallback_value=fallback_value)

    def _maybe_evaluate_static(self, e: object, **kwargs: object) -> Number | None:
        value = self.scope.simplify(_unwrap_opaque(e))
        if type(value) is not Expr:
            return value
        return self.decide(value) if value.type is bool else None

    def simplify(self, e: Any) -> Opaque | Number:
        return wrap_opaque(self.scope.simplify(_unwrap_opaque(e)))

    replace = simplify

    def guarding_hint_or_throw(self, e: object) -> Number:
        hint = self.scope.hint(_unwrap_opaque(e))
        if hint is None:
            raise DataDependentError(f"the value of {e} depends on the data of a tensor")
        return hint

    def optimization_hint(self, e: object, fallback: int | None = None) -> Number:
        hint = self.scope.hint(_unwrap_opaque(e))
        return hint if hint is not None else (_USUAL_SIZE if fallback is None else fallback)

    def bound_sympy(self, e: object) -> _Bounds:
        r = self.scope.range(_unwrap_opaque(e))
        return _Bounds(r.lower, r.upper)

    def is_unbacked_symint(self, e: object) -> bool:
        value = _unwrap_opaque(e)
        return type(value) is Expr and value.kind == "symbol" and self.scope.hint(value) is None

    def _constrain_range(self, e: object, lower: object, upper: object) -> None:
        # An absent bound arrives as sympy's infinity.
        if type(lower) is int:
            self.scope.assume(expr.ge(_unwrap_opaque(e), lower))
        if type(upper) is int:
            self.scope.assume(expr.le(_unwrap_opaque(e), upper))

    _constrain_range_for_size = _constrain_range

    def guard_or_defer_runtime_assert(
        self, e: object, message: str, fx_node: object = None
    ) -> bool:
        return self.scope.expect(_unwrap_opaque(e), message=message)


class _Bounds(Range):
    """A range with the one question that PyTorch asks of it."""

    __slots__ = ()

    def is_singleton(self) -> bool:
        return self.is_single


class Opaque:
    """An expression that PyTorch's utilities may hold but not look into.

    It has no symbols, no parts, and is not a number; sympy would be used on them.
    """

    __slots__ = ("value",)

    args = ()
    free_symbols: frozenset[Any] = frozenset()
    is_Symbol = is_symbol = is_number = is_Boolean = is_integer = False

    def __init__(self, value: Expr) -> None:
        self.value = value

    def __repr__(self) -> str:
        return str(self.value)

    def __eq__(self, other: object) -> bool:
        # The expression too: `program.range_constraints[size.node.expr]`.
        return _unwrap_opaque(other) is self.value

    def __hash__(self) -> int:
        return hash(self.value)


def _unwrap_opaque(e: object) -> Any:
    return e.value if type(e) is Opaque else e


def wrap_opaque(value: object) -> Any:
    """An expression wrapped, a number as it is."""
    return Opaque(value) if type(value) is Expr else value
