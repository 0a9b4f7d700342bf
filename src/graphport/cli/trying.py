"""`--sizes "batch=1,7" --limit 2 --no-other-sizes` as options of `ONNXProgram.verify`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from graphport.errors import UsageError


def verify_options(options: argparse.Namespace) -> dict[str, Any]:
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
                    raise _unreadable(text)
            if not name or not size.isdecimal():
                raise _unreadable(text)
            listed.setdefault(name, []).append(int(size))
        found += [
            dict(zip(listed, some, strict=True)) for some in itertools.product(*listed.values())
        ]
    return found


def _unreadable(text: str) -> UsageError:
    return UsageError(
        "sizes that cannot be read", where=f'--sizes "{text}"',
        fix='NAME=SIZE[,SIZE ...][,NAME=SIZE ...], such as "batch=1,7,length=16"',
    )  # fmt: skip
