"""Running torch on tensors without data: sizes in, sizes out.

Tensors without data are the abstract tensors of an exported program, whose sizes may be symbolic,
and PyTorch's fake tensors. Within `Dataless`, an operator that gets one of them takes the others as
such, too: parameters and constants need no conversion beforehand, and are never written to. Tensors
on the meta device are made abstract tensors on the device that the program is for: layouts, and
checks that all is on one device, depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from graphport.errors import DataDependentError, UnsupportedError
from graphport.ops import Abstract, info_of, meta_rule
from graphport.ops.abstract import row_major
from graphport.ops.meta import meta_tensor
from graphport.ops.tensor import AbstractTensor, abstract_tensor
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, to_torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NEEDS_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

Run = Callable[[OpOverload, Any, Any, list[torch.Tensor]], Any]


def has_no_data(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, (AbstractTensor, FakeTensor)) or value.device.type == "meta"


def device_of(module: nn.Module) -> torch.device:
    """The device that a program is for: that of its weights."""
    state = next(itertools.chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if state is None else state.device


def without_data(x: Any, device: torch.device) -> Any:
    """A tensor as an abstract one; on `device`, if it is on the meta device."""
    if not isinstance(x, torch.Tensor) or isinstance(x, (AbstractTensor, FakeTensor)):
        return x
    if x.layout is not torch.strided or x.is_quantized:
        raise UnsupportedError(f"a tensor of {x.layout} or {x.dtype} cannot go without data")
    place = device if x.device.type == "meta" else x.device
    sizes, strides = tuple(x.size()), tuple(x.stride())
    packed = None if strides == row_major(sizes) else strides
    return abstract_tensor(Abstract(sizes, x.dtype, place, packed), x.requires_grad)


def meta_like(x: Any) -> Any:
    """An abstract tensor as one on the meta device."""
    if not isinstance(x, AbstractTensor):
        return x
    return meta_tensor(x._abstract).requires_grad_(x.requires_grad)


class Dataless(TorchDispatchMode):
    """Operators on tensors without data. See the module."""

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        run = _runner(tensors)
        if run is None:
            return op(*args, **kwargs)
        if _NEEDS_DATA & set(op.tags):
            raise DataDependentError(f"the result of {op} depends on numbers, and there are none")
        return run(op, args, kwargs, tensors)


def _runner(tensors: list[torch.Tensor]) -> Run | None:
    """How to run an operator on these; None where all have data."""
    for kind, run in _RUNNERS:
        if any(isinstance(t, kind) for t in tensors):
            return run
    return None


def _on_abstract(op: OpOverload, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """By our own shape rules, which take symbolic sizes."""
    info = info_of(op)
    called, described, named = info, [_described(a) for a in args], _described(kwargs)
    if info.functional is not None:
        called = info_of(info.functional)
        described = info.arranged(described)
        named = {k: v for k, v in named.items() if k not in info.mutated}
    out = (
        called.rule(*described, **named)
        if called.rule is not None
        else meta_rule(called.op, described, named)
    )
    if info.mutated:
        return _after(op, [kwargs[m] if isinstance(m, str) else args[m] for m in info.mutated], out)
    return _tensors(out)


def _after(op: OpOverload, written: list[Any], out: Any) -> Any:
    """What an operator returns that has written `out` to tensors."""
    if torch.Tag.inplace_view in op.tags and isinstance(written[0], AbstractTensor):
        _become(written[0], out)
    returns = op._schema.returns
    if not returns:
        return None
    if any(r.alias_info is None for r in returns):  # results beside those that were written
        return _tensors(out[: len(returns)] if isinstance(out, (list, tuple)) else out)
    return written[0] if len(returns) == 1 else tuple(written[: len(returns)])


def _become(tensor: AbstractTensor, abstract: Abstract) -> None:
    """`t_`, `squeeze_`, ...: the tensor itself has other sizes from now on."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        tensor.data = abstract_tensor(abstract)
    tensor._abstract = abstract


def _described(x: Any) -> Any:
    if isinstance(x, AbstractTensor):
        return x._abstract
    if isinstance(x, torch.Tensor):
        return without_data(x, x.device)._abstract
    if isinstance(x, _SYMBOLIC):
        return from_torch(x)
    if isinstance(x, dict):
        return {k: _described(v) for k, v in x.items()}
    return [_described(y) for y in x] if isinstance(x, (list, tuple)) else x


def _tensors(x: Any) -> Any:
    if isinstance(x, Abstract):
        return abstract_tensor(x)
    if isinstance(x, Expr):
        return to_torch(x)
    return type(x)(map(_tensors, x)) if type(x) in (list, tuple) else x


def _on_fake(op: OpOverload, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    mode = next(t.fake_mode for t in tensors if isinstance(t, FakeTensor))

    def faked(x: Any) -> Any:
        real = isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)
        return mode.from_tensor(x.detach()) if real else x

    args, kwargs = pytree.tree_map(faked, (args, kwargs))
    with mode:
        return op(*args, **kwargs)


_RUNNERS: tuple[tuple[type, Run], ...] = ((AbstractTensor, _on_abstract), (FakeTensor, _on_fake))


@contextmanager
def keeping_buffers(module: nn.Module) -> Iterator[None]:
    """Give buffers their numbers back: statistics of batches are no business of who looks on."""
    buffers = (b for b in module.buffers() if not has_no_data(b) and not is_lazy(b))
    before = [(b, b.detach().clone()) for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, numbers in before:
                # Only where it must: writing takes what a backward pass may still need. Versions do
                # not tell, as batch norm writes behind their back.
                if not torch.equal(buffer, numbers):
                    buffer.copy_(numbers)
