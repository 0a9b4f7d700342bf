"""Fourier transforms."""

from __future__ import annotations

import pytest
import torch

from tests.ops.rows import Row, check_dynamic, check_static, complexes, row

SOME = {"t": 2, "b": 1, "c": 2}

ROWS = [
    *(
        row(fn, "b t", make=complexes, least=SOME, name=fn.__name__)
        for fn in (
            torch.fft.fft,
            torch.fft.ifft,
            torch.fft.fft2,
            torch.fft.fftn,
            torch.fft.fftshift,
            torch.fft.hfft,
            torch.fft.irfft,
        )
    ),
    *(
        row(fn, "b t c", least=SOME, name=fn.__name__)
        for fn in (torch.fft.rfft, torch.fft.rfft2, torch.fft.rfftn, torch.fft.ihfft)
    ),
    row(lambda a: torch.fft.rfft(a, n=6, dim=1), "b 5 c", least=SOME, name="rfft_n"),
    row(
        lambda a: torch.fft.fft(a, dim=0, norm="ortho"),
        "b t",
        make=complexes,
        least=SOME,
        name="fft_dim",
    ),
    row(
        lambda a: torch.fft.irfft(torch.fft.rfft(a), n=a.shape[-1]),
        "b t",
        least=SOME,
        name="round_trip",
    ),
    row(
        lambda a: torch.fft.irfftn(a, dim=(0, 1)),
        "b t c",
        make=complexes,
        least={**SOME, "b": 2},
        name="irfftn_dims",
    ),
    row(lambda a: torch.fft.rfftn(a, dim=(2, 0)), "b t c", least=SOME, name="rfftn_order"),
    row(
        lambda a: torch.fft.fftn(a, dim=(0, 2)),
        "b t c",
        make=complexes,
        view=lambda t: t.permute(1, 2, 0),
        name="transposed",
    ),
    row(
        lambda a: torch.stft(a, 8, return_complex=True, window=torch.ones(8)),
        "b 32",
        least=SOME,
        name="stft",
    ),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
