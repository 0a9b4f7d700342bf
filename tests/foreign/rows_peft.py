"""PEFT: adapters on language models of transformers, and merged ones."""

from __future__ import annotations

from typing import Any

import peft
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from tests.foreign.rows import Table, integers

TABLE = Table()
SIZES = ((2, 12), (3, 17), (1, 5))


def llama() -> Any:

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=50, num_attention_heads=4, num_key_value_heads=2, **size)
    return LlamaForCausalLM(config)


def bert() -> Any:

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=50, num_attention_heads=4, **size))


def adapted(name: str, model: Any = llama, merge: bool = False, **config: Any) -> Any:
    def build() -> nn.Module:

        given = dict(config)
        given.setdefault("task_type", "CAUSAL_LM" if model is llama else "SEQ_CLS")
        made = peft.get_peft_model(model(), getattr(peft, name)(**given))
        with torch.no_grad():
            for n, p in made.named_parameters():
                if "lora_B" in n or "vera_lambda" in n:
                    p.normal_()
        return (made.merge_and_unload() if merge else made).eval()

    return build


def tokens(b: int, n: int) -> dict[str, Any]:
    return {"input_ids": integers(50, b, n), "attention_mask": torch.ones(b, n, dtype=torch.int64)}


QV = {"target_modules": ["q_proj", "v_proj"]}
BERT = {"target_modules": ["query", "value"]}
add = TABLE.add
for name, config in (
    ("LoraConfig", {"r": 4, **QV}),
    ("AdaLoraConfig", {"init_r": 4, "target_r": 2, "total_step": 10, **QV}),
    ("LoHaConfig", {"r": 4, **QV}),
    ("LoKrConfig", {"r": 4, **QV}),
    (
        "IA3Config",
        {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
    ("OFTConfig", {"r": 0, "oft_block_size": 4, **QV}),
    ("BOFTConfig", {"boft_block_size": 4, **QV}),
    ("VeraConfig", {"r": 4, **QV}),
    ("FourierFTConfig", {"n_frequency": 10, **QV}),
    ("HRAConfig", {"r": 4, **QV}),
    ("PromptTuningConfig", {"num_virtual_tokens": 4}),
    ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    ("PromptEncoderConfig", {"num_virtual_tokens": 4, "encoder_hidden_size": 16}),
    ("VBLoRAConfig", {"r": 4, "num_vectors": 8, "vector_length": 16, "topk": 2, **QV}),
    ("MissConfig", {"r": 4, **QV}),
    ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
):
    add(name, adapted(name, **config), tokens, SIZES)
add("LoraConfig_dora", adapted("LoraConfig", r=4, use_dora=True, **QV), tokens, SIZES)
add("LoraConfig_rslora", adapted("LoraConfig", r=4, use_rslora=True, **QV), tokens, SIZES)
add("LoraConfig_merged", adapted("LoraConfig", r=4, merge=True, **QV), tokens, SIZES)
add("LoraConfig_bert", adapted("LoraConfig", bert, r=4, **BERT), tokens, SIZES)
add(
    "LoraConfig_embedding",
    adapted("LoraConfig", r=4, target_modules=["embed_tokens", "q_proj"]),
    tokens,
    SIZES,
)
