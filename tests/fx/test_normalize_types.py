"""Types on nodes."""

import operator
import typing
from collections import namedtuple
from typing import Any, NamedTuple, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Tracer, symbolic_trace

import graphport as gp
from examples import resnet
from graphport.errors import GraphError
from graphport.fx import AnnotateTypesWithSchema, annotate_getitem_nodes

# ruff: noqa: UP006, UP045 - types come in the old spelling as in the new


# torch.jit is deprecated, and warns of what a GraphModule's __init__ says.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit", "ignore:The TorchScript type system:UserWarning"
)


class FunctionalTracer(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.BatchNorm2d)


def annotated(program: Any, **options: bool) -> GraphModule:
    gm = program if isinstance(program, GraphModule) else symbolic_trace(program)
    return AnnotateTypesWithSchema(gm, **options).transform()


def types(gm: GraphModule) -> dict[str, Any]:
    return {n.name: n.type for n in gm.graph.nodes if n.op not in ("placeholder", "output")}


def test_modules_of_a_resnet() -> None:
    model = resnet.resnet50().eval()
    gm = annotated(model)
    untyped = {(n.op, n.target) for n in gm.graph.nodes if n.type is None}
    assert untyped <= {
        ("placeholder", "image"),
        ("call_module", "stem.2"),
        ("call_function", operator.add),
        ("call_method", "flatten"),
        ("output", "output"),
    }
    torch.jit.script(gm)


def test_functions_of_a_resnet() -> None:
    model = resnet.ResNet((1, 1), 10).eval()
    gm = annotated(GraphModule(model, FunctionalTracer().trace(model)))
    untyped = {(n.op, n.target) for n in gm.graph.nodes if n.type is None}
    assert untyped <= {
        ("placeholder", "image"),
        ("call_function", operator.add),
        ("call_method", "flatten"),
        ("output", "output"),
    }
    scripted = torch.jit.script(gm)
    x = resnet.example(size=32)
    torch.testing.assert_close(scripted(x), model(x))


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        (lambda x: torch.relu(x), Tensor),
        (lambda x: torch.add(x, 1), Tensor),
        (lambda x: torch.max(x, 0), typing.Tuple[Tensor, Tensor]),
        (lambda x: torch.chunk(x, 2), typing.List[Tensor]),
        (lambda x: torch.numel(x), int),
        (lambda x: torch.allclose(x, x), bool),
        (lambda x: torch.svd_lowrank(x), None),
        (lambda x: F.max_pool1d(x, 2), Tensor),
        (lambda x: F.max_pool1d(x, 2, return_indices=True), tuple[Tensor, Tensor]),
        (lambda x: F.relu(x), Tensor),
        (lambda x: F.conv1d(x, x), Tensor),
        (lambda x: torch.ops.aten.topk.default(x, 1), typing.Tuple[Tensor, Tensor]),
        (lambda x: x + 1, None),
    ],
)
def test_what_calls_return(program: Any, wanted: Any) -> None:
    (found,) = types(annotated(program)).values()
    assert found == wanted


def test_exported_programs_are_typed() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 3))
    ep = gp.export(model, (torch.randn(4, 1, 2),))
    gm = annotated(ep.module())
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert all(n.type is not None for n in calls if n.target is not operator.getitem)
    annotate_getitem_nodes(gm.graph)
    assert all(n.type is not None for n in calls)
    x = torch.randn(4, 1, 2)
    torch.testing.assert_close(gm(x), model(x))


def test_attributes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("buffer", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.buffer

    gm = annotated(Model())
    assert [n.type for n in gm.graph.nodes if n.op == "get_attr"] == [Tensor, Tensor]


def test_choices_and_types_that_are_there() -> None:
    gm = symbolic_trace(nn.Sequential(nn.ReLU()))
    assert set(types(annotated(gm, annotate_modules=False)).values()) == {None}
    next(n for n in gm.graph.nodes if n.op == "call_module").type = int
    assert set(types(annotated(gm)).values()) == {int}
    gm = symbolic_trace(lambda x: torch.relu(x))
    assert set(types(annotated(gm, annotate_functionals=False)).values()) == {None}


def test_attributes_that_are_not_there() -> None:
    gm = symbolic_trace(lambda x: x + 1)
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    node.op, node.target, node.args = "get_attr", "missing", ()
    with pytest.raises(GraphError, match="reads 'missing', which the module does not have"):
        annotated(gm)


# Indexing


class Custom:
    pass


class Pair(NamedTuple):
    x: int
    y: float


class Late(NamedTuple):
    inner: "Pair"
    other: "list[Tensor]"


Untyped = namedtuple("Untyped", ["x", "y"])


def indexed(hint: Any, program: Any) -> Any:
    """The type of what a program takes out of its input."""

    def f(value):
        return program(value)

    f.__annotations__ = {"value": hint}
    gm = symbolic_trace(f)
    assert all(n.type is None for n in gm.graph.nodes if n.op == "call_function")
    annotate_getitem_nodes(gm.graph)
    return [n for n in gm.graph.nodes if n.op == "call_function"][-1].type


@pytest.mark.parametrize(
    ("hint", "program", "wanted"),
    [
        (typing.Tuple[Custom, Tensor], lambda v: v[0], Custom),
        (tuple[Custom, Tensor], lambda v: v[1], Tensor),
        (tuple[Custom, Tensor], lambda v: v[-1], Tensor),
        (tuple[Custom, ...], lambda v: v[7], Custom),
        (typing.Tuple[Custom, ...], lambda v: v[1:], typing.Tuple[Custom, ...]),
        (tuple[int, str, float], lambda v: v[1:], typing.Tuple[str, float]),
        (tuple[int, str, float], lambda v: v[1:][0], str),
        (typing.List[Custom], lambda v: v[0], Custom),
        (list[Custom], lambda v: v[0], Custom),
        (list[Custom], lambda v: v[:2], list[Custom]),
        (list[tuple[int, Tensor]], lambda v: v[0][1], Tensor),
        (Pair, lambda v: v[0], int),
        (Pair, lambda v: v[1], float),
        (Pair, lambda v: v.y, float),
        (Late, lambda v: v.inner.x, int),
        (Late, lambda v: v[1][0], Tensor),
        (Optional[Pair], lambda v: v[1], float),
        (Optional[typing.Tuple[int, str]], lambda v: v[1], str),
        (tuple[int, str] | None, lambda v: v[0], int),
        (tuple[int, int] | list[int], lambda v: v[0], None),
        (dict[str, Tensor], lambda v: v["a"], Tensor),
        (torch.Size, lambda v: v[0], int),
        ("tuple[int, Tensor]", lambda v: v[1], Tensor),
        ("tuple[Unheard, Tensor]", lambda v: v[1], None),
        (Tensor, lambda v: v[0], None),
        (Untyped, lambda v: v[0], None),
        (tuple[int, int], lambda v: v[v[0]], int),
        (tuple[int, str], lambda v: v[v[0]], None),
        (tuple, lambda v: v[0], None),
        (typing.Tuple, lambda v: v[0], None),
        (typing.List, lambda v: v[0], None),
        (typing.Dict, lambda v: v["a"], None),
    ],
)
def test_indexing(hint: Any, program: Any, wanted: Any) -> None:
    assert indexed(hint, program) == wanted


def test_an_index_that_a_tuple_does_not_have() -> None:
    with pytest.raises(GraphError, match=r"takes element 2 of value.*of 2 elements"):
        indexed(tuple[int, str], lambda v: v[2])


def test_results_of_schemas_are_indexed() -> None:
    gm = annotated(lambda x: torch.max(x, 0)[1])
    annotate_getitem_nodes(gm.graph)
    assert next(n for n in gm.graph.nodes if n.target is operator.getitem).type is Tensor
    scripted = torch.jit.script(gm)
    assert scripted(torch.tensor([1.0, 3.0])).item() == 1
