"""`torch.ops.prims` in files: as the functions of ATen that their kernels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.onnx.rows import dynamic_test
from tests.ops.rows import row

prims = torch.ops.prims

IOTA = {"start": 1, "step": 2, "dtype": torch.int64, "device": "cpu", "requires_grad": False}
FORMS: dict[str, Callable[..., Any]] = {
    "var": lambda a: prims.var(a, [1], 0.0),
    "sum": lambda a: prims.sum(a, [0, 1]),
    "amax": lambda a: prims.amax(a, [1]),
    "broadcast_in_dim": lambda a: prims.broadcast_in_dim(a, [2, a.shape[0], 4], [1, 2]),
    "transpose": lambda a: prims.transpose(a, [1, 0]),
    "collapse": lambda a: prims.collapse(a[None], 0, 1),
    "where": lambda a: prims.where(a > 0, a, -a),
    "rev": lambda a: prims.rev(a, [1]),
    "div": lambda a: prims.div(a, a),
    "iota": lambda a: a * prims.iota(4, **IOTA),
    "ndtri": lambda a: prims.ndtri(a.sigmoid()),
}

pytestmark = pytest.mark.filterwarnings("ignore:var.* degrees of freedom")
test_dynamic = dynamic_test([row(fn, "b 4", name=name) for name, fn in FORMS.items()])
