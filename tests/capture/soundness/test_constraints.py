"""What a program needs of its sizes beyond its spec: the error in full, and fixes that work.

Every suggested fix is parsed back, from the error and from its text, and applied to the spec. With
the corrected spec the export succeeds, and agrees with eager at the example and at another size.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import graphport as gp
from graphport import Dim
from graphport.errors import ConstraintViolationError, InputError
from tests.capture.errors import golden, text_of
from tests.capture.programs import compiled, generate, tensors
from tests.capture.violations import CASES, Case, Point, k, m, n, t
from tests.helpers import clone, compare


def program(case: Case) -> Any:
    return compiled(case.code, "program.py")["f"]


def failing(case: Case, f: Any) -> ConstraintViolationError:
    spec = case.dynamic_shapes
    with pytest.raises(ConstraintViolationError) as caught:
        gp.export(f, case.args, case.kwargs, dynamic_shapes=spec, guards=case.guards)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_text(name: str) -> None:
    case = CASES[name]
    assert text_of(failing(case, program(case))) == golden(case.text)


@pytest.mark.parametrize("name", CASES)
def test_suggested_fixes(name: str) -> None:
    case = CASES[name]
    f = program(case)
    error = failing(case, f)
    before = copy.deepcopy(case.dynamic_shapes)
    spec = gp.refine_dynamic_shapes(error, case.dynamic_shapes)
    assert repr(gp.refine_dynamic_shapes(str(error), case.dynamic_shapes)) == repr(spec)
    assert repr(case.dynamic_shapes) == repr(before), "the user's spec was changed"
    ep = gp.export(f, case.args, case.kwargs, dynamic_shapes=spec, guards=case.guards)
    ep.validate()
    compare(ep, f, (case.args, case.kwargs))
    if case.other is None:
        assert not ep.range_constraints, "there are other sizes to try"
    else:
        compare(ep, f, (case.other, case.other_kwargs))


def test_the_texts_are_distinct() -> None:
    texts = {golden(case.text) for case in CASES.values()}
    assert len(texts) == len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_a_draft_makes_the_same_assumptions(name: str) -> None:
    """What the spec does not allow is taken over into it, and what no dim can express asserted."""
    case = CASES[name]
    f = program(case)
    error = failing(case, f)
    ep, report = gp.draft_export(f, case.args, case.kwargs, dynamic_shapes=case.dynamic_shapes)
    compare(ep, f, (case.args, case.kwargs))
    if case.other is not None:
        compare(ep, f, (case.other, case.other_kwargs))
    assert len(report) or AT_RUN_TIME in error.fix


AT_RUN_TIME = '# or check it when the program runs: gp.export(..., guards="runtime_assert")'

# Random programs


def mended(seed: int) -> int:
    """How many errors came before an export; the fixes of each must do away with it."""
    drawn = generate(seed)
    f, spec = drawn.function(), drawn.dynamic_shapes()
    args = tensors(drawn.shapes(drawn.example))
    for count in range(4):
        try:
            ep = gp.export(f, clone(args), dynamic_shapes=spec, guards=drawn.guards)
        except ConstraintViolationError as error:
            refined = gp.refine_dynamic_shapes(str(error), spec)
            progress = refined != spec
            assert progress, drawn.text
            spec = refined
        except gp.errors.ExportError:
            return count
        else:
            # Sizes from data are taken to agree: where one is 1 it is refused, and not broadcast.
            if not drawn.depends_on_data:
                compare(ep, f, (args, {}))
            return count
    pytest.fail(drawn.text)


def test_random_programs() -> None:
    """Nearly all are mended at once: what an operator asks may depend on the range of a size."""
    counts = [mended(seed) for seed in range(60)]
    assert max(counts) == 1 and sum(counts) >= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:var")  # of a single element, as eager warns too
def test_many_random_programs() -> None:
    counts = [mended(seed) for seed in range(2000)]
    assert sum(n > 1 for n in counts) <= 0.01 * sum(n > 0 for n in counts)


# What is allowed, and checked when the program runs


def test_inequalities_between_dims_are_no_error() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] > y.shape[0] else y

    ep = gp.export(f, (t(5), t(4)), dynamic_shapes={"x": {0: n}, "y": {0: m}})
    compare(ep, f, ((t(9), t(1)), {}))
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed for expression n > m"):
        ep.module()(t(3), t(4))


def test_a_maximum_that_is_one_of_its_operands_is_an_inequality() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ones(max(x.shape[0], y.shape[0])) + x

    ep = gp.export(f, (t(8), t(4)), dynamic_shapes={"x": {0: n}, "y": {0: m}})
    compare(ep, f, ((t(3), t(3)), {}))
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed for expression n >= m"):
        ep.module()(t(3), t(4))


def test_what_differs_is_no_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] % 3 else -x

    ep = gp.export(f, (t(4),), dynamic_shapes={"x": {0: n}})
    compare(ep, f, ((t(5),), {}))
    with pytest.raises(RuntimeError, match=r"Ne\(Mod\(n, 3\), 0\)"):
        ep.module()(t(6))


def test_what_no_dim_can_express_is_checked_on_demand() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) + y

    spec = {"x": (n, m), "y": (k,)}
    ep = gp.export(f, (t(3, 4), t(12)), dynamic_shapes=spec, guards="runtime_assert")
    compare(ep, f, ((t(2, 5), t(10)), {}))
    with pytest.raises(
        RuntimeError, match=r"Runtime assertion failed for expression Eq\(n\*m, k\)"
    ):
        ep.module()(t(2, 5), t(11))


# refine_dynamic_shapes by itself

FIXES: dict[str, tuple[Any, str, Any]] = {
    "a value": ({"x": {0: n}}, "n = 3", {"x": {0: 3}}),
    "a range": ({"x": (n, 4)}, "n = Dim('n', min=2)", {"x": (Dim("n", min=2), 4)}),
    "a relation": ([{0: n}, {0: m}], "m = 2*n + 1", [{0: n}, {0: 2 * n + 1}]),
    "a new root": (
        (n, m),
        "_n = Dim('_n')\nn = 3*_n - 1\nm = 3*_n",
        (3 * Dim("_n") - 1, 3 * Dim("_n")),
    ),
    "a derived dim": ({"x": {0: 2 * n + 1}}, "n = 4", {"x": {0: 9}}),
    "a derived dim of a new root": (
        {"x": {0: 2 * n + 1}},
        "_n = Dim('_n')\nn = 2*_n",
        {"x": {0: 4 * Dim("_n") + 1}},
    ),
    "a place": ({"x": [Dim.DYNAMIC, None]}, "dynamic_shapes['x'][0] = 4", {"x": [4, None]}),
    "a place by position": (
        ((Dim.AUTO, n),),
        "dynamic_shapes[0][0] = Dim.STATIC",
        ((Dim.STATIC, n),),
    ),
    "a field": (
        {"p": Point({0: n}, None)},
        "dynamic_shapes['p'].x[0] = 4",
        {"p": Point({0: 4}, None)},
    ),
    "a comment": ({"x": {0: n}}, "n = 3\n# or something else", {"x": {0: 3}}),
    "a dim that is not in the spec": ({"x": {0: n}}, "j = 3", {"x": {0: n}}),
}


@pytest.mark.parametrize("name", FIXES)
def test_refine(name: str) -> None:
    spec, lines, expected = FIXES[name]
    text = f"GP111 something\nSuggested fixes:\n  {lines}"
    found = gp.refine_dynamic_shapes(text, spec)
    assert repr(found) == repr(expected)
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)


def test_dims_of_torch() -> None:
    theirs = torch.export.Dim("n")
    spec = {"x": {0: theirs}, "y": {0: 2 * theirs}}
    assert repr(gp.refine_dynamic_shapes("Suggested fixes:\nn = 4", spec)) == repr(
        {"x": {0: 4}, "y": {0: 8}}
    )


def test_lines_are_read_and_never_run() -> None:
    for line in UNREADABLE:
        with pytest.raises(InputError):
            gp.refine_dynamic_shapes(f"Suggested fixes:\n  {line}", {"x": {0: n}})


UNREADABLE = [
    "__import__('os').abort()",
    "n = __import__('os')",
    "n = Dim('n').__class__",
    "n = n // 2",
    "n = j + 1",
    "n =",
    "keep it a tensor",
    "dynamic_shapes['y'][0] = 3",
    "dynamic_shapes['x'].y = 3",
]


def test_an_error_without_fixes_is_refused() -> None:
    with pytest.raises(InputError, match="no suggested fixes"):
        gp.refine_dynamic_shapes("GP111 something", {"x": {0: n}})


class Head(nn.Module):
    """Keeps what it has made for a size."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.seen != x.shape:
            self.anchors, self.seen = torch.arange(x.shape[1] * 1.0), x.shape
        return x + self.anchors


def test_state_of_an_earlier_call_decides() -> None:
    model, x = nn.Sequential(Head()), torch.ones(3, 6)
    model(x)
    with pytest.raises(gp.errors.ConstraintViolationError) as raised:
        gp.export(model, (x,), dynamic_shapes=({0: gp.Dim("n"), 1: gp.Dim("m")},))
    said = str(raised.value)
    assert "self.seen = torch.Size([3, 6]) decides, as an earlier call has left it" in said
    assert re.search(r"\(test_constraints.py:\d+ in Head.forward\)", said)
    assert "a model that has not been called yet, with self.seen as new" in said


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == self.size else x.nothing  # type: ignore[attr-defined]


def test_what_only_the_constructor_sets_is_no_state_of_calls() -> None:
    with pytest.raises(gp.errors.ConstraintViolationError) as raised:
        gp.export(Fixed(), (torch.ones(3),), dynamic_shapes=({0: gp.Dim("n")},))
    assert "earlier call" not in str(raised.value)
