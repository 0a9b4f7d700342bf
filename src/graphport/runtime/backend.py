"""`OrtBackend`: a backend of `torch.compile` that runs graphs on ONNX Runtime."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule

from graphport.compat.torch import disable_current_modes
from graphport.errors import ExportError, InputError
from graphport.onnx.target.session import forkable_lock
from graphport.runtime.compiled import CompiledGraph
from graphport.runtime.graphs import static_inputs
from graphport.runtime.options import OrtBackendOptions, select_providers
from graphport.runtime.region import SessionRecord
from graphport.runtime.regions import log_plan, report_backend
from graphport.types import PyTree

log = logging.getLogger("graphport.ort")

_COUNT_LOCK = forkable_lock()
_NUMBERS = itertools.count()


class OrtBackend:
    """Compiles graphs of torch.compile.

    >>> import torch, graphport as gp
    >>> fast = torch.compile(torch.nn.Linear(4, 2), backend=gp.ort.OrtBackend())
    >>> with torch.no_grad():
    ...     fast(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """

    _instances: ClassVar[dict[Any, OrtBackend]] = {}
    _turn: ClassVar[Any] = forkable_lock()

    def __init__(self, options: OrtBackendOptions | Mapping[str, Any] | None = None) -> None:
        self.options = OrtBackendOptions.of(options)
        self.options.check()
        self.execution_count = 0
        """How often a session has run."""
        self._made: weakref.WeakValueDictionary[int, CompiledGraph] = weakref.WeakValueDictionary()
        """Graphs that torch.compile still holds, by the order in which they were compiled."""
        self.refused: MutableMapping[GraphModule, str] = weakref.WeakKeyDictionary()
        """Graphs that run in PyTorch as a whole, and why."""

    def __call__(
        self, module: GraphModule, inputs: Sequence[object], *, options: Any = None, **_: object
    ) -> Callable[..., PyTree]:
        from graphport.runtime import torch_compile

        if options is not None and OrtBackendOptions.of(options) != self.options:
            raise InputError(
                "an OrtBackend has its own options, but torch.compile was given others",
                fix="OrtBackend(options)",
            )

        return torch_compile.compile_graph(self, module, inputs)

    def __deepcopy__(self, memo: dict[int, object]) -> OrtBackend:
        return self  # a copy of a compiled module is compiled by the same

    def __reduce__(self) -> tuple[Any, ...]:
        return OrtBackend, (self.options,)  # what was compiled is compiled again

    def count(self) -> None:
        with _COUNT_LOCK:
            self.execution_count += 1

    def compile(
        self, module: GraphModule, inputs: Sequence[object], *, inference: bool
    ) -> Callable[..., Any]:
        """A callable in place of a graph; for inference, with its weights taken in."""
        static = static_inputs(module, inputs)
        where = select_providers(
            self.options, {t.device for t in inputs if isinstance(t, torch.Tensor)}
        )
        try:
            # AOTAutograd compiles within its own fake mode.
            with disable_current_modes():
                made = CompiledGraph(module, inputs, self, where, static, freeze=inference)
        except ExportError as error:
            if self.options.strict:
                raise
            self.refused[module] = error.what
            log.warning("a graph runs in PyTorch: %s", str(error))
            return module
        self._made[next(_NUMBERS)] = made
        log_plan(made)
        return made

    @property
    def compiled(self) -> dict[GraphModule, CompiledGraph]:
        """What the graphs have become that torch.compile still holds."""
        return {made.module: made for made in list(self._made.values())}

    @property
    def sessions(self) -> dict[GraphModule, list[SessionRecord]]:
        """The sessions of each graph."""
        return {module: made.records for module, made in self.compiled.items()}

    def explain(self) -> str:
        """Which operators run on ONNX Runtime, which in PyTorch, and why."""
        return report_backend(self)

    # Instances

    @classmethod
    def get_cached_instance_for_options(
        cls, options: OrtBackendOptions | Mapping[str, Any] | None = None
    ) -> OrtBackend:
        """The backend for these options: equal ones share it."""
        made = OrtBackendOptions.of(options)
        key = made.key
        with cls._turn:
            if key is None:
                key = object()
            if key not in cls._instances:
                cls._instances[key] = OrtBackend(made)
            return cls._instances[key]

    @classmethod
    def get_cached_instances(cls) -> tuple[OrtBackend, ...]:
        return tuple(cls._instances.values())

    @classmethod
    def clear_cached_instances(cls) -> None:
        with cls._turn:
            cls._instances.clear()


def needs_gradients(inputs: Sequence[object]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(t, torch.Tensor) and t.requires_grad for t in inputs
    )
