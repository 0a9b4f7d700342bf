"""Handlers of data-dependent operators: each result has an unbacked symbol."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.trace.items import compute_same
from graphport.capture.trace.kinds import record_pure
from graphport.capture.trace.scalars import disable_tracing
from graphport.capture.trace.tracer import Tracer, register_handler
from graphport.compat.operators import aten
from graphport.errors import DataDependentError, ShapeError
from graphport.ops import Abstract, OpInfo, get_op_info, sizes
from graphport.ops.index import MASK_DTYPES, check_masks, index
from graphport.ops.shape import permute
from graphport.ops.sizes import (
    broadcast,
    establish_equal,
    establish_sizes,
    expect_condition,
    is_false_at_example,
    numel,
    require_nonempty,
    wrap_dim,
)
from graphport.ops.vision import check_boxes
from graphport.symbolic import Expr, eq, ge, ne, not_, type_of
from graphport.symbolic.bridge import from_torch, to_torch
from graphport.tensors.abstract import Size
from graphport.types import Args, Argument, Kwargs


@register_handler(aten.item.default, aten._local_scalar_dense.default)
def item(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    value = tracer.value(args[0])
    if value.literal is not None:
        return value.literal.item()
    if value.number is not None and value.version == value.storage.version:
        return to_torch(value.number)
    elements = numel(value.abstract.sizes)
    if not establish_equal(elements, 1):
        raise ShapeError(f"a Tensor with {elements} elements cannot be converted to Scalar")
    node = tracer.read(value)
    if tracer.first_elements and node.target is aten.select.int and node.args[1:] == (0, 0):
        first = tracer.first_elements.get(node.args[0])
        if first is not None:
            return to_torch(first)
    values = tracer.state_values
    if values is not None and values.is_constant(node):
        known = values.read(node)
        if known is not None:
            return known.item()
    seen = tracer.recorder.frame.items
    found = seen.find(node)
    return found if found is not None else seen.add(node, _make_number(tracer, args[0], node))


def _make_number(tracer: Tracer, t: torch.Tensor, node: Node) -> Argument:
    """A symbol for the element of a tensor."""
    dtype = tracer.value(t).abstract.dtype
    if dtype.is_complex:
        error = DataDependentError(
            "the value of a complex tensor cannot be used as a Python number in capture",
            where=source.locate_user_line(),
            fix="x.real.item() and x.imag.item() give symbolic numbers",
        )
        return assume_example_data(tracer, error, t, torch.Tensor.item)
    if dtype.is_floating_point:
        symbol = tracer.scope.fresh(float, origin=source.locate_user_expression())
    elif dtype is torch.bool:
        symbol = tracer.scope.fresh(lower=0, upper=1, origin=source.locate_user_expression())
    else:
        limits = torch.iinfo(dtype)
        symbol = tracer.scope.fresh(
            lower=limits.min, upper=limits.max, origin=source.locate_user_expression()
        )
    node = tracer.recorder.node(aten.item.default, (node,), {}, symbol, "item")
    tracer.recorder.define(symbol, lambda: node)
    if dtype is not torch.bool:
        return to_torch(symbol)
    truth = eq(symbol, 1)
    tracer.scope.origins[truth] = symbol
    tracer.recorder.bind_expression(truth, node)
    return to_torch(truth)


def evaluate_bool(tracer: Tracer, t: torch.Tensor) -> bool:
    """bool(t): known for literals, an error otherwise."""
    value = tracer.value(t)
    if value.literal is not None:
        return bool(value.literal)
    elements = numel(value.abstract.sizes)
    if type(elements) is int and elements > 1:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    raised = source.find_raise()
    if raised is not None and not _raises_in_draft(tracer, t, raised.truth):
        # The program goes on where it does not raise: an assertion.
        stated = tracer.call(aten.logical_not.default, t) if raised.truth else t
        where = source.locate_user_line()
        message = raised.message or f"Runtime assertion failed at {where}"
        tracer.call(aten._assert_async.msg, stated, message)
        return not raised.truth
    error = DataDependentError(
        "Could not guard on data-dependent expression: the truth value of a tensor is not known "
        "while the program is captured, so Python cannot branch on it",
        where=source.locate_user_line(),
        fix=BRANCH_FIX,
    )
    return bool(assume_example_number(tracer, error, t, bool))


def _raises_in_draft(tracer: Tracer, t: torch.Tensor, truth: bool) -> bool:
    """Whether the example of a draft leads to the exception, as it does in eager."""
    run = tracer.example
    return run is not None and run.read_data(tracer.read(tracer.value(t)), bool) is truth


def assume_example_number(
    tracer: Tracer, error: DataDependentError, t: torch.Tensor, kind: type
) -> Argument:
    """The number that state has, or in a draft the example, to be asserted; else the error."""
    scope = tracer.scope
    number = from_torch(item(tracer, get_op_info(aten.item.default), (t,), {}))
    asked = ne(number, 0) if kind is bool and type_of(number) is not bool else number
    value = scope.pass_over(error, asked)
    expect_condition(
        asked if value is True else not_(asked) if value is False else eq(asked, value)
    )
    return kind(value)


def assume_example_data(
    tracer: Tracer, error: DataDependentError, t: torch.Tensor, read: Callable[..., object]
) -> Argument:
    """What `read` makes of data that state or, in a draft, the example has; else the error."""
    node = tracer.read(tracer.value(t))
    values = tracer.state_values
    run = values.run if values and values.read(node) is not None else tracer.example
    if run is None:
        raise error
    if run is tracer.example:
        tracer.scope.passed_over.append(error)
    data, seen = run.read_data(node, torch.clone), run.read_data(node, read)
    exactly = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}
    message = f"the data is not that of the example, which {error.where or 'the program'} relies on"
    with disable_tracing():
        literal = tracer.wrap(tracer.state.literal(data))
        same = tracer.call(aten.isclose.default, t, literal, **exactly)
        tracer.call(aten._assert_async.msg, tracer.call(aten.all.default, same), message)
    return seen


BRANCH_FIX = (
    "torch.cond(pred, true_fn, false_fn, (operands,)) keeps both branches",
    "torch.where(pred, a, b) chooses element by element",
)


@register_handler(aten.is_nonzero.default)
def is_nonzero(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> bool:
    return evaluate_bool(tracer, args[0])


@register_handler(aten.equal.default, aten.allclose.default)
def equal(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> bool:
    a, b = (tracer.value(t).literal for t in args[:2])
    if a is not None and b is not None:
        return info.op(a, b, *args[2:], **kwargs)
    if info.name == "equal" and _differ_in_size(tracer, *args):
        return False
    if info.name == "equal" and _are_same(tracer, *args):
        return True
    same = "(a == b)" if info.name == "equal" else "torch.isclose(a, b)"
    error = DataDependentError(
        f"Could not guard on data-dependent expression: torch.{info.name} compares data, which "
        "capture does not know",
        where=source.locate_user_line(),
        fix=f"{same}.all() gives the answer as a tensor",
    )
    compare = aten.eq.Tensor if info.name == "equal" else aten.isclose.default
    found = tracer.call(aten.all.default, tracer.call(compare, *args, **kwargs))
    return bool(assume_example_number(tracer, error, found, bool))


def _are_same(tracer: Tracer, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same computation: then they are equal, unless there are NaNs."""
    if not compute_same(*(tracer.read(tracer.value(t)) for t in (a, b))):
        return False
    if a.dtype.is_floating_point or a.dtype.is_complex:
        no_nan = tracer.call(aten.all.default, tracer.call(aten.eq.Tensor, a, b))
        message = f"the data has NaN, and {source.locate_user_line()} compares it with itself"
        tracer.call(aten._assert_async.msg, no_nan, message)
    return True


def _differ_in_size(tracer: Tracer, a: torch.Tensor, b: torch.Tensor) -> bool:
    one, other = (tracer.value(t).abstract.sizes for t in (a, b))
    return len(one) != len(other) or not all(map(sizes.guard_equal, one, other))


class UnbackedResult:
    """Results with sizes that only running can tell."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.symbols: list[tuple[Expr, int, int]] = []

    def size(self, result: int, dim: int, upper: Size | None = None) -> Expr:
        """A fresh size: dimension `dim` of result number `result`."""
        scope = self.tracer.scope
        most = scope.range(upper).upper if upper is not None else math.inf
        origin = locate_size(source.locate_user_expression(), dim)
        symbol = scope.fresh(lower=0, upper=most, origin=origin)
        self.symbols.append((symbol, result, dim))
        return symbol

    def ones(self, mask: torch.Tensor) -> Expr:
        """How many elements of a mask are set: one symbol per mask, however often it is used."""
        counts, node = self.tracer.counts, self.tracer.lower(mask)
        if node not in counts:
            counts[node] = self.size(0, 0, numel(self.tracer.value(mask).abstract.sizes))
        return counts[node]

    def record(self, info: OpInfo, args: Args, kwargs: Kwargs, out: object) -> Argument:
        tracer = self.tracer
        lowered = [tracer.lower(a) for a in args]
        keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
        node = tracer.recorder.node(info.op, lowered, keywords, out, info.name)
        result = tracer.fresh(out, node)
        results = [result] if isinstance(out, Abstract) else result
        for symbol, which, dim in self.symbols:
            owner: Node = tracer.value(results[which]).node
            tracer.recorder.define(symbol, make_size_reader(tracer, owner, dim, symbol))
        return result


def locate_size(where: source.Location | None, dim: int) -> source.Location | None:
    """The place of a result as the place of one of its sizes."""
    if where is None or not where.expression:
        return where
    return replace(where, expression=f"{where.expression}.shape[{dim}]")


def make_size_reader(tracer: Tracer, node: Node, dim: int, symbol: Expr) -> Argument:
    """How the graph obtains a symbol that is a size of a result."""
    return lambda: tracer.recorder.size_of(node, dim, symbol)


@register_handler(aten.nonzero.default)
def nonzero(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    sized = UnbackedResult(tracer)
    count = sized.ones(args[0])
    # torch returns the columns one after the other.
    out = Abstract((count, x.rank), torch.int64, x.device, (1, count))
    return sized.record(info, args, kwargs, out)


@register_handler(aten.masked_select.default)
def masked_select(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    sized = UnbackedResult(tracer)
    mask = tracer.value(args[1]).abstract
    if mask.dtype is not torch.bool:
        raise ShapeError(f"masked_select: expected BoolTensor for mask, got {mask}")
    sizes = broadcast(x.sizes, mask.sizes)
    count = sized.ones(args[1]) if mask.sizes == sizes else sized.size(0, 0, numel(sizes))
    return sized.record(info, args, kwargs, x.like((count,)))


@register_handler(aten._unique2.default)
def unique2(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    inverse, counts = (*args[2:], False, False)[:2]
    inverse, counts = kwargs.get("return_inverse", inverse), kwargs.get("return_counts", counts)
    sized = UnbackedResult(tracer)
    n = sized.size(0, 0, numel(x.sizes))
    out = (
        x.like((n,)),
        x.like(x.sizes if inverse else (0,), torch.int64),
        x.like((n,) if counts else (0,), torch.int64),
    )
    return sized.record(info, args, kwargs, out)


@register_handler(aten.unique_consecutive.default)
def unique_consecutive(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    names = ("return_inverse", "return_counts", "dim")
    given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    inverse, counts = given.get("return_inverse", False), given.get("return_counts", False)
    return _unique_along(tracer, info, args, kwargs, x, given.get("dim"), inverse, counts)


@register_handler(aten.unique_dim.default)
def unique_dim(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    dim = args[1] if len(args) > 1 else kwargs["dim"]
    return _unique_along(tracer, info, args, kwargs, x, dim, True, True)


def _unique_along(
    tracer: Tracer,
    info: OpInfo,
    args: Args,
    kwargs: Kwargs,
    x: Abstract,
    dim: int | None,
    inverse: bool,
    counts: bool,
) -> Argument:
    sized = UnbackedResult(tracer)
    if dim is None:
        n = sized.size(0, 0, numel(x.sizes))
        values, positions = x.like((n,)), x.sizes
    else:
        dim = wrap_dim(dim, x.rank)
        require_nonempty("unique", x, (*x.sizes[:dim], *x.sizes[dim + 1 :]))
        n = sized.size(0, dim, x.sizes[dim])
        # torch puts the slices one after the other, and moves the dim back to where it was.
        rest = list(range(1, x.rank))
        order = [*rest[:dim], 0, *rest[dim:]]
        values = permute(x.like((n, *x.sizes[:dim], *x.sizes[dim + 1 :])), order)
        positions = (x.sizes[dim],)
    out = (
        values,
        x.like(positions if inverse else (0,), torch.int64),
        x.like((n,) if counts else (0,), torch.int64),
    )
    return sized.record(info, args, kwargs, out)


@register_handler(aten.repeat_interleave.Tensor)
def repeat_interleave(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    total = kwargs.get("output_size")
    sized = UnbackedResult(tracer)
    size = tracer.lower(total) if total is not None else sized.size(0, 0)
    return sized.record(info, args, kwargs, x.like((size,)))


@register_handler("torchvision::nms")
def nms(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Places of the boxes that stay."""
    dets, scores = (tracer.value(t).abstract for t in args[:2])
    check_boxes("nms", dets, scores)
    sized = UnbackedResult(tracer)
    kept = sized.size(0, 0, dets.sizes[0])
    return sized.record(info, args, kwargs, dets.like((kept,), torch.int64))


@register_handler(aten.bincount.default)
def bincount(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    x = tracer.value(args[0]).abstract
    if x.rank != 1 or x.dtype.is_floating_point or x.dtype.is_complex:
        raise ShapeError(f"bincount only supports 1-d non-negative integral inputs, got {x}")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    if is_false_at_example(ge(tracer.lower(least), 0)):
        raise ShapeError(f"minlength should be >= 0, got {least}")
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    dtype = torch.int64
    if weights is not None:
        given = tracer.value(weights).abstract
        if not establish_sizes(given.sizes, x.sizes):
            raise ShapeError(f"bincount: weights {given} and input {x} differ in length")
        dtype = given.dtype
        dtype = torch.float32 if dtype is torch.float32 else torch.float64
    sized = UnbackedResult(tracer)
    return sized.record(info, args, kwargs, x.like((sized.size(0, 0),), dtype))


@register_handler(aten.one_hot.default)
def one_hot(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """As many classes as there are, unless the program says how many."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if type(classes) is not int or classes != -1:
        return record_pure(tracer, info, args, kwargs)
    x = tracer.value(args[0]).abstract
    if x.dtype is not torch.int64:
        raise ShapeError(f"one_hot is only applicable to index tensor of type LongTensor, got {x}")
    sized = UnbackedResult(tracer)
    out = x.like((*x.sizes, sized.size(0, x.rank)), torch.int64)
    return sized.record(info, args, kwargs, out)


@register_handler(aten.index.Tensor)
def index_tensor(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Boolean masks select as many elements as they have ones."""
    indices = [None if i is None else tracer.value(i).abstract for i in args[1]]
    if not any(_is_mask(i) for i in indices):
        return record_pure(tracer, info, args, kwargs)
    for i, given in zip(indices, args[1], strict=True):
        # The result may not show how many ones there are: positions besides have a size too.
        if _is_mask(i) and not all(j is None or _is_mask(j) for j in indices):
            tracer.call(aten.nonzero.default, given)
    x = tracer.value(args[0]).abstract
    check_masks(x, indices)
    sized = UnbackedResult(tracer)
    count: Expr | None = None
    integer: list[Abstract | None] = []
    for i, given in zip(indices, args[1], strict=True):
        if i is None or not _is_mask(i):
            integer.append(i)
            continue
        if count is None:
            count = sized.ones(given)
        integer.extend(Abstract((count,), torch.int64, x.device) for _ in range(i.rank))
    out = index(x, integer)
    if sized.symbols:
        sized.symbols = [(count, 0, out.sizes.index(count))] if count in out.sizes else []
    return sized.record(info, args, kwargs, out)


def _is_mask(i: Abstract | None) -> bool:
    return i is not None and i.dtype in MASK_DTYPES
