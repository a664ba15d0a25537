"""Order statistics, correlation, convolution, interpolation, differences and integrals."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import inexact_value, promote_arrays, promoted, strong, value
from genesis_fn.numpy.arrays.creation import zeros_like
from genesis_fn.numpy.indexing.selection import take, take_along_axis
from genesis_fn.numpy.manipulation.shapes import (
    broadcast_to,
    concatenate,
    flip,
    moveaxis,
    ndim,
    ravel,
)
from genesis_fn.numpy.manipulation.sorting import argsort, searchsorted, sort
from genesis_fn.numpy.mathematics.composed import clip, isnan, remainder, where
from genesis_fn.numpy.mathematics.contraction import diagonal, matmul
from genesis_fn.numpy.mathematics.reductions import (
    average,
    count_nonzero,
    cumsum,
    reduced_axes,
    sum as sum_over,
)
from genesis_fn.numpy.mathematics.ufuncs import (
    add,
    conj,
    divide,
    equal,
    greater,
    imag,
    less,
    maximum,
    multiply,
    not_equal,
    real,
    sqrt,
    subtract,
)
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.conv import conv_general_dilated
from genesis_fn.primitives.dot_general import PrecisionLike
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.shape import canonical_axis, pad, reshape, slice_in_dim

# ---- order statistics ----

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def quantile(
    a: ArrayLike | Sequence[Any],
    q: ArrayLike | Sequence[Any],
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | Sequence[Any] | None = None,
    ignore_nan: bool = False,
) -> Array:
    """The value below which a fraction `q` of the elements over `axis` lies.

    `method` interpolates between neighbours: linear, lower, higher, midpoint, nearest; or it is
    inverted_cdf, the least element up to which the fraction is reached, for which elements may
    have `weights`, in the shape of `a` or of the axes that are reduced. NaN if any element is NaN,
    unless `ignore_nan`, or a weight is negative. The axes of `q` come first in the result.
    """
    if method not in _METHODS:
        raise ValueError(f"quantile: method {method!r} is none of {', '.join(_METHODS)}")
    if method == "inverted_cdf":
        return _by_distribution(a, q, axis, keepdims, weights, ignore_nan)
    if weights is not None:
        raise ValueError(f'quantile: weights need method="inverted_cdf", got {method!r}')
    (a,) = promote_arrays("quantile", (asarray(a),), inexact=True)
    if dtypes.is_complex(a.dtype):
        raise errors.DTypeError(f"quantile takes real numbers, got {a.aval}")
    d = a.dtype
    if d.itemsize < 4:
        a = p.convert(a, dtypes.F32)
    q = asarray(q, a.dtype)
    axes = reduced_axes(axis, a.ndim, "quantile")
    kept = [i for i in range(a.ndim) if i not in axes]
    lengths = [a.aval.shape[i] for i in kept]
    rows = moveaxis(a, axes, range(len(kept), a.ndim))
    rows = reshape(rows, (*lengths, math.prod(a.aval.shape[i] for i in axes)))
    ordered = sort(rows)
    last = ordered.aval.shape[-1] - 1
    if last < 0:
        raise ValueError(f"quantile of nothing: {a.aval} over axes {list(axes)}")
    if ignore_nan:
        present = subtract(count_nonzero(equal(rows, rows), -1, keepdims=True), 1)
        top = maximum(p.convert(present, a.dtype), 0)
    else:
        present = None
        top = full((*lengths, 1), float(last), a.dtype)
    levels = reshape(q, (*(1,) * len(kept), q.size))
    at = multiply(top, levels)  # [*kept, number of quantiles]
    low, high = p.floor(at), p.ceil(at)
    index = [p.convert(clip(i, 0.0, float(last)), dtypes.I32) for i in (low, high)]
    below, above = [take_along_axis(ordered, i, -1, mode="clip") for i in index]
    fraction = subtract(at, low)
    if method == "linear":
        x = add(multiply(below, subtract(1, fraction)), multiply(above, fraction))
        x = where(equal(fraction, 0), below, x)
    elif method == "lower":
        x = below
    elif method == "higher":
        x = above
    elif method == "midpoint":
        x = divide(add(below, above), 2)
    else:
        x = where(p.le(fraction, 0.5), below, above)
        odd = equal(p.rem(low, full(low.aval.shape, 2.0, low.dtype)), 1)
        x = where(equal(fraction, 0.5), where(odd, above, below), x)  # ties to even
    broken = isnan(slice_in_dim(ordered, last, last + 1, axis=-1))
    if present is not None:
        broken = less(present, 0)
    x = where(broken, float("nan"), x)
    x = moveaxis(x, -1, 0)
    x = reshape(x, (*q.aval.shape, *lengths))
    if keepdims:
        x = reshape(
            x, (*q.aval.shape, *[1 if i in axes else n for i, n in enumerate(a.aval.shape)])
        )
    return strong(p.convert(x, d))


def _by_distribution(
    a: Any, q: Any, axis: Axis, keepdims: bool, weights: Any, ignore_nan: bool
) -> Array:
    """The least element up to which the weights reach a fraction `q` of their sum."""
    given = [asarray(a)] if weights is None else [asarray(a), asarray(weights)]
    a, *rest = promote_arrays("quantile", given, inexact=True)
    if dtypes.is_complex(a.dtype):
        raise errors.DTypeError(f"quantile takes real numbers, got {a.aval}")
    axes = reduced_axes(axis, a.ndim, "quantile")
    w = rest[0] if rest else full(a.aval.shape, 1.0, a.dtype)
    if w.aval.shape != a.aval.shape:
        if axis is None or w.aval.shape != tuple([a.aval.shape[i] for i in axes]):
            raise errors.ShapeError(
                f"quantile: weights {w.aval} have neither the shape of {a.aval} nor that of its "
                f"axes {list(axes)}"
            )
        order = sorted(axes)
        w = w.transpose([axes.index(i) for i in order])
        w = reshape(w, [n if i in axes else 1 for i, n in enumerate(a.aval.shape)])
        w = broadcast_to(w, a.aval.shape)
    kept = [i for i in range(a.ndim) if i not in axes]
    lengths = [a.aval.shape[i] for i in kept]
    count = math.prod(a.aval.shape[i] for i in axes)
    if not count:
        raise ValueError(f"quantile of nothing: {a.aval} over axes {list(axes)}")
    rows, w = [
        reshape(moveaxis(v, axes, range(len(kept), a.ndim)), (*lengths, count)) for v in (a, w)
    ]
    missing = isnan(rows)
    bad = isnan(w) | less(w, 0)
    wide = dtypes.F32 if a.dtype.itemsize < 4 else a.dtype
    w = where(bad | missing, 0, p.convert(w, wide))
    order = argsort(rows)
    rows, w = take_along_axis(rows, order), take_along_axis(w, order)
    reached = cumsum(w, -1)[None]
    q = asarray(q, wide)
    target = multiply(reshape(q, (q.size, *(1,) * (len(kept) + 1))), reached[..., -1:])
    present = subtract(count, count_nonzero(missing, -1))
    at = count_nonzero(less(reached, target), -1)
    at = clip(at, 0, maximum(subtract(present, 1), 0) if ignore_nan else count - 1)
    x = take_along_axis(rows, moveaxis(at, 0, -1), -1, mode="clip")
    broken = bad.any(-1) | (equal(present, 0) if ignore_nan else missing.any(-1))
    x = moveaxis(where(broken[..., None], float("nan"), x), -1, 0)
    shape = [1 if i in axes else n for i, n in enumerate(a.aval.shape)] if keepdims else lengths
    return strong(reshape(x, (*q.aval.shape, *shape)))


def percentile(
    a: ArrayLike | Sequence[Any],
    q: ArrayLike | Sequence[Any],
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | Sequence[Any] | None = None,
) -> Array:
    """`quantile` with `q` in percent."""
    return quantile(a, _fraction(a, q), axis, method=method, keepdims=keepdims, weights=weights)


def _fraction(a: Any, q: Any) -> Array:
    """Percents as a fraction, in double precision for an array of it."""
    wide = asarray(a).dtype == dtypes.F64
    return divide(asarray(q, dtypes.F64 if wide else dtypes.F32), 100)


def nanquantile(
    a: ArrayLike | Sequence[Any],
    q: ArrayLike | Sequence[Any],
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | Sequence[Any] | None = None,
) -> Array:
    """`quantile` of the elements that are not NaN."""
    return quantile(a, q, axis, method=method, keepdims=keepdims, weights=weights, ignore_nan=True)


def nanpercentile(
    a: ArrayLike | Sequence[Any],
    q: ArrayLike | Sequence[Any],
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | Sequence[Any] | None = None,
) -> Array:
    """`percentile` of the elements that are not NaN."""
    return nanquantile(a, _fraction(a, q), axis, method=method, keepdims=keepdims, weights=weights)


def median(
    a: ArrayLike | Sequence[Any],
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """The middle element over `axis`, or the mean of the two middle ones."""
    return quantile(a, 0.5, axis, keepdims=keepdims, method="midpoint")


def nanmedian(
    a: ArrayLike | Sequence[Any],
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """`median` of the elements that are not NaN."""
    return nanquantile(a, 0.5, axis, keepdims=keepdims, method="midpoint")


# ---- correlation ----


def cov(
    m: ArrayLike | Sequence[Any],
    y: ArrayLike | Sequence[Any] | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | Sequence[Any] | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """The covariance matrix of variables in rows (columns without `rowvar`), computed in `dtype`,
    a float or complex one."""
    xs = [asarray(v) for v in (m, y) if v is not None]
    xs = promote_arrays("cov", xs, inexact=True)
    if dtype is not None:
        d = dtypes.dtype(dtype)
        if not dtypes.is_inexact(d):
            raise ValueError(f"cov: dtype is a float or complex one, got {d}")
        xs = [p.convert(x, d) for x in xs]
    if any(x.ndim > 2 for x in xs):
        raise ValueError(f"cov takes vectors or matrices, got {xs[0].aval}")
    rows = []
    for x in xs:
        x = reshape(x, (1, x.size)) if x.ndim < 2 else x if rowvar or x.ndim < 2 else x.T
        rows.append(x)
    x = concatenate(rows, 0) if len(rows) > 1 else rows[0]
    ddof = (0 if bias else 1) if ddof is None else operator.index(ddof)
    weights = None
    for w in (fweights, aweights):
        if w is not None:
            w = p.convert(asarray(w), dtypes.real_of(x.dtype))
            weights = w if weights is None else multiply(weights, w)
    if weights is None:
        n: Any = float(x.aval.shape[1])
        center = x.mean(axis=1, keepdims=True)
        norm: Any = max(n - ddof, 0.0)
    else:
        center, total = average(x, 1, weights, returned=True, keepdims=True)
        total = real(ravel(total)[0])
        if ddof == 0:
            norm = total
        elif aweights is None:
            norm = subtract(total, ddof)
        else:
            squares = sum_over(multiply(weights, p.convert(asarray(aweights), weights.dtype)))
            norm = subtract(total, divide(multiply(squares, ddof), total))
    x = subtract(x, center)
    scaled = x if weights is None else multiply(x, weights[None])
    return strong(_squeezed(divide(matmul(scaled, conj(x.T), precision="highest"), norm)))


def _squeezed(x: Any) -> Array:
    return reshape(x, ()) if x.size == 1 else x


def corrcoef(
    x: ArrayLike | Sequence[Any],
    y: ArrayLike | Sequence[Any] | None = None,
    rowvar: bool = True,
    dtype: DTypeLike | None = None,
) -> Array:
    """The matrix of Pearson correlation coefficients, computed in `dtype`, a float or complex
    one."""
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return divide(c, c)
    scale = sqrt(real(diagonal(c)))
    c = divide(divide(c, scale[:, None]), scale[None, :])
    if dtypes.is_complex(c.dtype):
        return p.complex_(clip(real(c), -1, 1), clip(imag(c), -1, 1))
    return clip(c, -1, 1)


def _convolved(
    name: str, a: Any, v: Any, mode: str, turned: bool, precision: Any, kind: Any
) -> Array:
    a, v = promote_arrays(name, (asarray(a), asarray(v)), inexact=kind is None)
    if a.ndim != 1 or v.ndim != 1:
        raise ValueError(f"{name} takes vectors, got {a.aval} and {v.aval}")
    if not a.size or not v.size:
        raise ValueError(f"{name}: neither vector may be empty")
    d = a.dtype
    if d == dtypes.BOOL:
        a, v = p.convert(a, dtypes.I32), p.convert(v, dtypes.I32)
    swapped = a.size < v.size
    if not turned:
        v = conj(v)
        if swapped:
            a, v = v, a
    elif swapped:
        a, v = v, a
    n = v.size
    before, after = {"valid": (0, 0), "same": (n // 2, n - n // 2 - 1), "full": (n - 1, n - 1)}.get(
        mode, (None, None)
    )
    if before is None:
        raise ValueError(f"{name}: mode {mode!r} is none of 'full', 'same', 'valid'")
    kernel = flip(v) if turned else v
    if not turned and swapped:
        a, kernel = a, v
    x = _slide(a, kernel, before, after, conv_general_dilated, precision)
    if not turned and swapped:
        x = flip(x)
    return p.convert(x, d if kind is None else dtypes.dtype(kind))


def _slide(a: Any, kernel: Any, before: int, after: int, conv: Any, precision: Any) -> Any:
    if not dtypes.is_float(a.dtype):
        # Integers and complex numbers: a sum of shifted products, exact in their own dtype.
        zero = 0j if dtypes.is_complex(a.dtype) else 0
        wide = pad(a, zero, [(before, after, 0)])
        n = wide.size - kernel.size + 1
        total = None
        for i in range(kernel.size):
            term = multiply(slice_in_dim(wide, i, i + n), kernel[i])
            total = term if total is None else add(total, term)
        return total
    x = conv(a[None, None], kernel[None, None], (1,), [(before, after)], precision=precision)
    return x[0, 0]


def convolve(
    a: ArrayLike | Sequence[Any],
    v: ArrayLike | Sequence[Any],
    mode: str = "full",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The convolution of two vectors: every overlap ("full"), as long as the longer one ("same"),
    or complete overlaps ("valid")."""
    return _convolved("convolve", a, v, mode, True, precision, preferred_element_type)


def correlate(
    a: ArrayLike | Sequence[Any],
    v: ArrayLike | Sequence[Any],
    mode: str = "valid",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The cross-correlation of two vectors: sums of a[k + i] * conj(v[i])."""
    return _convolved("correlate", a, v, mode, False, precision, preferred_element_type)


# ---- interpolation ----


def interp(
    x: ArrayLike,
    xp: ArrayLike | Sequence[Any],
    fp: ArrayLike | Sequence[Any],
    left: ArrayLike | str | None = None,
    right: ArrayLike | str | None = None,
    period: ArrayLike | Sequence[Any] | None = None,
) -> Array:
    """The piecewise linear function through the points (xp, fp), xp rising, at `x`.

    Outside, `left` and `right`, by default the end values; "extrapolate" continues the first or
    last line. With `period` everything is periodic.
    """
    fp = inexact_value(asarray(fp))
    if dtypes.is_complex(fp.dtype):  # of a real variable: parts are interpolated alike
        x, xp = promote_arrays("interp", (x, asarray(xp)), inexact=True)
    else:
        x, xp, fp = promote_arrays("interp", (x, asarray(xp), fp), inexact=True)
    if xp.ndim != 1 or fp.aval.shape != xp.aval.shape:
        raise ValueError(f"interp: xp {xp.aval} and fp {fp.aval} must be vectors of one length")
    for side in (left, right):
        if isinstance(side, str) and side != "extrapolate":
            raise ValueError(f"interp: outside is a number or 'extrapolate', got {side!r}")
    if period is not None:
        period = p.convert(asarray(period), x.dtype)
        x, xp = remainder(x, period), remainder(xp, period)
        order = argsort(xp)
        xp, fp = take(xp, order), take(fp, order)
        xp = concatenate([subtract(xp[-1:], period), xp, add(xp[:1], period)])
        fp = concatenate([fp[-1:], fp, fp[:1]])
    i = clip(searchsorted(xp, x, side="right"), 1, xp.size - 1)
    j = subtract(i, 1)
    x0, x1, f0, f1 = [take(v, k, mode="clip") for v, k in ((xp, j), (xp, i), (fp, j), (fp, i))]
    gap, rise = subtract(x1, x0), subtract(f1, f0)
    flat = equal(gap, 0)
    y = where(flat, f0, add(f0, multiply(divide(subtract(x, x0), where(flat, 1, gap)), rise)))
    if period is None:
        if not isinstance(left, str):
            y = where(less(x, xp[0]), fp[0] if left is None else left, y)
        if not isinstance(right, str):
            y = where(greater(x, xp[-1]), fp[-1] if right is None else right, y)
    return y


def polyval(p: ArrayLike | Sequence[Any], x: ArrayLike, *, unroll: int = 16) -> Array:
    """The polynomial with coefficients `p`, highest power first, at `x` (Horner)."""
    coefficients, x = promote_arrays("polyval", (asarray(p), x))
    total = strong(zeros_like(broadcast_to(x, x.aval.shape)))
    for i in range(coefficients.aval.shape[0]):
        total = add(multiply(total, x), coefficients[i])
    return total


# ---- differences and integrals ----


def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """The differences of neighbours along `axis`, taken `n` times."""
    a = value(a, "diff")
    if a.ndim == 0:
        raise ValueError("diff needs at least one dimension")
    if n < 0:
        raise ValueError(f"diff: the order must not be negative, got {n}")
    if n == 0:
        return a
    axis = canonical_axis(axis, a.ndim, "diff")
    parts = [a]
    for extra, front in ((prepend, True), (append, False)):
        if extra is None:
            continue
        extra = asarray(extra)
        if extra.ndim == 0:
            extra = broadcast_to(extra, [1 if i == axis else k for i, k in enumerate(a.aval.shape)])
        parts = [extra, *parts] if front else [*parts, extra]
    a = concatenate(parts, axis) if len(parts) > 1 else a
    for _ in range(n):
        k = a.aval.shape[axis]
        if k <= 1:
            return slice_in_dim(a, 0, 0, axis=axis)
        high, low = slice_in_dim(a, 1, k, axis=axis), slice_in_dim(a, 0, k - 1, axis=axis)
        a = not_equal(high, low) if a.dtype == dtypes.BOOL else subtract(high, low)
    return a


def ediff1d(
    ary: ArrayLike | Sequence[Any],
    to_end: ArrayLike | Sequence[Any] | None = None,
    to_begin: ArrayLike | Sequence[Any] | None = None,
) -> Array:
    """The differences of neighbours in the flattened array, with values put around them."""
    d = diff(ravel(asarray(ary)))
    parts = [ravel(asarray(to_begin, d.dtype))] if to_begin is not None else []
    parts.append(d)
    parts += [ravel(asarray(to_end, d.dtype))] if to_end is not None else []
    return concatenate(parts)


def gradient(
    f: ArrayLike,
    *varargs: ArrayLike | Sequence[Any],
    axis: Axis = None,
    edge_order: int | None = None,
) -> Array | list[Array]:
    """Central differences of `f` inside and one-sided ones at the borders, per axis.

    `varargs`: one spacing for all axes, one per axis, or vectors of coordinates.
    """
    if edge_order not in (None, 1):
        raise ValueError("gradient: only edge_order=1 is supported")
    numbers = [h for h in varargs if not isinstance(h, (list, tuple)) and not ndim(h)]
    f, *_ = promote_arrays("gradient", (value(f, "gradient"), *numbers), inexact=True)
    axes = reduced_axes(axis, f.ndim, "gradient")
    spacings = list(varargs) or [1.0]
    if len(spacings) == 1:
        spacings *= len(axes)
    if len(spacings) != len(axes):
        raise TypeError(f"gradient: {len(spacings)} spacings for {len(axes)} axes")
    parts = [_along_axis(f, h, a) for h, a in zip(spacings, axes)]
    return parts[0] if len(parts) == 1 else parts


def _along_axis(f: Any, h: Any, axis: int) -> Array:
    n = f.aval.shape[axis]
    if n < 2:
        raise ValueError(f"gradient: axis {axis} of {f.aval} needs at least 2 elements")

    def part(x: Any, low: int, high: int, along: int = axis) -> Array:
        return slice_in_dim(x, low, high, axis=along)

    h = asarray(h)
    if h.ndim == 0:
        inner = divide(subtract(part(f, 2, n), part(f, 0, n - 2)), multiply(h, 2))
        first = divide(subtract(part(f, 1, 2), part(f, 0, 1)), h)
        last = divide(subtract(part(f, n - 1, n), part(f, n - 2, n - 1)), h)
        return concatenate([first, inner, last], axis)
    steps = reshape(diff(p.convert(h, f.dtype)), [n - 1 if i == axis else 1 for i in range(f.ndim)])
    slopes = divide(subtract(part(f, 1, n), part(f, 0, n - 1)), steps)
    left, right = part(steps, 0, n - 2), part(steps, 1, n - 1)
    inner = divide(
        add(multiply(part(slopes, 0, n - 2), right), multiply(part(slopes, 1, n - 1), left)),
        add(left, right),
    )
    return concatenate([part(slopes, 0, 1), inner, part(slopes, n - 2, n - 1)], axis)


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """The integral of `y` along `axis` by the trapezoidal rule."""
    if x is None:
        (y,) = promote_arrays("trapezoid", (value(y),), inexact=True)
        if ndim(dx):  # one spacing for each pair of neighbours, as it broadcasts to them
            lengths = list(y.aval.shape)
            lengths[axis] -= 1
            dx = moveaxis(broadcast_to(asarray(dx), lengths), axis, -1)
        y, steps = moveaxis(y, axis, -1), dx
    else:
        y, x = promote_arrays("trapezoid", (value(y), value(x)), inexact=True)
        y = moveaxis(y, axis, -1)
        steps = diff(x if x.ndim == 1 else moveaxis(x, axis, -1))
    n = y.aval.shape[-1]
    means = add(slice_in_dim(y, 1, n, axis=-1), slice_in_dim(y, 0, n - 1, axis=-1))
    return strong(multiply(sum_over(multiply(steps, means), -1), 0.5))


def unwrap(
    p: ArrayLike,
    discont: ArrayLike | None = None,
    axis: int = -1,
    period: ArrayLike = 6.283185307179586,
) -> Array:
    """`p` with jumps larger than half a `period` along `axis` removed by adding periods."""
    x = value(p, "unwrap")
    if period == 6.283185307179586 and not dtypes.is_inexact(x.aval.dtype):
        x = promoted(x, dtypes.default_float())
    axis = canonical_axis(axis, x.ndim, "unwrap")
    steps = diff(x, axis=axis)
    whole: Any = period
    halves = isinstance(period, float) or not dtypes.is_integer(x.dtype)
    half = whole / 2 if halves else whole // 2
    limit = half if discont is None else discont
    wrapped = subtract(remainder(add(steps, half), period), half)
    wrapped = where((wrapped == -half) & (steps > 0), half, wrapped)
    fix = where(abs(steps) < limit, 0, subtract(wrapped, steps))
    n = x.aval.shape[axis]
    if not n:
        return strong(x)
    rest = add(slice_in_dim(x, 1, n, axis=axis), cumsum(fix, axis))
    return strong(concatenate([slice_in_dim(x, 0, 1, axis=axis), rest], axis))


# ---- applying functions ----


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: ArrayLike, **kwargs: Any
) -> Array:
    """`func1d` of every vector of `arr` along `axis`, its result in the vector's place."""
    from genesis_fn.transforms.batching.mapped_axes import vmap

    arr = value(arr, "apply_along_axis")
    axis = canonical_axis(axis, arr.ndim, "apply_along_axis")

    def call(x: Any) -> Any:
        return asarray(func1d(x, *args, **kwargs))

    rows = moveaxis(arr, axis, -1)
    for _ in range(arr.ndim - 1):
        call = vmap(call)
    y = call(rows)
    extra = y.ndim - (arr.ndim - 1)
    sources = list(range(arr.ndim - 1, y.ndim))
    return moveaxis(y, sources, range(axis, axis + extra)) if extra else y


def apply_over_axes(
    func: Callable[..., Any], a: ArrayLike | Sequence[Any], axes: Sequence[int]
) -> Array:
    """`func(a, axis)` applied over each of `axes` in turn, dimensions kept."""
    x = asarray(a)
    for axis in axes:
        y: Array = func(x, axis=axis)
        if y.ndim == x.ndim - 1:
            y = reshape(y, [1 if i == axis % x.ndim else n for i, n in enumerate(x.aval.shape)])
        x = y
    return x
