"""Tracing: records the operators that the user's code calls as a functional graph."""
