"""What runs where, in words."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from graphport.source import of_trace

if TYPE_CHECKING:
    from graphport.ort.backend import OrtBackend
    from graphport.ort.compiled import Compiled

log = logging.getLogger("graphport.ort")


def tell(made: Compiled) -> None:
    """Log how a graph was divided; what fell back is worth a line by default."""
    if log.isEnabledFor(logging.INFO):
        for line in lines(made):
            log.info("%s", line)


def lines(made: Compiled) -> list[str]:
    regions = [s for s in made.plan.steps if s.is_region]
    inside = sum(len(s.nodes) for s in regions)
    found = [f"{inside} operators in {len(regions)} session{'s' * (len(regions) != 1)}"]
    reasons = Counter((str(n.target), why) for n, why in made.plan.reasons.items())
    places = {
        (str(n.target), why): of_trace(n.meta.get("stack_trace"))
        for n, why in made.plan.reasons.items()
    }
    for (target, why), count in reasons.most_common():
        where = places[target, why]
        times = f" ({count} times)" if count > 1 else ""
        found.append(f"  in PyTorch: {target}{times}: {why}{f', at {where}' if where else ''}")
    return found


def report(backend: OrtBackend) -> str:
    parts = []
    for i, made in enumerate(backend.compiled.values()):
        first, *rest = lines(made)
        parts += [f"graph {i}: {first}", *rest]
    parts += [f"a graph runs in PyTorch: {why}" for why in backend.refused.values()]
    parts.append(f"sessions have run {backend.execution_count} times")
    return "\n".join(parts)
