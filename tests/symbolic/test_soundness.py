"""Nothing is ever rewritten or proven that does not hold: random expressions against Python."""

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from graphport.symbolic import Expr, evaluate, not_
from tests.symbolic import trees

MANY = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
# What Python raises for: division by zero, the root of a negative, a float too large.
UNDEFINED = (ZeroDivisionError, OverflowError, ValueError)


def build(tree, env):
    """The expression of a tree; an example that Python cannot compute anywhere is thrown away."""
    try:
        return trees.build(tree, env)
    except UNDEFINED:
        assume(False)


def check_canonical(tree):
    _, env = trees.scope_with_symbols()
    e = build(tree, env)
    assert e is build(tree, env) or not isinstance(e, Expr)
    for point in trees.points(every=7):
        try:
            expected = trees.compute(tree, point)
        except UNDEFINED:
            continue
        value = evaluate(e, trees.at(point, env))
        assert value == expected, (e, point)
        assert type(value) is type(expected)
        if isinstance(e, Expr):
            assert value in e.span, (e, e.span, point)


@MANY
@given(trees.integers())
def test_integers_keep_their_value(tree):
    check_canonical(tree)


@MANY
@given(trees.rounded())
def test_rounded_floats_keep_their_value(tree):
    check_canonical(tree)


@MANY
@given(trees.conditions())
def test_conditions_keep_their_value(tree):
    check_canonical(tree)


@MANY
@given(
    st.lists(trees.conditions(2), max_size=4),
    trees.conditions(2),
    trees.integers(3),
    st.integers(0, 10_000),
)
def test_decisions_hold_wherever_the_facts_hold(fact_trees, question, tree, seed):
    """Facts are chosen to be true at one point; every other point where they hold must agree."""
    scope, env = trees.scope_with_symbols()
    grid = list(trees.points(every=3))
    here = grid[seed % len(grid)]
    kept = []
    for fact in fact_trees:
        cond = build(fact, env)
        try:
            truth = trees.compute(fact, here)
        except UNDEFINED:
            continue
        cond = cond if truth else not_(cond)
        assert scope.decide(cond) is not False, (cond, here, scope.facts)
        scope.assume(cond)  # cannot be a contradiction: it holds at `here`
        kept.append((fact, truth))
    cond, e = build(question, env), build(tree, env)
    answer, simple, bounds = scope.decide(cond), scope.simplify(e), scope.range(e)
    for point in grid:
        try:
            if any(trees.compute(fact, point) != truth for fact, truth in kept):
                continue
            expected, value = trees.compute(question, point), trees.compute(tree, point)
        except UNDEFINED:
            continue
        assert answer is None or answer is expected, (cond, point, scope.facts)
        assert value in bounds, (e, bounds, point, scope.facts)
        assert evaluate(simple, trees.at(point, env)) == value, (e, simple, point, scope.facts)
