"""`torch.vmap`, `torch.func.grad`, `jvp` and the like: functorch runs above the tracer.

Each operator passes functorch's levels before the tracer sees it, as what the transforms have made
of it: nothing of a transform is left in the graph. What is here are calls above the operators, on
tensors that a transform has wrapped, and operators that only transforms ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from graphport import source
from graphport.capture.handlers.functions import indexing
from graphport.capture.trace.function_mode import (
    OVERRIDES,
    UNDER_TRANSFORMS,
    register_override,
    tensor,
)
from graphport.capture.trace.tracer import Tracer, register_handler
from graphport.compat.operators import aten, higher_order
from graphport.compat.torch import (
    DispatchKey,
    OpOverload,
    get_unwrapped,
    is_functorch_wrapped_tensor,
)
from graphport.errors import UnsupportedError
from graphport.ops.registry import OpInfo
from graphport.types import Args, Argument, Function, Kwargs

_LAYER_NORMS = (torch.layer_norm, functional.layer_norm)


@register_override(higher_order.custom_function_call)
def custom_function_call(tracer: Tracer, func: Any, args: Args, kwargs: Kwargs) -> Argument:
    """An autograd.Function under a transform: its own rule for it, or one that torch generates."""
    with tracer.function_mode:  # which sees what the user has written for forward
        return func.dispatch(DispatchKey.FuncTorchDynamicLayerFrontMode, *args, **kwargs)


def _contiguous(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """A copy: whether the tensor is contiguous already depends on the layout of the inputs."""
    if len(args) > 1 or kwargs:
        return NotImplemented
    return args[0].clone(memory_format=torch.contiguous_format)


def _query_layout(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Strides that Python reads follow from those of the tensor that is wrapped."""
    OVERRIDES[func](tracer, func, (_innermost(args[0]), *args[1:]), kwargs)
    return NotImplemented


def _innermost(t: torch.Tensor) -> torch.Tensor:
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t


def has_open_size(x: object) -> bool:
    if not isinstance(x, torch.Tensor):
        return False
    return any(isinstance(n, torch.SymInt) for n in _innermost(x).shape)


@register_override(*_LAYER_NORMS)
def _layer_norm(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """At open sizes by its definition: what torch knows of its derivatives takes plain numbers."""
    if not is_functorch_wrapped_tensor(args[0]) or not has_open_size(args[0]):
        return NotImplemented
    return _define_layer_norm(*args, **kwargs)


def _define_layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> torch.Tensor:
    dims = list(range(-len(normalized_shape), 0))
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    apart = wide - wide.mean(dims, keepdim=True)
    variance = (apart * apart).mean(dims, keepdim=True)
    out = apart * torch.rsqrt(variance + eps)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(input.dtype)


DEFINITIONS: dict[OpOverload, Callable[..., Any]] = {aten.layer_norm.default: _define_layer_norm}
"""Operators whose derivatives torch has at fixed sizes only, in terms of others."""


UNDER_TRANSFORMS.update(
    {
        torch.Tensor.contiguous: _contiguous,
        torch.Tensor.stride: _query_layout,
        torch.Tensor.is_contiguous: _query_layout,
        **dict.fromkeys((torch.Tensor.__getitem__, torch.Tensor.__setitem__), indexing),
        **dict.fromkeys(_LAYER_NORMS, _layer_norm),
        **dict.fromkeys((torch.tensor, torch.as_tensor, torch.asarray), tensor),
    }
)


# Operators that only transforms ask for.


@register_handler(aten._new_zeros_with_same_feature_meta.default)
def _new_zeros_with_same_feature_meta(
    tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs
) -> Argument:
    """A tangent of zeros for `other`, as often as `self` is batched."""
    self, other = args
    batch = self.shape[: kwargs.get("self_num_batch_dims", 0)]
    return tracer.call(aten.new_zeros.default, other, [*batch, *other.shape])


@register_handler(aten._efficientzerotensor.default)
def _efficientzerotensor(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    return tracer.call(aten.zeros.default, *args, **kwargs)


@register_handler(aten._make_dual.default)
def _make_dual(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    raise UnsupportedError(
        "torch.autograd.forward_ad, which torch.func.linearize uses too, cannot be captured",
        where=source.locate_user_line(),
        fix="torch.func.jvp(f, (x,), (tangent,))",
    )
