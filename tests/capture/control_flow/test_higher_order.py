"""Other operators that call a function: any that calls it with its operands is captured."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops import hints_wrapper, invoke_subgraph, strict_mode
from torch._higher_order_ops.flat_apply import flat_apply, func_to_graphable
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import graphport as gp
from graphport.errors import ForwardError, UnsupportedError
from tests.helpers import check

HIGHER = torch.ops.higher_order
X = torch.randn(3, 4)
N = gp.Dim("n", min=2, max=20)


def hinted(f, *args):
    return hints_wrapper(f, args, {}, hints={"k": 1})


def strict(f, *args):
    return strict_mode(f, args)


def invoked(f, *args):
    return invoke_subgraph(f, "name", *args)


OPERATORS = [(hinted, "hints_wrapper"), (strict, "strict_mode"), (invoked, "invoke_subgraph")]


@pytest.mark.parametrize(("operator", "name"), OPERATORS)
def test_operators_that_call_a_function(operator, name):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.randn(4))

        def forward(self, x):
            y, n = x * 2, x.shape[0]

            def inner(a, b):
                return {"s": (a + y) * self.scale, "n": [b.sum() * n, None]}

            run = operator if torch.compiler.is_compiling() else lambda f, *args: f(*args)
            return run(inner, x, y)

    ep = check(Model(), (X,), dynamic_shapes=({0: N},), others=[(torch.randn(5, 4),)])
    (call,) = (n for n in ep.graph.nodes if n.target is getattr(HIGHER, name))
    inner = getattr(ep.graph_module, f"{name}_graph_0").graph
    names = [n.name for n in inner.nodes if n.op == "placeholder"]
    assert names == ["x", "mul", "b_scale"]
    assert call.kwargs == {}


@pytest.mark.parametrize(("operator", "name"), OPERATORS)
def test_writes_inside(operator, name):
    def f(x):
        y = x.clone()

        def inner(y):
            y.add_(1)
            return y * 2

        run = operator if torch.compiler.is_compiling() else lambda f, *args: f(*args)
        return run(inner, y), y

    check(f, (X,))


@torch.compiler.nested_compile_region
def region(x, k, *, shift=0):
    return {"out": x.sin() * k + shift}


def test_nested_compile_regions():
    ep = check(lambda x: region(region(x, 2)["out"], 3, shift=x), (X,))
    assert [n.target for n in ep.graph.nodes if n.op == "get_attr"] == [
        "invoke_subgraph_graph_0",
        "invoke_subgraph_graph_1",
    ]


def test_operators_made_of_others_are_taken_apart():
    def f(x):
        a = x.to(torch.int8)
        return HIGHER.out_dtype(torch.ops.aten.mul.Tensor, torch.int32, a, a)

    ep = check(f, (X,))
    assert all(n.target is not HIGHER.out_dtype for n in ep.graph.nodes)


def test_functions_that_are_called_outright():
    def f(x):
        _, spec = func_to_graphable(lambda d: d["x"] + 1)
        _, in_spec = pytree.tree_flatten((({"x": x},), {}))
        return flat_apply(spec, in_spec, x) + checkpoint(lambda a: a.sin(), x, use_reentrant=False)

    check(f, (X,))


class Operator(torch._ops.HigherOrderOperator):
    def __init__(self, name, kernel):
        super().__init__(f"graphport_test_{name}")
        self.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(kernel)
        self.py_impl(torch._C.DispatchKey.AutogradCPU)(kernel)

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


def test_arguments_that_are_no_operands():
    noted = Operator("noted", lambda fn, x, notes, *, size: fn(x))
    dropping = Operator("dropping", lambda fn, x, y: fn(y))

    def f(x):
        y = noted(torch.sin, x, {"size": [x.shape[0]], "x": x}, size=x.shape[0])
        return y, dropping(torch.cos, x, x + 1)

    ep = gp.export(f, (X,), dynamic_shapes=({0: N},))
    ep.validate()
    for x in (X, torch.randn(7, 4)):
        torch.testing.assert_close(ep.module()(x), (x.sin(), (x + 1).cos()))


REFUSED = {
    "swapping": (lambda fn, x, y: fn(y, x), lambda op, x: op(torch.sub, x, x + 1)),
    "choosing": (lambda one, other, x: one(x), lambda op, x: op(torch.sin, torch.cos, x)),
    "of two": (lambda fn, x, y: fn(x, y), lambda op, x: op(torch.add, x, x)),
    "of one": (lambda fn, x: fn(x), lambda op, x: (y := x + 1, op(lambda x: x * y, x))[1]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_cannot_be_called_with_what_the_graph_takes(name):
    kernel, call = REFUSED[name]
    operator = Operator(name.replace(" ", "_"), kernel)
    with pytest.raises(UnsupportedError, match=r"cannot be captured: it"):
        gp.export(lambda x: call(operator, x), (X,))


def test_an_operator_that_does_more_is_refused():
    doubling = Operator("doubling", lambda fn, x: fn(x) * 2)
    with pytest.raises(UnsupportedError) as error:
        gp.export(lambda x: doubling(lambda a: a.sin(), x), (X,))
    text = str(error.value)
    assert "torch.ops.higher_order.graphport_test_doubling cannot be captured" in text
    assert "test_higher_order.py" in text and "fix" in text


def test_an_exception_inside_is_the_users():
    def f(x):
        def inner(x):
            raise RuntimeError("mine")

        return strict_mode(inner, (x,))

    with pytest.raises(ForwardError, match="RuntimeError in the program: mine"):
        gp.export(f, (X,))
