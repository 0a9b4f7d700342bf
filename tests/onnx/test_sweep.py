"""PyTorch's own operator database through ONNX Runtime. See `sweep`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.onnx import sweep

QUICK = ("add", "clamp", "cumsum", "nn.functional.layer_norm", "index_put", "topk", "var")
OPERATORS = {sweep.name_of(op): op for op in sweep.op_db}


def dtypes_of(op: Any) -> list[torch.dtype]:
    return [d for d in sweep.DTYPES if d in op.supported_dtypes("cpu")]


def check(name: str, exporter: sweep.Exporter, among: tuple[torch.dtype, ...]) -> None:
    """Everything passes, or is a gap that is known; what is exported is never wrong."""
    op = OPERATORS[name]
    outcomes = [sweep.sweep(op, dtype, exporter) for dtype in dtypes_of(op) if dtype in among]
    allowed = {"ok", "no samples", *(["not exported"] if name in sweep.GAPS else ())}
    failed = [str(o) for o in outcomes if o.verdict not in allowed]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", QUICK)
def test_some(name: str) -> None:
    check(name, sweep.graphport, sweep.DTYPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in QUICK])
def test_all(name: str) -> None:
    check(name, sweep.graphport, sweep.DTYPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_all_at_automatic_sizes(name: str) -> None:
    check(name, sweep.graphport_dynamic, (torch.float32,))


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.GAPS)
def test_gaps_are_gaps(name: str) -> None:
    op = OPERATORS[name]
    outcomes = [sweep.sweep(op, dtype) for dtype in dtypes_of(op)]
    assert any(o.verdict == "not exported" for o in outcomes), f"{name} passes: no gap any more"
