"""Whole models through `torch.compile`: transformers and convolutional ones against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from examples import huggingface, mobilenet, resnet
from graphport.runtime import OrtBackend
from tests.runtime.comparing import counts

CLOSE = {"rtol": 1e-3, "atol": 1e-4}
SMALL: dict[str, dict[str, int]] = {
    "bert": {"hidden": 16, "heads": 2, "vocab": 50, "length": 6},
    "gpt2": {"hidden": 16, "heads": 2, "vocab": 50, "length": 6},
    "llama": {"hidden": 16, "heads": 4, "kv_heads": 2, "vocab": 50, "length": 6},
    "t5": {"hidden": 16, "heads": 2, "vocab": 50, "length": 6, "target_length": 4},
    "vit": {"hidden": 16, "heads": 2, "image": 16, "patch": 8},
}
OTHERS: dict[str, list[dict[str, int]]] = {
    "bert": [{"batch": 3, "length": 9}, {"batch": 5, "length": 4}],
    "gpt2": [{"batch": 3, "length": 9}, {"batch": 5, "length": 4}],
    "llama": [{"batch": 3, "length": 9}, {"batch": 5, "length": 4}],
    "t5": [{"batch": 3, "length": 9, "target_length": 7}],
    "vit": [{"batch": 3}, {"batch": 7}],
}


def case(name: str, **sizes: int) -> huggingface.Case:
    return huggingface.CASES[name](layers=1, **{**SMALL[name], **sizes})


def first(out: Any) -> Tensor:
    """Of a model's outputs, the one that all others come before."""
    return out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        pytest.param(name, dynamic, marks=[pytest.mark.slow] * ((name, dynamic) != ("llama", True)))
        for name in SMALL
        for dynamic in (True, False)
    ],
)
def test_transformers(name: str, dynamic: bool) -> None:
    """With dynamic=True, one session for all sizes; else one for each."""
    made, backend = case(name), OrtBackend()
    compiled = torch.compile(made.model, backend=backend, dynamic=dynamic, fullgraph=True)
    calls = [made.kwargs] + [case(name, **sizes).kwargs for sizes in OTHERS[name]]
    calls = calls if dynamic else calls[:2]
    with torch.no_grad():
        for inputs in calls:
            found, wanted = first(compiled(**inputs)), first(made.model(**inputs))
            torch.testing.assert_close(found, wanted, **CLOSE)
    assert counts(backend) == [1] * (1 if dynamic else len(calls)), backend.explain()
    assert "in PyTorch" not in backend.explain()
    if dynamic:
        assert all(map(is_dynamic, models(backend)))


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("make", "example", "sizes"),
    [
        (lambda: resnet.ResNet((1, 1), 10), resnet.example, [(2, 32), (3, 32)]),
        (lambda: mobilenet.mobilenet_v3_small(10), mobilenet.example, [(2, 32), (3, 32)]),
    ],
    ids=["resnet", "mobilenet"],
)
@pytest.mark.slow
def test_convolutional(
    make: Callable[[], nn.Module], example: Callable[..., Tensor], sizes: Any, dynamic: bool
) -> None:
    torch.manual_seed(0)
    model, backend = make().eval(), OrtBackend()
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    with torch.no_grad():
        for batch, size in sizes:
            x = example(batch=batch, size=size)
            torch.testing.assert_close(compiled(x), model(x), **CLOSE)
    assert counts(backend) == [1] * (1 if dynamic else len(sizes)), backend.explain()


# Training


def models(backend: OrtBackend) -> list[Any]:
    return [r.model_proto for records in backend.sessions.values() for r in records]


def is_dynamic(model: Any) -> bool:
    """Whether a model has inputs of any size."""
    return any(d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim)


def gradients(model: nn.Module, call: Callable[..., Any], inputs: Any) -> tuple[list[Tensor], ...]:
    """Results of a model, and the gradients of a sum in which each element counts differently."""
    model.zero_grad()
    outs = [t for t in pytree.tree_leaves(call(**inputs)) if isinstance(t, Tensor)]
    sums = [(t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in outs]
    torch.stack(sums).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [t.detach() for t in outs], found


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SMALL))
def test_training_of_transformers(name: str) -> None:
    """A forward and a backward graph, a session each, which serve all sizes."""
    made, backend = case(name), OrtBackend()
    eager = copy.deepcopy(made.model)
    compiled = torch.compile(made.model, backend=backend, dynamic=True, fullgraph=True)
    calls = [made.kwargs] + [case(name, **sizes).kwargs for sizes in OTHERS[name]]
    for inputs in calls:
        found, wanted = gradients(made.model, compiled, inputs), gradients(eager, eager, inputs)
        torch.testing.assert_close(found, wanted, **CLOSE)
    assert counts(backend) == [1, 1], backend.explain()
    assert backend.execution_count == 2 * len(calls)
    assert "in PyTorch" not in backend.explain()
    assert all(map(is_dynamic, models(backend)))


@pytest.mark.slow
def test_training_of_a_convolutional_model() -> None:
    """Against float64: in float32 eager itself is off by percents, where a relu is at its edge."""
    torch.manual_seed(0)
    model, backend = resnet.ResNet((1, 1), 10).train(), OrtBackend()
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    image = resnet.example(batch=4, size=32)
    found = gradients(model, compiled, {"image": image})
    wanted = gradients(exact, exact, {"image": image.double()})
    torch.testing.assert_close(found, wanted, check_dtype=False, **CLOSE)
    buffers, moved = dict(model.named_buffers()), dict(exact.named_buffers())
    torch.testing.assert_close(buffers, moved, check_dtype=False, **CLOSE)
    assert counts(backend) == [1, 1], backend.explain()
    assert "in PyTorch" not in backend.explain()
