"""The FX toolkit: what works on graphs and symbolic sizes whatever they were captured with."""

from graphport.fx.validate import validate

__all__ = ["validate"]
