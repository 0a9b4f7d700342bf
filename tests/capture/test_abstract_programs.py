"""Models and inputs without data export the graph that real ones do.

Ways to be without data: on the meta device, as torch's `FakeTensor`s (sizes symbolic or not), built
under `gp.fake_mode()`; the weights, the inputs, or both.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeCopyMode, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils import _pytree as pytree

import graphport as gp
from examples import huggingface, mobilenet, resnet
from graphport.tensors.lazy import lacks_data
from tests.models import test_vision, zoo

Case = tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any], Any]


def hugging_face(name: str) -> Case:
    case = huggingface.CASES[name]()
    kind, config = type(case.model), case.model.config
    return lambda: kind(config).eval(), case.args, case.kwargs, case.spec(gp.Dim)


def from_zoo(name: str) -> Case:
    row = zoo.ROWS[name]
    inputs = row.inputs(2, row.lengths[0])
    return lambda: zoo.build(row), (), inputs, zoo.spec(row, gp.Dim)


def convolutional(make: Callable[[], nn.Module], train: bool = False) -> Case:
    image = test_vision.image(2, 64, 64)
    return lambda: make().train(train), (image,), {}, test_vision.SPEC


def small(name: str) -> Case:
    make, spec, inputs = test_vision.SMALL[name]
    return lambda: make().eval(), inputs[0], {}, spec


CASES: dict[str, Callable[[], Case]] = {
    "bert": lambda: hugging_face("bert"),
    "gpt2": lambda: hugging_face("gpt2"),
    "llama": lambda: hugging_face("llama"),
    "t5": lambda: hugging_face("t5"),
    "vit": lambda: hugging_face("vit"),
    "resnet": lambda: convolutional(lambda: resnet.ResNet((1, 1, 1, 1), num_classes=5)),
    "resnet in training": lambda: convolutional(
        lambda: resnet.ResNet((1, 1, 1, 1), num_classes=5), train=True
    ),
    "mobilenet": lambda: convolutional(
        lambda: mobilenet.MobileNet(mobilenet.SMALL[:4], num_classes=5)
    ),
    "unet": lambda: small("unet"),
    "attention": lambda: small("attention"),
    "wav2vec2": lambda: from_zoo("wav2vec2"),  # weight norm
    "mixtral": lambda: from_zoo("mixtral"),
}


def to(device: str, inputs: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), inputs)


def meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def fake(make: Callable[[], nn.Module], mode: FakeTensorMode | None = None) -> nn.Module:
    mode = mode or FakeTensorMode()
    try:
        with mode:
            return make()
    except (DataDependentOutputException, GuardOnDataDependentSymNode):
        # trunc_normal_ looks at what it has drawn.
        with FakeCopyMode(mode):
            return copy.deepcopy(make())


def weightless(make: Callable[[], nn.Module]) -> nn.Module:
    with gp.fake_mode():
        return make()


def as_fake(inputs: Any, mode: FakeTensorMode) -> Any:
    return pytree.tree_map_only(Tensor, mode.from_tensor, inputs)


def symbolic() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv())


def all_fake(make: Any, inputs: Any) -> Any:
    mode = symbolic()
    return fake(make, mode), as_fake(inputs, mode), nullcontext()


def inside_fake(make: Any, inputs: Any) -> Any:
    mode = FakeTensorMode()
    return fake(make, mode), as_fake(inputs, mode), mode


Way = Callable[[Any, Any], tuple[nn.Module, Any, Any]]
WAYS: dict[str, Way] = {
    "all on meta": lambda make, inputs: (meta(make), to("meta", inputs), nullcontext()),
    "weights on meta": lambda make, inputs: (meta(make), inputs, nullcontext()),
    "inputs on meta": lambda make, inputs: (make(), to("meta", inputs), nullcontext()),
    "weights fake": lambda make, inputs: (fake(make), inputs, nullcontext()),
    "inputs fake": lambda make, inputs: (make(), as_fake(inputs, FakeTensorMode()), nullcontext()),
    "inputs symbolic": lambda make, inputs: (make(), as_fake(inputs, symbolic()), nullcontext()),
    "all fake, inputs symbolic": all_fake,
    "inside of FakeTensorMode": inside_fake,
    "weightless": lambda make, inputs: (weightless(make), inputs, nullcontext()),
    "weightless, inputs on meta": lambda make, inputs: (
        weightless(make),
        to("meta", inputs),
        nullcontext(),
    ),
    "inside of fake_mode": lambda make, inputs: (weightless(make), inputs, gp.fake_mode()),
}


def describe(ep: gp.ExportedProgram) -> list[Any]:
    """Everything that nodes say of themselves, devices aside."""
    described = []
    for node in ep.graph.nodes:
        vals = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
        layout = [(str(v.shape), str(v.stride()), v.dtype, v.requires_grad) for v in vals]
        stack = node.meta.get("nn_module_stack"), node.meta.get("torch_fn")
        described.append((node.name, layout, stack))
    return described


def text(ep: gp.ExportedProgram) -> str:
    return str(ep).replace("device=meta", "device=cpu")


@functools.cache
def real_case(name: str) -> tuple[Case, gp.ExportedProgram]:
    make, args, kwargs, spec = case = CASES[name]()
    return case, gp.export(make(), args, kwargs, dynamic_shapes=spec)


def pairs() -> Iterator[Any]:
    for name in CASES:
        for way in WAYS:
            if (name, way) == ("mixtral", "all on meta"):
                continue  # asks for the device, and takes an operator that others do not have
            quick = name == "bert" or way in ("weights on meta", "weightless")
            yield pytest.param(name, way, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "way"), list(pairs()))
def test_the_same_graph(name: str, way: str) -> None:
    (make, args, kwargs, spec), real = real_case(name)
    model, (args, kwargs), around = WAYS[way](make, (args, kwargs))
    with around:
        ep = gp.export(model, args, kwargs, dynamic_shapes=spec)
    ep.validate()
    assert text(ep) == text(real)
    assert describe(ep) == describe(real)
    if way != "all on meta":
        assert "meta" not in str(ep)
        vals = pytree.tree_leaves([node.meta.get("val") for node in ep.graph.nodes])
        assert all(v.device.type == "cpu" for v in vals if isinstance(v, Tensor))
    assert list(ep.state_dict) == list(real.state_dict)
    for key, t in ep.state_dict.items():
        assert t.dtype is real.state_dict[key].dtype


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", zoo.ROWS)
def test_the_same_graph_of_many_architectures(name: str) -> None:
    make, args, kwargs, spec = from_zoo(name)
    real = gp.export(make(), args, kwargs, dynamic_shapes=spec)
    for build in (weightless, meta):
        try:
            model = build(make)
        except (NotImplementedError, RuntimeError):
            assert build is meta  # a constructor that looks at its own weights
            continue
        assert text(gp.export(model, args, kwargs, dynamic_shapes=spec)) == text(real)


# What modules hold, and what programs do with it.


class Everything(nn.Module):
    """Tied weights, aliased and mutated buffers, a plain attribute, a literal, a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        shared = torch.zeros(6)
        self.register_buffer("count", shared[:2])
        self.register_buffer("table", shared)
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.attribute = torch.arange(4.0)
        self.cast = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(x.shape[0])
        self.scratch = self.scratch * 2
        made = torch.zeros(x.shape[0], 4, device=self.first.weight.device)
        y = self.second(self.first(x)) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.attribute
        assert torch.compiler.is_compiling()
        return y + made + self.scratch + self.table.sum() + self.cast.float()


@pytest.mark.parametrize("way", WAYS)
def test_state_of_every_kind(way: str) -> None:
    spec = ({0: gp.Dim("n", max=9)},)
    real = gp.export(Everything(), (torch.randn(3, 4),), dynamic_shapes=spec)
    model, (args, _), around = WAYS[way](Everything, ((torch.randn(3, 4),), {}))
    with around:
        ep = gp.export(model, args, dynamic_shapes=spec)
    assert text(ep) == text(real) and describe(ep) == describe(real)
    assert ep.graph_signature.buffers_to_mutate == real.graph_signature.buffers_to_mutate
    assert list(ep.state_dict) == list(real.state_dict)
    assert list(ep.constants) == list(real.constants)
    assert ep.state_dict["second.weight"] is ep.state_dict["first.weight"]
    assert "as_strided" in str(ep.graph)  # the buffers share memory


def test_real_buffers_and_abstract_parameters() -> None:
    model, real = Everything(), Everything()
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            new = nn.Parameter(p.detach().to("meta"), p.requires_grad)
            setattr(module, name, new)
    model.second.weight = model.first.weight
    texts = [str(gp.export(m, (torch.randn(3, 4),))) for m in (model, real)]
    assert texts[0] == texts[1]


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.LazyLinear(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("way", ["all on meta", "weights on meta", "inputs symbolic", "weightless"])
def test_lazy_modules_take_shape(way: str) -> None:
    x = torch.randn(3, 5, 8)
    real = gp.export(Lazy(), (x,), dynamic_shapes=({0: gp.Dim("n")},))
    model, (args, _), _ = WAYS[way](Lazy, ((x,), {}))
    ep = gp.export(model, args, dynamic_shapes=({0: gp.Dim("n")},))
    assert text(ep) == text(real)


def test_constants_are_folded_inside_of_a_fake_mode() -> None:
    def f(x: Tensor) -> Tensor:
        sizes = torch.tensor([2, 3]) * 2
        return x.expand(int(sizes[0]), int(sizes[1]))

    with FakeTensorMode():
        ep = gp.export(f, (torch.randn(6),))
    assert str(ep) == str(gp.export(f, (torch.randn(6),)))
    assert ep.module()(torch.ones(6)).shape == (4, 6)


def test_numbers_of_a_shape_env_are_taken_at_their_hints() -> None:
    mode = symbolic()
    x = mode.from_tensor(torch.randn(3, 4))
    ep = gp.export(lambda x, n: x * n, (x, x.shape[0]), dynamic_shapes=({0: gp.Dim("rows")}, None))
    assert ep.module()(torch.ones(5, 4), 3).sum() == 60
    assert not mode.shape_env.guards
    with mode:
        unknown = torch.ones(4).nonzero()
    with pytest.raises(gp.errors.InputError, match="stands for unknown data"):
        gp.export(lambda x: x + 1, (unknown,))


def test_spec_errors_name_the_sizes() -> None:
    x = symbolic().from_tensor(torch.randn(3, 4))
    with pytest.raises(gp.errors.ConstraintViolationError, match=r"not in range \[5, 8\]"):
        gp.export(lambda x: x + 1, (x,), dynamic_shapes=({0: gp.Dim("n", min=5, max=8)},))
    inputs = gp.AdditionalInputs()
    inputs.add((x,))
    inputs.add((torch.randn(7, 4),))
    assert "batch" not in str(gp.export(lambda x: x + 1, (x,), dynamic_shapes=inputs))
    shapes = gp.ShapesCollection()
    shapes[x] = {0: gp.Dim("rows")}
    assert "rows" in str(gp.export(lambda x: x + 1, (x,), dynamic_shapes=shapes))


# Running


def test_fake_inputs_and_real_weights_run() -> None:
    model = nn.Linear(4, 2)
    for x in (symbolic().from_tensor(torch.randn(3, 4)), torch.randn(3, 4, device="meta")):
        given = torch.randn(3, 4)
        assert torch.equal(gp.export(model, (x,)).module()(given), model(given))


def test_sizes_go_through_programs_without_weights() -> None:
    mode = FakeTensorMode()
    with mode, torch.device("meta"):
        x, model = torch.rand(5, 2, 2), nn.Linear(2, 3)
        ep = gp.export(model, (x,))
        assert ep.module()(x).shape == model(x).shape
        assert all(n.meta["val"].is_meta for n in ep.graph.nodes if "val" in n.meta)
    with mode:
        x, model = torch.rand(5, 2), nn.Linear(2, 3)
    for t in (x, *model.parameters()):
        t.requires_grad = False
        t.fake_device = torch.device("cuda:0")
    ep = gp.export(model, (x,))
    assert all(n.meta["val"].is_cuda for n in ep.graph.nodes if "val" in n.meta)
    assert ep.module()(x).device == x.device


@pytest.mark.parametrize("build", [meta, fake, weightless])
def test_programs_without_weights_say_so(build: Any) -> None:
    model = build(lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2)))
    module = gp.export(model, (torch.randn(3, 4),)).module()
    assert "addmm" in module.code or "linear" in module.code
    assert "0.weight" in dict(module.named_parameters())
    with pytest.raises(gp.errors.NoDataError) as caught:
        module(torch.randn(3, 4))
    assert str(caught.value) == (
        "GP170 the program has no weights: 4 of its parameters, buffers and constants were "
        "captured without data (0.bias, 0.weight, 1.bias, ...)\n"
        "  fix  module = ep.module(); module.load_state_dict(weights, assign=True)"
    )
    real = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    module.load_state_dict(real.state_dict(), assign=True)
    x = torch.randn(3, 4)
    assert torch.equal(module(x), real(x))


def test_a_buffer_that_no_checkpoint_has_is_named() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ids", torch.arange(4.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.ids

    module = gp.export(meta(Positions), (torch.randn(4),)).module()
    with pytest.raises(gp.errors.NoDataError, match=r"ids is in no state_dict: build the model"):
        module(torch.randn(4))
    module = gp.export(weightless(Positions), (torch.zeros(4),)).module()
    assert module(torch.zeros(4)).tolist() == [0, 1, 2, 3]


def test_retracing_a_program_without_weights() -> None:
    model = weightless(lambda: nn.Linear(4, 2))
    ep = gp.export(model, (torch.randn(3, 4),))
    again = gp.export(ep.module(), (torch.randn(3, 4),))
    assert [n.target for n in again.graph.nodes] == [n.target for n in ep.graph.nodes]


# Errors


@pytest.mark.parametrize("build", [meta, fake, weightless])
def test_errors_are_those_of_a_real_model(build: Any) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x if (self.weight * x).sum() > 0 else -x

    with pytest.raises(gp.errors.DataDependentError) as real:
        gp.export(Branches(), (torch.randn(4),))
    with pytest.raises(gp.errors.DataDependentError) as caught:
        gp.export(build(Branches), (torch.randn(4),))
    assert str(caught.value) == str(real.value)
    linear = build(lambda: nn.Linear(3, 3))
    with pytest.raises(gp.errors.ShapeError):
        gp.export(linear, (torch.randn(2, 4),))


READS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "item": lambda t: float(t.sum()),
    "tolist": lambda t: t.tolist(),
    "data_ptr": lambda t: t.data_ptr(),
}


@pytest.mark.parametrize("name", ["numpy", "data_ptr"])
def test_data_is_not_read_during_capture(name: str) -> None:
    with gp.fake_mode():
        weight = nn.Parameter(torch.ones(4))
    weight.data = torch.ones(4)

    def f(x: Tensor) -> Tensor:
        READS[name](weight.detach())
        return x

    with pytest.raises(gp.errors.DataDependentError):
        gp.export(f, (torch.randn(4),))


@pytest.mark.parametrize("build", [meta, fake, weightless])
def test_drafts_say_what_has_no_data(build: Any) -> None:
    model = build(lambda: nn.Linear(4, 1))

    def f(x: Tensor) -> Tensor:
        return x + 1 if model(x).sum() > 0 else x

    with pytest.raises(gp.errors.NoDataError, match=r"where \w+ has none"):
        gp.draft_export(f, (torch.randn(2, 4),))


def test_nothing_is_given_data_by_a_capture() -> None:
    for build in (meta, fake, weightless):
        model = build(Everything)
        gp.export(model, (torch.randn(3, 4),))
        assert all(map(lacks_data, model.parameters()))
