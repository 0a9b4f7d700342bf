"""Facts of each operator: shape rules by family, effects, type promotion."""

from graphport.ops import (  # noqa: F401  register their rules
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
    quantization,
    reduce,
    rnn,
    shape,
    vision,
)
from graphport.ops.meta import infer_by_meta
from graphport.ops.registry import RULES, OpInfo, get_op_info
from graphport.tensors.abstract import Abstract, Size, Sizes

__all__ = ["RULES", "Abstract", "OpInfo", "Size", "Sizes", "get_op_info", "infer_by_meta"]
