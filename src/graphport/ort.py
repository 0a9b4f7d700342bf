"""`gp.ort`: ONNX Runtime as a backend of `torch.compile`."""

from graphport.runtime import OrtBackend, OrtBackendOptions

__all__ = ["OrtBackend", "OrtBackendOptions"]
