"""Views and other changes of shape: the same elements, elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.registry import lower

aten = torch.ops.aten


@lower(
    aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default,
    aten.lift_fresh_copy.default,
)  # fmt: skip
def clone(b: Builder, self: Value) -> Value:
    """Values have no memory: a copy is the same value."""
    return self


@lower(aten.reshape.default, aten.view.default, aten._unsafe_view.default)
def reshape(b: Builder, self: Value, shape: Any) -> Value:
    return b.reshape(self, b.result.sizes)
