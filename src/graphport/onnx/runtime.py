"""ONNX Runtime sessions on torch tensors.

Weights stay where they are: the session is given the memory of the torch tensors. So are inputs;
outputs are handed out as torch tensors over the memory that ONNX Runtime has allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnxruntime as ort
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue as _C
from torch.utils.dlpack import from_dlpack, to_dlpack

from graphport.onnx.ir import Value
from graphport.onnx.model import write_header, write_tensor
from graphport.onnx.weights import SMALL, nbytes, refer


class Session:
    """A session and how to call it with tensors."""

    def __init__(
        self,
        skeleton: onnx.ModelProto,
        initializers: Mapping[str, Value],
        options: ort.SessionOptions | None = None,
        providers: Sequence[Any] = ("CPUExecutionProvider",),
    ) -> None:
        options = options or ort.SessionOptions()
        model = onnx.ModelProto()
        model.CopyFrom(skeleton)
        shared: dict[str, Any] = {}
        for name, value in initializers.items():
            proto = model.graph.initializer.add()
            if nbytes(value.tensor) < SMALL:
                write_tensor(name, value.tensor, proto)
            else:
                write_header(name, value.tensor, proto)
                refer(proto, name, 0, nbytes(value.tensor))
                shared[name] = ort_value(value.tensor.detach().contiguous())
        self._kept = shared
        if shared:
            options.add_external_initializers(list(shared), list(shared.values()))
        options.log_severity_level = 3
        self.session = ort.InferenceSession(
            model.SerializeToString(), options, providers=list(providers)
        )
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Results by name."""
        feeds = {name: ort_value(t.detach().contiguous()) for name, t in inputs.items()}
        results = self.session.run_with_ort_values(self.outputs, feeds)
        return dict(zip(self.outputs, map(tensor_of, results), strict=True))


def ort_value(t: torch.Tensor) -> Any:
    """A tensor as ONNX Runtime takes it, over the same memory."""
    if t.dtype is torch.bool:
        return ort.OrtValue(_C.from_dlpack(to_dlpack(t.view(torch.uint8)), True))
    return ort.OrtValue(_C.from_dlpack(to_dlpack(t), False))


def tensor_of(value: Any) -> torch.Tensor:
    """A result as a torch tensor, over the same memory."""
    t = from_dlpack(value._get_c_value().to_dlpack())
    return t.view(torch.bool) if value.element_type() == _BOOL else t


_BOOL = 9
