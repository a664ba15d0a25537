"""Products of matrices by groups of rows, which follow one another: mixtures of experts.

`ragged_dot` multiplies each row by the matrix of its group; `ragged_contraction` multiplies the
rows of each group with one another. They are each other's derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive, bind, is_linear, typeof
from genesis_fn.core.types.annotations import Array, DTypeLike
from genesis_fn.primitives.dot_general import (
    PrecisionLike,
    canonical_precision,
    product_dtype,
    promote_operands,
)
from genesis_fn.primitives.elementwise import add, convert, mul
from genesis_fn.primitives.factories import move_batch
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim, reshape

# ---- shapes: everything may have one leading batch axis, which `group_sizes` shows ----


def _refuse(name: str, avals: Sequence[Aval], why: str) -> errors.ShapeError:
    shown = ", ".join(map(str, avals))
    return errors.ShapeError(f"{name} of {shown}: {why}")


def _check_sizes(name: str, avals: Sequence[Aval]) -> int:
    """The number of batch axes, 0 or 1."""
    sizes = avals[2]
    if not dtypes.is_integer(sizes.dtype):
        raise errors.DTypeError(f"{name}: group_sizes are integers, got {sizes}")
    if sizes.ndim not in (1, 2):
        raise _refuse(name, avals, f"group_sizes {sizes} is no vector")
    return sizes.ndim - 1


def _dot_shape(
    x: Aval,
    w: Aval,
    sizes: Aval,
    *,
    rhs_transposed: bool,
    precision: str,
    preferred_element_type: DType | None,
) -> Aval:
    kinds = (x, w, sizes)
    b = _check_sizes("ragged_dot", kinds)
    if x.ndim != b + 2 or w.ndim not in (3, b + 3):
        raise _refuse("ragged_dot", kinds, "lhs is [rows, k], rhs [groups, k, n]")
    groups, k, n = w.shape[-3:]
    if rhs_transposed:
        k, n = n, k
    if groups != sizes.shape[-1]:
        raise _refuse("ragged_dot", kinds, f"{groups} matrices for {sizes.shape[-1]} groups")
    if k != x.shape[-1]:
        raise _refuse("ragged_dot", kinds, f"rows of length {x.shape[-1]} meet columns of {k}")
    batch = sizes.shape[:b]
    if x.shape[:b] != batch or (w.ndim > 3 and w.shape[:b] != batch):
        raise _refuse("ragged_dot", kinds, "batch axes differ")
    dtype = product_dtype(x, w, preferred_element_type, "ragged_dot")
    return aval((*x.shape[:-1], n), dtype)


def _contraction_shape(
    x: Aval, y: Aval, sizes: Aval, *, precision: str, preferred_element_type: DType | None
) -> Aval:
    kinds = (x, y, sizes)
    b = _check_sizes("ragged_contraction", kinds)
    if x.ndim != b + 2 or y.ndim != b + 2 or x.shape[:-1] != y.shape[:-1]:
        raise _refuse("ragged_contraction", kinds, "lhs is [rows, k], rhs [rows, n]")
    if x.shape[:b] != sizes.shape[:b]:
        raise _refuse("ragged_contraction", kinds, "batch axes differ")
    dtype = product_dtype(x, y, preferred_element_type, "ragged_contraction")
    return aval((*sizes.shape, x.shape[-1], y.shape[-1]), dtype)


# ---- derivatives ----


def _linearize(prim: Primitive, x: Any, y: Any, sizes: Any, **params: Any) -> Any:
    def tangent(tx: Any, ty: Any, _: Any) -> Any:
        first = None if tx is None else bind(prim, tx, y, sizes, **params)
        second = None if ty is None else bind(prim, x, ty, sizes, **params)
        return second if first is None else first if second is None else add(first, second)

    return bind(prim, x, y, sizes, **params), tangent


def _meets(other: Any, ct: Any) -> Any:
    """The other operand as it is multiplied by a cotangent: an 8-bit float has no common type with
    wider ones, which `preferred_element_type` may be."""
    kind = typeof(ct).dtype
    return convert(other, kind) if typeof(other).dtype.itemsize == 1 < kind.itemsize else other


def _dot_transpose(
    ct: Any,
    x: Any,
    w: Any,
    sizes: Any,
    *,
    rhs_transposed: bool,
    precision: str,
    preferred_element_type: DType | None,
) -> list[Any]:
    if is_linear(x):
        options = {"precision": precision, "preferred_element_type": x.aval.dtype}
        w = _meets(w, ct)
        back = bind(ragged_dot_p, ct, w, sizes, rhs_transposed=not rhs_transposed, **options)
        return [back, None, None]
    x, kind = _meets(x, ct), w.aval
    sides = (ct, x) if rhs_transposed else (x, ct)
    options = {"precision": precision, "preferred_element_type": kind.dtype}
    back = bind(ragged_contraction_p, *sides, sizes, **options)
    shared = kind.ndim < typeof(back).ndim  # one rhs for the whole batch
    return [None, reduce_sum(back, (0,)) if shared else back, None]


def _contraction_transpose(
    ct: Any, x: Any, y: Any, sizes: Any, *, precision: str, preferred_element_type: DType | None
) -> list[Any]:
    first = is_linear(x)
    kind, other = (x.aval, y) if first else (y.aval, x)
    options = {"precision": precision, "preferred_element_type": kind.dtype}
    back = bind(ragged_dot_p, _meets(other, ct), ct, sizes, rhs_transposed=first, **options)
    return [back, None, None] if first else [None, back, None]


# ---- batching: of one operand into its rows or columns, of several into the batch axis ----


def _into_batch(size: int, x: Any, dim: int | None, own: int) -> Any:
    """`x` with a new batch axis, which becomes one with its own if it has one."""
    x = move_batch(x, dim, 0, size)
    shape = typeof(x).shape
    return reshape(x, (shape[0] * shape[1], *shape[2:])) if own else x


def _out_of_batch(size: int, x: Any, inner: Sequence[int]) -> Any:
    """The inverse for a result; `inner` is the length of the own batch axis, if there is one."""
    return reshape(x, (size, *inner, *typeof(x).shape[1:])) if inner else x


def _own_batch(sizes: Any, dim: int | None) -> tuple[int, ...]:
    shape = list(typeof(sizes).shape)
    if dim is not None:
        del shape[dim]
    return tuple(shape[:-1])


def _dot_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, rhs_transposed: bool, **params: Any
) -> Any:
    (x, w, sizes), (dx, dw, ds) = xs, dims
    run = lambda *operands: bind(ragged_dot_p, *operands, rhs_transposed=rhs_transposed, **params)
    inner = _own_batch(sizes, ds)
    own = len(inner)
    if not own and dw is None and ds is None:
        # A row becomes `size` rows of the same group.
        x = move_batch(x, dx, 1, size)
        rows, _, k = typeof(x).shape
        y = run(reshape(x, (rows * size, k)), w, _times(sizes, size))
        return reshape(y, (rows, size, *typeof(y).shape[1:])), 1
    if not own and dx is None and ds is None:
        # The matrices of a group become one, side by side.
        at = 1 if rhs_transposed else 2
        w = move_batch(w, dw, at, size)
        shape = typeof(w).shape
        n = shape[at + 1]
        y = run(x, reshape(w, (*shape[:at], size * n, *shape[at + 2 :])), sizes)
        return reshape(y, (typeof(y).shape[0], size, n)), 1
    shared = typeof(w).ndim - (dw is not None) == 3  # by the own batch
    if shared and own and dw is not None:
        w = move_batch(w, dw, 0, size)
        shape = typeof(w).shape
        w, dw = broadcast_in_dim(w, (size, *inner, *shape[1:]), (0, 2, 3, 4)), 0
    if not shared or dw is not None:
        w = _into_batch(size, w, dw, own)
    x, sizes = _into_batch(size, x, dx, own), _into_batch(size, sizes, ds, own)
    return _out_of_batch(size, run(x, w, sizes), inner), 0


def _times(sizes: Any, count: int) -> Any:
    """Sizes of groups of `count` times the rows, in a dtype that holds them."""
    narrow = typeof(sizes).dtype.itemsize < 4
    return mul(convert(sizes, dtypes.I32) if narrow else sizes, count)


def _contraction_batch(size: int, xs: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    (x, y, sizes), (dx, dy, ds) = xs, dims
    run = lambda *operands: bind(ragged_contraction_p, *operands, **params)
    inner = _own_batch(sizes, ds)
    if not inner and ds is None and (dx is None or dy is None):
        # More columns of one operand: the result has more rows or columns.
        at = 1 if dy is None else 2
        moved, other = (x, y) if dy is None else (y, x)
        moved = move_batch(moved, dx if dy is None else dy, 1, size)
        rows, _, columns = typeof(moved).shape
        moved = reshape(moved, (rows, size * columns))
        z = run(moved, other, sizes) if dy is None else run(other, moved, sizes)
        shape = typeof(z).shape
        return reshape(z, (*shape[:at], size, columns, *shape[at + 1 :])), at
    moved = [_into_batch(size, v, d, len(inner)) for v, d in zip(xs, dims)]
    return _out_of_batch(size, run(*moved), inner), 0


# ---- the primitives ----


def _dot_flops(ins: Sequence[Aval], outs: Sequence[Aval], **_: Any) -> int:
    return 2 * outs[0].size * ins[0].shape[-1]


def _contraction_flops(ins: Sequence[Aval], outs: Sequence[Aval], **_: Any) -> int:
    return 2 * ins[0].size * ins[1].shape[-1]


ragged_dot_p = Primitive(
    "ragged_dot",
    _dot_shape,
    linearize=lambda _, *xs, **params: _linearize(ragged_dot_p, *xs, **params),
    transpose=_dot_transpose,
    batch=_dot_batch,
    precision="low",
    flops=_dot_flops,
)
"""(lhs [*b, m, k], rhs [*b, g, k, n], group_sizes [*b, g]) -> [*b, m, n], b one axis or none: rows
times their group's matrix, zero for rows of no group. `rhs_transposed`: rhs is [*b, g, n, k]. A
batch may share its rhs [g, k, n]."""

ragged_contraction_p = Primitive(
    "ragged_contraction",
    _contraction_shape,
    linearize=lambda _, *xs, **params: _linearize(ragged_contraction_p, *xs, **params),
    transpose=_contraction_transpose,
    batch=_contraction_batch,
    precision="low",
    flops=_contraction_flops,
)
"""(lhs [*b, m, k], rhs [*b, m, n], group_sizes [*b, g]) -> [*b, g, k, n], b one axis or none:
lhs_i^T rhs_i over the rows of each group i, zero for a group of none."""


def ragged_dot(
    lhs: Array,
    rhs: Array,
    group_sizes: Array,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Rows of `lhs` [m, k] times their group's matrix of `rhs` [g, k, n]: [m, n]."""
    lhs, rhs = promote_operands(lhs, rhs)
    options = _options(precision, preferred_element_type)
    return bind(ragged_dot_p, lhs, rhs, group_sizes, rhs_transposed=False, **options)


def ragged_contraction(
    lhs: Array,
    rhs: Array,
    group_sizes: Array,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """`lhs` [m, k], transposed, times `rhs` [m, n], by groups of rows: [g, k, n]."""
    lhs, rhs = promote_operands(lhs, rhs)
    options = _options(precision, preferred_element_type)
    return bind(ragged_contraction_p, lhs, rhs, group_sizes, **options)


def _options(precision: PrecisionLike, preferred: DTypeLike | None) -> dict[str, Any]:
    wide = None if preferred is None else dtypes.dtype(preferred)
    return {"precision": canonical_precision(precision), "preferred_element_type": wide}
