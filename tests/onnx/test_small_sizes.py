"""Sizes of 0 and 1 in files: as eager has it, or not among the sizes that the file declares."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.compat import schemas
from tests.helpers import clone
from tests.onnx.helpers import assert_close, check_onnx, compare

AUTO = gp.Dim.AUTO
r = torch.randn
Program = Callable[..., Any]


def i(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def run_bare(program: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """In a session of its own, as somebody who has the file alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    names = [given.name for given in session.get_inputs()]
    feed = {n: t.numpy() for n, t in zip(names, inputs, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, feed)]


def declares(program: Any, inputs: tuple[Tensor, ...]) -> bool:
    try:
        program.exported_program.checks(list(inputs))
    except RuntimeError:
        return False
    return True


def check(
    program: Any, fn: Program, others: list[tuple[Tensor, ...]], close: float = 1.0
) -> list[bool]:
    """Compare where the file declares the sizes; eager has to take them too. Says where it does."""
    declared = []
    for inputs in others:
        declared.append(declares(program, inputs))
        if declared[-1]:
            want = pytree.tree_leaves(fn(*clone((inputs, {}))[0]))
            assert_close(run_bare(program, inputs), want, f"at {[*map(len, inputs)]}", close)
    return declared


def attended(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    chosen = x[:, rows, columns]
    return F.scaled_dot_product_attention(chosen, chosen, chosen)


def bags(mode: str, last: bool = False) -> Program:
    return lambda w, x, o: F.embedding_bag(x, w, o, mode=mode, include_last_offset=last)


W = r(10, 4)

# A program, an example and what is dynamic of it; other inputs, all of which it takes.
TAKEN: dict[str, tuple[Program, tuple[Tensor, ...], Any, list[tuple[Tensor, ...]]]] = {
    "doubles clamped after relu": (
        lambda x: torch.relu(x).clamp(-1, 0.5),
        (r(3, 4).double(),),
        ({0: AUTO},),
        [(r(0, 4).double(),), (r(5, 4).double(),)],
    ),
    "attention of what indices choose": (
        attended,
        (r(2, 5, 6, 8), i(0, 2, 1), i([0, 1, 2], [3, 4, 5])),
        ({0: AUTO, 1: AUTO, 2: AUTO, 3: AUTO}, {0: AUTO}, {0: AUTO, 1: AUTO}),
        [(r(1, 5, 6, 8), i(0, 2), i([0, 1], [3, 4]))],
    ),
    "remainder by a size": (
        lambda x: x % x.shape[1],
        (torch.arange(12).reshape(3, 4),),
        ({0: AUTO, 1: AUTO},),
        [(i(1, 2)[:, None][:, :0],), (i(1, 2)[:, None],)],
    ),
    "floor division by a size": (
        lambda x: x // x.shape[1],
        (torch.arange(12).reshape(3, 4),),
        ({0: AUTO, 1: AUTO},),
        [(i(1, 2)[:, None][:, :0],), (i(1, 2)[:, None],)],
    ),
    "division by a size": (
        lambda x: torch.div(x, x.shape[1], rounding_mode="trunc"),
        (torch.arange(12).reshape(3, 4),),
        ({0: AUTO, 1: AUTO},),
        [(i(1, 2)[:, None][:, :0],), (i(1, 2)[:, None],)],
    ),
    "a factor of what is added to a sum of nothing": (
        lambda a, x, y: torch.addmm(a, x, y, beta=0.5),
        (r(3, 4), r(3, 8), r(8, 4)),
        ({}, {1: AUTO}, {0: AUTO}),
        [(r(3, 4), r(3, 0), r(0, 4)), (r(3, 4), r(3, 1), r(1, 4))],
    ),
    "rows without bags": (
        bags("sum"),
        (W, i(1, 2, 3, 4), i(0, 2)),
        ({1: AUTO}, {0: AUTO}, {0: AUTO}),
        [(W, i(1, 2), i()), (W, i(), i()), (W, i(), i(0, 0)), (W, i(1, 2), i(0))],
    ),
    "means without bags": (
        bags("mean"),
        (W, i(1, 2, 3, 4), i(0, 2)),
        ({1: AUTO}, {0: AUTO}, {0: AUTO}),
        [(W, i(1, 2), i()), (W, i(), i()), (W, i(), i(0, 0)), (W, i(1, 2), i(0))],
    ),
    "a last offset alone": (
        bags("sum", last=True),
        (W, i(1, 2, 3, 4), i(0, 2, 4)),
        ({1: AUTO}, {0: AUTO}, {0: AUTO}),
        [(W, i(1, 2, 3), i(0)), (W, i(), i(0)), (W, i(1, 2), i(0, 2))],
    ),
    "pooling to the same size": (
        lambda x: F.adaptive_avg_pool3d(x, (None, None, None)),
        (r(2, 3, 4, 5),),
        ({0: AUTO},),
        [(r(0, 3, 4, 5),), (r(1, 3, 4, 5),)],
    ),
    "means of no elements": (
        lambda x: F.adaptive_avg_pool2d(x, 1),
        (r(2, 3, 4, 5),),
        ({0: AUTO, 2: AUTO},),
        [(r(2, 3, 0, 5),), (r(1, 3, 1, 5),)],
    ),
    "tens of a size": (
        lambda x: x * round(x.shape[0], -1),
        (r(3, 4),),
        ({0: AUTO},),
        [(r(n, 4),) for n in (0, 1, 5, 6, 15, 25)],
    ),
    "groups of nothing": (
        lambda x: torch.native_group_norm(x, None, None, x.shape[0], 6, x.shape[2], 3, 1e-5),
        (r(2, 6, 4),),
        ({0: AUTO, 2: AUTO},),
        [(r(0, 6, 4),), (r(1, 6, 1),), (r(2, 6, 0),)],
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    fn, example, spec, others = TAKEN[name]
    if name == "groups of nothing" and schemas.GROUPS_HAVE_ELEMENTS:
        with pytest.raises(RuntimeError, match="greater than 0"):
            fn(*others.pop())
    program = gp.onnx.export(fn, example, dynamic_shapes=spec)
    assert all(check(program, fn, [example, *others]))


# What eager refuses, or has its own way with: outside of what the file declares.
IMAGE = {0: AUTO, 2: AUTO}
OTHERS = [(r(0, 3, 5),), (r(4, 3, 1),), (r(4, 3, 0),)]
NARROWED: dict[str, tuple[Program, tuple[Tensor, ...], Any, list[tuple[Tensor, ...]]]] = {
    "transposed convolution": (
        lambda x: F.conv_transpose1d(x, torch.ones(3, 2, 3)),
        (r(4, 3, 5),),
        (IMAGE,),
        OTHERS,
    ),
    "convolution of padding": (
        lambda x: F.conv1d(x, torch.ones(2, 3, 3), padding=2),
        (r(4, 3, 5),),
        (IMAGE,),
        [(r(4, 3, 1),), (r(4, 3, 0),)],
    ),
    "an empty kernel": (
        lambda x, w: F.conv1d(x, w),
        (r(4, 3, 5), r(2, 3, 2)),
        ({}, {2: AUTO}),
        [(r(4, 3, 5), r(2, 3, 1)), (r(4, 3, 5), r(2, 3, 0))],
    ),
    "adaptive means": (lambda x: F.adaptive_avg_pool1d(x, 2), (r(4, 3, 5),), (IMAGE,), OTHERS),
    "area": (lambda x: F.interpolate(x, size=2, mode="area"), (r(4, 3, 5),), (IMAGE,), OTHERS),
    "interpolation": (
        lambda x: F.interpolate(x, size=4, mode="linear"),
        (r(4, 3, 5),),
        (IMAGE,),
        OTHERS,
    ),
    "means over padding": (
        lambda x: F.avg_pool1d(x, 2, padding=1),
        (r(4, 3, 5),),
        (IMAGE,),
        OTHERS,
    ),
    "replicated edges": (
        lambda x: F.pad(x, (1, 1), mode="replicate"),
        (r(4, 3, 5),),
        (IMAGE,),
        OTHERS,
    ),
    "spectrum": (
        lambda x: torch.view_as_real(torch.fft.rfft(x)),
        (r(4, 3, 5),),
        (IMAGE,),
        OTHERS[1:],
    ),
    "batch norm of a batch": (
        lambda x: F.batch_norm(x, None, None, training=True),
        (r(4, 3),),
        ({0: AUTO},),
        [(r(2, 3),), (r(0, 3),), (r(1, 3),)],
    ),
    "batch norm of an image": (
        lambda x: F.batch_norm(x, None, None, training=True),
        (r(4, 3, 2, 2),),
        ({0: AUTO, 2: AUTO, 3: AUTO},),
        [(r(1, 3, 1, 2),), (r(1, 3, 1, 1),)],
    ),
    "columns that differ": (
        lambda x: torch.unique(x, dim=0),
        (i([1, 2], [1, 2], [0, 2]),),
        ({0: AUTO, 1: AUTO},),
        [(i([1, 2], [1, 2], [0, 2])[:0],), (i([1], [1]),), (i([1], [1])[:, :0],)],
    ),
    "quantiles of nothing": (
        lambda x: x.quantile(0.3, dim=1),
        (r(3, 4),),
        ({0: AUTO},),
        [(r(1, 4),), (r(0, 4),)],
    ),
    "a broadcast sum and no rows": (
        torch.addmv,
        (r(1), r(3, 4), r(4)),
        [({}, {0: AUTO, 1: AUTO}, {0: AUTO})],
        [(r(1), r(1, 1), r(1)), (r(1), r(0, 4), r(4))],
    ),
    "pixels of nothing": (
        lambda x: F.pixel_unshuffle(x, 2),
        (r(2, 3, 4, 6),),
        ({0: AUTO, 2: AUTO},),
        [(r(1, 3, 2, 6),), (r(0, 3, 4, 6),)],
    ),
    "an alignment of nothing": (
        lambda x, t: F.ctc_loss(x, t, i(*[5] * x.shape[1]), i(*[2] * x.shape[1])),
        (r(5, 2, 6).log_softmax(-1), torch.ones(2, 2).long()),
        ({0: AUTO}, {}),
        [
            (r(5, 2, 6).log_softmax(-1), torch.ones(2, 2).long()),
            (r(0, 2, 6), torch.ones(2, 2).long()),
        ],
    ),
}


@pytest.mark.parametrize("name", NARROWED)
def test_narrowed(name: str) -> None:
    """The last of the inputs is not taken; the others are."""
    fn, example, spec, others = NARROWED[name]
    program = gp.onnx.export(lambda *args: fn(*args), example, dynamic_shapes=_of_args(spec))
    *taken, last = check(program, fn, [example, *others])
    assert all(taken) and not last


def _of_args(spec: Any) -> Any:
    return spec if isinstance(spec, list) else [spec]


CORE: dict[str, tuple[Program, tuple[Tensor, ...], Any, list[tuple[Tensor, ...]]]] = {
    "elements of nothing": (
        lambda x, y: torch.isin(x, y),
        (r(3, 4).round(), r(5).round()),
        ({0: AUTO, 1: AUTO}, {0: AUTO}),
        [(r(3, 4), r(0)), (r(0, 4), r(5)), (r(1, 1), r(1))],
    ),
    "no elements of something": (
        lambda x, y: torch.isin(x, y, invert=True),
        (r(3, 4).round(), r(5).round()),
        ({0: AUTO, 1: AUTO}, {0: AUTO}),
        [(r(3, 4), r(0)), (torch.full((2, 2), math.nan), torch.full((3,), math.nan))],
    ),
}


@pytest.mark.parametrize("name", CORE)
def test_after_decompositions(name: str) -> None:
    fn, example, spec, others = CORE[name]
    core = gp.export(fn, example, dynamic_shapes=spec).run_decompositions()
    program = gp.onnx.export(core)
    assert all(check(program, fn, [example, *others]))
    module = core.module()
    for inputs in others:
        assert_close(module(*inputs), fn(*inputs), f"at {inputs}")


E = 8


def attend(query: Tensor, key: Tensor) -> Tensor:
    return F.multi_head_attention_forward(
        query,
        key,
        key,
        E,
        2,
        torch.ones(3 * E, E) * 0.1,
        torch.zeros(3 * E),
        None,
        None,
        False,
        0.0,
        torch.eye(E),
        torch.zeros(E),
        training=False,
        need_weights=True,
    )[0]


FUSED: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "attention": (attend, (r(5, 3, E), r(4, 3, E))),
    "a factor": (lambda x, y: (x.transpose(0, 1) / 3) @ y, (r(5, 3, E), r(3, E, 4))),
    "two factors": (lambda x, y: (x.transpose(0, 1) / 3) * 2 @ y, (r(5, 3, E), r(3, E, 4))),
}


@pytest.mark.parametrize("name", FUSED)
def test_no_rows_do_not_end_the_process(name: str, tmp_path: Path) -> None:
    """ONNX Runtime makes one operator of a transpose, a factor and a product; it divides."""
    fn, example = FUSED[name]
    program = gp.onnx.export(fn, example, dynamic_shapes=({0: AUTO}, {}))
    check(program, fn, [example])
    program.save(tmp_path / "f.onnx")
    inputs = {t.name: x for t, x in zip(program.model_proto.graph.input, example, strict=True)}
    first = next(iter(inputs))
    np.savez(tmp_path / "x.npz", **{n: x[:0] if n == first else x for n, x in inputs.items()})
    code = (
        "import numpy as np, onnxruntime as o; s = o.InferenceSession('f.onnx'); "
        "print(s.run(None, dict(np.load('x.npz')))[0].size)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "0\n")


def test_bits_of_floats() -> None:
    read = lambda x: x.view(torch.int32)
    with pytest.raises(gp.errors.UnsupportedError, match="before opset 26"):
        gp.onnx.export(read, (r(3, 4),))
    check_onnx(read, (r(3, 4),), opset=26)


def test_an_end_that_data_tells_in_a_program_of_torch_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            chosen = torch.masked_select(x, mask).clone()
            chosen[-chosen.shape[0] :] += 0.5
            return chosen

    x, mask = r(4), torch.tensor([True, False, True, True])
    program = gp.onnx.export(torch.export.export(Model(), (x, mask)))
    for given in (mask, mask & False, mask | True):
        compare(program, Model(), ((x, given), {}))


NAN, INF = math.nan, math.inf
ROWS = torch.tensor([[1, -INF], [-INF, -INF], [INF, 1], [NAN, 1], [1, 2]], dtype=torch.float64)


@pytest.mark.parametrize(
    "fn",
    [lambda x: F.log_softmax(x, -1), lambda x: torch.cdist(x, torch.ones(2, 2).double(), 0.0)],
    ids=["log_softmax", "cdist"],
)
def test_doubles_that_are_not_finite(fn: Program) -> None:
    check_onnx(lambda x: fn(x), (ROWS,))


@pytest.mark.parametrize("fn", [torch.median, torch.nanmedian])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_the_median_of_no_integers(fn: Program, dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    x = torch.tensor([3, 1, most, 2, most, 5, most], dtype=dtype)
    program = gp.onnx.export(lambda x: fn(x), (x,), dynamic_shapes=({0: AUTO},))
    assert all(check(program, fn, [(x,), *((x[:n],) for n in range(6)), (x[2:],), (x[4:],)]))


@pytest.mark.parametrize("core", [False, True], ids=["as written", "core"])
@pytest.mark.parametrize("track", [False, True], ids=["batch", "running"])
def test_batch_norm_of_no_rows_in_training(track: bool, core: bool) -> None:
    """Nothing comes out, and running statistics stay what they are."""
    model = torch.nn.BatchNorm2d(3, track_running_stats=track)
    spec = ({0: gp.Dim("b", min=0)},)
    ep = gp.export(model, (r(4, 3, 2, 2),), dynamic_shapes=spec)
    ep = ep.run_decompositions() if core else ep
    program = gp.onnx.export(ep)
    for n in (0, 1, 4):
        x = r(n, 3, 2, 2)
        own = copy.deepcopy(model)
        want = (own(x), *((own.running_mean, own.running_var) if track else ()))
        got = run_bare(program, (x,))
        assert_close([t for t in got if t.shape], list(want), f"of {n}")


CHOSEN: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda x: x[x > 0].roll(1),
    "dim": lambda x: x[x > 0].roll(1, 0),
    "selected": lambda x: torch.masked_select(x, x > 0).roll(-2),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_what_a_mask_leaves_of_one_element_is_rolled(name: str) -> None:
    fn = CHOSEN[name]
    ep = gp.export(lambda x: fn(x), (torch.tensor(3.0),))
    for run in (ep.module(), ep.run_decompositions().module(), gp.onnx.export(ep)):
        for value in (torch.tensor(3.0), torch.tensor(-3.0)):
            torch.testing.assert_close(run(value), fn(value))
