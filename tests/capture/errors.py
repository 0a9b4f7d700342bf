"""What tests of error messages share: texts that are compared in full."""

from __future__ import annotations

import re
import textwrap


def text_of(error: Exception, module: str = "") -> str:
    """The message without line numbers, and without the path by which pytest imports a file."""
    text = re.sub(r"(\w+\.py):\d+", r"\1:N", str(error))
    # What a build with CUDA says is not what another one says.
    text = re.sub(r"(a device that is missing here): .*", r"\1: ...", text)
    return text.replace(module, module.rpartition(".")[2]) if module else text


def golden(text: str) -> str:
    return textwrap.dedent(text).strip("\n")
