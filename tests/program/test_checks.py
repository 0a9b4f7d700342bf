"""What `.module()` says about inputs that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphport as gp


def nested(x: Any, ys: Any, zs: Any, c: torch.Tensor) -> Any:
    return x + ys[0] + ys[1] + zs["a"], c * 2


def nested_program() -> gp.ExportedProgram:
    n = gp.Dim("n", min=3, max=8)
    return gp.export(
        nested,
        (torch.ones(5), [torch.ones(5), torch.ones(5)], {"a": torch.ones(5)}, torch.ones(4)),
        dynamic_shapes={"x": {0: n}, "ys": [{0: n}, {0: n}], "zs": {"a": {0: n}}, "c": None},
    )


def sizes(x: int, y0: int, y1: int, a: int, c: int) -> tuple[Any, ...]:
    return torch.ones(x), [torch.ones(y0), torch.ones(y1)], {"a": torch.ones(a)}, torch.ones(c)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            sizes(6, 5, 5, 5, 4),
            "Expected input at *args[1][0].shape[0] to be equal to 6, but got 5",
        ),
        (
            sizes(5, 5, 5, 6, 4),
            "Expected input at *args[2]['a'].shape[0] to be equal to 5, but got 6",
        ),
        (sizes(5, 5, 5, 5, 6), "Expected input at *args[3].shape[0] to be equal to 4, but got 6"),
        (sizes(2, 2, 2, 2, 4), "Expected input at *args[0].shape[0] to be >= 3, but got 2"),
        (sizes(9, 9, 9, 9, 4), "Expected input at *args[0].shape[0] to be <= 8, but got 9"),
    ],
)
def test_sizes(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        nested_program().module()(*args)
    assert str(raised.value) == message


def test_sizes_within_the_spec_pass() -> None:
    module = nested_program().module()
    for n in range(3, 9):
        out, _ = module(*sizes(n, n, n, n, 4))
        assert out.shape == (n,)


def test_rank_dtype_and_kind() -> None:
    module = gp.export(lambda x: x + 1, (torch.ones(2, 3),)).module()
    for bad, message in [
        (torch.ones(2), "Expected input at *args[0] to have 2 dimensions, but got 1"),
        (
            torch.ones(2, 3, dtype=torch.int64),
            "Expected input at *args[0] to have dtype torch.float32, but got torch.int64",
        ),
        (3, "Expected input at *args[0] to be a tensor, but got int"),
    ]:
        with pytest.raises(RuntimeError) as raised:
            module(bad)
        assert str(raised.value) == message


@pytest.mark.parametrize(
    ("captured", "given"),
    [(5, 6), (5.0, 6.0), (5, 5.0), (True, False), ("floor", "trunc"), (None, 1)],
)
def test_constants(captured: Any, given: Any) -> None:
    module = gp.export(lambda x, k: x + 1, (torch.ones(2), captured)).module()
    module(torch.ones(2), captured)
    with pytest.raises(RuntimeError) as raised:
        module(torch.ones(2), given)
    assert (
        str(raised.value)
        == f"Expected input at *args[1] to be equal to {captured}, but got {given}"
    )


def test_keyword_arguments_are_named_as_passed() -> None:
    def f(x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return x * mask

    module = gp.export(f, (torch.ones(2, 3),), {"mask": torch.ones(2, 3)}).module()
    with pytest.raises(RuntimeError, match=r"at kwargs\['mask'\]\.shape\[1\] to be equal to 3"):
        module(torch.ones(2, 3), mask=torch.ones(2, 4))


def test_derived_dims() -> None:
    d = gp.Dim("d", min=3, max=6)
    module = gp.export(
        lambda x, y: x + y[1::2],
        (torch.ones(5), torch.ones(11)),
        dynamic_shapes=({0: d}, {0: 2 * d + 1}),
    ).module()
    assert module(torch.ones(4), torch.ones(9)).shape == (4,)
    with pytest.raises(RuntimeError, match="to be equal to 9, but got 8"):
        module(torch.ones(4), torch.ones(8))


def test_a_size_of_the_wrong_form() -> None:
    d = gp.Dim("d", min=3, max=6)
    module = gp.export(lambda w: w[::2], (torch.ones(10),), dynamic_shapes=({0: 2 * d},)).module()
    assert module(torch.ones(8)).shape == (4,)
    with pytest.raises(RuntimeError, match=r"= 9 to be of the form 2\*d, where d is an integer"):
        module(torch.ones(9))
    with pytest.raises(RuntimeError, match="to be <= 12, but got 14"):
        module(torch.ones(14))


def test_a_branch_on_two_dims_is_checked_when_run() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < y.shape[0] else x - 1

    module = gp.export(
        f, (torch.ones(2), torch.ones(5)), dynamic_shapes=({0: gp.Dim("a")}, {0: gp.Dim("b")})
    ).module()
    assert module(torch.ones(3), torch.ones(4)).sum() == 6
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression"):
        module(torch.ones(4), torch.ones(4))


def test_without_checks() -> None:
    module = gp.export(lambda x: x + 1, (torch.ones(2),)).module(check_guards=False)
    assert module(torch.ones(7)).shape == (7,)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m(torch.ones(2), torch.ones(2)),
        lambda m: m(),
        lambda m: m([torch.ones(2)]),
        lambda m: m(torch.ones(2), y=1),
    ],
)
def test_structure(call: Callable[[Any], Any]) -> None:
    module = gp.export(lambda x: x + 1, (torch.ones(2),)).module()
    with pytest.raises(ValueError, match="Trying to flatten user inputs with exported input tree"):
        call(module)
