"""Shapes, dtypes and layouts of every value of a graph, by running it.

Inputs may be real tensors, or tensors without data (on the meta device, fake, or the abstract
tensors of an exported program, symbolic sizes included); the result is of the same kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from graphport.errors import ExportError, ShapeError
from graphport.fx.copying import require_graph_module
from graphport.fx.dataless import (
    Dataless,
    device_of,
    has_no_data,
    keeping_buffers,
    meta_like,
    without_data,
)
from graphport.fx.nodes import place_of
from graphport.ops.tensor import AbstractTensor
from graphport.process import contained


class TensorMetadata(NamedTuple):
    """What is known of a tensor without its numbers."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: torch.memory_format | None
    is_quantized: bool
    qparams: dict[str, Any]


class ShapeProp(Interpreter):
    """Runs a graph and notes what every node computes.

    `node.meta["tensor_meta"]` is a `TensorMetadata`, or the structure of several that the node
    returns, and `node.meta["type"]` the type of the result. Buffers keep the numbers they had, also
    of modules in training mode.

        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 4)))
        >>> out = ShapeProp(gm).propagate(torch.ones(2, 3))
        >>> [tuple(n.meta["tensor_meta"].shape) for n in gm.graph.nodes]
        [(2, 3), (2, 4), (2, 4)]
    """

    def __init__(self, gm: GraphModule) -> None:
        require_graph_module(gm)
        super().__init__(gm)
        self.extra_traceback = False  # an error says where it happened already

    @contained
    def propagate(self, *args: Any) -> Any:
        """Run the graph, and return what it returns."""
        bare = [t for t in pytree.tree_leaves(args) if has_no_data(t)]
        with keeping_buffers(self.module):
            return self._run_without_data(bare, args) if bare else self.run(*args)

    def _run_without_data(self, bare: list[torch.Tensor], args: tuple[Any, ...]) -> Any:
        device = device_of(self.module)
        inputs = pytree.tree_map(lambda x: without_data(x, device) if has_no_data(x) else x, args)
        with Dataless():
            result = self.run(*inputs)
        on_meta = any(type(t) is torch.Tensor for t in bare)
        return pytree.tree_map(meta_like, result) if on_meta else result

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except ExportError as error:
            error.what = f"node {n.name} fails: {_call(n, self.env)}\n  {error.what}"
            error.where = place_of(n) or error.where
            raise
        except Exception as error:  # whatever the user's operators raise
            raise ShapeError(
                f"node {n.name} fails: {_call(n, self.env)}\n  {type(error).__name__}: {error}",
                where=place_of(n),
            ) from error
        if any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(result)):
            n.meta["tensor_meta"] = map_aggregate(result, _metadata)
        n.meta["type"] = _plain_type(result)
        return result


def _metadata(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    strided = value.layout is torch.strided
    return TensorMetadata(
        value.shape,
        value.dtype,
        value.requires_grad,
        value.stride() if strided else (),
        _memory_format(value) if strided else None,
        value.is_quantized,
        _quantisation(value) if value.is_quantized else {},
    )


_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def _memory_format(t: torch.Tensor) -> torch.memory_format | None:
    if isinstance(t, AbstractTensor):
        # Only what is so at all sizes: asking torch would decide it for the example's.
        if t._abstract.is_contiguous:
            return torch.contiguous_format
        return _FORMATS[t.dim() - 3] if t._abstract.is_channels_last else None
    return next((f for f in _FORMATS if t.is_contiguous(memory_format=f)), None)


def _quantisation(t: torch.Tensor) -> dict[str, Any]:
    scheme = t.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"qscheme": scheme, "scale": t.q_scale(), "zero_point": t.q_zero_point()}
    return {
        "qscheme": scheme,
        "scale": t.q_per_channel_scales().tolist(),
        "zero_point": t.q_per_channel_zero_points().tolist(),
        "axis": t.q_per_channel_axis(),
    }


_PLAIN = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def _plain_type(result: Any) -> type:
    """The type that the result has where tensors have data and sizes are numbers."""
    if has_no_data(result) and not isinstance(result, torch.nn.Parameter):
        return torch.Tensor
    return _PLAIN.get(type(result), type(result))


def _call(node: Node, env: dict[Node, Any]) -> str:
    """A call as the user might have written it, with what its arguments are."""
    args = [_shown(a, env) for a in node.args]
    args += [f"{k}={_shown(v, env)}" for k, v in node.kwargs.items()]
    target = node.target if isinstance(node.target, str) else torch.typename(node.target)
    return f"{target}({', '.join(args)})"


def _shown(argument: Any, env: dict[Node, Any]) -> str:
    if isinstance(argument, Node):
        value = env.get(argument)
        if not isinstance(value, torch.Tensor):
            return f"{argument}: {type(value).__name__}"
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{argument}: {dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_shown(a, env) for a in argument)}]"
    return repr(argument)
