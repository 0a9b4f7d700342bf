"""`Target`: what a file is written for. Only this package knows what a runtime can do.

A file for "onnx" is of standard operators, and depends on nothing that is installed. A file for
"ort" may have operators of ONNX Runtime, in the opset that the installed release supports. Both are
computed in dtypes that ONNX Runtime has kernels for, by a table that is part of this package.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from graphport.onnx.emit.schemas import Signature, find_signature
from graphport.onnx.target.kernels import KERNELS_FILE, Kernels


@dataclass(frozen=True, eq=False)
class Target:
    """The opsets, operators and kernels of files, and the options of sessions that run them."""

    name: str
    runtime: str
    """Whose kernels and sessions they are, as messages call it."""
    opsets: range
    opset: int
    """The default, where it does not follow from a release."""
    kernels: Kernels
    releases: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The newest opset that releases from each on have all kernels for that we emit.

    Empty if files do not depend on what is installed.
    """
    domain: str = ""
    operators: Mapping[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    """Operators beyond the standard, and the domain they are of: types of inputs and outputs."""

    @property
    def is_tuned(self) -> bool:
        """Whether files are for this runtime alone, and may be shaped to what is fast on it."""
        return bool(self.operators)

    def default_opset(self) -> int:
        """Of the newest release that is not newer than the installed one."""
        version = _find_installed_version("onnxruntime") if self.releases else None
        if version is None:
            return self.opset
        major, minor = (int(part) for part in version.split(".")[:2])
        fitting = [opset for release, opset in self.releases.items() if release <= (major, minor)]
        return max(fitting, default=min(self.releases.values()))

    def find_signature(self, op: str, opset: int) -> Signature | None:
        """An operator of the standard at an opset, or one beyond it; None if there is neither."""
        return find_signature(op, opset) or _find_own_signature(self, op)

    def has(self, op: str, opset: int, dtype: torch.dtype | None = None) -> bool:
        """Whether there is an operator, and a kernel of it for a dtype."""
        found = self.find_signature(op, opset)
        return found is not None and (dtype is None or self.kernels.has_kernel(found, dtype))

    def newest_opset(self, op: str, opset: int) -> int:
        """An opset, or the newest before it that has kernels of an operator."""
        found = (n for n in range(opset, self.opsets[0], -1) if self._has_kernels(op, n))
        return next(found, self.opsets[0])

    def _has_kernels(self, op: str, opset: int) -> bool:
        found = self.find_signature(op, opset)
        return found is not None and self.kernels.has_any(found)

    def describe_other_release(self, version: str | None) -> str | None:
        """What to know if another release is installed than the one that kernels were read from."""
        if version is None or version == self.kernels.version:
            return None
        return (
            f"kernels are known of {self.runtime} {self.kernels.version}, and {version} is "
            "installed: where it has fewer, it refuses to load a model"
        )

    def session_options(
        self, *, log_errors: bool = False, threads: int | None = None, folder: Path | None = None
    ) -> Any:
        """Options of a session; `folder` has the weights that a model in memory says are beside it.

        Errors are raised, and not logged as well unless it is said.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3 if log_errors else 4
        # On x86 without VNNI, sums of products of bytes would saturate on their way.
        options.add_session_config_entry("session.x64quantprecision", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        if folder is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(folder.absolute())
            )
        return options


@cache
def _find_own_signature(target: Target, op: str) -> Signature | None:
    types = target.operators.get(op)
    return None if types is None else Signature(op, target.domain, *types, None, False, 1)


@cache
def _find_installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


ONNX = Target(
    name="onnx",
    runtime="ONNX Runtime",
    opsets=range(11, 27),
    opset=24,
    kernels=Kernels(KERNELS_FILE),
)
ORT = replace(
    ONNX,
    name="ort",
    opset=23,  # which all releases run that graphport can be installed with
    releases={(1, 20): 21, (1, 22): 22, (1, 23): 23, (1, 24): 24},
    domain="com.microsoft",
    operators={
        "FusedMatMul": (["T", "T"], ["T"]),
        "FusedGemm": (["T", "T", "T"], ["T"]),
        "FastGelu": (["T", "T"], ["T"]),
        "QuickGelu": (["T"], ["T"]),
        "BiasGelu": (["T", "T"], ["T"]),
        "MultiHeadAttention": (
            ["T", "T", "T", "T", "tensor(int32)", "T", "T", "T", "tensor(int32)"],
            ["T", "T", "T"],
        ),
        "GroupQueryAttention": (
            ["T", "T", "T", "T", "T", "tensor(int32)", "tensor(int32)", "T", "T"],
            ["T", "T", "T"],
        ),
    },
)
TARGETS = {target.name: target for target in (ONNX, ORT)}


def infer_target(domains: Container[str]) -> str:
    """The target of a file, by the domains of its operators."""
    found = (t.name for t in TARGETS.values() if t.domain and t.domain in domains)
    return next(found, ONNX.name)
