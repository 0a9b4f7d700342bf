"""Capture: runs the user's code on abstract tensors, and records an `ExportedProgram`."""
