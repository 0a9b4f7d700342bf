"""Hostile files through everything that takes a program; `tests.program.hostile` runs more."""

from __future__ import annotations

import builtins
import io
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.errors import ExportError
from tests.program import hostile
from tests.program.mutations import packed, put, unpacked
from tests.program.saved import saved

x = torch.randn(3, 4)


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


@pytest.fixture
def _canary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Code of a file would call `canary`, had it been run."""
    calls: list[int] = []
    monkeypatch.setattr(builtins, "canary", lambda: calls.append(1), raising=False)
    yield
    assert not calls


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


@pytest.mark.usefixtures("_canary")
@pytest.mark.parametrize("again", [False, True], ids=["loaded", "exported again"])
def test_paths_of_modules_are_never_code(again: bool) -> None:
    document, tensors = unpacked(saved(gp.export(Model(), (x,))))
    for part in ("module_stacks", "module_calls"):
        path = 'forward") and canary() or getattr(self, "forward'
        document[part] = put(document[part], "inner", path)
    program = gp.load(io.BytesIO(packed(document, tensors)))
    if again:
        program = gp.export(program.module(), (x,))
    torch.testing.assert_close(gp.unflatten(program)(x), program.module()(x))


@pytest.mark.usefixtures("_canary")
@pytest.mark.parametrize("key", ['x"); canary() #', "x'); canary() #", "x'] or canary() #"])
def test_keys_of_inputs_are_never_code(key: str) -> None:
    ep = gp.export(lambda given: given["key"] + 1, ({"key": x},))
    document, tensors = unpacked(saved(ep))
    program = gp.load(io.BytesIO(packed(put(document, "key", key), tensors)))
    torch.testing.assert_close(program.module()({key: x}), x + 1)
    with pytest.raises(ExportError, match="into Python code"):
        program.to_torch()


@pytest.mark.parametrize(
    ("seed", "what"),
    [(7301004830, "a probability that decompositions ask about"), (7301014605, "an item of one")],
)
def test_a_file_that_once_raised_something_else(seed: int, what: str) -> None:
    hostile.warm_up()
    assert hostile.try_file(hostile.hostile_file(seed)[1], ("decompose", "onnx")).loaded


@pytest.mark.slow
def test_many_hostile_files() -> None:
    found = hostile.run(1500, seed=random.Random("hostile").randrange(1000))
    assert not found["failures"], [text for _, text, _ in found["failures"]][:5]
    assert found["counts"]["loaded"] > 300
