"""Modules of every make: hooks, lazy ones, parametrisations, containers, made in forward."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import graphport as gp
from tests.helpers import check


def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) / 4


def test_hooks():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    model[0].register_forward_hook(lambda m, a, o: o * 2)
    model.register_forward_pre_hook(lambda m, a, k: ((a[0] * 3,), k), with_kwargs=True)
    model.register_forward_hook(lambda m, a, k, o: o - 1, with_kwargs=True, prepend=True)
    check(model, (x(),))
    assert len(model._forward_hooks) == 1 and len(model[0]._forward_pre_hooks) == 1


def test_hooks_with_keywords():
    class Model(nn.Module):
        def forward(self, v, *, scale):
            return v * scale

    model = Model()
    model.register_forward_pre_hook(
        lambda m, a, k: (a, {"scale": k["scale"] + 1}), with_kwargs=True
    )
    check(model, (x(),), {"scale": torch.tensor(2.0)})


def test_hooks_that_only_look():
    seen = []
    model = nn.Linear(4, 4)
    handle = model.register_forward_hook(lambda m, a, o: seen.append(o.shape))
    check(model, (x(),))
    handle.remove()
    assert seen[0] == (3, 4)


def test_global_hooks():
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, a, o: o + 1 if isinstance(m, nn.Linear) else None
    )
    try:
        check(nn.Sequential(nn.Linear(4, 4)), (x(),))
    finally:
        handle.remove()


def test_lazy_modules_take_shape():
    model = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(2)).eval()
    b = gp.Dim("b", min=1)
    ep = gp.export(model, (x(),), dynamic_shapes=({0: b},))
    assert type(model[0]) is nn.Linear and model[0].weight.shape == (5, 4)
    assert ep.state_dict["0.weight"] is model[0].weight
    ep.validate()
    for n in (1, 3, 6):
        given = torch.randn(n, 4)
        torch.testing.assert_close(ep.module()(given), model(given))
    check(model, (x(),))


def test_parametrizations():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    symmetric = nn.Linear(4, 4)
    parametrize.register_parametrization(symmetric, "weight", Symmetric())
    for model in (
        symmetric,
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.weight_norm(nn.Conv1d(3, 3, 2)),
        parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
        parametrizations.orthogonal(nn.Linear(4, 4)),
        nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4), dim=None), nn.Tanh()),
    ):
        check(model, (x(),), rtol=1e-4, atol=1e-4)


def test_spectral_norm_in_training_updates_its_vectors():
    model = parametrizations.spectral_norm(nn.Linear(4, 4)).train()
    ep = check(model, (x(),), rtol=1e-4, atol=1e-4)
    mutated = set(ep.graph_signature.buffers_to_mutate.values())
    assert mutated == {"parametrizations.weight.0._u", "parametrizations.weight.0._v"}


def test_parametrized_with_a_cache():
    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            parametrize.register_parametrization(self.lin, "weight", Double())

        def forward(self, v):
            with parametrize.cached():
                return self.lin(v) + self.lin(v + 1)

    check(Model(), (x(),))
    assert not parametrize._cache


@pytest.mark.parametrize("make", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_norms_of_the_old_kind(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(nn.Linear(4, 4)).eval()
    ep = gp.export(model, (x(),))
    torch.testing.assert_close(ep.module()(x()), model(x()))


def test_containers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))])
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)), torch.ones(4) * 2])
            self.shifts = nn.ParameterDict({"k": nn.Parameter(torch.ones(4))})
            self.none = None
            self.empty = nn.ModuleList()

        def forward(self, v, which: str):
            for layer, scale in zip(self.layers, self.scales, strict=True):
                v = layer(v) * scale
            for layer in self.empty:
                v = layer(v)
            return {
                which: self.heads[which](v + self.shifts["k"]),
                "all": [head(v) for head in self.heads.values()],
            }

    ep = check(Model(), (x(), "b"))
    names = [s.target for s in ep.graph_signature.input_specs if s.target]
    assert names[:3] == ["layers.0.weight", "layers.0.bias", "layers.1.0.weight"]
    assert "scales.1" in names and "shifts.k" in names


def test_modules_made_in_forward():
    class Model(nn.Module):
        def forward(self, v):
            norm = nn.LayerNorm(4)
            return nn.Sequential(norm, nn.ReLU())(v)

    check(Model(), (x(),))


def test_a_module_made_in_forward_draws_its_weights_on_each_run():
    class Model(nn.Module):
        def forward(self, v):
            return nn.Linear(4, 2)(v)

    check(Model(), (x(),))


def test_modules_that_are_not_registered():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [nn.Linear(4, 4)]

        def forward(self, v):
            return self.hidden[0](v)

    check(Model(), (x(),))


def test_a_module_with_its_own_call():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def __call__(self, v):
            return super().__call__(v * 2)

        def forward(self, v):
            return self.lin.forward(v)

    model = Model()
    ep = gp.export(model, (x(),))
    torch.testing.assert_close(ep.module()(x()), model(x()))


def test_forward_replaced_on_the_instance():
    model = nn.Linear(4, 4)
    old = model.forward
    model.forward = lambda v: old(v) + 1
    ep = gp.export(model, (x(),))
    torch.testing.assert_close(ep.module()(x()), model(x()))


def test_inheritance_mixins_properties_and_getattr():
    class Mixin:
        @property
        def doubled(self):
            return self.lin.weight * 2

        def helper(self, v):
            return v @ self.doubled

    class Model(Mixin, nn.Module):
        kind = "plain"

        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def __getattr__(self, name):
            if name == "virtual":
                return self.lin.bias
            return super().__getattr__(name)

        @classmethod
        def scale(cls):
            return 2.0 if cls.kind == "plain" else 1.0

        @staticmethod
        def shift(v):
            return v + 1

        def forward(self, v):
            return self.shift(self.helper(v)) * self.scale() + self.virtual

    check(Model(), (x(),))


def test_recurrent_layers():
    for layer in (
        nn.LSTM(4, 3, 2),
        nn.GRU(4, 3, batch_first=True),
        nn.RNN(4, 3),
        nn.LSTM(4, 3, bidirectional=True),
    ):
        check(layer.eval(), (torch.randn(5, 2, 4),), rtol=1e-4, atol=1e-5)
    check(nn.LSTMCell(4, 3), (torch.randn(2, 4), (torch.randn(2, 3), torch.randn(2, 3))))


def test_pad_sequence():
    class Model(nn.Module):
        def forward(self, seqs):
            return nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=-1.0)

    check(Model(), ([torch.ones(3), torch.ones(5), torch.ones(2)],))


def test_print_and_logging_do_no_harm(capsys):
    def f(v):
        print("shape", v.shape, f"{v.sum():.2f}", v)
        return v + 1

    gp.export(f, (x(),))
    assert "shape" in capsys.readouterr().out


def test_constant_outputs():
    class Model(nn.Module):
        def forward(self, v):
            return v, 1, 2.5, "text", None, [True, {"k": v.shape[1]}], v.dtype

    check(Model(), (x(),))


def test_symbolic_outputs():
    def f(v):
        n = v.shape[0]
        return n, n * 2 + 1, v.numel(), torch.sym_sqrt(n), n // 2, [n == 3], v.sum() * n

    ep = gp.export(f, (x(),), dynamic_shapes=({0: gp.Dim("b")},))
    for n in (3, 4, 9):
        given = torch.ones(n, 4)
        have = ep.module()(given)
        assert have[:3] == (n, 2 * n + 1, 4 * n) and have[3] == pytest.approx(n**0.5)
        assert have[4] == n // 2 and have[6] == 4 * n * n


def test_marks_for_the_profiler_are_no_part_of_the_program():
    class Model(nn.Module):
        def forward(self, v):
            with torch.profiler.record_function("sum"):
                return v + 1

    ep = check(Model(), (x(),))
    assert [n.name for n in ep.graph.nodes] == ["v", "add", "output"]


def test_a_module_with_a_length():
    """Nothing asks whether a module is true: of one without elements that is not so."""

    class Bank(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(3))
            self.register_buffer("cache", torch.ones(3), persistent=False)

        def __len__(self):
            return 0

        def forward(self, v):
            return v.sum(1) + self.rows + self.cache

    ep = check(Bank(), (x(),))
    assert list(ep.state_dict) == ["rows"] and "cache" in ep.constants


def test_a_module_that_torch_compile_has_wrapped():
    model = nn.Linear(4, 2)
    wrapped = torch.compile(model, backend="eager")
    ep = gp.export(wrapped, (x(),), dynamic_shapes={"input": {0: gp.Dim("rows")}})
    assert list(ep.state_dict) == ["weight", "bias"]
    torch.testing.assert_close(ep.module()(x()[:2]), model(x()[:2]))


def test_distributions_are_not_asked_whether_they_are_valid(monkeypatch):
    """They would look at data."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    normal = torch.distributions.Normal(torch.zeros(4), torch.ones(4))

    def loss(mean, spread):
        given = torch.distributions.Normal(mean, spread.exp())
        return torch.distributions.kl_divergence(given, normal).sum(-1), normal.log_prob(mean)

    rows = gp.Dim("rows", min=1)
    check(loss, (x(), x()), dynamic_shapes=({0: rows}, {0: rows}), others=[(x()[:1], x()[1:2])])
    assert torch.distributions.Distribution._validate_args
