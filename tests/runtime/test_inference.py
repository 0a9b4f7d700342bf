"""Compiled functions and modules without gradients, against eager: graphs, sessions, fallback."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import graphport as gp
from graphport.errors import SessionError
from graphport.runtime import OrtBackend, OrtBackendOptions
from tests.runtime.comparing import check, counts, operators, same

SIZES = (2, 4, 6)


def mlp():
    layers = nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 2), nn.Sigmoid()
    return nn.Sequential(*layers).requires_grad_(False)


def rows(*sizes, width=3):
    return [(torch.randn(n, width),) for n in sizes]


def records(backend):
    return [r for found in backend.sessions.values() for r in found]


# Graphs and sessions


def test_one_session_for_all_sizes():
    calls = [(torch.randn(n),) for n in (2, 4, 6, 8, 10)]
    backend = check(lambda x: x.relu().sigmoid(), *calls, dynamic=True)
    assert backend.execution_count == 5
    assert counts(backend) == [1]
    (record,) = records(backend)
    for value in (*record.model_proto.graph.input, *record.model_proto.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param


def test_a_batch_of_one_is_another_graph():
    backend = check(mlp(), *rows(1, 2, 4, 6, 8, width=2), dynamic=True)
    assert backend.execution_count == 5
    assert counts(backend) == [1, 1]


def test_static_sizes_are_graphs_of_their_own():
    backend = check(mlp(), *rows(2, 4, 2, 4, width=2), dynamic=False)
    assert backend.execution_count == 4
    assert counts(backend) == [1, 1]


def test_sizes_become_dynamic_when_they_differ():
    backend = check(mlp(), *rows(2, 4, 6, 8, width=2), dynamic=None)
    assert backend.execution_count == 4
    assert counts(backend) == [1, 1]


def test_several_results(dynamic):
    def f(w):
        x = w + w
        y = x.relu()
        return x, y, y * y

    check(f, *rows(*SIZES), dynamic=dynamic)


def test_graph_breaks(dynamic):
    def f(x):
        y = x.relu() + 1
        torch._dynamo.graph_break()
        return y.sigmoid() * x.shape[0]

    backend = check(f, *rows(*SIZES), dynamic=dynamic)
    if dynamic:
        assert counts(backend) == [1, 1]
        assert backend.execution_count == 6


def test_branches_on_data(dynamic):
    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    calls = [(torch.ones(n, 3) * sign,) for n, sign in ((2, 1), (3, -1), (4, 1), (5, -1))]
    check(f, *calls, dynamic=dynamic)


def test_two_functions_with_one_backend():
    backend = OrtBackend()
    check(lambda x: x + 1, *rows(*SIZES), options=backend)
    check(lambda x: x * 2, *rows(*SIZES), options=backend)
    assert counts(backend) == [1, 1]
    assert backend.execution_count == 6


MATRIX = torch.randn(3, 3)


def test_tensors_from_around(dynamic):
    vector, count = torch.randn(3), torch.tensor(2)

    def f(x):
        return (x @ MATRIX + vector * count + torch.tensor([1.0, 2.0, 3.0])).exp()

    check(f, *rows(*SIZES), dynamic=dynamic)


def test_no_inputs():
    seen: list[onnx.ModelProto] = []
    backend = OrtBackend({"pre_ort_model_transforms": [seen.append]})
    check(lambda: torch.ones(4, 8) + torch.zeros(4, 8), (), (), options=backend)
    assert len(seen) == 1
    assert backend.execution_count == 2


def test_nothing_to_compute():
    check(lambda x: None, *rows(*SIZES))
    backend = check(lambda x: (x.relu(), None)[1], *rows(*SIZES))
    assert backend.execution_count == 0
    assert check(lambda x: x.shape[0] + 1, *rows(*SIZES)).execution_count == 0


def test_modes(dynamic):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 4)

        def forward(self, x):
            y = self.first(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = self.second(y)
            return z, z.float() + 1

    with torch.no_grad():
        check(Mixed(), *rows(*SIZES), dynamic=dynamic, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        check(mlp(), *rows(*SIZES, width=2), dynamic=dynamic, rtol=2e-2, atol=2e-2)


def test_what_runs_in_torch_does_not_see_the_autocast_around():
    def f(x):
        with torch.autocast("cpu", enabled=False):
            torch.manual_seed(3)
            y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return y, x @ x.mT

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        backend = check(f, (torch.randn(1, 2, 4, 8),), rtol=1e-2, atol=1e-2)
    assert "scaled_dot_product_attention.default: draws random numbers" in backend.explain()


def test_inference_mode(dynamic):
    with torch.inference_mode():
        check(nn.Linear(3, 4), *rows(*SIZES), dynamic=dynamic)
        m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
        check(m, *rows(*SIZES), dynamic=dynamic)
        weight = torch.randn(3, 3)
    m = nn.Linear(3, 4)
    with torch.inference_mode():
        check(m, *rows(*SIZES), dynamic=dynamic)
    check(lambda x: (x @ weight).relu(), *rows(*SIZES), dynamic=dynamic)


def test_results_need_no_gradient():
    with torch.no_grad():
        compiled = torch.compile(nn.Linear(3, 4), backend=OrtBackend(), dynamic=True)
        assert not compiled(torch.randn(2, 3)).requires_grad
    without = OrtBackend({"use_aot_autograd": False})
    found = torch.compile(nn.Linear(3, 4), backend=without)(torch.randn(2, 3))
    assert without.execution_count == 1
    assert not found.requires_grad


def test_control_flow(dynamic):
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    calls = [(torch.ones(n, 3) * sign,) for n, sign in ((2, 1), (3, -1), (4, 1))]
    backend = check(f, *calls, dynamic=dynamic)
    assert "If" in operators(backend)


def test_loops(dynamic):
    def f(x):
        zero = torch.tensor(0)
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (zero, x))

    backend = check(f, *rows(*SIZES), dynamic=dynamic)
    assert operators(backend)[0] == "Loop"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # by torch.func.jvp
def test_derivatives_within_a_function(dynamic):
    def f(x):
        cube = torch.func.grad(lambda a: (a**3).sum())(x)
        return cube, torch.func.jvp(lambda a: a.sin(), (x,), (cube,))

    backend = check(f, *rows(*SIZES), dynamic=dynamic)
    assert backend.execution_count == 3


def test_derivatives_without_autograd_are_torchs():
    def f(x):
        return torch.func.grad(lambda a: (a**3).sum())(x)

    backend = OrtBackend({"use_aot_autograd": False})
    x = torch.randn(3)
    same(torch.compile(f, backend=backend)(x), f(x))
    assert "the graph computes gradients" in backend.explain()


def test_gradients_that_are_switched_on_inside(dynamic):
    def f(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = (y**3).sum()
            return torch.autograd.grad(z, y)[0]

    with torch.no_grad():
        check(f, *rows(*SIZES), dynamic=dynamic)


def test_weights_as_results(dynamic):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.w, self.w, self.w.t(), self.w * 2

    with torch.no_grad():
        check(Tied(), *rows(*SIZES), dynamic=dynamic)


def test_random_numbers_are_torchs(dynamic):
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand_like(x) * 2, F.dropout(x, 0.5, True).exp(), torch.randn(3) + x

    backend = check(f, *rows(*SIZES), dynamic=dynamic)
    assert "aten.rand_like.default: draws random numbers" in backend.explain()


def from_one_seed(f, *args):
    torch.manual_seed(3)
    return f(*args)


def test_random_numbers_that_nobody_reads_are_drawn_all_the_same():
    def f(x):
        torch.rand(3)
        F.dropout(x, 0.5)
        return x + torch.rand(3)

    x = torch.randn(2, 3)
    compiled = torch.compile(f, backend=OrtBackend({"strict": False}))
    same(from_one_seed(compiled, x), from_one_seed(f, x))
    strict = torch.compile(
        lambda x: (torch.rand(3), x * 2)[1], backend=OrtBackend({"strict": True})
    )
    same(strict(x), x * 2)


def test_random_numbers_within_control_flow_are_torchs():
    def f(x, p):
        y = torch.cond(p, lambda x: x * torch.rand_like(x), lambda x: F.dropout(x, 0.5), (x + 1,))
        return y, torch.rand(3)

    backend = OrtBackend()
    compiled = torch.compile(f, backend=backend)
    x = torch.randn(2, 3)
    for p in (torch.tensor(True), torch.tensor(False)):
        same(from_one_seed(compiled, x, p), from_one_seed(f, x, p))
    assert "cond: draws random numbers" in backend.explain()


def test_recurrent_layers_without_dropout_draw_nothing():
    m = nn.LSTM(3, 4, num_layers=2).train().requires_grad_(False)
    with torch._dynamo.config.patch(allow_rnn=True):
        backend = check(m, (torch.randn(5, 2, 3),), options={"strict": True}, strides=False)
    assert backend.execution_count == 1


def test_sizes_that_depend_on_data(dynamic):
    check(lambda x: x[x > 0] * 2, *rows(*SIZES), dynamic=dynamic)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(lambda x: x[x > 0] * 2, *rows(*SIZES), dynamic=dynamic)
        # The result of nonzero lies column by column, by no rule of torch's.
        check(lambda x: x.nonzero() + 1, *rows(*SIZES), dynamic=dynamic, strides=False)


def test_a_device_without_an_execution_provider():
    def f(data, other):
        other += 1
        return (data * 2).reshape(other.shape), other * 2

    backend = OrtBackend()
    compiled = torch.compile(f, backend=backend, dynamic=True)
    found, other = compiled(torch.randn(4, 8, device="meta"), torch.zeros(8, 4))
    assert found.is_meta
    assert found.shape == (8, 4)
    assert other.eq(2).all()
    assert "meta device" in backend.explain()


# What has no lowering


@torch.library.custom_op("test_ort::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("test_ort::fill", mutates_args={"x"})
def fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


def with_custom(x):
    y = x.relu() + 1
    z = twice(y)
    return z.exp()


def test_custom_operators_run_in_torch(dynamic):
    backend = check(with_custom, *rows(*SIZES), dynamic=dynamic)
    assert counts(backend)[0] == 2
    assert backend.execution_count == 6
    line = with_custom.__code__.co_firstlineno + 2
    expected = (
        "  in PyTorch: test_ort.twice.default: no ONNX lowering, "
        f"at test_inference.py:{line} in with_custom: z = twice(y)"
    )
    assert expected in backend.explain().splitlines()


def test_custom_operators_that_write(dynamic):
    def f(x):
        y = x * 1
        fill(y, 3.0)
        fill(x, 2.0)
        return x + y, y

    backend = check(f, *rows(*SIZES), dynamic=dynamic)
    assert "test_ort.fill.default (2 times): no ONNX lowering" in backend.explain()


def test_layouts_around_custom_operators(dynamic):
    def f(x):
        y = twice(x.t() + 1)
        return y.t().view(-1), y + 1

    check(f, *rows(*SIZES), dynamic=dynamic)


def test_what_runs_where():
    backend = check(with_custom, *rows(2, 4))
    assert backend.explain().splitlines()[0] == "graph 0: 3 operators in 2 sessions"
    assert backend.explain().splitlines()[-1] == "sessions have run 4 times"


def test_the_log_tells_what_fell_back(caplog):
    with caplog.at_level(logging.INFO, logger="graphport.ort"):
        check(with_custom, *rows(2))
    assert any("test_ort.twice.default: no ONNX lowering" in m for m in caplog.messages)


def test_strict_names_what_is_missing_and_where():
    compiled = torch.compile(with_custom, backend=OrtBackend({"strict": True}))
    with pytest.raises(BackendCompilerFailed) as error:
        compiled(torch.randn(2, 3))
    text = str(error.value)
    assert "GP201 no ONNX lowering for test_ort.twice.default" in text
    line = with_custom.__code__.co_firstlineno + 2
    assert f"test_inference.py:{line} in with_custom: z = twice(y)" in text


def test_strict_does_not_draw_random_numbers():
    compiled = torch.compile(lambda x: x + torch.rand(3), backend=OrtBackend({"strict": True}))
    with pytest.raises(BackendCompilerFailed, match="draws random numbers"):
        compiled(torch.randn(2, 3))


def test_strict_runs_what_can_run():
    check(mlp(), *rows(*SIZES, width=2), options={"strict": True})


def test_strict_refuses_a_call_that_has_to_run_in_torch():
    def f(x, y):
        x.add_(1)
        return y * 2

    compiled = torch.compile(f, backend=OrtBackend({"strict": True}), dynamic=True)
    x = torch.zeros(4, 3)
    with pytest.raises(SessionError, match="an input aliases another one that is mutated"):
        compiled(x, x[1:])
    assert x.eq(0).all()


# Options


def test_a_lowering_of_ones_own():
    lowerings = {"test_ort::twice": lambda b, x: b.Mul(x, 2)}
    export = {"custom_lowerings": lowerings, "opset": 20, "target": "onnx"}
    options = OrtBackendOptions(export_options=export, strict=True)
    backend = check(with_custom, *rows(*SIZES), options=options)
    assert operators(backend) == ["Relu", "Add", "Mul", "Exp"]
    (record,) = records(backend)
    assert [(o.domain, o.version) for o in record.model_proto.opset_import] == [("", 20)]


def test_export_options_as_an_instance():
    export = gp.onnx.ExportOptions(opset=18, dynamic_shapes=True)
    backend = check(F.gelu, *rows(*SIZES), options={"export_options": export})
    assert "Gelu" not in operators(backend)  # of opset 20
    assert operators(check(F.gelu, *rows(*SIZES))) == ["Gelu"]


def test_models_can_be_recorded_and_changed():
    seen: list[onnx.ModelProto] = []

    def to_sigmoid(model):
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Sigmoid"

    x = torch.randn(2)
    first = {"pre_ort_model_transforms": [seen.append]}
    y = torch.compile(
        lambda x: x + torch.sigmoid(x), backend="onnxrt", dynamic=True, options=first
    )(x)
    assert len(seen) == 1
    second = OrtBackendOptions(pre_ort_model_transforms=[to_sigmoid, seen.append])
    z = torch.compile(lambda x: x + torch.relu(x), backend="onnxrt", dynamic=True, options=second)(
        x
    )
    assert len(seen) == 2
    assert [n.op_type for n in seen[1].graph.node] == ["Sigmoid", "Add"]
    torch.testing.assert_close(y, z)


def test_models_that_are_changed_have_their_weights():
    def double(model):
        for tensor in model.graph.initializer:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 2, tensor.name)
            )

    m = nn.Linear(40, 30).requires_grad_(False)
    backend = OrtBackend({"pre_ort_model_transforms": [double]})
    x = torch.randn(3, 40)
    found = torch.compile(m, backend=backend)(x)
    torch.testing.assert_close(found, m(x) * 2)


def test_models_are_written_out(tmp_path, monkeypatch):
    prefix = str(tmp_path / "model_")
    compiled = torch.compile(mlp(), backend=OrtBackend(), dynamic=True)
    x = torch.randn(3, 2)
    monkeypatch.setenv("ONNXRT_DUMP_PATH", prefix)
    expected = compiled(x)
    compiled(torch.randn(4, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model_0.onnx", "model_0.txt"]
    model = onnx.load(prefix + "0.onnx")
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(prefix + "0.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)
    assert "placeholder" in (tmp_path / "model_0.txt").read_text()
    compiled(torch.randn(1, 2))  # a graph of its own
    assert (tmp_path / "model_1.onnx").exists()


def test_session_options_are_passed_on():
    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads = 1
    given.log_severity_level = 2
    given.add_session_config_entry("session.intra_op.allow_spinning", "0")
    backend = OrtBackend({"ort_session_options": given})
    m = nn.Linear(64, 64).requires_grad_(False)
    check(m, *rows(*SIZES, width=64), options=backend, dynamic=False, rtol=1e-4, atol=1e-5)
    check(
        nn.Linear(64, 64).requires_grad_(False),
        *rows(2, width=64),
        options=backend,
        rtol=1e-4,
        atol=1e-5,
    )
    for record in records(backend):
        used = record.session.get_session_options()
        assert used.intra_op_num_threads == 1
        assert used.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert given.log_severity_level == 2


def test_room_for_results_is_made_by_torch(dynamic):
    def f(x, n):
        doubled = torch.cat([x, x])
        return x * 2, doubled.reshape(-1, n), x > 0, x.to(torch.complex64), x.sum(), x.t() + 1

    calls = [(torch.randn(n, 4), 2) for n in (2, 3, 5, 0)]
    backend = check(f, *calls, dynamic=dynamic)
    assert backend.execution_count == 4
    modules = [m for c in backend.compiled.values() for m in c.run.__self__.modules()]
    regions = [m for m in modules if hasattr(m, "allocators")]
    assert regions
    assert all(region.are_all_known for region in regions)


def test_results_of_unknown_size():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(lambda x: (x.nonzero() + 1, x * 2), *rows(*SIZES), strides=False)


def test_many_compiled_models_do_not_mix(dynamic):
    same_shape = [nn.Linear(3, 3).requires_grad_(False) for _ in range(3)]
    backend = OrtBackend()
    for m in same_shape:
        check(m, *rows(*SIZES), options=backend, dynamic=dynamic)
