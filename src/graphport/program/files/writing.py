"""Saves a program to a file."""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from graphport.compat.torch import pytree
from graphport.errors import SerializationError
from graphport.process import restore_on_exit
from graphport.program.atomic_write import write_atomically
from graphport.program.exported import ExportedProgram
from graphport.program.files import archive, json_reader
from graphport.program.files.expressions import ExpressionTable
from graphport.program.files.graphs import GraphWriter
from graphport.program.files.signature import (
    encode_call,
    encode_checks,
    encode_module_call,
    encode_signature,
)
from graphport.program.files.tensors import TensorTable
from graphport.program.files.values import encode_value


@restore_on_exit
def save(program: ExportedProgram, file: object, *, extra_files: object = None) -> None:
    """Write a program to a path or to a binary file.

    What is at a path is replaced when everything has been written, and not before.

    >>> import io, torch, graphport as gp
    >>> ep = gp.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    >>> file = io.BytesIO()
    >>> gp.save(ep, file)
    >>> _ = file.seek(0)
    >>> str(gp.load(file)) == str(ep)
    True
    """
    archive.refuse_extra_files("gp.save", extra_files)
    if not isinstance(program, ExportedProgram):
        raise SerializationError(
            f"gp.save takes an ExportedProgram, got {type(program).__name__}",
            fix="gp.save(gp.export(model, args), path)",
        )
    members = list(_encode_members(program))
    if isinstance(file, (str, os.PathLike)):
        with write_atomically(Path(file)) as target:
            archive.write_archive(target, members)
    elif isinstance(file, io.TextIOBase) or not hasattr(file, "write"):
        raise SerializationError(
            f"gp.save writes to a path or a binary file, got {type(file).__name__}",
            fix="gp.save(ep, 'program.gpx'), or open(..., 'wb')",
        )
    else:
        archive.write_archive(file, members)


def _encode_members(program: ExportedProgram) -> Iterator[tuple[str, archive.Chunks]]:
    tensors = TensorTable()
    document = _encode_document(program, tensors)
    pieces = tensors.finish()
    document["tensors"] = tensors.rows
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > json_reader.JSON_BYTES:
        raise SerializationError(f"the graph takes {len(text)} bytes, which is too much to save")
    yield archive.PROGRAM, [text]
    yield archive.TENSORS, pieces


@functools.cache
def _describe_producer() -> dict[str, str]:
    return {"graphport": version("graphport"), "torch": str(torch.__version__)}


def _encode_document(program: ExportedProgram, tensors: TensorTable) -> dict[str, object]:
    expressions = ExpressionTable(program.scope)
    graphs = GraphWriter(expressions)
    document = {
        "format": archive.FORMAT,
        "version": archive.VERSION,
        "producer": _describe_producer(),
        "graph": graphs.graph(program.graph_module, "the graph"),
        "signature": encode_signature(program.graph_signature),
        "state_dict": _encode_state(program.state_dict, tensors, "state_dict"),
        "constants": _encode_state(program.constants, tensors, "constants"),
        "range_constraints": expressions.ranges(program.range_constraints),
        "call": encode_call(program.call_spec, "the structure of the inputs and outputs"),
        "argument_names": list(program.argument_names),
        "example_inputs": _encode_examples(program, tensors),
        "checks": encode_checks(program.checks, expressions),
        "module_calls": [encode_module_call(call) for call in program.module_call_graph],
        "dialect": program.dialect,
        "notes": list(program.notes),
        "symbols": expressions.symbols(),
        "facts": expressions.facts(),
    }
    if program.positional is not None:
        document["positional"] = program.positional
    return {
        **document,
        "expressions": expressions.rows,
        "texts": graphs.texts,
        "module_stacks": graphs.stacks,
    }


def _encode_state(state: dict[str, object], tensors: TensorTable, kind: str) -> list[list[Any]]:
    rows = []
    for name, value in state.items():
        where = f"{kind}[{name!r}]"
        if isinstance(value, torch.Tensor):
            if value.device.type == "meta":
                raise SerializationError(
                    f"{name!r} is on the meta device: there is no data to save",
                    where=where,
                    fix="load the weights, and export the model with them",
                )
            if not json_reader.is_state_path(name):
                raise SerializationError(f"{name!r} is not a name that can be saved", where=where)
            rows.append([name, {"data": tensors(value, name, where)}])
        else:
            rows.append([name, encode_value(value, where)])
    return rows


def _encode_examples(program: ExportedProgram, tensors: TensorTable) -> list[object]:
    leaves, spec = pytree.tree_flatten(program.example_inputs)
    if spec != program.call_spec.in_spec:
        raise SerializationError("the example inputs do not have the structure of the call")
    rows: list[Any] = []
    for i, leaf in enumerate(leaves):
        where = f"example input {i}"
        if isinstance(leaf, torch.Tensor):
            rows.append({"data": tensors(leaf, f"example_inputs.{i}", where)})
        else:
            rows.append(encode_value(leaf, where))
    return rows
