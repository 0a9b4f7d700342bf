"""Reads the tensors that a user passes in: real, on the meta device, fake; refuses other kinds.

Capture only ever describes the user's tensors, so that most of what it does is the same for them.
Here is the rest: sizes that are symbols of a torch `ShapeEnv` are taken as they are in the example
behind them (the hint), without leaving a guard there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from graphport import source
from graphport.compat.torch import disabled_torch_function_impl
from graphport.errors import CaptureWarning, ExportError, InputError, UnsupportedError
from graphport.tensors.subclasses import KNOWN_SUBCLASSES, has_own_dispatch


def sizes_of(t: torch.Tensor) -> tuple[int, ...]:
    """The sizes of a tensor from outside of the program, as numbers."""
    sizes = tuple(t.shape)
    return sizes if _is_concrete(sizes) else _concrete_numbers(sizes, "a size")


def strides_of(t: torch.Tensor) -> tuple[int, ...]:
    strides = tuple(t.stride())
    return strides if _is_concrete(strides) else _concrete_numbers(strides, "a stride")


def offset_of(t: torch.Tensor) -> int:
    return int(concrete_number(t.storage_offset(), "the storage offset"))


def concrete_number(x: object, what: str) -> Any:
    """A number from outside of the program: the hint of a symbol of torch's, or itself."""
    node = getattr(x, "node", None)
    if node is None:
        return x
    hint = node.hint
    if hint is None:
        raise InputError(
            f"{what} of an input is {x}, a symbol of torch's that stands for unknown data",
            fix="pass an example with sizes that are known, and open them with dynamic_shapes",
        )
    return hint


def _is_concrete(numbers: tuple[object, ...]) -> bool:
    return all(type(n) is int for n in numbers)


def _concrete_numbers(symbols: tuple[object, ...], what: str) -> tuple[int, ...]:
    return tuple(int(concrete_number(s, what)) for s in symbols)


def find_device(tensors: Iterable[object]) -> torch.device | None:
    """The device of a program: the first that is not the meta device, if there is one.

    A program that has tensors elsewhere too will get its weights, or its inputs, there.
    """
    devices = (t.device for t in tensors if isinstance(t, torch.Tensor))
    return next((d for d in devices if d.type != "meta"), None)


def storage_key(t: Any) -> tuple[str, int] | None:
    """A key of the storage, equal for tensors that alias; None where nothing can."""
    if not isinstance(t, torch.Tensor):
        return None
    try:
        storage = t.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    if storage.device.type == "meta":  # no address, but an object
        return "object", storage._cdata
    address = storage.data_ptr()
    return ("address", address) if address else None


def address_range(t: torch.Tensor) -> tuple[int, int]:
    """The addresses from the first byte of a tensor to the one after the last."""
    try:
        start = t.data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return 0, 0
    if not start or not t.numel():
        return 0, 0
    return start, start + count_spanned(t.shape, t.stride()) * t.itemsize


def count_spanned(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first element of a tensor to its last."""
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))


# Checks the classes and layouts of tensors: which of them capture can describe.

_PADDED_FIX = "torch.nested.to_padded_tensor({}, 0.0), and a mask or the lengths beside it"
_FIXES: dict[torch.layout, str] = {torch.jagged: _PADDED_FIX}


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
            where=source.locate_user_line(),
            fix="call the lazy module that it belongs to once, before it is captured",
        )
    if t.layout is not torch.strided:
        fix = _FIXES.get(t.layout, "{}.to_dense()")
        what = f"{whose} has layout {t.layout}; only strided tensors are supported"
        raise refusal(what, where=source.locate_user_line(), fix=fix.format(name))
    if t.is_nested:
        what = f"{whose} is a nested tensor; only strided tensors are supported"
        raise refusal(what, where=source.locate_user_line(), fix=_PADDED_FIX.format(name))
    kind: Any = type(t)
    if has_own_dispatch(kind):
        what = f"{whose} is a {kind.__module__}.{kind.__qualname__}, a tensor subclass that is made"
        raise refusal(
            f"{what} of other tensors and says itself what operators do to it",
            where=source.locate_user_line(),
            fix=_suggest_plain(t, name),
        )


def _suggest_plain(t: Any, name: str) -> str:
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


def warn_of_torch_function(t: torch.Tensor, whose: str) -> None:
    """Of a class that overrides torch's functions, capture sees the tensor alone."""
    function: Any = type(t).__torch_function__
    default: Any = torch.Tensor.__torch_function__
    if function is disabled_torch_function_impl or issubclass(type(t), KNOWN_SUBCLASSES):
        return
    if getattr(function, "__func__", None) is not default.__func__:
        source.warn(
            f"{whose} is a {type(t).__name__}, whose __torch_function__ is no part of the program: "
            "it is captured as a torch.Tensor",
            CaptureWarning,
        )
