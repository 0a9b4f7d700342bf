"""Programs to `torch.export.ExportedProgram` and back: everything that runs agrees with eager."""

from __future__ import annotations

import copy
import io
import operator
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError, UnsupportedError
from graphport.program import InputKind, OutputKind
from tests.capture.programs import generate, grid, tensors
from tests.helpers import assert_same, clone
from tests.program.torch_interop.interop import CASES, OURS_ONLY, Case, Containers, Sizes, randn

# What torch says of its own programs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*_flat_weights.*were assigned during export:UserWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]

OURS = {**CASES, **OURS_ONLY}


def ours(case: Case) -> tuple[nn.Module, gp.ExportedProgram]:
    model = case.make()
    shapes = case.shapes(gp.Dim)
    return model, gp.export(model, case.args, case.kwargs, dynamic_shapes=shapes)


def theirs(case: Case) -> tuple[nn.Module, Any]:
    model = case.make()
    shapes = case.shapes(torch.export.Dim)
    return model, torch.export.export(model, case.args, case.kwargs, dynamic_shapes=shapes)


def reloaded(program: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def agrees(program: Any, model: nn.Module, case: Case) -> None:
    """Runs as eager does at every size that it should, and at no other."""
    state = {**program.state_dict, **program.constants}
    before = clone(state)
    for args in (case.args, *case.others):
        eager, mine, given = copy.deepcopy(model), clone(args), clone(args)
        module = program.module()
        assert_same(module(*mine, **case.kwargs), eager(*given, **case.kwargs), "results differ")
        assert_same(mine, given, "inputs are left differently")
        buffers = dict(module.named_buffers())
        for name, buffer in eager.named_buffers():
            assert_same(buffers[name], buffer, f"buffer {name} is left differently")
        with torch.no_grad():  # modules of torch's programs share their state
            for name, t in state.items():
                t.copy_(before[name])
    for args in case.wrong:
        with pytest.raises((RuntimeError, AssertionError)):
            program.module()(*clone(args), **case.kwargs)


# To torch


@pytest.mark.parametrize("name", OURS)
def test_to_torch(name: str) -> None:
    model, ep = ours(OURS[name])
    there = ep.to_torch()
    assert isinstance(there, torch.export.ExportedProgram)
    agrees(there, model, OURS[name])


@pytest.mark.parametrize("name", OURS)
def test_to_torch_and_back(name: str) -> None:
    case = OURS[name]
    model, ep = ours(case)
    back = gp.from_torch(ep.to_torch())
    back.validate()
    agrees(back, model, case)
    assert [s.kind for s in back.graph_signature.input_specs] == [
        s.kind for s in ep.graph_signature.input_specs
    ]
    assert [s.target for s in back.graph_signature.output_specs] == [
        s.target for s in ep.graph_signature.output_specs
    ]
    assert [n.name for n in back.graph.nodes if n.op == "placeholder"] == [
        n.name for n in ep.graph.nodes if n.op == "placeholder"
    ]
    assert back.argument_names == ep.argument_names


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch itself
@pytest.mark.parametrize("name", OURS)
def test_torch_saves_and_loads_it(name: str) -> None:
    case = OURS[name]
    model, ep = ours(case)
    loaded = reloaded(ep.to_torch())
    agrees(loaded, model, case)
    back = gp.from_torch(loaded)
    back.validate()
    agrees(back, model, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_torch_decomposes_it(name: str) -> None:
    case = OURS[name]
    model, ep = ours(case)
    core = ep.to_torch().run_decompositions()
    agrees(core, model, case)
    back = gp.from_torch(core)
    back.validate()
    agrees(back, model, case)


@pytest.mark.parametrize("name", ["linears", "containers", "counter", "branching"])
def test_torch_unflattens_it(name: str) -> None:
    case = OURS[name]
    model, ep = ours(case)
    module = torch.export.unflatten(ep.to_torch())
    for args in (case.args, *case.others):
        mine, given = clone(args), clone(args)
        eager = copy.deepcopy(model)
        want = eager(*given, **case.kwargs)
        if name != "counter":  # the module keeps its state from call to call
            assert_same(module(*mine, **case.kwargs), want, "results differ")
    if name == "linears":
        assert {"first", "block", "block.0"} <= {path for path, _ in module.named_modules()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linears", "derived", "selecting"])
def test_torch_compile_takes_its_module(name: str) -> None:
    case = OURS[name]
    model, ep = ours(case)
    compiled = torch.compile(ep.to_torch().module(), backend="eager", dynamic=True)
    for args in (case.args, *case.others):
        assert_same(compiled(*args), model(*args), "results differ")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_to_torch_and_back(seed: int) -> None:
    """The same inputs are accepted, with the same results."""
    program = generate(seed)
    try:
        ep = gp.export(
            program.function(),
            tensors(program.shapes(program.example)),
            dynamic_shapes=program.dynamic_shapes(),
            guards=program.guards,
        )
    except gp.errors.ExportError:
        return  # refused, which is tested elsewhere
    there = ep.to_torch()
    modules = [p.module() for p in (ep, there, gp.from_torch(there))]
    for shapes in grid(program, 6):
        results = [outcome(module, tensors(shapes)) for module in modules]
        for other in results[1:]:
            assert_same(other, results[0], program.text)


def outcome(module: nn.Module, args: Any) -> Any:
    """The result and what is left in the inputs; None where they are refused."""
    try:
        return module(*args), args
    except (RuntimeError, AssertionError, IndexError, ArithmeticError):
        return None


def test_names_of_dims_come_back() -> None:
    _, ep = ours(CASES["derived"])
    back = gp.from_torch(ep.to_torch())
    assert "x: f32[2*d + 1]" in str(back) and "d: [2, 20]" in str(back)
    loaded = gp.from_torch(reloaded(ep.to_torch()))
    assert "2*s" in str(loaded)  # a file of torch's has no names of dims


def test_what_the_program_writes_is_not_shared() -> None:
    model, ep = ours(CASES["counter"])
    module = ep.to_torch().module()
    module(*clone(CASES["counter"].args))
    assert module.steps == 1
    assert model.steps == 0 and ep.state_dict["steps"] == 0


def test_weights_are_shared() -> None:
    model, ep = ours(CASES["linears"])
    there = ep.to_torch()
    assert there.state_dict["first.weight"] is model.first.weight
    assert gp.from_torch(there).state_dict["first.weight"] is model.first.weight


def test_metadata_of_nodes() -> None:
    _, ep = ours(CASES["linears"])
    there = ep.to_torch()
    stacks = [n.meta["nn_module_stack"] for n in there.graph.nodes if n.op == "call_function"]
    assert {"L__self__", "L__self__first", "L__self__first@1", "L__self__block@1"} <= {
        key for stack in stacks for key in stack
    }
    back = gp.from_torch(there)
    assert [n.meta.get("nn_module_stack") for n in back.graph.nodes if n.op == "call_function"] == [
        n.meta.get("nn_module_stack") for n in ep.graph.nodes if n.op == "call_function"
    ]
    line = next(n for n in there.graph.nodes if n.op == "call_function").meta["stack_trace"]
    assert "self.first(self.first(x))" in line


def test_data_dependent_sizes_are_bound_where_they_are_made() -> None:
    _, ep = ours(CASES["selecting"])
    bound = [n for n in ep.to_torch().graph.nodes if n.meta.get("unbacked_bindings")]
    assert len(bound) == 2


def test_operators_on_sizes_are_those_that_torch_allows() -> None:
    _, ep = ours(OURS_ONLY["sizes"])
    assert operator.xor in [n.target for n in ep.graph.nodes]
    assert operator.xor not in [n.target for n in ep.to_torch().graph.nodes]


def test_a_number_as_input() -> None:
    class Scaled(nn.Module):
        def forward(self, x, n):
            return x.repeat(n) * n

    ep = gp.export(
        Scaled(), (randn(3), 4), dynamic_shapes={"x": None, "n": gp.Dim("n", min=1, max=9)}
    )
    for program in (ep.to_torch(), gp.from_torch(ep.to_torch())):
        module = program.module()
        assert_same(module(randn(3), 6), Scaled()(randn(3), 6), "results differ")
        for wrong in (0, 10):
            with pytest.raises((RuntimeError, AssertionError)):
                module(randn(3), wrong)


def test_a_function_of_no_module() -> None:
    ep = gp.export(lambda x: x.sin() + 1, (randn(3),), dynamic_shapes=({0: gp.Dim("n")},))
    there = ep.to_torch()
    assert_same(there.module()(randn(5)), randn(5).sin() + 1, "results differ")
    assert_same(torch.export.unflatten(there)(randn(5)), randn(5).sin() + 1, "results differ")


def test_a_size_of_zero_counts_even_if_torch_takes_sizes_to_be_positive() -> None:
    def program(x):
        n = 1 % (x.shape[0] + 1)
        return torch.zeros(n), n

    ep = gp.export(program, (randn(3),), dynamic_shapes={"x": {0: gp.Dim("n")}})
    for there in (ep.to_torch(), gp.from_torch(ep.to_torch())):
        for n in (0, 2):
            assert_same(there.module()(randn(n)), program(randn(n)), "results differ")


def test_a_size_that_must_be_zero() -> None:
    def program(x, y):
        return x if x.numel() == 0 else y

    auto = {0: gp.Dim.AUTO}
    ep = gp.export(
        program, (randn(0, 3), randn(4)), dynamic_shapes=(auto, auto), guards="runtime_assert"
    )
    there = ep.to_torch()
    assert there.module()(randn(0, 3), randn(7)).shape == (0, 3)
    assert there.run_decompositions().module()(randn(0, 3), randn(7)).shape == (0, 3)


def test_two_buffers_of_one_value() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(2))
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x):
            y = x * 2
            self.a.copy_(y)
            self.b.copy_(y)
            return y

    module = gp.export(Twice(), (randn(2),)).to_torch().module()
    module(randn(2))
    assert_same((module.a, module.b), (randn(2) * 2,) * 2, "buffers are left differently")


def test_what_torch_has_no_place_for_is_named() -> None:
    ep = gp.export(lambda x: (x, x.dtype), (randn(2),))
    with pytest.raises(UnsupportedError, match="dtype"):
        ep.to_torch()


# From torch


@pytest.mark.parametrize("name", CASES)
def test_from_torch(name: str) -> None:
    case = CASES[name]
    model, there = theirs(case)
    ep = gp.from_torch(there)
    ep.validate()
    assert ep.dialect == "TRAINING"
    str(ep)
    agrees(ep, model, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_from_torch_decomposed_and_back(name: str) -> None:
    case = CASES[name]
    model, there = theirs(case)
    ep = gp.from_torch(there.run_decompositions())
    ep.validate()
    assert ep.dialect == "ATEN"
    agrees(ep, model, case)
    again = ep.to_torch()
    agrees(again, model, case)
    agrees(again.run_decompositions(), model, case)


@pytest.mark.parametrize("name", CASES)
def test_from_torch_and_back(name: str) -> None:
    case = CASES[name]
    model, there = theirs(case)
    again = gp.from_torch(there).to_torch()
    assert again.dialect == there.dialect
    agrees(again, model, case)


def test_names_and_ranges_from_torch() -> None:
    _, there = theirs(CASES["derived"])
    ep = gp.from_torch(there)
    assert "x: f32[2*d + 1]" in str(ep) and "y: f32[2*d]" in str(ep)
    assert "d: [2, 20]" in str(ep)
    with pytest.raises(RuntimeError, match=r"\*args\[1\]\.shape\[0\]"):
        ep.module()(randn(5), randn(6))
    _, there = theirs(CASES["linears"])
    assert "batch: [2, 8]" in str(gp.from_torch(there))


def test_signature_from_torch() -> None:
    _, there = theirs(CASES["counter"])
    signature = gp.from_torch(there.run_decompositions()).graph_signature
    kinds = [s.kind for s in signature.input_specs]
    assert kinds.count(InputKind.BUFFER) == 2 and kinds.count(InputKind.USER_INPUT) == 2
    assert signature.non_persistent_buffers == ("last",)
    assert {s.kind for s in signature.output_specs} == {
        OutputKind.BUFFER_MUTATION,
        OutputKind.USER_INPUT_MUTATION,
        OutputKind.USER_OUTPUT,
    }


def test_conditions_between_inputs_from_torch() -> None:
    class Guarded(nn.Module):
        def forward(self, x, y):
            torch._check(x.shape[0] % 3 == 0)
            return x.reshape(3, -1), y[: x.shape[0]]

    shapes = {"x": {0: torch.export.Dim.AUTO}, "y": {0: torch.export.Dim.AUTO}}
    there = torch.export.export(Guarded(), (randn(6), randn(8)), dynamic_shapes=shapes)
    for program in (there, reloaded(there)):
        module = gp.from_torch(program).module()
        assert module(randn(9), randn(12))[0].shape == (3, 3)
        with pytest.raises(RuntimeError):
            module(randn(10), randn(12))


@pytest.mark.parametrize("name", ["derived", "sliced", "looping", "gradless", "counter"])
def test_programs_from_torch_are_like_any_other(name: str) -> None:
    """Decomposed, captured again, saved and loaded, with the modules of the original."""
    case = CASES[name]
    model, there = theirs(case)
    ep = gp.from_torch(there)
    core = ep.run_decompositions()
    core.validate()
    agrees(core, model, case)
    file = io.BytesIO()
    gp.save(ep, file)
    file.seek(0)
    agrees(gp.load(file), model, case)
    shapes = case.shapes(gp.Dim)
    agrees(gp.export(ep.module(), case.args, dynamic_shapes=shapes), model, case)
    args = clone(case.args)
    want = copy.deepcopy(model)(*clone(case.args))
    assert_same(gp.unflatten(ep)(*args), want, "results differ")


def test_training_form() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    ep = gp.export(
        model, (randn(5, 3),), dynamic_shapes={"input": {0: gp.Dim("n", min=2)}}, training=True
    )
    there = ep.to_torch()
    assert there.dialect == "TRAINING"
    back = gp.from_torch(there)
    back.validate()
    for program in (there, back):
        module, eager = program.module(), copy.deepcopy(model)
        results = []
        for run in (module, eager):
            torch.manual_seed(0)
            results.append(run(randn(7, 3)))
        assert_same(results[0], results[1], "results differ")
        assert_same(module.get_buffer("1.running_mean"), eager[1].running_mean, "statistics differ")
        with torch.no_grad():
            there.state_dict["1.running_mean"].zero_()
    core = there.run_decompositions()
    assert "1.running_mean" in core.graph_signature.buffers_to_mutate.values()


def test_kept_signatures_of_modules() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Containers()

        def forward(self, x):
            return self.inner([x, x], options={"bias": x, "scale": x})["sum"]

    kept = ("inner",)
    ep = gp.export(Outer(), (randn(3),), preserve_module_call_signature=kept)
    for program in (ep, gp.from_torch(ep.to_torch())):
        call = next(c for c in program.module_call_graph if c.fqn == "inner")
        assert call.signature is not None and call.signature.in_spec.num_leaves == 4
    module = torch.export.unflatten(ep.to_torch())
    assert_same(module(randn(3)), Outer()(randn(3)), "results differ")
    out = module.inner([randn(3), randn(3)], options={"bias": randn(3), "scale": randn(3)})
    assert set(out) == {"sum", "rest"}


def test_only_programs_of_torch() -> None:
    with pytest.raises(InputError, match=r"torch\.export\.export"):
        gp.from_torch(nn.Linear(2, 2))


def test_tokens_are_refused_by_name() -> None:
    class Printing(nn.Module):
        def forward(self, x):
            torch.ops.aten._print("hello")
            return x + 1

    there = torch.export.export(Printing(), (randn(2),)).run_decompositions()
    with pytest.raises(UnsupportedError, match="token"):
        gp.from_torch(there)


def test_sizes_of_every_kind_keep_their_value() -> None:
    _, ep = ours(OURS_ONLY["sizes"])
    back = gp.from_torch(ep.to_torch())
    for n in (3, 8, 11):
        assert_same(back.module()(randn(n)), Sizes()(randn(n)), "results differ")


def test_what_torch_takes_for_granted_is_checked() -> None:
    """torch.export relies on sizes that are neither 0 nor 1, and writes nothing down."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pairs = x.view(x.shape[0], 2, 4).transpose(1, 2).contiguous()
            return pairs.view(x.shape[0], -1).squeeze(0)

    spec = ({0: torch.export.Dim("n")},)
    program = gp.from_torch(torch.export.export(Model(), (randn(3, 8),), dynamic_shapes=spec))
    module = program.run_decompositions({}).module()
    for rows in (3, 2, 7):
        x = randn(rows, 8)
        assert_same(module(x), Model()(x), "results differ")
    for rows in (0, 1):
        with pytest.raises(RuntimeError, match=rf"n != {rows} does not hold"):
            module(randn(rows, 8))
