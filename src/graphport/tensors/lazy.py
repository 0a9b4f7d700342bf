"""`WeightlessTensor`: a tensor without memory, whose data is read or computed on demand.

What modules built under `gp.fake_mode()` have for parameters, and what a checkpoint loaded there
consists of. Operators work on it through torch's meta kernels, views and writes included, inside
and outside of the mode, and take no memory either. Where its data is known (in a file, or as the
result of operators on such data), `read()` gives it, and so does whatever asks for numbers; where
it is not, asking for numbers is a `NoDataError`.

For whoever writes weights to disk: `reference` is the region of a file that holds exactly the
tensor, to be copied piece by piece (`reference.chunks()`); without one, `has_data` says whether
`read()` can give the tensor, at the cost of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.compat.torch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    OpOverload,
    disable_current_modes,
    disabled_torch_function_impl,
    make_wrapper_subclass,
    pytree,
    set_conj,
    set_neg,
)
from graphport.errors import NoDataError
from graphport.source import locate_user_line
from graphport.tensors.abstract import AbstractTensor
from graphport.tensors.lazy_source import (
    DeferredCall,
    DeferredWrite,
    FileRegion,
    Geometry,
    HeldTensor,
    ShapeOperand,
    Source,
    TensorSnapshot,
    convert_for_copy,
    make_filled,
)
from graphport.types import Args, Argument, Kwargs

_META = torch.device("meta")
_FILLS = {aten.fill_.Scalar, aten.zero_.default}
_DATA_DEPENDENT_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Memory:
    """What several tensors share, and where its data can be had."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source


class WeightlessTensor(torch.Tensor):
    """A tensor without memory. See the module."""

    _inner: torch.Tensor
    """On the meta device: the tensor's sizes and strides, and its storage."""
    _memory: Memory

    # Nothing is decided above the dispatcher; also, results must not be made this class by torch.
    __torch_function__ = disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, op: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Argument:
        return _dispatch(op, args, kwargs or {})

    @property
    def has_data(self) -> bool:
        """Whether `read()` can give the data, and the same each time."""
        source = self._memory.source
        return source is not None and not source.is_random

    @property
    def reference(self) -> FileRegion | None:
        """The bytes of a file that are exactly this tensor, row by row."""
        source, lies = self._memory.source, Geometry.of(self._inner)
        if not isinstance(source, FileRegion) or not lies.is_plain:
            return None
        size = lies.dtype.itemsize
        return replace(
            source, offset=source.offset + lies.offset * size, nbytes=self._inner.numel() * size
        )

    def read(self) -> torch.Tensor:
        """The data, as a tensor on the CPU."""
        with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
            return _take_snapshot(self).read()

    # What torch would answer from memory that is not there.

    @property
    def data(self) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return torch.Tensor.data.__get__(self)
        with torch.no_grad():
            return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            torch.Tensor.data.__set__(self, new)
            return
        if type(new) is not WeightlessTensor:
            new = refer_to_tensor(new)
        self._inner, self._memory = new._inner, new._memory
        _refresh(self, new.device)

    def untyped_storage(self) -> torch.UntypedStorage:
        """Memory on the meta device: tensors that share memory have the same one."""
        if torch.compiler.is_compiling():
            return super().untyped_storage()
        return self._inner.untyped_storage()

    def data_ptr(self) -> int:
        if torch.compiler.is_compiling():
            return super().data_ptr()
        raise _no_data_error(self, "has no address")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        source = self._memory.source
        where = "no data" if source is None else "data by computation"
        if isinstance(source, FileRegion):
            where = f"data in {source.path.name}: {source.name}"
        grad = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"WeightlessTensor({where}, size={list(self.shape)}, dtype={self.dtype}, "
            f"device={self.device}{grad})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return super().__deepcopy__(memo)
        known = memo.get(id(self))
        if known is not None:
            return known
        shared = memo.get(id(self._memory))
        if shared is None:
            shared = memo[id(self._memory)] = (
                Memory(self._memory.source),
                torch.UntypedStorage(self._inner.untyped_storage().nbytes(), device=_META),
            )
        memory, storage = shared
        new = make_weightless(Geometry.of(self._inner).over(storage), self.device, memory)
        new.requires_grad_(self.requires_grad)
        new.__dict__.update(get_python_attributes(self))
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol: object) -> Argument:
        raise _no_data_error(self, "cannot be pickled")


def _make_reader(name: str) -> Callable[..., object]:
    """A method of torch's that looks at the data."""
    original = getattr(torch.Tensor, name)

    def read(self: WeightlessTensor, *args: object, **kwargs: object) -> Argument:
        capturing = torch.compiler.is_compiling()
        return original(self if capturing else self.read(), *args, **kwargs)

    read.__name__ = name
    return read


for _name in ("numpy", "tolist", "__array__", "__dlpack__"):
    setattr(WeightlessTensor, _name, _make_reader(_name))


def get_python_attributes(t: WeightlessTensor) -> dict[str, object]:
    """What others have written on the tensor: that it is a parameter, that it is initialised."""
    return {k: v for k, v in vars(t).items() if k not in ("_inner", "_memory")}


def lacks_data(t: torch.Tensor) -> bool:
    """Whether a tensor of any kind has no numbers in memory: also on the meta device, or fake."""
    if isinstance(t, (AbstractTensor, WeightlessTensor)):
        return True
    try:
        return t.untyped_storage().device.type == "meta"
    except (RuntimeError, NotImplementedError):
        return False


# Making them


def make_weightless(inner: torch.Tensor, device: torch.device, memory: Memory) -> WeightlessTensor:
    """A tensor with the strides and the storage of a tensor on the meta device."""
    t = make_wrapper_subclass(
        WeightlessTensor,
        inner.shape,
        strides=inner.stride(),
        dtype=inner.dtype,
        device=device,
        storage_offset=inner.storage_offset(),
        storage_size=0,
    )
    t._inner, t._memory = inner, memory
    set_conj(t, inner.is_conj())
    set_neg(t, inner.is_neg())
    return t


def refer_to_file(region: FileRegion, geometry: Geometry, device: torch.device) -> WeightlessTensor:
    """A tensor whose data is in a file."""
    storage = torch.UntypedStorage(region.nbytes, device=_META)
    return make_weightless(geometry.over(storage), device, Memory(region))


def drop_data(t: torch.Tensor) -> WeightlessTensor:
    """A tensor like another one, without its data."""
    return make_weightless(_make_inner(t), t.device, t.untyped_storage()._weightless[1])


def refer_to_tensor(t: torch.Tensor) -> WeightlessTensor:
    """A tensor like another one, whose data is that of the other."""
    inner = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=_META)
    return make_weightless(inner, t.device, Memory(HeldTensor(t, Geometry.of(inner))))


def defer_factory(
    op: OpOverload, args: Args, kwargs: Kwargs, least: int
) -> WeightlessTensor | None:
    """What a factory was asked for, unless it is smaller than so many bytes."""
    device = torch.device(kwargs.get("device") or "cpu")
    if device.type == "meta":
        return None
    try:
        inner = op(*args, **_make_meta_kwargs(op, kwargs, always=True))
    except NotImplementedError:  # a factory of something else: it makes it at once
        return None
    if inner.layout is not torch.strided or inner.numel() * inner.element_size() < least:
        return None
    return make_weightless(
        inner, device, Memory(DeferredCall(op, args, kwargs, Geometry.of(inner), None))
    )


def _make_inner(t: torch.Tensor) -> torch.Tensor:
    """On the meta device what a tensor with memory is; tensors that share memory go on to."""
    storage = t.untyped_storage()
    twin = getattr(storage, "_weightless", None)
    if twin is None:
        twin = storage._weightless = (
            torch.UntypedStorage(storage.nbytes(), device=_META),
            Memory(),
        )
    return Geometry.of(t).over(twin[0])


# Operators


def _dispatch(op: OpOverload, args: Args, kwargs: Kwargs) -> Argument:
    if op in (aten.copy_.default, aten.set_.source_Tensor):
        return (_copy_data if op is aten.copy_.default else _set_data)(*args[:2])
    written = list(_find_mutated(op, args, kwargs))
    if any(type(t) is not WeightlessTensor for t in written) or _has_non_strided((args, kwargs)):
        return _run_with_data(op, args, kwargs, written)  # numbers that go into memory are needed
    call = _record_arguments(args, kwargs, like=_is_like(op))
    inner_args, inner_kwargs = pytree.tree_map(_to_meta, (args, _make_meta_kwargs(op, kwargs)))
    try:
        out = op(*inner_args, **inner_kwargs)
    except RuntimeError as error:
        if not isinstance(error, NotImplementedError) and _DATA_DEPENDENT_TAGS.isdisjoint(op.tags):
            raise
        if not written:  # there is no meta kernel, or the result depends on the data
            return _run_with_data(op, args, kwargs)
        out = written[0]._inner
    if _has_non_strided(out):
        return _run_with_data(op, args, kwargs, written)
    if torch.Tag.inplace_view in op.tags or op is aten.resize_.default:
        _change_geometry(written[0], op)
    else:
        # A memory once, also where an operator writes to several parts of it.
        for t in {id(t._memory): t for t in written}.values():
            _overwrite(t, op, args, call)
    return _wrap_results(out, op, args, kwargs, call)


def _wrap_results(
    out: object,
    op: OpOverload,
    args: object,
    kwargs: dict[str, object],
    call: tuple[Any, Any] | None,
) -> Argument:
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    ours = [t for t in tensors if type(t) is WeightlessTensor]
    by_inner = {id(t._inner): t for t in ours}
    by_storage = {t._inner.untyped_storage()._cdata: t._memory for t in ours}
    device = kwargs.get("device") or next((t for t in tensors if t.ndim), tensors[0]).device

    def result(x: Argument, index: int | None) -> Argument:
        if not isinstance(x, torch.Tensor) or torch.device(device).type == "meta":
            return x
        if id(x) in by_inner:
            return by_inner[id(x)]
        memory = by_storage.get(x.untyped_storage()._cdata)
        if memory is None:
            source = None if call is None else DeferredCall(op, *call, Geometry.of(x), index)
            memory = Memory(source)
        return make_weightless(x, torch.device(device), memory)

    if isinstance(out, (list, tuple)):
        return type(out)(result(x, i) for i, x in enumerate(out))
    return result(out, None)


def _copy_data(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """A tensor that is copied into whole has the data of the other from then on."""
    if type(target) is not WeightlessTensor:
        return target.copy_(source.read())
    aten.copy_.default(target._inner, _to_meta(source))  # whether the sizes fit
    lies, memory = Geometry.of(target._inner), target._memory
    if not _is_whole(target):
        args = (target, source)
        _overwrite(target, aten.copy_.default, args, _record_arguments(args, {}))
    elif type(source) is not WeightlessTensor:
        memory.source = None if lacks_data(source) else _hold_tensor(source, lies)
    elif source._memory.source is None or (memory.source is None and not source.has_data):
        memory.source = None  # weights do not become known by being drawn
    elif Geometry.of(source._inner) == lies and _is_whole(source):
        memory.source = source._memory.source
    else:
        converted = (_take_snapshot(source), lies.sizes, lies.dtype)
        memory.source = DeferredCall(convert_for_copy, converted, {}, lies, None)
    return target


def _hold_tensor(t: torch.Tensor, lies: Geometry) -> Source:
    if tuple(t.shape) == lies.sizes and t.dtype is lies.dtype:
        return HeldTensor(t, lies)
    return DeferredCall(convert_for_copy, (HeldTensor(t), lies.sizes, lies.dtype), {}, lies, None)


def _set_data(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if type(target) is not WeightlessTensor:
        return target.set_(source.read())
    target.data = source
    return target


def _overwrite(
    t: WeightlessTensor, op: OpOverload, args: Args, call: tuple[Any, Any] | None
) -> None:
    """Memory after a write: what is not known before it, or of its operands, is not known after."""
    before = t._memory.source
    if op in _FILLS and _is_whole(t):
        lies = Geometry.of(t._inner)
        t._memory.source = DeferredCall(make_filled, (lies, *args[1:]), {}, lies, None)
    elif before is not None:
        t._memory.source = None if call is None else DeferredWrite(op, *call, before)


def _change_geometry(t: WeightlessTensor, op: OpOverload) -> None:
    """A tensor that has become a view of itself, or has another storage."""
    if op is aten.resize_.default:
        t._memory = Memory()
    _refresh(t, t.device)


def _refresh(t: WeightlessTensor, device: torch.device) -> None:
    """Set the sizes and strides that torch sees to those that the tensor has now."""
    with DisableTorchDispatch():
        torch.Tensor.data.__set__(t, make_weightless(t._inner, device, t._memory))


def _run_with_data(
    op: OpOverload, args: Args, kwargs: dict[str, object], written: Sequence[object] = ()
) -> object:
    """Run on real tensors; what it writes to the others is theirs again afterwards."""
    ours = {id(t): t for t in pytree.tree_leaves((args, kwargs)) if type(t) is WeightlessTensor}
    real = {number: t.read() for number, t in ours.items()}
    args, kwargs = pytree.tree_map_only(WeightlessTensor, lambda t: real[id(t)], (args, kwargs))
    out = op(*args, **kwargs)
    back = {id(real[id(t)]): _copy_data(t, real[id(t)]) for t in written if id(t) in ours}
    return pytree.tree_map_only(torch.Tensor, lambda t: back.get(id(t), t), out)


def _has_non_strided(values: object) -> bool:
    """Whether there are sparse tensors: only strided ones are described by sizes and strides."""
    tensors = (t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor))
    return any(t.layout is not torch.strided for t in tensors)


def _is_whole(t: WeightlessTensor) -> bool:
    """Whether the tensor spans its storage, each element once."""
    inner = t._inner
    dense = inner.is_contiguous() or aten.is_non_overlapping_and_dense(inner)
    return dense and inner.numel() * inner.element_size() == inner.untyped_storage().nbytes()


def _find_mutated(op: OpOverload, args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    if not op._schema.is_mutable:
        return
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor))


def _make_meta_kwargs(
    op: object, kwargs: dict[str, object], *, always: bool = False
) -> dict[str, object]:
    """Keywords for a meta kernel: no other device, no generator of another device."""
    changed = {k: v for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
    if always or "device" in changed:
        changed["device"] = _META
    return changed


def _to_meta(x: object) -> object:
    if type(x) is WeightlessTensor:
        return x._inner
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=_META)
    return None if isinstance(x, torch.Generator) else x


def _is_like(op: OpOverload) -> bool:
    """`zeros_like`, `new_full`, ...: operators that do not look at the data of their operand."""
    namespace, _, name = op._schema.name.partition("::")
    return namespace == "aten" and (name.endswith("_like") or name.startswith("new_"))


def _record_arguments(args: object, kwargs: dict[str, object], *, like: bool = False) -> Argument:
    """A snapshot of the arguments; None where the data of one is not known."""

    def one(x: Argument) -> Argument:
        if like and isinstance(x, torch.Tensor):
            return ShapeOperand(Geometry.of(_to_meta(x)))
        if type(x) is WeightlessTensor:
            return _take_snapshot(x)
        return HeldTensor(x) if isinstance(x, torch.Tensor) else x

    for x in pytree.tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor) and not like:
            unknown = x._memory.source is None if type(x) is WeightlessTensor else lacks_data(x)
            if unknown:
                return None
    return pytree.tree_map(one, (args, kwargs))


def _take_snapshot(t: WeightlessTensor) -> TensorSnapshot:
    source = t._memory.source
    if source is None:
        raise _no_data_error(t, "has no data to read")
    return TensorSnapshot(source, Geometry.of(t._inner))


def _no_data_error(t: WeightlessTensor, why: str) -> NoDataError:
    kind = "parameter" if isinstance(t, torch.nn.Parameter) else "tensor"
    return NoDataError(
        f"a {kind} of size {list(t.shape)} that takes no memory (gp.fake_mode) {why}",
        where=locate_user_line(),
        fix="load a checkpoint into the model within gp.fake_mode(), or build it outside of it",
    )
