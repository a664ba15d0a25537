"""The operators and methods of arrays and tracers, declared for type checkers and editors.

`numpy/arrays/methods.py` installs them on `Array` when the package is imported: they are functions
of `numpy/`, which lies above `core/`. A checker does not run that, so `Array` has this class as its
base under TYPE_CHECKING. A test compares the declarations with what is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import EllipsisType, ModuleType
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np

from genesis_fn.core.aval import Described
from genesis_fn.core.device import Device
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike, Scalar

# An entry of an index: an integer, a slice, `...`, None (a new axis), or an array or list of
# integers or booleans.
IndexEntry: TypeAlias = (
    "SupportsIndex | slice[Any, Any, Any] | EllipsisType | None | ArrayLike | list[Any]"
)
Index: TypeAlias = "IndexEntry | tuple[IndexEntry, ...]"
# What happens out of bounds: "check" (the default), "drop", "fill", "clip", "promise_in_bounds", or
# a member of `lax.GatherScatterMode`.
IndexMode: TypeAlias = str | Enum | None


class ArrayInterface(Described):
    """What `numpy/arrays/methods.py` gives arrays and tracers."""

    __slots__ = ()

    @property
    def device(self) -> Device:
        """The device that holds the values; of a traced value where it is known."""
        ...

    # Whether the dtype comes of Python scalars only, so that it yields to other arrays'. A slot of
    # tracers, a property of arrays.
    weak: bool

    @property
    def weak_type(self) -> bool:
        """`weak`, by JAX's name."""
        ...

    # Operators: NotImplemented for lists and other objects that are no arrays.

    def __add__(self, other: ArrayLike, /) -> Array: ...
    def __radd__(self, other: ArrayLike, /) -> Array: ...
    def __sub__(self, other: ArrayLike, /) -> Array: ...
    def __rsub__(self, other: ArrayLike, /) -> Array: ...
    def __mul__(self, other: ArrayLike, /) -> Array: ...
    def __rmul__(self, other: ArrayLike, /) -> Array: ...
    def __truediv__(self, other: ArrayLike, /) -> Array: ...
    def __rtruediv__(self, other: ArrayLike, /) -> Array: ...
    def __floordiv__(self, other: ArrayLike, /) -> Array: ...
    def __rfloordiv__(self, other: ArrayLike, /) -> Array: ...
    def __mod__(self, other: ArrayLike, /) -> Array: ...
    def __rmod__(self, other: ArrayLike, /) -> Array: ...
    def __divmod__(self, other: ArrayLike, /) -> tuple[Array, Array]: ...
    def __rdivmod__(self, other: ArrayLike, /) -> tuple[Array, Array]: ...
    def __pow__(self, other: ArrayLike, modulo: None = None, /) -> Array: ...
    def __rpow__(self, other: ArrayLike, /) -> Array: ...
    def __matmul__(self, other: ArrayLike, /) -> Array: ...
    def __rmatmul__(self, other: ArrayLike, /) -> Array: ...
    def __and__(self, other: ArrayLike, /) -> Array: ...
    def __rand__(self, other: ArrayLike, /) -> Array: ...
    def __or__(self, other: ArrayLike, /) -> Array: ...
    def __ror__(self, other: ArrayLike, /) -> Array: ...
    def __xor__(self, other: ArrayLike, /) -> Array: ...
    def __rxor__(self, other: ArrayLike, /) -> Array: ...
    def __lshift__(self, other: ArrayLike, /) -> Array: ...
    def __rlshift__(self, other: ArrayLike, /) -> Array: ...
    def __rshift__(self, other: ArrayLike, /) -> Array: ...
    def __rrshift__(self, other: ArrayLike, /) -> Array: ...

    # Comparisons are elementwise, where `object` promises a bool.
    def __eq__(self, other: ArrayLike, /) -> Array: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __ne__(self, other: ArrayLike, /) -> Array: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __lt__(self, other: ArrayLike, /) -> Array: ...
    def __le__(self, other: ArrayLike, /) -> Array: ...
    def __gt__(self, other: ArrayLike, /) -> Array: ...
    def __ge__(self, other: ArrayLike, /) -> Array: ...

    def __neg__(self) -> Array: ...
    def __pos__(self) -> Array: ...
    def __abs__(self) -> Array: ...
    def __invert__(self) -> Array: ...
    def __round__(self, ndigits: int | None = None, /) -> Array: ...

    # Python protocols.

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Array]: ...
    def __contains__(self, item: ArrayLike, /) -> bool: ...
    def __getitem__(self, index: Index, /) -> Array: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    def __trunc__(self) -> int: ...
    def __format__(self, spec: str, /) -> str: ...
    def __dir__(self) -> list[str]: ...
    def __copy__(self) -> Array: ...
    def __deepcopy__(self, memo: Any, /) -> Array: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]: ...
    def __array_namespace__(self, api_version: str | None = None) -> ModuleType: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

    # Views and shapes.

    @property
    def T(self) -> Array:
        """The array with its axes reversed."""
        ...

    @property
    def mT(self) -> Array:
        """The array with its last two axes exchanged."""
        ...

    @property
    def flat(self) -> Array:
        """The elements as a vector."""
        ...

    @property
    def at(self) -> IndexedUpdates:
        """`x.at[index].set(v)`, `.add(v)`, ...: a new array with a part of this one changed."""
        ...

    @property
    def real(self) -> Array:
        """The real part."""
        ...

    @property
    def imag(self) -> Array:
        """The imaginary part: zeros of a real array."""
        ...

    def reshape(
        self,
        *args: SupportsIndex | Sequence[SupportsIndex],
        order: str = "C",
        copy: bool | None = None,
    ) -> Array:
        """The elements in another shape, given as lengths or as one sequence; one may be -1."""
        ...

    def ravel(self, order: str = "C") -> Array:
        """The elements as a vector."""
        ...

    def flatten(self, order: str = "C") -> Array:
        """The elements as a vector."""
        ...

    def squeeze(self, axis: Axis = None) -> Array:
        """The array without its axes of length 1, or without those of `axis`."""
        ...

    def transpose(self, *axes: SupportsIndex | Sequence[SupportsIndex] | None) -> Array:
        """The array with its axes reversed, or in the order of `axes`."""
        ...

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """The array with two axes exchanged."""
        ...

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """The diagonal over two axes, as the last axis of the result."""
        ...

    def repeat(
        self, repeats: ArrayLike, axis: int | None = None, *, total_repeat_length: int | None = None
    ) -> Array:
        """Each element (slice along `axis`) several times."""
        ...

    # Dtypes, devices and values.

    def astype(
        self, dtype: DTypeLike, copy: bool = False, device: Device | str | None = None
    ) -> Array:
        """The values in another dtype."""
        ...

    def view(self, dtype: DTypeLike | None = None, *more: Any) -> Array:
        """The bytes read as another dtype."""
        ...

    def to_device(self, device: Device | str, *, stream: Any = None) -> Array:
        """The array on `device`."""
        ...

    def copy(self, order: str | None = None) -> Array:
        """A copy in memory of its own."""
        ...

    # What Python type they hold depends on the dtype, which the type of an array does not say.

    def item(self, *args: int | tuple[int, ...]) -> Any:
        """An element as a Python number: the only one, or the one at an index."""
        ...

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        ...

    def byteswap(self) -> Array:
        """The elements with their bytes in the other order."""
        ...

    def unsafe_buffer_pointer(self) -> int:
        """The address of the memory, which nobody may write to."""
        ...

    def tobytes(self, order: Literal["C", "F"] = "C") -> bytes:
        """The bytes of the values."""
        ...

    # Reductions and scans.

    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
        promote_integers: bool = True,
    ) -> Array:
        """The sum along `axis`."""
        ...

    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
        promote_integers: bool = True,
    ) -> Array:
        """The product along `axis`."""
        ...

    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
    ) -> Array:
        """The arithmetic mean along `axis`."""
        ...

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
        correction: float | None = None,
        mean: ArrayLike | None = None,
    ) -> Array:
        """The variance along `axis`."""
        ...

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
        correction: float | None = None,
        mean: ArrayLike | None = None,
    ) -> Array:
        """The standard deviation along `axis`."""
        ...

    def max(
        self,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Array:
        """The largest element along `axis`."""
        ...

    def min(
        self,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Array:
        """The smallest element along `axis`."""
        ...

    def ptp(self, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
        """The largest element less the smallest, along `axis`."""
        ...

    def any(
        self,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
    ) -> Array:
        """Whether any element along `axis` is true."""
        ...

    def all(
        self,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
    ) -> Array:
        """Whether all elements along `axis` are true."""
        ...

    def argmax(
        self, axis: int | None = None, out: None = None, keepdims: bool | None = None
    ) -> Array:
        """The index of the largest element along `axis`; without one, in the flattened array."""
        ...

    def argmin(
        self, axis: int | None = None, out: None = None, keepdims: bool | None = None
    ) -> Array:
        """The index of the smallest element along `axis`; without one, in the flattened array."""
        ...

    def cumsum(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> Array:
        """Running sums along `axis`; without one, of the flattened array."""
        ...

    def cumprod(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> Array:
        """Running products along `axis`; without one, of the flattened array."""
        ...

    # Sorting and selection.

    def sort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Array:
        """The elements in order along `axis`."""
        ...

    def argsort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """The indices that sort along `axis`, int32 or of an integer `dtype`."""
        ...

    def partition(self, kth: int, axis: int = -1) -> Array:
        """The elements with the `kth` smallest at index `kth` and the smaller ones before it."""
        ...

    def argpartition(self, kth: int, axis: int = -1) -> Array:
        """The indices that `partition` orders by."""
        ...

    def searchsorted(
        self,
        v: ArrayLike,
        side: str = "left",
        sorter: ArrayLike | None = None,
        *,
        method: str = "scan",
    ) -> Array:
        """Where in this sorted vector the elements of `v` would be inserted."""
        ...

    def take(
        self,
        indices: ArrayLike,
        axis: int | None = None,
        out: None = None,
        mode: IndexMode = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
        fill_value: Scalar | None = None,
    ) -> Array:
        """Elements (slices along `axis`) at `indices`."""
        ...

    def choose(
        self, choices: ArrayLike | Sequence[ArrayLike], out: None = None, mode: str = "raise"
    ) -> Array:
        """choices[x[i]][i], elementwise."""
        ...

    def compress(
        self,
        condition: ArrayLike | Sequence[bool],
        axis: int | None = None,
        *,
        size: int | None = None,
        fill_value: ArrayLike = 0,
        out: None = None,
    ) -> Array:
        """Slices along `axis` (elements without one) where `condition` is true."""
        ...

    def nonzero(
        self, *, size: int | None = None, fill_value: ArrayLike | None = None
    ) -> tuple[Array, ...]:
        """The indices of the elements that are not zero, an array for each axis."""
        ...

    # Arithmetic.

    def clip(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
        """The values limited to min .. max."""
        ...

    def round(self, decimals: int = 0) -> Array:
        """The values rounded to `decimals` places, halves to even."""
        ...

    def conj(self) -> Array:
        """The complex conjugate."""
        ...

    def conjugate(self) -> Array:
        """The complex conjugate."""
        ...

    def dot(
        self,
        b: ArrayLike,
        *,
        precision: Any = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> Array:
        """The dot product with `b`: over the last axis, and the one before the last of `b`."""
        ...

    def trace(
        self,
        offset: int = 0,
        axis1: int = 0,
        axis2: int = 1,
        dtype: DTypeLike | None = None,
        out: None = None,
    ) -> Array:
        """The sum of the diagonal."""
        ...


class IndexedUpdates:
    """`x.at`, `numpy/indexing/updates.py`'s At."""

    def __getitem__(self, index: Index) -> IndexedUpdate: ...


class IndexedUpdate:
    """`x.at[index]`, `numpy/indexing/updates.py`'s Update: each method returns a new array. By
    default an index out of bounds raises."""

    def get(
        self,
        *,
        mode: IndexMode = None,
        fill_value: Scalar | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x[index]; mode "fill" reads `fill_value` (NaN, ...) out of bounds."""
        ...

    def set(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = values. Of duplicate indices the last wins."""
        ...

    def add(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        deterministic: bool | None = None,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] += values, duplicates included."""
        ...

    def subtract(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        deterministic: bool | None = None,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] -= values, duplicates included."""
        ...

    def sub(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        deterministic: bool | None = None,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """`subtract`."""
        ...

    def multiply(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] *= values, duplicates included."""
        ...

    def mul(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """`multiply`."""
        ...

    def divide(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] /= values, duplicates included."""
        ...

    def div(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """`divide`."""
        ...

    def power(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] **= values, duplicates included."""
        ...

    def min(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = minimum(x[index], values)."""
        ...

    def max(
        self,
        values: ArrayLike | list[Any] | tuple[Any, ...],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = maximum(x[index], values)."""
        ...

    def apply(
        self,
        func: Callable[[Array], ArrayLike],
        *,
        mode: IndexMode = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        out_sharding: None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = func(x[index]), elementwise: `func` maps one element to one."""
        ...
