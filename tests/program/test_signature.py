"""Signature, state, validation and printing of a captured program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import VerificationError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.tied = self.linear.weight
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("offset", torch.ones(2), persistent=False)
        self.scale = torch.full((2,), 3.0)

    def forward(self, x: torch.Tensor, k: int, cache: torch.Tensor) -> tuple[torch.Tensor, int]:
        self.seen += 1
        cache[0] = x.sum()
        return (self.linear(x) + self.offset) * self.scale * torch.tensor(2.0), k


def program() -> gp.ExportedProgram:
    batch = gp.Dim("batch", min=1, max=64)
    return gp.export(
        Model(), (torch.ones(4, 3), 7, torch.zeros(2)), dynamic_shapes={"x": {0: batch}}
    )


def test_signature() -> None:
    ep = program()
    signature = ep.graph_signature
    assert [(s.arg.name, s.kind.name, s.target) for s in signature.input_specs] == [
        ("p_tied", "PARAMETER", "tied"),
        ("p_linear_bias", "PARAMETER", "linear.bias"),
        ("b_seen", "BUFFER", "seen"),
        ("b_offset", "BUFFER", "offset"),
        ("c_scale", "CONSTANT_TENSOR", "scale"),
        ("c_lifted_tensor_0", "CONSTANT_TENSOR", "lifted_tensor_0"),
        ("x", "USER_INPUT", None),
        ("k", "USER_INPUT", None),
        ("cache", "USER_INPUT", None),
    ]
    assert [(s.kind.name, s.target) for s in signature.output_specs] == [
        ("BUFFER_MUTATION", "seen"),
        ("USER_INPUT_MUTATION", "cache"),
        ("USER_OUTPUT", None),
        ("USER_OUTPUT", None),
    ]
    assert signature.user_inputs == ("x", 7, "cache")
    assert signature.user_outputs[1] == 7
    assert list(signature.buffers_to_mutate.values()) == ["seen"]
    assert list(signature.user_inputs_to_mutate.values()) == ["cache"]
    assert signature.non_persistent_buffers == ("offset",)
    assert signature.lifted_tensor_constants == ("scale", "lifted_tensor_0")


def test_state() -> None:
    ep = program()
    assert set(ep.state_dict) == {"linear.weight", "linear.bias", "tied", "seen"}
    assert ep.state_dict["tied"] is ep.state_dict["linear.weight"]
    assert set(ep.constants) == {"offset", "scale", "lifted_tensor_0"}
    assert [n for n, _ in ep.named_parameters()] == ["tied", "linear.bias"]
    assert [n for n, _ in ep.named_buffers()] == ["seen", "offset"]
    ((symbol, limits),) = ep.range_constraints.items()
    assert (str(symbol), limits.lower, limits.upper) == ("batch", 1, 64)


def test_the_text_of_a_program() -> None:
    batch = gp.Dim("batch", max=64)
    ep = gp.export(
        lambda x, y: x @ y + x.shape[0],
        (torch.ones(4, 3), torch.ones(3, 2)),
        dynamic_shapes=({0: batch}, None),
    )
    assert str(ep) == (
        "ExportedProgram:\n"
        "    graph(\n"
        "        x: f32[batch, 3],\n"
        "        y: f32[3, 2],\n"
        "    ):\n"
        "        sym_size_int: Sym(batch) = aten.sym_size.int(x, 0)\n"
        "        matmul: f32[batch, 2] = aten.matmul(x, y)\n"
        "        add: f32[batch, 2] = aten.add.Tensor(matmul, sym_size_int)\n"
        "        return (add,)\n"
        "\n"
        "    inputs:\n"
        "      x: USER_INPUT\n"
        "      y: USER_INPUT\n"
        "    outputs:\n"
        "      add: USER_OUTPUT\n"
        "    range constraints:\n"
        "      batch: [0, 64]"
    )


def test_a_valid_program_passes() -> None:
    program().validate()


def test_validate_finds_mutation() -> None:
    ep = program()
    node = next(n for n in ep.graph.nodes if n.target is torch.ops.aten.linear.default)
    with ep.graph.inserting_after(node):
        bad = ep.graph.call_function(torch.ops.aten.relu_.default, (node,))
    bad.meta["val"] = node.meta["val"]
    with pytest.raises(VerificationError, match=r"relu_.default mutates its arguments"):
        ep.validate()


def test_validate_finds_foreign_calls_and_missing_metadata() -> None:
    ep = program()
    node = next(n for n in ep.graph.nodes if n.target is torch.ops.aten.linear.default)
    with ep.graph.inserting_after(node):
        ep.graph.call_function(torch.nn.functional.gelu, (node,))
        ep.graph.call_method("sin", (node,))
    with pytest.raises(VerificationError) as raised:
        ep.validate()
    text = str(raised.value)
    assert "gelu" in text
    assert "call_method is not allowed" in text
    assert "no `val` in its metadata" in text


def test_validate_finds_a_signature_that_is_not_the_graphs() -> None:
    ep = program()
    ep.graph_signature.input_specs.pop()
    ep.graph_signature.output_specs.pop()
    with pytest.raises(VerificationError, match="are not those of the signature"):
        ep.validate()


def test_validate_finds_missing_state() -> None:
    ep = program()
    del ep.state_dict["linear.bias"]
    del ep.constants["scale"]
    with pytest.raises(VerificationError) as raised:
        ep.validate()
    assert "parameter 'linear.bias' is not in the state dict" in str(raised.value)
    assert "constant_tensor 'scale' has no value" in str(raised.value)
