"""Real models, unflattened: eager's results at several sizes, and their layers as modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from examples import huggingface as examples
from examples import resnet
from tests.helpers import assert_same
from tests.models import zoo
from tests.program.unflatten.unflattened import agree, paths, unflattened

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


pytestmark = pytest.mark.usefixtures("one_thread")


def compared(ep: gp.ExportedProgram, model: nn.Module, inputs: list[dict[str, Any]]) -> nn.Module:
    un = gp.unflatten(ep)
    with torch.no_grad():
        agree(un, model, [((), kwargs) for kwargs in inputs], **CLOSE)
    return gp.unflatten(ep)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_huggingface(name: str) -> None:
    make = examples.CASES[name]
    case = make()
    inputs = [case.kwargs, make(batch=1, length=16).kwargs, make(batch=5, length=7).kwargs]
    ep = gp.export(case.model, (), case.kwargs, dynamic_shapes=case.spec(gp.Dim))
    un = compared(ep, case.model, inputs)
    assert not [p for p in paths(un) if "@" in p]
    compared(ep.run_decompositions(), case.model, inputs)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("bert", ("encoder.layer.0", "encoder.layer.1.attention")),
        ("llama", ("model.layers.1.mlp", "model.norm", "model.layers.0.self_attn")),
    ],
)
def test_layers_with_their_own_signature(name: str, layers: tuple[str, ...]) -> None:
    """Each is called on what the original was called on, and replaced by the original."""
    case = examples.CASES[name]()
    model = case.model
    prefix = next(p for p in ("", f"{name}.") if _has(model, p + layers[0]))
    layers = tuple(prefix + layer for layer in layers)
    ep = gp.export(
        model,
        (),
        case.kwargs,
        dynamic_shapes=case.spec(gp.Dim),
        preserve_module_call_signature=layers,
    )
    un = compared(ep, model, [case.kwargs, examples.CASES[name](batch=5).kwargs])
    seen: dict[str, Any] = {}
    for layer in layers:
        model.get_submodule(layer).register_forward_hook(
            lambda m, args, kwargs, out, layer=layer: seen.update({layer: (args, kwargs, out)}),
            with_kwargs=True,
        )
    with torch.no_grad():
        want = model(**case.kwargs)
        for layer in layers:
            args, kwargs, out = seen[layer]
            assert_same(un.get_submodule(layer)(*args, **kwargs), out, layer, **CLOSE)
            parent, _, last = layer.rpartition(".")
            setattr(un.get_submodule(parent), last, model.get_submodule(layer))
            assert_same(un(**case.kwargs), want, f"with {layer} replaced", **CLOSE)


def _has(model: nn.Module, path: str) -> bool:
    return path in dict(model.named_modules())


@pytest.mark.parametrize("training", [False, True])
def test_resnet(training: bool) -> None:
    model = resnet.ResNet((1, 1, 1, 1), num_classes=5).train(training)
    spec = resnet.spec(gp.Dim)
    others = [(resnet.example(3, 96),)] + ([] if training else [(resnet.example(1, 64),)])
    with torch.no_grad():
        un = unflattened(
            model, (resnet.example(),), dynamic_shapes=spec, others=others, rtol=1e-3, atol=1e-4
        )
    assert not [p for p in paths(un) if "@" in p]


def test_transformer() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 2, 32, batch_first=True).eval()
    source, target = gp.Dim("source", min=2, max=32), gp.Dim("target", min=2, max=32)
    spec = {"src": {1: source}, "tgt": {1: target}}
    args = (torch.randn(2, 5, 16), torch.randn(2, 6, 16))
    others = [(torch.randn(2, 9, 16), torch.randn(2, 3, 16))]
    un = unflattened(model, args, dynamic_shapes=spec, others=others, **CLOSE)
    memory = torch.randn(2, 4, 16)
    kept = unflattened(
        model,
        args,
        dynamic_shapes=spec,
        others=others,
        **CLOSE,
        preserve_module_call_signature=("encoder", "decoder"),
    )
    assert {p for p in paths(un) if "@" not in p} == {p for p in paths(kept) if "@" not in p}
    with torch.no_grad():
        assert kept.encoder(memory, mask=None, src_key_padding_mask=None, is_causal=False).shape
        torch.testing.assert_close(
            kept.encoder(memory, mask=None, src_key_padding_mask=None, is_causal=False),
            model.encoder(memory),
            **CLOSE,
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", zoo.ROWS)
def test_architecture(name: str) -> None:
    row = zoo.ROWS[name]
    model, kwargs = zoo.build(row), row.inputs(2, row.lengths[0])
    ep = gp.export(model, (), kwargs, dynamic_shapes=zoo.spec(row, gp.Dim))
    compared(ep, model, [kwargs, *zoo.others(row)])
