"""`if`, `for` and list comprehensions of Python where data decides: the program keeps all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphport as gp
from graphport.errors import DataDependentError, UserError
from tests.helpers import check
from tests.onnx.helpers import check_onnx

N = gp.Dim("n")


def select(x: torch.Tensor) -> torch.Tensor:
    """As many as data says."""
    return x[x > 0]


def two_returns(x: torch.Tensor) -> torch.Tensor:
    y = select(x)
    if y.numel() == 0:
        return torch.zeros(())
    largest = y.max()
    return largest * 2


def nested_returns(x: torch.Tensor) -> torch.Tensor:
    y = select(x)
    if y.numel() > 1:
        z = y[1:]
        if z.numel() > 2:
            return z.sum()
        return z.prod()
    else:
        return x.sum() + 1


def assignments(x: torch.Tensor) -> tuple[torch.Tensor, int, str]:
    y, count = select(x), 0
    name = "same"
    if y.shape[0] > 3:
        part = y[:3]
        y, count = part * 2, count + 1
        name = "same"
    elif y.shape[0] > 1:
        y = y + count
    if name != "same":
        return x, count, name
    return y, count, name


def several_conditions(x: torch.Tensor) -> torch.Tensor:
    y = select(x)
    n, seldom = len(y), x.dim() > 1
    if (n > 3 and not seldom) or n == 1:
        y = y * 2
    if not (n > 2 or seldom):
        y = y + 10
    if seldom and y[0] > 0:
        y = y - 1
    return y


def writes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, y = torch.zeros_like(x), select(x)
    if y.numel() > 2:
        out += 1
        out[:1] = y[0]
    return out, y


def over_a_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    out, total, count = torch.zeros_like(x), x.new_zeros(()), 0
    for i in torch.where(x > 0)[0]:
        double = x[i] * 2
        out[i] = double
        total = total + double
        count += 1
    return out, total, count


def over_a_range(x: torch.Tensor) -> torch.Tensor:
    y = select(x)
    total = y.new_zeros(())
    for i in range(len(y)):
        total = total + y[i] * i
    for i, factor in enumerate([2.0, 3.0]):
        total = total * factor + i
    return total


def side_by_side(x: torch.Tensor) -> torch.Tensor:
    y, total = select(x), x.new_zeros(())
    for a, b in zip(y, y * 2, strict=False):
        if a > 100:
            break
        total = total + a * b
    return total


def over_pairs(x: torch.Tensor) -> torch.Tensor:
    y, total = select(x), x.new_zeros(())
    for a, b in zip(y, y * 2):  # noqa: B905
        total = total + a * b
    return total


def a_list(x: torch.Tensor) -> torch.Tensor:
    y = select(x)
    pairs = [torch.stack([a * 2, b + 1]) for a, b in zip(y, y)]  # noqa: B905
    if len(pairs) > 0:
        made = torch.stack(pairs, dim=1)
    else:
        made = y.new_zeros((2, 0))
    return made


def lists_that_are_joined(x: torch.Tensor) -> torch.Tensor:
    y = torch.cat([select(x), x[:1]])
    return torch.cat([row.expand(3) for row in y])


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = select(x)
        if y.numel() == 0:
            return y.new_zeros((0, 2))
        return self.linear(y[:, None])


PROGRAMS = [
    two_returns,
    nested_returns,
    assignments,
    several_conditions,
    writes,
    over_a_tensor,
    over_a_range,
    over_pairs,
    a_list,
    lists_that_are_joined,
    Layer(),
]
OTHERS = [
    (torch.tensor(x),)
    for x in ([3.0], [-1.0, 2, -3], [1.0, 2, 3, 4, 5, 6, 7], [-1.0, -2], [1.0, -2, 3, 4])
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: Callable[..., Any]) -> None:
    given = (torch.tensor([1.0, -2, 3, -4, 5]),)
    check(program, given, dynamic_shapes=({0: N},), others=OTHERS)
    check_onnx(program, given, dynamic_shapes=({0: N},), others=OTHERS)


def test_the_code_is_as_it_was() -> None:
    before = two_returns.__code__
    gp.export(two_returns, (torch.ones(3),))
    assert two_returns.__code__ is before


def one_dim_or_two(x: torch.Tensor) -> torch.Tensor:
    y = select(x)
    if y.numel() > 0:
        y = y.reshape(y.shape[0], 1)
    return y + 1


def test_sides_of_different_dims() -> None:
    """One of them is for no elements: the program is for the other, and says so."""
    with pytest.warns(gp.errors.CaptureWarning, match="the two sides give different things"):
        ep = gp.export(one_dim_or_two, (torch.ones(3),), dynamic_shapes=({0: N},))
    x = torch.tensor([1.0, -2, 3, 4, 5])
    torch.testing.assert_close(ep.module()(x), one_dim_or_two(x))
    with pytest.raises(RuntimeError, match=r"the sizes that|range"):
        ep.module()(-x.abs())


# What stays an error


def an_element(x: torch.Tensor) -> torch.Tensor:
    if select(x).numel() > 1 and x[0] > 1:
        return x + 1
    return x


def another_structure(x: torch.Tensor) -> Any:
    if select(x).numel() > 1:
        return x, x
    return x


def an_early_end(x: torch.Tensor) -> torch.Tensor:
    for i in range(select(x).shape[0]):
        if i > 2:
            return x
    return x + 1


def a_new_variable(x: torch.Tensor) -> torch.Tensor:
    for row in select(x):
        last = row
    return last + x


def a_growing_tensor(x: torch.Tensor) -> torch.Tensor:
    found = x.new_zeros((0,))
    for row in select(x):
        found = torch.cat([found, row[None]])
    return found


def a_list_that_grows(x: torch.Tensor) -> torch.Tensor:
    found = [x]
    for row in select(x):
        found.append(row.expand(x.shape[0]))
    return torch.stack(found)


def a_dict(x: torch.Tensor) -> torch.Tensor:
    notes = {"sum": x.sum()}
    if select(x).numel() > 1:
        notes["sum"] = x.sum() * 2
    return notes["sum"]


def elements_of_different_sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[: int(row)] for row in select(x)])


def a_changed_list(x: torch.Tensor) -> torch.Tensor:
    rows = [row * 2 for row in select(x)]
    rows.append(x[0])
    return torch.stack(rows)


REFUSED = [
    (an_element, "truth value of a tensor"),
    (another_structure, "Could not guard on data-dependent"),
    (an_early_end, "Could not guard on data-dependent"),
    (side_by_side, "Could not guard on data-dependent"),
    (a_new_variable, "give 'last' a first value before the loop"),
    (a_growing_tensor, "turns the carried value"),
    (a_list_that_grows, "a list, dict or object is changed"),
    (a_dict, "a list, dict or object is changed"),
    (elements_of_different_sizes, "differ in size"),
    (a_changed_list, "is changed, compared or joined"),
]


@pytest.mark.parametrize(("program", "text"), REFUSED)
def test_refused(program: Callable[..., Any], text: str) -> None:
    with pytest.raises(UserError, match=text) as raised:
        gp.export(program, (torch.tensor([1.0, -2, 3]),))
    assert raised.value.where is not None
    assert raised.value.where.function.startswith(program.__name__)


def test_source_that_has_changed(tmp_path: Any) -> None:
    """The code that runs is not what the file says now."""
    file = tmp_path / "changing.py"
    text = (
        "def f(x):\n    y = x[x > 0]\n    if y.numel() > 1:\n        return x\n    return x + 1\n"
    )
    file.write_text(text)
    namespace: dict[str, Any] = {}
    exec(compile(text.replace("> 1", "> 2"), str(file), "exec"), namespace)
    with pytest.raises(DataDependentError, match="branches on it"):
        gp.export(namespace["f"], (torch.ones(3),))
