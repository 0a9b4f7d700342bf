"""Checks built by hand: sizes that wait for their symbols, and what no input tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from graphport.errors import InternalError
from graphport.program import InputChecks, InputShape
from graphport.symbolic import Expr, Range, Scope, eq, ge, lt, max_, sqrt, to_float

scope = Scope()
a, b, c = (scope.symbol(name) for name in "abc")
n = scope.symbol("n", lower=-math.inf)
f, g = (scope.symbol(name, type=float, lower=-math.inf, hint=0.5) for name in "fg")


def sizes(*each: Any) -> list[InputShape]:
    return [InputShape(f"*args[{i}]", (size,), torch.float32) for i, size in enumerate(each)]


def numbers(*each: Expr) -> list[InputShape]:
    return [InputShape(f"*args[{i}]", number=e) for i, e in enumerate(each)]


def failure(checks: InputChecks, leaves: Sequence[Any]) -> str | None:
    """What is wrong with the inputs, tensors given by their length; both ways to check agree."""
    leaves = [
        torch.empty(leaf) if shape.sizes is not None else leaf
        for shape, leaf in zip(checks.inputs, leaves, strict=True)
    ]
    try:
        checks(leaves)
    except RuntimeError as error:
        assert not checks.accepts(leaves)
        return str(error)
    assert checks.accepts(leaves)
    return None


CASES: list[tuple[list[InputShape], dict[Expr, Range], list[Any], list[int], list[int], str]] = [
    # Any order: a size waits for the symbols that later inputs tell.
    (sizes(a * b, a, b), {}, [], [6, 2, 3], [7, 2, 3], "[0].shape[0] to be equal to 6, but got 7"),
    (sizes(a // 2, a), {}, [], [2, 5], [3, 5], "[0].shape[0] to be equal to 2, but got 3"),
    (
        sizes(max_(a, b), b, a),
        {},
        [],
        [5, 5, 2],
        [4, 5, 2],
        "[0].shape[0] to be equal to 5, but got 4",
    ),
    (sizes(a + b, a), {}, [], [5, 2], [1, 2], "[0].shape[0] to be >= 2, but got 1"),
    (
        sizes(a + 2 * b, a),
        {},
        [],
        [6, 2],
        [5, 2],
        "[0].shape[0] = 5 to be of the form a + 2*b, where b is an integer and a = 2",
    ),
    (
        sizes(a + b + c, a + b, a),
        {},
        [],
        [9, 5, 2],
        [4, 5, 2],
        "[0].shape[0] to be >= 5, but got 4",
    ),
    # A factor that is told elsewhere.
    (
        sizes(a * b, a),
        {},
        [],
        [6, 2],
        [7, 2],
        "[0].shape[0] = 7 to be of the form a*b, where b is an integer and a = 2",
    ),
    (
        sizes(a * b, a),
        {},
        [],
        [0, 0],
        [1, 0],
        "[0].shape[0] = 1 to be of the form a*b, where b is an integer and a = 0",
    ),
    (sizes(a * b, a), {b: Range(2, 3)}, [], [9, 3], [12, 3], "[0].shape[0] to be <= 9, but got 12"),
    # Nothing tells a: its size has a range, and is else free.
    (
        sizes(a * a),
        {a * a: Range(1, 9)},
        [lt(a, 2)],
        [5],
        [10],
        "[0].shape[0] to be <= 9, but got 10",
    ),
    # The range of a root holds where only derived sizes are given, from both sides.
    (sizes(2 * a + 1), {a: Range(2, 4)}, [], [9], [11], "[0].shape[0] to be <= 9, but got 11"),
    (numbers(7 - 2 * n), {n: Range(2, 4)}, [], [-1], [5], "[0] to be <= 3, but got 5"),
    (numbers(7 - 2 * n), {n: Range(2, 4)}, [], [-1], [-3], "[0] to be >= -1, but got -3"),
    (numbers(-n), {n: Range(-math.inf, -2)}, [], [2], [1], "[0] to be >= 2, but got 1"),
    # An expression that has no value there.
    (
        sizes(a, b, a // b),
        {},
        [],
        [5, 2, 2],
        [5, 0, 2],
        "[2].shape[0] to be equal to a//b, which has no value for a = 5, b = 0: "
        "integer division or modulo by zero",
    ),
    # Floats.
    (numbers(f), {f: Range(0, 1)}, [], [0.5], [1.5], "[0] to be <= 1, but got 1.5"),
    (numbers(f), {f: Range(0, math.inf)}, [], [2.0], [math.nan], "[0] to be >= 0, but got nan"),
    (
        numbers(f, f),
        {},
        [],
        [math.nan, math.nan],
        [math.nan, 1.0],
        "[1] to be equal to nan, but got 1.0",
    ),
]


@pytest.mark.parametrize(("inputs", "ranges", "facts", "good", "bad", "text"), CASES)
def test_messages(
    inputs: Any, ranges: Any, facts: Any, good: list[Any], bad: list[Any], text: str
) -> None:
    checks = InputChecks(inputs, ranges, facts)
    assert failure(checks, good) is None
    assert failure(checks, bad) == f"Expected input at *args{text}"


@pytest.mark.parametrize(
    ("inputs", "ranges", "facts", "bad", "text"),
    [
        (
            *(sizes(a, 2 * b), {}, [lt(a, b)], [3, 6]),
            "a < b: a < b does not hold for a = 3 (*args[0].shape[0]), "
            "b = 3 (*args[1].shape[0] = 2*b)",
        ),
        (
            *(sizes(a, b), {}, [eq(a % b, 0)], [3, 0]),
            "Eq(Mod(a, b), 0): a % b == 0 has no value (integer modulo by zero) for "
            "a = 3 (*args[0].shape[0]), b = 0 (*args[1].shape[0])",
        ),
        (
            *(numbers(n), {}, [lt(sqrt(to_float(n)), 2.0)], [-1]),
            "OpaqueUnaryFn_sqrt(ToFloat(n)) < 2.0: math.sqrt(float(n)) < 2.0 has no value "
            "(math domain error) for n = -1 (*args[0])",
        ),
        (
            *(sizes(a, b), {a + b: Range(0, 5)}, [], [3, 3]),
            "a + b <= 5: a + b <= 5 does not hold for a = 3 (*args[0].shape[0]), "
            "b = 3 (*args[1].shape[0])",
        ),
    ],
)
def test_conditions(inputs: Any, ranges: Any, facts: Any, bad: list[Any], text: str) -> None:
    found = failure(InputChecks(inputs, ranges, facts), bad)
    assert found == f"Runtime assertion failed for expression {text}"


def test_conditions_on_what_no_input_tells_are_left_out() -> None:
    checks = InputChecks(sizes(a, b * b), {}, [lt(b, a), ge(a, 2)])
    assert failure(checks, [3, 100]) is None
    assert failure(checks, [1, 100]) is not None


def test_an_expression_too_long_to_write_out() -> None:
    e = a
    for k in range(2, 30):
        e = max_(e // 2 + b * k, e % k + 1)
    checks = InputChecks(sizes(a, b, e), {}, [])
    want = next(size for size in range(2000) if failure(checks, [5, 3, size]) is None)
    assert failure(checks, [5, 3, want + 1]) is not None


def test_no_inputs() -> None:
    checks = InputChecks([], {}, [])
    assert checks([]) == {}
    assert checks.accepts([])


def test_the_wrong_number_of_inputs() -> None:
    checks = InputChecks(sizes(a), {}, [])
    with pytest.raises(ValueError, match="expected 1 flat inputs, but got 2"):
        checks([torch.ones(2), torch.ones(2)])


def test_words_have_to_be_found() -> None:
    with pytest.raises(InternalError, match="compiled checks refuse"):
        InputChecks(sizes(a), {}, []).explain([torch.ones(2)])


def test_the_values_of_symbols() -> None:
    checks = InputChecks([*sizes(2 * a, b), InputShape("*args[2]", number=f)], {}, [])
    assert checks([torch.ones(6), torch.ones(4), 2.5]) == {a: 3, b: 4, f: 2.5}


def test_a_product_with_nothing_in_it() -> None:
    """0 times any number is 0: the unknown factor has no end to its range."""
    checks = InputChecks(sizes(a, a * b), {a: Range(0, math.inf), b: Range(0, math.inf)}, [])
    assert checks([torch.ones(0), torch.ones(0)]) == {a: 0, b: 0}
    assert checks.accepts([torch.ones(0), torch.ones(0)])
    assert failure(checks, [0, 3]) is not None


def test_a_device_of_another_kind() -> None:
    shape = InputShape("*args[0]", (2,), torch.float32, device=torch.device("xpu"))
    checks = InputChecks([shape], {}, [])
    assert not checks.accepts([torch.ones(2)])
    with pytest.raises(RuntimeError, match="to be on xpu, where the program was captured"):
        checks.explain([torch.ones(2)])


def test_a_product_that_a_symbol_is_in_twice_tells_nothing() -> None:
    checks = InputChecks(sizes(b * (b // 2)), {}, [])
    assert checks([torch.ones(8)]) == {} and checks.accepts([torch.ones(8)])
