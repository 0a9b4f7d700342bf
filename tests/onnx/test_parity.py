"""Behaviours that users of torch.onnx rely on, under our API.

A program is exported from a module, from a program of ours and from one of `torch.export`, and
compared with eager at the example and at inputs of other sizes.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.export import Dim

import graphport as gp
from tests.helpers import clone
from tests.onnx.helpers import assert_close

OURS = ("module", "program")
KINDS = (*OURS, "torch program")


def check(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    others: Sequence[tuple[Any, ...]] = (),
    kinds: Sequence[str] = KINDS,
) -> None:
    """Compare at the example and at others: positional inputs, or those and keyword inputs."""
    kwargs = kwargs or {}
    for kind in kinds:
        program = exported(kind, model, args, kwargs, dynamic_shapes)
        onnx.checker.check_model(program.model_proto, full_check=True)
        fresh = copy.deepcopy(model)
        for other in ((args, kwargs), *others):
            pair = other if len(other) == 2 and isinstance(other[1], dict) else (other, kwargs)
            ours, theirs = clone(pair), clone(pair)
            have = program(*ours[0], **ours[1])
            with torch.no_grad():
                want = fresh(*theirs[0], **theirs[1])
            assert_close(have, want, f"{kind}: results differ")
            assert_close(ours, theirs, f"{kind}: inputs are left differently")
            flat = program.adapt_torch_outputs_to_onnx(want)
            assert len(flat) == len(program.interface.outputs)


def exported(
    kind: str, model: nn.Module, args: Any, kwargs: Any, shapes: Any
) -> gp.onnx.ONNXProgram:
    if kind == "program":
        return gp.onnx.export(gp.export(model, args, kwargs, dynamic_shapes=shapes), args, kwargs)
    if kind == "torch program":
        theirs = torch.export.export(copy.deepcopy(model), args, kwargs, dynamic_shapes=shapes)
        return gp.onnx.export(theirs, args, kwargs)
    return gp.onnx.export(model, args, kwargs, dynamic_shapes=shapes)


def module(fn: Callable[..., Any]) -> nn.Module:
    """A module whose forward is a function, with its signature."""

    class Model(nn.Module):
        def forward(self) -> Any:
            raise NotImplementedError

    Model.forward = lambda self, *args, **kwargs: fn(*args, **kwargs)  # type: ignore[method-assign]
    Model.forward.__signature__ = _with_self(fn)  # type: ignore[attr-defined]
    return Model()


def _with_self(fn: Callable[..., Any]) -> Any:
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(fn)
    return signature.replace(parameters=[own, *signature.parameters.values()])


# Programs of torch.export


def test_dynamic_input() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1.0

    check(
        Model(),
        (torch.randn(2, 3, 4),),
        dynamic_shapes={"x": {0: Dim("dim0")}},
        others=[(torch.randn(3, 3, 4),)],
    )


def test_a_program_from_a_file(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1.0

    x = torch.randn(1, 1, 2)
    torch.export.save(torch.export.export(Model(), (x,)), tmp_path / "m.pt2")
    gp.save(gp.export(Model(), (x,)), tmp_path / "m.gpx")
    for loaded in (torch.export.load(tmp_path / "m.pt2"), gp.load(tmp_path / "m.gpx")):
        torch.testing.assert_close(gp.onnx.export(loaded, (x,))(x), x + 1)


def test_a_number_is_a_constant() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: int) -> torch.Tensor:
            return x + y

    check(
        Model(),
        (torch.ones(7, 5), 5),
        dynamic_shapes={"x": {0: Dim("dim0_x", min=6)}, "y": None},
        others=[(torch.ones(8, 5), 5)],
    )


class Bar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.buf.add_(1)
        return x.sum() + self.buf.sum()


class Foo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(1))
        self.bar = Bar()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.buf.add_(1)
        bar = self.bar(x)
        self.bar.buf.add_(2)
        return bar.sum() + self.buf.sum()


def test_a_program_that_was_captured_twice() -> None:
    x = torch.ones(5, 5)
    once = torch.export.export(Foo(), (x,))
    spec = ({0: Dim("dim0_x")},)
    twice = torch.export.export(once.module(check_guards=False), (x,), dynamic_shapes=spec)
    mine = gp.export(Foo(), (x,)).module(check_guards=False)
    ours = gp.export(mine, (x,), dynamic_shapes=spec)
    for again in (twice, ours):
        program, model = gp.onnx.export(again, (x,)), Foo()
        for rows in (5, 7, 1):
            given = torch.ones(rows, 5)
            torch.testing.assert_close(program(given), model(given))


def test_dims_for_some_arguments_only() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.sum() + b.sum()

    check(
        Model(),
        (torch.randn(4, 4), torch.randn(4, 4)),
        dynamic_shapes=(None, {0: Dim("dim")}),
        others=[(torch.randn(4, 4), torch.randn(7, 4))],
    )


def test_keywords_in_another_order() -> None:
    class Model(nn.Module):
        def forward(self, a: Any, b: Any, kw1: Any, kw2: Any) -> torch.Tensor:
            return a.sum() + b.sum() + kw1.sum() - kw2.sum()

    args = (torch.randn(4, 4), torch.randn(4, 4))
    shapes = (None, {0: Dim("dim")}, {0: Dim("dim_for_kw1")}, None)
    other = (
        (torch.randn(4, 4), torch.randn(7, 4)),
        {"kw2": torch.ones(4, 4), "kw1": torch.zeros(9, 4)},
    )
    check(
        Model(),
        args,
        {"kw2": torch.ones(4, 4), "kw1": torch.zeros(4, 4)},
        dynamic_shapes=shapes,
        others=[other],
    )


@pytest.mark.parametrize("persistent", [True, False])
def test_mutated_buffers(persistent: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("my_buffer", torch.tensor(4.0), persistent=persistent)

        def forward(self, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            output = x + b
            self.my_buffer.add_(1.0) + 3.0
            return output

    check(
        Model(),
        (torch.rand(3, 3), torch.randn(3, 3)),
        dynamic_shapes=({0: Dim("dim")},) * 2,
        others=[(torch.rand(4, 3), torch.randn(4, 3))],
    )


def test_dims_within_containers() -> None:
    class Model(nn.Module):
        def forward(self, a: Any, b: torch.Tensor) -> torch.Tensor:
            return a[0].sum() + a[1].sum() + b.sum()

    t = lambda n: torch.randn(n, 4)
    check(
        Model(),
        ((t(4), t(4)), t(4)),
        dynamic_shapes=((None, {0: Dim("dim", min=3)}), None),
        others=[((t(4), t(6)), t(4))],
    )


def test_lazy_modules_with_keywords() -> None:
    class Lazy(nn.modules.lazy.LazyModuleMixin, nn.Module):
        def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
            pass

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    spec = ({0: Dim("dim")}, {0: Dim("dim")})
    for kind in KINDS:
        given = {"x": torch.randn(3, 3), "y": torch.randn(3, 3)}
        program = exported(kind, Lazy(), (), given, spec)
        other = {"x": torch.randn(6, 3), "y": torch.randn(6, 3)}
        torch.testing.assert_close(program(**other), other["x"] + other["y"])


# Small models


def test_two_results() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1.0
        return y, y.relu()

    check(module(f), (torch.randn(1, 1, 2),))


class Biased(nn.Module):
    def forward(self, x: torch.Tensor, b: torch.Tensor = torch.tensor(1.0)) -> Any:  # noqa: B008
        y = x + b
        return y, y.relu()


def test_a_tensor_as_default() -> None:
    x = torch.randn(1, 2, 3)
    check(Biased(), (x,), kinds=OURS)
    check(Biased(), (x, torch.tensor(8.0)))
    check(Biased(), (x,), {"b": torch.tensor(5.0)})


def test_arithmetic_on_numbers_of_tensors() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.item(), y.item()
        return (
            torch.tensor([operator.add(a, b)]),
            torch.tensor([operator.sub(a, b)]),
            torch.tensor([operator.mul(a, b)]),
            torch.tensor([operator.truediv(a, b)]),
            torch.tensor([operator.pow(abs(a), abs(b))]),
            torch.tensor([operator.abs(a)]),
            torch.tensor([operator.neg(a)]),
            torch.tensor([math.ceil(a)]),
            torch.tensor([math.floor(a)]),
        )

    check(
        module(f),
        (torch.tensor([1.5]), torch.tensor([0.7])),
        kinds=OURS,
        others=[(torch.tensor([-2.25]), torch.tensor([3.0]))],
    )


def test_other_values_of_numbers_are_refused() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, b: float = 1.0) -> Any:
            y = x + b
            return y, y.relu()

    x = torch.randn(1, 1, 2)
    program = gp.onnx.export(Model(), (x, 8.0))
    assert_close(program(x, b=8.0), Model()(x, 8.0), "results differ")
    with pytest.raises(RuntimeError, match=r"9\.0"):
        program(x, b=9.0)


def test_nested_inputs() -> None:
    def f(x_dict: Any, y_tuple: Any, z_list: Any) -> torch.Tensor:
        x = x_dict["a"] if "a" in x_dict else x_dict["b"]
        y1, (y2, y3) = y_tuple
        z = x + y1 + y2 + y3
        for z_sub_list in z_list:
            z = z + torch.stack(z_sub_list).sum()
        return z

    t = lambda: torch.randn(3)
    check(module(f), ({"a": t(), "c": t()}, (t(), (t(), t())), [[t(), t()], [t(), t(), t()]]))


def test_nested_outputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        x, y = x + y, y + z
        z = x + y
        return (x, (y, z)), [[x, y], [y, z]], {"z": z, "x": x}

    check(module(f), (torch.randn(3), torch.randn(3), torch.randn(3)))


class MNIST(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(2304, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.conv1(x))
        x = torch.sigmoid(self.conv2(x))
        x = torch.flatten(torch.max_pool2d(x, 2), 1)
        x = self.fc2(torch.sigmoid(self.fc1(x)))
        return torch.log_softmax(x, dim=1)


def test_mnist() -> None:
    check(
        MNIST(),
        (torch.rand(3, 1, 28, 28),),
        dynamic_shapes=({0: Dim("n", max=100)},),
        others=[(torch.rand(1, 1, 28, 28),)],
    )


def test_log_sigmoid() -> None:
    check(nn.LogSigmoid(), (torch.randn(2),))


def test_add() -> None:
    f = lambda x, y: torch.ops.aten.add(x, y)
    spec = ({0: Dim("a"), 1: Dim("b")},) * 2
    t = lambda *sizes: torch.randn(*sizes)
    check(module(f), (t(2, 3), t(2, 3)), dynamic_shapes=spec, others=[(t(3, 4), t(3, 4))])


def test_sigmoid_add_of_views() -> None:
    f = lambda x, y: torch.sigmoid(torch.ops.aten.add(x, y))
    x, y = torch.randn(3, 3)[1:, :], torch.randn(3, 3)[1:, :]
    check(
        module(f),
        (x, y),
        dynamic_shapes=({1: Dim("n")},) * 2,
        others=[(torch.randn(2, 4), torch.randn(2, 4))],
    )


def test_matmul() -> None:
    f = lambda x, y: torch.ops.aten.matmul(x, y)
    k = Dim("k")
    check(
        module(f),
        (torch.randn(2, 3, 6), torch.randn(2, 6, 4)),
        dynamic_shapes=({2: k}, {1: k}),
        others=[(torch.randn(2, 3, 4), torch.randn(2, 4, 4))],
    )


def test_scalar_tensor_of_sizes() -> None:
    f = lambda x: (
        torch.scalar_tensor(x.size(0)),
        torch.scalar_tensor(x.size(1), dtype=torch.int64),
    )
    spec = ({i: Dim(f"d{i}") for i in range(3)},)
    check(
        module(f),
        (torch.randn(2, 3, 4),),
        dynamic_shapes=spec,
        others=[(torch.randn(7, 8, 9),)],
        kinds=OURS,
    )


def test_transposed_convolution_result() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 1, 3, stride=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).transpose(0, 1)

    check(
        Model(),
        (torch.randn(4, 3, 20, 20),),
        dynamic_shapes=({0: Dim("n"), 2: Dim("h", min=6, max=100)},),
        others=[(torch.randn(2, 3, 8, 20),)],
        kinds=OURS,
    )


def test_sizes_from_data() -> None:
    def f(d1: torch.Tensor, d2: torch.Tensor) -> torch.Tensor:
        return torch.zeros(d1[0].item(), d2[0].item())

    t = lambda n: torch.tensor([n])
    check(module(f), (t(3), t(4)), others=[(t(1), t(4)), (t(0), t(2))], kinds=OURS)


def squeezed(d1: torch.Tensor, d2: torch.Tensor) -> torch.Tensor:
    return torch.zeros(d1[0], d2[0]).squeeze(0)


@pytest.mark.parametrize("rows", [1, 3])
def test_squeezing_a_size_from_data(rows: int) -> None:
    """It is taken not to be 1, which no example decides, and a program checks it."""
    t = lambda n: torch.tensor([n])
    program = gp.onnx.export(squeezed, (t(rows), t(4)))
    for sizes in ((3, 4), (2, 3), (0, 2)):
        given = tuple(map(t, sizes))
        assert_close(program(*given), squeezed(*given), f"at {sizes}")
    with pytest.raises(RuntimeError, match=r"Ne\(u0, 1\)"):
        gp.export(squeezed, (t(rows), t(4))).module()(t(1), t(3))


def test_squeezing_a_size_from_data_that_is_1() -> None:
    t = lambda n: torch.tensor([n])
    program = gp.onnx.export(squeezed, (t(3), t(4)))
    with pytest.raises(gp.errors.RequirementError, match="requires u0 != 1, which does not hold"):
        program(t(1), t(3))


@pytest.mark.parametrize("sizes", [(6, 8, 7), (6, 7, 8), (4, 9, 4), (7, 4, 9)], ids=str)
def test_slices(sizes: tuple[int, ...]) -> None:
    def f(x: torch.Tensor) -> Any:
        return tuple(x[: x.size(0) - i, i : x.size(2), i:3] for i in range(4))

    spec = ({0: Dim("a", min=4), 1: Dim("b", min=4), 2: Dim("c", min=4)},)
    check(
        module(f),
        (torch.rand(5, 5, 5),),
        dynamic_shapes=spec,
        others=[(torch.randn(sizes),)],
        kinds=OURS,
    )


def test_mutation_through_a_view() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.view(3, 2, -1).add_(2.0)
        return x

    check(module(f), (torch.randn(12),))


def test_arange() -> None:
    f = lambda input: (
        torch.arange(input.shape[0]),
        torch.arange(12),
        torch.arange(start=input.shape[0], end=input.shape[0] + 5),
    )
    check(
        module(f),
        (torch.randn(5, 3, 2),),
        dynamic_shapes=({0: Dim("n")},),
        others=[(torch.randn(8, 3, 2),)],
    )


def test_assigning_to_a_slice_that_sizes_decide() -> None:
    def zero(x: torch.Tensor) -> torch.Tensor:
        x[:, x.size(0) :] = 0
        return x

    def tensor(x: torch.Tensor) -> torch.Tensor:
        x[:, x.size(0) :] = torch.tensor([1, 2, 3])
        return x

    spec = ({0: Dim("rows"), 1: Dim("columns")},)
    check(
        module(zero),
        (torch.ones(2, 5),),
        dynamic_shapes=spec,
        kinds=OURS,
        others=[(torch.randn(3, 4),)],
    )
    check(
        module(tensor),
        (torch.ones(2, 5, 3),),
        dynamic_shapes=spec,
        kinds=OURS,
        others=[(torch.randn(3, 4, 3),)],
    )


def test_expanding_a_constant() -> None:
    f = lambda x: torch.tensor([[0], [1], [2]]).expand_as(x)
    check(
        module(f),
        (torch.ones(3, 2),),
        dynamic_shapes=({1: Dim("n")},),
        others=[(torch.randn(3, 5),)],
    )


def test_views_of_nothing() -> None:
    f = lambda input: input.view(-1, 2).view(1, -1)
    check(
        module(f),
        (torch.ones(4),),
        dynamic_shapes=({0: 2 * gp.Dim("n")},),
        kinds=OURS,
        others=[(torch.empty(0),), (torch.ones(2),)],
    )


def test_flatten() -> None:
    f = lambda x: torch.flatten(x, start_dim=2, end_dim=3)
    check(
        module(f),
        (torch.randn(3, 5, 4, 5),),
        dynamic_shapes=({0: Dim("n")},),
        others=[(torch.randn(5, 5, 4, 5),)],
    )


def test_none_among_inputs() -> None:
    f = lambda x, y, z: x + z if y is None else x + y + z
    check(module(f), (torch.randn(1, 2), None, torch.randn(1, 2)))


def test_filled_with_a_number_of_a_tensor() -> None:
    f = lambda x: x + torch.full(x.shape, torch.tensor(torch.finfo(x.dtype).min))
    check(module(f), (torch.randn(3, 4),), kinds=OURS)


def test_a_number_of_a_tensor() -> None:
    f = lambda x, y: x.item() + y
    check(
        module(f),
        (torch.tensor([1]), torch.randn(3, 4)),
        kinds=OURS,
        others=[(torch.tensor([-7]), torch.randn(3, 4))],
    )


def test_sizes_that_depend_on_data() -> None:
    check(
        module(lambda x: x.nonzero()),
        (torch.randn(3, 4).relu(),),
        others=[(torch.zeros(3, 4),), (torch.eye(3, 4),)],
    )


def test_device_put() -> None:
    check(
        module(lambda x: torch.ops.prims.device_put(x, "cpu")), (torch.randn(1, 2, 3),), kinds=OURS
    )


# Without weights


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc0, self.fc1 = nn.Linear(8, 8), nn.Linear(8, 4)
        self.fc2, self.fc3 = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.fc0, self.fc1, self.fc2):
            x = torch.sigmoid(layer(x))
        return self.fc3(x)


@pytest.mark.parametrize("loaded_within", [True, False])
@pytest.mark.parametrize("exported_within", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("kind", OURS)
def test_a_model_without_weights(
    loaded_within: bool, exported_within: bool, dynamic: bool, kind: str, tmp_path: Path
) -> None:
    import onnxruntime

    real, x = MLP(), torch.rand(97, 8)
    torch.save(real.state_dict(), tmp_path / "w.pt")
    shapes = ({0: gp.Dim("rows")},) if dynamic else None
    with gp.fake_mode():
        model = MLP()
        if loaded_within:
            model.load_state_dict(torch.load(tmp_path / "w.pt"))
        if exported_within:
            program = exported(kind, model, (torch.rand(97, 8),), {}, shapes)
    if not exported_within:
        program = exported(kind, model, (x,), {}, shapes)
    program.save(tmp_path / "m.onnx", state_dict=None if loaded_within else tmp_path / "w.pt")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (out,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), real(x).detach(), rtol=1e-4, atol=1e-5)
    shape = session.get_inputs()[0].shape
    assert shape == (["rows", 8] if dynamic else [97, 8])


def ids(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 256, sizes, generator=torch.Generator().manual_seed(0))


def pretrained(name: str) -> tuple[Callable[[], nn.Module], dict[str, Any]]:
    """A small model of Hugging Face's, and keyword arguments for it."""
    import transformers as hf

    small = {"vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    text = {"input_ids": ids(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.bool)}
    places = {"position_ids": torch.arange(9).unsqueeze(0)}
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    if name == "gpt2":
        config = hf.GPT2Config(**small, n_positions=64, n_embd=64, n_layer=2, n_head=2)
        return lambda: hf.GPT2Model(config), {**text, **places}
    if name == "gpt_neox":
        config = hf.GPTNeoXConfig(**small, **sizes)
        return lambda: hf.GPTNeoXModel(config), {**text, **places}
    if name == "bloom":
        config = hf.BloomConfig(**small, hidden_size=64, n_layer=2, n_head=2)
        return lambda: hf.BloomModel(config), text
    if name == "t5":
        config = hf.T5Config(vocab_size=256, d_model=64, num_layers=2, num_heads=2)
        return lambda: hf.T5Model(config), {**text, "decoder_input_ids": ids(2, 9)}
    config = hf.WhisperConfig(
        **small,
        num_mel_bins=16,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
        encoder_ffn_dim=64,
        d_model=64,
        max_source_positions=50,
        decoder_start_token_id=3,
        begin_suppress_tokens=[22, 200],
    )
    features = torch.randn(2, 16, 100)
    return lambda: hf.WhisperModel(config), {
        "input_features": features,
        "decoder_input_ids": ids(2, 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "bloom", "t5", "whisper"])
@pytest.mark.parametrize("loaded_within", [True, False])
def test_pretrained_models_without_weights(name: str, loaded_within: bool, tmp_path: Path) -> None:
    import onnxruntime
    import safetensors.torch as safetensors

    make, kwargs = pretrained(name)
    kwargs["use_cache"] = False
    real = make().eval()
    real.save_pretrained(tmp_path)
    with gp.fake_mode():
        model = make().eval()
        if loaded_within:
            found = safetensors.load_file(tmp_path / "model.safetensors")
            model.load_state_dict(found, strict=False)
            model.tie_weights()
    tensors = {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
    batch = gp.Dim("batch", min=1)
    spec = {k: {0: batch} if k in tensors and len(v) == 2 else None for k, v in kwargs.items()}  # type: ignore[arg-type]
    program = gp.onnx.export(model, (), kwargs, dynamic_shapes=spec)
    program.save(tmp_path / "m.onnx", state_dict=None if loaded_within else tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for rows in (2, 1, 3):
        given = {
            k: v[:1].expand(rows, *v.shape[1:]).contiguous() if len(v) == 2 else v
            for k, v in tensors.items()
        }
        have = session.run(None, {k: v.numpy() for k, v in given.items()})
        with torch.no_grad():
            want = program.adapt_torch_outputs_to_onnx(real(**{**kwargs, **given}))
        assert_close([torch.from_numpy(t) for t in have], list(want), "results differ")


def gpt2() -> nn.Module:
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return hf.GPT2Model(config).eval()


def test_gpt2_at_other_lengths() -> None:
    batch, length = gp.Dim("batch", min=1), gp.Dim("length", min=1, max=64)

    def inputs(rows: int, count: int) -> tuple[Any, dict[str, Any]]:
        mask = torch.ones(rows, count, dtype=torch.bool)
        places = torch.arange(count).unsqueeze(0).view(-1, count)
        more = {"attention_mask": mask, "position_ids": places}
        return (ids(rows, count),), {**more, "use_cache": False, "return_dict": False}

    spec = {
        "input_ids": {0: batch, 1: length},
        "attention_mask": {0: batch, 1: length},
        "position_ids": {1: length},
        "use_cache": None,
        "return_dict": None,
    }
    check(
        gpt2(),
        *inputs(2, 12),
        dynamic_shapes=spec,
        kinds=OURS,
        others=[inputs(3, 20), inputs(1, 1)],
    )


def test_none_before_other_inputs_of_gpt2() -> None:
    args = (ids(1, 3), None, None, torch.ones(1, 3, dtype=torch.long))
    numbers = {"return_dict": False, "use_cache": False}
    check(gpt2(), args, numbers, kinds=OURS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "bloom", "t5", "whisper"])
def test_pretrained_models(name: str) -> None:
    make, kwargs = pretrained(name)
    kwargs["use_cache"] = False
    batch = gp.Dim("batch", min=1)
    spec = {
        k: {0: batch} if isinstance(v, torch.Tensor) and len(v) == 2 else None
        for k, v in kwargs.items()
    }
    report = gp.onnx.export(make().eval(), (), kwargs, dynamic_shapes=spec).verify()
    assert report.ok and len(report.sizes_tried) > 3, report
