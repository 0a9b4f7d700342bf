"""Lowers numerical algorithms that ONNX has no operators for."""
