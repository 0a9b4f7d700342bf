"""What a model says of its dynamic sizes, which ONNX itself only names: for tools that read it."""

from __future__ import annotations

import json

from graphport.program import ExportedProgram

DIMS = "graphport.dims"
"""The key under which a model has `{"batch": [1, 64], "length": [0, null]}`."""
CONDITIONS = "graphport.conditions"
"""The key under which it has what must hold of sizes beyond their ranges: `["batch <= length"]`."""


def of_sizes(program: ExportedProgram) -> dict[str, str]:
    """Metadata of the model of a program; nothing if every size is fixed."""
    found = {}
    ranges = {str(e): [_limit(r.lower), _limit(r.upper)]
              for e, r in program.range_constraints.items()}  # fmt: skip
    conditions = [str(fact) for fact in program.checks.facts]
    if ranges:
        found[DIMS] = json.dumps(ranges)
    if conditions:
        found[CONDITIONS] = json.dumps(conditions)
    return found


def _limit(x: float) -> int | None:
    return None if abs(x) == float("inf") else int(x)
