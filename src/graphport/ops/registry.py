"""The registry of shape rules, and `OpInfo`: what an operator's schema says.

A rule is a function from abstract tensors (and plain or symbolic numbers) to abstract tensors. Its
parameters are the leading arguments of the operator's schema under their own names; defaults are
taken from the schema when it is registered, so a call binds at the speed of Python. Registering
twice, or with a name that the schema does not have, fails at import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, TypeVar

import torch

from graphport.compat import schemas
from graphport.compat.operators import aten, is_here
from graphport.compat.torch import (
    OpOverload,
    OpOverloadPacket,
    dispatch_has_kernel,
    dispatch_has_kernel_for_dispatch_key,
)
from graphport.types import Args, Argument

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)
V = TypeVar("V")

RULES: dict[OpOverload, Rule] = {}
_RULES_BY_NAME: dict[str, Rule] = {}
"""Of operators of packages that may not be there."""


def overloads(names: str) -> tuple[OpOverload, ...]:
    """Operators of ATen by name: `overloads("abs add.Tensor,Scalar")`, where `abs` is its default.

    One that this torch lacks is left out; one that no tested version has is an error.
    """
    parts = (name.partition(".") for name in names.split())
    found = (
        getattr(getattr(aten, op), form)
        for op, _, forms in parts
        for form in (forms or "default").split(",")
    )
    return tuple(filter(is_here, found))


def packets(names: str) -> tuple[OpOverloadPacket, ...]:
    """Operators of ATen by name, whatever the overload."""
    return tuple(filter(is_here, (getattr(aten, name) for name in names.split())))


def overload_table(rows: Mapping[str, V]) -> dict[OpOverload, V]:
    """A table by operator of one that has a row for the names of several."""
    return {op: row for names, row in rows.items() for op in overloads(names)}


def shape_rule(*ops: OpOverload) -> Callable[[F], F]:
    """Register a rule for operators that take the same arguments; the first gives the names."""

    known = list_known(ops)

    def register(fn: F) -> F:
        for op in known:
            _add_rule(op, _with_defaults(fn, op, strict=op is known[0]))
        return fn

    return register


def register_rule(ops: Iterable[OpOverload], rule: Rule) -> None:
    """Register one rule that takes any arguments for many operators."""
    for op in list_known(ops):
        _add_rule(op, rule)


def shape_rule_named(*names: str) -> Callable[[F], F]:
    """Register a rule for operators of another package: `quantized_decomposed::...`."""

    def register(fn: F) -> F:
        for name in names:
            if name in _RULES_BY_NAME:
                raise ValueError(f"{name} has a shape rule already")
            _RULES_BY_NAME[name] = fn
        return fn

    return register


def _find_rule(op: OpOverload) -> Rule | None:
    if op not in RULES and op.name() in _RULES_BY_NAME:
        _add_rule(op, _with_defaults(_RULES_BY_NAME[op.name()], op, strict=True))
    return RULES.get(op)


def list_known(ops: Iterable[OpOverload]) -> list[OpOverload]:
    """Those that this torch has, with the arguments that a rule or lowering of ours takes."""
    return [op for op in ops if is_here(op) and not schemas.is_changed(op)]


def _add_rule(op: OpOverload, rule: Rule) -> None:
    if op in RULES:
        raise ValueError(f"{op} has a shape rule already")
    RULES[op] = rule


def _with_defaults(fn: Rule, op: OpOverload, strict: bool) -> Rule:
    """`fn` with the schema's defaults, after checking its parameter names against the schema."""
    named = {a.name: a for a in op._schema.arguments}
    order = [a.name for a in op._schema.arguments if not a.kwarg_only]
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if strict and [p.name for p in positional] != order[: len(positional)]:
        raise TypeError(f"rule {fn.__name__} for {op}: parameters should start {order}")
    unknown = [p.name for p in keyword if p.name not in named]
    if unknown:
        raise TypeError(f"rule {fn.__name__} for {op}: no arguments {unknown} in {op._schema}")
    complete = len(positional) >= len(order) or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not complete or not (
        any(p.kind is p.VAR_KEYWORD for p in parameters) or len(keyword) >= len(named) - len(order)
    ):
        raise TypeError(f"rule {fn.__name__} does not take every argument of {op._schema}")

    defaults = [named[name] for name in order[: len(positional)]]
    first = next((i for i, a in enumerate(defaults) if a.has_default_value()), len(defaults))
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, fn.__closure__)
    extra = (fn.__defaults__ or ())[-(len(positional) - len(order)) :]
    copy.__defaults__ = tuple(read_default(a) for a in defaults[first:]) + (
        extra if len(positional) > len(order) else ()
    )
    copy.__kwdefaults__ = {p.name: read_default(named[p.name]) for p in keyword}
    return copy


# As schemas number them, in the order in which torch has come to know them.
_SCALAR_TYPES = dict(
    enumerate(
        """
            uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool
            qint8 quint8 qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16
            float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64
        """.split()
    )
)


def read_default(argument: torch.Argument) -> object:
    """The default of an argument. Schemas have dtypes as numbers."""
    value = argument.default_value
    is_dtype = type(value) is int and "ScalarType" in str(argument.real_type)
    return getattr(torch, _SCALAR_TYPES[value]) if is_dtype else value


class OpInfo:
    """What the schema of an operator says, worked out once."""

    op: OpOverload
    name: str
    rule: Rule | None
    checked: bool
    """Its arguments are more than is looked at for its sizes: torch's own kernel is asked too."""
    elementwise: bool
    """Sizes are all the same to it: torch's own kernel can be asked with one element."""
    mutated: tuple[int | str, ...]
    """Positions (or names, when keyword-only) of arguments that the operator writes to."""
    outs: bool
    """True for `out=` overloads."""
    view: bool
    """The first result aliases the first argument without writing to it."""
    composite: bool
    """Written by torch in terms of other operators, for every backend and autograd."""
    functional: OpOverload | None
    """The overload without mutation, when this one mutates."""
    functional_dtype: bool
    """That overload takes dtype=, which `out=` stands in for."""

    def __init__(self, op: OpOverload) -> None:
        schemas.require_unchanged(op)
        schema = op._schema
        self.op = op
        self.name = schema.name.split("::")[1]
        self.rule = _find_rule(op)
        self.checked = _takes_more_than_sizes(self.rule, self.name)
        self.elementwise = self.name in _ELEMENTWISE_NAMES or getattr(
            self.rule, "elementwise", False
        )
        mutated: list[int | str] = []
        for i, a in enumerate(schema.arguments):
            if a.alias_info is not None and a.alias_info.is_write:
                mutated.append(a.name if a.kwarg_only else i)
        self.mutated = tuple(mutated)
        self.outs = bool(mutated) and any(a.is_out for a in schema.arguments)
        self.view = not mutated and any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        # Questions such as aten::stride are known to the interpreter only, not to the dispatcher.
        self.composite = dispatch_has_kernel(op.name()) and dispatch_has_kernel_for_dispatch_key(
            op.name(), "CompositeImplicitAutograd"
        )
        self.functional = find_functional(op) if mutated else None
        self.functional_dtype = self.functional is not None and _dtype_follows_out(self.functional)
        self._order: list[int] | None = None
        self._defaults: list[Any] = []
        if self.functional is not None:
            self._arrange(self.functional)

    def _arrange(self, functional: OpOverload) -> None:
        """Where the functional form has other positions or defaults, note how to get there."""
        own = [a for a in self.op._schema.arguments if not a.kwarg_only]
        other = [a for a in functional._schema.arguments if not a.kwarg_only]
        place = {a.name: i for i, a in enumerate(own)}
        order = [place[a.name] for a in other if a.name in place]
        if len(order) != len(own):
            return
        same_defaults = all(
            not a.has_default_value()
            or (b.has_default_value() and a.default_value == b.default_value)
            for a, b in zip(own, other, strict=False)
        )
        if order != list(range(len(own))) or not same_defaults:
            self._order = order
            self._defaults = [a.default_value if a.has_default_value() else None for a in own]

    def apply_rule(self, *args: object, **kwargs: object) -> Any:
        """What the shape rule says, of an operator that has one."""
        assert self.rule is not None, self.op
        return self.rule(*args, **kwargs)

    def arranged(self, args: Args) -> Argument:
        """Positional arguments of this operator as its functional form takes them."""
        if self._order is None:
            return args
        full = [*args, *self._defaults[len(args) :]]
        return [full[i] for i in self._order]


# In-place operators whose value-returning twin has another name.
_FUNCTIONAL_NAMES = {
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::bernoulli_.Tensor": "bernoulli.Tensor",
    "aten::normal_": "normal_functional.default",
    "aten::random_": "random.default",
    "aten::__ilshift__.Scalar": "__lshift__.Scalar",
    "aten::__ilshift__.Tensor": "__lshift__.Tensor",
    "aten::__irshift__.Scalar": "__rshift__.Scalar",
    "aten::__irshift__.Tensor": "__rshift__.Tensor",
}


def find_functional(op: OpOverload) -> OpOverload | None:
    """The overload that computes what `op` writes, without writing."""
    twin = _FUNCTIONAL_NAMES.get(op.name())
    namespace = getattr(torch.ops, op.namespace)
    base = op._schema.name.split("::")[1]
    if twin is not None:
        base, overload = twin.split(".")
        return getattr(getattr(namespace, base), overload)
    kept = [a for a in op._schema.arguments if not a.is_out]
    name = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    packet = getattr(namespace, name, None)
    if packet is None:
        return None
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if candidate._schema.is_mutable or len(arguments) < len(kept):
            continue
        if _has_same_arguments(kept, arguments):
            return candidate
    return None


def _has_same_arguments(kept: list[torch.Argument], arguments: list[torch.Argument]) -> bool:
    """The candidate takes the same arguments; what it has more must have defaults."""
    named = {a.name: a for a in arguments}
    for i, a in enumerate(kept):
        other = named.pop(a.name, None)
        if other is None and i == 0 and arguments:
            other = named.pop(arguments[0].name, None)
        if other is None or str(other.type) != str(a.type):
            return False
    return all(a.has_default_value() for a in named.values())


# What computes in the dtype of `out=` though it takes tensors; factories do so too.
_COMPUTE_AS_OUT = set("sum nansum prod mean cumsum cumprod linspace logspace".split())


def _dtype_follows_out(functional: OpOverload) -> bool:
    arguments = functional._schema.arguments
    if not any(a.name == "dtype" and a.kwarg_only for a in arguments):
        return False
    name = functional._schema.name.split("::")[1]
    return name in _COMPUTE_AS_OUT or not any("Tensor" in str(a.type) for a in arguments)


# Families of operators with windows, reductions by name, indices, factors and probabilities.
_CHECKED_FAMILIES = {
    f"graphport.ops.{family}" for family in ("conv", "linalg_decompositions", "loss", "index")
}
_CHECKED_NAMES = set(
    """
        arange bernoulli cauchy celu complex dropout empty_permuted exponential eye gelu geometric
        glu hardtanh log_normal logcumsumexp masked_fill masked_scatter mean multinomial
        native_dropout normal_functional roll rrelu rrelu_with_noise softshrink uniform
    """.split()
)

BY_KERNEL = frozenset(
    # along a dim
    """
        amax amin aminmax argmax argmin argsort cummax cummin kthvalue linalg_vector_norm
        logsumexp max median min mode nanmean nanmedian nansum norm sort topk
    """.split()
    # into bins, and between them
    + """
        _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors bucketize
        histc histogram searchsorted
    """.split()
    # by index
    + """
        _embedding_bag _embedding_bag_forward_only _unsafe_masked_index_put_accumulate
        embedding_renorm index_copy index_fill index_select one_hot put take
    """.split()
    # products and distances
    + "_cdist_forward _pdist_forward addmv bilinear cdist dist dot linalg_cross mv vdot".split()
    # matrix decompositions
    + """
        _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd
        cholesky_inverse cholesky_solve corrcoef geqrf linalg_cholesky_ex linalg_eig
        linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_lu
        linalg_lu_factor_ex linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular ormqr
    """.split()
    # the rest
    + "_softmax_backward_data grid_sampler_3d mvlgamma prelu".split()
)
"""What only the kernel for the CPU checks: dtypes that go together, modes, counts and ranges.

Not among them is what needs data that fits: pivots, lengths of segments, weights of observations;
and what kernels warn of, which would be told at capture: `std` of one value, deprecated operators.
"""


_ELEMENTWISE_NAMES = set(
    """
        angle bernoulli conj_physical div huber_loss normal poisson positive pow randint_like random
        rrelu rsub smooth_l1_loss where
    """.split()
)


def _takes_more_than_sizes(rule: Rule | None, name: str) -> bool:
    if rule is None or name in BY_KERNEL:
        return name in BY_KERNEL
    return name in _CHECKED_NAMES or rule.__globals__["__name__"] in _CHECKED_FAMILIES


_INFO: dict[OpOverload, OpInfo] = {}


def get_op_info(op: OpOverload) -> OpInfo:
    info = _INFO.get(op)
    if info is None:
        info = _INFO[op] = OpInfo(op)
    return info
