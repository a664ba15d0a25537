"""Keys as integers that order as JAX orders values: NaNs equal and last, -0 equal to 0."""

from __future__ import annotations

from typing import TypedDict

import triton
import triton.language as tl

from genesis_fn.kernels.language.element_types import UNSIGNED

# The bits of each floating type's greatest value that is no NaN: infinity, where there is one.
_GREATEST = {
    "fp8e4nv": 0x7E, "fp8e5": 0x7C, "bf16": 0x7F80, "fp16": 0x7C00, "fp32": 0x7F800000,
    "fp64": 0x7FF0 << 48,
}  # fmt: skip


@triton.jit
def ordered(bits, KIND: tl.constexpr, INF: tl.constexpr, DESCENDING: tl.constexpr):
    """Signed integers, as wide as the raw `bits`, that order as the values do."""
    WIDTH: tl.constexpr = bits.dtype.primitive_bitwidth
    LARGEST: tl.constexpr = (1 << (WIDTH - 1)) - 1
    key = bits
    if KIND == "float":
        # Sign and magnitude to two's complement: negative floats order by descending magnitude.
        magnitude = bits & LARGEST
        key = tl.where(bits < 0, -magnitude, magnitude)
        key = tl.where(magnitude > INF, LARGEST, key).to(bits.dtype)
    elif KIND == "unsigned":
        key = bits ^ (-LARGEST - 1)  # flips the top bit
    if DESCENDING:
        key = ~key  # reverses the order without overflow, which -key has for the least integer
    return key


class KeyConstants(TypedDict):
    """Constants of `ordered`: how keys compare, and the greatest float that is no NaN."""

    KIND: str
    INF: int


def key_constants(dtype: str) -> KeyConstants:
    """The constants of `ordered` for an element type."""
    if dtype in _GREATEST:
        return {"KIND": "float", "INF": _GREATEST[dtype]}
    return {"KIND": "unsigned" if dtype in UNSIGNED else "signed", "INF": 0}
