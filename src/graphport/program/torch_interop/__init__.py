"""Converts programs to and from `torch.export.ExportedProgram`.

`outgoing` and `incoming` are the two directions; `environment` makes a shape environment of torch's
out of ours, and has what both directions spell the same way; `expressions` translates between our
expressions and torch's sympy ones, and reads torch's conditions on inputs.

These modules import torch.export and sympy, which take a second to load: so they are loaded when a
program is first converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphport.errors import ExportError, UnsupportedError

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


def to_torch(program: ExportedProgram) -> Any:
    """The program as a `torch.export.ExportedProgram`, which shares its tensors."""
    from graphport.program.torch_interop.outgoing import convert

    try:
        return convert(program)
    except ExportError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise UnsupportedError(f"torch.export does not take this program: {error}") from error


def from_torch(program: object) -> ExportedProgram:
    """A `torch.export.ExportedProgram` as a program of ours, which shares its tensors.

    >>> import torch, graphport as gp
    >>> theirs = torch.export.export(torch.nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> gp.from_torch(theirs).module()(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """
    from graphport.program.torch_interop.incoming import convert

    return convert(program)
