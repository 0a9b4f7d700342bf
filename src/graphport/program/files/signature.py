"""Encodes and reads graph signatures, call specs, module calls and input checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphport.compat.torch import TreeSpec
from graphport.errors import SerializationError
from graphport.program.call_checks import InputChecks, InputShape
from graphport.program.exported import CallSpec, ModuleCall
from graphport.program.files import json_reader
from graphport.program.files.expressions import Expressions, ExpressionTable
from graphport.program.files.json_reader import Item, format_excerpt
from graphport.program.files.values import (
    DTYPES,
    Trees,
    Values,
    encode_tree,
    encode_value,
    read_device,
    read_dtype,
)
from graphport.program.signature import (
    Argument,
    ConstantArgument,
    GraphSignature,
    InputKind,
    InputSpec,
    ModuleCallSignature,
    OutputKind,
    OutputSpec,
    SymbolicArgument,
    TensorArgument,
)
from graphport.symbolic import Expr

_DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
_ARGUMENTS: dict[str, Any] = {"tensor": TensorArgument, "symbolic": SymbolicArgument}
_ARGUMENT_NAMES = {kind: name for name, kind in _ARGUMENTS.items()}
_INPUT_KINDS = {kind.name: kind for kind in InputKind}
_OUTPUT_KINDS = {kind.name: kind for kind in OutputKind}
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_STATE_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


# Signature


def encode_signature(signature: GraphSignature) -> dict[str, object]:
    return {
        "inputs": [_encode_spec(s, {"persistent": s.persistent}) for s in signature.input_specs],
        "outputs": [_encode_spec(s, {}) for s in signature.output_specs],
    }


def _encode_spec(spec: InputSpec | OutputSpec, more: Mapping[str, object]) -> dict[str, object]:
    arg, where = spec.arg, f"the signature, {spec.arg.name or 'output'}"
    if spec.kind is InputKind.CUSTOM_OBJ or spec.kind is InputKind.TOKEN:
        raise SerializationError(
            f"{spec.target or arg.name!r} is an object of another library: only tensors, numbers "
            "and texts can be saved",
            where=where,
        )
    row = _encode_argument(arg, where)
    fields = {"kind": spec.kind.name, "arg": row, "target": spec.target, **more}
    return {k: v for k, v in fields.items() if v is not None}


def _encode_argument(arg: Argument, where: str) -> dict[str, object]:
    if isinstance(arg, ConstantArgument):
        return {"constant": encode_value(arg.value, where), "name": arg.name}
    return {_ARGUMENT_NAMES[type(arg)]: arg.name}


def read_signature(item: Item, values: Values) -> GraphSignature:
    fields = item.fields("inputs", "outputs")
    inputs = []
    for row in fields["inputs"].list():
        parts = row.fields("kind", "arg", optional=("target", "persistent"))
        kind = parts["kind"].choice(_INPUT_KINDS, "kind of input")
        target = None
        if kind in _STATE:
            if "target" not in parts:
                row.fail("the field 'target' is missing")
            target = json_reader.read_state_path(parts["target"])
        elif kind is not InputKind.USER_INPUT or "target" in parts:
            row.fail(f"an input of the kind {kind.name} cannot be read from a file")
        persistent = parts["persistent"].truth() if "persistent" in parts else None
        inputs.append(InputSpec(kind, _read_argument(parts["arg"], values), target, persistent))
    outputs = []
    for row in fields["outputs"].list():
        parts = row.fields("kind", "arg", optional=("target",))
        kind = parts["kind"].choice(_OUTPUT_KINDS, "kind of output")
        target = _read_mutation_target(row, parts, kind, inputs)
        outputs.append(OutputSpec(kind, _read_argument(parts["arg"], values), target))
    return GraphSignature(inputs, outputs)


def _read_mutation_target(
    row: Item, parts: dict[str, Item], kind: OutputKind, inputs: list[InputSpec]
) -> str | None:
    """What an output is written to: one of the inputs."""
    if "target" not in parts:
        if kind in _STATE_MUTATIONS or kind is OutputKind.USER_INPUT_MUTATION:
            row.fail("the field 'target' is missing")
        return None
    target = parts["target"].text()
    users = {s.arg.name for s in inputs if s.kind is InputKind.USER_INPUT}
    known = users if kind is OutputKind.USER_INPUT_MUTATION else {s.target for s in inputs}
    if target not in known:
        parts["target"].fail(f"there is no input {format_excerpt(target)} to write to")
    return target


def _read_argument(item: Item, values: Values) -> Argument:
    if type(item.value) is dict and "constant" in item.value:
        parts = item.fields("constant", "name")
        name = parts["name"].text() and json_reader.read_node_name(parts["name"])
        return ConstantArgument(name, values.decode(parts["constant"]))
    if type(item.value) is not dict or len(item.value) != 1:
        item.fail("an argument is a tensor, symbolic or constant")
    ((kind, inner),) = item.named().items()
    if kind not in _ARGUMENTS:
        item.fail(f"unknown kind of argument {format_excerpt(kind)}")
    made: Argument = _ARGUMENTS[kind](json_reader.read_node_name(inner))
    return made


# The call


def encode_call(call: CallSpec, where: str) -> dict[str, object]:
    return {
        "inputs": encode_tree(call.in_spec, where),
        "outputs": encode_tree(call.out_spec, where),
    }


def read_call(item: Item, trees: Trees) -> CallSpec:
    fields = item.fields("inputs", "outputs")
    call = CallSpec(trees.read(fields["inputs"]), trees.read(fields["outputs"]))
    check_arguments(fields["inputs"], call.in_spec)
    return call


def check_arguments(item: Item, spec: TreeSpec) -> None:
    """The structure of a call: positional arguments, and those by keyword."""
    if spec.type is not tuple or spec.num_children != 2:
        item.fail("the inputs are a tuple of the arguments and the keyword arguments")
    args, kwargs = spec.children()
    if args.type is not tuple or kwargs.type is not dict:
        item.fail("the inputs are a tuple of a tuple and a dict")
    if any(type(key) is not str for key in kwargs.context):
        item.fail("the names of keyword arguments are texts")


def encode_module_call(call: ModuleCall) -> dict[str, object]:
    row: dict[str, Any] = {"fqn": call.fqn}
    kept = call.signature
    if kept is not None:
        where = f"the call of {call.fqn!r}"
        row["signature"] = {
            "inputs": [_encode_argument(arg, where) for arg in kept.inputs],
            "outputs": [_encode_argument(arg, where) for arg in kept.outputs],
            "in_spec": encode_tree(kept.in_spec, where),
            "out_spec": encode_tree(kept.out_spec, where),
            "argument_names": list(kept.argument_names),
        }
    return row


def read_module_call(item: Item, trees: Trees, values: Values) -> ModuleCall:
    fields = item.fields("fqn", optional=("signature",))
    key = json_reader.read_call_key(fields["fqn"])
    if "signature" not in fields:
        return ModuleCall(key)
    parts = fields["signature"].fields("inputs", "outputs", "in_spec", "out_spec", "argument_names")
    specs = [trees.read(parts["in_spec"]), trees.read(parts["out_spec"])]
    arguments = [
        tuple(_read_argument(row, values) for row in parts[side].list(spec.num_leaves))
        for side, spec in zip(("inputs", "outputs"), specs, strict=True)
    ]
    kept = ModuleCallSignature(
        arguments[0],
        arguments[1],
        specs[0],
        specs[1],
        tuple(json_reader.read_argument_names(parts["argument_names"].list())),
    )
    check_arguments(parts["in_spec"], kept.in_spec)
    if len(kept.argument_names) != sum(child.num_children for child in kept.in_spec.children()):
        parts["argument_names"].fail("there is not a name for each argument")
    return ModuleCall(key, kept)


# Checks


def encode_checks(checks: InputChecks, expressions: ExpressionTable) -> dict[str, object]:
    rows: dict[str, Any] = {
        "inputs": [_encode_shape(shape, expressions) for shape in checks.inputs],
        "ranges": expressions.ranges(checks.ranges),
        "facts": [expressions(fact) for fact in checks.facts],
    }
    if checks.written:
        rows["written"] = [[i, *others] for i, others in checks.written.items()]
    return rows


def _encode_shape(shape: InputShape, expressions: ExpressionTable) -> dict[str, object]:
    row: dict[str, Any] = {"path": shape.path}
    if shape.sizes is not None:
        row["sizes"] = [expressions.operand(s) for s in shape.sizes]
        row["dtype"] = None if shape.dtype is None else _DTYPE_NAMES.get(shape.dtype)
        row["device"] = None if shape.device is None else str(shape.device)
        if shape.strides is not None:
            row["strides"] = [expressions.operand(s) for s in shape.strides]
        if shape.from_start:
            row["from_start"] = True
    elif shape.number is not None:
        row["number"] = expressions.operand(shape.number)
    else:
        row["value"] = encode_value(shape.value, f"the input at {shape.path}")
    return row


def read_checks(item: Item, expressions: Expressions, values: Values) -> InputChecks:
    fields = item.fields("inputs", "ranges", "facts", optional=("written",))
    inputs = [_read_shape(row, expressions, values) for row in fields["inputs"].list()]
    return InputChecks(
        inputs,
        expressions.ranges(fields["ranges"]),
        [expressions.condition(row) for row in fields["facts"].list()],
        _read_written_inputs(fields["written"], inputs) if "written" in fields else None,
    )


def _read_written_inputs(item: Item, inputs: Sequence[InputShape]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in item.list():
        first, *others = [n.integer(0, len(inputs) - 1) for n in row.list()] or [-1]
        if first < 0 or first in found or any(inputs[i].sizes is None for i in (first, *others)):
            row.fail("tensors that the program writes to, each once, and those that it reads later")
        found[first] = others
    return found


_TENSOR_FIELDS = ("dtype", "device", "strides", "from_start")


def _read_shape(item: Item, expressions: Expressions, values: Values) -> InputShape:
    fields = item.fields("path", optional=("sizes", *_TENSOR_FIELDS, "number", "value"))
    path = fields["path"].words()
    kinds = [kind for kind in ("sizes", "number", "value") if kind in fields]
    if len(kinds) != 1 or (kinds != ["sizes"] and fields.keys() & {*_TENSOR_FIELDS}):
        item.fail("an input has sizes (with a dtype and a device), or a number, or a value")
    if "number" in fields:
        number = expressions.number(fields["number"])
        if not isinstance(number, Expr) or number.type is bool:
            fields["number"].fail("not a symbolic number")
        return InputShape(path, number=number)
    if "value" in fields:
        return InputShape(path, value=values.decode(fields["value"]))
    for name in ("dtype", "device"):
        if name not in fields:
            item.fail(f"the field {name!r} is missing")
    sizes = tuple(expressions.integer(size, 0) for size in fields["sizes"].list())
    strides = None
    if "strides" in fields:
        strides = tuple(expressions.integer(step, 0) for step in fields["strides"].list())
        if len(strides) != len(sizes):
            fields["strides"].fail("one stride for each size")
    return InputShape(
        path,
        sizes,
        None if fields["dtype"].value is None else read_dtype(fields["dtype"]),
        device=None if fields["device"].value is None else read_device(fields["device"]),
        strides=strides,
        from_start="from_start" in fields and fields["from_start"].truth(),
    )
