"""Explains which operators run on ONNX Runtime and which in PyTorch, and dumps models."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from torch.fx import Node

from graphport.compat.torch import OpOverload
from graphport.errors import ExportError, UnsupportedError
from graphport.onnx.lower.lowerer import report_missing
from graphport.onnx.target.targets import ORT
from graphport.process import restore_on_exit
from graphport.program.atomic_write import write_atomically, write_text
from graphport.source import locate_stack_trace

if TYPE_CHECKING:
    from graphport.runtime.backend import OrtBackend
    from graphport.runtime.compiled import CompiledGraph
    from graphport.runtime.regions import Plan

_dump_counts: Counter[str] = Counter()
"""How many this process has written, by prefix."""


def dump_model(prefix: str, model: onnx.ModelProto, text: str) -> None:
    """`prefix0.onnx` and `prefix0.txt`, then `prefix1.onnx`, ..."""
    path = Path(f"{prefix}{_dump_counts[prefix]}.onnx")
    _dump_counts[prefix] += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_model(path, model)
    write_text(path.with_suffix(".txt"), text)


@restore_on_exit
def _write_model(path: Path, model: onnx.ModelProto) -> None:
    with write_atomically(path) as file:
        file.write(model.SerializeToString())


# Explains in words what runs where.

log = logging.getLogger("graphport.ort")


def log_plan(made: CompiledGraph) -> None:
    """Log how a graph was divided; what fell back is worth a line by default."""
    if log.isEnabledFor(logging.INFO):
        for line in describe_plan(made):
            log.info("%s", line)


def describe_plan(made: CompiledGraph) -> list[str]:
    regions = [s for s in made.plan.steps if s.is_region]
    inside = sum(len(s.nodes) for s in regions)
    found = [f"{_pluralise(inside, 'operator')} in {_pluralise(len(regions), 'session')}"]
    return [*found, *(f"  in PyTorch: {line}" for line in describe_fallbacks(made.plan))]


def describe_fallbacks(plan: Plan) -> list[str]:
    """The operators that fell back, each with the reason and the first line that needs it."""
    reasons = Counter((_operator_name(n), why) for n, why in plan.reasons.items())
    places = {
        (_operator_name(n), why): locate_stack_trace(n.meta.get("stack_trace"))
        for n, why in reversed(plan.reasons.items())
    }
    found = []
    for (target, why), count in reasons.most_common():
        where = places[target, why]
        times = f" ({count} times)" if count > 1 else ""
        found.append(f"{target}{times}: {why}{f', at {where}' if where else ''}")
    return found


def fallback_error(plan: Plan, missing: Mapping[OpOverload, list[Node]]) -> ExportError:
    """For a graph that was to run on ONNX Runtime as a whole."""
    if missing:
        return report_missing(missing, ORT.default_opset())
    return UnsupportedError(
        "not all of a graph can run on ONNX Runtime\n"
        + "\n".join(f"  - {line}" for line in describe_fallbacks(plan)),
        fix="OrtBackendOptions(strict=False)",
    )


def _operator_name(node: Node) -> str:
    """The operator; of one that writes to its arguments, not the form it is called in."""
    inner = node.args[0] if node.args else None
    return str(inner if isinstance(inner, OpOverload) else node.target)


def report_backend(backend: OrtBackend) -> str:
    parts = []
    for i, made in enumerate(backend.compiled.values()):
        first, *rest = describe_plan(made)
        parts += [f"graph {i}: {first}", *rest]
    parts += [f"a graph runs in PyTorch: {why}" for why in backend.refused.values()]
    parts.append(f"sessions have run {_pluralise(backend.execution_count, 'time')}")
    return "\n".join(parts)


def _pluralise(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
