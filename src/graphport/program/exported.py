"""`ExportedProgram`: a captured program, as data."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule
from torch.utils._pytree import TreeSpec

from graphport.arguments import FLAG, ITERABLE, NONE, TABLE, shown, takes
from graphport.errors import InputError
from graphport.program import services
from graphport.program.checks import InputChecks
from graphport.program.module import build_module
from graphport.program.printing import render
from graphport.program.signature import GraphSignature, InputKind, ModuleCallSignature
from graphport.program.verifier import verify
from graphport.symbolic import Expr, Range, Scope


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
    from_file: bool = False
    """Whether it was loaded: its operators may be called with anything, so modules check more."""

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph

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
            f"name is that of a parameter, buffer or constant of the program, got {shown(name)}"
        )

    @takes(check_guards=FLAG)
    def module(self, check_guards: bool = True) -> GraphModule:
        """A callable module that checks its inputs, runs, and writes mutations back."""
        return build_module(self, check_guards=check_guards)

    @takes(table=TABLE | NONE, preserve_ops=ITERABLE)
    def run_decompositions(
        self,
        table: Mapping[OpOverload, Callable[..., Any]] | None = None,
        preserve_ops: Iterable[OpOverload] = (),
    ) -> ExportedProgram:
        """A new program over core ATen, or over what `table` gives; shares this one's state.

        With `table={}` only composite operators are taken apart; those in `preserve_ops` are not.
        """
        return services.decompose(self, table, tuple(preserve_ops))

    def to_torch(self) -> Any:
        """The program as a `torch.export.ExportedProgram`, for whatever takes one.

        It shares the tensors of this program, except for buffers that the program writes to.
        """
        from graphport.program.torch_interop import to_torch

        return to_torch(self)

    def validate(self) -> None:
        """Raise `VerificationError` unless the program obeys its own rules."""
        verify(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedProgram:
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
        return _unpickled, (file.getvalue(),)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "An ExportedProgram is data and is not callable. Use `ep.module()(...)` instead."
        )

    def __str__(self) -> str:
        return render(self)

    __repr__ = __str__


def _unpickled(saved: bytes) -> ExportedProgram:
    from graphport.program.files import load

    # Who unpickles trusts where it comes from: a pickle can call anything.
    return load(io.BytesIO(saved), allow=("*",))
