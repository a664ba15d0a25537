"""Kullback-Leibler divergences of distributions."""

from __future__ import annotations

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes
from genesis_fn.extend import floats, wide
from genesis_fn.optim.losses.arguments import Axis, check_broadcast, weighed


@wide
def kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None
) -> Array:
    """Kullback-Leibler divergence of predicted log-probabilities from target probabilities.

        sum(targets * (log(targets) - log_predictions)) along `axis`; 0 where a target is 0,
        whatever the prediction

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
    log_q, p = floats("kl_divergence", log_predictions, targets)
    check_broadcast("kl_divergence", log_predictions=log_q, targets=p, where=where)
    # 0 log(0) is 0, and the slope there the least float, as in `safe_softmax_cross_entropy`.
    lowest = float(dtypes.finfo(p.dtype).min)
    log_p = jnp.where(p == 0, lowest, jnp.log(jnp.where(p == 0, 1.0, p)))
    return jnp.sum(weighed(p, log_p - log_q), axis=axis, where=where)


@wide
def kl_divergence_with_log_targets(
    log_predictions: ArrayLike,
    log_targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> Array:
    """Kullback-Leibler divergence where the targets are log-probabilities too.

        sum(exp(log_targets) * (log_targets - log_predictions)) along `axis`,
        0 where a target is -inf

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
    log_q, log_p = floats("kl_divergence_with_log_targets", log_predictions, log_targets)
    check_broadcast(
        "kl_divergence_with_log_targets", log_predictions=log_q, log_targets=log_p, where=where
    )
    # Neither inf - inf nor 0 * inf is to reach the sum or a derivative.
    possible = log_p > -jnp.inf
    log_p, log_q = jnp.where(possible, log_p, 0), jnp.where(possible, log_q, 0)
    terms = jnp.where(possible, jnp.exp(log_p) * (log_p - log_q), 0)
    return jnp.sum(terms, axis=axis, where=where)


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
    log_q, p = floats("generalized_kl_divergence", log_predictions, targets)
    check_broadcast("generalized_kl_divergence", log_predictions=log_q, targets=p, where=where)
    excess = jnp.sum(jnp.exp(log_q) - p, axis=axis, where=where)
    return kl_divergence(log_q, p, axis, where) + excess


convex_kl_divergence = generalized_kl_divergence
