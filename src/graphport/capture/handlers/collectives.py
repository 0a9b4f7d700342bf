"""Handlers of `torch.distributed` collectives, recorded in their functional form.

`dist.all_reduce(y)` and the others write to memory that their schemas do not declare as written.
Here each becomes an operator of `_c10d_functional`, a `wait_tensor`, and a write of the result.
What has no functional form that every rank runs alike is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport import source
from graphport.capture.trace.tracer import Tracer, register_handler
from graphport.errors import UnsupportedError
from graphport.ops import OpInfo
from graphport.types import Args, Argument, Kwargs

Tensors = Sequence[torch.Tensor]


class Group:
    """A process group, and the functional collectives within it."""

    def __init__(self, boxed: Any) -> None:
        group = torch.distributed.ProcessGroup.unbox(boxed)
        self.name, self.size = group.group_name, group.size()

    def run(self, name: str, x: torch.Tensor, *args: object) -> torch.Tensor:
        """The result of a collective, waited for."""
        ops = torch.ops._c10d_functional
        return ops.wait_tensor(getattr(ops, name)(x, *args, self.name))

    def reduce(self, x: torch.Tensor, op: torch.ScriptObject) -> torch.Tensor:
        return self.run("all_reduce", x, _reduction_name(op))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """What all ranks have, one after the other in one dim."""
        return self.run("all_gather_into_tensor", _flatten(x), self.size)

    def reduce_scatter(self, x: torch.Tensor, op: torch.ScriptObject) -> torch.Tensor:
        return self.run("reduce_scatter_tensor", _flatten(x), _reduction_name(op), self.size)

    def exchange(
        self, x: torch.Tensor, received: Sequence[object], sent: Sequence[object]
    ) -> Argument:
        """All to all along the first dim, given the sizes from and for each rank."""
        return self.run("all_to_all_single", x, list(received), list(sent))

    def splits(self, x: torch.Tensor) -> list[Argument]:
        return [x.shape[0] // self.size] * self.size


_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def _reduction_name(boxed: Any) -> str:
    op = boxed.op()
    for name in _REDUCTIONS:
        if op == getattr(torch.distributed.ReduceOp.RedOpType, name).value:
            return name.lower()
    raise UnsupportedError(
        "this reduction of a collective cannot be captured",
        where=source.locate_user_line(),
        fix=f"use one of dist.ReduceOp.{', '.join(_REDUCTIONS)}",
    )


def _flatten(x: torch.Tensor) -> torch.Tensor:
    return x if x.ndim == 1 else x.reshape(-1)


def _write(target: torch.Tensor, new: torch.Tensor) -> None:
    """Write what came flat, and in the order of the target's elements."""
    target.copy_(new if target.ndim == 1 else new.reshape(target.shape))


def _write_chunks(targets: Tensors, whole: torch.Tensor) -> None:
    """One dim cut into pieces, each for one tensor."""
    for target, piece in zip(targets, whole.split([t.numel() for t in targets]), strict=True):
        _write(target, piece)


def _concatenate(tensors: Tensors) -> torch.Tensor:
    return torch.cat([_flatten(t) for t in tensors])


def all_reduce(group: Group, tensors: Tensors, op: torch.ScriptObject, *_: object) -> None:
    for t in tensors:
        t.copy_(group.reduce(t, op))


def broadcast(group: Group, tensors: Tensors, root: int, *_: object) -> None:
    for t in tensors:
        t.copy_(group.run("broadcast", t, root))


def all_gather(group: Group, outputs: Sequence[Tensors], inputs: Tensors, *_: object) -> None:
    for pieces, x in zip(outputs, inputs, strict=True):
        _write_chunks(pieces, group.gather(x))


def all_gather_base(group: Group, output: torch.Tensor, x: torch.Tensor, *_: object) -> None:
    _write(output, group.gather(x))


def all_gather_bases(group: Group, outputs: Tensors, inputs: Tensors, *_: object) -> None:
    for output, x in zip(outputs, inputs, strict=True):
        _write(output, group.gather(x))


def reduce_scatter(
    group: Group, outputs: Tensors, inputs: Sequence[Tensors], op: torch.ScriptObject, *_: object
) -> None:
    for output, pieces in zip(outputs, inputs, strict=True):
        _write(output, group.reduce_scatter(_concatenate(pieces), op))


def reduce_scatter_base(
    group: Group, output: torch.Tensor, x: torch.Tensor, op: torch.ScriptObject, *_: object
) -> None:
    _write(output, group.reduce_scatter(x, op))


def reduce_scatter_bases(
    group: Group, outputs: Tensors, inputs: Tensors, op: torch.ScriptObject, *_: object
) -> None:
    for output, x in zip(outputs, inputs, strict=True):
        _write(output, group.reduce_scatter(x, op))


def all_to_all(group: Group, outputs: Tensors, inputs: Tensors, *_: object) -> None:
    received, sent = ([t.numel() for t in tensors] for tensors in (outputs, inputs))
    _write_chunks(outputs, group.exchange(_concatenate(inputs), received, sent))


def all_to_all_base(
    group: Group, output: torch.Tensor, x: torch.Tensor, received: Any, sent: Any, *_: object
) -> None:
    output.copy_(group.exchange(x, received or group.splits(output), sent or group.splits(x)))


_FUNCTIONAL: dict[str, Callable[..., None]] = {
    "allreduce_": all_reduce,
    "allreduce_coalesced_": all_reduce,
    "broadcast_": broadcast,
    "allgather_": all_gather,
    "allgather_coalesced_": all_gather,
    "_allgather_base_": all_gather_base,
    "allgather_into_tensor_coalesced_": all_gather_bases,
    "reduce_scatter_": reduce_scatter,
    "_reduce_scatter_base_": reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": reduce_scatter_bases,
    "alltoall_": all_to_all,
    "alltoall_base_": all_to_all_base,
}
"""By name of the operator in c10d; the process group comes first, then what else it is given."""
_ALTERNATIVES = {
    "reduce_": "dist.all_reduce(tensor), which gives every rank the result",
    "gather_": "dist.all_gather_single(output, tensor), which gives every rank the result",
    "scatter_": "dist.broadcast(tensor, src), and the rank's part of it",
    "barrier": "leave it out: it orders processes, and computes nothing",
    "monitored_barrier_": "leave it out: it orders processes, and computes nothing",
}
_POINT_TO_POINT = "gp.partition.pipeline(program, stages=...) sends values between processes"


@register_handler("c10d")
def collective(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A collective as the user wrote it: its functional form, and what it writes."""
    functional = _FUNCTIONAL.get(info.name)
    if functional is None:
        raise UnsupportedError(
            f"c10d.{info.name} of torch.distributed has no form that a graph can hold",
            where=source.locate_user_line(),
            fix=_ALTERNATIVES.get(info.name, _POINT_TO_POINT),
        )
    names = [a.name for a in info.op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    group = Group(given.pop("process_group"))
    with tracer:
        functional(group, *given.values())
    from graphport.compat.torch import FakeWork  # not every torch is built with it

    done = FakeWork().boxed()
    if len(info.op._schema.returns) == 1:
        return done
    return args[0], done


@register_handler("_c10d_functional::_wrap_tensor_autograd")
def wait(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """What eager wraps so that its first reader waits for it: the graph waits at once."""
    return tracer.call(torch.ops._c10d_functional.wait_tensor.default, args[0])
