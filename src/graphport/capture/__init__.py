"""Capture: the user's code runs once on abstract tensors and becomes a program."""

from graphport.capture.containers import register_dataclass
from graphport.capture.dims import Dim, dims
from graphport.capture.export import export

__all__ = ["Dim", "dims", "export", "register_dataclass"]
