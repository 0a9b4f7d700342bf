"""Lowers captured programs to ONNX graphs."""
