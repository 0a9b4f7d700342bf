"""The partitioner: splits a graph over devices; the pipeline that runs the result."""

from graphport.stubs import attach_stub

__getattr__, __all__ = attach_stub(__name__, __file__)
