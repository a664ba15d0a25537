"""`add_noise`: Gaussian noise on gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Key, dtypes, random, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, Updates
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.tree_map_updates import F32, as_gradient, is_none, map_updates, zero_count


class AddNoiseState(NamedTuple):
    """Steps taken and the key of the next noise."""

    count: Any
    rng_key: Key


def as_key(seed: Any) -> Key:
    """Returns the random key of an integer seed; a key passes."""
    whole = getattr(seed, "shape", None) == () and dtypes.is_integer(seed.dtype)
    return random.key(seed) if whole or isinstance(seed, int) else seed


def add_noise(
    eta: Number, gamma: Number, key: Key | int | None = None, *, seed: Key | int | None = None
) -> base.GradientTransformation:
    """Adds normal noise, which fades from step to step, to updates.

        update = u + sqrt(eta / t**gamma) n,  n of mean 0 and variance 1, at step t = 1, 2, ...

    Source: Neelakantan et al., "Adding gradient noise improves learning for very deep networks",
    2015.

    Args:
        eta: variance of the noise at the first step, >= 0.
        gamma: exponent with which the variance fades, >= 0.
        key: random key or seed; None: 0.
        seed: another name for it.

    Returns:
        The transformation, whose states are AddNoiseState(count, rng_key).

    Raises:
        ArgumentError: both `key` and `seed` are given, or `eta` is negative.

    >>> tx, g = optim.add_noise(eta=0.01, gamma=0.55, key=0), jnp.zeros(1000)
    >>> updates, state = tx.update(g, tx.init(g))
    >>> 0.09 < updates.std() < 0.11
    Array(True, dtype=bool)
    """
    base.require_not_negative("add_noise", eta=eta)
    if key is not None and seed is not None:
        raise ArgumentError("add_noise takes key or seed, not both")
    start = (0 if seed is None else seed) if key is None else key

    def init(params: Params) -> AddNoiseState:
        return AddNoiseState(zero_count(), as_key(start))

    def update(
        updates: Updates, state: AddNoiseState, params: Params | None = None
    ) -> tuple[Updates, AddNoiseState]:
        count = safe_increment(state.count)
        deviation = jnp.sqrt(eta / count.astype(F32) ** gamma)
        next_key, now = random.split(state.rng_key)
        leaves, treedef = tree.flatten(updates, is_none)
        keys = random.split(now, max(len(leaves), 1))
        noise = []
        for i, u in enumerate(leaves):
            g = as_gradient(u)
            noise.append(None if g is None else random.normal(keys[i], g.shape, g.dtype))
        noise_tree = tree.unflatten(treedef, noise)
        new = map_updates(
            lambda u, n: u + deviation.astype(real_of(u.dtype)) * n, updates, extras=(noise_tree,)
        )
        return new, AddNoiseState(count, next_key)

    return base.GradientTransformation(init, update, state=AddNoiseState)
