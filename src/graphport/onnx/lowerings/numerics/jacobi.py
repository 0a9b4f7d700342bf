"""Lowers singular values, eigenvalues of symmetric matrices, and what is made of them.

ONNX has none of them. The columns of a matrix are rotated in pairs until all are orthogonal
(one-sided Jacobi, by Hestenes): a Loop, on whole batches, in float64. In each of its steps every
column is in one pair; then the columns change places so that each meets each other (round robin).
The lengths of the columns are then the singular values, and the rotations the right vectors.

Vectors have another sign than in eager, where they are free to; where values are equal, others of
the same subspace.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.control import emit_loop
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.numerics.factorizations import (
    apply_reflections,
    as_column,
    as_row,
    emit_identity,
    expand_batch,
    eye_mask,
    geqrf,
    read_diagonal,
    solve_overdetermined,
    solve_underdetermined,
    transpose_matrices,
)
from graphport.onnx.lowerings.sort import sort_dim
from graphport.symbolic import eq, ge, ite, le, max_, min_

_ORTHOGONAL = 1e-15
"""The cosine at which two columns are left as they are."""
_MOST_STEPS = 1 << 16


def _zeros(b: Builder, *sizes: Size) -> Value:
    return b.expand(b.scalar(0.0, torch.float64), sizes)


def _take(b: Builder, x: Value, axis: int, start: Size, end: Size) -> Value:
    """A part along one of the last dims."""
    axis += x.rank
    sizes = list(x.sizes)
    sizes[axis] = end - start
    return b.shaped(b.Slice(x, [start], [end], [axis]), sizes)


def _join(b: Builder, x: Value, y: Value, axis: int) -> Value:
    axis += x.rank
    sizes = list(x.sizes)
    sizes[axis] = sizes[axis] + y.sizes[axis]
    return b.shaped(b.Concat(x, y, axis=axis), sizes)


def _orthogonalise(b: Builder, a: Value) -> tuple[Value, Value, Value]:
    """A @ V with orthogonal columns, the longest first; how long they are; V."""
    *batch, m, n = a.sizes
    half = (n + 1) // 2
    count = half * 2
    if type(n) is not int or n % 2:  # with a column of zeros
        a = _join(b, a, _zeros(b, *batch, m, count - n), -1)
    whole = _join(b, a, emit_identity(b, batch, count, torch.float64), -2)
    if type(count) is not int or count > 0:
        whole = _rotate_pairs(b, whole, m, half)
    made, vectors = _take(b, whole, -2, 0, m), _take(b, whole, -2, m, m + count)
    lengths = b.Sqrt(b.ReduceSumSquare(made, [made.rank - 2], keepdims=0))
    added = b.ReduceSum(b.Abs(_take(b, vectors, -2, n, count)), [made.rank - 2], keepdims=0)
    key = b.shaped(b.Where(b.Greater(added, 0.5), -1.0, lengths), (*batch, count))
    order = b.shaped(sort_dim(b, key, key.rank - 1, True, n)[1], (*batch, n))
    lengths = b.GatherElements(lengths, order, axis=key.rank - 1)
    vectors = _take(b, vectors, -2, 0, n)
    return (
        _order_columns(b, made, order),
        b.shaped(lengths, (*batch, n)),
        _order_columns(b, vectors, order),
    )


def _order_columns(b: Builder, x: Value, order: Value) -> Value:
    sizes = (*x.sizes[:-1], order.sizes[-1])
    index = b.expand(as_row(b, order), sizes)
    return b.shaped(b.GatherElements(x, index, axis=x.rank - 1), sizes)


def _rotate_pairs(b: Builder, whole: Value, m: Size, half: Size) -> Value:
    """Columns i and half + i, for all i, until no two are to be rotated; the first m rows count."""
    count = half * 2
    rows, axis = whole.rank - 2, whole.rank - 1
    order, rounds = _next_places(b, half), b.sizes.number(count - 1)

    def step(x: Value, quiet: Value) -> tuple[Value, list[Value]]:
        left, right = _take(b, x, -1, 0, half), _take(b, x, -1, half, count)
        p, q = _take(b, left, -2, 0, m), _take(b, right, -2, 0, m)
        p2, q2 = (b.ReduceSumSquare(v, [rows]) for v in (p, q))
        product = b.ReduceSum(b.Mul(p, q), [rows])
        limit = b.Mul(b.Mul(b.Sqrt(p2), b.Sqrt(q2)), _ORTHOGONAL)
        turned = b.Greater(b.Abs(product), limit)
        z = b.Div(b.Sub(q2, p2), b.Mul(b.Where(turned, product, 1.0), 2.0))
        sign = b.Where(b.Less(z, 0.0), b.scalar(-1.0, torch.float64), 1.0)
        t = b.Div(sign, b.Add(b.Abs(z), b.Sqrt(b.Add(b.Mul(z, z), 1.0))))
        c = b.Div(1.0, b.Sqrt(b.Add(b.Mul(t, t), 1.0)))
        s = b.Where(turned, b.Mul(c, t), 0.0)
        c = b.Where(turned, c, 1.0)
        new = b.Concat(
            b.Sub(b.Mul(c, left), b.Mul(s, right)),
            b.Add(b.Mul(s, left), b.Mul(c, right)),
            axis=axis,
        )
        found = b.ReduceSum(b.cast(turned, torch.int64), list(range(whole.rank)), keepdims=0)
        quiet = b.Where(b.Greater(found, 0), b.scalar(0, torch.int64), b.Add(quiet, 1))
        new = b.shaped(b.Gather(new, order, axis=axis), whole.sizes)
        return b.Less(quiet, rounds), [new, b.shaped(quiet, ())]

    return emit_loop(b, [whole, b.scalar(0, torch.int64)], step, _MOST_STEPS)[0]


def _next_places(b: Builder, half: Size) -> Value:
    """Where each column comes from: all but the first move on by one place, around the table."""
    places = emit_arange(b, half * 2)
    ends = [b.sizes.number(half), b.sizes.number(half * 2 - 1)]
    last = b.sizes.number(ite(eq(half, 1), 1, half - 1))
    above = b.Where(b.Equal(places, 1), ends[0], b.Max(b.Sub(places, 1), 0))
    below = b.Where(b.Equal(places, ends[1]), last, b.Add(places, 1))
    return b.Where(b.Less(places, ends[0]), above, below)


def _complete(b: Builder, columns: Value, count: Size) -> Value:
    """Orthonormal columns, as many as asked for, of which the first have these directions."""
    *batch, m, k = columns.sizes
    a, tau = geqrf(b, columns)
    q = apply_reflections(b, a, tau, emit_identity(b, batch, m, torch.float64, count))
    heads = read_diagonal(b, transpose_matrices(b, b.shaped(a, columns.sizes)))
    sign = b.shaped(b.Where(b.Less(heads, 0.0), b.scalar(-1.0, torch.float64), 1.0), (*batch, k))
    if count is not k:
        ones = b.expand(b.scalar(1.0, torch.float64), (*batch, count - k))
        sign = _join(b, sign, ones, -1)
    return b.Mul(q, as_row(b, sign))


def _nothing(b: Builder, dtype: torch.dtype) -> Value:
    return b.constant(torch.zeros(0, dtype=dtype))


@lower(aten._linalg_svd.default, ignores="driver")
def _linalg_svd(b: Builder, A: Value, full_matrices: bool, compute_uv: bool) -> Any:
    a = b.cast(A, torch.float64)
    wide = b.scope.decide(le(A.sizes[-2] + 1, A.sizes[-1])) is True
    if wide:
        a = transpose_matrices(b, a)
    *_, m, n = a.sizes
    k = n if b.scope.decide(ge(m, n)) is True else min_(m, n)
    made, lengths, vectors = _orthogonalise(b, a)
    values = b.cast(_take(b, lengths, -1, 0, k), A.dtype)
    if not compute_uv:
        return _nothing(b, A.dtype), values, _nothing(b, A.dtype)
    left = _complete(b, _take(b, made, -1, 0, k), m if full_matrices else k)
    right = vectors if full_matrices else _take(b, vectors, -1, 0, k)
    if wide:
        left, right = right, left
    return b.cast(left, A.dtype), values, b.cast(transpose_matrices(b, right), A.dtype)


def _find_eigenvectors(b: Builder, a: Value) -> tuple[Value, Value]:
    """Eigenvalues of symmetric matrices, the smallest first, and vectors.

    What is left of the identity times a norm has no negative eigenvalue: they are singular values.
    """
    *batch, n, _ = a.sizes
    size = b.Sqrt(b.ReduceSumSquare(a, [a.rank - 2, a.rank - 1]))
    shifted = b.shaped(b.Sub(b.Where(eye_mask(b, n), size, 0.0), a), a.sizes)
    vectors = _orthogonalise(b, shifted)[2]
    values = b.ReduceSum(b.Mul(vectors, emit_matmul(b, a, vectors)), [a.rank - 2], keepdims=0)
    return b.shaped(values, (*batch, n)), vectors


def _mirror(b: Builder, a: Value, upper: bool) -> Value:
    """The symmetric matrix of which one triangle is given."""
    one = b.shaped(b.Trilu(a, upper=int(upper)), a.sizes)
    return b.Where(eye_mask(b, a.sizes[-1]), one, b.Add(one, transpose_matrices(b, one)))


@lower(aten._linalg_eigh.default)
def _linalg_eigh(b: Builder, A: Value, UPLO: str, compute_v: bool) -> Any:
    a = _mirror(b, b.cast(A, torch.float64), UPLO.upper() == "U")
    values, vectors = _find_eigenvectors(b, b.shaped(a, A.sizes))
    made = b.cast(vectors, A.dtype) if compute_v else _nothing(b, A.dtype)
    return b.cast(values, A.dtype), made


# Inverses of what has no inverse


def _tolerance(
    b: Builder, like: Value, largest: Value, atol: Value | None, rtol: Value | None
) -> Value:
    """Below which a value is taken for 0; `largest` is the largest of all."""
    m, n = like.sizes[-2:]
    given = [None if t is None else as_column(b, b.cast(t, torch.float64)) for t in (atol, rtol)]
    if given[1] is None:
        eps = torch.finfo(like.dtype).eps
        given[1] = b.Mul(b.scalar(max_(m, n), torch.float64), eps)
        if given[0] is not None:
            given[1] = b.Where(b.Greater(given[0], 0.0), 0.0, given[1])
    relative = b.Mul(given[1], largest)
    return relative if given[0] is None else b.Max(given[0], relative)


def _first(b: Builder, values: Value) -> Value:
    """The largest of values in order; of none, 0."""
    return b.ReduceSum(_take_first(b, values), [values.rank - 1])


def _take_first(b: Builder, values: Value) -> Value:
    return b.Slice(values, [0], [1], [values.rank - 1])


def _invert_kept(b: Builder, made: Value, lengths: Value, vectors: Value, kept: Value) -> Value:
    """V / s**2 @ (A V).T, of the values that are kept."""
    squares = b.Mul(lengths, lengths)
    factor = b.Where(kept, b.Div(1.0, b.Where(kept, squares, 1.0)), 0.0)
    scaled = b.shaped(b.Mul(vectors, as_row(b, factor)), vectors.sizes)
    return emit_matmul(b, scaled, transpose_matrices(b, made))


@lower(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(
    b: Builder, self: Value, atol: Value | None, rtol: Value | None, hermitian: bool
) -> Value:
    a = b.cast(self, torch.float64)
    if not hermitian:
        made, lengths, vectors = _orthogonalise(b, a)
        limit = _tolerance(b, self, _first(b, lengths), atol, rtol)
        kept = b.Greater(lengths, limit)
        return b.cast(_invert_kept(b, made, lengths, vectors, kept), self.dtype)
    values, vectors = _find_eigenvectors(b, b.shaped(_mirror(b, a, False), self.sizes))
    sizes = b.Abs(values)
    largest = _first(b, b.shaped(sort_dim(b, sizes, sizes.rank - 1, True)[0], values.sizes))
    kept = b.Greater(sizes, _tolerance(b, self, largest, atol, rtol))
    factor = b.Where(kept, b.Div(1.0, b.Where(kept, values, 1.0)), 0.0)
    scaled = b.shaped(b.Mul(vectors, as_row(b, factor)), vectors.sizes)
    return b.cast(emit_matmul(b, scaled, transpose_matrices(b, vectors)), self.dtype)


def _solve_by_rank(
    b: Builder, a: Value, right: Value, rcond: float | None
) -> tuple[Value, Value, Value]:
    """The smallest of the best solutions, the rank, and the singular values."""
    made, lengths, vectors = _orthogonalise(b, b.cast(a, torch.float64))
    if rcond is None:
        limit = _tolerance(b, a, _first(b, lengths), None, None)
    else:
        limit = b.Mul(_first(b, lengths), rcond)
    kept = b.Greater(lengths, limit)
    m, n = a.sizes[-2:]
    inverse = b.shaped(_invert_kept(b, made, lengths, vectors, kept), (*a.sizes[:-2], n, m))
    wide = b.cast(right, torch.float64)
    x = b.cast(emit_matmul(b, expand_batch(b, inverse, right.sizes[:-2]), wide), a.dtype)
    rank = b.ReduceSum(b.cast(kept, torch.int64), [lengths.rank - 1], keepdims=0)
    k = n if b.scope.decide(ge(m, n)) is True else min_(m, n)
    return x, rank, b.cast(_take(b, lengths, -1, 0, k), a.dtype)


@lower(aten.linalg_lstsq.default)
def linalg_lstsq(
    build: Builder, self: Value, b: Value, rcond: float | None, driver: str | None
) -> tuple[Value, ...]:
    """One driver takes full rank for granted, the others find the rank."""
    solution, residuals, _, singular = build.result
    vector = b.rank == self.rank - 1
    batch = solution.sizes[: -1 if vector else -2]
    right = expand_batch(build, as_column(build, b) if vector else b, batch)
    nothing = _nothing(build, self.dtype)
    if driver != "gels":
        x, rank, values = _solve_by_rank(build, self, right, rcond)
        x = build.shaped(x, (*batch, self.sizes[-1], right.sizes[-1]))
        left = build.Sub(emit_matmul(build, expand_batch(build, self, batch), x), right)
        rest = build.ReduceSumSquare(left, [left.rank - 2], keepdims=0)
        values = values if singular.sizes != (0,) else nothing
    else:
        tall = build.scope.decide(ge(*self.sizes[-2:]))
        assert tall is not None, "the sizes of the results say which side is longer"
        solve = solve_overdetermined if tall else solve_underdetermined
        x, rest = solve(build, expand_batch(build, self, batch), right)
        rank, values = _nothing(build, torch.int64), nothing
    x = build.squeeze(x, -1) if vector else x
    return x, nothing if residuals.sizes == (0,) else rest, rank, values
