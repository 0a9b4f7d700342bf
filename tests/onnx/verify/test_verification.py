"""`ONNXProgram.verify`: sizes, comparison by dtype, reports, the first node that diverges."""

from __future__ import annotations

import math
import re
import textwrap
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.errors import MismatchError, VerificationError
from graphport.onnx.verify import verification
from graphport.onnx.verify.compare import Tolerance, compare_results
from graphport.onnx.verify.divergence import Probe
from graphport.onnx.verify.samples import Samples
from tests.onnx.helpers import check_onnx

batch, length = gp.Dim("batch"), gp.Dim("length")


def wrong_sin(b: Any, self: Any) -> Any:
    return b.Cos(self)


def close(dtype: torch.dtype) -> Tolerance:
    return Tolerance.of(dtype, None, None)


# Sizes


def tried(program: gp.onnx.ONNXProgram) -> list[tuple[int, ...]]:
    return [tuple(sizes.values()) for sizes in program.verify().sizes_tried]


def test_one_dim() -> None:
    program = gp.onnx.export(lambda x: x * 2, (torch.randn(3, 2),), dynamic_shapes=({0: batch},))
    report = program.verify()
    assert report.ok and report.sizes_tried == [{"batch": n} for n in (3, 4, 1, 0, 6, 2)]


def test_sizes_stay_in_the_ranges() -> None:
    dim = gp.Dim("n", min=2, max=4)
    program = gp.onnx.export(lambda x: x * 2, (torch.randn(3),), dynamic_shapes=({0: dim},))
    assert sorted(tried(program)) == [(2,), (3,), (4,)]


def test_sizes_satisfy_what_dims_have_to_do_with_each_other() -> None:
    program = gp.onnx.export(
        lambda x, y: x[1:] + y,
        (torch.randn(5), torch.randn(4)),
        dynamic_shapes=({0: length + 1}, {0: length}),
    )
    report = program.verify()
    assert report.ok and len(report.sizes_tried) > 3


def test_sizes_satisfy_conditions() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] % 4 == 0)
        torch._check(y.shape[0] < x.shape[0])
        return x.sum() + y.sum() if x.shape[0] > y.shape[0] else x

    ep = gp.export(
        f,
        (torch.randn(8), torch.randn(3)),
        guards="runtime_assert",
        dynamic_shapes=({0: 4 * gp.Dim("quarter")}, {0: gp.Dim("m")}),
    )
    samples = Samples(ep, [torch.randn(8), torch.randn(3)])
    found = [tuple(t.shape[0] for t in samples.drawn(sizes)) for sizes in samples.others(5)]
    assert len(found) > 2 and all(a % 4 == 0 and b < a for a, b in found)


def test_static_programs_are_tried_at_the_example() -> None:
    program = gp.onnx.export(lambda x: x * 2, (torch.randn(3),))
    assert program.verify().sizes_tried == [{}]


def test_other_inputs_than_the_example() -> None:
    program = gp.onnx.export(lambda x: x * 2, (torch.randn(3),), dynamic_shapes=({0: batch},))
    assert program.verify((torch.randn(9),)).sizes_tried[0] == {"batch": 9}
    assert program.verify(kwargs={"x": torch.randn(7)}).sizes_tried[0] == {"batch": 7}
    with pytest.raises(RuntimeError, match="dtype"):
        program.verify((torch.ones(3, dtype=torch.int64),))


def test_sizes_that_eager_refuses() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling() and x.shape[0] == 1:
                raise ValueError("not one")
            return x + 1

    program = gp.onnx.export(Model(), (torch.randn(3),), dynamic_shapes=({0: batch},))
    report = program.verify()
    assert report.ok and report.sizes_refused == [{"batch": 1}]
    assert "eager refuses: batch=1, because ValueError: not one" in str(report)
    with pytest.raises(ValueError, match="not one"):
        program.verify((torch.randn(1),))


@pytest.mark.filterwarnings("ignore::graphport.errors.SizeWarning")
def test_sizes_that_the_program_refuses() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + 1 if x.shape[0] == 4 else x + 2
        return x[: y.shape[0]] if y.shape[0] <= x.shape[0] else x * 2

    b, c = gp.Dim("b", min=2, max=64), gp.Dim("c", min=2, max=64)
    ep = gp.export(
        f,
        (torch.randn(8), torch.randn(3)),
        guards="runtime_assert",
        dynamic_shapes=({0: b}, {0: c}),
    )
    report = gp.onnx.export(ep).verify()
    assert report.ok
    refused = {t.reason: t.sizes for t in report.sizes_refused}
    assert all(t.outcome == "refused" for t in report.sizes_refused)
    assert refused["b != 4 does not hold"]["b"] == 4, refused
    (other,) = (sizes for reason, sizes in refused.items() if "c" in reason)
    assert other["c"] > other["b"]
    assert "refused: b=4, c=" in str(report)
    assert "because b != 4 does not hold" in str(report)


@pytest.mark.filterwarnings("ignore::graphport.errors.SizeWarning")
def test_sizes_that_a_branch_has_left_out() -> None:
    f = lambda x: x + 1 if x.shape[0] == 1 else x + 2
    report = gp.onnx.export(f, (torch.randn(3),), dynamic_shapes=({0: batch},)).verify()
    assert report.ok and report.sizes_refused == [{"batch": 1}]
    assert "refused: batch=1, because batch != 1 does not hold" in str(report)


def test_layouts_and_memory_that_a_program_needs() -> None:
    def f(x: Tensor) -> Tensor:
        x.permute(1, 0).flatten().mul_(10)
        return x + 0

    x = torch.randn(4, 3).T
    program = gp.onnx.export(f, (x,), dynamic_shapes=({0: gp.Dim("a"), 1: gp.Dim("b")},))
    report = program.verify()
    assert report.ok and sum(t.compared for t in report.sizes_tried) == 6, report


def test_what_came_of_each_size() -> None:
    def lowering(b: Any, self: Any) -> Any:
        return b.Mul(b.Sin(self), torch.ones(3))  # broadcasts, or not

    report = gp.onnx.export(
        lambda x: torch.sin(x),
        (torch.randn(3),),
        dynamic_shapes=({0: batch},),
        custom_lowerings={"aten::sin": lowering},
    ).verify(sizes=[{"batch": 1}, {"batch": 2}])
    found = [(t.sizes, t.outcome) for t in report.sizes_tried]
    assert found == [({"batch": 3}, "ok"), ({"batch": 1}, "differs"), ({"batch": 2}, "differs")]
    assert report.sizes_tried[1].reason == "output: of size [3] instead of [1]"


# What is tried


def doubled(**dims: Any) -> gp.onnx.ONNXProgram:
    b = gp.Dim("batch", **dims)
    return gp.onnx.export(lambda x: x * 2, (torch.randn(3, 2),), dynamic_shapes=({0: b},))


def test_no_other_sizes() -> None:
    report = doubled().verify(other_sizes=False)
    assert report.ok and report.sizes_tried == [{"batch": 3}]
    assert doubled().verify(limit=0).sizes_tried == [{"batch": 3}]


def test_sizes_that_are_given() -> None:
    report = doubled(max=64).verify(sizes=[{"batch": 5}, {"batch": 65}])
    assert report.ok and report.sizes_tried == [{"batch": n} for n in (3, 5, 65)]
    many = doubled().verify(sizes=[{"batch": -1}, {"batch": 10**14}, {"batch": 2**62 - 1}])
    assert many.ok and [t.outcome for t in many.sizes_refused] == ["refused"] * 3
    outside = report.sizes_tried[2]
    assert outside.outcome == "refused" and "64" in outside.reason
    assert len(doubled().verify(sizes={"batch": 9}, limit=2).sizes_tried) == 4


def test_sizes_that_are_too_large_are_not_chosen() -> None:
    dims = {d: gp.Dim(f"d{d}") for d in range(6)}
    ep = gp.export(lambda x: x * 2, (torch.ones(12, 12, 12, 12, 12, 12),), dynamic_shapes=(dims,))
    samples = Samples(ep, [torch.ones(12, 12, 12, 12, 12, 12)])
    found = [samples.cost(sizes) for sizes in samples.others(20)]
    assert len(found) == 20 and max(found) <= 2


def test_a_number_of_sizes() -> None:
    assert [len(doubled().verify(limit=n).sizes_tried) for n in (1, 3, 9)] == [2, 4, 10]


def test_inputs_that_are_given() -> None:
    x, y = torch.randn(5, 2), torch.randn(6, 2)
    report = doubled().verify(inputs=[(x,), ((y,), {}), {"x": x}], other_sizes=False)
    assert report.ok and [t["batch"] for t in report.sizes_tried] == [5, 6, 5]
    assert doubled().verify(inputs=(y,), other_sizes=False).sizes_tried == [{"batch": 6}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit": -1}, "limit=-1 is no number of sizes"),
        ({"limit": True}, "limit=True is no number of sizes"),
        ({"limit": 2, "other_sizes": False}, "limit=2 asks for other sizes"),
        ({"other_sizes": "no"}, "other_sizes='no'"),
        ({"sizes": [{"rows": 3}]}, "the program has no dim 'rows'; it has batch"),
        ({"sizes": [{"batch": 1.5}]}, "batch=1.5 is no size"),
        ({"sizes": [{"batch": 10**30}]}, "is no size"),
        ({"sizes": [3]}, "sizes has 3"),
        ({"sizes": "batch=3"}, "sizes must be a list of dicts"),
        ({"inputs": []}, "inputs is empty"),
        ({"inputs": [torch.ones(2)]}, "inputs has Tensor as one set"),
        ({"inputs": [(torch.ones(3, 2),)], "args": (torch.ones(3, 2),)}, "both args and inputs"),
        ({"rtol": "much"}, "rtol is a number"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], says: str) -> None:
    with pytest.raises(gp.errors.InputError, match=re.escape(says)):
        doubled().verify(**options)


def test_options_in_export() -> None:
    args, shapes = (torch.randn(3, 2),), ({0: batch},)
    seen = []

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.shape[0])
            return x * 2

    options = {"sizes": [{"batch": 7}], "rtol": 1e-3}
    gp.onnx.export(Model(), args, dynamic_shapes=shapes, verify=options)
    assert seen[-2:] == [3, 7]
    with pytest.raises(gp.errors.InputError, match="verify has no option size"):
        gp.onnx.export(Model(), args, verify={"size": 3})
    with pytest.raises(gp.errors.InputError, match="True or False or a dict"):
        gp.onnx.export(Model(), args, verify="yes")


def test_the_time_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three times that of the example alone, where a run takes long."""
    monkeypatch.setattr(verification, "_SECONDS", 0.0)

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                time.sleep(0.002 * x.numel())
            return x + 1

    dims = {0: gp.Dim("a"), 1: gp.Dim("b"), 2: gp.Dim("c")}
    program = gp.onnx.export(Slow(), (torch.randn(5, 5, 5),), dynamic_shapes=(dims,))
    began = time.perf_counter()
    program.verify(other_sizes=False)
    static = time.perf_counter() - began
    report = program.verify()
    assert time.perf_counter() - began - static < 3 * static
    tried = [tuple(t.values()) for t in report.sizes_tried]
    assert len(tried) > 2 and (0, 0, 0) in tried and (1, 1, 1) in tried


def test_tensors_without_data_on_the_way() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 16, window=window, return_complex=True)
        return torch.istft(spectrum, 16, window=window, length=x.shape[-1])

    dims = {1: gp.Dim("samples", min=32, max=200)}
    report = gp.onnx.export(f, (torch.randn(2, 64),), dynamic_shapes=(dims,)).verify(limit=2)
    assert report.ok and not report.notes, report


def test_what_cannot_be_told_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(Probe, "model", refuse)
    report = gp.onnx.export(
        lambda x: torch.sin(x) > 0, (torch.randn(50),), custom_lowerings={"aten::sin": wrong_sin}
    ).verify()
    assert not report.ok and report.first_divergence is None
    assert "ties cannot be found: NotImplementedError: no such kernel" in str(report)


def test_indices_stay_within_the_table() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.table(ids) * mask.unsqueeze(-1)

    ids = torch.randint(0, 10, (2, 5))
    report = gp.onnx.export(
        Model(), (ids, torch.ones(2, 5)), dynamic_shapes=({0: batch, 1: length},) * 2
    ).verify()
    assert report.ok and not report.sizes_refused and len(report.sizes_tried) == 6


def test_a_model_that_is_wrong_at_other_sizes_only() -> None:
    def lowering(b: Any, self: Any) -> Any:
        return b.Mul(b.Sin(self), torch.ones(3))  # broadcasts, or not

    report = gp.onnx.export(
        lambda x: torch.sin(x),
        (torch.randn(3),),
        dynamic_shapes=({0: batch},),
        custom_lowerings={"aten::sin": lowering},
    ).verify()
    (output,) = report.outputs
    assert not report.ok and output.sizes == {"batch": 4} and output.note


# Comparison


@pytest.mark.parametrize(
    ("have", "want", "dtype", "ok"),
    [
        ([1.0, 2.0], [1.0, 2.00001], torch.float32, True),
        ([1.0, 2.0], [1.0, 2.01], torch.float32, False),
        ([1.0, 2.0], [1.0, 2.01], torch.float16, True),
        ([1.0, 2.0], [1.0, 2.05], torch.bfloat16, True),
        ([math.nan, 2.0], [math.nan, 2.0], torch.float32, True),
        ([0.0, 2.0], [math.nan, 2.0], torch.float32, False),
        ([math.nan, 2.0], [0.0, 2.0], torch.float32, False),
        ([math.inf, 2.0], [math.inf, 2.0], torch.float32, True),
        ([-math.inf, 2.0], [math.inf, 2.0], torch.float32, False),
        ([3.4e38, 2.0], [math.inf, 2.0], torch.float32, False),
        ([1000.0, 900.0, 0.001], [1000.0, 900.0, 0.002], torch.float32, True),
        ([-3.4e38, 0.1, 0.1], [-3.4e38, 0.1, 0.2], torch.float32, False),
        ([], [], torch.float32, True),
    ],
)
def test_floats(have: Any, want: Any, dtype: torch.dtype, ok: bool) -> None:
    found = compare_results(
        torch.tensor(have, dtype=dtype), torch.tensor(want, dtype=dtype), close(dtype)
    )
    assert found.ok is ok and (ok or found.note)


def test_kinds_and_sizes() -> None:
    one = torch.ones(2)
    assert (
        compare_results(one, one.double(), close(torch.float64)).note
        == "float32 instead of float64"
    )
    assert (
        compare_results(one, torch.ones(2, 1), close(torch.float32)).note
        == "of size [2] instead of [2, 1]"
    )
    assert compare_results(one.int(), torch.tensor([1, 3]).int(), close(torch.float32)).note == (
        "1 of 2 differ"
    )
    assert (
        compare_results(3, 3, close(torch.float32)).ok
        and not compare_results(3, 4, close(torch.float32)).ok
    )
    assert not compare_results(3, 3.0, close(torch.float32)).ok


def test_tolerances_that_are_given_are_meant() -> None:
    program = gp.onnx.export(
        lambda x: torch.sin(x),
        (torch.randn(3),),
        custom_lowerings={"aten::sin": lambda b, self: b.Add(b.Sin(self), 0.01)},
    )
    assert not program.verify().ok
    assert program.verify(rtol=0.0, atol=0.02).ok and not program.verify(atol=0.001).ok
    assert program.verify().outputs[0].max_abs_error == pytest.approx(0.01, rel=1e-3)


def test_floats_that_were_halves_on_the_way() -> None:
    program = gp.onnx.export(
        lambda x: torch.sin(x.half()).float(),
        (torch.randn(300),),
        custom_lowerings={"aten::sin": lambda b, self: b.Mul(b.Sin(self), 1.002)},
    )
    assert program.verify().ok


def test_what_could_draw_random_numbers_but_does_not_is_compared() -> None:
    def wrong(b: Any, query: Any, key: Any, value: Any) -> Any:
        return b.Add(query, b.Add(key, value))

    heads = torch.randn(1, 2, 4, 8)
    program = gp.onnx.export(
        lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q),
        (heads,),
        custom_lowerings={"aten::scaled_dot_product_attention": wrong},
    )
    assert not program.verify().ok


def test_random_results_are_judged_by_kind() -> None:
    program = gp.onnx.export(
        lambda x: (x + torch.rand_like(x), x * 2), (torch.randn(3),), dynamic_shapes=({0: batch},)
    )
    report = program.verify()
    assert report.ok and report.outputs[0].note.startswith("random")
    assert not report.outputs[1].note


def test_memory_that_is_written_before_it_is_read_is_not_random() -> None:
    def program(order: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.empty_like(order)
        places[order] = torch.arange(order.shape[0])
        return torch.sin(x)[places], torch.empty_like(x)

    inputs = (torch.tensor([2, 0, 1]), torch.randn(3))
    report = gp.onnx.export(program, inputs).verify()
    assert report.ok and not report.outputs[0].note
    assert report.outputs[1].note.startswith("random")
    wrong = {"aten::sin": lambda b, self: b.Cos(self)}
    assert not gp.onnx.export(program, inputs, custom_lowerings=wrong).verify().ok


# Labels


def test_labels_of_ties() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])

    def last(b: Any, self: Any, dim: Any, keepdim: Any) -> Any:
        return b.ArgMax(self, axis=dim, keepdims=int(keepdim), select_last_index=1)

    program = gp.onnx.export(
        lambda x: torch.argmax(x * 1.0, 1), (x,), custom_lowerings={"aten::argmax": last}
    )
    assert program(x).tolist() == [2, 1]
    report = program.verify()
    assert report.ok and "ties" in report.outputs[0].note
    # Not a tie: the largest is elsewhere.
    least = lambda b, self, dim, keepdim: b.ArgMin(self, axis=dim, keepdims=int(keepdim))
    program = gp.onnx.export(
        lambda x: torch.argmax(x * 1.0, 1), (x,), custom_lowerings={"aten::argmax": least}
    )
    assert not program.verify().ok


def last_of_equals(b: Any, self: Any, k: Any) -> Any:
    """`topk` that prefers the last of equal elements."""
    size = self.shape[-1]
    back = b.constant(torch.arange(size - 1, -1, -1))
    values, places = b.TopK(b.Gather(self, back, axis=-1), [k], axis=-1, outputs=2)
    return values, b.Sub(size - 1, places)


TIED = torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0, 2.0])


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_what_follows_from_ties(kind: torch.dtype) -> None:
    def f(s: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        best = (s * 1).topk(2)
        again = b[best.indices].sum(1).topk(1).indices
        return b[best.indices] * 2, b[best.indices][again]

    args = (TIED.to(kind), torch.randn(6, 3))
    program = gp.onnx.export(f, args, custom_lowerings={"aten::topk": last_of_equals})
    assert not torch.equal(program(*args)[0], f(*args)[0])
    report = program.verify()
    assert report.ok and "ties" in report.outputs[0].note, report


def test_what_does_not_follow_from_ties() -> None:
    """Other elements than ties allow, the same one twice, or a fault behind a right choice."""

    def worst(b: Any, self: Any, k: Any) -> Any:
        return b.TopK(self, [k], axis=-1, largest=0, outputs=2)

    def twice(b: Any, self: Any, k: Any) -> Any:
        values, places = b.TopK(self, [k], axis=-1, outputs=2)
        return values, b.Add(b.Mul(places, 0), 4)

    args = (TIED, torch.randn(6, 3))
    f = lambda s, b: torch.sin(b[s.topk(2).indices])
    for lowerings in (
        {"aten::topk": worst},
        {"aten::topk": twice},
        {"aten::topk": last_of_equals, "aten::sin": wrong_sin},
    ):
        report = gp.onnx.export(f, args, custom_lowerings=lowerings).verify()
        assert not report.ok, lowerings


def test_floats_that_follow_from_comparisons() -> None:
    x = torch.tensor([0.5, 0.25, 1.0])
    nearly = lambda b, self, other: b.Add(b.Mul(self, other), 1e-7)
    program = gp.onnx.export(
        lambda x: torch.where(x * 1.0 > 0.5, x + 7, x - 7),
        (x,),
        custom_lowerings={"aten::mul.Tensor": nearly},
    )
    report = program.verify()
    assert report.ok and "ties" in report.outputs[0].note
    wrong = {
        "aten::mul.Tensor": nearly,
        "aten::gt.Scalar": lambda b, self, other: b.Less(self, other),
    }
    assert (
        not gp.onnx.export(
            lambda x: torch.where(x * 1.0 > 0.5, x + 7, x - 7), (x,), custom_lowerings=wrong
        )
        .verify()
        .ok
    )


def test_labels_that_follow_from_floats_that_agree() -> None:
    x = torch.tensor([0.5, 0.25, 1.0])
    nearly = lambda b, self, other: b.Add(b.Mul(self, other), 1e-7)
    program = gp.onnx.export(
        lambda x: (x * 1.0 > 0.5, (x * 2.0 + 1e-7).floor().to(torch.int64)),
        (x,),
        custom_lowerings={"aten::mul.Tensor": nearly},
    )
    report = program.verify()
    assert report.ok and "ties" in report.outputs[0].note


def test_integers_that_are_wrong() -> None:
    program = gp.onnx.export(
        lambda x: (torch.sin(x) > 0.5).sum(),
        (torch.linspace(0, 6, 50),),
        custom_lowerings={"aten::sin": wrong_sin},
    )
    report = program.verify()
    assert not report.ok and report.first_divergence is not None
    assert report.first_divergence.node.name == "sin"


def test_results_that_are_conjugated() -> None:
    x = torch.randn(4, 6, dtype=torch.complex64)
    assert gp.onnx.export(lambda x: (x * 2).conj(), (x,)).verify().ok
    assert gp.onnx.export(torch.fft.ifft, (torch.randn(4, 6),)).verify().ok


def test_rows_of_nan() -> None:
    x = torch.tensor([[1.0, 2.0], [-math.inf, -math.inf]])
    program = check_onnx(lambda x: torch.softmax(x, 1), (x,))
    assert program.verify().ok


# Reports


class Head(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(6)])
        self.heads = nn.ModuleList([Head(), Head()])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        for layer in self.layers:
            x = torch.relu(layer(x))
        y = self.heads[0](y)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return {"sum": x + self.heads[1](y), "rest": x * 2}


def test_report() -> None:
    x = torch.linspace(0, 1, 8).reshape(2, 4)
    program = gp.onnx.export(Net(), (x, x), dynamic_shapes=({0: batch},) * 2)
    report = program.verify()
    assert [o.name for o in report.outputs] == ["sum", "rest"]
    assert report.ok and all(o.max_abs_error < 1e-5 for o in report.outputs)
    assert report.first_divergence is None
    lines = str(report).splitlines()
    assert lines[0].split() == ["output", "max", "abs", "error", "max", "rel", "error"]
    assert lines[1].split()[0] == "sum" and lines[1].endswith("ok")
    assert lines[3] == "sizes tried: batch=2; batch=3; batch=1; batch=0; batch=4; batch=6"


def test_first_divergence_among_branches() -> None:
    x = torch.linspace(0, 1, 8).reshape(2, 4)
    report = gp.onnx.export(Net(), (x, x), custom_lowerings={"aten::sin": wrong_sin}).verify()
    assert [o.ok for o in report.outputs] == [False, True]
    first = report.first_divergence
    assert first is not None and first.node.name == "sin"
    assert first.module == "heads.0"
    assert first.source.startswith("test_verification.py:") and "torch.sin(x) + 1" in first.source
    assert "first divergence: sin (aten.sin.default) in heads.0: 8 of 8 differ" in str(report)


def test_first_divergence_in_state() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += torch.sin(x)
            return x + 1

    report = gp.onnx.export(
        Model(), (torch.randn(3),), custom_lowerings={"aten::sin": wrong_sin}
    ).verify()
    assert [(o.name, o.ok) for o in report.outputs] == [("output", True), ("n_updated", False)]
    assert report.first_divergence is not None
    assert report.first_divergence.node.name == "sin"


def test_verify_in_export() -> None:
    x = torch.tensor([0.5, 1.0])
    assert gp.onnx.export(lambda x: torch.sin(x), (x,), verify=True)(x).shape == (2,)
    f = lambda x: torch.sin(x)
    with pytest.raises(VerificationError) as caught:
        gp.onnx.export(f, (x,), verify=True, custom_lowerings={"aten::sin": wrong_sin})
    assert isinstance(caught.value, MismatchError) and not caught.value.report.ok
    line = f.__code__.co_firstlineno
    assert str(caught.value) == textwrap.dedent(f"""\
        GP320 the ONNX model differs from eager
        output  max abs error  max rel error
        output  0.4            0.83           WRONG: 2 of 2 differ
        sizes tried: the example
        first divergence: sin (aten.sin.default)
          at test_verification.py:{line} in <lambda>: f = lambda x: torch.sin(x)""")


# What verification leaves alone


def test_nothing_is_changed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            self.calls += 1
            x.add_(1)
            return x * self.n

    model, x = Model(), torch.ones(2)
    program = gp.onnx.export(model, (x,))
    program(x)
    state = torch.get_rng_state()
    assert program.verify().ok
    assert model.n == 0 and model.calls == 0 and x.tolist() == [2.0, 2.0]
    assert torch.equal(torch.get_rng_state(), state)
    assert program(torch.zeros(2)).tolist() == [2.0, 2.0]


def test_the_users_model_is_the_reference() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (1 if torch.compiler.is_compiling() else 2)

    assert not gp.onnx.export(Model(), (torch.ones(2),)).verify().ok


def test_a_model_without_weights() -> None:
    with gp.fake_mode():
        layer = nn.Linear(3, 2)
    with pytest.raises(gp.errors.NoDataError, match="there is no data for weight, bias"):
        gp.onnx.export(layer, (torch.ones(4, 3),)).verify()


def test_what_eager_refuses_is_told_with_its_line() -> None:
    layer = nn.Embedding(10, 4)
    program = gp.onnx.export(lambda i: layer(i), (torch.tensor([50]),))
    with pytest.raises(gp.errors.ForwardError, match="GP150 IndexError in the program: index") as e:
        program.verify()
    assert isinstance(e.value, IndexError) and "layer(i)" in str(e.value.where)


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_tolerances_that_would_accept_anything(wrong: float) -> None:
    program = gp.onnx.export(torch.relu, (torch.ones(2),))
    with pytest.raises(gp.errors.InputError, match="rtol is a number"):
        program.verify(rtol=wrong)


def test_example_inputs_without_data() -> None:
    program = gp.onnx.export(nn.Linear(3, 2), (torch.empty(2, 3, device="meta"),))
    assert program.verify((torch.randn(2, 3),)).ok


def test_what_is_written_to_inputs_is_judged_by_dtype() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> None:
            x.copy_(torch.tanh(self.linear(x) * 3))

    program = gp.onnx.export(Model(), (torch.randn(5, 64),), dynamic_shapes=({0: batch},))
    report = program.verify()
    assert report.ok, report
    assert [o.name for o in report.outputs] == ["x_updated"]


def test_complex_numbers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randn(3, dtype=torch.complex64))
            self.register_buffer("total", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> Any:
            self.total += x[0]
            return x * self.w, (x * self.w).real

    x = torch.randn(2, 3, dtype=torch.complex64)
    program = gp.onnx.export(Model(), (x,), dynamic_shapes=({0: gp.Dim("n", min=1)},))
    report = program.verify()
    assert report.ok, report
    assert [o.name for o in report.outputs] == ["output_0", "output_1", "total_updated"]


def test_first_divergence_in_a_branch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) * 2

    report = gp.onnx.export(f, (torch.ones(3),), custom_lowerings={"aten::sin": wrong_sin}).verify()
    first = report.first_divergence
    assert first is not None and "cond" in first.node.name
    assert "torch.cond(x.sum() > 0" in first.source


STATE = torch.zeros(3)


class Parameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.w.add_(1)
        return x + self.w


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t.add_(1)
        return x + self.t


def outside(x: torch.Tensor) -> torch.Tensor:
    STATE.add_(1)
    return x + STATE


@pytest.mark.parametrize("target", [Parameter(), Attribute(), outside], ids=lambda t: str(t)[:9])
@pytest.mark.parametrize("captured", [True, False])
def test_state_of_all_kinds(target: Any, captured: bool) -> None:
    x = torch.ones(3)
    program = gp.onnx.export(gp.export(target, (x,))) if captured else gp.onnx.export(target, (x,))
    assert program(x).tolist() == [2.0] * 3 and program(x).tolist() == [3.0] * 3
    report = program.verify()
    assert report.ok and len(report.outputs) == 2, report
    assert not STATE.any()
