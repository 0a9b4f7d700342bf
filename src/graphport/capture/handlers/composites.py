"""Composite operators and factories whose kernels take plain integers only, for symbolic sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphport.capture.trace.tracer import Tracer, register_handler, trace_decomposition
from graphport.compat.operators import aten
from graphport.compat.torch import assert_async
from graphport.errors import ShapeError
from graphport.ops import OpInfo
from graphport.ops.registry import overloads
from graphport.ops.sizes import establish, wrap_dim
from graphport.symbolic import ge
from graphport.symbolic.bridge import sym_ite
from graphport.tensors.abstract import get_example_size
from graphport.types import Args, Argument, Device, Dtype, Kwargs


@register_handler(*overloads("gradient.scalarint,scalararray,array,scalarrayint,scalarrayarray"))
def gradient(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x, order = args[0], kwargs.get("edge_order", 1)
    sizes = tracer.value(x).abstract.sizes
    chosen = kwargs.get("dim")
    given = range(len(sizes)) if chosen is None else chosen if _is_list(chosen) else [chosen]
    dims = [wrap_dim(d, len(sizes)) for d in given]
    spacing = kwargs.get("spacing", 1)
    spaces = spacing if _is_list(spacing) else [1 if spacing is None else spacing] * len(dims)
    if len(spaces) != len(dims) or order not in (1, 2) or len(set(dims)) < len(dims):
        return trace_decomposition(
            tracer, info.op.decompose, args, kwargs
        )  # which says what is wrong
    for d in dims:
        if not establish(ge(sizes[d], order + 1)):
            raise ShapeError(
                "torch.gradient expected each dimension size to be at least edge_order+1, got "
                f"{sizes[d]} in dim {d}"
            )
    return [
        trace_decomposition(tracer, _gradient_along, (x, d, space, order), {})
        for d, space in zip(dims, spaces, strict=True)
    ]


@register_handler(*overloads("quantile.default,scalar nanquantile.default,scalar"))
def quantile(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    if not all(establish(ge(s, 1)) for s in x.sizes):
        raise ShapeError(f"quantile of an empty tensor: {x}")
    return trace_decomposition(tracer, info.op.decompose, args, kwargs)


def _is_list(x: object) -> bool:
    return isinstance(x, Sequence)


def _gradient_along(x: Tensor, dim: int, space: Any, order: int) -> Tensor:
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


@register_handler(aten.fill_diagonal_.default)
def fill_diagonal_(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Of a matrix, a write to its diagonal, which has no elements where the matrix has none."""
    target, value, *rest = args
    wrap = rest[0] if rest else kwargs.get("wrap", False)
    if target.dim() != 2 or wrap:
        return trace_decomposition(tracer, info.op.decompose, args, kwargs)
    trace_decomposition(tracer, lambda: target.diagonal().fill_(value), (), {})
    return target


@register_handler(aten.linalg_multi_dot.default)
def linalg_multi_dot(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Multiplied in the order that takes the fewest steps at the example sizes."""
    tensors = list(args[0])
    if len(tensors) < 2 or not all(t.dim() for t in tensors):
        return trace_decomposition(
            tracer, info.op.decompose, args, kwargs
        )  # which says what is wrong
    extent = [
        1 if t.dim() == 1 else get_example_size(tracer.value(t).abstract.sizes[0]) for t in tensors
    ]
    last = tracer.value(tensors[-1]).abstract
    extent.append(get_example_size(last.sizes[1]) if last.rank > 1 else 1)
    return trace_decomposition(tracer, _multiply_chain, (tensors, extent), {})


def _multiply_chain(tensors: list[Tensor], extent: list[int]) -> Tensor:
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
        return min(
            (plan(i, k)[0] + plan(k + 1, j)[0] + ends * extent[k + 1], k) for k in range(i, j)
        )

    def product(i: int, j: int) -> Tensor:
        k = plan(i, j)[1]
        return tensors[i] if i == j else torch.mm(product(i, k), product(k + 1, j))

    out = product(0, len(tensors) - 1)
    if column:
        out = out.squeeze(1)
    return out.squeeze(0) if row else out


@register_handler(aten.istft.default)
def istft(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    given = {a.name: a.default_value for a in info.op._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    spectrum, n, window = given["self"], given["n_fft"], given["window"]
    hop = given["hop_length"] = given["hop_length"] or n // 4
    long = given["win_length"] = given["win_length"] or n
    if not spectrum.is_complex():
        raise RuntimeError(
            "istft requires a complex-valued input tensor matching the output from "
            "stft with return_complex=True."
        )
    fits = spectrum.dim() in (2, 3) and 0 < hop <= long <= n
    bins = tracer.value(spectrum).abstract.sizes[-2] if fits else None
    if given["onesided"] is None:
        given["onesided"] = bins != n
    complex_ = given["return_complex"] or (window is not None and window.is_complex())
    fits = fits and bins == (n // 2 + 1 if given["onesided"] else n) and not complex_
    if not fits or (window is not None and tracer.value(window).abstract.sizes != (long,)):
        return trace_decomposition(
            tracer, info.op.decompose, args, kwargs
        )  # which says what is wrong
    del given["return_complex"]
    return trace_decomposition(tracer, _inverse_stft, tuple(given.values()), {})


def _inverse_stft(
    spectrum: Tensor,
    n: int,
    hop: int,
    long: int,
    window: Tensor | None,
    center: bool,
    normalized: bool,
    onesided: bool,
    length: Any,
) -> Tensor:
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
    assert_async(weight.abs().min() >= 1e-11, "window overlap add min: 1")
    signal = added(frames * window) / weight
    return torch.nn.functional.pad(signal, (0, end - total)) if end > total else signal


# Overrides of functions that take a count as a plain integer, for a count that is a size.
#
# Their schemas have no place for a symbolic number, and torch would ask for the one of the example.
# So the tensor is put together by operators that take sizes, with what is special about a count of
# 0 or 1 in the formula. What is not here keeps its count: an error says where, if the spec says
# otherwise.

Function = Callable[..., Any]


def _make_positions(count: Argument, dtype: Dtype, device: Device) -> Tensor:
    """0, 1, 2, ... as floats."""
    return torch.arange(count, dtype=dtype or torch.get_default_dtype(), device=device)


# Windows


def _make_window(shape: Function) -> Function:
    """A window of a shape, which is given the places and the last of them.

    A periodic one is all but the last value of a longer one. One value is 1, whatever the shape.
    """

    @functools.wraps(shape)
    def window(
        window_length: Any,
        periodic: bool = True,
        *numbers: float,
        dtype: Dtype = None,
        device: Device = None,
        **more: Any,
    ) -> Any:
        if dtype is not None and not dtype.is_floating_point:
            return NotImplemented
        shaping = {k: v for k, v in more.items() if k in ("alpha", "beta")}
        last = torch.sym_max(window_length if periodic else window_length - 1, 1)
        made = shape(_make_positions(window_length, dtype, device), last, *numbers, **shaping)
        single = sym_ite(window_length == 1, 1.0, 0.0)
        return made * (1.0 - single) + single

    return window


@_make_window
def hamming_window(places: Tensor, last: Any, alpha: float = 0.54, beta: float = 0.46) -> Tensor:
    return (places * (2 * math.pi / last)).cos() * -beta + alpha


@_make_window
def hann_window(places: Tensor, last: Any) -> Tensor:
    return (places * (2 * math.pi / last)).cos() * -0.5 + 0.5


@_make_window
def bartlett_window(places: Tensor, last: Any) -> Tensor:
    line = places * (2 / last)
    return torch.where(places < last // 2 + 1, line, 2 - line)


@_make_window
def blackman_window(places: Tensor, last: Any) -> Tensor:
    line = places * (math.pi / last)
    return (line * 4).cos() * 0.08 - (line * 2).cos() * 0.5 + 0.42


@_make_window
def kaiser_window(places: Tensor, last: Any, beta: float = 12.0) -> Tensor:
    apart = places * (2 / last) - 1
    top = torch.i0(torch.scalar_tensor(beta, dtype=places.dtype, device=places.device))
    return torch.i0((1 - apart * apart).clamp(min=0).sqrt() * beta) / top


# Lines


def fftfreq(
    n: Argument, d: float = 1.0, *, dtype: Dtype = None, device: Device = None, **_: object
) -> Argument:
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    places = _make_positions(n, dtype, device)
    return torch.where(places < (n + 1) // 2, places, places - n) * _frequency(n, d)


def rfftfreq(
    n: Argument, d: float = 1.0, *, dtype: Dtype = None, device: Device = None, **_: object
) -> Argument:
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    return _make_positions(n // 2 + 1, dtype, device) * _frequency(n, d)


def _frequency(n: Argument, d: float) -> Argument:
    return sym_ite(n == 0, math.inf, 1.0 / (torch.sym_max(n, 1) * d))


def vander(x: Tensor, N: Argument = None, increasing: bool = False) -> Argument:
    """Columns of powers: the first is 1, each other the one before it times x."""
    if x.dim() != 1:
        return NotImplemented
    columns = torch.arange(x.shape[0] if N is None else N, device=x.device)
    factors = x.unsqueeze(1).to(torch.promote_types(x.dtype, torch.int64))
    powers = torch.where(columns == 0, torch.ones_like(factors), factors).cumprod(1)
    return powers if increasing else powers.flip(1)


# Triangles


def tril_indices(
    row: Argument,
    col: Argument,
    offset: Argument = 0,
    *,
    dtype: Dtype = None,
    device: Device = None,
    **_: object,
) -> Argument:
    mask = torch.ones(row, col, dtype=torch.bool, device=device).tril(offset)
    return _list_indices(mask, _count_below(row, col, offset), dtype)


def triu_indices(
    row: Argument,
    col: Argument,
    offset: Argument = 0,
    *,
    dtype: Dtype = None,
    device: Device = None,
    **_: object,
) -> Argument:
    mask = torch.ones(row, col, dtype=torch.bool, device=device).triu(offset)
    return _list_indices(mask, row * col - _count_below(row, col, offset - 1), dtype)


def _list_indices(mask: Tensor, count: Argument, dtype: Dtype) -> Tensor:
    rows, columns = torch.nonzero_static(mask, size=count).unbind(1)
    return torch.stack([rows, columns]).to(dtype or torch.int64)


def _count_below(row: Argument, col: Argument, offset: Argument) -> Argument:
    """How many elements are on the diagonal of this number and below it.

    From row to row there is one more, from none to a whole row: the sum of the rows that have any
    is a triangle, and the rows past the whole one make it too large by another one.
    """

    def triangle(n: Argument) -> Argument:
        return n * (n + 1) // 2

    def rows(from_: Any) -> Any:
        return torch.sym_max(row + from_, 0)

    above = torch.sym_max(offset, 0)
    return (
        triangle(rows(offset))
        - triangle(above)
        - triangle(rows(offset - col))
        + triangle(torch.sym_max(above - col, 0))
    )


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Argument:
    """Pairs only."""
    if r != 2 or input.dim() != 1:
        return NotImplemented
    count = input.shape[0]
    one, other = triu_indices(count, count, 0 if with_replacement else 1, device=input.device)
    return torch.stack([input[one], input[other]], 1)


SYMBOLIC_COUNTS: dict[Any, Function] = {
    torch.hann_window: hann_window,
    torch.hamming_window: hamming_window,
    torch.bartlett_window: bartlett_window,
    torch.blackman_window: blackman_window,
    torch.kaiser_window: kaiser_window,
    torch.fft.fftfreq: fftfreq,
    torch.fft.rfftfreq: rfftfreq,
    torch.vander: vander,
    torch.tril_indices: tril_indices,
    torch.triu_indices: triu_indices,
    torch.combinations: combinations,
}
