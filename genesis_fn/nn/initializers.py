"""Initial values of parameters: functions of (key, shape, dtype), as in `jax.nn.initializers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, dtypes, lax
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import canonical_axes, real_of
from genesis_fn.nn.module import wide_dtype

Axes = int | Sequence[int]
Shape = Sequence[int]


class Initializer(Protocol):
    """A function of (key, shape, dtype) that makes an array."""

    def __call__(self, key: Key, shape: Shape, dtype: DTypeLike | None = None) -> Array: ...


def _initializer(
    make: Callable[[Key, Shape, DTypeLike], Array], default: DTypeLike | None
) -> Initializer:
    """`make` with a default dtype, of which None is float32."""

    def init(key: Key, shape: Shape, dtype: DTypeLike | None = default) -> Array:
        return make(key, shape, float if dtype is None else dtype)

    return init


def zeros(key: Key, shape: Shape, dtype: DTypeLike | None = None) -> Array:
    """Zeros.

    Args:
        key: ignored.
        shape: of the array.
        dtype: of the array; None means float32.

    Returns:
        An array of `shape`.

    >>> nn.initializers.zeros(random.key(0), (2,))
    Array([0., 0.], dtype=float32)
    """
    return jnp.zeros(shape, dtype)


def ones(key: Key, shape: Shape, dtype: DTypeLike | None = None) -> Array:
    """Ones.

    Args:
        key: ignored.
        shape: of the array.
        dtype: of the array; None means float32.

    Returns:
        An array of `shape`.

    >>> nn.initializers.ones(random.key(0), (2,))
    Array([1., 1.], dtype=float32)
    """
    return jnp.ones(shape, dtype)


def constant(value: ArrayLike, dtype: DTypeLike | None = None) -> Initializer:
    """One value everywhere.

    Args:
        value: a number, or an array that broadcasts to the shape.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.constant(0.5)(random.key(0), (2,))
    Array([0.5, 0.5], dtype=float32)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        return jnp.full(shape, value, dtype)

    return _initializer(make, dtype)


def uniform(scale: ArrayLike = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """Uniform in [0, scale).

    Args:
        scale: the upper bound.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.uniform(0.1)(random.key(0), (2,))
    Array([0.03990464, 0.08805201], dtype=float32)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        return random.uniform(key, shape, dtype) * jnp.asarray(scale, dtype)

    return _initializer(make, dtype)


def normal(stddev: ArrayLike = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """Normal with mean 0.

    Args:
        stddev: standard deviation.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.normal(0.1)(random.key(0), (2,))
    Array([-0.0255816,  0.1177591], dtype=float32)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        return random.normal(key, shape, dtype) * jnp.asarray(stddev, dtype)

    return _initializer(make, dtype)


def truncated_normal(
    stddev: ArrayLike = 1e-2,
    dtype: DTypeLike | None = None,
    lower: float = -2.0,
    upper: float = 2.0,
) -> Initializer:
    """Normal with mean 0, conditioned on lower < x / stddev < upper.

    Args:
        stddev: standard deviation before the truncation.
        dtype: default dtype of the arrays; None means float32.
        lower, upper: bounds in units of `stddev`.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.truncated_normal(0.1)(random.key(0), (2,))
    Array([-0.0243937 ,  0.10948386], dtype=float32)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        return random.truncated_normal(key, lower, upper, shape, dtype) * jnp.asarray(stddev, dtype)

    return _initializer(make, dtype)


def _fans(shape: Shape, in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    """The numbers of (inputs, outputs) of a unit; axes of no role are its receptive field.

    An axis of two roles counts twice, as in JAX: the table of an embedding, whose axis 0 is both,
    has as many inputs as a row has elements.
    """
    ndim = len(shape)
    if ndim < 2 and (in_axis, out_axis) == (-2, -1):
        raise ArgumentError(
            f"variance scaling needs two dimensions or more, got shape {tuple(shape)}; or name "
            "in_axis and out_axis, () for none"
        )
    as_set = lambda a: set(canonical_axes(a, ndim, "variance_scaling"))
    size = lambda axes: math.prod(shape[a] for a in as_set(axes))
    inputs, outputs = size(in_axis), size(out_axis)
    roles = inputs * outputs * size(batch_axis)
    field = math.prod(shape) / roles if roles else 0.0
    return inputs * field, outputs * field


def _complex_disk(
    key: Key, shape: Shape, dtype: DTypeLike, modulus: Callable[[Array], Array]
) -> Array:
    """Complex numbers of a uniform angle and the modulus `modulus(u)`, u uniform in [0, 1)."""
    first, second = random.split(key)
    part = real_of(dtypes.dtype(dtype))
    size = modulus(random.uniform(first, shape, part))
    angle = random.uniform(second, shape, part) * (2 * math.pi)
    return lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


def _uniform_modulus(u: Array) -> Array:
    """The modulus of numbers uniform in a disk, with variance 1."""
    return jnp.sqrt(2 * u)


def _truncated_modulus(u: Array) -> Array:
    """The modulus of complex normal numbers of variance 1, conditioned on a modulus below 2."""
    return jnp.sqrt(-jnp.log1p(-(1 - math.exp(-4)) * u))


# (modulus, its samples' standard deviation) by distribution; truncation at 2 reduces the normal's.
_COMPLEX = {
    "uniform": (_uniform_modulus, 1.0),
    "truncated_normal": (_truncated_modulus, 0.95311164380491208),
}


def variance_scaling(
    scale: float | Array,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Random values of variance scale / n, with n a number of inputs or outputs of a unit.

    Args:
        scale: the numerator.
        mode: what n is: "fan_in", the number of inputs, "fan_out", of outputs, "fan_avg", the
            mean of both, or "fan_geo_avg", their geometric mean.
        distribution: "truncated_normal" (at two standard deviations), "normal" or "uniform".
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    Raises:
        ArgumentError: when init is called, for another mode or distribution, or a shape with fewer
            than two axes.

    >>> init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    >>> init(random.key(0), (64, 32)).shape
    (64, 32)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        fan_in, fan_out = _fans(shape, in_axis, out_axis, batch_axis)
        modes = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": (fan_in * fan_out) ** 0.5,
        }
        if mode not in modes:
            raise ArgumentError(f"mode is one of {sorted(modes)}, got {mode!r}")
        variance = scale / max(modes[mode], 1)
        stddev = jnp.sqrt(variance) if isinstance(variance, Array) else math.sqrt(variance)
        if distribution == "normal":
            return random.normal(key, shape, dtype) * jnp.asarray(stddev, dtype)
        if dtypes.is_complex(dtypes.dtype(dtype)) and distribution in _COMPLEX:
            modulus, spread = _COMPLEX[distribution]
            scaled = jnp.asarray(math.sqrt(variance) / spread, dtype)
            return _complex_disk(key, shape, dtype, modulus) * scaled
        if distribution == "uniform":
            limit = math.sqrt(3) * stddev
            return random.uniform(key, shape, dtype, -1) * jnp.asarray(limit, dtype)
        if distribution == "truncated_normal":
            # The standard deviation of a standard normal truncated at -2 and 2.
            stddev = stddev / 0.87962566103423978
            return random.truncated_normal(key, -2, 2, shape, dtype) * jnp.asarray(stddev, dtype)
        raise ArgumentError(f"unknown distribution {distribution!r}")

    return _initializer(make, dtype)


def glorot_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Uniform with variance 2 / (fan_in + fan_out), also called xavier_uniform.

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", 2010.

    Args:
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.glorot_uniform()(random.key(0), (64, 32)).shape
    (64, 32)
    """
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, batch_axis, dtype)


def glorot_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Truncated normal with variance 2 / (fan_in + fan_out), also called xavier_normal.

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", 2010.

    Args:
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.glorot_normal()(random.key(0), (64, 32)).shape
    (64, 32)
    """
    return variance_scaling(
        1.0, "fan_avg", "truncated_normal", in_axis, out_axis, batch_axis, dtype
    )


def lecun_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Uniform with variance 1 / fan_in.

    Source: LeCun, Bottou, Orr and Müller, "Efficient BackProp", 1998.

    Args:
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.lecun_uniform()(random.key(0), (64, 32)).shape
    (64, 32)
    """
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def lecun_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Truncated normal with variance 1 / fan_in.

    Source: LeCun, Bottou, Orr and Müller, "Efficient BackProp", 1998.

    Args:
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.lecun_normal()(random.key(0), (64, 32)).shape
    (64, 32)
    """
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


def he_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Uniform with variance 2 / fan_in, also called kaiming_uniform.

    Source: He, Zhang, Ren and Sun, "Delving Deep into Rectifiers", 2015.

    Args:
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.he_uniform()(random.key(0), (64, 32)).shape
    (64, 32)
    """
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def he_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Truncated normal with variance 2 / fan_in, also called kaiming_normal.

    Source: He, Zhang, Ren and Sun, "Delving Deep into Rectifiers", 2015.

    Args:
        in_axis, out_axis: axes of the inputs and outputs of a unit; for a weight [out, in] give
            in_axis=1, out_axis=0.
        batch_axis: axes that count in neither. All others are a receptive field.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    >>> nn.initializers.he_normal()(random.key(0), (64, 32)).shape
    (64, 32)
    """
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


def orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None
) -> Initializer:
    """A random matrix with orthonormal rows or columns (unitary if complex), times `scale`.

    Source: Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks", 2013.

    Args:
        scale: factor of the matrix.
        column_axis: the axis of columns; the others together are rows.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    Raises:
        ArgumentError: when init is called, for a shape with fewer than two axes.

    >>> nn.initializers.orthogonal()(random.key(0), (4, 4)).shape
    (4, 4)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        if len(shape) < 2:
            raise ArgumentError(
                f"orthogonal needs at least two dimensions, got shape {tuple(shape)}"
            )
        columns = shape[column_axis]
        rows = math.prod([s for i, s in enumerate(shape) if i != column_axis % len(shape)])
        n, m = max(rows, columns), min(rows, columns)
        q, r = jnp.linalg.qr(random.normal(key, (n, m), wide_dtype(dtypes.dtype(dtype))))
        q = q * jnp.sign(jnp.diagonal(r))[None, :]
        q = q.T if rows < columns else q
        rest = [s for i, s in enumerate(shape) if i != column_axis % len(shape)]
        q = jnp.moveaxis(jnp.reshape(q, (*rest, columns)), -1, column_axis)
        return jnp.astype(scale * q, dtype)

    return _initializer(make, dtype)


def delta_orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None
) -> Initializer:
    """A convolution kernel [*space, in, out], out >= in: orthogonal at its centre, zero elsewhere.

    Source: Xiao et al., "Dynamical Isometry and a Mean Field Theory of CNNs", 2018.

    Args:
        scale: factor of the matrix.
        column_axis: as in `orthogonal`.
        dtype: default dtype of the arrays; None means float32.

    Returns:
        A function init(key, shape, dtype=dtype) that makes an array.

    Raises:
        ArgumentError: when init is called, for a shape without 1 to 3 spatial axes, or with
            in > out.

    >>> nn.initializers.delta_orthogonal()(random.key(0), (3, 3, 4, 8)).shape
    (3, 3, 4, 8)
    """

    def make(key: Key, shape: Shape, dtype: DTypeLike) -> Array:
        if len(shape) not in (3, 4, 5) or shape[-1] < shape[-2]:
            raise ArgumentError(f"delta_orthogonal does not fit shape {tuple(shape)}")
        centre = orthogonal(scale, column_axis, dtype)(key, (shape[-1], shape[-1]))[: shape[-2]]
        middle = tuple([(k - 1) // 2 for k in shape[:-2]])
        return jnp.zeros(shape, dtype).at[middle].set(centre)

    return _initializer(make, dtype)
