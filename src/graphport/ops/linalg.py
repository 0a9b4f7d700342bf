"""Shape rules of matrix products, and of operators written as products."""

from __future__ import annotations

from collections.abc import Sequence

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.elementwise import map_elements
from graphport.ops.meta import infer_layout_by_meta
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import (
    broadcast,
    establish_equal,
    establish_expandable,
    establish_sizes,
    guard_equal,
    require_nonempty,
    wrap_dim,
)
from graphport.tensors.abstract import Abstract, Size


def _require_dtype(a: Abstract, b: Abstract, what: str) -> None:
    if a.dtype is not b.dtype:
        raise ShapeError(
            f"{what}: expected both operands to have the same dtype, but got: {a.dtype} and "
            f"{b.dtype}"
        )


def _require_inner(a: Size, b: Size, what: str, x: Abstract, y: Abstract) -> None:
    if a is not b:
        if not establish_equal(a, b):
            raise ShapeError(
                f"{what}: inner sizes of {x} and {y} differ: mat1 and mat2 shapes cannot be "
                "multiplied"
            )


def _add_term(term: Abstract | None, out: Abstract, what: str) -> Abstract:
    """A product to which a term is added that fits it."""
    if term is not None and term.dtype is not out.dtype:
        raise ShapeError(
            f"{what}: self and mat2 must have the same dtype, but got {term.dtype} and {out.dtype}"
        )
    if term is not None and term.sizes != out.sizes[-1:]:
        if not establish_expandable(term.sizes, out.sizes):
            raise ShapeError(f"{what}: {term} cannot be added to a product of {out}")
    return out


def _require_rank(a: Abstract, rank: int, what: str) -> None:
    if a.rank != rank:
        raise ShapeError(f"{what}: expected a tensor with {rank} dims, but got {a}")


@shape_rule(aten.mm.default)
def mm(self: Abstract, mat2: Abstract) -> Abstract:
    if self.rank != 2 or mat2.rank != 2:
        raise ShapeError(f"mm: both operands must be matrices, got {self} and {mat2}")
    _require_dtype(self, mat2, "mm")
    _require_inner(self.sizes[1], mat2.sizes[0], "mm", self, mat2)
    return self.like((self.sizes[0], mat2.sizes[1]))


@shape_rule(aten.bmm.default)
def bmm(self: Abstract, mat2: Abstract) -> Abstract:
    if self.rank != 3 or mat2.rank != 3:
        raise ShapeError(f"bmm: both operands must have 3 dims, got {self} and {mat2}")
    _require_dtype(self, mat2, "bmm")
    if not establish_equal(self.sizes[0], mat2.sizes[0]):
        raise ShapeError(f"bmm: batch sizes of {self} and {mat2} differ")
    _require_inner(self.sizes[2], mat2.sizes[1], "bmm", self, mat2)
    return self.like((self.sizes[0], self.sizes[1], mat2.sizes[2]))


@shape_rule(aten.addmm.default)
def addmm(self: Abstract, mat1: Abstract, mat2: Abstract, **_: object) -> Abstract:
    return _add_term(self, mm(mat1, mat2), "addmm")


@shape_rule(aten.baddbmm.default)
def baddbmm(self: Abstract, batch1: Abstract, batch2: Abstract, **_: object) -> Abstract:
    return _add_term(self, bmm(batch1, batch2), "baddbmm")


@shape_rule(aten.addmv.default)
def addmv(self: Abstract, mat: Abstract, vec: Abstract, **_: object) -> Abstract:
    out = _add_term(self, mv(mat, vec), "addmv")
    if self.sizes != out.sizes:  # of an empty product the kernel gives self as it is
        require_nonempty("addmv", mat, mat.sizes)
    return out


@shape_rule(aten.addr.default)
def addr(self: Abstract, vec1: Abstract, vec2: Abstract, **_: object) -> Abstract:
    for vec in (vec1, vec2):
        _require_rank(vec, 1, "addr")
    column, row = vec1.like((vec1.sizes[0], 1)), vec2.like((1, vec2.sizes[0]))
    if not establish_expandable(self.sizes, (vec1.sizes[0], vec2.sizes[0])):
        raise ShapeError(f"addr: {self} cannot be added to a product of {vec1} and {vec2}")
    return map_elements((self, column, row), promote.result_type((self, vec1, vec2)))


@shape_rule(aten.addbmm.default)
def addbmm(self: Abstract, batch1: Abstract, batch2: Abstract, **_: object) -> Abstract:
    out = bmm(batch1, batch2)
    return _add_term(self, out.like(out.sizes[1:]), "addbmm")


@shape_rule(aten.trace.default)
def trace(self: Abstract) -> Abstract:
    if self.rank != 2:
        raise ShapeError(f"trace: expected a matrix, but got {self}")
    return self.like((), promote.to_sum(self.dtype))


@shape_rule(aten._pdist_forward.default)
def _pdist_forward(self: Abstract, p: float) -> Abstract:
    n = self.sizes[0]
    return self.like((n * (n - 1) // 2,))


@shape_rule(aten.mv.default)
def mv(self: Abstract, vec: Abstract) -> Abstract:
    _require_rank(self, 2, "mv")
    _require_rank(vec, 1, "mv")
    _require_inner(self.sizes[1], vec.sizes[0], "mv", self, vec)
    return self.like((self.sizes[0],))


@shape_rule(aten.dot.default, aten.vdot.default)
def dot(self: Abstract, tensor: Abstract) -> Abstract:
    _require_dtype(self, tensor, "dot")
    for vec in (self, tensor):
        _require_rank(vec, 1, "dot")
    _require_inner(self.sizes[0], tensor.sizes[0], "dot", self, tensor)
    return self.like(())


@shape_rule(aten.matmul.default)
def matmul(self: Abstract, other: Abstract) -> Abstract:
    if not self.rank or not other.rank:
        raise ShapeError(f"matmul: both arguments need at least 1 dim, got {self} and {other}")
    _require_dtype(self, other, "matmul")
    rows = self.sizes[-2:-1] if self.rank > 1 else ()
    columns = other.sizes[-1:] if other.rank > 1 else ()
    inner = other.sizes[-2] if other.rank > 1 else other.sizes[0]
    _require_inner(self.sizes[-1], inner, "matmul", self, other)
    a, b = self.sizes[:-2], other.sizes[:-2]
    batch = a if a is b or a == b else broadcast(a, b)
    return self.like(batch + rows + columns)


@shape_rule(aten.linear.default)
def linear(input: Abstract, weight: Abstract, bias: Abstract | None) -> Abstract:
    _require_dtype(input, weight, "linear")
    if not input.rank:
        raise ShapeError(f"linear: input needs at least 1 dim, got {input}")
    if weight.rank > 2:
        raise ShapeError(f"linear: t() expects a tensor with <= 2 dimensions, but got {weight}")
    _require_inner(input.sizes[-1], weight.sizes[-1], "linear", input, weight)
    return _add_term(bias, input.like(input.sizes[:-1] + weight.sizes[:-1]), "linear")


@shape_rule(aten.outer.default)
def outer(self: Abstract, vec2: Abstract) -> Abstract:
    for vec in (self, vec2):
        _require_rank(vec, 1, "outer")
    return self.like((self.sizes[0], vec2.sizes[0]), promote.result_type((self, vec2)))


@shape_rule(aten.kron.default)
def kron(self: Abstract, other: Abstract) -> Abstract:
    rank = max(self.rank, other.rank)
    a = (1,) * (rank - self.rank) + self.sizes
    b = (1,) * (rank - other.rank) + other.sizes
    sizes = tuple(x * y for x, y in zip(a, b, strict=True))
    layout = None
    if not (self.is_contiguous and other.is_contiguous):
        layout = infer_layout_by_meta(aten.kron.default, sizes, self, other)
    return Abstract(sizes, promote.result_type((self, other)), self.device, layout)


@shape_rule(aten.einsum.default)
def einsum(equation: str, tensors: Sequence[Abstract], *, path: object) -> Abstract:
    """Sizes by letter; an ellipsis stands for the leading dims that the letters leave over."""
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(tensors):
        raise ShapeError(f"einsum: {len(terms)} terms in {equation!r} for {len(tensors)} operands")
    extent: dict[str, Size] = {}
    batch: tuple[Size, ...] = ()
    for term, t in zip(terms, tensors, strict=True):
        head, dots, tail = term.partition("...")
        spare = t.rank - len(head) - len(tail)
        if spare < 0 or (spare and not dots):
            raise ShapeError(f"einsum: term {term!r} does not fit an operand with {t.rank} dims")
        sizes = t.sizes
        batch = broadcast(batch, sizes[len(head) : len(head) + spare]) if dots else batch
        own = (
            *zip(head, sizes[: len(head)], strict=True),
            *zip(tail, sizes[t.rank - len(tail) :], strict=True),
        )
        for letter, size in own:
            seen = extent.get(letter)
            if seen is None or (type(seen) is int and seen == 1):
                extent[letter] = size
            elif size is not seen and not (type(size) is int and size == 1):
                if not establish_equal(size, seen):
                    raise ShapeError(
                        f"einsum: {letter!r} has size {seen} in one operand and {size} in another"
                    )
    if not arrow:
        letters = inputs.replace(",", "").replace("...", "")
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        output = ("..." if "..." in inputs else "") + "".join(once)
    head, dots, tail = output.partition("...")
    sizes = (*(extent[c] for c in head), *(batch if dots else ()), *(extent[c] for c in tail))
    layout = infer_layout_by_meta(aten.einsum.default, sizes, equation, tensors, path=path)
    return Abstract(sizes, promote.result_type(tensors), tensors[0].device, layout)


@shape_rule(aten.cross.default)
def cross(self: Abstract, other: Abstract, dim: int | None) -> Abstract:
    """Without a dim it is along the first of size 3, whichever that is."""
    if dim is not None:
        return linalg_cross(self, other, dim=dim)
    found = next((d for d, size in enumerate(self.sizes) if guard_equal(size, 3)), None)
    if found is None:
        raise ShapeError(f"no dimension of size 3 in input: {self}")
    return linalg_cross(self, other, dim=found)


@shape_rule(aten.linalg_cross.default)
def linalg_cross(self: Abstract, other: Abstract, *, dim: int) -> Abstract:
    _require_dtype(self, other, "linalg.cross")
    if self.rank != other.rank:
        raise ShapeError(f"linalg.cross: inputs must have as many dims: {self} and {other}")
    for t in (self, other):
        size = t.sizes[wrap_dim(dim, t.rank)]
        if not establish_equal(size, 3):
            raise ShapeError(f"linalg.cross: inputs dimension {dim} must have length 3, got {t}")
    return self.like(broadcast(self.sizes, other.sizes))


@shape_rule(aten.cdist.default, aten._cdist_forward.default)
def cdist(x1: Abstract, x2: Abstract, p: float, compute_mode: int | None) -> Abstract:
    _require_inner(x1.sizes[-1], x2.sizes[-1], "cdist", x1, x2)
    batch = broadcast(x1.sizes[:-2], x2.sizes[:-2])
    return x1.like((*batch, x1.sizes[-2], x2.sizes[-2]))


@shape_rule(aten.bilinear.default)
def bilinear(
    input1: Abstract, input2: Abstract, weight: Abstract, bias: Abstract | None
) -> Abstract:
    _require_inner(input1.sizes[-1], weight.sizes[1], "bilinear", input1, weight)
    _require_inner(input2.sizes[-1], weight.sizes[2], "bilinear", input2, weight)
    if not establish_sizes(input1.sizes[:-1], input2.sizes[:-1]):
        raise ShapeError(f"bilinear: input batch dimensions do not match: {input1} and {input2}")
    return _add_term(bias, input1.like((*input1.sizes[:-1], weight.sizes[0])), "bilinear")
