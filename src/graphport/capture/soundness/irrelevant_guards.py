"""Captures again with other branch outcomes, to drop guards that do not change the graph.

`is_causal = length > 1 and mask is None` asks for the length, and with a mask it comes to the same
either way. Where the example's answer would be an error, or make the program refuse a size that the
user declared, it is captured with either answer, and none of them is taken for granted. Where all
captures are the same program, with the same facts, it is right for every size. A copy that one of
them makes and another does not (`if not x.is_contiguous(): x = x.contiguous()`) is no difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from graphport.capture.trace.subgraph import list_module_graphs
from graphport.errors import ConstraintViolationError, ExportError
from graphport.program import ExportedProgram

aten = torch.ops.aten
Answers = Mapping[str, bool]
_MAX_GUARDS = 3
"""Guards that are tried at most: every combination of outcomes is another capture."""


def drop_irrelevant_guards(
    questions: Iterable[str], capture: Callable[[Answers], ExportedProgram]
) -> ExportedProgram | None:
    """The program without some guards on sizes; None if their outcomes matter."""
    asked = list(dict.fromkeys(questions))
    while 0 < len(asked) <= _MAX_GUARDS:
        answers = itertools.product((True, False), repeat=len(asked))
        captures = (capture(dict(zip(asked, given, strict=True))) for given in answers)
        try:
            program = next(captures)
            other = next(
                (other for other in captures if not _is_same_program(program, other)), None
            )
            if other is None:
                return program
            more = _collect_guards(program) ^ _collect_guards(other)  # what only one of them asks
        except ConstraintViolationError as error:
            more = set(error.questions)
        except ExportError:
            return None
        if more.issubset(asked):
            return None
        asked += sorted(more - set(asked))
    return None


def _collect_guards(program: ExportedProgram) -> set[str]:
    return {str(f.cond) for f in program.scope.facts if f.asked and not f.internal}


def _is_same_program(a: ExportedProgram, b: ExportedProgram) -> bool:
    return (
        a.graph_signature.input_specs == b.graph_signature.input_specs
        and _describe_outputs(a) == _describe_outputs(b)
        and a.call_spec == b.call_spec
        and _list_facts(a) == _list_facts(b)
        and a.constants.keys() == b.constants.keys()
        and all(map(_is_equal_constant, a.constants.values(), b.constants.values()))
        and list(map(_normalise_graph, list_module_graphs(a.graph_module)))
        == list(map(_normalise_graph, list_module_graphs(b.graph_module)))
    )


def _describe_outputs(program: ExportedProgram) -> list[tuple[object, ...]]:
    """What the outputs are, whatever their nodes are called."""
    specs = program.graph_signature.output_specs
    return [(s.kind, s.target, type(s.arg), getattr(s.arg, "value", None)) for s in specs]


_COPIES = (aten.clone.default, aten.contiguous.default)
_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def _normalise_graph(graph: Graph) -> list[str]:
    """What a graph computes, line by line, without names and addresses."""
    numbers: dict[Node, str] = {}
    lines: list[str] = []
    for node in graph.nodes:
        if node.target in _COPIES:
            numbers[node] = numbers[node.args[0]]
            continue
        target = "reshape" if node.target in _RESHAPES else str(node.target)
        numbers[node] = f"%{len(lines)}"
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: _Verbatim(numbers[n]))
        lines.append(f"{target} {args} {kwargs}")
    return lines


class _Verbatim(str):
    """Text that is printed as it is."""

    __repr__ = str.__str__


def _list_facts(program: ExportedProgram) -> list[str]:
    return sorted(f"{fact.kind} {fact}" for fact in program.scope.facts)


def _is_equal_constant(x: object, y: object) -> bool:
    if x is y:
        return True
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return False
    return x.dtype == y.dtype and torch.equal(x, y)
