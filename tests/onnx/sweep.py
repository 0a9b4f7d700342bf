"""PyTorch's own operator database through ONNX Runtime: what passes, and why the rest does not.

    python -m tests.onnx.sweep add nn.functional.conv2d --dtypes float32 float16 --dynamic

An operator passes for a dtype if every sample is exported and gives what eager gives. A sample that
eager refuses says nothing. Results of random operators are compared by dtype and size.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import graphport as gp
from tests.onnx.helpers import assert_close
from tests.ops.sweep import case, eager, samples
from tests.ops.test_sweep import UNINITIALISED

DTYPES = (torch.float32, torch.int64, torch.bool, torch.float16)
SAMPLES = 5

Exporter = Callable[[Callable[..., Any], tuple[Any, ...]], Callable[..., Any]]
"""What makes a callable that runs on ONNX Runtime, flat results in a list."""


@dataclass
class Outcome:
    """How the samples of one operator in one dtype came out."""

    name: str
    dtype: torch.dtype
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """That of the worst sample."""
        return min(self.counts, key=_WORST.index) if self.counts else "no samples"

    @property
    def passes(self) -> bool:
        return self.verdict == "ok"

    def add(self, verdict: str, reason: str = "") -> None:
        self.counts[verdict] += 1
        if reason:
            self.reasons.setdefault(verdict, reason)

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {verdict}" for verdict, n in self.counts.items()) or "no samples"
        reasons = "".join(f"\n      {v}: {r}" for v, r in self.reasons.items())
        kind = str(self.dtype).removeprefix("torch.")
        return f"{'pass' if self.passes else 'FAIL'} {self.name} {kind}: {counts}{reasons}"


_WORST = ("wrong", "not run", "not exported", "ok")


def name_of(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def graphport(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    return gp.onnx.export(fn, inputs)


def graphport_dynamic(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    spec = [{d: gp.Dim.AUTO for d, s in enumerate(t.shape) if s} for t in inputs[0]]
    return gp.onnx.export(fn, inputs, dynamic_shapes=(spec,))


def torch_onnx(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """The opponent. Its table of operators is built once, not at each export, to save hours."""
    _keep_operators()

    class Model(torch.nn.Module):
        def forward(self, tensors: Any) -> Any:
            return fn(tensors)

    program = torch.onnx.export(Model(), inputs, dynamo=True, verbose=False)
    return lambda *args: list(program(*args))


@functools.cache
def _keep_operators() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    built_once = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
    ONNXRegistry.from_torchlib = built_once  # type: ignore[method-assign, assignment]


EXPORTERS = {"graphport": graphport, "torch.onnx": torch_onnx}


def sweep(
    op: Any,
    dtype: torch.dtype,
    exporter: Exporter = graphport,
    limit: int = SAMPLES,
    patient: bool = True,
) -> Outcome:
    """All samples, or, where patience is short, those up to the first that fails."""
    outcome = Outcome(name_of(op), dtype)
    for sample in samples(op, dtype, limit):
        fn, inputs = case(pointed_at(op), sample)
        want = eager(fn, inputs)
        if want is None or not _is_comparable(want):
            continue
        random = _is_random(op) or ("attention" in op.name and _drops(sample))
        outcome.add(*_judged(random, fn, inputs, want, exporter))
        if not (patient or outcome.passes):
            break
    return outcome


# Which of equal elements a position is of, kernels choose: what it points at is compared. The
# number is that of the argument `dim`.
_POSITIONS = {
    "sort": 1,
    "argsort": 1,
    "topk": 2,
    "kthvalue": 2,
    "median": 1,
    "nanmedian": 1,
    "mode": 1,
}


def _multiply_svd(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> Any:
    k = s.shape[-1]
    return (u[..., :k] * s[..., None, :]) @ vh[..., :k, :] if u.numel() else u, s


# Vectors are free to have another sign: what they make together is compared.
_VECTORS: dict[str, Callable[..., Any]] = {
    "linalg.svd": _multiply_svd,
    "svd": lambda u, s, v: _multiply_svd(u, s, v.mT),
    "linalg.eigh": lambda w, v: ((v * w[..., None, :]) @ v.mT, w),
}


def pointed_at(op: Any) -> Callable[..., Any]:
    """The call, with what is compared in place of what is left open."""
    if op.name in _VECTORS:
        return lambda *args, **kwargs: _VECTORS[op.name](*op.op(*args, **kwargs))
    if op.name not in _POSITIONS:
        return op.op

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        result = op.op(input, *args, **kwargs)
        dim = kwargs.get("dim", (*args, -1, -1)[_POSITIONS[op.name] - 1])
        if op.name == "argsort":
            return input.gather(dim, result)
        if isinstance(result, torch.Tensor):
            return result
        values, places = result
        if places.dim() < input.dim():
            return values, input.gather(dim, places.unsqueeze(dim))
        return values, input.gather(dim, places)

    return call


def _is_comparable(want: Any) -> bool:
    leaves = pytree.tree_leaves(want)
    return all(not isinstance(x, torch.Tensor) or x.layout is torch.strided for x in leaves)


def _judged(
    random: bool, fn: Callable[..., Any], inputs: Any, want: Any, exporter: Exporter
) -> tuple[str, str]:
    try:
        program = exporter(fn, inputs)
    except Exception as error:
        return "not exported", _first_lines(error)
    try:
        have = program(*inputs)
    except Exception as error:
        return "not run", _first_lines(error)
    flat_have, flat_want = pytree.tree_leaves(have), pytree.tree_leaves(want)
    if random:
        flat_have, flat_want = (
            [torch.zeros_like(x) if isinstance(x, torch.Tensor) else x for x in flat]
            for flat in (flat_have, flat_want)
        )
    try:
        assert_close(flat_have, flat_want, "results differ")
    except (AssertionError, ValueError) as error:
        if _is_closer(fn, inputs, flat_have, flat_want):
            return "ok", ""
        return "wrong", _first_lines(error)
    return "ok", ""


_WIDER = {torch.float16: torch.float32, torch.float32: torch.float64}


def _is_closer(fn: Callable[..., Any], inputs: Any, have: list[Any], want: list[Any]) -> bool:
    """Whether results that differ from eager's are nearer than those to a run in a wider dtype."""
    dtypes = {x.dtype for x in pytree.tree_leaves(inputs)} & _WIDER.keys()
    if not dtypes:
        return False
    wide = _WIDER[dtypes.pop()]
    cast = pytree.tree_map(lambda x: x.to(wide) if x.is_floating_point() else x, inputs)
    truth = pytree.tree_leaves(eager(fn, cast))
    if len(truth) != len(have) or len(have) != len(want):
        return False
    return all(_error(x, z) <= _error(y, z) for x, y, z in zip(have, want, truth, strict=True))


def _error(x: Any, truth: Any) -> float:
    if x.shape != truth.shape:
        return float("inf")
    difference = (x.to(truth.dtype) - truth).abs().nan_to_num(float("inf"))
    return float(difference.max()) if difference.numel() else 0.0


def _drops(sample: Any) -> bool:
    """Whether a sample of attention is one with dropout."""
    return bool(sample.kwargs.get("dropout_p")) or sample.kwargs.get("training") is True


def _is_random(op: Any) -> bool:
    if op.name in UNINITIALISED:
        return True
    packet = getattr(torch.ops.aten, op.name.rpartition(".")[2], None)
    random = packet is not None and any(
        torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in packet.overloads()
    )
    return random or "dropout" in op.name or op.name in _RANDOM


_NO_FORMULA = "eigenvalues of matrices that are not symmetric have no formula in ONNX's operators"
_DATA = "Python needs to know data"

# What is refused, and why. Everything else is exported and right.
GAPS = {
    **dict.fromkeys(("linalg.eig", "linalg.eigvals"), _NO_FORMULA),
    **dict.fromkeys(
        ("allclose", "equal", "tensor_split", "nn.functional.gaussian_nll_loss"), _DATA
    ),
    **dict.fromkeys(("resize_", "resize_as_"), "a graph cannot replace the storage of a tensor"),
    "as_strided.partial_views": "reads memory that is not the tensor's",
    "hash_tensor": "needs the bits of floats",
}

_RANDOM = {
    "normal",
    "multinomial",
    "randint",
    "randn",
    "rand_like",
    "randn_like",
    "bernoulli",
    "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "uniform",
    "randint_like",
    "svd_lowrank",
    "pca_lowrank",
}


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:4])}"[:400]


def chosen(names: Iterable[str]) -> Iterator[Any]:
    wanted = set(names)
    for op in op_db:
        if not wanted or {op.name, name_of(op)} & wanted:
            yield op


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtypes", nargs="*", default=[str(d)[6:] for d in DTYPES])
    parser.add_argument("--dynamic", action="store_true", help="every size automatic")
    parser.add_argument("--opponent", action="store_true", help="torch.onnx.export instead")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--failures", action="store_true", help="print only what fails")
    options = parser.parse_args()
    exporter = graphport_dynamic if options.dynamic else graphport
    if options.opponent:
        exporter = torch_onnx
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    passed = total = 0
    for op in chosen(options.names):
        for kind in options.dtypes:
            dtype = getattr(torch, kind)
            if dtype not in op.supported_dtypes("cpu"):
                continue
            outcome = sweep(op, dtype, exporter, options.samples)
            if not outcome.counts:
                continue
            total += 1
            passed += outcome.passes
            if not (options.failures and outcome.passes):
                print(outcome, flush=True)
    print(f"{passed} of {total}")
    return 0 if passed == total else 1


if __name__ == "__main__":
    sys.exit(main())
