"""Comparing an unflattened program with the original module."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import graphport as gp
from graphport.program.unflatten import CapturedModule, UnflattenedModule
from tests.helpers import assert_same, clone


def unflattened(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    others: Sequence[tuple[Any, ...]] = (),
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> UnflattenedModule:
    """Export, unflatten, and compare with eager at the example and at other positional inputs."""
    ep = gp.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, **options)
    ep.validate()
    module = gp.unflatten(ep)
    agree(module, model, [(args, kwargs or {}), *((o, kwargs or {}) for o in others)], rtol, atol)
    return gp.unflatten(ep)


def agree(
    module: UnflattenedModule,
    model: Any,
    inputs: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Both give the same, one run after the other, and leave the same in inputs and buffers."""
    eager = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    lint(module)
    if isinstance(model, nn.Module):
        assert list(module.state_dict()) == list(model.state_dict())
        own = dict(module.named_parameters(remove_duplicate=False))
        for name, p in model.named_parameters(remove_duplicate=False):
            assert own[name] is p, f"{name} is not shared"
    for given in (*inputs, inputs[0]):
        ours, theirs = clone(given), clone(given)
        torch.manual_seed(0)
        want = eager(*theirs[0], **theirs[1])
        torch.manual_seed(0)
        have = module(*ours[0], **ours[1])
        assert_same(have, want, "results differ", rtol, atol)
        assert_same(ours, theirs, "inputs are left differently", rtol, atol)
        if isinstance(model, nn.Module):
            buffers = dict(module.named_buffers())
            for name, b in eager.named_buffers():
                if name in buffers:
                    assert_same(buffers[name], b, f"buffer {name} is left differently", rtol, atol)


def lint(module: nn.Module) -> None:
    """Every graph is well formed, and refers to what there is."""
    for part in module.modules():
        if isinstance(part, CapturedModule):
            part.graph.lint()
            for node in part.graph.nodes:
                if node.op in ("get_attr", "call_module"):
                    found = part
                    for atom in node.target.split("."):
                        found = getattr(found, atom)


def called(module: nn.Module) -> list[str]:
    """What the graph of a module calls, in order."""
    return [n.target for n in module.graph.nodes if n.op == "call_module"]


def paths(module: nn.Module) -> list[str]:
    """The parts of an unflattened program that run a graph."""
    return [n for n, m in module.named_modules() if isinstance(m, CapturedModule)]
