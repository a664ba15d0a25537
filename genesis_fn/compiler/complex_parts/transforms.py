"""Fourier transforms: steps of a library, whose factor joins kernels of the program's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.steps import on_packed
from genesis_fn.compiler.complex_parts.values import Complex, of_parts, on_parts
from genesis_fn.core.primitive import Primitive, typeof
from genesis_fn.primitives.elementwise import mul
from genesis_fn.primitives.fft import FftType, fft_p

# Longer transforms are several kernels of a library's, which have no factor at no cost.
_ONE_KERNEL = 8192


@on_parts(fft_p)
def _fft(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    """Inverse transforms divide by their lengths, which libraries' do at a cost, if at all: the
    factor joins what computes the operand, or what reads the result of a long one, wherever there
    is a kernel for it to join."""
    (x,) = xs
    avals = [x.aval if type(x) is Complex else typeof(x)]
    kind, lengths = params["fft_type"], params["fft_lengths"]
    if kind not in (FftType.IFFT, FftType.IRFFT):
        return on_packed(prim, xs, params, avals)
    factor, unscaled = 1 / math.prod(lengths), {**params, "scaled": False}
    if not x.is_packed:
        return on_packed(prim, [_scaled(x, factor)], unscaled, avals)
    if kind is FftType.IFFT and max(lengths) > _ONE_KERNEL:
        return _scaled(on_packed(prim, xs, unscaled, avals), factor)
    return on_packed(prim, xs, params, avals)


def _scaled(x: Complex, factor: float) -> Complex:
    re, im = x.parts
    return of_parts(mul(re, factor), mul(im, factor))
