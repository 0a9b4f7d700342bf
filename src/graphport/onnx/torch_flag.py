"""Answers `torch.onnx.is_in_onnx_export()`, which models branch on, while a program goes to ONNX.

torch keeps the answer in a module, for all threads alike. Here that module looks at the stack of
the thread that asks: there is no state that an error, an interrupt or another thread could leave
behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import ParamSpec, TypeVar

from torch.onnx._internal.exporter import _flags

P = ParamSpec("P")
T = TypeVar("T")


def call_for_onnx(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function; `torch.onnx.is_in_onnx_export()` is true within."""
    return fn(*args, **kwargs)


class _Flags(ModuleType):
    @property
    def _is_onnx_exporting(self) -> bool:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is call_for_onnx.__code__:
                return True
            frame = frame.f_back
        return bool(vars(self)["_is_onnx_exporting"])

    @_is_onnx_exporting.setter
    def _is_onnx_exporting(self, value: bool) -> None:
        vars(self)["_is_onnx_exporting"] = value


_flags.__class__ = _Flags
