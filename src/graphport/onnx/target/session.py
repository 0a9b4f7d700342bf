"""ONNX Runtime sessions on torch tensors, and locks that survive a fork.

Weights stay where they are: the session is given the memory of the torch tensors. So are inputs;
outputs are handed out as torch tensors over the memory that ONNX Runtime has allocated. A tensor
that does not lie in order is put in order first, which is a copy.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import onnx
import onnx.parser
import onnxruntime as ort
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue as _C
from torch.utils.dlpack import from_dlpack, to_dlpack

from graphport.errors import NoDataError, RequirementError, SessionError
from graphport.onnx.emit.ir import Value
from graphport.onnx.emit.model import write_header, write_tensor, write_value
from graphport.onnx.emit.schemas import BITS, ONNX_OF, TORCH_OF
from graphport.onnx.target.targets import ORT
from graphport.onnx.write.weights import (
    SMALLEST_EXTERNAL,
    materialise,
    nbytes,
    require_data,
    set_external_data,
)

_BOOL_TYPE = ONNX_OF[torch.bool]
# DLPack, as ONNX Runtime speaks it, has no eight-bit floats.
_FLOAT8_TYPES = {ONNX_OF[d] for d in ONNX_OF if d.is_floating_point and d.itemsize == 1}


_ON_CPU = ("CPUExecutionProvider",)
log = logging.getLogger("graphport.ort")


def open_session(
    model: str | bytes, options: ort.SessionOptions, providers: Sequence[Any] = _ON_CPU
) -> ort.InferenceSession:
    """A session of a model: its bytes, or the path of its file."""
    _log_other_release()
    return ort.InferenceSession(model, options, providers=list(providers))


@cache
def _log_other_release() -> None:
    """Once, and where it is looked for: all is well as long as models load."""
    if said := ORT.describe_other_release(ort.__version__):
        log.info("%s", said)


def list_providers() -> list[str]:
    """The execution providers of ONNX Runtime as it is installed."""
    return ort.get_available_providers()


class Session:
    """A session and how to call it with tensors."""

    def __init__(
        self,
        skeleton: onnx.ModelProto,
        tensors: Mapping[str, object],
        options: ort.SessionOptions | None = None,
        providers: Sequence[object] = _ON_CPU,
    ) -> None:
        require_data(tensors, "give the model its weights before it is exported")
        self._skeleton, self._tensors = skeleton, tensors
        options = ORT.session_options() if options is None else _copy_options(options)
        model = onnx.ModelProto()
        model.CopyFrom(skeleton)
        shared: dict[str, Any] = {}
        for name, tensor in tensors.items():
            proto = model.graph.initializer.add()
            packed = getattr(tensor, "dtype", None) in BITS  # no memory of torch's is laid out so
            if packed or nbytes(tensor) < SMALLEST_EXTERNAL:
                write_tensor(name, materialise(tensor), proto)
            else:
                write_header(name, tensor, proto)
                set_external_data(proto, name, 0, nbytes(tensor))
                shared[name] = to_ort_value(materialise(tensor))
        # The session reads them for as long as it lives.
        self._shared = shared
        if shared:
            options.add_external_initializers(list(shared), list(shared.values()))
        self.session = open_session(model.SerializeToString(), options, providers)
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def add_outputs(self, values: Iterable[Value]) -> Session:
        """A session that gives values within the model as well."""
        return Session(add_outputs(self._skeleton, values), self._tensors)

    def run(
        self, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Results by name: all of them, or those that are asked for."""
        names = self.outputs if outputs is None else list(outputs)
        feeds = {name: to_ort_value(t)._ortvalue for name, t in inputs.items()}
        try:
            values = self.session._sess.run_with_ort_values(feeds, names, None)
        except Exception as error:  # each of its own classes
            raise _translate_error(error) from error
        # By number: iterating over them costs ten times as much.
        return {name: to_tensor(ort.OrtValue(values[i])) for i, name in enumerate(names)}


class ForeignSession(Session):
    """A session that someone else has made of the whole model."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.session = session
        self.inputs = [i.name for i in session.get_inputs()]
        self.outputs = [o.name for o in session.get_outputs()]

    def add_outputs(self, values: Iterable[Value]) -> Session:
        raise SessionError(
            "values within the model need a session of graphport's own", fix="program.release()"
        )


def _translate_error(error: Exception) -> SessionError:
    stopped = _FAILED_REQUIREMENT.search(str(error))
    if stopped is None:
        return SessionError(f"ONNX Runtime: {str(error).strip()}")
    return RequirementError(stopped[1])


_FAILED_REQUIREMENT = re.compile(r"Name:'(requires .*)' Status Message")


def _copy_options(options: ort.SessionOptions) -> ort.SessionOptions:
    """A copy of a caller's options.

    Weights are handed over with the options, and a session refuses those that its model does not
    have: one object cannot serve two sessions. ONNX Runtime copies options only for a session that
    is asked for them. Libraries of custom operators are not copied.
    """
    profiling, options.enable_profiling = options.enable_profiling, False
    try:
        asked = open_session(_EMPTY_MODEL, options)
    finally:
        options.enable_profiling = profiling
    made = asked.get_session_options()
    made.enable_profiling = profiling
    return made


_EMPTY_MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> nothing (float x) => (float y) { y = Identity(x) }'
).SerializeToString()


def add_outputs(model: onnx.ModelProto, values: Iterable[Value]) -> onnx.ModelProto:
    """A copy of a model in which further values are outputs."""
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    shown = {o.name for o in wider.graph.output}
    for value in values:
        if value.name not in shown:
            write_value(value, wider.graph.output.add())
    return wider


def to_ort_value(t: torch.Tensor) -> Any:
    """A tensor as ONNX Runtime takes it, over the same memory."""
    if t.is_meta:
        raise NoDataError(
            "a tensor on the meta device has no data that ONNX Runtime could take",
            fix="pass tensors on the cpu device",
        )
    t = t.detach().contiguous()
    if t.dtype is torch.bool:
        return ort.OrtValue(_C.from_dlpack(to_dlpack(t.view(torch.uint8)), True))
    if ONNX_OF.get(t.dtype) in _FLOAT8_TYPES:
        array = t.view(torch.uint8).numpy()
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ONNX_OF[t.dtype])
        # It does not own the memory, which is a copy's if the tensor is not contiguous.
        weakref.finalize(value._ortvalue, lambda held: None, array).atexit = False
        return value
    return ort.OrtValue(_C.from_dlpack(to_dlpack(t.resolve_neg()), False))


def to_tensor(value: Any) -> torch.Tensor:
    """A result as a torch tensor, over the same memory."""
    kind = value.element_type()
    if kind in _FLOAT8_TYPES:
        return _copy_tensor(value, TORCH_OF[kind])
    t = from_dlpack(value._get_c_value().to_dlpack())
    return t.view(torch.bool) if kind == _BOOL_TYPE else t


def _copy_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    octets = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    flat = torch.frombuffer(bytearray(octets), dtype=dtype) if octets else torch.empty(0).to(dtype)
    return flat.reshape(value.shape())


# Fork-safe locks: free in a process that was forked, whoever held them before.


def forkable_lock() -> AbstractContextManager[object]:
    """A lock for good: a fork waits until it is free."""
    made = threading.RLock()
    os.register_at_fork(
        before=made.acquire, after_in_parent=made.release, after_in_child=made.release
    )
    return made
