"""What signatures say: `Array`, `ArrayLike`, `DTypeLike`, `PyTree`, `Key`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from genesis_fn.core.array import Array as Array
from genesis_fn.core.dtypes import DTypeLike as DTypeLike


@runtime_checkable
class SupportsArray(Protocol):
    """An array of another library, which gives its values by `__array__`: torch's, JAX's."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """The values as a NumPy array."""
        ...


if TYPE_CHECKING:
    NDArray: TypeAlias = np.ndarray[Any, Any]
else:
    NDArray = np.ndarray  # what `isinstance(x, ArrayLike)` can ask for

Scalar: TypeAlias = bool | int | float | complex
# An array or a tracer, or what becomes one: a number, an ndarray, an array of another library.
ArrayLike: TypeAlias = Array | NDArray | np.generic | Scalar | SupportsArray
# Random keys are arrays of a dtype of their own, which `random.Key` tells apart at run time.
Key: TypeAlias = Array
Shape: TypeAlias = tuple[int, ...]
ShapeLike: TypeAlias = int | Sequence[int]
Axis: TypeAlias = int | Sequence[int] | None
# Nested containers (dicts, lists, tuples, registered classes) of arrays or of anything: Python's
# types cannot say which, the name tells a reader.
PyTree: TypeAlias = Any
