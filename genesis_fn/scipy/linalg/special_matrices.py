"""Matrices with a pattern: of an argument's elements, or of numbers that their size decides."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike
from genesis_fn.lax.promotion import promote_arrays


def _refused(name: str, said: str) -> errors.ArgumentError:
    return errors.ArgumentError(f"{name}: {said}\n  at {where().describe()}")


def _vectors(name: str, *xs: ArrayLike, inexact: bool = False) -> list[Array]:
    """Operands of one dtype and one leading shape, with at least one axis."""
    arrays = [jnp.atleast_1d(x) for x in promote_arrays(name, xs, inexact=inexact)]
    if len(arrays) == 1:
        return arrays
    batch = jnp.broadcast_shapes(*[x.shape[:-1] for x in arrays])
    return [jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in arrays]


def _size(name: str, n: int, least: int = 0) -> int:
    n = operator.index(n)
    if n < least:
        raise _refused(name, f"n must be at least {least}, got {n}")
    return n


# ---- made of an argument's elements ----


def block_diag(*arrs: ArrayLike) -> Array:
    """The matrix with `arrs` along its diagonal, in turn, and zeros elsewhere.

    Args:
        *arrs: matrices; vectors count as rows and numbers as 1 x 1.

    Returns:
        A matrix in their common dtype; [1, 0] of no arguments.

    Raises:
        ShapeError: one has more than two dimensions.

    >>> scipy.linalg.block_diag(jnp.array([1, 2]), 3)
    Array([[1, 2, 0],
           [0, 0, 3]], dtype=int32)
    """
    given = [jnp.asarray(x) for x in arrs or ([[]],)]
    blocks = [jnp.atleast_2d(x) for x in promote_arrays("block_diag", given)]
    if not arrs:
        blocks = [jnp.zeros((1, 0))]
    for i, x in enumerate(blocks):
        if x.ndim > 2:
            raise errors.ShapeError(
                f"block_diag takes matrices, got {x.aval} as argument {i}\n"
                f"  at {where().describe()}"
            )
    width, start, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        end = start + x.shape[1]
        rows.append(jnp.pad(x, ((0, 0), (start, width - end))))
        start = end
    return jnp.concatenate(rows, 0)


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrix with constant diagonals: T[i, j] = c[i - j] on and below, r[j - i] above.

    Args:
        c: the first column [..., m].
        r: the first row [..., n], of which r[..., 0] is not read; the conjugate of `c` by default.

    Returns:
        Matrices [..., m, n].

    >>> scipy.linalg.toeplitz(jnp.array([1, 2, 3]), jnp.array([1, 8, 9]))
    Array([[1, 8, 9],
           [2, 1, 8],
           [3, 2, 1]], dtype=int32)
    """
    if r is None:
        (c,) = _vectors("toeplitz", c)
        r = jnp.conj(c)
    c, r = _vectors("toeplitz", c, r)
    m, n = c.shape[-1], r.shape[-1]
    if not m or not n:
        return jnp.zeros((*c.shape[:-1], m, n), c.dtype)
    elements = jnp.concatenate([jnp.flip(c, -1), r[..., 1:]], -1)
    return elements[..., m - 1 - np.arange(m)[:, None] + np.arange(n)]


def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrix with constant antidiagonals: first column `c`, last row `r`.

    Args:
        c: the first column [..., m].
        r: the last row [..., n], of which r[..., 0] is not read; zeros [..., m] by default.

    Returns:
        Matrices [..., m, n].

    Raises:
        ShapeError: an argument is a scalar.

    >>> scipy.linalg.hankel(jnp.array([1, 2, 3]))
    Array([[1, 2, 3],
           [2, 3, 0],
           [3, 0, 0]], dtype=int32)
    """
    for x in (c, r):
        if x is not None and not np.ndim(x):
            raise errors.ShapeError(
                f"hankel takes vectors, got a scalar\n  at {where().describe()}"
            )
    (c,) = _vectors("hankel", c)
    c, r = _vectors("hankel", c, jnp.zeros_like(c) if r is None else r)
    m, n = c.shape[-1], r.shape[-1]
    if not m or not n:
        return jnp.zeros((*c.shape[:-1], m, n), c.dtype)
    elements = jnp.concatenate([c, r[..., 1:]], -1)
    return elements[..., np.arange(m)[:, None] + np.arange(n)]


def circulant(c: ArrayLike) -> Array:
    """The square matrix whose columns are `c`, each turned down by one more.

    Args:
        c: the first column [..., n].

    Returns:
        Matrices [..., n, n] with C[i, j] = c[(i - j) mod n].

    >>> scipy.linalg.circulant(jnp.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int32)
    """
    (c,) = _vectors("circulant", c)
    n = c.shape[-1]
    if not n:
        return jnp.zeros((*c.shape[:-1], 0, 0), c.dtype)
    return c[..., (np.arange(n)[:, None] - np.arange(n)) % n]


def _below_row(first: Array, rest: Array) -> Array:
    return jnp.concatenate([first[..., None, :], rest], -2)


def leslie(f: ArrayLike, s: ArrayLike) -> Array:
    """The matrix of a population's growth by age: rates of birth in its first row, of survival
    below its diagonal (Leslie, 1945).

    Args:
        f: rates of birth [..., n], n >= 2.
        s: rates of survival [..., n - 1].

    Returns:
        Matrices [..., n, n].

    Raises:
        ShapeError: the lengths do not fit.

    >>> scipy.linalg.leslie(jnp.array([0.0, 2.0]), jnp.array([0.5]))
    Array([[0. , 2. ],
           [0.5, 0. ]], dtype=float32)
    """
    f, s = _vectors("leslie", f, s)
    n = f.shape[-1]
    if n < 2 or s.shape[-1] != n - 1:
        raise errors.ShapeError(
            f"leslie: {f.aval} and {s.aval} do not fit: f [..., n] with n >= 2 and s [..., n - 1]\n"
            f"  at {where().describe()}"
        )
    return _below_row(f, s[..., :, None] * jnp.eye(n - 1, n, dtype=s.dtype))


def companion(a: ArrayLike) -> Array:
    """The matrix whose characteristic polynomial has the coefficients `a`, by its first row.

    Args:
        a: coefficients [..., n], of the highest power first, n >= 2; a[..., 0] is not zero.

    Returns:
        Matrices [..., n - 1, n - 1].

    Raises:
        ShapeError: there are fewer than two coefficients.

    >>> scipy.linalg.companion(jnp.array([1.0, -3.0, 2.0]))
    Array([[ 3., -2.],
           [ 1.,  0.]], dtype=float32)
    """
    (a,) = _vectors("companion", a, inexact=True)
    n = a.shape[-1] - 1
    if n < 1:
        raise errors.ShapeError(
            f"companion takes at least two coefficients, got {a.aval}\n  at {where().describe()}"
        )
    first = -a[..., 1:] / a[..., :1]
    below = jnp.broadcast_to(jnp.eye(n - 1, n, dtype=first.dtype), (*a.shape[:-1], n - 1, n))
    return _below_row(first, below)


def fiedler(a: ArrayLike) -> Array:
    """The symmetric matrix of distances, F[i, j] = |a[i] - a[j]|.

    Args:
        a: numbers [..., n].

    Returns:
        Matrices [..., n, n].

    >>> scipy.linalg.fiedler(jnp.array([1, 4, 9]))
    Array([[0, 3, 8],
           [3, 0, 5],
           [8, 5, 0]], dtype=int32)
    """
    (a,) = _vectors("fiedler", a)
    return jnp.abs(a[..., :, None] - a[..., None, :])


def fiedler_companion(a: ArrayLike) -> Array:
    """A matrix of five diagonals whose characteristic polynomial has the coefficients `a` (Fiedler,
    "A note on companion matrices", 2003).

    Args:
        a: coefficients [..., n], of the highest power first; a[..., 0] is not zero.

    Returns:
        Matrices [..., n - 1, n - 1].

    Raises:
        ShapeError: there are no coefficients.

    >>> scipy.linalg.fiedler_companion(jnp.array([1.0, -16.0, 86.0, -176.0, 105.0]))
    Array([[  16.,  -86.,    1.,    0.],
           [   1.,    0.,    0.,    0.],
           [   0.,  176.,    0., -105.],
           [   0.,    1.,    0.,    0.]], dtype=float32)
    """
    (a,) = _vectors("fiedler_companion", a, inexact=True)
    n = a.shape[-1] - 1
    if n < 0:
        raise errors.ShapeError(
            f"fiedler_companion takes at least one coefficient, got {a.aval}\n"
            f"  at {where().describe()}"
        )
    if n == 0:
        return jnp.zeros((*a.shape[:-1], 0, 0), a.dtype)
    which, ones = np.zeros((n, n), np.int32), np.zeros((n, n), bool)  # which coefficient stands
    which[0, 0] = 1
    ones[1:2, 0] = True
    for i in range(n):
        if i % 2:
            ones[i, max(i - 2, 0)] |= i >= 3
            continue
        if i + 1 < n:
            which[i, i + 1] = i + 2
        if i + 2 < n:
            ones[i, i + 2] = True
        if i >= 2:
            which[i, i - 1] = i + 1
    scaled = a / a[..., :1]
    return jnp.where(which > 0, -scaled[..., which], jnp.asarray(ones, dtype=a.dtype))


def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """The Toeplitz matrix A with A v = convolve(a, v, mode) for vectors v[n].

    Args:
        a: a sequence [..., m], m >= 1.
        n: the length of the vectors, positive.
        mode: "full" (m + n - 1 rows), "same" (max(m, n)) or "valid" (max(m, n) - min(m, n) + 1).

    Returns:
        Matrices [..., rows, n].

    Raises:
        ArgumentError: `n` or `mode` is none of these.
        ShapeError: `a` is empty or a scalar.

    >>> scipy.linalg.convolution_matrix(jnp.array([-1, 4]), 3, mode="same")
    Array([[-1,  0,  0],
           [ 4, -1,  0],
           [ 0,  4, -1]], dtype=int32)
    """
    n = _size("convolution_matrix", n, 1)
    if mode not in ("full", "same", "valid"):
        raise _refused("convolution_matrix", f"mode {mode!r} is none of 'full', 'same', 'valid'")
    (a,) = promote_arrays("convolution_matrix", (a,))
    if not a.ndim or not a.shape[-1]:
        raise errors.ShapeError(
            f"convolution_matrix takes a sequence of at least one element, got {a.aval}\n"
            f"  at {where().describe()}"
        )
    m = a.shape[-1]
    edges = [(0, 0)] * (a.ndim - 1)
    first_column = jnp.pad(a, [*edges, (0, n - 1)])
    first_row = jnp.pad(a[..., :1], [*edges, (0, n - 1)])
    whole = toeplitz(first_column, first_row)
    left_out = {"full": 0, "same": min(m, n) - 1, "valid": 2 * (min(m, n) - 1)}[mode]
    start = left_out // 2
    return whole[..., start : m + n - 1 - (left_out - start), :]


# ---- made of their size ----


def _table(n: int, element: Callable[[int, int], Any]) -> Array:
    """The square matrix of `element(i, j)`, exact numbers rounded once to the default float."""

    def rounded(x: Any) -> float:
        try:
            return float(x)
        except OverflowError:
            return math.inf if x > 0 else -math.inf

    rows = [[rounded(element(i, j)) for j in range(n)] for i in range(n)]
    return jnp.asarray(np.array(rows, np.float64).reshape(n, n), dtype=float)


def hilbert(n: int) -> Array:
    """Hilbert's matrix, H[i, j] = 1 / (i + j + 1), as badly conditioned as matrices are.

    Args:
        n: rows and columns.

    Returns:
        A matrix [n, n], float32 (float64 where that is the default).

    >>> scipy.linalg.hilbert(2)
    Array([[1.        , 0.5       ],
           [0.5       , 0.33333334]], dtype=float32)
    """
    return _table(_size("hilbert", n), lambda i, j: 1 / (i + j + 1))


def invhilbert(n: int) -> Array:
    """The inverse of Hilbert's matrix, of integers (Choi, "Tricks or treats with the Hilbert
    matrix", 1983).

    Args:
        n: rows and columns.

    Returns:
        A matrix [n, n], float32 (float64 where that is the default).

    >>> scipy.linalg.invhilbert(2)
    Array([[ 4., -6.],
           [-6., 12.]], dtype=float32)
    """
    n = _size("invhilbert", n)

    def element(i: int, j: int) -> int:
        size = (i + j + 1) * math.comb(n + i, n - j - 1) * math.comb(n + j, n - i - 1)
        return (-1) ** (i + j) * size * math.comb(i + j, i) ** 2

    return _table(n, element)


def _kind(name: str, kind: str | None) -> str:
    if kind not in (None, "symmetric", "lower", "upper"):
        raise _refused(name, f"kind {kind!r} is none of 'symmetric', 'lower', 'upper'")
    return kind or "symmetric"


def pascal(n: int, kind: str | None = None) -> Array:
    """The matrix of binomial coefficients.

    Args:
        n: rows and columns.
        kind: "symmetric" (the default), with binom(i + j, i); "lower", with binom(i, j); or
            "upper", its transpose.

    Returns:
        A matrix [n, n], float32 (float64 where that is the default).

    >>> scipy.linalg.pascal(3, "lower")
    Array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 2., 1.]], dtype=float32)
    """
    n, kind = _size("pascal", n), _kind("pascal", kind)
    if kind == "symmetric":
        return _table(n, lambda i, j: math.comb(i + j, i))
    lower = _table(n, math.comb)
    return lower if kind == "lower" else lower.T


def invpascal(n: int, kind: str | None = None) -> Array:
    """The inverse of `pascal(n, kind)`, of integers too.

    Args:
        n: rows and columns.
        kind: "symmetric" (the default), "lower" or "upper", as of `pascal`.

    Returns:
        A matrix [n, n], float32 (float64 where that is the default).

    >>> scipy.linalg.invpascal(3, "lower")
    Array([[ 1.,  0.,  0.],
           [-1.,  1.,  0.],
           [ 1., -2.,  1.]], dtype=float32)
    """
    n, kind = _size("invpascal", n), _kind("invpascal", kind)

    def signed(i: int, j: int) -> int:
        return (-1) ** (i + j) * math.comb(i, j)

    if kind == "symmetric":
        return _table(n, lambda i, j: sum(signed(k, i) * signed(k, j) for k in range(n)))
    lower = _table(n, signed)
    return lower if kind == "lower" else lower.T


def helmert(n: int, full: bool = False) -> Array:
    """Helmert's orthonormal contrasts: row i compares element i + 1 with the mean of those before
    it (Lancaster, "The Helmert matrices", 1965).

    Args:
        n: columns, positive.
        full: whether a first row of 1 / sqrt(n) makes the matrix square.

    Returns:
        A matrix [n - 1, n], or with `full` [n, n]; float32 (float64 where that is the default).

    >>> scipy.linalg.helmert(2, full=True)
    Array([[ 0.70710677,  0.70710677],
           [ 0.70710677, -0.70710677]], dtype=float32)
    """
    n = _size("helmert", n, 1)

    def element(i: int, j: int) -> float:
        if i == 0:
            return 1 / math.sqrt(n)
        return (1 if j < i else -i if j == i else 0) / math.sqrt(i * (i + 1))

    square = _table(n, element)
    return square if full else square[1:]


def hadamard(n: int, dtype: DTypeLike = int) -> Array:
    """Hadamard's matrix of 1 and -1 with orthogonal rows, by Sylvester's doubling.

    Args:
        n: rows and columns, a power of 2.
        dtype: of the result.

    Returns:
        A matrix [n, n].

    Raises:
        ArgumentError: `n` is no power of 2.

    >>> scipy.linalg.hadamard(2)
    Array([[ 1,  1],
           [ 1, -1]], dtype=int32)
    """
    n = operator.index(n)
    if n < 1 or n & (n - 1):
        raise _refused("hadamard", f"n must be a power of 2, got {n}")
    signs = np.ones((1, 1), np.int8)
    while len(signs) < n:
        signs = np.block([[signs, signs], [signs, -signs]])
    return jnp.asarray(signs, dtype=dtype)


def dft(n: int, scale: str | None = None, *, dtype: DTypeLike | None = None) -> Array:
    """The matrix of the discrete Fourier transform, exp(-2 pi i j k / n).

    Args:
        n: rows and columns.
        scale: None, "sqrtn" to divide by sqrt(n) (a unitary matrix), or "n" to divide by n.
        dtype: complex; complex64 by default (complex128 where floats are float64).

    Returns:
        A matrix [n, n].

    Raises:
        ArgumentError: `scale` is none of these.
        DTypeError: `dtype` is not complex.

    >>> jnp.round(scipy.linalg.dft(2).real)
    Array([[ 1.,  1.],
           [ 1., -1.]], dtype=float32)
    """
    n = _size("dft", n)
    if scale not in (None, "sqrtn", "n"):
        raise _refused("dft", f"scale {scale!r} is none of None, 'sqrtn', 'n'")
    if dtype is not None and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise errors.DTypeError(
            f"dft takes a complex dtype, got {dtypes.dtype(dtype).name}\n  at {where().describe()}"
        )
    k = np.arange(n)
    turns = np.outer(k, k) % max(n, 1) / max(n, 1)  # whole turns would only cost digits
    table = np.exp(-2j * np.pi * turns) / {None: 1, "sqrtn": math.sqrt(n), "n": n}[scale]
    return jnp.asarray(table, dtype=complex if dtype is None else dtype)
