"""Generates Python: identifiers, attribute paths, and code that flattens containers.

Modules, arguments and keys of a user's program may be called anything (`class`, `a"b`, `µ`), and
torch.fx writes names into the code that it generates as they are. What it would not read back as
the same name gets another one.
"""

from __future__ import annotations

import functools
import keyword
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator

from torch import nn
from torch.fx import Graph, GraphModule

from graphport.compat.torch import LazyGraphModule, TreeSpec, pytree
from graphport.errors import InternalError
from graphport.tensors.subclasses import Parts, is_wrapper, split
from graphport.types import PyTree

# Names that generated code gives a meaning of its own.
RESERVED = frozenset(
    {*keyword.kwlist, "self", "torch", "device", "inf", "nan", "NoneType", "pytree", "fx_pytree"}
)
# What ends, or changes the meaning of, a text in quotes.
_QUOTES = frozenset("\"'\\")


def is_identifier(name: str) -> bool:
    """Whether Python reads the name as a plain variable, and as this very one."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and (name.isascii() or unicodedata.normalize("NFKC", name) == name)
        and name != "__debug__"
    )


def make_identifier(text: str) -> str:
    """An identifier, or a keyword, that is as close to the text as it can be.

    >>> make_identifier("encoder.layers.0"), make_identifier("0"), make_identifier("µ") == "μ"
    ('encoder_layers_0', '_0', True)
    """
    for name in (unicodedata.normalize("NFKC", text), text.encode("ascii", "replace").decode()):
        name = re.sub(r"\W", "_", name)
        name = name if name[:1].isidentifier() else f"_{name}"
        if is_identifier(name) or keyword.iskeyword(name):
            break
    return name


def find_free_name(wanted: str, is_taken: Callable[[str], bool], *, numbered: bool = True) -> str:
    """The name if it is free; else it gets a number, or underscores, behind it."""
    name, count = wanted, 0
    while is_taken(name):
        count += 1
        name = f"{wanted}_{count}" if numbered else f"{name}_"
    return name


class Names:
    """Hands out each name once: what clashes gets `_1`, `_2`, ..."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self.used = set(used)
        self._count: dict[str, int] = {}  # so that a thousand of one name are not a million tries

    def unique(self, wanted: str) -> str:
        name = wanted
        while name in self.used:
            count = self._count[wanted] = self._count.get(wanted, 0) + 1
            name = f"{wanted}_{count}"
        self.used.add(name)
        return name


def make_unique_identifiers(texts: Iterable[str]) -> list[str]:
    """Names for the parameters of generated code: keywords of a call may be any text."""
    used: dict[str, None] = {}
    for text in texts:
        name = find_free_name(
            make_identifier(text),
            lambda n: n in RESERVED or n in used or not is_identifier(n),
            numbered=False,
        )
        used[name] = None
    return list(used)


def is_attribute(name: str) -> bool:
    """Whether code of torch.fx, `x.name` or `getattr(x, "name")`, gets at an attribute."""
    return is_identifier(name) if name.isidentifier() else is_quotable(name)


def is_quotable(text: str) -> bool:
    """Whether the text stands for itself in quotes of either kind."""
    return text.isprintable() and not _QUOTES.intersection(text)


def rename_clashes(names: Iterable[str], taken: Container[str]) -> dict[str, str]:
    """Other names for attributes that are taken, or that generated code cannot get at."""
    wanted = set(names)
    found: dict[str, str] = {}
    for name in sorted(wanted):
        if name not in taken and is_attribute(name):
            continue
        new = name if is_attribute(name) else make_identifier(name)
        new = f"{new}_" if new == name or keyword.iskeyword(new) else new
        found[name] = find_free_name(
            new, lambda n: n in taken or n in wanted or n in found.values(), numbered=False
        )
    return found


def require_attributes(graph: Graph) -> None:
    """That code of a graph gets at the attributes it means: whatever else would be run as code."""
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module", "call_method"):
            if not all(map(is_attribute, str(node.target).split("."))):
                raise InternalError(f"the attribute {node.target!r} cannot be written as code")


# Attribute paths for the state of a program, beside the attributes that modules have anyway.
#
# A model may have a parameter or a child named `graph`, which a `GraphModule` has a use of its own
# for, or `class`, which generated code cannot name. There it becomes `graph_` and `class_`.

CONSTANTS = "_graphport_constants"
"""Where a module says which of its buffers are constants of the program that it was made from."""

_OWN_ATTRIBUTES = (CONSTANTS, "_graphport_signature", "_in_spec", "_out_spec")


@functools.cache
def list_module_attributes() -> frozenset[str]:
    """Those of any module."""
    return frozenset({*dir(nn.Module), *vars(nn.Module()), "forward"})


@functools.cache
def list_graph_module_attributes() -> frozenset[str]:
    """Those of a module that runs a graph, also of one whose code is generated when needed."""
    bare = GraphModule(nn.Module(), Graph())
    names = {*dir(bare), *vars(bare), *dir(LazyGraphModule)}
    return frozenset({*names, *list_module_attributes(), *_OWN_ATTRIBUTES})


class AttributePaths:
    """Paths of attributes at which a module that runs a graph has what a program names."""

    def __init__(self, paths: Iterable[str]) -> None:
        parts = [path.split(".") for path in paths]
        self._first = rename_clashes((first for first, *_ in parts), list_graph_module_attributes())
        self._below = rename_clashes(
            set().union(*(below for _, *below in parts)), list_module_attributes()
        )

    def __call__(self, path: str) -> str:
        if not self._first and not self._below:
            return path
        first, *below = path.split(".")
        return ".".join([self._first.get(first, first), *(self._below.get(p, p) for p in below)])


# Generates Python that flattens and builds containers of a known structure.
#
# `torch.utils._pytree` finds out at each call what the structure of the arguments is, at a few
# microseconds per container and leaf. A program knows what it has to be: tuples, lists and dicts
# with plain keys are read by index and key, in generated code. Other containers are left to pytree.

_LITERALS = {tuple: "({})", list: "[{}]", dict: "{{{}}}"}


def _child_keys(spec: TreeSpec) -> list[object] | None:
    """What the children of a container are read by; None if pytree has to flatten it."""
    if spec.type is tuple or spec.type is list:
        return list(range(spec.num_children))
    if spec.type is dict and all(type(key) in (str, int) for key in spec.context):
        return list(spec.context)
    return None


def emit_leaves(spec: TreeSpec, source: str) -> list[str]:
    """Expressions for the leaves of `source`, which has this structure; some may be starred."""
    if spec.is_leaf():
        return [source]
    keys = _child_keys(spec)
    if keys is None:
        return [f"*pytree.tree_leaves({source})"]
    pairs = zip(keys, spec.children(), strict=True)
    return [e for key, child in pairs for e in emit_leaves(child, f"{source}[{key!r}]")]


def emit_literal(spec: TreeSpec, leaves: Iterator[str]) -> str | None:
    """The container with these leaves as an expression; None if only pytree can make it."""
    if spec.is_leaf():
        return next(leaves)
    keys = _child_keys(spec)
    if keys is None:
        return None
    parts = [emit_literal(child, leaves) for child in spec.children()]
    if None in parts:
        return None
    if spec.type is dict:
        parts = [f"{key!r}: {part}" for key, part in zip(keys, parts, strict=True)]
    return _LITERALS[spec.type].format("".join(f"{part}, " for part in parts))


class Unpacking:
    """Statements that flatten arguments and `return None` where the structure is another one."""

    def __init__(self, leaves: Iterable[str], *, check_leaves: bool) -> None:
        """`leaves` are the variables to put leaves into; those may prove to be containers too."""
        self.lines: list[str] = []
        self.names: dict[str, object] = {
            "tree_flatten": pytree.tree_flatten,
            "tree_is_leaf": pytree.tree_is_leaf,
        }
        self._leaves = iter(leaves)
        self._check_leaves = check_leaves
        self._count = 0

    def take(self, spec: TreeSpec, source: str) -> None:
        """Flatten the value of the expression `source`."""
        if spec.is_leaf():
            leaf = next(self._leaves)
            self.lines.append(f"{leaf} = {source}")
            if self._check_leaves:
                self.lines.append(
                    f"if not isinstance({leaf}, Tensor) and not tree_is_leaf({leaf}): return None"
                )
            return
        name = f"container{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {source}")
        keys = _child_keys(spec)
        if keys is None:
            self._flatten(spec, name)
            return
        kind = spec.type.__name__
        # A program may depend on the order of the keys.
        other = f"[*{name}] != {keys!r}" if spec.type is dict else f"len({name}) != {len(keys)}"
        self.lines.append(f"if type({name}) is not {kind} or {other}: return None")
        for key, child in zip(keys, spec.children(), strict=True):
            self.take(child, f"{name}[{key!r}]")

    def _flatten(self, spec: TreeSpec, name: str) -> None:
        """A container that only pytree can look into."""
        self.names[f"{name}_spec"] = spec
        self.lines.append(f"{name}, found = tree_flatten({name})")
        self.lines.append(f"if found != {name}_spec: return None")
        leaves = [next(self._leaves) for _ in range(spec.num_leaves)]
        if leaves:
            self.lines.append(f"{', '.join(leaves)}, = {name}")


def fit_structure(value: object, spec: TreeSpec) -> PyTree:
    """A value as containers of this structure, where that is only another way to write them.

    That is a dict in another order, a `torch.Size` or a named tuple for a tuple, and a tensor for
    the parts that it is made of.
    """
    children = spec.children()
    if spec.type is tuple and isinstance(value, tuple) and len(value) == len(children):
        return tuple(map(fit_structure, value, children))
    if spec.type is list and type(value) is list and len(value) == len(children):
        return list(map(fit_structure, value, children))
    if spec.type is dict and type(value) is dict and value.keys() == set(spec.context):
        return {
            key: fit_structure(value[key], child)
            for key, child in zip(spec.context, children, strict=True)
        }
    return split(value) if spec.type is Parts and is_wrapper(value) else value


def describe_difference(want: TreeSpec, got: TreeSpec, path: str) -> str:
    """Where two structures that are not equal first differ, in words."""
    before, now = _describe_spec(want), _describe_spec(got)
    if before != now:
        return f"{path} was {before} when the program was captured and is now {now}"
    keys = _child_keys(want)
    if keys is None:
        return f"{path} has another structure inside than when the program was captured"
    pairs = zip(keys, want.children(), got.children(), strict=True)
    return next(describe_difference(a, b, f"{path}[{key!r}]") for key, a, b in pairs if a != b)


def _describe_spec(spec: TreeSpec) -> str:
    if spec.is_leaf():
        return "a single value"
    if spec.type is dict:
        return f"a dict with the keys {spec.context}"
    kind = spec.context.kind if spec.type is Parts else spec.type
    return f"a {kind.__name__} of {spec.num_children}"
