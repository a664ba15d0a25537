"""Losses, one value per example; optax's names and conventions.

Reduce them with `.mean()` or `.sum()`. `where` masks elements along the reduced axes. Under `amp`
they run in float32 as a whole.
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
    """The arguments as arrays. Raises DTypeError where one is not floating."""
    found = [as_array(x) for x in arrays]
    for x in found:
        if not dtypes.is_float(x.dtype):
            raise DTypeError(f"{name} takes floats, got {x.aval}")
    return found


def _together(name: str, **arguments: ArrayLike | None) -> None:
    """Raises ShapeError naming the arguments where their shapes do not broadcast."""
    shapes = {k: jnp.shape(x) for k, x in arguments.items() if x is not None}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        given = ", ".join(f"{k} {typeof(as_array(arguments[k]))}" for k in shapes)
        first, *others = shapes
        raise ShapeError(
            f"{name}: the shapes of {given} do not fit together\n"
            f"  give {' and '.join(others)} the shape of {first}, or one that broadcasts to it"
        ) from None


def _errors(name: str, predictions: ArrayLike, targets: ArrayLike | None) -> Array:
    (predictions,) = _floats(name, predictions)
    if targets is None:
        return predictions
    targets = as_array(targets)
    _same_shape(name, predictions=predictions, targets=targets)
    return predictions - targets


def _same_shape(name: str, **arguments: Array) -> None:
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
    """(predictions - targets)**2, elementwise."""
    e = _errors("squared_error", predictions, targets)
    return e * e


@wide
def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """(predictions - targets)**2 / 2, elementwise."""
    return 0.5 * squared_error(predictions, targets)


@wide
def huber_loss(
    predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: Number = 1.0
) -> Array:
    """e**2 / 2 where |e| <= delta, else delta * (|e| - delta / 2) (Huber 1964)."""
    e = jnp.abs(_errors("huber_loss", predictions, targets))
    near = jnp.minimum(e, delta)
    return 0.5 * near * near + delta * (e - near)


@wide
def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """log(cosh(predictions - targets)), elementwise."""
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
    """The cosine between vectors along `axis`; squared norms are taken as at least `epsilon`."""
    a, b = _floats("cosine_similarity", predictions, targets)
    _together("cosine_similarity", predictions=a, targets=b, where=where)

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
    """1 - cosine_similarity."""
    return 1.0 - cosine_similarity(predictions, targets, epsilon=epsilon, axis=axis, where=where)


# ---- classification ----


def _log_sigmoid(x: Array) -> Array:
    return -jnp.logaddexp(-x, 0.0)


def _rows(x: Array, axis: Axis) -> Array:
    """`x` with `axis` (or axes, merged) last."""
    if axis == -1 or axis == x.ndim - 1:
        return x
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    chosen = tuple(canonical_axis(a, x.ndim, "cross-entropy") for a in axes)
    others = tuple(a for a in range(x.ndim) if a not in chosen)
    moved = jnp.transpose(x, others + chosen)
    return moved.reshape([*moved.shape[: len(others)], -1])


def _row_mask(where: ArrayLike, logits: Array, axis: Axis) -> Array:
    """The mask of `_rows(logits)`; one of fewer dimensions lacks `axis`."""
    where = as_array(where)
    if where.ndim != logits.ndim:
        where = jnp.expand_dims(where, axis)
    _together("cross-entropy", logits=logits, where=where)
    return _rows(jnp.broadcast_to(where, logits.shape), axis)


def _masked(logits: Array, where: Array | None) -> Array:
    """Logits with -inf where they are masked out."""
    return logits if where is None else jnp.where(where, logits, -jnp.inf)


@wide
def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """-sum(labels * log_softmax(logits)) along `axis`, for labels that are probabilities."""
    (logits,) = _floats("softmax_cross_entropy", logits)
    labels = as_array(labels)
    _together("softmax_cross_entropy", logits=logits, labels=labels)
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
    """logsumexp(logits) - logits[label] along `axis`, for labels that are class numbers.

    With several axes a label numbers their elements in row-major order. Labels out of range raise
    IndexError. Where `where` leaves no class the loss is 0.
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
    """`softmax_cross_entropy` in which label 0 with logit -inf counts as 0.

    The derivative by a label is -log(p), the largest float where the logit is -inf.
    """
    (logits,) = _floats("safe_softmax_cross_entropy", logits)
    labels = as_array(labels)
    _together("safe_softmax_cross_entropy", logits=logits, labels=labels)
    log_p = log_softmax_last(logits)
    # Zero times a finite number is zero, and its derivative by the label is that number.
    lowest = float(dtypes.finfo(log_p.dtype).min)
    log_p = jnp.where(labels == 0.0, jnp.maximum(log_p, lowest), log_p)
    return -jnp.sum(labels * log_p, axis=-1)


@wide
def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """-labels * log(sigmoid(logits)) - (1 - labels) * log(1 - sigmoid(logits)), elementwise."""
    (logits,) = _floats("sigmoid_binary_cross_entropy", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    _together("sigmoid_binary_cross_entropy", logits=logits, labels=y)
    return -y * _log_sigmoid(logits) - (1.0 - y) * _log_sigmoid(-logits)


@wide
def sigmoid_focal_loss(
    logits: ArrayLike, labels: ArrayLike, *, alpha: Number | None = None, gamma: Number = 2.0
) -> Array:
    """Binary cross-entropy times (1 - probability of the label)**gamma (Lin et al. 2017).

    `alpha` weighs positive examples, 1 - alpha negative ones.
    """
    (logits,) = _floats("sigmoid_focal_loss", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    _together("sigmoid_focal_loss", logits=logits, labels=y)
    log_p, log_q = _log_sigmoid(logits), _log_sigmoid(-logits)
    entropy = -y * log_p - (1.0 - y) * log_q
    # log((1 - y) p + y (1 - p)) from logarithms, exact where one weight is 0. A term that is above
    # the top has that weight: it is kept finite, for the derivative by the label.
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
    """max(0, 1 - outputs * targets) for targets -1 and 1."""
    outputs, targets = as_array(predictor_outputs), as_array(targets)
    _together("hinge_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, 1 - outputs * targets)


@wide
def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array:
    """max(0, -outputs * targets) for targets -1 and 1."""
    outputs, targets = as_array(predictor_outputs), as_array(targets)
    _same_shape("perceptron_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, -outputs * targets)


def _one_hot(labels: ArrayLike, scores: Array, name: str = "") -> Array:
    """Ones at the labels along the last axis of `scores`; a row of zeros for one out of range."""
    if name and jnp.shape(labels) != scores.shape[:-1]:
        raise ShapeError(
            f"{name}: scores {typeof(scores)} need labels of shape {scores.shape[:-1]}, one class "
            f"number per row, got {typeof(as_array(labels))}"
        )
    return (as_array(labels)[..., None] == jnp.arange(scores.shape[-1])).astype(scores.dtype)


@wide
def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """max over classes of (score + 1 unless it is the label's) minus the label's score."""
    scores = as_array(scores)
    hot = _one_hot(labels, scores, "multiclass_hinge_loss")
    return jnp.max(scores + 1.0 - hot, axis=-1) - jnp.sum(scores * hot, axis=-1)


@wide
def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """The largest score minus the label's score."""
    scores = as_array(scores)
    hot = _one_hot(labels, scores, "multiclass_perceptron_loss")
    return jnp.max(scores, axis=-1) - jnp.sum(scores * hot, axis=-1)


@wide
def sparsemax_loss(logits: ArrayLike, labels: ArrayLike) -> Array:
    """The binary sparsemax loss: 0 below -1, the margin above 1, a parabola between."""
    logits, labels = as_array(logits), as_array(labels)
    _together("sparsemax_loss", logits=logits, labels=labels)
    x = jnp.where(labels != 0, -logits, logits)
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


def _simplex(x: Array) -> Array:
    """The Euclidean projection of rows on the probability simplex (Duchi et al. 2008)."""
    n = x.shape[-1]
    ordered = jnp.flip(jnp.sort(x, axis=-1), axis=-1)
    excess = (jnp.cumsum(ordered, axis=-1) - 1.0) / jnp.arange(1, n + 1).astype(x.dtype)
    count = jnp.sum(ordered > excess, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(excess, count - 1, axis=-1)
    return jnp.maximum(x - threshold, 0.0)


@wide
def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    """The sparsemax loss of class scores (Martins & Astudillo 2016)."""
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
    """Cross-entropy plus epsilon * (1 - probability of the labels) (Leng et al. 2022)."""
    logits, labels = _floats("poly_loss_cross_entropy", logits, labels)
    _together("poly_loss_cross_entropy", logits=logits, labels=labels)
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
    """sum(targets * (log(targets) - log_predictions)) along `axis`; 0 where a target is 0.

    The derivative by a target that is 0 is the least float, for -inf.
    """
    log_q, p = _floats("kl_divergence", log_predictions, targets)
    _together("kl_divergence", log_predictions=log_q, targets=p, where=where)
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
    """sum(exp(log_targets) * (log_targets - log_predictions)) along `axis`."""
    log_q, log_p = _floats("kl_divergence_with_log_targets", log_predictions, log_targets)
    _together(
        "kl_divergence_with_log_targets", log_predictions=log_q, log_targets=log_p, where=where
    )
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=axis, where=where)


@wide
def generalized_kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """kl_divergence + sum(predictions - targets): for measures that are not normalized."""
    log_q, p = _floats("generalized_kl_divergence", log_predictions, targets)
    _together("generalized_kl_divergence", log_predictions=log_q, targets=p, where=where)
    excess = jnp.sum(jnp.exp(log_q) - p, axis=axis, where=where)
    return kl_divergence(log_q, p, axis, where) + excess


convex_kl_divergence = generalized_kl_divergence


def smooth_labels(
    labels: ArrayLike, alpha: Number, *, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """(1 - alpha) * labels + alpha / number of classes (Szegedy et al. 2016)."""
    (labels,) = _floats("smooth_labels", labels)
    classes = jnp.size(labels, axis) if where is None else jnp.sum(where, axis=axis, keepdims=True)
    return (1.0 - alpha) * labels + alpha / classes


# ---- embeddings, rankings ----


@wide
def ntxent(embeddings: ArrayLike, labels: ArrayLike, temperature: Number = 0.07) -> Array:
    """The contrastive loss of cosine similarities: pairs of one label against all of others
    (Chen et al. 2020). A scalar."""
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
    """max(0, distance to positives - distance to negatives + margin)."""
    a, p, n = _floats("triplet_margin_loss", anchors, positives, negatives)
    _together("triplet_margin_loss", anchors=a, positives=p, negatives=n)

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
    """Cross-entropy of rankings' logits with relevance labels along the last axis, reduced.

    Masked items and lists without items do not count.
    """
    (logits,) = _floats("ranking_softmax_loss", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    _together("ranking_softmax_loss", logits=logits, labels=y, where=where, weights=weights)
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
    """The loss max_fun(scores) - <targets, scores> along the last axis (Blondel et al. 2020).

    `max_fun` maps a vector to a scalar; further arguments are handed to it.
    """

    def fenchel_young_loss(
        scores: ArrayLike, targets: ArrayLike, *args: Any, **kwargs: Any
    ) -> Array:
        scores, targets = as_array(scores), as_array(targets)
        _together("fenchel_young_loss", scores=scores, targets=targets)

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
    """(loss [B], log alpha of blanks [T, B, N+1], of labels [T, B, N]) (Graves et al. 2006).

    logits [B, T, K], labels [B, N]; paddings are 1.0 at padded places of [B, T] and [B, N], at the
    right. `log_epsilon` stands for log(0). Alpha has blanks and labels apart: entry n of the blanks
    is the probability of having emitted n labels and then a blank.
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
    kind = logits.dtype
    log_p = log_softmax_last(logits)
    of_blank = jnp.transpose(log_p[:, :, blank_id : blank_id + 1], (1, 0, 2))
    hot = _one_hot(labels, logits)
    of_label = jnp.transpose(jnp.einsum("btk,bnk->btn", log_p, hot), (1, 0, 2))
    same = (labels[:, :-1] == labels[:, 1:]).astype(kind)
    repeat = jnp.concatenate([same, jnp.zeros((batch, 1), kind)], axis=1)
    never = jnp.full((batch, n), log_epsilon, dtype=kind)
    start = jnp.concatenate([jnp.zeros((batch, 1), kind), never], axis=1)

    def joined(blank: Array, arriving: Array) -> Array:
        return jnp.concatenate([blank[:, :1], jnp.logaddexp(blank[:, 1:], arriving)], axis=-1)

    def step(carry: tuple[Array, ...], x: tuple[Array, ...]) -> tuple[PyTree, PyTree]:
        blank, label = carry
        p_label, p_blank, padded = x
        # A label equal to the one before needs a blank between.
        reached = joined(blank, label + log_epsilon * repeat)
        next_label = jnp.logaddexp(reached[:, :-1] + p_label, label + p_label)
        next_blank = joined(reached + p_blank, label + p_blank + log_epsilon * (1.0 - repeat))
        over = padded[:, None] > 0
        kept = (jnp.where(over, blank, next_blank), jnp.where(over, label, next_label))
        return kept, kept

    paddings = jnp.transpose(logit_paddings, (1, 0))
    (blank, label), (blanks, emitted) = scan(step, (start, never), (of_label, of_blank, paddings))
    final = joined(blank, label)
    lengths = n - jnp.sum(label_paddings, axis=1).astype(I32)
    ends = (lengths[:, None] == jnp.arange(n + 1)).astype(kind)
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
    """-log p(labels | logits) over all alignments, [B]: connectionist temporal classification."""
    return ctc_loss_with_forward_probs(
        logits, logit_paddings, labels, label_paddings, blank_id=blank_id, log_epsilon=log_epsilon
    )[0]
