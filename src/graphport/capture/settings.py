"""What holds in the whole process, or in the thread, while a program is captured or rewritten."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch._C._dynamo.guards import set_is_in_mode_without_ignore_compile_internals
from torch.utils import _python_dispatch

from graphport.capture.builtin import symbolic_builtins
from graphport.capture.cache_lengths import open_windows
from graphport.capture.control import direct_control_flow
from graphport.capture.custom import sizes_of_thread
from graphport.process import Patch, Replacement, Switch


@contextmanager
def capturing() -> Iterator[None]:
    """Everything but the modes that see the operators."""
    with ExitStack() as stack:
        stack.enter_context(_SETTINGS)
        stack.enter_context(_no_autocast_cache())
        # Below autograd, composite operators arrive whole and views are ours to track.
        stack.enter_context(torch._C._AutoDispatchBelowADInplaceOrView())
        yield


def _no_collection() -> Iterator[Replacement]:
    """Capture allocates much and drops little: a full collection in its midst only costs time."""
    yield Switch(gc.isenabled, _collect), "", False


def _collect(enabled: bool) -> None:
    if enabled:
        gc.enable()
    else:
        gc.disable()


def _deep_calls() -> Iterator[Replacement]:
    """A call of a module takes five frames, and three in eager: what eager can run is captured."""
    limit = sys.getrecursionlimit()
    yield Switch(sys.getrecursionlimit, sys.setrecursionlimit), "", 2 * limit + 1000


def _flags_of_modes() -> Iterator[Replacement]:
    """What torch notes of modes for all threads alike, kept to be put back."""
    module: Any = _python_dispatch
    flag = "_is_in_any_mode_without_ignore_compile_internals"
    for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode", flag):
        yield module, name, vars(module)[name]
    known = vars(module)[flag]
    yield Switch(lambda: known, set_is_in_mode_without_ignore_compile_internals), "", known


def _compiling_flags() -> Iterator[Replacement]:
    """torch.compiler.is_compiling() is true while a program is captured."""
    module: ModuleType = torch.compiler
    yield module, "_is_compiling_flag", True
    yield module, "_is_exporting_flag", True


def _distributions_unchecked() -> Iterator[Replacement]:
    """`torch.distributions` looks at the data of parameters and samples, and there is none yet."""
    yield torch.distributions.Distribution, "_validate_args", False


def _while_user_code_runs() -> Iterator[Replacement]:
    yield from _compiling_flags()
    yield from _distributions_unchecked()
    yield from symbolic_builtins()
    yield from direct_control_flow()
    yield from open_windows()
    yield from sizes_of_thread()


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """Autocast remembers weights that it has cast; an abstract one must not outlive capture."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


NO_COLLECTION = Patch(_no_collection)
DEEP_CALLS = Patch(_deep_calls)
FLAGS = Patch(_flags_of_modes)
"""From before the first mode to after the last."""
_SETTINGS = Patch(_while_user_code_runs)
