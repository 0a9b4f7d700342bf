"""Convolutions: every number of dims, and element types that ONNX Runtime does not convolve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import row

BIG = {"h": 4, "w": 4, "t": 4}
aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def longs(size: Sequence[int]) -> torch.Tensor:
    return torch.randint(-5, 5, tuple(size))


ROWS = [
    row(F.conv1d, "b 3 t", "4 3 3", "4", least=BIG, name="conv1d"),
    row(F.conv2d, "b 3 h w", "4 3 3 3", "4", least=BIG, name="conv2d"),
    row(F.conv3d, "b 2 t h w", "3 2 2 2 2", least=BIG, name="conv3d"),
    row(F.conv2d, "3 h w", "4 3 3 3", least=BIG, name="conv2d_unbatched"),
    *(
        row(
            lambda a, w: F.conv2d(a, w, stride=(2, 1), padding=(1, 0), dilation=2, groups=2),
            "b 4 h w",
            "6 2 2 2",
            least=BIG,
            make=make,
            name=f"conv2d_{make.__name__}",
        )
        for make in (torch.randn, halves, doubles, longs)
    ),
    *(
        row(
            lambda a, w, how=how: F.conv1d(a, w, padding=how, dilation=3),
            "b 3 t",
            "4 3 2",
            least=BIG,
            name=f"conv1d_{how}",
        )
        for how in ("same", "valid")
    ),
    row(
        lambda a, w: F.conv2d(a, w, padding="same"),
        "b 3 h w",
        "4 3 3 2",
        least=BIG,
        name="conv2d_uneven_same",
    ),
    row(F.conv_transpose1d, "b 3 t", "3 4 3", "4", least=BIG, name="conv_transpose1d"),
    row(F.conv_transpose3d, "b 3 t h w", "3 2 2 2 2", least=BIG, name="conv_transpose3d"),
    *(
        row(
            lambda a, w: F.conv_transpose2d(a, w, stride=2, padding=1, output_padding=1, groups=2),
            "b 4 h w",
            "4 3 3 3",
            least=BIG,
            make=make,
            name=f"conv_transpose2d_{make.__name__}",
        )
        for make in (torch.randn, halves, doubles, longs)
    ),
    row(
        lambda a, w: F.conv_transpose1d(a, w, dilation=2, output_padding=1),
        "b 3 t",
        "3 4 3",
        least=BIG,
        name="conv_transpose1d_padding_as_large_as_stride",
    ),
    row(F.conv_transpose2d, "3 h w", "3 4 2 2", least=BIG, name="conv_transpose2d_unbatched"),
    *(
        row(
            lambda a, w, turned=turned: aten.convolution(
                a, w, None, [2, 2], [1, 1], [1, 1], turned, [0, 0], 1
            ),
            "b 3 h w",
            "3 3 3 3",
            least=BIG,
            name=f"convolution_{'transposed' if turned else 'plain'}",
        )
        for turned in (False, True)
    ),
    row(
        lambda a, w: F.conv1d(a, w, padding=a.shape[2] // 2),
        "b 3 t",
        "4 3 3",
        least=BIG,
        name="conv1d_symbolic_padding",
    ),
    row(
        lambda a, w: F.conv1d(a, w, padding="same"),
        "b 3 8",
        "4 3 n",
        least={"n": 1},
        name="conv1d_symbolic_kernel",
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


def test_a_convolution_is_one_node() -> None:
    model = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
    program = check_onnx(
        model,
        (torch.randn(2, 3, 8, 8),),
        dynamic_shapes=({0: gp.Dim("batch"), 2: gp.Dim("h", min=4)},),
    )
    (node,) = program.model_proto.graph.node
    assert node.op_type == "Conv"
    assert {a.name for a in node.attribute} == {"strides", "pads"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_many_groups_as_channels_of_any_number(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        each = torch.arange(1, x.shape[1] + 1).to(x.dtype).reshape(-1, 1, 1, 1)
        return F.conv2d(x, each.expand(-1, 1, 2, 2), groups=x.shape[1])

    check_onnx(
        fn,
        (torch.randn(2, 3, 4, 4, dtype=dtype),),
        dynamic_shapes=({1: gp.Dim("c", min=1)},),
        others=[(torch.randn(2, c, 4, 4, dtype=dtype),) for c in (1, 2, 5)],
    )
