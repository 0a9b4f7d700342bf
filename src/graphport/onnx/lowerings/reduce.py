"""Reductions: sums, extremes, moments, norms."""
