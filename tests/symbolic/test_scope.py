"""Symbols, hints, facts, and what is recorded when a question is asked."""

import math

import pytest

from graphport.errors import DataDependentError, ShapeError
from graphport.symbolic import Range, Scope, eq, ge, le, lt, ne, not_, sqrt, symbols, to_float
from graphport.symbolic.bridge import to_torch


def texts(scope):
    return [str(fact) for fact in scope.facts]


def test_symbols():
    scope = Scope()
    n = scope.symbol("n", hint=4, lower=2, upper=8, origin="x.shape[0]")
    u, f = scope.fresh(lower=0), scope.fresh(float)
    assert (n.name, n.index, n.type) == ("n", 0, int)
    assert (u.name, f.name, f.type) == ("u0", "f1", float)
    assert scope.symbols == (n, u, f)
    assert scope.declared(n) == Range(2, 8)
    assert scope.range(u) == Range(0, math.inf)
    assert scope.origins[n] == "x.shape[0]"
    assert scope.is_backed(n)
    assert not scope.is_backed(n + u)
    assert n.scope is scope


def test_a_bool_symbol():
    scope = Scope()
    flag = scope.fresh(bool)
    assert scope.declared(flag) == Range(0, 1)
    assert scope.decide(flag) is None
    scope.assume(flag)
    assert scope.guard(flag) is True
    assert scope.guard(not_(flag)) is False


def test_names_are_unique():
    scope = Scope()
    scope.symbol("u0")
    assert scope.fresh().name == "u1"
    with pytest.raises(ValueError, match="already has a symbol named 'u0'"):
        scope.symbol("u0")
    with pytest.raises(ValueError, match=r"no value in \[4, 2\]"):
        scope.symbol("v", lower=4, upper=2)


def test_hints():
    scope = Scope()
    n, m, u = scope.symbol("n", hint=6), scope.symbol("m", hint=4), scope.fresh()
    assert scope.hint(n * m // 5) == 4
    assert scope.hint(sqrt(m)) == 2.0
    assert scope.hint(ge(n, m)) is True
    assert scope.hint(7) == 7
    assert scope.hint(n + u) is None
    scope.assume(eq(u, 2 * m))
    assert scope.hint(n + u) == 14


def test_guard_records_the_branch_of_the_example():
    scope = Scope()
    n = scope.symbol("n", hint=6)
    assert scope.guard(ge(n, 4)) is True
    assert scope.guard(eq(n, 9)) is False
    assert texts(scope) == ["n >= 4", "n != 9"]
    (fact, _) = scope.facts
    assert fact.kind == "guard"
    assert fact.where.function == "test_guard_records_the_branch_of_the_example"
    assert "scope.guard(ge(n, 4))" in fact.where.text
    # What follows is not recorded again.
    assert scope.guard(ge(n, 2)) is True
    assert scope.guard(lt(n, 4)) is False
    assert len(scope.facts) == 2


def test_guard_uses_the_true_value_of_0_and_1():
    scope = Scope()
    n = scope.symbol("n", hint=0)
    assert scope.guard(ne(n, 0)) is False
    assert texts(scope) == ["n == 0"]
    assert scope.simplify(n + 1) == 1


def test_guard_without_a_hint():
    scope = Scope()
    u = scope.fresh()
    with pytest.raises(DataDependentError) as caught:
        scope.guard(ge(u, 3))
    assert "data-dependent expression u0 >= 3" in str(caught.value)
    assert caught.value.fix == ["torch._check(u0 >= 3)", "torch._check(u0 <= 2)"]
    assert caught.value.where.function == "test_guard_without_a_hint"
    with pytest.raises(DataDependentError, match="Python needs its value"):
        scope.specialize(u)
    assert scope.facts == []


def test_an_assert_on_data_is_an_expectation():
    scope = Scope()
    # Compiled here because pytest rewrites the asserts of test files.
    program = compile("assert cond", "program.py", "exec")
    u = scope.fresh()
    exec(program, {"cond": to_torch(ge(u, 3))})
    assert [(str(fact), fact.kind) for fact in scope.facts] == [("u0 >= 3", "expect")]
    assert scope.decide(ge(u, 1)) is True


def test_expect():
    scope = Scope()
    n, u = scope.symbol("n", hint=6), scope.fresh()
    assert scope.expect(ge(u, 0), message="must not be negative")
    assert scope.expect(ge(u, 0))
    assert scope.expect(ge(n, 2))
    assert scope.expect(eq(n, 7)) is False  # not so at the example sizes
    assert scope.expect(lt(u, 0)) is False
    assert [(str(f), f.kind, f.message) for f in scope.facts] == [
        ("u0 >= 0", "expect", "must not be negative"),
        ("n >= 2", "expect", ""),
    ]


def test_assume():
    scope = Scope()
    n = scope.symbol("n", hint=6)
    scope.assume(le(n, 64), reason="declared")
    scope.assume(le(n, 100))
    assert [(str(f), f.kind, f.message) for f in scope.facts] == [
        ("n <= 64", "assumed", "declared")
    ]
    assert scope.range(n) == Range(0, 64)
    assert scope.declared(n) == Range(0, math.inf)
    with pytest.raises(ShapeError, match="n >= 65 cannot hold"):
        scope.assume(ge(n, 65))


def test_a_contradiction_that_only_learning_finds():
    scope = Scope()
    u = scope.fresh(lower=0, upper=1)
    scope.assume(ne(u, 0))
    assert scope.simplify(u) == 1
    with pytest.raises(ShapeError):
        scope.assume(ne(u, 1))


def test_specialize():
    scope = Scope()
    n = scope.symbol("n", hint=6)
    assert scope.specialize(n * 2) == 12
    assert texts(scope) == ["n == 6"]
    assert scope.specialize(n) == 6
    assert scope.specialize(ge(n, 2)) is True
    assert scope.specialize(5) == 5
    assert len(scope.facts) == 1


def test_specialize_a_float():
    scope = Scope()
    n = scope.symbol("n", hint=4)
    assert scope.specialize(sqrt(n)) == 2.0
    assert texts(scope) == ["math.sqrt(float(n)) == 2.0"]
    assert scope.specialize(to_float(n)) == 4.0
    assert texts(scope)[1:] == ["n == 4"]


def test_an_equality_substitutes_the_newer_symbol():
    scope = Scope()
    a, b, c = (scope.symbol(name, hint=8) for name in "abc")
    scope.guard(eq(b, c))
    assert scope.simplify(c) is b
    scope.guard(eq(a, b))
    assert scope.simplify(c) is scope.simplify(b) is a
    assert scope.same(a * 2, b + c)
    assert not scope.same(a, a + 1)
    assert scope.same(3, 3)
    assert texts(scope) == ["b == c", "a == b"]


def test_data_dependent_symbols_are_told_by_backed_ones():
    scope = Scope()
    u = scope.fresh(lower=0, upper=10)
    n = scope.symbol("n", hint=4)
    scope.assume(eq(u, n))
    assert scope.simplify(u) is n
    assert scope.range(n) == Range(0, 10)
    v = scope.fresh()
    scope.assume(eq(n, 2 * v))  # n keeps its hint; the equation is kept as it is
    assert scope.simplify(n) is n
    assert scope.decide(ge(2 * v, n)) is True


def test_a_range_of_one_value_is_that_value():
    scope = Scope()
    n = scope.symbol("n", hint=4, lower=4)
    scope.guard(le(n, 4))
    assert scope.simplify(n * n) == 16


def test_divisibility_makes_quotients_exact():
    scope = Scope()
    n = scope.symbol("n", hint=8)
    assert scope.guard(eq(n % 4, 0))
    assert scope.same(n // 4 * 4, n)
    assert scope.same(n // 4 * 8 + 1, 2 * n + 1)
    assert scope.simplify(n % 4) == 0


def test_operator_nests():
    scope = Scope()
    with scope.operator():
        with scope.operator():
            assert scope.internal
        assert scope.internal
    assert not scope.internal


def test_facts_read_as_conditions():
    scope = Scope()
    n, m = scope.symbol("n", hint=8), scope.symbol("m", hint=4)
    scope.guard(not_(eq(n, m)))
    assert str(scope.facts[0]) == "n != m"
    assert symbols(scope.facts[0].cond) == (n, m)
