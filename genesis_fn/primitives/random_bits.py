"""Random bits, elementwise in (key, index), and bit-equal on every device.

A key is an element of an array of dtype key<impl>. Its words are uint32[2], and the primitives take
uint32[..., 2] too, whose leading dimensions are separate keys: programs with keys are compiled to
that form (`transforms/keys/words.py`).

impl "philox": Philox-4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
(2011), with the key's two words as its key. Word w of a key's stream is output w mod 4 at the
counter (lo32(w div 4), hi32(w div 4), 0, 0). Elements of 32 bits are the words in row-major order;
those of 8, 16 and 64 bits are the same stream read as little-endian memory. The new key i of
`split` is words 0 and 1 at the counter (i, 0, 0, 1); that of `fold_in` of data d, at (d, 0, 0, 2).

impl "threefry2x32": Threefry-2x32-20, bit-equal to JAX's partitionable form. (a, b) at the counter
(hi32(i), lo32(i)) gives a xor b for element i of up to 32 bits (truncated), and a * 2**32 + b for
64; the new key of `split` and `fold_in` is (a, b) at (0, i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsInt

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.dtypes import U8, U16, U32, U64, is_key
from genesis_fn.core.primitive import Primitive, bind, no_flops, typeof
from genesis_fn.core.types.annotations import Array, Key, ShapeLike
from genesis_fn.core.types.extended import IMPLEMENTATIONS as IMPLS, WORDS, KeyType, key_type
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.factories import PRIM, move_batch, no_tangent

WIDTHS = {8: U8, 16: U16, 32: U32, 64: U64}
SPLIT, FOLD_IN = 1, 2


# ---- the primitives ----


def _checked_key(name: str, key: Aval, impl: str) -> tuple[int, ...]:
    """The shape that the keys have."""
    if impl not in IMPLS:
        raise ValueError(f"{name}: impl {impl!r} is not one of {', '.join(IMPLS)}")
    if is_key(key.dtype):
        if key.dtype is not key_type(impl):
            raise errors.DTypeError(f"{name}: {impl!r} is not the implementation of keys {key}")
        return key.shape
    if key.dtype != U32 or key.shape[-1:] != (WORDS,):
        raise errors.ShapeError(f"{name}: a key is key<{impl}> or u32[..., {WORDS}], got {key}")
    return key.shape[:-1]


def _keys_shape(key: Aval) -> tuple[int, ...]:
    return key.shape if is_key(key.dtype) else key.shape[:-1]


def _on_words(prim: Primitive, xs: Sequence[Any], avals: Any, params: dict[str, Any]) -> Any:
    """The rule on words of primitives that take words in place of keys: themselves."""
    return bind(prim, *xs, **params)


def _bits_shape(key: Aval, *, shape: tuple[int, ...], width: int, impl: str) -> Aval:
    keys = _checked_key("random_bits", key, impl)
    if width not in WIDTHS:
        raise errors.DTypeError(f"random_bits: width {width} is not one of 8, 16, 32, 64")
    return aval((*keys, *shape), WIDTHS[width])


random_bits_p = Primitive("random_bits", _bits_shape, weak=None, flops=no_flops)
random_bits_p.linearize, random_bits_p.words = no_tangent(random_bits_p), _on_words
random_bits_p.batch = lambda size, xs, dims, **params: (
    bind(random_bits_p, move_batch(xs[0], dims[0], 0, size), **params),
    0,
)


def random_bits(
    key: Key, *, shape: Sequence[int] = (), width: int = 32, impl: str = "philox"
) -> Array:
    """uint<width>[*keys, *shape] of independent uniform bits, for keys of shape `keys`."""
    return bind(random_bits_p, key, shape=tuple(shape), width=width, impl=impl)


def _hash_shape(key: Aval, data: Aval, *, impl: str, tag: int) -> Aval:
    keys = _checked_key("key_hash", key, impl)
    if data.dtype != U32 or data.shape[: len(keys)] != keys:
        raise errors.ShapeError(
            f"key_hash: the data of keys {key} must be u32 with the same leading dimensions, "
            f"got {data}"
        )
    return key.update(data.shape) if is_key(key.dtype) else aval((*data.shape, WORDS), U32)


key_hash_p = Primitive("key_hash", _hash_shape, weak=None, flops=no_flops)
key_hash_p.linearize, key_hash_p.words = no_tangent(key_hash_p), _on_words


def _hash_batch(size: int, xs: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    key, data = [move_batch(x, d, 0, size) for x, d in zip(xs, dims)]
    return bind(key_hash_p, key, data, **params), 0


key_hash_p.batch = _hash_batch


# ---- between keys and their words ----


def _wrap_shape(words: Aval, *, dtype: KeyType) -> Aval:
    if words.dtype != U32 or words.shape[-1:] != (WORDS,):
        raise errors.DTypeError(f"the words of keys are u32[..., {WORDS}], got {words}")
    return aval(words.shape[:-1], dtype)  # pyright: ignore[reportArgumentType]


wrap_p = Primitive("random_wrap", _wrap_shape, weak=None)
wrap_p.batch = lambda size, xs, dims, *, dtype: (
    bind(wrap_p, move_batch(xs[0], dims[0], 0, size), dtype=dtype),
    0,
)
unwrap_p = Primitive(
    "random_unwrap", lambda keys: keys.physical if is_key(keys.dtype) else _no_key(keys), weak=None
)
unwrap_p.batch = lambda size, xs, dims: (bind(unwrap_p, xs[0]), dims[0])
for _prim in (wrap_p, unwrap_p):
    _prim.linearize = no_tangent(_prim)
    _prim.words = lambda prim, xs, avals, params: xs[0]


def _no_key(operand: Aval) -> Aval:
    raise errors.DTypeError(f"random_unwrap takes random keys, got {operand}")


def wrap(words: Array, impl: str) -> Key:
    """Make keys of an implementation from their words, uint32[..., 2]."""
    return bind(wrap_p, words, dtype=key_type(impl))


def unwrap(keys: Key) -> Array:
    """Return the words of keys, uint32[..., 2]."""
    return bind(unwrap_p, keys)


def key_hash(key: Key, data: Array, *, impl: str = "philox", tag: int = FOLD_IN) -> Key:
    """Make new keys [*keys, *more] from keys of shape `keys` and data uint32[*keys, *more].

    `tag` (SPLIT or FOLD_IN) makes the keys of the two operations differ; threefry has no such tag.
    """
    return bind(key_hash_p, key, data, impl=impl, tag=tag)


def split(key: Key, shape: ShapeLike = 2, *, impl: str = "philox") -> Key:
    """Make new independent keys, of shape [*keys, *shape], from each key."""
    from genesis_fn.primitives.shape import iota, reshape

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    keys = _keys_shape(typeof(key))
    index = reshape(iota(U32, math.prod(shape)), shape)
    dims = tuple(range(len(keys), len(keys) + len(shape)))
    if keys:
        index = bind(PRIM["broadcast_in_dim"], index, shape=(*keys, *shape), dims=dims)
    return key_hash(key, index, impl=impl, tag=SPLIT)


def fold_in(key: Key, data: Array | SupportsInt, *, impl: str = "philox") -> Key:
    """Make a new key from each key and an integer (taken modulo 2**32)."""
    keys, index = _keys_shape(typeof(key)), data
    if not isinstance(index, Array):
        index = bind(PRIM["full"], value=int(index) % 2**32, shape=keys, dtype=U32)
    elif not dtypes.is_integer(typeof(index).dtype):
        raise errors.DTypeError(f"fold_in takes an integer, got {typeof(index)}")
    elif keys and typeof(index).shape == ():
        index = bind(PRIM["broadcast_in_dim"], index, shape=keys, dims=())
    return key_hash(key, convert(index, U32), impl=impl, tag=FOLD_IN)
