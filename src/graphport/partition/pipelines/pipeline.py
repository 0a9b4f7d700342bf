"""`gp.partition.pipeline` and `gp.partition.launch`: a program as stages in several processes."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.fx import Node

from graphport.arguments import NAMES, NONE, SECONDS, TEXT, check_arguments, integer
from graphport.compat.torch import TreeSpec
from graphport.errors import PipelineError, StageError
from graphport.partition.pipelines import cut, stage_server
from graphport.partition.pipelines.cut import Stages, assign_stages
from graphport.partition.pipelines.driver import Driver, Processes
from graphport.partition.pipelines.micro_batches import SplitBatch, WholeBatch
from graphport.partition.pipelines.rendezvous import Failures, Rendezvous
from graphport.partition.pipelines.stage_server import (
    ConnectionLost,
    Mailbox,
    StageServer,
    describe_error,
    make_stage_server,
)
from graphport.partition.pipelines.stages import FRONT, Route, StagedProgram, split_into_stages
from graphport.program import ExportedProgram
from graphport.program.module import CallGuard
from graphport.types import PyTree

# Fingerprints, which differ between programs that must not be stages of one pipeline.

_SAMPLES = 16


def fingerprint_program(program: ExportedProgram, places: Mapping[Node, int]) -> str:
    """Of the operators, where they are cut, and a few numbers out of each weight."""
    found = hashlib.sha256()
    for node in program.graph.nodes:
        found.update(f"{node.format_node()} {places.get(node)}\n".encode())
    for name, t in {**program.state_dict, **program.constants}.items():
        found.update(f"{name} {_sample_tensor(t)}\n".encode())
    return found.hexdigest()


def _sample_tensor(t: object) -> object:
    if not isinstance(t, torch.Tensor):
        return type(t).__name__
    if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout is not torch.strided:
        return tuple(t.shape)  # without data, or not to be read like that
    count = t.numel()
    where = torch.arange(min(count, _SAMPLES)) * max(count // _SAMPLES, 1)
    picked = t.detach()[torch.unravel_index(where, t.shape)] if t.dim() and count else t.detach()
    return tuple(t.shape), str(t.dtype), picked.tolist()


# Pipelines.

TIMEOUT = 300.0
_SHUTDOWN_SECONDS = 10.0
"""Seconds to wait for others to end after the end of a pipeline."""
_PIPELINE_IDS = itertools.count()


@check_arguments(
    processes=integer(1) | NONE,
    batch=TEXT | NONE,
    threads=integer(1) | NONE,
    imports=NAMES,
    timeout=SECONDS,
    start_timeout=SECONDS,
)
def launch(
    program: ExportedProgram,
    processes: int | None = None,
    *,
    stages: Stages | None = None,
    micro_batches: int = 1,
    runtime: str = "torch",
    batch: str | None = None,
    threads: int | None = None,
    imports: Sequence[str] = (),
    timeout: float = TIMEOUT,
    start_timeout: float = TIMEOUT,
) -> Pipeline:
    """Run a program as a pipeline of local processes, each with the weights of its stage.

    There are two `processes`, or as many as `stages` says.
    `imports` names modules that every process imports first: those that register the custom
    operators of the program. `threads` are those of each process; by default the cores are shared.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> x = torch.randn(6, 4)
    >>> ep = gp.export(model, (x,), dynamic_shapes=({0: gp.Dim("batch")},))
    >>> with gp.partition.launch(ep, processes=2, micro_batches=3) as pipe:
    ...     torch.testing.assert_close(pipe.run(x), model(x))
    """
    wanted = (processes or 2) if stages is None else stages
    plan = _PipelinePlan(program, wanted, micro_batches, runtime, batch)
    processes = len(plan.routes) if processes is None else processes
    plan.require(processes, f"processes={processes}")
    settings = {
        "runtime": runtime,
        "start_timeout": start_timeout,
        "threads": threads or max(1, _count_cores() // processes),
        "imports": list(imports),
    }
    running = Processes(plan.parts, settings)
    ranks = {FRONT: 0, **{k: k + 1 for k in range(processes)}}
    rendezvous = Rendezvous(running.board, 0, len(ranks))
    failures = Failures(plan.routes, ranks, running.deaths, running.log_tail, running.ids)
    try:
        rendezvous.ready()
        rendezvous.gather(failures, start_timeout)
        driver = plan.driver(Mailbox(running.channel, FRONT, ranks), failures)
        driver.listen()
    except BaseException:
        running.stop()
        raise
    return Pipeline(plan.routes, 0, timeout, rendezvous, driver, None, running)


@check_arguments(batch=TEXT | NONE, timeout=SECONDS, start_timeout=SECONDS)
def pipeline(
    program: ExportedProgram,
    stages: Stages | None = None,
    micro_batches: int = 1,
    runtime: str = "torch",
    *,
    batch: str | None = None,
    timeout: float = TIMEOUT,
    start_timeout: float = TIMEOUT,
) -> Pipeline:
    """Run a program as a pipeline whose stages are the ranks of `torchrun`.

    Every rank calls it with the same program and keeps the weights of its own stage. `run` gives
    the result on rank 0; on the others `run` and `close` serve until rank 0 closes, and `run`
    gives None.
    """
    _check_arguments(program, 1 if stages is None else stages, micro_batches, runtime)
    store, rank, size = _join_world()
    store = dist.PrefixStore(f"graphport/pipeline{next(_PIPELINE_IDS)}", store)
    rendezvous = Rendezvous(store, rank, size)
    try:
        plan = _PipelinePlan(
            program, size if stages is None else stages, micro_batches, runtime, batch
        )
        plan.require(size, f"torchrun has started {size} processes")
        own = plan.parts.stages[rank]
        run = stage_server.make_stage_runner(runtime, own.program)
    except Exception as error:
        rendezvous.report_failure(describe_error(error))
        raise
    rendezvous.ready(fingerprint_program(program, plan.places))
    ranks = {FRONT: 0, **{k: k for k in range(size)}}
    if rank != 0:
        rendezvous.watch(f"stage {rank} (rank {rank})")
        rendezvous.wait_for_start(start_timeout)
        served = make_stage_server(own.route, run, rendezvous.connect_ranks(), ranks)
        return Pipeline(plan.routes, rank, timeout, rendezvous, None, served, None)
    failures = Failures(plan.routes, ranks)
    try:
        channel = rendezvous.gather_and_connect(failures, start_timeout)
        driver = plan.driver(Mailbox(channel, FRONT, ranks), failures)
    except BaseException as error:
        rendezvous.abort(str(error))
        raise
    driver.serve(own.route, run)
    driver.listen()
    return Pipeline(plan.routes, 0, timeout, rendezvous, driver, None, None)


class Pipeline:
    """A program in several processes: `run` it like its module, and `close` it in the end."""

    def __init__(
        self,
        routes: Sequence[Route],
        rank: int,
        timeout: float,
        rendezvous: Rendezvous,
        driver: Driver | None,
        served: StageServer | None,
        processes: Processes | None,
    ) -> None:
        self.rank = rank
        self.timeout = timeout
        """Seconds for which a run may go on without any stage finishing a micro-batch."""
        self.stages = [route.modules for route in routes]
        """The modules that each stage computes."""
        self.processes = {} if processes is None else processes.ids
        """By stage, the number of its process, if they were launched here."""
        self._turn = threading.Lock()
        self._rendezvous, self._driver = rendezvous, driver
        self._server, self._processes = served, processes
        self._end: str | None = None
        """Why it cannot run any more."""
        # Also where the program forgets to close, or ends: nothing may be left running.
        self._finalizer = weakref.finalize(self, _shut_down, driver, processes)

    def run(self, *args: object, **kwargs: object) -> PyTree:
        """The result for one batch, on rank 0; on other ranks None, when rank 0 has closed.

        Calls from several threads take turns.
        """
        if self._driver is None:
            return self.close()
        with self._turn:
            if self._end is not None:
                raise PipelineError(f"the pipeline cannot run: {self._end}", fix="make another one")
            batch = self._driver.batch(args, kwargs)
            try:
                return batch.result(self.timeout)
            except BaseException as error:
                self._give_up(error)
                raise

    def close(self) -> None:
        """End all stages; on ranks other than 0, serve until that happens."""
        if self._end is not None:
            return
        self._end = "it is closed"
        try:
            if self._server is not None:
                self._serve(self._server)
        finally:
            self._rendezvous.is_over.set()
            self._finalizer()

    def _serve(self, served: StageServer) -> None:
        try:
            served.serve_until_closed()
        except Exception as error:
            # torchrun ends all ranks when one has failed: rank 0 is to say first what happened.
            self._rendezvous.wait_for_abort(_SHUTDOWN_SECONDS / 2)
            if isinstance(error, ConnectionLost):
                who = f"stage {error.stage}" if error.stage != FRONT else "the caller, rank 0,"
                raise PipelineError(f"{who} is gone: {error}", rank=self.rank) from error
            raise

    def _give_up(self, error: BaseException) -> None:
        """Leave nothing running after a run that has failed or was interrupted."""
        self._end = f"a run has ended with {type(error).__name__}"
        self._rendezvous.abort(f"{type(error).__name__} on rank 0: {error}")
        self._finalizer.detach()
        if self._processes is not None:
            self._processes.stop()
        # At the end of the process: until then, others may wait for what this one has to say.
        if self._driver is not None:
            weakref.finalize(self, self._driver.join, _SHUTDOWN_SECONDS)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _shut_down(driver: Driver | None, processes: Processes | None) -> None:
    """End a pipeline from the side that calls it."""
    if driver is not None:
        driver.close()
    if processes is not None:
        processes.stop()
    if driver is not None:
        driver.join(_SHUTDOWN_SECONDS)


class _PipelinePlan:
    """A program cut into stages, and what the caller's side of it keeps."""

    parts: StagedProgram

    def __init__(
        self,
        program: ExportedProgram,
        stages: Stages,
        micro_batches: int,
        runtime: str,
        batch: str | None,
    ) -> None:
        _check_arguments(program, stages, micro_batches, runtime)
        self.places, count = assign_stages(program, stages)
        self.parts = split_into_stages(program, self.places, count)
        self.routes = [stage.route for stage in self.parts.stages]
        self.entrance = CallGuard(program, check_guards=True)
        self.out_spec: TreeSpec = program.call_spec.out_spec
        self.batches: WholeBatch | SplitBatch = (
            SplitBatch(program, micro_batches, batch) if micro_batches > 1 else WholeBatch()
        )

    def require(self, count: int, said: str) -> None:
        if len(self.routes) != count:
            raise StageError(
                f"the program is cut into {len(self.routes)} stages, but {said}",
                fix=f"as many processes as stages: {len(self.routes)}",
            )

    def driver(self, post: Mailbox, failures: Failures) -> Driver:
        front = self.parts.front
        return Driver(front, self.entrance, self.out_spec, self.batches, post, failures)


def _check_arguments(program: object, stages: object, micro_batches: Any, runtime: Any) -> None:
    """What can be said of the arguments before there is anything else."""
    stage_server.check_runtime(runtime)
    if type(micro_batches) is not int or micro_batches < 1:
        raise StageError(f"micro_batches is {micro_batches!r}", fix="micro_batches=4")
    cut.check_stages(program, stages)


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _join_world() -> tuple[Any, int, int]:
    """The store of torch.distributed that all ranks share, the number of this one, and of all."""
    if dist.is_initialized():
        from graphport.compat.torch import get_default_store

        return get_default_store(), dist.get_rank(), dist.get_world_size()
    if "RANK" not in os.environ:
        raise StageError(
            "this process is not one of several: torchrun has not started it",
            fix=[
                "torchrun --nproc-per-node 2 script.py",
                "gp.partition.launch(program, processes=2), which starts processes itself",
            ],
        )
    global _WORLD
    if _WORLD is None:
        _WORLD = next(rendezvous("env://"))
    return _WORLD


_WORLD: tuple[Any, int, int] | None = None
