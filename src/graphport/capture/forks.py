"""Questions about sizes whose answer makes no difference.

`is_causal = length > 1 and mask is None` asks for the length, and with a mask it comes to the same
either way. Capture took the example's answer, and dynamic_shapes does not allow for it: before that
is an error, the program is captured with either answer, and none of them taken for granted. Where
all captures are the same program, with the same facts, it is right for every size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.fx import GraphModule

from graphport.capture.changes import difference
from graphport.errors import ConstraintViolationError, ExportError
from graphport.program import ExportedProgram

Answers = Mapping[str, bool]
_QUESTIONS = 3
"""As many are tried: every combination of answers is another capture."""


def without(
    error: ConstraintViolationError, capture: Callable[[Answers], ExportedProgram]
) -> ExportedProgram:
    """The program without the questions that an error is about; the error if they matter."""
    asked = dict.fromkeys(error.questions, True)
    while True:
        if not 0 < len(asked) <= _QUESTIONS:
            raise error
        try:
            program = capture(asked)
            break
        except ConstraintViolationError as further:
            more = {q: True for q in further.questions if q not in asked}
            if not more:
                raise error from None
            asked.update(more)
    for answers in itertools.product((True, False), repeat=len(asked)):
        if all(answers):
            continue
        try:
            other = capture(dict(zip(asked, answers, strict=True)))
        except ExportError:
            raise error from None
        if not _same(program, other):
            raise error
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


def _graphs(module: GraphModule | None) -> Iterator[GraphModule | None]:
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield part
    yield None


def _same_graph(a: GraphModule | None, b: GraphModule | None) -> bool:
    if a is None or b is None:
        return a is b
    return difference(a.graph, b.graph) is None
