"""What runs where, in words."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload
from torch.fx import Node

from graphport.errors import ExportError, UnsupportedError
from graphport.onnx import opsets
from graphport.onnx.lower import report as report_missing
from graphport.source import of_trace

if TYPE_CHECKING:
    from graphport.ort.backend import OrtBackend
    from graphport.ort.compiled import Compiled
    from graphport.ort.planning import Plan

log = logging.getLogger("graphport.ort")


def tell(made: Compiled) -> None:
    """Log how a graph was divided; what fell back is worth a line by default."""
    if log.isEnabledFor(logging.INFO):
        for line in lines(made):
            log.info("%s", line)


def lines(made: Compiled) -> list[str]:
    regions = [s for s in made.plan.steps if s.is_region]
    inside = sum(len(s.nodes) for s in regions)
    found = [f"{_many(inside, 'operator')} in {_many(len(regions), 'session')}"]
    return [*found, *(f"  in PyTorch: {line}" for line in in_torch(made.plan))]


def in_torch(plan: Plan) -> list[str]:
    """The operators that fell back, each with the reason and the first line that needs it."""
    reasons = Counter((_name(n), why) for n, why in plan.reasons.items())
    places = {
        (_name(n), why): of_trace(n.meta.get("stack_trace"))
        for n, why in reversed(plan.reasons.items())
    }
    found = []
    for (target, why), count in reasons.most_common():
        where = places[target, why]
        times = f" ({count} times)" if count > 1 else ""
        found.append(f"{target}{times}: {why}{f', at {where}' if where else ''}")
    return found


def refusal(plan: Plan, missing: Mapping[Any, list[Node]]) -> ExportError:
    """For a graph that was to run on ONNX Runtime as a whole."""
    if missing:
        return report_missing(missing, opsets.default())
    return UnsupportedError(
        "not all of a graph can run on ONNX Runtime\n"
        + "\n".join(f"  - {line}" for line in in_torch(plan)),
        fix="OrtBackendOptions(strict=False)",
    )


def _name(node: Node) -> str:
    """The operator; of one that writes to its arguments, not the form it is called in."""
    inner = node.args[0] if node.args else None
    return str(inner if isinstance(inner, OpOverload) else node.target)


def report(backend: OrtBackend) -> str:
    parts = []
    for i, made in enumerate(backend.compiled.values()):
        first, *rest = lines(made)
        parts += [f"graph {i}: {first}", *rest]
    parts += [f"a graph runs in PyTorch: {why}" for why in backend.refused.values()]
    parts.append(f"sessions have run {_many(backend.execution_count, 'time')}")
    return "\n".join(parts)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
