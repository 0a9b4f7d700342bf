"""`ONNXProgram`: an ONNX model that can be run, verified and saved."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy
import torch

from graphport import arguments as kinds
from graphport.arguments import check_arguments, require_kind
from graphport.compat.torch import pytree
from graphport.errors import InputError, RequirementError
from graphport.onnx.emit.functions import outline_modules
from graphport.onnx.emit.interface import Interface
from graphport.onnx.emit.ir import Graph, Value, current_tensor, source_weights
from graphport.onnx.emit.model import add_inputs, build_model_proto, describe_sizes, rename_dims
from graphport.onnx.options import ExportOptions, VerifyOptions
from graphport.onnx.write import checkpoint, weights
from graphport.program import ExportedProgram
from graphport.program.module import CallGuard
from graphport.source import Location, locate_stack_trace
from graphport.symbolic import symbols
from graphport.tensors.lazy import lacks_data
from graphport.tensors.subclasses import split_subclasses
from graphport.types import PyTree

if TYPE_CHECKING:
    import onnx
    import onnx_ir

    from graphport.onnx.target.session import Session
    from graphport.onnx.verify.verification import VerificationReport


class ONNXProgram:
    """An ONNX model and the program that it was made from."""

    def __init__(
        self,
        program: ExportedProgram,
        lowered: ExportedProgram,
        graph: Graph,
        interface: Interface,
        opset: int,
        options: ExportOptions,
    ) -> None:
        self.exported_program = program
        self.lowered_program = lowered
        """The same program in the operators that were lowered."""
        self.graph = graph
        self.interface = interface
        self.opset = opset
        self.options = options
        self.eager: Callable[..., Any] | None = None
        """What the program was captured from, if that is known."""
        self.example_inputs = program.example_inputs
        self.entrance = CallGuard(program, check_guards=True)
        self._state: dict[str, torch.Tensor] = {}
        self._seen: list[Any] | None = None
        """What the weights were when the session was made."""
        self._dim_names: dict[str, str] = {}
        """What dims are called in the file, if otherwise than in the program."""
        self._turn = threading.RLock()

    # The parts

    @cached_property
    def skeleton(self) -> onnx.ModelProto:
        """The model without its weights."""
        said = describe_sizes(self.exported_program)
        model = build_model_proto(self.graph, self.opset, metadata=said)
        return rename_dims(model, self._dim_names)

    @cached_property
    def file(self) -> tuple[onnx.ModelProto, dict[str, Value]]:
        """The model as it is written, and the initialisers that go with it.

        It differs from what runs here if modules are to be functions.
        """
        wanted = self.options.module_functions
        if not wanted:
            return self.skeleton, self.graph.initializers
        parts = outline_modules(self.graph, wanted)
        said = describe_sizes(self.exported_program)
        model = build_model_proto(self.graph, self.opset, metadata=said, outlined=parts)
        return rename_dims(model, self._dim_names), parts.initializers(self.graph)

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as protobuf, with its weights where they are in memory."""
        return weights.inline_weights(*self.file)

    @property
    def model(self) -> onnx_ir.Model:
        """The model as `onnx_ir`."""
        import onnx_ir

        return onnx_ir.serde.deserialize_model(self.model_proto)

    @property
    def tensors(self) -> dict[str, Any]:
        """The initialisers by name."""
        return {name: current_tensor(value) for name, value in self.graph.initializers.items()}

    @property
    def initial_state(self) -> dict[str, object]:
        """What the program begins with of that which it changes, by its names in the program."""
        tensor, names = self.exported_program.tensor, self.interface.weights
        data = {n: self.graph.initializers[n].data for n in self.interface.state}
        return {names[n]: convert_like(tensor(names[n]), t) for n, t in data.items()}

    def optimize(self) -> None:
        """Do what an export with `optimize=False` leaves out: patterns become single operators."""
        from graphport.onnx.exporter import lower_program

        if self.options.optimize:
            return
        self._become(lower_program(self.exported_program, replace(self.options, optimize=True)))

    def apply_weights(self, state_dict: Any) -> None:
        """Take other weights, given as to `save`; those of the user's model stay as they are."""
        from graphport.onnx.exporter import lower_program

        given = checkpoint.read_checkpoint(state_dict)
        state = self.exported_program.state_dict
        # What does not fit is refused before anything changes.
        checkpoint.match_weights(self.graph.initializers, self.interface.weights, state, given)
        program = replace(
            self.exported_program, state_dict=checkpoint.replace_weights(state, given)
        )
        self._become(lower_program(program, self.options))

    def _become(self, made: ONNXProgram) -> None:
        names = "exported_program lowered_program graph interface opset options".split()
        with self._turn:
            for name in names:
                setattr(self, name, getattr(made, name))
            self._forget("skeleton", "file")
            self.release()
            self._state = {}

    def _forget(self, *names: str) -> None:
        for name in names:
            vars(self).pop(name, None)

    @check_arguments(names=kinds.mapping(kinds.TEXT, kinds.IDENTIFIER))
    def rename_axes(self, names: Mapping[str, str]) -> None:
        """Call dims otherwise in the file: `{"s0": "batch"}`."""
        known = {str(s) for size in self.exported_program.range_constraints for s in symbols(size)}
        unknown = sorted(set(names) - known)
        if unknown:
            raise InputError(
                f"the program has no dims called {', '.join(unknown)}",
                fix=f"one of {', '.join(sorted(known))}" if known else (),
            )
        with self._turn:
            self._dim_names = {**self._dim_names, **names}
            self._forget("skeleton", "file")

    # Running

    @property
    def session(self) -> Session:
        """ONNX Runtime, with the weights of the program; made on first use.

        It is made anew when they have been written to: it has some of them in a form of its own.
        """
        with self._turn:
            if self._seen is not None and self._seen != self._weight_versions():
                del self._session
            return self._session

    def _weight_versions(self) -> list[object]:
        """What tells whether weights have been written to; 0.2 microseconds for each."""
        return [(t.data_ptr(), t._version) for t in self._weights]

    @cached_property
    def _weights(self) -> list[Any]:
        """The tensors of the user's model that the session has."""
        used = (s for v in self.graph.initializers.values() for s in source_weights(v))
        tensors = [v.weight for v in dict.fromkeys(used) if v.weight is not None]
        return [t for t in tensors if not lacks_data(t) and not t.is_inference()]

    @cached_property
    def _session(self) -> Session:
        from graphport.onnx.target.session import Session

        self._seen = self._weight_versions()
        return Session(self.skeleton, self.tensors)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run on ONNX Runtime, with tensors in the user's own structure.

        State that the program changes is carried on to the next call; so calls of a program that
        has any take turns.
        """
        flat = self.entrance.flat(args, kwargs)
        inputs = self.inputs_of(flat)
        if self.interface.state:
            with self._turn:
                found = self.compute_outputs({**self._state, **inputs})
                self._state = {n: found[new] for n, new in self.interface.state.items()}
        else:
            found = self.compute_outputs(inputs)
        with torch.no_grad():
            for i, name in self.interface.written.items():
                flat[i].copy_(convert_like(flat[i], found[name]))
        return self.unflatten_outputs(found, flat)

    def compute_outputs(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The model's outputs by name; ONNX Runtime loads no model that has none."""
        try:
            return self.session.run(inputs) if self.graph.outputs else {}
        except RequirementError as error:
            error.add_location(self._find_assertion(error))
            raise

    def _find_assertion(self, error: RequirementError) -> Location | None:
        """The line of the user's that has made the program require something."""
        made = ((v, node.origin) for node in self.graph.nodes for v in node.outputs if v)
        origin = next((origin for v, origin in made if v.name == error.node), None)
        return locate_stack_trace(origin.meta.get("stack_trace")) if origin is not None else None

    def use_session(self, session: Any, same_within: bool) -> None:
        """Run on another session from here on: one that takes and gives the same by name.

        `same_within`: it has the values of this model within it, too, under the same names.
        """
        with self._turn:
            self.__dict__["_session"] = session
            self._seen = None
            self._state = {}
            if not same_within:
                self.interface = replace(self.interface, values={})

    def initialize_inference_session(
        self, initializer: Callable[[bytes], Any] | None = None
    ) -> None:
        """Make the session of ONNX Runtime now, or let a function make it of the model's bytes."""
        from graphport.onnx.target.session import ForeignSession

        if initializer is None:
            self.session  # noqa: B018  made on first use
        else:
            made = initializer(self.model_proto.SerializeToString())
            self.use_session(ForeignSession(made), same_within=False)

    def release(self) -> None:
        """Let the session go; the next call makes another one."""
        with self._turn:
            self._forget("_session", "_weights")
            self._seen = None

    def call_reference(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run as the program does, in ONNX's own evaluator in Python: slowly, by the standard."""
        from onnx.reference import ReferenceEvaluator

        flat = self.entrance.flat(args, kwargs)
        given = {name: t.detach().numpy() for name, t in self.inputs_of(flat).items()}
        names = [v.name for v in self.graph.outputs]
        found = ReferenceEvaluator(self.model_proto).run(names, given)
        outputs = {n: torch.from_numpy(numpy.array(x)) for n, x in zip(names, found, strict=True)}
        return self.unflatten_outputs(outputs, flat)

    def compute_values(
        self, names: Sequence[str], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> tuple[torch.Tensor, ...]:
        """Values of the model by their names in the file, within it too, at some arguments."""
        made = {v.name: v for node in self.graph.nodes for v in node.outputs if v is not None}
        inputs = self.inputs_of(self.entrance.flat(args, kwargs or {}))
        known = {**self.tensors, **inputs}
        unknown = [name for name in names if name not in known and name not in made]
        if unknown:
            raise InputError(f"the model has no values called {', '.join(unknown)}")
        wanted = [name for name in names if name in made]
        found = self.session.add_outputs(made[n] for n in wanted).run(inputs, wanted)
        return tuple(found[n] if n in found else known[n].detach() for n in names)

    def reset(self) -> None:
        """Begin again with the state that the program was captured with."""
        with self._turn:
            self._state = {}

    def inputs_of(self, flat: list[PyTree]) -> dict[str, torch.Tensor]:
        """The model's inputs by name, from flat inputs of the program."""
        return {i.name: _to_model_tensor(flat[i.flat], i.dtype) for i in self.interface.inputs}

    def unflatten_outputs(self, found: dict[str, torch.Tensor], flat: list[PyTree]) -> PyTree:
        """Outputs by name in the structure of the program's result."""
        leaves = []
        for result in self.interface.results:
            if result.kind == "constant":
                leaves.append(result.what)
            elif result.kind == "input":
                leaves.append(flat[result.what])
            else:
                leaves.append(convert_result(result.kind, found[result.what]))
        return pytree.tree_unflatten(leaves, self.exported_program.call_spec.out_spec)

    def adapt_torch_inputs_to_onnx(self, *args: PyTree, **kwargs: PyTree) -> list[torch.Tensor]:
        """The inputs of the model, in its order, from arguments as the program takes them."""
        return list(self.inputs_of(self.entrance.flat(args, kwargs)).values())

    def adapt_torch_outputs_to_onnx(self, out: Any) -> list[torch.Tensor]:
        """The user's outputs of the model, in its order, from a result of the program."""
        leaves = pytree.tree_leaves(split_subclasses(out))
        if len(leaves) != len(self.interface.results):
            raise InputError(
                f"the result has {len(leaves)} leaves, that of the program "
                f"{len(self.interface.results)}",
                fix="what the model returns, in its own structure",
            )
        pairs = zip(leaves, self.interface.results, strict=True)
        given = [x for x, r in pairs if r.kind not in ("constant", "input")]
        for x in given:
            require_kind("each result in out", x, kinds.TENSOR | kinds.NUMBER)
        return [_to_model_tensor(x) for x in given]

    # Verification

    @check_arguments(rtol=kinds.ERROR | kinds.NONE, atol=kinds.ERROR | kinds.NONE)
    def verify(
        self,
        args: tuple[PyTree, ...] | None = None,
        kwargs: dict[str, PyTree] | None = None,
        *,
        inputs: PyTree = None,
        sizes: Sequence[Mapping[str, int]] = (),
        limit: int | None = None,
        other_sizes: bool = True,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> VerificationReport:
        """Compare with eager, at these inputs or the example's, and at other sizes of the dims.

        `inputs` are several of them: a list of `args`, of `(args, kwargs)`, or of dicts by keyword.
        `sizes` are sizes to try, such as `[{"batch": 7}]`, in place of chosen ones. `limit` is how
        many to choose; without it, as many as there is time for in twice what the example takes.
        `other_sizes=False` chooses none. How close results have to be follows from their dtypes,
        unless it is said.
        """
        from graphport.onnx.verify.verification import verify

        options = VerifyOptions(inputs, sizes, limit, other_sizes, rtol, atol)
        if args is not None:
            require_arguments(args, kwargs)
        if inputs is not None and (args is not None or kwargs is not None):
            raise InputError("both args and inputs were given", fix="inputs=[args, ...]")
        if inputs is not None:
            return verify(self, list_input_sets(inputs), options)
        given = (
            self.example_inputs if args is None and kwargs is None else (args or (), kwargs or {})
        )
        return verify(self, [given], options)

    # Files

    @check_arguments(
        path=kinds.PATH | kinds.WRITABLE,
        external_data=kinds.FLAG | kinds.NONE | kinds.one_of("auto"),
        include_initializers=kinds.FLAG,
        keep_initializers_as_inputs=kinds.FLAG,
    )
    def save(
        self,
        path: str | os.PathLike[str] | IO[bytes],
        external_data: bool | str | None = "auto",
        state_dict: Any = None,
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
    ) -> None:
        """Write the model to a file; large weights go to a second one beside it.

        `state_dict` has the weights of a model that was captured without them: a mapping, a
        `.safetensors`, `.pt` or `.bin` file, or the folder of a sharded checkpoint. Without
        `include_initializers` the file has no weights; `keep_initializers_as_inputs` lets whoever
        runs it give others.
        """
        model, initializers = self.file
        tensors = {name: current_tensor(value) for name, value in initializers.items()}
        if state_dict is not None:
            tensors = checkpoint.match_weights(
                initializers,
                self.interface.weights,
                self.exported_program.state_dict,
                checkpoint.read_checkpoint(state_dict),
            )
        if keep_initializers_as_inputs:
            model = add_inputs(model, initializers.values())
        if not include_initializers:
            tensors = {}
        if isinstance(path, (str, os.PathLike)):
            external = "auto" if external_data is None else external_data
            weights.save_model(model, tensors, Path(path), external)
        else:
            weights.write_model(model, tensors, path)


def require_arguments(args: PyTree, kwargs: PyTree) -> None:
    """A tensor alone is a common mistake, and so is a list."""
    if not isinstance(args, tuple):
        raise InputError(
            f"args must be a tuple of the positional arguments, got {type(args).__name__}",
            fix="(x,)" if isinstance(args, torch.Tensor) else "tuple(...)",
        )
    if not isinstance(kwargs, dict | None):
        raise InputError(f"kwargs must be a dict by parameter name, got {type(kwargs).__name__}")


def list_input_sets(inputs: PyTree) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """One or more sets of inputs, each as positional and keyword arguments."""
    found = [_read_input_set(some) for some in (inputs if isinstance(inputs, list) else [inputs])]
    if not found:
        raise InputError("inputs is empty: there is nothing to compare at", fix="inputs=[(x,)]")
    return found


def _read_input_set(some: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(some, dict):
        return (), some
    if isinstance(some, tuple):
        # A pair of a tuple and a dict is both kinds of arguments.
        both = len(some) == 2 and isinstance(some[0], tuple) and isinstance(some[1], dict)
        return some if both else (some, {})
    raise InputError(
        f"inputs has {type(some).__name__} as one set of arguments",
        fix="inputs=[(x,), (y,)], or ((x,), {}) with keywords",
    )


def convert_result(kind: str, t: torch.Tensor) -> PyTree:
    """An output of the model as the program returns it."""
    if kind == "tensor":
        return t
    return torch.view_as_complex(t) if kind == "complex" else t.item()


def convert_like(t: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """What the model has for a tensor of the program: of a complex one, pairs of numbers."""
    return torch.view_as_complex(pairs) if t.is_complex() else pairs


def _to_model_tensor(x: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        return torch.tensor(x, dtype=dtype)
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
