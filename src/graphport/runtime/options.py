"""Options of the backend, and the execution providers that follow from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import onnxruntime
import onnxruntime as ort
import torch

from graphport.arguments import (
    DICT,
    FLAG,
    FUNCTION,
    NONE,
    TEXT,
    Kind,
    check_fields,
    instance_of,
    several,
)
from graphport.errors import InputError, UsageError
from graphport.onnx.options import ExportOptions
from graphport.onnx.target.targets import ORT

if TYPE_CHECKING:
    import onnx

Provider = str | tuple[str, Mapping[str, Any]]
"""An execution provider of ONNX Runtime by name, or its name and options."""


_PROVIDERS = (
    several(TEXT | Kind("(name, options)", lambda x: isinstance(x, (list, tuple)))) | TEXT | NONE
)
_EXPORT_KIND = instance_of("an ExportOptions", "graphport.onnx.options:ExportOptions")
_SESSION_KIND = instance_of("an onnxruntime.SessionOptions", "onnxruntime:SessionOptions")


@check_fields(
    preferred_execution_providers=_PROVIDERS,
    infer_execution_providers=FLAG,
    default_execution_providers=_PROVIDERS,
    preallocate_output=FLAG,
    use_aot_autograd=FLAG,
    export_options=_EXPORT_KIND | DICT | NONE,
    ort_session_options=_SESSION_KIND | NONE,
    pre_ort_model_transforms=several(FUNCTION) | NONE,
    strict=FLAG,
)
@dataclass(frozen=True)
class OrtBackendOptions:
    """Options of the backend; a mapping with these keys is accepted in its place."""

    preferred_execution_providers: Sequence[Provider] | None = None
    """Tried first, in this order, where they are installed."""
    infer_execution_providers: bool = True
    """Whether providers follow from the devices of the tensors."""
    default_execution_providers: Sequence[Provider] | None = None
    """Tried last; the one for CPUs if nothing is said."""
    preallocate_output: bool = False
    """Whether torch allocates results also of models that `pre_ort_model_transforms` have changed.

    Of all others it does, where their sizes are known before. The rest are copied.
    """
    use_aot_autograd: bool = True
    """Whether gradients are computed, by AOTAutograd, where they are asked for."""
    export_options: ExportOptions | Mapping[str, Any] | None = None
    ort_session_options: onnxruntime.SessionOptions | None = None
    pre_ort_model_transforms: Sequence[Callable[[onnx.ModelProto], None]] | None = None
    """Change a model in place before ONNX Runtime sees it."""
    strict: bool = False
    """Whether it is an error if something cannot run on ONNX Runtime, where torch would run it."""

    @classmethod
    def of(cls, given: OrtBackendOptions | Mapping[str, Any] | None) -> OrtBackendOptions:
        if isinstance(given, OrtBackendOptions):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise InputError(
                f"the options of the backend are an OrtBackendOptions or a mapping, got {given!r}"
            )
        given = dict(given or {})
        unknown = sorted(str(name) for name in set(given) - {f.name for f in fields(cls)})
        if unknown:
            known = ", ".join(f.name for f in fields(cls))
            raise InputError(
                f"OrtBackendOptions has no {', '.join(unknown)}", fix=f"one of {known}"
            )
        return cls(**given)

    @property
    def export(self) -> ExportOptions:
        """How graphs are lowered: for this ONNX Runtime, unless it is said otherwise."""
        given = self.export_options
        return ExportOptions(target=ORT.name) if given is None else ExportOptions.of(given)

    def check(self) -> None:
        """Refuse what nothing can be compiled with."""
        ExportOptions.of(self.export_options)

    @property
    def key(self) -> Any:
        """Equal for options that mean the same; None for those that are like no others."""
        if self.ort_session_options is not None:
            return None
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["export_options"] = vars(self.export)
        return _make_hashable(values)

    @property
    def dump_prefix(self) -> str | None:
        """Prefix of the files that models are dumped to."""
        return os.environ.get("ONNXRT_DUMP_PATH") or None


def _make_hashable(x: object) -> object:
    """Something that can be compared and hashed, from lists and dicts."""
    if isinstance(x, Mapping):
        return tuple(sorted((str(k), _make_hashable(v)) for k, v in x.items()))
    if isinstance(x, Sequence) and not isinstance(x, str):
        return tuple(map(_make_hashable, x))
    try:
        hash(x)
    except TypeError:
        return id(x)
    return x


# Chooses the execution providers of ONNX Runtime for a graph.

# By the type of torch's device. What is not here runs on the CPU's provider.
PROVIDER_OF_DEVICE = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "hip": "ROCMExecutionProvider",
    "xpu": "OpenVINOExecutionProvider",
    "maia": "MAIAExecutionProvider",
}


def can_run_on(device: torch.device) -> bool:
    """Whether ONNX Runtime, as it is installed, computes where such tensors are."""
    return (
        device.type == "cpu" or PROVIDER_OF_DEVICE.get(device.type) in ort.get_available_providers()
    )


def select_providers(
    options: OrtBackendOptions, devices: Iterable[torch.device], installed: Sequence[str] = ()
) -> list[object]:
    """Preferred ones, those of the devices, default ones; each once, as far as installed."""
    wanted = _as_list(options.preferred_execution_providers)
    if options.infer_execution_providers:
        kinds = dict.fromkeys(d.type for d in devices)
        # What computes on a device comes before what computes on the host.
        wanted += [
            PROVIDER_OF_DEVICE[k]
            for k in sorted(kinds, key=lambda k: k == "cpu")
            if k in PROVIDER_OF_DEVICE
        ]
    wanted += _as_list(options.default_execution_providers or "CPUExecutionProvider")
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


def _as_list(given: Sequence[Provider] | str | None) -> list[Provider]:
    """A name alone stands for a list of one."""
    return [given] if isinstance(given, str) else list(given or ())
