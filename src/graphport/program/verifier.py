"""Verifies the invariants of a program: graph, subgraph calls, signature, state."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from graphport.compat.operators import higher_order
from graphport.compat.torch import HigherOrderOperator, OpOverload, pytree
from graphport.errors import VerificationError
from graphport.program.signature import ConstantArgument, InputKind, OutputKind
from graphport.symbolic.bridge import python_type
from graphport.tensors.abstract import get_val, has_val
from graphport.types import Args

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

# Functions on sizes that may stand in a graph, besides those of `operator` and `math`.
_SIZE_MODULES = ("_operator", "math", "builtins", "torch")


def verify_program(program: ExportedProgram) -> None:
    problems = [*_check_graph(program), *_check_signature(program), *_check_state(program)]
    if problems:
        raise VerificationError("the program is not valid:\n  " + "\n  ".join(problems))


def _check_graph(program: ExportedProgram) -> list[str]:
    may_mutate = program.dialect == "TRAINING"
    problems = _check_nodes(program.graph_module, may_mutate)
    for name, module in program.graph_module.named_modules():
        if name and isinstance(module, GraphModule):
            problems.extend(f"in {name}: {p}" for p in _check_nodes(module, may_mutate))
    return problems


def _check_nodes(module: GraphModule, may_mutate: bool) -> list[str]:
    """Of one graph: the program's, or one within it."""
    problems = []
    try:
        module.graph.lint()
    except RuntimeError as error:
        problems.append(f"the graph is malformed: {error}")
    for node in module.graph.nodes:
        if node.op in ("call_method", "call_module"):
            problems.append(f"{node.name}: {node.op} is not allowed")
        if node.op == "call_function":
            problems.extend(_check_target(node, may_mutate=may_mutate))
            if isinstance(node.target, HigherOrderOperator):
                problems.extend(check_subgraph_call(node, module))
        if node.op in ("placeholder", "call_function") and not has_val(node):
            problems.append(f"{node.name}: no `val` in its metadata")
    return problems


def _check_target(node: Node, *, may_mutate: bool) -> list[str]:
    target: Any = node.target
    if isinstance(target, HigherOrderOperator):
        return []
    if isinstance(target, OpOverload):
        if target._schema.is_mutable and not may_mutate:
            return [f"{node.name}: {target} mutates its arguments"]
        return []
    if target is operator.getitem or getattr(target, "__module__", "") in _SIZE_MODULES:
        return []
    return [f"{node.name}: {target} is neither an operator nor a function on sizes"]


def _check_signature(program: ExportedProgram) -> list[str]:
    signature = program.graph_signature
    problems = []
    inputs = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    specs = [s.arg.name for s in signature.input_specs]
    if inputs != specs:
        problems.append(f"graph inputs {inputs} are not those of the signature {specs}")
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    results = output.args[0]
    if len(results) != len(signature.output_specs):
        problems.append(
            f"the graph has {len(results)} outputs, the signature {len(signature.output_specs)}"
        )
        return problems
    for value, spec in zip(results, signature.output_specs, strict=True):
        if isinstance(spec.arg, ConstantArgument):
            continue
        if not isinstance(value, Node) or value.name != spec.arg.name:
            problems.append(f"output {value} is not {spec.arg.name} of the signature")
        if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target not in inputs:
            problems.append(f"mutated input {spec.target!r} is not an input")
    return problems


def _check_state(program: ExportedProgram) -> list[str]:
    problems = []
    for spec in program.graph_signature.input_specs:
        name = spec.target or ""
        if spec.kind is InputKind.PARAMETER:
            if not isinstance(program.state_dict.get(name), torch.nn.Parameter):
                problems.append(f"parameter {name!r} is not in the state dict")
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            if name not in program.state_dict and name not in program.constants:
                problems.append(f"{spec.kind.name.lower()} {name!r} has no value")
    return problems


# Rules for calls of subgraphs: what a call passes to them and what it says that they return.


class ValueType(NamedTuple):
    """What a value is: a Python type, and of a tensor its dtype, device and sizes."""

    type: type
    dtype: Any = None
    device: Any = None
    sizes: tuple[Any, ...] = ()

    def fits(self, other: ValueType) -> bool:
        """The same, as far as sizes are numbers."""
        return (
            self[:3] == other[:3]
            and len(self.sizes) == len(other.sizes)
            and all(
                p == q
                for p, q in zip(self.sizes, other.sizes, strict=True)
                if type(p) is int and type(q) is int
            )
        )

    def __str__(self) -> str:
        if self.type is not torch.Tensor:
            return self.type.__name__
        sizes = ", ".join(map(str, self.sizes))
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"


def infer_value_type(x: object) -> ValueType:
    """Of an argument or result: a node or a constant."""
    val = get_val(x) if isinstance(x, Node) else x
    if isinstance(val, torch.Tensor):
        return ValueType(torch.Tensor, val.dtype, val.device, tuple(val.shape))
    plain = python_type(val)
    return ValueType(int if plain is bool else plain)  # a bool from data counts as 0 or 1


def _infer_value_types(xs: Sequence[object]) -> list[ValueType]:
    return [infer_value_type(x) for x in xs]


def _infer_element_types(xs: Sequence[object]) -> list[ValueType]:
    return [k._replace(sizes=k.sizes[1:]) for k in _infer_value_types(xs)]


class SubgraphUse(NamedTuple):
    """How a call uses one of its graphs."""

    takes: list[ValueType]
    returns: list[ValueType] | None
    """None where the call does not say."""


def _cond(args: Args, out: list[ValueType]) -> list[SubgraphUse]:
    return [SubgraphUse(_infer_value_types(args[3]), out)] * 2


def _while_loop(args: Args, out: list[ValueType]) -> list[SubgraphUse]:
    given = [*_infer_value_types(args[2]), *_infer_value_types(args[3])]
    return [SubgraphUse(given, None), SubgraphUse(given, out)]


def _map(args: Args, out: list[ValueType]) -> list[SubgraphUse]:
    rows = [k._replace(sizes=k.sizes[1:]) for k in out]
    return [SubgraphUse([*_infer_element_types(args[1]), *_infer_value_types(args[2])], rows)]


def _scan(args: Args, out: list[ValueType]) -> list[SubgraphUse]:
    count = len(args[1])
    rows = [k._replace(sizes=k.sizes[1:]) for k in out[count:]]
    given = [
        *_infer_value_types(args[1]),
        *_infer_element_types(args[2]),
        *_infer_value_types(args[3]),
    ]
    return [SubgraphUse(given, [*out[:count], *rows])]


_SUBGRAPH_USES: dict[Any, Callable[[Any, list[ValueType]], list[SubgraphUse]]] = {
    higher_order.cond: _cond,
    higher_order.while_loop: _while_loop,
    higher_order.map_impl: _map,
    higher_order.scan: _scan,
}


def check_subgraph_call(node: Node, owner: GraphModule) -> list[str]:
    """What is wrong with a call of graphs that are children of `owner`."""
    graphs = [n for n in node.all_input_nodes if n.op == "get_attr"]
    problems = []
    modules = []
    for n in graphs:
        module = getattr(owner, str(n.target), None)
        if not isinstance(module, GraphModule):
            problems.append(f"{n.name}: there is no graph {n.target!r}")
        modules.append(module)
    find = _SUBGRAPH_USES.get(node.target)
    if problems or find is None:
        return problems
    val = get_val(node)
    out = _infer_value_types(val if isinstance(val, (tuple, list)) else [val])
    for n, module, use in zip(graphs, modules, find(node.args, out), strict=True):
        assert isinstance(module, GraphModule)
        inputs = [p for p in module.graph.nodes if p.op == "placeholder"]
        problems.extend(
            _compare_types(f"{node.name}: {n.target} takes", _infer_value_types(inputs), use.takes)
        )
        if use.returns is not None:
            last = next(p for p in reversed(module.graph.nodes) if p.op == "output")
            results = pytree.tree_leaves(last.args[0], is_leaf=lambda x: x is None)
            found = _infer_value_types(results)
            problems.extend(_compare_types(f"{node.name}: {n.target} returns", found, use.returns))
    return problems


def _compare_types(what: str, have: list[ValueType], want: list[ValueType]) -> list[str]:
    if len(have) != len(want):
        return [f"{what} {len(have)} values, the call says {len(want)}"]
    return [
        f"{what} {h} as value {i}, the call says {w}"
        for i, (h, w) in enumerate(zip(have, want, strict=True))
        if not h.fits(w)
    ]
