"""Every row of the operator tests, taken apart: over core ATen and in training form first."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

import graphport as gp
import tests.ops
from tests.helpers import compare
from tests.ops.rows import EXAMPLE, Row, program

# torch's kernels for them ask for plain sizes, or for data: they stay whole, and a note says so.
WHOLE = {"cdist", "kron", "bilinear", "cov", "corrcoef", "ctc_loss"}
_NUMBERS = ("item", "sym_size", "sym_stride", "sym_numel")
_COMPOSITE = "CompositeImplicitAutograd"
_QUICK = 8
"""Of so many rows, one is in the quick suite."""


def rows() -> list[Any]:
    found = []
    for info in pkgutil.iter_modules(tests.ops.__path__):
        if info.name.startswith("test_") and info.name != "test_decomposed":
            module = importlib.import_module(f"tests.ops.{info.name}")
            for param in getattr(module, "ROWS", ()):
                marks = () if len(found) % _QUICK == 0 else (pytest.mark.slow,)
                name = f"{info.name.removeprefix('test_')}-{param.id}"
                found.append(pytest.param(*param.values, id=name, marks=marks))
    return found


def is_random(ep: gp.ExportedProgram) -> bool:
    tags = [t for n in ep.graph.nodes for t in getattr(n.target, "tags", ())]
    return torch.Tag.nondeterministic_seeded in tags


def composite(ep: gp.ExportedProgram) -> set[str]:
    """Operators of torch's own that could be taken apart further."""
    names = set()
    for node in ep.graph.nodes:
        op = node.target
        if isinstance(op, OpOverload) and op.namespace == "aten" and op._opname not in _NUMBERS:
            if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
                names.add(op._opname)
    return names


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("training", [False, True], ids=["functional", "training"])
@pytest.mark.parametrize("case", rows())
def test_row(case: Row, training: bool) -> None:
    fn, example = program(case.fn), case.inputs(EXAMPLE)
    shapes = (case.dynamic_shapes(),)
    ep = gp.export(fn, example, dynamic_shapes=shapes, training=training)
    core = ep.run_decompositions()
    core.validate()
    left = composite(core)
    assert left <= WHOLE or any("stays whole" in note for note in core.notes), left
    if is_random(core):
        return
    tolerance = max(case.tolerance or 0, 1e-4)
    for sizes in (EXAMPLE, *case.others()):
        compare(core, fn, (case.inputs(sizes), {}), rtol=tolerance, atol=tolerance)
