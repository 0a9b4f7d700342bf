"""Serves a stage of a pipeline: receives values, runs PyTorch or ONNX Runtime, sends results."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphport.errors import StageError
from graphport.partition.pipelines.stages import FRONT, Route
from graphport.partition.pipelines.wire import Channel, Message
from graphport.process import restore_on_exit
from graphport.program import ExportedProgram
from graphport.types import PyTree

StageRunner = Callable[[Sequence[Any]], tuple[Any, ...]]
"""The values that a stage gives, from those that it takes."""


def make_stage_runner(name: str, program: ExportedProgram | None) -> StageRunner:
    """What runs the program of a stage; state that it changes is kept from call to call."""
    check_runtime(name)
    if program is None:
        return lambda values: ()
    return RUNTIMES[name](_materialise_weights(program))


def check_runtime(name: str) -> None:
    if not isinstance(name, str) or name not in RUNTIMES:
        known = " or ".join(f'runtime="{n}"' for n in RUNTIMES)
        raise StageError(f"there is no runtime {name!r}", fix=known)


def _make_torch_runner(program: ExportedProgram) -> StageRunner:
    module = program.module(check_guards=False)

    def run(values: Sequence[object]) -> tuple[PyTree, ...]:
        with torch.no_grad():
            return module(*values)

    return run


def _make_ort_runner(program: ExportedProgram) -> StageRunner:
    from graphport.onnx import ExportOptions
    from graphport.onnx.exporter import lower_program
    from graphport.onnx.lower.size_checks import narrow_ranges
    from graphport.onnx.target.session import Session
    from graphport.onnx.target.targets import ORT

    lower = restore_on_exit(lower_program)
    model = lower(narrow_ranges(program, dict), ExportOptions(), ORT)
    if model.graph.outputs:
        options = ORT.session_options(log_errors=True, threads=torch.get_num_threads())
        model.use_session(Session(model.skeleton, model.tensors, options), same_within=True)
    return lambda values: model(*values)


RUNTIMES: dict[str, Callable[[ExportedProgram], StageRunner]] = {
    "torch": _make_torch_runner,
    "ort": _make_ort_runner,
}


def _materialise_weights(program: ExportedProgram) -> ExportedProgram:
    """Read the weights of a program that was captured without: those of this stage only."""
    return replace(
        program,
        state_dict={name: _read_tensor(t) for name, t in program.state_dict.items()},
        constants={name: _read_tensor(t) for name, t in program.constants.items()},
    )


def _read_tensor(t: Any) -> object:
    if not getattr(t, "has_data", False):
        return t
    data = t.read()
    return torch.nn.Parameter(data, False) if isinstance(t, torch.nn.Parameter) else data


# The server: receives values, computes, sends them on.

RUN, VALUES, DONE, FAILED, LOST, CLOSE = "run", "values", "done", "failed", "lost", "close"

_TRACE_LINES = 12
"""Lines of a traceback that are sent on."""


class ConnectionLost(ConnectionError):
    """The connection to a stage is gone; its own failure, the cause, is reported elsewhere."""

    def __init__(self, stage: int, error: Exception) -> None:
        self.stage = stage
        super().__init__(str(error))


@dataclass(frozen=True)
class Mailbox:
    """Messages of one stage, or of the front, to others by their numbers."""

    channel: Channel
    own: int
    ranks: Mapping[int, int]

    def send(self, to: int, message: Message, **options: Any) -> None:
        try:
            self.channel.send(self.ranks[to], self.own + 1, message, **options)
        except ConnectionError as error:
            raise ConnectionLost(to, error) from error

    def receive(self, source: int) -> Message:
        try:
            return self.channel.receive(self.ranks[source], source + 1)
        except ConnectionError as error:
            raise ConnectionLost(source, error) from error

    def flush(self, to: int, seconds: float) -> None:
        try:
            self.channel.flush(self.ranks[to], self.own + 1, seconds)
        except ConnectionError as error:
            raise ConnectionLost(to, error) from error


@dataclass(frozen=True)
class StageServer:
    """A stage: `take` waits for what the front sends it, `report` gives the front something."""

    route: Route
    run: StageRunner
    post: Mailbox
    take: Callable[[], Message]
    report: Callable[[Message], None]

    def serve_until_closed(self) -> None:
        """Serve run after run; raise what ends it early. The end is reported to the front."""
        try:
            while (message := self.take()).kind != CLOSE:
                self._step(message)
            self._tell(message)
        except ConnectionLost as lost:
            self._tell(Message(LOST, note={"stage": lost.stage, "what": str(lost)}))
            raise
        except Exception as error:
            self._tell(Message(FAILED, note=describe_error(error)))
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
        except ConnectionLost:
            return  # the front is gone as well


def make_stage_server(
    route: Route, run: StageRunner, channel: Channel, ranks: Mapping[int, int]
) -> StageServer:
    """A stage whose front is another process."""
    post = Mailbox(channel, route.index, ranks)
    return StageServer(
        route, run, post, lambda: post.receive(FRONT), lambda message: post.send(FRONT, message)
    )


def describe_error(error: BaseException) -> dict[str, object]:
    """An error as something that can be sent."""
    text = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return {"error": f"{type(error).__name__}: {error}", "trace": text[-_TRACE_LINES:]}
