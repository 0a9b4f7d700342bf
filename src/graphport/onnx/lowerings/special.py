"""Special functions that have an exact formula."""
