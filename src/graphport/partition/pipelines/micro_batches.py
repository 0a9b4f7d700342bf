"""Splits inputs along the batch, joins results, and checks that a program allows it.

The batch is one `Dim` of the program. Every input that has it as a size is split there; all others
(masks, scalars) go whole to each micro-batch. That the results of the parts are the parts of the
result is checked before: the program must treat the items of a batch independently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graphport.compat.operators import aten, higher_order
from graphport.compat.torch import HigherOrderOperator, OpOverload, pytree
from graphport.errors import StageError
from graphport.ops.batch import BatchCall, find_batch_dim, mixes_batch
from graphport.ops.registry import packets
from graphport.program import ExportedProgram, InputKind, OutputKind
from graphport.symbolic import Expr, evaluate, symbols
from graphport.symbolic.bridge import to_expression
from graphport.tensors.abstract import collect_symbols, get_shape, get_val
from graphport.types import PyTree


class WholeBatch:
    """One micro-batch: everything as it is."""

    def split(self, leaves: Sequence[object]) -> list[Sequence[Any]]:
        return [leaves]

    def joined(
        self, parts: Sequence[Mapping[str, Any]], leaves: Sequence[object]
    ) -> dict[str, Any]:
        (part,) = parts
        return dict(part)


class SplitBatch:
    """Up to `count` micro-batches whose sizes differ by one at most, as `tensor_split` cuts."""

    def __init__(self, program: ExportedProgram, count: int, batch: str | None) -> None:
        self.count, self.checks = count, program.checks
        self.symbol = _find_batch_symbol(program, batch)
        require_independence(program, self.symbol)
        self.inputs = [_find_split_dim(n, self.symbol) for n in _list_user_inputs(program)]
        """By flat input: where it is split, and how many of its items one of the batch has."""
        self.values = {n.name: n for n in _list_results(program)}

    def split(self, leaves: Sequence[object]) -> list[Sequence[Any]]:
        numbers = self.checks(leaves)
        total = int(numbers[self.symbol])
        count = max(1, min(self.count, total))
        ends = [i * (total // count) + min(i, total % count) for i in range(count + 1)]
        sizes = [b - a for a, b in pairwise(ends)]
        where = [cut and (cut[0], evaluate(cut[1], numbers)) for cut in self.inputs]
        parts: list[Sequence[Any]] = [
            [_slice_input(x, cut, start, n) for x, cut in zip(leaves, where, strict=True)]
            for start, n in zip(ends, sizes, strict=False)
        ]
        for part, n in {n: (p, n) for p, n in zip(parts, sizes, strict=True)}.values():
            self._check(part, n, total)
        return parts

    def _check(self, part: Sequence[object], size: int, total: int) -> None:
        try:
            self.checks(part)
        except RuntimeError as error:
            raise StageError(
                f"a batch of {total} in {self.count} micro-batches has one of {size}, which the "
                f"program does not take: {error}",
                fix="another number of micro_batches, or a batch that it divides",
            ) from error

    def joined(
        self, parts: Sequence[Mapping[str, Any]], leaves: Sequence[object]
    ) -> dict[str, Any]:
        """The values of all parts as if they had been computed at once."""
        if len(parts) == 1:
            return dict(parts[0])
        found = {}
        sizes = None
        for name, first in parts[0].items():
            node = self.values[name]
            where = _find_split_dim(node, self.symbol)
            number = to_expression(get_val(node))
            if where is not None and isinstance(first, torch.Tensor):
                found[name] = torch.cat([p[name] for p in parts], dim=where[0])
            elif isinstance(number, Expr) and self.symbol in symbols(number):
                sizes = sizes or self.checks(leaves)
                found[name] = evaluate(number, sizes)
            else:
                found[name] = first
        return found


def _find_batch_symbol(program: ExportedProgram, name: str | None) -> Expr:
    """The symbol of the dim that is split."""
    shown: dict[str, Expr] = {}
    for leading in (True, False):
        for node in _list_user_inputs(program):
            for size in (get_shape(node) or ())[: 1 if leading else None]:
                if isinstance(size, Expr):
                    shown.update({str(s): s for s in symbols(size) if str(s) not in shown})
        if leading and name is None and shown:
            break
    if name is not None and name not in shown:
        raise StageError(
            f"no input of the program has a dim {name!r} to split",
            fix=f"one of {', '.join(shown)}" if shown else "micro_batches=1",
        )
    if not shown:
        raise StageError(
            "the batch cannot be split: no input of the program has a dynamic first dim",
            fix=["micro_batches=1", 'gp.export(..., dynamic_shapes={"x": {0: gp.Dim("batch")}})'],
        )
    return shown[name] if name is not None else next(iter(shown.values()))


def _list_user_inputs(program: ExportedProgram) -> list[Node]:
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    return [n for n, s in zip(nodes, specs, strict=True) if s.kind is InputKind.USER_INPUT]


def _list_results(program: ExportedProgram) -> list[Node]:
    """The values that the caller gets."""
    output: Any = program.graph.output_node().args[0]
    kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, OutputKind.USER_INPUT_MUTATION)
    specs = program.graph_signature.output_specs
    pairs = zip(output, specs, strict=True)
    return [n for n, s in pairs if isinstance(n, Node) and s.kind in kinds]


def _find_split_dim(node: Node, symbol: Expr) -> tuple[int, Any] | None:
    """The dim of a tensor that is the batch, and its items per one of the batch; 0 of a number."""
    shape = get_shape(node)
    return find_batch_dim((to_expression(get_val(node)),) if shape is None else shape, symbol)


def _slice_input(x: object, where: tuple[int, Any] | None, start: int, count: int) -> PyTree:
    if where is None:
        return x
    dim, factor = where
    if not isinstance(x, torch.Tensor):
        return count * factor
    return x.narrow(dim, start * factor, count * factor)


# Batch independence: whether a program treats the items of a batch one by one.
#
# Every value that depends on a split input has to have the batch as exactly one of its dims, as a
# multiple of it (`4*batch` after a reshape): where it is gone, items were summed or picked; where
# it is there twice, each item met each other. Operators must not work along it (`ops.batch`).
# Numbers that follow from the size of the batch may be sizes, but not operands, and the positions
# of the items in the batch (`arange(batch)`) may pick each item's own, but nothing else.
#
# The branches and bodies of control flow are followed too. What cannot be seen is a custom operator
# that mixes items and keeps their number: it is taken to treat them one by one.


_STATE_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def require_independence(program: ExportedProgram, symbol: Expr) -> None:
    """Raise StageError, with the place, unless the batch of this size may be split."""
    for spec in program.graph_signature.output_specs:
        if spec.kind in _STATE_MUTATIONS:
            raise StageError(
                f"the batch cannot be split: the program changes {spec.target!r} in each run, and "
                "would do so once for every micro-batch",
                fix="micro_batches=1",
            )
    _IndependenceCheck(program, symbol).check()


class _IndependenceCheck:
    def __init__(self, program: ExportedProgram, symbol: Expr) -> None:
        self.program, self.symbol = program, symbol
        self.batched: set[Node] = set()
        """Values that depend on split inputs, or are the same for each element of the batch."""
        self.positions: set[Node] = set()
        """Values that are indices of the batch: 0, 1, 2, ..."""

    def check(self) -> None:
        nodes = list(self.program.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        for node, spec in zip(inputs, self.program.graph_signature.input_specs, strict=True):
            split = spec.kind is InputKind.USER_INPUT and self.symbol in collect_symbols(node)
            if split and get_shape(node) is not None:
                self._require_one_dim(node, "the input")
                self.batched.add(node)
        self._calls(self.program.graph_module)
        self._outputs(nodes[-1])

    def _calls(self, module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "call_function":
                if isinstance(node.target, HigherOrderOperator):
                    self._enter(node, module)
                self._call(node)

    def _enter(self, node: Node, module: GraphModule) -> None:
        """Follow the operands of control flow into its graphs."""
        place = _SCANNED_ARGUMENTS.get(node.target)
        along: Any = [] if place is None else node.args[place]
        if any((find_batch_dim(get_shape(x) or (), self.symbol) or (None,))[0] == 0 for x in along):
            self._refuse(node, "loops over the batch")
        graphs: list[GraphModule] = []
        operands: list[Any] = []
        for x in pytree.tree_leaves(node.args):
            graph = _find_graph(x, module)
            if graph is not None:
                graphs.append(graph)
                operands = []  # those of the graphs stand behind them
            else:
                operands.append(x)
        if node.target is higher_order.associative_scan:
            operands = [*along, *operands]  # it combines two
        for graph in graphs:
            inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
            for entered, operand in zip(inputs, operands, strict=False):
                # An element of a batch is one item.
                if self.symbol in collect_symbols(entered):
                    for kind in (self.batched, self.positions):
                        kind.update([entered] if operand in kind else ())
            self._calls(graph)

    def _call(self, node: Node) -> None:
        val = get_val(node)
        parts = val if isinstance(val, (tuple, list)) else (val,)
        if not any(isinstance(x, torch.Tensor) for x in parts):
            return  # sizes
        packet = getattr(node.target, "overloadpacket", None)
        if packet is not aten.arange and any(map(self._is_batch_number, _list_operands(node))):
            self._refuse(node, "computes with the size of the batch")
        if packet in _INDEX_OPS and self._picks_others(node):
            self._refuse(node, "indexes into the batch")
        if any(n in self.positions for n in node.all_input_nodes) and packet not in _INDEX_OPS:
            # `positions[:, None]` begins with a slice that takes all of them.
            if packet not in _VIEW_OPS and (
                packet is not aten.slice or mixes_batch(node, self.symbol)
            ):
                self._refuse(node, "computes with indices of the batch")
            self.positions.add(node)
        elif any(n in self.batched for n in node.all_input_nodes) and packet not in _NEW_TENSOR_OPS:
            self.batched.add(node)
            self._require_one_dim(node, "the result of")
            if isinstance(node.target, OpOverload) and mixes_batch(node, self.symbol):
                self._refuse(node, "mixes elements of the batch")
        elif self.symbol in collect_symbols(node):
            self._check_factory(node, packet)

    def _check_factory(self, node: Node, packet: object) -> None:
        """A tensor of the size of the batch that depends on no input."""
        if packet is aten.arange and len(node.args) == 1:
            self.positions.add(node)
        elif packet in _UNIFORM_OPS:
            self.batched.add(node)
            self._require_one_dim(node, "the result of")
        else:
            self._refuse(
                node, "is a tensor of the size of the batch that is made without the inputs"
            )

    def _picks_others(self, node: Node) -> bool:
        """Whether the index for the batch is anything but each item's own position."""
        call = BatchCall(node, self.symbol)
        indices: Any = call.given["indices"]
        for dim, index in enumerate(indices):
            own = call.dim is not None and dim == call.dim
            if index is not None and own != (index in self.positions):
                return True
        return False

    def _is_batch_number(self, x: object) -> bool:
        return isinstance(x, Node) and get_shape(x) is None and self.symbol in collect_symbols(x)

    def _outputs(self, output: Node) -> None:
        values: Any = output.args[0]
        for value, spec in zip(values, self.program.graph_signature.output_specs, strict=True):
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                target = next(n for n in self.program.graph.nodes if n.name == spec.target)
                if target not in self.batched:
                    self._refuse(value, f"changes the input {spec.target!r}, which is not split")
            elif value in self.positions:
                self._refuse(value, "returns indices of the batch")

    def _require_one_dim(self, node: Node, what: str) -> None:
        shape = get_shape(node)
        if shape is not None and find_batch_dim(shape, self.symbol) is None:
            shown = ", ".join(map(str, shape))
            self._refuse(node, f"has the sizes [{shown}], which are not those of a batch", what)

    def _refuse(self, node: Node, why: str, what: str = "") -> None:
        name = f"{what} {node.name}".strip()
        operator = f" ({node.target})" if node.op == "call_function" else ""
        raise StageError(
            f"the batch ({self.symbol}) cannot be split into micro-batches: {name}{operator} {why}",
            where=_find_source_line(node),
            fix="micro_batches=1",
        )


def _find_graph(x: Any, module: GraphModule) -> GraphModule | None:
    """The subgraph of a module that an argument refers to."""
    found = getattr(module, str(x.target), None) if isinstance(x, Node) else None
    return found if isinstance(found, GraphModule) and x.op == "get_attr" else None


def _find_source_line(node: Node) -> str | None:
    """The last line of the user's code that made a node."""
    lines = [x.strip() for x in (node.meta.get("stack_trace") or "").strip().splitlines()]
    return " ".join(lines[-2:]) or None


_INDEX_OPS = packets("index index_put _unsafe_index _unsafe_index_put")

# Show the same numbers in other dims.
_VIEW_OPS = packets(
    "unsqueeze squeeze view reshape expand _to_copy clone alias detach to contiguous"
)

# Take no more from a tensor than its dtype, device and sizes.
_NEW_TENSOR_OPS = packets("""
    new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like rand_like
    randn_like
""")

# Tensors of the batch's size that hold the same for every item, or as good as that.
_UNIFORM_OPS = (
    *_NEW_TENSOR_OPS,
    *packets("zeros ones full empty expand repeat tile scalar_tensor rand randn randint"),
)

# Loops over the first dim of what this argument lists.
_SCANNED_ARGUMENTS = {higher_order.scan: 2, higher_order.associative_scan: 1}

# Kinds of arguments that an operator computes with; ints are sizes, dims, or some of these places.
_OPERAND_TYPES = ("Tensor", "Optional[Tensor]", "number", "float", "Optional[float]")
_POSITION_ARGUMENTS = ("diagonal", "index", "offset", "shifts")


def _list_operands(node: Node) -> Sequence[Any]:
    if not isinstance(node.target, OpOverload):
        return ()
    arguments = node.target._schema.arguments
    given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    names = [
        a.name for a in arguments if str(a.type) in _OPERAND_TYPES or a.name in _POSITION_ARGUMENTS
    ]
    return pytree.tree_leaves([given[name] for name in names if name in given])
