"""Contractions: dot_general, and dot and batch_matmul by it."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.configuration import config
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive, bind, is_linear, typeof
from genesis_fn.core.types.annotations import Array, DTypeLike
from genesis_fn.primitives import dot_algorithm
from genesis_fn.primitives.dot_algorithm import DotAlgorithm, DotAlgorithmPreset
from genesis_fn.primitives.elementwise import add, convert
from genesis_fn.primitives.shape import transpose

# ((lhs contracting, rhs contracting), (lhs batch, rhs batch))
DotDimensionNumbers = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]


class Precision(enum.Enum):
    """How float32 operands of a contraction are multiplied on an accelerator.

    DEFAULT: as the setting `matmul_precision` says; HIGH: three TF32 products; HIGHEST: float32.
    """

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    def __repr__(self) -> str:
        return f"Precision.{self.name}"

    def __str__(self) -> str:
        return self.name


# A Precision or its name, one for each operand or one for both; None: the setting's. Of products
# an algorithm or the name of one, too.
PrecisionLike: TypeAlias = (
    Precision
    | str
    | None
    | tuple["Precision | str | None", "Precision | str | None"]
    | DotAlgorithm
    | DotAlgorithmPreset
)

_PRECISION_NAMES: dict[object, str | None] = {
    None: None, "default": "default", "fastest": "tf32", "tf32": "tf32", "tensorfloat32": "tf32",
    "bfloat16": "tf32", "high": "tf32x3", "tf32x3": "tf32x3", "bfloat16_3x": "tf32x3",
    "highest": "highest", "float32": "highest", "ieee": "highest",
    Precision.DEFAULT: "default", Precision.HIGH: "tf32x3", Precision.HIGHEST: "highest",
}  # fmt: skip
_PRECISION_RANK = ("default", "tf32", "tf32x3", "highest")


def canonical_precision(precision: PrecisionLike) -> str:
    """Return "default", "tf32", "tf32x3" or "highest": of a pair the more precise, for None the
    setting's.

    Raises ValueError for an unknown name.
    """
    if isinstance(precision, (tuple, list)) and len(precision) == 2:
        pair: Any = precision
        return max(map(canonical_precision, pair), key=_PRECISION_RANK.index)
    try:
        name = _PRECISION_NAMES[precision.lower() if isinstance(precision, str) else precision]
    except (KeyError, TypeError):
        raise ValueError(
            f"precision {precision!r} is not a Precision, a pair of them, None or one of "
            + ", ".join(repr(n) for n in _PRECISION_NAMES if isinstance(n, str))
        ) from None
    return config.current().matmul_precision if name is None else name


# ---- shape ----


def free_dims(ndim: int, used: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of an operand that a contraction neither batches nor contracts."""
    return tuple([i for i in range(ndim) if i not in used])


def _dot_shape(
    x: Aval, y: Aval, *, dimension_numbers: Any, precision: str, preferred_element_type: Any
) -> Aval:
    (xc, yc), (xb, yb) = dimension_numbers
    what = f"dot_general of {x} and {y}"
    for words, a, b in (("contracting", xc, yc), ("batch", xb, yb)):
        if len(a) != len(b):
            raise errors.ShapeError(
                f"{what}: {len(a)} {words} dimensions of the left operand, {len(b)} of the right: "
                f"{list(a)} and {list(b)}"
            )
    for side, v, used in (("left", x, (*xc, *xb)), ("right", y, (*yc, *yb))):
        if any(not 0 <= d < v.ndim for d in used):
            raise errors.ShapeError(
                f"{what}: dimensions {list(used)} do not fit the {side} operand {v}"
            )
        if len(set(used)) != len(used):
            raise errors.ShapeError(
                f"{what}: a dimension of the {side} operand is named twice in {list(used)}"
            )
    for words, a, b in (("contracting", xc, yc), ("batch", xb, yb)):
        for i, j in zip(a, b):
            if x.shape[i] != y.shape[j]:
                raise errors.ShapeError(
                    f"{what}: {words} dimension {i} of the left operand has length {x.shape[i]}, "
                    f"dimension {j} of the right one {y.shape[j]}"
                )
    shape = (
        *[x.shape[i] for i in xb],
        *[x.shape[i] for i in free_dims(x.ndim, (*xc, *xb))],
        *[y.shape[i] for i in free_dims(y.ndim, (*yc, *yb))],
    )
    return aval(shape, product_dtype(x, y, preferred_element_type))


def product_dtype(x: Aval, y: Aval, preferred: DType | None, name: str = "dot_general") -> DType:
    """The dtype of sums of products of two operands; `name` is of the primitive, for errors."""
    if x.dtype == y.dtype:
        dtype = x.dtype
    elif dtypes.kind_rank(x.dtype) == dtypes.kind_rank(y.dtype) and not (
        x.dtype.itemsize == y.dtype.itemsize == 1 and dtypes.is_float(x.dtype)
    ):
        dtype = dtypes.promote_types(x.dtype, y.dtype)
    elif dtypes.is_float(x.dtype) and dtypes.is_float(y.dtype):
        dtype = dtypes.BF16  # e4m3 with e5m2: both fit
    else:
        raise errors.DTypeError(
            f"{name}: {x} and {y} differ in kind; convert one with .astype(...)"
        )
    if preferred is None:
        return dtype
    if dtypes.kind_rank(preferred) < dtypes.kind_rank(dtype):
        raise errors.DTypeError(
            f"{name} of {x} and {y}: preferred_element_type {preferred.name} cannot hold "
            f"products of {dtype.name}"
        )
    return preferred


def breaks(order: Sequence[int]) -> int:
    """How many neighbours in `order` are not neighbours in memory."""
    return sum(b != a + 1 for a, b in zip(order, order[1:]))


# ---- derivatives ----


def _dot_linearize(nonzero: Any, x: Any, y: Any, **params: Any) -> Any:
    def tangent(tx: Any, ty: Any) -> Any:
        first = None if tx is None else bind(dot_general_p, tx, y, **params)
        second = None if ty is None else bind(dot_general_p, x, ty, **params)
        return second if first is None else first if second is None else add(first, second)

    return bind(dot_general_p, x, y, **params), tangent


def _dot_transpose(
    ct: Any, x: Any, y: Any, *, dimension_numbers: Any, precision: str, preferred_element_type: Any
) -> list[Any]:
    (xc, yc), (xb, yb) = dimension_numbers
    if is_linear(x):
        return [_dot_cotangent(ct, x.aval, y, xc, yc, xb, yb, True, precision), None]
    return [None, _dot_cotangent(ct, y.aval, x, yc, xc, yb, xb, False, precision)]


def _dot_cotangent(
    ct: Any,
    kind: Aval,
    other: Any,
    contract: Sequence[int],
    other_contract: Sequence[int],
    batch: Sequence[int],
    other_batch: Sequence[int],
    first: bool,
    precision: str,
) -> Any:
    """The cotangent of one operand (of aval `kind`; the left one if `first`), from the other
    operand."""
    # An 8-bit float has no common type with wider ones, which `preferred_element_type` may be.
    if typeof(other).dtype.itemsize == 1 < typeof(ct).dtype.itemsize:
        other = convert(other, typeof(ct).dtype)
    other_ndim = typeof(other).ndim
    free = free_dims(kind.ndim, (*contract, *batch))
    other_free = free_dims(other_ndim, (*other_contract, *other_batch))
    n, m = len(batch), len(free)
    k = len(other_free)
    ct_batch = tuple(range(n))
    # ct's dimensions are [batch, left free, right free].
    ct_contract = tuple(range(n + m, n + m + k)) if first else tuple(range(n, n + k))
    # The contracted dimensions come out in the other operand's order.
    by_other = [c for _, c in sorted(zip(other_contract, contract))]
    straight = (*batch, *free, *by_other)  # dot(ct, other)
    swapped = (*batch, *by_other, *free)  # dot(other, ct)
    # Of the two orders of operands, take the one that needs no transpose, or the cheaper one.
    identity = tuple(range(kind.ndim))
    params = dict(precision=precision, preferred_element_type=kind.dtype)
    if straight == identity or (swapped != identity and breaks(straight) <= breaks(swapped)):
        numbers = ((ct_contract, other_free), (ct_batch, tuple(other_batch)))
        out, order = bind(dot_general_p, ct, other, dimension_numbers=numbers, **params), straight
    else:
        numbers = ((other_free, ct_contract), (tuple(other_batch), ct_batch))
        out, order = bind(dot_general_p, other, ct, dimension_numbers=numbers, **params), swapped
    if order == identity:
        return out
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return transpose(out, back)


# ---- batching ----


def _dot_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, dimension_numbers: Any, **params: Any
) -> Any:
    (x, y), (dx, dy) = xs, dims
    (xc, yc), (xb, yb) = dimension_numbers
    up = lambda used, d: tuple([i + (i >= d) for i in used])
    if dx is not None and dy is not None:
        numbers = ((up(xc, dx), up(yc, dy)), ((dx, *up(xb, dx)), (dy, *up(yb, dy))))
        return bind(dot_general_p, x, y, dimension_numbers=numbers, **params), 0
    if dx is not None:  # one more free dimension of the left operand
        xc, xb = up(xc, dx), up(xb, dx)
        position = len(xb) + free_dims(typeof(x).ndim, (*xc, *xb)).index(dx)
    else:
        yc, yb = up(yc, dy), up(yb, dy)
        left = typeof(x).ndim - len(xc) - len(xb)
        position = len(yb) + left + free_dims(typeof(y).ndim, (*yc, *yb)).index(dy)
    numbers = ((xc, yc), (xb, yb))
    return bind(dot_general_p, x, y, dimension_numbers=numbers, **params), position


def _dot_flops(ins: Sequence[Aval], outs: Sequence[Aval], *, dimension_numbers: Any, **_: Any):
    (contracting, _), _ = dimension_numbers
    return 2 * outs[0].size * math.prod([ins[0].shape[i] for i in contracting])


dot_general_p = Primitive(
    "dot_general",
    _dot_shape,
    linearize=_dot_linearize,
    transpose=_dot_transpose,
    batch=_dot_batch,
    precision="low",
    flops=_dot_flops,
)


def promote_operands(x: Any, y: Any) -> tuple[Any, Any]:
    """Convert integers to the floats of the other operand, real numbers to its complex ones."""
    a, b = typeof(x).dtype, typeof(y).dtype
    if dtypes.kind_rank(a) == dtypes.kind_rank(b):
        return x, y
    dtype = dtypes.promote_types(a, b)
    if dtypes.kind_rank(a) < dtypes.kind_rank(b):
        return convert(x, dtype), y
    return x, convert(y, dtype)


def dot_general(
    lhs: Array,
    rhs: Array,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Sum products over contracting dimensions; the result is [batch, lhs free, rhs free].

    `dimension_numbers` is ((lhs contracting, rhs contracting), (lhs batch, rhs batch)). 16- and
    8-bit floats accumulate in float32 and are rounded once, to the operands' dtype or to
    `preferred_element_type`; integers wrap. Raises ShapeError, DTypeError.
    """
    if precision is not None and (algorithm := dot_algorithm.named_algorithm(precision)):
        return _by_algorithm(algorithm, lhs, rhs, dimension_numbers, preferred_element_type)
    (xc, yc), (xb, yb) = dimension_numbers
    lhs, rhs = promote_operands(lhs, rhs)
    n, m = typeof(lhs).ndim, typeof(rhs).ndim
    at = lambda ds, n: tuple([d + n if -n <= d < 0 else int(d) for d in ds])
    return bind(
        dot_general_p,
        lhs,
        rhs,
        dimension_numbers=((at(xc, n), at(yc, m)), (at(xb, n), at(yb, m))),
        precision=canonical_precision(precision),
        preferred_element_type=(
            None if preferred_element_type is None else dtypes.dtype(preferred_element_type)
        ),
    )


def _by_algorithm(
    algorithm: Any, lhs: Array, rhs: Array, numbers: DotDimensionNumbers, preferred: Any
) -> Array:
    """`dot_general`, rounding operands and summing as `algorithm` has it."""
    wide_lhs, wide_rhs = promote_operands(lhs, rhs)
    out = product_dtype(typeof(wide_lhs), typeof(wide_rhs), None)
    out = out if preferred is None else dtypes.dtype(preferred)
    x, y, precision, sums = dot_algorithm.prepared(algorithm, lhs, rhs)
    return convert(dot_general(x, y, numbers, precision, out if sums is None else sums), out)


def dot(
    lhs: Array,
    rhs: Array,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Multiply two vectors, a matrix and a vector, or two matrices."""
    x, y = typeof(lhs), typeof(rhs)
    if not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2 and x.shape[-1] == y.shape[0]):
        raise errors.ShapeError(
            f"dot: {x} and {y} are no vectors or matrices that can be multiplied"
        )
    return dot_general(
        lhs, rhs, (((x.ndim - 1,), (0,)), ((), ())), precision, preferred_element_type
    )


def batch_matmul(lhs: Array, rhs: Array, precision: PrecisionLike = None) -> Array:
    """Multiply lhs[..., m, k] by rhs[..., k, n], for equal leading dimensions."""
    x, y = typeof(lhs), typeof(rhs)
    if x.ndim < 2 or x.ndim != y.ndim:
        raise errors.ShapeError(
            f"batch_matmul: {x} and {y} must have the same number of dimensions, at least 2"
        )
    batch = tuple(range(x.ndim - 2))
    return dot_general(lhs, rhs, (((x.ndim - 1,), (x.ndim - 2,)), (batch, batch)), precision)
