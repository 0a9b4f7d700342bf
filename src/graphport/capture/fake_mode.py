"""`gp.fake_mode()`: modules are built, and checkpoints loaded, without memory for weights.

Three things happen inside. A parameter gives up its value when it is made. What a factory is asked
for (`torch.randn(...)`) is not made yet if it is large: it either becomes a parameter, and never
is, or somebody looks at it, and it is made then. And checkpoints are read as references into their
files. Everything else is as ever: tensors that a constructor computes are real, and so are buffers.

A capture inside of the mode does not see it: the program makes its tensors where it runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from graphport import process
from graphport.capture.soundness.patches import MODE_FLAGS
from graphport.compat.torch import (
    OpOverload,
    TorchDispatchMode,
    get_current_dispatch_mode_stack,
    is_meta_location,
    locate,
    pop_torch_dispatch_stack,
    push_on_torch_dispatch_stack,
)
from graphport.errors import SerializationError
from graphport.program.files import json_reader, tensors
from graphport.program.files.tensors import Entry
from graphport.tensors import lazy
from graphport.tensors.abstract import contiguous_strides
from graphport.tensors.lazy_source import FileRegion, Geometry
from graphport.types import Args, Argument, Kwargs

_DEFERRED_BYTES = 1 << 20  # bytes; what is smaller costs less to make than to think about
_thread = process.make_thread_local()


@contextmanager
def fake_mode() -> Iterator[None]:
    """Build modules and load checkpoints without memory for their weights.

    >>> import torch, graphport as gp
    >>> with gp.fake_mode():
    ...     model = torch.nn.Linear(100_000, 100_000)  # 40 GB
    >>> model.weight
    WeightlessTensor(no data, size=[100000, 100000], dtype=torch.float32, device=cpu, ...)
    >>> ep = gp.export(model, (torch.empty(2, 100_000),))

    Parameters take no memory; buffers that a constructor computes are real. `torch.load` and
    safetensors' `load_file` and `safe_open` give tensors that refer to the file (`t.reference`) and
    read it when they are asked for numbers (`t.read()`); `load_state_dict` hands that on to the
    parameters.
    """
    _patch_initialisers()
    mode = _DeferringMode()
    gradients = torch.is_grad_enabled()
    try:
        try:
            MODE_FLAGS.hold(mode)
            _MODULE_PATCH.hold(mode)
            with mode:
                yield
        except BaseException:
            # Interrupted as they begin, torch's initialisers leave them switched off.
            torch.set_grad_enabled(gradients)
            raise
        finally:
            _exit_mode(mode)
    finally:  # an interrupt may come in the midst of the other one
        _exit_mode(mode)


class _DeferringMode(TorchDispatchMode):
    """Puts off what factories make."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here runs under Dynamo; the guard against it would import Dynamo."""
        return False

    def __torch_dispatch__(
        self, op: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Argument:
        kwargs = kwargs or {}
        if _is_factory(op):
            later = lazy.defer_factory(op, args, kwargs, _DEFERRED_BYTES)
            if later is not None:
                return later
        return op(*args, **kwargs)


def _exit_mode(mode: _DeferringMode) -> None:
    """Undo what is left to undo; modes that were entered since stay."""
    stack = get_current_dispatch_mode_stack()
    if mode in stack:
        keep = stack[stack.index(mode) + 1 :]
        for _ in (mode, *keep):
            pop_torch_dispatch_stack(None)
        for later in keep:
            push_on_torch_dispatch_stack(later)
    _MODULE_PATCH.release(mode)
    MODE_FLAGS.release(mode)


_factory_cache: dict[Any, bool] = {}


def _is_factory(op: OpOverload) -> bool:
    """An operator that makes a tensor from numbers alone, on the device that it is given."""
    known = _factory_cache.get(op)
    if known is None:
        known = False
        if isinstance(op, OpOverload):
            arguments = op._schema.arguments
            named = any(a.name == "device" for a in arguments)
            known = named and not any("Tensor" in str(a.type) for a in arguments)
        _factory_cache[op] = known
    return known


def _is_active() -> bool:
    """Whether this thread is in the mode, and not capturing."""
    return any(isinstance(mode, _DeferringMode) for mode in get_current_dispatch_mode_stack())


@functools.cache
def _patch_initialisers() -> None:
    """For good: tensors without data outlive the mode, and may be initialised after it.

    Of torch's initialisers only this one looks at what it has drawn, to draw again.
    """
    owner, name = locate("trunc_normal")
    original = getattr(owner, name)

    def trunc_normal(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if type(tensor) is not lazy.WeightlessTensor:
            return original(tensor, *args, **kwargs)
        with torch.no_grad():
            return tensor.normal_()

    setattr(owner, name, trunc_normal)


# Parameters of modules.


def _new_parameter(
    original: Any, kind: object, data: Any = None, requires_grad: bool = True
) -> object:
    if type(data) is lazy.WeightlessTensor:
        source = data._memory.source
        if source is not None and not source.is_saved and not _is_loading():
            data._memory.source = None
    elif type(data) in (torch.Tensor, nn.Parameter) and not _is_loading():
        if data.device.type != "meta" and data.layout is torch.strided:
            data = lazy.drop_data(data)
    return original(kind, data, requires_grad)


def _register_buffer(
    original: Any, module: object, name: str, tensor: object, *args: object, **kwargs: object
) -> object:
    return original(module, name, _materialise(tensor), *args, **kwargs)


def _set_attribute(original: Any, module: object, name: str, value: object) -> None:
    original(module, name, _materialise(value))


def _materialise(value: object) -> Any:
    """What a constructor made, if that was put off; what came from a file stays there."""
    if type(value) is not lazy.WeightlessTensor or isinstance(value, nn.Parameter):
        return value
    source = value._memory.source
    if source is None or source.is_saved or _is_loading():
        return value
    real = value.read().to(value.device).requires_grad_(value.requires_grad)
    vars(real).update(lazy.get_python_attributes(value))
    return real


def _is_loading() -> bool:
    return getattr(_thread, "loading", False)


def _load_state_dict(original: Any, *args: object, **kwargs: object) -> Any:
    """What is loaded is kept: a parameter made of it does not give it up."""
    outer, _thread.loading = _is_loading(), True
    try:
        return original(*args, **kwargs)
    finally:
        _thread.loading = outer


def _patch_modules() -> Iterator[process.Replacement]:
    for owner, name, new in (
        (nn.Parameter, "__new__", _new_parameter),
        (nn.Module, "register_buffer", _register_buffer),
        (nn.Module, "__setattr__", _set_attribute),
        (nn.Module, "load_state_dict", _load_state_dict),
        *list_reader_replacements(),
    ):
        yield make_replacement(owner, name, new, _is_active)


_MODULE_PATCH = process.Patch(_patch_modules)


# Loads checkpoints as references: what `torch.load` and safetensors give under `gp.fake_mode()`.
#
# Of a file written by `torch.save`, torch's own unpickler reads all but the bytes of the tensors,
# and says where in the file those are; so everything around them (nested dicts, whole modules, the
# safety of `weights_only`) is as ever. Files in the format from before torch 1.6, files in memory,
# and files with quantised tensors are loaded as they always are. Of a safetensors file the header
# is read.

_PYTORCH = ("pt", "torch", "pytorch")
_DTYPES = {name: dtype for dtype, name in tensors.DTYPE_NAMES.items()}
_DTYPES["F8_E8M0"] = torch.float8_e8m0fnu
_WIDTHS = {name: dtype.itemsize for name, dtype in _DTYPES.items()}


class Shard:
    """A safetensors file, opened as `safe_open` does; its tensors refer to it."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._device = device
        self._stamp = FileRegion.stamp_of(path)
        self._entries, self._metadata, self._start = _read_header(path, self._stamp[0])

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
        return lazy.refer_to_file(
            region, Geometry(dtype, sizes, contiguous_strides(sizes), 0), self._device
        )

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


def _read_header(path: Path, size: int) -> tuple[dict[str, Entry], dict[str, str] | None, int]:
    """What a safetensors file says of its tensors, and where their bytes begin."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = 8 + length
        if size < 8 or length > min(json_reader.HEADER_BYTES, size - 8):
            raise _broken_file_error(
                path, f"its header of {length} bytes does not fit into {size} bytes"
            )
        text = file.read(length)
    try:
        return *tensors.parse_header(text, size - start, "its header"), start
    except SerializationError as error:
        raise _broken_file_error(path, f"{error.where}: {error.what}") from None


def _broken_file_error(path: Path, why: str) -> SerializationError:
    return SerializationError(f"{path} is not a valid safetensors file: {why}")


# torch.load

_loading = process.make_thread_local()


def _open_file_like(original: Any, file: Any, mode: object) -> Any:
    _loading.path = None if hasattr(file, "read") else Path(file)
    return original(file, mode)


def _load(original: Any, zip_file: Any, map_location: Any, *args: object, **kwargs: object) -> Any:
    path, _loading.path = getattr(_loading, "path", None), None
    if path is None or is_meta_location(map_location):
        return original(zip_file, map_location, *args, **kwargs)
    if zip_file.has_record("byteorder") and zip_file.get_record("byteorder") != b"little":
        return original(zip_file, map_location, *args, **kwargs)
    _loading.found = _CheckpointTensors(path, _device_of(map_location))
    try:
        return original(zip_file, "meta", *args, **{**kwargs, "overall_storage": None})
    except NotImplementedError:  # something in it that the meta device has no form of
        _loading.found = None
        return original(zip_file, map_location, *args, **kwargs)
    finally:
        _loading.found = None


class _CheckpointTensors:
    """The tensors of one file of `torch.save`; several may share memory."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.device = path, device
        self.stamp = FileRegion.stamp_of(path)
        self.memories: dict[tuple[int, int], tuple[torch.UntypedStorage, lazy.Memory]] = {}
        """By place and length: torch makes a storage anew each time a tensor refers to it."""

    def tensor(self, storage: Any, offset: int, sizes: Any, strides: Any) -> lazy.WeightlessTensor:
        untyped = storage._untyped_storage
        at, nbytes = place = untyped._checkpoint_offset, untyped.nbytes()
        known = self.memories.get(place)
        if known is None:
            region = FileRegion(self.path, f"bytes {at} to {at + nbytes}", at, nbytes, self.stamp)
            known = self.memories[place] = (untyped, lazy.Memory(region))
        geometry = Geometry(storage.dtype, tuple(sizes), tuple(strides), offset)
        return lazy.make_weightless(geometry.over(known[0]), self.device, known[1])


def _rebuild_tensor(
    original: Any, storage: Any, offset: object, size: object, stride: object
) -> object:
    found = getattr(_loading, "found", None)
    if found is None or not hasattr(storage._untyped_storage, "_checkpoint_offset"):
        return original(storage, offset, size, stride)
    return found.tensor(storage, offset, size, stride)


def _device_of(map_location: object) -> torch.device:
    return torch.device(map_location if isinstance(map_location, (str, torch.device)) else "cpu")


def make_replacement(owner: object, name: str, new: Any, active: Any) -> process.Replacement:
    """A function of another package, replaced where the calling thread is in the mode."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not active():
            return original(*args, **kwargs)
        return new(original, *args, **kwargs)

    call.__name__, call.__doc__ = name, original.__doc__
    return owner, name, staticmethod(call) if name == "__new__" else call


def list_reader_replacements() -> list[tuple[Any, str, Any]]:
    """What to replace: deep enough that names which users have imported already go there too."""
    found: list[tuple[Any, str, Any]] = [
        (*locate("open_file_like"), _open_file_like),
        (*locate("load_zip"), _load),
        (*locate("rebuild_tensor"), _rebuild_tensor),
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
    original: Any, filename: Any, framework: str = "", device: Any = "cpu", **more: object
) -> object:
    if framework not in _PYTORCH:
        return original(filename, framework, device, **more)
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return Shard(Path(filename), place)
