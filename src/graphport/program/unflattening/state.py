"""The tensors of a program by name: which there are, who has them, and which modules are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.fx import Node

from graphport.program.signature import InputKind

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


class State:
    """Parameters, buffers and constants."""

    def __init__(self, program: ExportedProgram) -> None:
        self.tensors: dict[str, Any] = {**program.constants, **program.state_dict}
        self.inputs: dict[str, Node] = {}
        """The graph input for each name."""
        self.names: dict[Node, list[str]] = {}
        """All names of the tensor that a graph input stands for, that of the signature first."""
        by_id: dict[int, list[str]] = {}
        for name, t in self.tensors.items():
            by_id.setdefault(id(t), []).append(name)
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT or spec.target is None:
                continue
            node = nodes[spec.arg.name]
            names = by_id.get(id(self.tensors.get(spec.target)), [])
            self.names[node] = [spec.target, *(n for n in names if n != spec.target)]
            self.inputs.update(dict.fromkeys(self.names[node], node))

    def within(self, path: str) -> dict[str, int]:
        """What a module has, itself and its children: identities by name."""
        prefix = f"{path}."
        return {n[len(prefix) :]: id(t) for n, t in self.tensors.items() if n.startswith(prefix)}

    def alias(self, path: str, caller: str) -> str | None:
        """Another path of the module at `path`, below the caller, if both have the same tensors."""
        have = self.within(path)
        if not have:
            return None
        first = next(iter(have))
        prefix = f"{caller}." if caller else ""
        for name in self.tensors:
            other = name[: -len(first) - 1]
            if name == f"{other}.{first}" and other != path and other.startswith(prefix):
                if self.within(other) == have:
                    return other
        return None
