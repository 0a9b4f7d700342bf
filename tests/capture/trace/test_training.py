"""The training form: mutation, dropout, batch norm and gradient modes as they were written."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphport as gp
from graphport import Dim
from graphport.errors import UnsupportedError
from tests.capture.control import cond
from tests.helpers import assert_same, clone, compare, snapshot_state

aten = torch.ops.aten


def names(ep: gp.ExportedProgram) -> list[str]:
    return [str(n.target) for n in ep.graph.nodes if n.op == "call_function"]


def train_alike(ep: gp.ExportedProgram, model: nn.Module, batches: list[tuple[Any, ...]]) -> None:
    """Results, gradients, buffers and inputs agree step by step."""
    ours, theirs = ep.module(), copy.deepcopy(model)
    before = snapshot_state(model)
    for batch in batches:
        mine, its = clone((batch, {}))[0], clone((batch, {}))[0]
        torch.manual_seed(0)
        have = ours(*mine)
        torch.manual_seed(0)
        want = theirs(*its)
        assert_same(have, want, "results differ")
        assert_same(mine, its, "inputs are left differently")
        for results in (have, want):
            total = sum(
                t.sum() for t in torch.utils._pytree.tree_leaves(results) if t.requires_grad
            )
            if isinstance(total, torch.Tensor):
                total.backward()
    grads = {n: p.grad for n, p in theirs.named_parameters()}
    assert_same({n: p.grad for n, p in ours.named_parameters()}, grads, "gradients differ")
    buffers = dict(theirs.named_buffers())
    assert_same({n: b for n, b in ours.named_buffers() if n in buffers}, buffers, "buffers differ")
    assert_same(snapshot_state(model), before, "the model has changed")
    for p in model.parameters():
        p.grad = None


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu_()).mean((2, 3)))


def test_layers_stay_as_written_and_train() -> None:
    model = Convolutional().train()
    ep = gp.export(
        model, (torch.randn(2, 3, 6, 6),), dynamic_shapes={"x": {0: Dim("n", min=2)}}, training=True
    )
    ep.validate()
    assert ep.dialect == "TRAINING"
    assert names(ep) == [
        "aten.conv2d.default",
        "aten.add_.Tensor",
        "aten.batch_norm.default",
        "aten.relu_.default",
        "aten.dropout.default",
        "aten.mean.dim",
        "aten.linear.default",
    ]
    train_alike(ep, model, [(torch.randn(n, 3, 6, 6),) for n in (2, 3, 5)])


def test_dropout_stays_in_evaluation_too() -> None:
    ep = gp.export(Convolutional().eval(), (torch.randn(2, 3, 6, 6),), training=True)
    assert "aten.dropout.default" in names(ep)
    assert "aten.dropout.default" not in names(
        gp.export(Convolutional().eval(), (torch.randn(2, 3, 6, 6),))
    )


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        y[1:].mul_(2)
        y[y > 3] = 0
        once = torch.tensor([1.0, 2.0, 3.0, 4.0])
        once.add_(self.count)
        return self.layer(x) + y.sum() + once + torch.add(x, 1, out=torch.empty(0))


def test_writes_happen_in_memory() -> None:
    model = Writes()
    args = (torch.randn(3, 4), torch.randn(3, 4))
    d = Dim("n", min=1)
    ep = gp.export(model, args, dynamic_shapes={"x": {0: d}, "y": {0: d}}, training=True)
    ep.validate()
    assert not ep.graph_signature.buffers_to_mutate
    assert "aten.add_.Tensor" in names(ep)
    train_alike(ep, model, [(torch.randn(n, 4), 4 * torch.randn(n, 4)) for n in (3, 1, 6)])


def test_every_module_has_buffers_of_its_own() -> None:
    model = Writes()
    args = (torch.randn(3, 4), torch.randn(3, 4))
    ep = gp.export(model, args, training=True)
    one, other = ep.module(), ep.module()
    one(*args)
    assert one.count == 1
    assert other.count == model.count == ep.state_dict["count"] == 0
    assert one.layer.weight is model.layer.weight


def test_gradient_modes_are_calls_of_graphs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x - y
        with torch.no_grad():
            return x + y

    args = (torch.tensor(10.0), torch.tensor(12.0))
    for enabled, inner in ((False, "sub"), (True, "add")):
        with torch.set_grad_enabled(enabled):
            ep = gp.export(f, args, training=True)
        (attribute,) = [n for n in ep.graph.nodes if n.op == "get_attr"]
        assert attribute.target == "submod_1"
        graph = ep.graph_module.submod_1.graph
        assert [n.name for n in graph.nodes if n.op == "call_function"] == [inner]
        call = next(n for n in ep.graph.nodes if n.name.startswith("wrap_with_set_grad"))
        assert call.args[0] is not enabled
        assert ep.module()(*args) == 10


def test_gradients_through_regions() -> None:
    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            with torch.no_grad():
                scale = F.silu(self.b(h)) + x.shape[0]
                bias = scale * 2
            return self.b(h) * scale + bias

    model = Regions()
    ep = gp.export(model, (torch.randn(3, 4),), dynamic_shapes={"x": {0: Dim("n")}}, training=True)
    train_alike(ep, model, [(torch.randn(n, 4),) for n in (3, 5)])
    functional = ep.run_decompositions()
    functional.validate()
    train_alike(functional, model, [(torch.randn(n, 4),) for n in (3, 5)])


# To the inference form and back


def saved_and_loaded(ep: gp.ExportedProgram) -> gp.ExportedProgram:
    file = io.BytesIO()
    gp.save(ep, file)
    file.seek(0)
    return gp.load(file)


def layered() -> tuple[nn.Module, tuple[Any, ...], Any]:
    return Convolutional().eval(), (torch.randn(2, 3, 6, 6),), {"x": {0: Dim("n", min=1)}}


def writing() -> tuple[nn.Module, tuple[Any, ...], Any]:
    n = Dim("n", min=1)
    return Writes(), (torch.randn(3, 4), torch.randn(3, 4)), {"x": {0: n}, "y": {0: n}}


def normalising() -> tuple[nn.Module, tuple[Any, ...], Any]:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True)).train()
    return model, (torch.randn(5, 4),), {"input": {0: Dim("n", min=2)}}


CASES = [layered, writing, normalising]


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_decompositions_make_it_functional(case: Callable[..., Any]) -> None:
    model, args, shapes = case()
    ep = gp.export(model, args, dynamic_shapes=shapes, training=True)
    functional = ep.run_decompositions()
    functional.validate()
    assert functional.dialect == "ATEN"
    assert functional.state_dict is ep.state_dict
    direct = gp.export(model, args, dynamic_shapes=shapes).run_decompositions()
    mutated = functional.graph_signature.buffers_to_mutate.values()
    assert set(mutated) == set(direct.graph_signature.buffers_to_mutate.values())
    for n in (args[0].shape[0], 7):
        batch = tuple(torch.randn(n, *a.shape[1:]) for a in args)
        compare(functional, model, (batch, {}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_the_module_can_be_captured_again(case: Callable[..., Any]) -> None:
    model, args, shapes = case()
    ep = gp.export(model, args, dynamic_shapes=shapes, training=True)
    assert str(saved_and_loaded(ep)) == str(ep)
    again = gp.export(ep.module(), args, dynamic_shapes=shapes, training=True)
    assert [str(n.target) for n in again.graph.nodes] == [str(n.target) for n in ep.graph.nodes]
    inference = gp.export(ep.module(), args, dynamic_shapes=shapes)
    inference.validate()
    for n in (args[0].shape[0], 7):
        batch = tuple(torch.randn(n, *a.shape[1:]) for a in args)
        compare(inference, model, (batch, {}), rtol=1e-4, atol=1e-5)


def test_container_inputs() -> None:
    class Container(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.ones(4))

        def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:
            pair[0].add_(5)
            pair[1].add_(5)
            return pair[0] + pair[1] + self.b.sum()

    model = Container()
    args = ([torch.ones(4), torch.ones(4)],)
    train_alike(gp.export(model, args, training=True), model, [args])


def test_branches_may_not_write_outside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos().mul_(2), (x,))

    ep = gp.export(f, (torch.ones(3),), training=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(ep.module()(x), f(x))
        torch.testing.assert_close(ep.run_decompositions().module()(x), f(x))


class Clip(torch.autograd.Function):
    """A backward that is not the derivative, and context of every kind."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, k: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        ctx.w = w.sigmoid()
        return x.clamp(-k, k) * w

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.k * x.cos(), (g * ctx.w).sum(0), None


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: Any) -> torch.Tensor:
        return 2 * g * ctx.saved_tensors[0]


class WithFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> Any:
        y = Clip.apply(self.layer(x), self.w, 0.5)
        z, best = Pair.apply(y)
        return z * 2 + y, best


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.b, self.a(x).sin(), use_reentrant=reentrant) * 2

    model = Checkpointed()
    ep = gp.export(model, (torch.randn(3, 4),), dynamic_shapes={"x": {0: Dim("n")}}, training=True)
    train_alike(ep, model, [(torch.randn(n, 4),) for n in (3, 5)])


def test_a_backward_that_cannot_be_captured() -> None:
    class Strange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            raise ValueError("not today")

    with pytest.raises(UnsupportedError, match="the backward of Strange cannot be captured"):
        gp.export(lambda x: Strange.apply(x), (torch.randn(3, requires_grad=True),), training=True)


def test_functions_bring_their_backward() -> None:
    model = WithFunctions()
    shapes = {"x": {0: Dim("n")}}
    ep = gp.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes, training=True)
    ep.validate()
    again = gp.export(ep.module(), (torch.randn(3, 4),), dynamic_shapes=shapes, training=True)
    for program in (ep, again, saved_and_loaded(ep)):
        train_alike(program, model, [(torch.randn(n, 4),) for n in (3, 5)])
    functional = ep.run_decompositions()
    functional.validate()
    compare(functional, model, ((torch.randn(6, 4),), {}))
    assert "aten.detach.default" not in names(functional)


# Memory and control flow, as written and made functional


class Swaps(nn.Module):
    """What an assigned buffer held before is returned, and becomes another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(4.0))
        self.register_buffer("b", torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = self.a
        self.a, self.b = self.b, self.a + x
        return old, self.a + 1, self.b


class Overlaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.whole[2:4])
        self.register_buffer("turned", self.whole.view(2, 3).t())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.part.add_(x[:2])
        self.turned[0] = 7
        return self.whole * 1, self.part * 1, self.turned * 1


class Decides(nn.Module):
    """Numbers come out of branches, and a graph has the name of a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.true_graph_0 = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positive = x.sum() > 0
        with torch.no_grad():
            y = cond(positive, lambda: x.sin(), lambda: x.cos(), ())
        n = cond(positive, lambda: 2, lambda: 3, ())
        return y * n + self.true_graph_0


@pytest.mark.parametrize("kind", [Swaps, Overlaps, Decides])
def test_memory_and_branches(kind: type[nn.Module]) -> None:
    model = kind()
    ep = gp.export(model, (torch.ones(4),), training=True)
    for program in (ep, ep.run_decompositions({}), ep.run_decompositions()):
        program.validate()
        ours, theirs = program.module(), copy.deepcopy(model)
        for x in (torch.ones(4), -torch.ones(4)):
            assert_same(ours(x), theirs(x), "results differ")


def test_decompositions_know_what_decides_a_branch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def small(x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] < 5 else x * 3

        return cond(x.shape[0] <= 3, small, lambda x: x + 1, (x,))

    ep = gp.export(f, (torch.ones(4),), dynamic_shapes={"x": {0: Dim("n")}}, training=True)
    for n in (2, 4, 6):
        compare(ep.run_decompositions(), f, ((torch.randn(n),), {}))


def test_a_copy_that_is_none_at_another_size() -> None:
    class Transposed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.t().contiguous().add_(1)
            return x * 2

    model = Transposed()
    ep = gp.export(model, (torch.randn(3, 2),), dynamic_shapes=({0: Dim("n")},), training=True)
    train_alike(ep, model, [(torch.randn(n, 2),) for n in (3, 1, 4)])


@pytest.mark.parametrize("spec", [None, ({0: Dim.AUTO, 1: Dim.AUTO},)], ids=["fixed", "open"])
def test_a_copied_view_of_any_memory(spec: Any) -> None:
    """`view_copy` takes any strides, as `reshape` does, and is memory of its own."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.view_copy(x, (x.shape[0] * x.shape[1],)).mul_(2)
        return torch.view_copy(x.T, (x.shape[0] * x.shape[1],)).mul_(3), rows + x.flatten()

    x = torch.randn(3, 4)
    ep = gp.export(fn, (x,), dynamic_shapes=spec, training=True)
    for program in (ep, ep.run_decompositions()):
        compare(program, fn, ((x,), {}))


def _gaps() -> torch.Tensor:
    return torch.ones(3, 4, 2)[..., 0]


_LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "gaps": _gaps,
    "rows": lambda: torch.ones(3, 4),
    "columns": lambda: torch.ones(4, 3).T,
}
_WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "flatten": lambda x: x.flatten().mul_(10),
    "a part": lambda x: x.reshape(-1)[1:].mul_(10),
    "contiguous": lambda x: x.contiguous().mul_(10),
    "transposed": lambda x: x.T.flatten().mul_(10),
    "computed": lambda x: (x * 1).flatten().mul_(10),
}


@pytest.mark.parametrize("example", _LAYOUTS)
@pytest.mark.parametrize("write", _WRITES)
def test_writes_to_what_is_a_view_in_some_layouts(write: str, example: str) -> None:
    """Right in every layout that is taken; or refused, where sizes of 1 decide."""

    def f(x: torch.Tensor) -> torch.Tensor:
        _WRITES[write](x)
        return x + 0

    spec = ({0: gp.Dim.AUTO, 1: gp.Dim.AUTO},)
    export = partial(gp.export, f, (_LAYOUTS[example](),), dynamic_shapes=spec, training=True)
    if example == "gaps" and write in ("flatten", "a part"):
        with pytest.raises(gp.errors.MutationError, match="but a copy at others"):
            export()
        return
    module = export().module()
    for name, make in _LAYOUTS.items():
        try:
            have = module(make())
        except RuntimeError:
            assert name != example  # whose layout is demanded
        else:
            assert torch.equal(have, f(make()))
