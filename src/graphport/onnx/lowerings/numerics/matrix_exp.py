"""Lowers the matrix exponential, as torch computes it.

A matrix is halved until it is small, a Taylor polynomial of degree 18 gives its exponential, and
that is squared as often as the matrix was halved. Torch has polynomials of lower degrees for what
is smaller still: they save products, and give the same up to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.control import emit_counted_loop
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.numerics.factorizations import eye_mask
from graphport.onnx.lowerings.reduce import widen_input
from graphport.symbolic import ge, prod

_LARGEST_NORM = {torch.float32: 3.010066362817634, torch.float64: 1.090863719290036}
"""Up to what norm the polynomial is exact to the last bit."""

# Of I, A, A^2, A^3 and A^6, in five matrices: Bader, Blanes and Casas, "Computing the matrix
# exponential with an optimized Taylor polynomial approximation" (2019). With X = B0 B4 + B3 the
# polynomial is B1 + (B2 + X) X.
_TAYLOR_COEFFICIENTS = (
    (
        0.0,
        -1.00365581030144618291e-01,
        -8.02924648241156932449e-03,
        -8.92138498045729985177e-04,
        0.0,
    ),
    (
        0.0,
        3.97849749499645077844e-01,
        1.36783778460411720168e00,
        4.98289622525382669416e-01,
        -6.37898194594723280150e-04,
    ),
    (
        -1.09676396052962061844e01,
        1.68015813878906206114e00,
        5.71779846478865511061e-02,
        -6.98210122488052056106e-03,
        3.34975017086070470649e-05,
    ),
    (
        -9.04316832390810593223e-02,
        -6.76404519071381882256e-02,
        6.75961301770459654925e-02,
        2.95552570429315521194e-02,
        -1.39180257516060693404e-05,
    ),
    (
        0.0,
        0.0,
        -9.23364619367118555360e-02,
        -1.69364939002081722752e-02,
        -1.40086798182036094347e-05,
    ),
)


@lower(aten.linalg_matrix_exp.default)
def linalg_matrix_exp(b: Builder, self: Value) -> Value:
    x = widen_input(b, self)
    sizes = b.result.sizes
    if sizes[-1] == 0:
        return self
    columns = b.ReduceSum(b.Abs(x), [x.rank - 2])
    norm = b.shaped(_max_or_zero(b, columns, x.rank - 1, sizes[-1]), (*sizes[:-2], 1, 1))
    halved = b.Ceil(b.Div(b.Log(b.Div(norm, _LARGEST_NORM[x.dtype])), math.log(2)))
    # What is infinite stays so.
    halved = b.Where(b.Less(norm, float("inf")), b.Max(halved, 0.0), 0.0)
    out = _taylor_polynomial(b, b.Div(x, b.Pow(b.scalar(2.0, x.dtype), halved)))
    times = b.cast(halved, torch.int64)
    count: Any = prod(sizes[:-2])
    most = b.squeeze(_max_or_zero(b, b.reshape(times, (count,)), 0, count), 0)

    def step(i: Value, y: Value) -> list[Value]:
        return [b.Where(b.Less(i, times), emit_matmul(b, y, y), y)]

    return emit_counted_loop(b, most, [b.shaped(out, sizes)], step)[0]


def _max_or_zero(b: Builder, x: Value, axis: int, size: Size) -> Value:
    """The largest of numbers that are not negative: 0 if there are none."""
    if b.scope.decide(ge(size, 1)) is not True:
        ends = [0] * x.rank
        ends[axis] = 1
        x = b.Pad(x, [*[0] * x.rank, *ends])
    return b.ReduceMax(x, [axis])


def _taylor_polynomial(b: Builder, a: Value) -> Value:
    n = (a.shape or b.result.sizes)[-1]
    square = emit_matmul(b, a, a)
    cube = emit_matmul(b, a, square)
    sixth = emit_matmul(b, cube, cube)
    one = b.cast(eye_mask(b, n), a.dtype)
    powers = (one, a, square, cube, sixth)
    parts = []
    for factors in _TAYLOR_COEFFICIENTS:
        terms = [b.Mul(p, f) for p, f in zip(powers, factors, strict=True) if f]
        parts.append(b.Sum(*terms))
    middle = b.Add(emit_matmul(b, parts[0], parts[4]), parts[3])
    return b.Add(parts[1], emit_matmul(b, b.Add(parts[2], middle), middle))
