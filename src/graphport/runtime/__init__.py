"""Runs programs on ONNX Runtime: sessions, and the `torch.compile` backend."""

from graphport.runtime.backend import OrtBackend
from graphport.runtime.options import OrtBackendOptions

__all__ = ["OrtBackend", "OrtBackendOptions"]
