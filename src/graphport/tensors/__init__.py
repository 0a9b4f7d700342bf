"""Tensors without data: abstract ones, lazy ones, and those that a user passes in."""
