"""`validate()` looks into the graphs within a program."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

import graphport as gp
from graphport.errors import VerificationError

aten = torch.ops.aten
X = torch.ones(3, 4)


def conditional(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def repeated(x):
    return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))


def mapped(x):
    return gp.map(lambda r: r * 2, x)


def scanned(x):
    return gp.scan(lambda c, r: (c + r, c * r), torch.zeros(4), x)


def nested(x):
    return torch.cond(x.sum() > 0, conditional, lambda x: x * 2, (x,))


@pytest.mark.parametrize("f", [conditional, repeated, mapped, scanned, nested])
def test_captured_programs_are_valid(f):
    gp.export(f, (X,)).validate()


def problem(f, tamper, within=""):
    ep = gp.export(f, (X,))
    inner = ep.graph_module.get_submodule(within)
    assert isinstance(inner, GraphModule)
    tamper(inner)
    with pytest.raises(VerificationError) as error:
        ep.validate()
    return str(error.value)


def call(module):
    return next(n for n in reversed(module.graph.nodes) if n.op == "call_function")


def output(module):
    return next(n for n in reversed(module.graph.nodes) if n.op == "output")


def mutate(module):
    node = call(module)
    node.target, node.args = aten.relu_.default, (node.args[0],)


@pytest.mark.parametrize(
    ("f", "within"),
    [
        (conditional, "true_graph_0"),
        (mapped, "body_graph_0"),
        (nested, "true_graph_0.false_graph_0"),
    ],
)
def test_mutation(f, within):
    text = problem(f, mutate, within)
    assert f"in {within}: " in text and "aten.relu_.default mutates its arguments" in text


def test_missing_metadata():
    text = problem(repeated, lambda m: call(m).meta.pop("val"), "while_loop_body_graph_0")
    assert "in while_loop_body_graph_0: " in text and "no `val` in its metadata" in text


def test_a_graph_that_is_not_there():
    text = problem(conditional, lambda m: m.__delattr__("true_graph_0"))
    assert "there is no graph 'true_graph_0'" in text


def drop_operand(module):
    node = next(n for n in module.graph.nodes if n.name == "cond")
    node.args = (*node.args[:3], [])


def test_operands_in_another_number():
    text = problem(conditional, drop_operand)
    assert "cond: true_graph_0 takes 1 values, the call says 0" in text


def test_operands_of_another_kind():
    def tamper(module):
        node = next(n for n in module.graph.nodes if n.name == "scan")
        node.args = (node.args[0], [node.args[2][0]], *node.args[2:])

    text = problem(scanned, tamper)
    assert "scan_combine_graph_0 takes float32[4] as value 0, the call says float32[3, 4]" in text


@pytest.mark.parametrize(
    ("f", "within", "said"),
    [
        (conditional, "true_graph_0", "cond: true_graph_0 returns 2 values, the call says 1"),
        (mapped, "body_graph_0", "map_impl: body_graph_0 returns 2 values, the call says 1"),
    ],
)
def test_results_in_another_number(f, within, said):
    def tamper(module):
        last = output(module)
        last.args = ((*last.args[0], last.args[0][0]),)

    assert said in problem(f, tamper, within)


def test_results_of_another_kind():
    def tamper(module):
        last = output(module)
        last.args = ((3,),)

    text = problem(conditional, tamper, "false_graph_0")
    assert "false_graph_0 returns int as value 0, the call says float32[3, 4]" in text
