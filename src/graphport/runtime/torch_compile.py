"""Entry point for `torch.compile`, and the AOTAutograd options of the backend.

The only module of this package that imports Dynamo and functorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from graphport.compat import torch as compat
from graphport.process import Patch, Replacement, Switch, restore_on_exit
from graphport.runtime.backend import OrtBackend, needs_gradients
from graphport.runtime.graphs import needs_derivatives
from graphport.runtime.options import OrtBackendOptions


def backend(
    module: GraphModule,
    inputs: Sequence[object],
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """`torch.compile(..., backend="graphport")`; `mode` belongs to other backends."""
    return OrtBackend.get_cached_instance_for_options(options)(module, inputs)


@restore_on_exit
def compile_graph(
    backend: OrtBackend, module: GraphModule, inputs: Sequence[object]
) -> Callable[..., object]:
    wanted = needs_gradients(inputs) or needs_derivatives(module)
    # Tensor subclasses are unwrapped by AOTAutograd.
    wanted = wanted or any(map(compat.is_traceable_wrapper_subclass, inputs))
    if not (backend.options.use_aot_autograd and wanted):
        return backend.compile(module, inputs, inference=True)

    def compiler(graph: GraphModule, examples: Sequence[object]) -> Callable[..., object]:
        return compat.make_boxed_func(backend.compile(graph, examples, inference=False))

    # Attention is decomposed into operators with a backward in ONNX: torch's kernels have none.
    with _DECOMPOSED_ATTENTION:
        return compat.aot_autograd(fw_compiler=compiler, decompositions=_backward_decompositions())(
            module, inputs
        )


def _disable_fused_attention() -> Iterator[Replacement]:
    for name in compat.ATTENTION_KERNELS:
        read, write = compat.locate(f"get_{name}_sdp_enabled"), compat.locate(f"set_sdp_use_{name}")
        yield Switch(getattr(*read), getattr(*write)), "", name == "math"


_DECOMPOSED_ATTENTION = Patch(_disable_fused_attention)


def _backward_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of backward operators without a lowering; forward operators stay whole."""
    table: dict[Any, Callable[..., Any]] = {
        op: fn for op, fn in compat.core_aten_decompositions().items() if "backward" in str(op)
    }
    return table
