"""The partitioner's modes on real models, and how a pipeline scales, from measured costs.

Every model is exported, its nodes are measured on this machine, and it is cut for devices of which
none holds it. The table has the time of the busiest device per micro-batch (the bottleneck) and the
critical path, for `optimal` and as ratios to it for the other modes; then how throughput grows with
the number of devices. All of that is simulated from the measured costs.

    python -m benchmarks.partition            # print the tables
    python -m benchmarks.partition --write    # and put them into docs/partition.md
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import graphport as gp
from examples import resnet
from graphport.partition import (
    Device,
    NodeLatency,
    Partitioner,
    PartitionerConfig,
    PartitionMode,
    PartitionResult,
    get_bottleneck_of_partitioned_graph,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
    latencies,
    profile,
    simulate,
)

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "partition.md"
DEVICES = 4
RATE = 1e9
"""Bytes per second between devices: 8 Gbit/s."""

OTHERS = (
    PartitionMode.size_based,
    PartitionMode.sparse_nn,
    PartitionMode.cost_aware,
    PartitionMode.kl_based,
)


class Recommender(nn.Module):
    """Eight tables, a tower for dense features, one on top: nearly all memory is tables."""

    def __init__(self, rows: int = 40_000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows // (1 + i % 3), width, mode="sum") for i in range(8)
        )
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(9 * width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *found], dim=1)).sigmoid()


def resnet50() -> gp.ExportedProgram:
    return gp.export(resnet.resnet50().eval(), (resnet.example(4, 96),))


def bert12() -> gp.ExportedProgram:
    from examples import huggingface

    case = huggingface.bert(layers=12, hidden=256, batch=4, length=64)
    return gp.export(case.model, case.args, case.kwargs)


def recommender() -> gp.ExportedProgram:
    batch = 512
    ids = torch.arange(batch * 8 * 10).reshape(batch, 8, 10) % 10_000
    return gp.export(Recommender().eval(), (torch.rand(batch, 13), ids))


MODELS: dict[str, Callable[[], gp.ExportedProgram]] = {
    "ResNet-50": resnet50,
    "BERT-12": bert12,
    "recommender": recommender,
}


def total_bytes(ep: gp.ExportedProgram) -> int:
    enough = PartitionerConfig([Device("all", 1 << 60, 0)])
    return Partitioner().partition_graph(ep, None, enough).dag.nodes[0].size_bytes


def cut(
    ep: gp.ExportedProgram, costs: dict[Any, NodeLatency], mode: PartitionMode, objective: str
) -> tuple[PartitionResult | None, float]:
    """The result, or None if the mode finds none, and the seconds that partitioning took."""
    memory = int(total_bytes(ep) * 0.45)
    devices = [Device(f"device {i}", memory, i) for i in range(DEVICES)]
    config = PartitionerConfig(devices, mode, RATE, costs, objective=objective)
    start = time.perf_counter()
    try:
        result = Partitioner().partition_graph(ep, None, config)
    except gp.errors.PartitionError:
        result = None
    return result, time.perf_counter() - start


def value(result: PartitionResult, objective: str) -> float:
    parts, costs = result.partitions, result.node_to_latency_mapping
    if objective == "bottleneck":
        return get_bottleneck_of_partitioned_graph(parts, costs, RATE)
    found = get_partition_to_latency_mapping(parts, costs)
    return get_latency_of_partitioned_graph(parts, found, RATE)


def comparison(programs: dict[str, tuple[gp.ExportedProgram, Any]]) -> Iterator[str]:
    names = " | ".join(f"`{mode.name}`" for mode in OTHERS)
    yield f"| model | objective | `optimal` | over its bound | took | {names} |"
    yield "| --- | --- | ---: | ---: | ---: |" + " ---: |" * len(OTHERS)
    for model, (ep, costs) in programs.items():
        ops = sum(node.op.startswith("call_") for node in ep.module().graph.nodes)
        # The other modes do the same whatever the objective is.
        others = {mode: cut(ep, costs, mode, "bottleneck") for mode in OTHERS}
        for objective in ("bottleneck", "latency"):
            best, took = cut(ep, costs, PartitionMode.optimal, objective)
            assert best is not None, model
            least = value(best, objective)
            row = [f"{model}, {ops} nodes", objective, f"{least * 1e3:.2f} ms"]
            row += [f"{least / (best.bound or least):.3f}", f"{took:.1f} s"]
            for mode, (other, other_took) in others.items():
                if other is None:
                    row.append("does not fit")
                    continue
                ratio = value(other, objective) / least
                assert ratio >= 1 - 1e-9, (model, objective, mode, ratio)
                row.append(f"{ratio:.2f}x ({other_took:.1f} s)")
            yield f"| {' | '.join(row)} |"


def scaling(programs: dict[str, tuple[gp.ExportedProgram, Any]]) -> Iterator[str]:
    counts = (1, 2, 4, 8, 16, 32, 64)
    yield "| model | " + " | ".join(f"{n}" for n in counts) + " |"
    yield "| --- |" + " ---: |" * len(counts)
    for model, (ep, costs) in programs.items():
        found = simulate(ep, costs, RATE, counts)
        yield f"| {model} | " + " | ".join(f"{s.speedup:.2f}x" for s in found) + " |"
        yield "| its bound | " + " | ".join(f"{s.bound:.2f}x" for s in found) + " |"


def write(name: str, lines: list[str]) -> None:
    text = DOCUMENT.read_text()
    mark = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    new, found = re.subn(mark, lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S)
    assert found == 1, f"{DOCUMENT} has no place for {name}"
    DOCUMENT.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    programs = {}
    for name in options.models:
        ep = MODELS[name]()
        programs[name] = ep, latencies(profile(ep, runs=7, warmup=2))
    for name, make in (("comparison", comparison), ("scaling", scaling)):
        lines = []
        for line in make(programs):
            print(line, flush=True)
            lines.append(line)
        if options.write:
            write(name, lines)


if __name__ == "__main__":
    main()
