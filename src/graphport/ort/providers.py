"""Which execution providers of ONNX Runtime a graph runs on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnxruntime as ort
import torch

from graphport.errors import UsageError
from graphport.ort.options import OrtBackendOptions, Provider

# By the type of torch's device. What is not here runs on the CPU's provider.
OF_DEVICE = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "hip": "ROCMExecutionProvider",
    "xpu": "OpenVINOExecutionProvider",
    "maia": "MAIAExecutionProvider",
}


def runs_on(device: torch.device) -> bool:
    """Whether ONNX Runtime, as it is installed, computes where such tensors are."""
    return device.type == "cpu" or OF_DEVICE.get(device.type) in ort.get_available_providers()


def providers(
    options: OrtBackendOptions, devices: Iterable[torch.device], installed: Sequence[str] = ()
) -> list[Any]:
    """Preferred ones, those of the devices, default ones; each once, as far as installed."""
    wanted = _listed(options.preferred_execution_providers)
    if options.infer_execution_providers:
        kinds = dict.fromkeys(d.type for d in devices)
        # What computes on a device comes before what computes on the host.
        wanted += [OF_DEVICE[k] for k in sorted(kinds, key=lambda k: k == "cpu") if k in OF_DEVICE]
    wanted += _listed(options.default_execution_providers or "CPUExecutionProvider")
    installed = installed or ort.get_available_providers()
    found: dict[str, Any] = {}
    for provider in wanted:
        name = provider if isinstance(provider, str) else provider[0]
        if name in installed:
            found.setdefault(name, provider)
        elif name not in ort.get_all_providers():
            raise UsageError(
                f"ONNX Runtime has no execution provider {name}",
                fix=f"one of {', '.join(installed)}",
            )
    if not found:
        names = ", ".join(p if isinstance(p, str) else p[0] for p in wanted)
        raise UsageError(
            f"none of the execution providers {names} is part of the ONNX Runtime installed",
            fix=f"one of {', '.join(installed)}",
        )
    return list(found.values())


def _listed(given: Sequence[Provider] | str | None) -> list[Provider]:
    """A name alone stands for a list of one."""
    return [given] if isinstance(given, str) else list(given or ())
