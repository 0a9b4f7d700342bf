"""vit-pytorch and its relatives: transformers for images."""

from __future__ import annotations

import importlib
from typing import Any

import vit_pytorch  # noqa: F401
from torch import nn

from tests.foreign.rows import Table, batches, image, noise

TABLE = Table()


def model(module: str, name: str, *args: Any, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(importlib.import_module(module), name)(*args, **config).eval()

    return build


BATCH = batches(1, 5)
VIT = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "dim": 16,
    "depth": 1,
    "heads": 2,
    "mlp_dim": 32,
    "dim_head": 8,
}
for module, name, config, sizes in (
    ("vit", "ViT", VIT, BATCH(32)),
    ("simple_vit", "SimpleViT", VIT, BATCH(32)),
    ("simple_vit_with_register_tokens", "SimpleViT", VIT, BATCH(32)),
    ("simple_vit_with_fft", "SimpleViT", {**VIT, "freq_patch_size": 8}, BATCH(32)),
    ("simple_flash_attn_vit", "SimpleViT", VIT, BATCH(32)),
    ("vit_with_patch_dropout", "ViT", VIT, BATCH(32)),
    ("vit_for_small_dataset", "ViT", VIT, BATCH(32)),
    ("deepvit", "DeepViT", VIT, BATCH(32)),
    ("cait", "CaiT", {**VIT, "cls_depth": 1}, BATCH(32)),
    ("parallel_vit", "ViT", VIT, BATCH(32)),
    ("rvt", "RvT", {k: v for k, v in VIT.items() if k != "dim_head"}, BATCH(32)),
    ("learnable_memory_vit", "ViT", VIT, BATCH(32)),
    ("pit", "PiT", {**VIT, "depth": (1, 1, 1), "heads": 2, "image_size": 64}, BATCH(64)),
    (
        "cct",
        "CCT",
        {
            "img_size": 32,
            "embedding_dim": 16,
            "num_layers": 1,
            "num_heads": 2,
            "mlp_ratio": 2,
            "n_conv_layers": 1,
            "kernel_size": 7,
            "stride": 2,
            "padding": 3,
            "num_classes": 5,
            "positional_embedding": "learnable",
        },
        BATCH(32),
    ),
    (
        "cvt",
        "CvT",
        {"num_classes": 5, "s1_emb_dim": 8, "s2_emb_dim": 16, "s3_emb_dim": 16, "s3_depth": 1},
        ((2, 64), (1, 96), (3, 64)),
    ),
    (
        "regionvit",
        "RegionViT",
        {"num_classes": 5, "dim": (8, 8, 16, 16), "depth": (1, 1, 1, 1), "window_size": 2},
        BATCH(64),
    ),
    (
        "nest",
        "NesT",
        {
            "image_size": 32,
            "patch_size": 4,
            "dim": 8,
            "heads": 2,
            "num_hierarchies": 2,
            "block_repeats": (1, 1),
            "num_classes": 5,
        },
        BATCH(32),
    ),
    (
        "max_vit",
        "MaxViT",
        {"num_classes": 5, "dim": 8, "depth": (1,), "dim_head": 4, "window_size": 4},
        BATCH(32),
    ),
    (
        "mobile_vit",
        "MobileViT",
        {
            "image_size": (64, 64),
            "dims": [8, 8, 8],
            "channels": [4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16],
            "num_classes": 5,
        },
        BATCH(64),
    ),
    ("xcit", "XCiT", {**VIT, "cls_depth": 1}, BATCH(32)),
    (
        "scalable_vit",
        "ScalableViT",
        {
            "num_classes": 5,
            "dim": 8,
            "heads": (1, 1, 1, 1),
            "depth": (1, 1, 1, 1),
            "reduction_factor": (2, 2, 1, 1),
            "window_size": (4, 4, None, None),
            "dropout": 0.1,
        },
        BATCH(64),
    ),
    (
        "jumbo_vit",
        "JumboViT",
        {**VIT, "num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 1},
        BATCH(32),
    ),
    ("normalized_vit", "nViT", VIT, BATCH(32)),
):
    if config is not None and sizes is not None:
        title = name if module == name.lower() else f"{module}.{name}"
        TABLE.add(title, model(f"vit_pytorch.{module}", name, **config), image, sizes)
TABLE.add(
    "vit_3d.ViT",
    model(
        "vit_pytorch.vit_3d",
        "ViT",
        **{k: v for k, v in VIT.items() if k != "patch_size"},
        channels=1,
        image_patch_size=8,
        frames=4,
        frame_patch_size=2,
    ),
    lambda b, s: (noise(b, 1, 4, s, s),),
    BATCH(32),
)
TABLE.add(
    "vit_1d.ViT",
    model(
        "vit_pytorch.vit_1d",
        "ViT",
        seq_len=32,
        **{k: v for k, v in VIT.items() if k != "image_size"},
    ),
    lambda b, n: (noise(b, 3, n),),
    BATCH(32),
)
