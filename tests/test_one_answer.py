"""Questions that have one answer in the source, and nowhere else a second one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[1] / "src" / "graphport"
SYMBOLIC = {"SymInt", "SymFloat", "SymBool"}

READS_VAL = {
    "tensors/abstract.py": "`get_val`, `describe` and `set_val` themselves",
    "program/files/graphs.py": "a field of the file format has the name",
    "program/torch_interop/incoming.py": "makes metadata as a dictionary, from torch's",
    "program/torch_interop/outgoing.py": "makes metadata as a dictionary, for torch's",
    "fx/split.py": "copies metadata by their keys, whatever they say",
}
LISTS_SYMBOLIC = {"symbolic/bridge.py": "`SYMBOLIC`, `NUMBERS` and `is_symbolic` themselves"}


def names_val(node: ast.AST) -> bool:
    """`"val"` as a key: of a subscript, of `get` and `in`, of a dictionary, in a tuple of keys."""
    return isinstance(node, ast.Constant) and node.value == "val"


def lists_symbolic(node: ast.AST) -> bool:
    """Two or three of torch's symbolic types side by side, as elements or keys or in a union."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = [x for x in (*node.keys, *node.values) if x is not None]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [node.left, node.right]
    else:
        return False
    return sum(isinstance(x, ast.Attribute) and x.attr in SYMBOLIC for x in parts) > 1


def offenders(found: Callable[[ast.AST], bool], source: str) -> Iterator[int]:
    return (node.lineno for node in ast.walk(ast.parse(source)) if found(node))


def places(found: Callable[[ast.AST], bool]) -> dict[str, list[int]]:
    rows = ((p.relative_to(ROOT).as_posix(), p.read_text()) for p in sorted(ROOT.rglob("*.py")))
    return {name: lines for name, text in rows if (lines := [*offenders(found, text)])}


@pytest.mark.parametrize(
    ("found", "excused"), [(names_val, READS_VAL), (lists_symbolic, LISTS_SYMBOLIC)]
)
def test_what_a_node_holds_is_asked_in_one_place(
    found: Callable[[ast.AST], bool], excused: dict[str, str]
) -> None:
    assert places(found).keys() == excused.keys()


@pytest.mark.parametrize(
    ("found", "source"),
    [
        (names_val, 'node.meta["val"]'),
        (names_val, 'node.meta.get("val")'),
        (names_val, '"val" in node.meta'),
        (names_val, 'node.meta = {"val": 1}'),
        (lists_symbolic, "(torch.SymInt, torch.SymFloat)"),
        (lists_symbolic, "{torch.SymInt: 1, torch.SymBool: 2}"),
        (lists_symbolic, "x: torch.SymInt | torch.SymFloat"),
    ],
)
def test_a_second_answer_is_found(found: Callable[[ast.AST], bool], source: str) -> None:
    assert [*offenders(found, source)] == [1]
