"""Quantisation in bare ONNX Runtime gives eager's integers, and floats, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.quantized import AFFINE, PT2E, affine, hard_numbers

aten = torch.ops.aten
INT8 = (-128, 127, torch.int8)
SCALES = torch.tensor([0.1, 0.2, 0.37])
ZEROS = torch.tensor([1, -5, 0])


def check_exact(
    fn: Callable[..., Any], *inputs: Tensor, rows: bool = True, **options: Any
) -> list[str]:
    """At the example, at one row and at none; the operators of the file."""
    names = [f"x{i}" for i in range(len(inputs))]
    dim = {0: gp.Dim("rows")}
    alike = (rows and t.shape[:1] == inputs[0].shape[:1] for t in inputs)
    sizes = tuple(dim if a else {} for a in alike)
    program = gp.onnx.export(fn, inputs, dynamic_shapes=sizes, input_names=names, **options)
    session = ort.InferenceSession(program.model_proto.SerializeToString())
    for count in (len(inputs[0]), 1, 0) if rows else (len(inputs[0]),):
        given = [t[:count] if size else t for t, size in zip(inputs, sizes, strict=True)]
        want = fn(*given)
        want = want if isinstance(want, tuple) else (want,)
        if any(t.dtype is torch.bfloat16 for t in (*given, *want)):  # numpy has no such numbers
            have = program(*given)
            have = have if isinstance(have, tuple) else (have,)
        else:
            feeds = {n: t.numpy() for n, t in zip(names, given, strict=True)}
            have = tuple(map(torch.from_numpy, session.run(None, feeds)))
        for a, b in zip(have, want, strict=True):
            assert a.dtype is b.dtype and torch.equal(a, b), f"{int((a != b).sum())} differ"
    return [n.op_type for n in program.model_proto.graph.node]


def columns(x: Tensor) -> Tensor:
    return x[:, None].repeat(1, 3)


# Fake quantisation


@pytest.mark.parametrize("limits", [(0, 255), (-127, 127), (0, 15), (-30000, 3000)])
@pytest.mark.parametrize("scale", [0.1, 0.25, 0.0371])
def test_fake_quantize_per_tensor(scale: float, limits: tuple[int, int]) -> None:
    x = hard_numbers(scale)
    ops = check_exact(lambda x: torch.fake_quantize_per_tensor_affine(x, scale, 3, *limits), x)
    assert ops[-1] == "DequantizeLinear" and "QuantizeLinear" in ops
    assert ("Mul" in ops) is (scale != 0.25)  # which QuantizeLinear divides by without rounding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_fake_quantize_in_other_dtypes(dtype: torch.dtype) -> None:
    x, zeros = hard_numbers(0.1).to(dtype), ZEROS.abs().int()
    check_exact(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255), x)
    check_exact(
        lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, zeros, 1, 0, 255), columns(x)
    )


def test_fake_quantize_per_channel() -> None:
    x, zeros = columns(hard_numbers(0.1)), ZEROS.int()
    check_exact(lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, zeros, 1, -7, 100), x)


def test_zero_points_that_are_not_whole() -> None:
    """Of halves that is a matter of the CPU: eager may multiply and add in one."""
    x, zeros = torch.randn(500, 3) * 9, torch.tensor([1.2, -5.5, 0])
    check_exact(lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, zeros, 1, -7, 100), x)


def test_fake_quantize_by_parameters_that_are_inputs() -> None:
    x = hard_numbers(0.037)
    scale, zero = torch.tensor([0.037]), torch.tensor([3], dtype=torch.int32)
    ops = check_exact(
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 255), x, scale, zero
    )
    assert "QuantizeLinear" not in ops  # nobody knows whether the zero point is a byte


class FakeQuantize(torch.nn.Module):
    """With parameters and a switch that are buffers, as those of torch.ao."""

    def __init__(self, enabled: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.037]))
        self.register_buffer("zero", torch.tensor([3], dtype=torch.int32))
        self.register_buffer("enabled", torch.tensor([enabled], dtype=torch.uint8))

    def forward(self, x: Tensor) -> Any:
        op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        return op(x, self.scale, self.zero, self.enabled, 0, 255)


@pytest.mark.parametrize("enabled", [0, 1])
def test_fake_quantize_with_a_switch(enabled: int) -> None:
    check_exact(FakeQuantize(enabled), hard_numbers(0.037))


def test_masks_of_what_is_within_the_range() -> None:
    x, zeros = hard_numbers(0.1), ZEROS.int()
    check_exact(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -7, 8), x)
    op = aten.fake_quantize_per_channel_affine_cachemask
    check_exact(lambda x: op(x, SCALES, zeros, 1, -7, 8), columns(x))


def test_zero_points_that_do_not_fit_any_more() -> None:
    model = FakeQuantize(1)
    program = gp.onnx.export(model, (torch.randn(3),))
    model.zero.fill_(300)
    with pytest.raises(gp.errors.WeightsError, match="integers from 0 to 255"):
        _ = program.model_proto


# The operators of PT2E


KINDS = [
    (0.1, 3, -128, 127, torch.int8),
    (0.25, 0, -127, 127, torch.int8),
    (0.0371, 5, 0, 255, torch.uint8),
    (0.1, 5, 0, 15, torch.uint8),
    (0.1, -7, -32768, 32767, torch.int16),
    (0.1, 7, 0, 65535, torch.uint16),
    (0.1, 7, -(2**31), 2**31 - 1, torch.int32),
    (0.1, 0, -448, 448, torch.float8_e4m3fn),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_per_tensor(kind: tuple[Any, ...]) -> None:
    x = hard_numbers(kind[0])
    if not kind[-1].is_floating_point:  # numpy has no such numbers
        check_exact(lambda x: PT2E.quantize_per_tensor(x, *kind), x)
    check_exact(lambda x: PT2E.dequantize_per_tensor(PT2E.quantize_per_tensor(x, *kind), *kind), x)


@pytest.mark.parametrize("out", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[4]], ids=str)
def test_floats_of_other_dtypes(kind: tuple[Any, ...], out: torch.dtype) -> None:
    def fn(x: Tensor) -> Tensor:
        q = PT2E.quantize_per_tensor(x, *kind)
        return PT2E.dequantize_per_tensor(q, *kind, out_dtype=out)

    x = hard_numbers(kind[0])
    check_exact(fn, x)
    if out is not torch.float64:
        check_exact(fn, x.to(out))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_per_tensor_by_tensors(dtype: torch.dtype) -> None:
    def fn(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
        return PT2E.dequantize_per_tensor(PT2E.quantize_per_tensor(x, s, z, *INT8), s, z, *INT8)

    x, scale, zero = hard_numbers(0.1), torch.tensor([0.1], dtype=dtype), torch.tensor([3])
    check_exact(fn, x, scale, zero)
    ops = check_exact(lambda x: fn(x, scale, zero), x)
    assert ops == ["Mul", "QuantizeLinear", "DequantizeLinear"]
    ends = torch.tensor(-128), torch.tensor(127)
    check_exact(lambda x: PT2E.quantize_per_tensor(x, scale, zero, *ends, torch.int8), x)


@pytest.mark.parametrize("zeros", [ZEROS, ZEROS.float(), ZEROS.to(torch.int8) * 20], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_per_channel(dtype: torch.dtype, zeros: Tensor) -> None:
    """Zero points of signed bytes wrap around where they are subtracted."""
    x, kind = columns(hard_numbers(0.1)), (SCALES.to(dtype), zeros, 1, *INT8)
    check_exact(lambda x: PT2E.quantize_per_channel(x, *kind), x)
    check_exact(
        lambda x: PT2E.dequantize_per_channel(PT2E.quantize_per_channel(x, *kind), *kind), x
    )


def test_groups() -> None:
    x, scales = hard_numbers(0.1)[:4800].reshape(-1, 24), torch.rand(200, 3) * 0.2 + 0.01
    for zeros in (torch.zeros(200, 3), torch.randint(-3, 3, (200, 3))):

        def fn(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
            q = PT2E.quantize_per_channel_group(x, s, z, -8, 7, torch.int8, 8)
            return PT2E.dequantize_per_channel_group(q, s, z, -8, 7, torch.int8, 8, torch.float32)

        check_exact(fn, x, scales, zeros)


def by_token(x: Tensor) -> Any:
    scale, zero = PT2E.choose_qparams_per_token_asymmetric(x, torch.int8)
    q = PT2E.quantize_per_token(x, scale, zero, *INT8)
    return scale, zero, q, PT2E.dequantize_per_token(q, scale, zero, *INT8, torch.float32)


def by_symmetric_token(x: Tensor) -> Any:
    scale, zero = PT2E.choose_qparams_per_token(x, torch.int8)
    q = PT2E.quantize_per_token(x, scale, zero, *INT8)
    return scale, zero, q, PT2E.dequantize_per_token(q, scale, zero, *INT8, torch.float32)


@pytest.mark.parametrize("fn", [by_token, by_symmetric_token])
def test_tokens(fn: Callable[..., Any]) -> None:
    check_exact(fn, hard_numbers(0.1)[:4800].reshape(-1, 24))


def test_parameters_are_chosen() -> None:
    x = torch.cat([torch.randn(30, 8) * 3, torch.zeros(1, 8)])

    def fn(x: Tensor) -> Any:
        least, most = x[:1], x[:1] + 5  # of no rows there are none
        both = PT2E.choose_qparams(least, -128, 127, 1e-5, torch.int8)
        up = PT2E.choose_qparams(most, 0, 255, 1e-5, torch.uint8)
        even = PT2E.choose_qparams_symmetric(least, -127, 127, 1e-5, torch.int8)
        middle = PT2E.choose_qparams_symmetric(least, 0, 255, 1e-5, torch.uint8)
        return (*both, *up, *even, *middle)

    program = gp.onnx.export(fn, (x,))
    for rows in (x, x * 0, -x, x.flip(0)):
        for a, b in zip(program(rows), fn(rows), strict=True):
            assert a.dtype is b.dtype and torch.equal(a, b)


def test_bytes_that_are_given() -> None:
    """Nothing tells ONNX Runtime that signed ones come from a QuantizeLinear."""
    q = torch.arange(-128, 128, dtype=torch.int8).reshape(-1, 2)
    check_exact(lambda q: PT2E.dequantize_per_tensor(q, 0.1, 3, *INT8).reshape(-1), q)
    check_exact(
        lambda q: PT2E.dequantize_per_tensor(q, 0.1, 3, 0, 255, torch.uint8).mT, q.view(torch.uint8)
    )


@pytest.mark.parametrize("move", [lambda x: x.reshape(-1), lambda x: x.mT], ids=["view", "mT"])
@pytest.mark.parametrize("zero", [0, 3])
def test_signed_bytes_that_are_moved(zero: int, move: Callable[[Tensor], Tensor]) -> None:
    """ONNX Runtime moves a DequantizeLinear behind a Reshape, where signed bytes get lost."""

    def fn(x: Tensor) -> Tensor:
        kind = 0.1, zero, *INT8
        return move(PT2E.dequantize_per_tensor(PT2E.quantize_per_tensor(x, *kind), *kind)).relu()

    check_exact(fn, columns(hard_numbers(0.1)))


# The operators of torchao


def test_affine_activations() -> None:
    x = hard_numbers(0.1)[:4800].reshape(-1, 24)
    block = [1, 24]

    def fn(x: Tensor, s: Tensor, z: Tensor) -> Any:
        q = AFFINE.quantize_affine(x, block, s, z, torch.int8, -128, 127)
        return q, AFFINE.dequantize_affine(q, block, s, z, torch.int8, -128, 127)

    check_exact(fn, x, torch.rand(200, 1) * 0.2 + 0.01, torch.randint(-3, 3, (200, 1)))


BLOCKS = [(24, 16), (1, 16), (24, 1), (1, 8), (12, 1), (12, 8)]


@pytest.mark.parametrize("opset", [18, 24])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_affine_weights(block: tuple[int, int], opset: int) -> None:
    for limits in ((-8, 7), (0, 15), (-128, 127)):
        model = affine(24, 16, block, limits)
        ops = check_exact(model, torch.zeros(24, 16), rows=False, opset=opset)
        has_blocks = block not in ((24, 16), (1, 16), (24, 1))
        known = block != (12, 8) and (opset > 20 or not has_blocks)
        assert ("DequantizeLinear" in ops) is known


@pytest.mark.parametrize("bits", [2, 4])
def test_several_to_a_byte(bits: int, tmp_path: Path) -> None:
    """An odd number of them, in the file and beside it."""
    rows, top = 333, 1 << (bits - 1)
    model = affine(rows, 25, (1, 25), (-top, top - 1))
    x = torch.zeros(rows, 25)
    program = gp.onnx.export(model, (x,), opset=25)
    want = model.q.numpy()
    for external in (False, True):
        program.save(tmp_path / "m.onnx", external_data=external)
        loaded = onnx.load(tmp_path / "m.onnx")
        onnx.checker.check_model(loaded, full_check=True)
        (w,) = (i for i in loaded.graph.initializer if i.name == f"q.int{bits}")
        assert len(w.raw_data) == -(-rows * 25 * bits // 8)
        assert (onnx.numpy_helper.to_array(w).astype("int8") == want).all()
        session = ort.InferenceSession(tmp_path / "m.onnx")
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        assert torch.equal(torch.from_numpy(found), model(x))


def test_others_than_fit_the_type_that_was_stored() -> None:
    model = affine(8, 16, (1, 8), (-8, 7))
    program = gp.onnx.export(model, (torch.zeros(8, 16),))
    model.q.fill_(8)
    with pytest.raises(gp.errors.WeightsError, match="integers from -8 to 7"):
        _ = program.model_proto
    model.q.fill_(7)
    assert torch.equal(program(torch.zeros(8, 16)), model(torch.zeros(8, 16)))


@pytest.mark.parametrize("block", [(24, 16), (24, 1), (12, 1)], ids=str)
def test_products_are_as_exact_as_others(block: tuple[int, int]) -> None:
    """ONNX Runtime would round the other factor to bytes."""
    weight = affine(24, 16, block, (-8, 7))

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.dequantize()

    check_onnx(Product(), (torch.randn(5, 24),), dynamic_shapes=({0: gp.Dim("rows")},))


def test_constants_stay_small() -> None:
    q = torch.randint(-128, 128, (64, 64), dtype=torch.int8)
    program = gp.onnx.export(
        lambda x: x + PT2E.dequantize_per_tensor(q, 0.1, 3, *INT8), (torch.randn(64),)
    )
    assert program.model_proto.ByteSize() < 64 * 64 * 1.3
