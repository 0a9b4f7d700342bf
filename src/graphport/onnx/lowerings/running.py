"""Cumulative operators."""
