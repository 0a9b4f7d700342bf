"""Modules, arguments and keys of any name: they work, or are refused by one of our errors."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx._lazy_graph_module import _LazyGraphModule

import graphport as gp
from graphport.errors import UnsupportedError
from graphport.program.codegen import is_attribute, is_identifier, make_identifier, rename_clashes

NAMES = [
    "class",
    "for",
    "lambda",
    "None",
    "import",
    'a"b',
    "a'b",
    "a\\",
    "a\nb",
    "a b",
    "0",
    "graph",
    "\u00b5",
    "\ufb01",
    "\uff41",
    "e\u0301",
    "__x",
    "a{b}",
    "a@1",
    "\x1b[31m",
    "x)",
    "_compiled",
    "real_recompile",
    "_needs_recompile",
    "from_graphmodule",
]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.linear(x).relu()


class Model(nn.Module):
    """A submodule and a parameter of any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, Inner())
        self.register_parameter(f"{name}s", nn.Parameter(torch.ones(4)))
        self.called = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._modules[self.called](x) * self._parameters[f"{self.called}s"]


def reloaded(ep: gp.ExportedProgram) -> gp.ExportedProgram:
    file = io.BytesIO()
    gp.save(ep, file)
    file.seek(0)
    return gp.load(file)


x = torch.randn(3, 4)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_modules_of_any_name(name: str) -> None:
    model = Model(name)
    want = model(x)
    ep = gp.export(model, (x,))
    assert f"{name}.linear.weight" in ep.state_dict
    for program in (ep, reloaded(ep)):
        torch.testing.assert_close(program.module()(x), want)
        torch.testing.assert_close(gp.unflatten(program)(x), want)
        torch.testing.assert_close(program.run_decompositions().module()(x), want)
        assert compile(program.module().code, "code", "exec")
    again = gp.export(ep.module(), (x,))
    torch.testing.assert_close(again.module()(x), want)
    trained = gp.export(model, (x,), training=True)
    torch.testing.assert_close(reloaded(trained).module()(x), want)


LAZY = sorted(set(dir(_LazyGraphModule)) - set(dir(nn.Module)))


@pytest.mark.parametrize("name", LAZY)
def test_state_named_as_what_graph_modules_have(name: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.full((4,), 3.0)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self._parameters[name]

    ep = gp.export(Scaled(), (x,))
    for program in (ep, reloaded(ep), gp.export(ep.module(), (x,))):
        torch.testing.assert_close(program.module()(x), x * 3)
        torch.testing.assert_close(gp.unflatten(program)(x), x * 3)


@pytest.mark.parametrize("name", ["class", 'a"b', "\u00b5", "graph"], ids=ascii)
def test_modules_of_any_name_elsewhere(name: str) -> None:
    model = Model(name)
    want = model(x)
    ep = gp.export(model, (x,), preserve_module_call_signature=(name,))
    torch.testing.assert_close(gp.unflatten(ep)(x), want)
    theirs = ep.to_torch()
    torch.testing.assert_close(theirs.module()(x), want)
    torch.testing.assert_close(gp.from_torch(theirs).module()(x), want)
    gp.onnx.export(ep, verify=True)


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        return x * given["a b"] + given["class"] - given["\u00b5"] + given["plain"]


class CallsKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Keywords()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = {"a b": x, "class": x + 1, "\u00b5": x + 2}
        return self.inner(x, plain=x + 3, **given)


def test_keywords_of_any_name() -> None:
    model = CallsKeywords()
    ep = gp.export(model, (x,), preserve_module_call_signature=("inner",))
    for program in (ep, reloaded(ep)):
        unflattened = gp.unflatten(program)
        torch.testing.assert_close(unflattened(x), model(x))
        unflattened.inner = Keywords()
        torch.testing.assert_close(unflattened(x), model(x))


def of_keys(x: dict[str, torch.Tensor], mode: str) -> torch.Tensor:
    return next(iter(x.values())) + 1


@pytest.mark.parametrize("text", ['x"', "x'", "x\\", "x\n", 'x"); print(1) #'], ids=ascii)
def test_torch_is_not_given_text_that_it_writes_into_code(text: str) -> None:
    for args in (({text: x}, "fast"), ({"a": x}, text)):
        ep = gp.export(of_keys, args)
        torch.testing.assert_close(ep.module()(*args), x + 1)
        with pytest.raises(UnsupportedError, match="into Python code"):
            ep.to_torch()


@pytest.mark.parametrize(
    "text", ["plain", "with space", "a.b", "{0}", "class", "\u00e9"], ids=ascii
)
def test_torch_is_given_other_text(text: str) -> None:
    args: Any = ({text: x}, text)
    ep = gp.export(of_keys, args)
    torch.testing.assert_close(ep.to_torch().module()(*args), x + 1)


@pytest.mark.parametrize("name", [*NAMES, "", "a-b", "\u00b2", "\u2460", "x" * 50], ids=ascii)
def test_identifiers(name: str) -> None:
    made = make_identifier(name)
    assert made.isidentifier()
    (new,) = rename_clashes([name], {"taken"}).values() or [name]
    assert is_attribute(new)
    holder = nn.Module()
    setattr(holder, new, 7)
    text = f"holder.{new}" if new.isidentifier() else f'getattr(holder, "{new}")'
    assert eval(text) == 7
    assert not is_identifier(name) or eval(f"[{name} for {name} in [1]]") == [1]


def test_names_that_are_made_are_told_apart() -> None:
    found = rename_clashes(['a"b', "a'b", "a_b", "a b", "class", "class_"], {"a_b_"})
    assert len({found.get(n, n) for n in ['a"b', "a'b", "a_b", "a b", "class", "class_"]}) == 6


def test_names_that_look_like_further_calls() -> None:
    """What is behind the `@` of a name is text of the user's, unless it is a number."""

    class Step(nn.Module):
        def forward(self, x: torch.Tensor, up: bool) -> torch.Tensor:
            return x + 1 if up else x * 2

    hostile = 'a@1"); raise SystemExit #'

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("b", "c@x", hostile, f"{hostile}@1"):
                self.add_module(name, Step())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, part in enumerate((*self._modules.values(), self.b)):
                x = part(x, i % 2 == 0)
            return x

    x = torch.ones(3)
    for program in (gp.export(Model(), (x,)), reloaded(gp.export(Model(), (x,)))):
        assert torch.equal(gp.unflatten(program)(x), Model()(x))
