"""The schemas of torchvision's operators, for programs that call them where torchvision is not.

Whoever has torchvision has them from its library. To define them beside a library that is loaded
later would end the process, so it is imported first if it is there.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cache

import torch

from graphport.compat.torch import jit_get_schemas_for_operator

NAMESPACE = "torchvision"
_POOLED = (
    "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
)
SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"({_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": f"({_POOLED}) -> (Tensor, Tensor)",
    "ps_roi_align": f"({_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool": f"({_POOLED}) -> (Tensor, Tensor)",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
}
"""By the names of the operators: arguments and results."""


def list_missing() -> list[str]:
    """The operators that this process does not have."""
    return [n for n in SCHEMAS if not jit_get_schemas_for_operator(f"{NAMESPACE}::{n}")]


@cache
def define_operators() -> None:
    """Make sure that the operators exist: by torchvision's library, or by their schemas alone."""
    if list_missing():
        # There may be none, or one that was built for another torch.
        with suppress(ImportError, OSError, RuntimeError):
            importlib.import_module(NAMESPACE)
    for name in list_missing():
        _LIBRARY.define(f"{name}{SCHEMAS[name]}")


_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
