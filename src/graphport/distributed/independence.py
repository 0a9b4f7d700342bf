"""Whether a program treats the items of a batch one by one, so that it may be split.

Every value that depends on a split input has to have the batch as exactly one of its dims, as a
multiple of it (`4*batch` after a reshape): where it is gone, items were summed or picked; where it
is there twice, each item met each other. Operators must not work along it (`mixing`). Numbers that
follow from the size of the batch may be sizes, but not operands, and the positions of the items in
the batch (`arange(batch)`) may pick each item's own, but nothing else.

The branches and bodies of control flow are followed too. What cannot be seen is a custom operator
that mixes items and keeps their number: it is taken to treat them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from graphport.distributed.described import shape_of, symbols_of
from graphport.distributed.mixing import Call, batch_size, mixes
from graphport.errors import StageError
from graphport.program import ExportedProgram, InputKind, OutputKind
from graphport.symbolic import Expr

aten = torch.ops.aten
higher_order = torch.ops.higher_order

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def require_independence(program: ExportedProgram, symbol: Expr) -> None:
    """Raise StageError, with the place, unless the batch of this size may be split."""
    for spec in program.graph_signature.output_specs:
        if spec.kind in _WRITES:
            raise StageError(
                f"the batch cannot be split: the program changes {spec.target!r} in each run, and "
                "would do so once for every micro-batch",
                fix="micro_batches=1",
            )
    _Walk(program, symbol).check()


class _Walk:
    def __init__(self, program: ExportedProgram, symbol: Expr) -> None:
        self.program, self.symbol = program, symbol
        self.batched: set[Node] = set()
        """Values that depend on what split inputs hold, or have as many items all alike."""
        self.positions: set[Node] = set()
        """Those that count the items of the batch."""

    def check(self) -> None:
        nodes = list(self.program.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        for node, spec in zip(inputs, self.program.graph_signature.input_specs, strict=True):
            split = spec.kind is InputKind.USER_INPUT and self.symbol in symbols_of(node)
            if split and shape_of(node) is not None:
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
        place = _SCANNED.get(node.target)
        along: Any = [] if place is None else node.args[place]
        if any((batch_size(shape_of(x) or (), self.symbol) or (None,))[0] == 0 for x in along):
            self._refuse(node, "goes along the batch")
        graphs: list[GraphModule] = []
        operands: list[Any] = []
        for x in pytree.tree_leaves(node.args):
            graph = _graph(x, module)
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
                if self.symbol in symbols_of(entered):
                    for kind in (self.batched, self.positions):
                        kind.update([entered] if operand in kind else ())
            self._calls(graph)

    def _call(self, node: Node) -> None:
        val = node.meta.get("val")
        parts = val if isinstance(val, (tuple, list)) else (val,)
        if not any(isinstance(x, torch.Tensor) for x in parts):
            return  # sizes
        packet = getattr(node.target, "overloadpacket", None)
        if packet is not aten.arange and any(map(self._is_batch_number, _operands(node))):
            self._refuse(node, "computes with the size of the batch")
        if packet in _INDEXED and self._picks_others(node):
            self._refuse(node, "picks items of the batch")
        if any(n in self.positions for n in node.all_input_nodes) and packet not in _INDEXED:
            # `positions[:, None]` begins with a slice that takes all of them.
            if packet not in _VIEWS and (packet is not aten.slice or mixes(node, self.symbol)):
                self._refuse(node, "computes with the positions of the items in the batch")
            self.positions.add(node)
        elif any(n in self.batched for n in node.all_input_nodes) and packet not in _NEW:
            self.batched.add(node)
            self._require_one_dim(node, "the result of")
            if isinstance(node.target, OpOverload) and mixes(node, self.symbol):
                self._refuse(node, "works along the batch")
        elif self.symbol in symbols_of(node):
            self._made_up(node, packet)

    def _made_up(self, node: Node, packet: Any) -> None:
        """A tensor of the size of the batch that depends on no input."""
        if packet is aten.arange and len(node.args) == 1:
            self.positions.add(node)
        elif packet in _FILLED:
            self.batched.add(node)
            self._require_one_dim(node, "the result of")
        else:
            self._refuse(node, "gives the items of the batch something by their number")

    def _picks_others(self, node: Node) -> bool:
        """Whether the index for the batch is anything but each item's own position."""
        call = Call(node, self.symbol)
        indices: Any = call.given["indices"]
        for dim, index in enumerate(indices):
            own = call.dim is not None and dim == call.dim
            if index is not None and own != (index in self.positions):
                return True
        return False

    def _is_batch_number(self, x: Any) -> bool:
        return isinstance(x, Node) and shape_of(x) is None and self.symbol in symbols_of(x)

    def _outputs(self, output: Node) -> None:
        values: Any = output.args[0]
        for value, spec in zip(values, self.program.graph_signature.output_specs, strict=True):
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                target = next(n for n in self.program.graph.nodes if n.name == spec.target)
                if target not in self.batched:
                    self._refuse(value, f"changes the input {spec.target!r}, which is not split")
            elif value in self.positions:
                self._refuse(value, "gives the positions of the items in the batch")

    def _require_one_dim(self, node: Node, what: str) -> None:
        shape = shape_of(node)
        if shape is not None and batch_size(shape, self.symbol) is None:
            shown = ", ".join(map(str, shape))
            self._refuse(node, f"has the sizes [{shown}], which are not those of a batch", what)

    def _refuse(self, node: Node, why: str, what: str = "") -> None:
        name = f"{what} {node.name}".strip()
        operator = f" ({node.target})" if node.op == "call_function" else ""
        raise StageError(
            f"the batch ({self.symbol}) cannot be split into micro-batches: {name}{operator} {why}",
            where=_place(node),
            fix="micro_batches=1",
        )


def _graph(x: Any, module: GraphModule) -> GraphModule | None:
    """The graph that an argument is, of a module with graphs within."""
    found = getattr(module, str(x.target), None) if isinstance(x, Node) else None
    return found if isinstance(found, GraphModule) and x.op == "get_attr" else None


def _place(node: Node) -> str | None:
    """The last line of the user's code that made a node."""
    lines = [x.strip() for x in (node.meta.get("stack_trace") or "").strip().splitlines()]
    return " ".join(lines[-2:]) or None


_INDEXED = (aten.index, aten.index_put, aten._unsafe_index, aten._unsafe_index_put)

# Show the same numbers in other dims.
_VIEWS = (
    aten.unsqueeze, aten.squeeze, aten.view, aten.reshape, aten.expand, aten._to_copy, aten.clone,
    aten.alias, aten.detach, aten.to, aten.contiguous,
)  # fmt: skip

# Take no more from a tensor than its dtype, device and sizes.
_NEW = (
    aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty, aten.zeros_like, aten.ones_like,
    aten.full_like, aten.empty_like, aten.rand_like, aten.randn_like,
)  # fmt: skip

# Tensors of the batch's size that hold the same for every item, or as good as that.
_FILLED = (
    *_NEW, aten.zeros, aten.ones, aten.full, aten.empty, aten.expand, aten.repeat, aten.tile,
    aten.scalar_tensor, aten.rand, aten.randn, aten.randint,
)  # fmt: skip

# Loops over the first dim of what this argument lists.
_SCANNED = {higher_order.scan: 2, higher_order.associative_scan: 1}

# Kinds of arguments that an operator computes with; ints are sizes, dims, or some of these places.
_OPERANDS = ("Tensor", "Optional[Tensor]", "number", "float", "Optional[float]")
_PLACES = ("diagonal", "index", "offset", "shifts")


def _operands(node: Node) -> Sequence[Any]:
    if not isinstance(node.target, OpOverload):
        return ()
    arguments = node.target._schema.arguments
    given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    names = [a.name for a in arguments if str(a.type) in _OPERANDS or a.name in _PLACES]
    return pytree.tree_leaves([given[name] for name in names if name in given])
