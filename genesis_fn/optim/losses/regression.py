"""Losses of predicted values: errors, and cosines of vectors."""

from __future__ import annotations

import math

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.extend import as_array, check_same_shape, floats, wide
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.losses.arguments import Axis, check_broadcast


def _errors(name: str, predictions: ArrayLike, targets: ArrayLike | None) -> Array:
    (predictions,) = floats(name, predictions)
    if targets is None:
        return predictions
    targets = as_array(targets)
    check_same_shape(name, predictions=predictions, targets=targets)
    return predictions - targets


@wide
def squared_error(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """Squared error, elementwise.

        e**2 with e = predictions - targets

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`; None means zeros.

    Returns:
        The loss of each element, [...], in the dtype of `predictions`.

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> optim.losses.squared_error(jnp.array([0.5, 3.0]), jnp.array([0.0, 1.0]))
    Array([0.25, 4.  ], dtype=float32)
    """
    e = _errors("squared_error", predictions, targets)
    return e * e


@wide
def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """Half the squared error, elementwise: its derivative is the error.

        0.5 e**2 with e = predictions - targets

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`; None means zeros.

    Returns:
        The loss of each element, [...], in the dtype of `predictions`.

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> optim.losses.l2_loss(jnp.array([0.5, 3.0]), jnp.array([0.0, 1.0]))
    Array([0.125, 2.   ], dtype=float32)
    """
    return 0.5 * squared_error(predictions, targets)


@wide
def huber_loss(
    predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: Number = 1.0
) -> Array:
    """Huber's loss: quadratic for errors up to `delta`, linear beyond, elementwise.

        0.5 e**2 where |e| <= delta, else delta (|e| - 0.5 delta), with e = predictions - targets

    Source: Huber, "Robust estimation of a location parameter", 1964.

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`; None means zeros.
        delta: positive error at which the loss turns linear, in units of `predictions`.

    Returns:
        The loss of each element, [...], in the dtype of `predictions`.

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> optim.losses.huber_loss(jnp.array([0.5, 3.0]), jnp.zeros(2))
    Array([0.125, 2.5  ], dtype=float32)
    """
    e = jnp.abs(_errors("huber_loss", predictions, targets))
    near = jnp.minimum(e, delta)
    return 0.5 * near * near + delta * (e - near)


@wide
def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """Logarithm of the hyperbolic cosine of the error: about e**2 / 2 near 0, |e| - log 2 far away.

        log(cosh(e)) with e = predictions - targets, computed without overflow

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`; None means zeros.

    Returns:
        The loss of each element, [...], in the dtype of `predictions`.

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> optim.losses.log_cosh(jnp.array([0.5, 100.0]), jnp.zeros(2)).round(4)
    Array([ 0.1201, 99.3069], dtype=float32)
    """
    e = _errors("log_cosh", predictions, targets)
    return jnp.logaddexp(e, -e) - math.log(2.0)


@wide
def cosine_similarity(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: Number = 0.0,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> Array:
    """Cosine of the angle between vectors along `axis`.

        sum(a b) / sqrt(max(|a|**2, epsilon) max(|b|**2, epsilon))

    Args:
        predictions, targets: floating arrays [..., features] that broadcast to one shape.
        epsilon: least squared norm that is divided by, >= 0; 0 gives NaN for zero vectors.
        axis: axis or axes that are reduced; None is all of them.
        where: boolean array that broadcasts to the first argument: elements that count; None: all.

    Returns:
        The cosines in [-1, 1], [...], without `axis`.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> x = jnp.array([[1.0, 0.0], [1.0, 1.0]])
    >>> optim.losses.cosine_similarity(x, jnp.array([2.0, 0.0])).round(4)
    Array([1.    , 0.7071], dtype=float32)
    """
    a, b = floats("cosine_similarity", predictions, targets)
    check_broadcast("cosine_similarity", predictions=a, targets=b, where=where)

    def unit(x: Array) -> Array:
        square = jnp.sum(x * x, axis=axis, where=where, keepdims=True)
        return x / jnp.sqrt(jnp.maximum(square, epsilon))

    return jnp.sum(unit(a) * unit(b), axis=axis, where=where)


@wide
def cosine_distance(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: Number = 0.0,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> Array:
    """One minus the cosine of the angle between vectors along `axis`.

        1 - cosine_similarity(predictions, targets)

    Args:
        predictions, targets: floating arrays [..., features] that broadcast to one shape.
        epsilon: least squared norm that is divided by, >= 0; 0 gives NaN for zero vectors.
        axis: axis or axes that are reduced; None is all of them.
        where: boolean array that broadcasts to the first argument: elements that count; None: all.

    Returns:
        The distances in [0, 2], [...], without `axis`.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> optim.losses.cosine_distance(jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([2.0, 0.0]))
    Array([0., 1.], dtype=float32)
    """
    return 1.0 - cosine_similarity(predictions, targets, epsilon=epsilon, axis=axis, where=where)
