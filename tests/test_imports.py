"""Who may import whom, and what `import graphport` may load.

The source is read, not run: every import statement counts, inside functions and under
TYPE_CHECKING too, and so do `import_module("...")`, `__import__("...")` and attribute chains such
as `torch.export.export`, which need no import statement to reach another package. A private name
of torch that comes from `compat/torch.py` counts as what it is there.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphport.compat import torch as compat

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[1] / "src" / "graphport"

# From the ground up: a module imports what stands on its own line or below.
LAYERS = (
    "errors source stubs",
    "compat",
    "arguments process types",
    "symbolic",
    "tensors",
    "ops huggingface",
    "program",
    "capture",
    "onnx fx",
    "runtime ort",
    "partition",
    "report cli __init__ __main__",
)
APART = {"onnx": "fx", "fx": "onnx"}
"""On one line, and still not to import one another."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
UPWARDS = {
    ("program/exported.py", "capture"): "`run_decompositions` captures again what it rewrites",
    ("onnx/exporter.py", "report"): "`report=` writes a report of what was exported",
}
"""Arrows that point up, within functions, with their reasons."""

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
    "onnx/redirection.py": "redirects calls of torch.onnx.export",
    "onnx/torch_calls.py": "carries them out, in the opset that torch would write",
    "onnx/exporter.py": "answers torch.onnx.is_in_onnx_export(), which models branch on",
    "runtime/torch_compile.py": "registers with torch.compile and AOTAutograd",
    "tensors/concrete.py": "reads a FakeTensor that a user passes in",
}
COMPAT = "graphport.compat.torch"
CALLS_ONNX_RUNTIME = {
    "onnx/target/": "knows what a runtime can do, and its sessions",
    "runtime/": "runs regions of `torch.compile` on ONNX Runtime, and binds their memory",
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
    """Every (line, full name) that a file imports or reaches through a name that it imports."""
    tree = ast.parse(source)
    origins = dict(find_origins(tree))
    found = []
    for node in ast.walk(tree):
        for name in imported(node, package):
            found.append((node.lineno, name))
        if isinstance(node, ast.Attribute):
            head, _, rest = (dotted(node) or "").partition(".")
            chain = f"{origins.get(head, head)}.{rest}"
            if within(chain, "torch") or within(chain, COMPAT):
                found.append((node.lineno, chain))
    return found


def find_origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What the names that a file imports are called in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname, a.name) for a in node.names if a.asname)


def places_in_torch(name: str) -> Iterator[str]:
    """Where torch has a name of `compat/torch.py`; any other name is itself."""
    kept = name.removeprefix(f"{COMPAT}.").split(".")[0]
    if name != kept and kept in compat._PLACES:
        yield from (place.replace(":", ".") for place in compat.places_of(kept))
    else:
        yield name


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def read(path: Path) -> list[Mention]:
    package = ".".join(("graphport", *path.relative_to(ROOT).parent.parts))
    return mentions(path.read_text(), package)


def wrong_arrows(place: str, names: list[Mention]) -> list[str]:
    """Imports of ours that point up."""
    owner = place.split("/")[0].removesuffix(".py")
    problems = []
    for line, name in names:
        if not within(name, "graphport") or owner.startswith("__"):
            continue
        target = [*name.split("."), ""][1]
        if target not in LEVEL:
            problems.append(f"{place}:{line}: {name} comes from the facade")
        elif LEVEL[target] > LEVEL[owner] or APART.get(owner) == target:
            if (place, target) not in UPWARDS:
                problems.append(f"{place}:{line}: {owner} -> {target}")
    return problems


def test_arrows_point_down() -> None:
    places = {path.relative_to(ROOT).as_posix(): path for path in files()}
    unknown = {p.split("/")[0].removesuffix(".py") for p in places} - set(LEVEL)
    assert not unknown, "these are not packages of the architecture"
    assert [wrong for p, path in places.items() for wrong in wrong_arrows(p, read(path))] == []
    missing = [
        name
        for name in LEVEL
        if not any(p.split("/")[0].removesuffix(".py") == name for p in places)
    ]
    assert missing == [], "these packages do not exist"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports within functions are left out: they run when both modules are there."""
    modules = {module_name(path): path for path in files()}
    waiting = {
        name: {imported_module(target, modules) for target in top_level_imports(path)} - {name, ""}
        for name, path in modules.items()
    }
    while ready := [name for name, targets in waiting.items() if not targets & set(waiting)]:
        for name in ready:
            del waiting[name]
    assert sorted(waiting) == []


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def top_level_imports(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text()).body:
        yield from imported(statement, "")


def imported_module(name: str, modules: dict[str, Path]) -> str:
    """The module that an imported name is, or is in; the packages around it are there already."""
    return (
        name
        if name in modules
        else next((m for m in [name.rpartition(".")[0]] if m in modules), "")
    )


def test_implements_itself_what_it_exists_to_implement() -> None:
    used = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {name}"
        for path in files()
        if not path.relative_to(ROOT).as_posix().startswith(tuple(MAY_USE_BANNED))
        for line, mentioned in read(path)
        for name in places_in_torch(mentioned)
        if any(within(name, banned) for banned in BANNED)
    ]
    assert used == []


def test_onnx_runtime_is_called_where_it_is_known() -> None:
    used = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {name}"
        for path in files()
        if not path.relative_to(ROOT).as_posix().startswith(tuple(CALLS_ONNX_RUNTIME))
        for line, name in read(path)
        if within(name, "onnxruntime")
    ]
    assert used == []


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
        ("from torch import fx\nfx.passes.split_module", "torch.fx.passes"),
        ("from graphport.compat.torch import aot_autograd", "torch._dynamo"),
    ],
)
def test_every_way_to_reach_a_banned_module_is_seen(source: str, name: str) -> None:
    names = [
        name for _, seen in mentions(source, "graphport.ops") for name in places_in_torch(seen)
    ]
    assert any(within(seen, name) for seen in names)


def test_arrows_are_resolved() -> None:
    up = mentions("from ..capture import tracer\nfrom graphport import Dim", "graphport.ops")
    assert wrong_arrows("ops/x.py", up) == [
        "ops/x.py:1: ops -> capture",
        "ops/x.py:2: graphport.Dim comes from the facade",
    ]
    down = mentions("from . import registry\nfrom graphport import errors", "graphport.ops")
    assert not wrong_arrows("ops/x.py", down)


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
