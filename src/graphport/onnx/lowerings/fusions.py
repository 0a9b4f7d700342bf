"""Patterns of several operators that ONNX has one operator for."""
