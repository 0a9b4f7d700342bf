"""Who may import whom, and what `import graphport` may load.

The source is read, not run: every import statement counts, inside functions and under
TYPE_CHECKING too, and so do `import_module("...")`, `__import__("...")` and attribute chains such
as `torch.export.export`, which need no import statement to reach another package.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[1] / "src" / "graphport"

# What everything stands on.
GROUND = {"errors", "escaping", "arguments", "source", "hooks", "loading", "process"}
EVERYTHING = {"*"}
MAY_IMPORT = {
    "errors": GROUND,
    "escaping": GROUND,
    "arguments": GROUND,
    "source": GROUND,
    "hooks": GROUND,
    "loading": GROUND,
    "process": GROUND,
    "symbolic": GROUND,
    "ops": GROUND | {"symbolic"},
    "program": GROUND | {"ops", "symbolic"},
    "capture": GROUND | {"ops", "symbolic", "program"},
    "passes": GROUND | {"program", "ops", "symbolic"},
    "fx": GROUND | {"program", "ops", "symbolic"},
    "partition": GROUND | {"program", "fx", "symbolic", "distributed"},
    "distributed": GROUND | {"program", "fx", "symbolic", "partition", "onnx", "capture"},
    "onnx": GROUND | {"capture", "ops", "program", "passes", "symbolic"},
    "ort": GROUND | {"onnx", "fx", "capture", "ops", "program", "symbolic"},
    "cli": EVERYTHING,
    "report": EVERYTHING,
    "__init__": EVERYTHING,
    "__main__": EVERYTHING,
}

BANNED = (
    "torch.export",
    "torch._export",
    "torch.onnx",
    "torch._dynamo",
    "torch._functorch",
    "torch.fx.experimental",
    "torch.fx.passes",
    "onnxscript",
)
MAY_USE_BANNED = {
    "program/torch_interop/": "converts to and from torch.export.ExportedProgram",
    "onnx/torch_flag.py": "answers torch.onnx.is_in_onnx_export(), which models branch on",
    "ort/torch_compile.py": "registers with torch.compile and AOTAutograd",
    "capture/fake_tensors.py": "reads a FakeTensor that a user passes in",
}
# `symbolic` knows torch in one place.
TORCH_IN_SYMBOLIC = "symbolic/bridge.py"

Mention = tuple[int, str]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def dotted(node: ast.expr) -> str | None:
    """`torch.fx.Graph` for the attribute chain of that spelling."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return None


def imported(node: ast.AST, package: str) -> Iterator[str]:
    """The full names that a node imports; `package` is what relative imports start from."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args:
        name, first = dotted(node.func) or "", node.args[0]
        if name.split(".")[-1] in ("import_module", "__import__") and isinstance(
            first, ast.Constant
        ):
            yield str(first.value)


def mentions(source: str, package: str) -> list[Mention]:
    """Every (line, full name) that a file imports or reaches through `torch.`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in imported(node, package):
            found.append((node.lineno, name))
        if isinstance(node, ast.Attribute):
            chain = dotted(node)
            if chain and within(chain, "torch"):
                found.append((node.lineno, chain))
    return found


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def read(path: Path) -> list[Mention]:
    package = ".".join(("graphport", *path.relative_to(ROOT).parent.parts))
    return mentions(path.read_text(), package)


def wrong_arrows(owner: str, names: list[Mention]) -> list[str]:
    """Imports of ours that the table does not allow to `owner`."""
    allowed = MAY_IMPORT[owner]
    problems = []
    for line, name in names:
        if not within(name, "graphport") or allowed is EVERYTHING:
            continue
        target = [*name.split("."), ""][1]
        if target not in MAY_IMPORT:
            problems.append(f"{line}: {name} comes from the facade; import it from where it lives")
        elif target != owner and target not in allowed:
            problems.append(f"{line}: {owner} -> {target}")
    return problems


def owner_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path: Path) -> None:
    owner = owner_of(path)
    assert owner in MAY_IMPORT, f"{owner} is not a package of the architecture"
    assert not wrong_arrows(owner, read(path))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_implements_itself_what_it_exists_to_implement(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    used = [
        f"{line}: {name}"
        for line, name in read(path)
        if any(within(name, banned) for banned in BANNED)
    ]
    assert place.startswith(tuple(MAY_USE_BANNED)) or not used


def test_symbolic_knows_torch_in_one_file() -> None:
    for path in (ROOT / "symbolic").rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        used = [f"{line}: {name}" for line, name in read(path) if within(name, "torch")]
        assert place == TORCH_IN_SYMBOLIC or not used, place


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch.export", "torch.export"),
        ("from torch import export", "torch.export"),
        ("from torch.fx.experimental import symbolic_shapes", "torch.fx.experimental"),
        ("def f():\n    import torch._dynamo as d", "torch._dynamo"),
        ("import torch\ntorch.export.export(m, ())", "torch.export"),
        ("import importlib\nimportlib.import_module('torch.onnx')", "torch.onnx"),
    ],
)
def test_every_way_to_reach_a_banned_module_is_seen(source: str, name: str) -> None:
    assert any(within(seen, name) for _, seen in mentions(source, "graphport.ops"))


def test_arrows_are_resolved() -> None:
    up = mentions("from ..capture import tracer\nfrom graphport import Dim", "graphport.ops")
    assert wrong_arrows("ops", up) == [
        "1: ops -> capture",
        "2: graphport.Dim comes from the facade; import it from where it lives",
    ]
    down = mentions("from . import registry\nfrom graphport import errors", "graphport.ops")
    assert not wrong_arrows("ops", down)


# Packages that a plain `import graphport` must not load: slow ones, and the ones it replaces.
LEFT_OUT = ("onnx", "onnxruntime", "sympy", "z3", "torch.export", "torch._dynamo", "torch.onnx")

LOADED = """
import json, sys
import torch
before = set(sys.modules)
import graphport
graphport.export  # loads what a use of the package needs
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_loads_nothing_it_does_not_need(fresh_python: Callable[[str], str]) -> None:
    added = json.loads(fresh_python(LOADED))
    assert "graphport" in added
    assert not [name for name in added if any(within(name, package) for package in LEFT_OUT)]
