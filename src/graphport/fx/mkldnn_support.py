"""Which calls run on MKL-DNN tensors, and the modules that hold weights for them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from graphport.compat.operators import aten
from graphport.fx.effects import find_aliased_inputs, find_mutated_inputs
from graphport.fx.graphs import get_first_argument
from graphport.fx.layers import LayerFinder, get_rank, get_tensor_metadata

with warnings.catch_warnings():
    # torch's own modules for the layout are written in TorchScript, which torch warns of: when they
    # are imported, or when one of them is first asked for.
    warnings.filterwarnings("ignore", ".*torch.jit")
    import torch.utils.mkldnn as mkldnn

    MkldnnConv1d: type[Any] = mkldnn.MkldnnConv1d


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _apply_elementwise(torch.add, a, b)


def mul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _apply_elementwise(torch.mul, a, b)


def _apply_elementwise(
    op: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """MKL-DNN does not broadcast, and a graph does not say whether it would have to."""
    if a.shape == b.shape:
        return op(a, b)
    return op(a.to_dense(), b.to_dense()).to_mkldnn()


# Of two tensors, if both are in the layout already.
BINARY: dict[Any, Callable[..., torch.Tensor]] = {
    operator.add: add,
    operator.iadd: add,
    torch.add: add,
    aten.add.Tensor: add,
    operator.mul: mul,
    operator.imul: mul,
    torch.mul: mul,
    aten.mul.Tensor: mul,
}

_UNARY_FUNCTIONS = frozenset(
    {
        torch.relu,
        F.relu,
        torch.sigmoid,
        F.sigmoid,
        torch.tanh,
        F.tanh,
        torch.transpose,
        torch.flatten,
        aten.relu.default,
        aten.sigmoid.default,
        aten.tanh.default,
        aten.transpose.int,
        aten.flatten.using_ints,
    }
)
_UNARY_METHODS = frozenset({"relu", "sigmoid", "tanh", "transpose", "flatten", "reshape"})
# Functions with the names of arguments that must have this value, or be left out.
_MAX_POOL_REQUIRES = {"dilation": 1, "return_indices": False}
_AVG_POOL_REQUIRES = {"divisor_override": None}
_ADAPTIVE_POOL_REQUIRES = {"output_size": 1}
_MAX_POOL_ARGUMENTS = tuple(
    """
        input kernel_size stride padding dilation ceil_mode return_indices
    """.split()
)
_POOLS: dict[Any, tuple[tuple[str, ...], dict[str, Any]]] = {
    F.max_pool2d: (_MAX_POOL_ARGUMENTS, _MAX_POOL_REQUIRES),
    F.max_pool3d: (_MAX_POOL_ARGUMENTS, _MAX_POOL_REQUIRES),
    F.avg_pool2d: (
        ("input", "kernel_size", "stride", "padding", "ceil_mode", "include", "divisor_override"),
        _AVG_POOL_REQUIRES,
    ),
    F.adaptive_avg_pool2d: (("input", "output_size"), _ADAPTIVE_POOL_REQUIRES),
}
_POOLS.update(
    {
        torch.max_pool2d: _POOLS[F.max_pool2d],
        aten.max_pool2d.default: _POOLS[F.max_pool2d],
        aten.max_pool3d.default: _POOLS[F.max_pool3d],
        aten.avg_pool2d.default: _POOLS[F.avg_pool2d],
        aten.adaptive_avg_pool2d.default: _POOLS[F.adaptive_avg_pool2d],
    }
)
_MODULES: dict[type[nn.Module], dict[str, Any]] = {
    nn.Identity: {},
    nn.ReLU: {},
    nn.Sigmoid: {},
    nn.Tanh: {},
    nn.Flatten: {},
    nn.MaxPool2d: _MAX_POOL_REQUIRES,
    nn.MaxPool3d: _MAX_POOL_REQUIRES,
    nn.AvgPool2d: _AVG_POOL_REQUIRES,
    nn.AdaptiveAvgPool2d: _ADAPTIVE_POOL_REQUIRES,
    nn.BatchNorm2d: {"training": False, "affine": True, "track_running_stats": True},
    nn.BatchNorm3d: {"training": False, "affine": True, "track_running_stats": True},
}
_CONVOLUTIONS: dict[int, tuple[type[nn.Module], type[Any]]] = {
    1: (nn.Conv1d, MkldnnConv1d),
    2: (nn.Conv2d, mkldnn.MkldnnConv2d),
    3: (nn.Conv3d, mkldnn.MkldnnConv3d),
}


def is_supported(node: Node, layers: LayerFinder) -> bool:
    """Whether a call takes its inputs in the layout, and gives its result in it.

    Of a binary operator, all inputs must be in the layout already: one may be a number.
    """
    if not node.op.startswith("call_") or not node.all_input_nodes:
        return False
    if _is_not_float32(node) or not _has_supported_rank(node, layers):
        return False
    seen = find_mutated_inputs(node, layers.modules)
    while seen:
        value = seen.pop()
        if len(value.users) > 1 or value.op in ("placeholder", "get_attr"):
            return False  # it mutates an input, which would be a copy here
        seen.extend(find_aliased_inputs(value, layers.modules))
    if is_binary(node):
        return True
    if isinstance(get_first_argument(node), Node):
        if layers.layer(node) is not None:
            return _is_dense_layer(node, layers)
        if len(node.all_input_nodes) == 1:
            if node.op == "call_module":
                module = layers.modules[str(node.target)]
                return layers.is_fixed(module) and _is_supported_module(module)
            known = _UNARY_METHODS if node.op == "call_method" else _UNARY_FUNCTIONS
            return node.target in known or _is_supported_pool(node)
    return False


# These make float32 of whole numbers, too.
_TO_FLOAT = frozenset(
    {
        torch.sigmoid,
        F.sigmoid,
        torch.tanh,
        F.tanh,
        aten.sigmoid.default,
        aten.tanh.default,
        nn.Sigmoid,
        nn.Tanh,
        "sigmoid",
        "tanh",
    }
)


def keeps_dtype(node: Node, layers: LayerFinder) -> bool:
    """Whether the result of a call that is supported has the dtype of its only input."""
    module = node.op == "call_module"
    kind = type(layers.modules[str(node.target)]) if module else node.target
    return not is_binary(node) and kind not in _TO_FLOAT


_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)


def _is_not_float32(node: Node) -> bool:
    """Whether metadata tell that a result is no tensor of float32."""
    known = get_tensor_metadata(node)
    return known is not None and getattr(known, "dtype", None) is not torch.float32


def _has_supported_rank(node: Node, layers: LayerFinder) -> bool:
    """Whether values have dims that the layout takes, batches included; as far as metadata tell."""
    layer = layers.layer(node)
    if layer is not None:
        spatial = layer.spatial
    else:
        module = layers.modules.get(str(node.target)) if node.op == "call_module" else None
        target = node.target if module is None else type(module)
        name = getattr(target, "__name__", "")
        spatial = next((count for count in (2, 3) if f"{count}d" in name), 0)  # of pools and norms
    if spatial and get_rank(node) not in (None, spatial + 2):
        return False
    return all(get_rank(value) in (None, 1, 2, 3, 4, 5) for value in (node, *node.all_input_nodes))


def is_binary(node: Node) -> bool:
    """A sum or product of two values, with nothing else to it."""
    return (
        node.op == "call_function"
        and node.target in BINARY
        and not node.kwargs
        and len(node.args) == 2
        and all(isinstance(arg, Node) for arg in node.args)
    )


def _is_float32_on_cpu(t: torch.Tensor | None) -> bool:
    return t is None or (t.dtype is torch.float32 and t.device.type == "cpu")


def _is_dense_layer(node: Node, layers: LayerFinder) -> bool:
    layer = layers.layer(node)
    if layer is None or layer.transposed or not _is_float32_on_cpu(layer.weight):
        return False
    if layer.spatial == 0:
        return _is_float32_on_cpu(layer.bias)
    settings = layers.settings(node)
    return (
        _is_float32_on_cpu(layer.bias)
        and settings.get("padding_mode", "zeros") == "zeros"
        and not isinstance(settings.get("padding", 0), str)
    )


def _is_supported_module(module: nn.Module) -> bool:
    if type(module) not in _MODULES:
        return False
    given = {name: getattr(module, name) for name in _MODULES[type(module)]}
    return _matches_settings(given, _MODULES[type(module)]) and all(
        map(_is_float32_on_cpu, module.parameters())
    )


def _is_supported_pool(node: Node) -> bool:
    if node.target not in _POOLS:
        return False
    names, wanted = _POOLS[node.target]
    return _matches_settings({**dict(zip(names, node.args, strict=False)), **node.kwargs}, wanted)


def _matches_settings(given: dict[str, object], wanted: dict[str, object]) -> bool:
    for name, value in wanted.items():
        have = given.get(name, value)
        if any(part != value for part in (have if isinstance(have, (list, tuple)) else [have])):
            return False
    return True


def make_mkldnn_module(node: Node, layers: LayerFinder) -> nn.Module | None:
    """The module that a call is to be in the layout, if it has weights."""
    layer = layers.layer(node)
    with torch.no_grad():
        if layer is None:
            module = layers.modules.get(str(node.target)) if node.op == "call_module" else None
            return mkldnn.MkldnnBatchNorm(module) if isinstance(module, _NORMS) else None
        if layer.spatial == 0:
            dense: Any = nn.Linear(1, 1, device="meta")
            kind: Any = mkldnn.MkldnnLinear
        else:
            make, kind = _CONVOLUTIONS[layer.spatial]
            given = layers.settings(node)
            settings = {
                k: _expand_tuple(given[k], layer.spatial)
                for k in ("stride", "padding", "dilation")
                if k in given
            }
            outputs, inputs, *kernel = layer.weight.shape
            dense = make(
                inputs * layer.groups,
                outputs,
                kernel,
                groups=layer.groups,
                device="meta",
                **settings,
            )
        dense.weight = nn.Parameter(layer.weight, requires_grad=False)
        dense.bias = None if layer.bias is None else nn.Parameter(layer.bias, requires_grad=False)
        made: nn.Module = kind(dense, torch.float)
        return made


def _expand_tuple(value: object, count: int) -> tuple[int, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(values) * (count if len(values) == 1 else 1)
