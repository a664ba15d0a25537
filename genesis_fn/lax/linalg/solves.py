"""Solves with matrices of few diagonals or one triangle."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.implicit import custom_linear_solve
from genesis_fn.lax.linalg.matrices import one_dtype, operand
from genesis_fn.lax.operands import array
from genesis_fn.primitives import elementwise as ops, linalg, shape as shapes
from genesis_fn.primitives.factories import full, zero_of
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_or
from genesis_fn.transforms.control_flow.scanning import scan


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """Solve op(a) X = b (`left_side`) or X op(a) = b for X, with triangular a[..., n, n].

    op transposes with `transpose_a` and conjugates with `conjugate_a`; the other triangle of `a` is
    not read.
    """
    return linalg.triangular_solve(
        array(a),
        array(b),
        left_side=left_side,
        lower=lower,
        transpose_a=transpose_a,
        conjugate_a=conjugate_a,
        unit_diagonal=unit_diagonal,
    )


def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturb_singular: bool = False
) -> Array:
    """Solve A X = b with tridiagonal A, by elimination with exchanges of neighbouring rows.

        A[i, i - 1] = dl[i],  A[i, i] = d[i],  A[i, i + 1] = du[i]

    Thomas' elimination with LAPACK's pivoting (gtsv): two scans over the rows, on the device.
    Differentiable in all operands, by solves with A and A^T.

    Args:
        dl, d, du: the diagonals [..., m] below, on and above the main one; dl[..., 0] and
            du[..., m - 1] are not read. float32, float64 or complex.
        b: right-hand sides [..., m, k], of the same dtype.
        perturb_singular: whether pivots smaller than eps times the greatest element of the
            eliminated matrix are replaced by that bound, so that the result is finite: for
            eigenvectors by inverse iteration.

    Returns:
        X, in the shape of `b`; NaN where A is singular.

    Raises:
        ShapeError, DTypeError: the operands do not fit each other.

    >>> one = jnp.ones(3)
    >>> lax.linalg.tridiagonal_solve(one, 4 * one, one, jnp.array([[6.0], [12.0], [14.0]]))
    Array([[1.],
           [2.],
           [3.]], dtype=float32)
    """
    name = "tridiagonal_solve"
    dl, d, du = (operand(name, x, 1) for x in (dl, d, du))
    b = operand(name, b)
    one_dtype(name, dl, d, du, b)
    if not dl.aval.shape == d.aval.shape == du.aval.shape == b.aval.shape[:-1]:
        raise errors.ShapeError(
            f"{name}: diagonals {dl.aval}, {d.aval}, {du.aval} do not fit right-hand sides "
            f"{b.aval}: they are [..., m] and [..., m, k]\n  at {where().describe()}"
        )
    if not b.size:
        return b
    i = shapes.broadcasted_iota(dtypes.I32, d.aval.shape, d.ndim - 1)
    dl, du = ops.select(i > 0, dl, 0), ops.select(i < d.aval.shape[-1] - 1, du, 0)
    # What the solver computes with is constant: its derivative is that of a product with A.
    fixed = ops.stop_gradient(dl), ops.stop_gradient(d), ops.stop_gradient(du)
    transposed = _shifted(fixed[2], 1), fixed[1], _shifted(fixed[0], -1)

    def solver(diagonals: tuple[Array, Array, Array]) -> Any:
        return lambda _, rhs: _eliminate(*diagonals, rhs, perturb_singular)

    return custom_linear_solve(
        lambda x: _multiply(dl, d, du, x), b, solver(fixed), solver(transposed)
    )


def _shifted(x: Array, by: int, axis: int = -1) -> Array:
    """`x` moved `by` places along an axis, zeros entering."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (by, -by, 0)
    return shapes.pad(x, full((), zero_of(x), x.aval.dtype), config)


def _multiply(dl: Array, d: Array, du: Array, x: Array) -> Array:
    before, after = _shifted(x, 1, -2), _shifted(x, -1, -2)
    return dl[..., None] * before + d[..., None] * x + du[..., None] * after


def _eliminate(dl: Array, d: Array, du: Array, b: Array, perturb_singular: bool) -> Array:
    rows = [_first_axis(x, axis) for x, axis in ((dl, -1), (d, -1), (du, -1), (b, -2))]

    def forward(pending: Any, row: Any) -> Any:
        """Eliminate an unknown from the pending row, which begins at it, and the next row."""
        (p0, p1, p_rhs), (below, middle, above, rhs) = pending, row
        exchanged = ops.abs(p0) < ops.abs(below)
        pivot = ops.select(exchanged, below, p0)
        both_zero = pivot == 0
        factor = ops.select(exchanged, p0, below) / ops.select(both_zero, 1, pivot)
        u1, u2 = ops.select(exchanged, middle, p1), ops.select(exchanged, above, 0)
        n1, n2 = ops.select(exchanged, p1, middle), ops.select(exchanged, 0, above)
        wide = shapes.broadcast_in_dim(exchanged, rhs.aval.shape, range(exchanged.ndim))
        u_rhs, n_rhs = ops.select(wide, rhs, p_rhs), ops.select(wide, p_rhs, rhs)
        pending = n1 - factor * u1, n2 - factor * u2, n_rhs - factor[..., None] * u_rhs
        return pending, (pivot, u1, u2, u_rhs)

    first = rows[1][0], rows[2][0], rows[3][0]
    last, upper = scan(forward, first, tuple(x[1:] for x in rows))
    zero = last[1] - last[1]
    closing = last[0], zero, zero, last[2]
    pivots, u1, u2, rhs = [
        shapes.concatenate((x, y[None]), 0) for x, y in zip(upper, closing, strict=True)
    ]
    if perturb_singular:
        pivots = _perturbed(pivots, u1, u2)
    singular = reduce_or(pivots == 0, (0,))

    def backward(later: Any, row: Any) -> Any:
        (x1, x2), (pivot, a1, a2, right) = later, row
        right = right - a1[..., None] * x1 - a2[..., None] * x2
        x = right / ops.select(pivot == 0, 1, pivot)[..., None]
        return (x, x1), x

    nothing = rhs[0] - rhs[0]
    _, x = scan(backward, (nothing, nothing), (pivots, u1, u2, rhs), reverse=True)
    failed = shapes.broadcast_in_dim(singular, x.aval.shape, range(1, x.ndim - 1))
    return _last_axis(ops.select(failed, float("nan"), x), -2)


def _perturbed(pivots: Array, u1: Array, u2: Array) -> Array:
    """Pivots no smaller than eps times the greatest element of the eliminated matrix."""
    size = ops.abs(pivots)
    greatest = reduce_max(ops.max(size, ops.max(ops.abs(u1), ops.abs(u2))), (0,))
    info = dtypes.finfo(size.aval.dtype)
    least = ops.max(greatest * float(info.eps), float(info.tiny))
    least = shapes.broadcast_in_dim(least, size.aval.shape, range(1, size.ndim))
    kind = pivots.aval.dtype
    direction = ops.select(size == 0, 1, pivots / ops.convert(ops.select(size == 0, 1, size), kind))
    return ops.select(size < least, direction * ops.convert(least, kind), pivots)


def _first_axis(x: Array, axis: int) -> Array:
    axis %= x.ndim
    return shapes.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))


def _last_axis(x: Array, axis: int) -> Array:
    """Undo `_first_axis`."""
    axis %= x.ndim
    order = [*range(1, x.ndim)]
    order.insert(axis, 0)
    return shapes.transpose(x, order)
