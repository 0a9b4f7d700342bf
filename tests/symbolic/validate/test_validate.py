"""`gp.fx.validate`: what it proves, what it refutes and how, and what it refuses."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
import torch

import graphport as gp
from graphport.errors import (
    ExpressionError,
    InputError,
    MissingPackageError,
    UndecidedError,
    UserError,
    ValidationError,
)
from graphport.symbolic import Scope, bridge, expr

ANY = ["a > -inf", "b > -inf"]


@pytest.mark.parametrize(
    ("before", "after", "assume"),
    [
        ("4*(s0//4) + s0 % 4", "s0", []),
        ("4*(s0//4)", "s0", ["s0 % 4 == 0"]),
        ("s0 // 2 >= 1", "s0 > 1", []),
        ("s0 > 0", True, []),
        ("a // b * b + a % b", "a", ANY),
        ("(a*b) // b", "a", ANY),
        ("a % -4", "-(-a % 4)", ANY),
        ("(a + 6) // 4", "(a + 2) // 4 + 1", ANY),
        ("min(a, b) + max(a, b)", "a + b", ANY),
        ("abs(a) * abs(b)", "abs(a*b)", ANY),
        ("a**2 - b**2", "(a - b) * (a + b)", ANY),
        ("a ** 0", 1, ANY),
        ("not (a < b or a > b)", "a == b", ANY),
        ("1 <= a < b", "a >= 1 and b > a", ANY),
        ("a if a > b else b", "max(a, b)", ANY),
        ("(a > b) + (a <= b)", 1, ANY),
        ("int(s0 / 2)", "s0 // 2", []),
        ("math.ceil(s0 / 8)", "-(-s0 // 8)", []),
        ("round(s0 / 3)", "(2*s0 + 3) // 6", []),
        ("s0 / 4 * 4", "s0", []),
        ("s0 ** -1 * s0", 1, []),
        ("math.sqrt(s0 * s0)", "s0", []),
        ("a & 7", "a % 8", ANY),
        ("a | b", "b | a", ANY),
        ("a ^ a", 0, ANY),
        ("~a", "-a - 1", ANY),
        ("1 << s0", "2 ** s0", []),
        ("a >> 3", "a // 8", ANY),
        ("s0 & 12", 8, ["s0 == 11"]),
        ("(s0 > 1) & (s0 < 4)", "s0 == 2 or s0 == 3", []),
        ("math.exp(s0 + s1)", "math.exp(s1 + s0)", []),
        ("s0 // 0.5", "2*s0", []),
        (" \n s0 + 1", "1 + s0", []),
        (3, 3.0, []),
        (True, True, []),
    ],
)
def test_proven(before, after, assume):
    assert gp.fx.validate(before, after, assume) is True


@pytest.mark.parametrize(
    ("before", "after", "assume", "values"),
    [
        ("4*(s0//4)", "s0", [], {"s0": 1}),
        ("s0 // 2", "int(s0 / 2)", ["s0 >= -8"], {"s0": -1}),
        ("a // b", "-(-a // b)", [], {"a": 1, "b": 2}),
        ("s0 % 4 == 0", "s0 % 2 == 0", [], {"s0": 2}),
        ("round(s0 / 2)", "(s0 + 1) // 2", [], {"s0": 1}),
        ("s0 != 70001", True, [], {"s0": 70001}),
        ("s0 & 4096", 0, ["s0 % 4097 == 0"], {"s0": 4097}),
        ("s0", "s0 + s1", ["s1 >= 0"], {"s0": 1, "s1": 1}),
        (1, 2, [], {}),
    ],
)
def test_refuted(before, after, assume, values):
    with pytest.raises(ValidationError) as caught:
        gp.fx.validate(before, after, assume)
    assert caught.value.counterexample == values


def test_the_counterexample_as_text():
    with pytest.raises(ValidationError) as caught:
        gp.fx.validate("4*(s0//4)", "s0")
    assert str(caught.value) == (
        "GP310 s0 does not always equal 4*(s0//4)\n  at   s0 = 1: 4*(s0//4) is 0, and s0 is 1"
    )
    with pytest.raises(ValidationError) as caught:
        gp.fx.validate("s0 / 4 >= 1", "s0 // 4 >= 0.75", assume=["s0 > 3"])
        gp.fx.validate("s0 / 4", "s0 // 4")
    assert "s0 = 1: s0 / 4 is 0.25, and s0 // 4 is 0" in str(caught.value)
    assert isinstance(caught.value, gp.errors.VerificationError)


def test_division_by_zero():
    """Nothing is claimed where `before` has no value; where it has one, `after` must too."""
    assert gp.fx.validate("(a*b) // b", "a", ANY)
    with pytest.raises(ValidationError, match=r"b = 0: a is 1, and \(a\*b\) // b is undefined \(d"):
        gp.fx.validate("a", "(a*b) // b", ["b >= 0"])
    assert gp.fx.validate("a", "(a*b) // b", ["b != 0", "b > -inf"])
    # An assumption holds only where it has a value.
    assert gp.fx.validate("a", "(a*b) // b", ["b >= 0", "12 % b == 0"])


def test_what_is_computed():
    """`and`, `or` and a choice stop early, `&` and `|` do not."""
    assert gp.fx.validate("b != 0 and 4 % b == 0", "b != 0 and 4 % b == 0", ["b >= 0"])
    with pytest.raises(ValidationError, match="b = 0"):
        gp.fx.validate("b != 0 and 4 % b == 0", "4 % b == 0 and b != 0", ["b >= 0"])
    with pytest.raises(ValidationError, match="b = 0"):
        gp.fx.validate("b != 0 and 4 % b == 0", "(b != 0) & (4 % b == 0)", ["b >= 0"])
    assert gp.fx.validate("(b != 0) & (4 % b == 0)", "4 % b == 0 and b != 0", ["b >= 0"])
    assert gp.fx.validate("0 if b == 0 else 4 % b", "4 % b if b != 0 else 0", ["b >= 0"])


@pytest.mark.parametrize("operator", ["//", "%"])
def test_divisors_of_either_sign_are_those_of_python(operator):
    for a, b in itertools.product(range(-4, 5), (-3, -2, 2, 3)):
        value = a // b if operator == "//" else a % b
        # By symbols with known values, which z3 sees, and by a number.
        assert gp.fx.validate(f"x {operator} y", value, [f"x == {a}", f"y == {b}"])
        assert gp.fx.validate(f"x {operator} {b}", value, f"x == {a}")


@pytest.mark.parametrize(
    ("assume", "positive"),
    [
        ([], True),
        (["s0 < 10"], True),
        (["s0 % 4 == 0"], True),
        (["s0 != 0"], True),
        (["s0 > 0"], True),
        (["1 <= s0"], True),
        (["s0 >= 0"], False),
        (["-1 < s0"], False),
        (["s0 <= 0"], False),
        (["s0 < 1"], False),
        (["s0 == 0"], False),
        (["-3 <= s0 < 8"], False),
        (["s0 < 8 and s0 >= -3"], False),
        (["s0 > -inf"], False),
        (["s0 > -math.inf"], False),
    ],
)
def test_symbols_are_positive_unless_assumed_otherwise(assume, positive):
    if positive:
        assert gp.fx.validate("s0 >= 1", True, assume)
    else:
        with pytest.raises(ValidationError):
            gp.fx.validate("s0 >= 1", True, assume)


def test_one_condition_need_not_be_in_a_list():
    assert gp.fx.validate("s0 + s1", "2*s0", assume="s0 == s1")
    n = Scope().symbol("n")
    assert gp.fx.validate(4 * (n // 4), n, assume=expr.eq(n % 4, 0))


def test_expressions_bring_their_ranges():
    scope = Scope()
    n = scope.symbol("n", lower=0)
    k = scope.symbol("k", lower=3, upper=9)
    with pytest.raises(ValidationError, match="n = 0"):
        gp.fx.validate(expr.ge(n, 1), True)
    # A text speaks of the same symbol, with the same range.
    with pytest.raises(ValidationError, match="n = 0"):
        gp.fx.validate("n >= 0", expr.ge(n, 1))
    assert gp.fx.validate(k % 10, "k")
    assert gp.fx.validate("k % 10", k)


def test_symbolic_numbers_of_torch():
    scope = Scope()
    n = bridge.to_torch(scope.symbol("n", hint=8, lower=0))
    f = bridge.to_torch(scope.fresh(float))
    assert gp.fx.validate(4 * (n // 4) + n % 4, n)
    assert gp.fx.validate(n >= 4, "n > 3")
    assert gp.fx.validate(torch.sym_max(n, 3), "max(3, n)")
    assert gp.fx.validate(torch.sym_float(n) * 2.0, 2 * n)
    assert gp.fx.validate(f + 0.0, "f0")
    with pytest.raises(ValidationError, match=r"f0 = 0\.5"):
        gp.fx.validate(f > 0, "f0 >= 1")


def test_sizes_of_a_captured_program():
    """A size as the graph has it, against the size as the program computes it."""
    length = gp.Dim("length", min=4, max=64)
    ep = gp.export(lambda x: x[::2][1:], (torch.ones(9),), dynamic_shapes=({0: length},))
    (result,) = next(node for node in ep.graph.nodes if node.op == "output").args[0]
    assert gp.fx.validate("(length + 1) // 2 - 1", result.meta["val"].shape[0])


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("a + foo(b)", "foo is not a known function", 4),
        ("a @ b", "matrices", 0),
        ("1 + (a < (b)", "was never closed", 4),
        ("a + 'x'", "'x' is not a number", 4),
        ("a + (b and a)", "a condition is needed, and this is an integer", 5),
        ("a + x.shape[0]", "`x.shape[0]` is not understood", 4),
        ("a + x.y", "`x.y` is not understood: symbols are plain names", 4),
        ("a + min(b)", "min takes at least 2 argument(s), not 1", 4),
        ("a + abs(x=b)", "abs takes plain arguments only", 4),
        ("a in b", "compared by", 0),
        ("a + inf", "can be compared with, nothing else", 0),
        ("a & 1.5", "an integer is needed, and this is a float", 0),
        ("[a for a in b]", "is not understood here", 0),
        ("ä + ö + f(a)", "f is not a known function", 8),
        ("(a +\n  f(a))", "f is not a known function", 2),
        ("abs", "abs is a function", 0),
        ("", "invalid syntax", 0),
        ("lambda: 1", "is not understood here", 0),
        ("__import__('os')", "__import__ is not a known function", 0),
    ],
)
def test_a_bad_text_is_shown_with_the_place(text, problem, column):
    with pytest.raises(ExpressionError) as caught:
        gp.fx.validate("a", text)
    message = str(caught.value)
    assert message.startswith("GP160 after is not an expression that can be validated: ")
    assert problem in message
    shown, caret = message.splitlines()[-2:]
    assert caret.index("^") - shown.index("after: ") - len("after: ") == column


@pytest.mark.parametrize("text", ["(" * 5000 + "a" + ")" * 5000, "-" * 100_000 + "a", "a\0"])
def test_a_monstrous_text_is_refused(text):
    with pytest.raises(ExpressionError):
        gp.fx.validate(text, "a")


@pytest.mark.parametrize(
    ("before", "after", "assume", "problem"),
    [
        ("a > 1", "a", (), "before is a condition and after is an integer"),
        ("a", "a", ["a > 0", "a + 1"], r"assume\[1\] is an integer, and must be a condition"),
        (torch.ones(()), "a", (), "before cannot be validated: Tensor is not a number"),
        ("a", None, (), "after cannot be validated: NoneType is not a number"),
        (math.nan, "a", (), "before is nan, which is no number"),
    ],
)
def test_what_cannot_be_compared(before, after, assume, problem):
    with pytest.raises(InputError, match=problem):
        gp.fx.validate(before, after, assume)


def test_symbols_of_another_system_are_refused():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    foreign = ShapeEnv().create_unbacked_symint()
    with pytest.raises(InputError, match="a symbolic number of another system"):
        gp.fx.validate(foreign, foreign)


def test_two_symbols_of_one_name_and_different_types():
    n, f = Scope().symbol("n"), Scope().symbol("n", type=float)
    with pytest.raises(InputError, match="two different symbols are named n"):
        gp.fx.validate(n, f)


def test_assumptions_that_cannot_hold_prove_nothing():
    with pytest.raises(UserError, match="no values satisfy all conditions of assume"):
        gp.fx.validate("s0", "s0 + 1", assume=["s0 > 4", "s0 < 3"])


def test_what_is_not_decided_is_not_true(monkeypatch):
    """Fermat, and functions that are only names."""
    monkeypatch.setattr("graphport.symbolic.validate.solver.EFFORT", 100_000)
    with pytest.raises(UndecidedError, match="z3 gave up"):
        gp.fx.validate("a**3 + b**3 != c**3", True)
    with pytest.raises(UndecidedError, match="only some laws are known"):
        gp.fx.validate("math.exp(a)", "math.exp(b)")


def test_without_z3(monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] == "z3" or name == "graphport.symbolic.validate.solver":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sys.modules["graphport.symbolic.validate"], "solver", raising=False)
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(MissingPackageError, match=r"fix  pip install graphport\[z3\]") as caught:
        gp.fx.validate("a", "a")
    assert isinstance(caught.value, ImportError)


def test_the_same_counterexample_every_time():
    """z3 begins anew for every claim: what was asked before makes no difference."""
    found = []
    for _ in range(3):
        with pytest.raises(ValidationError) as caught:
            gp.fx.validate("a*b % 1021 != 77", True, ["a > 1000", "b > 1000"])
        found.append(caught.value.counterexample)
        assert gp.fx.validate("a*b // b", "a")
    assert found[0] == found[1] == found[2]
