"""What `.module()` says about inputs that do not fit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    ("captured", "given", "text"),
    [
        (5, 6, "5, but got 6"),
        (5.0, 6.0, "5.0, but got 6.0"),
        (5, 5.0, "5, but got 5.0"),
        (True, False, "True, but got False"),
        (True, 1, "True, but got 1"),
        (0, False, "0, but got False"),
        (0.0, -0.0, "0.0, but got -0.0"),
        (math.nan, 1.0, "nan, but got 1.0"),
        (1j, 2j, "1j, but got 2j"),
        ("trunc", "floor", "trunc, but got floor"),
        (None, 1, "None, but got 1"),
        (None, "None", "None (NoneType), but got None (str)"),
        (2**70, 2**70 + 1, f"{2**70}, but got {2**70 + 1}"),
        (torch.int8, torch.int16, "torch.int8, but got torch.int16"),
        (torch.device("cpu"), torch.device("meta"), "cpu, but got meta"),
        (3, torch.ones(2), "3, but got Tensor"),
    ],
)
def test_constants(captured: Any, given: Any, text: str) -> None:
    module = gp.export(lambda x, k: x + 1, (torch.ones(2), captured)).module()
    module(torch.ones(2), captured)
    module(torch.ones(2), copy.copy(captured) if captured == captured else float("nan"))
    expected = f"Expected input at *args[1] to be equal to {text}"
    assert message(lambda: module(torch.ones(2), given)) == expected


def test_keyword_arguments_are_named_as_passed() -> None:
    def f(x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return x * mask

    module = gp.export(f, (torch.ones(2, 3),), {"mask": torch.ones(2, 3)}).module()
    with pytest.raises(RuntimeError, match=r"at kwargs\['mask'\]\.shape\[1\] to be equal to 3"):
        module(torch.ones(2, 3), mask=torch.ones(2, 4))


def message(call: Callable[[], Any], kind: type[Exception] = RuntimeError) -> str:
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


def lengths(*sizes: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones(n) for n in sizes)


def unrelated(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0] * 2


D = gp.Dim("d", min=3, max=6)
FREE = gp.Dim("free")


@pytest.mark.parametrize(
    ("dims", "good", "bad", "text"),
    [
        ((D, D + 1), (4, 5), (4, 6), "*args[1].shape[0] to be equal to 5, but got 6"),
        ((D + 1, D), (5, 4), (6, 4), "*args[1].shape[0] to be equal to 5, but got 4"),
        ((D, 2 * D + 1), (4, 9), (4, 8), "*args[1].shape[0] to be equal to 9, but got 8"),
        ((D + 1, 2 * D + 1), (5, 9), (8, 15), "*args[0].shape[0] to be <= 7, but got 8"),
        ((D + 1, 2 * D + 1), (5, 9), (5, 8), "*args[1].shape[0] to be equal to 9, but got 8"),
        (
            (2 * D,),
            (8,),
            (9,),
            "*args[0].shape[0] = 9 to be of the form 2*d, where d is an integer",
        ),
        ((2 * D,), (8,), (14,), "*args[0].shape[0] to be <= 12, but got 14"),
        ((2 * D,), (8,), (15,), "*args[0].shape[0] to be <= 12, but got 15"),
        ((2 * D,), (8,), (4,), "*args[0].shape[0] to be >= 6, but got 4"),
        (
            (3 * D - 1,),
            (8,),
            (9,),
            "*args[0].shape[0] = 9 to be of the form 3*d - 1, where d is an integer",
        ),
        (
            (FREE, FREE + 1, FREE + 2),
            (6, 7, 8),
            (6, 7, 5),
            "*args[2].shape[0] to be equal to 8, but got 5",
        ),
        (
            (FREE, FREE + 1, FREE),
            (6, 7, 6),
            (6, 7, 5),
            "*args[2].shape[0] to be equal to 6, but got 5",
        ),
    ],
)
def test_derived_dims(
    dims: tuple[Any, ...], good: tuple[int, ...], bad: tuple[int, ...], text: str
) -> None:
    spec = (tuple({0: d} for d in dims),)
    module = gp.export(unrelated, lengths(*good), dynamic_shapes=spec).module()
    assert module(*lengths(*good)).shape == good[:1]
    assert message(lambda: module(*lengths(*bad))) == f"Expected input at {text}"


def test_a_narrow_range() -> None:
    d = gp.Dim("d", min=1, max=2)
    module = gp.export(unrelated, lengths(2), dynamic_shapes=(({0: d},),)).module()
    assert [module(*lengths(n)).shape[0] for n in (1, 2)] == [1, 2]
    text = "Expected input at *args[0].shape[0] to be <= 2, but got 3"
    assert message(lambda: module(*lengths(3))) == text


def test_a_branch_on_two_dims_is_checked_when_run() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < y.shape[0] else x - 1

    module = gp.export(
        f, (torch.ones(2), torch.ones(5)), dynamic_shapes=({0: gp.Dim("a")}, {0: gp.Dim("b")})
    ).module()
    assert module(torch.ones(3), torch.ones(4)).sum() == 6
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression"):
        module(torch.ones(4), torch.ones(4))


def test_conditions_between_sizes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        if x.shape[0] == y.shape[0]:
            return x + y
        if x.shape[0] == y.shape[0] ** 3:
            return x + 2, y + 3
        if x.shape[0] ** 2 == y.shape[0] * 3:
            return x * 2.0, y * 3.0
        return x

    shapes = ({0: gp.Dim("dx", min=4)}, {0: gp.Dim("dy", min=4)})
    module = gp.export(f, lengths(6, 12), dynamic_shapes=shapes, guards="runtime_assert").module()
    assert [t.shape[0] for t in module(*lengths(9, 27))] == [9, 27]
    failed = "Runtime assertion failed for expression"
    at = "(*args[0].shape[0])", "(*args[1].shape[0])"
    assert [message(lambda n=n: module(*lengths(*n))) for n in ((4, 4), (64, 4), (10, 9))] == [
        f"{failed} Ne(dx, dy): dx != dy does not hold for dx = 4 {at[0]}, dy = 4 {at[1]}",
        f"{failed} Ne(dx, dy**3): dy**3 != dx does not hold for dx = 64 {at[0]}, dy = 4 {at[1]}",
        f"{failed} Eq(dx**2, 3*dy): dx**2 == 3*dy does not hold for dx = 10 {at[0]}, "
        f"dy = 9 {at[1]}",
    ]


def test_conditions_on_one_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] != 20 and x.shape[0] % 20 != 0 else x

    shapes = ({0: gp.Dim("batch")},)
    module = gp.export(f, lengths(42), dynamic_shapes=shapes, guards="runtime_assert").module()
    module(*lengths(43))
    failed = "Runtime assertion failed for expression"
    assert message(lambda: module(*lengths(20))) == (
        f"{failed} Ne(batch, 20): batch != 20 does not hold for batch = 20 (*args[0].shape[0])"
    )
    assert message(lambda: module(*lengths(400))).startswith(f"{failed} Ne(Mod(batch, 20), 0): ")


def test_capturing_a_checked_module_again() -> None:
    d = gp.Dim("d", min=3)
    module = gp.export(unrelated, lengths(5), dynamic_shapes=(({0: d},),)).module()
    assert gp.export(module, lengths(7)).module()(*lengths(7)).shape == (7,)
    text = message(lambda: gp.export(module, lengths(2)))
    assert "Expected input at *args[0].shape[0] to be >= 3, but got 2" in text


def test_what_a_checked_module_needs_is_not_told_in_generated_lines() -> None:
    module = gp.export(unrelated, lengths(8), dynamic_shapes=(({0: 2 * D},),)).module()
    again = {0: gp.Dim("n")}
    text = message(lambda: gp.export(module, lengths(8), dynamic_shapes=(again,)), ValueError)
    assert "Suggested fixes:" in text
    assert "accepts" not in text


def test_inputs_on_another_device() -> None:
    module = gp.export(unrelated, lengths(3)).module()
    assert message(lambda: module(torch.ones(3, device="meta"))) == (
        "Expected input at *args[0] to be on cpu, where the program was captured, but got a tensor "
        "on meta"
    )


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


gp.register_dataclass(Pair)


def test_paths_are_as_the_user_passes_them() -> None:
    class Both(NamedTuple):
        first: torch.Tensor
        rest: list[Any]

    def f(pair: Pair, both: Both, *, table: dict[Any, torch.Tensor]) -> torch.Tensor:
        return pair.left + both.rest[1]["k"] + table[7]

    def arguments(right: int = 2, inner: int = 2, value: int = 2) -> Any:
        both = Both(torch.ones(2), [torch.ones(2), {"k": torch.ones(inner)}])
        return (Pair(torch.ones(2), torch.ones(right)), both), {"table": {7: torch.ones(value)}}

    args, kwargs = arguments()
    module = gp.export(f, args, kwargs).module()
    for changed, path in [
        ({"right": 3}, "*args[0].right"),
        ({"inner": 3}, "*args[1].rest[1]['k']"),
        ({"value": 3}, "kwargs['table'][7]"),
    ]:
        args, kwargs = arguments(**changed)
        text = f"Expected input at {path}.shape[0] to be equal to 2, but got 3"
        assert message(lambda args=args, kwargs=kwargs: module(*args, **kwargs)) == text


def test_numbers() -> None:
    module = gp.export(
        lambda x, k, f: x * k * f,
        (torch.ones(3), 5, 2.5),
        dynamic_shapes={"x": {0: D}, "k": 2 * D - 1, "f": gp.Dim.DYNAMIC},
    ).module()
    x = torch.ones(4)
    assert module(x, 7, 0.5).tolist() == [3.5] * 4
    for args, text in [
        ((x, 8, 0.5), "Expected input at *args[1] to be equal to 7, but got 8"),
        ((x, 7.0, 0.5), "Expected input at *args[1] to be an int, but got float"),
        ((x, True, 0.5), "Expected input at *args[1] to be an int, but got bool"),
        ((x, 7, 2), "Expected input at *args[2] to be a float, but got int"),
        ((x, 7, True), "Expected input at *args[2] to be a float, but got bool"),
        ((x, 7, "2"), "Expected input at *args[2] to be a float, but got str"),
        ((x, 7, x), "Expected input at *args[2] to be a float, but got Tensor"),
    ]:
        assert message(lambda args=args: module(*args)) == text


def test_a_number_that_comes_first() -> None:
    module = gp.export(
        lambda k, x: x * k, (7, torch.ones(3)), dynamic_shapes={"k": 2 * D + 1, "x": {0: D}}
    ).module()
    module(9, torch.ones(4))
    for args, text in [
        ((8, torch.ones(4)), " = 8 to be of the form 2*d + 1, where d is an integer"),
        ((15, torch.ones(7)), " to be <= 13, but got 15"),
    ]:
        assert message(lambda args=args: module(*args)) == f"Expected input at *args[0]{text}"


def test_without_checks() -> None:
    module = gp.export(lambda x: x + 1, (torch.ones(2),)).module(check_guards=False)
    assert module(torch.ones(7)).shape == (7,)


@pytest.mark.parametrize("check_guards", [True, False])
@pytest.mark.parametrize(
    ("call", "difference"),
    [
        (lambda m, x: m(x, x), "*args was a tuple of 1 {} a tuple of 2"),
        (lambda m, x: m(), "*args was a tuple of 1 {} a tuple of 0"),
        (lambda m, x: m((x, {"a": x, "b": x})), "*args[0] was a list of 2 {} a tuple of 2"),
        (
            lambda m, x: m([x, x]),
            "*args[0][1] was a dict with the keys ['a', 'b'] {} a single value",
        ),
        (
            lambda m, x: m([x, {"b": x, "c": x}]),
            "*args[0][1] was a dict with the keys ['a', 'b'] {} a dict with the keys ['b', 'c']",
        ),
        (
            lambda m, x: m([x, {"a": [x], "b": x}]),
            "*args[0][1]['a'] was a single value {} a list of 1",
        ),
        (
            lambda m, x: m([x, {"a": x, "b": x}], y=1),
            "kwargs was a dict with the keys [] {} a dict with the keys ['y']",
        ),
    ],
)
def test_structure(call: Callable[[Any, Any], Any], difference: str, check_guards: bool) -> None:
    x = torch.ones(2)
    program = gp.export(lambda t: t[0] + t[1]["a"], ([x, {"a": x, "b": x}],))
    module = program.module(check_guards=check_guards)
    assert module([x, {"a": x, "b": x}]).tolist() == [2, 2]
    text = message(lambda: call(module, x), ValueError)
    first = "Trying to flatten user inputs with exported input tree spec:\n"
    expected = f"{first}{program.call_spec.in_spec}\nbut actually got inputs with tree spec of:\n"
    assert text.startswith(expected)
    assert text.endswith("\n" + difference.format("when the program was captured and is now"))
