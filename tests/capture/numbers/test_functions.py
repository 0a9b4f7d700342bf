"""Python's numbers of open sizes and of data stay symbolic, through the functions people call."""

import warnings

import pytest
import torch

import graphport as gp
from tests.capture.programs import compiled

PROGRAMS = [
    "x * len(x)",
    "x * int(x.shape[0] / 2)",
    "x * float(x.shape[0])",
    "x * x.shape.numel()",
    "x * x.numel()",
    "x * x.nelement()",
    "x + torch.from_numpy(np.arange(x.shape[0]) * 2.0)[:, None]",
    "x + torch.tensor(np.arange(len(x)))[:, None]",
    "x[: int(round(x.shape[0] / 2))]",
    "x[: int(x.shape[0] / (8 / 4))]",
    "x + torch.tensor(list(range(len(x))))[:, None]",
    "x + torch.tensor(range(len(x)))[:, None]",
    "x[: math.ceil(x.shape[0] / 2)]",
    "x[: math.floor(len(x) / 3)]",
    "x / math.sqrt(len(x))",
    "x * math.log2(len(x) + 1)",
    "x * math.log(x.shape[0] + 1, 3)",
    "x.reshape(math.prod(x.shape))",
    "x.reshape(np.prod(x.shape))",
    "x[: int(np.ceil(x.shape[0] / 2))]",
    "x * np.sqrt(x.shape[1]) * np.sqrt(x.shape[0])",
    "x * max(len(x), 4)",
    "x[: min(len(x), 4)]",
    "x * sum(x.shape)",
    "x * abs(len(x) - 5)",
    "x * divmod(len(x), 3)[1]",
    "x * (-~len(x))",
    "x * int((len(x) > 3) ^ (len(x) > 6))",
    "x * int(True ^ (len(x) > 3)) + int((len(x) > 3) ^ False)",
    "x * pow(len(x), 2)",
    "x * (2 if isinstance(x.shape[0], int) else 3)",
    "x * (2 if type(x.shape[0]) is int else 3)",
    "x * (2 if type(len(x)) in (int,) else 3)",
    "x.reshape(*map(int, x.shape))",
    "x.reshape(tuple(int(s) for s in x.shape))",
    "x.reshape([int(s) for s in x.shape])",
    "x + torch.zeros(int(x.shape[0]), int(x.shape[1]))",
    "F.interpolate(x[None, None], size=(int(x.shape[0] * 1.5), int(len(x)) + 1))",
    "x * torch.tensor(x.shape).prod()",
    "x * torch.tensor(len(x))",
    "x * np.array(x.shape).prod()",
    "x * torch.from_numpy(np.array([len(x), 2]))[0]",
    "x + torch.tensor(np.linspace(0, 1, len(x)), dtype=torch.float32)[:, None]",
    "x * np.int64(len(x))",
    "x * int(x.sum())",
    "x * float(x.abs().max())",
    "x * int(x.abs().max())",
    "torch.arange(int(x.abs().max()) + 1)",
    "x * x[0].tolist()[1]",
    "x * len(x.tolist())",
    "x * max((x[:, 0] * 10).long().tolist())",
    "torch.tensor(x[:, 0].tolist())",
    "x * operator.index(len(x))",
    "x + [i for i, _ in enumerate((1, 2, 3))][-1]",
    "x * len(x.shape)",
    "x * len([x, x])",
    "x * {x.shape[1]: 3}[x.shape[1]]",
    "x * sum(a * b for a, b in zip(x.shape, (2, 3)))",
    "x.reshape(functools.reduce(operator.mul, x.shape))",
    "x * torch.tensor(x.size(0)).item()",
    "x * np.clip(len(x), 2, 5)",
    "x * np.log(len(x) + 1)",
    "x * np.exp(-len(x))",
    "x * np.max(x.shape)",
    "x * np.maximum(len(x), 4)",
    "x * len(x).bit_length()",
    "x * (2 if (x.shape[0] / 1).is_integer() else 3)",
    "x * math.exp(-len(x))",
    "x * math.pow(len(x), 0.5)",
    "x * math.isqrt(len(x))",
    "x * len(x.size()) * int(x.size(0))",
    "x * 2 ** int(math.log2(len(x) + 1))",
    "x[slice(0, int(len(x) // 2))]",
    "x.repeat(int(len(x)), 1)",
    "x[: int(np.floor(len(x) * 0.7))]",
    "x[: int(np.round(len(x) * 0.7))]",
    "torch.zeros([int(i) for i in np.array(x.shape)])",
    "torch.from_numpy(np.stack(np.meshgrid(np.arange(x.shape[0]), np.arange(3)), -1))",
]
LOCAL = """
def f(x):
    import math
    import numpy as np
    from math import sqrt
    return x * sqrt(len(x)) + math.log2(len(x) + 1) + np.ceil(len(x) / 2)
"""
EARLIER = """
def f(x):
    sizes = []
    for a in (x, x.T):
        try:
            sizes.append(int(a.shape[0]) + len(a))
        finally:
            sizes.append(float(a.numel()))
    return torch.tensor([n for n in sizes if isinstance(n, int)])
"""
IMPORTS = """
import functools, math, operator
import numpy as np
import torch
import torch.nn.functional as F
"""
MANY = (
    "def f(x):\n"
    + "".join(f"    y{i} = x.n{i} = {i}\n" for i in range(300))
    + """
    return x * int(x.shape[0] / 2) + x.shape.numel() + math.sqrt(len(x)) + np.prod(x.shape)
"""
)
CLOSURE = """
def f(x):
    scale = len(x)
    def inner(t):
        yield from (int(n) * scale for n in t.shape)
    return torch.zeros(tuple(inner(x[:, :2])))
"""


def check(f):
    x = torch.randn(6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ep = gp.export(f, (x,), dynamic_shapes=({0: gp.Dim("n", min=0)},))
        compared = 0
        for n in (6, 5, 9, 1, 2, 0):
            x = torch.randn(n, 4)
            try:
                expected = f(x)
            except (ValueError, RuntimeError, IndexError, ZeroDivisionError):
                continue
            torch.testing.assert_close(ep.module()(x), expected)
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("program", PROGRAMS)
def test_sizes(program):
    check(compiled(f"{IMPORTS}def f(x):\n    return {program}\n", "sizes.py")["f"])


TYPE = """
def f(x):
    import numpy as np
    return x * np.int64(len(x))
"""


@pytest.mark.parametrize(
    "source", [LOCAL, TYPE, *(IMPORTS + s for s in (LOCAL, EARLIER, MANY, CLOSURE))]
)
def test_statements(source):
    check(compiled(source, "sizes.py")["f"])


DATA = {
    "the elements of a tensor": (
        "return torch.zeros(int(lengths.max())) + x.sum()",
        "return x * float(lengths.float().mean())",
        "return x[: int(lengths[0])]",
        "return torch.arange(int(lengths.max().item()))[None] < lengths[:, None]",
        "return x * math.sqrt(lengths.sum())",
        "return x * max(lengths.tolist())",
        "return x * len(lengths.tolist())",
        "return torch.tensor(lengths.tolist())",
        "return x * sum(lengths.tolist())",
        "n = round(float(lengths[0]) / 2)\n    return torch.zeros(n)",
    )
}


@pytest.mark.parametrize("line", DATA["the elements of a tensor"])
def test_data(line):
    f = compiled(f"{IMPORTS}def f(x, lengths):\n    {line}\n", "data.py")["f"]
    x = torch.randn(9, 2)
    ep = gp.export(f, (x, torch.tensor([5, 3])), dynamic_shapes=(None, {0: gp.Dim("n", min=1)}))
    for lengths in ([5, 3], [8], [2, 7, 1]):
        args = (x, torch.tensor(lengths))
        torch.testing.assert_close(ep.module()(*args), f(*args))


def test_the_code_is_as_before():
    """After a capture, also one that fails, and when a function is called from another thread."""
    f = compiled("def f(x):\n    return x * len(x)\n", "sizes.py")["f"]
    g = compiled("def g(x):\n    return x * [1, 2][int(x.sum())]\n", "sizes.py")["g"]
    before = f.__code__, g.__code__
    gp.export(f, (torch.ones(3),))
    with pytest.raises(gp.errors.ExportError):
        gp.export(g, (torch.ones(3),))
    assert (f.__code__, g.__code__) == before and f.__code__ is before[0]


def test_helpers_in_other_files():
    """Code that is not beside the program is found when it fixes a size."""
    helper = compiled("def half(n):\n    return int(n / 2)\n", "helper.py")["half"]
    check(lambda x: x[: helper(x.shape[0])])


def test_a_size_is_an_int():
    def f(x):
        n = len(x)
        return x * (isinstance(n, int) and type(n) is int and not isinstance(n, float))

    check(f)


@pytest.mark.parametrize("index", ["range(x.shape[0] - 1)", "list(range(1, x.shape[0]))"])
def test_ranges_that_index(index):
    """torch iterates over them, which fixes a size that may be fixed."""
    f = compiled(f"def f(x):\n    return x[{index}]\n", "index.py")["f"]
    x = torch.randn(4, 2)
    ep = gp.export(f, (x,), dynamic_shapes=({0: gp.Dim.AUTO},))
    torch.testing.assert_close(ep.module()(x), f(x))


@pytest.mark.parametrize("test", ["(len(x) > 100) ^ True", "True ^ (x.shape[0] >= 3)"])
def test_conditions_that_differ(test):
    f = compiled(f"def f(x):\n    return x[:2] if {test} else x\n", "differ.py")["f"]
    ep = gp.export(f, (torch.randn(6),), dynamic_shapes=({0: gp.Dim("n", min=3, max=80)},))
    for n in (3, 80):
        x = torch.randn(n)
        torch.testing.assert_close(ep.module()(x), f(x))
