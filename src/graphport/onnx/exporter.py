"""`gp.onnx.export`: captures a model, lowers it, and returns an `ONNXProgram`.

Models may branch on `torch.onnx.is_in_onnx_export()`, which is true while the model is captured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from types import FrameType, ModuleType
from typing import IO, Any, ParamSpec, TypeVar

from torch.fx import Node

from graphport.capture.export import export as capture
from graphport.capture.rewrite.decomposition import decompose_unknown
from graphport.compat.torch import OpOverload, onnx_export_flags
from graphport.errors import InputError, MismatchError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.interface import Interface, InterfaceBuilder
from graphport.onnx.emit.model import assign_names, prune
from graphport.onnx.lower import lowerer, size_checks
from graphport.onnx.lower.registry import COMPLEX, LOWERINGS, Lowering, find_operator, is_known
from graphport.onnx.options import (
    ExportOptions,
    convert_dynamic_axes,
    find_declarations,
    key_by_parameter,
)
from graphport.onnx.program import ONNXProgram, require_arguments
from graphport.onnx.spellings import (
    ask_module,
    choose_destination,
    refuse_other_words,
    split_keywords,
)
from graphport.onnx.target.targets import TARGETS, Target
from graphport.ops import get_op_info
from graphport.process import restore_on_exit
from graphport.program import ExportedProgram, from_torch
from graphport.symbolic import Expr
from graphport.types import PyTree

P = ParamSpec("P")
T = TypeVar("T")


def run_stages(
    model: Any,
    args: PyTree,
    kwargs: PyTree,
    shapes: PyTree,
    axes: Any,
    options: ExportOptions,
    **how: Any,
) -> ONNXProgram:
    """The stages of an export, by the names under which a report shows their times."""
    took: dict[str, float] = {}
    write_report = open_report(options)
    with time_stage("capture", took):
        captured = capture_program(model, args, kwargs, shapes, axes, options, how)
    with time_stage("lower", took):
        program = lower_program(captured, options)
    keep_eager(program, captured, model, args, kwargs)
    found = None
    if options.verify is not False:
        with time_stage("verify", took):
            given = options.verify
            found = program.verify(**(given if isinstance(given, Mapping) else {}))
    write_report(program, took, found)
    if found is not None and not found.ok:
        raise MismatchError(found)
    return program


@restore_on_exit
def export(
    model: object,
    args: tuple[object, ...] = (),
    kwargs: dict[str, PyTree] | str | os.PathLike[str] | None = None,
    *,
    f: str | os.PathLike[str] | IO[bytes] | None = None,
    dynamic_shapes: object = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
    target: str = "onnx",
    optimize: bool = True,
    verify: bool | Mapping[str, Any] = False,
    custom_lowerings: Mapping[Any, Callable[..., Any]] | None = None,
    report: str | None = None,
    module_functions: Sequence[object] = (),
    dynamic_axes: Mapping[str, object] | None = None,
    opset_version: int | None = None,
    external_data: bool | str = "auto",
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    strict: bool = False,
    guards: str = "error",
    **others: object,
) -> ONNXProgram:
    """Export a model to ONNX, and write it to `f`, if that is given: third, or by its name.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Linear(4, 2)
    >>> x = torch.randn(3, 4)
    >>> program = gp.onnx.export(model, (x,), dynamic_shapes=({0: gp.Dim("batch")},))
    >>> torch.testing.assert_close(program(x), model(x))
    >>> program.verify().ok
    True
    """
    refuse_other_words(others)
    if opset is not None and opset_version is not None:
        raise InputError("opset and opset_version are one, and both were given", fix="opset alone")
    place, kwargs = choose_destination(
        f,
        kwargs,
        external_data=(external_data, "auto"),
        export_params=(export_params, True),
        keep_initializers_as_inputs=(keep_initializers_as_inputs, False),
    )
    said = dynamic_shapes, input_names, output_names
    given = ask_module(model, *split_keywords(model, args, kwargs), said)
    options = ExportOptions(
        input_names=given.input_names,
        output_names=given.output_names,
        opset=opset_version if opset is None else opset,
        target=target,
        optimize=optimize,
        verify=verify,
        custom_lowerings=custom_lowerings,
        report=report,
        module_functions=module_functions,
    )
    how = {"strict": strict, "guards": guards}
    program = run_stages(
        model, given.args, given.kwargs, given.dynamic_shapes, dynamic_axes, options, **how
    )
    if place.file is not None:
        program.save(place.file, **place.how)
    return program


@contextmanager
def time_stage(name: str, took: dict[str, float]) -> Iterator[None]:
    began = perf_counter()
    yield
    took[name] = perf_counter() - began


def open_report(options: ExportOptions) -> Callable[..., None]:
    """What writes the report, if there is to be one: its path is checked before all else."""
    path = options.report
    if path is None:
        return lambda program, took, found: None
    # Reports stand above exports, which they describe.
    from graphport.report import check_path, write

    check_path(path)
    return lambda program, took, found: write(program, path, took, found)


def keep_eager(
    program: ONNXProgram, captured: ExportedProgram, model: object, args: PyTree, kwargs: PyTree
) -> None:
    """What the program is verified against, and with."""
    if captured is not model and callable(model) and not is_torch_program(model):
        program.eager = model
    elif args or kwargs:
        program.example_inputs = (args, kwargs or {})


def capture_program(
    model: Any,
    args: PyTree,
    kwargs: PyTree,
    shapes: PyTree,
    axes: Any,
    options: ExportOptions,
    how: Mapping[str, Any],
) -> ExportedProgram:
    """The program to lower, whatever it is given as."""
    if shapes is not None and axes is not None:
        raise InputError(
            "dynamic_axes is the older spelling of dynamic_shapes: both were given",
            fix="dynamic_shapes alone",
        )
    if isinstance(model, ExportedProgram) or is_torch_program(model):
        require_arguments(args, kwargs)
        if shapes is not None or axes is not None:
            raise InputError(
                "the sizes of a program are decided when it is captured",
                fix="gp.export(model, args, dynamic_shapes=...)",
            )
        program = model if isinstance(model, ExportedProgram) else from_torch(model)
        return size_checks.narrow_ranges(program, dict)
    names, outputs = options.input_names, options.output_names
    if axes is not None:
        shapes = convert_dynamic_axes(axes, model, args, kwargs, names, outputs)
    else:
        shapes = key_by_parameter(shapes, model, args, kwargs, names)
    program = call_for_onnx(capture, model, args, kwargs, dynamic_shapes=shapes, **how)
    return size_checks.narrow_ranges(
        program, lambda: find_declarations(shapes, model, args, kwargs)
    )


def is_torch_program(model: object) -> bool:
    """Whether it is a program of torch.export, without importing that."""
    kind = type(model)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")


def lower_program(
    program: ExportedProgram, options: ExportOptions, runs_on: Target | None = None
) -> ONNXProgram:
    """A program in ONNX; in the opset of another target, if it is to run on that here and now."""
    target = runs_on or TARGETS[options.target]
    custom = read_custom_lowerings(options)
    simpler, missing = decompose_to_known(program, custom)
    if missing:
        raise lowerer.report_missing(missing, options.opset or target.default_opset())
    opset = options.opset or lowerer.choose_opset(simpler.graph_module, target)
    builder = Builder(simpler.scope, opset, options.target)
    interface = lower_graph(simpler, builder, custom, options, size_checks.select_checks(simpler))
    if simpler.checks is not program.checks:  # a program of torch.export assumes more
        program = replace(program, checks=simpler.checks)
    return ONNXProgram(program, simpler, builder.main, interface, opset, options)


def lower_graph(
    program: ExportedProgram,
    builder: Builder,
    custom: Mapping[OpOverload, Lowering],
    options: ExportOptions,
    conditions: Sequence[Expr] = (),
) -> Interface:
    """Lower a program in known operators, which is right for sizes that meet the conditions."""
    walk = lowerer.Lowerer(builder, custom, options.optimize)
    interface = InterfaceBuilder(program, walk, options)
    interface.open()
    builder.sizes.guarded = bool(conditions) or lowerer.has_assertions(program.graph_module)
    for condition in conditions:
        builder.assertions.require(condition)
    interface.close(walk.run(program.graph_module))
    prune(builder.main)
    assign_names(builder.main)
    return interface.made()


def read_custom_lowerings(options: ExportOptions) -> dict[OpOverload, Lowering]:
    found = {}
    for op, fn in (options.custom_lowerings or {}).items():
        overload = find_operator(op)
        found[overload] = Lowering(overload, fn)
    return found


def decompose_to_known(
    program: ExportedProgram, custom: Mapping[OpOverload, Lowering]
) -> tuple[ExportedProgram, dict[Any, list[Node]]]:
    """Decompose operators without a lowering; the program, and those that are left."""

    def known(op: OpOverload) -> bool:
        return op in custom or is_known(op)

    if program.dialect == "TRAINING":
        program = program.run_decompositions(
            {}, list(filter(_can_decompose, (*LOWERINGS, *custom)))
        )
    tried: set[Any] = set()
    while missing := lowerer.find_missing(program.graph_module, known):
        if tried.issuperset(missing):
            return program, missing
        tried.update(missing)
        program = decompose_unknown(
            program,
            lambda op: op not in tried and (known(op) or op in COMPLEX),
            _find_onnx_decompositions(missing),
        )
    return program, {}


def _find_onnx_decompositions(missing: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    """Of `torch.onnx.ops`, which is loaded if a program has its operators."""
    if not any(getattr(op, "namespace", None) == "onnx" for op in missing):
        return {}
    from graphport.compat.torch import onnx_decompositions

    return onnx_decompositions()


def _can_decompose(op: OpOverload) -> bool:
    """Whether an operator would be decomposed if it were not known."""
    info = get_op_info(op)
    aliases = any(a.alias_info is not None for a in op._schema.arguments)
    return info.composite and not info.mutated and not aliases


# `torch.onnx.is_in_onnx_export()`, which models branch on.
#
# torch keeps the answer in a module, for all threads alike. Here that module looks at the stack of
# the thread that asks: there is no state that an error, an interrupt or another thread could leave
# behind.


def call_for_onnx(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function; `torch.onnx.is_in_onnx_export()` is true within."""
    return fn(*args, **kwargs)


class _ExportFlags(ModuleType):
    @property
    def _is_onnx_exporting(self) -> bool:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is call_for_onnx.__code__:
                return True
            frame = frame.f_back
        return bool(vars(self)["_is_onnx_exporting"])

    @_is_onnx_exporting.setter
    def _is_onnx_exporting(self, value: bool) -> None:
        vars(self)["_is_onnx_exporting"] = value


onnx_export_flags.__class__ = _ExportFlags
