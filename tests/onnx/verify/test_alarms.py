"""Verification raises no alarm for what is right. See `alarms`."""

from __future__ import annotations

import pytest

from tests.onnx import alarms, sweep, zoo

pytestmark = pytest.mark.filterwarnings("ignore::graphport.errors.SizeWarning")

OPERATORS = {sweep.name_of(op): op for op in sweep.op_db}
MODELS = {case.name: case for case in zoo.cases()}
QUICK = (
    "topk",
    "sort",
    "argsort",
    "median",
    "searchsorted",
    "bucketize",
    "gather",
    "scatter",
    "index_put",
    "index_select",
    "masked_select",
    "nn.functional.embedding",
    "nn.functional.embedding_bag",
    "nn.functional.cross_entropy",
    "cholesky_solve",
    "lu_solve",
    "nn.functional.max_pool2d",
    "empty_permuted",
)


def check_operator(name: str, seed: int, limit: int) -> None:
    if name not in alarms.DIFFERENCES:
        found = list(alarms.of_operator(OPERATORS[name], seed, alarms.Tally(), limit))
        assert not found, "\n".join(map(str, found))


def check_model(name: str) -> None:
    if name not in alarms.DIFFERENCES:
        found = list(alarms.of_model(MODELS[name], 1, alarms.Tally()))
        assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", QUICK)
def test_some_operators(name: str) -> None:
    check_operator(name, 1, 2)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["rt_detr", "distilbert", "wav2vec2"])
def test_some_models(name: str) -> None:
    check_model(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in QUICK])
def test_operators(name: str) -> None:
    check_operator(name, 2, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    check_model(name)


@pytest.mark.slow
def test_differences_are_differences() -> None:
    jobs = [("operator", name, seed) for name in alarms.DIFFERENCES for seed in range(2)]
    found = {name for (_, name, _), some, _ in alarms.done(jobs) if some}
    assert found == {*alarms.DIFFERENCES}, "some are none any more"
