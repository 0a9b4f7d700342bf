"""Converts statements of Python, where data decides, to calls of `python_flow`.

Of `if` each side becomes a function, of `for` a step, of a list comprehension its element; what
they assign, and is read later, is what they return. Statements are named by their lines: everything
else stays as it is written. A statement stays, too, if a side of it or a step does more than to
compute: it assigns to an attribute, leaves a loop, handles exceptions.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Iterable, Iterator
from types import CodeType
from typing import NamedTuple

NAMES = {
    name: f"converted {name}" for name in ("if", "and", "or", "not", "for", "list", "zip", "value")
}
"""Under which names, that no source can have, the functions of `python_flow` are found."""


class Asked(NamedTuple):
    """Where a statement asks for what data decides."""

    line: int
    one_sided: bool = False
    """Whether only the side for sizes in general is taken, since the two give different things."""


def convert_statements(code: CodeType, asked: Collection[Asked]) -> CodeType | None:
    """The code of a function in which the statements of some lines are converted.

    None if they are none that can be, or the source is not that of the code.
    """
    text = "".join(linecache.getlines(code.co_filename))
    try:
        tree = ast.parse(text)
        plain = _find_code(compile(tree, code.co_filename, "exec", dont_inherit=True), code)
    except (SyntaxError, ValueError):
        return None
    definition = _find_definition(tree, code)
    if definition is None or plain is None:
        return None
    if _identify(plain) != _identify(code):
        return None
    converter = _Converter(definition, asked)
    definition.body = converter.convert_block(definition.body, is_tail=True)
    if not converter.count:
        return None
    ast.fix_missing_locations(tree)
    made = _find_code(compile(tree, code.co_filename, "exec", dont_inherit=True), code)
    if made is None or made.co_freevars != code.co_freevars:
        return None
    return _name_parts(made, code)


def _identify(code: CodeType) -> tuple[object, ...]:
    """What code does."""
    consts = [_identify(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def _find_definition(tree: ast.AST, code: CodeType) -> ast.FunctionDef | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = node.decorator_list[0] if node.decorator_list else node
            if first.lineno == code.co_firstlineno:
                return node
    return None


def _find_code(whole: CodeType, code: CodeType) -> CodeType | None:
    """The code of the same function within that of a file."""
    if (whole.co_qualname, whole.co_firstlineno) == (code.co_qualname, code.co_firstlineno):
        return whole
    inner = (_find_code(c, code) for c in whole.co_consts if isinstance(c, CodeType))
    return next(filter(None, inner), None)


def _name_parts(made: CodeType, code: CodeType) -> CodeType:
    """With the name of the function also in what was part of its body."""
    consts = tuple(
        _name_parts(c, code).replace(co_name=code.co_name, co_qualname=code.co_qualname)
        if isinstance(c, CodeType) and c.co_name.startswith(_PART)
        else c
        for c in made.co_consts
    )
    return made.replace(co_consts=consts)


_PART = "converted part"
"""The name of the functions that statements become."""


class _Converter:
    """One conversion of one function."""

    def __init__(self, definition: ast.FunctionDef, asked: Collection[Asked]) -> None:
        self._lines = {line for line, _ in asked}
        self._one_sided = {line for line, one_sided in asked if one_sided}
        self.count = 0
        """How many statements have been converted."""
        nodes = list(ast.walk(definition))
        self._reads = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        inner = [n for n in nodes if isinstance(n, _INNER) and n is not definition]
        self._read_within = {
            n.id for scope in inner for n in ast.walk(scope) if isinstance(n, ast.Name)
        }
        """By functions within the function, whenever they are called."""
        self._declares = any(isinstance(n, (ast.Global, ast.Nonlocal)) for n in nodes)
        self._loops: list[ast.stmt] = []
        """Those around the statement that is converted."""

    def convert_block(self, block: list[ast.stmt], is_tail: bool = False) -> list[ast.stmt]:
        """`is_tail`: nothing of the function comes after the block."""
        made: list[ast.stmt] = []
        for i, statement in enumerate(block):
            rest = block[i + 1 :]
            if isinstance(statement, ast.If) and self._is_asked(statement.test):
                if is_tail and _has_return(statement):
                    final = self._convert_final_if(statement, rest)
                    if final is not None:
                        return [*made, *final]
                elif self._is_convertible([*statement.body, *statement.orelse]):
                    made += self._convert_if(statement, rest)
                    continue
            if isinstance(statement, ast.For) and self._is_asked(statement.iter):
                if not statement.orelse and self._is_convertible([statement]):
                    made += self._convert_for(statement, rest)
                    continue
            made.append(self._convert_within(statement, is_tail and not rest))
        return made

    def _convert_within(self, statement: ast.stmt, is_tail: bool) -> ast.stmt:
        """What is in a statement that stays."""
        is_loop = isinstance(statement, (ast.For, ast.While))
        if is_loop:
            self._loops.append(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(statement, name, None)
            if isinstance(block, list) and not isinstance(statement, _SCOPES):
                tail = is_tail and isinstance(statement, ast.If)
                setattr(statement, name, self.convert_block(block, tail))
        if is_loop:
            self._loops.pop()
        return self._convert_lists(statement)

    def _is_asked(self, part: ast.expr) -> bool:
        return not self._lines.isdisjoint(_list_lines(part))

    def _is_convertible(self, block: list[ast.stmt], may_return: bool = False) -> bool:
        """Functions of it would do the same, and inner functions see what it assigns."""
        own = not self._declares and self._read_within.isdisjoint(_list_stored(block))
        return own and all(_is_plain(statement, may_return) for statement in block)

    # if

    def _convert_final_if(self, found: ast.If, rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """An `if` with which the function ends: a side that does not return goes on after it."""
        ends = [_always_returns(side) for side in (found.body, found.orelse)]
        if not any(ends):
            return None
        sides = [
            [*side] if end else [*side, *rest]
            for side, end in zip((found.body, found.orelse), ends, strict=True)
        ]
        if not all(self._is_convertible(side, may_return=True) for side in sides):
            return None
        self.count += 1
        given = sorted({*_list_stored(sides[0]), *_list_stored(sides[1])})
        parts = [
            self._define(f"{_PART} {found.lineno} {i}", given, self.convert_block(side, True))
            for i, side in enumerate(sides)
        ]
        call = self._call_if(found, parts, given, None)
        return [*parts, ast.copy_location(ast.Return(call), found)]

    def _convert_if(self, found: ast.If, rest: list[ast.stmt]) -> list[ast.stmt]:
        given = sorted({*_list_stored(found.body), *_list_stored(found.orelse)})
        kept = [name for name in given if self._is_read_later(name, found, rest)]
        self.count += 1
        parts = [
            self._define(
                f"{_PART} {found.lineno} {i}",
                given,
                [*self.convert_block(side), ast.Return(_tuple(map(_load, kept)))],
            )
            for i, side in enumerate((found.body, found.orelse))
        ]
        call = self._call_if(found, parts, given, kept)
        return [*parts, _assign(kept, call, found)]

    def _call_if(
        self, found: ast.If, parts: list[ast.FunctionDef], given: list[str], kept: list[str] | None
    ) -> ast.Call:
        values = _tuple(map(_read_if_bound, given))
        names = ast.Constant(None) if kept is None else _names(kept)
        functions = [_load(part.name) for part in parts]
        one_sided = ast.Constant(not self._one_sided.isdisjoint(_list_lines(found.test)))
        given_to = [_convert_test(found.test), *functions, values, names, one_sided]
        return _call("if", given_to, found.test)

    def _define(self, name: str, given: Iterable[str], body: list[ast.stmt]) -> ast.FunctionDef:
        arguments = ast.arguments([], [ast.arg(n) for n in given], None, [], [], None, [])
        body = body or [ast.Pass()]
        made = ast.FunctionDef(name, arguments, body, [], None)
        made.type_params = []  # type: ignore[attr-defined]
        return ast.copy_location(made, body[0]) if hasattr(body[0], "lineno") else made

    # for

    def _convert_for(self, found: ast.For, rest: list[ast.stmt]) -> list[ast.stmt]:
        stored = {*_list_stored(found.body), *_list_stored([found])}
        first = _follow(found.body)[0] - set(_list_targets(found.target))
        carried = sorted(n for n in stored if n in first or self._is_read_later(n, found, rest))
        self.count += 1
        self._loops.append(found)
        body = self.convert_block(found.body)
        self._loops.pop()
        begin = ast.copy_location(ast.Assign([found.target], _load(_ELEMENT)), found)
        end = ast.Return(_tuple(map(_load, carried)))
        step = self._define(f"{_PART} {found.lineno}", [_ELEMENT, *carried], [begin, *body, end])
        values = _tuple(map(_read_if_bound, carried))
        call = _call(
            "for",
            [_convert_iterable(found.iter), _load(step.name), values, _names(carried)],
            found.iter,
        )
        return [step, _assign(carried, call, found)]

    def _is_read_later(self, name: str, statement: ast.stmt, rest: list[ast.stmt]) -> bool:
        """After a statement and the rest of its block, in whatever way the function goes on."""
        read, stored = _follow(rest)
        if name in read or name in stored:
            return name in read
        end = max(s.end_lineno or s.lineno for s in (statement, *rest))
        around = [range(loop.lineno, (loop.end_lineno or 0) + 1) for loop in self._loops]
        return any(
            line > end or (line < statement.lineno and any(line in loop for loop in around))
            for line in (node.lineno for node in self._reads if node.id == name)
        )

    # List comprehensions

    def _convert_lists(self, statement: ast.stmt) -> ast.stmt:
        converter = self

        class Lists(ast.NodeTransformer):
            def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
                return converter._convert_list(node) or self.generic_visit(node)

        return Lists().visit(statement) if not isinstance(statement, _SCOPES) else statement

    def _convert_list(self, found: ast.ListComp) -> ast.AST | None:
        (each, *more), targets = found.generators, _list_targets(found.generators[0].target)
        if more or each.ifs or each.is_async or not self._is_asked(each.iter):
            return None
        is_tuple = isinstance(each.target, ast.Tuple)
        if is_tuple and len(targets) != len(each.target.elts):  # type: ignore[attr-defined]
            return None
        if not _has_plain_parts(found):
            return None
        self.count += 1
        arguments = ast.arguments([], [ast.arg(n) for n in targets], None, [], [], None, [])
        element = ast.Lambda(arguments, found.elt)
        given = [_convert_iterable(each.iter), element, ast.Constant(is_tuple)]
        return _call("list", given, found)


_ELEMENT = "converted element"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (*_SCOPES, ast.Lambda, ast.GeneratorExp)


# What statements do


def _is_plain(statement: ast.stmt, may_return: bool) -> bool:
    """Whether a statement computes, and does nothing that a function of it would not do."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        fits = all(map(_is_plain_target, targets))
    elif isinstance(statement, (ast.If, ast.For, ast.With)):
        inner = [*statement.body, *getattr(statement, "orelse", ())]
        fits = all(_is_plain(part, may_return) for part in inner)
    else:
        fits = isinstance(statement, (ast.Expr, ast.Pass, ast.Assert, ast.Raise)) or (
            may_return and isinstance(statement, ast.Return)
        )
    return fits and _has_plain_parts(statement)


def _is_plain_target(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(_is_plain_target, target.elts))
    return isinstance(target, (ast.Name, ast.Subscript))


def _has_plain_parts(statement: ast.AST) -> bool:
    return not any(
        isinstance(node, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await))
        or (isinstance(node, ast.Name) and node.id in _OF_FRAMES)
        for node in ast.walk(statement)
    )


_OF_FRAMES = {"super", "locals", "vars", "dir", "eval", "exec"}
"""What a call gives depends on the function that it is in."""


def _walk_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that are not of another scope."""
    yield node
    if not isinstance(node, (*_SCOPES, ast.Lambda, *_COMPREHENSIONS)):
        for child in ast.iter_child_nodes(node):
            yield from _walk_scope(child)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _has_return(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in _walk_scope(statement))


def _always_returns(block: list[ast.stmt]) -> bool:
    if not block:
        return False
    last = block[-1]
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, ast.Return)


def _list_lines(part: ast.expr) -> range:
    return range(part.lineno, (part.end_lineno or part.lineno) + 1)


def _list_targets(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _list_stored(block: Iterable[ast.stmt]) -> list[str]:
    """The names that statements assign to."""
    return [
        node.id
        for statement in block
        for node in _walk_scope(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _follow(block: Iterable[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names that a block may read before it assigns to them, and those that it does assign to."""
    read: set[str] = set()
    stored: set[str] = set()
    for statement in block:
        first, own = _follow_statement(statement)
        read |= first - stored
        stored |= own
    return read, stored


def _follow_statement(statement: ast.stmt) -> tuple[set[str], set[str]]:
    if isinstance(statement, ast.If):
        (then, stored), (other, stored_too) = map(_follow, (statement.body, statement.orelse))
        return _list_loaded(statement.test) | then | other, stored & stored_too
    if isinstance(statement, ast.For):
        inner, after = _follow(statement.body)[0], _follow(statement.orelse)[0]
        return _list_loaded(statement.iter) | inner - set(
            _list_targets(statement.target)
        ) | after, set()
    if isinstance(statement, (ast.While, ast.Try, ast.With, *_SCOPES)):
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        return names, set()
    loaded = _list_loaded(statement)
    if isinstance(statement, ast.AugAssign):
        loaded |= {node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name)}
    return loaded, set(_list_stored([statement]))


def _list_loaded(part: ast.AST) -> set[str]:
    nodes = ast.walk(part)
    return {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}


# Nodes


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _tuple(items: Iterable[ast.expr]) -> ast.Tuple:
    return ast.Tuple(list(items), ast.Load())


def _not(x: ast.expr) -> ast.UnaryOp:
    return ast.UnaryOp(ast.Not(), x)


def _names(names: Iterable[str]) -> ast.Tuple:
    return _tuple(map(ast.Constant, names))


def _call(name: str, args: list[ast.expr], where: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(_load(NAMES[name]), args, []), where)


def _lambda(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def _read_if_bound(name: str) -> ast.expr:
    return ast.Call(_load(NAMES["value"]), [_lambda(_load(name))], [])


def _assign(names: list[str], value: ast.expr, where: ast.stmt) -> ast.stmt:
    if not names:
        return ast.copy_location(ast.Expr(value), where)
    target = ast.Tuple([*map(_store, names)], ast.Store())
    return ast.copy_location(ast.Assign([target], value), where)


def _convert_test(test: ast.expr) -> ast.expr:
    """A condition whose parts are asked one after the other, as far as is needed."""
    if isinstance(test, ast.BoolOp):
        name, (first, *others) = "and" if isinstance(test.op, ast.And) else "or", test.values
        behind = [
            _convert_test(part) if _can_be_asked(part) else _not(_not(part)) for part in others
        ]
        return _call(name, [*map(_lambda, (_convert_test(first), *behind))], test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _call("not", [_convert_test(test.operand)], test)
    return test


def _can_be_asked(part: ast.expr) -> bool:
    """Whether a condition is about sizes and variables, so that it has an answer in any case."""
    for node in ast.walk(part):
        if isinstance(node, ast.Call):
            asks = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            if asks not in ("numel", "size", "dim") and getattr(asks, "id", "") != "len":
                return False
        if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") != "shape":
            return False
    return True


def _convert_iterable(found: ast.expr) -> ast.expr:
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Name):
        if found.func.id == "zip" and not found.keywords:
            return _call("zip", [found.func, *found.args], found)
    return found
