"""`graphport partition`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.cli.partition import parse_bytes, read_devices
from graphport.errors import UsageError
from tests.cli.helpers import Runner

DEVICES = """
transfer = "1 GB/s"

[[devices]]
name = "big"
memory = "40 kB"

[[devices]]
name = "small"
memory = 30_000
count = 2
"""


@pytest.fixture
def program(run: Runner) -> str:
    """Four layers of 17 kB each, of which no device holds three, saved."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    ep = gp.export(model, (torch.randn(2, 64),), dynamic_shapes={"input": {0: gp.Dim("batch")}})
    gp.save(ep, "program.gpx")
    Path("devices.toml").write_text(DEVICES)
    return "program.gpx"


@pytest.mark.parametrize("mode", ["size_based", "kl_based", "cost_aware", "optimal"])
def test_modes(run: Runner, program: str, mode: str) -> None:
    given = ["--devices", "devices.toml", "--mode", mode, "--runs", "1", "--json"]
    done = run("partition", program, *given)
    assert done.code == 0, done.err
    data = done.data
    assert (data["value_sec"] is None) is (mode == "size_based")
    assert sorted(n for p in data["partitions"] for n in p["nodes"]) == [
        "linear",
        "linear_1",
        "linear_2",
        "linear_3",
    ]
    room = {d["logical_id"]: d["available_mem_bytes"] for d in data["devices"]}
    assert room == {0: 40_000, 1: 30_000, 2: 30_000}
    done_before: set[int] = set()
    for p in data["partitions"]:
        assert all(p["bytes"] <= room[d] for d in p["devices"])
        assert done_before.issuperset(p["parents"])
        done_before.add(p["id"])


def test_what_a_person_sees(run: Runner, program: str) -> None:
    done = run("partition", program, "--devices", "devices.toml", "--svg", "p.svg", "--runs", "1")
    assert done.code == 0, done.err
    for text in ("bottleneck", "micro-batches per second", "of 3 devices", "small0", "3"):
        assert text in done.out
    assert Path("p.svg").read_text().startswith("<svg")


def test_a_model_of_a_file(run: Runner) -> None:
    Path("d.toml").write_text('[[devices]]\nmemory = "1 GB"\n')
    done = run("partition", "models.py:build", "--devices", "d.toml", "--mode", "size_based")
    assert done.code == 0 and "device0" in done.out, done.err


ODD = """
import torch
from torch import nn


class Found(nn.Module):
    \"\"\"A size that only the data tell, and a name that the profiler has, too.\"\"\"

    def forward(self, x, *, runs):
        return torch.nonzero(x > 0).float().sum(1) * 2, x * runs


def build():
    return Found(), (torch.ones(3),), {"runs": torch.ones(3)}
"""


@pytest.mark.parametrize("mode", ["size_based", "optimal"])
def test_sizes_that_only_the_data_tell(run: Runner, mode: str) -> None:
    Path("odd.py").write_text(ODD)
    Path("d.toml").write_text('[[devices]]\nmemory = "1 GB"\n')
    done = run("partition", "odd.py:build", "--devices", "d.toml", "--mode", mode, "--json")
    assert done.code == 0, done.err


def test_what_does_not_fit(run: Runner, program: str) -> None:
    Path("tiny.toml").write_text('[[devices]]\nname = "tiny"\nmemory = "1 kB"\n')
    done = run("partition", program, "--devices", "tiny.toml", "--json")
    assert done.code == 1
    assert done.data["error"]["type"] == "PartitionError"
    assert "not have enough memory" in json.dumps(done.data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = [", "is not TOML"),
        ("", "has no devices"),
        ("devices = 3", "has no devices"),
        ('[[devices]]\nmemory = "much"', "memory of device0 is 'much'"),
        ("[[devices]]\nname = 'a'", "memory of a is None"),
        ("[[devices]]\nmemory = 0", "memory of device0 is 0"),
        ("[[devices]]\nmemory = 9\ncount = 0", "the count of device0 is 0"),
        ("speed = 3\n[[devices]]\nmemory = 9", "'speed', which means nothing here"),
        ("[[devices]]\nmemory = 9\nram = 3", "'ram', which means nothing here"),
        ('transfer = "fast"\n[[devices]]\nmemory = 9', "transfer is 'fast'"),
    ],
)
def test_wrong_files_of_devices(run: Runner, program: str, text: str, said: str) -> None:
    Path("wrong.toml").write_text(text)
    done = run("partition", program, "--devices", "wrong.toml")
    assert done.code == 2 and said in done.err


def test_an_example_that_cannot_be_run(run: Runner, program: str) -> None:
    (run.folder / "table.py").write_text("import torch\nmodel = torch.nn.Embedding(10, 4)\n")
    (run.folder / "gpus.toml").write_text('[[devices]]\nmemory = "1 GB"\ncount = 2\n')
    done = run(
        "partition", "table.py:model", "--devices", "gpus.toml", "--input", "input=i64[2](50..99)"
    )
    assert done.code == 1
    assert done.err.startswith("GP150 the program cannot be run on its example: IndexError: index")


def test_wrong_commands(run: Runner, program: str) -> None:
    for argv in (
        ["--devices", "nowhere.toml"],
        ["--devices", "devices.toml", "--svg", "no/where.svg"],
        ["--devices", "devices.toml", "--svg", "."],
        ["--devices", "devices.toml", "--dynamic", "x:0=n"],
        ["--devices", "devices.toml", "--runs", "0"],
    ):
        assert run("partition", program, *argv).code == 2, argv


def test_sizes() -> None:
    assert parse_bytes("1 TiB", "", "") == 2**40 and parse_bytes("0.5 MB", "", "") == 500_000
    assert (
        parse_bytes("10 gb/s", "", "") == parse_bytes(1e10, "", "") == 10**10
        and parse_bytes("7", "", "") == 7
    )
    for wrong in ("GB", "-1 GB", "1 GBs", True, 1.5, None, "0 kB", "0.0001 kB", -3):
        with pytest.raises(UsageError):
            parse_bytes(wrong, "memory", "file")


def test_devices_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(DEVICES)
    fleet = read_devices(tmp_path / "d.toml")
    assert [(d.name, d.logical_id) for d in fleet.devices] == [
        ("big", 0),
        ("small0", 1),
        ("small1", 2),
    ]
    assert fleet.transfer == 1e9
