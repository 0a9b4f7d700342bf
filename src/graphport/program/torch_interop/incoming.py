"""Converts a `torch.export.ExportedProgram` to an `ExportedProgram`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import export, nn
from torch.export import graph_signature as theirs
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten
from graphport.compat.torch import pytree
from graphport.errors import InputError, ShapeError, UnsupportedError
from graphport.ops import Abstract
from graphport.program import signature as ours
from graphport.program.call_checks import InputChecks, InputShape
from graphport.program.exported import CallSpec, ExportedProgram, ModuleCall
from graphport.program.module import make_graph_module
from graphport.program.torch_interop.environment import make_incoming_stacks
from graphport.program.torch_interop.expressions import (
    FromSympy,
    GuardReader,
    convert_bound,
    get_example_values,
)
from graphport.symbolic import Expr, Range, Scope, Truth, ge, le
from graphport.symbolic.bridge import from_torch, is_symbolic, to_torch
from graphport.tensors.abstract import contiguous_strides, get_val, make_abstract_tensor

_METADATA = ("stack_trace", "torch_fn", "source_fn_stack", "custom")
_SYMBOLIC_ARGUMENTS = (theirs.SymIntArgument, theirs.SymFloatArgument, theirs.SymBoolArgument)
_DIALECTS = ("ATEN", "TRAINING")


def convert(program: export.ExportedProgram) -> ExportedProgram:
    if not isinstance(program, export.ExportedProgram):
        raise InputError(
            f"from_torch takes a torch.export.ExportedProgram, got {type(program).__name__}",
            fix="gp.from_torch(torch.export.export(model, args))",
        )
    if program.dialect not in _DIALECTS:
        raise UnsupportedError(f"a program in the dialect {program.dialect!r}")
    return _Conversion(program).program()


class _Conversion:
    """One conversion, step by step."""

    def __init__(self, given: export.ExportedProgram) -> None:
        self.given = given
        self.scope = Scope()
        self.expr = FromSympy(self._symbol)
        self.shape_env = _find_shape_env(given)
        self.names = _find_dim_names(self.shape_env)
        self._stack = make_incoming_stacks()
        self._symbols: dict[Any, Expr] = {}
        self._unbacked: dict[Any, Range] = {}
        """The data-dependent symbols, and what torch knows of each."""

    def program(self) -> ExportedProgram:
        given = self.given
        for symbol in sorted(given.range_constraints, key=str):
            if isinstance(symbol, sympy.Symbol) and not _is_unbacked(symbol):
                self._symbol(symbol)
        module = self._module(given.graph_module)
        nodes = {node.name: node for node in module.graph.nodes}
        signature = ours.GraphSignature(
            [self._input_spec(spec) for spec in given.graph_signature.input_specs],
            [self._output_spec(spec) for spec in given.graph_signature.output_specs],
        )
        ranges = self._ranges()
        shapes = self._shapes(signature, nodes)
        facts = self._facts(shapes)
        self._learn(facts, module)
        spec = given.call_spec
        return ExportedProgram(
            graph_module=module,
            graph_signature=signature,
            state_dict=dict(given.state_dict),
            constants=dict(given.constants),
            range_constraints=ranges,
            call_spec=CallSpec(spec.in_spec, spec.out_spec),
            example_inputs=self._example(shapes),
            checks=InputChecks(shapes, ranges, facts),
            argument_names=self._argument_names(),
            positional=spec.in_spec.children()[0].num_children,
            module_call_graph=list(map(_convert_call, given.module_call_graph)),
            dialect=given.dialect,
            scope=self.scope,
        )

    # Symbols

    def _symbol(self, symbol: Any) -> Expr:
        known = self._symbols.get(symbol)
        if known is None:
            known = self._symbols[symbol] = self._declare(symbol)
        return known

    def _declare(self, symbol: Any) -> Expr:
        name = str(symbol)
        kind = float if name.startswith(("zf", "zuf")) else int
        limits = self._limits(symbol, kind)
        hint = None
        if _is_unbacked(symbol):
            # Only what torch relies on without checking it; the rest is asserted, and stated then.
            self._unbacked[symbol] = limits
            limits = Range(0 if limits.lower >= 0 and kind is int else -math.inf, math.inf)
        else:
            hint = self._hint(symbol, limits, kind)
        wanted = self.names.get(symbol, name)
        if wanted in self.scope.arena.symbols:
            wanted = name
        return self.scope.symbol(
            wanted, hint=hint, lower=limits.lower, upper=limits.upper, type=kind
        )

    def _limits(self, symbol: object, kind: type) -> Range:
        limits = self.given.range_constraints.get(symbol)
        if limits is None and self.shape_env is not None:
            limits = self.shape_env.var_to_range.get(symbol)
        if limits is None:
            return Range(0 if kind is int else -math.inf, math.inf)
        return Range(convert_bound(limits.lower), convert_bound(limits.upper))

    def _hint(self, symbol: Any, limits: Range, kind: type) -> Any:
        known = {} if self.shape_env is None else get_example_values(self.shape_env)
        if symbol in known and (hint := kind(known[symbol])) in limits:
            return hint
        return kind(limits.lower if abs(limits.lower) != math.inf else 0)

    def _ranges(self) -> dict[Expr, Range]:
        """Those of symbols and derived dims that the program has."""
        found = {
            s: self._unbacked.get(symbol) or self.scope.declared(s)
            for symbol, s in self._symbols.items()
        }
        for e, limits in self.given.range_constraints.items():
            if not isinstance(e, sympy.Symbol) and e.free_symbols <= self._symbols.keys():
                own = self.expr(e)
                if isinstance(own, Expr):
                    found[own] = Range(convert_bound(limits.lower), convert_bound(limits.upper))
        return found

    def _facts(self, shapes: list[InputShape]) -> list[Expr]:
        """What torch checks of the inputs besides what their shapes say."""
        pairs = zip(self._spellings(), shapes, strict=True)
        reader = GuardReader({name: shape for names, shape in pairs for name in names})
        conditions = dict.fromkeys(map(reader, self.given._guards_code))
        return [cond for cond in conditions if isinstance(cond, Expr)]

    def _learn(self, facts: list[Expr], module: GraphModule) -> None:
        """State in the scope what the program checks, of its inputs and of data."""
        limits = (
            cond
            for symbol, r in self._unbacked.items()
            for cond in _express_range(self._symbols[symbol], r)
        )
        for cond in (*limits, *facts, *_find_assertions(module)):
            try:
                self.scope.assume(cond, reason="checked by the program")
            except ShapeError as error:
                raise UnsupportedError(f"the program can never run: {error.what}") from error

    # Graphs

    def _module(self, module: GraphModule) -> GraphModule:
        root, graph = nn.Module(), Graph()
        mapping: dict[Node, Node] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self._attribute(module, node.target, root)
            new = mapping[node] = graph.node_copy(node, lambda n: mapping[n])
            if node.op == "placeholder":
                new.name = node.name
            new.meta = self._metadata(node)
        return make_graph_module(root, graph)

    def _attribute(self, module: GraphModule, target: str, root: nn.Module) -> None:
        inner = getattr(module, target, None) if "." not in target else None
        if not isinstance(inner, GraphModule):
            kind = type(operator.attrgetter(target)(module)).__name__
            raise UnsupportedError(
                f"the graph refers to {target!r}, a {kind}; only subgraphs can be referred to"
            )
        if not hasattr(root, target):
            root.add_module(target, self._module(inner))

    def _metadata(self, node: Node) -> dict[str, Any]:
        if node.op == "output":
            return {}
        meta = {key: node.meta[key] for key in _METADATA if key in node.meta}
        if node.op == "call_function":
            meta.setdefault("stack_trace", "")
            meta["nn_module_stack"] = self._stack(node.meta.get("nn_module_stack"))
        if node.op != "get_attr":
            meta["val"] = self._value(get_val(node), node)
        return meta

    def _value(self, val: Any, node: Node) -> Any:
        if isinstance(val, torch.Tensor):
            return self._tensor(val, node)
        if is_symbolic(val):
            return to_torch(self.expr(val.node.expr))
        if isinstance(val, (list, tuple)):
            return tuple(self._value(x, node) for x in val)
        if isinstance(val, theirs.CustomObjArgument):
            raise UnsupportedError(f"{node.name} is a custom object, a {val.class_fqn}")
        return val

    def _tensor(self, t: torch.Tensor, node: Node) -> torch.Tensor:
        if t.layout is not torch.strided:
            raise UnsupportedError(
                f"{node.name} has layout {t.layout}; only strided tensors are supported"
            )
        sizes, strides = (tuple(map(self._number, x)) for x in (t.shape, t.stride()))
        packed = contiguous_strides(sizes)
        plain = all(a is b or a == b for a, b in zip(strides, packed, strict=True))
        offset = self._number(t.storage_offset())
        about = Abstract(sizes, t.dtype, t.device, None if plain else strides, offset)
        return make_abstract_tensor(about, t.requires_grad)

    def _number(self, x: Any) -> Any:
        return self.expr(x.node.expr) if is_symbolic(x) else x

    # The signature

    def _input_spec(self, spec: theirs.InputSpec) -> ours.InputSpec:
        return ours.InputSpec(
            ours.InputKind[spec.kind.name],
            _convert_argument(spec.arg),
            spec.target,
            spec.persistent,
        )

    def _output_spec(self, spec: theirs.OutputSpec) -> ours.OutputSpec:
        return ours.OutputSpec(
            ours.OutputKind[spec.kind.name], _convert_argument(spec.arg), spec.target
        )

    def _shapes(self, signature: ours.GraphSignature, nodes: dict[str, Node]) -> list[InputShape]:
        """What each flat input must be."""
        user = [s.arg for s in signature.input_specs if s.kind is ours.InputKind.USER_INPUT]
        paths = [
            f"kwargs[{key!r}]{rest}" if which else f"*args[{key}]{rest}"
            for which, key, rest in self._places()
        ]
        return [self._shape(*pair, nodes) for pair in zip(paths, user, strict=True)]

    def _shape(self, path: str, argument: Any, nodes: dict[str, Node]) -> InputShape:
        if isinstance(argument, ours.ConstantArgument):
            return InputShape(path, value=argument.value)
        val = get_val(nodes[argument.name])
        if isinstance(val, torch.Tensor):
            about = val._abstract
            return InputShape(path, about.sizes, about.dtype, device=about.device)
        number = from_torch(val)
        if isinstance(number, Expr):
            return InputShape(path, number=number)
        return InputShape(path, value=number)

    # The arguments

    def _places(self) -> list[tuple[int, Any, str]]:
        """Per flat input: 0 for positional ones, the argument, and the path within it."""
        given = self.given.example_inputs
        spec = self.given.call_spec.in_spec
        whole = given or pytree.tree_unflatten(range(spec.num_leaves), spec)
        found = []
        for path, _ in pytree.tree_flatten_with_path(whole)[0]:
            which, key = path[0].idx, path[1]
            found.append((which, key.key if which else key.idx, pytree.keystr(path[2:])))
        return found

    def _spellings(self) -> Iterator[tuple[str, ...]]:
        """How torch's conditions may call each flat input."""
        names = self._argument_names()
        for i, (which, key, rest) in enumerate(self._places()):
            name = key if which else names[key]
            found = [f"L['flat_args'][{i}]", f"L[{name!r}]{rest}"]
            base, _, index = name.rpartition("_")
            if index.isdigit():  # one of *args
                found.append(f"L[{base!r}][{index}]{rest}")
            yield tuple(found)

    def _argument_names(self) -> list[str]:
        positional, keywords = self.given.call_spec.in_spec.children()
        signature = self.given.module_call_graph[0].signature
        names = list(signature.forward_arg_names or ()) if signature is not None else []
        if len(names) != positional.num_children + keywords.num_children:
            names = [f"arg_{i}" for i in range(positional.num_children)] + list(keywords.context)
        return names

    def _example(self, shapes: list[InputShape]) -> Any:
        """The inputs that the program was captured with, or ones without data at those sizes."""
        if self.given.example_inputs is not None:
            return self.given.example_inputs
        leaves = [_make_example(shape, self.scope) for shape in shapes]
        return pytree.tree_unflatten(leaves, self.given.call_spec.in_spec)


def _make_example(shape: InputShape, scope: Scope) -> Any:
    if shape.sizes is None:
        return shape.value if shape.number is None else scope.hint(shape.number)
    sizes = [scope.hint(s) for s in shape.sizes]
    return torch.empty(sizes, dtype=shape.dtype, device="meta")


def _convert_argument(argument: Any) -> ours.Argument:
    if isinstance(argument, theirs.TensorArgument):
        return ours.TensorArgument(argument.name)
    if isinstance(argument, _SYMBOLIC_ARGUMENTS):
        return ours.SymbolicArgument(argument.name)
    if isinstance(argument, theirs.ConstantArgument):
        return ours.ConstantArgument(argument.name, argument.value)
    if isinstance(argument, theirs.CustomObjArgument):
        raise UnsupportedError(
            f"{argument.name} is a custom object, a {argument.class_fqn}: graphport has tensors "
            "and numbers only"
        )
    raise UnsupportedError(
        f"{argument.name} is a {type(argument).__name__}: operators with side effects that are "
        "ordered by tokens cannot be converted"
    )


def _convert_call(entry: Any) -> ModuleCall:
    """A module of the program; the root has the call spec of the program."""
    kept = entry.signature if entry.fqn else None
    return ModuleCall(
        entry.fqn,
        kept
        and ours.ModuleCallSignature(
            tuple(map(_convert_argument, kept.inputs)),
            tuple(map(_convert_argument, kept.outputs)),
            kept.in_spec,
            kept.out_spec,
            tuple(kept.forward_arg_names or ()),
        ),
    )


def _is_unbacked(symbol: object) -> bool:
    return str(symbol).startswith(("u", "zuf"))


def _find_shape_env(program: export.ExportedProgram) -> Any:
    """The shape environment that the sizes of a program belong to; None if all are fixed."""
    for node in program.graph.nodes:
        for val in pytree.tree_leaves(get_val(node)):
            if is_symbolic(val):
                return val.node.shape_env
            mode = getattr(val, "fake_mode", None)
            if mode is not None and mode.shape_env is not None:
                return mode.shape_env
    return None


def _find_dim_names(shape_env: Any) -> dict[Any, str]:
    """The names of the user's dims: torch keeps them by the source of a size, as text.

    `dx` names the symbol of that size, and `2*dx + 1` the one that the size is computed from.
    """
    names: dict[Any, str] = {}
    for source, text in getattr(shape_env, "source_name_to_debug_name", {}).items():
        symbol = shape_env.source_to_var.get(source)
        if symbol is None:
            continue
        roots = shape_env.replace(symbol).free_symbols
        found = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        if len(roots) == 1 and len(found) == 1:
            names.setdefault(*roots, *found)
    return names


def _express_range(e: Expr, r: Range) -> Iterator[Truth]:
    if r.lower != -math.inf:
        yield ge(e, r.lower)
    if r.upper != math.inf:
        yield le(e, r.upper)


def _find_assertions(module: GraphModule) -> Iterator[Expr]:
    """Conditions that the graph asserts."""
    for node in module.graph.nodes:
        if node.target is aten._assert_scalar.default and isinstance(node.args[0], Node):
            val = get_val(node.args[0])
            cond = from_torch(val) if isinstance(val, torch.SymBool) else None
            if isinstance(cond, Expr):
                yield cond
