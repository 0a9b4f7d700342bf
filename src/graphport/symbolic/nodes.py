"""The expression node, and the arena in which nodes are hash-consed.

An `Expr` is an immutable node of a directed acyclic graph. Nodes are hash-consed: within an arena,
structurally equal canonical expressions are the same object, so `is`, `==` and `hash` are identity
and cost nothing. An `Expr` is never a constant; whatever builds one returns a plain Python number
or bool when the result is known.

Three shapes of node exist:

* an *atom*: a symbol, or an operation that arithmetic cannot look into (`floordiv`, `min`, `sqrt`,
  comparisons, ...), with its operands in `args`;
* `mul`, a monomial: `args` is `((atom, power), ...)`, of total degree two or more;
* `add`, a sum of integers: `args` is `((monomial, coefficient), ...)` and `const`.

This module interns what it is given and checks nothing: canonical form is the business of the
modules that build nodes. Order is structural, by the creation order of symbols, never by address or
hash, so that everything printed is the same in every process.

An arena owns its nodes and its memo table, and every node refers to its arena. Both are released
together when the last outside reference goes: nothing is kept for the life of the process, and no
weak reference is paid for on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from graphport.symbolic import ranges
from graphport.symbolic.ranges import TRUTH, Range

if TYPE_CHECKING:
    from graphport.symbolic.scope import Scope

Number: TypeAlias = "int | float | bool"
Value: TypeAlias = "int | float | bool | Expr"
Size: TypeAlias = "int | Expr"
Truth: TypeAlias = "bool | Expr"

_Op = TypeVar("_Op", bound=Callable[..., Any])

UNSET: Any = object()

DEEP = 64
"""Walks of expressions of more nodes do not rely on recursion alone: see `parts_first`."""


class Arena:
    """The nodes of one scope, each stored once, and the results of operations on them."""

    __slots__ = ("memo", "nodes", "owner", "products", "symbols")

    def __init__(self, owner: Any = None) -> None:
        self.nodes: dict[tuple[Any, ...], Expr] = {}
        self.memo: dict[tuple[Any, ...], Any] = {}
        self.symbols: dict[str, Expr] = {}
        # The sums that are known to be products, by their terms; see `record_factors`.
        self.products: dict[tuple[Any, ...], Expr] = {}
        self.owner: Scope = owner

    def __reduce__(self) -> tuple[Any, ...]:
        """Expressions of a pickle share a new arena, and fill it."""
        return Arena, ()

    def symbol(self, name: str, type_: type, span: Range) -> Expr:
        """A new symbol. Names are unique in an arena."""
        if name in self.symbols:
            raise ValueError(f"the scope already has a symbol named {name!r}")
        index = len(self.symbols)
        node = Expr(self, "symbol", type_, (), 0, (0, index), span)
        node.name, node.index = name, index
        self.symbols[name] = node
        return node


@final
class Expr:
    """A symbolic int, float or bool. See the module for the shapes, `expr` for the operations."""

    __slots__ = """
        _symbols arena args const factors hinted index key kind memo name order peer size span type
    """.split()

    def __init__(
        self,
        arena: Arena,
        kind: str,
        type_: type,
        args: tuple[Any, ...],
        const: int,
        key: tuple[Any, ...],
        span: Range,
    ) -> None:
        self.arena = arena
        self.memo = arena.memo
        self.kind = kind
        self.type = type_
        self.args = args
        self.const = const
        self.key = key
        # Where the node stands as a term of a sum: higher degree first, then by symbols.
        self.order: tuple[Any, ...] = (-1, ((key, -1),))
        self.name = ""
        self.index = -1
        # The interval that follows from the declared ranges of the symbols alone.
        self.span = span
        # The factors of a sum that was built as a product; see `record_factors`.
        self.factors: tuple[Expr, ...] | None = None
        # Room for the scope (the value at the example sizes) and for the bridge (the torch object).
        self.hinted: Any = UNSET
        self.peer: Any = None
        self._symbols: tuple[Expr, ...] | None = None
        # How many nodes it has where it is written out: what is shared counts each time.
        self.size: int = 1 + sum(part.size for part in operands(self) if type(part) is Expr)

    @property
    def scope(self) -> Scope:
        """The scope that the expression lives in."""
        return self.arena.owner

    def __repr__(self) -> str:
        return str(self)

    def __deepcopy__(self, memo: dict[int, object]) -> Expr:
        return self  # it never changes

    def __bool__(self) -> bool:
        raise TypeError(f"{self} has no truth value: ask scope.guard() or scope.decide()")

    def _no_order(self, other: object) -> bool:
        raise TypeError("an Expr has no < <= > >=: use lt(a, b), le(a, b), gt(a, b), ge(a, b)")

    __lt__ = __le__ = __gt__ = __ge__ = _no_order

    if TYPE_CHECKING:  # installed by `expr`, which knows the operations

        def __add__(self, other: Value) -> Any: ...
        def __radd__(self, other: Value) -> Any: ...
        def __sub__(self, other: Value) -> Any: ...
        def __rsub__(self, other: Value) -> Any: ...
        def __mul__(self, other: Value) -> Any: ...
        def __rmul__(self, other: Value) -> Any: ...
        def __floordiv__(self, other: Value) -> Any: ...
        def __rfloordiv__(self, other: Value) -> Any: ...
        def __mod__(self, other: Value) -> Any: ...
        def __rmod__(self, other: Value) -> Any: ...
        def __neg__(self) -> Any: ...


def operands(e: Expr) -> tuple[Value, ...]:
    """The direct operands of a node, whatever its shape; coefficients and powers left out."""
    if e.kind == "add" or e.kind == "mul":
        return tuple(part for part, _ in e.args)
    return e.args


def walk_postorder(
    e: Value, is_known: Callable[[Expr], bool], whole: Container[str] = ()
) -> Iterator[Expr]:
    """The nodes within a large expression that are not known, each after its operands.

    Whoever visits them in this order, and remembers what it finds, never goes deeper than one
    operand: a sum of a thousand numbers is deeper than Python's recursion. Nodes of the kinds in
    `whole` are passed over with all that is in them.
    """
    if type(e) is not Expr or e.size <= DEEP:
        return
    done: set[Expr] = set()
    waiting = [e]
    while waiting:
        node = waiting[-1]
        parts = operands(node) if node not in done and node.kind not in whole else ()
        missing = [p for p in parts if type(p) is Expr and p not in done and not is_known(p)]
        if missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if node not in done:
            done.add(node)
            if node is not e and node.kind not in whole:
                yield node


def symbols(e: Value) -> tuple[Expr, ...]:
    """The symbols in `e`, in the order of their creation."""
    if type(e) is not Expr:
        return ()
    if e._symbols is None:
        for part in walk_postorder(e, lambda part: part._symbols is not None):
            symbols(part)
        if e.kind == "symbol":
            e._symbols = (e,)
        else:
            found: set[Expr] = set()
            for operand in operands(e):
                found.update(symbols(operand))
            e._symbols = tuple(sorted(found, key=lambda s: s.index))
    return e._symbols


def arena_of(*values: Value) -> Arena:
    """The arena that the expressions among `values` share."""
    arena: Arena | None = None
    for value in values:
        if type(value) is Expr:
            if arena is None:
                arena = value.arena
            elif arena is not value.arena:
                raise ValueError("expressions of two scopes cannot be combined")
    if arena is None:
        raise ValueError("a constant belongs to no scope")
    return arena


def _constant_key(value: object) -> object:
    """A constant as a dictionary key: 1, 1.0 and True, or 0.0 and -0.0, are different constants."""
    if type(value) is float:
        return (float, value.hex())
    if type(value) is bool:
        return (bool, value)
    return value


def key_of(value: Value) -> tuple[object, ...]:
    """The structural order of any value; constants come first."""
    return value.key if type(value) is Expr else (-1, value)


def span_of(value: Value) -> Range:
    """The declared interval of any value."""
    return value.span if type(value) is Expr else Range(value, value)


def is_nonneg(value: Value) -> bool:
    """Whether the declared ranges alone make `value` >= 0."""
    return value.span.lower >= 0 if type(value) is Expr else value >= 0


def atom(kind: str, type_: type, *args: Any) -> Expr:
    """The node of an opaque operation."""
    arena = arena_of(*args)
    identity = (kind, *map(_constant_key, args))
    node = arena.nodes.get(identity)
    if node is None:
        key = (1, kind, len(args), *map(key_of, args))
        span = TRUTH if type_ is bool else ranges.INTERVALS[kind](*map(span_of, args))
        node = arena.nodes[identity] = Expr(arena, kind, type_, args, 0, key, span)
    return node


def monomial(arena: Arena, powers: tuple[tuple[Expr, int], ...]) -> Expr:
    """The product of atoms with powers; `powers` is not empty and sorted by the atoms' keys."""
    if len(powers) == 1 and powers[0][1] == 1:
        return powers[0][0]
    identity = ("mul", powers)
    node = arena.nodes.get(identity)
    if node is None:
        degree = sum(power for _, power in powers)
        order = (-degree, tuple((part.key, -power) for part, power in powers))
        span = ranges.monomial((part.span, power) for part, power in powers)
        node = arena.nodes[identity] = Expr(arena, "mul", int, powers, 0, (2, order), span)
        node.order = order
    return node


def polynomial(arena: Arena, terms: dict[Expr, int], const: int) -> Size:
    """The sum of coefficient * monomial and a constant, in canonical form."""
    kept = [term for term in terms.items() if term[1]]
    if not kept:
        return const
    if len(kept) == 1:
        if const == 0 and kept[0][1] == 1:
            return kept[0][0]
    else:
        kept.sort(key=lambda term: term[0].order)
    args = tuple(kept)
    identity = ("add", args, const)
    node = arena.nodes.get(identity)
    if node is None:
        key = (3, tuple((mono.order, coef) for mono, coef in args), const)
        span = ranges.linear(((mono.span, coef) for mono, coef in args), const)
        node = arena.nodes[identity] = Expr(arena, "add", int, args, const, key, span)
    return node


def record_factors(e: Size, factors: tuple[Expr, ...]) -> None:
    """Note that the sum `e` is a positive multiple of the product of `factors`.

    That n*(h - 2) is not negative is plain from the factors, and hard to see in n*h - 2*n.
    """
    if type(e) is Expr and e.kind == "add" and e.factors is None:
        e.factors = factors
        e.arena.products.setdefault(e.args, e)


def memoise(operation: _Op) -> _Op:
    """Remember the results of a binary operation in the arena of its operands.

    Only ints and expressions are remembered: 1, 1.0 and True would share a key.
    """

    def call(a: Any, b: Any) -> Any:
        if type(a) is Expr:
            if type(b) is not Expr and type(b) is not int:
                return operation(a, b)
            memo = a.memo
        elif type(b) is Expr and type(a) is int:
            memo = b.memo
        else:
            return operation(a, b)
        key = (operation, a, b)
        result = memo.get(key)
        if result is None:
            result = memo[key] = operation(a, b)
        return result

    call.__name__ = operation.__name__
    call.__doc__ = operation.__doc__
    return call  # type: ignore[return-value]


def memoise_unary(operation: _Op) -> _Op:
    """Remember the results of a unary operation in the arena of its operand."""

    def call(a: Any) -> Any:
        if type(a) is not Expr:
            return operation(a)
        key = (operation, a)
        result = a.memo.get(key)
        if result is None:
            result = a.memo[key] = operation(a)
        return result

    call.__name__ = operation.__name__
    call.__doc__ = operation.__doc__
    return call  # type: ignore[return-value]
