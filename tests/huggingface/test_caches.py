"""Hugging Face caches as inputs and outputs: leaves, names, structure, what specs say of them."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.utils import _pytree as pytree
from transformers import cache_utils
from transformers.models.mimi.modeling_mimi import MimiConv1dPaddingCache
from transformers.models.minimax.modeling_minimax import MiniMaxCache
from transformers.models.reformer.modeling_reformer import ReformerDynamicCache
from transformers.models.xlstm.modeling_xlstm import xLSTMCache

import graphport as gp
from graphport.huggingface import caches
from tests.helpers import check
from tests.huggingface.versions import NEWER, mask_sizes, since_5

Dim = gp.Dim
COUNTED = ("cumulative_length",) if NEWER else ()
LAYERS: dict[str, Any] = {"num_hidden_layers": 2}
CONFIG = {**LAYERS, "sliding_window": 4}


def states(length: int = 3, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(length)
    return tuple(torch.randn(batch, 2, length, 8, generator=made) for _ in "kv")  # type: ignore


def filled(cache: Any, length: int = 3) -> Any:
    for layer in cache.layers:
        layer.update(*states(length))
    return cache


def dynamic(config: Any = None, length: int = 3) -> hf.DynamicCache:
    return filled(hf.DynamicCache(config=config or hf.LlamaConfig(**LAYERS)), length)


def windows(length: int = 3) -> hf.DynamicCache:
    return dynamic(hf.MistralConfig(**CONFIG), length)


def hybrid() -> Any:
    """Layers with the states of linear attention, and one with keys and values as well."""
    layers = [
        cache_utils.LinearAttentionLayer(),
        cache_utils.LinearAttentionAndFullAttentionLayer(),
    ]
    cache = cache_utils.Cache(layers=layers)
    for i in range(2):
        cache.update_conv_state(torch.randn(2, 6, 4), i)
        cache.update_recurrent_state(torch.randn(2, 6, 3), i)
    cache.update(*states(), 1)
    return cache


def indexed() -> Any:
    cache = filled(cache_utils.Cache(layers=[cache_utils.DynamicIndexedLayer()]))
    cache.update_indexer(torch.randn(2, 3, 5), 0)
    return cache


def minimax() -> Any:
    cache = MiniMaxCache()
    cache.set_linear_cache(1, torch.randn(2, 4))
    cache.update(*states(), 0)
    return cache


def mimi() -> Any:
    cache = MimiConv1dPaddingCache(2, [2, 3], ["constant", "replicate"], [4, 4])
    cache.update(torch.randn(2, 4, 6), 0)
    return cache


def padding() -> Any:
    name = "transformers.models.voxtral_realtime.modeling_voxtral_realtime"
    voxtral = pytest.importorskip(name, reason="newer versions of transformers have this model")
    cache = voxtral.VoxtralRealtimeConv1dPaddingCache()
    cache.layers["first"] = layer = voxtral.VoxtralRealtimeConv1dCacheLayer()
    layer.cache, layer.left_pad, layer.is_initialized = torch.randn(2, 4, 2), 2, True
    return cache


def reformer() -> Any:
    cache = ReformerDynamicCache()
    cache.update(torch.zeros(2, 1, 3), torch.randn(2, 3, 8), 0)
    return cache


def xlstm() -> Any:
    config = hf.xLSTMConfig(num_hidden_layers=1, hidden_size=32, num_heads=2)
    return xLSTMCache(config, 2, torch.float32)


def part(*names: str) -> list[str]:
    return [f"[{i}]['{n}']" for i in range(2) for n in names]


CACHES: dict[str, tuple[Any, list[str]]] = {
    "dynamic": (dynamic, part("keys", "values")),
    "without layers": (hf.DynamicCache, []),
    "not filled": (lambda: hf.DynamicCache(config=hf.MistralConfig(**CONFIG)), []),
    "windows": (windows, part("keys", "values", "cumulative_length")),
    "full windows": (lambda: windows(7), part("keys", "values", "cumulative_length")),
    "static": (
        lambda: filled(hf.StaticCache(config=hf.LlamaConfig(**LAYERS), max_cache_len=8)),
        part("keys", "values", *COUNTED),
    ),
    "static windows": (
        lambda: filled(hf.StaticCache(config=hf.MistralConfig(**CONFIG), max_cache_len=8)),
        part("keys", "values", "cumulative_length", *(("cumulative_length_int",) if NEWER else ())),
    ),
    "encoder and decoder": (
        lambda: hf.EncoderDecoderCache(dynamic(), dynamic(length=5)),
        [
            f".{kind}_attention_cache{p}"
            for kind in ("self", "cross")
            for p in part("keys", "values")
        ],
    ),
    "quantized": (
        lambda: filled(hf.QuantizedCache("fp8", hf.LlamaConfig(**LAYERS))),
        [
            f"[{i}]{p}"
            for i in range(2)
            for p in (
                "['keys']",
                "['values']",
                "['cumulative_length']",
                "['quantized_keys'][0]",
                "['quantized_keys'][1]",
                "['quantized_values'][0]",
                "['quantized_values'][1]",
            )
        ],
    ),
    "indexed": (indexed, ["[0]['keys']", "[0]['values']", "[0]['indexer_keys']"]),
    "linear attention": (
        hybrid,
        [
            "[0]['conv_states'][0]",
            "[0]['recurrent_states'][0]",
            "[1]['keys']",
            "[1]['values']",
            "[1]['conv_states'][0]",
            "[1]['recurrent_states'][0]",
        ],
    ),
    "minimax": (minimax, [".layers[0]['keys']", ".layers[0]['values']", ".linear_cache[1]"]),
    "mimi": (mimi, [".padding_cache[0]"]),
    "padding": (padding, ["['first']['cache']"]),
    "reformer": (reformer, [".seen_tokens", ".buckets_cache[0]", ".states_cache[0]"]),
    "xlstm": (
        xlstm,
        [".seqlen_offset", ".rnn_state[0][0]", ".rnn_state[0][1]", ".rnn_state[0][2]"],
    ),
}


if not NEWER:
    for kind in ("quantized", "indexed", "linear attention"):
        CACHES.pop(kind)


@pytest.mark.parametrize("name", CACHES)
def test_taken_apart_and_put_together(name: str) -> None:
    make, paths = CACHES[name]
    cache = make()
    caches.register_caches(cache)
    found, spec = pytree.tree_flatten_with_path(cache)
    assert [pytree.keystr(keys) for keys, _ in found] == paths
    leaves = [leaf for _, leaf in found]
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(cache) and again is not cache
    others, other_spec = pytree.tree_flatten(again)
    assert other_spec == spec and all(a is b for a, b in zip(others, leaves, strict=True))
    assert list(vars(again)) == list(vars(cache))
    assert other_spec == pytree.tree_structure(copy.deepcopy(cache))


@pytest.mark.parametrize("name", CACHES)
def test_in_and_out_of_a_program(name: str) -> None:
    """A program that doubles what is in a cache; saved and captured again, too."""
    make, _ = CACHES[name]
    cache = make()
    caches.register_caches(cache)
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in pytree.tree_leaves(cache)]

    def double(c: Any, x: torch.Tensor) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(torch.float32) * 2, c), x + 1

    # A config is no plain value that a file could hold.
    capture = gp.export if name == "xlstm" else check
    ep = capture(double, (cache, torch.zeros(3)))
    for a, b in zip(pytree.tree_leaves(cache), before, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    have, _ = ep.module()(cache, torch.zeros(3))
    assert type(have) is type(cache)


def test_names_of_inputs() -> None:
    def lengths(past_key_values: Any) -> torch.Tensor:
        return past_key_values.layers[0].keys.sum()

    names = [n.name for n in gp.export(lengths, (windows(),)).graph.find_nodes(op="placeholder")]
    assert names == [
        f"past_key_values_{i}_{n}"
        for i in range(2)
        for n in ("keys", "values", "cumulative_length")
    ]


def grow(cache: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
    """What a layer of attention does with a cache."""
    sizes, offset = mask_sizes(cache, k.shape[2]), cache.get_seq_length()
    for i in range(len(cache.layers)):
        cache.update(k, v, i)
    return cache, torch.arange(k.shape[2]) + offset, torch.arange(sizes[0]) + sizes[1]


def test_the_users_cache_is_left_alone() -> None:
    cache = windows()
    layers, keys = cache.layers, cache.layers[0].keys
    gp.export(grow, (cache, *states(2)))
    assert cache.layers is layers and layers[0].keys is keys
    assert layers[0].cumulative_length == 3 and "update" not in vars(layers[0])


BATCH, PAST, NEW = Dim("batch"), Dim("past"), Dim("new", min=1)
NEWS = {0: BATCH, 2: NEW}
EITHER = {"keys": {0: BATCH, 2: PAST}, "values": {0: BATCH, 2: PAST}}


@pytest.mark.parametrize(
    "spec",
    [{0: BATCH, 2: PAST}, EITHER, [EITHER, EITHER], [{0: BATCH, 2: PAST}, EITHER]],
    ids=["by dimension", "by name", "by layer", "mixed"],
)
@pytest.mark.parametrize("make", [dynamic, windows])
def test_spellings_of_a_spec(make: Any, spec: Any) -> None:
    ep = gp.export(grow, (make(), *states(2)), dynamic_shapes=(spec, NEWS, NEWS))
    sizes = [str(i.sizes) for i in ep.checks.inputs if i.sizes is not None]
    assert sizes == ["(batch, 2, past, 8)"] * 4 + ["(batch, 2, new, 8)"] * 2


def same_as_eager(ep: gp.ExportedProgram, cache: Any, new: int, batch: int = 2) -> None:
    have = ep.module()(cache, *states(new, batch))
    want = grow(copy.deepcopy(cache), *states(new, batch))
    a, b = pytree.tree_leaves(have), pytree.tree_leaves(want)
    assert pytree.tree_structure(have) == pytree.tree_structure(want)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


@pytest.mark.parametrize("example", [0, 1, 3])
def test_any_length(example: int) -> None:
    shapes = ({0: BATCH, 2: PAST}, NEWS, NEWS)
    ep = gp.export(grow, (dynamic(length=example), *states(2)), dynamic_shapes=shapes)
    for past in (0, 1, 3, 8):
        for new in (1, 2, 5):
            same_as_eager(ep, dynamic(length=past), new)


@pytest.mark.parametrize("example", [0, 2, 3, 9])
def test_windows_before_and_after_they_are_full(example: int) -> None:
    shapes = ({0: BATCH, 2: PAST}, NEWS, NEWS)
    ep = gp.export(grow, (windows(example), *states(2)), dynamic_shapes=shapes)
    for past in (0, 1, 2, 3, 4, 9):
        for new in (1, 2, 5):
            same_as_eager(ep, windows(past), new)


def test_counts_are_never_frozen() -> None:
    """Without a word about sizes the windows are full, and go on counting."""
    ep = gp.export(grow, (windows(9), *states(1)))
    for past in (3, 4, 9, 20):
        same_as_eager(ep, windows(past), 1)
    wrong = windows(9)
    wrong.layers[0].cumulative_length = 2
    with pytest.raises(RuntimeError, match="cumulative_length"):
        ep.module()(wrong, *states(1))


def test_a_count_is_a_constant_if_the_spec_says_so() -> None:
    ep = gp.export(
        grow,
        (windows(9), *states(1)),
        dynamic_shapes=({"cumulative_length": Dim.STATIC}, None, None),
    )
    same_as_eager(ep, windows(9), 1)
    with pytest.raises(RuntimeError, match=r"cumulative_length.* to be equal to 9, but got 10"):
        ep.module()(windows(10), *states(1))


def test_a_window_that_holds_another_number_of_tokens() -> None:
    cache = windows(9)
    cache.layers[1].cumulative_length = 2
    with pytest.raises(gp.errors.InputError, match="window of 4 has seen 2 tokens and holds 3"):
        gp.export(grow, (cache, *states(1)))


def test_automatic_dims() -> None:
    ep = gp.export(grow, (windows(2), *states(2)), dynamic_shapes=(Dim.AUTO, NEWS, NEWS))
    for past in (0, 3, 9):
        same_as_eager(ep, windows(past), 1)


def test_collections_and_further_inputs() -> None:
    cache, (k, v) = windows(2), states(2)
    shapes = gp.ShapesCollection()
    for layer in cache.layers:
        shapes[layer.keys] = shapes[layer.values] = {0: BATCH, 2: PAST}
    shapes[k] = shapes[v] = NEWS
    ep = gp.export(grow, (cache, k, v), dynamic_shapes=shapes)
    same_as_eager(ep, windows(7), 3)
    more = gp.AdditionalInputs()
    more.add((windows(9), *states(1)))
    assert more.dynamic_shapes(grow, (cache, k, v))["cache"][0] == {
        "keys": {2: Dim.DYNAMIC},
        "values": {2: Dim.DYNAMIC},
        "cumulative_length": Dim.DYNAMIC,
    }
    ep = gp.export(grow, (cache, k, v), dynamic_shapes=more)
    same_as_eager(ep, windows(7), 3)


def test_a_spec_of_a_cache_that_fits_nothing() -> None:
    with pytest.raises(gp.errors.SpecError, match="no layer of the cache has 'key'; they have"):
        gp.export(grow, (dynamic(), *states(2)), dynamic_shapes=({"key": {0: BATCH}}, None, None))
    with pytest.raises(gp.errors.SpecError, match="has 2 parts, but the spec has 3"):
        gp.export(grow, (dynamic(), *states(2)), dynamic_shapes=([EITHER] * 3, None, None))


@pytest.mark.parametrize(
    "other",
    [
        lambda: dynamic(hf.MistralConfig(num_hidden_layers=2, sliding_window=5)),
        lambda: dynamic(hf.MistralConfig(num_hidden_layers=3, sliding_window=4)),
        lambda: dynamic(),
        lambda: CACHES["not filled"][0](),
    ],
    ids=["window", "layers", "kind of layer", "not filled"],
)
def test_another_structure_is_refused(other: Any) -> None:
    ep = gp.export(grow, (windows(), *states(2)))
    with pytest.raises(ValueError, match="DynamicCache"):
        ep.module()(other(), *states(2))


class Registered(hf.DynamicCache):
    """Registered by its user, who wants one leaf."""


pytree.register_pytree_node(
    Registered,
    lambda c: ([torch.stack([layer.keys for layer in c.layers])], len(c.layers)),
    lambda children, count: children[0],
    flatten_with_keys_fn=lambda c: (
        [(pytree.SequenceKey(0), torch.stack([layer.keys for layer in c.layers]))],
        len(c.layers),
    ),
)


@pytest.mark.parametrize("spec", [[{1: BATCH, 3: PAST}], {1: BATCH, 3: PAST}])
def test_the_users_registration_wins(spec: Any) -> None:
    cache = filled(Registered(config=hf.LlamaConfig(**LAYERS)))
    ep = gp.export(lambda c: c * 2, (cache,), dynamic_shapes=(spec,))
    assert [n.name for n in ep.graph.find_nodes(op="placeholder")] == ["c_0"]
    assert str(ep.checks.inputs[0].sizes) == "(2, batch, 2, past, 8)"


def test_a_subclass_of_a_cache() -> None:
    class Counting(hf.DynamicCache):
        """With a tensor, a number and a method of its own."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.seen = torch.zeros(2, dtype=torch.int64)
            self.factor = 3
            self.scaled = self.scale

        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    cache = filled(Counting(config=hf.LlamaConfig(**LAYERS)))

    def count(cache: Any) -> Any:
        cache.seen = cache.scaled(cache.seen + 1)
        return cache

    ep = gp.export(count, (cache,))
    found = ep.module()(cache)
    assert type(found) is Counting and found.seen.tolist() == [3, 3]
    assert found.scaled.__self__ is found and cache.seen.tolist() == [0, 0]


@since_5
def test_mutation_in_place() -> None:
    cache = filled(hf.StaticCache(config=hf.LlamaConfig(**LAYERS), max_cache_len=8))
    before = copy.deepcopy(cache)

    def write(cache: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
        return cache.update(k, v, 0)[0].sum(), cache

    ep = gp.export(write, (cache, *states(2)), dynamic_shapes=(None, {2: NEW}, {2: NEW}))
    assert torch.equal(cache.layers[0].keys, before.layers[0].keys)
    assert ep.graph_signature.user_inputs_to_mutate
    for new in (1, 4):
        ours, theirs = copy.deepcopy(before), copy.deepcopy(before)
        have, want = ep.module()(ours, *states(new)), write(theirs, *states(new))
        assert torch.equal(have[0], want[0])
        assert have[1].layers[0].keys is ours.layers[0].keys
        assert torch.equal(ours.layers[0].keys, theirs.layers[0].keys)
        assert int(ours.layers[0].cumulative_length) == 3 + new


def test_a_cache_on_the_meta_device() -> None:
    cache = pytree_to(dynamic(), "meta")
    k, v = (t.to("meta") for t in states(2))
    ep = gp.export(grow, (cache, k, v), dynamic_shapes=({0: BATCH, 2: PAST}, NEWS, NEWS))
    found = ep.module()(dynamic(length=4), *states(1))[0]
    assert found.layers[0].device == torch.device("cpu") and found.get_seq_length() == 5


def pytree_to(cache: Any, device: str) -> Any:
    caches.register_caches(cache)
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), cache)


LOADING = """
import sys, warnings
import torch, graphport as gp
assert "transformers" not in sys.modules
if sys.argv[2] == "bare":
    try:
        gp.load(sys.argv[1])
    except gp.errors.SerializationError as error:
        print("transformers" in sys.modules, str(error).splitlines()[0])
else:
    import transformers.cache_utils as hf
    ep = gp.load(sys.argv[1])
    cache = hf.DynamicCache([(torch.zeros(2, 2, 3, 8),) * 2] * 2)
    found = ep.module()(cache, torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 8))
    print(type(found[0]).__name__, found[0].get_seq_length())
"""


@pytest.mark.slow
def test_loading_imports_nothing(tmp_path: Path) -> None:
    cache = hf.DynamicCache([states()] * 2)
    ep = gp.export(grow, (cache, *states(2)), dynamic_shapes=({0: BATCH, 2: PAST}, NEWS, NEWS))
    gp.save(ep, tmp_path / "grow.gpx")
    command = [sys.executable, "-W", "ignore", "-c", LOADING, str(tmp_path / "grow.gpx")]
    bare = subprocess.run([*command, "bare"], capture_output=True, text=True, check=True)
    assert bare.stdout.startswith("False") and "cache_utils.DynamicCache" in bare.stdout
    loaded = subprocess.run([*command, "loaded"], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["DynamicCache", "8"]
