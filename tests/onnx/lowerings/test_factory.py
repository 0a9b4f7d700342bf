"""Lowerings that make tensors from numbers."""

from __future__ import annotations

import onnx
import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row

ROWS = [
    row(lambda a: torch.zeros(a.shape[0], 3), "b", name="zeros"),
    row(lambda a: torch.ones(a.shape, dtype=torch.int32), "b t", name="ones"),
    row(lambda a: torch.full((a.shape[0], 2), 7), "b", name="full_keeps_integers"),
    row(lambda a: torch.full((a.shape[0],), True), "b", name="full_bool"),
    row(lambda a: torch.full((a.shape[0],), a.shape[1]), "b t", name="full_of_a_size"),
    row(lambda a: torch.full((3,), a.shape[0] / 2), "b", name="full_of_a_quotient"),
    row(lambda a: torch.full((2, 2), 1.5, dtype=torch.float16) * a, "1", name="full_half"),
    row(lambda a: torch.zeros_like(a) + 1, "b t", name="zeros_like"),
    row(lambda a: torch.ones_like(a, dtype=torch.bool), "b t", name="ones_like"),
    row(lambda a: torch.full_like(a, 2.9), "b t", make=ints(3), name="full_like_truncates"),
    row(lambda a: torch.full_like(a, a.shape[0]), "b t", name="full_like_of_a_size"),
    row(lambda a: a.new_zeros(2, a.shape[0]), "b", name="new_zeros"),
    row(lambda a: a.new_ones(a.shape[0]), "b", make=bools, name="new_ones"),
    row(lambda a: a.new_full((a.shape[0], 1), 4), "b", name="new_full"),
    row(lambda a: torch.empty_like(a).fill_(2), "b t", name="empty_filled"),
    row(lambda a: a.clone().fill_(a.shape[0]), "b t", name="fill_of_a_size"),
    row(lambda a, c: a.clone().fill_(c), "b t", "", name="fill_of_a_tensor"),
    row(lambda a: torch.tensor(a.shape[0]), "b", name="tensor_of_a_size"),
    row(lambda a: torch.scalar_tensor(a.shape[0], dtype=torch.float16), "b", name="scalar_tensor"),
    row(lambda a: torch.arange(a.shape[0]), "b", name="arange"),
    row(lambda a: torch.arange(2, a.shape[0] + 2), "b", name="arange_start"),
    row(lambda a: torch.arange(0, 2 * a.shape[0], 2), "b", name="arange_step"),
    row(lambda a: torch.arange(a.shape[0], 0, -1), "b", name="arange_down"),
    row(lambda a: a[torch.arange(a.shape[0] - 1, -1, -1)], "b", name="rows_downwards"),
    row(lambda a: a[torch.arange(-a.shape[0], 0)], "b 3", name="rows_from_the_end"),
    row(lambda a: a[torch.arange(0, -a.shape[0], -1)], "b 3", name="rows_from_the_first_back"),
    row(lambda a: torch.arange(a.shape[0], dtype=torch.float32), "b", name="arange_float"),
    row(lambda a: torch.arange(a.shape[0], dtype=torch.float16), "b", name="arange_half"),
    row(lambda a: torch.arange(a.shape[0], dtype=torch.int32), "b", name="arange_int32"),
    row(lambda a: torch.arange(0, a.shape[0], 0.1), "b", name="arange_tenths"),
    row(lambda a: torch.arange(0.5, a.shape[0] + 0.5, 1), "b", name="arange_halves"),
    row(lambda a: torch.arange(a.shape[0] / 2), "b", name="arange_of_a_quotient"),
    row(lambda a: torch.linspace(-1, 1, a.shape[0]), "b", name="linspace"),
    row(lambda a: torch.linspace(0, a.shape[0], 5), "b", name="linspace_to_a_size"),
    row(
        lambda a: torch.linspace(0, 10, a.shape[0], dtype=torch.int64),
        "b",
        name="linspace_integers",
    ),
    row(
        lambda a: torch.linspace(3, 3, a.shape[0], dtype=torch.float64), "b", name="linspace_double"
    ),
    row(lambda a, b, c: torch.linspace(b, c, a.shape[0]), "b", "", "", name="linspace_tensors"),
    row(lambda a: torch.logspace(-1, 2, a.shape[0]), "b", name="logspace"),
    row(
        lambda a: torch.logspace(0, 3, a.shape[0], 2.0, dtype=torch.int64),
        "b",
        name="logspace_integers",
    ),
    row(lambda a: torch.logspace(0, a.shape[0], 5), "b", name="logspace_to_a_size"),
    row(lambda a, b, c: torch.logspace(b, c, 5, base=2.0), "b", "", "", name="logspace_tensors"),
    row(lambda a: torch.eye(a.shape[0]), "b", name="eye"),
    row(lambda a: torch.eye(a.shape[0], a.shape[1], dtype=torch.bool), "b t", name="eye_m"),
    row(lambda a: torch.eye(3, a.shape[0], dtype=torch.int8), "b", name="eye_int8"),
    row(lambda a: torch.zeros(a.shape[0], 100_000)[:, :1], "b", name="zeros_large"),
    row(lambda a: torch.hann_window(a.shape[0]), "7", name="hann_window"),
    *(
        row(lambda a, fn=fn: fn(a.shape[0]), "b", name=f"open_{fn.__name__}")
        for fn in (
            torch.hann_window,
            torch.hamming_window,
            torch.bartlett_window,
            torch.blackman_window,
            torch.kaiser_window,
            torch.fft.fftfreq,
            torch.fft.rfftfreq,
        )
    ),
    row(lambda a: torch.vander(a), "b", name="vander"),
    row(lambda a: torch.tril_indices(*a.shape), "b t", name="tril_indices"),
    row(lambda a: torch.triu_indices(*a.shape, 1), "b t", name="triu_indices"),
    row(lambda a: torch.combinations(a), "b", name="combinations"),
    row(
        lambda a, c: F.one_hot(a, c.shape[0] + 3),
        "b",
        "t",
        make=[ints(3), torch.randn],
        name="one_hot_of_a_size",
    ),
    row(
        lambda a: torch.arange(a.shape[1])[None] < torch.arange(a.shape[0])[:, None],
        "b t",
        name="mask",
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(x.shape[0], 2),
        lambda x: torch.empty_like(x, dtype=torch.int32),
        lambda x: x.new_empty(3, x.shape[0]),
        lambda x: torch.empty_strided((2, x.shape[0]), (1, 2)),
        lambda x: torch.empty_permuted((2, x.shape[0]), (1, 0)),
        lambda x: x.new_empty_strided((2, 2), (1, 2)),
    ],
)
def test_memory_that_nobody_wrote(make: object) -> None:
    x = torch.randn(4)
    program = gp.onnx.export(make, (x,), dynamic_shapes=({0: gp.Dim("n")},))
    for size in (4, 9, 0):
        have, want = program(torch.randn(size)), make(torch.randn(size))  # type: ignore[operator]
        assert have.shape == want.shape and have.dtype is want.dtype


def test_numbers_that_depend_on_data() -> None:
    def fn(n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k = n.item()
        torch._check(k >= 0)
        return torch.arange(k), torch.ones(k, 2), torch.full((2,), k)

    check_onnx(fn, (torch.tensor(4),), others=[(torch.tensor(k),) for k in (0, 1, 9)])


def test_what_is_fixed_is_a_constant() -> None:
    program = gp.onnx.export(lambda x: x + torch.linspace(0, 1, 4), (torch.randn(4),))
    assert [n.op_type for n in program.model_proto.graph.node] == ["Add"]


def test_what_lies_in_memory_does_not_go_into_a_file() -> None:
    """`vander` fills a tensor that it makes with `empty`."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.vander(x, 200)

    x = torch.linspace(0, 1, 200)
    for _ in range(3):
        torch.full((200, 200), torch.nan)  # memory that is given back, and likely taken again
        proto = gp.onnx.export(f, (x,)).model_proto
        for constant in proto.graph.initializer:
            values = torch.from_numpy(onnx.numpy_helper.to_array(constant).copy())
            assert not values.is_floating_point() or values.abs().max() <= 1, constant.name
