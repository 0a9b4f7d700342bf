"""Interval arithmetic contains every value that the operation can take."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphport.symbolic import Range
from graphport.symbolic.evaluation import MEANING
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.ranges import INTERVALS, linear, monomial
from tests.symbolic.test_soundness import MANY, UNDEFINED

BINARY = ("floordiv", "mod", "min", "max", "bitand", "bitor", "bitxor", "truediv")
FLOAT_BINARY = ("fadd", "fmul", "fdiv", "fmin", "fmax", "ffloordiv", "fmod")
FLOAT_UNARY = ("floor", "ceil", "trunc", "round", "fneg", "fabs", *FUNCTIONS)

bounds = st.tuples(st.integers(-6, 6), st.integers(0, 5), st.booleans(), st.booleans())


def interval(spec, scale=1):
    """A range, perhaps open to one side, and sample members of it."""
    low, width, no_lower, no_upper = spec
    members = [x * scale for x in range(low, low + width + 1)]
    r = Range(-math.inf if no_lower else members[0], math.inf if no_upper else members[-1])
    members += [-40 * scale] * no_lower + [40 * scale] * no_upper
    return r, members


def check(kind, *specs, scale=1):
    ranges, members = zip(*(interval(spec, scale) for spec in specs), strict=True)
    result = INTERVALS[kind](*ranges)
    for values in itertools.product(*members):
        try:
            value = MEANING[kind](*values)
        except UNDEFINED:
            continue
        assert value in result, (kind, ranges, values, value, result)


@pytest.mark.parametrize("kind", BINARY)
@MANY
@given(a=bounds, b=bounds)
def test_integer_operations(kind, a, b):
    check(kind, a, b)


@pytest.mark.parametrize("kind", FLOAT_BINARY)
@MANY
@given(a=bounds, b=bounds)
def test_float_operations(kind, a, b):
    check(kind, a, b, scale=0.75)


@pytest.mark.parametrize("kind", FLOAT_UNARY)
@MANY
@given(a=bounds)
def test_float_functions(kind, a):
    check(kind, a, scale=0.75)


@pytest.mark.parametrize("kind", ["pow", "lshift", "rshift"])
@MANY
@given(a=bounds, n=st.tuples(st.integers(0, 4), st.integers(0, 3), st.just(False), st.booleans()))
def test_powers_and_shifts(kind, a, n):
    check(kind, a, n)


@MANY
@given(st.lists(st.tuples(bounds, st.integers(1, 3)), min_size=1, max_size=3), st.integers(-3, 3))
def test_sums_and_products(parts, const):
    ranges = [(interval(spec)[0], n) for spec, n in parts]
    members = [interval(spec)[1] for spec, _ in parts]
    product, total = monomial(ranges), linear([(r, (-1) ** n * n) for r, n in ranges], const)
    for values in itertools.product(*members):
        powers = [x**n for x, (_, n) in zip(values, parts, strict=True)]
        assert math.prod(powers) in product
        terms = [(-1) ** n * n * x for x, (_, n) in zip(values, parts, strict=True)]
        assert sum(terms) + const in total


def test_set_operations():
    assert Range(2, 8) & Range(4, math.inf) == Range(4, 8)
    assert Range(2, 3) | Range(7, 8) == Range(2, 8)
    assert 5 in Range(2, math.inf)
    assert 1 not in Range(2, math.inf)
    assert (Range(2, 3) & Range(5, 6)).empty
    assert Range(4, 4).is_single
    assert hash(Range(1, 2)) == hash(Range(1, 2))
    assert Range(1, 2) != (1, 2)
