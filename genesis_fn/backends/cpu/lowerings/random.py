"""CPU lowerings of random bits and key derivation.

`primitives/random_bits.py` defines the streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import through_numpy
from genesis_fn.core.dtypes import U32, U64
from genesis_fn.primitives.random_bits import WIDTHS, key_hash_p, random_bits_p

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Counters hashed at once: their working set stays in the L2 cache.
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


@lowers(random_bits_p)
def _random_bits(
    avals: Sequence[Any], *, shape: tuple[int, ...], width: int, impl: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    result = (*avals[0].shape[:-1], *shape)
    make = _philox_bits if impl == "philox" else _threefry_bits
    count = math.prod(shape)
    return through_numpy(lambda key: make(key.reshape(-1, 2), count, width).reshape(result), U32)


@lowers(key_hash_p)
def _key_hash(avals: Sequence[Any], *, impl: str, tag: int) -> Callable[..., Any]:
    key, data = avals
    per_key = math.prod(data.shape[key.ndim - 1 :])
    make = _philox_hash if impl == "philox" else _threefry_hash

    def run(k: np.ndarray, d: np.ndarray) -> np.ndarray:
        keys = np.repeat(k.reshape(-1, 2), per_key, axis=0)
        return make(keys, d.reshape(-1), tag).reshape((*data.shape, 2))

    return through_numpy(run, U32)
