"""Random keys: immutable values that every sampler takes, split and named rather than advanced.

A `Key` is a pytree with one leaf, uint32[..., 2]; its implementation ("philox", the default, or
"threefry2x32", bit-equal to JAX) is part of its structure. `key["dropout"]` and `key[layer, step]`
are order-independent derivations. Using one key twice warns, and raises under `debug.check_keys`.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import config, dtypes, errors, tree
from genesis_fn.core.array import Array, from_numpy
from genesis_fn.core.convert import as_array
from genesis_fn.core.primitive import Tracer, ctx
from genesis_fn.core.source import warn, where
from genesis_fn.primitives import elementwise as ops, random_bits as bits_of

IMPLEMENTATIONS = ("philox", "threefry2x32")


class KeyReuseWarning(UserWarning):
    """A random key was used twice, so two samples are the same or correlated."""


ONCE: Any = (object(), None)  # the mark of a copy, of which nothing is known but its purpose


class Key:
    """One key (shape ()) or an array of keys."""

    __slots__ = ("data", "impl", "used", "parts", "__weakref__")

    def __init__(self, data: Any, impl: str) -> None:
        self.data, self.impl = data, impl
        self.used: tuple[Any, Any] | None = None  # (the trace, the line) of the first use
        self.parts: dict[int, Key] | None = None  # elements of an array of keys, as far as asked

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of keys."""
        return self.data.shape[:-1]

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array of keys."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of keys."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> str:
        """`key<impl>`, as JAX prints it."""
        return f"key<{self.impl}>"

    def __repr__(self) -> str:
        return f"Key(impl={self.impl!r}, data={self.data!r})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single key has no length; split(key, n) makes n keys")
        return self.shape[0]

    def __iter__(self) -> Iterator[Key]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, index: Any) -> Key:
        """For a single key: the key derived by a name, an integer, or several of them in a tuple.
        For an array of keys: indexing."""
        if self.shape:
            return self._element(index)
        derived = self
        for part in index if isinstance(index, tuple) else (index,):
            derived = fold_in(derived, part)
        return derived

    def _element(self, index: Any) -> Key:
        """The same object for the same place, so that a second use of it is noticed."""
        inside = ctx.trace is None or getattr(self.data, "_trace", None) is ctx.trace
        if type(index) is not int or not inside:
            return Key(self.data[index], self.impl)
        self.parts = {} if self.parts is None else self.parts
        place = index % len(self) if -len(self) <= index < len(self) else index
        found = self.parts.get(place)
        if found is None:
            found = self.parts[place] = Key(self.data[index], self.impl)
        return found

    def copy(self) -> Key:
        """The same key, not counted as used: for drawing the same numbers on purpose."""
        result = Key(self.data, self.impl)
        result.used = ONCE
        return result


tree.register_node(
    Key, lambda k: ((k.data,), k.impl), lambda impl, kids: Key(next(iter(kids)), impl)
)


def consume(key: Any) -> Key:
    """`key` as a Key, marked as used. Warns, or raises KeyReuseError, at the second use."""
    key = as_key(key)
    if key.used is not None and key.used[0] is ctx.trace:
        _reused(
            f"a random key was used twice: first at {key.used[1].describe()}\n"
            f"  and again at {where().describe()}\n"
            "  split it, derive from it (key['name'], fold_in), or pass key.copy() on purpose"
        )
    elif key.used is not ONCE and _same_every_turn(key):
        _reused(
            "a random key from outside a loop is used in its body: every turn draws the same\n"
            f"  at {where().describe()}\n"
            "  scan over split(key, n), derive from it (key[i]), or pass key.copy() on purpose"
        )
    key.used = (ctx.trace, where())
    return key


def _reused(message: str) -> None:
    if config.current().check_keys:
        raise errors.KeyReuseError(message)
    warn(message, KeyReuseWarning)


def _same_every_turn(key: Key) -> bool:
    """Whether a loop's body is being traced, to which the key comes from outside."""
    trace, data = ctx.trace, key.data
    if not getattr(trace, "repeated", False):
        return False
    return not (isinstance(data, Tracer) and data._trace is trace)


def as_key(key: Any) -> Key:
    """A Key from a Key or from raw uint32[..., 2] data. Raises TypeError for anything else."""
    if isinstance(key, Key):
        return key
    if isinstance(key, (Array, Tracer, np.ndarray)):
        data = as_array(key)
        if data.dtype == dtypes.U32 and data.shape[-1:] == (2,):
            return Key(data, config.current().random_impl)
    raise TypeError(
        f"expected a random key, from random.key(seed), got {key!r:.80}\n  at {where().describe()}"
    )


def single(key: Any, what: str) -> Key:
    """`key`, consumed, if it is one key; an array of keys belongs under vmap."""
    key = consume(key)
    if key.shape:
        raise ValueError(
            f"random.{what} takes one key, got an array of shape {key.shape}; use vmap\n"
            f"  at {where().describe()}"
        )
    return key


def key(seed: Any, *, impl: str | None = None) -> Key:
    """The key of an integer seed (any Python int; or a traced integer)."""
    impl = impl or config.current().random_impl
    impl = {"threefry": "threefry2x32"}.get(impl, impl)
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"there is no random implementation {impl!r}; there are {IMPLEMENTATIONS}")
    if isinstance(seed, Tracer) or type(seed) is Array:
        if seed.shape != () or not dtypes.is_integer(seed.dtype):
            raise TypeError(f"a seed is an integer scalar, got {seed.aval}")
        low = ops.convert(seed, dtypes.U32)
        high = ops.mul(low, 0)
        if seed.dtype.itemsize == 8:
            high = ops.convert(ops.shift_right_logical(seed, 32), dtypes.U32)
        from genesis_fn.primitives.shape import concatenate, reshape

        return Key(concatenate([reshape(high, (1,)), reshape(low, (1,))], 0), impl)
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"a seed is an integer scalar, got {seed!r}") from None
    value = number & (2**64 - 1)
    # A small negative seed means the 32-bit one, as in JAX.
    high = 0 if -(2**31) <= number < 0 else value >> 32
    return Key(from_numpy(np.array([high, value & 0xFFFFFFFF], np.uint32)), impl)


PRNGKey = key


def key_data(keys: Any) -> Any:
    """The raw uint32[..., 2] of keys."""
    return as_key(keys).data


def wrap_key_data(data: Any, *, impl: str | None = None) -> Key:
    """Keys from raw uint32[..., 2] data."""
    return Key(as_array(data, dtypes.U32), impl or config.current().random_impl)


def key_impl(keys: Any) -> str:
    """The implementation of keys."""
    return as_key(keys).impl


def clone(keys: Any) -> Key:
    """A copy of keys that may be used again."""
    return as_key(keys).copy()


def split(key: Any, num: int | Sequence[int] = 2) -> Key:
    """An array of `num` (an int or a shape) independent keys."""
    parent = single(key, "split")
    shape = (num,) if isinstance(num, (int, np.integer)) else tuple(num)
    return Key(bits_of.split(parent.data, shape, impl=parent.impl), parent.impl)


def fold_in(key: Any, data: Any) -> Key:
    """The key derived from `key` by an integer (traced or not) or a name. Not a use of `key`."""
    parent = as_key(key)
    if isinstance(data, str):
        data = zlib.crc32(data.encode())
    kind = getattr(data, "dtype", None)
    if not isinstance(data, int) and (kind is None or not dtypes.is_integer(dtypes.dtype(kind))):
        raise TypeError(
            f"a key is derived by integers and names, got {data!r:.60}\n  at {where().describe()}"
        )
    if isinstance(data, (int, np.integer)):
        data = from_numpy(np.asarray(int(data) & 0xFFFFFFFF, np.uint32))
    return Key(bits_of.fold_in(parent.data, data, impl=parent.impl), parent.impl)
