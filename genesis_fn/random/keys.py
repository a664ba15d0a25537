"""Random keys: arrays that samplers take, from which new keys are derived by `split` and by name.

The dtype of a key says which generator draws from it: `key<philox>`, the default, or
`key<threefry2x32>`, bit-equal to JAX. Keys have a shape, and are indexed, reshaped, stacked and
mapped like any array; arithmetic on them is refused. `key["dropout"]` and `key[layer, step]` derive
from a single key, in any order. Using one key twice warns, and raises under `debug.check_keys`.

Functions that take keys take raw words, uint32[..., 2], for keys of the default implementation.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, keys_over, words_of
from genesis_fn.core.aval import aval
from genesis_fn.core.configuration import config
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Tracer, ctx
from genesis_fn.core.types.annotations import ArrayLike
from genesis_fn.core.types.extended import (
    IMPLEMENTATIONS,
    OTHER_NAMES,
    WORDS,
    KeyType,
    is_key,
    key_type,
)
from genesis_fn.numpy.indexing.index_expressions import element_or_part
from genesis_fn.primitives import elementwise as ops, random_bits as bits_of
from genesis_fn.primitives.shape import concatenate, copy, reshape

# Registers how keys are stored.
from genesis_fn.transforms.keys import words as _words  # noqa: F401  # pyright: ignore[reportUnusedImport]
from genesis_fn.transforms.keys.key_reuse import on_purpose, part_of, unmarked, use


class _KeyMeta(type):
    """The metaclass of `Key`: an array is an instance where its dtype is that of keys."""

    def __instancecheck__(cls, x: object) -> bool:
        return is_key(getattr(x, "dtype", None)) and isinstance(x, Array)


if TYPE_CHECKING:
    Key: TypeAlias = Array
else:

    class Key(metaclass=_KeyMeta):
        """What arrays of keys are instances of, for annotations and `isinstance(x, random.Key)`.

        Keys are made by `key`, `split` and `fold_in`, and are arrays: `type(key(0))` is `Array`.
        """

        def __new__(cls, *args, **kwargs):
            raise TypeError(
                "a key is an array: random.key(seed) makes one, random.wrap_key_data(words) has "
                f"raw words\n  at {where().describe()}"
            )


# ---- indexing ----


def _indexed(keys: Key, index: Any) -> Key:
    """keys[index]. A single key derives one by a name, an integer or a tuple of them; an array of
    keys is indexed by NumPy's rules."""
    parts: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    if keys.shape and type(index) is int and type(keys) is ArrayImpl and ctx.trace is None:
        if -keys.shape[0] <= index < keys.shape[0]:  # on the words, in one step
            words = element_or_part(words_of(keys), index)
            one_aval = aval(keys.shape[1:], keys.dtype)
            one = keys_over(words, one_aval)  # pyright: ignore[reportArgumentType]  # concrete, as `keys`
            return part_of(keys, index, one)
    if keys.shape or all([p is None or p is Ellipsis for p in parts]):
        return part_of(keys, index, element_or_part(keys, index))
    for part in parts:
        keys = fold_in(keys, part)
    return keys


KeyType.index = staticmethod(_indexed)


# ---- what is a key ----


def as_key(key: object) -> Key:
    """An array of keys from one, or from raw words uint32[..., 2], which belong to the default
    implementation. Raises TypeError for anything else."""
    dtype = getattr(key, "dtype", None)
    if is_key(dtype) and isinstance(key, Array):
        return key
    if is_raw(key):
        return bits_of.wrap(as_array(key), config.current().random_impl)
    shown = f"{dtype}{list(key.shape)}" if isinstance(key, (Array, np.ndarray)) else f"{key!r:.80}"
    raise TypeError(
        f"expected a random key, from random.key(seed), got {shown}\n  at {where().describe()}\n"
        f"  raw words are uint32[..., {WORDS}]: random.wrap_key_data(words)"
    )


_ARRAYS = (Array, np.ndarray)


def is_raw(x: object) -> TypeGuard[Array]:
    """Whether `x` has the dtype and the last axis of raw words."""
    return isinstance(x, _ARRAYS) and x.dtype == dtypes.U32 and x.shape[-1:] == (WORDS,)


def impl_of(keys: Key) -> str:
    """The implementation of an array of keys."""
    return keys.dtype.impl  # pyright: ignore[reportAttributeAccessIssue]  # a KeyType


def consume(key: Key) -> Key:
    """Mark `key` as used and return it as keys; warn, or raise KeyReuseError, at a second use."""
    keys = as_key(key)
    use(keys)
    return keys


def consume_one(key: Key, what: str) -> Key:
    """Consume `key` for the sampler `what`. Raises ValueError if it is an array of keys."""
    keys = as_key(key)
    if keys.shape:
        raise ValueError(
            f"random.{what} takes one key, got an array of shape {keys.shape}; use vmap\n"
            f"  at {where().describe()}"
        )
    return consume(keys)


def take_key(key: Key, what: str) -> Key:
    """Consume `key` and return an unmarked copy, which the sampler may pass to other samplers."""
    return unmarked(consume_one(key, what))


def _implementation(impl: str | KeyType | None) -> str:
    """The name of an implementation, from its name, a key's dtype, or None for the default."""
    if isinstance(impl, KeyType):
        return impl.impl
    name = impl or config.current().random_impl
    name = OTHER_NAMES.get(name, name)
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"there is no random implementation {name!r}; there are {IMPLEMENTATIONS}")
    return name


# ---- making keys ----


def key(seed: ArrayLike, *, impl: str | KeyType | None = None) -> Key:
    """The key of an integer seed.

    Args:
        seed: a Python integer of any size, or an integer scalar array, traced or not.
        impl: "philox", the default (see `default_prng_impl`), or "threefry2x32", JAX's. JAX's names
            "rbg" and "unsafe_rbg", of generators whose numbers it does not fix, mean "philox".

    Returns:
        A key: an array of shape () and dtype key<impl>.

    Raises:
        TypeError: `seed` is no integer scalar.
        ValueError: there is no such implementation.

    >>> k = random.key(0)
    >>> random.normal(k["weights"], (2,))
    Array([ 0.14988783, -0.05493749], dtype=float32)
    """
    impl = _implementation(impl)
    return bits_of.wrap(_words_of_seed(seed), impl)


def PRNGKey(seed: ArrayLike, *, impl: str | KeyType | None = None) -> Key:
    """The raw words of `key(seed)`, JAX's older form of a key.

    Functions that take keys take raw words for keys of the default implementation.

    Args:
        seed: as in `key`.
        impl: the default implementation's name, or None.

    Returns:
        uint32[2].

    Raises:
        ValueError: `impl` is not the default implementation.

    >>> random.PRNGKey(7)
    Array([0, 7], dtype=uint32)
    """
    impl, default = _implementation(impl), config.current().random_impl
    if impl != default:
        raise ValueError(
            f"PRNGKey: raw words are keys of {default!r}, the default, not of {impl!r}\n"
            f"  at {where().describe()}\n  use random.key(seed, impl={impl!r}), whose dtype says it"
        )
    return _words_of_seed(seed)


def _words_of_seed(seed: ArrayLike) -> Array:
    if isinstance(seed, Tracer) or type(seed) is ArrayImpl:
        if seed.shape != () or not dtypes.is_integer(seed.dtype):
            raise TypeError(f"a seed is an integer scalar, got {seed.aval}")
        low = ops.convert(seed, dtypes.U32)
        high = ops.mul(low, 0)
        if seed.dtype.itemsize == 8:
            high = ops.convert(ops.shift_right_logical(seed, 32), dtypes.U32)
        return concatenate([reshape(high, (1,)), reshape(low, (1,))], 0)
    try:
        number = operator.index(seed)  # pyright: ignore[reportArgumentType]  # TypeError below
    except TypeError:
        raise TypeError(f"a seed is an integer scalar, got {seed!r}") from None
    value = number & (2**64 - 1)
    # A small negative seed means the 32-bit one, as in JAX, where integers have 32 bits.
    short = dtypes.default_int() is dtypes.I32 and -(2**31) <= number < 0
    high = 0 if short else value >> 32
    return from_numpy(np.array([high, value & 0xFFFFFFFF], np.uint32))


def key_data(keys: Key) -> Array:
    """The raw words of keys.

    Args:
        keys: array of keys [...]; raw words are returned as they are.

    Returns:
        uint32[..., 2].

    >>> random.key_data(random.key(7))
    Array([0, 7], dtype=uint32)
    """
    return as_array(keys) if is_raw(keys) else bits_of.unwrap(as_key(keys))


def wrap_key_data(key_bits_array: ArrayLike, *, impl: str | KeyType | None = None) -> Key:
    """Keys from raw words: the inverse of `key_data`.

    Args:
        key_bits_array: uint32[..., 2].
        impl: implementation of the keys; None means the default.

    Returns:
        An array of keys [...].

    Raises:
        TypeError: words of another dtype or last axis.

    >>> random.wrap_key_data(np.array([0, 7], np.uint32)) == random.key(7)
    Array(True, dtype=bool)
    """
    words: Any = key_bits_array
    if not isinstance(words, _ARRAYS) and not hasattr(words, "aval"):
        words = as_array(np.asarray(words))
    if not is_raw(words):
        shown = getattr(words, "aval", None) or f"{words.dtype}{list(words.shape)}"
        raise TypeError(
            f"wrap_key_data: raw words are uint32[..., {WORDS}], got {shown}\n"
            f"  at {where().describe()}"
        )
    return bits_of.wrap(as_array(words), _implementation(impl))


def key_impl(keys: Key) -> str:
    """The name of the implementation of keys.

    Args:
        keys: array of keys, or raw words.

    Returns:
        "philox" or "threefry2x32".

    >>> random.key_impl(random.key(0))
    'philox'
    """
    return impl_of(as_key(keys))


def key_dtype(impl_spec: str | None = None) -> KeyType:
    """The dtype of keys.

    Args:
        impl_spec: name of an implementation; None means the default.

    Returns:
        The dtype, key<impl>.

    >>> random.key_dtype()
    key<philox>
    """
    return key_type(_implementation(impl_spec))


def clone(key: Key) -> Key:
    """A copy of keys that may be used again, for drawing the same numbers on purpose.

    Args:
        key: array of keys, or raw words.

    Returns:
        The same keys, without the mark of a use.

    >>> k = random.key(0)
    >>> random.uniform(k) == random.uniform(random.clone(k))
    Array(True, dtype=bool)
    """
    return copy(as_array(key)) if is_raw(key) else on_purpose(copy(as_key(key)))


# ---- deriving keys ----


def split(key: Key, num: int | Sequence[int] = 2) -> Key:
    """Independent keys derived from one key.

    Args:
        key: random key or raw words; the call uses it up.
        num: how many keys, or the shape of the array of them.

    Returns:
        An array of keys of shape (num,) or `num`; raw words for raw words.

    Raises:
        ValueError: `key` is an array of keys; use vmap.

    >>> first, second = random.split(random.key(0))
    """
    parent = consume_one(key, "split")
    shape = (num,) if isinstance(num, (int, np.integer)) else tuple(num)
    keys = bits_of.split(parent, shape, impl=impl_of(parent))
    return bits_of.unwrap(keys) if is_raw(key) else keys


def fold_in(key: Key, data: ArrayLike | str) -> Key:
    """The key derived from `key` by an integer or a name; in any order, and no use of `key`.

    Args:
        key: array of keys, or raw words.
        data: integer, traced or not, of which 32 bits count; or a name, by its CRC-32.

    Returns:
        Keys of the shape of `key`; raw words for raw words.

    Raises:
        TypeError: `data` is neither.

    >>> k = random.fold_in(random.key(0), 7)
    >>> random.fold_in(k, "dropout") == k["dropout"]
    Array(True, dtype=bool)
    """
    parent = as_key(key)
    index: Any = zlib.crc32(data.encode()) if isinstance(data, str) else data
    dtype = getattr(index, "dtype", None)
    if not isinstance(index, int) and (
        dtype is None or is_key(dtype) or not dtypes.is_integer(dtypes.dtype(dtype))
    ):
        raise TypeError(
            f"a key is derived by integers and names, got {data!r:.60}\n  at {where().describe()}"
        )
    if isinstance(index, (int, np.integer)):
        index = from_numpy(np.asarray(int(index) & 0xFFFFFFFF, np.uint32))
    keys = bits_of.fold_in(parent, index, impl=impl_of(parent))
    return bits_of.unwrap(keys) if is_raw(key) else keys
