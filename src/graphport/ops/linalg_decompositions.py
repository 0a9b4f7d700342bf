"""Shape rules of matrix decompositions and solvers; layouts as LAPACK leaves them."""

from __future__ import annotations

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.registry import shape_rule
from graphport.ops.shape import is_one
from graphport.ops.sizes import (
    broadcast,
    establish_equal,
    establish_sizes,
    expect_condition,
    guard_condition,
    guard_equal,
    is_false_at_example,
    is_proven,
)
from graphport.symbolic import eq, le, min_
from graphport.tensors.abstract import Abstract, Size, Sizes, permute_strides


def _make_column_major(a: Abstract, sizes: Sizes, dtype: torch.dtype | None = None) -> Abstract:
    """A batch of matrices whose columns are contiguous."""
    rank = len(sizes)
    order = [*range(rank - 2), rank - 1, rank - 2]
    return Abstract(sizes, dtype or a.dtype, a.device, permute_strides(sizes, order))


def _require_matrix(a: Abstract, what: str) -> tuple[Sizes, Size, Size]:
    if a.rank < 2:
        raise ShapeError(f"{what}: the input must have at least 2 dimensions, got {a}")
    return a.sizes[:-2], a.sizes[-2], a.sizes[-1]


def _require_square(a: Abstract, what: str) -> tuple[Sizes, Size]:
    batch, m, n = _require_matrix(a, what)
    if not establish_equal(m, n):
        raise ShapeError(f"{what}: {a} is not a batch of square matrices")
    return batch, n


def _min_size(m: Size, n: Size) -> Size:
    if is_proven(le(m, n)):
        return m
    return n if is_proven(le(n, m)) else min_(m, n)


def _make_empty(a: Abstract, dtype: torch.dtype | None = None) -> Abstract:
    """What stands for a result that was not asked for."""
    return a.like((0,), dtype)


@shape_rule(aten._linalg_svd.default)
def _linalg_svd(
    A: Abstract, full_matrices: bool, compute_uv: bool, *, driver: str | None
) -> tuple[Abstract, ...]:
    batch, m, n = _require_matrix(A, "linalg.svd")
    k = _min_size(m, n)
    values = A.like((*batch, k), promote.to_real(A.dtype))
    if not compute_uv:
        return _make_empty(A), values, _make_empty(A)
    left, right = (m, n) if full_matrices else (k, k)
    return (
        _make_column_major(A, (*batch, m, left)),
        values,
        _make_column_major(A, (*batch, right, n)),
    )


@shape_rule(aten.linalg_qr.default)
def linalg_qr(A: Abstract, mode: str) -> tuple[Abstract, Abstract]:
    batch, m, n = _require_matrix(A, "linalg.qr")
    k = m if mode == "complete" else _min_size(m, n)
    q = _make_empty(A) if mode == "r" else _make_column_major(A, (*batch, m, k))
    return q, _make_column_major(A, (*batch, k, n))


@shape_rule(aten.geqrf.default)
def geqrf(self: Abstract) -> tuple[Abstract, Abstract]:
    batch, m, n = _require_matrix(self, "geqrf")
    return _make_column_major(self, self.sizes), self.like((*batch, _min_size(m, n)))


@shape_rule(aten.linalg_householder_product.default)
def linalg_householder_product(input: Abstract, tau: Abstract) -> Abstract:
    batch, m, n = _require_matrix(input, "linalg.householder_product")
    if not establish_sizes(tau.sizes[:-1], batch):
        raise ShapeError(f"householder_product: {input} and tau {tau} do not fit")
    if not expect_condition(le(tau.sizes[-1], n)) or not expect_condition(le(n, m)):
        raise ShapeError(f"householder_product: {input} and tau {tau} do not fit")
    return _make_column_major(input, input.sizes)


@shape_rule(aten.ormqr.default)
def ormqr(
    self: Abstract, input2: Abstract, input3: Abstract, left: bool, transpose: bool
) -> Abstract:
    batch, rows, columns = _require_matrix(self, "ormqr")
    side = input3.sizes[-2 if left else -1]
    if not establish_equal(side, rows):
        raise ShapeError(f"ormqr: {self} and {input3} do not fit")
    if not establish_sizes(input2.sizes, (*batch, _min_size(side, columns))):
        raise ShapeError(f"ormqr: tau {input2} does not fit {self}")
    if not establish_sizes(input3.sizes[:-2], batch):
        raise ShapeError(f"ormqr: {self} and {input3} do not fit")
    return _make_column_major(input3, input3.sizes)


@shape_rule(aten.linalg_eig.default)
def linalg_eig(self: Abstract) -> tuple[Abstract, Abstract]:
    batch, n = _require_square(self, "linalg.eig")
    dtype = promote.COMPLEX_OF.get(self.dtype, self.dtype)
    return self.like((*batch, n), dtype), _make_column_major(self, self.sizes, dtype)


@shape_rule(aten._linalg_eigvals.default)
def _linalg_eigvals(self: Abstract) -> Abstract:
    return linalg_eig(self)[0]


@shape_rule(aten._linalg_eigh.default)
def _linalg_eigh(A: Abstract, UPLO: str, compute_v: bool) -> tuple[Abstract, Abstract]:
    batch, n = _require_square(A, "linalg.eigh")
    values = A.like((*batch, n), promote.to_real(A.dtype))
    return values, _make_column_major(A, A.sizes) if compute_v else _make_empty(A)


@shape_rule(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(
    self: Abstract, *, upper: bool, check_errors: bool
) -> tuple[Abstract, Abstract]:
    batch, _ = _require_square(self, "linalg.cholesky")
    return _make_column_major(self, self.sizes), self.like(batch, torch.int32)


@shape_rule(aten.linalg_inv_ex.default)
def linalg_inv_ex(A: Abstract, *, check_errors: bool) -> tuple[Abstract, Abstract]:
    batch, _ = _require_square(A, "linalg.inv")
    return _make_column_major(A, A.sizes), A.like(batch, torch.int32)


@shape_rule(aten.cholesky.default, aten.cholesky_inverse.default)
def cholesky(self: Abstract, upper: bool) -> Abstract:
    _require_square(self, "cholesky")
    return _make_column_major(self, self.sizes)


@shape_rule(aten.cholesky_solve.default)
def cholesky_solve(self: Abstract, input2: Abstract, upper: bool) -> Abstract:
    _require_square(input2, "cholesky_solve")
    return _make_column_major(self, _infer_solution_sizes(input2, self, True))


def _infer_solution_sizes(a: Abstract, b: Abstract, left: bool) -> Sizes:
    """Sizes of X in A X = B, or in X A = B."""
    batch = broadcast(a.sizes[:-2], b.sizes[:-2])
    if not establish_equal(a.sizes[-1], b.sizes[-2 if left else -1]):
        raise ShapeError(f"solving with {a}: the right side {b} does not fit")
    return (*batch, *b.sizes[-2:])


@shape_rule(aten._linalg_det.default)
def _linalg_det(A: Abstract) -> tuple[Abstract, Abstract, Abstract]:
    batch, n = _require_square(A, "linalg.det")
    return A.like(batch), _make_column_major(A, A.sizes), A.like((*batch, n), torch.int32)


@shape_rule(aten._linalg_slogdet.default)
def _linalg_slogdet(A: Abstract) -> tuple[Abstract, Abstract, Abstract, Abstract]:
    sign, lu, pivots = _linalg_det(A)
    return sign, A.like(sign.sizes, promote.to_real(A.dtype)), lu, pivots


@shape_rule(aten._linalg_solve_ex.default)
def _linalg_solve_ex(
    A: Abstract, B: Abstract, *, left: bool, check_errors: bool
) -> tuple[Abstract, ...]:
    """B is a batch of vectors when it has the sizes of A but the last, as numpy once had it."""
    batch, n = _require_square(A, "linalg.solve")
    factors = (
        _make_column_major(A, A.sizes),
        A.like((*batch, n), torch.int32),
        A.like(batch, torch.int32),
    )
    if B.rank == 1 or (B.rank == A.rank - 1 and all(map(guard_equal, B.sizes, A.sizes))):
        # The vectors are a matrix with one column while they are solved for.
        if not establish_equal(n, B.sizes[-1]):
            raise ShapeError(f"linalg.solve: {A} and {B} do not fit")
        sizes = (*broadcast(batch, B.sizes[:-1]), n)
        rank = len(sizes)
        laid_out = permute_strides(sizes, [rank - 1, *range(rank - 1)])
        return Abstract(sizes, A.dtype, A.device, laid_out if rank > 1 else None), *factors
    sizes = _infer_solution_sizes(A, B, left)
    return (_make_column_major(A, sizes) if left else A.like(sizes)), *factors


@shape_rule(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(
    self: Abstract, B: Abstract, *, upper: bool, left: bool, unitriangular: bool
) -> Abstract:
    _require_square(self, "linalg.solve_triangular")
    return _make_column_major(B, _infer_solution_sizes(self, B, left))


@shape_rule(aten.triangular_solve.default)
def triangular_solve(
    self: Abstract, A: Abstract, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[Abstract, Abstract]:
    _require_square(A, "triangular_solve")
    if self.dtype is not A.dtype:
        raise ShapeError(f"Expected b and A to have the same dtype, but found {self} and {A}")
    sizes = _infer_solution_sizes(A, self, True)
    return _make_column_major(self, sizes), _make_column_major(A, (*sizes[:-2], *A.sizes[-2:]))


@shape_rule(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(
    A: Abstract, *, pivot: bool, check_errors: bool
) -> tuple[Abstract, Abstract, Abstract]:
    batch, m, n = _require_matrix(A, "linalg.lu_factor")
    pivots = A.like((*batch, _min_size(m, n)), torch.int32)
    return _make_column_major(A, A.sizes), pivots, A.like(batch, torch.int32)


@shape_rule(aten.linalg_lu.default)
def linalg_lu(A: Abstract, *, pivot: bool) -> tuple[Abstract, Abstract, Abstract]:
    batch, m, n = _require_matrix(A, "linalg.lu")
    k = _min_size(m, n)
    p = A.like((*batch, m, m)) if pivot else _make_empty(A)
    return p, A.like((*batch, m, k)), A.like((*batch, k, n))


@shape_rule(aten.lu_unpack.default)
def lu_unpack(
    LU_data: Abstract, LU_pivots: Abstract, unpack_data: bool, unpack_pivots: bool
) -> tuple[Abstract, ...]:
    p, lower, upper = linalg_lu(LU_data, pivot=True)
    if unpack_pivots:
        if LU_pivots.dtype is not torch.int32:
            raise ShapeError(
                f"torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of "
                f"torch.int32 dtype, got {LU_pivots}"
            )
        # Of fewer, eager reads the memory behind them.
        wanted = (*LU_data.sizes[:-2], lower.sizes[-1])
        if LU_pivots.rank != len(wanted) or any(
            is_false_at_example(eq(have, want))
            for have, want in zip(LU_pivots.sizes, wanted, strict=True)
        ):
            raise ShapeError(f"torch.lu_unpack: pivots {LU_pivots} do not fit {LU_data}")
    if not unpack_data:
        lower = upper = _make_empty(LU_data)
    return (p if unpack_pivots else _make_empty(LU_data)), lower, upper


@shape_rule(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    LU: Abstract, pivots: Abstract, B: Abstract, *, left: bool, adjoint: bool
) -> Abstract:
    _require_square(LU, "linalg.lu_solve")
    sizes = _infer_solution_sizes(LU, B, left)
    return _make_column_major(B, sizes) if left else B.like(sizes)


@shape_rule(aten.linalg_ldl_factor_ex.default)
def linalg_ldl_factor_ex(
    self: Abstract, *, hermitian: bool, check_errors: bool
) -> tuple[Abstract, Abstract, Abstract]:
    batch, n = _require_square(self, "linalg.ldl_factor")
    return (
        _make_column_major(self, self.sizes),
        self.like((*batch, n), torch.int32),
        self.like(batch, torch.int32),
    )


@shape_rule(aten.linalg_ldl_solve.default)
def linalg_ldl_solve(LD: Abstract, pivots: Abstract, B: Abstract, *, hermitian: bool) -> Abstract:
    return _make_column_major(B, _infer_solution_sizes(LD, B, True))


@shape_rule(aten.linalg_matrix_exp.default)
def linalg_matrix_exp(self: Abstract) -> Abstract:
    _require_square(self, "linalg.matrix_exp")
    return self.like()


@shape_rule(aten.linalg_lstsq.default)
def linalg_lstsq(
    self: Abstract, b: Abstract, rcond: float | None, *, driver: str | None
) -> tuple[Abstract, ...]:
    """Residuals, rank and singular values only from the drivers that compute them."""
    batch, m, n = _require_matrix(self, "linalg.lstsq")
    vector = b.rank == self.rank - 1
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise ShapeError(
            "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, "
            f"gelsd, gelss), got {driver}"
        )
    if self.dtype is not b.dtype:
        raise ShapeError(
            f"torch.linalg.lstsq: Expected input and other to have the same dtype, "
            f"but got {self} and {b}"
        )
    if b.rank not in (self.rank, self.rank - 1):
        raise ShapeError(
            "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() "
            f"and (input.dim() - other.dim()) <= 1, got {self} and {b}"
        )
    if not establish_equal(m, b.sizes[-1 if vector else -2]):
        raise ShapeError(f"torch.linalg.lstsq: the rows of input {self} should match other {b}")
    shared = broadcast(batch, b.sizes[: -1 if vector else -2])
    columns: Sizes = () if vector else (b.sizes[-1],)
    # The solution is the head of a buffer with room for the larger of the two sides.
    room = m if guard_condition(le(n, m)) else n
    steps: list[Size] = list(
        permute_strides(
            (*shared, room, *(columns or (1,))), [*range(len(shared)), len(shared) + 1, len(shared)]
        )
    )
    solution = Abstract(
        (*shared, n, *columns), b.dtype, b.device, tuple(steps[: len(shared) + 1 + len(columns)])
    )
    overdetermined = driver != "gelsy" and guard_condition(le(n + 1, m))
    real = promote.to_real(self.dtype)
    residuals = b.like((*shared, *(columns or (1,))) if overdetermined else (0,), real)
    rank = self.like((0,) if driver == "gels" else batch, torch.int64)
    singular = (*batch, _min_size(m, n)) if driver in ("gelsd", "gelss") else (0,)
    return solution, residuals, rank, self.like(singular, real)


@shape_rule(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(self: Abstract, **_: object) -> Abstract:
    batch, m, n = _require_matrix(self, "linalg.pinv")
    return self.like((*batch, n, m))


@shape_rule(aten.cov.default)
def cov(
    self: Abstract, *, correction: int, fweights: Abstract | None, aweights: Abstract | None
) -> Abstract:
    if self.rank > 2:
        raise ShapeError(f"cov(): expected input to have two or fewer dimensions, got {self}")
    if fweights is not None and fweights.dtype.is_floating_point:
        raise ShapeError(f"cov(): expected fweights to have integral dtype, got {fweights}")
    observations = self.sizes[-1:] or (1,)
    for weights in (fweights, aweights):
        if weights is not None:
            if not establish_sizes(weights.sizes, observations):
                raise ShapeError(f"cov(): weights {weights} for the observations of {self}")
    # A single variable gives a number, not a matrix of one.
    one = self.rank < 2 or is_one(self.sizes[0])
    sizes = () if one else (self.sizes[0], self.sizes[0])
    dtype = promote.to_float(self.dtype)
    if aweights is not None:
        dtype = promote.promote_types(dtype, aweights.dtype)
    return self.like(sizes, dtype)


@shape_rule(aten.corrcoef.default)
def corrcoef(self: Abstract) -> Abstract:
    return cov(self, correction=1, fweights=None, aweights=None)
