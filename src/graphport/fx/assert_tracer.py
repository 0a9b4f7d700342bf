"""A tracer that records `assert` statements as `torch._assert`.

An `assert` needs a bool, which a traced value is not. While tracing, the
functions that are reached run a version of their code in which `assert x, m` records
`torch._assert(x, m)` where `x` is traced, and is the plain statement where it is not. The version
is compiled from the source file as it stands, so decorators, closures, `super()` and line numbers
are those of the original; functions whose source is not found run as they are.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.fx import Graph, Tracer

from graphport.arguments import DICT, NONE, TRACEABLE, check_arguments
from graphport.process import restore_on_exit, undo_on_exit
from graphport.source import is_user_code

CodeKey = tuple[str, int]


class RewritingTracer(Tracer):
    """`torch.fx.Tracer`, with all its options, that records `assert` statements.

    Of modules, the methods of all submodules are covered; of functions, also those that they call
    by name. `assert a and b` and `assert 0 < n <= 5` are recorded part by part, `assert not a` with
    its negation.

        >>> import torch
        >>> class Checked(nn.Module):
        ...     def forward(self, x):
        ...         assert x.sum() > 0, "must be positive"
        ...         return x
        >>> model = Checked()
        >>> gm = torch.fx.GraphModule(model, RewritingTracer().trace(model))
        >>> gm(-torch.ones(2))
        Traceback (most recent call last):
        AssertionError: must be positive
    """

    @check_arguments(root=TRACEABLE, concrete_args=DICT | NONE)
    @restore_on_exit
    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
    ) -> Graph:
        with _patch_code(_find_reachable_functions(root)):
            return super().trace(root, concrete_args)


# Which functions are covered


def _find_reachable_functions(root: nn.Module | Callable[..., Any]) -> list[FunctionType]:
    """The user's functions that a trace may run into, as far as names lead to them."""
    waiting: list[Any] = list(_iter_methods(root)) if isinstance(root, nn.Module) else [root]
    found: dict[FunctionType, None] = {}
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if isinstance(function, FunctionType) and function not in found:
            if is_user_code(function.__code__):
                found[function] = None
            waiting.extend(_iter_referenced_functions(function))
    return list(found)


def _iter_methods(root: nn.Module) -> Iterator[object]:
    classes = {c: None for module in root.modules() for c in type(module).__mro__}
    for cls in classes:
        for member in vars(cls).values():
            if isinstance(member, property):
                yield from filter(None, (member.fget,))
            elif isinstance(member, (staticmethod, classmethod)):
                yield member.__func__
            elif isinstance(member, FunctionType):
                yield member


def _iter_referenced_functions(function: FunctionType) -> Iterator[object]:
    """Functions that a function of the user's refers to; of others, those that they wrap."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(value, FunctionType):
            yield value
    if is_user_code(function.__code__):
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, FunctionType):
                yield value


# Running another version of their code


_trace_lock = threading.RLock()  # functions have one code at a time


@contextmanager
def _patch_code(functions: list[FunctionType]) -> Iterator[None]:
    sources: dict[str, dict[CodeKey, CodeType]] = {}
    with _trace_lock:
        originals = [(f, f.__code__) for f in functions]

        def put_back() -> None:
            for function, code in originals:
                function.__code__ = code

        with undo_on_exit(put_back):
            for function, code in originals:
                function.__code__ = _rewrite_code(function, sources) or code
            yield


def _rewrite_code(
    function: FunctionType, sources: dict[str, dict[CodeKey, CodeType]]
) -> CodeType | None:
    """The function's code with recorded assertions; None if its source is not found."""
    code = function.__code__
    file = code.co_filename
    if file not in sources:
        sources[file] = _compile_file(linecache.getlines(file, function.__globals__), file)
    found = sources[file].get((code.co_qualname, code.co_firstlineno))
    # Otherwise the file has changed since it was imported.
    same = found is not None and _code_signature(found) == _code_signature(code)
    return found if same else None


def _code_signature(code: CodeType) -> tuple[object, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[:count], code.co_freevars, code.co_flags & inspect.CO_GENERATOR


def _compile_file(lines: list[str], file: str) -> dict[CodeKey, CodeType]:
    """The code of all functions of a file, if something is asserted in it."""
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return {}
    rewriter = _AssertRewriter()
    tree = rewriter.visit(tree)
    if not rewriter.found:
        return {}
    found: dict[CodeKey, CodeType] = {}
    waiting = [compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        waiting.extend(c for c in code.co_consts if isinstance(c, CodeType))
        found[code.co_qualname, code.co_firstlineno] = code
    return found


_ASSERT_TEMPLATE = """
_asserted = None
_asserted = _asserted.tracer.create_proxy(
    "call_function", __import__("operator").not_, (_asserted,), {}
) if isinstance(_asserted, __import__("torch").fx.Proxy) else not _asserted
if isinstance(_asserted, __import__("torch").fx.Proxy):
    try:
        _message = ""
    except Exception:
        _message = ""
    __import__("torch")._assert(_asserted, _message)
else:
    assert _asserted, ""
"""


class _AssertRewriter(ast.NodeTransformer):
    """Replaces assertions by statements that record them where their condition is traced."""

    def __init__(self) -> None:
        self.found = False

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        self.found = True
        made = [s for test in _split_condition(node.test) for s in _rewrite_assert(test, node.msg)]
        for statement in made:
            for child in ast.walk(statement):
                if "lineno" in child._attributes and not hasattr(child, "lineno"):
                    ast.copy_location(child, node)
        return made


def _rewrite_assert(test: ast.expr, message: ast.expr | None) -> list[ast.stmt]:
    assign, negate, branch = _strip_locations(ast.parse(_ASSERT_TEMPLATE)).body
    assert isinstance(assign, ast.Assign)
    assert isinstance(branch, ast.If)
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    assign.value = test.operand if negated else test  # type: ignore[attr-defined]
    attempt, plain = branch.body[0], branch.orelse[0]
    assert isinstance(attempt, ast.Try)
    assert isinstance(plain, ast.Assert)
    plain.msg = message
    if message is not None:
        # A message with traced values cannot always be formatted: then it is its own source.
        for statements, value in (
            (attempt.body, copy.deepcopy(message)),
            (attempt.handlers[0].body, ast.Constant(ast.unparse(message))),
        ):
            assert isinstance(statements[0], ast.Assign)
            statements[0].value = value
    return [assign, negate, branch] if negated else [assign, branch]


def _strip_locations(tree: ast.Module) -> ast.Module:
    """The template, to be placed where the assertion is."""
    for node in ast.walk(tree):
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(node, name):
                delattr(node, name)
    return tree


def _split_condition(test: ast.expr) -> list[ast.expr]:
    """Conditions that hold one after the other: `a and b`, and the links of `a < b < c`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _split_condition(value)]
    if not isinstance(test, ast.Compare) or len(test.ops) == 1:
        return [test]
    links: list[ast.expr] = []
    left = test.left
    last = len(test.ops) - 1
    for i, (operator, right) in enumerate(zip(test.ops, test.comparators, strict=True)):
        name = f"_link{i}"
        # Evaluated once, as in the chain.
        here = right if i == last else ast.NamedExpr(ast.Name(name, ast.Store()), right)
        links.append(ast.Compare(left, [operator], [here]))
        left = ast.Name(name, ast.Load())
    return links
