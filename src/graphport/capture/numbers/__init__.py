"""Numbers in Python: calls such as `int(n)` and `len(x)` in the user's code keep sizes symbolic."""
