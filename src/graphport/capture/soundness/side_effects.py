"""Finds Python side effects of the program that a trace misses; rejects them if strict.

A tensor that is stored where the call ends, in an attribute, a global or a container, is not part
of the captured program. Neither is other state that it changes, and where the program reads that
state again, the next call would compute something else.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from graphport import source
from graphport.capture.soundness.snapshot import Snapshot, attribute_dict, iterate_items
from graphport.capture.trace import registries
from graphport.compat.torch import pytree
from graphport.errors import CaptureWarning, StrictError
from graphport.process import Patch, Replacement
from graphport.program import ExportedProgram
from graphport.source import Location
from graphport.symbolic import Expr, evaluate
from graphport.symbolic.bridge import SYMBOLIC, SYMBOLIC_NUMBERS, from_torch
from graphport.tensors.abstract import AbstractTensor, get_val
from graphport.types import PyTree

# Exactly these: a subclass may do anything when it is looked into.
_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
_STORES = {
    f"{verb}_{what}" for verb in ("STORE", "DELETE") for what in ("ATTR", "GLOBAL", "DEREF", "NAME")
}
_MISSING: Any = object()


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


class GlobalsSnapshot:
    """Globals, closures and classes of a program's code, as they were before it ran."""

    def __init__(self, mod: object, root: nn.Module | None) -> None:
        self._contents: list[tuple[str, Any, Any]] = []
        self._functions = list(_iterate_functions(mod, root))
        spaces: dict[int, tuple[str, Mapping[str, Any]]]
        spaces = {id(f.__globals__): ("", f.__globals__) for f in self._functions}
        spaces |= {id(c): (f"{c.__qualname__}.", vars(c)) for c in _iterate_classes(root)}
        self._spaces = [(prefix, space, dict(space)) for prefix, space in spaces.values()]
        for prefix, _, before in self._spaces:
            for name, value in before.items():
                self._keep(prefix + name, value)
        self._cells = [
            (name, cell, _read_cell(cell))
            for f in self._functions
            for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
        ]
        for name, _, value in self._cells:
            self._keep(name, value)

    def _keep(self, name: str, value: object) -> None:
        if type(value) in _CONTAINERS and not name.startswith("__"):
            self._contents.append((name, value, list(iterate_items(value))))

    def changes(self) -> Iterator[Change]:
        for prefix, space, before in self._spaces:
            for name, value in _iterate_differences(before, space):
                if not name.startswith("__"):
                    yield self._change(prefix, name, value)
        for name, cell, before in self._cells:
            value = _read_cell(cell)
            if value is not before:
                yield self._change("", name, value)
        for name, container, before in self._contents:
            after = list(iterate_items(container))
            new = [x for x in after if not any(x is y for y in before)]
            if len(after) != len(before) or new:
                where = next(filter(None, map(_find_origin, new)), None)
                yield Change(name, any(map(holds_tensor, new)), where)

    def _change(self, prefix: str, name: str, value: object) -> Change:
        where = _find_store(self._functions, name) or _find_origin(value)
        return Change(prefix + name, holds_tensor(value), where)


def _read_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable of the enclosing function that has no value yet
        return _MISSING


def _iterate_differences(before: Any, after: Any) -> Iterator[tuple[str, Any]]:
    """Names that hold something else than before, and what; or nothing any more."""
    for name in {**before, **after}:
        value = after.get(name, _MISSING)
        if value is not before.get(name, _MISSING):
            yield name, value


def _iterate_functions(mod: Any, root: nn.Module | None) -> Iterator[types.FunctionType]:
    """The user's functions that a program is made of, as far as they can be named."""
    while isinstance(mod, functools.partial):
        mod = mod.func
    found = mod.__func__ if isinstance(mod, types.MethodType) else mod
    if isinstance(found, types.FunctionType):
        yield found
    for kind in _iterate_classes(root):
        yield vars(kind)["forward"]


def _iterate_classes(root: nn.Module | None) -> Iterator[type]:
    """The user's classes that say what a module computes."""
    modules = registries.named_modules(root)
    for kind in dict.fromkeys(c for _, m in modules for c in type(m).__mro__):
        forward = vars(kind).get("forward")
        if isinstance(forward, types.FunctionType) and source.is_user_code(forward.__code__):
            yield kind


def find_module_changes(snapshot: Snapshot, root: nn.Module | None) -> Iterator[Change]:
    """Attributes and containers of modules that hold something else."""
    paths = {id(vars(m)): (p, m) for p, m in registries.named_modules(root)}
    for container, before in snapshot.find_changed():
        path, owner = paths.get(id(container), ("", None))
        if owner is not None:
            yield from _find_attribute_changes(path, owner, dict(before))
        elif not _is_registry(container, root):
            new = [
                x
                for x in iterate_items(container)
                if not any(x is y for y in iterate_items(before))
            ]
            where = next(filter(None, map(_find_origin, new)), None)
            name = _container_name(container, root)
            yield Change(name, any(map(holds_tensor, new)), where)


def _find_attribute_changes(
    path: str, owner: nn.Module, before: dict[str, object]
) -> Iterator[Change]:
    code = [
        f
        for kind in type(owner).__mro__
        for f in vars(kind).values()
        if isinstance(f, types.FunctionType)
    ]
    for name, value in _iterate_differences(before, vars(owner)):
        place = f"{path}.{name}" if path else f"self.{name}"
        renews = isinstance(before.get(name), torch.Tensor)
        where = _find_store(code, name) or _find_origin(value)
        yield Change(place, holds_tensor(value), where, renews)


def _is_registry(container: object, root: nn.Module | None) -> bool:
    """Buffers that are assigned to are part of the program, and seen to elsewhere."""
    modules = registries.named_modules(root)
    return any(container is m._buffers or container is m._parameters for _, m in modules)


def _container_name(container: object, root: nn.Module | None) -> str:
    for path, module in registries.named_modules(root):
        for name, value in vars(module).items():
            if value is container or attribute_dict(value) is container:
                return f"{path}.{name}" if path else f"self.{name}"
    return f"a {type(container).__name__}"


def holds_tensor(value: object, depth: int = 3) -> bool:
    """Whether a value is a tensor of the program, or a container with one in it."""
    if type(value) is AbstractTensor:
        return value._value is not None
    if depth and (type(value) in _CONTAINERS or issubclass(type(value), tuple)):
        return any(holds_tensor(x, depth - 1) for x in iterate_items(value))
    return False


def _find_store(functions: list[types.FunctionType], name: str) -> Location | None:
    """The line that assigns to a name."""
    for f in sorted(functions, key=lambda f: f.__name__ == "__init__"):
        for i in dis.get_instructions(f.__code__):
            if i.opname in _STORES and i.argval == name and i.positions and i.positions.lineno:
                code = f.__code__
                return Location(code.co_filename, i.positions.lineno, code.co_qualname)
    return None


def _find_origin(value: object) -> Location | None:
    """The line that computed a tensor, or one in a container."""
    if type(value) in _CONTAINERS or issubclass(type(value), tuple):
        return next(filter(None, map(_find_origin, iterate_items(value))), None)
    if type(value) is not AbstractTensor or value._value is None:
        return None
    return source.locate_stack_trace(value._value.node.meta.get("stack_trace"))


def find_graph_difference(
    a: Sequence[Graph], b: Sequence[Graph]
) -> tuple[str, Location | None] | None:
    """Where two captures differ: the first node of either that the other does not have.

    Each is given with its subgraphs, in the order of the nodes that refer to them.
    """
    pairs = zip(a, b, strict=False)
    return next(
        (found for one, other in pairs if (found := _find_first_difference(one, other))), None
    )


def _find_first_difference(a: Graph, b: Graph) -> tuple[str, Location | None] | None:
    one, other = list(a.nodes), list(b.nodes)
    for x, y in zip(one, other, strict=False):
        if _format_node(x) != _format_node(y):
            return f"{_format_node(x)} and {_format_node(y)}", source.locate_stack_trace(
                x.meta.get("stack_trace")
            )
    if len(one) != len(other):
        more = max(one, other, key=len)[min(len(one), len(other))]
        return f"{_format_node(more)} in one of them", source.locate_stack_trace(
            more.meta.get("stack_trace")
        )
    return None


def _format_node(node: Node) -> str:
    arguments = ", ".join((*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())))
    return f"{node.name} = {node.target}({arguments})"


# Reports what a single trace cannot prove: an error if strict, else a warning where it is cheap.

_LEAK = "a tensor of the program is kept beyond the call, in {0}: the captured program will not"
_STATE = (
    "the program changes {0} and computes something else the next time: what was captured is what "
    "it does the first time"
)
_FIX = {
    _LEAK: "return the tensor, or register a buffer and write to it",
    _STATE: "keep the state in a buffer, or pass it in as an argument",
}


def report_changes(changes: list[Change], depends: bool, strict: bool) -> None:
    """Say what the program did to Python: as an error, or as a warning."""
    for change in changes:
        if not depends and (not change.leaks or change.renews):
            continue
        what = _LEAK if change.leaks else _STATE
        error = StrictError(what.format(change.name), where=change.where, fix=_FIX[what])
        raise_or_warn(error, strict)


def raise_or_warn(error: StrictError, strict: bool) -> None:
    if strict:
        raise error
    source.warn(str(error), CaptureWarning)


def seed_error() -> StrictError:
    return StrictError(
        "the program seeds torch's random numbers and draws some: the captured program draws them "
        "without the seed",
        fix="call torch.manual_seed before the program, or pass the random numbers in",
    )


def make_other_inputs(program: ExportedProgram) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
    """Arguments of other sizes that the program accepts; the example's where there are none."""
    roots = [s for s in program.range_constraints if s.kind == "symbol"]
    hints = {s: program.scope.hint(s) for s in roots}
    known = {s: int(h) for s, h in hints.items() if h is not None}
    for step in (1, 2, 3, 4, 8, 16, -1, -2):
        env = {s: h + step * (1 + i) for i, (s, h) in enumerate(known.items())}
        leaves = _make_leaves(program, env)
        if leaves is not None:
            return pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return program.example_inputs


def _make_leaves(program: ExportedProgram, env: dict[Expr, int]) -> list[object] | None:
    """Flat inputs at the sizes that `env` gives, if they pass the program's own checks."""
    given = pytree.tree_leaves(program.example_inputs)
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    inputs = placeholders[len(placeholders) - len(given) :]
    leaves = []
    for node, x in zip(inputs, given, strict=True):
        val = get_val(node)
        if isinstance(val, AbstractTensor):
            sizes = [int(evaluate(s, env)) for s in val._abstract.sizes]
            if any(s < 0 for s in sizes):
                return None
            same = sizes == list(x.shape)
            leaves.append(x if same else _make_empty(sizes, x))
        elif isinstance(val, SYMBOLIC_NUMBERS):
            leaves.append(type(x)(evaluate(from_torch(val), env)))
        else:
            leaves.append(x)
    return leaves if program.checks.accepts(tuple(leaves)) else None


def _make_empty(sizes: list[int], like: torch.Tensor) -> torch.Tensor:
    made = torch.empty(sizes, dtype=like.dtype, device=like.device)
    return made.requires_grad_(like.requires_grad)


def recapture_error(where: source.Location | None, how: str) -> StrictError:
    return StrictError(
        f"capturing the program again, at other sizes, gives another graph: {how}",
        where=where,
        fix="make the program the same for every call: no random or counted Python decisions",
    )


def _patch_size_text() -> Iterator[Replacement]:
    """The text of a size is an error, unless it is there to be read."""

    def refuse(number: object) -> str:
        where = source.locate_user_line()
        if where is not None and any(word in where.text for word in _READABLE_CONTEXTS):
            return str(from_torch(number))
        raise StrictError(
            "the text of a size depends on the sizes of the example",
            where=where,
            fix="compute with the number itself",
        )

    for kind in SYMBOLIC:
        yield kind, "__str__", refuse
        yield kind, "__repr__", refuse


NO_SIZE_TEXT = Patch(_patch_size_text)
"""Held, the text of a size is an error."""
_READABLE_CONTEXTS = ("print(", "raise ", "assert ", "log", "warn")
