"""Shape rules of elementwise operators, a row each, by type promotion."""

from __future__ import annotations

import torch

from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.promote import Promotion
from graphport.ops.registry import Rule, register_rule, shape_rule
from graphport.ops.sizes import broadcast, require_equal, wrap_dim
from graphport.ops.strides import elementwise_strides
from graphport.tensors.abstract import Abstract
from graphport.types import Argument

aten = torch.ops.aten


def elementwise(operands: int, promotion: Promotion, wraps: bool = True) -> Rule:
    """A rule in which the first `operands` arguments are broadcast and promoted together.

    It `wraps` numbers among them as tensors without dims, unless its kernel takes numbers.
    """

    def rule(*args: object, **_: object) -> Abstract:
        first = args[0]
        if operands == 1 and isinstance(first, Abstract):
            if first._strides is None:
                return Abstract(first.sizes, promotion(first.dtype), first.device)
            return map_elements((first,), promotion(first.dtype))
        own = [a for a in args[:operands] if isinstance(a, Abstract)]
        if not own:  # torch.div(x.shape[0], 2): numbers alone make a 0-d tensor
            dtype = promotion(promote.result_type(args[:operands]))
            return Abstract((), dtype, torch.device("cpu"))
        if len(own) == 1:
            return map_elements(own, promotion(promote.result_type(args[:operands])), not wraps)
        a, b = own[0], own[1]
        if a.dtype is b.dtype and len(own) == 2 and a.sizes is b.sizes:
            return map_elements(own, promotion(a.dtype))
        return map_elements(own, promotion(promote.result_type(args[:operands])))

    rule.elementwise = True  # type: ignore[attr-defined]
    return rule


def map_elements(
    own: list[Abstract] | tuple[Abstract, ...], dtype: torch.dtype, alone: bool = True
) -> Abstract:
    """The result of mapping over tensors: broadcast sizes, layout kept."""
    sizes = own[0].sizes if len(own) == 1 else broadcast(*[a.sizes for a in own])
    device = next((a.device for a in own if a.sizes), own[0].device)
    return Abstract(sizes, dtype, device, elementwise_strides(sizes, own, alone))


def _refuse_bool(dtype: torch.dtype) -> torch.dtype:
    if dtype is torch.bool:
        raise ShapeError(
            "Negation, the `-` operator, on a bool tensor is not supported. To invert a mask, use "
            "the `~` or `logical_not()` operator instead."
        )
    return dtype


register_rule([aten.neg.default], elementwise(1, _refuse_bool))
register_rule(
    [
        aten.sign.default,
        aten.sgn.default,
        aten.positive.default,
        aten.ceil.default,
        aten.floor.default,
        aten.trunc.default,
        aten.frac.default,
        aten.round.default,
        aten.round.decimals,
        aten.bitwise_not.default,
        aten.conj_physical.default,
        aten.relu.default,
        aten.relu6.default,
        aten.gelu.default,
        aten.silu.default,
        aten.mish.default,
        aten.elu.default,
        aten.celu.default,
        aten.selu.default,
        aten.leaky_relu.default,
        aten.hardtanh.default,
        aten.hardswish.default,
        aten.hardsigmoid.default,
        aten.softplus.default,
        aten.hardshrink.default,
        aten.softshrink.default,
        aten.threshold.default,
        aten.zero.default,
        aten.fill.Scalar,
        aten.fill.Tensor,
        aten.nan_to_num.default,
        aten.dropout.default,
        aten.alpha_dropout.default,
        aten.rrelu.default,
        aten.bernoulli.default,
        aten.bernoulli.p,
        aten.uniform.default,
        aten.exponential.default,
        aten.normal_functional.default,
        aten.random.default,
        aten.cauchy.default,
        aten.geometric.default,
        aten.log_normal.default,
        aten.poisson.default,
    ],
    elementwise(1, promote.keep_dtype),
)


@shape_rule(aten.log_sigmoid.default)
def log_sigmoid(self: Abstract) -> Abstract:
    """Contiguous, whatever the strides of its operand."""
    return self.like()


@shape_rule(aten.native_dropout.default)
def native_dropout(input: Abstract, p: float, train: bool | None) -> tuple[Abstract, Abstract]:
    return map_elements((input,), input.dtype), map_elements((input,), torch.bool)


register_rule([aten.abs.default], elementwise(1, promote.to_real))
register_rule(
    [aten.angle.default], elementwise(1, lambda dtype: promote.to_real(promote.to_float(dtype)))
)
register_rule(
    [aten.square.default],
    elementwise(1, lambda dtype: torch.int64 if dtype is torch.bool else dtype),
)
register_rule(
    [
        aten.exp.default,
        aten.exp2.default,
        aten.expm1.default,
        aten.log.default,
        aten.log2.default,
        aten.log10.default,
        aten.log1p.default,
        aten.sin.default,
        aten.cos.default,
        aten.tan.default,
        aten.asin.default,
        aten.acos.default,
        aten.atan.default,
        aten.sinh.default,
        aten.cosh.default,
        aten.tanh.default,
        aten.asinh.default,
        aten.acosh.default,
        aten.atanh.default,
        aten.sqrt.default,
        aten.rsqrt.default,
        aten.sigmoid.default,
        aten.erf.default,
        aten.erfc.default,
        aten.erfinv.default,
        aten.lgamma.default,
        aten.digamma.default,
        aten.reciprocal.default,
        aten.logit.default,
        aten.sinc.default,
        aten.i0.default,
        aten.special_ndtri.default,
        aten.special_log_ndtr.default,
        aten.special_i0e.default,
        aten.special_i1.default,
        aten.special_i1e.default,
        aten.special_entr.default,
        aten.special_erfcx.default,
        aten.deg2rad.default,
        aten.rad2deg.default,
        aten.special_bessel_j0.default,
        aten.special_bessel_j1.default,
        aten.special_bessel_y0.default,
        aten.special_bessel_y1.default,
        aten.special_modified_bessel_i0.default,
        aten.special_modified_bessel_i1.default,
        aten.special_modified_bessel_k0.default,
        aten.special_modified_bessel_k1.default,
        aten.special_scaled_modified_bessel_k0.default,
        aten.special_scaled_modified_bessel_k1.default,
        aten.special_spherical_bessel_j0.default,
        aten.special_airy_ai.default,
    ],
    elementwise(1, promote.to_float),
)
register_rule(
    [
        aten.isnan.default,
        aten.isinf.default,
        aten.isfinite.default,
        aten.signbit.default,
        aten.isposinf.default,
        aten.isneginf.default,
        aten.logical_not.default,
    ],
    elementwise(1, promote.to_bool),
)
register_rule(
    [
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.sub.Scalar,
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.rsub.Tensor,
        aten.rsub.Scalar,
        aten.maximum.default,
        aten.minimum.default,
        aten.fmax.default,
        aten.fmin.default,
        aten.remainder.Tensor,
        aten.remainder.Scalar,
        aten.remainder.Scalar_Tensor,
        aten.fmod.Tensor,
        aten.fmod.Scalar,
        aten.pow.Tensor_Tensor,
        aten.pow.Scalar,
        aten.bitwise_and.Tensor,
        aten.bitwise_and.Scalar,
        aten.bitwise_and.Scalar_Tensor,
        aten.bitwise_or.Tensor,
        aten.bitwise_or.Scalar,
        aten.bitwise_or.Scalar_Tensor,
        aten.bitwise_xor.Tensor,
        aten.bitwise_xor.Scalar,
        aten.bitwise_xor.Scalar_Tensor,
        aten.bitwise_left_shift.Tensor,
        aten.bitwise_right_shift.Tensor,
        aten.floor_divide.default,
        aten.floor_divide.Scalar,
        aten.hypot.default,
        aten.nextafter.default,
        aten.logaddexp.default,
        aten.logaddexp2.default,
        aten.heaviside.default,
        aten.gcd.default,
        aten.lcm.default,
        aten.clamp_min.Tensor,
        aten.clamp_max.Tensor,
        aten.__lshift__.Tensor,
        aten.__lshift__.Scalar,
        aten.__rshift__.Tensor,
        aten.__rshift__.Scalar,
    ],
    elementwise(2, promote.keep_dtype),
)
register_rule(
    [
        aten.div.Tensor,
        aten.div.Scalar,
        aten.atan2.default,
        aten.xlogy.Tensor,
        aten.xlogy.Scalar_Self,
        aten.xlogy.Scalar_Other,
        aten.copysign.Tensor,
        aten.copysign.Scalar,
        aten.special_xlog1py.default,
        aten.special_zeta.default,
        aten.igamma.default,
        aten.igammac.default,
    ],
    elementwise(2, promote.to_float),
)
register_rule(
    [
        overload
        for family in (
            aten.special_chebyshev_polynomial_t,
            aten.special_chebyshev_polynomial_u,
            aten.special_chebyshev_polynomial_v,
            aten.special_chebyshev_polynomial_w,
            aten.special_shifted_chebyshev_polynomial_t,
            aten.special_shifted_chebyshev_polynomial_u,
            aten.special_shifted_chebyshev_polynomial_v,
            aten.special_shifted_chebyshev_polynomial_w,
            aten.special_hermite_polynomial_h,
            aten.special_hermite_polynomial_he,
            aten.special_laguerre_polynomial_l,
            aten.special_legendre_polynomial_p,
        )
        for overload in (family.default, family.n_scalar, family.x_scalar)
    ],
    elementwise(2, promote.to_float),
)
register_rule(
    [
        aten.eq.Tensor,
        aten.eq.Scalar,
        aten.ne.Tensor,
        aten.ne.Scalar,
        aten.lt.Tensor,
        aten.lt.Scalar,
        aten.le.Tensor,
        aten.le.Scalar,
        aten.gt.Tensor,
        aten.gt.Scalar,
        aten.ge.Tensor,
        aten.ge.Scalar,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
    ],
    elementwise(2, promote.to_bool),
)
register_rule([aten.clamp.Tensor, aten.addcmul.default], elementwise(3, promote.keep_dtype))
register_rule([aten.clamp.default], elementwise(3, promote.keep_dtype, wraps=False))
register_rule(
    [aten.pow.Tensor_Scalar, aten.clamp_min.default, aten.clamp_max.default],
    elementwise(2, promote.keep_dtype, wraps=False),
)
register_rule([aten.addcdiv.default], elementwise(3, promote.to_float))
register_rule([aten.lerp.Scalar], elementwise(2, promote.keep_dtype))
register_rule([aten.lerp.Tensor], elementwise(3, promote.keep_dtype))


@shape_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: Abstract, mask: Abstract, value: object) -> Abstract:
    """A contiguous copy, filled."""
    return self.like(broadcast(self.sizes, mask.sizes))


@shape_rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(self: Abstract, other: object, *, rounding_mode: str | None) -> Abstract:
    """Only true division turns integers into floats."""
    promotion = promote.to_float if rounding_mode is None else promote.keep_dtype
    return elementwise(2, promotion)(self, other)


@shape_rule(aten.where.self)
def where(condition: Abstract, self: Abstract, other: Abstract) -> Abstract:
    dtype = self.dtype if self.dtype is other.dtype else promote.result_type((self, other))
    return map_elements((condition, self, other), dtype)


@shape_rule(aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where_scalar(condition: Abstract, self: Argument, other: object) -> Abstract:
    own = [a for a in (condition, self, other) if isinstance(a, Abstract)]
    return map_elements(own, promote.result_type((self, other)), alone=False)


@shape_rule(aten.complex.default)
def complex_(real: Abstract, imag: Abstract) -> Abstract:
    if real.dtype is not imag.dtype:
        raise ShapeError(f"Expected both parts of one dtype, but got {real.dtype} and {imag.dtype}")
    return map_elements((real, imag), promote.COMPLEX_OF[real.dtype])


@shape_rule(aten.polar.default)
def polar(abs: Abstract, angle: Abstract) -> Abstract:
    return complex_(abs, angle)


@shape_rule(aten.normal.Tensor_float)
def normal(mean: Abstract, std: float, *, generator: object) -> Abstract:
    return map_elements((mean,), mean.dtype)


@shape_rule(aten.normal.float_Tensor)
def normal_std(mean: float, std: Abstract, *, generator: object) -> Abstract:
    return map_elements((std,), std.dtype)


@shape_rule(aten.normal.Tensor_Tensor)
def normal_both(mean: Abstract, std: Abstract, *, generator: object) -> Abstract:
    return map_elements((mean, std), mean.dtype)


@shape_rule(aten.glu.default)
def glu(self: Abstract, dim: int) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    require_equal(
        self.sizes[dim] % 2, 0, "glu: halving dimension {0} of {1}, which is not even", dim, self
    )
    half = self.sizes[dim] // 2
    sizes = (*self.sizes[:dim], half, *self.sizes[dim + 1 :])
    return map_elements((Abstract(sizes, self.dtype, self.device, self.strides),), self.dtype)


@shape_rule(aten.prelu.default)
def prelu(self: Abstract, weight: Abstract) -> Abstract:
    count = weight.sizes[0] if weight.rank else 1
    if weight.rank > 1 or (count != 1 and not self.rank):
        raise ShapeError(f"prelu: a weight of {weight} does not fit an input of {self}")
    if type(count) is not int or count != 1:
        channels = self.sizes[1] if self.rank > 1 else 1
        require_equal(count, channels, "prelu: {0} weights for {1} channels", count, channels)
    return map_elements((self,), self.dtype)


@shape_rule(aten._prelu_kernel.default)
def _prelu_kernel(self: Abstract, weight: Abstract) -> Abstract:
    return map_elements((self,), self.dtype)
