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
