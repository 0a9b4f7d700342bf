"""Carries out calls of `torch.onnx.export` with graphport, for `graphport run`.

Calls are read in every spelling from torch 1.13 on: options by position, `dynamic_axes`, a dict of
keywords at the end of `args`. What is returned is what users of `torch.onnx` expect: flat results,
and a model that can be edited.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from time import strftime
from typing import Any

import onnx
import onnx.printer
import onnx_ir
import torch
from torch import nn

from graphport.capture.spec.inputs import bind_inputs
from graphport.compat.torch import ONNX_DEFAULT_OPSET, pytree
from graphport.errors import InputError, MismatchError, MissingLoweringError, UnsupportedError
from graphport.onnx import exporter
from graphport.onnx.options import ExportOptions, name_axes
from graphport.onnx.program import ONNXProgram
from graphport.onnx.spellings import Example, ask_module
from graphport.onnx.target.session import ForeignSession, open_session
from graphport.onnx.target.targets import ORT
from graphport.program import ExportedProgram
from graphport.program.files import save
from graphport.symbolic.dims import Dim, Hint
from graphport.types import PyTree

# What a call says.

_BY_POSITION = (
    "model args f export_params verbose training input_names output_names operator_export_type "
    "opset_version do_constant_folding dynamic_axes keep_initializers_as_inputs custom_opsets "
    "export_modules_as_functions autograd_inlining dynamo"
).split()
"""The order of arguments up to torch 2.4; later only the first three are positional."""


@dataclass(frozen=True)
class TorchCall:
    """The arguments of `torch.onnx.export`, of any version."""

    model: Any
    args: PyTree = ()
    f: Any = None
    kwargs: PyTree = None
    export_params: bool = True
    verbose: bool | None = None
    training: Any = None
    input_names: Any = None
    output_names: Any = None
    operator_export_type: Any = None
    opset_version: int | None = None
    dynamic_axes: Any = None
    dynamic_shapes: PyTree = None
    keep_initializers_as_inputs: bool | None = None
    export_modules_as_functions: Any = False
    dynamo: bool | None = None
    external_data: bool | None = None
    custom_translation_table: Any = None
    report: bool = False
    optimize: bool = True
    verify: bool = False
    profile: bool = False
    dump_exported_program: bool = False
    artifacts_dir: Any = "."
    # What follows changes nothing here: constants are folded, functions captured by what they do,
    # domains written as they are used, and what is refused goes on to torch in any case.
    do_constant_folding: bool = True
    custom_opsets: Any = None
    autograd_inlining: bool = True
    fallback: bool = False


def read_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchCall:
    """A call as it was written."""
    given = {**dict(zip(_BY_POSITION, args, strict=False)), **kwargs}
    unknown = sorted(given.keys() - {f.name for f in fields(TorchCall)})
    if unknown or "model" not in given or len(args) > len(_BY_POSITION):
        raise InputError(f"torch.onnx.export is called with {', '.join(unknown) or 'no model'}")
    return TorchCall(**given)


def read_dynamo_call(model: Any, *args: Any, **kwargs: Any) -> TorchCall:
    """A call of `torch.onnx.dynamo_export`, which torch had from 2.1 to 2.6."""
    options = kwargs.pop("export_options", None)
    shapes: PyTree = None
    if getattr(options, "dynamic_shapes", False):
        sizes = lambda x: [Dim.AUTO] * x.dim() if isinstance(x, torch.Tensor) else None  # noqa: E731
        shapes = pytree.tree_map(sizes, _name_arguments(model, args, kwargs))
    return TorchCall(model, args, kwargs=kwargs or {}, dynamic_shapes=shapes, dynamo=True)


def _name_arguments(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    bound = bind_inputs(model, args, kwargs).parameters
    return {name: value for name, (_, value) in bound.items()}


# Carrying it out


@dataclass
class Made:
    """What has become of a call."""

    program: ONNXProgram
    notes: list[str] = field(default_factory=list)
    """What the user has to know: another opset, sizes that are fixed."""
    verified: int | None = None
    """At how many sizes."""


def carry_out(call: TorchCall, dynamo: bool, verify: bool) -> Made:
    """Export, verify and write what a call of `torch.onnx.export` asks for."""
    if call.f is None and not dynamo:
        raise InputError("f is missing: the TorchScript exporter returns nothing")
    _require_expressible(call)
    args, kwargs = _read_arguments(call)
    said = call.dynamic_shapes, call.input_names, call.output_names
    example = ask_module(call.model, args, kwargs, said)
    options = ExportOptions(
        input_names=example.input_names,
        output_names=example.output_names,
        optimize=call.optimize,
        module_functions=_read_functions(call),
        report=str(_name_artifact(call, ".md")) if call.report or call.profile else None,
    )
    with _training_mode(call.model, "PRESERVE" if dynamo else _name_mode(call.training)):
        made = _export(call, example, options, verify or call.verify)
    _write(call, dynamo, made)
    return made


def _require_expressible(call: TorchCall) -> None:
    if call.custom_translation_table:
        raise UnsupportedError("custom_translation_table has functions of onnxscript")
    if getattr(call.operator_export_type, "name", "ONNX") == "ONNX_ATEN":
        raise UnsupportedError("operator_export_type asks for operators of ATen in the file")


def _read_arguments(call: TorchCall) -> tuple[PyTree, PyTree]:
    """A tensor alone is one argument, as is a list; a dict at the end has keywords."""
    if exporter.is_torch_program(call.model):
        return (), None
    args = call.args if isinstance(call.args, tuple) else (call.args,)
    if not call.kwargs and args and isinstance(args[-1], dict):
        return tuple(args[:-1]), args[-1]
    return tuple(args), call.kwargs


def _read_functions(call: TorchCall) -> tuple[Any, ...]:
    asked = call.export_modules_as_functions
    if asked is True:
        return tuple({type(m) for m in call.model.modules() if m is not call.model})
    return tuple(asked or ())


def _name_mode(asked: Any) -> str:
    """A `TrainingMode`, or a bool as torch once took it: evaluation unless it is said otherwise."""
    return getattr(asked, "name", "TRAINING" if asked is True else "EVAL")


@contextmanager
def _training_mode(model: object, mode: str) -> Iterator[None]:
    if not isinstance(model, nn.Module) or mode == "PRESERVE":
        yield
        return
    before = [(m, m.training) for m in model.modules()]
    model.train(mode == "TRAINING")
    try:
        yield
    finally:
        for m, training in before:
            m.training = training


def _export(call: TorchCall, example: Example, options: ExportOptions, verify: bool) -> Made:
    model, args, kwargs = call.model, example.args, example.kwargs
    axes, notes = _read_axes(call, example)
    shapes = None if exporter.is_torch_program(model) else example.dynamic_shapes
    write_report = exporter.open_report(options)
    took: dict[str, float] = {}
    with exporter.time_stage("capture", took):
        captured = exporter.capture_program(model, args, kwargs, shapes, axes, options, {})
    with exporter.time_stage("lower", took):
        program = _lower(captured, options, call.opset_version, notes)
    exporter.keep_eager(program, captured, model, args, kwargs)
    found = program.verify() if verify else None
    write_report(program, took, found)
    if found is not None and not found.ok:
        raise MismatchError(found)
    if call.dump_exported_program:
        save(captured, str(_name_artifact(call, ".gpx")))
    tried = None if found is None else sum(trial.compared for trial in found.sizes_tried)
    fixed = (note.partition(": ")[0] for note in captured.notes)
    return Made(program, [*notes, *fixed], tried)


def _read_axes(call: TorchCall, example: Example) -> tuple[PyTree, list[str]]:
    """`dynamic_axes` of inputs, as sizes that vary unless the program fixes them."""
    axes = call.dynamic_axes
    if not isinstance(axes, Mapping) or example.dynamic_shapes is not None:
        return None, []
    if exporter.is_torch_program(call.model):
        return None, []
    inputs = bind_inputs(call.model, example.args, example.kwargs)
    names = {*inputs.parameters, *(example.input_names or ())}
    others = set(axes) - names - set(example.output_names or ())
    notes = [f"dynamic_axes names {', '.join(sorted(others))}, which is no input"] if others else []
    return {n: _label(n, given) for n, given in axes.items() if n in names} or None, notes


def _label(name: str, given: object) -> object:
    pairs = name_axes(name, given)
    return {axis: Hint("AUTO", label=text) for axis, text in pairs}


def _lower(
    captured: ExportedProgram, options: ExportOptions, asked: int | None, notes: list[str]
) -> ONNXProgram:
    """In the opset that is asked for, or the next one that has the operators."""
    wanted = ONNX_DEFAULT_OPSET if asked is None else asked
    why: UnsupportedError | None = None
    for opset in (wanted, *(n for n in _NEWER if n > wanted)):
        try:
            program = exporter.lower_program(captured, replace(options, opset=opset))
        except MissingLoweringError:
            raise
        except UnsupportedError as error:
            why = why or error
            continue
        if asked is not None and why is not None:
            notes.append(f"opset {opset} instead of {asked}: {why.what}")
        return program
    assert why is not None
    raise why


_NEWER = (16, 18, 20, 24)
"""Opsets with operators that older ones do not have."""


# Writing


def _write(call: TorchCall, dynamo: bool, made: Made) -> None:
    if call.verbose and not dynamo:
        print(onnx.printer.to_text(made.program.skeleton))
    if call.f is None:
        return
    # Without its parameters, the TorchScript exporter makes them inputs.
    as_inputs = bool(call.keep_initializers_as_inputs) or not (dynamo or call.export_params)
    made.program.save(
        call.f,
        call.external_data if isinstance(call.f, (str, os.PathLike)) else None,
        include_initializers=bool(call.export_params),
        keep_initializers_as_inputs=as_inputs,
    )


def _name_artifact(call: TorchCall, suffix: str) -> Path:
    return Path(call.artifacts_dir) / f"onnx_export_{strftime('%Y-%m-%d_%H-%M-%S')}{suffix}"


class TorchProgram(ONNXProgram):
    """What `torch.onnx.export` returns: results are flat, the model may be edited."""

    @classmethod
    def of(cls, program: ONNXProgram) -> TorchProgram:
        made = cls.__new__(cls)
        vars(made).update(vars(program))
        return made

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> tuple[torch.Tensor, ...]:
        """Run on ONNX Runtime: the outputs of the file, in their order."""
        if self._is_edited:
            session = open_session(self.model_proto.SerializeToString(), ORT.session_options())
            inputs = self.adapt_torch_inputs_to_onnx(*args, **kwargs)
            edited = ForeignSession(session)
            return tuple(edited.run(dict(zip(edited.inputs, inputs, strict=True))).values())
        return tuple(self.adapt_torch_outputs_to_onnx(super().__call__(*args, **kwargs)))

    def call_reference(self, *args: PyTree, **kwargs: PyTree) -> tuple[torch.Tensor, ...]:
        """Run in ONNX's own evaluator."""
        return tuple(self.adapt_torch_outputs_to_onnx(super().call_reference(*args, **kwargs)))

    @cached_property
    def model(self) -> Any:
        """The model as `onnx_ir`; what is changed in it is saved, and runs."""
        model = super().model
        self._unedited = onnx_ir.serde.serialize_model(model)
        return model

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as protobuf, with what was changed in `model`."""
        if "model" in vars(self):
            return onnx_ir.serde.serialize_model(self.model)
        return super().model_proto

    @property
    def _is_edited(self) -> bool:
        return "model" in vars(self) and self.model_proto != self._unedited

    def _become(self, made: ONNXProgram) -> None:
        self._forget_model()
        super()._become(made)

    def rename_axes(self, names: Mapping[Any, str]) -> None:
        """Call dims otherwise in the file, by their names or as they are in `model`."""
        self._forget_model()
        super().rename_axes(names)

    def _forget_model(self) -> None:
        if self._is_edited:
            raise InputError("program.model has been changed", fix="change it afterwards")
        self._forget("model")

    def save(
        self,
        path: Any = None,
        external_data: Any = "auto",
        state_dict: Any = None,
        *,
        destination: Any = None,
        **how: Any,
    ) -> None:
        """Write the model to a file, the `destination`."""
        path = destination if path is None else path
        if not self._is_edited:
            super().save(path, external_data, state_dict, **how)
            return
        if state_dict is not None or how:
            raise InputError("program.model has been changed", fix="save before, or change weights")
        beside = external_data is True
        onnx.save_model(self.model_proto, path, save_as_external_data=beside)
