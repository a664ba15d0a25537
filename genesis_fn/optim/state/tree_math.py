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
    """Adds trees leaf by leaf: tree_x + tree_y + ...

    Args:
        tree_x, tree_y, *other_trees: trees of arrays of one structure.

    Returns:
        The sums, a tree like `tree_x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.add({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 4.0])})
    {'w': Array([4., 6.], dtype=float32)}
    """
    return _map(lambda *xs: functools.reduce(operator.add, xs), tree_x, tree_y, *other_trees)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Subtracts trees leaf by leaf: tree_x - tree_y.

    Args:
        tree_x, tree_y: trees of arrays of one structure.

    Returns:
        The differences, a tree like `tree_x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.sub({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 5.0])})
    {'w': Array([-2., -3.], dtype=float32)}
    """
    return _map(operator.sub, tree_x, tree_y)


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Multiplies trees elementwise: tree_x * tree_y.

    Args:
        tree_x, tree_y: trees of arrays of one structure.

    Returns:
        The products, a tree like `tree_x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.mul({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 4.0])})
    {'w': Array([3., 8.], dtype=float32)}
    """
    return _map(operator.mul, tree_x, tree_y)


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Divides trees elementwise: tree_x / tree_y.

    Args:
        tree_x, tree_y: trees of arrays of one structure.

    Returns:
        The quotients, a tree like `tree_x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.div({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([2.0, 4.0])})
    {'w': Array([0.5, 0.5], dtype=float32)}
    """
    return _map(operator.truediv, tree_x, tree_y)


def scale(scalar: Number, tree: PyTree) -> PyTree:
    """Multiplies every leaf by a scalar.

    Args:
        scalar: number or scalar array.
        tree: tree of arrays.

    Returns:
        The products, a tree like `tree`.

    >>> optim.tree.scale(0.5, {"w": jnp.array([1.0, 2.0])})
    {'w': Array([0.5, 1. ], dtype=float32)}
    """
    return _map(lambda x: scalar * x, tree)


def add_scale(tree_x: PyTree, scalar: Number, tree_y: PyTree) -> PyTree:
    """Adds a multiple of a tree to another: tree_x + scalar * tree_y.

    Args:
        tree_x, tree_y: trees of arrays of one structure.
        scalar: number or scalar array.

    Returns:
        The sums, a tree like `tree_x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.add_scale({"w": jnp.array([1.0])}, 0.5, {"w": jnp.array([4.0])})
    {'w': Array([3.], dtype=float32)}
    """
    return _map(lambda x, y: x + scalar * y, tree_x, tree_y)


def _arrays(t: PyTree) -> list[Array]:
    return [as_array(x) for x in tree.leaves(t)]


def _fold(f: Callable[[Any, Any], Any], xs: Sequence[Array], empty: bool | float) -> Array:
    return functools.reduce(f, xs) if xs else jnp.asarray(empty)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Array:
    """Computes the inner product of trees: the sum over leaves of conj(x) y.

    Args:
        tree_x, tree_y: trees of arrays of one structure.

    Returns:
        A scalar, float32 or wider where the leaves are floating; 0 of empty trees.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.vdot({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 4.0])})
    Array(11., dtype=float32)
    """

    def dot(x: Array, y: Array) -> Array:
        x, y = widen(as_array(x)), widen(as_array(y))
        return jnp.sum((jnp.conj(x) if dtypes.is_complex(x.dtype) else x) * y)

    return _fold(operator.add, tree.leaves(tree.map(dot, tree_x, tree_y)), 0.0)


def sum(tree: PyTree) -> Array:
    """Sums all elements of all leaves.

    Args:
        tree: tree of arrays.

    Returns:
        A scalar; 0 of an empty tree.

    >>> optim.tree.sum({"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)})
    Array(6., dtype=float32)
    """
    return _fold(operator.add, [jnp.sum(x) for x in _arrays(tree)], 0.0)


def max(tree: PyTree) -> Array:
    """Finds the largest element of all leaves.

    Args:
        tree: tree of real arrays.

    Returns:
        A scalar; -inf of an empty tree.

    >>> optim.tree.max({"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)})
    Array(3., dtype=float32)
    """
    return _fold(jnp.maximum, [jnp.max(x) for x in _arrays(tree) if x.size], -float("inf"))


def min(tree: PyTree) -> Array:
    """Finds the smallest element of all leaves.

    Args:
        tree: tree of real arrays.

    Returns:
        A scalar; inf of an empty tree.

    >>> optim.tree.min({"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)})
    Array(1., dtype=float32)
    """
    return _fold(jnp.minimum, [jnp.min(x) for x in _arrays(tree) if x.size], float("inf"))


def size(tree: PyTree) -> int:
    """Counts the elements of all leaves.

    Args:
        tree: tree of arrays.

    Returns:
        The number of elements, an int.

    >>> optim.tree.size({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    9
    """
    return builtins.sum(x.size for x in _arrays(tree))


def conj(tree: PyTree) -> PyTree:
    """Conjugates every leaf.

    Args:
        tree: tree of arrays.

    Returns:
        The conjugates, a tree like `tree`.

    >>> optim.tree.conj({"w": jnp.array([1.0 + 2.0j])})
    {'w': Array([1.-2.j], dtype=complex64)}
    """
    return _map(jnp.conj, tree)


def real(tree: PyTree) -> PyTree:
    """Takes the real part of every leaf.

    Args:
        tree: tree of arrays.

    Returns:
        The real parts, a tree like `tree`.

    >>> optim.tree.real({"w": jnp.array([1.0 + 2.0j])})
    {'w': Array([1.], dtype=float32)}
    """
    return _map(jnp.real, tree)


def norm(tree: PyTree, ord: float | str | Array | None = None, squared: bool = False) -> Array:
    """Computes the vector norm of all leaves together. Sums are in float32 or wider.

        sqrt(sum of |x|**2) for `ord` 2 or None,  sum of |x| for 1,  max of |x| for inf

    Args:
        tree: tree of arrays.
        ord: 2 or None, 1 or inf; where it is traced, another order gives NaN.
        squared: whether the norm is squared.

    Returns:
        A real scalar; 0 of an empty tree.

    Raises:
        ArgumentError: another order.

    >>> optim.tree.norm({"w": jnp.array([3.0]), "b": jnp.array(-4.0)})
    Array(5., dtype=float32)
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
    """Computes the norm of all leaves together: `optim.tree.norm` under optax's other name.

        sqrt(sum of |x|**2) for `ord` 2 or None,  sum of |x| for 1,  max of |x| for inf

    Args:
        updates: tree of arrays.
        ord: 2 or None, 1 or inf; where it is traced, another order gives NaN.
        squared: whether the norm is squared.

    Returns:
        A real scalar; 0 of an empty tree.

    Raises:
        ArgumentError: another order.

    >>> optim.global_norm({"w": jnp.array([3.0]), "b": jnp.array(-4.0)})
    Array(5., dtype=float32)
    """
    return norm(updates, ord, squared)


def _norm_of_traced_order(xs: list[Array], ord: Tracer, squared: bool) -> Array:
    """Returns the norm for an `ord` known when the program runs, as an injected hyperparameter.

    NaN for an order that is not 1, 2 or inf.
    """
    one, two, largest = (norm(xs, k, squared) for k in (1, 2, math.inf))
    value = jnp.where(ord == 1, one, jnp.where(ord == 2, two, math.nan))
    return jnp.where(jnp.isposinf(ord.astype(F32)), largest, value)


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Broadcasts every leaf to have `shape` before its own.

    Args:
        tree: tree of arrays.
        shape: the leading dimensions.

    Returns:
        A tree of arrays of the shapes `shape` + the leaf's.

    >>> optim.tree.batch_shape({"w": jnp.array([1.0, 2.0])}, (2,))
    {'w': Array([[1., 2.],
           [1., 2.]], dtype=float32)}
    """
    return _map(lambda x: jnp.broadcast_to(x, (*shape, *as_array(x).shape)), tree)


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Makes zeros of the leaves' shapes.

    Args:
        tree: tree of arrays.
        dtype: dtype of the zeros; None: the leaves' dtypes.

    Returns:
        A tree like `tree`.

    >>> optim.tree.zeros_like({"w": jnp.array([1.0, 2.0])})
    {'w': Array([0., 0.], dtype=float32)}
    """
    return _map(lambda x: jnp.zeros_like(as_array(x), dtype=dtype), tree)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Makes ones of the leaves' shapes.

    Args:
        tree: tree of arrays.
        dtype: dtype of the ones; None: the leaves' dtypes.

    Returns:
        A tree like `tree`.

    >>> optim.tree.ones_like({"w": jnp.array([1.0, 2.0])})
    {'w': Array([1., 1.], dtype=float32)}
    """
    return _map(lambda x: jnp.ones_like(as_array(x), dtype=dtype), tree)


def full_like(tree: PyTree, fill_value: Number, dtype: DTypeLike | None = None) -> PyTree:
    """Makes arrays of one value, of the leaves' shapes.

    Args:
        tree: tree of arrays.
        fill_value: number or scalar array.
        dtype: dtype of the arrays; None: the leaves' dtypes.

    Returns:
        A tree like `tree`.

    >>> optim.tree.full_like({"w": jnp.array([1.0, 2.0])}, 5.0)
    {'w': Array([5., 5.], dtype=float32)}
    """
    return _map(lambda x: jnp.full_like(as_array(x), fill_value, dtype=dtype), tree)


def clip(
    tree: PyTree, min_value: ArrayLike | None = None, max_value: ArrayLike | None = None
) -> PyTree:
    """Limits every element to [min_value, max_value].

    Args:
        tree: tree of arrays.
        min_value, max_value: numbers or arrays; None is no limit.

    Returns:
        The limited values, a tree like `tree`.

    >>> optim.tree.clip({"w": jnp.array([-3.0, 0.5])}, min_value=-1.0)
    {'w': Array([-1. ,  0.5], dtype=float32)}
    """
    return _map(lambda x: jnp.clip(x, min_value, max_value), tree)


def where(condition: ArrayLike, tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Selects elements of `tree_x` where `condition` is true, else of `tree_y`.

    Args:
        condition: boolean scalar, or an array that broadcasts to each leaf.
        tree_x, tree_y: trees of arrays of one structure.

    Returns:
        The chosen elements, a tree like `tree_x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.where(False, {"w": jnp.array([1.0])}, {"w": jnp.array([2.0])})
    {'w': Array([2.], dtype=float32)}
    """
    return _map(lambda x, y: jnp.where(condition, x, y), tree_x, tree_y)


def allclose(
    a: PyTree, b: PyTree, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """Tells whether all leaves are elementwise equal within tolerances: |a - b| <= atol + rtol |b|.

    Args:
        a, b: trees of arrays of one structure.
        rtol, atol: relative and absolute tolerance, >= 0.
        equal_nan: whether NaN equals NaN.

    Returns:
        A boolean scalar; true of empty trees.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.allclose({"w": jnp.array([1.0])}, {"w": jnp.array([1.001])}, rtol=0.01)
    Array(True, dtype=bool)
    """
    close = tree.map(lambda x, y: jnp.allclose(x, y, rtol, atol, equal_nan), a, b)
    return _fold(jnp.logical_and, tree.leaves(close), True)


# ---- moments ----


def update_moment(updates: Updates, moments: PyTree, decay: Number, order: Number) -> PyTree:
    """Renews a moving mean of powers, in float32 or wider.

        (1 - decay) updates**order + decay moments

    Args:
        updates, moments: trees of arrays of one structure.
        decay: decay rate, in [0, 1).
        order: exponent of the updates.

    Returns:
        The new moments, a tree like `updates`.

    Raises:
        TreeError: the structures differ.

    >>> optim.update_moment(jnp.array([2.0]), jnp.array([1.0]), decay=0.5, order=2)
    Array([2.5], dtype=float32)
    """
    return _map(lambda g, m: (1 - decay) * _power(g, order) + decay * m, updates, moments)


def update_moment_per_elem_norm(
    updates: Updates, moments: PyTree, decay: Number, order: Number
) -> PyTree:
    """Renews a moving mean of powers, real for complex updates, in float32 or wider.

        (1 - decay) updates**order + decay moments, with |updates| for complex updates

    Args:
        updates, moments: trees of arrays of one structure.
        decay: decay rate, in [0, 1).
        order: exponent of the updates.

    Returns:
        The new moments, a tree like `updates`.

    Raises:
        TreeError: the structures differ.

    >>> g, m = jnp.array([3.0 + 4.0j]), jnp.array([1.0])
    >>> optim.update_moment_per_elem_norm(g, m, decay=0.5, order=2)
    Array([13.], dtype=float32)
    """

    def magnitude(g: Array) -> Array:
        if not dtypes.is_complex(g.dtype):
            return _power(g, order)
        return _power(abs_sq(g), order / 2)

    return _map(lambda g, m: (1 - decay) * magnitude(widen(g)) + decay * m, updates, moments)


def _power(g: Array, order: Number) -> Array:
    g = widen(g)
    return g if order == 1 else g * g if order == 2 else g**order


def update_infinity_moment(updates: Updates, moments: PyTree, decay: Number, eps: Number) -> PyTree:
    """Renews a moving maximum, as Adamax has it, in float32 or wider.

        max(|updates| + eps, decay moments)

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", 2014.

    Args:
        updates, moments: trees of arrays of one structure.
        decay: decay rate, in [0, 1).
        eps: number >= 0 added to the magnitudes.

    Returns:
        The new moments, a tree like `updates`.

    Raises:
        TreeError: the structures differ.

    >>> optim.update_infinity_moment(jnp.array([-2.0, 1.0]), jnp.array([1.0, 4.0]), 0.5, 0.0)
    Array([2., 2.], dtype=float32)
    """
    return _map(lambda g, m: jnp.maximum(jnp.abs(widen(g)) + eps, decay * m), updates, moments)


def bias_correction(moment: PyTree, decay: Number, count: ArrayLike) -> PyTree:
    """Removes the bias of a moving mean that began at 0.

        moment / (1 - decay**count)

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", 2014.

    Args:
        moment: tree of floating arrays.
        decay: decay rate, in [0, 1).
        count: number of steps taken, positive.

    Returns:
        The corrected moments, a tree like `moment`.

    Raises:
        ArgumentError: `decay` is a number outside of [0, 1).

    >>> optim.bias_correction(jnp.array([1.0]), decay=0.5, count=1)
    Array([2.], dtype=float32)
    """
    correction = one_minus_power(decay, count)
    return _map(lambda m: m / correction(m.dtype), moment)


# ---- dtypes ----


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Converts every leaf to a dtype.

    Args:
        tree: tree of arrays.
        dtype: the dtype; None returns the tree itself.

    Returns:
        The converted arrays, a tree like `tree`.

    >>> optim.tree.cast({"w": jnp.array([1.0, 2.0])}, "bfloat16")
    {'w': Array([1., 2.], dtype=bfloat16)}
    """
    return tree if dtype is None else _map(lambda x: as_array(x).astype(dtype), tree)


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Converts every leaf to the dtype of the corresponding leaf of another tree.

    Args:
        tree: tree of arrays.
        other_tree: tree of the same structure; leaves without a dtype convert nothing.

    Returns:
        The converted arrays, a tree like `tree`.

    Raises:
        TreeError: the structures differ.

    >>> optim.tree.cast_like({"w": jnp.array([1.0])}, {"w": jnp.zeros(3, "bfloat16")})
    {'w': Array([1.], dtype=bfloat16)}
    """
    return _map(lambda x, y: x.astype(y.dtype) if hasattr(y, "dtype") else x, tree, other_tree)


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> DType:
    """Tells the dtype of all leaves.

    Args:
        tree: tree of arrays.
        mixed_dtype_handler: for leaves of several dtypes: "promote" for the dtype that holds all of
            them, "highest" or "lowest" for one of them; None refuses them.

    Returns:
        The dtype; float32 of an empty tree.

    Raises:
        DTypeError: the leaves have several dtypes and there is no `mixed_dtype_handler`, and the
            message names the leaf that differs; or "highest" and "lowest" meet dtypes of which
            neither holds the other.
        ArgumentError: `mixed_dtype_handler` is unknown.

    >>> params = {"b": jnp.zeros(3), "w": jnp.zeros((2, 3), "bfloat16")}
    >>> optim.tree.dtype(params, "lowest").name
    'bfloat16'
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
