"""Complex numbers, which ONNX Runtime does not have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, complexes, row

both: Any = [complexes, torch.randn]


def doubles(size: Any) -> Tensor:
    return torch.randn(tuple(size), dtype=torch.complex128)


def c(fn: Any, *specs: str, **options: Any) -> Any:
    return row(fn, *specs, **{"make": complexes, **options})


ROWS = [
    c(torch.add, "b t", "b t"),
    c(torch.add, "b t", "t", make=both, name="add_real"),
    c(lambda x: x + 2, "b t", name="add_number"),
    c(lambda x: 2j - x, "b t", name="from_number"),
    c(lambda x: x * (1 + 2j), "b t", make=torch.randn, name="real_times_complex"),
    c(lambda x, y: torch.add(x, y, alpha=2), "b t", "1 t", name="add_alpha"),
    c(torch.sub, "b t", "t", name="sub"),
    c(torch.sub, "b t", "t", make=[torch.randn, complexes], name="real_sub"),
    c(torch.mul, "b t", "b t"),
    c(torch.mul, "b t", "b 1", make=both, name="mul_real"),
    c(torch.mul, "b t", "b t", make=doubles, name="mul_double"),
    c(torch.div, "b t", "b t"),
    c(torch.div, "b t", "b t", make=both, name="div_by_real"),
    c(torch.div, "b t", "b t", make=[torch.randn, complexes], name="div_of_real"),
    c(lambda x: x / 3, "b t", name="div_by_number"),
    c(torch.reciprocal, "b t"),
    c(torch.square, "b t"),
    c(lambda x: x**3, "b t", name="pow"),
    c(torch.neg, "b t"),
    c(torch.abs, "b t"),
    c(torch.abs, "b t", make=doubles, name="abs_double"),
    c(torch.angle, "b t"),
    c(torch.exp, "b t"),
    c(torch.log, "b t"),
    c(torch.sqrt, "b t"),
    c(torch.sgn, "b t"),
    c(torch.rsqrt, "b t"),
    c(torch.log2, "b t"),
    c(torch.log10, "b t"),
    c(torch.zeros_like, "b t"),
    c(lambda x: torch.full_like(x, 2j), "b t", name="full_like"),
    c(lambda x: torch.linalg.vector_norm(x, dim=1), "b t", name="vector_norm"),
    c(torch.sin, "b t"),
    c(torch.cos, "b t"),
    c(torch.sinh, "b t"),
    c(torch.cosh, "b t"),
    c(torch.conj, "b t"),
    c(torch.conj_physical, "b t"),
    c(lambda x: x.conj().mT @ x, "b t 4", name="adjoint"),
    c(torch.real, "b t"),
    c(torch.imag, "b t"),
    c(torch.view_as_real, "b t"),
    c(torch.view_as_complex, "b t 2", make=torch.randn),
    c(torch.complex, "b t", "b t", make=torch.randn),
    c(torch.polar, "b t", "b t", make=torch.randn),
    c(lambda x: x.to(torch.complex64), "b t", make=torch.randn, name="to_complex"),
    c(lambda x: x.to(torch.complex128), "b t", name="to_double"),
    c(torch.eq, "b t", "b t"),
    c(lambda x: x == x.real, "b t", name="eq_real"),
    c(torch.ne, "b t", "1 t"),
    c(torch.isnan, "b t"),
    c(torch.isfinite, "b t"),
    c(torch.sum, "b t", name="sum"),
    c(lambda x: x.sum(1, keepdim=True), "b t", name="sum_dim"),
    c(lambda x: x.mean(1), "b t", least={"t": 1}, name="mean"),
    c(torch.mm, "b t", "t k"),
    c(torch.bmm, "b t 4", "b 4 k"),
    c(torch.mv, "b t", "t"),
    c(torch.dot, "t", "t"),
    c(torch.vdot, "t", "t"),
    c(torch.outer, "b", "t"),
    c(torch.addmm, "k", "b t", "t k"),
    c(nn.functional.linear, "b t 4", "k 4", "k", name="linear"),
    c(lambda x, y: torch.einsum("bi,bj->ij", x, y), "b t", "b k", name="einsum"),
    c(lambda x: x.reshape(-1, 2), "b t 4", name="reshape"),
    c(lambda x: x.permute(1, 0), "b t", name="permute"),
    c(lambda x: x[:, 1:3], "b t", least={"t": 3}, name="slice"),
    c(lambda x, y: torch.cat([x, y], 1), "b t", "b k", name="cat"),
    c(lambda x, y: torch.cat([x, y], 1), "b t", "b k", make=both, name="cat_real"),
    c(lambda x: torch.stack([x, x.conj()]), "b t", name="stack"),
    c(lambda x: x[None].expand(3, -1, -1), "b t", name="expand"),
    c(lambda x: x.flip(1), "b t", name="flip"),
    c(lambda x: x.split(2, dim=1)[0], "b 4", name="split"),
    c(lambda x, m: torch.where(m, x, x * 2), "b t", "b t", make=[complexes, bools], name="where"),
    c(lambda x: nn.functional.pad(x, (1, 2)), "b t", name="pad"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


class Rotary(nn.Module):
    """Positions as complex numbers, as LLaMA has them."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(16.0), 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles))
        self.freqs: Tensor

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        freqs = self.freqs[: x.shape[1]].unsqueeze(1)
        return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rotary(dtype: torch.dtype) -> None:
    spec = ({0: gp.Dim("b"), 1: gp.Dim("t", max=16)},)
    x, *others = ((torch.randn(b, t, 2, 8).to(dtype),) for b, t in ((2, 5), (1, 16), (3, 1)))
    check_onnx(Rotary(), x, dynamic_shapes=spec, others=others)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, dtype=torch.complex64))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 1j


def test_state() -> None:
    model = Sum()
    program = gp.onnx.export(model, (torch.randn(3, dtype=torch.complex64),))
    for _ in range(3):
        x = torch.randn(3, dtype=torch.complex64)
        torch.testing.assert_close(program(x), model(x))


def test_inputs_are_written_to() -> None:
    def fn(x: Tensor) -> Tensor:
        x.mul_(2j)
        return x.abs()

    check_onnx(fn, (torch.randn(3, 4, dtype=torch.complex64),))


def test_extremes() -> None:
    """Neither squares nor quotients overflow where torch's do not."""
    x = torch.tensor([1e30 + 1e30j, 1e-30 - 2e-30j, 0j, 3 + 4j], dtype=torch.complex64)
    check_onnx(lambda x: x.abs(), (x,))
    check_onnx(lambda x: (x + 1e-30) / (x + 2e-30), (x,))


def test_what_is_missing_is_told() -> None:
    with pytest.raises(gp.errors.UnsupportedError, match="acos"):
        gp.onnx.export(lambda x: torch.acos(x), (torch.randn(3, dtype=torch.complex64),))


def test_true_is_what_is_not_zero_in_either_part() -> None:
    check_onnx(lambda x: x.to(torch.bool), (torch.tensor([0j, 1j, 2, 1 + 1j]),))


def test_a_real_number_that_is_wider() -> None:
    """Both parts have the sizes of the result, whatever the other operand is."""
    check_onnx(
        lambda x, y: (torch.complex(x, x) + y, y - torch.complex(x, x)),
        (torch.randn(1), torch.randn(3)),
    )


def test_a_constant_whose_size_follows_from_the_program() -> None:
    """(n + 1) // 2 of a size that unbind makes 5 or 6."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = x.new_zeros((x.shape[0] + 1) // 2).squeeze()
        return zeros, zeros.unbind(0)[-1]

    x = torch.randn(5, dtype=torch.complex64)
    others = [(torch.randn(6, dtype=torch.complex64),)]
    check_onnx(fn, (x,), dynamic_shapes=({0: gp.Dim.AUTO},), others=others)
