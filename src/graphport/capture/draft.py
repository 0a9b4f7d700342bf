"""`gp.draft_export`: captures where export would stop, and reports what it had to assume.

What the spec does not allow is taken over into the spec; a value that depends on data is taken from
the example. Each is asserted in the program, so that it never gives a wrong answer silently, and
listed in the report with the line and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from graphport.arguments import FLAG, NAMES, check_arguments
from graphport.capture.export import Options, capture
from graphport.capture.spec.shapes import refine_dynamic_shapes
from graphport.errors import ConstraintViolationError, ExportError
from graphport.program import ExportedProgram
from graphport.types import Function, PyTree

_OPTIONS = Options(guards="runtime_assert", draft=True)
# Each round makes the spec narrower, so it comes to an end; the bound is a seat belt.
_ROUNDS = 16


@dataclass(frozen=True)
class Report:
    """The assumptions of a draft, each an error with `what`, `where` and `fix`."""

    assumptions: list[ExportError]

    def __len__(self) -> int:
        return len(self.assumptions)

    def __iter__(self) -> Iterator[ExportError]:
        return iter(self.assumptions)

    def __str__(self) -> str:
        if not self.assumptions:
            return "Nothing was assumed: gp.export gives the same program."
        count = len(self.assumptions)
        head = f"{count} assumption{'s' if count > 1 else ''} that gp.export would not make:"
        return "\n\n".join([head, *(f"{i}. {a}" for i, a in enumerate(self.assumptions, 1))])


@dataclass(repr=False)
class DraftProgram(ExportedProgram):
    """A program with a report; unpacks as `program, report`."""

    report: Report = field(default_factory=lambda: Report([]))

    def __iter__(self) -> Iterator[Any]:
        return iter((self, self.report))


@check_arguments(strict=FLAG, preserve_module_call_signature=NAMES)
def draft_export(
    mod: nn.Module | Function,
    args: tuple[object, ...],
    kwargs: dict[str, PyTree] | None = None,
    *,
    dynamic_shapes: object = None,
    strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (),
) -> DraftProgram:
    """Capture what `gp.export` would refuse, at the price of assumptions that the report lists.

    >>> import torch, graphport as gp
    >>> def clip(x):
    ...     return x - x.max() if x.max() > 1 else x
    >>> program, report = gp.draft_export(clip, (torch.tensor([0.5, 2.0]),))
    >>> program.module()(torch.tensor([1.0, 3.0]))
    tensor([-2.,  0.])
    >>> len(report)
    1
    """
    builder = getattr(dynamic_shapes, "dynamic_shapes", None)
    spec = builder(mod, args, kwargs) if callable(builder) else dynamic_shapes
    kept = preserve_module_call_signature
    options = replace(_OPTIONS, strict=strict, preserve_module_call_signature=kept)
    violations: list[ExportError] = []
    for _ in range(_ROUNDS):
        try:
            program, passed_over = capture(mod, args, kwargs, spec, options)
        except ConstraintViolationError as error:
            violations.append(error)
            narrower = refine_dynamic_shapes(error, spec)
            if narrower == spec:
                raise
            spec = narrower
        else:
            return DraftProgram(**vars(program), report=Report([*violations, *passed_over]))
    raise violations[-1]
