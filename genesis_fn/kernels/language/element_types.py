"""Element types of buffers by the names that Triton's signatures give them: "bf16", "i32".

Planners and kernels know these names alone. Compiling processes import them without NumPy, which
would cost each process 0.1 s of a program's first call; `dtypes` has the dtype of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NUMPY_NAMES: Mapping[str, str] = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "bf16": "bfloat16", "fp16": "float16",
    "fp32": "float32", "fp64": "float64",
}  # fmt: skip
"""Complex types are missing: the hardware has none."""

ITEMSIZE: Mapping[str, int] = {
    name: max(1, int(re.findall("[0-9]+", name)[0]) // 8) for name in NUMPY_NAMES
}
FLOATING = frozenset([name for name in NUMPY_NAMES if name[0] in "fb"])
UNSIGNED = frozenset(["i1", *[name for name in NUMPY_NAMES if name[0] == "u"]])
FLOAT8 = "fp8e4nv", "fp8e5"

TRITON_NAMES: Mapping[str, str] = {
    **NUMPY_NAMES, "i1": "int1", "fp8e4nv": "float8e4nv", "fp8e5": "float8e5",
}  # fmt: skip
"""The names of `triton.language`'s types."""
