"""Lowers `torch.onnx.ops.symbolic`: operators of ONNX that a model names itself.

Other functions of `torch.onnx.ops` are operators with an equivalent in ATen, which they become.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.emit.schemas import TORCH_OF, find_signature
from graphport.onnx.lower.registry import lower_named

_METADATA = "metadata_props_keys metadata_props_values"


@lower_named("onnx_symbolic::_symbolic", ignores=f"shape {_METADATA}")
def symbolic(
    b: Builder,
    inputs: Sequence[Value | None],
    op_type: str,
    onnx_dtype: int,
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    domain: str,
    version: int | None,
) -> Value:
    lists = {"i": attr_ints, "f": attr_floats, "s": attr_strs}
    attributes = _read_attributes(attr_keys, attr_types, attr_pos, lists)
    _require_version(b, op_type, domain, version)
    (made,) = b.emit_by_name(op_type, domain, inputs, [TORCH_OF[onnx_dtype]], attributes)
    return made


@lower_named("onnx_symbolic::_symbolic_multi_out", ignores=f"shapes {_METADATA}")
def symbolic_multi_out(
    b: Builder,
    inputs: Sequence[Value | None],
    op_type: str,
    onnx_dtypes: Sequence[int],
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    domain: str,
    version: int | None,
) -> tuple[Value, ...]:
    lists = {"i": attr_ints, "f": attr_floats, "s": attr_strs}
    attributes = _read_attributes(attr_keys, attr_types, attr_pos, lists)
    _require_version(b, op_type, domain, version)
    dtypes = [TORCH_OF[n] for n in onnx_dtypes]
    return tuple(b.emit_by_name(op_type, domain, inputs, dtypes, attributes))


def _read_attributes(
    keys: Sequence[str],
    kinds: Sequence[str],
    places: Sequence[Sequence[int]],
    lists: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """Attributes of each type lie one behind the other; `is` is a list of ints."""
    found: dict[str, Any] = {}
    for key, kind, (start, end) in zip(keys, kinds, places, strict=True):
        values = list(lists[kind[0]][start:end])
        found[key] = values if kind.endswith("s") and len(kind) > 1 else values[0]
    return found


def _require_version(b: Builder, op: str, domain: str, version: int | None) -> None:
    """The operator has to mean in the file what it means in the version that the model names."""
    if version is None or (domain and version == 1):
        return
    if domain:
        raise UnsupportedError(f"{domain} is written as version 1, and {op} is of {version}")
    meant, written = find_signature(op, version), find_signature(op, b.opset)
    if meant is None or written is None or meant.since != written.since:
        raise UnsupportedError(
            f"{op} of opset {version} is another operator at opset {b.opset}",
            fix=f"opset={version}",
        )
