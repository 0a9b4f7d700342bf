"""`AbstractTensor`: a real torch.Tensor with sizes, strides, dtype and device but without data.

It is what the user's code holds during capture, and what describes the result of a node (`val`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from graphport import source
from graphport.errors import DataDependentError, UnsupportedError
from graphport.ops.abstract import Abstract
from graphport.symbolic.bridge import to_torch


class AbstractTensor(torch.Tensor):
    """A tensor without data. See the module."""

    _abstract: Abstract
    _value: Any = None
    """What capture knows of the tensor, while it lasts."""
    _node: Any = None
    """The node whose metadata this very tensor is."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(kind, AbstractTensor) for kind in types):
            return NotImplemented  # the other class knows what to do
        if op is torch.ops.aten.alias.default:  # Tensor.as_subclass
            raise UnsupportedError(
                "a tensor of the program cannot become one of a subclass",
                where=source.here(),
                fix="compute with plain tensors: __torch_function__ may return them as they are",
            )
        raise UnsupportedError(
            f"{op} of a tensor that has no data, where capture does not see it: in another thread, "
            "or after the capture",
            where=source.here(),
            fix="compute in the thread that calls the program, while it is captured",
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"AbstractTensor({self._abstract!r})"

    def __format__(self, spec: str) -> str:
        """Text of the user's own: there is no number to format, and no reason to fail for it."""
        return repr(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._value is not None and has_torch_function_unary(self):  # in the user's program
            return handle_torch_function(torch.Tensor.__deepcopy__, (self,), self, memo)
        return abstract_tensor(self._abstract, self.requires_grad)

    def __copy__(self) -> Any:
        """What `copy.copy` gives shares the memory."""
        return torch.ops.aten.alias.default(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise DataDependentError(
            "a tensor that has no data cannot be pickled or saved",
            where=source.here(),
            fix="return it, and save what the program gives",
        )


_wrapper = torch.Tensor._make_wrapper_subclass


def abstract_tensor(abstract: Abstract, requires_grad: bool = False) -> AbstractTensor:
    """A tensor for the user to hold, or for a node's metadata."""
    sizes = abstract.sizes
    offset = abstract.offset
    plain = type(offset) is int and offset == 0
    strides = abstract._strides if plain else abstract.strides
    for s in sizes:
        if type(s) is not int:
            sizes = [to_torch(s) for s in sizes]
            strides = [to_torch(s) for s in abstract.strides]
            break
    else:
        if strides is not None:
            strides = [to_torch(s) for s in strides]
    t = _wrapper(
        AbstractTensor, sizes, strides=strides, dtype=abstract.dtype, device=abstract.device,
        requires_grad=requires_grad, storage_size=0,
        storage_offset=None if plain else to_torch(offset),
    )  # fmt: skip
    # storage_size: or C++ works out the number of bytes, through a dozen calls on symbolic sizes.
    t._abstract = abstract
    return t
