"""Keys as integers that order as JAX orders values: NaNs equal and last, -0 equal to 0."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.planning import FLOATING, UNSIGNED

INFINITY = {
    "fp64": 0x7FF0000000000000,
    "fp32": 0x7F800000,
    "bf16": 0x7F80,
    "fp16": 0x7C00,
    "fp8e5": 0x7C,
    "fp8e4nv": 0x7E,  # no infinity: the largest finite number
}


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
        return {"KIND": "float", "INF": INFINITY[dtype]}
    return {"KIND": "unsigned" if dtype in UNSIGNED else "signed", "INF": 0}
