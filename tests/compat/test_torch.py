"""Private names of torch: all of them are in one table, and this torch has them all."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from graphport.compat import torch as compat
from graphport.errors import MissingPackageError
from tests.test_imports import ROOT, files, mentions, within

pytestmark = pytest.mark.smoke

HERE = "graphport.compat.torch"
SOURCES = {
    place: path.read_text()
    for path in files()
    if (place := path.relative_to(ROOT).as_posix()) != "compat/torch.py"
}
NAMES = {compat._read_row(row)[0]: purpose for row, purpose in compat.ROWS.items()}
PRIVATE_PATH = re.compile(r"torch(\.\w+)*[.:]_[A-Za-z]\w*([.:]\w+)*\.?")
WRITTEN_BY_TORCH = {("program/torch_interop/expressions.py", "torch._sym_sqrt")}
"""A word of the guards that torch prints, and no name to look up."""
OF_OTHERS = {"_getframe", "_exit", "_fields", "_asdict", "_SubParsersAction"}
OF_OTHERS |= {"_sess", "_ortvalue", "_get_c_value"}
"""Private attributes of Python's and of ONNX Runtime's."""


parse = functools.cache(ast.parse)


def is_private(name: str) -> bool:
    return within(name, "torch") and bool(re.search(r"\._(?!_)", name))


def find_private(source: str, package: str = "graphport") -> Iterator[tuple[int, str]]:
    """Names by import or attribute, operators apart, and strings that are nothing but a path."""
    for line, name in mentions(source, package):
        if is_private(name) and not within(name, "torch.ops"):
            yield line, name
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if PRIVATE_PATH.fullmatch(node.value):
                yield node.lineno, node.value


def find_uses(source: str) -> Iterator[str]:
    """Names of the table, by import or by the functions that take one; `.*` in an f-string."""
    for _, name in mentions(source, "graphport"):
        if within(name, HERE):
            yield name.removeprefix(f"{HERE}.").split(".")[0]
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("compat.")
            if name in ("locate", "places_of", "is_within"):
                parts = getattr(node.args[-1], "values", [node.args[-1]])
                yield "".join(p.value if isinstance(p, ast.Constant) else ".*" for p in parts)


def resolve(place: str) -> Any:
    module, _, path = place.partition(":")
    found = __import__(module, fromlist=["_"])
    for part in filter(None, path.split(".")):
        found = getattr(found, part)
    return found


def resolve_first(places: str) -> tuple[str, Any]:
    """The first place that this torch has."""
    for place in places.split(" or "):
        with contextlib.suppress(ImportError, AttributeError):
            return place, None if place == compat.NOTHING else resolve(place)
    raise AttributeError(places)


def test_this_torch_has_every_name() -> None:
    lacking = []
    for name, purpose in NAMES.items():
        try:
            compat._search(name)
        except MissingPackageError as e:
            lacking.append(f"{name} ({purpose}): {e}")
    assert lacking == []


def read_source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # not in Python
        return ""


def test_this_torch_has_every_member() -> None:
    """By the class, or by the source of it: what objects are given in `__init__` is there only."""
    lacking = []
    for places, members in compat.MEMBERS.items():
        place, owner = resolve_first(places)
        if place == compat.NOTHING:
            continue
        sources = "".join(map(read_source, getattr(owner, "__mro__", ())))
        for name in members.split():
            if not hasattr(owner, name) and not re.search(rf"\b{name}\b", sources):
                lacking.append(f"{place}.{name}")
    assert lacking == []


def test_modules_of_the_table_have_what_is_read_from_them() -> None:
    modules = {n for n in NAMES if isinstance(compat._search(n)[2], ModuleType)}
    used = {
        name.removeprefix(f"{HERE}.")
        for source in SOURCES.values()
        for _, name in mentions(source, "graphport")
        if within(name, HERE) and name.removeprefix(f"{HERE}.").split(".")[0] in modules
    }
    read = [name.split(".") for name in sorted(used) if "." in name]
    assert ["pytree", "tree_map"] in read
    lacking = [f"{m}.{a}" for m, a, *_ in read if not hasattr(getattr(compat, m), a)]
    assert lacking == []


def test_nothing_else_has_a_private_name() -> None:
    offenders = [
        f"{place}:{line}: {name}"
        for place, source in SOURCES.items()
        for line, name in find_private(source)
        if (place, name) not in WRITTEN_BY_TORCH
    ]
    assert offenders == [], "belongs into compat/torch.py"


def test_nothing_else_reads_a_private_member() -> None:
    """As far as the source tells: an attribute that nothing here defines is another package's."""
    trees = {place: parse(source) for place, source in SOURCES.items()}
    known = OF_OTHERS | {m for members in compat.MEMBERS.values() for m in members.split()}
    known |= {name for tree in trees.values() for name in find_definitions(tree)}
    offenders = [
        f"{place}:{node.lineno}: {ast.unparse(node)}"
        for place, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr)
        if node.attr not in known and not re.match(r"(torch\.ops|aten|prims)\b", ast.unparse(node))
    ]
    assert offenders == [], "belongs into MEMBERS of compat/torch.py"


def find_definitions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def test_every_row_is_used() -> None:
    used = "|".join({name for source in SOURCES.values() for name in find_uses(source)})
    assert [name for name in NAMES if not re.fullmatch(used, name)] == []
    text = "".join(SOURCES.values())
    members = {m for members in compat.MEMBERS.values() for m in members.split()}
    assert [m for m in sorted(members) if not re.search(rf"\b{m}\b", text)] == []


def test_a_name_that_has_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name, places = compat._read_row("thing = torch._nowhere:_thing or torch:_gone or torch:_C")
    monkeypatch.setitem(compat._PLACES, name, places)
    assert compat._search("thing")[1:] == ("_C", resolve("torch._C"))


def test_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat._PLACES, "thing", ("torch._nowhere:_thing", "torch:_gone"))
    with pytest.raises(ImportError, match=r"torch \S+ has no torch\._nowhere:_thing or torch:_g"):
        from graphport.compat.torch import thing  # noqa: F401


@pytest.mark.parametrize(
    "source",
    [
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree as pytree",
        "def f():\n    import torch._dynamo as d",
        "import torch\ntorch._C._set_conj(t, True)",
        "from torch import nn\nnn.modules.dropout._DropoutNd",
        "import torch.distributed as dist\ndist.distributed_c10d._get_default_store()",
        "sys.modules['torch._dynamo.trace_rules']",
        "name.startswith('torch._refs.')",
        "instance_of('an operator', 'torch._ops:OperatorBase')",
    ],
)
def test_every_way_to_a_private_name_is_seen(source: str) -> None:
    assert list(find_private(source))


@pytest.mark.parametrize(
    "source", ["import torch\ntorch.ops.aten._conj.default", "import torch\ntorch.Tensor.__len__"]
)
def test_operators_and_protocols_are_not_private(source: str) -> None:
    assert not list(find_private(source))
