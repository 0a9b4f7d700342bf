"""Infers the ranges and the order that operators need of the values of inputs.

A row of `RULES` is an argument of an operator. Inputs are followed to such arguments through
operators that only move elements, or add a number; where they go through anything else, nothing is
known of them but what the example shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Graph, Node

from graphport.onnx.verify.drawing import Need
from graphport.program import ExportedProgram
from graphport.program.signature import InputKind
from graphport.symbolic import Expr, Size, evaluate, prod, symbols
from graphport.tensors.abstract import Abstract, describe
from graphport.types import Kwargs


@dataclass(frozen=True)
class Rule:
    """A `Need` whose numbers are sizes of the program."""

    low: Size | None = None
    high: Size | None = None
    ascending: bool = False
    first: Size | None = None
    last: Size | None = None
    total: Size | None = None
    distinct: int | None = None

    def shifted(self, by: int) -> Rule:
        """The same of integers to which a number is added on their way."""
        if not by or self.low is None or self.high is None:
            return self
        return replace(self, low=self.low - by, high=self.high - by)

    def at(self, sizes: Mapping[Expr, int]) -> Need:
        values = {
            name: _evaluate_size(getattr(self, name), sizes)
            for name in ("low", "high", "first", "last", "total")
        }
        varies = isinstance(self.high, Expr)
        return Need(**values, ascending=self.ascending, varies=varies, distinct=self.distinct)


Call = Mapping[str, Any]
"""The arguments of an operator by name, tensors as `Abstract`."""
RuleMaker = Callable[[Call], Rule | None]


def _index_into(tensor: str, dim: int | str | None, signed: bool = False) -> RuleMaker:
    """Indices along a dim, which may be an argument; None: among all elements."""

    def rule(call: Call) -> Rule | None:
        of = call[tensor]
        where = call[dim] if isinstance(dim, str) else dim
        if not isinstance(of, Abstract) or (where is None and isinstance(dim, str)):
            return None
        if where is None:
            size: Any = prod(of.sizes)
        elif not of.sizes:
            size = 1
        else:
            size = of.sizes[where if where < len(of.sizes) else -1]
        return Rule(-size if signed else 0, size - 1)

    return rule


def _labels(call: Call) -> Rule | None:
    """Labels: of scores of one sample, or of many."""
    scores = call["self"]
    return Rule(0, scores.sizes[0 if len(scores.sizes) == 1 else 1] - 1)


def _offsets(call: Call) -> Rule | None:
    count: Any = prod(call["indices"].sizes)
    last = count if call.get("include_last_offset") else None
    return Rule(0, count, ascending=True, first=0, last=last)


def _pivots(call: Call) -> Rule | None:
    """Rows that are exchanged, counted from 1; eager does not look whether there are so many."""
    return Rule(1, next(v for k, v in call.items() if k.startswith("LU")).sizes[-2])


def _segment_lengths(call: Call) -> Rule | None:
    return Rule(total=call["data"].sizes[call.get("axis") or 0])


def _segment_offsets(call: Call) -> Rule | None:
    size = call["data"].sizes[call.get("axis") or 0]
    return Rule(0, size, ascending=True, first=0, last=size)


def _ascending(call: Call) -> Rule | None:
    return Rule(ascending=True) if call.get("sorter") is None else None


def _places(call: Call) -> Rule | None:
    """Where to put each maximum: which of two comes to one place is undefined."""
    sizes = call["output_size"]
    count: Any = prod(tuple(sizes))
    return Rule(0, count - 1, distinct=len(sizes))


def _classes(call: Call) -> Rule | None:
    count = call["num_classes"]
    return None if type(count) is int and count < 0 else Rule(0, count - 1)


def _at_most(tensor: str, dim: int) -> RuleMaker:
    """Lengths along a dim."""
    return lambda call: Rule(1, call[tensor].sizes[dim])


def _rows(names: str, **arguments: RuleMaker) -> dict[str, dict[str, RuleMaker]]:
    """The same arguments of several operators."""
    return dict.fromkeys(names.split(), arguments)


RULES: dict[str, dict[str, RuleMaker]] = {
    **_rows("embedding", indices=_index_into("weight", 0)),
    **_rows(
        "embedding_bag _embedding_bag _embedding_bag_forward_only",
        indices=_index_into("weight", 0),
        offsets=_offsets,
    ),
    **_rows("index_select index_add index_copy index_fill", index=_index_into("self", "dim")),
    **_rows(
        "index_reduce gather scatter scatter_add scatter_reduce", index=_index_into("self", "dim")
    ),
    **_rows("take_along_dim", indices=_index_into("self", "dim")),
    **_rows("take put", index=_index_into("self", None, signed=True)),
    **_rows("one_hot", self=_classes),
    **_rows("max_unpool2d max_unpool3d", indices=_places),
    **_rows("nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward", target=_labels),
    **_rows("cross_entropy_loss", target=_labels),
    **_rows("multi_margin_loss multilabel_margin_loss", target=_index_into("self", -1)),
    **_rows("lu_unpack", LU_pivots=_pivots),
    **_rows("linalg_lu_solve", pivots=_pivots),
    **_rows("searchsorted", sorted_sequence=_ascending),
    **_rows("bucketize", boundaries=_ascending),
    **_rows("segment_reduce", lengths=_segment_lengths, offsets=_segment_offsets),
    **_rows(
        "ctc_loss _ctc_loss",
        targets=_index_into("log_probs", -1),
        input_lengths=_at_most("log_probs", 0),
        target_lengths=_at_most("targets", -1),
    ),
}

_INDEX_LIST_OPS = {"index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"}
"""Operators with a list `indices`, one for each dim."""

_MOVEMENT_OPS = set(
    """
        view reshape _unsafe_view flatten unflatten unsqueeze squeeze expand expand_as permute
        transpose t movedim slice select narrow clone contiguous detach alias lift_fresh
        lift_fresh_copy to _to_copy repeat long unbind split chunk getitem view_as broadcast_to flip
    """.split()
)
_SHIFT_SIGNS = {"add": 1, "sub": -1, "add_": 1, "sub_": -1}


def find_input_rules(program: ExportedProgram) -> list[list[Rule]]:
    """What is needed of each flat input."""
    specs = program.graph_signature.input_specs
    names = [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT]
    places = {n.name: n for n in _placeholders(program.graph)}
    return [list(_follow_input(places[name], 0, set())) if name in places else [] for name in names]


def evaluate_rules(rules: list[Rule], sizes: Mapping[Expr, int]) -> Need:
    """All of them at certain sizes."""
    found = Need()
    for need in (rule.at(sizes) for rule in rules):
        known = {k: v for k, v in vars(need).items() if v is not None and v is not False}
        if found.low is not None and need.low is not None:
            known["low"] = max(found.low, need.low)
        if found.high is not None and need.high is not None:
            known["high"] = min(found.high, need.high)
        found = replace(found, **known)
    return found


def _placeholders(graph: Graph) -> Iterator[Node]:
    return (n for n in graph.nodes if n.op == "placeholder")


def _follow_input(node: Node, shift: int, seen: set[Node]) -> Iterator[Rule]:
    if node in seen:
        return
    seen.add(node)
    for user in node.users:
        name = _operator_name(user)
        if name in _MOVEMENT_OPS and user.args and user.args[0] is node:
            yield from _follow_input(user, shift, seen)
        elif name in _SHIFT_SIGNS and user.args[0] is node and type(user.args[1]) is int:
            yield from _follow_input(user, shift + _SHIFT_SIGNS[name] * user.args[1], seen)
        else:
            yield from (rule.shifted(shift) for rule in _match_rules(user, name, node))


def _match_rules(user: Node, name: str, operand: Node) -> Iterator[Rule]:
    call = _bind_call(user)
    if name in _INDEX_LIST_OPS:
        sizes = describe(call["self"]).sizes
        for size, index in zip(sizes, call["indices"], strict=False):
            if index is operand:
                yield Rule(-size, size - 1)
        return
    abstract = {k: describe(v) if isinstance(v, Node) else v for k, v in call.items()}
    for argument, need_of in RULES.get(name, {}).items():
        if call.get(argument) is operand:
            rule = need_of(abstract)
            if rule is not None:
                yield rule


def _bind_call(node: Node) -> Kwargs:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    given = {a.name: a.default_value for a in schema.arguments}
    given.update(zip(given, node.args, strict=False))
    given.update(node.kwargs)
    return given


def _operator_name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return schema.name.partition("::")[2]
    return getattr(node.target, "__name__", "")


def _evaluate_size(e: object, sizes: Mapping[Expr, int]) -> Any:
    if not isinstance(e, Expr):
        return e
    return evaluate(e, sizes) if all(s in sizes for s in symbols(e)) else None
