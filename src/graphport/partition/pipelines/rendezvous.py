"""Rendezvous and abort signal over a `torch.distributed` store, and the causes of failures.

The store is one of torch.distributed, or what stands for it between processes of one machine:
each process says that it is ready, or why it is not; when all are, they connect. Whoever gives the
pipeline up says so, and every process looks for that.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from graphport.errors import PipelineError
from graphport.partition.pipelines.stage_server import FAILED
from graphport.partition.pipelines.stages import FRONT, Route
from graphport.partition.pipelines.wire import Channel, Message

_CONNECT_SECONDS = 60.0
"""Seconds in which processes that are all ready have to connect."""
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 0.5
"""Seconds between two looks for the end of the pipeline."""


class Rendezvous:
    """The ranks of one pipeline; rank 0 calls it."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.is_over = threading.Event()

    def ready(self, what: str = "") -> None:
        """`what` has to be the same on all ranks."""
        self.store.set(f"ready/{self.rank}", what)

    def report_failure(self, what: dict[str, Any]) -> None:
        self.store.set(f"failed/{self.rank}", json.dumps(what))

    def failures(self) -> dict[int, dict[str, Any]]:
        """Errors of the ranks that did not get ready."""
        keys = {r: f"failed/{r}" for r in range(self.size)}
        return {r: json.loads(self.store.get(k)) for r, k in keys.items() if self.store.check([k])}

    def missing(self) -> list[int]:
        return [r for r in range(self.size) if not self.store.check([f"ready/{r}"])]

    def gather(self, failures: Failures, seconds: float) -> None:
        """Wait until all are ready, and let everybody connect."""
        until = monotonic() + seconds
        while missing := self.missing():
            stages = {rank: stage for stage, rank in failures.ranks.items() if stage != FRONT}
            for rank, what in self.failures().items():
                raise failures.error(
                    stages[rank], f"could not start: {what['error']}", trace=what["trace"]
                )
            for stage, how in failures.deaths().items():
                words = failures.log_tail(stage)
                raise failures.error(stage, f"{how} while it started", trace=words)
            if monotonic() > until:
                raise failures.error(
                    stages[missing[0]],
                    f"was not ready within {seconds:g} s",
                    fix=f"start_timeout={4 * seconds:g}, if it may take that long",
                )
            sleep(_POLL_SECONDS)
        for stage, rank in failures.ranks.items():
            if self.store.get(f"ready/{rank}") != self.store.get("ready/0") and stage != FRONT:
                raise failures.error(
                    stage,
                    "has another program than rank 0: other operators, cuts or weights",
                    fix="torch.manual_seed(0) before the model is made, or load its weights",
                )
        self.store.set("begin", "")

    def gather_and_connect(self, failures: Failures, seconds: float) -> Channel:
        """Connections to all ranks, when they are ready."""
        self.gather(failures, seconds)
        try:
            return self.connect_ranks()
        except RuntimeError as error:
            for stage, how in failures.deaths().items():
                words = failures.log_tail(stage)
                raise failures.error(
                    stage, f"{how} before it was connected", trace=words
                ) from error
            raise PipelineError(f"the stages cannot be connected: {error}") from error

    def wait_for_start(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self.store.check(["begin"]):
            if self.store.check(["given up"]):
                raise PipelineError(f"the pipeline was aborted: {self.reason()}")
            if monotonic() > until:
                raise PipelineError(
                    f"rank 0 did not begin within {seconds:g} s",
                    fix="every rank has to call gp.partition.pipeline with the same program",
                )
            sleep(_POLL_SECONDS)

    def connect_ranks(self) -> Channel:
        """Connections between all ranks."""
        from graphport.compat.torch import GlooOptions

        options = GlooOptions()
        options._devices = [_make_gloo_device()]
        options._timeout = timedelta(seconds=_CONNECT_SECONDS)
        store = dist.PrefixStore("connect", self.store)
        return Channel(dist.ProcessGroupGloo(store, self.rank, self.size, options), self.rank)

    def abort(self, reason: str) -> None:
        try:
            self.store.set("given up", reason)
        except RuntimeError:
            return  # nobody is left to hear it

    def wait_for_abort(self, seconds: float) -> None:
        """Wait until rank 0 has aborted, and a moment more in which it can report why."""
        until = monotonic() + seconds
        try:
            while not self.store.check(["given up"]) and monotonic() < until:
                sleep(_POLL_SECONDS)
        except RuntimeError:
            return  # it is gone, and the store with it
        sleep(_WATCH_SECONDS)

    def reason(self) -> str:
        return self.store.get("given up").decode(errors="replace")

    def watch(self, name: str) -> None:
        """End this process soon after the pipeline was aborted, even if it hangs."""
        threading.Thread(target=self._look, args=(name,), daemon=True).start()

    def _look(self, name: str) -> None:
        while not self.is_over.wait(_WATCH_SECONDS):
            try:
                reason = self.reason() if self.store.check(["given up"]) else None
            except RuntimeError as error:
                reason = f"rank 0 is gone ({error})"
            # What waits for others raises by itself when they are gone, and says more.
            if reason is not None and not self.is_over.wait(4 * _WATCH_SECONDS):
                print(f"graphport: {name} ends: {reason}", file=sys.stderr, flush=True)
                os._exit(1)


def _make_gloo_device() -> object:
    """What gloo uses between hosts; GLOO_SOCKET_IFNAME names a network as for torch itself."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    group = dist.ProcessGroupGloo
    return group.create_device(interface=interface) if interface else group.create_default_device()


# Diagnoses failures of a pipeline: the first cause among all events.
#
# When a stage dies, its neighbours lose their connections and report that, too, and often sooner.
# So evidence is gathered for a moment, and the strongest kind is raised: a stage that raised, a
# process that ended, a connection that the front itself has lost, and last what others say of a
# stage.

Event = tuple[int, Message | ConnectionError]
"""An event of a stage: a message, or the loss of its connection."""

Progress = Callable[..., str]
"""What a stage was at, in words."""

_EVIDENCE_SECONDS = 0.5
"""Seconds to wait for better evidence of a failure."""
_FAILURE_POLL_SECONDS = 0.05


class Failures:
    """Turns events into one error that names a stage."""

    def __init__(
        self,
        routes: Sequence[Route],
        ranks: Mapping[int, int],
        deaths: Callable[[], Mapping[int, str]] = dict,
        last_words: Callable[[int], Sequence[str]] = lambda stage: (),
        processes: Mapping[int, int] | None = None,
    ) -> None:
        self.routes, self.ranks = routes, ranks
        self.deaths = deaths
        """By stage, how its process has ended, where that can be seen."""
        self.log_tail = last_words
        self.processes = processes or {}
        """By stage, the number of its process, where that is known."""

    def look(self, progress: Progress, events: queue.SimpleQueue[Event]) -> None:
        """Raise if a process has ended."""
        for stage, how in self.deaths().items():
            raise self.diagnose((stage, ConnectionError(how)), progress, events)

    def diagnose(
        self, event: Event, progress: Progress, events: queue.SimpleQueue[Event]
    ) -> PipelineError:
        """The error for a first sign of trouble, after a moment in which better ones may come."""
        until = monotonic() + _EVIDENCE_SECONDS
        heard = [event]
        while not _is_raised(heard[-1]) and monotonic() < until:
            try:
                heard.append(events.get(timeout=_FAILURE_POLL_SECONDS))
            except queue.Empty:
                if self.deaths():
                    until = min(until, monotonic() + 2 * _FAILURE_POLL_SECONDS)
        return self._strongest_error(heard, progress)

    def _strongest_error(self, heard: Sequence[Event], progress: Progress) -> PipelineError:
        for stage, event in heard:
            if isinstance(event, Message) and event.kind == FAILED:
                what, trace = event.note["error"], event.note["trace"]
                return self.error(stage, f"raised {what} {progress(stage)}", trace=trace)
        for stage, how in self.deaths().items():
            words = self.log_tail(stage)
            return self.error(stage, f"{how} {progress(stage, True)}", trace=words)
        lost = {stage: str(e) for stage, e in reversed(heard) if not isinstance(e, Message)}
        said = {
            e.note["stage"]: str(e.note["what"])
            for _, e in reversed(heard)
            if isinstance(e, Message) and "stage" in e.note
        }
        for stage, what in reversed([*said.items(), *lost.items()]):
            if stage != FRONT:
                return self.error(
                    stage,
                    f"is gone {progress(stage, True)}: {what}",
                    fix="look at what its process wrote last; every rank has to call run or close",
                )
        return PipelineError("the pipeline has failed, and no stage has reported why")

    def timeout_error(
        self, finished: Mapping[int, int], timeout: float, progress: Progress
    ) -> PipelineError:
        """The first of the stages that have done least: all others wait for it."""
        least = min(finished.values())
        stage = min(s for s, n in finished.items() if n == least)
        return self.error(
            stage,
            f"did not finish within {timeout:g} s {progress(stage)}",
            fix=f"timeout={4 * timeout:g}, if it may take that long",
        )

    def error(
        self, stage: int, what: str, fix: str | Sequence[str] = (), trace: Sequence[str] = ()
    ) -> PipelineError:
        modules, rank = self.routes[stage].modules, self.ranks[stage]
        process = self.processes.get(stage)
        who = f"rank {rank}" if process is None else f"rank {rank}, process {process}"
        return PipelineError(
            f"stage {stage} of {len(self.routes)} ({who}) {what}",
            where=f"the stage of {modules}" if modules else None,
            fix=fix,
            stage=stage,
            rank=rank,
            modules=modules,
            trace=trace,
        )


def _is_raised(event: Event) -> bool:
    return isinstance(event[1], Message) and event[1].kind == FAILED
