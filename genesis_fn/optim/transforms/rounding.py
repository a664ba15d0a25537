"""Updates below the precision of the parameters: `stochastic_round` keeps them on average,
`warn_of_lost_steps` reports them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, Key, PyTree, debug, dtypes, lax, random, tree
from genesis_fn.dtypes import DType
from genesis_fn.extend import SourceLocation, as_array, where
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Params, Updates
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.transforms.noise import as_key
from genesis_fn.optim.tree_map_updates import (
    F32,
    I32,
    as_gradient,
    is_none,
    wide_dtype,
    widen,
    zero_count,
)


class StochasticRoundState(NamedTuple):
    """Steps taken, and the key from which each step's roundings are drawn."""

    count: Any
    rng_key: Key


def stochastic_round(key: Key | int = 0) -> base.GradientTransformation:
    """Rounds bfloat16, float16 and 8-bit parameters at random when updates are added.

        update = r - p,  r = above with probability (p + u - below) / (above - below), else below,
        the neighbours of p + u in the parameter's dtype

    `apply_updates` then gives r, whose expectation is the exact sum, so that small updates are not
    lost. It is the last transformation of a chain; updates of wider parameters pass. `update` needs
    the parameters.

    Source: Gupta et al., "Deep learning with limited numerical precision", 2015.

    Args:
        key: random key or seed; the same one gives the same roundings.

    Returns:
        The transformation, whose states are StochasticRoundState(count, rng_key).

    >>> w, tx = jnp.ones(10_000, "bfloat16"), optim.stochastic_round(0)
    >>> updates, state = tx.update(0.001 * jnp.ones(10_000), tx.init(w), w)
    >>> moved = optim.apply_updates(w, updates).astype("float32")
    >>> sorted({*moved.tolist()}), abs(float(moved.mean()) - 1.001) < 1e-4
    ([1.0, 1.0078125], True)
    """

    def init(params: Params) -> StochasticRoundState:
        return StochasticRoundState(zero_count(), as_key(key))

    def update(
        updates: Updates, state: StochasticRoundState, params: Params | None = None
    ) -> tuple[Updates, StochasticRoundState]:
        base.require_params(params, "stochastic_round")
        now = random.fold_in(state.rng_key, state.count)

        def leaf(i: int, u: Array, p: Array) -> Array:
            if wide_dtype(p.dtype) == p.dtype:
                return u
            start = widen(p)
            return _drawn(start + widen(u), p.dtype, random.fold_in(now, i)) - start

        new = _with_params(leaf, updates, params)
        return new, StochasticRoundState(safe_increment(state.count), state.rng_key)

    return base.GradientTransformation(init, update, state=StochasticRoundState)


def _with_params(f: Callable[[int, Array, Array], Any], updates: Updates, params: Params) -> PyTree:
    """Applies `f(index, update, parameter)` to every leaf; frozen ones stay None."""
    position = iter(range(len(tree.leaves(updates, is_leaf=is_none))))

    def leaf(u: ArrayLike | None, p: ArrayLike | None) -> Any:
        i, g = next(position), as_gradient(u)
        return None if g is None or p is None else f(i, g, as_array(p))

    return tree.map(leaf, updates, params, is_leaf=is_none)


def _drawn(x: Array, dtype: DType, key: Key) -> Array:
    """Rounds `x` at random to one of its neighbours in `dtype`; the result has the dtype of `x`."""
    near = x.astype(dtype)
    value = near.astype(x.dtype)
    # The bits of floats of one sign count up away from zero: adding 1 gives the next float.
    bits = lax.bitcast_convert_type(near, dtypes.dtype(f"uint{8 * near.dtype.itemsize}"))
    outwards = abs(x) > abs(value)
    step = jnp.where(outwards, 1, -1).astype(I32)
    moved = (bits.astype(I32) + step).astype(bits.dtype)
    other = lax.bitcast_convert_type(moved, dtype).astype(x.dtype)
    # 0 where x is exact; NaN beyond the greatest number, where the comparison is then false.
    share = abs(x - value) / jnp.where(x == value, 1.0, abs(other - value))
    return jnp.where(random.uniform(key, x.shape) < share, other, value)


class LostStepsState(NamedTuple):
    """Steps taken, and the share of the latest nonzero updates that was lost."""

    count: Any
    lost: Array


class LostStepsWarning(UserWarning):
    """Nearly all updates are smaller than half a unit in the last place of their parameters."""


def warn_of_lost_steps(limit: float = 0.99) -> base.GradientTransformation:
    """Passes updates on, and warns at the first step if more than `limit` of them are lost.

        lost = (number of u != 0 with p + u == p in the parameter's dtype) / (number of u != 0)

    Bfloat16 parameters of size 1 do not move by less than 2**-9. `optim.describe` reports the share
    as "lost_steps". It is the last transformation of a chain; `update` needs the parameters.

    Args:
        limit: share of the nonzero updates, in [0, 1].

    Returns:
        The transformation, whose states are LostStepsState(count, lost).

    >>> w, tx = jnp.ones(2, "bfloat16"), optim.warn_of_lost_steps()
    >>> updates, state = tx.update(jnp.array([1e-4, 0.1]), tx.init(w), w)
    >>> state.lost
    Array(0.5, dtype=float32)
    """
    line = where()

    def init(params: Params) -> LostStepsState:
        return LostStepsState(zero_count(), jnp.zeros((), F32))

    def update(
        updates: Updates, state: LostStepsState, params: Params | None = None
    ) -> tuple[Updates, LostStepsState]:
        base.require_params(params, "warn_of_lost_steps")
        lost, moving = [], []

        def count(_: int, u: Array, p: Array) -> None:
            stays = (widen(p) + u).astype(p.dtype) == p
            lost.append(jnp.sum(stays & (u != 0), dtype=F32))
            moving.append(jnp.sum(u != 0, dtype=F32))

        _with_params(count, updates, params)
        share = sum(lost) / jnp.maximum(sum(moving), 1.0) if lost else jnp.zeros((), F32)
        due = (state.count == 0) & (share > limit)
        # Under `vmap` both branches run, of which the examples that are not due give 0.
        lax.cond(
            due,
            lambda s: debug.callback(lambda x: _warn(x, limit, line), s),
            lambda _: None,
            jnp.where(due, share, 0.0),
        )
        return updates, LostStepsState(safe_increment(state.count), share)

    return base.GradientTransformation(init, update, state=LostStepsState)


def _warn(share: Array, limit: float, line: SourceLocation) -> None:
    if not float(share) > limit:
        return
    warnings.warn(
        f"{100 * float(share):.1f} % of the first step's updates are below half a unit in the last "
        f"place of their parameters, which do not move\n  at {line.describe()}\n"
        "  keep float32 parameters, or use optim.with_master(tx), or stochastic_round=True",
        LostStepsWarning,
        stacklevel=1,
    )
