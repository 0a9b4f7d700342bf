"""Collectives of torch.distributed: in the graph in their functional form, or refused."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

import graphport as gp
from graphport.errors import MissingLoweringError, UnsupportedError
from tests.helpers import compare

Program = Callable[[Tensor], Tensor]


def join(file: str, rank: int, size: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A group of this process only."""
    with tempfile.TemporaryDirectory() as folder:
        join(f"{folder}/store", 0, 1)
        yield
        dist.destroy_process_group()


def all_reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, dist.ReduceOp.MAX)
    return y


def all_reduce_async(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()
    return y + 1


def all_reduce_input(x: Tensor) -> Tensor:
    dist.all_reduce(x[0])
    return x + 1


def all_reduce_coalesced(x: Tensor) -> Tensor:
    y, z = x * 2, x + 1
    with dist._coalescing_manager():
        dist.all_reduce(y)
        dist.all_reduce(z)
    return y * z


def broadcast(x: Tensor) -> Tensor:
    y = x * 2
    dist.broadcast(y, dist.get_world_size() - 1)
    return y


def all_gather(x: Tensor) -> Tensor:
    y = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(y, x)
    return torch.cat(y, 1)


def all_gather_scalars(x: Tensor) -> Tensor:
    y = [torch.empty(()) for _ in range(dist.get_world_size())]
    dist.all_gather(y, x.sum())
    return torch.stack(y)


def all_gather_into_tensor(x: Tensor) -> Tensor:
    y = torch.empty(dist.get_world_size() * x.shape[0], x.shape[1])
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(y, x)
    return y


def reduce_scatter(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    dist.reduce_scatter(y, [x + i for i in range(dist.get_world_size())])
    return y


def reduce_scatter_tensor(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(
        y, torch.cat([x + i for i in range(dist.get_world_size())])
    )
    return y


def all_to_all(x: Tensor) -> Tensor:
    y = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_to_all(y, [x + i for i in range(dist.get_world_size())])
    return torch.cat(y)


def all_to_all_single(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    return y


def all_to_all_single_uneven(x: Tensor) -> Tensor:
    """Rank r sends 2r rows to rank 0, and the rest to the last."""
    size, rank = dist.get_world_size(), dist.get_rank()
    if size == 1:
        return all_to_all_single(x)
    rows = x.shape[0]
    sent = [2 * rank, *(0 for _ in range(size - 2)), rows - 2 * rank]
    received = [2 * r if rank == 0 else rows - 2 * r for r in range(size)]
    y = x.new_empty(sum(received), x.shape[1])
    dist.all_to_all_single(y, x, received, sent)
    return y


def in_functional_form(x: Tensor) -> Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD) + 1


RECORDED: dict[Program, str] = {
    all_reduce: "all_reduce",
    all_reduce_async: "all_reduce",
    all_reduce_input: "all_reduce",
    all_reduce_coalesced: "all_reduce",
    broadcast: "broadcast",
    all_gather: "all_gather_into_tensor",
    all_gather_scalars: "all_gather_into_tensor",
    all_gather_into_tensor: "all_gather_into_tensor",
    reduce_scatter: "reduce_scatter_tensor",
    reduce_scatter_tensor: "reduce_scatter_tensor",
    all_to_all: "all_to_all_single",
    all_to_all_single: "all_to_all_single",
    all_to_all_single_uneven: "all_to_all_single",
    in_functional_form: "all_reduce",
}


def targets(ep: gp.ExportedProgram) -> list[str]:
    return [str(n.target) for n in ep.graph.nodes if n.op == "call_function"]


def agree(program: Program, training: bool) -> gp.ExportedProgram:
    """Capture on every rank, and compare with eager, at the example's size and at another."""
    rows = 2 * gp.Dim("half") if program is not all_to_all_single_uneven else None
    x = torch.arange(12.0).reshape(4, 3) * (1 + dist.get_rank())
    ep = gp.export(program, (x,), dynamic_shapes=({0: rows},), training=training)
    compare(ep, program, ((x,), {}))
    if rows is not None:
        compare(ep, program, ((torch.cat([x, x + 5]),), {}))
    return ep


@pytest.mark.parametrize("training", [False, True], ids=["functional", "training"])
@pytest.mark.parametrize("program", RECORDED, ids=lambda p: p.__name__)
def test_recorded(alone: None, program: Program, training: bool) -> None:
    found = targets(agree(program, training))
    assert f"_c10d_functional.{RECORDED[program]}.default" in found
    assert "_c10d_functional.wait_tensor.default" in found
    assert not any(t.startswith("c10d.") for t in found)


def test_a_result_that_nobody_reads_stays(alone: None) -> None:
    """Another rank may read it, and would wait for ever."""

    def program(x: Tensor) -> Tensor:
        functional.all_reduce(x, "sum", dist.group.WORLD)
        return x + 1

    ep = gp.export(program, (torch.ones(3),))
    assert "_c10d_functional.all_reduce.default" in targets(ep)
    assert "_c10d_functional.all_reduce.default" in targets(ep.run_decompositions())


def reduce_to_one(x: Tensor) -> Tensor:
    dist.reduce(x, 0)
    return x


def gather(x: Tensor) -> Tensor:
    y = [torch.empty_like(x)]
    dist.gather(x, y, 0)
    return y[0]


def scatter(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    dist.scatter(y, [x], 0)
    return y


def isend(x: Tensor) -> Tensor:
    dist.isend(x, 0)
    return x


def recv(x: Tensor) -> Tensor:
    dist.recv(x, 0)
    return x


def barrier(x: Tensor) -> Tensor:
    dist.barrier()
    return x + 1


def monitored_barrier(x: Tensor) -> Tensor:
    dist.monitored_barrier()
    return x + 1


REFUSED = (reduce_to_one, gather, scatter, isend, recv, barrier, monitored_barrier)


@pytest.mark.parametrize("program", REFUSED, ids=lambda p: p.__name__)
def test_refused(alone: None, program: Program) -> None:
    with pytest.raises(UnsupportedError, match=r"c10d\.\w+ of torch.distributed") as found:
        gp.export(program, (torch.ones(3),))
    assert "test_collectives.py" in str(found.value.where)
    assert found.value.fix


def test_onnx_has_no_collectives(alone: None) -> None:
    with pytest.raises(MissingLoweringError, match="all_reduce"):
        gp.onnx.export(all_reduce, (torch.ones(3),))


def _one_of_two(rank: int, file: str) -> None:
    join(file, rank, 2)
    for program in RECORDED:
        agree(program, training=False)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_one_of_two, (str(tmp_path / "store"),), nprocs=2)
