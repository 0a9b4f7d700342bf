"""Writes weights to ONNX files: inline, or streamed to external data.

Nothing is copied on the way: the bytes of a tensor go from its memory, or from the file that has
them, to the new file, piece by piece. Files are written under another name and moved into place
when they are complete, the model last. The file of the weights is named by what is in it, so that a
model refers to its own weights and to no others, whoever else writes there.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import IO, Any

import onnx
import torch

from graphport.errors import InputError, NoDataError
from graphport.onnx.emit.ir import Value, current_tensor
from graphport.onnx.emit.model import tensor_bytes, write_header, write_tensor
from graphport.onnx.emit.schemas import BITS
from graphport.process import restore_on_exit
from graphport.program.atomic_write import write_files_atomically
from graphport.tensors.lazy import WeightlessTensor, lacks_data

_LARGEST_INLINE = 1_500_000_000
"""Bytes of weights from which on they go to a file of their own."""
_LARGEST_PROTO = (1 << 31) - 1
"""Bytes that a protobuf message can have."""
SMALLEST_EXTERNAL = 1024
"""Bytes of a tensor that stays in the model: ONNX Runtime looks at constants while it loads."""
_PAGE = 4096
"""Large tensors begin at a page, so that they can be mapped."""
_GRACE_SECONDS = 60.0
"""Seconds between reading a model and reading its weights."""
_DIGEST_BYTES = 8
"""Bytes of the name of a file of weights."""
_CHUNK_BYTES = 16 << 20
"""Bytes that are put in order, and written, at a time."""


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor takes in a file."""
    return -(-tensor.numel() * BITS.get(tensor.dtype, 8 * tensor.element_size()) // 8)


def has_data(t: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be had: they are in memory, or it is known where."""
    return not lacks_data(t) or (isinstance(t, WeightlessTensor) and t.has_data)


def materialise(t: torch.Tensor) -> torch.Tensor:
    """A tensor with its data."""
    return t.read() if isinstance(t, WeightlessTensor) else t


def require_data(tensors: Mapping[str, object], fix: str) -> None:
    lacking = [name for name, t in tensors.items() if not has_data(t)]
    if lacking:
        names = ", ".join(lacking[:5])
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        raise NoDataError(f"there is no data for {names}{more}", fix=fix)


def inline_weights(skeleton: onnx.ModelProto, initializers: Mapping[str, Value]) -> onnx.ModelProto:
    """The model with its weights; those that are not in memory are left as references."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for name, value in initializers.items():
        proto, tensor = model.graph.initializer.add(), current_tensor(value)
        if lacks_data(tensor):
            write_header(name, tensor, proto)
            set_external_data(proto, name, 0, nbytes(tensor))
        else:
            write_tensor(name, tensor, proto)
    return model


def set_external_data(proto: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Say that the data of a tensor is elsewhere."""
    proto.data_location = onnx.TensorProto.EXTERNAL
    entries = (("location", location), ("offset", str(offset)), ("length", str(length)))
    for key, value in entries:
        entry = proto.external_data.add()
        entry.key, entry.value = key, value


# Files


@restore_on_exit
def save_model(
    skeleton: onnx.ModelProto, tensors: Mapping[str, object], path: Path, external: bool | str
) -> None:
    """Write a model and its weights."""
    require_data(tensors, "program.save(path, state_dict=...)")
    if is_external(tensors, external) and (places := _assign_offsets(tensors)):
        _save_external(skeleton, tensors, places, path)
        return
    with write_files_atomically(lambda: _remove_replaced(path)) as new:
        write_model(skeleton, tensors, new.open(path))


def write_model(skeleton: onnx.ModelProto, tensors: Mapping[str, object], file: IO[bytes]) -> None:
    """Write a model with its weights to an open file."""
    require_data(tensors, "program.save(path, state_dict=...)")
    total = sum(map(nbytes, tensors.values()))
    if total + skeleton.ByteSize() > _LARGEST_PROTO:
        raise InputError(
            f"a file of ONNX ends at 2 GB, and the weights take {total / 1e9:.1f} GB",
            fix="program.save(path, external_data=True)",
        )
    for piece in _model_bytes(skeleton, tensors):
        _write_all(file, piece)


def is_external(tensors: Mapping[str, object], external: bool | str) -> bool:
    """Whether weights go to a file of their own."""
    if external == "auto":
        return sum(map(nbytes, tensors.values())) > _LARGEST_INLINE
    return bool(external)


def _save_external(
    skeleton: onnx.ModelProto, tensors: Mapping[str, object], places: Mapping[str, int], path: Path
) -> None:
    digest = ""
    with write_files_atomically(
        lambda: _remove_replaced(path, f"{path.name}.{digest}.data")
    ) as new:
        data, file = new.open(path.with_name(f"{path.name}.data")), new.open(path)
        digest = _write_data(data, places, tensors)
        data_path = path.with_name(f"{path.name}.{digest}.data")
        new.rename(data, data_path)
        model = onnx.ModelProto()
        model.CopyFrom(skeleton)
        for name, t in tensors.items():
            proto = model.graph.initializer.add()
            if name in places:
                write_header(name, t, proto)
                set_external_data(proto, data_path.name, places[name], nbytes(t))
            else:
                write_tensor(name, materialise(t), proto)
        _write_all(file, model.SerializeToString(deterministic=True))


def _write_data(file: IO[bytes], places: Mapping[str, int], tensors: Mapping[str, object]) -> str:
    """The bytes of the tensors, each at its place; what tells them from others."""
    content = blake2b(digest_size=_DIGEST_BYTES)
    written = -1
    for name, offset in places.items():
        if offset > written:
            content.update(offset.to_bytes(8, "little"))
            file.seek(offset)
            for piece in iterate_bytes(tensors[name]):
                content.update(piece)
                _write_all(file, piece)
            written = offset
    return content.hexdigest()


def measure_model(path: Path) -> int:
    """Bytes of a model and of the weights that it refers to."""
    data = [d for d in _data_files(path) if _has_reference(path, d.name)]
    return sum(file.stat().st_size for file in (path, *data))


def _data_files(path: Path) -> list[Path]:
    """Weights that were written for a model of that name, also what it no longer refers to."""
    name = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{{2 * _DIGEST_BYTES}}}\.data")
    return sorted(path.with_name(e) for e in os.listdir(path.parent) if name.fullmatch(e))


def _remove_replaced(path: Path, new: str = "") -> None:
    """Remove weights that no model in the folder has referred to for a while.

    Those of the model that is about to be replaced stay for now, and so do those that were replaced
    a moment ago: somebody may have read the model, and be about to read its weights.
    """
    others = set(path.parent.glob("*.onnx")) - {path}
    for data in _data_files(path):
        if data.name == new or any(_has_reference(model, data.name) for model in others):
            continue
        with suppress(OSError):  # it is not what was asked for
            if _has_reference(path, data.name):
                os.utime(data)
            elif time() - data.stat().st_mtime > _GRACE_SECONDS:
                data.unlink()


def _has_reference(model: Path, name: str) -> bool:
    try:
        with open(model, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(name.encode()) >= 0
    except FileNotFoundError:
        return False
    except OSError:  # a model that cannot be read may mention anything
        return True


def _write_all(file: IO[bytes], piece: Any) -> None:
    """All of it: the system may take less at a time."""
    left = memoryview(piece)
    while left:
        taken = file.write(left)
        left = left[len(left) if taken is None else taken :]


def _assign_offsets(tensors: Mapping[str, object]) -> dict[str, int]:
    """Where tensors go in the file; those with the same data to the same place."""
    places: dict[str, int] = {}
    known: dict[Any, int] = {}
    end = 0
    for name, t in tensors.items():
        if nbytes(t) < SMALLEST_EXTERNAL:
            continue
        key = _data_key(t)
        if key not in known:
            known[key] = -(-end // _PAGE) * _PAGE
            end = known[key] + nbytes(t)
        places[name] = known[key]
    return dict(sorted(places.items(), key=lambda item: item[1]))


def _data_key(t: torch.Tensor) -> object:
    """What tensors with the same bytes by construction have in common."""
    if not isinstance(t, WeightlessTensor):
        return t.data_ptr(), tuple(t.shape), t.stride(), t.dtype
    region = t.reference
    return id(t) if region is None else (region.path, region.offset, region.nbytes)


def iterate_bytes(t: torch.Tensor) -> Iterable[Any]:
    """The bytes of a tensor in row-major order, in pieces."""
    if isinstance(t, WeightlessTensor) and t.reference is not None:
        return t.reference.chunks()
    return _iterate_chunks(materialise(t).detach())


def _iterate_chunks(t: torch.Tensor) -> Iterator[memoryview]:
    """Without a copy where the tensor lies in order; else a part is put in order at a time."""
    if t.is_contiguous() or t.ndim == 0 or nbytes(t) <= _CHUNK_BYTES or t.dtype in BITS:
        yield tensor_bytes(t)
        return
    rows = max(1, _CHUNK_BYTES * len(t) // nbytes(t))
    for part in t.split(rows):
        # torch transposes in blocks what is all of its memory: twice as fast as going by columns.
        whole = part.t().contiguous().t() if part.ndim == 2 and part.stride(0) == 1 else part
        yield tensor_bytes(whole)


# The wire format of protobuf: fields of a message may come in any order, so that weights can follow
# the rest of the graph without being in memory as messages.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def _model_bytes(skeleton: onnx.ModelProto, tensors: Mapping[str, object]) -> Iterator[object]:
    outside = onnx.ModelProto()
    outside.CopyFrom(skeleton)
    outside.ClearField("graph")
    inside = skeleton.graph.SerializeToString(deterministic=True)
    heads = {name: _initializer_header(name, t) for name, t in tensors.items()}
    total = len(inside) + sum(len(h) + nbytes(tensors[name]) for name, h in heads.items())
    yield outside.SerializeToString(deterministic=True)
    yield _tag(_GRAPH) + _varint(total)
    yield inside
    for name, head in heads.items():
        yield head
        yield from iterate_bytes(tensors[name])


def _initializer_header(name: str, t: torch.Tensor) -> bytes:
    """An initialiser up to its data."""
    proto = onnx.TensorProto()
    write_header(name, t, proto)
    header = proto.SerializeToString(deterministic=True)
    data = _tag(_RAW_DATA) + _varint(nbytes(t))
    return _tag(_INITIALIZER) + _varint(len(header) + len(data) + nbytes(t)) + header + data


def _tag(field: int) -> bytes:
    return bytes([field << 3 | 2])


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
