"""Scaled dot-product attention, in the best form of the target."""
