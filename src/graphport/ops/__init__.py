"""What is known of each operator: shape rules by family, view inverses, type promotion."""

from graphport.ops import (
    attention,
    conv,
    elementwise,
    factor,
    factory,
    fft,
    index,
    linalg,
    loss,
    norm,
    reduce,
    rnn,
    shape,
)
from graphport.ops.abstract import Abstract, Size, Sizes
from graphport.ops.meta import meta_rule
from graphport.ops.registry import RULES, OpInfo, info_of

__all__ = [
    "RULES", "Abstract", "OpInfo", "Size", "Sizes", "attention", "conv", "elementwise", "factor",
    "factory", "fft", "index", "info_of", "linalg", "loss", "meta_rule", "norm", "reduce",
    "rnn", "shape",
]  # fmt: skip
