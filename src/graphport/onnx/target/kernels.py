"""Element types that ONNX Runtime has CPU kernels for, and wider ones to compute in.

`kernels.json` is what a release of ONNX Runtime says of itself, and which one it is;
`python -m graphport.onnx.target.kernels` writes it anew. An operator that it has no kernels for at
all is one that it expands.

float16 is left to ONNX Runtime, which computes in float32 where it has to: the file stays one for
devices that have half precision.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from graphport.onnx.emit.schemas import DTYPES_BY_NAME, Signature, allowed_dtypes, is_expandable

KERNELS_FILE = Path(__file__).with_name("kernels.json")
_OLDEST_OPSET = 11
"""Versions of operators that no opset we write has are left out of the file."""
_NO_END = (1 << 31) - 1

# What holds every number of a dtype exactly, nearest first.
_WIDER: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bool: (torch.uint8, torch.int32, torch.int64, torch.float32),
    torch.uint8: (torch.int16, torch.int32, torch.int64, torch.float32),
    torch.int8: (torch.int16, torch.int32, torch.int64, torch.float32),
    torch.uint16: (torch.int32, torch.int64, torch.float32),
    torch.int16: (torch.int32, torch.int64, torch.float32),
    torch.uint32: (torch.int64, torch.float64),
    torch.int32: (torch.int64, torch.float64),
    torch.float16: (torch.float32,),
    torch.bfloat16: (torch.float32,),
    torch.float8_e4m3fn: (torch.float32,),
    torch.float8_e4m3fnuz: (torch.float32,),
    torch.float8_e5m2: (torch.float32,),
    torch.float8_e5m2fnuz: (torch.float32,),
    torch.float32: (torch.float64,),
}

Types = dict[str, torch.dtype]


Row = tuple[int, int, dict[str, list[str]]]
"""A kernel: its first and last version, and the names of dtypes by type variable."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of a release, read from a file when they are first asked for."""

    file: Path

    @cached_property
    def _content(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    @property
    def version(self) -> str:
        """The release that they were read from."""
        return self._content["version"]

    @property
    def table(self) -> dict[str, list[Row]]:
        return self._content["kernels"]

    def has_any(self, op: Signature) -> bool:
        return bool(_list_kernels(self, op))

    def has_kernel(self, op: Signature, dtype: torch.dtype) -> bool:
        """Whether there is a kernel that takes this dtype for the first type variable."""
        var = next((t for t in (*op.inputs, *op.outputs) if not t.startswith("tensor(")), None)
        return var is None or _find_wider(self, op, ((var, dtype),)) == {}

    def widen_types(self, op: Signature, types: Types) -> Types | None:
        """The type variables that have to be of another dtype, and which: none if all is well.

        None if there is no kernel for any wider dtype either.
        """
        return _find_wider(self, op, tuple(sorted(types.items(), key=lambda item: item[0])))


@cache
def _list_kernels(
    kernels: Kernels, op: Signature
) -> list[dict[str, frozenset[torch.dtype]]] | None:
    """The kernels of an operator, each as the dtypes that its type variables may be."""
    rows = kernels.table.get(f"{op.domain}::{op.op}" if op.domain else op.op)
    if rows is None:
        return None
    return [
        {var: frozenset(DTYPES_BY_NAME[n] for n in names) for var, names in types.items()}
        for first, last, types in rows
        # One without an end is for its own version only.
        if first == op.since or first < op.since <= last != _NO_END
    ]


@cache
def _find_wider(
    kernels: Kernels, op: Signature, types: tuple[tuple[str, torch.dtype], ...]
) -> Types | None:
    rows = _list_kernels(kernels, op)
    if not rows:
        return {} if rows is None or is_expandable(op) else None
    choices = [[(var, d) for d in (dtype, *_WIDER.get(dtype, ()))] for var, dtype in types]
    given = dict(types)
    for choice in sorted(itertools.product(*map(enumerate, choices)), key=_widening_cost):
        chosen = dict(c for _, c in choice)
        standard = all(d in types for types, d in _pair_constraints(op, chosen))
        if standard and any(_accepts_types(row, chosen) for row in rows):
            return {v: d for v, d in chosen.items() if d is not given[v]}
    return None


def _pair_constraints(
    op: Signature, types: Types
) -> Iterator[tuple[frozenset[torch.dtype], torch.dtype]]:
    """What the standard has for type variables, and what they are."""
    known = allowed_dtypes(op)
    return ((known[var], dtype) for var, dtype in types.items() if var in known)


def _widening_cost(choice: tuple[tuple[int, object], ...]) -> int:
    return sum(i for i, _ in choice)


def _accepts_types(row: dict[str, frozenset[torch.dtype]], types: Types) -> bool:
    return all(
        var not in row or dtype in row[var] or dtype is torch.float16
        for var, dtype in types.items()
    )


def write_table(file: Path = KERNELS_FILE) -> None:
    """Ask the installed ONNX Runtime."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[str, list[Row]] = {}
    for kernel in state.get_all_opkernel_def():
        first, last = kernel.version_range
        wanted = kernel.provider == "CPUExecutionProvider" and kernel.domain in (
            "",
            "com.microsoft",
        )
        if not wanted or (last < _OLDEST_OPSET and not kernel.domain):
            continue
        types = {
            var: sorted(
                n[7:-1] for n in names if n.startswith("tensor(") and n[7:-1] in DTYPES_BY_NAME
            )
            for var, names in sorted(kernel.type_constraints.items())
        }
        name = f"{kernel.domain}::{kernel.op_name}" if kernel.domain else kernel.op_name
        found.setdefault(name, []).append((first, last, types))
    rows = (f'"{op}": {json.dumps(sorted(found[op], key=str))}' for op in sorted(found))
    version = json.dumps(onnxruntime.__version__)
    file.write_text(f'{{"version": {version}, "kernels": {{\n' + ",\n".join(rows) + "\n}}\n")


if __name__ == "__main__":
    write_table()
