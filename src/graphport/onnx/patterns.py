"""Recognising a computation in the program's graph, from its last node backwards.

A pattern is a tree of `Call`s with names at its leaves. Operands of commutative operators match in
either order, and a name stands for the same operand wherever it occurs.

    X = Any_("x")
    RMS = mul(X, rsqrt(add(mean(square(X)), Number("eps"))))
    found = match(RMS, node)          # {"x": <node>, "eps": 1e-06}, or None
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from graphport.onnx.ir import Value

aten = torch.ops.aten
Found = dict[str, Any]
_COMMUTE = {aten.add.Tensor, aten.mul.Tensor}


class Pattern:
    """Something that an operand may match."""

    def find(self, x: Any, found: Found) -> Iterator[Found]:
        """The ways to match, each with what has been found so far."""
        raise TypeError("a pattern says what it matches")


class Name(Pattern):
    """Any operand that `fits`, the same one at each place of the name."""

    def __init__(self, name: str, fits: Callable[[Any], bool] = lambda x: True) -> None:
        self.name = name
        self.fits = fits

    def find(self, x: Any, found: Found) -> Iterator[Found]:
        if self.name in found:
            if found[self.name] is x or (not isinstance(x, Node) and found[self.name] == x):
                yield found
        elif self.fits(x):
            yield {**found, self.name: x}


class Call(Pattern):
    """A call of one of several operators with these operands, and no options besides."""

    def __init__(self, targets: Any, *operands: Any) -> None:
        self.targets = targets if isinstance(targets, tuple) else (targets,)
        self.operands = operands

    def find(self, x: Any, found: Found) -> Iterator[Found]:
        if not isinstance(x, Node) or x.target not in self.targets:
            return
        if len(x.args) < len(self.operands) or x.kwargs:
            return
        yield from _all(self.operands, x.args, found)
        if x.target in _COMMUTE:
            yield from _all(self.operands, x.args[1::-1], found)


class Converted(Pattern):
    """A conversion of a pattern to another dtype of floats."""

    def __init__(self, pattern: Any) -> None:
        self.pattern = pattern

    def find(self, x: Any, found: Found) -> Iterator[Found]:
        if isinstance(x, Node) and x.target is aten._to_copy.default:
            if x.meta["val"].dtype.is_floating_point:
                yield from _one(self.pattern, x.args[0], found)


class OneOf(Pattern):
    """Any of several patterns."""

    def __init__(self, *patterns: Any) -> None:
        self.patterns = patterns

    def find(self, x: Any, found: Found) -> Iterator[Found]:
        for pattern in self.patterns:
            yield from _one(pattern, x, found)


def _all(patterns: tuple[Any, ...], operands: Any, found: Found) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for some in _one(patterns[0], operands[0], found):
        yield from _all(patterns[1:], operands[1:], some)


def _one(pattern: Any, x: Any, found: Found) -> Iterator[Found]:
    if isinstance(pattern, Pattern):
        yield from pattern.find(x, found)
    elif isinstance(pattern, float):
        if isinstance(x, (int, float)) and abs(x - pattern) <= 1e-6 * abs(pattern):
            yield found
    elif not isinstance(x, Node) and x == pattern:
        yield found


def match(pattern: Any, node: Node) -> Found | None:
    """What the names of a pattern stand for at a node; None if it is something else."""
    return next(_one(pattern, node, {}), None)


def number(name: str) -> Name:
    return Name(name, lambda x: isinstance(x, (int, float)))


def tensor(name: str) -> Name:
    return Name(name, lambda x: isinstance(x, Node))


def maybe_converted(pattern: Any) -> OneOf:
    """The pattern, or a conversion of it to another dtype of floats."""
    return OneOf(pattern, Converted(pattern))


def is_true(mask: Value) -> bool:
    """Whether a mask is true throughout: models without padding make such masks all the same."""
    made = mask.producer
    while made is not None and made.op in ("Expand", "Unsqueeze", "Reshape"):
        assert made.inputs[0] is not None
        mask = made.inputs[0]
        made = mask.producer
    constant = mask.tensor
    return constant is not None and constant.dtype is torch.bool and bool(constant.all())
