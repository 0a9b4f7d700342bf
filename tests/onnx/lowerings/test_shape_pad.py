"""Lowerings of padding, and of windows and blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row

PADS = [
    row(lambda a: F.pad(a, (1, 2), value=3.5), "b t", name="constant"),
    row(lambda a: F.pad(a, (0, 0, 2, 0, 1, 1)), "b t c", name="constant_3d"),
    row(lambda a: F.pad(a, (0, 0)), "b t", name="nothing"),
    row(lambda a: F.pad(a, (-1, -1)), "b t", least={"t": 2}, name="crop"),
    row(lambda a: F.pad(a, (-1, 2, 1, -1)), "b t", least={"t": 1, "b": 1}, name="crop_and_pad"),
    row(lambda a: F.pad(a, (1, 1), value=2.7), "b t", make=ints(9), name="integers"),
    row(lambda a: F.pad(a, (1, 1), value=True), "b t", make=bools, name="bools"),
    row(lambda a: F.pad(a, (1, 1), value=float("-inf")), "b t", name="infinity"),
    row(
        lambda a: F.pad(a, (a.shape[1], 1 - a.shape[0])),
        "b t",
        least={"t": 3},
        fixed="b",
        name="symbolic_crop",
    ),
    row(lambda a: F.pad(a, (a.shape[0], a.shape[1])), "b t", name="symbolic"),
    row(lambda a: F.pad(a, (2, 1), mode="reflect"), "b 3 t", least={"t": 3}, name="reflect_1d"),
    row(
        lambda a: F.pad(a, (2, 1, 0, 3), mode="reflect"),
        "b 3 h w",
        least={"h": 4, "w": 3},
        name="reflect_2d",
    ),
    row(
        lambda a: F.pad(a, (1, 1, 1, 1, 0, 1), mode="reflect"),
        "1 2 t h w",
        least={"t": 2, "h": 2, "w": 2},
        name="reflect_3d",
    ),
    row(lambda a: F.pad(a, (-1, 2), mode="reflect"), "b 3 t", least={"t": 4}, name="reflect_crop"),
    row(lambda a: F.pad(a, (2, 3), mode="replicate"), "b 3 t", least={"t": 1}, name="replicate_1d"),
    row(
        lambda a: F.pad(a, (2, 1, -1, 3), mode="replicate"),
        "b 3 h w",
        least={"h": 2, "w": 1},
        name="replicate_crop",
    ),
    row(
        lambda a: F.pad(a, (1, 1, 1, 1, 0, 1), mode="replicate"),
        "1 2 t h w",
        least={"t": 1, "h": 1, "w": 1},
        name="replicate_3d",
    ),
    row(lambda a: F.pad(a, (2, 1), mode="circular"), "b 3 t", least={"t": 2}, name="circular_1d"),
    row(
        lambda a: F.pad(a, (2, 1, 1, 3), mode="circular"),
        "b 3 h w",
        least={"b": 1, "h": 4, "w": 2},
        name="circular_2d",
    ),
    row(
        lambda a: F.pad(a, (2, -1, 0, 3), mode="circular"),
        "b 3 h w",
        least={"h": 4, "w": 3},
        name="circular_crop",
    ),
]

WINDOWS = [
    row(lambda a: a.unfold(0, 2, 1), "t c", least={"t": 2}, name="unfold"),
    row(lambda a: a.unfold(-1, 3, 3), "b 9", name="unfold_apart"),
    row(lambda a: a.unfold(1, 2, 3), "b k c", least={"k": 2}, name="unfold_gaps"),
    row(lambda a: a.unfold(0, 1, 1), "", name="unfold_zero_dim"),
    row(lambda a: a.unfold(1, 0, 1), "b 3", name="unfold_nothing"),
    row(
        lambda a: a.unfold(1, 3, 1).unfold(2, 2, 2),
        "b h w",
        least={"h": 3, "w": 2},
        name="unfold_twice",
    ),
    row(lambda a: F.unfold(a, 2), "b 3 h w", least={"h": 2, "w": 2}, name="im2col"),
    row(
        lambda a: F.unfold(a, (3, 2), dilation=(1, 2), padding=(2, 1), stride=(2, 3)),
        "b 2 h w",
        least={"h": 1, "w": 3},
        name="im2col_options",
    ),
    row(lambda a: F.unfold(a, 2), "3 5 6", name="im2col_no_batch"),
    row(lambda a: F.fold(a, (4, 5), 2), "b 8 12", name="col2im"),
    row(
        lambda a: F.fold(a, (5, 6), (3, 2), dilation=(1, 2), padding=(1, 2), stride=(2, 1)),
        "b 12 24",
        name="col2im_options",
    ),
    row(lambda a: F.fold(a, (4, 5), 2), "8 12", name="col2im_no_batch"),
    row(
        lambda a: F.fold(a, (4, 5), 2, padding=1),
        "b 8 30",
        make=lambda s: torch.randn(s).double(),
        name="col2im_double",
    ),
    row(lambda a: F.pixel_shuffle(a, 2), "b 8 h w", name="pixel_shuffle"),
    row(lambda a: F.pixel_shuffle(a, 2), "8 h w", name="pixel_shuffle_no_batch"),
    row(lambda a: F.pixel_shuffle(a, 3), "b 2 9 h w", make=ints(9), name="pixel_shuffle_integers"),
    row(
        lambda a: F.pixel_unshuffle(a, 2), "b c 4 6", least={"b": 1, "c": 1}, name="pixel_unshuffle"
    ),
    row(lambda a: F.channel_shuffle(a, 3), "b 6 h w", name="channel_shuffle"),
]

DIAGONALS = [
    *(row(lambda a, k=k: a.diagonal(k), "b t", name=f"diagonal_{k}") for k in (0, 1, -1, 3, -20)),
    row(lambda a: a.diagonal(2), "t t", name="diagonal_square"),
    row(lambda a: a.diagonal(1, 0, 2), "b t c", name="diagonal_dims"),
    row(lambda a: a.diagonal(-1, -1, 0), "b t c", name="diagonal_dims_back"),
    row(lambda a: torch.diag(a, 2), "t", name="diag_up"),
    row(lambda a: torch.diag(a, -1), "b t", name="diag_down"),
    row(lambda a: torch.diag_embed(a, -2), "b t", name="diag_embed_down"),
    row(lambda a: torch.diag_embed(a, 1, 0, 2), "b t", name="diag_embed_dims"),
    row(lambda a: torch.diag_embed(a, 1, 2, 0), "b t", make=bools, name="diag_embed_turned"),
    row(lambda a: torch.diag_embed(a / 0), "b t", name="diag_embed_of_infinity"),
    row(lambda a: torch.diagflat(a), "b t", name="diagflat"),
    row(lambda a: a.tril(-1), "b t c", name="tril"),
    row(lambda a: a.triu(20), "b t", name="triu_beyond"),
    row(lambda a: a.triu(1), "t t", make=bools, name="triu_bool"),
    row(
        lambda a: a.tril(2),
        "b t",
        make=lambda s: torch.randint(9, s, dtype=torch.int8),
        name="tril_int8",
    ),
    row(
        lambda a: torch.ones(a.shape[0], a.shape[1]).tril(a.shape[1] - a.shape[0]),
        "b t",
        fixed="bt",
        name="tril_symbolic",
    ),
    row(lambda a: torch.tril_indices(a.shape[0], 4), "b", fixed="b", name="tril_indices"),
    row(lambda a: torch.triu_indices(5, 3, 1) * a, "1", name="triu_indices"),
    row(lambda a, b, c: torch.block_diag(a, b, c), "b t", "c", "", name="block_diag"),
    row(lambda a: torch.block_diag(a), "b t", name="block_diag_one"),
    row(
        lambda a: a.clone().fill_diagonal_(3.0),
        "b t",
        least={"b": 1, "t": 9},
        fixed="bt",
        name="fill_diagonal",
    ),
]

test_static = static_test([*PADS, *WINDOWS, *DIAGONALS])
test_dynamic = dynamic_test([*PADS, *WINDOWS, *DIAGONALS])


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int16, torch.int64])
def test_dtypes(mode: str, dtype: torch.dtype) -> None:
    if mode in ("reflect", "replicate") and not dtype.is_floating_point:
        mode = "constant"  # torch has no kernel
    x = torch.randint(0, 9, (1, 3, 4)).to(dtype)
    check_onnx(
        lambda x: F.pad(x, (1, 2), mode=mode),
        (x,),
        dynamic_shapes=({0: gp.Dim("b")},),
        others=[(x.repeat(3, 1, 1),), (x[:0],)],
    )


def test_padding_is_one_node() -> None:
    x = torch.randn(1, 3, 4, 5)
    for mode in ("constant", "reflect", "replicate", "circular"):
        program = gp.onnx.export(lambda x, mode=mode: F.pad(x, (1, 2, 0, 1), mode=mode), (x,))
        assert [n.op_type for n in program.model_proto.graph.node] == ["Pad"]


@pytest.mark.parametrize("pool", [torch.nn.MaxPool2d(3, 2), torch.nn.AvgPool2d(3, 2)])
def test_zeros_are_zeros_before_pooling(pool: torch.nn.Module) -> None:
    """ONNX Runtime would make them the padding of the pool, which is of another number."""
    model = torch.nn.Sequential(torch.nn.ZeroPad2d(1), pool)
    check_onnx(model, (-torch.rand(1, 2, 6, 6),))


def test_padding_between_transposes() -> None:
    """ONNX Runtime moves the first one behind the Pad, so that both are gone."""
    dims = {0: gp.Dim("n"), 1: gp.Dim("h"), 2: gp.Dim("w")}
    for pad in ((1, 1), (0, 2, 1, 0), (1, 0, 0, 0, 0, 1), (1, -1)):
        for value in (0.0, 2.0):
            check_onnx(
                lambda x, pad=pad, value=value: (
                    F.pad(x.permute(0, 3, 1, 2).relu(), pad, value=value).permute(0, 2, 3, 1) + 1
                ),
                (torch.randn(2, 3, 4, 5),),
                dynamic_shapes=(dims,),
                others=[(torch.randn(1, 5, 2, 5),)],
            )


def test_folding_windows_of_brains() -> None:
    x = torch.randint(0, 4, (2, 3, 5, 6)).to(torch.bfloat16)
    check_onnx(lambda x: F.fold(F.unfold(x, 2, 1, 1, 1), (5, 6), 2, 1, 1, 1), (x,))
