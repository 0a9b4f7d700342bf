"""Weights in ONNX files: within the model, or streamed to a file beside it.

Nothing is copied on the way: the bytes of a tensor go from its memory, or from the file that has
them, to the new file, piece by piece. Files are written under another name and moved into place
when they are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import onnx
import torch

from graphport.errors import InputError, NoDataError
from graphport.onnx.ir import Value, present
from graphport.onnx.model import octets, write_header, write_tensor
from graphport.ops.weightless import WeightlessTensor, lacks_data
from graphport.program.replacing import replacing

_LARGE = 1_500_000_000
"""Bytes of weights from which on they go to a file of their own."""
_LARGEST = (1 << 31) - 1
"""Bytes that a protobuf message can have."""
SMALL = 1024
"""Bytes of a tensor that stays in the model: ONNX Runtime looks at constants while it loads."""
_PAGE = 4096
"""Large tensors begin at a page, so that they can be mapped."""
_PIECE = 16 << 20
"""Bytes that are put in order, and written, at a time."""


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def has_data(t: Any) -> bool:
    """Whether the numbers of a tensor can be had: they are in memory, or it is known where."""
    return not lacks_data(t) or (isinstance(t, WeightlessTensor) and t.has_data)


def in_memory(t: Any) -> torch.Tensor:
    """A tensor with its data."""
    return t.read() if isinstance(t, WeightlessTensor) else t


def require_data(tensors: Mapping[str, Any], fix: str) -> None:
    lacking = [name for name, t in tensors.items() if not has_data(t)]
    if lacking:
        names = ", ".join(lacking[:5])
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        raise NoDataError(f"there is no data for {names}{more}", fix=fix)


def inline(skeleton: onnx.ModelProto, initializers: Mapping[str, Value]) -> onnx.ModelProto:
    """The model with its weights; those that are not in memory are left as references."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for name, value in initializers.items():
        proto, tensor = model.graph.initializer.add(), present(value)
        if lacks_data(tensor):
            write_header(name, tensor, proto)
            refer(proto, name, 0, nbytes(tensor))
        else:
            write_tensor(name, tensor, proto)
    return model


def refer(proto: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Say that the data of a tensor is elsewhere."""
    proto.data_location = onnx.TensorProto.EXTERNAL
    entries = (("location", location), ("offset", str(offset)), ("length", str(length)))
    for key, value in entries:
        entry = proto.external_data.add()
        entry.key, entry.value = key, value


# Files


def save(
    skeleton: onnx.ModelProto, tensors: Mapping[str, Any], path: Path, external: bool | str
) -> None:
    """Write a model and its weights."""
    require_data(tensors, "program.save(path, state_dict=...)")
    if is_apart(tensors, external):
        _save_apart(skeleton, tensors, path)
        return
    total = sum(map(nbytes, tensors.values()))
    if total + skeleton.ByteSize() > _LARGEST:
        raise InputError(
            f"a file of ONNX ends at 2 GB, and the weights take {total / 1e9:.1f} GB",
            fix="program.save(path, external_data=True)",
        )
    with replacing(path) as file:
        for piece in _model_bytes(skeleton, tensors):
            _write(file, piece)


def is_apart(tensors: Mapping[str, Any], external: bool | str) -> bool:
    """Whether weights go to a file of their own."""
    if external == "auto":
        return sum(map(nbytes, tensors.values())) > _LARGE
    return bool(external)


def beside(path: Path) -> Path:
    """The file of the weights."""
    return path.with_name(f"{path.name}.data")


def _save_apart(skeleton: onnx.ModelProto, tensors: Mapping[str, Any], path: Path) -> None:
    data_path = beside(path)
    places = _layout(tensors)
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for name, t in tensors.items():
        proto = model.graph.initializer.add()
        if name in places:
            write_header(name, t, proto)
            refer(proto, data_path.name, places[name], nbytes(t))
        else:
            write_tensor(name, in_memory(t), proto)
    with replacing(data_path, path) as (data, file):
        written = -1
        for name, offset in places.items():
            if offset > written:
                data.seek(offset)
                for piece in data_of(tensors[name]):
                    _write(data, piece)
                written = offset
        _write(file, model.SerializeToString(deterministic=True))


def _write(file: IO[bytes], piece: Any) -> None:
    """All of it: the system may take less at a time."""
    left = memoryview(piece)
    while left:
        left = left[file.write(left) :]


def _layout(tensors: Mapping[str, Any]) -> dict[str, int]:
    """Where tensors go in the file; those with the same data to the same place."""
    places: dict[str, int] = {}
    known: dict[Any, int] = {}
    end = 0
    for name, t in tensors.items():
        if nbytes(t) < SMALL:
            continue
        key = _identity(t)
        if key not in known:
            known[key] = -(-end // _PAGE) * _PAGE
            end = known[key] + nbytes(t)
        places[name] = known[key]
    return dict(sorted(places.items(), key=lambda item: item[1]))


def _identity(t: Any) -> Any:
    """What tensors with the same bytes by construction have in common."""
    if not isinstance(t, WeightlessTensor):
        return t.data_ptr(), tuple(t.shape), t.stride(), t.dtype
    region = t.reference
    return id(t) if region is None else (region.path, region.offset, region.nbytes)


def data_of(t: Any) -> Iterable[Any]:
    """The bytes of a tensor in row-major order, in pieces."""
    if isinstance(t, WeightlessTensor) and t.reference is not None:
        return t.reference.chunks()
    return _pieces(in_memory(t).detach())


def _pieces(t: torch.Tensor) -> Iterator[memoryview]:
    """Without a copy where the tensor lies in order; else a part is put in order at a time."""
    if t.is_contiguous() or t.ndim == 0 or nbytes(t) <= _PIECE:
        yield octets(t)
        return
    rows = max(1, _PIECE * len(t) // nbytes(t))
    for part in t.split(rows):
        # torch transposes in blocks what is all of its memory: twice as fast as going by columns.
        whole = part.t().contiguous().t() if part.ndim == 2 and part.stride(0) == 1 else part
        yield octets(whole)


# The wire format of protobuf: fields of a message may come in any order, so that weights can follow
# the rest of the graph without being in memory as messages.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def _model_bytes(skeleton: onnx.ModelProto, tensors: Mapping[str, Any]) -> Iterator[Any]:
    outside = onnx.ModelProto()
    outside.CopyFrom(skeleton)
    outside.ClearField("graph")
    inside = skeleton.graph.SerializeToString(deterministic=True)
    heads = {name: _head(name, t) for name, t in tensors.items()}
    total = len(inside) + sum(len(h) + nbytes(tensors[name]) for name, h in heads.items())
    yield outside.SerializeToString(deterministic=True)
    yield _tag(_GRAPH) + _varint(total)
    yield inside
    for name, head in heads.items():
        yield head
        yield from data_of(tensors[name])


def _head(name: str, t: Any) -> bytes:
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
