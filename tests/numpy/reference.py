"""Comparison of a function of genesis_fn.numpy with jax.numpy: values, dtypes, shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl, from_numpy

TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-6}


def values(shape: tuple[int, ...], dtype: str, seed: int = 0, low: float = -3, high: float = 3):
    """Random values of a dtype, small enough that integer arithmetic does not overflow."""
    rng = np.random.default_rng(seed + len(shape))
    d = jnp.dtype(dtype)
    if d == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if d.kind in "iu":
        return rng.integers(0 if d.kind == "u" else int(low), int(high) + 4, shape).astype(d)
    x = rng.uniform(low, high, shape)
    return (x + 1j * rng.uniform(low, high, shape) if d.kind == "c" else x).astype(d)


def ours(x: Any) -> Any:
    """A pytree with its ndarrays as arrays of this library, dtypes kept."""
    if isinstance(x, (list, tuple)):
        return type(x)(ours(v) for v in x)
    return from_numpy(x) if isinstance(x, np.ndarray) else x


def theirs(x: Any) -> Any:
    """A pytree with its ndarrays as JAX arrays."""
    if isinstance(x, (list, tuple)):
        return type(x)(theirs(v) for v in x)
    return jax_numpy.asarray(x) if isinstance(x, np.ndarray) else x


def close(mine: Any, reference: Any, dtype: bool = True, tolerance: float | None = None) -> None:
    """Assert that two results agree in structure, shape, dtype and value."""
    a = tree.leaves(tuple(mine) if isinstance(mine, (list, tuple)) else mine)
    b = jax.tree.leaves(tuple(reference) if isinstance(reference, (list, tuple)) else reference)
    assert len(a) == len(b)
    for x, y in zip(a, b):
        if not isinstance(x, ArrayImpl):
            assert x == y
            continue
        y = np.asarray(y)
        assert tuple(x.shape) == y.shape, (x.aval, y.shape)
        if dtype:
            assert x.dtype == y.dtype, (x.aval, y.dtype)
        x = np.asarray(x)
        if y.dtype.kind in "biu":
            np.testing.assert_array_equal(x, y)
            continue
        wide = np.complex128 if y.dtype.kind == "c" else np.float64
        bound = tolerance or TOLERANCE[max(2, min(y.real.dtype.itemsize, 8))]
        np.testing.assert_allclose(x.astype(wide), y.astype(wide), rtol=bound, atol=bound)


def check(name: str, *args: Any, dtype: bool = True, tolerance: float | None = None, **kwargs: Any):
    """Assert that jnp.<name> agrees with jax.numpy.<name> on these arguments."""
    mine, reference = jnp, jax_numpy
    for part in name.split("."):
        mine, reference = getattr(mine, part), getattr(reference, part)
    with jax.numpy_dtype_promotion("standard"):
        expected = reference(*theirs(list(args)), **{k: theirs(v) for k, v in kwargs.items()})
    got = mine(*ours(list(args)), **{k: ours(v) for k, v in kwargs.items()})
    close(got, expected, dtype, tolerance)
