"""Random whole programs on every route: some that are always the same, and new ones."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.checks import Tally
from tests.fuzz.run import Options, run, run_one, summary

SAMPLE, TOGETHER = 120, 20


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("first", range(0, SAMPLE, TOGETHER))
def test_a_sample(first: int) -> None:
    total = Tally()
    for number in range(first, first + TOGETHER):
        total.add(run_one(Options(seed=17), number))
    _require_agreement(total)
    assert total.checks["captured"] > 2 * TOGETHER
    assert total.checks["onnx"] > TOGETHER


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_new_programs(part: int) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"python -m tests.fuzz --seed {seed}")
    _require_agreement(run(Options(programs=500, seed=seed, processes=1, compile_share=0.02)))


def _require_agreement(total: Tally) -> None:
    told = [f"{f.program} {f.route} {f.kind} {f.at}\n{f.detail}" for f in total.failures]
    assert not told, "\n".join([*told, summary(total)])
