"""Lowers a region and runs it: its ONNX model, its session, bound inputs and outputs."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, is_
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import (
    OrtDevice,
    OrtValue,
    OrtValueVector,
    RunOptions,
    SessionIOBinding,
)
from torch import nn
from torch.fx import Node

from graphport.compat.operators import aten
from graphport.compat.torch import empty_strided_cpu, to_dlpack
from graphport.errors import ExportError, SessionError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.interface import Interface
from graphport.onnx.emit.ir import Graph, Value
from graphport.onnx.emit.model import build_model_proto
from graphport.onnx.exporter import lower_graph, read_custom_lowerings
from graphport.onnx.lower.lowerer import choose_opset
from graphport.onnx.options import ExportOptions
from graphport.onnx.program import convert_result
from graphport.onnx.target.session import Session, forkable_lock, to_ort_value, to_tensor
from graphport.onnx.target.targets import ORT
from graphport.program import ExportedProgram, InputKind
from graphport.program.extract import Subprogram, extract_region
from graphport.program.input_checks import MAX_OPERATIONS
from graphport.runtime.regions import Plan
from graphport.symbolic import Expr, symbols
from graphport.symbolic.printing import to_str
from graphport.tensors.abstract import Abstract, Size, describe, set_val
from graphport.tensors.concrete import address_range
from graphport.types import PyTree

Allocate = Callable[[Sequence[Any]], torch.Tensor]
"""Memory for a result, by the inputs of its region."""


# Memory of regions: preallocated results, inputs that overlap, weights that are frozen.
#
# Results whose sizes are known before a session runs are preallocated. Memory that ONNX Runtime has
# allocated cannot be resized by torch, which eager's results can: by `resize_`, or by being given
# as `out=`.


def make_allocators(outputs: Sequence[Value], inputs: Sequence[Node]) -> list[Allocate | None]:
    """By output, what allocates it; None where the inputs do not tell its sizes."""
    places = _locate_symbols(inputs)
    return [_make_allocator(value, places) for value in outputs]


def _make_allocator(value: Value, places: dict[Expr, str]) -> Allocate | None:
    if value.shape is None or None in value.shape:
        return None
    sizes: tuple[Any, ...] = tuple(value.shape)
    expressions = [n for n in sizes if isinstance(n, Expr)]
    if not all(s in places for n in expressions for s in symbols(n)):
        return None
    if any(n.size > MAX_OPERATIONS for n in expressions):
        return None  # not to be written out
    names: dict[str, Any] = {"math": math, "empty": torch.empty, "dtype": value.dtype}
    if expressions:
        text = "".join(f"{to_str(n, places)}, " for n in sizes)
        made = f"empty(({text}), dtype=dtype, device='cpu')"
    else:  # a third of the time of torch.empty: 0.7 of 2.1 microseconds for each result
        names["empty"] = empty_strided_cpu
        strides = torch.empty(sizes, device="meta").stride()
        made = f"empty({sizes}, {strides}, dtype)"
    allocate: Allocate = eval(f"lambda args: {made}", names)
    return allocate


def _locate_symbols(inputs: Sequence[Node]) -> dict[Expr, str]:
    """Where the symbols are to be read."""
    found: dict[Expr, str] = {}
    for i, node in enumerate(inputs):
        about = describe(node)
        if isinstance(about, Expr):
            rows: list[tuple[Size, str]] = [(about, f"args[{i}]")]
        else:
            sizes = about.sizes if isinstance(about, Abstract) else ()
            rows = [(size, f"args[{i}].shape[{d}]") for d, size in enumerate(sizes)]
        for size, place in rows:
            if isinstance(size, Expr) and size.kind == "symbol":
                found.setdefault(size, place)
    return found


# Inputs that share memory, which matters to a graph that writes to one of them.


def find_mutated_inputs(program: ExportedProgram) -> tuple[int, ...]:
    """The places of the inputs that a program writes to."""
    signature = program.graph_signature
    given = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    return tuple(sorted({given.index(n) for n in signature.user_inputs_to_mutate.values()}))


def has_overlap(args: Sequence[object], written: Sequence[int]) -> bool:
    """Whether another input overlaps one that is mutated.

    The graph was captured as if each had memory of its own. From the first element to the last: of
    columns that lie between one another, this says that they overlap.
    """
    for place in written:
        low, high = address_range(args[place])
        for i, t in enumerate(args):
            if i != place and isinstance(t, torch.Tensor) and t.data_ptr() < high:
                first, end = address_range(t)
                if low < end and first < end:
                    return True
    return False


# Frozen weights, which sessions have taken in: detects whether they were changed since.
#
# Torch counts writes to a tensor, but not those through `.data`. So a few numbers of each weight
# are compared as well: cheap enough for each call, and hardly any write leaves them alone.
#
# A call finds the caches full of weights, and everything that is looked at here costs a miss. So
# nothing is looked at twice, and the loops are those of C.

_version = attrgetter("_version")
_address = torch.Tensor.data_ptr


class FrozenWeights:
    """Tensors by their place among the inputs of a graph."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        kept = {i: t for i, t in tensors.items() if _can_be_watched(t)}
        self.places = tuple(kept)
        self._tensors = list(kept.values())
        self._storages = [t.untyped_storage() for t in self._tensors]
        """Storages, kept alive: the addresses that are compared stay valid."""
        self._versions = [*map(_version, self._tensors)]
        self._addresses = [*map(_address, self._tensors)]
        self._memory, self._spots = _map_memory(
            [a for t in self._tensors for a in _sample_addresses(t)]
        )
        self._numbers = self._memory.take(self._spots).tobytes()

    def has_changed(self, args: Sequence[object]) -> bool:
        """Whether one is another tensor, has another address, or other contents."""
        tensors = self._tensors
        return bool(tensors) and not (
            all(map(is_, map(args.__getitem__, self.places), tensors))
            and [*map(_version, tensors)] == self._versions
            # Before their memory is read: it may be gone.
            and [*map(_address, tensors)] == self._addresses
            and self._memory.take(self._spots).tobytes() == self._numbers
        )


def _can_be_watched(t: torch.Tensor) -> bool:
    return t.device.type == "cpu" and not t.is_inference() and t.layout is torch.strided


def _sample_addresses(t: torch.Tensor) -> list[int]:
    """Where three of its numbers are: the first, one in the middle, and the last."""
    if t.numel() == 0:
        return []
    steps = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    size = t.element_size()
    starts = (t.data_ptr() + size * place for place in (0, steps // 2, steps))
    return [word for a in starts for word in range(a // _WORD, (a + size - 1) // _WORD + 1)]


_WORD = 4
"""Octets that are read at once, at multiples of it: never beyond a page that a number is on."""


def _map_memory(words: Sequence[int]) -> tuple[Any, Any]:
    """The memory of the process from the first of some words to the last, and where they are.

    As one array, so that they are gathered by one call. The rest of it is never read.
    """
    first, last = (min(words), max(words)) if words else (0, -1)
    span = (ctypes.c_int32 * (last - first + 1)).from_address(first * _WORD)
    return np.ctypeslib.as_array(span), np.array([word - first for word in words], dtype=np.int64)


_OPEN_LOCK = forkable_lock()
_RECORDS: weakref.WeakSet[SessionRecord] = weakref.WeakSet()
_INHERITED: list[Session | None] = []
"""Sessions of the process before the fork: their threads are not here, so they are not closed."""


@dataclass(eq=False)
class SessionRecord:
    """A model that the backend runs, and the session that runs it."""

    model_proto: onnx.ModelProto
    """Without the weights, which the session has from torch."""
    make: Callable[[], Session]
    _made: Session | None = None

    def __post_init__(self) -> None:
        _RECORDS.add(self)

    @property
    def session(self) -> ort.InferenceSession:
        return self.open().session

    def open(self) -> Session:
        """The session; a process that was forked makes one of its own."""
        made = self._made
        if made is None:
            with _OPEN_LOCK:
                made = self._made = self._made or self.make()
        return made

    def forget(self) -> None:
        """Leave the session to the process that made it."""
        _INHERITED.append(self._made)
        self._made = None


def _forget_sessions() -> None:
    for record in list(_RECORDS):
        record.forget()


os.register_at_fork(after_in_child=_forget_sessions)


class Region(nn.Module):
    """Calls a session with tensors and numbers, in the order of the region's inputs.

    `static` says of each input whether it is a weight, the same tensor at most calls; `complex` are
    the places of those that go over as pairs of numbers. `allocators` are those of the outputs
    whose sizes are known; others are copied, since torch cannot resize memory of ONNX Runtime's.
    """

    def __init__(
        self,
        record: SessionRecord,
        interface: Interface,
        outputs: Sequence[Value],
        static: Sequence[bool],
        complex: Container[int],
        count: Callable[[], None],
        allocators: Sequence[Allocate | None],
    ) -> None:
        super().__init__()
        self.record = record
        self.count = count
        self.plain: list[tuple[str, int]] = []
        """Inputs that are bound as they are, and their positions."""
        self.others: list[tuple[str, int, Any]] = []
        """The rest, with what makes them values of ONNX Runtime."""
        for i in interface.inputs:
            if static[i.flat]:
                self.others.append((i.name, i.flat, _CachedWeight()))
            elif i.dtype in _DLPACK_DTYPES and i.flat not in complex:
                self.plain.append((i.name, i.flat))
            else:
                self.others.append((i.name, i.flat, _to_ort_value))
        self.dtypes = {i.flat: i.dtype for i in interface.inputs}
        self.results = [(r.kind, r.what) for r in interface.results]
        kinds = {v.name: v.dtype for v in outputs}
        allocate = {v.name: allocator for v, allocator in zip(outputs, allocators, strict=True)}
        self.names = [what for kind, what in self.results if kind not in ("input", "constant")]
        self.in_order = all(kind == "tensor" for kind, _ in self.results)
        self.allocators = [
            (name, allocate[name], kinds[name] in _DLPACK_DTYPES) for name in self.names
        ]
        self.are_all_known = all(allocator is not None for _, allocator, _ in self.allocators)
        self.devices = [_HOST] * len(self.names)

    def forward(self, *args: PyTree) -> Any:
        session = self.record.open().session._sess
        feeds = {}
        for name, place in self.plain:
            x = args[place]
            if type(x) is not torch.Tensor or not x.is_contiguous() or x.is_neg():
                x = _to_contiguous(x, self.dtypes[place])
            feeds[name] = _from_dlpack(to_dlpack(x), False)
        for name, place, value_of in self.others:
            feeds[name] = value_of(args[place])
        run = self._run_preallocated if self.are_all_known else self._run_partly_preallocated
        try:
            found = run(session, feeds, args)
        except Exception as error:  # whatever a provider raises
            raise SessionError(f"ONNX Runtime: {error}") from error
        self.count()
        return found if self.in_order else self._arrange_results(found, args)

    __call__ = forward  # no hooks, which cost microseconds

    def _run_preallocated(
        self, session: Any, feeds: dict[str, object], args: Sequence[object]
    ) -> list[torch.Tensor]:
        """Results in memory of torch's, for a microsecond each."""
        given, results, found = OrtValueVector(), OrtValueVector(), []
        for value in feeds.values():
            given.push_back(value)
        for _, allocator, is_plain in self.allocators:
            t = allocator(args)  # type: ignore[misc]  # all are known
            found.append(t)
            results.push_back(
                _from_dlpack(to_dlpack(t), False) if is_plain else to_ort_value(t)._ortvalue
            )
        session.run_with_ortvaluevector(
            RunOptions(), list(feeds), given, self.names, results, self.devices
        )
        return found

    def _run_partly_preallocated(
        self, session: Any, feeds: dict[str, object], args: Sequence[object]
    ) -> list[torch.Tensor]:
        """Results in memory of torch's, where their sizes are known; copies of the others."""
        binding = SessionIOBinding(session)
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        found: list[torch.Tensor | None] = []
        for name, allocator, _ in self.allocators:
            if allocator is None:
                binding.bind_output(name, _HOST)
                found.append(None)
            else:
                t = allocator(args)
                binding.bind_ortvalue_output(name, to_ort_value(t)._ortvalue)
                found.append(t)
        session.run_with_iobinding(binding, None)
        values = binding.get_outputs()
        return [
            t if t is not None else to_tensor(ort.OrtValue(values[i])).clone()
            for i, t in enumerate(found)
        ]

    def _arrange_results(self, found: list[torch.Tensor], args: Sequence[object]) -> list[PyTree]:
        by_name = dict(zip(self.names, found, strict=True))
        return [
            what
            if kind == "constant"
            else args[what]
            if kind == "input"
            else convert_result(kind, by_name[what])
            for kind, what in self.results
        ]


_HOST = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
_from_dlpack = OrtValue.from_dlpack
# What DLPack carries as it is, in both directions.
_DLPACK_DTYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
}


def _to_contiguous(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor or a number as a contiguous tensor."""
    if not isinstance(x, torch.Tensor):
        return torch.tensor(x, dtype=dtype, device="cpu")
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.detach().resolve_neg().contiguous()


def _to_ort_value(x: object) -> Any:
    return to_ort_value(_to_contiguous(x, torch.bool))._ortvalue


class _CachedWeight:
    """Caches the OrtValue of a tensor."""

    def __init__(self) -> None:
        self.known: tuple[Any, int, Any] = (None, 0, None)

    def __call__(self, t: torch.Tensor) -> object:
        tensor, address, value = self.known
        if tensor is t and address == t.data_ptr():
            return value
        value = _to_ort_value(t)
        if (
            t.is_contiguous() and not t.is_complex() and not t.is_neg()
        ):  # else a copy, which does not follow it
            self.known = (t, t.data_ptr(), value)
        return value


# Lowers the regions of a plan to ONNX; what cannot be lowered after all falls back to torch.


@dataclass(frozen=True)
class LoweredRegion:
    """A region in ONNX."""

    part: Subprogram
    graph: Graph
    interface: Interface
    opset: int

    def model(self) -> Any:
        """The model without its weights."""
        return build_model_proto(self.graph, self.opset)

    @property
    def tensors(self) -> dict[str, Any]:
        return {name: value.data for name, value in self.graph.initializers.items()}


def lower_regions(
    plan: Plan, weights: Mapping[Node, torch.Tensor], options: ExportOptions
) -> dict[tuple[Node, ...], LoweredRegion]:
    """Each region of the plan in ONNX; the plan has fewer, or smaller ones, if it has to."""
    while True:
        symbol_nodes = _find_symbol_nodes(plan)
        found: dict[tuple[Node, ...], LoweredRegion] = {}
        for step in plan.steps:
            if not step.is_region:
                continue
            made = _lower_region(step.nodes, plan, weights, symbol_nodes, options)
            if not isinstance(made, LoweredRegion):
                plan.refuse(*made)
                break
            found[step.nodes] = made
        else:
            return found


def _lower_region(
    nodes: Sequence[Node],
    plan: Plan,
    weights: Mapping[Node, torch.Tensor],
    symbol_nodes: Mapping[Expr, Node],
    options: ExportOptions,
) -> LoweredRegion | tuple[Sequence[Node], str]:
    """The region in ONNX, or the nodes that are to be torch's and why."""
    regions = {n for step in plan.steps if step.is_region for n in step.nodes}
    part = extract_region(nodes, plan.program, weights, symbol_nodes, regions)
    opset = options.opset or choose_opset(part.program.graph_module, ORT)
    builder = Builder(part.program.scope, opset, options.target)
    names = [n.name for n in part.inputs]
    try:
        interface = lower_graph(
            part.program,
            builder,
            read_custom_lowerings(options),
            replace(options, input_names=names, output_names=None, share_weights=True),
        )
    except ExportError as error:
        culprit = part.original.get(builder.origin) if builder.origin is not None else None
        refused = [culprit] if culprit in nodes else nodes
        return [n for n in refused if n is not None], error.what
    return LoweredRegion(part, builder.main, interface, opset)


def _find_symbol_nodes(plan: Plan) -> dict[Expr, Node]:
    """By symbol, a node that has its value: a number among the inputs, or a size that is read."""
    found: dict[Expr, Node] = {}
    graph, read = plan.graph, aten.sym_size.int
    for node in graph.nodes:
        about = describe(node)
        if isinstance(about, Expr) and about.kind == "symbol":
            found.setdefault(about, node)
    first = next((n for n in graph.nodes if n.op not in ("placeholder", "get_attr")), None)
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        about = describe(node)
        sizes = about.sizes if isinstance(about, Abstract) else ()
        for dim, size in enumerate(sizes):
            if isinstance(size, Expr) and size.kind == "symbol" and size not in found and first:
                with graph.inserting_before(first):
                    found[size] = graph.call_function(read, (node, dim))
                set_val(found[size], _to_torch_size(size))
    plan.settle()
    return found


def _to_torch_size(size: Expr) -> Any:
    from graphport.symbolic.bridge import to_torch

    return to_torch(size)
