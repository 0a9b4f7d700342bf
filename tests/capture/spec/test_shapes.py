"""`gp.ShapesCollection` and `gp.AdditionalInputs`."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport import Dim
from graphport.errors import ConstraintViolationError, InputError, SpecError

Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any
    z: Any = None

    def __post_init__(self) -> None:
        assert not isinstance(self.x, dict), "a spec is no batch"


gp.register_dataclass(Batch, serialized_type_name="tests.test_spec_shapes.Batch")

d = Dim("d", max=10)


def t(*size: int) -> torch.Tensor:
    return torch.randn(*size or (4,))


def sizes_of(ep: gp.ExportedProgram) -> list[str]:
    vals = [node.meta["val"] for node in ep.graph.nodes if node.op == "placeholder"]
    return [", ".join(map(str, v.shape)) if isinstance(v, torch.Tensor) else str(v) for v in vals]


class Sum(nn.Module):
    def forward(self, x: Any, y: Any, z: Any) -> torch.Tensor:
        return x + y[0] + z["k"]


# ShapesCollection


def collected() -> tuple[gp.ShapesCollection, tuple[Any, ...]]:
    args = t(), [t()], {"k": t()}
    shapes = gp.ShapesCollection()
    for leaf in (args[0], args[1][0], args[2]["k"]):
        shapes[leaf] = (d,)
    return shapes, args


def test_positional_arguments() -> None:
    shapes, args = collected()
    assert len(shapes) == 3
    assert shapes.dynamic_shapes(Sum(), args) == {"x": {0: d}, "y": [{0: d}], "z": {"k": {0: d}}}
    ep = gp.export(Sum(), args, dynamic_shapes=shapes)
    assert sizes_of(ep) == ["d", "d", "d"]
    other = t(7), [t(7)], {"k": t(7)}
    torch.testing.assert_close(ep.module()(*other), Sum()(*other))


def test_keyword_arguments() -> None:
    shapes, (x, y, z) = collected()
    kwargs = {"z": z, "y": y}
    assert sizes_of(gp.export(Sum(), (x,), kwargs, dynamic_shapes=shapes)) == ["d", "d", "d"]
    spec = shapes.dynamic_shapes(Sum(), (x,), kwargs)
    assert sizes_of(gp.export(Sum(), (x,), kwargs, dynamic_shapes=spec)) == ["d", "d", "d"]


def test_containers_of_every_kind() -> None:
    leaves = [t(4, k + 1) for k in range(7)]
    shapes = gp.ShapesCollection()
    for leaf in leaves[:-1]:
        shapes[leaf] = {0: d}

    def f(a: Any, *rest: Any, key: Any, **more: Any) -> torch.Tensor:
        return a.x + 1

    args = Batch(leaves[0], [leaves[1]]), Pair(leaves[2], 5), (leaves[3], None)
    kwargs = {"more_than_one": {"k": leaves[4]}, "key": collections.deque([leaves[5], leaves[6]])}
    spec = shapes.dynamic_shapes(f, args, kwargs)
    row = {0: d}
    assert spec == {
        "a": {"x": row, "y": [row]},
        "rest": ({"a": row, "b": None}, (row, None)),
        "key": [row, None],
        "more_than_one": {"k": row},
    }
    for given in (spec, shapes):
        ep = gp.export(f, args, kwargs, dynamic_shapes=given)
        assert [s for s in sizes_of(ep) if ", " in s] == [
            *(f"d, {k}" for k in range(1, 5)),
            "d, 6",
            "4, 7",
            "d, 5",
        ]


def test_one_dimension_at_a_time() -> None:
    x, y = t(4, 3), t(4)
    shapes = gp.ShapesCollection()
    shapes[x][0] = d
    shapes[x][1] = Dim.DYNAMIC
    assert shapes[x] == {0: d, 1: Dim.DYNAMIC}
    assert shapes[y] == {} and len(shapes) == 1
    assert sizes_of(gp.export(lambda x: x + 1, (x,), dynamic_shapes=shapes)) == ["d, s1"]


def test_one_tensor_passed_twice() -> None:
    x = t()
    shapes = gp.ShapesCollection()
    shapes[x] = (d,)
    ep = gp.export(lambda a, b: a + b["k"], (x, {"k": x}), dynamic_shapes=shapes)
    assert sizes_of(ep) == ["d", "d"]


def test_the_same_assigned_twice() -> None:
    x = t(4, 3)
    shapes = gp.ShapesCollection()
    shapes[x] = (2 * d, None)
    shapes[x] = {-2: 2 * d}
    with pytest.raises(SpecError) as raised:
        shapes[x] = {0: d}
    assert str(raised.value) == (
        "GP110 Shapes assigned to one tensor of shape (4, 3) do not match: first {0: 2*d, "
        "1: None}, now {0: Dim('d', max=10)}\n"
        "  at   ShapesCollection\n"
        "  fix  assign to a tensor once; shapes[x][d] = ... changes one dimension"
    )


def test_a_spec_shared_by_two_tensors_is_not_shared_any_more() -> None:
    x, y, spec = t(), t(), {0: d}
    shapes = gp.ShapesCollection()
    shapes[x] = shapes[y] = spec
    shapes[x][0] = None
    assert shapes[y] == spec == {0: d}


def test_tensors_that_are_not_found() -> None:
    x, y = t(4, 2), t(9)
    shapes = gp.ShapesCollection()
    shapes[x] = shapes[x.clone()] = (d, None)
    shapes[y] = (d,)
    with pytest.raises(SpecError) as raised:
        gp.export(lambda x: x + 1, (x,), dynamic_shapes=shapes)
    assert str(raised.value) == (
        "GP110 ShapesCollection has specs for tensors that were not found among the inputs, of "
        "shape (4, 2), (9,)\n"
        "  at   ShapesCollection\n"
        "  fix  assign to the very tensors that are passed as args and kwargs, not to copies"
    )


def test_a_collected_tensor_is_kept() -> None:
    shapes = gp.ShapesCollection()
    for _ in range(50):
        shapes[t()] = (d,)
    assert len(shapes) == 50


NOT_TENSORS = {
    5: "GP110 ShapesCollection knows tensors by identity, and 5 has none: equal numbers are one "
    "object\n"
    "  at   ShapesCollection\n"
    "  fix  dynamic_shapes={'name of the argument': Dim.DYNAMIC}",
    "x": "GP110 ShapesCollection assigns specs to tensors, got 'x'\n  at   ShapesCollection",
}


@pytest.mark.parametrize("key", NOT_TENSORS)
def test_only_tensors_have_a_spec(key: Any) -> None:
    shapes = gp.ShapesCollection()
    for act in (lambda: shapes.__setitem__(key, Dim.DYNAMIC), lambda: shapes[key]):
        with pytest.raises(SpecError) as raised:
            act()
        assert str(raised.value) == NOT_TENSORS[key]


@pytest.mark.parametrize(("spec", "text"), [((d,), "(Dim('d', max=10),)"), (d, "Dim('d', max=10)")])
def test_what_is_assigned_fits_the_tensor(spec: Any, text: str) -> None:
    with pytest.raises(SpecError) as raised:
        gp.ShapesCollection()[t(4, 3)] = spec
    assert str(raised.value) == (
        "GP110 a tensor of shape (4, 3) takes a dict {dim: Dim}, or a tuple with 2 entries, got "
        f"{text}\n  at   ShapesCollection"
    )


def test_mistakes_are_found_at_their_place() -> None:
    x = t(4, 3)
    shapes = gp.ShapesCollection()
    shapes[x] = {2: d}
    with pytest.raises(SpecError, match=r"at   dynamic_shapes\['v'\]\['k'\]\[2\]"):
        gp.export(lambda v: v["k"] + 1, ({"k": x},), dynamic_shapes=shapes)


# AdditionalInputs


def more_of(*examples: Any) -> gp.AdditionalInputs:
    more = gp.AdditionalInputs()
    for args in examples:
        more.add(args)
    return more


def test_what_differs_is_dynamic() -> None:
    def f(x: Any, ys: Any, k: int, s: float, mode: str, *rest: Any, key: Any = None) -> Any:
        return x.sum() + ys["a"].sum() * k * s + rest[0].sum()

    more = gp.AdditionalInputs()
    args = t(4, 3), {"a": t(2), "b": 1}, 3, 0.5, "floor", t(1, 1), t(2)
    more.add((t(5, 3), {"a": t(2), "b": 1}, 3, 0.5, "floor", t(1, 1), t(2)), {"key": None})
    more.add((t(4, 3), {"a": t(9), "b": 2}, -7, 0.5, "floor", t(1, 3), t(2)), {"key": None})
    more.add((t(4, 3), {"a": t(9), "b": 1}, 3, 2.5, "floor", t(6, 1), t(2)), {"key": None})
    assert len(more) == 3
    dynamic = Dim.DYNAMIC
    spec = more.dynamic_shapes(f, args, {"key": None})
    assert spec == {
        "x": {0: dynamic},
        "ys": {"a": {0: dynamic}, "b": dynamic},
        "k": dynamic,
        "s": dynamic,
        "mode": None,
        "rest": ({0: dynamic, 1: dynamic}, None),
        "key": None,
    }
    ep = gp.export(f, args, {"key": None}, dynamic_shapes=more)
    assert sizes_of(ep) == ["s0, 3", "s1", "s2", "s3", "s4", "floor", "s5, s6", "2", "None"]
    more.verify(ep)


def test_arguments_may_be_passed_by_position_or_by_name() -> None:
    more = gp.AdditionalInputs()
    more.add((t(7),), {"y": t(2)})
    more.add((), {"y": t(3), "x": t(4)})
    spec = more.dynamic_shapes(lambda x, y: x.sum() + y, (t(4), t(2)))
    assert spec == {"x": {0: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}}


def test_sizes_that_the_program_relates() -> None:
    more = more_of((t(5, 3), t(5, 3)), (t(1, 3), t(1, 3)))
    ep = gp.export(lambda x, y: x + y, (t(4, 3), t(4, 3)), dynamic_shapes=more)
    more.verify(ep)
    with pytest.raises(RuntimeError, match="Expected input"):
        ep.module()(t(6, 3), t(5, 3))


def test_verify_leaves_the_examples_and_the_program_alone() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x.add_(1)
            return x + self.calls

    x = t(7)
    before = x.clone()
    more = more_of((x,), (t(2),))
    ep = gp.export(Counter(), (t(4),), dynamic_shapes=more)
    more.verify(ep)
    torch.testing.assert_close(x, before)
    assert ep.state_dict["calls"] == 0


REFUSED: dict[str, tuple[Any, str, type[Exception]]] = {
    "size": (
        (t(5, 2),),
        "GP111 the program does not run on additional input 1: Expected input at "
        "*args[0].shape[1] to be equal to 3, but got 2\n"
        "  at   AdditionalInputs, example 1",
        ConstraintViolationError,
    ),
    "range": (
        (t(11, 3),),
        "GP111 the program does not run on additional input 1: Expected input at "
        "*args[0].shape[0] to be <= 10, but got 11\n"
        "  at   AdditionalInputs, example 1",
        ConstraintViolationError,
    ),
    "structure": (
        ([t(5, 3)],),
        "GP110 additional input 1 has another structure than the program takes: Trying to flatten "
        "user inputs with exported input tree spec",
        SpecError,
    ),
    "count": (
        (t(5, 3), t(5, 3)),
        "GP110 additional input 1 has another structure than the program takes: Trying to flatten "
        "user inputs with exported input tree spec",
        SpecError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_verify_names_the_example_that_is_refused(case: str) -> None:
    args, text, kind = REFUSED[case]
    ep = gp.export(lambda x: x + 1, (t(4, 3),), dynamic_shapes={"x": {0: d}})
    with pytest.raises(kind) as raised:
        more_of((t(6, 3),), args).verify(ep)
    assert str(raised.value).startswith(text)
    assert str(raised.value).endswith("at   AdditionalInputs, example 1")


FIX = (
    "  at   AdditionalInputs, example 0\n  fix  examples that differ in sizes, ints and floats only"
)
DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "dtype": (
        (t(4),),
        (t(4).double(),),
        "GP110 additional input 0 has dtype torch.float64 at *args[0], instead of torch.float32: "
        "only sizes can be dynamic\n" + FIX,
    ),
    "rank": (
        ([t(4)],),
        ([t(4, 1)],),
        "GP110 additional input 0 has rank 2 at *args[0][0], instead of 1: only sizes can be "
        "dynamic\n" + FIX,
    ),
    "text": (
        (t(4), "floor"),
        (t(4), "trunc"),
        "GP110 additional input 0 has 'trunc' at *args[1], instead of 'floor': a str is a constant "
        "of the program and cannot be dynamic\n" + FIX,
    ),
    "bool": (
        (t(4), True),
        (t(4), False),
        "GP110 additional input 0 has False at *args[1], instead of True: a bool is a constant of "
        "the program and cannot be dynamic\n" + FIX,
    ),
    "type": (
        (t(4), 1),
        (t(4), 1.0),
        "GP110 additional input 0 has a float at *args[1], instead of a int\n" + FIX,
    ),
    "None": (
        (t(4), None),
        (t(4), t(4)),
        "GP110 additional input 0 has a Tensor at *args[1], instead of a NoneType\n" + FIX,
    ),
    "*args": (
        (t(4), 1, "a"),
        (t(4), 1, "b"),
        "GP110 additional input 0 has 'b' at *args[2], instead of 'a': a str is a constant of the "
        "program and cannot be dynamic\n" + FIX,
    ),
    "arguments": (
        (t(4),),
        (t(4), 1),
        "GP110 additional input 0 has the arguments x, y, instead of x\n"
        "  at   AdditionalInputs, example 0\n"
        "  fix  examples with the same arguments and the same containers",
    ),
}


def anything(x: Any, y: Any = None, *rest: Any) -> torch.Tensor:
    return torch.ones(1)


@pytest.mark.parametrize("case", DIFFERENT)
def test_examples_that_differ_in_more(case: str) -> None:
    args, other, text = DIFFERENT[case]
    with pytest.raises(SpecError) as raised:
        gp.export(anything, args, dynamic_shapes=more_of(other))
    assert str(raised.value) == text


def test_examples_of_another_structure() -> None:
    with pytest.raises(SpecError) as raised:
        gp.export(anything, ([t(4)],), dynamic_shapes=more_of(([t(4), t(4)],)))
    assert str(raised.value).startswith("GP110 additional input 0 has another structure at x:\n")


def test_examples_are_arguments() -> None:
    more = gp.AdditionalInputs()
    with pytest.raises(InputError, match="args must be a tuple of the positional arguments"):
        more.add([t(4)])
    with pytest.raises(InputError, match="kwargs must be a dict by parameter name, got list"):
        more.add((t(4),), [1])
    more.add((t(4), 1, 2), {"q": 1})
    with pytest.raises(InputError, match="the arguments do not fit"):
        more.dynamic_shapes(anything, (t(4),))
