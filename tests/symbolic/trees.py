"""Random expressions with an oracle: a tree is built as an `Expr` and computed in plain Python.

Trees are nested tuples `(operator, operand, ...)` over symbol names and constants. The oracle knows
nothing of canonical forms, so comparing the two checks every rewrite on the way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hypothesis import strategies as st

from graphport.symbolic import Expr, Scope, expr

# name: (declared lower bound, declared upper bound, values to try)
SYMBOLS = {
    "n": (0, math.inf, (0, 1, 2, 3, 7, 12)),
    "m": (1, math.inf, (1, 2, 3, 5, 8)),
    "k": (2, 9, (2, 3, 4, 9)),
    "u": (-math.inf, math.inf, (-7, -2, -1, 0, 1, 2, 4, 6)),
}

BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min_": min,
    "max_": max,
}
BITWISE = {"bitand": lambda a, b: a & b, "bitor": lambda a, b: a | b, "bitxor": lambda a, b: a ^ b}
UNARY = {"neg": lambda a: -a, "abs_": abs}
COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
CONNECT = {"and_": lambda a, b: a and b, "or_": lambda a, b: a or b}
REAL = {
    "add": BINARY["add"],
    "sub": BINARY["sub"],
    "mul": BINARY["mul"],
    "truediv": lambda a, b: a / b,
}
ROUND = {"floor": math.floor, "ceil": math.ceil, "to_int": int, "round_": round}

MEANING = {
    **BINARY,
    **BITWISE,
    **UNARY,
    **COMPARE,
    **CONNECT,
    **REAL,
    **ROUND,
    "not_": lambda a: not a,
    "ite": lambda c, a, b: a if c else b,
    "to_float": float,
    "sqrt": math.sqrt,
    "pow_": lambda a, b: a**b,
}


def integers(depth: int = 4, names: tuple[str, ...] = tuple(SYMBOLS)) -> st.SearchStrategy:
    """Trees of integer operations."""
    leaf = st.sampled_from(names) | st.integers(-4, 8)

    def extend(child: st.SearchStrategy) -> st.SearchStrategy:
        common = st.tuples(st.sampled_from(["add", "sub", "mul", "floordiv", "mod"]), child, child)
        return (
            common
            | common
            | st.tuples(st.sampled_from([*BINARY, *BITWISE]), child, child)
            | st.tuples(st.sampled_from(list(UNARY)), child)
            | st.tuples(st.just("pow_"), child, st.integers(0, 3))
            | st.tuples(
                st.just("ite"),
                st.tuples(st.sampled_from(list(COMPARE)), child, child),
                child,
                child,
            )
        )

    return st.recursive(leaf, extend, max_leaves=2 * depth)


def conditions(depth: int = 3, names: tuple[str, ...] = tuple(SYMBOLS)) -> st.SearchStrategy:
    """Trees of comparisons and connectives."""
    whole = integers(depth, names)
    leaf = st.tuples(st.sampled_from(list(COMPARE)), whole, whole)
    return st.recursive(
        leaf,
        lambda child: (
            st.tuples(st.sampled_from(list(CONNECT)), child, child)
            | st.tuples(st.just("not_"), child)
        ),
        max_leaves=3,
    )


def rounded(names: tuple[str, ...] = tuple(SYMBOLS)) -> st.SearchStrategy:
    """Integers that went through floats: int(n / 2), floor(h * 2.0), ...

    Small ones: the rewrites hold below 2**53.
    """
    leaf = st.sampled_from(names) | st.integers(-4, 8)
    small = leaf | st.tuples(st.sampled_from(["add", "sub", "mul", "floordiv", "mod"]), leaf, leaf)
    real = st.recursive(
        st.tuples(st.just("to_float"), small)
        | st.sampled_from([0.5, 2.0, 1.5, -0.25, 3.0])
        | st.tuples(st.just("truediv"), small, small),
        lambda child: st.tuples(st.sampled_from(list(REAL)), child, child),
        max_leaves=4,
    )
    return st.tuples(st.sampled_from(list(ROUND)), real)


def scope_with_symbols(**hints: int) -> tuple[Scope, dict[str, Expr]]:
    scope = Scope()
    return scope, {
        name: scope.symbol(name, lower=lower, upper=upper, hint=hints.get(name))
        for name, (lower, upper, _) in SYMBOLS.items()
    }


def build(tree, env: dict[str, Expr]):
    if isinstance(tree, tuple):
        return getattr(expr, tree[0])(*[build(part, env) for part in tree[1:]])
    return env[tree] if isinstance(tree, str) else tree


def compute(tree, env: dict[str, int]):
    if isinstance(tree, tuple):
        return MEANING[tree[0]](*[compute(part, env) for part in tree[1:]])
    return env[tree] if isinstance(tree, str) else tree


def points(names: tuple[str, ...] = tuple(SYMBOLS), every: int = 1) -> Iterator[dict[str, int]]:
    """The grid of sample values, or one in `every` of it."""
    grid = itertools.product(*(SYMBOLS[name][2] for name in names))
    for values in itertools.islice(grid, 0, None, every):
        yield dict(zip(names, values, strict=True))


def at(point: dict[str, int], env: dict[str, Expr]) -> dict[Expr, int]:
    return {env[name]: value for name, value in point.items()}
