"""Builds ONNX graphs, and writes them as protobuf."""
