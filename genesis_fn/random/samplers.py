"""The common distributions: pure functions of (key, parameters, shape, dtype).

16-bit normal samples are computed in float32. Every sampler consumes its key (`keys.consume_one`),
so that using a key twice is noticed.
"""

from __future__ import annotations

import math

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, Key, ShapeLike
from genesis_fn.lax.creation import shape_of as lengths
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.random_bits import random_bits
from genesis_fn.primitives.shape import canonical_axis
from genesis_fn.random.keys import consume_one, impl_of, split, take_key


def dtype_or(dtype: DTypeLike | None, default: DType) -> DType:
    """`dtype`, or `default` if it is None."""
    return default if dtype is None else dtypes.dtype(dtype)


def float_dtype(dtype: DTypeLike | None, name: str) -> DType:
    """`dtype` of the sampler `name`, float32 for None; raises DTypeError if it is not floating."""
    dtype = dtype_or(dtype, dtypes.default_float())
    if not dtypes.is_float(dtype):
        raise errors.DTypeError(f"random.{name}: dtype must be floating, got {dtype.name}")
    return dtype


def as_float(x: ArrayLike) -> Array:
    """A parameter in its floating dtype, or in the default one."""
    x = as_array(x)
    return x if dtypes.is_float(x.dtype) else ops.convert(x, dtypes.default_float())


def shape_of(shape: ShapeLike | None, *parameters: ArrayLike) -> tuple[int, ...]:
    """The sample's shape: `shape`, or what the parameters broadcast to if it is None. Raises
    ValueError if the parameters do not broadcast to `shape`."""
    natural = np.broadcast_shapes(*[as_array(p).shape for p in parameters])
    if shape is None:
        return natural
    shape = lengths(shape)
    padded = (1,) * (len(shape) - len(natural)) + natural
    if len(padded) != len(shape) or any(m not in (1, n) for m, n in zip(padded, shape)):
        raise ValueError(f"parameters of shape {natural} do not broadcast to {shape}")
    return shape


def bits(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Uniform unsigned integers.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: unsigned integer dtype of 8, 16, 32 or 64 bits; uint32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not unsigned.

    >>> random.bits(random.key(0), (2,))
    Array([1713891541, 3781805453], dtype=uint32)
    """
    dtype = dtype_or(dtype, dtypes.default_uint())
    if not dtypes.is_unsigned(dtype):
        raise errors.DTypeError(f"random.bits: dtype must be unsigned, got {dtype.name}")
    k = consume_one(key, "bits")
    return random_bits(k, shape=lengths(shape), width=dtype.itemsize * 8, impl=impl_of(k))


def unit(k: Key, shape: ShapeLike, dtype: DType) -> Array:
    """Uniform in [0, 1) from the mantissa's bits; 16- and 8-bit floats by their own width."""
    if dtype.itemsize < 2:
        return ops.convert(unit(k, shape, dtypes.F16), dtype)
    mantissa = dtypes.finfo(dtype).nmant
    width = dtype.itemsize * 8 if mantissa >= 8 else 8  # bfloat16 needs seven bits, not sixteen
    words = random_bits(k, shape=lengths(shape), width=width, impl=impl_of(k))
    words = ops.convert(words, dtypes.dtype(f"uint{dtype.itemsize * 8}"))
    # Random mantissa under the exponent of 1: uniform in [1, 2).
    one = int(np.ones((), dtype).view(f"u{dtype.itemsize}"))
    raw = ops.bitwise_or(ops.shift_right_logical(words, width - mantissa), one)
    return ops.sub(ops.bitcast_convert_type(raw, dtype), 1.0)


def uniform(
    key: Key,
    shape: ShapeLike = (),
    dtype: DTypeLike | None = None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
) -> Array:
    """Uniform in [minval, maxval).

    Args:
        key: random key; the call uses it up.
        shape: of the result; () takes the shape that the bounds broadcast to.
        dtype: floating dtype; float32 by default.
        minval, maxval: bounds, numbers or arrays that broadcast to `shape`.

    Returns:
        An array of `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.uniform(random.key(0), (3,))
    Array([0.39904642, 0.8805201 , 0.73571277], dtype=float32)
    """
    dtype = float_dtype(dtype, "uniform")
    shape = shape_of(lengths(shape) or None, minval, maxval)
    u = unit(consume_one(key, "uniform"), shape, dtype)
    if type(minval) in (int, float) and type(maxval) in (int, float):
        if (minval, maxval) == (0, 1):
            return u
        span = dtype.type(maxval) - dtype.type(minval)  # rounded as the arrays would be
        low = float(minval)  # pyright: ignore[reportArgumentType]  # an int or a float
        return ops.max(ops.add(ops.mul(u, float(span)), low), low)
    low, high = (jnp.broadcast_to(as_array(v, dtype), shape) for v in (minval, maxval))
    low, high = ops.convert(low, dtype), ops.convert(high, dtype)
    return ops.max(ops.add(ops.mul(u, ops.sub(high, low)), low), low)


def normal(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Normal with mean 0 and variance 1.

    sqrt(2) erfinv(u) of a uniform u in (-1, 1); in float32 for 16-bit dtypes.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating or complex dtype; float32 by default. Complex samples have variance 1 too.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is neither floating nor complex.

    >>> random.normal(random.key(0), (3,))
    Array([-0.255816 ,  1.177591 ,  0.6301837], dtype=float32)
    """
    dtype = dtype_or(dtype, dtypes.default_float())
    if dtypes.is_complex(dtype):
        first, second = split(key)
        part = dtypes.real_of(dtype)
        pair = [ops.mul(normal(k, shape, part), math.sqrt(0.5)) for k in (first, second)]
        return ops.complex_(*pair)
    float_dtype(dtype, "normal")
    # 16-bit floats have too few bits in the tail; sample in float32.
    work = dtypes.F32 if dtype.itemsize < 4 else dtype
    low = float(np.nextafter(work.type(-1.0), work.type(0.0)))
    u = uniform(take_key(key, "normal"), shape_of(shape), work, low, 1.0)
    return ops.convert(ops.mul(ops.erf_inv(u), math.sqrt(2)), dtype)


def truncated_normal(
    key: Key,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Normal with mean 0 and variance 1, conditioned on lower < x < upper.

    Args:
        key: random key; the call uses it up.
        lower, upper: bounds, in standard deviations.
        shape: of the result; None takes what the bounds broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.truncated_normal(random.key(0), -1.0, 1.0, (3,))
    Array([-0.17362513,  0.7055857 ,  0.4149715 ], dtype=float32)
    """
    dtype = float_dtype(dtype, "truncated_normal")
    shape = shape_of(shape, lower, upper)
    work = dtypes.F32 if dtype.itemsize < 4 else dtype
    lower, upper = (ops.convert(as_array(v), work) for v in (lower, upper))
    root = math.sqrt(2)
    a, b = ops.erf(lower / root), ops.erf(upper / root)
    u = uniform(take_key(key, "truncated_normal"), shape, work, a, b)
    x = ops.erf_inv(u) * root
    # Rounding, to the result's dtype too, may step over the bounds.
    lower, upper = ops.convert(lower, dtype), ops.convert(upper, dtype)
    low = jnp.nextafter(lower, jnp.full_like(lower, np.inf))
    high = jnp.nextafter(upper, jnp.full_like(upper, -np.inf))
    return jnp.clip(ops.convert(x, dtype), low, high)


def _mode(mode: str, known: tuple[str, ...], name: str) -> str:
    if mode not in known:
        raise ValueError(f"random.{name}: mode {mode!r} is none of {', '.join(known)}")
    return mode


def bernoulli(
    key: Key, p: ArrayLike = 0.5, shape: ShapeLike | None = None, mode: str = "low"
) -> Array:
    """Booleans that are true with probability `p`.

    Args:
        key: random key; the call uses it up.
        p: probability, a number or an array.
        shape: of the result; None takes the shape of `p`.
        mode: "low" draws one uniform number, whose steps round small `p`; "high" two, of which the
            second refines the first.

    Returns:
        A boolean array.

    Raises:
        ValueError: `p` does not broadcast to `shape`, or the mode is another.

    >>> random.bernoulli(random.key(0), 0.5, (4,))
    Array([ True, False, False, False], dtype=bool)
    """
    p = as_float(p)
    shape = shape_of(shape, p)
    if _mode(mode, ("low", "high"), "bernoulli") == "low":
        return unit(consume_one(key, "bernoulli"), shape, p.dtype) < p
    first, second = jnp.unstack(unit(consume_one(key, "bernoulli"), (2, *shape), p.dtype))
    return second * 2.0 ** -dtypes.finfo(p.dtype).nmant < p - first


def randint(
    key: Key, shape: ShapeLike, minval: ArrayLike, maxval: ArrayLike, dtype: DTypeLike | None = None
) -> Array:
    """Uniform integers in [minval, maxval).

    A word twice as wide as the dtype (of 64 bits for 8- and 16-bit dtypes) modulo the span, in the
    dtype's own arithmetic: the bias is below 2**-32 for spans up to the root of the dtype's range.

    Args:
        key: random key; the call uses it up.
        shape: of the result; None takes what the bounds broadcast to.
        minval, maxval: bounds, integers or arrays; an empty range gives `minval`.
        dtype: integer dtype; int32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is no integer dtype.
        ValueError: the bounds do not broadcast to `shape`.

    >>> random.randint(random.key(0), (4,), 0, 10)
    Array([4, 6, 7, 9], dtype=int32)
    """
    dtype = dtype_or(dtype, dtypes.default_int())
    if not dtypes.is_integer(dtype):
        raise errors.DTypeError(f"random.randint: dtype must be an integer type, got {dtype.name}")
    shape = shape_of(shape, minval, maxval)
    info = dtypes.iinfo(dtype)
    bounds: tuple[int, int] | None = None  # where they are not arrays
    if isinstance(minval, int | np.integer) and isinstance(maxval, int | np.integer):
        bounds = minval, maxval = max(int(minval), info.min), min(int(maxval), info.max + 1)
    whole = bounds is not None and bounds[1] - bounds[0] > info.max - info.min
    if dtype.itemsize < 4 and not whole:
        return ops.convert(randint(key, shape, minval, maxval, jnp.int32), dtype)
    first, second = split(key)
    unsigned = dtypes.dtype(f"uint{dtype.itemsize * 8}")
    high, low = bits(first, shape, unsigned), bits(second, shape, unsigned)
    half = 2 ** (dtype.itemsize * 4)
    if bounds is not None:
        span = bounds[1] - bounds[0]
        if span <= 0:
            return jnp.full(shape, minval, dtype)
        offset = low
        if not whole:
            # (high * 2**bits + low) mod span, all in arithmetic of that width, as in JAX.
            factor = (half % span) ** 2 % half**2 % span
            offset = ops.add(ops.mul(ops.rem(high, span), factor), ops.rem(low, span))
            offset = ops.rem(offset, span)
        return ops.add(ops.convert(offset, dtype), minval)
    lo = jnp.broadcast_to(ops.convert(as_array(minval), dtype), shape)
    hi = jnp.broadcast_to(ops.convert(as_array(maxval), dtype), shape)
    span = ops.convert(ops.sub(hi, lo), unsigned)
    span = ops.select(ops.gt(hi, lo), span, 1)
    root = ops.rem(jnp.full(shape, half, unsigned), span)
    factor = ops.rem(ops.mul(root, root), span)
    offset = ops.rem(ops.add(ops.mul(ops.rem(high, span), factor), ops.rem(low, span)), span)
    return ops.add(lo, ops.convert(offset, dtype))


def gumbel(
    key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None, mode: str | None = None
) -> Array:
    """Standard Gumbel: -log(-log(u)) of a uniform u.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.
        mode: "low", the default, takes u with the steps of `dtype`, which bound the result to about
            16 in float32; "high" refines u next to 1 by a second draw, for large results, and
            "highest" at both ends, in float32 with 64 bits.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the mode is another.

    >>> random.gumbel(random.key(0), (3,))
    Array([0.08482014, 2.0616603 , 1.1811829 ], dtype=float32)
    """
    dtype = float_dtype(dtype, "gumbel")
    tiny = float(dtypes.finfo(dtype).tiny)
    mode = _mode("low" if mode is None else mode, ("low", "high", "highest"), "gumbel")
    key, shape = take_key(key, "gumbel"), shape_of(shape)
    if mode == "low":
        u = uniform(key, shape, dtype, tiny, 1.0)
        return ops.neg(ops.log(ops.neg(ops.log(u))))
    if mode == "highest" and dtype == dtypes.F32:
        return _gumbel_of_64_bits(key, shape)
    first, second = jnp.unstack(uniform(key, (2, *shape), dtype))
    rest = first + 2.0 ** -dtypes.finfo(dtype).nmant * second + tiny
    x = jnp.where(first >= 0.5, first, rest)  # 1 - u
    return -jnp.log(-jnp.log1p(-x))


def _gumbel_of_64_bits(key: Key, shape: tuple[int, ...]) -> Array:
    """From the distance of a number of 64 bits to the nearer end of (0, 1)."""
    high, low = jnp.unstack(bits(key, (2, *shape), "uint32"))
    lower = high < 2**31
    high, low = [jnp.where(lower, w, ~w).astype("float32") for w in (high, low)]
    x = high * 2.0**-32 + (low + 0.5) * 2.0**-64
    return jnp.where(lower, -jnp.log(-jnp.log1p(-x)), -jnp.log(-jnp.log(x)))


def categorical(
    key: Key,
    logits: ArrayLike,
    axis: int = -1,
    shape: ShapeLike | None = None,
    replace: bool = True,
    mode: str | None = None,
) -> Array:
    """Classes drawn with probabilities softmax(logits) along `axis`.

    The argmax of logits + Gumbel noise; without replacement the k largest of it.

    Args:
        key: random key; the call uses it up.
        logits: floating array of log probabilities, which need not be normalised.
        axis: the axis of the classes.
        shape: of the result; ends in what the shape of `logits` without `axis` broadcasts to; None
            means that shape.
        replace: whether the draws along the leading axes of `shape` may repeat a class.
        mode: of `gumbel`.

    Returns:
        int32 classes of `shape`.

    Raises:
        ValueError: the batch shape does not broadcast to the end of `shape`, or there are fewer
            classes than draws without replacement.

    >>> random.categorical(random.key(0), jnp.array([0.0, 5.0, 0.0]), shape=(4,))
    Array([1, 1, 1, 1], dtype=int32)
    """
    logits = as_float(logits)
    axis = canonical_axis(axis, logits.ndim, "random.categorical")
    batch = logits.shape[:axis] + logits.shape[axis + 1 :]
    shape = batch if shape is None else lengths(shape)
    extra = shape[: max(len(shape) - len(batch), 0)]
    each = shape[len(extra) :]
    if len(each) != len(batch) or any(m not in (1, n) for m, n in zip(batch, each)):
        raise ValueError(
            f"random.categorical: shape {shape} must end in what the batch shape {batch} "
            "broadcasts to"
        )
    logits = jnp.broadcast_to(logits, (*each[:axis], logits.shape[axis], *each[axis:]))
    if replace or not extra:
        noise = gumbel(key, (*extra, *logits.shape), logits.dtype, mode)
        return jnp.argmax(noise + logits, axis + len(extra))
    count = math.prod(extra)
    if count > logits.shape[axis]:
        raise ValueError(
            f"random.categorical: {count} draws without replacement from "
            f"{logits.shape[axis]} classes"
        )
    noisy = jnp.moveaxis(gumbel(key, logits.shape, logits.dtype, mode) + logits, axis, -1)
    from genesis_fn.primitives.sort import top_k

    _, index = top_k(noisy, count)
    return jnp.reshape(jnp.moveaxis(index, -1, 0), shape)


def permutation(key: Key, x: ArrayLike, axis: int = 0, independent: bool = False) -> Array:
    """A random permutation of range(x), or of the array `x` along `axis`.

    Args:
        key: random key; the call uses it up.
        x: an integer n, for range(n), or an array.
        axis: the axis that is permuted.
        independent: whether each slice along `axis` has a permutation of its own.

    Returns:
        The permuted array.

    Raises:
        TypeError: `x` is a number but no integer.

    >>> random.permutation(random.key(0), 5)
    Array([0, 1, 4, 3, 2], dtype=int32)
    """
    n = _count("permutation", x)
    values: Array = as_array(x) if n is None else jnp.arange(n)
    axis = canonical_axis(axis, values.ndim, "random.permutation")
    if independent or (values.ndim == 1 and not dtypes.is_key(values.dtype)):
        return _shuffle(key, values, axis)
    index = _shuffle(key, jnp.arange(values.shape[axis]), 0)
    return jnp.take(values, index, axis)


def _count(name: str, x: ArrayLike) -> int | None:
    """The integer that `x` is; None for an array with dimensions. Raises TypeError for others."""
    if isinstance(x, (int, np.integer)):
        return int(x)
    x = as_array(x)
    if x.ndim:
        return None
    if not dtypes.is_integer(x.dtype):
        raise TypeError(f"random.{name} takes an integer n or an array to draw from, got {x.aval}")
    return int(x)


def _shuffle(key: Key, x: Array, axis: int) -> Array:
    """Sort by random 32-bit words, repeatedly, until ties no longer bias the order."""
    from genesis_fn.primitives.sort import sort

    rounds = max(1, math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1)))
    k = key
    for _ in range(rounds):
        k, sub = split(k)
        _, x = sort([bits(sub, x.shape, jnp.uint32), x], dimension=axis)
    return x


def choice(
    key: Key,
    a: ArrayLike,
    shape: ShapeLike = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Draws from range(a), or from the array `a` along `axis`.

    Args:
        key: random key; the call uses it up.
        a: an integer n, for range(n), or an array.
        shape: of the draws.
        replace: whether an element may be drawn again.
        p: probabilities [n] of the elements; None means equal ones.
        axis: the axis of `a` that is drawn from.
        mode: ignored; there for the signature of `jax.random`.

    Returns:
        The drawn elements: `shape` takes the place of `axis`.

    Raises:
        ValueError: there are fewer elements than draws without replacement, or `p` is not [n].

    >>> random.choice(random.key(0), 10, (3,), replace=False)
    Array([6, 0, 1], dtype=int32)
    """
    n = _count("choice", a)
    arr = None
    if n is None:
        arr = as_array(a)
        n = arr.shape[canonical_axis(axis, arr.ndim, "random.choice")]
    shape = lengths(shape)
    draws = math.prod(shape)
    if n <= 0 and draws:
        raise ValueError("random.choice: there is nothing to draw from")
    if not replace and draws > n:
        raise ValueError(f"random.choice: {draws} draws without replacement from {n}")
    if p is not None:
        p = as_float(p)
        if p.shape != (n,):
            raise ValueError(f"random.choice: p has shape {p.shape}, expected {(n,)}")
    if p is None:
        if replace:
            index = randint(key, shape, 0, n)
        else:
            index = jnp.reshape(permutation(key, n)[:draws], shape)
    elif replace:
        total = jnp.cumsum(p)
        r = total[-1] * (1 - uniform(key, shape, total.dtype))
        index = jnp.astype(jnp.searchsorted(total, r), jnp.int32)
    else:
        noise = gumbel(key, (n,), p.dtype) + jnp.log(p)
        index = jnp.reshape(jnp.argsort(-noise)[:draws], shape)
    return index if arr is None else jnp.take(arr, index, axis)


def exponential(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Exponential with rate 1: -log(1 - u) of a uniform u.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.

    >>> random.exponential(random.key(0), (3,))
    Array([0.5092376, 2.124607 , 1.3307188], dtype=float32)
    """
    dtype = float_dtype(dtype, "exponential")
    u = uniform(take_key(key, "exponential"), shape_of(shape), dtype)
    return ops.neg(ops.log1p(ops.neg(u)))


def laplace(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Laplace with location 0 and scale 1.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.

    >>> random.laplace(random.key(0), (3,))
    Array([ 0.22553027, -1.4314603 , -0.6375717 ], dtype=float32)
    """
    dtype = float_dtype(dtype, "laplace")
    low = -1 + float(dtypes.finfo(dtype).epsneg)
    u = uniform(take_key(key, "laplace"), shape_of(shape), dtype, low, 1.0)
    return ops.mul(ops.sign(u), ops.log1p(ops.neg(ops.abs(u))))


def logistic(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Logistic with location 0 and scale 1: log(u / (1 - u)) of a uniform u.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.

    >>> random.logistic(random.key(0), (3,))
    Array([-0.40943992,  1.9973645 ,  1.0238032 ], dtype=float32)
    """
    dtype = float_dtype(dtype, "logistic")
    tiny = float(dtypes.finfo(dtype).tiny)
    u = uniform(take_key(key, "logistic"), shape_of(shape), dtype, tiny, 1.0)
    return ops.sub(ops.log(u), ops.log1p(ops.neg(u)))


def rademacher(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """-1 or 1 with equal probability.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: of the result; int32 by default.

    Returns:
        An array of `shape` and `dtype`.

    >>> random.rademacher(random.key(0), (4,))
    Array([ 1, -1, -1, -1], dtype=int32)
    """
    dtype = dtype_or(dtype, dtypes.default_int())
    sign = bernoulli(key, 0.5, shape_of(shape))
    return ops.sub(ops.mul(ops.convert(sign, dtype), 2), 1)
