"""Functions of matrices: exponential, square root, and functions given on numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.linalg.matrices import adjoint, product, square
from genesis_fn.lax.promotion import promote_arrays
from genesis_fn.scipy.linalg.solves import solve_sylvester
from genesis_fn.transforms.autodiff.derivatives import jvp
from genesis_fn.transforms.custom.derivative_rules import custom_jvp


def _square(name: str, a: ArrayLike) -> Array:
    return square(name, promote_arrays(name, (a,), inexact=True)[0])


# The order of the Pade approximant for a dtype of 4 or 8 bytes, and the norm up to which it is good
# to rounding (Higham, 2005, table 2.3).
_PADE = {4: (7, 3.925724783138660), 8: (13, 5.371920351148152)}


def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """The matrix exponential, I + A + A^2 / 2! + A^3 / 3! + ...

    By a Pade approximant of A / 2^s, squared s times (Higham, "The scaling and squaring method for
    the matrix exponential revisited", SIAM J. Matrix Anal. Appl. 26, 2005).

    Args:
        A: matrices [..., n, n], float32, float64 or complex.
        upper_triangular: whether `A` is upper triangular, which makes a step cheaper.
        max_squarings: how large s may be.

    Returns:
        Matrices [..., n, n]; NaN where s would be greater.

    >>> scipy.linalg.expm(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    a = _square("expm", A)
    if not a.size:
        return a
    real = dtypes.real_of(a.dtype)
    order, greatest = _PADE[dtypes.finfo(a.dtype).bits // 8]
    norm = lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(a), -2), -1))[..., None, None]
    halvings = jnp.log2(jnp.maximum(norm / greatest, 1))
    squarings = jnp.clip(jnp.ceil(halvings), 0, max_squarings).astype(real)
    even, odd = _pade_parts(a * jnp.exp2(-squarings).astype(a.dtype), order)
    if upper_triangular:
        result = lax.linalg.triangular_solve(even - odd, even + odd, left_side=True)
    else:
        result = jnp.linalg.solve(even - odd, even + odd)

    def squared(x: Array, i: Any) -> tuple[Array, None]:
        wanted = i < squarings
        return lax.cond(
            jnp.any(wanted), lambda x: jnp.where(wanted, product(x, x), x), lambda x: x, x
        ), None  # fmt: skip

    result, _ = lax.scan(squared, result, jnp.arange(max_squarings))
    return jnp.where(jnp.floor(halvings) > max_squarings, jnp.nan, result)


def _pade_parts(a: Array, order: int) -> tuple[Array, Array]:
    """(V, U) of the Pade approximant (V - U)^-1 (V + U) of exp(a): even and odd powers of `a`."""
    b = [
        math.factorial(2 * order - k) // (math.factorial(order - k) * math.factorial(k))
        for k in range(order + 1)
    ]
    b = [x / b[order] for x in b]
    one = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    powers, square_ = [one], product(a, a)
    while len(powers) < 4:
        powers.append(product(powers[-1], square_) if len(powers) > 1 else square_)
    even, odd = (_polynomial(b[first::2], powers) for first in (0, 1))
    return even, product(a, odd)


def _polynomial(b: list[float], powers: list[Array]) -> Array:
    """sum of b[k] x^k, from the powers of x up to x^3, by Paterson and Stockmeyer (1973)."""
    total: Array | None = None
    for first in reversed(range(0, len(b), 3)):
        part = b[first] * powers[0]
        for c, x in zip(b[first + 1 : first + 3], powers[1:], strict=False):
            part = part + c * x
        total = part if total is None else part + product(powers[3], total)
    assert total is not None  # there is a coefficient
    return total


def expm_frechet(
    A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True
) -> PyTree:
    """The matrix exponential and its derivative in a direction.

    Args:
        A: matrices [..., n, n].
        E: directions [..., n, n].
        method: SciPy's, of no effect: it is the derivative of `expm` in forward mode.
        compute_expm: whether the exponential itself is given too.

    Returns:
        (expm(A), derivative), or the derivative.

    Raises:
        ShapeError: `A` and `E` differ in shape.

    >>> zero = jnp.zeros((2, 2))
    >>> scipy.linalg.expm_frechet(zero, jnp.eye(2), compute_expm=False)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    a, e = promote_arrays("expm_frechet", (A, E), inexact=True)
    if square("expm_frechet", a).shape != e.shape:
        raise errors.ShapeError(
            f"expm_frechet: {a.aval} and the direction {e.aval} differ\n  at {where().describe()}"
        )
    value, derivative = jvp(expm, (a,), (e,))
    return (value, derivative) if compute_expm else derivative


def _solve_above(t: Array, shift: Any, right: Array, j: Any, instead: float) -> tuple[Array, Array]:
    """(x, which of its elements had a zero on the diagonal) with (t + shift I) x = right in the
    rows above j, zeros below; `instead` stands for such zeros."""
    n = t.shape[-1]
    row, column = jnp.arange(n)[:, None], jnp.arange(n)[None, :]
    above, one = row < j, jnp.eye(n, dtype=t.dtype)
    diagonal = jnp.sum(t * one, -1, keepdims=True) + shift
    lost = above & (diagonal == 0)
    shifted = t + shift * one + jnp.where(lost, instead, 0) * one
    kept = jnp.where(above & (column < j), shifted, one)
    return lax.linalg.triangular_solve(kept, jnp.where(above, right, 0), left_side=True), lost


def sqrtm(A: ArrayLike, blocksize: int = 1) -> Array:
    """The principal square root: X X = A, with eigenvalues of nonnegative real parts.

    From the complex Schur form, which LAPACK computes on the host (Bjorck and Hammarling, "A Schur
    method for the square root of a matrix", 1983). Its derivative solves X dX + dX X = dA.

    Args:
        A: matrices [..., n, n].
        blocksize: 1.

    Returns:
        Complex matrices [..., n, n]; NaN where there is no root.

    Raises:
        ArgumentError: `blocksize` is greater.

    >>> jnp.round(scipy.linalg.sqrtm(jnp.array([[4.0, 0.0], [0.0, 9.0]])).real, 4)
    Array([[2., 0.],
           [0., 3.]], dtype=float32)
    """
    if blocksize != 1:
        raise errors.ArgumentError(
            f"sqrtm: blocksize {blocksize} is not there; pass 1\n  at {where().describe()}"
        )
    a = _square("sqrtm", A)
    return _root(a.astype(dtypes.complex_of(a.dtype)))


@custom_jvp
def _root(a: Array) -> Array:
    if not a.size:
        return a
    t, z = lax.linalg.schur(a)
    roots = jnp.sqrt(jnp.diagonal(t, axis1=-2, axis2=-1))
    column = jnp.arange(a.shape[-1])

    def step(x: Array, j: Any) -> tuple[Array, None]:
        root = lax.dynamic_slice_in_dim(roots, j, 1, -1)[..., None]
        right = lax.dynamic_slice_in_dim(t, j, 1, -1)
        # Columns up to j of the root, and its diagonal, are known.
        new, lost = _solve_above(x, root, right, j, 1.0)
        new = jnp.where(lost & (new != 0), jnp.nan, new)
        return jnp.where((column == j) & (column[:, None] < j), new, x), None

    diagonal = roots[..., None] * jnp.eye(a.shape[-1], dtype=a.dtype)
    x, _ = lax.scan(step, diagonal, column)
    return product(z, product(x, adjoint(z)))


@_root.defjvp
def _root_rule(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (a,), (t,) = primals, tangents
    x = _root(a)
    return x, solve_sylvester(x, x, t, tol=0.0)


def funm(A: ArrayLike, func: Callable[[Array], Array], disp: bool = True) -> PyTree:
    """A function of a matrix, given on numbers: Q f(T) Q^H for the complex Schur form Q T Q^H.

    f(T) has f of the eigenvalues on its diagonal and the rest by Parlett's recurrence (1976), which
    divides by differences of eigenvalues: it is exact to rounding where these are apart. LAPACK
    computes the Schur form on the host. Differentiable in `A`, where eigenvalues are distinct, and
    in what `func` closes over.

    Args:
        A: a matrix [n, n].
        func: function of complex vectors, elementwise.
        disp: whether the value is given alone.

    Returns:
        The complex matrix f(A), or (f(A), an estimate of its relative error). NaN where equal
        eigenvalues hide what the recurrence needs.

    Raises:
        ShapeError: `A` is no square matrix.

    >>> jnp.round(scipy.linalg.funm(jnp.array([[1.0, 1.0], [0.0, 2.0]]), lambda x: x * x).real, 4)
    Array([[1., 3.],
           [0., 4.]], dtype=float32)
    """
    a = _square("funm", A)
    if a.ndim != 2:
        raise errors.ShapeError(
            f"funm takes one matrix, got {a.aval}\n  at {where().describe()}\n  use vmap"
        )
    t, z = lax.linalg.schur(a.astype(dtypes.complex_of(a.dtype)))
    values = jnp.diag(t)
    images = func(values).astype(t.dtype)
    n, eps = a.shape[-1], float(dtypes.finfo(a.dtype).eps)
    column = jnp.arange(n)
    rounding = n * eps * jnp.max(jnp.abs(t), initial=0)
    largest = jnp.max(jnp.abs(images), initial=0)

    def step(f: Array, j: Any) -> tuple[Array, None]:
        """T F = F T, of which column j gives the elements above f[j, j]."""
        of_t = lax.dynamic_slice_in_dim(t, j, 1, -1)
        above = jnp.where(column[:, None] < j, of_t, 0)
        right = product(f, above) - above * lax.dynamic_slice_in_dim(images, j, 1)
        value = lax.dynamic_slice_in_dim(values, j, 1)
        new, lost = _solve_above(t, -value, right, j, -1.0)
        hidden = (jnp.abs(new) > rounding * largest) | (jnp.abs(above) > rounding)
        new = jnp.where(lost & hidden, jnp.nan, new)
        return jnp.where((column == j) & (column[:, None] < j), new, f), None

    f, _ = lax.scan(step, jnp.diag(images), column)
    f = product(z, product(f, adjoint(z)))
    if disp:
        return f
    gaps = jnp.abs(values[:, None] - values) + jnp.where(jnp.eye(n, dtype=bool), jnp.inf, 0)
    least = jnp.minimum(jnp.min(gaps), jnp.abs(values[0]))
    least = jnp.where(least == 0, eps, least)
    size = jnp.max(jnp.sum(jnp.abs(jnp.triu(t, 1)), 0))
    error = jnp.minimum(1, jnp.maximum(eps, eps / least * size))
    return f, jnp.where(jnp.any(jnp.isinf(f)), jnp.inf, error)
