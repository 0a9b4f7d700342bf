"""What the target runtime supports: opset versions and kernels."""
