"""Hugging Face architectures as export cases: built from a config, with random weights.

Each factory returns a `Case`: the model in eval mode, positional arguments, keyword arguments, and
`spec(Dim)`, which writes `dynamic_shapes` with the `Dim` class it is given. So one case goes to
`gp.export` with `gp.Dim` and to `torch.export` with `torch.export.Dim`. Nothing is downloaded.

Model outputs need no wrapper: transformers registers every `ModelOutput` with torch's pytree.
Caches are off: `generation.py` shows models with them.

    python examples/huggingface.py llama --layers 4
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers as hf
from torch import Tensor, nn


class Case(NamedTuple):
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: Callable[[type], dict[str, Any]]


def build(cls: type[nn.Module], config: hf.PreTrainedConfig) -> nn.Module:
    """A model with the same random weights every time, and the global generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config).eval()


def tokens(vocab: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(0))


def padding_mask(batch: int, length: int) -> Tensor:
    """Ones, with the last row padded at its end: a mask of ones alone would hide mistakes."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 4 :] = 0
    return mask


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def token_spec(names: tuple[str, ...], positions: int) -> Callable[[type], dict[str, Any]]:
    """Batch and length of every named input, shared between them."""

    def spec(Dim: type) -> dict[str, Any]:
        batch, length = Dim("batch", min=1, max=1024), Dim("length", min=2, max=positions)
        return {name: {0: batch, 1: length} for name in names}

    return spec


def bert(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    vocab: int = 1000,
    batch: int = 2,
    length: int = 16,
    positions: int = 512,
) -> Case:
    config = hf.BertConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
    )
    inputs = {
        "input_ids": tokens(vocab, batch, length),
        "attention_mask": padding_mask(batch, length),
    }
    return Case(build(hf.BertModel, config), (), inputs, token_spec(tuple(inputs), positions))


def gpt2(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    vocab: int = 1000,
    batch: int = 2,
    length: int = 16,
    positions: int = 1024,
) -> Case:
    config = hf.GPT2Config(
        vocab_size=vocab,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        n_positions=positions,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    inputs = {
        "input_ids": tokens(vocab, batch, length),
        "attention_mask": padding_mask(batch, length),
    }
    return Case(build(hf.GPT2LMHeadModel, config), (), inputs, token_spec(tuple(inputs), positions))


def llama(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int | None = None,
    vocab: int = 1000,
    batch: int = 2,
    length: int = 16,
    positions: int = 2048,
) -> Case:
    config = hf.LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        intermediate_size=hidden * 8 // 3,
        max_position_embeddings=positions,
        use_cache=False,
    )
    inputs = {
        "input_ids": tokens(vocab, batch, length),
        "attention_mask": padding_mask(batch, length),
    }
    model = build(hf.LlamaForCausalLM, config)
    return Case(model, (), inputs, token_spec(tuple(inputs), positions))


def t5(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    vocab: int = 1000,
    batch: int = 2,
    length: int = 16,
    target_length: int = 12,
    positions: int = 2048,
) -> Case:
    """Encoder and decoder of `layers` layers each."""
    config = hf.T5Config(
        vocab_size=vocab,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=4 * hidden,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        use_cache=False,
        decoder_start_token_id=0,
    )
    inputs = {
        "input_ids": tokens(vocab, batch, length),
        "attention_mask": padding_mask(batch, length),
        "decoder_input_ids": tokens(vocab, batch, target_length),
    }

    def spec(Dim: type) -> dict[str, Any]:
        size = Dim("batch", min=1, max=1024)
        source, target = (Dim(name, min=2, max=positions) for name in ("source", "target"))
        return {
            "input_ids": {0: size, 1: source},
            "attention_mask": {0: size, 1: source},
            "decoder_input_ids": {0: size, 1: target},
        }

    return Case(build(hf.T5ForConditionalGeneration, config), (), inputs, spec)


def vit(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    image: int = 64,
    patch: int = 16,
    batch: int = 2,
    classes: int = 10,
) -> Case:
    """Only the batch is dynamic: the position table fixes the image size."""
    config = hf.ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=patch,
        num_labels=classes,
    )
    inputs = {"pixel_values": noise(batch, 3, image, image)}

    def spec(Dim: type) -> dict[str, Any]:
        return {"pixel_values": {0: Dim("batch", min=1, max=1024)}}

    return Case(build(hf.ViTForImageClassification, config), (), inputs, spec)


def whisper(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    vocab: int = 1000,
    mel_bins: int = 16,
    frames: int = 64,
    batch: int = 2,
    target_length: int = 12,
    positions: int = 448,
) -> Case:
    """Batch and decoder length are dynamic; the encoder takes exactly `frames` mel frames."""
    config = hf.WhisperConfig(
        vocab_size=vocab,
        d_model=hidden,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * hidden,
        decoder_ffn_dim=4 * hidden,
        num_mel_bins=mel_bins,
        max_source_positions=frames // 2,
        max_target_positions=positions,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    inputs = {
        "input_features": noise(batch, mel_bins, frames),
        "decoder_input_ids": tokens(vocab, batch, target_length),
    }

    def spec(Dim: type) -> dict[str, Any]:
        size = Dim("batch", min=1, max=1024)
        return {
            "input_features": {0: size},
            "decoder_input_ids": {0: size, 1: Dim("target", min=2, max=positions)},
        }

    return Case(build(hf.WhisperForConditionalGeneration, config), (), inputs, spec)


def mamba(
    layers: int = 2,
    hidden: int = 64,
    state: int = 8,
    vocab: int = 1000,
    batch: int = 2,
    length: int = 8,
) -> Case:
    """A selective state-space model; its scan is a Python loop over time: the length is fixed."""
    config = hf.MambaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        state_size=state,
        num_hidden_layers=layers,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    inputs = {"input_ids": tokens(vocab, batch, length)}

    def spec(Dim: type) -> dict[str, Any]:
        return {"input_ids": {0: Dim("batch", min=1, max=1024)}}

    return Case(build(hf.MambaForCausalLM, config), (), inputs, spec)


CASES: dict[str, Callable[..., Case]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
    "mamba": mamba,
}

# Sizes within each case's spec that differ from the defaults in every dynamic dim.
OTHER_SIZES: dict[str, dict[str, int]] = {
    "bert": {"batch": 3, "length": 21},
    "gpt2": {"batch": 3, "length": 21},
    "llama": {"batch": 3, "length": 21},
    "t5": {"batch": 3, "length": 21, "target_length": 5},
    "vit": {"batch": 3},
    "whisper": {"batch": 3, "target_length": 5},
    "mamba": {"batch": 3},
}


def main() -> None:
    import graphport as gp

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=sorted(CASES))
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()

    build_case = CASES[options.model]
    case = build_case(layers=options.layers)
    program = gp.export(case.model, case.args, case.kwargs, dynamic_shapes=case.spec(gp.Dim))
    print(program.graph)
    run = program.module()
    for sizes in ({}, OTHER_SIZES[options.model]):
        inputs = build_case(layers=options.layers, **sizes).kwargs
        with torch.no_grad():
            torch.testing.assert_close(run(**inputs)[0], case.model(**inputs)[0])
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in inputs.items())
        print(f"equal to eager at {shapes}")
    print(f"{options.model}: {len(program.graph.nodes)} nodes")


if __name__ == "__main__":
    main()
