"""The hierarchy of an unflattened program: modules and state at their places."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from graphport.program.identifiers import rename
from graphport.program.module import give_state, own_state
from graphport.program.unflattening.calls import Call
from graphport.program.unflattening.module import COMPILED, CapturedModule, Parent
from graphport.program.unflattening.pieces import Piece
from graphport.program.unflattening.state import State

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


def _form(part: str) -> tuple[str, str]:
    """A name, and what tells a further form of the module of that name: `@1`."""
    name, at, number = part.rpartition("@")
    return (name, at + number) if number.isdecimal() and number.isascii() else (part, "")


class Tree:
    """Modules by path, made as they are asked for."""

    def __init__(self, root: CapturedModule, state: State, called: Iterable[str]) -> None:
        """`called` are the paths of modules that have a graph."""
        self.root = root
        self.state = state
        self.modules: dict[str, nn.Module] = {"": root}
        self.aliases: dict[str, str] = {}
        """Paths at which a module stands a second time, and the first."""
        self._references: dict[int, dict[str, str]] = {}
        self._hung = {""}
        """Paths of modules that are where they belong."""
        paths = (*state.tensors, *called)
        parts = set().union(*(path.split(".") for path in paths))
        self._clashes = rename(
            (_form(part)[0] for part in parts), {*dir(root), *vars(root), COMPILED}
        )

    def attribute(self, path: str) -> str:
        """Where a module has what is called so below it."""
        return ".".join(map(self._part, path.split(".")))

    def _part(self, part: str) -> str:
        """A further form of a module is called after the first, whatever that is called."""
        name, form = _form(part)
        return self._clashes.get(name, name) + form

    def add(self, path: str, module: nn.Module) -> None:
        self.modules[path] = module

    def at(self, path: str) -> nn.Module:
        """The module at a path; what was never called is a plain container."""
        known = self.modules.get(path)
        if known is None:
            known = self.modules[path] = Parent()
        return known

    def assemble(self, program: ExportedProgram) -> None:
        """Give every module its state and its children."""
        for name, t, persistent in own_state(program):
            self._register(name, t, persistent)
        for path in sorted(self.modules, key=_depth):
            self._hang(path)
        for module in self.root.modules():
            _sort_numbered(module)

    def _register(self, name: str, t: Any, persistent: bool) -> None:
        owner, _, last = name.rpartition(".")
        second = next((a for a in self.aliases if owner == a or owner.startswith(f"{a}.")), None)
        if second is not None:
            self._hang(second)
            return
        self._hang(owner)
        give_state(self.modules[owner], self.attribute(last), t, persistent)

    def _hang(self, path: str) -> None:
        """Make a module a child of the one that its path says, from the root down."""
        missing = []
        while path not in self._hung:
            self._hung.add(path)
            missing.append(path)
            path = path.rpartition(".")[0]
        for path in reversed(missing):
            parent, _, last = path.rpartition(".")
            self.at(parent).add_module(self.attribute(last), self.at(path))

    # How a module gets at another

    def target(self, module: CapturedModule, caller: Call, piece: Piece) -> str:
        """What a module calls another one."""
        name = piece.name
        if caller.owns(name):
            return self.attribute(name[len(caller.path) + 1 :] if caller.path else name)
        path, form = piece.call.path, name[len(piece.call.path) :]
        alias = self.state.alias(path, caller.path)
        if alias is not None and self._stands_at(alias, path):
            alias += form
            if not form or self._stands_at(alias, name):
                return self.attribute(alias[len(caller.path) + 1 :] if caller.path else alias)
        return self.reference(module, name)

    def _stands_at(self, alias: str, name: str) -> bool:
        """Whether a module can stand at a second path too; nothing else is there or below."""
        if self.aliases.get(alias) == name:
            return True
        below = any(p == alias or p.startswith(f"{alias}.") for p in self.modules)
        if below or any(alias.startswith(f"{a}.") for a in self.aliases):
            return False
        self.aliases[alias] = name
        self.modules[alias] = self.at(name)
        return True

    def reference(self, module: CapturedModule, path: str) -> str:
        """The name under which a module that is no child of it is known to a module."""
        known = self._references.setdefault(id(module), {})
        if path not in known:
            wanted = self.attribute(path.rpartition(".")[2]) or "program"
            names = itertools.chain([wanted], (f"{wanted}_{i}" for i in itertools.count(1)))
            taken = set(module._elsewhere) | set(dir(type(module)))
            known[path] = next(n for n in names if n not in taken)
            module._elsewhere[known[path]] = self.at(path)
        return known[path]

    def child(self, module: CapturedModule, name: str, inner: nn.Module) -> str:
        """A graph within the graph of a module, as its child."""
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        free = next(n for n in names if not hasattr(module, n))
        module.add_module(free, inner)
        return free


def _depth(path: str) -> int:
    return path.count(".")


def _sort_numbered(module: nn.Module) -> None:
    """Layers of a Sequential or ModuleList in their order, those without state among the others."""
    children = module._modules
    if all(name.partition("@")[0].isdigit() for name in children):
        ordered = sorted(children.items(), key=lambda kv: (int(kv[0].partition("@")[0]), kv[0]))
        children.clear()
        children.update(ordered)
