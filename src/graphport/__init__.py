"""graphport: PyTorch programs captured as graphs with symbolic sizes.

Names are loaded when the first of them is used, not with the package: `graphport --help` and
`python -m graphport` begin with it, and torch alone takes seconds.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphport import hooks

if TYPE_CHECKING:
    from graphport import errors, fx, onnx, ort, partition
    from graphport.capture.containers import register_dataclass
    from graphport.capture.dims import Dim, dims
    from graphport.capture.draft import DraftProgram, draft_export
    from graphport.capture.export import export
    from graphport.capture.fake_mode import fake_mode
    from graphport.capture.functional import map, scan
    from graphport.capture.refine import refine_dynamic_shapes
    from graphport.capture.shapes import AdditionalInputs, ShapesCollection
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
    from graphport.program.files import load, save

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
    "ort",
    "partition",
    "refine_dynamic_shapes",
    "register_dataclass",
    "save",
    "scan",
    "unflatten",
]

_MODULES = ("errors", "fx", "onnx", "ort", "partition")
_FILES = ("load", "save")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'graphport' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"graphport.{name}")
    _load()
    return (
        getattr(import_module("graphport.program.files"), name)
        if name in _FILES
        else globals()[name]
    )


def _load() -> None:
    """Capture and programs, always together: a program asks capture for decompositions."""
    # What is imported stays: a full collection on the way goes through all of torch's objects for
    # nothing, and takes as long as the import itself (75 ms of 150).
    collecting = gc.isenabled()
    try:
        try:
            gc.disable()
            for package in ("graphport.capture", "graphport.program"):
                module = import_module(package)
                globals().update({n: getattr(module, n) for n in module.__all__ if n in __all__})
        finally:
            if collecting:
                gc.enable()
    finally:  # an interrupt may come in the midst of the other one
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return __all__


def _write_report(*details: Any) -> None:
    import_module("graphport.report").write(*details)


def _check_report(path: Any) -> None:
    import_module("graphport.report").check_path(path)


hooks.check_report = _check_report
hooks.write_report = _write_report
