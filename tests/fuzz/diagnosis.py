"""What may excuse a difference: a run of eager under noise that shows what eager leaves undefined.

Run once without noise it names causes for which results are nobody's fault: a write to memory that
overlaps itself or what is read, a choice among equal values, a float that no integer is like, a
place written twice in one go. Run with noise, every computed float is changed by about what one
operator rounds off; what that does to the results is what a difference may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ROUNDING = {torch.float16: 1.0, torch.bfloat16: 1.0, torch.float32: 8.0, torch.float64: 8.0}
"""By how many last places a kernel may be off."""

_CHOICES = {
    "sort",
    "argsort",
    "topk",
    "max",
    "min",
    "argmax",
    "argmin",
    "median",
    "nanmedian",
    "kthvalue",
    "mode",
    "cummax",
    "cummin",
    "aminmax",
    "max_pool2d_with_indices",
    "unique_dim",
    "_unique2",
}
_PLACES = {
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "index_copy",
    "index_copy_",
    "scatter",
    "scatter_",
}
_INDEXED = {
    "index",
    "index_add",
    "index_add_",
    "index_fill",
    "index_fill_",
    "index_select",
    "gather",
    "take",
} | _PLACES
BEYOND = "position beyond a tensor without elements"
"""Which eager lets pass, and nobody else does."""
OUTSIDE = "storage read beyond the elements of a tensor"
"""By as_strided: of what an operator allocates, and of what is passed in, there may be less."""
_AMPLIFIES = ("norm", "var", "std")
"""What divides by differences, which may be all rounding: noise is that of the operands."""
_ADDS_UP = set(
    "linalg_cross convolution mm bmm addmm baddbmm addbmm mv addmv dot vdot sum mean cumsum".split()
)
"""What adds products, of which nothing but rounding may be left, or 0."""
_AS_IT_IS = {"pixel_shuffle", "pixel_unshuffle"}
_FILLS = {"fill_", "zero_"}
_SIGNS = {"copysign": "other", "signbit": "self", "reciprocal": "self", "atan2": "other"}
"""What tells 0 from -0, and of which operand."""
_COMPARES = {"eq", "ne", "lt", "le", "gt", "ge", "isclose"}
_HALVES = (torch.float16, torch.bfloat16)


class Diagnosis(TorchDispatchMode):
    """Watches every operator of a run of eager; `noise` is the seed of what it changes."""

    def __init__(self, noise: int | None = None) -> None:
        super().__init__()
        self.causes: set[str] = set()
        self.random = None if noise is None else torch.Generator().manual_seed(noise)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it, and to say so takes longer than to look

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = self._by_name(func, args, kwargs)
        name = func._schema.name.removeprefix("aten::")
        if self.random is None:
            self._look(name, func, given)
            return func(*args, **kwargs)
        known = [t.detach().clone() for t in _floats((args, kwargs))]
        amplifies = name in _ADDS_UP or any(part in name for part in _AMPLIFIES)
        if amplifies and args and isinstance(args[0], torch.Tensor):
            noisy = args[0].clone()
            self._disturb(noisy, [], [])
            args = (noisy, *args[1:])
        out = func(*args, **kwargs)
        if name in _ADDS_UP or "norm" in name:
            self._clear_remainders(out, func, args, kwargs)
        # Few numbers are halves: a function may give its operand, rounded.
        pointwise = torch.Tag.pointwise in func.tags
        known = [t for t in known if not (pointwise and t.dtype in _HALVES)]
        self._disturb(out, known, pytree.tree_leaves((args, kwargs)))
        return out

    def _clear_remainders(self, out: Any, func: Any, args: Any, kwargs: Any) -> None:
        """In half of the runs what is no more than the rounding of the operands is 0."""
        assert self.random is not None
        noisy = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
        self._disturb(noisy, [], [])
        again = func(*noisy, **kwargs)
        if torch.rand((), generator=self.random) < 0.5:
            for t, other in zip(_floats(out), _floats(again), strict=True):
                t[(other - t).abs() >= t.abs() / 4] = 0

    def _by_name(self, func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        names = [a.name for a in func._schema.arguments]
        return dict(zip(names, args, strict=False)) | kwargs

    def _look(self, name: str, func: Any, given: dict[str, Any]) -> None:
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for t in _tensors(given.get(argument.name)):
                    self._look_at_write(name, func, t, given)
        first = next(iter(given.values()), None)
        if name.endswith("_scatter") and isinstance(first, torch.Tensor) and overlaps_itself(first):
            self.causes.add("write to memory that overlaps itself")  # the copy has its strides
        if name in _CHOICES and not given.get("stable"):
            if _ties(first, given.get("dim")):
                self.causes.add("tie")
        if name in _COMPARES and _as_good_as_equal(first, given.get("other")):
            self.causes.add("comparison of halves that are as good as equal: computed as singles")
        if name in _PLACES and _twice(name, given):
            self.causes.add("place written twice")
        if name in _INDEXED and isinstance(first, torch.Tensor) and not first.numel():
            self.causes.add(BEYOND)
        if name == "as_strided" and _extent(given["size"], given["stride"]) > _extent(
            first.shape, first.stride()
        ):
            self.causes.add(OUTSIDE)
        if name in _AS_IT_IS and not first.numel():
            self.causes.add("tensor without elements that eager gives back as it is")
        if name.startswith("_fft") and not bool(torch.isfinite(first).all()):
            self.causes.add("transform of what is not finite")
        if name == "_euclidean_dist":
            self.causes.add("distances of many rows, which eager takes from a product")
        if name in ("median", "nanmedian") and _is_expanded(first):
            self.causes.add("median of an expanded tensor, which eager gets wrong")
        if name == "angle" and _is_next_to_a_cut(first):
            self.causes.add("angle of a number as good as negative")
        if name in _SIGNS and _has_zero(given.get(_SIGNS[name], first)):
            self.causes.add("sign of a zero, in which kernels for one and for many elements differ")
        if name.startswith("conv") and not given["weight"].numel():
            self.causes.add("convolution of no channels, of which eager has no channels come out")
        if name in ("_to_copy", "copy_"):
            source = given.get("src", first)
            target = given.get("dtype") or (first.dtype if name == "copy_" else None)
            if target is not None and _does_not_fit(source, target):
                self.causes.add("float that no integer is like")

    def _look_at_write(self, name: str, func: Any, t: torch.Tensor, given: Any) -> None:
        if name not in _FILLS and overlaps_itself(t):
            self.causes.add("write to memory that overlaps itself")
        reads = [u for u in _tensors(list(given.values())) if u is not t]
        aligned = torch.Tag.pointwise in func.tags or name == "copy_"
        for u in reads:
            if aligned and _same_place(t, u):
                continue
            if overlap(t, u):
                self.causes.add("write to memory that is being read")

    def _disturb(self, out: Any, known: list[torch.Tensor], given: list[Any]) -> None:
        shared = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor)}
        inputs = {id(t) for t in given}
        for t in _floats(out):
            fresh = t.untyped_storage()._cdata not in shared
            if not t.numel() or not (fresh or id(t) in inputs) or overlaps_itself(t):
                continue
            wide = torch.view_as_real(t) if t.is_complex() else t
            if any(_moved(wide, k) for k in known):
                continue  # values that were only moved are exact
            eps = torch.finfo(wide.dtype).eps * ROUNDING.get(wide.dtype, 1.0)
            change = torch.rand(wide.shape, generator=self.random, dtype=torch.float64) * 2 - 1
            wide.mul_(1 + eps * change)


def _moved(t: torch.Tensor, known: torch.Tensor) -> bool:
    known = torch.view_as_real(known) if known.is_complex() else known
    if known.dtype is not t.dtype:
        return False
    there = torch.cat([known.double().reshape(-1), torch.zeros(1)])
    return bool(torch.isin(t.double(), there).all())


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def _floats(x: Any) -> Iterable[torch.Tensor]:
    return [t for t in _tensors(x) if t.is_floating_point() or t.is_complex()]


def places(t: torch.Tensor) -> torch.Tensor:
    """The addresses of all bytes of a tensor."""
    start = t.data_ptr()
    found = torch.arange(t.element_size())
    for n, s in zip(t.shape, t.stride(), strict=True):
        found = (found[:, None] + torch.arange(n) * s * t.element_size()).reshape(-1)
    return found + start


def _extent(sizes: Iterable[int], strides: Iterable[int]) -> int:
    return sum(max(n - 1, 0) * s for n, s in zip(sizes, strides, strict=True))


def overlaps_itself(t: torch.Tensor) -> bool:
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n != 1):
        if s < expected:
            found = places(t)
            return found.unique().numel() < found.numel()
        expected = s * n
    return False


def overlap(t: torch.Tensor, u: torch.Tensor) -> bool:
    if t.untyped_storage()._cdata != u.untyped_storage()._cdata or not t.numel() or not u.numel():
        return False
    return bool(torch.isin(places(t), places(u)).any())


def _same_place(t: torch.Tensor, u: torch.Tensor) -> bool:
    same = (t.data_ptr(), t.shape, t.dtype) == (u.data_ptr(), u.shape, u.dtype)
    return same and all(
        a == b or n == 1 for n, a, b in zip(t.shape, t.stride(), u.stride(), strict=True)
    )


def _is_expanded(t: torch.Tensor) -> bool:
    return any(step == 0 and n > 1 for n, step in zip(t.shape, t.stride(), strict=True))


def _ties(t: Any, dim: Any) -> bool:
    if not isinstance(t, torch.Tensor) or t.is_complex() or not t.numel():
        return False
    t, dim = (t.reshape(-1), 0) if dim is None or not t.dim() else (t, dim)
    ordered = t.double().nan_to_num(nan=1e30).sort(dim).values
    return bool((ordered.diff(dim=dim) == 0).any())


def _is_next_to_a_cut(t: torch.Tensor) -> bool:
    if not t.is_complex():
        return False
    near = t.imag.abs() <= 8 * torch.finfo(t.real.dtype).eps * t.abs()
    return bool((near & (t.real <= 0)).any())


def _has_zero(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and bool((t == 0).any())


def _as_good_as_equal(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or a.dtype not in _HALVES or isinstance(b, complex):
        return False
    x, y = torch.broadcast_tensors(a.double(), torch.as_tensor(b).double())
    return bool(((x - y).abs() <= torch.finfo(a.dtype).eps * x.abs()).any())


def _twice(name: str, given: dict[str, Any]) -> bool:
    if given.get("accumulate") or ("value" in given and "indices" not in given):
        return False
    if "indices" in given:
        shape = given["self"].shape
        index = [i for i in given["indices"] if i is not None]
        if any(i.dtype is torch.bool for i in index):
            return False
        sizes = [n for i, n in zip(given["indices"], shape, strict=False) if i is not None]
        index = [i % max(n, 1) for i, n in zip(index, sizes, strict=True)]
        rows = torch.stack([i.reshape(-1) for i in torch.broadcast_tensors(*index)], -1)
        return bool(rows.unique(dim=0).shape[0] < rows.shape[0]) if rows.numel() else False
    if "src" not in given and "source" not in given:
        return False
    return _ties(given["index"], given["dim"])


def _does_not_fit(t: Any, dtype: torch.dtype) -> bool:
    if not isinstance(t, torch.Tensor) or not t.is_floating_point() or not t.numel():
        return False
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return False
    info = torch.iinfo(dtype)
    wide = t.detach().double()
    return bool((~wide.isfinite() | (wide < info.min) | (wide > info.max)).any())
