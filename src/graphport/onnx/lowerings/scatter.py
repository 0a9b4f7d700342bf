"""Writing by index: scatter, index_put, masked fills."""
