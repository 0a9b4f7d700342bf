"""Inputs and `dynamic_shapes`: from what the user writes to symbols."""
