"""Operators that work element by element."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.helpers import check
from tests.ops.rows import Row, bools, check_dynamic, check_static, complexes, ints, positive, row

ROWS = [
    *(
        row(fn, "b t")
        for fn in (
            torch.neg,
            torch.abs,
            torch.exp,
            torch.tanh,
            torch.sigmoid,
            torch.sign,
            torch.floor,
            torch.round,
            torch.erf,
            torch.isnan,
            torch.logical_not,
            torch.square,
            torch.frac,
            F.relu,
            F.gelu,
            F.silu,
            F.mish,
            F.elu,
            F.celu,
            F.selu,
            F.leaky_relu,
            F.hardtanh,
            F.hardswish,
            F.hardsigmoid,
            F.softplus,
            F.hardshrink,
            F.softshrink,
            F.softsign,
            F.tanhshrink,
            F.logsigmoid,
            torch.angle,
            torch.nan_to_num,
        )
    ),
    *(row(fn, "b t", make=positive) for fn in (torch.log, torch.rsqrt, torch.lgamma, torch.log2)),
    *(
        row(fn, "b t", "b t")
        for fn in (
            torch.add,
            torch.sub,
            torch.mul,
            torch.div,
            torch.maximum,
            torch.fmod,
            torch.remainder,
            torch.atan2,
            torch.hypot,
            torch.eq,
            torch.lt,
            torch.logical_and,
            torch.copysign,
            torch.logaddexp,
            torch.heaviside,
            torch.nextafter,
            torch.complex,
            torch.polar,
        )
    ),
    *(
        row(fn, "b t", "b t", make=ints(5), name=f"int_{fn.__name__}")
        for fn in (
            torch.add,
            torch.bitwise_and,
            torch.gcd,
            torch.bitwise_left_shift,
            torch.true_divide,
        )
    ),
    *(
        row(
            lambda a, b, mode=mode: torch.div(a, b + 1, rounding_mode=mode),
            "b t",
            "b t",
            make=ints(9),
            name=f"div_{mode}",
        )
        for mode in ("floor", "trunc", None)
    ),
    row(torch.mul, "b 1 t", "k 1", name="broadcast"),
    row(torch.add, "b t", "t", name="broadcast_rank"),
    row(lambda a, s: a + s, "b t", "", name="zero_dim_operand"),
    row(lambda a: a + 2.5, "b t", make=ints(3), name="int_plus_float"),
    row(lambda a: a + True, "b t", make=ints(3), name="int_plus_bool"),
    row(lambda a: 2**a, "b t", make=ints(3), name="scalar_pow"),
    row(lambda a: a**0.5, "b t", make=positive, name="pow_scalar"),
    row(
        lambda m, a, b: torch.where(m, a, b),
        "b 1",
        "b t",
        "t",
        make=[bools, torch.randn, torch.randn],
        name="where",
    ),
    row(
        lambda m, a: torch.where(m, a, 0.0),
        "b t",
        "b t",
        make=[bools, ints(4)],
        name="where_scalar",
    ),
    row(lambda a: a.clamp(-1, 0.5), "b t", name="clamp"),
    row(lambda a, lo: torch.clamp(a, min=lo), "b t", "t", name="clamp_tensor"),
    row(torch.addcmul, "b t", "b 1", "t"),
    row(torch.lerp, "b t", "b t", "t"),
    row(
        lambda a, m: a.masked_fill(m, -1.0),
        "b t",
        "t",
        make=[torch.randn, bools],
        name="masked_fill",
    ),
    row(lambda a: F.glu(a, dim=1), "b 6", name="glu"),
    row(F.prelu, "b 3 t", "3", name="prelu"),
    row(torch.abs, "b t", make=complexes, name="complex_abs"),
    row(torch.angle, "b t", make=complexes, name="complex_angle"),
    row(lambda a: (a * a.conj()).real, "b t", make=complexes, name="complex_norm"),
    row(lambda a: torch.view_as_real(a) * 2, "b t", make=complexes, name="view_as_real"),
    row(lambda a: torch.view_as_complex(a).exp(), "b t 2", name="view_as_complex"),
    row(lambda a, b: a * b, "b t", "b t", make=[complexes, torch.randn], name="complex_times_real"),
    row(lambda a: a.to(torch.float16) + a, "b t", name="half_plus_float"),
    row(lambda a: a.bool().float().long(), "b t", name="conversions"),
]

VIEWS = {
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[::2, 1:],
    "expanded": lambda t: t[:1].expand(4, -1),
    "empty": lambda t: t[:0],
}


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("other", VIEWS)
def test_layouts(view: str, other: str) -> None:
    """The layout of a result follows from the layouts of the operands."""
    a, b = VIEWS[view](torch.randn(5, 5)), VIEWS[other](torch.randn(5, 5))
    rows, columns = min(a.shape[0], b.shape[0]), min(a.shape[1], b.shape[1])
    check(
        lambda a, b: (a + b, torch.exp(a), torch.where(a > b, a, b), a.clone(), a * 2),
        (a[:rows, :columns], b[:rows, :columns]),
    )
