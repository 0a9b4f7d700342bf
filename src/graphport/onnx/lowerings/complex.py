"""Complex numbers as pairs of real ones: ONNX has none to compute with."""
