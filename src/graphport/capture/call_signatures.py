"""`preserve_module_call_signature`: what named modules are called with, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from graphport import source
from graphport.capture import registries
from graphport.capture.inputs import CONSTANTS, Inputs, bind
from graphport.capture.tracer import Tracer
from graphport.capture.values import Value
from graphport.errors import InputError, UnsupportedError
from graphport.program import (
    Argument,
    ConstantArgument,
    ModuleCall,
    ModuleCallSignature,
    SymbolicArgument,
    TensorArgument,
)
from graphport.symbolic.bridge import from_torch

aten = torch.ops.aten
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass
class _Call:
    """One call: flat values as nodes or constants."""

    path: str
    bound: Inputs
    inputs: list[Any]
    outputs: list[Any] = field(default_factory=list)
    out_spec: Any = None


class CallSignatures:
    """Signatures of the modules at some paths, taken as they are called."""

    def __init__(self, root: nn.Module | None, names: Any, tracer: Tracer) -> None:
        self.tracer = tracer
        self.paths = _paths(root, names)
        self._calls: dict[str, _Call] = {}

    def enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> _Call:
        """Note the arguments of a call, in the name of whoever makes it."""
        if self.tracer.recorder.frame.parent is not None:
            raise UnsupportedError(
                f"the module {path!r} is called in a branch or loop, and cannot keep its signature",
                where=source.here(),
                fix=f"leave {path!r} out of preserve_module_call_signature",
            )
        try:
            bound = bind(module, args, kwargs, within=True)
        except InputError as error:
            raise InputError(
                f"the module {path!r} cannot keep its call signature: {error.what}",
                where=source.here(),
                fix=error.fix,
            ) from None
        return _Call(path, bound, [self._read(leaf.value) for leaf in bound.leaves])

    def leave(self, key: str, call: _Call, result: Any) -> Any:
        """Note the result of a call; what is not made in it is made to be."""
        leaves, call.out_spec = pytree.tree_flatten(result)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, (torch.Tensor, *_SYMBOLIC, *CONSTANTS)):
                raise InputError(
                    f"the module {call.path!r} cannot keep its call signature: it returns a "
                    f"{type(leaf).__module__}.{type(leaf).__qualname__}",
                    where=source.here(),
                    fix="return tensors and containers of them, or register the type with "
                    "torch.utils._pytree",
                )
            node = self._read(leaf)
            if isinstance(leaf, torch.Tensor) and key not in node.meta.get("nn_module_stack", {}):
                node = self.tracer.recorder.emit(aten.alias.default, node)
                leaves[i] = self._seen_through(node, leaf)
            call.outputs.append(node)
        self._calls[key] = call
        return pytree.tree_unflatten(leaves, call.out_spec)

    def _seen_through(self, node: Node, t: torch.Tensor) -> torch.Tensor:
        """The tensor as another node shows it: a module that is put in may compute it."""
        value = self.tracer.value(t)
        shown = Value.view(value, value.abstract, node, aten.alias.default, ())
        return self.tracer.wrap(shown, t.requires_grad)

    def _read(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.tracer.read(self.tracer.value(x))
        return self.tracer.recorder.size(from_torch(x)) if isinstance(x, _SYMBOLIC) else x

    @property
    def nodes(self) -> set[Node]:
        """What must stay in the graph."""
        values = (v for call in self._calls.values() for v in (*call.inputs, *call.outputs))
        return {v for v in values if isinstance(v, Node)}

    def replace(self, new: dict[Node, Node]) -> None:
        """Let other nodes stand for results."""
        for call in self._calls.values():
            call.outputs = [new.get(v, v) if isinstance(v, Node) else v for v in call.outputs]

    def module_calls(self, called: Iterable[str]) -> list[ModuleCall]:
        """All modules in the order of their first call; those that are kept once for each call.

        A module that is kept and never called has no signature to keep.
        """
        found = []
        for path in called:
            kept = {key: call for key, call in self._calls.items() if call.path == path}
            found += [ModuleCall(key, _signature(call)) for key, call in kept.items()]
            found += [] if kept else [ModuleCall(path)]
        return found


def _paths(root: nn.Module | None, names: Any) -> set[str]:
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise InputError(
            f"preserve_module_call_signature is a tuple of paths of modules, got {names!r}",
            fix='preserve_module_call_signature=("encoder", "decoder.layers.0")',
        )
    if not names:
        return set()
    modules = dict(registries.all_paths(root))
    first = {id(m): path for path, m in reversed(modules.items())}
    unknown = [n for n in names if not n or n not in modules]
    if unknown:
        known = [path for path in modules if path]
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise InputError(
            f"preserve_module_call_signature names {', '.join(map(repr, unknown))}, and the "
            f"program has no such module. Its modules: {shown or 'none'}",
            fix="paths as in model.named_modules()",
        )
    return {first[id(modules[n])] for n in names}


def argument(value: Any) -> Argument:
    """A flat argument or result, as a signature says it."""
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    is_tensor = isinstance(value.meta.get("val"), torch.Tensor)
    return TensorArgument(value.name) if is_tensor else SymbolicArgument(value.name)


def _signature(call: _Call) -> ModuleCallSignature:
    return ModuleCallSignature(
        tuple(map(argument, call.inputs)), tuple(map(argument, call.outputs)),
        call.bound.spec, call.out_spec, tuple(call.bound.argument_names),
    )  # fmt: skip


def rewritten(
    calls: Iterable[ModuleCall], new: Callable[[str], Any]
) -> tuple[list[ModuleCall], set[Node]]:
    """Signatures for another graph, by what stands for each node there; and those nodes."""
    found, nodes = [], set()
    for call in calls:
        if call.signature is None:
            found.append(call)
            continue
        sides = [
            [a.value if isinstance(a, ConstantArgument) else new(a.name) for a in side]
            for side in (call.signature.inputs, call.signature.outputs)
        ]
        nodes |= {v for side in sides for v in side if isinstance(v, Node)}
        inputs, outputs = (tuple(map(argument, side)) for side in sides)
        kept = call.signature
        found.append(ModuleCall(call.fqn, ModuleCallSignature(
            inputs, outputs, kept.in_spec, kept.out_spec, kept.argument_names)))  # fmt: skip
    return found, nodes
