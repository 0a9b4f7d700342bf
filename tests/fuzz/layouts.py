"""Inputs of programs: what values they have, how they lie in memory, what memory they share.

Everything is text, in terms of sizes by name, so that a failure prints as code; except what is done
to inputs between two calls (`ANEW`), which is a function on the tensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

# How values are drawn: {0} is the sizes. Few repeat, and none is large.
VALUES = {
    "float32": "torch.rand({0}, generator=g) * 4 - 2",
    "float64": "torch.rand({0}, generator=g, dtype=torch.float64) * 4 - 2",
    "float16": "(torch.rand({0}, generator=g) * 4 - 2).half()",
    "bfloat16": "(torch.rand({0}, generator=g) * 4 - 2).bfloat16()",
    "int64": "torch.randint(-4, 9, ({0},), generator=g)",
    "int32": "torch.randint(-4, 9, ({0},), generator=g, dtype=torch.int32)",
    "int8": "torch.randint(-4, 9, ({0},), generator=g, dtype=torch.int8)",
    "uint8": "torch.randint(0, 9, ({0},), generator=g, dtype=torch.uint8)",
    "bool": "torch.rand({0}, generator=g) > 0.5",
    "complex64": "torch.view_as_complex(torch.rand({0}, 2, generator=g) * 2 - 1)",
}
DTYPES = (
    ["float32"] * 12
    + ["float64"] * 2
    + ["int64"] * 3
    + ["float16", "bfloat16", "int32", "int8", "uint8", "bool", "bool", "complex64"]
)


@dataclass(frozen=True)
class Input:
    """An input: its sizes as text, and the line that makes it."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    line: str


def values(dtype: str, dims: tuple[str, ...]) -> str:
    text = VALUES[dtype]
    if not dims:  # torch.rand(()) and torch.randint(a, b, ())
        return text.replace("{0}, 2", "2").replace("({0},)", "()").replace("{0}", "()")
    return text.format(", ".join(dims))


# Layouts: text of a tensor of these sizes, or None where there is none of the kind.
Layout = Callable[[random.Random, str, tuple[str, ...]], str | None]


def _contiguous(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    return values(dtype, dims)


def _transposed(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    if len(dims) < 2:
        return None
    order = list(range(len(dims)))
    while order == sorted(order):
        rng.shuffle(order)
    back = [order.index(i) for i in range(len(dims))]
    made = values(dtype, tuple(dims[i] for i in order))
    return f"({made}).permute({', '.join(map(str, back))})"


def _channels_last(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    if len(dims) != 4:
        return None
    return f"({values(dtype, dims)}).contiguous(memory_format=torch.channels_last)"


def _stepped(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    if not dims:
        return None
    i = rng.randrange(len(dims))
    wide = (*dims[:i], f"2 * ({dims[i]})", *dims[i + 1 :])
    return f"({values(dtype, wide)})[{':, ' * i}::2]"


def _offset(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    if not dims:
        return f"({values(dtype, ('3',))})[1]"
    i = rng.randrange(len(dims))
    wide = (*dims[:i], f"{dims[i]} + 1", *dims[i + 1 :])
    return f"({values(dtype, wide)})[{':, ' * i}1:]"


def _expanded(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    if not dims:
        return None
    i = rng.randrange(len(dims))
    narrow = (*dims[:i], "1", *dims[i + 1 :])
    return f"({values(dtype, narrow)}).expand({', '.join(dims)})"


def _overlapping(rng: random.Random, dtype: str, dims: tuple[str, ...]) -> str | None:
    if len(dims) != 2:
        return None
    a, b = dims
    return f"({values(dtype, (f'{a} + {b}',))}).as_strided(({a}, {b}), (1, 1))"


LAYOUTS: dict[str, tuple[Layout, int]] = {
    "contiguous": (_contiguous, 12),
    "transposed": (_transposed, 4),
    "channels last": (_channels_last, 3),
    "stepped": (_stepped, 2),
    "offset": (_offset, 2),
    "expanded": (_expanded, 2),
    "overlapping": (_overlapping, 1),
}


def draw_input(rng: random.Random, name: str, dims: tuple[str, ...], dtype: str) -> Input:
    kinds, weights = zip(*LAYOUTS.values(), strict=True)
    text = None
    while text is None:
        text = rng.choices(kinds, weights)[0](rng, dtype, dims)
    return Input(name, dims, dtype, text)


def draw_sharing(rng: random.Random, name: str, other: Input) -> Input:
    """An input over the memory of another one."""
    x, dims = other.name, other.dims
    ways = [(x, dims), (f"{x}.view_as({x})", dims), (f"{x}[...]", dims)]
    if dims:
        ways.append((f"{x}.unsqueeze(0)", ("1", *dims)))
    if len(dims) > 1:
        ways.append((f"{x}.permute(*range({len(dims)})[::-1])", dims[::-1]))
    if dims and dims[0].isdigit():
        half = str((int(dims[0]) + 1) // 2)
        ways += [(f"{x}[0]", dims[1:]), (f"{x}[::2]", (half, *dims[1:]))]
    text, sizes = rng.choice(ways)
    return Input(name, sizes, other.dtype, text)


# What is done to inputs before a call: other layouts of the same values, and other sharing.


def in_order(t: torch.Tensor) -> torch.Tensor:
    return t.clone(memory_format=torch.contiguous_format)


def reversed_order(t: torch.Tensor) -> torch.Tensor:
    back = range(t.dim())[::-1]
    return in_order(t.permute(*back)).permute(*back) if t.dim() else t.clone()


def every_other(t: torch.Tensor) -> torch.Tensor:
    wide = t.new_zeros((*t.shape, 2))
    wide[..., 1] = t
    return wide[..., 1]


def offset(t: torch.Tensor) -> torch.Tensor:
    flat = t.new_zeros(t.numel() + 3)
    flat[3:] = t.reshape(-1)
    return flat[3:].view(t.shape)


Inputs = tuple[torch.Tensor, ...]


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Inputs], Inputs | None]:
    return lambda inputs: tuple(map(change, inputs))


def _pairs(inputs: Inputs) -> list[tuple[int, int]]:
    return [
        (i, j)
        for j, y in enumerate(inputs)
        for i, x in enumerate(inputs[:j])
        if x.dtype is y.dtype and x.shape == y.shape
    ]


def _one_for_two(inputs: Inputs) -> Inputs | None:
    """One tensor passed for two."""
    pairs = _pairs(inputs)
    if not pairs:
        return None
    i, j = pairs[0]
    return (*inputs[:j], inputs[i], *inputs[j + 1 :])


def _overlapping_slices(inputs: Inputs) -> Inputs | None:
    """Two inputs that are slices of one tensor, the second a row further on."""
    pairs = [(i, j) for i, j in _pairs(inputs) if inputs[i].dim()]
    if not pairs:
        return None
    i, j = pairs[0]
    x, made = inputs[i], list(inputs)
    base = torch.cat([x, x[:1] if len(x) else x])
    made[i], made[j] = base[: len(x)], base[len(base) - len(x) :]
    return tuple(made)


def _part_of_another(inputs: Inputs) -> Inputs | None:
    """An input that is a part of the memory of a larger one."""
    for i, x in enumerate(inputs):
        for j, y in enumerate(inputs):
            if i != j and x.dtype is y.dtype and x.is_contiguous() and x.numel() >= y.numel() > 0:
                part = x.reshape(-1)[: y.numel()].view(y.shape)
                return (*inputs[:j], part, *inputs[j + 1 :])
    return None


ANEW: dict[str, Callable[[Inputs], Inputs | None]] = {
    "in order": _each(in_order),
    "reversed": _each(reversed_order),
    "every other": _each(every_other),
    "offset": _each(offset),
    "one for two": _one_for_two,
    "overlapping slices": _overlapping_slices,
    "part of another": _part_of_another,
}
