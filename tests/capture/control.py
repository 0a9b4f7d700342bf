"""torch's control flow for tests: as it is while captured, plain Python in eager.

In eager torch would compile a program first; the oracle is what its documentation says it means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan as torch_scan

import graphport as gp


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], args: Any) -> Any:
    if torch.compiler.is_compiling():
        return torch.cond(pred, true_fn, false_fn, args)
    return true_fn(*args) if pred else false_fn(*args)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    if torch.compiler.is_compiling():
        return torch.while_loop(cond_fn, body_fn, carried)
    carried = tuple(carried)
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    return torch_map(f, xs, *args) if torch.compiler.is_compiling() else gp.map(f, xs, *args)


def scan(f: Callable[..., Any], init: Any, xs: Any, **options: Any) -> Any:
    if torch.compiler.is_compiling():
        return torch_scan(f, init, xs, **options)
    return gp.scan(f, init, xs, **options)
