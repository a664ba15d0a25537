"""Transformations that divide updates by running statistics: Adam and its relatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, PyTree, dtypes
from genesis_fn.dtypes import DType
from genesis_fn.errors import ArgumentError
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


class ScaleByAdamState(NamedTuple):
    """Steps taken and the first and second moments."""

    count: Any
    mu: PyTree
    nu: PyTree


def first_moment(b1: Number, count: Array, nesterov: bool) -> Callable[[Array, Array], Array]:
    """Returns f(g, mu): mu without its bias towards zero, one step ahead with `nesterov`."""
    now = one_minus_power(b1, count)
    if not nesterov:
        return lambda g, mu: mu / now(mu.dtype)
    ahead = one_minus_power(b1, safe_increment(count))
    return lambda g, mu: b1 * (mu / ahead(mu.dtype)) + (1 - b1) * (g / now(mu.dtype))


def scale_by_adam(
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
) -> base.GradientTransformation:
    """Scales updates as Adam does: their moving mean over the root of their moving mean square.

        m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) |g|**2,
        update = m_hat / (sqrt(v_hat + eps_root) + eps),
        with m_hat = m / (1 - b1**t) and v_hat = v / (1 - b2**t) at step t = 1, 2, ...

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", 2014; `nesterov`: Dozat,
    "Incorporating Nesterov momentum into Adam", 2016.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states are ScaleByAdamState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_adam()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(
            zero_count(), init_moments(params, dtype=mu_dtype), init_squares(params)
        )

    def update(
        updates: Updates, state: ScaleByAdamState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdamState]:
        count = safe_increment(state.count)
        first, second = first_moment(b1, count, nesterov), one_minus_power(b2, count)

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            mu, nu = moment(g, mu, b1), moment(abs_sq(g), nu, b2)
            root = jnp.sqrt(nu / second(nu.dtype) + eps_root)
            return first(g, mu) / (root + eps), mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByAdamState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByAdamState)


class ScaleByAmsgradState(NamedTuple):
    """Steps taken, the first and second moments, and the largest second moment so far."""

    count: Any
    mu: PyTree
    nu: PyTree
    nu_max: PyTree


def scale_by_amsgrad(
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> base.GradientTransformation:
    """Scales updates as Adam does, by the largest second moment so far.

        v_max <- max(v_max, v_hat),  update = m_hat / (sqrt(v_max + eps_root) + eps)

    Source: Reddi et al., "On the convergence of Adam and beyond", 2018.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        bias_correction_mu, bias_correction_nu: whether the moment is divided by 1 - b**t.

    Returns:
        The transformation, whose states are ScaleByAmsgradState(count, mu, nu, nu_max).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_amsgrad()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> ScaleByAmsgradState:
        mu = init_moments(params, dtype=mu_dtype)
        return ScaleByAmsgradState(zero_count(), mu, init_squares(params), init_squares(params))

    def update(
        updates: Updates, state: ScaleByAmsgradState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAmsgradState]:
        count = safe_increment(state.count)
        c1, c2 = one_minus_power(b1, count), one_minus_power(b2, count)

        def leaf(g: Array, mu: Array, nu: Array, largest: Array) -> tuple[Array, ...]:
            mu, nu = moment(g, mu, b1), moment(abs_sq(g), nu, b2)
            first = mu / c1(mu.dtype) if bias_correction_mu else mu
            largest = jnp.maximum(largest, nu / c2(nu.dtype) if bias_correction_nu else nu)
            return first / (jnp.sqrt(largest + eps_root) + eps), mu, nu, largest

        updates, *moments = map_updates(leaf, updates, state.mu, state.nu, state.nu_max)
        return updates, ScaleByAmsgradState(count, *moments)

    return base.GradientTransformation(init, update, state=ScaleByAmsgradState)


def scale_by_adamax(
    b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-8
) -> base.GradientTransformation:
    """Scales updates as Adam does, by the infinity norm of past ones.

        u <- max(b2 u, |g| + eps),  update = m_hat / u

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", 2014, section 7.1.

    Args:
        b1, b2: decay rates of the first moment and of the largest gradient, in [0, 1).
        eps: positive number added to |g|.

    Returns:
        The transformation, whose states are ScaleByAdamState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_adamax()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), init_moments(params), init_squares(params))

    def update(
        updates: Updates, state: ScaleByAdamState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdamState]:
        count = safe_increment(state.count)
        first = first_moment(b1, count, False)

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            mu, nu = moment(g, mu, b1), jnp.maximum(jnp.abs(g) + eps, b2 * nu)
            return first(g, mu) / nu, mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByAdamState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByAdamState)


class ScaleByBeliefState(NamedTuple):
    """Steps taken, the first moment, and the moving mean of squared deviations from it."""

    count: Any
    mu: PyTree
    nu: PyTree


def scale_by_belief(
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-16,
    eps_root: Number = 1e-16,
    *,
    nesterov: bool = False,
) -> base.GradientTransformation:
    """Scales updates as Adam does, by their deviation from their moving mean.

        v <- b2 v + (1 - b2) |g - m|**2 + eps_root,  update = m_hat / (sqrt(v_hat) + eps)

    Source: Zhuang et al., "AdaBelief optimizer: adapting stepsizes by the belief in observed
    gradients", 2020.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: positive number added to the second moment at every step.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states are ScaleByBeliefState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_belief()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1.1111, -1.1111], dtype=float32)
    """

    def init(params: Params) -> ScaleByBeliefState:
        return ScaleByBeliefState(zero_count(), init_moments(params), init_squares(params))

    def update(
        updates: Updates, state: ScaleByBeliefState, params: Params | None = None
    ) -> tuple[Updates, ScaleByBeliefState]:
        count = safe_increment(state.count)
        first, second = first_moment(b1, count, nesterov), one_minus_power(b2, count)

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            mu = moment(g, mu, b1)
            nu = moment(abs_sq(g - mu), nu, b2) + eps_root
            return first(g, mu) / (jnp.sqrt(nu / second(nu.dtype)) + eps), mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByBeliefState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByBeliefState)


def scale_by_yogi(
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-3,
    eps_root: Number = 0.0,
    initial_accumulator_value: Number = 1e-6,
) -> base.GradientTransformation:
    """Scales updates as Adam does, by a second moment that changes additively.

        v <- v - (1 - b2) sign(v - |g|**2) |g|**2,  update = m_hat / (sqrt(v_hat + eps_root) + eps)

    Source: Zaheer et al., "Adaptive methods for nonconvex optimization", 2018.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        initial_accumulator_value: both moments before the first step.

    Returns:
        The transformation, whose states are ScaleByAdamState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_yogi()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.996 , -0.9996], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdamState:
        mu = init_moments(params, initial_accumulator_value)
        return ScaleByAdamState(zero_count(), mu, init_squares(params, initial_accumulator_value))

    def update(
        updates: Updates, state: ScaleByAdamState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdamState]:
        count = safe_increment(state.count)
        first, second = first_moment(b1, count, False), one_minus_power(b2, count)

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            square = abs_sq(g)
            mu, nu = moment(g, mu, b1), nu - (1 - b2) * jnp.sign(nu - square) * square
            root = jnp.sqrt(nu / second(nu.dtype) + eps_root)
            return first(g, mu) / (root + eps), mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByAdamState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByAdamState)


def scale_by_radam(
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> base.GradientTransformation:
    """Scales updates as Adam does, only where the variance of the second moment is tractable.

        update = r m_hat / (sqrt(v_hat + eps_root) + eps) if rho >= threshold else m_hat,
        with rho = rho_inf - 2 t b2**t / (1 - b2**t), rho_inf = 2 / (1 - b2) - 1,
        r**2 = (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)

    Source: Liu et al., "On the variance of the adaptive learning rate and beyond", 2019.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        threshold: least rho, the length of the moving mean in steps, for adaptive steps; at least
            4.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states are ScaleByAdamState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_radam()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.5, -3. ], dtype=float32)
    """
    ro_inf = 2.0 / (1.0 - b2) - 1.0

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), init_moments(params), init_squares(params))

    def update(
        updates: Updates, state: ScaleByAdamState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdamState]:
        count = safe_increment(state.count)
        first, second = first_moment(b1, count, nesterov), one_minus_power(b2, count)

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            mu, nu = moment(g, mu, b1), moment(abs_sq(g), nu, b2)
            c = second(nu.dtype)
            ro = ro_inf - 2 * count.astype(nu.dtype) * (1 - c) / c
            # The factor is used above the threshold only; the maximum keeps its root real below.
            over = jnp.maximum(ro, 4.0)
            r = jnp.sqrt(
                (over - 4.0) * (over - 2.0) * ro_inf / ((ro_inf - 4.0) * (ro_inf - 2.0) * over)
            )
            m = first(g, mu)
            rectified = r * m / (jnp.sqrt(nu / c + eps_root) + eps)
            return jnp.where(ro >= threshold, rectified, m), mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByAdamState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByAdamState)


class ScaleByNovogradState(NamedTuple):
    """Steps taken, the first moment, and per leaf a scalar second moment."""

    count: Any
    mu: PyTree
    nu: PyTree


def scale_by_novograd(
    b1: Number = 0.9,
    b2: Number = 0.25,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    weight_decay: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> base.GradientTransformation:
    """Scales updates as NovoGrad does: momentum of arrays over their norms.

        v <- b2 v + (1 - b2) |g|**2 (|g|**2 at first), one per array,
        m <- b1 m + g / (sqrt(v + eps_root) + eps) + weight_decay p,  update = m

    Source: Ginsburg et al., "Stochastic gradient methods with layer-wise adaptive moments", 2019.
    `update` needs the parameters.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        weight_decay: number >= 0: the share of the parameter added to the normalized gradient.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are ScaleByNovogradState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_novograd()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.1644, -0.9864], dtype=float32)
    """

    def init(params: Params) -> ScaleByNovogradState:
        nu = init_leaves(lambda p: jnp.zeros((), real_of(wide_dtype(p.dtype))), params)
        return ScaleByNovogradState(zero_count(), init_moments(params, dtype=mu_dtype), nu)

    def update(
        updates: Updates, state: ScaleByNovogradState, params: Params | None = None
    ) -> tuple[Updates, ScaleByNovogradState]:
        base.require_params(params, "scale_by_novograd")
        count = safe_increment(state.count)

        def leaf(g: Array, mu: Array, nu: Array, p: Array) -> tuple[Array, ...]:
            square = jnp.sum(abs_sq(g))
            nu = jnp.where(count == 1, square, moment(square, nu, b2))
            mu = b1 * mu + (g / (jnp.sqrt(nu + eps_root) + eps) + weight_decay * p)
            return mu, mu, nu

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu, extras=(params,))
        return updates, ScaleByNovogradState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByNovogradState)


class ScaleByAdanState(NamedTuple):
    """Moments of gradient (m), its change (v), their square (n); the last gradient; steps."""

    m: PyTree
    v: PyTree
    n: PyTree
    g: PyTree
    t: Array


def scale_by_adan(
    b1: Number = 0.98,
    b2: Number = 0.92,
    b3: Number = 0.99,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
) -> base.GradientTransformation:
    """Scales updates as Adan does: Nesterov momentum from gradients and their changes.

        d = g - previous g (0 at first);  m, v, n: moving means of g, d and |g + (1 - b2) d|**2;
        update = (m_hat + (1 - b2) v_hat) / (sqrt(n_hat + eps_root) + eps)

    Source: Xie et al., "Adan: adaptive Nesterov momentum algorithm", 2022.

    Args:
        b1, b2, b3: decay rates of m, v and n, in [0, 1); 1 - b in the paper.
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.

    Returns:
        The transformation, whose states are ScaleByAdanState(m, v, n, g, t).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_adan()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdanState:
        m, v, g = (init_moments(params) for _ in range(3))
        return ScaleByAdanState(m, v, init_squares(params), g, zero_count())

    def update(
        updates: Updates, state: ScaleByAdanState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdanState]:
        t = safe_increment(state.t)
        c1, c2, c3 = (one_minus_power(b, t) for b in (b1, b2, b3))

        def leaf(g: Array, m: Array, v: Array, n: Array, last: Array) -> tuple[Array, ...]:
            change = jnp.where(state.t == 0, 0.0, g - last)
            m, v = moment(g, m, b1), moment(change, v, b2)
            n = moment(abs_sq(g + (1 - b2) * change), n, b3)
            ahead = m / c1(m.dtype) + (1 - b2) * (v / c2(v.dtype))
            return ahead / (jnp.sqrt(n / c3(n.dtype) + eps_root) + eps), m, v, n, g

        updates, m, v, n, g = map_updates(leaf, updates, state.m, state.v, state.n, state.g)
        return updates, ScaleByAdanState(m, v, n, g, t)

    return base.GradientTransformation(init, update, state=ScaleByAdanState)


class ScaleByLionState(NamedTuple):
    """Steps taken and the first moment."""

    count: Any
    mu: PyTree


# How Lion maps the interpolation x of gradient and momentum to a step.
_LION_MODES: dict[str, Callable[[Any, Any], Any]] = {
    "hard": lambda x, beta: jnp.sign(x),
    "smooth": lambda x, beta: jnp.tanh(beta * x),
    "refined": lambda x, beta: jnp.where(jnp.abs(x) < 1.0, x, jnp.sign(x)),
}


def scale_by_lion(
    b1: Number = 0.9,
    b2: Number = 0.99,
    mu_dtype: DTypeLike | None = None,
    *,
    mode: str = "hard",
    smooth_beta: Number = 1.0,
) -> base.GradientTransformation:
    """Replaces updates by the sign of their momentum, as Lion does.

        update = sign(c),  c = b1 m + (1 - b1) g,  m <- b2 m + (1 - b2) g

    Source: Chen et al., "Symbolic discovery of optimization algorithms", 2023.

    Args:
        b1: share of the momentum in the step, in [0, 1).
        b2: decay rate of the momentum, in [0, 1).
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        mode: "hard"; "smooth" for tanh(smooth_beta c); "refined" for c where |c| < 1, else its
            sign.
        smooth_beta: positive steepness of "smooth".

    Returns:
        The transformation, whose states are ScaleByLionState(count, mu).

    Raises:
        ArgumentError: `mode` is none of the three.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_lion()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """
    if mode not in _LION_MODES:
        raise ArgumentError(f"scale_by_lion: mode is one of {list(_LION_MODES)}, got {mode!r}")
    shape = _LION_MODES[mode]

    def init(params: Params) -> ScaleByLionState:
        return ScaleByLionState(zero_count(), init_moments(params, dtype=mu_dtype))

    def update(
        updates: Updates, state: ScaleByLionState, params: Params | None = None
    ) -> tuple[Updates, ScaleByLionState]:
        def leaf(g: Array, mu: Array) -> tuple[Array, ...]:
            return shape(moment(g, mu, b1), smooth_beta), moment(g, mu, b2)

        updates, mu = map_updates(leaf, updates, state.mu)
        return updates, ScaleByLionState(safe_increment(state.count), mu)

    return base.GradientTransformation(init, update, state=ScaleByLionState)


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
