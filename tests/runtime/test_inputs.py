"""Tensors of all kinds as inputs: dtypes, layouts, sizes of 0; numbers; containers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from graphport.runtime import OrtBackend
from tests.runtime.comparing import check, same

SIZES = (2, 4, 6)


# Layouts


def transposed(n):
    return torch.randn(3, n).t()


def with_gaps(n):
    return torch.randn(n, 6)[:, ::2]


def from_within(n):
    return torch.randn(n + 2, 3)[1:-1]


def rows_repeated(n):
    return torch.randn(1, 3).expand(n, 3)


def columns_repeated(n):
    return torch.randn(n, 1).expand(n, 3)


def channels_last(n):
    return torch.randn(n, 3, 4, 5).to(memory_format=torch.channels_last)


def negated(n):
    return torch.randn(n, 3, dtype=torch.complex64).conj().imag


LAYOUTS = [
    transposed,
    with_gaps,
    from_within,
    rows_repeated,
    columns_repeated,
    channels_last,
    negated,
]


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda f: f.__name__)
def test_layouts(make, dynamic):
    def f(x):
        return x * 2 + 1, x.relu(), x.sum(0), x

    check(f, *[(make(n),) for n in SIZES], dynamic=dynamic)


def test_strides_that_are_read(dynamic):
    """Torch takes those of a tensor with gaps as symbols: a call with others is its own."""

    def f(x):
        return torch.ones(3) * x.stride(0), x.as_strided((2, 2), (x.stride(0), 1)) * 2

    wide = [(torch.randn(4, n)[:, ::2],) for n in (6, 8, 12)]
    turned = [(torch.randn(n, 4).t(),) for n in (6, 8, 12)]
    inside = [(torch.randn(n, 5)[1:-1, 1:],) for n in (6, 8, 12)]
    check(f, *wide, *turned, *inside, dynamic=dynamic)


def test_results_lie_in_memory_as_in_eager(dynamic):
    def f(x):
        y = x.t() + 1
        return y, y.t(), (x * 2).t(), x.permute(1, 0).exp()

    check(f, *[(torch.randn(n, 3),) for n in SIZES], dynamic=dynamic)


def test_convolution_with_channels_last(dynamic):
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            return y, y.permute(0, 2, 3, 1).flatten(0, 2), y.relu()

    m = Rows().requires_grad_(False).to(memory_format=torch.channels_last)
    calls = [(torch.randn(n, 3, 6, 6).to(memory_format=torch.channels_last),) for n in SIZES]
    check(m, *calls, dynamic=dynamic)


def test_sizes_of_zero(dynamic):
    def f(x):
        return x * 2, x.sum(), x.sum(0), torch.cat([x, x]), x.t() + 1

    check(f, *[(torch.randn(s),) for s in ((0, 3), (2, 3), (4, 0), (5, 3))], dynamic=dynamic)


def test_no_dims(dynamic):
    def f(x, y):
        return x * y, x + 1, x.reshape(1), x

    check(f, *[(torch.randn(()), torch.randn(())) for _ in range(2)], dynamic=dynamic)


# Dtypes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats(dtype, dynamic):
    def f(x):
        return x * 2 + 1, x.sum(), (x @ x.t()).relu(), x.softmax(-1), x.t() * 3, x

    calls = [(torch.randn(n, 3).to(dtype),) for n in SIZES]
    check(f, *calls, dynamic=dynamic, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16])
def test_integers(dtype, dynamic):
    def f(x):
        return x * 2 + 1, x.sum(), x // 2, x.float() / 3, x.t(), x

    check(f, *[(torch.randint(0, 9, (n, 3)).to(dtype),) for n in SIZES], dynamic=dynamic)


def test_booleans(dynamic):
    def f(x, y):
        return x & y, ~x, x.sum(), torch.where(x, 1.0, 0.0), x.any(), x

    calls = [(torch.randn(n, 3) > 0, torch.randn(n, 3) > 0) for n in SIZES]
    check(f, *calls, dynamic=dynamic)


def test_complex_numbers(dynamic):
    def f(x, y):
        return x * y, x.real + y.imag, x.abs(), (x @ y.mT).conj(), x.conj() * 2

    def pair(n):
        return torch.randn(n, 3, dtype=torch.complex64), torch.randn(n, 3, dtype=torch.complex64)

    check(f, *map(pair, SIZES), dynamic=dynamic)
    check(f, *[(x.conj(), y) for x, y in map(pair, SIZES)], dynamic=dynamic)


# Numbers and containers


def test_numbers_in_and_out(dynamic):
    def f(x, i, a, flag, word):
        y = x - 1 if flag else x + 1
        return x * i + a, y, x.shape[0] * 2, x.size(0) + i, a, i, flag, word, None

    check(f, *[(torch.randn(n, 3), n, n * 0.5, n > 2, "a") for n in SIZES], dynamic=dynamic)


def test_sizes_as_results(dynamic):
    def f(x, i):
        flat = x.reshape(-1)[:i] * 2
        return {"n": x.shape[0], "half": x.numel() // 2, "x": flat, "t": (x.shape, None)}

    check(f, *[(torch.randn(n, 3), n) for n in SIZES], dynamic=dynamic)
    check(lambda x: x.shape[0] + 1, *[(torch.randn(n, 3),) for n in SIZES], dynamic=dynamic)


def test_integers_as_sizes(dynamic):
    def f(x, n, m):
        return x.reshape(n, m) * 2, x.view(m, n), torch.zeros(n, m) + x.sum(), torch.arange(n)

    check(f, *[(torch.randn(n * 3), n, 3) for n in SIZES], dynamic=dynamic)


def test_floats_as_operands_and_as_parameters(dynamic):
    def f(x, a, b):
        return x * a + b, x.clamp(a, b), F.layer_norm(x, (3,), eps=a), x**b, a * b, x.shape[0] * a

    check(f, *[(torch.randn(n, 3), n * 0.25, n * 0.5) for n in SIZES], dynamic=dynamic)


def test_one_graph_for_all_floats():
    backend = check(lambda x, a: x * a, *[(torch.randn(n), n * 0.5) for n in (2, 3, 4, 5)])
    assert len(backend.sessions) == 1


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    rest: Any


torch.utils._pytree.register_dataclass(Pair)


def test_containers(dynamic):
    def f(x):
        nested = [x["b"][0] + 1, (x["b"][1], {"k": x["a"].sum()})]
        return Pair(x["a"] * 2, nested)

    calls = [({"a": torch.randn(n, 3), "b": [torch.randn(n), None]},) for n in SIZES]
    check(f, *calls, dynamic=dynamic)


def test_a_dataclass_as_argument(dynamic):
    def f(p):
        return p.first * 2 + p.rest

    check(f, *[(Pair(torch.randn(n), 2.0),) for n in SIZES], dynamic=dynamic)


class Doubled(torch.Tensor):
    """Made of another tensor, of which it is twice the value."""

    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Doubled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Doubled, lambda t: t.inner * 2, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def test_tensors_that_are_made_of_others():
    def f(w, x):
        return x @ w

    w, x = Doubled(torch.randn(3, 4)), torch.randn(2, 3)
    backend = OrtBackend()
    same(torch.compile(f, backend=backend)(w, x), f(w, x))
    assert backend.execution_count == 1
    torch._dynamo.reset()
    backend = OrtBackend({"use_aot_autograd": False})
    same(torch.compile(f, backend=backend)(w, x), f(w, x))
    assert "an input is a Doubled" in backend.explain()


def test_rows_of_different_lengths_run_in_torch():
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)
    backend = OrtBackend()
    found = torch.compile(lambda x: x * 2 + 1, backend=backend)(x)
    same(list(found.unbind()), [t * 2 + 1 for t in rows], strides=False)
    assert "a ragged size" in backend.explain()


def test_a_default_device_elsewhere():
    """Numbers and room for results are on the CPU, where the session is."""

    def f(x, k):
        return x * k + 1, x.sum()

    with torch.device("meta"):
        check(
            f,
            *[(torch.randn(n, device="cpu"), n) for n in (2, 3, 5)],
            options={"preallocate_output": True},
        )


def test_a_layout_that_is_asked_for_beside_an_operator_that_raises(dynamic):
    """Which AOTAutograd gives a token of effects, a tensor when compiled and None when called."""

    def f(x, y):
        torch.linalg.cholesky(x @ x.t() + 3 * torch.eye(x.shape[0]))
        t = y * 2
        t.as_strided((2,), (1,)).fill_(1)
        return t

    check(f, *[(torch.rand(n, n), torch.rand(n, 3)) for n in SIZES], dynamic=dynamic)
