"""Fourier transforms against JAX: values, derivatives to order 2, batching, errors."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from genesis_fn.core import errors
from genesis_fn.primitives.fft import FftType, fft
from tests.primitives.check import check, check_value, random, to_array


@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize("lengths", [(6,), (5,), (4, 5), (2, 3, 4), (1,)])
def test_against_jax(kind, lengths):
    shape = (2, *lengths)
    if kind == "irfft":
        shape = (*shape[:-1], lengths[-1] // 2 + 1)
    x = random(shape, np.float64 if kind == "rfft" else np.complex128)
    enum = jax.lax.FftType[kind.upper()]
    check(lambda v: fft(v, kind, lengths), lambda v: jax.lax.fft(v, enum, lengths), x)


def test_single_precision_and_nothing():
    for dtype, kind in (("complex64", "fft"), ("float32", "rfft")):
        enum = jax.lax.FftType[kind.upper()]
        for shape in ((3, 8), (0, 8)):
            check_value(
                lambda v: fft(v, kind, (8,)),
                lambda v: jax.lax.fft(v, enum, (8,)),
                random(shape, dtype),
            )


def test_errors():
    x = to_array(random((3, 4), np.complex64))
    with pytest.raises(errors.ShapeError, match=r"fft of c64\[3,4\] .* must be \[5\]"):
        fft(x, "fft", (5,))
    with pytest.raises(errors.ShapeError, match="one positive length"):
        fft(x, FftType.FFT, (2, 3, 4))
    with pytest.raises(errors.DTypeError, match="must be float32 or float64"):
        fft(x, FftType.RFFT, (4,))
    with pytest.raises(errors.DTypeError, match="must be complex64 or complex128"):
        fft(to_array(random((4,), np.float32)), FftType.FFT, (4,))
    with pytest.raises(ValueError, match="fft_type 'dct' is not one of"):
        fft(x, "dct", (4,))
