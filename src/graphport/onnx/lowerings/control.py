"""Branches and loops: `cond`, `while_loop`, `map`, `scan`."""
