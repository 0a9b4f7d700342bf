"""Products with a matrix in a graph: matmul, mm and linear, as functions, methods and modules."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._ops import OpOverload
from torch.fx import Node

from graphport.fx.layers import Layers, rank
from graphport.fx.nodes import first

aten = torch.ops.aten

_MATMULS = frozenset(
    {
        torch.matmul, torch.mm, operator.matmul, torch.Tensor.matmul, torch.Tensor.mm,
        aten.matmul.default, aten.mm.default,
    }
)  # fmt: skip
_MM = frozenset({"mm", torch.mm, torch.Tensor.mm})
_LINEARS = frozenset({F.linear, aten.linear.default})
_SHAPES = ("val", "tensor_meta")


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
        return next(self.right.meta[key].dtype for key in _SHAPES if key in self.right.meta)

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
        shape = known_shape(self.right) if self.weight is None else self.weight.shape
        return (shape[1], shape[0]) if self.linear else (shape[0], shape[1])


def product(node: Node, layers: Layers) -> Product | None:
    """The product that a node is, if its right side is known to have two dims."""
    if node.op == "call_module" or node.target in _LINEARS:
        return _linear(node, layers)
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
    dims = rank(right) if weight is None else weight.dim()
    return Product(node, left, right, weight) if dims == 2 else None


def _linear(node: Node, layers: Layers) -> Product | None:
    layer = layers.layer(node)
    if layer is None or layer.spatial != 0 or layer.transposed:
        return None
    left = first(node)
    if not isinstance(left, Node):
        return None
    if node.op == "call_module":
        path = str(node.target)
        return Product(node, left, None, layer.weight, layer.bias, None, True, path)
    given = {**dict(zip(("input", "weight", "bias"), node.args, strict=False)), **node.kwargs}
    return Product(
        node, left, given["weight"], layer.weight, layer.bias, given.get("bias"), linear=True
    )


def known_shape(node: Node | None) -> Any:
    """The shape of a value, where metadata tell."""
    known = [node.meta[key] for key in _SHAPES if key in node.meta] if node is not None else []
    return getattr(known[0], "shape", None) if known else None


def joined(products: list[Product]) -> tuple[torch.Tensor, torch.Tensor | None]:
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
