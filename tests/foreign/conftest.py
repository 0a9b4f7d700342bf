"""Rows import their libraries, which need not be there, and which change what they import."""

collect_ignore_glob = ["rows_*.py"]
