"""Convolutions, linear layers and batch norms in a graph, whether modules or functions.

A layer is recognised with the tensors that it has. What a tensor comes from must not change while
the graph runs: inputs, results of other calls and attributes that the graph writes to are none.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from graphport.fx.effects import changing, memory_at, memory_of
from graphport.fx.programs import attribute

aten = torch.ops.aten


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
        w = self.weight.to(factor.dtype)
        if not self.transposed:
            return w * factor.reshape(-1, *[1] * (w.dim() - 1))
        # (inputs, outputs of one group, ...): the inputs of a group lead to its outputs only
        grouped = w.reshape(self.groups, -1, *w.shape[1:])
        return (grouped * factor.reshape(self.groups, 1, -1, *[1] * self.spatial)).reshape_as(w)


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


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip
_LINEAR = ("input", "weight", "bias")
_GENERAL = (
    "input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding",
    "groups",
)  # fmt: skip
# What they call: the names of the arguments, and the dims that it slides over (None: by the weight)
_FUNCTIONS: dict[Any, tuple[tuple[str, ...], int | None]] = {
    F.linear: (_LINEAR, 0),
    aten.linear.default: (_LINEAR, 0),
    aten.convolution.default: (_GENERAL, None),
    **dict.fromkeys((F.conv1d, aten.conv1d.default, aten.conv1d.padding), (_CONV, 1)),
    **dict.fromkeys((F.conv2d, aten.conv2d.default, aten.conv2d.padding), (_CONV, 2)),
    **dict.fromkeys((F.conv3d, aten.conv3d.default, aten.conv3d.padding), (_CONV, 3)),
    **dict.fromkeys((F.conv_transpose1d, aten.conv_transpose1d.default), (_TRANSPOSED, 1)),
    **dict.fromkeys((F.conv_transpose2d, aten.conv_transpose2d.input), (_TRANSPOSED, 2)),
    **dict.fromkeys((F.conv_transpose3d, aten.conv_transpose3d.input), (_TRANSPOSED, 3)),
}
_MODULES: dict[type[nn.Module], tuple[int, bool]] = {
    nn.Linear: (0, False),
    nn.Conv1d: (1, False),
    nn.Conv2d: (2, False),
    nn.Conv3d: (3, False),
    nn.ConvTranspose1d: (1, True),
    nn.ConvTranspose2d: (2, True),
    nn.ConvTranspose3d: (3, True),
}
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_NORMS: dict[Any, tuple[str, ...]] = {
    F.batch_norm: (
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
    ),
    torch.batch_norm: ("input", *_STATISTICS, "training", "momentum", "eps", "cudnn_enabled"),
    aten.batch_norm.default: (
        "input", *_STATISTICS, "training", "momentum", "eps", "cudnn_enabled",
    ),
    aten._native_batch_norm_legit_no_training.default: ("input", *_STATISTICS, "momentum", "eps"),
}  # fmt: skip
_NORM_MODULES: dict[type[nn.Module], int] = {
    nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3,
}  # fmt: skip


class Layers:
    """Finds layers among the nodes of a module's graph."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.modules = dict(gm.named_modules(remove_duplicate=False))
        self.changing = changing(gm.graph, self.modules)

    def layer(self, node: Node) -> Layer | None:
        if node.op == "call_module":
            module: Any = self._module(node)
            others = sum(value is not None for value in node.kwargs.values())
            if type(module) not in _MODULES or len(node.args) + others != 1:
                return None  # a size of the output that is asked for may be one, in a transposed
            spatial, transposed = _MODULES[type(module)]
            groups = getattr(module, "groups", 1)
            return Layer(node, module.weight, module.bias, spatial, transposed, groups)
        if node.op != "call_function" or node.target not in _FUNCTIONS:
            return None
        names, dims = _FUNCTIONS[node.target]
        given = _bound(node, names)
        weight, bias = self.tensor(given.get("weight")), self.tensor(given.get("bias"))
        if weight is None or (given.get("bias") is not None and bias is None):
            return None
        transposed = given.get("transposed", names is _TRANSPOSED)
        spatial = weight.dim() - 2 if dims is None else dims
        return Layer(node, weight, bias, spatial, transposed, given.get("groups", 1))

    def settings(self, node: Node) -> dict[str, Any]:
        """How a layer was called, or made: stride, padding and so on, as far as they are given."""
        if node.op != "call_module":
            return _bound(node, _FUNCTIONS[node.target][0])
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
                node, node, node.all_input_nodes[0], module.running_mean, module.running_var,
                module.weight, module.bias, module.eps, _NORM_MODULES[type(module)],
            )  # fmt: skip
        if node.op != "call_function" or node.target not in _NORMS:
            return None
        given = _bound(node, _NORMS[node.target])
        tensors = [self.tensor(given.get(name)) for name in _STATISTICS]
        known = [t is not None or given.get(n) is None
                 for t, n in zip(tensors, _STATISTICS, strict=True)]  # fmt: skip
        weight, bias, mean, var = tensors
        result = _first_of(node)
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
        if memory_at(str(value.target), self.modules) in self.changing:
            return None
        found = attribute(str(value.target), self.gm)
        return found if isinstance(found, torch.Tensor) else None

    def is_fixed(self, module: nn.Module) -> bool:
        """Whether hooks and the graph leave a module as its type says."""
        if module._forward_hooks or module._forward_pre_hooks:
            return False
        tensors = itertools.chain(module.parameters(), module.buffers())
        return not self.changing or self.changing.isdisjoint(map(memory_of, tensors))

    def _module(self, node: Node) -> nn.Module | None:
        module = self.modules.get(str(node.target))
        return module if module is not None and self.is_fixed(module) else None


def rank(node: Node) -> int | None:
    """The number of dims of a result, where metadata tell."""
    for key in ("val", "tensor_meta"):
        shape = getattr(node.meta.get(key), "shape", None)
        if shape is not None:
            return len(shape)
    return None


def _bound(node: Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _first_of(node: Node) -> Node | None:
    """The node that has the normalised tensor; None where statistics are asked for too."""
    if node.target is not aten._native_batch_norm_legit_no_training.default:
        return node
    users = list(node.users)
    wanted = len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0
    return users[0] if wanted else None
