"""Modules that run a graph: what an unflattened program consists of."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph
from torch.fx.graph_module import _forward_from_src, _print_readable
from torch.fx.node import Node, map_arg

from graphport.errors import ForwardError
from graphport.program.identifiers import require_attributes
from graphport.program.module import Entrance, refuse, shown_signature

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self.__dict__.get(COMPILED)
        if self._renamed:
            kwargs = {self._renamed.get(name, name): x for name, x in kwargs.items()}
        return (compiled or self.recompile())(self, *args, **kwargs)

    def recompile(self) -> Callable[..., Any]:
        """Generate the code anew, after a change of the graph."""
        require_attributes(self.graph)
        code = self.graph.python_code("self")
        forward: Callable[..., Any] = _forward_from_src(code.src, code.globals, {})
        self.__dict__[COMPILED] = forward
        return forward

    @property
    def code(self) -> str:
        return self.graph.python_code("self").src

    @property
    def _in_spec(self) -> Any:
        """The structure of the arguments, which the code of a module with its own asks for."""
        return self.graph._codegen.pytree_info.in_spec

    @property
    def _out_spec(self) -> Any:
        return self.graph._codegen.pytree_info.out_spec

    @property
    def _graphport_signature(self) -> inspect.Signature:
        signature = inspect.signature(self.__dict__.get(COMPILED) or self.recompile())
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def print_readable(self, print_output: bool = True, **options: Any) -> str:
        """The code of this module and of those below it, with the sizes of values."""
        text = ""
        for name, part in self.named_modules():
            if hasattr(part, "graph"):
                code = _print_readable(part, part._get_name(), False, **options)
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

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModule:
        new: CapturedModule = type(self).__new__(type(self))
        memo[id(self)] = new
        plain = {k: v for k, v in self.__dict__.items() if k != COMPILED}
        new.__dict__.update(copy.deepcopy(plain, memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        plain = {k: v for k, v in self.__dict__.items() if k != COMPILED}
        return {**plain, "graph": _Frozen.of(self.graph)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "graph": state["graph"].graph()})


class UnflattenedModule(CapturedModule):
    """A program as a module with the original hierarchy; its inputs are checked."""

    def __init__(self, kind: str, graph: Graph, program: ExportedProgram) -> None:
        super().__init__(kind, graph)
        self._shown = shown_signature(program)
        entrance = Entrance(program, check_guards=True)
        self.register_forward_pre_hook(entrance, with_kwargs=True, prepend=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().forward(*args, **kwargs)
        except RecursionError as error:
            raise ForwardError(
                "the modules are nested more deeply than Python's recursion limit allows",
                fix=["sys.setrecursionlimit(10_000)", "ep.module(), which is one graph"],
            ) from error

    @property
    def _graphport_signature(self) -> inspect.Signature:
        return self._shown

    train = refuse("train")
    eval = refuse("eval")


# Files: operators have names and no data, and a graph has nothing else.


class _Name(NamedTuple):
    """A node, in the arguments of another."""

    name: str


class _Operator(NamedTuple):
    namespace: str
    name: str
    overload: str

    @classmethod
    def of(cls, target: Any) -> Any:
        if isinstance(target, OpOverload):
            namespace, _, name = target._schema.name.partition("::")
            return cls(namespace, name, target._overloadname)
        if isinstance(target, HigherOrderOperator):
            return cls("higher_order", target.name(), "")
        return target

    def target(self) -> Any:
        found = getattr(getattr(torch.ops, self.namespace), self.name)
        return getattr(found, self.overload) if self.overload else found


class _Frozen(NamedTuple):
    """A graph that can be pickled; of the metadata, what is plain."""

    nodes: list[tuple[Any, ...]]
    codegen: Any

    @classmethod
    def of(cls, graph: Graph) -> _Frozen:
        def frozen(n: Node) -> _Name:
            return _Name(n.name)

        nodes = [
            (n.op, n.name, _Operator.of(n.target), map_arg(n.args, frozen),
             map_arg(n.kwargs, frozen), {k: n.meta[k] for k in _PLAIN if k in n.meta})
            for n in graph.nodes
        ]  # fmt: skip
        return cls(nodes, graph._codegen)

    def graph(self) -> Graph:
        graph = Graph()
        made: dict[str, Node] = {}

        def thawed(x: Any) -> Any:
            if isinstance(x, _Name):
                return made[x.name]
            if isinstance(x, (list, tuple)):
                return type(x)(map(thawed, x))
            if isinstance(x, dict):
                return {k: thawed(v) for k, v in x.items()}
            return x

        for op, name, target, args, kwargs, meta in self.nodes:
            target = target.target() if isinstance(target, _Operator) else target
            node = graph.create_node(op, target, thawed(args), thawed(kwargs), name)
            node.meta = meta
            made[name] = node
        graph.set_codegen(self.codegen)
        return graph


_PLAIN = ("nn_module_stack", "stack_trace", "torch_fn")
