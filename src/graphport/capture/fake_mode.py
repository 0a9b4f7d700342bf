"""`gp.fake_mode()`: modules are built, and checkpoints loaded, without memory for weights.

Three things happen inside. A parameter gives up its value when it is made. What a factory is asked
for (`torch.randn(...)`) is not made yet if it is large: it either becomes a parameter, and never
is, or somebody looks at it, and it is made then. And checkpoints are read as references into their
files. Everything else is as ever: tensors that a constructor computes are real, and so are buffers.

A capture inside of the mode does not see it: the program makes its tensors where it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from graphport import process
from graphport.capture.checkpoints import readers, replaced
from graphport.capture.settings import FLAGS
from graphport.ops.weightless import WeightlessTensor, deferred, notes_of, without_data

_LARGE = 1 << 20  # bytes; what is smaller costs less to make than to think about
_here = process.thread_local()


@contextmanager
def fake_mode() -> Iterator[None]:
    """Build modules and load checkpoints without memory for their weights.

    >>> import torch, graphport as gp
    >>> with gp.fake_mode():
    ...     model = torch.nn.Linear(100_000, 100_000)  # 40 GB
    >>> model.weight
    WeightlessTensor(no data, size=[100000, 100000], dtype=torch.float32, device=cpu, ...)
    >>> ep = gp.export(model, (torch.empty(2, 100_000),))

    Parameters take no memory; buffers that a constructor computes are real. `torch.load` and
    safetensors' `load_file` and `safe_open` give tensors that refer to the file (`t.reference`) and
    read it when they are asked for numbers (`t.read()`); `load_state_dict` hands that on to the
    parameters.
    """
    _teach_initialisers()
    mode = _Building()
    try:
        try:
            FLAGS.hold(mode)
            _replaced.hold(mode)
            with mode:
                yield
        finally:
            _leave(mode)
    finally:  # an interrupt may come in the midst of the other one
        _leave(mode)


class _Building(TorchDispatchMode):
    """Puts off what factories make."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here runs under Dynamo; the guard against it would import Dynamo."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_factory(op):
            later = deferred(op, args, kwargs, _LARGE)
            if later is not None:
                return later
        return op(*args, **kwargs)


def _leave(mode: _Building) -> None:
    """Undo what is left to undo; modes that were entered since stay."""
    stack = _get_current_dispatch_mode_stack()
    if mode in stack:
        keep = stack[stack.index(mode) + 1 :]
        for _ in (mode, *keep):
            torch._C._pop_torch_dispatch_stack(None)
        for later in keep:
            torch._C._push_on_torch_dispatch_stack(later)
    _replaced.release(mode)
    FLAGS.release(mode)


_factories: dict[Any, bool] = {}


def _is_factory(op: Any) -> bool:
    """An operator that makes a tensor from numbers alone, on the device it is told."""
    known = _factories.get(op)
    if known is None:
        known = False
        if isinstance(op, OpOverload):
            arguments = op._schema.arguments
            named = any(a.name == "device" for a in arguments)
            known = named and not any("Tensor" in str(a.type) for a in arguments)
        _factories[op] = known
    return known


def _is_active() -> bool:
    """Whether this thread is in the mode, and not capturing."""
    return any(isinstance(mode, _Building) for mode in _get_current_dispatch_mode_stack())


@functools.cache
def _teach_initialisers() -> None:
    """For good: tensors without data outlive the mode, and may be initialised after it.

    Of torch's initialisers only this one looks at what it has drawn, to draw again.
    """
    original = nn.init._no_grad_trunc_normal_

    def trunc_normal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if type(tensor) is not WeightlessTensor:
            return original(tensor, *args, **kwargs)
        with torch.no_grad():
            return tensor.normal_()

    nn.init._no_grad_trunc_normal_ = trunc_normal  # type: ignore[assignment]


# What modules do with tensors.


def _parameter(original: Any, kind: Any, data: Any = None, requires_grad: bool = True) -> Any:
    if type(data) is WeightlessTensor:
        source = data._memory.source
        if source is not None and not source.is_saved and not _is_loading():
            data._memory.source = None
    elif type(data) in (torch.Tensor, nn.Parameter) and not _is_loading():
        if data.device.type != "meta" and data.layout is torch.strided:
            data = without_data(data)
    return original(kind, data, requires_grad)


def _register_buffer(
    original: Any, module: Any, name: str, tensor: Any, *args: Any, **kwargs: Any
) -> Any:
    return original(module, name, _computed(tensor), *args, **kwargs)


def _set_attribute(original: Any, module: Any, name: str, value: Any) -> None:
    original(module, name, _computed(value))


def _computed(value: Any) -> Any:
    """What a constructor made, if that was put off; what came from a file stays there."""
    if type(value) is not WeightlessTensor or isinstance(value, nn.Parameter):
        return value
    source = value._memory.source
    if source is None or source.is_saved or _is_loading():
        return value
    real = value.read().to(value.device).requires_grad_(value.requires_grad)
    vars(real).update(notes_of(value))
    return real


def _is_loading() -> bool:
    return getattr(_here, "loading", False)


def _load_state_dict(original: Any, *args: Any, **kwargs: Any) -> Any:
    """What is loaded is kept: a parameter made of it does not give it up."""
    outer, _here.loading = _is_loading(), True
    try:
        return original(*args, **kwargs)
    finally:
        _here.loading = outer


def _replacements() -> Iterator[process.Replacement]:
    for owner, name, new in (
        (nn.Parameter, "__new__", _parameter),
        (nn.Module, "register_buffer", _register_buffer),
        (nn.Module, "__setattr__", _set_attribute),
        (nn.Module, "load_state_dict", _load_state_dict),
        *readers(),
    ):
        yield replaced(owner, name, new, _is_active)


_replaced = process.Patch(_replacements)
