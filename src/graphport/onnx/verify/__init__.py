"""Verifies ONNX models against eager."""
