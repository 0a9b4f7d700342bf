"""Checkpoints under `gp.fake_mode()`: references into files, which modules take over."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, load, nn

import graphport as gp
from graphport.tensors.lazy import WeightlessTensor


class Model(nn.Module):
    """Tied weights, statistics, a buffer that is computed and one that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("positions", torch.arange(8.0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids)) * self.scale + self.positions)


def trained() -> Model:
    model = Model().eval()
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            if t.is_floating_point() and t is not model.positions:
                t.add_(torch.rand(t.shape))
    return model


def with_torch(path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    torch.save(weights, path / "model.bin")
    return load(path / "model.bin")


def with_torch_in_shards(path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names = list(weights)
    for i in range(3):
        torch.save({n: weights[n].clone() for n in names[i::3]}, path / f"model-{i}.bin")
    loaded: dict[str, Tensor] = {}
    for i in range(3):
        loaded.update(torch.load(str(path / f"model-{i}.bin"), map_location="cpu", mmap=True))
    return loaded


def saved_safely(path: Path, weights: dict[str, Tensor]) -> Path:
    save_file({k: v.clone() for k, v in weights.items()}, path / "model.safetensors")
    return path / "model.safetensors"


def with_load_file(path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return load_file(saved_safely(path, weights))


def with_safe_open(path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    with safetensors.safe_open(saved_safely(path, weights), framework="pt", device="cpu") as f:
        return {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  it is no dict


def with_slices(path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    with safe_open(str(saved_safely(path, weights)), "pt") as f:
        return {k: f.get_slice(k)[...] for k in f.offset_keys()}


LOADERS = (with_torch, with_torch_in_shards, with_load_file, with_safe_open, with_slices)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("loader", LOADERS)
def test_weights_come_back_as_they_were(loader: Any, assign: bool, tmp_path: Path) -> None:
    real = trained()
    with gp.fake_mode():
        model = Model().eval()
        weights = loader(tmp_path, real.state_dict())
        assert all(type(t) is WeightlessTensor for t in weights.values())
        model.load_state_dict(weights, assign=assign)
        if assign:
            model.head.weight = model.embed.weight
    assert model.head.weight is model.embed.weight
    assert type(model.positions) is Tensor
    ep = gp.export(model, (torch.arange(5),))
    assert str(ep) == str(gp.export(real, (torch.arange(5),)))
    for key, want in real.state_dict().items():
        have = ep.state_dict[key]
        if isinstance(have, WeightlessTensor):
            assert have.reference is not None and have.has_data
            assert b"".join(have.reference.chunks(13)) == want.numpy().tobytes()
            have = have.read()
        assert have.dtype is want.dtype and torch.equal(have, want), key
    for name, p in model.named_parameters():
        assert type(p) is WeightlessTensor and p.requires_grad, name
    module = ep.module()
    known = {k: v.read() for k, v in module.state_dict().items() if hasattr(v, "read")}
    with pytest.raises(gp.errors.NoDataError, match=r"v.read\(\) for k, v in module.state_dict"):
        module(torch.arange(5))
    module.load_state_dict(known, strict=False, assign=True)
    torch.testing.assert_close(module(torch.arange(5)), real(torch.arange(5)))


def test_conversions_are_remembered(tmp_path: Path) -> None:
    real = trained()
    with gp.fake_mode():
        model = Model()
        model.load_state_dict(with_load_file(tmp_path, real.state_dict()))
        low = Model().to(torch.bfloat16)
        low.load_state_dict(load_file(tmp_path / "model.safetensors"))
    model.half()
    for name, want in real.named_parameters():
        assert torch.equal(model.get_parameter(name).read(), want.half())
        assert torch.equal(low.get_parameter(name).read(), want.bfloat16())
        assert low.get_parameter(name).reference is None


def test_checkpoints_are_converted_before_they_are_loaded(tmp_path: Path) -> None:
    """Renamed, transposed, cut and joined, as scripts that convert checkpoints do."""
    q, k, v = (torch.randn(4, 6) for _ in range(3))
    save_file({"q": q, "kv": torch.cat([k, v])}, tmp_path / "old.safetensors")
    with gp.fake_mode():
        old = load_file(tmp_path / "old.safetensors")
        keys, values = old["kv"].chunk(2)
        model = nn.Linear(12, 6, bias=False)
        model.load_state_dict({"weight": torch.cat([old["q"], keys, values]).t().contiguous()})
        whole = nn.Linear(6, 4, bias=False)
        whole.load_state_dict({"weight": values}, assign=True)
    assert torch.equal(model.weight.read(), torch.cat([q, k, v]).t())
    assert torch.equal(whole.weight.read(), v)
    assert whole.weight.reference is not None and whole.weight.reference.name == "kv"


def test_what_is_changed_after_loading_is_not_what_is_in_the_file(tmp_path: Path) -> None:
    weights = {"weight": torch.randn(4, 4)}
    save_file(weights, tmp_path / "w.safetensors")
    with gp.fake_mode():
        model = nn.Linear(4, 4, bias=False)
        model.load_state_dict(load_file(tmp_path / "w.safetensors"))
    with torch.no_grad():
        model.weight[0].zero_()
    want = weights["weight"].clone()
    want[0] = 0
    assert model.weight.reference is None and torch.equal(model.weight.read(), want)
    nn.init.normal_(model.weight)
    assert not model.weight.has_data


def test_tensors_that_share_memory_in_a_file_share_it(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    torch.save({"all": base, "part": base[4:8], "turned": base.view(3, 4).t()}, tmp_path / "f.pt")
    with gp.fake_mode():
        found = torch.load(tmp_path / "f.pt")
    assert found["part"].reference.nbytes == 16 and found["turned"].stride() == (1, 4)
    assert torch.equal(found["turned"].read(), base.view(3, 4).t())
    found["all"].mul_(2)
    assert found["part"].read().tolist() == [8, 10, 12, 14]


def test_everything_around_tensors_is_as_ever(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    saved = {
        "model": model.state_dict(),
        "step": 3,
        "nested": [{"x": torch.ones(2)}, "text"],
        "parameter": nn.Parameter(torch.ones(2), requires_grad=False),
    }
    torch.save(saved, tmp_path / "checkpoint.pt")
    torch.save(model, tmp_path / "module.pt")
    with gp.fake_mode():
        found = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        module = torch.load(tmp_path / "module.pt", weights_only=False)
        with pytest.raises(Exception, match="Weights only load failed"):
            torch.load(tmp_path / "module.pt", weights_only=True)
    assert found["step"] == 3 and found["nested"][1] == "text"
    assert found["model"]._metadata == model.state_dict()._metadata
    assert isinstance(found["parameter"], nn.Parameter) and not found["parameter"].requires_grad
    assert found["nested"][0]["x"].read().tolist() == [1, 1]
    assert torch.equal(module[0].weight.read(), model[0].weight)
    assert isinstance(module[0].weight, nn.Parameter)


def test_files_without_a_place_for_references_are_loaded(tmp_path: Path) -> None:
    weights = {"w": torch.randn(3)}
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    buffer.seek(0)
    with gp.fake_mode():
        assert torch.equal(torch.load(buffer)["w"], weights["w"])
        assert torch.equal(torch.load(tmp_path / "old.pt")["w"], weights["w"])
        assert torch.load(tmp_path / "old.pt", map_location="meta")["w"].is_meta
        torch.save(weights, tmp_path / "new.pt")
        assert torch.load(tmp_path / "new.pt", map_location="meta")["w"].is_meta
        with pytest.raises(FileNotFoundError):
            torch.load(tmp_path / "none.pt")


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor",
    "ignore:Validating sparse tensor invariants",
    "ignore:Sparse invariant checks are implicitly disabled",
    "ignore:TypedStorage is deprecated",
    "ignore:torch.quantize_per_tensor",
)
def test_tensors_that_are_not_strided_are_loaded(tmp_path: Path) -> None:
    eye = torch.eye(3)
    weights = {"w": torch.randn(2), "sparse": eye.to_sparse(), "rows": eye.to_sparse_csr()}
    torch.save(weights, tmp_path / "sparse.pt")
    with gp.fake_mode():
        loaded = torch.load(tmp_path / "sparse.pt")
    assert type(loaded["w"]) is WeightlessTensor
    for name in ("sparse", "rows"):
        assert loaded[name].layout is weights[name].layout
        assert torch.equal(loaded[name].to_dense(), weights[name].to_dense())
    product = torch.sparse.mm(loaded["sparse"], torch.ones(3, 2))
    assert torch.equal(product, torch.ones(3, 2))
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    torch.save({**weights, "q": quantised}, tmp_path / "q.pt")
    with gp.fake_mode():
        loaded = torch.load(tmp_path / "q.pt")
    assert torch.equal(loaded["q"].dequantize(), torch.ones(3))
    assert torch.equal(loaded["w"], weights["w"])


def test_outside_of_the_mode_files_are_loaded(tmp_path: Path) -> None:
    saved_safely(tmp_path, {"w": torch.ones(2)})
    with gp.fake_mode():
        reference = load_file(tmp_path / "model.safetensors")["w"]
    for loaded in (load_file(tmp_path / "model.safetensors"),):
        assert type(loaded["w"]) is Tensor and torch.equal(loaded["w"], reference.read())
    with safe_open(tmp_path / "model.safetensors", "pt") as f:
        assert type(f) is safe_open and type(f.get_tensor("w")) is Tensor


def test_a_safetensors_file_as_its_own_reader_shows_it(tmp_path: Path) -> None:
    dtypes = (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
    weights = {str(d): torch.arange(6).view(2, 3).to(d) for d in dtypes}
    weights |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}
    save_file(weights, tmp_path / "all.safetensors", metadata={"format": "pt"})
    with safe_open(tmp_path / "all.safetensors", "pt") as theirs, gp.fake_mode():
        with safe_open(tmp_path / "all.safetensors", framework="pt") as ours:
            assert sorted(ours.keys()) == sorted(theirs.keys())
            assert ours.offset_keys() == theirs.offset_keys()
            assert ours.metadata() == theirs.metadata()
            for name, want in weights.items():
                assert ours.get_slice(name).get_shape() == theirs.get_slice(name).get_shape()
                assert ours.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
                have = ours.get_tensor(name)
                assert have.dtype is want.dtype
                assert have.read().tolist() == want.tolist(), name
            part = ours.get_slice(str(torch.float64))[1:, :2]
            assert part.read().tolist() == [[3, 4]]
            with pytest.raises(KeyError, match="does not contain tensor missing"):
                ours.get_tensor("missing")
        with safe_open(tmp_path / "all.safetensors", "np") as numpy:
            assert numpy.get_tensor("scalar") == 2.5
        with safe_open(tmp_path / "all.safetensors", "pt", device="meta") as meta:
            assert meta.get_tensor("scalar").is_meta
        with pytest.raises(FileNotFoundError):
            safe_open(tmp_path / "none.safetensors", "pt")


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bytes that are not there": lambda h: h["w"].update(data_offsets=[0, 800]),
    "another size": lambda h: h["w"].update(shape=[3]),
    "a negative place": lambda h: h["w"].update(data_offsets=[-8, 0]),
    "an unknown dtype": lambda h: h["w"].update(dtype="F7"),
    "no place": lambda h: h["w"].pop("data_offsets"),
    "no dict": lambda h: h.update(w=3),
    "negative sizes": lambda h: h["w"].update(shape=[-1, -2]),
    "a place between bytes": lambda h: h["w"].update(data_offsets=[0.0, 8.0]),
    "sizes that are no list": lambda h: h["w"].update(shape=""),
    "sizes beyond all memory": lambda h: h["w"].update(shape=[0, 1 << 40, 1 << 40]),
    "notes that are no text": lambda h: h.update(__metadata__={"format": 3}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_broken_files_are_refused(name: str, tmp_path: Path) -> None:
    path = saved_safely(tmp_path, {"w": torch.ones(2)})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    HEADERS[name](header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with gp.fake_mode(), pytest.raises(gp.errors.SerializationError, match="not a valid"):
        load_file(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"123",
        b"\xff" * 40,
        (5).to_bytes(8, "little") + b"{]...",
        (99_999).to_bytes(8, "little") + b"[" * 99_999,
    ],
    ids=["empty", "short", "large", "no JSON", "deep"],
)
def test_files_that_are_no_safetensors_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with gp.fake_mode(), pytest.raises(gp.errors.SerializationError, match="not a valid"):
        load_file(path)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pretrained_models_from_shards(dtype: torch.dtype, tmp_path: Path) -> None:
    config = hf.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=99,
        use_cache=False,
    )
    real = hf.LlamaForCausalLM(config).eval()
    real.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    with gp.fake_mode():
        model = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    for name, want in real.named_parameters():
        assert torch.equal(model.get_parameter(name).read(), want.to(dtype)), name
    ids = torch.zeros(2, 4, dtype=torch.int64)
    real = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    assert type(real.lm_head.weight) is nn.Parameter
    assert str(gp.export(model, (ids,))) == str(gp.export(real, (ids,)))


MEASURED = """
import resource, torch, graphport as gp
from safetensors.torch import load_file
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def build():
    return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(16)))
with gp.fake_mode():
    model = build()
torch.ones(1 << 20).sum().item()
before = peak()
with gp.fake_mode():
    model.load_state_dict({load})
gp.export(model, (torch.ones(1, 2048),))
largest = sum(p.read()[0, 0].item() for p in model.parameters())
print(peak() - before, largest)
"""


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin"])
def test_memory_is_that_of_one_tensor(
    name: str, tmp_path: Path, fresh_python: Callable[[str], str]
) -> None:
    """256 MB of weights, 16 MB each."""
    weights = {f"{i}.weight": torch.full((2048, 2048), float(i)) for i in range(16)}
    path = tmp_path / name
    (save_file if path.suffix == ".safetensors" else torch.save)(weights, path)
    read = "load_file" if path.suffix == ".safetensors" else "torch.load"
    memory, total = fresh_python(MEASURED.format(load=f"{read}({str(path)!r})")).split()
    assert int(memory) < 100 and float(total) == sum(range(16))
