"""`ep.module()`: the user's signature, shared parameters, mutations written back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from tests.program.saved import check_round_trip


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.weight + self.count


def test_mutated_buffers_belong_to_the_module_that_runs() -> None:
    model = Counter()
    ep = gp.export(model, (torch.ones(3),))
    first, second = ep.module(), ep.module()
    first(torch.ones(3))
    first(torch.ones(3))
    assert first.count.item() == 2
    assert second.count.item() == 0
    assert model.count.item() == 0
    assert ep.state_dict["count"].item() == 0


def test_parameters_are_shared() -> None:
    model = Counter()
    module = gp.export(model, (torch.ones(3),)).module()
    assert module.weight is model.weight
    module(torch.ones(3)).sum().backward()
    assert model.weight.grad is not None


def test_state_dict_has_the_original_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Counter())
    module = gp.export(nn.Sequential(nn.Linear(3, 3), Counter()), (torch.ones(3),)).module()
    assert list(module.state_dict()) == list(model.state_dict())
    assert "1.scratch" not in module.state_dict()
    assert "1.scratch" in dict(module.named_buffers())


def test_train_and_eval_are_refused_with_the_reason() -> None:
    module = gp.export(nn.Dropout(), (torch.ones(2),)).module()
    with pytest.raises(NotImplementedError, match=r"Calling train\(\) is not supported yet"):
        module.train()
    with pytest.raises(NotImplementedError, match=r"Calling eval\(\) is not supported yet"):
        module.eval()


def test_a_mutated_input_that_is_returned_is_the_callers_tensor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x

    x = torch.zeros(3)
    assert gp.export(f, (torch.zeros(3),)).module()(x) is x
    assert x.tolist() == [1, 1, 1]


def test_dead_code_elimination_keeps_the_write_back() -> None:
    module = gp.export(Counter(), (torch.ones(3),)).module()
    assert not module.graph.eliminate_dead_code()
    module.recompile()
    module(torch.ones(3))
    assert module.count.item() == 1


def test_keywords_in_any_order_and_by_position() -> None:
    def f(a: Any, b: Any, *, c: Any, d: Any = 1) -> Any:
        return a - b * c["k"] + d

    args = (torch.tensor(7.0), torch.tensor(2.0))
    ep = gp.export(f, args, {"d": torch.tensor(5.0), "c": {"k": torch.tensor(3.0)}})
    module = ep.module()
    want = f(*args, c={"k": torch.tensor(3.0)}, d=torch.tensor(5.0))
    assert module(*args, c={"k": torch.tensor(3.0)}, d=torch.tensor(5.0)) == want
    assert module(*args, d=torch.tensor(5.0), c={"k": torch.tensor(3.0)}) == want
    assert module(args[0], b=args[1], d=torch.tensor(5.0), c={"k": torch.tensor(3.0)}) == want


def test_it_is_a_graph_module_that_copies_and_prints() -> None:
    module = gp.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module()
    assert isinstance(module, torch.fx.GraphModule)
    assert "torch.ops.aten.linear.default" in module.code
    x = torch.randn(1, 2)
    torch.testing.assert_close(copy.deepcopy(module)(x), module(x))


def test_the_program_itself_is_not_callable() -> None:
    with pytest.raises(RuntimeError, match=r"Use `ep.module\(\)\(...\)`"):
        gp.export(lambda x: x, (torch.ones(1),))(torch.ones(1))


def test_retrace_keeps_names_results_and_constraints() -> None:
    model = Counter()
    d = gp.Dim("d", min=2, max=6)
    ep = gp.export(model, (torch.ones(4, 3),), dynamic_shapes={"x": {0: d}})
    again = gp.export(ep.module(), (torch.ones(4, 3),), dynamic_shapes={"x": {0: d}})
    again.validate()
    assert again.graph_signature.user_inputs == ("x",)
    assert again.graph_signature.inputs_to_parameters == {"p_weight": "weight"}
    x = torch.randn(5, 3)
    torch.testing.assert_close(again.module()(x), ep.module()(x))
    with pytest.raises(RuntimeError, match="to be <= 6, but got 7"):
        again.module()(torch.randn(7, 3))
    with pytest.raises(RuntimeError, match=r"\*args\[0\].shape\[0\] to be >= 2, but got 1"):
        gp.export(ep.module(), (torch.ones(1, 3),))


class Assigned(nn.Module):
    """Writes one value to several buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.zeros(2))
        self.register_buffer("c", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = x * 2
        self.a = value
        self.b.copy_(value)
        self.c.copy_(value)
        return value + 1


@pytest.mark.parametrize("form", ["captured", "decomposed", "torch", "unflattened"])
def test_a_value_that_is_written_to_several_buffers(form: str) -> None:
    model = Assigned()
    ep = gp.export(model, (torch.ones(2),))
    assert sorted(ep.graph_signature.buffers_to_mutate.values()) == ["a", "b", "c"]
    if form == "torch":
        ep = gp.from_torch(ep.to_torch())
    elif form == "decomposed":
        ep = ep.run_decompositions()
    module = gp.unflatten(ep) if form == "unflattened" else ep.module()
    module(torch.ones(2))
    for name in "abc":
        assert getattr(module, name).tolist() == [2, 2], name
        assert getattr(model, name).tolist() == [0, 0], name


@pytest.mark.parametrize("saved", ["a", "b"])
@pytest.mark.parametrize("training", [False, True])
def test_a_buffer_with_two_names_of_which_one_is_saved(saved: str, training: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            both = torch.zeros(2)
            self.register_buffer("a", both, persistent=saved == "a")
            self.register_buffer("b", both, persistent=saved == "b")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.add_(x)
            return self.b * 1

    model = Model()
    ep = gp.export(model, (torch.ones(2),), training=training)
    for module in (ep.module(), gp.unflatten(ep)):
        assert module(torch.ones(2)).tolist() == [1, 1]
        assert module(torch.ones(2)).tolist() == [2, 2]
        assert module.a is module.b
        assert {k: v.tolist() for k, v in module.state_dict().items()} == {saved: [2, 2]}
    assert model.a.tolist() == [0, 0]


def test_by_position_only_up_to_a_parameter_that_was_left_out() -> None:
    def f(a: Any, b: Any = None, c: Any = None) -> Any:
        return a if c is None else a * c

    x = torch.ones(2)
    ep = gp.export(f, (x,), {"c": x})
    again = gp.export(ep.module(), (x,), {"c": x})
    for module in (ep.module(), gp.unflatten(ep), again.module()):
        torch.testing.assert_close(module(x, c=x * 3), x * 3)
        with pytest.raises(ValueError, match=r"\*args was a tuple of 1 .* is now a tuple of 2"):
            module(x, x * 3)
    both = gp.export(lambda a, b, c: a - b * c, (x,), {"c": x, "b": x}).module()
    torch.testing.assert_close(both(x, x * 2, x * 3), x - 6)
    torch.testing.assert_close(both(x, x * 2, c=x * 3), x - 6)
    with pytest.raises(ValueError, match="is now a tuple of 2"):
        both(x, x * 2, b=x)


@pytest.mark.parametrize("name", ["graph", "code", "meta", "_in_spec", "original", "kind"])
def test_names_that_generated_modules_have_a_use_for(name: str) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, nn.Linear(2, 2))
            self.register_buffer(f"{name}_", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            getattr(self, f"{name}_").add_(1)
            return getattr(self, name)(x) * getattr(self, f"{name}_")

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, Part())
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(self, name)(x) * self.weight

    x = torch.randn(3, 2)
    for model in (Part(), Whole()):
        ep = gp.export(model, (x,))
        check_round_trip(ep)
        again = gp.export(ep.module(), (x,))
        for module in (ep.module(), gp.unflatten(ep), again.module()):
            torch.testing.assert_close(module(x), copy.deepcopy(model)(x))


def test_a_constant_does_not_take_the_name_of_a_parameter() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lifted_tensor_0 = nn.Parameter(torch.full((2,), 3.0))
            self.lifted_tensor_1 = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lifted_tensor_1(x * self.lifted_tensor_0) + torch.tensor([1.0, 2.0])

    model, x = Model(), torch.ones(2)
    ep = gp.export(model, (x,))
    assert ep.graph_signature.lifted_tensor_constants == ("lifted_tensor_2",)
    torch.testing.assert_close(ep.module()(x), model(x))


def test_a_program_is_copied_and_pickled() -> None:
    model = Counter()
    ep = gp.export(model, (torch.ones(4, 3),), dynamic_shapes={"x": {0: gp.Dim("n", max=9)}})
    x = torch.randn(5, 3)
    for other in (copy.deepcopy(ep), pickle.loads(pickle.dumps(ep))):
        assert str(other) == str(ep)
        check_round_trip(other)
        assert other.state_dict["weight"] is not model.weight
        torch.testing.assert_close(other.module()(x), ep.module()(x))
        torch.testing.assert_close(other.run_decompositions().module()(x), ep.module()(x))
        torch.testing.assert_close(other.to_torch().module()(x), ep.module()(x))
        with pytest.raises(RuntimeError, match="to be <= 9, but got 10"):
            other.module()(torch.ones(10, 3))


@pytest.mark.slow  # torch.compile takes its time
def test_a_branch_is_compiled() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))

    module = gp.export(f, (torch.ones(2),)).module()
    compiled = torch.compile(module, backend="eager")
    for x in (torch.ones(2), -torch.ones(2)):
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("form", ["captured", "decomposed", "unflattened"])
def test_batch_norm_in_training_is_differentiated(form: str) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    x = torch.randn(4, 3)
    ep = gp.export(copy.deepcopy(model), (x,))
    ep = ep.run_decompositions() if form == "decomposed" else ep
    module = gp.unflatten(ep) if form == "unflattened" else ep.module()
    for _ in range(2):
        for run in (model, module):
            run(x).pow(3).sum().backward()
    for (_, p), (_, q) in zip(model.named_parameters(), module.named_parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    torch.testing.assert_close(module.get_buffer("1.running_var"), model[1].running_var)
    again = gp.export(ep.module(), (x,))
    assert [n.target for n in again.graph.nodes] == [n.target for n in ep.graph.nodes]


def test_a_program_is_compiled_whole():
    """Never called before, by the backend that runs the graph as it is."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    x = torch.randn(4, 3)
    ep = gp.export(model, (x,), dynamic_shapes=({0: gp.Dim("b", max=8)},))
    child = gp.unflatten(ep)
    child.get_submodule("0").compile(fullgraph=True, backend="eager")
    for run in (ep.module(), gp.unflatten(ep)):
        torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(x), model(x))
    torch.testing.assert_close(child(x), model(x))
