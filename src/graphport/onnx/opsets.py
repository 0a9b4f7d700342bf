"""The opset to write by default."""

from __future__ import annotations

from functools import cache
from importlib import metadata

# The newest opset that releases of ONNX Runtime have all kernels for that we emit.
_SUPPORTED = {(1, 20): 21, (1, 22): 22, (1, 23): 23, (1, 24): 24}
_WITHOUT = 23


@cache
def default() -> int:
    """The newest that the installed ONNX Runtime supports in full."""
    try:
        version = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        return _WITHOUT
    major, minor = (int(part) for part in version.split(".")[:2])
    fitting = [opset for release, opset in _SUPPORTED.items() if release <= (major, minor)]
    return max(fitting, default=min(_SUPPORTED.values()))
