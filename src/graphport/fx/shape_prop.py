"""Propagates shapes, dtypes and strides through a graph, on real or abstract tensors.

Tensors without data are the abstract tensors of an exported program, whose sizes may be symbolic,
and PyTorch's fake tensors. Within `AbstractDispatchMode`, an operator that gets one of them takes
the others as such, too: parameters and constants need no conversion beforehand, and are never
written to. Tensors on the meta device are made abstract tensors on the device that the program is
for: layouts, and checks that all is on one device, depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_aggregate
from torch.nn.parameter import is_lazy

from graphport.compat.torch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    pytree,
)
from graphport.errors import DataDependentError, ExportError, ShapeError, UnsupportedError
from graphport.fx.graphs import locate_node, require_graph_module
from graphport.ops import Abstract, get_op_info, infer_by_meta
from graphport.ops.meta import to_meta
from graphport.process import restore_on_exit
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, is_symbolic, python_type, to_torch
from graphport.tensors.abstract import AbstractTensor, contiguous_strides, make_abstract_tensor
from graphport.types import Args, Argument

_NEEDS_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

OperatorRunner = Callable[[OpOverload, Any, Any, list[torch.Tensor]], Any]


def has_no_data(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, (AbstractTensor, FakeTensor)) or value.device.type == "meta"


def infer_device(module: nn.Module) -> torch.device:
    """The device that a program is for: that of its weights."""
    state = next(itertools.chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if state is None else state.device


def to_abstract_tensor(x: object, device: torch.device) -> Argument:
    """A tensor as an abstract one; on `device`, if it is on the meta device."""
    if not isinstance(x, torch.Tensor) or isinstance(x, (AbstractTensor, FakeTensor)):
        return x
    if x.layout is not torch.strided or x.is_quantized:
        raise UnsupportedError(f"a tensor of {x.layout} or {x.dtype} has no abstract form")
    place = device if x.device.type == "meta" else x.device
    sizes, strides = tuple(x.size()), tuple(x.stride())
    packed = None if strides == contiguous_strides(sizes) else strides
    return make_abstract_tensor(Abstract(sizes, x.dtype, place, packed), x.requires_grad)


def to_meta_tensor(x: object) -> Argument:
    """An abstract tensor as one on the meta device."""
    if not isinstance(x, AbstractTensor):
        return x
    return to_meta(x._abstract).requires_grad_(x.requires_grad)


class AbstractDispatchMode(TorchDispatchMode):
    """Operators on tensors without data. See the module."""

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Args = (), kwargs: Argument = None
    ) -> Argument:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        run = _choose_runner(tensors)
        if run is None:
            return op(*args, **kwargs)
        if _NEEDS_DATA & set(op.tags):
            raise DataDependentError(f"the result of {op} depends on numbers, and there are none")
        return run(op, args, kwargs, tensors)


def _choose_runner(tensors: list[torch.Tensor]) -> OperatorRunner | None:
    """How to run an operator on these; None where all have data."""
    for kind, run in _RUNNERS:
        if any(isinstance(t, kind) for t in tensors):
            return run
    return None


def _run_abstract(
    op: OpOverload, args: Args, kwargs: Argument, tensors: list[torch.Tensor]
) -> Argument:
    """By our own shape rules, which take symbolic sizes."""
    info = get_op_info(op)
    called, described, named = info, [_unwrap_arguments(a) for a in args], _unwrap_arguments(kwargs)
    if info.functional is not None:
        called = get_op_info(info.functional)
        described = info.arranged(described)
        named = {k: v for k, v in named.items() if k not in info.mutated}
    out = (
        called.rule(*described, **named)
        if called.rule is not None
        else infer_by_meta(called.op, described, named)
    )
    if info.mutated:
        return _mutation_result(
            op, [kwargs[m] if isinstance(m, str) else args[m] for m in info.mutated], out
        )
    return _wrap_results(out)


def _mutation_result(op: OpOverload, written: list[Any], out: Argument) -> Argument:
    """What an operator returns that has written `out` to tensors."""
    if torch.Tag.inplace_view in op.tags and isinstance(written[0], AbstractTensor):
        _replace_abstract(written[0], out)
    returns = op._schema.returns
    if not returns:
        return None
    if any(r.alias_info is None for r in returns):  # results beside those that were written
        return _wrap_results(out[: len(returns)] if isinstance(out, (list, tuple)) else out)
    return written[0] if len(returns) == 1 else tuple(written[: len(returns)])


def _replace_abstract(tensor: AbstractTensor, abstract: Abstract) -> None:
    """`t_`, `squeeze_`, ...: the tensor itself has other sizes from now on."""
    with DisableTorchDispatch(), DisableTorchFunction():
        tensor.data = make_abstract_tensor(abstract)
    tensor._abstract = abstract


def _unwrap_arguments(x: object) -> Argument:
    if isinstance(x, AbstractTensor):
        return x._abstract
    if isinstance(x, torch.Tensor):
        return to_abstract_tensor(x, x.device)._abstract
    if is_symbolic(x):
        return from_torch(x)
    if isinstance(x, dict):
        return {k: _unwrap_arguments(v) for k, v in x.items()}
    return [_unwrap_arguments(y) for y in x] if isinstance(x, (list, tuple)) else x


def _wrap_results(x: Argument) -> Argument:
    if isinstance(x, Abstract):
        return make_abstract_tensor(x)
    if isinstance(x, Expr):
        return to_torch(x)
    return type(x)(map(_wrap_results, x)) if type(x) in (list, tuple) else x


def _run_fake(
    op: OpOverload, args: Args, kwargs: Argument, tensors: list[torch.Tensor]
) -> Argument:
    mode = next(t.fake_mode for t in tensors if isinstance(t, FakeTensor))

    def faked(x: Argument) -> Argument:
        real = isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)
        return mode.from_tensor(x.detach()) if real else x

    args, kwargs = pytree.tree_map(faked, (args, kwargs))
    with mode:
        return op(*args, **kwargs)


_RUNNERS: tuple[tuple[type, OperatorRunner], ...] = (
    (AbstractTensor, _run_abstract),
    (FakeTensor, _run_fake),
)


@contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Give buffers their numbers back: statistics of batches are no business of who looks on."""
    buffers = (b for b in module.buffers() if not has_no_data(b) and not is_lazy(b))
    before = [(b, b.detach().clone()) for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, numbers in before:
                # Only where it must: writing takes what a backward pass may still need. Versions do
                # not tell, as batch norm writes behind their back.
                if not torch.equal(buffer, numbers):
                    buffer.copy_(numbers)


# `ShapeProp`: runs a graph, and notes shape, dtype and layout of every value.
#
# Inputs may be real tensors, or tensors without data (on the meta device, fake, or the abstract
# tensors of an exported program, symbolic sizes included); the result is of the same kind.


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

    @restore_on_exit
    def propagate(self, *args: object) -> Argument:
        """Run the graph, and return what it returns."""
        bare = [t for t in pytree.tree_leaves(args) if has_no_data(t)]
        with preserve_buffers(self.module):
            return self._run_without_data(bare, args) if bare else self.run(*args)

    def _run_without_data(self, bare: list[torch.Tensor], args: tuple[object, ...]) -> Argument:
        device = infer_device(self.module)
        inputs = pytree.tree_map(
            lambda x: to_abstract_tensor(x, device) if has_no_data(x) else x, args
        )
        with AbstractDispatchMode():
            result = self.run(*inputs)
        on_meta = any(type(t) is torch.Tensor for t in bare)
        return pytree.tree_map(to_meta_tensor, result) if on_meta else result

    def run_node(self, n: Node) -> Argument:
        try:
            result = super().run_node(n)
        except ExportError as error:
            error.what = f"node {n.name} fails: {_format_call(n, self.env)}\n  {error.what}"
            error.where = locate_node(n) or error.where
            raise
        except Exception as error:  # whatever the user's operators raise
            raise ShapeError(
                f"node {n.name} fails: {_format_call(n, self.env)}\n"
                f"  {type(error).__name__}: {error}",
                where=locate_node(n),
            ) from error
        if any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(result)):
            n.meta["tensor_meta"] = map_aggregate(result, _extract_tensor_metadata)
        n.meta["type"] = _plain_type(result)
        return result


def _extract_tensor_metadata(value: object) -> Argument:
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
        _read_qparams(value) if value.is_quantized else {},
    )


_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def _memory_format(t: torch.Tensor) -> torch.memory_format | None:
    if isinstance(t, AbstractTensor):
        # Only what is so at all sizes: asking torch would decide it for the example's.
        if t._abstract.is_contiguous:
            return torch.contiguous_format
        return _FORMATS[t.dim() - 3] if t._abstract.is_channels_last else None
    return next((f for f in _FORMATS if t.is_contiguous(memory_format=f)), None)


def _read_qparams(t: torch.Tensor) -> dict[str, object]:
    scheme = t.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"qscheme": scheme, "scale": t.q_scale(), "zero_point": t.q_zero_point()}
    return {
        "qscheme": scheme,
        "scale": t.q_per_channel_scales().tolist(),
        "zero_point": t.q_per_channel_zero_points().tolist(),
        "axis": t.q_per_channel_axis(),
    }


def _plain_type(result: object) -> type:
    """The type that the result has where tensors have data and sizes are numbers."""
    if has_no_data(result) and not isinstance(result, torch.nn.Parameter):
        return torch.Tensor
    return python_type(result)


def _format_call(node: Node, env: dict[Node, Any]) -> str:
    """A call as the user might have written it, with what its arguments are."""
    args = [_format_argument(a, env) for a in node.args]
    args += [f"{k}={_format_argument(v, env)}" for k, v in node.kwargs.items()]
    target = node.target if isinstance(node.target, str) else torch.typename(node.target)
    return f"{target}({', '.join(args)})"


def _format_argument(argument: object, env: dict[Node, Any]) -> str:
    if isinstance(argument, Node):
        value = env.get(argument)
        if not isinstance(value, torch.Tensor):
            return f"{argument}: {type(value).__name__}"
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{argument}: {dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_format_argument(a, env) for a in argument)}]"
    return repr(argument)
