"""Products of integers and booleans: the dtypes that kernels read and multiply them in.

Sums of products wrap in the width of the result, so that 32 bits do for results of up to 32. A sum
of products of booleans is true where any product is: where their number is not zero, which no sum
of less than 2**32 of them wraps to.
"""

from __future__ import annotations

from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType


def as_number(dtype: DType) -> DType:
    """`dtype`, or for booleans that of the bytes that they are in memory, which are 0 and 1."""
    return dtypes.I8 if dtype == dtypes.BOOL else dtype


def float_operands(x: DType, y: DType, out: DType, terms: int) -> DType | None:
    """The dtype that integers become before they are multiplied, where a sum of so many products
    would not be exact in 32 bits and the result is a float; None where they stay as they are."""
    if dtypes.is_float(x) or not dtypes.is_float(out):
        return None
    if terms * _largest(x) * _largest(y) < 2**31:
        return None
    return dtypes.F64 if out == dtypes.F64 else dtypes.F32


def _largest(dtype: DType) -> int:
    if dtype == dtypes.BOOL:
        return 1
    info = dtypes.iinfo(dtype)
    return max(int(info.max), -int(info.min))
