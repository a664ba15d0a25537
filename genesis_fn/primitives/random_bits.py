"""Random bits, elementwise in (key, index), and bit-equal on every device.

A key is an element of an array of dtype key<impl>. Its words are uint32[2], and the primitives take
uint32[..., 2] too, whose leading dimensions are separate keys: that is what programs with keys are
compiled to.

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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.dtypes import U8, U16, U32, U64, is_key
from genesis_fn.core.extended import IMPLEMENTATIONS as IMPLS, WORDS, KeyType, key_type
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives.define import (
    PRIM,
    host_tensor,
    host_view,
    move_batch,
    no_tangent,
)
from genesis_fn.primitives.elementwise import convert

WIDTHS = {8: U8, 16: U16, 32: U32, 64: U64}
SPLIT, FOLD_IN = 1, 2

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Counters hashed at once: their working set stays in the second-level cache.
_CHUNK = 16384
# Up to this many counters are hashed one by one.
_FEW = 8


# ---- Philox ----

_PHILOX_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_PHILOX_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)


def philox(
    counter: Sequence[np.ndarray | int], key: Sequence[np.ndarray | int], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Philox-4x32-10 of `count` counters: (words 0 and 2, words 1 and 3), each uint64[2, count].

    `counter` has 4 words and `key` 2, arrays of `count` or single numbers. The high halves of
    the second result are not cleared.
    """
    even, odd = np.empty((2, count), np.uint64), np.empty((2, count), np.uint64)
    for i in range(2):
        even[i], odd[i] = counter[2 * i], counter[2 * i + 1]
    product = np.empty((2, count), np.uint64)
    keys = np.stack(np.broadcast_arrays(*[np.asarray(k, np.uint64).reshape(-1) for k in key]))
    for r in range(10):
        np.multiply(even, _PHILOX_MULTIPLIERS, out=product)
        crossed = product[::-1]
        np.right_shift(crossed, _32, out=even)
        even ^= odd
        even ^= keys
        even &= _LOW  # what the uncleared halves of `odd` and `keys` left
        odd, product = crossed, odd
        if r < 9:
            keys = keys + _PHILOX_KEY_STEPS
    return even, odd


def philox_block(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """The four words at one counter, in Python integers: faster than arrays for a few of them."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (q >> 32) ^ c1 ^ k0, q & 0xFFFFFFFF
        c2, c3 = (p >> 32) ^ c3 ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def _philox_words(key: np.ndarray, start: int, blocks: int, out: np.ndarray) -> None:
    """Fill out, uint64[blocks, 2], with the words of one key's counters from `start`."""
    for i in range(0, blocks, _CHUNK):
        n = min(_CHUNK, blocks - i)
        index = np.arange(start + i, start + i + n, dtype=np.uint64)
        even, odd = philox((index & _LOW, index >> _32, 0, 0), (int(key[0]), int(key[1])), n)
        odd <<= _32
        even |= odd
        out[i : i + n] = even.T


def _philox_bits(key: np.ndarray, count: int, width: int) -> np.ndarray:
    """uint<width>[keys, count] of keys uint32[keys, 2]."""
    blocks = -(-count * width // 128)
    if len(key) * blocks <= _FEW:
        few = [philox_block((i, 0, 0, 0), k) for k in key.tolist() for i in range(blocks)]
        return np.array(few, U32).reshape(len(key), 4 * blocks).view(WIDTHS[width])[:, :count]
    out = np.empty((len(key), blocks, 2), np.uint64)
    if blocks >= _CHUNK // 8:
        for k, o in zip(key, out):
            _philox_words(k, 0, blocks, o)
    elif blocks:
        step = max(1, _CHUNK // blocks)  # many short streams: hash several keys together
        for i in range(0, len(key), step):
            some = key[i : i + step]
            n = len(some) * blocks
            index = np.tile(np.arange(blocks, dtype=np.uint64), len(some))
            pair = np.repeat(some[:, 0], blocks), np.repeat(some[:, 1], blocks)
            even, odd = philox((index, 0, 0, 0), pair, n)
            odd <<= _32
            even |= odd
            out[i : i + len(some)] = even.T.reshape(len(some), blocks, 2)
    stream = out.reshape(len(key), 2 * blocks).view(WIDTHS[width])
    return stream[:, :count]


def _philox_hash(key: np.ndarray, data: np.ndarray, tag: int) -> np.ndarray:
    """New keys uint32[n, 2] of keys uint32[n, 2] and data uint32[n]."""
    if len(data) <= _FEW:
        few = [philox_block((d, 0, 0, tag), k)[:2] for d, k in zip(data.tolist(), key.tolist())]
        return np.array(few, U32).reshape(len(data), 2)
    even, odd = philox((data, 0, 0, tag), (key[:, 0], key[:, 1]), len(data))
    return np.stack([even[0].astype(U32), odd[0].astype(U32)], -1)


# ---- Threefry ----

_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(
    key: Sequence[np.ndarray], x0: np.ndarray, x1: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32-20 of the counters (x0, x1) under the two key words, all uint32."""
    k0, k1 = (np.asarray(k, U32) for k in key)
    keys = (k0, k1, k0 ^ k1 ^ U32.type(0x1BD11BDA))
    with np.errstate(over="ignore"):
        a, b = x0 + keys[0], x1 + keys[1]
        spare = np.empty_like(b)
        for i in range(5):
            for r in _THREEFRY_ROTATIONS[i % 2]:
                a += b
                np.left_shift(b, U32.type(r), out=spare)
                np.right_shift(b, U32.type(32 - r), out=b)
                b |= spare
                b ^= a
            a += keys[(i + 1) % 3]
            b += keys[(i + 2) % 3] + U32.type(i + 1)
    return a, b


def _threefry_bits(key: np.ndarray, count: int, width: int) -> np.ndarray:
    kind = WIDTHS[width]
    out = np.empty((len(key), count), kind)
    step = max(1, _CHUNK // max(count, 1))
    for i in range(0, len(key), step):
        some = key[i : i + step]
        pair = (some[:, :1], some[:, 1:])
        for j in range(0, count, _CHUNK):
            index = np.arange(j, min(count, j + _CHUNK), dtype=np.uint64)
            grid = np.broadcast_to(index, (len(some), len(index)))
            a, b = threefry(pair, (grid >> _32).astype(U32), grid.astype(U32))
            if width == 64:
                bits = (a.astype(U64) << _32) | b
            else:
                bits = (a ^ b).astype(kind, copy=False)
            out[i : i + step, j : j + _CHUNK] = bits
    return out


def _threefry_hash(key: np.ndarray, data: np.ndarray, tag: int) -> np.ndarray:
    a, b = threefry((key[:, 0], key[:, 1]), np.zeros_like(data), data)
    return np.stack([a, b], -1)


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
    """These primitives compute on words as they stand."""
    return bind(prim, *xs, **params)


def _bits_shape(key: Aval, *, shape: tuple[int, ...], width: int, impl: str) -> Aval:
    keys = _checked_key("random_bits", key, impl)
    if width not in WIDTHS:
        raise errors.DTypeError(f"random_bits: width {width} is not one of 8, 16, 32, 64")
    return aval((*keys, *shape), WIDTHS[width])


def _bits_torch(
    avals: Sequence[Any], *, shape: tuple[int, ...], width: int, impl: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    result = (*avals[0].shape[:-1], *shape)
    make = _philox_bits if impl == "philox" else _threefry_bits
    count = math.prod(shape)
    kind = WIDTHS[width]

    def run(key: torch.Tensor) -> torch.Tensor:
        bits = make(host_view(key, U32).reshape(-1, 2), count, width)
        return host_tensor(bits.reshape(result), kind)

    return run


random_bits_p = Primitive("random_bits", _bits_shape, torch_for=_bits_torch, weak=None)
random_bits_p.linearize, random_bits_p.words = no_tangent(random_bits_p), _on_words
random_bits_p.batch = lambda size, xs, dims, **params: (
    bind(random_bits_p, move_batch(xs[0], dims[0], 0, size), **params),
    0,
)


def random_bits(
    key: Any, *, shape: Sequence[int] = (), width: int = 32, impl: str = "philox"
) -> Any:
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


def _hash_torch(avals: Sequence[Any], *, impl: str, tag: int) -> Callable:
    key, data = avals
    per_key = math.prod(data.shape[len(_keys_shape(key)) :])
    make = _philox_hash if impl == "philox" else _threefry_hash

    def run(k: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        keys = np.repeat(host_view(k, U32).reshape(-1, 2), per_key, axis=0)
        new = make(keys, host_view(d, U32).reshape(-1), tag)
        return host_tensor(new.reshape((*data.shape, 2)), U32)

    return run


key_hash_p = Primitive("key_hash", _hash_shape, torch_for=_hash_torch, weak=None)
key_hash_p.linearize, key_hash_p.words = no_tangent(key_hash_p), _on_words


def _hash_batch(size: int, xs: Sequence, dims: Sequence, **params: Any) -> Any:
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


def _no_key(given: Aval) -> Aval:
    raise errors.DTypeError(f"random_unwrap takes random keys, got {given}")


def wrap(words: Any, impl: str) -> Any:
    """Keys of an implementation from their words, uint32[..., 2]."""
    return bind(wrap_p, words, dtype=key_type(impl))


def unwrap(keys: Any) -> Any:
    """The words of keys, uint32[..., 2]."""
    return bind(unwrap_p, keys)


def key_hash(key: Any, data: Any, *, impl: str = "philox", tag: int = FOLD_IN) -> Any:
    """New keys of shape [*keys, *more] from keys of shape `keys` and data uint32[*keys, *more].

    `tag` (SPLIT or FOLD_IN) keeps the keys that the two make apart; threefry has no such tag.
    """
    return bind(key_hash_p, key, data, impl=impl, tag=tag)


def split(key: Any, shape: int | Sequence[int] = 2, *, impl: str = "philox") -> Any:
    """New independent keys, of shape [*keys, *shape], from each key."""
    from genesis_fn.primitives.shape import iota, reshape

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    keys = _keys_shape(typeof(key))
    index = reshape(iota(U32, math.prod(shape)), shape)
    dims = tuple(range(len(keys), len(keys) + len(shape)))
    if keys:
        index = bind(PRIM["broadcast_in_dim"], index, shape=(*keys, *shape), dims=dims)
    return key_hash(key, index, impl=impl, tag=SPLIT)


def fold_in(key: Any, data: Any, *, impl: str = "philox") -> Any:
    """A new key from each key and an integer (taken modulo 2**32)."""
    keys = _keys_shape(typeof(key))
    if not hasattr(data, "aval"):
        data = bind(PRIM["full"], value=int(data) % 2**32, shape=keys, dtype=U32)
    elif not dtypes.is_integer(typeof(data).dtype):
        raise errors.DTypeError(f"fold_in takes an integer, got {typeof(data)}")
    elif keys and typeof(data).shape == ():
        data = bind(PRIM["broadcast_in_dim"], data, shape=keys, dims=())
    return key_hash(key, convert(data, U32), impl=impl, tag=FOLD_IN)
