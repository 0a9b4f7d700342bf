"""graphport: PyTorch programs captured as graphs with symbolic sizes.

The public names are listed in `__init__.pyi`, and loaded when they are used: `graphport --help` and
`python -m graphport` begin with this package, and torch alone takes seconds.
"""

import gc
from importlib import import_module
from typing import Any

from graphport.stubs import attach_stub

_NEW_WORDS = {
    "CustomDecompTable": "gp.default_decompositions() is a dict",
    "FlatArgsAdapter": "a module around gp.unflatten(program) converts its arguments",
    "passes": "torch.export.passes takes program.to_torch(), and gp.from_torch leads back",
    "refine_dynamic_shapes_from_suggested_fixes": "gp.refine_dynamic_shapes(error, dynamic_shapes)",
}
"""Names of `torch.export` that are not here, and what to write instead."""
_load_name, __all__ = attach_stub(__name__, __file__, _NEW_WORDS)
_LIGHT = ("errors", "fx", "onnx", "ort", "partition")
"""Packages that import what they need themselves."""


def __getattr__(name: str) -> Any:
    if name in __all__ and name not in _LIGHT:
        _load_capture()
    return _load_name(name)


def _load_capture() -> None:
    """Capture and programs, always together."""
    # What is imported stays: a full collection on the way goes through all of torch's objects for
    # nothing, and takes as long as the import itself (75 ms of 150).
    collecting = gc.isenabled()
    try:
        try:
            gc.disable()
            import_module("graphport.capture.export")
        finally:
            if collecting:
                gc.enable()
    finally:  # an interrupt may come in the midst of the other one
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
