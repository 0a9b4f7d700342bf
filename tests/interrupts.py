"""Interrupts at chosen instructions, and what a process looks like before and after.

`sys.settrace` raises KeyboardInterrupt at a line, at an instruction, at the start or at the end of
a function: at more places than those where Python itself delivers a signal.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import inspect
import math
import operator
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
import torch.utils._python_dispatch
from torch._library import fake_impl
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import graphport
from graphport import process

Point = tuple[CodeType, str, int]
"""A place to interrupt: the code, the kind of event, and the line or the instruction."""

_PACKAGE = os.path.dirname(graphport.__file__) + os.sep
_UNDOING = ("process.py", "settings.py", "fake_mode.py", "modules.py", "snapshot.py", "sizes.py")
_AROUND = (contextlib.__file__, torch.utils._python_dispatch.__file__, torch.overrides.__file__)


@functools.cache
def _granularity(file: str) -> str:
    """By instruction where something is changed or undone, by line elsewhere."""
    if file in _AROUND:
        return "opcode"
    if not file.startswith(_PACKAGE):
        return ""
    return "opcode" if os.path.basename(file) in _UNDOING else "line"


class _Tracer:
    """Calls `visit` with each point that is passed; of one code, if that is all that matters."""

    def __init__(self, visit: Callable[[Point], None], only: CodeType | None = None) -> None:
        self.visit, self.only = visit, only

    def start(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.only is not None and frame.f_code is not self.only:
            return None
        kind = _granularity(frame.f_code.co_filename)
        if not kind:
            return None
        self.visit((frame.f_code, "call", 0))
        frame.f_trace_opcodes = kind == "opcode"
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg  # what a function returns: not to be held by the traceback
        if event == "opcode":
            self.visit((frame.f_code, event, frame.f_lasti))
        elif event == "line" and not frame.f_trace_opcodes:
            self.visit((frame.f_code, event, frame.f_lineno))
        elif event == "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            # What is raised as a generator yields drops it without its `finally`: Python delivers
            # no signal there, but before it, or in the caller.
            self.visit((frame.f_code, event, 0))
        return self.step


def _traced(run: Callable[[], Any], tracer: _Tracer) -> Any:
    before = sys.gettrace()
    sys.settrace(tracer.start)
    try:
        return run()
    finally:
        sys.settrace(before)


def points(run: Callable[[], Any], around: bool = True) -> Counter[Point]:
    """The places that a call passes, and how often; `around`: also contexts of Python and torch."""
    found: Counter[Point] = Counter()
    _traced(run, _Tracer(lambda point: found.update((point,))))
    own = {p: n for p, n in found.items() if around or p[0].co_filename not in _AROUND}
    return Counter(own)


def interrupt(run: Callable[[], Any], point: Point, time: int) -> KeyboardInterrupt | None:
    """Run, and be interrupted when a place is passed for the n-th time; None if it was not."""
    left = time

    def visit(passed: Point) -> None:
        nonlocal left
        if passed == point:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    hook = sys.unraisablehook
    sys.unraisablehook = lambda told: None  # Python drops what is raised while a generator closes
    try:
        _traced(run, _Tracer(visit, point[0]))
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.unraisablehook = hook
    assert left > 0 or point[0].co_flags & inspect.CO_GENERATOR, f"{said(point)} was swallowed"
    return None


def said(point: Point) -> str:
    code, event, where = point
    return f"{os.path.basename(code.co_filename)}:{code.co_qualname} {event} {where}"


# The process

_OWNERS: tuple[Any, ...] = (
    builtins,
    math,
    operator,
    sys.modules["warnings"],
    gc,
    torch,
    torch.nn,
    torch.nn.functional,
    torch.nn.init,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.nn.RNNBase,
    torch.nn.LSTM,
    torch.autograd.Function,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
    torch.compiler,
    torch.distributions.Distribution,
    torch.serialization,
    torch._utils,
    torch.overrides,
    torch.utils._python_dispatch,
    fake_impl,
    sys.modules["torch.fx._lazy_graph_module"],
    *(
        sys.modules[f"torch._higher_order_ops.{name}"]
        for name in ("cond", "while_loop", "scan", "invoke_subgraph")
    ),
    type(torch.ops.higher_order.autograd_function_apply),
)
_FLAGS: tuple[Callable[[], Any], ...] = (
    gc.isenabled,
    gc.get_threshold,
    gc.get_freeze_count,
    sys.getrecursionlimit,
    sys.getprofile,
    threading.active_count,
    torch.get_default_dtype,
    torch.get_num_threads,
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch._C._get_torch_function_state,
    torch._C._get_math_sdp_enabled,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
)


def process_state() -> dict[str, Any]:
    """Whatever could have been changed, by name; what compares equal is the same."""
    state: dict[str, Any] = {}
    for owner in _OWNERS:
        state[owner.__name__] = dict(vars(owner))
    for read in _FLAGS:
        state[read.__name__] = read()
    state["function modes"] = list(map(id, _get_current_function_mode_stack()))
    state["dispatch modes"] = list(map(id, _get_current_dispatch_mode_stack()))
    state["excluded keys"] = torch._C._dispatch_tls_local_exclude_set().raw_repr()
    state["included keys"] = torch._C._dispatch_tls_local_include_set().raw_repr()
    state["autocast"] = [torch.get_autocast_dtype(d) for d in ("cpu", "cuda")]
    state["random state"] = torch.get_rng_state().numpy().tobytes()
    state["warning filters"] = list(warnings.filters)
    state["signal handlers"] = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    state["open files"] = _open_files()
    state["temporary files"] = sorted(os.listdir(tempfile.gettempdir()))
    state["record"] = process._thread_state.record
    state["held patches"] = [p._holders for p in process._PATCHES if p._holders or p._before]
    return state


def _open_files() -> list[str]:
    """All but what threads of ONNX Runtime have open: a database, sockets, events."""
    folder = "/proc/self/fd"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    open_ = [os.readlink(path) for n in names if os.path.lexists(path := f"{folder}/{n}")]
    return sorted(n for n in open_ if n.startswith("/") and "onnxruntime.db" not in n)


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    """All that a module holds."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            place = f"{path}.{name}"
            if isinstance(value, dict):
                state[place] = [(key, id(item)) for key, item in value.items()]
            else:
                state[place] = list(value) if isinstance(value, list) else value
    for name, tensor in model.state_dict(keep_vars=True).items():
        state[name] = (tensor.detach().numpy().tobytes(), tensor.requires_grad, tensor._version)
    return state


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not as it was."""
    found: list[str] = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, "absent"), after.get(name, "absent")
        if isinstance(old, dict) and isinstance(new, dict):
            same = old.keys() == new.keys() and all(map(operator.is_, old.values(), new.values()))
            found += [] if same else [f"{name}.{inner}" for inner in _changed(old, new)]
        elif old != new:
            found.append(name)
    return found


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [n for n in {**old, **new} if old.get(n, difference) is not new.get(n, difference)]
