"""A part of a graph on ONNX Runtime: an ONNX model, its session, and how to call it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnxruntime as ort
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import (
    OrtDevice,
    OrtValue,
    OrtValueVector,
    RunOptions,
    SessionIOBinding,
)
from torch import nn

from graphport.errors import SessionError
from graphport.onnx.interface import Interface
from graphport.onnx.ir import Value
from graphport.onnx.program import result_of
from graphport.onnx.runtime import Session, ort_value, tensor_of
from graphport.ort.forks import forkable_lock
from graphport.ort.rooms import Allocate

_OPENING = forkable_lock()
_RECORDS: weakref.WeakSet[SessionRecord] = weakref.WeakSet()
_INHERITED: list[Session | None] = []
"""Sessions of the process before the fork, whose threads are not here: not even to be closed."""


@dataclass(eq=False)
class SessionRecord:
    """A model that the backend runs, and the session that runs it."""

    model_proto: onnx.ModelProto
    """Without the weights, which the session has from torch."""
    make: Callable[[], Session]
    _made: Session | None = None

    def __post_init__(self) -> None:
        _RECORDS.add(self)

    @property
    def session(self) -> ort.InferenceSession:
        return self.opened().session

    def opened(self) -> Session:
        """The session; a process that was forked makes one of its own."""
        made = self._made
        if made is None:
            with _OPENING:
                made = self._made = self._made or self.make()
        return made

    def forget(self) -> None:
        """Leave the session to the process that made it."""
        _INHERITED.append(self._made)
        self._made = None


def _forget_all() -> None:
    for record in list(_RECORDS):
        record.forget()


os.register_at_fork(after_in_child=_forget_all)


class Region(nn.Module):
    """Calls a session with tensors and numbers, in the order of the region's inputs.

    `static` says of each input whether it is a weight, the same tensor at most calls; `complex` are
    the places of those that go over as pairs of numbers. `rooms` allocates the outputs whose sizes
    are known; the others are copied, since torch cannot resize memory of ONNX Runtime's.
    """

    def __init__(
        self,
        record: SessionRecord,
        interface: Interface,
        outputs: Sequence[Value],
        static: Sequence[bool],
        complex: Container[int],
        count: Callable[[], None],
        rooms: Sequence[Allocate | None],
    ) -> None:
        super().__init__()
        self.record = record
        self.count = count
        self.plain: list[tuple[str, int]] = []
        """Inputs that go over as they are, and their places."""
        self.others: list[tuple[str, int, Any]] = []
        """The rest, with what makes them values of ONNX Runtime."""
        for i in interface.inputs:
            if static[i.flat]:
                self.others.append((i.name, i.flat, _Weight()))
            elif i.dtype in _PLAIN and i.flat not in complex:
                self.plain.append((i.name, i.flat))
            else:
                self.others.append((i.name, i.flat, _value))
        self.dtypes = {i.flat: i.dtype for i in interface.inputs}
        self.results = [(r.kind, r.what) for r in interface.results]
        kinds = {v.name: v.dtype for v in outputs}
        allocate = {v.name: room for v, room in zip(outputs, rooms, strict=True)}
        self.names = [what for kind, what in self.results if kind not in ("input", "constant")]
        self.in_order = all(kind == "tensor" for kind, _ in self.results)
        self.rooms = [(name, allocate[name], kinds[name] in _PLAIN) for name in self.names]
        self.are_all_known = all(room is not None for _, room, _ in self.rooms)
        self.devices = [_HOST] * len(self.names)

    def forward(self, *args: Any) -> Any:
        session = self.record.opened().session._sess
        feeds = {}
        for name, place in self.plain:
            x = args[place]
            if type(x) is not torch.Tensor or not x.is_contiguous() or x.is_neg():
                x = _tensor(x, self.dtypes[place])
            feeds[name] = _from_dlpack(_to_dlpack(x), False)
        for name, place, value_of in self.others:
            feeds[name] = value_of(args[place])
        run = self._run_into_rooms if self.are_all_known else self._run_into_some_rooms
        try:
            found = run(session, feeds, args)
        except Exception as error:  # whatever a provider raises
            raise SessionError(f"ONNX Runtime: {error}") from error
        self.count()
        return found if self.in_order else self._arranged(found, args)

    __call__ = forward  # no hooks, which cost microseconds

    def _run_into_rooms(
        self, session: Any, feeds: dict[str, Any], args: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Results in memory of torch's, for a microsecond each."""
        given, results, found = OrtValueVector(), OrtValueVector(), []
        for value in feeds.values():
            given.push_back(value)
        for _, room, is_plain in self.rooms:
            t = room(args)  # type: ignore[misc]  # all are known
            found.append(t)
            results.push_back(
                _from_dlpack(_to_dlpack(t), False) if is_plain else ort_value(t)._ortvalue
            )
        session.run_with_ortvaluevector(
            RunOptions(), list(feeds), given, self.names, results, self.devices
        )
        return found

    def _run_into_some_rooms(
        self, session: Any, feeds: dict[str, Any], args: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Results in memory of torch's, where their sizes are known; copies of the others."""
        binding = SessionIOBinding(session)
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        found: list[torch.Tensor | None] = []
        for name, room, _ in self.rooms:
            if room is None:
                binding.bind_output(name, _HOST)
                found.append(None)
            else:
                t = room(args)
                binding.bind_ortvalue_output(name, ort_value(t)._ortvalue)
                found.append(t)
        session.run_with_iobinding(binding, None)
        values = binding.get_outputs()
        return [
            t if t is not None else tensor_of(ort.OrtValue(values[i])).clone()
            for i, t in enumerate(found)
        ]

    def _arranged(self, found: list[torch.Tensor], args: Sequence[Any]) -> list[Any]:
        by_name = dict(zip(self.names, found, strict=True))
        return [
            what if kind == "constant" else args[what] if kind == "input"
            else result_of(kind, by_name[what])
            for kind, what in self.results
        ]  # fmt: skip


_HOST = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
_to_dlpack, _from_dlpack = torch._C._to_dlpack, OrtValue.from_dlpack
# What DLPack carries as it is, in both directions.
_PLAIN = {
    torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8,
}  # fmt: skip


def _tensor(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor or a number as a tensor in order."""
    if not isinstance(x, torch.Tensor):
        return torch.tensor(x, dtype=dtype, device="cpu")
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.detach().resolve_neg().contiguous()


def _value(x: Any) -> Any:
    return ort_value(_tensor(x, torch.bool))._ortvalue


class _Weight:
    """Remembers what a tensor was for ONNX Runtime the last time."""

    def __init__(self) -> None:
        self.known: tuple[Any, int, Any] = (None, 0, None)

    def __call__(self, t: torch.Tensor) -> Any:
        tensor, address, value = self.known
        if tensor is t and address == t.data_ptr():
            return value
        value = _value(t)
        if (
            t.is_contiguous() and not t.is_complex() and not t.is_neg()
        ):  # else a copy, which does not follow it
            self.known = (t, t.data_ptr(), value)
        return value
