"""Results as data, for `--json`."""

from __future__ import annotations

import math
from typing import Any


def verified(report: Any) -> dict[str, Any]:
    """A `VerificationReport`."""
    where = report.first_divergence
    return {
        "ok": report.ok,
        "outputs": [
            {"name": o.name, "ok": o.ok, "max_abs_error": number(o.max_abs_error),
             "max_rel_error": number(o.max_rel_error)}
            for o in report.outputs
        ],
        "sizes_tried": [trial.sizes for trial in report.sizes_tried if trial.compared],
        "sizes_refused": [
            {"sizes": trial.sizes, "outcome": trial.outcome, "reason": trial.reason}
            for trial in report.sizes_refused
        ],
        "weights_differ": [
            {"name": w.name, "max_abs_error": number(w.max_abs_error)} for w in report.weights
        ],
        "first_divergence": None if where is None else {
            "node": str(where.node), "module": where.module, "source": str(where.source),
        },
    }  # fmt: skip


def number(x: float | None) -> float | str | None:
    """JSON has no infinity and no NaN."""
    return x if x is None or math.isfinite(x) else str(x)
