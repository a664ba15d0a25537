"""Losses of predicted numbers: errors, and likelihoods of Gauss and Poisson."""

from __future__ import annotations

import math

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import floats, typeof, wide
from genesis_fn.lax import stop_gradient
from genesis_fn.nn.losses.reductions import Reduction, hidden, pairs, reduced
from genesis_fn.optim import losses


@wide
def l1_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Absolute error.

        |predictions - targets|

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`.
        where: boolean array that broadcasts to `predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...].

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> nn.l1_loss(jnp.array([0.5, 3.0]), jnp.array([0.0, 1.0]))
    Array(1.25, dtype=float32)
    """
    x, y, mask = pairs("l1_loss", predictions, targets, where)
    return reduced("l1_loss", jnp.abs(x - y), reduction, mask)


@wide
def mse_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Squared error.

        (predictions - targets)**2

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`.
        where: boolean array that broadcasts to `predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...].

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> nn.mse_loss(jnp.array([0.5, 3.0]), jnp.array([0.0, 1.0]))
    Array(2.125, dtype=float32)
    """
    x, y, mask = pairs("mse_loss", predictions, targets, where)
    return reduced("mse_loss", losses.squared_error(x, y), reduction, mask)


@wide
def huber_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    delta: float | Array = 1.0,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Huber's loss: quadratic for errors up to `delta`, linear beyond.

        0.5 e**2 where |e| <= delta, else delta (|e| - 0.5 delta), with e = predictions - targets

    Source: Huber, "Robust estimation of a location parameter", 1964.

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`.
        delta: positive error at which the loss turns linear, in units of `predictions`.
        where: boolean array that broadcasts to `predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...].

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.
        ArgumentError: `delta` is not positive.

    >>> nn.huber_loss(jnp.array([0.5, 3.0]), jnp.zeros(2), reduction="none")
    Array([0.125, 2.5  ], dtype=float32)
    """
    if isinstance(delta, (int, float)) and not delta > 0:
        raise ArgumentError(f"huber_loss: delta has to be positive, got {delta}")
    x, y, mask = pairs("huber_loss", predictions, targets, where)
    return reduced("huber_loss", losses.huber_loss(x, y, delta=delta), reduction, mask)


@wide
def smooth_l1_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    beta: float = 1.0,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Absolute error that is rounded off at 0: `huber_loss` with delta=beta, divided by beta.

        0.5 e**2 / beta where |e| < beta, else |e| - 0.5 beta, with e = predictions - targets

    Source: Girshick, "Fast R-CNN", 2015.

    Args:
        predictions: floating array [...].
        targets: array of the shape of `predictions`.
        beta: error at which the loss turns linear, >= 0; 0 is `l1_loss`.
        where: boolean array that broadcasts to `predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...].

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.
        ArgumentError: `beta` is negative.

    >>> nn.smooth_l1_loss(jnp.array([0.5, 3.0]), jnp.zeros(2), beta=2.0, reduction="none")
    Array([0.0625, 2.    ], dtype=float32)
    """
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta is 0 or positive, got {beta}")
    x, y, mask = pairs("smooth_l1_loss", predictions, targets, where)
    loss = losses.huber_loss(x, y, delta=beta) / beta if beta else jnp.abs(x - y)
    return reduced("smooth_l1_loss", loss, reduction, mask)


@wide
def gaussian_nll_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    variances: ArrayLike,
    *,
    full: bool = False,
    eps: float = 1e-6,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Negative log-likelihood of targets under normal distributions with predicted mean and
    variance.

        0.5 (log(v) + (predictions - targets)**2 / v), v = max(variances, eps)

    A variance below `eps` has the derivative of `eps`, as in torch: it can grow out of there.
    Source: Nix & Weigend, "Estimating the mean and variance of the target probability
    distribution", 1994.

    Args:
        predictions: floating array [...] of means.
        targets: array of the shape of `predictions`.
        variances: floating array of that shape, or with a last axis of 1: one for each row.
        full: adds the constant 0.5 log(2 pi).
        eps: least variance that is divided by, > 0.
        where: boolean array that broadcasts to `predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...], in nats.

    Raises:
        DTypeError: `predictions` or `variances` is not floating.
        ShapeError: the shapes are not those above.
        ArgumentError: `eps` is not positive.

    >>> nn.gaussian_nll_loss(jnp.array([0.0, 2.0]), jnp.array([0.0, 0.0]), jnp.array([1.0, 4.0]))
    Array(0.59657353, dtype=float32)
    """
    if not eps > 0:
        raise ArgumentError(f"gaussian_nll_loss: eps has to be positive, got {eps}")
    (variances,) = floats("gaussian_nll_loss", variances)
    x, y, mask = pairs("gaussian_nll_loss", predictions, targets, where)
    if variances.shape not in (x.shape, (*x.shape[:-1], 1)):
        raise ShapeError(
            f"gaussian_nll_loss: variances {typeof(variances)} are neither of the shape of "
            f"predictions {typeof(x)} nor one for each of their rows, {[*x.shape[:-1], 1]}"
        )
    v = hidden(jnp.broadcast_to(variances, x.shape), mask, 1.0)
    v = v + stop_gradient(jnp.maximum(v, eps) - v)
    e = x - y
    loss = 0.5 * (jnp.log(v) + e * e / v)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced("gaussian_nll_loss", loss, reduction, mask)


@wide
def poisson_nll_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Negative log-likelihood of counts under Poisson distributions, without the term log(k!) of
    the counts k.

        exp(predictions) - targets * predictions, or with log_input=False
        predictions - targets * log(predictions + eps)

    Args:
        predictions: floating array [...] of rates, or of their logarithms (`log_input`).
        targets: array of the shape of `predictions`: counts.
        log_input: whether the predictions are logarithms of rates.
        full: adds Stirling's approximation of log(k!) for counts above 1,
            k log(k) - k + 0.5 log(2 pi k).
        eps: added to rates before their logarithm.
        where: boolean array that broadcasts to `predictions`: elements that count; None: all.
        reduction: "mean" over the elements that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each element, [...], in nats.

    Raises:
        DTypeError: `predictions` is not floating.
        ShapeError: the shapes differ.

    >>> nn.poisson_nll_loss(jnp.array([0.0, 1.0]), jnp.array([1, 3])).round(4)
    Array(0.3591, dtype=float32)
    """
    x, y, mask = pairs("poisson_nll_loss", predictions, targets, where)
    loss = jnp.exp(x) - y * x if log_input else x - y * jnp.log(x + eps)
    if full:
        k = jnp.where(y > 1, y, 1)
        stirling = k * jnp.log(k) - k + 0.5 * jnp.log(2 * math.pi * k)
        loss = loss + jnp.where(y > 1, stirling, 0)
    return reduced("poisson_nll_loss", loss, reduction, mask)
