"""One stage at work: take values, compute, pass them on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphport.distributed.runtimes import Runtime
from graphport.distributed.stages import FRONT, Route
from graphport.distributed.wire import Channel, Message

RUN, VALUES, DONE, FAILED, LOST, CLOSE = "run", "values", "done", "failed", "lost", "close"

_TRACE = 12
"""Lines of a traceback that are sent on."""


class Lost(ConnectionError):
    """The connection to a stage is gone; its own failure, which is the cause, is told elsewhere."""

    def __init__(self, stage: int, error: Exception) -> None:
        self.stage = stage
        super().__init__(str(error))


@dataclass(frozen=True)
class Post:
    """Messages of one stage, or of the front, to others by their numbers."""

    channel: Channel
    own: int
    ranks: Mapping[int, int]

    def send(self, to: int, message: Message, **options: Any) -> None:
        try:
            self.channel.send(self.ranks[to], self.own + 1, message, **options)
        except ConnectionError as error:
            raise Lost(to, error) from error

    def receive(self, source: int) -> Message:
        try:
            return self.channel.receive(self.ranks[source], source + 1)
        except ConnectionError as error:
            raise Lost(source, error) from error

    def flush(self, to: int, seconds: float) -> None:
        try:
            self.channel.flush(self.ranks[to], self.own + 1, seconds)
        except ConnectionError as error:
            raise Lost(to, error) from error


@dataclass(frozen=True)
class Serving:
    """A stage: `take` waits for what the front sends it, `report` gives the front something."""

    route: Route
    run: Runtime
    post: Post
    take: Callable[[], Message]
    report: Callable[[Message], None]

    def until_closed(self) -> None:
        """Serve run after run; raise what ends it early. The front is told of the end."""
        try:
            while (message := self.take()).kind != CLOSE:
                self._step(message)
            self._tell(message)
        except Lost as lost:
            self._tell(Message(LOST, note={"stage": lost.stage, "what": str(lost)}))
            raise
        except Exception as error:
            self._tell(Message(FAILED, note=described(error)))
            raise

    def _step(self, message: Message) -> None:
        """One micro-batch, from the values that the front has sent."""
        route, values = self.route, dict(message.values)
        for source in route.sources:
            values.update(self.post.receive(source).values)
        found = self.run([values[name] for name in route.inputs])
        given = dict(zip(route.outputs, found, strict=True))
        for to, names in route.sends.items():
            if to != FRONT:
                self.post.send(to, Message(VALUES, message.step, {n: given[n] for n in names}))
        wanted = route.sends.get(FRONT, ())
        self.report(Message(DONE, message.step, {n: given[n] for n in wanted}))

    def _tell(self, message: Message) -> None:
        try:
            self.report(message)
            self.post.flush(FRONT, seconds=5)
        except Lost:
            return  # the front is gone as well


def serving(route: Route, run: Runtime, channel: Channel, ranks: Mapping[int, int]) -> Serving:
    """A stage whose front is another process."""
    post = Post(channel, route.index, ranks)
    return Serving(
        route, run, post, lambda: post.receive(FRONT), lambda message: post.send(FRONT, message)
    )


def described(error: BaseException) -> dict[str, Any]:
    """An error as something that can be sent."""
    text = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return {"error": f"{type(error).__name__}: {error}", "trace": text[-_TRACE:]}
