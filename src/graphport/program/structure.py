"""Python that takes containers of a known structure apart and puts them together.

`torch.utils._pytree` finds out at each call what the structure of the arguments is, at a few
microseconds per container and leaf. A program knows what it has to be: tuples, lists and dicts with
plain keys are read by index and key, in generated code. Other containers are left to pytree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_is_leaf

_LITERALS = {tuple: "({})", list: "[{}]", dict: "{{{}}}"}


def _keys(spec: TreeSpec) -> list[Any] | None:
    """What the children of a container are read by; None if pytree has to flatten it."""
    if spec.type is tuple or spec.type is list:
        return list(range(spec.num_children))
    if spec.type is dict and all(type(key) in (str, int) for key in spec.context):
        return list(spec.context)
    return None


def leaf_expressions(spec: TreeSpec, source: str) -> list[str]:
    """Expressions for the leaves of `source`, which has this structure; some may be starred."""
    if spec.is_leaf():
        return [source]
    keys = _keys(spec)
    if keys is None:
        return [f"*pytree.tree_leaves({source})"]
    pairs = zip(keys, spec.children(), strict=True)
    return [e for key, child in pairs for e in leaf_expressions(child, f"{source}[{key!r}]")]


def literal(spec: TreeSpec, leaves: Iterator[str]) -> str | None:
    """The container with these leaves as an expression; None if only pytree can make it."""
    if spec.is_leaf():
        return next(leaves)
    keys = _keys(spec)
    if keys is None:
        return None
    parts = [literal(child, leaves) for child in spec.children()]
    if None in parts:
        return None
    if spec.type is dict:
        parts = [f"{key!r}: {part}" for key, part in zip(keys, parts, strict=True)]
    return _LITERALS[spec.type].format("".join(f"{part}, " for part in parts))


class Unpacking:
    """Statements that take arguments apart and `return None` where the structure is another one."""

    def __init__(self, leaves: Iterable[str], *, check_leaves: bool) -> None:
        """`leaves` are the variables to put leaves into; those may prove to be containers too."""
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"tree_flatten": tree_flatten, "tree_is_leaf": tree_is_leaf}
        self._leaves = iter(leaves)
        self._check_leaves = check_leaves
        self._count = 0

    def take(self, spec: TreeSpec, source: str) -> None:
        """Take apart the value of the expression `source`."""
        if spec.is_leaf():
            leaf = next(self._leaves)
            self.lines.append(f"{leaf} = {source}")
            if self._check_leaves:
                self.lines.append(
                    f"if not isinstance({leaf}, Tensor) and not tree_is_leaf({leaf}): return None"
                )
            return
        name = f"container{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {source}")
        keys = _keys(spec)
        if keys is None:
            self._flatten(spec, name)
            return
        kind = spec.type.__name__
        # A program may depend on the order of the keys.
        other = f"[*{name}] != {keys!r}" if spec.type is dict else f"len({name}) != {len(keys)}"
        self.lines.append(f"if type({name}) is not {kind} or {other}: return None")
        for key, child in zip(keys, spec.children(), strict=True):
            self.take(child, f"{name}[{key!r}]")

    def _flatten(self, spec: TreeSpec, name: str) -> None:
        """A container that only pytree can look into."""
        self.names[f"{name}_spec"] = spec
        self.lines.append(f"{name}, found = tree_flatten({name})")
        self.lines.append(f"if found != {name}_spec: return None")
        leaves = [next(self._leaves) for _ in range(spec.num_leaves)]
        if leaves:
            self.lines.append(f"{', '.join(leaves)}, = {name}")


def fit(value: Any, spec: TreeSpec) -> Any:
    """A value as containers of this structure, where that is only another way to write them.

    That is a dict in another order, and a `torch.Size` or a named tuple for a tuple.
    """
    children = spec.children()
    if spec.type is tuple and isinstance(value, tuple) and len(value) == len(children):
        return tuple(map(fit, value, children))
    if spec.type is list and type(value) is list and len(value) == len(children):
        return list(map(fit, value, children))
    if spec.type is dict and type(value) is dict and value.keys() == set(spec.context):
        return {
            key: fit(value[key], child) for key, child in zip(spec.context, children, strict=True)
        }
    return value


def first_difference(want: TreeSpec, got: TreeSpec, path: str) -> str:
    """Where two structures that are not equal first differ, in words."""
    before, now = _described(want), _described(got)
    if before != now:
        return f"{path} was {before} when the program was captured and is now {now}"
    keys = _keys(want)
    if keys is None:
        return f"{path} has another structure inside than when the program was captured"
    pairs = zip(keys, want.children(), got.children(), strict=True)
    return next(first_difference(a, b, f"{path}[{key!r}]") for key, a, b in pairs if a != b)


def _described(spec: TreeSpec) -> str:
    if spec.is_leaf():
        return "a single value"
    if spec.type is dict:
        return f"a dict with the keys {spec.context}"
    return f"a {spec.type.__name__} of {spec.num_children}"
