"""What tests of the ONNX side share: a model is run on ONNX Runtime and compared with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.onnx import ONNXProgram
from tests.helpers import Inputs, clone

# Kernels of ONNX Runtime add in another order than torch's, and round halves elsewhere.
CLOSE: dict[torch.dtype, dict[str, float]] = {
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
    torch.complex64: {"rtol": 1e-4, "atol": 2e-5},
    torch.complex128: {"rtol": 1e-7, "atol": 1e-7},
}


def check_onnx(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    others: Sequence[tuple[Any, ...]] = (),
    scale: float = 1.0,
    reference: Callable[..., Any] | None = None,
    **options: Any,
) -> ONNXProgram:
    """Export `model`, and compare with eager at the example and at other positional inputs.

    With `reference` in place of the model, if it is given.
    """
    program = gp.onnx.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, **options)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for inputs in ((args, kwargs or {}), *((other, kwargs or {}) for other in others)):
        compare(program, reference or model, inputs, scale=scale)
    return program


def check_special(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], **options: Any) -> Any:
    """`check_onnx` for what is infinite, not a number, subnormal, or overflows.

    What a vectorised kernel of eager gives for it depends on the instruction set, and oneDNN's on
    the machine. On memory with gaps eager runs its scalar code, which is the definition.
    """
    return check_onnx(
        lambda *x: fn(*x), args, reference=lambda *x: fn(*map(with_gaps, x)), **options
    )


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    """The same numbers, none of them next to another."""
    if not isinstance(t, torch.Tensor):
        return t
    return torch.stack([t, t], -1)[..., 0]


def compare(
    program: ONNXProgram, target: Callable[..., Any], inputs: Inputs, *, scale: float = 1.0
) -> None:
    """The model and eager give the same, and leave the same in their inputs."""
    ours, theirs = clone(inputs), clone(inputs)
    eager = copy.deepcopy(target) if isinstance(target, torch.nn.Module) else target
    with torch.no_grad():
        want = eager(*theirs[0], **theirs[1])
    have = program(*ours[0], **ours[1])
    assert_close(have, want, "results differ", scale)
    assert_close(ours, theirs, "inputs are left differently", scale)


def assert_close(have: Any, want: Any, what: str, scale: float = 1.0) -> None:
    flat_have, spec_have = pytree.tree_flatten(have)
    flat_want, spec_want = pytree.tree_flatten(want)
    assert spec_have == spec_want, f"{what}: {spec_have} and {spec_want}"
    for x, y in zip(flat_have, flat_want, strict=True):
        if isinstance(y, torch.Tensor):
            close = CLOSE.get(y.dtype, {"rtol": 0.0, "atol": 0.0})
            torch.testing.assert_close(
                x,
                y.detach(),
                equal_nan=True,
                check_stride=False,
                msg=lambda m: f"{what}: {m}",
                **{k: v * scale for k, v in close.items()},
            )
        else:
            assert x == y and type(x) is type(y), f"{what}: {x!r} and {y!r}"


def nodes(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """The operators that a program becomes."""
    return [n.op_type for n in gp.onnx.export(fn, inputs).model_proto.graph.node]
