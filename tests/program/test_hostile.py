"""Hostile files through everything that takes a program; `tests.program.hostile` runs more."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.program import hostile
from tests.program.mutations import packed, unpacked


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    hostile.warm_up()


def test_good_files_pass_everything() -> None:
    for data in hostile.programs().values():
        assert hostile.try_file(data, (*hostile.QUICK, "inspect"), seconds=20).loaded


@pytest.mark.parametrize("part", range(4))
def test_hostile_files(part: int) -> None:
    """Drawn anew each day would be no test: these are the first of a sequence."""
    for seed in range(part * 60, part * 60 + 60):
        how, data = hostile.hostile_file(seed)
        try:
            hostile.try_file(data, hostile.chosen(seed, everything=False)[3:], seconds=20)
        except BaseException as error:
            error.add_note(f"file {seed}: {how}")
            raise


def every_text(document: Any) -> list[tuple[Any, Any]]:
    found = hostile.places(document)
    return [(container, key) for container, key in found if isinstance(container[key], str)]


@pytest.mark.parametrize("name", ["kept", "branches", "containers"])
def test_code_in_every_text(name: str) -> None:
    """One payload after the other in each field that holds a text."""
    rng = random.Random(name)
    document, tensors = unpacked(hostile.programs()[name])
    count = len(every_text(document))
    for i in range(0, count, 3):
        changed = hostile.fresh(document)
        container, key = every_text(changed)[i]
        container[key] = rng.choice(hostile.PAYLOADS[:32])
        hostile.try_file(packed(changed, tensors), ("print", "module", "unflatten"), seconds=20)


@pytest.mark.slow
def test_many_hostile_files() -> None:
    found = hostile.run(1500, seed=random.Random("hostile").randrange(1000))
    assert not found["failures"], [text for _, text, _ in found["failures"]][:5]
    assert found["counts"]["loaded"] > 300
