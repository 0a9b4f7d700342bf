"""Programs that go to torch.export and come from it, each with sizes that are right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch.nn import functional

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """`shapes` takes a class `Dim`, ours or torch's."""

    make: Callable[[], nn.Module]
    args: Args
    shapes: Callable[[Any], Any] = lambda Dim: None
    kwargs: dict[str, Any] = field(default_factory=dict)
    others: tuple[Args, ...] = ()
    wrong: tuple[Args, ...] = ()


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))

    def forward(self, x):
        return self.block(self.first(self.first(x))) + self.block(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4, 2)
        self.eval()

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)
        return self.out(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Counter(nn.Module):
    """Writes to a buffer, to one that is not saved, and to an input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4), persistent=False)
        self.table = torch.arange(4.0)

    def forward(self, x, y):
        self.steps.add_(1)
        self.last.copy_(x.sum(0))
        y.mul_(2)
        return x + self.table * self.steps + torch.tensor([1.0, 2.0, 3.0, 4.0]), y


class Containers(nn.Module):
    def forward(self, pair, *, options):
        a, b = pair
        return {"sum": a + options["bias"], "rest": [b * options["scale"], None, 3, a.shape[0]]}


class Derived(nn.Module):
    def forward(self, x, y):
        return x[1:] + y, x.shape[0] // 2


class Shorter(nn.Module):
    def forward(self, x, y):
        return x[1:] + y


class OnlyDerived(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 2).sum(1)


class Selecting(nn.Module):
    def forward(self, x):
        kept = x[x > 0]
        where = (x > 1).nonzero()
        return kept * 2, where, kept.shape[0]


class Sliced(nn.Module):
    def forward(self, x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 6)
        torch._check(k <= x.shape[0])
        return x[:k].sum(), torch.zeros(k, 2)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda a: a * self.scale, lambda a: a.sin() - self.scale, (x,)
        )


class Looping(nn.Module):
    """Every kind of loop, and a choice by size."""

    def forward(self, x):
        _, doubled = torch.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x)
        )
        mapped = map_(lambda a, b: a.sin() + b, x, x.sum(0))
        total, steps = scan(lambda c, a: (c + a, c * a), torch.zeros(3), x)
        chosen = torch.cond(x.shape[0] > 4, lambda a: a.sin(), lambda a: a.cos(), (x,))
        return doubled, mapped, total, steps, chosen


class Gradless(nn.Module):
    """A region without gradients, and one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.out = nn.Linear(4, 10, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens):
        with torch.no_grad():
            x = self.table(tokens) * 2
        return self.out(x + self.table(tokens))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, *xs):
        return self.lstm(xs[0] + xs[1])[0]


class Automatic(nn.Module):
    def forward(self, x, y):
        return x + y, x @ x.new_ones(4, 3)


class Sizes(nn.Module):
    """Numbers of every kind in the graph."""

    def forward(self, x):
        n = x.shape[0]
        half, rest = n // 2, n % 3
        wide = max(half, 3) + min(n, 7) * 2 + n**2 // 4
        return x.repeat(half), torch.ones(wide), x / (n / 2), x * (n * 1.5), (n ^ 5) + rest


def randn(*size: int) -> torch.Tensor:
    torch.manual_seed(sum(size))
    return torch.randn(*size)


CASES: dict[str, Case] = {
    "static": Case(Linears, (randn(3, 4),), wrong=((randn(2, 4),),)),
    "linears": Case(
        Linears,
        (randn(3, 4),),
        lambda Dim: {"x": {0: Dim("batch", min=2, max=8)}},
        others=((randn(2, 4),), (randn(8, 4),)),
        wrong=((randn(1, 4),), (randn(9, 4),)),
    ),
    "convolutions": Case(
        Convolutions,
        (randn(2, 3, 16, 16),),
        lambda Dim: {"x": {0: Dim("batch", max=64), 2: 4 * Dim("h", min=2, max=8)}},
        others=((randn(3, 3, 20, 16),),),
        wrong=((randn(3, 3, 36, 16),), (randn(2, 3, 18, 16),)),
    ),
    "counter": Case(
        Counter,
        (randn(3, 4), randn(2)),
        lambda Dim: {"x": {0: Dim("b")}, "y": {0: Dim("c")}},
        others=((randn(5, 4), randn(3)),),
        wrong=((randn(5, 3), randn(3)),),
    ),
    "containers": Case(
        Containers,
        ([randn(3, 2), randn(4)],),
        lambda Dim: {
            "pair": [{0: Dim("n")}, None],
            "options": {"bias": None, "scale": {0: Dim("m")}},
        },
        kwargs={"options": {"bias": randn(2), "scale": randn(5, 1)}},
        others=(([randn(6, 2), randn(4)],),),
        wrong=(([randn(6, 3), randn(4)],),),
    ),
    "derived": Case(
        Derived,
        (randn(7), randn(6)),
        lambda Dim: _derived(Dim),
        others=((randn(5), randn(4)),),
        wrong=((randn(8), randn(7)), (randn(5), randn(6)), (randn(43), randn(42))),
    ),
    "root after derived": Case(
        Shorter,
        (randn(7), randn(6)),
        lambda Dim: _shifted(Dim),
        others=((randn(5), randn(4)),),
        wrong=((randn(7), randn(5)), (randn(22), randn(21))),
    ),
    "only derived": Case(
        OnlyDerived,
        (randn(6),),
        lambda Dim: {"x": {0: 2 * Dim("half", min=2, max=50)}},
        others=((randn(8),),),
        wrong=((randn(7),), (randn(2),), (randn(102),)),
    ),
    "selecting": Case(
        Selecting, (randn(6, 3),), lambda Dim: {"x": {0: Dim("n")}}, others=((randn(9, 3),),)
    ),
    "sliced": Case(
        Sliced,
        (randn(6, 3), torch.tensor(4)),
        lambda Dim: {"x": {0: Dim("n", min=2)}, "n": None},
        others=((randn(9, 3), torch.tensor(2)),),
        wrong=((randn(9, 3), torch.tensor(7)), (randn(3, 3), torch.tensor(4))),
    ),
    "branching": Case(
        Branching,
        (randn(4, 2).abs(),),
        lambda Dim: {"x": {0: Dim("n", max=32)}},
        others=((-randn(5, 2).abs(),), (randn(6, 2).abs(),)),
        wrong=((randn(33, 2),),),
    ),
    "looping": Case(
        Looping,
        (randn(6, 3),),
        lambda Dim: {"x": {0: Dim("n", min=2, max=16)}},
        others=((randn(3, 3),),),
        wrong=((randn(17, 3),),),
    ),
    "gradless": Case(
        Gradless,
        (torch.tensor([[1, 2], [3, 4]]),),
        lambda Dim: {"tokens": {0: Dim("n")}},
        others=((torch.tensor([[5, 6], [7, 8], [9, 0]]),),),
    ),
    "recurrent": Case(
        Recurrent,
        (randn(2, 5, 3), randn(2, 5, 3)),
        lambda Dim: (lambda n: {"xs": ({0: n}, {0: n})})(Dim("n", max=9)),
        others=((randn(3, 5, 3), randn(3, 5, 3)),),
        wrong=((randn(3, 5, 3), randn(2, 5, 3)),),
    ),
    "automatic": Case(
        Automatic,
        (randn(5, 4), randn(5, 4)),
        lambda Dim: {"x": {0: Dim.AUTO, 1: Dim.AUTO}, "y": {0: Dim.AUTO, 1: Dim.AUTO}},
        others=((randn(7, 4), randn(7, 4)),),
        wrong=((randn(7, 5), randn(7, 5)),),
    ),
}

# Programs that torch.export cannot capture, or not without fixing sizes.
OURS_ONLY: dict[str, Case] = {
    "sizes": Case(
        Sizes,
        (randn(6),),
        lambda Dim: {"x": {0: Dim("n", min=3, max=30)}},
        others=((randn(9),), (randn(7),)),
        wrong=((randn(2),), (randn(31),)),
    ),
    "one": Case(
        Linears,
        (randn(1, 4),),
        lambda Dim: {"x": {0: Dim("n")}},
        others=((randn(3, 4),), (randn(0, 4),)),
    ),
}


def _shifted(Dim: Any) -> Any:
    d = Dim("d", min=2, max=20)
    return {"x": {0: d + 1}, "y": {0: d}}


def _derived(Dim: Any) -> Any:
    d = Dim("d", min=2, max=20)
    return {"x": {0: 2 * d + 1}, "y": {0: 2 * d}}
