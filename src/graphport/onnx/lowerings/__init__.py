"""Lowerings by operator family; importing the package registers them all."""

from graphport.onnx.lower import fusions  # noqa: F401  registers its patterns
from graphport.onnx.lowerings import (  # noqa: F401  register their lowerings
    activation,
    attention,
    compare,
    complex,
    control,
    conv,
    cumulative,
    derivatives,
    elementwise,
    factory,
    fft,
    index,
    interpolate,
    linalg,
    loss,
    norm,
    pool,
    random,
    reduce,
    rnn,
    scatter,
    shape,
    sort,
    special,
    unfold,
)
from graphport.onnx.lowerings.numerics import (  # noqa: F401  register their lowerings
    bessel,
    chebyshev,
    factorizations,
    gamma,
    ldl,
    matrix_exp,
    polynomials,
)
