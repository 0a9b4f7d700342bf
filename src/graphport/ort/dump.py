"""Models written out to be looked at."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from graphport.process import contained
from graphport.program.replacing import replacing, write_text

_written: Counter[str] = Counter()
"""How many this process has written, by prefix."""


def write(prefix: str, model: onnx.ModelProto, text: str) -> None:
    """`prefix0.onnx` and `prefix0.txt`, then `prefix1.onnx`, ..."""
    path = Path(f"{prefix}{_written[prefix]}.onnx")
    _written[prefix] += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, model)
    write_text(path.with_suffix(".txt"), text)


@contained
def _write(path: Path, model: onnx.ModelProto) -> None:
    with replacing(path) as file:
        file.write(model.SerializeToString())
