"""Which module is running (`nn_module_stack`), and lazy modules, which take shape when called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from graphport import process, source
from graphport.capture import refusals, registries, retrace
from graphport.capture.call_signatures import CallSignatures
from graphport.capture.recorder import Recorder
from graphport.errors import DataDependentError, ExportError, UnsupportedError
from graphport.ops.strides import at_example
from graphport.program.checks import InputChecks
from graphport.program.module import Entrance

Stack = dict[str, tuple[str, str]]


def class_name(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


class Modules:
    """Follows the calls of modules below `root`; modules made in `forward` are passed over."""

    def __init__(self, root: nn.Module | None, recorder: Recorder) -> None:
        self.recorder = recorder
        self.calls: list[str] = []
        """Paths of modules, in the order of their first call."""
        self.on_initialised: Callable[[nn.Module], None] = lambda module: None
        """Told of each lazy module that took shape."""
        self.on_program: Callable[[InputChecks, list[Any]], None] = lambda checks, leaves: None
        """Told of each captured program that was called, and with what."""
        self.failure: Exception | None = None
        self.failed_in = ""
        """The innermost module that an exception passed through."""
        self.signatures: CallSignatures | None = None
        """Where calls of modules that keep their signature are noted."""
        self._graph: str | None = None
        """The path of the captured program that is being captured again."""
        self._paths: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        for path, module in registries.named_modules(root):
            self._paths[id(module)] = path

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[str]:
        """While this lasts, the module is running; the key of the call."""
        path = self._paths[id(module)]
        count = self._counts[path] = self._counts.get(path, -1) + 1
        if count == 0:
            self.calls.append(path)
        key = f"{path}@{count}" if count else path
        outer, around = self.recorder.stack, source.running.module
        self.recorder.stack = {**outer, key: (path, class_name(module))}
        source.running.module = path
        try:
            yield key
        except Exception as error:
            if error is not self.failure:
                self.failure, self.failed_in = error, path
            raise
        finally:
            self.recorder.stack = outer
            source.running.module = around

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, every call of a module in this thread is noted."""
        outer = getattr(_watching, "modules", None)
        _watching.modules = self
        try:
            with _replaced:
                yield
        finally:
            _watching.modules = outer

    def call(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            _initialise(module, args, kwargs)
            self.on_initialised(module)
        if isinstance(module, torch.jit.ScriptModule):
            return self._run_script(original, module, args, kwargs)
        if retrace.remembers(module):
            return self._retrace(original, module, args, kwargs)
        path = self._paths.get(id(module))
        refusals.refuse_layer(module, args, path)
        if path is None:
            return original(module, *args, **kwargs)
        if self.signatures is None or path not in self.signatures.paths:
            with self.inside(module):
                return original(module, *args, **kwargs)
        call = self.signatures.enter(path, module, args, kwargs)
        with self.inside(module) as key:
            return self.signatures.leave(key, call, original(module, *args, **kwargs))

    def _run_script(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Let TorchScript's interpreter run the operators, which it can where sizes are numbers."""
        try:
            return original(module, *args, **kwargs)
        except (RuntimeError, TypeError, AttributeError) as error:
            if isinstance(error, ExportError) and not isinstance(error, DataDependentError):
                raise
            path = self._paths.get(id(module), type(module).__name__)
            raise UnsupportedError(
                f"the module {path!r} is TorchScript (torch.jit.script or torch.jit.trace), which "
                "does not run as Python",
                where=source.here(),
                fix="use the Python module that it was made of",
            ) from error

    def _retrace(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Graphs within a graph belong to whatever the outermost one has become."""
        outer = self._graph
        if outer is None:
            self._graph = self._paths.get(id(module), "")
        try:
            again = retrace.node_by_node(module, self.recorder, self._graph or "")
            result = original(again, *args, **kwargs)
        finally:
            self._graph = outer
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, Entrance) and hook.checks is not None:
                self.on_program(hook.checks, pytree.tree_leaves((args, kwargs)))
        return result


_watching = process.thread_local()


def _watched_call() -> Iterator[process.Replacement]:
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        watcher: Modules | None = getattr(_watching, "modules", None)
        if watcher is None:
            return original(module, *args, **kwargs)
        return watcher.call(original, module, args, kwargs)

    yield nn.Module, "__call__", call


_replaced = process.Patch(_watched_call)


def _initialise(module: Any, args: Any, kwargs: Any) -> None:
    """Let a lazy module make its parameters from the example sizes, as its first call would."""

    def example(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        sizes = [at_example(s) for s in x._abstract.sizes] if hasattr(x, "_abstract") else x.shape
        return torch.empty(sizes, dtype=x.dtype, device="meta")

    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        args, kwargs = pytree.tree_map(example, (args, kwargs))
        module._infer_parameters(module, args, kwargs)
