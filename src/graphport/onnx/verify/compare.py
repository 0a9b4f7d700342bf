"""Compares results with those of eager, by dtype.

Floats have to be close: as close as the coarsest dtype that they were computed in allows, relative
to the size of the numbers around them. NaN has to meet NaN, and infinity the same infinity.
Integers and bools have to be equal; what can excuse them, if they are chosen by comparing floats,
is in `ties`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

# Relative and absolute: kernels of ONNX Runtime add in another order, and round halves elsewhere.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-8),
    torch.float32: (1e-4, 2e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (5e-2, 5e-2),
    torch.float8_e4m3fn: (0.13, 0.1),
    torch.float8_e4m3fnuz: (0.13, 0.1),
    torch.float8_e5m2: (0.25, 0.2),
    torch.float8_e5m2fnuz: (0.25, 0.2),
}


@dataclass(frozen=True)
class Tolerance:
    """How close floats have to be."""

    rtol: float
    atol: float
    relative: bool = True
    """Whether `atol` is meant for numbers around 1, and grows with them."""

    @classmethod
    def of(cls, dtype: torch.dtype, rtol: float | None, atol: float | None) -> Tolerance:
        """What the user says, or what goes with a dtype."""
        own = TOLERANCES.get(dtype, (0.0, 0.0))
        if rtol is None and atol is None:
            return cls(*own)
        return cls(
            rtol if rtol is not None else own[0], atol if atol is not None else own[1], False
        )


@dataclass(frozen=True)
class Comparison:
    """One result against another."""

    ok: bool
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    note: str = ""

    def combine(self, other: Comparison) -> Comparison:
        """Both: the larger errors, and what is wrong with the first that is."""
        ok = self.ok and other.ok
        note = other.note if self.ok and not other.ok else self.note or other.note
        return Comparison(
            ok,
            max(self.max_abs_error, other.max_abs_error),
            max(self.max_rel_error, other.max_rel_error),
            note,
        )


def compare_results(have: Any, want: Any, tolerance: Tolerance) -> Comparison:
    """A result of the model against that of eager."""
    if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
        return _compare_numbers(have, want, tolerance)
    if have.dtype is not want.dtype:
        return Comparison(
            False, math.inf, math.inf, f"{_dtype_name(have)} instead of {_dtype_name(want)}"
        )
    if have.shape != want.shape:
        sizes = f"of size {list(have.shape)} instead of {list(want.shape)}"
        return Comparison(False, math.inf, math.inf, sizes)
    if not want.numel():
        return Comparison(True)
    have, want = have.detach().cpu(), want.detach().cpu()
    if not want.dtype.is_floating_point and not want.dtype.is_complex:
        return _compare_exact(have, want)
    return _compare_floats(_to_float64(have), _to_float64(want), tolerance)


def compare_metadata(have: Any, want: Any) -> Comparison:
    """For random numbers: the dtype and the sizes are all that can be compared."""
    if isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor):
        found = compare_results(torch.zeros_like(have), torch.zeros_like(want), Tolerance(0, 0))
        return replace(found, note=found.note or "random: dtype and sizes agree")
    return Comparison(type(have) is type(want), note="random")


def _compare_numbers(have: object, want: object, tolerance: Tolerance) -> Comparison:
    if type(have) is not type(want):
        return Comparison(False, math.inf, math.inf, f"{have!r} instead of {want!r}")
    if isinstance(want, float):
        ours, theirs = (torch.tensor([x], dtype=torch.float64) for x in (have, want))
        return _compare_floats(ours, theirs, tolerance)
    if have == want:
        return Comparison(True)
    return Comparison(False, math.inf, math.inf, f"{have!r} instead of {want!r}")


def _compare_exact(have: torch.Tensor, want: torch.Tensor) -> Comparison:
    differ = have != want
    count = int(differ.sum())
    if not count:
        return Comparison(True)
    a, b = (t[differ].to(torch.float64) for t in (have, want))
    error = (a - b).abs()
    relative = (error / b.abs().clamp_min(1)).max().item()
    note = f"{count} of {want.numel()} differ"
    return Comparison(False, error.max().item(), relative, note)


def _compare_floats(have: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> Comparison:
    finite = want.isfinite() & have.isfinite()
    # Numbers that are none have to be the same: nan and nan, or infinities of one sign.
    alike = finite | (have == want) | (have.isnan() & want.isnan())
    odd = int((~alike).sum())
    a, b = have[finite], want[finite]
    error, size = (a - b).abs(), b.abs()
    scale = max(1.0, size.median().item()) if tolerance.relative and size.numel() else 1.0
    allowed = tolerance.atol * scale + tolerance.rtol * size
    far = int((error > allowed).sum())
    worst = error.max().item() if error.numel() else 0.0
    # Of a number near zero the relative error says nothing.
    floor = max(tolerance.atol * scale, torch.finfo(torch.float64).tiny)
    relative = (error / size.clamp_min(floor)).max().item() if error.numel() else 0.0
    if odd:
        return Comparison(
            False,
            math.inf,
            math.inf,
            f"{odd} of {want.numel()} are nan or infinite in one of them only",
        )
    note = f"{far} of {want.numel()} differ" if far else ""
    return Comparison(not far, worst, relative, note)


def nudge(x: object) -> object:
    """Each float the next one, up or down: a rounding error of the smallest kind."""
    if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point or x.dtype.itemsize < 4:
        return x
    up = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return torch.nextafter(x, torch.where(up, math.inf, -math.inf).to(x))


def is_rounding(have: Any, want: torch.Tensor, nudged: Any) -> bool:
    """Whether eager itself, given inputs that differ by rounding, differs nearly as much.

    The limits keep this to single numbers that are a little too far: what a program amplifies more
    is shown, and so is what a result is wrong by.
    """
    if not want.dtype.is_floating_point or want.shape != nudged.shape or want.shape != have.shape:
        return False
    a, b, c = (_to_float64(t.detach().cpu()) for t in (have, want, nudged))
    error, noise = (a - b).abs(), (c - b).abs()
    if not (error.isfinite().all() and noise.isfinite().all()):
        return False
    limit = _ROUNDING_LIMIT * max(1.0, b.abs().median().item())
    return bool(error.max() <= min(_ROUNDING_FACTOR * noise.max().item(), limit))


_ROUNDING_FACTOR = 16
"""The inputs are nudged once; every operator of a program rounds."""
_ROUNDING_LIMIT = 2e-3


def _to_float64(t: torch.Tensor) -> torch.Tensor:
    t = t.resolve_conj().resolve_neg()
    return torch.view_as_real(t).double() if t.dtype.is_complex else t.double()


def _dtype_name(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")
