"""Hugging Face architectures for the sweep: a model class, what its config needs, its inputs.

Every model is tiny and has random weights. A row's inputs are a function of the batch and a length,
so that a program captured at one size can be run at others; `dynamic` says which dims are open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers as hf
from torch import Tensor, nn

VOCAB = 99
IMAGE = 32

# Configs know these under their own names through `attribute_map`.
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": IMAGE,
    "patch_size": 8,
    "num_channels": 3,
}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

Inputs = Callable[[int, int], dict[str, Any]]


class Row(NamedTuple):
    model: str
    base: dict[str, Any]
    inputs: Inputs
    dynamic: dict[str, dict[int, str]]
    config: dict[str, Any] = {}
    lengths: tuple[int, int] = (8, 11)
    """At capture, and for the other runs."""
    least: int = 1
    """The smallest batch: transformers compares some batches with 1, and branches."""
    most: int = 60
    """The largest length."""


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def tokens(batch: int, length: int, vocab: int = VOCAB) -> Tensor:
    return torch.randint(3, vocab, (batch, length), generator=generator())


def mask(batch: int, length: int) -> Tensor:
    """Ones, with the last row padded at its end."""
    ones = torch.ones(batch, length, dtype=torch.int64)
    ones[-1, length - length // 4 :] = 0
    return ones


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator())


# Inputs by kind of model.


def text(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch, length), "attention_mask": mask(batch, length)}


def unmasked(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch, length)}


def seq2seq(batch: int, length: int) -> dict[str, Any]:
    return {**text(batch, length), "decoder_input_ids": tokens(batch, length + 1)}


def image(batch: int, length: int) -> dict[str, Any]:
    return {"pixel_values": noise(batch, 3, IMAGE, IMAGE)}


def scene(batch: int, length: int) -> dict[str, Any]:
    """Images whose size is open, in steps of 32 pixels."""
    return {"pixel_values": noise(batch, 3, 32 * length, 32 * length)}


def video(batch: int, length: int) -> dict[str, Any]:
    return {"pixel_values": noise(batch, 4, 3, IMAGE, IMAGE)}


def wave(batch: int, length: int) -> dict[str, Any]:
    return {"input_values": noise(batch, 400 + 40 * length)}


def caption(batch: int, length: int) -> dict[str, Any]:
    return {**text(batch, length), **image(batch, length)}


# A length that stays fixed: the model's own code loops over it, or asks for it as an int.
BATCHES = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch"}}
TOKENS = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
IDS = {"input_ids": {0: "batch", 1: "length"}}
PAIRS = {**TOKENS, "decoder_input_ids": {0: "batch", 1: "target"}}
IMAGES = {"pixel_values": {0: "batch"}}
SCENES = {"pixel_values": {0: "batch", 2: "32*height", 3: "32*width"}}
WAVES = {"input_values": {0: "batch", 1: "samples"}}
CAPTIONS = {**TOKENS, **IMAGES}


def lm(name: str, **config: Any) -> Row:
    return Row(name, TEXT, text, TOKENS, {"use_cache": False, **config})


def encoder(name: str, **config: Any) -> Row:
    return Row(name, TEXT, text, TOKENS, config)


def pair(name: str, **config: Any) -> Row:
    return Row(name, SEQ2SEQ, seq2seq, PAIRS, {"use_cache": False, **config})


def vision(name: str, **config: Any) -> Row:
    return Row(name, VISION, image, IMAGES, config)


def convnet(name: str, **config: Any) -> Row:
    return Row(name, {"num_channels": 3}, scene, SCENES, config, lengths=(2, 3))


KV = {"num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCAB,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}

ROWS: dict[str, Row] = {
    # Encoders of text
    "distilbert": encoder("DistilBertModel"),
    "roberta": encoder("RobertaModel"),
    "xlm_roberta": encoder("XLMRobertaForTokenClassification"),
    "camembert": encoder("CamembertModel"),
    "albert": encoder("AlbertModel", embedding_size=16),
    "electra": encoder("ElectraModel", embedding_size=16),
    "deberta": encoder("DebertaModel", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "deberta_v2": encoder("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "mpnet": encoder("MPNetModel"),
    "funnel": Row(
        "FunnelModel",
        {
            "vocab_size": VOCAB,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
        },
        text,
        BATCHES,
        lengths=(8, 8),
    ),
    "convbert": encoder("ConvBertModel", embedding_size=32),
    "squeezebert": encoder("SqueezeBertModel", embedding_size=32),
    "mobilebert": encoder("MobileBertModel", embedding_size=32, intra_bottleneck_size=32),
    "fnet": Row("FNetModel", TEXT, unmasked, IDS),
    "nystromformer": encoder("NystromformerModel", segment_means_seq_len=64),
    "xlnet": Row(
        "XLNetModel",
        {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
        text,
        TOKENS,
        {"use_mems_eval": False},
    ),
    "big_bird": encoder("BigBirdModel", attention_type="original_full"),
    "roformer": encoder("RoFormerModel", embedding_size=32),
    "rembert": encoder("RemBertModel", input_embedding_size=32, output_embedding_size=32),
    "ernie": encoder("ErnieModel"),
    "esm": encoder("EsmModel", position_embedding_type="rotary", mask_token_id=3),
    "ibert": encoder("IBertModel"),
    "flaubert": encoder("FlaubertModel", n_words=VOCAB, emb_dim=32, n_layers=2, n_heads=4),
    "xlm": encoder("XLMModel", n_words=VOCAB, emb_dim=32, n_layers=2, n_heads=4),
    "splinter": encoder("SplinterModel"),
    "data2vec_text": encoder("Data2VecTextModel"),
    "modernbert": encoder("ModernBertModel", global_attn_every_n_layers=2, local_attention=8),
    "canine": Row(
        "CanineModel",
        TEXT,
        text,
        BATCHES,
        {"downsampling_rate": 4, "local_transformer_stride": 8},
        lengths=(8, 8),
    ),
    "reformer": Row(
        "ReformerModel",
        TEXT,
        unmasked,
        {"input_ids": {0: "batch", 1: "4*length"}},
        {
            "attn_layers": ["local", "local"],
            "axial_pos_embds": False,
            "feed_forward_size": 64,
            "attention_head_size": 8,
            "local_attn_chunk_length": 4,
            "num_buckets": None,
            "is_decoder": False,
            "use_cache": False,
            "max_position_embeddings": 512,
        },
        lengths=(8, 12),
    ),
    "layoutlm": Row(
        "LayoutLMModel",
        TEXT,
        lambda b, n: {
            **text(b, n),
            "bbox": torch.randint(0, 50, (b, n, 4), generator=generator()).sort(-1)[0],
        },
        {**TOKENS, "bbox": {0: "batch", 1: "length"}},
        {"max_2d_position_embeddings": 128},
    ),
    # Decoders of text
    "gpt_neo": lm("GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]], window_size=7),
    "gpt_neox": lm("GPTNeoXForCausalLM"),
    "gptj": lm("GPTJForCausalLM", rotary_dim=4),
    "gpt_bigcode": lm("GPTBigCodeForCausalLM"),
    "openai_gpt": Row("OpenAIGPTLMHeadModel", TEXT, text, TOKENS),
    "ctrl": lm("CTRLLMHeadModel", dff=64),
    "codegen": lm("CodeGenForCausalLM", rotary_dim=4),
    "opt": lm("OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32),
    "bloom": lm("BloomForCausalLM"),
    "falcon": lm("FalconForCausalLM"),
    "falcon_alibi": lm("FalconForCausalLM", alibi=True, new_decoder_architecture=False),
    "mpt": lm("MptForCausalLM", d_model=32, n_heads=4, n_layers=2, expansion_ratio=2),
    "mistral": lm("MistralForCausalLM", **KV, sliding_window=4),
    "mixtral": lm("MixtralForCausalLM", **KV, num_local_experts=4, sliding_window=None),
    "qwen2": lm("Qwen2ForCausalLM", **KV),
    "qwen2_moe": lm("Qwen2MoeForCausalLM", **KV, **EXPERTS, shared_expert_intermediate_size=16),
    "qwen3": lm("Qwen3ForCausalLM", **KV, head_dim=8),
    "qwen3_moe": lm("Qwen3MoeForCausalLM", **KV, **EXPERTS, head_dim=8),
    "gemma": lm("GemmaForCausalLM", **KV, head_dim=8),
    "gemma2": lm("Gemma2ForCausalLM", **KV, head_dim=8, sliding_window=4),
    "gemma3": lm("Gemma3ForCausalLM", **KV, head_dim=8, sliding_window=4),
    "phi": lm("PhiForCausalLM"),
    "phi3": lm("Phi3ForCausalLM", **KV),
    "phimoe": lm("PhimoeForCausalLM", **KV, num_local_experts=4),
    "stablelm": lm("StableLmForCausalLM", **KV),
    "starcoder2": lm("Starcoder2ForCausalLM", **KV),
    "cohere": lm("CohereForCausalLM", **KV),
    "cohere2": lm("Cohere2ForCausalLM", **KV, sliding_window=4),
    "olmo": lm("OlmoForCausalLM", **KV),
    "olmo2": lm("Olmo2ForCausalLM", **KV),
    "olmoe": lm("OlmoeForCausalLM", **KV, **EXPERTS),
    "granite": lm("GraniteForCausalLM", **KV),
    "granitemoe": lm("GraniteMoeForCausalLM", **KV, num_local_experts=4, num_experts_per_tok=2),
    "glm": lm("GlmForCausalLM", **KV, head_dim=8),
    "nemotron": lm("NemotronForCausalLM", **KV),
    "persimmon": lm("PersimmonForCausalLM"),
    "helium": lm("HeliumForCausalLM", **KV, head_dim=8),
    "smollm3": lm("SmolLM3ForCausalLM", **KV),
    "deepseek_v3": lm(
        "DeepseekV3ForCausalLM",
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "gpt_oss": lm(
        "GptOssForCausalLM",
        **KV,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "biogpt": lm("BioGptForCausalLM"),
    "xglm": lm("XGLMForCausalLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=64),
    "llama4_text": lm(
        "Llama4ForCausalLM",
        **KV,
        head_dim=8,
        num_local_experts=2,
        intermediate_size_mlp=64,
        interleave_moe_layer_step=1,
        num_experts_per_tok=1,
    ),
    # Recurrent and state-space
    "mamba2": Row(
        "Mamba2ForCausalLM",
        TEXT,
        unmasked,
        {"input_ids": {0: "batch"}},
        {
            "use_cache": False,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "expand": 2,
            "n_groups": 2,
            "chunk_size": 4,
        },
        lengths=(8, 8),
    ),
    "falcon_mamba": Row(
        "FalconMambaForCausalLM",
        TEXT,
        unmasked,
        {"input_ids": {0: "batch"}},
        {"use_cache": False, "state_size": 8},
        lengths=(8, 8),
    ),
    "rwkv": Row(
        "RwkvForCausalLM",
        TEXT,
        unmasked,
        {"input_ids": {0: "batch"}},
        {"use_cache": False, "context_length": 64, "attention_hidden_size": 32},
        lengths=(8, 8),
    ),
    "recurrent_gemma": Row(
        "RecurrentGemmaForCausalLM",
        TEXT,
        unmasked,
        {"input_ids": {0: "batch"}},
        {
            "use_cache": False,
            "lru_width": 32,
            "attention_window_size": 16,
            "num_key_value_heads": 2,
            "head_dim": 8,
        },
        least=2,
        lengths=(8, 8),
    ),
    "jamba": Row(
        "JambaForCausalLM",
        TEXT,
        text,
        BATCHES,
        {
            "use_cache": False,
            **KV,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
        lengths=(8, 8),
    ),
    # Encoder and decoder
    "bart": pair("BartForConditionalGeneration"),
    "mbart": pair("MBartForConditionalGeneration"),
    "pegasus": pair("PegasusForConditionalGeneration"),
    "pegasus_x": Row(
        "PegasusXForConditionalGeneration",
        SEQ2SEQ,
        seq2seq,
        {
            "input_ids": {0: "batch", 1: "8*length"},
            "attention_mask": {0: "batch", 1: "8*length"},
            "decoder_input_ids": {0: "batch", 1: "target"},
        },
        {"use_cache": False, "block_size": 8, "num_global_tokens": 4},
        lengths=(16, 24),
    ),
    "marian": pair("MarianMTModel", decoder_vocab_size=VOCAB),
    "blenderbot": pair("BlenderbotForConditionalGeneration"),
    "blenderbot_small": pair("BlenderbotSmallForConditionalGeneration"),
    "m2m_100": pair("M2M100ForConditionalGeneration"),
    "plbart": pair("PLBartForConditionalGeneration"),
    "mvp": pair("MvpForConditionalGeneration"),
    "bigbird_pegasus": pair(
        "BigBirdPegasusForConditionalGeneration", attention_type="original_full"
    ),
    "prophetnet": Row(
        "ProphetNetForConditionalGeneration",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "ngram": 2,
            "use_cache": False,
            "pad_token_id": 0,
            "max_position_embeddings": 64,
        },
        seq2seq,
        PAIRS,
    ),
    "mt5": Row(
        "MT5ForConditionalGeneration",
        {
            **TEXT,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        seq2seq,
        PAIRS,
        {"use_cache": False},
    ),
    "longt5": Row(
        "LongT5ForConditionalGeneration",
        {
            **TEXT,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        seq2seq,
        PAIRS,
        # It pads to blocks of 5 only what is no multiple of 5: 60 takes another branch.
        {"use_cache": False, "local_radius": 4},
        most=59,
    ),
    "umt5": Row(
        "UMT5ForConditionalGeneration",
        {
            **TEXT,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        seq2seq,
        PAIRS,
        {"use_cache": False},
    ),
    # Vision
    "deit": vision("DeiTForImageClassification"),
    "beit": vision("BeitForImageClassification", use_relative_position_bias=True),
    "dinov2": vision("Dinov2Model"),
    "dinov2_reg": vision("Dinov2WithRegistersModel"),
    "dinov3": vision("DINOv3ViTModel"),
    "vit_mae": vision("ViTMAEModel", mask_ratio=0.0),
    "vit_msn": vision("ViTMSNModel"),
    "ijepa": vision("IJepaModel"),
    "hiera": Row(
        "HieraModel",
        {},
        image,
        IMAGES,
        {
            "embed_dim": 8,
            "image_size": [32, 32],
            "depths": [1, 1],
            "num_heads": [1, 2],
            "patch_stride": [4, 4],
            "patch_kernel": [7, 7],
            "patch_padding": [3, 3],
            "num_query_pool": 1,
            "masked_unit_size": [2, 2],
        },
    ),
    "swin": Row(
        "SwinModel",
        {},
        image,
        IMAGES,
        {
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 2,
            "image_size": IMAGE,
            "patch_size": 4,
        },
    ),
    "swinv2": Row(
        "Swinv2Model",
        {},
        image,
        IMAGES,
        {
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 2,
            "image_size": IMAGE,
            "patch_size": 4,
        },
    ),
    "donut_swin": Row(
        "DonutSwinModel",
        {},
        image,
        IMAGES,
        {
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 2,
            "image_size": IMAGE,
            "patch_size": 4,
        },
    ),
    "convnext": convnet("ConvNextModel", **STAGES),
    "convnextv2": convnet("ConvNextV2Model", **STAGES),
    "resnet": convnet("ResNetModel", embedding_size=8, **STAGES),
    "regnet": convnet("RegNetModel", embedding_size=8, groups_width=8, **STAGES),
    "mobilenet_v1": convnet("MobileNetV1Model", depth_multiplier=0.25, min_depth=8),
    "mobilenet_v2": Row("MobileNetV2Model", {}, image, IMAGES, {"depth_multiplier": 0.25}),
    "efficientnet": convnet(
        "EfficientNetModel",
        width_coefficient=0.25,
        depth_coefficient=0.25,
        hidden_dim=320,
        num_block_repeats=[1, 1, 1, 1, 1, 1, 1],
    ),
    "bit": convnet("BitModel", embedding_size=8, num_groups=4, **STAGES),
    "poolformer": convnet("PoolFormerModel", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
    "focalnet": convnet(
        "FocalNetModel",
        image_size=IMAGE,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        focal_levels=[1, 1, 1, 1],
        focal_windows=[3, 3, 3, 3],
    ),
    "pvt": Row(
        "PvtModel",
        {},
        image,
        IMAGES,
        {
            "image_size": IMAGE,
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "num_encoder_blocks": 4,
            "num_attention_heads": [1, 2, 2, 4],
        },
    ),
    "pvt_v2": convnet(
        "PvtV2Model",
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
    ),
    "swiftformer": convnet("SwiftFormerModel", depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 32]),
    "mobilevit": Row(
        "MobileViTModel",
        {},
        image,
        IMAGES,
        {
            "hidden_sizes": [16, 16, 32],
            "image_size": IMAGE,
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 32, 32],
        },
    ),
    "mobilevitv2": convnet("MobileViTV2Model", image_size=IMAGE, width_multiplier=0.25),
    "segformer": convnet(
        "SegformerForSemanticSegmentation",
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    ),
    "glpn": convnet(
        "GLPNForDepthEstimation",
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    ),
    "upernet": convnet(
        "UperNetForSemanticSegmentation",
        hidden_size=16,
        auxiliary_channels=16,
        auxiliary_in_channels=16,
        backbone_config=lambda: hf.ConvNextConfig(
            **STAGES, out_features=["stage1", "stage2", "stage3", "stage4"]
        ),
    ),
    "dpt": vision(
        "DPTForDepthEstimation",
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=8,
        is_hybrid=False,
    ),
    "depth_anything": Row(
        "DepthAnythingForDepthEstimation",
        {},
        image,
        IMAGES,
        {
            "patch_size": 8,
            "reassemble_hidden_size": 32,
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 8,
            "head_hidden_size": 8,
            "reassemble_factors": [4, 2, 1, 0.5],
            "backbone_config": lambda: hf.Dinov2Config(
                **{**VISION, "num_hidden_layers": 4},
                out_indices=[1, 2, 3, 4],
                apply_layernorm=True,
                reshape_hidden_states=False,
            ),
        },
    ),
    "yolos": vision("YolosForObjectDetection", num_detection_tokens=5, image_size=[32, 32]),
    "detr": Row(
        "DetrForObjectDetection",
        SEQ2SEQ,
        scene,
        SCENES,
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "num_queries": 5,
            "backbone_config": lambda: hf.ResNetConfig(
                embedding_size=8, **STAGES, out_features=["stage4"]
            ),
        },
        lengths=(2, 3),
    ),
    "conditional_detr": Row(
        "ConditionalDetrForObjectDetection",
        SEQ2SEQ,
        scene,
        SCENES,
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "num_queries": 5,
            "backbone_config": lambda: hf.ResNetConfig(
                embedding_size=8, **STAGES, out_features=["stage4"]
            ),
        },
        lengths=(2, 3),
    ),
    "deformable_detr": Row(
        "DeformableDetrForObjectDetection",
        SEQ2SEQ,
        scene,
        SCENES,
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "num_queries": 5,
            "num_feature_levels": 3,
            "backbone_config": lambda: hf.ResNetConfig(
                embedding_size=8, **STAGES, out_features=["stage2", "stage3", "stage4"]
            ),
        },
        lengths=(2, 3),
    ),
    "rt_detr": Row(
        "RTDetrForObjectDetection",
        {},
        scene,
        {},
        {
            "backbone_config": lambda: hf.RTDetrResNetConfig(
                embedding_size=8,
                **STAGES,
                out_features=["stage2", "stage3", "stage4"],
                layer_type="basic",
            ),
            "encoder_hidden_dim": 32,
            "encoder_in_channels": [16, 16, 32],
            "encoder_ffn_dim": 64,
            "num_queries": 5,
            "decoder_layers": 2,
            "d_model": 32,
            "decoder_in_channels": [32, 32, 32],
            "decoder_attention_heads": 4,
            "encoder_attention_heads": 4,
            "decoder_ffn_dim": 64,
            "num_denoising": 0,
        },
        lengths=(2, 3),
    ),
    "superpoint": Row(
        "SuperPointForKeypointDetection",
        {},
        image,
        {},
        {
            "encoder_hidden_sizes": [8, 8, 16, 16],
            "decoder_hidden_size": 16,
            "descriptor_decoder_dim": 16,
        },
    ),
    "swin2sr": Row(
        "Swin2SRForImageSuperResolution",
        {},
        image,
        IMAGES,
        {
            "image_size": 16,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "patch_size": 1,
            "upscale": 2,
            "upsampler": "pixelshuffle",
        },
    ),
    "videomae": Row("VideoMAEModel", VISION, video, IMAGES, {"num_frames": 4, "tubelet_size": 2}),
    "timesformer": Row("TimesformerModel", VISION, video, IMAGES, {"num_frames": 4}),
    "vivit": Row("VivitModel", VISION, video, IMAGES, {"num_frames": 4, "tubelet_size": [2, 8, 8]}),
    "vjepa2": Row(
        "VJEPA2Model",
        VISION,
        lambda b, n: {"pixel_values_videos": noise(b, 4, 3, IMAGE, IMAGE)},
        {"pixel_values_videos": {0: "batch"}},
        {
            "crop_size": IMAGE,
            "frames_per_clip": 4,
            "tubelet_size": 2,
            "pred_hidden_size": 32,
            "pred_num_attention_heads": 4,
            "pred_num_hidden_layers": 2,
            "pred_num_mask_tokens": 2,
        },
    ),
    # Text and images
    "clip_text": encoder("CLIPTextModel"),
    "clip_vision": vision("CLIPVisionModel"),
    "clip": Row(
        "CLIPModel",
        {},
        caption,
        CAPTIONS,
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
    ),
    "siglip": Row(
        "SiglipModel", {}, caption, CAPTIONS, {"text_config": TEXT, "vision_config": VISION}
    ),
    "siglip_vision": vision("SiglipVisionModel"),
    "chinese_clip": Row(
        "ChineseCLIPModel",
        {},
        caption,
        CAPTIONS,
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
    ),
    "altclip": Row(
        "AltCLIPModel",
        {},
        caption,
        CAPTIONS,
        {"text_config": {**TEXT, "project_dim": 16}, "vision_config": VISION, "projection_dim": 16},
    ),
    "blip": Row(
        "BlipModel",
        {},
        caption,
        CAPTIONS,
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
    ),
    "groupvit": Row(
        "GroupViTModel",
        {},
        caption,
        CAPTIONS,
        {
            "text_config": TEXT,
            "vision_config": {
                **VISION,
                "depths": [1, 1, 1],
                "num_group_tokens": [4, 2, 0],
                "num_output_groups": [4, 2, 2],
            },
            "projection_intermediate_dim": 32,
            "projection_dim": 16,
        },
    ),
    "owlvit": Row(
        "OwlViTModel",
        {},
        caption,
        CAPTIONS,
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
    ),
    "clipseg": Row(
        "CLIPSegForImageSegmentation",
        {},
        caption,
        {},
        {
            "text_config": TEXT,
            "vision_config": {**VISION, "num_hidden_layers": 3},
            "projection_dim": 16,
            "reduce_dim": 8,
            "extract_layers": [0, 1, 2],
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 16,
        },
    ),
    "flava": Row(
        "FlavaModel",
        {},
        caption,
        CAPTIONS,
        {
            "text_config": TEXT,
            "image_config": VISION,
            "multimodal_config": {**VISION},
            "image_codebook_config": {},
            "projection_dim": 16,
            "hidden_size": 32,
        },
    ),
    "sam": Row(
        "SamModel",
        {},
        lambda b, n: {"pixel_values": noise(b, 3, 32, 32), "input_points": noise(b, 1, n, 2)},
        {"pixel_values": {0: "batch"}, "input_points": {0: "batch", 2: "points"}},
        {
            "vision_config": {
                **VISION,
                "output_channels": 16,
                "global_attn_indexes": [1],
                "window_size": 2,
                "num_pos_feats": 8,
                "mlp_dim": 64,
            },
            "prompt_encoder_config": {
                "hidden_size": 16,
                "image_size": 32,
                "patch_size": 8,
                "mask_input_channels": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 16,
                "mlp_dim": 32,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 16,
                "num_hidden_layers": 2,
            },
        },
    ),
    # Sound
    "wav2vec2": Row("Wav2Vec2ForCTC", SPEECH, wave, WAVES),
    "hubert": Row("HubertModel", SPEECH, wave, WAVES),
    "wavlm": Row("WavLMModel", SPEECH, wave, WAVES),
    "data2vec_audio": Row("Data2VecAudioModel", SPEECH, wave, WAVES),
    "unispeech": Row("UniSpeechModel", SPEECH, wave, WAVES),
    "sew": Row("SEWModel", SPEECH, wave, WAVES, {"squeeze_factor": 2}),
    "wav2vec2_conformer": Row("Wav2Vec2ConformerModel", SPEECH, wave, WAVES),
    "audio_spectrogram": Row(
        "ASTModel",
        VISION,
        lambda b, n: {"input_values": noise(b, 24, 16)},
        {"input_values": {0: "batch"}},
        {"max_length": 24, "num_mel_bins": 16, "frequency_stride": 8, "time_stride": 8},
    ),
    "speech_to_text": Row(
        "Speech2TextForConditionalGeneration",
        SEQ2SEQ,
        lambda b, n: {"input_features": noise(b, 4 * n, 8), "decoder_input_ids": tokens(b, n)},
        {
            "input_features": {0: "batch", 1: "4*frames"},
            "decoder_input_ids": {0: "batch", 1: "target"},
        },
        {
            "use_cache": False,
            "input_feat_per_channel": 8,
            "max_source_positions": 256,
            "max_target_positions": 64,
            "conv_channels": 16,
            "num_conv_layers": 2,
        },
    ),
    "clap_text": encoder("ClapTextModel"),
    # Other inputs
    "perceiver": Row(
        "PerceiverForMaskedLM",
        {
            "vocab_size": VOCAB,
            "d_model": 16,
            "d_latents": 16,
            "num_latents": 4,
            "num_self_attends_per_block": 1,
            "num_blocks": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "max_position_embeddings": 16,
            "qk_channels": 16,
            "v_channels": 16,
        },
        lambda b, n: {"inputs": tokens(b, 16)},
        {"inputs": {0: "batch"}},
    ),
    "time_series": Row(
        "TimeSeriesTransformerModel",
        {
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "use_cache": False,
        },
        lambda b, n: {
            "past_values": noise(b, 10),
            "past_time_features": noise(b, 10, 1),
            "past_observed_mask": torch.ones(b, 10),
            "future_values": noise(b, 4),
            "future_time_features": noise(b, 4, 1),
        },
        {
            k: {0: "batch"}
            for k in (
                "past_values",
                "past_time_features",
                "past_observed_mask",
                "future_values",
                "future_time_features",
            )
        },
    ),
    "informer": Row(
        "InformerModel",
        {
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "use_cache": False,
            "attention_type": "full",
        },
        lambda b, n: {
            "past_values": noise(b, 10),
            "past_time_features": noise(b, 10, 1),
            "past_observed_mask": torch.ones(b, 10),
            "future_values": noise(b, 4),
            "future_time_features": noise(b, 4, 1),
        },
        {
            k: {0: "batch"}
            for k in (
                "past_values",
                "past_time_features",
                "past_observed_mask",
                "future_values",
                "future_time_features",
            )
        },
    ),
    "patchtst": Row(
        "PatchTSTModel",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "ffn_dim": 16,
        },
        lambda b, n: {"past_values": noise(b, 16, 2)},
        {"past_values": {0: "batch"}},
    ),
    "patchtsmixer": Row(
        "PatchTSMixerModel",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_layers": 1,
        },
        lambda b, n: {"past_values": noise(b, 16, 2)},
        {"past_values": {0: "batch"}},
    ),
    "decision": Row(
        "DecisionTransformerModel",
        {
            "state_dim": 5,
            "act_dim": 3,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "max_ep_len": 32,
        },
        lambda b, n: {
            "states": noise(b, n, 5),
            "actions": noise(b, n, 3),
            "rewards": noise(b, n, 1),
            "returns_to_go": noise(b, n, 1),
            "timesteps": torch.arange(n).expand(b, n).clone(),
            "attention_mask": mask(b, n),
        },
        {
            k: {0: "batch", 1: "length"}
            for k in (
                "states",
                "actions",
                "rewards",
                "returns_to_go",
                "timesteps",
                "attention_mask",
            )
        },
    ),
}


# Their Python branches on the data of a tensor or loops over it; torch.export refuses them as well.
REFUSED: dict[str, Row] = {
    "longformer": encoder("LongformerModel", attention_window=4),
    "fsmt": pair(
        "FSMTForConditionalGeneration",
        langs=["en", "de"],
        src_vocab_size=VOCAB,
        tgt_vocab_size=VOCAB,
    ),
    "led": pair(
        "LEDForConditionalGeneration",
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    "switch": Row(
        "SwitchTransformersForConditionalGeneration",
        {
            **TEXT,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        seq2seq,
        PAIRS,
        {
            "use_cache": False,
            "num_experts": 2,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
        },
    ),
    "vilt": Row("ViltModel", {**TEXT, **VISION}, caption, CAPTIONS),
    "encodec": Row(
        "EncodecModel",
        {},
        lambda b, n: {"input_values": noise(b, 1, 320 * n)},
        {"input_values": {0: "batch"}},
        {
            "num_filters": 4,
            "hidden_size": 16,
            "codebook_size": 16,
            "codebook_dim": 16,
            "upsampling_ratios": [4, 4],
            "num_lstm_layers": 1,
            "target_bandwidths": [12.0],
        },
    ),
}


def build(row: Row) -> nn.Module:
    kind = getattr(hf, row.model)
    made = {k: v() if callable(v) else v for k, v in {**row.base, **row.config}.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(kind.config_class(**made)).eval()


def others(row: Row) -> list[dict[str, Any]]:
    """Inputs of other sizes, one of them a batch of one."""
    if not row.dynamic:
        return []
    return [row.inputs(row.least, row.lengths[0]), row.inputs(3, row.lengths[1])]


def spec(row: Row, Dim: Any) -> dict[str, Any] | None:
    """`dynamic_shapes` with the Dim class given: "batch", or a multiple such as "32*height"."""
    dims: dict[str, Any] = {}

    def dim(text: str) -> Any:
        factor, _, name = text.rpartition("*")
        if name not in dims:
            # transformers' attention branches on a length of 1: that is another program.
            limits = {"batch": (row.least, 60), "samples": (400, 4000)}
            least, most = limits.get(name, (2, row.most))
            dims[name] = Dim(name, min=least, max=most)
        return int(factor) * dims[name] if factor else dims[name]

    if not row.dynamic:
        return None
    return {key: {d: dim(t) for d, t in open_.items()} for key, open_ in row.dynamic.items()}
