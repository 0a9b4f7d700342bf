"""A model as the command line describes it: built, with its inputs and sizes, and captured."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from graphport.cli import dynamic, inputs, models
from graphport.errors import ConstraintViolationError, UsageError


@dataclass(frozen=True)
class Described:
    """A model, its example inputs, and which sizes are dynamic."""

    model: models.Model
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: Any
    spelled: bool
    """Whether the sizes were written on the command line."""

    @property
    def eager(self) -> Any:
        """What to call in PyTorch."""
        model = self.model
        return model.target.module(check_guards=False) if model.is_program else model.target

    def captured(self) -> Any:
        """Its `ExportedProgram`."""
        from graphport.capture import export

        if self.model.is_program:
            return self.model.target
        try:
            return export(self.model.target, self.args, self.kwargs, dynamic_shapes=self.shapes)
        except ConstraintViolationError as error:
            if self.spelled:
                error.fix = dynamic.respelled(error.fix) or error.fix
            raise


def described(options: argparse.Namespace) -> Described:
    model = models.resolve(options.model, options.allow)
    args, kwargs = inputs.arguments(model, options.input, options.inputs)
    if model.is_program and options.dynamic:
        raise UsageError("a saved program has its dynamic sizes already", fix="leave out --dynamic")
    shapes = model.dynamic_shapes
    if options.dynamic:
        shapes = dynamic.shapes(options.dynamic, model.target, args, kwargs)
    return Described(model, args, kwargs, shapes, bool(options.dynamic))
