"""Losses of embeddings, which compare examples with each other."""

from __future__ import annotations

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes
from genesis_fn.errors import ShapeError
from genesis_fn.extend import as_array, floats, wide
from genesis_fn.lax import stop_gradient
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.losses.arguments import check_broadcast
from genesis_fn.optim.losses.regression import cosine_similarity


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
    (embeddings,) = floats("ntxent", embeddings)
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
    a, p, n = floats("triplet_margin_loss", anchors, positives, negatives)
    check_broadcast("triplet_margin_loss", anchors=a, positives=p, negatives=n)

    def distance(x: Array) -> Array:
        return (jnp.sum((a - x) ** norm_degree, axis=axis) + eps) ** (1 / norm_degree)

    return jnp.maximum(distance(p) - distance(n) + margin, 0)
