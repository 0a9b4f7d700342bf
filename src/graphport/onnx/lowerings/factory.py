"""Tensors made from numbers: ranges, constants, identity matrices."""
