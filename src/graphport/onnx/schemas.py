"""What the ONNX standard says of an operator, as far as building a node needs it.

Read from the schemas of the `onnx` package once per operator and opset: how inputs are typed, what
the type of an output follows from, which version of the operator applies.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx.defs
import torch

from graphport.onnx.types import named

MICROSOFT = "com.microsoft"


class Signature:
    """Inputs and outputs by type variable."""

    __slots__ = ("attributes", "domain", "inputs", "op", "outputs", "since", "variadic")

    def __init__(
        self,
        op: str,
        domain: str,
        inputs: list[str],
        outputs: list[str],
        attributes: set[str] | None,
        variadic: bool,
        since: int,
    ) -> None:
        self.op = op
        self.domain = domain
        self.inputs = inputs
        self.outputs = outputs
        self.attributes = attributes
        """None if they are not known."""
        self.variadic = variadic
        """Whether the last input may be repeated."""
        self.since = since

    def input_type(self, i: int) -> str:
        return self.inputs[min(i, len(self.inputs) - 1)]


@cache
def signature(op: str, opset: int) -> Signature | None:
    """The operator at an opset of the standard; None if there is none of this name."""
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    # A variable that may be one type only is that type: the result of Equal.
    single = {c.type_param_str: c.allowed_type_strs[0] for c in schema.type_constraints
              if len(c.allowed_type_strs) == 1}  # fmt: skip
    inputs, outputs = ([single.get(p.type_str, p.type_str) for p in formal]
                       for formal in (schema.inputs, schema.outputs))  # fmt: skip
    return Signature(
        op, "", inputs, outputs,
        set(schema.attributes), bool(schema.inputs) and schema.inputs[-1].option == many,
        schema.since_version,
    )  # fmt: skip


@cache
def allowed(op: Signature) -> dict[str, frozenset[torch.dtype]]:
    """The dtypes that the standard has for the type variables of an operator."""
    if op.domain:
        return {}
    schema = onnx.defs.get_schema(op.op, op.since, op.domain)
    return {
        c.type_param_str: frozenset(d for d in map(named, c.allowed_type_strs) if d is not None)
        for c in schema.type_constraints
    }


def expands(op: Signature) -> bool:
    """Whether the standard says the operator in others, which a runtime may put instead."""
    schema: Any = onnx.defs.get_schema(op.op, op.since, op.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


# Operators of ONNX Runtime that are emitted with target="ort"; their schemas are not in `onnx`.
_OF_RUNTIME: dict[str, tuple[list[str], list[str]]] = {
    "FusedMatMul": (["T", "T"], ["T"]),
    "FusedGemm": (["T", "T", "T"], ["T"]),
    "FastGelu": (["T", "T"], ["T"]),
    "QuickGelu": (["T"], ["T"]),
    "BiasGelu": (["T", "T"], ["T"]),
    "MultiHeadAttention": (
        ["T", "T", "T", "T", "tensor(int32)", "T", "T", "T", "tensor(int32)"], ["T", "T", "T"],
    ),
    "GroupQueryAttention": (
        ["T", "T", "T", "T", "T", "tensor(int32)", "tensor(int32)", "T", "T"], ["T", "T", "T"],
    ),
}  # fmt: skip


@cache
def runtime_signature(op: str) -> Signature | None:
    found = _OF_RUNTIME.get(op)
    return None if found is None else Signature(op, MICROSOFT, *found, None, False, 1)


@cache
def fixed(type_str: str) -> torch.dtype | None:
    """The dtype that a formal type stands for by itself, if it is no variable."""
    return named(type_str)
