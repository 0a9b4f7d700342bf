"""Builds torch's `ShapeEnv` and fake mode from a program's scope and checks.

Symbols with an example value become backed ones, whose source is the input that tells them; torch's
default is that such a size is neither 0 nor 1, and where the example is, another hint is taken.
Data-dependent ones become unbacked ones when they are first met.

What `.module()` is to check of its inputs becomes guards, as torch makes them: it prints them in
terms of the sources. Sizes of the form 2*n + 1, which torch would not compare, have a symbol of
their own for that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    ShapeGuard,
    StrictMinMaxConstraint,
)

from graphport.compat import torch as compat
from graphport.errors import UnsupportedError
from graphport.program.call_checks import InputChecks
from graphport.program.exported import ExportedProgram
from graphport.program.input_checks import MAX_OPERATIONS, Binds, Equals, Holds, Place, Solves
from graphport.program.torch_interop.expressions import ToSympy
from graphport.symbolic import Expr, Number, Range, Value, evaluate, symbols
from graphport.symbolic.bridge import from_torch, is_symbolic
from graphport.symbolic.printing import to_str
from graphport.tensors.abstract import AbstractTensor

# Hints to try in place of sizes of 0 and 1, and how many combinations of them.
_TRIAL_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16)
_MAX_TRIALS = 200


@dataclasses.dataclass(frozen=True)
class ComputedSource(compat.Source):
    """The root of a derived dim: computed from an input, and no size of any."""

    text: str

    @functools.cached_property
    def guard_source(self) -> compat.GuardSource:
        return compat.GuardSource.LOCAL

    @property
    def _name_template(self) -> str:
        return self.text


def to_value_range(r: Range, *, of: type = int) -> object:
    """A range of ours as torch has them."""
    infinity = sympy.oo if of is float else compat.int_oo
    ends = [
        infinity
        if end == math.inf
        else -infinity
        if end == -math.inf
        else sympy.Float(end)
        if of is float
        else sympy.Integer(int(end))
        for end in (r.lower, r.upper)
    ]
    return compat.ValueRanges(*ends)


class TorchEnvironment:
    """The fake mode of a program, and values of ours as values in it."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.scope = program.scope
        self.ranges = program.range_constraints
        self.shape_env = ShapeEnv(trace_asserts=True)
        self.mode = compat.FakeTensorMode(
            shape_env=self.shape_env, allow_non_fake_inputs=True, export=True
        )
        self.symbols: dict[Expr, Any] = {}
        self.sources: dict[Expr, compat.Source] = {}
        """Where each symbol of the inputs has its value from."""
        self.expr = ToSympy(self._symbol)
        self.exactly = ToSympy(self._symbol, evaluate=False)
        self._met: list[Any] = []
        """Unbacked symbols that were met since a node last bound some."""
        self._numbers: dict[Any, Any] = {}
        self._find_sources(program.checks)
        self.hints = _choose_hints(program, list(self.sources))
        for s in self.sources:
            self._symbol(s)
        self._guard(program.checks)
        self.shape_env.freeze()

    # Symbols

    def _find_sources(self, checks: InputChecks) -> None:
        names: dict[Expr, str] = {}
        for step in checks.steps:
            if isinstance(step, Binds):
                self.sources[step.symbol] = _make_source(step.place)
            elif isinstance(step, Solves):
                self.sources[step.symbol] = ComputedSource(_format_solution(step, names))
            else:
                continue
            names[step.symbol] = self.sources[step.symbol].name
        for shape in checks.inputs:
            for e in (*(shape.sizes or ()), shape.number):
                for s in symbols(e) if isinstance(e, Expr) else ():
                    # No input tells it by itself; torch leaves out guards on such symbols.
                    self.sources.setdefault(s, compat.ConstantSource(s.name))

    def _symbol(self, s: Expr) -> object:
        known = self.symbols.get(s)
        if known is None:
            make = self._unbacked if s not in self.hints else self._backed
            known = self.symbols[s] = make(s)
        return known

    def _backed(self, s: Expr) -> object:
        limits = self.ranges.get(s) or s.span
        source = self.sources.get(s) or compat.ConstantSource(s.name)
        made = self._create(self.hints[s], source, limits, is_size=limits.lower >= 0)
        if parse_symbol_index(s.name) is None:
            self.shape_env.source_name_to_debug_name[source.name] = s.name
        return made

    def _create(
        self, hint: Number, source: compat.Source, limits: Range, *, is_size: bool
    ) -> object:
        generic = type(hint) is not int or (hint >= 2 and limits.upper >= 2)
        constraint = StrictMinMaxConstraint(vr=to_value_range(limits), warn_only=False)
        return self.shape_env.create_symbol(
            hint,
            source,
            DimDynamic.DYNAMIC,
            constraint if type(hint) is int else None,
            positive=True if is_size and type(hint) is int and hint > 0 else None,
            do_not_specialize_zero_one=not generic,
        )

    def _unbacked(self, s: Expr) -> object:
        env = self.shape_env
        if s.type is float:
            made = env.create_unbacked_symfloat().node.expr
        else:
            # Under its own name, if torch's could be the same.
            wanted, following = parse_symbol_index(s.name, "u"), env.unbacked_symint_counter
            if wanted is not None and sympy.Symbol(s.name, integer=True) not in env.var_to_range:
                env.unbacked_symint_counter = wanted
            made = env.create_unbacked_symint().node.expr
            env.unbacked_symint_counter = max(env.unbacked_symint_counter, following)
            limits = self.scope.range(s)
            env.var_to_range[made] = to_value_range(limits)
        env.pending_fresh_unbacked_symbols.clear()
        self._met.append(made)
        # torch has no symbols for bools: it compares an integer with 1.
        return sympy.Eq(made, 1) if s.type is bool else made

    # What is checked of the inputs

    def _guard(self, checks: InputChecks) -> None:
        """Let torch learn the conditions on the inputs, and have them checked as they stand."""
        env = self.shape_env
        conditions = [step.cond for step in checks.steps if isinstance(step, Holds)]
        for cond in conditions:
            env.evaluate_expr(self.expr(cond))
        found = [self.exactly(cond) for cond in conditions]
        for step in checks.steps:
            found.extend(self._conditions(step))
        env.guards = [ShapeGuard(e, env._get_sloc(), size_oblivious=False) for e in found]

    def _conditions(self, step: object) -> Iterator[object]:
        """What a step says that torch does not check by itself."""
        replaced = self.shape_env.replacements
        if isinstance(step, Binds):
            symbol = self.symbols[step.symbol]
            limits = self.ranges.get(step.symbol) or step.symbol.span
            # No size is negative.
            least = -math.inf if step.place.dim is None else 1
            checked = symbol not in replaced and symbol.is_integer
            yield from _express_range(symbol, limits, least=least, checked=checked)
        elif isinstance(step, Solves):
            if step.factor != 1:
                yield self._is_equal(step)
            yield from _express_range(self.symbols[step.symbol], step.limits)
        elif isinstance(step, Equals):
            # torch compares sizes that are the same symbol, if one of them tells it.
            is_size = isinstance(self.sources.get(step.expr), compat.TensorPropertySource)
            if not is_size or self.symbols[step.expr] in replaced:
                yield self._is_equal(step)

    def _is_equal(self, step: Equals | Solves) -> object:
        """That the size at a place, which gets a symbol of its own, is what it should be."""
        limits = self.ranges.get(step.expr) or step.expr.span
        own = self._create(
            evaluate(step.expr, self.hints),
            _make_source(step.place),
            limits,
            is_size=step.place.dim is not None,
        )
        self.shape_env.replacements[own] = self.expr(step.expr)
        return sympy.Eq(own, self.expr(step.expr), evaluate=False)

    # Values

    def number(self, e: Value) -> Any:
        """A number as torch's SymInt, SymFloat or SymBool."""
        if type(e) is not Expr:
            return e
        known = self._numbers.get(e)
        if known is None:
            known = self._numbers[e] = self._made(e)
        return known

    def _made(self, e: Expr) -> Any:
        env, translated = self.shape_env, self.expr(e)
        if e.type is bool:
            return env.create_symboolnode(translated)
        backed = all(s in self.hints for s in symbols(e))
        hint = evaluate(e, self.hints) if backed else None
        make = env.create_symfloatnode if e.type is float else env.create_symintnode
        return make(translated, hint=hint)

    def value(self, val: Any, *, as_told: bool = False) -> Any:
        """The `val` of a node: in the simplest form that is known, or exactly as it is told."""
        if isinstance(val, AbstractTensor):
            return self._tensor(val, as_told)
        if is_symbolic(val):
            e = from_torch(val)
            return self.number(e if as_told else self.scope.simplify(e))
        if isinstance(val, (list, tuple)):
            return type(val)(self.value(x, as_told=as_told) for x in val)
        return val

    def _tensor(self, val: AbstractTensor, as_told: bool) -> compat.FakeTensor:
        about = val._abstract
        sizes, strides = (
            [self.number(s if as_told else self.scope.simplify(s)) for s in numbers]
            for numbers in (about.sizes, about.strides)
        )
        for size in sizes:
            if isinstance(size, torch.SymInt):
                self.shape_env.size_like.update(
                    s for s in size.node.expr.free_symbols if self.shape_env.is_unbacked_symint(s)
                )
        # Whether the memory is contiguous is asked here, and no condition on the inputs.
        with self.shape_env.suppress_guards():
            meta = torch.empty_strided(sizes, strides, dtype=about.dtype, device="meta")
            return compat.FakeTensor(
                self.mode, meta.requires_grad_(val.requires_grad), torch.device(about.device)
            )

    def bindings(self, val: object) -> dict[object, object]:
        """Where in the result of a node the unbacked symbols are that it makes."""
        if not self._met:
            return {}
        pending = set(self._met)
        self._met.clear()
        return compat.free_unbacked_symbols_with_path(
            val, (), shape_env=self.shape_env, pending=pending
        )

    def range_constraints(self) -> dict[Any, Any]:
        """By symbol, and by every form of one that an input has."""
        found = {}
        for e, limits in self.ranges.items():
            if e.type is int and all(s in self.symbols for s in symbols(e)):
                found[self.expr(e)] = to_value_range(limits)
        for symbol, limits in self.shape_env.var_to_range.items():
            if symbol not in self.shape_env.replacements:
                found.setdefault(symbol, limits)
        return found


def _express_range(
    symbol: object, limits: Range, *, least: float = -math.inf, checked: bool = False
) -> Iterator[Any]:
    """That a number is in its range. Where torch checks that by itself, it leaves out ends up to 2:
    its programs are taken to be right for 0 and 1 too.
    """
    if max(least, limits.lower) == limits.lower != -math.inf and (not checked or limits.lower <= 2):
        yield sympy.Ge(symbol, sympy.sympify(limits.lower), evaluate=False)
    if limits.upper != math.inf and not checked:
        yield sympy.Le(symbol, sympy.sympify(limits.upper), evaluate=False)


def _format_solution(step: Solves, names: dict[Expr, str]) -> str:
    """(size - rest) // factor, as Python."""
    text = _make_source(step.place).name
    if step.rest != 0:
        text = f"({text} - ({_format_expression(step.rest, names)}))"
    if step.factor != 1:
        text = f"({text} // ({_format_expression(step.factor, names)}))"
    return text


def _format_expression(e: Value, names: dict[Expr, str]) -> str:
    if not isinstance(e, Expr):
        return str(e)
    if e.size > MAX_OPERATIONS:
        raise UnsupportedError(
            f"a size of an input takes {e.size} operations, and torch takes at most "
            f"{MAX_OPERATIONS}",
            fix="give each input a Dim of its own",
        )
    return to_str(e, names)


def _make_source(place: Place) -> compat.Source:
    """A flat input, or one of its sizes; torch finds out how the user calls it."""
    leaf = compat.GetItemSource(compat.LocalSource("flat_args"), place.index)
    if place.dim is None:
        return leaf
    return compat.TensorPropertySource(leaf, compat.TensorProperty.SIZE, place.dim)


def _choose_hints(program: ExportedProgram, given: list[Expr]) -> dict[Expr, Number]:
    """Values of the symbols at which everything holds: the example, but no symbol 0 or 1.

    torch would take such a size for fixed.
    """
    scope = program.scope
    known = {s: scope.hint(s) for s in dict.fromkeys((*given, *scope.symbols))}
    example = {s: h for s, h in known.items() if h is not None and not scope.is_fresh(s)}
    small = [s for s in given if type(example.get(s)) is int and example[s] in (0, 1)]
    if not small:
        return example
    rng = random.Random(0)
    for _ in range(_MAX_TRIALS):
        tried = {**example, **{s: rng.choice(_TRIAL_SIZES) for s in small}}
        if _is_possible(program, tried):
            return tried
    return example


def _is_possible(program: ExportedProgram, hints: dict[Expr, Number]) -> bool:
    """Whether inputs of these sizes pass the checks."""
    ranges = {
        e: r for e, r in program.range_constraints.items() if all(s in hints for s in symbols(e))
    }
    conditions = [step.cond for step in program.checks.steps if isinstance(step, Holds)]
    try:
        return all(evaluate(e, hints) in r for e, r in ranges.items()) and all(
            evaluate(cond, hints) for cond in conditions
        )
    except ArithmeticError:
        return False


# Conventions of torch's programs: names of symbols, module stacks, paths of inputs.

Stack = dict[str, tuple[str, Any]]
Entry = tuple[str, tuple[str, Any]]

_ROOT = "L__self__"


def parse_symbol_index(name: str, letters: str = "su") -> int | None:
    """The number in a name that torch could have given: s7 for a size, u7 if it depends on data."""
    match = re.fullmatch(f"[{letters}](\\d+)", name)
    return int(match[1]) if match else None


class StackConverter:
    """nn_module_stack of many nodes, with each module converted once.

    Modules within one another are in the stacks of all that they call: their number is that of the
    nodes times the depth, so that a stack is put together without Python code of ours.
    """

    def __init__(self, tell: Callable[[Entry], Entry | None]) -> None:
        self._tell = functools.cache(tell)

    def __call__(self, stack: Stack | None) -> Stack:
        """A module of which there is nothing to tell is left out."""
        return dict(filter(None, map(self._tell, (stack or {}).items())))


def make_outgoing_stacks(
    place: Callable[[str], str], root: tuple[str, str]
) -> Callable[[Any], Stack]:
    """nn_module_stack as torch has it; a node of no module belongs to the outermost one."""

    def tell(entry: Entry) -> Entry:
        key, (path, kind) = entry
        return f"{_ROOT}{place(key)}", (place(path), kind)

    stacks = StackConverter(tell)
    return lambda stack: stacks(stack) or {_ROOT: root}


def make_incoming_stacks() -> StackConverter:
    """nn_module_stack as capture records it: by path, with the number of a further call."""
    return StackConverter(_convert_entry)


def _convert_entry(entry: Entry) -> Entry | None:
    key, (path, kind) = entry
    if path.startswith("_empty_nn_module_stack"):
        return None
    call = key.rpartition("@")[2] if "@" in key else ""
    path = path.partition("@")[0]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return f"{path}@{call}" if call else path, (path, name)
