"""`ONNXProgram`: an ONNX model that can be run, verified and saved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from graphport.onnx import weights
from graphport.onnx.ir import Graph
from graphport.onnx.model import model_proto
from graphport.onnx.options import ExportOptions
from graphport.onnx.runtime import Session
from graphport.program import ExportedProgram
from graphport.program.module import Entrance

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Interface:
    """How inputs and outputs of the model relate to those of the program."""

    inputs: list[int]
    """Of the program's flat inputs, those that the model takes, in order."""
    outputs: list[tuple[str, Any]]
    """For each flat result of the program: its kind and the output that has it, or a constant."""
    state: dict[str, str]
    """Inputs that the model changes, and the outputs with their new values."""


class ONNXProgram:
    """An ONNX model and the program that it was made from."""

    def __init__(
        self,
        program: ExportedProgram,
        graph: Graph,
        interface: Interface,
        opset: int,
        options: ExportOptions,
    ) -> None:
        self.exported_program = program
        self.graph = graph
        self.interface = interface
        self.opset = opset
        self.options = options
        self._entrance = Entrance(program, check_guards=True)
        self._state: dict[str, torch.Tensor] = {}

    # The parts

    @cached_property
    def _skeleton(self) -> onnx.ModelProto:
        """The model without its weights."""
        return model_proto(self.graph, self.opset)

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as protobuf, with its weights where they are in memory."""
        return weights.inline(self._skeleton, self.graph)

    @property
    def model(self) -> Any:
        """The model as `onnx_ir`."""
        import onnx_ir

        return onnx_ir.serde.deserialize_model(self.model_proto)

    # Running

    @cached_property
    def session(self) -> Session:
        """ONNX Runtime, with the weights of the program."""
        return Session(self._skeleton, self.graph.initializers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on ONNX Runtime, with tensors in the user's own structure."""
        flat = self._flat(args, kwargs)
        given = {v.name: _tensor(flat[i]) for v, i in zip(self._inputs, self.interface.inputs,
                                                          strict=True)}  # fmt: skip
        results = self.session.run({**self._state, **given})
        names = [v.name for v in self.graph.outputs]
        for name, updated in self.interface.state.items():
            self._keep(name, results[updated], flat)
        leaves = [
            what if kind == "constant" else _result(kind, results[names[what]])
            for kind, what in self.interface.outputs
        ]
        return pytree.tree_unflatten(leaves, self.exported_program.call_spec.out_spec)

    @cached_property
    def _inputs(self) -> list[Any]:
        """The inputs that the user gives."""
        return [v for v in self.graph.inputs if v.tensor is None]

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Checked arguments, flat."""
        return self._entrance.flat(args, kwargs)

    def _keep(self, name: str, new: torch.Tensor, flat: list[Any]) -> None:
        """New state is what the next call begins with; a changed input is the caller's own."""
        written = {v.name: flat[i] for v, i in zip(self._inputs, self.interface.inputs, strict=True)}
        if name in written:
            written[name].copy_(new)
        else:
            self._state[name] = new

    def adapt_torch_inputs_to_onnx(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """The inputs of the model, in its order, from arguments as the program takes them."""
        flat = self._flat(args, kwargs)
        return [_tensor(flat[i]) for i in self.interface.inputs]

    def adapt_torch_outputs_to_onnx(self, out: Any) -> list[torch.Tensor]:
        """The user's outputs of the model, in its order, from a result of the program."""
        leaves = pytree.tree_leaves(out)
        kinds = [kind for kind, _ in self.interface.outputs]
        return [_tensor(x) for x, k in zip(leaves, kinds, strict=True) if k != "constant"]

    # Files

    def save(
        self, path: str | Path, external_data: bool | str = "auto", state_dict: Any = None
    ) -> None:
        """Write the model to a file; large weights go to a second one beside it."""
        weights.save(self._skeleton, self.graph, Path(path), external_data, state_dict)


def _tensor(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


def _result(kind: str, t: torch.Tensor) -> Any:
    return t if kind == "tensor" else t.item()
