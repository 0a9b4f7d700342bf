"""Files: weights within and beside the model, from checkpoints, tied, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import safetensors.torch as safetensors
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError, NoDataError, SerializationError, WeightsError


class Model(nn.Module):
    """Weights of several dtypes, a tied one, a buffer that is computed, and one that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=False)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("table", torch.arange(320.0).reshape(10, 32) / 100, persistent=False)
        self.register_buffer("shift", torch.arange(32.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.embed.weight + self.table[0] + self.shift
        x = self.down(torch.relu(self.up(x))) * self.scale
        return self.head(x)


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def empty() -> Model:
    with gp.fake_mode():
        return Model()


x = torch.randn(3, 50)


def run(path: Path, given: torch.Tensor = x) -> torch.Tensor:
    session = onnxruntime.InferenceSession(path)
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: given.numpy()})[0])


def check(path: Path, model: nn.Module) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    torch.testing.assert_close(run(path), model(x).detach(), rtol=1e-4, atol=1e-4)


# Layouts


def test_inline(model: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(model, (x,))
    program.save(tmp_path / "m.onnx")
    check(tmp_path / "m.onnx", model)
    assert os.listdir(tmp_path) == ["m.onnx"]
    loaded = onnx.load(tmp_path / "m.onnx")
    names = [i.name for i in loaded.graph.initializer]
    assert sorted(names) == sorted(i.name for i in program.model_proto.graph.initializer)


def test_beside(model: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(model, (x,))
    program.save(str(tmp_path / "m.onnx"), external_data=True)
    name, data = sorted(os.listdir(tmp_path), key=len)
    assert name == "m.onnx" and re.fullmatch(r"m\.onnx\.[0-9a-f]{16}\.data", data)
    check(tmp_path / "m.onnx", model)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for t in proto.graph.initializer:
        said = {e.key: e.value for e in t.external_data}
        if said:
            assert int(said["offset"]) % 4096 == 0 and said["location"] == data
        else:
            assert len(t.raw_data) < 1024


def test_both_layouts_hold_the_same(model: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(model, (x,))
    program.save(tmp_path / "a.onnx", external_data=False)
    program.save(tmp_path / "b.onnx", external_data=True)
    a, b = onnx.load(tmp_path / "a.onnx"), onnx.load(tmp_path / "b.onnx")
    for one, two in zip(a.graph.initializer, b.graph.initializer, strict=True):
        assert one.name == two.name and one.raw_data == two.raw_data
    assert a.SerializeToString(deterministic=True) == program.model_proto.SerializeToString(
        deterministic=True
    )


def test_tied_weights_are_stored_once(model: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(model, (x,))
    names = [i.name for i in program.model_proto.graph.initializer]
    assert "embed.weight" in names and "head.weight" not in names
    assert not any(n.startswith("head") for n in names)


def test_views_of_one_memory_are_stored_once(tmp_path: Path) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.randn(64, 64)
            self.register_buffer("a", memory[:])
            self.register_buffer("b", memory[:])
            self.register_buffer("c", memory.t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.a + x @ self.b + x @ self.c

    model, given = Views(), torch.randn(2, 64)
    gp.onnx.export(model, (given,)).save(tmp_path / "m.onnx", external_data=True)
    (data,) = tmp_path.glob("m.onnx.*.data")
    assert data.stat().st_size == 2 * 64 * 64 * 4
    torch.testing.assert_close(run(tmp_path / "m.onnx", given), model(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn], ids=str
)
def test_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randint(0, 2, (40, 50)).to(dtype))

        def forward(self) -> Any:
            return self.w, self.w.t()

    model = Holder()
    program = gp.onnx.export(model)
    for external in (True, False):
        program.save(tmp_path / "m.onnx", external_data=external)
        loaded = onnx.load(tmp_path / "m.onnx")
        (w,) = (i for i in loaded.graph.initializer if i.name == "w")
        assert w.raw_data == bytes(model.w.view(torch.uint8).numpy())


def test_weights_that_do_not_lie_in_order(tmp_path: Path) -> None:
    class Strange(nn.Module):
        """The first is larger than what is put in order at a time."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(120_000, 40).t())
            self.register_buffer("v", torch.randn(40, 240_000)[:, ::2])
            self.register_buffer("u", torch.randn(1, 120_000).expand(40, 120_000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w + x @ self.v + x @ self.u

    model, given = Strange(), torch.randn(3, 40)
    program = gp.onnx.export(model, (given,))
    for external in (True, False):
        program.save(tmp_path / "m.onnx", external_data=external)
        torch.testing.assert_close(
            run(tmp_path / "m.onnx", given), model(given).detach(), rtol=1e-4, atol=1e-4
        )
    torch.testing.assert_close(program(given), model(given).detach(), rtol=1e-4, atol=1e-4)


def test_options_that_are_refused(model: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(model, (x,))
    with pytest.raises(InputError, match='external_data is True or False or None or "auto", got'):
        program.save(tmp_path / "m.onnx", external_data="always")
    with pytest.raises(InputError, match="state_dict is of type int"):
        program.save(tmp_path / "m.onnx", state_dict=3)
    with pytest.raises(InputError, match="there is no such file or folder"):
        program.save(tmp_path / "m.onnx", state_dict=tmp_path / "nothing")
    assert os.listdir(tmp_path) == []


# Whole or not at all


@pytest.mark.parametrize("external", [True, False])
def test_a_failure_leaves_what_was_there(model: Model, tmp_path: Path, external: bool) -> None:
    state = saved(model)
    torch.save({"down.weight": state.pop("down.weight")}, tmp_path / "w.pt")
    with gp.fake_mode():
        state.update(torch.load(tmp_path / "w.pt"))
    program = gp.onnx.export(model, (x,))
    program.save(tmp_path / "m.onnx", external_data=external, state_dict=state)
    check(tmp_path / "m.onnx", model)
    torch.save({}, tmp_path / "w.pt")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(NoDataError, match="it has been written to since"):
        program.save(tmp_path / "m.onnx", external_data=external, state_dict=state)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_that_is_not_there(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "m.onnx"
    with pytest.raises(FileNotFoundError, match=f"{path}'"):
        gp.onnx.export(model, (x,)).save(path)


class Normed(nn.Module):
    """A convolution whose weights the file has in another form, and some as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 70)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.conv(x)).mean((2, 3)))


def test_weights_that_change_after_the_export(tmp_path: Path) -> None:
    """All of them are what they are at the time, in calls and in files; never some of them."""
    model, other, given = Normed().eval(), Normed().eval(), torch.randn(2, 3, 6, 6)
    program = gp.onnx.export(model, (given,))
    session = program.session
    torch.testing.assert_close(program(given), model(given), rtol=1e-4, atol=1e-4)
    assert program.session is session
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(program(given), other(given), rtol=1e-4, atol=1e-4)
    assert program.verify().ok
    for external in (True, False):
        program.save(tmp_path / "m.onnx", external_data=external)
        torch.testing.assert_close(
            run(tmp_path / "m.onnx", given), other(given).detach(), rtol=1e-4, atol=1e-4
        )
    onnx.save(program.model_proto, tmp_path / "m.onnx")
    torch.testing.assert_close(
        run(tmp_path / "m.onnx", given), other(given).detach(), rtol=1e-4, atol=1e-4
    )


def test_weights_that_are_of_another_dtype_by_now(tmp_path: Path) -> None:
    layer = nn.Linear(40, 30)
    program = gp.onnx.export(layer, (torch.ones(2, 40),))
    layer.half()
    with pytest.raises(WeightsError) as caught:
        program.save(tmp_path / "m.onnx")
    assert str(caught.value) == (
        "GP171 weight was float32[30, 40] when the model was exported, and is float16[30, 40] now\n"
        "  fix  export the model as it is now"
    )


def test_what_is_no_file_is_written_to(model: Model, tmp_path: Path) -> None:
    """Nobody wants /dev/null to be replaced."""
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    gp.onnx.export(model, (x,)).save(tmp_path / "pipe")
    reader.join()
    assert os.listdir(tmp_path) == ["pipe"] and (tmp_path / "pipe").is_fifo()
    onnx.checker.check_model(found[0])


def test_a_folder_is_not_written_to(model: Model, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"{tmp_path}'"):
        gp.onnx.export(model, (x,)).save(tmp_path)


# Weights from elsewhere


def saved(model: Model) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def as_mapping(state: dict[str, torch.Tensor], folder: Path) -> Any:
    return state


def as_safetensors(state: dict[str, torch.Tensor], folder: Path) -> Any:
    del state["head.weight"]  # tied: the format has it once
    safetensors.save_file(state, folder / "w.safetensors")
    return folder / "w.safetensors"


def as_pickle(state: dict[str, torch.Tensor], folder: Path) -> Any:
    torch.save(state, folder / "w.pt")
    return str(folder / "w.pt")


def as_nested_pickle(state: dict[str, torch.Tensor], folder: Path) -> Any:
    torch.save({"epoch": 3, "state_dict": state}, folder / "w.ckpt")
    return folder / "w.ckpt"


def as_old_pickle(state: dict[str, torch.Tensor], folder: Path) -> Any:
    torch.save(state, folder / "w.bin", _use_new_zipfile_serialization=False)
    return folder / "w.bin"


def as_shards(state: dict[str, torch.Tensor], folder: Path) -> Any:
    del state["embed.weight"]  # under its other name only
    return sharded(state, folder, "safetensors", safetensors.save_file)


def as_pickled_shards(state: dict[str, torch.Tensor], folder: Path) -> Any:
    return sharded(state, folder, "bin", torch.save)


def as_index(state: dict[str, torch.Tensor], folder: Path) -> Any:
    return as_shards(state, folder) / "model.safetensors.index.json"


def as_folder(state: dict[str, torch.Tensor], folder: Path) -> Any:
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def sharded(
    state: dict[str, torch.Tensor], folder: Path, suffix: str, save: Callable[..., Any]
) -> Path:
    names = sorted(state)
    places = {}
    for i in range(2):
        file = f"model-{i + 1}-of-2.{suffix}"
        part = {n: state[n] for n in names[i::2]}
        save(part, folder / file)
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": places}
    (folder / f"model.{suffix}.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    "given",
    [
        as_mapping,
        as_safetensors,
        as_pickle,
        as_nested_pickle,
        as_old_pickle,
        as_shards,
        as_pickled_shards,
        as_index,
        as_folder,
    ],
)
@pytest.mark.parametrize("external", [True, False])
def test_weights_from(
    given: Any, external: bool, model: Model, empty: Model, tmp_path: Path
) -> None:
    program = gp.onnx.export(empty, (x,))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    source = given(saved(model), folder)
    program.save(tmp_path / "m.onnx", external_data=external, state_dict=source)
    check(tmp_path / "m.onnx", model)


def test_weights_for_a_model_on_the_meta_device(model: Model, tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 2))
    real = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 2))
    program = gp.onnx.export(empty, (torch.empty(3, 50, device="meta"),))
    program.save(tmp_path / "m.onnx", state_dict=real.state_dict())
    check(tmp_path / "m.onnx", real)


def test_references_that_the_model_has_already(model: Model, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "w.pt")
    with gp.fake_mode():
        empty = Model()
        empty.load_state_dict(torch.load(tmp_path / "w.pt"), assign=True)
    gp.onnx.export(empty, (x,)).save(tmp_path / "m.onnx")
    check(tmp_path / "m.onnx", model)


def test_other_weights_for_a_model_that_has_some(model: Model, tmp_path: Path) -> None:
    other = Model()
    gp.onnx.export(model, (x,)).save(tmp_path / "m.onnx", state_dict=other.state_dict())
    check(tmp_path / "m.onnx", other)


def test_transposed_weights(tmp_path: Path) -> None:
    real, given = nn.Linear(40, 30), torch.randn(2, 3, 40)
    with gp.fake_mode():
        empty = nn.Linear(40, 30)
    program = gp.onnx.export(empty, (given,))
    safetensors.save_file(dict(real.state_dict()), tmp_path / "w.safetensors")
    for external in (True, False):
        program.save(
            tmp_path / "m.onnx", external_data=external, state_dict=tmp_path / "w.safetensors"
        )
        torch.testing.assert_close(
            run(tmp_path / "m.onnx", given), real(given).detach(), rtol=1e-4, atol=1e-5
        )


def test_state_from_a_checkpoint(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return x * self.n

    one = torch.ones(2)
    program = gp.onnx.export(Counter(), (one,))
    program.save(tmp_path / "m.onnx", state_dict={"n": torch.tensor(6.0)})
    assert run(tmp_path / "m.onnx", one).tolist() == [7.0, 7.0]
    assert program(one).tolist() == [1.0, 1.0]


def test_a_small_parameter_is_not_computed_with_at_export(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k = nn.Parameter(torch.tensor([2]), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k + x / self.k

    with gp.fake_mode():
        empty = Scaled()
    program = gp.onnx.export(empty, (torch.ones(2),))
    program.save(tmp_path / "m.onnx", state_dict={"k": torch.tensor([4])})
    assert run(tmp_path / "m.onnx", torch.ones(2)).tolist() == [4.25, 4.25]


def test_without_weights_nothing_is_written(empty: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(empty, (x,))
    with pytest.raises(NoDataError) as caught:
        program.save(tmp_path / "m.onnx")
    assert str(caught.value) == (
        "GP170 there is no data for embed.weight, up.weight, up.bias, down.weight, scale\n"
        "  fix  program.save(path, state_dict=...)"
    )
    assert os.listdir(tmp_path) == []
    assert len(program.model_proto.graph.initializer) >= 6


def test_everything_that_does_not_fit_is_named(model: Model, empty: Model, tmp_path: Path) -> None:
    state = saved(model)
    del state["up.bias"], state["scale"]
    state["up.weight"] = state["up.weight"].t()
    state["embed.weight"] = state["embed.weight"].half()
    state["down.weight"] = torch.empty(32, 64, device="meta")
    state["unused"] = torch.ones(3)
    program = gp.onnx.export(empty, (x,))
    with pytest.raises(WeightsError) as caught:
        program.save(tmp_path / "m.onnx", state_dict=state)
    assert str(caught.value) == (
        "GP171 the weights do not fit the model\n"
        "  missing: up.bias; down.weight (there is no data in what was given); scale\n"
        "  of another shape: up.weight is [32, 64], not [64, 32]\n"
        "  of another dtype: embed.weight is float16, not float32"
    )
    assert os.listdir(tmp_path) == []


def test_checkpoints_that_are_broken(empty: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(empty, (x,))
    path = tmp_path / "m.onnx"
    index = tmp_path / "model.safetensors.index.json"

    def refused(text: str, kind: type[Exception] = SerializationError) -> None:
        with pytest.raises(kind, match=text):
            program.save(path, state_dict=tmp_path)
        assert not path.exists()

    refused("has no checkpoint", InputError)
    index.write_text("[]")
    refused("is not the index of a checkpoint")
    index.write_text(json.dumps({"weight_map": {"a": "../w.safetensors"}}))
    refused("which is not in its folder")
    index.write_text(json.dumps({"weight_map": {"a": "w.safetensors"}}))
    refused("names files that are not there: w.safetensors")
    safetensors.save_file({"b": torch.ones(2)}, tmp_path / "w.safetensors")
    refused("names tensors that its files do not have: a")
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 20)
    refused("is not a valid safetensors file")
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(SerializationError, match="has no state dict, but list"):
        program.save(path, state_dict=tmp_path / "w.pt")
    (tmp_path / "w.npy").write_bytes(b"")
    with pytest.raises(InputError, match="is not known to be a checkpoint"):
        program.save(path, state_dict=tmp_path / "w.npy")


def test_names_that_are_not_the_models(model: Model, empty: Model, tmp_path: Path) -> None:
    """Also for a model that has weights: it would be written with those, in silence."""
    state = saved(model)
    wrapped = {f"module.{name}": t for name, t in state.items()}
    for target in (model, empty):
        program = gp.onnx.export(target, (x,))
        with pytest.raises(WeightsError, match="none of them is one of its own") as caught:
            program.save(tmp_path / "m.onnx", state_dict=wrapped)
        assert caught.value.fix == [
            'state_dict={name.removeprefix("module."): t for name, t in weights.items()}'
        ]
        with pytest.raises(WeightsError) as caught:
            program.save(tmp_path / "m.onnx", state_dict={"epoch": 3, "model": state})
        assert caught.value.fix == ["state_dict=checkpoint['model']"]
        with pytest.raises(WeightsError, match="given: none"):
            program.save(tmp_path / "m.onnx", state_dict={})
    assert os.listdir(tmp_path) == []


def test_checkpoints_that_cannot_be_read(empty: Model, tmp_path: Path) -> None:
    program = gp.onnx.export(empty, (x,))
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_text("version https://git-lfs.github.com/spec/v1")
    for name in ("whole", "empty", "text"):
        with pytest.raises(SerializationError, match=rf"{name}.pt cannot be read: \w") as caught:
            program.save(tmp_path / "m.onnx", state_dict=tmp_path / f"{name}.pt")
        assert "torch.save(model.state_dict(), path)" in str(caught.value)


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("echo evil",))


def test_pickles_are_not_run(empty: Model, tmp_path: Path) -> None:
    torch.save({"a": Evil()}, tmp_path / "w.pt")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        gp.onnx.export(empty, (x,)).save(tmp_path / "m.onnx", state_dict=tmp_path / "w.pt")
