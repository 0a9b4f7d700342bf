"""Arguments that eager refuses are refused by capture too, by torch's own error database."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import graphport as gp
from tests.ops.sweep import case

# What only data tells, when the program runs; and tensors without data, which capture takes.
BY_DATA = {
    "cov": "cannot be negative", "gather": "is out of bounds", "scatter": "is out of bounds",
    "scatter_add": "is out of bounds", "multinomial": "prob", "gradient": "same device",
}  # fmt: skip
# Nothing is made of `out=` but a copy, of any dtype; memory that capture does not see.
OTHERS = {
    ("aminmax", "dtype"), ("gather", "dtype"), ("complex", "argument 'out'"),
    ("multinomial", "Long tensor out"), ("multinomial", "2^24"), ("uniform", "range"),
    ("as_strided_scatter", "setStorage"),
}  # fmt: skip


def is_excused(name: str, text: str) -> bool:
    by_data = name in BY_DATA and BY_DATA[name] in text
    return by_data or any(name == other and part in text for other, part in OTHERS)


@pytest.mark.parametrize("chunk", range(8))
def test_error_inputs(chunk: int) -> None:
    """675 calls that eager refuses; 124 of them were taken once."""
    accepted = []
    has_errors = (op for op in op_db if op.error_inputs_func is not None)
    # Jiterator compiles for accelerators only.
    ops = [op for op in has_errors if not op.name.startswith("jiterator")][chunk::8]
    for op in ops:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for error in op.error_inputs("cpu"):
                fn, inputs = case(op.op, error.sample_input)
                text = _refusal(lambda fn=fn, inputs=inputs: fn([t.clone() for t in inputs[0]]))
                if text is None or is_excused(op.name, text):
                    continue
                try:
                    gp.export(fn, inputs)
                except gp.errors.ExportError:
                    continue
                accepted.append(f"{op.name}: {text}")
    assert not accepted


REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AttributeError)


def _refusal(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except REFUSALS as error:
        return str(error)
    return None


attend = F.scaled_dot_product_attention
r = torch.randn
REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "33 heads for 8": (
        lambda q, k: attend(q, k, k, enable_gqa=True), (r(1, 33, 4, 8), r(1, 8, 4, 8))),
    "more keys than queries": (
        lambda q, k: attend(q, k, k, enable_gqa=True), (r(1, 4, 4, 8), r(1, 8, 4, 8))),
    "groups of values": (
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        (r(1, 6, 4, 8), r(1, 3, 4, 8), r(1, 4, 4, 8))),
    "groups without heads": (lambda q: attend(q, q, q, enable_gqa=True), (r(4, 8),)),
    "groups of other batches": (
        lambda q, k: attend(q, k, k, enable_gqa=True), (r(2, 4, 4, 8), r(3, 2, 4, 8))),
    "a mask of integers": (
        lambda q, m: attend(q, q, q, m), (r(1, 2, 4, 8), torch.zeros(4, 4, dtype=torch.int64))),
    "a mask of doubles": (
        lambda q, m: attend(q, q, q, m), (r(1, 2, 4, 8), torch.zeros(4, 4).double())),
    "a mask for a larger batch": (
        lambda q, m: attend(q, q, q, m), (r(1, 2, 4, 8), torch.zeros(3, 2, 4, 4))),
    "a mask of one dim": (lambda q, m: attend(q, q, q, m), (r(1, 2, 4, 8), torch.zeros(4))),
    "a causal mask": (
        lambda q, m: attend(q, q, q, m, is_causal=True), (r(2, 4, 8), torch.zeros(4, 4))),
    "dropout": (lambda q: attend(q, q, q, dropout_p=1.5), (r(1, 2, 4, 8),)),
    "integers": (lambda q: attend(q, q, q), (torch.ones(1, 2, 4, 8, dtype=torch.int64),)),
    "output padding": (
        lambda x, w: F.conv_transpose1d(x, w, output_padding=3), (r(1, 4, 5), r(4, 2, 3))),
    "negative padding": (lambda x, w: F.conv1d(x, w, padding=-1), (r(1, 4, 5), r(4, 4, 3))),
    "no stride": (lambda x, w: F.conv1d(x, w, stride=0), (r(1, 4, 5), r(4, 4, 3))),
    "no length to transpose": (lambda x, w: F.conv_transpose1d(x, w), (r(1, 4, 0), r(4, 2, 3))),
    "no length to pool": (lambda x: F.adaptive_avg_pool1d(x, 2), (r(2, 3, 0),)),
    "the 0th value": (lambda x: x.kthvalue(0), (r(3, 5),)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, args = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)):
        fn(*args)
    with pytest.raises(gp.errors.ExportError):
        gp.export(fn, args)


def test_heads_that_divide_are_taken() -> None:
    for heads, keys in ((6, 3), (6, 1), (6, 6)):
        q, k = r(2, heads, 4, 8), r(2, keys, 4, 8)
        ep = gp.export(lambda q, k: attend(q, k, k, enable_gqa=True), (q, k))
        assert ep.module()(q, k).shape == q.shape
