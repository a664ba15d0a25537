"""D-Adaptation, DoG and DoWG: learning rates from how far the parameters have come."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.contrib.complex_parameters import require_real
from genesis_fn.optim.numerics import one_minus_power, root, safe_increment
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import (
    add_decayed_weights,
    moment,
    scale_by_learning_rate,
    times,
)
from genesis_fn.optim.tree_map_updates import (
    BOOL,
    init_leaves,
    init_moments,
    map_updates,
    wide_dtype,
    widest_float,
    zero_count,
)

InitStep: TypeAlias = tuple[Literal["distance", "learning_rate", "heuristic"], Number]


class DAdaptAdamWState(NamedTuple):
    """Moments, the weighted sum s of gradients, the estimate d, its numerator r, steps taken."""

    exp_avg: PyTree
    exp_avg_sq: PyTree
    grad_sum: PyTree
    estim_lr: Array
    numerator_weighted: Array
    count: Any


def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Number, Number] = (0.9, 0.999),
    eps: Number = 1e-8,
    estim_lr0: Number = 1e-6,
    weight_decay: Number = 0.0,
) -> base.GradientTransformationExtraArgs:
    """AdamW by D-Adaptation: an estimate d of the distance to the solution is the learning rate.

        rate = lr d sqrt(1 - beta2**t) / (1 - beta1**t),  q = sqrt(beta2),
        r <- q r + (1 - q) rate <g, s / (sqrt(v) + eps)>, with s and v before this step,
        m <- beta1 m + (1 - beta1) rate g,  v <- beta2 v + (1 - beta2) g**2,
        s <- q s + (1 - q) rate g,  d <- max(d, r / ((1 - q) |s|_1)),
        update = -m / (sqrt(v) + eps) - weight_decay rate p

    Source: Defazio & Mishchenko, "Learning-rate-free learning by D-Adaptation", 2023. `update`
    needs the parameters.

    Args:
        learning_rate: factor of the estimate, or a schedule of it; 1.0 mostly does.
        betas: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        estim_lr0: first estimate, positive and small.
        weight_decay: number >= 0: the share of the parameter that the rate is multiplied by.

    Returns:
        The transformation, whose states are DAdaptAdamWState(..., estim_lr, numerator_weighted,
        count), with d as `estim_lr`.

    Raises:
        DTypeError: a parameter is complex.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.dadapt_adamw(estim_lr0=0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    beta1, beta2 = betas
    sum_decay = beta2**0.5

    def init(params: Params) -> DAdaptAdamWState:
        require_real(params, "dadapt_adamw")
        dtype = wide_dtype(widest_float(params))
        first, second, total = (init_moments(params) for _ in range(3))
        estimate = jnp.asarray(estim_lr0, dtype=dtype)
        return DAdaptAdamWState(first, second, total, estimate, jnp.zeros((), dtype), zero_count())

    def update(
        updates: Updates, state: DAdaptAdamWState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, DAdaptAdamWState]:
        base.require_params(params, "dadapt_adamw")
        count = safe_increment(state.count)
        schedule: Any = learning_rate(state.count) if callable(learning_rate) else learning_rate
        dtype = state.estim_lr.dtype
        first, second = one_minus_power(beta1, count)(dtype), one_minus_power(beta2, count)(dtype)
        rate = times(schedule, state.estim_lr * (second**0.5 / first))

        def projected(g: Array, s: Array, v: Array) -> Array:
            return jnp.sum(g * s / (jnp.sqrt(v) + eps))

        def leaf(g: Array, m: Array, v: Array, s: Array, p: Any) -> tuple[Array, ...]:
            scaled = times(rate, g)
            m, v = moment(scaled, m, beta1), moment(g * g, v, beta2)
            s = moment(scaled, s, sum_decay)
            step = m / (jnp.sqrt(v) + eps)
            return -times(rate, weight_decay * p) - step, m, v, s

        progress = tree_math.sum(
            map_updates(projected, updates, extras=(state.grad_sum, state.exp_avg_sq))
        )
        new, m, v, s = map_updates(
            leaf, updates, state.exp_avg, state.exp_avg_sq, state.grad_sum, extras=(params,)
        )
        gained = (1 - sum_decay) * rate * progress.astype(dtype)
        numerator = sum_decay * state.numerator_weighted + gained
        length = (1 - sum_decay) * tree_math.norm(s, 1).astype(dtype)
        # Before the first gradient that is not zero there is nothing to estimate from.
        ratio = jnp.where(length > 0, numerator / jnp.where(length > 0, length, 1.0), 0.0)
        estimate = jnp.maximum(state.estim_lr, ratio)
        return new, DAdaptAdamWState(m, v, s, estimate, numerator, count)

    return base.GradientTransformationExtraArgs(init, update, state=DAdaptAdamWState)


def _copies(params: Params) -> Params:
    """Returns copies: the parameters may be donated to the same call as the state."""
    return init_leaves(lambda p: jnp.array(p, copy=True), params)


def _square_distance(updates: Updates, start: Params, params: Params, like: Array) -> Array:
    """Returns |params - start|**2 of the leaves that have gradients, in the dtype of `like`."""
    moved = map_updates(lambda g, p0, p: p - p0, updates, extras=(start, params))
    return tree_math.norm(moved, squared=True).astype(like.dtype)


class DoGState(NamedTuple):
    """Whether no step was taken, the first parameters, the distance, the sum of squared norms."""

    is_init_step: Array
    init_params: Params
    max_dist: Array
    sum_sq_norm_grads: Array


def scale_by_dog(init_step: InitStep, eps: Number = 1e-8) -> base.GradientTransformation:
    """Multiplies updates by the distance from the first parameters over the root of their squares.

    It is `dog` without decay and learning rate, and takes two of its arguments.
    """
    kind, value = init_step
    if kind not in ("distance", "learning_rate", "heuristic"):
        raise ArgumentError(
            'dog: init_step is a pair of "distance", "learning_rate" or "heuristic", and a number; '
            f"got {init_step!r}"
        )

    def init(params: Params) -> DoGState:
        dtype = wide_dtype(widest_float(params))
        distance: Any = 0.0 if kind == "learning_rate" else value
        if kind == "heuristic":
            distance = value * (1 + tree_math.norm(init_leaves(lambda p: p, params)))
        return DoGState(
            jnp.ones((), BOOL),
            _copies(params),
            jnp.asarray(distance, dtype=dtype),
            jnp.zeros((), dtype),
        )

    def update(
        updates: Updates, state: DoGState, params: Params | None = None
    ) -> tuple[Updates, DoGState]:
        base.require_params(params, "dog")
        dtype = state.max_dist.dtype
        grads = map_updates(lambda g, p: g, updates, extras=(params,))
        square = _square_distance(grads, state.init_params, params, state.max_dist)
        most = jnp.maximum(state.max_dist, root(square))
        squares = state.sum_sq_norm_grads + tree_math.norm(grads, squared=True).astype(dtype)
        rate = most / jnp.sqrt(squares + eps)
        if kind == "learning_rate":
            rate = jnp.where(state.is_init_step, value, rate)
        new = map_updates(lambda u: times(rate, u), grads)
        return new, DoGState(jnp.zeros((), BOOL), state.init_params, most, squares)

    return base.GradientTransformation(init, update, state=DoGState)


def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: InitStep = ("heuristic", 1e-6),
    eps: Number = 1e-8,
    weight_decay: ScalarOrSchedule | None = None,
    mask: Mask | None = None,
) -> base.GradientTransformationExtraArgs:
    """DoG: SGD whose rate is the distance from the first parameters over the gradients' norms.

        update = -lr r g / sqrt(G + eps),  r <- max(r, |p - p0|),  G <- G + |g|**2

    The norms are of the whole tree. Averages of the parameters do better than the last ones.

    Source: Ivgi, Hinder & Carmon, "DoG is SGD's best friend: a parameter-free dynamic step size
    schedule", 2023. `update` needs the parameters, and `init` those that training begins with.

    Args:
        learning_rate: factor of the step, or a schedule of it.
        init_step: what the first step is made of: ("distance", r), ("learning_rate", the first
            rate), or ("heuristic", a), for r = a (1 + |p0|); the number is positive and small.
        eps: positive number added to G.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient;
            None: no decay.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `decay`, `dog`, `schedule`.

    Raises:
        ArgumentError: `init_step` is none of these.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([3.0, -4.0])
    >>> tx = optim.contrib.dog(init_step=("distance", 0.1))
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.06,  0.08], dtype=float32)
    """
    none = weight_decay is None
    return optimizer(
        "dog",
        decay=base.identity() if none else add_decayed_weights(weight_decay, mask),
        dog=scale_by_dog(init_step, eps),
        schedule=scale_by_learning_rate(learning_rate),
    )


class DoWGState(NamedTuple):
    """The first parameters, the weighted sum of squared norms, the squared distance."""

    init_params: Params
    weighted_sq_norm_grads: Array
    estim_sq_dist: Array


def scale_by_dowg(
    init_estim_sq_dist: Number | None = None, eps: Number = 1e-4
) -> base.GradientTransformation:
    """Multiplies updates by the squared distance from the first parameters over weighted norms.

    It is `dowg` without decay and learning rate, and takes two of its arguments.
    """

    def init(params: Params) -> DoWGState:
        dtype = wide_dtype(widest_float(params))
        distance = eps if init_estim_sq_dist is None else init_estim_sq_dist
        return DoWGState(_copies(params), jnp.zeros((), dtype), jnp.asarray(distance, dtype=dtype))

    def update(
        updates: Updates, state: DoWGState, params: Params | None = None
    ) -> tuple[Updates, DoWGState]:
        base.require_params(params, "dowg")
        dtype = state.estim_sq_dist.dtype
        grads = map_updates(lambda g, p: g, updates, extras=(params,))
        square = _square_distance(grads, state.init_params, params, state.estim_sq_dist)
        most = jnp.maximum(state.estim_sq_dist, square)
        squares = most * tree_math.norm(grads, squared=True).astype(dtype)
        squares = squares + state.weighted_sq_norm_grads
        rate = most / (jnp.sqrt(squares) + eps)
        new = map_updates(lambda u: times(rate, u), grads)
        return new, DoWGState(state.init_params, squares, most)

    return base.GradientTransformation(init, update, state=DoWGState)


def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: Number | None = None,
    eps: Number = 1e-4,
    weight_decay: ScalarOrSchedule | None = None,
    mask: Mask | None = None,
) -> base.GradientTransformationExtraArgs:
    """DoWG: DoG whose gradients count by the distance at which they were taken.

        update = -lr r g / (sqrt(G) + eps),  r <- max(r, |p - p0|**2),  G <- G + r |g|**2

    The norms are of the whole tree.

    Source: Khaled, Mishchenko & Jin, "DoWG unleashed: an efficient universal parameter-free
    gradient descent method", 2023. `update` needs the parameters, and `init` those that training
    begins with.

    Args:
        learning_rate: factor of the step, or a schedule of it.
        init_estim_sq_dist: first squared distance r, positive; None: `eps`.
        eps: positive number added to the root of G.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient;
            None: no decay.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `decay`, `dowg`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([3.0, -4.0])
    >>> tx = optim.contrib.dowg(init_estim_sq_dist=0.01)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(3)
    Array([-0.06,  0.08], dtype=float32)
    """
    none = weight_decay is None
    return optimizer(
        "dowg",
        decay=base.identity() if none else add_decayed_weights(weight_decay, mask),
        dowg=scale_by_dowg(init_estim_sq_dist, eps),
        schedule=scale_by_learning_rate(learning_rate),
    )
