"""Calls of torch's own modules, with their arguments by name."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace
from torch.fx.operator_schemas import normalize_module as reference
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_nn import get_new_module_tests, module_tests

from graphport.errors import GraphError, InputError
from graphport.fx import NormalizeArgs, normalize_module

# The tables build them with random numbers of another dtype than that of the inputs.
NOT_RUN = {nn.FractionalMaxPool2d, nn.FractionalMaxPool3d}

Sample = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def rows() -> Iterator[Sample]:
    """A module of torch's and an input, for every row of PyTorch's older tables."""
    for row in (*module_tests, *get_new_module_tests()):
        make = row.get("constructor") or getattr(nn, row["module_name"])
        module = make(*row.get("constructor_args", ()))
        if type(module).__name__ in dir(nn):
            given = row["input_fn"]() if "input_fn" in row else torch.randn(row["input_size"])
            yield module, given if isinstance(given, tuple) else (given,), {}


def samples() -> Iterator[Sample]:
    """The same for its newer table, which has other modules and keyword arguments."""
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": False}
    for info in module_db:
        for sample in info.module_inputs_func(info, **options):
            make, call = sample.constructor_input, sample.forward_input
            if call is not None:
                yield info.module_cls(*make.args, **make.kwargs), call.args, call.kwargs


def traced(module: nn.Module, count: int, keywords: Any = ()) -> GraphModule:
    """A program that calls the module with so many inputs, and with keywords."""

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mod = module

    names = [f"x{i}" for i in range(count)]
    given = ", ".join([*names, *(f"{k}={k}" for k in keywords)])
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join([*names, *keywords])}): return self.mod({given})", scope)
    Caller.forward = scope["forward"]
    return symbolic_trace(Caller())


def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    before = traced(module, len(args), kwargs)
    call = next(n for n in before.graph.nodes if n.op == "call_module")
    for only in (False, True):
        found = normalize_module(before, call.target, call.args, call.kwargs, only)
        assert found == reference(before, call.target, call.args, call.kwargs, only)
        assert found is not None
    after = NormalizeArgs(before).transform()
    call = next(n for n in after.graph.nodes if n.op == "call_module")
    assert call.args == ()
    if type(module) in NOT_RUN:
        return
    torch.manual_seed(0)
    wanted = copy.deepcopy(module)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    torch.manual_seed(0)
    torch.testing.assert_close(after(*args, **kwargs), wanted, equal_nan=True)


# Of layers, about how they were built.
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@quiet
def test_the_standard_modules() -> None:
    seen = set()
    for module, *call in itertools.chain(rows(), samples()):
        if type(module) not in seen:
            seen.add(type(module))
            check(module, *call)
    assert len(seen) > 120


@quiet
@pytest.mark.slow
def test_every_row_of_the_standard_modules() -> None:
    for sample in itertools.chain(rows(), samples()):
        check(*sample)


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "names"),
    [
        (nn.LSTM(2, 3), (1,), {}, ["input", "hx"]),
        (
            nn.MultiheadAttention(4, 2),
            (1, 2),
            {"value": 3, "need_weights": False},
            [
                "query",
                "key",
                "value",
                "key_padding_mask",
                "need_weights",
                "attn_mask",
                "average_attn_weights",
                "is_causal",
            ],
        ),
        (nn.MaxUnpool2d(2), (1, 2), {}, ["input", "indices", "output_size"]),
        (nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2]), (1, 2), {}, ["input_", "target_"]),
        (nn.Transformer(4, 2, 1, 1, batch_first=True), (1,), {"tgt": 2}, None),
        (nn.Sequential(nn.ReLU()), (1,), {}, ["input"]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_modules_with_several_arguments(
    module: nn.Module, args: Any, kwargs: Any, names: list[str] | None
) -> None:
    found = normalize_module(nn.ModuleDict({"m": module}), "m", args, kwargs, True)
    assert found is not None and found.args == ()
    assert list(found.kwargs) == (names or list(inspect.signature(module.forward).parameters))
    given = normalize_module(nn.ModuleDict({"m": module}), "m", args, kwargs)
    assert given is not None and given.args == args


class Mine(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


class Any_(nn.Module):
    def forward(self, *args: Any) -> Any:
        return args


@pytest.mark.parametrize("module", [Mine(2, 2), Any_()])
def test_modules_of_users_are_left_alone(module: nn.Module) -> None:
    assert normalize_module(nn.ModuleDict({"m": module}), "m", (1,), {}, True) is None


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match=r"'m\.inner', which ModuleDict does not have") as found:
        normalize_module(nn.ModuleDict({"m": nn.ReLU()}), "m.inner", (1,))
    assert isinstance(found.value, GraphError)


def test_arguments_that_a_module_does_not_take() -> None:
    with pytest.raises(TypeError, match=r"m \(Linear\) does not take these arguments") as found:
        normalize_module(nn.ModuleDict({"m": nn.Linear(2, 2)}), "m", (1, 2))
    assert isinstance(found.value, InputError)
    assert "its arguments are (input" in str(found.value)


def test_a_hook_that_reads_positions_still_sees_them() -> None:
    seen = []
    model = nn.Sequential(nn.Linear(2, 2), nn.utils.spectral_norm(nn.Linear(2, 2)))
    model[0].register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    gm = NormalizeArgs(symbolic_trace(model)).transform()
    gm(torch.ones(1, 2))
    assert seen == [1]
    # What torch's own hooks do does not depend on the arguments.
    calls = [n for n in gm.graph.nodes if n.op == "call_module"]
    assert [len(n.args) for n in calls] == [1, 0]
