"""torch.autograd.grad within a program: against eager, at other sizes and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphport as gp
from graphport.errors import ExportError, MutationError, UnsupportedError
from tests.helpers import check
from tests.onnx.helpers import check_onnx

N = gp.Dim("n")
X, OTHERS = torch.randn(3, 4), [(torch.randn(5, 4),), (torch.randn(1, 4),)]
W = torch.randn(5, 4)
TABLE = torch.randn(7, 4)


def slope(y: Tensor, x: Tensor, **options: Any) -> Any:
    return torch.autograd.grad(y.sum(), x, **options)[0]


def force(energy: Callable[[Tensor], Tensor], **options: Any) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Any:
        x = x.clone().requires_grad_(True)
        e = energy(x)
        return e.detach(), -slope(e, x, **options)

    return run


def twice(energy: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    return force(lambda x: force(energy, create_graph=True)(x)[1].pow(2) * x)


def pairs(x: Tensor) -> Tensor:
    """Energies of pairs of atoms, as force fields compute them."""
    distance = (x[:, None, :3] - x[None, :, :3]).pow(2).sum(-1)
    return torch.exp(-distance).masked_fill(torch.eye(x.shape[0], dtype=torch.bool), 0).sum(-1)


def messages(x: Tensor) -> Tensor:
    target = torch.arange(x.shape[0]) % 2
    return torch.zeros(2, 4).index_add(0, target, x.sin()).pow(2)


def attention(x: Tensor) -> Tensor:
    q = x[None, None]
    return F.scaled_dot_product_attention(q, 2 * q, q.sin())


def write_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1).add_(x.reshape(-1).sin())
    return y.pow(2)


def select_by_mask(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0] ** 2


ENERGIES = {
    "linear": lambda x: F.silu(F.linear(x, W)),
    "layer norm": lambda x: F.layer_norm(x, (4,)) ** 2 * x,
    "softmax": lambda x: x.softmax(-1) * x,
    "pairs": pairs,
    "messages": messages,
    "attention": attention,
    "a write": write_through_a_view,
    "a mask": select_by_mask,
    "embedding": lambda x: F.embedding(x[:, 0].abs().long() % 7, TABLE) * x,
    "concatenation": lambda x: torch.cat([x, x.sin()], 1).max(-1).values * 2,
    "gather": lambda x: x.gather(1, x.argsort(-1)[:, :2]) ** 2,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x).exp(),
    "pooling": lambda x: F.max_pool1d(x[None], 2) ** 2,
    "complex": lambda x: torch.view_as_real(torch.fft.rfft(x)) ** 2,
    "dropout in eval": lambda x: F.dropout(x, 0.5, training=False) ** 2,
    "inverse": lambda x: torch.linalg.inv(x[:, :, None] * x[:, None] + torch.eye(4)),
}


@pytest.mark.parametrize("name", ENERGIES)
def test_forces(name: str) -> None:
    run = force(ENERGIES[name])
    eager = torch.enable_grad()(run)
    check_onnx(run, (X,), dynamic_shapes=({0: N},), others=OTHERS, reference=eager)


@pytest.mark.parametrize(
    "name", ["linear", "layer norm", "pairs", "messages", "softmax", "pooling"]
)
def test_derivatives_of_derivatives(name: str) -> None:
    x, *others = (t.double() for t in (X, torch.randn(5, 4), torch.randn(2, 4)))
    run = twice(lambda x: ENERGIES[name](x.float()).double())
    ep = gp.export(run, (x,), dynamic_shapes=({0: N},))
    for t in (x, *others):
        torch.testing.assert_close(ep.module()(t), run(t), rtol=1e-4, atol=1e-4)


class Exp(torch.autograd.Function):
    """Keeps what it is given and what it returns, and has a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 3 * grad * y * x * ctx.k, None


class Several(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Any:
        return x * w, x + w, x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[0])

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor, _: Tensor) -> Any:
        x, w, product = ctx.saved_tensors
        return a * w * 5 + b, a * x + b * product


class Reverse(torch.autograd.Function):
    """Returns what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad.neg().neg() * 2


def of_what_it_is_given(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return slope(Reverse.apply(x * 3).sin() + x, x)


def of_functions(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return slope(Exp.apply(Exp.apply(x / 9, 2.0), 1.0).sin(), x)


def of_functions_again(x: Tensor) -> Tensor:
    x = (x / 9).requires_grad_()
    return slope(slope(Exp.apply(Exp.apply(x, 2.0), 1.0).sin(), x, create_graph=True), x)


def of_one_result(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    a, b, _ = Several.apply(x * 2, x + 1)
    return slope(slope(b, x, create_graph=True) + a, x)


def stress(x: Tensor) -> Any:
    x, strain = x.clone().requires_grad_(), torch.zeros(4, 4)
    strain.requires_grad = True
    moved = x + x @ (strain + strain.T)
    energy = (moved[:, None] - moved[None]).pow(2).sum(-1).add(1).sqrt().sum()
    return torch.autograd.grad([energy], [x, strain])


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad(), torch.enable_grad():
        x = x.clone().requires_grad_()
        energy = x * x.sin()
        with torch.no_grad():
            weight = x.cos()
        return slope(energy * weight * x.detach(), x)


def a_leaf_that_was_used(x: Tensor) -> Tensor:
    x = x.clone()
    before = x.sin()
    x.requires_grad_()
    return slope(before * x.exp(), x)


def hooks(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    x.register_hook(lambda grad: grad.sin())
    x.register_hook(lambda grad: grad * 100).remove()
    return slope(y.cos(), x)


def unused(x: Tensor) -> Any:
    x, other = x.clone().requires_grad_(), torch.ones(3, requires_grad=True)
    y = x.sin().sum()
    options = {"allow_unused": True, "retain_graph": True}
    zeros = torch.autograd.grad(y, [x, other], materialize_grads=True, **options)
    return zeros, torch.autograd.grad(y, [x, other], **options)


def seeds(x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    y, z = x.sin(), x * 2
    given, many = [x.detach(), x.detach() * 3], torch.stack([x.detach(), x.detach() ** 2])
    one = torch.autograd.grad([y, z], x, given, retain_graph=True)
    return one, torch.autograd.grad(y, x, many, is_grads_batched=True)


def checkpoints(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    part = lambda t: t.sin() ** 2
    return slope(torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False), x)


def within_a_branch(x: Tensor) -> Tensor:
    def cube(t: Tensor) -> Tensor:
        t = t.detach().clone().requires_grad_()
        return slope(t**3, t)

    return torch.cond(x.shape[0] > 2, cube, lambda t: t.cos(), (x,))


PROGRAMS = {
    f.__name__: f
    for f in (
        *(
            of_what_it_is_given,
            of_functions,
            of_functions_again,
            of_one_result,
            stress,
            without_gradients,
        ),
        *(a_leaf_that_was_used, hooks, unused, seeds, checkpoints, within_a_branch),
    )
}
PROGRAMS["jacobian"] = lambda x: torch.autograd.functional.jacobian(lambda t: t.sin().sum(0), x)
PROGRAMS["vjp"] = lambda x: torch.autograd.functional.vjp(torch.sin, x, x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    check(PROGRAMS[name], (X,), dynamic_shapes=({0: N},), others=OTHERS)


class ForceField(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, positions: Tensor) -> dict[str, Tensor]:
        with torch.enable_grad():
            positions.requires_grad_(True)
            energy = self.layers(positions).sum()
            (gradient,) = torch.autograd.grad(energy, positions, retain_graph=True)
        return {"energy": energy, "forces": -gradient}


@pytest.mark.parametrize("gradients", [True, False])
def test_a_force_field(gradients: bool) -> None:
    with torch.set_grad_enabled(gradients):
        program = gp.onnx.export(ForceField(), (X,), dynamic_shapes=({0: N},), verify=True)
    assert program.graph.outputs[1].name == "forces"
    model, x = ForceField(), X.clone()
    nested = gp.unflatten(gp.export(model, (x,)))
    torch.testing.assert_close(nested(x)["forces"], model(x)["forces"])


def test_what_is_there_is_not_computed_again() -> None:
    ep = gp.export(force(lambda x: F.linear(x, W).exp().tanh()), (X,))
    names = [n.name for n in ep.graph.nodes]
    assert not {"exp_1", "tanh_1", "linear_1"} & set(names)


def write_without_gradients(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = x * 2
    with torch.no_grad():
        y[0] = 0
    return slope(y**2, x)


def add_to_grad(x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    x.sum().backward()
    return x.grad


def through_a_module_with_hooks(x: Tensor) -> Tensor:
    x, layer = x.clone().requires_grad_(), nn.Tanh()
    layer.register_full_backward_hook(lambda module, given, found: None)
    return slope(layer(x * 2), x)


def through_a_branch(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return slope(torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)), x)


def from_outside_of_a_branch(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = x**2
    return torch.cond(x.shape[0] > 2, lambda a, b: slope(b, a), lambda a, b: a.cos(), (x, y))


REFUSED = {
    write_without_gradients: (MutationError, r"written to under torch.no_grad"),
    add_to_grad: (UnsupportedError, r"backward\(\) adds to the .grad(.|\n)*torch.autograd.grad"),
    through_a_module_with_hooks: (UnsupportedError, "backward hooks"),
    through_a_branch: (UnsupportedError, "through cond"),
    from_outside_of_a_branch: (UnsupportedError, "computed outside of it"),
    force(lambda x: F.dropout(x, 0.5) ** 2): (UnsupportedError, "through aten::dropout"),
    twice(lambda x: torch.linalg.det(x[:, :, None] * x[:, None] + torch.eye(4))): (
        UnsupportedError,
        "differentiated again",
    ),
    lambda x: slope(x**2, x): (ExportError, "does not require grad"),
    force(lambda x: x.detach()): (ExportError, "does not require grad"),
    force(lambda x: torch.ones(3, requires_grad=True)): (ExportError, "not have been used"),
}


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_refused(place: int) -> None:
    program, (kind, said) = list(REFUSED.items())[place]
    with pytest.raises(kind, match=said) as caught:
        gp.export(program, (X,), dynamic_shapes=({0: N},))
    assert "test_derivatives.py" in str(caught.value)


def test_batch_statistics_twice() -> None:
    norm = nn.BatchNorm1d(4)
    with pytest.raises(UnsupportedError, match="second derivative"):
        gp.export(twice(lambda x: norm(x) ** 2), (X,), dynamic_shapes=({0: N},))


def test_training_form() -> None:
    with pytest.raises(UnsupportedError, match="training"):
        gp.export(force(torch.sin), (X,), training=True)
