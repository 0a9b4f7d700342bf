"""MONAI: networks for volumes and slices, losses, and what it does around them."""

from __future__ import annotations

from typing import Any

import monai.networks.layers
import monai.networks.nets
import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.transforms import Flip, NormalizeIntensity, Resize
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, integers, noise

TABLE = Table()


def net(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(monai.networks.nets, name)(**config).eval()

    return build


def volume(channels: int = 1, dims: int = 3) -> Any:
    return lambda b, s: (noise(b, channels, *([s] * dims)),)


IO = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
CUBES = ((2, 32), (1, 32), (1, 48))
BATCH = ((2, 32), (1, 32), (3, 32))
FLAT = {**IO, "spatial_dims": 2}
SLICES = ((2, 32), (1, 64), (3, 32))
for name, config, inputs, sizes in (
    (
        "UNet",
        {**IO, "channels": (4, 8, 16), "strides": (2, 2), "num_res_units": 1},
        volume(),
        CUBES,
    ),
    ("BasicUNet", {**IO, "features": (4, 4, 8, 8, 16, 4)}, volume(), CUBES),
    ("AttentionUnet", {**IO, "channels": (4, 8, 16), "strides": (2, 2)}, volume(), CUBES),
    (
        "DynUNet",
        {
            **IO,
            "kernel_size": [3, 3, 3],
            "strides": [1, 2, 2],
            "upsample_kernel_size": [2, 2],
            "filters": [4, 8, 16],
        },
        volume(),
        CUBES,
    ),
    ("SegResNet", {**IO, "init_filters": 8}, volume(), CUBES),
    ("SegResNetDS", {**IO, "init_filters": 8}, volume(), CUBES),
    ("VNet", {"spatial_dims": 2}, volume(dims=2), SLICES),
    (
        "UNETR",
        {
            "in_channels": 1,
            "out_channels": 2,
            "img_size": 32,
            "feature_size": 4,
            "hidden_size": 24,
            "mlp_dim": 32,
            "num_heads": 2,
        },
        volume(),
        BATCH,
    ),
    (
        "SwinUNETR",
        {**FLAT, "feature_size": 12, "depths": (1, 1, 1, 1)},
        volume(dims=2),
        ((2, 64), (1, 64), (3, 64)),
    ),
    (
        "ViT",
        {
            "in_channels": 1,
            "img_size": (32, 32),
            "patch_size": (8, 8),
            "hidden_size": 24,
            "mlp_dim": 32,
            "num_layers": 1,
            "num_heads": 2,
            "classification": True,
            "spatial_dims": 2,
        },
        volume(dims=2),
        BATCH,
    ),
    (
        "ViTAutoEnc",
        {
            "in_channels": 1,
            "img_size": (32, 32),
            "patch_size": (4, 4),
            "hidden_size": 24,
            "mlp_dim": 32,
            "num_layers": 1,
            "num_heads": 2,
            "spatial_dims": 2,
        },
        volume(dims=2),
        BATCH,
    ),
    ("DenseNet121", FLAT, volume(dims=2), SLICES),
    (
        "EfficientNetBN",
        {
            "model_name": "efficientnet-b0",
            "spatial_dims": 2,
            "in_channels": 1,
            "num_classes": 2,
            "pretrained": False,
        },
        volume(dims=2),
        SLICES,
    ),
    ("resnet10", {"spatial_dims": 3, "n_input_channels": 1, "num_classes": 2}, volume(), CUBES),
    ("SEResNet50", {"spatial_dims": 2, "in_channels": 1, "num_classes": 2}, volume(dims=2), SLICES),
    ("HighResNet", {**FLAT}, volume(dims=2), SLICES),
    (
        "FlexibleUNet",
        {"in_channels": 1, "out_channels": 2, "backbone": "efficientnet-b0", "spatial_dims": 2},
        volume(dims=2),
        SLICES,
    ),
    ("MedNeXtS", FLAT, volume(dims=2), SLICES),
    (
        "RegUNet",
        {"spatial_dims": 2, "in_channels": 1, "num_channel_initial": 4, "depth": 2},
        volume(dims=2),
        SLICES,
    ),
    ("AutoEncoder", {**FLAT, "channels": (4, 8), "strides": (2, 2)}, volume(dims=2), SLICES),
    (
        "VarAutoEncoder",
        {
            "spatial_dims": 2,
            "out_channels": 1,
            "in_shape": (1, 32, 32),
            "latent_size": 4,
            "channels": (4, 8),
            "strides": (2, 2),
        },
        volume(dims=2),
        BATCH,
    ),
    (
        "Generator",
        {
            "latent_shape": (16,),
            "start_shape": (4, 8, 8),
            "channels": (8, 4, 1),
            "strides": (2, 2, 1),
        },
        lambda b, s: (noise(b, 16),),
        BATCH,
    ),
    (
        "Discriminator",
        {"in_shape": (1, 32, 32), "channels": (4, 8), "strides": (2, 2)},
        volume(dims=2),
        BATCH,
    ),
    ("Quicknat", {"num_classes": 2, "num_channels": 1, "num_filters": 8}, volume(dims=2), SLICES),
    (
        "VQVAE",
        {
            **FLAT,
            "channels": (8, 8),
            "num_res_layers": 1,
            "num_res_channels": (8, 8),
            "downsample_parameters": ((2, 4, 1, 1), (2, 4, 1, 1)),
            "upsample_parameters": ((2, 4, 1, 1, 0), (2, 4, 1, 1, 0)),
            "num_embeddings": 16,
            "embedding_dim": 4,
        },
        volume(dims=2),
        SLICES,
    ),
    (
        "DiffusionModelUNet",
        {
            **FLAT,
            "channels": (8, 16),
            "num_res_blocks": 1,
            "norm_num_groups": 4,
            "attention_levels": (False, True),
            "num_head_channels": 4,
        },
        lambda b, s: (noise(b, 1, s, s), integers(100, b)),
        SLICES,
    ),
    (
        "PatchDiscriminator",
        {"spatial_dims": 2, "channels": 8, "in_channels": 1, "num_layers_d": 2},
        volume(dims=2),
        SLICES,
    ),
    (
        "DecoderOnlyTransformer",
        {
            "num_tokens": 20,
            "max_seq_len": 32,
            "attn_layers_dim": 16,
            "attn_layers_depth": 1,
            "attn_layers_heads": 2,
        },
        lambda b, n: (integers(20, b, n),),
        ((2, 12), (1, 7), (3, 20)),
    ),
    (
        "FullyConnectedNet",
        {"in_channels": 8, "out_channels": 2, "hidden_channels": [16]},
        lambda b, n: (noise(b, 8),),
        BATCH,
    ),
    (
        "GlobalNet",
        {
            "image_size": (32, 32),
            "spatial_dims": 2,
            "in_channels": 1,
            "num_channel_initial": 4,
            "depth": 2,
        },
        volume(dims=2),
        BATCH,
    ),
):
    TABLE.add(name, net(name, **config), inputs, sizes)


def sliding(m: Any, x: Tensor) -> Tensor:

    return sliding_window_inference(x, (16, 16), 2, m, overlap=0.25)


def tta(m: Any, x: Tensor) -> Tensor:

    return torch.stack([m(x), Flip(spatial_axis=-1)(m(x.flip(-1)))]).mean(0)


def dice(x: Tensor, y: Tensor) -> Tensor:

    return DiceLoss(sigmoid=True)(x, y)


def metatensor(x: Tensor) -> Tensor:

    return torch.stack([Resize((16, 16))(NormalizeIntensity()(i)) for i in x])


UNET = {**FLAT, "channels": (4, 8), "strides": (2,)}
add = TABLE.add
KL = {
    **FLAT,
    "channels": (8, 8),
    "num_res_blocks": 1,
    "norm_num_groups": 4,
    "latent_channels": 3,
    "attention_levels": (False, True),
}
add(
    "AutoencoderKL",
    lambda: Call(lambda m, x: m.reconstruct(x), net("AutoencoderKL", **KL)()).eval(),
    volume(dims=2),
    SLICES,
)
add(
    "sliding_window_inference",
    lambda: Call(sliding, net("UNet", **UNET)()).eval(),
    volume(dims=2),
    ((2, 32), (1, 32)),
    refused="GP111",
)
add(
    "flip_average",
    lambda: Call(tta, net("UNet", **UNET)()).eval(),
    volume(dims=2),
    SLICES,
    refused="GP200",
)
add(
    "DiceLoss",
    lambda: Call(dice).eval(),
    lambda b, s: (noise(b, 1, s, s), noise(b, 1, s, s).sign()),
    SLICES,
)


def layer(name: str, *args: Any, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(monai.networks.layers, name)(*args, **config).eval()

    return build


add("GaussianFilter", layer("GaussianFilter", 2, 1.5), volume(dims=2), SLICES)
add("SavitzkyGolay", layer("SavitzkyGolayFilter", 5, 2), lambda b, n: (noise(b, 1, n),), SLICES)
add(
    "HilbertTransform",
    lambda: Call(lambda m, x: m(x).abs(), layer("HilbertTransform")()),
    lambda b, n: (noise(b, 1, n),),
    SLICES,
)
add(
    "AffineTransform",
    layer("AffineTransform", (20, 20), align_corners=False),
    lambda b, s: (noise(b, 1, s, s), torch.eye(2, 3).expand(b, 2, 3) + 0.1 * noise(b, 2, 3)),
    ((2, 32), (4, 64), (3, 32)),  # a batch of one is a branch of its own
)
add(
    "median_filter",
    lambda: Call(lambda m, x: m(x), layer("MedianFilter", 1, 2)()).eval(),
    volume(dims=2),
    SLICES,
)
