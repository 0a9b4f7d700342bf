"""Integer and float inputs made dynamic by `dynamic_shapes`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import graphport as gp
from graphport import Dim
from graphport.errors import ConstraintViolationError
from graphport.program.signature import ConstantArgument, SymbolicArgument, TensorArgument
from tests.helpers import check

n, m = gp.dims("n", "m")
X = torch.randn(4, 3)
ANY = Dim.DYNAMIC


def at(*values: Any) -> list[tuple[Any, Any]]:
    """Other inputs: the same tensor with other numbers."""
    return [(X, v) for v in values]


# program, example number, its spec, the spec of the tensor, other inputs
INTS: dict[str, tuple[Any, int, Any, Any, list[Any]]] = {
    "scales": (lambda x, k: x * k, 3, ANY, None, at(-5, 0, 1)),
    "is returned": (lambda x, k: (x, k, k + 1, -k), 3, ANY, None, at(-5, 0, 1)),
    "is not used": (lambda x, k: x + 1, 3, ANY, None, at(-5, 0, 1)),
    "is a keyword of an operator": (lambda x, k: torch.add(x, x, alpha=k), 10, ANY, None, at(-3)),
    "arithmetic": (lambda x, k: x / k + x // k + k // 2 + k % 3, 5, ANY, None, at(3, -7)),
    "min and max": (lambda x, k: x * max(k, 2) + min(k, 9), 5, ANY, None, at(3, -7, 20)),
    "abs and powers": (lambda x, k: x * abs(k) + k**2, 5, ANY, None, at(3, -7, 0)),
    "as a tensor": (lambda x, k: torch.tensor(k) * x, 5, ANY, None, at(3, -7, 0)),
    "as a float": (lambda x, k: x * (k / 2) + torch.sym_float(k), 5, ANY, None, at(3, -7, 0)),
    "slices": (lambda x, k: x[:k], 2, n, {0: m}, at(0, 1, 3)),
    "slices from the end": (lambda x, k: x[-k:], 2, Dim("n", min=1, max=4), None, at(1, 3)),
    "selects": (lambda x, k: x[k], 1, ANY(min=0, max=3), None, at(0, 3)),
    "is a size": (lambda x, k: torch.full((k, 2), 1.5), 2, n, None, at(0, 1, 7)),
    "ends a range": (lambda x, k: torch.arange(k), 2, n, None, at(0, 1, 7)),
    "is the size of the tensor": (
        lambda x, k: x.reshape(k, -1) + torch.arange(k)[:, None],
        4,
        n,
        {0: n},
        [(X[:2], 2), (X[:1], 1)],
    ),
    "is twice the size and one": (
        lambda x, k: torch.cat([x, x]) + torch.ones(k - 1, 1),
        9,
        2 * n + 1,
        {0: n},
        [(X[:3], 7), (torch.randn(6, 3), 13)],
    ),
    "is derived, root in no input": (lambda x, k: x + k, 9, 2 * n + 1, None, at(1, 3, 7)),
    "is derived and negative": (
        lambda x, k: x + k,
        -2,
        n - 6,
        {0: n},
        [(torch.randn(7, 3), 1), (X[:0], -6)],
    ),
    "tells the root of a size": (
        lambda x, k: x.sum() + torch.ones(k - 3, 2),
        5,
        n + 3,
        {0: 2 * n},
        [(torch.randn(8, 3), 7), (X[:0], 3)],
    ),
    "takes a branch": (lambda x, k: x + 1 if k > 2 else x - 1, 4, ANY, None, at(3, 100)),
    "takes a negative branch": (lambda x, k: x + 1 if k < 0 else x - 1, -4, ANY, None, at(-1)),
    "may be automatic": (lambda x, k: x * k, 3, Dim.AUTO, None, at(-5, 0, 1)),
}


@pytest.mark.parametrize("case", INTS)
def test_ints(case: str) -> None:
    fn, example, number, tensor, others = INTS[case]
    spec = {"k": number, "x": tensor}
    ep = check(fn, (X, example), dynamic_shapes=spec, others=others)
    node = next(p for p in ep.graph.nodes if p.name == "k")
    assert type(node.meta["val"]) is torch.SymInt
    assert [type(s.arg) for s in ep.graph_signature.input_specs] == [
        TensorArgument,
        SymbolicArgument,
    ]


FLOATS: dict[str, tuple[Any, Any, list[float]]] = {
    "scales": (lambda x, k: x * k + k, ANY, [-1.0, 0.0, math.inf]),
    "is returned": (lambda x, k: (k, k * 2, k / 3, -k), ANY, [1.0, -7.5]),
    "is an argument": (lambda x, k: (x.clamp(-k, k), x.abs() ** k), ANY, [1.0, 0.25]),
    "fills": (lambda x, k: torch.full((2,), k), ANY, [1.0]),
    "as a tensor": (lambda x, k: torch.tensor(k) * x, ANY, [1.0, -3.5]),
    "with a range": (lambda x, k: x * k, ANY(min=0.5, max=3), [0.5, 3.0]),
    "takes a branch": (lambda x, k: x + 1 if k > 0.5 else x, ANY, [0.75, 9.0]),
    "may be automatic": (lambda x, k: x * k, Dim.AUTO, [-1.0, 0.0]),
}


@pytest.mark.parametrize("case", FLOATS)
def test_floats(case: str) -> None:
    fn, number, others = FLOATS[case]
    ep = check(fn, (X, 2.5), dynamic_shapes={"k": number}, others=at(*others))
    node = next(p for p in ep.graph.nodes if p.name == "k")
    assert type(node.meta["val"]) is torch.SymFloat
    assert isinstance(ep.graph_signature.input_specs[1].arg, SymbolicArgument)


def test_numbers_in_containers() -> None:
    def f(v: dict[str, Any], *rest: Any, scale: float) -> torch.Tensor:
        return v["x"][: v["ks"][0]] * v["ks"][1] + rest[0] * scale

    ep = check(
        f,
        ({"x": X, "ks": [2, 5]}, 7),
        {"scale": 0.5},
        dynamic_shapes={"v": {"x": {0: m}, "ks": [n, ANY]}, "rest": (ANY,), "scale": ANY},
        others=[({"x": X, "ks": [3, -5]}, 0)],
    )
    kinds = [type(s.arg) for s in ep.graph_signature.input_specs]
    assert kinds == [TensorArgument] + [SymbolicArgument] * 4


def test_the_graph_uses_the_number_that_was_passed() -> None:
    ep = check(lambda x, k: x * k, (X, 4), dynamic_shapes={"k": n, "x": {0: n}})
    assert [str(p) for p in ep.graph.nodes] == ["x", "k", "mul", "output"]
    ep = check(lambda x, k: x * k, (X, 9), dynamic_shapes={"k": 2 * n + 1, "x": {0: n}})
    assert [str(p) for p in ep.graph.nodes] == ["x", "k", "mul", "output"]


def test_ranges_of_numbers() -> None:
    ep = gp.export(
        lambda x, a, b, c, d: x * a * b * c * d,
        (X, 3, 4, 5, 1.5),
        dynamic_shapes=({0: n}, ANY, ANY(min=-2, max=9), n + 1, ANY(max=2)),
    )
    assert {str(k): (r.lower, r.upper) for k, r in ep.range_constraints.items()} == {
        "n": (0, math.inf),
        "s1": (-math.inf, math.inf),
        "s2": (-2, 9),
        "n + 1": (1, math.inf),
        "s3": (-math.inf, 2),
    }


REFUSED: list[tuple[Any, Any, Any, str]] = [
    (3, ANY, True, r"\*args\[1\] to be an int"),
    (3, ANY, 2.0, r"\*args\[1\] to be an int"),
    (3, ANY, "3", r"\*args\[1\] to be an int"),
    (2.5, ANY, "2", r"\*args\[1\] to be a float"),
    (3, Dim("k", min=2, max=8), 9, r"\*args\[1\] to be <= 8, but got 9"),
    (3, ANY(min=-4), -5, r"\*args\[1\] to be >= -4, but got -5"),
    (2.5, ANY(max=3), 3.5, r"\*args\[1\] to be <= 3, but got 3.5"),
    (4, 2 * Dim("k"), 5, r"\*args\[1\] = 5 to be of the form 2\*k, where k is an integer"),
    (3, None, 4, r"\*args\[1\] to be equal to 3, but got 4"),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_refused_at_run_time(i: int) -> None:
    example, spec, bad, text = REFUSED[i]
    module = gp.export(lambda x, k: x * k, (X, example), dynamic_shapes={"k": spec}).module()
    module(X, example)
    with pytest.raises(RuntimeError, match=f"Expected input at {text}"):
        module(X, bad)


def test_a_number_that_must_be_a_size() -> None:
    module = gp.export(
        lambda x, k: x + torch.arange(k)[:, None], (X, 4), dynamic_shapes={"k": n, "x": {0: n}}
    ).module()
    with pytest.raises(RuntimeError, match=r"Expected input at \*args\[1\] to be equal to 4"):
        module(X, 5)


def test_a_number_that_is_fixed_by_the_program() -> None:
    def f(x: torch.Tensor, k: int) -> list[torch.Tensor]:
        return [x + i for i in range(k)]

    for spec, fix in ((n, "n = 4"), (ANY, "dynamic_shapes['k'] = 4")):
        with pytest.raises(ConstraintViolationError) as raised:
            gp.export(f, (X, 4), dynamic_shapes={"k": spec})
        message = str(raised.value)
        assert "You marked *args[1] as dynamic" in message and "for i in range(k)" in message
        first, other = message.split("Suggested fixes:\n")[1].splitlines()
        assert first.strip() == fix and "gp.scan" in other
    ep = check(f, (X, 4), dynamic_shapes={"k": Dim.AUTO})
    assert ep.graph_signature.input_specs[1].arg == ConstantArgument("k", 4)
    with pytest.raises(RuntimeError, match=r"\*args\[1\] to be equal to 4, but got 5"):
        ep.module()(X, 5)
