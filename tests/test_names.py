"""Names that users of `torch.export` type: they mean the same, or an error says the new word."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError

x = torch.randn(2, 3)
SPEC = ({0: gp.Dim("n")},)


ONES = torch.ones(3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + ONES


@pytest.fixture(scope="module")
def program() -> gp.ExportedProgram:
    return gp.export(Model(), (x,), dynamic_shapes=SPEC)


def test_classes(program: gp.ExportedProgram) -> None:
    assert gp.ExportGraphSignature is gp.GraphSignature
    assert isinstance(program.module_call_graph[0], gp.ModuleCallEntry)
    kept = gp.export(Model(), (x,), preserve_module_call_signature=("layer",))
    signatures = [entry.signature for entry in kept.module_call_graph if entry.fqn == "layer"]
    assert [type(s) for s in signatures] == [gp.ModuleCallSignature]
    assert isinstance(gp.unflatten(program), gp.UnflattenedModule)


def test_decompositions(program: gp.ExportedProgram) -> None:
    core = program.run_decompositions()
    table = gp.default_decompositions()
    assert str(program.run_decompositions(decomp_table=table)) == str(core)
    theirs = torch.export.default_decompositions()
    assert "aten.linear" not in str(program.run_decompositions(theirs).graph)
    with pytest.raises(InputError, match="both were given"):
        program.run_decompositions({}, decomp_table={})


def test_tensor_constants(program: gp.ExportedProgram) -> None:
    (constant,) = program.tensor_constants.values()
    assert torch.equal(constant, torch.ones(3))


def test_ranges_by_the_size_of_a_node(program: gp.ExportedProgram) -> None:
    node = next(n for n in program.graph.nodes if n.name == "x")
    assert program.range_constraints[node.meta["val"].shape[0].node.expr].lower == 0


def test_files(program: gp.ExportedProgram) -> None:
    file = io.BytesIO()
    gp.save(program, file)
    assert str(gp.load(file)) == str(program)  # which stands at its end
    for call in (
        lambda: gp.save(program, file, extra_files={"notes.txt": "x"}),
        lambda: gp.load(file, extra_files={"notes.txt": ""}),
    ):
        with pytest.raises(InputError, match="has no extra_files"):
            call()


def test_deferred_assertions() -> None:
    fn = lambda x, y: x.flatten() + y
    n, m, k = gp.dims("n", "m", "k")
    args, spec = (torch.ones(2, 3), torch.ones(6)), ({0: n, 1: m}, {0: k})
    with pytest.raises(gp.errors.ConstraintViolationError):
        gp.export(fn, args, dynamic_shapes=spec)
    program = gp.export(
        fn, args, dynamic_shapes=spec, prefer_deferred_runtime_asserts_over_guards=True
    )
    assert program.module()(torch.ones(4, 5), torch.ones(20)).shape == (20,)
    with pytest.raises(RuntimeError):
        program.module()(torch.ones(4, 5), torch.ones(2))


def test_drafts() -> None:
    program, report = gp.draft_export(
        Model(), (x,), strict=True, preserve_module_call_signature=("layer",)
    )
    assert not report and program.module_call_graph[-1].signature is not None


def test_unflatten_has_no_adapter(program: gp.ExportedProgram) -> None:
    with pytest.raises(InputError, match="no flat_args_adapter"):
        gp.unflatten(program, flat_args_adapter=object())


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("CustomDecompTable", "default_decompositions"),
        ("FlatArgsAdapter", "converts its arguments"),
        ("passes", "to_torch"),
        ("refine_dynamic_shapes_from_suggested_fixes", "gp.refine_dynamic_shapes"),
    ],
)
def test_other_words(name: str, new: str) -> None:
    with pytest.raises(AttributeError, match=new):
        getattr(gp, name)
    assert not hasattr(gp, "nothing_of_the_kind")


def test_passes_of_torch(program: gp.ExportedProgram) -> None:
    from torch.export.passes import move_to_device_pass

    moved: Any = gp.from_torch(move_to_device_pass(program.to_torch(), "meta"))
    assert {t.device.type for t in moved.state_dict.values()} == {"meta"}


def test_annotations() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.fx.traceback.annotate({"stage": 1}):
            y = x + 1
        return y * 2

    program = gp.export(fn, (x,), dynamic_shapes=SPEC)
    for made in (program, program.run_decompositions()):
        found = {n.name: n.meta.get("custom") for n in made.graph.nodes}
        assert found["add"] == {"stage": 1} and found["mul"] is None


def test_a_shared_module_has_the_path_of_its_first_name() -> None:
    """Of torch's capture, each call has the name that it went by."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    program = gp.export(Shared(), (x,))
    stacks = [n.meta["nn_module_stack"] for n in program.graph.nodes if n.op == "call_function"]
    assert [[key for key in stack if key] for stack in stacks] == [["a"], ["a@1"]]
