"""Sparse matrices times dense ones: rows are taken by the columns of the elements, and added up.

A graph has no sparse tensors. One that the program's state holds is constant: where its elements
are, and what they are. One that the program makes is a `SparseMatrix` while it is captured. It can
be multiplied with dense matrices and vectors, transposed and made dense; the rest is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from graphport import source
from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.scalars import disable_tracing
from graphport.capture.trace.tracer import Tracer
from graphport.errors import UnsupportedError
from graphport.tensors.abstract import AbstractTensor
from graphport.types import Args, Argument, Function, Kwargs


class SparseMatrix:
    """The elements of a matrix that are not zero; those at one place add up."""

    is_sparse = True

    def __init__(self, rows: Any, columns: Any, values: Any, shape: Sequence[Any]) -> None:
        self.rows, self.columns, self.values_ = rows, columns, values
        self.shape = torch.Size(shape)
        self.dtype, self.device = values.dtype, values.device

    def multiply(self, dense: torch.Tensor) -> torch.Tensor:
        values = self.values_ if dense.dim() == 1 else self.values_[:, None]
        terms = dense.index_select(0, self.columns) * values
        zeros = torch.zeros(self.shape[0], *dense.shape[1:], dtype=terms.dtype, device=self.device)
        return zeros.index_add(0, self.rows, terms)

    __matmul__ = multiply

    def to_dense(self) -> torch.Tensor:
        zeros = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return zeros.index_put((self.rows, self.columns), self.values_, accumulate=True)

    def t(self) -> SparseMatrix:
        return SparseMatrix(self.columns, self.rows, self.values_, self.shape[::-1])

    @property
    def T(self) -> SparseMatrix:
        return self.t()

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 2

    def coalesce(self) -> SparseMatrix:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(f".{name}")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Args = (), kwargs: Argument = None
    ) -> Argument:
        raise _refusal(f"{getattr(func, '__name__', func)}()")


def _refusal(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} of a sparse tensor that the program makes cannot be captured: a product with a "
        "dense tensor can",
        where=source.locate_user_line(),
        fix="compute with a.to_dense()",
    )


_LAYOUTS = (torch.sparse_coo, torch.sparse_csr)


@register_override(
    *(torch.sparse.mm, torch.mm, torch.mv, torch.matmul, torch.spmm),
    *(torch.Tensor.mm, torch.Tensor.mv, torch.Tensor.matmul, torch.Tensor.__matmul__),
)
def multiply(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    if len(args) != 2 or type(args[0]) is AbstractTensor:
        return NotImplemented
    matrix, dense = args
    is_constant = isinstance(matrix, torch.Tensor) and matrix.layout in _LAYOUTS
    if not (is_constant or type(matrix) is SparseMatrix) or not isinstance(dense, torch.Tensor):
        return NotImplemented
    if dense.layout is not torch.strided or matrix.dim() != 2 or dense.dim() > 2:
        return NotImplemented
    with tracer.function_mode:
        found = _read_constant(tracer, matrix) if is_constant else matrix
        return found.multiply(dense)


def _read_constant(tracer: Tracer, matrix: torch.Tensor) -> SparseMatrix:
    """A matrix from outside of the program."""
    known = tracer.sparse_constants.get(id(matrix))
    if known is None:
        with disable_tracing():
            plain = matrix.detach().to_sparse_coo().coalesce()
            rows, columns = (part.clone() for part in plain.indices())
            made = SparseMatrix(rows, columns, plain.values(), matrix.shape)
        known = tracer.sparse_constants[id(matrix)] = (matrix, made)
    return known[1]


@register_override(torch.sparse_coo_tensor)
def sparse_coo_tensor(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    given = {**dict(zip(("indices", "values", "size"), args, strict=False)), **kwargs}
    if not _is_matrix(given):
        return NotImplemented
    with tracer.function_mode:
        rows, columns = torch.as_tensor(given["indices"]).unbind()
        return SparseMatrix(rows, columns, _read_values(given), given["size"])


@register_override(torch.sparse_csr_tensor)
def sparse_csr_tensor(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    names = ("crow_indices", "col_indices", "values", "size")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not _is_matrix(given):
        return NotImplemented
    with tracer.function_mode:
        ends, columns = (torch.as_tensor(given[name]).long() for name in names[:2])
        every = torch.arange(given["size"][0], device=ends.device)
        counts, total = ends[1:] - ends[:-1], columns.shape[0]
        rows = torch.repeat_interleave(every, counts, output_size=total)
        return SparseMatrix(rows, columns, _read_values(given), given["size"])


def _is_matrix(given: dict[str, Any]) -> bool:
    """Whether a call makes a matrix of numbers, of a size that it says, with nothing unusual."""
    values = given.get("values")
    is_line = isinstance(values, torch.Tensor) and values.dim() == 1
    return is_line and len(given.get("size") or ()) == 2 and not given.get("requires_grad")


def _read_values(given: dict[str, Any]) -> torch.Tensor:
    values: torch.Tensor = given["values"]
    return values if given.get("dtype") is None else values.to(given["dtype"])
