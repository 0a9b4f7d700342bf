"""What is proven, and from what: one row per kind of reasoning."""

import itertools
import math
import sys
from collections import Counter

import pytest

from graphport.symbolic import (
    Expr,
    Scope,
    abs_,
    and_,
    ceil,
    eq,
    floor,
    ge,
    gt,
    ite,
    le,
    lt,
    max_,
    min_,
    mul,
    ne,
    or_,
    sqrt,
    to_float,
    truediv,
)


class Symbols:
    """b, n, m >= 0; s >= 2; h, w >= 4; small in 1..8; u, v unknown integers; f an unknown float."""

    def __init__(self) -> None:
        self.scope = Scope()
        for name in ("b", "n", "m"):
            setattr(self, name, self.scope.symbol(name, hint=6))
        self.s = self.scope.symbol("s", hint=16, lower=2)
        self.h = self.scope.symbol("h", hint=32, lower=4)
        self.w = self.scope.symbol("w", hint=32, lower=4)
        self.small = self.scope.symbol("small", hint=3, lower=1, upper=8)
        self.u, self.v = self.scope.fresh(), self.scope.fresh()
        self.f = self.scope.fresh(float)


# (facts, question, answer)
ROWS = {
    "declared range": (lambda x: [], lambda x: ge(x.s, 2), True),
    "declared range, refuted": (lambda x: [], lambda x: eq(x.s, 1), False),
    "upper bound": (lambda x: [], lambda x: le(x.small * 2, 16), True),
    "interval of a product": (lambda x: [], lambda x: ge(x.s * x.h, 8), True),
    "shared factor": (lambda x: [], lambda x: ge(x.b * x.s, x.b), True),
    "shared factor, twice": (lambda x: [], lambda x: ge(x.b * x.s * x.h, 2 * x.b * x.h), True),
    "a product of sums": (lambda x: [], lambda x: ge((x.h - 2) * (x.w - 2), 1), True),
    "a product of quotients": (
        lambda x: [],
        lambda x: ne(((x.h - 3) // 2 + 1) * ((x.w - 3) // 2 + 1), 0),
        True,
    ),
    "product with a factor that is not zero": (
        lambda x: [ne(x.b, 0)],
        lambda x: eq(x.b * x.s, 0),
        False,
    ),
    # floor division and modulo
    "remainder from below": (lambda x: [], lambda x: ge(x.n - 2 * (x.n // 2), 0), True),
    "remainder from above": (lambda x: [], lambda x: le(x.n - 2 * (x.n // 2), 1), True),
    "rounding up": (lambda x: [], lambda x: ge((x.n + 3) // 4 * 4, x.n), True),
    "rounding up, at most": (lambda x: [], lambda x: le((x.n + 7) // 8 * 8, x.n + 7), True),
    "a quotient is not larger": (lambda x: [], lambda x: le(x.n // 2, x.n), True),
    "a quotient of unknown sign": (lambda x: [], lambda x: le(x.u // 2, x.u), None),
    "quotient by a symbol": (lambda x: [], lambda x: le(x.n // x.s, x.n), True),
    "multiple of a quotient by a symbol": (
        lambda x: [],
        lambda x: le(x.s * (x.n // x.s), x.n),
        True,
    ),
    "modulo": (lambda x: [], lambda x: lt(x.u % 8, 8), True),
    "modulo by a symbol": (lambda x: [], lambda x: lt(x.n % x.s, x.s), True),
    "modulo is not larger": (lambda x: [], lambda x: le(x.n % x.s, x.n), True),
    "division with remainder": (lambda x: [], lambda x: eq(x.u // 3 * 3 + x.u % 3, x.u), True),
    "division with remainder by a symbol": (
        lambda x: [],
        lambda x: eq(x.n // x.s * x.s + x.n % x.s, x.n),
        True,
    ),
    "padding to a multiple": (lambda x: [], lambda x: eq((x.n + (-x.n) % 4) % 4, 0), True),
    "padding two sizes to a multiple": (
        lambda x: [],
        lambda x: eq(
            (x.n + (-x.n) % 4) * (x.s + (-x.s) % 4),
            16 * ((x.n + (-x.n) % 4) // 4) * ((x.s + (-x.s) % 4) // 4),
        ),
        True,
    ),
    "an exact quotient": (lambda x: [eq(x.n % 4, 0)], lambda x: eq(x.n // 4 * 4, x.n), True),
    "an exact quotient by a symbol": (
        lambda x: [eq(x.n % x.s, 0)],
        lambda x: eq(x.n // x.s * x.s, x.n),
        True,
    ),
    "a range of a quotient": (lambda x: [ge(x.n // 4, 3)], lambda x: ge(x.n, 12), True),
    "a range of a quotient from above": (lambda x: [le(x.n // 4, 3)], lambda x: le(x.n, 15), True),
    # min, max, abs, choice
    "min": (lambda x: [], lambda x: le(min_(x.n, x.m), x.m), True),
    "max": (lambda x: [], lambda x: ge(max_(x.n, x.m) + 1, x.m), True),
    "max is one of its operands": (lambda x: [], lambda x: le(max_(x.n, 1), x.n + 1), True),
    "min in a product": (lambda x: [], lambda x: le(x.b * min_(x.n, x.m), x.b * x.m), True),
    "min of what is learnt": (lambda x: [ge(min_(x.u, x.v), 2)], lambda x: ge(x.u, 2), True),
    "max of what is learnt": (lambda x: [le(max_(x.u, x.v), 2)], lambda x: le(x.v, 2), True),
    "clamp": (lambda x: [], lambda x: le(max_(0, min_(x.u, x.n)), x.n), True),
    "abs": (lambda x: [], lambda x: ge(abs_(x.u), x.u), True),
    "choice": (lambda x: [], lambda x: ge(ite(ge(x.u, 0), x.n, x.s), 0), True),
    # facts
    "a fact itself": (lambda x: [ge(x.n, x.m)], lambda x: ge(x.n, x.m), True),
    "a fact and some room": (lambda x: [ge(x.n, x.m)], lambda x: ge(x.n + 3, x.m), True),
    "a fact against": (lambda x: [gt(x.n, x.m)], lambda x: le(x.n, x.m), False),
    "a fact, scaled": (lambda x: [ge(x.n, x.m)], lambda x: ge(3 * x.n, 3 * x.m - 2), True),
    "a fact and a nonneg rest": (lambda x: [ge(x.n, x.m)], lambda x: ge(2 * x.n, x.m), True),
    "two facts": (lambda x: [ge(x.n, x.m), ge(x.m, x.u)], lambda x: ge(x.n, x.u), True),
    "not equal": (lambda x: [ne(x.n, x.m)], lambda x: eq(x.m, x.n), False),
    "not equal at the end of a range": (lambda x: [ne(x.n, 0)], lambda x: ge(x.n, 1), True),
    "ends of a range, in any order": (
        lambda x: [ne(x.n, 1), ne(x.n, 0)],
        lambda x: ge(x.n, 2),
        True,
    ),
    "a nonzero product has nonzero factors": (
        lambda x: [ne(x.b * x.n, 0)],
        lambda x: ge(x.n, 1),
        True,
    ),
    "between two bounds": (lambda x: [ge(x.u, 4), le(x.u, 4)], lambda x: eq(x.u, 4), True),
    # equalities
    "equal": (lambda x: [eq(x.n, x.m)], lambda x: eq(x.b * x.n, x.m * x.b), True),
    "equal, through a third": (
        lambda x: [eq(x.n, x.u), eq(x.m, x.u)],
        lambda x: eq(x.n, x.m),
        True,
    ),
    "ranges of equals": (lambda x: [eq(x.n, x.s)], lambda x: ge(x.n, 2), True),
    "a value": (lambda x: [eq(x.n, 7)], lambda x: eq(x.n % 2, 1), True),
    "a linear equation": (lambda x: [eq(x.u, 2 * x.n + 1)], lambda x: eq(x.u % 2, 0), False),
    "an equation without unit coefficient": (
        lambda x: [eq(2 * x.u, 3 * x.v)],
        lambda x: ge(4 * x.u, 6 * x.v),
        True,
    ),
    "a product": (lambda x: [eq(x.u, x.n * x.m)], lambda x: eq(x.n * x.m, x.u), True),
    "an equation of products": (
        lambda x: [eq(x.n * x.m, x.b * x.s)],
        lambda x: eq(x.b * x.s, x.m * x.n),
        True,
    ),
    "what was known before the equation": (
        lambda x: [ge(x.u, x.n), eq(x.u, x.m)],
        lambda x: ge(x.m, x.n),
        True,
    ),
    "a quotient of what turned out equal": (
        lambda x: [eq(x.u // 2, x.n), eq(x.u, x.m)],
        lambda x: eq(x.m // 2, x.n),
        True,
    ),
    # connectives
    "and": (lambda x: [], lambda x: and_(ge(x.n, 3), ge(x.s, 2)), None),
    "and, refuted": (lambda x: [], lambda x: and_(ge(x.n, 3), le(x.s, 1)), False),
    "or": (lambda x: [], lambda x: or_(ge(x.n, 3), ge(x.s * x.h, 2)), True),
    "parts of a learnt and": (lambda x: [and_(ge(x.n, 3), ge(x.m, 4))], lambda x: ge(x.m, 2), True),
    "a learnt or is itself": (
        lambda x: [or_(ge(x.n, 3), ge(x.m, 4))],
        lambda x: or_(ge(x.m, 4), ge(x.n, 3)),
        True,
    ),
    # floats
    "float from integers": (lambda x: [], lambda x: lt(truediv(x.n, 3), -1.5), False),
    "float of a range": (lambda x: [], lambda x: ge(mul(x.small, 1.5), 1.25), True),
    "rounded": (lambda x: [], lambda x: ge(floor(mul(x.small, 1.3)), 1), True),
    "ceil of a root": (lambda x: [], lambda x: le(ceil(sqrt(x.small)), 3), True),
    "a float symbol may be nan": (lambda x: [], lambda x: lt(x.f, math.inf), None),
    "float of an integer": (lambda x: [], lambda x: ge(to_float(x.s), 1.5), True),
    # nothing to go by
    "unknown": (lambda x: [], lambda x: eq(x.n, x.m), None),
    "unknown bound": (lambda x: [], lambda x: ge(x.n, 1), None),
    "unknown data": (lambda x: [], lambda x: ge(x.u, 0), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_decide(name):
    facts, question, answer = ROWS[name]
    x = Symbols()
    for fact in facts(x):
        x.scope.assume(fact)
    recorded = list(x.scope.facts)
    cond = question(x)
    assert x.scope.decide(cond) is answer
    assert x.scope.decide(cond) is answer  # from memory
    assert x.scope.facts == recorded


def test_answers_improve_when_facts_arrive():
    x = Symbols()
    cond = ge(x.n, 3)
    assert x.scope.decide(cond) is None
    x.scope.assume(ge(x.n, 5))
    assert x.scope.decide(cond) is True


def test_a_divisor_that_turns_out_zero_is_no_fault_of_the_question():
    x = Symbols()
    e = x.n // x.u
    x.scope.assume(eq(x.u, 0))
    assert x.scope.decide(ge(e, 3)) is None
    assert x.scope.simplify(e) is e


def test_work_is_bounded():
    """Many facts and many terms: no proof, but an answer after a few thousand calls."""
    scope = Scope()
    xs = [scope.symbol(f"x{i}", hint=i + 2) for i in range(12)]
    for a, b in itertools.pairwise(xs):
        scope.assume(le(a // 2 * 3, b * b + min_(a, b)))
    total: Expr | int = 0
    for i, a in enumerate(xs):
        total += (-1) ** i * max_(a // 3, xs[i - 1] % 5)
    cond = ge(total, 1)
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, _: calls.update((event,)))
    try:
        scope.decide(cond)
    finally:
        sys.setprofile(None)
    assert calls["call"] < 100_000


def test_what_is_known_of_an_operation_holds_for_an_equal_operand():
    x = Symbols()
    x.scope.assume(le(x.n % 4, 2))
    x.scope.assume(eq(x.n, 3 * x.m))
    assert x.scope.decide(le((3 * x.m) % 4, 2)) is True


def test_ranges_of_floats_that_touch():
    scope = Scope()
    root = sqrt(to_float(scope.symbol("n", hint=5, lower=4, upper=9)))
    assert scope.decide(lt(root, 2.0)) is False
    assert scope.decide(le(root, 2.0)) is None
    assert scope.decide(le(root, 3.0)) is True
    assert scope.decide(lt(root, 3.0)) is None
    assert scope.decide(eq(root, 3.5)) is False


def test_numbers_from_data_are_told_in_terms_of_each_other():
    scope = Scope()
    n, u, v = scope.symbol("n", hint=5), scope.fresh(), scope.fresh()
    scope.assume(eq(v, u + 1))
    assert scope.simplify(v) is u + 1
    scope.assume(eq(n, u * 2))  # but a size of the example not in terms of data
    assert scope.simplify(n) is n
    assert scope.decide(eq(2 * v, n + 2)) is True


def test_a_factor_that_may_be_negative():
    scope = Scope()
    a, b = scope.symbol("a", hint=2), scope.symbol("b", hint=3)
    sign = scope.symbol("sign", hint=1, lower=-4, upper=4)
    assert scope.decide(ge(sign * a + sign * b, 0)) is None
    scope.assume(ge(sign, 0))
    assert scope.decide(ge(sign * a + sign * b, 0)) is True
