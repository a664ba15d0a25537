"""The CPU lowering of discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import TORCH_DTYPE
from genesis_fn.primitives.fft import FftType, fft_p


@lowers(fft_p)
def _fft(
    avals: Sequence[Any], *, fft_type: FftType, fft_lengths: tuple[int, ...], scaled: bool = True
) -> Callable[..., Any]:
    result = fft_p.abstract(tuple(avals), {"fft_type": fft_type, "fft_lengths": fft_lengths})
    if result.size == 0:
        return lambda x: torch.zeros(result.shape, dtype=TORCH_DTYPE[result.dtype])
    norm = None if scaled else "forward"
    dims = tuple(range(-len(fft_lengths), 0))
    if fft_type is FftType.FFT:
        return lambda x: torch.fft.fftn(x, dim=dims)
    if fft_type is FftType.IFFT:
        return lambda x: torch.fft.ifftn(x, dim=dims, norm=norm)
    if fft_type is FftType.RFFT:
        return lambda x: torch.fft.rfftn(x, dim=dims)
    return lambda x: torch.fft.irfftn(x, fft_lengths, dim=dims, norm=norm)
