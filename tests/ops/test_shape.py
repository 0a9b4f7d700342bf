"""Operators that rearrange: views and copies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.rows import Row, check_dynamic, check_static, row

ROWS = [
    *(
        row(
            lambda a, options=options: torch.gradient(a, **options),
            "n t",
            least={"n": 3, "t": 3},
            name=f"gradient {options}",
        )
        for options in ({}, {"dim": 1, "spacing": 0.5}, {"edge_order": 2, "spacing": [2.0, 3.0]})
    ),
    row(lambda a: a.reshape(a.shape[0], -1), "b 3 4", least={"b": 1}, name="flatten"),
    row(lambda a: a.view(a.shape[0] * a.shape[1], 4), "b t 4", name="view"),
    row(lambda a: a.reshape(a.shape[1], a.shape[0]), "b t", name="reshape"),
    row(lambda a: a.flatten(1), "b t c", name="flatten_symbolic"),
    row(lambda a: a.unflatten(1, (2, 3)), "b 6", name="unflatten"),
    row(lambda a: a.permute(2, 0, 1) + 1, "b t c", name="permute"),
    row(lambda a: a.transpose(0, -1).contiguous(), "b t c", name="transpose"),
    row(lambda a: a.t(), "b t", name="t"),
    row(lambda a: a.mT, "b t c", name="mT"),
    row(lambda a: a.movedim(0, -1), "b t c", name="movedim"),
    row(lambda a: a.unsqueeze(1).expand(-1, 3, -1), "b t", name="expand"),
    row(lambda a, b: a.expand_as(b), "1 t", "b t", name="expand_as"),
    row(lambda a: a.squeeze(1), "b 1 t", name="squeeze"),
    row(lambda a: a.squeeze(), "b 1 t", least={"b": 2, "t": 2}, name="squeeze_all"),
    row(lambda a: a[:, 1:3], "b 5", name="slice"),
    row(lambda a: a[:, 1:], "b t", least={"t": 1}, name="slice_open"),
    row(lambda a: a[:, :-1], "b t", least={"t": 1}, name="slice_back"),
    row(lambda a: a[:, ::2], "b t", name="slice_step"),
    row(lambda a: a[-1], "b t", least={"b": 1}, name="select"),
    row(lambda a: a[..., None, 0], "b 3", name="ellipsis"),
    row(lambda a: a.chunk(2, dim=1), "b 6", name="chunk"),
    row(lambda a: a.split([1, 2, 3], dim=-1), "b 6", name="split"),
    row(lambda a: a.unbind(1), "b 3", name="unbind"),
    row(lambda a: a.narrow(1, 1, 2), "b 4", name="narrow"),
    row(lambda a: a.diagonal(), "b t", name="diagonal"),
    row(lambda a: a.diagonal(offset=1), "b t", name="diagonal_offset"),
    row(lambda a: torch.diag_embed(a), "b t", name="diag_embed"),
    row(lambda a: torch.diag(a), "t", name="diag"),
    row(lambda a: a.unfold(1, 3, 2), "b t", least={"t": 3}, name="unfold"),
    row(lambda a, b: torch.cat([a, b], 1), "b t", "b k", name="cat"),
    row(lambda a, b: torch.stack([a, b], -1), "b t", "b t", name="stack"),
    row(lambda a, b: torch.cat([a, b]), "b t", "n t", name="cat_first"),
    row(lambda a: a.repeat(2, 3), "b t", name="repeat"),
    row(lambda a: torch.tile(a, (2,)), "b t", name="tile"),
    row(lambda a: a.repeat_interleave(3, dim=1), "b t", name="repeat_interleave"),
    row(lambda a: a.flip(0, 1), "b t", name="flip"),
    row(lambda a: a.roll(1, 0), "b t", name="roll"),
    row(lambda a: torch.rot90(a), "b t", name="rot90"),
    row(lambda a: a.tril(), "b t", name="tril"),
    row(lambda a: a.triu(1), "b t", name="triu"),
    row(lambda a: F.pad(a, (1, 2)), "b t", name="pad"),
    row(lambda a: F.pad(a, (-1, 0)), "b t", least={"t": 1}, name="crop"),
    row(
        lambda a: F.pad(a, (2, 1), mode="reflect"), "b 3 t", least={"t": 3, "b": 1}, name="reflect"
    ),
    row(
        lambda a: F.pad(a, (1, 1), mode="replicate"),
        "b 3 t",
        least={"t": 1, "b": 1},
        name="replicate",
    ),
    row(
        lambda a: F.pad(a, (1, 1), mode="circular"),
        "b 3 t",
        least={"t": 1, "b": 1},
        name="circular",
    ),
    row(lambda a: a.as_strided((2, 2), (1, 2)), "8", name="as_strided"),
    row(lambda a: torch.meshgrid(a, a, indexing="ij"), "t", name="meshgrid"),
    row(lambda a, b: torch.broadcast_tensors(a, b), "b 1", "t", name="broadcast_tensors"),
    row(lambda a: torch.atleast_3d(a), "b t", name="atleast_3d"),
    row(lambda a: a.reshape(-1), "", name="zero_dim_reshape"),
    row(lambda a: a.expand(3, 4), "", name="zero_dim_expand"),
    row(lambda a: a.t().reshape(-1), "b t", name="transposed_reshape"),
    row(lambda a: a.permute(0, 2, 1).flatten(1), "b t c", least={"b": 1}, name="permuted_flatten"),
    row(lambda a: torch.expand_copy(a, (2, *a.shape)), "b t", name="expand_copy"),
    row(lambda a: torch.unbind_copy(a, 1), "b 2", name="unbind_copy"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
