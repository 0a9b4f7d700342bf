"""What a program did to Python while it was captured: a trace is only as sound as that.

A tensor that is stored where the call ends, in an attribute, a global or a container, is not part
of the captured program. Neither is other state that it changes, and where the program reads that
state again, the next call would compute something else.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from graphport import source
from graphport.capture import registries
from graphport.capture.snapshot import Snapshot, attributes, items
from graphport.ops.tensor import AbstractTensor
from graphport.source import Location

# Exactly these: a subclass may do anything when it is looked into.
_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
_STORES = {f"{verb}_{what}" for verb in ("STORE", "DELETE")
           for what in ("ATTR", "GLOBAL", "DEREF", "NAME")}  # fmt: skip
_NOTHING: Any = object()


@dataclass(frozen=True)
class Change:
    """Something that holds another value than before."""

    name: str
    leaks: bool
    """It is a tensor of the program, or holds one."""
    where: Location | None
    renews: bool = False
    """A tensor in the place of another: what hooks do that compute a weight before each call."""

    def __str__(self) -> str:
        return f"{self.name} at {self.where}" if self.where else self.name


class Surroundings:
    """Globals, closures and classes of a program's code, as they were before it ran."""

    def __init__(self, mod: Any, root: nn.Module | None) -> None:
        self._contents: list[tuple[str, Any, Any]] = []
        self._functions = list(_functions(mod, root))
        spaces = {id(f.__globals__): ("", f.__globals__) for f in self._functions}
        spaces |= {id(c): (f"{c.__qualname__}.", vars(c)) for c in _classes(root)}
        self._spaces = [(prefix, space, dict(space)) for prefix, space in spaces.values()]
        for prefix, _, before in self._spaces:
            for name, value in before.items():
                self._keep(prefix + name, value)
        self._cells = [
            (name, cell, _content(cell)) for f in self._functions
            for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
        ]  # fmt: skip
        for name, _, value in self._cells:
            self._keep(name, value)

    def _keep(self, name: str, value: Any) -> None:
        if type(value) in _CONTAINERS and not name.startswith("__"):
            self._contents.append((name, value, list(items(value))))

    def changes(self) -> Iterator[Change]:
        for prefix, space, before in self._spaces:
            for name, value in _differing(before, space):
                if not name.startswith("__"):
                    yield self._change(prefix, name, value)
        for name, cell, before in self._cells:
            value = _content(cell)
            if value is not before:
                yield self._change("", name, value)
        for name, container, before in self._contents:
            after = list(items(container))
            new = [x for x in after if not any(x is y for y in before)]
            if len(after) != len(before) or new:
                where = next(filter(None, map(_made, new)), None)
                yield Change(name, any(map(holds_tensor, new)), where)

    def _change(self, prefix: str, name: str, value: Any) -> Change:
        where = _stored(self._functions, name) or _made(value)
        return Change(prefix + name, holds_tensor(value), where)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable of the enclosing function that has no value yet
        return _NOTHING


def _differing(before: Any, after: Any) -> Iterator[tuple[str, Any]]:
    """Names that hold something else than before, and what; or nothing any more."""
    for name in {**before, **after}:
        value = after.get(name, _NOTHING)
        if value is not before.get(name, _NOTHING):
            yield name, value


def _functions(mod: Any, root: nn.Module | None) -> Iterator[types.FunctionType]:
    """The user's functions that a program is made of, as far as they can be named."""
    while isinstance(mod, functools.partial):
        mod = mod.func
    found = mod.__func__ if isinstance(mod, types.MethodType) else mod
    if isinstance(found, types.FunctionType):
        yield found
    for kind in _classes(root):
        yield vars(kind)["forward"]


def _classes(root: nn.Module | None) -> Iterator[type]:
    """The user's classes that say what a module computes."""
    modules = registries.named_modules(root)
    for kind in dict.fromkeys(c for _, m in modules for c in type(m).__mro__):
        forward = vars(kind).get("forward")
        if isinstance(forward, types.FunctionType) and source.is_the_users(forward.__code__):
            yield kind


def of_state(snapshot: Snapshot, root: nn.Module | None) -> Iterator[Change]:
    """Attributes and containers of modules that hold something else."""
    paths = {id(vars(m)): (p, m) for p, m in registries.named_modules(root)}
    for container, before in snapshot.changed():
        path, owner = paths.get(id(container), ("", None))
        if owner is not None:
            yield from _attributes(path, owner, dict(before))
        elif not _is_registry(container, root):
            new = [x for x in items(container) if not any(x is y for y in items(before))]
            where = next(filter(None, map(_made, new)), None)
            name = _name_of(container, root)
            yield Change(name, any(map(holds_tensor, new)), where)


def _attributes(path: str, owner: nn.Module, before: dict[str, Any]) -> Iterator[Change]:
    code = [f for kind in type(owner).__mro__ for f in vars(kind).values()
            if isinstance(f, types.FunctionType)]  # fmt: skip
    for name, value in _differing(before, vars(owner)):
        told = f"{path}.{name}" if path else f"self.{name}"
        renews = isinstance(before.get(name), torch.Tensor)
        where = _stored(code, name) or _made(value)
        yield Change(told, holds_tensor(value), where, renews)


def _is_registry(container: Any, root: nn.Module | None) -> bool:
    """Buffers that are assigned to are part of the program, and seen to elsewhere."""
    modules = registries.named_modules(root)
    return any(container is m._buffers or container is m._parameters for _, m in modules)


def _name_of(container: Any, root: nn.Module | None) -> str:
    for path, module in registries.named_modules(root):
        for name, value in vars(module).items():
            if value is container or attributes(value) is container:
                return f"{path}.{name}" if path else f"self.{name}"
    return f"a {type(container).__name__}"


def holds_tensor(value: Any, depth: int = 3) -> bool:
    """Whether a value is a tensor of the program, or a container with one in it."""
    if type(value) is AbstractTensor:
        return value._value is not None
    if depth and (type(value) in _CONTAINERS or issubclass(type(value), tuple)):
        return any(holds_tensor(x, depth - 1) for x in items(value))
    return False


def _stored(functions: list[types.FunctionType], name: str) -> Location | None:
    """The line that assigns to a name."""
    for f in sorted(functions, key=lambda f: f.__name__ == "__init__"):
        for i in dis.get_instructions(f.__code__):
            if i.opname in _STORES and i.argval == name and i.positions and i.positions.lineno:
                code = f.__code__
                return Location(code.co_filename, i.positions.lineno, code.co_qualname)
    return None


def _made(value: Any) -> Location | None:
    """The line that computed a tensor, or one in a container."""
    if type(value) in _CONTAINERS or issubclass(type(value), tuple):
        return next(filter(None, map(_made, items(value))), None)
    if type(value) is not AbstractTensor or value._value is None:
        return None
    return source.of_trace(value._value.node.meta.get("stack_trace"))


def difference(a: Sequence[Graph], b: Sequence[Graph]) -> tuple[str, Location | None] | None:
    """Where two captures part: the first node of either that the other does not have.

    Each is given with the graphs within it; which those are is said by the nodes before.
    """
    pairs = zip(a, b, strict=False)
    return next((found for one, other in pairs if (found := _parting(one, other))), None)


def _parting(a: Graph, b: Graph) -> tuple[str, Location | None] | None:
    one, other = list(a.nodes), list(b.nodes)
    for x, y in zip(one, other, strict=False):
        if _line(x) != _line(y):
            return f"{_line(x)} and {_line(y)}", source.of_trace(x.meta.get("stack_trace"))
    if len(one) != len(other):
        more = max(one, other, key=len)[min(len(one), len(other))]
        return f"{_line(more)} in one of them", source.of_trace(more.meta.get("stack_trace"))
    return None


def _line(node: Node) -> str:
    arguments = ", ".join((*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())))
    return f"{node.name} = {node.target}({arguments})"
