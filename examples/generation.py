"""Text from a saved ONNX file: one program reads the prompt and then writes token by token.

A decoder from Hugging Face is exported with its key/value cache as an input and an output. How many
tokens are in the cache and how many are new are open, so the same file takes the whole prompt with
an empty cache, and afterwards one token at a time. Generating needs ONNX Runtime and numpy only.
The model is tiny and has random weights; nothing is downloaded.

    python examples/generation.py --model gemma3 --tokens 20
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
import transformers as hf
from torch import nn

import graphport as gp

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "gpt2": ("GPT2", {}),
    "qwen2": ("Qwen2", {}),
    "phi3": ("Phi3", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mistral": ("Mistral", {"sliding_window": 6}),
    "gemma2": ("Gemma2", {"sliding_window": 6, "head_dim": 8}),
    "gemma3": (
        "Gemma3Text",
        {
            "sliding_window": 6,
            "head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def build(name: str) -> nn.Module:
    """A model with the same random weights every time."""
    stem, more = MODELS[name]
    config = getattr(hf, f"{stem}Config")(**SMALL, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return hf.AutoModelForCausalLM.from_config(config).eval()


def export(model: nn.Module) -> gp.onnx.ONNXProgram:
    """The model with a cache: batch, tokens so far and new tokens are open."""
    cache = hf.DynamicCache(config=model.config)
    prompt = torch.randint(3, 99, (2, 4))
    with torch.no_grad():
        model(prompt, past_key_values=cache)  # an example of what is in a cache
    batch, new = gp.Dim("batch", min=1), gp.Dim("new", min=1)
    past, window = gp.Dim("past"), gp.Dim("window")
    # Layers with a window hold no more than that; they have a length of their own.
    shapes = [{0: batch, 2: window if layer.is_sliding else past} for layer in cache.layers]
    return gp.onnx.export(
        model,
        kwargs={"input_ids": prompt[:, :2], "past_key_values": cache},
        dynamic_shapes={"input_ids": {0: batch, 1: new}, "past_key_values": shapes},
    )


# From here on, only ONNX Runtime and numpy.

DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


def empty_cache(session: ort.InferenceSession, batch: int) -> dict[str, np.ndarray]:
    """What the cache inputs are before the first token: every length is 0."""
    found = {}
    for given in session.get_inputs():
        if given.name.startswith("past_key_values_"):
            sizes = {"batch": batch, "past": 0, "window": 0}
            shape = [sizes[d] if isinstance(d, str) else d for d in given.shape]
            found[given.name] = np.zeros(shape, DTYPES[given.type])
    return found


def generate(session: ort.InferenceSession, prompt: np.ndarray, tokens: int) -> np.ndarray:
    """The prompt and the most likely tokens after it."""
    names = [output.name for output in session.get_outputs()]
    cache = empty_cache(session, len(prompt))
    sequence, new = prompt, prompt
    for _ in range(tokens):
        found = dict(zip(names, session.run(None, {"input_ids": new, **cache}), strict=True))
        cache = {name: found[name.replace("past_key_values", "present")] for name in cache}
        new = found["logits"][:, -1].argmax(-1)[:, None]
        sequence = np.concatenate([sequence, new], axis=1)
    return sequence


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="llama")
    parser.add_argument("--tokens", type=int, default=12)
    options = parser.parse_args(arguments)
    model = build(options.model)
    prompt = torch.randint(3, 99, (3, 5), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        export(model).save(path)
        session = ort.InferenceSession(path)
        written = generate(session, prompt.numpy(), options.tokens)
    eager = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        eos_token_id=None,
        max_new_tokens=options.tokens,
    )
    for row in written:
        print(*row[: prompt.shape[1]], "->", *row[prompt.shape[1] :])
    if not np.array_equal(written, eager.numpy()):
        raise SystemExit(f"eager generates something else:\n{eager}")
    print(f"{options.model}: {options.tokens} tokens each, the same as model.generate")


if __name__ == "__main__":
    main()
