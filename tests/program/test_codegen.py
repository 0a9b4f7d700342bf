"""Generated code for containers agrees with pytree."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.program.codegen import Unpacking, describe_difference, emit_leaves, emit_literal


class Point(NamedTuple):
    x: Any
    y: Any


leaves = st.integers(0, 9) | st.none() | st.text(max_size=2)
keys = st.sampled_from(["a", "b'", 'c"', 1, -2])
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(st.sampled_from([None, 2.5]), inner, max_size=2),
        st.dictionaries(keys, inner, max_size=2).map(collections.OrderedDict),
        st.tuples(inner, inner).map(lambda t: Point(*t)),
    ),
    max_leaves=8,
)


def unpacked(spec: Any, tree: Any) -> list[Any] | None:
    names = [f"leaf{i}" for i in range(spec.num_leaves)]
    unpacking = Unpacking(names, check_leaves=True)
    unpacking.take(spec, "tree")
    body = [*unpacking.lines, f"return [{', '.join(names)}]"]
    namespace = {**unpacking.names, "Tensor": torch.Tensor}
    exec("\n    ".join(["def take(tree):", *body]), namespace)
    result: list[Any] | None = namespace["take"](tree)
    return result


@given(trees, trees)
def test_taking_apart(tree: Any, other: Any) -> None:
    flat, spec = pytree.tree_flatten(tree)
    assert unpacked(spec, tree) == flat
    expressions = ", ".join(emit_leaves(spec, "tree"))
    assert eval(f"[{expressions}]", {"pytree": pytree, "tree": tree}) == flat
    found, another = pytree.tree_flatten(other)
    assert unpacked(spec, other) == (found if another == spec else None)
    if another != spec:
        assert describe_difference(spec, another, "tree").startswith("tree")


@given(trees)
def test_putting_together(tree: Any) -> None:
    flat, spec = pytree.tree_flatten(tree)
    text = emit_literal(spec, map(repr, flat))
    if text is None:
        plain = {tuple, list, dict}
        assert any(type(node) not in plain or _odd(node) for node in _containers(tree))
    else:
        made = eval(text)
        assert (made, pytree.tree_structure(made)) == (tree, spec)


def _containers(tree: Any) -> list[Any]:
    if pytree.tree_is_leaf(tree):
        return []
    inner = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(found for child in inner for found in _containers(child))]


def _odd(node: Any) -> bool:
    return isinstance(node, dict) and any(type(key) not in (str, int) for key in node)


@pytest.mark.parametrize(
    "result",
    [
        lambda x: x,
        lambda x: (x,),
        lambda x: [x, (x + 1, {"k": x * 2, 3: None})],
        lambda x: Point(x, [x + 1]),
        lambda x: {"a": 2.5, "b": float("inf"), "c": "text", "d": torch.float16, "e": ()},
        lambda x: (x.shape[0], x),
    ],
)
def test_results_are_structured_as_the_user_returned_them(result: Any) -> None:
    x = torch.ones(3)
    got = gp.export(result, (x,)).module()(x)
    want = result(x)
    assert pytree.tree_structure(got) == pytree.tree_structure(want)
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b


def test_arguments_are_taken_as_the_user_passes_them() -> None:
    def f(p: Point, ys: Any, *more: Any, scale: Any, **named: Any) -> torch.Tensor:
        return p.x + p.y[0] + ys["k"] * more[0] + scale + named["z"]

    x = torch.ones(2)
    args = (Point(x, (x * 2, None)), {"k": x * 3, 5: x}, x * 4)
    module = gp.export(f, args, {"scale": x * 5, "z": x * 6}).module()
    expected = f(*args, scale=x * 5, z=x * 6)
    assert torch.equal(module(*args, z=x * 6, scale=x * 5), expected)
    assert torch.equal(module.forward(*args, x * 5, x * 6), expected)
