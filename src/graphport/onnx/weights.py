"""Weights in ONNX files: within the model, or streamed to a file beside it.

Nothing is copied on the way: the bytes of a tensor go from its memory, or from the file that has
them, to the new file. Files are written under another name and moved into place when complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import onnx
import torch

from graphport.errors import InputError, NoDataError
from graphport.onnx.ir import Graph
from graphport.onnx.model import octets, write_header, write_tensor
from graphport.ops.weightless import WeightlessTensor, lacks_data

_LARGE = 1_500_000_000
"""Bytes of weights from which on they go to a file of their own: protobuf ends at 2 GB."""
SMALL = 1024
"""Bytes of a tensor that stays in the model: ONNX Runtime looks at constants while it loads."""
_PAGE = 4096
"""Large tensors begin at a page, so that they can be mapped."""


def inline(skeleton: onnx.ModelProto, graph: Graph) -> onnx.ModelProto:
    """The model with its weights; those that are not in memory are left as references."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for name, value in graph.initializers.items():
        proto = model.graph.initializer.add()
        if lacks_data(value.tensor):
            write_header(name, value.tensor, proto)
            refer(proto, name, 0, nbytes(value.tensor))
        else:
            write_tensor(name, value.tensor, proto)
    return model


def refer(proto: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Say that the data of a tensor is elsewhere."""
    proto.data_location = onnx.TensorProto.EXTERNAL
    entries = (("location", location), ("offset", str(offset)), ("length", str(length)))
    for key, value in entries:
        entry = proto.external_data.add()
        entry.key, entry.value = key, value


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def save(
    skeleton: onnx.ModelProto, graph: Graph, path: Path, external: bool | str, given: Any
) -> None:
    """Write a model and its weights."""
    if external not in (True, False, "auto"):
        raise InputError(f"external_data={external!r}", fix='one of True, False, "auto"')
    tensors = {name: v.tensor for name, v in graph.initializers.items()}
    total = sum(nbytes(t) for t in tensors.values())
    if external == "auto":
        external = total > _LARGE
    _require(tensors)
    if not external:
        with _replacing(path) as file:
            for piece in _model_bytes(skeleton, tensors):
                file.write(piece)
        return
    beside = path.with_name(path.name + ".data")
    places = _layout(tensors)
    with _replacing(beside) as file:
        for name, offset in places.items():
            file.seek(offset)
            for piece in data_of(tensors[name]):
                file.write(piece)
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for name, t in tensors.items():
        proto = model.graph.initializer.add()
        if name in places:
            write_header(name, t, proto)
            refer(proto, beside.name, places[name], nbytes(t))
        else:
            write_tensor(name, t, proto)
    with _replacing(path) as file:
        file.write(model.SerializeToString(deterministic=True))


def _require(tensors: Mapping[str, Any]) -> None:
    lacking = [
        n for n, t in tensors.items()
        if lacks_data(t) and not (isinstance(t, WeightlessTensor) and t.has_data)
    ]  # fmt: skip
    if lacking:
        raise NoDataError(
            f"there is no data for {', '.join(lacking[:5])}"
            + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""),
            fix="program.save(path, state_dict=...)",
        )


def _layout(tensors: Mapping[str, Any]) -> dict[str, int]:
    """Where tensors go in the file; those with the same memory to the same place."""
    places: dict[str, int] = {}
    known: dict[Any, int] = {}
    end = 0
    for name, t in tensors.items():
        if nbytes(t) < SMALL:
            continue
        key = id(t) if lacks_data(t) else (t.data_ptr(), nbytes(t), t.dtype, t.stride())
        if key not in known:
            known[key] = -(-end // _PAGE) * _PAGE
            end = known[key] + nbytes(t)
        places[name] = known[key]
    return places


def data_of(t: Any) -> Iterable[Any]:
    """The bytes of a tensor, in pieces."""
    if isinstance(t, WeightlessTensor):
        reference = t.reference
        if reference is not None:
            return reference.chunks()
        t = t.read()
    return [octets(t)]


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


class _replacing:
    """A file that takes its name when it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> IO[bytes]:
        self.file = self.temporary.open("wb")
        return self.file

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.file.close()
        if kind is None:
            os.replace(self.temporary, self.path)
        else:
            self.temporary.unlink()


