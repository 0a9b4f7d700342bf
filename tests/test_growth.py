"""What programs cost by their size: twice as large is about twice the work, and depth has no end.

Work is counted in calls of functions, which is the same on every machine.
"""

import io
import sys

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import ExportError, ForwardError, UnsupportedError
from graphport.partition import Device, Partitioner, PartitionerConfig


def count_calls(run):
    """Calls of Python and of C that a function makes.

    Without those of torch's `named_modules`, a generator in a generator for each level of modules.
    """
    count = 0

    def note(frame, event, arg):
        nonlocal count
        if frame.f_code is not nn.Module.named_modules.__code__:
            count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


class Nested(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.c = child

    def forward(self, x):
        x = x + 1
        return x if self.c is None else self.c(x)


def nested(n):
    module = None
    for _ in range(n):
        module = Nested(module)
    return module, (torch.randn(3),)


class Each(nn.Module):
    def forward(self, xs):
        return [x + 1 for x in xs]


def many_inputs(n):
    return Each(), ([torch.randn(2) for _ in range(n)],)


class Row(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(n))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def row(n):
    return Row(n), (torch.randn(3, 2),)


class Writes(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        y = x * 1
        for _ in range(self.n):
            y.add_(1)
        return y


def writes(n):
    return Writes(n), (torch.randn(3),)


def partition(ep):
    devices = [Device("a", 10**9, 0), Device("b", 10**9, 1)]
    return Partitioner().partition_graph(ep, None, PartitionerConfig(devices))


MODELS = {
    "nested": (nested, 30),
    "inputs": (many_inputs, 100),
    "row": (row, 40),
    "writes": (writes, 100),
}


def file_of(ep):
    file = io.BytesIO()
    gp.save(ep, file)
    file.seek(0)
    return file


USES = {
    "export": lambda ep, model, args: gp.export(model, args),
    "strict": lambda ep, model, args: gp.export(model, args, strict=True),
    "draft": lambda ep, model, args: gp.draft_export(model, args),
    "module": lambda ep, model, args: ep.module()(*args),
    "print": lambda ep, model, args: str(ep),
    "unflatten": lambda ep, model, args: gp.unflatten(ep)(*args),
    "decompositions": lambda ep, model, args: ep.run_decompositions(),
    "to_torch": lambda ep, model, args: ep.to_torch(),
    "from_torch": lambda ep, model, args: gp.from_torch(ep.to_torch()),
    "save": lambda ep, model, args: file_of(ep),
    "load": lambda ep, model, args: gp.load(file_of(ep)),
    "onnx": lambda ep, model, args: gp.onnx.export(ep),
    "partition": lambda ep, model, args: partition(ep),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(("make", "n"), MODELS.values(), ids=MODELS)
def test_work_grows_with_the_program(make, n, use):
    counts = []
    for size in (3, n, 4 * n):  # the first one loads what is loaded on demand
        model, args = make(size)
        ep = gp.export(model, args)
        counts.append(count_calls(lambda: use(ep, model, args)))  # noqa: B023
    # Each operator notes the calls that it is within: their number is part of the result.
    is_traced_deep = make is nested and use in (USES["export"], USES["strict"], USES["draft"])
    assert counts[2] <= (8 if is_traced_deep else 5.5) * counts[1]


# Depth


@pytest.fixture
def deep_python():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(4000)
    yield
    sys.setrecursionlimit(before)


def test_modules_within_one_another(deep_python, tmp_path):
    model, args = nested(500)
    ep = gp.export(model, args)
    expected = model(*args)
    torch.testing.assert_close(ep.module()(*args), expected)
    torch.testing.assert_close(gp.unflatten(ep)(*args), expected)
    torch.testing.assert_close(gp.onnx.export(ep)(*args), expected)
    torch.testing.assert_close(ep.run_decompositions().module()(*args), expected)
    torch.testing.assert_close(partition(ep).module_with_submodules(*args), expected)
    assert str(ep)
    with pytest.raises(ExportError, match="nested"):
        gp.save(ep, tmp_path / "deep.gpx")


def test_what_eager_can_run_is_captured():
    limit = sys.getrecursionlimit()
    model, args = nested(180)
    model(*args)
    ep = gp.export(model, args)
    torch.testing.assert_close(ep.module()(*args), model(*args))
    assert sys.getrecursionlimit() == limit


def test_deeper_than_eager_goes():
    model, args = nested(1000)
    with pytest.raises(RecursionError):
        model(*args)
    with pytest.raises(ForwardError, match="recursion limit") as caught:
        gp.export(model, args)
    assert "setrecursionlimit" in str(caught.value)


def test_unflattened_modules_deeper_than_python(deep_python):
    model, args = nested(500)
    unflattened = gp.unflatten(gp.export(model, args))
    sys.setrecursionlimit(1000)
    with pytest.raises(ForwardError, match="setrecursionlimit"):
        unflattened(*args)


# Numbers made of numbers


class Sum(nn.Module):
    def forward(self, x):
        total = 0
        for i in range(x.shape[0]):
            total = total + x[i].item()
        return x + total


class Sizes(nn.Module):
    """Numbers that are shared: written out, they are as long as 2 ** n."""

    def __init__(self, n, step):
        super().__init__()
        self.n, self.step = n, step

    def forward(self, x):
        e = x.shape[0]
        for i in range(self.n):
            e = self.step(e, i)
        return x + e


def sizes(n, step):
    return Sizes(n, step), (torch.randn(8),), ({0: gp.Dim("n", min=2, max=1000)},)


NUMBERS = {
    "sum of floats": (Sum(), (torch.randn(400),), None),
    "sum of ints": (Sum(), (torch.arange(100),), None),
    "chain": sizes(400, lambda e, i: e // 2 + 1),
    "shared": sizes(30, lambda e, i: e + e // (3 + i)),
    "shared floats": sizes(30, lambda e, i: e / (3 + i) + e / 7),
    "minimum": sizes(20, lambda e, i: torch.sym_min(e + i, (e + 5) // 2) + e % (i + 2)),
}


@pytest.mark.parametrize(("model", "args", "spec"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_any_depth(model, args, spec, tmp_path):
    ep = gp.export(model, args, dynamic_shapes=spec)
    expected = model(*args)
    torch.testing.assert_close(ep.module()(*args), expected)
    torch.testing.assert_close(gp.unflatten(ep)(*args), expected)
    assert len(str(ep)) < 100_000_000
    try:
        torch.testing.assert_close(gp.onnx.export(ep)(*args), expected)
    except UnsupportedError as error:
        assert "bits" in str(error)  # noqa: PT017  only some are too large for ONNX
    try:
        gp.save(ep, tmp_path / "f.gpx")
    except ExportError:
        return
    torch.testing.assert_close(gp.load(tmp_path / "f.gpx").module()(*args), expected)


def test_torch_has_no_room_for_what_is_shared():
    model, args, spec = NUMBERS["shared"]
    ep = gp.export(model, args, dynamic_shapes=spec)
    with pytest.raises(UnsupportedError, match="operations"):
        ep.to_torch()
