"""torchvision's detection models from config: the same boxes at other image sizes.

`make survey` installs torchvision without its dependencies. Its compiled operators may be for
another torch: then kernels in Python (`tests/torchvision_kernels.py`) are what eager computes.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.onnx import ONNXProgram
from tests import torchvision_kernels
from tests.foreign import survey
from tests.onnx.helpers import check_onnx

if survey.SITE.exists() and str(survey.SITE) not in sys.path:
    sys.path.append(str(survey.SITE))
torchvision_kernels.register()
detection = pytest.importorskip("torchvision.models.detection", reason="make survey installs it")
boxes = pytest.importorskip("torchvision.ops.boxes", reason="make survey installs it")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_kernels.stand_in(monkeypatch)


CONFIG = {"weights": None, "weights_backbone": None, "num_classes": 5}
IMAGES = {"min_size": 96, "max_size": 160}
REGIONS = {**IMAGES, "rpn_pre_nms_top_n_test": 100, "rpn_post_nms_top_n_test": 30}
MODELS = {
    "fasterrcnn_resnet50_fpn": REGIONS,
    "fasterrcnn_mobilenet_v3_large_320_fpn": REGIONS,
    "maskrcnn_resnet50_fpn": {**REGIONS, "box_detections_per_img": 5},
    "keypointrcnn_resnet50_fpn": {**REGIONS, "box_detections_per_img": 5},
    "retinanet_resnet50_fpn": {**IMAGES, "topk_candidates": 100},
    "fcos_resnet50_fpn": {**IMAGES, "topk_candidates": 100},
    "ssd300_vgg16": {"topk_candidates": 100},
    "ssdlite320_mobilenet_v3_large": {"topk_candidates": 100},
}
SCORES = ("cls_logits", "cls_score", "classification_head.module_list", "bbox_ctrness")
SIZES = ((80, 100), (64, 96), (123, 77), (200, 150))


def images(height: int, width: int) -> list[Tensor]:
    return [torch.rand(3, height, width, generator=torch.Generator().manual_seed(height))]


def build(name: str) -> nn.Module:
    """With random weights that give scores of all sizes, so that they have an order."""
    torch.manual_seed(0)
    model = getattr(detection, name)(**CONFIG, **MODELS[name]).eval()
    spread: dict[nn.Module, float] = {}
    layers = [m for n, m in model.named_modules() if any(s in n for s in SCORES)]
    layers = [m for m in layers if isinstance(m, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        layer.register_forward_hook(
            lambda m, _, out: spread.update(
                {m: max(spread.get(m, 0.0), float(out.std(correction=0)))}
            )
        )
    with torch.no_grad():
        model(images(*SIZES[0]))
        for layer in layers:
            layer._forward_hooks.clear()
            if spread.get(layer):
                layer.weight.div_(spread[layer])
                if layer.bias is not None:
                    layer.bias.fill_(0.0)
    return model


def find_unmatched(have: dict[str, Tensor], want: dict[str, Tensor]) -> Iterator[int]:
    """Detections that have no like; of nearly equal scores the order may be another."""
    left = list(range(len(have["scores"])))
    for i, score in enumerate(want["scores"].tolist()):
        fits = (
            j
            for j in left
            if abs(have["scores"][j].item() - score) < 1e-3
            and all(
                torch.allclose(have[key][j].double(), want[key][i].double(), rtol=1e-2, atol=2e-2)
                for key in want
            )
        )
        found = next(fits, None)
        if found is None:
            yield i
        else:
            left.remove(found)


def compare(program: Any, model: nn.Module, size: tuple[int, int]) -> int:
    with torch.no_grad():
        (want,) = copy.deepcopy(model)(images(*size))
    (have,) = program(images(*size))
    assert {k: v.shape for k, v in have.items()} == {k: v.shape for k, v in want.items()}
    assert not [*find_unmatched(have, want)]
    return len(want["scores"])


def export(model: nn.Module) -> ONNXProgram:
    height, width = gp.Dim("height", min=32, max=1000), gp.Dim("width", min=32, max=1000)
    with warnings.catch_warnings():
        # Of no regions the class boxes have other dims in eager.
        warnings.filterwarnings("ignore", "(?s).*box_sum > 0", gp.errors.CaptureWarning)
        return gp.onnx.export(
            model, (images(*SIZES[0]),), dynamic_shapes=([{1: height, 2: width}],)
        )


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    model = build(name)
    program = export(model)
    counts = [compare(program, model, size) for size in SIZES]
    assert min(counts) > 0


def test_two_images() -> None:
    """Of different sizes, in one list."""
    model = build("retinanet_resnet50_fpn")
    sizes = [gp.Dim(name, min=32, max=1000) for name in ("h", "w", "height", "width")]
    program = gp.onnx.export(
        model,
        ([*images(80, 100), *images(96, 64)],),
        dynamic_shapes=([{1: sizes[0], 2: sizes[1]}, {1: sizes[2], 2: sizes[3]}],),
    )
    for first, second in (((80, 100), (96, 64)), ((64, 96), (123, 77))):
        given = [*images(*first), *images(*second)]
        with torch.no_grad():
            want = copy.deepcopy(model)(given)
        for ours, theirs in zip(program(given), want, strict=True):
            assert not [*find_unmatched(ours, theirs)]


def grouped(count: int) -> tuple[Tensor, ...]:
    low = torch.rand(count, 2) * 100
    scores = torch.randperm(count).float() / max(count, 1)
    return torch.cat([low, low + torch.rand(count, 2) * 30], 1), scores, torch.randint(5, (count,))


def test_suppression_by_groups() -> None:
    """torchvision takes one way for up to a thousand boxes, another for more: as data has it."""
    n = gp.Dim("n")

    def keep(dets: Tensor, scores: Tensor, groups: Tensor) -> Tensor:
        some = scores > 0.1
        return boxes.batched_nms(dets[some], scores[some], groups[some], 0.5)

    others = [grouped(count) for count in (0, 1, 5, 1200, 1500)]
    check_onnx(keep, grouped(40), dynamic_shapes=({0: n},) * 3, others=others)
