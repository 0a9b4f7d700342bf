from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import Graph, GraphModule, symbolic_trace

import graphport as gp
from graphport.fx import NormalizeArgs, ShapeProp, merge_matmul

aten = torch.ops.aten
_PRODUCTS = {
    torch.matmul,
    torch.mm,
    operator.matmul,
    F.linear,
    aten.matmul.default,
    aten.mm.default,
    aten.linear.default,
}


def count(gm: GraphModule) -> int:
    """The products in a graph."""
    layers = {n for n, m in gm.named_modules() if isinstance(m, nn.Linear)}
    return sum(n.target in _PRODUCTS or n.target in layers for n in gm.graph.nodes)


def check(model: nn.Module, args: Any, before: int, after: int) -> GraphModule:
    merged = merge_matmul(model)
    assert (count(symbolic_trace(model)), count(merged)) == (before, after)
    torch.testing.assert_close(merged(*args), model(*args))
    assert count(symbolic_trace(merged)) == after  # and it can be traced again
    return merged


class Right(nn.Module):
    def __init__(self, *size: int) -> None:
        super().__init__()
        self.rhs = torch.randn(*size)

    def forward(self, x: Any, y: Any) -> Any:
        return torch.matmul(x, self.rhs), torch.matmul(y, self.rhs)


def test_one_right_side() -> None:
    model = Right(3, 4)
    merged = check(model, (torch.randn(3, 3), torch.randn(5, 3)), 2, 1)
    for left, right in [((3,), (2, 3)), ((2, 5, 3), (1, 1, 1, 3)), ((0, 3), (2, 3))]:
        args = torch.randn(left), torch.randn(right)
        torch.testing.assert_close(merged(*args), model(*args))


def test_five_products_in_a_row() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rhs = torch.randn(5, 4)

        def forward(self, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
            return sum(torch.matmul(v, self.rhs).sum() for v in (a, b, c, d, e))

    check(Model(), [torch.randn(2 * i + 1, 5) for i in range(5)], 5, 1)


def test_products_that_need_one_another() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rhs = torch.randn(3, 3)

        def forward(self, x: Any, y: Any) -> Any:
            a = torch.matmul(x, self.rhs)
            b = torch.matmul(a.abs(), self.rhs)
            return b, torch.matmul(y, self.rhs)

    # The first and the last are independent of one another.
    check(Chain(), (torch.randn(2, 3), torch.randn(4, 3)), 3, 2)

    class Crossed(nn.Module):
        """Merging either pair is possible, merging both is not."""

        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = torch.randn(3, 3), torch.randn(3, 3)

        def forward(self, x: Any, y: Any) -> Any:
            a, d = torch.matmul(x, self.p), torch.matmul(y, self.q)
            return torch.matmul(d.sin(), self.p), torch.matmul(a.cos(), self.q)

    check(Crossed(), (torch.randn(2, 3), torch.randn(4, 3)), 4, 3)


def test_products_of_products() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 3))
            self.c, self.d = nn.Linear(3, 2), nn.Linear(3, 4)

        def forward(self, x: Any) -> Any:
            p, q = x @ self.a, x @ self.b
            return self.c(p), self.d(p), self.c(q), p @ self.a, q @ self.a

    # Each pair in turn: those of x, the layers of p, and those that come after.
    check(Model(), (torch.randn(5, 3),), 7, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
        self.v, self.w = nn.Linear(8, 6), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return q.view(-1), k.relu().view(-1), v.unsqueeze(0).view(-1), x @ self.w, v


def test_layers_with_one_input() -> None:
    merged = check(Attention(), (torch.randn(5, 8),), 4, 2)
    assert [type(m) for m in merged.children()] == [nn.Linear]
    assert sum(p.numel() for p in merged.parameters()) == 8 * (8 + 4 + 6 + 3) + 8 + 4 + 6
    x = torch.randn(2, 3, 8)
    merged(x)[0].sum().backward()


def test_a_layer_with_several_inputs() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 2)

        def forward(self, x: Any, y: Any) -> Any:
            return self.lin(x) - self.lin(y)

    merged = check(Twins(), (torch.randn(3, 4), torch.randn(1, 4)), 2, 1)
    assert list(merged.state_dict()) == ["lin.weight", "lin.bias"]


def test_what_is_not_known_to_fit_is_left_alone() -> None:
    class Batched(nn.Module):
        def forward(self, x: Any, y: Any, z: Any) -> Any:
            return torch.matmul(x, z), torch.matmul(y, z), torch.matmul(x, y)

    check(Batched(), (torch.randn(3, 3), torch.randn(3, 3), torch.randn(3, 3)), 3, 3)
    check(Right(2, 3, 4), (torch.randn(3, 3), torch.randn(5, 3)), 2, 2)
    check(Right(3), (torch.randn(2, 3), torch.randn(5, 3)), 2, 2)
    gm = symbolic_trace(Batched())
    ShapeProp(gm).propagate(torch.randn(3, 3), torch.randn(3, 3), torch.randn(3, 3))
    args = torch.randn(3, 3), torch.randn(3, 3), torch.randn(3, 3)
    merged = merge_matmul(gm)
    assert count(merged) < 3
    torch.testing.assert_close(merged(*args), gm(*args))


class Products(nn.Module):
    def forward(self, x: Any, y: Any, z: Any) -> Any:
        a, b = x + 1, x.T * 2
        return y @ a, z @ a, y @ b, y @ a.T, (z[None] @ a) * 2


def test_sizes_that_shape_propagation_saw_are_an_example() -> None:
    gm = symbolic_trace(Products())
    ShapeProp(gm).propagate(torch.randn(3, 3), torch.randn(4, 3), torch.randn(2, 3))
    merged = merge_matmul(gm)
    assert count(merged) < count(gm)
    for n in (3, 5, 1):
        args = torch.randn(n, n), torch.randn(n + 2, n), torch.randn(n + 3, n)
        torch.testing.assert_close(merged(*args), gm(*args))


def test_dtypes_are_not_mixed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.randn(3, 2)
            self.b = torch.randn(3, 2, dtype=torch.float64)

        def forward(self, x: Any, y: Any) -> Any:
            y = y.double()
            return x @ self.a, y @ self.b, y @ (2 * self.b), x.half() @ self.a.half()

    check(Model(), (torch.randn(2, 3), torch.randn(2, 3)), 4, 3)


def test_operands_that_are_written_to() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.randn(3, 2)

        def forward(self, x: Any) -> Any:
            x = x.clone()
            a = torch.matmul(x, self.w)
            x.add_(1)
            return a, torch.matmul(x, self.w)

    check(Model(), (torch.randn(2, 3),), 2, 2)


def test_programs() -> None:
    b = gp.Dim("b")
    x = torch.randn(5, 8)
    ep = gp.export(Attention(), (x,), dynamic_shapes=({0: b},))
    merged = merge_matmul(ep)
    assert (count(ep.module()), count(merged)) == (4, 2)
    for rows in (1, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(merged(x), ep.module()(x))
    assert all("val" in n.meta for n in merged.graph.nodes if n.op != "output")
    with pytest.raises(Exception, match="to be equal to 8"):
        merged(torch.randn(3, 7))


def test_programs_with_sizes_that_vary() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Any, y: Any, p: Any, q: Any) -> Any:
            return x @ self.w, y @ self.w, torch.mm(x, p), torch.mm(x, q), y @ p

    sizes = [gp.Dim(n) for n in "abcd"]
    shapes = ({0: sizes[0]}, {0: sizes[1]}, {1: sizes[2]}, {1: sizes[3]})

    def inputs(a: int, b: int, c: int, d: int) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.randn, [(a, 4), (b, 2, 4), (4, c), (4, d)]))

    ep = gp.export(Model(), inputs(2, 3, 5, 7), dynamic_shapes=shapes)
    merged = merge_matmul(ep)
    assert count(merged) < count(ep.module()) == 5
    for args in (inputs(2, 3, 5, 7), inputs(9, 1, 1, 4)):
        torch.testing.assert_close(merged(*args), ep.module()(*args))


@st.composite
def products(draw: Any) -> GraphModule:
    """Square matrices multiplied in any order."""
    graph, root = Graph(), nn.Module()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for name in "uvw":
        setattr(root, name, nn.Parameter(torch.randn(3, 3) / 3))
        values.append(graph.get_attr(name))
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from([torch.matmul, torch.mm, operator.matmul, torch.tanh]))
        args = [draw(st.sampled_from(values)) for _ in range(1 if kind is torch.tanh else 2)]
        values.append(graph.call_function(kind, tuple(args)))
    graph.output(tuple(values[5:]))
    return GraphModule(root, graph)


@settings(max_examples=60)
@given(products(), st.booleans())
def test_random_products(gm: GraphModule, shapes: bool) -> None:
    args = torch.linspace(-1, 1, 9).reshape(3, 3), torch.linspace(1, 0, 9).reshape(3, 3)
    if shapes:
        ShapeProp(gm).propagate(*args)
    merged = merge_matmul(gm)
    assert count(merged) <= count(gm)
    torch.testing.assert_close(merged(*args), gm(*args), rtol=1e-4, atol=1e-5)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.relu = nn.Linear(4, 4), nn.Linear(4, 6), nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.q(x), self.k(x)


def test_results_that_are_written_to() -> None:
    class Model(Two):
        def forward(self, x: Any) -> Any:
            return self.relu(self.q(x)), F.relu(self.k(x).unsqueeze(0), inplace=True)

    x = torch.randn(3, 4)
    model = Model()
    merged = check(model, (x,), 2, 2)
    merged(x)[0].sum().backward()  # parts of a split cannot be written to
    program = gp.export(model, (x,), training=True)
    torch.testing.assert_close(merge_matmul(program)(x), model(x))


def test_weights_that_are_read_or_written_elsewhere() -> None:
    class Reading(Two):
        def forward(self, x: Any) -> Any:
            return *super().forward(x), self.q.weight * 2, F.linear(x, self.k.weight)

    class Writing(Two):
        def forward(self, x: Any) -> Any:
            self.q.weight.data.mul_(2)
            return super().forward(x)

    x = torch.randn(3, 4)
    check(Reading(), (x,), 3, 2)
    model = Writing()
    merged = merge_matmul(model)
    for _ in range(2):
        wanted = F.linear(x, 2 * model.q.weight, model.q.bias)
        torch.testing.assert_close(merged(x)[0], wanted)


def test_modules_of_the_model_are_left_as_they_are() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 5)

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            tied = F.linear(x, self.embedding.weight)
            return tied, F.linear(x, self.head.weight), self.head(x).relu()

    model = Model()
    before = list(model.state_dict())
    ids = torch.tensor([[1, 2, 6]])
    torch.testing.assert_close(merge_matmul(model)(ids), model(ids))
    assert list(model.state_dict()) == before


def flattened(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


def test_functions_of_the_users_own_see_no_gaps() -> None:
    graph, model = Graph(), Two()
    x = graph.placeholder("x")
    q, k = graph.call_module("q", (x,)), graph.call_module("k", (x,))
    graph.output((graph.call_function(flattened, (q,)), graph.call_method("relu", (k,))))
    gm = GraphModule(model, graph)
    merged = merge_matmul(gm)
    assert count(merged) == 1
    x = torch.randn(3, 4)
    torch.testing.assert_close(merged(x), gm(x))


def test_random_numbers_are_drawn_in_the_same_order() -> None:
    class Model(Two):
        def forward(self, x: Any, y: Any) -> Any:
            first = F.dropout(self.q(x))
            second = torch.rand_like(y)
            return first, second, self.q(y)

    model, args = Model(), (torch.randn(3, 4), torch.randn(3, 4))
    merged = merge_matmul(symbolic_trace(model))
    torch.manual_seed(0)
    expected = model(*args)
    torch.manual_seed(0)
    torch.testing.assert_close(merged(*args), expected)


@pytest.mark.parametrize("exported", [False, True])
def test_arguments_by_name(exported: bool) -> None:
    class Model(Two):
        def forward(self, x: Any) -> Any:
            return *super().forward(x), torch.mm(x, self.q.weight), torch.matmul(x, self.q.bias)

    x = torch.randn(3, 4)
    model = Model()
    gm = gp.export(model, (x,)).module() if exported else symbolic_trace(model)
    merged = merge_matmul(NormalizeArgs(gm).transform())
    assert count(merged) < count(gm)
    torch.testing.assert_close(merged(x), model(x))
