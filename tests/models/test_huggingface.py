"""Hugging Face models, from config and with random weights: captured once, run at other sizes.

Sizes differ from those at capture, a batch of one is among them, and masks have padding. A sweep
over many architectures is marked slow; some of them are in the quick suite.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import DynamicCache
from transformers.integrations.executorch import register_dynamic_cache_export_support

import graphport as gp
from examples import huggingface as examples
from tests.helpers import compare, compare_metadata, draws
from tests.models import zoo

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def check_model(
    model: nn.Module, spec: Any, kwargs: dict[str, Any], others: list[dict[str, Any]]
) -> gp.ExportedProgram:
    """As `check`, for inputs by keyword; also over core operators."""
    ep = gp.export(model, (), kwargs, dynamic_shapes=spec)
    core = ep.run_decompositions()
    ep.validate()
    core.validate()
    with torch.no_grad():
        for given in (kwargs, *others):
            compare(ep, model, ((), given), **CLOSE)
            compare_metadata(ep, ((), given))
            if not draws(core):
                compare(core, model, ((), given), **CLOSE)
    return ep


# Each example at other sizes: how its inputs are made for a batch and a length.
SIZES: dict[str, tuple[str, str | None]] = {
    "bert": ("batch", "length"),
    "gpt2": ("batch", "length"),
    "llama": ("batch", "length"),
    "t5": ("batch", "length"),
    "vit": ("batch", None),
    "whisper": ("batch", "target_length"),
    "mamba": ("batch", None),
}


@pytest.mark.parametrize("name", examples.CASES)
def test_examples_at_other_sizes(name: str) -> None:
    make = examples.CASES[name]
    batch, length = SIZES[name]
    case = make()
    sizes = [(1, 16), (5, 7), (1, 2)] if length else [(1, 0), (5, 0)]
    others = [make(**{batch: b, **({length: n} if length else {})}).kwargs for b, n in sizes]
    check_model(case.model, case.spec(gp.Dim), case.kwargs, others)


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_one_row_at_capture_stays_a_batch(name: str) -> None:
    make = examples.CASES[name]
    case = make(batch=1)
    check_model(case.model, case.spec(gp.Dim), case.kwargs, [make(batch=4).kwargs])


def test_training_with_dropout_and_labels() -> None:
    case = examples.bert()
    model = zoo_model("BertForSequenceClassification").train()
    inputs = {**case.kwargs, "input_ids": case.kwargs["input_ids"] % zoo.VOCAB}

    def with_labels(batch: int) -> dict[str, Any]:
        return {
            **{k: v[:1].expand(batch, -1).clone() for k, v in inputs.items()},
            "labels": torch.arange(batch) % 2,
        }

    batch = gp.Dim("batch", min=1, max=64)
    spec = {"input_ids": {0: batch}, "attention_mask": {0: batch}, "labels": {0: batch}}
    check_model(model, spec, with_labels(2), [with_labels(5)])


def zoo_model(name: str) -> nn.Module:
    return zoo.build(zoo.encoder(name))


# The sweep

QUICK = (
    "distilbert",
    "albert",
    "mpnet",
    "opt",
    "bloom",
    "mistral",
    "mixtral",
    "gemma2",
    "phi3",
    "bart",
    "swin",
    "convnext",
    "segformer",
    "clip",
    "wav2vec2",
    "perceiver",
)


def sweep(name: str) -> None:
    row = zoo.ROWS[name]
    kwargs = row.inputs(2, row.lengths[0])
    check_model(zoo.build(row), zoo.spec(row, gp.Dim), kwargs, zoo.others(row))


@pytest.mark.parametrize("name", QUICK)
def test_architecture(name: str) -> None:
    sweep(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [n for n in zoo.ROWS if n not in QUICK])
def test_more_architectures(name: str) -> None:
    sweep(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [n for n, row in zoo.ROWS.items() if row.dynamic])
def test_the_smallest_batch_at_capture_stays_open(name: str) -> None:
    row = zoo.ROWS[name]
    kwargs = row.inputs(row.least, row.lengths[0])
    check_model(zoo.build(row), zoo.spec(row, gp.Dim), kwargs, [row.inputs(3, row.lengths[1])])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", zoo.REFUSED)
def test_data_dependent_models_are_refused_with_the_reason(name: str) -> None:
    row = zoo.REFUSED[name]
    with pytest.raises(gp.errors.DataDependentError, match="data-dependent"):
        gp.export(zoo.build(row), (), row.inputs(2, row.lengths[0]))


# Caches as inputs and outputs


@pytest.fixture(scope="module")
def cache_is_a_container() -> Iterator[None]:
    """As transformers itself registers it, for these tests."""
    if DynamicCache in pytree.SUPPORTED_NODES:
        pytree._deregister_pytree_node(DynamicCache)
    register_dynamic_cache_export_support()
    yield
    pytree._deregister_pytree_node(DynamicCache)


CACHED: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: examples.llama().model,
    "gpt2": lambda: examples.gpt2().model,
    "qwen2": lambda: zoo.build(zoo.lm("Qwen2ForCausalLM", **zoo.KV)),
}


def cached_inputs(model: nn.Module, batch: int, past: int, new: int) -> dict[str, Any]:
    vocab = model.config.vocab_size
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(examples.tokens(vocab, batch, past), past_key_values=cache, use_cache=True)
    return {
        "input_ids": examples.tokens(vocab, batch, new),
        "attention_mask": examples.padding_mask(batch, past + new),
        "past_key_values": cache,
        "use_cache": True,
    }


@pytest.mark.usefixtures("cache_is_a_container")
@pytest.mark.parametrize("new", [1, 3], ids=["one token", "several tokens"])
@pytest.mark.parametrize("name", CACHED)
def test_a_step_with_a_cache(name: str, new: int) -> None:
    model = CACHED[name]()
    kwargs = cached_inputs(model, 2, 6, new)
    layers = len(kwargs["past_key_values"].layers)
    batch, past = gp.Dim("batch", min=1, max=64), gp.Dim("past", min=1, max=50)
    total = gp.Dim("total", min=2, max=60)
    spec = {
        "input_ids": {0: batch} if new == 1 else {0: batch, 1: gp.Dim("new", min=2, max=10)},
        "attention_mask": {0: batch, 1: total},
        "past_key_values": [[{0: batch, 2: past}] * layers] * 2,
        "use_cache": None,
    }
    ep = gp.export(model, (), kwargs, dynamic_shapes=spec)
    ep.validate()
    sizes = [(2, 6, new), (1, 9, new), (3, 1, new if new == 1 else 5)]
    for shape in sizes:
        given = cached_inputs(model, *shape)
        with torch.no_grad():
            want = model(**copy.deepcopy(given))
            have = ep.module()(**given)
        assert type(have.past_key_values) is DynamicCache
        assert_leaves_close(have, want)


@pytest.mark.usefixtures("cache_is_a_container")
def test_a_prompt_makes_a_cache() -> None:
    case = examples.llama()
    kwargs = {**case.kwargs, "use_cache": True}
    spec = {**case.spec(gp.Dim), "use_cache": None}
    ep = gp.export(case.model, (), kwargs, dynamic_shapes=spec)
    for batch, length in ((2, 16), (1, 5)):
        given = {**examples.llama(batch=batch, length=length).kwargs, "use_cache": True}
        with torch.no_grad():
            assert_leaves_close(ep.module()(**given), case.model(**given))


def assert_leaves_close(have: Any, want: Any) -> None:
    for x, y in zip(pytree.tree_leaves(have), pytree.tree_leaves(want), strict=True):
        if isinstance(y, Tensor):
            torch.testing.assert_close(x, y, **CLOSE)
