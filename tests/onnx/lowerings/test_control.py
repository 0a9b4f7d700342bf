"""Branches and loops as If, Loop and Scan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from tests.capture.control import cond, while_loop
from tests.onnx.helpers import check_onnx

BATCH = ({0: gp.Dim("b")},)


def rows(*counts: int, width: int = 4) -> list[tuple[Tensor]]:
    return [(torch.randn(n, width),) for n in counts]


def operators(program: Any) -> list[str]:
    return [n.op for n in program.graph.walk()]


# cond


def on_data(x: Tensor) -> Tensor:
    return cond(x.sum() > 0, lambda x: x.cos() + 1, lambda x: x - 1, (x,))


def on_size(x: Tensor) -> Tensor:
    return cond(x.shape[0] > 4, lambda x: x.cos(), lambda x: x + x.shape[0], (x,))


def nested(x: Tensor) -> Tensor:
    def outer(x: Tensor) -> Tensor:
        return cond(x.max() > 1, lambda x: x * 2, lambda x: x.sin(), (x,)) + 1

    return cond(x.sum() > 0, outer, lambda x: -x, (x,))


def results_of_two_sizes(x: Tensor) -> Tensor:
    y = cond(x.sum() > 0, lambda x: torch.cat([x, x]), lambda x: x.clone(), (x,))
    return y.reshape(-1) * y.shape[0]


def several(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = cond(x.sum() > 0, lambda x: (x, x + 1), lambda x: (x * 2, x), (x,))
    return a + 1, b


def untouched(x: Tensor) -> Tensor:
    """A branch gives what it was given, twice."""
    a, b = cond(x.sum() > 0, lambda x: (x.clone(), x.clone()), lambda x: (x + 1, x), (x,))
    return a * b


def one_result_of_two(x: Tensor) -> Tensor:
    return cond(x.sum() > 0, lambda x: (x + 1, x.cos()), lambda x: (x, x.sin()), (x,))[1]


@pytest.mark.parametrize(
    "fn",
    [on_data, on_size, nested, results_of_two_sizes, several, untouched, one_result_of_two],
    ids=lambda f: f.__name__,
)
def test_cond(fn: Any) -> None:
    x = torch.randn(3, 4)
    others = [(s * t[0],) for t in rows(3, 7, 1) for s in (1, -1)]
    others += [(torch.ones(5, 4),), (-torch.ones(5, 4),), (torch.zeros(0, 4),)]
    program = check_onnx(fn, (x,), dynamic_shapes=BATCH, others=others)
    assert "If" in operators(program)


def test_cond_keeps_what_is_needed() -> None:
    program = check_onnx(one_result_of_two, (torch.randn(3, 4),))
    (node,) = [n for n in program.graph.nodes if n.op == "If"]
    assert len(node.outputs) == 1
    assert sorted(n.op for graph in node.graphs() for n in graph.nodes) == ["Cos", "Sin"]


class Closure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        return cond(
            x.sum() > 0, lambda x: self.one(x) + y, lambda x: self.two(x) * x.shape[0], (x,)
        )


def test_cond_of_modules() -> None:
    check_onnx(
        Closure(),
        (torch.randn(3, 4),),
        dynamic_shapes=BATCH,
        others=[(torch.ones(2, 4),), (-torch.ones(5, 4),)],
    )


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + 1

        return cond(x.sum() > 0, yes, lambda x: x - 1, (x,))


def test_cond_with_state() -> None:
    model = Counter()
    program = gp.onnx.export(model, (torch.ones(3),))
    for value in (1.0, -1.0, 1.0):
        x = torch.full((3,), value)
        torch.testing.assert_close(program(x), model(x))
    assert int(program._state["count"]) == int(model.count) == 2


def number_of_branch(x: Tensor) -> Tensor:
    n = cond(x.sum() > 0, lambda x: x.shape[0] + 1, lambda x: 2, (x,))
    return x * n


def test_cond_of_numbers() -> None:
    others = [(torch.ones(2, 4),), (-torch.ones(5, 4),)]
    check_onnx(number_of_branch, (torch.ones(3, 4),), dynamic_shapes=BATCH, others=others)


def data_dependent(x: Tensor) -> Tensor:
    def yes(x: Tensor) -> Tensor:
        found = x[x > 0]
        return found.sum() + found.shape[0]

    return cond(x.sum() > 0, yes, lambda x: x.sum(), (x,))


def test_cond_with_sizes_from_data() -> None:
    others = [(torch.ones(2, 4),), (-torch.ones(5, 4),)]
    check_onnx(data_dependent, (torch.randn(3, 4),), dynamic_shapes=BATCH, others=others)


# while_loop


def counted(x: Tensor) -> tuple[Tensor, Tensor]:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2 + x), (torch.tensor(0), x))


def by_number(x: Tensor) -> Tensor:
    _, y = while_loop(lambda i, y: i < x.shape[0], lambda i, y: (i + 1, y * 2), (0, x))
    return y


def until(x: Tensor) -> tuple[Tensor, Tensor]:
    return while_loop(
        lambda y, n: y.abs().sum() > 1, lambda y, n: (y / 2, n + y.shape[0]), (x, torch.tensor(0))
    )


def never(x: Tensor) -> Tensor:
    return while_loop(lambda y: y.sum() > y.sum() + 1, lambda y: (y + 1,), (x,))[0]


def loop_in_loop(x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        _, z = while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z + i), (i * 0, y))
        return i + 1, z

    return while_loop(lambda i, y: i < 4, body, (torch.tensor(0), x))[1]


def cond_in_loop(x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, cond(y.sum() > 0, lambda y: y - 2, lambda y: y + 1, (y,))

    return while_loop(lambda i, y: i < 6, body, (torch.tensor(0), x))[1]


@pytest.mark.parametrize(
    "fn", [counted, by_number, until, never, loop_in_loop, cond_in_loop], ids=lambda f: f.__name__
)
def test_while_loop(fn: Any) -> None:
    program = check_onnx(fn, *rows(3), dynamic_shapes=BATCH, others=rows(5, 1, 0))
    assert "Loop" in operators(program)


def test_numbers_of_a_loop() -> None:
    def fn(x: Tensor) -> Tensor:
        n, y = while_loop(
            lambda n, y: n * 2 < x.shape[0], lambda n, y: (n * 2, y + n), (1, x.sum())
        )
        return x[: n * 1] + y

    check_onnx(fn, *rows(8), dynamic_shapes=({0: gp.Dim("b", min=1)},), others=rows(5, 1, 9))


# map and scan


def mapped(x: Tensor) -> Tensor:
    return gp.map(lambda row, w: torch.outer(row, w) * x.shape[0], x, torch.arange(3.0))


def scanned(x: Tensor) -> tuple[Tensor, Tensor]:
    return gp.scan(lambda c, row: (c + row, c * row), torch.zeros(4), x)


def scan_of_many(x: Tensor) -> Any:
    def step(carry: Any, row: Any) -> Any:
        (c, n), (p, q) = carry, row
        return (c + p * q, n + 1), (c.sum(), p - q)

    return gp.scan(step, (torch.zeros(4), torch.tensor(0)), (x, x.cos()))


def map_in_map(x: Tensor) -> Tensor:
    return gp.map(lambda row: gp.map(lambda v: v * row.sum() + x.mean(), row), x)


def cumulative(x: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        return (x * 2).cumsum(0)
    op = torch.ops.higher_order.associative_scan
    ones = torch.ones(4)
    (out,) = op(lambda a, b: [a + b * ones], [x * 2], ())
    return out


@pytest.mark.parametrize(
    "fn", [mapped, scanned, scan_of_many, map_in_map, cumulative], ids=lambda f: f.__name__
)
def test_scan(fn: Any) -> None:
    spec = ({0: gp.Dim("b", min=1)},)
    program = check_onnx(fn, *rows(3), dynamic_shapes=spec, others=rows(5, 1))
    assert "Scan" in operators(program)


# Others


def test_operator_that_writes() -> None:
    torch.library.define("gp_onnx_control::bump", "(Tensor(a!) x, float by) -> ()")
    op = torch.ops.gp_onnx_control.bump.default

    @torch.library.impl("gp_onnx_control::bump", "CompositeExplicitAutograd")
    def bump(x: Tensor, by: float) -> None:
        x.add_(by)

    def fn(x: Tensor) -> Tensor:
        y = x.clone()
        torch.ops.gp_onnx_control.bump(y, 2.0)
        return y * 3

    with pytest.raises(gp.errors.UnsupportedError, match="gp_onnx_control"):
        gp.onnx.export(fn, (torch.randn(3),))
    check_onnx(fn, (torch.randn(3),), custom_lowerings={op: lambda b, x, by: b.Add(x, by)})


def test_region_of_its_own() -> None:
    @torch.compiler.nested_compile_region
    def block(x: Tensor) -> Tensor:
        return x.cos() + 1

    check_onnx(lambda x: block(block(x)), *rows(3), dynamic_shapes=BATCH, others=rows(5, 0))
