"""Reads operator schemas of the ONNX standard, and maps element types to torch dtypes."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx.defs
import torch

ONNX_OF: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.uint16: 4,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.uint32: 12,
    torch.uint64: 13,
    torch.bfloat16: 16,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
}
TORCH_OF = {number: dtype for dtype, number in ONNX_OF.items()}

BITS: dict[torch.dtype, int] = {torch.int2: 2, torch.uint2: 2, torch.int4: 4, torch.uint4: 4}
"""Types of weights of which a byte of a file holds several; torch gives each element a byte."""
ELEMENT_TYPES: dict[torch.dtype, int] = {
    **ONNX_OF,
    torch.uint4: 21,
    torch.int4: 22,
    torch.uint2: 25,
    torch.int2: 26,
}

# As they are written in schemas: `tensor(float)`.
DTYPES_BY_NAME: dict[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bool": torch.bool,
    "float8e4m3fn": torch.float8_e4m3fn,
    "float8e4m3fnuz": torch.float8_e4m3fnuz,
    "float8e5m2": torch.float8_e5m2,
    "float8e5m2fnuz": torch.float8_e5m2fnuz,
    **{
        f"{sign}int{bits}": getattr(torch, f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (2, 4, 8, 16, 32, 64)
    },
}


def parse_dtype(text: str) -> torch.dtype | None:
    """The dtype of a type as a schema writes it, `tensor(int64)`; None if it is something else."""
    return DTYPES_BY_NAME.get(text[7:-1]) if text.startswith("tensor(") else None


# Operator schemas, as far as building a node needs them.
#
# Read from the schemas of the `onnx` package once per operator and opset: how inputs are typed,
# what the type of an output follows from, which version of the operator applies.


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
def find_signature(op: str, opset: int) -> Signature | None:
    """The operator at an opset of the standard; None if there is none of this name."""
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    # A variable that may be one type only is that type: the result of Equal.
    single = {
        c.type_param_str: c.allowed_type_strs[0]
        for c in schema.type_constraints
        if len(c.allowed_type_strs) == 1
    }
    inputs, outputs = (
        [single.get(p.type_str, p.type_str) for p in formal]
        for formal in (schema.inputs, schema.outputs)
    )
    return Signature(
        op,
        "",
        inputs,
        outputs,
        set(schema.attributes),
        bool(schema.inputs) and schema.inputs[-1].option == many,
        schema.since_version,
    )


@cache
def allowed_dtypes(op: Signature) -> dict[str, frozenset[torch.dtype]]:
    """The dtypes that the standard has for the type variables of an operator."""
    if op.domain:
        return {}
    schema = onnx.defs.get_schema(op.op, op.since, op.domain)
    return {
        c.type_param_str: frozenset(
            d for d in map(parse_dtype, c.allowed_type_strs) if d is not None
        )
        for c in schema.type_constraints
    }


def is_expandable(op: Signature) -> bool:
    """Whether the standard says the operator in others, which a runtime may put instead."""
    schema: Any = onnx.defs.get_schema(op.op, op.since, op.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


@cache
def fixed_dtype(type_str: str) -> torch.dtype | None:
    """The dtype that a formal type stands for by itself, if it is no variable."""
    return parse_dtype(type_str)
