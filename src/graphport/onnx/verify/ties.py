"""Excuses results that differ only by ties: choices between equal or nearly equal numbers.

Which of two equal scores `topk` names is left open, and two that are equal up to rounding may come
in either order; a comparison or a `floor` may fall to either side. Eager is run again with the
model's decisions in place of its own, one after the other, as far as they are right: right for the
model's own operands, which must agree with eager's, or pointing at numbers equal to those that
eager's choice points at. What the model then gives has to be what eager gives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Interpreter, Node

from graphport.onnx.verify.compare import Tolerance, compare_results
from graphport.onnx.verify.divergence import Probe
from graphport.ops.registry import overload_table, overloads
from graphport.tensors.abstract import Abstract, describe
from graphport.types import Args, Argument

Tolerances = Callable[[str], Tolerance]


@dataclass(frozen=True)
class Choice:
    """An operator that gives places in its operand `self`."""

    result: int | None = None
    """The number of that result, of several."""
    dim: int | None = None
    """Along which it looks if that is not said; None: at all elements."""
    spatial: int = 0
    """If not 0: places among the elements of so many last dims."""
    once: bool = False
    """Whether no place comes twice."""


_CHOICES: dict[Any, Choice] = overload_table(
    {
        "argmax argmin": Choice(),
        "argsort.default,stable": Choice(dim=-1, once=True),
        "max.dim min.dim": Choice(1),
        "sort.default,stable topk": Choice(1, -1, once=True),
        "median.dim nanmedian.dim kthvalue": Choice(1, -1),
        "cummax cummin": Choice(1),
        "max_pool2d_with_indices": Choice(1, spatial=2),
        "max_pool3d_with_indices": Choice(1, spatial=3),
        "adaptive_max_pool2d": Choice(1, spatial=2),
        "adaptive_max_pool3d": Choice(1, spatial=3),
    }
)

# Floats that jump where their operand passes a number.
_DISCONTINUOUS = set(
    overloads("""
        floor ceil round.default,decimals trunc fix frac sign sgn heaviside remainder.Tensor,Scalar
        fmod.Tensor,Scalar floor_divide div.Tensor_mode,Scalar_mode median nanmedian mode
        fake_quantize_per_tensor_affine.default,tensor_qparams fake_quantize_per_channel_affine
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    """)
)


class Ties:
    """Eager with the model's decisions, for some inputs; run when it is first asked for."""

    def __init__(
        self, probe: Probe, tolerance: Tolerances, results: Mapping[str, torch.Tensor]
    ) -> None:
        self.probe = probe
        self.tolerance = tolerance
        self.results = results
        """What the model gives for nodes; of a model that tells nothing else, these are known."""

    def excuse(self, output: Node, have: torch.Tensor) -> bool:
        """Whether a result of the model is eager's, once eager decides as the model does."""
        again = self._results.get(output.name)
        return again is not None and compare_results(have, again, self.tolerance(output.name)).ok

    @cached_property
    def _results(self) -> Mapping[str, object]:
        """The program's results; none if the model decides nothing otherwise."""
        probe = self.probe
        known = {*probe.values, *self.results}
        asked = [n for n in probe.graph.nodes if _is_decision(n)]
        restored = {n.name: r for n in asked if (r := _find_dequantized(n, known)) is not None}
        parts = {n.name: _find_decisions(n, {*known, *restored}) for n in asked}
        decisions = [n for n in probe.graph.nodes if parts.get(n.name)]
        if not decisions:
            return {}
        wanted = {part.name for n in decisions for part in parts[n.name].values()}
        wanted = {restored[name].name if name in restored else name for name in wanted}
        wanted |= {i.name for n in decisions for i in n.all_input_nodes if i.name in known}
        run = _DecisionReplay(probe.module())
        run.model = {**self.results, **probe.model(wanted - self.results.keys())}
        run.parts, run.restored, run.tolerance = parts, restored, self.tolerance
        run.results = {n.name: None for n in probe.graph.output_node().all_input_nodes}
        with torch.no_grad():
            run.run(*probe.inputs, enable_io_processing=False)
        return run.results if run.accepted else {}


def _is_decision(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if node.target in _CHOICES or node.target in _DISCONTINUOUS:
        return True
    inputs = [k for i in node.all_input_nodes for k in _list_dtypes(i)]
    return _is_discrete(node) and any(k.is_floating_point or k.is_complex for k in inputs)


def _find_dequantized(node: Node, known: set[str]) -> Node | None:
    """What the program makes floats of integers that the model has in another form, or not at all.

    Quantised once more, they are the same integers.
    """
    if node.name in known or not _has_name(node, "quantize_"):
        return None
    made = (u for u in node.users if _has_name(u, "dequantize_") and u.args[0] is node)
    return next((u for u in made if u.name in known), None)


def _has_name(node: Node, name: str) -> bool:
    target: Any = node.target
    return getattr(target, "_opname", "").startswith(name)


def _list_dtypes(node: Node) -> list[torch.dtype]:
    val = describe(node)
    parts = val if isinstance(val, tuple) else (val,)
    return [v.dtype for v in parts if isinstance(v, Abstract)]


def _find_decisions(node: Node, known: set[str]) -> dict[int | None, Node]:
    """The decisions of an operator that are known of the model: by number, if it has several."""
    parts: dict[Any, Node] = {None: node}
    if node.name not in known:
        parts = {u.args[1]: u for u in node.users if u.target is operator.getitem}
    return {
        i: n
        for i, n in parts.items()
        if n.name in known and (node.target in _DISCONTINUOUS or _is_discrete(n))
    }


def _is_discrete(node: Node) -> bool:
    return any(not k.is_floating_point and not k.is_complex for k in _list_dtypes(node))


class _DecisionReplay(Interpreter):
    """Runs the program with decisions of the model in place of its own, where they are right."""

    model: dict[str, torch.Tensor]
    parts: Mapping[str, Mapping[int | None, Node]]
    restored: Mapping[str, Node]
    tolerance: Tolerances
    results: dict[str, Any]
    accepted = 0

    def run_node(self, n: Node) -> Argument:
        own = super().run_node(n)
        parts = self.parts.get(n.name)
        if n.name in self.restored:
            (_, *rest), kwargs = self.fetch_args_kwargs_from_env(n)
            target: Any = n.target
            self.model[n.name] = target(self.model[self.restored[n.name].name], *rest, **kwargs)
        if parts:
            own = self._decide(n, own, parts)
        if n.name in self.results:
            self.results[n.name] = own.clone() if isinstance(own, torch.Tensor) else own
        return own

    def _decide(self, n: Node, own: Any, parts: Mapping[int | None, Node]) -> Any:
        if not any(
            _is_different(_select_result(own, i), self.model[part.name])
            for i, part in parts.items()
        ):
            return own
        args, kwargs = self._operands(n)
        if args is None:
            return own
        target: Any = n.target
        theirs = target(*args, **kwargs)
        results: dict[int | None, Any] = {None: own} if None in parts else dict(enumerate(own))
        for i, part in parts.items():
            have = self.model[part.name]
            if _is_different(results[i], have) and self._is_right(
                n, i, have, _select_result(theirs, i), args
            ):
                results[i] = have
                self.accepted += 1
        return results[None] if None in parts else tuple(results.values())

    def _operands(self, n: Node) -> Any:
        """The model's operands, if they agree with eager's; eager's where the model has none."""
        agree = True

        def given(node: Node) -> Any:
            nonlocal agree
            value, have = self.env[node], self.model.get(node.name)
            if have is None or not isinstance(value, torch.Tensor):
                return value
            agree = agree and compare_results(have, value, self.tolerance(node.name)).ok
            return have

        args = torch.fx.map_arg(n.args, given)
        kwargs = torch.fx.map_arg(n.kwargs, given)
        return (args, kwargs) if agree else (None, None)

    def _is_right(self, n: Node, i: int | None, have: Any, theirs: Any, args: Args) -> bool:
        """Whether a decision is one that the model's own operands allow."""
        if compare_results(have, theirs, self.tolerance(n.name)).ok:
            return True
        choice = _CHOICES.get(n.target)
        if choice is None or choice.result != i or have.shape != theirs.shape:
            return False
        mine, others = (
            _gather_choices(args[0], p, _read_argument(n, "dim", choice.dim), choice)
            for p in (have, theirs)
        )
        return (
            mine is not None and compare_results(mine, others, self.tolerance(_first_operand(n))).ok
        )


def _gather_choices(scores: Any, places: Any, dim: int | None, choice: Choice) -> Any:
    """The elements that places point at; None if they are no choice at all."""
    if choice.spatial:
        scores, places, dim = scores.flatten(-choice.spatial), places.flatten(-choice.spatial), -1
    elif dim is None or not scores.ndim:
        scores, places, dim = scores.reshape(-1), places.reshape(-1), 0
    elif places.ndim < scores.ndim:
        places = places.unsqueeze(dim)
    if bool(((places < 0) | (places >= scores.shape[dim])).any()):
        return None
    if choice.once and bool((places.sort(dim).values.diff(dim=dim) == 0).any()):
        return None
    return torch.take_along_dim(scores, places, dim)


def _first_operand(n: Node) -> str:
    return n.all_input_nodes[0].name


def _read_argument(n: Node, name: str, otherwise: object) -> Any:
    target: Any = n.target
    names = (a.name for a in target._schema.arguments)
    return {**dict(zip(names, n.args, strict=False)), **n.kwargs}.get(name, otherwise)


def _select_result(value: Any, i: int | None) -> Argument:
    return value if i is None else value[i]


def _is_different(own: object, have: torch.Tensor) -> bool:
    if not isinstance(own, torch.Tensor) or own.shape != have.shape or own.dtype != have.dtype:
        return True
    return not bool(((own == have) | ((own != own) & (have != have))).all())
