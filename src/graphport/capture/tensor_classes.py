"""Tells which tensors capture can describe, and refuses the others: classes and layouts.

A subclass with a `__torch_dispatch__` of its own (quantised weights, DTensor, jagged tensors) says
itself what operators do to it. Made within the program, it is asked, and what it does to the
tensors that it holds is recorded. As an input, parameter or buffer it would have to be several.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin

from graphport import source
from graphport.errors import CaptureWarning, ExportError, UnsupportedError
from graphport.ops.tensor import AbstractTensor
from graphport.ops.weightless import WeightlessTensor

_DESCRIBED = (AbstractTensor, WeightlessTensor, FakeTensor)
_PADDED = "torch.nested.to_padded_tensor({}, 0.0), and a mask or the lengths beside it"
_FIXES: dict[torch.layout, str] = {torch.jagged: _PADDED}
_OWN_WAY = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)


@functools.lru_cache(maxsize=1024)
def computes_itself(kind: type) -> bool:
    """Whether a class of tensors decides what operators do to it."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own not in _OWN_WAY and not issubclass(kind, _DESCRIBED)


def is_lazy(t: torch.Tensor) -> bool:
    """A parameter or buffer that takes shape in the first call of its module."""
    return isinstance(t, UninitializedTensorMixin)


def require_plain(
    t: torch.Tensor, whose: str, name: str, refusal: type[ExportError] = UnsupportedError
) -> None:
    """Refuse a tensor from outside of the program that is not memory with sizes and strides.

    `whose` is it in words ("the parameter 'w'"), `name` as the user would write it. Where a program
    runs, the `refusal` must not be a TypeError: of that Python makes one of its own at `x @ t`.
    """
    if is_lazy(t):
        raise refusal(
            f"{whose} is an uninitialized parameter, and has no size yet",
            where=source.here(),
            fix="call the lazy module that it belongs to once, before it is captured",
        )
    if t.layout is not torch.strided:
        fix = _FIXES.get(t.layout, "{}.to_dense()")
        what = f"{whose} has layout {t.layout}; only strided tensors are supported"
        raise refusal(what, where=source.here(), fix=fix.format(name))
    if t.is_nested:
        what = f"{whose} is a nested tensor; only strided tensors are supported"
        raise refusal(what, where=source.here(), fix=_PADDED.format(name))
    if computes_itself(type(t)):
        kind = type(t)
        what = f"{whose} is a {kind.__module__}.{kind.__qualname__}, a tensor subclass that is made"
        raise refusal(
            f"{what} of other tensors and says itself what operators do to it",
            where=source.here(),
            fix=_plain_form(t, name),
        )


def _plain_form(t: Any, name: str) -> str:
    """What to write instead of a subclass."""
    if type(t).__name__ == "DTensor":
        return (
            f"{name}.full_tensor(); a sharded model: "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)) into a model on one device"
        )
    if "dequantize" in vars(type(t)):
        return f"{name}.dequantize()"
    if hasattr(t, "__tensor_flatten__"):
        parts = ", ".join(f"{name}.{part}" for part in t.__tensor_flatten__()[0])
        return f"the tensors that it is made of, each by itself: {parts}"
    return f"a plain torch.Tensor for {name}"


def warn_of_functions(t: torch.Tensor, whose: str) -> None:
    """Of a class that overrides torch's functions, capture sees the tensor alone."""
    function: Any = type(t).__torch_function__
    default: Any = torch.Tensor.__torch_function__
    if function is torch._C._disabled_torch_function_impl or issubclass(type(t), _DESCRIBED):
        return
    if getattr(function, "__func__", None) is not default.__func__:
        source.warn(
            f"{whose} is a {type(t).__name__}, whose __torch_function__ is no part of the program: "
            "it is captured as a torch.Tensor",
            CaptureWarning,
        )
