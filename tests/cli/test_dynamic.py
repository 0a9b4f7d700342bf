"""`--dynamic`, as it is read, and suggested fixes in its spelling."""

from __future__ import annotations

import pytest
import torch

import graphport as gp
from graphport.cli.capture import parse_dynamic, parse_dynamic_shapes, translate_fixes
from graphport.errors import UsageError


def test_read() -> None:
    read = parse_dynamic(
        ["x:0=batch[1..64],-1 = 2*half + 1", "y:3=n[..7]", "steps=k-1", "z:0=auto[2..]"]
    )
    seen = {
        (name, axis): (w.factor, w.name, w.offset, w.least, w.most)
        for name, axes in read.items()
        for axis, w in axes.items()
    }
    assert seen == {
        ("x", 0): (1, "batch", 0, 1, 64),
        ("x", -1): (2, "half", 1, None, None),
        ("y", 3): (1, "n", 0, None, 7),
        ("steps", None): (1, "k", -1, None, None),
        ("z", 0): (1, "auto", 0, 2, None),
    }


@pytest.mark.parametrize(
    "text", ["", "x", "x:", "x:0", "x:a=n", "x:0=", "x:0=n[1-4]", "x:0=n*2", "x:0=n,", "x:0=3"]
)
def test_unreadable(text: str) -> None:
    with pytest.raises(UsageError, match="dynamic sizes that cannot be read"):
        parse_dynamic([text])


def test_specs_follow_the_inputs() -> None:
    def program(x, *rest, cache, **more):
        return x

    a, b = torch.zeros(2, 3), torch.zeros(4)
    texts = ["x:0=n[2..8]", "rest.1:0=2*n", "cache.0.key:-1=m", "mask:0=auto", "rest.0:1=dynamic"]
    spec = parse_dynamic_shapes(
        texts, program, (a, a, b), {"cache": [{"key": a, "value": b}], "mask": b}
    )
    n, m = gp.Dim("n", min=2, max=8), gp.Dim("m")
    assert spec == {
        "x": {0: n},
        "rest": ({1: gp.Dim.DYNAMIC}, {0: 2 * n}),
        "cache": [{"key": {1: m}, "value": None}],
        "mask": {0: gp.Dim.AUTO},
    }


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        (["n = Dim('n', min=5)"], ["--dynamic with n[5..] in place of n"]),
        (["n = Dim('n', max=5)"], ["--dynamic with n[..5] in place of n"]),
        (["m = n"], ["--dynamic with n in place of m"]),
        (["n = 11"], ["--dynamic without n"]),
        (["some advice"], []),
        (
            ["_dx = Dim('_dx', min=1, max=12)", "dx = 3*_dx - 1", "dy = 3*_dx"],
            [
                "--dynamic with 3*_dx - 1 in place of dx, where _dx is _dx[1..12]",
                "--dynamic with 3*_dx in place of dy",
            ],
        ),
    ],
)
def test_fixes_in_the_spelling_of_the_option(fixes: list[str], said: list[str]) -> None:
    assert translate_fixes(fixes) == said
