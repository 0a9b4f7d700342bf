"""`gp.unflatten`: the original hierarchy, module by module."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import graphport as gp
from tests.program.unflatten.unflattened import agree, called, paths, unflattened

B = gp.Dim("b", min=1, max=64)


def x(n: int = 3) -> torch.Tensor:
    return torch.arange(n * 4.0).reshape(n, 4) / 4 - 1


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.act = nn.ReLU()

    def forward(self, v):
        return self.act(self.lin(v)) + v


def test_nested_modules():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])
            self.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
            self.unused = nn.Linear(2, 2)

        def forward(self, v):
            for layer in self.layers:
                v = layer(v) * 2
            return self.head(v)

    model = Model()
    un = unflattened(model, (x(),), dynamic_shapes=({0: B},), others=[(x(1),), (x(7),)])
    assert called(un) == ["layers.0", "layers.1", "head"]
    assert called(un.layers.get_submodule("0")) == ["lin", "act"]
    assert un.head.get_submodule("0")._get_name() == "LayerNorm"
    assert un.unused.weight is model.unused.weight
    block = un.layers.get_submodule("1")
    torch.testing.assert_close(block(x(5)), model.layers[1](x(5)))


def test_a_function_is_one_module():
    un = unflattened(lambda v: v * 2 + 1, (x(),), dynamic_shapes=({0: B},), others=[(x(1),)])
    assert paths(un) == [""] and not un.state_dict()


def test_a_method_calls_submodules():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4) * 2)

        def encode(self, v):
            return self.lin(v * self.scale) + self.scale

    model = Model()
    ep = gp.export(model.encode, (x(),))
    un = gp.unflatten(ep)
    torch.testing.assert_close(un(x()), model.encode(x()))
    assert called(un) == ["lin"] and list(un.state_dict()) == list(model.state_dict())


def test_one_module_called_several_times():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, v, w):
            return self.block(self.block(v)) + self.block(w).sum()

    c = gp.Dim("c", min=1, max=64)
    un = unflattened(
        Model(), (x(), x(5)), dynamic_shapes=({0: B}, {0: c}), others=[(x(1), x(2)), (x(6), x(6))]
    )
    assert called(un) == ["block"] * 3 and "block@1" not in paths(un)


def test_sizes_are_read_from_the_arguments_of_each_call():
    class Flat(nn.Module):
        def forward(self, v):
            return v.reshape(v.shape[0] * v.shape[1], -1).sum(1).reshape(v.shape[:2])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat = Flat()

        def forward(self, v, w):
            return self.flat(v), self.flat(w)

    c = gp.Dim("c", min=1, max=64)
    args = (torch.randn(3, 4, 2), torch.randn(5, 4, 2))
    others = [(torch.randn(2, 4, 2), torch.randn(9, 4, 2))]
    un = unflattened(Model(), args, dynamic_shapes=({0: B}, {0: c}), others=others)
    assert called(un) == ["flat", "flat"]
    assert [n.op for n in un.flat.graph.nodes].count("placeholder") == 1


def test_calls_that_differ_are_modules_of_their_own():
    class Flag(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("shift", torch.ones(4))

        def forward(self, v, twice=False):
            v = self.lin(v) + self.shift
            return v * 2 if twice else v

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.flag = Flag()

        def forward(self, v):
            return self.flag(v) + self.flag(v, twice=True) + self.flag(v + 1)

    model = Model()
    un = unflattened(model, (x(),), dynamic_shapes=({0: B},), others=[(x(1),)])
    assert called(un) == ["flag", "flag@1", "flag"]
    assert called(un.get_submodule("flag@1")) == ["lin"]
    assert un.get_submodule("flag@1").lin is un.flag.lin
    torch.testing.assert_close(un.get_submodule("flag@1")(x()), model.flag(x(), True))


def test_children_that_differ_between_calls():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, v, flag):
            return v * self.weight if flag else v + self.weight

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, v, flag):
            return self.inner(v, flag) - 1

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer = Outer()

        def forward(self, v):
            return self.outer(self.outer(v, True), False)

    un = unflattened(Model(), (x(),))
    assert paths(un) == ["", "outer", "outer.inner", "outer.inner@1", "outer@1"]


def test_a_module_with_two_parents():
    class Parent(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.shared = shared
            self.own = nn.Linear(4, 4)

        def forward(self, v):
            return self.shared(self.own(v)) + 1

    class Model(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.a, self.b = Parent(shared), Parent(shared)

        def forward(self, v):
            return self.b(self.a(v)) + self.b.shared(v)

    model = Model(nn.Linear(4, 4))
    un = unflattened(model, (x(),), dynamic_shapes=({0: B},), others=[(x(1),)])
    assert un.a.shared is un.b.shared and called(un.b) == ["own", "shared"]
    stateless = Model(nn.Tanh())
    un = unflattened(stateless, (x(),))
    assert called(un.b) == ["own", "shared"] and un.b.shared is un.a.shared
    assert called(un) == ["a", "b", "a.shared"]


def test_a_module_that_calls_its_parents_other_child():
    class Child(nn.Module):
        def __init__(self, sibling):
            super().__init__()
            self.hidden = [sibling]

        def forward(self, v):
            return self.hidden[0](v) * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = Block()
            self.two = Child(self.one)

        def forward(self, v):
            return self.two(self.one(v)) + self.one.lin(v)

    un = unflattened(Model(), (x(),))
    assert called(un.two) == ["one"] and un.two.one is un.one
    assert called(un) == ["one", "two", "one.lin"]


def test_a_module_that_calls_itself():
    class Tree(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v, depth=2):
            v = self.lin(v)
            return v if depth == 0 else self(v + 1, depth - 1) * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tree = Tree()

        def forward(self, v):
            return self.tree(v)

    unflattened(Model(), (x(),))
    unflattened(Tree(), (x(),))


@pytest.mark.parametrize("kind", ["tuple", "dict", "none", "nested", "constant", "same"])
def test_what_modules_return(kind):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v):
            a, b = self.lin(v), v * 2
            return {
                "tuple": (a, b),
                "dict": {"a": a, "b": b},
                "none": None,
                "same": v,
                "nested": [(a, {"b": b}), 3, None],
                "constant": 5,
            }[kind]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            first = self.part(v)
            if kind == "tuple":
                return self.part(first[0] + first[1]), first
            if kind == "dict":
                return first["a"] - first["b"], self.part(first["a"])
            if kind == "nested":
                return first, first[0][0] + first[0][1]["b"] * first[1]
            return v + 1 if first is None else first * v

    unflattened(Model(), (x(),), dynamic_shapes=({0: B},), others=[(x(1),)])


def test_results_that_only_some_calls_use():
    class Two(nn.Module):
        def forward(self, v):
            mean = v.mean(0)
            return v - mean, mean

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = Two()

        def forward(self, v):
            a, _ = self.two(v)
            b, mean = self.two(a * 2)
            return b + mean

    un = unflattened(Model(), (x(),))
    assert called(un) == ["two", "two"]


def test_modules_without_tensors():
    class Position(nn.Module):
        def forward(self, n):
            return torch.arange(n, dtype=torch.float32).unsqueeze(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = Position()

        def forward(self, v):
            return v + self.position(v.shape[0]) + self.position(4).sum()

    unflattened(Model(), (x(),), dynamic_shapes=({0: B},), others=[(x(1),), (x(7),)])


def test_tied_weights_and_weights_of_others():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.embed.weight
            self.also = self.out
            self.spare = nn.Parameter(torch.ones(4))
            self.again = self.spare
            self.lender = nn.Linear(4, 4)
            self.borrower = Borrower(self.lender)

        def forward(self, ids):
            v = self.embed(ids) + self.again
            return self.out(v), self.also(v), v @ self.lender.weight + self.borrower(v)

    class Borrower(nn.Module):
        def __init__(self, lender):
            super().__init__()
            self.lenders = [lender]

        def forward(self, v):
            return v * self.lenders[0].bias

    model = Model()
    un = unflattened(model, (torch.tensor([[1, 2, 3]]),))
    assert un.out.weight is un.embed.weight is model.embed.weight
    assert [n.target for n in un.out.graph.nodes if n.op == "get_attr"] == ["weight"]


def test_constants():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.ones(4) * 3

        def forward(self, v):
            return v * self.plain + torch.tensor([1.0, 2.0, 3.0, 4.0])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(v) + torch.tensor(2.0)

    un = unflattened(Model(), (x(),))
    assert torch.equal(un.part.plain, torch.ones(4) * 3)
    assert not un.state_dict()


def test_buffers_are_written_where_they_are():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("last", torch.zeros(4), persistent=False)

        def forward(self, v):
            self.count += 1
            before = self.last.clone()
            self.last.copy_(v.mean(0))
            return v * self.count + before

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.counter = Counter()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("total", torch.zeros(()))

        def forward(self, v):
            v = self.norm(self.counter(v))
            self.total += v.sum()
            return self.norm(self.counter(v))

    model = Model()
    un = unflattened(model, (x(),), dynamic_shapes=({0: gp.Dim("b", min=2)},), others=[(x(6),)])
    assert called(un) == ["counter", "norm", "counter", "norm"]
    assert un.counter.count is not model.counter.count
    torch.testing.assert_close(un.counter(x()), model.counter(x()))
    assert un.counter.count == model.counter.count == 1


def test_a_buffer_that_others_read_afterwards():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(4))

        def forward(self, v):
            before = self.kept
            self.kept = before + v.sum(0)
            return before

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            old = self.part.kept
            first = self.part(v)
            second = self.part(v)
            return first, second, old * 2, self.part.kept

    un = unflattened(Model(), (x(),))
    first = un(x())[0]
    un(x())
    assert torch.equal(first, torch.zeros(4))


def test_inputs_that_modules_write_to():
    class Part(nn.Module):
        def forward(self, v):
            v.add_(1)
            v[0].mul_(2)
            return v.sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v, w):
            total = self.part(v)
            return total + self.part(w.T), v

    unflattened(Model(), (x(), x(4)), dynamic_shapes=({0: B}, None), others=[(x(7), x(4))])


def test_branches():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)
            self.bias = nn.Parameter(torch.ones(4))

        def forward(self, v):
            return torch.cond(
                v.sum() > 0, lambda u: self.yes(u) + self.bias, lambda u: self.no(u) - 1, (v,)
            )

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.other = Part(), Part()

        def forward(self, v):
            v = self.part(v) + self.other(v)
            return torch.cond(v.shape[0] > 4, torch.sin, torch.cos, (v,))

    model = Model()
    others = [(-x(),), (x(1),), (x(9),), (-x(9),)]
    un = unflattened(model, (x(),), dynamic_shapes=({0: B},), others=others)
    assert hasattr(un.part, "true_graph_0") and called(un) == ["part", "other"]
    torch.testing.assert_close(un.part(-x()), model.part(-x()))


def test_gradients_through_branches():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v):
            return torch.cond(v.sum() > 0, lambda u: self.lin(u), lambda u: u * 2, (v,))

    model = nn.Sequential(Part(), nn.Tanh())
    un = gp.unflatten(gp.export(model, (x(),)))
    un(x()).sum().backward()
    have = model[0].lin.weight.grad
    model.zero_grad()
    model[1](model[0].lin(x())).sum().backward()
    torch.testing.assert_close(have, model[0].lin.weight.grad)


def test_loops():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v):
            def body(i, u):
                return i + 1, torch.tanh(self.lin(u))

            return torch.while_loop(lambda i, u: i < 3, body, (torch.tensor(0), v))[1]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(self.part(v))

    with torch.no_grad():
        un = unflattened(Model(), (x(),), dynamic_shapes=({0: B},), others=[(x(1),)])
    assert called(un) == ["part", "part"]


def test_values_from_data_cross_modules():
    class Count(nn.Module):
        def forward(self, mask):
            n = mask.sum().item()
            torch._check(n >= 0)
            torch._check(n <= mask.shape[0])
            return n

    class Cut(nn.Module):
        def forward(self, v, n):
            torch._check(n < 6)
            return v[:n] * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.count, self.cut = Count(), Cut()

        def forward(self, v, mask):
            return self.cut(v, self.count(mask))

    mask = torch.tensor([1, 0, 1])
    un = unflattened(
        Model(),
        (x(), mask),
        dynamic_shapes=({0: B}, {0: B}),
        others=[(x(2), torch.tensor([0, 0])), (x(5), torch.tensor([1] * 5))],
    )
    asserted = [n for n in un.cut.graph.nodes if "assert" in str(n.target)]
    assert asserted or [n for n in un.count.graph.nodes if "assert" in str(n.target)]
    with pytest.raises(RuntimeError):
        un(x(8), torch.tensor([1] * 8))


def test_sizes_from_data_stay_where_they_are_made():
    class Pick(nn.Module):
        def forward(self, v):
            return v[v > 0]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pick = Pick()
            self.lin = nn.Linear(1, 2)

        def forward(self, v):
            picked = self.pick(v)
            return self.lin(picked.unsqueeze(1)) * picked.shape[0], picked.numel()

    unflattened(Model(), (x(),), dynamic_shapes=({0: B},), others=[(x(6),), (x(1) - 9,)])


def test_inputs_are_checked_as_by_the_program():
    ep = gp.export(Block(), (x(),), dynamic_shapes=({0: B},))
    un, module = gp.unflatten(ep), ep.module()
    for given in ((x(65),), (torch.ones(3, 5),), (x(), x()), (x().double(),), ({"v": x()},)):
        with pytest.raises((RuntimeError, ValueError)) as want:
            module(*given)
        with pytest.raises(type(want.value)) as have:
            un(*given)
        assert str(have.value) == str(want.value)
    torch.testing.assert_close(un(v=x()), module(v=x()))
    with pytest.raises(NotImplementedError, match="train"):
        un.train()


def test_it_is_moved_copied_and_pickled():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.a, self.b = Block(), Block()
            self.b.lin = self.a.lin

        def forward(self, v, *, scale):
            return self.b(self.a(self.norm(self.norm(v))) * scale)

    model = Model()
    inputs = ((x(),), {"scale": torch.tensor(2.0)})
    ep = gp.export(model, *inputs)
    plain = ep.module()(*inputs[0], **inputs[1])
    used = gp.unflatten(gp.export(Model().eval(), *inputs))
    want = used(*inputs[0], **inputs[1])
    for copied in (copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        torch.testing.assert_close(copied(*inputs[0], **inputs[1]), want)
    for made in (copy.deepcopy(gp.unflatten(ep)), pickle.loads(pickle.dumps(gp.unflatten(ep)))):
        torch.testing.assert_close(made(*inputs[0], **inputs[1]), plain)
        assert made.a.lin is made.b.lin and made.a.lin.weight is not model.a.lin.weight
    moved = gp.unflatten(ep)
    assert moved(*inputs[0], **inputs[1]).dtype is torch.float32
    copied = copy.deepcopy(moved)
    copied.norm(x())
    assert copied.norm.num_batches_tracked == 3 and moved.norm.num_batches_tracked == 2
    double = copy.deepcopy(gp.unflatten(gp.export(Block(), (x(),)))).double()
    assert double.lin(x().double()).dtype is torch.float64


def test_it_can_be_captured_again():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.norm = Block(), nn.BatchNorm1d(4)

        def forward(self, v, twice=True):
            return self.norm(self.block(self.block(v)))

    model = Model()
    b = gp.Dim("b", min=2)
    ep = gp.export(model, (x(),), dynamic_shapes=({0: b},))
    again = gp.export(gp.unflatten(ep), (x(),), dynamic_shapes=({0: b},))
    again.validate()
    assert list(again.state_dict) == list(ep.state_dict)
    assert len(again.graph.nodes) == len(ep.graph.nodes)
    agree(gp.unflatten(again), model, [((x(),), {}), ((x(9),), {})])
    part = gp.export(gp.unflatten(ep).block, (x(),))
    torch.testing.assert_close(part.module()(x()), model.block(x()))


def test_it_prints():
    un = gp.unflatten(gp.export(nn.Sequential(Block(), nn.Tanh()), (x(),)))
    assert "(0): Block(" in str(un) and "(lin): Linear()" in str(un)
    text = un.print_readable(print_output=False)
    assert "class Block" in text and "# 0.lin" in text and "torch.ops.aten.linear" in text
    assert "self.lin" in un.get_submodule("0").code


def test_gradients():
    model = nn.Sequential(Block(), Block())
    un = gp.unflatten(gp.export(model, (x(),)))
    un(x()).square().sum().backward()
    have = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x()).square().sum().backward()
    for a, p in zip(have, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_a_child_can_be_replaced():
    model = nn.Sequential(Block(), Block())
    un = gp.unflatten(gp.export(model, (x(),), dynamic_shapes=({0: B},)))
    setattr(un, "1", nn.Identity())
    torch.testing.assert_close(un(x(5)), model[0](x(5)))


class Everything(nn.Module):
    """Shared parts, written buffers, a branch, tied weights, calls that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.one, self.two = Block(), Block()
        self.two.lin = self.one.lin
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(4) * 0.5)

    def forward(self, v, w):
        v = self.norm(self.one(v)) * self.scale
        with torch.no_grad():
            shift = self.two(w).mean(0)
        return {"a": self.drop(self.two(self.norm(v))) + shift, "n": v.shape[0]}


def everything(training: bool) -> tuple[nn.Module, list[object]]:
    model = Everything().train(training)
    inputs = [((x(n), x(n + 1)), {}) for n in (3, 2, 9)]
    return model, inputs


SPEC = ({0: gp.Dim("b", min=2, max=64)}, {0: gp.Dim("c", min=2, max=64)})


@pytest.mark.parametrize("training", [False, True])
def test_loaded_programs(training, tmp_path):
    model, inputs = everything(training)
    ep = gp.export(
        model, *inputs[0], dynamic_shapes=SPEC, preserve_module_call_signature=("one", "norm")
    )
    gp.save(ep, tmp_path / "program.gpx")
    loaded = gp.load(tmp_path / "program.gpx")
    un, again = gp.unflatten(ep), gp.unflatten(loaded)
    assert paths(un) == paths(again) and str(un) == str(again)
    assert again.one.lin is again.two.lin
    for args, _ in inputs:
        torch.manual_seed(0)
        want = un(*args)
        torch.manual_seed(0)
        torch.testing.assert_close(again(*args), want)
    torch.testing.assert_close(dict(again.state_dict()), dict(un.state_dict()))


@pytest.mark.parametrize("training", [False, True])
def test_decomposed_programs(training):
    model, inputs = everything(training)
    model.drop.p = 0.0  # taken apart, it draws other numbers
    ep = gp.export(model, *inputs[0], dynamic_shapes=SPEC).run_decompositions()
    agree(gp.unflatten(ep), model, inputs)


@pytest.mark.parametrize("mode", [False, True])
def test_the_training_form(mode):
    model, inputs = everything(mode)
    ep = gp.export(model, *inputs[0], dynamic_shapes=SPEC, training=True)
    un = gp.unflatten(ep)
    agree(un, model, inputs)
    model.drop.p = 0.0  # taken apart, it draws other numbers
    ep = gp.export(model, *inputs[0], dynamic_shapes=SPEC, training=True)
    agree(gp.unflatten(ep.run_decompositions()), model, inputs)


def test_the_training_form_writes_in_place():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, v):
            self.count.add_(1)
            v.mul_(2)
            return v + self.count

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(self.part(v)) + self.part.count

    unflattened(Model(), (x(),), dynamic_shapes=({0: B},), others=[(x(1),)], training=True)


def test_capture_again_with_branches_and_variants():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v, flag):
            v = torch.cond(v.sum() > 0, lambda u: self.lin(u), lambda u: u * 2, (v,))
            return v + 1 if flag else v

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, v):
            return self.part(self.part(v, True), False)

    model = Model()
    ep = gp.export(model, (x(),), dynamic_shapes=({0: B},))
    un = gp.unflatten(ep)
    again = gp.export(un, (x(),), dynamic_shapes=({0: B},))
    for given in (x(), -x(5), x(1)):
        want = ep.module()(given)
        torch.testing.assert_close(un(given), want)
        torch.testing.assert_close(gp.unflatten(again)(given), want)


def test_nodes_without_a_place():
    """Passes of others may leave nodes without metadata: they go where their neighbours are."""
    ep = gp.export(nn.Sequential(Block(), Block()), (x(),))
    model = ep.module()
    for node in list(ep.graph.nodes):
        if node.target is torch.ops.aten.linear.default:
            with ep.graph.inserting_after(node):
                twice = ep.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.0))
            node.replace_all_uses_with(twice, delete_user_cb=lambda u, t=twice: u is not t)
            twice.meta = {"val": node.meta["val"]}
    un = gp.unflatten(ep)
    assert called(un) == ["0", "1"]
    torch.testing.assert_close(un(x()), model(x()))


def test_a_call_in_pieces():
    """A pass moved a node out of its module's call: still the same result."""
    ep = gp.export(nn.Sequential(Block(), Block()), (x(),))
    want = ep.module()(x())
    adds = [n for n in ep.graph.nodes if n.target is torch.ops.aten.add.Tensor]
    adds[1].meta["nn_module_stack"] = dict(adds[0].meta["nn_module_stack"])
    un = gp.unflatten(ep)
    torch.testing.assert_close(un(x()), want)
    assert called(un) == ["0", "1", "0@1"]


def test_a_constant_with_two_names():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.foo = torch.ones(4)

        def forward(self, v):
            return v + self.foo

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.foo = self.inner.foo

        def forward(self, v):
            return v + self.foo + self.inner(v)

    un = unflattened(Model(), (x(),))
    assert torch.equal(un.foo, un.inner.foo)


def test_buffers_read_by_whoever_has_them_not():
    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, v):
            return self.linear(v)

    class Bar(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Leaf()
            self.register_buffer("buffer", torch.randn(4))

        def forward(self, v):
            return self.buffer.sum() + self.leaf(v).sum()

    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.bar = Bar()

        def forward(self, v):
            y = self.bar.buffer + v
            return (self.bar(v) + y.sum(),)

    un = unflattened(Foo(), (x(),))
    assert called(un) == ["bar"] and called(un.bar) == ["leaf"]
    targets = [n.target for n in un.bar.leaf.linear.graph.nodes if n.op == "get_attr"]
    assert targets == ["weight", "bias"]
    assert [n.target for n in un.graph.nodes if n.op == "get_attr"] == ["bar.buffer"]


def test_modules_made_in_forward_are_part_of_their_maker():
    class Model(nn.Module):
        def forward(self, v):
            return nn.LayerNorm(4)(v) * torch.tensor(5)

    assert paths(unflattened(Model(), (x(),))) == [""]


def test_assertions_stay_in_their_modules():
    class Cut(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, n, v):
            b = n.item()
            torch._check(b >= 0)
            torch._check(b < v.shape[0] * self.factor)
            return v[:b]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Cut(1), Cut(2)

        def forward(self, n, v):
            return self.one(n, v).sum() + self.two(n + 1, v).sum()

    v = torch.randn(10)
    un = unflattened(
        Model(),
        (torch.tensor(3), v),
        dynamic_shapes=(None, {0: gp.Dim("moo", min=2)}),
        others=[(torch.tensor(0), v[:2])],
    )
    for part in (un.one, un.two):
        assert any("assert" in str(n.target) for n in part.graph.nodes)
    assert not any("assert" in str(n.target) for n in un.graph.nodes)
    with pytest.raises(RuntimeError):
        un(torch.tensor(12), v)


def test_parametrized_weights():
    """Their modules have a parameter `original`."""
    for wrap in (nn.utils.parametrizations.orthogonal, nn.utils.parametrizations.weight_norm):
        model = nn.Sequential(wrap(nn.Linear(4, 4)), nn.ReLU())
        unflattened(model, (x(),))


def test_what_only_the_last_of_several_calls_returns_from_deep_within():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, v):
            self.kept = (v * self.w).sin()
            return self.kept * 2

    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, v):
            return self.inner(v) + 1

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer = Around(Around(Keeps()))

        def forward(self, v):
            for _ in range(3):
                v = self.outer(v)
            return v + self.outer.inner.inner.kept

    model = Model()
    with pytest.warns(UserWarning, match="kept"):
        ep = gp.export(model, (x(),))
    un = gp.unflatten(ep)
    torch.testing.assert_close(un(x()), ep.module()(x()))
    assert paths(un) == ["", "outer", "outer.inner", "outer.inner.inner"]


def test_it_is_pickled_with_what_it_checks():
    un = gp.unflatten(gp.export(Block(), (x(),), dynamic_shapes=({0: B},)))
    back = pickle.loads(pickle.dumps(un))
    torch.testing.assert_close(back(x(7)), un(x(7)))
    with pytest.raises(RuntimeError, match="to be <= 64, but got 65"):
        back(x(65))
