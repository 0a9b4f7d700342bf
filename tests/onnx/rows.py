"""Rows of operators (see `tests.ops.rows`) through ONNX Runtime, at fixed and at dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.onnx.helpers import check_onnx
from tests.ops.rows import EXAMPLE, Row, program


def check_static(row: Row, **options: Any) -> None:
    check_onnx(program(row.fn), row.inputs(EXAMPLE), **options)


def check_dynamic(row: Row, **options: Any) -> None:
    """With a dim for every letter: at the example, at larger sizes, at 1 and 0."""
    if not row.letters():
        return
    check_onnx(
        program(row.fn),
        row.inputs(EXAMPLE),
        dynamic_shapes=(row.dynamic_shapes(),),
        others=[row.inputs(sizes) for sizes in row.others()],
        **options,
    )


def static_test(rows: Sequence[Any]) -> Callable[[Row], None]:
    """A test of each row at fixed sizes: `test_static = static_test(ROWS)`."""

    @pytest.mark.parametrize("case", rows)
    def test(case: Row) -> None:
        check_static(case)

    return test


def dynamic_test(rows: Sequence[Any]) -> Callable[[Row], None]:
    """A test of each row at dynamic sizes: `test_dynamic = dynamic_test(ROWS)`."""

    @pytest.mark.parametrize("case", rows)
    def test(case: Row) -> None:
        check_dynamic(case)

    return test


# Inputs of other dtypes, for `make`


def doubles(size: Sequence[int]) -> torch.Tensor:
    return torch.randn(tuple(size), dtype=torch.float64)


def halves(size: Sequence[int]) -> torch.Tensor:
    return torch.randn(tuple(size)).half()


def brains(size: Sequence[int]) -> torch.Tensor:
    return torch.randn(tuple(size)).bfloat16()
