"""`assert` statements in traced programs.

pytest rewrites the assertions of this very file when it imports it, as it does with a user's tests:
the tracer reads the source.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Proxy, symbolic_trace

import graphport as gp
from graphport.fx import RewritingTracer


def traced(root: nn.Module | Callable[..., Any], **options: Any) -> GraphModule:
    owner = root if isinstance(root, nn.Module) else nn.Module()
    gm = GraphModule(owner, RewritingTracer(**options).trace(root))
    gm.graph.lint()
    return gm


def recorded(gm: GraphModule) -> int:
    return sum(n.target is torch._assert for n in gm.graph.nodes)


class NoMessage(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        assert a == b
        return a + b


class Message(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        assert a == b, "test message"
        return a + b


class EmptyMessage(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        assert a == b, ""
        return a + b


class SeveralLines(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        error = """
An error message with
terrible spacing
        """
        assert a == b, error
        return a + b


class OddLayout(nn.Module):
    # fmt: off
    def forward (
        self, a : Any,
        b : Any = 3) -> Any :
        if True: assert (  # noqa: E701
            a
            == b
        ), "spread " \
            "out"
        return a + b
    # fmt: on


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NoMessage(), ""),
        (Message(), "test message"),
        (EmptyMessage(), ""),
        (SeveralLines(), "\nAn error message with\nterrible spacing\n        "),
        (OddLayout(), "spread out"),
    ],
)
def test_messages(model: nn.Module, message: str) -> None:
    gm = traced(model)
    assert recorded(gm) == 1
    assert gm(3, 3) == model(3, 3) == 6
    with pytest.raises(AssertionError) as found:
        gm(3, 5)
    assert str(found.value) == message


def test_functions_of_any_name() -> None:
    def foo(x):
        return torch.relu(x)

    def _f__(x):
        assert x.sum() > 0, "not positive"
        return x

    assert traced(foo)(torch.tensor(-1.0)) == 0
    gm = traced(_f__)
    with pytest.raises(AssertionError, match="not positive"):
        gm(-torch.ones(2))


def test_lambdas_are_traced_as_they_are() -> None:
    assert traced(lambda x: x + 1)(2) == 3


def test_closures() -> None:
    limit, message = 3, "over the limit"

    def check(x):
        assert x <= limit, message
        return x

    def f(x):
        return check(x) + limit

    gm = traced(f)
    assert recorded(gm) == 1 and gm(2) == 5
    with pytest.raises(AssertionError, match=message):
        gm(4)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        logged.calls += 1
        return function(*args, **kwargs)

    return inner


logged.calls = 0


def positive(x: Any) -> Any:
    assert x > 0, "must be positive"
    return x


class Base(nn.Module):
    def forward(self, x: Any) -> Any:
        assert x < 10, "must be small"
        return x


class Derived(Base):
    @logged
    def forward(self, x: Any, *, scale: int = 2) -> Any:
        x = super().forward(x)
        self.__check(x)
        return positive(x) * scale * self.one

    def __check(self, x: Any) -> None:
        assert x != 5, "must not be 5"

    @staticmethod
    def even(x: Any) -> None:
        assert x % 2 == 0, "must be even"

    @property
    def one(self) -> int:
        assert self.training, "plain assertions are as they were"
        return 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Derived())
        self.linear = nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        Derived.even(x)
        return self.inner(x)


@pytest.mark.parametrize(
    ("x", "message"), [(12, "small"), (5, "even"), (-2, "positive"), (3, "even")]
)
def test_submodules_inheritance_decorators_and_helpers(x: int, message: str) -> None:
    model, before = Outer(), logged.calls
    code = Derived.forward.__wrapped__.__code__
    gm = traced(model)
    assert logged.calls == before + 1, "decorators are not applied anew"
    assert recorded(gm) == 4
    assert gm(4) == model(4) == 8
    with pytest.raises(AssertionError, match=f"must be {message}"):
        gm(x)
    assert Derived.forward.__wrapped__.__code__ is code, "the program is as it was"


def test_conditions_of_several_parts() -> None:
    def f(x, n=3):
        assert x.dim() == 2 and n == 3 and 0 < x.size(0) <= 4, "bad"
        assert not x.is_complex()
        assert x is not None or n, "decided while tracing"
        return x

    gm = GraphModule(nn.Module(), RewritingTracer().trace(f, concrete_args={"n": 3}))
    # One more is what torch.fx records of a concrete argument.
    assert recorded(gm) == 4 + 1
    assert gm(torch.ones(2, 2), 3).shape == (2, 2)
    for x in (torch.ones(2), torch.ones(5, 1), torch.ones(0, 1)):
        with pytest.raises(AssertionError, match="bad"):
            gm(x, 3)
    with pytest.raises(AssertionError):
        gm(torch.ones(2, 2, dtype=torch.complex64), 3)


def test_messages_that_cannot_be_told() -> None:
    def f(x, mask=None):
        assert mask is None, f"a mask of {mask.shape}"
        assert x.sum() > 0, f"the sum is {x.sum():.2f}"
        return x

    gm = GraphModule(nn.Module(), RewritingTracer().trace(f, concrete_args={"mask": None}))
    with pytest.raises(AssertionError, match=r"the sum is \{x\.sum"):
        gm(-torch.ones(2), None)


def test_source_that_is_not_found() -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec("def f(x):\n    assert True\n    return torch.relu(x)", scope)
    assert traced(scope["f"])(torch.tensor(-1.0)) == 0
    exec("def g(x):\n    assert x > 0\n    return x", scope)
    with pytest.raises(torch.fx.proxy.TraceError):
        traced(scope["g"])


def test_source_that_is_another_by_now() -> None:
    """A file that was edited after it was imported does not speak for what is running."""
    name = "<edited>"
    old = "def f(x, y):\n    return x + y\n"
    scope: dict[str, Any] = {}
    exec(compile(old, name, "exec"), scope)
    new = "def f(x):\n    assert x > 0\n    return x\n"
    linecache.cache[name] = (len(new), None, new.splitlines(True), name)
    gm = traced(scope["f"])
    assert recorded(gm) == 0 and gm(1, 2) == 3


def test_lines_are_those_of_the_program() -> None:
    class Recording(RewritingTracer):
        record_stack_traces = True

    model = Message()
    graph = Recording().trace(model)
    node = next(n for n in graph.nodes if n.target is torch._assert)
    _, first = inspect.getsourcelines(Message.forward)
    assert f"line {first + 1}, in forward" in node.stack_trace


def opaque(x: Any) -> Any:
    assert not isinstance(x, Proxy), "is not traced"
    return x


def test_options_of_the_tracer() -> None:
    class Leaf(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.sum() > 0
            return x

    class Keeping(RewritingTracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, Leaf) or super().is_leaf_module(m, module_qualified_name)

    model = nn.Sequential(Leaf())
    gm = GraphModule(model, Keeping().trace(model))
    assert recorded(gm) == 0 and [n.target for n in gm.graph.nodes][1] == "0"

    gm = traced(lambda x: opaque(x), autowrap_functions=(opaque,))
    assert gm(3) == 3


def test_an_exported_program_traces_as_it_is() -> None:
    ep = gp.export(nn.Sequential(nn.Linear(2, 2)), (torch.ones(1, 2),))
    gm = traced(ep.module())
    x = torch.randn(1, 2)
    torch.testing.assert_close(gm(x), ep.module()(x))
    assert [n.op for n in gm.graph.nodes] == [n.op for n in symbolic_trace(ep.module()).graph.nodes]
