"""`dynamic_shapes`: ways to write it, what stays dynamic, and what is said when it is wrong."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import ConstraintViolationError
from tests.helpers import check

Pair = collections.namedtuple("Pair", ["a", "b"])


def sizes_of(ep: gp.ExportedProgram) -> list[str]:
    """Sizes of the user's inputs as text."""
    names = [s.arg.name for s in ep.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    return [
        ", ".join(map(str, n.meta["val"].shape))
        for n in ep.graph.nodes
        if n.op == "placeholder" and n.name in names and isinstance(n.meta["val"], torch.Tensor)
    ]


def total(x: Any, y: Any = None, *rest: Any, key: Any = None, **more: Any) -> Any:
    leaves = torch.utils._pytree.tree_leaves((x, y, rest, key, more))
    return [t * 2 for t in leaves if isinstance(t, torch.Tensor)]


n, m = gp.dims("n", "m")
T = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("args", "kwargs", "spec", "want"),
    [
        ((T, T), {}, {"x": {0: n}, "y": {1: m}}, ["n, 3", "4, m"]),
        ((T, T), {}, {"y": {0: n}}, ["4, 3", "n, 3"]),
        ((T, T), {}, ({0: n}, None), ["n, 3", "4, 3"]),
        ((T, T), {}, [(n, m), [None, m]], ["n, m", "4, m"]),
        ((T, T), {}, {"x": (n, 3), "y": (4, None)}, ["n, 3", "4, 3"]),
        ((T,), {}, {"x": {-1: m}}, ["4, m"]),
        ((T,), {}, {"x": {0: n + 1, 1: 2 * m + 1}}, ["n + 1, 2*m + 1"]),
        ((T,), {}, {"x": {0: gp.Dim.STATIC, 1: gp.Dim.DYNAMIC}}, ["4, s0"]),
        (([T, T],), {}, {"x": [{0: n}, None]}, ["n, 3", "4, 3"]),
        (({"a": T, "b": (T, T)},), {}, {"x": {"b": ({0: n}, {1: m})}}, ["4, 3", "n, 3", "4, m"]),
        ((Pair(T, T),), {}, {"x": Pair({0: n}, {0: n})}, ["n, 3", "n, 3"]),
        (
            (T, 5, T, T),
            {},
            {"x": {0: n}, "y": None, "rest": ({0: n}, None)},
            ["n, 3"] * 2 + ["4, 3"],
        ),
        ((T,), {"key": T, "extra": T}, {"extra": {0: n}, "key": {1: m}}, ["4, 3", "4, m", "n, 3"]),
        ((T,), {"extra": T, "key": T}, {"x": {0: n}}, ["n, 3", "4, 3", "4, 3"]),
    ],
)
def test_ways_to_write_it(args: Any, kwargs: Any, spec: Any, want: list[str]) -> None:
    ep = gp.export(total, args, kwargs, dynamic_shapes=spec)
    assert sizes_of(ep) == want
    ep.module()(*args, **kwargs)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_any_example_size_stays_dynamic(size: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)).eval()
    others = [(torch.randn(k, 3),) for k in (0, 1, 2, 5)]
    check(
        model,
        (torch.randn(size, 3),),
        dynamic_shapes={"input": {0: gp.Dim("batch")}},
        others=others,
    )


def test_broadcasting_against_one_does_not_fix_a_dim() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y + x.mean(1, keepdim=True) + torch.ones(1, 1)

    b, c = gp.dims("b", "c")
    for batch in (1, 3):
        check(
            f,
            (torch.randn(batch, 4), torch.randn(4)),
            dynamic_shapes=({0: b, 1: c}, {0: c}),
            others=[(torch.randn(5, 2), torch.randn(2)), (torch.randn(1, 1), torch.randn(1))],
        )


def test_range_constraints_have_roots_and_derived_dims() -> None:
    d = gp.Dim("d", min=1, max=2)
    ep = gp.export(
        lambda x, y: x + y[1:], (torch.ones(2), torch.ones(3)), dynamic_shapes=({0: d}, {0: d + 1})
    )
    assert {str(k): (r.lower, r.upper) for k, r in ep.range_constraints.items()} == {
        "d": (1, 2),
        "d + 1": (2, 3),
    }


def test_unused_inputs_keep_their_dims() -> None:
    ep = gp.export(lambda x, y: x + 1, (T, T), dynamic_shapes=({0: gp.Dim("a")}, {0: gp.Dim("b")}))
    assert sizes_of(ep) == ["a, 3", "b, 3"]
    assert ep.module()(torch.ones(2, 3), torch.ones(9, 3)).shape == (2, 3)


def fixed_by_addition(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(5)


def limited_by_a_branch(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] <= 6:
        return x + 1
    return x - 1


def related_by_addition(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y[1:]


def fixed_by_a_loop(x: torch.Tensor) -> torch.Tensor:
    out = x
    for _ in range(x.shape[0]):
        out = out + 1
    return out


def divided(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, 2).sum(1)


VIOLATIONS = {
    fixed_by_addition: (
        (torch.ones(5),),
        ["Constraints violated (x0)!", "to be a constant (5)", "return x + torch.ones(5)"],
        ["x0 = 5"],
    ),
    limited_by_a_branch: (
        (torch.ones(5),),
        [
            "Constraints violated (x0)!",
            "Not all values of x0 = *args[0].shape[0] in the specified range [0, oo] satisfy the "
            "generated guard x0 <= 6",
            "in limited_by_a_branch: if x.shape[0] <= 6:",
        ],
        ["x0 = Dim('x0', max=6)"],
    ),
    related_by_addition: (
        (torch.ones(5), torch.ones(6)),
        ["must always be related to the values of x0 by x1 = x0 + 1", "return x + y[1:]"],
        ["x1 = x0 + 1"],
    ),
    fixed_by_a_loop: (
        (torch.ones(3),),
        ["to be a constant (3)", "for _ in range(x.shape[0]):"],
        [
            "x0 = 3",
            "# or leave it open: gp.scan(step, init, xs) or torch.while_loop in place of the loop",
        ],
    ),
    divided: (
        (torch.ones(6),),
        ["Not all values of x0", "x0 % 2 == 0", "return x.reshape(-1, 2).sum(1)"],
        ["_x0 = Dim('_x0')", "x0 = 2*_x0"],
    ),
}


@pytest.mark.parametrize("program", VIOLATIONS, ids=lambda f: f.__name__)
def test_more_is_needed_than_was_declared(program: Any) -> None:
    args, texts, fixes = VIOLATIONS[program]
    dims = {f"x{i}": gp.Dim(f"x{i}") for i in range(len(args))}
    with pytest.raises(ConstraintViolationError) as raised:
        gp.export(program, args, dynamic_shapes=tuple({0: d} for d in dims.values()))
    message = str(raised.value)
    for text in texts:
        assert text in message
    assert message.split("Suggested fixes:\n")[1].split("\n") == [f"  {fix}" for fix in fixes]

    # The fixes can be pasted, and then it works.
    scope: dict[str, Any] = {"Dim": gp.Dim, **dims}
    for fix in fixes:
        exec(fix, scope)
    shapes = tuple({0: scope[f"x{i}"]} for i in range(len(args)))
    ep = gp.export(program, args, dynamic_shapes=shapes)
    torch.testing.assert_close(ep.module()(*args), program(*args))


def test_what_fixes_a_dim_names_the_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * len(x.unbind())

    with pytest.raises(ConstraintViolationError, match=r"return x \* len\(x.unbind\(\)\)"):
        gp.export(f, (torch.ones(3),), dynamic_shapes=({0: gp.Dim("d")},))


def test_auto_says_what_the_program_fixes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, 1)

    ep = gp.export(f, (torch.ones(4, 3),), dynamic_shapes={"x": {0: gp.Dim.AUTO, 1: gp.Dim.AUTO}})
    (note,) = ep.notes
    assert note.startswith("*args[0].shape[0] = 4, fixed by the program at test_dynamic_shapes.py:")
    assert note.endswith("return x + torch.ones(4, 1)")
    assert note in str(ep)


BUILTINS = {
    "math.pow": lambda x: x * math.pow(x.shape[0], 2),
    "math.pow of numbers": lambda x: x * math.pow(2, 3),
    "max of tensors": lambda x: max(x.sum(), x.mean()),
    "max of a tensor and a size": lambda x: x + max(x.shape[0], torch.tensor(5)),
    "max of one tensor": lambda x: max(x[0]) + min(torch.tensor([3.0, 2.0])),
}


@pytest.mark.parametrize("name", BUILTINS)
def test_builtin_functions_of_sizes_and_tensors(name):
    x, y = torch.arange(12.0).reshape(4, 3), torch.arange(21.0).reshape(7, 3)
    check(BUILTINS[name], (x,), dynamic_shapes=({0: gp.Dim("b", min=1)},), others=[(y,)])
