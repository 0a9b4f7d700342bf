"""What went wrong in a pipeline, and where: the first cause among all that is heard of it.

When a stage dies, its neighbours lose their connections and report that, too, and often sooner. So
evidence is gathered for a moment, and the strongest kind is told: a stage that raised, a process
that ended, a connection that the front itself has lost, and last what others say of a stage.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from graphport.distributed.serving import FAILED
from graphport.distributed.stages import FRONT, Route
from graphport.distributed.wire import Message
from graphport.errors import PipelineError

Event = tuple[int, Message | ConnectionError]
"""What is heard from a stage, or that its connection is lost."""

Progress = Callable[..., str]
"""What a stage was at, in words."""

_GATHER = 0.5
"""Seconds to wait for better evidence of a failure."""
_STEP = 0.05


class Failures:
    """Turns what is heard into one error that names a stage."""

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
        self.last_words = last_words
        self.processes = processes or {}
        """By stage, the number of its process, where that is known."""

    def look(self, progress: Progress, events: queue.SimpleQueue[Event]) -> None:
        """Raise if a process has ended."""
        for stage, how in self.deaths().items():
            raise self.explained((stage, ConnectionError(how)), progress, events)

    def explained(
        self, event: Event, progress: Progress, events: queue.SimpleQueue[Event]
    ) -> PipelineError:
        """The error for a first sign of trouble, after a moment in which better ones may come."""
        until = monotonic() + _GATHER
        heard = [event]
        while not _is_raised(heard[-1]) and monotonic() < until:
            try:
                heard.append(events.get(timeout=_STEP))
            except queue.Empty:
                if self.deaths():
                    until = min(until, monotonic() + 2 * _STEP)
        return self._strongest(heard, progress)

    def _strongest(self, heard: Sequence[Event], progress: Progress) -> PipelineError:
        for stage, event in heard:
            if isinstance(event, Message) and event.kind == FAILED:
                what, trace = event.note["error"], event.note["trace"]
                return self.error(stage, f"raised {what} {progress(stage)}", trace=trace)
        for stage, how in self.deaths().items():
            words = self.last_words(stage)
            return self.error(stage, f"{how} {progress(stage, True)}", trace=words)
        lost = {stage: str(e) for stage, e in reversed(heard) if not isinstance(e, Message)}
        said = {e.note["stage"]: str(e.note["what"]) for _, e in reversed(heard)
                if isinstance(e, Message) and "stage" in e.note}  # fmt: skip
        for stage, what in reversed([*said.items(), *lost.items()]):
            if stage != FRONT:
                return self.error(
                    stage, f"is gone {progress(stage, True)}: {what}",
                    fix="look at what its process wrote last; every rank has to call run or close",
                )  # fmt: skip
        return PipelineError("the pipeline has failed, and no stage has said why")

    def hangs(
        self, finished: Mapping[int, int], timeout: float, progress: Progress
    ) -> PipelineError:
        """The first of the stages that have done least: all others wait for it."""
        least = min(finished.values())
        stage = min(s for s, n in finished.items() if n == least)
        return self.error(
            stage, f"did not finish within {timeout:g} s {progress(stage)}",
            fix=f"timeout={4 * timeout:g}, if it may take that long",
        )  # fmt: skip

    def error(
        self, stage: int, what: str, fix: str | Sequence[str] = (), trace: Sequence[str] = ()
    ) -> PipelineError:
        modules, rank = self.routes[stage].modules, self.ranks[stage]
        process = self.processes.get(stage)
        who = f"rank {rank}" if process is None else f"rank {rank}, process {process}"
        return PipelineError(
            f"stage {stage} of {len(self.routes)} ({who}) {what}",
            where=f"the stage of {modules}" if modules else None,
            fix=fix, stage=stage, rank=rank, modules=modules, trace=trace,
        )  # fmt: skip


def _is_raised(event: Event) -> bool:
    return isinstance(event[1], Message) and event[1].kind == FAILED
