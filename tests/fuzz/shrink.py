"""Making a failing program smaller for as long as it fails alike."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from tests.fuzz.checks import Failure, check
from tests.fuzz.layouts import Input, values
from tests.fuzz.program import FAILURES, Program


def shrink(program: Program, failure: Failure, attempts: int = 400) -> tuple[Program, Failure]:
    """The smallest program found that fails like this one, and its failure."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(program):
            if not attempts:
                return program, failure
            attempts -= 1
            found = _fails(candidate, failure)
            if found is not None:
                program, failure, smaller = candidate, found, True
                break
    return program, failure


def _fails(program: Program, failure: Failure) -> Failure | None:
    compiled = failure.route == "compiled"
    try:
        found = check(copy.deepcopy(program), compiled).failures
    except (*FAILURES, SyntaxError, NameError, AttributeError):
        return None
    return next((f for f in found if f.signature == failure.signature), None)


def candidates(program: Program) -> Iterator[Program]:
    """Programs with one thing less, those with much less first."""
    for i in reversed(range(len(program.results))):
        if len(program.results) > 1:
            yield _with(program, results=program.results[:i] + program.results[i + 1 :])
    for i in reversed(range(len(program.lines))):
        yield _with(program, lines=program.lines[:i] + program.lines[i + 1 :])
    for i in reversed(range(len(program.lines))):
        parts = program.lines[i].split("; ")
        if len(parts) > 1:
            for k in range(len(parts)):
                line = "; ".join(parts[:k] + parts[k + 1 :])
                yield _with(program, lines=[*program.lines[:i], line, *program.lines[i + 1 :]])
    for i in reversed(range(len(program.inputs))):
        if len(program.inputs) > 1:
            yield _with(program, inputs=program.inputs[:i] + program.inputs[i + 1 :])
    for i, one in enumerate(program.inputs):
        for simpler in _simpler(one):
            made = [*program.inputs[:i], simpler, *program.inputs[i + 1 :]]
            yield _with(program, inputs=made)
    for name, dim in program.dims.items():
        for text in ("None", f'gp.Dim("{name}")'):
            if dim != text and dim != "None":
                yield _with(program, dims=program.dims | {name: text})
    for name in program.example:
        if not any(name in size for i in program.inputs for size in i.dims):
            yield _with(
                program,
                example={n: v for n, v in program.example.items() if n != name},
                dims={n: v for n, v in program.dims.items() if n != name},
            )


def _simpler(one: Input) -> Iterator[Input]:
    contiguous = values(one.dtype, one.dims)
    if one.line != contiguous:
        yield Input(one.name, one.dims, one.dtype, contiguous)
    for i in range(len(one.dims)):
        dims = one.dims[:i] + one.dims[i + 1 :]
        yield Input(one.name, dims, one.dtype, values(one.dtype, dims))
    if one.dtype != "float32" and one.line == contiguous:
        yield Input(one.name, one.dims, "float32", values("float32", one.dims))
    for i, size in enumerate(one.dims):
        if size != "2" and one.line == contiguous:
            dims = (*one.dims[:i], "2", *one.dims[i + 1 :])
            yield Input(one.name, dims, one.dtype, values(one.dtype, dims))


def _with(program: Program, **parts: object) -> Program:
    made = copy.copy(program)
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def reproducer(program: Program, failure: Failure) -> str:
    """Code to paste."""
    return f"{program.source}\n# {failure.route}, at {failure.at}: {failure.kind}\n" + "".join(
        f"# {line}\n" for line in failure.detail.splitlines()
    )
