"""Symbolic numbers in ONNX: expressions computed by ONNX Runtime, and shapes put together."""

from __future__ import annotations

import math
import operator
from typing import Any

import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphport as gp
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.inference import broadcast_shapes
from graphport.onnx.emit.ir import Value
from graphport.onnx.emit.model import assign_names, build_model_proto, prune
from graphport.onnx.target.session import Session
from graphport.onnx.target.targets import ONNX
from graphport.symbolic import (
    Expr,
    Scope,
    abs_,
    and_,
    bitand,
    bitor,
    bitxor,
    ceil,
    eq,
    evaluate,
    floor,
    func,
    ge,
    ite,
    lshift,
    lt,
    max_,
    min_,
    not_,
    or_,
    pow_,
    round_,
    rshift,
    sqrt,
    to_float,
    to_int,
    truediv,
)

GRID = [(0, 1, 2), (1, 1, 1), (3, 2, 7), (8, 5, 0), (16, 9, 4), (5, 13, 100)]


class Sums:
    """A graph whose input has the sizes n, m, k, and whose outputs are numbers."""

    def __init__(self) -> None:
        self.scope = Scope()
        self.n = self.scope.symbol("n", hint=3)
        self.m = self.scope.symbol("m", hint=2, lower=1)
        self.k = self.scope.symbol("k", hint=7)
        self.b = Builder(self.scope, ONNX.default_opset())
        self.x = Value("x", torch.float32, (self.n, self.m, self.k), self.b.main)
        self.b.main.inputs.append(self.x)
        self.b.sizes.learn(self.x)

    def run(self, outputs: list[Value], sizes: list[tuple[int, int, int]]) -> list[Any]:
        graph = self.b.main
        for i, v in enumerate(outputs):
            out = self.b.shaped(self.b.Identity(v), v.shape or ())
            out.name = f"y{i}"
            graph.outputs.append(out)
        prune(graph)
        assign_names(graph)
        model = build_model_proto(graph, self.b.opset)
        tensors = {name: v.tensor for name, v in graph.initializers.items()}
        session = Session(model, tensors)
        return [list(session.run({"x": torch.zeros(s)}).values()) for s in sizes]


def check(make: Any) -> None:
    """An expression over n, m and k has the same values in ONNX as in Python."""
    sums = Sums()
    made = make(sums.n, sums.m, sums.k)
    if type(made) is not Expr:
        return
    value = sums.b.sizes.number(made)
    results = sums.run([value], GRID)
    for sizes, (have,) in zip(GRID, results, strict=True):
        env = dict(zip((sums.n, sums.m, sums.k), sizes, strict=True))
        try:
            want = evaluate(made, env)
        except (ZeroDivisionError, ValueError, OverflowError):
            continue  # not a number; ONNX Runtime may compute anything but must not stop
        got = have.item()
        assert type(got) is type(want), f"{made} at {sizes}"
        close = math.isclose(got, want, rel_tol=1e-12) if type(want) is float else got == want
        assert close, f"{made} at {sizes}: {got} instead of {want}"


INTEGERS = {
    "sum": lambda n, m, k: 3 * n - 2 * m + k - 5,
    "negative sum": lambda n, m, k: 4 - n - 3 * m,
    "opposite": lambda n, m, k: -n,
    "product": lambda n, m, k: n * n * m * (k - 3),
    "floordiv": lambda n, m, k: (n - 7) // m,
    "floordiv by negative": lambda n, m, k: (n + 5) // (-m),
    "floordiv of sizes": lambda n, m, k: n // m,
    "ceil division": lambda n, m, k: -(-n // 4),
    "division by what may be 0": lambda n, m, k: k // (n - 3),
    "remainder by what may be 0": lambda n, m, k: k % n,
    "mod": lambda n, m, k: (n - 7) % m,
    "mod by negative": lambda n, m, k: n % (-m - 1),
    "untaken division": lambda n, m, k: ite(ge(n, 1), k // n, -1),
    "min": lambda n, m, k: min_(min_(n, m), k - 1),
    "max": lambda n, m, k: max_(n - 4, max_(m, 3)),
    "abs": lambda n, m, k: abs_(n - k),
    "pow": lambda n, m, k: pow_(m, 3) + pow_(2, n),
    "bits": lambda n, m, k: bitand(n, m) + 2 * bitor(n, k) + 3 * bitxor(m, k),
    "shifts": lambda n, m, k: lshift(n, 3) + rshift(k - 9, 1),
    "ite": lambda n, m, k: ite(or_(lt(n, m), eq(k, 4)), n + 1, m - 1),
    "truths": lambda n, m, k: and_(not_(eq(n, m)), ge(k, 2)),
}

FLOATS = {
    "truediv": lambda n, m, k: truediv(n, m),
    "floor": lambda n, m, k: floor(truediv(n - 9, m)),
    "ceil": lambda n, m, k: ceil(n * 1.7),
    "trunc": lambda n, m, k: to_int((n - 7) * 0.9),
    "round": lambda n, m, k: round_(truediv(n, 2)),
    "scaled": lambda n, m, k: floor(to_float(n) * 1.5 + 0.25),
    "float floordiv": lambda n, m, k: operator.floordiv(to_float(n - 4), 0.1),
    "float mod": lambda n, m, k: operator.mod(to_float(n - 4), 0.3),
    "float mod of negative": lambda n, m, k: operator.mod(to_float(n), -0.7),
    "sqrt": lambda n, m, k: sqrt(n + k),
    "log2": lambda n, m, k: floor(func("log2", m)) + ceil(func("log2", k + 1)),
    "log10": lambda n, m, k: floor(func("log10", k + 1)),
    "tan": lambda n, m, k: func("tan", n) + func("tanh", n) + func("exp", truediv(n, 9)),
    "smaller": lambda n, m, k: ite(lt(truediv(n, m), 1.5), n, m),
}


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_numbers(name: str) -> None:
    check({**INTEGERS, **FLOATS}[name])


BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    min_,
    max_,
    bitand,
    bitor,
    bitxor,
]


def grown(children: Any) -> Any:
    pairs = st.tuples(st.sampled_from(BINARY), children, children)
    choice = st.tuples(
        st.just(ite),
        st.tuples(st.sampled_from([lt, eq, ge]), children, children),
        children,
        children,
    )
    return pairs | choice | st.tuples(st.just(abs_), children)


TERMS = st.recursive(st.sampled_from("nmk") | st.integers(-4, 9), grown, max_leaves=7)


def built(term: Any, names: dict[str, Expr]) -> Any:
    if isinstance(term, tuple):
        op, *operands = term
        return op(*(built(t, names) for t in operands))
    return names.get(term, term)


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(TERMS)
def test_random_expressions(term: Any) -> None:
    def make(n: Expr, m: Expr, k: Expr) -> Any:
        try:
            return built(term, {"n": n, "m": m, "k": k})
        except ZeroDivisionError:
            return 0

    check(make)


# Shapes


def operators(sums: Sums) -> list[str]:
    return [n.op for n in sums.b.main.nodes]


def test_sizes_that_a_tensor_shows_in_a_row_are_one_node() -> None:
    sums = Sums()
    n, m, k = sums.n, sums.m, sums.k
    b = sums.b
    whole, part = b.sizes.vector([n, m, k]), b.sizes.vector([4, m, k, 2])
    assert operators(sums) == ["Shape", "Shape", "Concat"]
    results = sums.run([whole, part], [(3, 2, 7)])
    assert [r.tolist() for r in results[0]] == [[3, 2, 7], [4, 2, 7, 2]]


def test_constants_beside_a_size_are_shown_with_it() -> None:
    scope = Scope()
    n = scope.symbol("n", hint=3)
    b = Builder(scope, ONNX.default_opset())
    x = Value("x", torch.float32, (2, n, 5), b.main)
    b.sizes.learn(x)
    b.sizes.vector([2, n, 5])
    b.sizes.vector([7, n, 5])
    assert [(v.op, v.attributes) for v in b.main.nodes] == [
        ("Shape", {"start": 0, "end": 3}),
        ("Shape", {"start": 1, "end": 3}),
        ("Concat", {"axis": 0}),
    ]


def test_sizes_are_solved_for() -> None:
    scope = Scope()
    n = scope.symbol("n", hint=3)
    b = Builder(scope, ONNX.default_opset())
    x = Value("x", torch.float32, (2 * n + 1,), b.main)
    b.main.inputs.append(x)
    b.sizes.learn(x)
    out = b.shaped(b.Identity(b.sizes.vector([n])), (1,))
    out.name = "y"
    b.main.outputs.append(out)
    assign_names(b.main)
    tensors = {name: v.tensor for name, v in b.main.initializers.items()}
    session = Session(build_model_proto(b.main, b.opset), tensors)
    have = [session.run({"x": torch.zeros(s)})["y"].item() for s in (1, 7, 21)]
    assert have == [0, 3, 10]


def test_a_size_that_nothing_shows_is_named() -> None:
    b = Builder(Scope(), ONNX.default_opset())
    lost = b.scope.symbol("lost", hint=3)
    with pytest.raises(gp.errors.UnsupportedError, match="no tensor of the program shows"):
        b.sizes.number(lost)


RESHAPES = {
    "same": lambda n, m, k: (n, m, k),
    "flat": lambda n, m, k: (n * m * k,),
    "first two": lambda n, m, k: (n * m, k),
    "last two": lambda n, m, k: (n, m * k),
    "ones": lambda n, m, k: (n, 1, m, 1, 1, k),
    "ones at the ends": lambda n, m, k: (1, n, m, k, 1),
    "another order": lambda n, m, k: (m, n, k),
    "middle": lambda n, m, k: (k, m * n),
    "all in one place": lambda n, m, k: (1, 1, n * m * k),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_reshapes_at_all_sizes(name: str) -> None:
    sums = Sums()
    target = RESHAPES[name](sums.n, sums.m, sums.k)
    out = sums.b.reshape(sums.x, target)
    assert out.shape == target
    for sizes, (have,) in zip(GRID, sums.run([out], GRID), strict=True):
        env = dict(zip((sums.n, sums.m, sums.k), sizes, strict=True))
        assert tuple(have.shape) == tuple(evaluate(s, env) for s in target)


def test_a_reshape_that_is_undone_is_nothing() -> None:
    sums = Sums()
    n, m, k = sums.n, sums.m, sums.k
    b = sums.b
    x = b.reshape(b.reshape(sums.x, (n * m, k)), (n * m * k,))
    assert b.reshape(x, (n, m, k)) is sums.x
    assert b.squeeze(b.unsqueeze(sums.x, 1, -1), 1, -1) is sums.x
    assert b.transpose(b.transpose(sums.x, [1, 2, 0]), [2, 0, 1]) is sums.x


def test_expanding_says_only_what_is_new() -> None:
    sums = Sums()
    b = sums.b
    out = b.expand(b.unsqueeze(sums.x, 1), (sums.n, 4, sums.m, sums.k))
    assert operators(sums) == ["Unsqueeze", "Expand"]
    assert out.shape == (sums.n, 4, sums.m, sums.k)


def test_broadcast_sizes() -> None:
    sums = Sums()
    n, m = sums.n, sums.m
    assert broadcast_shapes([(n, 1), (1, m)]) == (n, m)
    assert broadcast_shapes([(n,), (m,)]) == (None,)
    assert broadcast_shapes([(3, n), (4,)]) == (3, 4)
    assert broadcast_shapes([(n, 2), None]) is None
    assert broadcast_shapes([]) == ()


def test_sizes_in_between_agree_with_the_standard() -> None:
    """What inference says of values on the way, checked by ONNX's own shape inference."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, 1:].split(2, 1)
        y = torch.nn.functional.pad(a.flip(0) * b.mT.mT, (1, 2)).unfold(1, 2, 1)
        return torch.roll(y, 2, 0).flatten(1).tril()

    program = gp.onnx.export(fn, (torch.randn(3, 5, 4),), dynamic_shapes=({0: gp.Dim("b")},))
    onnx.checker.check_model(program.model_proto, full_check=True)
