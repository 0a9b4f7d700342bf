"""Files as others see them while they are written: killed at any moment, or two at a time.

A child is killed before and after each call that can change a file. Whoever reads then finds what
was there, or what was to be there, whole.
"""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import graphport as gp
from graphport import report
from graphport.program.atomic_write import write_atomically, write_text

x = torch.ones(2, 32)
_CHANGES = {
    "open",
    "write",
    "seek",
    "truncate",
    "flush",
    "close",
    "__exit__",
    "replace",
    "rename",
    "link",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "fsync",
    "flock",
    "utime",
    "chmod",
}
_LEFT = re.compile(r"\.(m\.\w+|m\.onnx\.data)\.[0-9a-f]{16}\.tmp|m\.onnx\.[0-9a-f]{16}\.data")


def _filled(value: float) -> nn.Linear:
    model = nn.Linear(32, 32)
    for p in model.parameters():
        nn.init.constant_(p, value)
    return model


@functools.cache
def _program(value: float) -> gp.ExportedProgram:
    return gp.export(_filled(value), (x,))


@functools.cache
def _onnx_program(value: float) -> gp.onnx.ONNXProgram:
    return gp.onnx.export(_program(value))


def _save_onnx(value: float, path: Path, external: bool) -> None:
    _onnx_program(value).save(path, external_data=external)


def _weights(path: Path) -> float:
    """The number that all weights of a model are."""
    model = onnx.load(path)
    arrays = [onnx.numpy_helper.to_array(i) for i in model.graph.initializer]
    values = {float(v) for array in arrays for v in array.flat}
    assert len(values) == 1, values
    return values.pop()


def _loaded(path: Path) -> float:
    values = {float(v) for t in gp.load(path).state_dict.values() for v in t.detach().flatten()}
    assert len(values) == 1, values
    return values.pop()


def _report(value: float, path: Path) -> None:
    report.write(_onnx_program(value), path, {"capture": value})


def _reported(path: Path) -> float:
    """Which of the reports a file is."""
    text = path.read_text()
    found = [v for v in (1.0, 2.0, 3.0) if text == _text_of(v, path.parent)]
    return found[0]


@functools.cache
def _text_of(value: float, folder: Path) -> str:
    path = folder.parent / "m.html"
    _report(value, path)
    return path.read_text()


Save = Callable[[float, Path], None]
KINDS: dict[str, tuple[str, Save, Save, Callable[[Path], float]]] = {
    "gpx": (
        "m.gpx",
        lambda v, p: gp.save(_program(v), p),
        lambda v, p: gp.save(_program(v), p),
        _loaded,
    ),
    "inline": (
        "m.onnx",
        lambda v, p: _save_onnx(v, p, False),
        lambda v, p: _save_onnx(v, p, False),
        _weights,
    ),
    "beside": (
        "m.onnx",
        lambda v, p: _save_onnx(v, p, True),
        lambda v, p: _save_onnx(v, p, True),
        _weights,
    ),
    "beside, then inline": (
        "m.onnx",
        lambda v, p: _save_onnx(v, p, True),
        lambda v, p: _save_onnx(v, p, False),
        _weights,
    ),
    "inline, then beside": (
        "m.onnx",
        lambda v, p: _save_onnx(v, p, False),
        lambda v, p: _save_onnx(v, p, True),
        _weights,
    ),
    "report": ("m.html", _report, _report, _reported),
}


def _wait_a_while(folder: Path) -> None:
    for data in folder.glob("*.data"):
        os.utime(data, (0, 0))


def _forked(work: Callable[[], Any]) -> int:
    """The signal that has ended a child that does something; 0 if it came to its end."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _counted(work: Callable[[], Any], stop: int = 0) -> int:
    """How many moments around changes of files there are; killed at one of them."""
    passed = 0

    def watch(frame: Any, event: str, function: Any) -> None:
        nonlocal passed
        if event in ("c_call", "c_return") and function.__name__ in _CHANGES:
            passed += 1
            if passed == stop:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return passed


def _kill_at_every_moment(kind: str, folder: Path, sample: int | None) -> None:
    name, first, then, read = KINDS[kind]
    trial = folder / "trial"
    trial.mkdir()
    for _ in range(2):  # what is loaded with the first
        first(1.0, trial / name)
        moments = _counted(lambda: then(2.0, trial / name))
    assert moments > 10
    chosen = range(1, moments + 1)
    if sample is not None and len(chosen) > sample:
        chosen = sorted(random.Random(kind).sample(chosen, sample))
    seen = set()
    for moment in chosen:
        home = folder / str(moment)
        home.mkdir()
        first(1.0, home / name)
        before = set(os.listdir(home))
        ended = _forked(lambda n=moment, p=home / name: _counted(lambda: then(2.0, p), n))
        assert ended == signal.SIGKILL, moment
        seen.add(read(home / name))
        assert all(map(_LEFT.fullmatch, set(os.listdir(home)) - before)), moment
        then(3.0, home / name)
        _wait_a_while(home)
        then(3.0, home / name)
        assert read(home / name) == 3.0
        assert len(os.listdir(home)) == (2 if kind.endswith("beside") else 1), moment
    assert seen == {1.0, 2.0} or sample is not None


@pytest.mark.parametrize("kind", KINDS)
def test_killed_while_writing(kind: str, tmp_path: Path) -> None:
    _kill_at_every_moment(kind, tmp_path, sample=10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_moment_of_writing(kind: str, tmp_path: Path) -> None:
    _kill_at_every_moment(kind, tmp_path, sample=None)


# Readers and writers at once


def test_weights_of_the_model_that_was_replaced_stay_for_its_readers(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save_onnx(1.0, path, True)
    old = onnx.load(path, load_external_data=False)
    _save_onnx(2.0, path, True)
    onnx.load_external_data_for_model(old, str(tmp_path))
    assert onnx.numpy_helper.to_array(old.graph.initializer[0]).flat[0] == 1.0
    assert len(list(tmp_path.glob("*.data"))) == 2
    _wait_a_while(tmp_path)
    _save_onnx(2.0, path, True)
    assert len(list(tmp_path.glob("*.data"))) == 1


def test_weights_that_another_model_refers_to_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save_onnx(1.0, path, True)
    path.rename(tmp_path / "kept.onnx")
    for value in (2.0, 3.0, 4.0):
        _wait_a_while(tmp_path)
        _save_onnx(value, path, value < 4)
    assert (_weights(tmp_path / "kept.onnx"), _weights(path)) == (1.0, 4.0)


def test_what_was_not_written_here_is_not_removed(tmp_path: Path) -> None:
    names = ("m.onnx.data", ".m.onnx.tmp", "m.onnx.0123456789abcdeg.data", "n.onnx.data")
    for name in names:
        (tmp_path / name).write_text("mine")
    for value in (1.0, 2.0, 3.0):
        _save_onnx(value, tmp_path / "m.onnx", True)
        _wait_a_while(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        _save_onnx(1.0, tmp_path / folder / "m.onnx", True)
    a, b = ({p.name: p.read_bytes() for p in (tmp_path / f).iterdir()} for f in ("a", "b"))
    assert a == b


def test_what_is_being_written_is_not_taken_for_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    with write_atomically(path) as slow:
        slow.write(b"slow")
        write_text(path, "quick")
        assert path.read_text() == "quick"
    assert path.read_text() == "slow" and os.listdir(tmp_path) == ["m.txt"]


def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    """Of whichever model is there, all weights are its own."""
    path = tmp_path / "m.onnx"
    programs = {v: gp.onnx.export(_program(v)) for v in (1.0, 2.0)}
    programs[1.0].save(path, external_data=True)
    children = []
    for program in programs.values():
        child = os.fork()
        if not child:
            try:
                for _ in range(60):
                    program.save(path, external_data=True)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    seen = set()
    while children:
        seen.add(_weights(path))
        done, status = os.waitpid(children[0], os.WNOHANG)
        if done:
            assert status == 0
            children.pop(0)
    assert _weights(path) in programs and seen <= set(programs)
    assert not [n for n in os.listdir(tmp_path) if n.endswith(".tmp")]
