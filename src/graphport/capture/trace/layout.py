"""Finds nodes whose strides are those of their metadata whatever the layout of the inputs.

Callers may pass inputs in another layout than the example's, and most operators hand the layout of
what they read on to what they make.
"""

from __future__ import annotations

import itertools
from collections.abc import Container

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.trace.state import State
from graphport.capture.trace.values import lies_in_order
from graphport.compat.operators import aten
from graphport.compat.torch import HigherOrderOperator, OpOverload
from graphport.errors import UnsupportedError
from graphport.ops import Abstract, get_op_info
from graphport.ops.effects import CONTIGUOUS_RESULTS
from graphport.ops.sizes import expect_condition
from graphport.symbolic import Expr, ge, lt
from graphport.tensors.abstract import AbstractTensor, get_val, holds_number


class Layouts:
    """Which nodes of a graph have the strides of their metadata in every call."""

    def __init__(self, state: State, unsteady: Container[Node] = ()) -> None:
        self._state = state
        self._unsteady = unsteady
        """Nodes whose strides in eager may be others, whatever the inputs."""
        self._known: dict[Node, bool] = {}

    def is_certain(self, node: Node) -> bool:
        waiting = [node]  # a graph is deeper than Python's stack
        while waiting:
            top = waiting[-1]
            missing = [n for n in self._reads(top) if n not in self._known]
            if missing and top not in self._known:
                waiting.extend(missing)
            else:
                waiting.pop()
                self._known.setdefault(top, self._decide(top))
        return self._known[node]

    def _decide(self, node: Node) -> bool:
        if node.op == "placeholder":
            return any(entry.node is node for entry in self._state.entries)
        if node in self._unsteady or isinstance(node.target, HigherOrderOperator):
            return False
        return (
            node.target in CONTIGUOUS_RESULTS
            or is_contiguous_clone(node)
            or all(self._known[n] for n in self._reads(node))
        )

    def _reads(self, node: Node) -> list[Node]:
        return [n for n in node.all_input_nodes if not holds_number(n)]


def has_same_layout(a: Abstract, b: Abstract) -> bool:
    """Whether two tensors of the same sizes have the same strides."""
    return (a.is_contiguous and b.is_contiguous) or a.strides == b.strides


def is_contiguous_clone(node: Node) -> bool:
    """Whether a node is contiguous however the operators before it are decomposed."""
    copies = node.target is aten.clone.default
    return copies and node.kwargs.get("memory_format") is torch.contiguous_format


def chooses_format(node: Node) -> bool:
    """Whether an operator may ask its operands for their memory format, as convolutions do."""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise in node.target.tags:
        return False
    val = get_val(node)  # lines, images and volumes have formats
    return isinstance(val, AbstractTensor) and val.dim() >= 3 and not get_op_info(node.target).view


def layout_error(node: Node) -> UnsupportedError:
    made_at = source.locate_stack_trace(node.meta.get("stack_trace"))
    return UnsupportedError(
        "the program depends on the memory layout of a tensor that a branch or loop has returned "
        "or carries: in eager it may differ between branches or steps"
        + (f"\n  it comes from {made_at}" if made_at is not None else ""),
        where=source.locate_user_line(),
        fix="give it one layout: x.contiguous(), before a loop and of what branches return",
    )


def guard_stride_order(node: Node) -> None:
    """Of dims of one stride operators put the longer one first, which is then written down."""
    val = get_val(node)
    if not isinstance(val, AbstractTensor) or val._abstract._strides is None:
        return
    dims = zip(val._abstract.strides, val._abstract.sizes, strict=True)
    for (step, size), (other_step, other) in itertools.combinations(dims, 2):
        if step != 0 and step == other_step and not expect_condition(ge(size, other)):
            expect_condition(lt(size, other))


def settle_format(node: Node) -> None:
    """Refuse strides that are contiguous at the sizes of the example, and not in general."""
    val = get_val(node)
    if not isinstance(val, AbstractTensor) or val._abstract.is_contiguous:
        return
    if not any(type(n) is Expr for n in (*val._abstract.sizes, *val._abstract.strides)):
        return  # of fixed sizes the shape rules decide it
    if lies_in_order(val._abstract):
        raise UnsupportedError(
            "the program depends on the memory layout of a tensor, which is ambiguous at the "
            "sizes of the example",
            where=source.locate_stack_trace(node.meta.get("stack_trace")),
            fix="choose example inputs with sizes other than 0 and 1",
        )
