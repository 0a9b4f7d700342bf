"""torch.SymInt, SymFloat and SymBool around our expressions."""

import math
import sys

import pytest
import torch
from torch.fx.experimental import symbolic_shapes
from torch.overrides import TorchFunctionMode

from graphport.errors import DataDependentError
from graphport.symbolic import Scope, bridge, eq, ge, ne, sqrt, to_float
from graphport.symbolic.bridge import from_torch, is_symbolic, to_torch


class Sizes:
    def __init__(self) -> None:
        self.scope = Scope()
        self.n = to_torch(self.scope.symbol("n", hint=6))
        self.s = to_torch(self.scope.symbol("s", hint=16, lower=2))
        self.u = to_torch(self.scope.fresh(lower=0))

    def facts(self) -> list[str]:
        return [str(fact) for fact in self.scope.facts]


@pytest.fixture
def x():
    return Sizes()


def test_one_object_per_expression():
    scope = Scope()
    n = scope.symbol("n")
    assert to_torch(n) is to_torch(n)
    assert from_torch(to_torch(n)) is n
    assert from_torch(to_torch(n) * 2 + 1) is 2 * n + 1
    assert to_torch(n * 2) is to_torch(n + n)
    assert isinstance(to_torch(n), torch.SymInt)
    assert isinstance(to_torch(to_float(n)), torch.SymFloat)
    assert isinstance(to_torch(ge(n, 2)), torch.SymBool)


@pytest.mark.parametrize("value", [3, 2.5, True])
def test_plain_numbers_pass_through(value):
    assert to_torch(value) is value
    assert from_torch(value) is value
    assert not is_symbolic(value)


def test_foreign_values_are_refused():
    foreign = symbolic_shapes.ShapeEnv().create_unbacked_symint()
    assert is_symbolic(foreign)
    with pytest.raises(TypeError, match="another system"):
        from_torch(foreign)
    with pytest.raises(TypeError, match="not a number"):
        from_torch("3")


# What users write with x.shape[0], and what it is.
ARITHMETIC = {
    "n // 2 + 1": (lambda n, s: n // 2 + 1, "n//2 + 1"),
    "3 - n": (lambda n, s: 3 - n, "3 - n"),
    "2 // n": (lambda n, s: 2 // n, "2//n"),
    "n % 3": (lambda n, s: n % 3, "n % 3"),
    "7 % n": (lambda n, s: 7 % n, "7 % n"),
    "-n": (lambda n, s: -n, "-n"),
    "+n": (lambda n, s: +n, "n"),
    "abs(n - s)": (lambda n, s: abs(n - s), "abs(n - s)"),
    "n ** 2": (lambda n, s: n**2, "n**2"),
    "2 ** n": (lambda n, s: 2**n, "2**n"),
    "n << 1": (lambda n, s: n << 1, "2*n"),
    "n >> 1": (lambda n, s: n >> 1, "n//2"),
    "n & 1": (lambda n, s: n & 1, "1 & n"),
    "n | s": (lambda n, s: n | s, "n | s"),
    "n ^ 1": (lambda n, s: n ^ 1, "1 ^ n"),
    "n / 2": (lambda n, s: n / 2, "n/2"),
    "n / s": (lambda n, s: n / s, "n/s"),
    "n * 1.5": (lambda n, s: n * 1.5, "float(n)*1.5"),
    "n + 0.5": (lambda n, s: n + 0.5, "float(n) + 0.5"),
    "1.0 - n": (lambda n, s: 1.0 - n, "float(1 - n)"),
    "n // 2.0": (lambda n, s: n // 2.0, "float(n//2)"),
    "math.floor(n / 2)": (lambda n, s: math.floor(n / 2), "n//2"),
    "math.ceil(n / 2)": (lambda n, s: math.ceil(n / 2), "-((-n)//2)"),
    "math.trunc(n / 2)": (lambda n, s: math.trunc(n / 2), "n//2"),
    "round(n / 4)": (lambda n, s: round(n / 4), "round(n/4)"),
    "round(n / 4, 1)": (lambda n, s: round(n / 4, 1), "round(n/4, 1)"),
    "round(n)": (lambda n, s: round(n), "n"),
    "round(n, 2)": (lambda n, s: round(n, 2), "n"),
    "n ** 0.5": (lambda n, s: n**0.5, "float(n)**0.5"),
    "n ** -1": (lambda n, s: n**-1, "float(n)**(-1.0)"),
    "sym_sqrt": (lambda n, s: torch.sym_sqrt(n), "math.sqrt(float(n))"),
    "sym_max": (lambda n, s: torch.sym_max(n, s), "max(n, s)"),
    "sym_min": (lambda n, s: torch.sym_min(3, n), "min(3, n)"),
    "sym_max of a float": (lambda n, s: torch.sym_max(n / 3, 1.5), "max(n/3, 1.5)"),
    "sym_float": (lambda n, s: torch.sym_float(n), "float(n)"),
    "sym_int": (lambda n, s: torch.sym_int(n / 2), "n//2"),
    "sym_sum": (lambda n, s: torch.sym_sum([n, s, 1]), "n + s + 1"),
    "sym_not": (lambda n, s: torch.sym_not(n == 3), "n != 3"),
    "_sym_cos": (lambda n, s: torch._sym_cos(n), "math.cos(float(n))"),
    "_sym_log2": (lambda n, s: torch._sym_log2(n), "math.log2(float(n))"),
    "and": (lambda n, s: (n == 3) & (s >= 4), "n == 3 and s >= 4"),
    "or": (lambda n, s: (n == 3) | (s < 4), "n == 3 or s <= 3"),
    "is_integer": (lambda n, s: (n / 2).is_integer(), "float(n//2) == n/2"),
}


@pytest.mark.parametrize("text", ARITHMETIC)
def test_arithmetic(x, text):
    compute, printed = ARITHMETIC[text]
    result = compute(x.n, x.s)
    assert str(result) == printed
    # The value at the example sizes is what Python computes there.
    expected = compute(6, 16)
    hint = x.scope.hint(from_torch(result))
    assert hint == pytest.approx(expected)
    # Python raises where a divisor is 0; beyond that, arithmetic assumes nothing.
    assert x.facts() == (["n != 0"] if text in ("2 // n", "7 % n") else [])


def test_constants_come_back_plain(x):
    assert (x.n - x.n, x.n * 0) == (0, 0)
    assert (x.n == x.n) is True
    assert (x.s == 1) is False
    assert (x.s >= 2) is True
    assert type(x.n - x.n) is int
    assert from_torch(torch.sym_sum([x.n, -x.n])) == 0
    nothing = torch.sym_float(x.n) - torch.sym_float(x.n)  # torch leaves a constant float wrapped
    assert from_torch(nothing) == 0.0
    assert float(nothing) == 0.0


def test_bools_count(x):
    assert (x.n > 2) + 1 == 2
    assert x.facts() == ["n >= 3"]  # torch asks for the value of a bool in arithmetic
    assert from_torch(torch.sym_float(x.s > 4)) is not None


def test_sym_ite_in_a_function_mode(x):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.sym_ite:
                return bridge.sym_ite(*args)
            return func(*args, **(kwargs or {}))

    with Mode():
        assert str(torch.sym_ite(x.n > 2, x.n, x.s)) == "(n if n >= 3 else s)"
    assert bridge.sym_ite(True, x.n, x.s) is x.n


# What makes Python need the value, and the fact that remains.
SPECIALISING = {
    "int": (lambda n: int(n), 6, "n == 6"),
    "int of a quotient": (lambda n: int(n / 2), 3, "n//2 == 3"),
    "float": (lambda n: float(n), 6.0, "n == 6"),
    "math.sqrt": (lambda n: math.sqrt(n), math.sqrt(6), "n == 6"),
    "range": (lambda n: len(range(n)), 6, "n == 6"),
    "index": (lambda n: "abcdefgh"[n], "g", "n == 6"),
    "bool": (lambda n: bool(n), True, "n != 0"),
    "if": (lambda n: 1 if n > 4 else 2, 1, "n >= 5"),
    "max": (lambda n: max(n, 4) is n, True, "n >= 4"),
    "in": (lambda n: n in (3, 5), False, "n != 3"),
    "bool of a float": (lambda n: bool(n / 4), True, "not n/4 == 0.0"),
    "int of a float": (lambda n: int(n * 0.3), 1, "math.floor(float(n)*0.3) == 1"),
}


@pytest.mark.parametrize("name", SPECIALISING)
def test_specialising(x, name):
    compute, value, fact = SPECIALISING[name]
    assert compute(x.n) == value
    assert x.facts()[0] in (fact, fact.replace("not ", "").replace("==", "!="))
    assert x.scope.facts[0].where.file == __file__
    assert not x.scope.facts[0].internal


def test_data_dependent_values(x):
    with pytest.raises(DataDependentError):
        int(x.u)
    with pytest.raises(DataDependentError):
        if x.u > 3:
            pass
    torch._check(x.u > 3)
    assert bool(x.u > 2)
    assert [(str(f), f.kind) for f in x.scope.facts] == [("u0 >= 4", "expect")]
    torch._check(x.u == x.n * 2)
    assert int(x.u) == 12
    with pytest.raises(RuntimeError, match="is too small"):
        torch._check(x.u < 2, lambda: f"{x.u} is too small")


def test_a_specialised_symbol_is_an_int_to_torch(x):
    assert int(x.n) == 6
    assert x.n.node.maybe_as_int() == 6
    assert str(x.n) == "6"
    assert torch.empty(x.n, 2, device="meta").shape == (6, 2)


def test_what_pytorch_may_leave_open(x):
    """guard_or_* and statically_known_* prove or take their default; nothing is recorded."""
    even, positive = x.n % 2 == 0, x.s > 0
    assert symbolic_shapes.guard_or_false(even) is False
    assert symbolic_shapes.guard_or_true(even) is True
    assert symbolic_shapes.statically_known_true(even) is False
    assert symbolic_shapes.statically_known_false(even) is False
    assert symbolic_shapes.guard_or_false(positive) is True
    node = even.node
    assert node.guard_or_false("", 0) is False
    assert node.guard_or_true("", 0) is True
    assert node.statically_known_true("", 0) is False
    assert x.facts() == []


def test_pytorch_utilities(x):
    shapes = symbolic_shapes
    assert shapes.has_guarding_hint(x.n)
    assert not shapes.has_guarding_hint(x.u)
    assert not shapes.is_nested_int(x.n)
    assert not shapes.is_concrete_int(x.n)
    assert not shapes.has_static_value(x.n)
    assert shapes.is_symbolic(x.n)
    assert not shapes.free_unbacked_symbols(x.n + x.u)
    assert shapes.free_symbols([x.n, 3]) == set()
    assert shapes.optimization_hint(x.n) == 6
    assert shapes.optimization_hint(x.u, fallback=7) == 7
    assert from_torch(shapes.sym_eq((x.n, 2), (x.s, 2))) is eq(from_torch(x.n), from_torch(x.s))
    assert shapes.sym_eq((x.n, 2), (x.s, 3)) is False
    assert x.facts() == []
    assert shapes.guard_int(x.n) == 6
    assert shapes.has_static_value(x.n)
    shapes.constrain_range(x.u, min=2, max=9)
    assert str(x.scope.range(from_torch(x.u))) == "[2, 9]"


def test_a_size_oblivious_guard_does_not_record(x):
    with pytest.warns(FutureWarning):
        assert symbolic_shapes.guard_size_oblivious(x.n == 1) is False
    assert x.facts() == []


@pytest.mark.parametrize(
    "method", [m for m in dir(symbolic_shapes.SymNode) if not m.startswith("_")]
)
def test_the_protocol_is_complete(x, method):
    assert hasattr(x.n.node, method)


def test_nodes_of_equal_value(x):
    a, b = (x.n * 2).node, (x.n + x.n).node
    assert a is b
    assert a._value_eq(b)
    assert a._value_hash() == b._value_hash()
    assert a.wrap_int(3)._value_eq(b.wrap_int(3))
    assert not a.wrap_int(1)._value_eq(b.wrap_bool(True))
    assert not a._value_eq(x.n.node)


def test_floats_are_shared_by_value_of_their_expression(x):
    root = torch.sym_sqrt(x.n)
    assert from_torch(root) is sqrt(from_torch(x.n))
    assert from_torch(root != 2.0) is ne(sqrt(from_torch(x.n)), 2.0)


@pytest.mark.parametrize("asked", ["is_int", "is_float", "is_bool"])
def test_no_python_runs_while_torch_reads_arguments(x, asked):
    """An interrupt that came then torch would take for an argument of the wrong type."""
    seen = []
    node = x.n.node
    sys.setprofile(lambda frame, event, _: seen.append(event) if event == "call" else None)
    try:
        answer = getattr(node, asked)()
    finally:
        sys.setprofile(None)
    assert answer is (asked == "is_int") and seen == []
