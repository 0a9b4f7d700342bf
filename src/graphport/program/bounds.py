"""Checks arguments that PyTorch's kernels rely on and do not check themselves.

Capture never makes such calls wrong. A program from a file may: what it says of its sizes is not
proof of anything, so the check is made where the sizes are real. Operators that check what they are
given need nothing here; `files/operators.py` says which may stand in a file at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import Graph

from graphport.compat.operators import aten
from graphport.compat.torch import OpOverload
from graphport.ops.registry import overloads
from graphport.types import Argument

Check = Callable[..., torch.Tensor]


def check_fft(self: torch.Tensor, dim: Sequence[int], *_: object) -> torch.Tensor:
    """The dims are those of the tensor, each once."""
    wrapped = {d % self.ndim for d in dim if -self.ndim <= d < self.ndim}
    if len(wrapped) < len(dim):
        raise IndexError(f"fft over the dims {list(dim)} of a tensor of {self.ndim}")
    return self


def check_fft_to_real(
    self: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: int
) -> torch.Tensor:
    """There are as many frequencies as the result needs."""
    check_fft(self, dim)
    if not dim or self.shape[dim[-1]] < last_dim_size // 2 + 1 or last_dim_size < 1:
        raise IndexError(f"fft to {last_dim_size} numbers, of frequencies of {list(self.shape)}")
    return self


def check_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    *_: object,
) -> torch.Tensor:
    """There is a number for each channel."""
    for t in (weight, bias, running_mean, running_var):
        if isinstance(t, torch.Tensor) and (t.ndim != 1 or t.shape[0] != input.shape[1]):
            raise IndexError(f"batch norm of {list(input.shape)} by numbers of {list(t.shape)}")
    return input


def check_norm(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *_: object
) -> torch.Tensor:
    return check_batch_norm(input, weight, bias)


def check_resize(
    self: torch.Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None
) -> torch.Tensor:
    """No place of the result is one beyond the image."""
    for size, out, scale in zip(self.shape[2:], output_size, scales, strict=False):
        if scale is not None and not 0 < out <= size * scale + 1:
            raise IndexError(f"resizing {size} to {out} by {scale}")
    return self


def check_weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int) -> torch.Tensor:
    """There is a length for each vector."""
    if g.numel() != v.shape[dim]:
        raise IndexError(f"weight norm of {list(v.shape)} by lengths of {list(g.shape)}")
    return v


def check_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object
) -> torch.Tensor:
    """There is a value for each key."""
    if key.ndim > 1 < value.ndim and key.shape[-2] != value.shape[-2]:
        raise IndexError(f"attention to {list(key.shape)} with values of {list(value.shape)}")
    return query


def check_lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> torch.Tensor:
    """Each layer has weights and biases for its inputs, its hidden state and its cells."""
    directions = 2 if bidirectional else 1
    hidden, cells = hx[0].shape[-1], hx[1].shape[-1]
    kinds = 2 + 2 * has_biases + (hidden != cells)
    if len(params) != kinds * num_layers * directions:
        raise IndexError(f"an lstm of {num_layers} layers with {len(params)} weights")
    for i in range(num_layers * directions):
        width = input.shape[-1] if i < directions else hidden * directions
        wanted = [[4 * cells, width], [4 * cells, hidden]]
        wanted += [[4 * cells], [4 * cells]] if has_biases else []
        wanted += [[hidden, cells]] if hidden != cells else []
        given = [list(t.shape) for t in params[i * kinds : (i + 1) * kinds]]
        if given != wanted:
            raise IndexError(f"an lstm of {cells} cells with weights of {given}, not {wanted}")
    for t in hx:
        if t.shape[0] != num_layers * directions:
            raise IndexError(f"an lstm of {num_layers} layers with states of {list(t.shape)}")
    return input


CHECKS: dict[OpOverload, Check] = {
    **dict.fromkeys((aten._fft_c2c.default, aten._fft_r2c.default), check_fft),
    aten._fft_c2r.default: check_fft_to_real,
    **dict.fromkeys(
        overloads("""
            native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
            _native_batch_norm_legit_no_training _batch_norm_with_update
            _batch_norm_with_update_functional _batch_norm_no_update
        """),
        check_batch_norm,
    ),
    aten._native_batch_norm_legit.no_stats: check_norm,
    **dict.fromkeys(
        (aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default), check_resize
    ),
    **dict.fromkeys(
        (aten._weight_norm.default, aten._weight_norm_interface.default), check_weight_norm
    ),
    aten.scaled_dot_product_attention.default: check_attention,
    aten.lstm.input: check_lstm,
}


def bind_arguments(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Argument, ...]:
    """Of a call of an operator, all of them by position, those that are left out too."""
    known = {argument.name: argument.default_value for argument in op._schema.arguments}
    return tuple({**known, **dict(zip(known, args, strict=False)), **kwargs}.values())


def check_call_bounds(op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Check a call that is about to be made."""
    if op in CHECKS:
        CHECKS[op](*bind_arguments(op, args, kwargs))


def insert_bounds_checks(graph: Graph) -> None:
    """Have a graph check what its operators do not."""
    for node in graph.nodes:
        check = CHECKS.get(node.target) if node.op == "call_function" else None
        if check is not None:
            args = bind_arguments(node.target, node.args, node.kwargs)
            with graph.inserting_before(node):
                checked = graph.call_function(check, args)
            checked.meta = dict(args[0].meta)
            node.replace_input_with(args[0], checked)
