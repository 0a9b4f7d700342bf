"""The tests beside each combination of versions that is supported: `make matrix`.

    python -m tests.matrix TORCH=2.15.0 "PYTHON=3.13 TORCH=2.15.0"

Each has an environment of its own, which `make test` makes. What comes out are rows of
docs/versions.md; those of combinations that are not run stay. `--write` makes its other tables.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from graphport.compat import schemas
from graphport.compat.schemas import print_version

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
LOGS = ROOT / "build" / "matrix"
COMBINATIONS = (
    "TORCH=2.13.0",
    "TORCH=2.12.1",
    "TORCH=2.14.1",
    "TORCH=2.15.0",
    "PYTHON=3.12 TORCH=2.15.0",
    "PYTHON=3.13 TORCH=2.15.0",
    "LOWEST=1",
)
PACKAGES = ("python", "torch", "numpy", "onnx", "onnxruntime", "transformers")
HEADER = ["`make test` with", *PACKAGES, "tests", "operators in ONNX"]
DIFFERENCES = ["torch", "operator", "change", "in graphport"]

# What graphport does with the operators in which tested versions differ, by name.
NAMED = "overloads for named dims"
CUDA = "for CUDA alone"
SCALED = "captured; no ONNX lowering"
IN_PLACE = "its `mutated_arg_indices` is not used: what bodies write to is passed and returned"
DECISIONS = {
    NAMED: "refused: names are no part of a program",
    "aten::_cdist_backward": "captured; an argument has another name",
    "aten::_pdist_backward": "captured; an argument has another name",
    "aten::_cudnn_attention_forward": CUDA,
    "aten::_cudnn_attention_forward_no_dropout_inplace": CUDA,
    "aten::_foreach_mm": SCALED,
    "aten::_is_tracing": "a question of TorchScript, which is not captured",
    "aten::_philox_key_fold_in": SCALED,
    "aten::_philox_randint": SCALED,
    "aten::_philox_randint_": SCALED,
    "aten::_scaled_addmm": SCALED,
    "aten::_scaled_addmm_": SCALED,
    "aten::_scaled_grouped_mm_v2": SCALED,
    "aten::broadcast_shapes": "computed in Python, on sizes",
    "aten::cholesky": "captured and lowered where it exists; as `linalg_cholesky` everywhere",
    "aten::linalg_matrix_sqrth": SCALED,
    "aten::linalg_polar": SCALED,
    "aten::qr": "captured and lowered where it exists; as `linalg_qr` everywhere",
    "aten::shallow_copy_data_": "refused: what it writes has no functional form",
    "higher_order::flex_gemm": "refused by name",
    "higher_order::map_impl": IN_PLACE,
    "higher_order::scan": IN_PLACE,
    "higher_order::switch": "refused by name",
    "higher_order::while_loop": IN_PLACE,
}


def run(combination: str, sweep: bool) -> list[str]:
    """A row of the table: the versions, and how the tests and the operators came out."""
    variables = combination.split()
    made = call(["make", "setup", *variables])
    if made.returncode:
        return [*blank(combination), f"not installed: {made.stdout.splitlines()[-1]}", ""]
    python = find_python(variables)
    facts = json.loads(call([python, "-m", "graphport", "doctor", "--json"]).stdout)["versions"]
    tests = call(["make", "test", *variables]).stdout
    counts = re.findall(r"\d+ (?:passed|failed|xfailed|errors?)\b", tests.splitlines()[-1])
    operators = ""
    if sweep:
        swept = call([python, "-m", "tests.onnx.sweep", "--failures"]).stdout
        wrong = sum(": " in line and " wrong" in line for line in swept.splitlines())
        operators = f"{swept.splitlines()[-1]}, {wrong} wrong"
    versions = [str(facts.get(name) or "-") for name in PACKAGES]
    return [f"`{combination}`", *versions, ", ".join(counts), operators]


def blank(combination: str) -> list[str]:
    return [f"`{combination}`", *("" for _ in PACKAGES)]


def find_python(variables: list[str]) -> str:
    """The interpreter of an environment, as the Makefile names it."""
    database = call(["make", "-pn", "help", *variables]).stdout
    found = re.search(r"^PY := (.*)$", database, re.MULTILINE)
    assert found is not None
    folder = re.search(r"^VENV\s*:?=\s*(.*)$", database, re.MULTILINE)
    assert folder is not None
    return found[1].replace("$(VENV)", folder[1])


def call(command: list[str]) -> subprocess.CompletedProcess[str]:
    print("$", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.=-]+", "_", " ".join(command))
    (LOGS / f"{name}.log").write_text(done.stdout + done.stderr)
    return done


def read_rows() -> dict[str, list[str]]:
    """What the page says of each combination."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    cells = ([c.strip() for c in line.strip("|").split("|")] for line in lines)
    return {row[0].strip("`"): row for row in cells if row[0].strip("`") in COMBINATIONS}


def list_differences() -> list[list[str]]:
    """Operators by version: gone, new or with other arguments, and what that means."""
    rows = []
    for before, after in pairwise(schemas.TESTED):
        old, new = schemas.read_schemas(before), schemas.read_schemas(after)
        changes: dict[str, set[str]] = {}
        for line in schemas.find_differences(old, new):
            overload = line[2:].partition("(")[0]
            name = NAMED if is_of_names(line) else overload.partition(".")[0]
            change = (
                "gone" if overload not in new else "other arguments" if overload in old else "new"
            )
            changes.setdefault(name, set()).add(change)
        for name, found in sorted(changes.items()):
            decision = (
                "refused: names are no part of a program" if name == NAMED else DECISIONS[name]
            )
            text = name if name == NAMED else f"`{name}`"
            rows.append([print_version(after), text, ", ".join(sorted(found)), decision])
    return rows


def is_of_names(line: str) -> bool:
    """Whether an operator takes or gives the names of dims."""
    return bool(
        re.search(r"\bstr(\[1?\])?\?? \w*(dim|dims|names|order)\b|::align_|\bstr dim\d", line)
    )


def write(rows: dict[str, list[str]]) -> None:
    results = [rows.get(c, [*blank(c), "not run", ""]) for c in COMBINATIONS]
    text = TEXT.format(
        results=table(HEADER, results),
        differences=table(DIFFERENCES, list_differences()),
        oldest=print_version(schemas.TESTED[0]),
        newest=print_version(schemas.TESTED[-1]),
    )
    PAGE.write_text(text)


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


TEXT = """# Versions

graphport works beside torch {oldest} to {newest}. `graphport doctor` compares what is installed
with what is tested. `make test TORCH=2.15.0` runs the tests beside another version, in an
environment of its own; so do `PYTHON=`, `ONNXRUNTIME=`, `ONNX=`, `NUMPY=` and `TRANSFORMERS=`, and
`LOWEST=1` for the lower bounds of all.

## What was tested

`make matrix` makes this table. Operators: cases of PyTorch's database in four dtypes, in ONNX,
compared with eager.

{results}

## A torch that is newer

graphport works, and warns once in a process (`CaptureWarning`). An operator that has other
arguments or results than in torch {newest} is refused by name, since a rule that was written for
the old ones might read them wrongly; all others are captured and lowered. What needs an operator
that is gone is absent.

## Saved programs

A `.gpx` file loads with every version of torch, whichever wrote it. An operator that is missing
there, or that means something else, is an error that names it and the version that wrote the file.

## What differs between versions of torch

Operators of ATen, of `prims` and higher-order ones, as `python -m graphport.compat.schemas` records
them in `src/graphport/compat/schemas/`.

{differences}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("combinations", nargs="*", metavar="VARIABLES", default=COMBINATIONS)
    parser.add_argument("--sweep", action="store_true", help="operators, too: ten minutes each")
    parser.add_argument("--write", action="store_true", help="the page alone, without a run")
    line = parser.parse_args()
    for combination in () if line.write else line.combinations:
        row = run(combination, line.sweep)
        print(" | ".join(row), flush=True)
        write({**read_rows(), combination: row})
    write(read_rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
