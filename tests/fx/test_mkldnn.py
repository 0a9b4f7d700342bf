from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Tracer, symbolic_trace

import graphport as gp
from examples import mobilenet, resnet
from graphport import errors
from graphport.fx import gen_mkl_autotuner, optimize_for_inference, use_mkl_length


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def always(part: Any) -> bool:
    return True


ALWAYS = {"mkldnn_layout_optimize": {"heuristic": always}}


def borders(gm: Any) -> tuple[int, int]:
    """How often tensors are converted, there and back."""
    names = [n.target for n in gm.graph.nodes if n.op == "call_method"]
    return names.count("to_mkldnn"), names.count("to_dense")


def check(model: nn.Module, x: Any, config: Any = ALWAYS, exported: bool = True) -> list[Any]:
    """Optimised, the model and its program give what the model gives."""
    args = x if isinstance(x, tuple) else (x,)
    found = []
    for given in (model, gp.export(model, args)) if exported else (model,):
        fast = optimize_for_inference(given, config)
        torch.testing.assert_close(fast(*args), model(*args), rtol=1e-4, atol=1e-4)
        found.append(fast)
    return found


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = self.layers(), self.layers()

    def layers(self) -> nn.Sequential:
        triples = ((nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(10))
        return nn.Sequential(*(layer for triple in triples for layer in triple))

    def forward(self, x: Any) -> Any:
        return self.left(x) + self.right(x)


def test_branches_that_meet_are_one_part() -> None:
    model = Branches().eval()
    for fast in check(model, torch.randn(1, 3, 16, 16), None):
        assert borders(fast) == (1, 1)
        assert not any("batch_norm" in str(n.target) for n in fast.graph.nodes)
    check(model, torch.randn(1, 3, 16, 16), {"remove_dropout": False})


@pytest.mark.parametrize(
    "make",
    [
        lambda: resnet.ResNet((1, 1), 10),
        lambda: mobilenet.mobilenet_v3_small(10),
        pytest.param(resnet.resnet50, marks=pytest.mark.slow),
    ],
)
def test_models(make: Any) -> None:
    model = make()
    model(torch.randn(2, 3, 32, 32))  # for the running statistics
    for fast in check(model.eval(), torch.randn(1, 3, 32, 32)):
        assert borders(fast) != (0, 0)


_LAYERS: list[tuple[Any, tuple[int, ...], bool]] = [
    (nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (2, 4, 9, 9), True),
    (nn.Conv2d(4, 6, 3, padding="same"), (2, 4, 9, 9), False),
    (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 9, 9), False),
    (nn.Conv2d(4, 6, 3, bias=False), (2, 4, 9, 9), True),
    (nn.Conv1d(4, 6, 3), (2, 4, 9), True),
    (nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5), True),
    (nn.ConvTranspose2d(4, 6, 3), (2, 4, 9, 9), False),
    (nn.Linear(4, 6), (2, 3, 4), True),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 4, 8, 8), True),
    (nn.MaxPool2d(3, dilation=2), (2, 4, 8, 8), False),
    (nn.AvgPool2d(3, 2, 1), (2, 4, 8, 8), True),
    (nn.AvgPool2d(3, count_include_pad=False, padding=1, ceil_mode=True), (2, 4, 8, 8), True),
    (nn.AvgPool2d(2, divisor_override=3), (2, 4, 8, 8), False),
    (nn.AdaptiveAvgPool2d(1), (2, 4, 8, 8), True),
    (nn.AdaptiveAvgPool2d(3), (2, 4, 8, 8), False),
    (nn.AdaptiveAvgPool2d((1, None)), (2, 4, 8, 8), False),
    (nn.Flatten(), (2, 4, 8, 8), True),
    (nn.BatchNorm2d(4), (2, 4, 8, 8), True),
    (nn.BatchNorm2d(4, affine=False), (2, 4, 8, 8), False),
    (nn.BatchNorm2d(4, track_running_stats=False), (2, 4, 8, 8), False),
    (nn.Sigmoid(), (2, 4), True),
    (nn.Hardswish(), (2, 4), False),
]


@pytest.mark.parametrize(("layer", "size", "taken"), _LAYERS)
def test_layers(layer: nn.Module, size: tuple[int, ...], taken: bool) -> None:
    convs: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    flat = isinstance(layer, nn.Linear) or len(size) == 2
    before = nn.Linear(4, 4) if flat else convs[len(size) - 3](4, 4, 1)
    model = nn.Sequential(before, layer).eval()
    parts: list[int] = []

    def heuristic(part: Any) -> bool:
        parts.append(len(part.nodes))
        return True

    config = {"conv_bn_fuse": False, "mkldnn_layout_optimize": {"heuristic": heuristic}}
    x = torch.randn(size)
    check(model, x, config, exported=False)
    assert parts == [2 if taken else 1]
    check(model, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float32])
def test_parts_without_weights_may_be_of_any_dtype(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.Identity())
    for fast in check(model, torch.ones(2, 3, 4, dtype=dtype), None):
        assert borders(fast) == (0, 0)


def test_a_branch_that_is_known_to_be_of_another_dtype() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Any, y: Any) -> Any:
            return torch.relu(self.conv(x)) + torch.relu(torch.relu(y))

    inputs = torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4).double()
    program = gp.export(Model().eval(), inputs)
    fast = optimize_for_inference(program, ALWAYS)
    torch.testing.assert_close(fast(*inputs), program.module()(*inputs))
    assert borders(fast) == (1, 1)


def test_functions_numbers_and_broadcasts() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

        def forward(self, x: Any) -> Any:
            y = F.relu(self.conv(x), inplace=True)
            gate = torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1)))
            y = y * gate + 1 + 2 * y
            return torch.transpose(self.gate(y), 1, 2), F.max_pool2d(y, 2), y.shape[0] + 1

    check(Model().eval(), torch.randn(2, 3, 8, 8))


def test_what_is_written_to_is_seen_elsewhere() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            y = x + 0
            z = self.relu(y)
            return z + y, torch.relu_(x)

    x = torch.randn(2, 3)
    fast = optimize_for_inference(Model(), ALWAYS)
    a, b = x.clone(), x.clone()
    torch.testing.assert_close(fast(a), Model()(b))
    torch.testing.assert_close(a, b)


def test_layers_that_are_shared_and_layers_that_stay() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = nn.Conv2d(3, 3, 1), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.conv(self.conv(x)))
            return self.lin(y.mean((2, 3)).exp()), self.conv(x.exp()).exp()

    model = Model().eval()
    x = torch.randn(2, 3, 4, 4)
    # The first part has more than two nodes, and the others one each.
    fast = optimize_for_inference(model)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert borders(fast) == (1, 1)
    assert isinstance(fast.lin, nn.Linear) and isinstance(fast.conv, nn.Conv2d)
    check(model, x)


def test_other_dtypes_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1)).double().eval()
    x = torch.randn(1, 3, 4, 4).double()
    fast = optimize_for_inference(model)
    torch.testing.assert_close(fast(x), model(x))
    assert borders(fast) == (0, 0)


@pytest.mark.parametrize("config", [None, {"conv_bn_fuse": False, "remove_dropout": False}])
def test_the_model_is_left_as_it_is(config: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout()).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    fast = optimize_for_inference(model, config)
    x = torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert [type(m) for m in model.modules()] == kinds
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key])


def test_passes_can_be_turned_off() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout()).eval()
    none = {"conv_bn_fuse": False, "remove_dropout": False, "mkldnn_layout_optimize": False}
    kinds = [type(m) for m in optimize_for_inference(model, none).children()]
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Dropout]
    kinds = [
        type(m) for m in optimize_for_inference(model, {**none, "conv_bn_fuse": True}).children()
    ]
    assert kinds == [nn.Conv2d, nn.ReLU, nn.Dropout]


def test_wrong_configurations() -> None:
    model = nn.Sequential(nn.ReLU())
    with pytest.raises(errors.InputError, match="'fuse', which is no pass"):
        optimize_for_inference(model, {"fuse": True})
    for wrong, text in ((True, "not a dict"), ({}, "has no heuristic")):
        with pytest.raises(RuntimeError, match=text):
            optimize_for_inference(model, {"mkldnn_layout_optimize": wrong})
    with pytest.raises(errors.InputError, match="iters is an int of at least 0, got -1"):
        gen_mkl_autotuner(torch.ones(1), iters=-1)


def test_a_tracer_of_the_users_own() -> None:
    class Leaf(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    class Own(Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return isinstance(module, Leaf) or super().is_leaf_module(module, name)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), Leaf()).eval()
    x = torch.randn(1, 3, 4, 4)
    fast = optimize_for_inference(model, ALWAYS, tracer=Own)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_heuristics_see_the_parts() -> None:
    seen = []

    def heuristic(part: Any) -> bool:
        seen.append((len(part.nodes), len(part.start_nodes), len(part.end_nodes)))
        return use_mkl_length(part)

    model = Branches().eval()
    fast = optimize_for_inference(model, {"mkldnn_layout_optimize": {"heuristic": heuristic}})
    assert seen == [(41, 1, 1)] and borders(fast) == (1, 1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_autotuner(wrapped: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)).eval()
    x = torch.randn(2, 3, 16, 16)
    tuner = gen_mkl_autotuner([x] if wrapped else x, iters=2)
    for fast in check(model, x, {"mkldnn_layout_optimize": {"heuristic": tuner}}):
        assert borders(fast) in ((0, 0), (1, 1))
    never = gen_mkl_autotuner(x, iters=0, warmup=0)  # nothing is faster than nothing
    (fast,) = check(model, x, {"mkldnn_layout_optimize": {"heuristic": never}}, exported=False)
    assert borders(fast) == (0, 0)


def test_plain_graphs_and_graphs_within_graphs() -> None:
    model = Branches().eval()
    gm = symbolic_trace(model)
    split = gp.fx.split_module(gm, None, lambda n: "join" if n.name == "add" else "rest")
    x = torch.randn(1, 3, 8, 8)
    for given in (gm, split):
        fast = optimize_for_inference(given)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        assert borders(fast) == (1, 1)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.gate, self.relu = nn.Parameter(torch.tensor(0.3)), nn.ReLU(inplace=True)


def test_values_whose_dtype_nothing_tells() -> None:
    class Model(Two):
        def forward(self, x: Any, y: Any, z: Any) -> Any:
            whole = torch.relu(self.a(x)) + torch.relu(torch.relu(y))
            return whole, self.b(torch.sigmoid(z)).tanh(), self.b(x) * torch.sigmoid(self.gate)

    x = torch.randn(1, 3, 4, 4)
    for dtype in (torch.float64, torch.int64):
        check(Model().eval(), (x, x.to(dtype), x.long()))


def test_what_enters_reaches_weights() -> None:
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 3, 1), nn.Flatten()).eval()
    seen: list[int] = []
    config = {"mkldnn_layout_optimize": {"heuristic": lambda part: seen.append(len(part.nodes))}}
    check(model, torch.randn(1, 3, 4, 4), config, exported=False)
    assert seen == [4]


def test_what_others_write_to_stays_as_it_is() -> None:
    class Outside(Two):
        def forward(self, x: Any) -> Any:
            h = self.a(x)
            h[:, 0].mul_(2)
            return self.b(h).relu()

    class Between(Two):
        def forward(self, x: Any) -> Any:
            x = x.clone()
            y = self.a(x.flatten(0, 0))
            x.add_(1)
            return y + self.b(x)

    class View(Two):
        def forward(self, x: Any) -> Any:
            h = self.a(x)
            return self.relu(h.flatten(1)).sigmoid(), h

    class Input(Two):
        def forward(self, x: Any) -> Any:
            return self.b(self.relu(x[:, :3])).sigmoid()

    for kind in (Outside, Between, View, Input):
        model = kind().eval()
        x, y = torch.randn(2, 3, 4, 4).repeat(2, 1, 1, 1, 1)
        fast = optimize_for_inference(model, ALWAYS)
        torch.testing.assert_close(fast(x), model(y), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(x, y)


def test_weights_that_are_read_or_written_elsewhere() -> None:
    class Reading(Two):
        def forward(self, x: Any) -> Any:
            return self.a(x).relu() + self.a.weight.sum()

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: Any) -> Any:
            self.bn.running_mean.add_(1)
            return self.bn(self.conv(x)).relu()

    x = torch.randn(1, 3, 4, 4)
    check(Reading().eval(), x)

    class WithBuffers(Tracer):
        proxy_buffer_attributes = True

    model = Writing().eval()
    fast = optimize_for_inference(model, ALWAYS, tracer=WithBuffers)
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exported", [False, True])
def test_arguments_by_name(exported: bool) -> None:
    conv = nn.Conv2d(3, 3, 1)
    model = nn.Sequential(conv, conv, nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), conv).eval()
    x = torch.randn(1, 3, 4, 4)
    gm = gp.export(model, (x,)).module() if exported else symbolic_trace(model)
    fast = optimize_for_inference(gp.fx.NormalizeArgs(gm).transform())
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert borders(fast) == (1, 1)


@pytest.mark.parametrize(
    ("layers", "size"),
    [
        ((nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1)), (3, 4, 4)),
        ((nn.Conv1d(3, 3, 1), nn.ReLU()), (3, 4)),
        ((nn.Linear(4, 4), nn.MaxPool2d(2), nn.ReLU()), (3, 4, 4)),
        ((nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (1, 2, 1, 2, 1, 2, 4)),
        ((nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,)),
        ((nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (0, 4)),
    ],
)
def test_other_dims_where_shapes_are_known(layers: Any, size: tuple[int, ...]) -> None:
    model, x = nn.Sequential(*layers).eval(), torch.randn(size)
    known = symbolic_trace(model)
    gp.fx.ShapeProp(known).propagate(x)
    for given in (known, gp.export(model, (x,))):
        fast = optimize_for_inference(given, ALWAYS)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
