"""Size-oblivious decisions: whether a size is 0 or 1 is answered as for sizes in general.

An operator asks whether a size is 0 or 1 to choose between ways of doing the same thing: an empty
result, a broadcast that is none, a stride that does not matter. Following the example there would
tie the program to it: a batch of one at capture would stay a batch of one. So while an operator
runs, these questions are answered as for a size that is neither, and nothing is recorded. That is
correct for all sizes as far as the operator's general way is.

Two rules recognise such a question. It may be decided once every symbol is taken to be at least 2:
`b*s == b`, `s == s // 2`. Or it asks outright whether an expression that must be a size is 0 or 1:
`h // 2 == 1`. Whether two sizes agree, whether one divides another, whether one is 5 are different
questions, and left to the example. So is a bool in the data of a tensor, although its symbol is 0
or 1: `1 in x` asks for it inside of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphport.symbolic import division, integers, logic
from graphport.symbolic.facts import Facts
from graphport.symbolic.integers import powers_of, split_terms
from graphport.symbolic.nodes import Expr, Number, Size, Truth
from graphport.symbolic.prove import Prover
from graphport.symbolic.witness import Witnesses


class SizeObliviousAnswers:
    """Answers for sizes that are neither 0 nor 1."""

    def __init__(
        self,
        facts: Facts,
        hints: Mapping[Expr, Number],
        known: Prover,
        origins: Mapping[Expr, object],
    ) -> None:
        self._known = known
        self._origins = origins
        self._witnesses = Witnesses(facts, hints, least=2)
        self._large = Prover(facts, self._witnesses, least=2)

    def add_symbol(self, s: Expr) -> None:
        self._witnesses.add_symbol(s)

    def checkpoint(self) -> Callable[[], None]:
        return self._large.checkpoint()

    def answer(self, cond: Truth) -> Truth:
        """True or False; what is no question about 0 and 1 is left over."""
        if type(cond) is not Expr:
            return cond
        answer = self._known.decide(cond)
        if answer is None:
            answer = self._large.decide(cond)
        if answer is not None:
            return answer
        if type(self._origins.get(cond)) is Expr:
            return cond  # it stands for a symbol: a data-dependent bool
        if cond.kind == "not":
            return logic.not_(self.answer(cond.args[0]))
        if cond.kind in ("and", "or"):
            connect = logic.and_ if cond.kind == "and" else logic.or_
            result: Truth = cond.kind == "and"
            for part in cond.args:
                result = connect(result, self.answer(part))
            return result
        return self._answer_directly(cond)

    def _answer_directly(self, cond: Expr) -> Truth:
        """x == 0, x == 1, x >= 1, x >= 2, x <= 0 and x <= 1 for a size x."""
        e = cond.args[0]
        if cond.kind == "eq0":
            return False if self._is_size(e) or self._is_size(integers.add(e, 1)) else cond
        if cond.kind == "ge0":
            if self._is_size(integers.add(e, 1)) or self._is_size(integers.add(e, 2)):
                return True
            if self._is_size(integers.neg(e)) or self._is_size(integers.sub(1, e)):
                return False
        return cond

    def _is_size(self, x: Size) -> bool:
        """Whether x is a size, or a product of sizes."""
        if type(x) is not Expr:
            return False
        if x.factors and all(map(self._may_be_size, x.factors)):
            return True
        terms, const = split_terms(x)
        if const < 0 and len(terms) == 1 and not self._is_computed(terms[0][0]):
            return False
        shared = division.common_factor(mono for mono, _ in terms) if len(terms) > 1 else None
        if shared is not None and not const:
            return self._may_be_size(shared) and self._may_be_size(division.quotient(x, shared))
        return self._may_be_size(x)

    def _is_computed(self, mono: Expr) -> bool:
        """Whether subtracting from it gives the size of a result, rather than a comparison.

        `h // 2 - 1` does. `h - 2` does where an operator already demanded h >= 2; else `h - 2 == 0`
        may well be the question whether h is 2.
        """
        return mono.kind != "symbol" or self._known.range(mono).lower > mono.span.lower

    def _may_be_size(self, x: Size) -> bool:
        """Never negative, nothing that could be taken away by another term, and no remainder."""
        for mono, coef in split_terms(x)[0]:
            if coef < 0 or any(part.kind == "mod" for part, _ in powers_of(mono)):
                return False
        return self._known.nonneg(x)
