"""Messages between ranks: named tensors and numbers over a process group.

A message begins with a frame of fixed size that holds its header as JSON: what it is about, and
the dtype, sizes and order of dims of each tensor. What does not fit follows, then the tensors one
by one as bytes, so that every dtype is sent alike; empty ones are not sent. A tensor arrives with
its dims in the same order in memory (channels last stays channels last), without gaps.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Any

import torch

from graphport.errors import UnsupportedError

_FRAME_BYTES = 4096
_LENGTH_BYTES = 8
_FOREVER = timedelta(days=365)
"""Of a wait for a message: whoever watches the processes ends it earlier."""
WINDOW = 4
"""Messages to one rank that may be under way before the sender waits."""


@dataclass(frozen=True)
class Message:
    """Values by name; `step` is the number of the micro-batch, `note` a text for people."""

    kind: str
    step: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)


def pack_message(message: Message) -> list[torch.Tensor]:
    """A message as tensors of bytes, the first of which is the frame."""
    rows, payload = [], []
    for name, value in message.values.items():
        row, data = _encode_value(name, value)
        rows.append([name, row])
        if data is not None and data.numel():
            payload.append(data)
    header = json.dumps([message.kind, message.step, rows, message.note]).encode()
    start = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    first = torch.zeros(_FRAME_BYTES, dtype=torch.uint8)
    content = torch.frombuffer(bytearray(start), dtype=torch.uint8)
    first[: min(len(start), _FRAME_BYTES)] = content[:_FRAME_BYTES]
    return [first, *([content[_FRAME_BYTES:]] if len(start) > _FRAME_BYTES else []), *payload]


def _encode_value(name: str, value: Any) -> tuple[Any, torch.Tensor | None]:
    if not isinstance(value, torch.Tensor):
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}, None
        return {"plain": value}, None
    if value.layout is not torch.strided or value.is_quantized:
        kind = "quantised" if value.is_quantized else str(value.layout)
        raise UnsupportedError(
            f"{name} is a {kind} tensor, which cannot be sent from one stage to another",
            fix="cut the program where only dense tensors cross",
        )
    t = value.detach().resolve_conj().resolve_neg()
    order = sorted(range(t.dim()), key=t.stride, reverse=True)
    flat = t.permute(order).contiguous().reshape(-1).cpu()
    row = {
        "dtype": str(t.dtype).removeprefix("torch."),
        "sizes": [t.shape[d] for d in order],
        "order": order,
        "device": t.device.type,
    }
    return row, flat.view(torch.uint8)


def _decode_value(row: Mapping[str, Any], data: torch.Tensor | None) -> object:
    if "plain" in row:
        return row["plain"]
    if "complex" in row:
        return complex(*row["complex"])
    dtype, order = getattr(torch, row["dtype"]), row["order"]
    flat = torch.empty(0, dtype=dtype) if data is None else data.view(dtype)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return flat.reshape(row["sizes"]).permute(inverse).to(row["device"])


def _count_payload_bytes(row: Mapping[str, Any]) -> int:
    if "dtype" not in row:
        return 0
    return prod(row["sizes"]) * getattr(torch, row["dtype"]).itemsize


class Channel:
    """Sends and receives messages as one rank of a process group.

    Messages with one tag arrive in the order in which they are sent; each tag is for one thread at
    either end. ConnectionError: the other side is gone.
    """

    def __init__(self, group: Any, rank: int) -> None:
        self.group, self.rank = group, rank
        self._pending: dict[tuple[int, int], deque[tuple[list[Any], Any]]] = {}

    def send(self, to: int, tag: int, message: Message, window: int = WINDOW) -> None:
        """Send; wait only if the receiver is more messages behind than `window`."""
        tensors = pack_message(message)
        waiting = self._pending.setdefault((to, tag), deque())
        with _raise_connection_errors():
            works = [self.group.send([t], to, tag) for t in tensors]
        waiting.append((works, tensors))  # memory that is being sent has to stay
        while len(waiting) > window:
            _wait_for_works(waiting.popleft()[0], _FOREVER)

    def flush(self, to: int, tag: int, seconds: float) -> None:
        """Wait until everything has arrived."""
        for works, _ in self._pending.pop((to, tag), ()):
            _wait_for_works(works, timedelta(seconds=seconds))

    def receive(self, source: int, tag: int) -> Message:
        """Wait for the next message."""

        def octets(count: int) -> torch.Tensor:
            t = torch.empty(count, dtype=torch.uint8)
            with _raise_connection_errors():
                _wait_for_works([self.group.recv([t], source, tag)], _FOREVER)
            return t

        first = octets(_FRAME_BYTES)
        length = int.from_bytes(bytes(first[:_LENGTH_BYTES].tolist()), "little")
        text = first[_LENGTH_BYTES : _LENGTH_BYTES + length]
        if (rest := length - text.numel()) > 0:
            text = torch.cat([text, octets(rest)])
        kind, step, rows, note = json.loads(text.numpy().tobytes())
        values = {}
        for name, row in rows:
            count = _count_payload_bytes(row)
            values[name] = _decode_value(row, octets(count) if count else None)
        return Message(kind, step, values, note)


def _wait_for_works(works: Sequence[Any], limit: timedelta) -> None:
    with _raise_connection_errors():
        for work in works:
            work.wait(limit)


@contextmanager
def _raise_connection_errors() -> Iterator[None]:
    """gloo says by a plain RuntimeError that it has lost a connection."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(str(error)) from error
