"""Lowerings that rearrange: views, parts, joins and repetitions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row
from tests.ops.test_shape import ROWS as CAPTURED

ROWS = [
    *CAPTURED,
    row(lambda a: a.ravel(), "b t c", name="ravel"),
    row(lambda a: a.flatten(0, 1), "b t c", name="flatten_first"),
    row(lambda a: a.reshape(a.shape[0], 1, a.shape[1], 1), "b t", name="reshape_ones"),
    row(lambda a: a.reshape(a.shape[0], a.shape[2]), "b 1 t 1", name="reshape_without_ones"),
    row(lambda a: a.reshape(-1, a.shape[2]), "b t c", least={"c": 1}, name="reshape_rest"),
    row(lambda a: a.view(a.shape[0], 2, 3, a.shape[2]), "b 6 t", name="view_heads"),
    row(lambda a, b: a.view_as(b), "b 6", "b 2 3", name="view_as"),
    row(lambda a: a.swapaxes(0, 2), "b t c", name="swapaxes"),
    row(lambda a: a.transpose(0, 1).transpose(1, 2), "b t c", name="transposed_twice"),
    row(lambda a: a.mT.mT, "b t c", name="transposed_back"),
    row(lambda a: a.squeeze((0, -1)), "1 b 1", name="squeeze_dims"),
    row(lambda a: a.squeeze(0), "b t", least={"b": 2}, name="squeeze_nothing"),
    row(lambda a: a.unsqueeze(-1).squeeze(-1), "b t", name="unsqueeze_squeeze"),
    row(lambda a: a.squeeze(), "", name="squeeze_zero_dim"),
    row(lambda a: a.expand(2, -1, -1, 4), "b t 1", name="expand_new_dim"),
    row(lambda a: a.exp().expand(-1, 0).sin(), "b 1", name="expand_to_nothing"),
    row(
        lambda a: torch.broadcast_to(a, (a.shape[1], a.shape[0], a.shape[1])),
        "b t",
        name="broadcast_to",
    ),
    row(lambda a: a.expand(a.shape[1], a.shape[1]), "1 t", name="expand_symbolic"),
    row(lambda a: a[1:4:2, -3:], "5 6", name="slice_static"),
    row(lambda a: a[:, -2:], "b t", least={"t": 2}, name="slice_last"),
    row(lambda a: a[10:, :100], "b t", fixed="bt", name="slice_out_of_range"),
    row(lambda a: a[3:1], "b 4", fixed="b", name="slice_nothing"),
    row(lambda a: a[None:2, -100:100], "5 t", fixed="t", name="slice_clamped"),
    row(lambda a: a[: a.shape[0] // 2], "b t", name="slice_half"),
    row(lambda a: a[a.shape[0] // 2 :], "b t", name="slice_other_half"),
    row(lambda a: a[:, : a.shape[1] - 1], "b t", least={"t": 1}, name="slice_symbolic_end"),
    row(lambda a, b: torch.cat([a, b])[: b.shape[0]], "t", "b", name="slice_other_size"),
    row(
        lambda a: a.repeat(1, 3)[:, -a.shape[1] :], "b t", least={"t": 1}, name="slice_from_symbol"
    ),
    row(lambda a: a[..., 1::3], "b 3 k", least={"k": 1}, name="slice_step_from"),
    row(lambda a: a.select(1, -2), "b t c", least={"t": 2}, name="select_back"),
    row(lambda a: a.select(1, a.shape[1] - 1), "b t", least={"t": 1}, name="select_last"),
    row(lambda a: a[:, a.shape[1] // 2], "b t", least={"t": 1}, name="select_middle"),
    row(lambda a: a.split(2), "6 t", name="split_equal"),
    row(lambda a: a.split(4, 1), "b 6", name="split_rest"),
    row(lambda a: a.split(a.shape[1], 1), "b t", least={"t": 1}, name="split_one"),
    row(lambda a: a.split([a.shape[1], a.shape[1]], 0), "14 k", fixed="k", name="split_fixed"),
    row(
        lambda a: torch.cat([a, a * 2], 1).split([a.shape[1], a.shape[1]], 1),
        "b t",
        name="split_symbolic",
    ),
    row(
        lambda a: torch.cat([a, a * 2], 1).chunk(2, 1), "b t", least={"t": 1}, name="chunk_symbolic"
    ),
    row(lambda a: a.chunk(4), "6 t", name="chunk_fewer"),
    row(lambda a: a.tensor_split(4, 1), "b 6", name="tensor_split"),
    row(lambda a: a.tensor_split((1, 4), 1), "b 6", name="tensor_split_at"),
    row(lambda a: a.hsplit(2), "b 6", name="hsplit"),
    row(lambda a: a.unbind(-1), "b 1", name="unbind_one"),
    row(lambda a, b: torch.cat([a, b], -1), "b t", "b 0", name="cat_empty"),
    row(lambda a: torch.cat([a, torch.empty(0)], 1), "b t", name="cat_legacy_empty"),
    row(lambda a: torch.cat([torch.empty(0), a[:, :0]]), "b t", name="cat_nothing_but_empty"),
    row(
        lambda a, b: torch.cat([a, b]),
        "b t",
        "n t",
        make=(ints(9), torch.randn),
        name="cat_promoted",
    ),
    row(
        lambda a, b: torch.stack([a, b], 1),
        "b t",
        "b t",
        make=(bools, ints(5)),
        name="stack_promoted",
    ),
    row(lambda a, b: torch.hstack([a, b]), "b t", "b k", name="hstack"),
    row(lambda a, b: torch.vstack([a, b]), "t", "b t", name="vstack"),
    row(lambda a, b: torch.dstack([a, b]), "b t", "b t", name="dstack"),
    row(lambda a, b: torch.column_stack([a, b]), "b", "b t", name="column_stack"),
    row(lambda a: a.repeat(2, 1, 3), "b t", name="repeat_new_dim"),
    row(lambda a: a.repeat(3, 1), "t", name="repeat_broadcast"),
    row(lambda a: a.repeat(0, 2), "b t", name="repeat_none"),
    row(lambda a: a.repeat(a.shape[1], 2), "b t", name="repeat_symbolic"),
    row(lambda a: a.tile(2, 1, 1), "b t", name="tile_new_dim"),
    row(lambda a: a.repeat_interleave(2), "b t", name="repeat_interleave_flat"),
    row(
        lambda a, b: torch.repeat_interleave(a, b, 0),
        "b 3",
        "b",
        make=(torch.randn, ints(4)),
        least={"b": 1},
        name="repeat_interleave_tensor",
    ),
    row(lambda a: a.flip(-1), "b t c", make=bools, name="flip_bool"),
    row(lambda a: torch.fliplr(a) + torch.flipud(a), "b t", name="fliplr"),
    row(lambda a: a.flip(()), "b t", name="flip_nothing"),
    row(lambda a: a.roll(-1, 1), "b t", name="roll_back"),
    row(lambda a: a.roll(4, 1), "b t", name="roll_beyond"),
    row(lambda a: a.roll(-13, 0), "b t", name="roll_back_beyond"),
    row(lambda a: a.roll(2), "b t", name="roll_flat"),
    row(lambda a: a.roll((1, -2), (0, 1)), "b t", name="roll_two"),
    row(lambda a: a.roll(a.shape[0] // 2, 0), "b t", name="roll_symbolic"),
    row(lambda a: torch.rot90(a, 3, (1, 2)), "b t c", name="rot90_back"),
    row(lambda a: torch.rot90(a, 2), "b t", name="rot90_half"),
    row(lambda a: (a + 1).as_strided((2, 3), (2, 1), 1), "8", name="as_strided_offset"),
    row(
        lambda a: (a + 1).as_strided((a.shape[0], 2), (a.shape[1], 1), 1),
        "b t",
        least={"b": 1, "t": 3},
        name="as_strided_rows",
    ),
    row(lambda a: (a + 1).t().as_strided((2, 2), (1, 1)), "4 6", name="as_strided_transposed"),
    row(lambda a, b: torch.cartesian_prod(a, b), "t", "k", name="cartesian_prod"),
    row(lambda a, b: torch.meshgrid(a, b, indexing="xy"), "t", "k", name="meshgrid_xy"),
    row(lambda a: torch.tensor([a.shape[0], 2, a.shape[1]]), "b t", name="tensor_of_sizes"),
    row(
        lambda a: a.view(torch.uint8),
        "b t",
        make=lambda s: torch.randint(-9, 9, s).to(torch.int8),
        name="view_dtype",
    ),
    row(lambda a, b: torch.movedim(a, (0, 1), (-1, 0)) + b, "b t c", "1", name="movedim_two"),
    row(lambda a: F.pad(a.unflatten(0, (2, -1)), (1, 0)), "4 t", name="unflatten_rest"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    ],
)
def test_dtypes(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.reshape(-1),
            x.t(),
            x[1:, ::2],
            x[-1],
            x.flip(0),
            x.roll(1, 1),
            x.repeat(2, 2),
            x.unsqueeze(1).expand(-1, 2, -1),
            torch.cat([x, x]),
            *x.split(2, 1),
        ]

    x = torch.randint(0, 2, (3, 4)).to(dtype)
    check_onnx(fn, (x,), dynamic_shapes=({0: gp.Dim("n")},), others=[(x[:1],), (x.repeat(2, 1),)])


def operators(program: gp.onnx.ONNXProgram) -> list[str]:
    return [n.op_type for n in program.model_proto.graph.node]


def exported(fn: object, *sizes: int) -> list[str]:
    dims = ({d: gp.Dim(f"d{d}") for d in range(len(sizes))},)
    return operators(gp.onnx.export(fn, (torch.randn(sizes),), dynamic_shapes=dims))


def test_few_nodes() -> None:
    assert exported(lambda x: x.reshape(-1), 2, 3) == ["Reshape"]
    assert exported(lambda x: x.flatten(1), 2, 3, 4) == ["Flatten"]
    assert exported(lambda x: x.flatten(0, 1), 2, 3, 4) == ["Flatten"]
    assert exported(lambda x: x[:, None].expand(-1, 3, -1), 2, 3) == ["Unsqueeze", "Expand"]
    assert exported(lambda x: x[1:, :-1], 2, 3) == ["Slice"]
    assert exported(lambda x: x[: x.shape[0] - 1], 2, 3) == ["Slice"]
    assert exported(lambda x: x.mT.mT, 2, 3) == ["Identity"]
    assert exported(lambda x: x.flip(0, 1), 2, 3) == ["Slice"]
    assert exported(lambda x: x[-1], 2, 3) == ["Gather"]
    assert exported(lambda x: x.repeat(2, 1, 1), 2, 3) == ["Expand"]
    assert exported(lambda x: torch.tensor([x.shape[0], 5]), 2, 3) == ["Shape", "Concat"]


def test_a_slice_whose_bounds_depend_on_data() -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        return x[:, k:] * 2

    x = torch.randn(3, 6)
    others = [(torch.randn(2, 9), torch.tensor(k)) for k in (0, 9, 12, -2, -20)]
    shapes = ({0: gp.Dim("b"), 1: gp.Dim("t")}, None)
    check_onnx(fn, (x, torch.tensor(2)), dynamic_shapes=shapes, others=others)


def test_bits_as_another_type_are_refused() -> None:
    with pytest.raises(gp.errors.UnsupportedError, match="cannot read the bits"):
        gp.onnx.export(lambda x: x.view(torch.int32), (torch.randn(3),), opset=23)


def test_memory_with_gaps_is_refused() -> None:
    x = torch.randn(8)[::2]
    with pytest.raises(gp.errors.UnsupportedError, match="that is not dense"):
        gp.onnx.export(lambda x: x.as_strided((2,), (2,)), (x,))
