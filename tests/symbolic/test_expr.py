"""Canonical form: what is the same value is the same object, and constants are plain numbers."""

import copy
import gc
import math
import pickle
import weakref

import pytest

from graphport.symbolic import (
    Expr,
    Scope,
    abs_,
    add,
    and_,
    bitand,
    bitxor,
    ceil,
    eq,
    evaluate,
    floor,
    func,
    ge,
    gt,
    ite,
    le,
    lshift,
    lt,
    max_,
    min_,
    mul,
    ne,
    not_,
    or_,
    pow_,
    prod,
    round_,
    rshift,
    sqrt,
    substitute,
    sum_,
    symbols,
    to_float,
    to_int,
    truediv,
    type_of,
)
from graphport.symbolic.facts import occurs

pytestmark = pytest.mark.smoke

scope = Scope()
a = scope.symbol("a")
b = scope.symbol("b")
k = scope.symbol("k", lower=2)
u = scope.fresh()

SAME = [
    (a - a, 0),
    (2 * a + a, 3 * a),
    (a + b, b + a),
    ((a + 1) * (b + 2), a * b + 2 * a + b + 2),
    ((a + b) * (a - b), a * a - b * b),
    (pow_(a, 3), a * a * a),
    (pow_(a + 1, 2), a * a + 2 * a + 1),
    # floor division
    ((a * 4) // 4, a),
    ((4 * a + 2) // 4, a),
    ((4 * a - 1) // 4, a - 1),
    ((4 * a + b) // 4, a + b // 4),
    ((2 * a + 1) // 4, a // 2),
    ((6 * a + 4) // 4, (3 * a + 2) // 2),
    (a // 2 // 3, a // 6),
    ((a // 2 + 1) // 3, (a + 2) // 6),
    (a // -2, -a // 2),
    ((a * b) // a, b),
    ((a * b + a) // (b + 1), a),
    ((a * b + 3) // a, b + 3 // a),
    ((a * b) // (a * k), b // k),
    ((6 * a) // (4 * b), (3 * a) // (2 * b)),
    ((a % 4) // 4, 0),
    ((a + (-a) % 4) // 4, -(-a // 4)),
    ((a + (-a) % 4 + 8) // 4, -(-a // 4) + 2),
    (16 * (-a // 4) * (-b // 4) // ((a + (-a) % 4) * (b + (-b) % 4)), 1),
    ((16 * a * (-a // 4) * (-b // 4)) % ((a + (-a) % 4) * (b + (-b) % 4)), 0),
    # modulo
    ((4 * a) % 4, 0),
    ((5 * a + 7) % 4, (a + 3) % 4),
    ((2 * a + 1) % 4, 2 * (a % 2) + 1),
    ((a % 8) % 4, a % 4),
    ((7 - a % 7) % 7, (-a) % 7),
    ((a + (7 - a % 7) % 7) % 7, 0),
    ((a + (7 - a % 7) % 7) // 7, -(-a // 7)),
    ((b + 2 * (a % 4) + 3 * (b % 16)) % 8, (2 * a + 4 * b) % 8),
    ((a % 4) % 8, a % 4),
    (a % -4, -((-a) % 4)),
    ((a * b) % a, 0),
    ((a * b + 3) % a, 3 % a),
    ((a % k) % k, a % k),
    # min, max, abs
    (min_(a, a + 3), a),
    (max_(a, a + b), a + b),
    (max_(a, 0), a),
    (max_(k, 1), k),
    (min_(min_(a, b), a), min_(b, a)),
    (max_(max_(u, 2), 5), max_(5, u)),
    (abs_(-a), a),
    (abs_(u), abs_(-u)),
    # shifts and bits
    (lshift(a, 3), 8 * a),
    (rshift(a, 3), a // 8),
    (bitand(a, a), a),
    (bitxor(a, a), 0),
    # floats that come back
    (to_int(truediv(a, 2)), a // 2),
    (floor(truediv(u, 2)), u // 2),
    (ceil(truediv(a, 4)), -(-a // 4)),
    (floor(mul(a, 2.0)), 2 * a),
    (floor(mul(0.5, a)), a // 2),
    (round_(to_float(a)), a),
    (to_int(add(to_float(a), 1.0)), a + 1),
    (sqrt(4 * a * a), to_float(2 * a)),
    (truediv(6 * a, 3), to_float(2 * a)),
    # comparisons
    (gt(2 * a, 6), ge(a, 4)),
    (lt(3, a), ge(a, 4)),
    (le(2 * a, 7), le(a, 3)),
    (eq(a, b), eq(b, a)),
    (eq(2 * a, 2 * b + 4), eq(a, b + 2)),
    (eq(2 * a, 3), False),
    (ge(a, 0), True),
    (eq(k, 1), False),
    (ne(a, b), not_(eq(b, a))),
    (not_(ge(a, 4)), le(a, 3)),
    (lt(to_float(a), 2.5), le(a, 2)),
    (eq(to_float(a), 2.5), False),
    (ge(to_float(a), to_float(b)), ge(a, b)),
    # connectives
    (and_(ge(a, 4), True), ge(a, 4)),
    (and_(ge(a, 4), lt(a, 4)), False),
    (or_(ge(a, 4), not_(ge(a, 4))), True),
    (not_(and_(ge(a, 4), eq(b, 2))), or_(lt(a, 4), ne(b, 2))),
    (ite(ge(a, 0), a, b), a),
    (ite(ne(a, b), a, b), ite(eq(a, b), b, a)),
    (sum_([a, 1, b, a]), 2 * a + b + 1),
    (prod([a, 2, b]), 2 * a * b),
    (prod([]), 1),
]


@pytest.mark.parametrize(("left", "right"), SAME, ids=[str(left) for left, _ in SAME])
def test_same_value_is_same_object(left, right):
    assert left is right or (left == right and type(left) is type(right))


def test_not_simplified_where_it_would_be_wrong():
    assert (a // 2) * 2 is not a
    assert max_(u, 0) is not u
    assert isinstance(ge(u, 0), Expr)
    assert to_int(truediv(u, 2)) is not u // 2  # truncation is not floor below zero
    assert add(to_float(a), 0.5) is not add(0.5, add(to_float(a), 0.0))


@pytest.mark.parametrize(
    ("value", "type_"),
    [(a + 1, int), (truediv(a, 2), float), (a + 1.5, float), (ge(a, 3), bool), (True, bool)],
)
def test_types(value, type_):
    assert type_of(value) is type_


def test_constants_of_different_types_are_kept_apart():
    assert type(add(1, 1)) is int
    assert type(add(1, 1.0)) is float
    assert type_of(mul(a, 1.0)) is float
    assert type_of(mul(a, 1)) is int
    assert type_of(add(a, True)) is int
    assert add(sqrt(a), 0.0) is not add(sqrt(a), -0.0)


def test_bools_count_as_integers():
    assert str(add(ge(a, 3), 1)) == "(1 if a >= 3 else 0) + 1"


def test_an_expr_has_no_truth_value_and_no_order():
    with pytest.raises(TypeError, match="no truth value"):
        bool(ge(a, 3))
    with pytest.raises(TypeError, match=r"lt\(a, b\)"):
        assert a < b
    assert (a == b) is False
    assert len({a, b, a + 0}) == 2


def test_python_raises_where_python_raises():
    with pytest.raises(ZeroDivisionError):
        a // 0
    with pytest.raises(ZeroDivisionError):
        a % 0
    with pytest.raises(ZeroDivisionError):
        truediv(a, 0)
    with pytest.raises(TypeError, match="ite"):
        ite(ge(a, 3), 1, 1.0)


def test_scopes_do_not_mix():
    with pytest.raises(ValueError, match="two scopes"):
        a + Scope().symbol("a")


def test_symbols_and_substitution():
    e = (b + 1) * a // k + min_(u, b)
    assert symbols(e) == (a, b, k, u)
    assert symbols(3) == ()
    assert substitute(e, {a: k, u: b}) is (b + 1) * k // k + b
    assert substitute(a + b, {a: b, b: a}) is a + b
    assert substitute(ge(a, b), {b: 3}) is ge(a, 3)
    assert substitute(a // 2 + a, {a // 2: b}) is a + b
    assert substitute(a * 2, {a: 4}) == 8


def test_evaluate_follows_python():
    env = {a: 7, b: 2, k: 5, u: -7}
    assert evaluate(u // 2 + u % 4, env) == -7 // 2 + -7 % 4
    assert evaluate(to_int(truediv(u, 2)), env) == int(-7 / 2)
    assert evaluate(func("log2", b), env) == 1.0
    assert evaluate(pow_(b, k), env) == 32
    assert evaluate(round_(truediv(k, b)), env) == round(5 / 2)
    for n in range(-260, 260):
        assert evaluate(round_(u, -1), {u: n}) == round(n, -1)
        assert evaluate(round_(u, -2), {u: n}) == round(n, -2)
    assert evaluate(ite(lt(u, 0), a, b), env) == 7
    assert evaluate(ite(lt(u, 0), a, a // (b - 2)), env) == 7  # the other side is not computed
    assert math.isclose(evaluate(pow_(to_float(k), 0.5), env), 5**0.5)
    with pytest.raises(ZeroDivisionError):
        evaluate(a // (b - 2), env)
    with pytest.raises(KeyError, match="no value for k"):
        evaluate(a + k, {a: 1})


def test_a_power_of_a_sum_stays_bounded():
    assert pow_(a + b + k + u, 40).kind == "pow"
    assert evaluate(pow_(a + b, 40), {a: 1, b: 1}) == 2**40


def test_order_is_that_of_symbol_creation():
    """In whatever order expressions are built, and in whatever process."""
    texts = set()
    for order in ((0, 1, 2), (2, 1, 0)):
        s = Scope()
        parts = [s.symbol(name) for name in ("n", "m", "c")]
        atoms = [parts[i] // 3 for i in order]
        texts.add(str(sum_(atoms) + atoms[0] * atoms[1] * atoms[2] + sum_(parts)))
    assert texts == {"(n//3)*(m//3)*(c//3) + n + m + c + n//3 + m//3 + c//3"}


def test_a_scope_is_released_with_its_expressions():
    s = Scope()
    n = s.symbol("n", hint=4)
    s.guard(ge(n * n, 2))
    gone = weakref.ref(s.arena.owner.peer or n.arena.owner._facts)
    del s, n
    gc.collect()
    assert gone() is None


def test_expressions_are_pickled_together():
    s = Scope()
    n, m = s.symbol("n", lower=2), s.symbol("m", upper=9)
    given = (n * m + n // 3, ge(min_(n, m % 4), 1), sqrt(n) * 0.5, n)
    back = pickle.loads(pickle.dumps(given))
    assert list(map(str, back)) == list(map(str, given))
    assert back[3] in symbols(back[0]) and back[3].arena is not n.arena
    assert back[0] - back[3] * symbols(back[0])[1] is back[3] // 3
    env = dict(zip(symbols(back[0]), (7, 5), strict=True))
    assert [evaluate(e, env) for e in back[:3]] == [evaluate(e, {n: 7, m: 5}) for e in given[:3]]
    assert copy.deepcopy(given)[0] is given[0]


def test_a_part_is_looked_for_once_wherever_it_is_shared():
    s = Scope()
    n, m = s.symbol("n"), s.symbol("m")
    e = n
    for _ in range(60):
        e = e - e // 3
    assert not occurs(m // 2, e + m)
    assert occurs(n // 3, e + m)
