"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, static_test
from tests.ops.rows import complexes, row

fft = torch.fft
least: dict[str, int] = {"b": 1, "t": 2, "k": 2}
"""Of no rows at all torch refuses to compute anything."""


def f(fn: Any, *specs: str, **options: Any) -> Any:
    return row(fn, *specs, least=least, **options)


ROWS = [
    f(fft.fft, "b t"),
    f(fft.fft, "b t", make=complexes, name="fft_complex"),
    f(fft.fft, "b t", make=doubles, name="fft_double"),
    f(fft.ifft, "b t", make=complexes),
    f(fft.rfft, "b t"),
    f(fft.rfft, "b t", make=doubles, name="rfft_double"),
    f(lambda x: fft.rfft(x, dim=0), "t b", name="rfft_dim"),
    f(lambda x: fft.rfft(x, n=8), "b 5", name="rfft_padded"),
    f(lambda x: fft.rfft(x, n=4), "b 5", name="rfft_trimmed"),
    f(lambda x: fft.rfft(x, norm="ortho"), "b t", name="rfft_ortho"),
    f(lambda x: fft.fft(x, norm="forward"), "b t", name="fft_forward"),
    f(fft.irfft, "b t", make=complexes),
    f(lambda x: fft.irfft(x, n=7), "b 4", make=complexes, name="irfft_odd"),
    f(lambda x: fft.irfft(x, n=10), "b 4", make=complexes, name="irfft_padded"),
    f(lambda x: fft.irfft(x, norm="ortho"), "b t", make=complexes, name="irfft_ortho"),
    f(fft.fft2, "b t k", make=complexes),
    f(fft.ifft2, "b t k", make=complexes),
    f(fft.fftn, "b t k", name="fftn_real"),
    f(fft.rfft2, "b t k"),
    f(fft.irfft2, "b t k", make=complexes),
    f(fft.rfftn, "2 t k"),
    f(fft.irfftn, "2 t k", make=complexes),
    f(fft.hfft, "b t", make=complexes),
    f(fft.ihfft, "b t"),
    f(fft.fftshift, "b t"),
    f(fft.ifftshift, "b t"),
    f(lambda x: fft.fftshift(fft.fft(x)), "b t", name="shift_of_complex"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


@pytest.mark.parametrize("n", [1, 2, 100, 400, 512, 1000, 1025, 2048, 3000])
def test_lengths(n: int) -> None:
    """Matrices, `DFT`, and `DFT` in twice the precision."""

    def fn(x: Tensor, z: Tensor) -> Any:
        even = fft.irfft(z, n=n - n % 2 or 1)
        return fft.rfft(x), fft.fft(z), fft.ifft(z), fft.irfft(z, n=n), even

    check_onnx(fn, (torch.randn(2, n), torch.randn(2, n, dtype=torch.complex64)), scale=20.0)


def test_older_opset() -> None:
    check_onnx(lambda x: fft.rfft(x), (torch.randn(2, 512),), opset=18)


def spectrum(x: Tensor, **options: Any) -> Tensor:
    return torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True, **options)


@pytest.mark.parametrize(
    "options", [{}, {"center": False}, {"normalized": True}, {"onesided": False}], ids=str
)
def test_stft(options: dict[str, Any]) -> None:
    x = (torch.randn(2, 64),)
    check_onnx(lambda x: spectrum(x, **options), x)
    check_onnx(
        lambda x: spectrum(x, **options).abs() ** 2,
        x,
        dynamic_shapes=({0: gp.Dim("b"), 1: gp.Dim("t", min=32)},),
        others=[(torch.randn(3, 101),), (torch.randn(1, 40),)],
    )


def test_istft() -> None:
    window = torch.hann_window(16)

    def fn(x: Tensor) -> Tensor:
        return torch.istft(spectrum(x), 16, 4, window=window, length=64)

    check_onnx(fn, (torch.randn(2, 64),))


@pytest.mark.parametrize("length", ["given", "left out"])
def test_istft_of_any_length(length: str) -> None:
    window = torch.hann_window(12)

    def fn(x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 16, 4, 12, window, normalized=True, return_complex=True)
        wanted = x.shape[-1] if length == "given" else None
        return torch.istft(spectrum * 2, 16, 4, 12, window, normalized=True, length=wanted)

    check_onnx(
        fn,
        (torch.randn(2, 64),),
        dynamic_shapes=({0: gp.Dim("b"), 1: gp.Dim("t", min=32)},),
        others=[(torch.randn(3, 101),), (torch.randn(1, 43),)],
    )


def test_istft_of_one_signal_and_beyond_its_end() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        options = {"window": torch.ones(16)}
        return torch.istft(x, 16, 4, length=80, **options), torch.istft(
            x, 16, 4, center=False, **options
        )

    spectra = [torch.randn(9, frames, dtype=torch.complex64) for frames in (14, 9, 12)]
    with pytest.warns(UserWarning, match="length of signal is shorter"):
        check_onnx(
            fn,
            (spectra[0],),
            dynamic_shapes=({1: gp.Dim("t", max=16)},),
            others=[(x,) for x in spectra[1:]],
        )


@pytest.mark.parametrize("n", [2, 6, 12, 20])
def test_what_is_real_has_no_imaginary_part(n: int) -> None:
    """The ends of a spectrum of real numbers: their angle would be anything otherwise."""
    program = gp.onnx.export(lambda x: torch.view_as_real(torch.fft.rfft(x)), (torch.randn(3, n),))
    imaginary = program(torch.randn(3, n))[..., 1]
    assert torch.equal(imaginary[:, [0, -1]], torch.zeros(3, 2))
