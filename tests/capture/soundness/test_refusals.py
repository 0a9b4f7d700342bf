"""What cannot be captured is refused by name, with what to write instead."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import graphport as gp
from graphport.errors import InputError, UnsupportedError
from tests.program.saved import check_round_trip
from tests.test_bad_models import Layer, Parent, quantised, with_weight

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def refusal(model: Any, *args: Any) -> str:
    with pytest.raises((InputError, UnsupportedError)) as caught:
        gp.export(model, args)
    return str(caught.value)


def test_tensor_subclasses_are_named():
    said = refusal(Parent(with_weight(quantised())), X)
    assert "the parameter 'child.weight' is a tests.test_bad_models.Quantised" in said
    assert "child.weight.dequantize()" in said


def test_tensor_subclasses_within_the_program_are_asked():
    ep = gp.export(lambda x: (TwoTensor(x, x * 2) + 1).b, (X,))
    torch.testing.assert_close(ep.module()(X), X * 2 + 1)
    assert [n.target for n in ep.graph.nodes if n.op == "call_function"].count(
        torch.ops.aten.add.Tensor
    )


def test_a_constant_of_another_layout_is_refused_at_an_operator():
    held = torch.eye(4).to_sparse()
    said = refusal(lambda x: x @ held, X)
    assert "has layout torch.sparse_coo" in said
    assert ".to_dense()" in said
    assert "x @ held" in said


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_tensors_made_by_the_program(make):
    said = refusal(lambda x: torch.mm(make(x), torch.ones(4, 2)), X)
    assert "a sparse tensor" in said
    assert "test_refusals.py" in said


def test_a_traced_module_is_captured():
    torch.manual_seed(0)
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
        model = Parent(torch.jit.trace(Layer(), (X,)))
    ep = gp.export(model, (X,))
    torch.testing.assert_close(ep.module()(X), model(X))
    assert "child.lin.weight" in ep.state_dict


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_wrappers_of_several_processes(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    wrapped = Parent(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
    ep = gp.export(wrapped, (X,), dynamic_shapes=({0: gp.Dim("n")},))
    torch.testing.assert_close(ep.module()(X[:1]), wrapped(X[:1]))
    assert sorted(ep.state_dict) == ["child.module.bias", "child.module.weight"]
    gp.onnx.export(wrapped, (X,), verify=True)
    sharded = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    ep = gp.export(sharded, (X,), dynamic_shapes=({0: gp.Dim("n")},))
    torch.testing.assert_close(ep.module()(X[:1]), sharded(X[:1]))
    assert sorted(ep.state_dict) == sorted(sharded.state_dict())
    assert all(type(p).__name__ == "DTensor" for p in sharded.parameters())
    gp.onnx.export(sharded, (X,), verify=True)
    halved = nn.Linear(4, 4)
    fully_shard(halved, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    said = refusal(halved, X)
    assert "sharded by fully_shard" in said
    assert "full_state_dict=True" in said
    with mock.patch.object(dist.ProcessGroup, "size", return_value=2):
        assert "model.module" in refusal(wrapped.child, X)
        assert "the module 'child' is a DistributedDataParallel" in refusal(wrapped, X)
    model = ShardedProduct(mesh)
    with pytest.raises(UnsupportedError, match="DTensor"):
        gp.export(model, (X,), dynamic_shapes=({0: gp.Dim("n")},))
    ep = gp.export(model, (X,))  # one process has all of it
    torch.testing.assert_close(ep.module()(X), model(X))
    torch.testing.assert_close(gp.onnx.export(ep)(X), model(X))
    with mock.patch.object(type(mesh), "size", return_value=2):  # as if there were another
        said = refusal(model, X)
    assert "the parameter 'weight' is a torch.distributed.tensor.DTensor" in said
    assert "full_state_dict=True" in said


class ShardedProduct(nn.Module):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import Shard, distribute_tensor

        self.mesh = mesh
        self.weight = nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Replicate

        local: torch.Tensor = DTensor.from_local(x, self.mesh, [Replicate()])
        return nn.functional.linear(local, self.weight).to_local()  # type: ignore[operator]


# What was refused, and is not


def test_a_size_is_an_input_like_a_tuple():
    def run(x, size):
        return x.expand(size)

    ep = gp.export(run, (X, torch.Size([2, 3, 4])))
    check_round_trip(ep)
    for size in (torch.Size([2, 3, 4]), (2, 3, 4)):
        assert ep.module()(X, size).shape == (2, 3, 4)


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def test_arguments_in_a_named_tuple():
    ep = gp.export(lambda a, b: a - b, Pair(X, X * 2))
    torch.testing.assert_close(ep.module()(X, X * 2), -X)
    torch.testing.assert_close(ep.module()(*Pair(X, X * 2)), -X)


@pytest.mark.parametrize("check_guards", [True, False])
def test_a_dict_in_another_order(check_guards):
    ep = gp.export(lambda d: d["a"] - d["b"][0]["c"], ({"a": X, "b": [{"c": X * 2, "d": X}]},))
    module = ep.module(check_guards=check_guards)
    torch.testing.assert_close(module({"b": [{"d": X, "c": X * 3}], "a": X}), X * -2)
    if check_guards:
        with pytest.raises(ValueError, match="keys"):
            module({"b": [{"c": X}], "a": X})


def test_hooks_of_the_state_dict_do_not_run():
    ran = []
    model = Layer()
    model.register_state_dict_pre_hook(lambda *args: ran.append("before"))
    model.register_state_dict_post_hook(lambda *args: ran.append("after"))
    ep = gp.export(model, (X,))
    assert ran == []
    assert list(ep.state_dict) == ["shift", "lin.weight", "lin.bias"]
    assert "hidden" in ep.constants


def test_a_module_that_holds_itself():
    model = Layer()
    model.lin.above = model
    ep = gp.export(model, (X,))
    torch.testing.assert_close(ep.module()(X), model(X))


def test_sizes_that_differ_are_not_equal():
    def run(x):
        return x + 1 if torch.equal(x, x[:2]) else x + 2

    torch.testing.assert_close(gp.export(run, (X,)).module()(X), X + 2)


def test_seeds_are_no_part_of_the_program():
    def run(x):
        torch.manual_seed(0)
        return x + torch.randn(4)

    with pytest.warns(gp.errors.CaptureWarning, match="seeds"):
        gp.export(run, (X,))


def test_functions_of_a_subclass_are_no_part_of_the_program():
    class Counting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, kinds, args=(), kwargs=None):
            return super().__torch_function__(func, kinds, args, kwargs)

    with pytest.warns(gp.errors.CaptureWarning, match="captured as a torch.Tensor"):
        gp.export(lambda x: x + 1, (X.as_subclass(Counting),))


def test_the_default_dtype_at_the_time_is_kept():
    def run(x):
        torch.set_default_dtype(torch.float64)
        return x + torch.ones(4)

    assert gp.export(run, (X,)).module()(X).dtype is torch.float64
    assert torch.get_default_dtype() is torch.float32


def test_real_and_imaginary_parts_of_a_conjugate():
    ep = gp.export(lambda x: torch.complex(x, x).conj()[1:].imag, (X,))
    torch.testing.assert_close(ep.module()(X), -X[1:])


def test_a_size_as_a_key_is_refused_at_its_line():
    factors = {3: 2.0}
    with pytest.raises(UnsupportedError, match="hashes a size that is open") as caught:
        gp.export(
            lambda x: x * factors.get(x.shape[0], 1), (X,), dynamic_shapes=({0: gp.Dim("n")},)
        )
    assert "factors.get(x.shape[0], 1)" in str(caught.value)
    assert "leave the size fixed" in str(caught.value)


def test_a_layer_that_initialises_itself_is_to_be_called_before():
    class Lazy(nn.modules.lazy.LazyModuleMixin, nn.Module):
        cls_to_become = None

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.UninitializedParameter()

        def initialize_parameters(self, x: torch.Tensor) -> None:
            with torch.no_grad():
                self.scale.materialize((4,))
                self.scale.copy_(torch.arange(4.0, device=x.device))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    said = refusal(Lazy(), X)
    assert "call the model once before" in said
    model = Lazy()
    expected = model(X)
    torch.testing.assert_close(gp.export(model, (X,)).module()(X), expected)
