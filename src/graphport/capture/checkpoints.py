"""Checkpoint files as references: what `torch.load` and safetensors give under `gp.fake_mode()`.

Of a file written by `torch.save`, torch's own unpickler reads all but the bytes of the tensors, and
says where in the file those are; so everything around them (nested dicts, whole modules, the safety
of `weights_only`) is as ever. Files in the format from before torch 1.6, files in memory, and files
with quantised tensors are loaded as they always are. Of a safetensors file the header is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from graphport import process
from graphport.errors import SerializationError
from graphport.ops.abstract import row_major
from graphport.ops.sources import FileRegion, Geometry
from graphport.ops.weightless import Memory, WeightlessTensor, made, saved
from graphport.program.files import limits, safetensors
from graphport.program.files.safetensors import Entry

_PYTORCH = ("pt", "torch", "pytorch")
_DTYPES = {name: dtype for dtype, name in safetensors.NAMES.items()}
_DTYPES["F8_E8M0"] = torch.float8_e8m0fnu
_WIDTHS = {name: dtype.itemsize for name, dtype in _DTYPES.items()}


class Shard:
    """A safetensors file, opened as `safe_open` does; its tensors refer to it."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._device = device
        self._stamp = FileRegion.stamp_of(path)
        self._entries, self._metadata, self._start = _header(path, self._stamp[0])

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open: the file is opened again for each tensor that is read."""

    def keys(self) -> list[str]:
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        return sorted(self._entries, key=self._place)

    def _place(self, name: str) -> tuple[int, int]:
        return self._entries[name].start, self._entries[name].size

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        entry = self._entries.get(name)
        if entry is None:
            raise KeyError(f"{self._path} does not contain tensor {name}")
        dtype, sizes = _DTYPES[entry.dtype], tuple(entry.shape)
        if self._device.type == "meta":
            return torch.empty(sizes, dtype=dtype, device="meta")
        region = FileRegion(self._path, name, self._start + entry.start, entry.size, self._stamp)
        return saved(region, Geometry(dtype, sizes, row_major(sizes), 0), self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name: str) -> Slice:
        return Slice(self.get_tensor(name), self._entries[name].dtype)


class Slice:
    """A tensor of which a part is to be taken."""

    def __init__(self, tensor: torch.Tensor, dtype: str) -> None:
        self._tensor, self._dtype = tensor, dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._dtype


def _header(path: Path, size: int) -> tuple[dict[str, Entry], dict[str, str] | None, int]:
    """What a safetensors file says of its tensors, and where their bytes begin."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = 8 + length
        if size < 8 or length > min(limits.HEADER_BYTES, size - 8):
            raise _broken(path, f"its header of {length} bytes does not fit into {size} bytes")
        text = file.read(length)
    try:
        return *safetensors.entries_of(text, size - start, "its header"), start
    except SerializationError as error:
        raise _broken(path, f"{error.where}: {error.what}") from None


def _broken(path: Path, why: str) -> SerializationError:
    return SerializationError(f"{path} is not a valid safetensors file: {why}")


# torch.load

_loading = process.thread_local()


def _open_file_like(original: Any, file: Any, mode: Any) -> Any:
    _loading.path = None if hasattr(file, "read") else Path(file)
    return original(file, mode)


def _load(original: Any, zip_file: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
    path, _loading.path = getattr(_loading, "path", None), None
    if path is None or torch.serialization._is_meta_location(map_location):
        return original(zip_file, map_location, *args, **kwargs)
    if zip_file.has_record("byteorder") and zip_file.get_record("byteorder") != b"little":
        return original(zip_file, map_location, *args, **kwargs)
    _loading.found = _Found(path, _device_of(map_location))
    try:
        return original(zip_file, "meta", *args, **{**kwargs, "overall_storage": None})
    except NotImplementedError:  # something in it that the meta device has no form of
        _loading.found = None
        return original(zip_file, map_location, *args, **kwargs)
    finally:
        _loading.found = None


class _Found:
    """The tensors of one file of `torch.save`; several may share memory."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.device = path, device
        self.stamp = FileRegion.stamp_of(path)
        self.memories: dict[tuple[int, int], tuple[torch.UntypedStorage, Memory]] = {}
        """By place and length: torch makes a storage anew each time a tensor refers to it."""

    def tensor(self, storage: Any, offset: int, sizes: Any, strides: Any) -> WeightlessTensor:
        untyped = storage._untyped_storage
        at, nbytes = place = untyped._checkpoint_offset, untyped.nbytes()
        known = self.memories.get(place)
        if known is None:
            region = FileRegion(self.path, f"bytes {at} to {at + nbytes}", at, nbytes, self.stamp)
            known = self.memories[place] = (untyped, Memory(region))
        geometry = Geometry(storage.dtype, tuple(sizes), tuple(strides), offset)
        return made(geometry.over(known[0]), self.device, known[1])


def _rebuild_tensor(original: Any, storage: Any, offset: Any, size: Any, stride: Any) -> Any:
    found = getattr(_loading, "found", None)
    if found is None or not hasattr(storage._untyped_storage, "_checkpoint_offset"):
        return original(storage, offset, size, stride)
    return found.tensor(storage, offset, size, stride)


def _device_of(map_location: Any) -> torch.device:
    return torch.device(map_location if isinstance(map_location, (str, torch.device)) else "cpu")


def replaced(owner: Any, name: str, new: Any, active: Any) -> process.Replacement:
    """A function of another package, replaced where the calling thread is in the mode."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not active():
            return original(*args, **kwargs)
        return new(original, *args, **kwargs)

    call.__name__, call.__doc__ = name, original.__doc__
    return owner, name, staticmethod(call) if name == "__new__" else call


def readers() -> list[tuple[Any, str, Any]]:
    """What to replace: deep enough that names which users have imported already go there too."""
    found: list[tuple[Any, str, Any]] = [
        (torch.serialization, "_open_file_like", _open_file_like),
        (torch.serialization, "_load", _load),
        (torch._utils, "_rebuild_tensor", _rebuild_tensor),
    ]
    try:
        from safetensors import safe_open
    except ImportError:
        return found
    # A class of another language, whose constructor cannot be replaced: so are its names.
    modules = [m for m in sys.modules.values() if isinstance(m, ModuleType)]
    known = [m for m in modules if vars(m).get("safe_open") is safe_open]
    return [*found, *((module, "safe_open", _safe_open) for module in known)]


def _safe_open(
    original: Any, filename: Any, framework: str = "", device: Any = "cpu", **more: Any
) -> Any:
    if framework not in _PYTORCH:
        return original(filename, framework, device, **more)
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return Shard(Path(filename), place)
