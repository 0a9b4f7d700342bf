"""Rules for graphs within a graph: what a call hands to them and what it says that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

higher_order = torch.ops.higher_order


class Kind(NamedTuple):
    """What a value is: a Python type, and of a tensor its dtype, device and sizes."""

    type: type
    dtype: Any = None
    device: Any = None
    sizes: tuple[Any, ...] = ()

    def fits(self, other: Kind) -> bool:
        """The same, as far as sizes are numbers."""
        return self[:3] == other[:3] and len(self.sizes) == len(other.sizes) and all(
            p == q for p, q in zip(self.sizes, other.sizes, strict=True)
            if type(p) is int and type(q) is int
        )  # fmt: skip

    def __str__(self) -> str:
        if self.type is not torch.Tensor:
            return self.type.__name__
        sizes = ", ".join(map(str, self.sizes))
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"


_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def kind(x: Any) -> Kind:
    """Of an argument or result: a node or a constant."""
    val = x.meta.get("val") if isinstance(x, Node) else x
    if isinstance(val, torch.Tensor):
        return Kind(torch.Tensor, val.dtype, val.device, tuple(val.shape))
    plain = _NUMBERS.get(type(val), type(val))
    return Kind(int if plain is bool else plain)  # a truth from data counts as 0 or 1


def _each(xs: Sequence[Any]) -> list[Kind]:
    return [kind(x) for x in xs]


def _elements(xs: Sequence[Any]) -> list[Kind]:
    return [k._replace(sizes=k.sizes[1:]) for k in _each(xs)]


class Use(NamedTuple):
    """How a call uses one of its graphs."""

    takes: list[Kind]
    returns: list[Kind] | None
    """None where the call does not say."""


def _cond(args: Any, out: list[Kind]) -> list[Use]:
    return [Use(_each(args[3]), out)] * 2


def _while_loop(args: Any, out: list[Kind]) -> list[Use]:
    given = [*_each(args[2]), *_each(args[3])]
    return [Use(given, None), Use(given, out)]


def _map(args: Any, out: list[Kind]) -> list[Use]:
    rows = [k._replace(sizes=k.sizes[1:]) for k in out]
    return [Use([*_elements(args[1]), *_each(args[2])], rows)]


def _scan(args: Any, out: list[Kind]) -> list[Use]:
    count = len(args[1])
    rows = [k._replace(sizes=k.sizes[1:]) for k in out[count:]]
    given = [*_each(args[1]), *_elements(args[2]), *_each(args[3])]
    return [Use(given, [*out[:count], *rows])]


_USES: dict[Any, Callable[[Any, list[Kind]], list[Use]]] = {
    higher_order.cond: _cond, higher_order.while_loop: _while_loop,
    higher_order.map_impl: _map, higher_order.scan: _scan,
}  # fmt: skip


def check_call(node: Node, owner: GraphModule) -> list[str]:
    """What is wrong with a call of graphs that are children of `owner`."""
    graphs = [n for n in node.all_input_nodes if n.op == "get_attr"]
    problems = []
    modules = []
    for n in graphs:
        module = getattr(owner, str(n.target), None)
        if not isinstance(module, GraphModule):
            problems.append(f"{n.name}: there is no graph {n.target!r}")
        modules.append(module)
    find = _USES.get(node.target)
    if problems or find is None:
        return problems
    val = node.meta.get("val")
    out = _each(val if isinstance(val, (tuple, list)) else [val])
    for n, module, use in zip(graphs, modules, find(node.args, out), strict=True):
        assert isinstance(module, GraphModule)
        inputs = [p for p in module.graph.nodes if p.op == "placeholder"]
        problems.extend(_compare(f"{node.name}: {n.target} takes", _each(inputs), use.takes))
        if use.returns is not None:
            last = next(p for p in reversed(module.graph.nodes) if p.op == "output")
            results = pytree.tree_leaves(last.args[0], is_leaf=lambda x: x is None)
            found = _each(results)
            problems.extend(_compare(f"{node.name}: {n.target} returns", found, use.returns))
    return problems


def _compare(what: str, have: list[Kind], want: list[Kind]) -> list[str]:
    if len(have) != len(want):
        return [f"{what} {len(have)} values, the call says {len(want)}"]
    return [
        f"{what} {h} as value {i}, the call says {w}"
        for i, (h, w) in enumerate(zip(have, want, strict=True))
        if not h.fits(w)
    ]
