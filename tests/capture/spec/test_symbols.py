"""`dynamic_shapes`: how it may be written, and what dims, derived dims and hints mean."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import graphport as gp
from graphport import Dim
from graphport.capture.spec.inputs import bind_inputs
from graphport.capture.spec.symbols import Spec
from graphport.errors import ConstraintViolationError
from graphport.symbolic import Scope
from tests.helpers import check

Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Point:
    x: Any
    y: Any
    z: Any = None


@dataclasses.dataclass
class Line:
    start: Point
    end: Point


class Bag:
    """A registered class without names for its parts."""

    def __init__(self, *items: Any) -> None:
        self.items = items


gp.register_dataclass(Point, serialized_type_name="tests.test_spec.Point")
gp.register_dataclass(Line, serialized_type_name="tests.test_spec.Line")
pytree.register_pytree_node(
    Bag,
    lambda b: (list(b.items), None),
    lambda items, _: Bag(*items),
    serialized_type_name="tests.test_spec.Bag",
    flatten_with_keys_fn=lambda b: (
        [(pytree.SequenceKey(i), v) for i, v in enumerate(b.items)],
        None,
    ),
)

T = torch.ones(4, 3)
n, m = gp.dims("n", "m")


def doubled(x: Any, y: Any = None, *rest: Any, key: Any = None, **more: Any) -> Any:
    leaves = pytree.tree_leaves((x, y, rest, key, more))
    return [t * 2 for t in leaves if isinstance(t, torch.Tensor)]


def sizes_of(ep: gp.ExportedProgram) -> list[str]:
    """Sizes of the tensors among the inputs, as text."""
    vals = [node.meta["val"] for node in ep.graph.nodes if node.op == "placeholder"]
    return [", ".join(map(str, v.shape)) for v in vals if isinstance(v, torch.Tensor)]


def ranges_of(ep: gp.ExportedProgram) -> dict[str, tuple[float, float]]:
    return {str(k): (r.lower, r.upper) for k, r in ep.range_constraints.items()}


# Ways to write it

A, B = "n, 3", "4, 3"  # dynamic, static
WRITTEN: dict[str, tuple[Any, Any, Any, list[str]]] = {
    "by name": ((T, T), {}, {"x": {0: n}, "y": None}, [A, B]),
    "by name, in any order": ((T, T), {}, {"y": {1: m}, "x": {0: n}}, [A, "4, m"]),
    "by name, some left out": ((T, T), {}, {"x": {0: n}}, [A, B]),
    "by position": ((T, T), {}, ({0: n}, None), [A, B]),
    "as a list": ((T, T), {}, [{0: n}, None], [A, B]),
    "nothing": ((T, T), {}, None, [B, B]),
    "nothing by name": ((T, T), {}, {}, [B, B]),
    "nothing by position": ((T, T), {}, (None, None), [B, B]),
    "no dims": ((T, T), {}, ({}, [None, None]), [B, B]),
    "default left out": ((T,), {}, {"x": {0: n}, "y": None, "key": None}, [A]),
    "a tuple of dims": ((T, T), {}, ((n, m), [None, m]), ["n, m", "4, m"]),
    "static ints": ((T, T), {}, {"x": (n, 3), "y": {0: 4, 1: None}}, [A, B]),
    "static hints": ((T,), {}, {"x": (n, Dim.STATIC)}, [A]),
    "negative dims": ((T,), {}, {"x": {-1: m, -2: n}}, ["n, m"]),
    "list": (([T, T],), {}, {"x": [{0: n}, None]}, [A, B]),
    "list by tuple": (([T, T],), {}, {"x": ({0: n}, {0: n})}, [A, A]),
    "tuple by list": (((T, T),), {}, ([{0: n}, None],), [A, B]),
    "dict": (({"a": T, "b": T},), {}, {"x": {"b": {0: n}, "a": None}}, [B, A]),
    "dict, some left out": (({"a": T, "b": T},), {}, {"x": {"b": {0: n}}}, [B, A]),
    "dict with ints for keys": (({7: T, 1: T},), {}, {"x": {7: {0: n}}}, [A, B]),
    "ordered dict": ((collections.OrderedDict(b=T, a=T),), {}, {"x": {"a": {0: n}}}, [B, A]),
    "deque": ((collections.deque([T, T]),), {}, {"x": [{0: n}, None]}, [A, B]),
    "nested": (({"a": [T, (T, T)]},), {}, {"x": {"a": [None, ({0: n}, None)]}}, [B, A, B]),
    "container as a whole": ((T, [T, {"a": T}]), {}, {"x": {0: n}, "y": None}, [A, B, B]),
    "named tuple": ((Pair(T, T),), {}, {"x": Pair({0: n}, None)}, [A, B]),
    "named tuple by tuple": ((Pair(T, T),), {}, {"x": ({0: n}, None)}, [A, B]),
    "named tuple by field": ((Pair(T, T),), {}, {"x": {"b": {0: n}}}, [B, A]),
    "dataclass": ((Point(T, T),), {}, {"x": Point({0: n}, {0: n})}, [A, A]),
    "dataclass, some None": ((Point(T, T),), {}, {"x": Point(None, {0: n})}, [B, A]),
    "dataclass by field": ((Point(T, T),), {}, {"x": {"y": {0: n}, "z": None}}, [B, A]),
    "dataclass by list": ((Point(T, T),), {}, {"x": [{0: n}, None]}, [A, B]),
    "dataclass, a field less": ((Point(None, T, T),), {}, {"x": [{0: n}, None]}, [A, B]),
    "dataclass of lists": ((Point([T, T], T),), {}, {"x": Point([None, {0: n}], None)}, [B, A, B]),
    "dataclasses in one": (
        (Line(Point(T, T), Point(T, T)),),
        {},
        {"x": Line({"y": {0: n}}, Point({0: n}, None))},
        [B, A, A, B],
    ),
    "registered class": ((Bag(T, T),), {}, {"x": [None, {0: n}]}, [B, A]),
    "*args by name": ((T, T, T, T), {}, {"rest": (None, {0: n})}, [B, B, B, A]),
    "*args by position": ((T, T, T, T), {}, (None, None, [{0: n}, None]), [B, B, A, B]),
    "**kwargs by key": ((T,), {"p": T, "q": T}, {"q": {0: n}}, [B, B, A]),
    "**kwargs as one": ((T,), {"p": T, "q": T}, {"more": {"q": {0: n}}}, [B, B, A]),
    "**kwargs by position": ((T,), {"p": T, "q": T}, (None, None, {0: n}), [B, B, A]),
    "keywords in another order": (
        (),
        {"q": T, "key": T, "x": T},
        {"key": {0: n}, "q": {1: m}, "x": None},
        [B, A, "4, m"],
    ),
    "keywords by position": ((T,), {"key": T, "y": T}, (None, {0: n}, {1: m}), [B, A, "4, m"]),
    "constants": ((T, 5, "floor", None), {}, ({0: n}, None, (None, None)), [A]),
    "constants told to be static": ((T, True), {}, ({0: n}, Dim.STATIC), [A]),
    "the value of a constant": ((T, 5, 2.5), {}, ({0: n}, 5, (2.5,)), [A]),
    "numbers inside": (([(1, 2), (T, T)],), {}, {"x": [(None, None), ({0: n}, None)]}, [A, B]),
    "0-d tensor": ((torch.tensor(1.0), T), {}, ((), {0: n}), ["", A]),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_written(case: str) -> None:
    args, kwargs, spec, want = WRITTEN[case]
    ep = gp.export(doubled, args, kwargs, dynamic_shapes=spec)
    assert sizes_of(ep) == want
    ep.validate()
    for order in (kwargs, dict(reversed(kwargs.items()))):
        got = ep.module()(*args, **order)
        torch.testing.assert_close(got, doubled(*args, **kwargs))


def test_a_spec_made_by_tree_map() -> None:
    inputs = {"a": T, "b": dict.fromkeys("ABC", T), "c": [T, T], "d": Point(T, T)}
    spec = pytree.tree_map(lambda t: {0: n}, inputs)
    ep = gp.export(doubled, (inputs,), dynamic_shapes={"x": spec})
    assert sizes_of(ep) == [A] * 8
    other = pytree.tree_map(lambda t: t[:2], inputs)
    assert [t.shape[0] for t in ep.module()(other)] == [2] * 8
    other["c"][1] = T
    with pytest.raises(
        RuntimeError,
        match=r"Expected input at \*args\[0\]\['c'\]\[1\]\.shape\[0\] to be equal to 2, but got 4",
    ):
        ep.module()(other)


def test_a_module_has_the_names_of_its_forward() -> None:
    model = torch.nn.Bilinear(3, 2, 5)
    args = torch.randn(4, 3), torch.randn(4, 2)
    others = [(torch.randn(k, 3), torch.randn(k, 2)) for k in (0, 1, 7)]
    check(model, args, dynamic_shapes={"input2": {0: n}, "input1": (n, None)}, others=others)


def test_unused_inputs_keep_their_dims() -> None:
    p, q = gp.dims("p", "q")
    ep = gp.export(lambda v: v.x + 1, (Point(T, T),), dynamic_shapes={"v": [{0: p}, {0: q}]})
    assert sizes_of(ep) == ["p, 3", "q, 3"]
    assert ep.module()(Point(T[:2], torch.ones(9, 3))).shape == (2, 3)


# Ranges


@pytest.mark.parametrize(
    ("low", "high", "example"), [(1, 2, 2), (0, 1, 1), (0, 5, 0), (3, 3, 3), (0, None, 1)]
)
def test_both_ends_of_a_range(low: int, high: int | None, example: int) -> None:
    ends = [k for k in (low, high) if k is not None]
    ep = check(
        lambda x: x * 2,
        (torch.ones(example, 2),),
        dynamic_shapes=({0: Dim("d", min=low, max=high)},),
        others=[(torch.ones(k, 2),) for k in ends],
    )
    if high is not None:
        with pytest.raises(RuntimeError, match=rf"to be (<=|equal to) {high}, but got {high + 1}"):
            ep.module()(torch.ones(high + 1, 2))
    if low:
        with pytest.raises(RuntimeError, match=rf"to be (>=|equal to) {low}, but got {low - 1}"):
            ep.module()(torch.ones(low - 1, 2))


def test_the_same_definition_twice_is_one_dim() -> None:
    spec = {"x": {0: Dim("d", max=8)}, "y": {0: Dim("d", min=0, max=8)}}
    assert sizes_of(gp.export(doubled, (T, T), dynamic_shapes=spec)) == ["d, 3", "d, 3"]


# Derived dims


def test_equality_and_text_of_dims() -> None:
    d = Dim("d", min=3, max=6)
    assert (2 * d + 1) * 3 - 4 == 6 * d - 1 and hash(d + 1) == hash(1 + d)
    assert d + 1 - 1 is d and (d + 1).root is d
    assert d != Dim("d") and d + 1 != d and d != "d"
    assert [repr(x) for x in (d, 2 * d, d - 1, (d + 2) * 3)] == [
        "Dim('d', min=3, max=6)",
        "2*d",
        "d - 1",
        "3*d + 6",
    ]
    assert ((3 * d - 1).min, (3 * d - 1).max) == (8, 17)


DERIVED: dict[str, tuple[list[Any], list[int], list[list[int]]]] = {
    "after its root": ([n, n + 1], [5, 6], [[4, 5], [0, 1]]),
    "before its root": ([n + 1, n], [6, 5], [[5, 4], [1, 0]]),
    "root in no input": ([2 * n], [10], [[8], [0]]),
    "several, root in no input": ([2 * n, 2 * n + 1, 3 * n - 1], [4, 5, 5], [[8, 9, 11]]),
    "multiple and offset": ([n, 3 * n - 1], [2, 5], [[4, 11], [1, 2]]),
    "chain": ([n, (n + 1) * 2, ((n + 1) * 2 - 3) * 2], [3, 8, 10], [[5, 12, 18]]),
    "around its root": ([n - 1, n, n + 1], [5, 6, 7], [[6, 7, 8], [0, 1, 2]]),
    "repeated": ([n - 1, n, n + 1, n - 1, n + 1 - 2], [5, 6, 7, 5, 5], [[3, 4, 5, 3, 3]]),
    "of two roots": ([n, 2 * m, n + 1, m], [3, 4, 4, 2], [[5, 2, 6, 1]]),
    "less than its root": ([n - 6, n], [6, 12], [[0, 6], [3, 9]]),
}


@pytest.mark.parametrize("case", DERIVED)
def test_derived(case: str) -> None:
    dims, example, others = DERIVED[case]

    def program(*xs: torch.Tensor) -> Any:
        return [x * 2 for x in xs], [x.shape[0] + 1 for x in xs]

    def inputs(sizes: list[int]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(s) for s in sizes)

    ep = check(
        program,
        inputs(example),
        dynamic_shapes={"xs": [(d,) for d in dims]},
        others=[inputs(sizes) for sizes in others],
    )
    assert sizes_of(ep) == [d.__name__ for d in dims]
    # Every root has an entry, and every derived dim.
    assert set(ranges_of(ep)) == {d.__name__ for d in dims} | {d.root.__name__ for d in dims}
    if len(example) > 1:
        with pytest.raises(RuntimeError, match="Expected input"):
            ep.module()(*inputs([*others[0][:-1], others[0][-1] + 1]))


def test_a_size_not_of_the_form() -> None:
    ep = check(
        lambda x: x * 2, (torch.ones(10),), dynamic_shapes=({0: 2 * Dim("d", min=3, max=6)},)
    )
    for size, text in (
        (9, r"= 9 to be of the form 2\*d, where d is an integer"),
        (14, "to be <= 12, but got 14"),
        (4, "to be >= 6, but got 4"),
    ):
        with pytest.raises(RuntimeError, match=text):
            ep.module()(torch.ones(size))
    assert ranges_of(ep) == {"d": (3, 6), "2*d": (6, 12)}


@pytest.mark.parametrize("low", [None, 0, 6, 8])
def test_a_size_is_never_negative(low: int | None) -> None:
    d = Dim("d", min=low, max=20)
    args = torch.ones(6, 2), torch.ones(12)
    ep = check(lambda x, y: (x + 1, y + 1), args, dynamic_shapes=((d - 6, 2), (d,)))
    least = max(low or 0, 6)
    assert ranges_of(ep) == {"d": (least, 20), "d - 6": (least - 6, 14)}
    with pytest.raises(RuntimeError, match="Expected input"):
        ep.module()(torch.ones(0, 2), torch.ones(5))


def test_ranges_of_dims_and_derived_dims() -> None:
    d = Dim("d", min=1, max=2)
    ep = gp.export(
        lambda x, y: x + y[1:], (torch.ones(2), torch.ones(3)), dynamic_shapes=((d,), (d + 1,))
    )
    assert ranges_of(ep) == {"d": (1, 2), "d + 1": (2, 3)}
    ep.module()(torch.ones(1), torch.ones(2))


# Hints


def declared(spec: Any, *args: Any) -> Spec:
    return Spec(bind_inputs(doubled, args, None), spec, Scope())


def test_what_is_known_of_a_symbol() -> None:
    spec = declared(
        {"x": (n, Dim.AUTO), "y": (Dim.DYNAMIC, Dim.AUTO(min=1, max=64)), "rest": (Dim.DYNAMIC,)},
        T,
        T,
        5,
    )
    found = {
        name: (
            d.dim,
            d.automatic,
            d.place,
            spec.ranges[d.symbol].lower,
            spec.ranges[d.symbol].upper,
        )
        for name, d in spec.declared.items()
    }
    inf = float("inf")
    assert found == {
        "n": (n, False, "dynamic_shapes['x'][0]", 0, inf),
        "s1": (None, True, "dynamic_shapes['x'][1]", 0, inf),
        "s2": (None, False, "dynamic_shapes['y'][0]", 0, inf),
        "s3": (None, True, "dynamic_shapes['y'][1]", 1, 64),
        "s4": (None, False, "dynamic_shapes['rest'][0]", -inf, inf),
    }
    assert spec.sizes.keys() == {"*args[0]", "*args[1]"} and spec.numbers.keys() == {"*args[2]"}


def test_hints_do_not_take_the_names_of_dims() -> None:
    s0, s1 = gp.dims("s0", "s1")
    ep = gp.export(doubled, (T, T), dynamic_shapes=({0: Dim.DYNAMIC, 1: s1}, {0: s0, 1: Dim.AUTO}))
    assert sizes_of(ep) == ["s2, s1", "s0, s3"]


@pytest.mark.parametrize("hint", [Dim.AUTO, Dim.DYNAMIC])
def test_a_hint_with_a_range(hint: Any) -> None:
    ep = check(
        lambda x: x + 1,
        (T,),
        dynamic_shapes={"x": {0: hint(min=1, max=8)}},
        others=[(torch.ones(1, 3),), (torch.ones(8, 3),)],
    )
    assert list(ranges_of(ep).values()) == [(1, 8)]
    with pytest.raises(RuntimeError, match="to be <= 8, but got 9"):
        ep.module()(torch.ones(9, 3))
    assert repr(hint(max=8)) == f"{hint!r}(max=8)" and hint(max=8) == hint(max=8) != hint


def test_dynamic_may_not_be_fixed_and_auto_may() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, 1)

    with pytest.raises(ConstraintViolationError, match=r"specialized it to be a constant \(4\)"):
        gp.export(f, (T,), dynamic_shapes={"x": {0: Dim.DYNAMIC}})
    ep = gp.export(f, (T,), dynamic_shapes={"x": {0: Dim.AUTO}})
    with pytest.raises(RuntimeError, match="to be equal to 4, but got 5"):
        ep.module()(torch.ones(5, 3))


# Dims of PyTorch


def test_dims_of_torch_are_taken_for_ours() -> None:
    from torch import export as te

    d, e = te.Dim("d", min=2, max=6), te.Dim("e")
    for theirs, ours in (
        ((d, e), (Dim("d", min=2, max=6), Dim("e"))),
        ((2 * d - 2, e), (2 * Dim("d", min=2, max=6) - 2, Dim("e"))),
        ((te.Dim.AUTO, te.Dim.DYNAMIC(max=8)), (Dim.AUTO, Dim.DYNAMIC(max=8))),
        ((te.Dim.STATIC, None), (Dim.STATIC, None)),
    ):
        a = gp.export(doubled, (T,), dynamic_shapes={"x": theirs})
        b = gp.export(doubled, (T,), dynamic_shapes={"x": ours})
        assert sizes_of(a) == sizes_of(b) and ranges_of(a) == ranges_of(b)

    shapes = te.ShapesCollection()
    shapes[T] = {0: d}
    assert sizes_of(gp.export(doubled, ([T],), dynamic_shapes=shapes)) == ["d, 3"]
    with pytest.raises(gp.errors.SpecError, match="not found in args"):
        gp.export(doubled, (T.clone(),), dynamic_shapes=shapes)
    more = te.AdditionalInputs()
    more.add((torch.ones(5, 3),))
    assert sizes_of(gp.export(doubled, (T,), dynamic_shapes=more)) == ["s0, 3"]
