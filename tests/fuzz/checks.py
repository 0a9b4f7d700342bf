"""Running a program every way there is, and comparing with eager.

Eager is the oracle, at the example and at other sizes. A program may be refused, by one of our own
errors or by the checks that `.module()` makes of its inputs; what it gives must be what eager does.
"""

from __future__ import annotations

import io
import json
import math
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import onnxruntime as ort
import torch
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.onnx.emit.model import DIMS_KEY
from graphport.onnx.target.session import to_ort_value, to_tensor
from tests.fuzz.diagnosis import BEYOND, OUTSIDE, Diagnosis, overlap
from tests.fuzz.layouts import ANEW
from tests.fuzz.program import STATE, Program, Sizes, points

# Relative and absolute. Kernels of ONNX Runtime add in another order, and approximate.
CLOSE = {
    torch.float64: (1e-7, 1e-8),
    torch.complex128: (1e-7, 1e-8),
    torch.float32: (1e-4, 2e-5),
    torch.complex64: (1e-4, 2e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (5e-2, 5e-2),
}

CHECKS = re.compile(
    r"Expected input|Runtime assertion failed|Invalid value range|Guard failed|GP\d\d\d"
)
"""What the checks of `.module()` say."""


@dataclass(frozen=True)
class Failure:
    """Something that must not happen."""

    program: str
    route: str
    """Where: captured, decomposed, loaded, onnx, compiled."""
    kind: str
    """difference, raw (an error that is not ours), no line, crash, hang."""
    at: str
    """Sizes and layout."""
    detail: str
    parts: dict[str, Any] = field(default_factory=dict, hash=False)
    """The program as `Program.parts` has it."""

    @property
    def signature(self) -> tuple[str, str, str]:
        """What a smaller program has to share, to fail alike."""
        reason = self.detail.split("\n")[0] if self.kind == "raw" else ""
        return self.route, self.kind, plain(reason)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Tally:
    """What was done."""

    programs: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    """Differences for which eager itself is not certain."""
    accepted: Counter[str] = field(default_factory=Counter)
    """Calls that give a result where eager raises: the value that raises is not used."""
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.programs += other.programs
        self.checks.update(other.checks)
        self.refusals.update(other.refusals)
        self.excused.update(other.excused)
        self.accepted.update(other.accepted)
        self.failures += other.failures


def plain(text: str) -> str:
    """A message without the names and numbers of one program."""
    text = re.sub(r"<program[^>]*>:\d+( in \w+)?", "<line>", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'_'", text)
    text = re.sub(r"\b[a-z]\w*_\d+\b|\b[a-z]\d+\b|\b[bswxyzn]\b", "_", text)
    return re.sub(r"-?\d+(\.\d+)?", "#", text)[:160]


# Eager, and what a run leaves


@dataclass
class Outcome:
    """What a call gives and leaves behind; or the error."""

    values: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    error: Exception | None = None


def outcome(model: Any, args: tuple[torch.Tensor, ...]) -> Outcome:
    """Results, inputs and buffers after a call."""
    try:
        with torch.no_grad():
            results = model(*args)
    except Exception as error:
        return Outcome(error=error)
    leaves = [copied(x) for x in pytree.tree_leaves(results)]
    names = [f"result {i}" for i in range(len(leaves))]
    left = [copied(t) for t in args]
    names += [f"input {i} afterwards" for i in range(len(left))]
    own = dict(model.named_buffers())
    buffers = {n: copied(own[n]) for n in sorted(own) if n.split(".")[0] in STATE}
    return Outcome([*leaves, *left, *buffers.values()], [*names, *buffers])


def copied(x: Any) -> Any:
    return x.detach().resolve_conj().resolve_neg().clone() if isinstance(x, torch.Tensor) else x


@dataclass
class Case:
    """A call: sizes, and what is done to the inputs before it."""

    sizes: Sizes
    anew: str = ""

    def __str__(self) -> str:
        sizes = ", ".join(f"{n}={v}" for n, v in self.sizes.items())
        return f"inputs({sizes})" + (f", {self.anew}" if self.anew else "")


class Checker:
    """One program, on every route."""

    def __init__(self, program: Program, compile_it: bool = False) -> None:
        self.program = program
        self.space = program.compiled()
        self.rng = random.Random(program.name)
        self.tally = Tally(programs=1)
        self.compile_it = compile_it
        self.cases = [Case(p) for p in points(program, self.rng)]
        self.wanted: dict[str, Outcome] = {}
        self.refused: dict[str, str] = {}
        """Cases that `.module()` refuses, and what it says."""

    def inputs(self, case: Case) -> tuple[torch.Tensor, ...]:
        made = self.space["inputs"](**case.sizes)
        changed = ANEW[case.anew](made) if case.anew else made
        assert changed is not None
        return changed

    def eager(self, case: Case) -> Outcome:
        key = str(case)
        if key not in self.wanted:
            args = self.inputs(case)
            model = self.space["Model"]()
            self.wanted[key] = outcome(model, args)
        return self.wanted[key]

    def run(self) -> Tally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._run()
        return self.tally

    def _run(self) -> None:
        if self.eager(self.cases[0]).error is not None:
            self.tally.excused["eager refuses the example"] += 1
            return
        captured = self._captured()
        if captured is None:
            return
        cases = [c for c in self.cases if self.program.allows(c.sizes)]
        anew = [Case(self.rng.choice(cases).sizes, kind) for kind in ANEW]
        anew = [c for c in anew if self._applies(c)]
        some = self.rng.sample(anew, min(len(anew), 3))
        good = self._program(captured, "captured", [*cases, *some])
        if good:
            good = self._decomposed(captured, [*cases, *some[:1]])
        if good:
            self._loaded(captured, [*cases[:2], *some[:1]])
        if good:
            self._onnx(captured, self.cases)
        if good and self.compile_it:
            self._compiled(cases[:3])

    def _applies(self, case: Case) -> bool:
        made = self.space["inputs"](**case.sizes)
        return ANEW[case.anew](made) is not None

    def fail(self, route: str, kind: str, at: Any, detail: str) -> None:
        self.tally.failures.append(
            Failure(self.program.name, route, kind, str(at), detail, self.program.parts)
        )

    # Capture

    def _captured(self) -> gp.ExportedProgram | None:
        """The program with the sizes open as its spec says; else fixed."""
        for dims in self._specs():
            self.program.dims = dims
            self.space = self.program.compiled()
            found = self._guarded("captured", self._export)
            if found is not None or self.tally.failures:
                return found
        return None

    def _export(self) -> gp.ExportedProgram:
        model, args = self.space["Model"](), self.space["inputs"]()
        return gp.export(model, args, dynamic_shapes=self.space["shapes"])

    def _specs(self) -> Iterator[dict[str, str]]:
        """The program's own, then anything that goes, then none."""
        names, own = list(self.program.example), self.program.dims
        tried = []
        for dims in (own, dict.fromkeys(names, "gp.Dim.AUTO"), dict.fromkeys(names, "None")):
            if dims not in tried:
                tried.append(dims)
                yield dims

    def _guarded(self, route: str, make: Callable[[], Any]) -> Any:
        """What it makes; None if it is refused, which is counted, or fails."""
        self.tally.checks[f"{route}: made"] += 1
        try:
            return make()
        except (gp.errors.InternalError, gp.errors.ForwardError) as error:
            # Eager runs it: what the program raises is our doing.
            self.fail(route, "raw", "", describe(error))
        except gp.errors.ExportError as error:
            reason = f"{route}: {type(error).__name__}: {plain(error.what)}"
            self.tally.refusals[reason] += 1
            if not str(error).strip() or not names_line(error, self.program):
                self.fail(route, "no line", "", str(error))
        except Exception as error:
            self.fail(route, "raw", "", describe(error))
        return None

    # Programs

    def _program(self, ep: gp.ExportedProgram, route: str, cases: list[Case]) -> bool:
        """Compare a program with eager; False if it fails."""
        module = ep.module()
        first = {n: t.clone() for n, t in module.named_buffers()}
        for case in cases:
            for name, buffer in module.named_buffers():
                buffer.copy_(first[name])
            found = outcome(module, self.inputs(case))
            if not self._compare(route, case, found):
                return False
        return True

    def _compare(self, route: str, case: Case, found: Outcome) -> bool:
        want = self.eager(case)
        self.tally.checks[route] += 1
        if found.error is not None:
            if want.error is not None:
                return True
            text = describe(found.error)
            if CHECKS.search(text):
                self.refused[str(case)] = text
                self.tally.refusals[f"{route}, at the call: {plain(text.splitlines()[0])}"] += 1
                return True
            return self._raw(route, case, text)
        if want.error is not None:
            reason = plain(describe(want.error).splitlines()[0])
            self.tally.accepted[f"{route}: {reason}"] += 1
            return True
        problem = differs(found, want)
        if problem is None:
            return True
        cause = self._excuse(case, found, want)
        if cause:
            self.tally.excused[f"{route}: {cause}"] += 1
            return True
        self.fail(route, "difference", case, problem)
        return False

    def _raw(self, route: str, case: Case, text: str) -> bool:
        """An error at the call that eager does not raise."""
        for cause in self._causes(case) & {BEYOND, OUTSIDE}:
            self.tally.excused[f"{route}: {cause}"] += 1
            return True
        self.fail(route, "raw", case, text)
        return False

    def _causes(self, case: Case) -> set[str]:
        args, model = self.inputs(case), self.space["Model"]()
        with Diagnosis() as seen:
            outcome(model, args)
        return seen.causes

    def _excuse(self, case: Case, found: Outcome, want: Outcome) -> str:
        """Why eager itself might have given something else; "" if there is no reason."""

        def again(noise: int) -> Outcome:
            args, model = self.inputs(case), self.space["Model"]()
            with Diagnosis(noise):
                return outcome(model, args)

        causes = self._causes(case) - {BEYOND, OUTSIDE}
        if causes:
            return sorted(causes)[0]
        noisy = [again(seed) for seed in range(20)]
        return "rounding" if within(found, want, noisy) else ""

    def _decomposed(self, ep: gp.ExportedProgram, cases: list[Case]) -> bool:
        core = self._guarded("decomposed", ep.run_decompositions)
        return core is not None and self._program(core, "decomposed", cases)

    def _loaded(self, ep: gp.ExportedProgram, cases: list[Case]) -> bool:
        def again() -> gp.ExportedProgram:
            file = io.BytesIO()
            gp.save(ep, file)
            file.seek(0)
            return gp.load(file, allow=("*",))

        back = self._guarded("loaded", again)
        return back is not None and self._program(back, "loaded", cases)

    # ONNX

    def _onnx(self, ep: gp.ExportedProgram, cases: list[Case]) -> None:
        target = "ort" if self.rng.random() < 0.2 else "onnx"
        route = "onnx" if target == "onnx" else "onnx for ort"
        if self.rng.random() < 0.3:
            model, args = self.space["Model"](), self.space["inputs"]()
            shapes = self.space["shapes"]
            make = lambda: gp.onnx.export(model, args, dynamic_shapes=shapes, target=target)
        else:
            make = lambda: gp.onnx.export(ep, target=target)
        program = self._guarded(route, make)
        if program is None:
            return
        try:
            file = File(program)
        except Exception as error:
            self.fail(route, "raw", "loading", describe(error))
            return
        for case in cases:
            if self.eager(case).error is None and not self._depends_on_layout(case):
                self._run_file(route, file, case)

    def _depends_on_layout(self, case: Case) -> bool:
        """Whether the program is for inputs in another layout, which a file knows nothing of."""
        return bool(re.search(r"strides|memory", self.refused.get(str(case), "")))

    def _run_file(self, route: str, file: File, case: Case) -> bool:
        args = self.inputs(case)
        feeds = file.program.inputs_of(list(args))
        sizes = file.sizes(feeds)
        if sizes is None:
            self.tally.checks[f"{route}: not declared"] += 1
            return True
        self.tally.checks[route] += 1
        try:
            found = file.run(feeds, args)
        except Exception as error:
            text = describe(error)
            # What as_strided reads beyond a tensor is not given to a file.
            stopped = re.search(r"Name:'(requires [^']*|as_strided\w*)'", text)
            if stopped is None and any("as_strided" in line for line in self.program.lines):
                stopped = re.search(r"(Gather) node.*element out of data bounds", text)
            if stopped is not None or str(case) in self.refused:
                reason = plain(stopped[1]) if stopped is not None else "fails, as .module() does"
                self.tally.refusals[f"{route}, at the call: {reason}"] += 1
                return True
            return self._raw(route, case, text)
        want = self.eager(case)
        found = file.completed(found, want, args)
        problem = differs(found, want)
        if problem is None:
            return True
        cause = self._excuse(case, found, want)
        if cause:
            self.tally.excused[f"{route}: {cause}"] += 1
            return True
        refused = " (refused by .module())" if str(case) in self.refused else ""
        self.fail(route, "difference", case, problem + refused)
        return False

    # torch.compile

    def _compiled(self, cases: list[Case]) -> None:
        """At several sizes in a row, with one compiled module."""
        torch._dynamo.reset()
        model, ours = self.space["Model"](), self.space["Model"]()
        compiled = torch.compile(ours, backend="graphport")
        for i, case in enumerate(cases):
            want = trained(model, self.inputs(case), model)
            if want.error is not None:
                break
            self.tally.checks["compiled"] += 1
            found = trained(compiled, self.inputs(case), ours)
            if not self._judge_compiled(cases[: i + 1], found, want):
                break
        torch._dynamo.reset()

    def _judge_compiled(self, cases: list[Case], found: Outcome, want: Outcome) -> bool:
        """What a call of the last case gives, after calls of the others."""
        case = cases[-1]
        problem = describe(found.error) if found.error is not None else differs(found, want)
        if problem is None:
            return True
        causes = self._causes(case) - {OUTSIDE}
        torch._dynamo.reset()
        model = self.space["Model"]()
        compiled = torch.compile(model, backend="aot_eager")
        theirs = [trained(compiled, self.inputs(c), model) for c in cases][-1]
        if causes:
            self.tally.excused[f"compiled: {sorted(causes)[0]}"] += 1
        elif theirs.error is not None or differs(theirs, want) is not None:
            self.tally.excused["compiled: torch's own backend differs too"] += 1
        elif self._is_rounding(case, found, want):
            self.tally.excused["compiled: rounding"] += 1
        else:
            kind = "raw" if found.error is not None else "difference"
            self.fail("compiled", kind, case, problem)
            return False
        return True

    def _is_rounding(self, case: Case, found: Outcome, want: Outcome) -> bool:
        if found.error is not None:
            return False

        def again(noise: int) -> Outcome:
            model = self.space["Model"]()
            with Diagnosis(noise):
                return trained(model, self.inputs(case), model)

        return within(found, want, [again(seed) for seed in range(20)])


def trained(
    call: Callable[..., Any], args: tuple[torch.Tensor, ...], model: torch.nn.Module
) -> Outcome:
    """Results, inputs and buffers of a call, and gradients."""
    leaves = [a.clone().requires_grad_() for a in args if a.is_floating_point()]
    given = iter(leaves)
    # A leaf cannot be written to: what is passed on is not one.
    passed = [next(given) * 1 if a.is_floating_point() else a for a in args]
    try:
        results = pytree.tree_leaves(call(*passed))
        _sum_of_floats(results).backward()
    except Exception as error:
        return Outcome(error=error)
    named = {f"result {i}": t for i, t in enumerate(results)}
    named |= {f"input {i} afterwards": t for i, t in enumerate(passed)}
    named |= {f"gradient {i}": leaf.grad for i, leaf in enumerate(leaves)}
    named |= dict(model.named_buffers())
    named |= {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
    found = Outcome([copied(v) for v in named.values()], list(named))
    model.zero_grad()
    return found


def _sum_of_floats(results: list[Any]) -> torch.Tensor:
    """Something to have gradients of, whatever there is."""
    total = torch.zeros((), dtype=torch.float64, requires_grad=True) * 1
    for t in results:
        if isinstance(t, torch.Tensor) and t.is_floating_point() and t.requires_grad:
            total = total + t.double().sum()
    return total


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def names_line(error: Exception, program: Program) -> bool:
    """Whether an error says which line of the program it is about."""
    return program.file in str(error) or isinstance(
        error, (gp.errors.ConstraintViolationError, gp.errors.SpecError)
    )


# The file in bare ONNX Runtime


class File:
    """The bytes of a model, and what they say of the sizes they take."""

    def __init__(self, program: gp.onnx.ONNXProgram) -> None:
        self.program = program
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        data = program.model_proto.SerializeToString()
        self.session = (
            ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            if program.graph.outputs
            else None
        )
        told = {p.key: p.value for p in program.model_proto.metadata_props}
        self.ranges = json.loads(told.get(DIMS_KEY, "{}"))
        self.declared = {
            i.name: i.shape for i in (self.session.get_inputs() if self.session else [])
        }

    def sizes(self, feeds: dict[str, torch.Tensor]) -> dict[str, int] | None:
        """The sizes of inputs by the names that the file has for them; None if it takes others."""
        found: dict[str, int] = {}
        derived: list[tuple[str, int]] = []
        for name, shape in self.declared.items():
            if name not in feeds:
                continue
            if len(shape) != feeds[name].dim():
                return None
            for said, size in zip(shape, feeds[name].shape, strict=True):
                if isinstance(said, int) and said != size:
                    return None
                if isinstance(said, str):
                    if said.isidentifier():
                        if found.setdefault(said, size) != size:
                            return None
                    else:
                        derived.append((said, size))
        for said, size in derived:
            if value_of(said, found) is None and not solve(said, size, found):
                return None
            if value_of(said, found) not in (size, None):
                return None
        for said, (low, high) in self.ranges.items():
            size = value_of(said, found)
            if size is not None and not (low or 0) <= size <= (math.inf if high is None else high):
                return None
        return found

    def run(self, feeds: dict[str, torch.Tensor], args: tuple[torch.Tensor, ...]) -> Outcome:
        """Results, and what the file says that inputs and buffers become."""
        found: dict[str, torch.Tensor] = {}
        if self.session is not None:
            given = {n: to_ort_value(t) for n, t in feeds.items()}
            names = [o.name for o in self.session.get_outputs()]
            values = self.session.run_with_ort_values(names, given)
            found = {n: to_tensor(v).clone() for n, v in zip(names, values, strict=True)}
        interface = self.program.interface
        written = {i: like(args[i], found[name]) for i, name in interface.written.items()}
        flat = [written.get(i, t) for i, t in enumerate(args)]
        results = pytree.tree_leaves(self.program.unflatten_outputs(found, flat))
        named = {f"result {i}": value for i, value in enumerate(results)}
        named |= {f"input {i} afterwards": t for i, t in written.items()}
        named |= {interface.weights[n]: found[new] for n, new in interface.state.items()}
        return Outcome(list(named.values()), list(named))

    def completed(self, found: Outcome, want: Outcome, args: tuple[torch.Tensor, ...]) -> Outcome:
        """With the inputs that the file says nothing of: they are as they were.

        But for those that lie in the memory of one that it writes to: that is the caller's.
        """
        told = dict(zip(found.names, found.values, strict=True))
        kept = {f"input {i} afterwards": t for i, t in enumerate(args)}
        for i, t in enumerate(args):
            if any(overlap(t, args[j]) for j in self.program.interface.written if j != i):
                kept[f"input {i} afterwards"] = want.values[
                    want.names.index(f"input {i} afterwards")
                ]
        values = [told.get(n, kept.get(n, v)) for n, v in zip(want.names, want.values, strict=True)]
        return Outcome(values, want.names)


def like(t: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(pairs) if t.is_complex() else pairs


_WORDS = {
    "Mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "Min": min,
    "Max": max,
    "Eq": lambda a, b: a == b,
    "Ne": lambda a, b: a != b,
    "FloorDiv": lambda a, b: a // b,
    "ceil": math.ceil,
    "floor": math.floor,
}


def value_of(text: str, sizes: dict[str, int]) -> Any:
    """An expression of sizes; None if it has sizes that are not among them."""
    try:
        return eval(text, {"__builtins__": {}}, {**_WORDS, **sizes})
    except (NameError, ZeroDivisionError, SyntaxError):
        return None


def solve(text: str, size: int, sizes: dict[str, int]) -> bool:
    """Find the one size that an expression has and others do not; False if there is none."""
    names = {n for n in re.findall(r"[a-z]\w*", text) if n not in _WORDS} - set(sizes)
    if len(names) != 1:
        return True
    (name,) = names
    for n in range(65):
        if value_of(text, {**sizes, name: n}) == size:
            sizes[name] = n
            return True
    return False


# Comparing


def differs(found: Outcome, want: Outcome) -> str | None:
    """What is different; None if nothing is."""
    if len(found.values) != len(want.values):
        return f"{len(found.values)} values instead of {len(want.values)}: {found.names}"
    for name, have, value in zip(want.names, found.values, want.values, strict=True):
        problem = compare(have, value)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def compare(have: Any, want: Any) -> str | None:
    if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
        same = type(have) is type(want) and (have == want or have != have)
        return None if same else f"{have!r} instead of {want!r}"
    if have.dtype is not want.dtype:
        return f"{have.dtype} instead of {want.dtype}"
    if have.shape != want.shape:
        return f"size {list(have.shape)} instead of {list(want.shape)}"
    same = torch.equal(
        *(t.to(torch.complex64) if t.dtype is torch.complex32 else t for t in (have, want))
    )
    if same or bool((error(have, want) <= allowed(want)).all()):
        return None
    return f"\n{have}\ninstead of\n{want}"


def error(have: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """How far apart numbers are; those that are none are the same, or infinitely far apart."""
    a, b = wide(have), wide(want)
    alike = (a == b) | (a.isnan() & b.isnan())
    far = (a - b).abs().nan_to_num(nan=math.inf)
    return torch.where(alike, torch.zeros(()).double(), far)


def allowed(want: torch.Tensor) -> torch.Tensor:
    rtol, atol = CLOSE.get(want.dtype, (0.0, 0.0))
    size = wide(want).abs().nan_to_num(0, 0, 0)
    return atol * size.max().clamp_min(1.0) + rtol * size


def wide(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t).double() if t.is_complex() else t.double()


def within(found: Outcome, want: Outcome, noisy: list[Outcome]) -> bool:
    """Whether all that differs is within what noise does to eager."""
    if any(n.error is not None or len(n.values) != len(want.values) for n in noisy):
        return True
    for i, (have, value) in enumerate(zip(found.values, want.values, strict=True)):
        if compare(have, value) is None:
            continue
        runs = [n.values[i] for n in noisy]
        if not isinstance(value, torch.Tensor):
            if all(r == value for r in runs):
                return False
            continue
        if any(r.shape != value.shape for r in runs):
            continue
        if have.shape != value.shape or have.dtype is not value.dtype:
            return False
        moved = max(error(r, value).max().item() for r in runs)
        if not bool((error(have, value) <= allowed(value) + 6 * moved).all()):
            return False
    return True


def check(program: Program, compile_it: bool = False) -> Tally:
    return Checker(program, compile_it).run()
