"""Derivatives of convolutions, pooling and padding: every number of dims, windows that do not fit.

Each row computes a result with torch and takes its derivative by the operator that autograd calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.onnx.helpers import check_onnx, nodes
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import row

aten = torch.ops.aten
SPECS = {1: "b 4 t", 2: "b 4 h w", 3: "b 4 t h w"}
BIG = {"h": 5, "w": 5, "t": 5}


def conv_backward(
    n: int,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    more: int = 0,
    groups: int = 1,
    mask: tuple[bool, bool, bool] = (True, True, True),
) -> Callable[..., Any]:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        settings = ([stride] * n, [padding] * n, [dilation] * n, transposed, [more] * n, groups)
        out = aten.convolution(x, weight, None, *settings)
        grad = (out * 0.1).sin()
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        found = aten.convolution_backward(grad, x, weight, [channels], *settings, mask)
        return [t for t, wanted in zip(found, mask, strict=True) if wanted]

    return fn


def conv_row(
    n: int, kernel: int = 3, name: str = "", make: Any = torch.randn, **settings: Any
) -> Any:
    groups, transposed = settings.get("groups", 1), settings.get("transposed", False)
    first, second = (4, 6 // groups) if transposed else (6, 4 // groups)
    spec = " ".join(map(str, (first, second, *[kernel] * n)))
    return row(
        conv_backward(n, **settings), SPECS[n], spec, least=BIG, make=make, name=f"conv{n}d_{name}"
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1},
    "long_strides": {"stride": 3, "kernel": 2},
    "dilated": {"dilation": 2, "padding": 2},
    "all": {"dilation": 2, "padding": 1, "stride": 2, "groups": 2, "kernel": 2},
    "ones": {"kernel": 1},
    "ones_strided": {"kernel": 1, "stride": 2},
    "transposed": {"transposed": True},
    "transposed_strided": {"transposed": True, "stride": 2, "padding": 1, "more": 1},
    "transposed_groups": {"transposed": True, "stride": 2, "groups": 2},
    "transposed_ones": {"transposed": True, "kernel": 1},
    "transposed_padded": {"transposed": True, "dilation": 3, "stride": 1, "more": 2},
}

AVG: dict[int, Any] = {2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}
ADAPTIVE: dict[int, Any] = {
    2: aten._adaptive_avg_pool2d_backward,
    3: aten._adaptive_avg_pool3d_backward,
}
MEAN: dict[int, Any] = {2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_MEAN: dict[int, Any] = {2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
MAX: dict[int, Any] = {
    2: (F.max_pool2d, aten.max_pool2d_with_indices_backward),
    3: (F.max_pool3d, aten.max_pool3d_with_indices_backward),
}
ADAPTIVE_MAX: dict[int, Any] = {
    2: (F.adaptive_max_pool2d, aten.adaptive_max_pool2d_backward),
    3: (F.adaptive_max_pool3d, aten.adaptive_max_pool3d_backward),
}
REPLICATION: dict[int, Any] = {
    1: aten.replication_pad1d_backward,
    2: aten.replication_pad2d_backward,
    3: aten.replication_pad3d_backward,
}


def avg(n: int, *settings: Any, divisor: int | None = None) -> Callable[..., Any]:
    def fn(x: torch.Tensor) -> Any:
        kernel, stride, pad, ceil, include = settings
        out = MEAN[n](x, kernel, stride, pad, ceil, include, divisor)
        return AVG[n](out.sin(), x, [kernel] * n, [stride] * n, [pad] * n, ceil, include, divisor)

    return fn


def adaptive(n: int, size: Any) -> Callable[..., Any]:
    return lambda x: ADAPTIVE[n](ADAPTIVE_MEAN[n](x, size).sin(), x)


def maximum(n: int) -> Callable[..., Any]:
    pool, back = MAX[n]

    def fn(x: torch.Tensor) -> Any:
        out, places = pool(x, 3, 2, 1, return_indices=True)
        return back(out.sin(), x, [3] * n, [2] * n, [1] * n, [1] * n, False, places)

    return fn


def adaptive_maximum(n: int, size: Any) -> Callable[..., Any]:
    pool, back = ADAPTIVE_MAX[n]

    def fn(x: torch.Tensor) -> Any:
        out, places = pool(x, size, return_indices=True)
        return back(out.sin(), x, places)

    return fn


def replication(n: int, pads: list[int]) -> Callable[..., Any]:
    return lambda x: REPLICATION[n](F.pad(x, pads, "replicate").sin(), x, pads)


ROWS = [
    *(conv_row(2, name=name, **settings) for name, settings in SETTINGS.items()),
    *(conv_row(n, name="strided", stride=2, padding=1) for n in (1, 3)),
    *(
        conv_row(2, name=make.__name__, make=make, stride=2, padding=1)
        for make in (doubles, halves)
    ),
    conv_row(2, name="doubles_groups", make=doubles, groups=2, transposed=True, stride=2),
    *(conv_row(2, name=f"only_{i}", mask=tuple(i == k for k in range(3))) for i in range(3)),
    *(
        row(avg(n, *settings), SPECS[n], least=BIG, name=f"avg_pool{n}d_{settings}")
        for n, settings in itertools.product(
            AVG, [(2, 2, 0, False, True), (3, 2, 1, True, False), (3, 1, 1, False, True)]
        )
    ),
    row(avg(2, 3, 2, 1, True, True, divisor=5), "4 h w", least=BIG, name="avg_pool2d_divisor"),
    row(avg(2, 3, 2, 1, True, True), "b 4 h w", least=BIG, make=doubles, name="avg_pool2d_doubles"),
    *(
        row(adaptive(n, size), SPECS[n], least=BIG, name=f"adaptive_avg_pool{n}d_{size}")
        for n, size in itertools.product(ADAPTIVE, (1, 3))
    ),
    row(adaptive(2, (2, 7)), "4 h w", least=BIG, make=doubles, name="adaptive_avg_pool2d_plane"),
    *(row(maximum(n), SPECS[n], least=BIG, name=f"max_pool{n}d") for n in MAX),
    row(maximum(2), "b 4 h w", least=BIG, make=halves, name="max_pool2d_halves"),
    *(
        row(adaptive_maximum(n, 3), SPECS[n], least=BIG, name=f"adaptive_max_pool{n}d")
        for n in ADAPTIVE_MAX
    ),
    *(
        row(
            replication(n, [1, 2, 2, 0, 1, 3][: 2 * n]),
            SPECS[n],
            least=BIG,
            name=f"replication_pad{n}d",
        )
        for n in REPLICATION
    ),
    row(replication(1, [-1, 2]), "4 t", least=BIG, make=doubles, name="replication_pad1d_less"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


@pytest.mark.parametrize(
    ("settings", "shapes", "wanted"),
    [
        ({"mask": (True, False, False)}, [(2, 3, 6, 6), (4, 3, 3, 3)], ["ConvTranspose"]),
        (
            {"mask": (False, True, False)},
            [(2, 3, 6, 6), (4, 3, 3, 3)],
            ["Transpose", "Transpose", "Conv", "Transpose"],
        ),
        (
            {"mask": (False, True, False)},
            [(2, 3, 6, 6), (4, 3, 1, 1)],
            ["Reshape", "Reshape", "Transpose", "MatMul", "ReduceSum", "Reshape"],
        ),
    ],
)
def test_few_nodes(settings: Any, shapes: Any, wanted: list[str]) -> None:
    x, weight = map(torch.randn, shapes)
    grad = torch.randn_like(F.conv2d(x, weight))

    def fn(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        mask = settings["mask"]
        found = aten.convolution_backward(
            grad, x, weight, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask
        )
        return [t for t in found if t is not None]

    found = nodes(fn, grad, x, weight)
    assert sorted(found) == sorted(wanted)
    check_onnx(fn, (grad, x, weight))
