"""What tests share: a program is compared with eager PyTorch, and its metadata with what runs.

`check` is the one to use: it captures, validates, runs at the example and at other inputs, compares
results and mutation of the inputs with eager, and compares the `val` of every node with the tensor
that the node really computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.errors import SerializationError, SpecError
from graphport.program.control import PYTHON_KERNELS_IF_EMPTY
from graphport.program.signature import InputKind
from graphport.symbolic import Expr, evaluate, symbols
from graphport.symbolic.bridge import from_torch
from tests.program.saved import check_round_trip

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def check(
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    others: Sequence[tuple[Any, ...]] = (),
    layout: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> gp.ExportedProgram:
    """Capture `target`, and compare with eager at the example and at other positional inputs."""
    kwargs = kwargs or {}
    before = snapshot_state(target)
    ep = gp.export(target, args, kwargs, dynamic_shapes=dynamic_shapes)
    assert_same(before, snapshot_state(target), "capture changed the module")
    ep.validate()
    for inputs in ((args, kwargs), *((other, kwargs) for other in others)):
        compare(ep, target, inputs, rtol=rtol, atol=atol)
        compare_metadata(ep, inputs, layout=layout)
    check_saved(ep, target, (args, kwargs), rtol=rtol, atol=atol)
    check_captured_again(ep, target, (args, kwargs), dynamic_shapes, rtol=rtol, atol=atol)
    return ep


# What a file cannot hold, and tests capture all the same.
NOT_SAVED = ("has no name to be saved under", "there is no data to save", "has no data that can")


def check_saved(
    ep: gp.ExportedProgram, target: Callable[..., Any], inputs: Inputs, **tolerances: Any
) -> None:
    """The program is the same after saving and loading, and gives the same results."""
    try:
        back = check_round_trip(ep)
    except SerializationError as error:
        if not any(reason in error.what for reason in NOT_SAVED):
            raise
    else:
        compare(back, target, inputs, **tolerances)


def check_captured_again(
    ep: gp.ExportedProgram,
    target: Callable[..., Any],
    inputs: Inputs,
    dynamic_shapes: Any,
    **tolerances: Any,
) -> None:
    """Capturing the program itself gives a program with the same inputs and the same results."""
    args, kwargs = inputs
    spec = dynamic_shapes
    if isinstance(spec, tuple) and len(spec) == 1 and isinstance(spec[0], tuple):
        spec = spec[0]  # written against `*args`, which are arguments of their own now
    try:
        again = gp.export(ep.module(), args, kwargs, dynamic_shapes=spec)
    except SpecError:  # against `**kwargs`, or by the name of `*args`
        return
    again.validate()
    for one, other in ((again, ep), (ep, again)):
        targets = {s.target for s in one.graph_signature.input_specs}
        assert targets <= {s.target for s in other.graph_signature.input_specs}
    compare(again, target, inputs, **tolerances)


def compare(
    ep: gp.ExportedProgram,
    target: Callable[..., Any],
    inputs: Inputs,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """The program and eager give the same result, and leave the same in their inputs and state."""
    ours, theirs = clone(inputs), clone(inputs)
    eager = copy.deepcopy(target) if isinstance(target, torch.nn.Module) else target
    module = ep.module()
    torch.manual_seed(0)
    want = eager(*theirs[0], **theirs[1])
    torch.manual_seed(0)
    have = module(*ours[0], **ours[1])
    assert_same(have, want, "results differ", rtol, atol)
    assert_same(ours, theirs, "inputs are left differently", rtol, atol)
    if isinstance(target, torch.nn.Module):
        own = dict(module.named_buffers())
        for name, buffer in eager.named_buffers():
            if name in own:
                assert_same(own[name], buffer, f"buffer {name} is left differently", rtol, atol)


def clone(inputs: Any) -> Any:
    """Copies of the tensors; one tensor that occurs twice stays one."""
    seen: dict[int, torch.Tensor] = {}

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in seen:
            # deepcopy and not clone: it keeps the strides of slices and expansions.
            seen[id(x)] = copy.deepcopy(x.detach()).requires_grad_(x.requires_grad)
        return seen[id(x)]

    return pytree.tree_map(one, inputs)


def snapshot_state(target: Any) -> dict[str, torch.Tensor]:
    if not isinstance(target, torch.nn.Module):
        return {}
    return {
        k: v.detach().clone() for k, v in target.state_dict().items() if v.device.type != "meta"
    }


def draws(ep: gp.ExportedProgram) -> bool:
    """Whether a program has dropout of core ATen, which draws other numbers than torch's eager."""
    dropout = torch.ops.aten.native_dropout.default
    return bool(ep.graph.find_nodes(op="call_function", target=dropout))


def assert_same(
    a: Any, b: Any, what: str, rtol: float | None = None, atol: float | None = None
) -> None:
    flat_a, spec_a = pytree.tree_flatten(a)
    flat_b, spec_b = pytree.tree_flatten(b)
    assert spec_a == spec_b, f"{what}: {spec_a} and {spec_b}"
    for x, y in zip(flat_a, flat_b, strict=True):
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(
                x, y, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
            )
        else:
            assert x == y and type(x) is type(y), f"{what}: {x!r} and {y!r}"


def compare_metadata(ep: gp.ExportedProgram, inputs: Inputs, *, layout: bool = True) -> None:
    """Every node computes a tensor of the size, dtype and, unless told not to, layout it says."""
    # Keywords in the order of the program, whatever the order in which they are passed.
    inputs = (inputs[0], {k: inputs[1][k] for k in ep.example_inputs[1]})
    leaves = iter(pytree.tree_leaves(clone(inputs)))
    flat = [
        next(leaves) if s.kind is InputKind.USER_INPUT else ep.tensor(s.target).detach().clone()
        for s in ep.graph_signature.input_specs
    ]
    env = ep.checks(pytree.tree_leaves(inputs))
    with torch.no_grad():
        # Whether a reshape copies may depend on a size being 1; the layout is stated for any other.
        _MetadataInterpreter(ep.graph_module, env, layout and 1 not in env.values()).run(*flat)


class _MetadataInterpreter(Interpreter):
    def __init__(
        self, module: Any, env: dict[Expr, int], layout: bool, inner: bool = False
    ) -> None:
        super().__init__(module)
        self.sizes = dict(env)
        self.layout = layout
        self.inner = inner

    def run_node(self, n: Node) -> Any:
        out = super().run_node(n)
        if n.op == "call_function" or (self.inner and n.op == "placeholder"):
            self._compare(n, n.meta["val"], out)
        return out

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, HigherOrderOperator):
            # How a scan lays out the slices that it passes differs between versions of torch.
            layout = self.layout and target is not torch.ops.higher_order.scan
            args = [self._within(a, layout) if isinstance(a, GraphModule) else a for a in args]
        # What `.module()` runs in place of operators that take no empty tensor.
        target = PYTHON_KERNELS_IF_EMPTY.get(target, target)
        return super().call_function(target, tuple(args), kwargs)

    def _within(self, module: GraphModule, layout: bool) -> Callable[..., Any]:
        """A graph within the graph; what it learns of data holds for one run of it."""

        def run(*args: Any) -> Any:
            return _MetadataInterpreter(module, self.sizes, layout, inner=True).run(*args)

        return run

    def _value(self, x: Any, actual: Any) -> Any:
        x = from_torch(x) if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) else x
        if type(x) is not Expr:
            return x
        x = x.scope.simplify(x)
        if type(x) is not Expr:
            return x
        if x.kind == "symbol" and x not in self.sizes:
            self.sizes[x] = actual  # data-dependent: learnt where it first appears
        if any(s not in self.sizes for s in symbols(x)):
            return actual
        return evaluate(x, self.sizes)

    def _compare(self, n: Node, val: Any, out: Any) -> None:
        if isinstance(out, (list, tuple)):
            for v, o in zip(val, out, strict=True):
                self._compare(n, v, o)
            return
        if not isinstance(out, torch.Tensor):
            if val is not None:
                assert self._value(val, out) == out, f"{n.format_node()}: {val} is {out}"
            return
        want = tuple(self._value(s, a) for s, a in zip(val.shape, out.shape, strict=True))
        assert want == tuple(out.shape), f"{n.format_node()}: {want} is {tuple(out.shape)}"
        assert val.dtype is out.dtype, f"{n.format_node()}: {val.dtype} is {out.dtype}"
        assert val.device == out.device, f"{n.format_node()}: {val.device} is {out.device}"
        if self.layout and out.numel() and 1 not in want:
            strides = tuple(
                self._value(s, a) for s, a in zip(val.stride(), out.stride(), strict=True)
            )
            assert strides == out.stride(), (
                f"{n.format_node()}: strides {strides} is {out.stride()}"
            )
