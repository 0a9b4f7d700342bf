"""`gp.draft_export`: a program whatever was assumed, a report of it, and no wrong answer.

That a draft agrees with eager wherever export stops is tested with the errors, in `soundness/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import graphport as gp
from graphport import Dim
from graphport.errors import ConstraintViolationError, DataDependentError
from tests.helpers import assert_same, compare, snapshot_state


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def negated(x: torch.Tensor) -> torch.Tensor:
    return x if not (x > 2).any() else -x


def number(x: torch.Tensor) -> torch.Tensor:
    n = x.max().item()
    return x * 2 if n > 1 else x


def count(x: torch.Tensor) -> torch.Tensor:
    k = int(x.max().numpy())
    return torch.stack([x] * k)


def truth(x: torch.Tensor) -> torch.Tensor:
    return x if bool((x > 0).all()) else -x


def same(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.equal(x, x.sort().values) else x - 1


def close(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.allclose(x, x.abs()) else x - 1


def loop(x: torch.Tensor) -> torch.Tensor:
    while x.max() > 1:
        x = x - 1
    return x


def times(x: torch.Tensor) -> torch.Tensor:
    for i in range(x.max().int().item()):
        if i > 7:
            break
        x = x + i
    return x


def index(x: torch.Tensor) -> torch.Tensor:
    return [x, x + 1, x + 2, x + 3, x + 4][x.max().int().item()]


def size(x: torch.Tensor) -> torch.Tensor:
    y = x[x > 1]
    return y if y.shape[0] > 1 else x


def listed(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x * i for i in range(3) if x.tolist()[i] > 1])


def asserted(x: torch.Tensor) -> torch.Tensor:
    kept = (x > 0).all()
    return x if kept and x.shape[0] > 2 else -x


def numpy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(x.numpy().cumsum())


def array(x: torch.Tensor) -> torch.Tensor:
    return x + float(np.asarray(x).max())


def complex_number(x: torch.Tensor) -> torch.Tensor:
    return x * abs(torch.complex(x, x).sum().item())


# A program, and data that leads to another result than the example does.
EXAMPLE = torch.tensor([1.0, 2.0, 3.0])
ASSUMING: dict[Callable[..., Any], list[float]] = {
    branch: [-1.0, -2.0, -3.0],
    negated: [1.0, 1.0, 2.0],
    number: [0.0, 1.0, 1.0],
    count: [1.0, 2.0, 2.0],
    truth: [1.0, 2.0, -3.0],
    same: [1.0, 3.0, 2.0],
    close: [1.0, 2.0, -3.0],
    loop: [1.0, 2.0, 5.0],
    times: [1.0, 2.0, 4.0],
    index: [1.0, 2.0, 4.0],
    size: [1.0, 1.0, 3.0],
    listed: [2.0, 1.0, 3.0],
    asserted: [1.0, 2.0, -3.0],
    numpy: [1.0, 2.0, 4.0],
    array: [1.0, 2.0, 4.0],
    complex_number: [1.0, 2.0, 4.0],
}


@pytest.mark.parametrize("fn", ASSUMING, ids=lambda f: f.__name__)
def test_data(fn: Callable[..., Any]) -> None:
    with pytest.raises(DataDependentError) as caught:
        gp.export(fn, (EXAMPLE,))
    ep, report = gp.draft_export(fn, (EXAMPLE,))
    ep.validate()
    compare(ep, fn, ((EXAMPLE,), {}))
    assert len(report) == len(list(report)) >= 1
    assert str(report.assumptions[0]) == str(caught.value)
    for assumption in report:
        assert isinstance(assumption, DataDependentError)
        assert assumption.fix
        assert assumption.where.file == __file__
        assert assumption.where.function == fn.__qualname__ or "<listcomp>" in str(assumption)


@pytest.mark.parametrize("fn", ASSUMING, ids=lambda f: f.__name__)
def test_a_wrong_assumption_is_refused_when_the_program_runs(fn: Callable[..., Any]) -> None:
    ep, _ = gp.draft_export(fn, (EXAMPLE,))
    other = torch.tensor(ASSUMING[fn])
    assert_different(fn(other), gp.draft_export(fn, (other,)), fn, other)
    with pytest.raises(RuntimeError):
        ep.module()(other)


def assert_different(want: Any, draft: Any, fn: Any, other: torch.Tensor) -> None:
    """The other data takes another way, which a draft of it follows."""
    assert_same(draft.module()(other), want, fn.__name__)
    with pytest.raises(RuntimeError):
        draft.module()(EXAMPLE)


def test_memory() -> None:
    """Where it lies, nothing can assert; who shares it, the program knows."""

    def f(x: torch.Tensor) -> torch.Tensor:
        shared = x.view(-1).data_ptr() == x.data_ptr() != (x + 1).data_ptr()
        return x + 1 if shared and x.untyped_storage().nbytes() == 12 else x

    with pytest.raises(DataDependentError, match=r"data_ptr\(\) accesses the memory"):
        gp.export(f, (EXAMPLE,))
    ep, report = gp.draft_export(f, (EXAMPLE,))
    compare(ep, f, ((EXAMPLE,), {}))
    assert len(report) == 4


# Sizes


def fixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(3) + y


def test_what_the_spec_does_not_allow_is_taken_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y if x.shape[0] < 8 else x

    spec = {"x": {0: Dim("n")}, "y": {0: Dim("m")}}
    ep, report = gp.draft_export(f, (torch.ones(3), torch.ones(3)), dynamic_shapes=spec)
    compare(ep, f, ((torch.ones(7), torch.ones(7)), {}))
    assert {str(s): str(v) for s, v in ep.range_constraints.items()} == {"n": "[0, 7]"}
    (assumption,) = report
    assert isinstance(assumption, ConstraintViolationError)
    assert assumption.fix == ["n = Dim('n', max=7)", "m = n"]
    for sizes in ((8, 8), (3, 4)):
        with pytest.raises(RuntimeError, match="Expected input at"):
            ep.module()(*map(torch.ones, sizes))


def test_what_no_dim_can_express_is_no_assumption() -> None:
    """It is asserted, as with guards="runtime_assert"."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) + y

    spec = {"x": gp.dims("a", "b"), "y": (Dim("c"),)}
    ep, report = gp.draft_export(f, (torch.ones(2, 3), torch.ones(6)), dynamic_shapes=spec)
    compare(ep, f, ((torch.ones(4, 2), torch.ones(8)), {}))
    assert not report.assumptions
    with pytest.raises(RuntimeError, match=re.escape("Eq(a*b, c)")):
        ep.module()(torch.ones(4, 2), torch.ones(6))


def test_sizes_and_data_in_one_report() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x + y
        return z * 2 if z.max() > 1 else z

    spec = {"x": {0: Dim("n")}, "y": {0: Dim("m")}}
    ep, report = gp.draft_export(f, (torch.ones(3), torch.ones(3)), dynamic_shapes=spec)
    assert [type(a) for a in report] == [ConstraintViolationError, DataDependentError]
    compare(ep, f, ((torch.ones(5), torch.ones(5)), {}))
    with pytest.raises(RuntimeError):
        ep.module()(torch.zeros(5), torch.zeros(5))


def test_a_spec_that_needs_several_rounds() -> None:
    """Fixing one size shows the next question."""

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x.reshape(y.shape[0], -1) + z[:1]).sum() * y + torch.ones(3)

    spec = {"x": {0: Dim("n")}, "y": {0: Dim("m")}, "z": {0: Dim("k")}}
    example = (torch.ones(12), torch.ones(3), torch.ones(4))
    ep, report = gp.draft_export(f, example, dynamic_shapes=spec)
    assert all(isinstance(a, ConstraintViolationError) for a in report)
    compare(ep, f, ((torch.ones(9), torch.ones(3), torch.ones(5)), {}))


def test_shapes_collection() -> None:
    x, y = torch.ones(3), torch.ones(3)
    shapes = gp.ShapesCollection()
    shapes[x], shapes[y] = (Dim("n"),), (Dim("m"),)
    ep, report = gp.draft_export(fixed, (x, y), dynamic_shapes=shapes)
    compare(ep, fixed, ((x, y), {}))
    assert report.assumptions[0].fix == ["n = 3", "m = 3"]


def test_keyword_arguments() -> None:
    ep, report = gp.draft_export(
        fixed, (torch.ones(3),), {"y": torch.ones(3)}, dynamic_shapes={"x": None, "y": (Dim("m"),)}
    )
    compare(ep, fixed, ((torch.ones(3),), {"y": torch.ones(3)}))
    assert "kwargs['y'].shape[0]" in str(report)


# Modules


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("limit", torch.tensor(2.0))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.steps.add_(1)
        y = self.linear(x)
        if self.steps > 3:
            return y - 1
        return y + 1 if x.max() > self.limit else y


def test_module_state() -> None:
    model = Model()
    before, attributes = snapshot_state(model), dict(vars(model))
    ep, report = gp.draft_export(model, (EXAMPLE,))
    assert_same(snapshot_state(model), before, "the draft changed the model")
    assert vars(model) == attributes and model.calls == 0
    compare(ep, model, ((EXAMPLE,), {}))
    assert [a.where.text for a in report] == [
        "if self.steps > 3:",
        "return y + 1 if x.max() > self.limit else y",
    ]
    module = ep.module()
    for _ in range(3):
        module(EXAMPLE)
    with pytest.raises(RuntimeError):  # the fourth step goes another way
        module(EXAMPLE)


def test_mutation_before_a_question() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(-1)
        return x + 1 if x.sum() < 0 else x - 1

    ep, _ = gp.draft_export(f, (EXAMPLE.clone(),))
    compare(ep, f, ((EXAMPLE.clone(),), {}))
    with pytest.raises(RuntimeError):
        ep.module()(-EXAMPLE)


# The result


def test_nothing_assumed() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu()

    spec = {"x": {0: Dim("n")}, "y": None}
    example = (torch.ones(4, 3), torch.ones(3, 2))
    draft, report = gp.draft_export(f, example, dynamic_shapes=spec)
    ep = gp.export(f, example, dynamic_shapes=spec)
    assert str(draft.graph) == str(ep.graph)
    assert draft.graph_signature == ep.graph_signature
    assert str(draft.range_constraints) == str(ep.range_constraints)
    assert len(report) == 0 and not list(report)
    assert str(report) == "Nothing was assumed: gp.export gives the same program."


def test_the_result_is_a_program() -> None:
    draft = gp.draft_export(branch, (EXAMPLE,))
    program, report = draft
    assert isinstance(draft, gp.ExportedProgram) and program is draft and report is draft.report
    assert "1 assumption that gp.export would not make:\n\n1. GP120" in str(report)


def test_a_report_of_several() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1 if x.sum() > 0 else x
        return x * 2 if x.max() > 1 else x

    text = str(gp.draft_export(f, (EXAMPLE,)).report)
    assert text.startswith("2 assumptions that gp.export would not make:\n\n1. GP120")
    assert "\n\n2. GP120" in text


def test_same_input_same_graph() -> None:
    first, second = (gp.draft_export(size, (EXAMPLE,)) for _ in range(2))
    assert str(first.graph) == str(second.graph)


def test_a_program_that_fails_by_itself_fails() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise ValueError("positive")
        return x

    with pytest.raises(ValueError, match="positive"):
        gp.draft_export(f, (EXAMPLE,))


def test_a_malformed_spec_is_an_error() -> None:
    with pytest.raises(gp.errors.SpecError, match="names 'z'"):
        gp.draft_export(branch, (EXAMPLE,), dynamic_shapes={"z": {0: Dim("n")}})
