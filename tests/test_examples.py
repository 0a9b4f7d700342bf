"""The examples run, from the code and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples import generation, quickstart, transformer
from graphport.cli import main

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize(
    ("example", "says"), [(quickstart, "equal to eager"), (transformer, "batch=2, seq=16; ")]
)
def test_runs(example: object, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    assert says in capsys.readouterr().out


def test_generation(capsys: pytest.CaptureFixture[str]) -> None:
    generation.main(["--tokens", "4"])
    assert "llama: 4 tokens each, the same as model.generate" in capsys.readouterr().out


def test_the_transformer_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = f"{EXAMPLES / 'transformer.py'}:build", str(tmp_path / "t.onnx")
    assert main(["export", model, "-o", file, "--target", "ort", "--json"]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert exported["inputs"] == [{"name": "ids", "type": "i64[batch, seq]"}]
    assert exported["outputs"] == [{"name": "output", "type": "f32[batch, seq, 1000]"}]
    assert main(["verify", file, "--against", model, "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)["verification"]
    assert len({tuple(sizes.values()) for sizes in verified["sizes_tried"]}) > 3
    assert 0 < verified["outputs"][0]["max_abs_error"] < 1e-3
