"""Capture: the user's code runs once on abstract tensors and becomes a program."""

from graphport.capture.containers import register_dataclass
from graphport.capture.dims import Dim, dims
from graphport.capture.draft import DraftProgram, draft_export
from graphport.capture.export import export
from graphport.capture.fake_mode import fake_mode
from graphport.capture.functional import map, scan
from graphport.capture.refine import refine_dynamic_shapes
from graphport.capture.shapes import AdditionalInputs, ShapesCollection

__all__ = [
    "AdditionalInputs",
    "Dim",
    "DraftProgram",
    "ShapesCollection",
    "dims",
    "draft_export",
    "export",
    "fake_mode",
    "map",
    "refine_dynamic_shapes",
    "register_dataclass",
    "scan",
]
