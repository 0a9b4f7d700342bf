"""Ultralytics: its networks, without suppression of boxes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from ultralytics.nn import tasks

from tests.foreign.rows import Table, noise

TABLE = Table()
IMAGES = ((2, 64), (1, 96), (3, 64))


def model(kind: str, config: str, export: bool = False) -> Any:
    def build() -> nn.Module:

        made = getattr(tasks, kind)(config, ch=3, verbose=False).eval()
        for module in made.modules():
            if export and hasattr(module, "export"):
                module.export = True
        return made

    return build


def image(b: int, s: int) -> tuple[torch.Tensor]:
    return (noise(b, 3, s, s).sigmoid(),)


for kind, config in (
    ("DetectionModel", "yolov8n.yaml"),
    ("DetectionModel", "yolov5n.yaml"),
    ("DetectionModel", "yolov9t.yaml"),
    ("DetectionModel", "yolov10n.yaml"),
    ("DetectionModel", "yolo11n.yaml"),
    ("DetectionModel", "yolo12n.yaml"),
    ("SegmentationModel", "yolov8n-seg.yaml"),
    ("PoseModel", "yolov8n-pose.yaml"),
    ("OBBModel", "yolov8n-obb.yaml"),
    ("ClassificationModel", "yolov8n-cls.yaml"),
):
    TABLE.add(config.removesuffix(".yaml"), model(kind, config), image, IMAGES)
TABLE.add(
    "yolov8n_export", model("DetectionModel", "yolov8n.yaml", True), image, ((2, 64), (1, 64))
)
TABLE.add(
    "rtdetr",
    model("RTDETRDetectionModel", "rtdetr-l.yaml"),
    image,
    ((2, 64), (1, 64)),
    only_sizes=True,
)
