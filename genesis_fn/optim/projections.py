"""Euclidean projections of pytrees, with optax's names: the nearest point of a convex set.

A tree is projected as one vector of all its elements. Arithmetic is in float32 or wider, and leaves
keep their dtypes; integers are taken for float32 where the projection may be fractional.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, PyTree, dtypes, lax, tree as trees
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.base import require_positive
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.tree_map_updates import as_gradient


def projection_non_negative(tree: PyTree) -> PyTree:
    """Projects onto the vectors without negative elements.

        max(x, 0); the derivative at 0 is 0

    Args:
        tree: tree of real arrays.

    Returns:
        The projection, a tree like `tree`.

    >>> optim.projections.projection_non_negative(jnp.array([2.0, -3.0]))
    Array([2., 0.], dtype=float32)
    """

    def at(x: ArrayLike) -> Array:
        x = as_array(x)
        return jnp.where(x <= 0, jnp.zeros_like(x), x)

    return trees.map(at, tree)


def projection_box(tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    """Projects onto the vectors between two bounds, element by element.

        min(max(x, lower), upper)

    Args:
        tree: tree of real arrays.
        lower, upper: numbers, or trees like `tree` whose leaves broadcast to its.

    Returns:
        The projection, a tree like `tree`.

    Raises:
        TreeError: a bound is a tree of another structure.

    >>> optim.projections.projection_box({"w": jnp.array([2.0, -3.0])}, -1.0, 1.0)
    {'w': Array([ 1., -1.], dtype=float32)}
    """
    low, high = (_for_each_leaf(bound, tree) for bound in (lower, upper))
    return trees.map(lambda x, a, b: jnp.clip(as_array(x), a, b), tree, low, high)


def _for_each_leaf(bound: PyTree, tree: PyTree) -> PyTree:
    """Returns a tree of bounds; a number or array is the bound of every leaf."""
    leaves = trees.leaves(bound)
    single = len(leaves) == 1 and leaves[0] is bound
    return trees.map(lambda _: bound, tree) if single else bound


def projection_hypercube(tree: PyTree, scale: PyTree = 1) -> PyTree:
    """Projects onto the vectors whose elements lie between 0 and `scale`.

        min(max(x, 0), scale)

    Args:
        tree: tree of real arrays.
        scale: number >= 0, or a tree like `tree` whose leaves broadcast to its.

    Returns:
        The projection, a tree like `tree`.

    Raises:
        TreeError: `scale` is a tree of another structure.

    >>> optim.projections.projection_hypercube(jnp.array([2.0, -3.0, 0.5]))
    Array([1. , 0. , 0.5], dtype=float32)
    """
    return projection_box(tree, 0, scale)


def projection_linf_ball(tree: PyTree, scale: Number = 1) -> PyTree:
    """Projects onto the vectors whose elements have magnitudes of at most `scale`.

        min(max(x, -scale), scale)

    Args:
        tree: tree of real arrays.
        scale: radius of the ball, >= 0.

    Returns:
        The projection, a tree like `tree`.

    >>> optim.projections.projection_linf_ball(jnp.array([2.0, -3.0, 0.5]))
    Array([ 1. , -1. ,  0.5], dtype=float32)
    """
    return projection_box(tree, -scale, scale)


def _shifted_to_sum(tree: PyTree, total: Number) -> PyTree:
    """Returns max(x - c, 0) of wide arrays, with the number c for which it sums to `total`.

    The elements that stay positive are found by sorting; given them, c is a mean, and so are its
    derivatives.
    """
    flat = jnp.concatenate([x.reshape(-1) for x in trees.leaves(tree)])
    falling = -jnp.sort(-lax.stop_gradient(flat))
    counts = jnp.arange(1, flat.size + 1)
    shifts = (jnp.cumsum(falling) - lax.stop_gradient(as_array(total))) / counts
    largest = jnp.sum(falling > shifts) - 1
    shift = shifts[largest]
    positive = trees.map(lambda x: lax.stop_gradient(x) > shift, tree)
    sizes = trees.map(lambda x, keep: jnp.sum(jnp.where(keep, x, 0.0)), tree, positive)
    count = functools.reduce(operator.add, [jnp.sum(k) for k in trees.leaves(positive)])
    shift = (functools.reduce(operator.add, trees.leaves(sizes)) - total) / count

    def at(x: Array, keep: Array) -> Array:
        return jnp.where(keep & (x > shift), x - shift, 0.0)

    return trees.map(at, tree, positive)


def _in_wide_arithmetic(f: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """Returns f of float32 or wider arrays, converted to the floating dtypes of the leaves."""

    def narrow(x: ArrayLike, y: Array) -> Array:
        dtype = as_array(x).dtype
        return y.astype(dtype) if dtypes.is_inexact(dtype) else y

    return trees.map(narrow, tree, f(trees.map(as_gradient, tree)))


def projection_simplex(tree: PyTree, scale: Number = 1) -> PyTree:
    """Projects onto the vectors without negative elements that sum to `scale`.

        max(x - c, 0), with the number c for which that sums to `scale`

    Source: Duchi et al., "Efficient projections onto the l1-ball for learning in high dimensions",
    2008.

    Args:
        tree: tree of real arrays.
        scale: positive sum; 1 for the probabilities.

    Returns:
        The projection, a tree like `tree`.

    Raises:
        ArgumentError: `scale` is not positive, or `tree` has no elements.

    >>> optim.projections.projection_simplex({"w": jnp.array([2.5, 3.0]), "b": jnp.array(0.5)})
    {'w': Array([0.25, 0.75], dtype=float32), 'b': Array(0., dtype=float32)}
    """
    require_positive("projection_simplex", scale=scale)
    if not tree_math.size(tree):
        raise ArgumentError("projection_simplex: a tree without elements cannot sum to scale")
    return _in_wide_arithmetic(lambda x: _shifted_to_sum(x, scale), tree)


def projection_l1_sphere(tree: PyTree, scale: Number = 1) -> PyTree:
    """Projects onto the vectors whose magnitudes sum to `scale`.

        sign(x) max(|x| - c, 0), with the number c for which the magnitudes sum to `scale`

    Elements that are 0 stay so.

    Source: Duchi et al., "Efficient projections onto the l1-ball for learning in high dimensions",
    2008.

    Args:
        tree: tree of real arrays.
        scale: positive radius.

    Returns:
        The projection, a tree like `tree`.

    Raises:
        ArgumentError: `scale` is not positive, or `tree` has no elements.

    >>> optim.projections.projection_l1_sphere(jnp.array([2.5, -3.0, 0.5]))
    Array([ 0.25, -0.75,  0.  ], dtype=float32)
    """
    require_positive("projection_l1_sphere", scale=scale)
    if not tree_math.size(tree):
        raise ArgumentError("projection_l1_sphere: a tree without elements has no norm of scale")

    def project(x: PyTree) -> PyTree:
        magnitudes = _shifted_to_sum(trees.map(jnp.abs, x), scale)
        return trees.map(lambda a, m: jnp.sign(a) * m, x, magnitudes)

    return _in_wide_arithmetic(project, tree)


def projection_l1_ball(tree: PyTree, scale: Number = 1) -> PyTree:
    """Projects onto the vectors whose magnitudes sum to at most `scale`.

        x where |x|_1 <= scale, else its projection onto the sphere

    Source: Duchi et al., "Efficient projections onto the l1-ball for learning in high dimensions",
    2008.

    Args:
        tree: tree of real arrays.
        scale: positive radius.

    Returns:
        The projection, a tree like `tree`.

    Raises:
        ArgumentError: `scale` is not positive, or `tree` has no elements.

    >>> optim.projections.projection_l1_ball(jnp.array([2.5, -3.0, 0.5]))
    Array([ 0.25, -0.75,  0.  ], dtype=float32)
    >>> optim.projections.projection_l1_ball(jnp.array([0.25, -0.5]))
    Array([ 0.25, -0.5 ], dtype=float32)
    """
    inside = tree_math.norm(tree, ord=1) <= scale
    sphere = projection_l1_sphere(tree, scale)
    return trees.map(lambda x, y: jnp.where(inside, x, y), tree, sphere)


def _times(factor: Array, x: Array) -> Array:
    return factor.astype(real_of(x.dtype)) * x


def projection_l2_sphere(tree: PyTree, scale: Number = 1) -> PyTree:
    """Projects onto the vectors of Euclidean norm `scale`.

        x scale / |x|; NaN of 0, from which all of the sphere is as far

    Args:
        tree: tree of arrays.
        scale: radius of the sphere, >= 0.

    Returns:
        The projection, a tree like `tree`.

    >>> optim.projections.projection_l2_sphere(jnp.array([3.0, -4.0]))
    Array([ 0.6, -0.8], dtype=float32)
    """

    def project(x: PyTree) -> PyTree:
        factor = scale / tree_math.norm(x)
        return trees.map(lambda a: _times(factor, a), x)

    return _in_wide_arithmetic(project, tree)


def projection_l2_ball(tree: PyTree, scale: Number = 1) -> PyTree:
    """Projects onto the vectors of Euclidean norm at most `scale`.

        x scale / max(|x|, scale)

    Args:
        tree: tree of arrays.
        scale: positive radius.

    Returns:
        The projection, a tree like `tree`.

    >>> optim.projections.projection_l2_ball(jnp.array([3.0, -4.0]))
    Array([ 0.6, -0.8], dtype=float32)
    >>> optim.projections.projection_l2_ball(jnp.array([0.3, -0.4]))
    Array([ 0.3, -0.4], dtype=float32)
    """

    def project(x: PyTree) -> PyTree:
        square = tree_math.norm(x, squared=True)
        factor = scale / jnp.sqrt(jnp.maximum(square, scale**2))
        return trees.map(lambda a: _times(factor, a), x)

    return _in_wide_arithmetic(project, tree)


def projection_vector(x: PyTree, a: PyTree) -> PyTree:
    """Projects onto the multiples of a vector.

        a <a, x> / <a, a>

    Args:
        x: tree of arrays.
        a: tree like `x` with an element that is not 0.

    Returns:
        The projection, a tree like `x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.projections.projection_vector(jnp.array([3.0, 1.0]), jnp.array([2.0, 0.0]))
    Array([3., 0.], dtype=float32)
    """
    direction = trees.map(as_gradient, a)

    def project(x: PyTree) -> PyTree:
        factor = tree_math.vdot(direction, x) / tree_math.vdot(direction, direction)
        return tree_math.scale(factor, direction)

    return _in_wide_arithmetic(project, x)


def projection_hyperplane(x: PyTree, a: PyTree, b: ArrayLike) -> PyTree:
    """Projects onto the vectors whose inner product with `a` is `b`.

        x + a (b - <a, x>) / <a, a>

    Args:
        x: tree of arrays.
        a: tree like `x` with an element that is not 0.
        b: scalar.

    Returns:
        The projection, a tree like `x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.projections.projection_hyperplane(jnp.array([3.0, 1.0]), jnp.array([1.0, 1.0]), 2.0)
    Array([2., 0.], dtype=float32)
    """
    return _moved_along(x, a, lambda distance: distance, b)


def projection_halfspace(x: PyTree, a: PyTree, b: ArrayLike) -> PyTree:
    """Projects onto the vectors whose inner product with `a` is at most `b`.

        x + a min((b - <a, x>) / <a, a>, 0)

    Args:
        x: tree of real arrays.
        a: tree like `x` with an element that is not 0.
        b: scalar.

    Returns:
        The projection, a tree like `x`.

    Raises:
        TreeError: the structures differ.

    >>> optim.projections.projection_halfspace(jnp.array([3.0, 1.0]), jnp.array([1.0, 1.0]), 2.0)
    Array([2., 0.], dtype=float32)
    >>> optim.projections.projection_halfspace(jnp.array([0.0, 1.0]), jnp.array([1.0, 1.0]), 2.0)
    Array([0., 1.], dtype=float32)
    """
    return _moved_along(x, a, lambda distance: jnp.clip(distance, max=0.0), b)


def _moved_along(x: PyTree, a: PyTree, limit: Callable[[Array], Array], b: ArrayLike) -> PyTree:
    """Returns x + a limit((b - <a, x>) / <a, a>)."""
    direction = trees.map(as_gradient, a)

    def project(x: PyTree) -> PyTree:
        gap = as_array(b) - tree_math.vdot(direction, x)
        step = limit(gap / tree_math.vdot(direction, direction))
        return tree_math.add_scale(x, step, direction)

    return _in_wide_arithmetic(project, x)
