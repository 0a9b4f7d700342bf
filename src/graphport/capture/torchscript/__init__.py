"""Runs graphs of TorchScript under the tracer: what was scripted, traced, or loaded."""
