"""What is learnt in a branch holds there alone; guards on input sizes outlast it."""

from __future__ import annotations

from graphport.symbolic import Scope, eq, ge, gt, le, lt


def scope_with_sizes():
    scope = Scope()
    n = scope.symbol("n", hint=8, lower=2, upper=20)
    m = scope.symbol("m", hint=8, lower=2, upper=20)
    return scope, n, m, scope.fresh()


def test_the_condition_is_known_inside_and_forgotten_after():
    scope, n, _m, _u = scope_with_sizes()
    assert scope.decide(gt(n, 4)) is None
    with scope.branch(gt(n, 4)):
        assert scope.decide(gt(n, 4)) is True
        assert scope.decide(ge(n * 2, 10)) is True
        assert scope.range(n).lower == 5
    assert scope.decide(gt(n, 4)) is None
    assert scope.decide(ge(n * 2, 10)) is None
    assert scope.range(n).lower == 2


def test_equalities_are_taken_back():
    scope, n, m, _u = scope_with_sizes()
    with scope.branch(eq(n, 4)):
        assert scope.simplify(n + m) is scope.simplify(m + 4)
        with scope.branch(eq(m, n)):
            assert scope.simplify(n * m) == 16
        assert scope.simplify(m) is m
    assert scope.simplify(n) is n
    assert scope.decide(eq(n * m, 16)) is None


def test_assertions_hold_inside_only():
    scope, n, m, u = scope_with_sizes()
    with scope.branch():
        assert scope.expect(gt(u, 2)) and scope.expect(le(n, m))
        assert scope.decide(gt(u, 1)) is True and scope.decide(gt(n, m)) is False
        assert len(scope.facts) == 2
    assert scope.facts == []
    assert scope.decide(gt(u, 1)) is None and scope.decide(gt(n, m)) is None


def test_guards_on_input_sizes_outlast_it():
    scope, n, m, _u = scope_with_sizes()
    with scope.branch():
        assert scope.guard(eq(n, m))
        assert scope.expect(lt(n, 15))
    assert [str(f.cond) for f in scope.facts] == [str(eq(n, m))]
    assert scope.decide(eq(n, m)) is True
    assert scope.decide(lt(n, 15)) is None


def test_where_the_example_does_not_come_it_refuses_nothing():
    scope, n, m, _u = scope_with_sizes()
    with scope.branch(le(n, 5)):
        assert scope.expect(lt(n, 4)) and scope.decide(lt(n, 4)) is True
        assert scope.expect(eq(m, 8)) and scope.expect(lt(m, 9))
    assert not scope.expect(lt(n, 4))
    assert scope.facts == []


def test_where_the_example_does_not_come_a_fixed_size_is_not_the_examples():
    scope, n, m, _u = scope_with_sizes()
    with scope.branch(eq(n, 3)):
        assert scope.hint(n) == 3 and scope.specialize(n) == 3 and scope.hint(n + m) == 11
        with scope.branch(gt(m, 4)):  # the example is on neither path
            assert scope.hint(n) == 3
    assert scope.hint(n) == 8
    assert scope.facts == []


def test_where_the_example_does_not_come_its_number_is_demanded_of_all():
    scope, n, _m, _u = scope_with_sizes()
    with scope.branch(le(n, 5)):
        assert scope.specialize(n) == 8
    assert [str(f.cond) for f in scope.facts] == [str(eq(n, 8))]
    assert scope.simplify(n) == 8


def test_symbols_made_inside_keep_their_range():
    scope, _n, _m, _u = scope_with_sizes()
    with scope.branch():
        inner = scope.fresh(lower=0)
        scope.expect(le(inner, 4))
    assert (scope.range(inner).lower, scope.range(inner).upper) == (0, 4)


def test_a_branch_that_nobody_takes():
    scope, _n, _m, u = scope_with_sizes()
    scope.expect(gt(u, 4))
    with scope.branch(lt(u, 3)):
        assert scope.decide(gt(u, 4)) is not None
    assert scope.decide(gt(u, 4)) is True
