"""Transformations that step along moving means of gradients: Adam and its relatives, and Lion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, Updates
from genesis_fn.optim.numerics import abs_sq, one_minus_power, safe_increment
from genesis_fn.optim.optimizers.adaptive import init_squares
from genesis_fn.optim.transforms.transform import moment
from genesis_fn.optim.tree_map_updates import (
    init_leaves,
    init_moments,
    map_updates,
    wide_dtype,
    zero_count,
)


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

        d = g - previous g, 0 at the first step;
        m, v, n: moving means of g, d and |g + (1 - b2) d|**2;
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
