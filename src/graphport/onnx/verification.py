"""`ONNXProgram.verify`: the model against eager, at the example and at other sizes.

Neither the user's module nor the state that the program carries between calls is changed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from graphport import source
from graphport.capture.export import forward_error
from graphport.capture.snapshot import Snapshot, holders
from graphport.errors import ExportError, InputError
from graphport.onnx import samples
from graphport.onnx.divergence import Divergence, first_divergence
from graphport.onnx.judgement import Judgement, Tolerance, judge, same_kind
from graphport.onnx.labels import excused
from graphport.onnx.probing import (
    Probe,
    holder,
    precisions,
    random_nodes,
    replaced,
    runnable,
)
from graphport.onnx.program import like, result_of
from graphport.onnx.weights import require_data
from graphport.ops.weightless import lacks_data
from graphport.process import contained, undone
from graphport.program.signature import InputKind, OutputKind

if TYPE_CHECKING:
    from graphport.onnx.program import ONNXProgram

_INPUT = OutputKind.USER_INPUT_MUTATION
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, _INPUT)


@dataclass(frozen=True)
class OutputReport:
    """The worst that was found of one output."""

    name: str
    max_abs_error: float
    max_rel_error: float
    ok: bool
    note: str = ""
    sizes: Mapping[str, int] | None = None
    """At which it was found, if it is not ok."""


@dataclass(frozen=True)
class VerificationReport:
    """What `verify` found; prints as a table."""

    outputs: list[OutputReport]
    sizes_tried: list[dict[str, int]]
    sizes_refused: list[dict[str, int]] = field(default_factory=list)
    """That eager itself fails at."""
    first_divergence: Divergence | None = None

    @property
    def ok(self) -> bool:
        return all(o.ok for o in self.outputs)

    def __str__(self) -> str:
        head = ("output", "max abs error", "max rel error", "")
        rows = [(o.name, f"{o.max_abs_error:.2g}", f"{o.max_rel_error:.2g}", _verdict(o))
                for o in self.outputs]  # fmt: skip
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(3)]
        lines = [
            "  ".join([*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[3]])
            for row in (head, *rows)
        ]
        lines.append(f"sizes tried: {'; '.join(map(_sizes, self.sizes_tried))}")
        if self.sizes_refused:
            lines.append(f"eager refuses: {'; '.join(map(_sizes, self.sizes_refused))}")
        if self.first_divergence is not None:
            lines.append(f"first divergence: {self.first_divergence}")
        return "\n".join(line.rstrip() for line in lines)


def _verdict(o: OutputReport) -> str:
    if o.ok:
        return f"ok ({o.note})" if o.note else "ok"
    at = f" at {_sizes(o.sizes)}" if o.sizes else ""
    return f"WRONG{at}: {o.note}"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes.items()) or "the example"


@dataclass(frozen=True)
class _Compared:
    """One value that both sides have: its name, and the node that gives it."""

    name: str
    node: Node | None
    have: Any
    want: Any


@contained
def verify(
    program: ONNXProgram,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    rtol: float | None,
    atol: float | None,
) -> VerificationReport:
    """Run both sides on everything that is to be tried."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise InputError(f"{name}={value} is no error that can be accepted", fix=f"{name}=1e-3")
    require_data(
        program.tensors,
        "within gp.fake_mode(): model.load_state_dict(torch.load(path), assign=True), and export",
    )
    args, kwargs = samples.with_data(inputs)
    exported = program.exported_program
    leaves = program.entrance.flat(args, kwargs)
    example = {s: n for s, n in exported.checks(leaves).items() if s.type is int}
    run = _Run(program, rtol, atol)
    run.compare({str(s): n for s, n in example.items()}, leaves, required=True)
    for sizes, given in samples.others(exported, leaves, example):
        run.compare({str(s): n for s, n in sizes.items()}, given)
    return run.report()


class _Run:
    def __init__(self, program: ONNXProgram, rtol: float | None, atol: float | None) -> None:
        self.program = program
        self.eager = _eager(program)
        graph = program.lowered_program.graph
        kinds = precisions(graph)
        self.random = random_nodes(graph)
        self.tolerance: Callable[[str], Tolerance] = lambda name: Tolerance.of(
            kinds.get(name, torch.float64), rtol, atol
        )
        self.found: dict[str, OutputReport] = {}
        self.tried: list[dict[str, int]] = []
        self.refused: list[dict[str, int]] = []
        self.divergence: Divergence | None = None

    def report(self) -> VerificationReport:
        return VerificationReport(
            list(self.found.values()), self.tried, self.refused, self.divergence
        )

    def compare(self, sizes: dict[str, int], flat: Sequence[Any], required: bool = False) -> None:
        try:
            want = self.eager(_copies(flat))
        except Exception as error:  # whatever the user's code raises
            if required and isinstance(error, ExportError):
                raise
            if required:
                raise forward_error(error, source.of_traceback(error)) from error
            self.refused.append(sizes)
            return
        probe = Probe(self.program, flat)
        if not self.tried:
            self.random |= probe.unwritten()
        self.tried.append(sizes)
        try:
            rows = self._rows(flat, want)
        except Exception as error:  # noqa: BLE001  what ONNX Runtime raises is the finding
            note = str(error).strip().splitlines()[0]
            for name in (*self.program.interface.outputs, *self.program.interface.state.values()):
                self._add(name, Judgement(False, float("inf"), float("inf"), note), sizes)
            return
        for row in rows:
            judgement = self._judged(probe, row)
            self._add(row.name, judgement, sizes)
            if not judgement.ok and self.divergence is None and row.node is not None:
                self.divergence = first_divergence(probe, row.node, self._judge)

    def _rows(self, flat: Sequence[Any], want: _Outcome) -> list[_Compared]:
        """Everything that both sides give for some inputs."""
        program, interface = self.program, self.program.interface
        if len(want.results) != len(interface.results):
            count = len(interface.results)
            raise ValueError(f"eager gives {len(want.results)} results, the program {count}")
        found = program.computed(program.inputs_of(_copies(flat)))
        lowered = program.lowered_program
        nodes: Any = lowered.graph.output_node().args[0]
        specs = list(zip(nodes, lowered.graph_signature.output_specs, strict=True))
        users = [n for n, s in specs if s.kind not in _MUTATIONS]
        changed = {(s.kind is _INPUT, s.target): n for n, s in specs if s.kind in _MUTATIONS}
        places = [s.arg.name for s in lowered.graph_signature.input_specs
                  if s.kind is InputKind.USER_INPUT]  # fmt: skip
        rows = []
        results = zip(interface.results, users, want.results, strict=True)
        for i, (result, node, theirs) in enumerate(results):
            node = node if isinstance(node, Node) else None
            if result.kind == "constant":
                if type(theirs) is not type(result.what) or theirs != result.what:
                    rows.append(_Compared(f"result {i}", None, result.what, theirs))
            elif result.kind != "input":
                ours = result_of(result.kind, found[result.what])
                rows.append(_Compared(result.what, node, ours, theirs))
        for i, name in interface.written.items():
            ours, theirs = like(flat[i], found[name]), want.inputs[i]
            rows.append(_Compared(name, changed[True, places[i]], ours, theirs))
        for own, name in interface.state.items():
            target = interface.weights[own]
            theirs = want.state[target]
            rows.append(_Compared(name, changed[False, target], like(theirs, found[name]), theirs))
        return rows

    def _judge(self, name: str, have: Any, want: Any) -> Judgement:
        if name in self.random:
            return same_kind(have, want)
        return judge(have, want, self.tolerance(name))

    def _judged(self, probe: Probe, row: _Compared) -> Judgement:
        judgement = self._judge(row.node.name if row.node is not None else "", row.have, row.want)
        if judgement.ok or row.node is None or not isinstance(row.have, torch.Tensor):
            return judgement
        alike = isinstance(row.want, torch.Tensor) and row.have.shape == row.want.shape
        kind = row.have.dtype
        if kind.is_floating_point or kind.is_complex or not alike or kind is not row.want.dtype:
            return judgement
        if not excused(probe, row.node, row.have, self.tolerance):
            return judgement
        return Judgement(True, note=f"{judgement.note}, where what they are chosen by ties")

    def _add(self, name: str, judgement: Judgement, sizes: dict[str, int]) -> None:
        known = self.found.get(name)
        before = Judgement(True) if known is None else Judgement(
            known.ok, known.max_abs_error, known.max_rel_error, known.note
        )  # fmt: skip
        worst = before.worse(judgement)
        first = known.sizes if known is not None and not known.ok else sizes
        self.found[name] = OutputReport(
            name, worst.max_abs_error, worst.max_rel_error, worst.ok, worst.note,
            None if worst.ok else first,
        )  # fmt: skip


# Eager


@dataclass(frozen=True)
class _Outcome:
    """What eager gives: flat results, its flat inputs afterwards, and its state by name."""

    results: list[Any]
    inputs: list[Any]
    state: dict[str, torch.Tensor]


def _eager(program: ONNXProgram) -> Callable[[list[Any]], _Outcome]:
    """The user's own code if it can be run from the beginning, else the captured program."""
    exported, initial = program.exported_program, program.initial_state
    target: Any = program.eager
    usable = target is not None and not any(map(lacks_data, exported.state_dict.values()))
    usable = usable and all(holder(target, name) is not None for name in initial)
    in_spec = exported.call_spec.in_spec

    def run(flat: list[Any]) -> _Outcome:
        args, kwargs = pytree.tree_unflatten(flat, in_spec)
        if not usable:
            module, owned = runnable(exported, initial)
            with torch.no_grad():
                leaves = pytree.tree_leaves(module(*args, **kwargs))
            return _Outcome(leaves, flat, {n: held[last] for n, (held, last) in owned.items()})
        with undone(Snapshot((*holders(target),)).restore):
            owned = {name: replaced(target, name, t) for name, t in initial.items()}
            with torch.no_grad():
                leaves = pytree.tree_leaves(target(*args, **kwargs))
            return _Outcome(leaves, flat, {n: held[last] for n, (held, last) in owned.items()})

    return run


def _copies(flat: Sequence[Any]) -> list[Any]:
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in flat]
