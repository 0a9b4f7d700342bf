"""Arguments: structures, constants, keywords, defaults, and how their graph inputs are named."""

from __future__ import annotations

import collections
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import graphport as gp
from tests.helpers import assert_same, check


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Point:
    x: torch.Tensor
    y: torch.Tensor
    scale: float = 2.0


pytree.register_dataclass(Point)


class Bag:
    """A node that a user registered, with data that is not a leaf."""

    def __init__(self, items: list[Any], label: str) -> None:
        self.items, self.label = items, label


pytree.register_pytree_node(
    Bag,
    lambda b: (b.items, b.label),
    lambda items, label: Bag(list(items), label),
    flatten_with_keys_fn=lambda b: (
        [(pytree.SequenceKey(i), v) for i, v in enumerate(b.items)],
        b.label,
    ),
    serialized_type_name="tests.Bag",
)


def t(*size: int) -> torch.Tensor:
    return torch.randn(*size or (3,))


def names(ep: gp.ExportedProgram) -> list[str]:
    return [s.arg.name for s in ep.graph_signature.input_specs]


CONTAINERS = {
    "dict": ({"a": t(), "b": t()}, lambda v: v["a"] + v["b"], ["v_a", "v_b"]),
    "list": ([t(), t()], lambda v: v[0] - v[1], ["v_0", "v_1"]),
    "tuple": ((t(), (t(), t())), lambda v: v[0] + v[1][1], ["v_0", "v_1_0", "v_1_1"]),
    "named tuple": (Pair(t(), t()), lambda v: v.first * v.second, ["v_first", "v_second"]),
    "ordered dict": (
        collections.OrderedDict(z=t(), a=t()),
        lambda v: v["z"] - v["a"],
        ["v_z", "v_a"],
    ),
    "defaultdict": (collections.defaultdict(list, k=[t()]), lambda v: v["k"][0] * 2, ["v_k_0"]),
    "deque": (collections.deque([t(), t()]), lambda v: v[0] - v[1], ["v_0", "v_1"]),
    "dataclass": (Point(t(), t()), lambda v: v.x + v.y * v.scale, ["v_x", "v_y", "v_scale"]),
    "registered": (Bag([t(), t()], "q"), lambda v: v.items[0] - v.items[1], ["v_0", "v_1"]),
    "none inside": ({"a": t(), "b": None}, lambda v: v["a"], ["v_a", "v_b"]),
    "empty": ({"a": [], "b": t()}, lambda v: v["b"] + len(v["a"]), ["v_b"]),
    "int keys": ({3: t(), 1: t()}, lambda v: v[3] - v[1], ["v_3", "v_1"]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_in(kind):
    value, fn, expected = CONTAINERS[kind]

    class Model(nn.Module):
        def forward(self, v):
            return fn(v)

    assert names(check(Model(), (value,))) == expected


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_out(kind):
    value = CONTAINERS[kind][0]

    class Model(nn.Module):
        def forward(self, v):
            return pytree.tree_map(lambda x: x * 2 if isinstance(x, torch.Tensor) else x, v)

    ep = check_structure(Model(), (value,))
    assert type(ep.module()(value)) is type(value)


def check_structure(model, args):
    """As `check`, for structures whose leaves compare but whose nodes need not."""
    ep = gp.export(model, args)
    have, want = ep.module()(*args), model(*args)
    assert pytree.tree_structure(have) == pytree.tree_structure(want)
    assert_same(pytree.tree_leaves(have), pytree.tree_leaves(want), "results differ")
    return ep


@pytest.mark.parametrize(
    "constant", [1, 2.5, True, "floor", None, torch.float16, torch.device("cpu"), 1 + 2j]
)
def test_constants(constant):
    class Model(nn.Module):
        def forward(self, x, k):
            return x + 1, k

    ep = check(Model(), (t(), constant))
    spec = ep.graph_signature.input_specs[1]
    assert spec.arg.name == "k" and spec.arg.value == constant
    with pytest.raises(RuntimeError, match=r"Expected input at \*args\[1\] to be equal to"):
        ep.module()(t(), "other")


def test_a_constant_of_another_type_is_refused():
    ep = check(lambda x, k: x * k, (t(), 1))
    with pytest.raises(RuntimeError, match="to be equal to 1, but got True"):
        ep.module()(t(), True)


class Everything(nn.Module):
    def forward(self, a, /, b, *rest, c, d=None, e=3.0, **more):
        out = a - 2 * b + sum((i + 2) * r for i, r in enumerate(rest)) + 7 * c
        if d is not None:
            out = out + 11 * d
        return out * e + sum((i + 5) * more[k] for i, k in enumerate(sorted(more)))


def test_every_kind_of_parameter():
    ep = check(Everything(), (t(), t(), t(), t()), {"z": t(), "c": t(), "y": t(), "d": t()})
    assert names(ep) == ["a", "b", "rest_0", "rest_1", "c", "d", "z", "y"]


def test_keywords_in_any_order():
    kwargs = {"c": t(), "d": t(), "e": 2.0, "q": t()}
    a, b = t(), t()
    ep = gp.export(Everything(), (a, b), dict(reversed(kwargs.items())))
    want = Everything()(a, b, **kwargs)
    for order in (kwargs, dict(reversed(kwargs.items()))):
        torch.testing.assert_close(ep.module()(a, b, **order), want)


def test_defaults_are_left_out_or_given():
    def f(x, k=2, y=None):
        return x * k if y is None else x * k + y

    x, y = t(), t()
    check(f, (x,))
    check(f, (x, 3))
    check(f, (x,), {"y": y})
    assert names(check(f, (x, 3, y))) == ["x", "k", "y"]


def test_positional_arguments_may_be_passed_by_name():
    ep = check(lambda x, y: x - y, (t(), t()))
    x, y = t(), t()
    torch.testing.assert_close(ep.module()(y=y, x=x), x - y)
    torch.testing.assert_close(ep.module()(x, y=y), x - y)


def test_keyword_arguments_may_be_passed_by_position():
    ep = check(lambda x, y: x - y, (t(),), {"y": t()})
    x, y = t(), t()
    torch.testing.assert_close(ep.module()(x, y), x - y)


def test_no_arguments():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self):
            return self.w * 2

    check(Model(), ())


def test_an_argument_that_is_not_used():
    ep = check(lambda x, unused, alias: x + 1, (t(), t(2), {"k": 3}))
    assert names(ep) == ["x", "unused", "alias_k"]


def test_an_argument_that_is_returned():
    check(lambda x, y: (y, x, x), (t(), t()))


def test_one_tensor_passed_twice_stays_two_inputs():
    x = t()
    ep = check(lambda a, b: a * 2 + b, (x, x))
    assert names(ep) == ["a", "b"]
    y = t()
    torch.testing.assert_close(ep.module()(x, y), x * 2 + y)


@pytest.mark.parametrize("change", ["missing", "extra", "list", "key"])
def test_another_structure_is_refused(change):
    class Model(nn.Module):
        def forward(self, v, k=None):
            return v["a"] + v["b"]

    good = {"a": t(), "b": t()}
    module = gp.export(Model(), (good,)).module()
    bad = {
        "missing": ({"a": t()},),
        "extra": (good, t()),
        "list": ([t(), t()],),
        "key": ({"a": t(), "c": t()},),
    }[change]
    with pytest.raises((ValueError, TypeError), match=r"tree spec|argument"):
        module(*bad)


# Names


class Anything(nn.Module):
    def forward(self, input, x, lambda_, *, self_=None, **kwargs):
        return input + x["class"] + lambda_ + kwargs["def"]


def test_names_that_python_or_fx_would_avoid():
    args = (t(), {"class": t(), "with space": t(), "ß": t(), "1": t()}, t())
    ep = check(Anything(), args, {"def": t(), "print": t(), "range": t()})
    assert names(ep) == [
        "input",
        "x_class",
        "x_with_space",
        "x_ß",
        "x_1",
        "lambda_",
        "def_1",
        "print",
        "range",
    ]


def test_names_that_generated_code_needs_for_itself():
    def f(torch, device, pytree, nan):
        return torch + device.new_zeros(3) + pytree * nan

    ep = check(f, (t(), t(), t()), {"nan": t()})
    assert names(ep) == ["torch_1", "device_1", "pytree_1", "nan_1"]
    a, b, c, d = t(), t(), t(), t()
    torch.testing.assert_close(ep.module()(nan=d, pytree=c, device=b, torch=a), a + c * d)
    check(ep.module(), (a, b, c, d))


def test_names_that_clash_among_inputs():
    class Model(nn.Module):
        def forward(self, x, x_foo, x_foo_0):
            return x["foo"][0] + x_foo[0] * 2 + x_foo_0 * 3

    ep = check(Model(), ({"foo": [t()]}, (t(),), t()))
    assert names(ep) == ["x_foo_0", "x_foo_0_1", "x_foo_0_2"]


def test_names_of_inputs_win_over_state_and_operators():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(t())
            self.register_buffer("s", t())
            self.k = t()

        def forward(self, p_w, b_s, c_k, add):
            return p_w + self.w + b_s * self.s + c_k * self.k + add

    ep = check(Model(), (t(), t(), t(), t()))
    assert names(ep) == ["p_w_1", "b_s_1", "c_k_1", "p_w", "b_s", "c_k", "add"]
    calls = [n.name for n in ep.graph.nodes if n.op == "call_function"]
    assert "add" not in calls and calls[0] == "add_1"


def test_operators_that_clash_are_counted():
    ep = check(lambda mul, mul_1: mul * mul + mul_1 * mul, (t(), t()))
    assert [n.name for n in ep.graph.nodes] == ["mul", "mul_1", "mul_2", "mul_3", "add", "output"]


# What can be exported


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        return self.lin(x)

    def encode(self, x, scale=1.0):
        return self.lin(x) * scale


def test_a_bound_method_has_the_state_of_its_module():
    model = Encoder()
    ep = check(model.encode, (t(4, 3),), {"scale": 2.0})
    assert list(ep.state_dict) == ["lin.weight", "lin.bias"]
    assert names(ep) == ["p_lin_weight", "p_lin_bias", "x", "scale"]


def test_partial():
    model = Encoder()
    ep = check(functools.partial(model.encode, scale=3.0), (t(4, 3),))
    assert names(ep) == ["p_lin_weight", "p_lin_bias", "x"]
    ep = check(functools.partial(model), (t(4, 3),))
    assert ep.graph_signature.parameters == ("lin.weight", "lin.bias")
    check(functools.partial(torch.add, alpha=3), (t(), t()))


def test_other_callables():
    class Callable:
        def __init__(self):
            self.w = t()

        def __call__(self, x):
            return x + self.w

    check(Callable(), (t(),))
    check(lambda x, *, k=2: x * k, (t(),))
    check(torch.sin, (t(),))
    check(torch.nn.functional.gelu, (t(),))


def test_requires_grad_is_part_of_an_input():
    ep = check(lambda x, y: x + y, (t().requires_grad_(), t()))
    vals = [n.meta["val"] for n in ep.graph.nodes if n.op == "placeholder"]
    assert [v.requires_grad for v in vals] == [True, False]


def test_layouts_of_inputs():
    x = torch.randn(2, 3, 4, 5)
    for given in (
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(1, 2),
        x[:, :, ::2],
        x[0, 0, 0].expand(2, 3, 5),
        x[:, 1:2],
    ):
        # The helper runs on dense copies of inputs.
        check(lambda v: (v + 1, v.transpose(0, 1).contiguous()), (given,), layout=False)


@pytest.mark.parametrize("size", [(), (0,), (1,), (0, 3), (2, 0, 3)])
def test_scalar_and_empty_inputs(size):
    check(lambda v: (v * 2, v.sum(), v.reshape(-1)), (torch.ones(size),))


def test_numbers_of_every_dtype():
    for dtype in (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.complex64,
    ):
        check(lambda v: v + v, (torch.ones(3, dtype=dtype),))
    check(lambda v: v & ~v, (torch.ones(3, dtype=torch.bool),))
