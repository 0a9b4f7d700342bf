"""Values on the way: what nodes of the program compute, in eager and in the ONNX model.

Each question runs the program once more and keeps only what was asked for, so that it costs time
rather than memory. The model is given the values as further outputs; what ONNX Runtime has fused
away otherwise is computed by itself then.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Interpreter, Node

from graphport.onnx.fold import is_uninitialised
from graphport.onnx.lower import described
from graphport.onnx.weights import in_memory
from graphport.ops.abstract import Abstract
from graphport.ops.weightless import lacks_data
from graphport.program import ExportedProgram
from graphport.program.module import places_of

if TYPE_CHECKING:
    from graphport.onnx.program import ONNXProgram

_COARSE = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
           torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)  # fmt: skip


Place = tuple[dict[str, Any], str]
"""The dict of a module that has a parameter, buffer or other tensor, and its key there."""


def runnable(
    program: ExportedProgram, state: Mapping[str, torch.Tensor]
) -> tuple[GraphModule, dict[str, Place]]:
    """The program as a module that begins with copies of this state, and where those are.

    Weights that are in files are read into memory.
    """
    module = program.module(check_guards=False)
    place = places_of(program)
    read = {place(k): in_memory(t) for k, t in program.state_dict.items() if lacks_data(t)}
    if read:
        module.load_state_dict(read, strict=False, assign=True)
    return module, {name: replaced(module, place(name), t) for name, t in state.items()}


def holder(target: Any, name: str) -> Place | None:
    """Where a module has what it calls so, if it does."""
    path, _, last = name.rpartition(".")
    try:
        owner = target.get_submodule(path)
    except AttributeError:
        return None
    held = next((d for d in (owner._parameters, owner._buffers, vars(owner)) if last in d), None)
    return None if held is None else (held, last)


def replaced(target: Any, name: str, tensor: torch.Tensor) -> Place:
    """Give a module another tensor; where it is."""
    found = holder(target, name)
    assert found is not None
    held, last = found
    new = tensor.detach().clone()
    old = held[last]
    held[last] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    return found


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _trace(x: Any) -> Any:
    """What tells a value from another, without its memory."""
    if isinstance(x, (tuple, list)):
        return [_trace(part) for part in x]
    if not isinstance(x, torch.Tensor):
        return x
    if lacks_data(x):
        return list(x.shape), x.dtype
    plain = x.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return list(x.shape), x.dtype, zlib.crc32(plain.view(torch.uint8).numpy())


class Probe:
    """Both sides, for the same inputs."""

    def __init__(self, program: ONNXProgram, flat: Sequence[Any]) -> None:
        self.program = program
        self.flat = list(flat)
        self.values = program.interface.values

    @cached_property
    def graph(self) -> Graph:
        return self.program.lowered_program.graph

    def eager(
        self,
        names: Iterable[str],
        given: Mapping[str, torch.Tensor] | None = None,
        keep: Callable[[Any], Any] = _copy,
    ) -> dict[str, Any]:
        """What torch computes for nodes; some of them may be given instead of computed."""
        recorder = _Recorder(self.module(), set(names), given or {}, keep)
        with torch.no_grad():
            recorder.run(*self.inputs, enable_io_processing=False)
        return recorder.found

    def module(self) -> GraphModule:
        """The program that was lowered, from its beginning, for an interpreter."""
        return runnable(self.program.lowered_program, self.program.initial_state)[0]

    @property
    def inputs(self) -> list[Any]:
        return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in self.flat]

    def unwritten(self) -> set[str]:
        """Nodes that are others where memory that was never written holds something else."""
        sources = {n.name for n in self.graph.nodes if is_uninitialised(n.target)}
        if not sources:
            return set()
        names = dependents(self.graph, lambda n: n.name in sources)
        found = self.eager(sources)
        one, other = (
            self.eager(names, {k: torch.full_like(x, fill) for k, x in found.items()}, _trace)
            for fill in (0, 1)
        )
        return sources | {name for name in names if one[name] != other[name]}

    def model(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """What ONNX Runtime computes for nodes that are values of the model."""
        wanted = {name: self.values[name] for name in names}
        inputs = self.program.inputs_of(self.flat)
        # A node that does nothing is an input or a weight of the model.
        found = {v.name: inputs[v.name] if v.name in inputs else in_memory(v.data)
                 for v in wanted.values() if v.producer is None}  # fmt: skip
        computed = dict.fromkeys(v for v in wanted.values() if v.producer is not None)
        if computed:
            session = self.program.session.extended(computed)
            found.update(session.run(inputs, [v.name for v in computed]))
        return {name: found[value.name] for name, value in wanted.items()}


class _Recorder(Interpreter):
    def __init__(
        self, module: GraphModule, wanted: set[str], given: Mapping[str, torch.Tensor],
        keep: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        super().__init__(module)
        self.wanted = wanted
        self.given = given
        self.keep = keep
        self.found: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        out = self.given[n.name] if n.name in self.given else super().run_node(n)
        if n.name in self.wanted:
            self.found[n.name] = self.keep(out)
        return out


def precisions(graph: Graph) -> dict[str, torch.dtype]:
    """For each node the coarsest float dtype that it was computed through."""
    found: dict[str, torch.dtype] = {}
    for node in graph.nodes:
        kinds = [found[i.name] for i in node.all_input_nodes if i.name in found]
        val = described(node.meta.get("val"))
        tensors = [
            v for v in (val if isinstance(val, tuple) else (val,)) if isinstance(v, Abstract)
        ]
        dtypes = [v.dtype.to_real() if v.dtype.is_complex else v.dtype for v in tensors]
        kinds += [d for d in dtypes if d in _COARSE]
        if kinds:
            found[node.name] = max(kinds, key=_COARSE.index)
    return found


def random_nodes(graph: Graph) -> set[str]:
    """Nodes that depend on random numbers."""
    return dependents(graph, _draws)


def dependents(graph: Graph, on: Callable[[Node], bool]) -> set[str]:
    """Such nodes, and all that depend on them."""
    found: set[str] = set()
    for node in graph.nodes:
        if on(node) or any(i.name in found for i in node.all_input_nodes):
            found.add(node.name)
    return found


# Attention, dropout and recurrent layers draw random numbers only where they are told to.
_OFF = {"dropout_p": 0.0, "dropout": 0.0, "p": 0.0, "train": False, "training": False}


def _draws(node: Node) -> bool:
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    given = {a.name: a.default_value for a in target._schema.arguments}
    given.update(zip(given, node.args, strict=False))
    given.update(node.kwargs)
    return not any(name in given and given[name] == off for name, off in _OFF.items())


def ancestors(node: Node) -> set[Node]:
    """A node and all that it depends on."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting.extend(n.all_input_nodes)
    return found
