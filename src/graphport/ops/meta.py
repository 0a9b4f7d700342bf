"""Infers shapes by PyTorch's meta kernels, for operators without a rule, and checks calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from graphport.compat.torch import (
    DispatchKey,
    OpOverload,
    TorchDispatchMode,
    decomposition_table,
    dispatch_has_kernel_for_dispatch_key,
    simple_registry,
)
from graphport.errors import UnsupportedError
from graphport.ops.registry import BY_KERNEL
from graphport.ops.sizes import numel
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, is_symbolic, to_torch
from graphport.tensors.abstract import (
    Abstract,
    Sizes,
    contiguous_strides,
    get_example_size,
    get_typical_size,
    permute_strides,
)
from graphport.types import Args, Argument, Kwargs

_META = torch.device("meta")


def to_meta(a: Abstract) -> torch.Tensor:
    """A tensor on the meta device with the same sizes, strides and dtype."""
    sizes = [to_torch(s) for s in a.sizes]
    if a._strides is None:
        return torch.empty(sizes, dtype=a.dtype, device=_META)
    return torch.empty_strided(sizes, [to_torch(s) for s in a.strides], dtype=a.dtype, device=_META)


_LAYOUTS = {
    "sparse": ("a sparse tensor", "compute with dense tensors: leave out the conversion"),
    "nested": ("a nested tensor", "compute with a padded tensor and a mask"),
    "mkldnn": ("a tensor of MKL-DNN's own layout", "leave out the conversion"),
}


def _refuse_layout(op: OpOverload, error: Exception | None) -> None:
    """Raise for an operator that makes, or takes, tensors that are not strided."""
    for word, (what, fix) in _LAYOUTS.items():
        if word in op.name():
            raise UnsupportedError(
                f"{op} is about {what}, and only strided tensors can be captured", fix=fix
            ) from error


def from_meta(t: torch.Tensor, device: torch.device) -> Abstract:
    sizes = tuple(from_torch(s) for s in t.shape)
    strides: tuple[Any, ...] | None = tuple(from_torch(s) for s in t.stride())
    if strides == contiguous_strides(sizes):
        strides = None
    return Abstract(sizes, t.dtype, device, strides)


def _find_symbolic(x: object) -> Expr | None:
    """The first number that is not known, within tensors and lists."""
    if isinstance(x, (list, tuple)):
        return next((found for y in x if (found := _find_symbolic(y)) is not None), None)
    if isinstance(x, Abstract):
        return _find_symbolic((*x.sizes, *(x._strides or ())))
    return x if isinstance(x, Expr) else None


class SymbolicSizesError(Exception):
    """The meta kernel takes the example sizes, but not symbolic ones."""


def find_decompositions(op: OpOverload) -> list[Callable[..., Any]]:
    """The operator in terms of others, by torch's kernel for every backend and by its reference."""
    key = DispatchKey.CompositeExplicitAutograd
    found: list[Callable[..., Any]] = []
    if dispatch_has_kernel_for_dispatch_key(op.name(), key):
        found.append(partial(op._op_dk, key))
    return [*found, decomposition_table[op]] if op in decomposition_table else found


def find_fake_impl(op: OpOverload) -> Callable[..., Any] | None:
    """The fake implementation of a custom operator; it may ask for data-dependent sizes.

    Called by itself and not through the dispatcher, which would refuse to answer.
    """
    if op.namespace in ("aten", "prims"):
        return None
    return simple_registry.singleton.find(op.name()).fake_impl.kernel


def infer_by_meta(op: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> Argument:
    """Run the operator on meta tensors and read off the result."""
    symbolic = _find_symbolic([*args, *kwargs.values()])
    if symbolic is None:
        return _run_meta_kernel(op, args, kwargs)
    try:
        with symbolic.scope.keep_open():
            return _run_meta_kernel(op, args, kwargs)
    except (RuntimeError, TypeError, AssertionError) as error:
        # What also fails at the example sizes is the user's mistake, and raises as such.
        _run_meta_kernel(op, specialise_to_example(args), specialise_to_example(kwargs))
        raise SymbolicSizesError from error


def check_by_meta(
    op: OpOverload,
    args: Sequence[object],
    kwargs: dict[str, object],
    out: object,
    seen: set[object],
) -> None:
    """Raise what torch's kernels raise at the example sizes, where a shape rule is content.

    Rules say what comes out; kernels also check windows, probabilities, dtypes and indices. Calls
    that were `seen` are not tried again, and those of sizes that only data tells not at all.
    """
    if not all(map(_has_example, (*args, *kwargs.values()))):
        return
    plain = (op, specialise_to_example(args), specialise_to_example(kwargs))
    key = repr(plain)
    if key in seen:
        return
    seen.add(key)
    name = op._schema.name[6:]
    try:
        if name in _BY_REFERENCE:
            _run_kernel(*plain)
        elif name in BY_KERNEL and _is_trusted(plain[1:], out):
            _run_kernel(*plain)
        else:
            _run_meta_kernel(*plain)
    except UnsupportedError:
        pass  # there is no such kernel
    except NotImplementedError as error:
        if not is_about_kernels(error):
            raise
    except TypeError as error:
        if _NON_BOOL_CHECK not in str(error):
            raise


def is_about_kernels(error: Exception) -> bool:
    """Whether an operator has no kernel here, for meta tensors or for a dtype, says an error.

    Of the same class are errors about dtypes that an operator does not take anywhere.
    """
    return isinstance(error, NotImplementedError) and bool(_NO_KERNEL.search(str(error)))


_NO_KERNEL = re.compile(r"^$|Could not run|\" not implemented for '|^Unsupported dtype ")


def _is_trusted(call: object, out: object) -> bool:
    """Whether the program would run the kernel that is here, in little time.

    Of halves and of other devices it may know less than the one that the program is for.
    """
    given = list(_flatten_tensors(call))
    if any(t.device.type != "cpu" or t.dtype in _HALVES for t in given):
        return False
    made = list(_flatten_tensors(out))
    return (
        _has_example(made)
        and sum(numel(t.sizes) for t in specialise_to_example(made)) <= _MAX_KERNEL_ELEMENTS
    )


_HALVES = (torch.float16, torch.bfloat16)


_NON_BOOL_CHECK = "cond must be a bool"
"""What `torch._check` says to a kernel that calls it with a number, and has nothing to refuse."""


_BY_REFERENCE = frozenset(
    """
        _unsafe_masked_index arange binary_cross_entropy binary_cross_entropy_with_logits cauchy
        celu cosine_similarity cross_entropy_loss dropout exponential eye gelu geometric glu
        grid_sampler grid_sampler_2d hardtanh huber_loss im2col index_add kl_div l1_loss log_normal
        masked_fill mean mse_loss multi_margin_loss multilabel_margin_loss_forward nll_loss_nd
        normal_functional roll smooth_l1_loss soft_margin_loss softshrink take_along_dim
        upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d
    """.split()
)
"""Whose meta kernels are references in Python, which import Dynamo: that takes seconds."""
_MAX_KERNEL_ELEMENTS = 1 << 16
_INDICES = (torch.int64, torch.int32)


def _run_kernel(op: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Run an operator on plain numbers, unless there are so many that it would take time."""
    given = list(_flatten_tensors([*args, *kwargs.values()]))
    elements = [numel(t.sizes) for t in given]
    referred = op._schema.name[6:] in _BY_REFERENCE
    if sum(elements) > _MAX_KERNEL_ELEMENTS:
        if not referred:
            _run_meta_kernel(op, args, kwargs)
        return
    # Of nothing, an index of 0 would be one too many.
    indexed = any(n and t.dtype in _INDICES for n, t in zip(elements, given, strict=True))
    if 0 in elements and (referred or indexed):
        _run_meta_kernel(op, args, kwargs)
        return
    cpu = torch.device("cpu")
    keywords = {k: _materialise(v, cpu) for k, v in kwargs.items()}
    random = torch.Tag.nondeterministic_seeded in op.tags
    with torch.random.fork_rng(devices=(), enabled=random):
        op(*(_materialise(a, cpu) for a in args), **keywords)


_ACCEPTED_CALLS: set[Any] = set()
"""Calls of elementwise operators that torch's kernels take."""


def check_element_by_kernel(
    op: OpOverload, args: Sequence[object], kwargs: dict[str, object]
) -> None:
    """Raise what torch's kernel for the CPU raises of one element.

    Of dtypes, factors, ranges and modes meta kernels say less. What has no kernel here, as halves
    often do not, may have one where the program runs.
    """
    key = (op, _make_element_key(args), _make_element_key(list(kwargs.values())), *kwargs)
    if key in _ACCEPTED_CALLS or not all(map(_has_example, (*args, *kwargs.values()))):
        return
    positional, keywords = _make_element(args), {k: _make_element(v) for k, v in kwargs.items()}
    random = torch.Tag.nondeterministic_seeded in op.tags
    with torch.random.fork_rng(devices=(), enabled=random):
        try:
            op(*positional, **keywords)
        except NotImplementedError as error:
            if is_about_kernels(error) and not _has_kernels(positional):
                return
            raise
        except RuntimeError as error:
            if str(error) == "ZeroDivisionError" and any(
                0 in t.sizes for t in _flatten_tensors(args)
            ):
                return  # where nothing is divided
            raise
    _ACCEPTED_CALLS.add(key)


def _make_element_key(x: Argument) -> Argument:
    """What a kernel for elements sees of an argument."""
    if isinstance(x, Abstract):
        return x.dtype, x.rank, x.device
    if isinstance(x, (list, tuple)):
        return tuple(map(_make_element_key, x))
    x = x.scope.hint(x) if isinstance(x, Expr) else x
    return type(x), x


def _make_element(x: object) -> Argument:
    if isinstance(x, Abstract):
        return torch.ones((1,) * x.rank, dtype=x.dtype)
    if isinstance(x, (list, tuple)):
        return [_make_element(y) for y in x]
    return x.scope.hint(x) if isinstance(x, Expr) else x


def _has_kernels(args: Sequence[object]) -> bool:
    """Whether all is of dtypes that kernels for the CPU are written for, if they make sense."""
    wide = (torch.float32, torch.float64)
    return all(t.dtype in wide for t in args if isinstance(t, torch.Tensor))


_MAX_OUT_ELEMENTS = 1 << 20
"""Of so many elements a kernel is asked without memory, where it may say less."""


def check_out_by_kernel(
    op: OpOverload,
    args: Sequence[object],
    kwargs: dict[str, object],
    given: dict[str, object],
    fit: Any,
) -> None:
    """Raise what torch's kernel raises for `out=` of a dtype that it does not write.

    Some cast to the dtype of `out=`, some do not, and only the kernel itself says which it is: it
    runs on plain numbers at the example sizes, and what it refuses of `out=` as it should be
    (`fit`) says nothing.
    """
    if not all(map(_has_example, (*args, *kwargs.values(), *given.values()))):
        return
    elements = [
        numel(t.sizes) for t in _flatten_tensors(specialise_to_example([*args, *kwargs.values()]))
    ]
    device = _META if sum(elements) > _MAX_OUT_ELEMENTS else torch.device("cpu")

    def run(outs: dict[str, object]) -> None:
        positional, keywords = (
            specialise_to_example(args),
            specialise_to_example({**kwargs, **outs}),
        )
        op(
            *(_materialise(a, device) for a in positional),
            **{k: _materialise(v, device) for k, v in keywords.items()},
        )

    try:
        run(fit)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return
    run(given)


def _flatten_tensors(x: object) -> Iterator[Abstract]:
    if isinstance(x, Abstract):
        yield x
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from _flatten_tensors(y)
    elif isinstance(x, dict):
        yield from _flatten_tensors(list(x.values()))


def _materialise(x: object, device: torch.device) -> Argument:
    """Identity matrices, which have inverses and roots; indices of 0; truth; no real numbers."""
    if isinstance(x, Abstract):
        fill = 1j if x.dtype.is_complex else x.dtype is torch.bool
        plain = torch.full(x.sizes, fill, dtype=x.dtype, device=device)
        if x.rank > 1 and x.dtype.is_floating_point:
            plain.diagonal(dim1=-2, dim2=-1).fill_(1)
        return plain
    if isinstance(x, torch.device):
        return device
    return [_materialise(y, device) for y in x] if isinstance(x, (list, tuple)) else x


def _has_example(x: object) -> bool:
    if isinstance(x, Abstract):
        return all(map(_has_example, (*x.sizes, *(x._strides or ()))))
    if isinstance(x, Expr):
        return x.scope.hint(x) is not None
    return all(map(_has_example, x)) if isinstance(x, (list, tuple)) else True


def specialise_to_example(x: object) -> Argument:
    """Arguments at the example sizes."""
    if isinstance(x, Abstract):
        return Abstract(
            tuple(map(get_example_size, x.sizes)),
            x.dtype,
            x.device,
            x._strides and tuple(map(get_example_size, x._strides)),
        )
    if isinstance(x, Expr):
        return x.scope.hint(x)
    if isinstance(x, dict):
        return {k: specialise_to_example(v) for k, v in x.items()}
    return [specialise_to_example(y) for y in x] if isinstance(x, (list, tuple)) else x


def _run_meta_kernel(op: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> Argument:
    devices: list[torch.device] = []

    def down(x: Argument) -> Argument:
        if isinstance(x, Abstract):
            devices.append(x.device)
            return to_meta(x)
        if isinstance(x, Expr):
            return to_torch(x)
        if isinstance(x, (list, tuple)):
            return [down(y) for y in x]
        if isinstance(x, torch.device):
            devices.append(x)
            return _META
        return x

    lowered = [down(a) for a in args]
    keywords = {k: down(v) for k, v in kwargs.items()}
    # Many C++ meta kernels refuse symbolic sizes; torch's reference in Python takes them.
    reference = decomposition_table.get(op) if _find_symbolic(args) is not None else None
    try:
        fake = None if reference else find_fake_impl(op)
        with _FactoriesOnMeta(devices) if fake else nullcontext():
            out = (reference or fake or op)(*lowered, **keywords)
    except (NotImplementedError, RuntimeError) as error:
        _refuse_layout(op, error)
        # torch.library.custom_op raises a plain RuntimeError where it has nothing to run.
        if not is_about_kernels(error) and "no fake impl" not in str(error):
            raise
        custom = op.namespace not in ("aten", "prims")
        name = op.name().split(".")[0]
        raise UnsupportedError(
            f"{op} has no shape rule and no meta kernel, so its result cannot be described "
            "without running it",
            fix=[f'register one: @torch.library.register_fake("{name}")'] if custom else [],
        ) from error
    device = next((d for d in devices if d.type != "meta"), devices[0] if devices else None)

    def up(x: Argument) -> Argument:
        if isinstance(x, torch.Tensor):
            if x.layout is not torch.strided:
                _refuse_layout(op, None)
            return from_meta(x, device or x.device)
        if isinstance(x, (list, tuple)):
            return type(x)(up(y) for y in x) if type(x) in (list, tuple) else [up(y) for y in x]
        if is_symbolic(x):
            return from_torch(x)
        return x

    return up(out)


class _FactoriesOnMeta(TorchDispatchMode):
    """What a fake implementation makes (`torch.empty(n, 4)`) is without data, on any device."""

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__()
        self._devices = devices
        """Those that were asked for."""

    def __torch_dispatch__(
        self, op: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Argument:
        kwargs = dict(kwargs or {})
        if not types and any(argument.name == "device" for argument in op._schema.arguments):
            self._devices.append(kwargs.get("device") or torch.get_default_device())
            kwargs["device"] = _META
        return op(*args, **kwargs)


def infer_layout_by_meta(
    op: OpOverload, sizes: Sizes, *args: object, **kwargs: object
) -> Sizes | None:
    """Strides for a dense result, in the order that the meta kernel has at the example sizes.

    For operators whose sizes are plain and whose layout follows from how they are computed.
    """

    def down(x: Argument) -> Argument:
        if isinstance(x, Abstract):
            extent, strides = map(get_typical_size, x.sizes), map(get_typical_size, x.strides)
            return torch.empty_strided(list(extent), list(strides), dtype=x.dtype, device=_META)
        if isinstance(x, Expr):
            return get_typical_size(x)
        return [down(y) for y in x] if isinstance(x, (list, tuple)) else x

    found = op(*map(down, args), **kwargs).stride()
    order = sorted(range(len(sizes)), key=lambda d: -found[d])
    return None if order == list(range(len(sizes))) else permute_strides(sizes, order)
