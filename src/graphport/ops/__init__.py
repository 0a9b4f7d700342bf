"""Facts of each operator: shape rules by family, view inverses, type promotion."""

from graphport.ops import (
    attention,
    conv,
    elementwise,
    factory,
    fft,
    index,
    linalg,
    linalg_decompositions,
    loss,
    norm,
    reduce,
    rnn,
    shape,
)
from graphport.ops.meta import infer_by_meta
from graphport.ops.registry import RULES, OpInfo, get_op_info
from graphport.tensors.abstract import Abstract, Size, Sizes

__all__ = [
    "RULES",
    "Abstract",
    "OpInfo",
    "Size",
    "Sizes",
    "attention",
    "conv",
    "elementwise",
    "factory",
    "fft",
    "get_op_info",
    "index",
    "infer_by_meta",
    "linalg",
    "linalg_decompositions",
    "loss",
    "norm",
    "reduce",
    "rnn",
    "shape",
]  # fmt: skip
