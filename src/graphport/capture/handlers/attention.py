"""`flex_attention`, by its definition: scores, what its functions make of them, softmax, values.

Its functions are mapped over all positions by torch.vmap, so a mask or bias at open lengths is
computed by operators of the graph. Which blocks of a BlockMask are empty makes no difference.
"""

from __future__ import annotations

import torch

from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.tracer import Tracer
from graphport.compat.operators import higher_order
from graphport.tensors.abstract import get_example_size
from graphport.types import Args, Argument, Function, Kwargs


@register_override(higher_order.flex_attention)
def flex_attention(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    from graphport.compat.torch import math_attention  # imported with the user's own functions

    with tracer.function_mode:
        out, *statistics = math_attention(*args, **kwargs)
        return (_lay_out(tracer, out, args[0]), *statistics)


def _lay_out(tracer: Tracer, out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The result with its dims in memory in the order of the query's, features last."""
    strides = tracer.value(query).abstract.strides
    order = sorted(range(3), key=lambda d: -get_example_size(strides[d]))
    if order == [0, 1, 2]:
        return out
    back = [order.index(d) for d in range(3)]
    return out.permute(*order, 3).contiguous().permute(*back, 3)
