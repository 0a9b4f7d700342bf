"""torch.vmap and torch.func: what they make of a function is captured, at open sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

import graphport as gp
from graphport.errors import UnsupportedError
from tests.onnx.helpers import check_onnx

# What torch imports for forward derivatives still has functions in TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

N = gp.Dim("n")
X, OTHERS = torch.randn(3, 4), [(torch.randn(5, 4),), (torch.randn(1, 4),)]
W = torch.randn(5, 4)


class Square(torch.autograd.Function):
    """Its derivative is not that of what it computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.contiguous() * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 7 * grad * ctx.saved_tensors[0]


class WithRule(Square):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], x: Tensor) -> tuple[Tensor, int]:
        return WithRule.apply(x) + info.batch_size, in_dims[0]


def masks(x: Tensor) -> Tensor:
    """As attention masks are made in transformers: by indexing with what is vmapped."""

    def visible(i: Tensor, j: Tensor) -> Tensor:
        return (x[i, 0] < x[j, 1]) & (j <= i)

    at = torch.arange(x.shape[0])
    with TransformGetItemToIndex():
        return torch.vmap(torch.vmap(visible, in_dims=(None, 0)), in_dims=(0, None))(at, at)


def in_memory(r: Tensor) -> Tensor:
    return r.contiguous().view(-1) * r.stride(0) + (1 if r.is_contiguous() else 2)


def wrong_layout(x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (y.contiguous().view(-1) ** 2).sum())(x)


def energy(x: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(F.linear(x, W), (5,))).pow(2).sum()


def vector(r: Tensor) -> Tensor:
    return torch.tanh(W @ r)


def pull_back(x: Tensor) -> Tensor:
    out, back = torch.func.vjp(lambda y: torch.tanh(y @ W.T), x)
    return back(out)[0]


PROGRAMS = {
    "a Function with a rule of torch's": lambda x: torch.vmap(Square.apply)(x),
    "a Function with its own rule": lambda x: torch.vmap(WithRule.apply)(x),
    "the derivative of a Function": torch.func.grad(lambda x: Square.apply(x).sum()),
    "one under both": torch.vmap(torch.func.grad(lambda r: Square.apply(r).sum())),
    "indexing by what is vmapped": masks,
    "layouts within vmap": lambda x: torch.vmap(in_memory)(x),
    "layouts within grad": wrong_layout,
    "grad": torch.func.grad(energy),
    "grad and value": torch.func.grad_and_value(energy),
    "grad of grad": torch.func.grad(lambda x: torch.func.grad(energy)(x).pow(2).sum()),
    "vjp": pull_back,
    "jvp": lambda x: torch.func.jvp(energy, (x,), (x.cos(),)),
    "jacrev": torch.vmap(torch.func.jacrev(vector)),
    "jacfwd": torch.vmap(torch.func.jacfwd(vector)),
    "hessian": torch.vmap(torch.func.hessian(lambda r: vector(r).sum())),
    "hessian of a whole": torch.func.hessian(lambda x: x.sum(0).sin().prod() * x[:1].sum()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_at_open_sizes(name: str) -> None:
    program: Any = PROGRAMS[name]
    others = OTHERS if "whole" not in name else []
    shapes = ({0: N},) if others else None
    check_onnx(lambda x: program(x), (X,), dynamic_shapes=shapes, others=others)


def test_other_layouts_than_the_example() -> None:
    ep = gp.export(wrong_layout, (X,), dynamic_shapes=({0: N},))
    other = torch.randn(4, 6).T
    torch.testing.assert_close(ep.module()(other), wrong_layout(other))


class PerSample(nn.Module):
    """Gradients with respect to the weights, of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
            return torch.func.functional_call(self.layers, weights, (row,)).sum()

        weights = dict(self.layers.named_parameters())
        return torch.vmap(torch.func.grad(loss), (None, 0))(weights, x)


def test_gradients_of_each_sample() -> None:
    check_onnx(PerSample(), (X,), dynamic_shapes=({0: N},), others=OTHERS)


def test_linearize_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"forward_ad(.|\n)*linearize(.|\n)*torch.func.jvp"):
        gp.export(lambda x: torch.func.linearize(torch.sin, x)[1](x), (X,))


def test_data_of_what_is_vmapped() -> None:
    with pytest.raises(gp.errors.ExportError, match="vmap"):
        gp.export(lambda x: torch.vmap(lambda r: r * r.tolist()[0])(x), (X,))
