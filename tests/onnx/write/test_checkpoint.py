"""Checkpoints that are not what they should be: an error of ours, and nothing waits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import graphport as gp
from graphport.errors import SerializationError

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def program() -> Any:
    with gp.fake_mode():
        model = torch.nn.Linear(4, 2)
    return gp.onnx.export(model, (torch.ones(3, 4),))


def refused(program: Any, folder: Path, state: Path, *said: str) -> None:
    with pytest.raises(SerializationError) as error:
        program.save(folder / "model.onnx", state_dict=state)
    for text in said:
        assert text in str(error.value)


@pytest.mark.parametrize(
    "index",
    [
        {"weight_map": {"weight": 5}},
        {"weight_map": {"weight": ["a.safetensors"]}},
        {"weight_map": {"weight": None}},
        {"weight_map": ["a.safetensors"]},
        {"weight_map": 5},
        {"weight": 5},
        [],
        5,
        "[" * 100_000,
        '{"weight_map": {"weight": "a", "weight": "b"}}',
        b"\xff\xfe",
        b"",
    ],
    ids=lambda index: (index if isinstance(index, bytes) else json.dumps(index).encode())[:30],
)
def test_index_of_another_kind(program: Any, tmp_path: Path, index: Any) -> None:
    text = index if isinstance(index, (str, bytes)) else json.dumps(index)
    (tmp_path / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(program, tmp_path, tmp_path, "is not the index of a checkpoint")


@pytest.mark.parametrize("name", [INDEX, "other.index.json", "notes.txt", "a", ""])
def test_index_that_names_what_has_no_tensors(program: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "other.index.json").write_text(json.dumps({"weight_map": {"bias": INDEX}}))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"weight": name}}))
    refused(program, tmp_path, tmp_path / INDEX, "names")


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "b/a.safetensors", "."])
def test_index_that_leaves_its_folder(program: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"weight": name}}))
    refused(program, tmp_path, tmp_path / INDEX, "which is not in its folder")


def made(path: Path, kind: str) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("name", ["a.safetensors", "a.bin", "a.pt"])
def test_shard_that_is_no_file(program: Any, tmp_path: Path, kind: str, name: str) -> None:
    made(tmp_path / name, kind)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"weight": name, "bias": name}}))
    refused(program, tmp_path, tmp_path, "is no regular file")


@pytest.mark.parametrize("name", [INDEX, "model.safetensors", "model.pt"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_checkpoint_that_is_no_file(program: Any, tmp_path: Path, kind: str, name: str) -> None:
    refused(program, tmp_path, made(tmp_path / name, kind), "is no regular file")


def test_index_larger_than_any(program: Any, tmp_path: Path) -> None:
    with open(tmp_path / INDEX, "wb") as file:
        file.truncate(1 << 30)
    refused(program, tmp_path, tmp_path, "is too large to be the index of a checkpoint")


def test_names_in_errors_are_escaped(program: Any, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "\x1b[2J.safetensors"}}))
    with pytest.raises(SerializationError) as error:
        program.save(tmp_path / "model.onnx", state_dict=tmp_path)
    assert "\x1b" not in str(error.value)


def test_good_index(program: Any, tmp_path: Path) -> None:
    weights = {"weight": torch.randn(2, 4), "bias": torch.randn(2)}
    for name, t in weights.items():
        save_file({name: t}, tmp_path / f"{name}.safetensors")
    places = {name: f"{name}.safetensors" for name in weights}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    program.save(tmp_path / "model.onnx", state_dict=tmp_path)
    assert (tmp_path / "model.onnx").exists()
