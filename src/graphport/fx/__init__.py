"""The FX toolkit: tracing, normalising and rewriting of `torch.fx` graphs."""

from graphport.stubs import attach_stub

__getattr__, __all__ = attach_stub(__name__, __file__)
