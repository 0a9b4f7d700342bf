"""Training through `torch.compile`: gradients, statistics and optimisers against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphport.runtime import OrtBackend
from tests.runtime.comparing import counts, same

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


class Pair:
    """A compiled model and the same one in eager, which are trained side by side."""

    def __init__(self, model: nn.Module, *, options: Any = None, **how: Any) -> None:
        self.eager = copy.deepcopy(model)
        self.model = model
        self.backend = OrtBackend(options)
        self.compiled = torch.compile(model, backend=self.backend, **how)
        self.drawn: list[Tensor] = []
        """What follows a step of each, of random numbers."""

    def both(self) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        yield self.model, self.compiled
        yield self.eager, self.eager

    def step(self, *args: Tensor, zero: bool = True) -> None:
        """Forward and backward of both, from the same seed; everything is compared."""
        seen = []
        for model, call in self.both():
            if zero:
                model.zero_grad()
            inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in args]
            torch.manual_seed(0)
            out = call(*inputs)
            loss_of(out).backward()
            self.drawn = [*self.drawn[-1:], torch.rand(1)]
            seen.append((out, [t.grad for t in inputs if t.requires_grad]))
        close(*seen)
        self.compare()

    def compare(self) -> None:
        """Parameters, gradients and buffers."""
        found, wanted = (
            [(p.detach(), p.grad) for p in m.parameters()] + list(m.buffers())
            for m in (self.model, self.eager)
        )
        close(found, wanted)


def loss_of(out: Any) -> Tensor:
    """A sum in which every element of every result counts differently."""
    leaves = [t for t in torch.utils._pytree.tree_leaves(out) if t.is_floating_point()]
    total = torch.zeros(())
    for t in leaves:
        total = total + (t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum()
    return total


def close(found: Any, wanted: Any) -> None:
    same(found, wanted, strides=False, **CLOSE)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).flatten(2)


class Words(nn.Module):
    """Its embedding is its last layer too: a parameter that is used twice."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=padding)

    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        scores = self.embedding(words).tanh() @ self.embedding.weight.T
        return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=3)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 4, 3, groups=2, bias=False)
        self.back = nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.pad(self.second(self.first(x)), (1, 1, 1, 1), "replicate"), 3, 2, 1)
        return self.back(F.adaptive_avg_pool2d(F.avg_pool2d(y, 2, 1), 3))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))


def convolution() -> nn.Module:
    """Without a bias: before a batch norm its gradient is zero, and what is computed is noise."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())


def words(*size: int) -> Tensor:
    return torch.randint(0, 11, size)


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


CASES = {
    "mlp": Case(mlp, lambda: (torch.randn(3, 4, requires_grad=True),)),
    "attention": Case(Attention, lambda: (torch.randn(2, 5, 8, requires_grad=True),)),
    "words": Case(Words, lambda: (words(2, 5), words(2, 5))),
    "convolution": Case(convolution, lambda: (torch.randn(2, 3, 6, 6, requires_grad=True),)),
    "images": Case(Images, lambda: (torch.randn(2, 3, 18, 18, requires_grad=True),)),
}
MORE = {
    "padded_words": Case(lambda: Words(2), lambda: (words(2, 9), words(2, 9))),
    "norms": Case(
        lambda: nn.Sequential(
            nn.GroupNorm(2, 4),
            nn.Conv1d(4, 4, 3),
            nn.InstanceNorm1d(4),
            nn.SiLU(),
            nn.RMSNorm(5),
            nn.Softmax(-1),
        ),
        lambda: (torch.randn(2, 4, 7, requires_grad=True),),
    ),
    "activations": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 4),
            nn.ELU(),
            nn.LeakyReLU(),
            nn.Hardtanh(),
            nn.Softplus(),
            nn.Mish(),
            nn.Hardswish(),
            nn.SELU(),
            nn.PReLU(),
            nn.GELU("tanh"),
            nn.GLU(),
            nn.Hardsigmoid(),
            nn.LogSoftmax(-1),
        ),
        lambda: (torch.randn(3, 4),),
    ),
    "resized": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 2, 1),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ReflectionPad2d(1),
            nn.Upsample(scale_factor=2),
        ),
        lambda: (torch.randn(2, 2, 4, 4),),
    ),
    "encoder": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: (torch.randn(2, 5, 8, requires_grad=True),),
    ),
    "double": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh()).double(),
        lambda: (torch.randn(2, 3, 5, 5, dtype=torch.float64),),
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CASES.items()),
        *(pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in MORE.items()),
    ],
)
def test_gradients(case: Case) -> None:
    """Two steps, forward and backward each as one session: nothing is left to torch."""
    pair = Pair(case.make(), dynamic=False)
    for _ in range(2):
        pair.step(*case.inputs())
    assert counts(pair.backend) == [1, 1], pair.backend.explain()
    assert "in PyTorch" not in pair.backend.explain()
    assert pair.backend.execution_count == 4


def test_any_batch_is_one_session() -> None:
    pair = Pair(mlp(), dynamic=True)
    for batch in (3, 5, 2, 9):
        pair.step(torch.randn(batch, 4, requires_grad=True))
    assert counts(pair.backend) == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "words", "convolution", "images"])
def test_any_size_is_one_session(name: str) -> None:
    sizes: dict[str, list[tuple[int, ...]]] = {
        "attention": [(2, 5, 8), (3, 7, 8)],
        "words": [(2, 5), (4, 3)],
        "convolution": [(2, 3, 6, 8), (4, 3, 7, 9)],
        "images": [(2, 3, 18, 20), (4, 3, 21, 24)],
    }
    pair = Pair(CASES[name].make(), dynamic=True)
    for size in sizes[name]:
        if name == "words":
            pair.step(words(*size), words(*size))
        else:
            pair.step(torch.randn(*size, requires_grad=True))
    assert counts(pair.backend) == [1, 1], pair.backend.explain()


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_optimiser(optimizer: str) -> None:
    """Parameters are seen as they have become, by the same sessions, from the same memory."""
    pair = Pair(mlp(), dynamic=False)
    settings = {"SGD": {"momentum": 0.9}, "AdamW": {"weight_decay": 0.1}}[optimizer]
    optimisers = [
        getattr(torch.optim, optimizer)(m.parameters(), lr=0.05, **settings)
        for m in (pair.model, pair.eager)
    ]
    for _ in range(5):
        pair.step(torch.randn(3, 4))
        for o in optimisers:
            o.step()
        pair.compare()
    assert counts(pair.backend) == [1, 1]
    assert pair.backend.execution_count == 10


# Torch imports what it deprecates when it compiles an optimiser.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_optimiser_that_is_compiled(optimizer: str) -> None:
    pair = Pair(mlp())
    ours, eager = (
        getattr(torch.optim, optimizer)(m.parameters(), lr=0.1) for m in (pair.model, pair.eager)
    )
    step = torch.compile(lambda: ours.step(), backend=pair.backend)
    for _ in range(3):
        pair.step(torch.randn(3, 4))
        step()
        eager.step()
        pair.compare()


def test_branches_by_size() -> None:
    """The condition is an input of the backward graph."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y.add_(1)
            return torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (y,))

    pair = Pair(Model(), dynamic=True)
    for rows in (2, 4, 3, 2):
        pair.step(torch.randn(rows, 3, requires_grad=True))
    assert counts(pair.backend) == [1, 1], pair.backend.explain()


def test_gradients_add_up() -> None:
    pair = Pair(mlp(), dynamic=False)
    for i in range(4):
        pair.step(torch.randn(3, 4), zero=i % 2 == 0)


def test_frozen_parameters() -> None:
    model = mlp()
    for p in model[0].parameters():
        p.requires_grad_(False)
    pair = Pair(model, dynamic=False)
    pair.step(torch.randn(3, 4))
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    with torch.no_grad():
        for m in (pair.model, pair.eager):
            m[0].weight.mul_(2)
    pair.step(torch.randn(3, 4))
    assert counts(pair.backend) == [1, 1]


def test_only_the_input_has_a_gradient() -> None:
    pair = Pair(mlp().requires_grad_(False), dynamic=False)
    pair.step(torch.randn(3, 4, requires_grad=True))
    assert counts(pair.backend) == [1, 1]


def test_evaluation_in_between() -> None:
    """Evaluation takes weights in; steps of an optimiser are seen all the same."""
    pair = Pair(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), dynamic=False)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (pair.model, pair.eager)]
    for _ in range(3):
        for m in (pair.model, pair.eager):
            m.train()
        pair.step(torch.randn(3, 4))
        for o in optimisers:
            o.step()
        x = torch.randn(3, 4)
        for m in (pair.model, pair.eager):
            m.eval()
        with torch.no_grad():
            close(pair.compiled(x), pair.eager(x))
        close(pair.compiled(x), pair.eager(x))


def test_statistics() -> None:
    """Batch norm moves them in training, and uses them in evaluation."""
    pair = Pair(convolution(), dynamic=False)
    for _ in range(2):
        pair.step(torch.randn(2, 3, 6, 6) + 1)
    assert pair.model[1].num_batches_tracked == 2
    for m in (pair.model, pair.eager):
        m.eval()
    with torch.no_grad():
        x = torch.randn(2, 3, 6, 6)
        close(pair.compiled(x), pair.eager(x))
    pair.compare()


# What is random, or depends on how tensors lie in memory


def test_dropout_draws_as_eager_does() -> None:
    pair = Pair(
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Dropout(0.2)),
        dynamic=False,
    )
    for _ in range(2):
        pair.step(torch.randn(3, 4))
    assert "draws random numbers" in pair.backend.explain()


class Turned(nn.Module):
    """Which number an element gets depends on where it lies in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout((x * 2).transpose(0, 1).sin(), 0.5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_of_what_lies_otherwise(dynamic: bool) -> None:
    Pair(Turned(), dynamic=dynamic).step(torch.randn(3, 4, requires_grad=True))


@pytest.mark.slow
def test_dropout_in_attention() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    Pair(model, dynamic=False).step(torch.randn(2, 5, 8, requires_grad=True))


class Views(nn.Module):
    """Of a result that lies as its operand does: such a view exists only there."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(x.permute(0, 2, 3, 1))
        return y, y.permute(0, 3, 1, 2).view(x.shape[0], -1), y[0], y.as_strided((3,), (1,), 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_what_lies_otherwise(dynamic: bool) -> None:
    pair = Pair(Views(), dynamic=dynamic)
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    pair.step(x)
    for found, wanted in zip(pair.compiled(x), pair.eager(x), strict=True):
        assert found.stride() == wanted.stride()


# Other ways to train


class Checkpointed(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.last = mlp(), nn.Linear(2, 2)
        if dropout:
            self.inner.append(nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        return self.last(y)


def test_checkpointing() -> None:
    pair = Pair(Checkpointed(), dynamic=False)
    pair.step(torch.randn(3, 4, requires_grad=True))
    assert counts(pair.backend) == [1, 1]


def test_checkpointing_with_dropout() -> None:
    """The backward graph draws what the forward graph drew, and leaves the generator alone."""
    pair = Pair(Checkpointed(0.5), dynamic=False)
    for _ in range(2):
        pair.step(torch.randn(3, 4, requires_grad=True))
        torch.testing.assert_close(*pair.drawn)
    assert not pair.backend.refused
    assert pair.backend.execution_count >= 4 and all(counts(pair.backend))


def test_loss_within() -> None:
    """A function of the model and a loss, with gradients of what it closes over."""
    model, backend = mlp(), OrtBackend()
    eager = copy.deepcopy(model)

    def loss(x: Tensor, y: Tensor, model: nn.Module) -> Tensor:
        return F.mse_loss(model(x), y)

    x, y = torch.randn(3, 4), torch.randn(3, 2)
    torch.compile(loss, backend=backend, fullgraph=True)(x, y, model).backward()
    loss(x, y, eager).backward()
    close([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])


@pytest.mark.slow
def test_autocast() -> None:
    model, backend = mlp(), OrtBackend()
    eager, x = copy.deepcopy(model), torch.randn(3, 4)
    for m, call in ((model, torch.compile(model, backend=backend)), (eager, eager)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(x)
        assert out.dtype is torch.bfloat16
        out.float().sum().backward()
        assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in m.parameters())
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=3e-2, atol=3e-2)


def test_batch_norm_under_autocast() -> None:
    """Torch's rules have its statistics in the dtype of the input, its kernels in that of weights.

    The session of the backward graph is for what the kernels give: one that fails would warn.
    """
    pair = Pair(convolution())
    backend = pair.backend
    for _, call in pair.both():
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(torch.randn(2, 3, 6, 6))
        loss_of(out.float()).backward()
    found, wanted = ([p.grad for p in m.parameters()] for m in (pair.model, pair.eager))
    same(found, wanted, strides=False, rtol=5e-2, atol=5e-1)
    assert backend.execution_count == 2 and counts(backend) == [1, 1]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_writing_to_a_result_that_lies_otherwise() -> None:
    """Autograd would refuse it if the result were a view, made inside, for the sake of strides."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            torch._dynamo.graph_break()
            y.mul_(2)
            return y.erf()

    gradients = []
    for call in (torch.compile(Model(), backend=OrtBackend()), Model()):
        x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).permute(2, 0, 1).requires_grad_()
        call(x).sum().backward()
        gradients.append(x.grad)
    same(*gradients, **CLOSE)
