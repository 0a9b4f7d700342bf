"""What eager refuses of arguments that are not meant, capture refuses too. See `mutations`."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import graphport as gp
from tests.helpers import clone
from tests.ops.mutations import mutations
from tests.ops.sweep import case

# Eager itself ends the process, or writes where it should not, with arguments that do not fit.
CRASHES = {
    "lu_unpack",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "_segment_reduce",
    "linalg.lstsq",
}

# What is found out when the program runs: by its words, as eager has them.
LATE = {
    r"out of bounds|out of range|not in the valid range|invalid max index": "data: indices",
    r"index_select\(\): self indexing axis|into an empty tensor|ZeroDivision": "data: indices",
    r"number of ones in mask": "data: how many a mask selects",
    r"offsets\[-?\d+\]|input_lengths to have value": "data: offsets and lengths",
    r"argument #2 'targets'": "data: how long the longest target is",
    r"MKL FFT error": "a transform of no batch is nothing, which the library refuses",
    r"DefaultCPUAllocator": "memory that is not here",
}

# Operators of which some such calls are taken, and refused when the program runs.
OTHERS = {
    "nn.functional.linear_cross_entropy": "an operator in torch's Python, which has no rule",
    "_unsafe_masked_index_put_accumulate": "indices of nothing, of a mask that is not",
    "index_put": "no index at all",
    "index_reduce": "a number, by an index of nothing",
    "index_select": "a number, by an index of nothing",
    "unique": "rows of no elements",
    "unique_consecutive": "rows of no elements",
    "positive": "truth, which capture hands on",
    "as_strided_scatter": "places that overlap",
    "nn.functional.conv_transpose1d": "the weight of an image for a line",
    "nn.functional.conv_transpose3d": "nothing comes out",
    "nn.functional.instance_norm": "no batch",
    "nn.functional.unfold": "no batch",
    "nn.functional.pixel_unshuffle": "no channels",
    "nn.functional.multi_head_attention_forward": "a bias that fits the flattened product",
    "randint": "bounds of the dtype",
    "repeat_interleave": "how often, as a number",
}

REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, AttributeError, AssertionError)


def refusal(fn: Any, inputs: Any) -> str | None:
    """What eager says; of dtypes that only have no kernel here it says nothing."""
    try:
        fn(*clone(inputs))
    except NotImplementedError:
        return None
    except REFUSALS as error:
        return f"{type(error).__name__} {error}"
    except ZeroDivisionError:
        return None
    return None


def verdict(fn: Any, inputs: Any, text: str, excused: bool) -> str | None:
    """What is wrong with how capture takes a call that eager refuses."""
    try:
        program = gp.export(fn, inputs)
    except gp.errors.InternalError as error:
        return f"a fault: {error}"
    except gp.errors.ExportError:
        return None
    if not excused and not any(re.search(words, text) for words in LATE):
        return "taken"
    try:
        program.module()(*clone(inputs))
    except REFUSALS:
        return None
    return "gives a result"


OPS = [op for op in op_db if op.name not in CRASHES and not op.name.startswith("jiterator")]
EVERY = 20
CHUNKS = [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, EVERY))]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_mutations(chunk: int) -> None:
    """Of 4,700 such calls 1,400 were taken once, most of which gave a result in ONNX."""
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in OPS[chunk::EVERY]:
            torch.manual_seed(0)
            for what, sample in mutations(op):
                fn, inputs = case(op.op, sample)
                text = refusal(fn, inputs)
                found = text and verdict(fn, inputs, text, op.name in OTHERS)
                if found:
                    wrong.append(f"{op.formatted_name} {what}: {found}; eager: {text}")
    assert not wrong, "\n".join(wrong[:30])
