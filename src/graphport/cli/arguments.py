"""The command line: commands, options and their help, and the values of `--sizes`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, TypeAlias

from graphport.errors import UsageError


def parse_verify_options(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of the sizes to try."""
    if options.limit and options.no_other_sizes:
        raise UsageError("--limit asks for other sizes, --no-other-sizes for none", fix="one")
    return {
        "sizes": parse_sizes(options.sizes),
        "limit": options.limit,
        "other_sizes": not options.no_other_sizes,
    }


def parse_sizes(texts: Sequence[str]) -> list[dict[str, int]]:
    """Each combination of the sizes that a text lists.

    >>> parse_sizes(["batch=1,7,length=16"])
    [{'batch': 1, 'length': 16}, {'batch': 7, 'length': 16}]
    """
    found: list[dict[str, int]] = []
    for text in texts:
        listed: dict[str, list[int]] = {}
        name = ""
        for part in text.split(","):
            before, equals, size = (p.strip() for p in part.rpartition("="))
            if equals:
                name = before
                if not name or name in listed:
                    raise _sizes_syntax_error(text)
            if not name or not size.isdecimal():
                raise _sizes_syntax_error(text)
            listed.setdefault(name, []).append(int(size))
        found += [
            dict(zip(listed, some, strict=True)) for some in itertools.product(*listed.values())
        ]
    return found


def _sizes_syntax_error(text: str) -> UsageError:
    return UsageError(
        "sizes that cannot be read",
        where=f'--sizes "{text}"',
        fix='NAME=SIZE[,SIZE ...][,NAME=SIZE ...], such as "batch=1,7,length=16"',
    )


# Commands, options and their help.

MODELS = """\
MODEL is one of
  PKG.MODULE:NAME    an object of an importable module
  FILE.py:NAME       an object of a Python file
  PROGRAM.gpx        a program written by gp.save; it has its inputs and dynamic sizes already
and NAME is one of
  an nn.Module, or a class of them that needs no arguments
  a function without required arguments that returns a model, or
      (model, args), (model, args, kwargs), (model, args, kwargs, dynamic_shapes)
  a function of tensors: it is exported itself
An nn.Module is put into evaluation mode.

Example inputs come from --input, from --inputs, from what NAME returns, or from a function
example_inputs() beside NAME, in this order. Only their sizes and types matter to an export.
Where there are none, verify draws inputs as the ONNX file declares them.

--input NAME=VALUE, once for each parameter of forward:
  "x=f32[2,3,224,224]"      random; f16 bf16 f32 f64 i8 i16 i32 i64 u8 bool c64 c128
  "ids=i64[2,16](0..999)"   integers of a range; without one they are 0 and 1
  "scale=0.5"               a number, true, false, none or a 'text'

--inputs takes an .npz or .safetensors file with an entry for each parameter, or the name of a
function beside NAME (or PKG.MODULE:NAME) that returns a tensor, a tuple of the positional
arguments, or a dict by parameter name.

--dynamic INPUT:AXIS=SIZE[,AXIS=SIZE ...], once for each input with dynamic sizes:
  "x:0=batch"               any size; the same name elsewhere is the same size
  "x:0=batch[1..64],1=seq"  from 1 to 64; [1..] and [..64] leave an end open
  "y:1=2*seq+1"             a multiple of another size, and more
  "x:0=auto"                whatever the model allows, a constant if need be; "dynamic" may not be
  "cache.0.1:2=past"        a tensor within lists, tuples and dicts
  "steps=n"                 an int that may vary; "scale=dynamic" for a float
"""

EXPORT = """\
examples:
  graphport export models.py:build -o model.onnx --dynamic "ids:0=batch,1=seq" --verify
  graphport export torch.nn:ReLU -o relu.onnx --input "input=f32[2,3]" --dynamic "input:0=batch"
  graphport export program.gpx -o model.onnx --target ort --report report.html
"""

DEVICES = """\
--devices is a TOML file:
  transfer = "10 GB/s"     between two devices (default)

  [[devices]]
  name = "gpu"
  memory = "16 GB"         kB MB GB TB, KiB MiB GiB TiB, or a number of bytes
  count = 4                that many of them (default: 1)

example:
  graphport partition program.gpx --devices devices.toml --svg partitions.svg
"""

BENCH = """\
examples:
  graphport bench program.gpx
  graphport bench models.py:build --threads 1 --no-inductor --json
"""

RUN = """\
What graphport refuses goes on to torch.onnx, with a line on standard error that says why. The exit
code is the script's.

examples:
  graphport run export.py --checkpoint weights.pt
  graphport run --verify export.py
"""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
EXIT_CODES = "exit codes: 0 done; 1 the export or a check failed; 2 the command line is at fault"


def build_parser() -> argparse.ArgumentParser:
    top = _make_parser(
        argparse.ArgumentParser,
        prog="graphport",
        epilog=EXIT_CODES,
        description="Export PyTorch models to ONNX; inspect, verify, benchmark and partition them.",
    )
    top.add_argument("--version", action="version", version=f"graphport {_get_version()}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_export, _add_run, _add_inspect, _add_verify, _add_partition, _add_bench):
        add(commands)
    _add_doctor(commands)
    return top


def _add_export(commands: Commands) -> None:
    command = _add_command(
        commands, "export", "a model as an ONNX file", f"{MODELS}\n{EXPORT}\n{EXIT_CODES}"
    )
    command.add_argument("model", metavar="MODEL", help="what to export: see below")
    _add_allow(command)
    command.add_argument("-o", "--output", metavar="FILE.onnx", required=True)
    _add_inputs(command)
    command.add_argument(
        "--target",
        choices=("onnx", "ort"),
        default="onnx",
        help="onnx: standard operators only (default); ort: those of ONNX Runtime "
        "too, where they are faster",
    )
    command.add_argument(
        "--opset",
        type=int,
        metavar="N",
        help="default: 24; for ort, the newest that the installed ONNX Runtime supports",
    )
    command.add_argument(
        "--verify",
        action="store_true",
        help="compare with PyTorch, at the example sizes and at others",
    )
    _add_sizes(command)
    command.add_argument(
        "--external-data",
        action="store_true",
        help="weights in a second file beside it, FILE.*.data (default: from 1.5 GB on)",
    )
    command.add_argument(
        "--weights",
        metavar="FILE|FOLDER",
        help="weights of a model that was built without them (gp.fake_mode): "
        ".safetensors, .pt, .bin, or a sharded checkpoint",
    )
    command.add_argument("--report", metavar="FILE", help="write a report: .html, .md or .txt")


def _add_inspect(commands: Commands) -> None:
    command = _add_command(
        commands, "inspect", "what an ONNX file or a saved program holds", EXIT_CODES
    )
    command.add_argument("file", metavar="FILE", help="model.onnx or program.gpx")
    _add_allow(command)
    command.add_argument("--graph", action="store_true", help="every node too")
    command.add_argument(
        "--depth", type=int, default=2, metavar="N", help="levels of modules to list (default: 2)"
    )


def _add_verify(commands: Commands) -> None:
    command = _add_command(
        commands,
        "verify",
        "an ONNX file against the model that it was made from",
        f"{MODELS}\n{EXIT_CODES}",
    )
    command.add_argument("file", metavar="FILE.onnx")
    command.add_argument(
        "--against", metavar="MODEL", required=True, help="the model in PyTorch: see below"
    )
    _add_allow(command)
    _add_inputs(command)
    command.add_argument(
        "--rtol", type=_parse_tolerance, metavar="X", help="relative error that is accepted"
    )
    command.add_argument(
        "--atol", type=_parse_tolerance, metavar="X", help="absolute error that is accepted"
    )
    _add_sizes(command)


def _add_partition(commands: Commands) -> None:
    command = _add_command(
        commands, "partition", "a model over several devices", f"{DEVICES}\n{MODELS}\n{EXIT_CODES}"
    )
    command.add_argument("model", metavar="MODEL", help="what to partition: see below")
    _add_allow(command)
    command.add_argument("--devices", metavar="FILE.toml", required=True)
    _add_inputs(command)
    command.add_argument(
        "--mode",
        choices=("size_based", "sparse_nn", "cost_aware", "kl_based", "optimal"),
        default="optimal",
        help="algorithm (default: optimal); the last three profile the operators first",
    )
    command.add_argument(
        "--objective",
        choices=("bottleneck", "latency"),
        default="bottleneck",
        help="bottleneck: most micro-batches per second (default); latency: soonest result",
    )
    command.add_argument(
        "--saturate-host", action="store_true", help="replicate partitions on idle devices"
    )
    command.add_argument(
        "--runs", type=_parse_positive, default=5, metavar="N", help="runs to measure (default: 5)"
    )
    command.add_argument("--svg", metavar="FILE", help="write a picture of the result")


def _add_bench(commands: Commands) -> None:
    command = _add_command(
        commands,
        "bench",
        "eager, torch.compile and ONNX Runtime side by side",
        f"{BENCH}\n{MODELS}\n{EXIT_CODES}",
    )
    command.add_argument("model", metavar="MODEL", help="what to run: see below")
    _add_allow(command)
    _add_inputs(command)
    command.add_argument(
        "--threads", type=_parse_positive, metavar="N", help="threads of each (default: PyTorch's)"
    )
    command.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="to measure each (default: 2)"
    )
    command.add_argument(
        "--no-inductor", action="store_true", help="leave out PyTorch's own compiler"
    )


def _add_run(commands: Commands) -> None:
    """Without --json: what is written to standard output is the script's."""
    purpose = "a script, with its calls of torch.onnx.export carried out by graphport"
    command = _make_parser(
        commands.add_parser, name="run", help=purpose, description=purpose, epilog=RUN
    )
    command.set_defaults(json=False)
    command.add_argument(
        "--verify",
        action="store_true",
        help="compare each export with PyTorch, at the example sizes and at others",
    )
    command.add_argument("--debug", action="store_true", help="why calls were refused, in full")
    command.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE [ARGS]",
        help="a module to run as a script, as of python -m",
    )
    command.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS]")


def _add_doctor(commands: Commands) -> None:
    _add_command(
        commands, "doctor", "versions, execution providers, and what is missing", EXIT_CODES
    )


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def _parse_count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is no number of sizes")
    return number


def _parse_tolerance(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{number} is no error that can be accepted")
    return number


def _get_version() -> str:
    try:
        return metadata.version("graphport")
    except metadata.PackageNotFoundError:
        return "(not installed: run from its source)"


def _add_allow(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="operators of another library that a .gpx file may call: torchvision, or "
        "mylib::attention (repeatable); by itself only those of PyTorch that check what they do",
    )


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="input",
        help="an example input, such as x=f32[2,3]",
    )
    command.add_argument(
        "--inputs", metavar="FILE|NAME", help="a file or function with all of them"
    )
    command.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="INPUT:AXIS=SIZE",
        help="sizes that may vary, such as x:0=batch[1..64]",
    )


def _add_sizes(command: argparse.ArgumentParser) -> None:
    """Which sizes verification tries."""
    command.add_argument(
        "--sizes",
        action="append",
        default=[],
        metavar="NAME=SIZE,...",
        help="sizes to verify at, such as batch=1,7, in place of chosen ones",
    )
    command.add_argument(
        "--limit",
        type=_parse_count,
        metavar="N",
        help="how many sizes to choose (default: up to 5, in twice the time of the example)",
    )
    command.add_argument(
        "--no-other-sizes", action="store_true", help="verify at the example (and --sizes) alone"
    )


def _add_command(
    commands: Commands, name: str, purpose: str, epilog: str
) -> argparse.ArgumentParser:
    made = _make_parser(
        commands.add_parser, name=name, help=purpose, description=purpose, epilog=epilog
    )
    made.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    made.add_argument("--debug", action="store_true", help="errors with their traceback")
    return made


def _make_parser(
    make: Callable[..., argparse.ArgumentParser], **options: str
) -> argparse.ArgumentParser:
    # No abbreviations: a script that says --in would break when another option begins so.
    return make(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
