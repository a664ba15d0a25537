"""Random numbers without the key type of `random`, under the names of XLA's generators."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike
from genesis_fn.lax.operands import array, arrays
from genesis_fn.primitives.elementwise import bitcast_convert_type
from genesis_fn.primitives.random_bits import fold_in, random_bits, split
from genesis_fn.primitives.shape import concatenate, index_in_dim, reshape, slice_in_dim
from genesis_fn.transforms.custom.callback import io_callback
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct


class RandomAlgorithm(enum.IntEnum):
    """The algorithms of `rng_bit_generator`, by XLA's numbers. The default is Philox."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


def rng_bit_generator(
    key: ArrayLike,
    shape: Sequence[int],
    dtype: DTypeLike = np.uint32,
    algorithm: RandomAlgorithm | int | None = None,
) -> tuple[Array, Array]:
    """(the next key, uniform bits of an unsigned `dtype`), a function of the key alone.

    `key`: uint32[2], uint32[4] or uint64[2]. `algorithm`: Philox or the default, which is Philox;
    raises ArgumentError for another one.
    """
    if algorithm not in (None, RandomAlgorithm.RNG_DEFAULT, RandomAlgorithm.RNG_PHILOX):
        raise errors.ArgumentError(
            f"rng_bit_generator: the bits are Philox's, not those of algorithm {algorithm!r}\n"
            f"  at {where().describe()}\n"
            '  for Threefry use random.bits(random.key(0, impl="threefry2x32"))'
        )
    key, d = array(key), dtypes.dtype(dtype)
    aval = typeof(key)
    wide = aval.dtype == dtypes.U64
    shapes = {dtypes.U64: [(2,)], dtypes.U32: [(2,), (4,)]}.get(aval.dtype, [])
    if aval.shape not in shapes:
        raise errors.ShapeError(
            f"rng_bit_generator: a key is u32[2], u32[4] or u64[2], got {aval}\n"
            f"  at {where().describe()}"
        )
    if not dtypes.is_unsigned(d):
        raise errors.DTypeError(f"rng_bit_generator makes unsigned integers, got {d.name}")
    words = reshape(bitcast_convert_type(key, dtypes.U32), (4,)) if wide else key
    mine, rest = slice_in_dim(words, 0, 2), slice_in_dim(words, 2, typeof(words).shape[0])
    mixed = mine
    for i in range(typeof(rest).shape[0]):
        mixed = fold_in(mixed, index_in_dim(rest, i, 0, keepdims=False))
    both = split(mixed, 2)
    following = concatenate([index_in_dim(both, 0, 0, keepdims=False), rest], 0)
    if wide:
        following = bitcast_convert_type(reshape(following, (2, 2)), dtypes.U64)
    source = index_in_dim(both, 1, 0, keepdims=False)
    return following, random_bits(source, shape=tuple(shape), width=8 * d.itemsize)


@functools.cache  # importing numpy.random is a tenth of importing the library
def _generator() -> np.random.Generator:
    return np.random.default_rng()


def rng_uniform(a: ArrayLike, b: ArrayLike, shape: Sequence[int]) -> Array:
    """Uniform values in [a, b), drawn anew at every run; `random.uniform` is reproducible."""
    bounds = arrays("rng_uniform", (a, b), scalars=False)
    aval, shape = typeof(bounds[0]), tuple(shape)
    if aval.shape:
        raise errors.ShapeError(f"rng_uniform: the bounds must be scalars, got {aval}")

    def draw(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        if dtypes.is_integer(aval.dtype):
            return _generator().integers(low, high, shape, dtype=aval.dtype)
        start, stop = np.float64(low), np.float64(high)
        values = (start + _generator().random(shape) * (stop - start)).astype(aval.dtype)
        below = np.nextafter(aval.dtype.type(stop), aval.dtype.type(start))
        return np.where(values < stop, values, below).astype(aval.dtype)

    return io_callback(draw, ShapeDtypeStruct(shape, aval.dtype), *bounds)
