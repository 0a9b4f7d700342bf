"""What nodes say of themselves: value, module, source line, function."""

from __future__ import annotations

import linecache

import torch
from torch import nn

import graphport as gp
from tests.helpers import check

aten = torch.ops.aten


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, v):
        return self.lin(v).cos()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.act = nn.ReLU()

    def forward(self, v):
        for block in self.blocks:
            v = self.act(block(v))
        v = self.act(v)
        return v + 1  # the sum


def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def calls(ep: gp.ExportedProgram) -> list[torch.fx.Node]:
    return [n for n in ep.graph.nodes if n.op == "call_function"]


def name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def test_module_stack():
    ep = check(Model(), (x(),))
    root, relu = ("", name(Model)), name(nn.ReLU)
    stacks = [list(n.meta["nn_module_stack"].values()) for n in calls(ep)]
    lin = name(nn.Linear)
    assert stacks == [
        [root, ("blocks.0", name(Block)), ("blocks.0.lin", lin)],
        [root, ("blocks.0", name(Block))],
        [root, ("act", relu)],
        [root, ("blocks.1", name(Block)), ("blocks.1.lin", lin)],
        [root, ("blocks.1", name(Block))],
        [root, ("act", relu)],
        [root, ("act", relu)],
        [root],
    ]
    keys = [list(n.meta["nn_module_stack"])[-1] for n in calls(ep)]
    # Each call of a module has a key of its own.
    assert keys[2] == "act" and keys[5] == "act@1" and keys[6] == "act@2"


def test_module_stack_of_functions_and_methods():
    ep = check(lambda v: v + 1, (x(),))
    assert all(not n.meta["nn_module_stack"] for n in calls(ep))
    model = Model()
    ep = gp.export(model.blocks[0].forward, (x(),))
    assert [list(n.meta["nn_module_stack"]) for n in calls(ep)] == [["lin"], []]


def test_stack_trace_has_the_users_lines():
    ep = check(Model(), (x(),))
    line = Model.forward.__code__.co_firstlineno + 4
    text = calls(ep)[-1].meta["stack_trace"]
    assert text == (f'  File "{__file__}", line {line}, in forward\n    return v + 1  # the sum\n')
    inner = calls(ep)[0].meta["stack_trace"]
    assert "v = self.act(block(v))" in inner and "return self.lin(v).cos()" in inner
    assert "torch/nn" not in inner and "graphport/" not in inner.replace("graphport/tests", "")


def test_stack_trace_of_nested_functions():
    def inner(v):
        return v.sin()

    def outer(v):
        return inner(v) * 2

    sin, mul = calls(check(outer, (x(),)))
    assert [line.strip() for line in sin.meta["stack_trace"].splitlines()][1::2] == [
        "return inner(v) * 2",
        "return v.sin()",
    ]
    assert "v.sin()" not in mul.meta["stack_trace"]


def test_stack_trace_of_sizes():
    def f(v):
        half = v.shape[0] // 2
        return v[:half] * 1

    ep = gp.export(f, (torch.randn(4, 4),), dynamic_shapes=({0: gp.Dim("b", min=2)},))
    floordiv = next(n for n in calls(ep) if "floordiv" in n.name)
    first = f.__code__.co_firstlineno
    assert f"line {first + 1}" in floordiv.meta["stack_trace"] or (
        f"line {first + 2}" in floordiv.meta["stack_trace"]
    )


def test_code_without_a_file():
    space: dict = {}
    exec("def f(v):\n    return v + 1\n", space)
    (add,) = calls(check(space["f"], (x(),)))
    assert isinstance(add.meta["stack_trace"], str)


def test_torch_fn():
    def f(v):
        y = torch.nn.functional.linear(v, v.new_ones(4, 4)) + v.cos()
        y = torch.nn.functional.linear(y, y).cos() + torch.cos(y @ y.T)
        return torch.relu(y) - y.view(-1)[0]

    have = {n.name: n.meta["torch_fn"] for n in calls(check(f, (x(),)))}
    assert have["linear"] == ("linear_1", "builtin_function_or_method.linear")
    assert have["linear_1"] == ("linear_2", "builtin_function_or_method.linear")
    assert have["cos"] == ("cos_1", "method_descriptor.cos")
    assert have["cos_1"] == ("cos_2", "method_descriptor.cos")
    assert have["cos_2"] == ("cos_3", "builtin_function_or_method.cos")
    assert have["relu"] == ("relu_1", "builtin_function_or_method.relu")


def test_every_node_has_its_metadata():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ep = check(model.eval(), (torch.randn(2, 3, 8),), rtol=1e-4, atol=1e-5)
    for node in calls(ep):
        assert {"val", "nn_module_stack", "stack_trace", "torch_fn"} <= set(node.meta), node


def test_value_of_a_node_is_a_tensor_without_data():
    b = gp.Dim("b")
    ep = gp.export(Model(), (x(),), dynamic_shapes=({0: b},))
    val = calls(ep)[-1].meta["val"]
    assert isinstance(val, torch.Tensor) and isinstance(val.shape[0], torch.SymInt)
    assert str(val.shape[0]) == "b" and val.shape[1] == 4 and val.dtype is torch.float32


def test_metadata_of_the_module_of_a_program():
    ep = check(Model(), (x(),))
    module = ep.module()
    adds = [n for n in module.graph.nodes if n.target is aten.add.Tensor]
    assert "the sum" in adds[0].meta["stack_trace"]


def test_retracing_keeps_sources_readable():
    ep = check(check(Model(), (x(),)).module(), (x(),))
    assert all("val" in n.meta for n in calls(ep))


def test_module_calls_in_order():
    ep = check(Model(), (x(),))
    assert [c.fqn for c in ep.module_call_graph] == [
        "",
        "blocks.0",
        "blocks.0.lin",
        "act",
        "blocks.1",
        "blocks.1.lin",
    ]


def test_source_lines_come_from_the_file():
    line = Model.forward.__code__.co_firstlineno + 4
    assert linecache.getline(__file__, line).strip() == "return v + 1  # the sum"
