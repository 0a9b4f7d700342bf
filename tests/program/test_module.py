"""`ep.module()`: the user's signature, shared parameters, mutations written back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp


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
