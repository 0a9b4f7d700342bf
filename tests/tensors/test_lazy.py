"""Tensors without memory: what operators make of them is what they make of real ones."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphport.errors import NoDataError
from graphport.tensors.lazy import (
    WeightlessTensor,
    drop_data,
    lacks_data,
    refer_to_file,
    refer_to_tensor,
)
from graphport.tensors.lazy_source import FileRegion, Geometry


def in_file(path: Path, t: Tensor) -> WeightlessTensor:
    """A tensor whose data is in a file, some bytes from its beginning."""
    path.write_bytes(b"before" + t.contiguous().view(torch.uint8).numpy().tobytes() + b"after")
    nbytes = t.numel() * t.element_size()
    region = FileRegion(path, "w", 6, nbytes, FileRegion.stamp_of(path))
    return refer_to_file(region, Geometry.of(t), torch.device("cpu"))


def assert_alike(ours: Any, real: Any) -> None:
    """The same layout in memory, and the same numbers."""
    if isinstance(real, (list, tuple)):
        for a, b in zip(ours, real, strict=True):
            assert_alike(a, b)
        return
    assert type(ours) is WeightlessTensor
    assert Geometry.of(ours) == Geometry.of(real) == Geometry.of(ours._inner)
    assert ours.device == real.device
    torch.testing.assert_close(ours.read(), real, equal_nan=True)


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda t: t.half(),
    "to dtype": lambda t: t.to(torch.float64),
    "transpose": lambda t: t.t(),
    "contiguous": lambda t: t.t().contiguous(),
    "slice": lambda t: t[1:, ::2],
    "select": lambda t: t[1],
    "flatten": lambda t: t.flatten(),
    "view as another dtype": lambda t: t.view(torch.int32),
    "chunk": lambda t: t.chunk(2, dim=1),
    "cat": lambda t: torch.cat([t, t.t()[:, :3].t()], dim=0),
    "stack": lambda t: torch.stack([t, t + 1]),
    "arithmetic": lambda t: t * 2 + torch.arange(6.0),
    "matmul": lambda t: t @ t.t(),
    "norm": lambda t: t.norm(dim=0, keepdim=True),
    "index": lambda t: t[torch.tensor([2, 0])],
    "zeros like": lambda t: torch.zeros_like(t),
    "new": lambda t: t.new_ones(3),
    "max": lambda t: t.max(dim=1),
    "clone": lambda t: t.clone(),
    "channels last": lambda t: t.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_computed_when_they_are_read(name: str, tmp_path: Path) -> None:
    real = torch.randn(4, 6)
    want = CALLS[name](real)
    assert_alike(CALLS[name](in_file(tmp_path / "w", real)), want)
    unknown = CALLS[name](drop_data(real))
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (unknown, want)), strict=True):
        assert type(a) is WeightlessTensor and Geometry.of(a) == Geometry.of(b)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "fill": lambda t: t.fill_(2.0),
    "zero": lambda t: t.zero_(),
    "row": lambda t: t[1].zero_(),
    "column of a transpose": lambda t: t.t()[2].add_(1),
    "setitem": lambda t: t.__setitem__((slice(1, 3), 0), 5.0),
    "mask": lambda t: t.__setitem__(torch.ones(4, 6).tril().bool(), 7.0),
    "scale": lambda t: t.mul_(torch.arange(6.0)),
    "out": lambda t: torch.add(torch.ones(4, 6), 1, out=t),
    "copy": lambda t: t.copy_(torch.arange(24.0).view(4, 6)),
    "copy of another dtype": lambda t: t.copy_(torch.arange(6)),
    "copy of a part": lambda t: t[:2].copy_(t[2:].clone()),
    "own transpose": lambda t: t[:, :4].copy_(t[:, :4].t().clone()),
    "itself": lambda t: t[0].copy_(t[1]),
    "of the whole from a part": lambda t: t.copy_(t[:1].clone()),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_remembered(name: str, tmp_path: Path) -> None:
    real = torch.randn(4, 6)
    ours = in_file(tmp_path / "w", real)
    view, earlier = ours[1:], ours + 0
    real_view, real_earlier = real[1:], real + 0
    WRITES[name](real)
    WRITES[name](ours)
    assert_alike(ours, real)
    assert_alike(view, real_view)
    assert_alike(earlier, real_earlier)


STEPS: tuple[Callable[[Tensor, Tensor, random.Random], Any], ...] = (
    lambda t, u, r: t.t() if t.ndim == 2 else t,
    lambda t, u, r: t[r.randrange(t.shape[0]) :] if t.ndim else t,
    lambda t, u, r: t[..., :: r.choice((1, 2))] if t.ndim else t,
    lambda t, u, r: t.reshape(-1),
    lambda t, u, r: t.unsqueeze(0),
    lambda t, u, r: t.clone(),
    lambda t, u, r: t.double().mul(0.5).to(t.dtype),
    lambda t, u, r: t.mul_(u.sum()),
    lambda t, u, r: t.copy_(u.flatten()[:1].clone()),
    lambda t, u, r: t.zero_(),
    lambda t, u, r: torch.where(t > 0, t, t + 1),
    lambda t, u, r: t.cumsum(0) if t.ndim else t,
)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_of_views_and_writes(seed: int, tmp_path: Path) -> None:
    start = torch.randint(-3, 4, (4, 6)).float()
    steps = random.Random(seed)
    chosen = [(steps.randrange(len(STEPS) + 1), steps.random(), steps.random()) for _ in range(12)]

    def run(first: Tensor) -> list[Tensor]:
        r = random.Random(seed)
        tensors = [first, first[:2]]
        for step, which, other in chosen:
            if step == len(STEPS):
                tensors[int(which * len(tensors))].add_(r.randrange(5))
                continue
            t, u = (tensors[int(x * len(tensors))] for x in (which, other))
            tensors.append(STEPS[step](t, u, r))
        return tensors

    ours = run(in_file(tmp_path / "w", start))
    assert_alike(ours, run(start))


def test_numbers_that_are_asked_for_are_read(tmp_path: Path) -> None:
    real = torch.arange(6.0).view(2, 3)
    ours = in_file(tmp_path / "w", real)
    assert ours.tolist() == real.tolist() and ours[1, 2].item() == 5.0
    assert bool((ours >= 0).all()) and int(ours[1, 0]) == 3
    np.testing.assert_array_equal(ours.numpy(), real.numpy())
    assert torch.equal(ours, real) and torch.allclose(ours, real)
    assert ours.nonzero().tolist() == real.nonzero().tolist()
    target = torch.zeros(2, 3)
    target.copy_(ours)
    target[0] = ours[1]
    assert target.tolist() == [[3, 4, 5], [3, 4, 5]]


ASKING: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t.sum().item(),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "bool": lambda t: bool(t.sum()),
    "nonzero": lambda t: t.nonzero(),
    "equal": lambda t: torch.equal(t, t),
    "copy to memory": lambda t: torch.zeros(2, 3).copy_(t),
    "data_ptr": lambda t: t.data_ptr(),
    "pickle": lambda t: copy.copy(t),
    "read": lambda t: t.read(),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", ASKING)
def test_numbers_that_are_not_there_are_an_error(name: str) -> None:
    with pytest.raises(NoDataError, match="takes no memory"):
        ASKING[name](drop_data(torch.ones(2, 3)))


def test_drawn_numbers_do_not_make_weights_known() -> None:
    weight = drop_data(torch.ones(2, 3))
    weight.normal_()
    weight.copy_(torch.empty_like(weight).uniform_())
    assert not weight.has_data
    nn.init.zeros_(weight)
    assert weight.has_data and weight.read().tolist() == [[0.0] * 3] * 2
    weight.mul_(torch.rand_like(weight))
    assert not weight.has_data


INITS = [
    lambda t: nn.init.kaiming_uniform_(t),
    lambda t: nn.init.xavier_normal_(t),
    lambda t: nn.init.normal_(t, generator=torch.Generator()),
    lambda t: nn.init.orthogonal_(t),
    lambda t: nn.init.eye_(t),
    lambda t: nn.init.sparse_(t, 0.5),
    lambda t: nn.init.ones_(t),
    lambda t: nn.init.constant_(t, 3.0),
    lambda t: nn.init.dirac_(t[..., None]),
]


@pytest.mark.parametrize("number", range(len(INITS)))
def test_initialisers_run(number: int) -> None:
    weight = nn.Parameter(drop_data(torch.ones(6, 4)))
    with torch.no_grad():
        INITS[number](weight)
    assert weight.shape == (6, 4) and weight.requires_grad


def test_in_place_views_change_the_tensor_itself(tmp_path: Path) -> None:
    real = torch.randn(2, 3)
    t = in_file(tmp_path / "w", real)
    t.t_()
    assert t.shape == (3, 2) and t.stride() == (1, 3)
    t.unsqueeze_(0)
    assert_alike(t, real.t()[None])
    t.squeeze_(0).t_()
    assert t.reference is not None
    t.resize_(7)
    assert t.shape == (7,) and not t.has_data


def test_an_operator_that_writes_to_several_parts_of_one_memory(tmp_path: Path) -> None:
    real = torch.randn(4, 6)
    t = in_file(tmp_path / "w", real)
    for x in (t, real):
        torch._foreach_add_([x[0], x[2:]], 1.0)
    assert_alike(t, real)


def test_an_operator_that_writes_to_real_tensors_too(tmp_path: Path) -> None:
    real, other = torch.randn(4, 6), torch.ones(2)
    t = in_file(tmp_path / "w", real)
    torch._foreach_mul_([t, other], 3.0)
    assert_alike(t, real * 3)
    assert other.tolist() == [3, 3]


COMPLEX: dict[str, Callable[[Tensor], Any]] = {
    "conj": lambda t: t.conj(),
    "computed": lambda t: t.conj() + 1j,
    "imaginary part": lambda t: t.conj().imag,
    "negative view": lambda t: torch._neg_view(t.real)[1:],
    "matmul": lambda t: t.conj().t() @ t,
    "written to": lambda t: t.conj().mul_(2j),
    "written to its memory": lambda t: (t.conj(), t.mul_(2j))[0],
    "copied into": lambda t: torch.zeros_like(t).copy_(t.conj()),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_conjugates_are_views(name: str, tmp_path: Path) -> None:
    real = torch.randn(3, 2, dtype=torch.complex64)
    t = in_file(tmp_path / "w", real)
    shown = COMPLEX[name](t)
    assert_alike(shown, COMPLEX[name](real))
    assert_alike(t, real)
    assert not shown.is_conj() or shown.reference is None


def test_only_torchs_own_operators_are_known_not_to_look(tmp_path: Path) -> None:
    with torch.library._scoped_library("weightless_tests", "FRAGMENT") as library:
        library.define("twice_like(Tensor x) -> Tensor")
        library.impl("twice_like", lambda x: x * 2, "CompositeExplicitAutograd")
        real = torch.randn(3)
        op = torch.ops.weightless_tests.twice_like.default
        assert_alike(op(in_file(tmp_path / "w", real)), op(real))


def test_layouts_that_are_dense_but_not_row_by_row(tmp_path: Path) -> None:
    real = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)
    t = drop_data(torch.empty(1, 3, 4, 4).to(memory_format=torch.channels_last))
    t.copy_(real.contiguous())
    assert_alike(t, real)
    t.copy_(in_file(tmp_path / "w", real.contiguous()))
    assert_alike(t, real)


def test_data_and_set_exchange_the_memory(tmp_path: Path) -> None:
    real = torch.randn(4, 6)
    p = nn.Parameter(drop_data(torch.ones(2, 3)))
    p.data = in_file(tmp_path / "w", real)
    assert isinstance(p, nn.Parameter) and p.requires_grad
    assert_alike(p.detach(), real)
    p.data = real.half()
    assert p.dtype is torch.float16 and torch.equal(p.read(), real.half())
    t = drop_data(torch.ones(1))
    t.set_(in_file(tmp_path / "v", real))
    assert_alike(t, real)


def test_copies_share_what_the_originals_shared(tmp_path: Path) -> None:
    a = in_file(tmp_path / "w", torch.arange(6.0))
    b, c = copy.deepcopy([a, a[2:]])
    b.zero_()
    assert c.read().tolist() == [0.0] * 4 and a.read().tolist() == [0, 1, 2, 3, 4, 5]
    parameter = nn.Parameter(a)
    again = copy.deepcopy(parameter)
    assert isinstance(again, nn.Parameter) and again.requires_grad and again is not parameter


def test_tensors_of_one_memory_stay_so() -> None:
    real = torch.ones(4)
    a, b = drop_data(real), drop_data(real[1:])
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata
    assert b.storage_offset() == 1


def test_a_changed_tensor_is_no_source() -> None:
    given = torch.zeros(1 << 16)
    t = drop_data(torch.ones(1 << 16))
    t.copy_(given)
    assert torch.equal(t.read(), given)
    given.add_(1)
    with pytest.raises(NoDataError, match="written to after"):
        t.read()


def test_a_tensor_of_inference_mode_is_copied() -> None:
    with torch.inference_mode():
        given = torch.zeros(1 << 16)
        t = drop_data(torch.ones(1 << 16))
        t.copy_(given)
        given.add_(1)
        t.add_(torch.ones(4, 1 << 14).sum(0)[0])
    assert torch.equal(t.read(), torch.full((1 << 16,), 4.0))


def test_a_changed_file_is_no_source(tmp_path: Path) -> None:
    t = in_file(tmp_path / "w", torch.zeros(4))
    (tmp_path / "w").write_bytes(b"other")
    with pytest.raises(NoDataError, match="has been written to since"):
        t.read()
    (tmp_path / "w").unlink()
    with pytest.raises(NoDataError, match="No such file"):
        t.tolist()


def test_references_are_streamed(tmp_path: Path) -> None:
    real = torch.randn(4, 6)
    t = in_file(tmp_path / "w", real)
    for ours, want in ((t, real), (t[1:3], real[1:3]), (t[2, 1:4], real[2, 1:4])):
        reference = ours.reference
        assert reference is not None
        data = b"".join(reference.chunks(limit=7))
        assert data == want.contiguous().numpy().tobytes() and reference.nbytes == len(data)
    assert t.t().reference is None and (t + 1).reference is None
    assert drop_data(real).reference is None


def test_how_it_reads(tmp_path: Path) -> None:
    size = "size=[2], dtype=torch.float32, device=cpu"
    assert repr(drop_data(torch.ones(2))) == f"WeightlessTensor(no data, {size})"
    assert repr(in_file(tmp_path / "f", torch.ones(2))) == f"WeightlessTensor(data in f: w, {size})"
    computed = refer_to_tensor(torch.ones(2))
    assert repr(computed) == f"WeightlessTensor(data by computation, {size})"


def test_which_tensors_lack_data() -> None:
    assert lacks_data(drop_data(torch.ones(2))) and lacks_data(torch.ones(2, device="meta"))
    assert not lacks_data(torch.ones(2)) and not lacks_data(torch.ones(2).to_sparse())


def test_other_devices_and_the_meta_device(tmp_path: Path) -> None:
    t = in_file(tmp_path / "w", torch.ones(2))
    assert type(t.to("meta")) is Tensor and t.to("meta").is_meta
    assert t.cpu() is t and t.is_cpu
