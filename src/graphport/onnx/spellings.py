"""Reads calls of `gp.onnx.export` that are written as for `torch.onnx.export`.

What means the same is taken: `f`, `opset_version`, a dict of keywords at the end of `args`, modules
that know their own example. What has another name here is an error that says it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from graphport.arguments import format_value
from graphport.errors import InputError
from graphport.types import PyTree

NEW_WORDS = {
    "artifacts_dir": "report=path, and gp.save(program.exported_program, path)",
    "autograd_inlining": "nothing: torch.autograd.Function is captured by what its forward does",
    "custom_opsets": "nothing: the domains of custom_lowerings= are written by themselves",
    "custom_translation_table": 'custom_lowerings={"aten::relu": lower}, functions of a builder',
    "do_constant_folding": "nothing: constants are always folded",
    "dump_exported_program": "gp.save(program.exported_program, path)",
    "dynamo": "nothing: there is one exporter here",
    "export_modules_as_functions": "module_functions=",
    "fallback": "nothing: there is one exporter here",
    "operator_export_type": "nothing: a file has operators of ONNX alone",
    "profile": "report=, which has the time of each stage",
    "training": "model.eval() or model.train() before",
    "verbose": "print(program.exported_program), or report=",
}
"""Arguments of `torch.onnx.export` that are not taken, and what to write instead."""


def refuse_other_words(given: Mapping[str, object]) -> None:
    """Refuse keywords that `gp.onnx.export` does not have."""
    for name in given:
        if name in NEW_WORDS:
            raise InputError(f"gp.onnx.export has no {name}", fix=NEW_WORDS[name])
        raise TypeError(f"export() got an unexpected keyword argument {name!r}")


# Where to


class Destination(NamedTuple):
    """A file to write, and how."""

    file: Any
    how: dict[str, Any]


def is_file(x: object) -> bool:
    """Whether something can be written to: a path, or an open file."""
    return isinstance(x, (str, os.PathLike)) or hasattr(x, "write")


def choose_destination(f: Any, kwargs: PyTree, **how: Any) -> tuple[Destination, PyTree]:
    """The file, which may stand third, where the keywords of the model are, and these."""
    if is_file(kwargs):
        if f is not None:
            raise InputError("the file is given twice, third and as f=", fix="one of them")
        f, kwargs = kwargs, None
    if f is None:
        said = [name for name, (value, default) in how.items() if value != default]
        if said:
            raise InputError(
                f"{said[0]} is about the file, and there is none",
                fix=f'f="model.onnx", or program.save(path, {_IN_SAVE.get(said[0], said[0])}=...)',
            )
    elif not is_file(f):
        raise InputError(f"f is a path or a file to write to, got {format_value(f)}")
    elif not hasattr(f, "write") and not Path(os.fspath(f)).absolute().parent.is_dir():
        raise InputError(f"there is no folder {Path(os.fspath(f)).parent}, which f is in")
    return Destination(f, {_IN_SAVE.get(k, k): value for k, (value, _) in how.items()}), kwargs


_IN_SAVE = {"export_params": "include_initializers"}


# With what


def split_keywords(model: object, args: PyTree, kwargs: PyTree) -> tuple[PyTree, PyTree]:
    """`(x, {"mask": m})` as `(x,)` and keywords, where these are parameters that are left.

    A dict that is no such thing is an argument like others.
    """
    if type(args) is not tuple or not args or type(args[-1]) is not dict or kwargs:
        return args, kwargs
    first, last = args[:-1], args[-1]
    try:
        signature = inspect.signature(getattr(model, "forward", model))  # type: ignore[arg-type]
        parameters = [p for p in signature.parameters.values() if p.kind not in _VARIADIC]
        left = {p.name for p in parameters[len(first) :]}
        left.update(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        if left.issuperset(last):
            signature.bind(*first, **last)
            return first, last
    except (TypeError, ValueError):  # it has no signature, or does not take them so
        pass
    return args, kwargs


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Example(NamedTuple):
    """What a module says of its own export."""

    args: PyTree
    kwargs: PyTree
    dynamic_shapes: PyTree
    input_names: Any
    output_names: Any


def ask_module(model: Any, args: PyTree, kwargs: PyTree, said: tuple[Any, Any, Any]) -> Example:
    """What is said of an export, or, of a `torch.onnx.ExportableModule`, its own words."""
    is_called = not isinstance(args, tuple) or len(args) > 0
    if is_called or kwargs or not callable(getattr(model, "example_arguments", None)):
        return Example(args, kwargs, *said)
    args, kwargs = model.example_arguments()
    own = (model.dynamic_shapes, model.input_names, model.output_names)
    pairs = zip(said, own, strict=True)
    return Example(args, kwargs, *(ask() if given is None else given for given, ask in pairs))
