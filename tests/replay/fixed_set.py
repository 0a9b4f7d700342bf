"""What `make replay` exports: programs of every kind, errors, commands; each gives named parts.

Each commit runs the set that it has itself, on public names.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.testing._internal.common_methods_invocations import op_db

import graphport as gp
from examples import mobilenet, resnet
from tests.capture import test_errors, violations
from tests.capture.programs import compiled
from tests.capture.soundness import test_data_dependent_errors
from tests.capture.spec import test_errors as test_spec_errors
from tests.cli.helpers import MODELS
from tests.fuzz.program import generate
from tests.models import zoo

torch.manual_seed(0)  # for the inputs that the next one makes
from tests.models.test_vision import SMALL  # noqa: E402

RANDOM_SEED, RANDOM_PROGRAMS = 18, 600

Parts = Iterator[tuple[str, bytes]]
"""Names of files, and what stands in them."""


@dataclass
class Program:
    """A model with inputs and a spec."""

    make: Callable[[], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    shapes: Any = None

    def parts(self) -> Parts:
        model = self.make()
        exported: list[gp.ExportedProgram] = []

        def capture() -> str:
            exported.append(gp.export(model, self.args, self.kwargs, dynamic_shapes=self.shapes))
            return show_program(exported[0])

        yield "captured.txt", attempt(capture)
        if not exported:
            return
        (ep,) = exported
        yield "program.gpx", attempt(lambda: save_program(ep))
        yield "decomposed.txt", attempt(lambda: show_program(ep.run_decompositions()))
        yield "unflattened.txt", attempt(lambda: show_modules(gp.unflatten(ep)))
        yield "torch.txt", attempt(lambda: str(ep.to_torch()))
        for target in ("onnx", "ort"):
            yield f"{target}.onnx", attempt(lambda target=target: save_onnx(ep, target))


def attempt(make: Callable[[], str | bytes]) -> bytes:
    """What it makes, or the error, or the warnings that come with it."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = make()
        except Exception as error:
            made = f"{type(error).__name__}: {error}"
    told = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    data = made if isinstance(made, bytes) else made.encode()
    return data + "".join(f"\n# {text}" for text in told).encode()


def show_program(ep: gp.ExportedProgram) -> str:
    lines = [str(ep), repr(ep.graph_signature), str(ep.range_constraints), repr(ep.call_spec)]
    for module in ep.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            lines += [f"{n.name} {n.target} {show_meta(n)}" for n in module.graph.nodes]
    return without_addresses("\n".join(lines))


def show_meta(node: fx.Node) -> str:
    keys = ("val", "stack_trace", "nn_module_stack", "torch_fn")
    return " ".join(f"{k}={node.meta[k]!r}" for k in keys if k in node.meta)


def show_modules(module: nn.Module) -> str:
    shown = [
        f"{name}: {child.code}"
        for name, child in module.named_modules()
        if isinstance(getattr(child, "graph", None), fx.Graph) and hasattr(child, "code")
    ]
    return without_addresses("\n".join([str(module), *shown]))


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]{6,}", "0x", text)


def save_program(ep: gp.ExportedProgram) -> bytes:
    file = io.BytesIO()
    gp.save(ep, file)
    return file.getvalue()


def save_onnx(ep: gp.ExportedProgram, target: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        gp.onnx.export(ep, target=target).save(path, external_data=False)
        return path.read_bytes()


@dataclass
class Text:
    """One text: of an error, a graph, or a command."""

    make: Callable[[], str]

    def parts(self) -> Parts:
        yield "text.txt", attempt(self.make)


Item = Program | Text


def seeded(make: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        torch.manual_seed(0)
        return make()

    return build


# Programs


def models() -> Iterator[tuple[str, Item]]:
    for name, row in zoo.ROWS.items():
        inputs = row.inputs(2, row.lengths[0])
        build = seeded(lambda row=row: zoo.build(row))
        yield f"static/{name}", Program(build, (), inputs)
        if row.dynamic:
            yield f"dynamic/{name}", Program(build, (), inputs, zoo.spec(row, gp.Dim))
    for name, (make, (sizes,), (first, *_)) in SMALL.items():
        build = seeded(lambda make=make: make().eval())
        yield f"dynamic/{name}", Program(build, tuple(first), {}, (sizes,))
    for name, make in (("resnet50", resnet.resnet50), ("mobilenet", mobilenet.mobilenet_v3_small)):
        image = torch.ones(2, 3, 64, 64)
        build = seeded(lambda make=make: make().eval())
        yield f"dynamic/{name}", Program(build, (image,), {}, (resnet.spec(gp.Dim)["image"],))


def operators() -> Iterator[tuple[str, Item]]:
    """The first samples of PyTorch's database of operators, with open sizes."""
    for op in op_db:
        name = f"{op.name}{op.variant_test_name and '.'}{op.variant_test_name}"
        dtype = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), None)
        if dtype is not None:
            yield f"operators/{name.replace('/', '_')}", Samples(op, dtype)


@dataclass
class Samples:
    """Some samples of an operator, as one item: finding them takes longer than exporting."""

    op: Any
    dtype: torch.dtype
    count: int = 2

    def parts(self) -> Parts:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = iter(self.op.sample_inputs("cpu", self.dtype, requires_grad=False))
            found = [s for s, _ in zip(samples, range(self.count), strict=False)]
        for number, sample in enumerate(found):
            if not isinstance(sample.input, torch.Tensor):
                continue
            call = lambda x, sample=sample: self.op.op(x, *sample.args, **sample.kwargs)
            shapes = (dict.fromkeys(range(sample.input.dim()), gp.Dim.AUTO),)
            program = Program(lambda call=call: call, (sample.input,), {}, shapes)
            for part, data in program.parts():
                yield f"{number}.{part}", data


def random_programs() -> Iterator[tuple[str, Item]]:
    for number in range(RANDOM_PROGRAMS):
        yield f"random/{number}", Random(number)


@dataclass
class Random:
    number: int

    def parts(self) -> Parts:
        program = generate(RANDOM_SEED, self.number)
        space = program.compiled()
        yield "program.py", program.source.encode()
        yield from Program(space["Model"], space["inputs"](), {}, space["shapes"]).parts()


# Errors


def errors() -> Iterator[tuple[str, Item]]:
    for name, violation in violations.CASES.items():
        yield (
            f"errors/sizes/{name}",
            Text(
                lambda c=violation: raised(
                    compiled(c.code, "program.py")["f"],
                    c.args,
                    c.kwargs,
                    dynamic_shapes=c.dynamic_shapes,
                    guards=c.guards,
                )
            ),
        )
    for name, case in test_data_dependent_errors.CASES.items():
        yield (
            f"errors/data/{name}",
            Text(
                lambda c=case: raised(
                    compiled(c.code, "program.py")["f"], c.args, dynamic_shapes=c.dynamic_shapes
                )
            ),
        )
    for name, (args, spec, _) in test_spec_errors.MALFORMED.items():
        yield (
            f"errors/spec/{name}",
            Text(
                lambda args=args, spec=spec: raised(
                    test_spec_errors.program, args, dynamic_shapes=spec
                )
            ),
        )
    for function in test_errors.GOLDEN:
        model = test_errors.Model(function)
        yield (
            f"errors/program/{function.__name__}",
            Text(lambda model=model: raised(model, (test_errors.x(),))),
        )


def raised(*args: Any, **options: Any) -> str:
    """The text of the error without line numbers, which change with the file it is raised from."""
    try:
        gp.export(*args, **options)
    except gp.errors.ExportError as error:
        return re.sub(r"(\w+\.py):\d+", r"\1:N", f"{type(error).__name__}\n{error}")
    return "exported"


# The graph toolkit and the partitioner


def toolkit() -> Iterator[tuple[str, Item]]:
    for name, work in GRAPH_WORK.items():
        for model in ("resnet", "mlp"):
            yield f"fx/{name}/{model}", Text(lambda work=work, model=model: work(*TRACED[model]()))


def _resnet() -> tuple[fx.GraphModule, torch.Tensor]:
    torch.manual_seed(0)
    return fx.symbolic_trace(resnet.resnet50().eval()), torch.ones(1, 3, 64, 64)


def _mlp() -> tuple[fx.GraphModule, torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.ReLU(), nn.Linear(16, 4))
    return fx.symbolic_trace(layers.eval()), torch.ones(2, 8)


TRACED = {"resnet": _resnet, "mlp": _mlp}


def _shapes(gm: fx.GraphModule, x: torch.Tensor) -> str:
    gp.fx.ShapeProp(gm).propagate(x)
    return "\n".join(f"{n.name} {n.meta.get('tensor_meta')}" for n in gm.graph.nodes)


def _normal(gm: fx.GraphModule, x: torch.Tensor) -> str:
    gp.fx.ShapeProp(gm).propagate(x)
    return str(gp.fx.NormalizeArgs(gm).transform().graph)


def _split(gm: fx.GraphModule, x: torch.Tensor) -> str:
    numbers = {n.name: i // 4 for i, n in enumerate(gm.graph.nodes)}
    return show_modules(gp.fx.split_module(gm, gm, lambda n: numbers[n.name]))


def _partition(gm: fx.GraphModule, x: torch.Tensor) -> str:
    gp.fx.get_size_of_all_nodes(gm, (x,))
    devices = [gp.partition.Device(f"d{i}", 2**30, i) for i in range(2)]
    config = gp.partition.PartitionerConfig(devices, gp.partition.PartitionMode.size_based)
    result = gp.partition.Partitioner().partition_graph(gm, gm, config)
    return show_modules(result.module_with_submodules) + str(result.dag.nodes)


GRAPH_WORK: dict[str, Callable[[fx.GraphModule, torch.Tensor], str]] = {
    "shape_prop": _shapes,
    "normalize": _normal,
    "split": _split,
    "partition": _partition,
    "fuse": lambda gm, x: show_modules(gp.fx.fuse(gm)),
    "remove_dropout": lambda gm, x: show_modules(gp.fx.remove_dropout(gm)),
    "merge_matmul": lambda gm, x: show_modules(gp.fx.merge_matmul(gm)),
}


# The command line

COMMANDS = {
    "export": "export models.py:complete -o m.onnx --verify --json --report report.md",
    "export for ort": "export models.py:build -o o.onnx --target ort --dynamic x:0=b[1..64] --json",
    "export fails": "export models.py:unsupported -o u.onnx --input x=f32[2,2] --json",
    "export broken": "export models.py:broken -o u.onnx",
    "export of sizes": "export models.py:needs_two -o u.onnx --input x=f32[3] --dynamic x:0=n",
    "inspect": "inspect m.onnx --json",
    "inspect as text": "inspect m.onnx",
    "verify": "verify m.onnx --against models.py:complete --json",
    "usage": "export models.py:build",
    "help": "--help",
}


def commands() -> Iterator[tuple[str, Item]]:
    yield "cli", Commands()


class Commands:
    """All in one folder, one after the other: what the first writes, others read."""

    def parts(self) -> Parts:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("models.py").write_text(MODELS)
            for name, line in COMMANDS.items():
                yield f"{name}.txt", run_command(line).replace(folder, ".").encode()
            report = without_times(Path("report.md").read_text())
            yield "report.md", report.replace(folder, ".").encode()


def run_command(line: str) -> str:
    """What a command prints, and its exit code."""
    out = io.StringIO()
    argv, path = sys.argv, list(sys.path)
    sys.argv = ["graphport", *line.split()]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            runpy.run_module("graphport", run_name="__main__")
        code: Any = 0
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules.pop("models", None)
    return f"{without_times(out.getvalue())}\nexit code {code}\n"


def without_times(text: str) -> str:
    """Also without errors of rounding, which another machine makes otherwise."""
    with contextlib.suppress(ValueError):
        data = json.loads(text)
        data.pop("timings", None)
        text = json.dumps(data, indent=2)
    text = re.sub(r"\d+(\.\d+)? (ms|s|µs)\b", "N s", text)
    return re.sub(r"\d+(\.\d+)?e-\d+", "Ne-N", text)


def items() -> Iterable[tuple[str, Any]]:
    for kind in (models, operators, random_programs, errors, toolkit, commands):
        yield from kind()
