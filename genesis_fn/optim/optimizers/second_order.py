"""Sophia: steps divided by an estimated Hessian diagonal, and clipped (Liu et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, Key, PyTree, debug, grad, jvp, random, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.lax import cond
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, OptState, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.optimizers.moments import first_moment
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.combine import chain
from genesis_fn.optim.transforms.noise import as_key
from genesis_fn.optim.transforms.transform import (
    add_decayed_weights,
    moment,
    scale_by_learning_rate,
)
from genesis_fn.optim.tree_map_updates import (
    init_moments,
    is_inexact,
    is_none,
    map_updates,
    zero_count,
)


class HutchinsonState(NamedTuple):
    """The key of the next sample."""

    key: Key


def hutchinson_estimator_diag_hessian(
    random_seed: Key | int | None = None,
) -> base.GradientTransformationExtraArgs:
    """Estimates the diagonal of the Hessian: `update(grads, state, params, obj_fn=loss)`.

        update = r * (H r),  r of random signs, whose mean is the diagonal of H

    Source: Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990; Bekas
    et al., "An estimator for the diagonal of a matrix", 2007. `update` needs the parameters, and
    `obj_fn=`, a function of them that gives a scalar.

    Args:
        random_seed: random key or seed of the signs; None: 0.

    Returns:
        The transformation, whose states are HutchinsonState(key).

    Raises:
        ArgumentError: `update` is called without the parameters, or without `obj_fn=`.

    >>> w, tx = jnp.array([1.0, -2.0]), optim.hutchinson_estimator_diag_hessian()
    >>> diagonal, state = tx.update(w, tx.init(w), w, obj_fn=lambda w: jnp.sum(w**4))
    >>> diagonal
    Array([12., 48.], dtype=float32)
    """

    def init(params: Params) -> HutchinsonState:
        return HutchinsonState(as_key(0 if random_seed is None else random_seed))

    def update(
        updates: Updates,
        state: HutchinsonState,
        params: Params | None = None,
        obj_fn: Callable[[Params], Array] | None = None,
        **extra: Any,
    ) -> tuple[Updates, HutchinsonState]:
        base.require_params(params, "hutchinson_estimator_diag_hessian")
        if obj_fn is None:
            raise ArgumentError(
                "hutchinson_estimator_diag_hessian: pass update(..., obj_fn=the loss)"
            )
        next_key, now = random.split(state.key)
        leaves, treedef = tree.flatten(params, is_none)
        used = [p is not None and is_inexact(as_array(p)) for p in leaves]
        floats = [as_array(p) for p, u in zip(leaves, used, strict=True) if u]
        keys = random.split(now, max(len(floats), 1))
        signs = [
            jnp.where(random.bernoulli(keys[i], 0.5, p.shape), 1.0, -1.0).astype(p.dtype)
            for i, p in enumerate(floats)
        ]

        def loss(floats: list[Array]) -> Array:
            it = iter(floats)
            whole = [next(it) if u else p for p, u in zip(leaves, used, strict=True)]
            return obj_fn(tree.unflatten(treedef, whole))

        _, product = jvp(grad(loss), (floats,), (signs,))
        it = iter([h * s for h, s in zip(product, signs, strict=True)])
        diagonal = tree.unflatten(treedef, [next(it) if u else None for u in used])
        return diagonal, HutchinsonState(next_key)

    return base.GradientTransformationExtraArgs(init, update, state=HutchinsonState)


class SophiaState(NamedTuple):
    """Steps taken, the first moment, the mean Hessian diagonal, and the estimator's state."""

    count: Any
    mu: PyTree
    nu: PyTree
    hessian_fn_state: OptState


def scale_by_sophia(
    b1: Number = 0.965,
    b2: Number = 0.99,
    eps: Number = 1e-8,
    gamma: Number = 0.01,
    clip_threshold: Number | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: base.GradientTransformation | None = None,
    mu_dtype: DTypeLike | None = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: int = 0,
) -> base.GradientTransformationExtraArgs:
    """Divides the updates' moving mean by the Hessian's diagonal, and clips, as Sophia does.

        m <- b1 m + (1 - b1) g,  update = clip(m_hat / max(gamma h, eps), -c, c),
        h <- b2 h + (1 - b2) (an estimate of the diagonal) every `update_interval` steps,
        c = clip_threshold; an estimate of h counts from the next step on

    Source: Liu et al., "Sophia: a scalable stochastic second-order optimizer", 2023. `update` needs
    the parameters; its extra arguments go to the estimator, as `obj_fn=` to Hutchinson's.

    Args:
        b1, b2: decay rates of the first moment and of the Hessian's diagonal, in [0, 1).
        eps: positive least denominator.
        gamma: positive factor of the Hessian's diagonal: the smaller, the more is clipped.
        clip_threshold: largest element of a step before the learning rate, positive; None: no
            limit.
        update_interval: positive number of steps between estimates of the diagonal.
        hessian_diagonal_fn: transformation whose updates estimate the diagonal; None:
            `hutchinson_estimator_diag_hessian()`.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        verbose: whether the win rate, the share of elements that are not clipped, is printed.
        print_win_rate_every_n_steps: positive number of steps between prints, where `verbose`.

    Returns:
        The transformation, whose states are SophiaState(count, mu, nu, hessian_fn_state); nu is h.

    Raises:
        ArgumentError: `update_interval` is not positive, or the number of steps between prints is
            not where they are asked for.

    >>> w, tx = jnp.array([1.0, -2.0]), optim.scale_by_sophia(gamma=1.0)
    >>> loss = lambda w: jnp.sum(w**4)
    >>> _, state = tx.update(gf.grad(loss)(w), tx.init(w), w, obj_fn=loss)
    >>> updates, state = tx.update(gf.grad(loss)(w) / 100, state, w, obj_fn=loss)
    >>> state.nu.round(4)
    Array([0.12, 0.48], dtype=float32)
    """
    base.require_positive("scale_by_sophia", update_interval=update_interval)
    if verbose:
        every = print_win_rate_every_n_steps
        base.require_positive("scale_by_sophia", print_win_rate_every_n_steps=every)
    estimator = base.with_extra_args_support(
        hessian_diagonal_fn or hutchinson_estimator_diag_hessian()
    )

    def init(params: Params) -> SophiaState:
        mu, nu = init_moments(params, dtype=mu_dtype), init_moments(params)
        return SophiaState(zero_count(), mu, nu, estimator.init(params))

    def update(
        updates: Updates, state: SophiaState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, SophiaState]:
        base.require_params(params, "scale_by_sophia")
        count = safe_increment(state.count)
        first = first_moment(b1, count, False)

        def leaf(g: Array, mu: Array, h: Array) -> tuple[Array, ...]:
            mu = moment(g, mu, b1)
            return first(g, mu) / jnp.maximum(gamma * h, eps), mu

        def renewed() -> tuple[Any, ...]:
            sample, kept = estimator.update(updates, state.hessian_fn_state, params=params, **extra)
            _, nu = map_updates(lambda h, nu: (h, moment(h, nu, b2)), sample, state.nu)
            return nu, kept

        nu, hessian_state = cond(
            state.count % update_interval == 0, renewed, lambda: (state.nu, state.hessian_fn_state)
        )
        # The step uses the diagonal as it was before this call.
        new, mu = map_updates(leaf, updates, state.mu, extras=(state.nu,))
        most = clip_threshold
        if most is not None:
            if verbose:
                due = count % print_win_rate_every_n_steps == 0
                cond(due, lambda: _print_win_rate(new, most), lambda: None)
            new = map_updates(lambda u: jnp.clip(u, -most, most), new)
        return new, SophiaState(count, mu, nu, hessian_state)

    return base.GradientTransformationExtraArgs(init, update, state=SophiaState)


def _print_win_rate(steps: Updates, clip_threshold: Number) -> None:
    """Prints the share of elements that the threshold leaves as they are."""
    inside = map_updates(lambda u: jnp.sum(jnp.abs(u) < clip_threshold), steps)
    share = tree_math.sum(inside) / tree_math.size(steps)
    debug.print("Sophia optimizer win rate: {}", share)


def sophia(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.965,
    b2: Number = 0.99,
    eps: Number = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    weight_decay_mask: Mask | None = None,
    gamma: Number = 0.01,
    clip_threshold: Number | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: base.GradientTransformation | None = None,
    mu_dtype: DTypeLike | None = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: int = 0,
) -> base.GradientTransformationExtraArgs:
    """Sophia: Adam with the Hessian's diagonal as second moment: `update(..., obj_fn=loss)`.

        update = -lr (clip(m_hat / max(gamma h, eps), -c, c) + weight_decay p), c = clip_threshold,
        h: moving mean of estimates of the diagonal, renewed every `update_interval` steps

    Source: Liu et al., "Sophia: a scalable stochastic second-order optimizer", 2023. `update` needs
    the parameters; its extra arguments go to the estimator, as `obj_fn=` to Hutchinson's.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first moment and of the Hessian's diagonal, in [0, 1).
        eps: positive least denominator.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        weight_decay_mask: which parameters decay: a tree of bools, or a function that gives it, of
            the parameters or of (path, leaf); None: all.
        gamma: positive factor of the Hessian's diagonal: the smaller, the more is clipped.
        clip_threshold: largest element of a step before the learning rate, positive; None: no
            limit.
        update_interval: positive number of steps between estimates of the diagonal.
        hessian_diagonal_fn: transformation whose updates estimate the diagonal; None:
            `hutchinson_estimator_diag_hessian()`.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        verbose: whether the win rate, the share of elements that are not clipped, is printed.
        print_win_rate_every_n_steps: positive number of steps between prints, where `verbose`.

    Returns:
        The transformation, whose states have the fields `sophia`, `decay`, `schedule`.

    Raises:
        ArgumentError: as of `scale_by_sophia`.

    >>> w, tx = jnp.array([1.0, -2.0]), optim.sophia(0.1, weight_decay=0.0)
    >>> loss = lambda w: jnp.sum(w**4)
    >>> updates, state = tx.update(gf.grad(loss)(w), tx.init(w), w, obj_fn=loss)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    return chain(
        sophia=scale_by_sophia(
            b1,
            b2,
            eps,
            gamma,
            clip_threshold,
            update_interval,
            hessian_diagonal_fn,
            mu_dtype,
            verbose,
            print_win_rate_every_n_steps,
        ),
        decay=add_decayed_weights(weight_decay, weight_decay_mask),
        schedule=scale_by_learning_rate(learning_rate),
    )
