"""Comparing a program with what is left of it after saving and loading."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.program.input_checks import is_same_constant
from graphport.tensors.abstract import AbstractTensor

SMALL = 1 << 22
"""Bytes of a file up to which it is written again: more says nothing more, and takes time."""


def saved(ep: gp.ExportedProgram) -> bytes:
    file = io.BytesIO()
    gp.save(ep, file)
    return file.getvalue()


def loaded(data: bytes) -> gp.ExportedProgram:
    return gp.load(io.BytesIO(data), allow=("*",))


def check_round_trip(ep: gp.ExportedProgram) -> gp.ExportedProgram:
    """Save, load, compare everything but results; the loaded program."""
    data = saved(ep)
    back = loaded(data)
    if len(data) < SMALL:
        assert saved(back) == data, "saving a loaded program gives other bytes"
    assert str(back) == str(ep)
    same_graphs(back.graph_module, ep.graph_module)
    assert repr(back.graph_signature) == repr(ep.graph_signature)  # nan is not equal to itself
    assert back.call_spec == ep.call_spec
    assert back.argument_names == ep.argument_names
    assert back.positional == ep.positional
    assert back.module_call_graph == ep.module_call_graph
    assert back.dialect == ep.dialect
    assert back.notes == ep.notes
    assert str(back.range_constraints) == str(ep.range_constraints)
    same_checks(back, ep)
    same_scopes(back, ep)
    same_tensors(back.state_dict, ep.state_dict)
    same_tensors(back.constants, ep.constants)
    same_values(back.example_inputs, ep.example_inputs)
    same_sharing(back, ep)
    return back


def same_graphs(a: GraphModule, b: GraphModule) -> None:
    assert len(a.graph.nodes) == len(b.graph.nodes)
    for x, y in zip(a.graph.nodes, b.graph.nodes, strict=True):
        assert (x.op, x.name, x.target) == (y.op, y.name, y.target)
        assert repr((x.args, x.kwargs)) == repr((y.args, y.kwargs))
        assert [n.name for n in x.all_input_nodes] == [n.name for n in y.all_input_nodes]
        same_meta(x.meta, y.meta)
        if x.op == "get_attr":
            same_graphs(getattr(a, x.target), getattr(b, y.target))
    assert a.meta == b.meta


def same_meta(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        if key == "val":
            same_vals(a[key], b[key])
        elif key == "nn_module_stack":
            assert list(a[key].items()) == list(b[key].items())
        else:
            assert a[key] == b[key]


def same_vals(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same_vals(x, y)
    elif isinstance(a, AbstractTensor):
        one, other = a._abstract, b._abstract
        assert (str(one.sizes), str(one._strides)) == (str(other.sizes), str(other._strides))
        assert (one.dtype, one.device, str(one.offset)) == (
            other.dtype,
            other.device,
            str(other.offset),
        )
        assert str((a.shape, a.stride())) == str((b.shape, b.stride()))
        assert a.requires_grad == b.requires_grad
    elif isinstance(a, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        assert str(a) == str(b)
    else:
        assert is_same_constant(a, b)


def same_checks(a: gp.ExportedProgram, b: gp.ExportedProgram) -> None:
    one, other = a.checks, b.checks
    assert [repr(s) for s in one.inputs] == [repr(s) for s in other.inputs]
    assert str(one.ranges) == str(other.ranges)
    assert str(one.facts) == str(other.facts)
    assert [repr(s) for s in one.steps] == [repr(s) for s in other.steps]


def same_scopes(a: gp.ExportedProgram, b: gp.ExportedProgram) -> None:
    """The same symbols, and the same known of them."""
    one, other = a.scope, b.scope
    assert [(s.name, s.type) for s in one.symbols] == [(s.name, s.type) for s in other.symbols]
    for s, t in zip(one.symbols, other.symbols, strict=True):
        assert one.declared(s) == other.declared(t)
        assert one.range(s) == other.range(t)
        assert is_same_constant(one.hint(s), other.hint(t))
        assert one.is_fresh(s) == other.is_fresh(t)
        assert str(one.simplify(s)) == str(other.simplify(t))
    assert [(str(f.cond), f.kind, f.internal, f.message) for f in one.facts] == [
        (str(f.cond), f.kind, f.internal, f.message) for f in other.facts
    ]
    for name in ("bounds", "rewrites", "nonneg", "zero", "nonzero"):
        known, expected = getattr(one._facts, name), getattr(other._facts, name)
        assert sorted(map(str, known)) == sorted(map(str, expected)), name


def same_tensors(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b)
    same_values(list(a.values()), list(b.values()))


def same_values(a: Any, b: Any) -> None:
    flat_a, spec_a = pytree.tree_flatten(a)
    flat_b, spec_b = pytree.tree_flatten(b)
    assert spec_a == spec_b
    for x, y in zip(flat_a, flat_b, strict=True):
        assert type(x) is type(y)
        if isinstance(x, torch.Tensor):
            same_tensor(x, y)
        else:
            assert is_same_constant(x, y)


def same_tensor(x: torch.Tensor, y: torch.Tensor) -> None:
    assert (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)
    if not (y.is_conj() or y.is_neg()):
        assert x.stride() == y.stride()
    assert x.requires_grad == y.requires_grad
    if x.device.type != "meta":
        assert torch.equal(octets(x), octets(y))


def octets(t: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements: nan is nan, and every dtype compares."""
    t = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return t.view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


def same_sharing(a: gp.ExportedProgram, b: gp.ExportedProgram) -> None:
    """Tensors that were one object, or in one storage, are again."""

    def groups(ep: gp.ExportedProgram, key: Any) -> list[list[int]]:
        leaves = [
            *ep.state_dict.values(),
            *ep.constants.values(),
            *pytree.tree_leaves(ep.example_inputs),
        ]
        found: dict[Any, list[int]] = {}
        for i, t in enumerate(leaves):
            if isinstance(t, torch.Tensor) and t.device.type != "meta" and not t.is_conj():
                found.setdefault(key(t), []).append(i)
        return list(found.values())

    assert groups(a, id) == groups(b, id)
    storage = lambda t: t.untyped_storage()._cdata
    assert groups(a, storage) == groups(b, storage)
