"""Finds matrix products in a graph, and merges those that share an operand."""

from __future__ import annotations

import heapq
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from graphport.compat.operators import aten
from graphport.compat.torch import OpOverload
from graphport.fx.effects import (
    find_aliased_inputs,
    find_effect_dependencies,
    find_mutated_values,
    is_random,
)
from graphport.fx.graphs import copy_graph_module, get_first_argument, to_graph_module
from graphport.fx.layers import GraphState, LayerFinder, get_rank, get_tensor_metadata
from graphport.fx.schemas import is_torch_module
from graphport.fx.shape_prop import AbstractDispatchMode
from graphport.ops import Abstract
from graphport.program import ExportedProgram
from graphport.tensors.abstract import get_val, has_val, make_abstract_tensor, set_val
from graphport.types import Argument, NodeTarget

_MATMULS = frozenset(
    {
        torch.matmul,
        torch.mm,
        operator.matmul,
        torch.Tensor.matmul,
        torch.Tensor.mm,
        aten.matmul.default,
        aten.mm.default,
    }
)
_MM = frozenset({"mm", torch.mm, torch.Tensor.mm})
_LINEARS = frozenset({F.linear, aten.linear.default})


@dataclass(frozen=True)
class Product:
    """`left @ right`, or `left @ right.T + bias` of a linear layer; `right` has two dims.

    `weight` is what the right side always is, where that is known. `path` is that of a module.
    """

    node: Node
    left: Node
    right: Node | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None = None
    bias_node: Node | None = None
    linear: bool = False
    path: str | None = None

    @property
    def target(self) -> Any:
        """What to call for a product of this kind."""
        if self.is_overload:
            return self.node.target
        if self.linear:
            return F.linear
        return torch.mm if self.node.target in _MM else torch.matmul

    @property
    def is_overload(self) -> bool:
        return isinstance(self.node.target, OpOverload)

    @property
    def dtype(self) -> torch.dtype | None:
        if self.weight is not None:
            return self.weight.dtype
        assert self.right is not None
        return get_tensor_metadata(self.right).dtype

    @property
    def shared(self) -> Any:
        """What tells this right side, bias included, from others."""
        if self.path is not None:
            return self.path
        sides = (self.right, self.bias_node)
        return tuple(n.target if n is not None and n.op == "get_attr" else n for n in sides)

    @property
    def sizes(self) -> tuple[Any, Any]:
        """How many numbers a row has before, and after. Those of tensors in metadata are given."""
        shape = get_known_shape(self.right) if self.weight is None else self.weight.shape
        return (shape[1], shape[0]) if self.linear else (shape[0], shape[1])


def match_product(node: Node, layers: LayerFinder) -> Product | None:
    """The product that a node is, if its right side is known to have two dims."""
    if node.op == "call_module" or node.target in _LINEARS:
        return _match_linear(node, layers)
    method = node.op == "call_method" and node.target in ("matmul", "mm", "__matmul__")
    if not method and (node.op != "call_function" or node.target not in _MATMULS):
        return None
    names = ("input", "self", "mat2", "other")
    sides = (*node.args, *(node.kwargs[k] for k in names if k in node.kwargs))
    if len(sides) != 2 or any(v is not None for k, v in node.kwargs.items() if k not in names):
        return None
    left, right = sides
    if not isinstance(left, Node) or not isinstance(right, Node):
        return None
    weight = layers.tensor(right)
    dims = get_rank(right) if weight is None else weight.dim()
    return Product(node, left, right, weight) if dims == 2 else None


def _match_linear(node: Node, layers: LayerFinder) -> Product | None:
    layer = layers.layer(node)
    if layer is None or layer.spatial != 0 or layer.transposed:
        return None
    left = get_first_argument(node)
    if not isinstance(left, Node):
        return None
    if node.op == "call_module":
        path = str(node.target)
        return Product(node, left, None, layer.weight, layer.bias, None, True, path)
    given = {**dict(zip(("input", "weight", "bias"), node.args, strict=False)), **node.kwargs}
    return Product(
        node, left, given["weight"], layer.weight, layer.bias, given.get("bias"), linear=True
    )


def get_known_shape(node: Node | None) -> Any:
    """The shape of a value, if its metadata has it."""
    return None if node is None else getattr(get_tensor_metadata(node), "shape", None)


def concatenate_weights(products: list[Product]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of one product with the results of all, side by side."""
    weights = [p.weight for p in products if p.weight is not None]
    with torch.no_grad():
        weight = torch.cat(weights, 0 if products[0].linear else 1)
        bias = None
        if any(p.bias is not None for p in products):
            bias = torch.cat(
                [weight.new_zeros(p.sizes[1]) if p.bias is None else p.bias for p in products]
            )
    learnt = [t for p in products for t in (p.weight, p.bias) if isinstance(t, nn.Parameter)]
    if not learnt:
        return weight, bias
    grad = any(t.requires_grad for t in learnt)
    return nn.Parameter(weight, grad), None if bias is None else nn.Parameter(bias, grad)


# Merges matrix products that share an operand.
#
#     x @ A, x @ B  ->  x @ [A B], split by columns; the weights of layers are joined once
#     x @ A, y @ A  ->  [x; y] @ A, split by rows
#
# Products that depend on one another stay apart, and so do those whose operands or results the
# graph writes to.

Dependencies = dict[Node, list[Node]]

# In graphs of operators the operators are called, and sizes are values of their own.
_OVERLOADS: dict[Any, Any] = {
    torch.cat: aten.cat.default,
    torch.split: aten.split_with_sizes.default,
    torch.reshape: aten.reshape.default,
}
# What does not take every layout, or shows it.
_STRIDE_SENSITIVE = frozenset(
    "view view_as view_as_complex as_strided stride is_contiguous data_ptr set_ resize_".split()
)


def merge_matmul(model: nn.Module | ExportedProgram) -> GraphModule:
    """The model with products that share an operand merged; `matmul`, `mm`, `@` and linear layers.

    The right sides have two dims: parameters and constants are known to, other values where the
    graph knows shapes, by export or `ShapeProp`. What is not known to fit is left alone. Linear
    layers with one input, like those for queries, keys and values, become a layer with the joined
    parameters, which replaces theirs; all others are shared with the model.

        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.q, self.k = nn.Linear(4, 8), nn.Linear(4, 2)
        ...
        ...     def forward(self, x):
        ...         return self.q(x), self.k(x)
        >>> [str(m) for m in merge_matmul(Model()).children()]
        ['Linear(in_features=4, out_features=10, bias=True)']
    """
    gm = copy_graph_module(to_graph_module(model, "merge_matmul"), only_used=True)
    _MatmulMerger(gm).run()
    gm.graph.lint()
    return copy_graph_module(gm, only_used=True)


class _MatmulMerger:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.graph: Graph = gm.graph
        self.state = GraphState(gm)
        self.layers = LayerFinder(gm)
        self.after: Dependencies = defaultdict(list)
        modules = self.layers.modules
        drawing = [n for n in gm.graph.nodes if is_random(n, modules)]
        for before, node in (*find_effect_dependencies(gm.graph, modules), *pairwise(drawing)):
            self.after[node].append(before)
        fixed = {
            *self.after,
            *(n for nodes in self.after.values() for n in nodes),
            *find_mutated_values(gm.graph, modules),
        }
        free = (n for n in gm.graph.nodes if n not in fixed)
        self.left = dict.fromkeys(n for n in free if match_product(n, self.layers) is not None)

    def run(self) -> None:
        stages: tuple[tuple[Callable[[Product], Any], Callable[[list[Product]], None]], ...] = (
            (_key_by_left_with_weight, self.join_weights),
            (_key_by_right, self.join_rows),
            (_key_by_left, self.join_columns),
        )
        for key, join in stages:
            groups = defaultdict(list)
            for node in self.left:
                p = self.product(node)
                if key(p) is not None:
                    groups[key(p)].append(node)
            for group in groups.values():
                # Found anew: what they multiply may have been merged itself.
                for members in self.split_independent(
                    [self.product(n) for n in group if n in self.left]
                ):
                    if len(members) > 1:
                        join(members)

    def product(self, node: Node) -> Product:
        found = match_product(node, self.layers)
        assert found is not None
        return found

    def split_independent(self, group: list[Product]) -> Iterator[list[Product]]:
        """Parts of a group none of whose members needs another.

        Members at the same level do not: the level counts members on the longest path to a node.
        """
        if len(group) < 2:
            return
        if all(p.weight is not None and p.left is group[0].left for p in group):
            yield group  # all that they need is the same value
            return
        nodes = {p.node for p in group}
        levels: dict[Node, int] = {}
        for node in self.graph.nodes:
            needed = (*node.all_input_nodes, *self.after.get(node, ()))
            levels[node] = max((levels[n] + (n in nodes) for n in needed), default=0)
        parts = defaultdict(list)
        for p in group:
            parts[levels[p.node]].append(p)
        yield from parts.values()

    # x @ A, x @ B, with weights

    def join_weights(self, group: list[Product]) -> None:
        first = group[0]
        weight, bias = concatenate_weights(group)
        with self.graph.inserting_before(first.node):
            if first.path is not None:
                layer = nn.Linear(1, 1, bias=bias is not None, device="meta")
                layer.in_features, layer.out_features = first.sizes[0], sum(_get_widths(group))
                layer.weight, layer.bias = weight, bias
                layer.training = self.gm.training
                path = self.state.free(first.path)
                self.state.set(path, layer)
                self.layers.modules[path] = layer
                merged = self.call_module(path, first.left)
            else:
                args = [first.left, self.add_state(first, first.right, "weight", weight)]
                if bias is not None:
                    args.append(self.add_state(first, first.bias_node or first.right, "bias", bias))
                merged = self.call(first, first.target, *args)
        self.split_merged(group, first.node, merged, _get_widths(group), -1)

    def add_state(self, like: Product, near: Node | None, name: str, value: torch.Tensor) -> Node:
        """A node for a new parameter or buffer, beside another one."""
        assert near is not None
        parent = str(near.target).rpartition(".")[0]
        path = self.state.free(f"{parent}.merged_{name}" if parent else f"merged_{name}")
        self.state.set(path, value)
        node = self.state.get_attr(path)
        if has_val(like.node):
            shape, stride = tuple(value.size()), tuple(value.stride())
            about = Abstract(shape, value.dtype, value.device, stride)
            set_val(node, make_abstract_tensor(about))
        return node

    # x @ A, x @ B, with values that are computed

    def join_columns(self, group: list[Product]) -> None:
        first = group[0]
        place, in_order = self.place(group)
        with self.graph.inserting_before(place):
            sizes = [self.size(p, p.right, 1) if p.weight is None else p.sizes[1] for p in group]
            right = self.call(first, torch.cat, [p.right for p in group], 1)
            merged = self.call(first, first.target, first.left, right)
        self.split_merged(group, place, merged, sizes, -1)
        if not in_order:
            self.sort()

    # x @ A, y @ A

    def join_rows(self, group: list[Product]) -> None:
        first = group[0]
        inner, outer = first.sizes
        place, in_order = self.place(group)
        with self.graph.inserting_before(place):
            plain = all(get_rank(p.left) == 2 for p in group)
            rows = [
                p.left if plain else self.call(p, torch.reshape, p.left, [-1, inner]) for p in group
            ]
            heights = [self.size(p, r, 0) for p, r in zip(group, rows, strict=True)]
            args = [first.right] if first.bias_node is None else [first.right, first.bias_node]
            both = self.call(first, torch.cat, rows, 0)
            if first.path is not None:
                merged = self.call_module(first.path, both)
            else:
                merged = self.call(first, first.target, both, *args)
        self.split_merged(group, place, merged, heights, 0, None if plain else outer)
        if not in_order:
            self.sort()

    def shaped(self, p: Product, part: Node, outer: int) -> Node:
        """Rows in the shape of the tensor that they came from."""
        if p.is_overload:
            count = get_rank(p.left)
            assert count is not None
            dims = [self.size(p, p.left, i) for i in range(count - 1)]
            return self.call(p, torch.reshape, part, [*dims, outer])
        shape = self.graph.call_function(getattr, (p.left, "shape"))
        batch = self.graph.call_function(operator.getitem, (shape, slice(None, -1)))
        size = self.graph.call_function(operator.add, (batch, (outer,)))
        return self.graph.call_function(torch.reshape, (part, size))

    def size(self, p: Product, node: Node | None, dim: int) -> Any:
        """A size as a number, where it always is that one, or as a node."""
        assert node is not None
        shape = get_known_shape(node) if _has_exported_shape(node) else None
        if shape is not None and isinstance(shape[dim], int):
            return shape[dim]
        if p.is_overload:
            return self.call(p, aten.sym_size.int, node, dim)
        sizes = self.graph.call_function(getattr, (node, "shape"))
        return self.graph.call_function(operator.getitem, (sizes, dim))

    # The graph

    def call_module(self, path: str, given: Node) -> Node:
        node = self.graph.call_module(path, (given,))
        self.state.add(node)
        return node

    def call(self, like: Product, target: NodeTarget, *args: Argument) -> Node:
        if not like.is_overload:
            return self.graph.call_function(target, args)
        node = self.graph.call_function(_OVERLOADS.get(target, target), args)
        self.annotate(node, like.node)
        return node

    def annotate(self, node: Node, like: Node) -> None:
        """Metadata as export would have noted them."""
        node.meta = {k: v for k, v in like.meta.items() if k in ("stack_trace", "nn_module_stack")}
        if all(has_val(n) for n in node.all_input_nodes):
            args = map_arg(node.args, get_val)
            with AbstractDispatchMode():
                set_val(node, node.target(*args))

    def split_merged(
        self,
        group: list[Product],
        at: Node,
        merged: Node,
        sizes: list[object],
        dim: int,
        outer: Any = None,
    ) -> None:
        """Split the merged product, before `at`, and have the users of a group use the parts."""
        parts: list[Node] = []
        with self.graph.inserting_before(at):
            whole = self.call(group[0], torch.split, merged, sizes, dim)
            for i, p in enumerate(group):
                part = self.graph.call_function(operator.getitem, (whole, i))
                part.meta = dict(p.node.meta)
                if outer is not None:
                    part = self.shaped(p, part, outer)
                if dim == -1 and self.needs_contiguous(p.node):
                    part = (
                        self.graph.call_function(aten.contiguous.default, (part,))
                        if p.is_overload
                        else self.graph.call_method("contiguous", (part,))
                    )
                part.meta = dict(p.node.meta)
                parts.append(part)
        for p, part in zip(group, parts, strict=True):
            p.node.replace_all_uses_with(part)
            self.erase(p)

    def needs_contiguous(self, node: Node) -> bool:
        """Whether a user depends on the layout: columns of a larger matrix are not contiguous."""
        for user in node.users:
            name = str(getattr(user.target, "_opname", getattr(user.target, "__name__", "")))
            if (
                user.op == "output"
                or {name, user.target} & _STRIDE_SENSITIVE
                or self.is_foreign(user)
            ):
                return True
            if user.op.startswith("call_") and node in find_aliased_inputs(
                user, self.layers.modules
            ):
                if self.needs_contiguous(user):
                    return True
        return False

    def is_foreign(self, user: Node) -> bool:
        """Whether a call is of something that is not torch's, and may depend on anything."""
        target = user.target
        if user.op == "call_module":
            return not is_torch_module(self.layers.modules[str(target)])
        if isinstance(target, OpOverload):
            return target.namespace != "aten"
        return isinstance(target, FunctionType) and str(target.__module__).split(".")[0] != "torch"

    def erase(self, p: Product) -> None:
        del self.left[p.node]
        used = p.node.all_input_nodes
        self.state.erase(p.node)
        self.state.erase_unused(used)

    def place(self, group: list[Product]) -> tuple[Node, bool]:
        """The last of a group, and whether all that use one of it come behind."""
        places = {n: i for i, n in enumerate(self.graph.nodes)}
        last = max((p.node for p in group), key=places.__getitem__)
        users = (places[user] for p in group for user in p.node.users)
        return last, all(places[last] < user for user in users)

    def sort(self) -> None:
        """Every node behind what it needs, and otherwise where it was."""
        nodes = list(self.graph.nodes)
        places = {n: i for i, n in enumerate(nodes)}
        needs = {n: {*n.all_input_nodes, *self.after.get(n, ())} for n in nodes}
        serves: Dependencies = defaultdict(list)
        for node, needed in needs.items():
            for n in needed:
                serves[n].append(node)
        ready = [places[n] for n in nodes if not needs[n]]
        heapq.heapify(ready)
        last: Node | None = None
        while ready:
            node = nodes[heapq.heappop(ready)]
            if last is not None:
                last.append(node)
            last = node
            for user in serves[node]:
                needs[user].discard(node)
                if not needs[user]:
                    heapq.heappush(ready, places[user])


def _get_widths(group: Iterable[Product]) -> list[object]:
    return [p.sizes[1] for p in group]


def _common_key(p: Product) -> tuple[object, ...]:
    """What products that are computed as one have in common."""
    return p.linear, p.path is None, p.target, str(p.sizes[0]), p.dtype


def _key_by_left_with_weight(p: Product) -> object:
    return None if p.weight is None else (p.left, p.weight.device, *_common_key(p))


def _key_by_left(p: Product) -> object:
    return None if p.linear or p.right is None else (p.left, *_common_key(p))


def _key_by_right(p: Product) -> object:
    inner, outer = p.sizes
    if not isinstance(inner, int) or not isinstance(outer, int) or inner * outer == 0:
        return None  # rows could not be counted
    if p.is_overload and get_rank(p.left) is None:
        return None
    if p.weight is None and get_rank(p.left) != 2 and not _has_exported_shape(p.right):
        return None  # rows of a length that is an example
    return (p.shared, *_common_key(p))


def _has_exported_shape(node: Node | None) -> bool:
    """Whether the sizes in the metadata hold in every call, not only in the example."""
    return node is not None and has_val(node)
