"""Simulates a pipeline, and draws partitions and its timeline as SVG, one row per device.

On the left what a device holds, on the right what it does for each micro-batch: the hatched part is
receiving, the rest computing. The colours follow the viewer's light or dark background. No fonts,
scripts or images are loaded.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from torch.fx import GraphModule, Node

from graphport import arguments as kinds
from graphport.arguments import check_arguments
from graphport.errors import PartitionError
from graphport.fx.manipulation import get_size_of_all_nodes
from graphport.partition.config import (
    Device,
    NodeLatency,
    PartitionerConfig,
    PartitionMode,
    check_config,
)
from graphport.partition.costs import (
    get_bottleneck_of_partitioned_graph,
    get_device_loads,
    get_node_latency,
    make_problem,
    node_seconds,
    transfer_seconds,
)
from graphport.partition.optimal import optimal
from graphport.partition.partition import Partition, PartitionResult, is_op, output_bytes
from graphport.partition.place import (
    map_nodes_to_partitions,
    mark_effect_dependencies,
    sort_topologically,
)
from graphport.program import ExportedProgram
from graphport.program.atomic_write import write_text

LEFT, RIGHT, ROW, TOP, EDGE = 350, 860, 74, 92, 24
"""Widths of the two halves, height of a row, room for the title, margin."""

COLOURS = ("#2f6fb3", "#b4561d", "#2c8a5f", "#b03a63", "#6b4fb0", "#1f8796", "#8f6d12", "#9a3f9e")
"""Of micro-batches, in turn: white reads well on each, and each shows on either background."""

STYLE = """
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
.back { fill: #ffffff; } .title { font-size: 17px; font-weight: 600; } .name { font-weight: 600; }
.small { font-size: 11px; fill: #5b6875; } .mid { text-anchor: middle; } .end { text-anchor: end; }
.row { fill: #f4f6f8; } .grid { stroke: #d5dbe1; } .bar { fill: #dde3e9; } .held { fill: #4a7fb5; }
.number { fill: #ffffff; font-weight: 600; }
.hatch { stroke: #ffffff; stroke-opacity: .75; stroke-width: 2.5; } .busiest { fill: #c2410c; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaee; } .back { fill: #14181d; } .small { fill: #97a3af; }
  .row { fill: #1d232a; } .grid { stroke: #343c46; } .bar { fill: #323a44; }
  .held { fill: #6ba3dc; } .number { fill: #ffffff; } .busiest { fill: #fb923c; }
}
""" + "".join(f".b{i} {{ fill: {colour}; }} " for i, colour in enumerate(COLOURS))


@check_arguments(
    result=kinds.instance_of("a PartitionResult", "graphport.partition.partition:PartitionResult"),
    path=kinds.PATH | kinds.NONE,
    micro_batches=kinds.integer(1),
)
def picture(result: PartitionResult, path: str | Path | None = None, micro_batches: int = 6) -> str:
    """The text of an SVG picture of a result, also written to `path`.

    Without latencies and a transfer rate there is no timeline, and the picture has the left half.
    """
    timed = result.value is not None
    rows = _collect_rows(result)
    width = 2 * EDGE + LEFT + (RIGHT + EDGE if timed else 0)
    height = TOP + ROW * len(rows) + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="partitions and timeline">',
        f"<style>{STYLE}</style>",
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="7"/>'
        "</pattern></defs>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        *_draw_title(result, timed),
    ]
    for i, (device, partitions) in enumerate(rows):
        y = TOP + ROW * i
        parts.append(_draw_box(EDGE, y, width - 2 * EDGE, ROW - 8, "row", 6))
        parts += _draw_card(result, device, partitions, y)
    if timed:
        parts += _draw_timeline(result, [device for device, _ in rows], micro_batches)
    parts += _draw_idle(result, rows, height)
    text = "\n".join([*parts, "</svg>", ""])
    if path is not None:
        write_text(Path(path), text)
    return text


def _collect_rows(result: PartitionResult) -> list[tuple[Device, list[Partition]]]:
    """The devices that hold something, in the order in which their partitions first run."""
    by_id = {device.logical_id: device for device in result.devices}
    rows: dict[int, list[Partition]] = {}
    for partition in sort_topologically(result.partitions) or ():
        for device in partition.logical_device_ids:
            rows.setdefault(device, []).append(partition)
    return [(by_id[device], partitions) for device, partitions in rows.items()]


def _draw_title(result: PartitionResult, timed: bool) -> Iterator[str]:
    nodes = sum(is_op(node) for node in result.graph_module.graph.nodes)
    cut = _format_count(len(result.partitions), "partition")
    used = _format_count(len(_collect_rows(result)), "device")
    yield _draw_text(EDGE, 34, f"{_format_count(nodes, 'node')}, {cut} on {used}", "title")
    if timed:
        loads = get_device_loads(
            result.partitions, result.node_to_latency_mapping, result.transfer_rate_bytes_per_sec
        )
        slowest = max(load.overall_sec for load in loads.values())
        facts = [f"busiest device {format_seconds(slowest)} per micro-batch"]
        if slowest:
            facts.append(f"{1 / slowest:,.4g} micro-batches per second")
        if result.objective == "latency" and result.value is not None:
            facts.append(f"critical path {format_seconds(result.value)}")
        if result.bound is not None:
            proven = f"no {result.objective} is below {format_seconds(result.bound)}"
            facts.append(f"{result.objective} proven smallest" if result.exact else proven)
        yield _draw_text(EDGE, 58, " · ".join(facts), "small")


def _draw_card(
    result: PartitionResult, device: Device, partitions: list[Partition], y: int
) -> Iterator[str]:
    """What a device holds: partitions, nodes, memory, and what it receives."""
    x = EDGE + 12
    ids = ", ".join(str(p.partition_id) for p in partitions)
    yield _draw_text(x, y + 19, _shorten(device.name, 20), "name")
    label = "partition" if len(partitions) == 1 else "partitions"
    yield _draw_text(EDGE + LEFT - 12, y + 19, _shorten(f"{label} {ids}", 22), "small end")
    ops = sorted({node for p in partitions for node in p.ops()})
    names = ops[0].name if len(ops) == 1 else f"{ops[0].name} … {ops[-1].name}"
    yield _draw_text(
        x, y + 36, _shorten(f"{_format_count(len(ops), 'node')}: {names}", 46), "small"
    )
    used, there = sum(p.used_mem_bytes for p in partitions), device.available_mem_bytes
    full = min(1.0, used / there) if there else 1.0
    yield _draw_box(x, y + 46, 110, 8, "bar", 4)
    yield _draw_box(x, y + 46, max(2, 110 * full), 8, "held", 4)
    received = {value for p in partitions for value in p.taken}.difference(ops)
    size = sum(map(output_bytes, received))
    memory = f"{format_bytes(used)} of {format_bytes(there)}"
    takes = f", receives {format_bytes(size)}" if size else ""
    yield _draw_text(x + 118, y + 54, memory + takes, "small")


def _draw_timeline(
    result: PartitionResult, devices: list[Device], micro_batches: int
) -> Iterator[str]:
    latencies, rate = result.node_to_latency_mapping, result.transfer_rate_bytes_per_sec
    tasks = schedule_tasks(result.partitions, latencies, rate, micro_batches)
    loads = get_device_loads(result.partitions, latencies, rate)
    last = max((task.end for task in tasks), default=0.0) or 1.0
    left, bottom = EDGE + LEFT + EDGE, TOP + ROW * len(devices)
    scale = (RIGHT - 84) / last
    for tick in _choose_ticks(last):
        x = left + tick * scale
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}"/>'
        yield _draw_text(x, TOP - 10, format_seconds(tick), "small mid")
    rows = {device.logical_id: i for i, device in enumerate(devices)}
    busiest = max(loads, key=lambda device: loads[device].overall_sec)
    for device, i in rows.items():
        style = "small end busiest" if device == busiest else "small end"
        x, y = left + RIGHT - 10, TOP + ROW * i + 38
        yield _draw_text(x, y, format_seconds(loads[device].overall_sec), style)
    for task in tasks:
        yield from _draw_task(task, left, TOP + ROW * rows[task.device] + 11, scale)
    yield _draw_text(
        left,
        bottom + 14,
        "time; numbers are micro-batches, hatched is receiving; on the right"
        " what a device does per micro-batch",
        "small",
    )


def _draw_task(task: Task, left: float, y: float, scale: float) -> Iterator[str]:
    x, width = left + task.start * scale, (task.end - task.start) * scale
    taken = format_seconds(task.end - task.start)
    tip = (
        f"micro-batch {task.micro_batch + 1}, partition {task.partition.partition_id}: {taken},"
        f" of which {format_seconds(task.ready - task.start)} receiving, from"
        f" {format_seconds(task.start)}"
    )
    drawn = max(1.0, width - 1)
    yield f"<g><title>{escape(tip)}</title>"
    yield _draw_box(x, y, drawn, ROW - 30, f"task b{task.micro_batch % len(COLOURS)}", 3)
    receiving = (task.ready - task.start) * scale
    if receiving >= 0.5:
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{min(receiving, drawn):.1f}"'
            f' height="{ROW - 30}" fill="url(#hatch)" rx="3"/>'
        )
    if width > 13:
        two = width > 60
        yield _draw_text(
            x + width / 2, y + (19 if two else 26), str(task.micro_batch + 1), "number mid"
        )
        if two:
            yield _draw_text(x + width / 2, y + 35, taken, "number mid")
    yield "</g>"


def _draw_idle(
    result: PartitionResult, rows: list[tuple[Device, list[Partition]]], height: int
) -> Iterator[str]:
    busy = {device.logical_id for device, _ in rows}
    idle = [device.name for device in result.devices if device.logical_id not in busy]
    if idle:
        more = f" and {len(idle) - 6} more" if len(idle) > 6 else ""
        yield _draw_text(EDGE, height - 12, f"idle: {', '.join(idle[:6])}{more}", "small")


def _choose_ticks(last: float) -> list[float]:
    """Round times, at most nine."""
    step = 10.0 ** math.floor(math.log10(last))
    for smaller in (0.1, 0.2, 0.5, 1.0):
        if last / (step * smaller) <= 8:
            step *= smaller
            break
    return [step * i for i in range(int(last / step) + 1)]


def format_seconds(value: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value / 1e-9:.3g} ns" if value else "0"


def format_bytes(value: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value} B"


def _format_count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _draw_text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def _draw_box(x: float, y: float, width: float, height: float, style: str, round_: int = 0) -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
        f' height="{height:.1f}" rx="{round_}"/>'
    )


# Simulates a pipeline: when each device would do what, from the costs of nodes and transfers.
#
# A device runs one partition for one micro-batch at a time, nodes one after the other; before that
# it receives what comes from other devices. Inputs are where they are needed, at the start.

_UNLIMITED_MEMORY = 1 << 60


class Task(NamedTuple):
    """A partition's work for one micro-batch: it receives until `ready`, and computes from then."""

    partition: Partition
    device: int
    micro_batch: int
    start: float
    ready: float
    end: float


def schedule_tasks(
    partitions: Sequence[Partition],
    node_to_latency_mapping: Mapping[Node, NodeLatency],
    transfer_rate_bytes_per_sec: float,
    micro_batches: int,
) -> list[Task]:
    """When each device does what; earlier micro-batches first.

    The partitions are linked and placed, as those of a result are.
    """
    of = map_nodes_to_partitions(partitions)
    work = {
        p: sum(node_seconds(get_node_latency(n, node_to_latency_mapping)) for n in p.ops())
        for p in partitions
    }

    def device(partition: Partition, batch: int) -> int:
        ids = partition.logical_device_ids
        return ids[batch % len(ids)]

    missing = {(p, b): len(p.parents) for p in partitions for b in range(micro_batches)}
    place = {p: i for i, p in enumerate(partitions)}
    free: dict[int, float] = {}
    present: set[tuple[int, int, Node]] = set()
    done: dict[tuple[Partition, int], float] = {}
    waiting = [(0.0, b, place[p]) for (p, b), count in missing.items() if not count]
    heapq.heapify(waiting)
    tasks = []
    while waiting:
        begin, batch, index = heapq.heappop(waiting)
        partition = partitions[index]
        where = device(partition, batch)
        start = max(begin, free.get(where, 0.0))
        if start > begin:
            heapq.heappush(waiting, (start, batch, index))
            continue
        received = [v for v in partition.taken if (where, batch, v) not in present]
        size = sum(output_bytes(v) for v in received if device(of[v], batch) != where)
        present.update((where, batch, v) for v in received)
        ready = start + transfer_seconds(size, transfer_rate_bytes_per_sec)
        end = ready + work[partition]
        tasks.append(Task(partition, where, batch, start, ready, end))
        free[where] = done[partition, batch] = end
        for child in partition.children:
            missing[child, batch] -= 1
            if not missing[child, batch]:
                begin = max(done[parent, batch] for parent in child.parents)
                heapq.heappush(waiting, (begin, batch, place[child]))
    return tasks


class Scaling(NamedTuple):
    """What a number of devices comes to.

    `throughput` is in micro-batches per second while the pipeline is full, `speedup` over one
    device, and `efficiency` the speedup per device. `bound`: no cut has a higher speedup.
    `latency_s` is how long the first micro-batch takes.
    """

    devices: int
    stages: int
    bottleneck_s: float
    latency_s: float
    throughput: float
    speedup: float
    efficiency: float
    bound: float


@check_arguments(
    fx_module=kinds.GRAPH_MODULE | kinds.PROGRAM,
    node_to_latency_mapping=kinds.DICT,
    transfer_rate_bytes_per_sec=kinds.POSITIVE,
    devices=kinds.several(kinds.integer(1)),
    memory_bytes=kinds.number(0) | kinds.NONE,
)
def simulate(
    fx_module: GraphModule | ExportedProgram,
    node_to_latency_mapping: Mapping[Node | str, NodeLatency],
    transfer_rate_bytes_per_sec: float,
    devices: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    memory_bytes: int | None = None,
) -> list[Scaling]:
    """How throughput grows with the number of devices, each cut by `PartitionMode.optimal`.

    Sizes have to be known, as for `Partitioner.partition_graph`. `memory_bytes` is what each device
    has, by default enough for everything; numbers of devices that are too few for it are left out.
    """
    gm = fx_module.module() if isinstance(fx_module, ExportedProgram) else fx_module
    get_size_of_all_nodes(gm)
    mark_effect_dependencies(gm)
    memory = _UNLIMITED_MEMORY if memory_bytes is None else memory_bytes
    found = []
    for count in devices:
        config = PartitionerConfig(
            [Device(f"device {i}", memory, i) for i in range(count)],
            PartitionMode.optimal,
            transfer_rate_bytes_per_sec,
            node_to_latency_mapping,
        )
        check_config(config)
        job = make_problem(gm, config)
        alone = sum(node_seconds(get_node_latency(node, job.latencies)) for node in job.ops)
        try:
            plan = optimal(job, {})
        except PartitionError:
            continue
        parts = plan.partitions
        bottleneck = get_bottleneck_of_partitioned_graph(parts, job.latencies, job.rate)
        latency = max(t.end for t in schedule_tasks(parts, job.latencies, job.rate, 1))
        speedup = alone / bottleneck if bottleneck else float(count)
        bound = alone / plan.bound if plan.bound else float(count)
        throughput = 1 / bottleneck if bottleneck else float("inf")
        found.append(
            Scaling(
                count, len(parts), bottleneck, latency, throughput, speedup, speedup / count, bound
            )
        )
    return found
