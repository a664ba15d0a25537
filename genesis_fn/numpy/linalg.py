"""numpy.linalg: norms, decompositions, solutions of linear systems, products of matrices."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike, PyTree
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.linalg import decompositions
from genesis_fn.lax.linalg.reflections import qr_reflections
from genesis_fn.lax.promotion import broadcast, broadcast_shapes, promote_arrays, scalar_as, strong
from genesis_fn.numpy.arrays.grids import eye
from genesis_fn.numpy.indexing.selection import take_along_axis
from genesis_fn.numpy.manipulation.shapes import (
    matrix_transpose as matrix_transpose,
    moveaxis,
    ravel,
    swapaxes,
)
from genesis_fn.numpy.manipulation.sorting import argsort
from genesis_fn.numpy.mathematics import contraction as c, reductions as r
from genesis_fn.numpy.mathematics.composed import power, where
from genesis_fn.numpy.mathematics.contraction import (
    einsum,
    matmul as matmul,
    tensordot as tensordot,
    vecdot as vecdot,
)
from genesis_fn.numpy.mathematics.ufuncs import (
    absolute,
    add,
    conj,
    divide,
    greater,
    less,
    log,
    maximum,
    multiply,
    not_equal,
    sqrt,
    subtract,
)
from genesis_fn.primitives import elementwise as p, linalg
from genesis_fn.primitives.dot_general import PrecisionLike
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.shape import broadcasted_iota, canonical_axes, canonical_axis, reshape
from genesis_fn.transforms.custom.derivative_rules import custom_jvp

LinAlgError = np.linalg.LinAlgError


class EigResult(NamedTuple):
    """Results of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """Results of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Results of `qr`."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """Results of `slogdet`."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Results of `svd`."""

    U: Array
    S: Array
    Vh: Array


def _inexact(name: str, *xs: Any) -> list[Array]:
    return promote_arrays(name, [asarray(x) for x in xs], inexact=True)


def _matrix(name: str, a: Any, square: bool = False) -> Array:
    (a,) = _inexact(name, a)
    if a.ndim < 2:
        raise errors.ShapeError(f"{name} takes matrices, got {a.aval}")
    if square and a.aval.shape[-1] != a.aval.shape[-2]:
        raise errors.ShapeError(f"{name} takes square matrices, got {a.aval}")
    return a


# ---- norms ----


def norm(
    x: ArrayLike | Sequence[Any],
    ord: int | float | str | None = None,
    axis: Axis = None,
    keepdims: bool = False,
) -> Array:
    """The norm of vectors (one axis) or matrices (two axes); by default the Euclidean or Frobenius.

    `axis` None takes all of `x`: a vector, a matrix, or with `ord` None any array flattened.
    """
    (x,) = _inexact("norm", x)
    if axis is None and ord is None:
        flat = vector_norm(ravel(x))
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    axes = tuple(range(x.ndim)) if axis is None else canonical_axes(axis, x.ndim, "norm")
    if len(axes) == 1:
        if isinstance(ord, str):
            raise ValueError(f"norm: {ord!r} is a norm of matrices, not of vectors")
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ValueError(f"norm: axis must name one or two axes, got {axis!r} for {x.aval}")
    y = matrix_norm(moveaxis(x, axes, (-2, -1)), keepdims=False, ord="fro" if ord is None else ord)
    return (
        reshape(y, [1 if i in axes else n for i, n in enumerate(x.aval.shape)]) if keepdims else y
    )


def vector_norm(
    x: ArrayLike | Sequence[Any],
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    ord: float | None = 2,
) -> Array:
    """(sum |x|**ord) ** (1 / ord) over `axis`, all of them for None; ord may be +-inf or 0."""
    (x,) = _inexact("vector_norm", x)
    if ord == 2 or ord is None:
        if dtypes.is_complex(x.dtype):
            squares = p.square(p.real(x)) + p.square(p.imag(x))
        else:
            squares = p.square(x)
        return sqrt(r.sum(squares, axis, keepdims=keepdims))
    size = absolute(x)
    if ord == math.inf:
        return r.max(size, axis, keepdims=keepdims, initial=None if size.size else 0)
    if ord == -math.inf:
        return r.min(size, axis, keepdims=keepdims)
    if ord == 0:
        return r.sum(not_equal(x, 0), axis, size.dtype, keepdims=keepdims)
    if ord == 1:
        return r.sum(size, axis, keepdims=keepdims)
    return power(r.sum(power(size, ord), axis, keepdims=keepdims), 1.0 / ord)


def matrix_norm(
    x: ArrayLike | Sequence[Any],
    /,
    *,
    keepdims: bool = False,
    ord: int | float | str | None = "fro",
) -> Array:
    """A norm of the last two axes: "fro", "nuc", 1, -1, 2, -2, inf, -inf."""
    x = _matrix("matrix_norm", x)
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1, math.inf, -math.inf):
        along, across = (-2, -1) if abs(ord) == 1 else (-1, -2)
        sums = r.sum(absolute(x), along, keepdims=True)
        least = None if x.size or ord < 0 else 0  # of nothing the norm is 0
        y = (r.max if ord > 0 else r.min)(sums, across, keepdims=True, initial=least)
    elif ord in (2, -2, "nuc"):
        s = linalg.svdvals(x)
        least = None if s.aval.shape[-1] or ord == -2 else 0
        y = r.sum(s, -1) if ord == "nuc" else (r.max if ord == 2 else r.min)(s, -1, initial=least)
        y = reshape(y, (*y.aval.shape, 1, 1))
    else:
        raise ValueError(f"matrix_norm: {ord!r} is none of 'fro', 'nuc', 1, -1, 2, -2, inf, -inf")
    return y if keepdims else reshape(y, y.aval.shape[:-2])


# ---- decompositions ----


def cholesky(
    a: ArrayLike | Sequence[Any], *, upper: bool = False, symmetrize_input: bool = True
) -> Array:
    """The triangular factor of a positive definite matrix; NaN where it is not one."""
    factor = linalg.cholesky(_matrix("cholesky", a, True), symmetrize_input=symmetrize_input)
    return conj(matrix_transpose(factor)) if upper else factor


@overload
def qr(
    a: ArrayLike | Sequence[Any], mode: Literal["reduced", "complete", "full", "raw"] = "reduced"
) -> QRResult: ...


@overload
def qr(a: ArrayLike | Sequence[Any], mode: Literal["r"]) -> Array: ...


@overload
def qr(a: ArrayLike | Sequence[Any], mode: str = "reduced") -> PyTree: ...


def qr(a: ArrayLike | Sequence[Any], mode: str = "reduced") -> PyTree:
    """(Q, R) with a = Q R.

    Modes: "reduced" (or "full"); "complete", for square Q; "r" for R alone; "raw" for (h, tau), the
    transposed array of R and the Householder reflections that LAPACK's geqrf leaves, and their
    factors, as `lax.linalg.householder_product` and `ormqr` take them.
    """
    if mode not in ("reduced", "complete", "r", "full", "raw"):
        raise ValueError(f"qr: mode {mode!r} is none of 'reduced', 'complete', 'r', 'full', 'raw'")
    a = _matrix("qr", a)
    if mode == "raw":
        packed, taus = qr_reflections(a)
        return QRResult(matrix_transpose(packed), taus)
    q, upper = linalg.qr(a, full_matrices=mode == "complete")
    return upper if mode == "r" else QRResult(q, upper)


def eig(a: ArrayLike | Sequence[Any]) -> EigResult:
    """(eigenvalues, eigenvectors as columns of length one) of square matrices, both complex, in no
    particular order.

    Differentiable where eigenvalues are distinct; an eigenvector's phase is free, and its
    derivative leaves it alone. NaN for a matrix that is not finite.

        eig(jnp.array([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues   # [0+1j, 0-1j]
    """
    return EigResult(*linalg.eig(_matrix("eig", a, True)))


def eigvals(a: ArrayLike | Sequence[Any]) -> Array:
    """The eigenvalues of square matrices, complex, in no particular order."""
    (values,) = linalg.eig(_matrix("eigvals", a, True), compute_vectors=False)
    return values


def eigh(
    a: ArrayLike | Sequence[Any], UPLO: str | None = None, symmetrize_input: bool = True
) -> EighResult:
    """(eigenvalues ascending, eigenvectors as columns) of a Hermitian matrix."""
    a = _matrix("eigh", a, True)
    if UPLO not in (None, "L", "U"):
        raise ValueError(f'eigh: UPLO must be "L" or "U", got {UPLO!r}')
    vectors, values = linalg.eigh(a, lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(values, vectors)


def eigvalsh(
    a: ArrayLike | Sequence[Any], UPLO: str | None = "L", *, symmetrize_input: bool = True
) -> Array:
    """The eigenvalues of a Hermitian matrix, ascending."""
    return eigh(a, UPLO, symmetrize_input).eigenvalues


@overload
def svd(
    a: ArrayLike | Sequence[Any],
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult: ...


@overload
def svd(
    a: ArrayLike | Sequence[Any],
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Array: ...


@overload
def svd(
    a: ArrayLike | Sequence[Any],
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> PyTree: ...


def svd(
    a: ArrayLike | Sequence[Any],
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> PyTree:
    """(U, S, V^H) with a = U diag(S) V^H and S descending; S alone without `compute_uv`.

    With `hermitian`, from the eigenvalues of the Hermitian matrix (a + a^H) / 2. A range (start,
    end) as `subset_by_index` leaves the values and vectors with other positions out; it needs
    full_matrices=False.
    """
    a = _matrix("svd", a, hermitian)
    if not hermitian:
        found = decompositions.svd(
            a,
            full_matrices=full_matrices and compute_uv,
            compute_uv=compute_uv,
            subset_by_index=subset_by_index,
        )
        return SVDResult(*found) if compute_uv else found
    vectors, values = linalg.eigh(a)
    order = argsort(p.neg(p.abs(values)), -1)
    if subset_by_index is not None:
        start, end = decompositions.subset_range("svd", subset_by_index, a.aval.shape[-1])
        order = order[..., start:end]
    values = take_along_axis(values, order, -1)
    if not compute_uv:
        return absolute(values)
    u = take_along_axis(vectors, order[..., None, :], -1)
    sign = p.convert(where(less(values, 0), -1.0, 1.0), a.dtype)
    return SVDResult(u, absolute(values), conj(matrix_transpose(multiply(u, sign[..., None, :]))))


def svdvals(x: ArrayLike | Sequence[Any], /) -> Array:
    """The singular values, descending."""
    return linalg.svdvals(_matrix("svdvals", x))


# ---- determinants, ranks ----


def _sign_of_permutation(pivots: Any) -> Array:
    """-1 for an odd number of exchanges."""
    n = pivots.aval.shape[-1]
    positions = broadcasted_iota(pivots.dtype, pivots.aval.shape, pivots.ndim - 1)
    count = (
        r.sum(not_equal(pivots, positions), -1, dtypes.I32)
        if n
        else full(pivots.aval.shape[:-1], 0, dtypes.I32)
    )
    return subtract(1, multiply(2, p.bitwise_and(count, 1)))


def slogdet(a: ArrayLike | Sequence[Any], *, method: str | None = None) -> SlogdetResult:
    """(sign, log |determinant|): accurate where the determinant overflows."""
    a = _matrix("slogdet", a, True)
    if a.aval.shape[-1] == 1:  # the factors of a zero have no derivative
        only = a[..., 0, 0]
        return SlogdetResult(_sign(only), _log_of_absolute(only))
    factors, pivots, _ = linalg.lu(a)
    diagonal_ = c.diagonal(factors, 0, -2, -1)
    signs = r.prod(_sign(diagonal_), -1)
    sign = multiply(signs, p.convert(_sign_of_permutation(pivots), a.dtype))
    return SlogdetResult(sign, r.sum(_log_of_absolute(diagonal_), -1))


@custom_jvp
def _log_of_absolute(x: Any) -> Array:
    return log(absolute(x))


@_log_of_absolute.defjvp
def _log_of_absolute_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # |x| has no slope at 0, but its logarithm is infinitely steep there.
    (x,), (t,) = primals, tangents
    return _log_of_absolute(x), p.real(divide(t, x)) if dtypes.is_complex(x.dtype) else divide(t, x)


def _sign(x: Any) -> Array:
    """`sign`, but with the derivative of x / |x| for complex x."""
    if not dtypes.is_complex(x.dtype):
        return p.sign(x)
    zero = p.eq(x, 0)
    return where(zero, 0, divide(x, where(zero, 1, absolute(x))))


def det(a: ArrayLike | Sequence[Any]) -> Array:
    """The determinant."""
    a = _matrix("det", a, True)
    n = a.aval.shape[-1]
    if n == 1:
        return a[..., 0, 0]
    # Up to 3 x 3 by minors: differentiable at singular matrices too.
    if n == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    if n == 3:
        return r.sum(multiply(a[..., 0, :], c.cross(a[..., 1, :], a[..., 2, :])), -1)
    return _large_det(a)


@custom_jvp
def _large_det(a: Any) -> Array:
    factors, pivots, _ = linalg.lu(a)
    sign = p.convert(_sign_of_permutation(pivots), a.dtype)
    return multiply(sign, r.prod(c.diagonal(factors, 0, -2, -1), -1))


@_large_det.defjvp
def _large_det_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # The derivative of a determinant is the trace of the adjugate times that of the matrix.
    (a,), (t,) = primals, tangents
    d = _large_det(a)
    singular = p.eq(d, scalar_as(0, d.dtype))[..., None, None]
    one = broadcast(eye(a.aval.shape[-1], dtype=a.dtype), a.aval.shape)
    regular = multiply(d[..., None, None], linalg.solve(where(singular, one, a), one))
    adjugate = where(singular, _adjugate_of_singular(a), regular)
    return d, r.sum(multiply(swapaxes(adjugate, -1, -2), t), (-2, -1))


@custom_jvp
def _adjugate_of_singular(a: Any) -> Array:
    u, s, vh = linalg.svd(a, full_matrices=False)
    # Each singular value's place holds the product of the others.
    n = a.aval.shape[-1]
    same = eye(n, dtype=dtypes.BOOL)
    others = r.prod(where(same, 1.0, s[..., None, :]), -1)
    phase = multiply(_large_det(u), _large_det(vh))
    inner = multiply(p.convert(others, a.dtype), phase[..., None])
    scaled = multiply(conj(swapaxes(vh, -1, -2)), inner[..., None, :])
    return matmul(scaled, conj(swapaxes(u, -1, -2)), precision="highest")


@_adjugate_of_singular.defjvp
def _adjugate_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # The singular vectors of a singular matrix have no derivative.
    return _adjugate_of_singular(*primals), multiply(tangents[0], math.nan)


def _tolerance(s: Any, shape: Sequence[int]) -> float:
    return max(shape[-2:]) * float(dtypes.finfo(s.dtype).eps)


def matrix_rank(
    M: ArrayLike | Sequence[Any],
    rtol: ArrayLike | Sequence[Any] | None = None,
    *,
    hermitian: bool = False,
    tol: ArrayLike | None = None,
) -> Array:
    """How many singular values exceed `rtol` times the greatest, or `tol`; by default
    max(m, n) eps times the greatest.

    With `hermitian`, sizes of the eigenvalues of a Hermitian matrix. Both bounds are NumPy's: JAX
    takes `rtol` as the bound itself.
    """
    if rtol is not None and tol is not None:
        raise errors.ArgumentError("matrix_rank: give rtol= or tol=, not both")
    (x,) = _inexact("matrix_rank", M)
    if x.ndim < 2:
        return p.convert(r.any(not_equal(x, 0)), dtypes.default_int())
    s = absolute(eigvalsh(x)) if hermitian else linalg.svdvals(x)
    if tol is not None:
        return r.sum(greater(s, asarray(tol, s.dtype)[..., None]), -1)
    limit = multiply(
        r.max(s, -1, keepdims=True),
        _tolerance(s, x.aval.shape) if rtol is None else asarray(rtol, s.dtype)[..., None],
    )
    return r.sum(greater(s, limit), -1)


def cond(x: ArrayLike | Sequence[Any], p: int | float | str | None = None) -> Array:
    """The condition number norm(x) * norm(inv(x)); by default the ratio of singular values."""
    x = _matrix("cond", x)
    if p in (None, 2, -2):
        s = linalg.svdvals(x)
        low, high = s[..., -1], s[..., 0]
        return divide(low, high) if p == -2 else divide(high, low)
    return multiply(norm(x, p, (-2, -1)), norm(inv(x), p, (-2, -1)))


# ---- solving ----


def solve(a: ArrayLike | Sequence[Any], b: ArrayLike | Sequence[Any]) -> Array:
    """x with a x = b, for a vector b or matrices b; NaN where `a` is singular."""
    a, b = _inexact("solve", a, b)
    if a.ndim < 2 or a.aval.shape[-1] != a.aval.shape[-2] or not b.ndim:
        raise errors.ShapeError(f"solve takes square matrices and vectors, got {a.aval}, {b.aval}")
    vector = b.ndim == 1
    b = reshape(b, (b.size, 1)) if vector else b
    if a.aval.shape[-1] != b.aval.shape[-2]:
        raise errors.ShapeError(f"solve: {a.aval} and {b.aval} differ in rows")
    batch = broadcast_shapes(a.aval.shape[:-2], b.aval.shape[:-2])
    a = broadcast(a, (*batch, *a.aval.shape[-2:]))
    x = linalg.solve(a, broadcast(b, (*batch, *b.aval.shape[-2:])))
    return reshape(x, x.aval.shape[:-1]) if vector else x


def inv(a: ArrayLike | Sequence[Any]) -> Array:
    """The inverse of square matrices; NaN or infinity where there is none."""
    a = _matrix("inv", a, True)
    return linalg.solve(a, broadcast(eye(a.aval.shape[-1], dtype=a.dtype), a.aval.shape))


def pinv(
    a: ArrayLike | Sequence[Any],
    rtol: ArrayLike | Sequence[Any] | None = None,
    hermitian: bool = False,
    *,
    rcond: ArrayLike | None = None,
) -> Array:
    """The Moore-Penrose inverse, singular values below `rtol` times the greatest taken as zero."""
    if rtol is not None and rcond is not None:
        raise errors.ArgumentError("pinv: give rtol= or rcond=, not both")
    a = _matrix("pinv", a)
    m, n = a.aval.shape[-2:]
    if not m or not n:
        return full((*a.aval.shape[:-2], n, m), scalar_as(0, a.dtype), a.dtype)
    rtol = rcond if rtol is None else rtol
    if rtol is None:
        rtol = 10.0 * max(m, n) * float(dtypes.finfo(a.dtype).eps)
    return _pinv(a, asarray(rtol, dtypes.real_of(a.dtype)))


@custom_jvp
def _pinv(a: Any, rtol: Any) -> Array:
    u, s, vh = linalg.svd(a, full_matrices=False)
    keep = greater(s, multiply(r.max(s, -1, keepdims=True), rtol[..., None]))
    inverse = where(keep, divide(1, where(keep, s, 1)), 0)
    scaled = multiply(conj(swapaxes(vh, -1, -2)), p.convert(inverse, a.dtype)[..., None, :])
    return strong(matmul(scaled, conj(swapaxes(u, -1, -2)), precision="highest"))


@_pinv.defjvp
def _pinv_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # Golub and Pereyra (1973), eq. 4.12, at constant rank.
    (a, rtol), (t, _) = primals, tangents
    x = _pinv(a, rtol)

    def times(*factors: Any) -> Array:
        total = factors[0]
        for f in factors[1:]:
            total = matmul(total, f, precision="highest")
        return total

    xh, th = [conj(swapaxes(v, -1, -2)) for v in (x, t)]
    change = subtract(times(x, xh, subtract(th, times(th, a, x))), times(x, t, x))
    return x, add(change, times(subtract(th, times(x, a, th)), xh, x))


def lstsq(
    a: ArrayLike | Sequence[Any],
    b: ArrayLike | Sequence[Any],
    rcond: ArrayLike | None = None,
    *,
    numpy_resid: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """(x of least norm minimising |a x - b|, residuals, rank of a, singular values of a).

    Residuals are the squares of |a x - b| for each right-hand side. With `numpy_resid` there are
    none, an empty array, where NumPy gives none: where the rank is below the columns or rows are
    not more than columns. That depends on values, so that it does not compile.
    """
    a, b = _inexact("lstsq", a, b)
    if a.ndim != 2 or b.ndim not in (1, 2) or a.aval.shape[0] != b.aval.shape[0]:
        raise errors.ShapeError(
            f"lstsq takes a matrix and right-hand sides, got {a.aval}, {b.aval}"
        )
    vector = b.ndim == 1
    rhs = reshape(b, (b.size, 1)) if vector else b
    u, s, vh = linalg.svd(a, full_matrices=False)
    limit = _tolerance(s, a.aval.shape) if rcond is None else maximum(rcond, 0.0)
    keep = greater(s, multiply(s[0] if s.size else 0.0, limit))
    inverse = where(keep, divide(1, where(keep, s, 1)), 0)
    projected = multiply(
        p.convert(inverse, a.dtype)[:, None], matmul(conj(u.T), rhs, precision="highest")
    )
    x = matmul(conj(vh.T), projected, precision="highest")
    rank = r.sum(keep)
    missed = subtract(rhs, matmul(a, x, precision="highest"))
    residuals = r.sum(p.square(absolute(missed)), 0)
    m, n = a.aval.shape
    if numpy_resid and (m <= n or int(rank) < n):
        residuals = residuals[:0]
    return (reshape(x, (x.size,)) if vector else x), residuals, rank, s


# ---- products ----


def matrix_power(a: ArrayLike | Sequence[Any], n: int) -> Array:
    """`a` multiplied by itself n times; its inverse for negative n."""
    a = asarray(a)
    if a.ndim < 2 or a.aval.shape[-1] != a.aval.shape[-2]:
        raise errors.ShapeError(f"matrix_power takes square matrices, got {a.aval}")
    n = operator.index(n)
    if n == 0:
        return broadcast(eye(a.aval.shape[-1], dtype=a.dtype), a.aval.shape)
    if n < 0:
        a, n = inv(a), -n
    result: Array | None = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        a = matmul(a, a) if n else a
    assert result is not None  # n > 0 has a highest bit
    return result


def multi_dot(arrays: Sequence[Any], *, precision: PrecisionLike = None) -> Array:
    """The product of matrices (vectors at the ends), in the order of least work."""
    xs = list(arrays)
    if len(xs) < 2:
        raise ValueError("multi_dot takes at least two arrays")
    args: list[Any] = []
    for i, x in enumerate(xs):
        names = [i, i + 1]
        if np.ndim(x) == 1 if not hasattr(x, "ndim") else x.ndim == 1:
            names = [1] if i == 0 else [i]
        args += [x, names]
    first = [] if len(args[1]) == 1 else [0]
    last = [] if len(args[-1]) == 1 else [len(xs)]
    return einsum(*args, first + last, optimize="optimal", precision=precision)


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The outer product of two vectors."""
    x, y = promote_arrays("outer", (x1, x2))
    if x.ndim != 1 or y.ndim != 1:
        raise ValueError(f"linalg.outer takes vectors, got {x.aval} and {y.aval}")
    return c.outer(x, y)


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of length 3 along `axis`."""
    x, y = promote_arrays("cross", (x1, x2))
    if any(v.aval.shape[canonical_axis(axis, v.ndim, "cross")] != 3 for v in (x, y)):
        raise ValueError(f"linalg.cross takes vectors of length 3, got {x.aval} and {y.aval}")
    return c.cross(x, y, axis=axis)


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """The diagonals of the last two axes."""
    return c.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """The sums of the diagonals of the last two axes."""
    return c.trace(x, offset, -2, -1, dtype)


def tensorsolve(
    a: ArrayLike | Sequence[Any], b: ArrayLike | Sequence[Any], axes: Sequence[int] | None = None
) -> Array:
    """x with tensordot(a, x, x.ndim) == b."""
    a, b = _inexact("tensorsolve", a, b)
    if axes is not None:
        a = moveaxis(a, axes, range(a.ndim - len(axes), a.ndim))
    shape = a.aval.shape[b.ndim :]
    n = math.prod(shape)
    if math.prod(a.aval.shape[: b.ndim]) != n:
        raise errors.ShapeError(f"tensorsolve: {a.aval} is not square for {b.aval}")
    return reshape(solve(reshape(a, (b.size, n)), ravel(b)), shape)


def tensorinv(a: ArrayLike | Sequence[Any], ind: int = 2) -> Array:
    """The inverse of `a` as a linear map from its last axes to its first `ind` ones."""
    (a,) = _inexact("tensorinv", a)
    if ind <= 0:
        raise ValueError(f"tensorinv: ind must be positive, got {ind}")
    rows, columns = a.aval.shape[:ind], a.aval.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise errors.ShapeError(f"tensorinv: {a.aval} is not square when split at axis {ind}")
    return reshape(inv(reshape(a, (math.prod(rows), math.prod(columns)))), (*columns, *rows))
