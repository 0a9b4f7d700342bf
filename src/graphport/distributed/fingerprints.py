"""A short text that differs between programs that must not be stages of one pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from graphport.program import ExportedProgram

_SAMPLES = 16


def fingerprint(program: ExportedProgram, places: Mapping[Node, int]) -> str:
    """Of the operators, where they are cut, and a few numbers out of each weight."""
    found = hashlib.sha256()
    for node in program.graph.nodes:
        found.update(f"{node.format_node()} {places.get(node)}\n".encode())
    for name, t in {**program.state_dict, **program.constants}.items():
        found.update(f"{name} {_sample(t)}\n".encode())
    return found.hexdigest()


def _sample(t: Any) -> object:
    if not isinstance(t, torch.Tensor):
        return type(t).__name__
    if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout is not torch.strided:
        return tuple(t.shape)  # without data, or not to be read like that
    count = t.numel()
    where = torch.arange(min(count, _SAMPLES)) * max(count // _SAMPLES, 1)
    picked = t.detach()[torch.unravel_index(where, t.shape)] if t.dim() and count else t.detach()
    return tuple(t.shape), str(t.dtype), picked.tolist()
