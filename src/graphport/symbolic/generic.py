"""Questions whether a size is 0 or 1, answered for sizes in general.

An operator asks whether a size is 0 or 1 to choose between ways of doing the same thing: an empty
result, a broadcast that is none, a stride that does not matter. Following the example there would
tie the program to it: a batch of one at capture would stay a batch of one. So while an operator
runs, these questions are answered as for a size that is neither, and nothing is recorded. That is
correct for all sizes as far as the operator's general way is.

A size here is an expression that is provably not negative and whose terms do not subtract from each
other: `a - b == 0` asks whether two sizes agree, and `a % b == 0` whether one divides the other,
which are different questions.
"""

from __future__ import annotations

from graphport.symbolic import division, integers, logic
from graphport.symbolic.integers import powers_of, split
from graphport.symbolic.nodes import Expr, Size, Truth
from graphport.symbolic.prove import Prover


def generic_answer(prover: Prover, cond: Truth) -> Truth:
    """The answer for sizes that are neither 0 nor 1; what is no such question is left over."""
    if type(cond) is not Expr:
        return cond
    decided = prover.decide(cond)
    if decided is not None:
        return decided
    kind = cond.kind
    if kind == "not":
        return logic.not_(generic_answer(prover, cond.args[0]))
    if kind in ("and", "or"):
        connect = logic.and_ if kind == "and" else logic.or_
        result: Truth = kind == "and"
        for part in cond.args:
            result = connect(result, generic_answer(prover, part))
        return result
    if kind == "eq0":
        e = cond.args[0]
        # x == 0 and x == 1
        return False if _is_size(prover, e) or _is_size(prover, integers.add(e, 1)) else cond
    if kind == "ge0":
        e = cond.args[0]
        # x >= 1 and x >= 2; x <= 0 and x <= 1
        if _is_size(prover, integers.add(e, 1)) or _is_size(prover, integers.add(e, 2)):
            return True
        if _is_size(prover, integers.neg(e)) or _is_size(prover, integers.sub(1, e)):
            return False
    return cond


def _is_size(prover: Prover, x: Size) -> bool:
    """Whether x is a size, or a product of sizes.

    A lone `h - 2` is not one: `h - 2 == 0` may well be the question whether h is 2. As a factor of
    a product it is.
    """
    if type(x) is not Expr:
        return False
    if x.factors and all(_may_be_factor(prover, factor) for factor in x.factors):
        return True
    terms, const = split(x)
    if const:
        return False
    shared = division.common_factor(mono for mono, _ in terms) if len(terms) > 1 else None
    if shared is not None:
        rest = division.quotient(x, shared)
        return _may_be_factor(prover, shared) and _may_be_factor(prover, rest)
    return _may_be_factor(prover, x)


def _may_be_factor(prover: Prover, x: Size) -> bool:
    for mono, coef in split(x)[0]:
        if coef < 0 or any(part.kind == "mod" for part, _ in powers_of(mono)):
            return False
    return prover.nonneg(x)
