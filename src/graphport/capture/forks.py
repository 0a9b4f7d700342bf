"""Questions about sizes whose answer makes no difference.

`is_causal = length > 1 and mask is None` asks for the length, and with a mask it comes to the same
either way. Where the example's answer would be an error, or make the program refuse a size that the
user declared, it is captured with either answer, and none of them is taken for granted. Where all
captures are the same program, with the same facts, it is right for every size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import torch

from graphport.capture.changes import difference
from graphport.capture.subgraphs import graphs_in
from graphport.errors import ConstraintViolationError, ExportError
from graphport.program import ExportedProgram

Answers = Mapping[str, bool]
_QUESTIONS = 3
"""As many are tried: every combination of answers is another capture."""


def indifferent(
    questions: Iterable[str], capture: Callable[[Answers], ExportedProgram]
) -> ExportedProgram | None:
    """The program without some questions about sizes; None if their answers matter."""
    asked = list(dict.fromkeys(questions))
    while 0 < len(asked) <= _QUESTIONS:
        answers = itertools.product((True, False), repeat=len(asked))
        captures = (capture(dict(zip(asked, given, strict=True))) for given in answers)
        try:
            program = next(captures)
            return program if all(_same(program, other) for other in captures) else None
        except ConstraintViolationError as error:
            more = [q for q in error.questions if q not in asked]
            if not more:
                return None
            asked += more
        except ExportError:
            return None
    return None


def _same(a: ExportedProgram, b: ExportedProgram) -> bool:
    return (
        a.graph_signature == b.graph_signature
        and a.call_spec == b.call_spec
        and _facts(a) == _facts(b)
        and a.constants.keys() == b.constants.keys()
        and all(map(_equal, a.constants.values(), b.constants.values()))
        and difference(graphs_in(a.graph_module), graphs_in(b.graph_module)) is None
    )


def _facts(program: ExportedProgram) -> list[str]:
    return sorted(f"{fact.kind} {fact}" for fact in program.scope.facts)


def _equal(x: object, y: object) -> bool:
    if x is y:
        return True
    tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return tensors and x.dtype == y.dtype and torch.equal(x, y)
