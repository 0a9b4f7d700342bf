"""Lifts parameters, buffers and constants to graph inputs.

They are recognised by identity when an operator receives them; the module is never touched. Every
parameter and buffer is an input of the graph, used or not. Any other tensor becomes one when an
operator first receives it: under its attribute's name if a module holds it, else as a literal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from graphport import source
from graphport.capture.trace import registries, values
from graphport.capture.trace.recorder import Namespace, Recorder
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import (
    DisableTorchFunction,
    is_dead_tensor_wrapper,
    is_functorch_wrapped_tensor,
)
from graphport.errors import UnsupportedError
from graphport.ops import Abstract
from graphport.program import CONSTANTS, InputKind
from graphport.tensors.abstract import contiguous_strides, make_abstract_tensor, set_val
from graphport.tensors.concrete import (
    is_lazy,
    offset_of,
    require_plain,
    sizes_of,
    storage_key,
    strides_of,
)
from graphport.tensors.subclasses import find_parts

_PREFIX = {InputKind.PARAMETER: "p", InputKind.BUFFER: "b", InputKind.CONSTANT_TENSOR: "c"}

_KIND_NAMES = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


@dataclass(slots=True)
class StateEntry:
    """A tensor of the program's state, and the graph input that stands for it."""

    tensor: Any
    """A tensor, or a custom object."""
    kind: InputKind
    names: list[str]
    node: Node
    value: Any
    """What the graph knows of a tensor; None for an object."""
    persistent: bool | None = None
    replaced: Value | None = None
    """What the program assigned to the buffer's name, if it did."""


def has_storage_offset(t: torch.Tensor) -> bool:
    """Whether there is memory before the tensor that it is a view of."""
    offset = t.storage_offset()
    return not isinstance(offset, int) or offset != 0


def storage_elements(t: torch.Tensor) -> int | None:
    """How many elements there are in memory from where a tensor begins; None if it has none."""
    if t.is_meta or type(t) not in _PLAIN_CLASSES or is_functorch_wrapped_tensor(t):
        return None
    with DisableTorchFunction():  # it is not the program that asks for memory
        return t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()


_SPARSE = (torch.sparse_coo, torch.sparse_csr)
"""Layouts of tensors that are looked at when they are used: see `handlers.sparse`."""
_PLAIN_CLASSES = (torch.Tensor, nn.Parameter)


def describe_tensor(t: torch.Tensor, home: torch.device | None) -> Abstract:
    """What there is to know of a tensor from outside the program."""
    sizes, strides = sizes_of(t), strides_of(t)
    device = home if home is not None and t.is_meta else t.device
    return Abstract(
        sizes, t.dtype, device, None if strides == contiguous_strides(sizes) else strides
    )


class State:
    """Everything an operator may receive that is not an input or an intermediate result."""

    def __init__(self, root: nn.Module | None, recorder: Recorder, names: Namespace) -> None:
        self.root = root
        self.graph = recorder.graph
        self.names = names
        self.entries: list[StateEntry] = []
        self.device: torch.device | None = None
        """The device that tensors on the meta device count as, in a program that has others too."""
        self.first_input: Node | None = None
        """Inputs for state go before this node."""
        self._by_id: dict[int, StateEntry] = {}
        self._attributes: dict[int, list[str]] | None = None
        self._memory: dict[tuple[str, int], list[StateEntry]] = {}
        self._literals = 0

    def lift_module(self) -> None:
        """Make every parameter and buffer an input, in the order of the module."""
        if self.root is None:
            return
        for name, p in registries.named_parameters(self.root):
            if not is_lazy(p) and p.layout not in _SPARSE:
                for part, t in find_parts(name, p):
                    kind = InputKind.PARAMETER if t is p else InputKind.BUFFER
                    self._add(t, kind, part, None if t is p else True)
        persistent = set(registries.state_dict(self.root))
        constants = _find_program_constants(self.root)
        for name, b in registries.named_buffers(self.root):
            if name in constants:
                self._add(b, InputKind.CONSTANT_TENSOR, name).value.constant = b
            elif not is_lazy(b) and b.layout not in _SPARSE:
                for part, t in find_parts(name, b):
                    self._add(t, InputKind.BUFFER, part, name in persistent)
        self.join_aliases()

    def value(self, t: torch.Tensor) -> Value:
        entry = self._by_id.get(id(t))
        if entry is None:
            entry = self._lift(t)
            _join_alias(
                entry, [e for e in self._find_sharing_entries(entry) if e.value.parent is None]
            )
        return entry.value

    def entry(self, t: torch.Tensor) -> StateEntry:
        return self._by_id[id(t)]

    def add_existing(
        self,
        t: torch.Tensor,
        kind: InputKind,
        name: str,
        node: Node,
        value: Value | None,
        persistent: bool | None,
    ) -> None:
        """A tensor that a program has already, with its input."""
        entry = StateEntry(t, kind, [name], node, value, persistent)
        self.entries.append(entry)
        self._by_id.setdefault(id(t), entry)

    def _literal_name(self) -> str:
        """One that neither the program nor its module has a use for."""
        taken = {name.partition(".")[0] for entry in self.entries for name in entry.names}
        while True:
            name = f"lifted_tensor_{self._literals}"
            self._literals += 1
            if name not in taken and not hasattr(self.root, name):
                return name

    def _add(
        self, t: torch.Tensor, kind: InputKind, name: str, persistent: bool | None = None
    ) -> StateEntry:
        entry = self._by_id.get(id(t))
        if entry is not None:
            entry.names.append(name)
            return entry
        require_plain(t, f"the {_KIND_NAMES[kind]} {name!r}", name)
        label = self.names.unique(f"{_PREFIX[kind]}_{name}")
        with self.graph.inserting_before(self.first_input):
            node = self.names.placeholder(self.graph, label)
        abstract = describe_tensor(t, self.device)
        set_val(node, make_abstract_tensor(abstract, t.requires_grad))
        value = Value(abstract, node, origin=node)
        value.storage.has_offset = has_storage_offset(t)
        value.storage.elements = storage_elements(t)
        entry = StateEntry(t, kind, [name], node, value, persistent)
        self.entries.append(entry)
        self._by_id[id(t)] = entry
        return entry

    def _lift(self, t: torch.Tensor) -> StateEntry:
        """A tensor seen for the first time."""
        if is_functorch_wrapped_tensor(t) or is_dead_tensor_wrapper(t):
            raise UnsupportedError(
                "torch.vmap, torch.func.grad and the like cannot be captured with what is called "
                "here on a tensor that they transform",
                where=source.locate_user_line(),
                fix="call it outside of the function that is transformed",
            )
        names = self._attribute_names().get(id(t))
        if names is None and self.root is not None:
            for name, p in registries.named_parameters(self.root):  # made since, by a lazy module
                if p is t:
                    return self._add(p, InputKind.PARAMETER, name)
            for name, b in registries.named_buffers(self.root):
                if b is t:
                    return self._add(b, InputKind.BUFFER, name, True)
        if names is None:
            names = [self._literal_name()]
        entry = self._add(t, InputKind.CONSTANT_TENSOR, names[0])
        entry.names = names
        return entry

    def object(self, x: torch.ScriptObject) -> Node:
        """The input that stands for a custom object."""
        entry = self._by_id.get(id(x))
        if entry is None:
            names = self._attribute_names().get(id(x)) or [f"lifted_object_{len(self.entries)}"]
            with self.graph.inserting_before(self.first_input):
                node = self.names.placeholder(self.graph, self.names.unique(f"obj_{names[0]}"))
            set_val(node, x)
            entry = StateEntry(x, InputKind.CUSTOM_OBJ, names, node, None)
            self.entries.append(entry)
            self._by_id[id(x)] = entry
        return entry.node

    def literal(self, t: torch.Tensor) -> Value:
        """A tensor written out in the program: a value of its own each time it is made."""
        entry = self._lift(t)
        value = Value(entry.value.abstract, entry.node)
        value.constant = t
        return value

    def _attribute_names(self) -> dict[int, list[str]]:
        if self._attributes is None:
            self._attributes = {}
            if self.root is not None:
                for name, t in _tensor_attributes(self.root):
                    self._attributes.setdefault(id(t), []).append(name)
        return self._attributes

    def join_aliases(self) -> None:
        """Tensors that alias become views of the one that spans their storage."""
        for entry in self.entries:
            self._find_sharing_entries(entry)
        for group in self._memory.values():
            if len(group) > 1:
                _join_group(group)

    def _find_sharing_entries(self, entry: StateEntry) -> list[StateEntry]:
        """Entries so far that have the same storage."""
        if entry.value is None or 0 in entry.value.abstract.sizes:
            return []
        with DisableTorchFunction():  # it is not the program that asks for memory
            memory = storage_key(entry.tensor)
        if memory is None:
            return []
        group = self._memory.setdefault(memory, [])
        group.append(entry)
        return group[:-1]


def _find_program_constants(root: nn.Module) -> set[str]:
    """Of captured programs within the module: tensors that their code wrote out."""
    found: set[str] = set()
    for path, module in registries.named_modules(root):
        own = vars(module).get(CONSTANTS, ())
        found.update(registries.join_path(path, name) for name in own)
    return found


def _join_group(group: list[StateEntry]) -> None:
    """Join the entries of one storage, from its beginning to its end."""
    whole: list[StateEntry] = []
    for entry in sorted(group, key=_memory_order):
        start, _ = _byte_extent(entry)
        whole = [other for other in whole if _byte_extent(other)[1] > start]
        _join_alias(entry, whole)
        if entry.value.parent is None:
            whole.append(entry)


def _memory_order(entry: StateEntry) -> tuple[int, int, bool]:
    start, end = _byte_extent(entry)
    return start, -end, not entry.value.abstract.is_contiguous


def _byte_extent(entry: StateEntry) -> tuple[int, int]:
    """Where in its memory a tensor begins and ends, in bytes."""
    about, offset = entry.value.abstract, offset_of(entry.tensor)
    pairs = zip(about.sizes, about.strides, strict=True)
    end = offset + 1 + sum((size - 1) * stride for size, stride in pairs)
    return offset * about.dtype.itemsize, end * about.dtype.itemsize


def _join_alias(entry: StateEntry, others: list[StateEntry]) -> None:
    """Make a tensor a view of one that spans it; others that overlap it must not be written."""
    about = entry.value.abstract
    start, end = _byte_extent(entry)
    met = [(o, *_byte_extent(o)) for o in others]
    met = [(o, first, last) for o, first, last in met if first < end and start < last]
    for base, first, last in met:
        large = base.value.abstract
        if large.is_contiguous and large.dtype == about.dtype and first <= start and end <= last:
            offset = (start - first) // about.dtype.itemsize
            args = (list(about.sizes), list(about.strides), offset)
            view = Value.view(base.value, about, entry.node, aten.as_strided.default, args)
            if base.value.storage.mutated:
                view.version = -1  # found only after the other was written to
            entry.value = view
            return
    for other, _, _ in met:
        what = f"{entry.names[0]!r} and {other.names[0]!r}"
        tensors = (entry.tensor, other.tensor)
        values.note_overlap(entry.value, other.value, tensors, what, outlives_call=True)


def _tensor_attributes(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that modules hold as plain attributes, also in lists, tuples and dicts of them."""
    for prefix, module in registries.all_paths(root):
        own = {k: v for k, v in vars(module).items() if k not in _REGISTRIES}
        yield from _tensors_in(own, prefix, set())


_REGISTRIES = ("_parameters", "_buffers", "_modules")


def _tensors_in(container: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if id(container) in seen:
        return
    seen.add(id(container))
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in items:
        if isinstance(key, (str, int)):
            name = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(value, (torch.Tensor, torch.ScriptObject)):
                yield name, value
            elif type(value) in (dict, list, tuple):
                yield from _tensors_in(value, name, seen)


def split_state(
    root: nn.Module | None, entries: list[StateEntry]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dict (the user's own tensors) and the constants of a captured program."""
    own = registries.state_dict(root).items()
    state = {k: part for name, t in own if not is_lazy(t) for k, part in find_parts(name, t)}
    constants: dict[str, Any] = {}
    for entry in entries:
        for name in entry.names:
            if name not in state:
                constants[name] = entry.tensor
    return state, constants
