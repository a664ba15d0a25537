"""Transformations that scale updates by running statistics: Adagrad, RMSProp, Rprop and others."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, PyTree, dtypes
from genesis_fn.dtypes import DType
from genesis_fn.extend import real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, OptState, Params, Updates
from genesis_fn.optim.numerics import abs_sq, one_minus_power, safe_increment
from genesis_fn.optim.transforms.transform import moment
from genesis_fn.optim.tree_map_updates import (
    BOOL,
    init_leaves,
    init_moments,
    map_updates,
    wide_dtype,
    zero_count,
)


def init_squares(params: Params, value: Number = 0.0) -> PyTree:
    """Returns arrays of `value` for second moments: real, for complex parameters too."""
    return init_leaves(
        lambda p: jnp.full(p.shape, value, dtype=real_of(wide_dtype(p.dtype))), params
    )


class ScaleByRssState(NamedTuple):
    """The sum of squared updates."""

    sum_of_squares: PyTree


def scale_by_rss(
    initial_accumulator_value: Number = 0.1, eps: Number = 1e-7
) -> base.GradientTransformation:
    """Divides updates by the root of the sum of all their squares, as Adagrad does.

        s <- s + |g|**2,  update = g / sqrt(s + eps); 0 while s is 0

    Source: Duchi et al., "Adaptive subgradient methods for online learning", 2011.

    Args:
        initial_accumulator_value: s before the first step, >= 0.
        eps: positive number added inside the root.

    Returns:
        The transformation, whose states are ScaleByRssState(sum_of_squares).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_rss()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.8452, -0.9945], dtype=float32)
    """

    def init(params: Params) -> ScaleByRssState:
        return ScaleByRssState(init_squares(params, initial_accumulator_value))

    def update(
        updates: Updates, state: ScaleByRssState, params: Params | None = None
    ) -> tuple[Updates, ScaleByRssState]:
        def leaf(g: Array, total: Array) -> tuple[Array, ...]:
            total = total + abs_sq(g)
            return jnp.where(total > 0, g / jnp.sqrt(total + eps), 0.0), total

        updates, total = map_updates(leaf, updates, state.sum_of_squares)
        return updates, ScaleByRssState(total)

    return base.GradientTransformation(init, update, state=ScaleByRssState)


class ScaleByRmsState(NamedTuple):
    """The second moment: the moving mean of squared updates."""

    nu: PyTree


class ScaleByRmsWithCountState(NamedTuple):
    """Steps taken and the second moment."""

    count: Any
    nu: PyTree


class ScaleByRStdDevState(NamedTuple):
    """The first and second moments."""

    mu: PyTree
    nu: PyTree


class ScaleByRStdDevWithCountState(NamedTuple):
    """Steps taken and the first and second moments."""

    count: Any
    mu: PyTree
    nu: PyTree


def _over_root(g: Array, nu: Array, eps: Number, eps_in_sqrt: bool) -> Array:
    """Divides g by the root of nu."""
    return g / jnp.sqrt(nu + eps) if eps_in_sqrt else g / (jnp.sqrt(nu) + eps)


def scale_by_rms(
    decay: Number = 0.9,
    eps: Number = 1e-8,
    initial_scale: Number = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> base.GradientTransformation:
    """Divides updates by the root of their moving mean square, as RMSProp does.

        v <- decay v + (1 - decay) |g|**2,  update = g / sqrt(v + eps)

    Source: Hinton, "Neural networks for machine learning", lecture 6, 2012.

    Args:
        decay: decay rate of the means, in [0, 1).
        eps: positive number added to the denominator.
        initial_scale: v before the first step, >= 0.
        eps_in_sqrt: whether `eps` is added inside the root.
        bias_correction: whether means are divided by 1 - decay**t at step t = 1, 2, ...

    Returns:
        The transformation, whose states are ScaleByRmsState(nu), or with `bias_correction`
        ScaleByRmsWithCountState(count, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_rms()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 3.1623, -3.1623], dtype=float32)
    """

    def init(params: Params) -> OptState:
        nu = init_squares(params, initial_scale)
        return (
            ScaleByRmsWithCountState(zero_count(), nu) if bias_correction else ScaleByRmsState(nu)
        )

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        count: Array | Any = safe_increment(state.count) if bias_correction else None
        correction = one_minus_power(decay, count)

        def leaf(g: Array, nu: Array) -> tuple[Array, ...]:
            nu = moment(abs_sq(g), nu, decay)
            hat = nu / correction(nu.dtype) if bias_correction else nu
            return _over_root(g, hat, eps, eps_in_sqrt), nu

        updates, nu = map_updates(leaf, updates, state.nu)
        return updates, (
            ScaleByRmsWithCountState(count, nu) if bias_correction else ScaleByRmsState(nu)
        )

    state_class = ScaleByRmsWithCountState if bias_correction else ScaleByRmsState
    return base.GradientTransformation(init, update, state=state_class)


def scale_by_stddev(
    decay: Number = 0.9,
    eps: Number = 1e-8,
    initial_scale: Number = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> base.GradientTransformation:
    """Divides updates by their moving standard deviation, as centered RMSProp does.

        m, v: moving means of g and |g|**2,  update = g / sqrt(v - |m|**2 + eps)

    Source: Graves, "Generating sequences with recurrent neural networks", 2013.

    Args:
        decay: decay rate of the means, in [0, 1).
        eps: positive number added to the denominator.
        initial_scale: v before the first step, >= 0.
        eps_in_sqrt: whether `eps` is added inside the root.
        bias_correction: whether means are divided by 1 - decay**t at step t = 1, 2, ...

    Returns:
        The transformation, whose states are ScaleByRStdDevState(mu, nu), or with `bias_correction`
        ScaleByRStdDevWithCountState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_stddev()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 3.3333, -3.3333], dtype=float32)
    """

    def init(params: Params) -> OptState:
        mu, nu = init_moments(params), init_squares(params, initial_scale)
        if bias_correction:
            return ScaleByRStdDevWithCountState(zero_count(), mu, nu)
        return ScaleByRStdDevState(mu, nu)

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        count: Array | Any = safe_increment(state.count) if bias_correction else None
        correction = one_minus_power(decay, count)

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            mu, nu = moment(g, mu, decay), moment(abs_sq(g), nu, decay)
            c = correction(nu.dtype) if bias_correction else 1.0
            return _over_root(g, nu / c - abs_sq(mu / c), eps, eps_in_sqrt), mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        if bias_correction:
            return updates, ScaleByRStdDevWithCountState(count, mu, nu)
        return updates, ScaleByRStdDevState(mu, nu)

    state_class = ScaleByRStdDevWithCountState if bias_correction else ScaleByRStdDevState
    return base.GradientTransformation(init, update, state=state_class)


class ScaleByAdaDeltaState(NamedTuple):
    """Moving means of squared gradients and of squared updates."""

    e_g: PyTree
    e_x: PyTree


def scale_by_adadelta(rho: Number = 0.9, eps: Number = 1e-6) -> base.GradientTransformation:
    """Scales updates as Adadelta does, in units of past updates.

        v <- rho v + (1 - rho) |g|**2,  update = u = g sqrt(x + eps) / sqrt(v + eps),
        x <- rho x + (1 - rho) |u|**2

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012.

    Args:
        rho: decay rate of the moving means, in [0, 1).
        eps: positive number added inside the roots.

    Returns:
        The transformation, whose states are ScaleByAdaDeltaState(e_g, e_x).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_adadelta()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.0032, -0.0032], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdaDeltaState:
        return ScaleByAdaDeltaState(init_squares(params), init_squares(params))

    def update(
        updates: Updates, state: ScaleByAdaDeltaState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdaDeltaState]:
        def leaf(g: Array, e_g: Array, e_x: Array) -> tuple[Array, ...]:
            e_g = moment(abs_sq(g), e_g, rho)
            u = jnp.sqrt(e_x + eps) / jnp.sqrt(e_g + eps) * g
            return u, e_g, moment(abs_sq(u), e_x, rho)

        updates, e_g, e_x = map_updates(leaf, updates, state.e_g, state.e_x)
        return updates, ScaleByAdaDeltaState(e_g, e_x)

    return base.GradientTransformation(init, update, state=ScaleByAdaDeltaState)


class ScaleByRpropState(NamedTuple):
    """Per element, the step size and the last update."""

    step_sizes: PyTree
    prev_updates: PyTree


def scale_by_rprop(
    learning_rate: Number,
    eta_minus: Number = 0.5,
    eta_plus: Number = 1.2,
    min_step_size: Number = 1e-6,
    max_step_size: Number = 50.0,
) -> base.GradientTransformation:
    """Replaces updates by their sign times a step size that adapts to changes of sign.

        step <- step * eta_plus where the sign of g stays, step * eta_minus where it changes,
        update = step sign(g), 0 where it changes

    As in optax, an update is returned one call after its gradient.

    Source: Riedmiller & Braun, "A direct adaptive method for faster backpropagation learning",
    1993.

    Args:
        learning_rate: first step, positive.
        eta_minus: factor of a step whose sign changes, in (0, 1).
        eta_plus: factor of a step whose sign stays, above 1.
        min_step_size, max_step_size: limits of a step, positive, in units of the parameters.

    Returns:
        The transformation, whose states are ScaleByRpropState(step_sizes, prev_updates).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_rprop(0.1)
    >>> _, state = tx.update(g, tx.init(w), w)
    >>> updates, state = tx.update(g, state, w)
    >>> updates.round(4)
    Array([ 0.1, -0.1], dtype=float32)
    """

    def init(params: Params) -> ScaleByRpropState:
        return ScaleByRpropState(init_moments(params, learning_rate), init_moments(params))

    def update(
        updates: Updates, state: ScaleByRpropState, params: Params | None = None
    ) -> tuple[Updates, ScaleByRpropState]:
        def leaf(g: Array, step: Array, last: Array) -> tuple[Array, ...]:
            agreement = g * last
            changed = jnp.where(agreement > 0, step * eta_plus, step * eta_minus)
            step = jnp.where(agreement == 0, step, jnp.clip(changed, min_step_size, max_step_size))
            taken = jnp.where(agreement < 0, 0.0, step * jnp.sign(g))
            return jnp.where(agreement < 0, 0.0, last), step, taken

        updates, steps, taken = map_updates(leaf, updates, state.step_sizes, state.prev_updates)
        return updates, ScaleByRpropState(steps, taken)

    return base.GradientTransformation(init, update, state=ScaleByRpropState)


class ScaleByOptimisticGradientState(NamedTuple):
    """Whether the next step is the first, and the previous gradient."""

    is_initial_step: Array
    previous_gradient: PyTree


def scale_by_optimistic_gradient(
    alpha: Number = 1.0, beta: Number = 1.0
) -> base.GradientTransformation:
    """Extrapolates from the last two updates, for games and saddle points.

        update = (alpha + beta) g - beta previous g; at first the previous g is g

    Source: Mokhtari et al., "A unified analysis of extra-gradient and optimistic gradient methods",
    2020.

    Args:
        alpha: weight of the update, positive.
        beta: weight of its change, >= 0.

    Returns:
        The transformation, whose states are ScaleByOptimisticGradientState(is_initial_step,
        previous_gradient).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_optimistic_gradient()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.5, -3. ], dtype=float32)
    """

    def init(params: Params) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(jnp.ones((), BOOL), init_moments(params))

    def update(
        updates: Updates, state: ScaleByOptimisticGradientState, params: Params | None = None
    ) -> tuple[Updates, ScaleByOptimisticGradientState]:
        def leaf(g: Array, last: Array) -> tuple[Array, ...]:
            last = jnp.where(state.is_initial_step, g, last)
            return (alpha + beta) * g - beta * last, g

        updates, last = map_updates(leaf, updates, state.previous_gradient)
        return updates, ScaleByOptimisticGradientState(jnp.zeros((), BOOL), last)

    return base.GradientTransformation(init, update, state=ScaleByOptimisticGradientState)


class ScaleByDistanceOverGradientsState(NamedTuple):
    """Per leaf: the largest distance from `init_params`, the sum of |g|**2, and `init_params`."""

    max_dist: PyTree
    grad_sum_of_squares: PyTree
    init_params: Params


def scale_by_distance_over_gradients(
    reps_rel: Number = 1e-6,
    eps: Number = 1e-8,
    param_dtype: DTypeLike | None = dtypes.float32,
    global_scale: Number = 1.0,
) -> base.GradientTransformation:
    """Scales arrays by the distance that their parameters have gone over the norm of all gradients.

        far <- max(far, |p - p0|), reps_rel (1 + |p0|) at first;  s <- s + |g|**2;
        update = global_scale far g / sqrt(s + eps)

    This learning rate needs no tuning: chain it with `scale(-1.0)`. `update` needs the parameters.

    Source: Ivgi et al., "DoG is SGD's best friend: a parameter-free dynamic step size schedule",
    2023.

    Args:
        reps_rel: first distance, as a share of 1 + |p0|, positive.
        eps: positive number added inside the root.
        param_dtype: dtype of the copy of the first parameters; None: theirs, and at least float32.
        global_scale: positive factor of all updates.

    Returns:
        The transformation, whose states are ScaleByDistanceOverGradientsState(max_dist,
        grad_sum_of_squares, init_params).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_distance_over_gradients(reps_rel=0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.0532, -0.3192], dtype=float32)
    """

    def length(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(abs_sq(x)))

    def init(params: Params) -> ScaleByDistanceOverGradientsState:
        def wide_real(p: Array) -> DType:
            return real_of(wide_dtype(p.dtype))

        return ScaleByDistanceOverGradientsState(
            init_leaves(lambda p: reps_rel * (1 + length(p.astype(wide_dtype(p.dtype)))), params),
            init_leaves(lambda p: jnp.zeros((), wide_real(p)), params),
            init_leaves(lambda p: p.astype(param_dtype or wide_dtype(p.dtype)), params),
        )

    def update(
        updates: Updates, state: ScaleByDistanceOverGradientsState, params: Params | None = None
    ) -> tuple[Updates, ScaleByDistanceOverGradientsState]:
        base.require_params(params, "scale_by_distance_over_gradients")

        def leaf(g: Array, far: Array, squares: Array, start: Array, p: Array) -> tuple[Array, ...]:
            far = jnp.maximum(far, length(p - start).astype(far.dtype))
            squares = squares + jnp.sum(abs_sq(g))
            return global_scale * (far / jnp.sqrt(squares + eps)) * g, far, squares, start

        updates, *kept = map_updates(leaf, updates, *state, extras=(params,))
        return updates, ScaleByDistanceOverGradientsState(*kept)

    return base.GradientTransformation(init, update, state=ScaleByDistanceOverGradientsState)
