"""Tensors without data: abstract, lazy and fake ones, and checkpoints of them."""
