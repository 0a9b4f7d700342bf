"""Values and sizes that depend on data: symbols, ranges, assertions in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphport as gp
from graphport.errors import DataDependentError
from tests.helpers import check

aten = torch.ops.aten


def bounded(x: torch.Tensor) -> torch.Tensor:
    n = x.item()
    torch._check(n >= 4)
    torch._check(n <= 7)
    return torch.zeros(n, 2)


def constrained(x: torch.Tensor) -> torch.Tensor:
    n = x.item()
    torch.sym_constrain_range_for_size(n, min=4, max=7)
    return torch.zeros(n, 2)


@pytest.mark.parametrize("program", [bounded, constrained])
def test_a_range_is_checked_where_the_value_is_made(program: Callable[..., Any]) -> None:
    ep = check(program, (torch.tensor(5),), others=[(torch.tensor(4),), (torch.tensor(7),)])
    ((symbol, limits),) = ep.range_constraints.items()
    assert (str(symbol), limits.lower, limits.upper) == ("u0", 4, 7)
    with pytest.raises(RuntimeError, match=r"Invalid value range for 30 between \[4, 7\]"):
        ep.module()(torch.tensor(30))


def test_a_range_of_a_count_is_checked_before_an_operator_relies_on_it() -> None:
    ep = check(
        lambda x: torch.trapezoid(x.masked_select(x > 0), dim=0),
        (torch.tensor([1.0, 2.0]),),
        others=[(torch.tensor([1.0, -2.0]),)],
    )
    with pytest.raises(RuntimeError, match="Invalid value range for 0 between"):
        ep.module()(torch.tensor([-1.0, -2.0]))


def test_a_value_used_as_a_size_is_not_negative() -> None:
    ep = check(lambda x: torch.ones(x.item(), 5).sum(), (torch.tensor(3),))
    with pytest.raises(RuntimeError, match="Invalid value range for -1 between"):
        ep.module()(torch.tensor(-1))


def test_a_value_that_a_tensor_is_expanded_to_is_a_size() -> None:
    """And never the -1 that keeps what is there: the size of the result would be wrong."""

    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = x.expand(n.item(), 3)
        return y, y.shape[0]

    ep = check(f, (torch.ones(1, 3), torch.tensor(2)), others=[(torch.ones(1, 3), torch.tensor(0))])
    with pytest.raises(RuntimeError, match="Invalid value range for -1 between"):
        ep.module()(torch.ones(1, 3), torch.tensor(-1))


def test_a_relation_to_an_input_size_is_asserted() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = x.item()
        torch._check(n >= 0)
        torch._check(n <= y.size(0))
        return y[:n]

    ep = check(
        f,
        (torch.tensor(5), torch.ones(10)),
        dynamic_shapes=(None, {0: gp.Dim("t")}),
        others=[(torch.tensor(6), torch.randn(13)), (torch.tensor(0), torch.randn(3))],
    )
    # That it is a size, and the relation.
    assert sum(n.target is aten._assert_scalar.default for n in ep.graph.nodes) == 2
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression t >= u0"):
        ep.module()(torch.tensor(4), torch.ones(3))


def test_assertions_survive_a_retrace() -> None:
    ep = gp.export(bounded, (torch.tensor(5),))
    again = gp.export(ep.module(), (torch.tensor(5),))
    with pytest.raises(RuntimeError, match=r"Invalid value range for 3 between \[4, 7\]"):
        again.module()(torch.tensor(3))


SIZED: dict[str, tuple[Callable[..., Any], Any]] = {
    "nonzero": (lambda x: x.nonzero() * 2, lambda n: torch.randint(0, 2, (n, 3))),
    "mask": (lambda x: x[x > 0].exp(), lambda n: torch.randn(n, 3)),
    "mask of rows": (lambda x: x[x[:, 0] > 0] @ torch.ones(3, 2), lambda n: torch.randn(n, 3)),
    "masked_select": (lambda x: x.masked_select(x > 0).sum(), lambda n: torch.randn(n, 3)),
    "unique": (lambda x: torch.unique(x), lambda n: torch.randint(0, 3, (n, 3))),
    "unique all": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda n: torch.randint(0, 3, (n, 3)),
    ),
    "unique rows": (lambda x: torch.unique(x, dim=0), lambda n: torch.randint(0, 2, (n, 2))),
    "unique columns, all": (
        lambda x: torch.unique(x, dim=-2, return_inverse=True, return_counts=True),
        lambda n: torch.randint(0, 2, (n, 4, 1)),
    ),
    "consecutive": (lambda x: torch.unique_consecutive(x), lambda n: torch.randint(0, 2, (n,))),
    "consecutive rows, all": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=0),
        lambda n: torch.randint(0, 2, (n, 1)),
    ),
    "where": (lambda x: torch.where(x > 0), lambda n: torch.randn(n, 3)),
    "repeats": (
        lambda x: torch.arange(x.shape[0]).repeat_interleave(x),
        lambda n: torch.randint(0, 4, (n,)),
    ),
    "bincount": (lambda x: torch.bincount(x), lambda n: torch.randint(0, 4, (n,))),
    "bincount of weights": (
        lambda x: (torch.bincount(x, x.float()), torch.bincount(x, weights=x.half())),
        lambda n: torch.randint(0, 4, (n,)),
    ),
    "mask and its count": (
        lambda x: x[x > 0] / (x > 0).nonzero().shape[0],
        lambda n: torch.randn(n) + 1,
    ),
}


@pytest.mark.parametrize("name", SIZED)
def test_results_of_unknown_size(name: str) -> None:
    program, make = SIZED[name]
    check(program, (make(4),), dynamic_shapes=({0: gp.Dim("n")},), others=[(make(7),), (make(2),)])


def test_sym_ite_on_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sym_ite(x.shape[0] == 4, x.shape[0], x.shape[1])

    check(
        f,
        (torch.randn(4, 3),),
        dynamic_shapes=({0: gp.Dim("a"), 1: gp.Dim("b")},),
        others=[(torch.randn(5, 6),), (torch.randn(4, 7),)],
    )


def test_a_branch_on_a_size_from_data_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cos() if x.nonzero().shape[0] > 2 else x.sin()

    with pytest.raises(DataDependentError) as raised:
        gp.export(f, (torch.tensor([2, 3, 5]),))
    text = str(raised.value)
    assert "Could not guard on data-dependent expression x.nonzero().shape[0] >= 3" in text
    assert "return x.cos() if x.nonzero().shape[0] > 2 else x.sin()" in text
    assert "torch._check(" in text


def test_an_assertion_decides_a_branch() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = x.item()
        torch._check(n > 2)
        return y * 2 if n >= 3 else y + 3

    check(f, (torch.tensor(4), torch.ones(2)))


def test_a_symbolic_number_in_formatted_text_is_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        print(f"{x.shape[0]:>4d} rows, largest {x.max().item():.2f}")
        return x + 1

    ep = gp.export(f, (torch.ones(3),), dynamic_shapes={"x": {0: gp.Dim("rows")}})
    assert capsys.readouterr().out == "rows rows, largest f0\n"
    again = ep.module()
    assert again(torch.ones(5)).shape == (5,)
    with pytest.raises(TypeError):  # outside of capture nothing has changed
        f"{next(iter(ep.graph.nodes)).meta['val'].shape[0]:>4d}"


@torch.library.custom_op("graphport_tests::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("graphport_tests::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:2].clone(), -x[:2]


@halves.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = torch.library.get_ctx().new_dynamic_size(min=1, max=9)
    return x.new_empty(n), x.new_empty(n)


@torch.library.custom_op("graphport_tests::amount", mutates_args=())
def amount(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@amount.register_fake
def _(x: torch.Tensor) -> int:
    return torch.library.get_ctx().new_dynamic_size()


@torch.library.custom_op("graphport_tests::below_zero", mutates_args=())
def below_zero(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@below_zero.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=-1))


@torch.library.custom_op("graphport_tests::rows", mutates_args=())
def rows(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0, None].repeat(1, 4)


@rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    n = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(n, 4, device="cpu")


@torch.library.custom_op("graphport_tests::undescribed", mutates_args=())
def undescribed(x: torch.Tensor, k: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return x[x > 0], (x * k).int()


@torch.library.custom_op("graphport_tests::sum_and_rest", mutates_args=())
def sum_and_rest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sum(), x[x > 0]


@sum_and_rest.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(()), x.new_empty(torch.library.get_ctx().new_dynamic_size())


CUSTOM: dict[str, Callable[..., Any]] = {
    "a size of one result": lambda x: (lambda a, b: a + b.new_ones(b.shape[0]))(*sum_and_rest(x)),
    "a size of the result": lambda x: positive(x) * 2,
    "a size that is read": lambda x: positive(x) + torch.ones(positive(x).shape[0]).sum(),
    "a size that two results share": lambda x: (lambda a, b: a + b)(*halves(x)),
    "a number": lambda x: torch.zeros(amount(x)),
    "a result that is made anew": lambda x: rows(x) * 2,
}


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_operators_that_return_sizes(name: str) -> None:
    some, more = torch.tensor([1.0, -1, 2, 3]), torch.tensor([1.0, -1, 2, 3, 4, -5, 6])
    check(CUSTOM[name], (some,), dynamic_shapes=({0: gp.Dim("n")},), others=[(more,)])


def test_a_draft_of_an_operator_without_fake_implementation() -> None:
    """Its example tells dtypes and ranks; sizes are data."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positive, whole = undescribed(x * 2, k=3)
        return positive + 1, whole + x.int()

    x = torch.tensor([1.0, -1, 2])
    with pytest.raises(gp.errors.UnsupportedError):
        gp.export(f, (x,))
    program, report = gp.draft_export(f, (x,))
    assert any("undescribed" in str(error) and "register_fake" in str(error) for error in report)
    for other in (x, -x):
        torch.testing.assert_close(program.module()(other), f(other))


def test_limits_of_a_size_from_a_custom_operator() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y, _ = halves(x)
        return y * 2 if y.shape[0] >= 1 else y  # decided by `min`

    ep = check(f, (torch.ones(4),))
    assert {str(s): str(r) for s, r in ep.range_constraints.items()} == {"u0": "[1, 9]"}
    with pytest.raises(gp.errors.ForwardError, match=r"new_dynamic_size\(min=-1, max=None\)"):
        gp.export(below_zero, (torch.ones(2),))


def test_a_branch_on_a_size_from_a_custom_operator_names_its_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = positive(x)
        return y if y.shape[0] > 3 else -y

    with pytest.raises(DataDependentError) as raised:
        gp.export(f, (torch.ones(2),))
    text = str(raised.value)
    assert "expression y.shape[0] >= 4" in text
    assert "y.shape[0] comes from" in text and "y = positive(x)" in text


def test_what_is_asserted_has_to_be_possible() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.item()
        torch._check(n >= 3)
        torch.sym_constrain_range_for_size(n, max=2)
        return torch.zeros(n)

    with pytest.raises(DataDependentError, match="<= 2 is asserted, but cannot hold"):
        gp.export(f, (torch.tensor(3),))
    with pytest.raises(gp.errors.ForwardError, match="too few rows"):
        gp.export(lambda x: aten._assert_scalar(False, "too few rows"), (torch.ones(2),))


LITERALS: dict[str, Callable[..., Any]] = {
    "bool": lambda x: x + 1 if torch.tensor(True) else x - 1,
    "not": lambda x: x + 1 if not torch.tensor([0]) else x - 1,
    "numpy": lambda x: x + float(torch.tensor([1.5, 2.5]).numpy()[1]),
    "tolist": lambda x: x * torch.tensor([1, 2, 3]).tolist()[2],
    "item": lambda x: x * torch.tensor(2.5).item(),
    "equal": lambda x: x + 1 if torch.equal(torch.tensor([1]), torch.tensor([1])) else x,
    "allclose": lambda x: (
        x + 1 if torch.allclose(torch.tensor([1.0]), torch.tensor([1.5]), atol=1.0) else x
    ),
}


@pytest.mark.parametrize("name", LITERALS)
def test_the_data_of_a_tensor_that_the_program_writes_out_is_known(name: str) -> None:
    check(LITERALS[name], (torch.ones(2),))


def test_the_data_of_a_literal_is_not_known_once_it_is_written_to() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        t = torch.tensor([1.0])
        t += x
        return x + 1 if t else x

    with pytest.raises(DataDependentError, match="the truth value of a tensor is not known"):
        gp.export(f, (torch.ones(1),))


NUMBERS: dict[str, Callable[..., Any]] = {
    "floor": lambda n: torch.div(n, 2, rounding_mode="floor"),
    "trunc": lambda n: torch.div(n, 2, rounding_mode="trunc"),
    "floor_divide": lambda n: (n + 1) // 2 - 1,
    "maximum": lambda n: torch.maximum(-n, n - 3),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tensor_made_from_a_size_gives_the_size_back(name: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[: NUMBERS[name](torch.tensor(x.shape[0])).item()]

    ep = check(
        f, (torch.ones(6),), dynamic_shapes=({0: gp.Dim("n", min=4)},), others=[(torch.ones(9),)]
    )
    assert not any(n.target is aten.item.default for n in ep.graph.nodes)


def test_what_is_written_to_a_tensor_made_from_a_size_counts() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = torch.tensor(x.shape[0])
        n += 1
        return torch.zeros(n.item()), torch.zeros(torch.add(n, 1, alpha=2).item())

    check(f, (torch.ones(3),), dynamic_shapes=({0: gp.Dim("n")},), others=[(torch.ones(5),)])


def test_a_size_from_a_custom_operator_that_has_no_name() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x if positive(x).shape[0] > 3 else -x

    with pytest.raises(DataDependentError, match=r"expression positive\(x\)\.shape\[0\] >= 4"):
        gp.export(f, (torch.ones(2),))


def test_the_size_of_a_mask_is_read_where_it_is() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor) -> Any:
        y = x[:, mask]
        return y, torch.zeros(y.shape[1]), torch.ones(y.shape[1], y.shape[0])

    mask = torch.tensor([True, False, True, True])
    check(f, (torch.ones(2, 4), mask), others=[(torch.ones(2, 4), ~mask)])


@pytest.mark.parametrize(
    "combine",
    [
        lambda first, y: first + y,
        lambda first, y: first.expand(y.shape[0]) * 2,
        lambda first, y: first.expand_as(y),
        lambda first, y: torch.where(y > 1, first, y),
    ],
    ids=["add", "expand", "expand_as", "where"],
)
def test_the_first_of_elements_goes_with_all_of_them(combine: Any) -> None:
    """However many the data selects, `y[:1]` is one of them, or none where there are none."""

    def f(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return combine(y[:1], y)

    example = torch.tensor([1.0, -2, 3, 4])
    others = [(-example,), (example - 2,), (example - 3,), (example - 9,)]
    check(f, (example,), others=others)


@pytest.mark.parametrize("dim", [(), (0,)])
def test_squeezing_a_dim_of_0_or_1(dim: tuple[int, ...]) -> None:
    """A larger one is taken not to be 1: that would leave 0 alone, and refuse the example."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0].squeeze(*dim)

    with pytest.raises(DataDependentError, match=r"== 1"):
        gp.export(Model(), (torch.ones(1),))
    check(Model(), (torch.ones(3),))


def test_what_is_computed_twice_is_one_number() -> None:
    """A library asks for `int(index.max())` wherever it needs it."""

    def f(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        count = int(index.max()) + 1
        if count <= int(index.max()):
            raise ValueError("too few")
        return torch.zeros(count).index_add(0, index, values)

    example = (torch.tensor([0, 2, 2]), torch.ones(3))
    ep = check(f, example, others=[(torch.tensor([4, 1, 0]), torch.ones(3))])
    assert [n.target for n in ep.graph.nodes].count(aten.item.default) == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda x: (int(x.max()), int(x.add_(1).max())),
        lambda x: (int(x.max()), int(x.min())),
        lambda x: (int(x[0]), int(x[1])),
        lambda x: (int(torch.randint_like(x, 9)[0]), int(torch.randint_like(x, 9)[0])),
    ],
    ids=["written", "another operator", "another element", "random"],
)
def test_other_computations_are_other_numbers(read: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = read(x.clone())
        return x * a + b

    ep = gp.export(f, (torch.tensor([1, 5]),))
    assert [n.target for n in ep.graph.nodes].count(aten.item.default) == 2


def test_a_tensor_equals_one_that_is_computed_like_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = x / 2, x / 2
        return a.exp() if torch.equal(a, b) else a

    ep = check(f, (torch.randn(3, 2),), dynamic_shapes=({0: gp.Dim("n")},), others=[(X[:1],)])
    with pytest.raises(RuntimeError, match=r"has NaN.*torch\.equal\(a, b\)"):
        ep.module()(torch.full((3, 2), torch.nan))
    ep = gp.export(lambda i: i + 1 if torch.equal(i * 2, i * 2) else i, (torch.arange(3),))
    assert aten._assert_async.msg not in [n.target for n in ep.graph.nodes]


X = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))


def empty_or_not(x: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x, x[x > 0]])
    return y.max() * 2 if y.numel() else torch.zeros(())


def test_a_question_that_only_an_empty_input_leaves_open_is_a_guard() -> None:
    example, others = torch.randn(4), [(-torch.ones(1),), (torch.ones(7),)]
    ep = check(empty_or_not, (example,), dynamic_shapes=({0: gp.Dim.DYNAMIC},), others=others)
    ((_, limits), *_) = ep.range_constraints.items()
    assert limits.lower == 1
    check(empty_or_not, (example,), dynamic_shapes=({0: gp.Dim("n", min=1)},), others=others)
    with pytest.raises(gp.errors.ConstraintViolationError, match=r"n = Dim\('n', min=1\)"):
        gp.export(empty_or_not, (example,), dynamic_shapes=({0: gp.Dim("n")},))
    with pytest.raises(DataDependentError, match=r"y.shape\[0\]"):
        gp.export(lambda x: x if (y := x[x > 0]).numel() else y, (example,))
