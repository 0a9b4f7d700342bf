"""Transformers to torch.export and back: the graphs that people really have."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import graphport as gp
from tests.helpers import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")]

SMALL: dict[str, Any] = {"vocab_size": 50}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: transformers.BertModel(
        transformers.BertConfig(
            **SMALL,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SMALL, n_embd=32, n_layer=1, n_head=4, use_cache=False)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SMALL,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            use_cache=False,
        )
    ),
    "t5": lambda: transformers.T5Model(
        transformers.T5Config(
            **SMALL, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, use_cache=False
        )
    ),
}


class First(nn.Module):
    """The first result of a model, called by keywords."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = MODELS[name]().eval()
        self.decodes = name == "t5"

    def forward(self, tokens, mask):
        more = {"decoder_input_ids": tokens} if self.decodes else {}
        return self.model(input_ids=tokens, attention_mask=mask, **more)[0]


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(batch * length).reshape(batch, length) * 7 % 50
    return tokens, torch.ones_like(tokens)


def shapes(Dim: Any) -> dict[str, Any]:
    batch, length = Dim("batch", min=2, max=16), Dim("length", min=2, max=32)
    return {name: {0: batch, 1: length} for name in ("tokens", "mask")}


def agrees(program: Any, model: nn.Module) -> None:
    module = program.module()
    for sizes in ((2, 7), (3, 12)):
        assert_same(module(*inputs(*sizes)), model(*inputs(*sizes)), "results differ", 1e-4, 1e-4)
    with pytest.raises((RuntimeError, AssertionError)):
        module(*inputs(17, 5))


@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_goes_to_torch_and_back(name: str) -> None:
    model = First(name)
    ep = gp.export(model, inputs(2, 7), dynamic_shapes=shapes(gp.Dim))
    there = ep.to_torch()
    agrees(there, model)
    file = io.BytesIO()
    torch.export.save(there, file)
    file.seek(0)
    agrees(torch.export.load(file), model)
    back = gp.from_torch(there)
    back.validate()
    agrees(back, model)
    core = there.run_decompositions()
    agrees(core, model)
    agrees(gp.from_torch(core), model)


@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_comes_from_torch(name: str) -> None:
    model = First(name)
    there = torch.export.export(
        model, inputs(2, 7), dynamic_shapes=shapes(torch.export.Dim), strict=False
    )
    ep = gp.from_torch(there)
    ep.validate()
    assert "tokens: i64[batch, length]" in str(ep)
    agrees(ep, model)
    agrees(ep.run_decompositions(), model)
    agrees(ep.to_torch(), model)
