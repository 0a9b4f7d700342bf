"""Draws values for a tensor of other sizes that have the properties of a given one.

An example says more than its dtype: numbers of a range, a causal mask, positions that count up,
offsets in order. `KINDS` lists the properties that are recognised, the most telling first; what has
none of them is drawn from the distribution of the example, without two equal floats where the
example has none. What the program needs of the values besides is a `Need`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Draw = Callable[[list[int], torch.Generator], Tensor]
"""Values of the wide dtype, of given sizes."""

_LOW = -1e4
"""Floats below are meant as minus infinity: additive masks have them."""
_MOST_DISTINCT = 1 << 16
"""Elements up to which care is taken that no two are equal."""
_KNOTS = 4096
"""Numbers of the example that its distribution is known by."""


@dataclass(frozen=True)
class Need:
    """What a program needs of the integers of an input, at certain sizes of it."""

    low: int | None = None
    high: int | None = None
    """The largest that will do."""
    varies: bool = False
    """Whether `high` is another one at other sizes, so that the example's largest says nothing."""
    ascending: bool = False
    first: int | None = None
    last: int | None = None
    total: int | None = None
    """What they add up to along the last dim."""
    distinct: int | None = None
    """In how many of the last dims together no number comes twice."""


def draw_like(
    example: Tensor, sizes: Sequence[int], generator: torch.Generator, need: Need | None = None
) -> Tensor:
    """A tensor of these sizes that is like the example."""
    need, sizes = need or Need(), list(sizes)
    if example.dtype.is_complex:
        parts = [draw_like(part, sizes, generator) for part in (example.real, example.imag)]
        return torch.complex(*parts).to(example.dtype)
    wide = _widen(example)
    made = (
        _draw_by_kind(wide, sizes, generator, need)
        if wide.numel()
        else _draw_unknown(wide, sizes, generator)
    )
    if not made.dtype.is_floating_point:
        made = _fit_need(made, need, generator)
    elif need.ascending and made.ndim:
        made = made.sort(-1).values
    return made.reshape(sizes).to(example.device, example.dtype)


def draw_any(dtype: torch.dtype, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """A tensor of which nothing is known but its dtype: normal numbers, or 0 and 1."""
    if dtype.is_complex:
        parts = [torch.randn(list(sizes), generator=generator) for _ in range(2)]
        return torch.complex(*parts).to(dtype)
    return _draw_unknown(torch.empty(0, dtype=dtype), list(sizes), generator).to(dtype)


def repeat_example(example: Tensor, sizes: Sequence[int]) -> Tensor:
    """The example's own values, repeated or cut along each dim."""
    made = example.detach()
    for dim, size in enumerate(sizes):
        index = torch.arange(size, device=made.device) % max(made.shape[dim], 1)
        made = made.index_select(dim, index)
    return made


def _widen(t: Tensor) -> Tensor:
    t = t.detach().cpu()
    if t.dtype.is_floating_point:
        return t.double() if t.dtype.itemsize > 1 else t.float().double()
    return t if t.dtype is torch.bool else t.to(torch.int64)


def _draw_unknown(wide: Tensor, sizes: list[int], generator: torch.Generator) -> Tensor:
    if wide.dtype.is_floating_point:
        return torch.randn(sizes, generator=generator, dtype=torch.float64)
    return torch.randint(0, 2, sizes, generator=generator)


def _draw_by_kind(t: Tensor, sizes: list[int], generator: torch.Generator, need: Need) -> Tensor:
    for kind in KINDS:
        found = kind(t)
        if found is not None:
            return found(sizes, generator)
    if t.dtype.is_floating_point:
        return _draw_floats(t, sizes, generator)
    return _draw_integers(t, sizes, generator, need)


# Properties: each looks at an example, and says how to draw others like it


def _constant(t: Tensor) -> Draw | None:
    first = t.reshape(-1)[:1]
    if not bool((t == first).all()) or (t.dtype.is_floating_point and t.numel() == 1):
        return None
    return lambda sizes, generator: first.expand(sizes or [1]).clone()


def _progression(t: Tensor) -> Draw | None:
    """Equal steps along one dim, the same along all others: positions, time steps."""
    for dim in reversed(range(t.ndim)):
        line = t.movedim(dim, -1).reshape(-1, t.shape[dim])
        if _is_progression(line):
            return _make_progression(line[0], dim)
    return None


def _make_progression(line: Tensor, dim: int) -> Draw:
    start, step, end = line[0], line[1] - line[0], line[-1]
    whole = not line.dtype.is_floating_point or _is_whole(line[:2])

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        count = sizes[dim]
        steps = torch.arange(count, dtype=line.dtype) * step + start
        if not whole:
            steps = torch.linspace(float(start), float(end), count, dtype=line.dtype)
        return steps.reshape([-1 if d == dim else 1 for d in range(len(sizes))]).expand(sizes)

    return made


def _is_progression(line: Tensor) -> bool:
    """Whether rows are one and the same, in equal steps; two integers could be any."""
    if line.dtype is torch.bool or line.shape[1] < 2 or not bool((line == line[:1]).all()):
        return False
    steps = line[0].diff()
    if line.shape[1] == 2:
        return not line.dtype.is_floating_point and line[0].tolist() == [0, 1]
    close = 1e-5 * float(steps.abs().max()) if line.dtype.is_floating_point else 0
    return bool(steps[0] != 0) and bool(((steps - steps[0]).abs() <= close).all())


def _mask(t: Tensor) -> Draw | None:
    """Two values that say yes and no: bools, 0 and 1, or 0 and as good as minus infinity."""
    low, high = t.min(), t.max()
    two = bool(((t == low) | (t == high)).all())
    said = t.dtype is torch.bool or (low, high) == (0, 1)
    if not two or not (said or (t.dtype.is_floating_point and low < _LOW and high == 0)):
        return None
    pattern = next(found for flavour in _MASK_KINDS if (found := flavour(t == high)) is not None)
    return lambda sizes, generator: torch.where(pattern(sizes, generator), high, low)


def _permutation(t: Tensor) -> Draw | None:
    """Each of 0, 1, ... once along a dim."""
    if t.dtype.is_floating_point:
        return None
    for dim in (-1, 0) if t.ndim else ():
        count = torch.arange(t.shape[dim])
        if len(count) > 1 and bool((t.movedim(dim, -1).sort(-1).values == count).all()):
            return partial(_draw_permutation, dim)
    return None


def _draw_permutation(dim: int, sizes: list[int], generator: torch.Generator) -> Tensor:
    return torch.rand(sizes, generator=generator).argsort(dim)


def _sorted(t: Tensor) -> Draw | None:
    """In order along the last dim: boundaries, offsets, times."""
    if not t.ndim or t.shape[-1] < 3 or t.dtype is torch.bool:
        return None
    steps = t.diff(dim=-1)
    up, down = bool((steps >= 0).all()), bool((steps <= 0).all())
    if not (up or down):
        return None
    strict = bool((steps != 0).all())
    from_zero = bool((t[..., 0] == 0).all())

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        draw = _draw_floats if t.dtype.is_floating_point else _draw_integers
        values = draw(t, sizes, generator).sort(-1, descending=not up).values
        if strict and not t.dtype.is_floating_point and bool((values.diff(dim=-1) == 0).any()):
            line = torch.arange(sizes[-1])
            values = (t.min() + (line if up else line.flip(-1))).expand(sizes).clone()
        if from_zero:
            values[..., :1] = 0
        return values

    return made


def _probabilities(t: Tensor) -> Draw | None:
    """Rows that add up to 1."""
    if not t.dtype.is_floating_point or not t.ndim or t.shape[-1] < 2 or bool((t < 0).any()):
        return None
    if not bool(((t.sum(-1) - 1).abs() < 1e-3).all()):
        return None

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        values = _draw_floats(t, sizes, generator)
        return values / values.sum(-1, keepdim=True).clamp_min(1e-9)

    return made


def _matrix(t: Tensor) -> Draw | None:
    """Square matrices that are triangular, or symmetric, perhaps positive definite."""
    if not t.dtype.is_floating_point or t.ndim < 2 or t.shape[-1] != t.shape[-2] or t.shape[-1] < 2:
        return None
    if not bool(t.isfinite().all()):
        return None
    for triangle in (torch.tril, torch.triu):
        if torch.equal(triangle(t), t):
            return partial(_draw_triangle, triangle, t)
    if not torch.allclose(t, t.mT, rtol=1e-4, atol=1e-6):
        return None
    positive = t.shape[-1] <= 256 and bool((torch.linalg.eigvalsh(t) > 0).all())

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        values = _draw_floats(t, sizes, generator)
        if sizes[-1] != sizes[-2]:
            return values
        if not positive:
            return (values + values.mT) / 2
        product = values @ values.mT / max(sizes[-1], 1)
        return product + torch.eye(sizes[-1], dtype=t.dtype) * (t.abs().mean() + 1e-3)

    return made


def _draw_triangle(
    triangle: Callable[[Tensor], Tensor], t: Tensor, sizes: list[int], generator: torch.Generator
) -> Tensor:
    """A triangular matrix that can be inverted: its diagonal is not smaller than the rest."""
    t = triangle(_draw_floats(t, sizes, generator))
    diagonal = t.diagonal(dim1=-2, dim2=-1)
    if diagonal.numel():
        least = t.abs().amax()
        diagonal.copy_(torch.where(diagonal < 0, -1.0, 1.0) * diagonal.abs().clamp_min(least))
    return t


KINDS: tuple[Callable[[Tensor], Draw | None], ...] = (
    _constant,
    _progression,
    _permutation,
    _mask,
    _sorted,
    _probabilities,
    _matrix,
)


# Masks


def _triangle(p: Tensor) -> Draw | None:
    """Lower or upper, with a diagonal that goes from the first element or to the last one."""
    if p.ndim < 2 or min(p.shape[-2:]) < 2:
        return None
    for keep in (torch.tril, torch.triu):
        for aligned in (False, True):
            for shift in (0, -1, 1):
                made = _make_triangle(keep, aligned, shift)
                if torch.equal(p, made(list(p.shape), torch.default_generator)):
                    return made
    return None


def _make_triangle(keep: Callable[..., Tensor], aligned: bool, shift: int) -> Draw:
    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        offset = (sizes[-1] - sizes[-2] if aligned else 0) + shift
        return keep(torch.ones(sizes[-2:], dtype=torch.bool), offset).expand(sizes)

    return made


def _prefix(p: Tensor) -> Draw | None:
    """Rows that begin with yes and end with no, or the other way round: padding."""
    if not p.ndim or p.shape[-1] < 2:
        return None
    steps = p.to(torch.int8).diff(dim=-1)
    right, left = bool((steps <= 0).all()), bool((steps >= 0).all())
    if not (right or left):
        return None
    lengths = p.sum(-1)
    least, full = int(lengths.min() > 0), bool((lengths == p.shape[-1]).any())

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        size = sizes[-1]
        low = min(least, size)
        count = torch.randint(low, size + 1, [*sizes[:-1], 1], generator=generator)
        if full and count.numel():
            count.view(-1)[0] = size
        values = torch.arange(size) < count
        return values if right else values.flip(-1)

    return made


def _one_hot(p: Tensor) -> Draw | None:
    if not p.ndim or p.shape[-1] < 2 or not bool((p.sum(-1) == 1).all()):
        return None

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        place = torch.randint(0, max(sizes[-1], 1), [*sizes[:-1], 1], generator=generator)
        return torch.arange(sizes[-1]) == place

    return made


def _random_mask(p: Tensor) -> Draw:
    """As many as in the example, and one in each row if each row has one."""
    share = float(p.double().mean())
    everywhere = p.ndim > 0 and bool(p.any(-1).all())

    def made(sizes: list[int], generator: torch.Generator) -> Tensor:
        values = torch.rand(sizes, generator=generator) < share
        if everywhere:
            empty = ~values.any(-1, keepdim=True)
            values = values | (empty & (torch.arange(sizes[-1]) == 0))
        return values

    return made


_MASK_KINDS: tuple[Callable[[Tensor], Draw | None], ...] = (
    _triangle,
    _prefix,
    _one_hot,
    _random_mask,
)


# Numbers


def _draw_floats(t: Tensor, sizes: list[int], generator: torch.Generator) -> Tensor:
    """Floats of the example's distribution, interpolated, so that no two of them are equal."""
    flat = t.reshape(-1)
    finite = flat[flat.isfinite()]
    finite = finite[:: len(finite) // _KNOTS + 1].sort().values
    count = torch.Size(sizes).numel()
    if not len(finite):
        return flat[torch.randint(len(flat), (count,), generator=generator)].reshape(sizes)
    place = torch.rand(count, generator=generator, dtype=t.dtype)
    if count <= _MOST_DISTINCT:
        # One draw from each of as many equal parts of the distribution, in any order.
        place = (place + torch.randperm(count, generator=generator)) / max(count, 1)
    if len(finite) == 1:
        values = finite * (0.5 + place)
    else:
        place = place * (len(finite) - 1)
        below = place.floor().clamp_max(len(finite) - 2).long()
        values = finite[below] + (finite[below + 1] - finite[below]) * (place - below)
    if len(finite) > 1 and _is_whole(finite):
        values = values.round()
    odd = flat[~flat.isfinite()]
    if len(odd):
        spots = torch.rand(count, generator=generator) < len(odd) / len(flat)
        picked = odd[torch.randint(len(odd), (count,), generator=generator)]
        values = torch.where(spots, picked, values)
    return values.reshape(sizes)


def _is_whole(t: Tensor) -> bool:
    return bool((t == t.round()).all())


def _draw_integers(
    t: Tensor, sizes: list[int], generator: torch.Generator, need: Need | None = None
) -> Tensor:
    """Integers of the example's range, or of all that the program can take at these sizes."""
    need = need or Need()
    low, high = int(t.min()), int(t.max())
    values = None
    if low < 0 <= high and len(t[t < 0].unique()) == 1:
        # One negative number among others is a sign, such as the label that is ignored.
        values = torch.rand(sizes, generator=generator) < float((t < 0).double().mean())
        low = int(t[t >= 0].min())
    if need.varies and need.high is not None:
        low, high = min(low, need.high), need.high
    if (
        need.distinct
        and (drawn := _draw_distinct(low, high, sizes, generator, need.distinct)) is not None
    ):
        return drawn
    drawn = _draw_uniform(low, max(low, high), sizes, generator, _distinct_dim(t))
    return drawn if values is None else torch.where(values, int(t.min()), drawn)


def _draw_distinct(
    low: int, high: int, sizes: list[int], generator: torch.Generator, dims: int
) -> Tensor | None:
    """Different numbers in the last dims; None if there are not as many."""
    lead, count = sizes[:-dims], torch.Size(sizes[-dims:]).numel()
    if count > high - low + 1:
        return None
    order = torch.rand([*lead, high - low + 1], generator=generator).argsort(-1)
    return low + order[..., :count].reshape(sizes)


_FLAT = "flat"


def _distinct_dim(t: Tensor) -> int | str | None:
    """Where no number comes twice: anywhere, or along a dim. Writes to such places are defined."""
    if t.numel() == len(t.unique()):
        return _FLAT
    for dim in range(t.ndim):
        if t.shape[dim] > 1 and bool((t.sort(dim).values.diff(dim=dim) != 0).all()):
            return dim
    return None


def _draw_uniform(
    low: int, high: int, sizes: list[int], generator: torch.Generator, distinct: int | str | None
) -> Tensor:
    count, span = torch.Size(sizes).numel(), high - low + 1
    if distinct == _FLAT and count <= span <= _MOST_DISTINCT:
        return low + torch.randperm(span, generator=generator)[:count].reshape(sizes)
    if (
        isinstance(distinct, int)
        and sizes[distinct] <= span
        and count * span <= _MOST_DISTINCT * 64
    ):
        rest = [n for d, n in enumerate(sizes) if d != distinct]
        order = torch.rand([*rest, span], generator=generator).argsort(-1)
        return low + order[..., : sizes[distinct]].movedim(-1, distinct)
    if span >= 1 << 62:  # more than torch draws at once
        return torch.randint(low // 4, high // 4, sizes, generator=generator) * 4
    return torch.randint(low, high + 1, sizes, generator=generator)


def _fit_need(values: Tensor, need: Need, generator: torch.Generator) -> Tensor:
    """Values that the program can take, as near to those drawn as may be."""
    if values.dtype is torch.bool:
        return values
    low, high = need.low, need.high
    if low is not None and high is not None:
        span = max(high - low + 1, 1)
        values = torch.where((values < low) | (values > high), low + (values - low) % span, values)
    if need.total is not None and values.ndim:
        return _draw_counts(values, need.total, generator)
    if need.ascending and values.ndim:
        values = values.sort(-1).values
        for place, end in ((slice(0, 1), need.first), (slice(-1, None), need.last)):
            if end is not None:
                values[..., place] = end
    return values


def _draw_counts(values: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """Counts that add up along the last dim."""
    count = values.shape[-1]
    if not count:
        return values
    cuts = torch.randint(0, total + 1, [*values.shape[:-1], count - 1], generator=generator)
    ends = torch.zeros([*values.shape[:-1], 1], dtype=torch.int64)
    return torch.cat((ends, cuts.sort(-1).values, ends + total), -1).diff(dim=-1)
