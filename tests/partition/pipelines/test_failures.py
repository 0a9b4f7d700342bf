"""A stage that fails ends the run with an error that names it, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from operator import gt
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch

import graphport as gp
from graphport.errors import PipelineError
from tests.partition.pipelines import failing
from tests.partition.pipelines.children import children, is_gone, none_left

ROOT = Path(__file__).resolve().parents[3]
FINE = torch.zeros(4, 3)
BAD = torch.tensor([[0.0] * 3] * 3 + [[1.0] * 3])  # the last of four micro-batches


# What a process has sent last may not have arrived.
DIED = r"in micro-batch (4 of 4|[123] of 4 or later)"


def first(error: PipelineError) -> str:
    return str(error).splitlines()[0]


def slow(*row: Any) -> Any:
    """Each row starts processes, for seconds."""
    return pytest.param(*row, marks=pytest.mark.slow)


def launched(how: str, **options: Any) -> gp.partition.Pipeline:
    return gp.partition.launch(
        failing.program(how),
        2,
        stages=["second"],
        micro_batches=4,
        imports=["tests.partition.pipelines.failing"],
        **options,
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "raise",
            "raised ValueError: a number that this stage does not like in micro-batch 4 of 4",
        ),
        ("kill", rf"was killed by SIGKILL {DIED}"),
        slow("hang", "did not finish within 2 s in micro-batch 4 of 4"),
        slow("exit", rf"ended with exit code 7 {DIED}"),
        slow("stop", "did not finish within 2 s in micro-batch [1-4] of 4"),
    ],
)
def test_a_stage_that_fails_is_named(how: str, said: str) -> None:
    with launched(how) as pipe:
        ids = children()
        assert pipe.run(torch.randn(4, 3), FINE).shape == (4, 3)
        pipe.timeout = 2
        began = monotonic()
        with pytest.raises(PipelineError) as caught:
            pipe.run(torch.randn(4, 3), BAD)
        assert monotonic() - began < 12
        assert none_left()
        error = caught.value
        assert re.match(rf"GP521 stage 1 of 2 \(rank 2, process {ids[1]}\) {said}$", first(error))
        assert "second" in str(error) and "third" in str(error)
        assert (error.stage, error.rank, error.modules) == (1, 2, "second, third")
        if how == "raise":
            assert "failing.py" in str(error) and error.trace[-1].startswith("ValueError")
        with pytest.raises(PipelineError, match="a run has ended with PipelineError"):
            pipe.run(torch.randn(4, 3), FINE)


@pytest.mark.slow
def test_a_process_that_dies_between_runs_is_named() -> None:
    with launched("raise") as pipe:
        first = children()[0]
        os.kill(first, signal.SIGKILL)
        with pytest.raises(PipelineError, match=r"stage 0 of 2 .* was killed by SIGKILL"):
            pipe.run(torch.randn(4, 3), FINE)
    assert none_left()


@pytest.mark.slow
def test_a_stage_that_cannot_start_is_named() -> None:
    """The operator is not known in the processes: nothing imports it there."""
    with pytest.raises(PipelineError, match=r"stage 1 of 2 .* could not start: Serial") as caught:
        gp.partition.launch(failing.program("raise"), 2, stages=["second"])
    assert "graphport_test::fail" in str(caught.value)
    assert none_left()


@pytest.mark.slow
def test_an_interrupt_ends_all() -> None:
    # A process that is started in the background of a script ignores interrupts, and so do its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _interrupt_a_run()
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt_a_run() -> None:
    with launched("hang") as pipe:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pipe.run(torch.randn(4, 3), BAD)
        assert none_left()


def listening(pids: Iterable[int]) -> list[str]:
    """Sockets of processes that anybody else could connect to, as the kernel lists them."""
    own = set()
    for pid in pids:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                own.add(os.readlink(entry.path))
    found = []
    for table, column, is_open in (
        ("tcp", 9, lambda row: row[3] == "0A"),
        ("tcp6", 9, lambda row: row[3] == "0A"),
        ("udp", 9, lambda row: True),
        ("unix", 6, lambda row: len(row) > 7),  # it has a name
    ):
        path = Path(f"/proc/net/{table}")
        rows = [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []
        found += [
            f"{table} {r[column]}" for r in rows if f"socket:[{r[column]}]" in own and is_open(r)
        ]
    return found


def test_nobody_else_can_connect_and_nothing_lies_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No address, no store, no file: what the processes share they have inherited."""
    others = set(listening([os.getpid()]))  # of a process group that another test has made
    with socket.create_server(("127.0.0.1", 0)):
        assert len(set(listening([os.getpid()])) - others) == 1  # that is how one would be seen
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with launched("raise") as pipe:
        assert set(listening([os.getpid(), *children()])) <= others
        assert pipe.run(torch.randn(4, 3), FINE).shape == (4, 3)
        assert set(listening([os.getpid(), *children()])) <= others
        assert not list(tmp_path.iterdir())
    assert none_left() and not list(tmp_path.iterdir())


def test_no_thread_and_no_file_stays_open() -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    with launched("raise"):
        pass
    before = held()
    with launched("raise") as pipe:
        pipe.run(torch.randn(4, 3), FINE)
    until = monotonic() + 5
    while any(map(gt, held(), before)) and monotonic() < until:
        sleep(0.05)
    assert not any(map(gt, held(), before))  # those of the first one may have ended since


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(8))
def test_a_parent_that_is_killed_at_any_moment_leaves_nothing(moment: int, tmp_path: Path) -> None:
    """While it writes the stages, while they start, while they run."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.replace("pipe =", "print('go', flush=True); pipe =")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"go\n"
        sleep(moment * moment * 0.05)
        ids = children(parent=parent.pid)
    finally:
        parent.kill()
        parent.communicate()
    assert all(is_gone(pid) for pid in ids)
    assert not list(tmp_path.iterdir())


PARENT = """
import signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
from tests.partition.pipelines import failing
from tests.partition.pipelines.test_failures import BAD, launched
pipe = launched("hang")
print("ready", flush=True)
pipe.run(torch.randn(4, 3), BAD)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_parent_is_the_end_of_all(number: int, tmp_path: Path) -> None:
    """Also if it is killed in the middle of a run, with a stage that hangs."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        sleep(0.5)
        ids = children(parent=parent.pid)
        assert len(ids) == 2
        parent.send_signal(number)
        assert all(is_gone(pid) for pid in ids)
        parent.wait(20)
    finally:
        parent.kill()
        parent.communicate()
    assert not list(tmp_path.iterdir())
