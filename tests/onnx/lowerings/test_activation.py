"""Activation functions on ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.onnx.helpers import check_onnx, check_special
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import ints, positive, row

NAN, INF = math.nan, math.inf
EDGES = torch.tensor([NAN, 0.0, -0.0, 3.0, -3.0, 20.5, -20.5, 0.5, -0.5])


def broad(size: Sequence[int]) -> torch.Tensor:
    """Past every threshold."""
    return torch.randn(tuple(size)) * 10


def doubles(size: Sequence[int]) -> torch.Tensor:
    return broad(size).double()


def halves(size: Sequence[int]) -> torch.Tensor:
    return broad(size).half()


def brains(size: Sequence[int]) -> torch.Tensor:
    return broad(size).bfloat16()


PLAIN: dict[str, Callable[..., Any]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "elu_alpha": lambda x: F.elu(x, 0.3),
    "celu": F.celu,
    "celu_alpha": lambda x: F.celu(x, 0.3),
    "selu": F.selu,
    "leaky_relu": F.leaky_relu,
    "leaky_relu_slope": lambda x: F.leaky_relu(x, 0.3),
    "hardtanh": F.hardtanh,
    "hardtanh_bounds": lambda x: F.hardtanh(x, -2.0, 0.5),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0, 3.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.1, 5.0),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.4),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, False),
    "softmax": lambda x: x.softmax(-1),
    "softmax_0": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 1),
}

ROWS = [
    *(row(fn, "b t", make=broad, name=name) for name, fn in PLAIN.items()),
    row(F.relu, "b t", make=ints(5), name="relu_int"),
    row(lambda x: F.relu6(x - 2), "b t", make=ints(12), name="relu6_int"),
    row(lambda x: F.threshold(x, 2, 7), "b t", make=ints(5), name="threshold_int"),
    row(torch.sigmoid, "b t", make=ints(5), name="sigmoid_int"),
    row(lambda x: F.glu(x, 1), "b 6 t", name="glu"),
    row(lambda x: F.glu(x, -1), "b t 6", make=halves, name="glu_half"),
    row(F.prelu, "b 3 t", "3", name="prelu"),
    row(F.prelu, "b c t", "1", name="prelu_one"),
    row(F.prelu, "b", "1", name="prelu_line"),
    row(F.prelu, "b 3", "3", make=doubles, name="prelu_double"),
    row(lambda x: x.softmax(1, dtype=torch.float32), "b t", make=halves, name="softmax_dtype"),
    row(lambda x: x.softmax(1, dtype=torch.float64), "b t", make=ints(5), name="softmax_of_ints"),
    row(
        lambda x: torch._safe_softmax(x.masked_fill(x < 1, -math.inf), -1),
        "b t",
        make=positive,
        name="safe_softmax",
    ),
    row(lambda x: torch.ops.aten._softmax(x, -1, False), "b t", name="_softmax"),
    row(
        lambda x: (x.softmax(0), x.log_softmax(-1), F.gelu(x), F.softplus(x)), "", name="zero_dims"
    ),
]
OTHER_DTYPES = [
    row(fn, "b t", make=make, name=f"{make.__name__}_{name}")
    for make in (doubles, halves, brains)
    for name, fn in PLAIN.items()
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)
test_dtypes = pytest.mark.slow(dynamic_test(OTHER_DTYPES))


@pytest.mark.parametrize("name", [n for n in PLAIN if "soft" not in n or n == "softplus"])
def test_edges(name: str) -> None:
    """What is not a number, and where one formula takes over from another."""
    check_special(PLAIN[name], (EDGES,))


# At -inf and inf, as the limit and as the formula says: that of an infinite factor and one of 0 is
# not a number, and both are to be found in kernels.
ENDS: dict[str, tuple[set[float], set[float]]] = {
    **dict.fromkeys(("gelu", "gelu_tanh", "silu", "mish", "hardswish"), ({0.0, NAN}, {INF, NAN})),
    **dict.fromkeys(("relu", "softplus", "softplus_beta"), ({0.0}, {INF})),
    **dict.fromkeys(("sigmoid", "hardsigmoid"), ({0.0}, {1.0})),
    **dict.fromkeys(
        (
            "leaky_relu",
            "leaky_relu_slope",
            "rrelu",
            "hardshrink",
            "softshrink",
            "tanhshrink",
            "dropout",
            "alpha_dropout",
        ),
        ({-INF}, {INF}),
    ),
    "relu6": ({0.0}, {6.0}),
    "elu": ({-1.0}, {INF}),
    "elu_alpha": ({-0.3}, {INF}),
    "celu": ({-1.0}, {INF}),
    "celu_alpha": ({-0.3}, {INF}),
    "selu": ({-1.7580993}, {INF}),
    "hardtanh": ({-1.0}, {1.0}),
    "hardtanh_bounds": ({-2.0}, {0.5}),
    "softsign": ({-1.0, NAN}, {1.0, NAN}),
    "logsigmoid": ({-INF}, {0.0}),
    "threshold": ({5.0}, {INF}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", ENDS)
def test_infinities(name: str, dtype: torch.dtype) -> None:
    """Compared with what the functions are, not with what eager makes of it on this machine."""
    x = torch.tensor([-INF, INF, NAN], dtype=dtype)
    *have, nan = gp.onnx.export(PLAIN[name], (x,))(x)
    assert nan.isnan()
    for found, allowed in zip(have, ENDS[name], strict=True):
        wanted = torch.tensor(sorted(allowed), dtype=dtype)
        assert torch.isclose(found, wanted, rtol=1e-3, equal_nan=True).any(), (found, allowed)


def test_every_activation_has_ends() -> None:
    assert set(PLAIN) - set(ENDS) == {"softmax", "softmax_0", "log_softmax", "softmin"}


@pytest.mark.parametrize(
    ("fn", "ops"),
    [
        (F.gelu, ["Gelu"]),
        (F.silu, ["Sigmoid", "Mul"]),
        (F.relu, ["Relu"]),
        (F.elu, ["Elu"]),
        (F.hardswish, ["HardSigmoid", "Mul"]),
        (F.softplus, ["Softplus"]),
        (lambda x: x.softmax(-1), ["Softmax"]),
        (lambda x: F.dropout(x, 0.5, False), ["Identity"]),
    ],
)
def test_nodes(fn: Callable[..., Any], ops: list[str]) -> None:
    program = gp.onnx.export(fn, (torch.randn(2, 3),))
    assert [n.op_type for n in program.model_proto.graph.node] == ops


def test_dropout_in_training() -> None:
    """About half of the elements are dropped, the others doubled; another half each time."""
    program = gp.onnx.export(nn.Dropout(0.5).train(), (torch.ones(1000),))
    first, second = program(torch.ones(1000)), program(torch.ones(1000))
    assert set(first.tolist()) == {0.0, 2.0}
    assert 300 < int((first == 0).sum()) < 700
    assert not torch.equal(first, second)


def test_channels_dropped_in_training() -> None:
    x = torch.ones(20, 10, 4, 4)
    out = gp.onnx.export(nn.Dropout2d(0.5).train(), (x,))(x)
    sums = out.sum((2, 3))
    assert set(sums.flatten().tolist()) == {0.0, 32.0}


def test_alpha_dropout_in_training() -> None:
    """What is dropped has one value; mean and variance stay about what they were."""
    x = torch.randn(20000)
    out = gp.onnx.export(nn.AlphaDropout(0.3).train(), (x,))(x)
    low = F.alpha_dropout(torch.zeros(1000), 0.3, True).min()
    assert 0.25 < float(torch.isclose(out, low).float().mean()) < 0.35
    assert abs(float(out.mean())) < 0.05
    assert abs(float(out.var()) - 1) < 0.1


def test_dropping_everything() -> None:
    check_onnx(lambda x: (F.dropout(x, 1.0), torch.native_dropout(x, 1.0, True)), (torch.ones(4),))
    check_onnx(lambda x: torch.native_dropout(x, 0.3, False), (torch.ones(4),))


def test_what_log_sigmoid_keeps_for_its_gradient() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = torch.tensor([-30.0, -1.5, 0.0, 2.0, 30.0], dtype=dtype)
        check_onnx(torch.ops.aten.log_sigmoid_forward.default, (x,))


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_gelu_of_a_number(target: str) -> None:
    check_onnx(lambda x: F.gelu(x, approximate="tanh"), (torch.tensor(0.3),), target=target)
