"""Shape rules of elementwise operators, a row each, by type promotion."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.promote import Promotion
from graphport.ops.registry import Rule, overloads, packets, register_rule, shape_rule
from graphport.ops.sizes import broadcast, establish_equal, wrap_dim
from graphport.tensors.abstract import Abstract, elementwise_strides, preserve_strides
from graphport.types import Argument


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
        common = promote.result_type(args[:operands])
        dtype = promotion(common)
        return map_elements(cast_layouts(own, common if dtype is torch.bool else dtype), dtype)

    rule.elementwise = True  # type: ignore[attr-defined]
    return rule


def cast_layouts(own: Sequence[Abstract], dtype: torch.dtype) -> list[Abstract]:
    """Operands as they are after a cast to one dtype, which gives each element its own memory."""
    return [
        a
        if a.dtype is dtype or a._strides is None or a.device.type != "cpu"
        else Abstract(a.sizes, dtype, a.device, preserve_strides(a))
        for a in own
    ]


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
    overloads("""
        sign sgn ceil floor trunc frac round.default,decimals bitwise_not
        relu relu6 gelu silu mish elu celu selu leaky_relu hardtanh hardswish hardsigmoid softplus
        hardshrink softshrink threshold zero fill.Scalar,Tensor nan_to_num dropout alpha_dropout
        uniform exponential normal_functional random cauchy geometric log_normal
    """),
    elementwise(1, promote.keep_dtype),
)


@shape_rule(aten.positive.default)
def positive(self: Abstract) -> Abstract:
    """The operand itself."""
    return self


@shape_rule(aten.conj_physical.default)
def conj_physical(self: Abstract) -> Abstract:
    """Of real numbers the operand itself."""
    return map_elements((self,), self.dtype) if self.dtype.is_complex else self


@shape_rule(aten.log_sigmoid.default)
def log_sigmoid(self: Abstract) -> Abstract:
    """Contiguous, whatever the strides of its operand."""
    return self.like()


@shape_rule(aten.poisson.default)
def poisson(self: Abstract, generator: object) -> Abstract:
    return self.like()


@shape_rule(aten.bernoulli.default)
def bernoulli(self: Abstract, *, generator: object) -> Abstract:
    return self.like()


@shape_rule(aten.bernoulli.p)
def bernoulli_p(self: Abstract, p: float, *, generator: object) -> Abstract:
    return self.like()


@shape_rule(aten.rrelu.default)
def rrelu(
    self: Abstract, lower: float, upper: float, training: bool, generator: object
) -> Abstract:
    """Contiguous, whatever the strides of its operand."""
    return self.like()


@shape_rule(aten.native_dropout.default)
def native_dropout(input: Abstract, p: float, train: bool | None) -> tuple[Abstract, Abstract]:
    return map_elements((input,), input.dtype), map_elements((input,), torch.bool)


register_rule([aten.abs.default], elementwise(1, promote.to_real))


@shape_rule(aten.angle.default)
def angle(self: Abstract) -> Abstract:
    """Of complex numbers contiguous, whatever the strides of its operand."""
    dtype = promote.to_real(promote.to_float(self.dtype))
    return self.like(dtype=dtype) if self.dtype.is_complex else map_elements((self,), dtype)


register_rule(
    [aten.square.default],
    elementwise(1, lambda dtype: torch.int64 if dtype is torch.bool else dtype),
)
register_rule(
    overloads("""
        exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh
        atanh sqrt rsqrt sigmoid erf erfc erfinv lgamma digamma reciprocal logit sinc i0
        special_ndtri special_log_ndtr special_i0e special_i1 special_i1e special_entr special_erfcx
        deg2rad rad2deg special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_airy_ai
    """),
    elementwise(1, promote.to_float),
)
register_rule(
    overloads("isnan isinf isfinite signbit isposinf isneginf logical_not"),
    elementwise(1, promote.to_bool),
)
register_rule(
    overloads("""
        add.Tensor,Scalar sub.Tensor,Scalar mul.Tensor,Scalar rsub.Scalar maximum minimum
        fmax fmin remainder.Tensor,Scalar,Scalar_Tensor fmod.Tensor,Scalar pow.Tensor_Tensor
        bitwise_and.Tensor,Scalar,Scalar_Tensor bitwise_or.Tensor,Scalar,Scalar_Tensor
        bitwise_xor.Tensor,Scalar,Scalar_Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor
        floor_divide.default,Scalar hypot nextafter logaddexp logaddexp2 heaviside gcd lcm
        clamp_min.Tensor clamp_max.Tensor __lshift__.Tensor,Scalar __rshift__.Tensor,Scalar
    """),
    elementwise(2, promote.keep_dtype),
)
register_rule(
    overloads("""
        div.Tensor,Scalar atan2 xlogy.Tensor,Scalar_Self,Scalar_Other copysign.Tensor,Scalar
        special_xlog1py special_zeta igamma igammac
    """),
    elementwise(2, promote.to_float),
)
register_rule(
    (
        overload
        for family in packets("""
            special_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_t
            special_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_u
            special_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_v
            special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_w
            special_hermite_polynomial_h special_hermite_polynomial_he
            special_laguerre_polynomial_l special_legendre_polynomial_p
        """)
        for overload in (family.default, family.n_scalar, family.x_scalar)
    ),
    elementwise(2, promote.to_float),
)
register_rule(
    overloads("""
        eq.Tensor,Scalar ne.Tensor,Scalar lt.Tensor,Scalar le.Tensor,Scalar gt.Tensor,Scalar
        ge.Tensor,Scalar logical_and logical_or logical_xor
    """),
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


@shape_rule(aten.rsub.Tensor)
def rsub(self: Abstract, other: Abstract, *, alpha: object) -> Abstract:
    """other - self: the layout of the first operand counts first."""
    return elementwise(2, promote.keep_dtype)(other, self)


@shape_rule(aten.pow.Scalar)
def pow_scalar(self: Argument, exponent: Abstract) -> Abstract:
    """Contiguous, whatever the strides of the exponent."""
    return elementwise(2, promote.keep_dtype)(self, exponent).like()


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
    return map_elements([condition, *cast_layouts((self, other), dtype)], dtype)


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
    return map_elements((mean,), mean.dtype).like()


@shape_rule(aten.normal.float_Tensor)
def normal_std(mean: float, std: Abstract, *, generator: object) -> Abstract:
    return map_elements((std,), std.dtype).like()


@shape_rule(aten.normal.Tensor_Tensor)
def normal_both(mean: Abstract, std: Abstract, *, generator: object) -> Abstract:
    return map_elements((mean, std), mean.dtype).like()


@shape_rule(aten.glu.default)
def glu(self: Abstract, dim: int) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    if not establish_equal(self.sizes[dim] % 2, 0):
        raise ShapeError(f"glu: halving dimension {dim} of {self}, which is not even")
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
        if not establish_equal(count, channels):
            raise ShapeError(f"prelu: {count} weights for {channels} channels")
    return map_elements((self,), self.dtype)


@shape_rule(aten._prelu_kernel.default)
def _prelu_kernel(self: Abstract, weight: Abstract) -> Abstract:
    return map_elements((self,), self.dtype)
