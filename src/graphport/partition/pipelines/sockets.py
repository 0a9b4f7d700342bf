"""Socket pairs between processes of one machine, which the launcher makes and they inherit.

Nothing listens anywhere and there is no
address to connect to: whoever was not given an end of one has no part in the pipeline.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any


class SocketWork:
    """A message under way, as `torch.distributed` has it."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._error: OSError | None = None

    def finish(self, error: OSError | None = None) -> None:
        self._error = error
        self._arrived.set()

    def wait(self, limit: timedelta) -> None:
        if not self._arrived.wait(min(limit.total_seconds(), threading.TIMEOUT_MAX)):
            raise RuntimeError(f"not sent within {limit.total_seconds():g} s")
        if self._error is not None:
            raise RuntimeError(f"the connection is lost: {self._error}")


class SocketGroup:
    """The part of a process group that `wire` uses, over a socket for each other rank.

    Between two ranks, all that is sent has one tag.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = sockets
        self._outgoing: dict[int, queue.SimpleQueue[tuple[memoryview, SocketWork] | None]] = {}

    def send(self, tensors: Sequence[Any], to: int, tag: int) -> SocketWork:
        """Hand tensors of bytes over to the thread that writes to a rank."""
        (tensor,), sent = tensors, SocketWork()
        if to not in self._outgoing:
            waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._outgoing[to] = waiting
            arguments = (self._sockets[to], waiting)
            threading.Thread(target=_write_queue, args=arguments, daemon=True).start()
        self._outgoing[to].put((memoryview(tensor.numpy()), sent))
        return sent

    def recv(self, tensors: Sequence[Any], source: int, tag: int) -> SocketWork:
        """Fill tensors of bytes with what a rank sends."""
        (tensor,), done = tensors, SocketWork()
        left = memoryview(tensor.numpy())
        try:
            while left:
                count = self._sockets[source].recv_into(left)
                if not count:
                    raise ConnectionResetError("the other side has closed it")
                left = left[count:]
        except OSError as error:
            raise RuntimeError(f"the connection is lost: {error}") from error
        done.finish()
        return done

    def close(self) -> None:
        """End the connections, and whoever waits at them."""
        for waiting in self._outgoing.values():
            waiting.put(None)
        for own in self._sockets.values():
            _close_socket(own)


def _write_queue(
    to: socket.socket, waiting: queue.SimpleQueue[tuple[memoryview, SocketWork] | None]
) -> None:
    """Not a method: a thread that is waiting must not keep the connections alive."""
    error: OSError | None = None
    while (item := waiting.get()) is not None:
        content, sent = item
        if error is None:
            try:
                to.sendall(content)
            except OSError as lost:
                error = lost
        sent.finish(error)
        del item, content, sent  # memory that has been sent


class SocketStore:
    """A key-value store: the launcher's keys are sent to all, others' to the launcher.

    The part of a store of `torch.distributed` that `Rendezvous` uses.
    """

    def __init__(
        self, sockets: Iterable[socket.socket], lost: Callable[[], object] = lambda: None
    ) -> None:
        self._values: dict[str, bytes] = {}
        self._sockets = tuple(sockets)
        for own in self._sockets:
            arguments = (own, self._values, lost)
            threading.Thread(target=_listen_for_keys, args=arguments, daemon=True).start()

    def set(self, key: str, value: str) -> None:
        self._values[key] = value.encode()
        for own in self._sockets:
            with suppress(OSError):  # nobody is left to hear it
                own.sendall(json.dumps([key, value]).encode() + b"\n")

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        return self._values[key]

    def close(self) -> None:
        for own in self._sockets:
            _close_socket(own)


def _listen_for_keys(
    own: socket.socket, values: dict[str, bytes], lost: Callable[[], object]
) -> None:
    with suppress(OSError), own.makefile("rb") as lines:
        for line in lines:
            key, value = json.loads(line)
            values[key] = value.encode()
    lost()


def _close_socket(own: socket.socket) -> None:
    with suppress(OSError):  # the other side was quicker
        own.shutdown(socket.SHUT_RDWR)
    own.close()
