"""Launches the processes of a pipeline and drives it: micro-batches, results, failures."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from time import monotonic, sleep
from typing import IO, Any

import torch

from graphport.compat.torch import TreeSpec, pytree
from graphport.partition.pipelines.micro_batches import SplitBatch, WholeBatch
from graphport.partition.pipelines.rendezvous import Event, Failures
from graphport.partition.pipelines.sockets import SocketGroup, SocketStore
from graphport.partition.pipelines.stage_server import (
    CLOSE,
    DONE,
    RUN,
    ConnectionLost,
    Mailbox,
    StageRunner,
    StageServer,
)
from graphport.partition.pipelines.stages import FRONT, Front, Route, StagedProgram
from graphport.partition.pipelines.wire import Channel, Message
from graphport.program import ConstantArgument
from graphport.program.files import save
from graphport.program.module import CallGuard
from graphport.tensors.concrete import storage_key
from graphport.types import PyTree

_POLL_SECONDS = 0.2
"""Seconds between two looks at the processes while waiting."""
_UNLIMITED_WINDOW = 1 << 60


class Driver:
    """Runs batch after batch; after a failure it is of no further use.

    Every stage is listened to all the time: what it has done, and what went wrong with it, arrives
    as an event. Nothing here waits for anything else.
    """

    def __init__(
        self,
        front: Front,
        entrance: CallGuard,
        out_spec: TreeSpec,
        batches: WholeBatch | SplitBatch,
        post: Mailbox,
        failures: Failures,
    ) -> None:
        self.front, self.entrance, self.out_spec = front, entrance, out_spec
        self.batches, self.post, self.failures = batches, post, failures
        self.stages = [route.index for route in failures.routes]
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.here: dict[int, queue.SimpleQueue[Message]] = {}
        """What is sent to a stage in this process."""
        self.threads: list[threading.Thread] = []

    def listen(self) -> None:
        """Start a thread that receives events for each stage in another process."""
        for stage in self.stages:
            if stage not in self.here:
                self._start_thread(_listen_to_stage, self.post, stage, self.events)

    def serve(self, route: Route, run: StageRunner) -> None:
        """Run a stage in this process, in a thread of its own: the driver goes on watching."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.here[route.index] = inbox
        post = Mailbox(self.post.channel, route.index, self.post.ranks)
        events = self.events
        stage = StageServer(route, run, post, inbox.get, lambda m: events.put((route.index, m)))
        self._start_thread(_serve_stage, stage)

    def _start_thread(self, work: Any, *args: PyTree) -> None:
        self.threads.append(threading.Thread(target=work, args=args, daemon=True))
        self.threads[-1].start()

    def batch(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Batch:
        """A batch that is ready to be sent; what is wrong with the arguments is raised here."""
        entrance = self.entrance
        args, kwargs = entrance.arranged(args, kwargs)
        if not entrance.accepts(args, kwargs) and (difference := entrance.difference(args, kwargs)):
            raise ValueError(difference)
        leaves = entrance.flat(args, kwargs)
        return Batch(self, leaves, self.batches.split(leaves))

    def send(self, stage: int, message: Message) -> None:
        if stage in self.here:
            self.here[stage].put(message)
        else:
            # Without a limit: what is sent are pieces of the caller's tensors, which are there.
            self.post.send(stage, message, window=_UNLIMITED_WINDOW)

    def settle(self, seconds: float) -> None:
        """Drop what has been sent, and arrived."""
        for stage in self.stages:
            if stage not in self.here:
                self.post.flush(stage, seconds)

    def close(self) -> None:
        """Send every stage the end of the stream."""
        for stage in self.stages:
            with suppress(ConnectionLost):
                self.send(stage, Message(CLOSE))
        with suppress(ConnectionLost):
            self.settle(seconds=5)

    def join(self, seconds: float) -> None:
        """Wait for the threads: one that waits for a message at exit would abort the process."""
        until = monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, until - monotonic()))


class Batch:
    """One batch on its way."""

    def __init__(
        self, driver: Driver, leaves: Sequence[PyTree], parts: Sequence[Sequence[Any]]
    ) -> None:
        self.driver, self.leaves, self.parts = driver, leaves, parts
        self.found: list[dict[str, Any]] = [{} for _ in parts]
        self.finished = dict.fromkeys(driver.stages, 0)
        """By stage, how many micro-batches it is done with."""

    def result(self, timeout: float) -> PyTree:
        """Send it through; PipelineError if nothing is finished for `timeout` seconds."""
        driver = self.driver
        front = driver.front
        try:
            for step, part in enumerate(self.parts):
                values = dict(zip(front.inputs, part, strict=True)) | front.state
                for stage in driver.stages:
                    sent = {name: values[name] for name in front.sends.get(stage, ())}
                    driver.send(stage, Message(RUN, step, sent))
            self._gather(timeout)
            driver.settle(timeout)
        except ConnectionLost as lost:
            event = lost.stage, ConnectionError(str(lost))
            raise driver.failures.diagnose(event, self.progress, driver.events) from None
        return self._build_result(driver.batches.joined(self.found, self.leaves))

    def _gather(self, timeout: float) -> None:
        failures, events = self.driver.failures, self.driver.events
        until = monotonic() + timeout
        while any(n < len(self.parts) for n in self.finished.values()):
            try:
                stage, event = events.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                failures.look(self.progress, events)
                if monotonic() > until:
                    raise failures.timeout_error(self.finished, timeout, self.progress) from None
                continue
            if not isinstance(event, Message) or event.kind != DONE:
                raise failures.diagnose((stage, event), self.progress, events)
            self.found[event.step].update(event.values)
            self.finished[stage] += 1
            until = monotonic() + timeout

    def _build_result(self, found: dict[str, Any]) -> PyTree:
        front = self.driver.front
        given = dict(zip(front.inputs, self.leaves, strict=True))
        known = given | front.state | found
        with torch.no_grad():
            known.update(self._kept_apart(known, given))
            front.state.update({name: known[new] for name, new in front.updates.items()})
            for target, name in front.written.items():
                given[target].copy_(known[name])
        # A changed input that is also returned is the caller's own tensor.
        own = {name: given[target] for target, name in front.written.items()}
        leaves = [
            r.value if isinstance(r, ConstantArgument) else own.get(r, known[r])
            for r in front.results
        ]
        return pytree.tree_unflatten(leaves, self.driver.out_spec)

    def _kept_apart(
        self, known: Mapping[str, Any], given: Mapping[str, PyTree]
    ) -> dict[str, object]:
        """Clones of values that alias inputs which are about to be overwritten, or state."""
        front = self.driver.front
        theirs = {storage_key(x) for x in given.values()} - {None}
        overwritten = {storage_key(given[target]) for target in front.written}
        state = {*front.updates.values()}
        wanted = {
            *state,
            *front.written.values(),
            *(r for r in front.results if isinstance(r, str)),
        }
        return {
            name: known[name].clone()
            for name in wanted
            if storage_key(known[name]) in (theirs if name in state else overwritten)
        }

    def progress(self, stage: int, died: bool = False) -> str:
        """In words, which micro-batch a stage was at; what it sent last is lost if it died."""
        total = len(self.parts)
        at = min(self.finished.get(stage, 0) + 1, total)
        later = " or later" if died and at < total else ""
        return f"in micro-batch {at} of {total}{later}" if total > 1 else "during a run"


def _listen_to_stage(post: Mailbox, stage: int, events: queue.SimpleQueue[Event]) -> None:
    """Not a method: a thread that is waiting must not keep the pipeline alive."""
    try:
        while (message := post.receive(stage)).kind != CLOSE:
            events.put((stage, message))
    except ConnectionLost as lost:
        events.put((stage, ConnectionError(str(lost))))


def _serve_stage(stage: StageServer) -> None:
    with suppress(Exception):  # has been reported
        stage.serve_until_closed()


_LOG_TAIL_LINES = 6
"""Lines of what a process wrote that are shown when it dies."""
_LOG_TAIL_BYTES = 1 << 16
"""Bytes of it that are looked at."""

Connections = dict[int, socket.socket]
"""Connections of a rank, by the rank at the other end."""


# Launches a process on this machine for each stage, and ends it.
#
# What they are given are open files without names and connected sockets: their programs and
# weights, what they are told, what they write. All of it is gone with the processes, whatever ends
# them.


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
