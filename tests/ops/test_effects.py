"""What operators write to, share memory with and how they lay out results, as eager has it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, Node
from torch.testing._internal.common_methods_invocations import op_db

import graphport as gp
from graphport.compat.torch import OpOverload, pytree
from graphport.fx.effects import find_mutated_values
from graphport.ops.effects import CONTIGUOUS_RESULTS, find_aliased_arguments, find_mutated_arguments

aten = torch.ops.aten


def list_operators() -> Iterator[OpOverload]:
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            packet, _, overload = name[len("aten::") :].partition(".")
            yield getattr(getattr(aten, packet), overload or "default")


def record_call(op: OpOverload, args: Any, kwargs: Any) -> tuple[Node, dict[Node, torch.Tensor]]:
    """A call in a graph, and the tensors that its inputs stand for."""
    graph, given = Graph(), {}

    def take(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        node = graph.placeholder("x")
        given[node] = x
        return node

    args, kwargs = pytree.tree_map(take, (tuple(args), kwargs))
    return graph.call_function(op, args, kwargs), given


def memory_of(x: Any) -> set[int]:
    found = [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor) and t.numel()]
    return {t.untyped_storage()._cdata for t in found if t.layout is torch.strided}


def sample_calls() -> Iterator[tuple[OpOverload, Any, Any]]:
    for info in op_db:
        packet = getattr(aten, info.name.split(".")[-1], getattr(aten, info.name, None))
        dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
        if packet is None or dtype not in info.dtypes:
            continue
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), 6):
            for overload in packet.overloads():
                yield getattr(packet, overload), (sample.input, *sample.args), sample.kwargs
    x, v = torch.randn(1, 4, 2, 2), torch.randn(3)
    for op in (
        aten.dropout.default,
        aten.alpha_dropout.default,
        aten.feature_dropout.default,
        aten.feature_alpha_dropout.default,
    ):
        yield op, (x, 0.5, False), {}
    yield aten._unsafe_view.default, (x, [4, 4]), {}
    yield aten._cast_Float.default, (x,), {}
    yield aten.type_as.default, (x, x), {}
    yield aten.to_dense.default, (x,), {}
    yield aten.lift.default, (x,), {}
    yield aten.cartesian_prod.default, ([v],), {}
    yield aten.einsum.default, ("abcd->badc", [x]), {}
    yield aten.broadcast_tensors.default, ([x, v[:2]],), {}
    yield aten.unsafe_split_with_sizes.default, (v, [1, 2]), {}


@pytest.mark.slow
def test_memory_of_results_is_known() -> None:
    """What shares memory in eager is said to do so, by the schema or by ourselves."""
    missing, called = set(), 0
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for op, args, kwargs in sample_calls():
            if op._schema.is_mutable:
                continue
            try:
                shown = memory_of(op(*args, **kwargs))
            except Exception:  # noqa: BLE001  another overload
                continue
            called += 1
            node, given = record_call(op, args, kwargs)
            aliased = set(find_aliased_arguments(node))
            told = memory_of([given[n] for n in aliased])
            if shown & memory_of(list(given.values())) - told:
                missing.add(str(op))
    assert not missing
    assert called > 1000


def call_with_statistics(op: OpOverload, training: bool) -> tuple[Any, list[torch.Tensor]] | None:
    """Arguments by name; None for what does not run here."""
    mean, var = torch.zeros(3), torch.ones(3)
    values = {
        "input": torch.randn(4, 3, 5),
        "weight": torch.ones(3),
        "bias": torch.zeros(3),
        "running_mean": mean,
        "running_var": var,
        "training": training,
        "use_input_stats": training,
        "momentum": 0.1,
        "eps": 1e-5,
        "cudnn_enabled": False,
    }
    names = [a.name for a in op._schema.arguments]
    if not {"running_mean", "running_var"} <= set(names) <= set(values):
        return None
    return [values[n] for n in names], [mean, var]


@pytest.mark.parametrize("training", [False, True])
def test_running_statistics_that_eager_writes(training: bool) -> None:
    tried = []
    for op in list_operators():
        found = call_with_statistics(op, training)
        if found is None:
            continue
        args, statistics = found
        before = [t.clone() for t in statistics]
        try:
            op(*args)
        except (RuntimeError, NotImplementedError):
            continue
        tried.append(op.overloadpacket.__name__)
        node, given = record_call(op, args, {})
        written = {id(given[n]) for n in find_mutated_arguments(node)}
        declared = any(a.alias_info is not None for a in op._schema.arguments)
        for t, old in zip(statistics, before, strict=True):
            changed = not torch.equal(t, old)
            assert (id(t) in written) >= changed, op
            assert declared or (id(t) in written) == changed, op
    assert {"batch_norm", "instance_norm", "native_batch_norm", "batch_norm_update_stats"} <= {
        *tried
    }


def layouts(*shape: int) -> Iterator[torch.Tensor]:
    """Tensors of one size in all orders of dims, with gaps, and expanded."""
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(d) for d in range(len(shape))]
        yield torch.randn([shape[d] for d in order]).permute(back)
    yield torch.randn([2 * n for n in shape])[tuple(slice(None, None, 2) for _ in shape)]
    yield torch.randn(shape[0], *[1] * (len(shape) - 1)).expand(shape)


OPERANDS: dict[OpOverload, list[tuple[Any, ...]]] = {
    aten.mm.default: [((3, 4), (4, 5))],
    aten.addmm.default: [((3, 5), (3, 4), (4, 5)), ((5,), (3, 4), (4, 5))],
    aten.bmm.default: [((2, 3, 4), (2, 4, 5))],
    aten.baddbmm.default: [((2, 3, 5), (2, 3, 4), (2, 4, 5))],
    aten.linear.default: [((3, 4), (5, 4)), ((2, 3, 4), (5, 4), (5,)), ((2, 3, 2, 4), (5, 4))],
    aten.matmul.default: [
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (3, 2, 4, 5)),
    ],
    aten.embedding.default: [((6, 4), torch.tensor([[0, 1, 2], [3, 4, 5]]).t())],
    aten.index_select.default: [((2, 3, 4), 1, torch.tensor([0, 2]))],
}


@pytest.mark.parametrize("op", sorted(CONTIGUOUS_RESULTS, key=str), ids=str)
def test_results_that_are_contiguous_whatever_the_operands(op: OpOverload) -> None:
    for given in OPERANDS[op]:
        choices = [list(layouts(*x)) if isinstance(x, tuple) else [x] for x in given]
        for args in itertools.product(*choices):
            assert op(*args).is_contiguous(), [a.stride() for a in args if hasattr(a, "stride")]


def test_a_write_through_a_function_that_is_no_method_is_a_write_to_its_argument() -> None:
    class Diagonal(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.linalg.diagonal(x).add_(1)
            return x * 2

    gm = torch.fx.symbolic_trace(Diagonal())
    assert {n.name for n in find_mutated_values(gm.graph, {})} >= {"x"}


def test_a_write_to_what_dropout_hands_on_leaves_the_state_of_the_program() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nn.functional.dropout(self.seen, 0.5, False).add_(1)
            return x + self.seen

    ep = gp.export(Model(), (torch.ones(3),), training=True)
    module = ep.module()
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(ep.state_dict["seen"], torch.zeros(3))
