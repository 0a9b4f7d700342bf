"""Composite operators whose kernel in torch takes plain sizes only: written out for any sizes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphport.capture.tracer import Tracer, inside, special
from graphport.ops import OpInfo
from graphport.ops.sizes import require, wrap_dim
from graphport.ops.strides import at_example
from graphport.symbolic import ge

aten = torch.ops.aten


@special(
    aten.gradient.scalarint, aten.gradient.scalararray, aten.gradient.array,
    aten.gradient.scalarrayint, aten.gradient.scalarrayarray,
)  # fmt: skip
def gradient(tracer: Tracer, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    x, order = args[0], kwargs.get("edge_order", 1)
    sizes = tracer.value(x).abstract.sizes
    chosen = kwargs.get("dim")
    given = range(len(sizes)) if chosen is None else chosen if _is_list(chosen) else [chosen]
    dims = [wrap_dim(d, len(sizes)) for d in given]
    spacing = kwargs.get("spacing")
    spaces = spacing if _is_list(spacing) else [1 if spacing is None else spacing] * len(dims)
    if len(spaces) != len(dims) or order not in (1, 2) or len(set(dims)) < len(dims):
        return inside(tracer, info.op.decompose, args, kwargs)  # which says what is wrong
    for d in dims:
        require(ge(sizes[d], order + 1), "torch.gradient expected each dimension size to be at "
                "least edge_order+1, got {0} in dim {1}", sizes[d], d)  # fmt: skip
    return [inside(tracer, _along, (x, d, space, order), {})
            for d, space in zip(dims, spaces, strict=True)]  # fmt: skip


def _is_list(x: Any) -> bool:
    return isinstance(x, Sequence)


def _along(x: Tensor, dim: int, space: Any, order: int) -> Tensor:
    """Differences of neighbours on both sides; at the ends, of the nearest values."""

    def ends(*places: int) -> list[Tensor]:
        return [x.select(dim, i).unsqueeze(dim) for i in places]

    size = x.shape[dim]
    center = (x.narrow(dim, 2, size - 2) - x.narrow(dim, 0, size - 2)) / 2
    if order == 1:
        (a, b), (y, z) = ends(0, 1), ends(-2, -1)
        first, last = b - a, z - y
    else:
        (a, b, c), (w, y, z) = ends(0, 1, 2), ends(-3, -2, -1)
        first, last = b * 2 - (a * 3 + c) / 2, (z * 3 + w) / 2 - y * 2
    return torch.cat([first, center, last], dim) / space


@special(aten.fill_diagonal_.default)
def fill_diagonal_(tracer: Tracer, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """Of a matrix, a write to its diagonal, which has no elements where the matrix has none."""
    target, value, *rest = args
    wrap = rest[0] if rest else kwargs.get("wrap", False)
    if target.dim() != 2 or wrap:
        return inside(tracer, info.op.decompose, args, kwargs)
    inside(tracer, lambda: target.diagonal().fill_(value), (), {})
    return target


@special(aten.linalg_multi_dot.default)
def linalg_multi_dot(tracer: Tracer, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiplied in the order that takes the fewest steps at the example sizes."""
    tensors = list(args[0])
    if len(tensors) < 2 or not all(t.dim() for t in tensors):
        return inside(tracer, info.op.decompose, args, kwargs)  # which says what is wrong
    extent = [1 if t.dim() == 1 else at_example(tracer.value(t).abstract.sizes[0]) for t in tensors]
    last = tracer.value(tensors[-1]).abstract
    extent.append(at_example(last.sizes[1]) if last.rank > 1 else 1)
    return inside(tracer, _multiplied, (tensors, extent), {})


def _multiplied(tensors: list[Tensor], extent: list[int]) -> Tensor:
    """`extent` are the rows of each matrix, then the columns of the last."""
    row, column = tensors[0].dim() == 1, tensors[-1].dim() == 1
    if row:
        tensors = [tensors[0].unsqueeze(0), *tensors[1:]]
    if column:
        tensors = [*tensors[:-1], tensors[-1].unsqueeze(1)]

    @functools.cache
    def plan(i: int, j: int) -> tuple[int, int]:
        """The steps that the product of tensors i to j takes, and after which one to part it."""
        if i == j:
            return 0, i
        ends = extent[i] * extent[j + 1]
        return min((plan(i, k)[0] + plan(k + 1, j)[0] + ends * extent[k + 1], k)
                   for k in range(i, j))  # fmt: skip

    def product(i: int, j: int) -> Tensor:
        k = plan(i, j)[1]
        return tensors[i] if i == j else torch.mm(product(i, k), product(k + 1, j))

    out = product(0, len(tensors) - 1)
    if column:
        out = out.squeeze(1)
    return out.squeeze(0) if row else out


@special(aten.istft.default)
def istft(tracer: Tracer, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    given = {a.name: a.default_value for a in info.op._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    spectrum, n, window = given["self"], given["n_fft"], given["window"]
    hop = given["hop_length"] = given["hop_length"] or n // 4
    long = given["win_length"] = given["win_length"] or n
    if not spectrum.is_complex():
        raise RuntimeError("istft requires a complex-valued input tensor matching the output from "
                           "stft with return_complex=True.")  # fmt: skip
    fits = spectrum.dim() in (2, 3) and 0 < hop <= long <= n
    bins = tracer.value(spectrum).abstract.sizes[-2] if fits else None
    if given["onesided"] is None:
        given["onesided"] = bins != n
    complex_ = given["return_complex"] or (window is not None and window.is_complex())
    fits = fits and bins == (n // 2 + 1 if given["onesided"] else n) and not complex_
    if not fits or (window is not None and tracer.value(window).abstract.sizes != (long,)):
        return inside(tracer, info.op.decompose, args, kwargs)  # which says what is wrong
    del given["return_complex"]
    return inside(tracer, _inverse_stft, tuple(given.values()), {})


def _inverse_stft(
    spectrum: Tensor, n: int, hop: int, long: int, window: Tensor | None, center: bool,
    normalized: bool, onesided: bool, length: Any,
) -> Tensor:  # fmt: skip
    """Frames in time, added where they overlap, over what their windows add up to."""
    if window is None:
        window = torch.ones(long, dtype=spectrum.real.dtype, device=spectrum.device)
    left = (n - long) // 2
    window = torch.nn.functional.pad(window, (left, n - long - left))
    spectrum = spectrum if onesided else spectrum.narrow(-2, 0, n // 2 + 1)
    frames = torch.fft.irfft(spectrum.transpose(-1, -2), n, norm="ortho" if normalized else None)
    total = n + hop * (frames.shape[-2] - 1)
    start = n // 2 if center else 0
    end = start + length if length is not None else total - start

    def added(frames: Tensor) -> Tensor:
        whole = aten.unfold_backward(frames, (*frames.shape[:-2], total), frames.dim() - 2, n, hop)
        return whole[..., start:end]

    weight = added((window * window).expand(frames.shape[-2], n))
    torch._assert_async(weight.abs().min() >= 1e-11, "window overlap add min: 1")
    signal = added(frames * window) / weight
    return torch.nn.functional.pad(signal, (0, end - total)) if end > total else signal
