"""Decompositions of matrices, and which algorithm computes them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal, TypeVar, overload

from genesis_fn.core import dtypes, errors
from genesis_fn.core.device import default_device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.linalg.matrices import adjoint, identity, operand, positions, square
from genesis_fn.lax.linalg.reflections import column_order
from genesis_fn.lax.operands import array
from genesis_fn.lax.promotion import device_among
from genesis_fn.primitives import elementwise as ops, linalg, shape as shapes
from genesis_fn.primitives.reductions.reduce import argmax, reduce_max, reduce_sum
from genesis_fn.primitives.sort import take_along


class EigImplementation(enum.Enum):
    """Who computes `eig`: the member of the device that runs it is taken, the others refused."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(enum.Enum):
    """How `eigh` computes: `QR` is taken on the CPU; CUDA devices choose by size."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class SvdAlgorithm(enum.Enum):
    """How `svd` computes: `DEFAULT` is taken, and on the CPU `DIVIDE_AND_CONQUER`, which it is."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


_EIG = {"cpu": (EigImplementation.LAPACK,), "cuda": (EigImplementation.CUSOLVER,)}
_EIGH = {"cpu": (EighImplementation.QR,), "cuda": ()}
_SVD = {
    "cpu": (SvdAlgorithm.DEFAULT, SvdAlgorithm.DIVIDE_AND_CONQUER),
    "cuda": (SvdAlgorithm.DEFAULT,),
}

Choice = TypeVar("Choice", bound=enum.Enum)


def _check_choice(
    name: str, x: Array, chosen: Choice | None, taken: Mapping[str, tuple[Choice, ...]]
) -> None:
    """Raises ArgumentError for an algorithm that is not the one which runs."""
    if chosen is None:
        return
    kind = (device_among([x]) or default_device()).kind
    known = taken.get(kind, ())
    if chosen not in known:
        which = ", ".join(["None", *map(str, known)])
        raise errors.ArgumentError(
            f"{name}: {chosen!s} is not what runs on {kind}\n  at {where().describe()}\n"
            f"  pass one of {which}"
        )


def subset_range(name: str, subset: tuple[int, int] | None, count: int) -> tuple[int, int]:
    """The [start, end) of the values that are asked for."""
    if subset is None:
        return 0, count
    start, end = subset
    if not 0 <= start < end <= count:
        raise errors.ArgumentError(
            f"{name}: subset_by_index {subset} is no range in the {count} values; it is (start, "
            f"end) with 0 <= start < end <= {count}\n  at {where().describe()}"
        )
    return start, end


def cholesky(x: ArrayLike, *, symmetrize_input: bool = True) -> Array:
    """The lower triangular L with L L^H = x, of Hermitian positive definite x[..., n, n].

    NaN where a matrix is not positive definite. With `symmetrize_input`, (x + x^H) / 2 is factored;
    else the lower triangle is read.
    """
    return linalg.cholesky(array(x), symmetrize_input=symmetrize_input)


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: EigImplementation | None = None,
    use_magma: bool | None = None,
) -> list[Array]:
    """Eigenvalues of square matrices, with left and right eigenvectors.

        x v = w v,  u^H x = w u^H

    Vectors have length one and a real greatest component, as LAPACK's geev leaves them. Left ones
    come from the inverse of the right ones: where these do not span the space, they are NaN or of
    no accuracy.

    Args:
        x: matrices [..., n, n], float32, float64 or complex.
        compute_left_eigenvectors, compute_right_eigenvectors: which vectors are wanted.
        enable_eigvec_derivs: of no effect: vectors always have a derivative, at which they stay of
            that form. It holds where eigenvalues are distinct and no two components of a vector
            are the greatest.
        implementation: None, or what runs: `LAPACK` on the CPU, `CUSOLVER` on CUDA devices.
        use_magma: None or False.

    Returns:
        [w, u, v]: complex eigenvalues [..., n] in no order, and vectors as columns [..., n, n], of
        which those that are not wanted are left out. NaN where x is not finite.

    Raises:
        ShapeError, DTypeError: `x` holds no square matrices, or of another dtype.
        ArgumentError: another implementation is asked for.

    >>> w, u, v = lax.linalg.eig(jnp.array([[2.0, 1.0], [0.0, 3.0]]))
    >>> w, jnp.abs(u[:, 1])
    (Array([2.+0.j, 3.+0.j], dtype=complex64), Array([0., 1.], dtype=float32))
    """
    x = square("eig", x)
    _check_choice("eig", x, implementation, _EIG)
    if use_magma:
        raise errors.ArgumentError(
            f"eig: use_magma=True asks for a library that is not there; pass None\n"
            f"  at {where().describe()}"
        )
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        return [*linalg.eig(x, compute_vectors=False)]
    values, right = linalg.eig(x)
    right = _with_real_greatest(right)
    found = [values]
    if compute_left_eigenvectors:
        left = adjoint(linalg.solve(right, identity(right)))
        found.append(_with_real_greatest(_of_length_one(left)))
    if compute_right_eigenvectors:
        found.append(right)
    return found


def _of_columns(x: Array, like: Array) -> Array:
    """A value for each column, in the shape and dtype of `like`."""
    shape = like.aval.shape
    wide = shapes.broadcast_in_dim(x, shape, (*range(like.ndim - 2), like.ndim - 1))
    return ops.convert(wide, like.aval.dtype)


def _of_length_one(v: Array) -> Array:
    if not v.size:
        return v
    # Near the inverse of a singular matrix squares overflow; the scale itself has no derivative.
    size = ops.stop_gradient(reduce_max(ops.abs(v), (v.ndim - 2,)))
    v = v / _of_columns(size, v)
    squares = ops.square(ops.real(v)) + ops.square(ops.imag(v))
    return v / _of_columns(ops.sqrt(reduce_sum(squares, (v.ndim - 2,))), v)


def _with_real_greatest(v: Array) -> Array:
    """Columns turned so that their greatest component is real, of the sign of its real part."""
    if not v.size:
        return v
    at = _of_columns(argmax(ops.abs(v), v.ndim - 2, dtypes.I32), positions(v, -2))
    greatest = reduce_sum(ops.select(positions(v, -2) == at, v, 0), (v.ndim - 2,))
    size = ops.abs(greatest)
    turn = ops.conj(greatest) / ops.convert(ops.select(size == 0, 1, size), v.aval.dtype)
    turn = ops.select(ops.real(greatest) < 0, -turn, turn)
    return v * _of_columns(ops.select(size == 0, 1, turn), v)


def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Array, Array]:
    """(eigenvectors as columns, eigenvalues ascending) of Hermitian x[..., n, n].

    With `symmetrize_input`, of (x + x^H) / 2; else the lower triangle is read, or the upper one
    without `lower`. Values ascend whatever `sort_eigenvalues` says. `subset_by_index` = (start,
    end) leaves those with other positions out. `implementation` may be `QR` on the CPU.
    """
    x = array(x)
    _check_choice("eigh", x, implementation, _EIGH)
    vectors, values = linalg.eigh(x, lower=lower, symmetrize_input=symmetrize_input)
    if subset_by_index is None:
        return vectors, values
    start, end = subset_range("eigh", subset_by_index, x.aval.shape[-1])
    return vectors[..., start:end], values[..., start:end]


def lu(x: ArrayLike) -> tuple[Array, Array, Array]:
    """(packed factors, pivots, permutation) with x[permutation] = L U, by partial pivoting.

    The factors hold U above L, whose unit diagonal is left out; row i was exchanged with pivots[i].
    """
    return linalg.lu(array(x))


@overload
def qr(
    x: ArrayLike,
    *,
    pivoting: Literal[False] = False,
    full_matrices: bool = True,
    use_magma: bool | None = None,
) -> tuple[Array, Array]: ...


@overload
def qr(
    x: ArrayLike,
    *,
    pivoting: Literal[True],
    full_matrices: bool = True,
    use_magma: bool | None = None,
) -> tuple[Array, Array, Array]: ...


@overload
def qr(
    x: ArrayLike, *, pivoting: bool, full_matrices: bool = True, use_magma: bool | None = None
) -> PyTree: ...


def qr(
    x: ArrayLike,
    *,
    pivoting: bool = False,
    full_matrices: bool = True,
    use_magma: bool | None = None,
) -> PyTree:
    """(Q, R) with x = Q R, Q's columns orthonormal and R upper triangular.

    With `pivoting`, (Q, R, p) with x[..., p] = Q R, where each step takes the column of greatest
    rest, so that the diagonal of R does not increase in size; p is int32 [..., n]. `use_magma` is
    None or False.
    """
    x = array(x)
    if use_magma:
        raise errors.ArgumentError(
            f"qr: use_magma=True asks for a library that is not there; pass None\n"
            f"  at {where().describe()}"
        )
    if not pivoting:
        return linalg.qr(x, full_matrices=full_matrices)
    x = operand("qr", x)
    order = column_order(x)
    index = shapes.broadcast_in_dim(order, x.aval.shape, (*range(x.ndim - 2), x.ndim - 1))
    q, r = linalg.qr(take_along(x, index, x.ndim - 1), full_matrices=full_matrices)
    return q, r, order


@overload
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> tuple[Array, Array, Array]: ...


@overload
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: Literal[False],
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Array: ...


@overload
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> PyTree: ...


def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> PyTree:
    """(U, s, V^H) with x = U diag(s) V^H, s descending; s alone without `compute_uv`.

    `subset_by_index` = (start, end) leaves the values and vectors with other positions out; it
    needs full_matrices=False. `algorithm` may be `SvdAlgorithm.DEFAULT`, and on the CPU
    `DIVIDE_AND_CONQUER`.
    """
    x = array(x)
    _check_choice("svd", x, algorithm, _SVD)
    found = linalg.svd(x, full_matrices=full_matrices, compute_uv=compute_uv)
    if subset_by_index is None:
        return found
    count = min(x.aval.shape[-2:])
    start, end = subset_range("svd", subset_by_index, count)
    if not compute_uv:
        return found[..., start:end]
    if full_matrices and end - start < count:
        raise errors.ArgumentError(
            f"svd: subset_by_index {subset_by_index} leaves vectors out, which full_matrices=True "
            f"asks for\n  at {where().describe()}\n  pass full_matrices=False"
        )
    if full_matrices:
        return found
    u, s, vh = found
    return u[..., start:end], s[..., start:end], vh[..., start:end, :]
