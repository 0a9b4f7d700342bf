"""A program, its inputs and the spec of its sizes, as Python source; and how one is drawn.

A program is written a statement at a time. Each is tried in eager at the example and at other
sizes: it must run at the example, and may fail elsewhere, but seldom does, so that most programs
can be exported with sizes open. What eager does not define (a write to memory that overlaps itself)
is not written.
"""

from __future__ import annotations

import linecache
import random
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.fuzz import operators
from tests.fuzz.diagnosis import BEYOND, Diagnosis
from tests.fuzz.layouts import DTYPES, Input, draw_input, draw_sharing

# State of the module, made where a program uses it.
STATE = {
    "scale": "nn.Parameter(torch.tensor(0.75))",
    "count": "nn.Buffer(torch.zeros((), dtype=torch.int64))",
    "total": "nn.Buffer(torch.zeros(()))",
    "table": "nn.Buffer(torch.arange(12.0).reshape(3, 4) / 6)",
    "linear": "nn.Linear(4, 3)",
    "norm": "nn.LayerNorm(4)",
    "batch": "nn.BatchNorm1d(4)",
    "part": "nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))",
    "gru": "nn.GRU(4, 3, batch_first=True)",
    "attend": "nn.MultiheadAttention(4, 2, batch_first=True)",
}
# Control flow: torch's own, which in eager would compile its branches.
HELPERS = {
    "cond": """
def cond(pred, one, other, operands):
    if torch.compiler.is_compiling():
        return torch.cond(pred, one, other, operands)
    return (one if pred else other)(*operands)
""",
    "while_loop": """
def while_loop(cond, body, carried):
    if torch.compiler.is_compiling():
        return torch._higher_order_ops.while_loop(cond, body, carried)
    while cond(*carried):
        carried = body(*carried)
    return carried
""",
}
SPACE: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, "gp": gp}
for _text in HELPERS.values():
    exec(_text, SPACE)
HEAD = """import torch
import torch.nn.functional as F
from torch import nn
import graphport as gp
"""
FAILURES = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    ZeroDivisionError,
    OverflowError,
    NotImplementedError,
    UserWarning,
    AssertionError,
)
"""What eager may raise at a size or a dtype that a statement does not bear."""

Sizes = dict[str, int]


@dataclass
class Program:
    """Source, and where to run it."""

    name: str
    example: Sizes
    dims: dict[str, str] = field(default_factory=dict)
    """The spec of each size: `gp.Dim("b", min=1)`, `gp.Dim.AUTO`, or `None` where it is fixed."""
    inputs: list[Input] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def file(self) -> str:
        return f"<program {self.name}>"

    @property
    def source(self) -> str:
        names = [i.name for i in self.inputs]
        body = "\n".join([*self.lines, f"return {', '.join(self.results)},"])
        used = [n for n in STATE if re.search(rf"\bself\.{n}\b", body)]
        state = "".join(f"        self.{n} = {STATE[n]}\n" for n in used)
        helpers = "".join(t for n, t in HELPERS.items() if re.search(rf"\b{n}\(", body))
        sizes = ", ".join(f"{n}={v}" for n, v in self.example.items())
        made = "".join(f"    {i.name} = {i.line}\n" for i in self.inputs)
        return (
            f"{HEAD}{helpers}\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        torch.default_generator.manual_seed(0)\n{state}\n"
            f"    def forward(self, {', '.join(names)}):\n{_indented(body, 8)}\n"
            f"def inputs({sizes}):\n    g = torch.Generator().manual_seed(0)\n{made}"
            f"    return {', '.join(names)},\n\n{self._spec()}"
        )

    def _spec(self) -> str:
        if all(text == "None" for text in self.dims.values()):
            return "shapes = None\n"
        named = {n: t for n, t in self.dims.items() if "Dim(" in t}
        lines = [f"{n} = {t}\n" for n, t in named.items()]
        rows = []
        for i in self.inputs:
            row = {k: self._dim(text, named) for k, text in enumerate(i.dims)}
            row = {k: text for k, text in row.items() if text is not None}
            rows.append(f'"{i.name}": {{{", ".join(f"{k}: {t}" for k, t in row.items())}}}')
        return "".join(lines) + f"shapes = {{{', '.join(rows)}}}\n"

    def _dim(self, text: str, named: dict[str, str]) -> str | None:
        """What the spec says of a size of an input."""
        used = [n for n in self.example if re.search(rf"\b{n}\b", text)]
        if not used:
            return None
        return text if used[0] in named else self.dims[used[0]]

    @property
    def parts(self) -> dict[str, Any]:
        """All of it in what JSON has."""
        return asdict(self)

    @classmethod
    def of_parts(cls, parts: dict[str, Any]) -> Program:
        inputs = [Input(**{**i, "dims": tuple(i["dims"])}) for i in parts["inputs"]]
        return cls(**{**parts, "inputs": inputs})

    def compiled(self) -> dict[str, Any]:
        text = self.source
        linecache.cache[self.file] = (len(text), None, text.splitlines(True), self.file)
        space: dict[str, Any] = {"__name__": self.file}
        exec(compile(text, self.file, "exec"), space)
        return space

    def allows(self, sizes: Sizes) -> bool:
        """Whether the spec promises these sizes."""
        for name, text in self.dims.items():
            dim = eval(text, SPACE)
            if dim is None and sizes[name] != self.example[name]:
                return False
            if isinstance(dim, gp.Dim) and not _within(dim, sizes[name]):
                return False
        return True


def _within(dim: Any, size: int) -> bool:
    low = getattr(dim, "min", None) or 0
    high = getattr(dim, "max", None)
    return low <= size and (high is None or size <= high)


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


# Drawing

_PART = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_KINDS = {
    "any": lambda t: True,
    "num": lambda t: t.dtype is not torch.bool and not t.is_complex(),
    "float": lambda t: t.is_floating_point(),
    "int": lambda t: not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool),
    "bool": lambda t: t.dtype is torch.bool,
    "complex": lambda t: t.is_complex(),
}
_NUMBERS = {
    "number": ["0.5", "2", "-1.5", "3", "0.25", "-1", "1"],
    "k": ["1", "2", "2", "3"],
    "pad": ["0", "1", "1", "2"],
    "dtype": ["torch.float32"] * 3
    + ["torch.float64", "torch.int64", "torch.int32", "torch.bool", "torch.float16", "torch.int8"],
    "fdtype": ["torch.float32", "torch.float64", "torch.float16", "torch.bfloat16"],
}


class NothingFits(Exception):
    """There is no tensor of the kind that a template asks for."""


class Draft:
    """A program in the making, with its variables in eager at the example and at other sizes."""

    def __init__(self, rng: random.Random, program: Program, others: list[Sizes]) -> None:
        self.rng = rng
        self.program = program
        self.points = [program.example, *others]
        self.names = [i.name for i in program.inputs]
        self.count = 0
        self.spaces: list[dict[str, Any] | None] = []
        self.restart()

    def restart(self) -> None:
        """Run what there is of the program again, where it ran before."""
        alive = [s is not None for s in self.spaces] or [True] * len(self.points)
        code = [compile(line, "<draft>", "exec") for line in self.program.lines]
        made = "\n".join(f"{i.name} = {i.line}" for i in self.program.inputs)
        first = compile(made, "<draft>", "exec")
        self.spaces = []
        for point, runs in zip(self.points, alive, strict=True):
            space: dict[str, Any] | None = None
            if runs:
                space = {**SPACE, **point, "self": _State(), "g": torch.Generator().manual_seed(0)}
                try:
                    for each in (first, *code):
                        exec(each, space)
                except FAILURES:
                    space = None
            self.spaces.append(space)
        if self.spaces[0] is None and code:  # a statement that runs once only
            self.program.lines.pop()
            self.spaces = []
            self.restart()
        self.names = [n for n in self.names if n in self.example]

    @property
    def example(self) -> dict[str, Any]:
        assert self.spaces[0] is not None
        return self.spaces[0]

    def attempt(self, line: str, new: str | None, writes: bool) -> bool:
        """Keep the statement if eager runs it at the example and, mostly, elsewhere."""
        try:
            code = compile(line, "<draft>", "exec")
        except SyntaxError:
            raise AssertionError(f"a template makes no Python: {line}") from None
        runs: list[dict[str, Any] | None] = []
        for space in self.spaces:
            runs.append(space if space is not None and _runs(code, space, writes) else None)
        lost = sum(s is not None for s in self.spaces) - sum(s is not None for s in runs)
        good = runs[0] is not None and all(_tame(s, new) for s in runs if s is not None)
        if good and (not lost or self.rng.random() < 0.15):
            self.spaces = runs
            self.program.lines.append(line)
            if new is not None:
                self.names.append(new)
            return True
        if writes or new is None:
            self.restart()
        return False

    # Filling of templates

    def fill(self, template: str, drawn: dict[str, str] | None = None) -> str:
        drawn = {} if drawn is None else drawn
        kinds = {name: kind for name, kind in _PART.findall(template) if kind}

        def part(name: str) -> str:
            if name not in drawn and name in kinds:
                drawn[name] = self._draw(kinds[name], part)
            return drawn.get(name, name)

        return _PART.sub(lambda match: part(match[1]), template)

    def _draw(self, kind: str, part: Callable[[str], str]) -> str:
        """What a kind asks for; `part` is what a template has drawn, or draws, under a name."""
        head, *rest = kind.split()
        if head in ("size", "cond"):
            table = operators.SIZE_ROWS if head == "size" else operators.CONDITION_ROWS
            return f"({self.fill(self.rng.choice(table))})"
        if head in _NUMBERS:
            return self.rng.choice(_NUMBERS[head])
        if head in _KINDS:
            return self._tensor(head, rest)
        return getattr(self, f"_{head}")(*map(part, rest))

    def _choose(self, names: list[str]) -> str:
        if not names:
            raise NothingFits
        return self.rng.choice(names[-4:] if self.rng.random() < 0.5 else names)

    def _tensor(self, kind: str, limits: list[str]) -> str:
        fits = [n for n in self.names if _KINDS[kind](self.example[n])]
        for limit in limits:
            fits = [n for n in fits if _fits(self.example[n], limit)]
        return self._choose(fits)

    def _dim(self, x: str) -> str:
        rank = self.example[x].dim()
        return str(self.rng.randrange(-rank, rank))

    def _dim2(self, x: str, d: str) -> str:
        rank = self.example[x].dim()
        others = [i for i in range(-rank, rank) if (i - int(d)) % rank]
        return str(self.rng.choice(others))

    def _alike(self, x: str) -> list[str]:
        return [
            n
            for n in self.names
            if self._everywhere(n, x, lambda a, b: a.shape == b.shape)
            and self.example[n].dtype is self.example[x].dtype
        ]

    def _everywhere(self, n: str, x: str, holds: Any) -> bool:
        return all(holds(s[n], s[x]) for s in self.spaces if s is not None)

    def _same(self, x: str) -> str:
        t = self.example[x]
        made = [f"torch.ones_like({x})", f"{x}.clone()"]
        if t.dim():
            made += [f"{x}.flip(0)", f"{x}.roll(1, -1)"]
        return self.rng.choice([*self._alike(x) * 3, *made])

    def _with(self, x: str) -> str:
        if self.rng.random() < 0.25:
            return self.rng.choice(_NUMBERS["number"])
        numeric = _KINDS["num"]
        fits = [
            n
            for n in self.names
            if numeric(self.example[n]) and self._everywhere(n, x, _broadcasts)
        ]
        return self._choose(fits) if fits else "2"

    def _into(self, x: str) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(["1", "2", "3"])
        dtype = self.example[x].dtype
        fits = [
            n
            for n in self.names
            if torch.can_cast(self.example[n].dtype, dtype) and self._everywhere(n, x, _goes_into)
        ]
        return self._choose(fits) if fits else f"torch.ones_like({x})"

    def _mask(self, x: str) -> str:
        bools = [
            n
            for n in self.names
            if self.example[n].dtype is torch.bool
            and self._everywhere(n, x, lambda a, b: a.shape == b.shape)
        ]
        if bools and self.rng.random() < 0.6:
            return self._choose(bools)
        return x if self.example[x].dtype is torch.bool else f"({x} > 0)"

    def _least(self, x: str, d: str) -> int:
        """The smallest size of a dim, of those that statements are tried at."""
        sizes = [s[x].shape for s in self.spaces if s is not None]
        if any(int(d) >= len(shape) for shape in sizes):  # where a size of 1 was squeezed
            raise NothingFits
        return min((shape[int(d)] for shape in sizes), default=0)

    def _index(self, x: str, d: str) -> str:
        size = self._least(x, d)
        if not size:
            raise NothingFits
        picked = self.rng.sample(range(size), self.rng.randint(1, min(size, 3)))
        return f"torch.tensor({[i if self.rng.random() < 0.8 else i - size for i in picked]})"

    def _nth(self, x: str, d: str) -> str:
        size = self._least(x, d)
        return str(self.rng.randint(-size, max(size - 1, 0)))

    def _at(self, x: str) -> str:
        """What stands in brackets: numbers, slices, None, dots."""
        rng, parts = self.rng, []
        rank = self.example[x].dim()
        for d in range(rng.randint(1, rank)):
            size = self._least(x, str(d))
            kind = rng.choice(["number", "slice", "slice", "all", "none"])
            if kind == "number" and size:
                parts.append(str(rng.randint(-size, size - 1)))
            elif kind == "slice":
                ends = ["", *map(str, range(-size, size + 1))]
                parts.append(f"{rng.choice(ends)}:{rng.choice(ends)}" + rng.choice(["", "", ":2"]))
            elif kind == "none":
                parts += ["None", ":"]
            else:
                parts.append(":")
        if len(parts) < rank and rng.random() < 0.2:
            parts.insert(0, "...")
        return ", ".join(parts)


class _State:
    """The state of a program, made when it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        torch.default_generator.manual_seed(0)
        made = eval(STATE[name], SPACE)
        setattr(self, name, made)
        return made


def _fits(t: torch.Tensor, limit: str) -> bool:
    if limit.startswith("last"):
        return t.dim() > 0 and t.shape[-1] == int(limit[4:])
    rank = int(limit[1:].rstrip("+"))
    return t.dim() >= rank if limit.endswith("+") else t.dim() == rank


def _broadcasts(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a.shape[::-1], b.shape[::-1], strict=False))


def _goes_into(a: torch.Tensor, b: torch.Tensor) -> bool:
    pairs = zip(a.shape[::-1], b.shape[::-1], strict=False)
    return a.dim() <= b.dim() and all(m in (1, n) for m, n in pairs)


def _runs(code: Any, space: dict[str, Any], writes: bool) -> bool:
    try:
        with torch.no_grad():
            if not writes:
                exec(code, space)
                return True
            with Diagnosis() as seen:
                exec(code, space)
    except FAILURES:
        return False
    return not seen.causes - {BEYOND}


LARGEST = {torch.float16: 100.0, torch.bfloat16: 100.0, torch.int8: 100.0, torch.uint8: 200.0}


def _tame(space: dict[str, Any], new: str | None) -> bool:
    """Few numbers, and none that are large: rounding must not be what differs."""
    names = [new] if new is not None else [n for n in space if isinstance(space[n], torch.Tensor)]
    return all(_tame_tensor(space[n]) for n in names)


def _tame_tensor(t: Any) -> bool:
    if not isinstance(t, torch.Tensor) or t.numel() > 600 or t.dim() > 5:
        return False
    if not t.numel() or t.dtype is torch.bool:
        return True
    t = t.detach()
    size = t.abs().max().item()
    return size <= LARGEST.get(t.dtype, 1000.0)


def _sizes(rng: random.Random) -> tuple[Sizes, dict[str, str]]:
    """Sizes by name with their values at the example, and the spec of each."""
    names = rng.choice([[], ["b"], ["b"], ["b", "s"], ["b", "s"], ["b", "s", "w"]])
    values = rng.sample([2, 3, 4, 5, 6], len(names))
    if names and rng.random() < 0.06:
        values[0] = rng.choice([0, 1, 1])
    example = dict(zip(names, values, strict=True))
    kind = rng.choice(["fixed", "open", "range", "range", "auto", "auto"])
    dims = {}
    for name, value in example.items():
        low = rng.choice([n for n in (0, 0, 1, 1, 2) if n <= value])
        high = rng.choice([n for n in (4, 6, 8, 64) if n >= max(value, 1)])
        dims[name] = {
            "fixed": "None",
            "open": f'gp.Dim("{name}")',
            "auto": "gp.Dim.AUTO",
            "range": f'gp.Dim("{name}", min={low}, max={high})',
        }[kind]
    return example, dims


def _inputs(rng: random.Random, program: Program) -> None:
    names = list(program.example)
    for name in ["x", "y", "z"][: rng.choice([1, 2, 2, 2, 3])]:
        earlier = program.inputs[-1] if program.inputs else None
        if earlier is not None and rng.random() < 0.15:
            program.inputs.append(draw_sharing(rng, name, earlier))
            continue
        if earlier is not None and rng.random() < 0.45:
            dims = earlier.dims
            dtype = earlier.dtype if rng.random() < 0.6 else rng.choice(DTYPES)
        else:
            dims = tuple(_dim(rng, names) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])))
            dtype = rng.choice(DTYPES)
        program.inputs.append(draw_input(rng, name, dims, dtype))
    text = " ".join(size for i in program.inputs for size in i.dims)
    for name in names:
        if name not in text:
            del program.example[name], program.dims[name]


def _dim(rng: random.Random, names: list[str]) -> str:
    if names and rng.random() < 0.55:
        name = rng.choice(names)
        return rng.choice([name] * 12 + [f"2*{name}", f"{name} + 1"])
    return rng.choice(["4", "4", "3", "2", "1"])


def generate(seed: int, number: int = 0, without: Collection[str] = ()) -> Program:
    """The program of that number, always the same; `without` some tables of operators."""
    rng = random.Random(f"{seed}:{number}")
    example, dims = _sizes(rng)
    program = Program(f"{seed}:{number}", example, dims)
    _inputs(rng, program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draft = Draft(rng, program, [{n: v + 1 + i for i, (n, v) in enumerate(example.items())}])
        tables = operators.EXPRESSIONS | operators.OTHERS
        tables = {k: v for k, v in tables.items() if k not in without}
        if rng.random() < 0.7:  # what comes after a size that depends on data says less
            tables = {k: v for k, v in tables.items() if k != "data"}
        kinds, weights = list(tables), [w for _, w in tables.values()]
        wanted = rng.randint(2, 10)
        for _ in range(wanted * 8):
            if len(program.lines) == wanted:
                break
            kind = rng.choices(kinds, weights)[0]
            _statement(draft, kind, rng.choice(tables[kind][0]))
    _choose_results(rng, draft)
    return program


def _statement(draft: Draft, kind: str, template: str) -> None:
    new = f"t{draft.count}"
    draft.count += 1
    binds = kind in operators.EXPRESSIONS or "{o}" in template
    try:
        text = draft.fill(template, {"o": new, "u": f"u{draft.count}"})
    except NothingFits:
        return
    line = f"{new} = {text}" if kind in operators.EXPRESSIONS else text
    writes = kind not in operators.EXPRESSIONS
    draft.attempt(line, new if binds else None, writes)


def _choose_results(rng: random.Random, draft: Draft) -> None:
    made = [n for n in draft.names if n.startswith("t")]
    results = [n for n in made if rng.random() < 0.7] or made[-1:] or draft.names[:1]
    results += [n for n in draft.names if not n.startswith("t") and rng.random() < 0.15]
    if rng.random() < 0.15:
        results += [f"{n}.shape[0]" for n in draft.names if draft.example[n].dim()][:1]
    draft.program.results = results


def points(program: Program, rng: random.Random) -> Iterator[Sizes]:
    """Sizes to run at: the example first; then others, 1, 0, all equal, any."""
    yield program.example
    names = list(program.example)
    if not names or all(t == "None" for t in program.dims.values()):
        return
    one = rng.choice(names)
    found = [
        {n: v + 1 + i for i, (n, v) in enumerate(program.example.items())},
        program.example | {one: 1},
        program.example | {one: 0},
        dict.fromkeys(names, 1),
        dict.fromkeys(names, rng.choice([2, 3, 4])),
        {n: rng.randint(0, 7) for n in names},
    ]
    seen = [program.example]
    for point in found:
        if point not in seen:
            seen.append(point)
            yield point
