"""Writes ONNX files, with weights inside or as external data."""
