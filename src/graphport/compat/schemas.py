"""The operators of each tested torch; `python -m graphport.compat.schemas` records those of this.

The file of the oldest version has a line for each schema, that of a later one what it no longer
has (`-`) and what it has instead or besides (`+`). Of a torch that is newer than all of them,
operators with another schema than the newest recorded one are refused: a rule or lowering of ours
would read their arguments as they were.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import torch

from graphport import source
from graphport.compat import torch as compat
from graphport.compat.versions import describe_untested, parse_release
from graphport.errors import CaptureWarning, UnsupportedError

Version: TypeAlias = tuple[int, int]
Schemas: TypeAlias = dict[str, str]
"""By the name of the operator and its overload, the rest: arguments, defaults and results."""

FOLDER = Path(__file__).with_name("schemas")
LIBRARIES = ("aten", "prims")
"""Whose schemas are recorded, beside the parameters of higher-order operators."""


def read_version(text: str) -> Version:
    """The version of torch in the text of one, such as `2.15.0+cu132`; (0, 0) of what is none."""
    major, minor, *_ = (*parse_release(text), 0, 0)
    return major, minor


def print_version(version: Version) -> str:
    return ".".join(map(str, version))


INSTALLED = read_version(torch.__version__)
TESTED = tuple(sorted(read_version(path.stem) for path in FOLDER.glob("*.txt")))
IS_NEWER = TESTED[-1] < INSTALLED

# What operators do since some version, and their schemas do not say.
MASKS_EXCLUDE_EACH_OTHER = INSTALLED >= (2, 14)
"""Attention refuses a mask beside `is_causal`, in whatever kernel."""
GROUPS_HAVE_ELEMENTS = INSTALLED >= (2, 14)
"""Group norm refuses groups of nothing."""


@cache
def read_schemas(version: Version) -> Schemas:
    """What was recorded of one of the versions that are tested."""
    found: Schemas = {}
    for each in TESTED[: TESTED.index(version) + 1]:
        for line in (FOLDER / f"{print_version(each)}.txt").read_text().splitlines():
            name, bracket, rest = line.lstrip("+- ").partition("(")
            if line.startswith("-"):
                del found[name]
            else:
                found[name] = bracket + rest
    return found


def list_schemas() -> Schemas:
    """Those of the torch that is installed."""
    import_module(compat.places_of("higher_order_ops")[0])
    found = {}
    for schema in compat.jit_get_all_schemas():
        if schema.name.partition("::")[0] in LIBRARIES:
            name, bracket, rest = str(schema).partition("(")
            found[name] = bracket + rest
    for name, op in compat.higher_order_registry.items():
        signature = inspect.signature(op.__call__)
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        found[f"higher_order::{name}"] = str(inspect.Signature(bare))
    return found


def find_differences(before: Schemas, after: Schemas) -> list[str]:
    """Lines of the file of a version: what is gone, and what has come."""
    names = sorted(before.keys() | after.keys())
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [
        f"{sign} {name}{schemas[name]}"
        for name in changed
        for sign, schemas in (("-", before), ("+", after))
        if name in schemas
    ]


def record() -> list[Path]:
    """Write the file of the installed version, and what then differs in that of the next one."""
    versions = {version: read_schemas(version) for version in TESTED}
    versions[INSTALLED] = list_schemas()
    order = sorted(versions)
    oldest = [f"{name}{rest}" for name, rest in sorted(versions[order[0]].items())]
    texts = {order[0]: oldest}
    for before, after in pairwise(order):
        texts[after] = find_differences(versions[before], versions[after])
    written = []
    for version, lines in texts.items():
        path = FOLDER / f"{print_version(version)}.txt"
        text = "".join(f"{line}\n" for line in lines)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written.append(path)
    return written


@cache
def _list_recorded() -> set[str]:
    """Operators of all tested versions, with their overloads and without."""
    names = {name for version in TESTED for name in read_schemas(version)}
    return names | {name.partition(".")[0] for name in names}


def is_recorded(name: str) -> bool:
    """Whether a tested version has an operator: if this torch does not, it is no typing error."""
    return name in _list_recorded()


@cache
def list_curtailed() -> set[str]:
    """Names of operators of which this torch, newer than the tested ones, has lost an overload."""
    gone = read_schemas(TESTED[-1]).keys() - list_schemas().keys()
    return {name.partition(".")[0] for name in gone}


def is_changed(op: compat.OpOverload) -> bool:
    """Whether a torch newer than all tested ones has another schema than the newest of them."""
    if not IS_NEWER or op.namespace not in LIBRARIES:
        return False
    name, bracket, rest = str(op._schema).partition("(")
    recorded = read_schemas(TESTED[-1]).get(name)
    return recorded is not None and recorded != bracket + rest


def require_unchanged(op: compat.OpOverload) -> None:
    if is_changed(op):
        newest = print_version(TESTED[-1])
        raise UnsupportedError(
            f"torch {torch.__version__} has another {op} than torch {newest}, the newest that this "
            f"graphport knows",
            fix=f'pip install "torch=={newest}.*", or a newer graphport',
        )


def is_compatible(op: compat.OpOverload, version: Version) -> bool:
    """Whether a call as it was written for another tested version means the same in this one."""
    if version not in TESTED or version == INSTALLED:
        return True
    name = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
    rest = read_schemas(version).get(name)
    return rest is None or op._schema.is_backward_compatible_with(compat.parse_schema(name + rest))


@cache
def warn_if_newer() -> None:
    """Once in a process."""
    if IS_NEWER:
        source.warn(str(describe_untested("torch", torch.__version__)), CaptureWarning)


if __name__ == "__main__":
    for path in record():
        sys.stdout.write(f"{path}\n")
