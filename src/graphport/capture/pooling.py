"""Pools with a window, or a result, as large as an input is: `F.max_pool1d(x, x.shape[-1])`.

The schemas say that these are plain integers, so torch would fix the size. A window over all there
is needs none: it is a maximum or a mean. How large a result is to be may be a value of the graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from graphport.capture.functions import overrides
from graphport.capture.tracer import Tracer
from graphport.symbolic.bridge import from_torch

aten = torch.ops.aten

_ADAPTIVE = {
    torch.adaptive_avg_pool1d: aten.adaptive_avg_pool1d.default,
    F.adaptive_max_pool1d: aten.adaptive_max_pool1d.default,
    F.adaptive_max_pool1d_with_indices: aten.adaptive_max_pool1d.default,
    F.adaptive_max_pool2d: aten.adaptive_max_pool2d.default,
    F.adaptive_max_pool2d_with_indices: aten.adaptive_max_pool2d.default,
    F.adaptive_max_pool3d: aten.adaptive_max_pool3d.default,
    F.adaptive_max_pool3d_with_indices: aten.adaptive_max_pool3d.default,
}
_MAX = {
    F.max_pool1d: 1, F.max_pool1d_with_indices: 1, torch.max_pool1d: 1,
    F.max_pool2d: 2, F.max_pool2d_with_indices: 2, torch.max_pool2d: 2,
    F.max_pool3d: 3, F.max_pool3d_with_indices: 3, torch.max_pool3d: 3,
}  # fmt: skip
_MEAN = {F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3}


@overrides(*_ADAPTIVE)
def adaptive_pool(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A size that is None stays what it is."""
    given = _named(("input", "output_size", "return_indices"), args, kwargs)
    x, sizes = given["input"], given["output_size"]
    several = isinstance(sizes, (list, tuple))
    sizes = sizes if several else [sizes]
    if not any(s is None or isinstance(s, torch.SymInt) for s in sizes):
        return NotImplemented
    # What torch takes for no size it refuses itself, and None only stands for one among several.
    whole = (int, torch.SymInt, *((type(None),) if several and len(sizes) > 1 else ()))
    if not all(isinstance(s, whole) for s in sizes):
        return NotImplemented
    kept = x.shape[x.dim() - len(sizes) :]
    wanted = [k if s is None else s for s, k in zip(sizes, kept, strict=True)]
    out = tracer.call(_ADAPTIVE[func], x, wanted)
    return out if isinstance(out, torch.Tensor) or _asks_for_indices(func, given) else out[0]


@overrides(*_MAX)
def max_pool(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = _named(names, args, kwargs)
    n = _MAX[func]
    if not _is_all_there_is(tracer, given, n):
        return NotImplemented
    x = given["input"]
    with tracer.above:
        found = x.flatten(-n).max(-1, keepdim=True)
        out = [t.unflatten(-1, (1,) * n) for t in found]
    return tuple(out) if _asks_for_indices(func, given) else out[0]


@overrides(*_MEAN)
def avg_pool(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    names = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
             "divisor_override")  # fmt: skip
    given = _named(names, args, kwargs)
    n = _MEAN[func]
    if not _is_all_there_is(tracer, given, n) or given.get("divisor_override") is not None:
        return NotImplemented
    with tracer.above:
        return given["input"].mean(list(range(-n, 0)), keepdim=True)


def _named(names: tuple[str, ...], args: Any, kwargs: Any) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _asks_for_indices(func: Any, given: dict[str, Any]) -> bool:
    return bool(given.get("return_indices")) or func.__name__.endswith("with_indices")


def _is_all_there_is(tracer: Tracer, given: dict[str, Any], n: int) -> bool:
    """Whether the window is the input, at sizes that are not fixed, and nothing is added to it."""
    x, kernel = given["input"], given["kernel_size"]
    kernel = list(kernel) if isinstance(kernel, (list, tuple)) else [kernel]
    if not any(isinstance(k, torch.SymInt) for k in kernel) or x.dim() <= n:
        return False
    kernel = kernel * n if len(kernel) == 1 else kernel
    plain = all(_is_only(given.get(name, wanted), wanted)
                for name, wanted in (("padding", 0), ("dilation", 1)))  # fmt: skip
    sizes = map(from_torch, x.shape[-n:])
    return plain and all(map(tracer.scope.same, map(from_torch, kernel), sizes))


def _is_only(value: Any, wanted: int) -> bool:
    return all(v == wanted for v in value) if isinstance(value, (list, tuple)) else value == wanted
