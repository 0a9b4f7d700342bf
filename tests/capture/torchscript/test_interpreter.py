"""TorchScript: scripted, traced, frozen and loaded modules, methods and functions are captured."""

import io
import math
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphport as gp
from graphport.errors import DataDependentError, UnsupportedError
from tests.helpers import assert_same, clone
from tests.onnx.helpers import check_onnx

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:The TorchScript type system")
B = gp.Dim("b", min=1)
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
OTHERS = [(torch.randn(n, 8),) for n in (1, 5)]


class Pair(typing.NamedTuple):
    a: Tensor
    b: int


def numbers(x: Tensor):
    n = x.size(0)
    half, rest = n // 2, n % 2
    scale = math.sqrt(n) / 2 + float(n) ** 0.5 - (n - 1) * 0.5
    return x * scale, x.new_zeros([half + rest, max(n, 2), min(n, 2)]), -n + abs(half - 3), n > 0


def loops(x: Tensor):
    out = [x]
    for i in range(1, 7, 2):
        out.append(out[-1] + i)
    i = 0
    while i < 3 and len(out) < 9:
        i += 1
        if i == 2:
            continue
    for k, y in enumerate(out[1:]):
        x = x + y * k
    return torch.stack(out), [j * i for j in range(3)], x, out[::2], out.pop().sum()


def containers(x: Tensor):
    d = {"a": x, "b": x + 1}
    d["c"] = x * 2
    names: list[str] = []
    for k, v in d.items():
        names.append(k)
        d[k] = v * 2
    pairs = (x, (x.shape[1], "t"))
    inner, (size, _) = pairs
    lists = [1, 2] + [3] * 2
    lists.insert(0, 5)
    return d, names, "b" in d, len(lists), sorted(lists), inner * size, lists[1:3] == [1, 2]


def texts(x: Tensor, mode: str = "up"):
    if mode.upper() == "UP" and not mode.startswith("d"):
        x = x + 1
    return x, "a-b".split("-"), f"{mode}/{mode}", mode[0]


def optional(x: Tensor, y: Tensor | None = None, sizes: list[int] | None = None):
    if y is None:
        y = x * 2
    if sizes is not None:
        x = x.view(sizes)
    return x, y


def named(x: Tensor):
    return Pair(x + 1, 3)


def dtypes(x: Tensor):
    y = torch.zeros(x.shape[0], 2, dtype=torch.float64, device=x.device)
    z = x.to(torch.int32).to(y.dtype) + torch.arange(8, dtype=y.dtype)
    if x.dtype == torch.float32 and x.is_floating_point() and not x.is_cuda:
        z = z + 1
    w = torch.tensor([x.shape[0], 2], dtype=torch.int64)
    return y, z, w, torch.full_like(x, 2.5), x.contiguous(memory_format=torch.contiguous_format)


def indices(x: Tensor):
    y = x[:, 1:3].clone()
    y[0] = 7
    y[:, -1] += 2
    return y, x[..., None], x[torch.arange(x.shape[0]), 1], x[x.shape[0] - 1], x.t()[0:2]


def functional(x: Tensor):
    y = F.relu(x) + F.softmax(x, dim=-1) + F.dropout(x, 0.5, training=False)
    y = F.layer_norm(F.gelu(y), [8])
    z = F.interpolate(y[None, None], size=[4, 6], mode="bilinear", align_corners=False)
    return F.pad(y, [1, 2]), z, F.cosine_similarity(x, y), F.one_hot(x.argmax(1), 8)


def asserts(x: Tensor):
    assert x.shape[1] == 8, "eight columns"
    if x.dim() != 2:
        raise RuntimeError("two dims")
    return x * 2


def forks(x: Tensor):
    later = torch.jit.fork(functional_one, x)
    return torch.jit.wait(later) + x


def functional_one(x: Tensor):
    return x.sum() * 2


def isinstances(x: Tensor):
    y: typing.Any = x
    if isinstance(y, Tensor):
        return y + 1
    return x


FUNCTIONS = [
    numbers,
    loops,
    containers,
    texts,
    optional,
    named,
    dtypes,
    indices,
    functional,
    asserts,
    forks,
    isinstances,
]


def compare_with(script: Any, inputs: tuple[Any, ...], module: Any) -> None:
    ours, theirs = clone((inputs, {}))[0], clone((inputs, {}))[0]
    have, want = module(*ours), script(*theirs)
    if isinstance(want, tuple) and hasattr(want, "_fields"):
        assert have._asdict().keys() == want._asdict().keys()
        have, want = tuple(have), tuple(want)
    assert_same(have, want, f"of {[*map(len, inputs)]}")
    assert_same(ours, theirs, "inputs are left differently")


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_scripted_functions(fn: Callable[..., Any]) -> None:
    script = torch.jit.script(fn)
    for target in (script, lambda x: script(x)):
        ep = gp.export(target, (X,), dynamic_shapes=({0: B},))
        ep.validate()
        for inputs in [(X,), *OTHERS]:
            compare_with(script, inputs, ep.module())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.rest = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)])
        self.norm = nn.BatchNorm1d(8)
        self.factor = 3
        self.names = ["a", "b"]
        self.register_buffer("offset", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).view(x.size(0), -1)
        for layer in self.rest:
            y = self.scale(layer(y))
        return self.norm(y) + self.offset * len(self.names)

    @torch.jit.export
    def scale(self, x: Tensor) -> Tensor:
        if self.training:
            return x
        return x * self.factor

    @torch.jit.ignore
    def unused(self, x: Tensor) -> Tensor:
        return x


class Parent(nn.Module):
    def __init__(self, child: Any) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Any:
        return self.child(x)


def load(script: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return torch.jit.load(file)


MAKE: dict[str, Callable[[], Any]] = {
    "scripted": lambda: torch.jit.script(Layers().eval()),
    "traced": lambda: torch.jit.trace(Layers().eval(), X),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Layers().eval())),
    "loaded": lambda: load(torch.jit.script(Layers().eval())),
    "loaded trace": lambda: load(torch.jit.trace(Layers().eval(), X)),
    "optimised": lambda: torch.jit.optimize_for_inference(torch.jit.script(Layers().eval())),
}


@pytest.mark.parametrize("name", MAKE)
def test_modules(name: str) -> None:
    torch.manual_seed(0)
    script = MAKE[name]()
    for model in (script, Parent(script)):
        ep = gp.export(model, (X,), dynamic_shapes=({0: B},))
        for inputs in [(X,), *OTHERS]:
            compare_with(script, inputs, ep.module())
    program = gp.onnx.export(script, (X,), dynamic_shapes=({0: B},), verify=True)
    torch.testing.assert_close(program(*OTHERS[1]), script(*OTHERS[1]))


def test_state_and_names() -> None:
    """The parameters are the module's; nodes and errors name the line that was scripted."""
    script = torch.jit.script(Layers().eval())
    ep = gp.export(Parent(script), (X,), dynamic_shapes=({0: B},))
    assert set(ep.state_dict) == {f"child.{k}" for k in script.state_dict()}
    linear = next(n for n in ep.graph.nodes if n.name == "linear")
    assert [path for path, _ in linear.meta["nn_module_stack"].values()] == [
        "",
        "child",
        "child.first",
    ]
    assert "self.first(x).view" in linear.meta["stack_trace"]
    flat = gp.unflatten(ep)
    torch.testing.assert_close(flat(X), script(X))
    kept = gp.export(Parent(script), (X,), preserve_module_call_signature=("child.first",))
    torch.testing.assert_close(gp.unflatten(kept).child.first(X), script.first(X))


def test_writes_to_state() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.sum(0))
            x.mul_(2)
            return x + self.seen

    script = torch.jit.script(Counts())
    program = gp.export(script, (X.clone(),), dynamic_shapes=({0: B},))
    assert not script.seen.any()
    module = program.module()
    for inputs in [(X,), *OTHERS]:
        compare_with(script, inputs, module)
    torch.testing.assert_close(dict(module.named_buffers())["seen"], script.seen)


def test_methods_of_every_kind() -> None:
    class Old(torch.jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        @torch.jit.script_method
        def forward(self, x):  # type: ignore[no-untyped-def]
            return x * self.weight

    class Ignoring(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.left_in_python(x) + 1

        @torch.jit.ignore
        def left_in_python(self, x: Tensor) -> Tensor:
            return x.flip(0) * x.shape[0]

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: int) -> Tensor:
            return x * by

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad, None

    scripted = torch.jit.script(Layers().eval())
    traced = torch.jit.trace(lambda x: Doubles.apply(x, 2) + x.sum(), (X,), check_trace=False)
    for target in (
        Parent(Old()),
        torch.jit.script(Ignoring()),
        lambda x: scripted.scale(x) + scripted.forward(x),
        lambda x: traced(x) - 1,
    ):
        ep = gp.export(target, (X,), dynamic_shapes=({0: B},))
        for inputs in [(X,), *OTHERS]:
            assert_same(ep.module()(*inputs), target(*inputs), "results differ")


def test_keywords_and_defaults() -> None:
    @torch.jit.script
    def scale(x: Tensor, by: float = 2.0, add: list[int] = (1, 2)) -> Tensor:
        return x * by + sum(add)

    ep = gp.export(scale, (X,), {"by": 3})
    torch.testing.assert_close(ep.module()(X, by=3), X * 3 + 3)
    assert [n.name for n in ep.graph.nodes if n.op == "placeholder"] == ["x", "by"]
    with pytest.raises(gp.errors.InputError, match="do not fit"):
        gp.export(scale, (X,), {"other": 3})


def test_layers_of_torch() -> None:
    torch.manual_seed(0)
    x, more = torch.randn(3, 5, 8), torch.randn(4, 5, 8)
    for layer in (
        Parent(nn.LSTM(8, 4, batch_first=True)),
        Parent(nn.GRU(8, 4, batch_first=True)),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        nn.Sequential(nn.Conv1d(5, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool1d(2)),
    ):
        script = torch.jit.script(layer)
        check_onnx(script, (x,), dynamic_shapes=({0: B},), others=[(more,)])


class Assigns(nn.Module):
    kept: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.kept = []
        self.register_buffer("last", torch.zeros(8))

    def forward(self, x: Tensor, how: int = 0) -> Tensor:
        if how == 0:
            self.calls += 1
        elif how == 1:
            self.kept.append(1)
        else:
            self.last = x[0]
        return x


@pytest.mark.parametrize(
    ("how", "said"), [(0, "self.calls"), (1, "attribute"), (2, "self.last.copy_")]
)
def test_changes_of_state_are_refused(how: int, said: str) -> None:
    script = torch.jit.script(Assigns())
    with pytest.raises(UnsupportedError, match=said) as caught:
        gp.export(script, (X, how))
    assert "test_interpreter.py" in str(caught.value)
    assert (script.calls, script.kept) == (0, [])


def test_branches_on_data_are_refused_with_their_line() -> None:
    def sign(x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return x
        return -x

    with pytest.raises(DataDependentError, match=r"if bool\(x.sum\(\) > 0\)"):
        gp.export(torch.jit.script(sign), (X,))


def test_assertions_on_data() -> None:
    def positive(x: Tensor) -> Tensor:
        assert bool((x > 0).all()), "positive numbers"
        return x + 1

    module = gp.export(torch.jit.script(positive), (X.abs() + 1,)).module()
    torch.testing.assert_close(module(X.abs() + 1), X.abs() + 2)
    with pytest.raises(RuntimeError, match="positive numbers"):
        module(-X.abs())


def test_a_branch_on_a_size_is_a_guard() -> None:
    def rows(x: Tensor) -> Tensor:
        if x.size(0) > 2:
            return x + 1
        return x

    with pytest.raises(gp.errors.ConstraintViolationError, match=r"if x.size\(0\) > 2"):
        gp.export(torch.jit.script(rows), (X,), dynamic_shapes=({0: B},))


def test_shapes_that_do_not_fit_name_the_line() -> None:
    def joined(x: Tensor) -> Tensor:
        y = x * 2
        return torch.mm(x, y)

    with pytest.raises(gp.errors.ExportError, match=r"torch.mm\(x, y\)"):
        gp.export(torch.jit.script(joined), (X,))
