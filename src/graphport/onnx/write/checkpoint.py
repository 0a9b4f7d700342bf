"""Reads weights from checkpoints and matches them with a model exported without any.

A file is read as references to its regions, as under `gp.fake_mode()`: bytes are read when they are
written to the model. Nothing is written before every weight is known to be there and to fit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphport.capture.fake_mode import Shard, fake_mode
from graphport.errors import InputError, SerializationError, WeightsError
from graphport.onnx.emit.ir import Value, current_tensor, source_weights
from graphport.onnx.write.weights import has_data
from graphport.program.files import json_reader
from graphport.program.files.json_reader import parse_json
from graphport.tensors.lazy_source import FileRegion

_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_INDEX_SUFFIX = ".index.json"
_SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
_SHARD_SUFFIXES = (".safetensors", *_PICKLE_SUFFIXES)
_CPU = torch.device("cpu")


def read_checkpoint(given: object) -> Mapping[str, object]:
    """The tensors of a mapping, a file, or a folder with a sharded checkpoint, by name."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, str | os.PathLike):
        raise InputError(
            f"state_dict is of type {type(given).__name__}",
            fix="a mapping, a .safetensors, .pt or .bin file, or the folder of a checkpoint",
        )
    path = Path(given)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise InputError(f"state_dict={str(path)!r}: there is no such file or folder")
    return _read_file(path)


def _read_folder(folder: Path) -> Mapping[str, object]:
    """One with an index, or with a single file under its usual name."""
    indices = sorted(
        folder.glob(f"*{_INDEX_SUFFIX}"), key=lambda p: ("safetensors" not in p.name, p.name)
    )
    if indices:
        return _read_shards(indices[0])
    shards = sorted(folder.glob("*.safetensors"))
    single = [folder / name for name in _SINGLE_FILES if (folder / name).exists()]
    chosen = single[:1] or shards
    if not chosen:
        raise InputError(
            f"{folder} has no checkpoint: no *{_INDEX_SUFFIX}, {', '.join(_SINGLE_FILES)} or "
            "*.safetensors"
        )
    return {name: t for path in chosen for name, t in _read_file(path).items()}


def _read_shards(index: Path) -> dict[str, object]:
    places = _read_weight_map(index)
    files = sorted(set(places.values()))
    outside = [f for f in files if Path(f).name != f]
    if outside:
        raise SerializationError(f"{index} names {outside[0]!r}, which is not in its folder")
    other = [f for f in files if Path(f).suffix not in _SHARD_SUFFIXES]
    if other:
        raise SerializationError(f"{index} names {other[0]!r}, which is no file of tensors")
    lost = [f for f in files if not (index.parent / f).exists()]
    if lost:
        raise SerializationError(f"{index} names files that are not there: {', '.join(lost)}")
    shards = {f: _read_file(index.parent / f) for f in files}
    absent = [name for name, f in places.items() if name not in shards[f]]
    if absent:
        raise SerializationError(
            f"{index} names tensors that its files do not have: {', '.join(absent[:5])}"
        )
    return {name: shards[f][name] for name, f in places.items()}


def _read_weight_map(index: Path) -> dict[str, str]:
    """Which file each tensor is in."""
    if _file_size(index) > json_reader.HEADER_BYTES:
        raise SerializationError(f"{index} is too large to be the index of a checkpoint")
    try:
        found = parse_json(index.read_bytes(), str(index)).named().get("weight_map")
        if found is None:
            raise SerializationError("the field 'weight_map' is missing", where=str(index))
        return {name: item.text() for name, item in found.named().items()}
    except SerializationError as error:
        raise SerializationError(
            f"{index} is not the index of a checkpoint: {error.what}", where=error.where
        ) from None


def _file_size(path: Path) -> int:
    try:
        return FileRegion.stamp_of(path)[0]
    except OSError as error:
        raise SerializationError(f"{path} cannot be read: {error}") from None


def _read_file(path: Path) -> Mapping[str, object]:
    if path.name.endswith(_INDEX_SUFFIX):
        return _read_shards(path)
    _file_size(path)
    if path.suffix == ".safetensors":
        return Shard(path, _CPU).get_tensors()
    if path.suffix not in _PICKLE_SUFFIXES:
        raise InputError(
            f"{path} is not known to be a checkpoint",
            fix=f"one of .safetensors, {', '.join(_PICKLE_SUFFIXES)}, or a folder",
        )
    try:
        with fake_mode():
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that is none of its own torch raises anything
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise SerializationError(
            f"{path} cannot be read: {why[0].partition('. ')[0]}",
            fix="a file that torch.save(model.state_dict(), path) has written",
        ) from error
    inner = loaded.get("state_dict") if isinstance(loaded, Mapping) else None
    found = inner if isinstance(inner, Mapping) else loaded
    if not isinstance(found, Mapping):
        raise SerializationError(f"{path} has no state dict, but {type(found).__name__}")
    return found


def match_weights(
    initializers: Mapping[str, Value],
    origins: Mapping[str, str],
    state: Mapping[str, object],
    given: Mapping[str, object],
) -> dict[str, Any]:
    """The tensors of a model, those that are given among them.

    `origins` says which parameter, buffer or constant an initialiser is. A tied weight may be given
    under any of its names in `state`.
    """
    names = _names_by_tensor(state)
    used: set[str] = set()
    problems: dict[str, list[str]] = {"missing": [], "of another shape": [], "of another dtype": []}
    known: dict[Value, Any] = {}
    for source in dict.fromkeys(
        s for value in initializers.values() for s in source_weights(value)
    ):
        origin = origins.get(source.name)
        aliases = (origin, *names.get(id(state.get(origin)), ())) if origin is not None else ()
        found = next((n for n in aliases if n in given), None)
        known[source] = want = source.data
        if found is None:
            if origin is not None and not has_data(want):
                problems["missing"].append(origin)
            continue
        used.add(found)
        have = given[found]
        if isinstance(have, torch.Tensor) and have.is_complex():
            have = torch.view_as_real(have.resolve_conj())  # as the model has it
        if not isinstance(have, torch.Tensor):
            problems["missing"].append(f"{found} (given as {type(have).__name__}, not a tensor)")
        elif not has_data(have):
            problems["missing"].append(f"{found} (there is no data in what was given)")
        elif have.shape != want.shape:
            problems["of another shape"].append(
                f"{found} is {list(have.shape)}, not {list(want.shape)}"
            )
        elif have.dtype is not want.dtype:
            problems["of another dtype"].append(
                f"{found} is {_dtype_name(have)}, not {_dtype_name(want)}"
            )
        else:
            known[source] = have
    if origins and not used:
        raise WeightsError(
            "the weights do not fit the model: none of them is one of its own\n"
            f"  of the model: {_join_first(origins.values())}\n  given: {_join_first(given)}",
            fix=_suggest_renaming(origins.values(), given),
        )
    if any(problems.values()):
        lines = [f"  {what}: {_join_first(p, '; ')}" for what, p in problems.items() if p]
        lost = [n for n in problems["missing"] if n in origins.values() and n not in state]
        raise WeightsError(
            "\n".join(["the weights do not fit the model", *lines]),
            fix=_suggest_fix(problems, lost),
        )
    return {name: _compute_initializer(value, known) for name, value in initializers.items()}


def _join_first(texts: Iterable[object], comma: str = ", ") -> str:
    found = list(dict.fromkeys(map(str, texts)))
    more = [f"and {len(found) - 5} more"] if len(found) > 5 else []
    return comma.join([*found[:5], *more]) or "none"


def _suggest_fix(problems: Mapping[str, Sequence[str]], lost: Sequence[str]) -> tuple[str, ...]:
    """What to write where that is plain."""
    if lost:
        return (f"build the model under gp.fake_mode(): {lost[0]} is computed, not saved",)
    if [what for what, found in problems.items() if found] == ["of another dtype"]:
        return ("model.to(...) before it is exported, or t.to(...) of what is given",)
    return ()


def _suggest_renaming(own: Iterable[str], given: Mapping[str, object]) -> str | tuple[str, ...]:
    """What to write if names have a prefix, or the weights are within something else."""
    for inner, value in given.items():
        if isinstance(value, Mapping):
            return f"state_dict=checkpoint[{inner!r}]"
    for theirs, name in ((str(theirs), name) for name in own for theirs in given):
        if theirs.endswith(f".{name}"):
            changed = f'name.removeprefix("{theirs.removesuffix(name)}")'
        elif name.endswith(f".{theirs}"):
            changed = f'"{name.removesuffix(theirs)}" + name'
        else:
            continue
        return f"state_dict={{{changed}: t for name, t in weights.items()}}"
    return ()


def _compute_initializer(value: Value, known: Mapping[Value, Any]) -> object:
    """The tensor of an initialiser, from the weights as they are given."""
    if value.derived is None:
        return known[value]
    given = [known[s] for s in value.derived.sources]
    if all(x is s.data for x, s in zip(given, value.derived.sources, strict=True)):
        return current_tensor(value)
    with torch.no_grad():
        return value.derived.make(*given)


def replace_weights(state: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """A state dict with the tensors that are given, each under all its names."""
    names = _names_by_tensor(state)
    found: dict[str, object] = {}
    for name, old in state.items():
        new = next((given[n] for n in (name, *names[id(old)]) if n in given), old)
        if isinstance(old, torch.nn.Parameter) and isinstance(new, torch.Tensor):
            new = torch.nn.Parameter(new, old.requires_grad)
        found[name] = new
    return found


def _names_by_tensor(state: Mapping[str, object]) -> dict[int, Iterable[str]]:
    """All names of each tensor."""
    names: dict[int, list[str]] = {}
    for name, t in state.items():
        names.setdefault(id(t), []).append(name)
    return dict(names)


def _dtype_name(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")
