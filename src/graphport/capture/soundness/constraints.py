"""Solves the guards on input sizes, and raises if they contradict `dynamic_shapes`.

All facts are solved together. A dim that the user named must come out as it was declared: else the
facts are an error, with the definitions that the solution gives. `Dim.DYNAMIC` may take any form
but a constant, `Dim.AUTO` any form. What no dim can express is an error too, unless it is to be
checked at run time; an inequality between dims, or that something differs, is always checked then.
Facts about data-dependent values are assertions in the graph and not judged here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from graphport.capture.spec.symbols import Spec
from graphport.capture.trace.subgraph import list_module_graphs
from graphport.compat.operators import aten
from graphport.errors import ConstraintViolationError, ExportError
from graphport.ops import Abstract
from graphport.program import ExportedProgram
from graphport.symbolic import Expr, Fact, Range, Size, Truth, Value, substitute, symbols
from graphport.symbolic.bridge import from_torch, is_symbolic, to_torch
from graphport.symbolic.integers import split_terms
from graphport.symbolic.solve import Solver
from graphport.tensors.abstract import (
    AbstractTensor,
    get_val,
    has_val,
    make_abstract_tensor,
    set_val,
)

_AT_RUN_TIME = '# or check it when the program runs: gp.export(..., guards="runtime_assert")'

_AS_A_SCAN = "# or leave it open: gp.scan(step, init, xs) or torch.while_loop in place of the loop"


def _is_loop(fact: Fact) -> bool:
    """Whether a line of the user's asked that goes through a loop: Python's run as in the example.

    It may have any effect, so that a loop of the program's own may compute something else.
    """
    return fact.where is not None and bool(_LOOP.search(fact.where.text))


_LOOP = re.compile(r"\bfor\b.+\bin\b|^while\b")


@dataclass(frozen=True)
class Constraints:
    """The solution: conditions to check, and what unnamed dims are substituted by."""

    checks: list[Expr]
    forms: dict[Expr, Value]
    """Only symbols that are something else than themselves."""
    ranges: dict[Expr, Range]
    notes: list[str]
    """In words: the sizes that were free to vary, and that the program fixes."""
    refused: tuple[str, ...] = ()
    """Guards that exclude one size of a dim which the user declared: `length != 1`."""


def solve_constraints(spec: Spec, guards: str) -> Constraints:
    """What the facts mean for the inputs; raises when the spec does not allow them."""
    return _ConstraintSolver(spec, guards).solve()


class _ConstraintSolver:
    def __init__(self, spec: Spec, guards: str) -> None:
        self.spec = spec
        self.scope = spec.scope
        declared = spec.declared.values()
        self.named = [d.symbol for d in declared if d.dim is not None]
        self.unnamed = [d.symbol for d in declared if d.dim is None]
        self.dynamic = [d.symbol for d in declared if d.dim is None and not d.automatic]
        self.solver = Solver(self.scope, [*self.named, *self.unnamed], free=self.unnamed)
        self.strict = guards == "error"

    def solve(self) -> Constraints:
        facts = [f for f in _split_conjunctions(self.scope.facts) if self._is_about_inputs(f)]
        guarded: list[Fact] = []
        others: list[Fact] = []
        for f in facts:
            binding = f.kind == "guard" or self._is_unnamed(f.cond)
            (guarded if binding else others).append(f)
        left = self.solver.solve(f.cond for f in guarded)
        self.solver.settle()
        complex_ = [c for c in left if self.strict and self._is_equality_of_named(c)]
        if complex_ or self._list_changed():
            raise self._error(facts, guarded, left, complex_)
        checks = [f.cond for f in others] + left + self.solver.unplaced_ranges()
        solved = dict.fromkeys(self.solver.substitute(c) for c in checks)
        forms = {s: form for s, form in self.solver.forms.items() if form is not s}
        notes = [self._note(s, guarded) for s in self.unnamed if self._value(s)]
        return Constraints(
            [c for c in solved if isinstance(c, Expr)],
            forms,
            self._ranges(forms),
            notes,
            tuple(str(f.cond) for f in guarded if f.cond in left and self._excludes(f)),
        )

    def _excludes(self, fact: Fact) -> bool:
        """Whether a guard excludes one size of a named dim."""
        ours = fact.asked and not fact.internal and fact.cond.kind == "not"
        return ours and len(symbols(fact.cond)) == 1 and symbols(fact.cond)[0] in self.named

    def _is_about_inputs(self, fact: Fact) -> bool:
        return fact.kind != "assumed" and all(s in self.solver.forms for s in symbols(fact.cond))

    def _is_unnamed(self, cond: Expr) -> bool:
        return all(s in self.unnamed for s in symbols(cond))

    def _is_equality_of_named(self, cond: Truth) -> bool:
        solved = self.solver.substitute(cond)
        return (
            isinstance(solved, Expr)
            and solved.kind in ("eq0", "feq")
            and not any(s in self.unnamed for s in symbols(solved))
        )

    def _list_changed(self) -> list[Expr]:
        """The dims that did not come out as the user declared them."""
        named = [s for s in self.named if self._is_changed(s)]
        return [*named, *(s for s in self.dynamic if self._value(s))]

    def _is_changed(self, s: Expr) -> bool:
        form = self.solver.forms[s]
        return form is not s or self.solver.bounds[s] != self.spec.ranges[s]

    def _is_narrower(self, root: Expr) -> bool:
        return root not in self.spec.ranges or self.solver.bounds[root] != self.spec.ranges[root]

    def _value(self, s: Expr) -> bool:
        """Whether a symbol has turned out to be a constant."""
        return not isinstance(self.solver.forms[s], Expr)

    def _note(self, s: Expr, facts: list[Fact]) -> str:
        where = next((f.where for f in facts if s in symbols(f.cond) and f.where is not None), None)
        at = f" at {where}" if where is not None else ""
        return f"{self._place(s)} = {self.solver.forms[s]}, fixed by the program{at}"

    def _ranges(self, forms: dict[Expr, Value]) -> dict[Expr, Range]:
        """By root, and by every form of a root that an input has."""
        found: dict[Expr, Range] = {}
        for e, r in self.spec.ranges.items():
            solved = substitute(e, forms)
            if not isinstance(solved, Expr):
                continue
            if solved.kind == "symbol":
                found[solved] = self.solver.bounds[solved]
            else:
                found[solved] = (found.get(solved) or r) & self._interval(solved)
        return found

    def _interval(self, form: Expr) -> Range:
        terms, offset = split_terms(form)
        if len(terms) != 1 or terms[0][0] not in self.solver.bounds:
            return Range(-math.inf, math.inf)
        limits, factor = self.solver.bounds[terms[0][0]], terms[0][1]
        ends = sorted((limits.lower * factor + offset, limits.upper * factor + offset))
        return Range(*ends)

    # The error

    def _error(
        self, facts: list[Fact], guarded: list[Fact], left: list[Truth], complex_: list[Truth]
    ) -> ConstraintViolationError:
        known = [s for s in self.named if self._value(s)]
        if complex_:
            left = self._force(left)
        forced = [s for s in self.named if self._value(s) and s not in known]
        unmet = [f for f in guarded if f.cond not in left or f.cond in complex_]
        unmet += self._find_narrowing_facts(f for f in facts if f not in guarded)
        changed = self._list_changed()
        lines = [line for fact in unmet for line in self._lines(fact, complex_)]
        special = [s for s in changed if s in forced or (self._value(s) and self._places(s))]
        titles = []
        if special:
            titles.append(f"Specializations unexpectedly required ({self._names(special)})!")
        if len(special) < len(changed):
            others = [s for s in changed if s not in special]
            titles.append(f"Constraints violated ({self._names(others)})!")
        fixes = [*self._definitions(changed), *([_AT_RUN_TIME] if complex_ else ())]
        if any(map(self._value, changed)) and any(map(_is_loop, unmet)):
            fixes.append(_AS_A_SCAN)
        error = ConstraintViolationError(
            f"{' '.join(titles)} The program needs more of its sizes than dynamic_shapes says:\n"
            + "\n".join(f"  - {line}" for line in dict.fromkeys(lines)),
            fix=fixes,
        )
        error.places = tuple(f.where for f in unmet if f.where is not None)
        error.questions = tuple(
            str(f.cond)
            for f in unmet
            if f.asked and not f.internal and any(s in changed for s in symbols(f.cond))
        )
        return error

    def _force(self, left: list[Truth]) -> list[Truth]:
        """Fix sizes until nothing is left that no dim can express; what is left then."""
        while complex_ := [c for c in left if self._is_equality_of_named(c)]:
            self.solver.specialise_for(complex_[0])
            left = self.solver.solve(left)
        self.solver.settle()
        return left

    def _find_narrowing_facts(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Assertions that limit a dim which has to be defined anew anyhow.

        With the new definition capture may ask for them where it asked for more before.
        """
        for fact in facts:
            roots = symbols(self.solver.substitute(fact.cond))
            if fact.cond.kind == "ge0" and all(map(self._is_narrower, roots)):
                before = dict(self.solver.bounds)
                if not self.solver.solve([fact.cond]) and self.solver.bounds != before:
                    yield fact

    def _lines(self, fact: Fact, complex_: list[Truth]) -> Iterator[str]:
        """A fact in words, once or for each dim that it concerns."""
        cond = substitute(
            fact.cond, {s: self.solver.forms[s] for s in self.unnamed if self._has_user_names(s)}
        )
        if not isinstance(cond, Expr):
            return
        involved = symbols(cond)
        at = f"\n      at {fact.where}" if fact.where is not None else ""
        if fact.cond in complex_:
            for s in involved:
                if self._value(s):
                    yield f"{self._format_forced_value(s)}: {cond}{at}"
                elif self._is_changed(s):
                    yield f"{self._format_violation(s)} satisfy the generated guard {cond}{at}"
            return
        terms, const = split_terms(cond.args[0]) if cond.kind in ("eq0", "ge0") else ((), 0)
        linear = all(mono.kind == "symbol" for mono, _ in terms)
        if cond.kind == "eq0" and linear and len(terms) == 1:
            yield self._format_specialisation(terms[0][0], -const // terms[0][1]) + at
        elif cond.kind == "feq" and self._value(involved[0]):
            yield self._format_specialisation(involved[0], self.solver.forms[involved[0]]) + at
        elif cond.kind == "eq0" and linear and len(terms) == 2:
            yield self._format_relation(*terms[0], *terms[1], const) + at
        else:
            # Of two dims in an inequality one may have been fixed; the other is limited by it.
            s = next((s for s in involved if not self._value(s)), involved[0])
            yield f"{self._format_violation(s)} satisfy the generated guard {cond}{at}"

    def _has_user_names(self, s: Expr) -> bool:
        """Whether the form of an unnamed dim is in the user's names, and not what is wrong."""
        form = self.solver.forms[s]
        if not isinstance(form, Expr):
            return s not in self.dynamic
        return all(x in self.solver.forms for x in symbols(form))

    def _format_violation(self, s: Expr) -> str:
        name, limits = self._describe_dim(s), self.spec.ranges[s]
        return f"Not all values of {name} in the specified range {limits}"

    def _describe_dim(self, s: Expr) -> str:
        """A dim and the size that it is; or the size that it is the root of."""
        place = self._place(s)
        for e, path in self._places(s):
            if path == place:
                return f"{s}, where {e} = {path},"
        return f"{s} = {place}"

    def _format_specialisation(self, s: Expr, value: Value) -> str:
        places = self._places(s)
        if places:
            return "\n  - ".join(
                f"{e} = {path} must be specialized to {substitute(e, {s: value})} because the "
                f"guards generated for it are too complex"
                for e, path in places
            )
        name = s.name if s in self.named else "Dim.DYNAMIC"
        return (
            f"You marked {self._place(s)} as dynamic ({name}) but your code specialized it to be a "
            f"constant ({value})"
        )

    def _format_forced_value(self, s: Expr) -> str:
        return (
            f"{self._describe_dim(s)} must be specialized to {self.solver.forms[s]} because the "
            "guards generated for it are too complex"
        )

    def _format_relation(self, x: Expr, a: int, y: Expr, b: int, c: int) -> str:
        """a*x + b*y + c == 0: the later dim in terms of the earlier one, if that is possible."""
        order = list(self.solver.forms)
        if order.index(x) > order.index(y):
            x, a, y, b = y, b, x, a
        if abs(b) != 1 and abs(a) == 1:
            x, a, y, b = y, b, x, a
        left = f"{abs(b)}*{y}" if abs(b) != 1 else str(y)
        sign = -1 if b > 0 else 1
        return (
            f"The values of {self._describe_dim(y)} and {self._describe_dim(x)} must always be "
            f"related to the values of {x} by {left} = {_format_linear(x.name, sign * a, sign * c)}"
        )

    def _definitions(self, changed: list[Expr]) -> Iterator[str]:
        """The corrected definitions, roots before what is derived from them."""
        named: dict[Expr, str] = {}
        for s in self.named:
            form = self.solver.forms[s]
            for root in symbols(form) if isinstance(form, Expr) else ():
                if root not in self.solver.forms and root not in named:
                    named[root] = self._new_name(s)
                    yield format_definition(named[root], self.solver.bounds[root])
        later = []
        for s in changed:
            form = self.solver.forms[s]
            if s not in self.named:
                value = form if isinstance(form, int) else None
                yield f"{self.spec.declared[s.name].place} = {value}"
            elif form is s:
                yield format_definition(s.name, self.solver.bounds[s])
            elif not isinstance(form, Expr):
                yield f"{s} = {form}"
            else:
                ((root, factor),), offset = split_terms(form)
                later.append(f"{s} = {_format_linear(named.get(root, root.name), factor, offset)}")
        yield from later

    # Names and places

    def _new_name(self, s: Expr) -> str:
        """For the root that a dim is to be derived from."""
        name = f"_{s}"
        while name in self.spec.declared:
            name = f"_{name}"
        return name

    def _names(self, dims: list[Expr]) -> str:
        return ", ".join(s.name if s in self.named else self._place(s) for s in dims)

    def _place(self, s: Expr) -> str:
        return str(self.scope.origins.get(s, s.name))

    def _places(self, s: Expr) -> list[tuple[Expr, str]]:
        """Where the input sizes are that were declared as derived from a dim."""
        return [
            (e, f"{path}.shape[{d}]")
            for path, sizes in self.spec.sizes.items()
            for d, e in enumerate(sizes)
            if isinstance(e, Expr) and e is not s and s in symbols(e)
        ]


def _split_conjunctions(facts: list[Fact]) -> Iterator[Fact]:
    """Facts with conjunctions split."""
    for fact in facts:
        if fact.cond.kind == "and":
            yield from _split_conjunctions([replace(fact, cond=part) for part in fact.cond.args])
        else:
            yield fact


def _format_linear(name: str, factor: int, const: int) -> str:
    text = name if factor == 1 else f"{factor}*{name}"
    return f"{text} {'+' if const > 0 else '-'} {abs(const)}" if const else text


def format_definition(name: str, limits: Range) -> str:
    parts = [repr(name)]
    parts += [f"min={int(limits.lower)}"] if limits.lower > 0 else []
    parts += [f"max={int(limits.upper)}"] if limits.upper != math.inf else []
    return f"{name} = Dim({', '.join(parts)})"


# Substitutes solved symbols of `Dim.AUTO` in the metadata of nodes that were recorded before.

Forms = Mapping[Expr, Value]


def substitute_symbols(graph: Graph, forms: Forms) -> None:
    """Write the metadata of a graph without the symbols that `forms` replaces."""
    for node in graph.nodes:
        if has_val(node):
            set_val(node, _substitute_val(get_val(node), forms))


def _substitute_val(val: object, forms: Forms) -> object:
    if isinstance(val, AbstractTensor):
        old = val._abstract
        new = Abstract(
            _substitute_sizes(old.sizes, forms),
            old.dtype,
            old.device,
            None if old._strides is None else _substitute_sizes(old._strides, forms),
            substitute(old.offset, forms),
        )
        unchanged = (new.sizes, new._strides, new.offset) == (old.sizes, old._strides, old.offset)
        return val if unchanged else make_abstract_tensor(new, val.requires_grad)
    if isinstance(val, tuple):
        return tuple(_substitute_val(v, forms) for v in val)
    if is_symbolic(val):
        return to_torch(substitute(from_torch(val), forms))
    return val


def _substitute_sizes(sizes: tuple[Size, ...], forms: Forms) -> tuple[Size, ...]:
    return tuple(s if type(s) is int else substitute(s, forms) for s in sizes)


# Captures again with other branch outcomes, to drop guards that do not change the graph.
#
# `is_causal = length > 1 and mask is None` asks for the length, and with a mask it comes to the
# same either way. Where the example's answer would be an error, or make the program refuse a size
# that the user declared, it is captured with either answer, and none of them is taken for granted.
# Where all captures are the same program, with the same facts, it is right for every size. A copy
# that one of them makes and another does not (`if not x.is_contiguous(): x = x.contiguous()`) is no
# difference.

Answers = Mapping[str, bool]
_MAX_GUARDS = 3
"""Guards that are tried at most: every combination of outcomes is another capture."""


def drop_irrelevant_guards(
    questions: Iterable[str], capture: Callable[[Answers], ExportedProgram]
) -> ExportedProgram | None:
    """The program without some guards on sizes; None if their outcomes matter."""
    asked = list(dict.fromkeys(questions))
    while 0 < len(asked) <= _MAX_GUARDS:
        answers = itertools.product((True, False), repeat=len(asked))
        captures = (capture(dict(zip(asked, given, strict=True))) for given in answers)
        try:
            program = next(captures)
            other = next(
                (other for other in captures if not _is_same_program(program, other)), None
            )
            if other is None:
                return program
            more = _collect_guards(program) ^ _collect_guards(other)  # what only one of them asks
        except ConstraintViolationError as error:
            more = set(error.questions)
        except ExportError:
            return None
        if more.issubset(asked):
            return None
        asked += sorted(more - set(asked))
    return None


def _collect_guards(program: ExportedProgram) -> set[str]:
    return {str(f.cond) for f in program.scope.facts if f.asked and not f.internal}


def _is_same_program(a: ExportedProgram, b: ExportedProgram) -> bool:
    return (
        a.graph_signature.input_specs == b.graph_signature.input_specs
        and _describe_outputs(a) == _describe_outputs(b)
        and a.call_spec == b.call_spec
        and _list_facts(a) == _list_facts(b)
        and a.constants.keys() == b.constants.keys()
        and all(map(_is_equal_constant, a.constants.values(), b.constants.values()))
        and list(map(_normalise_graph, list_module_graphs(a.graph_module)))
        == list(map(_normalise_graph, list_module_graphs(b.graph_module)))
    )


def _describe_outputs(program: ExportedProgram) -> list[tuple[object, ...]]:
    """What the outputs are, whatever their nodes are called."""
    specs = program.graph_signature.output_specs
    return [(s.kind, s.target, type(s.arg), getattr(s.arg, "value", None)) for s in specs]


_COPIES = (aten.clone.default, aten.contiguous.default)
_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def _normalise_graph(graph: Graph) -> list[str]:
    """What a graph computes, line by line, without names and addresses."""
    numbers: dict[Node, str] = {}
    lines: list[str] = []
    for node in graph.nodes:
        if node.target in _COPIES:
            numbers[node] = numbers[node.args[0]]
            continue
        target = "reshape" if node.target in _RESHAPES else str(node.target)
        numbers[node] = f"%{len(lines)}"
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: _Verbatim(numbers[n]))
        lines.append(f"{target} {args} {kwargs}")
    return lines


class _Verbatim(str):
    """Text that is printed as it is."""

    __repr__ = str.__str__


def _list_facts(program: ExportedProgram) -> list[str]:
    return sorted(f"{fact.kind} {fact}" for fact in program.scope.facts)


def _is_equal_constant(x: object, y: object) -> bool:
    if x is y:
        return True
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return False
    return x.dtype == y.dtype and torch.equal(x, y)
