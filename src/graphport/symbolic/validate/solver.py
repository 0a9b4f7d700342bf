"""States claims to z3.

Every term becomes a value and the condition under which Python computes one. The claim is proven
when z3 finds no values at which the assumptions hold, `before` is defined, and `after` is undefined
or different.

Division by a symbol, powers by one and bits of integers are functions that z3 knows some laws of.
Values that z3 proposes are computed in Python; where such a function is in fact something else
there, z3 is told and asked again. Effort is limited by z3's own count of steps, not by time, so
that the answer does not depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import z3

from graphport.symbolic import Range
from graphport.symbolic.validate import Claim, Counterexample
from graphport.symbolic.validate.terms import (
    EVALUATORS,
    Exact,
    Inexact,
    Term,
    Undefined,
    evaluate_term,
)

# z3's steps for one answer: a few seconds.
EFFORT = 10_000_000
# How often z3 gets further values of a function that it knows some laws of.
_MAX_ROUNDS = 30
# Powers up to this are written out as products.
_MAX_PRODUCT = 32


class Undecided(Exception):
    """No proof and no counterexample; the text says why."""


class Impossible(Exception):
    """The assumptions hold for no values."""


def prove(claim: Claim) -> Counterexample | None:
    """None if the claim is proven, else a counterexample. Raises Undecided and Impossible."""
    encoder = _Encoder(claim)
    solver = encoder.solver
    solver.set("rlimit", EFFORT)
    solver.add(*encoder.assumptions())
    before, after = claim.before, claim.after
    same = encoder.equal(before, after)
    wrong = z3.Not(z3.And(encoder.defined(after), same))
    solver.push()
    solver.add(encoder.defined(before), wrong)
    for _ in range(_MAX_ROUNDS):
        answer = solver.check()
        if answer == z3.unsat:
            solver.pop()
            if claim.assume and solver.check() == z3.unsat:
                raise Impossible
            return None
        if answer == z3.unknown:
            raise Undecided(f"z3 gave up ({solver.reason_unknown()})")
        env = encoder.values(solver.model())
        found = claim.refute(env)
        if found is not None:
            return found
        if not encoder.refine(env):
            raise Undecided("it depends on functions of which only some laws are known")
    raise Undecided("it depends on values of bits or powers that were not found")


class _Encoder:
    """z3's view of the terms of one claim, in a context of its own."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.context = z3.Context()
        self.solver = z3.SimpleSolver(ctx=self.context)
        self._sorts = {
            int: z3.IntSort(self.context),
            float: z3.RealSort(self.context),
            bool: z3.BoolSort(self.context),
        }
        self._values: dict[Term, z3.ExprRef] = {}
        self._defined: dict[Term, z3.ExprRef] = {}
        # Functions applied: (z3's function, what it computes, the arguments).
        self._applied: list[tuple[z3.FuncDeclRef, Callable[..., Exact], tuple[Term, ...]]] = []
        self._told: set[tuple[str, tuple[Exact, ...]]] = set()
        self._symbols = {
            name: z3.Const(name, self._sorts[symbol.type]) for name, symbol in claim.symbols.items()
        }

    # Numbers

    def constant(self, value: Exact) -> z3.ExprRef:
        if type(value) is bool:
            return z3.BoolVal(value, self.context)
        if type(value) is int:
            return z3.IntVal(value, self.context)
        return z3.RealVal(str(value), self.context)

    def assumptions(self) -> Iterator[z3.ExprRef]:
        for name, r in self.claim.ranges.items():
            if self.claim.symbols[name].type is not bool:
                yield from self._within(self._symbols[name], r)
        for cond in self.claim.assume:
            yield self.defined(cond)
            yield self.value(cond)

    def _within(self, symbol: z3.ExprRef, r: Range) -> Iterator[z3.ExprRef]:
        for bound, holds in ((r.lower, symbol.__ge__), (r.upper, symbol.__le__)):
            if abs(bound) != math.inf:
                exact = Fraction(bound)
                yield holds(self.constant(exact if exact.denominator > 1 else int(exact)))

    def equal(self, a: Term, b: Term) -> z3.ExprRef:
        x, y = self.value(a), self.value(b)
        if a.type is not b.type:
            x, y = (z3.ToReal(v) if t.type is int else v for v, t in ((x, a), (y, b)))
        return x == y

    def values(self, model: z3.ModelRef) -> dict[str, Exact]:
        """The values of the symbols in a model."""
        env: dict[str, Exact] = {}
        for name, symbol in self._symbols.items():
            value = model.eval(symbol, model_completion=True)
            if z3.is_bool(value):
                env[name] = z3.is_true(value)
            elif z3.is_int_value(value):
                env[name] = value.as_long()
            elif z3.is_rational_value(value):
                env[name] = Fraction(value.numerator_as_long(), value.denominator_as_long())
            else:
                raise Undecided(f"z3 proposes an irrational {name}")
        return env

    # Terms

    def value(self, term: Term) -> z3.ExprRef:
        known = self._values.get(term)
        if known is None:
            known = self._values[term] = self._encode(term)
        return known

    def _encode(self, term: Term) -> object:
        if term.op == "number":
            return self.constant(term.value)
        if term.op == "symbol":
            return self._symbols[term.value]
        if any(part.op == "infinite" for part in term.args):
            # Every number compares with an infinity, or with NaN, as zero does.
            numbers = [part.value if part.op == "infinite" else 0 for part in term.args]
            return self.constant(bool(EVALUATORS[term.op](*numbers)))
        special = getattr(self, f"_{term.op}", None)
        if special is not None:
            return special(term)
        args = [self.value(part) for part in term.args]
        plain = _Z3_OPERATORS.get(term.op)
        return plain(*args) if plain is not None else self._apply(term.op, *term.args)

    def _apply(
        self, op: str, *args: Term, laws: Callable[..., Iterator[z3.ExprRef]] | None = None
    ) -> z3.ExprRef:
        """A function of which z3 knows no more than `laws`."""
        result = int if all(part.type is int for part in args) else float
        sorts = [self._sorts[part.type] for part in args]
        function = z3.Function(f"{op} {len(args)}", *sorts, self._sorts[result])
        values = [self.value(part) for part in args]
        applied = function(*values)
        self._applied.append((function, EVALUATORS[op], args))
        if laws is not None:
            self.solver.add(*laws(function, *values))
        return applied

    def refine(self, env: dict[str, Exact]) -> bool:
        """Assert the values of functions at these arguments; False if z3 has them all."""
        news = []
        for function, compute, terms in self._applied:
            try:
                args = tuple(evaluate_term(term, env) for term in terms)
                result = compute(*args)
            except (Undefined, Inexact):
                continue
            if (function.name(), args) not in self._told:
                self._told.add((function.name(), args))
                news.append(function(*map(self.constant, args)) == self.constant(result))
        self.solver.add(*news)
        return bool(news)

    def _floordiv(self, term: Term) -> z3.ExprRef:
        a, b = term.args
        x, y = self.value(a), self.value(b)
        if term.type is float:
            return z3.ToReal(z3.ToInt(x / y))
        if b.op == "number":
            # z3 rounds down where the divisor is positive.
            return x / y if b.value > 0 else -x / self.constant(-b.value or 1)
        return self._apply("floordiv", a, b, laws=_floor_laws)

    def _mod(self, term: Term) -> z3.ExprRef:
        """a - b*(a // b), for either sign of b."""
        a, b = term.args
        x, y = self.value(a), self.value(b)
        if b.op == "number" and term.type is int and b.value > 0:
            return x % y
        return x - y * self._floordiv(term)

    def _natural_pow(self, term: Term) -> object:
        base, exponent = term.args
        if exponent.op == "number" and 0 <= exponent.value <= _MAX_PRODUCT:
            return self._product(self.value(base), exponent.value)
        return self._apply("natural_pow", base, exponent, laws=_power_laws)

    def _pow(self, term: Term) -> z3.ExprRef:
        base, exponent = term.args
        n = _read_integer(exponent)
        if n is None or abs(n) > _MAX_PRODUCT:
            return self._apply("pow", base, exponent)
        product = self._product(self.value(base), abs(n))
        return product if n >= 0 else 1 / product

    def _product(self, x: z3.ExprRef, n: int) -> z3.ExprRef:
        result = self.constant(1) if x.is_int() else self.constant(Fraction(1))
        for _ in range(n):
            result = result * x
        return result

    def _power_of_two(self, count: Term) -> z3.ExprRef:
        if count.op == "number" and 0 <= count.value <= 4096:
            return self.constant(1 << count.value)
        return self._apply("natural_pow", Term("number", int, value=2), count, laws=_power_laws)

    def _lshift(self, term: Term) -> object:
        return self.value(term.args[0]) * self._power_of_two(term.args[1])

    def _rshift(self, term: Term) -> z3.ExprRef:
        # The divisor is positive, where z3 rounds down.
        return self.value(term.args[0]) / self._power_of_two(term.args[1])

    def _bitand(self, term: Term) -> z3.ExprRef:
        result = self._apply("bitand", *term.args, laws=_bitand_laws)
        for a, mask in (term.args, term.args[::-1]):
            if mask.op == "number" and mask.value > 0 and not mask.value & (mask.value + 1):
                # The lowest bits are a remainder.
                self.solver.add(result == self.value(a) % self.constant(mask.value + 1))
        return result

    def _bitor(self, term: Term) -> object:
        a, b = map(self.value, term.args)
        return a + b - self._bitand(term)

    def _bitxor(self, term: Term) -> object:
        a, b = map(self.value, term.args)
        return a + b - 2 * self._bitand(term)

    def _sqrt(self, term: Term) -> object:
        return self._apply("sqrt", *term.args, laws=_root_laws)

    def _round_to(self, term: Term) -> object:
        a, digits = term.args
        unit = self.constant(Fraction(10) ** digits.value)
        x = self.value(a)
        rounded = _round_half_to_even((z3.ToReal(x) if term.type is int else x) * unit)
        result = z3.ToReal(rounded) / unit
        return z3.ToInt(result) if term.type is int else result

    # Where a term has a value

    def defined(self, term: Term) -> z3.ExprRef:
        known = self._defined.get(term)
        if known is None:
            known = self._defined[term] = self._definedness(term)
        return known

    def _definedness(self, term: Term) -> object:
        parts = [self.defined(part) for part in term.args]
        if term.op in ("and", "or"):
            left = self.value(term.args[0])
            settled = z3.Not(left) if term.op == "and" else left
            return z3.And(parts[0], z3.Or(settled, parts[1]))
        if term.op == "ite":
            return z3.And(parts[0], z3.If(self.value(term.args[0]), parts[1], parts[2]))
        domain = _DOMAINS.get(term.op)
        if domain is not None:
            parts.append(domain(*map(self.value, term.args)))
        kept = [part for part in parts if not z3.is_true(part)]
        return z3.And(*kept) if kept else self.constant(True)


def _read_integer(exponent: Term) -> int | None:
    """The integer that an exponent is, if it is a number."""
    while exponent.op == "to_float":
        (exponent,) = exponent.args
    if exponent.op != "number" or exponent.value != int(exponent.value):
        return None
    return int(exponent.value)


def _floor_laws(f: z3.FuncDeclRef, a: z3.ExprRef, b: z3.ExprRef) -> Iterator[z3.ExprRef]:
    q = f(a, b)
    yield z3.Implies(b > 0, z3.And(b * q <= a, a < b * q + b))
    yield z3.Implies(b < 0, z3.And(b * q >= a, a > b * q + b))


def _power_laws(f: z3.FuncDeclRef, a: z3.ExprRef, n: z3.ExprRef) -> Iterator[z3.ExprRef]:
    p = f(a, n)
    yield z3.Implies(n == 0, p == 1)
    yield z3.Implies(n == 1, p == a)
    yield z3.Implies(z3.And(n >= 0, a == 1), p == 1)
    yield z3.Implies(z3.And(n > 0, a == 0), p == 0)
    yield z3.Implies(z3.And(n >= 0, a >= 2), p > n)


def _bitand_laws(f: z3.FuncDeclRef, a: z3.ExprRef, b: z3.ExprRef) -> Iterator[z3.ExprRef]:
    r = f(a, b)
    yield r == f(b, a)
    yield z3.Implies(a == b, r == a)
    for x, y in ((a, b), (b, a)):
        yield z3.Implies(x == 0, r == 0)
        yield z3.Implies(x == -1, r == y)
        yield z3.Implies(x >= 0, z3.And(r >= 0, r <= x))
    yield z3.Implies(z3.And(a < 0, b < 0), r < 0)


def _root_laws(f: z3.FuncDeclRef, a: z3.ExprRef) -> Iterator[z3.ExprRef]:
    r = f(a)
    yield z3.Implies(a >= 0, z3.And(r >= 0, r * r == a))


def _round_half_to_even(x: z3.ExprRef) -> z3.ExprRef:
    down = z3.ToInt(x)
    left = 2 * (x - z3.ToReal(down))
    return z3.If(z3.Or(left < 1, z3.And(left == 1, down % 2 == 0)), down, down + 1)


_Z3_OPERATORS: dict[str, Callable[..., z3.ExprRef]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": lambda a: z3.If(a >= 0, a, -a),
    "truediv": lambda a, b: a / b,
    "min": lambda a, b: z3.If(b < a, b, a),
    "max": lambda a, b: z3.If(b > a, b, a),
    "floor": z3.ToInt,
    "ceil": lambda a: -z3.ToInt(-a),
    "trunc": lambda a: z3.If(a >= 0, z3.ToInt(a), -z3.ToInt(-a)),
    "round": _round_half_to_even,
    "to_float": z3.ToReal,
    "to_int": lambda a: z3.If(a, z3.IntVal(1, a.ctx), z3.IntVal(0, a.ctx)),
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "not": z3.Not,
    **dict.fromkeys(("and", "both"), z3.And),
    **dict.fromkeys(("or", "either"), z3.Or),
    "ite": z3.If,
}


def _divisor_domain(a: object, b: object) -> bool:
    return b != 0


def _power_domain(a: z3.ExprRef, n: z3.ExprRef) -> z3.ExprRef:
    return z3.Or(a > 0, z3.And(a == 0, n >= 0), z3.And(a < 0, z3.IsInt(n)))


def _count_domain(a: object, n: z3.ExprRef) -> bool:
    return n >= 0


_DOMAINS: dict[str, Callable[..., z3.ExprRef]] = {
    **dict.fromkeys(("floordiv", "mod", "truediv"), _divisor_domain),
    **dict.fromkeys(("natural_pow", "lshift", "rshift"), _count_domain),
    "pow": _power_domain,
    "sqrt": lambda a: a >= 0,
    **dict.fromkeys(("log", "log2", "log10"), lambda a: a > 0),
    **dict.fromkeys(("asin", "acos"), lambda a: z3.And(a >= -1, a <= 1)),
}
