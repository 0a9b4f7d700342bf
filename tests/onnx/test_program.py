"""Calling an `ONNXProgram`: torch tensors in and out, without copies where that is possible."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import onnxruntime as ort
import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import NoDataError
from graphport.onnx.target.session import to_ort_value, to_tensor
from tests.onnx.helpers import check_onnx

batch = gp.Dim("batch")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
EIGHTS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def values(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    t = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    return (t % 2 if dtype is torch.bool else t).to(dtype)


# Memory


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(2, 3), (), (0, 3)], ids=str)
def test_tensors_are_handed_over_as_they_are(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    t = values(dtype, *sizes)
    value = to_ort_value(t)
    assert value.data_ptr() == t.data_ptr() and tuple(value.shape()) == sizes
    back = to_tensor(value)
    assert back.dtype is dtype and back.data_ptr() == t.data_ptr()
    assert torch.equal(back, t)


@pytest.mark.parametrize("dtype", EIGHTS, ids=str)
@pytest.mark.parametrize("sizes", [(2, 3), (), (0, 3)], ids=str)
def test_eight_bit_floats(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    t = values(dtype, *sizes)
    value = to_ort_value(t)
    if t.numel():
        assert value.data_ptr() == t.data_ptr()
    back = to_tensor(value)
    assert back.dtype is dtype and back.shape == t.shape
    assert torch.equal(back.view(torch.uint8), t.view(torch.uint8))


def test_eight_bit_floats_outlive_the_tensor() -> None:
    value = to_ort_value(torch.full((4096,), 3.0).to(torch.float8_e4m3fn))
    gc.collect()
    other = torch.zeros(4096, dtype=torch.uint8)
    assert to_tensor(value).float().eq(3.0).all() and not other.any()


def test_eight_bit_floats_out_of_order() -> None:
    """The copy that is in order lives as long as the value within, which is all that runs hold."""
    value = to_ort_value(torch.full((64, 4096), 3.0).to(torch.float8_e4m3fn).t())._ortvalue
    gc.collect()
    others = [torch.zeros(64 * 4096, dtype=torch.uint8) for _ in range(4)]
    assert to_tensor(ort.OrtValue(value)).float().eq(3.0).all() and not others[0].any()


def test_eight_bit_floats_through_a_model() -> None:
    x = torch.randn(2, 3).to(torch.float8_e4m3fn)
    out = gp.onnx.export(lambda x: x, (x,))(x)
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize(
    "strange",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[1:, 1:],
        lambda t: t[:1].expand(4, 4),
        lambda t: t.flip(0),
        lambda t: t.requires_grad_(),
        lambda t: t.requires_grad_() * 2,
        lambda t: nn.Parameter(t),
        lambda t: torch._neg_view(t),
    ],
    ids=[
        "transposed",
        "strided",
        "offset",
        "expanded",
        "flipped",
        "leaf",
        "result",
        "parameter",
        "negated",
    ],
)
def test_tensors_of_all_kinds(strange: Any) -> None:
    x = strange(torch.arange(16.0).reshape(4, 4))
    program = gp.onnx.export(lambda x: x * 2 + 1, (x.detach().clone().contiguous(),))
    out = program(x)
    assert not out.requires_grad
    torch.testing.assert_close(out, (x * 2 + 1).detach())


def test_results_outlive_the_program() -> None:
    x = torch.randn(1000)
    program = gp.onnx.export(lambda x: x + 1, (x,))
    first = program(x)
    second = program(x * 2)
    del program
    gc.collect()
    torch.testing.assert_close(first, x + 1)
    torch.testing.assert_close(second, x * 2 + 1)


def test_inputs_are_let_go() -> None:
    program = gp.onnx.export(lambda x: x + 1, (torch.ones(1000),))
    x = torch.ones(1000)
    gone = weakref.ref(x.untyped_storage())
    out = program(x)
    del x
    gc.collect()
    assert gone() is None and out[0] == 2


def test_results_are_not_inputs_or_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1000))

        def forward(self, x: torch.Tensor) -> Any:
            return x, self.w, x.view(-1)

    model, x = Model(), torch.zeros(1000)
    program = gp.onnx.export(model, (x,))
    for t in program(x):
        t.add_(5)
    assert not x.any() and model.w.eq(1).all()
    assert program(x)[1].eq(1).all()


def test_weights_are_shared_with_the_session() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.w

    model = Model()
    program = gp.onnx.export(model, (torch.zeros(1000),))
    (shared,) = program.session._shared.values()
    assert shared.data_ptr() == model.w.data_ptr()


def test_a_session_is_made_once() -> None:
    program = gp.onnx.export(lambda x: x + 1, (torch.ones(2),))
    assert "_session" not in vars(program)
    program(torch.ones(2))
    assert program.session is program.session


def test_a_model_that_computes_nothing() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return tuple(torch.broadcast_shapes(x.shape, y.shape))

    program = check_onnx(fn, (torch.randn(3, 1), torch.randn(4)))
    assert "_session" not in vars(program)
    assert program.verify().ok


# Threads


def test_calls_from_several_threads() -> None:
    model = nn.Linear(8, 8)
    program = gp.onnx.export(model, (torch.ones(2, 8),), dynamic_shapes=({0: batch},))
    wrong: list[int] = []

    def work(n: int) -> None:
        for i in range(20):
            x = torch.full((n + 1, 8), float(i))
            if not torch.allclose(program(x), model(x), atol=1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_state_from_several_threads() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return x + self.n

    program = gp.onnx.export(Counter(), (torch.zeros(()),))
    seen: list[float] = []
    threads = [
        threading.Thread(
            target=lambda: seen.extend(program(torch.zeros(())).item() for _ in range(25))
        )
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(seen) == [float(i + 1) for i in range(100)]


# Sizes and dtypes through whole programs


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool], ids=str
)
def test_dtypes_at_all_sizes(dtype: torch.dtype) -> None:
    check_onnx(
        lambda x: x + x,
        (values(dtype, 2, 3),),
        dynamic_shapes=({0: batch},),
        others=[(values(dtype, n, 3),) for n in (0, 1, 5)],
    )


def test_arguments_in_any_order() -> None:
    program = gp.onnx.export(lambda x, y: x - y, (torch.ones(2),), {"y": torch.zeros(2)})
    one, zero = torch.ones(2), torch.zeros(2)
    for out in (program(one, zero), program(one, y=zero), program(y=zero, x=one)):
        assert out.tolist() == [1.0, 1.0]


# Without weights


def test_a_model_without_weights_cannot_be_called() -> None:
    with gp.fake_mode():
        model = nn.Linear(4, 3)
    program = gp.onnx.export(model, (torch.ones(2, 4),))
    with pytest.raises(NoDataError, match="there is no data for weight, bias"):
        program(torch.ones(2, 4))


def test_weights_that_are_known_to_be_in_a_file(tmp_path: Any) -> None:
    real = nn.Linear(400, 3)
    torch.save(real.state_dict(), tmp_path / "w.pt")
    with gp.fake_mode():
        model = nn.Linear(400, 3)
        model.load_state_dict(torch.load(tmp_path / "w.pt"), assign=True)
    x = torch.randn(2, 400)
    program = gp.onnx.export(model, (x,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program(x), real(x).detach(), rtol=1e-4, atol=1e-5)
    assert program.verify().ok


def test_optimize() -> None:
    class Block(nn.Module):
        """Root mean square normalisation, as models write it out."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.w * (x * scale)

    model, x = Block(), torch.randn(2, 3, 8)
    plain = gp.onnx.export(model, (x,), optimize=False)
    torch.testing.assert_close(plain(x), model(x).detach())
    before = len(plain.model_proto.graph.node)
    plain.optimize()
    fused = gp.onnx.export(model, (x,))
    assert plain.model_proto == fused.model_proto
    assert len(plain.model_proto.graph.node) < before
    torch.testing.assert_close(plain(x), model(x).detach())
    assert plain.verify().ok
