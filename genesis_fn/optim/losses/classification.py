"""Cross-entropies of logits, and smoothed labels."""

from __future__ import annotations

import math

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import (
    as_array,
    canonical_axis,
    class_labels,
    cross_entropy_last,
    floats,
    log_softmax_last,
    logsumexp_last,
    wide,
)
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.losses.arguments import Axis, check_broadcast, masked, weighed


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
    check_broadcast("cross-entropy", logits=logits, where=where)
    return _rows(jnp.broadcast_to(where, logits.shape), axis)


@wide
def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """Cross-entropy of softmax(logits) with labels that are probabilities.

        -sum(labels * log_softmax(logits)) along `axis`, with 0 * -inf = 0

    The derivative by a label is -log(p), the largest float where the logit is -inf.

    Args:
        logits: floating array [..., classes]; -inf excludes a class.
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
    (logits,) = floats("softmax_cross_entropy", logits)
    labels = as_array(labels)
    check_broadcast("softmax_cross_entropy", logits=logits, labels=labels)
    x, y = jnp.broadcast_arrays(logits, labels)
    mask = None if where is None else _row_mask(where, x, axis)
    log_p = log_softmax_last(masked(_rows(x, axis), mask))
    if mask is not None:
        log_p = jnp.where(mask, log_p, 0.0)
    return -jnp.sum(weighed(_rows(y, axis), log_p), axis=-1)


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
    (logits,) = floats(name, logits)
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
    total = logsumexp_last(masked(rows, mask | ~some[..., None]))
    return jnp.where(some, total - at_label, 0.0)


@wide
def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """`softmax_cross_entropy` along the last axis. (In optax only this one is safe: a label of 0
    with a logit of -inf counts as 0, not NaN.)

        -sum(labels * log_softmax(logits)) along the last axis, with 0 * -inf = 0

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
    (logits,) = floats("safe_softmax_cross_entropy", logits)
    labels = as_array(labels)
    check_broadcast("safe_softmax_cross_entropy", logits=logits, labels=labels)
    return -jnp.sum(weighed(labels, log_softmax_last(logits)), axis=-1)


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
    (logits,) = floats("sigmoid_binary_cross_entropy", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    check_broadcast("sigmoid_binary_cross_entropy", logits=logits, labels=y)
    return -weighed(y, _log_sigmoid(logits)) - weighed(1.0 - y, _log_sigmoid(-logits))


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
    (logits,) = floats("sigmoid_focal_loss", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    check_broadcast("sigmoid_focal_loss", logits=logits, labels=y)
    entropy = sigmoid_binary_cross_entropy(logits, y)
    lowest = float(dtypes.finfo(logits.dtype).min)
    log_p, log_q = (jnp.maximum(_log_sigmoid(x), lowest) for x in (logits, -logits))
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
    logits, labels = floats("poly_loss_cross_entropy", logits, labels)
    check_broadcast("poly_loss_cross_entropy", logits=logits, labels=labels)
    x, y = jnp.broadcast_arrays(logits, labels)
    mask = None if where is None else _row_mask(where, x, axis)
    log_p = log_softmax_last(masked(_rows(x, axis), mask))
    miss = _rows(y, axis) * (1 - jnp.exp(log_p))
    miss = jnp.sum(miss, axis=-1, where=mask)
    return softmax_cross_entropy(x, y, axis, where) + epsilon * miss


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
    (labels,) = floats("smooth_labels", labels)
    classes = jnp.size(labels, axis) if where is None else jnp.sum(where, axis=axis, keepdims=True)
    return (1.0 - alpha) * labels + alpha / classes
