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
from tests.helpers import clone
from tests.ops.sweep import case

# What only data tells, when the program runs; and tensors without data, which capture takes.
BY_DATA = {
    "cov": "cannot be negative",
    "gather": "is out of bounds",
    "scatter": "is out of bounds",
    "scatter_add": "is out of bounds",
    "multinomial": "prob",
    "gradient": "same device",
}
# A kernel that needs probabilities says nothing of zeros.
OTHERS = {("multinomial", "Long tensor out"), ("multinomial", "2^24")}


def is_excused(name: str, text: str) -> bool:
    by_data = name in BY_DATA and BY_DATA[name] in text
    return by_data or any(name == other and part in text for other, part in OTHERS)


CHUNKS = [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 4))]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_error_inputs(chunk: int) -> None:
    """675 calls that eager refuses; 124 of them were taken once."""
    accepted = []
    has_errors = (op for op in op_db if op.error_inputs_func is not None)
    # Jiterator compiles for accelerators only.
    ops = [op for op in has_errors if not op.name.startswith("jiterator")][chunk::4]
    for op in ops:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for error in op.error_inputs("cpu"):
                fn, inputs = case(op.op, error.sample_input)
                text = _refusal(lambda fn=fn, inputs=inputs: fn([t.clone() for t in inputs[0]]))
                if text is None:
                    continue
                try:
                    program = gp.export(fn, inputs)
                except gp.errors.InternalError as fault:
                    accepted.append(f"{op.name}: {fault}")
                    continue
                except gp.errors.ExportError:
                    continue
                late = _refusal(lambda p=program, inputs=inputs: p.module()(*clone(inputs)))
                if late is None or not is_excused(op.name, text):
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
        lambda q, k: attend(q, k, k, enable_gqa=True),
        (r(1, 33, 4, 8), r(1, 8, 4, 8)),
    ),
    "more keys than queries": (
        lambda q, k: attend(q, k, k, enable_gqa=True),
        (r(1, 4, 4, 8), r(1, 8, 4, 8)),
    ),
    "groups of values": (
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        (r(1, 6, 4, 8), r(1, 3, 4, 8), r(1, 4, 4, 8)),
    ),
    "groups without heads": (lambda q: attend(q, q, q, enable_gqa=True), (r(4, 8),)),
    "groups of other batches": (
        lambda q, k: attend(q, k, k, enable_gqa=True),
        (r(2, 4, 4, 8), r(3, 2, 4, 8)),
    ),
    "a mask of integers": (
        lambda q, m: attend(q, q, q, m),
        (r(1, 2, 4, 8), torch.zeros(4, 4, dtype=torch.int64)),
    ),
    "a mask of doubles": (
        lambda q, m: attend(q, q, q, m),
        (r(1, 2, 4, 8), torch.zeros(4, 4).double()),
    ),
    "a mask for a larger batch": (
        lambda q, m: attend(q, q, q, m),
        (r(1, 2, 4, 8), torch.zeros(3, 2, 4, 4)),
    ),
    "a mask of one dim": (lambda q, m: attend(q, q, q, m), (r(1, 2, 4, 8), torch.zeros(4))),
    "a causal mask": (
        lambda q, m: attend(q, q, q, m, is_causal=True),
        (r(2, 4, 8), torch.zeros(4, 4)),
    ),
    "dropout": (lambda q: attend(q, q, q, dropout_p=1.5), (r(1, 2, 4, 8),)),
    "integers": (lambda q: attend(q, q, q), (torch.ones(1, 2, 4, 8, dtype=torch.int64),)),
    "output padding": (
        lambda x, w: F.conv_transpose1d(x, w, output_padding=3),
        (r(1, 4, 5), r(4, 2, 3)),
    ),
    "negative padding": (lambda x, w: F.conv1d(x, w, padding=-1), (r(1, 4, 5), r(4, 4, 3))),
    "no stride": (lambda x, w: F.conv1d(x, w, stride=0), (r(1, 4, 5), r(4, 4, 3))),
    "no length to transpose": (lambda x, w: F.conv_transpose1d(x, w), (r(1, 4, 0), r(4, 2, 3))),
    "no length to pool": (lambda x: F.adaptive_avg_pool1d(x, 2), (r(2, 3, 0),)),
    "the 0th value": (lambda x: x.kthvalue(0), (r(3, 5),)),
    "a range that ends before it starts": (lambda x: x.clone().uniform_(3, 1), (r(3),)),
    "integers that end before they start": (lambda x: torch.randint_like(x, 5, 2), (r(3),)),
    "a probability of 2": (lambda x: torch.bernoulli(x, 2.0), (r(3),)),
    "a negative deviation": (lambda x: torch.normal(x, -1.0), (r(3),)),
    "celu by 0": (lambda x: F.celu(x, 0.0), (r(3),)),
    "a clamp without bounds": (lambda x: x.clamp(), (r(3),)),
    "bits of floats": (lambda x: x & x, (r(3),)),
    "shifted floats": (lambda x: x << 1, (r(3),)),
    "truths subtracted": (lambda x: x - x, (r(3) > 0,)),
    "integers to a negative power": (lambda x: x**-1, (torch.ones(3, dtype=torch.int64),)),
    "integers by 0": (lambda x: x // 0, (torch.ones(3, dtype=torch.int64),)),
    "a fraction of integers": (
        lambda x: torch.add(x, x, alpha=1.5),
        (torch.ones(3, dtype=torch.int64),),
    ),
    "a way to round": (lambda x: torch.div(x, x, rounding_mode="up"), (r(3),)),
    "towards another dtype": (lambda x: torch.lerp(x, x.double(), 0.5), (r(3),)),
    "a condition of floats": (lambda x: torch.where(x, x, x), (r(3),)),
    "a negative beta": (lambda x: F.smooth_l1_loss(x, x, beta=-1.0), (r(3),)),
    "memory beyond an input": (lambda x: x.as_strided((5, 4), (4, 1)), (r(4, 4),)),
    "memory beyond a result": (lambda x: (x + 1).as_strided((5, 4), (4, 1)), (r(4, 4),)),
    "memory beyond, by an offset": (lambda x: x.as_strided((2,), (1,), 15), (r(4, 4),)),
    "a negative stride": (lambda x: x.as_strided((2,), (-1,), 3), (r(4, 4),)),
    "integers from 5 to 2": (lambda x: x + torch.randint(5, 2, (3,)), (r(3),)),
    "no bins": (lambda x: torch.histc(x, bins=0), (r(3),)),
    "a negative norm": (lambda x: torch.cdist(x, x, p=-1.0), (r(3, 4),)),
    "a side": (lambda x: torch.searchsorted(x, x, side="bogus"), (r(3),)),
    "two sides": (lambda x: torch.searchsorted(x, x, side="left", right=True), (r(3),)),
    "a complex fill": (lambda x: x.index_fill(0, torch.tensor([0]), 1j), (r(3),)),
    "a fill of many": (lambda x: x.index_fill(0, torch.tensor([0]), x), (r(3),)),
    "statistics that are not there": (
        lambda x: torch.batch_norm(x, None, None, None, None, False, 0.1, 1e-5, False),
        (r(3, 4),),
    ),
    "half of the statistics": (
        lambda x, m: torch.batch_norm(x, None, None, m, None, True, 0.1, 1e-5, False),
        (r(3, 4), r(4)),
    ),
    "pieces of nothing": (lambda x: x.split(0), (r(3),)),
    "pieces of less than nothing": (lambda x: x.split(-1), (r(3),)),
    "windows without a step": (lambda x: x.unfold(0, 2, 0), (r(3),)),
    "a window of a number": (lambda x: x.unfold(0, 2, 1), (r(()),)),
    "a dim flipped twice": (lambda x: x.flip(0, -2), (r(3, 4),)),
    "a dim squeezed twice": (lambda x: x.squeeze((0, -2)), (r(1, 4),)),
    "a side without padding": (lambda x: torch.constant_pad_nd(x, (1, 1, 1)), (r(3, 4),)),
    "repeated less than never": (lambda x: x.repeat(-1), (r(3),)),
    "complex numbers of integers": (torch.view_as_complex, (torch.ones(3, 2, dtype=torch.int64),)),
    "a weight of doubles": (lambda x, w: F.layer_norm(x, (4,), w), (r(3, 4), r(4).double())),
    "a bias of doubles": (lambda x, b: F.linear(x, x, b), (r(3, 3), r(3).double())),
    "no groups": (lambda x: torch.group_norm(x, 0), (r(2, 4, 3),)),
    "negative output padding": (
        lambda x, w: F.conv_transpose1d(x, w, output_padding=-1),
        (r(1, 4, 5), r(4, 2, 3)),
    ),
    "steps for another rank": (
        lambda x, w: F.conv1d(x, w, stride=(1, 1)),
        (r(1, 4, 5), r(4, 4, 3)),
    ),
    "a mask of numbers": (lambda x: x.masked_select(x), (r(3),)),
    "a triangle": (lambda x: torch.linalg.eigh(x, UPLO="bogus"), (r(3, 3),)),
    "right sides of doubles": (torch.linalg.solve, (torch.eye(3), torch.eye(3).double())),
}


# What large tensors are, no kernel is run for.
LARGE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a weight of doubles": (lambda x, w: F.layer_norm(x, (64,), w), (r(2048, 64), r(64).double())),
    "right sides that do not fit": (torch.linalg.solve, (r(300, 300), r(300, 300).double())),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_are_refused_too(name: str) -> None:
    fn, args = LARGE[name]
    assert _refusal(lambda: fn(*args)) is not None
    with pytest.raises(gp.errors.ExportError):
        gp.export(fn, args)


def test_pivots_that_are_not_there() -> None:
    """Eager reads the memory behind them."""
    pivots = torch.ones(2, dtype=torch.int32)
    with pytest.raises(gp.errors.ShapeError, match="pivots"):
        gp.export(lambda x, p: torch.lu_unpack(x, p), (r(4, 4), pivots))


def test_memory_of_an_input_that_is_part_of_more_is_taken() -> None:
    ep = gp.export(lambda x: x.as_strided((5, 4), (4, 1)), (r(8, 4)[:4],))
    x = r(8, 4)
    assert torch.equal(ep.module()(x[:4]), x[:5])


def test_what_is_asked_of_the_example_says_nothing_of_other_sizes() -> None:
    """Nothing is written down of what the operator checks itself."""
    ep = gp.export(
        lambda x: torch.randint(0, x.shape[0], (2,)) + x.repeat(x.shape[0] - 2).sum(),
        (r(5),),
        dynamic_shapes={"x": {0: gp.Dim("n", min=0)}},
    )
    assert ep.module()(r(2)).shape == (2,)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, args = REFUSED[name]
    assert _refusal(lambda: fn(*args)) is not None
    with pytest.raises(gp.errors.ExportError):
        gp.export(fn, args)


D = torch.float64
# What writes to `out=` of another dtype, and what does not.
OUT: dict[str, tuple[bool, Callable[..., Any], torch.Tensor]] = {
    "add": (True, lambda x, out: torch.add(x, x, out=out), torch.zeros(3, 3, dtype=D)),
    "sum": (True, lambda x, out: torch.sum(x, 1, out=out), torch.zeros(3, dtype=D)),
    "cat": (True, lambda x, out: torch.cat([x, x], out=out), torch.zeros(6, 3, dtype=D)),
    "exp": (True, lambda x, out: torch.exp(x, out=out), torch.zeros(3, 3, dtype=D)),
    "abs": (False, lambda x, out: torch.abs(x, out=out), torch.zeros(3, 3, dtype=D)),
    "mm": (False, lambda x, out: torch.mm(x, x, out=out), torch.zeros(3, 3, dtype=D)),
    "argmax": (False, lambda x, out: torch.argmax(x, 1, out=out), torch.zeros(3).int()),
    "inv": (False, lambda x, out: torch.linalg.inv(x, out=out), torch.zeros(3, 3, dtype=D)),
    "tril": (False, lambda x, out: torch.tril(x, out=out), torch.zeros(3, 3, dtype=D)),
}


@pytest.mark.parametrize("name", OUT)
def test_out_of_another_dtype(name: str) -> None:
    """349 operators of torch's database were tried once: 145 were taken that eager refuses."""
    taken, fn, out = OUT[name]
    x = torch.eye(3) + 1
    assert (_refusal(lambda: fn(x, out.clone())) is None) is taken
    if taken:
        made = gp.export(lambda x, out: fn(x, out.clone()), (x, out)).module()(x, out)
        torch.testing.assert_close(made, fn(x, out.clone()))
    else:
        with pytest.raises(gp.errors.ExportError):
            gp.export(fn, (x, out))


def test_asking_kernels_leaves_the_generator_alone() -> None:
    x = r(2)
    before = torch.get_rng_state()
    gp.export(lambda x: torch.rand_like(x).uniform_(0, 2.5) + torch.bernoulli(x, 0.25), (x,))
    assert torch.equal(before, torch.get_rng_state())


def test_heads_that_divide_are_taken() -> None:
    for heads, keys in ((6, 3), (6, 1), (6, 6)):
        q, k = r(2, heads, 4, 8), r(2, keys, 4, 8)
        ep = gp.export(lambda q, k: attend(q, k, k, enable_gqa=True), (q, k))
        assert ep.module()(q, k).shape == q.shape


def test_asking_kernels_warns_of_nothing() -> None:
    """Warnings are errors here: of one value there is no deviation, of which the kernel warns."""
    gp.export(lambda x: x.std(0), (r(1, 3),))
