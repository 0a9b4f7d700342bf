"""Packed sequences: how long they are may be data, and so is then how many rows there are."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from graphport.capture.handlers.data_dependent import UnbackedResult
from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.tracer import Tracer, register_handler
from graphport.compat.operators import aten
from graphport.compat.torch import pad_packed
from graphport.ops import Abstract
from graphport.ops.registry import OpInfo
from graphport.ops.shape import transpose
from graphport.process import Replacement
from graphport.symbolic import le
from graphport.symbolic.bridge import from_torch
from graphport.tensors.abstract import AbstractTensor, Size
from graphport.types import Args, Argument, Function, Kwargs


@register_handler(aten._pack_padded_sequence.default)
def pack_padded_sequence(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Rows of all steps, and how many sequences each step has; known where the lengths are."""
    x, batch_first = tracer.value(args[0]).abstract, args[2]
    lengths = tracer.value(args[1]).literal
    steps = x.sizes[1 if batch_first else 0]
    sized = UnbackedResult(tracer)
    total: Size
    longest: Size
    if lengths is None:
        total, longest = sized.size(0, 0, x.sizes[0] * x.sizes[1]), sized.size(1, 0, steps)
        tracer.scope.assume(le(longest, steps), reason="no sequence is longer than the padded ones")
    else:
        total, longest = int(lengths.sum()), int(lengths.max())
    counts = Abstract((longest,), torch.int64, torch.device("cpu"))
    result = sized.record(info, args, kwargs, (x.like((total, *x.sizes[2:])), counts))
    # No sequence is empty: torch refuses that.
    batch = x.sizes[0 if batch_first else 1]
    tracer.first_elements[tracer.value(result[1]).node] = batch
    if lengths is not None:
        running = torch.arange(longest)[:, None] < lengths
        tracer.value(result[1]).constant = running.sum(1)
    return result


@register_handler(aten._pad_packed_sequence.default)
def pad_packed_sequence(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    data, counts = (tracer.value(t) for t in args[:2])
    batch_first, total_length = args[2], args[4]
    sized = UnbackedResult(tracer)
    batch = tracer.first_elements.get(tracer.read(counts))
    if batch is None:
        known = counts.literal
        place = 0 if batch_first else 1
        batch = sized.size(0, place, data.abstract.sizes[0]) if known is None else int(known[0])
    length = tracer.lower(total_length)
    if type(length) is int and length <= 0:
        length = counts.abstract.sizes[0]
    padded = data.abstract.like((length, batch, *data.abstract.sizes[1:]))
    if batch_first:
        padded = transpose(padded, 0, 1)
    lengths = Abstract((batch,), torch.int64, torch.device("cpu"))
    result = sized.record(info, args, kwargs, (padded, lengths))
    if counts.literal is not None:
        alive = counts.literal[:, None] > torch.arange(batch)
        tracer.value(result[1]).constant = alive.sum(0)
    return result


@register_override(pad_packed, aten._pad_packed_sequence.default)
def pad_to_length(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """The schema says that the length is a plain integer; as a value of the graph it may be a size.

    Without a length of the user's, torch passes that of the longest sequence.
    """
    data, counts, batch_first, padding, length = args
    if not isinstance(length, torch.SymInt):
        return NotImplemented
    if from_torch(length) is tracer.value(counts).abstract.sizes[0]:
        length = 0
    return tracer.call(
        aten._pad_packed_sequence.default, data, counts, batch_first, padding, length
    )


def patch_packed_layers() -> Iterator[Replacement]:
    """Recurrent layers ask `int(batch_sizes[0])`, and are given the number as it is."""
    for layer, name in (
        (nn.RNNBase, "get_expected_hidden_size"),
        (nn.LSTM, "get_expected_cell_size"),
    ):
        yield layer, name, _wrap_expected_size(getattr(layer, name))


def _wrap_expected_size(original: Function) -> Function:
    @functools.wraps(original)
    def expect(layer: nn.RNNBase, input: Any, batch_sizes: Any) -> tuple[Any, ...]:
        if type(batch_sizes) is AbstractTensor:
            input, batch_sizes = _Batch(batch_sizes[0].item()), None
        return original(layer, input, batch_sizes)

    return expect


class _Batch:
    """A stand-in for a batch that is not packed."""

    def __init__(self, count: Any) -> None:
        self.count = count

    def size(self, dim: int) -> Any:
        return self.count


_CREATIONS = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)


@register_override(*_CREATIONS)
def read_sizes(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Sizes that are tensors, as recurrent layers take the number of packed sequences."""
    sizes = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    if not any(isinstance(n, torch.Tensor) for n in sizes):
        return NotImplemented
    with tracer.function_mode:
        read = [n.item() if isinstance(n, torch.Tensor) else n for n in sizes]
        return func(read, **kwargs)
