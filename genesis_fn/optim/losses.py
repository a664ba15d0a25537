"""Losses, one value per example, with optax's names and conventions.

Reduce them with `.mean()` or `.sum()`. `where` masks elements along the reduced axes. Under `amp`
each runs in float32 as a whole (`wide`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, PyTree, dtypes, vmap
from genesis_fn.errors import ArgumentError, DTypeError, ShapeError
from genesis_fn.extend import (
    as_array,
    canonical_axis,
    class_labels,
    cross_entropy_last,
    log_softmax_last,
    logsumexp_last,
    typeof,
    wide,
)
from genesis_fn.lax import scan, stop_gradient
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.tree_map_updates import I32

Axis = int | tuple[int, ...] | None


def _floats(name: str, *arrays: ArrayLike) -> list[Array]:
    """Converts the arguments to arrays. Raises DTypeError where one is not floating."""
    converted = [as_array(x) for x in arrays]
    for x in converted:
        if not dtypes.is_float(x.dtype):
            raise DTypeError(f"{name} takes floats, got {x.aval}")
    return converted


def _check_broadcast(name: str, **arguments: ArrayLike | None) -> None:
    """Raises ShapeError naming the arguments where their shapes do not broadcast."""
    shapes = {k: jnp.shape(x) for k, x in arguments.items() if x is not None}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        avals = ", ".join(f"{k} {typeof(as_array(arguments[k]))}" for k in shapes)
        first, *others = shapes
        raise ShapeError(
            f"{name}: the shapes of {avals} do not fit together\n"
            f"  give {' and '.join(others)} the shape of {first}, or one that broadcasts to it"
        ) from None


def _errors(name: str, predictions: ArrayLike, targets: ArrayLike | None) -> Array:
    (predictions,) = _floats(name, predictions)
    if targets is None:
        return predictions
    targets = as_array(targets)
    _check_same_shape(name, predictions=predictions, targets=targets)
    return predictions - targets


def _check_same_shape(name: str, **arguments: Array) -> None:
    """Raises ShapeError naming two arguments where their shapes differ."""
    (a, x), (b, y) = arguments.items()
    if x.shape != y.shape:
        raise ShapeError(
            f"{name}: {a} {typeof(x)} and {b} {typeof(y)} differ in shape\n"
            f"  reshape or index one of them: {b} of another shape would be broadcast to pairs"
        )


# ---- regression ----


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
    a, b = _floats("cosine_similarity", predictions, targets)
    _check_broadcast("cosine_similarity", predictions=a, targets=b, where=where)

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


# ---- classification ----


def _log_sigmoid(x: Array) -> Array:
    return -jnp.logaddexp(-x, 0.0)


def _rows(x: Array, axis: Axis) -> Array:
    """Returns `x` with `axis` last; several axes are merged into one."""
    if axis == -1 or axis == x.ndim - 1:
        return x
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    chosen = tuple(canonical_axis(a, x.ndim, "cross-entropy") for a in axes)
    others = tuple(a for a in range(x.ndim) if a not in chosen)
    moved = jnp.transpose(x, others + chosen)
    return moved.reshape([*moved.shape[: len(others)], -1])


def _row_mask(where: ArrayLike, logits: Array, axis: Axis) -> Array:
    """Returns the mask of `_rows(logits)`; a mask of fewer dimensions lacks `axis`."""
    where = as_array(where)
    if where.ndim != logits.ndim:
        where = jnp.expand_dims(where, axis)  # pyright: ignore[reportArgumentType]  refuses None
    _check_broadcast("cross-entropy", logits=logits, where=where)
    return _rows(jnp.broadcast_to(where, logits.shape), axis)


def _masked(logits: Array, where: Array | None) -> Array:
    """Returns the logits with -inf where they are masked out."""
    return logits if where is None else jnp.where(where, logits, -jnp.inf)


@wide
def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """Cross-entropy of softmax(logits) with labels that are probabilities.

        -sum(labels * log_softmax(logits)) along `axis`

    Args:
        logits: floating array [..., classes].
        labels: array that broadcasts to `logits`: probabilities, summing to 1 along `axis`.
        axis: the axis of the classes; several are taken as one, None is all of them.
        where: boolean array of the classes that count, of the shape of `logits`, or
            without `axis` for whole rows; None: all.

    Returns:
        The loss of each row, [...], in nats.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> logits, labels = jnp.array([[2.0, 0.0], [0.0, 0.0]]), jnp.array([1.0, 0.0])
    >>> optim.losses.softmax_cross_entropy(logits, labels).round(4)
    Array([0.1269, 0.6931], dtype=float32)
    """
    (logits,) = _floats("softmax_cross_entropy", logits)
    labels = as_array(labels)
    _check_broadcast("softmax_cross_entropy", logits=logits, labels=labels)
    x, y = jnp.broadcast_arrays(logits, labels)
    mask = None if where is None else _row_mask(where, x, axis)
    log_p = log_softmax_last(_masked(_rows(x, axis), mask))
    if mask is not None:
        log_p = jnp.where(mask, log_p, 0.0)
    return -jnp.sum(_rows(y, axis) * log_p, axis=-1)


@wide
def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int | tuple[int, ...] = -1,
    where: ArrayLike | None = None,
) -> Array:
    """Cross-entropy of softmax(logits) with labels that are class numbers, one fused operation.

        logsumexp(logits) - logits[label] along `axis`

    Args:
        logits: floating array [..., classes].
        labels: integer array [...], the class of each row: `logits.shape` without `axis`. With
            several axes a label numbers their elements in row-major order.
        axis: the axis of the classes, or several that are taken as one.
        where: boolean array of the classes that count, of the shape of `logits`, or
            without `axis` for whole rows; None: all.
            A label's own logit always counts; a row without any class has loss 0.

    Returns:
        The loss of each row, [...], in nats.

    Raises:
        DTypeError: `logits` are not floating, or `labels` not integers.
        ShapeError: the shapes do not fit together.
        IndexOutOfRange: a label is no class.

    >>> logits = jnp.array([[2.0, 0.0], [0.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy_with_integer_labels(logits, jnp.array([0, 1])).round(4)
    Array([0.1269, 0.6931], dtype=float32)
    """
    name = "softmax_cross_entropy_with_integer_labels"
    (logits,) = _floats(name, logits)
    classes: Array = class_labels(name, labels)
    if not isinstance(axis, (int, tuple)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"{name}: axis is an int or a tuple of ints, got {axis!r}")
    rows = _rows(logits, axis)
    if classes.shape != rows.shape[:-1]:
        raise ShapeError(
            f"{name}: logits {logits.aval} with classes along {axis} need labels of shape "
            f"{rows.shape[:-1]}, got {classes.aval}"
        )
    if where is None:
        return cross_entropy_last(rows, classes)
    mask = _row_mask(where, logits, axis)
    some = jnp.any(mask, axis=-1)
    # The label's own logit counts even where it is masked, and an empty row is 0.
    at_label = jnp.take_along_axis(rows, jnp.expand_dims(classes, -1), axis=-1)[..., 0]
    total = logsumexp_last(_masked(rows, mask | ~some[..., None]))
    return jnp.where(some, total - at_label, 0.0)


@wide
def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """`softmax_cross_entropy` in which a label of 0 with a logit of -inf counts as 0, not NaN.

        -sum(labels * log_softmax(logits)) along the last axis, with 0 * -inf = 0

    The derivative by a label is -log(p), the largest float where the logit is -inf.

    Args:
        logits: floating array [..., classes]; -inf excludes a class.
        labels: array that broadcasts to `logits`: probabilities, summing to 1 per row.

    Returns:
        The loss of each row, [...], in nats.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> logits, labels = jnp.array([2.0, 0.0, -jnp.inf]), jnp.array([1.0, 0.0, 0.0])
    >>> optim.losses.safe_softmax_cross_entropy(logits, labels).round(4)
    Array(0.1269, dtype=float32)
    """
    (logits,) = _floats("safe_softmax_cross_entropy", logits)
    labels = as_array(labels)
    _check_broadcast("safe_softmax_cross_entropy", logits=logits, labels=labels)
    log_p = log_softmax_last(logits)
    # Zero times a finite number is zero, and its derivative by the label is that number.
    lowest = float(dtypes.finfo(log_p.dtype).min)
    log_p = jnp.where(labels == 0.0, jnp.maximum(log_p, lowest), log_p)
    return -jnp.sum(labels * log_p, axis=-1)


@wide
def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Cross-entropy of binary decisions with probabilities sigmoid(logits), elementwise.

        -labels log(sigmoid(logits)) - (1 - labels) log(1 - sigmoid(logits))

    Args:
        logits: floating array [...].
        labels: array that broadcasts with `logits`, in [0, 1]: the probability of "true".

    Returns:
        The loss of each element, [...], in nats.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> optim.losses.sigmoid_binary_cross_entropy(jnp.array([2.0, 0.0]), jnp.array([1, 0])).round(4)
    Array([0.1269, 0.6931], dtype=float32)
    """
    (logits,) = _floats("sigmoid_binary_cross_entropy", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    _check_broadcast("sigmoid_binary_cross_entropy", logits=logits, labels=y)
    return -y * _log_sigmoid(logits) - (1.0 - y) * _log_sigmoid(-logits)


@wide
def sigmoid_focal_loss(
    logits: ArrayLike, labels: ArrayLike, *, alpha: Number | None = None, gamma: Number = 2.0
) -> Array:
    """Binary cross-entropy that gives well-classified examples less weight, elementwise.

        w (1 - p)**gamma * cross-entropy, with p the probability of the label and
        w = alpha for positive labels, 1 - alpha for negative ones, 1 without `alpha`

    Source: Lin et al., "Focal loss for dense object detection", 2017.

    Args:
        logits: floating array [...].
        labels: array that broadcasts with `logits`, in [0, 1]: the probability of "true".
        alpha: weight of positive examples, in [0, 1]; None weighs all alike.
        gamma: focusing exponent, >= 0; 0 is plain cross-entropy.

    Returns:
        The loss of each element, [...].

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> optim.losses.sigmoid_focal_loss(jnp.array([2.0, 0.0]), jnp.array([1, 1])).round(4)
    Array([0.0018, 0.1733], dtype=float32)
    """
    (logits,) = _floats("sigmoid_focal_loss", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    _check_broadcast("sigmoid_focal_loss", logits=logits, labels=y)
    log_p, log_q = _log_sigmoid(logits), _log_sigmoid(-logits)
    entropy = -y * log_p - (1.0 - y) * log_q
    # log((1 - y) p + y (1 - p)) from logarithms, exact where y is 0 or 1. There the term of weight
    # 0 may exceed `top`: it is kept finite, since 0 * inf is NaN, and for the label's derivative.
    top = jnp.where(y == 1, log_q, jnp.where(y == 0, log_p, jnp.maximum(log_p, log_q)))
    high = math.log(float(dtypes.finfo(logits.dtype).max)) / 2
    miss, hit = (jnp.exp(jnp.minimum(x - top, high)) for x in (log_p, log_q))
    log_miss = jnp.log((1 - y) * miss + y * hit) + top
    loss = entropy * jnp.exp(gamma * log_miss)
    if alpha is None:
        return loss
    return (alpha * y + (1.0 - alpha) * (1.0 - y)) * loss


@wide
def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array:
    """Hinge loss of a binary classifier: 0 beyond a margin of 1, elementwise.

        max(0, 1 - predictor_outputs * targets)

    Source: Cortes & Vapnik, "Support-vector networks", 1995.

    Args:
        predictor_outputs: real array [...], the scores of a binary classifier.
        targets: array that broadcasts with it: -1 or 1.

    Returns:
        The loss of each element, [...].

    Raises:
        ShapeError: the shapes do not fit together.

    >>> optim.losses.hinge_loss(jnp.array([2.0, 0.5, -1.0]), jnp.array([1, 1, 1]))
    Array([0. , 0.5, 2. ], dtype=float32)
    """
    outputs, targets = as_array(predictor_outputs), as_array(targets)
    _check_broadcast("hinge_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, 1 - outputs * targets)


@wide
def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array:
    """Perceptron loss of a binary classifier: 0 where the sign is right, elementwise.

        max(0, -predictor_outputs * targets)

    Source: Rosenblatt, "The perceptron: a probabilistic model for information storage", 1958.

    Args:
        predictor_outputs: real array [...], the scores of a binary classifier.
        targets: array of its shape: -1 or 1.

    Returns:
        The loss of each element, [...].

    Raises:
        ShapeError: the shapes differ.

    >>> optim.losses.perceptron_loss(jnp.array([2.0, 0.5, -1.0]), jnp.array([1, 1, 1]))
    Array([0., 0., 1.], dtype=float32)
    """
    outputs, targets = as_array(predictor_outputs), as_array(targets)
    _check_same_shape("perceptron_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, -outputs * targets)


def _one_hot(labels: ArrayLike, scores: Array, name: str = "") -> Array:
    """Returns ones at the labels along the last axis of `scores`, zeros for what is no class."""
    if name and jnp.shape(labels) != scores.shape[:-1]:
        raise ShapeError(
            f"{name}: scores {typeof(scores)} need labels of shape {scores.shape[:-1]}, one class "
            f"number per row, got {typeof(as_array(labels))}"
        )
    return (as_array(labels)[..., None] == jnp.arange(scores.shape[-1])).astype(scores.dtype)


@wide
def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """Hinge loss of class scores: 0 where the label's score leads all others by 1.

        max_k(scores[k] + [k != label]) - scores[label]

    Source: Crammer & Singer, "On the algorithmic implementation of multiclass kernel-based vector
    machines", 2001.

    Args:
        scores: floating array [..., classes].
        labels: integer array [...]: the class of each row.

    Returns:
        The loss of each row, [...].

    Raises:
        ShapeError: `labels` are not one class per row.

    >>> optim.losses.multiclass_hinge_loss(jnp.array([[2.0, 0.0], [1.0, 1.5]]), jnp.array([0, 0]))
    Array([0. , 1.5], dtype=float32)
    """
    scores = as_array(scores)
    hot = _one_hot(labels, scores, "multiclass_hinge_loss")
    return jnp.max(scores + 1.0 - hot, axis=-1) - jnp.sum(scores * hot, axis=-1)


@wide
def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """Perceptron loss of class scores: 0 where the label's score is the largest.

        max_k scores[k] - scores[label]

    Source: Collins, "Discriminative training methods for hidden Markov models", 2002.

    Args:
        scores: floating array [..., classes].
        labels: integer array [...]: the class of each row.

    Returns:
        The loss of each row, [...].

    Raises:
        ShapeError: `labels` are not one class per row.

    >>> scores, labels = jnp.array([[2.0, 0.0], [1.0, 1.5]]), jnp.array([0, 0])
    >>> optim.losses.multiclass_perceptron_loss(scores, labels)
    Array([0. , 0.5], dtype=float32)
    """
    scores = as_array(scores)
    hot = _one_hot(labels, scores, "multiclass_perceptron_loss")
    return jnp.max(scores, axis=-1) - jnp.sum(scores * hot, axis=-1)


@wide
def sparsemax_loss(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Binary sparsemax loss: 0 below -1, linear above 1, a parabola between, elementwise.

        0 where x <= -1, x where x >= 1, else (x + 1)**2 / 4,
        with x = -logits where labels are not 0, else logits

    Source: Martins & Astudillo, "From softmax to sparsemax", 2016.

    Args:
        logits: real array [...].
        labels: array that broadcasts with it: 0 for "false", anything else for "true".

    Returns:
        The loss of each element, [...].

    Raises:
        ShapeError: the shapes do not fit together.

    >>> optim.losses.sparsemax_loss(jnp.array([2.0, 0.0, -2.0]), jnp.array([1, 1, 1]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    logits, labels = as_array(logits), as_array(labels)
    _check_broadcast("sparsemax_loss", logits=logits, labels=labels)
    x = jnp.where(labels != 0, -logits, logits)
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


def _simplex(x: Array) -> Array:
    """Projects rows on the probability simplex, in Euclidean distance (Duchi et al. 2008)."""
    n = x.shape[-1]
    ordered = jnp.flip(jnp.sort(x, axis=-1), axis=-1)
    excess = (jnp.cumsum(ordered, axis=-1) - 1.0) / jnp.arange(1, n + 1).astype(x.dtype)
    count = jnp.sum(ordered > excess, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(excess, count - 1, axis=-1)
    return jnp.maximum(x - threshold, 0.0)


@wide
def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """Sparsemax loss of class scores: 0 where the label's score leads all others by 1.

        sum_k p_k (s_k - s_label) + (1 - |p|**2) / 2,
        with p the Euclidean projection of the scores s on the probability simplex

    Source: Martins & Astudillo, "From softmax to sparsemax", 2016.

    Args:
        scores: floating array [..., classes].
        labels: integer array [...]: the class of each row.

    Returns:
        The loss of each row, [...].

    Raises:
        DTypeError: `scores` are not floating.
        ShapeError: `labels` are not one class per row.

    >>> scores, labels = jnp.array([[2.0, 0.0], [0.0, 0.5]]), jnp.array([0, 0])
    >>> optim.losses.multiclass_sparsemax_loss(scores, labels)
    Array([0.    , 0.5625], dtype=float32)
    """
    (scores,) = _floats("multiclass_sparsemax_loss", scores)
    hot = _one_hot(labels, scores, "multiclass_sparsemax_loss")
    p = _simplex(scores)
    margin = (scores - jnp.sum(scores * hot, axis=-1, keepdims=True)) * (1 - hot)
    gain = jnp.sum(p * jnp.where(p != 0, margin, 0.0), axis=-1)
    return gain + 0.5 * (1.0 - jnp.sum(p * p, axis=-1))


@wide
def poly_loss_cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    epsilon: Number = 2.0,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> Array:
    """Softmax cross-entropy plus the first term of its expansion in 1 - p, weighed anew.

        softmax_cross_entropy(logits, labels) + epsilon * sum(labels * (1 - softmax(logits)))

    Source: Leng et al., "PolyLoss", 2022.

    Args:
        logits: floating array [..., classes].
        labels: floating array that broadcasts to it: probabilities, summing to 1 along `axis`.
        epsilon: weight of the added term; 0 is plain cross-entropy.
        axis: the axis of the classes; several are taken as one, None is all of them.
        where: boolean array of the classes that count, of the shape of `logits`, or
            without `axis` for whole rows; None: all.

    Returns:
        The loss of each row, [...].

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> logits, labels = jnp.array([[2.0, 0.0]]), jnp.array([[1.0, 0.0]])
    >>> optim.losses.poly_loss_cross_entropy(logits, labels).round(4)
    Array([0.3653], dtype=float32)
    """
    logits, labels = _floats("poly_loss_cross_entropy", logits, labels)
    _check_broadcast("poly_loss_cross_entropy", logits=logits, labels=labels)
    x, y = jnp.broadcast_arrays(logits, labels)
    mask = None if where is None else _row_mask(where, x, axis)
    log_p = log_softmax_last(_masked(_rows(x, axis), mask))
    miss = _rows(y, axis) * (1 - jnp.exp(log_p))
    miss = jnp.sum(miss, axis=-1, where=mask)
    return softmax_cross_entropy(x, y, axis, where) + epsilon * miss


@wide
def kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """Kullback-Leibler divergence of predicted log-probabilities from target probabilities.

        sum(targets * (log(targets) - log_predictions)) along `axis`; 0 where a target is 0

    Source: Kullback & Leibler, "On information and sufficiency", 1951. The derivative by a target
    that is 0 is the least float, for -inf.

    Args:
        log_predictions: floating array [..., classes] of log-probabilities.
        targets: floating array that broadcasts with it: probabilities.
        axis: axis or axes that are reduced; None is all of them.
        where: boolean array that broadcasts to the first argument: elements that count; None: all.

    Returns:
        The divergence, [...], in nats, without `axis`.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> optim.losses.kl_divergence(jnp.log(jnp.array([0.5, 0.5])), jnp.array([1.0, 0.0])).round(4)
    Array(0.6931, dtype=float32)
    """
    log_q, p = _floats("kl_divergence", log_predictions, targets)
    _check_broadcast("kl_divergence", log_predictions=log_q, targets=p, where=where)
    # 0 log(0) is 0, and the slope there the least float, as in `safe_softmax_cross_entropy`.
    lowest = float(dtypes.finfo(p.dtype).min)
    log_p = jnp.where(p == 0, lowest, jnp.log(jnp.where(p == 0, 1.0, p)))
    return jnp.sum(p * (log_p - log_q), axis=axis, where=where)


@wide
def kl_divergence_with_log_targets(
    log_predictions: ArrayLike,
    log_targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> Array:
    """Kullback-Leibler divergence where the targets are log-probabilities too.

        sum(exp(log_targets) * (log_targets - log_predictions)) along `axis`

    Args:
        log_predictions, log_targets: floating arrays [..., classes] of log-probabilities that
            broadcast to one shape.
        axis: axis or axes that are reduced; None is all of them.
        where: boolean array that broadcasts to the first argument: elements that count; None: all.

    Returns:
        The divergence, [...], in nats, without `axis`.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> log_p = jnp.log(jnp.array([0.25, 0.75]))
    >>> optim.losses.kl_divergence_with_log_targets(jnp.log(jnp.array([0.5, 0.5])), log_p).round(4)
    Array(0.1308, dtype=float32)
    """
    log_q, log_p = _floats("kl_divergence_with_log_targets", log_predictions, log_targets)
    _check_broadcast(
        "kl_divergence_with_log_targets", log_predictions=log_q, log_targets=log_p, where=where
    )
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=axis, where=where)


@wide
def generalized_kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """Kullback-Leibler divergence of measures that need not sum to 1; not negative, and convex.

        kl_divergence(log_predictions, targets) + sum(exp(log_predictions) - targets)

    Args:
        log_predictions: floating array [..., classes] of logarithms of positive numbers.
        targets: floating array that broadcasts with it, not negative.
        axis: axis or axes that are reduced; None is all of them.
        where: boolean array that broadcasts to the first argument: elements that count; None: all.

    Returns:
        The divergence, [...], without `axis`.

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> log_q, p = jnp.log(jnp.array([1.0, 2.0])), jnp.array([1.0, 1.0])
    >>> optim.losses.generalized_kl_divergence(log_q, p).round(4)
    Array(0.3069, dtype=float32)
    """
    log_q, p = _floats("generalized_kl_divergence", log_predictions, targets)
    _check_broadcast("generalized_kl_divergence", log_predictions=log_q, targets=p, where=where)
    excess = jnp.sum(jnp.exp(log_q) - p, axis=axis, where=where)
    return kl_divergence(log_q, p, axis, where) + excess


convex_kl_divergence = generalized_kl_divergence


def smooth_labels(
    labels: ArrayLike, alpha: Number, *, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """Mixes labels with the uniform distribution.

        (1 - alpha) * labels + alpha / number of classes

    Source: Szegedy et al., "Rethinking the Inception architecture", 2016.

    Args:
        labels: floating array [..., classes] of probabilities, as one-hot vectors.
        alpha: share of the uniform distribution, in [0, 1].
        axis: the axis of the classes; several are taken as one, None is all of them.
        where: boolean array that broadcasts to `labels`: classes that are counted; None: all.

    Returns:
        The smoothed labels, of the shape and dtype of `labels`.

    Raises:
        DTypeError: `labels` are not floating.

    >>> optim.losses.smooth_labels(jnp.array([[1.0, 0.0, 0.0, 0.0]]), 0.2)
    Array([[0.85, 0.05, 0.05, 0.05]], dtype=float32)
    """
    (labels,) = _floats("smooth_labels", labels)
    classes = jnp.size(labels, axis) if where is None else jnp.sum(where, axis=axis, keepdims=True)
    return (1.0 - alpha) * labels + alpha / classes


# ---- embeddings, rankings ----


@wide
def ntxent(embeddings: ArrayLike, labels: ArrayLike, temperature: Number = 0.07) -> Array:
    """Normalized temperature-scaled cross-entropy, a contrastive loss of labelled embeddings.

        mean over pairs (i, j) of one label, i != j, of
        -log(exp(s_ij) / (exp(s_ij) + sum over k of other labels of exp(s_ik))),
        s = cosine similarity / temperature

    Source: Chen et al., "A simple framework for contrastive learning", 2020.

    Args:
        embeddings: floating array [batch, features].
        labels: integer array [batch]; examples of one label are positive pairs.
        temperature: positive divisor of the similarities.

    Returns:
        The mean loss of the pairs, a scalar; NaN where no two labels are equal.

    Raises:
        DTypeError: `embeddings` are not floating.
        ShapeError: the shapes are not those above.

    >>> x = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> optim.losses.ntxent(x, jnp.array([0, 0, 1]), temperature=0.5).round(4)
    Array(0.1431, dtype=float32)
    """
    (embeddings,) = _floats("ntxent", embeddings)
    labels = as_array(labels)
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise ShapeError(
            f"ntxent: embeddings [batch, features] and labels [batch], got embeddings "
            f"{embeddings.aval} and labels {labels.aval}"
        )
    n = embeddings.shape[0]
    eps = float(dtypes.finfo(embeddings.dtype).eps)
    similar = cosine_similarity(embeddings[None, :, :], embeddings[:, None, :], epsilon=eps)
    logits = similar / temperature
    same = labels[:, None] == labels[None, :]
    pair = same & ~jnp.eye(n, dtype=bool)
    used = ~same | pair
    top = stop_gradient(jnp.max(jnp.where(used, logits, -jnp.inf), axis=1, keepdims=True))
    shifted = logits - jnp.where(jnp.isfinite(top), top, 0.0)
    others = jnp.sum(jnp.where(same, 0.0, jnp.exp(shifted)), axis=1, keepdims=True)
    log_p = shifted - jnp.log(jnp.where(pair, others + jnp.exp(shifted), 1.0))
    return -jnp.sum(jnp.where(pair, log_p, 0.0)) / jnp.sum(pair)


@wide
def triplet_margin_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike,
    axis: int = -1,
    norm_degree: Number = 2,
    margin: Number = 1.0,
    eps: Number = 1e-6,
) -> Array:
    """Triplet loss: anchors are to be nearer to positives than to negatives, by a margin.

        max(0, d(anchors, positives) - d(anchors, negatives) + margin),
        d(x, y) = (sum((x - y)**norm_degree) + eps)**(1 / norm_degree)

    Source: Schroff et al., "FaceNet: a unified embedding for face recognition", 2015.

    Args:
        anchors, positives, negatives: floating arrays [..., features] that broadcast to one shape.
        axis: axis of the features.
        norm_degree: degree of the distance, an even number.
        margin: least difference of the distances that costs nothing, in their unit.
        eps: added to the power sum, so that the root has a derivative at 0.

    Returns:
        The loss of each triplet, [...].

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> a, p, n = jnp.array([[0.0, 0.0]]), jnp.array([[0.0, 1.0]]), jnp.array([[1.5, 0.0]])
    >>> optim.losses.triplet_margin_loss(a, p, n).round(4)
    Array([0.5], dtype=float32)
    """
    a, p, n = _floats("triplet_margin_loss", anchors, positives, negatives)
    _check_broadcast("triplet_margin_loss", anchors=a, positives=p, negatives=n)

    def distance(x: Array) -> Array:
        return (jnp.sum((a - x) ** norm_degree, axis=axis) + eps) ** (1 / norm_degree)

    return jnp.maximum(distance(p) - distance(n) + margin, 0)


@wide
def ranking_softmax_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    reduce_fn: Callable[..., Array] | None = jnp.mean,
) -> Array:
    """Softmax cross-entropy of the scores of a list's items with their relevance.

        -sum(labels * log_softmax(logits)) along the last axis, then `reduce_fn` over lists

    Source: Cao et al., "Learning to rank: from pairwise approach to listwise approach", 2007.

    Args:
        logits: floating array [..., items], the scores.
        labels: array that broadcasts to it: relevance, not negative.
        where: boolean array [..., items]: items that count; a list without any has loss 0, and does
            not count in the mean. None: all.
        weights: array [..., items] that multiplies `labels`; None: ones.
        reduce_fn: function of the lists' losses, called with `where=` if there is a mask; None
            keeps them apart.

    Returns:
        The reduced loss, a scalar for `jnp.mean`; without `reduce_fn` one per list, [...].

    Raises:
        DTypeError: the first argument is not floating.
        ShapeError: the shapes do not fit together.

    >>> logits, labels = jnp.array([[2.0, 0.0, 1.0]]), jnp.array([[1.0, 0.0, 0.0]])
    >>> optim.losses.ranking_softmax_loss(logits, labels).round(4)
    Array(0.4076, dtype=float32)
    """
    (logits,) = _floats("ranking_softmax_loss", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    _check_broadcast("ranking_softmax_loss", logits=logits, labels=y, where=where, weights=weights)
    if weights is not None:
        y = y * weights
    some = None
    if where is None:
        log_p = log_softmax_last(logits)
    else:
        mask = jnp.broadcast_to(where, logits.shape)
        some = jnp.any(mask, axis=-1)
        log_p = log_softmax_last(_masked(logits, mask | ~some[..., None]))
        log_p, y = jnp.where(mask, log_p, 0.0), jnp.where(mask, y, 0.0)
    loss = -jnp.sum(y * log_p, axis=-1)
    if reduce_fn is None:
        return loss if some is None else jnp.where(some, loss, 0.0)
    if some is None:
        return reduce_fn(loss)
    if reduce_fn is jnp.mean:
        return jnp.sum(jnp.where(some, loss, 0.0)) / jnp.maximum(jnp.sum(some), 1)
    return reduce_fn(loss, where=some)


def make_fenchel_young_loss(max_fun: Callable[..., Array]) -> Callable[..., Array]:
    """Makes the Fenchel-Young loss of a convex function, whose gradient is its regularized argmax.

        max_fun(scores) - <targets, scores> along the last axis

    Source: Blondel et al., "Learning with Fenchel-Young losses", 2020.

    Args:
        max_fun: function of a vector of scores that gives a scalar, as logsumexp.

    Returns:
        The function (scores [..., n], targets [..., n], *args, **kwargs) -> losses [...], which
        hands `args` and `kwargs` to `max_fun`.

    >>> loss = optim.losses.make_fenchel_young_loss(nn.logsumexp)
    >>> loss(jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0])).round(4)
    Array(0.1269, dtype=float32)
    """

    def fenchel_young_loss(
        scores: ArrayLike, targets: ArrayLike, *args: Any, **kwargs: Any
    ) -> Array:
        scores, targets = as_array(scores), as_array(targets)
        _check_broadcast("fenchel_young_loss", scores=scores, targets=targets)

        def one(s: Array) -> Array:
            return max_fun(s, *args, **kwargs)

        batched = functools.reduce(lambda f, _: vmap(f), range(scores.ndim - 1), one)
        return batched(scores) - jnp.sum(targets * scores, axis=-1)

    return fenchel_young_loss


# ---- sequences ----


@wide
def ctc_loss_with_forward_probs(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> tuple[Array, Array, Array]:
    """`ctc_loss`, with the forward variables of its dynamic program.

    Alpha keeps blanks and labels apart: entry n of the blanks is the log-probability of having
    emitted n labels and then a blank, entry n of the labels that of having just emitted label n.

    Source: Graves et al., "Connectionist temporal classification", 2006, section 4.1.

    Args:
        logits: floating array [B, T, K] of class scores, blank included.
        logit_paddings: array [B, T]: 1.0 at padded frames, which are at the end, else 0.0.
        labels: integer array [B, N] of classes.
        label_paddings: array [B, N]: 1.0 at padded labels, which are at the end, else 0.0.
        blank_id: the class of the blank, in [0, K).
        log_epsilon: finite stand-in for log(0).

    Returns:
        (loss [B], log alpha of blanks [T, B, N + 1], log alpha of labels [T, B, N]).

    Raises:
        DTypeError: `logits` are not floating.
        ShapeError: the shapes are not those above.

    >>> logits, labels = jnp.zeros((1, 3, 2)), jnp.array([[1]])
    >>> loss, blanks, emitted = optim.losses.ctc_loss_with_forward_probs(
    ...     logits, jnp.zeros((1, 3)), labels, jnp.zeros((1, 1))
    ... )
    >>> loss.round(4), blanks.shape, emitted.shape
    (Array([0.2877], dtype=float32), (3, 1, 2), (3, 1, 1))
    """
    (logits,) = _floats("ctc_loss", logits)
    labels, label_paddings = as_array(labels), as_array(label_paddings)
    logit_paddings = as_array(logit_paddings)
    if logits.ndim != 3 or labels.ndim != 2 or labels.shape[0] != logits.shape[0]:
        raise ShapeError(
            f"ctc_loss: logits [B, T, K] and labels [B, N], got {logits.aval}, {labels.aval}"
        )
    if label_paddings.shape != labels.shape or logit_paddings.shape != logits.shape[:2]:
        raise ShapeError(
            f"ctc_loss: paddings {logit_paddings.aval} and {label_paddings.aval} do not fit "
            f"{logits.aval} and {labels.aval}"
        )
    batch, _, _ = logits.shape
    n = labels.shape[1]
    dtype = logits.dtype
    log_p = log_softmax_last(logits)
    of_blank = jnp.transpose(log_p[:, :, blank_id : blank_id + 1], (1, 0, 2))
    hot = _one_hot(labels, logits)
    of_label = jnp.transpose(jnp.einsum("btk,bnk->btn", log_p, hot), (1, 0, 2))
    same = (labels[:, :-1] == labels[:, 1:]).astype(dtype)
    repeat = jnp.concatenate([same, jnp.zeros((batch, 1), dtype)], axis=1)
    never = jnp.full((batch, n), log_epsilon, dtype=dtype)
    start = jnp.concatenate([jnp.zeros((batch, 1), dtype), never], axis=1)

    def add_arrivals(blank: Array, arriving: Array) -> Array:
        return jnp.concatenate([blank[:, :1], jnp.logaddexp(blank[:, 1:], arriving)], axis=-1)

    def step(carry: tuple[Array, ...], x: tuple[Array, ...]) -> tuple[PyTree, PyTree]:
        blank, label = carry
        p_label, p_blank, padded = x
        # A label equal to the one before needs a blank between.
        reached = add_arrivals(blank, label + log_epsilon * repeat)
        next_label = jnp.logaddexp(reached[:, :-1] + p_label, label + p_label)
        next_blank = add_arrivals(reached + p_blank, label + p_blank + log_epsilon * (1.0 - repeat))
        over = padded[:, None] > 0
        kept = (jnp.where(over, blank, next_blank), jnp.where(over, label, next_label))
        return kept, kept

    paddings = jnp.transpose(logit_paddings, (1, 0))
    (blank, label), (blanks, emitted) = scan(step, (start, never), (of_label, of_blank, paddings))
    final = add_arrivals(blank, label)
    lengths = n - jnp.sum(label_paddings, axis=1).astype(I32)
    ends = (lengths[:, None] == jnp.arange(n + 1)).astype(dtype)
    loss = -jnp.sum(final * ends, axis=1)
    return loss, jnp.concatenate([blanks[:-1], final[None]], axis=0), emitted


def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> Array:
    """Connectionist temporal classification: the loss of a sequence without its alignment.

        -log p(labels | logits), p the sum over all alignments of T frames to N labels, with blanks
        between equal ones

    Source: Graves et al., "Connectionist temporal classification", 2006.

    Args:
        logits: floating array [B, T, K] of class scores, blank included.
        logit_paddings: array [B, T]: 1.0 at padded frames, which are at the end, else 0.0.
        labels: integer array [B, N] of classes.
        label_paddings: array [B, N]: 1.0 at padded labels, which are at the end, else 0.0.
        blank_id: the class of the blank, in [0, K).
        log_epsilon: finite stand-in for log(0).

    Returns:
        The loss of each sequence, [B], in nats.

    Raises:
        DTypeError: `logits` are not floating.
        ShapeError: the shapes are not those above.

    >>> logits, labels = jnp.zeros((1, 3, 2)), jnp.array([[1]])
    >>> optim.losses.ctc_loss(logits, jnp.zeros((1, 3)), labels, jnp.zeros((1, 1))).round(4)
    Array([0.2877], dtype=float32)
    """
    return ctc_loss_with_forward_probs(
        logits, logit_paddings, labels, label_paddings, blank_id=blank_id, log_epsilon=log_epsilon
    )[0]
