"""A tracer whose values know their sizes and dtypes: branches on shapes are decided.

What is known of a value is the `val` of its node: an abstract tensor, or a number, size or dtype.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from functools import wraps
from types import MethodDescriptorType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Proxy, Tracer
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from graphport.arguments import DICT, NONE, TRACEABLE, check_arguments
from graphport.compat.torch import pytree
from graphport.errors import (
    DataDependentError,
    ExportError,
    InputError,
    ShapeError,
    UnsupportedError,
)
from graphport.fx.schemas import resolve_type_hint
from graphport.fx.shape_prop import (
    AbstractDispatchMode,
    has_no_data,
    infer_device,
    preserve_buffers,
    to_abstract_tensor,
)
from graphport.process import Patch, Replacement, restore_on_exit
from graphport.source import locate_user_line
from graphport.tensors.abstract import get_val, has_val, set_val
from graphport.types import Args, Argument, Kwargs, NodeTarget

UNKNOWN = object()


class MetaProxy(Proxy):
    """A proxy that knows its size, dtype and type."""

    _is_param = False  # what torch asks of anything that says it is a tensor

    def __getattr__(self, k: str) -> Argument:
        return MetaAttribute(self, k)

    def _known(self) -> Argument:
        return get_val(self.node) if has_val(self.node) else UNKNOWN

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` is answered by."""
        value = get_known_value(self)
        return type(self) if value is UNKNOWN else type(value)

    def __setitem__(self, key: object, value: object) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __len__(self) -> int:
        return self.tracer.length(self)

    def __index__(self) -> int:
        return operator.index(self.tracer.number(self))

    def __int__(self) -> int:
        return int(self.tracer.number(self))

    def __float__(self) -> float:
        return float(self.tracer.number(self))

    def __hash__(self) -> int:
        return id(self)


class MetaAttribute(MetaProxy):
    """An attribute, which becomes a node when it is used: most are methods, to be called."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: Node | None = None

    def _known(self) -> Argument:
        """Without becoming a node."""
        owner = get_known_value(self.root)
        return UNKNOWN if owner is UNKNOWN else getattr(owner, self.attr, UNKNOWN)

    @property
    def node(self) -> Node:
        if self._node is None:
            args = (self.root, self.attr)
            made = self.tracer.create_proxy("call_function", builtins.getattr, args, {})
            self._node = made.node
        return self._node

    def __call__(self, *args: object, **kwargs: object) -> Argument:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def get_known_value(x: Argument) -> Argument:
    if issubclass(type(x), MetaProxy):  # isinstance would ask what it is
        return x._known()
    if isinstance(x, slice):
        return slice(*map(get_known_value, (x.start, x.stop, x.step)))
    return x


class MetaProxyMode(TorchFunctionMode):
    """Calls that take traced values are traced, also where the tensors are none: `table[:n]`."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Argument:
        found: list[MetaProxy] = []
        map_aggregate((args, kwargs), lambda x: _collect_proxy(x, found))
        if not found:
            return func(*args, **(kwargs or {}))
        create = found[0].tracer.create_proxy
        if func is torch.Tensor.__getitem__:
            return create("call_function", operator.getitem, args, {})
        if isinstance(getattr(func, "__wrapped__", func), MethodDescriptorType):
            return create("call_method", func.__name__, args, kwargs or {})
        return Proxy.__torch_function__(func, types, args, kwargs)


_SIZE_METHODS = ("expand", "new_empty", "new_ones", "new_zeros", "resize_")


def _patch_size_methods() -> Iterator[Replacement]:
    """Let these methods of plain tensors take sizes one by one, the first of them a traced one.

    Their bindings take that for the list of all, and the rest for too many arguments, before
    anything else hears of the call.
    """
    is_tensor_method_or_property(torch.Tensor.expand)  # torch remembers what is one from now on
    for name in _SIZE_METHODS:
        yield torch.Tensor, name, _accept_proxy_sizes(getattr(torch.Tensor, name))
    # torch's own tracer replaces these two; put back with the others, whatever comes between.
    yield nn.Module, "__call__", nn.Module.__call__
    yield nn.Module, "__getattr__", nn.Module.__getattr__


SIZE_METHODS_PATCH = Patch(_patch_size_methods)


def _accept_proxy_sizes(method: Callable[..., object]) -> Callable[..., object]:
    @wraps(method)
    def taking(self: torch.Tensor, *sizes: object, **kwargs: object) -> Argument:
        if len(sizes) > 1 and issubclass(type(sizes[0]), MetaProxy):
            return method(self, sizes, **kwargs)
        return method(self, *sizes, **kwargs)

    return taking


def _collect_proxy(x: Argument, found: list[MetaProxy]) -> Argument:
    if issubclass(type(x), MetaProxy):
        found.append(x)
    return x


# The tracer: branches on shapes are decided, loops over them unrolled.
#
# Every traced value carries what it is without data: an abstract tensor, or the number, size or
# dtype itself. Sizes that flow into operators stay part of the graph; sizes that Python needs as
# numbers (an `if`, `range(n)`, `int(n)`) are decided once, as the example has them. What depends on
# the numbers in a tensor cannot be decided, and is an error that says so.

_FACTORIES = tuple(
    """
        arange bartlett_window blackman_window empty empty_strided eye full hamming_window
        hann_window kaiser_window linspace logspace normal ones rand randint randn randperm range
        scalar_tensor tensor tril_indices triu_indices zeros as_tensor complex cartesian_prod
        broadcast_shapes
    """.split()
)
"""Functions of torch that do not look for traced values among their arguments."""


@check_arguments(root=TRACEABLE, meta_args=DICT | NONE, concrete_args=DICT | NONE)
@restore_on_exit
def meta_trace(
    root: nn.Module | Callable[..., Any],
    meta_args: Mapping[str, object] | None = None,
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
        with preserve_buffers(root if isinstance(root, nn.Module) else nn.Module()):
            graph = tracer.trace(root, concrete_args, meta_args or {})
        _erase_dead_size_queries(graph)
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

    @restore_on_exit
    def trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
        meta_args: Mapping[str, Any] | None = None,
    ) -> Graph:
        self.device = infer_device(root) if isinstance(root, nn.Module) else torch.device("cpu")
        self.meta_args = pytree.tree_map(self._to_abstract, dict(meta_args or {}))
        with MetaProxyMode(), SIZE_METHODS_PATCH:
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
        return MetaProxy(node, self)

    def create_arg(self, a: object) -> Argument:
        # First: a traced tensor says that it is one.
        return a.node if isinstance(a, Proxy) else super().create_arg(a)

    def create_proxy(
        self,
        kind: str,
        target: NodeTarget,
        args: tuple[Argument, ...],
        kwargs: Kwargs,
        *others: object,
        **options: object,
    ) -> Argument:
        made = super().create_proxy(kind, target, args, kwargs, *others, **options)
        value = self._value(kind, target, args, kwargs)
        if value is not UNKNOWN:
            set_val(made.node, value)
        return made

    def _settle(self, graph: Graph) -> None:
        """Leave nothing in the graph that its code could not be imported with."""
        for node in graph.nodes:
            node.type = resolve_type_hint(node.type)
            # Generated code must not ask for what this tracer looks out for by itself.
            if id(node.target) in self._autowrap_function_ids:
                node.meta.pop("is_wrapped", None)

    def _value(
        self, kind: str, target: NodeTarget, args: tuple[Argument, ...], kwargs: Kwargs
    ) -> Argument:
        if kind == "placeholder":
            return self.meta_args.get(str(target).lstrip("*"), UNKNOWN)
        with self._enter_evaluation():
            if kind == "get_attr":
                return self._to_abstract(_read_attribute(self.root, target))
            known = map_aggregate((tuple(args), dict(kwargs)), get_known_value)
            if any(v is UNKNOWN for v in pytree.tree_leaves(known)):
                return UNKNOWN
            result = _evaluate_call(_resolve_callable(self.root, kind, target), *known)
            return pytree.tree_map(self._to_abstract, result)

    def _to_abstract(self, value: object) -> Argument:
        return to_abstract_tensor(value, self.device)

    @contextmanager
    def _enter_evaluation(self) -> Iterator[None]:
        """What runs now computes metadata, and is no part of the program."""
        before, self._evaluating = self._evaluating, True
        try:
            with AbstractDispatchMode():
                yield
        finally:
            self._evaluating = before

    # Modules

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Args, kwargs: Argument
    ) -> Argument:
        if self._evaluating:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(
        self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Proxy]
    ) -> Argument:
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
                    where=locate_user_line(),
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

    # Concrete values that Python needs

    def to_bool(self, obj: Proxy) -> bool:
        value = get_known_value(obj)
        if value is UNKNOWN and not self.meta_args:
            return super().to_bool(obj)
        return bool(self._decide(obj, "a branch"))

    def iter(self, obj: Proxy) -> Argument:
        value = get_known_value(obj)
        if value is UNKNOWN and not self.meta_args:
            return super().iter(obj)
        if isinstance(value, (dict, KeysView)):
            return iter(value)
        if isinstance(value, (ItemsView, ValuesView)):
            given = self.proxy(obj.node.args[0])
            pairs = [(key, given[key]) for key in get_known_value(given)]
            return iter(pairs if isinstance(value, ItemsView) else [part for _, part in pairs])
        return iter([obj[i] for i in range(self.length(obj))])

    def keys(self, obj: Proxy) -> Argument:
        value = get_known_value(obj)
        return value.keys() if isinstance(value, dict) else super().keys(obj)

    def length(self, obj: Proxy) -> int:
        value = get_known_value(obj)
        return len(self._decide(obj, "len()") if value is UNKNOWN else value)

    def number(self, obj: Proxy) -> Argument:
        return self._decide(obj, "a number")

    def _decide(self, obj: Proxy, use: str) -> Argument:
        """The value that Python needs now."""
        value = get_known_value(obj)
        if has_no_data(value):
            raise DataDependentError(
                f"{use} depends on the numbers in {obj.node}, which tracing does not know",
                where=locate_user_line(),
                fix="torch.where(condition, a, b), or torch.cond(condition, f, g, inputs)",
            )
        if value is not UNKNOWN:
            return value
        inputs = _find_unknown_inputs(obj.node)
        raise DataDependentError(
            f"{use} depends on {obj.node}, of which nothing is known",
            where=locate_user_line(),
            fix=[f"meta_args={{{n!r}: torch.empty(..., device='meta')}}" for n in inputs],
        )


def _read_attribute(root: nn.Module, path: str) -> Argument:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _resolve_callable(root: nn.Module, kind: str, target: NodeTarget) -> Callable[..., object]:
    if kind == "call_module":
        return root.get_submodule(target)
    if kind == "call_method":
        return lambda x, *args, **kwargs: getattr(x, target)(*args, **kwargs)
    return target


def _evaluate_call(
    call: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Argument:
    """What a call gives; unknown where that takes numbers."""
    try:
        return call(*args, **kwargs)
    except (DataDependentError, NotImplementedError, UnsupportedError):
        return UNKNOWN
    except ExportError as error:
        error.add_location(locate_user_line())
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        name = getattr(call, "__name__", type(call).__name__)
        raise ShapeError(f"{name} fails: {error}", where=locate_user_line()) from error


def _find_unknown_inputs(node: Node) -> list[str]:
    """Inputs that a node depends on and that have no sizes."""
    seen, waiting = {node: None}, [node]
    while waiting:
        for before in waiting.pop().all_input_nodes:
            if before not in seen:
                seen[before] = None
                waiting.append(before)
    return [str(n.target) for n in seen if n.op == "placeholder" and not has_val(n)]


def _erase_dead_size_queries(graph: Graph) -> None:
    """Remove size queries that only branches used."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "call_method") and _is_size_query(node):
            graph.erase_node(node)


def _is_size_query(node: Node) -> bool:
    """Whether a node computes sizes and the like, and nothing else."""
    value = get_val(node)
    if value is None or any(map(has_no_data, pytree.tree_leaves(value))):
        return False
    if node.op == "call_method":
        return not str(node.target).endswith("_")
    module = getattr(node.target, "__module__", None)
    return node.target is builtins.getattr or module in ("_operator", "math")
