"""Keys as integers that order as JAX orders values: NaNs equal and last, -0 equal to 0."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from genesis_fn.core.dtypes import extreme_over_nothing
from genesis_fn.kernels.language.dtypes import DTYPES, FLOATING, UNSIGNED


@triton.jit
def ordered(bits, KIND: tl.constexpr, INF: tl.constexpr, DESCENDING: tl.constexpr):
    """Signed integers, as wide as the raw `bits`, that order as the values do."""
    WIDTH: tl.constexpr = bits.dtype.primitive_bitwidth
    LARGEST: tl.constexpr = (1 << (WIDTH - 1)) - 1
    key = bits
    if KIND == "float":
        magnitude = bits & LARGEST
        key = tl.where(bits < 0, -magnitude, magnitude)
        key = tl.where(magnitude > INF, LARGEST, key).to(bits.dtype)
    elif KIND == "unsigned":
        key = bits ^ (-LARGEST - 1)
    if DESCENDING:
        key = ~key
    return key


def key_constants(dtype: str) -> dict[str, str | int]:
    """What `ordered` needs to know of an element type, as constants of a kernel."""
    if dtype in FLOATING:
        kind = DTYPES[dtype]
        largest = np.array(extreme_over_nothing(kind, greatest=False), kind)
        return {"KIND": "float", "INF": int(largest.view(f"u{kind.itemsize}"))}
    return {"KIND": "unsigned" if dtype in UNSIGNED else "signed", "INF": 0}
