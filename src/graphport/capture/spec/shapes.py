"""Other ways to `dynamic_shapes`: by tensor, by additional inputs, by the fixes of an error."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphport.arguments import ARGS, DICT, MODEL, NONE, PROGRAM, check_arguments
from graphport.capture.spec.inputs import Inputs, Variadic, bind_inputs
from graphport.compat.torch import pytree
from graphport.errors import ConstraintViolationError, InputError, InternalError, SpecError
from graphport.program import ExportedProgram
from graphport.symbolic.dims import Dim, Hint, convert_torch_dim
from graphport.tensors.concrete import sizes_of
from graphport.types import PyTree


class ShapesCollection:
    """A spec for each tensor, wherever it is among the inputs.

    Assign a tuple with an entry per dimension, or a dict by dimension; or set one dimension:

    >>> import torch, graphport as gp
    >>> x, y = torch.zeros(4, 3), torch.zeros(4)
    >>> batch, shapes = gp.Dim("batch", max=64), gp.ShapesCollection()
    >>> shapes[x] = (batch, None)
    >>> shapes[y][0] = batch
    >>> shapes.dynamic_shapes(lambda a, b: a["x"].sum(1) + b, ({"x": x}, y))
    {'a': {'x': {0: Dim('batch', max=64), 1: None}}, 'b': {0: Dim('batch', max=64)}}

    A tensor is known by identity: the one that is passed to `gp.export`, not a copy.
    """

    def __init__(self) -> None:
        # The tensor is kept, so that no other can come to have its id.
        self._specs: dict[int, tuple[torch.Tensor, dict[int, Any]]] = {}

    def __setitem__(self, t: torch.Tensor, spec: object) -> None:
        new = _normalise_spec(_require_tensor(t), spec)
        _, known = self._specs.get(id(t), (t, None))
        if known and _canonicalise_spec(t, known) != _canonicalise_spec(t, new):
            raise SpecError(
                f"Shapes assigned to one tensor of shape {_format_shape(t)} do not match: "
                f"first {known}, now {new}",
                where="ShapesCollection",
                fix="assign to a tensor once; shapes[x][d] = ... changes one dimension",
            )
        if not known:
            self._specs[id(t)] = t, new

    def __getitem__(self, t: torch.Tensor) -> dict[int, Any]:
        """The dims of a tensor by number: a dict to read and to change."""
        return self._specs.setdefault(id(_require_tensor(t)), (t, {}))[1]

    def __len__(self) -> int:
        """How many tensors have a spec."""
        return len(self._assigned())

    @check_arguments(mod=MODEL)
    def dynamic_shapes(
        self, mod: object, args: tuple[object, ...], kwargs: dict[str, PyTree] | None = None
    ) -> dict[str, object]:
        """The specs in the structure of the inputs, by parameter name."""
        left = self._assigned()

        def of(leaf: Any) -> Any:
            left.pop(id(leaf), None)
            return self._specs.get(id(leaf), (None, None))[1] or None

        found = build_spec(of, bind_inputs(mod, args, kwargs))
        if left:
            shapes = ", ".join(_format_shape(t) for t in left.values())
            raise SpecError(
                "ShapesCollection has specs for tensors that were not found among the inputs, of "
                f"shape {shapes}",
                where="ShapesCollection",
                fix="assign to the very tensors that are passed as args and kwargs, not to copies",
            )
        return found

    def _assigned(self) -> dict[int, torch.Tensor]:
        return {i: t for i, (t, spec) in self._specs.items() if spec}


class AdditionalInputs:
    """Further example inputs, from which follows what is dynamic.

    A size, int or float that differs between the examples becomes `Dim.DYNAMIC`.

    >>> import torch, graphport as gp
    >>> more = gp.AdditionalInputs()
    >>> more.add((torch.zeros(5, 3), 2))
    >>> more.add((torch.zeros(7, 3), 2))
    >>> more.dynamic_shapes(lambda x, k: x * k, (torch.zeros(4, 3), 2))
    {'x': {0: Dim.DYNAMIC}, 'k': None}
    """

    def __init__(self) -> None:
        self._examples: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree] | None = None) -> None:
        """One more example, as it would be passed to `gp.export`."""
        if not isinstance(args, tuple):
            raise InputError(
                f"args must be a tuple of the positional arguments, got {type(args).__name__}",
                fix="more.add((x, y))",
            )
        if not isinstance(kwargs, (dict, type(None))):
            raise InputError(
                f"kwargs must be a dict by parameter name, got {type(kwargs).__name__}"
            )
        self._examples.append((args, dict(kwargs or {})))

    def __len__(self) -> int:
        return len(self._examples)

    @check_arguments(mod=MODEL)
    def dynamic_shapes(
        self, mod: object, args: tuple[object, ...], kwargs: dict[str, PyTree] | None = None
    ) -> dict[str, object]:
        """What is dynamic, in the structure of the inputs, by parameter name."""
        first = bind_inputs(mod, args, kwargs)
        leaves, structure = _flatten_inputs(first)
        specs: list[Any] = [None] * len(leaves)
        for i, (more, keywords) in enumerate(self._examples):
            others, shape = _flatten_inputs(bind_inputs(mod, more, keywords))
            if shape != structure:
                raise _structure_error(i, structure, shape)
            for k, ((path, leaf), (_, other)) in enumerate(zip(leaves, others, strict=True)):
                specs[k] = _merge_specs(specs[k], _compare_leaves(path, leaf, other, i))
        parts = iter(specs)
        return build_spec(lambda leaf: next(parts), first)

    @check_arguments(ep=PROGRAM)
    def verify(self, ep: ExportedProgram) -> None:
        """Run the program on every example; raises for the first that it refuses.

        The examples themselves are left as they are, also by a program that writes to its inputs.
        """
        for i, (args, kwargs) in enumerate(self._examples):
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda t: t.detach().clone(), (args, kwargs)
            )
            try:
                ep.module()(*args, **kwargs)
            except ValueError as error:
                raise SpecError(
                    f"additional input {i} has another structure than the program takes: {error}",
                    where=f"AdditionalInputs, example {i}",
                ) from error
            except InternalError:
                raise
            except Exception as error:  # whatever the user's operators raise at these sizes
                raise ConstraintViolationError(
                    f"the program does not run on additional input {i}: {error}",
                    where=f"AdditionalInputs, example {i}",
                ) from error


# Specs of tensors


def _require_tensor(t: object) -> torch.Tensor:
    if isinstance(t, torch.Tensor):
        return t
    if isinstance(t, (int, float)):
        raise SpecError(
            f"ShapesCollection knows tensors by identity, and {t!r} has none: equal numbers are "
            "one object",
            where="ShapesCollection",
            fix="dynamic_shapes={'name of the argument': Dim.DYNAMIC}",
        )
    raise SpecError(
        f"ShapesCollection assigns specs to tensors, got {t!r}", where="ShapesCollection"
    )


def _normalise_spec(t: torch.Tensor, spec: object) -> dict[int, Any]:
    if isinstance(spec, Mapping):
        return dict(spec)
    if isinstance(spec, (tuple, list)) and len(spec) == t.dim():
        return dict(enumerate(spec))
    raise SpecError(
        f"a tensor of shape {_format_shape(t)} takes a dict {{dim: Dim}}, or a tuple with "
        f"{t.dim()} entries, got {spec!r}",
        where="ShapesCollection",
    )


def _canonicalise_spec(t: torch.Tensor, spec: dict[int, object]) -> dict[int, Any]:
    """What a spec says, however it is written."""
    rank = t.dim()
    said = {d: convert_torch_dim(dim) for d, dim in spec.items()}
    return {
        d % rank if isinstance(d, int) and rank else d: dim
        for d, dim in said.items()
        if dim not in (None, Dim.STATIC)
    }


def _format_shape(t: torch.Tensor) -> str:
    return str(sizes_of(t))


# Structures


def build_spec(fn: Callable[[Any], Any], inputs: Inputs) -> dict[str, object]:
    """A spec for each leaf, in dicts and lists that follow the inputs."""

    def walk(value: object) -> Any:
        if isinstance(value, Variadic):
            return tuple(map(walk, value.values))
        if pytree.tree_is_leaf(value):
            return fn(value)
        children = pytree.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
        keys = [path[0] for path, _ in children]
        parts = [walk(child) for _, child in children]
        if all(isinstance(key, pytree.SequenceKey) for key in keys):
            return tuple(parts) if type(value) is tuple else parts
        names = [getattr(key, "key", getattr(key, "name", None)) for key in keys]
        return dict(zip(names, parts, strict=True))

    return {name: walk(value) for name, (_, value) in inputs.parameters.items()}


def _flatten_inputs(inputs: Inputs) -> tuple[list[tuple[str, PyTree]], PyTree]:
    """(path, leaf) in the order of `build_spec`, and the structure; arguments are known by name."""
    leaves: list[tuple[str, Any]] = []
    structure: dict[str, Any] = {}
    for name, (path, value) in inputs.parameters.items():
        values = value.values if isinstance(value, Variadic) else (value,)
        structure[name] = pytree.tree_structure(values)
        for i, part in enumerate(values):
            base = f"{path}[{value.first + i}]" if isinstance(value, Variadic) else path
            found = pytree.tree_flatten_with_path(part)[0]
            leaves += [(base + pytree.keystr(key), leaf) for key, leaf in found]
    return leaves, structure


def _structure_error(example: int, want: dict[str, object], have: dict[str, object]) -> SpecError:
    if want.keys() != have.keys():
        what = f"the arguments {', '.join(have)}, instead of {', '.join(want)}"
    else:
        name = next(n for n in want if want[n] != have[n])
        what = f"another structure at {name}:\n{have[name]}\ninstead of\n{want[name]}"
    return SpecError(
        f"additional input {example} has {what}",
        where=f"AdditionalInputs, example {example}",
        fix="examples with the same arguments and the same containers",
    )


# Differences


def _compare_leaves(path: str, a: object, b: object, example: int) -> PyTree:
    """What is dynamic in `a` if it may also be `b`: dims by number, a hint, or None."""
    text = f"additional input {example} has"
    fix = "examples that differ in sizes, ints and floats only"
    place = f"AdditionalInputs, example {example}"
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        for what, of in _STATIC_PROPERTIES.items():
            if of(a) != of(b):
                raise SpecError(
                    f"{text} {what} {of(b)} at {path}, instead of {of(a)}: only sizes can be "
                    "dynamic",
                    where=place,
                    fix=fix,
                )
        pairs = enumerate(zip(sizes_of(a), sizes_of(b), strict=True))
        return {d: Dim.DYNAMIC for d, (m, n) in pairs if m != n} or None
    if type(a) is not type(b):
        raise SpecError(
            f"{text} a {type(b).__name__} at {path}, instead of a {type(a).__name__}",
            where=place,
            fix=fix,
        )
    if a == b or (a != a and b != b):
        return None
    if type(a) in (int, float):
        return Dim.DYNAMIC
    raise SpecError(
        f"{text} {b!r} at {path}, instead of {a!r}: a {type(a).__name__} is a constant of the "
        "program and cannot be dynamic",
        where=place,
        fix=fix,
    )


_STATIC_PROPERTIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda t: t.dtype,
    "rank": lambda t: t.dim(),
    "device": lambda t: t.device.type,
}


def _merge_specs(a: dict[int, Hint] | Hint | None, b: dict[int, Hint] | Hint | None) -> Any:
    if isinstance(a, dict) and isinstance(b, dict):
        return dict(sorted({**a, **b}.items()))
    return b if a is None else a


# `gp.refine_dynamic_shapes`: a spec with the suggested fixes of an error applied to it.
#
# A fix is a line of Python: the definition of a dim (`d = Dim('d', max=8)`, `d = 2*_d + 1`), or
# an assignment to a place in the spec (`dynamic_shapes['x'][0] = 4`). It is read, never run.

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_CONSTRUCTORS: dict[str, Any] = {
    "Dim": Dim,
    "Dim.AUTO": Dim.AUTO,
    "Dim.DYNAMIC": Dim.DYNAMIC,
    "Dim.STATIC": Dim.STATIC,
}


@check_arguments(dynamic_shapes=DICT | ARGS | NONE)
def refine_dynamic_shapes(error: ConstraintViolationError | str, dynamic_shapes: object) -> PyTree:
    """The spec as the suggested fixes of an error would have it.

    >>> import torch, graphport as gp
    >>> spec = {"x": {0: gp.Dim("n")}, "y": {0: gp.Dim("m")}}
    >>> try:
    ...     gp.export(lambda x, y: x + y[1:], (torch.ones(3), torch.ones(4)), dynamic_shapes=spec)
    ... except gp.errors.ConstraintViolationError as error:
    ...     gp.refine_dynamic_shapes(error, spec)
    {'x': {0: Dim('n')}, 'y': {0: n + 1}}
    """
    leaves, structure = pytree.tree_flatten(dynamic_shapes)
    leaves = list(map(convert_torch_dim, leaves))
    dims: dict[str, Any] = {d.root.__name__: d.root for d in leaves if isinstance(d, Dim)}
    placed: list[tuple[list[Any], Any]] = []
    for statement in _parse_statements(_list_fixes(error)):
        target, value = _read_assignment(statement, dims)
        if isinstance(target, str):
            dims[target] = value
        else:
            placed.append((target, value))
    leaves = [_redefine_dim(d, dims) if isinstance(d, Dim) else d for d in leaves]
    spec = pytree.tree_unflatten(leaves, structure)
    for path, value in placed:
        try:
            spec = _replace_at(spec, path, value)
        except (LookupError, TypeError, AttributeError):
            raise InputError(f"the spec has no place for {path} = {value}: {spec!r}") from None
    return spec


def _list_fixes(error: ConstraintViolationError | str) -> Sequence[str]:
    if isinstance(error, ConstraintViolationError):
        return error.fix
    _, found, tail = str(error).partition("Suggested fixes:\n")
    if not found:
        raise InputError(
            "there are no suggested fixes in this error, so nothing to refine the spec with",
            fix="pass the ConstraintViolationError of gp.export, or its text",
        )
    return [line.strip() for line in tail.splitlines() if line.strip()]


def _parse_statements(lines: Sequence[str]) -> list[ast.stmt]:
    try:
        return ast.parse("\n".join(lines)).body
    except SyntaxError as error:
        raise InputError(f"a suggested fix is `name = ...`, got {error.text}") from None


def _read_assignment(
    statement: ast.stmt, dims: Mapping[str, object]
) -> tuple[str | list[Any], Any]:
    """(name, value) of a definition, or (path in the spec, value)."""
    if not isinstance(statement, ast.Assign):
        raise InputError(f"a suggested fix is `name = ...`, got {ast.unparse(statement)}")
    value = _evaluate_node(statement.value, dims)
    target = statement.targets[0]
    if isinstance(target, ast.Name):
        return target.id, value
    path: list[Any] = []
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        if isinstance(target, ast.Subscript):
            path.insert(0, ast.literal_eval(target.slice))
        else:
            path.insert(0, _Field(target.attr))
        target = target.value
    return path, value


class _Field(str):
    """A step of a path that is the attribute of a dataclass."""


def _evaluate_node(node: ast.expr, dims: Mapping[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in dims:
        return dims[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        apply = _OPERATORS[type(node.op)]
        return apply(_evaluate_node(node.left, dims), _evaluate_node(node.right, dims))
    text = ast.unparse(node)
    if text in _CONSTRUCTORS:
        return _CONSTRUCTORS[text]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _CONSTRUCTORS:
        limits = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
        return _CONSTRUCTORS[ast.unparse(node.func)](*map(ast.literal_eval, node.args), **limits)
    raise InputError(f"not a definition of a dim, or of one that is not known: {text}")


def _redefine_dim(dim: Dim, dims: Mapping[str, Any]) -> object:
    """A dim of the spec after its root has changed."""
    factor, offset = dim.linear
    return dims[dim.root.__name__] * factor + offset


def _replace_at(spec: PyTree, path: list[Any], value: Any) -> object:
    """A spec with one place changed."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, _Field):
        return dataclasses.replace(spec, **{key: _replace_at(getattr(spec, key), rest, value)})
    if isinstance(spec, Mapping):
        return {**spec, key: _replace_at(spec[key], rest, value)}
    parts = list(spec)
    parts[key] = _replace_at(parts[key], rest, value)
    return type(spec)(parts)
