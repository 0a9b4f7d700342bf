"""What exporters are known to get wrong: each case as users meet it, at open sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphport as gp
from tests.onnx.helpers import check_onnx

N = gp.Dim("n", min=1)


@dataclass
class Case:
    """A program of tensors [n, ...], the example, and further inputs."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    others: list[tuple[Any, ...]]
    shapes: Any = None

    def check(self) -> None:
        shapes = self.shapes or tuple({0: N} for _ in self.args)
        fn = self.fn
        check_onnx(
            lambda *tensors: fn(*tensors), self.args, dynamic_shapes=(shapes,), others=self.others
        )


def floats(*sizes: int) -> Tensor:
    return torch.randn(*sizes)


def ints(high: int, *sizes: int) -> Tensor:
    return torch.randint(high, sizes)


def write_at_index(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x = x.clone()
    x[..., i] = v[:, None].expand(-1, i.shape[0])
    return x


def floor_division(x: Tensor) -> Tensor:
    size = x.shape[0]
    return x * ((3 - size) // 2) + (-size) % 3


def masked_moments(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    kept = x * mask
    return kept.mean(0), kept.var(0), mask.to(x.dtype).mean(0), (mask.sum(0) / 2)


def parts(x: Tensor) -> list[Tensor]:
    size = x.shape[0]
    a, b = x.split([size // 2, size - size // 2])
    return [a.sum(0), b, *x.repeat(2, 1).chunk(2), *torch.cat([x, x, x]).split(size)]


def in_place(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    a, b, c, d = (x.clone() for _ in range(4))
    a.detach_()
    b.index_put_((i,), torch.ones(3), accumulate=True)
    c.triu_(1)
    d[:, :].fill_diagonal_(7.0)
    return a + 1, b, c, d


def aliases(x: Tensor) -> tuple[Tensor, Tensor]:
    a = x.clone()
    b = a.view(-1)[1:]
    c = b[::2]
    c.mul_(2)
    b.add_(1)
    return a, c


def compare_with_size(x: Tensor) -> tuple[Tensor, ...]:
    size = x.shape[0]
    return x > size, torch.arange(size) < size - 1, x[:, 0].long() == size


def symbolic_scalars(x: Tensor) -> tuple[Tensor, ...]:
    size = x.shape[0]
    return x * size, x % size, torch.arange(7) % size, x / size, size - x


def reduced(how: str) -> Callable[..., Tensor]:
    return lambda x, i, s: x.scatter_reduce(0, i, s, how, include_self=how != "prod")


def with_vmap(x: Tensor) -> Tensor:
    def allowed(row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row - column < 3)

    rows = torch.arange(x.shape[0])
    each = torch.vmap(torch.vmap(allowed, in_dims=(None, 0)), in_dims=(0, None))
    return each(rows, rows)


BIG = torch.tensor([7_000_000_049, 1, 9_007_199_254_740_993])
CASES = {
    "write at an index": Case(
        write_at_index,
        (floats(4, 5), torch.tensor([0, 3]), floats(4)),
        [(floats(6, 5), torch.tensor([1, 1, 4]), floats(6))],
        shapes=({0: N}, {0: gp.Dim("k", min=1)}, {0: N}),
    ),
    "integer sum": Case(lambda x: (x.sum(), x.sum(0), x.cumsum(0)), (BIG,), [(BIG.repeat(2),)]),
    "floor division": Case(floor_division, (floats(4),), [(floats(7),), (floats(1),)]),
    "full of integers": Case(
        lambda x: torch.full((x.shape[0],), 3) + torch.full_like(x, 2).long(),
        (floats(4),),
        [(floats(2),)],
    ),
    "moments under a mask": Case(
        masked_moments, (floats(4, 3), ints(2, 4, 3)), [(floats(6, 3), ints(2, 6, 3))]
    ),
    "parts": Case(parts, (floats(4, 3),), [(floats(7, 3),), (floats(1, 3),)]),
    "slices without a start": Case(
        lambda x: (x[None:3], x[:-1], x[None:None:2]),
        (floats(4),),
        [(floats(6),), (floats(3),)],
        shapes=({0: gp.Dim("n", min=3)},),
    ),
    "roll": Case(
        lambda x: (x.roll(1, 0), x.roll((2, -1), (0, 1)), x.roll(3)),
        (floats(4, 3),),
        [(floats(2, 3),)],
    ),
    "compare with sizes": Case(compare_with_size, (floats(4, 2) * 4,), [(floats(9, 2) * 9,)]),
    "float and integer": Case(
        lambda m: (1.0 - m, m * 2.0, 1 - m, m / 2, m // 2), (ints(2, 4, 3),), [(ints(2, 6, 3),)]
    ),
    "symbolic scalars": Case(symbolic_scalars, (floats(4),), [(floats(6),), (floats(1),)]),
    "in place": Case(
        in_place,
        (floats(4, 3), torch.tensor([0, 2])),
        [(floats(5, 3), torch.tensor([4, 4]))],
        shapes=({0: gp.Dim("n", min=4)}, {0: gp.Dim("k", min=1)}),
    ),
    "chains of aliases": Case(aliases, (floats(4, 3),), [(floats(6, 3),)]),
    "cummax and cummin": Case(
        lambda x: (*x.cummax(0), *x.cummin(1)), (floats(4, 3),), [(floats(6, 3),)]
    ),
    "complex exponential": Case(
        lambda x: torch.exp(1j * x).real + torch.polar(torch.ones_like(x), x).imag,
        (floats(4),),
        [(floats(7),)],
    ),
    "irfft": Case(
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=6), (floats(4, 6),), [(floats(2, 6),)]
    ),
    "histc": Case(lambda x: torch.histc(x, 5, -2, 2), (floats(9),), [(floats(30),)]),
    "bincount": Case(lambda x: torch.bincount(x, minlength=6), (ints(5, 9),), [(ints(5, 20),)]),
    "search": Case(
        lambda s, x: (torch.searchsorted(s, x), torch.bucketize(x, s, right=True)),
        (torch.arange(5.0), floats(4)),
        [(torch.arange(9.0), floats(4))],
        shapes=({0: gp.Dim("k", min=1)}, {0: N}),
    ),
    "stable sort": Case(
        lambda x: (*x.sort(stable=True), x.argsort(descending=True, stable=True)),
        (ints(3, 12),),
        [(ints(3, 40),)],
    ),
    **{
        f"scatter reduce, {how}": Case(
            reduced(how),
            (floats(4, 3), ints(4, 5, 3), floats(5, 3)),
            [(floats(4, 3), ints(4, 9, 3), floats(9, 3))],
            shapes=(None, {0: N}, {0: N}),
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
    },
    "rms norm without weight": Case(
        lambda x: F.rms_norm(x, (8,)), (floats(4, 8),), [(floats(2, 8),)]
    ),
    "repeat interleave": Case(
        lambda x, r: torch.repeat_interleave(x, r, dim=0, output_size=6),
        (floats(3), torch.tensor([1, 2, 3])),
        [(floats(2), torch.tensor([6, 0]))],
    ),
    "masked scatter": Case(
        lambda x, m, s: x.masked_scatter(m, s),
        (floats(4, 3), ints(2, 4, 3).bool(), floats(12)),
        [(floats(6, 3), ints(2, 6, 3).bool(), floats(18))],
        shapes=({0: N}, {0: N}, {0: gp.Dim("k", min=1)}),
    ),
    "masks by vmap": Case(with_vmap, (floats(4, 4),), [(floats(7, 7),)], shapes=({0: N, 1: N},)),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    CASES[name].check()


def test_products_of_groups() -> None:
    x, w = floats(6, 16).bfloat16(), floats(2, 16, 8).bfloat16()
    offsets = torch.tensor([2, 6], dtype=torch.int32)
    check_onnx(lambda x, w, o: torch._grouped_mm(x, w, offs=o), (x, w, offsets))


def test_a_permutation_is_one() -> None:
    program = gp.onnx.export(
        lambda x: torch.randperm(x.shape[0]), (floats(8),), dynamic_shapes=({0: N},)
    )
    for size in (8, 30):
        drawn = program(floats(size))
        assert drawn.dtype is torch.int64
        assert torch.equal(drawn.sort().values, torch.arange(size))


@pytest.mark.parametrize("kind", [torch.bool, torch.float32], ids=str)
def test_rows_that_attend_to_nothing_are_zero(kind: torch.dtype) -> None:
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[1, :, :, :2] = False
    if kind is not torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    q = floats(2, 4, 5, 8)
    attend = lambda *given: F.scaled_dot_product_attention(*given)
    spec = ({0: gp.Dim("batch", min=1)},) * 4
    for shapes in (None, (spec,)):
        check_onnx(attend, (q, q, q, mask), dynamic_shapes=shapes, others=[(q, q, q, mask)])


def test_a_batch_of_one_at_export_stays_a_batch() -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = floats(1, 5, 16)
    spec = ({0: gp.Dim("batch", min=1), 1: gp.Dim("length", min=1)},)
    check_onnx(
        lambda x: layer(x, x, x, need_weights=False)[0],
        (x,),
        dynamic_shapes=spec,
        others=[(floats(3, 7, 16),)],
    )


class Keywords(nn.Module):
    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        return x + sum(more.values())


def test_a_forward_of_keywords() -> None:
    program = check_onnx(Keywords(), (floats(3),), {"scale": floats(3), "shift": floats(3)})
    assert [v.name for v in program.graph.inputs] == ["x", "scale", "shift"]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x
        return self.seen * 2


def test_state_is_carried() -> None:
    model, x = Counter(), torch.ones(3)
    program = gp.onnx.export(model, (x,))
    assert torch.equal(program(x), torch.full((3,), 2.0))
    assert torch.equal(program(x), torch.full((3,), 4.0))
    assert torch.equal(model.seen, torch.zeros(3))


def test_outputs_that_are_inputs() -> None:
    def fn(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"x": x, "y": y.view(-1), "z": y}

    program = check_onnx(fn, (floats(3), floats(2, 2)))
    names = [v.name for v in (*program.graph.inputs, *program.graph.outputs)]
    assert len(set(names)) == len(names)


def test_sizes_from_data_in_python() -> None:
    """`.tolist()` of a table of sizes, as encoders of images of several sizes do."""

    def fn(x: Tensor, grids: Tensor) -> Tensor:
        pieces = []
        for i, (height, width) in enumerate(grids.tolist()):
            torch._check(height >= 1)
            torch._check(width >= 1)
            rows = torch.arange(height)[:, None] + torch.arange(width)[None, :]
            pieces.append(rows.flatten().float().sum() + x[i])
        return torch.stack(pieces)

    grids = torch.tensor([[2, 3], [1, 4]])
    check_onnx(fn, (floats(2), grids), others=[(floats(2), torch.tensor([[5, 1], [2, 2]]))])


def test_lists_and_plain_values_as_inputs() -> None:
    def fn(pair: list[Tensor], factor: float, mode: str, flag: bool = True) -> Tensor:
        total = pair[0] + pair[1] * factor
        return total.relu() if mode == "relu" and flag else total

    args = ([floats(3), floats(3)], 2.5, "relu")
    program = check_onnx(fn, args)
    assert [v.name for v in program.graph.inputs] == ["pair_0", "pair_1"]
    with pytest.raises(RuntimeError, match="relu"):
        program(args[0], 2.5, "tanh")
