"""The simulated pipeline, and the picture of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import graphport as gp
from graphport.partition import PartitionMode, PartitionResult, simulate
from graphport.partition.timeline import format_bytes, format_seconds, schedule_tasks
from tests.partition.graphs import partitioned, random_latencies, random_model, weighted_chain


def chain(count: int, devices: int, rate: float = 1.0, size: int = 0) -> PartitionResult:
    gm, latencies = weighted_chain([1.0] * count, [size] * count)
    return partitioned(
        gm,
        [1000] * devices,
        PartitionMode.optimal,
        node_to_latency_mapping=latencies,
        transfer_rate_bytes_per_sec=rate,
    )


def test_a_pipeline_fills_and_drains() -> None:
    result = chain(4, 4)
    tasks = schedule_tasks(result.partitions, result.node_to_latency_mapping, 1.0, 3)
    when = {(t.partition.partition_id, t.micro_batch): (t.start, t.end) for t in tasks}
    assert when == {(p, b): (p + b, p + b + 1) for p in range(4) for b in range(3)}


def test_receiving_takes_time() -> None:
    result = chain(2, 2, rate=4.0, size=1)
    first, second = schedule_tasks(result.partitions, result.node_to_latency_mapping, 4.0, 1)
    assert (first.start, first.ready, first.end) == (0, 0, 1)
    assert (second.start, second.ready, second.end) == (1, 1.25, 2.25)


def test_a_replica_takes_every_other_micro_batch() -> None:
    result = chain(1, 1)
    result.partitions[0].logical_device_ids = [0, 7]
    tasks = schedule_tasks(result.partitions, result.node_to_latency_mapping, 1.0, 4)
    assert sorted((t.start, t.device) for t in tasks) == [(0, 0), (0, 7), (1, 0), (1, 7)]


def test_scaling() -> None:
    gm, latencies = weighted_chain([1.0] * 32, [0] * 32)
    found = simulate(gm, latencies, 1e9)
    assert [s.devices for s in found] == [1, 2, 4, 8, 16, 32, 64]
    assert [s.speedup for s in found] == [1, 2, 4, 8, 16, 32, 32]
    assert all(s.speedup <= s.bound and s.efficiency <= 1 for s in found)
    assert all(s.latency_s == 32 for s in found)
    costly = simulate(*weighted_chain([1.0] * 32, [8] * 32), 8.0, devices=(1, 32))
    assert costly[0].speedup == 1 and 8 <= costly[1].speedup <= 16
    tight = simulate(*weighted_chain([1.0] * 32, [8] * 32), 8.0, devices=(1, 2, 8), memory_bytes=96)
    assert [s.devices for s in tight] == [8]


@pytest.mark.parametrize("mode", [PartitionMode.size_based, PartitionMode.optimal])
def test_the_picture(tmp_path: Path, mode: PartitionMode) -> None:
    gm, _ = random_model(5, 12)
    result = partitioned(
        gm,
        [900] * 5,
        mode,
        node_to_latency_mapping=random_latencies(gm, 1),
        transfer_rate_bytes_per_sec=100.0,
    )
    path = tmp_path / "picture.svg"
    text = result.svg(path, micro_batches=3)
    assert path.read_text() == text == gp.partition.picture(result, micro_batches=3)
    root = ET.fromstring(text)
    assert root.tag.endswith("svg") and "prefers-color-scheme: dark" in text
    titles = [e.text for e in root.iter() if e.tag.endswith("title")]
    assert len(titles) == 3 * len(result.partitions)
    shown = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
    used = {number for p in result.partitions for number in p.logical_device_ids}
    assert all(f"dev_{number}" in shown for number in used)
    assert "busiest device" in shown
    # Nothing lies outside.
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        if element.tag.endswith("rect"):
            x, y = float(element.get("x", 0)), float(element.get("y", 0))
            assert 0 <= x <= x + float(element.attrib["width"]) <= width
            assert 0 <= y <= y + float(element.attrib["height"]) <= height


def test_the_picture_without_costs() -> None:
    gm, _ = random_model(5, 12)
    result = partitioned(gm, [100_000] * 9, PartitionMode.size_based)
    result.devices[0].name  # the whole is on the first
    text = result.svg()
    assert "busiest" not in text.split("</style>")[1]
    assert "idle: dev_1, dev_2, dev_3, dev_4, dev_5, dev_6 and 2 more" in text


def test_names_are_escaped() -> None:
    gm, _ = random_model(5, 4)
    device = gp.partition.Device('<"a" & b>', 100_000, 0)
    config = gp.partition.PartitionerConfig([device])
    result = gp.partition.Partitioner().partition_graph(gm, None, config)
    assert ET.fromstring(result.svg()) is not None


def test_numbers_are_short() -> None:
    assert [format_seconds(s) for s in (0, 2.5e-9, 3.14159e-6, 0.25, 12)] == [
        "0",
        "2.5 ns",
        "3.14 µs",
        "250 ms",
        "12 s",
    ]
    assert [format_bytes(b) for b in (0, 999, 1500, 2_500_000, 10**10)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "10 GB",
    ]
