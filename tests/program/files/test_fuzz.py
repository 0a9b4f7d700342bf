"""`gp.load` on changed files: a program that can be used safely, or a SerializationError."""

from __future__ import annotations

import io
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch

import graphport as gp
from graphport.errors import ExportError, SerializationError
from tests.program.mutations import mutate_bytes, mutate_document, mutate_text, packed, unpacked
from tests.program.saved import saved

SECONDS = 20
"""That a file of a few kilobytes may take, on a busy machine."""


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor, options: dict[str, Any], *, scale: float) -> Any:
        self.count.add_(1)
        y = self.linear(x) * options["weight"] + self.table[: x.shape[1]] * scale
        y = torch.cond(y.sum() > 0, lambda y: (y + 1,), lambda y: (y.sin(),), (y,))[0]
        return {"y": y, "sizes": (x.shape[0] * 2 + 1, x.shape[0] // 3), "name": options["name"]}


def with_data(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = n.item()
    torch._check(count >= 2)
    torch._check(count <= 20)
    picked = x[x > 0]
    x.mul_(2)
    return picked, torch.ones(count, x.shape[0] * x.shape[1]), x.reshape(-1)[: x.shape[0] ** 2]


@cache
def programs() -> list[bytes]:
    batch, other = gp.Dim("batch", min=2, max=64), gp.Dim("other", min=2)
    first = gp.export(
        Branches(),
        (torch.randn(3, 4), {"weight": torch.ones(3, 1), "name": "n"}),
        {"scale": 2.0},
        dynamic_shapes={
            "x": {0: batch},
            "options": {"weight": {0: batch}, "name": None},
            "scale": None,
        },
    )
    second = gp.export(
        with_data,
        (torch.randn(3, 6), torch.tensor(5)),
        dynamic_shapes=({0: other, 1: 2 * other}, None),
    )
    return [saved(first), saved(second)]


events: list[str] = []
watching = False
# What nothing in a file may bring about. Importing is watched too: by what sys.modules has after.
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "shutil.rmtree",
    "pickle.find_class",
    "ctypes.dlopen",
)


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if watching:
        if event in _FORBIDDEN:
            events.append(f"{event} {args}")
        if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            events.append(f"open {args}")


@cache
def _install() -> None:
    sys.addaudithook(_watch)


@contextmanager
def nothing_happens() -> Iterator[None]:
    """Nothing is started, written or imported meanwhile, and it does not take forever."""
    global watching
    _install()
    before = set(sys.modules)

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    events.clear()
    watching = True
    try:
        yield
    finally:
        watching = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert not events
    assert not {name for name in set(sys.modules) - before if not name.startswith("torch")}


def use(data: bytes) -> bool:
    """Load a file and look at the program from all sides; whether it could be loaded."""
    with nothing_happens():
        try:
            program = gp.load(io.BytesIO(data))
        except SerializationError:
            return False
        str(program)
        program.validate()
        module = program.module()
        assert module.code
        program.module(check_guards=False)
        program.checks.accepts
        try:
            gp.save(program, io.BytesIO())
        except ExportError as error:
            raise AssertionError(f"what was loaded cannot be saved: {error}") from None
    return True


def run(count: int, change: Callable[[bytes, random.Random], bytes], seed: int) -> int:
    """Mutate `count` files; how many could still be loaded."""
    rng = random.Random(seed)
    for data in programs():
        assert use(data)
    loaded = 0
    for i in range(count):
        changed = change(rng.choice(programs()), rng)
        try:
            loaded += use(changed)
        except BaseException as error:
            error.add_note(f"mutation {i} of seed {seed}")
            raise
    return loaded


def in_document(data: bytes, rng: random.Random) -> bytes:
    document, tensors = unpacked(data)
    return packed(mutate_document(document, rng), tensors)


def in_text(data: bytes, rng: random.Random) -> bytes:
    document, tensors = unpacked(data)
    return packed(mutate_text(document, rng), tensors)


def in_tensors(data: bytes, rng: random.Random) -> bytes:
    document, tensors = unpacked(data)
    return packed(document, mutate_bytes(tensors, rng))


CHANGES = {"bytes": mutate_bytes, "document": in_document, "text": in_text, "tensors": in_tensors}
QUICK = {"bytes": 100, "document": 250, "text": 30, "tensors": 40}
LONG = {"bytes": 3000, "document": 6000, "text": 500, "tensors": 1000}


@pytest.mark.parametrize("kind", CHANGES)
def test_changed_files(kind: str) -> None:
    run(QUICK[kind], CHANGES[kind], 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
def test_many_changed_files(kind: str) -> None:
    run(LONG[kind], CHANGES[kind], 2)
