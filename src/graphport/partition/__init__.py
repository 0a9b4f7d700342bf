"""The partitioner: splits a graph over devices; pipelines run a program in stages."""

from graphport.stubs import attach_stub

__getattr__, __all__ = attach_stub(__name__, __file__)
