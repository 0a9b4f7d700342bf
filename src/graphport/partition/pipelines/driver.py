"""Drives a pipeline from the caller: sends micro-batches, gathers results, notices failures."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import torch

from graphport.compat.torch import TreeSpec, pytree
from graphport.partition.pipelines.micro_batches import SplitBatch, WholeBatch
from graphport.partition.pipelines.rendezvous import Event, Failures
from graphport.partition.pipelines.stage_server import (
    CLOSE,
    DONE,
    RUN,
    ConnectionLost,
    Mailbox,
    StageRunner,
    StageServer,
)
from graphport.partition.pipelines.stages import Front, Route
from graphport.partition.pipelines.wire import Message
from graphport.program import ConstantArgument
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
