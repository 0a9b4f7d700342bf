"""`gp.refine_dynamic_shapes`: a spec with the suggested fixes of an error applied to it.

A fix is a line of Python: the definition of a dim (`d = Dim('d', max=8)`, `d = 2*_d + 1`), or
an assignment to a place in the spec (`dynamic_shapes['x'][0] = 4`). It is read, never run.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from graphport.arguments import ARGS, DICT, NONE, takes
from graphport.capture.dims import Dim, adopt
from graphport.errors import ConstraintViolationError, InputError

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip
_MAKERS: dict[str, Any] = {
    "Dim": Dim, "Dim.AUTO": Dim.AUTO, "Dim.DYNAMIC": Dim.DYNAMIC, "Dim.STATIC": Dim.STATIC,
}  # fmt: skip


@takes(dynamic_shapes=DICT | ARGS | NONE)
def refine_dynamic_shapes(error: ConstraintViolationError | str, dynamic_shapes: Any) -> Any:
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
    leaves = list(map(adopt, leaves))
    dims: dict[str, Any] = {d.root.__name__: d.root for d in leaves if isinstance(d, Dim)}
    placed: list[tuple[list[Any], Any]] = []
    for statement in _statements(_lines(error)):
        target, value = _read(statement, dims)
        if isinstance(target, str):
            dims[target] = value
        else:
            placed.append((target, value))
    leaves = [_redefined(d, dims) if isinstance(d, Dim) else d for d in leaves]
    spec = pytree.tree_unflatten(leaves, structure)
    for path, value in placed:
        try:
            spec = _put(spec, path, value)
        except (LookupError, TypeError, AttributeError):
            raise InputError(f"the spec has no place for {path} = {value}: {spec!r}") from None
    return spec


def _lines(error: ConstraintViolationError | str) -> Sequence[str]:
    if isinstance(error, ConstraintViolationError):
        return error.fix
    _, found, tail = str(error).partition("Suggested fixes:\n")
    if not found:
        raise InputError(
            "there are no suggested fixes in this error, so nothing to refine the spec with",
            fix="pass the ConstraintViolationError of gp.export, or its text",
        )
    return [line.strip() for line in tail.splitlines() if line.strip()]


def _statements(lines: Sequence[str]) -> list[ast.stmt]:
    try:
        return ast.parse("\n".join(lines)).body
    except SyntaxError as error:
        raise InputError(f"a suggested fix is `name = ...`, got {error.text}") from None


def _read(statement: ast.stmt, dims: Mapping[str, Any]) -> tuple[str | list[Any], Any]:
    """(name, value) of a definition, or (path in the spec, value)."""
    if not isinstance(statement, ast.Assign):
        raise InputError(f"a suggested fix is `name = ...`, got {ast.unparse(statement)}")
    value = _value(statement.value, dims)
    target = statement.targets[0]
    if isinstance(target, ast.Name):
        return target.id, value
    path: list[Any] = []
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        is_item = isinstance(target, ast.Subscript)
        path.insert(0, ast.literal_eval(target.slice) if is_item else _Field(target.attr))
        target = target.value
    return path, value


class _Field(str):
    """A step of a path that is the attribute of a dataclass."""


def _value(node: ast.expr, dims: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in dims:
        return dims[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        apply = _OPERATORS[type(node.op)]
        return apply(_value(node.left, dims), _value(node.right, dims))
    text = ast.unparse(node)
    if text in _MAKERS:
        return _MAKERS[text]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _MAKERS:
        limits = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
        return _MAKERS[ast.unparse(node.func)](*map(ast.literal_eval, node.args), **limits)
    raise InputError(f"not a definition of a dim, or of one that is not known: {text}")


def _redefined(dim: Dim, dims: Mapping[str, Any]) -> Any:
    """A dim of the spec after its root has changed."""
    factor, offset = dim.linear
    return dims[dim.root.__name__] * factor + offset


def _put(spec: Any, path: list[Any], value: Any) -> Any:
    """A spec with one place changed."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, _Field):
        return dataclasses.replace(spec, **{key: _put(getattr(spec, key), rest, value)})
    if isinstance(spec, Mapping):
        return {**spec, key: _put(spec[key], rest, value)}
    parts = list(spec)
    parts[key] = _put(parts[key], rest, value)
    return type(spec)(parts)
