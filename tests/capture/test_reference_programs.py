"""What PyTorch's own export writes down and what becomes of a program, under our API.

Metadata, control flow, custom operators, decompositions, the training form, another capture,
programs without data. The rest is in test_reference_behaviour.py; docs/parity.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel

import graphport as gp
from graphport import Dim
from tests.capture.control import cond, map
from tests.capture.reference import Counts, calls, count, i, inputs, names, r
from tests.helpers import assert_same, check, compare

aten = torch.ops.aten

# The newest torch deprecates a call that exported programs are full of.
pytestmark = pytest.mark.filterwarnings("ignore:_check_is_size will be removed:FutureWarning")


# Metadata


def test_the_lines_of_the_user() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            x *= 2.0
            return x

    trace = {n.name: n.meta["stack_trace"] for n in calls(check(Model(), (r(4, 4),)))}
    assert re.search(r"test_reference_programs.py.*in forward\n.*x \*= 2.0", trace["mul"])
    assert re.search(r"in forward\n.*x = self.linear\(x\)", trace["linear"])


def test_the_lines_of_numbers() -> None:
    """A number is computed where it is first used, and one that is only returned is at no line."""

    def f(x: Tensor, y: Tensor) -> Any:
        torch.sym_constrain_range_for_size(y.item(), min=2)
        z = x.shape[0] == 4
        return torch.sym_ite(z, x.shape[0], x.shape[1])

    spec = {"x": gp.dims("dx0", "dx1"), "y": None}
    ep = gp.export(f, (r(4, 4), i(5)), dynamic_shapes=spec)
    for shape in ((4, 4), (4, 7), (3, 6)):
        assert ep.module()(r(*shape), i(5)) == f(r(*shape), i(5))
    trace = {n.name: n.meta["stack_trace"] for n in calls(ep)}
    limit = next(v for k, v in trace.items() if k.startswith("sym_constrain_range"))
    assert re.search(r"in f\n.*torch.sym_constrain_range_for_size", limit)
    assert trace["sym_ite"] == ""
    used = gp.export(
        lambda x: x * torch.sym_ite(x.shape[0] == 4, 2, 3),
        (r(4),),
        dynamic_shapes={"x": {0: Dim("n")}},
    )
    trace = {n.name: n.meta["stack_trace"] for n in calls(used)}
    assert re.search(r"in <lambda>\n.*torch.sym_ite", trace["sym_ite"])


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf = Leaf()
        self.register_buffer("buffer", r(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.buffer.sum() + self.leaf(x).sum()


class Tree(nn.Module):
    """Two names for one module, and a buffer that its owner's parent reads."""

    def __init__(self) -> None:
        super().__init__()
        self.bar = Branch()
        self.bar_different = self.bar

    def forward(self, x: Tensor) -> tuple[Tensor]:
        y = self.bar.buffer + x
        return (self.bar(x) + self.bar_different(x + 2) + y.sum(),)


@pytest.mark.parametrize("strict", [False, True])
def test_unflattened_modules_have_the_operators_that_they_called(strict: bool) -> None:
    model = Tree()
    x = r(4, 4)
    ep = gp.export(model, (x,), strict=strict)
    core = ep.run_decompositions()
    for program, operators in ((ep, ["linear"]), (core, ["permute", "addmm"])):
        tree = gp.unflatten(program)
        assert hasattr(tree.bar, "buffer") and hasattr(tree.bar, "leaf")
        assert_same(tree(x), model(x), "results differ", 1e-4, 1e-5)
        inner = [n.name for n in tree.bar.leaf.linear.graph.nodes if n.op == "call_function"]
        assert [re.sub(r"_\d+$", "", n) for n in inner] == operators


# Control flow


@pytest.mark.parametrize("training", [False, True])
def test_functions_of_nodes_within_branches(training: bool) -> None:
    class Sub(nn.Module):
        def foo(self, x: Tensor) -> Tensor:
            return x.cos()

        def forward(self, x: Tensor) -> Tensor:
            return self.foo(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.subm = Sub()

        def bar(self, x: Tensor) -> Tensor:
            return x.sin()

        def forward(self, x: Tensor) -> Tensor:
            return cond(x.shape[0] <= 2, self.subm.forward, self.bar, [x])

    model, spec = Model(), {"x": {0: Dim("n")}}
    ep = gp.export(model, (r(1, 3, 3, 3),), dynamic_shapes=spec, training=training)
    for n in (1, 2, 3):
        compare(ep, model, ((r(n, 3, 3, 3),), {}))
    graphs = [m.graph for m in ep.module().modules() if isinstance(m, torch.fx.GraphModule)]
    found = {n.name: n.meta["torch_fn"] for g in graphs for n in g.nodes if n.name in "sin cos"}
    assert found == {
        "cos": ("cos_1", "method_descriptor.cos"),
        "sin": ("sin_1", "method_descriptor.sin"),
    }


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.ones(6, 4))

    def forward(self) -> Tensor:
        return self.buffer.cos()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_branch_calls_a_module_with_a_buffer(dynamic: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Buffered()

        def forward(self, x: Tensor) -> Tensor:
            def true_fn(x: Tensor) -> Tensor:
                return x.cos() + self.a().sum()

            return cond(x.shape[0] > 4, true_fn, lambda x: x.sin(), [x])

    spec = {"x": {0: Dim("n")}} if dynamic else None
    ep = check(Model(), (r(6, 4),), dynamic_shapes=spec, others=[(r(3, 4),)] if dynamic else [])
    assert count(ep, torch.ops.higher_order.cond) == dynamic


def test_branches_use_a_parameter_and_a_buffer() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = nn.Parameter(torch.ones(2, 3), requires_grad=False)
            self.register_buffer("buffer", torch.ones(2, 3) + 1)

        def true_fn(self, x: Tensor) -> Tensor:
            return x + self.param

        def false_fn(self, x: Tensor) -> Tensor:
            return x + self.buffer

        def forward(self, x: Tensor) -> Tensor:
            return cond(x.sum() > 0, self.true_fn, self.false_fn, [x])

    ep = check(Model(), (torch.ones(2, 3),), others=[(-torch.ones(2, 3),)])
    module = ep.module()
    assert sum(n.op == "placeholder" for n in module.graph.nodes) == 1
    assert set(ep.state_dict) == {"param", "buffer"}


def test_map_with_further_arguments_and_state_from_outside() -> None:
    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = nn.Parameter(torch.tensor(5.0), requires_grad=False)
            self.register_buffer("buffer", torch.tensor(6.0) + 1)

    state = State()

    def body(x: Tensor, y: Tensor) -> Tensor:
        z = x + y + state.param + state.buffer
        z.add_(4)
        return z

    check(lambda xs, y, z: map(lambda x, y, z: x + y + z, xs, y, z), (r(6, 4), i(5), i(4)))
    ep = check(lambda xs, y: map(body, xs, y), (torch.ones(3, 2), i(3)))
    assert sum(n.op == "placeholder" for n in ep.module().graph.nodes) == 2


class Predicate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pred", torch.tensor(False))
        self.register_buffer("t", torch.tensor(10))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def true_fn(x: Tensor, y: Tensor) -> Tensor:
            with torch.enable_grad():
                return x - 1 + self.t + y

        return cond(self.pred, true_fn, lambda x, y: x + 1 - self.t + y, [x, y])


@pytest.mark.parametrize("training", [False, True])
def test_a_buffer_is_the_predicate(training: bool) -> None:
    model = Predicate()
    with torch.no_grad():
        ep = gp.export(model, (i(10), i(12)), training=training)
        for value in (False, True):
            model.pred.fill_(value)
            compare(ep, model, ((i(10), i(12)), {}))
    assert inputs(ep) == ["b_pred", "b_t", "x", "y"]
    assert [n.name for n in calls(ep)] == ["cond", "getitem"]


def test_names_within_a_region_of_another_gradient_mode() -> None:
    def f(x: Tensor, mul: Tensor, mul_1: Tensor) -> Tensor:
        square = x * x
        y = cond(
            square.sum() > 0,
            lambda x, y, z: x * y * z,
            lambda x, y, z: x + y + z,
            [square, mul, mul_1],
        )
        with torch.enable_grad():
            return y * y

    with torch.no_grad():
        ep = gp.export(f, (r(4), r(4), r(4)), training=True)
    ep.validate()
    compare(ep, f, ((r(4), r(4), r(4)), {}))
    inner = ep.graph_module.true_graph_0.graph
    assert [n.name for n in inner.nodes] == ["mul_2", "mul", "mul_1", "mul_3", "mul_4", "output"]
    inner = ep.graph_module.submod_1.graph
    assert next((n.name, n.op) for n in inner.nodes) == ("getitem", "placeholder")
    assert [n.target for n in inner.nodes if n.op == "call_function"] == [aten.mul.Tensor]


# Custom operators


library = torch.library.Library("gp_behaviour", "DEF")
library.define(
    "foo(Tensor(a!) x, Tensor(b!) z) -> (Tensor, Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag
)
library.define("foo_mutated(Tensor(a!) x) -> (Tensor, Tensor)")
library.define("foo_functional(Tensor x) -> Tensor")
library.define("foo_unbacked(Scalar x) -> Tensor")
ops = torch.ops.gp_behaviour


def foo(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x.add_(5)
    z.add_(5)
    return x, z, x + z


def foo_mutated(x: Tensor) -> tuple[Tensor, Tensor]:
    a, _, _ = ops.foo(x, x.cos())
    return a, a.cos()


def foo_unbacked(x: Any) -> Tensor:
    if x > 2:
        return torch.ones(4, 4)
    if x < 6:
        return torch.ones(4, 4)
    return torch.ones(4, 4)


library.impl("foo", foo, "CPU")
torch.library.register_fake("gp_behaviour::foo", lambda x, z: (x, z, x + z))
library.impl("foo_mutated", foo_mutated, "CompositeImplicitAutograd")
library.impl(
    "foo_functional", lambda x: ops.foo(x.cos(), x.cos())[0].cos(), "CompositeImplicitAutograd"
)
library.impl("foo_unbacked", foo_unbacked, "CompositeImplicitAutograd")


def functionalized(ep: gp.ExportedProgram) -> int:
    return sum("auto_functionalized" in str(n.target) for n in calls(ep))


@pytest.mark.parametrize("op", ["foo", "foo_mutated"])
def test_a_custom_operator_that_writes_to_what_it_returns(op: str) -> None:
    call = getattr(ops, op)
    args = (torch.ones(5), torch.ones(5))[: 1 if op == "foo_mutated" else 2]

    def f(*args: Tensor) -> Any:
        return call(*args)

    ep = gp.export(f, args)
    core = ep.run_decompositions()
    for program in (ep, core):
        program.validate()
        compare(program, f, (args, {}))
    assert functionalized(core) == 1
    written = ["args_0", "args_1"][: len(args)]
    assert list(ep.graph_signature.user_inputs_to_mutate.values()) == written


def test_a_composite_operator_that_writes_inside_only() -> None:
    ep = check(lambda x: ops.foo_functional(x), (torch.ones(5),))
    assert [n.target for n in calls(ep)] == [ops.foo_functional.default]
    core = ep.run_decompositions()
    core.validate()
    assert functionalized(core) == 1
    compare(core, lambda x: ops.foo_functional(x), ((r(5),), {}))


@pytest.mark.parametrize("training", [False, True])
def test_a_composite_operator_that_branches_on_a_number_from_data(training: bool) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        total = y.sin().sum()
        with torch.no_grad():
            a = x.item()
            torch._check_is_size(a)
            torch._check(a > 2)
            torch._check(a < 6)
            made = ops.foo_unbacked(a)
        return y + total + made.sum()

    ep = gp.export(f, (i(4), r(5, 5)), training=training)
    core = ep.run_decompositions()
    for program in (ep, core, gp.export(ep.module(), (i(4), r(5, 5)))):
        program.validate()
        compare(program, f, ((i(3), r(5, 5)), {}))
        with pytest.raises(RuntimeError, match=r"Invalid value range for 6 between \[3, 5\]"):
            program.module()(i(6), r(5, 5))
    assert count(core, ops.foo_unbacked.default) == 0


# Decompositions


def test_linear_becomes_core_operators() -> None:
    model = nn.Linear(10, 1)
    for spec in (None, {"input": {0: Dim("batch")}}):
        ep = check(model, (r(5, 10),), dynamic_shapes=spec)
        state = ep.state_dict
        core = ep.run_decompositions()
        assert count(core, aten.permute.default) == 1 and count(core, aten.t.default) == 0
        assert ep.state_dict is state and core.state_dict is state
        last = [n for n in core.graph.nodes if n.op == "placeholder"][-1]
        assert isinstance(last.meta["val"].shape[0], torch.SymInt if spec else int)
        compare(core, model, ((r(5, 10),), {}), rtol=1e-4, atol=1e-5)


def test_a_preserved_operator_beside_one_that_cannot_be() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Any:
            return aten.chunk.default(self.linear(x), 3, 0)

    ep = gp.export(Model(), (r(3, 3),)).run_decompositions({}, preserve_ops=(aten.linear.default,))
    assert names(ep) == [
        "p_linear_weight",
        "p_linear_bias",
        "x",
        "linear",
        "split",
        "getitem",
        "getitem_1",
        "getitem_2",
        "output",
    ]


class Convolutions(nn.Module):
    """Two convolutions, and a linear layer whose weights are plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.conv1d = nn.Conv2d(4, 3, 3), nn.Conv1d(4, 3, 3)
        self.linear = nn.Module()
        self.linear.weight, self.linear.bias = r(5, 8), r(5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        linear = F.linear(self.conv(x), self.linear.weight, self.linear.bias)
        return linear.cos() + self.conv1d(y).sum()


def test_convolutions_stay_whole_on_request() -> None:
    model, args = Convolutions(), (r(2, 4, 5, 10), r(2, 4, 5))
    ep = check(model, args, rtol=1e-4, atol=1e-5)
    assert inputs(ep) == [
        "p_conv_weight",
        "p_conv_bias",
        "p_conv1d_weight",
        "p_conv1d_bias",
        "c_linear_weight",
        "c_linear_bias",
        "x",
        "y",
    ]
    kept = (aten.conv2d.default, aten.conv1d.default)
    whole = ep.run_decompositions(preserve_ops=(*kept, aten.linear.default))
    convolutions = ep.run_decompositions(preserve_ops=kept)
    core, composite = ep.run_decompositions(), ep.run_decompositions({})
    for program in (whole, convolutions, core, composite):
        compare(program, model, (args, {}), rtol=1e-4, atol=1e-5)
        assert inputs(program) == inputs(ep)
    for program in (whole, convolutions):
        assert [count(program, op) for op in kept] == [1, 1]
    assert count(whole, aten.linear.default) == 1 and count(convolutions, aten.addmm.default) == 1
    for program, transposed in ((core, aten.permute.default), (composite, aten.t.default)):
        assert count(program, aten.convolution.default) == 2
        assert count(program, transposed) == count(program, aten.addmm.default) == 1


def test_batch_norm_in_evaluation_writes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1, 1), nn.BatchNorm2d(3)).eval()
    ep = check(model, (r(1, 1, 3, 3),), rtol=1e-4, atol=1e-5)
    core = ep.run_decompositions()
    assert not core.graph_signature.buffers_to_mutate
    assert count(core, aten._native_batch_norm_legit_no_training.default) == 1
    compare(core, model, ((r(1, 1, 3, 3),), {}), rtol=1e-4, atol=1e-5)


def test_assertions_outlast_decompositions() -> None:
    def size(x: Tensor) -> Tensor:
        y = x.item()
        torch._check_is_size(y)
        return torch.zeros(y)

    def lookup(x: Tensor) -> Tensor:
        pos = x.item()
        torch._check(pos >= 0)
        torch._check(pos <= 4)
        return torch.arange(5)[pos] * 2

    for f, asserted in ((size, 1), (lookup, 2)):
        ep = check(f, (i(3),))
        core = ep.run_decompositions()
        for program in (ep, core):
            assert count(program, aten._assert_scalar.default) == asserted
            assert count(program, aten.sym_constrain_range.default) <= 1
            with pytest.raises(RuntimeError, match="Invalid value range for -1 between"):
                program.module()(i(-1))


def test_tables_of_torch() -> None:
    """Its table of all decompositions, on an operator that writes and on one with a plain dim."""
    table = torch._decomp.decomposition_table

    def norm(*args: Any) -> Any:
        return torch.ops.aten.native_batch_norm(*args)

    args = (r(5, 5, 5), r(5), r(5), r(5), torch.rand(5), True, 0.5, 0.6)
    ep = gp.export(norm, args)
    assert len(ep.graph_signature.user_inputs_to_mutate) == 2
    for program in (ep, ep.run_decompositions(table)):
        compare(program, norm, (args, {}), rtol=1e-4, atol=1e-5)

    def scatter(t: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        return torch.ops.aten.scatter_add(t, dim, index, src)

    args = (r(10, 5), -1, torch.stack([torch.randperm(5) for _ in range(5)]), r(5, 5))
    ep = check(scatter, args)
    compare(ep.run_decompositions(table), scatter, (args, {}))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, None, dropout_p=0.0, is_causal=True)


def test_attention() -> None:
    args = tuple(r(1, 1, 8, 8) for _ in range(3))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)[0], args, rtol=1e-4, atol=1e-5)
    with sdpa_kernel([SDPBackend.MATH]):
        ep = check(attention, args, rtol=1e-4, atol=1e-5)
        core = ep.run_decompositions()
    assert [n.target for n in calls(ep)] == [aten.scaled_dot_product_attention.default]
    compare(core, attention, (tuple(r(1, 1, 8, 8) for _ in range(3)), {}), rtol=1e-4, atol=1e-5)


# The training form


def test_training_form_of_a_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    ep = gp.export(model, (torch.ones(2, 2),), training=True)
    assert names(ep) == ["p_0_weight", "p_0_bias", "input", "linear", "output"]
    module = ep.module()
    targets = [n.target for n in module.graph.nodes if n.op == "get_attr"]
    assert targets == ["0.weight", "0.bias"]
    compare(ep, model, ((torch.ones(2, 2),), {}))


class Plus5(nn.Module):
    def __init__(self, rows: int = 4) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.ones(rows, 4))

    def forward(self, x: Tensor) -> Tensor:
        x.add_(5)
        self.buffer.add_(5)
        return x + self.buffer.sum()


def test_training_form_of_writes() -> None:
    ep = gp.export(Plus5(), (torch.ones(4, 4),), training=True)
    assert names(ep) == ["b_buffer", "x", "add_", "add__1", "sum_1", "add", "output"]
    assert calls(ep)[0].target is calls(ep)[1].target is aten.add_.Tensor
    compare(ep, Plus5(), ((torch.ones(4, 4),), {}))


def test_training_form_with_dynamic_sizes() -> None:
    spec = ({0: Dim("x")},)
    training = gp.export(Plus5(), (torch.ones(4, 4),), dynamic_shapes=spec, training=True)
    compare(training, Plus5(), ((torch.ones(2, 4),), {}))
    inference = gp.export(Plus5(), (torch.ones(4, 4),), dynamic_shapes=spec)
    assert str(training.range_constraints) == str(inference.range_constraints)


def test_training_form_becomes_functional() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buffer", torch.ones(2, 2))
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.buffer.add_(5)
            return self.linear(x) + self.buffer.sum()

    model = Model()
    ep = gp.export(model, (torch.ones(2, 2),), training=True).run_decompositions()
    assert inputs(ep) == ["p_linear_weight", "p_linear_bias", "b_buffer", "x"]
    assert [s.kind.name for s in ep.graph_signature.output_specs] == [
        "BUFFER_MUTATION",
        "USER_OUTPUT",
    ]
    assert not any(n.target is aten.add_.Tensor for n in ep.graph.nodes)
    compare(ep, model, ((r(2, 2),), {}), rtol=1e-4, atol=1e-5)


def through_a_view(x: Tensor) -> Tensor:
    x.view(3, 4)[1:].add_(1)
    return x * 2


def through_a_reshape(x: Tensor) -> Tensor:
    x[2:].reshape(5, 2).mul_(3)
    return x + 1


@pytest.mark.parametrize("f", [through_a_view, through_a_reshape])
@pytest.mark.parametrize("table", [None, {}])
def test_what_is_written_through_a_view_outlasts_decompositions(f: Any, table: Any) -> None:
    ep = gp.export(f, (r(12),), training=True)
    compare(ep.run_decompositions(table), f, ((r(12),), {}))


def sum_of_two(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    a, b, c = x.item(), y.item(), z.item()
    torch._check(a == b + c)
    return x * 2 if b + c == a else x + 3


def same_size(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    a, b = torch.arange(4)[: x.item()], torch.arange(4) + z
    with torch.no_grad():
        kept = b[b > 0]
        torch._check(kept.shape[0] == a.shape[0])
        return a + kept + y


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("f", "good", "bad"), [(sum_of_two, (6, 3, 3), (7, 3, 3)), (same_size, (3, 1, 0), (2, 1, 0))]
)
def test_equalities_between_values_from_data_outlast_decompositions(
    f: Any, good: Any, bad: Any, training: bool
) -> None:
    args = tuple(i(n) for n in good)
    ep = gp.export(f, args, training=training)
    for program in (ep, ep.run_decompositions(), ep.run_decompositions({})):
        program.validate()
        compare(program, f, (args, {}))
        with pytest.raises(RuntimeError, match="Runtime assertion failed for expression Eq"):
            program.module()(*(i(n) for n in bad))


def test_training_form_of_a_convolution_with_a_dynamic_batch() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, kernel_size=3, padding=1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            a = self.conv(x)
            a.add_(y)
            return F.max_pool2d(a.relu(), 3)

    model, batch = Model(), Dim("batch")
    args = (r(2, 3, 16, 16), torch.ones(2, 8, 16, 16))
    ep = gp.export(model, args, dynamic_shapes=({0: batch}, {0: batch}), training=True)
    for n in (7, 5):
        compare(ep, model, ((r(n, 3, 16, 16), torch.ones(n, 8, 16, 16)), {}))


# Another capture


def test_capture_again_of_a_shared_layer_with_constants() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 3, 3)
            self.weight, self.bias = r(5, 8), r(5)

        def half(self, x: Tensor) -> Tensor:
            return F.linear(self.conv(x), self.weight, self.bias)

        def forward(self, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            a, b = self.half(x[0]), self.half(x[1])
            return a.cos() + b.sin(), a.sin() + b.cos()

    model, args = Model(), ((r(2, 4, 5, 10), r(2, 4, 5, 10)),)
    ep = gp.export(model, args)
    again = gp.export(ep.module(), args)
    assert inputs(again) == inputs(ep)
    compare(again, model, (((r(2, 4, 5, 10), r(2, 4, 5, 10)),), {}), rtol=1e-4, atol=1e-5)


def test_capture_again_keeps_what_the_first_one_fixed() -> None:
    def fresh() -> Counts:
        return Counts(False)

    x = torch.ones(5, 5)
    again = gp.export(gp.export(fresh(), (x,)).module(), (x,))
    compare(again, fresh(), ((x,), {}))
    d = Dim("d", min=3)
    ep = gp.export(fresh(), (x,), dynamic_shapes={"x": {0: d}})
    static = gp.export(ep.module(), (x,))
    with pytest.raises(RuntimeError, match=r"shape\[0\] to be equal to 5, but got 7"):
        static.module()(torch.ones(7, 5))
    dynamic = gp.export(ep.module(), (x,), dynamic_shapes=({0: d},))
    compare(dynamic, fresh(), ((torch.ones(7, 5),), {}))
    text = "Expected input at *args[0].shape[0] to be >= 3, but got 2"
    with pytest.raises(RuntimeError, match=re.escape(text)):
        gp.export(ep.module(), (torch.ones(2, 5),))


@pytest.mark.parametrize(
    ("fn", "size", "dim"),
    [
        (lambda x: F.max_pool1d(x, 3), 7, gp.Dim("n")),
        (lambda x: F.max_pool1d(x, 3), 8, 2 * gp.Dim("n")),
        (lambda x: F.adaptive_max_pool2d(x, (None, 3)), 7, gp.Dim("n", min=1)),
    ],
)
def test_capture_again_asks_for_no_more(fn: Callable[..., Any], size: int, dim: Any) -> None:
    """What the program checks of its sizes are no branches of the user's; sizes stay open."""
    x, spec = torch.randn(1, size, size), ({1: dim, 2: dim},)
    once = gp.export(fn, (x,), dynamic_shapes=spec)
    again = gp.export(once.module(), (x,), dynamic_shapes=spec)
    assert str(again.range_constraints) == str(once.range_constraints)
    assert str(again.checks.facts) == str(once.checks.facts)
    y = torch.randn(1, 12, 12)
    torch.testing.assert_close(again.module()(y), fn(y))


def test_capture_again_on_the_meta_device_keeps_module_stacks() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = nn.Parameter(r(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.param

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nested = Nested()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.nested(x)

    x = torch.ones(3, device="meta")
    ep = gp.export(Model().to("meta"), (x,))
    again = gp.export(ep.module(), (x,))
    for one, other in zip(ep.graph.nodes, again.graph.nodes, strict=True):
        stacks = [n.meta.get("nn_module_stack") for n in (one, other)]
        assert stacks[0] == stacks[1]


# Programs without data


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_weights_and_inputs_of_a_fake_mode_on_the_meta_device() -> None:
    with FakeTensorMode(), torch.device("meta"):
        x, model = torch.rand(5, 2, 2), Linear()
        ep = gp.export(model, (x,))
        values = [n.meta["val"] for n in ep.graph.nodes if "val" in n.meta]
        assert all(v.device == x.device for v in values)
        for program in (ep, ep.run_decompositions()):
            assert program.module()(x).size() == model(x).size()


def test_weights_and_inputs_that_claim_another_device() -> None:
    with FakeTensorMode(), torch.device("meta"):
        x, model = torch.rand(5, 2, 2), Linear()
    x.fake_device = torch.device("cuda:0")
    for p in model.parameters():
        p.fake_device = torch.device("cuda:0")
        p.requires_grad = False
    ep = gp.export(model, (x,))
    values = [n.meta["val"] for n in ep.graph.nodes if "val" in n.meta]
    assert all(v.device == x.device for v in values)
    assert values[-1].shape == (5, 2, 2)


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.foo = nn.Parameter(r(4, 4))
        self.register_buffer("bar", r(4, 4), persistent=False)
        self.register_buffer("baz", r(4, 4), persistent=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.foo + x + self.bar + self.baz


def test_fake_weights_fake_inputs_and_capture_under_a_fake_mode() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]))
    with mode:
        fake, x = Sums(), r(4, 4)
    real = Sums()
    plain = gp.export(real, (r(4, 4),))
    assert names(gp.export(fake, (r(4, 4),))) == names(plain)
    ep = gp.export(real, (x,))
    compare(ep, real, ((torch.ones(4, 4),), {}))
    with mode:
        assert names(gp.export(fake, (x,))) == names(plain)


# As a part of something else


@pytest.mark.parametrize("strict", [False, True])
def test_as_a_backend_of_torch_compile(strict: bool) -> None:
    found = []

    def backend(graph: Any, examples: Any) -> Any:
        ep = gp.export(graph, tuple(examples), strict=strict)
        found.append(inputs(ep))
        return ep.run_decompositions().module()

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    args = (r(3, 3), r(3, 3))
    torch.testing.assert_close(torch.compile(f, backend=backend)(*args), f(*args))
    assert found == [["L_x_", "L_y_"]]
