"""Shapes and dtypes that stand for arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import Array
from genesis_fn.core.aval import aval
from genesis_fn.core.convert import as_argument
from genesis_fn.core.primitive import SCALARS, Tracer


class Abstract:
    """Shape and dtype standing for an array: what `eval_shape` returns and `lower` accepts."""

    __slots__ = ("aval", "weak")

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.aval, self.weak = aval(tuple(shape), dtypes.dtype(dtype)), False

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """The bytes of a dense array of this kind."""
        return self.aval.nbytes

    def __repr__(self) -> str:
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Abstract) and other.aval is self.aval

    def __hash__(self) -> int:
        return hash(self.aval)

    def __genesis_array__(self) -> Any:
        return self


def abstract_of(x: Any) -> Any:
    """What a leaf of the arguments is traced as: itself, or an Abstract for what has shape and
    dtype."""
    if type(x) is Array or isinstance(x, (Tracer, Abstract)) or type(x) in SCALARS:
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return as_argument(x)
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return Abstract(x.shape, x.dtype)
    return x


__all__ = ["Abstract", "abstract_of"]
