"""Greedy generation on ONNX Runtime is eager's, token by token."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers as hf
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import graphport as gp
from examples import generation
from tests.huggingface.versions import mask_sizes, since_5

TOKENS = 12  # windows of 6 are full long before
PROMPT = torch.randint(3, 99, (3, 5), generator=torch.Generator().manual_seed(1))
QUICK = ("llama", "gemma3")


def session_of(program: gp.onnx.ONNXProgram) -> ort.InferenceSession:
    return ort.InferenceSession(program.model_proto.SerializeToString())


def eager(model: Any, prompt: torch.Tensor, **more: Any) -> np.ndarray:
    return model.generate(
        prompt, do_sample=False, eos_token_id=None, max_new_tokens=TOKENS, **more
    ).numpy()


def names(values: Any) -> list[str]:
    return [value.name for value in values]


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in generation.MODELS],
)
def test_one_file_reads_the_prompt_and_writes(name: str) -> None:
    model = generation.build(name)
    program = generation.export(model)
    session = session_of(program)
    for prompt in (PROMPT, PROMPT[:1, :1], PROMPT[:2].repeat(1, 2)):
        want = eager(model, prompt, attention_mask=torch.ones_like(prompt))
        assert np.array_equal(generation.generate(session, prompt.numpy(), TOKENS), want)
    assert program.verify().ok


def test_names_of_a_cache() -> None:
    session = session_of(generation.export(generation.build("gemma3")))
    parts = ["0_keys", "0_values", "0_cumulative_length", "1_keys", "1_values"]
    assert names(session.get_inputs()) == ["input_ids", *(f"past_key_values_{p}" for p in parts)]
    assert names(session.get_outputs()) == ["logits", *(f"present_{p}" for p in parts)]
    assert [i.shape for i in session.get_inputs()][1:5] == [
        ["batch", 2, "window", 8],
        ["batch", 2, "window", 8],
        [],
        ["batch", 2, "past", 8],
    ]


def test_the_program_is_called_with_caches() -> None:
    """Tensors in and out, in the user's own classes."""
    model = generation.build("gemma3")
    program = generation.export(model)
    cache = hf.DynamicCache(config=model.config)
    with torch.no_grad():
        model(PROMPT, past_key_values=cache)
    ours, theirs = cache, copy.deepcopy(cache)
    new = PROMPT[:, :1]
    for _ in range(4):
        with torch.no_grad():
            want = model(new, past_key_values=theirs)
        have = program(input_ids=new, past_key_values=ours)
        ours, theirs = have.past_key_values, want.past_key_values
        assert type(ours) is hf.DynamicCache and ours is not cache
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert mask_sizes(ours, 1) == mask_sizes(theirs, 1)
        torch.testing.assert_close(have.logits, want.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.layers[0].keys, theirs.layers[0].keys)
        new = want.logits[:, -1:].argmax(-1)


@pytest.mark.parametrize("name", ["gemma3", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize("given", [True, False], ids=["an empty cache", "no cache"])
def test_the_prompt_alone(name: str, given: bool) -> None:
    """A cache that the model fills, or makes by itself, comes out; shorter than a window, too."""
    model = generation.build(name)
    more = {"past_key_values": hf.DynamicCache(config=model.config)} if given else {}
    batch, length = gp.Dim("batch", min=1), gp.Dim("length", min=1)
    program = gp.onnx.export(
        model,
        kwargs={"input_ids": PROMPT, **more},
        dynamic_shapes={"input_ids": {0: batch, 1: length}},
    )
    report = program.verify()
    assert report.ok and len(report.sizes_tried) > 3
    for prompt in (PROMPT[:1, :1], PROMPT[:, :3], PROMPT.repeat(1, 3)):
        found = program(input_ids=prompt, **copy.deepcopy(more)).past_key_values
        with torch.no_grad():
            want = model(prompt).past_key_values
        assert found.get_seq_length() == want.get_seq_length() == prompt.shape[1]
        assert found.layers[0].keys.shape == want.layers[0].keys.shape


def padded(prompt: torch.Tensor) -> torch.Tensor:
    """A mask that leaves out the first tokens of the last row."""
    mask = torch.ones_like(prompt)
    mask[-1, :2] = 0
    return mask


def test_padding_on_the_left() -> None:
    model = generation.build("llama")
    cache = hf.DynamicCache(config=model.config)
    with torch.no_grad():
        model(PROMPT[:2, :3], past_key_values=cache)
    batch, past, new = gp.Dim("batch", min=1), gp.Dim("past"), gp.Dim("new", min=1)
    with pytest.warns(gp.errors.SizeWarning, match="new \\+ past <= total"):
        program = gp.onnx.export(
            model,
            kwargs={
                "input_ids": PROMPT[:2, :2],
                "attention_mask": padded(PROMPT[:2, :5]),
                "position_ids": torch.tensor([[3, 4], [1, 2]]),
                "past_key_values": cache,
            },
            dynamic_shapes={
                "input_ids": {0: batch, 1: new},
                "attention_mask": {0: batch, 1: gp.Dim("total")},
                "position_ids": {0: batch, 1: new},
                "past_key_values": {0: batch, 2: past},
            },
        )
    session = session_of(program)
    mask = padded(PROMPT).numpy()
    state = generation.empty_cache(session, len(PROMPT))
    sequence, new_ids, seen = PROMPT.numpy(), PROMPT.numpy(), 0
    for _ in range(TOKENS):
        positions = np.maximum(mask.cumsum(-1) - 1, 0)[:, seen:]
        feeds = {"input_ids": new_ids, "attention_mask": mask, "position_ids": positions}
        outputs = session.run(None, {**feeds, **state})
        found = dict(zip(names(session.get_outputs()), outputs, strict=True))
        state = {n: found[n.replace("past_key_values", "present")] for n in state}
        seen = mask.shape[1]
        new_ids = found["logits"][:, -1].argmax(-1)[:, None]
        sequence = np.concatenate([sequence, new_ids], axis=1)
        mask = np.concatenate([mask, np.ones_like(new_ids)], axis=1)
    assert np.array_equal(sequence, eager(model, PROMPT, attention_mask=padded(PROMPT)))
    wrong = {"input_ids": PROMPT, "attention_mask": PROMPT, "position_ids": PROMPT}
    with pytest.raises(RuntimeError, match="new \\+ past <= total does not hold"):
        program(**wrong, past_key_values=cache_of(model, len(PROMPT), 2))


def cache_of(model: Any, batch: int, length: int) -> hf.DynamicCache:
    cache = hf.DynamicCache(config=model.config)
    for layer in cache.layers:
        layer.update(torch.zeros(batch, 2, length, 8), torch.zeros(batch, 2, length, 8))
    return cache


# Encoder and decoder: the first call of the decoder also fills the cache of the encoder.

SEQ2SEQ = {
    "bart": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(
            vocab_size=99,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            max_position_embeddings=64,
        )
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=99,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_encoder_and_decoder(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = SEQ2SEQ[name]().eval()
    batch, source, new = (gp.Dim(n, min=1) for n in ("batch", "source", "new"))
    encoder = gp.onnx.export(
        model.get_encoder(), (PROMPT[:2],), dynamic_shapes=({0: batch, 1: source},)
    )
    states = model.get_encoder()(PROMPT).last_hidden_state.detach()
    empty = hf.EncoderDecoderCache(
        hf.DynamicCache(config=model.config), hf.DynamicCache(config=model.config)
    )
    example = {"encoder_outputs": BaseModelOutput(states[:2]), "decoder_input_ids": PROMPT[:2, :2]}
    shapes: dict[str, Any] = {
        "encoder_outputs": {"last_hidden_state": {0: batch, 1: source}},
        "decoder_input_ids": {0: batch, 1: new},
    }
    first = gp.onnx.export(
        model, kwargs={**example, "past_key_values": copy.deepcopy(empty)}, dynamic_shapes=shapes
    )
    filled = copy.deepcopy(empty)
    with torch.no_grad():
        model(**example, past_key_values=filled)
    shapes["past_key_values"] = {
        "self_attention_cache": {0: batch, 2: gp.Dim("past")},
        "cross_attention_cache": {0: batch, 2: source},
    }
    step = gp.onnx.export(
        model, kwargs={**example, "past_key_values": filled}, dynamic_shapes=shapes
    )
    run = {"input_ids": PROMPT.numpy()}
    (encoded,) = session_of(encoder).run(None, run)
    sequence = np.full((len(PROMPT), 1), model.config.decoder_start_token_id)
    session, following, state = session_of(first), session_of(step), {}
    for _ in range(TOKENS):
        taken = names(session.get_inputs())
        feeds = {
            "encoder_outputs_last_hidden_state": encoded,
            "decoder_input_ids": sequence[:, -1:],
            **state,
        }
        outputs = session.run(None, {n: feeds[n] for n in taken})
        found = dict(zip(names(session.get_outputs()), outputs, strict=True))
        state = {
            n.replace("present", "past_key_values"): x
            for n, x in found.items()
            if n.startswith("present")
        }
        new_ids = found["logits"][:, -1].argmax(-1)[:, None]
        sequence = np.concatenate([sequence, new_ids], axis=1)
        session = following
    assert np.array_equal(sequence, eager(model, PROMPT))


# State space models: a step is a token, and the state before the first is zero.


@since_5
@pytest.mark.parametrize("name", ["mamba", pytest.param("jamba", marks=pytest.mark.slow)])
def test_states(name: str) -> None:
    model, key, shapes, lengths = STATES[name]()
    cache = hf.DynamicCache(config=model.config)
    with torch.no_grad():
        model(PROMPT[:2], **{key: cache})
    program = gp.onnx.export(
        model,
        kwargs={"input_ids": PROMPT[:2, :1], key: cache},
        dynamic_shapes={"input_ids": {0: BATCH}, key: shapes},
    )
    session = session_of(program)
    state = {
        i.name: np.zeros([lengths.get(d, d) for d in i.shape], np.float32)
        for i in session.get_inputs()
        if i.name.startswith(key)
    }
    sequence = PROMPT.numpy()
    for at in range(PROMPT.shape[1] + TOKENS - 1):
        outputs = session.run(None, {"input_ids": sequence[:, at : at + 1], **state})
        found = dict(zip(names(session.get_outputs()), outputs, strict=True))
        state = {n: found[n.replace(key, "present")] for n in state}
        if at >= PROMPT.shape[1] - 1:
            new_ids = found["logits"][:, -1].argmax(-1)[:, None]
            sequence = np.concatenate([sequence, new_ids], axis=1)
    assert np.array_equal(sequence, eager(model, PROMPT, attention_mask=torch.ones_like(PROMPT)))


BATCH = gp.Dim("batch", min=1)
SIZES = {"batch": len(PROMPT), "past": 0}


def seeded(kind: Any, config: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).eval()


def mamba() -> Any:
    config = hf.MambaConfig(
        vocab_size=99,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return seeded(hf.MambaForCausalLM, config), "cache_params", {0: BATCH}, SIZES


def jamba() -> Any:
    config = hf.JambaConfig(
        **generation.SMALL,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
    )
    attention = {0: BATCH, 2: gp.Dim("past")}
    shapes = {
        "keys": attention,
        "values": attention,
        "conv_states": {0: {0: BATCH}},
        "recurrent_states": {0: {0: BATCH}},
    }
    return seeded(hf.JambaForCausalLM, config), "past_key_values", shapes, SIZES


STATES = {"mamba": mamba, "jamba": jamba}


# Caches of a fixed length


@since_5
@pytest.mark.parametrize("name", ["llama", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_a_static_cache(name: str) -> None:
    """One program, which writes to the cache; the file gives out what it has become."""
    model = generation.build(name)
    length = PROMPT.shape[1] + TOKENS
    cache = hf.StaticCache(config=model.config, max_cache_len=length)
    cache.early_initialization(3, 2, 8, torch.float32, torch.device("cpu"))
    new = gp.Dim("new", min=1)
    program = gp.onnx.export(
        model,
        kwargs={"input_ids": PROMPT[:, :2], "past_key_values": cache},
        dynamic_shapes={"input_ids": {1: new}},
    )
    assert not any(layer.keys.any() for layer in cache.layers)
    want = eager(model, PROMPT, attention_mask=torch.ones_like(PROMPT))
    session = session_of(program)
    assert np.array_equal(generation.generate(session, PROMPT.numpy(), TOKENS), want)
    # The program itself writes to the cache that it is called with, as the model does.
    sequence = new_ids = PROMPT
    for _ in range(TOKENS):
        found = program(input_ids=new_ids, past_key_values=cache)
        assert found.past_key_values.layers[0].keys is cache.layers[0].keys
        new_ids = found.logits[:, -1:].argmax(-1)
        sequence = torch.cat([sequence, new_ids], 1)
    assert np.array_equal(sequence.numpy(), want)
    assert int(cache.layers[0].cumulative_length) == length - 1


@pytest.mark.slow
def test_a_quantized_cache() -> None:
    model = generation.build("llama")
    cache = hf.QuantizedCache("fp8", model.config)
    with torch.no_grad():
        model(PROMPT, past_key_values=cache)
    batch, past, new = gp.Dim("batch", min=1), gp.Dim("past", min=1), gp.Dim("new", min=1)
    program = gp.onnx.export(
        model,
        kwargs={"input_ids": PROMPT[:, :2], "past_key_values": cache},
        dynamic_shapes={"input_ids": {0: batch, 1: new}, "past_key_values": {0: batch, 2: past}},
    )
    assert program.verify().ok
    ours, theirs = copy.deepcopy(cache), copy.deepcopy(cache)
    for _ in range(3):
        have = program(input_ids=PROMPT[:, :1], past_key_values=ours)
        with torch.no_grad():
            want = model(PROMPT[:, :1], past_key_values=theirs)
        torch.testing.assert_close(have.logits, want.logits, rtol=1e-4, atol=1e-5)
        ours = have.past_key_values
    assert ours.get_seq_length() == theirs.get_seq_length() == PROMPT.shape[1] + 3
