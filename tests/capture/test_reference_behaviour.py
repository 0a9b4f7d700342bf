"""What PyTorch's own export takes, and what it makes of state and mutation, under our API.

docs/parity.md has a row for each behaviour, with what differs on purpose. Dynamic shapes and values
from data are in test_reference_shapes.py, what can be done with a program in
test_reference_programs.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphport as gp
from graphport import InputKind
from graphport.errors import CaptureWarning
from tests.capture.reference import Counts, calls, count, i, inputs, names, r
from tests.helpers import assert_same, check, compare

aten = torch.ops.aten


# Inputs and what is captured


def test_a_list_of_tensors_and_a_parameter() -> None:
    class Basic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = nn.Parameter(r(1, 3))

        def forward(self, x: list[Tensor], y: Tensor) -> Tensor:
            return x[0] + y - self.param

    assert inputs(check(Basic(), ([r(1, 3)], r(1, 3)))) == ["p_param", "x_0", "y"]


def test_a_method_of_a_plain_object_is_called() -> None:
    class Doubler:
        def add(self, x: Tensor) -> Tensor:
            return x + x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.external = Doubler().add

        def forward(self, x: Tensor) -> Tensor:
            return self.external(x)

    check(Model(), (r(1, 3),))


def test_a_parameter_with_a_colon_in_its_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("foo:bar", nn.Parameter(torch.ones(3, 3)))

        def forward(self, x: Tensor) -> Tensor:
            return x + getattr(self, "foo:bar")

    ep = check(Model(), (r(3, 3),))
    assert ep.graph_signature.inputs_to_parameters == {"p_foo_bar": "foo:bar"}


def test_plain_numbers_in_attributes_are_read_and_changed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.y, self.z = 1, {"k": 2}, (3,)

        def forward(self, x: Tensor) -> Tensor:
            self.x = self.x + 4
            self.y["k"] = self.y["k"] + 5
            self.z = (self.z[0] + 6,)
            return x + self.x + self.y["k"] + self.z[0]

    model = Model()
    with pytest.warns(CaptureWarning):
        ep = gp.export(model, (r(2, 3),))
    assert (model.x, model.y, model.z) == (1, {"k": 2}, (3,)), "capture changed the module"
    torch.testing.assert_close(ep.module()(torch.zeros(2, 3)), torch.full((2, 3), 21.0))


ONE, TWO = torch.ones(2, 3), torch.ones(3, 4)


def keywords(arg1: Any, arg2: Any, kw1: Any, kw2: Any) -> Any:
    return arg1 + arg2, kw1 + kw2


def containers(arg1: Any, arg2: Any, a: Any, b: Any) -> Any:
    return arg1 + a["kw1"] + b[0], arg2 + a["kw2"] + b[1]


def one_default(arg1: Any, arg2: Any, a: Any, b: Any = 1) -> Any:
    return arg1 + arg2.sum(), a["kw1"] + a["kw2"].sum() + b


def two_defaults(arg1: Any, arg2: Any, a: Any = 1, b: Any = 2) -> Any:
    return arg1 + a, arg2 + b


def positions(arg1: Any, arg2: Any, *args: Any) -> Any:
    return arg1 + args[0], arg2 + args[1]


def keyword_only(arg1: Any, arg2: Any, *args: Any, kw1: Any, kw2: Any) -> Any:
    return arg1 + args[0] + kw1, arg2 + args[1] + kw2


def more_keywords(arg1: Any, arg2: Any, *args: Any, kw1: Any, kw2: Any, **kwargs: Any) -> Any:
    return arg1 + args[0] + kw1 + kwargs["kw3"], arg2 + args[1] + kw2 + kwargs["kw4"]


def everything(arg1: Any, arg2: Any, *args: Any, kw1: Any, kw2: Any, **kwargs: Any) -> Any:
    first = arg1 + arg2[0][0] + args[0] + kw1[0] + kwargs["kw3"][0]
    return first, arg2[1] + args[1] + kw2 + kwargs["kw4"]


PAIR = {"kw1": ONE, "kw2": TWO}
FOUR = {"kw1": ONE, "kw2": TWO, "kw3": ONE, "kw4": TWO}
SIGNATURES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (keywords, (ONE, i(1.0)), {"kw1": i(2.0), "kw2": TWO}),
    (containers, (ONE, TWO), {"a": PAIR, "b": [ONE, TWO]}),
    (one_default, (ONE, TWO), {"a": PAIR}),
    (one_default, (ONE, TWO), {"a": PAIR, "b": 2}),
    (two_defaults, (ONE, TWO), {"b": 1}),
    (positions, (ONE, TWO, ONE, TWO), {}),
    (keyword_only, (ONE, TWO, ONE, TWO), PAIR),
    (more_keywords, (ONE, TWO, ONE, TWO), FOUR),
    (
        everything,
        (ONE, [(ONE,), TWO], ONE, TWO),
        {"kw1": (ONE,), "kw2": TWO, "kw3": (ONE, TWO), "kw4": TWO},
    ),
]


@pytest.mark.parametrize("case", SIGNATURES, ids=lambda case: case[0].__name__)
def test_signatures(case: Any) -> None:
    f, args, kwargs = case
    ep = check(f, args, kwargs)
    compare(ep, f, (args, dict(reversed(kwargs.items()))))


def test_numbers_are_inputs_beside_tensors() -> None:
    def f(a: Tensor, b: Tensor, alpha: int) -> Tensor:
        return torch.add(a, b, alpha=alpha)

    ep = check(f, (r(1, 2), r(1, 2), 10))
    values = [n.meta["val"] for n in ep.graph.nodes if n.op == "placeholder"]
    assert all(isinstance(v, (Tensor, int)) for v in values)


def test_a_default_that_is_passed_is_a_named_constant() -> None:
    def f(x: Tensor, y: Tensor, div: str = "floor") -> Tensor:
        return torch.div(x, y, rounding_mode=div)

    spec = check(f, (r(4), r(4), "floor")).graph_signature.input_specs[2]
    assert (spec.arg.name, spec.arg.value) == ("div", "floor")


def test_none_goes_in_and_comes_out() -> None:
    def one(x: Tensor, y: None) -> Tensor:
        return x * x

    def both(x: Tensor, y: None) -> tuple[Tensor, None]:
        return x * x, y

    check(one, (i(3), None), others=[(i(4), None)])
    ep = check(both, (i(3), None), others=[(i(4), None)])
    for program in (ep, ep.run_decompositions()):
        assert program.module()(i(4), None) == (i(16), None)


def test_a_program_without_inputs() -> None:
    def f() -> tuple[Tensor, Tensor]:
        return torch.randn(3, 4), torch.randn(3, 4)

    a, b = check(f, ()).module()()
    assert a.shape == b.shape == (3, 4)
    assert not torch.equal(a, b)


def test_requires_grad_of_parameters_and_inputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(r(3, 3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.p + x + y

    ep = check(Model(), (r(3, 3), r(3, 3).requires_grad_()))
    values = [n.meta["val"] for n in ep.graph.nodes if n.op == "placeholder"]
    assert [v.requires_grad for v in values] == [True, False, True]


def test_another_number_of_arguments() -> None:
    ep = check(lambda x: x + x, (torch.rand(2, 3),))
    with pytest.raises(ValueError, match="Trying to flatten user inputs"):
        ep.module()(torch.rand(2, 3), torch.rand(2, 3))


@pytest.mark.filterwarnings("ignore:`torch._utils.is_compiling` is deprecated:UserWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "asks", [torch._dynamo.is_compiling, torch._utils.is_compiling, torch.compiler.is_compiling]
)
def test_programs_can_ask_whether_they_are_captured(asks: Any, strict: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if asks() else x * 3

    x = r(5)
    ep = gp.export(f, (x,), strict=strict)
    torch.testing.assert_close(f(x), x * 3)
    torch.testing.assert_close(ep.module()(x), x * 2)


def test_printing_leaves_nothing_in_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        print("start")
        x1 = x + x
        print(x1)
        x2 = x1 * x1
        print(1, 2, 3)
        return x1, x2 + x2

    ep = gp.export(f, (r(3, 3),))
    assert names(ep) == ["x", "add", "mul", "add_1", "output"]
    assert "start" in capsys.readouterr().out
    x = r(3, 3)
    assert_same(ep.module()(x), f(x), "results differ")


def test_a_recurrent_layer_in_strict_mode() -> None:
    model = nn.LSTM(input_size=4, hidden_size=5, num_layers=1)
    ep = gp.export(model, (torch.rand(5, 4),), strict=True)
    compare(ep, model, ((torch.rand(5, 4),), {}))


# Dataclasses as containers


@dataclasses.dataclass
class Partly:
    x: Any
    y: Any
    z: Any = None


@dataclasses.dataclass
class Inner:
    x: Any
    y: Any


@dataclasses.dataclass
class Outer:
    xy: Inner
    ab: Inner


def test_dataclasses_are_containers_once_registered() -> None:
    value = Partly(x=3, y=4)
    assert pytree.tree_flatten(value)[0] == [value]
    gp.register_dataclass(Partly, serialized_type_name="tests.test_reference_behaviour.Partly")
    flat, spec = pytree.tree_flatten(value)
    assert flat == [3, 4], "a field that is None is part of the structure"
    assert pytree.tree_unflatten(flat, spec) == value
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def test_dataclasses_nest() -> None:
    value = Outer(Inner(1, 2), Inner(3, 4))
    for cls in (Inner, Outer):
        name = f"tests.test_reference_behaviour.{cls.__name__}"
        gp.register_dataclass(cls, serialized_type_name=name)
    given = {"dt1": (value, ({},)), "dt2": ((torch.ones(1),), value)}
    flat, spec = pytree.tree_flatten(given)
    assert flat == [1, 2, 3, 4, torch.ones(1), 1, 2, 3, 4]
    assert pytree.tree_unflatten(flat, spec) == given
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec

    def f(v: Any) -> Any:
        return {"sum": v["dt2"][0][0] + v["dt1"][0].ab.x, "again": v["dt1"][0]}

    check(f, (given,))


# State, constants and their names


def test_parameters_and_buffers_are_found_from_their_placeholders() -> None:
    ep = check(nn.Linear(10, 1), (r(5, 10),))
    found = [ep.state_dict[t] for t in ep.graph_signature.inputs_to_parameters.values()]
    assert [tuple(p.shape) for p in found] == [(1, 10), (1,)]
    ep = check(nn.BatchNorm2d(5, affine=False), (torch.ones(2, 5, 3, 4),))
    found = [ep.state_dict[t] for t in ep.graph_signature.inputs_to_buffers.values()]
    assert [tuple(b.shape) for b in found] == [(5,), (5,), ()]


def test_literals_are_lifted() -> None:
    ep = check(lambda x: x + torch.tensor(3), (i(1),))
    assert len(ep.graph_signature.input_specs) == 2 and len(ep.constants) == 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.tensor(3)

        def forward(self, x: Tensor) -> Tensor:
            made = [torch.tensor(3), torch.tensor(4)]
            return x + self.a + made[0] + made[1]

    ep = check(Model(), (i(1),), others=[(i(5),)])
    core = ep.run_decompositions()
    for program in (ep, core):
        assert len(program.graph_signature.input_specs) == 4
        assert not program.state_dict and len(program.constants) == 3
    compare(core, Model(), ((i(5),), {}))


@pytest.mark.parametrize("strict", [False, True])
def test_a_tensor_attribute_of_a_module_without_inputs(strict: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.tensor([1, 2])

        def forward(self) -> Tensor:
            return self.x.clone()

    ep = gp.export(Model(), (), strict=strict)
    assert ep.graph_signature.lifted_tensor_constants == ("x",)
    compare(ep, Model(), ((), {}))


def test_a_constant_may_be_the_result() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = r(3, 2)

        def forward(self) -> Tensor:
            return self.b

    class Nested(Alone):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return {"prediction": (x + y, self.b)}

    check(Alone(), ())
    check(Nested(), (r(3, 2), r(3, 2)))


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.rand(2, 3)
        self.parameter = nn.Parameter(torch.rand(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constant


@pytest.mark.parametrize("strict", [False, True])
def test_constants_keep_the_path_of_their_module(strict: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nested_1, self.nested_2 = Constant(), Constant()

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.nested_1, self.nested_2
            return a(x) + b(x) + a.constant + b.constant + a.parameter + b.parameter

    model = Model()
    ep = gp.export(model, (torch.rand(2, 3),), strict=strict)
    compare(ep, model, ((torch.ones(2, 3),), {}))
    assert ep.constants["nested_1.constant"] is model.nested_1.constant
    assert ep.constants["nested_2.constant"] is model.nested_2.constant
    placeholders = [n for n in ep.graph.nodes if n.op == "placeholder"]
    assert all(n.name == n.target for n in placeholders)
    assert [n.name for n in placeholders] == [
        "p_nested_1_parameter",
        "p_nested_2_parameter",
        "c_nested_1_constant",
        "c_nested_2_constant",
        "x",
    ]


def test_one_constant_of_two_modules() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.foo = torch.ones(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.foo

    class Whole(nn.Module):
        def __init__(self, m2: Part) -> None:
            super().__init__()
            self.m2, self.foo = m2, m2.foo

        def forward(self, x: Tensor) -> Tensor:
            return x + self.foo + self.m2(x)

    model = Whole(Part())
    ep = check(model, (torch.ones(3, 3),))
    assert sorted(ep.constants) == ["foo", "m2.foo"]
    kinds = [s.kind for s in ep.graph_signature.input_specs]
    assert kinds.count(InputKind.CONSTANT_TENSOR) == 1
    x = r(3, 3)
    torch.testing.assert_close(gp.unflatten(ep)(x), model(x))


def test_aliases_of_a_parameter_that_are_not_used() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha = nn.Parameter(r(4))
            self.beta = self.alpha
            self.gamma = self.alpha

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gamma

    ep = check(Model(), (r(4),))
    assert set(ep.state_dict) == set(gp.unflatten(ep).state_dict()) == {"alpha", "beta", "gamma"}


def test_one_layer_in_two_places() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.LayerNorm([2, 2, 3])
            self.norms = nn.ModuleList([layer, layer])

        def forward(self, x: Tensor) -> Tensor:
            for norm in self.norms:
                x = norm(x)
            return x

    model = Model()
    ep = check(model, (r(1, 2, 2, 3),))
    assert_same(dict(ep.state_dict), dict(model.state_dict()), "state differs")


def test_a_buffer_that_is_not_saved() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("foo", torch.rand(2, 3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.foo + x

    ep = check(Model(), (torch.rand(2, 3),))
    assert "foo" not in ep.state_dict and list(ep.constants) == ["foo"]
    assert "foo" in dict(ep.named_buffers())
    module = ep.module()
    assert "foo" not in module.state_dict() and "foo" in dict(module.named_buffers())


class Child1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child1param = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x / x + self.child1param


class Child2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("child2buffer", torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.child2buffer


@pytest.mark.parametrize("training", [False, True])
def test_state_keeps_its_qualified_names(training: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.foo, self.bar = Child1(), Child2()
            self.rootparam = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.bar(self.foo(x * self.rootparam))

    model = Model()
    ep = gp.export(model, (torch.rand(2, 3),), training=training)
    for state in (ep.state_dict, ep.module().state_dict()):
        assert_same(dict(state), dict(model.state_dict()), "state differs")
    compare(ep, model, ((r(2, 3),), {}))


def test_names_of_inputs_win_over_the_names_of_state() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = nn.Parameter(r(4))
            self.register_buffer("alpha", r(4), persistent=True)
            self.register_buffer("beta", r(4), persistent=False)
            self.gamma = r(4)

        def forward(self, p: Any, b_alpha: Tensor, b: Any, c_gamma: Tensor) -> Any:
            first = p["param"] + self.param
            return first, self.alpha + self.beta + b_alpha + b["beta"], self.gamma + c_gamma

    ep = check(Model(), ({"param": r(4)}, r(4), {"beta": r(4)}, r(4)))
    assert [(s.arg.name, s.kind.name) for s in ep.graph_signature.input_specs] == [
        ("p_param_1", "PARAMETER"),
        ("b_alpha_1", "BUFFER"),
        ("b_beta_1", "BUFFER"),
        ("c_gamma_1", "CONSTANT_TENSOR"),
        ("p_param", "USER_INPUT"),
        ("b_alpha", "USER_INPUT"),
        ("b_beta", "USER_INPUT"),
        ("c_gamma", "USER_INPUT"),
    ]
    ep = check(lambda mul, add, add_1: mul * mul + add * add_1, (r(4, 4), r(4, 4), r(4, 4)))
    assert names(ep) == ["mul", "add", "add_1", "mul_1", "mul_2", "add_2", "output"]


# Modules that are made while the program runs


def part(kind: str) -> nn.Module:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if kind == "buffer":
                self.b: Any = torch.ones(3, 3)
            elif kind == "constant":
                self.b = torch.tensor(5)
            elif kind == "parameter":
                self.a = nn.Parameter(torch.ones(3, 3))
                self.b = nn.Parameter(torch.tensor(5.0))

        def forward(self, x: Tensor) -> Tensor:
            if kind == "none":
                return x + x
            return x + (self.a * self.b if kind == "parameter" else self.b)

    return Part()


@pytest.mark.parametrize(
    ("kind", "constants", "operators"),
    [
        ("none", 0, ["add", "mul"]),
        ("buffer", 0, ["ones", "add", "mul"]),
        ("constant", 1, ["add", "mul"]),
        ("parameter", 1, ["ones", "mul", "add", "mul_1"]),
    ],
)
def test_modules_made_in_forward(kind: str, constants: int, operators: list[str]) -> None:
    """Copies and detaches that change nothing are not part of our graphs; they are of torch's."""

    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return part(kind)(x) * x

    model = Whole()
    ep = check(model, (r(3, 3),))
    assert not ep.state_dict and len(ep.constants) == constants
    assert [n.name for n in calls(ep)] == operators
    stack = list(calls(ep)[-1].meta["nn_module_stack"].values())
    assert len(stack) == 1 and "Whole" in stack[0][1]
    x = r(3, 3)
    torch.testing.assert_close(gp.unflatten(ep)(x), model(x))


def test_a_hook_and_tensors_that_were_added_to_modules() -> None:
    class Plus(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.tensor(1.0)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.a

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seq = nn.Sequential(Plus()).eval()
            self.seq.b = torch.tensor(2)
            self.seq.register_forward_hook(lambda module, given, output: 2 * output)

        def forward(self, x: Tensor) -> Tensor:
            return self.seq(x) + self.seq.b

    ep = check(Model(), (r(2, 8),))
    assert set(ep.constants) == {"seq.0.a", "seq.b"}


# Mutation


def test_graphs_are_functional_and_show_views() -> None:
    def f(x: Tensor) -> Tensor:
        z = x + 4
        z.add_(4)
        y = z.view(x.shape)
        return x.cos() + y.cos()

    ep = check(f, (i([2, 3, 5]),))
    assert count(ep, aten.add_.Tensor) == 0
    assert count(ep, aten.view.default) > 0


def test_a_conversion_that_changes_nothing_is_the_tensor_itself() -> None:
    """As in eager; torch records a copy, and refuses to write to it."""

    def moved(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.to("cpu")
        y.add_(1)
        return y, x

    def converted(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.float()
        y.add_(1)
        return y, x

    for f in (moved, converted):
        ep = check(f, (i(1.0),))
        assert list(ep.graph_signature.user_inputs_to_mutate.values()) == ["x"]
    ep = check(lambda x: x.float() + 1, (i(1.0),))
    assert [n.name for n in calls(ep)] == ["add"]
    ep = check(lambda x: x.double() + 1, (i(1.0),))
    assert calls(ep)[0].meta["val"].dtype is torch.float64


def test_a_copy_that_must_be_fresh_is_a_clone() -> None:
    ep = check(lambda x: aten.lift_fresh_copy(x), (torch.ones(6, 4),))
    assert [n.target for n in calls(ep)] == [aten.clone.default]


@pytest.mark.parametrize("before", [True, False])
def test_buffers_of_several_modules_are_written_back(before: bool) -> None:
    eager = Counts(before)
    ep = check(Counts(before), (torch.ones(5, 5),))
    module = ep.module()
    for own, inner in ((1.0, 4.0), (2.0, 7.0)):
        torch.testing.assert_close(module(torch.ones(5, 5)), eager(torch.ones(5, 5)))
        assert {n: b.item() for n, b in module.named_buffers()} == {"buf": own, "bar.buf": inner}
        assert not module.graph.eliminate_dead_code()


def test_an_input_and_a_buffer_are_written_to() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("foo", r(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.foo.add_(1)
            x.add_(1)
            return self.foo + x

    model = Model()
    ep = check(model, (torch.rand(4, 4),))
    torch.testing.assert_close(ep.module().foo, model.foo)


def test_an_input_is_written_to_through_a_view() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.view(3, 2, -1).add_(y)
        return x

    ep = check(f, (r(12), i(2.0)))
    x = r(12)
    want = x + 2
    assert ep.module()(x, i(2.0)) is x
    torch.testing.assert_close(x, want)


def test_placeholders_may_be_renamed_before_another_capture() -> None:
    def f(x: Tensor) -> Tensor:
        x[:, :2, :] = x[:, :2, :] + 1
        return x

    module = gp.export(f, (torch.ones(4, 4, 4),)).module()
    for k, node in enumerate(module.graph.nodes):
        if node.op == "placeholder":
            node.name = f"arg0_{k + 1}"
    module.recompile()
    compare(gp.export(module, (torch.ones(4, 4, 4),)), f, ((r(4, 4, 4),), {}))
