"""What holds in the whole process, or in the thread, while a program is captured or rewritten."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from graphport.capture.builtin import symbolic_builtins
from graphport.capture.cache_lengths import open_windows
from graphport.capture.control import direct_control_flow
from graphport.capture.process import ProcessWide


@contextmanager
def capturing() -> Iterator[None]:
    """Everything but the modes that see the operators."""
    with ExitStack() as stack:
        for setting in _SETTINGS:
            stack.enter_context(setting)
        stack.enter_context(_no_autocast_cache())
        # Below autograd, composite operators arrive whole and views are ours to track.
        stack.enter_context(torch._C._AutoDispatchBelowADInplaceOrView())
        yield


@contextmanager
def _compiling_flags() -> Iterator[None]:
    """torch.compiler.is_compiling() is true while a program is captured."""
    flags = ("_is_compiling_flag", "_is_exporting_flag")
    before = {f: getattr(torch.compiler, f) for f in flags}
    for f in flags:
        setattr(torch.compiler, f, True)
    try:
        yield
    finally:
        for f, value in before.items():
            setattr(torch.compiler, f, value)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Capture allocates much and drops little: a full collection in its midst only costs time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _distributions_unchecked() -> Iterator[None]:
    """`torch.distributions` looks at the data of parameters and samples, and there is none yet."""
    kind = torch.distributions.Distribution
    before = kind._validate_args
    kind._validate_args = False
    try:
        yield
    finally:
        kind._validate_args = before


NO_COLLECTION = ProcessWide(_no_garbage_collection)
_SETTINGS = (
    ProcessWide(_compiling_flags),
    ProcessWide(_distributions_unchecked),
    ProcessWide(symbolic_builtins),
    ProcessWide(direct_control_flow),
    ProcessWide(open_windows),
)


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
