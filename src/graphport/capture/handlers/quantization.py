"""Handler of the fake quantisation that observes its operand, for quantisation-aware training.

Which of both it does is in buffers, whose values are known. To observe is left to training: it
writes other parameters with each call. An operator that only quantises computes them anew from what
was observed, which is what they are already.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport import source
from graphport.capture.handlers.data_dependent import assume_example_number
from graphport.capture.trace.tracer import Tracer, register_handler
from graphport.compat.operators import aten
from graphport.compat.torch import disable_current_modes
from graphport.errors import DataDependentError, UnsupportedError
from graphport.ops import OpInfo
from graphport.types import Args, Argument, Kwargs

_DISABLE = (
    "model.apply(disable_observer), that of torch.ao.quantization or of torchao.quantization.pt2e"
)


@register_handler(aten.fused_moving_avg_obs_fake_quant.default)
def fused_fake_quantize(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    given: dict[str, Any] = {a.name: a.default_value for a in info.op._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    if _is_on(tracer, given["observer_on"]):
        raise UnsupportedError(
            f"{info.op} observes its operand: it changes its own scale with each call",
            where=source.locate_user_line(),
            fix=_DISABLE,
        )
    x, scale, zero = given["self"], given["scale"], given["zero_point"]
    limits = given["quant_min"], given["quant_max"]
    if not _is_on(tracer, given["fake_quant_on"]):
        return tracer.call(aten.clone.default, x)
    _require_settled(tracer, given)
    if given["per_row_fake_quant"]:
        op = aten.fake_quantize_per_channel_affine.default
        return tracer.call(op, x, scale, zero, given["ch_axis"], *limits)
    op = aten.fake_quantize_per_tensor_affine.tensor_qparams
    return tracer.call(op, x, scale, zero, *limits)


def _is_on(tracer: Tracer, switch: torch.Tensor) -> bool:
    value = tracer.value(switch)
    if value.literal is not None:
        return bool(value.literal)
    error = DataDependentError(
        "whether a fake quantisation is on, and whether it observes its operand, is not known",
        where=source.locate_user_line(),
        fix="keep both in buffers that nothing writes to",
    )
    return bool(assume_example_number(tracer, error, switch, bool))


def _require_settled(tracer: Tracer, given: dict[str, Any]) -> None:
    """Refuse parameters that are not those that the operator would compute."""
    state = {name: _find_value(tracer, given[name]) for name in _STATE}
    where = source.locate_user_line()
    if any(t is None for t in state.values()):
        raise UnsupportedError(
            "a fused fake quantisation whose parameters are no buffers", where=where, fix=_DISABLE
        )
    new: dict[str, Any] = {name: t.detach().clone() for name, t in state.items()}
    off, on = torch.tensor([0]), torch.tensor([1])
    x = torch.zeros([len(new["scale"])] * (given["ch_axis"] + 2))
    rest = (given[name] for name in _REST)
    with disable_current_modes():
        aten._fused_moving_avg_obs_fq_helper.default(x, off, on, *new.values(), *rest)
    if not all(torch.equal(new[name], t) for name, t in state.items()):
        raise UnsupportedError(
            "the scale and zero point of a fused fake quantisation are not those of what it has "
            "observed: it changes them with its next call",
            where=where,
            fix="call the model once before it is exported",
        )


_STATE = ("running_min", "running_max", "scale", "zero_point")
_REST = """
    averaging_const quant_min quant_max ch_axis per_row_fake_quant symmetric_quant
""".split()


def _find_value(tracer: Tracer, t: torch.Tensor) -> Any:
    value = tracer.value(t)
    if value.literal is not None or tracer.state_values is None:
        return value.literal
    return tracer.state_values.run.find_value(tracer.read(value))
