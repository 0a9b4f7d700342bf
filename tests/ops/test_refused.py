"""What an operator refuses in eager it refuses in capture, at the line of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp

f = torch.ones
i = lambda *sizes: torch.zeros(sizes, dtype=torch.int64)

REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "broadcast": (lambda a, b: a + b, (f(2, 3), f(2, 4))),
    "reshape to another count": (lambda a: a.reshape(4, 2), (f(2, 3),)),
    "reshape with two unknowns": (lambda a: a.reshape(-1, -1), (f(2, 3),)),
    "reshape of nothing": (lambda a: a.reshape(0, -1), (f(0, 3),)),
    "permute twice the same": (lambda a: a.permute(0, 0), (f(2, 3),)),
    "permute too few": (lambda a: a.permute(0), (f(2, 3),)),
    "t of a cube": (lambda a: a.t(), (f(2, 3, 4),)),
    "expand to fewer": (lambda a: a.expand(3), (f(2, 3),)),
    "expand of two": (lambda a: a.expand(4, 3), (f(2, 3),)),
    "select of a number": (lambda a: a.select(0, 0), (f(()),)),
    "select beyond": (lambda a: a[5], (f(2, 3),)),
    "dim beyond": (lambda a: a.sum(2), (f(2, 3),)),
    "flip of another dim": (lambda a: a.flip(2), (f(2, 3),)),
    "scatter along another dim": (lambda a, b: a.scatter(2, b, a), (f(2, 3), i(2, 3))),
    "diagonal of one dim": (lambda a: a.diagonal(0, 1, 1), (f(2, 3),)),
    "cat of other sizes": (lambda a, b: torch.cat([a, b]), (f(2, 3), f(2, 4))),
    "cat of other ranks": (lambda a, b: torch.cat([a, b]), (f(2, 3), f(2, 3, 1))),
    "stack of other sizes": (lambda a, b: torch.stack([a, b]), (f(2, 3), f(2, 4))),
    "stack of other ranks": (lambda a, b: torch.stack([a, b]), (f(2, 3), f(2))),
    "repeat of fewer": (lambda a: a.repeat(2), (f(2, 3),)),
    "split that does not add up": (lambda a: a.split([1, 1]), (f(3),)),
    "unfold beyond": (lambda a: a.unfold(0, 5, 1), (f(3),)),
    "padding below nothing": (lambda a: F.pad(a, (-2, -2)), (f(2, 3),)),
    "tril of a vector": (lambda a: a.tril(), (f(3),)),
    "triu of a vector": (lambda a: a.triu(), (f(3),)),
    "roll without shifts": (lambda a: a.roll((), ()), (f(3),)),
    "roll of another dim": (lambda a: a.roll(1, 2), (f(3),)),
    "tensor_split of a number": (lambda a: a.tensor_split(2), (f(()),)),
    "unflatten to nothing": (lambda a: a.unflatten(0, ()), (f(3),)),
    "zeros of less than nothing": (lambda a: torch.zeros(-1) + a, (f(()),)),
    "mm of vectors": (torch.mm, (f(2), f(2))),
    "mm of other sizes": (torch.mm, (f(2, 3), f(2, 3))),
    "mm of other dtypes": (torch.mm, (f(2, 3), f(3, 2).double())),
    "bmm of matrices": (torch.bmm, (f(2, 3), f(3, 2))),
    "bmm of other batches": (torch.bmm, (f(2, 3, 3), f(3, 3, 3))),
    "matmul of a number": (torch.matmul, (f(()), f(3))),
    "matmul of other dtypes": (torch.matmul, (f(2, 3), f(3).double())),
    "linear of other sizes": (F.linear, (f(2, 3), f(4, 2))),
    "linear of other dtypes": (F.linear, (f(2, 3), f(4, 3).double())),
    "einsum with a term too many": (lambda a: torch.einsum("ij,jk", a), (f(2, 3),)),
    "einsum with an index too many": (lambda a, b: torch.einsum("ijk,j", a, b), (f(2, 3), f(3))),
    "einsum of other sizes": (lambda a, b: torch.einsum("ij,jk", a, b), (f(2, 3), f(4, 2))),
    "einsum of other dtypes": (
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        (f(2, 3), f(3, 2).double()),
    ),
    "trace of a cube": (torch.trace, (f(2, 2, 2),)),
    "cross of two": (torch.linalg.cross, (f(5, 2), f(5, 2))),
    "too many indices": (lambda a, b: a[b, b, b], (f(2, 3), i(2))),
    "index that is no integer": (lambda a, b: a[b], (f(2, 3), f(2))),
    "put of another dtype": (lambda a, b: a.index_put((b,), a.double()), (f(2, 3), i(2))),
    "gather with floats": (lambda a, b: a.gather(0, b), (f(2, 3), f(2, 3))),
    "gather of another rank": (lambda a, b: a.gather(0, b), (f(2, 3), i(2))),
    "gather beyond": (lambda a, b: a.gather(0, b), (f(2, 3), i(2, 4))),
    "scatter of another rank": (lambda a, b: a.scatter(0, b, a), (f(2, 3), i(2))),
    "scatter of another dtype": (lambda a, b: a.scatter(0, b, a.double()), (f(2, 3), i(2, 3))),
    "scatter with floats": (lambda a, b: a.scatter(0, b, a), (f(2, 3), f(2, 3))),
    "embedding by floats": (F.embedding, (f(2), f(4, 3))),
    "embedding of a vector": (F.embedding, (i(2), f(4))),
    "one_hot of unknown classes": (lambda a: F.one_hot(a, -2), (i(2),)),
    "mean of integers": (torch.mean, (i(2, 3),)),
    "mean of integers by dim": (lambda a: a.mean(0), (i(2, 3),)),
    "negated truth": (lambda a: -a, (f(2) > 0,)),
    "prelu of other channels": (F.prelu, (f(2, 8, 3), f(9))),
    "conv of other channels": (F.conv1d, (f(1, 2, 5), f(3, 4, 3))),
    "conv of other dtypes": (F.conv1d, (f(1, 2, 5), f(3, 2, 3).double())),
    "conv of a vector": (F.conv1d, (f(5), f(3, 2, 3))),
    "conv with a kernel too large": (F.conv1d, (f(1, 2, 2), f(3, 2, 3))),
    "cat with a number": (lambda a, b: torch.cat([a, b]), (f(2), f(()))),
    "item of many": (lambda a: a.item(), (f(3),)),
    "truth of many": (lambda a: a if a else -a, (f(3),)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, inputs = REFUSED[name]
    program = lambda *args: fn(*args)
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)):
        program(*inputs)
    with pytest.raises(gp.errors.UserError) as raised:
        gp.export(program, inputs)
    assert "test_refused.py:" in str(raised.value)


def test_one_element_is_asked_of_a_dynamic_size() -> None:
    with pytest.raises(gp.errors.ConstraintViolationError) as raised:
        gp.export(lambda x: x.item(), (f(1),), dynamic_shapes={"x": {0: gp.Dim("n")}})
    assert "n = 1" in str(raised.value)


def test_what_is_cut_off_has_to_be_there() -> None:
    ep = gp.export(lambda x: F.pad(x, (-2, -2)), (f(6),), dynamic_shapes={"x": {0: gp.Dim.AUTO}})
    (limits,) = ep.range_constraints.values()
    assert limits.lower == 4
