"""One row per operator: a function, and the sizes of its inputs written as words.

`Row(torch.matmul, "b t 8", "8 k")` is captured with fixed sizes and with a dim for every letter,
and compared with eager at the example, at other sizes, at 1 and (unless told otherwise) at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import graphport as gp
from tests.helpers import check

EXAMPLE = {"b": 3, "t": 5, "c": 4, "h": 8, "w": 6, "k": 7, "n": 4}
LARGER = {name: size * 2 for name, size in EXAMPLE.items()}

Make = Callable[..., torch.Tensor]


@dataclass
class Row:
    fn: Callable[..., Any]
    specs: tuple[str, ...]
    name: str = ""
    make: Sequence[Make] | Make = torch.randn
    least: dict[str, int] = field(default_factory=dict)
    """Dims that cannot be smaller; the others are tried at 0 and 1."""
    fixed: str = ""
    """Letters that stand for fixed sizes."""
    view: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Applied to every input: a transposed, sliced or expanded one."""
    layout: bool = True
    tolerance: float | None = None

    def inputs(self, sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
        makes = self.make if isinstance(self.make, (list, tuple)) else [self.make] * len(self.specs)
        out = []
        for spec, make in zip(self.specs, makes, strict=True):
            t = make([int(w) if w.isdigit() else sizes[w] for w in spec.split()])
            out.append(t if self.view is None else self.view(t))
        return tuple(out)

    def letters(self) -> set[str]:
        words = {w for spec in self.specs for w in spec.split()}
        return {w for w in words if not w.isdigit()} - set(self.fixed)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        if self.view is not None:  # it has its own idea of the dims
            return tuple(dict.fromkeys(range(t.dim()), gp.Dim.AUTO) for t in self.inputs(EXAMPLE))
        dims = {w: gp.Dim(w, min=self.least.get(w)) for w in self.letters()}
        return tuple(
            {d: dims[w] for d, w in enumerate(spec.split()) if w in dims} for spec in self.specs
        )

    def others(self) -> Iterator[dict[str, int]]:
        if self.view is not None:
            return
        letters = self.letters()
        yield {**EXAMPLE, **{w: LARGER[w] for w in letters}}
        for small in (1, 0):
            able = {w: small for w in letters if self.least.get(w, 0) <= small}
            if able:
                yield {**EXAMPLE, **able}


def row(fn: Callable[..., Any], *specs: str, name: str = "", **options: Any) -> Any:
    made = Row(fn, specs, name or getattr(fn, "__name__", "row"), **options)
    return pytest.param(made, id=made.name)


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Operators of torch have no signature that Python can see."""
    return lambda *tensors: fn(*tensors)


def check_static(row: Row) -> None:
    check(
        program(row.fn),
        row.inputs(EXAMPLE),
        layout=row.layout,
        rtol=row.tolerance,
        atol=row.tolerance,
    )


def check_dynamic(row: Row) -> None:
    if not row.letters():
        return
    check(
        program(row.fn),
        row.inputs(EXAMPLE),
        dynamic_shapes=(row.dynamic_shapes(),),
        others=[row.inputs(sizes) for sizes in row.others()],
        layout=row.layout,
        rtol=row.tolerance,
        atol=row.tolerance,
    )


def ints(upper: int) -> Make:
    return lambda size: torch.randint(upper, tuple(size))


def positive(size: Sequence[int]) -> torch.Tensor:
    return torch.rand(tuple(size)) + 0.5


def bools(size: Sequence[int]) -> torch.Tensor:
    return torch.randint(2, tuple(size)).bool()


def complexes(size: Sequence[int]) -> torch.Tensor:
    return torch.randn(tuple(size), dtype=torch.complex64)


def square(size: Sequence[int]) -> torch.Tensor:
    """Positive definite matrices: every factorisation and every inverse exists."""
    a = torch.randn(tuple(size))
    return a @ a.mT + 4 * torch.eye(a.shape[-1])
