"""Exports a fixed set with this checkout and with another commit, and compares what comes out.

    python -m tests.replay --against main~3
    python -m tests.replay --record FOLDER            # the half of it that one commit does

A refactoring gives the same: graphs, `.gpx` and ONNX bytes, texts of errors, `--json` outputs.
"""

from __future__ import annotations

import argparse
import difflib
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
LINES = 12
"""Of a difference that are shown."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", default="HEAD")
    parser.add_argument("--only", default="", metavar="PREFIX", help="items whose names begin so")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave what was written there")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    line = parser.parse_args()
    if line.record:
        record(line.record, line.share, line.only)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        out = line.keep or Path(folder)
        for name, commit in (("before", line.against), ("after", None)):
            # Both in one place: where a program comes from is part of it.
            place = Path(folder) / "checkout"
            copy_files(place, commit)
            spawn(place, out / name, line.only)
            shutil.rmtree(place)
        return compare(out / "before", out / "after")


def copy_files(place: Path, commit: str | None) -> None:
    """The files of a commit, or those that are here."""
    if commit is not None:
        place.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit], check=True, cwd=ROOT, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
        return
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def spawn(checkout: Path, out: Path, only: str) -> None:
    """Record with the graphport and the programs of a checkout."""
    path = os.pathsep.join([str(checkout / "src"), str(checkout)])
    env = os.environ | {
        "PYTHONHASHSEED": "0",  # some models go over sets of names
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    command = [sys.executable, "-m", "tests.replay", "--record", str(out.resolve()), "--only", only]
    shares = [f"{i}/{PROCESSES}" for i in range(PROCESSES)]
    running = [subprocess.Popen([*command, "--share", s], env=env, cwd=checkout) for s in shares]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"recording {out.name} failed")


def record(out: Path, share: str, only: str) -> None:
    import torch

    from tests.replay.fixed_set import items

    torch.set_num_threads(1)
    first, step = map(int, share.split("/"))
    chosen = [(name, item) for name, item in items() if name.startswith(only)]
    for name, item in chosen[first::step]:
        folder = out / re.sub(r"[^\w./-]", "_", name)
        folder.mkdir(parents=True, exist_ok=True)
        for part, data in item.parts():
            (folder / part).write_bytes(data)


def compare(before: Path, after: Path) -> int:
    """Show what differs; 1 if anything does."""
    names = [
        {p.relative_to(r) for r in (root,) for p in r.rglob("*") if p.is_file()}
        for root in (before, after)
    ]
    count: Counter[str] = Counter()
    for name in sorted(names[0] | names[1]):
        kind = "missing" if name not in names[1] else "new" if name not in names[0] else ""
        if not kind:
            same = filecmp.cmp(before / name, after / name, shallow=False)
            kind = "same" if same else "differs"
        count[kind] += 1
        if kind != "same":
            print(f"{kind}: {name}")
        if kind == "differs" and name.suffix in (".txt", ".md"):
            show_difference(before / name, after / name)
    print(", ".join(f"{n} {kind}" for kind, n in count.items()))
    return int(set(count) != {"same"})


def show_difference(before: Path, after: Path) -> None:
    lines = [p.read_text(errors="replace").splitlines() for p in (before, after)]
    changed = [t for t in difflib.unified_diff(*lines, lineterm="", n=0) if t[0] in "+-"][2:]
    for text in changed[:LINES]:
        print(f"    {text[:200]}")
    if len(changed) > LINES:
        print(f"    ... {len(changed) - LINES} more lines")


if __name__ == "__main__":
    sys.exit(main())
