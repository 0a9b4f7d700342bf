"""`gp.onnx.export`: capture, lower, and hand out an `ONNXProgram`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node

from graphport import hooks
from graphport.capture import export as capture
from graphport.errors import InputError, MismatchError
from graphport.onnx import dynamic, lower, opsets, size_checks
from graphport.onnx.builder import Builder
from graphport.onnx.interface import Interface, InterfaceBuilder
from graphport.onnx.model import assign_names, prune
from graphport.onnx.options import ExportOptions
from graphport.onnx.program import ONNXProgram, require_arguments
from graphport.onnx.registry import COMPLEX, LOWERINGS, Lowering, is_known, operator_named
from graphport.onnx.torch_flag import call_for_onnx
from graphport.ops import info_of
from graphport.process import contained
from graphport.program import ExportedProgram, from_torch, services
from graphport.symbolic import Expr


@contained
def export(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
    target: str = "onnx",
    optimize: bool = True,
    verify: bool | Mapping[str, Any] = False,
    custom_lowerings: Mapping[Any, Callable[..., Any]] | None = None,
    report: str | None = None,
    module_functions: Sequence[Any] = (),
    dynamic_axes: Mapping[str, Any] | None = None,
) -> ONNXProgram:
    """Carry a model to ONNX.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Linear(4, 2)
    >>> x = torch.randn(3, 4)
    >>> program = gp.onnx.export(model, (x,), dynamic_shapes=({0: gp.Dim("batch")},))
    >>> torch.testing.assert_close(program(x), model(x))
    >>> program.verify().ok
    True
    """
    options = ExportOptions(
        input_names=input_names, output_names=output_names, opset=opset, target=target,
        optimize=optimize, verify=verify, custom_lowerings=custom_lowerings, report=report,
        module_functions=module_functions,
    )  # fmt: skip
    if report is not None:
        hooks.check_report(report)
    began = perf_counter()
    captured = _captured(model, args, kwargs, dynamic_shapes, dynamic_axes, options)
    lowering = perf_counter()
    program = lowered(captured, options)
    timings = {"capture": lowering - began, "lower": perf_counter() - lowering}
    if captured is not model and callable(model) and not _is_torchs(model):
        program.eager = model
    elif args or kwargs:
        program.example_inputs = (args, kwargs or {})
    found = None
    if verify is not False:
        verifying = perf_counter()
        found = program.verify(**(verify if isinstance(verify, Mapping) else {}))
        timings["verify"] = perf_counter() - verifying
    if report is not None:
        hooks.write_report(program, report, timings, found)
    if found is not None and not found.ok:
        raise MismatchError(found)
    return program


def _captured(
    model: Any, args: Any, kwargs: Any, shapes: Any, axes: Any, options: ExportOptions
) -> ExportedProgram:
    """The program to lower, whatever it is given as."""
    if shapes is not None and axes is not None:
        raise InputError(
            "dynamic_axes is the older spelling of dynamic_shapes: both were given",
            fix="dynamic_shapes alone",
        )
    if isinstance(model, ExportedProgram) or _is_torchs(model):
        require_arguments(args, kwargs)
        if shapes is not None or axes is not None:
            raise InputError(
                "the sizes of a program are decided when it is captured",
                fix="gp.export(model, args, dynamic_shapes=...)",
            )
        program = model if isinstance(model, ExportedProgram) else from_torch(model)
        return size_checks.narrow(program, dict)
    names, outputs = options.input_names, options.output_names
    if axes is not None:
        shapes = dynamic.of_axes(axes, model, args, kwargs, names, outputs)
    else:
        shapes = dynamic.by_parameter(shapes, model, args, kwargs, names)
    program = call_for_onnx(capture, model, args, kwargs, dynamic_shapes=shapes)
    return size_checks.narrow(program, lambda: dynamic.declared(shapes, model, args, kwargs))


def _is_torchs(model: Any) -> bool:
    """A program of torch.export, told without importing that."""
    kind = type(model)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")


def lowered(program: ExportedProgram, options: ExportOptions) -> ONNXProgram:
    """A program in ONNX."""
    opset = options.opset or opsets.default()
    custom = custom_lowerings(options)
    simpler, missing = known_operators(program, custom)
    if missing:
        raise lower.report(missing, opset)
    opset = options.opset or lower.newest(simpler.graph_module, opset)
    builder = Builder(simpler.scope, opset, options.target)
    interface = walked(simpler, builder, custom, options, size_checks.select_checks(simpler))
    if simpler.checks is not program.checks:  # a program of torch.export takes more for granted
        program = replace(program, checks=simpler.checks)
    return ONNXProgram(program, simpler, builder.main, interface, opset, options)


def walked(
    program: ExportedProgram,
    builder: Builder,
    custom: Mapping[OpOverload, Lowering],
    options: ExportOptions,
    conditions: Sequence[Expr] = (),
) -> Interface:
    """Lower a program in known operators, which is right for sizes that meet the conditions."""
    walk = lower.Lowerer(builder, custom, options.optimize)
    interface = InterfaceBuilder(program, walk, options)
    interface.open()
    builder.sizes.guarded = bool(conditions) or lower.has_assertions(program.graph_module)
    for condition in conditions:
        builder.assertions.require(condition)
    interface.close(walk.run(program.graph_module))
    prune(builder.main)
    assign_names(builder.main)
    return interface.made()


def custom_lowerings(options: ExportOptions) -> dict[OpOverload, Lowering]:
    found = {}
    for op, fn in (options.custom_lowerings or {}).items():
        overload = operator_named(op)
        found[overload] = Lowering(overload, fn)
    return found


def known_operators(
    program: ExportedProgram, custom: Mapping[OpOverload, Lowering]
) -> tuple[ExportedProgram, dict[Any, list[Node]]]:
    """The program with operators without a lowering taken apart; those that are left."""

    def known(op: Any) -> bool:
        return op in custom or is_known(op)

    if program.dialect == "TRAINING":
        program = program.run_decompositions({}, list(filter(_is_whole, (*LOWERINGS, *custom))))
    tried: set[Any] = set()
    while missing := lower.missing(program.graph_module, known):
        if tried.issuperset(missing):
            return program, missing
        tried.update(missing)
        program = services.take_apart(
            program, lambda op: op not in tried and (known(op) or op in COMPLEX)
        )
    return program, {}


def _is_whole(op: OpOverload) -> bool:
    """Whether an operator would be taken apart if it were not said that it is known."""
    info = info_of(op)
    aliases = any(a.alias_info is not None for a in op._schema.arguments)
    return info.composite and not info.mutated and not aliases
