"""Patches that hold during capture: builtins on sizes, flags of torch, gc, recursion limit.

Python's own `max`, `min`, `divmod` and `math.pow` would branch on a size, or not take one; patched,
they make a value. Formatted text (`f"{x.item():.2f}"`) shows a symbolic number by its name.
`scaled_dot_product_attention` takes no condition on a size for a flag: it is given its truth.
The chunks of `linear_cross_entropy` are a number of rows that may be symbolic.
"""

from __future__ import annotations

import builtins
import functools
import gc
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from graphport import process
from graphport.capture.control_flow.cond import patch_control_flow
from graphport.capture.handlers.custom import patch_fake_impl_context
from graphport.capture.handlers.packed import patch_packed_layers
from graphport.capture.numbers.arrays import is_torch_array
from graphport.capture.numbers.sequences import SymbolicSequence
from graphport.capture.trace.tracer import Tracer
from graphport.compat.torch import (
    AutoDispatchBelowADInplaceOrView,
    LinearCrossEntropyOptions,
    get_current_dispatch_mode,
    locate,
    places_of,
    set_is_in_mode_without_ignore_compile_internals,
)
from graphport.huggingface.cache_shapes import patch_sliding_windows
from graphport.process import Patch, Replacement, Switch
from graphport.symbolic.bridge import SYMBOLIC_NUMBERS, sym_ite
from graphport.types import Argument, Function

BinaryFunction = Callable[[Any, Any], Any]


def patch_builtins() -> Iterator[Replacement]:
    """They take sizes and 0-d tensors without comparing them."""
    functional = torch.nn.functional
    ours = (
        (builtins, "max", _wrap_max_min(max, torch.sym_max, torch.maximum)),
        (builtins, "min", _wrap_max_min(min, torch.sym_min, torch.minimum)),
        (builtins, "divmod", _wrap_divmod(divmod)),
        (math, "pow", _wrap_pow(math.pow)),
    )
    yield from ours
    taken = [call for _, _, call in ours]
    yield Switch(lambda: (), functools.partial(_restore_dynamo_ids, taken)), "", taken
    yield torch.SymInt, "__format__", _format_by_name
    yield torch.SymFloat, "__format__", _format_by_name
    yield torch.SymInt, "__round__", _round_to_digits
    # Of these torch has none.
    yield torch.SymInt, "__invert__", lambda n: -n - 1
    yield from ((torch.SymBool, name, _differ) for name in ("__xor__", "__rxor__"))
    yield torch, "from_numpy", _wrap_from_numpy(torch.from_numpy)
    attention = "scaled_dot_product_attention"
    yield functional, attention, _wrap_attention(functional.scaled_dot_product_attention)
    if chunks := LinearCrossEntropyOptions:
        yield chunks, "__post_init__", _wrap_options_check(chunks.__post_init__)
        wrapped = _wrap_chunk_size(chunks._compute_batch_chunk_size)
        yield chunks, "_compute_batch_chunk_size", wrapped
        yield chunks, "_adjust", _wrap_adjustment(chunks._adjust)


def _restore_dynamo_ids(ours: Sequence[Any], taken: Sequence[Any]) -> None:
    """Where Dynamo was imported meanwhile, it knows our functions as Python's own, by their ids."""
    rules = next((sys.modules[p] for p in places_of("trace_rules") if p in sys.modules), None)
    if taken or rules is None:
        return
    known = rules._builtin_function_ids
    for call in filter(lambda c: id(c) in known, ours):
        known.remove(id(call))
        known.add(id(call.__wrapped__))
        known.function_names[id(call.__wrapped__)] = known.function_names.pop(id(call))
        rules.get_torch_obj_rule_map.cache_clear()


def _wrap_max_min(original: Any, of_sizes: BinaryFunction, of_tensors: BinaryFunction) -> Function:
    def choose(a: object, b: object) -> object:
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            both = [torch.as_tensor(x) for x in (a, b)]
            return of_tensors(*both) if not any(t.ndim for t in both) else original(a, b)
        return of_sizes(a, b)

    @functools.wraps(original)
    def call(*args: Argument, **kwargs: Argument) -> Argument:
        if kwargs:
            return original(*args, **kwargs)
        items = args
        if len(args) == 1:
            found = _reduce_whole(original, args[0])
            if found is not None:
                return found
            items = tuple(args[0])
        for x in items:
            if isinstance(x, (*SYMBOLIC_NUMBERS, torch.Tensor)):
                return functools.reduce(choose, items)
        return original(items) if len(args) == 1 else original(*args)

    return call


def _reduce_whole(original: Any, items: Any) -> Argument:
    """The largest or smallest of a sequence whose length is symbolic."""
    listed = isinstance(items, SymbolicSequence)
    if not listed and not (isinstance(items, torch.Tensor) and items.dim() == 1):
        return None
    whole = items.as_tensor() if listed else items
    if whole.is_floating_point() or not isinstance(whole.shape[0], torch.SymInt):
        return None  # Python's own has its own way with NaN
    found = getattr(whole, original.__name__)()
    return found.item() if listed else found


def _differ(a: Any, b: Any) -> Any:
    """`a ^ b`."""
    if not isinstance(b, (bool, torch.SymBool)):
        return NotImplemented
    return sym_ite(a, torch.sym_not(b), b)


def _format_by_name(number: object, spec: str) -> str:
    """The name stands for whatever the number will be: there are no digits to lay out."""
    return str(number)


def _round_to_digits(number: Any, digits: int | None = None) -> Any:
    """Python's `round` of an integer; torch's own takes no digits left of the point for any."""
    return number if digits is None else torch.SymInt(number.node.round(int(digits)))


def _wrap_from_numpy(original: Any) -> Function:
    @functools.wraps(original)
    def call(array: Any) -> torch.Tensor:
        return array.tensor if is_torch_array(array) else original(array)

    return call


def _wrap_attention(original: Any) -> Function:
    def flag(x: object) -> object:
        return bool(x) if isinstance(x, torch.SymBool) else x

    @functools.wraps(original)
    def call(*args: Argument, **kwargs: Argument) -> Argument:
        return original(*map(flag, args), **{k: flag(v) for k, v in kwargs.items()})

    return call


def _wrap_options_check(original: Any) -> Function:
    """Options ask whether the size of chunks is an int; the operator takes a symbolic one."""

    @functools.wraps(original)
    def check(options: Any) -> None:
        size = options.batch_chunk_size
        if not isinstance(size, torch.SymInt):
            original(options)
            return
        object.__setattr__(options, "batch_chunk_size", int(bool(size > 0)))  # it is frozen
        original(options)
        object.__setattr__(options, "batch_chunk_size", size)

    return check


def _wrap_chunk_size(original: Any) -> Function:
    """The size of chunks, on which no result depends, without rounding it to a power of 2."""

    @functools.wraps(original)
    def size(options: Any, rows: Any, features: Any, classes: Any, method: Any = None) -> Any:
        if not any(isinstance(x, torch.SymInt) for x in (rows, features, classes)):
            return original(options, rows, features, classes, method)
        if options.batch_chunk_size is not None:
            return options.batch_chunk_size
        parts = (method or options.chunking_method).partition(":")[2] or "1"
        return torch.sym_min(-(-rows // (-(-classes // features) * int(parts))), rows)

    return size


def _wrap_adjustment(original: Any) -> Function:
    """Chosen without a limit for memory, which torch rounds to a power of 2."""

    @functools.wraps(original)
    def adjust(options: Any, *args: Argument, **kwargs: Argument) -> Any:
        symbolic = any(isinstance(x, torch.SymInt) for x in (*args, *kwargs.values()))
        if symbolic and options.chunking_method == "auto" and options.batch_chunk_size is None:
            options = replace(options, chunking_method="aspect_ratio")
        return original(options, *args, **kwargs)

    return adjust


def _wrap_divmod(original: Any) -> Function:
    @functools.wraps(original)
    def division(x: Any, y: Any) -> Any:
        if isinstance(x, SYMBOLIC_NUMBERS) or isinstance(y, SYMBOLIC_NUMBERS):
            return x // y, x % y
        return original(x, y)

    return division


def _wrap_pow(original: Any) -> Function:
    @functools.wraps(original)
    def power(x: Any, y: Any) -> Any:
        if isinstance(x, SYMBOLIC_NUMBERS) or isinstance(y, SYMBOLIC_NUMBERS):
            return x**y
        return original(x, y)

    return power


# State of the process and of the thread while a program is captured or rewritten.


@contextmanager
def enter_capture() -> Iterator[None]:
    """Everything but the modes that see the operators."""
    with ExitStack() as stack:
        stack.enter_context(_USER_CODE_PATCH)
        stack.enter_context(_disable_autocast_cache())
        # Below autograd, composite operators arrive whole and views are ours to track.
        stack.enter_context(AutoDispatchBelowADInplaceOrView())
        yield


def _patch_gc() -> Iterator[Replacement]:
    """Capture allocates much and drops little: a full collection in its midst only costs time."""
    yield Switch(gc.isenabled, _set_gc_enabled), "", False


def _set_gc_enabled(enabled: bool) -> None:
    if enabled:
        gc.enable()
    else:
        gc.disable()


def _patch_recursion_limit() -> Iterator[Replacement]:
    """A call of a module takes five frames, and three in eager: what eager can run is captured."""
    limit = sys.getrecursionlimit()
    yield Switch(sys.getrecursionlimit, sys.setrecursionlimit), "", 2 * limit + 1000


def _patch_mode_flags() -> Iterator[Replacement]:
    """What torch notes of modes for all threads alike, kept to be put back."""
    for flag in process.MODE_FLAGS:
        yield *flag, getattr(*flag)
    known = getattr(*locate("is_in_any_mode_without_ignore_compile_internals"))
    yield Switch(lambda: known, set_is_in_mode_without_ignore_compile_internals), "", known


def _patch_compiling_flags() -> Iterator[Replacement]:
    """torch.compiler.is_compiling() is true while a program is captured."""
    yield *locate("is_compiling_flag"), True
    yield *locate("is_exporting_flag"), True


def _patch_distributions() -> Iterator[Replacement]:
    """`torch.distributions` looks at the data of parameters and samples, and there is none yet."""
    yield *locate("validate_args"), False


def _patch_compile() -> Iterator[Replacement]:
    """What torch.compile is asked for, or has compiled, runs as it is written."""
    compile_function = torch.compile

    @functools.wraps(compile_function)
    def keep(model: Any = None, *args: Argument, **kwargs: Argument) -> Any:
        if not isinstance(get_current_dispatch_mode(), Tracer):  # another thread
            return compile_function(model, *args, **kwargs)
        return model if model is not None else lambda model: model

    yield torch, "compile", keep
    frames = next((sys.modules[p] for p in places_of("eval_frame") if p in sys.modules), None)
    if frames is not None:
        yield frames, "_stance", replace(frames._stance, stance="force_eager")


def _patch_for_user_code() -> Iterator[Replacement]:
    yield from _patch_compiling_flags()
    yield from _patch_compile()
    yield from _patch_distributions()
    yield from patch_builtins()
    yield from patch_control_flow()
    yield from patch_sliding_windows()
    yield from patch_fake_impl_context()
    yield from patch_packed_layers()


@contextmanager
def _disable_autocast_cache() -> Iterator[None]:
    """Autocast remembers weights that it has cast; an abstract one must not outlive capture."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


NO_GC = Patch(_patch_gc)
RECURSION_LIMIT = Patch(_patch_recursion_limit)
MODE_FLAGS = Patch(_patch_mode_flags)
"""From before the first mode to after the last."""
_USER_CODE_PATCH = Patch(_patch_for_user_code)
