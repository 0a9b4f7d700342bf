"""`ExportedProgram`: a captured program, as data, and its text."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from graphport import errors
from graphport.arguments import FLAG, ITERABLE, NONE, TABLE, check_arguments, format_value
from graphport.compat.torch import OpOverload, TreeSpec
from graphport.errors import InputError
from graphport.program.call_checks import InputChecks
from graphport.program.module import build_module
from graphport.program.signature import GraphSignature, InputKind, ModuleCallSignature
from graphport.program.verifier import verify_program
from graphport.symbolic import Expr, Range, Scope
from graphport.symbolic.bridge import is_symbolic
from graphport.tensors.abstract import get_val, has_val
from graphport.types import NodeTarget, PyTree


@dataclass(frozen=True)
class CallSpec:
    """The structure of the arguments and of the result."""

    in_spec: TreeSpec
    out_spec: TreeSpec


@dataclass(frozen=True)
class ModuleCall:
    """A module of the original program: its path, and the signature of its call if it was kept.

    Further calls of a module whose signature is kept are `encoder@1`, ...
    """

    fqn: str
    signature: ModuleCallSignature | None = None


ModuleCallEntry = ModuleCall
"""As `torch.export` calls it."""


@dataclass
class ExportedProgram:
    """A functional graph, the state it needs, and what is known of its inputs.

    `graph_module` takes parameters, buffers and constants as inputs; `module()` gives a callable
    with the user's own signature.
    """

    graph_module: GraphModule
    graph_signature: GraphSignature
    state_dict: dict[str, Any]
    constants: dict[str, Any]
    range_constraints: dict[Expr, Range]
    call_spec: CallSpec
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]]
    checks: InputChecks
    argument_names: list[str]
    positional: int | None = None
    """How many arguments, from the first, can be given by position; None for all of them."""
    module_call_graph: list[ModuleCall] = field(default_factory=list)
    dialect: str = "ATEN"
    notes: list[str] = field(default_factory=list)
    """What capture has to say to the user: sizes under Dim.AUTO that the program fixes."""
    scope: Scope = field(default_factory=Scope)
    """What is known of the sizes: for whoever goes on working with the graph."""
    takes_gradients: bool = False
    """Whether the user's code calls torch.autograd.grad, and cannot run without gradients."""
    from_file: bool = False
    """Whether it was loaded: its operators may be called with anything, so modules check more."""

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph

    @property
    def tensor_constants(self) -> dict[str, torch.Tensor]:
        """The tensors among `constants`."""
        return {name: t for name, t in self.constants.items() if isinstance(t, torch.Tensor)}

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for _, p in self.named_parameters():
            yield p

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for spec in self.graph_signature.input_specs:
            if spec.kind is InputKind.BUFFER:
                yield spec.target, self.tensor(spec.target)  # type: ignore[misc,arg-type]

    def buffers(self) -> Iterator[torch.Tensor]:
        for _, b in self.named_buffers():
            yield b

    def tensor(self, name: str) -> Any:
        """A parameter, buffer or constant by its fully qualified name."""
        for tensors in (self.state_dict, self.constants):
            if isinstance(name, str) and name in tensors:
                return tensors[name]
        raise InputError(
            "name is that of a parameter, buffer or constant of the program, got "
            f"{format_value(name)}"
        )

    @check_arguments(check_guards=FLAG)
    def module(self, check_guards: bool = True) -> GraphModule:
        """A callable module that checks its inputs, runs, and writes mutations back."""
        return build_module(self, check_guards=check_guards)

    @check_arguments(table=TABLE | NONE, preserve_ops=ITERABLE, decomp_table=TABLE | NONE)
    def run_decompositions(
        self,
        table: Mapping[OpOverload, Callable[..., Any]] | None = None,
        preserve_ops: Iterable[OpOverload] = (),
        *,
        decomp_table: Mapping[OpOverload, Callable[..., Any]] | None = None,
    ) -> ExportedProgram:
        """A new program over core ATen, or over what `table` gives; shares this one's state.

        With `table={}` only composite operators are decomposed; those in `preserve_ops` are not.
        `decomp_table` is the same as `table`.
        """
        if decomp_table is not None:
            if table is not None:
                raise InputError("table and decomp_table are one, and both were given", fix="table")
            table = decomp_table
        # Capture stands above programs, which it makes.
        from graphport.capture.rewrite.decomposition import run_decompositions

        return run_decompositions(self, table, tuple(preserve_ops))

    def to_torch(self) -> Any:
        """The program as a `torch.export.ExportedProgram`, for whatever takes one.

        It shares the tensors of this program, except for buffers that the program writes to.
        """
        from graphport.program.torch_interop import to_torch

        return to_torch(self)

    def validate(self) -> None:
        """Raise `VerificationError` unless the program obeys its own rules."""
        verify_program(self)

    def __deepcopy__(self, memo: dict[int, object]) -> ExportedProgram:
        """Graphs and tensors are copied. What is known of the sizes is not: they refer to it."""
        memo.update((id(known), known) for known in (self.scope, self.checks))
        made = memo[id(self)] = replace(self)
        vars(made).update((name, copy.deepcopy(x, memo)) for name, x in vars(self).items())
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is saved."""
        from graphport.program.files import save

        file = io.BytesIO()
        save(self, file)
        return _unpickle_program, (file.getvalue(),)

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        raise RuntimeError(
            "An ExportedProgram is data and is not callable. Use `ep.module()(...)` instead."
        )

    def __str__(self) -> str:
        return format_program(self)

    __repr__ = __str__


def _unpickle_program(saved: bytes) -> ExportedProgram:
    from graphport.program.files import load

    # Who unpickles trusts where it comes from: a pickle can call anything.
    return load(io.BytesIO(saved), allow=("*",))


# Formats a program as text: sizes by name, the graph a line per node, the signature, the ranges.

SHORT_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def format_program(program: ExportedProgram) -> str:
    notes = {
        s.arg.name: f"    # {s.kind.name.lower()} {errors.escape_line(str(s.target))}"
        for s in program.graph_signature.input_specs
        if s.kind is not InputKind.USER_INPUT
    }
    lines = ["ExportedProgram:"]
    lines.extend(f"    {text}" for text in _format_graph("graph", program.graph_module, notes))
    lines.append("")
    lines.extend(f"    {text}" for text in str(program.graph_signature).splitlines())
    lines.append("    range constraints:")
    if not program.range_constraints:
        lines.append("      none: every size is fixed")
    lines.extend(f"      {s}: {r}" for s, r in program.range_constraints.items())
    lines.extend(f"      {note}" for note in program.notes)
    return errors.escape_terminal("\n".join(lines))


def _format_graph(name: str, module: GraphModule, notes: Mapping[str, str]) -> list[str]:
    """The inputs, then a line per node; a subgraph where it is referred to."""
    head: list[str] = [f"{name}("]
    body: list[str] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            note = notes.get(node.name, "")
            head.append(f"    {node.name}: {format_type(get_val(node))},{note}")
        elif node.op == "get_attr" and isinstance(node.target, str):
            inner = getattr(module, node.target)
            body.extend(f"    {text}" for text in _format_graph(f"{node.name} = graph", inner, {}))
        else:
            body.append(f"    {_format_node(node)}")
    return [*head, "):", *body]


def format_type(val: object) -> str:
    """`f32[batch, 512]`."""
    if isinstance(val, torch.Tensor):
        dtype = SHORT_DTYPES.get(val.dtype, str(val.dtype).removeprefix("torch."))
        return f"{dtype}[{', '.join(str(s) for s in val.shape)}]"
    if isinstance(val, (list, tuple)):
        return "(" + ", ".join(map(format_type, val)) + ")"
    if is_symbolic(val):
        return f"Sym({val})"
    return type(val).__name__


def _format_node(node: Node) -> str:
    if node.op == "output":
        return f"return {_format_argument(node.args[0])}"
    target = node.target if isinstance(node.target, str) else _format_target(node.target)
    parts = [_format_argument(a) for a in node.args]
    parts += [f"{k}={_format_argument(v)}" for k, v in node.kwargs.items()]
    val = get_val(node)
    kind = f": {format_type(val)}" if has_val(node) else ""
    return f"{node.name}{kind} = {target}({', '.join(parts)})"


def _format_target(target: NodeTarget) -> str:
    if isinstance(target, OpOverload):
        return str(target).removesuffix(".default")
    module = getattr(target, "__module__", "").lstrip("_")
    return f"{module}.{target.__name__}" if module else target.__name__


def _format_argument(x: object) -> str:
    if isinstance(x, Node):
        return x.name
    if isinstance(x, (list, tuple)):
        inner = ", ".join(map(_format_argument, x))
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' if len(x) == 1 else ''})"
    return str(x) if isinstance(x, (torch.dtype, torch.device)) else repr(x)
