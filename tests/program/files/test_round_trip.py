"""`gp.save` and `gp.load`: everything comes back, and is shared, checked and named as before."""

from __future__ import annotations

import collections
import dataclasses
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.errors import SerializationError
from graphport.program.files import archive
from graphport.program.files.values import DTYPES
from tests.helpers import compare
from tests.program.saved import check_round_trip, loaded, saved

# Programs


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@dataclasses.dataclass
class Options:
    weight: torch.Tensor
    bias: torch.Tensor | None = None


pytree._register_namedtuple(Pair, serialized_type_name="tests.program.files.test_round_trip.Pair")
gp.register_dataclass(Options, serialized_type_name="tests.program.files.test_round_trip.Options")


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tied = self.linear
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(8.0).reshape(2, 4).t(), persistent=False)
        self.factor = torch.tensor(2.0)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.count.add_(1)
        return self.tied(self.linear(x)) @ self.table * self.factor * scale


def nested_control_flow(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return torch.cond(y.sum() > 5, lambda y: y + x.shape[0], lambda y: y - 1, (y,))

    first = torch.cond(x.sum() > 0, inner, lambda y: y.sin(), (x,))
    total = torch.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s * 2), (n * 0, x))[1]
    return first, total


def data_dependent(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = n.item()
    torch._check(count >= 2)
    torch._check(count <= 9)
    return torch.ones(count, 3) * 2, x[x > 0], x.nonzero()


def writes_to_inputs(x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
    x.mul_(2)
    cache["k"][:, 1:].add_(1)
    return x + cache["k"].sum()


BATCH = gp.Dim("batch", min=1, max=64)
CASES: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any], Any]]] = {
    "module": lambda: (Counter(), (torch.randn(3, 4),), {"scale": 2.0}, {"x": {0: BATCH}}),
    "control_flow": lambda: (
        nested_control_flow,
        (torch.randn(3, 4), torch.tensor(3)),
        {},
        ({0: BATCH}, None),
    ),
    "data": lambda: (data_dependent, (torch.randn(3, 4), torch.tensor(4)), {}, None),
    "writes": lambda: (
        writes_to_inputs,
        (torch.randn(2), {"k": torch.randn(2, 3)}),
        {},
        ({0: BATCH}, {"k": {0: BATCH}}),
    ),
    "derived": lambda: (
        lambda x, y, z: (x + y[1:], z[::2] * x),
        (torch.randn(4), torch.randn(5), torch.randn(8)),
        {},
        ({0: BATCH}, {0: BATCH + 1}, {0: 2 * BATCH}),
    ),
    "auto": lambda: (
        lambda x, y: (x.reshape(-1, 2), x[: y.shape[0] // 2 + 1], y.shape[0] * 1.5),
        (torch.randn(6, 4), torch.randn(7)),
        {},
        ({0: gp.Dim.AUTO, 1: gp.Dim.AUTO}, {0: gp.Dim.DYNAMIC}),
    ),
    "numbers": lambda: (
        lambda x, n, s: x * n + s,
        (torch.randn(3), 4, 0.5),
        {},
        (None, gp.Dim.DYNAMIC, None),
    ),
    "constants": lambda: (
        lambda x, a, b, c, d, e: x.to(d) + 1,
        (torch.ones(2), None, "text\n\"'", complex(1, -0.0), torch.float64, -0.0),
        {},
        None,
    ),
    "containers": lambda: (
        lambda p, o, d, q: [collections.OrderedDict(z=p.a, a=o.weight), Pair(p.b, d[1]), (q[0],)],
        (
            Pair(torch.ones(1), torch.zeros(2)),
            Options(torch.ones(3)),
            {1: torch.ones(1), "k": [torch.ones(2)]},
            collections.deque([torch.ones(1)], 4),
        ),
        {},
        None,
    ),
    "return_types": lambda: (lambda x: (x.sort(), x.max(0)), (torch.randn(3, 2),), {}, None),
    "no_tensors": lambda: (lambda n: n, (3,), {}, None),
    "builtin_names": lambda: (
        lambda input, max, type: input + max * type,
        (torch.ones(2), torch.ones(2), 3),
        {},
        None,
    ),
    "any_keyword": lambda: (
        lambda **kwargs: kwargs["a b"] + kwargs["class"],
        (),
        {"a b": torch.ones(1), "class": torch.ones(1)},
        None,
    ),
    "assertions": lambda: (
        lambda x, y: x.reshape(y.shape[0], -1),
        (torch.randn(6, 2), torch.randn(4)),
        {},
        ({0: gp.Dim.AUTO}, {0: gp.Dim.AUTO}),
    ),
}


def exported(name: str) -> tuple[gp.ExportedProgram, Any, tuple[Any, dict[str, Any]]]:
    target, args, kwargs, shapes = CASES[name]()
    return gp.export(target, args, kwargs, dynamic_shapes=shapes), target, (args, kwargs)


@pytest.mark.parametrize("name", CASES)
def test_everything_comes_back(name: str) -> None:
    ep, target, inputs = exported(name)
    back = check_round_trip(ep)
    back.validate()
    compare(back, target, inputs)


def test_results_at_other_sizes_and_refusals_are_the_same() -> None:
    ep, _, _ = exported("derived")
    ours, theirs = loaded(saved(ep)).module(), ep.module()
    for n in (1, 2, 9, 64):
        inputs = torch.randn(n), torch.randn(n + 1), torch.randn(2 * n)
        for a, b in zip(ours(*inputs), theirs(*inputs), strict=True):
            assert torch.equal(a, b)
    for sizes in ((3, 4, 7), (3, 5, 6), (65, 66, 130), (0, 1, 0)):
        inputs = tuple(map(torch.randn, sizes))
        with pytest.raises(RuntimeError) as mine:
            ours(*inputs)
        with pytest.raises(RuntimeError) as original:
            theirs(*inputs)
        assert str(mine.value) == str(original.value)


def test_small_transformer() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 5, 16)
    ep = gp.export(model, (x,), dynamic_shapes=({0: BATCH, 1: gp.Dim("length", max=32)},))
    back = check_round_trip(ep)
    compare(back, model, ((torch.randn(3, 7, 16),), {}), rtol=1e-4, atol=1e-5)


# Tensors


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str) -> None:
    octets = torch.arange(64, dtype=torch.uint8) % (2 if name == "bool" else 128)
    values = octets.view(DTYPES[name])
    ep = gp.export(lambda x: x, (values,))
    back = check_round_trip(ep)
    assert back.example_inputs[0][0].dtype is DTYPES[name]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
def test_tensors_of_any_shape(shape: tuple[int, ...]) -> None:
    check_round_trip(gp.export(lambda x: x.clone(), (torch.randn(shape),)))


def test_strides_and_sharing() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    inputs = (base, base.t(), base[1:, ::2], base[2], torch.ones(3).expand(5, 3), base[:0])
    back = check_round_trip(gp.export(lambda *xs: xs[0] + 1, inputs))
    first, transposed, *_ = back.example_inputs[0]
    first[0, 5] = -1
    assert transposed[5, 0] == -1


def test_only_the_part_of_a_storage_that_is_used_is_written() -> None:
    ep = gp.export(lambda x: x + 1, (torch.zeros(1 << 20)[100:110],))
    assert len(saved(ep)) < 10_000
    check_round_trip(ep)


def test_conjugated_and_negated_views() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    back = loaded(saved(gp.export(lambda a, b: a + b, (z.conj(), z.conj().imag))))
    assert torch.equal(back.example_inputs[0][0], z.conj().resolve_conj())
    assert torch.equal(back.example_inputs[0][1], z.conj().imag.resolve_neg())


def test_parameters_stay_parameters() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    back = loaded(saved(gp.export(model, (torch.ones(1, 2),))))
    assert type(back.state_dict["weight"]) is nn.Parameter
    assert back.state_dict["weight"].requires_grad
    assert not back.state_dict["bias"].requires_grad
    back.module()(torch.ones(1, 2)).sum().backward()
    assert back.state_dict["weight"].grad is not None


def test_other_tools_can_read_the_tensors() -> None:
    model = nn.Linear(2, 3)
    data = saved(gp.export(model, (torch.ones(1, 2),)))
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        assert file.namelist() == [archive.PROGRAM, archive.TENSORS]
        tensors = file.read(archive.TENSORS)
    assert b'"weight":{"data_offsets":[0,24],"dtype":"F32","shape":[3,2]}' in tensors


# Files


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    ep, _, _ = exported("module")
    again, _, _ = exported("no_tensors")
    path = tmp_path / "program.gpx"
    gp.save(ep, path)
    assert path.read_bytes() == saved(ep) == saved(ep)
    gp.save(again, str(path))
    assert path.read_bytes() == saved(again)
    assert os.listdir(tmp_path) == ["program.gpx"]


def test_tensors_are_mapped_and_writing_leaves_the_file_alone(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    path = tmp_path / "program.gpx"
    gp.save(gp.export(model, (torch.ones(1, 64),)), path)
    before = path.read_bytes()
    back = gp.load(path)
    maps = Path("/proc/self/maps").read_text()
    assert str(path) in maps
    with torch.no_grad():
        back.state_dict["weight"].zero_()
    assert path.read_bytes() == before
    assert torch.equal(gp.load(path, verify=False).state_dict["weight"], model.weight)


def test_a_file_that_is_replaced_does_not_change_what_was_loaded(tmp_path: Path) -> None:
    path = tmp_path / "program.gpx"
    model = nn.Linear(8, 8)
    gp.save(gp.export(model, (torch.ones(1, 8),)), path)
    back = gp.load(path)
    gp.save(gp.export(nn.Linear(8, 8), (torch.ones(1, 8),)), path)
    assert torch.equal(back.state_dict["weight"], model.weight)


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "program.gpx"
    path.write_bytes(b"old")
    ep = gp.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    ep.graph_module.meta["mine"] = object()
    with pytest.raises(SerializationError, match=r"a builtins\.object cannot be saved"):
        gp.save(ep, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["program.gpx"]


def test_files_are_read_from_where_they_stand() -> None:
    ep, _, _ = exported("module")
    file = io.BytesIO(b"before" + saved(ep))
    file.seek(6)
    assert str(gp.load(file)) == str(ep)


def test_every_field_is_saved() -> None:
    """Whoever adds a field has to say how it is saved."""
    fields = {f.name for f in dataclasses.fields(gp.ExportedProgram)}
    assert fields == {
        "graph_module",
        "graph_signature",
        "state_dict",
        "constants",
        "range_constraints",
        "call_spec",
        "example_inputs",
        "checks",
        "argument_names",
        "positional",
        "module_call_graph",
        "dialect",
        "notes",
        "scope",
        "takes_gradients",  # of the user's code, which no file has
        "from_file",  # which is what a file makes it, and no file says
    }


def shrinking(steps: int) -> gp.ExportedProgram:
    """Sizes that mention the one before them twice: n - n//3, and that of it, ..."""

    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        for _ in range(steps):
            n = n - n // 3
        return x.new_zeros(n)

    return gp.export(f, (torch.ones(900),), dynamic_shapes=({0: gp.Dim("n", min=2)},))


def test_sizes_that_share_their_parts() -> None:
    ep = shrinking(11)
    back = loaded(saved(ep))
    assert back.module()(torch.ones(100)).shape == ep.module()(torch.ones(100)).shape


def test_sizes_that_are_products_by_what_is_known_of_them() -> None:
    """3*n - max(3, n) is (3*n//max(3, n) - 1) * max(3, n) where max(3, n) divides 3*n."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        rows = max(x.shape[0], 3)
        if x.numel() % rows == 0:
            x.flatten().reshape(rows, -1).unfold(-1, 2, 1).select(-1, 0).add_(1)
        return x + 1

    ep = gp.export(fn, (torch.rand(2, 3),), dynamic_shapes=({0: gp.Dim.AUTO},))
    compare(check_round_trip(ep), fn, ((torch.rand(4, 3),), {}))


def test_sizes_that_could_not_be_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ep = shrinking(4)
    monkeypatch.setattr("graphport.program.files.json_reader.EXPRESSION_NODES", 20)
    with pytest.raises(SerializationError, match="a size takes too many operations to be saved"):
        gp.save(ep, io.BytesIO())


# What cannot be saved


@dataclasses.dataclass
class Nameless:
    x: torch.Tensor


pytree.register_pytree_node(Nameless, lambda v: ([v.x], None), lambda xs, _: Nameless(*xs))


def test_a_container_without_a_name() -> None:
    ep = gp.export(lambda x: Nameless(x + 1), (torch.ones(1),))
    with pytest.raises(SerializationError) as error:
        gp.save(ep, io.BytesIO())
    assert "the container Nameless has no name to be saved under" in str(error.value)
    assert "gp.register_dataclass(Nameless, serialized_type_name=" in str(error.value)


def test_weights_without_data() -> None:
    ep = gp.export(nn.Linear(2, 2).to("meta"), (torch.ones(1, 2, device="meta"),))
    with pytest.raises(SerializationError, match="'weight' is on the meta device: there is no dat"):
        gp.save(ep, io.BytesIO())


def test_not_a_program() -> None:
    with pytest.raises(SerializationError, match="takes an ExportedProgram, got Linear"):
        gp.save(nn.Linear(1, 1), io.BytesIO())  # type: ignore[arg-type]


def test_text_files() -> None:
    ep, _, _ = exported("no_tensors")
    with pytest.raises(SerializationError, match="a path or a binary file, got StringIO"):
        gp.save(ep, io.StringIO())
    with pytest.raises(SerializationError, match="a path or a binary file, got StringIO"):
        gp.load(io.StringIO())


def test_metadata_of_another_kind() -> None:
    ep = gp.export(lambda x: x + 1, (torch.ones(1),))
    next(n for n in ep.graph.nodes if n.op == "call_function").meta["mine"] = object()
    with pytest.raises(SerializationError, match=r"node add, meta\['mine'\]"):
        gp.save(ep, io.BytesIO())


def test_an_example_input_that_is_no_data() -> None:
    ep = gp.export(lambda x: x + 1, (torch.ones(1),))
    ep.example_inputs = ((object(),), {})
    with pytest.raises(SerializationError, match="example input 0"):
        gp.save(ep, io.BytesIO())
