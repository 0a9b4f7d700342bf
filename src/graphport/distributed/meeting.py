"""How the processes of a pipeline find together, and how they hear that it was given up.

All through a store of torch.distributed, or what stands for it between processes of one machine:
each process says that it is ready, or why it is not; when all are, they connect. Whoever gives the
pipeline up says so, and every process looks for that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from graphport.distributed.failures import Failures
from graphport.distributed.stages import FRONT
from graphport.distributed.wire import Channel
from graphport.errors import PipelineError

_CONNECT = 60.0
"""Seconds in which processes that are all ready have to connect."""
_PAUSE = 0.05
_LOOK = 0.5
"""Seconds between two looks for the end of the pipeline."""


class Meeting:
    """The ranks of one pipeline; rank 0 calls it."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.is_over = threading.Event()

    def ready(self, what: str = "") -> None:
        """`what` has to be the same on all ranks."""
        self.store.set(f"ready/{self.rank}", what)

    def failed(self, what: dict[str, Any]) -> None:
        self.store.set(f"failed/{self.rank}", json.dumps(what))

    def failures(self) -> dict[int, dict[str, Any]]:
        """What ranks had to say that did not get ready."""
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
                words = failures.last_words(stage)
                raise failures.error(stage, f"{how} while it started", trace=words)
            if monotonic() > until:
                raise failures.error(
                    stages[missing[0]], f"was not ready within {seconds:g} s",
                    fix=f"start_timeout={4 * seconds:g}, if it may take that long",
                )  # fmt: skip
            sleep(_PAUSE)
        for stage, rank in failures.ranks.items():
            if self.store.get(f"ready/{rank}") != self.store.get("ready/0") and stage != FRONT:
                raise failures.error(
                    stage, "has another program than rank 0: other operators, cuts or weights",
                    fix="torch.manual_seed(0) before the model is made, or load its weights",
                )  # fmt: skip
        self.store.set("begin", "")

    def assembled(self, failures: Failures, seconds: float) -> Channel:
        """Connections to all ranks, when they are ready."""
        self.gather(failures, seconds)
        try:
            return self.connected()
        except RuntimeError as error:
            for stage, how in failures.deaths().items():
                words = failures.last_words(stage)
                raise failures.error(
                    stage, f"{how} before it was connected", trace=words
                ) from error
            raise PipelineError(f"the stages cannot be connected: {error}") from error

    def wait_to_begin(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self.store.check(["begin"]):
            if self.store.check(["given up"]):
                raise PipelineError(f"the pipeline was given up: {self.reason()}")
            if monotonic() > until:
                raise PipelineError(
                    f"rank 0 did not begin within {seconds:g} s",
                    fix="every rank has to call gp.partition.pipeline with the same program",
                )
            sleep(_PAUSE)

    def connected(self) -> Channel:
        """Connections between all ranks."""
        options = dist.ProcessGroupGloo._Options()
        options._devices = [_device()]
        options._timeout = timedelta(seconds=_CONNECT)
        store = dist.PrefixStore("connect", self.store)
        return Channel(dist.ProcessGroupGloo(store, self.rank, self.size, options), self.rank)

    def give_up(self, reason: str) -> None:
        try:
            self.store.set("given up", reason)
        except RuntimeError:
            return  # nobody is left to hear it

    def wait_for_the_end(self, seconds: float) -> None:
        """Wait until rank 0 has given up, and a moment more in which it can say why."""
        until = monotonic() + seconds
        try:
            while not self.store.check(["given up"]) and monotonic() < until:
                sleep(_PAUSE)
        except RuntimeError:
            return  # it is gone, and the store with it
        sleep(_LOOK)

    def reason(self) -> str:
        return self.store.get("given up").decode(errors="replace")

    def watch(self, name: str) -> None:
        """End this process soon after the pipeline was given up, even if it hangs."""
        threading.Thread(target=self._look, args=(name,), daemon=True).start()

    def _look(self, name: str) -> None:
        while not self.is_over.wait(_LOOK):
            try:
                reason = self.reason() if self.store.check(["given up"]) else None
            except RuntimeError as error:
                reason = f"rank 0 is gone ({error})"
            # What waits for others raises by itself when they are gone, and says more.
            if reason is not None and not self.is_over.wait(4 * _LOOK):
                print(f"graphport: {name} ends: {reason}", file=sys.stderr, flush=True)
                os._exit(1)


def _device() -> Any:
    """What gloo uses between hosts; GLOO_SOCKET_IFNAME names a network as for torch itself."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    group = dist.ProcessGroupGloo
    return group.create_device(interface=interface) if interface else group.create_default_device()
