"""Redirects calls of `torch.onnx.export` to graphport while a script runs.

torch's functions are given other code, so that a call comes here however the function was imported,
and whenever. What graphport refuses goes on to torch, as it was written.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType

from graphport import source
from graphport.compat.torch import torch_onnx
from graphport.errors import ExportError, UnsupportedError
from graphport.onnx.exporter import is_torch_program
from graphport.onnx.torch_calls import (
    Made,
    TorchCall,
    TorchProgram,
    carry_out,
    read_call,
    read_dynamo_call,
)
from graphport.types import PyTree


@dataclass(frozen=True)
class Notice:
    """What has become of one call, for the user."""

    where: source.Location | None
    text: str
    error: Exception | None = None
    """Why graphport refused it."""


class Redirection:
    """Carries out the calls of a script, and tells what has become of each."""

    def __init__(self, tell: Callable[[Notice], None], verify: bool) -> None:
        self.tell = tell
        self.verify = verify
        self.originals: dict[str, PyTree] = {}
        self.symbolics: list[str] = []
        """Operators that the script has taught the TorchScript exporter."""
        self._inside = threading.local()
        self._dynamo = False
        """What `dynamo` is where a call does not say it."""

    def answer(self, name: str, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        """Carry out a call, or hand it on to torch: also those that torch itself makes."""
        if getattr(self._inside, "active", False):
            return self.originals[name](*args, **kwargs)
        self._inside.active = True
        try:
            return _ANSWERS[name](self, args, kwargs)
        finally:
            self._inside.active = False

    def _export(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        return self._carry_out(
            lambda: read_call(args, kwargs), lambda: self.originals["export"](*args, **kwargs)
        )

    def _export_torchscript(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        return self._carry_out(
            lambda: read_call(args, {"dynamo": False, **kwargs}),
            lambda: self.originals["utils.export"](*args, **kwargs),
        )

    def _export_dynamo(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        call = read_dynamo_call(*args, **kwargs)
        given = {"kwargs": call.kwargs, "dynamic_shapes": call.dynamic_shapes, "dynamo": True}
        return self._carry_out(
            lambda: call, lambda: self.originals["export"](call.model, call.args, **given)
        )

    def _register(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        self.symbolics.append(str(args[0] if args else kwargs.get("symbolic_name")))
        return self.originals["register_custom_op_symbolic"](*args, **kwargs)

    def _carry_out(self, read: Callable[[], TorchCall], leave: Callable[[], PyTree]) -> PyTree:
        """Carry out a call as it is read, or leave it to torch."""
        where = source.locate_user_line()
        try:
            call = read()
            dynamo = self._uses_dynamo(call)
            if self.symbolics and not dynamo:
                raise UnsupportedError(
                    f"{', '.join(self.symbolics)}: registered with torch.onnx by the script"
                )
            made = carry_out(call, dynamo, self.verify)
        except Exception as error:  # noqa: BLE001  whatever it is, torch may be able to
            self.tell(Notice(where, f"left to torch.onnx: {_format_line(error)}", error))
        else:
            self.tell(Notice(where, _format_success(call, made)))
            return TorchProgram.of(made.program) if dynamo else None
        return leave()

    def _uses_dynamo(self, call: TorchCall) -> bool:
        said = self._dynamo if call.dynamo is None else call.dynamo
        knows_itself = isinstance(call.model, torch_onnx.ExportableModule)
        return bool(said) or knows_itself or is_torch_program(call.model)

    @contextmanager
    def redirect(self) -> Iterator[None]:
        """Let calls of torch's functions come here."""
        global _current
        functions = _find_functions()
        default = inspect.signature(functions["export"]).parameters["dynamo"].default
        self._dynamo = bool(default)
        before, _current = _current, self
        try:
            for name, fn in functions.items():
                self.originals[name] = _replace_code(fn, _write_code(name))
            with _older_names():
                yield
        finally:
            for name, original in self.originals.items():
                _restore_code(functions[name], original)
            _current = before


_current: Redirection | None = None

_ANSWERS = {
    "export": Redirection._export,
    "utils.export": Redirection._export_torchscript,
    "dynamo_export": Redirection._export_dynamo,
    "register_custom_op_symbolic": Redirection._register,
}


def answer(name: str, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
    """What the code that torch's functions are given calls."""
    assert _current is not None
    return _current.answer(name, args, kwargs)


def _find_functions() -> dict[str, FunctionType]:
    return {
        "export": torch_onnx.export,
        "utils.export": torch_onnx.utils.export,
        "register_custom_op_symbolic": torch_onnx.register_custom_op_symbolic,
    }


# The code of functions


def _call_here(*args: PyTree, **kwargs: PyTree) -> PyTree:
    """The code of torch's functions for the time; it runs with the globals of torch's modules."""
    from graphport.onnx.redirection import answer

    return answer("a name", args, kwargs)


def _write_code(name: str) -> CodeType:
    code = _call_here.__code__
    return code.replace(co_consts=tuple(name if c == "a name" else c for c in code.co_consts))


def _replace_code(fn: FunctionType, code: CodeType) -> FunctionType:
    """The function as it was, as another one."""
    made = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = fn.__kwdefaults__
    fn.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    fn.__defaults__, fn.__kwdefaults__ = None, None
    fn.__code__ = code
    return made


def _restore_code(fn: FunctionType, original: FunctionType) -> None:
    fn.__code__ = original.__code__
    fn.__defaults__, fn.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    del fn.__signature__  # type: ignore[attr-defined]


# Names that torch.onnx had once


@dataclass(frozen=True)
class DynamoOptions:
    """`torch.onnx.ExportOptions`, as torch had it from 2.1 to 2.6."""

    dynamic_shapes: bool | None = None
    fake_context: PyTree = None
    onnx_registry: PyTree = None
    diagnostic_options: PyTree = None
    op_level_debug: bool | None = None


def _dynamo_export(*args: PyTree, **kwargs: PyTree) -> PyTree:
    return answer("dynamo_export", args, kwargs)


@contextmanager
def _older_names() -> Iterator[None]:
    names = {"dynamo_export": _dynamo_export, "ExportOptions": DynamoOptions}
    missing = {name: value for name, value in names.items() if not hasattr(torch_onnx, name)}
    for name, value in missing.items():
        setattr(torch_onnx, name, value)
    try:
        yield
    finally:
        for name in missing:
            delattr(torch_onnx, name)


# Texts


def _format_line(error: Exception) -> str:
    """An error in one line, with the place it is about."""
    first, *rest = str(error).strip().splitlines() or [""]
    place = next((line.strip() for line in rest if line.strip().startswith("at ")), "")
    text = first if isinstance(error, ExportError) else f"{type(error).__name__}: {first}"
    return f"{text} ({' '.join(place.partition(': ')[0].split())})" if place else text


def _format_success(call: TorchCall, made: Made) -> str:
    target = call.f if isinstance(call.f, str) else getattr(call.f, "name", None)
    what = f"exported by graphport{f' to {target}' if target else ''}, opset {made.program.opset}"
    if made.verified is not None:
        what += f", verified at {made.verified} size{'s' if made.verified > 1 else ''}"
    return "; ".join([what, *made.notes])
