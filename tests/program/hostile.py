"""Files whose author wants more than a program: hostile text and numbers in every field.

    python -m tests.program.hostile --files 20000 --seed 1

A field of a saved program is replaced, or a name everywhere it occurs, so that the file still
loads; what loads goes through everything that takes a program. Nothing may run, the process stays
as it is, whatever is wrong is one of our errors, and no file takes long. Files are tried in
processes of their own, a batch in each, so that one that ends its process is found too.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import contextlib
import copy
import gc
import io
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.errors import ExportError, SerializationError
from graphport.partition import Device, Partitioner, PartitionerConfig
from graphport.report import make_document
from graphport.report import write as write_report
from graphport.report.document import RENDERERS
from graphport.report.facts import collect_program_facts
from tests.program.mutations import packed, places, unpacked
from tests.program.saved import saved

SECONDS = 2.0
"""Of processor time that a file may take in one consumer."""
MEGABYTES = 200
ADDRESSES = 16 << 30
"""Bytes that a process may ask for: a program may compute large tensors when it is called."""


# Programs with everything that a file can say


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


pytree._register_namedtuple(Pair, serialized_type_name="tests.program.hostile.Pair")


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.linear(x).relu() * scale


class Kept(nn.Module):
    """A module that keeps its signature, called twice, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.other = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.factor = torch.tensor(3.0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.other(self.inner(x, self.factor))
        return {"y": self.inner(y, scale=self.factor), "x": x + self.factor}


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor, options: dict[str, Any], *, scale: float) -> Any:
        y = self.linear(x) * options["weight"] + self.table * scale
        y = torch.cond(y.sum() > 0, lambda y: (y + 1,), lambda y: (y.sin(),), (y,))[0]
        return {"y": y, "sizes": (x.shape[0] * 2 + 1, x.shape[0] // 3), "name": options["name"]}


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 1)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.norm(self.conv(x)), 0.5)


def with_data(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = n.item()
    torch._check(count >= 2)
    torch._check(count <= 20)
    picked = x[x > 0]
    x.mul_(2)
    return picked, torch.ones(count, x.shape[0] * x.shape[1]), x.reshape(-1)[: x.shape[0] ** 2]


def containers(
    pair: Pair, ordered: dict[str, torch.Tensor], rest: list[Any], *, mode: str
) -> tuple[Any, ...]:
    y = pair.a @ pair.b + ordered["first"] * rest[0]
    return Pair(y, y + 1), [y, {"z": y.float()}], mode, rest[1]


def looped(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 2), (n * 0, x))[1]


@cache
def programs() -> dict[str, bytes]:
    torch.manual_seed(0)
    batch, other = gp.Dim("batch", min=2, max=64), gp.Dim("other", min=2)
    x = torch.randn(3, 4)
    ordered = collections.OrderedDict(first=torch.ones(3, 3))
    made = {
        "kept": gp.export(
            Kept(), (x,), dynamic_shapes=({0: batch},), preserve_module_call_signature=("inner",)
        ),
        "branches": gp.export(
            Branches(),
            (x, {"weight": torch.ones(3, 1), "name": "n"}),
            {"scale": 2.0},
            dynamic_shapes={
                "x": {0: batch},
                "options": {"weight": {0: batch}, "name": None},
                "scale": None,
            },
        ),
        "data": gp.export(
            with_data,
            (torch.randn(3, 6), torch.tensor(5)),
            dynamic_shapes=({0: other, 1: 2 * other}, None),
        ),
        "containers": gp.export(
            containers,
            (Pair(torch.ones(3, 4), torch.ones(4, 3)), ordered, [torch.ones(()), 7]),
            {"mode": "fast"},
        ),
        "looped": gp.export(looped, (x, torch.tensor(3))),
        "trained": gp.export(Trained(), (torch.randn(2, 3, 5),), training=True),
        "core": gp.export(Trained(), (torch.randn(2, 3, 5),)).run_decompositions(),
    }
    return {name: saved(ep) for name, ep in made.items()}


# What is put in

CANARY = "gp_canary"
CODE = f"__import__('builtins').{CANARY}()"

PAYLOADS: list[str] = [
    f'x"); {CODE} #',
    f"x'); {CODE} #",
    f'") or {CODE} or ("',
    f"') or {CODE} or ('",
    f'"+str({CODE})+"',
    f"'+str({CODE})+'",
    f'x"]; {CODE}; x["',
    f"x']; {CODE}; x['",
    f"x\n{CODE}\n",
    f"x\n    {CODE}\n    y",
    f"x\n        {CODE}\n",
    f"{{{CODE}}}",
    f"]; {CODE} #",
    f"x = {CODE}",
    f"*{CODE}",
    f"x; {CODE}",
    f"x, y={CODE}",
    f"(lambda: {CODE})()",
    f'forward") and {CODE} and getattr(self, "forward',
    f"\\'); {CODE} #",
    f'\\"); {CODE} #',
    f'"""; {CODE}; """',
    f"'''; {CODE}; '''",
    f"#\n{CODE}",
    f"x\r{CODE}\r",
    f"x\x0c{CODE}",
    f'a.b"); {CODE} #.c',
    f"@{CODE}",
    f'a@1"); {CODE} #',
    f"{CODE}.x",
    CODE,
    f"{CANARY}()",
    "__class__",
    "__dict__",
    "__init__",
    "__getattr__",
    "__call__",
    "__reduce__",
    "__debug__",
    "_modules",
    "_parameters",
    "_compiled",
    "_elsewhere",
    "_original",
    "forward",
    "graph",
    "code",
    "training",
    "self",
    "torch",
    "pytree",
    "class",
    "for",
    "lambda",
    "None",
    "import",
    "print",
    "exec",
    "eval",
    "object",
    "super",
    "L",
    "args",
    "kwargs",
    "L['x']",
    "L['flat_args'][0]",
    "\u00b5",
    "\ufb01",
    "\uff41\uff42",
    "\u0430",
    "e\u0301",
    "\u2028x",
    "\u202ex",
    "\u200bx",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x00",
    "a\x00b",
    "\x08\x08",
    "\ud800",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "a`b",
    "```\n<b>",
    "| a | b |",
    "&lt;",
    "<!--",
    "{0}",
    "{self}",
    "%s%n",
    "$(id)",
    "../../x",
    "/etc/passwd",
    "a b",
    "0",
    "",
    " ",
    ".",
    "..",
    "a..b",
    "a.b",
    "@",
    "a@1",
    "x" * 2000,
    "x" * 200_000,
    "_" * 20_000 + "1",
    "a." * 2000 + "a",
    "(" * 3000,
    "a,b",
    "'",
    '"',
    "\\",
    "\n",
    "aten::from_file",
    "aten::set_",
    "aten::resize_",
    "aten::_reshape_alias",
    "aten::copy_",
    "aten::set_grad_enabled",
    "inductor::_reinterpret_tensor",
    "aten::set_.source_Tensor",
    "aten::as_strided",
    "aten::empty_strided",
    "aten::_fft_c2c",
    "aten::add.out",
    "prims::resize",
    "aten::lstm.input",
    "aten::_ctc_loss",
    "higher_order.cond",
    "higher_order.run_with_rng_state",
    "builtins.eval",
    "builtins.pow",
    "operator.getitem",
    "math.pow",
    "torch.sym_ite",
    "torch._check",
    "os.system",
    "aten::embedding",
    "aten::index.Tensor",
    "aten::gather",
    "aten::arange.start_step",
    "cuda",
    "meta",
    "xla",
    "float64",
    "int8",
    "bool",
    "complex64",
]

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    63,
    64,
    65,
    1000,
    100_000,
    1 << 31,
    1 << 32,
    (1 << 62),
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    1 << 126,
    1 << 200,
    0.5,
    -0.0,
    1e308,
    -1e308,
    1e-320,
    True,
    False,
    None,
    {"float": "nan"},
    {"float": "inf"},
    {"float": "-inf"},
    {"complex": [1, {"float": "nan"}]},
]


def nested(depth: int, kind: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == 0 else {"tuple": [value]} if kind == 1 else {"a": value}
    return value


THINGS: list[Any] = [
    [],
    {},
    [[]],
    [None],
    {"": 1},
    {"node": "x"},
    {"symbolic": 0},
    {"symbolic": 1 << 40},
    {"tuple": []},
    {"data": 0},
    {"tensor": {}},
    {"dict": [[1, 2], [1, 2]]},
    {"device": "cuda:9"},
    {"device": f"cpu:{CODE}"},
    {"operator": "aten::add.Tensor"},
    {"operator": "aten::set_"},
    {"slice": [None, None, None]},
    {"dtype": "qint8"},
    {"dict": [[CODE, CODE]]},
    {"dict": [[{"tuple": [CODE, 1]}, 2]]},
    {"layout": "sparse_coo"},
    [0] * 5000,
    ["x"] * 5000,
    nested(40, 0),
    nested(40, 1),
    nested(200, 0),
    nested(200, 2),
]


def fresh(x: Any) -> Any:
    """A copy of JSON; not by `deepcopy`, which goes less deep."""
    return json.loads(json.dumps(x))


def value(rng: random.Random) -> Any:
    chosen = rng.choices((PAYLOADS, NUMBERS, THINGS), (6, 2, 1))[0]
    return fresh(rng.choice(chosen))


def strings(document: Any) -> list[str]:
    return sorted({c[k] for c, k in places(document) if isinstance(c[k], str)})


def rename(x: Any, old: str, new: str) -> Any:
    """A name everywhere: as it is, and as a part of a path."""
    if isinstance(x, str):
        if x == old:
            return new
        parts = x.split(".")
        return ".".join(new if part == old else part for part in parts) if old in parts else x
    if isinstance(x, list):
        return [rename(y, old, new) for y in x]
    if isinstance(x, dict):
        return {
            k: y if k in ("storage", "op", "kind") else rename(y, old, new) for k, y in x.items()
        }
    return x


_NOT_NAMES = ("format", "version", "producer", "tensors")


def rename_somewhere(document: Any, rng: random.Random) -> Any:
    """Give a name of the program another text, everywhere that it occurs."""
    names = sorted(
        {
            part
            for s in strings({k: v for k, v in document.items() if k not in _NOT_NAMES})
            for part in (s, *s.split("."))
        }
    )
    old, new = rng.choice([n for n in names if n]), rng.choice(PAYLOADS)
    return {k: v if k in _NOT_NAMES else rename(v, old, new) for k, v in document.items()}


def replace_somewhere(document: Any, rng: random.Random) -> Any:
    """Another value, another key, or one more item, at some places."""
    document = fresh(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        container, key = rng.choice(places(document))
        kind = rng.randrange(10)
        if kind == 0 and isinstance(container, dict):
            container[rng.choice(PAYLOADS)] = container.pop(key)
        elif kind == 1 and isinstance(container, list):
            container.insert(key, value(rng))
        elif kind == 2 and isinstance(container, list):
            container.extend(fresh(container[key]) for _ in range(rng.choice((1, 3, 300))))
        elif kind == 3:
            other, at = rng.choice(places(document))
            container[key] = fresh(other[at])
        elif kind == 4 and isinstance(container[key], str):
            text = container[key]
            at = rng.randrange(len(text) + 1)
            container[key] = text[:at] + rng.choice(PAYLOADS) + text[at:]
        else:
            container[key] = value(rng)
    return document


def replace_text(document: Any, rng: random.Random) -> Any:
    """One text or number, by one of its own kind: the likeliest to load."""
    document = fresh(document)
    leaves = [(c, k) for c, k in places(document) if isinstance(c[k], (str, int, float))]
    container, key = rng.choice(leaves)
    texts = isinstance(container[key], str)
    container[key] = fresh(rng.choice(PAYLOADS if texts else NUMBERS))
    return document


CHANGES: dict[str, Callable[[Any, random.Random], Any]] = {
    "rename": rename_somewhere,
    "replace": replace_somewhere,
    "leaf": replace_text,
}


def hostile_file(seed: int) -> tuple[str, bytes]:
    """A file, and what was done to it."""
    rng = random.Random(seed)
    name = rng.choice(sorted(programs()))
    how = rng.choice(sorted(CHANGES))
    document, tensors = unpacked(programs()[name])
    return f"{name} {how}", packed(CHANGES[how](document, rng), tensors)


# Where it goes through

CALL_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    NotImplementedError,
    ArithmeticError,
)
"""What calling a loaded program may raise besides ours: its operators, or checks of its inputs."""


_made: list[Any] = []
"""Modules that were made from a program: called afterwards, for a program may compute for long."""


def _call(program: Any) -> None:
    while _made:
        args, kwargs = copy.deepcopy(program.example_inputs)
        with contextlib.suppress(*CALL_ERRORS, ExportError):
            _made.pop()(*args, **kwargs)


def print_(program: Any) -> str:
    return f"{program}\n{program.graph_signature}\n{program.module_call_graph}"


def module(program: Any) -> str:
    made = program.module()
    _made.append(made)
    shown = made.print_readable(print_output=False)
    program.module(check_guards=False)
    return shown + str(made.code)


def unflatten(program: Any) -> str:
    made = gp.unflatten(program)
    _made.append(made)
    return f"{made}" + "".join(m.code for m in made.modules() if hasattr(m, "code"))


class _Theirs:
    """A module of torch's, whose checks of its inputs are assertions."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(AssertionError, AttributeError, LookupError):
            self.module(*args, **kwargs)


def to_torch(program: Any) -> str:
    theirs = program.to_torch()
    try:
        _made.append(_Theirs(theirs.module()))
    except (SyntaxError, NameError):
        raise
    except Exception as error:  # noqa: BLE001  torch's own, about a program that it cannot run
        return str(type(error))
    return ""


def decompose(program: Any) -> str:
    made = program.run_decompositions()
    _made.append(made.module())
    return str(made)


def export_again(program: Any) -> str:
    args, kwargs = copy.deepcopy(program.example_inputs)
    return str(gp.export(program.module(), args, kwargs))


def to_onnx(program: Any) -> str:
    made = gp.onnx.export(program)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".md", ".html", ".txt"):
            path = Path(folder) / f"report{suffix}"
            write_report(made, path)
            _check_page(path.read_text(), suffix)
    return ""


def partition(program: Any) -> str:
    devices = [Device("a", 1 << 30, 0), Device("b", 1 << 30, 1)]
    result = Partitioner().partition_graph(program, nn.Module(), PartitionerConfig(devices))
    _made.append(result.module_with_submodules)
    return str(result.dag)


def report(program: Any) -> str:
    document = make_document("title", collect_program_facts(program))
    for suffix, render in RENDERERS.items():
        _check_page(render(document), suffix)
    return RENDERERS[".txt"](document)


def inspect(data: bytes) -> str:
    from graphport.cli import main

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.gpx"
        path.write_bytes(data)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(["inspect", str(path), "--graph", "--depth", "9"])
    text = out.getvalue() + err.getvalue()
    assert "This is a bug" not in text, text[:500]
    return text


def save_again(program: Any) -> str:
    gp.save(program, io.BytesIO())
    return ""


CONSUMERS: dict[str, Callable[[Any], str]] = {
    "print": print_,
    "module": module,
    "unflatten": unflatten,
    "to_torch": to_torch,
    "decompose": decompose,
    "export again": export_again,
    "onnx": to_onnx,
    "partition": partition,
    "report": report,
    "save": save_again,
}
SHOWN = ("print", "module", "unflatten", "report")
"""Those that make text for a terminal."""
_CONTROL = frozenset(map(chr, (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x200B)))


def _check_page(text: str, suffix: str) -> None:
    if suffix != ".txt":
        assert "<script" not in text, f"a script in {suffix}"
        assert "<img" not in text, f"an image in {suffix}"
    if suffix == ".md":
        assert "](javascript" not in text, f"a link in {suffix}"
    _check_terminal(text)


def _check_terminal(text: str) -> None:
    found = _CONTROL.intersection(text)
    assert not found, f"control characters in what is shown: {sorted(found)}"


# What must not happen


class Escaped(Exception):
    """Something of a file has run."""


def process_state() -> dict[str, Any]:
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "call": nn.Module.__call__,
        "path": list(sys.path),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "builtins": set(vars(builtins)),
        "anomaly": torch.is_anomaly_enabled(),
        "denormal": float(torch.tensor(1e-40) * 1),
    }


@contextlib.contextmanager
def watched(seconds: float | None) -> Iterator[None]:
    """Nothing of a file runs, the process does not change and, given seconds, nothing is large."""
    ran: list[str] = []
    setattr(builtins, CANARY, lambda: ran.append("".join(traceback.format_stack(limit=3))))
    before = process_state()

    def stop(*_: Any) -> None:
        raise TimeoutError("took too long")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 30 * (seconds or 1.0))
    memory, start = _peak_memory(), time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        took, used = time.process_time() - start, _peak_memory(reset=False) - memory
        after = process_state()
        delattr(builtins, CANARY)
        if ran:
            raise Escaped(f"code of the file has run:\n{ran[0]}")
        changed = [k for k in before if before[k] != after[k]]
        if changed:
            raise Escaped(f"the process has changed: {changed}")
    if seconds is not None and took > seconds:
        raise TimeoutError(f"{took:.1f} s")
    if seconds is not None and used > MEGABYTES:
        raise MemoryError(f"{used:.0f} MB")


def _peak_memory(*, reset: bool = True) -> float:
    """The most memory of this process since the last reset, in MB; at a reset, what it has now."""
    if reset:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return float(lines["VmHWM"].split()[0]) / 1000


@dataclass
class Outcome:
    """What became of a file: which consumers took it, and which refused it."""

    loaded: bool
    refused: tuple[str, ...] = ()


def try_file(data: bytes, consumers: Any = tuple(CONSUMERS), seconds: float = SECONDS) -> Outcome:
    """Put a file through consumers; raises for whatever must not happen."""
    program = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watched(seconds), contextlib.suppress(SerializationError):
            program = gp.load(io.BytesIO(data))
        if program is None:
            return Outcome(False)
        refused = []
        for name in consumers:
            try:
                with watched(seconds):
                    text = inspect(data) if name == "inspect" else CONSUMERS[name](program)
                    if name in SHOWN or name == "inspect":
                        _check_terminal(text)
                with watched(None), contextlib.suppress(TimeoutError):
                    _call(program)
            except ExportError as error:
                _check_terminal(str(error))
                refused.append(name)
            except BaseException as error:
                error.add_note(f"consumer: {name}")
                raise
            finally:
                _made.clear()
    return Outcome(True, tuple(refused))


QUICK = ("print", "module", "unflatten", "report", "save")
SLOW = ("to_torch", "decompose", "export again", "onnx", "partition", "inspect")


def chosen(seed: int, everything: bool) -> tuple[str, ...]:
    """The quick consumers for every file, and of the slow ones two each, or all."""
    rng = random.Random(-seed)
    return (*QUICK, *(SLOW if everything else rng.sample(SLOW, 2)))


# In batches


@cache
def warm_up() -> None:
    """Good files through everything: what is loaded and cached at first use is no change."""
    for data in programs().values():
        for name in (*CONSUMERS, "inspect"):
            with contextlib.suppress(ExportError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inspect(data) if name == "inspect" else CONSUMERS[name](gp.load(io.BytesIO(data)))
    _made.clear()


def _batch(seeds: list[int], everything: bool, done: Any) -> None:
    gc.freeze()  # what the parent has is not gone through in the time of a file
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    for seed in seeds:
        how, data = hostile_file(seed)
        done.send(("begin", seed, how))
        try:
            outcome = try_file(data, chosen(seed, everything))
        except BaseException as error:  # noqa: BLE001  that is what is looked for
            text = "".join(traceback.format_exception(error))
            done.send(("failed", seed, f"{how}: {type(error).__name__}: {error}", text))
        else:
            done.send(("loaded" if outcome.loaded else "refused", seed, outcome.refused))
    done.send(("end",))


def run(count: int, seed: int, *, everything: bool = False, batch: int = 250) -> dict[str, Any]:
    """Try files; counts of what became of them, and what failed."""
    warm_up()
    counts: collections.Counter[str] = collections.Counter()
    failures: list[tuple[int, str, str]] = []
    todo = [seed * 1_000_000 + i for i in range(count)]
    context = multiprocessing.get_context("fork")
    while todo:
        part, todo = todo[:batch], todo[batch:]
        while part:
            here, there = context.Pipe(False)
            child = context.Process(target=_batch, args=(part, everything, there))
            child.start()
            there.close()
            current = part[0]
            finished = False
            with contextlib.suppress(EOFError):
                while True:
                    kind, *rest = here.recv()
                    if kind == "end":
                        finished = True
                        break
                    current = rest[0]
                    if kind == "failed":
                        failures.append((rest[0], rest[1], rest[2]))
                        print(f"seed {rest[0]}: {rest[1][:300]}", flush=True)
                    if kind != "begin":
                        counts[kind] += 1
                    if kind == "loaded":
                        counts.update(f"{name} refused" for name in rest[1])
            child.join()
            if finished:
                break
            failures.append((current, f"the process ended: {child.exitcode}", ""))
            print(f"seed {current}: the process ended with {child.exitcode}", flush=True)
            part = part[part.index(current) + 1 :]
    return {"counts": dict(counts), "failures": failures}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="every consumer for every file")
    parser.add_argument("--one", type=int, metavar="SEED", help="one file, with its traceback")
    options = parser.parse_args()
    if options.one is not None:
        warm_up()
        how, data = hostile_file(options.one)
        print(how, try_file(data, chosen(options.one, options.all)))
        return 0
    found = run(options.files, options.seed, everything=options.all)
    print(json.dumps(found["counts"], indent=2))
    print(f"{len(found['failures'])} failures")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
