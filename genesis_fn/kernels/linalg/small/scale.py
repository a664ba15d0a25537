"""Powers of two that bring matrices in lanes to the size of one, so that squares are in range."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.linalg.small.rows import over_rows


@triton.jit
def scales(vectors, ROWS: tl.constexpr):
    """(2^-e, 2^e, whether a number is not finite) of each matrix, whose largest number is from 2^e
    to 2^(e + 1) if neither power is out of range."""
    WIDE: tl.constexpr = vectors[0].dtype == tl.float64
    KIND: tl.constexpr = tl.int64 if WIDE else tl.int32
    DIGITS: tl.constexpr = 52 if WIDE else 23
    # Exponents are biased; all ones are those of infinities and NaN.
    ONES: tl.constexpr = 2047 if WIDE else 255
    # Bits of numbers that are not negative are ordered as they are.
    largest = tl.abs(vectors[0]).to(KIND, bitcast=True)
    for j in tl.static_range(1, len(vectors)):
        largest = tl.maximum(largest, tl.abs(vectors[j]).to(KIND, bitcast=True))
    exponent = over_rows((largest >> DIGITS).to(tl.int32), ROWS, True)
    within = tl.minimum(tl.maximum(exponent, 1), ONES - 2).to(KIND)
    down = ((ONES - 1 - within) << DIGITS).to(vectors[0].dtype, bitcast=True)
    up = (within << DIGITS).to(vectors[0].dtype, bitcast=True)
    return down, up, exponent == ONES
