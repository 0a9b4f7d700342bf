"""The torch function mode: names calls, and overrides those that would read tensor data.

A function mode above the tracer: it names the function that the user called (`torch_fn`), marks
what torch asks about sizes while the call lasts as torch's question, not the user's, and takes over
the few calls that would need the data of a tensor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, Optional

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from graphport import source
from graphport.capture.handlers import composites
from graphport.capture.handlers.composites import SYMBOLIC_COUNTS
from graphport.capture.handlers.data_dependent import assume_example_data, assume_example_number
from graphport.capture.numbers.arrays import is_torch_array
from graphport.capture.numbers.sequences import SymbolicList, SymbolicSequence
from graphport.capture.trace.scalars import disable_tracing
from graphport.capture.trace.tracer import Tracer
from graphport.compat.operators import aten
from graphport.compat.torch import (
    DisableTorchFunctionSubclass,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    get_current_function_mode,
    is_functorch_wrapped_tensor,
    pytree,
)
from graphport.errors import DataDependentError, MutationError, ShapeError, UnsupportedError
from graphport.ops import get_op_info
from graphport.ops.sizes import expect_condition, numel
from graphport.symbolic import Expr, ge, ne, symbols
from graphport.symbolic.bridge import NUMBERS, SYMBOLIC, from_torch, is_symbolic, sym_ite
from graphport.tensors.abstract import AbstractTensor, is_contiguous_by
from graphport.tensors.subclasses import is_of_subclass
from graphport.types import Args, Argument, Function, Kwargs

_OPERATORS = (OpOverload, OpOverloadPacket)
_NUMBERS = (complex, *NUMBERS)
Override = Callable[..., Any]

HIGHER_ORDER = "higher-order operators that nothing else is known of"
OVERRIDES: dict[Any, Override] = {}
"""By function; one that returns NotImplemented leaves the call as it is."""
UNDER_TRANSFORMS: dict[Any, Override] = {}
"""The same where the first argument is wrapped by torch.vmap, torch.func.grad and the like."""


def register_override(*functions: object) -> Callable[[Override], Override]:
    def register(fn: Override) -> Override:
        for f in functions:
            OVERRIDES[f] = fn
        return fn

    return register


class FunctionMode(TorchFunctionMode):
    """See the module."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        tracer.function_mode = self
        self.recorder = tracer.recorder
        self._calls: dict[str, int] = {}

    def __exit__(self, *error: object) -> None:
        """Unless an interrupt has popped it already: to fail now would cover that up."""
        if get_current_function_mode() is self:
            super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Args = (), kwargs: Argument = None
    ) -> Argument:
        override = OVERRIDES.get(func)
        if override is None and isinstance(func, HigherOrderOperator):
            override = OVERRIDES[HIGHER_ORDER]
        if override is not None and args and isinstance(args[0], torch.Tensor):
            override = _choose_override(func, override, args[0])
        if override is not None:
            result = override(self.tracer, func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        if type(func) is FunctionType:
            args, kwargs = _decide_flags(func, args, kwargs)
        scope, recorder = self.tracer.scope, self.recorder
        outer, before = recorder.torch_fn, scope.internal
        recorder.torch_fn = self._name(func)
        if type(func) in _OPERATORS:
            given = pytree.tree_leaves((args, kwargs))
            self.tracer.objects = [x for x in given if type(x) is torch.ScriptObject]
        scope.internal = True
        try:
            if any(map(_wraps_results, types)):
                with DisableTorchFunctionSubclass():  # results are plain tensors
                    return func(*args, **(kwargs or {}))
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            recorder.torch_fn = outer
            scope.internal = before

    def _name(self, func: object) -> tuple[str, str]:
        name = getattr(func, "__name__", "call")
        count = self._calls[name] = self._calls.get(name, 0) + 1
        return f"{name}_{count}", f"{type(func).__name__}.{name}"


def _choose_override(func: Function, override: Override, first: torch.Tensor) -> Override | None:
    """What takes over a call with this first argument, if anything does."""
    if type(first) is torch.Tensor and is_functorch_wrapped_tensor(first):
        return UNDER_TRANSFORMS.get(func)
    return None if is_of_subclass(first) else override


@functools.lru_cache(maxsize=1024)
def _wraps_results(kind: type) -> bool:
    """Whether a subclass does nothing but to make results tensors of its class."""
    default: Any = torch.Tensor.__torch_function__
    function: Any = getattr(kind, "__torch_function__", None)
    return issubclass(kind, torch.Tensor) and getattr(function, "__func__", 0) is default.__func__


@register_override(torch.Tensor.stride)
def stride(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Strides that Python reads, which may differ where the layout of the inputs does."""
    tracer.demand_layout(tracer.read(tracer.value(args[0])))
    return NotImplemented


@register_override(torch.Tensor.is_contiguous)
def is_contiguous(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Any tensor of one element is, and any that has none."""
    value = tracer.value(args[0])
    tracer.demand_layout(tracer.read(value))
    in_other_format = len(args) > 1 or kwargs
    if in_other_format or value.abstract.is_contiguous:
        return NotImplemented
    return is_contiguous_by(value.abstract, _guard)


def _guard(cond: bool | Expr) -> bool:
    """As a branch of the user's code on sizes."""
    return cond if isinstance(cond, bool) else cond.scope.guard(cond)


_BOOL_ANNOTATIONS = (bool, "bool", bool | None, "bool | None", "Optional[bool]", Optional[bool])  # noqa: UP045


def _decide_flags(func: FunctionType, args: Args, kwargs: Kwargs) -> tuple[Argument, Argument]:
    """Symbolic arguments for bool parameters of Python code of torch's, as plain bools.

    The branch is the user's: asked within torch, it would count as a question about sizes that
    makes no difference to the result.
    """
    if not any(is_symbolic(x) for x in (*args, *(kwargs or {}).values())):
        return args, kwargs
    try:
        bound = inspect.signature(func).bind(*args, **(kwargs or {}))
    except (TypeError, ValueError):  # torch will say what is wrong with the call
        return args, kwargs
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        is_flag = type(parameter.default) is bool or parameter.annotation in _BOOL_ANNOTATIONS
        if is_flag and is_symbolic(value):
            bound.arguments[name] = bool(value)
    return bound.args, bound.kwargs


@register_override(torch.Tensor.__contains__)
def contains(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """`element in tensor` is a Python bool, and torch reads it from the data."""
    value, element = tracer.value(args[0]), args[1]
    if value.literal is not None or not isinstance(element, (torch.Tensor, *_NUMBERS)):
        return NotImplemented
    found = (args[0] == element).any()
    if tracer.value(found).literal is not None:
        return bool(found)
    error = DataDependentError(
        "Could not guard on data-dependent expression: `in` compares with the data of a tensor, "
        "which capture does not know",
        where=source.locate_user_line(),
        fix="(tensor == element).any() gives the answer as a tensor",
    )
    return assume_example_number(tracer, error, found, bool)


@register_override(torch.Tensor.numpy, torch.Tensor.__array__)
def numpy(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    value = tracer.value(args[0])
    if value.literal is not None:
        with disable_tracing():
            return func(value.literal, *args[1:], **kwargs)
    error = DataDependentError(
        ".numpy() needs the data of a tensor, which capture does not know",
        where=source.locate_user_line(),
        fix="compute with torch functions, or move the numpy code into a torch.library.custom_op",
    )
    return assume_example_data(
        tracer, error, args[0], lambda t: func(t, *args[1:], **kwargs).copy()
    )


@register_override(torch.Tensor.data_ptr, torch.Tensor.storage, torch.Tensor.untyped_storage)
def query_memory(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    error = DataDependentError(
        f".{func.__name__}() accesses the memory of a tensor, which has none while it is captured",
        where=source.locate_user_line(),
    )
    if tracer.example is None or func is not torch.Tensor.data_ptr:
        return assume_example_data(tracer, error, args[0], func)
    # No assertion can check an address; which tensors alias, the graph knows.
    tracer.scope.passed_over.append(error)
    return id(tracer.value(args[0]).storage)


@register_override(torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_)
def elementwise_python(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """torch reads the memory directly, whatever the class of the tensor."""
    raise UnsupportedError(
        f".{func.__name__}() runs Python on each element of a tensor, which has none while it is "
        "captured",
        where=source.locate_user_line(),
        fix="compute with torch functions, on all elements at once",
    )


@register_override(torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__)
def python_number(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    value = tracer.value(args[0])
    if value.literal is not None or value.number is not None:  # written out, or made from sizes
        return NotImplemented
    tracer.scope.on_plain_number()
    kind = float if func is torch.Tensor.__float__ else int
    error = DataDependentError(
        f"Could not guard on data-dependent expression: a Python {kind.__name__} from a tensor "
        "needs its data, which capture does not know",
        where=source.locate_user_line(),
        fix=(
            "x.item() gives a symbolic number, for sizes and for arithmetic",
            "or go on with the tensor itself",
        ),
    )
    return assume_example_number(tracer, error, args[0], kind)


@register_override(torch.istft, torch.Tensor.istft)
def istft(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Its schema takes a plain number for the length."""
    length = args[8] if len(args) > 8 else kwargs.get("length")
    if not isinstance(length, torch.SymInt):
        return NotImplemented
    kwargs = {"self" if k == "input" else k: v for k, v in kwargs.items()}
    return composites.istft(tracer, get_op_info(aten.istft.default), args, kwargs)


@register_override(torch.sym_ite)
def ite(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """torch's own takes only nodes of its own class."""
    return sym_ite(*args, **kwargs)


@register_override(functional.batch_norm, functional.instance_norm, functional.group_norm)
def require_several_values(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Of one value there is no variance: their Python code refuses it, at any size that gives one.

    To torch's question whether there is one value the answer is that of sizes in general.
    """
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    x = given["input"]
    sizes = tuple(map(from_torch, x.shape))
    if len(sizes) < 2:  # no channels: refused by what follows, unless there is nothing
        return NotImplemented
    batch, channels, *rest = sizes
    if func is functional.group_norm:
        count = numel((batch * channels // given["num_groups"], *rest))
    elif not given.get("training" if func is functional.batch_norm else "use_input_stats", False):
        return NotImplemented
    else:
        count = numel((batch, *rest) if func is functional.batch_norm else rest)
    if isinstance(count, Expr):
        if not expect_condition(ne(count, 1)):
            raise ShapeError(f"Expected more than 1 value per channel when training, got {x}")
    return NotImplemented


@register_override(functional.affine_grid, torch.linalg.vander)
def require_least_size(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """What they refuse of a size that is open; torch's own question is answered for most sizes."""
    if func is functional.affine_grid:
        sizes, least = inspect.signature(func).bind(*args, **kwargs).arguments["size"], 1
    else:
        columns = kwargs.get("N")
        sizes, least = (args or (kwargs["x"],))[0].shape[-1:] if columns is None else [columns], 2
    for size in map(from_torch, sizes):
        if isinstance(size, Expr) and not expect_condition(ge(size, least)):
            raise ShapeError(f"{func.__name__}: a size of {size}, which has to be {least} or more")
    return NotImplemented


@register_override(torch.Tensor.contiguous)
def contiguous(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """torch returns contiguous tensors as they are before the tracer is called."""
    if len(args) > 1:
        args, kwargs = args[:1], {**kwargs, "memory_format": args[1]}
    return tracer.call(aten.contiguous.default, *args, **kwargs)


@register_override(torch.Tensor.tolist)
def tolist(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    value = tracer.value(args[0])
    if value.literal is not None:
        return value.literal.tolist()
    return _list_elements(tracer, args[0], "")


def _list_elements(tracer: Tracer, t: torch.Tensor, index: str) -> Argument:
    if t.dim() and isinstance(t.shape[0], torch.SymInt):
        return SymbolicList(t)
    if t.dim():
        return [_list_elements(tracer, row, f"{index}[{i}]") for i, row in enumerate(t.unbind(0))]
    number = t.item()
    origins = tracer.scope.origins
    for symbol in symbols(from_torch(number)):
        where = origins[symbol]
        if tracer.scope.is_fresh(symbol) and where is not None and where.expression:
            origins[symbol] = replace(where, expression=where.expression + index)
    return number


def _list_overloads(op: OpOverload) -> dict[tuple[bool, ...], Any]:
    """The overloads, by whether the start and the end are tensors."""
    return {
        (False, False): op.default,
        (False, True): op.Scalar_Tensor,
        (True, False): op.Tensor_Scalar,
        (True, True): op.Tensor_Tensor,
    }


_LINSPACE_OVERLOADS, _LOGSPACE_OVERLOADS = (
    _list_overloads(aten.linspace),
    _list_overloads(aten.logspace),
)
_SPACE_FUNCTIONS = {
    **dict.fromkeys(
        (torch.linspace, *_LINSPACE_OVERLOADS.values()),
        (("start", "end", "steps"), _LINSPACE_OVERLOADS),
    ),
    **dict.fromkeys(
        (torch.logspace, *_LOGSPACE_OVERLOADS.values()),
        (("start", "end", "steps", "base"), _LOGSPACE_OVERLOADS),
    ),
}


@register_override(*_SPACE_FUNCTIONS)
def linspace_or_logspace(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """The schema says that `steps` is a plain integer; as a value of the graph it may be a size."""
    names, ops = _SPACE_FUNCTIONS[func]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not any(is_symbolic(given.get(n)) for n in names) or given.get("out") is not None:
        return NotImplemented
    options = {k: given[k] for k in ("dtype", "device") if given.get(k) is not None}
    op = ops[tuple(isinstance(given[n], torch.Tensor) for n in names[:2])]
    return tracer.call(op, *(given[n] for n in names if n in given), **options)


@register_override(*SYMBOLIC_COUNTS)
def call_with_symbolic_count(
    tracer: Tracer, func: Function, args: Args, kwargs: Kwargs
) -> Argument:
    """With a size for a count: see `handlers.composites`."""
    given = (*args, *kwargs.values())
    counts = [s for x in given for s in (x.shape if isinstance(x, torch.Tensor) else (x,))]
    if not any(is_symbolic(x) for x in counts):
        return NotImplemented
    is_plain = kwargs.get("layout") in (None, torch.strided) and not kwargs.get("requires_grad")
    if kwargs.get("out") is not None or not is_plain:
        return NotImplemented
    return SYMBOLIC_COUNTS[func](*args, **kwargs)


@register_override(functional.one_hot, aten.one_hot.default)
def one_hot(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """The number of classes may be a size, whatever the schema says."""
    if not any(is_symbolic(x) for x in (*args, *kwargs.values())):
        return NotImplemented
    given = dict(zip(("self", "num_classes"), args, strict=False)) | kwargs
    t = given.get("self", given.get("tensor", given.get("input")))
    return tracer.call(aten.one_hot.default, t, given["num_classes"])


@register_override(torch.tensor, torch.as_tensor, torch.asarray)
def tensor(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Nested data with symbolic numbers or tensors in it is built by `stack`."""
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if not _is_symbolic(data):
        return func(*args, **kwargs)
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    if isinstance(data, SymbolicSequence):
        return data.as_tensor(dtype=dtype, device=device)
    if is_torch_array(data):
        data = data.tensor
    if isinstance(data, torch.Tensor):
        made = data.to(device=device or data.device, dtype=dtype or data.dtype)
        return made.clone() if func is torch.tensor and made is data else made
    return _assemble(data, dtype or _number_dtype(data), device)


def _is_symbolic(x: object) -> bool:
    if isinstance(x, (list, tuple)):
        return any(_is_symbolic(y) for y in x)
    return isinstance(x, (*SYMBOLIC, AbstractTensor, SymbolicSequence)) or is_torch_array(x)


def _number_dtype(x: object) -> torch.dtype:
    """The dtype that torch.tensor gives to nested numbers: the widest kind among them."""
    if isinstance(x, (list, tuple)):
        order = [torch.bool, torch.int64, torch.get_default_dtype()]
        kinds = [_number_dtype(y) for y in x]
        return max(kinds, key=lambda d: order.index(d) if d in order else len(order))
    if isinstance(x, torch.Tensor):
        return x.dtype
    if isinstance(x, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(x, (int, torch.SymInt)) else torch.get_default_dtype()


def _assemble(x: Argument, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(x, (list, tuple)):
        return torch.stack([_assemble(y, dtype, device) for y in x])
    if isinstance(x, torch.Tensor):
        return x.to(dtype).reshape(())
    return torch.scalar_tensor(x, dtype=dtype, device=device)


@register_override(torch.Tensor.data.__get__)
def get_data(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    return args[0].detach()


@register_override(torch.Tensor.data.__set__)
def set_data(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    if tracer.value(args[0]) is tracer.value(args[1]):
        return None  # what module.to(...) does when there is nothing to convert
    raise MutationError(
        "assigning to .data replaces the storage of a tensor, which a functional graph cannot "
        "express",
        where=source.locate_user_line(),
        fix="write to the tensor instead: x.copy_(y)",
    )


@register_override(torch.Tensor.__deepcopy__)
def deepcopy(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """A copy, detached from the gradient of the original."""
    return args[0].detach().clone()


_DEVICE_QUERIES: dict[Any, Callable[[torch.device], Any]] = {
    torch.Tensor.device.__get__: lambda home: home,
    torch.Tensor.is_meta.__get__: lambda home: False,
    torch.Tensor.is_cpu.__get__: lambda home: home.type == "cpu",
    torch.Tensor.is_cuda.__get__: lambda home: home.type == "cuda",
}


@register_override(*_DEVICE_QUERIES)
def query_device(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """A weight on the meta device counts as one on the device of the program."""
    home = tracer.state.device
    if home is None or type(args[0]) is AbstractTensor or not args[0].is_meta:
        return NotImplemented
    return _DEVICE_QUERIES[func](home)
