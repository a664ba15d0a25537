"""Polynomials as vectors of coefficients, the highest power first."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import promote_arrays, strong, strong_array
from genesis_fn.numpy import linalg
from genesis_fn.numpy.arrays.grids import arange, vander
from genesis_fn.numpy.manipulation.rearrange import roll, trim_zeros
from genesis_fn.numpy.manipulation.shapes import atleast_1d, concatenate
from genesis_fn.numpy.manipulation.sorting import argsort
from genesis_fn.numpy.mathematics.composed import where
from genesis_fn.numpy.mathematics.contraction import matmul, outer
from genesis_fn.numpy.mathematics.reductions import all as all_of, argmin, sum as sum_over
from genesis_fn.numpy.mathematics.statistics import convolve
from genesis_fn.numpy.mathematics.ufuncs import multiply, sqrt, square
from genesis_fn.primitives.factories import full

Coefficients = ArrayLike | Sequence[Any]


def _vectors(name: str, *ps: Any, inexact: bool = True) -> list[Array]:
    """Coefficients of one dtype, as vectors."""
    xs = [atleast_1d(asarray(p)) for p in ps]
    for x in xs:
        if x.ndim != 1:
            raise errors.ShapeError(
                f"{name} takes vectors of coefficients, got {x.aval}\n  at {user_line().describe()}"
            )
    return promote_arrays(name, xs, inexact=inexact)


def _order(m: int, name: str) -> int:
    if (m := operator.index(m)) < 0:
        raise errors.ArgumentError(
            f"{name}: the order m must not be negative, got {m}\n  at {user_line().describe()}"
        )
    return m


def polyadd(a1: Coefficients, a2: Coefficients) -> Array:
    """The sum of two polynomials.

    Args:
        a1: coefficients, the highest power first.
        a2: coefficients.

    Returns:
        The coefficients of the sum, as many as the longer has.

    >>> polyadd(jnp.array([1, 2]), jnp.array([3, 0, 1]))
    Array([3, 1, 3], dtype=int32)
    """
    a, b = _vectors("polyadd", a1, a2, inexact=False)
    if a.size < b.size:
        a, b = b, a
    if not b.size:
        return a
    return strong_array(concatenate([a[: a.size - b.size], a[a.size - b.size :] + b]))


def polysub(a1: Coefficients, a2: Coefficients) -> Array:
    """The difference of two polynomials.

    Args:
        a1: coefficients, the highest power first.
        a2: coefficients.

    Returns:
        The coefficients of a1 - a2.

    >>> polysub(jnp.array([1, 2]), jnp.array([3, 0, 1]))
    Array([-3,  1,  1], dtype=int32)
    """
    a, b = _vectors("polysub", a1, a2, inexact=False)
    return polyadd(a, -b)


def polymul(a1: Coefficients, a2: Coefficients, *, trim_leading_zeros: bool = False) -> Array:
    """The product of two polynomials.

    Args:
        a1: coefficients, the highest power first.
        a2: coefficients.
        trim_leading_zeros: whether zeros in front are dropped, as NumPy does: not under a trace.

    Returns:
        The coefficients of the product, floats.

    >>> polymul(jnp.array([1, 2]), jnp.array([1, -2]))
    Array([ 1.,  0., -4.], dtype=float32)
    """
    a, b = _vectors("polymul", a1, a2)
    if trim_leading_zeros and (a.size > 1 or b.size > 1):
        a, b = trim_zeros(a, "f"), trim_zeros(b, "f")
    zero = full((1,), 0, a.dtype)
    return strong(convolve(a if a.size else zero, b if b.size else zero, precision="highest"))


def polydiv(
    u: Coefficients, v: Coefficients, *, trim_leading_zeros: bool = False
) -> tuple[Array, Array]:
    """The quotient and the remainder of two polynomials, by long division.

    Args:
        u: coefficients of the dividend, the highest power first.
        v: coefficients of the divisor, whose first is not 0.
        trim_leading_zeros: whether zeros in front of the remainder are dropped, up to rounding, as
            NumPy does: not under a trace.

    Returns:
        (quotient, remainder): the remainder as long as `u`, with zeros in front.

    >>> polydiv(jnp.array([1.0, 3.0, 5.0]), jnp.array([1.0, 1.0]))
    (Array([1., 2.], dtype=float32), Array([0., 0., 3.], dtype=float32))
    """
    rest, divisor = _vectors("polydiv", u, v)
    n = divisor.size
    scale = 1.0 / divisor[0]
    steps = []
    for k in range(rest.size - n + 1):
        d = scale * rest[k]
        steps.append(d)
        # The first coefficient is 0 by construction, whatever rounding says.
        parts = [rest[:k], full((1,), 0, rest.dtype), rest[k + 1 : k + n] - d * divisor[1:]]
        rest = concatenate([*parts, rest[k + n :]])
    quotient = concatenate([atleast_1d(d) for d in steps]) if steps else full((1,), 0, rest.dtype)
    if trim_leading_zeros:
        small = abs(rest) <= math.sqrt(float(dtypes.finfo(rest.dtype).eps))
        (kept,) = np.nonzero(~np.asarray(small))
        rest = rest[int(kept[0]) :] if kept.size else rest[:0]
    return strong(quotient), strong(rest)


def polyder(p: Coefficients, m: int = 1) -> Array:
    """The m-th derivative of a polynomial.

    Args:
        p: coefficients, the highest power first.
        m: the order, >= 0.

    Returns:
        The derivative's coefficients, floats; none where nothing is left.

    >>> polyder(jnp.array([1, 2, 3]))
    Array([2., 2.], dtype=float32)
    """
    (p,), m = _vectors("polyder", p), _order(m, "polyder")
    if m == 0:
        return p
    powers = range(p.size - 1, m - 1, -1)
    factors = [float(math.perm(n, m)) for n in powers]
    return strong(p[: max(p.size - m, 0)] * asarray(np.array(factors), dtype=p.dtype))


def polyint(p: Coefficients, m: int = 1, k: ArrayLike | Sequence[Any] | None = None) -> Array:
    """The m-th integral of a polynomial.

    Args:
        p: coefficients, the highest power first.
        m: the order, >= 0.
        k: the constants of integration, those of the first integral first: a vector [m], or one
            number for all; by default 0.

    Returns:
        The integral's coefficients, floats.

    >>> polyint(jnp.array([3, 2, 1]))
    Array([1., 1., 1., 0.], dtype=float32)
    """
    p, constants = _vectors("polyint", p, 0 if k is None else k)
    m = _order(m, "polyint")
    if constants.size == 1:
        constants = full((m,), 1, p.dtype) * constants
    if constants.size != m:
        raise errors.ShapeError(
            f"polyint: k is one number or {m}, got {constants.aval}\n  at {user_line().describe()}"
        )
    if m == 0:
        return p
    top = p.size + m - 1
    # The constant that is added i-th is integrated m - 1 - i times.
    factors = [float(math.perm(n, min(n, m))) for n in range(top, -1, -1)]
    factors = asarray(np.array(factors), dtype=p.dtype)
    return strong(concatenate([p, constants]) / factors)


def poly(seq_of_zeros: Coefficients) -> Array:
    """The polynomial with given roots, or the characteristic polynomial of a matrix.

    Args:
        seq_of_zeros: a vector of roots, or a square matrix.

    Returns:
        The coefficients, the highest power first, which is 1; complex for a matrix.

    Raises:
        ShapeError: for another array.

    >>> poly(jnp.array([1.0, -1.0]))
    Array([ 1.,  0., -1.], dtype=float32)
    """
    (x,) = promote_arrays("poly", [atleast_1d(asarray(seq_of_zeros))], inexact=True)
    if x.ndim == 2 and x.aval.shape[0] == x.aval.shape[1] and x.size:
        x = linalg.eigvals(x)
    if x.ndim != 1:
        raise errors.ShapeError(
            f"poly takes a vector of roots or a square matrix, got {x.aval}\n"
            f"  at {user_line().describe()}"
        )
    if not x.size:
        return full((), 1, x.dtype)
    one = full((1,), 1, x.dtype)
    zero = full((1,), 0, x.dtype)
    total = one
    for k in range(x.size):
        total = concatenate([total, zero]) - concatenate([zero, total * x[k]])
    return strong(total)


def roots(p: Coefficients, *, strip_zeros: bool = True) -> Array:
    """The roots of a polynomial, as eigenvalues of its companion matrix (Horn and Johnson, "Matrix
    Analysis", 1985).

    Args:
        p: coefficients, the highest power first.
        strip_zeros: whether leading zeros are dropped first, which a trace does not allow. Without,
            there are as many roots as for the length of `p`, and those that are missing are NaN.

    Returns:
        The roots, complex.

    Raises:
        ConcretizationTypeError: under a trace, with `strip_zeros`.

    >>> roots(jnp.array([2.0, -6.0]))
    Array([3.+0.j], dtype=complex64)
    """
    (p,) = _vectors("roots", p)
    complex_ = dtypes.complex_of(p.dtype)
    if p.size < 2:
        return full((0,), 0, complex_)
    if not strip_zeros:
        return _roots_with_missing(p, complex_)
    if isinstance(p, Tracer) and p.concrete() is None:
        raise errors.ConcretizationTypeError(
            f"roots of the traced {p.aval}: how many there are depends on leading zeros\n"
            f"  at {user_line().describe()}\n  pass strip_zeros=False"
        )
    (given,) = np.nonzero(np.asarray(p))
    p = p[int(given[0]) :] if given.size else p[:0]
    return _eigenvalues(p) if p.size > 1 else full((0,), 0, complex_)


def _eigenvalues(p: Any) -> Array:
    first = -p[1:] / p[0]
    rest = asarray(np.eye(p.size - 2, p.size - 1), dtype=p.dtype)
    return linalg.eigvals(concatenate([first[None], rest]))


def _roots_with_missing(p: Any, complex_: Any) -> Array:
    absent = p == 0
    leading = where(all_of(absent), p.size, argmin(absent))
    # Leading zeros at the end are further roots, all 0: as many as are missing.
    moved = roll(where(leading == p.size, 1, p), -leading)
    found = _eigenvalues(moved).astype(complex_)
    found = found[argsort(found == 0)]
    present = arange(found.size) < found.size - leading
    return where(present, found, complex(math.nan, math.nan))


def polyfit(
    x: Coefficients,
    y: Coefficients,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Coefficients | None = None,
    cov: bool | str = False,
) -> Any:
    """The polynomial of degree `deg` of least squares through points.

    Args:
        x: [n] abscissas.
        y: [n] ordinates, or [n, k] those of k polynomials.
        deg: the degree, >= 0.
        rcond: singular values of the scaled Vandermonde matrix below this part of the largest
            count as 0; by default n times the rounding error of the dtype.
        full: whether all of the solution is returned.
        w: [n] weights of the points' distances.
        cov: whether the covariance of the coefficients is returned, scaled by the residuals'
            variance, or "unscaled".

    Returns:
        Coefficients [deg + 1] or [deg + 1, k]. With `full` (coefficients, sums of squared
        residuals, rank, singular values, rcond), and otherwise with `cov` (coefficients, covariance
        [deg + 1, deg + 1] or [deg + 1, deg + 1, k]).

    Raises:
        ShapeError: for shapes that do not fit.
        ArgumentError: for a negative `deg`, or too few points for a covariance.

    >>> jnp.round(polyfit(jnp.arange(3.0), jnp.array([1.0, 3.0, 5.0]), 1), 3)
    Array([2., 1.], dtype=float32)
    """
    given = [asarray(v) for v in (x, y, w) if v is not None]
    x, y, *weights = promote_arrays("polyfit", given, inexact=True)
    deg = operator.index(deg)
    shapes = ", ".join([str(v.aval) for v in (x, y, *weights)])
    line = f"\n  at {user_line().describe()}"
    if deg < 0:
        raise errors.ArgumentError(f"polyfit: deg must not be negative, got {deg}{line}")
    n = x.size
    fits = x.ndim == 1 and n and y.ndim in (1, 2) and y.aval.shape[0] == n
    if not fits or any(v.aval.shape != (n,) for v in weights):
        raise errors.ShapeError(f"polyfit takes x [n], y [n] or [n, k], w [n], got {shapes}{line}")
    if cov and not full and cov != "unscaled" and n <= deg + 1:
        raise errors.ArgumentError(
            f"polyfit: a covariance of {deg + 1} coefficients needs more points, got {n}{line}"
        )
    limit = n * float(dtypes.finfo(x.dtype).eps) if rcond is None else float(rcond)
    left, right = vander(x, deg + 1), y
    for v in weights:
        left = left * v[:, None]
        right = right * (v[:, None] if y.ndim == 2 else v)
    scale = sqrt(sum_over(square(left), 0))
    left = left / scale
    c, residuals, rank, s = linalg.lstsq(left, right, limit)
    c = c / (scale[:, None] if c.ndim == 2 else scale)
    if full:
        return c, residuals, rank, s, asarray(limit)
    if not cov:
        return c
    base = linalg.inv(matmul(left.T, left, precision="highest")) / outer(scale, scale)
    if cov == "unscaled":
        factor = asarray(1.0)
    else:
        factor = residuals / (n - deg - 1)
    if y.ndim == 1:
        return c, base * atleast_1d(factor)
    return c, multiply(base[:, :, None], atleast_1d(factor))
