"""Steps that are smaller than the precision of the parameters: rounded at random, or told of."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import lax, random
from genesis_fn.core import dtypes, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import SourceLocation, where
from genesis_fn.optim import base
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.transforms.noise import as_key
from genesis_fn.optim.tree_map_updates import as_gradient, is_none, wide_dtype, widen, zero_count
from genesis_fn.transforms.custom.callback import debug_callback


class StochasticRoundState(NamedTuple):
    """Steps taken, and the key from which each step's roundings are drawn."""

    count: Any
    rng_key: Any


def stochastic_round(key: Any = 0) -> base.GradientTransformation:
    """Updates after which bfloat16, float16 and 8-bit parameters are rounded at random.

    `apply_updates` then gives one of the two neighbours of parameter + update in the parameter's
    dtype, the nearer one more often, so that the expectation is the exact sum and small steps are
    not lost (Gupta et al. 2015). It is the last transformation of a chain; updates of wider
    parameters pass. `key` is a random key or a seed; the same one gives the same roundings.
    """

    def init(params: Any) -> StochasticRoundState:
        return StochasticRoundState(zero_count(), as_key(key))

    def update(updates: Any, state: StochasticRoundState, params: Any = None) -> tuple[Any, ...]:
        base.require_params(params, "stochastic_round")
        now = random.fold_in(state.rng_key, state.count)

        def leaf(i: int, u: Any, p: Any) -> Any:
            if u is None or wide_dtype(p.dtype) == p.dtype:
                return u
            start = widen(p)
            return _drawn(start + widen(u), p.dtype, random.fold_in(now, i)) - start

        new = _with_params(leaf, updates, params)
        return new, StochasticRoundState(safe_increment(state.count), state.rng_key)

    return base.GradientTransformation(init, update, state=StochasticRoundState)


def _with_params(f: Any, updates: Any, params: Any) -> Any:
    """`f(position, update, parameter)` of every leaf; what is frozen stays None."""
    position = iter(range(len(tree.leaves(updates, is_leaf=is_none))))

    def leaf(u: Any, p: Any) -> Any:
        i, g = next(position), as_gradient(u)
        return None if g is None or p is None else f(i, g, as_array(p))

    return tree.map(leaf, updates, params, is_leaf=is_none)


def _drawn(x: Any, kind: Any, key: Any) -> Any:
    """`x` as one of its two neighbours in the dtype `kind`, in the dtype of `x`."""
    near = x.astype(kind)
    value = near.astype(x.dtype)
    # Among numbers of one sign, the next one away from zero has the next bits.
    bits = lax.bitcast_convert_type(near, dtypes.dtype(f"uint{8 * near.dtype.itemsize}"))
    outwards = abs(x) > abs(value)
    step = jnp.where(outwards, 1, -1).astype(dtypes.I32)
    moved = (bits.astype(dtypes.I32) + step).astype(bits.dtype)
    other = lax.bitcast_convert_type(moved, kind).astype(x.dtype)
    # 0 where x is exact, NaN and so never where it is beyond the greatest number.
    share = abs(x - value) / jnp.where(x == value, 1.0, abs(other - value))
    return jnp.where(random.uniform(key, x.shape) < share, other, value)


class LostStepsState(NamedTuple):
    """Steps taken, and the share of nonzero updates that the last one lost."""

    count: Any
    lost: Any


class LostStepsWarning(UserWarning):
    """Nearly all updates are smaller than half a unit in the last place of their parameters."""


def warn_of_lost_steps(limit: float = 0.99) -> base.GradientTransformation:
    """Passes updates on, and warns at the first step if more than `limit` of them are lost.

    An update is lost where adding it, in the parameter's dtype, gives the parameter again: bfloat16
    parameters of size 1 do not move by less than 2**-9. `describe` reports the share as
    "lost_steps". It is the last transformation of a chain.
    """
    line = where()

    def init(params: Any) -> LostStepsState:
        return LostStepsState(zero_count(), jnp.zeros((), dtypes.F32))

    def update(updates: Any, state: LostStepsState, params: Any = None) -> tuple[Any, ...]:
        base.require_params(params, "warn_of_lost_steps")
        lost, moving = [], []

        def count(_: int, u: Any, p: Any) -> None:
            stays = (widen(p) + u).astype(p.dtype) == p
            lost.append(jnp.sum(stays & (u != 0), dtype=dtypes.F32))
            moving.append(jnp.sum(u != 0, dtype=dtypes.F32))

        _with_params(count, updates, params)
        share = sum(lost) / jnp.maximum(sum(moving), 1.0) if lost else jnp.zeros((), dtypes.F32)
        lax.cond(
            (state.count == 0) & (share > limit),
            lambda s: debug_callback(lambda x: _warn(x, line), s),
            lambda _: None,
            share,
        )
        return updates, LostStepsState(safe_increment(state.count), share)

    return base.GradientTransformation(init, update, state=LostStepsState)


def _warn(share: Any, line: SourceLocation) -> None:
    warnings.warn(
        f"{100 * float(share):.1f} % of the first step's updates are below half a unit in the last "
        f"place of their parameters, which do not move\n  at {line.describe()}\n"
        "  keep float32 parameters, or use optim.with_master(tx), or stochastic_round=True",
        LostStepsWarning,
        stacklevel=1,
    )
