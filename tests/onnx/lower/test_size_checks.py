"""A file is right at every size that it declares, in ONNX Runtime, where nobody checks inputs."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import graphport as gp
from graphport.onnx.emit.model import CONDITIONS_KEY, DIMS_KEY

X = torch.arange(24.0).reshape(3, 8)


def run_bare(program: Any, *inputs: Tensor) -> Tensor:
    """In a session of its own, as somebody who has the file alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    names = [i.name for i in session.get_inputs()]
    given = {n: t.numpy() for n, t in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


def read_metadata(program: Any, key: str) -> Any:
    said = {entry.key: entry.value for entry in program.model_proto.metadata_props}
    return json.loads(said.get(key, "null"))


def branch_on(size: int) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] == size else x + 2

    return program


@pytest.mark.parametrize(
    ("size", "given", "corrected"),
    [
        (1, {"min": 1, "max": 64}, "b = Dim('b', min=2, max=64)"),
        (0, {"min": 0}, "b = Dim('b', min=1)"),
        (64, {"min": 2, "max": 64}, "b = Dim('b', min=2, max=63)"),
    ],
)
def test_an_end_that_was_written(size: int, given: dict[str, int], corrected: str) -> None:
    spec = ({0: gp.Dim("b", **given)},)
    with pytest.raises(gp.errors.ConstraintViolationError, match=f"guard b != {size}") as caught:
        gp.onnx.export(branch_on(size), (X,), dynamic_shapes=spec)
    assert caught.value.fix == [corrected]
    assert "x.shape[0] == size" in str(caught.value)
    refined = gp.refine_dynamic_shapes(caught.value, spec)
    assert gp.onnx.export(branch_on(size), (X,), dynamic_shapes=refined).verify().ok


def test_an_end_of_an_unnamed_dim() -> None:
    spec = ({0: gp.Dim.DYNAMIC(min=1)},)
    with pytest.raises(gp.errors.ConstraintViolationError) as caught:
        gp.onnx.export(branch_on(1), (X,), dynamic_shapes=spec)
    assert gp.refine_dynamic_shapes(caught.value, spec) == ({0: gp.Dim.DYNAMIC(min=2)},)


@pytest.mark.parametrize("dim", [gp.Dim("b"), gp.Dim("b", max=64), gp.Dim.DYNAMIC, gp.Dim.AUTO])
def test_an_end_that_was_left_open(dim: Any) -> None:
    with pytest.warns(gp.errors.SizeWarning, match=r"narrowed to \[2, .*x.shape\[0\] == size") as w:
        program = gp.onnx.export(branch_on(1), (X,), dynamic_shapes=({0: dim},))
    assert len(w) == 1 and w[0].filename == __file__
    (limits,) = program.exported_program.range_constraints.values()
    assert limits.lower == 2
    ((low, _),) = read_metadata(program, DIMS_KEY).values()
    assert low == 2
    with pytest.raises(RuntimeError, match="2"):
        program(X[:1])
    with pytest.raises(Exception, match=r"requires .* != 1"):
        run_bare(program, X[:1])
    assert torch.equal(run_bare(program, X[:2]), X[:2] + 2)


def test_a_size_in_the_middle() -> None:
    b = gp.Dim("b", min=1, max=64)
    with pytest.warns(gp.errors.SizeWarning, match="right only where b != 4"):
        program = gp.onnx.export(branch_on(4), (X,), dynamic_shapes=({0: b},))
    assert read_metadata(program, DIMS_KEY) == {"b": [1, 64]}
    assert read_metadata(program, CONDITIONS_KEY) == ["b != 4"]
    for n in (1, 3, 5):
        assert torch.equal(run_bare(program, torch.ones(n, 8)), torch.full((n, 8), 3.0))
    with pytest.raises(Exception, match="requires b != 4"):
        run_bare(program, torch.ones(4, 8))


def test_a_relation_of_two_dims() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum() if x.shape[0] <= y.shape[0] else x.sum()

    spec = ({0: gp.Dim("a")}, {0: gp.Dim("c")})
    with pytest.warns(gp.errors.SizeWarning, match="a <= c"):
        made = gp.onnx.export(program, (X, torch.ones(5)), dynamic_shapes=spec)
    assert run_bare(made, torch.ones(2, 8), torch.ones(2)) == 18
    with pytest.raises(Exception, match="requires a <= c"):
        run_bare(made, torch.ones(3, 8), torch.ones(2))


def test_results_that_do_not_depend_on_the_inputs() -> None:
    """A constant in the file is checked as well as what is computed."""

    def program(x: Tensor) -> Tensor:
        return torch.zeros(2) if x.shape[0] % 5 == 0 else torch.ones(2)

    with pytest.warns(gp.errors.SizeWarning, match="b % 5 != 0"):
        made = gp.onnx.export(program, (X,), dynamic_shapes=({0: gp.Dim("b", min=1)},))
    assert torch.equal(run_bare(made, torch.ones(6, 8)), torch.ones(2))
    with pytest.raises(Exception, match="requires b % 5 != 0"):
        run_bare(made, torch.ones(10, 8))


def test_a_divisor_that_is_0_where_the_file_stops() -> None:
    """Integers are divided before the file stops, and must not end the process."""

    def program(x: Tensor) -> Tensor:
        n = x.shape[0]
        return x + (7 // (n - 4) if n != 4 else 1)

    with pytest.warns(gp.errors.SizeWarning, match="b != 4"):
        made = gp.onnx.export(program, (torch.ones(6, 8),), dynamic_shapes=({0: gp.Dim("b")},))
    assert torch.equal(run_bare(made, torch.ones(5, 8)), torch.full((5, 8), 8.0))
    with pytest.raises(Exception, match="requires b != 4"):
        run_bare(made, torch.ones(4, 8))


def test_what_was_captured_before_is_narrowed(tmp_path: Path) -> None:
    """Of a program nobody knows any more which end was written."""
    captured = gp.export(branch_on(1), (X,), dynamic_shapes=({0: gp.Dim("b", min=1)},))
    assert captured.range_constraints[next(iter(captured.range_constraints))].lower == 1
    gp.save(captured, tmp_path / "f.gpx")
    for program in (captured, gp.load(tmp_path / "f.gpx")):
        with pytest.warns(gp.errors.SizeWarning, match="narrowed"):
            made = gp.onnx.export(program)
        assert read_metadata(made, DIMS_KEY) == {"b": [2, None]}


def test_what_operators_need_narrows_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gp.onnx.export(lambda x: x[1:, :-1], (X,), dynamic_shapes=({0: gp.Dim("b")},))
    assert read_metadata(made, DIMS_KEY) == {"b": [1, None]}
    assert [n.op_type for n in made.model_proto.graph.node] == ["Slice"]
    with pytest.warns(gp.errors.SizeWarning, match="narrowed"):
        gp.onnx.export(lambda x: x[1:], (X,), dynamic_shapes=({0: gp.Dim("b", min=0)},))


def test_a_branch_that_changes_nothing_is_no_condition() -> None:
    def program(x: Tensor) -> Tensor:
        return x + (1 + 1 if x.shape[0] == 1 else 2)

    made = gp.onnx.export(program, (X,), dynamic_shapes=({0: gp.Dim("b", min=1)},))
    assert read_metadata(made, CONDITIONS_KEY) is None
    assert torch.equal(run_bare(made, X[:1]), X[:1] + 2)


def test_module_goes_on_checking_everything() -> None:
    run = gp.export(branch_on(4), (X,), dynamic_shapes=({0: gp.Dim("b")},)).module()
    assert torch.equal(run(torch.ones(0, 8)), torch.ones(0, 8))
    with pytest.raises(RuntimeError, match="!= 4"):
        run(torch.ones(4, 8))


def test_a_condition_that_holds_far_from_the_end_of_a_range() -> None:
    """Nobody looks through millions of sizes: the file checks it."""

    def program(x: Tensor) -> Tensor:
        n = x.shape[0]
        return x + 1 if n == (n + 1) // 2 + 4 else x

    spec = ({0: gp.Dim("b", max=1 << 24)},)
    x = torch.ones(8, 1)
    captured = gp.export(program, (x,), dynamic_shapes=spec, guards="runtime_assert")
    with pytest.warns(gp.errors.SizeWarning):
        made = gp.onnx.export(captured)
    assert torch.equal(run_bare(made, torch.ones(9, 1)), torch.ones(9, 1) + 1)
    with pytest.raises(Exception, match="requires"):
        run_bare(made, torch.ones(10, 1))


@pytest.mark.parametrize("dim", [gp.Dim.AUTO, gp.Dim.DYNAMIC], ids=str)
@pytest.mark.parametrize("example", [2, 7])
def test_a_range_that_a_branch_has_narrowed(dim: Any, example: int) -> None:
    """Of a dim that capture may narrow: it is told, and the file stops beyond."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < 5 else x + 2

    with pytest.warns(gp.errors.SizeWarning, match="is narrowed to"):
        program = gp.onnx.export(f, (torch.ones(example),), dynamic_shapes=({0: dim},))
    for n in range(9):
        if (n < 5) is (example < 5):
            assert torch.equal(run_bare(program, torch.ones(n)), f(torch.ones(n)))
        else:
            with pytest.raises(Exception, match="requires s0"):
                run_bare(program, torch.ones(n))


@pytest.mark.parametrize("dim", [gp.Dim("b"), gp.Dim.AUTO, gp.Dim.DYNAMIC], ids=str)
def test_what_operators_need_in_the_middle_of_a_range(dim: Any) -> None:
    """Batch norm in training takes no rows, and several, but not one."""
    model = torch.nn.BatchNorm1d(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gp.onnx.export(model, (X,), dynamic_shapes=({0: dim},))
    ((low, _),) = read_metadata(made, DIMS_KEY).values()
    (condition,) = read_metadata(made, CONDITIONS_KEY)
    assert low == 0 and condition.endswith("!= 1")
    for n in (0, 2, 3):
        want = copy.deepcopy(model)(X[:n])
        torch.testing.assert_close(run_bare(made, X[:n]), want)
        torch.testing.assert_close(made(X[:n]), want)
    with pytest.raises(Exception, match=r"requires .* != 1"):
        run_bare(made, X[:1])
