"""Arithmetic on pytrees of arrays; public as `optim.tree`. None leaves stay None."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DType, DTypeLike
from genesis_fn.core.errors import ArgumentError, DTypeError
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.tree import paths
from genesis_fn.optim.numerics import abs_sq, one_minus_power
from genesis_fn.optim.tree_map_updates import is_none, widen


def _map(f: Callable[..., Any], *trees: Any) -> Any:
    """`f` over leaves; None where the first tree has None."""
    return tree.map(lambda x, *ys: None if x is None else f(x, *ys), *trees, is_leaf=is_none)


def add(tree_x: Any, tree_y: Any, *other_trees: Any) -> Any:
    """tree_x + tree_y + ..."""
    return _map(lambda *xs: functools.reduce(operator.add, xs), tree_x, tree_y, *other_trees)


def sub(tree_x: Any, tree_y: Any) -> Any:
    """tree_x - tree_y."""
    return _map(operator.sub, tree_x, tree_y)


def mul(tree_x: Any, tree_y: Any) -> Any:
    """tree_x * tree_y, elementwise."""
    return _map(operator.mul, tree_x, tree_y)


def div(tree_x: Any, tree_y: Any) -> Any:
    """tree_x / tree_y, elementwise."""
    return _map(operator.truediv, tree_x, tree_y)


def scale(scalar: Any, tree: Any) -> Any:
    """scalar * tree."""
    return _map(lambda x: scalar * x, tree)


def add_scale(tree_x: Any, scalar: Any, tree_y: Any) -> Any:
    """tree_x + scalar * tree_y."""
    return _map(lambda x, y: x + scalar * y, tree_x, tree_y)


def _arrays(t: Any) -> list[Any]:
    return [as_array(x) for x in tree.leaves(t)]


def _fold(f: Callable[[Any, Any], Any], xs: Sequence[Any], empty: Any) -> Any:
    return functools.reduce(f, xs) if xs else jnp.asarray(empty)


def vdot(tree_x: Any, tree_y: Any) -> Any:
    """The sum over leaves of conj(x) . y, a scalar."""

    def dot(x: Any, y: Any) -> Any:
        x, y = widen(as_array(x)), widen(as_array(y))
        return jnp.sum((jnp.conj(x) if dtypes.is_complex(x.dtype) else x) * y)

    return _fold(operator.add, tree.leaves(tree.map(dot, tree_x, tree_y)), 0.0)


def sum(tree: Any) -> Any:
    """The sum of all elements of all leaves."""
    return _fold(operator.add, [jnp.sum(x) for x in _arrays(tree)], 0.0)


def max(tree: Any) -> Any:
    """The largest element of all leaves; -inf of an empty tree."""
    return _fold(jnp.maximum, [jnp.max(x) for x in _arrays(tree) if x.size], -float("inf"))


def min(tree: Any) -> Any:
    """The smallest element of all leaves; inf of an empty tree."""
    return _fold(jnp.minimum, [jnp.min(x) for x in _arrays(tree) if x.size], float("inf"))


def size(tree: Any) -> int:
    """The number of elements of all leaves."""
    return builtins.sum(x.size for x in _arrays(tree))


def conj(tree: Any) -> Any:
    """The complex conjugate of every leaf."""
    return _map(jnp.conj, tree)


def real(tree: Any) -> Any:
    """The real part of every leaf."""
    return _map(jnp.real, tree)


def norm(tree: Any, ord: Any = None, squared: bool = False) -> Any:
    """The vector norm of all leaves together: ord 2 (None), 1 or inf; its square with `squared`.

    Sums are in float32 or wider.
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


def global_norm(updates: Any, ord: Any = None, squared: bool = False) -> Any:
    """`norm` under optax's other name for it."""
    return norm(updates, ord, squared)


def _norm_of_traced_order(xs: list[Any], ord: Any, squared: bool) -> Any:
    """The norm where `ord` is known when the program runs, as an injected hyperparameter is; NaN
    for an order that is not 1, 2 or inf."""
    one, two, largest = (norm(xs, k, squared) for k in (1, 2, math.inf))
    value = jnp.where(ord == 1, one, jnp.where(ord == 2, two, math.nan))
    return jnp.where(jnp.isposinf(ord.astype(dtypes.F32)), largest, value)


def batch_shape(tree: Any, shape: tuple[int, ...] = ()) -> Any:
    """Every leaf broadcast to have `shape` before its own."""
    return _map(lambda x: jnp.broadcast_to(x, (*shape, *as_array(x).shape)), tree)


def zeros_like(tree: Any, dtype: DTypeLike | None = None) -> Any:
    """Zeros of the leaves' shapes, in `dtype` or the leaves' dtypes."""
    return _map(lambda x: jnp.zeros_like(as_array(x), dtype=dtype), tree)


def ones_like(tree: Any, dtype: DTypeLike | None = None) -> Any:
    """Ones of the leaves' shapes, in `dtype` or the leaves' dtypes."""
    return _map(lambda x: jnp.ones_like(as_array(x), dtype=dtype), tree)


def full_like(tree: Any, fill_value: Any, dtype: DTypeLike | None = None) -> Any:
    """`fill_value` in the leaves' shapes, in `dtype` or the leaves' dtypes."""
    return _map(lambda x: jnp.full_like(as_array(x), fill_value, dtype=dtype), tree)


def clip(tree: Any, min_value: Any = None, max_value: Any = None) -> Any:
    """Every element limited to [min_value, max_value]; None is no limit."""
    return _map(lambda x: jnp.clip(x, min_value, max_value), tree)


def where(condition: Any, tree_x: Any, tree_y: Any) -> Any:
    """tree_x where `condition` (a scalar or broadcastable array), else tree_y."""
    return _map(lambda x, y: jnp.where(condition, x, y), tree_x, tree_y)


def allclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Whether all leaves are elementwise equal within tolerances, a boolean scalar."""
    close = tree.map(lambda x, y: jnp.allclose(x, y, rtol, atol, equal_nan), a, b)
    return _fold(jnp.logical_and, tree.leaves(close), True)


# ---- moments ----


def update_moment(updates: Any, moments: Any, decay: Any, order: Any) -> Any:
    """(1 - decay) * updates**order + decay * moments."""
    return _map(lambda g, m: (1 - decay) * _power(g, order) + decay * m, updates, moments)


def update_moment_per_elem_norm(updates: Any, moments: Any, decay: Any, order: Any) -> Any:
    """(1 - decay) * |updates|**order + decay * moments; real for complex updates."""

    def magnitude(g: Any) -> Any:
        if not dtypes.is_complex(g.dtype):
            return _power(g, order)
        return _power(abs_sq(g), order / 2)

    return _map(lambda g, m: (1 - decay) * magnitude(widen(g)) + decay * m, updates, moments)


def _power(g: Any, order: Any) -> Any:
    g = widen(g)
    return g if order == 1 else g * g if order == 2 else g**order


def update_infinity_moment(updates: Any, moments: Any, decay: Any, eps: Any) -> Any:
    """max(|updates| + eps, decay * moments)."""
    return _map(lambda g, m: jnp.maximum(jnp.abs(widen(g)) + eps, decay * m), updates, moments)


def bias_correction(moment: Any, decay: Any, count: Any) -> Any:
    """moment / (1 - decay**count)."""
    correction = one_minus_power(decay, count)
    return _map(lambda m: m / correction(m.dtype), moment)


# ---- dtypes ----


def cast(tree: Any, dtype: DTypeLike | None) -> Any:
    """Every leaf in `dtype`; the tree itself if that is None."""
    return tree if dtype is None else _map(lambda x: as_array(x).astype(dtype), tree)


def cast_like(tree: Any, other_tree: Any) -> Any:
    """Every leaf in the dtype of the corresponding leaf of `other_tree`."""
    return _map(lambda x, y: x.astype(y.dtype) if hasattr(y, "dtype") else x, tree, other_tree)


def dtype(tree: Any, mixed_dtype_handler: str | None = None) -> DType:
    """The dtype of all leaves; float32 of an empty tree.

    Leaves of several dtypes need `mixed_dtype_handler`: "promote", "highest" or "lowest"; without
    it DTypeError names the leaf that differs.
    """
    kinds = [x.dtype for x in _arrays(tree)]
    if not kinds:
        return dtypes.F32
    if mixed_dtype_handler is None:
        for path, kind in zip(paths(tree), kinds, strict=True):
            if kind != kinds[0]:
                raise DTypeError(
                    f"expected all leaves to be {kinds[0].name}, but {path} is {kind.name}"
                )
        return kinds[0]
    if mixed_dtype_handler == "promote":
        return functools.reduce(dtypes.promote_types, kinds)
    if mixed_dtype_handler in ("highest", "lowest"):
        highest = mixed_dtype_handler == "highest"
        return functools.reduce(lambda a, b: _pick(a, b, highest), kinds)
    raise ArgumentError(
        f'mixed_dtype_handler is None, "promote", "highest", "lowest"; got {mixed_dtype_handler!r}'
    )


def _pick(a: DType, b: DType, highest: bool) -> DType:
    both = dtypes.promote_types(a, b)
    if both not in (a, b):
        raise DTypeError(f"neither {a.name} nor {b.name} can be promoted to the other")
    low = b if both == a else a
    return both if highest else low
