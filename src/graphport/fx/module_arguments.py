"""Calls of torch's own modules in a canonical form, by the signature of `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from graphport.arguments import ARGS, DICT, FLAG, MODULE, NONE, TEXT, takes
from graphport.errors import GraphError
from graphport.fx.schemas import ArgsKwargsPair, arranged

_STANDARD = ("torch.nn.", "torch.ao.nn.")


def is_standard(module: nn.Module) -> bool:
    """Whether a module is one of torch's own, not of a class that a user has written."""
    return type(module).__module__.startswith(_STANDARD)


@takes(
    root=MODULE, target=TEXT, args=ARGS, kwargs=DICT | NONE, normalize_to_only_use_kwargs=FLAG,
)  # fmt: skip
def normalize_module(
    root: nn.Module,
    target: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """The arguments of a call of `root`'s submodule with their names and with defaults.

    What is given by position stays there, unless only keywords are to be used. None for modules
    that are not torch's own, and for those that take any number of arguments.

        >>> normalize_module(nn.Sequential(nn.RNN(2, 3)), "0", ("x",), {}, True)
        ArgsKwargsPair(args=(), kwargs={'input': 'x', 'hx': None})
    """
    module = submodule(root, target)
    if not is_standard(module):
        return None
    signature = inspect.signature(inspect.unwrap(module.forward))
    name = f"{target} ({type(module).__name__})"
    return arranged(signature, args, kwargs or {}, normalize_to_only_use_kwargs, name)


def submodule(root: nn.Module, target: str) -> nn.Module:
    try:
        return root.get_submodule(target)
    except AttributeError as error:
        raise GraphError(
            f"the graph calls {target!r}, which {type(root).__name__} does not have: {error}",
            fix=f"add it: gm.add_submodule({target!r}, module)",
        ) from error
