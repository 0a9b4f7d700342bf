"""What a program asserts of its data: the file stops where it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime as ort
import pytest
import torch

import graphport as gp


def run_bare(program: gp.onnx.ONNXProgram, *inputs: torch.Tensor) -> list[torch.Tensor]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(program.model_proto.SerializeToString(), options)
    names = [i.name for i in session.get_inputs()]
    found = session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})
    return [torch.from_numpy(x) for x in found]


def stated(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.sum().item() > 0)
    return x + 1


def of_a_tensor(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "all of x is positive")
    return x + 1


def a_number(x: torch.Tensor) -> Any:
    n = x.sum().int().item()
    torch._check(n > 0)
    return n * 2, x.sum()


def in_a_branch(x: torch.Tensor) -> torch.Tensor:
    def checked(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().int().item()
        torch._check(n > 0)
        return x + n

    return torch.cond(x.shape[0] > 0, checked, lambda x: x * 2, (x,))


def in_a_loop(x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, x: torch.Tensor) -> Any:
        n = x.sum().int().item()
        torch._check(n > 0)
        return i + 1, x + n

    return torch.while_loop(lambda i, x: i < 2, step, (torch.tensor(0), x))


def broadcast(x: torch.Tensor) -> torch.Tensor:
    """Eager also runs it where one is chosen: that it is two is what capture takes for granted."""
    return x[x > 0] + torch.ones(2)


PROGRAMS = [stated, of_a_tensor, a_number, in_a_branch, in_a_loop]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_the_file_stops(f: Callable[..., Any]) -> None:
    program = gp.onnx.export(f, (torch.ones(3),))
    want = f(torch.full((3,), 2.0))
    have = run_bare(program, torch.full((3,), 2.0))
    for a, b in zip(have, want if isinstance(want, tuple) else (want,), strict=True):
        assert torch.equal(a, torch.as_tensor(b))
    with pytest.raises(Exception, match="Name:'requires"):
        run_bare(program, torch.full((3,), -2.0))


def test_what_capture_takes_for_granted() -> None:
    program = gp.onnx.export(broadcast, (torch.tensor([1.0, -1.0, 1.0]),))
    assert torch.equal(run_bare(program, torch.tensor([5.0, 6.0, 0.0]))[0], torch.tensor([6.0, 7]))
    with pytest.raises(Exception, match="Name:'requires"):
        run_bare(program, torch.tensor([5.0, 0.0, 0.0]))


def test_what_is_said() -> None:
    """In the words of the condition, or of the user's message, with the user's line."""
    program = gp.onnx.export(stated, (torch.ones(3),))
    with pytest.raises(gp.errors.RequirementError) as caught:
        program(-torch.ones(3))
    assert "the model requires f0 > 0.0, which does not hold for these inputs" in str(caught.value)
    assert "test_assertions.py" in str(caught.value) and "torch._check" in str(caught.value)
    program = gp.onnx.export(of_a_tensor, (torch.ones(3),))
    with pytest.raises(gp.errors.RequirementError, match="requires all of x is positive"):
        program(-torch.ones(3))


def test_messages_cannot_act() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "red \x1b[31m\nor " + "long" * 100)
        return x + 1

    (name,) = [
        n.name
        for n in gp.onnx.export(f, (torch.ones(3),)).model_proto.graph.node
        if n.name.startswith("requires")
    ]
    assert name.isprintable() and len(name) < 250


def test_verify_shows_data_that_the_file_refuses() -> None:
    program = gp.onnx.export(broadcast, (torch.tensor([1.0, -1.0, 1.0]),))
    report = program.verify()
    assert report.ok
    with pytest.raises(gp.errors.RequirementError):
        program.verify((torch.tensor([1.0, 0.0, 0.0]),))


def test_a_program_that_asserts_nothing_has_no_checks() -> None:
    program = gp.onnx.export(lambda x: x[x > 0] * 2, (torch.ones(3),))
    assert not [n.name for n in program.model_proto.graph.node if "requires" in n.name]
