"""Iterations of linear algebra that optimizers use: eigenvalues, matrix roots, least squares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, Key, PyTree, dtypes, lax, random, tree
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.tree_map_updates import F32, as_gradient, zero_count


def power_iteration(
    matrix: ArrayLike | Callable[[Any], PyTree],
    *,
    v0: PyTree = None,
    num_iters: int = 100,
    error_tolerance: Number = 1e-6,
    precision: lax.PrecisionLike = lax.Precision.HIGHEST,
    key: Key | None = None,
) -> tuple[Array, PyTree]:
    """Computes the eigenvalue of the largest magnitude, and its eigenvector.

        v <- A v / |A v|,  until |A v - (v' A v) v| < error_tolerance |v' A v|

    Source: von Mises & Pollaczek-Geiringer, "Praktische Verfahren der Gleichungsaufloesung", 1929.

    Args:
        matrix: [n, n], diagonalizable; or the function v -> A v of trees of one structure.
        v0: the first v: a vector, or a tree where `matrix` is a function; None: random numbers
            between -1 and 1.
        num_iters: largest number of iterations.
        error_tolerance: relative error at which iteration ends.
        precision: that of products with a matrix.
        key: random key of v0; None: `random.key(0)`.

    Returns:
        (eigenvalue, a scalar; eigenvector of norm 1, like v0).

    Raises:
        ArgumentError: `matrix` is a function and v0 is None.
        ShapeError: `matrix` is not square.

    >>> value, vector = optim.power_iteration(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> value.round(4), abs(vector).round(4)
    (Array(3., dtype=float32), Array([0.7071, 0.7071], dtype=float32))
    """
    if callable(matrix):
        product: Callable[[Any], PyTree] = matrix
        if v0 is None:
            raise ArgumentError(
                "power_iteration: v0 is None, and a function does not tell what it takes\n"
                "  give the first vector: power_iteration(f, v0=...)"
            )
    else:
        array = _square(matrix, "power_iteration")
        product = lambda v: jnp.matmul(array, v, precision=precision)
        if v0 is None:
            shape, dtype = array.shape[-1:], real_of(array.dtype)
            v0 = random.uniform(random.key(0) if key is None else key, shape, dtype, -1.0, 1.0)
            v0 = v0.astype(array.dtype)
    first = _normalized(tree.map(as_array, v0))
    image = product(first)

    def goes_on(state: tuple[PyTree, PyTree, Array, Array]) -> Array:
        v, image, value, count = state
        residual = tree_math.norm(tree.map(lambda a, b: a - value.astype(a.dtype) * b, image, v))
        return ~(jnp.abs(residual / value) < error_tolerance) & (count < num_iters)

    def iterate(state: tuple[PyTree, PyTree, Array, Array]) -> tuple[PyTree, PyTree, Array, Array]:
        _, image, _, count = state
        v = _normalized(image)
        image = product(v)
        return v, image, tree_math.vdot(v, image), count + 1

    unknown = jnp.zeros_like(tree_math.vdot(first, image))
    _, image, value, _ = lax.while_loop(goes_on, iterate, (first, image, unknown, zero_count()))
    return value, _normalized(image)


def _square(matrix: ArrayLike, name: str) -> Array:
    """Returns the matrix, of a floating dtype."""
    array = as_array(matrix)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ShapeError(f"{name}: matrix must be square, got {array.aval}")
    return array if dtypes.is_inexact(array.dtype) else array.astype(F32)


def _normalized(v: PyTree) -> PyTree:
    factor = 1.0 / tree_math.norm(v)
    return tree.map(lambda x: x * factor.astype(real_of(x.dtype)), v)


def matrix_inverse_pth_root(
    matrix: ArrayLike,
    p: int | ArrayLike,
    num_iters: int = 100,
    ridge_epsilon: Number = 1e-6,
    error_tolerance: Number = 1e-6,
    precision: lax.PrecisionLike = lax.Precision.HIGHEST,
) -> tuple[Array, Array]:
    """Computes the inverse p-th root of a matrix by coupled Newton iterations.

        (A + ridge_epsilon c I)**(-1/p),  c the largest eigenvalue of A

    Iteration ends where the error grows by more than a fifth, with the root before. Computed in
    float32 or wider.

    Source: Higham, "Functions of matrices: theory and computation", 2008, (7.18).

    Args:
        matrix: [n, n], symmetric, positive semidefinite.
        p: positive integer.
        num_iters: largest number of iterations.
        ridge_epsilon: what is added to the diagonal, relative to c.
        error_tolerance: error at which iteration ends.
        precision: that of matrix products.

    Returns:
        (root, [n, n] of the dtype of `matrix`; error, the largest element of |root**p A - I|).

    Raises:
        ArgumentError: `p` is not a positive integer.
        ShapeError: `matrix` is not square.

    >>> root, error = optim.matrix_inverse_pth_root(jnp.diag(jnp.array([16.0, 4.0])), 2)
    >>> root.round(4)
    Array([[0.25, 0.  ],
           [0.  , 0.5 ]], dtype=float32)
    """
    array = _square(matrix, "matrix_inverse_pth_root")
    if isinstance(p, (int, float)) and not (p == int(p) and p >= 1):
        raise ArgumentError(f"matrix_inverse_pth_root: p must be a positive integer, got {p}")
    wide: Array = as_gradient(array)  # pyright: ignore[reportAssignmentType]
    n, dtype = wide.shape[0], wide.dtype
    largest, _ = power_iteration(wide, precision=precision)
    ridge = ridge_epsilon * jnp.maximum(largest, 1e-16).astype(dtype)
    alpha = -1.0 / as_array(p).astype(dtype)
    if n == 1:
        return ((wide + ridge) ** alpha).astype(array.dtype), jnp.zeros((), dtype)
    identity = jnp.eye(n, dtype=dtype)

    def times(a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=precision)

    def error_of(m: Array) -> Array:
        return jnp.max(jnp.abs(m - identity))

    def goes_on(state: tuple[Array, ...]) -> Array:
        count, _, _, _, error, better = state
        return (count < num_iters) & (error > error_tolerance) & better

    def iterate(state: tuple[Array, ...]) -> tuple[Array, ...]:
        count, m, root, _, error, _ = state
        factor = (1 - alpha) * identity + alpha * m
        m = times(_power(factor, p, times), m)
        new_error = error_of(m)
        return count + 1, m, times(root, factor), root, new_error, new_error < error * 1.2

    damped = wide + ridge * identity
    z = (1 - 1 / alpha) / (2 * jnp.linalg.norm(damped))
    m, root = damped * z, identity * z**-alpha
    better = jnp.ones((), bool)
    _, m, root, before, _, better = lax.while_loop(
        goes_on, iterate, (zero_count(), m, root, root, error_of(m), better)
    )
    return jnp.where(better, root, before).astype(array.dtype), error_of(m)


def _power(m: Array, p: int | ArrayLike, times: Callable[[Array, Array], Array]) -> Array:
    """Returns m**p by repeated squaring; p may be traced."""
    identity = jnp.eye(m.shape[0], dtype=m.dtype)
    if isinstance(p, (int, float)):
        result, rest = identity, int(p)
        while rest:
            result = times(result, m) if rest % 2 else result
            m, rest = times(m, m), rest // 2
        return result

    def square(state: tuple[Array, ...]) -> tuple[Array, ...]:
        result, m, rest = state
        return jnp.where(rest % 2 == 1, times(result, m), result), times(m, m), rest // 2

    rest = as_array(p).astype("int32")
    return lax.while_loop(lambda state: state[2] > 0, square, (identity, m, rest))[0]


def nnls(
    A: ArrayLike, b: ArrayLike, iters: int, unroll: int | bool = 1, L: ArrayLike | None = None
) -> Array:
    """Solves a linear least-squares problem for numbers that are not negative.

        least |A x - b| for x >= 0, by projected gradients with momentum

    Source: Polyak, "Projected gradient method for non-negative least square", 2015.

    Args:
        A: [m, n], floating.
        b: [m] or [m, k].
        iters: number of iterations.
        unroll: number of iterations that the compiled loop does at once; True: all.
        L: an upper bound of the eigenvalues of A' A; None: the smaller of two of its norms.

    Returns:
        x: [n] or [n, k].

    Raises:
        ShapeError: `A` is no matrix, or `b` does not fit its rows.

    >>> x = optim.nnls(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([5.0, 6.0]), 1000)
    >>> x.round(2)
    Array([0. , 1.7], dtype=float32)
    """
    matrix, right = as_array(A), as_array(b)
    if matrix.ndim != 2 or right.ndim not in (1, 2) or right.shape[0] != matrix.shape[0]:
        raise ShapeError(
            f"nnls takes A [m, n] and b [m] or [m, k], got {matrix.aval} and {right.aval}"
        )
    gram, target = matrix.T @ matrix, matrix.T @ right
    bound = _largest_eigenvalue_bound(gram) if L is None else as_array(L).astype(gram.dtype)
    bound = jnp.where(bound == 0, 1.0, bound)

    def iterate(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        x, ahead, weight = state
        new_weight = (1 + jnp.sqrt(1 + 4 * weight**2)) / 2
        new = jnp.clip(ahead - (gram @ ahead - target) / bound, 0.0)
        return (new, new + (weight - 1) / new_weight * (new - x), new_weight), None

    x = jnp.zeros_like(target)
    start = (x, x, jnp.zeros((), real_of(target.dtype)))
    return lax.scan(iterate, start, length=iters, unroll=unroll)[0][0]


def _largest_eigenvalue_bound(gram: Array) -> Array:
    if not gram.size:
        return jnp.ones((), gram.dtype)
    columns = jnp.max(jnp.sum(jnp.abs(gram), axis=0))
    return jnp.minimum(jnp.sqrt(jnp.sum(gram * gram)), columns)
