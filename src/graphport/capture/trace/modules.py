"""Tracks which module is running (`nn_module_stack`), and initialises lazy modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.nn.modules.lazy import LazyModuleMixin

from graphport import process, source
from graphport.capture.numbers.functions import substitute_function
from graphport.capture.soundness import refusals
from graphport.capture.trace import registries
from graphport.capture.trace.recorder import Recorder
from graphport.capture.trace.signatures import CallSignatures
from graphport.compat.torch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    OpOverload,
    PyTreeCodeGen,
    ScriptMethod,
    pytree,
)
from graphport.program.call_checks import InputChecks
from graphport.program.module import CallGuard
from graphport.symbolic.bridge import is_symbolic
from graphport.tensors.abstract import get_example_size
from graphport.tensors.subclasses import split_subclasses
from graphport.types import PyTree

Stack = dict[str, tuple[str, str]]


def class_name(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


class ModuleTracker:
    """Follows the calls of modules below `root`; modules made in `forward` are passed over."""

    def __init__(self, root: nn.Module | None, recorder: Recorder) -> None:
        self.recorder = recorder
        self.calls: list[str] = []
        """Paths of modules, in the order of their first call."""
        self.on_initialised: Callable[[nn.Module], None] = lambda module: None
        """Callback for each lazy module that was initialised."""
        self.before_program: Callable[[InputChecks, list[Any]], None] = lambda checks, leaves: None
        self.after_program: Callable[[InputChecks, list[Any]], None] = lambda checks, leaves: None
        """Callbacks for each captured program that is called, with its arguments."""
        self.call_operator: Callable[..., Any] = lambda op, *args, **kwargs: op(*args, **kwargs)
        self.failure: Exception | None = None
        self.failed_in = ""
        """The innermost module that an exception passed through."""
        self.signatures: CallSignatures | None = None
        """Where calls of modules that keep their signature are noted."""
        self._root = root
        self._interpreter: Any = None
        self._scripted: dict[Any, nn.Module] | None = None
        """Modules by their objects of TorchScript."""
        self._graph: str | None = None
        """The path of the captured program that is being captured again."""
        self._paths: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        for path, module in registries.named_modules(root):
            self._paths[id(module)] = path

    @contextmanager
    def enter_module(self, module: nn.Module) -> Iterator[str]:
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
    def track_calls(self) -> Iterator[None]:
        """While this lasts, every call of a module in this thread is noted."""
        outer = getattr(_thread, "modules", None)
        _thread.modules = self
        try:
            with _CALL_PATCH:
                yield
        finally:
            _thread.modules = outer

    def call(self, original: Any, module: nn.Module, args: PyTree, kwargs: PyTree) -> PyTree:
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            _initialise_lazy(module, args, kwargs)
            self.on_initialised(module)
        if has_origin_metadata(module):
            return self._retrace(original, module, args, kwargs)
        path = self._paths.get(id(module))
        refusals.refuse_layer(module, args, path)
        wrapped = refusals.find_wrapped(module)
        if wrapped is not None:
            with self.enter_module(module) if path is not None else nullcontext():
                return wrapped(*args, **kwargs)
        if path is None:
            return original(module, *args, **kwargs)
        if self.signatures is None or path not in self.signatures.paths:
            with self.enter_module(module):
                return original(module, *args, **kwargs)
        call = self.signatures.enter(path, module, args, kwargs)
        with self.enter_module(module) as key:
            return self.signatures.leave(key, call, original(module, *args, **kwargs))

    def run_script(self, script: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> PyTree:
        """A call of a function or method of TorchScript."""
        if self._interpreter is None:
            from graphport.capture.torchscript.interpreter import Interpreter

            self._interpreter = Interpreter(self._run_operator, self._enter_scripted)
        is_function = isinstance(script, torch.jit.ScriptFunction)
        run = self._interpreter.call_function if is_function else self._interpreter.call_method
        return run(script, args, kwargs)

    def _run_operator(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        call = functools.partial(self.call_operator, op) if _has_size_for_integer(op, args) else op
        return call(*args, **kwargs)

    def _enter_scripted(self, script: Any) -> AbstractContextManager[object]:
        """The module behind an object of TorchScript, if it is one of the model's."""
        if self._scripted is None:
            named = registries.named_modules(self._root)
            scripted = (m for _, m in named if isinstance(m, torch.jit.ScriptModule))
            self._scripted = {m._c: m for m in scripted}
        module = self._scripted.get(script)
        return nullcontext() if module is None else self.enter_module(module)

    def _retrace(self, original: Any, module: Any, args: PyTree, kwargs: PyTree) -> PyTree:
        """Subgraphs belong to the module that the outermost graph has become."""
        outer = self._graph
        if outer is None:
            self._graph = self._paths.get(id(module), "")
        hooks = [h for h in module._forward_pre_hooks.values() if isinstance(h, CallGuard)]
        if hooks:
            args, kwargs = split_subclasses((args, kwargs))
        leaves = pytree.tree_leaves((args, kwargs))
        checks = [h.checks for h in hooks if h.checks is not None]
        for each in checks:
            self.before_program(each, leaves)
        try:
            again = make_interpreted(module, self.recorder, self._graph or "", self.call_operator)
            result = original(again, *args, **kwargs)
        finally:
            self._graph = outer
        for each in checks:
            self.after_program(each, leaves)
        return result


_thread = process.make_thread_local()


def _patch_module_call() -> Iterator[process.Replacement]:
    original = nn.Module.__call__

    def call(module: nn.Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
        watcher: ModuleTracker | None = getattr(_thread, "modules", None)
        if watcher is None:
            return original(module, *args, **kwargs)
        return watcher.call(original, module, args, kwargs)

    yield nn.Module, "__call__", call
    yield torch.jit.ScriptFunction, "__call__", _wrap_script(torch.jit.ScriptFunction.__call__)
    yield ScriptMethod, "__call__", _wrap_script(ScriptMethod.__call__)


def _wrap_script(original: Any) -> Callable[..., Any]:
    def call(script: Any, *args: PyTree, **kwargs: PyTree) -> PyTree:
        watcher: ModuleTracker | None = getattr(_thread, "modules", None)
        if watcher is None:
            return original(script, *args, **kwargs)
        return watcher.run_script(script, args, kwargs)

    return call


_CALL_PATCH = process.Patch(_patch_module_call)


def _initialise_lazy(module: Any, args: PyTree, kwargs: PyTree) -> None:
    """Let a lazy module make its parameters from the example sizes, as its first call would."""

    def example(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        sizes = (
            [get_example_size(s) for s in x._abstract.sizes] if hasattr(x, "_abstract") else x.shape
        )
        return torch.empty(sizes, dtype=x.dtype, device="meta")

    with DisableTorchDispatch(), DisableTorchFunction():
        args, kwargs = pytree.tree_map(example, (args, kwargs))
        module._infer_parameters(module, args, kwargs)


# Retraces a captured program: its nodes keep their metadata.
#
# A GraphModule whose nodes carry metadata is run node by node instead of through its generated
# code, which is nobody's source.


def has_origin_metadata(module: object) -> bool:
    """Whether a module is a graph whose nodes say where they come from."""
    return isinstance(module, GraphModule) and any(
        "nn_module_stack" in n.meta for n in module.graph.nodes if n.op == "call_function"
    )


def make_interpreted(
    module: GraphModule, recorder: Recorder, prefix: str, call: Callable[..., Any]
) -> GraphModule:
    """The module, hooks and state included, whose call runs its graph under its nodes' metadata.

    `call` is for operators whose schema has integers where their graph has symbolic sizes.
    """
    made: GraphModule = object.__new__(type(module))
    vars(made).update(vars(module), forward=_make_forward(module, recorder, prefix, call))
    return made


def _make_forward(
    module: GraphModule, recorder: Recorder, prefix: str, call: Callable[..., Any]
) -> Callable[..., Any]:
    codegen = module.graph._codegen
    structured = isinstance(codegen, PyTreeCodeGen)

    def forward(*args: object, **kwargs: object) -> Any:
        leaves = (
            pytree.tree_leaves((args, kwargs))
            if structured
            else _bind_arguments(module, args, kwargs)
        )
        out = _interpret_graph(module, recorder, prefix, call, leaves)
        if structured:
            return pytree.tree_unflatten(list(out), codegen.pytree_info.out_spec)
        return out

    return forward


def _bind_arguments(module: GraphModule, args: PyTree, kwargs: PyTree) -> list[Any]:
    """Arguments in the order of the graph's inputs."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    values = list(args)
    for node in inputs[len(args) :]:
        values.append(kwargs[node.target] if node.target in kwargs else node.args[0])
    return values


def _interpret_graph(
    module: GraphModule,
    recorder: Recorder,
    prefix: str,
    call: Callable[..., Any],
    leaves: list[object],
) -> Any:
    env: dict[Node, Any] = {}
    supply = iter(leaves)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(supply)
            continue
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            env[node] = _get_attribute(module, node.target)
        elif node.op == "call_module":
            env[node] = _get_attribute(module, node.target)(*args, **kwargs)
        elif node.op == "call_method":
            env[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            with recorder.inherit_metadata(node, prefix):
                if _has_size_for_integer(node.target, args):
                    env[node] = call(node.target, *args, **kwargs)
                else:
                    env[node] = substitute_function(node.target)(*args, **kwargs)
    return None


def _has_size_for_integer(op: object, args: PyTree) -> bool:
    """Whether torch would make a number of a symbolic size: of the sizes of adaptive pools."""
    if not isinstance(op, OpOverload):
        return False
    return any(
        isinstance(a.real_type, torch.ListType)
        and a.real_type.getElementType().kind() == "IntType"
        and any(map(is_symbolic, pytree.tree_leaves(x)))
        for a, x in zip(op._schema.arguments, args, strict=False)
    )


def _get_attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
