"""Shape rules of losses; `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.elementwise import map_elements
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import (
    broadcast,
    establish_equal,
    establish_expandable,
    establish_sizes,
    require_nonempty,
)
from graphport.tensors.abstract import Abstract, Size
from graphport.types import Argument


def _reduce_loss(loss: Abstract, reduction: int) -> Abstract:
    return loss.like(()) if reduction else loss


def _broadcast_pair(a: Abstract, b: Abstract) -> Abstract:
    return map_elements((a, b), promote.result_type((a, b)))


@shape_rule(aten.l1_loss.default)
def l1_loss(self: Abstract, target: Abstract, reduction: int) -> Abstract:
    loss = _broadcast_pair(self, target)
    return _reduce_loss(map_elements((loss,), promote.to_real(loss.dtype)), reduction)


@shape_rule(aten.mse_loss.default, aten.soft_margin_loss.default)
def mse_loss(self: Abstract, target: Abstract, reduction: int) -> Abstract:
    return _reduce_loss(_broadcast_pair(self, target), reduction)


@shape_rule(aten.smooth_l1_loss.default)
def smooth_l1_loss(self: Abstract, target: Abstract, reduction: int, beta: float) -> Abstract:
    return _reduce_loss(_broadcast_pair(self, target), reduction)


@shape_rule(aten.huber_loss.default)
def huber_loss(self: Abstract, target: Abstract, reduction: int, delta: float) -> Abstract:
    loss = _broadcast_pair(self, target)
    if self.sizes != loss.sizes:
        return _reduce_loss(loss, reduction)
    return _reduce_loss(map_elements((self,), loss.dtype), reduction)  # laid out as the input


@shape_rule(aten.kl_div.default)
def kl_div(self: Abstract, target: Abstract, reduction: int, *, log_target: bool) -> Abstract:
    product = _broadcast_pair(target, self)
    own = map_elements((target,), target.dtype)
    return _reduce_loss(map_elements((own, product), product.dtype), reduction)


@shape_rule(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    self: Abstract, target: Abstract, weight: Abstract | None, reduction: int
) -> Abstract:
    if not establish_sizes(target.sizes, self.sizes):
        raise ShapeError(f"binary_cross_entropy: {self} and {target} differ in size")
    if weight is not None:
        if not establish_expandable(weight.sizes, self.sizes):
            raise ShapeError(f"binary_cross_entropy: a weight of {weight} does not fit {self}")
    return _reduce_loss(map_elements((self,), self.dtype), reduction)


@shape_rule(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    self: Abstract,
    target: Abstract,
    weight: Abstract | None,
    pos_weight: Abstract | None,
    reduction: int,
) -> Abstract:
    own = [a for a in (target, self, weight, pos_weight) if a is not None]
    loss = map_elements(own, promote.result_type(own))
    if target.sizes == loss.sizes:
        loss = map_elements((target,), loss.dtype)  # torch begins with 1 - target, and writes to it
    return _reduce_loss(loss, reduction)


def _check_labels(
    self: Abstract, target: Abstract, weight: Abstract | None, what: str, probable: bool = False
) -> None:
    """A label for each element of the batch; with `probable`, a probability for each class."""
    if not self.rank:
        raise ShapeError(f"{what}: input needs a dim of classes, got {self}")
    classes = self.sizes[min(self.rank - 1, 1)]
    batch = self.sizes[:1] if self.rank > 1 else ()
    wanted = self.sizes if probable else (*batch, *self.sizes[2:])
    if not establish_sizes(target.sizes, wanted):
        raise ShapeError(f"{what}: input {self} and target {target} do not fit")
    if weight is not None:
        if not establish_sizes(weight.sizes, (classes,)):
            raise ShapeError(f"{what}: a weight of {weight} for the classes of {self}")


@shape_rule(aten.nll_loss_nd.default)
def nll_loss_nd(
    self: Abstract, target: Abstract, weight: Abstract | None, reduction: int, ignore_index: Size
) -> Abstract:
    _check_labels(self, target, weight, "nll_loss")
    return self.like(() if reduction else target.sizes)


@shape_rule(aten.cross_entropy_loss.default)
def cross_entropy_loss(
    self: Abstract,
    target: Abstract,
    weight: Abstract | None,
    reduction: int,
    ignore_index: Size,
    label_smoothing: float,
) -> Abstract:
    probable = self.rank == target.rank  # class probabilities
    _check_labels(self, target, weight, "cross_entropy", probable)
    if reduction:
        return self.like(())
    if probable:
        return self.like((*self.sizes[:1], *self.sizes[2:]) if self.rank > 1 else ())
    return self.like(target.sizes)


@shape_rule(aten.nll_loss_forward.default)
def nll_loss_forward(
    self: Abstract, target: Abstract, weight: Abstract | None, reduction: int, ignore_index: Size
) -> tuple[Abstract, Abstract]:
    _check_labels(self, target, weight, "nll_loss")
    out = self.like((self.sizes[0],) if self.rank == 2 and not reduction else ())
    return out, self.like(())


@shape_rule(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(
    self: Abstract, target: Abstract, weight: Abstract | None, reduction: int, ignore_index: Size
) -> tuple[Abstract, Abstract]:
    _check_labels(self, target, weight, "nll_loss")
    return self.like(() if reduction else target.sizes), self.like(())


@shape_rule(aten.multi_margin_loss.default)
def multi_margin_loss(
    self: Abstract,
    target: Abstract,
    p: object,
    margin: object,
    weight: Abstract | None,
    reduction: int,
) -> Abstract:
    rows, classes = self.sizes[:-1], self.sizes[-1:]
    if not establish_sizes(target.sizes or (1,), rows or (1,)):
        raise ShapeError(f"multi_margin_loss: {self} and {target} do not fit")
    if weight is not None:
        if not establish_sizes(weight.sizes, classes or (1,)):
            raise ShapeError(f"multi_margin_loss: a weight of {weight} for the classes of {self}")
    return self.like(() if reduction else target.sizes)


@shape_rule(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    self: Abstract, target: Abstract, reduction: int
) -> tuple[Abstract, Abstract]:
    """A rule, since torch's decomposition is wrong on rows with fewer labels than classes."""
    if not establish_sizes(self.sizes or (1,), target.sizes or (1,)):
        raise ShapeError(f"multilabel_margin_loss: {self} and {target} differ in size")
    return self.like(() if reduction else self.sizes[:-1]), self.like(target.sizes)


_INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@shape_rule(aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
def ctc_loss(
    log_probs: Abstract,
    targets: Abstract,
    input_lengths: Argument,
    target_lengths: Argument,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> Abstract:
    if log_probs.rank not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs must have 2 or 3 dimensions, got {log_probs}")
    require_nonempty("ctc_loss", log_probs, log_probs.sizes)
    if targets.rank not in (1, 2):
        raise ShapeError(f"ctc_loss: targets must have 1 or 2 dimensions, got {targets}")
    batch = log_probs.sizes[1:-1]
    for lengths in (input_lengths, target_lengths):
        if isinstance(lengths, Abstract) and lengths.dtype not in _INTEGRAL:
            raise ShapeError(f"ctc_loss: lengths must be integral, got {lengths}")
        sizes = lengths.sizes if isinstance(lengths, Abstract) else (len(lengths),)
        if not establish_sizes(sizes or (1,), batch or (1,)):
            raise ShapeError(f"ctc_loss: {list(sizes)} lengths for a batch of {log_probs}")
    if targets.rank == 2 and batch:
        if not establish_equal(targets.sizes[0], batch[0]):
            raise ShapeError(f"ctc_loss: batch sizes of {log_probs} and {targets} differ")
    return log_probs.like(() if reduction else batch)


@shape_rule(aten.cosine_similarity.default)
def cosine_similarity(x1: Abstract, x2: Abstract, dim: int, eps: float) -> Abstract:
    sizes = list(broadcast(x1.sizes, x2.sizes))
    if sizes:
        del sizes[dim]
    return x1.like(tuple(sizes), promote.result_type((x1, x2)))
