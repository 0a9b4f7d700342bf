"""Arithmetic, guards and broadcasting on symbolic sizes, for shape rules.

A question that the facts so far do not answer is answered by the example sizes and written down as
a fact by the scope that owns the symbols; a rule never does that by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphport.errors import ShapeError
from graphport.symbolic import Expr, Scope, eq, ge, ite, le, lt, max_, min_, not_, symbols
from graphport.tensors.abstract import Abstract, Size, Sizes


def scope_of(*values: object) -> Scope:
    """The scope that owns the first symbolic value."""
    for v in values:
        if isinstance(v, Expr):
            return v.scope
    raise TypeError("no symbolic value among the arguments")


def guard_condition(cond: bool | Expr) -> bool:
    """Guard on a condition: decide it, by the example sizes if need be."""
    return cond if isinstance(cond, bool) else cond.scope.guard(cond)


def is_proven(cond: bool | Expr) -> bool:
    """True when the condition is proven; records nothing."""
    return cond if isinstance(cond, bool) else cond.scope.decide(cond) is True


def is_provably_equal(a: Size, b: Size) -> bool:
    """Provably equal; records nothing."""
    if a is b:
        return True
    if type(a) is int and type(b) is int:
        return a == b
    return is_proven(eq(a, b))


def guard_equal(a: Size, b: Size) -> bool:
    """Equal at the example sizes; the answer becomes a fact when it was not known."""
    if a is b:
        return True
    if type(a) is int and type(b) is int:
        return a == b
    return guard_as_stated(eq(a, b))


def guard_as_stated(cond: bool | Expr) -> bool:
    """Decide what an operator requires: as the example has it, not as sizes have it in general."""
    return cond if isinstance(cond, bool) else _ask_as_user(cond.scope.guard, cond)


def expect_condition(cond: bool | Expr) -> bool:
    """Assume a condition, to be checked at run time; False if it fails in the example."""
    return cond if isinstance(cond, bool) else _ask_as_user(cond.scope.expect, cond)


def choose_branch(cond: bool | Expr) -> bool | None:
    """The branch that a rule takes, guarded at the example; None if it must handle both.

    Where all sizes but 0 and 1 agree with the example, those are refused when the program runs, and
    nobody is asked about them at export. None is the answer where the example is such a size, or
    where data decides.
    """
    if isinstance(cond, bool):
        return cond
    scope = cond.scope
    hint = scope.hint(cond)
    if hint is None:
        return scope.decide(cond)
    count = len(scope.facts)
    answer = scope.guard(cond)
    if len(scope.facts) > count or scope.decide(cond) is not None:
        return answer
    # Answered for sizes in general, and nothing written down.
    if answer is not hint:
        return None
    expect_condition(cond if answer else not_(cond))
    return answer


def require_branch(cond: bool | Expr) -> bool:
    """The branch of a rule that cannot handle both; an error where it depends on data.

    See `choose_branch`.
    """
    answer = choose_branch(cond)
    return guard_as_stated(cond) if answer is None else answer


def _ask_as_user(ask: Callable[[Expr], bool], cond: Expr) -> bool:
    """Guard a condition as a branch of the user's: without special rules for sizes 0 and 1."""
    scope = cond.scope
    before = scope.internal, scope.stating
    scope.internal, scope.stating = False, True
    try:
        return ask(cond)
    finally:
        scope.internal, scope.stating = before


# What an operator needs of its sizes becomes a fact; False where the example has it otherwise, and
# the rule says what is wrong.


def establish_equal(a: Size, b: Size) -> bool:
    return a is b or _is_satisfied(eq(_pick_min_operand(a, b), _pick_min_operand(b, a)))


def establish_sizes(have: Sizes, want: Sizes) -> bool:
    """That a tensor has just these sizes."""
    if len(have) != len(want):
        return False
    return all(a is b or a == b or establish_equal(a, b) for a, b in zip(have, want, strict=True))


def establish_expandable(have: Sizes, want: Sizes) -> bool:
    """That a tensor can be expanded to these sizes. Of data the operator itself makes sure."""
    if len(have) > len(want):
        return False
    for a, b in zip(reversed(have), reversed(want), strict=False):
        if a is b or a == b or a == 1:
            continue
        scope = scope_of(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else None
        hints = (a, b) if scope is None else (scope.hint(a), scope.hint(b))
        if None in hints:
            continue
        if hints[0] == 1 and hints[1] != 1 and scope is not None:
            scope.specialize(a)
        elif not establish_equal(a, b):
            return False
    return True


def _pick_min_operand(x: Size, other: Size) -> Size:
    """Of a minimum that is to equal a third size, the part that it is in the example.

    A `Dim` can be told to equal another, or a number, but not the lesser of two others.
    """
    if not isinstance(x, Expr) or x.kind != "min" or other in x.args or is_provably_equal(x, other):
        return x
    hint = x.scope.hint(x)
    if hint is None or hint < 2:  # of small sizes the example says little; see `choose_branch`
        return x
    least = next(part for part in x.args if x.scope.hint(part) == hint)
    return least if all(guard_as_stated(le(least, part)) for part in x.args) else x


def _is_satisfied(cond: bool | Expr) -> bool:
    """What depends on data is checked when the program runs; the rest the example decides."""
    if isinstance(cond, Expr) and cond.scope.hint(cond) is None:
        return expect_condition(cond)
    return guard_as_stated(cond)


def establish(cond: bool | Expr) -> bool:
    """Any other condition; see `choose_branch`."""
    answer = choose_branch(cond)
    return _is_satisfied(cond) if answer is None else answer


def is_false_at_example(cond: bool | Expr) -> bool:
    """Whether to refuse what an operator checks itself when it runs.

    Nothing is written down, so that no size is asked for more than eager does.
    """
    return (cond if isinstance(cond, bool) else cond.scope.hint(cond)) is False


def require_nonempty(what: str, self: Abstract, sizes: Iterable[Size]) -> None:
    """That there is something in each of these dims: windows and transforms refuse to have none."""
    for s in sizes:
        if not establish(ge(s, 1)):
            raise ShapeError(f"{what}: only the batch may be empty, but got {self}")


def numel(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for s in sizes:
        total = total * s
    return total


def wrap_dim(dim: int, rank: int) -> int:
    """A dim counted from the end as one counted from the front; 0-d tensors have one dim."""
    span = max(rank, 1)
    if not -span <= dim < span:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], "
            f"but got {dim})"
        )
    return dim + span if dim < 0 else dim


def invert_permutation(order: Sequence[int]) -> tuple[int, ...]:
    """The order of dims that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def wrap_distinct(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """Dims of which none may come twice."""
    wrapped = tuple(wrap_dim(d, rank) for d in dims)
    for i, d in enumerate(wrapped):
        if d in wrapped[:i]:
            raise ShapeError(f"dim {d} appears multiple times in the list of dims")
    return wrapped


def wrap_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """All dims when None or empty."""
    if dims is None:
        return tuple(range(rank))
    if isinstance(dims, int):
        return (wrap_dim(dims, rank),)
    if not dims:
        return tuple(range(rank))
    return tuple(wrap_dim(d, rank) for d in dims)


def broadcast(*shapes: Sizes) -> Sizes:
    """The common size; a dim meets another of the same size, or a literal 1."""
    result = shapes[0]
    for shape in shapes[1:]:
        if shape is not result and shape != result:
            result = _broadcast_pair(result, shape)
    return result


def _broadcast_pair(a: Sizes, b: Sizes) -> Sizes:
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return a
    out = list(a)
    start = len(a) - len(b)
    for i, y in enumerate(b, start):
        x = out[i]
        if x is y or (type(y) is int and y == 1):
            continue
        if type(x) is int:
            if x == 1:
                out[i] = y
                continue
            if type(y) is int:
                if x == y:
                    continue
                raise ShapeError(_describe_mismatch(a, b, i, x, y))
        out[i] = _broadcast_dim(x, y, a, b, i)
    return tuple(out)


def _broadcast_dim(x: Size, y: Size, a: Sizes, b: Sizes, dim: int) -> Size:
    """Two sizes of which at least one is symbolic: equal, or one of them is 1.

    Equality is preferred whenever the example allows it, so that an example size of 1 does not
    turn a dynamic dim into a constant.
    """
    if is_provably_equal(x, y):
        return x if type(x) is int else y if type(y) is int else x
    if is_first_of(x, y) or is_first_of(y, x):
        return y if is_first_of(x, y) else x
    scope = scope_of(x, y)
    hint_x, hint_y = scope.hint(x), scope.hint(y)
    if hint_x is None or hint_y is None or hint_x == hint_y:
        if establish_equal(x, y):
            return x if type(x) is int else y if type(y) is int else x
    elif hint_y == 1:
        scope.specialize(y)
        return x
    elif hint_x == 1:
        scope.specialize(x)
        return y
    raise ShapeError(_describe_mismatch(a, b, dim, x, y))


def is_first_of(x: Size, y: Size) -> bool:
    """Whether a size is that of `t[:1]` where y is that of t: it goes with y, and 0 with 0."""
    return isinstance(x, Expr) and x.kind == "min" and is_provably_equal(x, min_(1, y))


def _describe_mismatch(a: Sizes, b: Sizes, dim: int, x: Size, y: Size) -> str:
    return (
        f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton "
        f"dimension {dim}: {_format_sizes(a)} and {_format_sizes(b)}"
    )


def _format_sizes(sizes: Sizes) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"


def wrap_index(index: Size, size: Size, what: str) -> Size:
    """An index in [-size, size) as one in [0, size)."""
    if type(index) is int and type(size) is int:
        if not -size <= index < size:
            raise IndexError(f"{what}: index {index} is out of bounds for a size of {size}")
        return index + size if index < 0 else index
    if type(index) is int:
        if not establish(lt(index, size) if index >= 0 else ge(size, -index)):
            raise ShapeError(f"{what}: index {index} is out of bounds for a size of {size}")
        return index + size if index < 0 else index
    if scope_of(index).hint(lt(index, size)) is None:  # the operator checks it when it runs
        return index + size if is_proven(lt(index, 0)) else index
    from_front = choose_branch(ge(index, 0))
    if from_front is None:
        return ite(ge(index, 0), index, index + size)
    position = index if from_front else index + size
    if not establish(lt(position, size) if from_front else ge(position, 0)):
        raise ShapeError(f"{what}: index {index} is out of bounds for a size of {size}")
    return position


# Slice bounds: start and length, clamped as in Python, for symbolic sizes.
#
# Whether a bound lies within the size is taken from the example and written down, for a `Dim` to
# say. Where the example is a size of 0 or 1 that others would depart from, or data decides, nothing
# is assumed: the result is a minimum or maximum. So it is within `Scope.clamp_slice_bounds`, and
# where an end lies within or beyond as several dims have it, which no `Dim` can say. A start is
# always taken to lie as in the example: `x[past:]` is to be `total - past` long.

_NO_END = (1 << 63) - 1  # what Python's `x[a:]` passes as the end


def slice_bounds(size: Size, start: Size | None, end: Size | None, step: int) -> tuple[Size, Size]:
    """The first element and the number of elements."""
    if start is None:
        start = 0
    if end is None or (type(end) is int and end >= _NO_END):
        end = size
    if not (type(size) is Expr or type(start) is Expr or type(end) is Expr):
        at, past, _ = slice(start, end, step).indices(size)
        return at, max(0, -((at - past) // step))
    first = _clamp_bound(start, size, _follow_example)
    stop = size if end is size else _clamp_bound(end, size, _follow_example_in_one_dim)
    length = _clamp_at_zero(stop - first)
    return first, length if step == 1 else (length + (step - 1)) // step


def _clamp_bound(bound: Size, size: Size, followed: Callable[[bool | Expr], bool | None]) -> Size:
    """A bound as a position in [0, size]; `followed` says whether it lies within."""
    if (type(bound) is int and bound == 0) or is_provably_equal(bound, size):
        return bound if type(bound) is int else size
    from_front = _is_from_front(bound)
    if from_front is None:
        return ite(ge(bound, 0), min_(bound, size), max_(bound + size, 0))
    if not from_front:
        return _clamp_at_zero(bound + size)
    inside = followed(le(bound, size))
    return min_(bound, size) if inside is None else bound if inside else size


def _is_from_front(bound: Size) -> bool | None:
    """Whether a bound counts from the front."""
    if type(bound) is int or is_proven(ge(bound, 0)):
        return type(bound) is not int or bound >= 0
    return False if is_proven(lt(bound, 0)) else _follow_example(ge(bound, 0))


def _follow_example(cond: bool | Expr) -> bool | None:
    """Which way the example has it, if that may be taken for granted; see `choose_branch`."""
    if isinstance(cond, bool) or cond.scope.slices_follow_example:
        return choose_branch(cond)
    return cond.scope.decide(cond)


def _follow_example_in_one_dim(cond: bool | Expr) -> bool | None:
    """As `_follow_example`, but nothing is taken for granted that several dims decide."""
    if isinstance(cond, bool) or len(symbols(cond.scope.simplify(cond))) < 2:
        return _follow_example(cond)
    return cond.scope.decide(cond)


def _clamp_at_zero(x: Size) -> Size:
    """max(x, 0), or x where the example has it so; an empty slice ties nothing down."""
    if type(x) is not Expr:
        return max(x, 0)
    positive = x.scope.hint(ge(x, 0)) and _follow_example(ge(x, 0))
    return x if positive or is_proven(ge(x, 0)) else max_(x, 0)
