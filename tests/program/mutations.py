"""Files that are almost those that `gp.save` writes: bytes and JSON changed at random."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from typing import Any

from graphport.program.files import archive


def unpacked(data: bytes) -> tuple[Any, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return json.loads(file.read(archive.PROGRAM)), file.read(archive.TENSORS)


def packed(document: Any, tensors: bytes) -> bytes:
    """A well-formed archive, whatever is in it; a text is taken as it is."""
    text = document if isinstance(document, (str, bytes)) else json.dumps(document)
    text = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    file = io.BytesIO()
    archive.write_archive(file, [(archive.PROGRAM, [text]), (archive.TENSORS, [tensors])])
    return file.getvalue()


def put(value: Any, old: str, new: str) -> Any:
    """A document in which one text is another, keys of its objects apart."""
    if isinstance(value, list):
        return [put(item, old, new) for item in value]
    if isinstance(value, dict):
        return {key: put(item, old, new) for key, item in value.items()}
    return new if value == old else value


# Values that a field could be replaced by: of other kinds, at the edges, with a meaning elsewhere.
STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    64,
    1 << 31,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    1 << 200,
    0.5,
    -0.0,
    1e308,
    "",
    "x",
    "self",
    "torch",
    "forward",
    "__class__",
    "__dict__",
    "__debug__",
    "_modules",
    "graph",
    "lambda",
    "a b",
    "a.b",
    "a\nb",
    "a'b",
    'a"b',
    "\ud800",
    "\uff54\uff4f\uff52\uff43\uff48",
    "\x00",
    "import os",
    "os.system",
    "aten::add.Tensor",
    "aten::from_file",
    "aten::copy_",
    "higher_order.cond",
    "operator.add",
    "builtins.eval",
    "aten::mm",
    "float32",
    "int64",
    "meta",
    "cuda",
    "cpu",
    "nan",
    "inf",
    "bool",
    "call_function",
    "placeholder",
    "output",
    "get_attr",
    "USER_INPUT",
    "BUFFER",
    "PARAMETER",
    "pow",
    "lshift",
    "mul",
    "add",
    "min",
    "and",
    "x" * 5000,
    [],
    {},
    [[]],
    [0],
    [1, 2],
    [None],
    {"": 1},
    {"node": "x"},
    {"symbolic": 0},
    {"symbolic": 1 << 40},
    {"tuple": []},
    {"float": "nan"},
    {"float": "inf"},
    {"data": 0},
    {"tensor": {}},
    {"dict": [[1, 2], [1, 2]]},
    {"device": "cuda:9"},
    {"operator": "aten::add.Tensor"},
    {"complex": [1, 2]},
    {"slice": [None, None, None]},
    {"dtype": "float32"},
    {"dtype": "qint8"},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        container = todo.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], (dict, list)):
                todo.append(container[key])
    return found


def mutate_document(document: Any, rng: random.Random) -> Any:
    """One to three changes anywhere in a document."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        all_places = places(document)
        if not all_places:
            return document
        container, key = rng.choice(all_places)
        value = container[key]
        kind = rng.randrange(8)
        if kind == 0:
            container[key] = rng.choice(STRANGE)
        elif kind == 1:  # something of another place
            other, at = rng.choice(all_places)
            container[key] = copy.deepcopy(other[at])
        elif kind == 2:
            del container[key]
        elif kind == 3 and isinstance(container, list):
            container.insert(key, copy.deepcopy(rng.choice((value, rng.choice(STRANGE)))))
        elif kind == 4 and isinstance(container, dict):
            container[str(rng.choice(STRANGE))] = value
        elif kind == 5 and isinstance(value, list):
            rng.shuffle(value)
        elif type(value) is int:
            container[key] = value + rng.choice((-1, 1, 2, 1 << 32, -(1 << 20)))
        elif isinstance(value, str) and value:
            at = rng.randrange(len(value))
            container[key] = value[:at] + chr(rng.choice((0, 10, 34, 39, 46, 65, 95))) + value[at:]
        else:
            container[key] = rng.choice(STRANGE)
    return document


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, doubled or moved."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        # The structure is at the ends, and most bytes are in the middle.
        at = rng.choice((at, at % 200, max(0, len(changed) - 1 - at % 300)))
        length = rng.choice((1, 4, 8, 100, 5000))
        kind = rng.randrange(6)
        if kind == 0:
            changed[at % len(changed)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            other = rng.randrange(len(changed))
            changed[at:at] = changed[other : other + length]
        elif kind == 4:
            changed[at : at + 8] = rng.randbytes(8)
        else:
            fill = rng.choice((b"\xff", b"\x00"))
            changed[at : at + 4] = fill * 4
    return bytes(changed)


def mutate_text(document: Any, rng: random.Random) -> str:
    """The JSON text changed where it stays UTF-8: mostly no JSON any more."""
    text = json.dumps(document)
    at = rng.randrange(len(text))
    inserted = rng.choice(
        (
            "NaN",
            "Infinity",
            "1e999",
            "9" * 5000,
            "[" * 100_000,
            '{"a":1,"a":2}',
            "}",
            "\\u0000",
            '"',
        )
    )
    return text[:at] + inserted + text[at + rng.choice((0, 0, 1, 10)) :]
