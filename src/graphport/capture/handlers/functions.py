"""Overrides of indexing and pooling functions, for symbolic integers and sizes.

An integer in an index selects before anything else in the index applies, so integers that are not
plain are taken out first, as `select`s, and the rest of the index is left to torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from graphport.capture.numbers.sequences import SymbolicSequence
from graphport.capture.trace.function_mode import register_override, tensor
from graphport.capture.trace.tracer import Tracer
from graphport.compat.operators import aten
from graphport.compat.torch import is_functorch_wrapped_tensor
from graphport.symbolic.bridge import from_torch
from graphport.types import Args, Argument, Function, Kwargs

_MASK_DTYPES = (torch.bool, torch.uint8)


@register_override(torch.Tensor.__getitem__, torch.Tensor.__setitem__)
def indexing(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    self, index = args[0], args[1]
    given = index if type(index) is tuple else (index,)
    if all(_is_plain(tracer, p) for p in given):
        return NotImplemented
    parts = [_prepare_part(tracer, p) for p in given]
    rest: list[Any] = []
    # From the last to the first, so that the dims of those before stay where they are.
    for part, dim in reversed(list(zip(parts, _locate_dims(self, parts), strict=True))):
        if isinstance(part, torch.SymInt):
            self = self.select(dim, part)
            continue
        if _is_flag(tracer, part):
            # A single bool: a mask of one element over a dim of one.
            self, part = self.unsqueeze(dim), part.reshape(1)
        rest.insert(0, part)
    if func is torch.Tensor.__getitem__:
        return self[tuple(rest)] if rest else self
    self[tuple(rest) if rest else ...] = args[2]
    return None


def _is_plain(tracer: Tracer, part: Any) -> bool:
    if type(part) in (int, type(None), type(...), bool):
        return True
    if type(part) is slice:
        return not any(isinstance(x, torch.Tensor) for x in (part.start, part.stop, part.step))
    if isinstance(part, torch.Tensor):
        if is_functorch_wrapped_tensor(part):  # many, in torch.vmap
            return True
        return not _is_number(tracer, part) and not _is_flag(tracer, part)
    if isinstance(part, (list, tuple)):
        return not any(isinstance(p, torch.SymInt) for p in part)
    return not isinstance(part, (torch.SymInt, SymbolicSequence))


def _is_number(tracer: Tracer, t: torch.Tensor) -> bool:
    """An integer that stands in an index as a tensor, and that is not a literal."""
    if t.dim() or t.dtype in _MASK_DTYPES or t.dtype.is_floating_point or t.dtype.is_complex:
        return False
    return tracer.value(t).literal is None


def _is_flag(tracer: Tracer, part: object) -> bool:
    """A single bool in an index that is not a literal."""
    if not isinstance(part, torch.Tensor) or part.dim() or part.dtype not in _MASK_DTYPES:
        return False
    return tracer.value(part).literal is None


def _prepare_part(tracer: Tracer, part: object) -> Argument:
    if type(part) is slice:
        bounds = (part.start, part.stop, part.step)
        return slice(*(x.item() if isinstance(x, torch.Tensor) else x for x in bounds))
    if isinstance(part, torch.Tensor):
        return part.item() if _is_number(tracer, part) else part
    if isinstance(part, SymbolicSequence):
        return part.as_tensor()
    if isinstance(part, (list, tuple)) and any(isinstance(p, torch.SymInt) for p in part):
        return tensor(tracer, torch.tensor, (list(part),), {})
    return part


def _locate_dims(self: torch.Tensor, parts: list[object]) -> list[int]:
    """The dim of `self` that each part of an index starts at."""
    taken = [_count_dims(p) for p in parts]
    free = self.dim() - sum(taken)
    dims, at = [], 0
    for part, count in zip(parts, taken, strict=True):
        dims.append(at)
        at += free if part is ... else count
    return dims


def _count_dims(part: object) -> int:
    """How many dims a part of an index stands for."""
    if part is None or part is ... or isinstance(part, bool):
        return 0
    if isinstance(part, torch.Tensor) and part.dtype in _MASK_DTYPES:
        return part.dim()
    return 1


# Pooling with a window, or a result, as large as an input is: `F.max_pool1d(x, x.shape[-1])`.
#
# The schemas say that these are plain integers, so torch would fix the size. A window over all
# there is needs none: it is a maximum or a mean. How large a result is to be may be a value of the
# graph.

_ADAPTIVE_POOLS = {
    torch.adaptive_avg_pool1d: aten.adaptive_avg_pool1d.default,
    F.adaptive_max_pool1d: aten.adaptive_max_pool1d.default,
    F.adaptive_max_pool1d_with_indices: aten.adaptive_max_pool1d.default,
    F.adaptive_max_pool2d: aten.adaptive_max_pool2d.default,
    F.adaptive_max_pool2d_with_indices: aten.adaptive_max_pool2d.default,
    F.adaptive_max_pool3d: aten.adaptive_max_pool3d.default,
    F.adaptive_max_pool3d_with_indices: aten.adaptive_max_pool3d.default,
}
_MAX_POOLS = {
    F.max_pool1d: 1,
    F.max_pool1d_with_indices: 1,
    torch.max_pool1d: 1,
    F.max_pool2d: 2,
    F.max_pool2d_with_indices: 2,
    torch.max_pool2d: 2,
    F.max_pool3d: 3,
    F.max_pool3d_with_indices: 3,
    torch.max_pool3d: 3,
}
_AVG_POOLS = {F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3}


@register_override(*_ADAPTIVE_POOLS)
def adaptive_pool(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """A size that is None stays what it is."""
    given = _arguments_by_name(("input", "output_size", "return_indices"), args, kwargs)
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
    out = tracer.call(_ADAPTIVE_POOLS[func], x, wanted)
    return out if isinstance(out, torch.Tensor) or _needs_indices(func, given) else out[0]


@register_override(*_MAX_POOLS)
def max_pool(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = _arguments_by_name(names, args, kwargs)
    n = _MAX_POOLS[func]
    if not _is_global_window(tracer, given, n):
        return NotImplemented
    x = given["input"]
    with tracer.function_mode:
        found = x.flatten(-n).max(-1, keepdim=True)
        out = [t.unflatten(-1, (1,) * n) for t in found]
    return tuple(out) if _needs_indices(func, given) else out[0]


@register_override(*_AVG_POOLS)
def avg_pool(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    names = tuple(
        """
            input kernel_size stride padding ceil_mode count_include_pad divisor_override
        """.split()
    )
    given = _arguments_by_name(names, args, kwargs)
    n = _AVG_POOLS[func]
    if not _is_global_window(tracer, given, n) or given.get("divisor_override") is not None:
        return NotImplemented
    with tracer.function_mode:
        return given["input"].mean(list(range(-n, 0)), keepdim=True)


def _arguments_by_name(names: tuple[str, ...], args: Args, kwargs: Argument) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _needs_indices(func: Any, given: dict[str, object]) -> bool:
    return bool(given.get("return_indices")) or func.__name__.endswith("with_indices")


def _is_global_window(tracer: Tracer, given: dict[str, Any], n: int) -> bool:
    """Whether the window is the input, at sizes that are not fixed, and nothing is added to it."""
    x, kernel = given["input"], given["kernel_size"]
    kernel = list(kernel) if isinstance(kernel, (list, tuple)) else [kernel]
    if not any(isinstance(k, torch.SymInt) for k in kernel) or x.dim() <= n:
        return False
    kernel = kernel * n if len(kernel) == 1 else kernel
    plain = all(
        _has_only(given.get(name, wanted), wanted)
        for name, wanted in (("padding", 0), ("dilation", 1))
    )
    sizes = map(from_torch, x.shape[-n:])
    return plain and all(map(tracer.scope.same, map(from_torch, kernel), sizes))


def _has_only(value: object, wanted: int) -> bool:
    return all(v == wanted for v in value) if isinstance(value, (list, tuple)) else value == wanted
