"""Updates of factors and of symmetric matrices, and what pivots mean."""

from __future__ import annotations

import operator
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, Scalar
from genesis_fn.lax.linalg.matrices import exchange, one_dtype, operand, product, square, transpose
from genesis_fn.lax.operands import array
from genesis_fn.primitives import elementwise as ops, linalg, shape as shapes
from genesis_fn.primitives.indexing.indexing import dynamic_index_in_dim
from genesis_fn.primitives.sort import take_along
from genesis_fn.transforms.control_flow.scanning import scan


def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Array:
    """The Cholesky factor after a rank-one update: R' with R'^T R' = R^T R + w w^T.

    By one rotation for each row (Golub and Van Loan, "Matrix Computations", 2013, section 6.5.4),
    in O(n^2).

    Args:
        r_matrix: upper triangular R[..., n, n], float32 or float64.
        w_vector: w[..., n], of the same dtype.

    Returns:
        R', upper triangular where R is.

    Raises:
        ShapeError, DTypeError: the operands do not fit each other, or are complex.

    >>> lax.linalg.cholesky_update(jnp.array([[3.0, 0.0], [0.0, 1.0]]), jnp.array([4.0, 0.0]))
    Array([[5., 0.],
           [0., 1.]], dtype=float32)
    """
    r, w = square("cholesky_update", r_matrix), operand("cholesky_update", w_vector, 1)
    one_dtype("cholesky_update", r, w)
    if dtypes.is_complex(r.aval.dtype):
        raise errors.DTypeError(
            f"cholesky_update takes real factors, got {r.aval}\n  at {where().describe()}"
        )
    if r.aval.shape[:-1] != w.aval.shape:
        raise errors.ShapeError(
            f"cholesky_update: the vector {w.aval} does not fit the factor {r.aval}\n"
            f"  at {where().describe()}"
        )
    if not r.size:
        return r

    def rotate(w: Array, row: tuple[Array, Any]) -> tuple[Array, Array]:
        """Rotate w[k] into the k-th row."""
        r, k = row
        head, entering = (dynamic_index_in_dim(v, k, v.ndim - 1, keepdims=True) for v in (r, w))
        unchanged = entering == 0
        size = ops.max(ops.abs(head), ops.abs(entering))
        scale = ops.stop_gradient(ops.select(unchanged, 1, size))
        a, b = ops.select(unchanged, 1, head / scale), entering / scale
        length = ops.sqrt(a * a + b * b)
        cosine, sine = a / length, b / length
        return cosine * w - sine * r, cosine * r + sine * w

    order = (r.ndim - 2, *range(r.ndim - 2), r.ndim - 1)
    steps = shapes.broadcasted_iota(dtypes.I32, (r.aval.shape[-1],), 0)
    _, rows = scan(rotate, w, (shapes.transpose(r, order), steps))
    return shapes.transpose(rows, (*range(1, r.ndim - 1), 0, r.ndim - 1))


def symmetric_product(
    a_matrix: ArrayLike,
    c_matrix: ArrayLike,
    *,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    symmetrize_output: bool = False,
) -> Array:
    """alpha A A^T + beta C, for symmetric C.

    Args:
        a_matrix: A[..., m, n], float32, float64 or complex (A^T is not conjugated).
        c_matrix: C[..., m, m], of the same dtype.
        alpha, beta: numbers.
        symmetrize_output: whether the part above the diagonal is copied from below it, for a C of
            which only the lower triangle counts.

    Returns:
        Matrices [..., m, m].

    Raises:
        ShapeError, DTypeError: the operands do not fit each other.

    >>> lax.linalg.symmetric_product(jnp.array([[1.0], [2.0]]), jnp.eye(2), beta=10.0)
    Array([[11.,  2.],
           [ 2., 14.]], dtype=float32)
    """
    a, c = operand("symmetric_product", a_matrix), square("symmetric_product", c_matrix)
    one_dtype("symmetric_product", a, c)
    if a.aval.shape[:-1] != c.aval.shape[:-1]:
        raise errors.ShapeError(
            f"symmetric_product: {a.aval} times its transpose does not fit {c.aval}\n"
            f"  at {where().describe()}"
        )
    result = alpha * product(a, transpose(a)) + beta * c
    if symmetrize_output:
        result = linalg.tril(result) + transpose(linalg.tril(result, -1))
    return result


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """The permutation that the row exchanges of an LU decomposition make.

    Args:
        pivots: int32 [..., k]; row i was exchanged with row pivots[..., i], in this order.
        permutation_size: how many rows there are, at least k.

    Returns:
        int32 [..., permutation_size]: x[permutation] = L U.

    Raises:
        DTypeError: `pivots` are no int32.
        ShapeError: there are more exchanges than rows.

    >>> lax.linalg.lu_pivots_to_permutation(jnp.array([2, 2]), 3)
    Array([2, 0, 1], dtype=int32)
    """
    pivots = array(pivots)
    if pivots.aval.dtype != dtypes.I32 or not pivots.ndim:
        raise errors.DTypeError(
            f"lu_pivots_to_permutation takes vectors of int32, got {pivots.aval}\n"
            f"  at {where().describe()}"
        )
    *batch, count = pivots.aval.shape
    size = operator.index(permutation_size)
    if size < count:
        raise errors.ShapeError(
            f"lu_pivots_to_permutation: {count} exchanges do not fit {size} rows; "
            f"permutation_size is at least {count}\n  at {where().describe()}"
        )
    order = shapes.broadcasted_iota(dtypes.I32, (*batch, size), len(batch))
    if not order.size or not count:
        return order

    def step(order: Array, i: Any) -> tuple[Array, None]:
        other = dynamic_index_in_dim(pivots, i, pivots.ndim - 1, keepdims=False)
        source = exchange(order, i, other)
        return take_along(order, source, order.ndim - 1), None

    order, _ = scan(step, order, shapes.broadcasted_iota(dtypes.I32, (count,), 0))
    return order
