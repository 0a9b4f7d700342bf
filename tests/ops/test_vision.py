"""Shape rules of torchvision's operators; their schemas where there is no torchvision."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import graphport as gp
from tests import torchvision_kernels
from tests.helpers import check

torchvision_kernels.register()
OPS = torch.ops.torchvision
N, K, B, H, W = (gp.Dim(name) for name in "nkbhw")
IMAGE, ROIS = (
    torch.randn(2, 12, 9, 8),
    torch.tensor([[0.0, 1, 1, 5, 6], [1, 0, 2, 7, 7], [0, 2, 2, 3, 3]]),
)


def test_nms() -> None:
    """As many as data says."""

    def boxes(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        low = torch.rand(n, 2)
        return torch.cat([low, low + torch.rand(n, 2)], 1), torch.rand(n)

    def keep(dets: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = OPS.nms(dets, scores, 0.5)
        return dets[kept], scores[kept][:3]

    dynamic = ({0: N}, {0: N})
    check(keep, boxes(9), dynamic_shapes=dynamic, others=[boxes(n) for n in (0, 1, 4)])


POOLS = [
    lambda x, rois: OPS.roi_align(x, rois, 0.5, 3, 2, 2, False),
    lambda x, rois: OPS.roi_pool(x, rois, 0.5, 3, 2),
    lambda x, rois: OPS.ps_roi_align(x, rois, 0.5, 3, 2, 2),
    lambda x, rois: OPS.roi_align(x, rois, 0.5, x.shape[2], 2, 2, False),
]


@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool: Any) -> None:
    check(
        lambda x, rois: pool(x, rois),
        (IMAGE, ROIS),
        dynamic_shapes=({0: B, 2: H, 3: W}, {0: K}),
        others=[(torch.randn(2, 12, 5, 6), ROIS[:1]), (torch.randn(3, 12, 9, 8), ROIS[:0])],
    )


def deform(x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    numbers = (1, 1, 1, 1, 1, 1, 1, 1, False)
    return OPS.deform_conv2d(x, weight, offset, x.new_zeros(1, 1, 1, 1), x.new_zeros(5), *numbers)


def test_deform_conv2d() -> None:
    def inputs(batch: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
        image, weight = torch.randn(batch, 4, height, width), torch.randn(5, 4, 3, 3)
        return image, weight, torch.randn(batch, 18, height, width)

    open_dims = {0: B, 2: H, 3: W}
    check(
        deform,
        inputs(2, 6, 5),
        dynamic_shapes=(open_dims, None, open_dims),
        others=[inputs(1, 3, 7), inputs(0, 6, 5)],
    )


MISTAKES = [
    (lambda x, rois: OPS.nms(x, rois[:, 0], 0.5), "boxes should be"),
    (lambda x, rois: OPS.nms(rois[:, 1:], rois[:2, 0], 0.5), "a score for each box"),
    (lambda x, rois: OPS.nms(rois[:, 1:].int(), rois[:, 0].int(), 0.5), "floats of one dtype"),
    (lambda x, rois: OPS.roi_align(x[0], rois, 1.0, 2, 2, 0, True), r"\[N, C, H, W\]"),
    (lambda x, rois: OPS.roi_pool(x, rois[:, 1:], 1.0, 2, 2), r"\[K, 5\]"),
    (lambda x, rois: OPS.roi_align(x.double(), rois, 1.0, 2, 2, 0, True), "of the dtype of"),
    (lambda x, rois: OPS.ps_roi_align(x, rois, 1.0, 5, 1, 0), "must be a multiple"),
    (lambda x, rois: deform(x, x.new_zeros(5, 12, 3, 3), x), "expected offset of sizes"),
    (lambda x, rois: deform(x, x.new_zeros(5, 4, 3, 3), x), "does not fit"),
    (lambda x, rois: deform(x, x.new_zeros(5, 12, 19, 3), x), "is larger than the input"),
    (lambda x, rois: deform(x, x.new_zeros(4, 12, 3, 3), x), "expected a bias"),
    (lambda x, rois: deform(x, x.new_zeros(5, 12, 3, 3).double(), x), "of one dtype"),
]


@pytest.mark.parametrize(("program", "what"), MISTAKES)
def test_mistakes(program: Any, what: str) -> None:
    with pytest.raises(gp.errors.ShapeError, match=what):
        gp.export(lambda x, rois: program(x, rois), (IMAGE, ROIS))


def test_programs_load_where_there_is_no_torchvision(tmp_path: Path) -> None:
    """Their operators exist by their schemas."""
    path = tmp_path / "keep.gpx"
    gp.save(gp.export(lambda d, s: d[OPS.nms(d, s, 0.5)], (ROIS[:, 1:], ROIS[:, 0])), path)
    code = (
        "import sys; sys.modules['torchvision'] = None; import graphport as gp;"
        f"ep = gp.load({str(path)!r}, allow=('torchvision',)); gp.onnx.export(ep);"
        "print(gp.onnx.lowering('torchvision::roi_pool').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_their_operators_are_of_another_library() -> None:
    file = io.BytesIO()
    gp.save(gp.export(lambda d, s: OPS.nms(d, s, 0.5), (ROIS[:, 1:], ROIS[:, 0])), file)
    file.seek(0)
    with pytest.raises(gp.errors.SerializationError, match="torchvision"):
        gp.load(file)
