"""Launches a process on this machine for each stage of a pipeline, and ends it.

What they are given are open files without names and connected sockets: their programs and weights,
what they are told, what they write. All of it is gone with the processes, whatever ends them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from time import monotonic, sleep
from typing import IO, Any

from graphport.partition.pipelines.sockets import SocketGroup, SocketStore
from graphport.partition.pipelines.stages import FRONT, StagedProgram
from graphport.partition.pipelines.wire import Channel
from graphport.program.files import save

_LOG_TAIL_LINES = 6
"""Lines of what a process wrote that are shown when it dies."""
_LOG_TAIL_BYTES = 1 << 16
"""Bytes of it that are looked at."""

Connections = dict[int, socket.socket]
"""Connections of a rank, by the rank at the other end."""


class Processes:
    """Started at once; none is left after `stop`, or when this object or its process is gone."""

    def __init__(self, parts: StagedProgram, settings: Mapping[str, object]) -> None:
        self.running: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        held = ExitStack()
        self.stop = weakref.finalize(self, _stop_processes, os.getpid(), self.running, held)
        try:
            self._start_all(parts, settings, held)
        except BaseException:
            self.stop()
            raise

    def _start_all(
        self, parts: StagedProgram, settings: Mapping[str, object], held: ExitStack
    ) -> None:
        about = {
            **settings,
            "parent": os.getpid(),
            "routes": [asdict(s.route) for s in parts.stages],
        }
        with ExitStack() as theirs:  # ends that only they keep: else nobody would see theirs close
            ends, boards = _connect_ranks(parts, held, theirs)
            for stage in parts.stages:
                k = stage.route.index
                given: dict[str, object] = {"board": boards[k][1].fileno()}
                given["sockets"] = {rank: s.fileno() for rank, s in ends[k + 1].items()}
                if stage.program is not None:
                    file = theirs.enter_context(_open_unnamed_file("wb+"))
                    save(stage.program, file)
                    file.flush()
                    given["program"] = file.fileno()
                self._start({**about, **given, "stage": k}, held)
        self.board = SocketStore([board for board, _ in boards])
        held.callback(self.board.close)
        sockets = SocketGroup(ends[0])
        held.callback(sockets.close)
        self.channel = Channel(sockets, 0)

    def _start(self, about: Mapping[str, Any], held: ExitStack) -> None:
        log = held.enter_context(_open_unnamed_file("ab+"))
        self._logs.append(log)
        inherited = [about["board"], *about["sockets"].values()]
        if "program" in about:
            inherited.append(about["program"])
        # What this process can import the others can, too.
        paths = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        with _open_unnamed_file("wb+") as instructions:
            instructions.write(json.dumps(about).encode())
            instructions.seek(0)
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "graphport.partition.pipelines.worker"],
                    stdin=instructions,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": paths},
                    start_new_session=True,
                    pass_fds=inherited,
                )
            )

    @property
    def ids(self) -> dict[int, int]:
        """By stage, the number of its process."""
        return {k: p.pid for k, p in enumerate(self.running)}

    def deaths(self) -> dict[int, str]:
        """The processes that have ended, and how; those that were killed first."""
        codes = {k: p.poll() for k, p in enumerate(self.running)}
        ended = {k: code for k, code in codes.items() if code is not None}
        return {
            k: _describe_exit(ended[k]) for k in sorted(ended, key=lambda k: (ended[k] >= 0, k))
        }

    def log_tail(self, stage: int) -> Sequence[str]:
        log = self._logs[stage]
        if log.closed:
            return ()
        size = os.fstat(log.fileno()).st_size
        # Not by seeking: the process writes at the same place.
        text = os.pread(log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)).decode(
            errors="replace"
        )
        return text.splitlines()[-_LOG_TAIL_LINES:]


def _open_unnamed_file(mode: str) -> IO[bytes]:
    """A file that nobody finds, and that is gone when all who have it open are."""
    return tempfile.TemporaryFile(mode)


def _connect_ranks(
    parts: StagedProgram, held: ExitStack, theirs: ExitStack
) -> tuple[list[Connections], list[tuple[socket.socket, socket.socket]]]:
    """Of each rank, its connections; of each stage, both ends of that which `SocketStore` uses."""
    routes = [stage.route for stage in parts.stages]
    ends: list[Connections] = [{} for _ in (FRONT, *routes)]
    boards = []
    for route in routes:
        own = route.index + 1
        for other in (0, *(source + 1 for source in route.sources)):
            ends[other][own], ends[own][other] = socket.socketpair()
            (theirs if other else held).enter_context(ends[other][own])
            theirs.enter_context(ends[own][other])
        boards.append(socket.socketpair())
        held.enter_context(boards[-1][0])
        theirs.enter_context(boards[-1][1])
    return ends, boards


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _stop_processes(
    owner: int, running: Sequence[subprocess.Popen[bytes]], held: ExitStack
) -> None:
    """End them: gently those that listen, then for certain."""
    if os.getpid() != owner:
        return  # a fork of the process that they belong to
    for process in running:
        process.terminate()
    until = monotonic() + 2
    while monotonic() < until and any(p.poll() is None for p in running):
        sleep(0.02)
    for process in running:
        process.kill()
        process.wait()
    held.close()
