"""graphport: PyTorch programs captured as graphs with symbolic sizes."""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

# What is imported stays: a full collection on the way goes through all of torch's objects for
# nothing, and takes as long as the import itself (75 ms of 150).
_collecting = gc.isenabled()
gc.disable()
try:
    from graphport import errors
    from graphport.capture import (
        AdditionalInputs,
        Dim,
        DraftProgram,
        ShapesCollection,
        dims,
        draft_export,
        export,
        fake_mode,
        map,
        refine_dynamic_shapes,
        register_dataclass,
        scan,
    )
    from graphport.program import (
        ExportedProgram,
        GraphSignature,
        InputKind,
        InputSpec,
        OutputKind,
        OutputSpec,
        from_torch,
        unflatten,
    )
finally:
    if _collecting:
        gc.enable()

__all__ = [
    "AdditionalInputs",
    "Dim",
    "DraftProgram",
    "ExportedProgram",
    "GraphSignature",
    "InputKind",
    "InputSpec",
    "OutputKind",
    "OutputSpec",
    "ShapesCollection",
    "dims",
    "draft_export",
    "errors",
    "export",
    "fake_mode",
    "from_torch",
    "fx",
    "load",
    "map",
    "onnx",
    "refine_dynamic_shapes",
    "register_dataclass",
    "save",
    "scan",
    "unflatten",
]

if TYPE_CHECKING:
    from graphport import fx, onnx
    from graphport.program.files import load, save


def __getattr__(name: str) -> Any:
    """What not every user needs is loaded when it is first used."""
    if name in ("fx", "onnx"):
        return import_module(f"graphport.{name}")
    if name in ("load", "save"):
        return getattr(import_module("graphport.program.files"), name)
    raise AttributeError(f"module 'graphport' has no attribute {name!r}")
