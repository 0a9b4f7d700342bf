"""Inside an operator, whether a size is 0 or 1 is answered for sizes in general."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphport.errors import DataDependentError
from graphport.symbolic import Scope, and_, eq, evaluate, ge, gt, le, lt, min_, ne, not_, or_
from tests.symbolic import trees
from tests.symbolic.test_soundness import MANY


@pytest.fixture(params=[0, 1, 5, None], ids=["empty", "one", "five", "data-dependent"])
def scope_and_size(request):
    scope = Scope()
    size = scope.symbol("n", hint=request.param) if request.param is not None else scope.fresh()
    if request.param is None:
        scope.assume(ge(size, 0))
    scope.facts.clear()
    return scope, size


SPELLINGS = {
    "n == 0": (lambda n: eq(n, 0), False),
    "n == 1": (lambda n: eq(n, 1), False),
    "n != 0": (lambda n: ne(n, 0), True),
    "n != 1": (lambda n: ne(n, 1), True),
    "n <= 0": (lambda n: le(n, 0), False),
    "n < 1": (lambda n: lt(n, 1), False),
    "n <= 1": (lambda n: le(n, 1), False),
    "n < 2": (lambda n: lt(n, 2), False),
    "n >= 2": (lambda n: ge(n, 2), True),
    "n > 1": (lambda n: gt(n, 1), True),
    "n > 0": (lambda n: gt(n, 0), True),
    "numel == 0": (lambda n: eq(n * 3 * 64, 0), False),
    "numel < 2": (lambda n: lt(n * n * 4, 2), False),
    "n // 2 == 1": (lambda n: eq(n // 2, 1), False),
    "2 * n + 3 == 1": (lambda n: eq(2 * n + 3, 1), False),
    "n * 4 == 4": (lambda n: eq(4 * n, 4), False),
    "n * n == n": (lambda n: eq(n * n, n), False),
    "n == n // 2": (lambda n: eq(n, n // 2), False),
    "n % (n * n) != 0": (lambda n: ne(n % (n * n), 0), True),
    "n // 2 - 1 == 0": (lambda n: eq(n // 2 + 1, 2), False),
    "n == 0 or n == 1": (lambda n: or_(eq(n, 0), eq(n, 1)), False),
    "n != 0 and n != 1": (lambda n: and_(ne(n, 0), ne(n, 1)), True),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sizes_are_generic(scope_and_size, spelling):
    scope, n = scope_and_size
    question, answer = SPELLINGS[spelling]
    with scope.operator():
        assert scope.guard(question(n)) is answer
    assert scope.facts == []


def test_an_expected_size_is_generic_too():
    """`numel != 0` asserted by an operator: true of sizes in general, and not recorded."""
    scope = Scope()
    n = scope.symbol("n", hint=4)
    with scope.operator():
        assert scope.expect(ne(n, 0))
    assert scope.facts == []
    assert scope.expect(ne(n, 0))
    assert [str(fact) for fact in scope.facts] == ["n != 0"]


def test_an_operator_may_insist_on_a_one():
    scope = Scope()
    n, m = scope.symbol("n", hint=1), scope.symbol("m", hint=1)
    with scope.operator():
        assert scope.expect(eq(n, 1))
        assert scope.expect(and_(ne(m, 0), le(m, 4)))
    assert [str(fact) for fact in scope.facts] == ["n == 1", "m <= 4"]


def test_a_departure_from_the_example_is_noted():
    scope = Scope()
    n, m = scope.symbol("n", hint=1), scope.symbol("m", hint=5)
    with scope.operator():
        scope.guard(eq(m, 1))
        assert not scope.departed
        scope.guard(eq(n, 1))
        assert scope.departed
    assert scope.facts == []


def test_generic_answers_can_be_switched_off():
    scope = Scope()
    scope.generic = False
    n = scope.symbol("n", hint=1)
    with scope.operator():
        assert scope.guard(eq(n, 1)) is True
    assert [str(fact) for fact in scope.facts] == ["n == 1"]


def test_outside_operators_the_example_decides():
    scope = Scope()
    n = scope.symbol("n", hint=1)
    assert scope.guard(eq(n, 1)) is True
    assert [(str(fact), fact.internal) for fact in scope.facts] == [("n == 1", False)]


OTHER_QUESTIONS = {
    "two sizes agree": lambda n, m: eq(n, m),
    "numels agree": lambda n, m: eq(3 * n, 3 * m),
    "a size is 5": lambda n, m: eq(n, 5),
    "a size is at least 3": lambda n, m: ge(n, 3),
    "a size divides another": lambda n, m: eq(n % m, 0),
    "a size is even": lambda n, m: eq(n % 2, 0),
    "one is smaller": lambda n, m: lt(n, m),
    "a lone difference": lambda n, m: eq(n - 2, 0),
}


@pytest.mark.parametrize("name", OTHER_QUESTIONS)
def test_other_questions_are_recorded(name):
    scope = Scope()
    n, m = scope.symbol("n", hint=5), scope.symbol("m", hint=5, lower=1)
    cond = OTHER_QUESTIONS[name](n, m)
    with scope.operator():
        answer = scope.guard(cond)
    assert answer is bool(evaluate(cond, {n: 5, m: 5}))
    (fact,) = scope.facts
    assert fact.internal
    assert fact.cond is (cond if answer else not_(cond))


def test_the_rest_of_a_mixed_question_is_recorded():
    scope = Scope()
    n, m = scope.symbol("n", hint=5), scope.symbol("m", hint=5)
    with scope.operator():
        assert scope.guard(or_(eq(n, 1), eq(n, m))) is True
    assert [str(fact) for fact in scope.facts] == ["n == m"]


def test_a_product_of_output_sizes():
    """(h - 2) * (w - 2) == 0 after a convolution, although its expansion has negative terms."""
    scope = Scope()
    b, h, w = (scope.symbol(name, hint=8) for name in "bhw")
    scope.assume(ge(h, 3))
    scope.assume(ge(w, 3))
    scope.facts.clear()
    with scope.operator():
        assert scope.guard(eq(b * (h - 2) * (w - 2), 0)) is False
        assert scope.guard(lt(b * 6 * (h - 2) * (w - 2), 2)) is False
        assert scope.guard(eq(b * (h - 2), 0)) is False
        assert scope.guard(eq(b * min_(h, 3), 1)) is False
    assert scope.facts == []


def test_a_size_less_something():
    """h - 2 == 1 after a convolution that demanded h >= 3; without that demand it is h == 3."""
    scope = Scope()
    h = scope.symbol("h", hint=3)
    with scope.operator():
        assert scope.expect(ge(h, 3))
        assert scope.guard(eq(h - 2, 1)) is False
        assert [str(fact) for fact in scope.facts] == ["h >= 3"]
    scope = Scope()
    h = scope.symbol("h", hint=3)
    with scope.operator():
        assert scope.guard(eq(h - 2, 1)) is True
        assert [str(fact) for fact in scope.facts] == ["h == 3"]


def test_a_data_dependent_size_must_be_known_to_be_one():
    scope = Scope()
    u = scope.fresh()
    with scope.operator(), pytest.raises(DataDependentError):
        scope.guard(eq(u, 0))


sizes = st.recursive(
    st.sampled_from(["n", "m"]),
    lambda child: st.tuples(st.sampled_from(["add", "mul"]), child, child | st.integers(1, 4)),
    max_leaves=5,
)


@MANY
@given(st.sampled_from(list(trees.COMPARE)), sizes, st.sampled_from([0, 1]))
def test_every_question_about_0_and_1_is_answered_as_for_large_sizes(operator, size, number):
    scope, env = trees.scope_with_symbols()
    answer = scope._sizes.answer(trees.build((operator, size, number), env))
    for point in ({"n": 101, "m": 211}, {"n": 1009, "m": 8}):
        assert answer is trees.compute((operator, size, number), point)


def test_a_size_that_turns_out_to_be_one_is_no_longer_generic():
    scope = Scope()
    n = scope.symbol("n", hint=1)
    with scope.operator():
        assert scope.guard(ge(n, 2))
    scope.assume(eq(n, 1))
    with scope.operator():
        assert not scope.guard(ge(n, 2))
