"""Registry of lowerings, from operator overloads to functions that emit ONNX, and patterns.

A lowering is a function of the builder and of the operator's arguments under their schema names. An
argument that it does not name must hold its default, or be one that says nothing about the result:
of any operator, or of this one, as `ignores` says. Anything else is refused, so that nothing is
ignored in silence. Keys are overload objects: a typo fails at import, and so do registering twice
and a name that the schema does not have.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch.fx import Node

from graphport import source
from graphport.compat import torchvision
from graphport.compat.operators import aten
from graphport.compat.torch import HigherOrderOperator, OpOverload
from graphport.errors import InputError, UnsupportedError
from graphport.onnx.emit.builder import Number
from graphport.onnx.emit.ir import Complex, Value
from graphport.ops.registry import list_known, overload_table, read_default
from graphport.tensors.abstract import get_val

Lowered: TypeAlias = (
    "Value | Complex | Number | torch.dtype | str | list[Lowered] | tuple[Lowered, ...] | None"
)
"""What a lowering takes and gives: an ONNX value, or what is known at export, or lists of them."""
Fn = Callable[..., Lowered]
F = TypeVar("F", bound=Fn)

# Where and how memory is kept, not what is computed.
_IRRELEVANT = set(
    """
        device layout pin_memory memory_format non_blocking copy generator implicit enable_gqa_check
    """.split()
)


class Lowering:
    """A function with what is needed to call it with the arguments of a node."""

    __slots__ = ("arguments", "defaults", "fn", "named", "op", "unnamed")

    def __init__(
        self, op: OpOverload, fn: Fn, first: OpOverload | None = None, ignores: str = ""
    ) -> None:
        if not callable(fn):
            raise InputError(f"the lowering for {op} is {fn!r}", fix="a function (b, ...)")
        self.op = op
        self.fn = fn
        self.named = {p.name for p in list(inspect.signature(fn).parameters.values())[1:]}
        ignored = set(ignores.split())
        schema = op._schema.arguments
        theirs = (first or op)._schema.arguments
        # Under the names of the first operator: `mat2` of mm is the `other` of matmul.
        self.arguments = {
            a.name: _argument_name(a if a.name in self.named or i >= len(theirs) else theirs[i])
            for i, a in enumerate(schema)
        }
        unknown = sorted((self.named | ignored) - set(self.arguments.values()))
        if unknown:
            raise InputError(
                f"the lowering for {op} takes {', '.join(unknown)}, which is no argument of it",
                where=source.locate_function(fn),
                fix=f"def lower(b, {', '.join(self.arguments.values())})",
            )
        defaults = {
            name: read_default(a) if a.has_default_value() else inspect.Parameter.empty
            for a, name in zip(schema, self.arguments.values(), strict=True)
        }
        self.defaults = {
            k: v
            for k, v in defaults.items()
            if k in self.named and v is not inspect.Parameter.empty
        }
        allowed = self.named | ignored | _IRRELEVANT
        self.unnamed = {k: v for k, v in defaults.items() if k not in allowed}

    def bind(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, those that the function takes."""
        given = dict(self.defaults)
        for name, value in zip(self.arguments.values(), args, strict=False):
            self._put(given, name, value)
        for name, value in kwargs.items():
            self._put(given, self.arguments[name], value)
        return given

    def _put(self, given: dict[str, Any], name: str, value: Any) -> None:
        if name in self.named:
            given[name] = value
        elif name in self.unnamed and not _is_same(value, self.unnamed[name]):
            raise UnsupportedError(f"{self.op} with {name}={value!r} has no ONNX lowering")


def _argument_name(argument: torch.Argument) -> str:
    """The name of an argument; that of a keyword of Python (`from`) has a `_` behind it."""
    return f"{argument.name}_" if keyword.iskeyword(argument.name) else argument.name


def _is_same(value: Any, default: Any) -> bool:
    return (type(value) is type(default) and value == default) or value is default


LOWERINGS: dict[OpOverload, Lowering] = {}
NEEDS: dict[OpOverload, Sequence[str]] = {}
"""Operators of ONNX that the lowerings of some operators cannot do without."""
_LOWERINGS_BY_NAME: dict[str, tuple[Fn, Sequence[str], str]] = {}
"""Operators of packages that may not be there, by their names; with what `lower` is told."""
UNFOLDED: set[str] = set()
"""Names of operators that a file has also of constants: their operands are smaller than results."""
COMPLEX: dict[OpOverload, Lowering] = {}
"""For operators with complex operands or results."""
BY_PARTS: set[OpOverload] = set()
"""Those that do the same with real and imaginary parts, each as the lowering of real numbers."""
HIGHER_ORDER: dict[HigherOrderOperator, Fn] = {}
FUSIONS: dict[OpOverload, list[Fn]] = {}


def lower(*ops: OpOverload, needs: Sequence[str] = (), ignores: str = "") -> Callable[[F], F]:
    """Register a lowering for operators that take the same arguments; the first gives the names.

    `needs` are operators of ONNX that a runtime may have kernels of in older opsets only, `ignores`
    the names of arguments that make no difference.
    """

    known = list_known(ops)

    def register(fn: F) -> F:
        for op in known:
            _register(op, fn, known[0], ignores, needs)
        return fn

    return register


def lower_complex(*ops: OpOverload) -> Callable[[F], F]:
    """Register a lowering for complex operands or results: `Complex` values instead of plain."""

    known = list_known(ops)

    def register(fn: F) -> F:
        for op in known:
            if op in COMPLEX:
                raise ValueError(f"{op} of complex numbers has a lowering already")
            COMPLEX[op] = Lowering(op, fn, known[0])
        return fn

    return register


def lower_named(
    *names: str, needs: Sequence[str] = (), ignores: str = "", folds: bool = True
) -> Callable[[F], F]:
    """Register a lowering for operators of other packages: `transformers::grouped_mm_fallback`.

    One that does not fold is not computed at export, if its operands are constants.
    """

    def register(fn: F) -> F:
        UNFOLDED.update(() if folds else names)
        for name in names:
            if name in _LOWERINGS_BY_NAME:
                raise ValueError(f"{name} has a lowering already")
            _LOWERINGS_BY_NAME[name] = fn, needs, ignores
        return fn

    return register


def is_known(op: OpOverload) -> bool:
    """Whether an operator has a lowering."""
    if op not in LOWERINGS and isinstance(op, OpOverload) and op.name() in _LOWERINGS_BY_NAME:
        fn, needs, ignores = _LOWERINGS_BY_NAME[op.name()]
        _register(op, fn, ignores=ignores, needs=needs)
    return op in LOWERINGS


def lower_table(rows: Mapping[str, Any], make: Callable[[Any], Fn], ignores: str = "") -> None:
    """Register operators that differ in one thing, by names: `make` gives the lowering of a row."""
    table = overload_table(rows)
    for op in list_known(table):
        _register(op, make(table[op]), ignores=ignores)


def _register(
    op: OpOverload,
    fn: Fn,
    first: OpOverload | None = None,
    ignores: str = "",
    needs: Sequence[str] = (),
) -> None:
    if op in LOWERINGS:
        raise ValueError(f"{op} has a lowering already")
    LOWERINGS[op] = Lowering(op, fn, first, ignores)
    if needs:
        NEEDS[op] = needs


def higher_order(op: HigherOrderOperator) -> Callable[[F], F]:
    """Register `fn(lowerer, node)` for an operator that takes graphs."""

    def register(fn: F) -> F:
        if op in HIGHER_ORDER:
            raise ValueError(f"{op} has a lowering already")
        HIGHER_ORDER[op] = fn
        return fn

    return register


def fusion(*roots: OpOverload) -> Callable[[F], F]:
    """Register a pattern, by the operator that it ends in: `fn(lowerer, node)`, None if no match.

    It is tried before the lowering of its root. The nodes before the root have been lowered by
    then; what only the root used of them is removed in the end.
    """

    def register(fn: F) -> F:
        for root in roots:
            FUSIONS.setdefault(root, []).append(fn)
        return fn

    return register


def find_operator(name: Any) -> OpOverload:
    """The overload of a name like `aten::add.Tensor`; of the only one, or `default`, without.

    An operator itself, such as `torch.ops.aten.relu`, names itself.
    """
    if isinstance(name, OpOverload):
        return name
    name = str(name)
    namespace, _, rest = name.replace("::", ".").partition(".")
    packet_name, _, overload = rest.partition(".")
    if namespace == torchvision.NAMESPACE and packet_name in torchvision.SCHEMAS:
        torchvision.define_operators()
    try:
        packet = getattr(getattr(torch.ops, namespace), packet_name)
        only = packet.overloads()
        return getattr(packet, overload or (only[0] if len(only) == 1 else "default"))
    except AttributeError:
        raise InputError(
            f"there is no operator {name}", fix='its name as in "aten::add.Tensor"'
        ) from None


# Pattern matching in the program's graph, from the last node of a pattern backwards.
#
# A pattern is a tree of `Call`s with names at its leaves. Operands of commutative operators match
# in either order, and a name stands for the same operand wherever it occurs.
#
#     X = Any_("x")
#     RMS = mul(X, rsqrt(add(mean(square(X)), Number("eps"))))
#     found = match(RMS, node)          # {"x": <node>, "eps": 1e-06}, or None

Bindings = dict[str, Any]
_COMMUTATIVE = {aten.add.Tensor, aten.mul.Tensor}


class Pattern:
    """Something that an operand may match."""

    def find(self, x: object, found: Bindings) -> Iterator[Bindings]:
        """The ways to match, each with what has been found so far."""
        raise TypeError("a pattern says what it matches")


class Name(Pattern):
    """Any operand that `fits`, the same one at each place of the name."""

    def __init__(self, name: str, fits: Callable[[Any], bool] = lambda x: True) -> None:
        self.name = name
        self.fits = fits

    def find(self, x: Any, found: Bindings) -> Iterator[Bindings]:
        if self.name in found:
            if found[self.name] is x or (not isinstance(x, Node) and found[self.name] == x):
                yield found
        elif self.fits(x):
            yield {**found, self.name: x}


class Call(Pattern):
    """A call of one of several operators with these operands, and no other arguments."""

    def __init__(self, targets: Any, *operands: Any) -> None:
        self.targets = targets if isinstance(targets, tuple) else (targets,)
        self.operands = operands

    def find(self, x: Any, found: Bindings) -> Iterator[Bindings]:
        if not isinstance(x, Node) or x.target not in self.targets:
            return
        if len(x.args) < len(self.operands) or x.kwargs:
            return
        yield from _match_all(self.operands, x.args, found)
        if x.target in _COMMUTATIVE:
            yield from _match_all(self.operands, x.args[1::-1], found)


class Conversion(Pattern):
    """A conversion of a pattern to another dtype of floats."""

    def __init__(self, pattern: Any) -> None:
        self.pattern = pattern

    def find(self, x: Any, found: Bindings) -> Iterator[Bindings]:
        if isinstance(x, Node) and x.target is aten._to_copy.default:
            if get_val(x).dtype.is_floating_point:
                yield from _match_one(self.pattern, x.args[0], found)


class OneOf(Pattern):
    """Any of several patterns."""

    def __init__(self, *patterns: Any) -> None:
        self.patterns = patterns

    def find(self, x: Any, found: Bindings) -> Iterator[Bindings]:
        for pattern in self.patterns:
            yield from _match_one(pattern, x, found)


def _match_all(patterns: tuple[Any, ...], operands: Any, found: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield found
        return
    for some in _match_one(patterns[0], operands[0], found):
        yield from _match_all(patterns[1:], operands[1:], some)


def _match_one(pattern: Any, x: Any, found: Bindings) -> Iterator[Bindings]:
    if isinstance(pattern, Pattern):
        yield from pattern.find(x, found)
    elif isinstance(pattern, float):
        if isinstance(x, (int, float)) and abs(x - pattern) <= 1e-6 * abs(pattern):
            yield found
    elif not isinstance(x, Node) and x == pattern:
        yield found


def match_pattern(pattern: Any, node: Node) -> Bindings | None:
    """What the names of a pattern stand for at a node; None if it is something else."""
    return next(_match_one(pattern, node, {}), None)


def number(name: str) -> Name:
    return Name(name, lambda x: isinstance(x, (int, float)))


def tensor(name: str) -> Name:
    return Name(name, lambda x: isinstance(x, Node))


def with_optional_cast(pattern: Any) -> OneOf:
    """The pattern, or a conversion of it to another dtype of floats."""
    return OneOf(pattern, Conversion(pattern))


def is_all_true(mask: Value) -> bool:
    """Whether a mask is true throughout: models without padding make such masks all the same."""
    made = mask.producer
    while made is not None and made.op in ("Expand", "Unsqueeze", "Reshape"):
        assert made.inputs[0] is not None
        mask = made.inputs[0]
        made = mask.producer
    constant = mask.tensor
    return constant is not None and constant.dtype is torch.bool and bool(constant.all())
