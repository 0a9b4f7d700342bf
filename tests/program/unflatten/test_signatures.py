"""Submodules that keep their call signature, and can be replaced."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

import graphport as gp
from tests.helpers import assert_same
from tests.program.unflatten.unflattened import agree, called, unflattened

B = gp.Dim("b", min=1, max=64)


def x(n: int = 3) -> torch.Tensor:
    return torch.arange(n * 4.0).reshape(n, 4) / 4 - 1


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, v, extra, *, scale=1.0, mask=None):
        h = self.norm(self.lin(v)) * scale + extra["a"] - extra["b"][0]
        if mask is not None:
            h = h * mask
        return {"h": h, "parts": (h.sum(0), [v, None, 3]), "n": v.shape[0]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(4, 2)

    def forward(self, v, w):
        v = v + 1
        out = self.encoder(v, {"a": w, "b": [w * 2, v]}, mask=v > 0, scale=0.5)
        return self.head(out["h"] + out["parts"][0]) * out["n"]


def test_the_signature_is_the_original_one():
    model = Model()
    un = unflattened(
        model,
        (x(), x()),
        dynamic_shapes=({0: B}, {0: B}),
        others=[(x(1), x(1)), (x(7), x(7))],
        preserve_module_call_signature=("encoder",),
    )
    for n in (1, 3, 8):
        given = (x(n), {"a": x(n), "b": [x(n) * 2, x(n)]})
        kwargs = {"mask": x(n) > 0, "scale": 0.5}
        assert_same(un.encoder(*given, **kwargs), model.encoder(*given, **kwargs), "differs")
    un.encoder = copy.deepcopy(model.encoder).requires_grad_(False)
    agree(un, _with(model, un.encoder), [((x(6), x(6)), {})])


def _with(model: nn.Module, encoder: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    other.encoder = encoder
    other.head = model.head
    return other


def test_another_module_takes_its_place():
    class Other(nn.Module):
        def forward(self, v, extra, *, scale=1.0, mask=None):
            return {"h": v * 10 + extra["a"], "parts": (v[0], [v, None, 3]), "n": 2}

    model = Model()
    ep = gp.export(
        model,
        (x(), x()),
        dynamic_shapes=({0: B}, {0: B}),
        preserve_module_call_signature=("encoder",),
    )
    un = gp.unflatten(ep)
    un.encoder = Other()
    model.encoder = Other()
    torch.testing.assert_close(un(x(5), x(5)), model(x(5), x(5)))


def test_results_that_nobody_uses_are_kept():
    class Part(nn.Module):
        def forward(self, v, unused, flag: bool):
            return v * 2, v.sin(), v.shape[0] + 1

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(v, v.cos(), True)[0]

    model = Outer()
    un = unflattened(
        model, (x(),), dynamic_shapes=({0: B},), preserve_module_call_signature=("part",)
    )
    given = (x(5), x(5), True)
    assert_same(un.part(*given), model.part(*given), "differs")


@pytest.mark.parametrize("kind", ["identity", "parameter", "nothing"])
def test_modules_that_compute_nothing(kind):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4) * 2)

        def forward(self, v):
            return {"identity": v, "parameter": self.weight, "nothing": None}[kind]

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            out = self.part(v)
            return v + 1 if out is None else out * 2 + v

    model = Outer()
    ep = gp.export(model, (x(),), preserve_module_call_signature=("part",))
    un = gp.unflatten(ep)
    torch.testing.assert_close(un(x()), model(x()))
    assert_same(un.part(x()), model.part(x()), "differs")
    if kind != "nothing":
        un.part = nn.Tanh()
        model.part = nn.Tanh()
        torch.testing.assert_close(un(x()), model(x()))


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


class Named(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


gp.register_dataclass(Pair)


def test_containers_of_other_kinds():
    class Part(nn.Module):
        def forward(self, pair, named):
            return Named(Pair(pair.first * 2, named.one), pair.second + named.two)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            out = self.part(Pair(v, v + 1), named=Named(v.cos(), v.sin()))
            return out.one.first - out.one.second * out.two

    model = Outer()
    un = unflattened(
        model,
        (x(),),
        dynamic_shapes=({0: B},),
        others=[(x(6),)],
        preserve_module_call_signature=("part",),
    )
    given = (Pair(x(), x()), Named(x(), x()))
    assert_same(un.part(*given), model.part(*given), "differs")
    un.part = Part()
    torch.testing.assert_close(un(x(5)), model(x(5)))
    again = gp.export(un, (x(),))
    torch.testing.assert_close(again.module()(x()), model(x()))


def test_buffers_are_written_inside():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, v):
            self.count += 1
            return self.norm(v) * self.count

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(self.part(v)) + self.part.count

    model = Outer()
    un = unflattened(model, (x(),), preserve_module_call_signature=("part",))
    assert called(un) == ["part", "part"]
    eager = copy.deepcopy(model)
    for _ in range(2):
        torch.testing.assert_close(un.part(x()), eager.part(x()))
    torch.testing.assert_close(un.part.count, eager.part.count)


def test_several_calls_and_nesting():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v, flag=False):
            return self.lin(v), (v.shape[0] if flag else self.lin(v) * 2)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            a, b = self.part(v)
            c, n = self.part(a + b, flag=True)
            return self.part(c)[1] * n

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer = Outer()

        def forward(self, v):
            return self.outer(v) + 1

    model = Whole()
    un = unflattened(
        model,
        (x(),),
        dynamic_shapes=({0: B},),
        others=[(x(1),), (x(9),)],
        preserve_module_call_signature=("outer", "outer.part", "outer.part.lin"),
    )
    assert called(un.outer) == ["part", "part@1", "part"]
    torch.testing.assert_close(un.outer(x(5)), model.outer(x(5)))
    assert_same(un.outer.part(x(2)), model.outer.part(x(2)), "differs")


def test_after_decompositions():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), Model().head)
    ep = gp.export(
        model, (x(),), dynamic_shapes=({0: B},), preserve_module_call_signature=("0", "1")
    ).run_decompositions()
    ep.validate()
    un = gp.unflatten(ep)
    agree(un, model, [((x(),), {}), ((x(9),), {})])
    setattr(un, "0", nn.Tanh())
    torch.testing.assert_close(un(x()), model[1:](x().tanh()))


@pytest.mark.filterwarnings("ignore")
def test_values_from_around_are_refused():
    class Part(nn.Module):
        def forward(self, v):
            return v + self.seen[0]

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            self.part.seen = [v * 2]
            return self.part(v)

    ep = gp.export(Outer(), (x(),), preserve_module_call_signature=("part",))
    with pytest.raises(gp.errors.UnsupportedError, match="'part' cannot keep its call signature"):
        gp.unflatten(ep)
    torch.testing.assert_close(gp.unflatten(gp.export(Outer(), (x(),)))(x()), x() * 3)


def test_weights_from_elsewhere():
    class Part(nn.Module):
        def __init__(self, lender):
            super().__init__()
            self.lenders = [lender]

        def forward(self, v):
            return v * self.lenders[0].weight

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.lender = nn.Linear(4, 4)
            self.part = Part(self.lender)

        def forward(self, v):
            return self.part(v)

    model = Outer()
    un = unflattened(model, (x(4),), preserve_module_call_signature=("part",))
    torch.testing.assert_close(un.part(x(4)), model.part(x(4)))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("decoder",), "'decoder', and the program has no such module. Its modules: encoder, "),
        ("encoder", "is a list or tuple, each of its items a str"),
        (("",), "no such module"),
        ((3,), "is a list or tuple, each of its items a str"),
    ],
)
def test_wrong_names(names, said):
    with pytest.raises(gp.errors.InputError, match=said):
        gp.export(Model(), (x(), x()), preserve_module_call_signature=names)


def test_modules_that_are_never_called():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, v):
            return self.layers[0](v)

    model = Outer()
    ep = gp.export(model, (x(),), preserve_module_call_signature=("layers",))
    torch.testing.assert_close(gp.unflatten(ep)(x()), ep.module()(x()))


def test_modules_in_branches_are_refused():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(4, 4)

        def forward(self, v):
            return torch.cond(v.sum() > 0, lambda u: self.part(u), lambda u: u * 2, (v,))

    with pytest.raises(gp.errors.UnsupportedError, match="in a branch or loop"):
        gp.export(Outer(), (x(),), preserve_module_call_signature=("part",))


def test_modules_that_compute_nothing_after_decompositions():
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4), nn.Dropout().eval())
    ep = gp.export(model, (x(),), preserve_module_call_signature=("0", "2")).run_decompositions()
    un = gp.unflatten(ep)
    torch.testing.assert_close(un(x()), model(x()))
    setattr(un, "0", nn.Tanh())
    setattr(un, "2", nn.Sigmoid())
    torch.testing.assert_close(un(x()), model[1](x().tanh()).sigmoid())


def test_gradients_switched_off_inside():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v):
            with torch.no_grad():
                return self.lin(v)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.lin = Part(), nn.Linear(4, 4)

        def forward(self, v):
            return self.lin(self.part(v)) + self.part(v)

    model = Outer()
    un = unflattened(model, (x(),), preserve_module_call_signature=("part",))
    un(x()).sum().backward()
    assert model.part.lin.weight.grad is None and model.lin.weight.grad is not None
    un.part = nn.Tanh()
    model.part = nn.Tanh()
    torch.testing.assert_close(un(x()), model(x()))


def test_sizes_are_found_in_the_arguments():
    """The size comes from an input of the program that the module never sees."""

    class Part(nn.Module):
        def forward(self, v):
            return v.reshape(v.shape[0] // 2, 2, -1).sum(1) * v.shape[0]

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(torch.cat([v.sin(), v.cos()])) + self.part(v.repeat(2, 1))

    model = Outer()
    un = unflattened(
        model,
        (x(),),
        dynamic_shapes=({0: B},),
        others=[(x(1),), (x(8),)],
        preserve_module_call_signature=("part",),
    )
    assert called(un) == ["part", "part"]
    torch.testing.assert_close(un.part(x(6)), model.part(x(6)))


class Repeated(nn.Module):
    def forward(self, x, n):
        return x.expand(n, 2) + n, n + 1


def test_arguments_that_are_sizes():
    class Repeating(nn.Module):
        def __init__(self):
            super().__init__()
            self.repeated = Repeated()

        def forward(self, x, y):
            first = self.repeated(x, y.shape[0])
            return *first, *self.repeated(x, n=2 * y.shape[0] + 1)

    model, row = Repeating(), torch.randn(1, 2)
    ep = gp.export(
        model,
        (row, x()),
        dynamic_shapes=(None, {0: gp.Dim("n", min=2)}),
        preserve_module_call_signature=("repeated",),
    )
    kept = [call.signature.inputs for call in ep.module_call_graph if call.signature]
    assert [[type(a).__name__ for a in inputs] for inputs in kept] == [
        ["TensorArgument", "SymbolicArgument"]
    ] * 2
    unflattened = gp.unflatten(ep)
    for n in (3, 6):
        torch.testing.assert_close(unflattened(row, x(n)), model(row, x(n)))
    for name in ("repeated", "repeated@1"):
        setattr(unflattened, name, Repeated())
    torch.testing.assert_close(unflattened(row, x(5)), model(row, x(5)))


def test_constants_are_those_of_each_call():
    class Ignoring(nn.Module):
        def forward(self, x, k):
            return x + 1

    class Scaled(nn.Module):
        def forward(self, x, k):
            return x * k

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Ignoring()

        def forward(self, x, k):
            return self.inner(x, k)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.around = Around()

        def forward(self, x):
            return self.around(x, 2), self.around(x, 3)

    ep = gp.export(Twice(), (x(),), preserve_module_call_signature=("around.inner",))
    unflattened = gp.unflatten(ep)
    assert torch.equal(unflattened(x())[1], x() + 1)
    unflattened.around.inner = Scaled()
    one, other = unflattened(x())
    assert torch.equal(one, x() * 2) and torch.equal(other, x() * 3)


class Sevens(nn.Module):
    def forward(self, v, flag=False):
        return torch.full_like(v, 7.0)


class Flagged(nn.Module):
    """Its calls do different things."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, v, flag=False):
        return self.lin(v).relu() + 1 if flag else self.lin(v)


class Twice(nn.Module):
    def __init__(self, part=None):
        super().__init__()
        self.parts = nn.ModuleList([Flagged() if part is None else part])

    def forward(self, v):
        return self.parts[0](self.parts[0](v), flag=True)


class Shared(nn.Module):
    """One module at two places, and each calls it in a way of its own."""

    def __init__(self):
        super().__init__()
        self.one = Twice()
        self.other = Twice(self.one.parts[0])

    def forward(self, v):
        return self.one(v) - self.other(v * 2)


def put(module, path, new):
    module.set_submodule(path, new)


def assign(module, path, new):
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, new)


def exchange(module, path, new):
    """As tools for quantisation do."""
    parent, _, name = path.rpartition(".")
    module.get_submodule(parent)._modules[name] = new


@pytest.mark.parametrize("replace", [put, assign, exchange])
@pytest.mark.parametrize("kept", [("parts.0",), ()], ids=["as the original", "as it is used"])
def test_a_module_that_takes_the_place_of_another_is_called_every_time(replace, kept):
    un = gp.unflatten(gp.export(Twice(), (x(),), preserve_module_call_signature=kept))
    assert called(un) == ["parts.0", "parts.0@1"]
    for module in (copy.deepcopy(un), un):
        before = module(x())
        replace(module, "parts.0", Sevens())
        torch.testing.assert_close(module(x()), torch.full((3, 4), 7.0))
        assert not torch.equal(before, module(x()))


@pytest.mark.parametrize("path", ["one.parts.0", "other.parts.0"])
def test_a_module_at_two_places_is_replaced_at_one(path):
    model = Shared()
    ep = gp.export(model, (x(),), preserve_module_call_signature=("one.parts.0",))
    un = gp.unflatten(ep)
    torch.testing.assert_close(un(x()), model(x()))
    un.set_submodule(path, Sevens())
    model.set_submodule(path, Sevens())
    torch.testing.assert_close(un(x()), model(x()))


def test_one_form_of_a_module_replaced_alone():
    un = gp.unflatten(gp.export(Twice(), (x(),)))
    un.set_submodule("parts.0@1", Sevens())
    assert isinstance(un.get_submodule("parts.0").lin, nn.Module)
    torch.testing.assert_close(un(x()), torch.full((3, 4), 7.0))


def test_forms_of_a_module_with_a_name_that_modules_have():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.graph = Flagged()

        def forward(self, v):
            return self.graph(self.graph(v), flag=True)

    model = Odd()
    un = gp.unflatten(gp.export(model, (x(),), preserve_module_call_signature=("graph",)))
    torch.testing.assert_close(un(x()), model(x()))
    un.set_submodule("graph_", Sevens())
    torch.testing.assert_close(un(x()), torch.full((3, 4), 7.0))
