"""`graphport doctor`: versions, execution providers, and what is missing."""

from __future__ import annotations

import argparse
import platform
import re
from importlib import import_module, metadata
from importlib.util import find_spec

from graphport.cli.console import Console
from graphport.compat.versions import TESTED, describe_untested, parse_release
from graphport.report.document import Block, Document, Section, Table, render_text

NEEDED = ("torch", "numpy", "onnx", "onnxruntime", "onnx_ir", "rich")
OPTIONAL = {
    "safetensors": "reading and writing .safetensors with its own library",
    "z3": "gp.fx.validate: pip install 'graphport[z3]'",
    "transformers": "the Hugging Face examples: pip install 'graphport[examples]'",
}
"""Modules that graphport can do without, and what they are for."""


def run(options: argparse.Namespace, console: Console) -> int:
    ranges = read_requirements("graphport")
    needed = {name: ranges.get(name, "") for name in NEEDED}
    versions = {name: find_version(name) for name in needed}
    problems = [
        f"{name} {versions[name] or 'is not installed'}: graphport needs it, {wanted or 'any'}"
        for name, wanted in needed.items()
        if not is_satisfied(versions[name], wanted)
    ]
    with console.step("loading them", "load"):
        problems += [
            f"{name} is installed and cannot be loaded: {why}"
            for name, version in versions.items()
            if version and (why := find_import_error(name.replace("-", "_")))
        ]
    providers: list[str] = []
    opset = other_release = None
    if not problems:
        from graphport.onnx.target.session import list_providers
        from graphport.onnx.target.targets import ONNX

        providers, opset = list_providers(), ONNX.default_opset()
        other_release = ONNX.describe_other_release(versions["onnxruntime"])
    missing = {name: use for name, use in OPTIONAL.items() if find_spec(name) is None}
    own = {"graphport": find_version("graphport"), "python": platform.python_version()}
    transformers = find_version("transformers")
    versions = {**own, **versions, **({"transformers": transformers} if transformers else {})}
    untested = [
        text
        for name, version in versions.items()
        if version and name in TESTED and (text := describe_untested(name, version))
    ]
    data = {
        "ok": not problems,
        "versions": versions,
        "tested": {name: list(TESTED[name]) for name in versions if name in TESTED},
        "untested": untested,
        "providers": providers,
        "default_opset": opset,
        "other_release": other_release,
        "problems": problems,
        "missing_optional": missing,
    }
    rows = [
        (name, version or "missing", needed.get(name, ""), " to ".join(TESTED.get(name, ())))
        for name, version in versions.items()
    ]
    blocks: list[Block] = [Table(("not installed", "for"), list(missing.items()))]
    document = Document(
        "graphport doctor",
        [
            Section(
                "versions", [Table(("package", "installed", "needed", "tested"), rows), *untested]
            ),
            Section(
                "ONNX Runtime",
                [
                    f"providers: {', '.join(providers) or 'none'}",
                    f"default opset: {opset or 'none'}",
                    *([other_release] if other_release else []),
                ],
            ),
            Section("optional", blocks if missing else ["everything is installed"]),
            Section("problems", problems or ["none"]),
        ],
    )
    console.result(render_text(document), data)
    return 1 if problems else 0


def read_requirements(package: str) -> dict[str, str]:
    """What a package needs: the name of each requirement, and its range of versions."""
    found = {}
    try:
        lines = metadata.requires(package) or ()
    except metadata.PackageNotFoundError:  # run from its source
        return {}
    for line in lines:
        requirement, _, condition = line.partition(";")
        if "extra" not in condition:
            match = re.fullmatch(r"\s*([\w.-]+)\s*(.*?)\s*", requirement)
            assert match is not None
            found[match[1]] = match[2].strip("()")
    return found


def find_version(package: str) -> str | None:
    """The version of a package; onnxruntime has several names, one per kind of hardware."""
    variants = ("", "-gpu", "-directml", "-openvino", "-qnn") if package == "onnxruntime" else ("",)
    for variant in variants:
        try:
            return metadata.version(package + variant)
        except metadata.PackageNotFoundError:
            continue
    return None


def find_import_error(module: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001  a broken library raises anything
        return f"{type(error).__name__}: {error}"
    return ""


def is_satisfied(version: str | None, wanted: str) -> bool:
    """Whether a version is in a range, such as `>=2.9,<2.14`.

    >>> is_satisfied("2.13.0+cpu", ">=2.9,<2.14"), is_satisfied("2.14.0", ">=2.9,<2.14")
    (True, False)
    """
    if version is None:
        return False
    have = parse_release(version)
    for part in filter(None, wanted.split(",")):
        match = re.fullmatch(r"\s*(>=|<=|==|!=|<|>)\s*([\w.]+)\s*", part)
        assert match is not None, f"{part} is no range of versions that we write"
        limit = parse_release(match[2])
        length = max(len(have), len(limit))
        a, b = (x + (0,) * (length - len(x)) for x in (have, limit))
        if not _COMPARISONS[match[1]](a, b):
            return False
    return True


_COMPARISONS = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}
