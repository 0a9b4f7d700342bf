"""Shape rules of normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.compat.schemas import GROUPS_HAVE_ELEMENTS
from graphport.errors import ShapeError
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import establish, establish_equal, establish_sizes, numel, require_nonempty
from graphport.symbolic import ge
from graphport.tensors.abstract import (
    Abstract,
    Size,
    channels_last_strides,
    get_example_size,
    matches,
    preserve_strides,
)


def _check_normalized_shape(
    input: Abstract, normalized_shape: Sequence[Size], what: str, *affine: Abstract | None
) -> None:
    shape = tuple(normalized_shape)
    if not shape:
        raise ShapeError(f"{what}: normalized_shape must have at least one dim")
    if not establish_sizes(input.sizes[-len(shape) :], shape):
        raise ShapeError(
            f"{what}: normalized_shape {normalized_shape} does not fit the input {input}"
        )
    for a in affine:
        if a is not None:
            if not establish_sizes(a.sizes, shape):
                raise ShapeError(
                    f"{what}: normalized_shape {normalized_shape} does not fit a weight of {a}"
                )


def _is_nothing(input: Abstract) -> bool:
    """Eager hands nothing on as it is, before it looks at anything else."""
    return any(get_example_size(s) == 0 for s in input.sizes)


_HALVES = (torch.float16, torch.bfloat16)


def _check_dtypes(input: Abstract, what: str, *parameters: Abstract | None) -> None:
    """Nothing is promoted; only halves may have parameters of float32."""
    for a in parameters:
        if a is None or a.dtype is input.dtype or _is_nothing(input):
            continue
        if a.dtype is not torch.float32 or input.dtype not in _HALVES:
            raise ShapeError(
                f"{what}: mixed dtype: all inputs must share same datatype, got {input} and {a}"
            )


def check_statistics(input: Abstract, mean: object, var: object, training: bool) -> None:
    """Both of the running statistics or none of them, and both where they are used."""
    if _is_nothing(input):
        return
    if training and (mean is None) is not (var is None):
        raise ShapeError("running_mean and running_var must either both be None or neither be None")
    for name, a in (("mean", mean), ("var", var)):
        if a is None and not training:
            raise ShapeError(f"running_{name} must be defined in evaluation mode")


def _check_channels(input: Abstract, what: str, *by_channel: Abstract | None) -> None:
    _check_dtypes(input, what, *by_channel)
    for a in by_channel:
        if a is not None:
            if not establish_sizes(a.sizes, input.sizes[1:2]):
                raise ShapeError(f"{what}: {a} does not fit the channels of {input}")


def _lay_out(input: Abstract) -> Abstract:
    """Channels-last stays; any other layout becomes contiguous."""
    last = (
        channels_last_strides(input.sizes)
        if input.rank in (4, 5) and not input.is_contiguous
        else None
    )
    if last is not None and not matches(input.sizes, input.strides, last):
        last = None
    return Abstract(input.sizes, input.dtype, input.device, last)


def require_elements(input: Abstract) -> None:
    """Statistics of nothing are refused by the kernels that compute them; `batch_norm` has none."""
    if not establish(ge(numel(input.sizes), 1)):
        raise ShapeError(f"batch_norm: {input} has no elements")


@shape_rule(aten.layer_norm.default)
def layer_norm(
    input: Abstract,
    normalized_shape: Sequence[Size],
    weight: Abstract | None,
    bias: Abstract | None,
    eps: float,
    cudnn_enable: bool,
) -> Abstract:
    _check_normalized_shape(input, normalized_shape, "layer_norm", weight, bias)
    _check_dtypes(input, "layer_norm", weight, bias)
    return input.like()


@shape_rule(aten.rms_norm.default)
def rms_norm(
    input: Abstract, normalized_shape: Sequence[Size], weight: Abstract | None, eps: float | None
) -> Abstract:
    _check_normalized_shape(input, normalized_shape, "rms_norm", weight)
    return input.like()


@shape_rule(aten.native_layer_norm.default)
def native_layer_norm(
    input: Abstract,
    normalized_shape: Sequence[Size],
    weight: Abstract | None,
    bias: Abstract | None,
    eps: float,
) -> tuple[Abstract, Abstract, Abstract]:
    _check_normalized_shape(input, normalized_shape, "layer_norm", weight, bias)
    _check_dtypes(input, "layer_norm", weight, bias)
    outer = input.rank - len(normalized_shape)
    stats = input.like((*input.sizes[:outer], *(1 for _ in normalized_shape)))
    return input.like(), stats, stats


def _check_groups(count: int) -> None:
    if type(count) is int and count < 1:
        raise ShapeError(f"Expected num groups to be greater than 0, got {count}")


@shape_rule(aten.group_norm.default)
def group_norm(
    input: Abstract,
    num_groups: int,
    weight: Abstract | None,
    bias: Abstract | None,
    eps: float,
    cudnn_enabled: bool,
) -> Abstract:
    _check_groups(num_groups)
    if not establish_equal(input.sizes[1] % num_groups, 0):
        raise ShapeError(
            f"group_norm: {input.sizes[1]} channels of {input} do not divide into {num_groups} "
            "groups"
        )
    _check_channels(input, "group_norm", weight, bias)
    if GROUPS_HAVE_ELEMENTS:
        require_nonempty("group_norm", input, input.sizes[1:])
    return _lay_out(input)


@shape_rule(aten.native_group_norm.default)
def native_group_norm(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[Abstract, Abstract, Abstract]:
    if not establish_equal(numel(input.sizes), N * C * HxW):
        raise ShapeError(f"native_group_norm: {input} does not have {N}*{C}*{HxW} elements")
    _check_groups(group)
    if not establish_equal(C % group, 0):
        raise ShapeError(f"native_group_norm: {C} channels do not divide into {group} groups")
    _check_dtypes(input, "native_group_norm", weight, bias)
    for a in (weight, bias):
        if a is not None:
            if not establish_sizes(a.sizes, (C,)):
                raise ShapeError(f"native_group_norm: {a} does not fit {C} channels")
    if GROUPS_HAVE_ELEMENTS:
        require_nonempty("native_group_norm", input, (C, HxW))
    stats = input.like((N, group), (input if weight is None else weight).dtype)
    return _lay_out(input), stats, stats


@shape_rule(aten.batch_norm.default)
def batch_norm(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    running_mean: Abstract | None,
    running_var: Abstract | None,
    training: bool,
    *_: object,
) -> Abstract:
    check_statistics(input, running_mean, running_var, training)
    if input.rank < 2:  # eager hands nothing on as it is, before it asks for channels
        if not establish_equal(numel(input.sizes), 0):
            raise ShapeError(f"batch_norm: the input needs a dimension of channels, got {input}")
        return _lay_out(input)
    _check_channels(input, "batch_norm", weight, bias, running_mean, running_var)
    return _lay_out(input)


@shape_rule(aten.native_batch_norm.default)
def native_batch_norm(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    running_mean: Abstract | None,
    running_var: Abstract | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Abstract, Abstract, Abstract]:
    known = next((a for a in (running_mean, weight) if a is not None), input)
    if training:
        require_elements(input)
    stats = known.like(input.sizes[1:2] if training else (0,))
    return batch_norm(input, weight, bias, running_mean, running_var, training), stats, stats


@shape_rule(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    running_mean: Abstract,
    running_var: Abstract,
    momentum: float,
    eps: float,
) -> tuple[Abstract, ...]:
    stats = running_mean.like()
    reserve = input.like((0,), torch.uint8)
    out = batch_norm(input, weight, bias, running_mean, running_var, True)
    return out, stats, stats, reserve, running_mean.like(), running_var.like()


@shape_rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    running_mean: Abstract,
    running_var: Abstract,
    *_: object,
) -> tuple[Abstract, Abstract, Abstract]:
    empty = input.like((0,))
    return batch_norm(input, weight, bias, running_mean, running_var, False), empty, empty


@shape_rule(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    running_mean: Abstract,
    running_var: Abstract,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Abstract, ...]:
    if input.rank < 2:
        raise ShapeError(f"batch_norm: the input needs a dimension of channels, got {input}")
    out = batch_norm(input, weight, bias, running_mean, running_var, training)
    stats = running_mean.like(running_mean.sizes if training else (0,))
    return out, stats, stats, running_mean.like(), running_var.like()


@shape_rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Abstract, Abstract, Abstract]:
    stats = input.like((input.sizes[1],) if training else (0,))
    return batch_norm(input, weight, bias, None, None, training), stats, stats


@shape_rule(aten._weight_norm_interface.default)
def weight_norm(v: Abstract, g: Abstract, dim: int) -> tuple[Abstract, Abstract]:
    return Abstract(v.sizes, v.dtype, v.device, preserve_strides(v)), g.like()


@shape_rule(aten.instance_norm.default)
def instance_norm(
    input: Abstract,
    weight: Abstract | None,
    bias: Abstract | None,
    running_mean: Abstract | None,
    running_var: Abstract | None,
    use_input_stats: bool,
    *_: object,
) -> Abstract:
    check_statistics(input, running_mean, running_var, use_input_stats)
    _check_channels(input, "instance_norm", weight, bias, running_mean, running_var)
    return input.like()


# A batch norm by fixed statistics multiplies each channel and adds to it. So does a convolution or
# linear layer before it, whose weight and bias can do both. In float64, and rounded once.


def fold_batch_norm(
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a layer with this bias is multiplied by, by channel, and its bias from then on."""
    factor = (var.double() + eps).rsqrt()
    if scale is not None:
        factor = factor * scale.double()
    # Rounded as eager rounds it, which adds the bias before it subtracts the mean.
    wide = torch.promote_types(mean.dtype, torch.float32)
    offset = (-mean if bias is None else bias.to(wide) - mean.to(wide)).double() * factor
    return factor, offset if shift is None else offset + shift.double()


def scale_channels(
    weight: torch.Tensor, factor: torch.Tensor, transposed_groups: int | None = None
) -> torch.Tensor:
    """The weight of a layer whose results are multiplied by a factor by channel.

    That of a transposed convolution is (inputs, outputs of one group, ...): the inputs of a group
    lead to its outputs only.
    """
    w, ones = weight.to(factor.dtype), [1] * (weight.dim() - 2)
    if transposed_groups is None:
        return w * factor.reshape(-1, 1, *ones)
    grouped = w.reshape(transposed_groups, -1, *w.shape[1:])
    return (grouped * factor.reshape(transposed_groups, 1, -1, *ones)).reshape_as(w)
