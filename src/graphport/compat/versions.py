"""Which versions graphport is tested with: the oldest, which packages ask for, and the newest."""

from __future__ import annotations

import re

TESTED = {
    "python": ("3.11", "3.13"),
    "torch": ("2.12", "2.15"),
    "numpy": ("1.26", "2.4"),
    "onnx": ("1.19", "1.23"),
    "onnxruntime": ("1.24.1", "1.31"),
    "onnx_ir": ("0.1.12", "1.1"),
    "rich": ("13.7", "15.0"),
    "transformers": ("4.57.1", "5.22"),
}


def describe_untested(package: str, version: str) -> str | None:
    """What to expect of a version that is newer than all that were tried."""
    newest = TESTED[package][1]
    if parse_release(version)[:2] <= parse_release(newest):
        return None
    effect = "graphport works, and refuses operators that have changed since"
    if package != "torch":
        effect = "graphport probably works"
    return f"{package} {version} is newer than {newest}, the newest that is tested: {effect}"


def parse_release(version: str) -> tuple[int, ...]:
    """The release of a version, without what marks builds and candidates.

    >>> parse_release("2.15.0+cu132"), parse_release("2.16.0.dev1"), parse_release("unknown")
    ((2, 15, 0), (2, 16, 0), ())
    """
    release = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
