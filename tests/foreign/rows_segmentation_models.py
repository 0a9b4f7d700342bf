"""segmentation-models-pytorch: decoders over encoders, for images of any size."""

from __future__ import annotations

from typing import Any

import segmentation_models_pytorch as smp
from torch import nn

from tests.foreign.rows import Call, Table, image

TABLE = Table()
IMAGES = ((2, 64), (1, 96), (3, 32))


def model(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(smp, name)(encoder_weights=None, classes=3, **config).eval()

    return build


SMALL = {"encoder_name": "timm-mobilenetv3_small_minimal_100"}
RESNET = {"encoder_name": "resnet18"}
for name, config in (
    ("Unet", {**RESNET, "decoder_channels": (32, 16, 16, 8, 8)}),
    ("UnetPlusPlus", {**RESNET, "decoder_channels": (32, 16, 16, 8, 8)}),
    ("FPN", RESNET),
    ("Linknet", RESNET),
    ("MAnet", {**RESNET, "decoder_channels": (32, 16, 16, 8, 8)}),
    ("DeepLabV3", RESNET),
    ("DeepLabV3Plus", RESNET),
    ("UPerNet", {**RESNET, "decoder_channels": 32}),
    ("Segformer", {**RESNET, "decoder_segmentation_channels": 32}),
):
    TABLE.add(name, model(name, **config), image, IMAGES)
TABLE.add("PAN", model("PAN", **RESNET), image, ((2, 128), (1, 160), (3, 128)))
TABLE.add("PSPNet", model("PSPNet", **RESNET), image, ((2, 64), (1, 64), (3, 64)))
TABLE.add(
    "DPT",
    model("DPT", encoder_name="tu-vit_tiny_patch16_224", encoder_depth=4),
    image,
    ((2, 224), (1, 224)),
)
TABLE.add(
    "Unet_classes",
    model("Unet", **RESNET, aux_params={"classes": 4, "dropout": 0.2}),
    image,
    IMAGES,
)
TABLE.add("Unet_scse", model("Unet", **RESNET, decoder_attention_type="scse"), image, IMAGES)
TABLE.add("Unet_efficientnet", model("Unet", encoder_name="efficientnet-b0"), image, IMAGES)
TABLE.add("Unet_timm", model("Unet", encoder_name="tu-lcnet_050"), image, IMAGES)
TABLE.add("Unet_mit", model("Unet", encoder_name="mit_b0"), image, IMAGES)
TABLE.add(
    "Unet_loss",
    lambda: Call(
        lambda m, x: m(x).sigmoid().gt(0.5).long().argmax(1), model("Unet", **RESNET)()
    ).eval(),
    image,
    IMAGES,
)
