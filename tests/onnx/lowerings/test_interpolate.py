"""Resampling: every mode, by size and by factor, at sizes where rounding decides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import row

BIG = {"h": 3, "w": 3, "t": 3}
SPECS = {1: "b 3 t", 2: "b 3 h w", 3: "b 2 t h w"}
NEAREST = ("nearest", "nearest-exact")
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")


def octets(size: Sequence[int]) -> torch.Tensor:
    return torch.randint(0, 255, tuple(size), dtype=torch.uint8)


def resized(name: str, n: int, make: Any = torch.randn, **options: Any) -> Any:
    return row(lambda a: F.interpolate(a, **options), SPECS[n], least=BIG, make=make, name=name)


HOW: dict[str, dict[str, Any]] = {
    "larger": {"size": 13},
    "smaller": {"size": 2},
    "one": {"size": 1},
    "twice": {"scale_factor": 2},
    "half": {"scale_factor": 0.5},
    "odd": {"scale_factor": 1.7},
    "recomputed": {"scale_factor": 1.7, "recompute_scale_factor": True},
}

ROWS = [
    *(
        resized(f"{mode}_{how}", 2, mode=mode, **HOW[how])
        for mode, how in itertools.product((*NEAREST, "bilinear", "bicubic"), HOW)
    ),
    *(
        resized(f"{mode}_{n}d", n, mode=mode, scale_factor=2.5)
        for n in (1, 3)
        for mode in (*NEAREST, LINEAR[n])
    ),
    *(
        resized(f"{mode}_corners_{how}", 2, mode=mode, align_corners=True, **HOW[how])
        for mode, how in itertools.product(("bilinear", "bicubic"), ("larger", "one", "odd"))
    ),
    *(
        resized(
            f"{mode}_antialias_{how}_{corners}",
            2,
            mode=mode,
            align_corners=corners,
            antialias=True,
            **HOW[how],
        )
        for mode, how, corners in itertools.product(
            ("bilinear", "bicubic"), ("larger", "smaller", "odd"), (False, True)
        )
    ),
    *(
        resized(f"{mode}_{make.__name__}", 2, make, mode=mode, size=(4, 9))
        for make in (halves, doubles)
        for mode in (*NEAREST, "bilinear", "bicubic")
    ),
    resized("antialias_doubles", 2, doubles, mode="bicubic", size=(4, 9), antialias=True),
    resized("nearest_octets", 2, octets, mode="nearest", size=(4, 9)),
    *(
        resized(f"octets_{i}", 2, octets, **options)
        for i, options in enumerate(
            [
                {"mode": "bilinear", "size": (4, 9)},
                {"mode": "bilinear", "size": (13, 1), "align_corners": True},
                {"mode": "bilinear", "scale_factor": 1.7, "antialias": True},
                {"mode": "bicubic", "scale_factor": (0.6, 1.3)},
                {"mode": "bicubic", "size": (2, 9), "align_corners": True},
                {"mode": "bicubic", "size": (4, 2), "antialias": True},
            ]
        )
    ),
    row(
        lambda a, like: F.interpolate(a, size=like.shape[2:], mode="bilinear"),
        "b 3 h w",
        "1 1 t c",
        least={**BIG, "c": 1},
        name="size_of_another",
    ),
    row(
        lambda a: aten.upsample_nearest2d(a, [9, 5], None, 1.2),
        "b 3 h 4",
        least=BIG,
        name="upsample_nearest2d",
    ),
    row(
        lambda a: aten.upsample_bilinear2d(a, [9, 5], False, None, None),
        "b 3 h 4",
        least=BIG,
        name="upsample_bilinear2d",
    ),
    row(
        lambda a: aten.upsample_trilinear3d(a, [9, 5, 3], True, None, None, None),
        "b 2 h 4 5",
        least=BIG,
        name="upsample_trilinear3d",
    ),
    *(
        row(
            lambda a, t, corners=corners: F.affine_grid(t, list(a.shape), align_corners=corners),
            "b 3 h w",
            "b 2 3",
            least={"b": 1, "h": 2, "w": 2},
            name=f"affine_grid_{corners}",
        )
        for corners in (False, True)
    ),
    *(
        row(
            lambda a, g, mode=mode, pad=pad, corners=corners: F.grid_sample(
                a, g, mode=mode, padding_mode=pad, align_corners=corners
            ),
            "b 3 h w",
            "b t 4 2",
            least={"h": 2, "w": 2},
            name=f"grid_sample_{mode}_{pad}_{corners}",
        )
        for mode, pad, corners in itertools.product(
            ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
        )
    ),
    *(
        row(
            lambda a, g, mode=mode: F.grid_sample(a, g, mode=mode, align_corners=False),
            "b 2 t h w",
            "b 3 4 2 3",
            least={"h": 2, "w": 2, "t": 2},
            name=f"grid_sample_3d_{mode}",
        )
        for mode in ("bilinear", "nearest")
    ),
    *(
        row(
            lambda a, size=size, corners=corners: F.affine_grid(a, size, align_corners=corners),
            f"2 {len(size) - 2} {len(size) - 1}",
            name=f"affine_grid_{len(size)}_{corners}",
        )
        for size, corners in itertools.product(
            ((2, 3, 4, 5), (2, 3, 1, 5), (2, 3, 4, 5, 6), (2, 3, 4, 1, 1)), (False, True)
        )
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


@pytest.mark.parametrize("mode", NEAREST)
def test_the_nearest_where_quotients_are_near_integers(mode: str) -> None:
    """Sizes for which float32 rounds `i * (size / out)` otherwise than `i / (out / size)`."""
    pairs = [(s, o) for s in (3, 7, 10, 29, 41) for o in (6, 14, 21, 49, 82, 123)]

    def all_of(*lines: torch.Tensor) -> list[torch.Tensor]:
        return [F.interpolate(x, size=o, mode=mode) for x, (_, o) in zip(lines, pairs, strict=True)]

    check_onnx(all_of, tuple(torch.randn(1, 1, s) for s, _ in pairs))


def test_a_plain_resize_is_one_node() -> None:
    for mode in ("nearest", "bilinear", "bicubic"):
        for scale in (2, 0.5):
            program = check_onnx(
                lambda x, mode=mode, scale=scale: F.interpolate(x, scale_factor=scale, mode=mode),
                (torch.randn(2, 3, 8, 6),),
            )
            assert [n.op_type for n in program.model_proto.graph.node] == ["Resize"]


HOW = ({}, {"mode": "bilinear"}, {"mode": "bicubic"}, {"mode": "bilinear", "align_corners": True})


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 2, 3, 1), (2, 1, 0, 3)], ids=str)
def test_resizing_between_transposes(order: tuple[int, ...]) -> None:
    """ONNX Runtime moves the first one behind the Resize, and has no kernel for what is left."""
    back = [order.index(d) for d in range(4)]
    dims = ({order[0]: gp.Dim("n"), order[2]: gp.Dim("h", min=2), order[3]: gp.Dim("w", min=2)},)

    def image(*sizes: int) -> tuple[torch.Tensor]:
        return (torch.randn(sizes).permute(back),)

    def resized(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.permute(order).relu()
        to = [{"size": (7, 5)}, {"scale_factor": 2}, {"scale_factor": 0.5}]
        return [F.interpolate(x, **where, **how).permute(back) + 1 for where in to for how in HOW]

    check_onnx(
        resized,
        image(2, 3, 6, 4),
        dynamic_shapes=dims,
        others=[image(1, 3, 4, 8), image(0, 3, 2, 2)],
    )


def test_a_table_of_positions_at_other_sizes() -> None:
    """As vision transformers have it."""
    table = torch.randn(1, 16, 8)

    def positions(x: torch.Tensor) -> torch.Tensor:
        grid = table.reshape(1, 4, 4, 8).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=x.shape[1:3], mode="bicubic")
        return x + grid.permute(0, 2, 3, 1)

    dims = ({0: gp.Dim("n"), 1: gp.Dim("h", min=1), 2: gp.Dim("w", min=1)},)
    check_onnx(
        positions,
        (torch.randn(2, 5, 3, 8),),
        dynamic_shapes=dims,
        others=[(torch.randn(1, 4, 4, 8),), (torch.randn(1, 1, 9, 8),)],
    )


SAME = {
    1: ({}, {"mode": "linear"}, {"mode": "nearest-exact"}),
    2: (
        *HOW,
        {"mode": "nearest-exact"},
        {"mode": "bilinear", "antialias": True},
        {"mode": "bicubic", "antialias": True},
    ),
    3: ({}, {"mode": "trilinear"}, {"mode": "nearest-exact"}),
}


@pytest.mark.parametrize("n", SAME)
def test_a_factor_that_leaves_a_size_or_doubles_it(n: int) -> None:
    """Some of torch's kernels go by the sizes then, and some by the factor."""

    def resized(x: torch.Tensor) -> list[torch.Tensor]:
        factors = (1.2, 1.25, 2.2)
        return [F.interpolate(x, scale_factor=f, **how) for f in factors for how in SAME[n]]

    sizes = [(2, 3, *(s + i for i in range(n))) for s in (3, 4, 2, 6)]
    others = [(torch.randn(s),) for s in sizes]
    dims = ({d + 2: gp.Dim("hwd"[d], min=2) for d in range(n)},)
    for x in others[:3]:
        check_onnx(resized, x)
    check_onnx(resized, others[0], dynamic_shapes=dims, others=others)
