"""The polar decomposition by dynamically weighted Halley iterations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.implicit import custom_linear_solve
from genesis_fn.lax.linalg.matrices import adjoint, as_dtype, identity, operand, product, transpose
from genesis_fn.primitives import elementwise as ops, linalg, shape as shapes
from genesis_fn.primitives.factories import full, zero_of, zeros
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_sum
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.custom.derivative_rules import custom_jvp

_BY_QR = 100  # weights above which products with the matrix's own square lose accuracy


def qdwh(
    x: ArrayLike,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
) -> tuple[Array, Array, Array, Array]:
    """x = u h with orthonormal columns of u and Hermitian positive semidefinite h.

    By QR-based dynamically weighted Halley iterations (Nakatsukasa, Bai and Gygi, "Optimizing
    Halley's iteration for computing the matrix polar decomposition", SIAM J. Matrix Anal. Appl. 31,
    2010). Differentiable where x has full rank.

    Args:
        x: a matrix [m, n] with m >= n, float32, float64 or complex.
        is_hermitian: whether x is Hermitian; of no effect.
        max_iterations: how many iterations there are at most; 10 by default.
        eps: the precision of u, and the smallest singular value of x, as part of the greatest,
            that the first weights are made for; that of the dtype by default.
        dynamic_shape: the part (rows, columns) of x that counts, as integers; the rest is zero in
            the results.

    Returns:
        (u [m, n], h [n, n], iterations int32, whether the last one changed u little enough).

    Raises:
        ShapeError, DTypeError: `x` is no matrix of at least as many rows as columns, or of another
            dtype, or `dynamic_shape` is no part of it.

    >>> u, h, iterations, converged = lax.linalg.qdwh(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> u, h
    (Array([[0., 1.], [1., 0.]], dtype=float32), Array([[3., 0.], [0., 2.]], dtype=float32))
    """
    x = operand("qdwh", x)
    if x.ndim != 2 or x.aval.shape[0] < x.aval.shape[1]:
        raise errors.ShapeError(
            f"qdwh takes a matrix with at least as many rows as columns, got {x.aval}\n"
            f"  at {where().describe()}\n  pass its transpose, or vmap for several"
        )
    most = 10 if max_iterations is None else operator.index(max_iterations)
    if dynamic_shape is None:
        return _polar_of(x, most, eps)
    (rows, columns), (m, n) = map(operator.index, dynamic_shape), x.aval.shape
    if not (columns <= rows <= m and columns <= n):
        raise errors.ShapeError(
            f"qdwh: dynamic_shape {dynamic_shape} is no part of {x.aval} with at least as many "
            f"rows as columns\n  at {where().describe()}"
        )
    u, h, count, converged = _polar_of(x[:rows, :columns], most, eps)
    return _padded(u, (m, n)), _padded(h, (n, n)), count, converged


def _padded(x: Array, shape: tuple[int, int]) -> Array:
    config = [(0, to - given, 0) for to, given in zip(shape, x.aval.shape, strict=True)]
    return shapes.pad(x, full((), zero_of(x), x.aval.dtype), config)


def _polar_of(x: Array, most: int, eps: float | None) -> tuple[Array, Array, Array, Array]:
    precision = float(dtypes.finfo(x.aval.dtype).eps) if eps is None else float(eps)
    return differentiable(lambda x: _iterated(x, most, precision))(x)


def differentiable(factors: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """A function from x[..., m, n], m >= n, to the polar factors (u, h) and more, with their
    derivative where x has full rank, however they are computed."""
    polar = custom_jvp(factors)

    @polar.defjvp
    def rule(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
        u, h, *others = polar(*primals)
        changes = _tangents(u, h, tangents[0])
        return (u, h, *others), (*changes, *[zeros(typeof(x)) for x in others])

    return polar


def _tangents(u: Array, h: Array, dx: Array) -> tuple[Array, Array]:
    """u^H dx = W h + dh with W skew, of which the skew part determines W."""
    m = product(adjoint(u), dx)
    # The solver's matrix is constant: the derivative of a solve is that of its equation.
    fixed = ops.stop_gradient(h)
    skew = custom_linear_solve(
        lambda w: product(w, h) + product(h, w),
        m - adjoint(m),
        lambda _, right: _anticommuted(fixed, right),
        lambda _, right: _anticommuted(transpose(fixed), right),
    )
    outside = dx - product(u, m)
    du = product(u, skew) + adjoint(linalg.solve(h, adjoint(outside)))
    return du, m - product(skew, h)


def _anticommuted(h: Array, right: Array) -> Array:
    """w with w h + h w = right, for Hermitian h."""
    v, s = linalg.eigh(h, symmetrize_input=False)
    inner = product(adjoint(v), product(right, v))
    inner = inner / as_dtype(s[..., None, :] + s[..., :, None], inner)
    return product(v, product(inner, adjoint(v)))


def _weights(least: float, precision: float, most: int) -> Iterator[tuple[float, float, float]]:
    """The a, b, c of iterations x (a + b x^H x) (1 + c x^H x)^-1 that bring singular values of at
    least `least` to one (equations 3.11 to 3.13), until they are there."""
    for _ in range(most):
        if least + 5 * precision >= 1:
            return
        square = least**2
        d = (4 * (1 - square) / square**2) ** (1 / 3)
        root = (1 + d) ** 0.5
        a = root + 0.5 * (8 - 4 * d + 8 * (2 - square) / (square * root)) ** 0.5
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        yield a, b, c
        least = least * (a + b * square) / (1 + c * square)


def _iterated(x: Array, most: int, precision: float) -> tuple[Array, Array, Array, Array]:
    if not x.size:
        n = x.aval.shape[1]
        empty = full((n, n), zero_of(x), x.aval.dtype)
        return x, empty, full((), 0, dtypes.I32), full((), True, dtypes.BOOL)
    size = ops.abs(x)
    one_norm = reduce_max(reduce_sum(size, (0,)), (0,))
    infinity_norm = reduce_max(reduce_sum(size, (1,)), (0,))
    bound = ops.sqrt(one_norm) * ops.sqrt(infinity_norm)  # of the greatest singular value
    u = x / as_dtype(ops.select(bound == 0, 1, bound), x)
    change, count = full((), float("inf"), size.aval.dtype), 0
    for a, b, c in _weights(precision, precision, most):
        before, count = u, count + 1
        if c > _BY_QR:  # large values hardly change yet: no sign of convergence
            u = _by_qr(u, a, b, c)
            continue
        u = _by_cholesky(u, a, b, c)
        change = _frobenius(u - before)
    limit = (5 * precision) ** (1 / 3)

    def is_open(state: tuple[Array, Array, Array]) -> Array:
        _, change, count = state
        return (change > limit) & (count < most)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, _, count = state
        new = _by_cholesky(u, 3.0, 1.0, 3.0)
        return new, _frobenius(new - u), count + 1

    u, change, number = while_loop(is_open, step, (u, change, full((), count, dtypes.I32)))
    u = 1.5 * u - 0.5 * product(u, product(adjoint(u), u))  # a Newton-Schulz step for rounding
    h = product(adjoint(u), x)
    return u, 0.5 * (h + adjoint(h)), number, change <= limit


def _frobenius(x: Array) -> Array:
    return ops.sqrt(reduce_sum(ops.square(ops.abs(x)), (0, 1)))


def _by_qr(u: Array, a: float, b: float, c: float) -> Array:
    m = u.aval.shape[0]
    one = identity(u[: u.aval.shape[1]])
    q, _ = linalg.qr(shapes.concatenate((c**0.5 * u, one), 0), full_matrices=False)
    return (b / c) * u + ((a - b / c) / c**0.5) * product(q[:m], adjoint(q[m:]))


def _by_cholesky(u: Array, a: float, b: float, c: float) -> Array:
    one = identity(u[: u.aval.shape[1]])
    factor = linalg.cholesky(one + c * product(adjoint(u), u))
    options: dict[str, Any] = {"left_side": False, "lower": True}
    z = linalg.triangular_solve(factor, u, transpose_a=True, conjugate_a=True, **options)
    z = linalg.triangular_solve(factor, z, **options)
    return (b / c) * u + (a - b / c) * z
