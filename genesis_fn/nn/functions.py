"""Functions of `jax.nn`: activations, softmax and its relatives, one-hot."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, custom_jvp, dtypes, lax, primitives as ops
from genesis_fn.errors import ArgumentError, ConcretizationTypeError, ShapeError
from genesis_fn.extend import (
    as_array,
    as_one_call,
    canonical_axes,
    canonical_axis,
    inexact_value,
    integer_pow,
    log_softmax_last,
    logsumexp_last,
    promoted_with_number,
    select,
    softmax_last,
    strong,
)

Axis = int | Sequence[int] | None


def _float(x: ArrayLike) -> Array:
    """`x` as an array, integers in the default float type."""
    return inexact_value(as_array(x))


def identity(x: ArrayLike) -> Array:
    """`x` itself, as an array.

    Args:
        x: anything that becomes an array.

    Returns:
        `x` as an array.

    >>> nn.identity(3.0)
    Array(3., dtype=float32)
    """
    return as_array(x)


@custom_jvp
def _relu(x: Array) -> Array:
    return ops.max(x, 0)


@_relu.defjvp
def _relu_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # The derivative at 0 is 0, as in JAX and PyTorch, not the half that `max` gives at a tie.
    (x,), (t,) = primals, tangents
    return _relu(x), select(ops.gt(x, 0), t, 0)


def relu(x: ArrayLike) -> Array:
    """max(x, 0), with derivative 0 at 0.

    Args:
        x: array of any shape and real dtype.

    Returns:
        An array of the shape of `x`.

    >>> nn.relu(jnp.array([-2.0, 0.0, 3.0]))
    Array([0., 0., 3.], dtype=float32)
    """
    return _relu(promoted_with_number(x, 0))


@custom_jvp
def _relu6(x: Array) -> Array:
    return ops.min(ops.max(x, 0), 6)


@_relu6.defjvp
def _relu6_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    (x,), (t,) = primals, tangents
    inside = ops.bitwise_and(ops.gt(x, 0), ops.lt(x, 6))
    return _relu6(x), select(inside, t, 0)


def relu6(x: ArrayLike) -> Array:
    """min(max(x, 0), 6), with derivative 0 at both ends.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.relu6(jnp.array([-2.0, 3.0, 8.0]))
    Array([0., 3., 6.], dtype=float32)
    """
    return _relu6(promoted_with_number(x, 6.0))


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x)).

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.sigmoid(jnp.array([-2.0, 0.0, 3.0]))
    Array([0.11920292, 0.5       , 0.95257413], dtype=float32)
    """
    return ops.logistic(_float(x))


def silu(x: ArrayLike) -> Array:
    """x * sigmoid(x), also called swish.

    Source: Elfwing, Uchibe and Doya, "Sigmoid-Weighted Linear Units", 2018.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.silu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.23840584,  0.        ,  2.8577223 ], dtype=float32)
    """
    x = _float(x)
    return ops.mul(x, ops.logistic(x))


swish = silu


def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """x * P(N(0, 1) <= x): the Gaussian error linear unit.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    Args:
        x: array of any shape; integers become float32.
        approximate: compute 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) instead of the
            exact x * erfc(-x / sqrt(2)) / 2.

    Returns:
        An array of the shape of `x`.

    >>> nn.gelu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.04540229,  0.        ,  2.9963627 ], dtype=float32)
    """
    x = _float(x)
    if not approximate:
        return strong(ops.mul(ops.mul(x, 0.5), ops.erfc(ops.mul(x, -math.sqrt(0.5)))))
    inner = ops.mul(ops.add(x, ops.mul(integer_pow(x, 3), 0.044715)), math.sqrt(2 / math.pi))
    return strong(ops.mul(x, ops.mul(ops.add(ops.tanh(inner), 1.0), 0.5)))


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x)), without overflow.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.softplus(jnp.array([-2.0, 0.0, 3.0]))
    Array([0.12692802, 0.6931472 , 3.0485873 ], dtype=float32)
    """
    x = promoted_with_number(x, 0, inexact=True)
    positive = ops.gt(x, 0.0)
    tail = ops.log1p(ops.exp(select(positive, ops.neg(x), x)))
    return ops.add(select(positive, x, 0.0), tail)


def soft_sign(x: ArrayLike) -> Array:
    """x / (1 + |x|).

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.soft_sign(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.6666667,  0.       ,  0.75     ], dtype=float32)
    """
    x = _float(promoted_with_number(x, 1))
    return ops.div(x, ops.add(ops.abs(x), 1.0))


def log_sigmoid(x: ArrayLike) -> Array:
    """log(sigmoid(x)), without overflow.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.log_sigmoid(jnp.array([-2.0, 0.0, 3.0]))
    Array([-2.126928  , -0.6931472 , -0.04858735], dtype=float32)
    """
    return -softplus(-_float(x))


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Array:
    """x where x >= 0, else negative_slope * x.

    Args:
        x: array of any shape and real dtype.
        negative_slope: factor for negative elements; broadcasts to `x`.

    Returns:
        An array of the shape of `x`.

    >>> nn.leaky_relu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.02,  0.  ,  3.  ], dtype=float32)
    """
    x = as_array(x)
    return jnp.where(x >= 0, x, negative_slope * x)


def hard_sigmoid(x: ArrayLike) -> Array:
    """relu6(x + 3) / 6, a piecewise linear sigmoid.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.hard_sigmoid(jnp.array([-2.0, 0.0, 3.0]))
    Array([0.16666667, 0.5       , 1.        ], dtype=float32)
    """
    return relu6(jnp.add(x, 3.0)) / 6.0


def hard_silu(x: ArrayLike) -> Array:
    """x * hard_sigmoid(x), also called hard_swish.

    Source: Howard et al., "Searching for MobileNetV3", 2019.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.hard_silu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.33333334,  0.        ,  3.        ], dtype=float32)
    """
    x = as_array(x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu


def hard_tanh(x: ArrayLike) -> Array:
    """`x` clipped to [-1, 1].

    Args:
        x: array of any shape and real dtype.

    Returns:
        An array of the shape of `x`.

    >>> nn.hard_tanh(jnp.array([-2.0, 0.0, 3.0]))
    Array([-1.,  0.,  1.], dtype=float32)
    """
    x = as_array(x)
    low = x if x.dtype.kind == "u" else jnp.where(x < -1, -1, x)
    return jnp.where(x > 1, 1, low)


def tanh(x: ArrayLike) -> Array:
    """The hyperbolic tangent.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.tanh(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.9640276,  0.       ,  0.9950548], dtype=float32)
    """
    return ops.tanh(_float(x))


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """x where x > 0, else alpha * (exp(x) - 1).

    Source: Clevert, Unterthiner and Hochreiter, "Fast and Accurate Deep Network Learning by
    Exponential Linear Units", 2015.

    Args:
        x: array of any shape; integers become float32.
        alpha: minus the limit for x towards -inf; broadcasts to `x`.

    Returns:
        An array of the shape of `x`.

    >>> nn.elu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.86466473,  0.        ,  3.        ], dtype=float32)
    """
    x = as_array(x)
    below = jnp.where(x > 0, 0.0, x)  # keeps exp from overflowing where it is not used
    return jnp.where(x > 0, x, alpha * jnp.expm1(below))


def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0).

    Source: Barron, "Continuously Differentiable Exponential Linear Units", 2017.

    Args:
        x: array of any shape; integers become float32.
        alpha: minus the limit for x towards -inf; broadcasts to `x`.

    Returns:
        An array of the shape of `x`.

    >>> nn.celu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.86466473,  0.        ,  3.        ], dtype=float32)
    """
    x = as_array(x)
    below = jnp.where(x > 0, 0.0, x)
    return jnp.where(x > 0, x, alpha * jnp.expm1(below / alpha))


def selu(x: ArrayLike) -> Array:
    """1.0507 * elu(x, 1.6733): activations keep mean 0 and variance 1.

    Source: Klambauer et al., "Self-Normalizing Neural Networks", 2017.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.selu(jnp.array([-2.0, 0.0, 3.0]))
    Array([-1.5201665,  0.       ,  3.152103 ], dtype=float32)
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """The gated linear unit: a * sigmoid(b), with a and b the halves of `x` along `axis`.

    Source: Dauphin et al., "Language Modeling with Gated Convolutional Networks", 2016.

    Args:
        x: array with an even length along `axis`; integers become float32.
        axis: the axis that is halved.

    Returns:
        An array of half the length along `axis`.

    >>> nn.glu(jnp.array([1.0, 2.0, 0.0, 10.0]))
    Array([0.5      , 1.9999092], dtype=float32)
    """
    a, b = jnp.split(_float(x), 2, axis)
    return a * sigmoid(b)


def scaled_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    lhs_scales: ArrayLike,
    rhs_scales: ArrayLike,
    preferred_element_type: DTypeLike = jnp.float32,
) -> Array:
    """The products of rows of block-scaled matrices: lhs @ rhs.T, each block times its scale.

    Args:
        lhs: array [batch, m, k].
        rhs: array [batch, n, k].
        lhs_scales: array [batch, m, blocks]: one scale for k / blocks elements of a row.
        rhs_scales: array [batch, n, blocks], of as many or other blocks.
        preferred_element_type: dtype of the result; products are summed in float32, or in float64
            for it.

    Returns:
        An array [batch, m, n].

    Raises:
        ShapeError: the shapes do not fit one another.

    >>> scales = jnp.array([[[0.5, 2.0]]])
    >>> nn.scaled_matmul(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 4)), scales, jnp.ones((1, 1, 1)))
    Array([[[5.]]], dtype=float32)
    """
    operands = {"lhs": lhs, "rhs": rhs, "lhs_scales": lhs_scales, "rhs_scales": rhs_scales}
    x, y, a, b = arrays = [jnp.asarray(v) for v in operands.values()]
    for name, v in zip(operands, arrays):
        if v.ndim != 3:
            raise ShapeError(f"scaled_matmul: {name} is {v.aval}, but has to have 3 axes")
    if (x.shape[0], x.shape[2]) != (y.shape[0], y.shape[2]):
        raise ShapeError(
            f"scaled_matmul: lhs {x.aval} and rhs {y.aval} differ in batch or in the last axis"
        )
    return lax.scaled_dot(
        x,
        y,
        lhs_scale=a,
        rhs_scale=b,
        dimension_numbers=(((2,), (2,)), ((0,), (0,))),
        preferred_element_type=preferred_element_type,
    )


def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """(x + sqrt(x**2 + b)) / 2, a smooth `relu`.

    Args:
        x: array of any shape; integers become float32.
        b: smoothness, not negative; 0 gives `relu`. Broadcasts to `x`.

    Returns:
        An array of the shape of `x`.

    >>> nn.squareplus(jnp.array([-2.0, 0.0, 3.0]))
    Array([0.41421354, 1.        , 3.3027756 ], dtype=float32)
    """
    x = _float(x)
    return (x + jnp.sqrt(x * x + b)) / 2


def mish(x: ArrayLike) -> Array:
    """x * tanh(softplus(x)).

    Source: Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.mish(jnp.array([-2.0, 0.0, 3.0]))
    Array([-0.2525015,  0.       ,  2.986535 ], dtype=float32)
    """
    x = as_array(x)
    return x * tanh(softplus(x))


def sparse_plus(x: ArrayLike) -> Array:
    """0 for x <= -1, x for x >= 1, (x + 1)**2 / 4 between.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.sparse_plus(jnp.array([-2.0, 0.0, 3.0]))
    Array([0.  , 0.25, 3.  ], dtype=float32)
    """
    x = _float(x)
    return jnp.where(x <= -1, 0.0, jnp.where(x >= 1, x, (x + 1) ** 2 / 4))


def sparse_sigmoid(x: ArrayLike) -> Array:
    """0 for x <= -1, 1 for x >= 1, (x + 1) / 2 between: the derivative of `sparse_plus`.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.sparse_sigmoid(jnp.array([-2.0, 0.0, 3.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return 0.5 * jnp.clip(_float(x) + 1, 0.0, 2.0)


# ---- softmax and its relatives ----


def _over_last(
    name: str, f: Callable[[Array], Array], x: ArrayLike, axis: Axis, keep_axis: bool
) -> Array:
    """Apply `f`, which works over the last axis, over `axis`; several axes count as one."""
    x = _float(x)
    ndim = x.ndim
    axes = range(ndim) if axis is None else canonical_axes(axis, ndim, name)
    axes = tuple(sorted(axes))
    if axes == (ndim - 1,):
        return f(x)
    rest = tuple([i for i in range(ndim) if i not in axes])
    moved = jnp.transpose(x, (*rest, *axes))
    lead, joined = moved.shape[: len(rest)], moved.shape[len(rest) :]
    y = f(jnp.reshape(moved, (*lead, math.prod(joined))))
    if not keep_axis:
        return y
    order = sorted(range(ndim), key=(*rest, *axes).__getitem__)
    return jnp.transpose(jnp.reshape(y, moved.shape), order)


def softmax(
    x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None, initial: ArrayLike = -jnp.inf
) -> Array:
    """exp(x) / sum(exp(x)) over `axis`.

    Args:
        x: array of any shape; integers become float32.
        axis: axis or axes that are normalised together; None means all.
        where: booleans that broadcast to `x`: elements that take part; None means all.
        initial: ignored; there for the signature of `jax.nn`.

    Returns:
        An array of the shape of `x`; 0 where `where` is false.

    >>> nn.softmax(jnp.array([1.0, 2.0, 3.0]))
    Array([0.09003057, 0.24472848, 0.66524094], dtype=float32)
    """
    if where is not None:
        x = jnp.where(where, _float(x), -jnp.inf)
    y = _over_last("softmax", softmax_last, x, axis, True)
    return y if where is None else jnp.where(where, y, 0.0)


def log_softmax(
    x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None, initial: ArrayLike = -jnp.inf
) -> Array:
    """x - logsumexp(x) over `axis`.

    Args:
        x: array of any shape; integers become float32.
        axis: axis or axes that are normalised together; None means all.
        where: booleans that broadcast to `x`: elements that take part; None means all.
        initial: ignored; there for the signature of `jax.nn`.

    Returns:
        An array of the shape of `x`; -inf where `where` is false.

    >>> nn.log_softmax(jnp.array([1.0, 2.0, 3.0]))
    Array([-2.407606  , -1.4076059 , -0.40760595], dtype=float32)
    """
    if where is not None:
        x = jnp.where(where, _float(x), -jnp.inf)
    y = _over_last("log_softmax", log_softmax_last, x, axis, True)
    return y if where is None else jnp.where(where, y, -jnp.inf)


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    return_sign: Literal[True],
    where: ArrayLike | None = None,
) -> tuple[Array, Array]: ...
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Array | tuple[Array, Array]:
    """log(sum(b * exp(a))) over `axis`, without overflow.

    Args:
        a: array of any shape; integers become float32.
        axis: axis or axes to reduce; None means all.
        b: weights that broadcast to `a`; None means ones.
        keepdims: keep the reduced axes with length 1.
        return_sign: also return the sign of the sum, which may then be negative.
        where: booleans that broadcast to `a`: elements that take part; None means all.

    Returns:
        The reduced array; with `return_sign` (log of the absolute value, sign).

    >>> nn.logsumexp(jnp.array([1000.0, 1000.0]))
    Array(1000.6932, dtype=float32)
    """
    x, weight = _float(a), None
    if b is not None:
        x, weight = jnp.broadcast_arrays(x, as_array(b))
        where = (weight != 0) if where is None else (weight != 0) & where
    if where is not None:
        x: Array = jnp.where(where, x, -jnp.inf)
    axes = tuple(range(x.ndim)) if axis is None else axis
    if weight is None and not dtypes.is_complex(x.dtype):
        y = _over_last("logsumexp", logsumexp_last, x, axes, False)
        sign = jnp.ones_like(y)
        if keepdims:
            y, sign = jnp.expand_dims(y, axes), jnp.expand_dims(sign, axes)
        return (y, sign) if return_sign else y
    # Of complex numbers the logarithm is the principal one: only real parts are shifted.
    top = ops.stop_gradient(jnp.max(jnp.real(x), axes, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    terms = jnp.exp(x - top)
    s = jnp.sum(terms if weight is None else weight * terms, axes, keepdims=True)
    sign = jnp.sign(s)
    y = jnp.log(jnp.abs(s) if return_sign else s) + top
    if not keepdims:
        y, sign = jnp.squeeze(y, axes), jnp.squeeze(sign, axes)
    return (y, sign) if return_sign else y


def logmeanexp(
    x: ArrayLike, axis: Axis = None, where: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """log(mean(exp(x))) over `axis`, without overflow.

    Args:
        x: array of any shape; integers become float32.
        axis: axis or axes to reduce; None means all.
        where: booleans that broadcast to `x`: elements that take part; None means all.
        keepdims: keep the reduced axes with length 1.

    Returns:
        The reduced array.

    >>> nn.logmeanexp(jnp.array([1000.0, 1000.0]))
    Array(1000., dtype=float32)
    """
    x = _float(x)
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    count = jnp.sum(jnp.ones_like(x), axis, where=where, keepdims=keepdims)
    return total - jnp.log(count)


@custom_jvp
def _log1mexp(x: Array) -> Array:
    near = x < math.log(2)
    return jnp.where(near, jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-jnp.where(near, 1.0, x))))


@_log1mexp.defjvp
def _log1mexp_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    (x,), (t,) = primals, tangents
    return _log1mexp(x), t / jnp.expm1(x)


def log1mexp(x: ArrayLike) -> Array:
    """log(1 - exp(-x)) for x > 0, accurate for small and large x.

    Source: Maechler, "Accurately computing log(1 - exp(-|a|))", 2012.

    Args:
        x: array of any shape; integers become float32.

    Returns:
        An array of the shape of `x`.

    >>> nn.log1mexp(jnp.array([1e-3, 1.0]))
    Array([-6.908255  , -0.45867515], dtype=float32)
    """
    return _log1mexp(_float(x))


def standardize(
    x: ArrayLike,
    axis: Axis = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
    where: ArrayLike | None = None,
    *,
    algorithm: Literal["fast", "stable"] = "fast",
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over `axis`.

    Args:
        x: array of any shape; integers become float32.
        axis: axis or axes whose mean and variance are taken; None means all.
        mean, variance: arrays that broadcast to `x`; None computes them from `x`.
        epsilon: added to the variance.
        where: booleans that broadcast to `x`: elements that count in the mean and the variance.
        algorithm: "fast" takes the variance as the mean square minus the squared mean, which loses
            the digits that both share, "stable" as the mean square of `x - mean`.

    Returns:
        An array of the shape of `x`.

    Raises:
        ArgumentError: `algorithm` is another.

    >>> nn.standardize(jnp.array([1.0, 2.0, 3.0]))
    Array([-1.2247359,  0.       ,  1.2247359], dtype=float32)
    """
    x = _float(x)
    centre = jnp.mean(x, axis, keepdims=True, where=where) if mean is None else mean
    if algorithm not in ("fast", "stable"):
        raise ArgumentError(f'standardize: algorithm is "fast" or "stable", not {algorithm!r}')
    if variance is None and algorithm == "stable":
        variance = jnp.mean(jnp.square(x - centre), axis, keepdims=True, where=where)
    elif variance is None:
        variance = jnp.mean(jnp.square(x), axis, keepdims=True, where=where) - jnp.square(centre)
        variance = jnp.maximum(variance, 0)  # rounding may leave less
    return strong((x - centre) * ops.rsqrt(jnp.add(variance, epsilon)))


@as_one_call
def one_hot(
    x: ArrayLike, num_classes: int, *, dtype: DTypeLike | None = None, axis: int = -1
) -> Array:
    """1 at the class along a new axis, 0 elsewhere.

    Args:
        x: integer classes [...]; one outside 0 ... num_classes - 1 gives zeros.
        num_classes: length of the new axis.
        dtype: of the result; float32 by default.
        axis: position of the new axis in the result.

    Returns:
        An array [..., num_classes] (for axis=-1).

    Raises:
        ArgumentError: `num_classes` is no integer, or negative.

    >>> nn.one_hot(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    try:
        num_classes = operator.index(num_classes)
    except TypeError as error:
        if isinstance(error, ConcretizationTypeError):
            raise
        raise ArgumentError(
            f"one_hot: num_classes is {num_classes!r:.60}, but is a count, an integer"
        ) from None
    if num_classes < 0:
        raise ArgumentError(f"one_hot: num_classes is {num_classes}, but is a count, not negative")
    classes: Array = jnp.asarray(x)
    axis = canonical_axis(axis, classes.ndim + 1, "one_hot")
    shape = [1] * (classes.ndim + 1)
    shape[axis] = num_classes
    numbers = jnp.reshape(jnp.arange(num_classes, dtype=classes.dtype), shape)
    hot = jnp.expand_dims(classes, axis) == numbers
    return jnp.astype(hot, float if dtype is None else dtype)
