"""Rows of operators (see `tests.ops.rows`) through ONNX Runtime, at fixed and at dynamic sizes."""

from __future__ import annotations

from typing import Any

from tests.onnx.helpers import check_onnx
from tests.ops.rows import EXAMPLE, Row, program


def check_static(row: Row, **options: Any) -> None:
    check_onnx(program(row.fn), row.inputs(EXAMPLE), **options)


def check_dynamic(row: Row, **options: Any) -> None:
    """With a dim for every letter: at the example, at larger sizes, at 1 and 0."""
    if not row.letters():
        return
    check_onnx(
        program(row.fn), row.inputs(EXAMPLE), dynamic_shapes=(row.dynamic_shapes(),),
        others=[row.inputs(sizes) for sizes in row.others()], **options,
    )  # fmt: skip
