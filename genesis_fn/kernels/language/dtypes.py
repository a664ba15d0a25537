"""The names of dtypes in plans, specs and generated kernel text."""

from __future__ import annotations

from collections.abc import Mapping

from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.language.element_types import NUMPY_NAMES, TRITON_NAMES

DTYPES: Mapping[str, DType] = {name: dtypes.NAMES[named] for name, named in NUMPY_NAMES.items()}
NAMES: Mapping[DType, str] = {d: name for name, d in DTYPES.items()}
"""The name of each dtype in plans and specs, as in Triton's signatures."""

TYPES: Mapping[DType, str] = {d: TRITON_NAMES[name] for name, d in DTYPES.items()}
"""The names of `triton.language`'s types."""

MEMORY: Mapping[DType, str] = {d: f"tl.{name}" for d, name in TYPES.items()}
"""Text of the Triton type of each dtype in memory."""


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
