"""x-transformers: encoders and decoders with their many options."""

from __future__ import annotations

from typing import Any

import x_transformers as xt
from torch import nn
from x_transformers import (
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
)

from tests.foreign.rows import Table, image, integers, noise

TABLE = Table()
SIZES = ((2, 12), (3, 17), (1, 5))


EINX = {"alibi", "t5_bias", "dynamic_bias", "hyper_connections", "forgetting", "max_attend_past"}
"""What einx computes, which compiles each operation for sizes that are known."""


def language_model(layers: str = "Decoder", **config: Any) -> Any:
    outer = {k: config.pop(k) for k in tuple(config) if k in OUTER}

    def build() -> nn.Module:

        attn = getattr(xt, layers)(dim=32, depth=2, heads=4, attn_dim_head=8, **config)
        return xt.TransformerWrapper(
            num_tokens=50, max_seq_len=64, attn_layers=attn, **outer
        ).eval()

    return build


OUTER = (
    "use_abs_pos_emb",
    "num_memory_tokens",
    "scaled_sinu_pos_emb",
    "emb_dim",
    "return_only_embed",
    "l2norm_embed",
    "post_emb_norm",
    "tie_embedding",
    "recycling",
    "num_cls_tokens",
)
for name, config in (
    ("decoder", {}),
    ("encoder", {"layers": "Encoder"}),
    ("flash", {"attn_flash": True}),
    ("rotary", {"rotary_pos_emb": True, "use_abs_pos_emb": False}),
    ("rotary_xpos", {"rotary_xpos": True}),
    ("alibi", {"alibi_pos_bias": True, "alibi_num_heads": 2}),
    ("t5_bias", {"rel_pos_bias": True}),
    ("dynamic_bias", {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": True}),
    (
        "rmsnorm_swish_glu",
        {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True, "ff_no_bias": True},
    ),
    ("scalenorm", {"use_scalenorm": True}),
    ("qk_norm", {"attn_qk_norm": True}),
    ("one_kv_head", {"attn_one_kv_head": True}),
    ("kv_heads", {"attn_kv_heads": 2}),
    ("memory_tokens", {"num_memory_tokens": 4}),
    ("memory_key_values", {"attn_num_mem_kv": 3}),
    ("talking_heads", {"attn_pre_talking_heads": True, "attn_post_talking_heads": True}),
    ("sparse_topk", {"attn_sparse_topk": 4}),
    ("sandwich", {"sandwich_coef": 1}),
    ("macaron", {"macaron": True}),
    ("shift_tokens", {"shift_tokens": 1}),
    ("residual_attn", {"residual_attn": True}),
    ("gate_residual", {"gate_residual": True}),
    ("gate_values", {"attn_gate_values": True}),
    ("on_attn", {"attn_on_attn": True}),
    ("sinusoidal", {"scaled_sinu_pos_emb": True}),
    ("l2norm_embed", {"l2norm_embed": True}),
    ("post_emb_norm", {"post_emb_norm": True}),
    ("relu_squared", {"ff_relu_squared": True}),
    ("softclamp", {"attn_softclamp_logits": True}),
    ("hyper_connections", {"num_residual_streams": 4}),
    ("differential", {"attn_use_cope": False, "attn_laser": True}),
    ("cope", {"attn_use_cope": True, "attn_cope_max_pos": 16}),
    ("forgetting", {"attn_data_dependent_alibi": True}),
    ("max_attend_past", {"attn_max_attend_past": 4}),
    ("polar", {"polar_pos_emb": True}),
):
    refused = "GP200" if name in EINX else ""
    TABLE.add(name, language_model(**config), lambda b, n: (integers(50, b, n),), SIZES, refused)


def masked(b: int, n: int) -> dict[str, Any]:
    return {"x": integers(50, b, n), "mask": integers(2, b, n).bool() | (integers(n, b, n) == 0)}


def vit() -> nn.Module:

    layers = Encoder(dim=32, depth=1, heads=2)
    return ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=5, attn_layers=layers
    ).eval()


def continuous() -> nn.Module:

    layers = Encoder(dim=32, depth=1, heads=2)
    return ContinuousTransformerWrapper(
        dim_in=8, dim_out=5, max_seq_len=64, attn_layers=layers
    ).eval()


def translator() -> nn.Module:

    size = {"num_tokens": 20, "depth": 1, "heads": 2, "max_seq_len": 64}
    options = {f"{k}_{n}": v for k in ("enc", "dec") for n, v in size.items()}
    return xt.XTransformer(dim=32, **options).eval()


def cross() -> nn.Module:

    layers = Decoder(dim=32, depth=1, heads=2, cross_attend=True)
    return TransformerWrapper(num_tokens=20, max_seq_len=64, attn_layers=layers).eval()


TABLE.add("encoder_mask", language_model("Encoder"), masked, SIZES, refused="GP200")
TABLE.add("ViT", vit, image, ((2, 32), (1, 32), (5, 32)))
TABLE.add("continuous", continuous, lambda b, n: (noise(b, n, 8),), SIZES)
TABLE.add(
    "cross_attention",
    cross,
    lambda b, n, m: {"x": integers(20, b, n), "context": noise(b, m, 32)},
    ((2, 12, 7), (3, 17, 4), (1, 5, 9)),
)
TABLE.add(
    "XTransformer_loss",
    translator,
    lambda b, n: (integers(20, b, n), integers(20, b, n + 3)),
    SIZES,
)
