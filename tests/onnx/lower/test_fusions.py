"""Patterns that become one operator: that they fire, that they do not where they must not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from tests.onnx.helpers import check_onnx

B, S = gp.Dim("batch", min=1), gp.Dim("length", min=2)


def operators(program: gp.onnx.ONNXProgram) -> list[str]:
    return [n.op for n in program.graph.nodes]


def fused(fn: Any, *args: Tensor, **options: Any) -> list[str]:
    """What a program of [batch, length, ...] inputs becomes; it is run at other sizes too."""
    shapes = tuple({0: B, 1: S} for _ in args)
    others = [tuple(torch.cat([a, a], 1)[:1] for a in args)]
    program = check_onnx(
        fn, args, dynamic_shapes=(shapes,) if _is_variadic(fn) else shapes, others=others, **options
    )
    return operators(program)


def _is_variadic(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return code is not None and bool(code.co_flags & 4)


class RMSNorm(nn.Module):
    def __init__(self, form: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.rand(8, dtype=dtype) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        y = x.to(torch.float32)
        var = y.pow(2) if self.form != "product" else y * y
        var = var.mean(-1, keepdim=True) + 1e-5
        if self.form == "root":
            y = y / torch.sqrt(var)
        elif self.form == "power":
            y = y * var**-0.5
        else:
            y = y * torch.rsqrt(var)
        return self.weight * y.to(kind) if self.form != "right" else y.to(kind) * self.weight


@pytest.mark.parametrize("form", ["rsqrt", "product", "root", "power", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_rms_norm(form: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8).to(dtype)
    assert fused(RMSNorm(form, dtype), x) == ["RMSNormalization"]


def test_rms_norm_is_left_alone_without_the_operator() -> None:
    program = check_onnx(RMSNorm("rsqrt"), (torch.randn(2, 3, 8),), opset=20)
    assert "RMSNormalization" not in operators(program)


def test_no_rms_norm_over_another_dim_or_of_another_tensor() -> None:
    weight = torch.rand(8)

    def other_dim(x: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5))

    def other_tensor(x: Tensor, y: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5))

    x = torch.randn(2, 3, 8)
    assert "RMSNormalization" not in fused(other_dim, x)
    assert "RMSNormalization" not in fused(other_tensor, x, torch.randn(2, 3, 8))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


GELU: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh_gelu,
    "erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "erf, factor last": lambda x: x * (0.5 * (1.0 + torch.erf(x * math.sqrt(0.5)))),
}


@pytest.mark.parametrize("name", GELU)
def test_gelu(name: str) -> None:
    assert fused(GELU[name], torch.randn(2, 3, 8)) == ["Gelu"]


def test_not_quite_gelu() -> None:
    assert "Gelu" not in fused(lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.5)), torch.randn(2, 3, 8))


def test_no_gelu_of_integers() -> None:
    for form in GELU.values():
        assert "Gelu" not in fused(form, torch.randint(-3, 4, (2, 3, 8)))


def rotate_half(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def test_options_of_operators_count() -> None:
    """`add` with an alpha is another sum."""
    weight, table = torch.rand(8), torch.rand(1, 1, 5, 4)
    table = torch.cat((table, table), -1)

    def rms(x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(torch.add(mean, 0.5, alpha=4)))

    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * torch.add(torch.erf(x / math.sqrt(2)), 1.0, alpha=2)

    def rotary(x: Tensor) -> Tensor:
        return torch.add(x * table, rotate_half(x) * table, alpha=-1)

    x = torch.randn(2, 3, 5, 8)
    for fn in (rms, gelu, rotary):
        check_onnx(fn, (x,))


def test_no_rms_norm_of_what_is_rounded_to_integers() -> None:
    weight = torch.rand(8) + 0.5

    def rounded(x: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * (y * 10).to(torch.int8) + weight * y.to(torch.int32)

    assert "RMSNormalization" not in fused(rounded, torch.randn(2, 3, 8))


class Rotary(nn.Module):
    """As transformers writes it, on [batch, length, heads * 8]."""

    def __init__(self, form: str = "") -> None:
        super().__init__()
        self.form = form
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        angles = torch.arange(length)[None, :, None].float() * self.frequencies
        table = torch.cat((angles, angles), -1)
        if self.form == "mixed":
            table = torch.cat((angles, angles * 2), -1)
        cos, sin = (table.cos() * 1.0).unsqueeze(1), (table.sin() * 1.0).unsqueeze(1)
        heads = x.view(batch, length, 4, 8).transpose(1, 2)
        if self.form == "computed":
            heads = heads * 2
        turned = heads * cos + rotate_half(heads) * sin
        return turned.transpose(1, 2).reshape(batch, length, 32)


@pytest.mark.parametrize("form", ["", "computed"])
def test_rotary_embedding(form: str) -> None:
    found = fused(Rotary(form), torch.randn(2, 5, 32))
    assert found.count("RotaryEmbedding") == 1
    assert "Neg" not in found
    if not form:  # on rows as they come
        assert "Transpose" not in found


def test_no_rotary_embedding_of_a_table_that_does_not_repeat() -> None:
    assert "RotaryEmbedding" not in fused(Rotary("mixed"), torch.randn(2, 5, 32))


class Normalised(nn.Module):
    def __init__(self, conv: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


def trained(norm: Any) -> Any:
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    if norm.affine:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    return norm


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_conv_with_batch_norm(bias: bool, affine: bool) -> None:
    norm = trained(nn.BatchNorm2d(6, affine=affine))
    model = Normalised(nn.Conv2d(4, 6, 3, groups=2, bias=bias), norm).eval()
    program = check_onnx(model, (torch.randn(2, 4, 8, 8),))
    assert operators(program) == ["Conv"]
    assert list(program.graph.initializers) == ["conv.weight*norm", "conv.weight*norm.bias"]


def test_conv_with_batch_norm_takes_other_weights(tmp_path: Any) -> None:
    model = Normalised(nn.Conv1d(3, 4, 3), trained(nn.BatchNorm1d(4))).eval()
    with torch.device("meta"):
        empty = Normalised(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)).eval()
    x = torch.randn(2, 3, 9)
    program = gp.onnx.export(empty, (x.to("meta"),))
    program.save(tmp_path / "model.onnx", state_dict=model.state_dict())
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (have,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(have), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_conv_that_is_used_twice_keeps_its_weight() -> None:
    conv, norm = nn.Conv2d(3, 3, 1), trained(nn.BatchNorm2d(3)).eval()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = conv, norm

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)) + self.conv(x * 2)

    assert "BatchNormalization" in operators(check_onnx(Twice().eval(), (torch.randn(1, 3, 4, 4),)))


def test_nothing_is_fused_on_request() -> None:
    program = check_onnx(tanh_gelu, (torch.randn(3),), optimize=False)
    assert "Gelu" not in operators(program)


def test_what_changes_nothing_is_not_written() -> None:
    def fn(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(x.shape[1])
        return x * 1.0 + positions, mask & (positions + 0 >= 0)

    found = fused(fn, torch.randn(2, 3), torch.ones(2, 3, dtype=torch.bool))
    assert "Mul" not in found and "And" not in found and "GreaterOrEqual" not in found


def test_minus_zero_is_not_lost() -> None:
    program = check_onnx(lambda x: x + 0, (torch.tensor([-0.0, 1.0]),))
    have = program(torch.tensor([-0.0, 1.0]))
    assert math.copysign(1.0, have[0].item()) == 1.0


def test_reading_all_positions_is_a_reshape() -> None:
    def fn(mask: Tensor) -> Tensor:
        rows, columns = torch.arange(mask.shape[0]), torch.arange(mask.shape[1])
        return mask[rows[:, None, None, None], columns[None, None, None, :]]

    assert fused(fn, torch.ones(2, 3, dtype=torch.bool)) == ["Reshape"]


def test_reading_positions_in_another_order_is_not() -> None:
    def fn(x: Tensor) -> Tensor:
        rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
        return x[rows[None, :], columns[:, None]]

    program = check_onnx(fn, (torch.randn(2, 3),))
    assert operators(program) != ["Reshape"]
