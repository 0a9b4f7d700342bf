"""Indexing in every form that Python has, read and written."""

from __future__ import annotations

import pytest
import torch

import graphport as gp
from tests.helpers import check

READS = [
    "x[0]",
    "x[-1]",
    "x[1, 2]",
    "x[..., 0]",
    "x[:, -1]",
    "x[0, ..., 1]",
    "x[None]",
    "x[:, None]",
    "x[..., None]",
    "x[1:]",
    "x[:-1]",
    "x[::2]",
    "x[1:3, ::3]",
    "x[-2:]",
    "x[5:]",
    "x[3:1]",
    "x[[0, 2]]",
    "x[[0, 2], [1, 1]]",
    "x[[-1]]",
    "x[:, [2, 0]]",
    "x[..., [0, 0, 1]]",
    "x[i]",
    "x[:, i]",
    "x[i, i]",
    "x[i[:, None], i[None]]",
    "x[i, :, i]",
    "x[0, i]",
    "x[i, 0]",
    "x[i, ..., 1]",
    "x[i, 1:]",
    "x[None, i, None]",
    "x[i.int()]",
    "x[x > 0]",
    "x[(x > 0).any(-1)]",
    "x[(x > 0).any(-1).any(-1)]",
    "x[True]",
    "x[False]",
    "x[m]",
    "x[m, 0]",
    "x[m, i[:1]]",
    "x[:, m2]",
    "x[0, m2]",
    "x[()]",
    "x[...]",
    "x[:]",
    "x[torch.tensor(1)]",
    "x[torch.tensor(-1), 1:]",
    "x[slice(1, None), 0]",
    "x[(slice(None), 1)]",
    "x[x.shape[0] - 1]",
    "x[: x.shape[0] // 2]",
    "x[:, x.shape[1] - 2 :]",
    "x[range(2)]",
    "x[[True, False, True]]",
    "x[:, :, torch.tensor([[0, 1], [2, 3]])]",
    "x.take(i)",
    "x.gather(1, i[:2].reshape(1, 2, 1).expand(3, 2, 4) % 3)",
    "x.index_select(1, i)",
    "x.masked_select(x > 1)",
    "torch.take_along_dim(x, x.argsort(-1), -1)",
    "x[i.tolist()]",
]

WRITES = [
    "x[0] = 1",
    "x[-1, 1:] = 2.5",
    "x[..., 0] += 1",
    "x[:, None, 0] = 3",
    "x[[0, 2]] = 1",
    "x[i] = x[i] * 2",
    "x[i, :, 0] = 5",
    "x[x > 0] = 0",
    "x[x > 0] += 1",
    "x[m] = x[~m][:2]",
    "x[m, 0] = -1",
    "x[:, m2] = 7",
    "x[()] = 4",
    "x[...] = x * 2",
    "x[1:][::2] = 9",
    "x[0][1][2] = 3",
    "x[:, 1] = x[:, 0]",
    "x[True] = 1",
    "x[False] = 1",
    "x[i, i, i] = i.float()",
    "x[0] = i[:1]",
    "x[:, :, 1:3] *= -1",
    "x[torch.tensor(1)] = 0",
    "x[:-1] -= x[1:].clone()",
    "x[i[:, None], torch.tensor([0, 1])] = 8",
    "x[..., -1:] = x.mean(-1, keepdim=True)",
    "x[None, 0] = 6",
    "x[2:2] = 1",
    "x[m] *= 2",
]


def inputs(batch: int = 3):
    x = torch.arange(batch * 12.0).reshape(batch, 3, 4) - 14
    mask = torch.tensor([True, False, True] + [False] * (batch - 3))
    return x, torch.tensor([0, 2]), mask, torch.tensor([False, True, True])


def program(line: str, result: str):
    space = {"torch": torch}
    exec(f"def f(x, i, m, m2):\n    {line}\n    return {result}\n", space)
    return space["f"]


@pytest.mark.parametrize("line", READS)
def test_reads(line):
    check(program("pass", line), inputs(), layout=False)


@pytest.mark.parametrize("line", WRITES)
def test_writes(line):
    check(program(line, "x * 1"), inputs(), layout=False)


# A list of flags fixes the batch, a slice from beyond the example's end bounds it.
FIXED = ("x[[True, False, True]]", "x[5:]")


@pytest.mark.parametrize("line", [x for x in (*READS, *WRITES) if x not in FIXED])
def test_dynamic(line):
    b = gp.Dim("b", min=3, max=64)
    fn = program(line, "x * 1") if line in WRITES else program("pass", line)
    shapes = ({0: b}, None, {0: b}, None)
    check(fn, inputs(), dynamic_shapes=shapes, others=[inputs(4), inputs(5)], layout=False)


@pytest.mark.parametrize(
    "line",
    [
        "x[p]",
        "x[:, p]",
        "x[p, 1:]",
        "x[..., p]",
        "x[None, p, i]",
        "x[:, p, i]",
        "x[m, p]",
        "x[i, p]",
        "x[p] = 1",
        "x[p, 1] += 2",
        "x[:, p] = x[:, 0]",
        "x[i, :, p] = 0",
        "x[p][p] = 3",
        "x[p > 0]",
        "x[..., p > 0]",
        "x[p, p > 1]",
        "x[p > 0] = 4",
        "x[:, p > 1] += 1",
        "x[-p - 1]",
        "x[[p.item(), 0]]",
        "x[p:]",
        "x[: p + 1, p:]",
        "x[p : p + 1] = 5",
    ],
)
def test_a_number_in_a_tensor_as_an_index(line):
    space = {"torch": torch}
    body = f"{line}; return x * 1" if "= " in line else f"return {line}"
    exec(f"def f(x, i, m, p):\n    {body}\n", space)
    x, i, m, _ = inputs()
    check(
        space["f"],
        (x, i, m, torch.tensor(1)),
        layout=False,
        others=[(x, i, m, torch.tensor(n)) for n in (0, 2)],
    )


def test_a_size_as_an_index():
    def f(x, y):
        n = y.shape[0]
        return x[n], x[:n], x[n:], x[-n:], x[n - 1 :: 2], x[:, :n]

    b = gp.Dim("b", min=1, max=3)
    args = (torch.randn(8, 4), torch.randn(2))
    others = [(args[0], torch.randn(n)) for n in (1, 3)]
    check(f, args, dynamic_shapes=(None, {0: b}), others=others, layout=False)


ENDS = {
    "an end": lambda x, y: x[:, : y.shape[0]],
    "a start and an end": lambda x, y: x[:, 1 : y.shape[0]],
    "an end beyond the example's": lambda x, y: x[:, : y.shape[0] + 9],
    "steps": lambda x, y: x[:, : y.shape[0] : 2],
    "a sum of sizes": lambda x, y: x[:, : x.shape[0] + y.shape[0]],
    "what is made of it": lambda x, y: (x[:, : y.shape[0]].reshape(-1) + 1).sum(),
    "its length": lambda x, y: x[:, : y.shape[0]].shape[1] * 2,
    "joined": lambda x, y: torch.cat([x[:, : y.shape[0]], x], 1),
    "written to": lambda x, y: x[:, : y.shape[0]].mul_(2),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_that_lies_within_or_beyond(name):
    """Sizes of two inputs decide it, and no `Dim` could say which: both are right."""
    n, m = gp.Dim("n", min=1), gp.Dim("m", min=1)
    args = (torch.randn(2, 5), torch.randn(3))
    others = [(torch.randn(2, a), torch.randn(b)) for a, b in ((7, 7), (3, 8), (1, 20), (9, 1))]
    check(ENDS[name], args, dynamic_shapes=({1: n}, {0: m}), others=others, layout=False)


def test_an_end_that_must_lie_within():
    """What is added to it needs its length: that is what is checked, and no more."""

    def added(x, y):
        return x[: y.shape[0]] + y

    shapes = ({0: gp.Dim("n")}, {0: gp.Dim("m")})
    args = (torch.randn(5), torch.randn(3))
    others = [(torch.randn(7), torch.randn(7)), (torch.randn(7), torch.randn(0))]
    ep = check(added, args, dynamic_shapes=shapes, others=others, layout=False)
    with pytest.raises(RuntimeError, match="n >= m"):
        ep.module()(torch.randn(3), torch.randn(5))


def test_a_third_dim_that_equals_the_length_of_a_slice():
    """It is told to be the dim that the example has it be, not the lesser of two."""

    def added(x, y, z):
        return x[: y.shape[0]] + z

    n, m, k = gp.dims("n", "m", "k")
    args = (torch.randn(5), torch.randn(3), torch.randn(3))
    with pytest.raises(gp.errors.ConstraintViolationError, match="k = m"):
        gp.export(added, args, dynamic_shapes=({0: n}, {0: m}, {0: k}))
    others = [(torch.randn(7), torch.randn(7), torch.randn(7))]
    check(added, args, dynamic_shapes=({0: n}, {0: m}, {0: m}), others=others, layout=False)
    with pytest.raises(gp.errors.ConstraintViolationError, match="m = 3"):
        gp.export(
            lambda x, y: x[: y.shape[0]] + torch.ones(3), args[:2], dynamic_shapes=({0: n}, {0: m})
        )


def test_iteration_and_unpacking():
    def f(x):
        a, b, c = x
        first, *rest = x.unbind(1)
        total = sum(row.sum() for row in x)
        return a + b * c, first + rest[-1], total, len(x), list(x)[1]

    check(f, (torch.randn(3, 4),))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("x[3]", "index 3 is out of bounds"),
        ("x[-4]", "index -4 is out of bounds"),
        ("x[0, 0, 0, 0]", "too many indices"),
        ("x[[7]]", None),
        ("x[i, i, i, i]", "too many indices"),
        ("x[1.5]", "only integers"),
        ("x[x]", "tensors used as indices must be"),
        ("x[::-1]", "step must be greater than zero"),
        ("x[m2[:2]]", None),
    ],
)
def test_indexing_errors(line, text):
    given = inputs()
    if text is None:
        # Only running can tell, as in eager: the program is captured and fails in the same way.
        with pytest.raises(IndexError):
            eval(line, dict(zip(("x", "i", "m", "m2"), given, strict=True)))
        return
    with pytest.raises((IndexError, TypeError, ValueError, RuntimeError), match=text):
        gp.export(program("pass", line), given)


def test_vmap_over_a_position():
    def body(rows, at):
        return torch.vmap(lambda row, i: row[i])(rows, at)

    n = gp.Dim("n")
    given = lambda n: (torch.randn(n, 4), torch.arange(n) % 4)
    shapes = {"rows": {0: n}, "at": {0: n}}
    check(body, given(3), dynamic_shapes=shapes, others=[given(6)])


def test_numbers_in_a_vmap_within_a_vmap():
    body = lambda x: torch.vmap(torch.vmap(lambda v: v * 2.5 + 1))(x)
    check(body, (torch.randn(3, 4),))
    check(body, (torch.arange(12).reshape(3, 4),))
