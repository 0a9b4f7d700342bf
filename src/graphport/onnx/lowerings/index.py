"""Reading by index: gather, index, masks, embedding."""
