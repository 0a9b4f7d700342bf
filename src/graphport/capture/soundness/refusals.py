"""Error messages of capture in the user's words: what cannot be captured, and variable names.

Refused here are layers that need the data of their inputs or other processes, before they run; and
exceptions of torch's are translated that tell of tensors without data, not of a mistake in the
program.
"""

from __future__ import annotations

import dis
import os
import re
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import NamedTuple

import torch
from torch import nn

from graphport import source
from graphport.capture.numbers.sequences import SymbolicSequence
from graphport.capture.soundness.sharding import is_sharded
from graphport.capture.trace import registries
from graphport.compat.torch import is_within
from graphport.errors import (
    ConstraintViolationError,
    DataDependentError,
    ExportError,
    ForwardError,
    InternalError,
    UnsupportedError,
)
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, is_symbolic
from graphport.symbolic.explain import VariableNames
from graphport.tensors.abstract import AbstractTensor
from graphport.types import Args


class _Layer(NamedTuple):
    applies: Callable[[nn.Module, Args], bool]
    what: str
    fix: str


_LAYERS = (
    _Layer(
        lambda module, args: (
            isinstance(module, nn.parallel.DistributedDataParallel) and not find_wrapped(module)
        ),
        "{} is a DistributedDataParallel, which synchronises with other processes as it runs",
        "capture what it wraps: model.module",
    ),
    _Layer(
        lambda module, args: type(module).__name__ == "FullyShardedDataParallel",
        "{} is a FullyShardedDataParallel, whose weights are spread over processes",
        "capture a model that holds the full state dict",
    ),
    _Layer(
        lambda module, args: is_sharded(module),
        "{} is sharded by fully_shard, which gathers its weights from other processes as it runs, "
        "or casts them",
        "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True)) into a model that is not sharded",
    ),
)


def find_wrapped(module: nn.Module) -> nn.Module | None:
    """What a DistributedDataParallel calls in the end, if its process is the only one."""
    is_wrapper = isinstance(module, nn.parallel.DistributedDataParallel)
    if not is_wrapper or module.process_group.size() != 1 or module._forward_hooks:
        return None
    return None if module._forward_pre_hooks else module.module


def refuse_layer(module: nn.Module, args: Args, path: str | None) -> None:
    """Raise for a layer that cannot be captured as it is called."""
    for layer in _LAYERS:
        if layer.applies(module, args):
            whose = f"the module {path!r}" if path else "the model"
            whose = f"a {type(module).__name__}" if path is None else whose
            raise UnsupportedError(
                layer.what.format(whose), where=source.locate_user_line(), fix=layer.fix
            )


# State of an earlier call, with which a size was compared.


def explain_by_state(error: ConstraintViolationError, root: nn.Module | None) -> None:
    """Say which attributes that earlier calls have left decide what fixes a size."""
    modules = dict(registries.named_modules(root))
    found = {}
    for where in error.places:
        module = modules.get(where.module)
        for name in re.findall(r"\w\.(\w+)", where.text) if module is not None else ():
            value = vars(module).get(name)
            line = _find_assignment(type(module), name) if _holds_numbers(value) else None
            if line is not None:
                found[name] = (
                    f"self.{name} = {value!r} decides, as an earlier call has left it ({line})\n"
                    f"      at {where}"
                )
    if found:
        error.what = "\n  - ".join((error.what, *found.values()))
        names = ", ".join(f"self.{name}" for name in found)
        error.fix.append(f"# or capture a model that has not been called yet, with {names} as new")


def _holds_numbers(value: object) -> bool:
    """Whether an attribute is a plain number, or some of them."""
    if isinstance(value, (tuple, list)):
        return bool(value) and all(map(_holds_numbers, value))
    return type(value) in (int, float)


def _find_assignment(kind: type, name: str) -> str | None:
    """Where a method that is not `__init__` assigns to an attribute."""
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for fn in vars(base).values():
            if not isinstance(fn, FunctionType) or fn.__name__ == "__init__":
                continue
            for step in dis.get_instructions(fn):
                if step.opname == "STORE_ATTR" and step.argval == name and step.positions:
                    file = os.path.basename(fn.__code__.co_filename)
                    return f"{file}:{step.positions.lineno} in {fn.__qualname__}"
    return None


_TORCH_MESSAGES: tuple[tuple[str, type[ExportError], str, str], ...] = (
    (
        "TorchScript interpreter",
        UnsupportedError,
        "the program runs TorchScript (torch.jit.script or torch.jit.trace), which fails on "
        "tensors without data",
        "use the Python function or module that it was made of",
    ),
    (
        "data pointer",
        DataDependentError,
        "the program accesses the memory of a tensor, which has none while it is captured",
        "compute with torch functions, or in a torch.library.custom_op",
    ),
    (
        "Sharding propagation failed",
        UnsupportedError,
        "an operator on a DTensor fails while the program is captured; at open sizes it does",
        "leave its sizes fixed, or x.full_tensor()",
    ),
    (
        "Cannot copy out of meta tensor",
        UnsupportedError,
        "the program copies a tensor of its own into one that has data",
        "if a layer initialises itself in its first call, call the model once before",
    ),
    (
        "unhashable type: non-nested SymInt",
        UnsupportedError,
        "the program hashes a size that is open: as a key of a dict, or an argument of a function "
        "that is cached (functools.lru_cache)",
        "leave the size fixed, or call what is cached without its cache: fn.__wrapped__",
    ),
    (
        "INTERNAL ASSERT FAILED",
        UnsupportedError,
        "torch cannot run this on tensors without data",
        "compute it outside of the program, or in a torch.library.custom_op",
    ),
)


def translate_torch_error(error: Exception, where: source.Location | None) -> ExportError | None:
    """An exception of torch's that capture has caused, as one of ours."""
    if is_within(type(error).__module__, "dynamo"):
        return UnsupportedError(
            f"the program calls torch.compile, or a function that does, and that failed: "
            f"{_first_line(error)}",
            where=where,
            fix="call the function itself",
        )
    if _has_passed_through(error, os.path.join("torch", "jit", "_trace.py")):
        return UnsupportedError(
            "torch.jit.trace cannot run on tensors without data",
            where=where,
            fix="trace before the program is captured, or call the function itself",
        )
    if isinstance(error, (RuntimeError, TypeError)):
        for text, kind, what, fix in _TORCH_MESSAGES:
            if text in str(error):
                return kind(f"{what}: {_first_line(error)}", where=where, fix=fix)
    return None


def _has_passed_through(error: Exception, file: str) -> bool:
    """Whether an exception came through the code of a file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(file):
            return True
        trace = trace.tb_next
    return False


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


# Finds the user's variable names for symbolic sizes and numbers, in the frames that are running.


def collect_variable_names() -> VariableNames:
    """Numbers by the variable that holds them; then sizes of tensors that a variable holds."""
    frame = source.find_user_frame()
    variables = dict(frame.f_locals) if frame is not None else {}
    held = [*variables.items(), *_iterate_members(variables)]
    found: dict[Expr, str] = {}
    for name, value in held:
        if is_symbolic(value):
            _add_name(found, from_torch(value), name)
    for name, value in held:
        if isinstance(value, AbstractTensor):
            for d, size in enumerate(value._abstract.sizes):
                _add_name(found, size, f"{name}.shape[{d}]")
    return VariableNames(found, variables)


def _iterate_members(variables: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What lists, dicts and objects hold that a variable holds."""
    for name, value in variables.items():
        if isinstance(value, SymbolicSequence):
            continue  # to look into it fixes its length
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(value))
        elif isinstance(value, dict):
            yield from ((f"{name}[{k!r}]", x) for k, x in value.items())
        elif not isinstance(value, torch.Tensor):
            yield from ((f"{name}.{k}", x) for k, x in getattr(value, "__dict__", {}).items())


def _add_name(found: dict[Expr, str], e: object, text: str) -> None:
    if isinstance(e, Expr):
        found.setdefault(e, text)


# What an exception becomes: the user's own, with the place, or a fault of ours.

FAULTS = (KeyError, AttributeError, AssertionError, NameError)
"""What code of ours never raises on purpose."""


def internal_error(error: Exception, where: source.Location | None = None) -> InternalError:
    what = f"{type(error).__name__} as the program was captured{_format_error(error)}"
    return InternalError(what, where=where)


_NO_DEVICE = re.compile(r"Torch not compiled with|Found no NVIDIA driver")


def _format_error(error: Exception) -> str:
    try:
        return f": {error}" if str(error) else ""
    except Exception:  # noqa: BLE001  whatever the user's `__str__` raises
        return ""


def forward_error(error: Exception, where: source.Location | None) -> Exception:
    """The user's exception, with the place; it can be caught as the user's own class too."""
    said = _format_error(error)
    what = f"{type(error).__name__} in the program{said}"
    fix: tuple[str, ...] = ()
    if _NO_DEVICE.search(said):
        what = f"the program uses a device that is missing here{said}"
        fix = ("x.to(y.device), torch.zeros(..., device=x.device): the device of what is at hand",)
    if isinstance(error, RecursionError):
        what = (
            "RecursionError in the program: its modules and functions call one another more deeply"
            " than Python's recursion limit allows, in eager as well"
        )
        fix = ("sys.setrecursionlimit(10_000), before the model is called",)
    try:
        both = type("ForwardError", (ForwardError, type(error)), {"__module__": "graphport.errors"})
        made = both(what, where=where, fix=fix)
    except TypeError:  # a class that cannot be combined, or not be made from a text
        made = ForwardError(what, where=where, fix=fix)
    for name, value in vars(error).items():
        vars(made).setdefault(name, value)
    return made
