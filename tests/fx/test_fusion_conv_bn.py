from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Tracer, symbolic_trace

import graphport as gp
from examples import mobilenet, resnet
from graphport import errors
from graphport.fx import NormalizeArgs, ShapeProp, fuse, split_module

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def ready(model: nn.Module) -> nn.Module:
    """In eval mode, with statistics as training would have left them."""
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            if m.running_mean is not None:
                m.running_mean.uniform_(-1, 1)
                m.running_var.uniform_(0.5, 2)
            if m.affine:
                nn.init.uniform_(m.weight, 0.5, 2)
                nn.init.uniform_(m.bias, -1, 1)
    return model.eval()


def norms(gm: Any) -> int:
    """Batch norms that a module calls, and modules for them that it has."""
    called = sum("batch_norm" in str(n.target) for n in gm.graph.nodes)
    return called + sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in gm.modules())


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


_CASES = list(itertools.product((1, 2, 3), (False, True), (False, True), (False, True), (1, 2)))


@pytest.mark.parametrize(("dims", "transposed", "bias", "affine", "groups"), _CASES)
def test_every_convolution(
    dims: int, transposed: bool, bias: bool, affine: bool, groups: int
) -> None:
    conv = (TRANSPOSED if transposed else CONVS)[dims]
    model = ready(
        nn.Sequential(
            conv(4, 6, 3, stride=2, padding=1, bias=bias, groups=groups),
            NORMS[dims](6, affine=affine, eps=0.01),
            nn.ReLU(),
        )
    )
    x = torch.randn(2, 4, *[7] * dims)
    fused = fuse(model)
    assert norms(fused) == 0 and norms(symbolic_trace(model)) == 1
    close(fused(x), model(x))
    fused = fuse(gp.export(model, (x,)))
    assert norms(fused) == 0
    close(fused(x), model(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: resnet.ResNet((1, 1), 10),
        lambda: mobilenet.mobilenet_v3_small(10),
        pytest.param(resnet.resnet50, marks=pytest.mark.slow),
    ],
)
def test_models(make: Any) -> None:
    model = ready(make())
    x = torch.randn(2, 3, 32, 32)
    for given in (model, symbolic_trace(model), gp.export(model, (x,))):
        fused = fuse(given)
        assert norms(fused) == 0
        torch.testing.assert_close(fused(x), model(x), rtol=1e-3, atol=1e-3)


def test_programs_keep_names_of_state_sizes_and_checks() -> None:
    model = ready(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)))
    ep = gp.export(model, (torch.randn(2, 3, 5, 5),), dynamic_shapes=({0: gp.Dim("b")},))
    for program in (ep, ep.run_decompositions()):
        fused = fuse(program)
        assert norms(fused) == 0
        assert set(fused.state_dict()) == {"0.weight", "0.bias"}
        x = torch.randn(5, 3, 5, 5)
        close(fused(x), model(x))
        with pytest.raises(Exception, match="to be equal to 3"):
            fused(torch.randn(5, 2, 5, 5))
        assert all("val" in n.meta for n in fused.graph.nodes if n.op != "output")
    close(ep.module()(x), model(x))


def test_norms_that_do_not_know_their_statistics_stay() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    for given in (model, gp.export(model, (x,))):
        fused = fuse(given)
        assert norms(fused) > 0
        close(fused(x), model(x))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert norms(fuse(model)) == 1  # it is being trained
    assert norms(fuse(gp.export(model, (x,)))) == 1


@pytest.mark.parametrize(
    ("conv", "norm"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_dtypes_that_differ(conv: torch.dtype, norm: torch.dtype) -> None:
    layers = nn.Conv2d(3, 16, 3, padding=1, bias=False, dtype=conv), nn.BatchNorm2d(16, dtype=norm)
    model = ready(nn.Sequential(*layers))
    x = torch.randn(1, 3, 16, 16, dtype=conv)
    for given in (model, gp.export(model, (x,))):
        fused = fuse(given)
        assert norms(fused) == 0
        assert fused(x).dtype == conv == fused.get_parameter("0.weight").dtype
        tolerance = 0.1 if conv is torch.bfloat16 else 1e-6
        torch.testing.assert_close(fused(x), model(x), rtol=tolerance, atol=tolerance)


class SharedConv(nn.Module):
    """One convolution with two norms, without one, and a norm after two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.a, self.b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        return self.a(self.conv(x)), self.b(self.conv(x)), self.conv(x), self.a(self.other(x))


def test_shared_convolutions_are_fused_for_each_call() -> None:
    model = ready(SharedConv())
    x = torch.randn(2, 3, 4, 4)
    for given in (model, gp.export(model, (x,))):
        fused = fuse(given)
        assert norms(fused) == 0
        close(fused(x), model(x))


def test_a_result_that_is_used_elsewhere() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.bn2 = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return self.bn(y) + y, self.bn2(self.conv(x))

    model = ready(Model())
    x = torch.randn(3, 2, 4)
    for given in (model, gp.export(model, (x,))):
        fused = fuse(given)
        # In the program, one convolution was captured twice.
        assert norms(fused) == 1
        close(fused(x), model(x))


def test_linear_layers() -> None:
    model = ready(nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()))
    x = torch.randn(5, 4)
    known = symbolic_trace(model)
    ShapeProp(known).propagate(x)
    for given in (known, gp.export(model, (x,))):
        fused = fuse(given)
        assert norms(fused) == 0
        close(fused(x), model(x))
    # Here the norm is of the second dim, and the layer of the third; or may be.
    model = ready(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    x = torch.randn(2, 6, 4)
    for given in (model, gp.export(model, (x,))):
        fused = fuse(given)
        assert norms(fused) == 1
        close(fused(x), model(x))
    assert norms(fuse(ready(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(3))))) == 1


def test_functions() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(4))
            self.register_buffer("mean", torch.randn(4))
            self.register_buffer("var", torch.rand(4) + 1)
            self.bn = nn.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            a = F.batch_norm(F.conv2d(x, self.w, padding=1), self.mean, self.var, self.v, eps=0.1)
            b = self.bn(torch.conv2d(x, weight=self.w, bias=self.v, stride=2))
            return a, b, F.batch_norm(x, self.mean[:3], self.var[:3])

    model = ready(Model())
    x = torch.randn(2, 3, 6, 6)
    fused = fuse(model)
    assert norms(fused) == 1  # the last has no convolution before it
    close(fused(x), model(x))


def test_a_convolution_whose_weight_the_program_writes_to() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randn(2, 2, 1))
            self.bn = nn.BatchNorm1d(2)

        def forward(self, x: Any) -> Any:
            y = self.bn(F.conv1d(x, self.w))
            self.w.mul_(2)
            return y

    model = ready(Model())
    x = torch.randn(1, 2, 3)
    fused, whole = fuse(gp.export(model, (x,))), gp.export(model, (x,)).module()
    for _ in range(2):
        close(fused(x), whole(x))


def test_hooks_and_parametrizations_are_respected() -> None:
    hooked = nn.Conv1d(2, 2, 1)
    hooked.register_forward_hook(lambda module, args, out: out + 1)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 2, 1))
    x = torch.randn(3, 2, 4)
    for conv in (hooked, normed):
        model = ready(nn.Sequential(conv, nn.BatchNorm1d(2)))
        gm = symbolic_trace(model)
        close(fuse(gm, no_trace=True)(x), model(x))


def test_what_is_copied_and_what_is_shared() -> None:
    model = ready(nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.Conv1d(2, 2, 1)))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert fuse(model).get_submodule("2").weight is not model[2].weight
    gm = symbolic_trace(model)
    assert fuse(gm, inplace=True) is gm and norms(gm) == 0
    assert fuse(model, inplace=True).get_submodule("2") is model[2]
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key])


def test_graphs_within_graphs() -> None:
    model = ready(nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)))
    split = split_module(symbolic_trace(model), None, lambda n: int(n.target == "1"))
    x = torch.randn(1, 2, 3)
    assert norms(fuse(split, no_trace=True)) == 1
    assert norms(fuse(split)) == 0
    close(fuse(split)(x), model(x))


def test_metadata_are_kept() -> None:
    gm = symbolic_trace(ready(nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2))))
    for node in gm.graph.nodes:
        node.meta["mark"] = node.name
    assert [n.meta["mark"] for n in fuse(gm).graph.nodes] == ["input_1", "_0", "output"]


def test_wrong_inputs() -> None:
    with pytest.raises(errors.InputError, match="fuse takes a module or an ExportedProgram"):
        fuse(torch.relu)


def test_state_that_is_read_elsewhere() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

        def forward(self, x: Any) -> Any:
            y = self.bn(self.conv(x))
            return y, self.conv.weight * 2, self.bn.running_var + self.bn.bias

    model = ready(Model())
    x = torch.randn(3, 2, 4)
    for given in (model, symbolic_trace(model), gp.export(model, (x,))):
        fused = fuse(given)
        called = {str(n.target) for n in fused.graph.nodes}
        assert not called & {"bn", "aten.batch_norm.default"}
        close(fused(x), model(x))


@pytest.mark.parametrize("name", ["conv.weight", "bn.running_mean"])
def test_modules_whose_state_the_graph_writes_to(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

        def forward(self, x: Any) -> Any:
            written = self.conv.weight if name == "conv.weight" else self.bn.running_mean
            written.data.clamp_(0, 0.1)
            return self.bn(self.conv(x))

    class WithBuffers(Tracer):
        proxy_buffer_attributes = True

    model = ready(Model())
    fused = fuse(GraphModule(model, WithBuffers().trace(model)))
    x = torch.randn(3, 2, 4)
    for _ in range(2):
        close(fused(x), model(x))


@pytest.mark.parametrize("exported", [False, True])
def test_arguments_by_name(exported: bool) -> None:
    layers = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 3, 1)
    model = ready(nn.Sequential(*layers, nn.BatchNorm2d(3)))
    x = torch.randn(2, 3, 5, 5)
    gm = gp.export(model, (x,)).module() if exported else symbolic_trace(model)
    fused = fuse(NormalizeArgs(gm).transform())
    assert norms(fused) == 0
    close(fused(x), model(x))


def test_a_program_that_was_split_is_called_as_before() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

        def forward(self, batch: Any, *, flag: Any) -> Any:
            y = self.bn(self.conv(batch["x"]))
            z = torch.cond(flag, lambda v: v.sin(), lambda v: v.cos(), (y,))
            return {"pair": (y, z), "flag": flag}

    model = ready(Model())
    batch, flag = {"x": torch.randn(3, 2, 4)}, torch.tensor(True)
    shapes = {"batch": {"x": {0: gp.Dim("b")}}, "flag": None}
    ep = gp.export(model, (batch,), {"flag": flag}, dynamic_shapes=shapes)
    split = split_module(ep, None, lambda n: int("conv" not in n.name))
    fused = fuse(split_module(split, None, lambda n: n.name))
    calls = [n for n in fused.graph.nodes if n.op == "call_function"]
    assert norms(fused) == 0 and all("val" in n.meta for n in calls)
    batch = {"x": torch.randn(5, 2, 4)}
    close(fused(batch, flag=flag), ep.module()(batch, flag=flag))
    with pytest.raises(Exception, match="to be equal to 2"):
        fused({"x": torch.randn(5, 3, 4)}, flag=flag)


def test_weights_are_folded_in_float64_and_rounded_once() -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64).eval()
    for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
        nn.init.uniform_(t, 0.1, 3)
    factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    exact = conv.weight.double() * factor.reshape(-1, 1, 1, 1)
    fused = fuse(nn.Sequential(conv, norm).eval())
    assert torch.equal(fused.get_submodule("0").weight, exact.float())
