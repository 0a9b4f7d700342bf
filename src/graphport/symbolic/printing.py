"""Prints expressions: as Python, as traceable code, as in runtime assertions.

`to_str` writes Python that can be pasted, in the user's names: `2*batch + 1`, `seq//2`,
`batch >= 4`. Comparisons put the leading term on the left and move negative terms across.
`to_code` writes the same for code that is captured, which must not branch.
`symbolic_repr` writes the notation of runtime assertion messages: `Eq(s0, s1)`,
`Ne(Mod(s0, 20), 0)`. One renderer with a table of templates for each serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from graphport.symbolic.nodes import Expr, Value, symbols, walk_postorder

# What is shared is written out each time, and forty sums of two are a terabyte: operands of more
# nodes than this, and of longer texts, are left out.
_MAX_NODES = 256
_MAX_TEXT = 10_000
_ELLIPSIS = "..."

# Binding strength, as in Python's grammar.
_OR, _AND, _NOT, _COMPARE, _BITOR, _BITXOR, _BITAND, _SHIFT, _SUM, _PRODUCT, _POWER, _ATOM = range(
    12
)

# kind: (operator, strength, strength asked of the left, strength asked of the right)
_INFIX: dict[str, tuple[str, int, int, int]] = {
    "floordiv": ("//", _PRODUCT, _PRODUCT, _POWER),
    "mod": (" % ", _PRODUCT, _PRODUCT, _POWER),
    "truediv": ("/", _PRODUCT, _PRODUCT, _POWER),
    "fdiv": ("/", _PRODUCT, _PRODUCT, _POWER),
    "ffloordiv": ("//", _PRODUCT, _PRODUCT, _POWER),
    "fmod": (" % ", _PRODUCT, _PRODUCT, _POWER),
    "fmul": ("*", _PRODUCT, _PRODUCT, _POWER),
    "fadd": (" + ", _SUM, _SUM, _PRODUCT),
    "pow": ("**", _POWER, _ATOM, _POWER),
    "fpow": ("**", _POWER, _ATOM, _POWER),
    "lshift": (" << ", _SHIFT, _SHIFT, _SUM),
    "rshift": (" >> ", _SHIFT, _SHIFT, _SUM),
    "bitand": (" & ", _BITAND, _BITAND, _SHIFT),
    "bitxor": (" ^ ", _BITXOR, _BITXOR, _BITAND),
    "bitor": (" | ", _BITOR, _BITOR, _BITXOR),
    "feq": (" == ", _COMPARE, _BITOR, _BITOR),
    "flt": (" < ", _COMPARE, _BITOR, _BITOR),
    "fle": (" <= ", _COMPARE, _BITOR, _BITOR),
    "and": (" and ", _AND, _AND, _NOT),
    # Python would do without parentheses around `and`; readers do not.
    "or": (" or ", _OR, _NOT, _NOT),
}

# How a comparison reads that begins with a number.
_MIRRORED = {"flt": ">", "fle": ">="}

_PYTHON_CALLS = {
    "min": "min",
    "max": "max",
    "abs": "abs",
    "fabs": "abs",
    "fmin": "min",
    "fmax": "max",
    "to_float": "float",
    "trunc": "int",
    "round": "round",
    "round_to": "round",
}

_SYMBOLIC_CALLS = {
    "mod": "Mod",
    "min": "Min",
    "max": "Max",
    "fmin": "Min",
    "fmax": "Max",
    "abs": "Abs",
    "fabs": "Abs",
    "to_float": "ToFloat",
    "trunc": "TruncToInt",
    "floor": "FloorToInt",
    "ceil": "CeilToInt",
    "round": "RoundToInt",
    "round_to": "RoundDecimal",
    "truediv": "IntTrueDiv",
    "fdiv": "FloatTrueDiv",
    "fmod": "Mod",
    "feq": "Eq",
    "sqrt": "OpaqueUnaryFn_sqrt",
}


@dataclass(frozen=True)
class _Style:
    calls: Mapping[str, str]
    infix: Mapping[str, tuple[str, int, int, int]]
    eq: str
    ne: str
    not_: str
    ite: str
    function_prefix: str
    # Kinds that always stand in parentheses, and calls that bind no better than a product: both
    # are habits of the notation that is imitated.
    enclosed: frozenset[str] = frozenset()
    loose: frozenset[str] = frozenset()


_PYTHON = _Style(
    _PYTHON_CALLS, _INFIX, "{0} == {1}", "{0} != {1}", "not {0}", "({1} if {0} else {2})", "math."
)
# Nothing here asks a symbolic value for its truth or its number.
_CODE = _Style(
    {
        **_PYTHON_CALLS,
        "to_float": "torch.sym_float",
        "trunc": "torch.sym_int",
        "sqrt": "torch.sym_sqrt",
    },
    {**_INFIX, "and": (" & ", _BITAND, _ATOM, _ATOM), "or": (" | ", _BITOR, _ATOM, _ATOM)},
    "{0} == {1}",
    "{0} != {1}",
    "torch.sym_not({0})",
    "torch.sym_ite({0}, {1}, {2})",
    "math.",
)
_SYMBOLIC = _Style(
    _SYMBOLIC_CALLS,
    {
        **{kind: row for kind, row in _INFIX.items() if kind not in _SYMBOLIC_CALLS},
        "and": (" & ", _AND, _ATOM, _ATOM),
        "or": (" | ", _OR, _ATOM, _ATOM),
    },
    "Eq({0}, {1})",
    "Ne({0}, {1})",
    "not {0}",
    "Piecewise(({1}, {0}), ({2}, True))",
    "OpaqueUnaryFn_",
    enclosed=frozenset({"floordiv"}),
    loose=frozenset({"mod"}),
)


def to_str(e: Value, names: Mapping[Expr, str] | None = None) -> str:
    """Python source for `e`, in the user's names unless `names` has others for its symbols."""
    return _Renderer(_PYTHON, names or {}).text(e)


def to_code(e: Value, names: Mapping[Expr, str] | None = None) -> str:
    """As `to_str`, for code that is captured: it makes a symbolic value and takes no branch."""
    return _Renderer(_CODE, names or {}).text(e)


def symbolic_repr(e: Value, names: Mapping[Expr, str] | None = None) -> str:
    """`e` as runtime assertion messages write it; `names` overrides what symbols are called."""
    return _Renderer(_SYMBOLIC, names or {}).text(e)


def _find_oldest_symbol(terms: list[tuple[Expr, int]]) -> float:
    """The place of the oldest symbol: equations of this notation begin with it."""
    return min((s.index for mono, _ in terms for s in symbols(mono)), default=math.inf)


class _Renderer:
    def __init__(self, style: _Style, names: Mapping[Expr, str]) -> None:
        self.style = style
        self.names = names
        self._done: dict[Expr, tuple[str, int]] = {}

    def text(self, e: Value, least: int = _OR) -> str:
        """The text of `e`, in parentheses if it binds less than `least`."""
        text, strength = self._render_cached(e)
        return text if strength >= least else f"({text})"

    def _render_cached(self, e: Value) -> tuple[str, int]:
        if type(e) is not Expr:
            return self._render(e)
        known = self._done.get(e)
        if known is None:
            for part in walk_postorder(e, self._is_done):
                self._render_cached(part)
            text, strength = self._render(e)
            is_short = len(text) <= _MAX_TEXT
            known = self._done[e] = (text, strength) if is_short else (_ELLIPSIS, _ATOM)
        return known

    def _is_done(self, e: Expr) -> bool:
        if e.size > _MAX_NODES:
            self._done.setdefault(e, (_ELLIPSIS, _ATOM))
        return e in self._done

    def _render(self, e: Value) -> tuple[str, int]:
        if type(e) is not Expr:
            return str(e), _ATOM if e >= 0 else _PRODUCT
        style, kind = self.style, e.kind
        name = self.names.get(e)
        if name is not None or kind == "symbol":
            return name or e.name, _ATOM
        if kind == "add":
            return self._sum(e.args, e.const)
        if kind == "mul":
            return self._monomial(e), _PRODUCT if len(e.args) > 1 else _POWER
        if kind in _MIRRORED and type(e.args[0]) is not Expr:
            limit, x = e.args
            return f"{self.text(x, _BITOR)} {_MIRRORED[kind]} {self.text(limit, _BITOR)}", _COMPARE
        if kind in style.infix:
            operator, strength, left, right = style.infix[kind]
            first, *rest = e.args
            parts = [self.text(first, left), *(self.text(part, right) for part in rest)]
            text = operator.join(parts)
            return f"({text})" if kind in style.enclosed else text, strength
        if kind in ("ge0", "eq0", "not", "ite", "fneg"):
            return getattr(self, f"_{kind}")(e)
        name = style.calls.get(kind) or style.function_prefix + kind
        strength = _PRODUCT if kind in style.loose else _ATOM
        return f"{name}({', '.join(map(self.text, e.args))})", strength

    def _monomial(self, e: Expr) -> str:
        if e.kind != "mul" or e in self.names:
            return self.text(e, _PRODUCT)
        # A bare // or % among factors would regroup, or at least be hard to read.
        parts = []
        for part, power in e.args:
            base = self.text(part, _ATOM if power > 1 else _POWER)
            parts.append(f"{base}**{power}" if power > 1 else base)
        return "*".join(parts)

    def _term(self, mono: Expr, coef: int) -> str:
        if coef == 1:
            return self._monomial(mono)
        text = self._monomial(mono)
        return f"{coef}*{text}" if mono.kind == "mul" else f"{coef}*{self.text(mono, _POWER)}"

    def _sum(self, terms: tuple[tuple[Expr, int], ...], const: int) -> tuple[str, int]:
        text = ""
        # A sum reads better when it does not begin with a minus sign.
        ordered = sorted(terms, key=lambda term: term[1] < 0)
        signed = [(coef < 0, self._term(mono, abs(coef))) for mono, coef in ordered]
        if ordered and ordered[0][1] == -1 and const <= 0:
            # -a//4 would be (-a)//4.
            signed[0] = (True, self.text(ordered[0][0], _POWER))
        if const or not signed:
            entry = (const < 0, str(abs(const)))
            lead = const > 0 and bool(signed) and signed[0][0]
            signed = [entry, *signed] if lead else [*signed, entry]
        for negative, part in signed:
            if not text:
                text = f"-{part}" if negative else part
            else:
                text += f" - {part}" if negative else f" + {part}"
        strength = _SUM if len(signed) > 1 or signed[0][0] else _PRODUCT
        return text, strength

    def _sides(self, e: Expr) -> tuple[list[tuple[Expr, int]], list[tuple[Expr, int]], int, bool]:
        """Left and right terms, the constant of the right, and whether the sides were swapped."""
        terms: tuple[tuple[Expr, int], ...] = e.args if e.kind == "add" else ((e, 1),)
        plus = [(mono, coef) for mono, coef in terms if coef > 0]
        minus = [(mono, -coef) for mono, coef in terms if coef < 0]
        swapped = terms[0][1] < 0
        return (minus, plus, e.const, True) if swapped else (plus, minus, -e.const, False)

    def _balanced(
        self, left: list[tuple[Expr, int]], right: list[tuple[Expr, int]], const: int
    ) -> tuple[str, str]:
        """The two sides as text. Constants stay positive: a >= b - 2 reads a + 2 >= b."""
        moved = -const if right and const < 0 else 0
        return self._sum(tuple(left), moved)[0], self._sum(tuple(right), const + moved)[0]

    def _ge0(self, node: Expr) -> tuple[str, int]:
        left, right, const, swapped = self._sides(node.args[0])
        operator = "<=" if swapped else ">="
        if right and const == (-1 if swapped else 1):
            # a >= b + 1 reads a > b.
            operator, const = operator[0], 0
        a, b = self._balanced(left, right, const)
        return f"{a} {operator} {b}", _COMPARE

    def _equation(self, template: str, e: Expr) -> tuple[str, int]:
        left, right, const, _ = self._sides(e)
        if self.style is _SYMBOLIC and _find_oldest_symbol(right) < _find_oldest_symbol(left):
            left, right, const = right, left, -const
        text = template.format(*self._balanced(left, right, const))
        return text, _ATOM if "(" in template else _COMPARE

    def _eq0(self, node: Expr) -> tuple[str, int]:
        return self._equation(self.style.eq, node.args[0])

    def _not(self, node: Expr) -> tuple[str, int]:
        (inner,) = node.args
        named = inner in self.names
        if inner.kind == "eq0" and not named:
            return self._equation(self.style.ne, inner.args[0])
        if inner.kind == "feq" and not named:
            a, b = (self.text(part, _BITOR) for part in inner.args)
            return self.style.ne.format(a, b), _COMPARE
        is_call = "(" in self.style.not_
        text = self.style.not_.format(self.text(inner, _OR if is_call else _NOT))
        return text, _ATOM if is_call else _NOT

    def _ite(self, node: Expr) -> tuple[str, int]:
        return self.style.ite.format(*map(self.text, node.args)), _ATOM

    def _fneg(self, node: Expr) -> tuple[str, int]:
        return f"-{self.text(node.args[0], _POWER)}", _PRODUCT
