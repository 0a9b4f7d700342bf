"""Loads and captures models by name: `PKG.MODULE:NAME`, `FILE.py:NAME`, `PROGRAM.gpx`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from graphport import source
from graphport.errors import ForwardError, UsageError
from graphport.program import ExportedProgram
from graphport.types import PyTree

_RETURNS = "a model, or (model, args[, kwargs[, dynamic_shapes]])"


@dataclass
class Model:
    """What is exported, with the inputs and dynamic sizes that came with it."""

    target: Any
    """An nn.Module, a function of tensors, or an `ExportedProgram`."""
    args: Any = None
    """As the factory gave them; None if it gave none."""
    kwargs: dict[str, Any] | None = None
    dynamic_shapes: Any = None
    home: ModuleType | None = None
    """Where the model was found: functions that make inputs stand beside it."""

    @property
    def is_program(self) -> bool:
        return isinstance(self.target, ExportedProgram)


def resolve_model(text: str, allow: Iterable[str] = ()) -> Model:
    """The model that a text names; a program may call the operators that are allowed."""
    if text.endswith(".gpx"):
        return Model(load_program(text, allow))
    found, home = import_object(text)
    made = _make_model(found, text)
    made.home = home
    if isinstance(made.target, nn.Module):
        made.target.eval()
    return made


def load_program(path: str, allow: Iterable[str] = ()) -> ExportedProgram:
    from graphport.program.files import load

    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    return load(path, allow=allow)


def load_onnx(path: Path) -> Any:
    """An ONNX file as protobuf, without weights that are in other files."""
    import onnx
    from google.protobuf.message import DecodeError

    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise UsageError(f"{path} is not an ONNX file: {error}") from None
    if not model.HasField("graph"):
        raise UsageError(f"{path} is not an ONNX file: it has no graph")
    return model


def import_object(text: str, beside: ModuleType | None = None) -> tuple[Any, ModuleType]:
    """The object that `PKG.MODULE:NAME` or `FILE.py:NAME` names, and the module that has it.

    A mere NAME is looked up in the module `beside`.
    """
    place, colon, name = text.rpartition(":")
    if not name or (colon and not place) or (not colon and beside is None):
        place = place or name
        raise UsageError(f"{text} names no object", fix=_suggest_names(place))
    module = _import_module(place) if colon else beside
    assert module is not None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = _list_candidates(module)
            raise UsageError(
                f"{module.__name__} has no {name}",
                fix=f"one of {', '.join(names)}" if names else (),
            )
        found = getattr(found, part)
    return found, module


def _suggest_names(place: str) -> str | list[str]:
    """Objects of a file to choose from; else how they are named."""
    if not place.endswith(".py"):
        return "PKG.MODULE:NAME, FILE.py:NAME or PROGRAM.gpx"
    return [f"{place}:{n}" for n in _list_candidates(_import_module(place))[:5]] or f"{place}:NAME"


def _list_candidates(module: ModuleType) -> list[str]:
    """What a module defines itself that could be meant."""
    return [
        name
        for name, x in vars(module).items()
        if not name.startswith("_")
        and (
            isinstance(x, nn.Module)
            or (callable(x) and getattr(x, "__module__", None) == module.__name__)
        )
    ]


def _import_module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _import_file(Path(place))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {place}: {error}",
                fix="a module that is installed or in this folder, or FILE.py:NAME",
            ) from None
        raise _forward_error(f"import {place}", error) from error
    except Exception as error:  # the user's own code
        raise _forward_error(f"import {place}", error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    path = path.resolve()
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # Not under the name of a module that exists already, which the file may well import. The name
    # goes into the file that is written, and is the same each time.
    name = path.stem
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as when the file is run
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        del sys.modules[name]
        fix = _suggest_package_path(path) if "relative import" in str(error) else ()
        raise _forward_error(f"import {path.name}", error, fix) from error
    return module


def _suggest_package_path(path: Path) -> str:
    """How a file is named that belongs to a package, and imports from it."""
    names = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return f"{'.'.join(names)}:NAME, in the folder {folder}"


def _make_model(found: object, text: str) -> Model:
    """A model from the object that was named."""
    if isinstance(found, nn.Module | ExportedProgram):
        return Model(found)
    if not callable(found):
        raise UsageError(
            f"{text} is a {type(found).__name__}",
            fix=f"an nn.Module, or a function that returns {_RETURNS}",
        )
    needed = _list_required_parameters(found)
    if needed and isinstance(found, type):
        names = ", ".join(needed)
        raise UsageError(
            f"{text} needs arguments to be made: {names}",
            fix=f"def build(): return {found.__name__}({names}), and FILE.py:build",
        )
    if needed:
        return Model(found)
    return _unpack_result(call_user_function(found, text), text)


def call_user_function(fn: Callable[[], Any], text: str) -> PyTree:
    """What the user's function returns; what it raises, as an error with the user's line."""
    try:
        return fn()
    except Exception as error:  # the user's own code
        raise _forward_error(text, error) from error


def _forward_error(doing: str, error: Exception, fix: str | tuple[str, ...] = ()) -> ForwardError:
    where = source.locate_error(error)
    return ForwardError(f"{doing} raised {type(error).__name__}: {error}", where=where, fix=fix)


def _list_required_parameters(fn: Callable[..., object]) -> list[str]:
    """Parameters that must be given; a function of torch's that does not tell has some."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return [] if isinstance(fn, type) else ["input"]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in several]


def _unpack_result(result: object, text: str) -> Model:
    parts = result if isinstance(result, tuple) else (result,)
    is_model = bool(parts) and (callable(parts[0]) or isinstance(parts[0], ExportedProgram))
    if not is_model or len(parts) > 4:
        what = f"a tuple of {len(parts)}" if isinstance(result, tuple) else type(result).__name__
        raise UsageError(f"{text} returned {what}", fix=f"return {_RETURNS}")
    if len(parts) > 2 and not isinstance(parts[2], dict | None):
        raise UsageError(
            f"{text} returned {type(parts[2]).__name__} as kwargs", fix=f"return {_RETURNS}"
        )
    return Model(*parts)
