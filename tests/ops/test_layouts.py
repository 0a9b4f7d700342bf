"""Strides of results, of operands in every layout: as in eager."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.tensors.abstract import describe, get_example_size

SIZES = (2, 3, 2)
DTYPES = (torch.int32, torch.int64, torch.float32, torch.float16, torch.float64, torch.bool)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "le": torch.le,
    "div": torch.div,
    "atan2": torch.atan2,
    "logical_and": torch.logical_and,
    "remainder": torch.remainder,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "clamp": torch.clamp,
    "pow": torch.pow,
}


def draw(rng: random.Random) -> torch.Tensor:
    t = torch.ones(60).to(rng.choice(DTYPES))
    order = rng.sample(range(3), 3)
    choices = [
        t.as_strided(SIZES, rng.choice([(1, 1, 1), (2, 1, 1), (1, 2, 1), (0, 1, 1), (3, 1, 3)])),
        t[:12].reshape([SIZES[i] for i in order]).permute(*(order.index(i) for i in range(3))),
        rng.choice([t[:3].reshape(1, 3, 1), t[:4].reshape(2, 1, 2).transpose(0, 2)]).expand(SIZES),
        t.reshape(3, 4, 5).permute(2, 0, 1)[:2, :, :2],
    ]
    return rng.choice(choices)


@pytest.mark.parametrize("name", OPERATORS)
def test_strides_as_in_eager(name: str) -> None:
    rng, compared = random.Random(name), 0
    for _ in range(60):
        operands = draw(rng), draw(rng)
        try:
            wanted = OPERATORS[name](*operands)
        except RuntimeError:
            continue  # an operator without this pair of dtypes
        program = gp.export(lambda a, b: OPERATORS[name](a, b), operands)
        result = program.graph.output_node().args[0][0]
        given = [(t.dtype, t.stride()) for t in operands]
        assert tuple(describe(result).strides) == wanted.stride(), given
        compared += 1
    assert compared > 20


# Operators of which single layouts are not followed: what they give is right, and lies otherwise.
DEPENDS_ON_DATA = 1000
"""No stride of a sample is that large: one without an example is."""

OTHERWISE = {
    "unsafe_chunk unsafe_split": "parts of the memory of the input, which are copies here",
    "cauchy exponential geometric log_normal normal uniform": "writes to an input with gaps",
    "nn.functional.avg_pool1d "
    "nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool3d nn.functional.avg_pool3d "
    "nn.functional.max_pool3d nn.functional.conv1d nn.functional.conv2d "
    "nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d "
    "nn.functional.conv_transpose3d": "channels last, of one item",
    "nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d": "images "
    "of few pixels, channels last",
    "linalg.solve_ex linalg.solve": "several right sides with gaps",
    "fft.hfft fft.hfft2 fft.hfftn native_dropout_backward": "of an expanded input",
}
OTHERWISE_WHEN_DYNAMIC = {
    "reshape reshape_as view view_as": "whether they copy is settled where it matters",
    "nn.functional.adaptive_avg_pool2d nn.functional.avg_pool2d "
    "nn.functional.max_pool2d": "channels last, of one item",
    "max_pool2d_with_indices_backward _upsample_bilinear2d_aa": "channels last",
}


def relay(t: Any, rng: random.Random) -> Any:
    """The same numbers in another layout."""
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided or not t.numel():
        return t
    t, rank = t.detach(), t.dim()
    if rank < 2:
        return t
    way = rng.randrange(4)
    if way == 0:
        order = rng.sample(range(rank), rank)
        return t.permute(order).contiguous().permute([order.index(i) for i in range(rank)])
    if way == 1:
        gaps = torch.zeros([n * 2 for n in t.shape], dtype=t.dtype)[(slice(None, None, 2),) * rank]
        return gaps.copy_(t)
    if way == 2:
        return t.narrow(rng.randrange(rank), 0, 1).expand(t.shape)
    return t.contiguous(memory_format=torch.channels_last) if rank == 4 else t.contiguous()


def compare_layouts(op: Any, sample: Any, rng: random.Random, dynamic: bool = False) -> str:
    """What differs in the strides of results; "" where nothing does or eager or capture refuses."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = [relay(x, rng) for x in leaves]
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    tensors = tuple(leaves[i] for i in places)

    def fn(*given: torch.Tensor) -> Any:
        mixed = list(leaves)
        for i, t in zip(places, given, strict=True):
            mixed[i] = t
        first, args, kwargs = pytree.tree_unflatten(mixed, spec)
        return op.op(first, *args, **kwargs)

    try:
        wanted = pytree.tree_leaves(fn(*copy.deepcopy(tensors)))
        every = tuple(dict.fromkeys(range(t.dim()), gp.Dim.AUTO) for t in tensors)
        program = gp.export(fn, tensors, dynamic_shapes=(every,) if dynamic else None)
        outputs = program.graph.output_node().args[0]
    except (RuntimeError, ValueError, TypeError, LookupError, gp.errors.ExportError):
        return ""
    for result, want in zip(outputs[len(outputs) - len(wanted) :], wanted, strict=True):
        if not isinstance(want, torch.Tensor) or not want.numel() or not hasattr(result, "meta"):
            continue
        strides = [get_example_size(s) for s in describe(result).strides]
        pairs = zip(want.shape, strides, want.stride(), strict=True)
        if any(n != 1 and have != step and have < DEPENDS_ON_DATA for n, have, step in pairs):
            given = [(tuple(t.shape), t.stride()) for t in tensors]
            return f"{given}: {describe(result).strides} instead of {want.stride()}"
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("seed", "dynamic"),
    [(1, False), *(pytest.param(n, n > 4, marks=pytest.mark.slow) for n in (2, 3, 4, 5, 6))],
)
def test_strides_of_every_operator(seed: int, dynamic: bool) -> None:
    rng, excused = random.Random(seed), {n for names in OTHERWISE for n in names.split()}
    if dynamic:
        excused |= {n for names in OTHERWISE_WHEN_DYNAMIC for n in names.split()}
    wrong = {}
    for op in op_db:
        dtype = torch.complex64 if seed in (3, 4) else torch.float32
        if dtype not in op.dtypes or op.name in excused or "jiterator" in op.name:
            continue
        if seed == 1 and rng.random() > 0.3:
            continue  # a part of them is quick
        samples = list(op.sample_inputs("cpu", dtype))
        for sample in rng.sample(samples, min(1 if seed == 1 else 4, len(samples))):
            problem = compare_layouts(op, sample, rng, dynamic)
            if problem:
                wrong[op.formatted_name] = problem
    assert not wrong, "\n".join(f"{k} {v}" for k, v in wrong.items())


def overloads_of_numbers_and_tensors() -> Iterator[tuple[Any, list[str]]]:
    """Operators that need one or two tensors and at most a number, with the kinds of these."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            schema = getattr(packet, overload)._schema
            needed = [str(a.type) for a in schema.arguments if not a.has_default_value()]
            if schema.is_mutable or len(schema.returns) != 1 or len(needed) > 2:
                continue
            if "Tensor" in needed and {*needed} <= {"Tensor", "number"}:
                yield getattr(packet, overload), needed


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.permute(0, 2, 1),
    lambda t: t.permute(2, 0, 1)[1:],
    lambda t: t[:, ::2, 1:],
    lambda t: t[:1].expand(3, 3, 4),
    lambda t: t[:, :1].expand(2, 3, 4).permute(2, 0, 1),
]
NOT_THE_USERS = (
    "argwhere copy lift_fresh_copy linalg_pinv nonzero one_hot resize_as _standard_gamma"
)
"""Is for torch alone, deprecated, or has sizes that depend on data."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_strides_of_every_overload(number: bool) -> None:
    """Those with a number, and the rest."""
    wrong, compared = {}, 0
    for op, kinds in overloads_of_numbers_and_tensors():
        if ("number" in kinds) != number or op._opname in NOT_THE_USERS.split():
            continue
        for dtype in (torch.float32, torch.int64):
            for relaid in LAYOUTS:
                t = relaid((torch.rand(2, 3, 4) * 4 + 0.5).to(dtype))
                fn = lambda t, op=op, kinds=kinds: op(*(2 if k == "number" else t for k in kinds))
                try:
                    wanted = fn(t.clone() if t.is_contiguous() else t)
                    result = gp.export(fn, (t,)).graph.output_node().args[0][0]
                except (RuntimeError, ValueError, TypeError, LookupError, gp.errors.ExportError):
                    continue
                if isinstance(wanted, torch.Tensor) and wanted.numel():
                    compared += 1
                    steps = zip(
                        wanted.shape, describe(result).strides, wanted.stride(), strict=True
                    )
                    if any(n != 1 and have != want for n, have, want in steps):
                        wrong[str(op)] = t.stride(), describe(result).strides, wanted.stride()
    assert compared > 300 and not wrong, (compared, wrong)
