"""Tracing in which Python knows sizes: branches on shapes are decided, loops over them unrolled.

Every traced value carries what it is without data: an abstract tensor, or the number, size or dtype
itself. Sizes that flow into operators stay part of the graph; sizes that Python needs as
numbers (an `if`, `range(n)`, `int(n)`) are decided once, as the example has them. What depends on
the numbers in a tensor cannot be decided, and is an error that says so.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Proxy, Tracer
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from graphport.arguments import DICT, NONE, TRACEABLE, takes
from graphport.errors import (
    DataDependentError,
    ExportError,
    InputError,
    ShapeError,
    UnsupportedError,
)
from graphport.fx.dataless import (
    Dataless,
    device_of,
    has_no_data,
    keeping_buffers,
    without_data,
)
from graphport.fx.known_values import SIZES_AS_ONE, UNKNOWN, Involving, Known, value_of
from graphport.fx.type_hints import resolved
from graphport.process import contained
from graphport.source import here

_FACTORIES = (
    "arange", "bartlett_window", "blackman_window", "empty", "empty_strided", "eye", "full",
    "hamming_window", "hann_window", "kaiser_window", "linspace", "logspace", "normal", "ones",
    "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros", "as_tensor", "complex", "cartesian_prod", "broadcast_shapes",
)  # fmt: skip
"""Functions of torch that do not look for traced values among their arguments."""


@takes(root=TRACEABLE, meta_args=DICT | NONE, concrete_args=DICT | NONE)
@contained
def meta_trace(
    root: nn.Module | Callable[..., Any],
    meta_args: Mapping[str, Any] | None = None,
    concrete_args: dict[str, Any] | None = None,
) -> GraphModule:
    """Trace `root` with the sizes of `meta_args`, by parameter name.

    Tensors among them may be on the meta device, or real: their numbers are not looked at. Inputs
    that are not named have no sizes, and no branch may depend on them. `concrete_args` are as
    `torch.fx.symbolic_trace` takes them. The result pickles.

        >>> def f(x):
        ...     return x.relu() if x.shape[0] < 30 else x.sigmoid()
        >>> gm = meta_trace(f, {"x": torch.empty(15, device="meta")})
        >>> print(gm.code.strip())
        def forward(self, x):
            relu = x.relu();  x = None
            return relu
    """
    tracer = MetaTracer()
    name = root._get_name() if isinstance(root, nn.Module) else getattr(root, "__name__", "")
    try:
        with keeping_buffers(root if isinstance(root, nn.Module) else nn.Module()):
            graph = tracer.trace(root, concrete_args, meta_args or {})
        _erase_decided(graph)
        return GraphModule(tracer.root, graph, name if name.isidentifier() else "Traced")
    finally:
        for made in tracer.made:
            delattr(tracer.root, made)


class MetaTracer(Tracer):
    """A tracer whose values know their sizes. Without `meta_args` it is a plain tracer."""

    def __init__(self) -> None:
        factories = tuple(getattr(torch, name) for name in _FACTORIES)
        super().__init__(autowrap_modules=(math,), autowrap_functions=factories)
        self._autowrap_search.append(torch)  # where programs find them
        self.meta_args: dict[str, Any] = {}
        self.device = torch.device("cpu")
        self.made: list[str] = []
        """Modules made in `forward`, by the name that they have at the root while tracing."""
        self._evaluating = False

    @contained
    def trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
        meta_args: Mapping[str, Any] | None = None,
    ) -> Graph:
        self.device = device_of(root) if isinstance(root, nn.Module) else torch.device("cpu")
        self.meta_args = pytree.tree_map(self._bare, dict(meta_args or {}))
        with Involving(), SIZES_AS_ONE:
            graph = super().trace(root, concrete_args)
        self._settle(graph)
        names = [str(n.target).lstrip("*") for n in graph.nodes if n.op == "placeholder"]
        unknown = sorted(self.meta_args.keys() - set(names))
        if unknown:
            raise InputError(
                f"meta_args has {', '.join(unknown)}, which is no input",
                fix=f"the inputs are {', '.join(names)}",
            )
        return graph

    # Values

    def proxy(self, node: Node) -> Proxy:
        return Known(node, self)

    def create_arg(self, a: Any) -> Any:
        # First: a traced tensor says that it is one.
        return a.node if isinstance(a, Proxy) else super().create_arg(a)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **options: Any
    ) -> Any:
        made = super().create_proxy(kind, target, args, kwargs, *others, **options)
        value = self._value(kind, target, args, kwargs)
        if value is not UNKNOWN:
            made.node.meta["val"] = value
        return made

    def _settle(self, graph: Graph) -> None:
        """Leave nothing in the graph that its code could not be imported with."""
        for node in graph.nodes:
            node.type = resolved(node.type)
            # Generated code must not ask for what this tracer looks out for by itself.
            if id(node.target) in self._autowrap_function_ids:
                node.meta.pop("is_wrapped", None)

    def _value(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        if kind == "placeholder":
            return self.meta_args.get(str(target).lstrip("*"), UNKNOWN)
        with self._at_work():
            if kind == "get_attr":
                return self._bare(_attribute(self.root, target))
            known = map_aggregate((tuple(args), dict(kwargs)), value_of)
            if any(v is UNKNOWN for v in pytree.tree_leaves(known)):
                return UNKNOWN
            result = _run(_callable(self.root, kind, target), *known)
            return pytree.tree_map(self._bare, result)

    def _bare(self, value: Any) -> Any:
        return without_data(value, self.device)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """What runs now is for the sake of a value, and no part of the program."""
        before, self._evaluating = self._evaluating, True
        try:
            with Dataless():
                yield
        finally:
            self._evaluating = before

    # Modules

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._evaluating:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Proxy]) -> Any:
        if self._evaluating:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def path_of_module(self, mod: nn.Module) -> str:
        try:
            return super().path_of_module(mod)
        except NameError as error:
            if any(True for _ in (*mod.parameters(), *mod.buffers())):
                raise UnsupportedError(
                    f"{type(mod).__name__} has weights and is made while the program runs",
                    where=here(),
                    fix=f"make it in __init__: self.layer = {type(mod).__name__}(...)",
                ) from error
            return self._adopt(mod)

    def _adopt(self, mod: nn.Module) -> str:
        """A name for a module that was made in `forward`."""
        kind, count = type(mod).__name__.lower(), 0
        while hasattr(self.root, f"{kind}_{count}"):
            count += 1
        name = f"{kind}_{count}"
        self.root.add_module(name, mod)
        self.made.append(name)
        if self.submodule_paths:
            self.submodule_paths[mod] = name
        return name

    # What Python asks

    def to_bool(self, obj: Proxy) -> bool:
        value = value_of(obj)
        if value is UNKNOWN and not self.meta_args:
            return super().to_bool(obj)
        return bool(self._decided(obj, "a branch"))

    def iter(self, obj: Proxy) -> Any:
        value = value_of(obj)
        if value is UNKNOWN and not self.meta_args:
            return super().iter(obj)
        if isinstance(value, (dict, KeysView)):
            return iter(value)
        if isinstance(value, (ItemsView, ValuesView)):
            given = self.proxy(obj.node.args[0])
            pairs = [(key, given[key]) for key in value_of(given)]
            return iter(pairs if isinstance(value, ItemsView) else [part for _, part in pairs])
        return iter([obj[i] for i in range(self.length(obj))])

    def keys(self, obj: Proxy) -> Any:
        value = value_of(obj)
        return value.keys() if isinstance(value, dict) else super().keys(obj)

    def length(self, obj: Proxy) -> int:
        value = value_of(obj)
        return len(self._decided(obj, "len()") if value is UNKNOWN else value)

    def number(self, obj: Proxy) -> Any:
        return self._decided(obj, "a number")

    def _decided(self, obj: Proxy, use: str) -> Any:
        """The value that Python needs now."""
        value = value_of(obj)
        if has_no_data(value):
            raise DataDependentError(
                f"{use} depends on the numbers in {obj.node}, which tracing does not know",
                where=here(),
                fix="torch.where(condition, a, b), or torch.cond(condition, f, g, inputs)",
            )
        if value is not UNKNOWN:
            return value
        inputs = _unknown_inputs(obj.node)
        raise DataDependentError(
            f"{use} depends on {obj.node}, of which nothing is known",
            where=here(),
            fix=[f"meta_args={{{n!r}: torch.empty(..., device='meta')}}" for n in inputs],
        )


def _attribute(root: nn.Module, path: str) -> Any:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _callable(root: nn.Module, kind: str, target: Any) -> Callable[..., Any]:
    if kind == "call_module":
        return root.get_submodule(target)
    if kind == "call_method":
        return lambda x, *args, **kwargs: getattr(x, target)(*args, **kwargs)
    return target


def _run(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives; unknown where that takes numbers."""
    try:
        return call(*args, **kwargs)
    except (DataDependentError, NotImplementedError, UnsupportedError):
        return UNKNOWN
    except ExportError as error:
        error.located(here())
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        name = getattr(call, "__name__", type(call).__name__)
        raise ShapeError(f"{name} fails: {error}", where=here()) from error


def _unknown_inputs(node: Node) -> list[str]:
    """Inputs that a node depends on and that have no sizes."""
    seen, waiting = {node: None}, [node]
    while waiting:
        for before in waiting.pop().all_input_nodes:
            if before not in seen:
                seen[before] = None
                waiting.append(before)
    return [str(n.target) for n in seen if n.op == "placeholder" and "val" not in n.meta]


def _erase_decided(graph: Graph) -> None:
    """Remove what only led to decisions: questions about sizes that nothing else uses."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "call_method") and _asks(node):
            graph.erase_node(node)


def _asks(node: Node) -> bool:
    """Whether a node computes sizes and the like, and nothing else."""
    value = node.meta.get("val")
    if value is None or any(map(has_no_data, pytree.tree_leaves(value))):
        return False
    if node.op == "call_method":
        return not str(node.target).endswith("_")
    module = getattr(node.target, "__module__", None)
    return node.target is builtins.getattr or module in ("_operator", "math")
