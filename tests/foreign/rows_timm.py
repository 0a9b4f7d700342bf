"""timm: networks for images, small ones or with few layers; and how people use them."""

from __future__ import annotations

from typing import Any

import timm
from torch import nn

from tests.foreign.rows import Call, Table, batches, image, noise

TABLE = Table()


def create(name: str, **options: Any) -> Any:
    def build() -> nn.Module:

        return timm.create_model(name, pretrained=False, num_classes=10, **options).eval()

    return build


def add(name: str, sizes: Any, **options: Any) -> None:
    TABLE.add(name, create(name, **options), image, sizes)


# Convolutional: the batch and the size of the image are open.
IMAGES = ((2, 64), (1, 96), (3, 64))
for name in (
    "resnet10t",
    "mobilenetv3_small_050",
    "efficientnet_lite0",
    "tf_efficientnetv2_b0",
    "convnext_atto",
    "regnetx_002",
    "regnety_002",
    "ghostnet_050",
    "dla34",
    "hardcorenas_a",
    "repvgg_a0",
    "res2net50_14w_8s",
    "resnest14d",
    "rexnet_100",
    "skresnet18",
    "seresnet18",
    "nf_regnet_b0",
    "lcnet_050",
    "mnasnet_small",
    "starnet_s1",
    "inception_next_atto",
    "mambaout_femto",
    "edgenext_xx_small",
    "poolformer_s12",
    "selecsls42",
    "tinynet_e",
    "vovnet39a",
    "xcit_nano_12_p16_224",
    "repghostnet_050",
    "cspresnet50",
    "darknet17",
    "hgnetv2_b0",
    "fbnetc_100",
    "pvt_v2_b0",
    "repvit_m0_9",
    "convmixer_768_32",
    "gernet_s",
    "densenet121",
    "ese_vovnet19b_slim",
    "eca_resnet33ts",
    "lambda_resnet26t",
):
    add(name, IMAGES)

# Transformers over a fixed size: the batch is open.
BATCH = batches(1, 5)
TINY = {"embed_dim": 32, "depth": 2, "num_heads": 4}
for name, size, options in (
    ("vit_tiny_patch16_224", 32, {"img_size": 32, **TINY}),
    ("deit_tiny_distilled_patch16_224", 32, {"img_size": 32, **TINY}),
    ("beit_base_patch16_224", 32, {"img_size": 32, **TINY}),
    ("eva02_tiny_patch14_224", 28, {"img_size": 28, **TINY}),
    ("cait_xxs24_224", 32, {"img_size": 32, **TINY}),
    ("swin_tiny_patch4_window7_224", 224, {"embed_dim": 12, "depths": (1, 1, 1, 1)}),
    ("swinv2_tiny_window8_256", 64, {"img_size": 64, "embed_dim": 12, "depths": (1, 1, 1, 1)}),
    ("mixer_s32_224", 64, {"img_size": 64}),
    ("gmlp_ti16_224", 64, {"img_size": 64}),
    ("halonet26t", 256, {}),
    ("bat_resnext26ts", 256, {}),
    ("coatnet_nano_cc_224", 224, {}),
    ("pit_ti_224", 224, {}),
    ("levit_128s", 224, {}),
    ("twins_pcpvt_small", 64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    ("visformer_tiny", 64, {"img_size": 64}),
    ("crossvit_9_240", 240, {}),
    ("coat_lite_tiny", 64, {"img_size": 64}),
    ("efficientformer_l1", 224, {}),
    ("hiera_tiny_224", 224, {}),
    ("tiny_vit_5m_224", 224, {}),
    ("maxvit_rmlp_pico_rw_256", 256, {}),
    ("gcvit_xxtiny", 224, {}),
    ("focalnet_tiny_srf", 64, {}),
    ("davit_tiny", 64, {"depths": (1, 1, 1, 1), "embed_dims": (24, 48, 96, 192)}),
    ("sequencer2d_s", 224, {"layers": (1, 1, 1, 1)}),
    ("volo_d1_224", 64, {"img_size": 64}),
):
    add(name, BATCH(size), **options)

# Transformers that take images of other sizes.
VIT = {"dynamic_img_size": True, **TINY}
add("vit_small_patch16_224", ((2, 32), (1, 64), (3, 48)), img_size=32, **VIT)
add("eva02_small_patch14_224", ((2, 28), (1, 56), (3, 42)), img_size=28, **VIT)
add("vit_base_patch16_rope_224", ((2, 32), (1, 64), (3, 48)), img_size=32, **VIT)
add("deit3_small_patch16_224", ((2, 32), (1, 64), (3, 48)), img_size=32, **VIT)
# They resize where the image is no multiple of 64.
add("mobilevit_xxs", ((2, 64), (1, 128), (3, 192)))
add("mobilevitv2_050", ((2, 64), (1, 128), (3, 192)))
add("fastvit_t8", ((2, 64), (1, 96), (3, 64)))
SWIN = {"embed_dim": 12, "depths": (1, 1, 1, 1), "strict_img_size": False}
add("swin_small_patch4_window7_224", ((2, 224), (1, 256), (3, 192)), **SWIN)

# Usage: intermediate features, pooling, preprocessing in the graph.


def timm_module(name: str, **options: Any) -> Any:
    def build() -> nn.Module:

        return timm.create_model(name, pretrained=False, **options).eval()

    return build


def normalised() -> nn.Module:
    mean = noise(1, 3, 1, 1)
    return Call(
        lambda model, x: model((x / 255 - mean) / 0.2).softmax(-1).topk(3), create("lcnet_050")()
    )


TABLE.add("features_only", timm_module("resnet10t", features_only=True), image, IMAGES)
TABLE.add("no_classifier", timm_module("lcnet_050", num_classes=0), image, IMAGES)
TABLE.add(
    "forward_features",
    lambda: Call(lambda m, x: m.forward_features(x), create("convnext_atto")()),
    image,
    IMAGES,
)
TABLE.add(
    "forward_intermediates",
    lambda: Call(
        lambda m, x: m.forward_intermediates(x, indices=[0, 1]),
        create("vit_tiny_patch16_224", img_size=32, **TINY)(),
    ),
    image,
    BATCH(32),
)
TABLE.add("preprocessing", normalised, image, IMAGES)
