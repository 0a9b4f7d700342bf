"""Expressions as text: golden forms, and Python that evaluates to what it says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphport.symbolic import (
    Expr,
    Range,
    Scope,
    abs_,
    add,
    and_,
    bitor,
    ceil,
    eq,
    floor,
    func,
    ge,
    gt,
    ite,
    le,
    lt,
    max_,
    min_,
    mod,
    mul,
    ne,
    not_,
    or_,
    pow_,
    round_,
    sqrt,
    symbolic_repr,
    to_float,
    to_int,
    truediv,
)
from tests.symbolic import trees
from tests.symbolic.test_soundness import MANY, UNDEFINED, build

scope = Scope()
batch, seq, s0, s1 = (scope.symbol(name) for name in ("batch", "seq", "s0", "s1"))
u = scope.fresh()
f = scope.fresh(float)

FORMS = [
    (2 * batch + 1, "2*batch + 1"),
    (seq // 2, "seq//2"),
    (seq % 4, "seq % 4"),
    (batch * seq, "batch*seq"),
    (batch * batch * seq, "batch**2*seq"),
    (batch - seq, "batch - seq"),
    (3 - batch, "3 - batch"),
    (-batch, "-batch"),
    (-batch - seq, "-batch - seq"),
    (seq - batch, "seq - batch"),
    (2 * (seq // 2), "2*(seq//2)"),
    (-(-seq // 4), "-((-seq)//4)"),
    ((seq + 1) // 2, "(seq + 1)//2"),
    (seq // (batch + 1), "seq//(batch + 1)"),
    (seq // (batch * 2), "seq//(2*batch)"),
    ((seq // batch) * (seq // batch), "(seq//batch)**2"),
    (batch * (seq // 3), "batch*(seq//3)"),
    ((seq // 3) * (seq % 5), "(seq//3)*(seq % 5)"),
    (3 * (seq % 5), "3*(seq % 5)"),
    (min_(batch, seq), "min(batch, seq)"),
    (max_(u, 1), "max(1, u0)"),
    (pow_(2, batch), "2**batch"),
    (pow_(batch + 1, seq), "(batch + 1)**seq"),
    (ge(batch, 4), "batch >= 4"),
    (le(batch, 64), "batch <= 64"),
    (lt(batch, seq), "batch < seq"),
    (gt(batch, seq), "batch > seq"),
    (ge(batch, seq), "batch >= seq"),
    (le(batch, seq), "batch <= seq"),
    (ge(batch, seq + 2), "batch >= seq + 2"),
    (ge(batch + 2, seq), "batch + 2 >= seq"),
    (le(batch, seq + 2), "batch <= seq + 2"),
    (le(batch + seq, 3), "batch + seq <= 3"),
    (eq(batch, seq + 1), "batch == seq + 1"),
    (eq(batch + 1, seq), "batch + 1 == seq"),
    (ne(batch, 1), "batch != 1"),
    (eq(seq % 4, 0), "seq % 4 == 0"),
    (eq(u, -3), "u0 == -3"),
    (and_(ge(batch, 4), ne(seq, 2)), "batch >= 4 and seq != 2"),
    (or_(and_(ge(batch, 4), ge(seq, 4)), eq(u, 0)), "(batch >= 4 and seq >= 4) or u0 == 0"),
    (not_(lt(f, 2.0)), "not f1 < 2.0"),
    (ite(ge(batch, 4), batch, seq), "(batch if batch >= 4 else seq)"),
    (sqrt(batch), "math.sqrt(float(batch))"),
    (func("log2", batch), "math.log2(float(batch))"),
    (truediv(batch, 3), "batch/3"),
    (mul(batch, 1.5), "float(batch)*1.5"),
    (floor(mul(batch, 0.3)), "math.floor(float(batch)*0.3)"),
    (ceil(sqrt(batch)), "math.ceil(math.sqrt(float(batch)))"),
    (to_int(truediv(u, 3)), "int(u0/3)"),
    (round_(truediv(batch, 3)), "round(batch/3)"),
    (abs_(u), "abs(u0)"),
    (bitor(batch, 1), "1 | batch"),
    (add(truediv(batch, 3), 1.0), "batch/3 + 1.0"),
    (mod(-7, batch), "-7 % batch"),
]


@pytest.mark.parametrize(("e", "text"), FORMS, ids=[text for _, text in FORMS])
def test_python_text(e, text):
    assert str(e) == repr(e) == text


SYMBOLIC = [
    (eq(s0, s1), "Eq(s0, s1)"),
    (ne(s0 % 20, 0), "Ne(Mod(s0, 20), 0)"),
    (s0 * s0, "s0**2"),
    (ge(s0, 2), "s0 >= 2"),
    (lt(s0, s1), "s0 < s1"),
    (eq(s0, 2 * s1 + 1), "Eq(s0, 2*s1 + 1)"),
    (s0 // 2, "(s0//2)"),
    ((s0 + 1) // 2, "((s0 + 1)//2)"),
    (2 * (s0 // 2) + 1, "2*((s0//2)) + 1"),
    (s0 * (s0 % 3), "s0*(Mod(s0, 3))"),
    (pow_(s0 // 2, 2), "((s0//2))**2"),
    (max_(u, 1), "Max(1, u0)"),
    (and_(ge(s0, 4), ne(s1, 2)), "(s0 >= 4) & Ne(s1, 2)"),
    (truediv(s0, 3), "IntTrueDiv(s0, 3)"),
    (to_float(s0), "ToFloat(s0)"),
    (floor(sqrt(s0)), "FloorToInt(OpaqueUnaryFn_sqrt(ToFloat(s0)))"),
    (ite(ge(s0, 4), s0, s1), "Piecewise((s0, s0 >= 4), (s1, True))"),
    (7, "7"),
]


@pytest.mark.parametrize(("e", "text"), SYMBOLIC, ids=[text for _, text in SYMBOLIC])
def test_symbolic_text(e, text):
    assert symbolic_repr(e) == text


def test_symbolic_text_with_other_names():
    assert symbolic_repr(eq(batch, seq), {batch: "s7", seq: "s12"}) == "Eq(s7, s12)"


@MANY
@given(st.one_of(trees.integers(), trees.conditions(), trees.rounded()))
def test_the_text_evaluates_to_the_value(tree):
    """Pasting what is printed gives what was meant: parentheses, precedence, signs."""
    _, env = trees.scope_with_symbols()
    e = build(tree, env)
    if not isinstance(e, Expr):
        return
    code = compile(str(e), "<printed>", "eval")
    for point in trees.points(every=37):
        try:
            expected = trees.compute(tree, point)
        except UNDEFINED:
            continue
        assert eval(code, {"math": math, **point}) == expected, str(e)


@pytest.mark.parametrize(
    ("r", "text"),
    [(Range(2, 64), "[2, 64]"), (Range(0, math.inf), "[0, oo]"), (Range(-math.inf, 5), "[-oo, 5]")],
)
def test_ranges(r, text):
    assert str(r) == text
