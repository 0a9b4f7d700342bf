"""Lowerings by numerical algorithms, where ONNX has no operator."""
