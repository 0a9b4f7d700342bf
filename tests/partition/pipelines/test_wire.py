"""Messages: what arrives is what was sent, over real connections between threads."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graphport.errors import UnsupportedError
from graphport.partition.pipelines.rendezvous import Rendezvous
from graphport.partition.pipelines.sockets import SocketGroup
from graphport.partition.pipelines.wire import Channel, Message

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
]


@pytest.fixture(scope="module", params=["gloo", "sockets"])
def ends(request: pytest.FixtureRequest) -> tuple[Channel, Channel]:
    found: tuple[Channel, Channel] = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def sockets() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    channels = Channel(SocketGroup({1: one}), 0), Channel(SocketGroup({0: other}), 1)
    yield channels
    for channel in channels:
        channel.group.close()


@pytest.fixture(scope="module")
def gloo() -> tuple[Channel, Channel]:
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # A store of its own for each: one that waits for a key keeps others from using it.
    stores = first, dist.TCPStore("127.0.0.1", first.port, wait_for_workers=False)
    found: dict[int, Channel] = {}

    def connect(rank: int) -> None:
        found[rank] = Rendezvous(stores[rank], rank, 2).connect_ranks()

    own = socket.if_nameindex()[0][1]  # lo, whatever the name of this machine means
    threads = [threading.Thread(target=connect, args=(r,)) for r in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", own)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found[0], found[1]


def passed_on(ends: tuple[Channel, Channel], **values: Any) -> dict[str, Any]:
    ends[0].send(1, 7, Message("values", 3, values, {"said": "this"}))
    got = ends[1].receive(0, 7)
    assert (got.kind, got.step, got.note, list(got.values)) == (
        "values",
        3,
        {"said": "this"},
        list(values),
    )
    return dict(got.values)


def octets(t: torch.Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(ends: tuple[Channel, Channel], dtype: torch.dtype) -> None:
    tensors = [torch.randn(shape).mul(3).to(dtype) for shape in ((2, 3), (), (0, 4), (5,))]
    got = passed_on(ends, **{f"t{i}": t for i, t in enumerate(tensors)})
    for sent, arrived in zip(tensors, got.values(), strict=True):
        assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape)
        assert octets(arrived) == octets(sent)


def test_numbers_and_nothing(ends: tuple[Channel, Channel]) -> None:
    values = {"a": 3, "b": -(2**62), "c": 0.1, "d": True, "e": None, "f": 1 - 2j, "g": math.inf}
    got = passed_on(ends, **values)
    assert got == values and [type(x) for x in got.values()] == [type(x) for x in values.values()]


def test_layouts(ends: tuple[Channel, Channel]) -> None:
    """The order of the dims in memory arrives, gaps do not."""
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = {
        "image": image,
        "turned": torch.randn(3, 4).T,
        "part": torch.randn(4, 6)[:, ::2],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "grad": torch.randn(2, requires_grad=True),
        "conj": torch.randn(3, dtype=torch.cfloat).conj(),
    }
    got = passed_on(ends, **tensors)
    for name, sent in tensors.items():
        torch.testing.assert_close(got[name], sent.detach(), rtol=0, atol=0)
    assert got["image"].stride() == image.stride()
    assert got["turned"].stride() == (1, 4)
    assert not got["grad"].requires_grad


def test_long_headers(ends: tuple[Channel, Channel]) -> None:
    values = {f"a_rather_long_name_of_a_value_{i}": torch.tensor(i) for i in range(300)}
    got = passed_on(ends, **values)
    assert [int(t) for t in got.values()] == list(range(300))


def test_messages_of_one_tag_keep_their_order(gloo: tuple[Channel, Channel]) -> None:
    ends = gloo
    for i in range(3):
        ends[0].send(1, 1, Message("a", i))
        ends[0].send(1, 2, Message("b", i, {"x": torch.full((i,), i)}))
    assert [ends[1].receive(0, 2).step for _ in range(3)] == [0, 1, 2]
    assert [ends[1].receive(0, 1).step for _ in range(3)] == [0, 1, 2]


def test_a_sender_waits_for_one_that_is_far_behind(ends: tuple[Channel, Channel]) -> None:
    sent = []

    def send() -> None:
        for i in range(6):
            ends[0].send(1, 3, Message("a", i, {"x": torch.ones(100_000)}), window=2)
            sent.append(i)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.3)
    assert len(sent) <= 3 and thread.is_alive()
    assert [ends[1].receive(0, 3).step for _ in range(6)] == list(range(6))
    thread.join(10)
    assert len(sent) == 6
    ends[0].flush(1, 3, 10)


def test_what_cannot_be_sent(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(UnsupportedError, match=r"rows is a torch.sparse_coo tensor"):
        ends[0].send(1, 1, Message("a", 0, {"rows": torch.eye(2).to_sparse()}))
