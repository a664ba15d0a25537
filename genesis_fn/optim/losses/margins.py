"""Losses of scores that are 0 beyond a margin: hinge, perceptron and sparsemax."""

from __future__ import annotations

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.extend import as_array, check_same_shape, floats, wide
from genesis_fn.optim.losses.arguments import check_broadcast, hot_rows


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
    check_broadcast("hinge_loss", predictor_outputs=outputs, targets=targets)
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
    check_same_shape("perceptron_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, -outputs * targets)


def _at_label(scores: Array, is_label: Array) -> Array:
    return jnp.sum(jnp.where(is_label, scores, 0), axis=-1)


@wide
def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """Hinge loss of class scores: 0 where the label's score leads all others by 1.

        max_k(scores[k] + [k != label]) - scores[label]

    Source: Crammer & Singer, "On the algorithmic implementation of multiclass kernel-based vector
    machines", 2001.

    Args:
        scores: floating array [..., classes]; -inf excludes a class.
        labels: integer array [...]: the class of each row.

    Returns:
        The loss of each row, [...].

    Raises:
        DTypeError: `labels` are not integers.
        ShapeError: `labels` are not one class per row.
        IndexOutOfRange: a label is no class.

    >>> optim.losses.multiclass_hinge_loss(jnp.array([[2.0, 0.0], [1.0, 1.5]]), jnp.array([0, 0]))
    Array([0. , 1.5], dtype=float32)
    """
    scores = as_array(scores)
    is_label = hot_rows("multiclass_hinge_loss", labels, scores)
    lead = jnp.where(is_label, scores, scores + 1.0)
    return jnp.max(lead, axis=-1) - _at_label(scores, is_label)


@wide
def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """Perceptron loss of class scores: 0 where the label's score is the largest.

        max_k scores[k] - scores[label]

    Source: Collins, "Discriminative training methods for hidden Markov models", 2002.

    Args:
        scores: floating array [..., classes]; -inf excludes a class.
        labels: integer array [...]: the class of each row.

    Returns:
        The loss of each row, [...].

    Raises:
        DTypeError: `labels` are not integers.
        ShapeError: `labels` are not one class per row.
        IndexOutOfRange: a label is no class.

    >>> scores, labels = jnp.array([[2.0, 0.0], [1.0, 1.5]]), jnp.array([0, 0])
    >>> optim.losses.multiclass_perceptron_loss(scores, labels)
    Array([0. , 0.5], dtype=float32)
    """
    scores = as_array(scores)
    is_label = hot_rows("multiclass_perceptron_loss", labels, scores)
    return jnp.max(scores, axis=-1) - _at_label(scores, is_label)


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
    check_broadcast("sparsemax_loss", logits=logits, labels=labels)
    x = jnp.where(labels != 0, -logits, logits)
    bend = jnp.clip(x, -1.0, 1.0)  # the parabola is finite where it is not used
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (bend + 1.0) ** 2 / 4))


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
        scores: floating array [..., classes]; -inf excludes a class.
        labels: integer array [...]: the class of each row.

    Returns:
        The loss of each row, [...].

    Raises:
        DTypeError: `scores` are not floating, or `labels` not integers.
        ShapeError: `labels` are not one class per row.
        IndexOutOfRange: a label is no class.

    >>> scores, labels = jnp.array([[2.0, 0.0], [0.0, 0.5]]), jnp.array([0, 0])
    >>> optim.losses.multiclass_sparsemax_loss(scores, labels)
    Array([0.    , 0.5625], dtype=float32)
    """
    (scores,) = floats("multiclass_sparsemax_loss", scores)
    is_label = hot_rows("multiclass_sparsemax_loss", labels, scores)
    p = _simplex(scores)
    margin = jnp.where(is_label, 0.0, scores - _at_label(scores, is_label)[..., None])
    gain = jnp.sum(p * jnp.where(p != 0, margin, 0.0), axis=-1)
    return gain + 0.5 * (1.0 - jnp.sum(p * p, axis=-1))
