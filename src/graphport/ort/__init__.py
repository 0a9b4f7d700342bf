"""ONNX Runtime as a backend of `torch.compile`."""

from graphport.ort.backend import OrtBackend
from graphport.ort.options import OrtBackendOptions

__all__ = ["OrtBackend", "OrtBackendOptions"]
