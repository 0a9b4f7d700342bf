"""Order: sort, topk, unique, search, counts."""
