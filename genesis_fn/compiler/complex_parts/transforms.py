"""Fourier transforms: steps of a library, whose factor is an operation of the program's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.steps import on_packed
from genesis_fn.compiler.complex_parts.values import Complex, of_parts, on_parts
from genesis_fn.core.primitive import Primitive, typeof
from genesis_fn.primitives.elementwise import mul
from genesis_fn.primitives.fft import FftType, fft_p


@on_parts(fft_p)
def _fft(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    """Inverse transforms divide by their lengths, and libraries' do not: the factor joins what
    computes the operand, or what reads the result, wherever there is a kernel for it to join."""
    (x,) = xs
    avals = [x.aval if type(x) is Complex else typeof(x)]
    if params["fft_type"] not in (FftType.IFFT, FftType.IRFFT):
        return on_packed(prim, xs, params, avals)
    params = {**params, "scaled": False}
    factor = 1 / math.prod(params["fft_lengths"])
    if not x.is_packed:
        return on_packed(prim, [_scaled(x, factor)], params, avals)
    return _scaled(on_packed(prim, xs, params, avals), factor)


def _scaled(x: Any, factor: float) -> Any:
    if type(x) is not Complex:
        return mul(x, factor)
    re, im = x.parts
    return of_parts(mul(re, factor), mul(im, factor))
