"""Loads a program from a file, without running or importing anything of it."""

from __future__ import annotations

import io
import mmap
import os
import stat
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from graphport.arguments import FLAG, NAMES, check_arguments
from graphport.compat.schemas import read_version
from graphport.compat.torch import pytree
from graphport.errors import SerializationError, VerificationError
from graphport.program.exported import CallSpec, ExportedProgram
from graphport.program.files import archive, json_reader, tensors
from graphport.program.files.archive import Archive
from graphport.program.files.expressions import Expressions
from graphport.program.files.graphs import GraphReader
from graphport.program.files.json_reader import Item, format_excerpt, parse_json
from graphport.program.files.operators import AllowedOperators, Targets
from graphport.program.files.signature import (
    read_call,
    read_checks,
    read_module_call,
    read_signature,
)
from graphport.program.files.tensors import Tensors
from graphport.program.files.values import Decoder, Trees, Values
from graphport.program.input_checks import is_same_constant
from graphport.program.signature import GraphSignature, InputKind, OutputKind, TensorArgument
from graphport.symbolic.bridge import NUMBERS
from graphport.tensors.abstract import get_val

_DIALECTS = {name: name for name in ("ATEN", "TRAINING")}
_USER_OUTPUTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


@check_arguments(verify=FLAG, allow=NAMES)
def load(
    file: Any, *, verify: bool = True, allow: Iterable[str] = (), extra_files: object = None
) -> ExportedProgram:
    """Read a program from a path or from a binary file, from where it stands to its end.

    A file that has just been written, and stands at its end, is read from its beginning.

    Tensors of a file at a path are not read but mapped: memory is taken when they are used, and
    writing to them does not change the file. `verify=False` leaves out the checksum over them,
    which reads them once.

    A program may call operators of PyTorch that compute and check their arguments. Others are
    allowed by namespace or by name: `allow=("torchvision", "mylib::attention")`.
    """
    archive.refuse_extra_files("gp.load", extra_files)
    permits = AllowedOperators(allow)
    if isinstance(file, (str, os.PathLike)):
        return _load_path(os.fspath(file), verify, permits)
    if isinstance(file, io.TextIOBase) or not hasattr(file, "read"):
        raise SerializationError(
            f"gp.load reads a path or a binary file, got {type(file).__name__}",
            fix="gp.load('program.gpx'), or open(..., 'rb')",
        )
    content = file.read()
    if not content and isinstance(file, io.BytesIO):
        content = file.getvalue()
    if not content:
        raise SerializationError("the file is empty", where=_file_name(file))
    # Not in the bytes as they are: tensors want memory that is aligned and can be written to.
    data = mmap.mmap(-1, len(content))
    data[:] = content
    del content
    view = memoryview(data)
    return _load_buffer(
        data, view, lambda at, size: view[at : at + size], _file_name(file), verify, permits
    )


def _file_name(file: object) -> str:
    name = getattr(file, "name", None)
    return os.path.basename(name) if isinstance(name, str) else "the file"


def _load_path(path: str | bytes, verify: bool, permits: AllowedOperators) -> ExportedProgram:
    name = os.path.basename(os.fsdecode(path))
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe waits for somebody to write to it
        raise SerializationError("not a regular file", where=name)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise SerializationError("the file is empty", where=name)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

        def read(at: int, size: int) -> bytes:
            """Not through the mapping: its pages would stay in memory."""
            return os.pread(file.fileno(), size, at)

        return _load_buffer(data, memoryview(data), read, name, verify, permits)


def _load_buffer(
    data: object, view: memoryview, read: object, name: str, verify: bool, permits: AllowedOperators
) -> ExportedProgram:
    try:
        found = Archive(view, name)
        found.check(archive.PROGRAM, read)
        if verify:
            found.check(archive.TENSORS, read)
        return _Reader(found, data, permits).program()
    except RecursionError:
        raise SerializationError("something in it is nested too deeply", where=name) from None
    except _UNEXPECTED_ERRORS as error:
        raise SerializationError(f"the file cannot be read: {error}", where=name) from error


# What a file could bring about that no check above has thought of.
_UNEXPECTED_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

_TABLES = ("symbols", "expressions", "facts", "texts", "module_stacks", "tensors")
_PARTS = tuple(
    """
        graph signature state_dict constants range_constraints call argument_names example_inputs
        checks module_calls dialect notes
    """.split()
)


class _Reader:
    """Reads the parts of a document, tables first."""

    def __init__(self, file: Archive, data: object, permits: AllowedOperators) -> None:
        place = f"{file.name}, {archive.PROGRAM}"
        text = file.bytes_of(archive.PROGRAM)
        if len(text) > json_reader.JSON_BYTES:
            raise SerializationError(f"the text has {len(text)} bytes: too many", where=place)
        self.document = parse_json(text, place)
        _check_version(self.document)
        parts = self.document.fields(
            "format", "version", "producer", *_TABLES, *_PARTS, optional=("positional",)
        )
        self.parts = parts
        producer = parts["producer"].fields("graphport", "torch")
        versions = ", ".join(f"{k} {format_excerpt(v.text())}" for k, v in producer.items())
        entries, start = tensors.read_header(
            file.bytes_of(archive.TENSORS), f"{file.name}, {archive.TENSORS}"
        )
        start += file.members[archive.TENSORS].start
        self.tensors = Tensors(parts["tensors"], entries, data, start)
        targets = Targets(versions, read_version(producer["torch"].text()), permits)
        self.values = Values(targets)
        self.trees = Trees(self.values)
        self.expressions = Expressions(parts["symbols"], parts["expressions"], parts["facts"])
        self.graphs = GraphReader(
            self.expressions, self.values, targets, parts["texts"], parts["module_stacks"]
        )

    def program(self) -> ExportedProgram:
        parts = self.parts
        call = read_call(parts["call"], self.trees)
        program = ExportedProgram(
            graph_module=self.graphs.module(parts["graph"]),
            graph_signature=read_signature(parts["signature"], self.values),
            state_dict=self._state(parts["state_dict"]),
            constants=self._state(parts["constants"]),
            range_constraints=self.expressions.ranges(parts["range_constraints"]),
            call_spec=call,
            example_inputs=self._examples(parts["example_inputs"], call),
            checks=read_checks(parts["checks"], self.expressions, self.values),
            argument_names=json_reader.read_argument_names(parts["argument_names"].list()),
            positional=self._positional(),
            module_call_graph=[
                read_module_call(item, self.trees, self.values)
                for item in parts["module_calls"].list()
            ],
            dialect=parts["dialect"].choice(_DIALECTS, "dialect"),
            notes=[note.words() for note in parts["notes"].list()],
            scope=self.expressions.scope,
            from_file=True,
        )
        self._check(program)
        return program

    def _positional(self) -> int | None:
        if "positional" not in self.parts:
            return None
        return self.parts["positional"].integer(0, len(self.parts["argument_names"].list()))

    def _state(self, item: Item) -> dict[str, object]:
        found: dict[str, Any] = {}
        more: dict[str, Decoder] = {"data": self.tensors}
        for row in item.list():
            key, inner = row.list(2)
            value = self.values.decode(inner, more)
            name = json_reader.read_state_path(key)
            if name in found:
                key.fail(f"{format_excerpt(name)} is given twice")
            found[name] = value
        return found

    def _examples(self, item: Item, call: CallSpec) -> Any:
        more: dict[str, Decoder] = {"data": self.tensors}
        rows = item.list(call.in_spec.num_leaves)
        leaves = [self.values.decode(row, more) for row in rows]
        try:
            examples = pytree.tree_unflatten(leaves, call.in_spec)
            same = pytree.tree_structure(examples) == call.in_spec
        except Exception as error:
            raise SerializationError(
                f"the containers of the example inputs cannot be made: {error}", where=item.place
            ) from error
        if not same:
            item.fail("the example inputs do not have the structure of the call")
        return examples

    def _check(self, program: ExportedProgram) -> None:
        """Whether the parts fit together."""
        parts = self.parts
        _check_inputs(parts, program)
        _check_outputs(parts["signature"], program.graph_signature, program)
        _check_descriptions(parts["signature"], program)
        _check_attributes(parts["state_dict"], program)
        try:
            program.validate()
        except VerificationError as error:
            self.document.fail(error.what)
        except Exception as error:  # a graph so odd that the rules cannot be applied to it
            raise SerializationError(
                f"the program is not valid: {error}", where=self.document.place
            ) from error


def _check_version(document: Item) -> None:
    if type(document.value) is not dict or document.value.get("format") != archive.FORMAT:
        document.fail("not a program of graphport: it does not say that it is one")
    version = document.value.get("version")
    if type(version) is not int or version < 1:
        document.fail(f"unknown version {format_excerpt(version)} of the format")
    if version > archive.VERSION:
        document.fail(
            f"version {version} of the format is newer than {archive.VERSION}, the latest that "
            "this graphport reads",
            "pip install -U graphport",
        )


def _check_inputs(parts: dict[str, Item], program: ExportedProgram) -> None:
    spec, signature = program.call_spec.in_spec, program.graph_signature
    users = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    for what, count in (("checks", len(program.checks.inputs)), ("signature", len(users))):
        if count != spec.num_leaves:
            parts[what].fail(f"{count} inputs, but the structure of the call has {spec.num_leaves}")
    arguments = sum(child.num_children for child in spec.children())
    if len(program.argument_names) != arguments:
        parts["argument_names"].fail(
            f"{len(program.argument_names)} names, but the call has {arguments} arguments"
        )
    nodes = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    if nodes != [s.arg.name for s in signature.input_specs]:
        parts["signature"].fail("the inputs are not those of the graph")


def _check_descriptions(item: Item, program: ExportedProgram) -> None:
    """What nodes say of the inputs is what the tensors are, and what `.module()` checks."""
    shapes = iter(program.checks.inputs)
    nodes = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        val, name = get_val(node), format_excerpt(node.name)
        if spec.kind is InputKind.USER_INPUT:
            shape = next(shapes)
            if shape.sizes is not None:
                fits = isinstance(val, torch.Tensor) and _is_consistent(
                    val, shape.sizes, shape.dtype
                )
            elif shape.number is not None:
                fits = isinstance(val, NUMBERS)
            else:
                fits = is_same_constant(val, shape.value)
            if not fits:
                item.fail(f"the input {name} is not described as it is checked")
        else:
            t = program.tensor(str(spec.target))
            if not isinstance(val, torch.Tensor) or not _is_consistent(val, t.shape, t.dtype):
                item.fail(
                    f"the input {name} is not described as the tensor {format_excerpt(spec.target)}"
                )
            # A parameter of a module that is not the program's own is a constant of the program.
            if spec.kind is InputKind.PARAMETER and not isinstance(t, torch.nn.Parameter):
                item.fail(f"{format_excerpt(spec.target)} is no parameter")


def _is_consistent(val: torch.Tensor, sizes: Sequence[object], dtype: torch.dtype | None) -> bool:
    """Whether a description has this dtype and rank, and these sizes as far as both are numbers."""
    return (
        dtype in (None, val.dtype)
        and val.ndim == len(sizes)
        and all(a == b for a, b in zip(val.shape, sizes, strict=True) if type(a) is type(b) is int)
    )


def _check_outputs(item: Item, signature: GraphSignature, program: ExportedProgram) -> None:
    results: Any = program.graph.output_node().args[0]
    if not isinstance(results, (list, tuple)) or len(results) != len(signature.output_specs):
        item.fail("the outputs are not those of the graph")
    users = [s for s in signature.output_specs if s.kind in _USER_OUTPUTS]
    count = program.call_spec.out_spec.num_leaves
    if len(users) != count:
        item.fail(f"{len(users)} outputs, but the structure of the result has {count}")
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        value = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
        if not isinstance(spec.arg, TensorArgument) or not isinstance(value, torch.Tensor):
            item.fail(
                f"{format_excerpt(spec.target)} is not a tensor, but stands for a {spec.kind.name}"
            )


def _check_attributes(item: Item, program: ExportedProgram) -> None:
    """State and a graph, or state and a module, cannot share a name."""
    modules: dict[str, Any] = dict.fromkeys(n for n, _ in program.graph_module.named_children())
    called = _list_called_modules(program)
    tree = json_reader.ModulePaths()
    for name in (*program.state_dict, *program.constants):
        tree.add(item, name)
        if name in called:
            item.fail(f"{format_excerpt(name)} cannot be stored: it is a module that is called")
        inside = modules
        *path, last = name.split(".")
        for part in path:
            inside = inside.setdefault(part, {}) if inside is not None else None
        if inside is None or last in inside:
            item.fail(f"{format_excerpt(name)} cannot be stored: a part of it is something else")
        inside[last] = None


def _list_called_modules(program: ExportedProgram) -> set[str]:
    """The paths of modules that are called."""
    stacks = (node.meta.get("nn_module_stack", {}) for node in program.graph.nodes)
    entries = set().union(*(stack.values() for stack in {id(s): s for s in stacks}.values()))
    return {call.fqn for call in program.module_call_graph} | {path for path, _ in entries}
