"""Whole models through ONNX Runtime, at fixed and at open sizes. See `zoo`."""

from __future__ import annotations

import pytest

from tests.onnx import zoo

CASES = {case.name: case for case in zoo.cases()}
QUICK = ("distilbert", "opt", "mistral", "mixtral", "bart", "swin", "segformer", "wav2vec2", "unet")


def check(name: str, *, dynamic: bool) -> None:
    result = zoo.outcome(CASES[name], "graphport", dynamic)
    assert result.verdict == "ok", str(result)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", QUICK)
def test_open_sizes(name: str) -> None:
    check(name, dynamic=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [n for n in CASES if n not in QUICK])
def test_more_at_open_sizes(name: str) -> None:
    check(name, dynamic=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CASES)
def test_fixed_sizes(name: str) -> None:
    check(name, dynamic=False)
