"""`graphport partition`: a model over several devices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from graphport.cli.console import Console
from graphport.errors import ExportError, ForwardError, GraphError, UsageError

_RATE = 10**10
"""Octets per second between devices, if nothing is said: that of a good network."""


def run(options: argparse.Namespace, console: Console) -> int:
    if options.svg and not Path(options.svg).absolute().parent.is_dir():
        raise UsageError(f"there is no folder {Path(options.svg).parent}", where="--svg")
    if options.svg and Path(options.svg).is_dir():
        raise UsageError(f"{options.svg} is a folder", where="--svg")
    with console.step("loading PyTorch", "load"):
        from graphport import partition
        from graphport.cli import devices
        from graphport.cli.capturing import described
        from graphport.partition.config import COSTED

        fleet = devices.read(Path(options.devices))
        mode = partition.PartitionMode[options.mode]
    with console.step(f"building {options.model}", "build"):
        model = described(options)
    with console.step("capturing", "capture"):
        program = model.captured()
        module = program.module()
    latencies = {}
    if mode in COSTED:
        with console.step("measuring its operators", "profile"):
            latencies = partition.latencies(_profiled(program, options.runs))
    config = partition.PartitionerConfig(
        fleet.devices, mode, fleet.transfer or _RATE, latencies,
        saturate_host=options.saturate_host, objective=options.objective,
    )  # fmt: skip
    with console.step("partitioning", "partition"):
        _know_sizes(module, program)
        result = partition.Partitioner().partition_graph(module, None, config)
    if options.svg:
        result.svg(options.svg)
    _tell(result, options, console)
    return 0


def _profiled(program: Any, runs: int) -> Any:
    from graphport.partition import profile

    try:
        return profile(program, runs=runs)
    except ExportError:
        raise
    except Exception as error:  # of operators, for the data of the example
        said = str(error).strip().splitlines() or [""]
        raise ForwardError(
            f"the program cannot be run on its example: {type(error).__name__}: {said[0]}"
        ) from error


def _know_sizes(module: Any, program: Any) -> None:
    """Sizes that only the data tell are those that the example has."""
    from torch.utils import _pytree as pytree

    from graphport.cli.bench import copied
    from graphport.fx import get_size_of_all_nodes

    try:
        get_size_of_all_nodes(module)
    except GraphError:
        get_size_of_all_nodes(module, copied(pytree.tree_leaves(program.example_inputs)))


def _tell(result: Any, options: argparse.Namespace, console: Console) -> None:
    from graphport.partition.linking import in_order
    from graphport.report import sections
    from graphport.report.document import Document, Section, Table, text

    found = in_order(result.partitions) or ()
    rows = [_row(p, result) for p in found]
    columns = ("partition", "devices", "nodes", "memory", "receives", "modules")
    parts = [
        Section("summary", [Table(("", ""), list(_summary(result, options).items()))]),
        Section("partitions", [Table(columns, rows, frozenset({2, 3, 4}))]),
        sections.timings(console.timings),
    ]
    data = {
        "ok": True,
        "model": options.model,
        "mode": options.mode,
        "objective": result.objective,
        "value_sec": result.value,
        "bound_sec": result.bound,
        "exact": result.exact,
        "devices": [d._asdict() for d in result.devices],
        "partitions": [_data(p) for p in found],
        "svg": options.svg,
        "timings": console.timings,
    }
    console.result(text(Document(f"{options.model} over {options.devices}", parts)), data)


def _summary(result: Any, options: argparse.Namespace) -> dict[str, str]:
    from graphport.partition.timeline import show_seconds

    used = {i for p in result.partitions for i in p.logical_device_ids}
    rows = {
        "mode": options.mode,
        "partitions": f"{len(result.partitions)} on {len(used)} of {len(result.devices)} devices",
    }
    if result.value is not None:
        rows[result.objective] = show_seconds(result.value)
        if result.objective == "bottleneck" and result.value:
            rows[result.objective] += f", {1 / result.value:,.4g} micro-batches per second"
    if result.bound is not None:
        proven = "the smallest there is" if result.exact else show_seconds(result.bound)
        rows["proven bound"] = proven
    if options.svg:
        rows["picture"] = options.svg
    return rows


def _row(partition: Any, result: Any) -> tuple[str, ...]:
    from graphport.distributed.stages import modules_of
    from graphport.partition.timeline import show_bytes

    names = {d.logical_id: d.name for d in result.devices}
    return (
        str(partition.partition_id),
        ", ".join(names[i] for i in partition.logical_device_ids),
        str(len(partition.ops())),
        show_bytes(partition.used_mem_bytes),
        show_bytes(_received(partition)),
        modules_of(partition.ops()),
    )


def _received(partition: Any) -> int:
    from graphport.partition.pieces import output_bytes

    return sum(map(output_bytes, partition.taken))


def _data(partition: Any) -> dict[str, Any]:
    return {
        "id": partition.partition_id,
        "devices": partition.logical_device_ids,
        "bytes": partition.used_mem_bytes,
        "received_bytes": _received(partition),
        "parents": sorted(p.partition_id for p in partition.parents),
        "nodes": [node.name for node in partition.ops()],
    }
