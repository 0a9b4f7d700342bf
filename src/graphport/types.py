"""Types that several packages share.

`Argument` and `NodeTarget` are torch's own types for what stands in a graph: an argument of an
operator (a tensor, a number, also a symbolic one, a dtype, None, a node, or lists of them), and
what a node calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.node import Argument
from torch.fx.node import Target as NodeTarget

__all__ = ["Args", "Argument", "Device", "Dtype", "Function", "Kwargs", "NodeTarget", "PyTree"]

Args = Sequence[Argument]
Kwargs = dict[str, Argument]
Function = Callable[..., Argument]
"""What is called like an operator, and gives what operators give."""

# As schemas have them: None is the default.
Dtype: TypeAlias = torch.dtype | None
Device: TypeAlias = torch.device | None

PyTree: TypeAlias = Any
"""What a user passes to a program, or gets from it: tensors, numbers and objects of any class,
alone or within containers of any class that is registered with pytree."""
