"""Resampling: interpolation in all modes, grid sampling."""
