"""The modules of an unflattened program, each with its own graph, and their hierarchy."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.fx import Graph
from torch.fx.node import Node, map_arg

from graphport.compat.torch import HigherOrderOperator, OpOverload, forward_from_src, print_readable
from graphport.errors import ForwardError
from graphport.program.codegen import find_free_name, rename_clashes, require_attributes
from graphport.program.module import (
    CallGuard,
    collect_state,
    make_user_signature,
    refuse_mode_change,
    register_state,
)
from graphport.program.unflatten.calls import Call, State
from graphport.program.unflatten.dedupe import CallBody
from graphport.types import NodeTarget, PyTree

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

COMPILED = "_compiled"
"""The attribute with the code of a graph, once it has been generated."""


class Parent(nn.Module):
    """A module with children, some of which may be further forms of others: `encoder@1`, ..."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if "@" not in name or not isinstance(found, CapturedModule) or not found._original:
            return found
        # Whoever puts another module in the place of `encoder` means all of its calls.
        now = self._modules.get(name.rpartition("@")[0])
        return found if now is None or now is found._original["of"] else now

    def _get_name(self) -> str:
        return "Module"


class CapturedModule(Parent):
    """A module that computes what a module of the original program computed, by its own graph.

    A module whose calls do different things is several of these: `encoder`, `encoder@1`, ... The
    first one has the parameters, buffers and children; the others read them from there. A module
    that takes the place of the first is called for all of them.
    """

    def __init__(self, kind: str, graph: Graph) -> None:
        super().__init__()
        # Private names: a model has children and parameters of any other.
        self._kind = kind
        """The class of the original module."""
        self.graph = graph
        self._elsewhere: dict[str, nn.Module] = {}
        """Modules that are used but not children of this one."""
        self._original: dict[str, nn.Module] = {}
        """The module that has the state, if it is not this one; in a dict, so as to be no child."""
        self._renamed: dict[str, str] = {}
        """Keywords of its call that the generated code has other names for."""

    @property
    def forward(self) -> Callable[..., Any]:
        """Its code, and that of modules below, is generated when it is first asked for."""
        if COMPILED not in self.__dict__:
            _generate_code(self)
        return self._run

    def _run(self, *args: object, **kwargs: PyTree) -> Any:
        if self._renamed:
            kwargs = {self._renamed.get(name, name): x for name, x in kwargs.items()}
        return self.__dict__[COMPILED](self, *args, **kwargs)

    def recompile(self) -> Callable[..., object]:
        """Generate the code anew, after a change of the graph."""
        require_attributes(self.graph)
        code = self.graph.python_code("self")
        forward: Callable[..., Any] = forward_from_src(code.src, code.globals, {})
        self.__dict__[COMPILED] = forward
        return forward

    @property
    def code(self) -> str:
        return self.graph.python_code("self").src

    @property
    def _in_spec(self) -> object:
        """The structure of the arguments, which the code of a module with its own asks for."""
        return self.graph._codegen.pytree_info.in_spec

    @property
    def _out_spec(self) -> object:
        return self.graph._codegen.pytree_info.out_spec

    @property
    def _graphport_signature(self) -> inspect.Signature:
        signature = inspect.signature(self.__dict__.get(COMPILED) or self.recompile())
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def print_readable(self, print_output: bool = True, **options: object) -> str:
        """The code of this module and of those below it, with the sizes of values."""
        text = ""
        for name, part in self.named_modules():
            if hasattr(part, "graph"):
                code = print_readable(part, part._get_name(), False, **options)
                text += f"# {name or 'the program'}\n{code.rstrip()}\n\n"
        if print_output:
            print(text)
        return text

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in self.__dict__.get("_elsewhere", ()):
                return self._elsewhere[name]
            for original in self.__dict__.get("_original", {}).values():
                return getattr(original, name)
            raise

    def _get_name(self) -> str:
        return self._kind.rpartition(".")[2]

    def __deepcopy__(self, memo: dict[int, object]) -> CapturedModule:
        new: CapturedModule = type(self).__new__(type(self))
        memo[id(self)] = new
        plain = {k: v for k, v in self.__dict__.items() if k != COMPILED}
        new.__dict__.update(copy.deepcopy(plain, memo))
        return new

    def __getstate__(self) -> dict[str, object]:
        plain = {k: v for k, v in self.__dict__.items() if k != COMPILED}
        return {**plain, "graph": _PickledGraph.of(self.graph)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "graph": state["graph"].graph()})


def _generate_code(top: CapturedModule) -> None:
    """Of a module and all that it calls, unless there is code."""
    waiting: list[nn.Module] = [top]
    seen = set()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        waiting.extend(m for m in module._modules.values() if m is not None)
        if isinstance(module, CapturedModule):
            waiting.extend(module._elsewhere.values())
            if COMPILED not in module.__dict__:
                module.recompile()


class UnflattenedModule(CapturedModule):
    """A program as a module with the original hierarchy; its inputs are checked."""

    def __init__(self, kind: str, graph: Graph, program: ExportedProgram) -> None:
        super().__init__(kind, graph)
        self._shown = make_user_signature(program)
        entrance = CallGuard(program, check_guards=True)
        self.register_forward_pre_hook(entrance, with_kwargs=True, prepend=True)

    def _run(self, *args: object, **kwargs: object) -> Any:
        try:
            return super()._run(*args, **kwargs)
        except RecursionError as error:
            raise ForwardError(
                "the modules are nested more deeply than Python's recursion limit allows",
                fix=["sys.setrecursionlimit(10_000)", "ep.module(), which is one graph"],
            ) from error

    @property
    def _graphport_signature(self) -> inspect.Signature:
        return self._shown

    train = refuse_mode_change("train")
    eval = refuse_mode_change("eval")


# Pickling: operators have names and no data, and a graph has nothing else.


class _NodeReference(NamedTuple):
    """A node, in the arguments of another."""

    name: str


class _OperatorReference(NamedTuple):
    namespace: str
    name: str
    overload: str

    @classmethod
    def of(cls, target: NodeTarget) -> Any:
        if isinstance(target, OpOverload):
            namespace, _, name = target._schema.name.partition("::")
            return cls(namespace, name, target._overloadname)
        if isinstance(target, HigherOrderOperator):
            return cls("higher_order", target.name(), "")
        return target

    def target(self) -> Any:
        found = getattr(getattr(torch.ops, self.namespace), self.name)
        return getattr(found, self.overload) if self.overload else found


class _PickledGraph(NamedTuple):
    """A graph that can be pickled; of the metadata, what is plain."""

    nodes: list[tuple[Any, ...]]
    codegen: Any

    @classmethod
    def of(cls, graph: Graph) -> _PickledGraph:
        def frozen(n: Node) -> _NodeReference:
            return _NodeReference(n.name)

        nodes = [
            (
                n.op,
                n.name,
                _OperatorReference.of(n.target),
                map_arg(n.args, frozen),
                map_arg(n.kwargs, frozen),
                {k: n.meta[k] for k in _PICKLED_METADATA if k in n.meta},
            )
            for n in graph.nodes
        ]
        return cls(nodes, graph._codegen)

    def graph(self) -> Graph:
        graph = Graph()
        made: dict[str, Node] = {}

        def thawed(x: object) -> object:
            if isinstance(x, _NodeReference):
                return made[x.name]
            if isinstance(x, (list, tuple)):
                return type(x)(map(thawed, x))
            if isinstance(x, dict):
                return {k: thawed(v) for k, v in x.items()}
            return x

        for op, name, target, args, kwargs, meta in self.nodes:
            target = target.target() if isinstance(target, _OperatorReference) else target
            node = graph.create_node(op, target, thawed(args), thawed(kwargs), name)
            node.meta = meta
            made[name] = node
        graph.set_codegen(self.codegen)
        return graph


_PICKLED_METADATA = ("nn_module_stack", "stack_trace", "torch_fn")


# Assembles the module hierarchy: parameters, buffers, children and aliases.


def _split_form(part: str) -> tuple[str, str]:
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
        self._attached = {""}
        """Paths of modules that are where they belong."""
        paths = (*state.tensors, *called)
        parts = set().union(*(path.split(".") for path in paths))
        self._clashes = rename_clashes(
            (_split_form(part)[0] for part in parts), {*dir(root), *vars(root), COMPILED}
        )

    def attribute(self, path: str) -> str:
        """Where a module has what is called so below it."""
        return ".".join(map(self._part, path.split(".")))

    def _part(self, part: str) -> str:
        """A further form of a module is called after the first, whatever that is called."""
        name, form = _split_form(part)
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
        for name, t, persistent in collect_state(program):
            self._register(name, t, persistent)
        for path in sorted(self.modules, key=lambda path: path.count(".")):
            self._attach_module(path)
        for module in self.root.modules():
            _sort_numbered(module)

    def _register(self, name: str, t: torch.Tensor, persistent: bool) -> None:
        owner, _, last = name.rpartition(".")
        second = next((a for a in self.aliases if owner == a or owner.startswith(f"{a}.")), None)
        if second is not None:
            self._attach_module(second)
            return
        self._attach_module(owner)
        register_state(self.modules[owner], self.attribute(last), t, persistent)

    def _attach_module(self, path: str) -> None:
        """Make a module a child of the one that its path says, from the root down."""
        missing = []
        while path not in self._attached:
            self._attached.add(path)
            missing.append(path)
            path = path.rpartition(".")[0]
        for path in reversed(missing):
            parent, _, last = path.rpartition(".")
            self.at(parent).add_module(self.attribute(last), self.at(path))

    # How a module gets at another

    def target(self, module: CapturedModule, caller: Call, piece: CallBody) -> str:
        """What a module calls another one."""
        name = piece.name
        if caller.owns(name):
            return self.attribute(name[len(caller.path) + 1 :] if caller.path else name)
        path, form = piece.call.path, name[len(piece.call.path) :]
        alias = self.state.alias(path, caller.path)
        if alias is not None and self._can_alias(alias, path):
            alias += form
            if not form or self._can_alias(alias, name):
                return self.attribute(alias[len(caller.path) + 1 :] if caller.path else alias)
        return self.reference(module, name)

    def _can_alias(self, alias: str, name: str) -> bool:
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
            taken = set(module._elsewhere) | set(dir(type(module)))
            known[path] = find_free_name(wanted, taken.__contains__)
            module._elsewhere[known[path]] = self.at(path)
        return known[path]

    def child(self, module: CapturedModule, name: str, inner: nn.Module) -> str:
        """A subgraph of a module, as its child."""
        free = find_free_name(name, partial(hasattr, module))
        module.add_module(free, inner)
        return free


def _sort_numbered(module: nn.Module) -> None:
    """Layers of a Sequential or ModuleList in their order, those without state among the others."""
    children = module._modules
    if all(name.partition("@")[0].isdigit() for name in children):
        ordered = sorted(children.items(), key=lambda kv: (int(kv[0].partition("@")[0]), kv[0]))
        children.clear()
        children.update(ordered)
