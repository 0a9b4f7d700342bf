"""Programs whose weights have no data: they can be built and printed, and say why not to run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from graphport.errors import NoDataError
from graphport.ops.weightless import WeightlessTensor, lacks_data

_GIVEN = {
    True: '{k: v.read() for k, v in module.state_dict().items() if hasattr(v, "read")}, '
    "strict=False",
    False: "weights",
}


def require_weights(module: nn.Module) -> None:
    """Let a module without weights refuse inputs that have data, until it is given weights."""
    if _without_data(module):
        module.register_forward_pre_hook(_refuse_data, with_kwargs=True, prepend=True)


def _refuse_data(module: nn.Module, args: Any, kwargs: Any) -> None:
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if tensors and all(map(lacks_data, tensors)):
        return  # sizes in, sizes out; capture is one such case
    missing = _without_data(module)
    if not missing:
        return
    names = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
    raise NoDataError(
        f"the program has no weights: {len(missing)} of its parameters, buffers and constants were "
        f"captured without data ({names})",
        fix=_fixes(module, missing),
    )


def _fixes(module: nn.Module, missing: dict[str, torch.Tensor]) -> list[str]:
    fixes = []
    if missing.keys() & module.state_dict().keys():
        known = all(isinstance(t, WeightlessTensor) and t.has_data for t in missing.values())
        fixes.append(f"module = ep.module(); module.load_state_dict({_GIVEN[known]}, assign=True)")
    others = sorted(missing.keys() - module.state_dict().keys())
    if others:
        fixes.append(
            f"{others[0]} is in no state_dict: build the model under gp.fake_mode(), which "
            "computes such tensors, or give it data with module.get_buffer(...)"
        )
    return fixes


def _without_data(module: nn.Module) -> dict[str, torch.Tensor]:
    state = (*module.named_parameters(), *module.named_buffers())
    return {name: t for name, t in state if lacks_data(t)}
