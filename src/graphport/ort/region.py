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
from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValue, SessionIOBinding
from torch import nn

from graphport.errors import SessionError
from graphport.onnx.interface import Interface
from graphport.onnx.ir import Value
from graphport.onnx.program import result_of
from graphport.onnx.runtime import Session, ort_value, tensor_of
from graphport.ort.forks import forkable_lock
from graphport.ort.rooms import Sizes

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
    the places of those that go over as pairs of numbers. `sizes` has those of the outputs that
    torch is to make room for.
    """

    def __init__(
        self,
        record: SessionRecord,
        interface: Interface,
        outputs: Sequence[Value],
        static: Sequence[bool],
        complex: Container[int],
        count: Callable[[], None],
        sizes: Sequence[Sizes | None] = (),
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
        rooms = {v.name: s for v, s in zip(outputs, sizes, strict=False)}
        self.names = [what for kind, what in self.results if kind not in ("input", "constant")]
        self.is_plain = all(kinds[name] in _PLAIN for name in self.names)
        self.in_order = all(kind == "tensor" for kind, _ in self.results)
        self.rooms = [(name, kinds[name], rooms.get(name)) for name in self.names]
        self.has_rooms = any(size is not None for _, _, size in self.rooms)

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
        try:
            if self.has_rooms:
                found = self._run_into_rooms(session, feeds, args)
                return found if self.in_order else self._arranged(found, args)
            values = session.run_with_ort_values(feeds, self.names, None)
        except Exception as error:  # whatever a provider raises
            raise SessionError(f"ONNX Runtime: {error}") from error
        self.count()
        if self.is_plain:
            found = values.to_dlpacks(torch._C._from_dlpack)
        else:  # by number: iterating costs ten times as much
            found = [tensor_of(ort.OrtValue(values[i])) for i in range(len(self.names))]
        return found if self.in_order else self._arranged(found, args)

    __call__ = forward  # no hooks, which cost microseconds

    def _run_into_rooms(
        self, session: Any, feeds: dict[str, Any], args: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Results in memory of torch's, where their sizes are known."""
        binding = SessionIOBinding(session)
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        found: list[torch.Tensor | None] = []
        for name, dtype, sizes in self.rooms:
            if sizes is None:
                binding.bind_output(name, _HOST)
                found.append(None)
            else:
                t = torch.empty(sizes(args), dtype=dtype, device="cpu")
                binding.bind_ortvalue_output(name, ort_value(t)._ortvalue)
                found.append(t)
        session.run_with_iobinding(binding, None)
        self.count()
        values = binding.get_outputs()
        return [
            t if t is not None else tensor_of(ort.OrtValue(values[i])) for i, t in enumerate(found)
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
