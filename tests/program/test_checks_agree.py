"""The compiled checks, the checks in words, and the meaning of both: they agree on any inputs.

Specifications are random: sizes and numbers that are symbols, derived from them in ways that can
and cannot be solved, in any order, with ranges and conditions. The meaning is found by trying
values of the symbols, which knows nothing of plans and steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from graphport.program import InputChecks, InputShape
from graphport.program.input_checks import Binds, Solves
from graphport.symbolic import (
    Expr,
    Range,
    Scope,
    and_,
    eq,
    evaluate,
    ge,
    ite,
    lt,
    max_,
    min_,
    mod,
    ne,
    sqrt,
    symbols,
    to_float,
)

scope = Scope()
A, B, C = (scope.symbol(name, lower=0, upper=math.inf) for name in "abc")
F = scope.symbol("f", type=float, lower=-math.inf, upper=math.inf, hint=0.5)
MOST = 6
"""The largest value of a symbol that inputs are made for."""
GRID = range(-3, 30)
"""The values of symbols that are tried to find the meaning."""

roots = st.sampled_from([A, B, C])
factors = st.sampled_from([1, 2, 3, -1, -2])
sums = st.builds(lambda s, k, c: k * s + c, roots, factors, st.integers(0, 6))
others = st.sampled_from(
    [
        *(A + B, A + 2 * C - 1, A * B, A * B + C, A * A, A // 2, B % 3, (A + 1) // (B + 1)),
        *(A // B, max_(A, B), min_(B, C + 1), ite(lt(A, B), A, C), A * B - A),
    ]
)
sizes = st.one_of(st.integers(0, 3), roots, roots, sums, others)
limits = st.builds(
    lambda low, high: Range(low, high), st.integers(0, 2), st.sampled_from([2, 4, 5, math.inf])
)
conditions = st.sampled_from(
    [
        *(ne(A, B), lt(A, B), eq(A * A, 3 * B), ne(mod(A, 4), 0), eq(A % B, 0), ge(C // A, 1)),
        *(and_(ne(A, 1), lt(B, C)), lt(sqrt(to_float(A - 2)), to_float(B))),
    ]
)
inputs = st.one_of(
    st.lists(sizes, max_size=3).map(lambda s: InputShape("t", tuple(s), torch.float32)),
    st.lists(sizes, max_size=3).map(lambda s: InputShape("t", tuple(s), torch.float32)),
    st.one_of(roots, sums).map(lambda e: InputShape("n", number=e)),
    st.just(InputShape("f", number=F)),
    st.sampled_from([1, True, 0.0, -0.0, math.nan, "x", None, torch.int8, 2**70, 1 + 0j]).map(
        lambda v: InputShape("c", value=v)
    ),
)


@st.composite
def specifications(draw: Any) -> InputChecks:
    shapes = draw(st.lists(inputs, min_size=1, max_size=4))
    ranged = {s: draw(limits) for s in (A, B, C) if draw(st.booleans())}
    derived = [
        e
        for shape in shapes
        for e in (*(shape.sizes or ()), shape.number)
        if isinstance(e, Expr) and e.kind != "symbol" and e.type is int
    ]
    for e in derived:
        if draw(st.booleans()):
            ranged[e] = draw(limits)
    return InputChecks(shapes, ranged, draw(st.lists(conditions, max_size=2)))


def fitting(shape: InputShape, env: dict[Expr, Any]) -> Any:
    """An input that has the sizes that the symbols say, as far as there is one."""
    if shape.number is not None:
        return int(evaluate(shape.number, env)) if shape.number.type is int else env[F]
    if shape.sizes is None:
        return shape.value
    return torch.empty([max(0, min(40, int(evaluate(s, env)))) for s in shape.sizes], device="meta")


@st.composite
def cases(draw: Any) -> tuple[InputChecks, list[Any]]:
    """Inputs that fit, or that fit but for a detail."""
    checks = draw(specifications())
    env = {s: draw(st.integers(0, MOST)) for s in (A, B, C)}
    env[F] = draw(st.sampled_from([0.5, math.nan, 2]))
    try:
        leaves = [fitting(shape, env) for shape in checks.inputs]
    except ArithmeticError:
        assume(False)
    if draw(st.booleans()):
        index = draw(st.integers(0, len(leaves) - 1))
        leaves[index] = draw(
            st.one_of(
                st.just(_changed(leaves[index], draw)),
                st.sampled_from(
                    [
                        1,
                        True,
                        0.0,
                        -0.0,
                        math.nan,
                        "x",
                        None,
                        torch.int8,
                        torch.float32,
                        3,
                        2**70,
                        1 + 0j,
                    ]
                ),
            )
        )
    return checks, leaves


def _changed(leaf: Any, draw: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.ndim:
        shape = list(leaf.shape)
        shape[draw(st.integers(0, len(shape) - 1))] += draw(st.sampled_from([1, 2]))
        return torch.empty(shape, device="meta", dtype=draw(st.sampled_from([torch.float32])))
    return torch.empty(2, dtype=torch.int32) if isinstance(leaf, torch.Tensor) else leaf


def walk(checks: InputChecks, leaves: Sequence[Any]) -> dict[Expr, Any] | str:
    try:
        return checks(leaves)
    except RuntimeError as error:
        return str(error)


def means(checks: InputChecks, leaves: Sequence[Any]) -> bool:
    """Whether some values of the symbols make everything true."""
    numbers: list[tuple[Any, int]] = []
    reals = set()
    for shape, leaf in zip(checks.inputs, leaves, strict=True):
        if shape.sizes is not None:
            if not isinstance(leaf, torch.Tensor) or leaf.dtype is not shape.dtype:
                return False
            if leaf.ndim != len(shape.sizes):
                return False
            numbers += list(zip(shape.sizes, leaf.shape, strict=True))
        elif shape.number is not None:
            if type(leaf) is not shape.number.type:
                return False
            numbers += [(shape.number, leaf)] if shape.number.type is int else []
            reals |= {repr(float(leaf))} if shape.number.type is float else set()
        elif type(leaf) is not type(shape.value) or repr(leaf) != repr(shape.value):
            return False
    roots = sorted({s for e, _ in numbers for s in symbols(e)}, key=lambda s: s.index)
    # What one symbol alone has to satisfy leaves few values of it to combine.
    values = [
        [
            v
            for v in GRID
            if all(_holds(e, {root: v}, n) for e, n in numbers if symbols(e) == (root,))
        ]
        for root in roots
    ]
    ranges = {**{s: s.span for s in roots}, **checks.ranges}
    known = [fact for fact in checks.facts if set(symbols(fact)) <= set(roots)]
    truths = [*numbers, *((fact, True) for fact in known)]
    return len(reals) <= 1 and any(
        all(_holds(e, env, value) for e, value in truths)
        and all(_ranged(e, span, env) for e, span in ranges.items())
        for env in (dict(zip(roots, some, strict=True)) for some in itertools.product(*values))
    )


def _holds(e: Any, env: dict[Expr, Any], value: Any) -> bool:
    try:
        return bool(evaluate(e, env) == value)
    except (ArithmeticError, ValueError):
        return False


def _ranged(e: Expr, span: Range, env: dict[Expr, Any]) -> bool:
    return any(s not in env for s in symbols(e)) or evaluate(e, env) in span


def agree(checks: InputChecks, leaves: list[Any]) -> None:
    found = walk(checks, leaves)
    assert checks.accepts(leaves) is isinstance(found, dict), (found, checks.inputs)


def mean_it(checks: InputChecks, leaves: list[Any]) -> None:
    found = walk(checks, leaves)
    solved = [step for step in checks.steps if isinstance(step, (Binds, Solves))]
    numbers = [e for shape in checks.inputs for e in (*(shape.sizes or ()), shape.number)]
    used = {s for e in numbers if isinstance(e, Expr) for s in symbols(e)}
    if isinstance(found, dict):
        # What no input tells is not checked.
        values = [value for symbol, value in found.items() if symbol is not F]
        if used <= {step.symbol for step in solved} and all(v in GRID for v in values):
            assert means(checks, leaves), (found, checks.inputs)
    elif not any(isinstance(getattr(step, "factor", 1), Expr) for step in solved):
        # A factor of 0 leaves the other one open: one value is tried, and may be refused.
        assert not means(checks, leaves), (found, checks.inputs)


@given(cases())
@settings(max_examples=300)
@example((InputChecks([InputShape("n", number=A * B), InputShape("m", number=A)], {}, []), [0, 0]))
@example((InputChecks([InputShape("n", number=2 * A - 3)], {A: Range(1, 2)}, []), [3]))
def test_compiled_and_in_words(case: tuple[InputChecks, list[Any]]) -> None:
    agree(*case)


@given(cases())
@settings(max_examples=100)
def test_what_the_checks_mean(case: tuple[InputChecks, list[Any]]) -> None:
    mean_it(*case)


@pytest.mark.slow
@given(cases())
@settings(max_examples=5000)
def test_many(case: tuple[InputChecks, list[Any]]) -> None:
    agree(*case)
    mean_it(*case)
