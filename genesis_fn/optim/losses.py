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
from genesis_fn.core import dtypes
from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from genesis_fn.core.primitive import typeof
from genesis_fn.lax.fused.cross_entropy import class_labels, cross_entropy_last
from genesis_fn.lax.fused.softmax import log_softmax_last, logsumexp_last
from genesis_fn.primitives.elementwise import stop_gradient
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.precision.autocast import wide

Axis = int | tuple[int, ...] | None


def _floats(name: str, *arrays: Any) -> list[Any]:
    """The arguments as arrays. Raises DTypeError where one is not floating."""
    found = [as_array(x) for x in arrays]
    for x in found:
        if not dtypes.is_float(x.dtype):
            raise DTypeError(f"{name} takes floats, got {x.aval}")
    return found


def _together(name: str, **arguments: Any) -> None:
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


def _errors(name: str, predictions: Any, targets: Any) -> Any:
    (predictions,) = _floats(name, predictions)
    if targets is None:
        return predictions
    targets = as_array(targets)
    _same_shape(name, predictions=predictions, targets=targets)
    return predictions - targets


def _same_shape(name: str, **arguments: Any) -> None:
    """Raises ShapeError naming two arguments where their shapes differ."""
    (a, x), (b, y) = arguments.items()
    if x.shape != y.shape:
        raise ShapeError(
            f"{name}: {a} {typeof(x)} and {b} {typeof(y)} differ in shape\n"
            f"  reshape or index one of them: {b} of another shape would be broadcast to pairs"
        )


# ---- regression ----


@wide
def squared_error(predictions: Any, targets: Any = None) -> Any:
    """(predictions - targets)**2, elementwise."""
    e = _errors("squared_error", predictions, targets)
    return e * e


@wide
def l2_loss(predictions: Any, targets: Any = None) -> Any:
    """(predictions - targets)**2 / 2, elementwise."""
    return 0.5 * squared_error(predictions, targets)


@wide
def huber_loss(predictions: Any, targets: Any = None, *, delta: Any = 1.0) -> Any:
    """e**2 / 2 where |e| <= delta, else delta * (|e| - delta / 2) (Huber 1964)."""
    e = jnp.abs(_errors("huber_loss", predictions, targets))
    near = jnp.minimum(e, delta)
    return 0.5 * near * near + delta * (e - near)


@wide
def log_cosh(predictions: Any, targets: Any = None) -> Any:
    """log(cosh(predictions - targets)), elementwise."""
    e = _errors("log_cosh", predictions, targets)
    return jnp.logaddexp(e, -e) - math.log(2.0)


@wide
def cosine_similarity(
    predictions: Any, targets: Any, *, epsilon: Any = 0.0, axis: Axis = -1, where: Any = None
) -> Any:
    """The cosine between vectors along `axis`; squared norms are taken as at least `epsilon`."""
    a, b = _floats("cosine_similarity", predictions, targets)
    _together("cosine_similarity", predictions=a, targets=b, where=where)

    def unit(x: Any) -> Any:
        square = jnp.sum(x * x, axis=axis, where=where, keepdims=True)
        return x / jnp.sqrt(jnp.maximum(square, epsilon))

    return jnp.sum(unit(a) * unit(b), axis=axis, where=where)


@wide
def cosine_distance(
    predictions: Any, targets: Any, *, epsilon: Any = 0.0, axis: Axis = -1, where: Any = None
) -> Any:
    """1 - cosine_similarity."""
    return 1.0 - cosine_similarity(predictions, targets, epsilon=epsilon, axis=axis, where=where)


# ---- classification ----


def _log_sigmoid(x: Any) -> Any:
    return -jnp.logaddexp(-x, 0.0)


def _rows(x: Any, axis: Axis) -> Any:
    """`x` with `axis` (or axes, merged) last."""
    if axis == -1 or axis == x.ndim - 1:
        return x
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    chosen = tuple(_axis(a, x.ndim) for a in axes)
    others = tuple(a for a in range(x.ndim) if a not in chosen)
    moved = jnp.transpose(x, others + chosen)
    return moved.reshape([*moved.shape[: len(others)], -1])


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise AxisError(f"axis {axis} is out of bounds for an array of {ndim} dimensions")
    return axis % ndim


def _row_mask(where: Any, logits: Any, axis: Axis) -> Any:
    """The mask of `_rows(logits)`; one of fewer dimensions lacks `axis`."""
    where = as_array(where)
    if where.ndim != logits.ndim:
        where = jnp.expand_dims(where, axis)
    _together("cross-entropy", logits=logits, where=where)
    return _rows(jnp.broadcast_to(where, logits.shape), axis)


def _masked(logits: Any, where: Any) -> Any:
    """Logits with -inf where they are masked out."""
    return logits if where is None else jnp.where(where, logits, -jnp.inf)


@wide
def softmax_cross_entropy(logits: Any, labels: Any, axis: Axis = -1, where: Any = None) -> Any:
    """-sum(labels * log_softmax(logits)) along `axis`, for labels that are probabilities."""
    (logits,) = _floats("softmax_cross_entropy", logits)
    labels = as_array(labels)
    _together("softmax_cross_entropy", logits=logits, labels=labels)
    logits, labels = jnp.broadcast_arrays(logits, labels)
    mask = None if where is None else _row_mask(where, logits, axis)
    log_p = log_softmax_last(_masked(_rows(logits, axis), mask))
    if mask is not None:
        log_p = jnp.where(mask, log_p, 0.0)
    return -jnp.sum(_rows(labels, axis) * log_p, axis=-1)


@wide
def softmax_cross_entropy_with_integer_labels(
    logits: Any, labels: Any, axis: int | tuple[int, ...] = -1, where: Any = None
) -> Any:
    """logsumexp(logits) - logits[label] along `axis`, for labels that are class numbers.

    With several axes a label numbers their elements in row-major order. Labels out of range raise
    IndexError. Where `where` leaves no class the loss is 0.
    """
    name = "softmax_cross_entropy_with_integer_labels"
    (logits,) = _floats(name, logits)
    labels = class_labels(name, labels)
    if not isinstance(axis, (int, tuple)):
        raise ArgumentError(f"{name}: axis is an int or a tuple of ints, got {axis!r}")
    rows = _rows(logits, axis)
    if labels.shape != rows.shape[:-1]:
        raise ShapeError(
            f"{name}: logits {logits.aval} with classes along {axis} need labels of shape "
            f"{rows.shape[:-1]}, got {labels.aval}"
        )
    if where is None:
        return cross_entropy_last(rows, labels)
    mask = _row_mask(where, logits, axis)
    some = jnp.any(mask, axis=-1)
    # The label's own logit counts even where it is masked, and an empty row is 0.
    at_label = jnp.take_along_axis(rows, jnp.expand_dims(labels, -1), axis=-1)[..., 0]
    total = logsumexp_last(_masked(rows, mask | ~some[..., None]))
    return jnp.where(some, total - at_label, 0.0)


@wide
def safe_softmax_cross_entropy(logits: Any, labels: Any) -> Any:
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
def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Any:
    """-labels * log(sigmoid(logits)) - (1 - labels) * log(1 - sigmoid(logits)), elementwise."""
    (logits,) = _floats("sigmoid_binary_cross_entropy", logits)
    labels = as_array(labels).astype(logits.dtype)
    _together("sigmoid_binary_cross_entropy", logits=logits, labels=labels)
    return -labels * _log_sigmoid(logits) - (1.0 - labels) * _log_sigmoid(-logits)


@wide
def sigmoid_focal_loss(logits: Any, labels: Any, *, alpha: Any = None, gamma: Any = 2.0) -> Any:
    """Binary cross-entropy times (1 - probability of the label)**gamma (Lin et al. 2017).

    `alpha` weighs positive examples, 1 - alpha negative ones.
    """
    (logits,) = _floats("sigmoid_focal_loss", logits)
    labels = as_array(labels).astype(logits.dtype)
    _together("sigmoid_focal_loss", logits=logits, labels=labels)
    log_p, log_q = _log_sigmoid(logits), _log_sigmoid(-logits)
    entropy = -labels * log_p - (1.0 - labels) * log_q
    # log((1 - y) p + y (1 - p)) from logarithms, exact where one weight is 0. A term that is above
    # the top has that weight: it is kept finite, for the derivative by the label.
    top = jnp.where(labels == 1, log_q, jnp.where(labels == 0, log_p, jnp.maximum(log_p, log_q)))
    high = math.log(float(dtypes.finfo(logits.dtype).max)) / 2
    miss, hit = (jnp.exp(jnp.minimum(x - top, high)) for x in (log_p, log_q))
    log_miss = jnp.log((1 - labels) * miss + labels * hit) + top
    loss = entropy * jnp.exp(gamma * log_miss)
    if alpha is None:
        return loss
    return (alpha * labels + (1.0 - alpha) * (1.0 - labels)) * loss


@wide
def hinge_loss(predictor_outputs: Any, targets: Any) -> Any:
    """max(0, 1 - outputs * targets) for targets -1 and 1."""
    outputs, targets = as_array(predictor_outputs), as_array(targets)
    _together("hinge_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, 1 - outputs * targets)


@wide
def perceptron_loss(predictor_outputs: Any, targets: Any) -> Any:
    """max(0, -outputs * targets) for targets -1 and 1."""
    outputs, targets = as_array(predictor_outputs), as_array(targets)
    _same_shape("perceptron_loss", predictor_outputs=outputs, targets=targets)
    return jnp.maximum(0, -outputs * targets)


def _one_hot(labels: Any, scores: Any, name: str = "") -> Any:
    """Ones at the labels along the last axis of `scores`; a row of zeros for one out of range."""
    if name and jnp.shape(labels) != scores.shape[:-1]:
        raise ShapeError(
            f"{name}: scores {typeof(scores)} need labels of shape {scores.shape[:-1]}, one class "
            f"number per row, got {typeof(as_array(labels))}"
        )
    return (as_array(labels)[..., None] == jnp.arange(scores.shape[-1])).astype(scores.dtype)


@wide
def multiclass_hinge_loss(scores: Any, labels: Any) -> Any:
    """max over classes of (score + 1 unless it is the label's) minus the label's score."""
    scores = as_array(scores)
    hot = _one_hot(labels, scores, "multiclass_hinge_loss")
    return jnp.max(scores + 1.0 - hot, axis=-1) - jnp.sum(scores * hot, axis=-1)


@wide
def multiclass_perceptron_loss(scores: Any, labels: Any) -> Any:
    """The largest score minus the label's score."""
    scores = as_array(scores)
    hot = _one_hot(labels, scores, "multiclass_perceptron_loss")
    return jnp.max(scores, axis=-1) - jnp.sum(scores * hot, axis=-1)


@wide
def sparsemax_loss(logits: Any, labels: Any) -> Any:
    """The binary sparsemax loss: 0 below -1, the margin above 1, a parabola between."""
    logits, labels = as_array(logits), as_array(labels)
    _together("sparsemax_loss", logits=logits, labels=labels)
    x = jnp.where(labels != 0, -logits, logits)
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


def _simplex(x: Any) -> Any:
    """The Euclidean projection of rows on the probability simplex (Duchi et al. 2008)."""
    n = x.shape[-1]
    ordered = jnp.flip(jnp.sort(x, axis=-1), axis=-1)
    excess = (jnp.cumsum(ordered, axis=-1) - 1.0) / jnp.arange(1, n + 1).astype(x.dtype)
    count = jnp.sum(ordered > excess, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(excess, count - 1, axis=-1)
    return jnp.maximum(x - threshold, 0.0)


@wide
def multiclass_sparsemax_loss(scores: Any, labels: Any) -> Any:
    """The sparsemax loss of class scores (Martins & Astudillo 2016)."""
    (scores,) = _floats("multiclass_sparsemax_loss", scores)
    hot = _one_hot(labels, scores, "multiclass_sparsemax_loss")
    p = _simplex(scores)
    margin = (scores - jnp.sum(scores * hot, axis=-1, keepdims=True)) * (1 - hot)
    gain = jnp.sum(p * jnp.where(p != 0, margin, 0.0), axis=-1)
    return gain + 0.5 * (1.0 - jnp.sum(p * p, axis=-1))


@wide
def poly_loss_cross_entropy(
    logits: Any, labels: Any, *, epsilon: Any = 2.0, axis: Axis = -1, where: Any = None
) -> Any:
    """Cross-entropy plus epsilon * (1 - probability of the labels) (Leng et al. 2022)."""
    logits, labels = _floats("poly_loss_cross_entropy", logits, labels)
    _together("poly_loss_cross_entropy", logits=logits, labels=labels)
    logits, labels = jnp.broadcast_arrays(logits, labels)
    mask = None if where is None else _row_mask(where, logits, axis)
    log_p = log_softmax_last(_masked(_rows(logits, axis), mask))
    miss = _rows(labels, axis) * (1 - jnp.exp(log_p))
    miss = jnp.sum(miss, axis=-1, where=mask)
    return softmax_cross_entropy(logits, labels, axis, where) + epsilon * miss


@wide
def kl_divergence(log_predictions: Any, targets: Any, axis: Axis = -1, where: Any = None) -> Any:
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
    log_predictions: Any, log_targets: Any, axis: Axis = -1, where: Any = None
) -> Any:
    """sum(exp(log_targets) * (log_targets - log_predictions)) along `axis`."""
    log_q, log_p = _floats("kl_divergence_with_log_targets", log_predictions, log_targets)
    _together(
        "kl_divergence_with_log_targets", log_predictions=log_q, log_targets=log_p, where=where
    )
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=axis, where=where)


@wide
def generalized_kl_divergence(
    log_predictions: Any, targets: Any, axis: Axis = -1, where: Any = None
) -> Any:
    """kl_divergence + sum(predictions - targets): for measures that are not normalized."""
    log_q, p = _floats("generalized_kl_divergence", log_predictions, targets)
    _together("generalized_kl_divergence", log_predictions=log_q, targets=p, where=where)
    excess = jnp.sum(jnp.exp(log_q) - p, axis=axis, where=where)
    return kl_divergence(log_q, p, axis, where) + excess


convex_kl_divergence = generalized_kl_divergence


def smooth_labels(labels: Any, alpha: Any, *, axis: Axis = -1, where: Any = None) -> Any:
    """(1 - alpha) * labels + alpha / number of classes (Szegedy et al. 2016)."""
    (labels,) = _floats("smooth_labels", labels)
    classes = jnp.size(labels, axis) if where is None else jnp.sum(where, axis=axis, keepdims=True)
    return (1.0 - alpha) * labels + alpha / classes


# ---- embeddings, rankings ----


@wide
def ntxent(embeddings: Any, labels: Any, temperature: Any = 0.07) -> Any:
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
    anchors: Any,
    positives: Any,
    negatives: Any,
    axis: int = -1,
    norm_degree: Any = 2,
    margin: Any = 1.0,
    eps: Any = 1e-6,
) -> Any:
    """max(0, distance to positives - distance to negatives + margin)."""
    a, p, n = _floats("triplet_margin_loss", anchors, positives, negatives)
    _together("triplet_margin_loss", anchors=a, positives=p, negatives=n)

    def distance(x: Any) -> Any:
        return (jnp.sum((a - x) ** norm_degree, axis=axis) + eps) ** (1 / norm_degree)

    return jnp.maximum(distance(p) - distance(n) + margin, 0)


@wide
def ranking_softmax_loss(
    logits: Any,
    labels: Any,
    *,
    where: Any = None,
    weights: Any = None,
    reduce_fn: Callable[..., Any] | None = jnp.mean,
) -> Any:
    """Cross-entropy of rankings' logits with relevance labels along the last axis, reduced.

    Masked items and lists without items do not count.
    """
    (logits,) = _floats("ranking_softmax_loss", logits)
    labels = as_array(labels).astype(logits.dtype)
    _together("ranking_softmax_loss", logits=logits, labels=labels, where=where, weights=weights)
    if weights is not None:
        labels = labels * weights
    some = None
    if where is None:
        log_p = log_softmax_last(logits)
    else:
        where = jnp.broadcast_to(where, logits.shape)
        some = jnp.any(where, axis=-1)
        log_p = log_softmax_last(_masked(logits, where | ~some[..., None]))
        log_p, labels = jnp.where(where, log_p, 0.0), jnp.where(where, labels, 0.0)
    loss = -jnp.sum(labels * log_p, axis=-1)
    if reduce_fn is None:
        return loss if some is None else jnp.where(some, loss, 0.0)
    if some is None:
        return reduce_fn(loss)
    if reduce_fn is jnp.mean:
        return jnp.sum(jnp.where(some, loss, 0.0)) / jnp.maximum(jnp.sum(some), 1)
    return reduce_fn(loss, where=some)


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., Any]:
    """The loss max_fun(scores) - <targets, scores> along the last axis (Blondel et al. 2020).

    `max_fun` maps a vector to a scalar; further arguments are handed to it.
    """

    def fenchel_young_loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
        scores, targets = as_array(scores), as_array(targets)
        _together("fenchel_young_loss", scores=scores, targets=targets)

        def one(s: Any) -> Any:
            return max_fun(s, *args, **kwargs)

        batched = functools.reduce(lambda f, _: vmap(f), range(scores.ndim - 1), one)
        return batched(scores) - jnp.sum(targets * scores, axis=-1)

    return fenchel_young_loss


# ---- sequences ----


@wide
def ctc_loss_with_forward_probs(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> tuple[Any, Any, Any]:
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

    def joined(blank: Any, arriving: Any) -> Any:
        return jnp.concatenate([blank[:, :1], jnp.logaddexp(blank[:, 1:], arriving)], axis=-1)

    def step(carry: tuple[Any, ...], x: tuple[Any, ...]) -> tuple[Any, ...]:
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
    lengths = n - jnp.sum(label_paddings, axis=1).astype(dtypes.I32)
    ends = (lengths[:, None] == jnp.arange(n + 1)).astype(kind)
    loss = -jnp.sum(final * ends, axis=1)
    return loss, jnp.concatenate([blanks[:-1], final[None]], axis=0), emitted


def ctc_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> Any:
    """-log p(labels | logits) over all alignments, [B]: connectionist temporal classification."""
    return ctc_loss_with_forward_probs(
        logits, logit_paddings, labels, label_paddings, blank_id=blank_id, log_epsilon=log_epsilon
    )[0]
