"""`ONNXProgram.verify`: compares the model with eager, at the example and other sizes.

Neither the user's module nor the state that the program carries between calls is changed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.soundness.refusals import forward_error
from graphport.capture.soundness.snapshot import Snapshot, list_holders
from graphport.compat.torch import pytree
from graphport.errors import ExportError, RequirementError
from graphport.onnx.exporter import call_for_onnx
from graphport.onnx.options import VerifyOptions
from graphport.onnx.program import convert_like, convert_result
from graphport.onnx.verify import samples
from graphport.onnx.verify.compare import (
    Comparison,
    Tolerance,
    compare_metadata,
    compare_results,
    is_rounding,
    nudge,
)
from graphport.onnx.verify.divergence import (
    Divergence,
    Probe,
    find_holder,
    find_precisions,
    find_random_nodes,
    first_divergence,
    make_runnable,
    replace_tensor,
)
from graphport.onnx.verify.samples import Refusal, Samples, Sizes
from graphport.onnx.verify.ties import Ties
from graphport.onnx.write.weights import require_data
from graphport.process import restore_on_exit, undo_on_exit
from graphport.program.signature import InputKind, OutputKind
from graphport.tensors.lazy import lacks_data
from graphport.tensors.subclasses import split_subclasses
from graphport.types import PyTree

if TYPE_CHECKING:
    from graphport.onnx.program import ONNXProgram

_INPUT_MUTATION = OutputKind.USER_INPUT_MUTATION
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, _INPUT_MUTATION)


_TIMES = 1.7
"""How much longer than the example all other sizes may take together."""
_SECONDS = 1.0
"""That they may take in any case."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


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


class Trial(dict[str, int]):
    """Sizes by the names of their dims, and what came of trying them."""

    outcome: str
    """`ok`, `differs`, `refused` (by the program's own checks) or `eager refuses`."""
    reason: str
    """Why, unless it is ok."""

    def __init__(self, sizes: Mapping[str, int], outcome: str = "ok", reason: str = "") -> None:
        super().__init__(sizes)
        self.outcome, self.reason = outcome, reason

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self)

    @property
    def compared(self) -> bool:
        return self.outcome in ("ok", "differs")

    def __str__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.items()) or "the example"


@dataclass(frozen=True)
class WeightDifference:
    """A weight that a file and the model do not have in common."""

    name: str
    max_abs_error: float

    def __str__(self) -> str:
        return f"{self.name} (max abs {self.max_abs_error:.2g})"


@dataclass(frozen=True)
class VerificationReport:
    """What `verify` found; prints as a table."""

    outputs: list[OutputReport]
    sizes_tried: list[Trial]
    first_divergence: Divergence | None = None
    notes: list[str] = field(default_factory=list)
    """What could not be found out."""
    weights: list[WeightDifference] = field(default_factory=list)
    """Weights of a file that differ from those of the model it is compared with."""

    @property
    def ok(self) -> bool:
        return all(o.ok for o in self.outputs)

    @property
    def sizes_refused(self) -> list[Trial]:
        """Those of the sizes tried that the program, or eager itself, does not take."""
        return [t for t in self.sizes_tried if not t.compared]

    def __str__(self) -> str:
        head = ("output", "max abs error", "max rel error", "")
        rows = [
            (o.name, f"{o.max_abs_error:.2g}", f"{o.max_rel_error:.2g}", _verdict(o))
            for o in self.outputs
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(3)]
        lines = [self.weights_line] if self.weights else []
        lines += [
            "  ".join([*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[3]])
            for row in (head, *rows)
        ]
        lines.append(f"sizes tried: {'; '.join(str(t) for t in self.sizes_tried if t.compared)}")
        lines += self.refusal_lines
        lines += self.notes
        if self.first_divergence is not None:
            lines.append(f"first divergence: {self.first_divergence}")
        return "\n".join(line.rstrip() for line in lines)

    @property
    def refusal_lines(self) -> list[str]:
        """A line for each of the sizes that were refused."""
        return [f"{t.outcome}: {t}, because {t.reason}" for t in self.sizes_refused]

    @property
    def weights_line(self) -> str:
        shown = ", ".join(map(str, self.weights[:_SHOWN]))
        more = f" and {len(self.weights) - _SHOWN} more" if len(self.weights) > _SHOWN else ""
        return (
            f"weights differ: {shown}{more}: build the model with the same seed, or load the "
            "checkpoint that the file was made from"
        )


_SHOWN = 5
"""Weights to name."""


def _verdict(o: OutputReport) -> str:
    if o.ok:
        return f"ok ({o.note})" if o.note else "ok"
    at = f" at {Trial(o.sizes)}" if o.sizes else ""
    return f"WRONG{at}: {o.note}"


@dataclass(frozen=True)
class _ComparedValue:
    """One value that both sides have: its name, and the node that gives it."""

    name: str
    node: Node | None
    have: Any
    want: Any


@restore_on_exit
def verify(
    program: ONNXProgram, inputs: Sequence[Inputs], options: VerifyOptions
) -> VerificationReport:
    """Run both sides on everything that is to be tried."""
    require_data(
        program.tensors,
        "within gp.fake_mode(): model.load_state_dict(torch.load(path), assign=True), and export",
    )
    exported = program.exported_program
    given = [program.entrance.flat(*samples.fill_missing_data(some)) for some in inputs]
    sampled = [Samples(exported, leaves) for leaves in given]
    first = sampled[0]
    asked = [first.named(sizes) for sizes in options.sizes]
    run = _Run(program, options.rtol, options.atol)
    for some in sampled:
        run.compare(some.example, some.leaves, required=True)
    clock = run.clock()
    for sizes in asked:
        run.at(first, sizes)
    if options.chosen:
        affords = clock.affords if options.limit is None else lambda cost: True
        for sizes in first.others(options.chosen, affords):
            run.at(first, sizes)
        run.refuse(first.refusals())
    return run.report()


@dataclass(frozen=True)
class _Clock:
    """The time that there is for other sizes, from what the example has taken."""

    began: float
    spent: float
    """Seconds for the example, with what is done once."""
    run: float
    """Seconds of one comparison at the sizes of the example."""

    def affords(self, cost: float) -> bool:
        """Whether there is time for inputs so many times as large as the example."""
        until = self.began + max(_TIMES * self.spent, _SECONDS)
        return perf_counter() + self.run * cost <= until


class _Run:
    def __init__(self, program: ONNXProgram, rtol: float | None, atol: float | None) -> None:
        self.program = program
        self.eager = _make_eager(program)
        graph = program.lowered_program.graph
        kinds = find_precisions(graph)
        self.random = find_random_nodes(graph)
        self.tolerance: Callable[[str], Tolerance] = lambda name: Tolerance.of(
            kinds.get(name, torch.float64), rtol, atol
        )
        self.by_dtype = rtol is None and atol is None
        self.found: dict[str, OutputReport] = {}
        self.tried: list[Trial] = []
        self.notes: dict[str, None] = {}
        self.divergence: Divergence | None = None
        self.began = perf_counter()
        self.loading = 0.0

    def clock(self) -> _Clock:
        """The time that is left once the example has been compared."""
        now = perf_counter()
        spent = now - self.began
        return _Clock(now, spent, spent - self.loading)

    def report(self) -> VerificationReport:
        return VerificationReport(
            list(self.found.values()), self.tried, self.divergence, list(self.notes)
        )

    def at(self, some: Samples, sizes: Sizes) -> None:
        """Compare at other sizes: with new values, or the example's if eager refuses those."""
        reason = some.refusal(sizes)
        if reason is not None:
            self.tried.append(Trial(_name_sizes(sizes), "refused", reason))
            return
        for make in (some.drawn, some.repeated):
            try:
                flat = make(sizes)
            except (RuntimeError, MemoryError) as error:  # of torch: too large
                self.tried.append(Trial(_name_sizes(sizes), "refused", _first_line(error)))
                return
            refused = self.compare(sizes, flat)
            if refused is None:
                return
            reason = reason or _first_line(refused)
        self.tried.append(Trial(_name_sizes(sizes), "eager refuses", reason or ""))

    def refuse(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            trial = Trial(_name_sizes(refusal.sizes), "refused", refusal.reason)
            if trial not in self.tried:
                self.tried.append(trial)

    def compare(
        self, sizes: Sizes, flat: Sequence[object], required: bool = False
    ) -> Exception | None:
        """Run both sides; what eager raises, if it does."""
        try:
            want = self.eager(_copy_inputs(flat))
        except Exception as error:  # whatever the user's code raises
            if required and isinstance(error, ExportError):
                raise
            if required:
                raise forward_error(error, source.locate_error(error)) from error
            return error
        probe = Probe(self.program, flat)
        if not self.tried:
            self.random |= self._attempt("what is not written", probe.find_uninitialised, set())
        trial = Trial(_name_sizes(sizes))
        self.tried.append(trial)
        try:
            rows = self._rows(flat, want)
        except RequirementError as error:
            if required:
                raise
            trial.outcome, trial.reason = "refused", error.what
            return None
        except Exception as error:  # noqa: BLE001  what ONNX Runtime raises is the finding
            for name in (*self.program.interface.outputs, *self.program.interface.state.values()):
                failed = Comparison(False, float("inf"), float("inf"), _first_line(error, False))
                self._add(name, failed, trial)
            return None
        given = {
            row.node.name: row.have
            for row in rows
            if row.node is not None and isinstance(row.have, torch.Tensor)
        }
        ties = Ties(probe, self.tolerance, given)
        nudged = cache(lambda: self._run_nudged(flat))
        for i, row in enumerate(rows):
            judgement = self._judge(ties, row)
            if not judgement.ok and isinstance(row.want, torch.Tensor) and self.by_dtype:
                other = self._attempt("what is rounding", nudged, [])
                if other and is_rounding(row.have, row.want, other[i]):
                    judgement = replace(judgement, ok=True, note=f"{judgement.note}, by rounding")
            self._add(row.name, judgement, trial)
            node = row.node
            if not judgement.ok and self.divergence is None and node is not None:
                search = partial(first_divergence, probe, node, self._compare_node)
                self.divergence = self._attempt("where they diverge", search, None)
        return None

    def _attempt(self, what: str, ask: Callable[[], Any], otherwise: object) -> Any:
        """Search intermediate values, which not every program and session can give."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001  of the operators of both sides: any class
            self.notes[f"{what} cannot be found: {_first_line(error)}"] = None
            return otherwise

    def _rows(self, flat: Sequence[object], want: _EagerResult) -> list[_ComparedValue]:
        """Everything that both sides give for some inputs."""
        program, interface = self.program, self.program.interface
        if len(want.results) != len(interface.results):
            count = len(interface.results)
            raise ValueError(f"eager gives {len(want.results)} results, the program {count}")
        began = perf_counter()
        if program.graph.outputs and program.session:
            self.loading += perf_counter() - began
        found = program.compute_outputs(program.inputs_of(_copy_inputs(flat)))
        lowered = program.lowered_program
        nodes: Any = lowered.graph.output_node().args[0]
        specs = list(zip(nodes, lowered.graph_signature.output_specs, strict=True))
        users = [n for n, s in specs if s.kind not in _MUTATIONS]
        changed = {
            (s.kind is _INPUT_MUTATION, s.target): n for n, s in specs if s.kind in _MUTATIONS
        }
        places = [
            s.arg.name
            for s in lowered.graph_signature.input_specs
            if s.kind is InputKind.USER_INPUT
        ]
        rows = []
        results = zip(interface.results, users, want.results, strict=True)
        for i, (result, node, theirs) in enumerate(results):
            node = node if isinstance(node, Node) else None
            if result.kind == "constant":
                if type(theirs) is not type(result.what) or theirs != result.what:
                    rows.append(_ComparedValue(f"result {i}", None, result.what, theirs))
            elif result.kind != "input":
                ours = convert_result(result.kind, found[result.what])
                rows.append(_ComparedValue(result.what, node, ours, theirs))
        for i, name in interface.written.items():
            ours, theirs = convert_like(flat[i], found[name]), want.inputs[i]
            rows.append(_ComparedValue(name, changed[True, places[i]], ours, theirs))
        for own, name in interface.state.items():
            target = interface.weights[own]
            theirs = want.state[target]
            rows.append(
                _ComparedValue(
                    name, changed[False, target], convert_like(theirs, found[name]), theirs
                )
            )
        return rows

    def _compare_node(self, name: str, have: object, want: object) -> Comparison:
        if name in self.random:
            return compare_metadata(have, want)
        return compare_results(have, want, self.tolerance(name))

    def _run_nudged(self, flat: Sequence[object]) -> list[object]:
        """What eager gives for floats of which each is the next one, up or down."""
        inputs = [nudge(x) for x in _copy_inputs(flat)]
        if all(x is y for x, y in zip(inputs, flat, strict=True)):
            return []
        return [row.want for row in self._rows(inputs, self.eager(_copy_inputs(inputs)))]

    def _judge(self, ties: Ties, row: _ComparedValue) -> Comparison:
        node, have = row.node, row.have
        judgement = self._compare_node(node.name if node is not None else "", have, row.want)
        if judgement.ok or node is None or not isinstance(have, torch.Tensor):
            return judgement
        if self._attempt("ties", lambda: ties.excuse(node, have), False):
            return Comparison(
                True, note=f"{judgement.note}, by ties of the floats that they are chosen by"
            )
        return judgement

    def _add(self, name: str, judgement: Comparison, trial: Trial) -> None:
        if not judgement.ok and trial.outcome == "ok":
            trial.outcome, trial.reason = "differs", f"{name}: {judgement.note}"
        known = self.found.get(name)
        before = (
            Comparison(True)
            if known is None
            else Comparison(known.ok, known.max_abs_error, known.max_rel_error, known.note)
        )
        worst = before.combine(judgement)
        first = known.sizes if known is not None and not known.ok else trial.sizes
        self.found[name] = OutputReport(
            name,
            worst.max_abs_error,
            worst.max_rel_error,
            worst.ok,
            worst.note,
            None if worst.ok else first,
        )


def _name_sizes(sizes: Sizes) -> dict[str, int]:
    return {str(s): n for s, n in sizes.items()}


def _first_line(error: Exception, with_class: bool = True) -> str:
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else ""
    return f"{type(error).__name__}: {said}".rstrip(": ") if with_class or not said else said


# Eager


@dataclass(frozen=True)
class _EagerResult:
    """What eager gives: flat results, its flat inputs afterwards, and its state by name."""

    results: list[Any]
    inputs: list[Any]
    state: dict[str, torch.Tensor]


def _make_eager(program: ONNXProgram) -> Callable[[list[Any]], _EagerResult]:
    """The user's own code if it can be run from the beginning, else the captured program."""
    exported, initial = program.exported_program, program.initial_state
    target: Any = program.eager
    usable = target is not None and not any(map(lacks_data, exported.state_dict.values()))
    usable = usable and all(find_holder(target, name) is not None for name in initial)
    in_spec = exported.call_spec.in_spec

    def flatten(results: PyTree) -> list[Any]:
        return pytree.tree_leaves(split_subclasses(results))

    def run(flat: list[object]) -> _EagerResult:
        args, kwargs = pytree.tree_unflatten(flat, in_spec)
        if not usable:
            module, owned = make_runnable(exported, initial)
            with torch.no_grad():
                results = module(*args, **kwargs)
            values = {n: held[last] for n, (held, last) in owned.items()}
            return _EagerResult(flatten(results), flat, values)
        with undo_on_exit(Snapshot((*list_holders(target),)).restore):
            owned = {name: replace_tensor(target, name, t) for name, t in initial.items()}
            with torch.set_grad_enabled(exported.takes_gradients):
                results = call_for_onnx(target, *args, **kwargs)
            values = {n: held[last] for n, (held, last) in owned.items()}
            return _EagerResult(list(map(_detach, flatten(results))), flat, values)

    return run


def _detach(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) and x.requires_grad else x


def _copy_inputs(flat: Sequence[object]) -> list[object]:
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in flat]
