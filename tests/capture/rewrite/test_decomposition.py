"""`run_decompositions`: the same program over fewer operators; state, sizes, metadata are kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from graphport import Dim
from graphport.errors import InputError
from tests.helpers import check, compare, compare_metadata

aten = torch.ops.aten


def targets(ep: gp.ExportedProgram) -> set[Any]:
    modules = [m for m in ep.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return {n.target for m in modules for n in m.graph.nodes if n.op == "call_function"}


class Layers(nn.Module):
    """Composite operators, a buffer that is written, a constant, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.zeros(()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        x = self.norm(self.embed(ids))
        q = self.mix(x).unflatten(-1, (2, 4)).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(F.gelu(x)) * torch.tensor(2.0) + self.count


IDS = torch.arange(6).reshape(2, 3)
DYNAMIC = {"ids": {0: Dim("batch"), 1: Dim("length")}}
SIZES = [torch.arange(4).reshape(4, 1), torch.arange(10).reshape(2, 5)]


def test_core_aten_is_what_is_left() -> None:
    model = Layers()
    ep = gp.export(model, (IDS,), dynamic_shapes=DYNAMIC)
    core = ep.run_decompositions()
    core.validate()
    assert all(torch.Tag.core in t.tags for t in targets(core) if hasattr(t, "_schema"))
    for ids in (IDS, *SIZES):
        compare(core, model, ((ids,), {}), rtol=1e-4, atol=1e-5)
        compare_metadata(core, ((ids,), {}))
    assert not core.notes
    assert core.dialect == "ATEN"


def test_state_is_shared_and_the_program_unchanged() -> None:
    ep = gp.export(Layers(), (IDS,), dynamic_shapes=DYNAMIC)
    text = str(ep)
    core = ep.run_decompositions()
    assert str(ep) == text
    assert core.state_dict is ep.state_dict
    assert core.range_constraints == ep.range_constraints
    for name, t in ep.constants.items():
        assert core.constants[name] is t
    specs = [(s.kind, s.arg.name, s.target) for s in ep.graph_signature.input_specs]
    assert [(s.kind, s.arg.name, s.target) for s in core.graph_signature.input_specs] == specs
    assert list(core.graph_signature.buffers_to_mutate.values()) == ["count"]
    refusal = r"Expected input at \*args\[0\].shape\[1\]"
    small = gp.export(Layers(), (IDS,), dynamic_shapes={"ids": {1: Dim("length", max=4)}})
    with pytest.raises(RuntimeError, match=refusal):
        small.run_decompositions().module()(torch.zeros(2, 5, dtype=torch.int64))


def test_new_nodes_say_where_they_come_from() -> None:
    ep = gp.export(Layers(), (IDS,), dynamic_shapes=DYNAMIC)
    core = ep.run_decompositions()
    linear = next(n for n in ep.graph.nodes if n.target is aten.linear.default)
    addmm = next(n for n in core.graph.nodes if n.target is aten.addmm.default)
    for key in ("nn_module_stack", "stack_trace", "torch_fn"):
        assert addmm.meta[key] == linear.meta[key]
    assert addmm.meta["from_node"] == ((linear.name, "aten.linear.default"),)
    kept = next(n for n in core.graph.nodes if n.target is aten.embedding.default)
    assert "from_node" not in kept.meta


def test_an_empty_table_takes_composite_operators_apart_only() -> None:
    ep = gp.export(lambda x: F.silu(F.linear(x, x)), (torch.randn(3, 3),))
    left = targets(ep.run_decompositions({}))
    assert left == {aten.t.default, aten.mm.default, aten.silu.default}
    assert aten.silu.default not in targets(ep.run_decompositions())


def test_a_table_of_ones_own() -> None:
    def silu(x: torch.Tensor) -> torch.Tensor:
        return x / (1 + torch.exp(-x))

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.silu(x).relu()

    x = torch.randn(3)
    own = gp.export(f, (x,), decompose={aten.silu.default: silu})
    assert aten.exp.default in targets(own)
    assert aten.silu.default not in targets(own)
    compare(own, f, ((x,), {}))


def test_a_table_of_ones_own_may_not_fail() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("never mind")

    ep = gp.export(F.silu, (torch.randn(3),))
    with pytest.raises(RuntimeError, match="never mind"):
        ep.run_decompositions({aten.silu.default: broken})


def test_preserved_operators_stay_whole() -> None:
    ep = gp.export(Layers(), (IDS,), dynamic_shapes=DYNAMIC)
    kept = ep.run_decompositions(preserve_ops=(aten.linear.default,))
    assert aten.linear.default in targets(kept)
    assert aten.layer_norm.default not in targets(kept)
    compare(kept, Layers_like(ep), ((SIZES[1],), {}), rtol=1e-4, atol=1e-5)


def Layers_like(ep: gp.ExportedProgram) -> nn.Module:
    model = Layers()
    model.load_state_dict(ep.state_dict)
    return model


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (aten.chunk.default, "aten.chunk.default is a mutating/aliasing op"),
        (aten.add_.Tensor, "aten.add_.Tensor is a mutating/aliasing op"),
        (
            aten.add.Tensor,
            "aten.add.Tensor is not CompositeImplicitAutograd op, so we will preserve",
        ),
        (aten.sym_size.default, "aten.sym_size.default is a metadata query function"),
        (
            aten.native_batch_norm.default,
            "We can't detect aten.native_batch_norm.default as a func",
        ),
    ],
)
def test_what_cannot_be_preserved(op: Any, message: str) -> None:
    ep = gp.export(F.relu, (torch.randn(3),))
    with pytest.raises(RuntimeError, match=message):
        ep.run_decompositions({}, preserve_ops=(op,))


def test_bad_arguments() -> None:
    ep = gp.export(F.relu, (torch.randn(3),))
    with pytest.raises(InputError, match=r"torch\.ops\.aten\.linear\.default, got 'linear'"):
        ep.run_decompositions(preserve_ops=("linear",))
    with pytest.raises(InputError, match='decompose is "core" or a dict from an operator'):
        gp.export(F.relu, (torch.randn(3),), decompose="everything")
    assert aten.silu.default not in targets(gp.export(F.silu, (torch.randn(3),), decompose="core"))


# Layouts: core ATen has `view`, which must not meet memory that it cannot show


@pytest.mark.parametrize("transposed", [False, True])
def test_an_input_in_another_layout(transposed: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() * 2).reshape(-1) + x.flatten()

    ep = check(f, (torch.randn(3, 4),), dynamic_shapes={"x": gp.dims("a", "b")})
    x = torch.randn(5, 2).t() if transposed else torch.randn(2, 5)
    compare(ep.run_decompositions(), f, ((x,), {}))


def test_no_copies_where_the_layout_is_certain() -> None:
    core = gp.export(Layers(), (IDS,), dynamic_shapes=DYNAMIC).run_decompositions()
    # One for each transposition that attention needs, none for the reshapes around `linear`.
    assert sum(n.target is aten.clone.default for n in core.graph.nodes) <= 4


def test_what_a_size_of_zero_would_break_stays_whole() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.roll(1, 0), x.logsumexp(0)

    ep = gp.export(f, (torch.randn(3, 2),), dynamic_shapes={"x": {0: Dim("n")}})
    compare(ep.run_decompositions(), f, ((torch.randn(0, 2),), {}))
    some = gp.export(f, (torch.randn(3, 2),), dynamic_shapes={"x": {0: Dim("n", min=1)}})
    assert aten.roll.default not in targets(some.run_decompositions())


def test_an_operator_that_needs_a_plain_size_stays_whole_and_says_so() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x)

    ep = gp.export(f, (torch.randn(4, 3),), dynamic_shapes={"x": {0: Dim("n", min=1)}})
    core = ep.run_decompositions()
    assert aten.cdist.default in targets(core)
    assert any("aten.cdist.default stays whole" in note for note in core.notes)
    compare(core, f, ((torch.randn(30, 3),), {}))


# Data-dependent sizes, control flow, gradients


def test_data_dependent_sizes_keep_their_names() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 2)
        torch._check(k < 9)
        return F.silu(x[x > 0]).sum() + F.linear(torch.ones(k, 3), torch.ones(2, 3)).sum()

    ep = check(f, (torch.randn(5), torch.tensor(4)), dynamic_shapes={"x": {0: Dim("n")}, "n": None})
    core = ep.run_decompositions()
    assert {str(s) for s in core.range_constraints} == {str(s) for s in ep.range_constraints}
    compare(core, f, ((torch.randn(7), torch.tensor(2)), {}))
    with pytest.raises(RuntimeError, match="Invalid value range for 9 between"):
        core.module()(torch.randn(5), torch.tensor(9))


def test_branches_are_taken_apart_too() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def yes(x: torch.Tensor) -> torch.Tensor:
                return F.silu(self.layer(x)) * torch.tensor(3.0)

            return torch.cond(x.sum() > 0, yes, lambda x: F.softplus(x), (x,))

    model = Branches()
    ep = gp.export(model, (torch.ones(2, 4),), dynamic_shapes={"x": {0: Dim("n")}})
    core = ep.run_decompositions()
    core.validate()
    assert targets(core).isdisjoint({aten.linear.default, aten.silu.default})
    for x in (torch.ones(3, 4), -torch.ones(5, 4)):
        with torch.no_grad():
            torch.testing.assert_close(core.module()(x), model(x))


def test_gradients_stop_where_they_did() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = F.silu(x)
        return F.silu(x) * y + x.detach()

    core = gp.export(f, (torch.randn(3, requires_grad=True),)).run_decompositions()
    ours, theirs = (torch.linspace(-1, 1, 3).requires_grad_() for _ in range(2))
    core.module()(ours).sum().backward()
    f(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_twice_is_once() -> None:
    core = gp.export(Layers(), (IDS,), dynamic_shapes=DYNAMIC).run_decompositions()
    assert str(core.run_decompositions()) == str(core)


class Heads(nn.Module):
    """Attention as people write it: what the kernel lays out in order needs no copy."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q = x.view(b, n, 2, c // 2).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q)

        def joined(y: torch.Tensor) -> torch.Tensor:
            return y.transpose(1, 2).contiguous().view(b, n, c)

        if not self.inside:
            return self.last(joined(y))
        if torch.compiler.is_compiling():
            return torch.cond(x.sum() > 0, lambda y: joined(y) + 1, lambda y: joined(y) * 2, (y,))
        return joined(y) + 1 if x.sum() > 0 else joined(y) * 2


@pytest.mark.parametrize("inside", [False, True], ids=["view", "view in a branch"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views_of_what_lies_otherwise_once_taken_apart(inside: bool, dynamic: bool) -> None:
    spec = {"x": {0: Dim("b"), 1: Dim("n")}} if dynamic else None
    model = Heads(inside).eval()
    core = gp.export(model, (torch.randn(2, 5, 8),), dynamic_shapes=spec).run_decompositions()
    core.validate()
    sizes = [(2, 5), (3, 4), (1, 1)] if dynamic else [(2, 5)]
    for b, n in sizes:
        compare(core, model, ((torch.randn(b, n, 8),), {}))


def test_a_result_that_is_contiguous_in_every_layout_stays_so() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, 0.5).view(-1)

    core = gp.export(fn, (torch.randn(2, 3),)).run_decompositions().module()
    x = torch.randn(3, 2).t()
    torch.testing.assert_close(core(x), fn(x))


LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
    "encoder layer, length first": (lambda: nn.TransformerEncoderLayer(8, 2, 16), 1),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2),
    "decoder layer, length first": (lambda: nn.TransformerDecoderLayer(8, 2, 16), 2),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), 3),
    "attention, length first": (lambda: nn.MultiheadAttention(8, 2, bias=False), 3),
    "gru": (lambda: nn.GRU(8, 8, batch_first=True, bidirectional=True), 1),
    "lstm": (lambda: nn.LSTM(8, 8, 2), 1),
    "layer norm of a transposed input": (lambda: Transposed(nn.LayerNorm(5)), 1),
    "instance norm": (lambda: nn.InstanceNorm1d(5), 1),
    "softmax of a transposed input": (lambda: Transposed(nn.Softmax(-1)), 1),
    "group norm of a transposed input": (lambda: Transposed(nn.GroupNorm(2, 8)), 1),
    "activations": (lambda: nn.Sequential(nn.SELU(), nn.Hardswish(), nn.GELU(), nn.Mish()), 1),
}


class Transposed(nn.Module):
    """A layer on memory out of order, and a view of what it makes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x.transpose(1, 2))
        return y.transpose(1, 2).reshape(x.shape[0], -1) + y.contiguous().view(x.shape[0], -1)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_taken_apart_at_other_batches(name: str, training: bool) -> None:
    make, inputs = LAYERS[name]
    model = make().eval()
    d = 1 if "length first" in name or name == "lstm" else 0
    spec = tuple({d: Dim("b")} for _ in range(inputs))

    def of(batch: int) -> tuple[torch.Tensor, ...]:
        sizes = (5, batch, 8) if d else (batch, 5, 8)
        return tuple(torch.randn(sizes) for _ in range(inputs))

    if isinstance(model, nn.MultiheadAttention):
        spec = {"query": spec[0], "key": spec[1], "value": spec[2]}  # type: ignore[assignment]
    ep = gp.export(model, of(2), dynamic_shapes=spec, training=training)
    core = ep.run_decompositions()
    core.validate()
    for batch in (2, 4, 1):
        compare(core, model, (of(batch), {}))


@pytest.mark.parametrize("spec", [None, {"input": {0: Dim("n")}}], ids=["static", "dynamic"])
def test_dropout_is_one_core_operator(spec: Any) -> None:
    core = gp.export(nn.Dropout().train(), (torch.randn(3, 4),), dynamic_shapes=spec)
    core = core.run_decompositions()
    assert targets(core) == {aten.native_dropout.default, operator.getitem}
    out = core.module()(torch.ones(1000, 4) if spec else torch.ones(3, 4))
    assert set(out.unique().tolist()) <= {0.0, 2.0}


class Tokens(nn.Module):
    """Pixels as a row of tokens and back, as in the attention of diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.GroupNorm(2, 8), nn.Linear(8, 8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.mix(x.flatten(2).transpose(1, 2)).transpose(-1, -2).reshape(x.shape)
        return self.norm(y), self.norm(torch.relu(self.conv(x)) + self.conv(y)), self.norm(x)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (2, 3, 0, 1), (0, 2, 1, 3)])
@pytest.mark.parametrize("batch", [1, 3])
def test_group_norm_of_what_is_laid_out_otherwise(batch: int, order: tuple[int, ...]) -> None:
    model, size = Tokens().eval(), Dim("size", min=2)
    spec = ({0: Dim("batch"), 2: size, 3: size},)
    core = gp.export(model, (torch.randn(2, 8, 4, 4),), dynamic_shapes=spec).run_decompositions()
    sizes = (batch, 8, 6, 6)
    x = torch.randn([sizes[order.index(d)] for d in range(4)]).permute(order)
    torch.testing.assert_close(core.module()(x), model(x))


def test_group_norm_of_convolutions_needs_no_copy() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.GroupNorm(2, 8)).eval()
    spec = {"input": {0: Dim("batch"), 2: Dim("height", min=3)}}
    core = gp.export(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=spec).run_decompositions()
    assert aten.clone.default not in targets(core)


def test_what_is_assumed_of_data_is_checked_before_it_is_relied_on():
    """The size that the reshape writes down is one that only the line after it makes certain."""

    class Inner(nn.Module):
        def forward(self, x, y):
            return torch.where(y > 0, y, x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            y = x[x > 0]
            column = y.reshape(y.shape[0], -1)
            return column, self.inner(x, y)

    x = torch.tensor([1, 2, 3])
    core = gp.export(Model(), (x,)).run_decompositions()
    torch.testing.assert_close(core.module()(x), Model()(x))
    torch.testing.assert_close(gp.unflatten(core)(x), Model()(x))
    for module in (core.module(), gp.unflatten(core)):
        with pytest.raises(
            RuntimeError, match=r"Runtime assertion failed for expression Eq\(u0, 3"
        ):
            module(torch.tensor([1, -2, -3]))
    names = [n.name for n in core.graph.nodes]
    assert names.index("_assert_scalar") < names.index("_assert_scalar_1")


def test_positions_beyond_a_dim_begin_anew() -> None:
    x, index = torch.randn(3, 4), torch.tensor([[-5, -1, 4, 9]])
    program = gp.export(lambda x, i: torch.take_along_dim(x, i, 1), (x, index))
    found = program.run_decompositions().module()(x, index)
    torch.testing.assert_close(found, torch.take_along_dim(x, index, 1))


def test_writes_through_views_within_a_decomposition():
    """What a decomposition makes of memory and views of it, a prim's too."""

    def fill(x):
        out = torch.zeros(6)
        out.view(2, 3).copy_(x)
        out.view(3, 2)[1] = 7
        out.reshape(6)[0] += 1
        return out

    x = torch.randn(2, 3)
    ep = gp.export(lambda x: torch.ops.aten.relu(x), (x,))
    core = ep.run_decompositions({torch.ops.aten.relu.default: fill})
    assert torch.equal(core.module()(x), fill(x))
