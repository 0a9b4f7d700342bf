"""The state of a program: what is lifted and under which names, and what is left untouched."""

from __future__ import annotations

import collections
import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import graphport as gp
from graphport import InputKind
from graphport.errors import CaptureWarning
from tests.helpers import check


def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def inputs_of(ep: gp.ExportedProgram) -> list[tuple[str, str, str | None]]:
    return [(s.arg.name, s.kind.name, s.target) for s in ep.graph_signature.input_specs]


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("kept", torch.ones(4) * 2)
        self.register_buffer("loose", torch.ones(4) * 3, persistent=False)
        self.register_buffer("none", None)
        self.register_parameter("nothing", None)
        self.plain = torch.ones(4) * 4
        self.listed = [torch.ones(4) * 5, {"deep": torch.ones(4) * 6}]
        self.sub = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, v):
        v = v * self.weight + self.kept - self.loose * self.plain
        return self.sub(v + self.listed[0] + self.listed[1]["deep"])


def test_kinds_and_names():
    model = Mixed()
    ep = check(model, (x(),))
    assert inputs_of(ep) == [
        ("p_weight", "PARAMETER", "weight"),
        ("p_sub_0_weight", "PARAMETER", "sub.0.weight"),
        ("p_sub_0_bias", "PARAMETER", "sub.0.bias"),
        ("b_kept", "BUFFER", "kept"),
        ("b_loose", "BUFFER", "loose"),
        ("c_plain", "CONSTANT_TENSOR", "plain"),
        ("c_listed_0", "CONSTANT_TENSOR", "listed.0"),
        ("c_listed_1_deep", "CONSTANT_TENSOR", "listed.1.deep"),
        ("v", "USER_INPUT", None),
    ]
    assert list(ep.state_dict) == list(model.state_dict())
    assert set(ep.constants) == {"loose", "plain", "listed.0", "listed.1.deep"}
    signature = ep.graph_signature
    assert signature.non_persistent_buffers == ("loose",)
    assert signature.lifted_tensor_constants == ("plain", "listed.0", "listed.1.deep")
    # Weights are shared with the user's model, never copied.
    assert ep.state_dict["weight"] is model.weight
    assert ep.module().sub.get_parameter("0.weight") is model.sub[0].weight


def test_state_that_is_not_used_is_an_input_all_the_same():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)
            self.register_buffer("idle", torch.ones(1))
            self.ignored = torch.ones(1)

        def forward(self, v):
            return v + 1

    names = [n for n, _, _ in inputs_of(check(Model(), (x(),)))]
    assert names == ["p_unused_weight", "p_unused_bias", "b_idle", "v"]


def test_shared_tensors_have_one_input_and_all_their_names():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 4)
            self.head = nn.Linear(4, 4, bias=False)
            self.head.weight = self.embed.weight
            self.block = nn.Linear(4, 4)
            self.again = self.block

        def forward(self, i):
            return self.head(self.again(self.block(self.embed(i))))

    ep = check(Model(), (torch.tensor([0, 3]),))
    assert [n for n, _, _ in inputs_of(ep)] == [
        "p_embed_weight",
        "p_block_weight",
        "p_block_bias",
        "i",
    ]
    assert {"head.weight", "again.weight", "again.bias"} <= set(ep.state_dict)
    module = ep.module()
    assert module.head.weight is module.embed.weight


def test_constants_from_everywhere():
    closed = torch.ones(4)

    def f(v):
        made = torch.tensor([1.0, 2, 3, 4]) + torch.full((4,), 2.0)
        return v + closed + GLOBAL + made + torch.tensor(3)

    ep = check(f, (x(),))
    kinds = [k for _, k, _ in inputs_of(ep)]
    assert kinds == ["CONSTANT_TENSOR"] * 4 + ["USER_INPUT"]
    assert len(ep.constants) == 4


GLOBAL = torch.arange(4.0)


def test_one_constant_under_two_names():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.ones(4)
            self.b = self.a
            self.inner = nn.ReLU()
            self.inner.c = self.a

        def forward(self, v):
            return self.inner(v + self.a) * self.b - self.inner.c

    ep = check(Model(), (x(),))
    assert [s.target for s in ep.graph_signature.input_specs if s.kind is InputKind.CONSTANT_TENSOR]
    assert [k for _, k, _ in inputs_of(ep)].count("CONSTANT_TENSOR") == 1


def test_constants_of_a_module_called_twice():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = torch.ones(4)

        def forward(self, v):
            return v + self.k

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Inner()
            self.second = self.first

        def forward(self, v):
            return self.second(self.first(v))

    ep = check(Outer(), (x(),))
    assert inputs_of(ep)[0][:2] == ("c_first_k", "CONSTANT_TENSOR")


# What forward assigns is undone


class Memory:
    """An object of the user's own, held by a module."""

    def __init__(self):
        self.steps = 0
        self.seen: list = []


class Restless(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = 1
        self.items = [1]
        self.table = {"a": [1]}
        self.order = collections.OrderedDict(z=1, a=2)
        self.counts = collections.defaultdict(int)
        self.recent = collections.deque([1, 2], maxlen=2)
        self.names = {"one"}
        self.tensor = torch.ones(4)
        self.memory = Memory()
        self.child = nn.Linear(4, 4)

    def forward(self, v):
        self.number += 1
        self.items.append(v)
        self.items[0] = None
        self.table["a"].append(v)
        self.table["b"] = v
        self.order.move_to_end("z")
        self.counts["k"] += 1
        self.recent.append(v)
        self.names.add("two")
        self.tensor = v * 2
        self.memory.steps += 1
        self.memory.seen.append(v)
        self.added = v
        self.child.training = False
        self.child.extra = 3
        self.child.register_forward_hook(lambda m, a, o: o)
        del self.child.weight
        self.child.weight = nn.Parameter(torch.ones(4, 4))
        torch.manual_seed(7)
        for p in self.parameters():
            p.requires_grad_(False)
        return v * self.number + self.tensor


def picture(model: Restless) -> list:
    """Everything that can be compared, by identity where that is what must stay."""
    return [
        model.number,
        list(model.items),
        copy.deepcopy(model.table),
        list(model.order.items()),
        dict(model.counts),
        list(model.recent),
        set(model.names),
        id(model.tensor),
        model.memory.steps,
        list(model.memory.seen),
        sorted(vars(model)),
        sorted(vars(model.child)),
        model.child.training,
        len(model.child._forward_hooks),
        id(model.child.weight),
        [p.requires_grad for p in model.parameters()],
        model.training,
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
    ]


def test_the_model_is_as_it_was():
    model = Restless()
    before = picture(model)
    with pytest.warns(CaptureWarning):
        ep = gp.export(model, (x(),))
    assert picture(model) == before
    torch.testing.assert_close(ep.module()(x()), x() * 2 + x() * 2)


def test_the_model_is_as_it_was_after_a_failure():
    class Failing(Restless):
        def forward(self, v):
            super().forward(v)
            torch.set_grad_enabled(False)
            raise ValueError("no")

    model = Failing()
    before = picture(model)
    with pytest.raises(ValueError, match="no"):
        gp.export(model, (x(),))
    assert picture(model) == before
    assert not torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def test_objects_that_are_not_modules_are_restored_too():
    class Service:
        def __init__(self):
            self.calls = []
            self.model = Restless()

        def __call__(self, v):
            self.calls.append(v)
            return self.model(v)

        def run(self, v):
            return self(v)

    for pick in (lambda s: s, lambda s: s.run, lambda s: lambda v: s(v)):
        service = Service()
        before = picture(service.model)
        with pytest.warns(CaptureWarning):
            gp.export(pick(service), (x(),))
        assert service.calls == [] and picture(service.model) == before


# Copies


def test_copies_of_model_and_program_after_export():
    model = Mixed()
    ep = gp.export(model, (x(),))
    want = model(x())
    torch.testing.assert_close(copy.deepcopy(model)(x()), want)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x()), want)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    twin = copy.deepcopy(ep)
    twin.validate()
    assert str(twin) == str(ep)
    torch.testing.assert_close(twin.module()(x()), want)
    twin.state_dict["weight"].data.zero_()
    torch.testing.assert_close(model(x()), want)


def test_the_module_of_a_program_can_be_copied():
    module = gp.export(Mixed(), (x(),)).module()
    torch.testing.assert_close(copy.deepcopy(module)(x()), module(x()))


def test_the_module_of_a_program_can_be_exported_again():
    model = Mixed()
    first = gp.export(model, (x(),))
    second = check(first.module(), (x(),))
    assert [n.target for n in second.graph.nodes if n.op == "call_function"] == [
        n.target for n in first.graph.nodes if n.op == "call_function"
    ]
    assert list(second.state_dict)[:2] == ["weight", "kept"]


# Where and how often


PROGRAM = """
import torch, graphport as gp
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
b = gp.Dim("b")
ep = gp.export(model, (torch.randn(2, 3, 8),), dynamic_shapes=({0: b}, None, None)[:1])
print(ep.graph)
print(ep.graph_signature)
"""


def test_the_same_text_each_time(fresh_python):
    def once():
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        b = gp.Dim("b")
        ep = gp.export(model, (torch.randn(2, 3, 8),), dynamic_shapes=({0: b},))
        return f"{ep.graph}\n{ep.graph_signature}\n"

    assert once() == once() == fresh_python(PROGRAM)


def test_is_compiling_is_true_only_while_capturing():
    seen = []

    def f(v):
        seen.append((torch.compiler.is_compiling(), torch.compiler.is_exporting()))
        return v + 1 if torch.compiler.is_compiling() else v - 1

    ep = gp.export(f, (x(),))
    assert seen == [(True, True)] and not torch.compiler.is_compiling()
    torch.testing.assert_close(ep.module()(x()), x() + 1)
    with pytest.raises(ZeroDivisionError):
        gp.export(lambda v: v * (1 // 0), (x(),))
    assert not torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def test_under_no_grad_inference_mode_and_a_device_context():
    model = Mixed()
    want = model(x()).detach()
    for context in (torch.no_grad(), torch.inference_mode(), torch.device("cpu")):
        with context:
            ep = gp.export(model, (x(),))
        torch.testing.assert_close(ep.module()(x()).detach(), want)
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_in_threads_at_once():
    call = nn.Module.__call__
    results: dict[int, object] = {}
    gate = threading.Barrier(4)

    def work(i):
        try:
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(i + 2)])
            gate.wait()
            for _ in range(5):
                ep = gp.export(model, (x(),))
                assert len([n for n in ep.graph.nodes if n.op == "call_function"]) == i + 2
            torch.testing.assert_close(ep.module()(x()), model(x()))
            results[i] = "fine"
        except (RuntimeError, AssertionError, TypeError, AttributeError) as error:
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), "fine")
    assert nn.Module.__call__ is call
    assert not torch.compiler.is_compiling()


def test_random_numbers():
    def f(v):
        noise = torch.rand(3, 4) + torch.randn_like(v) + torch.randint(0, 5, (3, 4))
        return nn.functional.dropout(v, 0.5, training=True) + noise + torch.randperm(4)

    state = torch.get_rng_state()
    check(f, (x(),))
    torch.set_rng_state(state)
    gp.export(f, (x(),))
    assert torch.equal(torch.get_rng_state(), state)
    check(nn.Dropout(0.5).train(), (x(),))
    ep = check(nn.Dropout(0.5).eval(), (x(),))
    assert not [n for n in ep.graph.nodes if n.op == "call_function"]


def test_the_mode_of_gradients_is_as_before():
    def f(v):
        torch.set_grad_enabled(False)
        return v + 1

    gp.export(f, (x(),))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        gp.export(lambda v: (torch.set_grad_enabled(True) and None) or v + 1, (x(),))
        assert not torch.is_grad_enabled()


class Wrapped(nn.Module):
    """A weight and a buffer that are made of others."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.inner.weight = nn.Parameter(TwoTensor(torch.randn(3, 4), torch.randn(3, 4)))
        nested = TwoTensor(torch.randn(3), torch.randn(3))
        self.register_buffer("shift", TwoTensor(nested, nested + 1))

    def forward(self, x):
        y = self.inner(x) + self.shift.a
        return y.a * y.b


def test_state_that_is_made_of_other_tensors(tmp_path):
    model = Wrapped()
    ep = gp.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: gp.Dim("n")},))
    names = ["inner.weight.a", "inner.weight.b", "inner.bias"]
    names += [f"shift.{first}.{second}" for first in "ab" for second in "ab"]
    assert sorted(ep.state_dict) == sorted(names)
    assert ep.state_dict["inner.weight.b"] is model.inner.weight.b
    gp.save(ep, tmp_path / "wrapped.gpx")
    onnx = gp.onnx.export(ep)
    assert {"inner.weight.a", "shift.a.b"} <= set(onnx.model.graph.initializers)
    for n in (2, 5, 1, 0):
        x = torch.randn(n, 4)
        for program in (ep, gp.load(tmp_path / "wrapped.gpx"), ep.run_decompositions()):
            torch.testing.assert_close(program.module()(x), model(x))
        torch.testing.assert_close(onnx(x), model(x))
