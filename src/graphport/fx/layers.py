"""Finds convolutions, linear layers and batch norms in a graph, and replaces their state.

A module that is called or read as a whole may be the user's own: it is replaced or let go of as a
whole, and nothing is added to it.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from graphport.compat.operators import aten
from graphport.fx.effects import find_mutated_storages, get_attribute_storage_key
from graphport.fx.graphs import get_attribute, list_path_prefixes
from graphport.ops.norm import scale_channels
from graphport.program.codegen import find_free_name
from graphport.program.module import register_state
from graphport.tensors.abstract import get_val, has_val
from graphport.tensors.concrete import storage_key


class GraphState:
    """Knows which nodes use what, as long as nodes are changed and erased through it."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self._targets: set[str] = set()
        """Targets that have been read or called at any time."""
        self._nodes: dict[str, dict[Node, None]] = {}
        """The nodes of each target, and of each path that it is below."""
        for node in gm.graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if node.op in ("get_attr", "call_module"):
            self._targets.add(str(node.target))
            for path in list_path_prefixes(str(node.target)):
                self._nodes.setdefault(path, {})[node] = None

    def users_of(self, path: str) -> list[Node]:
        """The nodes that read or call what is at a path, what it is part of, or a part of it."""
        *above, _ = list_path_prefixes(path)
        found = [n for p in above for n in self._nodes.get(p, ()) if n.target == p]
        return [*found, *self._nodes.get(path, ())]

    def free(self, path: str) -> str:
        """A path like this one at which there is nothing."""
        *parents, name = path.split(".")
        while self._targets.intersection(list_path_prefixes(".".join(parents))):
            parents.pop()
        parent = self.gm.get_submodule(".".join(parents))
        return ".".join((*parents, find_free_name(name, partial(hasattr, parent))))

    def set(self, path: str, value: Any) -> None:
        parents, _, name = path.rpartition(".")
        parent = self.gm.get_submodule(parents)
        if isinstance(value, nn.Module):
            parent.add_module(name, value)
            return
        persistent = name not in parent._non_persistent_buffers_set
        if hasattr(parent, name):
            delattr(parent, name)
        register_state(parent, name, value, persistent)

    def get_attr(self, path: str) -> Node:
        """A new node, where the graph is being written."""
        node = self.gm.graph.get_attr(path)
        self.add(node)
        return node

    def call(self, node: Node, path: str) -> None:
        """Make a node call the module at a path."""
        self._forget(node)
        node.op, node.target = "call_module", path
        self.add(node)

    def erase(self, node: Node) -> None:
        """Take a node out of the graph, and let go of what only it used."""
        self.gm.graph.erase_node(node)
        if self._forget(node):
            path = next(p for p in list_path_prefixes(str(node.target)) if p in self._targets)
            if not self.users_of(path):
                parents, _, name = path.rpartition(".")
                delattr(self.gm.get_submodule(parents), name)

    def erase_unused(self, nodes: list[Node]) -> None:
        """Take reads out of the graph that nothing needs any more."""
        for node in nodes:
            if node.op == "get_attr" and not node.users:
                self.erase(node)

    def _forget(self, node: Node) -> bool:
        """Whether the node was one that reads or calls something."""
        if node.op not in ("get_attr", "call_module"):
            return False
        for path in list_path_prefixes(str(node.target)):
            del self._nodes[path][node]
        return True


# Finds convolutions, linear layers and batch norms, whether modules or functions.
#
# A layer is recognised with the tensors that it has. What a tensor comes from must not change while
# the graph runs: inputs, results of other calls and attributes that the graph writes to are none.


@dataclass(frozen=True)
class Layer:
    """A product with `weight`; `spatial` is the number of dims that a convolution slides over."""

    node: Node
    weight: torch.Tensor
    bias: torch.Tensor | None
    spatial: int
    transposed: bool = False
    groups: int = 1

    @property
    def channels(self) -> int:
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    def scaled(self, factor: torch.Tensor) -> torch.Tensor:
        """The weight of a layer whose results are those of this one, times a factor by channel."""
        return scale_channels(self.weight, factor, self.groups if self.transposed else None)


@dataclass(frozen=True)
class Norm:
    """A batch norm by statistics that are known; `result` is the node that has what it computes."""

    node: Node
    result: Node
    input: Node
    mean: torch.Tensor
    var: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    spatial: int | None


_CONV_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_TRANSPOSE_ARGUMENTS = tuple(
    """
        input weight bias stride padding output_padding groups dilation
    """.split()
)
_LINEAR_ARGUMENTS = ("input", "weight", "bias")
_CONVOLUTION_ARGUMENTS = tuple(
    """
        input weight bias stride padding dilation transposed output_padding groups
    """.split()
)
# What they call: the names of the arguments, and the dims that it slides over (None: by the weight)
_LAYER_FUNCTIONS: dict[Any, tuple[tuple[str, ...], int | None]] = {
    F.linear: (_LINEAR_ARGUMENTS, 0),
    aten.linear.default: (_LINEAR_ARGUMENTS, 0),
    aten.convolution.default: (_CONVOLUTION_ARGUMENTS, None),
    **dict.fromkeys((F.conv1d, aten.conv1d.default, aten.conv1d.padding), (_CONV_ARGUMENTS, 1)),
    **dict.fromkeys((F.conv2d, aten.conv2d.default, aten.conv2d.padding), (_CONV_ARGUMENTS, 2)),
    **dict.fromkeys((F.conv3d, aten.conv3d.default, aten.conv3d.padding), (_CONV_ARGUMENTS, 3)),
    **dict.fromkeys(
        (F.conv_transpose1d, aten.conv_transpose1d.default), (_CONV_TRANSPOSE_ARGUMENTS, 1)
    ),
    **dict.fromkeys(
        (F.conv_transpose2d, aten.conv_transpose2d.input), (_CONV_TRANSPOSE_ARGUMENTS, 2)
    ),
    **dict.fromkeys(
        (F.conv_transpose3d, aten.conv_transpose3d.input), (_CONV_TRANSPOSE_ARGUMENTS, 3)
    ),
}
_LAYER_MODULES: dict[type[nn.Module], tuple[int, bool]] = {
    nn.Linear: (0, False),
    nn.Conv1d: (1, False),
    nn.Conv2d: (2, False),
    nn.Conv3d: (3, False),
    nn.ConvTranspose1d: (1, True),
    nn.ConvTranspose2d: (2, True),
    nn.ConvTranspose3d: (3, True),
}
_NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")
_NORM_FUNCTIONS: dict[Any, tuple[str, ...]] = {
    F.batch_norm: tuple("input running_mean running_var weight bias training momentum eps".split()),
    torch.batch_norm: ("input", *_NORM_TENSORS, "training", "momentum", "eps", "cudnn_enabled"),
    aten.batch_norm.default: (
        "input",
        *_NORM_TENSORS,
        "training",
        "momentum",
        "eps",
        "cudnn_enabled",
    ),
    aten._native_batch_norm_legit_no_training.default: ("input", *_NORM_TENSORS, "momentum", "eps"),
}
_NORM_MODULES: dict[type[nn.Module], int] = {
    nn.BatchNorm1d: 1,
    nn.BatchNorm2d: 2,
    nn.BatchNorm3d: 3,
}


class LayerFinder:
    """Finds layers among the nodes of a module's graph."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.modules = dict(gm.named_modules(remove_duplicate=False))
        self.mutated_storages = find_mutated_storages(gm.graph, self.modules)

    def layer(self, node: Node) -> Layer | None:
        if node.op == "call_module":
            module: Any = self._module(node)
            others = sum(value is not None for value in node.kwargs.values())
            if type(module) not in _LAYER_MODULES or len(node.args) + others != 1:
                return None  # a size of the output that is asked for may be one, in a transposed
            spatial, transposed = _LAYER_MODULES[type(module)]
            groups = getattr(module, "groups", 1)
            return Layer(node, module.weight, module.bias, spatial, transposed, groups)
        if node.op != "call_function" or node.target not in _LAYER_FUNCTIONS:
            return None
        names, dims = _LAYER_FUNCTIONS[node.target]
        given = _bind_arguments(node, names)
        weight, bias = self.tensor(given.get("weight")), self.tensor(given.get("bias"))
        if weight is None or (given.get("bias") is not None and bias is None):
            return None
        transposed = given.get("transposed", names is _CONV_TRANSPOSE_ARGUMENTS)
        spatial = weight.dim() - 2 if dims is None else dims
        return Layer(node, weight, bias, spatial, transposed, given.get("groups", 1))

    def settings(self, node: Node) -> dict[str, Any]:
        """How a layer was called, or made: stride, padding and so on, as far as they are given."""
        if node.op != "call_module":
            return _bind_arguments(node, _LAYER_FUNCTIONS[node.target][0])
        module = self.modules[str(node.target)]
        names = ("stride", "padding", "dilation", "padding_mode")
        return {name: getattr(module, name) for name in names if hasattr(module, name)}

    def norm(self, node: Node) -> Norm | None:
        """A batch norm, if it computes by its running statistics."""
        if node.op == "call_module":
            module: Any = self._module(node)
            if (
                type(module) not in _NORM_MODULES
                or module.training
                or module.running_mean is None
                or module.running_var is None
                or not node.all_input_nodes
            ):
                return None
            return Norm(
                node,
                node,
                node.all_input_nodes[0],
                module.running_mean,
                module.running_var,
                module.weight,
                module.bias,
                module.eps,
                _NORM_MODULES[type(module)],
            )
        if node.op != "call_function" or node.target not in _NORM_FUNCTIONS:
            return None
        given = _bind_arguments(node, _NORM_FUNCTIONS[node.target])
        tensors = [self.tensor(given.get(name)) for name in _NORM_TENSORS]
        known = [
            t is not None or given.get(n) is None
            for t, n in zip(tensors, _NORM_TENSORS, strict=True)
        ]
        weight, bias, mean, var = tensors
        result = _find_norm_result(node)
        if given.get("training", False) or not all(known) or mean is None or var is None:
            return None
        if result is None or not isinstance(given["input"], Node):
            return None
        eps = given.get("eps", 1e-5)
        return Norm(node, result, given["input"], mean, var, weight, bias, eps, None)

    def tensor(self, value: Any) -> torch.Tensor | None:
        """The tensor that a node always stands for."""
        if not isinstance(value, Node) or value.op != "get_attr":
            return None
        if get_attribute_storage_key(str(value.target), self.modules) in self.mutated_storages:
            return None
        found = get_attribute(str(value.target), self.gm)
        return found if isinstance(found, torch.Tensor) else None

    def is_fixed(self, module: nn.Module) -> bool:
        """Whether hooks and the graph leave a module as its type says."""
        if module._forward_hooks or module._forward_pre_hooks:
            return False
        tensors = itertools.chain(module.parameters(), module.buffers())
        return not self.mutated_storages or self.mutated_storages.isdisjoint(
            map(storage_key, tensors)
        )

    def _module(self, node: Node) -> nn.Module | None:
        module = self.modules.get(str(node.target))
        return module if module is not None and self.is_fixed(module) else None


def get_tensor_metadata(node: Node) -> Any:
    """What export or shape propagation noted of a result; None if neither did."""
    return get_val(node) if has_val(node) else node.meta.get("tensor_meta")


def get_rank(node: Node) -> int | None:
    """The number of dims of a result, if its metadata has it."""
    for known in (get_val(node), node.meta.get("tensor_meta")):
        shape = getattr(known, "shape", None)
        if shape is not None:
            return len(shape)
    return None


def _bind_arguments(node: Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _find_norm_result(node: Node) -> Node | None:
    """The node that has the normalised tensor; None where statistics are asked for too."""
    if node.target is not aten._native_batch_norm_legit_no_training.default:
        return node
    users = list(node.users)
    wanted = len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0
    return users[0] if wanted else None
