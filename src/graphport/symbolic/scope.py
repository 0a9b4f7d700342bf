"""`Scope`: the symbols of one capture, its facts, and decide, guard, expect, assume.

A `Scope` creates symbols, holds the facts, and is asked about conditions in four ways:

* `decide` proves or stays silent, and never records;
* `guard` must answer: what is not proven is answered as the example sizes have it, and recorded;
* `expect` is an assertion: it is taken as true, and recorded to be checked at run time;
* `assume` states what is known.

Every recorded `Fact` carries the user's line. What is neither proven nor recorded is not used, with
one exception: see `internal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from graphport import source
from graphport.errors import DataDependentError, ExportError, ShapeError
from graphport.source import Location
from graphport.symbolic import explain, expr
from graphport.symbolic.explain import VariableNames
from graphport.symbolic.expr import Expr, Number, Truth, Value
from graphport.symbolic.facts import Contradiction, Facts
from graphport.symbolic.nodes import UNSET, Arena
from graphport.symbolic.prove import Prover
from graphport.symbolic.ranges import TRUTH, Range, inf
from graphport.symbolic.size_oblivious import SizeObliviousAnswers
from graphport.symbolic.witness import Witnesses


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition that the captured program relies on.

    kind is "assumed" (given), "guard" (a branch taken) or "expect" (an assertion); `internal`
    says that an operator asked, not the user's code. A guard that is the answer to a question is
    `asked`; any other fixes a number.
    """

    cond: Expr
    kind: str
    where: Location | None = None
    internal: bool = False
    message: str = ""
    asked: bool = False
    stated: bool = False
    """Whether it is what an operator needs, asked as the user would."""

    def __str__(self) -> str:
        return str(self.cond)


class NotKnown(Exception):
    """A question about the sizes of a finished program that what is known does not answer."""


class Scope:
    """Symbols and facts of one capture.

    >>> from graphport.symbolic import eq, ge
    >>> scope = Scope()
    >>> n = scope.symbol("n", hint=8, lower=2)
    >>> scope.decide(ge(n, 1)), scope.decide(ge(n, 3))
    (True, None)
    >>> scope.guard(ge(n, 3)), scope.range(n), scope.declared(n)
    (True, [3, oo], [2, oo])
    """

    # Bound to the methods of what does the work, because they are called the most.
    decide: Callable[[Truth], bool | None]  # True or False if proven, else None
    simplify: Callable[[Any], Any]  # after all equalities known so far

    def __init__(self) -> None:
        self.arena = Arena(self)
        self.facts: list[Fact] = []
        # True while an operator's own rule or meta kernel runs. Its questions whether a size is 0
        # or 1 choose between fast paths, and are answered for sizes in general; see
        # `size_oblivious`.
        self.internal = False
        # Whether torch may fix a size: not while its kernel is asked what comes of open sizes.
        self.specialises = True
        # True while an operator states what it needs: its questions are then like the user's.
        self.stating = False
        # Whether they are, and whether such an answer was not that of the example.
        self.generic = True
        self.departed = False
        # Whether the example does not come here: a branch on sizes that it does not take. What it
        # says of a condition is then no reason to refuse it.
        self.off_path = False
        # Whether the bounds of a slice are taken to lie as in the example.
        self.slices_follow_example = True
        # Where symbols come from; of a bool that stands for a symbol, the symbol.
        self.origins: dict[Expr, Any] = {}
        # Told where the code that is running needs a plain number.
        self.on_plain_number: Callable[[], None]
        # What the code that is running calls its values; for errors.
        self.vocabulary: Callable[[], VariableNames] = VariableNames
        # The value of a data-dependent symbol, if it follows from the program's state.
        self.recall: Callable[[Expr], Number | None]
        # Of a draft: the example's value of a data-dependent symbol, and each error that was passed
        # over by taking it.
        self.reveal: Callable[[Expr], Number] | None
        self.forget_program()
        self.passed_over: list[ExportError] = []
        # Whether no more may be assumed: of a finished program, whose checks are settled.
        self.closed = False
        # Questions that the user's code may ask, as text, and answers that are not to be recorded.
        self.answers: Mapping[str, bool] = {}
        # Room for the bridge: what stands for this scope on the side of torch.
        self.peer: Any = None
        self._declared: dict[Expr, Range] = {}
        self._hints: dict[Expr, Number] = {}
        self._fresh = 0
        self._facts = Facts()
        self._witnesses = Witnesses(self._facts, self._hints)
        self._prover = Prover(self._facts, self._witnesses)
        self._sizes = SizeObliviousAnswers(self._facts, self._hints, self._prover, self.origins)
        self.decide = self._prover.decide
        self.simplify = self._facts.simplify
        self.simplified = self._facts.simplified

    # Symbols

    def symbol(
        self,
        name: str,
        *,
        hint: Number | None = None,
        lower: float = 0,
        upper: float = inf,
        origin: Any = None,
        type: type = int,
    ) -> Expr:
        """A new symbol; with a hint it is backed by an example value."""
        declared = TRUTH if type is bool else Range(lower, upper)
        if declared.empty:
            raise ValueError(f"{name} has no value in {declared}")
        s = self.arena.symbol(name, type, declared)
        self._declared[s] = declared
        self.origins[s] = origin
        if hint is None:
            self._facts.unbacked.add(s)
        else:
            self._hints[s] = hint
        self._facts.declare(s, declared)
        self._witnesses.add_symbol(s)
        self._sizes.add_symbol(s)
        self._facts.changed()
        return s

    def forget_program(self) -> None:
        """Let go of the program that is captured: a scope outlives it."""
        self.on_plain_number = lambda: None
        self.recall = lambda s: None
        self.reveal = None

    def fresh(
        self, type: type = int, *, lower: float = -inf, upper: float = inf, origin: object = None
    ) -> Expr:
        """A data-dependent symbol, u0, u1, ... (f0, ... for floats), of unknown value."""
        letter = "f" if type is float else "u"
        while f"{letter}{self._fresh}" in self.arena.symbols:
            self._fresh += 1
        name = f"{letter}{self._fresh}"
        self._fresh += 1
        return self.symbol(name, lower=lower, upper=upper, origin=origin, type=type)

    @property
    def symbols(self) -> tuple[Expr, ...]:
        """All symbols in the order of their creation."""
        return tuple(self.arena.symbols.values())

    def declared(self, symbol: Expr) -> Range:
        """The range a symbol was created with."""
        return self._declared[symbol]

    def is_backed(self, e: Value) -> bool:
        """Whether `e` has a value at the example sizes."""
        return self.hint(e) is not None

    def is_fresh(self, symbol: Expr) -> bool:
        """Whether a symbol was made without an example value, whatever is known of it since."""
        return symbol in self._facts.unbacked

    # Knowledge

    def same(self, a: Value, b: Value) -> bool:
        """Provably equal, by simplification alone."""
        if a is b:
            return True
        a, b = self.simplify(a), self.simplify(b)
        return a is b or (type(a) is not Expr and type(b) is not Expr and a == b)

    def range(self, e: Value) -> Range:
        """The tightest interval known for `e`."""
        return self._prover.range(e)

    def hint(self, e: Value) -> Number | None:
        """The value of `e` at the example sizes, None if it depends on data."""
        if self.off_path:
            e = self.simplify(e)  # a size that is fixed here is not the example's
        if type(e) is not Expr:
            return e
        known = e.hinted
        if known is not UNSET:
            return known
        hints = self._hints
        if all(s in hints for s in expr.symbols(e)):
            e.hinted = expr.evaluate(e, hints)
            return e.hinted
        # Not remembered: an equality may yet tie a data-dependent symbol to one with a hint.
        simple = self.simplify(e)
        if simple is e or any(s not in hints for s in expr.symbols(simple)):
            return None
        return self.hint(simple)

    # Questions

    def guard(self, cond: Truth, *, where: Location | None = None) -> bool:
        """The truth of `cond`: proven, or as the example has it, which is then recorded."""
        answer = self.decide(cond)
        if answer is not None:
            return answer
        if self.answers and not self.internal:
            for asked, truth in ((cond, True), (expr.not_(cond), False)):
                if str(asked) in self.answers:
                    return self.answers[str(asked)] is truth
        if self.internal and self.generic:
            general = self._sizes.answer(cond)
            if type(general) is not Expr:
                self._note_departure(cond, bool(general))
                return bool(general)
            cond = general
        hint = self.hint(cond)
        where = where or source.locate_user_line()
        if hint is None:
            answer = self._decide_by_sizes(cond, where)
            if answer is not None:
                return answer
            raised = source.find_raise()
            if raised is not None:  # `assert x.item() > 0` says what torch._check does
                stated = expr.not_(cond) if raised.truth else cond
                return self.expect(stated, message=raised.message, where=where) is not raised.truth
            hint = self.pass_over(
                explain.make_undecided_error(self, self.simplify(cond), where), cond
            )
        self._record(cond if hint else expr.not_(cond), "guard", where, asked=True)
        return bool(hint)

    def _decide_by_sizes(self, cond: Truth, where: Location | None) -> bool | None:
        """The answer to a question about data, if it is the same for all sizes but 0.

        `n + u0 == 0` is False for a batch of n that is not empty: that is a guard then.
        """
        assert isinstance(cond, Expr)
        sizes = [s for s in expr.symbols(cond) if s.type is int and (self.hint(s) or 0) > 0]
        needed = [ge for s in sizes if self.decide(ge := expr.ge(s, 1)) is None]
        if not needed:
            return None
        go_back = self.checkpoint()
        for fact in needed:
            self._facts.learn(fact)
        answer = self.decide(cond)
        go_back()
        if answer is not None:
            for fact in needed:
                self._record(fact, "guard", where, asked=True)
        return answer

    def expect(
        self, cond: Truth, *, message: str | None = None, where: Location | None = None
    ) -> bool:
        """Assert `cond`. False if it is known not to hold, in general or at the example sizes.

        What is not proven becomes a fact that the program checks when it runs.
        """
        answer = self.decide(cond)
        if answer is not None:
            return answer
        if self.internal and self.generic:
            general = self._sizes.answer(cond)
            if general is True:
                self._note_departure(cond, True)
                return True
            cond = general if type(general) is Expr else cond  # an operator may insist on a 1
        if self.hint(cond) is False and not self.off_path:
            return False
        self._record(cond, "expect", where or source.locate_user_line(), message or "")
        return True

    def assume(self, cond: Truth, *, reason: str = "", where: Location | None = None) -> None:
        """Take `cond` as true from now on."""
        answer = self.decide(cond)
        if answer is False:
            raise ShapeError(f"{cond} cannot hold", where=where or source.locate_user_line())
        if answer is None:
            self._record(cond, "assumed", where or source.locate_user_line(), reason)

    def answer_in_general(self, cond: Truth) -> Truth:
        """The truth for sizes that are neither 0 nor 1, where that is what a condition asks."""
        return self._sizes.answer(cond)

    def specialize(self, e: Value, *, where: Location | None = None) -> Any:
        """The Python value of `e`, which is fixed to the example's from now on."""
        e = self.simplify(e)
        if type(e) is not Expr:
            return e
        if e.type is bool:
            return self.guard(e, where=where)
        if not self.internal:
            self.on_plain_number()
        hint = self.hint(e)
        if hint is None:
            hint = self.pass_over(
                explain.make_undecided_error(self, e, where or source.locate_user_line()), e
            )
        cond = expr.eq(e, hint)
        # Off the path of the example it may be known not to hold: then nobody may come here.
        if self.decide(cond) is not True:
            self._record(cond, "guard", where or source.locate_user_line())
        return hint

    def pass_over(self, error: DataDependentError, e: Value) -> Number:
        """The value of `e`, if it follows from the program's state, or in a draft; else the error.

        In a draft it is the value in the example.
        """
        hints = self._hints
        recalled = {s: hints[s] if s in hints else self.recall(s) for s in expr.symbols(e)}
        known = {s: value for s, value in recalled.items() if value is not None}
        if len(known) == len(recalled):
            return expr.evaluate(e, known)
        if self.reveal is None:
            raise error
        self.passed_over.append(error)
        return expr.evaluate(e, {s: known[s] if s in known else self.reveal(s) for s in recalled})

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """While it lasts, torch may not fix a size: it gets an error instead."""
        before, self.specialises = self.specialises, False
        try:
            yield
        finally:
            self.specialises = before

    # Parts of the program that may not run

    @contextmanager
    def branch(self, cond: Truth = True) -> Iterator[None]:
        """Where only some runs of the program come, those with `cond`: what is learnt holds there.

        Guards on input sizes outlast it: they chose what was captured. So does what is known of
        symbols that were made here, and mean nothing elsewhere.
        """
        start, made = len(self.facts), len(self.arena.symbols)
        parts = (self._facts, self._prover, self._sizes)
        go_back = [part.checkpoint() for part in parts]
        around, self.off_path = self.off_path, self.off_path or self.hint(cond) is False
        with suppress(Contradiction):  # nobody comes here: then everything holds
            self._facts.learn(cond)
        try:
            yield
        finally:
            found = self.facts[start:]
            del self.facts[start:]
            for step in go_back:
                step()
            self.off_path = around
            for fact in found:
                if self.outlasts(fact) or all(s.index >= made for s in expr.symbols(fact.cond)):
                    self.facts.append(fact)
                    with suppress(Contradiction):  # learnt where nobody comes
                        self._facts.learn(fact.cond)

    def checkpoint(self) -> Callable[[], None]:
        """What goes back to all that is known and set now; symbols made since stay."""
        count = len(self.facts)
        flags = (self.internal, self.off_path, self.slices_follow_example, self.closed)
        parts = [part.checkpoint() for part in (self._facts, self._prover, self._sizes)]

        def go_back() -> None:
            del self.facts[count:]
            self.internal, self.off_path, self.slices_follow_example, self.closed = flags
            for step in parts:
                step()

        return go_back

    def outlasts(self, fact: Fact) -> bool:
        """Whether what a branch takes for granted is demanded of every run."""
        return fact.kind == "guard" and not any(map(self.is_fresh, expr.symbols(fact.cond)))

    @contextmanager
    def operator(self) -> Iterator[None]:
        """While an operator's own rule runs: sets `internal`."""
        before, self.internal = self.internal, True
        try:
            yield
        finally:
            self.internal = before

    @contextmanager
    def clamp_slice_bounds(self) -> Iterator[None]:
        """While this lasts, a bound of a slice is a minimum or maximum where it may be either."""
        before, self.slices_follow_example = self.slices_follow_example, False
        try:
            yield
        finally:
            self.slices_follow_example = before

    def _note_departure(self, cond: Truth, answer: bool) -> None:
        try:
            self.departed |= self.hint(cond) is (not answer)
        except ArithmeticError:  # a size of 0 in the example, and the question divides by it
            self.departed = True

    def restore_fact(self, fact: Fact) -> None:
        """Take over a fact that was recorded before, in another life of the same program."""
        self.facts.append(fact)
        self._facts.learn(fact.cond)

    def _record(
        self,
        cond: Truth,
        kind: str,
        where: Location | None,
        message: str = "",
        *,
        asked: bool = False,
    ) -> None:
        assert isinstance(cond, Expr)
        if self.closed:
            raise NotKnown(cond)
        fact = Fact(cond, kind, where, self.internal, message, asked, self.stating)
        self.facts.append(fact)
        try:
            self._facts.learn(cond)
        except Contradiction:
            if self.off_path and self.outlasts(fact):
                return  # every run is to be as the example, and so none comes here
            raise ShapeError(f"{cond} contradicts what is already known", where=where) from None
