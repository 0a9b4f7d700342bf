"""Questions about sizes whose answer makes no difference.

`is_causal = length > 1 and mask is None` asks for the length, and with a mask it comes to the same
either way. Where the example's answer would be an error, or make the program refuse a size that the
user declared, it is captured with either answer, and none of them is taken for granted. Where all
captures are the same program, with the same facts, it is right for every size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch.fx import GraphModule

from graphport.capture.changes import difference
from graphport.errors import ConstraintViolationError, ExportError
from graphport.program import ExportedProgram

Answers = Mapping[str, bool]
_QUESTIONS = 3
"""As many are tried: every combination of answers is another capture."""


def indifferent(
    questions: Iterable[str], capture: Callable[[Answers], ExportedProgram]
) -> ExportedProgram | None:
    """The program without some questions about sizes; None if their answers matter."""
    asked = dict.fromkeys(questions, True)
    program = None
    while program is None:
        if not 0 < len(asked) <= _QUESTIONS:
            return None
        try:
            program = capture(asked)
        except ConstraintViolationError as error:
            more = dict.fromkeys((q for q in error.questions if q not in asked), True)
            if not more:
                return None
            asked.update(more)
    for answers in itertools.product((True, False), repeat=len(asked)):
        if all(answers):
            continue
        try:
            other = capture(dict(zip(asked, answers, strict=True)))
        except ExportError:
            return None
        if not _same(program, other):
            return None
    return program


def _same(a: ExportedProgram, b: ExportedProgram) -> bool:
    return (
        a.graph_signature == b.graph_signature
        and a.call_spec == b.call_spec
        and _facts(a) == _facts(b)
        and a.constants.keys() == b.constants.keys()
        and all(map(_equal, a.constants.values(), b.constants.values()))
        and all(map(_same_graph, _graphs(a.graph_module), _graphs(b.graph_module)))
    )


def _facts(program: ExportedProgram) -> list[str]:
    return sorted(f"{fact.kind} {fact}" for fact in program.scope.facts)


def _equal(x: object, y: object) -> bool:
    if x is y:
        return True
    tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return tensors and x.dtype == y.dtype and torch.equal(x, y)


def _graphs(module: GraphModule) -> Iterator[GraphModule | None]:
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield part
    yield None


def _same_graph(a: GraphModule | None, b: GraphModule | None) -> bool:
    if a is None or b is None:
        return a is b
    return difference(a.graph, b.graph) is None
