"""Constants computed at export, with torch itself.

An operator whose operands are all constants of the program is run, unless it draws random numbers
or its result is large, and a lowering makes a smaller file. Parameters are left as they are: a file
has them under their own names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from graphport.errors import UnsupportedError
from graphport.onnx.ir import Complex, Value
from graphport.onnx.registry import is_known
from graphport.ops.abstract import Abstract
from graphport.ops.sizes import numel
from graphport.ops.tensor import AbstractTensor
from graphport.program.bounds import check_call
from graphport.symbolic import Expr

if TYPE_CHECKING:
    from graphport.onnx.lower import Lowerer

_MOST = 1 << 16
"""Elements of a result that is kept in the file instead of being computed."""


def folded(lowerer: Lowerer, node: Node) -> Any:
    """The constant that a node is, or None."""
    result = lowerer.b.result
    if not isinstance(result, Abstract) or not _is_fixed(result):
        return None
    target: Any = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if numel(result.sizes) > _MOST and (is_known(target) or not is_made_of_numbers(node)):
        return None
    try:
        args = _concrete(lowerer.values(node.args), lowerer.weights)
        kwargs = {k: _concrete(v, lowerer.weights) for k, v in lowerer.values(node.kwargs).items()}
    except _NotConstant:
        return None
    if isinstance(kwargs.get("device"), torch.device):
        kwargs["device"] = torch.device("cpu")
    check_call(target, args, kwargs)
    try:
        with torch.no_grad():
            made = target(*args, **kwargs)
    except RuntimeError as error:  # of dtypes that torch can hold, and not compute with
        raise UnsupportedError(f"torch cannot compute {target} of constants: {error}") from error
    if is_uninitialised(target):
        # Whatever lies in memory would go into the file, and be other bytes each time.
        made.zero_()
    if made.is_complex():
        made = made.resolve_conj()
        return Complex(lowerer.b.constant(made.real), lowerer.b.constant(made.imag))
    return lowerer.b.constant(made)


def is_made_of_numbers(node: Node) -> bool:
    """Whether a tensor is made from fixed numbers alone: it needs no lowering."""
    op, val = node.target, node.meta.get("val")
    return (
        isinstance(op, OpOverload) and op.namespace == "aten"
        and torch.Tag.nondeterministic_seeded not in op.tags and not node.all_input_nodes
        and isinstance(val, AbstractTensor) and _is_fixed(val._abstract)
    )  # fmt: skip


def _is_fixed(result: Abstract) -> bool:
    return all(type(s) is int for s in result.sizes)


class _NotConstant(Exception):
    pass


def _concrete(x: Any, weights: set[Value]) -> Any:
    if isinstance(x, Value):
        if x.tensor is None or x in weights:
            raise _NotConstant
        return x.tensor
    if isinstance(x, Complex):
        return torch.complex(_concrete(x.re, weights), _concrete(x.im, weights))
    if isinstance(x, Expr):
        raise _NotConstant
    if isinstance(x, (list, tuple)):
        return [_concrete(y, weights) for y in x]
    return x


def is_uninitialised(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    name = schema.name.partition("::")[2] if schema is not None else ""
    return name.startswith(("empty", "new_empty"))
