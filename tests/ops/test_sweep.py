"""Every operator of PyTorch's own database, captured and compared with eager. See `sweep`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import graphport as gp
from tests.ops import sweep

# What cannot be captured, and why. It has to be refused by an error of ours.
REFUSED = {
    "allclose": "gives Python the truth of data",
    "equal": "gives Python the truth of data",
    "item": "gives Python a number from data, which may not be complex",
    "tensor_split": "takes its sections from the data of a tensor",
    "narrow": "takes its start from the data of a tensor",
    "nn.functional.gaussian_nll_loss": "branches on data",
    "nn.functional.dropout3d": "reshapes its input in place when that has no batch",
    "as_strided_partial_views": "reads memory that is not the input's own",
    "resize_": "replaces the storage of a tensor",
    "resize_as_": "replaces the storage of a tensor",
    "to_sparse": "sparse layout",
    "sparse.sampled_addmm": "sparse layout",
    "sparse.mm": "sparse layout",
    "torch.ops.aten._flash_attention_forward": "needs a device that is not here",
    "torch.ops.aten._efficient_attention_forward": "needs a device that is not here",
    "nn.functional.linear_cross_entropy": "insists on a size that is a Python int",
    "_native_batch_norm_legit": "out= has no functional form",
    "lu": "out= resizes its arguments in Python",
    "_unsafe_masked_index_put_accumulate": "its functional form checks bounds that it does not",
}

# Only sizes and dtypes can be compared: memory that nobody wrote.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}

# The call with out= draws a second time, or eager itself computes something else with out=.
NO_OUT = {
    "bernoulli",
    "multinomial",
    "normal",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "fft.ihfft2",
    "fft.ihfftn",
}

# What eager gives there is not defined.
UNDEFINED_AT_OTHER_SIZES = {
    "nn.functional.ctc_loss": "reads targets out of bounds",
    "nn.functional.multi_margin_loss": "no value of an empty batch",
    "nn.functional.multilabel_margin_loss": "no value of an empty batch",
    "addmv": "a product of nothing is not broadcast",
    "sum_to_size": "bools are summed to integers, unless there is nothing to sum",
    "bincount": "forgets the dtype of the weights of nothing",
    "nn.functional.conv1d": "forgets its output channels when there are no input channels",
    "nn.functional.conv2d": "forgets its output channels when there are no input channels",
    "nn.functional.conv3d": "forgets its output channels when there are no input channels",
    "repeat_interleave": "trusts an output_size that is wrong there",
}


def cases(op: Any, dtypes: Any, limit: int | None, ways: Any) -> Iterator[tuple[str, Any, Any]]:
    for dtype in dtypes:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for i, sample in enumerate(sweep.samples(op, dtype, limit)):
            for way, call in sweep.variants(op, sample):
                if way not in ways or (way == "out" and op.name in NO_OUT):
                    continue
                fn, inputs = sweep.case(call, sample)
                if sweep.eager(fn, inputs) is not None:
                    yield f"{dtype} sample {i} {way}", fn, inputs


def run(op: Any, dtypes: Any, limit: int | None, ways: Any, checks: Any) -> None:
    options: dict[str, Any] = {"values": not {op.name, op.formatted_name} & UNINITIALISED}
    if op.name in UNDEFINED_AT_OTHER_SIZES:
        checks = [sweep.check_static]
    failures = []
    for what, fn, inputs in cases(op, dtypes, limit, ways):
        for check in checks:
            try:
                check(fn, inputs, **options)
            except gp.errors.ExportError as error:
                if not {op.name, op.formatted_name} & REFUSED.keys():
                    failures.append(f"{what}, {check.__name__}: {error}")
            except (AssertionError, RuntimeError, LookupError, TypeError, ValueError) as error:
                failures.append(f"{what}, {check.__name__}: {type(error).__name__} {error}")
    assert not failures, "\n".join(failures[:5])


def named(op: Any) -> str:
    return op.formatted_name


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("op", op_db, ids=named)
def test_first_sample(op: Any) -> None:
    run(op, [torch.float32], 1, ["function"], [sweep.check_dynamic])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sweep.DTYPES, ids=str)
@pytest.mark.parametrize("op", op_db, ids=named)
def test_all_samples(op: Any, dtype: torch.dtype) -> None:
    run(
        op,
        [dtype],
        6,
        ["function", "inplace", "out"],
        [sweep.check_static, sweep.check_automatic, sweep.check_dynamic],
    )
