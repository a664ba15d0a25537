"""The same transformation here and in optax, on the same random gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.core import tree

SHAPES = {"layer": {"w": (6, 5), "b": (5,)}, "list": [(3, 4, 2), ()]}


def _arrays(rng: np.random.Generator, dtype: Any, scale: float = 1.0) -> Any:
    return jax.tree.map(
        lambda s: np.asarray(rng.normal(size=s) * scale, dtype),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def ours(values: Any) -> Any:
    """A tree of ndarrays as arrays of this library, dtypes kept."""
    return tree.map(lambda x: jnp.asarray(x, dtype=x.dtype), values)


def theirs(values: Any) -> Any:
    """A tree of ndarrays as jax arrays."""
    return jax.tree.map(jax.numpy.asarray, values)


def trajectory(
    tx: Any,
    apply: Callable,
    convert: Callable,
    params: Any,
    grads: list[Any],
    extra: Callable[[int], dict],
    wrap: Callable = lambda f: f,
) -> Any:
    """Parameters after all steps, as ndarrays."""
    params = convert(params)
    state = tx.init(params)

    def step(params: Any, state: Any, g: Any, kw: dict) -> tuple:
        updates, state = tx.update(g, state, params, **kw)
        return apply(params, updates), state

    step = wrap(step)
    for i, g in enumerate(grads):
        params, state = step(params, state, convert(g), extra(i))
    return [np.asarray(x) for x in jax.tree.leaves(jax.tree.map(np.asarray, tree_of(params)))]


def tree_of(params: Any) -> Any:
    """A tree of arrays of either library as one of ndarrays."""
    return tree.map(np.asarray, params)


def gap(
    mine: Any,
    other: Any,
    dtype: Any,
    steps: int = 100,
    seed: int = 0,
    extra: Callable[[int], dict] = lambda i: {},
    grad_scale: float = 1.0,
    of: str = "movement",
) -> float:
    """|difference of the parameters| after `steps` steps, over |their movement| or |parameters|."""
    rng = np.random.default_rng(seed)
    start = _arrays(rng, dtype)
    grads = [_arrays(rng, dtype, grad_scale) for _ in range(steps)]
    a = trajectory(mine, optim.apply_updates, ours, start, grads, extra)
    with jax.enable_x64(True):
        b = trajectory(other, optax.apply_updates, theirs, start, grads, extra, jax.jit)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype == dtype, (x.dtype, y.dtype)
        assert x.shape == y.shape
    begin = [np.zeros_like(x) for x in b] if of == "parameters" else jax.tree.leaves(start)
    difference = sum(np.sum((x.astype(np.float64) - y) ** 2) for x, y in zip(a, b, strict=True))
    size = sum(np.sum((x.astype(np.float64) - s) ** 2) for x, s in zip(b, begin, strict=True))
    assert size > 0
    return float(np.sqrt(difference / size))
