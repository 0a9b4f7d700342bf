"""diffusers: denoisers, autoencoders and schedulers, from small configurations."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, integers, noise, positive

TABLE = Table()


def create(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(diffusers, name)(**config).eval()

    return build


def add(name: str, inputs: Any, sizes: Any, title: str = "", **config: Any) -> None:
    TABLE.add(title or name, create(name, **config), inputs, sizes)


SMALL = {"layers_per_block": 1, "norm_num_groups": 4}
IMAGES = ((2, 16, 16), (1, 24, 16), (3, 8, 32))
LATENT = ((2, 8, 8), (1, 16, 8), (3, 8, 12))


def timed(channels: int) -> Any:
    return lambda b, h, w: {"sample": noise(b, channels, h, w), "timestep": integers(1000, b)}


def conditioned(channels: int, features: int) -> Any:
    return lambda b, h, w, n=7: {
        "sample": noise(b, channels, h, w),
        "timestep": torch.tensor(5),
        "encoder_hidden_states": noise(b, n, features),
    }


add(
    "UNet2DModel",
    timed(3),
    IMAGES,
    sample_size=16,
    block_out_channels=(8, 16),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=4,
    **SMALL,
)
CROSS = {
    "sample_size": 8,
    "block_out_channels": (8, 16),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "cross_attention_dim": 12,
    "attention_head_dim": 2,
    **SMALL,
}
UP = {"up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
add(
    "UNet2DConditionModel",
    conditioned(4, 12),
    ((2, 8, 8, 7), (1, 16, 8, 9), (3, 8, 12, 4)),
    **CROSS,
    **UP,
)
add(
    "UNet2DConditionModel",
    lambda b, h, w: {
        **conditioned(4, 12)(b, h, w),
        "added_cond_kwargs": {"text_embeds": noise(b, 8), "time_ids": noise(b, 6)},
    },
    LATENT,
    "UNet2DConditionModel_xl",
    **CROSS,
    **UP,
    addition_embed_type="text_time",
    addition_time_embed_dim=4,
    projection_class_embeddings_input_dim=8 + 6 * 4,
    transformer_layers_per_block=(1, 2),
    use_linear_projection=True,
)
add(
    "ControlNetModel",
    lambda b, h, w: {**conditioned(4, 12)(b, h, w), "controlnet_cond": noise(b, 3, 8 * h, 8 * w)},
    LATENT,
    in_channels=4,
    conditioning_embedding_out_channels=(4, 8, 8, 8),
    **{k: v for k, v in CROSS.items() if k != "sample_size"},
)
add(
    "UNet1DModel",
    lambda b, n: {"sample": noise(b, 14, n), "timestep": integers(100, b)},
    ((2, 16), (1, 32), (3, 24)),
    in_channels=14,
    out_channels=14,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    time_embedding_type="positional",
    use_timestep_embedding=True,
    act_fn="mish",
    freq_shift=1,
    extra_in_channels=0,
    flip_sin_to_cos=False,
    out_block_type="OutConv1DBlock",
    mid_block_type="MidResTemporalBlock1D",
    down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
    up_block_types=("UpResnetBlock1D",),
    layers_per_block=1,
)
add(
    "UNet3DConditionModel",
    lambda b, h, w: {
        "sample": noise(b, 4, 3, h, w),
        "timestep": integers(1000, b),
        "encoder_hidden_states": noise(b, 7, 12),
    },
    LATENT,
    sample_size=8,
    block_out_channels=(8, 16),
    down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
    up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
    cross_attention_dim=12,
    attention_head_dim=4,
    **SMALL,
)
VAE = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    "latent_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 4,
}
picture = lambda b, h, w: (noise(b, 3, h, w),)
add("AutoencoderKL", picture, IMAGES, **VAE)


def part(name: str, function: Any, **config: Any) -> Any:
    return lambda: Call(function, create(name, **config)()).eval()


TABLE.add(
    "AutoencoderKL_encode",
    part("AutoencoderKL", lambda m, x: m.encode(x).latent_dist.mode() * 0.18, **VAE),
    picture,
    IMAGES,
)
TABLE.add(
    "AutoencoderKL_decode",
    part("AutoencoderKL", lambda m, x: m.decode(x / 0.18, return_dict=False)[0], **VAE),
    lambda b, h, w: (noise(b, 4, h, w),),
    LATENT,
)
TABLE.add(
    "AutoencoderKL_tiled",
    part(
        "AutoencoderKL",
        lambda m, x: (m.enable_tiling(), m.decode(x).sample)[1],
        sample_size=16,
        **VAE,
    ),
    lambda b, h, w: (noise(b, 4, h, w),),
    ((2, 12, 12), (1, 12, 12)),
)
add("VQModel", picture, IMAGES, **{**VAE, "latent_channels": 3}, num_vq_embeddings=16)
add(
    "AutoencoderTiny",
    picture,
    ((2, 16, 16), (1, 32, 16), (3, 16, 24)),
    encoder_block_out_channels=(8, 8),
    decoder_block_out_channels=(8, 8),
    num_encoder_blocks=(1, 1),
    num_decoder_blocks=(1, 1),
)
add(
    "AutoencoderDC",
    picture,
    ((2, 16, 16), (1, 32, 16), (3, 16, 24)),
    latent_channels=4,
    attention_head_dim=4,
    encoder_block_types=("ResBlock", "EfficientViTBlock"),
    decoder_block_types=("ResBlock", "EfficientViTBlock"),
    encoder_block_out_channels=(8, 16),
    decoder_block_out_channels=(8, 16),
    encoder_qkv_multiscales=((), (5,)),
    decoder_qkv_multiscales=((), (5,)),
    encoder_layers_per_block=(1, 1),
    decoder_layers_per_block=(1, 1),
    downsample_block_type="conv",
    upsample_block_type="interpolate",
    decoder_norm_types="rms_norm",
    decoder_act_fns="silu",
)
add(
    "AutoencoderKLTemporalDecoder",
    picture,
    ((3, 16, 16), (3, 24, 16)),
    block_out_channels=(32, 64),
    down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
    latent_channels=4,
    layers_per_block=1,
)

HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1}
add(
    "DiTTransformer2DModel",
    lambda b, s: {
        "hidden_states": noise(b, 4, s, s),
        "timestep": integers(100, b),
        "class_labels": integers(10, b),
    },
    ((2, 8), (1, 8), (5, 8)),
    sample_size=8,
    patch_size=2,
    in_channels=4,
    norm_num_groups=2,
    num_embeds_ada_norm=10,
    **HEADS,
)
add(
    "SD3Transformer2DModel",
    lambda b, h, w: {
        "hidden_states": noise(b, 4, h, w),
        "encoder_hidden_states": noise(b, 7, 16),
        "pooled_projections": noise(b, 8),
        "timestep": positive(b) * 1000,
    },
    LATENT,
    sample_size=32,
    patch_size=2,
    in_channels=4,
    out_channels=4,
    joint_attention_dim=16,
    caption_projection_dim=16,
    pooled_projection_dim=8,
    pos_embed_max_size=32,
    **HEADS,
)


def flux(b: int, n: int, t: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(b, n, 4),
        "encoder_hidden_states": noise(b, t, 16),
        "pooled_projections": noise(b, 8),
        "timestep": positive(b),
        "img_ids": positive(n, 3),
        "txt_ids": torch.zeros(t, 3),
    }


FLUX = ((2, 16, 7), (1, 9, 5), (3, 20, 4))
add(
    "FluxTransformer2DModel",
    flux,
    FLUX,
    patch_size=1,
    in_channels=4,
    num_single_layers=1,
    joint_attention_dim=16,
    pooled_projection_dim=8,
    axes_dims_rope=(4, 4, 8),
    num_layers=1,
    num_attention_heads=2,
    attention_head_dim=16,
)
add(
    "PixArtTransformer2DModel",
    lambda b, h, w: {
        "hidden_states": noise(b, 4, h, w),
        "timestep": integers(100, b),
        "encoder_hidden_states": noise(b, 7, 8),
        "added_cond_kwargs": {"aspect_ratio": None, "resolution": None},
    },
    LATENT,  # none of its own size, where it does not make its positions anew
    sample_size=32,
    patch_size=2,
    in_channels=4,
    out_channels=8,
    cross_attention_dim=16,
    caption_channels=8,
    use_additional_conditions=False,
    **HEADS,
)
add(
    "AuraFlowTransformer2DModel",
    lambda b, h, w: {
        "hidden_states": noise(b, 4, h, w),
        "encoder_hidden_states": noise(b, 7, 16),
        "timestep": positive(b),
    },
    LATENT,
    sample_size=32,
    patch_size=2,
    in_channels=4,
    out_channels=4,
    num_mmdit_layers=1,
    num_single_dit_layers=1,
    caption_projection_dim=16,
    joint_attention_dim=16,
    pos_embed_max_size=256,
    num_attention_heads=2,
    attention_head_dim=8,
)
add(
    "SanaTransformer2DModel",
    lambda b, h, w: {
        "hidden_states": noise(b, 4, h, w),
        "encoder_hidden_states": noise(b, 7, 8),
        "timestep": integers(100, b),
    },
    LATENT,
    sample_size=8,
    patch_size=1,
    in_channels=4,
    out_channels=4,
    num_cross_attention_heads=2,
    cross_attention_head_dim=8,
    cross_attention_dim=16,
    caption_channels=8,
    **HEADS,
)
add(
    "CogVideoXTransformer3DModel",
    lambda b, h: {
        "hidden_states": noise(b, 3, 4, h, 8),
        "encoder_hidden_states": noise(b, 6, 8),
        "timestep": integers(100, b),
    },
    ((2, 8), (1, 8), (3, 8)),
    in_channels=4,
    out_channels=4,
    time_embed_dim=4,
    text_embed_dim=8,
    sample_width=8,
    sample_height=8,
    sample_frames=9,
    patch_size=2,
    temporal_compression_ratio=4,
    max_text_seq_length=6,
    use_rotary_positional_embeddings=False,
    **HEADS,
)
add(
    "LTXVideoTransformer3DModel",
    lambda b, t: {
        "hidden_states": noise(b, 2 * 3 * 4, 4),
        "encoder_hidden_states": noise(b, t, 8),
        "timestep": integers(100, b),
        "encoder_attention_mask": torch.ones(b, t),
        "num_frames": 2,
        "height": 3,
        "width": 4,
    },
    ((2, 6), (1, 9), (3, 4)),
    in_channels=4,
    out_channels=4,
    cross_attention_dim=16,
    caption_channels=8,
    **HEADS,
)
add(
    "WanTransformer3DModel",
    lambda b, h, w: {
        "hidden_states": noise(b, 4, 2, h, w),
        "timestep": integers(100, b),
        "encoder_hidden_states": noise(b, 6, 8),
    },
    LATENT,
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=12,
    in_channels=4,
    out_channels=4,
    text_dim=8,
    freq_dim=32,
    ffn_dim=32,
    num_layers=1,
    cross_attn_norm=True,
    qk_norm="rms_norm_across_heads",
    rope_max_seq_len=32,
)
add(
    "PriorTransformer",
    lambda b, _: {
        "hidden_states": noise(b, 8),
        "timestep": 2,
        "proj_embedding": noise(b, 8),
        "encoder_hidden_states": noise(b, 7, 8),
    },
    ((2, 0), (1, 0), (5, 0)),
    embedding_dim=8,
    num_embeddings=7,
    additional_embeddings=4,
    **HEADS,
)
add(
    "HunyuanDiT2DModel",
    lambda b, s: {
        "hidden_states": noise(b, 4, s, s),
        "timestep": positive(b),
        "encoder_hidden_states": noise(b, 7, 8),
        "text_embedding_mask": torch.ones(b, 7),
        "encoder_hidden_states_t5": noise(b, 5, 8),
        "text_embedding_mask_t5": torch.ones(b, 5),
        "image_meta_size": noise(b, 6),
        "style": torch.zeros(b, dtype=torch.int64),
        "image_rotary_emb": (noise(16, 8), noise(16, 8)),
    },
    ((2, 8), (1, 8), (3, 8)),
    sample_size=8,
    patch_size=2,
    in_channels=4,
    num_layers=2,
    num_attention_heads=2,
    attention_head_dim=8,
    hidden_size=16,
    mlp_ratio=1.0,
    cross_attention_dim=8,
    cross_attention_dim_t5=8,
    pooled_projection_dim=4,
    text_len=7,
    text_len_t5=5,
)
add(
    "T5FilmDecoder",
    lambda b, n: ([(noise(b, n, 16), torch.ones(b, n))], noise(b, 8, 4), positive(b)),
    ((2, 6), (1, 9), (3, 4)),
    input_dims=4,
    targets_length=8,
    d_model=16,
    num_layers=1,
    num_heads=2,
    d_kv=8,
    d_ff=16,
)


# Usage: a few steps of a scheduler around a denoiser; guidance; a scheduler alone.


def steps(scheduler: str, **options: Any) -> Any:
    def sample(unet: Any, x: Tensor) -> Tensor:

        plan = getattr(diffusers, scheduler)(num_train_timesteps=100)
        plan.set_timesteps(4)
        x = x * plan.init_noise_sigma
        for t in plan.timesteps:
            scaled = plan.scale_model_input(x, t)
            x = plan.step(unet(scaled, t).sample, t, x, **options).prev_sample
        return x

    config = {
        "sample_size": 16,
        "block_out_channels": (8, 16),
        "down_block_types": ("DownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D"),
        **SMALL,
    }
    return lambda: Call(sample, create("UNet2DModel", **config)()).eval()


def guided(unet: Any, x: Tensor, y: Tensor) -> Tensor:
    both = unet(torch.cat([x, x]), 7, torch.cat([torch.zeros_like(y), y])).sample
    without, given = both.chunk(2)
    return without + 7.5 * (given - without)


for plan in (
    "DDIMScheduler",
    "EulerDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
):
    TABLE.add(f"loop_{plan}", steps(plan), picture, IMAGES)
TABLE.add(
    "guidance",
    lambda: Call(guided, create("UNet2DConditionModel", **CROSS, **UP)()).eval(),
    lambda b, h, w: (noise(b, 4, h, w), noise(b, 7, 12)),
    LATENT,
)
