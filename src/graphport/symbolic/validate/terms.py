"""Terms: unsimplified expressions with Python's semantics.

A `Term` is a number, a symbol or an operation on terms. Nothing is simplified: a term is what a
validator compares, so it must not rest on the rewrites that are being validated. `evaluate_term`
computes one exactly; `solver` states one to z3.

Integers have Python's meaning, with `//` and `%` rounding down for divisors of either sign. Floats
are taken for the real numbers that they stand for: rounding, infinities and NaN are left out, so
what holds here of floats holds of sizes below 2**53 and exact steps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from graphport.symbolic import Expr, Range, Value
from graphport.symbolic import symbols as symbols_of

Exact: TypeAlias = "int | Fraction"

# Powers beyond this are not computed: the number would fill the memory.
_MAX_BITS = 1 << 16


class Undefined(ArithmeticError):
    """Python would raise here: a division by zero, a shift by a negative count."""


class Inexact(ArithmeticError):
    """There is a value, but no rational number that is it, or it is too large to write down."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One node. `value` is the number of a "number" and the name of a "symbol"."""

    op: str
    type: type
    args: tuple[Term, ...] = ()
    value: Any = None


# Evaluation


def _require_divisor(b: Exact) -> Exact:
    if b == 0:
        raise Undefined("division by zero")
    return b


def _exact_power(a: Exact, n: Exact) -> Exact:
    if n != int(n):
        raise Inexact
    if n < 0:
        return 1 / Fraction(_require_divisor(_exact_power(a, -n)))
    if a not in (0, 1, -1) and n * max(abs(a.numerator), a.denominator).bit_length() > _MAX_BITS:
        raise Inexact
    return a ** int(n)


def _require_count(n: Exact) -> int:
    if n < 0:
        raise Undefined("negative shift count")
    if n > _MAX_BITS:
        raise Inexact
    return int(n)


def _exact_natural_power(a: Exact, n: Exact) -> Exact:
    if n < 0:
        raise Undefined("a negative power of an integer is no integer")
    return _exact_power(a, n)


def _exact_root(a: Exact) -> Fraction:
    if a < 0:
        raise Undefined("square root of a negative number")
    p, q = math.isqrt(a.numerator), math.isqrt(a.denominator)
    if p * p != a.numerator or q * q != a.denominator:
        raise Inexact
    return Fraction(p, q)


def _raise_inexact(*args: Exact) -> Exact:
    raise Inexact


EVALUATORS: dict[str, Callable[..., Exact]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": abs,
    "floordiv": lambda a, b: a // _require_divisor(b),
    "mod": lambda a, b: a % _require_divisor(b),
    "truediv": lambda a, b: Fraction(a) / _require_divisor(b),
    "pow": _exact_power,
    "natural_pow": _exact_natural_power,
    "min": min,
    "max": max,
    "lshift": lambda a, n: a << _require_count(n),
    "rshift": lambda a, n: a >> _require_count(n),
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "round_to": lambda a, digits: round(a, int(digits)),
    "to_float": Fraction,
    "to_int": int,
    "sqrt": _exact_root,
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "not": lambda a: not a,
    # Both sides are computed, as by `&` and `|` on bools; "and" and "or" look at the left first.
    "both": lambda a, b: a and b,
    "either": lambda a, b: a or b,
}

# Functions that are no more than their name here: equal arguments give equal results.
OPAQUE_FUNCTIONS = (
    *("exp", "log", "log2", "log10", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh"),
)
EVALUATORS.update(dict.fromkeys(OPAQUE_FUNCTIONS, _raise_inexact))


def evaluate_term(
    term: Term, env: Mapping[str, Exact], done: dict[Term, Exact] | None = None
) -> Exact:
    """The value where the symbols are as in `env`: an int, a Fraction or a bool.

    Raises Undefined where Python would raise, and Inexact where the value is not computable.
    `done` receives the value of every part that had to be computed.
    """
    done = {} if done is None else done
    if term in done:
        return done[term]
    result: Exact
    if term.op in ("number", "infinite"):
        result = term.value
    elif term.op == "symbol":
        result = env[term.value]
    elif term.op in ("and", "or"):
        left, right = term.args
        result = evaluate_term(left, env, done)
        if result is (term.op == "and"):
            result = evaluate_term(right, env, done)
    elif term.op == "ite":
        cond, a, b = term.args
        result = evaluate_term(a if evaluate_term(cond, env, done) else b, env, done)
    else:
        result = EVALUATORS[term.op](*[evaluate_term(part, env, done) for part in term.args])
    done[term] = result
    return result


# Construction

_COMPARISONS = {
    "==": ("eq", False, False),
    "!=": ("eq", False, True),
    "<": ("lt", False, False),
    "<=": ("le", False, False),
    ">": ("lt", True, False),
    ">=": ("le", True, False),
}
_BOOL_OPERATORS = {"bitand": "both", "bitor": "either"}
_ROUNDING = ("floor", "ceil", "trunc", "round")

TYPE_NAMES = {int: "an integer", float: "a float", bool: "a condition"}


class Terms:
    """Makes terms, each once, with Python's rules of promotion; and knows the symbols.

    A wrong operand is a TypeError that says which, in words: whoever knows the place adds it.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Term] = {}
        self._translated: dict[Expr, Term] = {}
        self.symbols: dict[str, Term] = {}
        # The ranges of the symbols that came with one.
        self.declared: dict[str, Range] = {}

    def _node(
        self, op: str, type_: type, *args: Term, value: Exact | float | str | None = None
    ) -> Term:
        identity = (op, type_, args, type(value), value)
        node = self._nodes.get(identity)
        if node is None:
            node = self._nodes[identity] = Term(op, type_, args, value)
        return node

    # Leaves

    def number(self, value: int | float | bool) -> Term:
        if type(value) is bool:
            return self._node("number", bool, value=value)
        if isinstance(value, int):
            return self._node("number", int, value=int(value))
        if not math.isfinite(value):
            # An infinity or NaN: comparisons know what to do with it, nothing else does.
            return self._node("infinite", float, value=float(value))
        return self._node("number", float, value=Fraction(value))

    def symbol(self, name: str, type_: type = int) -> Term:
        """The symbol of a name; an int, unless an expression brought it along as something else."""
        known = self.symbols.get(name)
        if known is None:
            known = self.symbols[name] = self._node("symbol", type_, value=name)
        return known

    def declare(self, symbol: Expr) -> None:
        """Take over type and range of an expression's symbol. Names are what identifies symbols."""
        known = self.symbol(symbol.name, symbol.type)
        if known.type is not symbol.type:
            kinds = f"{TYPE_NAMES[known.type]} and {TYPE_NAMES[symbol.type]}"
            raise TypeError(f"two different symbols are named {symbol.name}: {kinds}")
        old = self.declared.get(symbol.name)
        self.declared[symbol.name] = symbol.span if old is None else old & symbol.span

    # Operations

    def integer(self, a: Term) -> Term:
        """A bool as 0 or 1; a float is refused."""
        self._finite(a)
        if a.type is float:
            raise TypeError("an integer is needed, and this is a float")
        return self._node("to_int", int, a) if a.type is bool else a

    def real(self, a: Term) -> Term:
        self._finite(a)
        return a if a.type is float else self._node("to_float", float, self.integer(a))

    def condition(self, a: Term) -> Term:
        if a.type is not bool:
            raise TypeError(f"a condition is needed, and this is {TYPE_NAMES[a.type]}")
        return a

    def _finite(self, a: Term) -> None:
        if a.op == "infinite":
            raise TypeError(f"{a.value} can be compared with, nothing else")

    def _promote(self, *args: Term) -> tuple[Term, ...]:
        convert = self.real if any(a.type is float for a in args) else self.integer
        return tuple(map(convert, args))

    def arithmetic(self, op: str, *args: Term) -> Term:
        """add, sub, mul, neg, abs, floordiv, mod, min, max: of floats as soon as one is a float."""
        args = self._promote(*args)
        return self._node(op, args[0].type, *args)

    def truediv(self, a: Term, b: Term) -> Term:
        return self._node("truediv", float, self.real(a), self.real(b))

    def power(self, a: Term, n: Term) -> Term:
        """a ** n. Of integers it is one, unless the exponent is a negative number."""
        negative = n.op == "number" and n.value < 0
        if negative or a.type is float or n.type is float:
            return self._node("pow", float, self.real(a), self.real(n))
        return self._node("natural_pow", int, self.integer(a), self.integer(n))

    def bitwise(self, op: str, a: Term, b: Term) -> Term:
        """bitand, bitor, bitxor of integers; of two conditions they are connectives."""
        if a.type is b.type is bool:
            if op == "bitxor":
                return self.negation(self._node("eq", bool, self.integer(a), self.integer(b)))
            return self._node(_BOOL_OPERATORS[op], bool, a, b)
        return self._node(op, int, self.integer(a), self.integer(b))

    def shift(self, op: str, a: Term, n: Term) -> Term:
        return self._node(op, int, self.integer(a), self.integer(n))

    def rounding(self, op: str, a: Term) -> Term:
        """floor, ceil, trunc and round to an integer."""
        return self._node(op, int, self.real(a)) if a.type is float else self.integer(a)

    def round_to(self, a: Term, digits: Term) -> Term:
        if digits.op != "number" or digits.type is not int:
            raise TypeError("the number of decimals must be a plain integer")
        if a.type is not float and digits.value >= 0:
            return self.integer(a)
        return self._node("round_to", a.type, self._promote(a)[0], digits)

    def function(self, name: str, a: Term) -> Term:
        return self._node(name, float, self.real(a))

    def compare(self, sign: str, a: Term, b: Term) -> Term:
        op, swapped, negated = _COMPARISONS[sign]
        if swapped:
            a, b = b, a
        # Python compares a float with infinity or NaN exactly, whatever the type of the number.
        operands = (a, b) if "infinite" in (a.op, b.op) else self._promote(a, b)
        result = self._node(op, bool, *operands)
        return self.negation(result) if negated else result

    def negation(self, a: Term) -> Term:
        return self._node("not", bool, self.condition(a))

    def connect(self, op: str, *args: Term) -> Term:
        """`and` or `or`, from left to right, as far as is needed for the answer."""
        result, *rest = map(self.condition, args)
        for part in rest:
            result = self._node(op, bool, result, part)
        return result

    def choice(self, cond: Term, a: Term, b: Term) -> Term:
        """a if cond else b; only the one that is chosen is computed."""
        if a.type is not b.type:
            a, b = self._promote(a, b)
        return self._node("ite", a.type, self.condition(cond), a, b)

    # From expressions

    def from_expr(self, e: Value) -> Term:
        """The term of an `Expr` or of a number."""
        if type(e) is not Expr:
            return self.number(e)
        for symbol in symbols_of(e):
            self.declare(symbol)
        return self._from_expr(e)

    def _from_expr(self, e: Value) -> Term:
        if type(e) is not Expr:
            return self.number(e)
        known = self._translated.get(e)
        if known is None:
            known = self._translated[e] = self._translate(e)
        return known

    def _translate(self, e: Expr) -> Term:
        if e.kind == "symbol":
            return self.symbol(e.name)
        if e.kind == "add":
            total: Term | None = self.number(e.const) if e.const else None
            for mono, coef in e.args:
                part = self._from_expr(mono)
                if coef != 1:
                    part = self.arithmetic("mul", self.number(coef), part)
                total = part if total is None else self.arithmetic("add", total, part)
            assert total is not None
            return total
        if e.kind == "mul":
            product: Term | None = None
            for base, power in e.args:
                part = self._from_expr(base)
                if power != 1:
                    part = self.power(part, self.number(power))
                product = part if product is None else self.arithmetic("mul", product, part)
            assert product is not None
            return product
        args = [self._from_expr(part) for part in e.args]
        make = _FROM_EXPR.get(e.kind)
        return make(self, *args) if make is not None else self.function(e.kind, args[0])


def _make_arithmetic(op: str) -> Callable[..., Term]:
    def make(terms: Terms, first: Term, *rest: Term) -> Term:
        if not rest:
            return terms.arithmetic(op, first)
        for part in rest:
            first = terms.arithmetic(op, first, part)
        return first

    return make


def _make_comparison(sign: str) -> Callable[..., Term]:
    return lambda terms, a, b: terms.compare(sign, a, b)


_FROM_EXPR: dict[str, Callable[..., Term]] = {
    **{op: _make_arithmetic(op) for op in ("floordiv", "mod", "min", "max", "abs")},
    **{f"f{op}": _make_arithmetic(op) for op in ("add", "mul", "neg", "abs", "floordiv", "mod")},
    **{f"f{op}": _make_arithmetic(op) for op in ("min", "max")},
    **dict.fromkeys(("truediv", "fdiv"), Terms.truediv),
    **dict.fromkeys(("pow", "fpow"), Terms.power),
    **{op: lambda terms, a, n, op=op: terms.shift(op, a, n) for op in ("lshift", "rshift")},
    **{
        op: lambda terms, a, b, op=op: terms.bitwise(op, a, b)
        for op in ("bitand", "bitor", "bitxor")
    },
    **{op: lambda terms, a, op=op: terms.rounding(op, a) for op in _ROUNDING},
    "round_to": Terms.round_to,
    "to_float": Terms.real,
    "ge0": lambda terms, a: terms.compare(">=", a, terms.number(0)),
    "eq0": lambda terms, a: terms.compare("==", a, terms.number(0)),
    "feq": _make_comparison("=="),
    "flt": _make_comparison("<"),
    "fle": _make_comparison("<="),
    "not": Terms.negation,
    "and": lambda terms, *args: terms.connect("and", *args),
    "or": lambda terms, *args: terms.connect("or", *args),
    "ite": Terms.choice,
}
