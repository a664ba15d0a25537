"""Losses of the scores of a list's items."""

from __future__ import annotations

from collections.abc import Callable

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.extend import as_array, floats, log_softmax_last, wide
from genesis_fn.optim.losses.arguments import check_broadcast, masked, weighed


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
        logits: floating array [..., items], the scores; -inf excludes an item of relevance 0.
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
    (logits,) = floats("ranking_softmax_loss", logits)
    y: Array = as_array(labels).astype(logits.dtype)
    check_broadcast("ranking_softmax_loss", logits=logits, labels=y, where=where, weights=weights)
    if weights is not None:
        y = y * weights
    some = None
    if where is None:
        log_p = log_softmax_last(logits)
    else:
        mask = jnp.broadcast_to(where, logits.shape)
        some = jnp.any(mask, axis=-1)
        log_p = log_softmax_last(masked(logits, mask | ~some[..., None]))
        log_p, y = jnp.where(mask, log_p, 0.0), jnp.where(mask, y, 0.0)
    loss = -jnp.sum(weighed(y, log_p), axis=-1)
    if reduce_fn is None:
        return loss if some is None else jnp.where(some, loss, 0.0)
    if some is None:
        return reduce_fn(loss)
    if reduce_fn is jnp.mean:
        return jnp.sum(jnp.where(some, loss, 0.0)) / jnp.maximum(jnp.sum(some), 1)
    return reduce_fn(loss, where=some)
