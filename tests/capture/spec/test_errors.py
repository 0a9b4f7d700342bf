"""Malformed `dynamic_shapes`: each mistake has its own text, which names the place in the spec."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

import graphport as gp
from graphport import Dim
from graphport.errors import ConstraintViolationError, SpecError

Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Point:
    x: Any
    y: Any
    z: Any = None


gp.register_dataclass(Point, serialized_type_name="tests.spec_errors.Point")

T = torch.ones(4, 3)
n, m = gp.dims("n", "m")


def program(x: Any, y: Any = None, *rest: Any, key: Any = None, **more: Any) -> torch.Tensor:
    return torch.ones(1)


MALFORMED: dict[str, tuple[Any, Any, str]] = {
    "unknown name": (
        (T, T),
        {"z": {0: n}},
        "GP110 dynamic_shapes names 'z', which is not an argument of this call\n"
        "  at   dynamic_shapes['z']\n"
        "  fix  use the names of the arguments: 'x', 'y'",
    ),
    "unknown name, one argument": (
        (T,),
        {"z": {0: n}},
        "GP110 dynamic_shapes names 'z', which is not an argument of this call\n"
        "  at   dynamic_shapes['z']\n"
        "  fix  dynamic_shapes={'x': ...}: 'x' is the only argument",
    ),
    "dims where names belong": (
        (T,),
        {0: n},
        "GP110 dynamic_shapes names 0, which is not an argument of this call\n"
        "  at   dynamic_shapes[0]\n"
        "  fix  dynamic_shapes={'x': ...}: 'x' is the only argument",
    ),
    "keys of the only argument": (
        ({"a": T},),
        {"a": {0: n}},
        "GP110 dynamic_shapes names 'a', which is not an argument of this call\n"
        "  at   dynamic_shapes['a']\n"
        "  fix  dynamic_shapes={'x': ...}: 'x' is the only argument",
    ),
    "unknown keyword": (
        (T,),
        {"more": {"q": None}},
        "GP110 dynamic_shapes names 'q', which is not an argument of this call\n"
        "  at   dynamic_shapes['more']['q']\n"
        "  fix  dynamic_shapes={'x': ...}: 'x' is the only argument",
    ),
    "argument left out": (
        (T,),
        {"y": {0: n}},
        "GP110 the argument 'y' is left at its default in this call, so it cannot be "
        "dynamic; expected None, got {0: Dim('n')}\n"
        "  at   dynamic_shapes['y']\n"
        "  fix  pass an example for y, or None in its place",
    ),
    "too few entries": (
        (T, T),
        ({0: n},),
        "GP110 dynamic_shapes has 1 entry for 2 arguments (x, y)\n"
        "  at   dynamic_shapes\n"
        "  fix  one entry per argument, None where nothing is dynamic; *args is one "
        "argument",
    ),
    "too many entries": (
        (T,),
        [{0: n}, None],
        "GP110 dynamic_shapes has 2 entries for 1 argument (x)\n"
        "  at   dynamic_shapes\n"
        "  fix  one entry per argument, None where nothing is dynamic; *args is one "
        "argument",
    ),
    "not a spec of arguments": (
        (T,),
        n,
        "GP110 dynamic_shapes is a dict by argument name, a tuple by position, a "
        "gp.ShapesCollection or gp.AdditionalInputs, got Dim('n')\n"
        "  at   dynamic_shapes",
    ),
    "a number for a spec of arguments": (
        (T,),
        3,
        "GP110 dynamic_shapes is a dict by argument name, a tuple by position, a "
        "gp.ShapesCollection or gp.AdditionalInputs, got 3\n"
        "  at   dynamic_shapes",
    ),
    "too few dims": (
        (T,),
        {"x": (n,)},
        "GP110 *args[0] has 2 dimensions, but its spec has length 1\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  one entry per dimension, None where it is fixed, or a dict {dim: Dim}",
    ),
    "too many dims": (
        (T,),
        ([n, None, None],),
        "GP110 *args[0] has 2 dimensions, but its spec has length 3\n"
        "  at   dynamic_shapes[0]\n"
        "  fix  one entry per dimension, None where it is fixed, or a dict {dim: Dim}",
    ),
    "no such dim": (
        (T,),
        {"x": {2: n}},
        "GP110 *args[0] has 2 dimensions; expected one in the range [0, 1], got 2\n"
        "  at   dynamic_shapes['x'][2]",
    ),
    "no such negative dim": (
        (T,),
        {"x": {-3: n}},
        "GP110 *args[0] has 2 dimensions; expected one in the range [0, 1], got -3\n"
        "  at   dynamic_shapes['x'][-3]",
    ),
    "dim by name": (
        (T,),
        {"x": {"batch": n}},
        "GP110 *args[0] is a tensor: expected dims by number, got key 'batch'\n"
        "  at   dynamic_shapes['x']['batch']\n"
        "  fix  {0: Dim(...)}",
    ),
    "dim by bool": (
        (T,),
        {"x": {True: n}},
        "GP110 *args[0] is a tensor: expected dims by number, got key True\n"
        "  at   dynamic_shapes['x'][True]\n"
        "  fix  {0: Dim(...)}",
    ),
    "one dim twice": (
        (T,),
        {"x": {0: n, -2: n}},
        "GP110 *args[0].shape[0] is given twice, as 0 and as -2\n"
        "  at   dynamic_shapes['x'][-2]\n"
        "  fix  one entry per dimension",
    ),
    "0-d tensor": (
        (torch.tensor(1.0),),
        {"x": {0: n}},
        "GP110 Cannot mark 0-dimension tensors to be dynamic: *args[0]\n"
        "  at   dynamic_shapes['x'][0]",
    ),
    "0-d tensor by position": (
        (torch.tensor(1.0),),
        ((n,),),
        "GP110 Cannot mark 0-dimension tensors to be dynamic: *args[0]\n"
        "  at   dynamic_shapes[0][0]",
    ),
    "dim for a tensor": (
        (T,),
        {"x": n},
        "GP110 *args[0] is a tensor: expected a dict {dim: Dim}, or a list or tuple with "
        "an entry per dimension, got Dim('n')\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  {0: Dim('n')}, if it is the first dimension",
    ),
    "hint for a tensor": (
        (T,),
        {"x": Dim.AUTO},
        "GP110 *args[0] is a tensor: expected a dict {dim: Dim}, or a list or tuple with "
        "an entry per dimension, got Dim.AUTO\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  {0: Dim.AUTO}, if it is the first dimension",
    ),
    "bool for a dim": (
        (T,),
        {"x": (True, None)},
        "GP110 *args[0].shape[0]: expected a Dim, a name, an int, None, Dim.AUTO, Dim.DYNAMIC or "
        "Dim.STATIC, got True\n"
        "  at   dynamic_shapes['x'][0]",
    ),
    "float for a dim": (
        (T,),
        {"x": (4.0, None)},
        "GP110 *args[0].shape[0]: expected a Dim, a name, an int, None, Dim.AUTO, Dim.DYNAMIC or "
        "Dim.STATIC, got 4.0\n"
        "  at   dynamic_shapes['x'][0]",
    ),
    "class for a dim": (
        (T,),
        {"x": {0: Dim}},
        "GP110 *args[0].shape[0]: expected a Dim, a name, an int, None, Dim.AUTO, Dim.DYNAMIC or "
        "Dim.STATIC, got <class 'graphport.symbolic.dims.Dim'>\n"
        "  at   dynamic_shapes['x'][0]",
    ),
    "negative limit": (
        (T,),
        {"x": {0: Dim.DYNAMIC(min=-1)}},
        "GP110 *args[0].shape[0]: Dim.DYNAMIC(min=-1) has a limit of -1; a size is a "
        "whole number, never negative\n"
        "  at   dynamic_shapes['x'][0]",
    ),
    "fractional limit": (
        (T,),
        {"x": {0: Dim.AUTO(max=4.5)}},
        "GP110 *args[0].shape[0]: Dim.AUTO(max=4.5) has a limit of 4.5; a size is a "
        "whole number, never negative\n"
        "  at   dynamic_shapes['x'][0]",
    ),
    "list for a dict": (
        ({"a": T},),
        {"x": [{0: n}]},
        "GP110 the input at *args[0] is a dict; expected a dict of specs by key: 'a', "
        "got [{0: Dim('n')}]\n"
        "  at   dynamic_shapes['x']",
    ),
    "dict for a list": (
        ([T, T],),
        {"x": {0: {0: n}}},
        "GP110 the input at *args[0] is a list; expected a list or tuple of 2 specs, got "
        "{0: {0: Dim('n')}}\n"
        "  at   dynamic_shapes['x']",
    ),
    "dim for a tuple": (
        ((T, T),),
        {"x": n},
        "GP110 the input at *args[0] is a tuple; expected a list or tuple of 2 specs, "
        "got Dim('n')\n"
        "  at   dynamic_shapes['x']",
    ),
    "text for a dataclass": (
        (Point(T, T),),
        {"x": "xy"},
        "GP110 the input at *args[0] is a Point; expected a dict of specs by field ('x', "
        "'y'), a list, or a Point of specs, got 'xy'\n"
        "  at   dynamic_shapes['x']",
    ),
    "too few parts": (
        ([T, T],),
        {"x": [None]},
        "GP110 the input at *args[0] has 2 parts, but the spec has 1\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  one entry per part, None where nothing is dynamic",
    ),
    "too many fields": (
        (Point(T, T),),
        {"x": [None, None, None]},
        "GP110 the input at *args[0] has 2 parts, but the spec has 3\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  one entry per part, None where nothing is dynamic",
    ),
    "too few fields": (
        (Pair(T, T),),
        {"x": [None]},
        "GP110 the input at *args[0] has 2 parts, but the spec has 1\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  one entry per part, None where nothing is dynamic",
    ),
    "unknown key": (
        ({"a": T},),
        {"x": {"b": None}},
        "GP110 the input at *args[0] has no 'b'; it has 'a'\n  at   dynamic_shapes['x']['b']",
    ),
    "unknown field": (
        (Point(T, T),),
        {"x": {"w": {0: n}}},
        "GP110 the input at *args[0] has no 'w'; it has 'x', 'y'\n  at   dynamic_shapes['x']['w']",
    ),
    "field that is None": (
        (Point(T, T),),
        {"x": {"z": {0: n}}},
        "GP110 the input at *args[0] has no 'z'; it has 'x', 'y'\n  at   dynamic_shapes['x']['z']",
    ),
    "field that is None, in an instance": (
        (Point(T, T),),
        {"x": Point(None, None, {0: n})},
        "GP110 the input at *args[0] has no 'z'; it has 'x', 'y'\n  at   dynamic_shapes['x'].z",
    ),
    "deep inside": (
        ({"a": [T, (T, T)]},),
        {"x": {"a": [None, ({0: n}, {5: n})]}},
        "GP110 *args[0]['a'][1][1] has 2 dimensions; expected one in the range [0, 1], "
        "got 5\n"
        "  at   dynamic_shapes['x']['a'][1][1][5]",
    ),
    "inside a named tuple": (
        (Pair(T, T),),
        {"x": Pair({0: n}, {1: 1.5})},
        "GP110 *args[0].b.shape[1]: expected a Dim, a name, an int, None, Dim.AUTO, Dim.DYNAMIC "
        "or Dim.STATIC, got 1.5\n"
        "  at   dynamic_shapes['x'].b[1]",
    ),
    "inside a dataclass": (
        (Point(T, [T]),),
        {"x": Point({0: n}, [{7: n}])},
        "GP110 *args[0].y[0] has 2 dimensions; expected one in the range [0, 1], got 7\n"
        "  at   dynamic_shapes['x'].y[0][7]",
    ),
    "*args by dict": (
        (T, T, T),
        {"rest": {0: n}},
        "GP110 the input at *args is a tuple; expected a list or tuple of 1 spec, got "
        "{0: Dim('n')}\n"
        "  at   dynamic_shapes['rest']",
    ),
    "too many *args": (
        (T, T, T),
        {"rest": (None, None)},
        "GP110 the input at *args has 1 part, but the spec has 2\n"
        "  at   dynamic_shapes['rest']\n"
        "  fix  one entry per part, None where nothing is dynamic",
    ),
    "inside *args": (
        (T, T, T, T),
        {"rest": (None, {4: n})},
        "GP110 *args[3] has 2 dimensions; expected one in the range [0, 1], got 4\n"
        "  at   dynamic_shapes['rest'][1][4]",
    ),
    "bool input": (
        (True,),
        {"x": Dim.DYNAMIC},
        "GP110 the input at *args[0] is True, a bool: a constant of the program, since "
        "only tensors, ints and floats can be dynamic; expected None, got Dim.DYNAMIC\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  None in its place",
    ),
    "text input": (
        ("floor",),
        {"x": n},
        "GP110 the input at *args[0] is 'floor', a str: a constant of the program, since "
        "only tensors, ints and floats can be dynamic; expected None, got Dim('n')\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  None in its place",
    ),
    "None input": (
        (None,),
        {"x": {0: n}},
        "GP110 the input at *args[0] is None: a constant of the program, since only "
        "tensors, ints and floats can be dynamic; expected None, got {0: Dim('n')}\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  None in its place",
    ),
    "dtype input": (
        (torch.float16,),
        {"x": n},
        "GP110 the input at *args[0] is torch.float16, a dtype: a constant of the "
        "program, since only tensors, ints and floats can be dynamic; expected None, got "
        "Dim('n')\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  None in its place",
    ),
    "Dim for a float": (
        (2.5,),
        {"x": n},
        "GP110 the input at *args[0] is 2.5, a float, and Dim('n') counts in integers\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  Dim.DYNAMIC or Dim.AUTO in its place",
    ),
    "derived Dim for a float": (
        (2.5,),
        {"x": 2 * n},
        "GP110 the input at *args[0] is 2.5, a float, and 2*n counts in integers\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  Dim.DYNAMIC or Dim.AUTO in its place",
    ),
    "dict for an int": (
        (5,),
        {"x": {0: n}},
        "GP110 the input at *args[0] is 5, an int: expected a Dim, Dim.DYNAMIC, Dim.AUTO "
        "or None, got {0: Dim('n')}\n"
        "  at   dynamic_shapes['x']",
    ),
    "text for a float": (
        (2.5,),
        {"x": "n"},
        "GP110 the input at *args[0] is 2.5, a float: expected Dim.DYNAMIC, Dim.AUTO or "
        "None, got 'n'\n"
        "  at   dynamic_shapes['x']",
    ),
    "other constant for an int": (
        (5,),
        {"x": 6},
        "GP110 Static constraint of 6 does not match input value of 5, for *args[0]\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  None or 5 in its place",
    ),
    "fractional limit for an int": (
        (5,),
        {"x": Dim.DYNAMIC(max=7.5)},
        "GP110 *args[0]: Dim.DYNAMIC(max=7.5) has a limit of 7.5; the input is an int, "
        "so its limits are ints\n"
        "  at   dynamic_shapes['x']",
    ),
    "two definitions": (
        (T,),
        {"x": {0: Dim("C", min=3), 1: Dim("C", max=12)}},
        "GP110 Found different definitions Dim('C', min=3) and Dim('C', max=12) for the "
        "same symbolic dimension\n"
        "  at   dynamic_shapes['x'][1], after dynamic_shapes['x'][0]\n"
        "  fix  one Dim for it, used in both places, or two names",
    ),
    "two definitions, derived": (
        (T, T),
        {"x": {0: 2 * Dim("C")}, "y": {1: Dim("C", max=3)}},
        "GP110 Found different definitions Dim('C') and Dim('C', max=3) for the same "
        "symbolic dimension\n"
        "  at   dynamic_shapes['y'][1], after dynamic_shapes['x'][0]\n"
        "  fix  one Dim for it, used in both places, or two names",
    ),
    "not of the form": (
        (T,),
        {"x": {0: 2 * Dim("d") + 1}},
        "GP110 Expected shape[0] = 4 of input Tensor to be of the form 2*d + 1, where d "
        "is an integer\n"
        "  at   dynamic_shapes['x'][0], for *args[0].shape[0]",
    ),
    "int not of the form": (
        (4,),
        {"x": 3 * n},
        "GP110 Expected *args[0] = 4 of input int to be of the form 3*n, where n is an "
        "integer\n"
        "  at   dynamic_shapes['x'], for *args[0]",
    ),
    "below the range": (
        (T,),
        {"x": {0: Dim("d", min=6)}},
        "GP111 4 not in range [6, inf]: the example size of *args[0].shape[0] is outside "
        "of Dim('d', min=6)\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  d = Dim('d', min=4)",
    ),
    "above the range": (
        (T,),
        {"x": {-1: Dim("d", min=1, max=2)}},
        "GP111 3 not in range [1, 2]: the example size of *args[0].shape[1] is outside "
        "of Dim('d', min=1, max=2)\n"
        "  at   dynamic_shapes['x'][-1]\n"
        "Suggested fixes:\n"
        "  d = Dim('d', min=1, max=3)",
    ),
    "derived below the range": (
        (T,),
        {"x": {0: 2 * Dim("d", min=3, max=6)}},
        "GP111 2 not in range [3, 6]: *args[0].shape[0] = 4 makes d = 2\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  d = Dim('d', min=2, max=6)",
    ),
    "derived above the range": (
        (T,),
        {"x": {0: Dim("d", max=2) + 1}},
        "GP111 3 not in range [0, 2]: *args[0].shape[0] = 4 makes d = 3\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  d = Dim('d', max=3)",
    ),
    "negative for every root": (
        (T,),
        {"x": {0: Dim("d", max=4) - 6}},
        "GP111 10 not in range [0, 4]: *args[0].shape[0] = 4 makes d = 10\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  d = Dim('d', max=10)",
    ),
    "DYNAMIC out of range": (
        (T,),
        {"x": {0: Dim.DYNAMIC(max=3)}},
        "GP111 4 not in range [0, 3]: the example of *args[0].shape[0] is outside of "
        "Dim.DYNAMIC(max=3)\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  dynamic_shapes['x'][0] = Dim.DYNAMIC(max=4)",
    ),
    "AUTO out of range": (
        (T,),
        {"x": (Dim.AUTO(min=5, max=64), None)},
        "GP111 4 not in range [5, 64]: the example of *args[0].shape[0] is outside of "
        "Dim.AUTO(min=5, max=64)\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  dynamic_shapes['x'][0] = Dim.AUTO(min=4, max=64)",
    ),
    "int out of range": (
        (5,),
        {"x": Dim("k", max=4)},
        "GP111 5 not in range [0, 4]: the example value of *args[0] is outside of "
        "Dim('k', max=4)\n"
        "  at   dynamic_shapes['x']\n"
        "Suggested fixes:\n"
        "  k = Dim('k', max=5)",
    ),
    "negative int for a Dim": (
        (-5,),
        {"x": Dim("k")},
        "GP111 -5 not in range [0, inf]: the example value of *args[0] is outside of "
        "Dim('k')\n"
        "  at   dynamic_shapes['x']\n"
        "Suggested fixes:\n"
        "  dynamic_shapes['x'] = Dim.DYNAMIC",
    ),
    "int out of the range of a hint": (
        (-5,),
        {"x": Dim.AUTO(min=0)},
        "GP111 -5 not in range [0, inf]: the example of *args[0] is outside of "
        "Dim.AUTO(min=0)\n"
        "  at   dynamic_shapes['x']\n"
        "Suggested fixes:\n"
        "  dynamic_shapes['x'] = Dim.AUTO(min=-5)",
    ),
    "float out of range": (
        (2.5,),
        {"x": Dim.DYNAMIC(min=3)},
        "GP111 2.5 not in range [3, inf]: the example of *args[0] is outside of "
        "Dim.DYNAMIC(min=3)\n"
        "  at   dynamic_shapes['x']\n"
        "Suggested fixes:\n"
        "  dynamic_shapes['x'] = Dim.DYNAMIC(min=2.5)",
    ),
    "other static size": (
        (T,),
        {"x": (5, None)},
        "GP111 Static shape constraint of 5 does not match input size of 4, for "
        "*args[0].shape[0]\n"
        "  at   dynamic_shapes['x'][0]\n"
        "Suggested fixes:\n"
        "  dynamic_shapes['x'][0] = 4",
    ),
    "sizes that do not agree": (
        (T, T),
        {"x": {0: n}, "y": {1: n}},
        "GP111 Expected input at *args[1].shape[1] (size 3) to be equal to n, where n = "
        "4, but got 3\n"
        "  at   dynamic_shapes['y'][1]\n"
        "Suggested fixes:\n"
        "  # pass an example in which *args[1].shape[1] is n, or give it another Dim",
    ),
    "derived that does not agree": (
        (torch.ones(5), torch.ones(6)),
        ({0: n}, {0: 2 * n}),
        "GP111 Expected input at *args[1].shape[0] (size 6) to be equal to 2*n, where n "
        "= 5, but got 6\n"
        "  at   dynamic_shapes[1][0]\n"
        "Suggested fixes:\n"
        "  # pass an example in which *args[1].shape[0] is 2*n, or give it another Dim",
    ),
    "size and int that do not agree": (
        (T, 5),
        ({0: n}, n),
        "GP111 Expected input at *args[1] (value 5) to be equal to n, where n = 4, but "
        "got 5\n"
        "  at   dynamic_shapes[1]\n"
        "Suggested fixes:\n"
        "  # pass an example in which *args[1] is n, or give it another Dim",
    ),
    "root too small for a derived size": (
        (torch.ones(3), torch.ones(4)),
        ({0: n}, {0: n - 6}),
        "GP111 Expected input at *args[1].shape[0] (size 4) to be equal to n - 6, where "
        "n = 3, but got 4\n"
        "  at   dynamic_shapes[1][0]\n"
        "Suggested fixes:\n"
        "  # pass an example in which *args[1].shape[0] is n - 6, or give it another Dim",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case: str) -> None:
    args, spec, text = MALFORMED[case]
    with pytest.raises((SpecError, ConstraintViolationError)) as raised:
        gp.export(program, args, dynamic_shapes=spec)
    assert str(raised.value) == text


def test_every_mistake_says_where() -> None:
    for _, _, text in MALFORMED.values():
        assert "\n  at   dynamic_shapes" in text


def test_a_keyword_argument_is_named_as_it_is_passed() -> None:
    with pytest.raises(SpecError) as raised:
        gp.export(program, (T,), {"key": {"a": T}}, dynamic_shapes={"key": {"a": {2: n}}})
    assert str(raised.value) == (
        "GP110 kwargs['key']['a'] has 2 dimensions; expected one in the range [0, 1], got 2\n"
        "  at   dynamic_shapes['key']['a'][2]"
    )


def test_a_call_without_arguments() -> None:
    with pytest.raises(SpecError) as raised:
        gp.export(lambda: torch.ones(1), (), dynamic_shapes={"x": {0: n}})
    assert str(raised.value) == (
        "GP110 dynamic_shapes names 'x', which is not an argument of this call\n"
        "  at   dynamic_shapes['x']\n"
        "  fix  this call has no arguments: leave dynamic_shapes out"
    )


_FIXABLE = [c for c, (_, _, t) in MALFORMED.items() if "Suggested fixes:" in t and "#" not in t]


@pytest.mark.parametrize("case", _FIXABLE)
def test_suggested_fixes_can_be_pasted(case: str) -> None:
    args, spec, text = MALFORMED[case]
    (line,) = text.split("Suggested fixes:\n")[1].splitlines()
    names: dict[str, Any] = {"Dim": Dim, "dynamic_shapes": _mutable(spec)}
    exec(line.strip(), names)
    spec = _redefined(names["dynamic_shapes"], names)
    gp.export(program, args, dynamic_shapes=spec).module()(*args)


def _mutable(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {k: _mutable(v) for k, v in spec.items()}
    return [_mutable(v) for v in spec] if isinstance(spec, tuple) else spec


def _redefined(spec: Any, names: dict[str, Any]) -> Any:
    """The spec, with the dims that were defined anew."""
    if isinstance(spec, dict):
        return {k: _redefined(v, names) for k, v in spec.items()}
    if isinstance(spec, list):
        return [_redefined(v, names) for v in spec]
    if isinstance(spec, Dim) and spec.root.__name__ in names:
        factor, offset = spec.linear
        return names[spec.root.__name__] * factor + offset
    return spec


LINEAR = "a derived dim is a Dim with an integer, as in 2*d + 1; got "
MAKING: list[tuple[Any, str]] = [
    (lambda: Dim("a b"), "a Dim needs a name that is a Python identifier, got 'a b'"),
    (lambda: Dim(3), "a Dim needs a name that is a Python identifier, got 3"),
    (lambda: Dim("a", min=-1), "Dim('a'): min=-1 is negative"),
    (lambda: Dim("a", min=4, max=3), "Dim('a'): max=3 is smaller than min=4"),
    (lambda: Dim("a", max=-3), "Dim('a'): max=-3 is smaller than min=0"),
    (lambda: Dim("a", max=2.5), "Dim('a'): max is an integer, got 2.5"),
    (lambda: Dim("a", min=True), "Dim('a'): min is an integer, got True"),
    (lambda: n * 0, "a derived dim needs a positive factor: Dim('n') * 0"),
    (lambda: -2 * n, "a derived dim needs a positive factor: Dim('n') * -2"),
    (lambda: n + 1.5, LINEAR + "Dim('n') + 1.5"),
    (lambda: n + m, LINEAR + "Dim('n') + Dim('m')"),
    (lambda: n * m, LINEAR + "Dim('n') * Dim('m')"),
    (lambda: 5 - n, LINEAR + "5 - Dim('n')"),
    (lambda: -n, LINEAR + "-Dim('n')"),
    (lambda: n % 2, LINEAR + "Dim('n') % 2"),
    (lambda: n**2, LINEAR + "Dim('n') ** 2"),
    (
        lambda: n // 2,
        LINEAR + "Dim('n') // 2\n  fix  half = Dim(\"half\"), and n = 2*half: name the smaller one",
    ),
    (
        lambda: 2 * Dim.AUTO,
        "a derived dim needs a Dim with a name; got 2 * Dim.AUTO\n"
        '  fix  d = Dim("d"), then 2*d + 1',
    ),
    (
        lambda: Dim("d") - 1.5,
        "a derived dim is a Dim with an integer, as in 2*d + 1; got Dim('d') - 1.5",
    ),
    (lambda: Dim.AUTO(min=3, max=1), "Dim.AUTO(min=3, max=1): max=1 is smaller than min=3"),
    (lambda: Dim.DYNAMIC(max="8"), "Dim.DYNAMIC(max=8): a limit is a number, got '8'"),
    (lambda: Dim.STATIC(max=8), "Dim.STATIC takes no range\n  fix  Dim.DYNAMIC(min=..., max=...)"),
    (
        lambda: Dim.AUTO(max=8)(min=1),
        "Dim.AUTO(max=8) takes no range\n  fix  Dim.DYNAMIC(min=..., max=...)",
    ),
]


@pytest.mark.parametrize("i", range(len(MAKING)))
def test_dims_are_checked_when_made(i: int) -> None:
    make, text = MAKING[i]
    with pytest.raises(SpecError) as raised:
        make()
    assert str(raised.value) == f"GP110 {text}"
