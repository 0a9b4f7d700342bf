"""Python's own `max`, `min`, `divmod` and `math.pow` would branch on a size, or not take one.

Here they make a value. Formatted text (`f"{x.item():.2f}"`) shows a symbolic number by its name.
`scaled_dot_product_attention` takes no condition on a size for a flag: it is given its truth.
The chunks of `linear_cross_entropy` are a number of rows that may be symbolic.
"""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from graphport.process import Replacement, Switch

_NUMBERS = (torch.SymInt, torch.SymFloat)
Pair = Callable[[Any, Any], Any]


def symbolic_builtins() -> Iterator[Replacement]:
    """They take sizes and 0-d tensors without comparing them."""
    functional = torch.nn.functional
    ours = (
        (builtins, "max", _choosing(max, torch.sym_max, torch.maximum)),
        (builtins, "min", _choosing(min, torch.sym_min, torch.minimum)),
        (builtins, "divmod", _dividing(divmod)),
        (math, "pow", _raising(math.pow)),
    )
    yield from ours
    taken = [call for _, _, call in ours]
    yield Switch(lambda: (), functools.partial(_tell_dynamo, taken)), "", taken
    yield torch.SymInt, "__format__", _named
    yield torch.SymFloat, "__format__", _named
    attention = "scaled_dot_product_attention"
    yield functional, attention, _flagged(functional.scaled_dot_product_attention)
    chunks: Any = torch.nn.LinearCrossEntropyOptions
    yield chunks, "__post_init__", _checked(chunks.__post_init__)
    automatic = "_compute_batch_chunk_size"
    yield chunks, automatic, _chunked(chunks._compute_batch_chunk_size)


def _tell_dynamo(ours: Sequence[Any], taken: Sequence[Any]) -> None:
    """Where Dynamo was imported meanwhile, it knows our functions as Python's own, by their ids."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if taken or rules is None:
        return
    known = rules._builtin_function_ids
    for call in filter(lambda c: id(c) in known, ours):
        known.remove(id(call))
        known.add(id(call.__wrapped__))
        known.function_names[id(call.__wrapped__)] = known.function_names.pop(id(call))
        rules.get_torch_obj_rule_map.cache_clear()


def _choosing(original: Any, of_sizes: Pair, of_tensors: Pair) -> Any:
    def choose(a: Any, b: Any) -> Any:
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            both = [torch.as_tensor(x) for x in (a, b)]
            return of_tensors(*both) if not any(t.ndim for t in both) else original(a, b)
        return of_sizes(a, b)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return original(*args, **kwargs)
        items = args
        if len(args) == 1:
            items = tuple(args[0])
        for x in items:
            if isinstance(x, (*_NUMBERS, torch.Tensor)):
                return functools.reduce(choose, items)
        return original(items) if len(args) == 1 else original(*args)

    return call


def _named(number: Any, spec: str) -> str:
    """The name stands for whatever the number will be: there are no digits to lay out."""
    return str(number)


def _flagged(original: Any) -> Any:
    def flag(x: Any) -> Any:
        return bool(x) if isinstance(x, torch.SymBool) else x

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*map(flag, args), **{k: flag(v) for k, v in kwargs.items()})

    return call


def _checked(original: Any) -> Any:
    """Options ask whether the size of chunks is an int; the operator takes a symbolic one."""

    @functools.wraps(original)
    def check(options: Any) -> None:
        size = options.batch_chunk_size
        if not isinstance(size, torch.SymInt):
            original(options)
            return
        object.__setattr__(options, "batch_chunk_size", int(bool(size > 0)))  # it is frozen
        original(options)
        object.__setattr__(options, "batch_chunk_size", size)

    return check


def _chunked(original: Any) -> Any:
    """The size of chunks, on which no result depends, without rounding it to a power of 2."""

    @functools.wraps(original)
    def size(options: Any, rows: Any, features: Any, classes: Any, method: Any = None) -> Any:
        if not any(isinstance(x, torch.SymInt) for x in (rows, features, classes)):
            return original(options, rows, features, classes, method)
        if options.batch_chunk_size is not None:
            return options.batch_chunk_size
        parts = (method or options.chunking_method).partition(":")[2] or "1"
        return torch.sym_min(-(-rows // (-(-classes // features) * int(parts))), rows)

    return size


def _dividing(original: Any) -> Any:
    @functools.wraps(original)
    def division(x: Any, y: Any) -> Any:
        if isinstance(x, _NUMBERS) or isinstance(y, _NUMBERS):
            return x // y, x % y
        return original(x, y)

    return division


def _raising(original: Any) -> Any:
    @functools.wraps(original)
    def power(x: Any, y: Any) -> Any:
        if isinstance(x, _NUMBERS) or isinstance(y, _NUMBERS):
            return x**y
        return original(x, y)

    return power
