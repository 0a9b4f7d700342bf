"""Operators that mix elements of a batch while keeping its size.

A row says of an operator when it does: along which dims it works. Where an operator loses the
batch, or has it twice, the sizes of its result tell; those have no row here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from graphport.ops.effects import STATISTICS
from graphport.ops.registry import packets
from graphport.symbolic import Expr, substitute, symbols
from graphport.tensors.abstract import Size, get_shape
from graphport.types import Argument


def find_batch_dim(shape: Sequence[Size], symbol: Expr) -> tuple[int, Any] | None:
    """The only dim whose size is a multiple of the symbol, and the factor, which may be symbolic.

    >>> from graphport.symbolic import Scope
    >>> scope = Scope()
    >>> b, n = scope.symbol("b", hint=4), scope.symbol("n", hint=3)
    >>> find_batch_dim((n, 2 * b), b), find_batch_dim((n * b, 3), b)
    ((1, 2), (0, n))
    >>> find_batch_dim((b + 1, 3), b), find_batch_dim((b, b), b), find_batch_dim((n, 3), b)
    (None, None, None)
    """
    dims = [d for d, s in enumerate(shape) if isinstance(s, Expr) and symbol in symbols(s)]
    if len(dims) != 1:
        return None
    size = shape[dims[0]]
    factor = substitute(size, {symbol: 1})
    # Expressions are one object each: a product with the symbol in it once, and nothing besides.
    return (dims[0], factor) if size is symbol * factor else None


class BatchCall:
    """A call of an operator, and the batch dim of its first argument."""

    def __init__(self, node: Node, symbol: Expr) -> None:
        self.node, self.symbol = node, symbol
        arguments = node.target._schema.arguments
        names = [a.name for a in arguments]
        defaults = {a.name: a.default_value for a in arguments}
        self.given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
        self.first: Any = node.args[0] if node.args else None
        if isinstance(self.first, (list, tuple)):
            self.first = self.first[0]
        self.rank = len(self.shape(self.first))
        self.dim = self.dim_of(self.first)
        """The dim of the batch, None if there is none."""

    def shape(self, x: Argument) -> tuple[Size, ...]:
        return (get_shape(x) if isinstance(x, Node) else None) or ()

    def dim_of(self, x: object) -> int | None:
        found = find_batch_dim(self.shape(x), self.symbol)
        return None if found is None else found[0]


def mixes_batch(node: Node, symbol: Expr) -> bool:
    """Whether an operator mixes elements of a batch."""
    packet = getattr(node.target, "overloadpacket", None)
    rule = _RULES.get(packet)
    if rule is None:
        name = getattr(packet, "__name__", "")
        rule = next((rule for prefix, rule in _PREFIXES.items() if name.startswith(prefix)), None)
    return rule is not None and rule(BatchCall(node, symbol))


def _along(name: str) -> Callable[[BatchCall], bool]:
    """Along the dims that an argument names; if it names none, along all."""

    def rule(call: BatchCall) -> bool:
        dims = call.given.get(name)
        if call.dim is None:
            return False
        if dims is None or dims == []:
            return True
        listed = dims if isinstance(dims, (list, tuple)) else [dims]
        return call.dim in [d % call.rank for d in listed if isinstance(d, int)]

    return rule


def _over_last(count: int) -> Callable[[BatchCall], bool]:
    """Over the last dims: of images, matrices, or of queries and keys."""
    return lambda call: call.dim is not None and call.dim >= call.rank - count


def _beyond_first(call: BatchCall) -> bool:
    """Over all dims but the first."""
    return call.dim is not None and call.dim > 0


def _concatenates_batch(call: BatchCall) -> bool:
    tensors: Any = call.given["tensors"]
    own = next((d for t in tensors if (d := call.dim_of(t)) is not None), None)
    return own is not None and own == call.given["dim"] % max(call.rank, 1)


def _reorders_batch(call: BatchCall) -> bool:
    """A reshape that merges the batch with a dim in front of it, or splits it inside."""
    before, after = call.shape(call.first), call.shape(call.node)
    a, b = find_batch_dim(before, call.symbol), find_batch_dim(after, call.symbol)
    return (
        a is not None
        and b is not None
        and _multiply_sizes(before[: a[0]]) != _multiply_sizes(after[: b[0]])
    )


def _repeats_batch(name: str) -> Callable[[BatchCall], bool]:
    """All items once more after the last: of a part of the batch, after the last of the part."""

    def rule(call: BatchCall) -> bool:
        times: Any = call.given[name]
        place = None if call.dim is None else call.dim - call.rank + len(times)
        return place is not None and place >= 0 and times[place] != 1

    return rule


def _pairs_batch_labels(call: BatchCall) -> bool:
    """An einsum in which the batches of two operands have different labels: all pairs mix."""
    terms = call.given["equation"].replace(" ", "").split("->")[0].split(",")
    dims = [(term, x, call.dim_of(x)) for term, x in zip(terms, call.given["tensors"], strict=True)]
    return (
        len(
            {
                _find_einsum_label(term, d, len(call.shape(x)))
                for term, x, d in dims
                if d is not None
            }
        )
        > 1
    )


def _find_einsum_label(term: str, dim: int, rank: int) -> object:
    """Of a dim in an operand of einsum; those under an ellipsis are counted from its end."""
    before, dots, after = term.partition("...")
    if not dots or dim < len(before):
        return before[dim]
    place = dim - rank + len(after)
    return after[place] if place >= 0 else place


def _slices_batch(call: BatchCall) -> bool:
    """A part of the batch, unless it is the same part of each item: `x[::2]` of two rows each."""
    before, given = find_batch_dim(call.shape(call.first), call.symbol), call.given
    if before is None or given["dim"] % call.rank != before[0]:
        return False
    if find_batch_dim(call.shape(call.node), call.symbol) == before:
        return False  # all of it
    factor, step = before[1], given["step"]
    apart = isinstance(factor, int) and isinstance(step, int) and factor % step == 0
    return not apart or given["start"] not in range(step) or given["end"] not in (None, sys.maxsize)


def _gathers_batch(call: BatchCall) -> bool:
    """Along the batch; or rows of something else, each by the number of the item."""
    dim, index = call.given["dim"] % max(call.rank, 1), call.dim_of(call.given["index"])
    return call.dim == dim if call.dim is not None else index not in (None, dim)


def _scatters_batch(call: BatchCall) -> bool:
    """Along the batch, or to places that the number of an item chooses; `index_add` and its like.

    Of `scatter`, which has as many dims in its index, each item has to have its own part of it.
    """
    index, source = call.given["index"], call.given.get("src", call.given.get("source"))
    tensors = [t for t in (index, source) if len(call.shape(t)) == call.rank]
    apart = all(call.dim_of(t) == call.dim for t in tensors)
    chosen = index not in tensors and call.dim_of(index) is not None
    return call.dim is not None and (_along("dim")(call) or chosen or not apart)


def _batch_in_argument(name: str) -> Callable[[BatchCall], bool]:
    """If an argument besides the first has the batch."""
    return lambda call: call.dim_of(call.given.get(name)) is not None


def _along_others(name: str) -> Callable[[BatchCall], bool]:
    """Over all dims but the one that an argument names."""
    along = _along(name)
    return lambda call: call.dim is not None and not along(call)


def _never(call: BatchCall) -> bool:
    """Along dims that the result does not have, if at all."""
    return False


def _always(call: BatchCall) -> bool:
    """Whatever the dims: by position in the flattened tensor."""
    return True


def _multiply_sizes(sizes: Sequence[Size]) -> Size:
    total: Any = 1
    for size in sizes:
        total = total * size
    return total


def _over_time(call: BatchCall) -> bool:
    return call.dim != (0 if call.given.get("batch_first") else 1) or call.rank != 3


def _over_normalized(call: BatchCall) -> bool:
    return _over_last(len(call.given["normalized_shape"]))(call)


def _over_batch(call: BatchCall) -> bool:
    """Of a norm that takes its statistics from the batch, or has channels in the place of it."""
    return bool(call.given["training"]) or call.dim not in (0, None)


_TRAINED_NORMS = " ".join(name for name, flag in STATISTICS.items() if flag == "training")
_ROWS: dict[str, Callable[[BatchCall], bool]] = {
    """
    softmax _softmax log_softmax _log_softmax cumsum cumprod _safe_softmax cummax cummin
    logcumsumexp sort argsort msort topk index_select select_scatter slice_scatter chunk split
    split_with_sizes tensor_split unsafe_chunk unsafe_split unsafe_split_with_sizes narrow
    take_along_dim cross
    """: _along("dim"),
    """
    scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce
    """: _scatters_batch,
    "diagonal_scatter": lambda call: _along("dim1")(call) or _along("dim2")(call),
    "slice": _slices_batch,
    "gather": _gathers_batch,
    "renorm": _along_others("dim"),
    "embedding": lambda call: call.dim == 0,
    "bucketize": _batch_in_argument("boundaries"),
    "isin": _batch_in_argument("test_elements"),
    "kron": _batch_in_argument("other"),
    "searchsorted": _over_last(1),
    "repeat": _repeats_batch("repeats"),
    "tile": _repeats_batch("dims"),
    "einsum": _pairs_batch_labels,
    """
    masked_scatter take put as_strided embedding_bag _embedding_bag _embedding_bag_forward_only
    block_diag segment_reduce unique_dim unique_consecutive _unsafe_masked_index
    _unsafe_masked_index_put_accumulate
    """: _always,
    "flip roll rot90": _along("dims"),
    "cat concat concatenate": _concatenates_batch,
    "view reshape _unsafe_view flatten unflatten": _reorders_batch,
    f"{_TRAINED_NORMS} _native_batch_norm_legit _native_batch_norm_legit_functional": _over_batch,
    "batch_norm_update_stats _batch_norm_with_update _batch_norm_with_update_functional": _always,
    "layer_norm native_layer_norm rms_norm _fused_rms_norm": _over_normalized,
    "group_norm native_group_norm instance_norm": _beyond_first,
    """
    linalg_vector_norm linalg_norm linalg_matrix_norm linalg_cross linalg_vecdot linalg_matmul
    linalg_multi_dot
    """: _never,
    "scaled_dot_product_attention tril triu cholesky inverse ormqr": _over_last(2),
    "lu_unpack": lambda call: (
        _over_last(2)(call) or call.dim_of(call.given["LU_pivots"]) != call.dim
    ),
    "lstm gru rnn_tanh rnn_relu": _over_time,
}
_RULES = {packet: by for names, by in _ROWS.items() for packet in packets(names)}
_PREFIXES: dict[str, Callable[[BatchCall], bool]] = {
    "conv": _beyond_first,
    "_conv": _beyond_first,
    "max_pool": _beyond_first,
    "avg_pool": _beyond_first,
    "adaptive_": _beyond_first,
    "_adaptive_": _beyond_first,
    "upsample_": _beyond_first,
    "_upsample_": _beyond_first,
    "_scaled_dot_product_": _over_last(2),
    "linalg_": _over_last(2),
    "fft_": _along("dim"),
    "_fft_": _along("dim"),
}
"""By how the name of an operator begins."""
