"""x[...] with symbolic numbers or tensors where Python's indexing would ask for plain integers.

An integer in an index selects before anything else in the index applies, so integers that are not
plain are taken out first, as `select`s, and the rest of the index is left to torch.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport.capture.functions import overrides, tensor
from graphport.capture.tracer import Tracer

_MASKS = (torch.bool, torch.uint8)


@overrides(torch.Tensor.__getitem__, torch.Tensor.__setitem__)
def indexing(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    self, index = args[0], args[1]
    parts = index if type(index) is tuple else (index,)
    if all(_is_plain(tracer, p) for p in parts):
        return NotImplemented
    parts = [_prepared(tracer, p) for p in parts]
    rest: list[Any] = []
    # From the last to the first, so that the dims of those before stay where they are.
    for part, dim in reversed(list(zip(parts, _dims(self, parts), strict=True))):
        if isinstance(part, torch.SymInt):
            self = self.select(dim, part)
            continue
        if _is_flag(tracer, part):
            # One truth for everything: a mask of one element over a dim of one.
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
        if torch._C._functorch.is_functorch_wrapped_tensor(part):  # many, in torch.vmap
            return True
        return not _is_number(tracer, part) and not _is_flag(tracer, part)
    if isinstance(part, (list, tuple)):
        return not any(isinstance(p, torch.SymInt) for p in part)
    return not isinstance(part, torch.SymInt)


def _is_number(tracer: Tracer, t: torch.Tensor) -> bool:
    """An integer that stands in an index as a tensor, and that is not a literal."""
    if t.dim() or t.dtype in _MASKS or t.dtype.is_floating_point or t.dtype.is_complex:
        return False
    return tracer.value(t).literal is None


def _is_flag(tracer: Tracer, part: Any) -> bool:
    """A single truth in an index that is not a literal."""
    if not isinstance(part, torch.Tensor) or part.dim() or part.dtype not in _MASKS:
        return False
    return tracer.value(part).literal is None


def _prepared(tracer: Tracer, part: Any) -> Any:
    if type(part) is slice:
        bounds = (part.start, part.stop, part.step)
        return slice(*(x.item() if isinstance(x, torch.Tensor) else x for x in bounds))
    if isinstance(part, torch.Tensor):
        return part.item() if _is_number(tracer, part) else part
    if isinstance(part, (list, tuple)) and any(isinstance(p, torch.SymInt) for p in part):
        return tensor(tracer, torch.tensor, (list(part),), {})
    return part


def _dims(self: torch.Tensor, parts: list[Any]) -> list[int]:
    """The dim of `self` that each part of an index starts at."""
    taken = [_taken(p) for p in parts]
    free = self.dim() - sum(taken)
    dims, at = [], 0
    for part, count in zip(parts, taken, strict=True):
        dims.append(at)
        at += free if part is ... else count
    return dims


def _taken(part: Any) -> int:
    """How many dims a part of an index stands for."""
    if part is None or part is ... or isinstance(part, bool):
        return 0
    if isinstance(part, torch.Tensor) and part.dtype in _MASKS:
        return part.dim()
    return 1
