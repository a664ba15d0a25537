"""Universal functions: elementwise functions that also reduce, accumulate, update and pair up.

`jax.numpy` makes some of its functions objects of this kind, and `frompyfunc` any function of
scalars. Within the library the plain functions are used.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike
from genesis_fn.lax.creation import asarray
from genesis_fn.numpy.arrays.grids import arange
from genesis_fn.numpy.indexing.selection import where as choose
from genesis_fn.numpy.manipulation.shapes import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    reshape,
)
from genesis_fn.numpy.mathematics import composed, reductions, ufuncs as plain
from genesis_fn.numpy.vectorization import vectorize
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.shape import canonical_axis
from genesis_fn.transforms.control_flow.associative import associative_scan
from genesis_fn.transforms.control_flow.loops import fori_loop
from genesis_fn.transforms.control_flow.scanning import scan


class ufunc:
    """A function of scalars made to broadcast; with two arguments and one result it also folds.

    Args:
        func: function of `nin` arrays of one shape.
        nin: the number of arguments.
        nout: the number of results.
        name: the object's name, by default that of `func`.
        nargs: the number of arguments that count, by default `nin`.
        identity: what leaves the other argument as it is, or None.
        call: what a call runs, by default `func` mapped over elements.
        reduce: what `reduce` runs, by default a loop from the left; so for the others.
        accumulate: what `accumulate` runs.
        at: what `at` runs.
        reduceat: what `reduceat` runs.
    """

    def __new__(
        cls,
        func: Callable[..., Any],
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: Any = None,
        call: Callable[..., Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None,
        at: Callable[..., Any] | None = None,
        reduceat: Callable[..., Any] | None = None,
    ) -> ufunc:
        # A class of its own, whose call is the function: nothing stands between it and the caller.
        run = _checked(func, operator.index(nin)) if call is None else call
        own = type(cls.__name__, (cls,), {"__call__": staticmethod(run), "__doc__": cls.__doc__})
        return object.__new__(own)

    def __init__(
        self,
        func: Callable[..., Any],
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: Any = None,
        call: Callable[..., Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None,
        at: Callable[..., Any] | None = None,
        reduceat: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, func, updated=())
        count = operator.index(nin)
        self._func, self._identity, self._nin, self._nout = (
            func,
            identity,
            count,
            operator.index(nout),
        )
        self._nargs = operator.index(count if nargs is None else nargs)
        self.__name__: str = name or getattr(func, "__name__", type(func).__name__)
        self._call, self._made = call, (name, nargs, reduce, accumulate, at, reduceat)
        self._reduce, self._accumulate, self._at, self._reduceat = reduce, accumulate, at, reduceat

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function of each element."""
        raise AssertionError("each object has a call of its own")

    def __setattr__(self, name: str, value: Any) -> None:
        if "_reduceat" in self.__dict__:  # the last that is set when it is made
            raise AttributeError(f"{self!r} cannot be changed, and so has no new {name!r}")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<ufunc {self.__name__!r}>"

    @property
    def func(self) -> Callable[..., Any]:
        """The function of elements."""
        return self._func

    @property
    def identity(self) -> Any:
        """What leaves the other argument as it is, or None."""
        return self._identity

    @property
    def nin(self) -> int:
        """The number of arguments."""
        return self._nin

    @property
    def nout(self) -> int:
        """The number of results."""
        return self._nout

    @property
    def nargs(self) -> int:
        """The number of arguments that count."""
        return self._nargs

    def _key(self) -> tuple[Any, ...]:
        return self._func, self._nin, self._nout, self._identity, self._call, self._made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self._func, self._nin, self._nout))

    def __reduce__(self) -> Any:
        if self.__module__ == __package__:
            return self.__name__  # the library's own, by its name
        return _remade, (self.func, self.nin, self.nout, self.identity, self._call, self._made)

    def _binary(self, method: str, out: Any = None) -> None:
        if (self.nin, self.nout) != (2, 1):
            raise ValueError(
                f"{self.__name__}.{method} needs two arguments and one result, "
                f"{self.__name__} has {self.nin} and {self.nout}"
            )
        if out is not None:
            raise errors.ArgumentError(
                f"{self.__name__}.{method} has no out: arrays are immutable, use the result\n"
                f"  at {user_line().describe()}"
            )

    def reduce(
        self,
        a: ArrayLike | Sequence[Any],
        axis: Axis = 0,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Array:
        """The elements over `axis` combined from the left.

        Args:
            a: array.
            axis: an axis, several, or None for all.
            dtype: what the elements are cast to before, by default nothing.
            out: only None: arrays are immutable.
            keepdims: whether the axes stay, with length 1.
            initial: what comes before the first element.
            where: booleans, which elements are combined: with `initial` or an identity.

        Returns:
            The combined elements.

        >>> jnp.add.reduce(jnp.array([1, 2, 3]))
        Array(6, dtype=int32)
        """
        self._binary("reduce", out)
        if where is not None and initial is None and self.identity is None:
            raise ValueError(f"{self.__name__}.reduce has no identity: where= needs initial=")
        if where is not None and asarray(where).dtype != dtypes.BOOL:
            raise ValueError(f"{self.__name__}.reduce: where takes booleans, got {where}")
        a = asarray(a)
        if self._reduce is not None:
            return self._reduce(a, axis, dtype, keepdims, initial, where)
        return self._folded(a, axis, dtype, keepdims, initial, where)

    def _folded(
        self, a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any
    ) -> Array:
        x = a if dtype is None else a.astype(dtype)
        axes = reductions.reduced_axes(axis, x.ndim, f"{self.__name__}.reduce")
        rows = _first(x, axes)
        mask = None if where is None else _first(broadcast_to(asarray(where), x.aval.shape), axes)
        start = self.identity if initial is None else initial
        if start is None:
            if not rows.aval.shape[0]:
                raise ValueError(f"{self.__name__}.reduce of nothing, {x.aval}, needs initial=")
            total, begin = rows[0], 1
        else:
            total, begin = broadcast_to(asarray(start, x.dtype), rows.aval.shape[1:]), 0
        if rows.aval.shape[0] > begin:
            kind = self(total, rows[0]).dtype
            total = total.astype(kind)

            def step(i: Any, total: Any) -> Any:
                following = self(total, rows[i]).astype(kind)
                return following if mask is None else choose(mask[i], following, total)

            total = fori_loop(begin, rows.aval.shape[0], step, total)
        return expand_dims(total, axes) if keepdims else total

    def accumulate(
        self,
        a: ArrayLike | Sequence[Any],
        axis: int = 0,
        dtype: DTypeLike | None = None,
        out: None = None,
    ) -> Array:
        """The results of combining each element with those before it along `axis`.

        Args:
            a: array.
            axis: an axis.
            dtype: what the elements are cast to before, by default nothing.
            out: only None: arrays are immutable.

        Returns:
            An array in the shape of `a`.

        >>> jnp.multiply.accumulate(jnp.array([1, 2, 3]))
        Array([1, 2, 6], dtype=int32)
        """
        self._binary("accumulate", out)
        x = asarray(a)
        x = x if dtype is None else x.astype(dtype)
        axis = canonical_axis(axis, x.ndim, f"{self.__name__}.accumulate")
        if not x.aval.shape[axis]:
            return x
        if self._accumulate is not None:
            return self._accumulate(x, axis)
        rows = moveaxis(x, axis, 0)
        kind = self(rows[0], rows[0]).dtype

        def step(total: Any, row: Any) -> tuple[Any, Any]:
            following = self(total, row).astype(kind)
            return following, following

        first = rows[0].astype(kind)
        _, rest = scan(step, first, rows[1:])
        return moveaxis(concatenate([first[None], rest]), 0, axis)

    def at(
        self, a: ArrayLike, indices: Any, b: ArrayLike | None = None, /, *, inplace: bool = True
    ) -> Array:
        """`a` with the elements at `indices` combined with `b`, one after the other where an index
        occurs several times.

        Args:
            a: array.
            indices: what stands between the brackets of an index.
            b: the second argument of a function of two.
            inplace: must be False: arrays are immutable.

        Returns:
            The new array.

        >>> jnp.add.at(jnp.zeros(2), jnp.array([0, 0]), 1.0, inplace=False)
        Array([2., 0.], dtype=float32)
        """
        if inplace:
            raise NotImplementedError(
                f"{self.__name__}.at changes no array in place: arrays are immutable\n"
                f"  at {user_line().describe()}\n"
                f"  pass inplace=False and use the result: y = {self.__name__}.at(..., "
                "inplace=False)"
            )
        a = asarray(a)
        given = () if b is None else (asarray(b),)
        if len(given) + 1 != self.nin:
            raise ValueError(
                f"{self.__name__}.at takes {self.nin - 1} operands after the indices, "
                f"got {len(given)}"
            )
        if self._at is not None:
            return self._at(a, indices, *given)
        slots = reshape(arange(a.size), a.aval.shape)[indices]
        values = [reshape(broadcast_to(v, slots.aval.shape), (-1,)) for v in given]
        slots = reshape(slots, (-1,))

        kind = self(*[full((), 0, v.dtype) for v in (a, *values)]).dtype

        def step(i: Any, x: Any) -> Any:
            result = self(x[slots[i]], *[v[i] for v in values])
            return x.at[slots[i]].set(result.astype(kind))

        flat = reshape(a, (-1,)).astype(kind)
        return reshape(fori_loop(0, slots.size, step, flat), a.aval.shape)

    def reduceat(
        self,
        a: ArrayLike | Sequence[Any],
        indices: ArrayLike | Sequence[Any],
        axis: int = 0,
        dtype: DTypeLike | None = None,
        out: None = None,
    ) -> Array:
        """The elements of each slice from indices[i] up to indices[i + 1] along `axis` combined:
        the last slice ends with the axis, and one that is empty is its first element.

        Args:
            a: array.
            indices: vector of integers.
            axis: an axis.
            dtype: what the elements are cast to before, by default nothing.
            out: only None: arrays are immutable.

        Returns:
            An array whose `axis` has the length of `indices`.

        >>> jnp.add.reduceat(jnp.arange(6), jnp.array([0, 4]))
        Array([6, 9], dtype=int32)
        """
        self._binary("reduceat", out)
        x, starts = asarray(a), asarray(indices)
        x = x if dtype is None else x.astype(dtype)
        if not x.ndim or starts.ndim != 1 or not dtypes.is_integer(starts.dtype):
            raise ValueError(
                f"{self.__name__}.reduceat takes an array and a vector of integers, "
                f"got {x.aval} and {starts.aval}"
            )
        if self._reduceat is not None:
            return self._reduceat(x, starts, axis)
        axis = canonical_axis(axis, x.ndim, f"{self.__name__}.reduceat")
        rows = moveaxis(x, axis, 0)
        n = rows.aval.shape[0]
        wide = (starts.size, *(1,) * (rows.ndim - 1))
        ends = concatenate([starts[1:], full((1,), n, starts.dtype)])
        first = rows[starts]
        kind = self(first, first).dtype

        def step(i: Any, total: Any) -> Any:
            within = reshape(plain.logical_and(starts < i, i < ends), wide)
            return choose(within, self(total, rows[i][None]).astype(kind), total)

        return moveaxis(fori_loop(0, n, step, first.astype(kind)), 0, axis)

    def outer(self, A: ArrayLike | Sequence[Any], B: ArrayLike | Sequence[Any], /) -> Array:
        """The function of every pair of an element of `A` and one of `B`.

        Args:
            A: array.
            B: array.

        Returns:
            An array [*A.shape, *B.shape].

        >>> jnp.add.outer(jnp.array([0, 10]), jnp.array([1, 2]))
        Array([[ 1,  2],
               [11, 12]], dtype=int32)
        """
        self._binary("outer")
        x, y = asarray(A), asarray(B)
        return self(
            reshape(x, (*x.aval.shape, *(1,) * y.ndim)), reshape(y, (*(1,) * x.ndim, *y.aval.shape))
        )


def _checked(func: Callable[..., Any], count: int) -> Callable[..., Any]:
    """`func` mapped over elements, for `count` arguments."""
    mapped = vectorize(func)

    def call(*args: Any) -> Any:
        if len(args) != count:
            name = getattr(func, "__name__", type(func).__name__)
            raise TypeError(f"{name} takes {count} arguments, got {len(args)}")
        return mapped(*args)

    return call


def _remade(func: Any, nin: int, nout: int, identity: Any, call: Any, made: tuple[Any, ...]) -> Any:
    name, nargs, reduce, accumulate, at, reduceat = made
    return ufunc(
        func, nin, nout, name=name, nargs=nargs, identity=identity, call=call, reduce=reduce,
        accumulate=accumulate, at=at, reduceat=reduceat,
    )  # fmt: skip


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """`func` of scalars as a universal function, which broadcasts.

    Args:
        func: function of `nin` scalars.
        nin: the number of arguments.
        nout: the number of results.
        identity: what leaves the other argument as it is, or None.

    Returns:
        The universal function.

    >>> jnp.frompyfunc(lambda x, y: 10 * x + y, 2, 1).reduce(jnp.array([1, 2, 3]))
    Array(123, dtype=int32)
    """
    return ufunc(func, nin, nout, identity=identity)


# ---- the library's ----

if TYPE_CHECKING:  # what a call of each takes and gives

    class _Unary(ufunc):
        """Of one array."""

        def __call__(self, x: ArrayLike, /) -> Array: ...

    class _Binary(ufunc):
        """Of two arrays."""

        def __call__(self, x: ArrayLike, y: ArrayLike, /) -> Array: ...


def _first(x: Array, axes: Sequence[int]) -> Array:
    """The elements over `axes` along a first axis, in their order."""
    moved = moveaxis(x, axes, range(len(axes)))
    return reshape(
        moved, (math.prod(moved.aval.shape[: len(axes)]), *moved.aval.shape[len(axes) :])
    )


def _halving(f: Callable[..., Any], identity: Any) -> Callable[..., Any]:
    """`reduce` of an associative function: halves are combined until one element is left."""

    def reduce(a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Array:
        x = a if dtype is None else a.astype(dtype)
        axes = reductions.reduced_axes(axis, x.ndim, f.__name__)
        if where is not None:
            x = choose(where, x, asarray(identity, x.dtype))
        rows = _first(x, axes)
        if not rows.aval.shape[0]:
            rows = broadcast_to(asarray(identity, x.dtype), (1, *rows.aval.shape[1:]))
        rows = f(rows, asarray(identity, x.dtype))
        while (n := rows.aval.shape[0]) > 1:
            half = n // 2
            pairs = f(rows[:half], rows[half : 2 * half])
            rows = concatenate([pairs, rows[2 * half :]]) if n % 2 else pairs
        total = rows[0] if initial is None else f(asarray(initial, x.dtype), rows[0])
        return expand_dims(total, axes) if keepdims else total

    return reduce


def _scanning(f: Callable[..., Any]) -> Callable[..., Any]:
    """`accumulate` of an associative function."""

    def accumulate(x: Any, axis: int) -> Array:
        kind = f(x[(slice(None),) * axis + (0,)], x[(slice(None),) * axis + (0,)]).dtype
        return associative_scan(f, x.astype(kind), axis=axis)

    return accumulate


def _summing(f: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Array:
        return f(a, axis, dtype, keepdims=keepdims, initial=initial, where=where)

    return reduce


def _extreme(f: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Array:
        a = a if dtype is None else a.astype(dtype)
        return f(a, axis, keepdims=keepdims, initial=initial, where=where)

    return reduce


def _made(f: Any, identity: Any = None, **methods: Any) -> Any:
    nin = 1 if f is plain.negative else 2
    made: Any = ufunc(f, nin, 1, identity=identity, call=f, **methods)
    object.__setattr__(made, "__module__", __package__)
    return made


def _associative(f: Any, identity: Any, **methods: Callable[..., Any]) -> Any:
    methods = {"reduce": _halving(f, identity), "accumulate": _scanning(f), **methods}
    return _made(f, identity, **methods)


add: _Binary = _made(
    plain.add,
    0,
    reduce=_summing(reductions.sum),
    accumulate=reductions.cumsum,
    at=lambda a, indices, b: a.at[indices].add(b),
)
multiply: _Binary = _made(
    plain.multiply,
    1,
    reduce=_summing(reductions.prod),
    accumulate=reductions.cumprod,
    at=lambda a, indices, b: a.at[indices].multiply(b),
)
maximum: _Binary = _made(
    plain.maximum,
    reduce=_extreme(reductions.max),
    accumulate=_scanning(plain.maximum),
    at=lambda a, indices, b: a.at[indices].max(b),
)
minimum: _Binary = _made(
    plain.minimum,
    reduce=_extreme(reductions.min),
    accumulate=_scanning(plain.minimum),
    at=lambda a, indices, b: a.at[indices].min(b),
)
subtract: _Binary = _made(
    plain.subtract, at=lambda a, indices, b: a.at[indices].add(plain.negative(b))
)
negative: _Unary = _made(plain.negative)
bitwise_and: _Binary = _associative(plain.bitwise_and, -1)
bitwise_or: _Binary = _associative(plain.bitwise_or, 0)
bitwise_xor: _Binary = _associative(plain.bitwise_xor, 0)
logical_and: _Binary = _associative(plain.logical_and, True)
logical_or: _Binary = _associative(plain.logical_or, False)
logical_xor: _Binary = _associative(plain.logical_xor, False)
logaddexp: _Binary = _associative(composed.logaddexp, -np.inf)
logaddexp2: _Binary = _associative(composed.logaddexp2, -np.inf)
