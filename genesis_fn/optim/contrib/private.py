"""DP-SGD: gradients of single examples, clipped, summed and hidden in noise (Abadi et al. 2016)."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, Key, random, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.transforms.clipping import per_example_global_norm_clip
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.noise import as_key
from genesis_fn.optim.transforms.transform import scale_by_learning_rate, times, trace


class DifferentiallyPrivateAggregateState(NamedTuple):
    """The key of the next noise."""

    rng_key: Key


def differentially_private_aggregate(
    l2_norm_clip: Number,
    noise_multiplier: Number,
    key: Key | int | None = None,
    *,
    seed: Key | int | None = None,
) -> base.GradientTransformation:
    """Makes a noisy mean of the gradients of single examples, each of which is clipped.

        update = (sum_i g_i min(1, C / |g_i|) + noise_multiplier C n) / batch,  C = l2_norm_clip,
        n of mean 0 and variance 1,  |g_i| over the whole tree

    Gradients have a leading batch dimension, as from `vmap(grad(loss))`: this is the first
    transformation of a chain, and `MultiSteps` or `apply_every` around it would average what it
    must see one by one.

    Source: Abadi et al., "Deep learning with differential privacy", 2016.

    Args:
        l2_norm_clip: limit of each example's norm, positive.
        noise_multiplier: the noise's standard deviation over the limit, >= 0.
        key: random key or seed; None: 0, with a warning, since privacy needs a secret one.
        seed: another name for it.

    Returns:
        The transformation, whose states are DifferentiallyPrivateAggregateState(rng_key).

    Raises:
        ArgumentError: both `key` and `seed` are given, or a number is negative.
        ShapeError: `update` is called with gradients that have no common batch dimension.

    >>> w, g = jnp.zeros(2), jnp.array([[6.0, 8.0], [0.0, 2.0]])
    >>> tx = optim.contrib.differentially_private_aggregate(5.0, noise_multiplier=0.0, key=0)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates
    Array([1.5, 3. ], dtype=float32)
    """
    name = "differentially_private_aggregate"
    base.require_positive(name, l2_norm_clip=l2_norm_clip)
    base.require_not_negative(name, noise_multiplier=noise_multiplier)
    if key is not None and seed is not None:
        raise ArgumentError(f"{name} takes key or seed, not both")
    start = seed if key is None else key
    if start is None:
        text = f"{name} without a key draws the noise of key 0, which all know: pass key="
        warnings.warn(text, stacklevel=2)
        start = 0

    def init(params: Params) -> DifferentiallyPrivateAggregateState:
        return DifferentiallyPrivateAggregateState(as_key(start))

    def update(
        updates: Updates, state: DifferentiallyPrivateAggregateState, params: Params | None = None
    ) -> tuple[Updates, DifferentiallyPrivateAggregateState]:
        sums, _ = per_example_global_norm_clip(updates, l2_norm_clip)
        leaves, treedef = tree.flatten(sums)
        batch = as_array(tree.leaves(updates)[0]).shape[0]
        next_key, *keys = random.split(state.rng_key, len(leaves) + 1)
        deviation = jnp.asarray(l2_norm_clip * noise_multiplier)

        def noisy(total: Array, k: Key) -> Array:
            return (total + times(deviation, random.normal(k, total.shape, total.dtype))) / batch

        new = [noisy(total, k) for total, k in zip(leaves, keys, strict=True)]
        return tree.unflatten(treedef, new), DifferentiallyPrivateAggregateState(next_key)

    return base.GradientTransformation(init, update, state=DifferentiallyPrivateAggregateState)


def dpsgd(
    learning_rate: ScalarOrSchedule,
    l2_norm_clip: Number,
    noise_multiplier: Number,
    seed: Key | int,
    momentum: Number | None = None,
    nesterov: bool = False,
) -> base.GradientTransformationExtraArgs:
    """DP-SGD: SGD by noisy means of clipped gradients, from which no example can be told.

        g = (sum_i g_i min(1, C / |g_i|) + noise_multiplier C n) / batch,  C = l2_norm_clip,
        update = -lr g, or with momentum m <- momentum m + g,  update = -lr m

    Gradients have a leading batch dimension, as from `vmap(grad(loss))`; `MultiSteps` or
    `apply_every` around it would average what it must see one by one.

    Source: Abadi et al., "Deep learning with differential privacy", 2016.

    Args:
        learning_rate: positive number, or a schedule of the step.
        l2_norm_clip: limit of each example's norm, positive.
        noise_multiplier: the noise's standard deviation over the limit, >= 0.
        seed: random key or seed of the noise; privacy needs a secret one.
        momentum: decay rate of the momentum, in [0, 1); None: no momentum.
        nesterov: whether the momentum is taken one step ahead.

    Returns:
        The transformation, whose states have the fields `aggregate`, `momentum`, `schedule`.

    Raises:
        ArgumentError: a number is negative.
        ShapeError: `update` is called with gradients that have no common batch dimension.

    >>> w, g = jnp.zeros(2), jnp.array([[6.0, 8.0], [0.0, 2.0]])
    >>> tx = optim.dpsgd(0.1, l2_norm_clip=5.0, noise_multiplier=0.0, seed=0)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.15, -0.3 ], dtype=float32)
    """
    return optimizer(
        "dpsgd",
        aggregate=differentially_private_aggregate(l2_norm_clip, noise_multiplier, seed),
        momentum=base.identity() if momentum is None else trace(momentum, nesterov),
        schedule=scale_by_learning_rate(learning_rate),
    )
