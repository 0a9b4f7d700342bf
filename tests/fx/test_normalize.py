"""Calls in canonical form: functions by schema and signature, and whole graphs.

PyTorch's database of operators gives calls; each must compute the same in canonical form, and have
the names that the reference gives wherever the reference gives any.
"""

from __future__ import annotations

import copy
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import GraphModule, Node, Tracer, operator_schemas, symbolic_trace
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

import graphport as gp
from examples import resnet
from graphport.errors import GraphError, InputError
from graphport.fx import NormalizeArgs, NormalizeOperators, ShapeProp, normalize_function
from graphport.fx.schemas import restore_schema_names

aten = torch.ops.aten


# Functions, by PyTorch's own samples


class Call:
    """A call of an operator of the database."""

    def __init__(self, op: Any, sample: Any) -> None:
        self.op = op.op
        self.args = (sample.input, *sample.args)
        self.kwargs = sample.kwargs
        # torch.empty gives whatever lay there.
        self.compares = "empty" not in op.name

    def run(self, args: Any, kwargs: Any) -> Any:
        torch.manual_seed(0)
        # Some write to them.
        args, kwargs = tree_map_only(Tensor, own, (args, restore_schema_names(self.op, kwargs)))
        return self.op(*args, **kwargs)

    def types(self) -> tuple[Any, Any]:
        return tuple(map(hint, self.args)), {k: hint(v) for k, v in self.kwargs.items()}


def own(t: Tensor) -> Tensor:
    """A copy, which has all of the memory that a view does not show."""
    return copy.deepcopy(t) if t.layout is torch.strided else t.clone()


def hint(value: Any) -> Any:
    """The type of a value as TorchScript has it, which users pass to the reference."""
    if isinstance(value, Tensor):
        return type(value)
    found = torch._C._jit_try_infer_type(value)
    return operator_schemas._torchscript_type_to_python_type(found.type())


def calls(operators: list[Any], each: int) -> Iterator[Call]:
    for op in operators:
        if torch.float32 in op.supported_dtypes("cpu"):
            samples = op.sample_inputs("cpu", torch.float32)
            for _, sample in zip(range(each), samples, strict=False):
                yield Call(op, sample)


def by_reference(call: Call, types: Any, only: bool) -> Any:
    try:
        return operator_schemas.normalize_function(call.op, call.args, call.kwargs, *types, only)
    except (RuntimeError, ValueError, TypeError):
        return None


def called_input(pair: Any) -> list[str]:
    return ["input" if name == "self" else name for name in pair.kwargs]


def check(call: Call) -> bool:
    """Whether a call has a canonical form; then it is the right one."""
    known: list[Any] = [(None, None)]
    # What TorchScript has no type for is passed without.
    if all(torch._C._jit_try_infer_type(v).success() for v in (*call.args, *call.kwargs.values())):
        known.append(call.types())
    for types in known:
        for only in (False, True):
            found = normalize_function(call.op, call.args, call.kwargs, *types, only)
            wanted = by_reference(call, types, only)
            if found is None:
                assert wanted is None, call.op
                return False
            # A number that a schema has as `self` keeps that name, which the reference changes.
            assert wanted is None or called_input(found) == called_input(wanted), call.op
            assert len(found.args) == (0 if only else len(call.args))
            result = call.run(*found)
            if call.compares:
                expected = call.run(call.args, call.kwargs)
                torch.testing.assert_close(result, expected, equal_nan=True)
    return True


quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@quiet
def test_the_database_of_operators_sample() -> None:
    assert sum(map(check, calls(op_db[::16], 1))) > 25


@quiet
@pytest.mark.slow
def test_the_database_of_operators() -> None:
    assert sum(map(check, calls(op_db, 10_000))) > 10_000


# Functions, one by one

X = torch.ones(2, 3)
NAMES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (torch.add, (X, X), {}, "input other alpha"),
    (torch.add, (X, 3), {}, "input other alpha"),
    (torch.sum, (X,), {}, "input dtype"),
    (torch.sum, (X, 0), {}, "input dim keepdim dtype"),
    (torch.sum, (X, (0, 1)), {"keepdim": True}, "input dim keepdim dtype"),
    (torch.max, (X,), {}, "input"),
    (torch.max, (X, 1), {}, "input dim keepdim"),
    (torch.max, (X, X), {}, "input other"),
    (torch.nonzero, (X,), {}, "input"),
    (torch.pow, (2, X), {}, "self exponent"),
    (torch.searchsorted, (X[0], 2.0), {}, "sorted_sequence self out_int32 right side sorter"),
    (aten.pow, (2, X), {}, "self exponent"),
    (aten.pow, (), {"self": X, "exponent": 2}, "input exponent"),
    (torch.nonzero, (X,), {"as_tuple": True}, "input as_tuple"),
    (torch.cat, ([X, X],), {}, "tensors dim"),
    (torch.clamp, (X, None, 1.0), {}, "input min max"),
    (torch.conv2d, (X, X), {"padding": "same"}, "input weight bias stride padding dilation groups"),
    (torch.where, (X > 0, X, 0.0), {}, "condition input other"),
    (torch.arange, (0, 3), {}, "start end dtype layout device pin_memory"),
    (torch.linalg.norm, (X,), {"ord": 2}, "input ord dim keepdim dtype"),
    (torch.split, (X, 1), {}, "tensor split_size_or_sections dim"),
    (F.relu, (X,), {}, "input inplace"),
    (F.gelu, (X,), {}, "input approximate"),
    (F.linear, (X, X), {}, "input weight bias"),
    (
        F.max_pool1d,
        (X, 2),
        {},
        "input kernel_size stride padding dilation ceil_mode return_indices",
    ),
    (
        F.max_pool1d,
        (X, 2),
        {"return_indices": True},
        "input kernel_size stride padding dilation ceil_mode return_indices",
    ),
    (F.adaptive_max_pool1d, (X, 2), {}, "input output_size return_indices"),
    (aten.add.Tensor, (X, X), {}, "input other alpha"),
    (aten.add, (X, X), {}, "input other alpha"),
    (aten.sum.dim_IntList, (X, [0]), {}, "input dim keepdim dtype"),
    (
        aten.native_layer_norm.default,
        (X, [3], None, None, 1e-5),
        {},
        "input normalized_shape weight bias eps",
    ),
    (aten.full.default, ([2], 1), {}, "size fill_value dtype layout device pin_memory"),
    (aten.uniform_.default, (X,), {}, "input from to generator"),
    (aten.uniform_.default, (X,), {"from": 1.0}, "input from to generator"),
    (Tensor.add, (X, X), {}, "input other alpha"),
    (Tensor.polygamma, (X, 2), {}, "input n"),
    (Tensor.where, (X, X > 0, X), {}, "input condition other"),
    (Tensor.view, (X, 3, 2), {}, "input size"),
    (Tensor.view, (X, 6), {}, "input size"),
    (Tensor.view, (X, torch.float32), {}, "input dtype"),
    (Tensor.hsplit, (X, 3), {}, "input sections"),
    (Tensor.hsplit, (X, [1]), {}, "input indices"),
    (Tensor.permute, (X, 1, 0), {}, "input dims"),
    (Tensor.to, (X, torch.float64), {}, "input dtype non_blocking copy memory_format"),
    (Tensor.contiguous, (X,), {}, "input memory_format"),
    (Tensor.split, (X, 1), {}, "self split_size dim"),
    (
        torch.ops.quantized.embedding_bag_byte_rowwise_offsets,
        (
            torch.empty((2, 3), dtype=torch.uint8),
            torch.empty(2, dtype=torch.int64),
            torch.empty(2, dtype=torch.int64),
        ),
        {},
        "weight indices offsets scale_grad_by_freq mode pruned_weights per_sample_weights "
        "compressed_indices_mapping include_last_offset",
    ),
    (torch.ops.quantized.add, (X, X, 1.0, 0), {}, "qa qb scale zero_point"),
]


@pytest.mark.parametrize(("target", "args", "kwargs", "names"), NAMES)
def test_names(target: Any, args: Any, kwargs: Any, names: str) -> None:
    found = normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=True)
    assert found is not None and found.args == ()
    assert list(found.kwargs) == names.split()


@pytest.mark.parametrize("target", [aten.resize_as_.default, aten.resize_as_])
def test_arguments_are_passed_on_as_they_are(target: Any) -> None:
    x, template = torch.rand(1), torch.rand(4)
    args, kwargs = normalize_function(
        target, (x,), {"the_template": template}, normalize_to_only_use_kwargs=True
    )
    assert args == ()
    assert kwargs["input"] is x and kwargs["the_template"] is template


def test_defaults_are_what_python_takes() -> None:
    """Schemas have dtypes and memory formats as numbers."""
    found = normalize_function(torch.randperm, (3,))
    assert found is not None and found.kwargs["dtype"] is torch.int64
    assert torch.randperm(*found.args, **found.kwargs).shape == (3,)
    found = normalize_function(Tensor.contiguous, (X,))
    assert found is not None and found.kwargs == {"memory_format": torch.contiguous_format}


@pytest.mark.parametrize(
    "target",
    [
        operator.add,
        math.sqrt,
        torch.einsum,
        getattr,
        torch.ops.higher_order.cond,
        torch.device,
        Tensor.__getitem__,
    ],
    ids=lambda target: target.__name__,
)
def test_what_has_no_names(target: Any) -> None:
    assert normalize_function(target, (X, X)) is None


def test_calls_that_no_schema_takes() -> None:
    assert normalize_function(torch.add, (X,)) is None
    assert normalize_function(torch.add, (X, "text")) is None
    assert normalize_function(aten.add.Tensor, (X, X), {"beta": 1}) is None


def test_functions_in_python_say_what_they_take() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'p'") as found:
        normalize_function(lambda x, p: x, (X,))
    assert isinstance(found.value, InputError)
    assert "its arguments are (x, p)" in str(found.value)


def test_unknown_types_that_would_decide() -> None:
    gm = symbolic_trace(lambda x, y: torch.max(x, y))
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with pytest.raises(RuntimeError, match="has several signatures") as found:
        normalize_function(torch.max, node.args)
    assert isinstance(found.value, GraphError)
    assert "arg_types=" in str(found.value) and "ShapeProp" in str(found.value)
    named = normalize_function(torch.max, node.args, arg_types=(Tensor, int))
    assert named is not None and list(named.kwargs) == ["keepdim"]
    named = normalize_function(torch.max, node.args, arg_types=(Tensor, Tensor))
    assert named is not None and named.kwargs == {}


def test_wrapped_overloads() -> None:
    class Edge:
        _op = aten.relu.default

        def __call__(self, x: Tensor) -> Tensor:
            return self._op(x)

    @torch.library.custom_op("graphport_tests::scaled", mutates_args=())
    def scaled(x: Tensor, by: float = 2.0) -> Tensor:
        return x * by

    assert normalize_function(Edge(), (X,), normalize_to_only_use_kwargs=True) == ((), {"input": X})
    for target in (scaled, torch.ops.graphport_tests.scaled.default):
        assert normalize_function(target, (X,), {}, None, None, True) == ((), {"x": X, "by": 2.0})


# Graphs


class FunctionalTracer(Tracer):
    """Goes into all modules but batch norm, whose statistics cannot be traced."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.BatchNorm2d)


def by_position(gm: GraphModule) -> dict[str, int]:
    return {n.name: len(n.args) for n in gm.graph.nodes if n.op.startswith("call")}


def test_resnet_by_keyword() -> None:
    model = resnet.ResNet((1, 1), 10).eval()
    gm = GraphModule(model, FunctionalTracer().trace(model))
    x = resnet.example(size=32)
    expected = gm(x)
    ShapeProp(gm).propagate(x)
    done = NormalizeArgs(gm).transform()
    for node in done.graph.nodes:
        if node.op == "call_function" and node.target is not operator.add:
            assert node.args == (), node
        if node.op == "call_module":
            assert node.args == (), node
        if node.op == "call_method":
            assert len(node.args) == 1, node
    torch.testing.assert_close(done(x), expected)
    assert by_position(gm) != by_position(done), "the graph that was given is left as it is"


def test_metadata_names_and_types_are_kept() -> None:
    def f(a: list[Tensor], b: Tensor) -> Tensor:
        return torch.add(a[0], a[1]) + torch.sum(b, 0)

    f.__annotations__ = {"a": list[Tensor], "b": Tensor, "return": Tensor}
    gm = symbolic_trace(f)
    for i, node in enumerate(gm.graph.nodes):
        node.meta["my_key"] = i
    for change in (NormalizeArgs, NormalizeOperators, gp.fx.AnnotateTypesWithSchema):
        done = change(gm).transform()
        for i, (old, new) in enumerate(zip(gm.graph.nodes, done.graph.nodes, strict=True)):
            assert new.meta["my_key"] == i and new.name == old.name
            assert old.type is None or new.type == old.type
        placeholder = next(iter(done.graph.nodes))
        assert placeholder.type == list[Tensor]
        done.graph.lint()


def exported() -> gp.ExportedProgram:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
            y = self.norm(self.layer(x)).flatten(1)
            return {"sum": torch.add(y, scale, alpha=2).sum(-1), "size": y * x.shape[0]}

    spec = {"x": {0: gp.Dim("batch")}, "scale": None}
    return gp.export(Model(), (torch.randn(2, 3), torch.randn(4)), dynamic_shapes=spec)


def test_exported_programs_by_keyword() -> None:
    ep = exported()
    done = NormalizeArgs(ep.module()).transform()
    overloads = [n for n in done.graph.nodes if isinstance(n.target, OpOverload)]
    assert len(overloads) > 4
    for node in overloads:
        accepted = [a.name for a in node.target._schema.arguments]
        assert node.args == () and list(node.kwargs) == accepted
    for batch in (2, 5):
        args = torch.randn(batch, 3), torch.randn(4)
        torch.testing.assert_close(done(*args), ep.module()(*args))
    # The rewritten module is called, and checks its inputs, as the program's own.
    with pytest.raises(RuntimeError, match=re.escape("Expected input at *args[0].shape[1]")):
        done(torch.randn(2, 4), torch.randn(4))
    with pytest.raises(NotImplementedError):
        done.train()


def test_a_second_time_changes_nothing() -> None:
    done = NormalizeArgs(exported().module()).transform()
    assert NormalizeArgs(done).transform().code == done.code
    named = normalize_function(aten.relu.default, (), {"self": X})
    assert named is not None and named.kwargs == {"input": X}


def test_a_packet_whose_overloads_differ_in_names() -> None:
    op = aten._upsample_bilinear2d_aa
    x = torch.randn(1, 1, 4, 4)
    for program in (lambda x: op(x, [2, 2], False), lambda x: op(x, None, False, [0.5, 0.5])):
        gm = symbolic_trace(program)
        ShapeProp(gm).propagate(x)
        done = NormalizeArgs(gm).transform()
        assert all(n.args == () for n in done.graph.nodes if n.op == "call_function")
        torch.testing.assert_close(done(x), gm(x))


def test_the_functional_graph_by_keyword() -> None:
    ep = exported()
    done = NormalizeArgs(ep.graph_module).transform()
    names = ep.graph_signature.inputs_to_parameters
    state = [ep.state_dict[names[n.name]] for n in ep.graph.nodes if n.name in names]
    args = (*state, torch.randn(2, 3), torch.randn(4))
    torch.testing.assert_close(done(*args), ep.graph_module(*args))
    assert all(n.args == () for n in done.graph.nodes if isinstance(n.target, OpOverload))


def test_methods_of_tensors_that_are_known() -> None:
    gm = symbolic_trace(lambda x: x.view(x.size(0), -1).transpose(0, 1).to(torch.float64).sum(1))
    ShapeProp(gm).propagate(X)
    done = NormalizeArgs(gm).transform()
    shown = {n.target: list(n.kwargs) for n in done.graph.nodes if n.op == "call_method"}
    assert shown == {
        "size": ["dim"],
        "view": ["size"],
        "transpose": ["dim0", "dim1"],
        "to": ["dtype", "non_blocking", "copy", "memory_format"],
        "sum": ["dim", "keepdim", "dtype"],
    }
    torch.testing.assert_close(done(X), gm(X))


def test_methods_of_unknown_values_are_left_alone() -> None:
    gm = symbolic_trace(lambda text: text.split(","))
    done = NormalizeArgs(gm).transform()
    assert done("a,b") == ["a", "b"]


@quiet
def test_methods_of_the_database() -> None:
    """Methods take the names that their schemas have."""
    assert sweep_methods(op_db[1::16]) > 12


@quiet
@pytest.mark.slow
def test_all_methods_of_the_database() -> None:
    assert sweep_methods(op_db) > 250


def sweep_methods(operators: list[Any]) -> int:
    done = 0
    for op in operators:
        if op.method_variant is None or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        sample = next(iter(op.sample_inputs("cpu", torch.float32)), None)
        if sample is None or not isinstance(sample.input, Tensor):
            continue
        method = getattr(Tensor, op.method_variant.__name__, None)
        if method is None:
            continue
        found = normalize_function(
            method, (sample.input, *sample.args), sample.kwargs, None, None, True
        )
        if found is None:
            continue
        (_, tensor), *others = found.kwargs.items()
        torch.manual_seed(0)
        wanted = method(sample.input.clone(), *sample.args, **sample.kwargs)
        torch.manual_seed(0)
        result = method(tensor.clone(), **dict(others))
        if "empty" not in op.name:
            torch.testing.assert_close(result, wanted, equal_nan=True)
        done += 1
    return done


def test_random_numbers_between_bounds() -> None:
    """`from` is no name that generated code can use."""
    gm = symbolic_trace(lambda x: aten.uniform_.default(x, 2.0, 3.0))
    done = NormalizeArgs(gm).transform()
    out = done(torch.zeros(4))
    assert bool((out >= 2).all()) and bool((out <= 3).all())


def test_positions_are_kept_on_request() -> None:
    gm = symbolic_trace(lambda x: torch.sum(x, 0))
    done = NormalizeArgs(gm, normalize_to_only_use_kwargs=False).transform()
    node = next(n for n in done.graph.nodes if n.op == "call_function")
    assert len(node.args) == 2 and node.kwargs == {"keepdim": False, "dtype": None}


def test_wrong_calls_in_a_graph_say_where() -> None:
    gm = symbolic_trace(lambda x: x.relu())
    node = next(n for n in gm.graph.nodes if n.op == "call_method")
    node.op, node.target, node.args = "call_function", F.relu, ()
    node.meta["stack_trace"] = '  File "model.py", line 7, in forward\n'
    with pytest.raises(InputError, match=r"model\.py:7 in forward"):
        NormalizeArgs(gm).transform()
    with pytest.raises(InputError, match=re.escape("pass ep.module()")):
        NormalizeArgs(exported())


# Operators

BINARY = [
    torch.add,
    torch.mul,
    torch.sub,
    torch.div,
    torch.floor_divide,
    torch.remainder,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    torch.multiply,
    torch.subtract,
    torch.divide,
    torch.true_divide,
    torch.not_equal,
    torch.less,
    torch.less_equal,
    torch.greater,
    torch.greater_equal,
]


@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
def test_binary_functions_become_operators(op: Callable[..., Any]) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for program, args in (
        (lambda x, y: op(x, y), (x, y)),
        (lambda x: op(x, 42), (x,)),
        (lambda x, y: op(input=x, other=y), (x, y)),
        (lambda x, y: op(x, other=y), (x, y)),
    ):
        gm = symbolic_trace(program)
        done = NormalizeOperators(gm).transform()
        torch.testing.assert_close(done(*args), gm(*args))
        (call,) = (n for n in done.graph.nodes if n.op == "call_function")
        assert call.target.__module__ == "_operator"
        assert call.type is Tensor


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: torch.sub(x, other=y, alpha=0.5),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.mul(x, y, out=torch.empty(3, 4)),
        lambda x, y: aten.add.Tensor(x, y),
    ],
)
def test_calls_that_say_more_than_an_operator(program: Callable[..., Any]) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    gm = symbolic_trace(program)
    done = NormalizeOperators(gm).transform()
    torch.testing.assert_close(done(x, y), gm(x, y))
    assert [n.target for n in done.graph.nodes] == [n.target for n in gm.graph.nodes]


def test_numbers_that_a_function_makes_a_tensor_of() -> None:
    x = torch.randn(3, 4)
    gm = symbolic_trace(lambda x: torch.mul(x.size(0), 0.5))
    ShapeProp(gm).propagate(x)
    assert torch.equal(NormalizeOperators(gm).transform()(x), gm(x))


def test_keywords_that_say_nothing() -> None:
    gm = symbolic_trace(lambda x, y: torch.div(torch.add(x, y, alpha=1), y, rounding_mode=None))
    done = NormalizeOperators(gm).transform()
    called = [n.target for n in done.graph.nodes if n.op == "call_function"]
    assert called == [operator.add, operator.truediv]


def test_binary_functions_as_operators_keep_their_place() -> None:
    gm = symbolic_trace(lambda x: torch.sub(1, x) if False else torch.sub(x, 1))
    done = NormalizeOperators(gm).transform()
    node: Node = next(n for n in done.graph.nodes if n.op == "call_function")
    assert node.args[1] == 1
