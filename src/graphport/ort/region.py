"""A part of a graph on ONNX Runtime: an ONNX model, its session, and how to call it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnxruntime as ort
import torch
from torch import nn

from graphport.errors import SessionError
from graphport.onnx.interface import Interface
from graphport.onnx.program import result_of
from graphport.onnx.runtime import Session, ort_value, tensor_of


@dataclass
class SessionRecord:
    """A model that the backend runs, and the session that runs it."""

    model_proto: onnx.ModelProto
    """Without the weights, which the session has from torch."""
    make: Callable[[], Session]
    _process: int = field(default_factory=os.getpid)
    _made: Session | None = None
    _turn: Any = field(default_factory=threading.Lock)

    @property
    def session(self) -> ort.InferenceSession:
        return self.opened().session

    def opened(self) -> Session:
        """The session; a process that was forked has one of its own, since threads are not."""
        made = self._made
        if made is None or self._process != os.getpid():
            with self._turn_of_process():
                if self._made is None or self._process != os.getpid():
                    self._made, self._process = self.make(), os.getpid()
                made = self._made
        return made

    def _turn_of_process(self) -> Any:
        """The lock; another thread may have held it when the process was forked."""
        if self._process != os.getpid():
            self._turn = threading.Lock()
        return self._turn


class Region(nn.Module):
    """Calls a session with tensors and numbers, in the order of the model's inputs."""

    def __init__(
        self,
        record: SessionRecord,
        interface: Interface,
        static: Sequence[bool],
        count: Callable[[], None],
    ) -> None:
        super().__init__()
        self.record = record
        self.inputs = [
            (i.name, i.flat, i.dtype, static[i.flat]) for i in interface.inputs
        ]  # fmt: skip
        self.results = [(r.kind, r.what) for r in interface.results]
        self.names = [what for kind, what in self.results if kind not in ("input", "constant")]
        self.plain = all(kind == "tensor" for kind, _ in self.results)
        self.count = count
        self._weights: dict[str, tuple[Any, int, Any]] = {}
        """What static inputs were last time: the tensor, its address, and what it is for ORT."""

    def forward(self, *args: Any) -> Any:
        session = self.record.opened()
        feeds = {}
        for name, place, dtype, static in self.inputs:
            x = args[place]
            if static:
                feeds[name] = self._weight(name, x)
            elif isinstance(x, torch.Tensor):
                if x.is_complex():
                    x = torch.view_as_real(x.resolve_conj())
                feeds[name] = ort_value(x)._ortvalue
            else:
                feeds[name] = ort_value(torch.tensor(x, dtype=dtype))._ortvalue
        try:
            values = session.session._sess.run_with_ort_values(feeds, self.names, None)
        except Exception as error:  # whatever a provider raises
            raise SessionError(f"ONNX Runtime: {error}") from error
        self.count()
        found = [tensor_of(ort.OrtValue(v)) for v in values]
        if self.plain:
            return found
        return self._arranged(found, args)

    def _weight(self, name: str, t: torch.Tensor) -> Any:
        known = self._weights.get(name)
        address = t.data_ptr()
        if known is not None and known[0] is t and known[1] == address:
            return known[2]
        value = ort_value(t)._ortvalue
        if t.is_contiguous():  # else it is a copy, which does not follow the tensor
            self._weights[name] = (t, address, value)
        return value

    def _arranged(self, found: list[torch.Tensor], args: Sequence[Any]) -> list[Any]:
        by_name = dict(zip(self.names, found, strict=True))
        return [
            what if kind == "constant" else args[what] if kind == "input"
            else result_of(kind, by_name[what])
            for kind, what in self.results
        ]  # fmt: skip
