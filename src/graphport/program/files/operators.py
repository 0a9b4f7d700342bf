"""The operators and functions that a loaded graph may call, by name, and checks of its calls.

A file is data from elsewhere: its operators are called with arguments of its choice. Those of the
tables compute a result from their arguments and check them: a size, dim or index out of bounds is
an error, of PyTorch or of `program/bounds.py`. They were tried with hostile arguments, made from
the calls of PyTorch's operator database. Not among them are operators that

- read or write memory that is not the tensor's: `_reshape_alias`, `set_`, `resize_`, `lu_unpack`,
  `linalg_ldl_solve`, `ctc_loss`, `segment_reduce`, `fractional_max_pool2d`, most of those that
  compute a gradient (`*_backward`), `inductor::_reinterpret_tensor`;
- change the process or reach out of it: `set_grad_enabled`, `from_file`, `_print`, collectives;
- are of a backend or a kind of tensors that no saved program has: cudnn, mkldnn, sparse, nested,
  quantised;
- are of another library: nobody here knows what they do.

Whoever trusts a file allows more of them, by namespace or name.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from graphport.compat import schemas, torchvision
from graphport.compat import torch as compat
from graphport.errors import InputError, SerializationError
from graphport.program.bounds import CHECKS
from graphport.program.files.json_reader import Item, format_excerpt
from graphport.symbolic.bridge import NUMBERS
from graphport.tensors.abstract import get_val
from graphport.types import Argument, NodeTarget


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Overloads that write to an argument go by the name of those that do not, `add_` by `add`; whether
# a program may write is for its verifier to say. Overloads with `out=` resize it: none is allowed.
_ATEN = _split_names(
    """
    __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__
    _adaptive_avg_pool2d _adaptive_avg_pool3d _add_relu _addmm_activation _aminmax _assert_async
    _assert_scalar _assert_tensor_metadata _batch_norm_no_update _batch_norm_with_update
    _batch_norm_with_update_functional _cdist_forward _chunk_cat _conj _conj_copy _conj_physical
    _convolution _convolution_mode _dim_arange _embedding_bag _embedding_bag_forward_only
    _euclidean_dist _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fft_c2c _fft_c2r
    _fft_r2c _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul
    _foreach_asin _foreach_atan _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_clone
    _foreach_copy _foreach_cos _foreach_cosh _foreach_div _foreach_erf _foreach_erfc _foreach_exp
    _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma _foreach_log
    _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum _foreach_minimum
    _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum
    _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin
    _foreach_sinh _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _fused_rms_norm _histogramdd_bin_edges
    _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _int_mm _is_all_true _is_any_true
    _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex
    _linalg_svd _local_scalar_dense _log_softmax _logcumsumexp _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _neg_view
    _neg_view_copy _pad_circular _pad_enum _pdist_forward _prelu_kernel _reshape_copy
    _safe_softmax _sample_dirichlet _scaled_dot_product_attention_math _shape_as_tensor _softmax
    _stack _standard_gamma _to_copy _trilinear _unique _unique2 _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d _weight_norm _weight_norm_interface abs absolute acos acosh
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv addr adjoint
    affine_grid_generator alias alias_copy all allclose alpha_dropout amax amin aminmax angle any
    arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere
    as_strided as_strided_copy as_strided_scatter asin asinh atan atan2 atanh atleast_1d
    atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm bartlett_window batch_norm
    bernoulli bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount binomial
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cat
    cauchy cdist ceil celu chain_matmul chalf channel_shuffle cholesky cholesky_inverse
    cholesky_solve chunk clamp clamp_max clamp_min clip clone col2im column_stack combinations
    complex concat concatenate conj conj_physical constant_pad_nd contiguous conv1d conv2d conv3d
    conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution copy copysign corrcoef
    cos cosh cosine_embedding_loss cosine_similarity count_nonzero cov cross cross_entropy_loss
    cummax cummin cumprod cumsum cumulative_trapezoid deg2rad det detach detach_copy diag
    diag_embed diagflat diagonal diagonal_copy diagonal_scatter diff digamma dim dist div divide
    dot dropout dsplit dstack einsum elu embedding embedding_bag embedding_renorm empty empty_like
    empty_permuted empty_strided eq equal erf erfc erfinv exp exp2 expand expand_as expand_copy
    expm1 exponential eye fake_quantize_per_channel_affine
    fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine
    fake_quantize_per_tensor_affine_cachemask feature_alpha_dropout feature_dropout fft_fft
    fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2
    fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn
    fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill fix flatten flip fliplr flipud float_power
    floor floor_divide fmax fmin fmod frac frexp frobenius_norm full full_like gather gcd ge gelu
    geometric geqrf ger glu gradient greater greater_equal grid_sampler grid_sampler_2d
    grid_sampler_3d group_norm gru gru_cell gt hamming_window hann_window hardshrink hardsigmoid
    hardswish hardtanh hash_tensor heaviside hinge_embedding_loss histc histogram histogramdd
    hsplit hstack huber_loss hypot i0 igamma igammac im2col imag index index_add index_copy
    index_fill index_put index_reduce index_select inner instance_norm inverse is_complex is_conj
    is_contiguous is_floating_point is_neg is_nonzero is_same_size is_signed isclose isfinite isin
    isinf isnan isneginf isposinf isreal istft item kaiser_window kl_div kron kthvalue l1_loss
    layer_norm lcm ldexp le leaky_relu lerp less less_equal lgamma lift_fresh lift_fresh_copy
    linalg__powsum linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det
    linalg_diagonal linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex
    linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matmul
    linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot
    linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    linalg_vander linalg_vecdot linalg_vector_norm linear linspace log log10 log1p log2 log_normal
    log_sigmoid log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logdet
    logical_and logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt
    lu_solve mH mT margin_ranking_loss masked_fill masked_scatter masked_select matmul matrix_H
    matrix_exp matrix_power max max_pool1d max_pool1d_with_indices max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d maximum
    mean median meshgrid min minimum mish mm mode moveaxis movedim mse_loss msort mul
    multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward multinomial multiply
    mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow narrow_copy
    native_batch_norm native_channel_shuffle native_dropout native_group_norm native_layer_norm
    native_norm ne neg negative new_empty new_empty_strided new_full new_ones new_zeros nextafter
    nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd nonzero nonzero_numpy
    nonzero_static norm norm_except_dim normal normal_functional not_equal nuclear_norm numel
    numpy_T one_hot ones ones_like orgqr ormqr outer pad pad_sequence pairwise_distance pdist
    permute permute_copy pinverse pixel_shuffle pixel_unshuffle poisson poisson_nll_loss polar
    polygamma positive pow prelu prod put qr quantile rad2deg rand rand_like randint randint_like
    randn randn_like random randperm range ravel real reciprocal reflection_pad1d reflection_pad2d
    reflection_pad3d relu relu6 remainder renorm repeat repeat_interleave replication_pad1d
    replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg rms_norm
    rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round row_stack rrelu
    rrelu_with_noise_functional rsqrt rsub scalar_tensor scaled_dot_product_attention scatter
    scatter_add scatter_reduce searchsorted select select_copy select_scatter selu sgn sigmoid
    sign signbit silu sin sinc sinh size slice slice_copy slice_scatter slogdet smooth_l1_loss
    soft_margin_loss softmax softplus softshrink sort special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv
    special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln
    special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1
    special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p
    special_log_ndtr special_log_softmax special_logit special_logsumexp
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri special_polygamma
    special_psi special_round special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_sinc
    special_softmax special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta split
    split_copy split_with_sizes split_with_sizes_copy sqrt square squeeze squeeze_copy stack std
    std_mean stft storage_offset stride sub subtract sum sum_to_size svd swapaxes swapdims
    sym_constrain_range sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size
    sym_storage_offset sym_stride t t_copy take take_along_dim tan tanh tensor_split tensordot
    threshold tile to to_dense topk trace transpose transpose_copy trapezoid trapz
    triangular_solve tril tril_indices triplet_margin_loss triu triu_indices true_divide trunc
    type_as unbind unbind_copy unflatten unfold unfold_copy uniform unique_consecutive unique_dim
    unique_dim_consecutive unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze
    unsqueeze_copy upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander var var_mean vdot view
    view_as view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit
    vstack where xlogy zero zeros zeros_like
    """
)
_PRIMS = _split_names(
    """
    abs acos acosh add amax amin as_strided as_strided_scatter asin asinh atan atan2 atanh
    bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 bitwise_and bitwise_not
    bitwise_or bitwise_xor broadcast_in_dim cat cbrt ceil clone collapse collapse_view conj
    conj_physical convert_element_type cos cosh device_put digamma div empty empty_permuted
    empty_strided eq erf erf_inv erfc erfcx exp exp2 expm1 fill floor fmax fmin fmod frexp full
    full_like gcd ge gt hypot igamma igammac imag iota isfinite item le lgamma log log10 log1p
    log2 lt maximum maximum_value minimum minimum_value mul ndtri ne neg nextafter normal pow prod
    real reciprocal remainder reshape rev round rsqrt scalar_tensor shift_left
    shift_right_arithmetic sign signbit sin sinh spherical_bessel_j0 split_dim sqrt squeeze sub
    sum svd tan tanh transpose trunc uniform var view_of view_of_dtype where xor_sum zeta
    """
)
_TABLES = {"aten": _ATEN, "prims": _PRIMS}
ANYTHING = "*"


class AllowedOperators:
    """Which operators may be called: those of the tables, and what the caller allows."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        names = None if isinstance(allow, str) or not isinstance(allow, Iterable) else list(allow)
        if names is None or not all(isinstance(name, str) for name in names):
            raise InputError(
                f"allow is a tuple of namespaces and names of operators, got {allow!r}",
                fix='allow=("torchvision", "mylib::attention")',
            )
        self._allowed = frozenset(names)

    def __call__(self, op: compat.OpOverload) -> bool:
        return self._is_known(op) or self._is_allowed(op)

    def _is_known(self, op: compat.OpOverload) -> bool:
        schema = op._schema
        name = schema.name.rpartition("::")[2]
        if any(argument.is_out for argument in schema.arguments):
            return False
        if schema.is_mutable and not name.startswith("__"):
            name = name.removesuffix("_")
        return name in _TABLES.get(op.namespace, ())

    def _is_allowed(self, op: compat.OpOverload) -> bool:
        names = (ANYTHING, op.namespace, op._schema.name, op.name())
        return not self._allowed.isdisjoint(names)

    def refusal(self, op: compat.OpOverload) -> tuple[str, str]:
        """What to say of an operator that may not be called, and how to allow it."""
        name, why = op.namespace, f"is of another library, {op.namespace!r}"
        if op.namespace in _TABLES:
            name, why = op._schema.name, "may do more than compute, or not check its arguments"
        return (
            f"the operator {op.name()} {why}",
            f'if the file can be trusted: gp.load(..., allow=("{name}",)), or --allow {name}',
        )


# Finds the target of a node by name: a registered operator, or a function from a fixed table.
#
# A name is looked up, never followed: no attribute of anything is taken because a file says so, and
# no library is imported for it.

_ON_NUMBERS: dict[Any, tuple[str, ...]] = {
    operator: tuple(
        """
            add sub mul truediv floordiv mod pow neg pos abs lshift rshift and_ or_ xor invert not_
            eq ne lt le gt ge getitem index
        """.split()
    ),
    math: tuple(
        """
            floor ceil trunc sqrt exp log log2 log10 sin cos tan asin acos atan sinh cosh tanh pow
        """.split()
    ),
    builtins: ("round", "abs", "min", "max", "int", "float", "bool", "pow"),
    torch: tuple(
        """
            sym_float sym_int sym_max sym_min sym_not sym_ite sym_sum sym_and sym_or sym_sqrt
            _sym_sqrt _sym_cos _sym_cosh _sym_sin _sym_sinh _sym_tan _sym_tanh _sym_asin _sym_acos
            _sym_atan _sym_log2 _sym_log10 _sym_exp _sym_log _check
        """.split()
    ),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in _ON_NUMBERS.items()
    for name in names
    if hasattr(module, name)
}
# The first name of a function that has two: torch.sym_sqrt is torch._sym_sqrt.
_FUNCTION_NAMES: dict[Any, str] = {}
for _name, _function in FUNCTIONS.items():
    _FUNCTION_NAMES.setdefault(_function, _name)

# Those that call graphs of the program or operators, and nothing else of Python's.
HIGHER_ORDER = tuple(
    """
        cond while_loop map_impl scan associative_scan auto_functionalized auto_functionalized_v2
        autograd_function_apply wrap_with_set_grad_enabled wrap_with_autocast
        tag_activation_checkpoint wrap_activation_checkpoint invoke_subgraph strict_mode out_dtype
        hints_wrapper
    """.split()
)


def encode_target(target: NodeTarget) -> str | None:
    """The name of what a node calls; None if a file cannot say it."""
    if isinstance(target, compat.OpOverload):
        return target.name()
    if isinstance(target, compat.HigherOrderOperator):
        return f"higher_order.{target.name()}" if target.name() in HIGHER_ORDER else None
    try:
        return _FUNCTION_NAMES.get(target)
    except TypeError:  # not hashable
        return None


class Targets:
    """Looks up names, each once."""

    def __init__(self, producer: str, version: schemas.Version, permits: AllowedOperators) -> None:
        self._producer = producer
        self._version = version
        """Of the torch that the file was written with."""
        self._permits = permits
        self._known: dict[str, Any] = dict(FUNCTIONS)

    def __call__(self, item: Item) -> NodeTarget:
        name = item.text()
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._find(item, name)
        return known

    def operator(self, item: Item) -> compat.OpOverload:
        found = self(item)
        if not isinstance(found, compat.OpOverload):
            item.fail(f"{format_excerpt(item.value)} is not an operator")
        return found

    def _find(self, item: Item, name: str) -> NodeTarget:
        family, dot, rest = name.partition(".")
        if family == "higher_order" and dot:
            if rest not in HIGHER_ORDER:
                item.fail(f"unknown higher-order operator {format_excerpt(rest)}")
            found = compat.higher_order_registry.get(rest)
            if found is None:
                item.fail(f"this torch, {torch.__version__}, has no higher-order operator {rest}")
            return found
        if "::" not in name:
            item.fail(f"{format_excerpt(name)} is neither an operator nor a function on sizes")
        packet, _, overload = name.partition(".")
        if packet.removeprefix(f"{torchvision.NAMESPACE}::") in torchvision.SCHEMAS:
            torchvision.define_operators()
        try:
            registered = compat.jit_get_schemas_for_operator(packet)
        except (RuntimeError, TypeError, ValueError):  # no name of an operator, or no UTF-8
            registered = []
        if overload not in [schema.overload_name for schema in registered]:
            self._unknown(item, name)
        namespace, _, packet = packet.partition("::")
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default", None)
        if not isinstance(found, compat.OpOverload) or found.name() != name:
            item.fail(f"the operator {format_excerpt(name)} cannot be called from Python")
        if not self._permits(found):
            item.fail(*self._permits.refusal(found))
        if not schemas.is_compatible(found, self._version):
            item.fail(f"{found} has other arguments in torch {torch.__version__}", self._fix())
        return found

    def _fix(self) -> str:
        return f"run with the version that the file was written with: {self._producer}"

    def _unknown(self, item: Item, name: str) -> None:
        if schemas.is_recorded(name):
            item.fail(f"torch {torch.__version__} has no operator {name}", self._fix())
        namespace = name.partition("::")[0]
        registered = compat.dispatch_get_all_op_names()
        if any(other.startswith(f"{namespace}::") for other in registered):
            fix = self._fix()
            if namespace not in ("aten", "prims", "prim"):
                fix = f"import the version of the library that registers {name} before loading"
        else:
            fix = f"import the library that registers {format_excerpt(namespace)} before loading"
        item.fail(f"the operator {format_excerpt(name)} is not registered in this process", fix)


def require_target_name(target: NodeTarget, where: str) -> str:
    name = encode_target(target)
    if name is None:
        raise SerializationError(
            f"a call of {target} cannot be saved: it is neither an operator nor one of the "
            "functions on sizes that files know",
            where=where,
        )
    return name


# Checks the calls of a loaded graph against the operators' schemas.
#
# What an operator does with their values shows when the program runs. Before that, arguments are
# counted and looked at by those who write Python or ONNX for a call: they are what the operator's
# schema says, and what is said of the result is of the type that the operator returns.

_TRUTHS = (bool, torch.SymBool)
_UNARY = {operator.neg, operator.pos, operator.abs, operator.invert, operator.not_, operator.index}

Predicate = Callable[[Any], bool]


def _described_value(x: object) -> object:
    """What an argument is: a node is what is said of it."""
    return get_val(x) if isinstance(x, Node) else x


def _instances_of(*types: type) -> Predicate:
    return lambda x: isinstance(_described_value(x), types)


_KINDS: dict[str, Predicate] = {
    "TensorType": _instances_of(torch.Tensor, *NUMBERS, complex),
    "IntType": _instances_of(*NUMBERS),
    "SymIntType": _instances_of(*NUMBERS),
    "FloatType": _instances_of(*NUMBERS),
    "BoolType": _instances_of(*NUMBERS),
    "SymBoolType": _instances_of(*NUMBERS),
    "NumberType": _instances_of(*NUMBERS, complex),
    "ComplexType": _instances_of(*NUMBERS, complex),
    "StringType": lambda x: isinstance(x, str),
    "ScalarTypeType": lambda x: isinstance(x, torch.dtype),
    "DeviceObjType": lambda x: isinstance(x, torch.device),
    "LayoutType": lambda x: isinstance(x, torch.layout),
    "MemoryFormatType": lambda x: isinstance(x, torch.memory_format),
    "GeneratorType": lambda x: x is None,
}


def _make_predicate(kind: Any, count: int | None = None) -> Predicate:
    """Whether a value can be passed where a schema says so."""
    name = kind.kind()
    if name == "OptionalType":
        inner = _make_predicate(kind.getElementType(), count)
        return lambda x: x is None or inner(x)
    if name != "ListType":
        return _KINDS.get(name, lambda x: True)
    one = _make_predicate(kind.getElementType())
    # A single number stands for a list of a fixed length.
    return lambda x: all(map(one, x)) if isinstance(x, (list, tuple)) else bool(count) and one(x)


@functools.cache
def _list_tensor_parameters(op: compat.OpOverload) -> tuple[str, ...]:
    """Parameters that are tensors, by name."""
    return tuple(a.name for a in op._schema.arguments if a.real_type.kind() == "TensorType")


@functools.cache
def _read_schema(
    op: compat.OpOverload,
) -> tuple[int, dict[str, Predicate], tuple[str, ...], bool, Predicate]:
    """How many positional ones, what each takes, those that are needed; whether it returns a view,
    and whether a result fits.
    """
    arguments, returns = op._schema.arguments, op._schema.returns
    positional = sum(not a.kwarg_only for a in arguments)
    takes = {a.name: _make_predicate(a.real_type, a.N) for a in arguments}
    tensors = _list_tensor_parameters(op)
    # One of several is a tensor, others may be numbers: add.Tensor(x, 2), mul.Tensor(2, x).
    if op in CHECKS or len(tensors) == 1:
        takes.update(dict.fromkeys(tensors, _instances_of(torch.Tensor)))
    needed = tuple(a.name for a in arguments if not a.has_default_value())
    is_view = any(r.alias_info is not None for r in returns)
    return (
        positional,
        takes,
        needed,
        is_view,
        _make_result_predicate([r.real_type for r in returns]),
    )


def _make_result_predicate(kinds: list[Any]) -> Predicate:
    if not kinds:
        return lambda x: x is None
    parts = [
        _instances_of(torch.Tensor) if k.kind() == "TensorType" else _make_predicate(k)
        for k in kinds
    ]
    if len(parts) == 1:
        return parts[0]
    return lambda x: (
        isinstance(x, (tuple, list))
        and len(x) == len(parts)
        and all(part(y) for part, y in zip(parts, x, strict=True))
    )


def check_call_types(
    item: Item, target: NodeTarget, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    if isinstance(target, compat.OpOverload):
        _check_operator(item, target, args, kwargs)
    elif getattr(target, "__module__", "") == "_operator":
        if len(args) != (1 if target in _UNARY else 2) or kwargs:
            item.fail(f"the arguments do not fit operator.{target.__name__}")
        if target is operator.getitem:
            _check_getitem(item, *args)
            return
    if not isinstance(target, compat.OperatorBase):
        numbers = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
        if kwargs or not all(
            isinstance(_described_value(x), (*NUMBERS, type(None))) for x in numbers
        ):
            item.fail(f"{target.__name__} takes numbers")


def _check_operator(
    item: Item, op: compat.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    positional, takes, needed, is_view, _ = _read_schema(op)
    given = {**dict(zip(takes, args, strict=False)), **kwargs}
    wrong = (
        len(args) > positional
        or not kwargs.keys() <= takes.keys()
        or not given.keys() >= set(needed)
        or len(given) < len(args) + len(kwargs)
    )
    if wrong:
        item.fail(f"the arguments do not fit {op._schema}")
    for name, x in given.items():
        if not takes[name](x):
            item.fail(f"the argument {name} of {op} cannot be {format_excerpt(x)}: {op._schema}")
    tensors = _list_tensor_parameters(op)
    if tensors and not any(
        isinstance(_described_value(given.get(n)), torch.Tensor) for n in tensors
    ):
        item.fail(f"no argument of {op} is a tensor")
    if is_view and not (args and isinstance(args[0], Node)):
        item.fail(f"the first argument of {op} is a node")


def _check_getitem(item: Item, container: object, index: Argument) -> None:
    if not isinstance(container, Node):
        item.fail("an item is taken of a node")
    parts = _described_value(container)
    if isinstance(parts, (tuple, list)) and not (
        type(index) is int and -len(parts) <= index < len(parts)
    ):
        item.fail(f"there is no item {format_excerpt(index)} among {len(parts)} results")


def check_result_type(item: Item, target: NodeTarget, val: object) -> None:
    """Whether what is said of a result is of the type that an operator returns."""
    if isinstance(target, compat.OpOverload) and not _read_schema(target)[-1](val):
        item.fail(f"{format_excerpt(type(val).__name__)} is not what {target} returns")
