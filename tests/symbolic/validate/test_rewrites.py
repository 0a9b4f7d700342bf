"""Every rewrite and every answer of the algebra, proven by z3 over random expressions.

A tree is written as Python text, which `gp.fx.validate` reads without our algebra, and built with
our constructors. What becomes of it (its canonical form, its negation, what substitution and
simplification make of it, an answer, a range) is validated against the text: for all values of the
symbols, not for a grid of them.
"""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import graphport as gp
from graphport.symbolic import Scope, not_, substitute
from tests.symbolic import trees

# A sample in every run, and the sweep.
EXAMPLES = pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.slow)])
# The share of claims that z3 may leave open.
OPEN = 0.02
DIVISORS = (2, 3, 4, 6, 12, -2, -3)
UNDEFINED = (ZeroDivisionError, OverflowError, ValueError)
# The ranges of `trees.SYMBOLS`, for the symbols that are left in the text only.
RANGES = [
    f"{low} <= {name} <= {high}".replace("-inf", "-math.inf").replace(" inf", " math.inf")
    for name, (low, high, _) in trees.SYMBOLS.items()
]

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "bitand": "&",
    "bitor": "|",
    "bitxor": "^",
    "pow_": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    # Both operands of a constructor were computed before it was called.
    "and_": "&",
    "or_": "|",
}
CALLS = {
    "neg": "-",
    "not_": "not ",
    "abs_": "abs",
    "min_": "min",
    "max_": "max",
    "floor": "math.floor",
    "ceil": "math.ceil",
    "to_int": "int",
    "round_": "round",
    "to_float": "float",
    "sqrt": "math.sqrt",
}


def text(tree) -> str:
    """A tree as Python source, with every parenthesis."""
    if not isinstance(tree, tuple):
        return tree if isinstance(tree, str) else f"({tree})"
    operator, *parts = tree[0], *map(text, tree[1:])
    if operator in INFIX:
        return f"({parts[0]} {INFIX[operator]} {parts[1]})"
    if operator == "ite":
        return f"({parts[1]} if {parts[0]} else {parts[2]})"
    return f"({CALLS[operator]}({', '.join(parts)}))"


class Claims:
    """Claims made in one sweep, and those that z3 left open."""

    def __init__(self) -> None:
        self.made = 0
        self.open: list[str] = []

    def validate(self, before: str, after, known: list[str] | None = None) -> None:
        self.made += 1
        try:
            assert gp.fx.validate(before, after, assume=[*RANGES, *(known or ())])
        except gp.errors.UndecidedError as error:
            self.open.append(str(error))


def sweep(examples: int, strategy: st.SearchStrategy, check) -> Claims:
    claims = Claims()

    @settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(strategy)
    def run(case):
        check(claims, case)

    run()
    assert claims.made >= examples // 2
    assert len(claims.open) <= max(1, OPEN * claims.made), claims.open
    return claims


def build(tree, env):
    """The expression of a tree; an example that Python cannot compute anywhere is thrown away."""
    try:
        return trees.build(tree, env)
    except UNDEFINED:
        assume(False)


# Construction


def affine(depth: int = 2) -> st.SearchStrategy:
    """Sums of multiples, divided by constants, and sums of those: where divisions are rewritten."""
    term = st.sampled_from(tuple(trees.SYMBOLS))
    if depth:
        divided = st.tuples(
            st.sampled_from(["floordiv", "mod"]), affine(depth - 1), st.sampled_from(DIVISORS)
        )
        term = term | divided | divided
    scaled = st.tuples(st.just("mul"), st.sampled_from([1, 2, 3, 4, 6, -1, -2, -3]), term)
    return st.builds(
        lambda parts, const: functools.reduce(lambda a, b: ("add", a, b), [*parts, const]),
        st.lists(scaled, min_size=1, max_size=2),
        st.integers(-7, 7),
    )


def check_construction(claims, tree):
    claims.validate(text(tree), build(tree, trees.scope_with_symbols()[1]))


@EXAMPLES
def test_canonical_integers(examples):
    sweep(examples, trees.integers(), check_construction)


@EXAMPLES
def test_canonical_divisions(examples):
    sweep(examples, affine(), check_construction)


@EXAMPLES
def test_canonical_conditions(examples):
    sweep(examples, trees.conditions(), check_construction)


def rounds_a_constant(tree) -> bool:
    """Whether a quotient of two numbers is computed as a float; the validator does not round."""
    if not isinstance(tree, tuple):
        return False
    fixed = not any(isinstance(leaf, str) for leaf in leaves(tree))
    return (tree[0] == "truediv" and fixed) or any(map(rounds_a_constant, tree[1:]))


def leaves(tree):
    if not isinstance(tree, tuple):
        return [tree]
    return [leaf for part in tree[1:] for leaf in leaves(part)]


@EXAMPLES
def test_canonical_roundings(examples):
    exact = trees.rounded().filter(lambda tree: not rounds_a_constant(tree))
    sweep(examples, exact, check_construction)


@EXAMPLES
def test_negation(examples):
    def check(claims, tree):
        cond = build(tree, trees.scope_with_symbols()[1])
        claims.validate(f"not {text(tree)}", not_(cond))

    sweep(examples, trees.conditions(), check)


@EXAMPLES
def test_printed_form(examples):
    """What we print is Python of the same meaning."""

    def check(claims, tree):
        e = build(tree, trees.scope_with_symbols()[1])
        claims.validate(text(tree), str(e))

    sweep(examples, trees.integers() | trees.conditions(), check)


# Substitution


def put(tree, values: dict):
    if isinstance(tree, tuple):
        return (tree[0], *(put(part, values) for part in tree[1:]))
    return values.get(tree, tree) if isinstance(tree, str) else tree


@EXAMPLES
def test_substitution(examples):
    """For symbols of any value: what is put in keeps no declared range."""
    leaf = st.sampled_from(("u", "v", -3, 0, 1, 5))
    small = leaf | st.tuples(st.sampled_from(["add", "sub", "mul", "floordiv", "mod"]), leaf, leaf)

    def check(claims, case):
        tree, first, second = case
        scope = Scope()
        env = {name: scope.symbol(name, lower=-math.inf) for name in ("u", "v")}
        e = build(tree, env)
        values = {"u": first, "v": second}
        try:
            result = substitute(e, {env[name]: build(values[name], env) for name in env})
        except UNDEFINED:
            assume(False)
        claims.validate(text(put(tree, values)), result, ["v > -inf"])

    whole = trees.integers(3, ("u", "v"))
    sweep(examples, st.tuples(whole | trees.conditions(2, ("u", "v")), small, small), check)


# Knowledge


def sizes() -> st.SearchStrategy:
    """Small integers as programs compute sizes."""
    leaf = st.sampled_from(tuple(trees.SYMBOLS)) | st.integers(-2, 6)
    scaled = st.tuples(st.sampled_from(["mul", "floordiv", "mod"]), leaf, st.integers(2, 4))
    part = leaf | scaled
    operator = st.sampled_from(
        ["add", "sub", "add", "sub", "mul", "floordiv", "mod", "min_", "max_", "abs_"]
    )
    pair = st.builds(lambda op, a, b: (op, a) if op == "abs_" else (op, a, b), operator, part, part)
    return (
        part
        | pair
        | st.builds(lambda op, a, b: (op, a, b), st.sampled_from(["add", "sub"]), pair, part)
    )


def relations() -> st.SearchStrategy:
    """(relation, a, b, slack): made true at a point by `at_point`."""
    relation = st.sampled_from(["eq", "eq", "ge", "le", "ne", "divides"])
    return st.tuples(relation, sizes(), sizes(), st.integers(0, 2))


def at_point(relation, point):
    """The tree of a relation that holds at the point."""
    operator, a, b, slack = relation
    difference = ("sub", a, b)
    value = trees.compute(difference, point)
    if operator == "divides":
        return ("eq", ("mod", difference, slack + 2), value % (slack + 2))
    shift = {"eq": 0, "ge": -slack, "le": slack, "ne": slack + 1}[operator]
    return (operator, difference, value + shift)


class Known:
    """A scope that learnt facts which hold at one point, and the facts as text."""

    def __init__(self, facts, seed: int) -> None:
        hints = list(trees.points())[seed % len(list(trees.points()))]
        self.point = hints
        # Half of the time the symbols have example values: equalities are then solved differently.
        self.scope, self.env = trees.scope_with_symbols(**(hints if seed % 2 else {}))
        self.texts: list[str] = []
        for relation in facts:
            try:
                tree = at_point(relation, self.point)
            except UNDEFINED:
                continue
            cond = build(tree, self.env)
            assert self.scope.decide(cond) is not False, (cond, self.point, self.scope.facts)
            self.scope.assume(cond)  # cannot be a contradiction: it holds at the point
            self.texts.append(text(tree))


def knowledge(question: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.lists(relations(), max_size=4), st.integers(0, 10_000), question)


@EXAMPLES
def test_simplification_under_facts(examples):
    def check(claims, case):
        facts, seed, tree = case
        known = Known(facts, seed)
        claims.validate(text(tree), known.scope.simplify(build(tree, known.env)), known.texts)

    sweep(examples, knowledge(sizes() | affine(1) | trees.integers(3)), check)


@EXAMPLES
def test_ranges_under_facts(examples):
    def check(claims, case):
        facts, seed, tree = case
        known = Known(facts, seed)
        bounds = known.scope.range(build(tree, known.env))
        low, high = (
            str(bound).replace("inf", "math.inf") for bound in (bounds.lower, bounds.upper)
        )
        # Where the tree has no value nothing is claimed, and so nothing about its range.
        claims.validate(f"{low} <= {text(tree)} <= {high}", True, known.texts)

    sweep(examples, knowledge(sizes() | affine(1) | trees.integers(3)), check)


@EXAMPLES
def test_decisions_under_facts(examples):
    answers = []

    def check(claims, case):
        facts, seed, question = case
        known = Known(facts, seed)
        try:
            tree = at_point(question, known.point)
        except UNDEFINED:
            assume(False)
        answer = known.scope.decide(build(tree, known.env))
        answers.append(answer)
        if answer is None:
            claims.made += 1
        else:
            assert answer is trees.compute(tree, known.point)
            claims.validate(text(tree), answer, known.texts)
        # The same question with its sides the other way round, negated.
        other = ("not_", ("lt", *tree[1:]))
        answer = known.scope.decide(build(other, known.env))
        if answer is not None:
            claims.validate(text(other), answer, known.texts)

    sweep(examples, knowledge(relations()), check)
    assert sum(answer is not None for answer in answers) > examples // 10
