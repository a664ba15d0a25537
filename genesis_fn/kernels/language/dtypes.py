"""Element types in kernels: the one table of their names there, and what follows from it.

Complex types are missing: the hardware has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType

NAMES: Mapping[DType, str] = {
    dtypes.BOOL: "i1", dtypes.I8: "i8", dtypes.I16: "i16", dtypes.I32: "i32", dtypes.I64: "i64",
    dtypes.U8: "u8", dtypes.U16: "u16", dtypes.U32: "u32", dtypes.U64: "u64",
    dtypes.F8E4: "fp8e4nv", dtypes.F8E5: "fp8e5", dtypes.BF16: "bf16", dtypes.F16: "fp16",
    dtypes.F32: "fp32", dtypes.F64: "fp64",
}  # fmt: skip
"""What plans and specs call each dtype, as Triton's signatures do."""

DTYPES: Mapping[str, DType] = {name: d for d, name in NAMES.items()}
ITEMSIZE: Mapping[str, int] = {name: d.itemsize for name, d in DTYPES.items()}
FLOATING = frozenset([name for name, d in DTYPES.items() if dtypes.is_float(d)])
UNSIGNED = frozenset([name for name, d in DTYPES.items() if d.kind in "bu"])
FLOAT8 = NAMES[dtypes.F8E4], NAMES[dtypes.F8E5]

_WORDS = {"i": "int", "u": "uint", "fp": "float", "bf": "bfloat"}
TYPES: Mapping[DType, str] = {
    d: re.sub("^[a-z]+", lambda found: _WORDS[found.group()], name) for d, name in NAMES.items()
}
"""The names of `triton.language`'s types."""

MEMORY: Mapping[DType, str] = {d: f"tl.{name}" for d, name in TYPES.items()}
"""Text of the Triton type of each dtype in memory."""

__all__ = ["DTYPES", "FLOAT8", "FLOATING", "ITEMSIZE", "MEMORY", "NAMES", "TYPES", "UNSIGNED"]
