"""Losses of classes and of probabilities: cross-entropies and the divergence of distributions."""

from __future__ import annotations

from typing import Any, Literal

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, custom_jvp, dtypes
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import (
    as_array,
    canonical_axis,
    check_same_shape,
    class_labels,
    floats,
    take_rows,
    typeof,
    wide,
)
from genesis_fn.nn.losses.reductions import (
    Reduction,
    check_fits,
    check_reduction,
    hidden,
    hidden_rows,
    mask_of,
    pairs,
    reduced,
    wide_sum,
)
from genesis_fn.optim import losses


def _last(name: str, x: Array, axis: int) -> Array:
    """Returns `x` with the axis of its classes last."""
    if not x.ndim:
        raise ShapeError(f"{name}: {typeof(x)} has no axis of classes")
    return jnp.moveaxis(x, canonical_axis(axis, x.ndim, name), -1)


def _class_weight(name: str, weight: ArrayLike | None, scores: Array) -> Array | None:
    """Returns the weights of classes in the dtype of the scores."""
    if weight is None:
        return None
    (w,) = floats(name, weight)
    if w.shape != scores.shape[-1:]:
        raise ShapeError(
            f"{name}: weight {typeof(w)} has to be {list(scores.shape[-1:])}, one for each class\n"
            "  weights of examples multiply the losses of reduction='none'"
        )
    return w.astype(scores.dtype)


def _counted_labels(
    name: str, labels: ArrayLike, scores: Array, ignore_index: int | None, where: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Returns (labels, which rows count), with the class 0 where a row does not."""
    classes = class_labels(name, labels)
    if classes.shape != scores.shape[:-1]:
        raise ShapeError(
            f"{name}: scores {typeof(scores)}, classes last, need labels of shape "
            f"{list(scores.shape[:-1])}, one class number per row, got {typeof(classes)}\n"
            "  axis= names another axis of the classes: in torch's layout it is 1"
        )
    counts = mask_of(name, where, classes.shape)
    if ignore_index is not None:
        kept = classes != ignore_index
        counts = kept if counts is None else counts & kept
    return classes if counts is None else jnp.where(counts, classes, 0), counts


@wide
def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    axis: int = -1,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Cross-entropy of softmax(logits) with classes, or with probabilities of classes.

        -sum over classes c of weight[c] target[c] log(softmax(logits)[c]),
        target = (1 - label_smoothing) labels + label_smoothing / number of classes,
        labels that are class numbers as one-hot vectors

    `linear_cross_entropy` is the same loss of a linear layer that does not keep its logits.
    Smoothing: Szegedy et al., "Rethinking the Inception architecture", 2016.

    Args:
        logits: floating array [..., classes]; -inf excludes a class.
        labels: integers [...], the class of each row, or floats [..., classes], probabilities that
            sum to 1.
        weight: array [classes], the weight of each class; None: all alike.
        ignore_index: label of rows that do not count; None: every row counts. (In torch -100 is
            the default; here a label that is no class is an error unless it is given.)
        label_smoothing: share of the target that is spread evenly over all classes, in [0, 1].
        axis: the axis of the classes, in logits and in probabilities; in torch's layout
            [batch, classes, ...] it is 1.
        where: boolean array that broadcasts to [...]: rows that count; None: all.
        reduction: "mean", "sum", or "none". Of class numbers the mean divides by the sum of the
            weights of the labels of the rows that count, of probabilities by their number.

    Returns:
        A scalar, or with "none" the loss of each row, [...], in nats.

    Raises:
        DTypeError: `logits` are not floating, or `labels` are booleans or complex.
        ShapeError: the shapes do not fit together.
        IndexOutOfRange: a label of a row that counts is no class.
        ArgumentError: `label_smoothing` is not in [0, 1], or `ignore_index` comes with
            probabilities.

    >>> logits = jnp.array([[2.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
    >>> nn.cross_entropy(logits, jnp.array([0, 2])).round(4)
    Array(0.2047, dtype=float32)
    >>> nn.cross_entropy(logits, jnp.array([0, -100]), ignore_index=-100).round(4)
    Array(0.2395, dtype=float32)
    """
    name = "cross_entropy"
    check_reduction(name, reduction)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"{name}: label_smoothing is in [0, 1], got {label_smoothing}")
    (logits,) = floats(name, logits)
    rows, labels = _last(name, logits, axis), as_array(labels)
    w = _class_weight(name, weight, rows)
    if dtypes.is_float(labels.dtype):
        if ignore_index is not None:
            raise ArgumentError(
                f"{name}: ignore_index is for class numbers, got probabilities {typeof(labels)}\n"
                "  where= masks rows"
            )
        check_same_shape(name, logits=logits, labels=labels)
        target = losses.smooth_labels(_last(name, labels, axis), label_smoothing)
        counts = mask_of(name, where, rows.shape[:-1])
        loss = _loss_of_probabilities(hidden_rows(rows, counts), hidden_rows(target, counts), w)
        return reduced(name, loss, reduction, counts)
    classes, counts = _counted_labels(name, labels, rows, ignore_index, where)
    row_weight = None if w is None else take_rows(w, classes)
    loss = _loss_of_classes(hidden_rows(rows, counts), classes, w, row_weight, label_smoothing)
    return reduced(name, loss, reduction, counts, row_weight)


def _loss_of_probabilities(rows: Array, target: Array, weight: Array | None) -> Array:
    """Returns the loss of each row of logits [..., classes], of probabilities of that shape."""
    return losses.safe_softmax_cross_entropy(rows, target if weight is None else target * weight)


def _loss_of_classes(
    rows: Array, classes: Array, weight: Array | None, row_weight: Array | None, smoothing: float
) -> Array:
    """Returns the loss of each row of logits [..., classes], of class numbers [...]. `row_weight`
    is the weight of the row's class."""
    loss = losses.softmax_cross_entropy_with_integer_labels(rows, classes)
    if row_weight is not None:
        loss = loss * row_weight
    if not smoothing:
        return loss
    share = jnp.full(rows.shape[-1:], 1 / rows.shape[-1], rows.dtype)
    return (1 - smoothing) * loss + smoothing * _loss_of_probabilities(rows, share, weight)


@wide
def nll_loss(
    log_probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    axis: int = -1,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Negative log-likelihood of classes, as of `log_softmax`; `cross_entropy` takes logits.

        -weight[label] log_probabilities[label]

    Args:
        log_probabilities: floating array [..., classes].
        labels: integers [...], the class of each row.
        weight: array [classes], the weight of each class; None: all alike.
        ignore_index: label of rows that do not count; None: every row counts (in torch -100 is
            the default).
        axis: the axis of the classes; in torch's layout [batch, classes, ...] it is 1.
        where: boolean array that broadcasts to [...]: rows that count; None: all.
        reduction: "mean", which divides by the sum of the weights of the labels that count, "sum",
            or "none".

    Returns:
        A scalar, or with "none" the loss of each row, [...], in nats.

    Raises:
        DTypeError: `log_probabilities` are not floating, or `labels` not integers.
        ShapeError: the shapes do not fit together.
        IndexOutOfRange: a label of a row that counts is no class.

    >>> nn.nll_loss(jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])), jnp.array([0, 1])).round(4)
    Array(0.4904, dtype=float32)
    """
    name = "nll_loss"
    (log_p,) = floats(name, log_probabilities)
    rows = _last(name, log_p, axis)
    w = _class_weight(name, weight, rows)
    classes, counts = _counted_labels(name, labels, rows, ignore_index, where)
    # A negative number is an index from the end to `take_along_axis`, but is no class.
    classes = take_rows(jnp.arange(rows.shape[-1]), classes)
    loss = -jnp.take_along_axis(rows, classes[..., None], axis=-1)[..., 0]
    row_weight = None if w is None else take_rows(w, classes)
    if row_weight is not None:
        loss = hidden(loss, counts) * row_weight
    return reduced(name, loss, reduction, counts, row_weight)


@custom_jvp
def _bounded_log(p: Array) -> Array:
    return jnp.maximum(jnp.log(p), -100.0)


@_bounded_log.defjvp
def _bounded_log_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # Not that of the maximum: an example that is wrong for sure has to be able to change.
    (p,), (t,) = primals, tangents
    return _bounded_log(p), t / jnp.maximum(p, 1e-12)


@wide
def binary_cross_entropy(
    probabilities: ArrayLike,
    targets: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Cross-entropy of probabilities of binary decisions; better have logits, for
    `binary_cross_entropy_with_logits`.

        -weight (targets log(p) + (1 - targets) log(1 - p)), with logarithms of -100 at least

    The derivative of such a logarithm is 1 / max(p, 1e-12).

    Args:
        probabilities: floating array [...], in [0, 1].
        targets: array of the shape of `probabilities`, in [0, 1]: the probability of "true".
        weight: array that broadcasts to `probabilities`: weights of elements, by which a mean does
            not divide; None: all alike.
        where: boolean array that broadcasts to `probabilities`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...], in nats.

    Raises:
        DTypeError: `probabilities` is not floating.
        ShapeError: the shapes differ.

    >>> nn.binary_cross_entropy(jnp.array([0.9, 0.5]), jnp.array([1, 0])).round(4)
    Array(0.3993, dtype=float32)
    """
    name = "binary_cross_entropy"
    p, y, mask = pairs(name, probabilities, targets, where)
    p = hidden(p, mask, 0.5)
    loss = -(y * _bounded_log(p) + (1 - y) * _bounded_log(1 - p))
    return reduced(name, _weighed(name, loss, weight), reduction, mask)


def _weighed(name: str, loss: Array, weight: ArrayLike | None) -> Array:
    if weight is None:
        return loss
    weight = as_array(weight)
    check_fits(name, loss.shape, weight=weight)
    return loss * weight


def _share(weight: Array, loss: Array) -> Array:
    """Returns weight * loss, where 0 * inf is 0."""
    bounded = jnp.minimum(loss, float(dtypes.finfo(loss.dtype).max))
    return weight * jnp.where(weight == 0, bounded, loss)


@wide
def binary_cross_entropy_with_logits(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Cross-entropy of binary decisions with probabilities p = sigmoid(logits).

        -weight (pos_weight targets log(p) + (1 - targets) log(1 - p)), computed without overflow

    Args:
        logits: floating array [...].
        targets: array of the shape of `logits`, in [0, 1]: the probability of "true".
        weight: array that broadcasts to `logits`: weights of elements, by which a mean does not
            divide; None: all alike.
        pos_weight: array that broadcasts to `logits`, mostly [classes]: weights of "true", as
            negative examples / positive ones; None: 1.
        where: boolean array that broadcasts to `logits`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...], in nats.

    Raises:
        DTypeError: `logits` are not floating.
        ShapeError: the shapes do not fit together.

    >>> logits, targets = jnp.array([2.0, 0.0]), jnp.array([1, 0])
    >>> nn.binary_cross_entropy_with_logits(logits, targets, pos_weight=3.0).round(4)
    Array(0.537, dtype=float32)
    """
    name = "binary_cross_entropy_with_logits"
    x, y, mask = pairs(name, logits, targets, where)
    if pos_weight is None:
        loss = losses.sigmoid_binary_cross_entropy(x, y)
    else:
        pos_weight = as_array(pos_weight)
        check_fits(name, x.shape, pos_weight=pos_weight)
        if_true = losses.sigmoid_binary_cross_entropy(x, 1.0)
        if_false = losses.sigmoid_binary_cross_entropy(x, 0.0)
        loss = _share(pos_weight * y, if_true) + _share(1 - y, if_false)
    return reduced(name, _weighed(name, loss, weight), reduction, mask)


@wide
def kl_div(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    *,
    log_target: bool = False,
    where: ArrayLike | None = None,
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
) -> Array:
    """Terms of the Kullback-Leibler divergence of predicted distributions from targets.

        targets (log(targets) - log_predictions), 0 where a target is 0

    Their sum over the classes is the divergence: "batchmean" is its mean over the first axis, while
    "mean" divides by the number of classes, too. Source: Kullback & Leibler, "On information and
    sufficiency", 1951.

    Args:
        log_predictions: floating array [...] of log-probabilities.
        targets: floating array of its shape: probabilities, or their logarithms (`log_target`).
        log_target: whether the targets are log-probabilities.
        where: boolean array that broadcasts to `log_predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", "none", or "batchmean": the sum
            divided by the length of the first axis.

    Returns:
        A scalar, or with "none" the term of each element, [...], in nats.

    Raises:
        DTypeError: an argument is not floating.
        ShapeError: the shapes differ, or "batchmean" is asked of scalars.

    >>> log_q = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]]))
    >>> p = jnp.array([[1.0, 0.0], [0.5, 0.5]])
    >>> nn.kl_div(log_q, p, reduction="batchmean").round(4)
    Array(0.4185, dtype=float32)
    """
    name = "kl_div"
    check_reduction(name, reduction, ("batchmean",))
    log_q, p = floats(name, log_predictions, targets)
    log_q, p, mask = pairs(name, log_q, p, where)
    divergence = losses.kl_divergence_with_log_targets if log_target else losses.kl_divergence
    loss = divergence(log_q, p, axis=())
    if reduction != "batchmean":
        return reduced(name, loss, reduction, mask)
    if not loss.ndim:
        raise ShapeError(f"{name}: batchmean divides by the first axis, which scalars lack")
    return (wide_sum(hidden(loss, mask)) / loss.shape[0]).astype(loss.dtype)
