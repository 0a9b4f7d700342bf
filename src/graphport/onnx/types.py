"""Element types: torch's, and their numbers in ONNX."""

from __future__ import annotations

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

# As they are written in schemas: `tensor(float)`.
NAMES: dict[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bool": torch.bool,
    "float8e4m3fn": torch.float8_e4m3fn,
    "float8e4m3fnuz": torch.float8_e4m3fnuz,
    "float8e5m2": torch.float8_e5m2,
    "float8e5m2fnuz": torch.float8_e5m2fnuz,
    **{f"{sign}int{bits}": getattr(torch, f"{sign}int{bits}")
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def named(text: str) -> torch.dtype | None:
    """The dtype of a type as a schema writes it, `tensor(int64)`; None if it is something else."""
    return NAMES.get(text[7:-1]) if text.startswith("tensor(") else None
