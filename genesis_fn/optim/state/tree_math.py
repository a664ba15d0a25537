"""Arithmetic on pytrees of arrays; public as `optim.tree`. None leaves stay None."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, dtypes, tree
from genesis_fn.dtypes import DType
from genesis_fn.errors import ArgumentError, DTypeError
from genesis_fn.extend import Tracer, as_array
from genesis_fn.optim.annotations import Number, Updates
from genesis_fn.optim.numerics import abs_sq, one_minus_power
from genesis_fn.optim.tree_map_updates import F32, is_none, widen

# Functions here have an argument called `tree`, which hides the module.
leaf_paths = tree.paths


def _map(f: Callable[..., Any], *trees: PyTree) -> PyTree:
    """Maps `f` over leaves; None where the first tree has None."""
    return tree.map(lambda x, *ys: None if x is None else f(x, *ys), *trees, is_leaf=is_none)


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
    """Adds trees leaf by leaf: tree_x + tree_y + ..."""
    return _map(lambda *xs: functools.reduce(operator.add, xs), tree_x, tree_y, *other_trees)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Subtracts trees leaf by leaf: tree_x - tree_y."""
    return _map(operator.sub, tree_x, tree_y)


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Multiplies trees elementwise: tree_x * tree_y."""
    return _map(operator.mul, tree_x, tree_y)


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Divides trees elementwise: tree_x / tree_y."""
    return _map(operator.truediv, tree_x, tree_y)


def scale(scalar: Number, tree: PyTree) -> PyTree:
    """Multiplies every leaf by a scalar."""
    return _map(lambda x: scalar * x, tree)


def add_scale(tree_x: PyTree, scalar: Number, tree_y: PyTree) -> PyTree:
    """Returns tree_x + scalar * tree_y."""
    return _map(lambda x, y: x + scalar * y, tree_x, tree_y)


def _arrays(t: PyTree) -> list[Array]:
    return [as_array(x) for x in tree.leaves(t)]


def _fold(f: Callable[[Any, Any], Any], xs: Sequence[Array], empty: bool | float) -> Array:
    return functools.reduce(f, xs) if xs else jnp.asarray(empty)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Array:
    """Returns the inner product of trees: the sum over leaves of conj(x) y, a scalar."""

    def dot(x: Array, y: Array) -> Array:
        x, y = widen(as_array(x)), widen(as_array(y))
        return jnp.sum((jnp.conj(x) if dtypes.is_complex(x.dtype) else x) * y)

    return _fold(operator.add, tree.leaves(tree.map(dot, tree_x, tree_y)), 0.0)


def sum(tree: PyTree) -> Array:
    """Returns the sum of all elements of all leaves."""
    return _fold(operator.add, [jnp.sum(x) for x in _arrays(tree)], 0.0)


def max(tree: PyTree) -> Array:
    """Returns the largest element of all leaves; -inf of an empty tree."""
    return _fold(jnp.maximum, [jnp.max(x) for x in _arrays(tree) if x.size], -float("inf"))


def min(tree: PyTree) -> Array:
    """Returns the smallest element of all leaves; inf of an empty tree."""
    return _fold(jnp.minimum, [jnp.min(x) for x in _arrays(tree) if x.size], float("inf"))


def size(tree: PyTree) -> int:
    """Returns the number of elements of all leaves."""
    return builtins.sum(x.size for x in _arrays(tree))


def conj(tree: PyTree) -> PyTree:
    """Conjugates every leaf."""
    return _map(jnp.conj, tree)


def real(tree: PyTree) -> PyTree:
    """Takes the real part of every leaf."""
    return _map(jnp.real, tree)


def norm(tree: PyTree, ord: float | str | Array | None = None, squared: bool = False) -> Array:
    """Returns the vector norm of all leaves together. Sums are in float32 or wider.

    Args:
        tree: tree of arrays.
        ord: 2 or None, 1 or inf; where it is traced, another order gives NaN.
        squared: whether the norm is squared.

    Raises:
        ArgumentError: another order.
    """
    xs = [widen(x) for x in _arrays(tree)]
    if isinstance(ord, Tracer):
        return _norm_of_traced_order(xs, ord, squared)
    if ord is None or ord == 2:
        total = _fold(operator.add, [jnp.sum(abs_sq(x)) for x in xs], 0.0)
        return total if squared else jnp.sqrt(total)
    if ord == 1:
        value = _fold(operator.add, [jnp.sum(jnp.abs(x)) for x in xs], 0.0)
    elif ord in (jnp.inf, "inf", "infinity"):
        value = _fold(jnp.maximum, [jnp.max(jnp.abs(x)) for x in xs if x.size], 0.0)
    else:
        raise ArgumentError(f"norm of a tree: ord is None, 1, 2 or inf, got {ord!r}")
    return value * value if squared else value


def global_norm(
    updates: Updates, ord: float | str | Array | None = None, squared: bool = False
) -> Array:
    """Returns the norm of all leaves together: `optim.tree.norm` under optax's other name."""
    return norm(updates, ord, squared)


def _norm_of_traced_order(xs: list[Array], ord: Tracer, squared: bool) -> Array:
    """Returns the norm for an `ord` known when the program runs, as an injected hyperparameter.

    NaN for an order that is not 1, 2 or inf.
    """
    one, two, largest = (norm(xs, k, squared) for k in (1, 2, math.inf))
    value = jnp.where(ord == 1, one, jnp.where(ord == 2, two, math.nan))
    return jnp.where(jnp.isposinf(ord.astype(F32)), largest, value)


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Broadcasts every leaf to have `shape` before its own."""
    return _map(lambda x: jnp.broadcast_to(x, (*shape, *as_array(x).shape)), tree)


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Returns zeros of the leaves' shapes, in `dtype` or the leaves' dtypes."""
    return _map(lambda x: jnp.zeros_like(as_array(x), dtype=dtype), tree)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Returns ones of the leaves' shapes, in `dtype` or the leaves' dtypes."""
    return _map(lambda x: jnp.ones_like(as_array(x), dtype=dtype), tree)


def full_like(tree: PyTree, fill_value: Number, dtype: DTypeLike | None = None) -> PyTree:
    """Returns `fill_value` in the leaves' shapes, in `dtype` or the leaves' dtypes."""
    return _map(lambda x: jnp.full_like(as_array(x), fill_value, dtype=dtype), tree)


def clip(
    tree: PyTree, min_value: ArrayLike | None = None, max_value: ArrayLike | None = None
) -> PyTree:
    """Limits every element to [min_value, max_value]; None is no limit."""
    return _map(lambda x: jnp.clip(x, min_value, max_value), tree)


def where(condition: ArrayLike, tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Selects elements of `tree_x` where `condition` (a scalar or an array), else of `tree_y`."""
    return _map(lambda x, y: jnp.where(condition, x, y), tree_x, tree_y)


def allclose(
    a: PyTree, b: PyTree, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether all leaves are elementwise equal within tolerances, a boolean scalar."""
    close = tree.map(lambda x, y: jnp.allclose(x, y, rtol, atol, equal_nan), a, b)
    return _fold(jnp.logical_and, tree.leaves(close), True)


# ---- moments ----


def update_moment(updates: Updates, moments: PyTree, decay: Number, order: Number) -> PyTree:
    """Renews a moving mean of powers: (1 - decay) * updates**order + decay * moments."""
    return _map(lambda g, m: (1 - decay) * _power(g, order) + decay * m, updates, moments)


def update_moment_per_elem_norm(
    updates: Updates, moments: PyTree, decay: Number, order: Number
) -> PyTree:
    """Renews a real moving mean: (1 - decay) * |updates|**order + decay * moments."""

    def magnitude(g: Array) -> Array:
        if not dtypes.is_complex(g.dtype):
            return _power(g, order)
        return _power(abs_sq(g), order / 2)

    return _map(lambda g, m: (1 - decay) * magnitude(widen(g)) + decay * m, updates, moments)


def _power(g: Array, order: Number) -> Array:
    g = widen(g)
    return g if order == 1 else g * g if order == 2 else g**order


def update_infinity_moment(updates: Updates, moments: PyTree, decay: Number, eps: Number) -> PyTree:
    """Renews a moving maximum: max(|updates| + eps, decay * moments)."""
    return _map(lambda g, m: jnp.maximum(jnp.abs(widen(g)) + eps, decay * m), updates, moments)


def bias_correction(moment: PyTree, decay: Number, count: ArrayLike) -> PyTree:
    """Removes the bias of a moving mean that began at 0: moment / (1 - decay**count)."""
    correction = one_minus_power(decay, count)
    return _map(lambda m: m / correction(m.dtype), moment)


# ---- dtypes ----


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Converts every leaf to `dtype`; None returns the tree itself."""
    return tree if dtype is None else _map(lambda x: as_array(x).astype(dtype), tree)


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Converts every leaf to the dtype of the corresponding leaf of `other_tree`."""
    return _map(lambda x, y: x.astype(y.dtype) if hasattr(y, "dtype") else x, tree, other_tree)


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> DType:
    """Returns the dtype of all leaves; float32 of an empty tree.

    Args:
        tree: tree of arrays.
        mixed_dtype_handler: for leaves of several dtypes: "promote", "highest" or "lowest"; None
            raises DTypeError, which names the leaf that differs.
    """
    leaf_dtypes = [x.dtype for x in _arrays(tree)]
    if not leaf_dtypes:
        return F32
    if mixed_dtype_handler is None:
        for path, d in zip(leaf_paths(tree), leaf_dtypes, strict=True):
            if d != leaf_dtypes[0]:
                raise DTypeError(
                    f"expected all leaves to be {leaf_dtypes[0].name}, but {path} is {d.name}"
                )
        return leaf_dtypes[0]
    if mixed_dtype_handler == "promote":
        return functools.reduce(dtypes.promote_types, leaf_dtypes)
    if mixed_dtype_handler in ("highest", "lowest"):
        highest = mixed_dtype_handler == "highest"
        return functools.reduce(lambda a, b: _pick(a, b, highest), leaf_dtypes)
    raise ArgumentError(
        f'mixed_dtype_handler is None, "promote", "highest", "lowest"; got {mixed_dtype_handler!r}'
    )


def _pick(a: DType, b: DType, highest: bool) -> DType:
    both = dtypes.promote_types(a, b)
    if both not in (a, b):
        raise DTypeError(f"neither {a.name} nor {b.name} can be promoted to the other")
    low = b if both == a else a
    return both if highest else low
