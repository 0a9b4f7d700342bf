"""`graphport partition`: partitions a model over the devices of a TOML file.

transfer = "10 GB/s"

[[devices]]
name = "gpu"
memory = "16 GB"
count = 4
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graphport.cli.console import Console
from graphport.errors import ExportError, ForwardError, GraphError, UsageError
from graphport.partition import Device

if TYPE_CHECKING:
    from graphport.partition.partition import Partition, PartitionResult

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*(?:/\s*s)?\s*", re.IGNORECASE)
_KEYS = {"": {"transfer", "devices"}, "devices": {"name", "memory", "count"}}


class DeviceTable(NamedTuple):
    devices: list[Device]
    transfer: float | None
    """Octets per second between two devices, where the file says so."""


def read_devices(path: Path) -> DeviceTable:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", where="--devices")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", where="--devices") from None
    _require_known_keys(table, "", path)
    rows = table.get("devices")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise UsageError(
            f"{path} has no devices", fix='[[devices]] with name = "gpu" and memory = "16 GB"'
        )
    devices: list[Device] = []
    for number, row in enumerate(rows):
        _require_known_keys(row, "devices", path)
        name = str(row.get("name", f"device{number}"))
        memory = parse_bytes(row.get("memory"), f"memory of {name}", path)
        count = row.get("count", 1)
        if type(count) is not int or count < 1:
            raise UsageError(f"{path}: the count of {name} is {count!r}", fix="count = 2")
        names = [name] if count == 1 else [f"{name}{i}" for i in range(count)]
        devices += [Device(n, memory, len(devices) + i) for i, n in enumerate(names)]
    transfer = table.get("transfer")
    return DeviceTable(
        devices, None if transfer is None else parse_bytes(transfer, "transfer", path)
    )


def parse_bytes(value: object, what: str, where: Path | str) -> int:
    """A number of octets: `16 GB`, `512 MiB`, `10 GB/s`, 900.

    >>> (
    ...     parse_bytes("1.5 GB", "memory", ""),
    ...     parse_bytes("2KiB", "memory", ""),
    ...     parse_bytes(900, "memory", ""),
    ... )
    (1500000000, 2048, 900)
    """
    octets = 0
    if type(value) is int or (type(value) is float and value.is_integer()):
        octets = int(value)
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        octets = round(float(found[1]) * _UNITS.get(found[2].lower(), 0))
    if octets < 1:
        raise UsageError(f"{what} is {value!r}", where=str(where), fix='"16 GB", or 16_000_000_000')
    return octets


def _require_known_keys(table: Mapping[str, object], part: str, path: Path) -> None:
    unknown = sorted(set(table) - _KEYS[part])
    if unknown:
        raise UsageError(
            f"{path} has {', '.join(map(repr, unknown))}, which means nothing here",
            fix=f"one of {', '.join(sorted(_KEYS[part]))}",
        )


# The command.

_DEFAULT_TRANSFER_RATE = 10**10
"""Octets per second between devices, if nothing is said: that of a good network."""


def run(options: argparse.Namespace, console: Console) -> int:
    if options.svg and not Path(options.svg).absolute().parent.is_dir():
        raise UsageError(f"there is no folder {Path(options.svg).parent}", where="--svg")
    if options.svg and Path(options.svg).is_dir():
        raise UsageError(f"{options.svg} is a folder", where="--svg")
    with console.step("loading PyTorch", "load"):
        from graphport import partition
        from graphport.cli.capture import build_model
        from graphport.partition.config import LATENCY_MODES

        fleet = read_devices(Path(options.devices))
        mode = partition.PartitionMode[options.mode]
    with console.step(f"building {options.model}", "build"):
        model = build_model(options)
    with console.step("capturing", "capture"):
        program = model.captured()
        module = program.module()
    latencies = {}
    if mode in LATENCY_MODES:
        with console.step("measuring its operators", "profile"):
            latencies = partition.latencies(_profile_program(program, options.runs))
    config = partition.PartitionerConfig(
        fleet.devices,
        mode,
        fleet.transfer or _DEFAULT_TRANSFER_RATE,
        latencies,
        saturate_host=options.saturate_host,
        objective=options.objective,
    )
    with console.step("partitioning", "partition"):
        _set_sizes(module, program)
        result = partition.Partitioner().partition_graph(module, None, config)
    if options.svg:
        result.svg(options.svg)
    _print_result(result, options, console)
    return 0


def _profile_program(program: object, runs: int) -> Any:
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


def _set_sizes(module: object, program: Any) -> None:
    """Set the sizes of nodes; data-dependent ones are those of the example."""
    from graphport.cli.bench import clone_tensors
    from graphport.compat.torch import pytree
    from graphport.fx import get_size_of_all_nodes

    try:
        get_size_of_all_nodes(module)
    except GraphError:
        get_size_of_all_nodes(module, clone_tensors(pytree.tree_leaves(program.example_inputs)))


def _print_result(result: PartitionResult, options: argparse.Namespace, console: Console) -> None:
    from graphport.partition.place import sort_topologically
    from graphport.report import sections
    from graphport.report.document import Document, Section, Table, render_text

    found = sort_topologically(result.partitions) or ()
    rows = [_row(p, result) for p in found]
    columns = ("partition", "devices", "nodes", "memory", "receives", "modules")
    parts = [
        Section("summary", [Table(("", ""), list(_summarise(result, options).items()))]),
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
        "partitions": [_partition_to_json(p) for p in found],
        "svg": options.svg,
        "timings": console.timings,
    }
    console.result(render_text(Document(f"{options.model} over {options.devices}", parts)), data)


def _summarise(result: PartitionResult, options: argparse.Namespace) -> dict[str, str]:
    from graphport.partition.timeline import format_seconds

    used = {i for p in result.partitions for i in p.logical_device_ids}
    rows = {
        "mode": options.mode,
        "partitions": f"{len(result.partitions)} on {len(used)} of {len(result.devices)} devices",
    }
    if result.value is not None:
        rows[result.objective] = format_seconds(result.value)
        if result.objective == "bottleneck" and result.value:
            rows[result.objective] += f", {1 / result.value:,.4g} micro-batches per second"
    if result.bound is not None:
        proven = "the smallest there is" if result.exact else format_seconds(result.bound)
        rows["proven bound"] = proven
    if options.svg:
        rows["picture"] = options.svg
    return rows


def _row(partition: Partition, result: PartitionResult) -> tuple[str, ...]:
    from graphport.partition.pipelines.stages import describe_modules
    from graphport.partition.timeline import format_bytes

    names = {d.logical_id: d.name for d in result.devices}
    return (
        str(partition.partition_id),
        ", ".join(names[i] for i in partition.logical_device_ids),
        str(len(partition.ops())),
        format_bytes(partition.used_mem_bytes),
        format_bytes(_count_received_bytes(partition)),
        describe_modules(partition.ops()),
    )


def _count_received_bytes(partition: Any) -> int:
    from graphport.partition.partition import output_bytes

    return sum(map(output_bytes, partition.taken))


def _partition_to_json(partition: Any) -> dict[str, object]:
    return {
        "id": partition.partition_id,
        "devices": partition.logical_device_ids,
        "bytes": partition.used_mem_bytes,
        "received_bytes": _count_received_bytes(partition),
        "parents": sorted(p.partition_id for p in partition.parents),
        "nodes": [node.name for node in partition.ops()],
    }
