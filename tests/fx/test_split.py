from __future__ import annotations

import copy
import inspect
import operator
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.passes.split_module import split_module as reference

import graphport as gp
from graphport import errors
from graphport.fx import NormalizeArgs, ShapeProp, split_module
from graphport.fx.effects import is_random


def every(count: int) -> Callable[[Node], int]:
    """A callback that starts a new piece after so many nodes."""
    seen = 0

    def callback(node: Node) -> int:
        nonlocal seen
        seen += 1
        return (seen - 1) // count

    return callback


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


class Shared(nn.Module):
    """A parameter of its own, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.rand(3, 4))
        self.linear = nn.Linear(4, 5)

    def forward(self, x, y):  # no types: FX cannot pickle those that are texts
        z = self.linear(x + self.param).clamp(min=0.0, max=1.0)
        w = self.linear(y).clamp(min=0.0, max=1.0)
        return z + w


# Plain graphs


def test_pieces_compute_what_the_graph_did_and_keep_metadata() -> None:
    gm = symbolic_trace(Shared())
    for node in gm.graph.nodes:
        node.meta["mark"] = node.name
        node.type = torch.Tensor if node.op != "output" else None
    turn = iter((0, 1, 2, 0, 1, 2))
    split = split_module(gm, None, lambda node: next(turn))
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    same(split(x, y), gm(x, y))
    for name in ("submod_0", "submod_1", "submod_2"):
        piece = getattr(split, name)
        assert isinstance(piece, GraphModule)
        for node in piece.graph.nodes:
            if node.op != "output":
                assert (node.meta["mark"], node.type) == (node.name, torch.Tensor)
    assert split.submod_0.linear is split.submod_1.linear is gm.linear
    assert split.param is gm.param


def test_the_graph_outside_is_as_large_as_the_reference_makes_it() -> None:
    for model in (Shared(), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))):
        for size in (1, 2, 3, 10):
            gm = symbolic_trace(model)
            ours, theirs = split_module(gm, model, every(size)), reference(gm, model, every(size))
            assert len(ours.graph.nodes) == len(theirs.graph.nodes)
            # Theirs are in another order where that is free.
            assert dict(ours.named_children()).keys() == dict(theirs.named_children()).keys()


def test_names_of_modules_lead_back() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
            self.lin = nn.Linear(4, 4)
            self.deep = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.lin(torch.relu(torch.mm(torch.mm(x, self.p), self.p)))
            return self.deep(self.lin(torch.mm(x, self.q)))

    gm = symbolic_trace(Model())
    piece = 0

    def callback(node: Node) -> int:
        nonlocal piece
        piece += node.target == "lin"
        return piece

    names: dict[str, str] = {}
    split = split_module(gm, None, callback, names)
    assert names == {"submod_1.lin": "lin", "submod_2.lin": "lin", "submod_2.deep.0": "deep.0"}
    for new, old in names.items():
        assert split.get_submodule(new) is gm.get_submodule(old)
    x = torch.randn(2, 4)
    same(split(x), gm(x))


def test_dead_code_is_kept_and_returns_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        wanted = x * 2
        x + 2
        return wanted

    gm = symbolic_trace(f)
    split = split_module(gm, None, lambda n: 1 if n.target is operator.mul else 2)
    x = torch.randn(5)
    same(split(x), gm(x))
    assert split.submod_2(x) == ()


def test_keywords_and_further_arguments() -> None:
    class Model(nn.Module):
        def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            return x + kwargs["foo"] * args[0]

    gm = symbolic_trace(Model())
    split = split_module(gm, None, every(1))
    x, y, foo = torch.randn(3, 5, 3)
    same(split(x, y, foo=foo), gm(x, y, foo=foo))


def test_default_arguments() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(5, 5)

        def forward(self, x: Any, targets: Any = None, scale: float = 2.0) -> Any:
            x = self.lin(x) * scale
            return x if targets is None else x + targets

    gm = symbolic_trace(Model(), concrete_args={"targets": None})
    split = split_module(gm, None, every(1))
    x = torch.randn(3, 5)
    same(split(x), gm(x))
    same(split(x, scale=3.0), gm(x, scale=3.0))


def test_a_graph_of_one_piece_and_a_graph_of_none() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU()))
    gm = symbolic_trace(model)
    x = torch.randn(2, 3, 7, 7)
    same(split_module(gm, model, lambda n: 0).eval()(x), model.eval()(x))
    assert split_module(symbolic_trace(lambda x: x), None, every(1))(3) == 3


@pytest.mark.parametrize("ids", ["text", (1, 2), -1, True, "a.b"])
def test_ids_of_any_kind(ids: Any) -> None:
    gm = symbolic_trace(lambda x: (x + 1) * 2)
    split = split_module(gm, None, lambda n: ids if n.target is operator.add else 0)
    names = [name for name, _ in split.named_children()]
    assert len(names) == 2 and all(n.isidentifier() and n.startswith("submod_") for n in names)
    same(split(torch.ones(2)), torch.full((2,), 4.0))


def test_a_module_called_submod_already() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.submod_0 = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.submod_0(x) + self.submod_0.weight

    gm = symbolic_trace(Model())
    x = torch.randn(2, 2)
    once = split_module(gm, None, every(1))
    same(once(x), gm(x))
    same(split_module(once, None, every(2))(x), gm(x))


def test_buffers_stay_as_persistent_as_they_were() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.kept + self.gone

    gm = GraphModule(Model(), Graph())
    gm.register_buffer("kept", torch.ones(2))
    gm.register_buffer("gone", torch.ones(2), persistent=False)
    x = gm.graph.placeholder("x")
    args = (gm.graph.call_function(operator.mul, (x, gm.graph.get_attr("kept"))),)
    gm.graph.output(gm.graph.call_function(operator.add, (*args, gm.graph.get_attr("gone"))))
    gm.recompile()
    split = split_module(gm, None, every(1))
    assert list(split.state_dict()) == ["kept"]
    same(split(torch.ones(2)), torch.full((2,), 2.0))


def test_the_result_can_be_copied_pickled_traced_and_trained() -> None:
    gm = symbolic_trace(Shared())
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    for change in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), symbolic_trace):
        same(change(split_module(gm, None, every(2)))(x, y), gm(x, y))
    split = split_module(gm, None, every(2))
    assert list(inspect.signature(split.forward).parameters) == ["x", "y"]
    split(x, y).sum().backward()
    assert gm.linear.weight.grad is not None and gm.param.grad is not None
    assert split.train().training and not split.eval().submod_0.training


# What may not be split, and in which order


def test_pieces_that_need_one_another() -> None:
    gm = symbolic_trace(lambda x: ((x + 1) * 2) - 3)
    turn = iter((0, 1, 0))
    with pytest.raises(errors.GraphError) as caught:
        split_module(gm, None, lambda n: next(turn))
    assert isinstance(caught.value, RuntimeError)
    assert str(caught.value) == (
        "GP195 submod_0 and submod_1 depend on each other: mul in submod_1 takes add in submod_0; "
        "sub in submod_0 takes mul in submod_1\n"
        "  fix  give these nodes one id, or ids whose partitions have no cycle"
    )


def test_a_long_way_round_is_named_as_a_whole() -> None:
    gm = symbolic_trace(lambda x: (((x + 1) * 2) - 3) / 4 + x.sin())
    turn = iter(("a", "b", "c", "a", "d", "d"))
    with pytest.raises(
        errors.GraphError, match="submod_a, submod_b and submod_c depend on each other"
    ):
        split_module(gm, None, lambda n: next(turn))


def test_writes_keep_their_place() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.clone()
        before = y * 1
        y.add_(1)
        after = y * 1
        return before, after

    gm = symbolic_trace(f)
    x = torch.zeros(2)
    same(split_module(gm, None, every(1))(x), gm(x))
    # Nothing leads from the first product to the sum but the memory that they share.
    pieces = {"clone": 0, "mul": 2, "add_": 1, "mul_1": 3}
    same(split_module(gm, None, lambda n: pieces[n.name])(x), gm(x))
    pieces = {"clone": 0, "mul": 1, "add_": 2, "mul_1": 1}
    with pytest.raises(errors.GraphError, match="mul_1 in submod_1 must run after add_ in"):
        split_module(gm, None, lambda n: pieces[n.name])


def test_an_attribute_that_is_read_twice_is_one() -> None:
    graph, root = Graph(), nn.Module()
    root.register_buffer("state", torch.zeros(2))
    x = graph.placeholder("x")
    first = graph.call_function(torch.add, (graph.get_attr("state"), x))
    graph.call_method("add_", (graph.get_attr("state"), 1))
    last = graph.call_function(torch.mul, (graph.get_attr("state"), x))
    graph.output((first, last))
    gm = GraphModule(root, graph)
    pieces = {"add": "c", "add_": "b", "mul": "a"}
    x = torch.ones(2)
    same(split_module(gm, None, lambda n: pieces[n.name])(x), (x, x))
    pieces["mul"] = "c"
    with pytest.raises(errors.GraphError, match="must run after add_ in submod_b"):
        split_module(gm, None, lambda n: pieces[n.name])


def test_modes_stay_around_what_they_are_for() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.sin, (x,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    b = graph.call_function(torch.cos, (x,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    c = graph.call_function(torch.tan, (x,))
    context = graph.call_function(torch.amp._enter_autocast, ("cpu", torch.bfloat16, True, False))
    d = graph.call_function(torch.matmul, (x, x))
    graph.call_function(torch.amp._exit_autocast, (context,))
    graph.output((a, b, c, d, graph.call_function(torch.matmul, (x, x))))
    gm = GraphModule(nn.Module(), graph)
    x = torch.ones(2, 2, requires_grad=True)
    for size in (1, 2, 3):
        a, b, c, d, e = split_module(gm, None, every(size))(x)
        assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, True)
        assert (d.dtype, e.dtype) == (torch.bfloat16, torch.float32)
    with pytest.raises(errors.GraphError, match="tan in submod_0 must run after _set_grad_enabled"):
        split_module(gm, None, lambda n: int(n.target is not torch.tan and n.name != "sin"))


def test_pieces_run_in_the_order_in_which_they_appear() -> None:
    gm = symbolic_trace(lambda x: (x + 1, x + 2, x + 3))
    split = split_module(gm, None, every(1))
    calls = [n.target for n in split.graph.nodes if n.op == "call_module"]
    assert calls == ["submod_0", "submod_1", "submod_2"]


class Drawing(nn.Module):
    """What is drawn belongs to one of two pieces by the side that it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x: Any, y: Any) -> Any:
        left = self.left(x)
        right = torch.rand_like(self.right(y)).bernoulli()
        return nn.functional.dropout(left, 0.5), right


@pytest.mark.parametrize("exported", [False, True])
def test_random_numbers_are_drawn_in_the_order_of_the_graph(exported: bool) -> None:
    model, args = Drawing(), (torch.rand(3, 4), torch.rand(3, 4))
    gm = gp.export(model, args).module() if exported else symbolic_trace(model)
    found = {}
    for node in gm.graph.nodes:
        taken = [n.name if n.op == "placeholder" else found.get(n) for n in node.all_input_nodes]
        found[node] = "x" if "x" in taken else "y"
    split = split_module(gm, None, found.__getitem__)
    calls = [n.target for n in split.graph.nodes if n.op == "call_module"]
    assert calls == ["submod_y", "submod_x"]
    torch.manual_seed(0)
    expected = model(*args)
    torch.manual_seed(0)
    same(split(*args), expected)


def test_an_order_of_random_numbers_that_pieces_cannot_keep() -> None:
    gm = symbolic_trace(lambda x: (x.bernoulli(), x.bernoulli(), x.bernoulli()))
    split = split_module(gm, None, lambda n: n.name == "bernoulli_1")
    split(torch.rand(3))
    assert [n.target for n in split.graph.nodes if n.op == "call_module"] == [
        "submod_False",
        "submod_True",
    ]


@torch.fx.wrap
def noisy(x: Any) -> Any:
    return x + torch.rand_like(x)


def test_what_may_draw() -> None:
    layers = {
        "drop": nn.Dropout(),
        "off": nn.Dropout().eval(),
        "lstm": nn.LSTM(2, 2, 2, dropout=0.1),
        "gru": nn.GRU(2, 2),
        "encoder": nn.TransformerEncoderLayer(4, 2),
        "own": Drawing(),
        "linear": nn.Linear(2, 2),
        "graph": symbolic_trace(lambda x: x.bernoulli()),
    }
    graph = Graph()
    x = graph.placeholder("x")
    for name in layers:
        graph.call_module(name, (x,))
    for method in ("relu", "uniform_"):
        graph.call_method(method, (x,))
    functions: Any = (
        noisy,
        torch.rand,
        torch.cos,
        nn.functional.dropout2d,
        operator.add,
        torch.ops.aten.rand,
    )
    for function in functions:
        graph.call_function(function, (x,))
    for training in (True, False):
        graph.call_function(torch.ops.aten.dropout.default, (x, 0.5, training), name="dropped")
    found = [n.name for n in graph.nodes if is_random(n, layers)]
    assert found == [
        "drop",
        "lstm",
        "encoder",
        "own",
        "graph",
        "uniform_",
        "noisy",
        "rand",
        "dropout2d",
        "rand_1",
        "dropped",
    ]


def test_wrong_inputs() -> None:
    with pytest.raises(errors.InputError, match="not Linear") as caught:
        split_module(nn.Linear(2, 2), None, every(1))
    assert "symbolic_trace" in str(caught.value)
    with pytest.raises(errors.InputError, match="returned None for the node add"):
        split_module(symbolic_trace(lambda x: x + 1), None, lambda n: None)
    gm = symbolic_trace(Shared())
    del gm.param
    with pytest.raises(errors.GraphError, match="the graph uses param"):
        split_module(gm, None, every(1))
    assert split_module(gm, Shared(), every(1)).param.shape == (3, 4)


def test_ten_thousand_nodes() -> None:
    graph = Graph()
    value = graph.placeholder("x")
    for _ in range(10_000):
        value = graph.call_function(torch.add, (value, 1))
    graph.output(value)
    gm = GraphModule(nn.Module(), graph)
    start = time.process_time()
    split = split_module(gm, None, every(1000))
    assert time.process_time() - start < 5
    same(split(torch.zeros(1)), torch.full((1,), 10_000.0))


_UNARY = (torch.neg, torch.sin, torch.tanh)
_BINARY = (operator.add, operator.mul, torch.maximum)


@st.composite
def graphs(draw: Any) -> tuple[GraphModule, dict[str, int]]:
    """A graph, and a piece for every node such that pieces never lead back."""
    graph, root = Graph(), nn.Module()
    root.weight = nn.Parameter(torch.linspace(-1, 1, 4))
    root.layer = nn.Linear(4, 4)
    values = [graph.placeholder("a"), graph.placeholder("b"), graph.get_attr("weight")]
    pieces: dict[str, int] = {}
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.integers(0, 3))
        args = [draw(st.sampled_from(values)) for _ in range(2)]
        if kind == 0:
            node = graph.call_function(draw(st.sampled_from(_UNARY)), (args[0],))
        elif kind == 1:
            node = graph.call_module("layer", (args[0],))
        elif kind == 2:
            node = graph.call_method("clamp", (args[0],), {"max": args[1]})
        else:
            node = graph.call_function(draw(st.sampled_from(_BINARY)), tuple(args))
        # No less than the pieces of what it needs: then edges lead upwards only.
        least = max((pieces.get(n.name, 0) for n in node.all_input_nodes), default=0)
        pieces[node.name] = least + draw(st.integers(0, 2))
        values.append(node)
    graph.output(tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))))
    return GraphModule(root, graph), pieces


@settings(max_examples=80)
@given(graphs())
def test_random_graphs_in_random_pieces(case: tuple[GraphModule, dict[str, int]]) -> None:
    gm, pieces = case
    split = split_module(gm, None, lambda n: pieces[n.name])
    a, b = torch.linspace(-2, 2, 4), torch.linspace(1, -1, 4)
    same(split(a, b), gm(a, b))
    inner = [n.name for m in split.children() if isinstance(m, GraphModule) for n in m.graph.nodes]
    kept = [name for name in inner if name in pieces]
    assert set(kept) == set(pieces)
    split.graph.lint()


# Exported programs


class Rich(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, x: Any, *, other: Any) -> Any:
        self.count.add_(1)
        z = self.lin(x) + other["a"] * self.mask
        z = torch.cond(z.sum() > 0, lambda t: self.lin(t) * 2, lambda t: t - 1, (z,))
        z = self.out(z).reshape(x.shape[0] * 4)
        return {"z": z, "n": self.count * 1}, x.shape[0]


def exported() -> gp.ExportedProgram:
    b = gp.Dim("b")
    return gp.export(
        Rich(),
        (torch.randn(3, 4),),
        {"other": {"a": torch.randn(3, 4)}},
        dynamic_shapes={"x": {0: b}, "other": {"a": {0: b}}},
    )


@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_a_program_is_called_as_before(size: int) -> None:
    ep = exported()
    whole, split = ep.module(), split_module(ep, None, every(size))
    for batch in (5, 2, 1):
        x, other = torch.randn(batch, 4), {"a": torch.randn(batch, 4)}
        same(split(x, other=other), whole(x, other=other))  # the buffer counts in both
    assert inspect.signature(split) == inspect.signature(whole)
    with pytest.raises(Exception, match="to be equal to 5, but got 2"):
        split(torch.randn(5, 4), other={"a": torch.randn(2, 4)})
    with pytest.raises(NotImplementedError):
        split.train()


def test_pieces_of_a_program_have_the_state_that_they_use() -> None:
    ep = exported()
    names: dict[str, str] = {}
    split = split_module(
        ep,
        None,
        lambda n: int(
            "out" in str(n.meta.get("nn_module_stack"))
            or n.name.startswith(("linear_1", "reshape"))
            or n.target is torch.ops.aten.copy_.default
        ),
        names,
    )
    state = split.state_dict()
    assert set(state) == {
        "count",
        "submod_0.lin.weight",
        "submod_0.lin.bias",
        "submod_1.out.weight",
        "submod_1.out.bias",
    }
    assert names["submod_1.out.weight"] == "out.weight"
    assert set(state) - set(names) == {"count"}  # written to by one piece, and read by another
    assert split.submod_0.lin.weight is ep.module().lin.weight
    assert hasattr(split.submod_0, "true_graph_0") and not hasattr(split, "true_graph_0")


def test_what_one_piece_reads_and_writes_is_its_own() -> None:
    split = split_module(exported(), None, lambda n: 0)
    assert "submod_0.count" in split.state_dict()
    x, other = torch.randn(2, 4), {"a": torch.randn(2, 4)}
    split(x, other=other)
    split(x, other=other)
    assert split.submod_0.count == 2


def test_the_module_of_a_program_is_split_as_the_program() -> None:
    ep = exported()
    split = split_module(ep.module(), None, every(4))
    x, other = torch.randn(2, 4), {"a": torch.randn(2, 4)}
    same(split(x, other=other), ep.module()(x, other=other))
    functional = ep.graph_module
    args = [
        torch.as_tensor(ep.tensor(s.target)) if s.target else None
        for s in ep.graph_signature.input_specs
    ]
    args = [a for a in args if a is not None] + [x, other["a"]]
    same(split_module(functional, None, every(3))(*args), functional(*args))


def test_metadata_of_programs_reach_the_pieces() -> None:
    split = split_module(exported(), None, every(4))
    for piece in (split, *split.children()):
        for node in piece.graph.nodes:
            if node.op == "placeholder" or (node.op == "call_function" and node.users):
                assert "val" in node.meta, node


_VIEWS: list[Any] = [
    lambda x: x.as_strided((3,), (1,)),
    lambda x: torch.einsum("ij->ji", x),
    lambda x: torch.broadcast_tensors(torch.ones(1), x)[1],
    lambda x: torch.atleast_2d(x),
    lambda x: torch.flatten(x, 0, 1),
]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("view", _VIEWS)
def test_writes_through_views_keep_their_place(view: Any, by_name: bool) -> None:
    def program(x: Any) -> Any:
        x = x.clone()
        part = view(x)
        before = x.sin()
        part.mul_(2)
        return before, x.cos()

    x = torch.randn(2, 3)
    gm = symbolic_trace(program)
    ShapeProp(gm).propagate(x)
    gm = NormalizeArgs(gm).transform() if by_name else gm
    ids = {"sin": "late", "cos": "late"}
    with pytest.raises(errors.GraphError, match="mul_ in submod_early must run after sin"):
        split_module(gm, None, lambda n: ids.get(n.name, "early"))
    ids = {"sin": "a", "mul_": "b", "cos": "a_"}
    split = split_module(gm, None, lambda n: ids.get(n.name, "early"))
    torch.testing.assert_close(split(x), program(x))


def test_a_module_whose_weight_is_written_to() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            y = self.lin(x)
            self.lin.weight.data.mul_(2)
            return y, self.lin(x)

    gm = symbolic_trace(Model())
    with pytest.raises(errors.GraphError, match="must run after mul_"):
        split_module(gm, None, lambda n: int(n.op == "call_module"))


def test_buffers_over_the_same_memory() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("base", torch.zeros(4, 2))
            self.register_buffer("part", self.base[:2])

        def forward(self, x: Any) -> Any:
            y = x.sin() + self.part
            self.base.add_(1)
            return y, self.part.cos()

    x = torch.randn(2, 2)
    ep = gp.export(Model(), (x,), training=True)
    with pytest.raises(errors.GraphError, match="cos in submod_a must run after add_ in submod_b"):
        split_module(ep, None, lambda n: "a" if n.name in ("sin", "cos") else "b")
    split = split_module(ep, None, lambda n: n.name)
    torch.testing.assert_close(split(x), Model()(x))


def test_statistics_by_name() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    x = torch.randn(4, 3)
    gm = NormalizeArgs(gp.export(model, (x,), training=True).module()).transform()
    split = split_module(gm, None, lambda n: n.name)
    torch.testing.assert_close(split(x), model(x))
    found = [b for name, b in split.named_buffers() if name.endswith("running_mean")]
    torch.testing.assert_close(found, [model[1].running_mean])
