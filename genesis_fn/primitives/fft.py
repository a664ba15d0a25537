"""Discrete Fourier transforms over the last dimensions."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import bind, typeof
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.elementwise import bitwise_or, conj, convert, eq, mul, real, select
from genesis_fn.primitives.factories import full, linear, move_batch


class FftType(enum.Enum):
    """The transform: complex, its inverse, or those between real signals and half spectra."""

    FFT = "fft"
    IFFT = "ifft"
    RFFT = "rfft"
    IRFFT = "irfft"


def _fft_shape(
    x: Aval, *, fft_type: FftType, fft_lengths: tuple[int, ...], scaled: bool = True
) -> Aval:
    n = len(fft_lengths)
    what = f"{fft_type.value} of {x} with lengths {list(fft_lengths)}"
    if not 1 <= n <= x.ndim or min(fft_lengths) < 1:
        raise errors.ShapeError(f"{what}: give one positive length for each of the last dimensions")
    expected = fft_lengths
    if fft_type is FftType.IRFFT:
        expected = (*fft_lengths[:-1], fft_lengths[-1] // 2 + 1)
    if x.shape[-n:] != expected:
        raise errors.ShapeError(f"{what}: the last dimensions must be {list(expected)}")
    accepted = (dtypes.F32, dtypes.F64) if fft_type is FftType.RFFT else dtypes.COMPLEX
    if x.dtype not in accepted:
        names = " or ".join(k.name for k in accepted)
        raise errors.DTypeError(f"{what}: the operand must be {names}")
    if fft_type is FftType.RFFT:
        half = (*x.shape[:-1], fft_lengths[-1] // 2 + 1)
        return x.update(half, dtypes.complex_of(x.dtype))
    if fft_type is FftType.IRFFT:
        return x.update((*x.shape[:-1], fft_lengths[-1]), dtypes.real_of(x.dtype))
    return x


def _fft_transpose(ct: Any, x: Aval, *, fft_type: FftType, fft_lengths: tuple[int, ...]) -> Any:
    if fft_type in (FftType.FFT, FftType.IFFT):
        return fft(ct, fft_type, fft_lengths)  # the matrix is symmetric
    if fft_type is FftType.RFFT:
        # The real part of the complex transform of the half spectrum, filled up with zeros.
        missing = x.shape[-1] - typeof(ct).shape[-1]
        config = [(0, 0, 0)] * (x.ndim - 1) + [(0, missing, 0)]
        whole = shapes.pad(ct, full((), 0j, typeof(ct).dtype), config)
        return real(fft(whole, FftType.FFT, fft_lengths))
    # Each coefficient but the first and the middle one stands for two, itself and its conjugate.
    half = fft(ct, FftType.RFFT, fft_lengths)
    kind, n = typeof(half), fft_lengths[-1]
    frequency = shapes.broadcasted_iota(dtypes.I32, kind.shape, kind.ndim - 1)
    once = eq(frequency, 0)
    if n % 2 == 0:
        once = bitwise_or(once, eq(frequency, n // 2))
    weight = select(once, 1.0, full(kind.shape, 2.0, dtypes.real_of(kind.dtype)))
    scale = convert(mul(weight, 1 / math.prod(fft_lengths)), kind.dtype)
    return conj(mul(half, scale))


def _fft_flops(ins: Sequence[Aval], outs: Sequence[Aval], **_: Any) -> float:
    n = max(ins[0].shape[-1:] or (1,))
    return 5 * outs[0].size * math.log2(max(n, 2))


# A compiler may have inverses without their factor: `scaled=False`, which no user's program has.
fft_p = linear(
    "fft",
    _fft_shape,
    transpose=_fft_transpose,
    batch=lambda size, x, d, **params: (bind(fft_p, move_batch(x, d, 0, size), **params), 0),
    precision="high",
    flops=_fft_flops,
)


def fft(operand: Array, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """The transform of the last `len(fft_lengths)` dimensions; inverses divide by the lengths.

    fft and ifft take complex numbers; rfft takes floats and gives the first n // 2 + 1 coefficients
    of the last dimension; irfft takes those. Raises ShapeError, DTypeError.
    """
    if isinstance(fft_type, str):
        try:
            fft_type = FftType(fft_type.lower())
        except ValueError:
            names = ", ".join(t.value for t in FftType)
            raise ValueError(f"fft_type {fft_type!r} is not one of {names}") from None
    lengths = tuple([int(n) for n in fft_lengths])
    return bind(fft_p, operand, fft_type=fft_type, fft_lengths=lengths)
