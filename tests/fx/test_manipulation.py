from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace
from torch.fx.passes import graph_manipulation as reference
from torch.fx.passes.param_fetch import lift_lowering_attrs_to_nodes as reference_lift

import graphport as gp
from graphport import errors
from graphport.fx import (
    get_size_of_all_nodes,
    lift_lowering_attrs_to_nodes,
    replace_target_nodes_with,
    split_module,
)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.emb = nn.EmbeddingBag(10, 4, mode="sum")
        self.c = torch.rand(4)

    def forward(self, a: Any, ids: Any, offsets: Any) -> Any:
        h = self.linear(a + self.c) + self.c
        return h.half().double(), self.emb(ids, offsets), ids.bool()


def sizes(gm: GraphModule) -> dict[str, tuple[int, int]]:
    return {n.name: tuple(n.size_bytes) for n in gm.graph.nodes if n.op != "output"}


def test_sizes_are_those_of_the_reference() -> None:
    args = [torch.rand(2, 4), torch.tensor([1, 2, 3]), torch.tensor([0, 1])]
    models = [
        (Mixed(), args),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), [torch.rand(2, 3, 6, 6)]),
    ]
    for model, given in models:
        ours, theirs = symbolic_trace(model), symbolic_trace(model)
        get_size_of_all_nodes(ours, given)
        reference.get_size_of_all_nodes(theirs, given)
        assert sizes(ours) == sizes(theirs)
    assert ours.graph.nodes.__iter__().__next__().size_bytes == gp.fx.size_bytes(864, 864)


def test_sizes_of_parameters_by_their_own_dtype() -> None:
    class Index(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x).argmax(-1)

    gm = symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    setattr(gm, "0", Index(4, 4))
    get_size_of_all_nodes(gm, [torch.rand(3, 4)])
    # 3 numbers of 8 bytes, 20 of 4: the reference takes all for 8
    assert sizes(gm)["_0"] == (24, 24 + 80)


def test_sizes_of_several_results_and_of_none() -> None:
    gm = symbolic_trace(lambda x: (x.chunk(2), x.size(0), torch.topk(x, 1)))
    get_size_of_all_nodes(gm, [torch.zeros(2, 6)])
    assert sizes(gm) == {"x": (48, 48), "chunk": (48, 48), "size": (0, 0), "topk": (8 + 16, 8 + 16)}


def test_sizes_of_programs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 5)

        def forward(self, x: Any) -> Any:
            y = self.lin(x)
            return torch.cond(y.sum() > 0, lambda t: t + 1, lambda t: t - 1, (y,)), x.shape[0]

    ep = gp.export(Model(), (torch.randn(3, 4),), dynamic_shapes=({0: gp.Dim("b")},))
    for gm in (ep.module(), ep.graph_module):
        get_size_of_all_nodes(gm)
        found = sizes(gm)
        assert found["linear"] == (60, 60)  # 3 rows, as in the example
        assert found["p_lin_weight"] == (80, 80)
        assert found["cond"] == (60, 60) and found["true_graph_0"] == (0, 0)
    gm = ep.module()
    get_size_of_all_nodes(gm, [torch.randn(7, 4)])
    assert sizes(gm)["linear"] == (140, 140)


def test_sizes_that_are_not_known() -> None:
    gm = symbolic_trace(lambda x: x + 1)
    with pytest.raises(errors.GraphError, match="the shape of the node x is not known") as caught:
        get_size_of_all_nodes(gm)
    assert isinstance(caught.value, RuntimeError) and "example_args" in str(caught.value)

    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.nonzero()

    gm = gp.export(Model(), (torch.ones(3),)).module()
    with pytest.raises(errors.GraphError, match="that depends on data"):
        get_size_of_all_nodes(gm)
    get_size_of_all_nodes(gm, [torch.tensor([1.0, 0, 2.0])])
    assert sizes(gm)["nonzero"] == (16, 16)


def test_targets_are_replaced() -> None:
    gm = symbolic_trace(lambda a, b: (a + b) - (b + 1))
    for node in gm.graph.nodes:
        node.meta["mark"] = node.name
    replace_target_nodes_with(
        fx_module=gm,
        old_op="call_function",
        old_target=operator.add,
        new_op="call_function",
        new_target=operator.mul,
    )
    assert gm(torch.tensor(3), torch.tensor(4)) == 3 * 4 - 4
    assert all(n.meta["mark"] == n.name for n in gm.graph.nodes)
    replace_target_nodes_with(gm, "call_function", operator.mul, "call_method", "pow")
    assert gm(torch.tensor(3), torch.tensor(4)) == 3**4 - 4


def test_targets_of_modules_and_programs() -> None:
    gm = symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))
    gm.add_submodule("other", nn.Tanh())
    replace_target_nodes_with(gm, "call_module", "0", "call_module", "other")
    x = torch.randn(3)
    torch.testing.assert_close(gm(x), x.tanh().relu())
    gm = gp.export(nn.ReLU(), (x,)).module()
    aten = torch.ops.aten
    replace_target_nodes_with(
        gm, "call_function", aten.relu.default, "call_function", aten.sin.default
    )
    torch.testing.assert_close(gm(x), x.sin())


def test_targets_that_cannot_be() -> None:
    gm = symbolic_trace(lambda a: a + 1)
    cases: list[tuple[str, Any, str]] = [
        ("output", "x", "'output' is no kind of node"),
        ("call_function", "mul", "needs a function, not 'mul'"),
        ("call_method", torch.mul, "a call_method needs a name"),
    ]
    for op, target, message in cases:
        with pytest.raises(errors.InputError, match=message):
            replace_target_nodes_with(gm, "call_function", operator.add, op, target)
    with pytest.raises(errors.GraphError, match="no submodule 'absent'"):
        replace_target_nodes_with(gm, "call_function", operator.add, "call_module", "absent")
    assert gm(1) == 2


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3), nn.MaxPool2d(2)
        self.relu, self.avg, self.lin = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Linear(3, 2)

    def forward(self, a: Any) -> Any:
        a = self.conv(a)
        a += a
        return self.lin(self.avg(self.pool(self.relu(self.bn(a)))).flatten(1))


def test_attributes_for_lowering_are_those_of_the_reference() -> None:
    model = Layers()
    ours, theirs = symbolic_trace(model), symbolic_trace(model)
    lift_lowering_attrs_to_nodes(ours)
    reference_lift(theirs)
    for a, b in zip(ours.graph.nodes, theirs.graph.nodes, strict=True):
        if a.op == "call_module":
            assert a.attrs_for_lowering.keys() == b.attrs_for_lowering.keys()
            for key, value in b.attrs_for_lowering.items():
                mine = a.attrs_for_lowering[key]
                assert mine is value or mine == value
        else:
            assert not hasattr(a, "attrs_for_lowering")


def test_attributes_in_pieces_and_of_other_modules() -> None:
    split = split_module(
        symbolic_trace(Layers()), None, lambda n: int(n.name in ("flatten", "lin"))
    )
    lift_lowering_attrs_to_nodes(split)
    conv = next(n for n in split.submod_0.graph.nodes if n.op == "call_module")
    assert conv.attrs_for_lowering["name"] == "torch.nn.modules.conv.Conv2d"
    gm = symbolic_trace(nn.Sequential(nn.LayerNorm(4), nn.GELU()))
    lift_lowering_attrs_to_nodes(gm)
    norm, gelu = (n.attrs_for_lowering for n in gm.graph.nodes if n.op == "call_module")
    assert norm["normalized_shape"] == (4,) and norm["weight"] is getattr(gm, "0").weight
    assert gelu["approximate"] == "none"


def test_attributes_of_unknown_modules() -> None:
    class Own(nn.Module):
        pass

    gm = symbolic_trace(nn.Sequential(nn.ReLU()))
    setattr(gm, "0", Own())
    with pytest.raises(errors.GraphError, match=r"_0 calls 0, a .*Own") as caught:
        lift_lowering_attrs_to_nodes(gm)
    assert isinstance(caught.value, RuntimeError)
