"""What functions of matrices share: operands, products, transposes, identities."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import default_device_of
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.operands import array
from genesis_fn.primitives import elementwise as ops, shape as shapes
from genesis_fn.primitives.dot_general import batch_matmul

_DTYPES = (dtypes.F32, dtypes.F64, dtypes.C64, dtypes.C128)


def operand(name: str, x: ArrayLike, ndim: int = 2) -> Array:
    """`x` as an array of at least `ndim` dimensions, of a dtype that decompositions take.

    Raises:
        ShapeError, DTypeError: it has fewer dimensions, or another dtype.
    """
    x = array(x)
    if x.ndim < ndim:
        what = "a matrix [..., m, n]" if ndim == 2 else "a vector [..., n]"
        raise errors.ShapeError(f"{name} takes {what}, got {x.aval}\n  at {where().describe()}")
    if x.aval.dtype not in _DTYPES:
        raise errors.DTypeError(
            f"{name} takes float32, float64, complex64 or complex128, got {x.aval}\n"
            f"  at {where().describe()}\n  convert it with .astype(...)"
        )
    return x


def square(name: str, x: ArrayLike) -> Array:
    """`x` as square matrices [..., n, n].

    Raises:
        ShapeError, DTypeError: it holds none, or of another dtype.
    """
    x = operand(name, x)
    if x.aval.shape[-1] != x.aval.shape[-2]:
        raise errors.ShapeError(
            f"{name} takes square matrices [..., n, n], got {x.aval}\n  at {where().describe()}"
        )
    return x


def one_dtype(name: str, *xs: Array) -> None:
    """Raises DTypeError unless operands have one dtype."""
    if len({x.aval.dtype for x in xs}) > 1:
        raise errors.DTypeError(
            f"{name} takes operands of one dtype, got {', '.join(str(x.aval) for x in xs)}\n"
            f"  at {where().describe()}\n  convert them with .astype(...)"
        )


def product(x: Array, y: Array) -> Array:
    """x y, of matrices with equal leading dimensions, in the dtype's full precision."""
    return batch_matmul(x, y, "highest")


def transpose(x: Array) -> Array:
    """x^T, of matrices."""
    n = x.ndim
    return shapes.transpose(x, (*range(n - 2), n - 1, n - 2))


def conjugate(x: Array) -> Array:
    """`x` with the sign of imaginary parts changed."""
    return ops.conj(x) if dtypes.is_complex(x.aval.dtype) else x


def adjoint(x: Array) -> Array:
    """x^H, of matrices."""
    return conjugate(transpose(x))


def real(x: Array) -> Array:
    """The real part."""
    return ops.real(x) if dtypes.is_complex(x.aval.dtype) else x


def positions(x: Array, axis: int) -> Array:
    """The index of each element of `x` along `axis`, int32, on the device of `x`."""
    with default_device_of((x,)):
        return shapes.broadcasted_iota(dtypes.I32, x.aval.shape, axis % x.ndim)


def identity(x: Array) -> Array:
    """Matrices with ones on the diagonal, in the shape and dtype of `x`."""
    return ops.convert(ops.eq(positions(x, -2), positions(x, -1)), x.aval.dtype)


def as_dtype(x: Any, like: Array) -> Array:
    """`x` in the dtype of `like`."""
    return ops.convert(x, like.aval.dtype)


def exchange(like: Array, i: Any, j: Array) -> Array:
    """The order, int32 in the shape of `like`, in which elements i and j[...] of the last axis have
    changed places."""
    k = positions(like, -1)
    j = shapes.broadcast_in_dim(j, k.aval.shape, range(k.ndim - 1))
    return ops.select(k == i, j, ops.select(k == j, k * 0 + i, k))
