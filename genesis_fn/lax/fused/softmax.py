"""softmax, log_softmax and logsumexp over the last axis: one operation each, float32 inside."""

from __future__ import annotations

import math
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.custom.fused_functions import fused


def wide(x: Array) -> Array:
    """`x` in float32 where it is a 16- or 8-bit float: the type that rows are computed in."""
    dtype = typeof(x).dtype
    return ops.convert(x, dtypes.F32) if dtype.itemsize < 4 else x


def like(x: Array, other: Array) -> Array:
    """`x` in the dtype of `other`."""
    return ops.convert(x, typeof(other).dtype)


def along_last(x: Array, like: Array) -> Array:
    """One number per row, repeated over the last axis of `like`."""
    shape = typeof(like).shape
    return broadcast_in_dim(x, shape, tuple(range(len(shape) - 1)))


def last(x: Array) -> tuple[int, ...]:
    """The last axis, as reductions take it."""
    return (typeof(x).ndim - 1,)


def _top(x: Any) -> Array:
    """The maximum of each row, which has no derivative here."""
    return ops.stop_gradient(reduce_max(x, last(x)))


def _shifted(x: Any) -> Array:
    """x minus its row maximum: NaN in the whole row where that is infinite, as in JAX."""
    return ops.sub(x, along_last(_top(x), x))


@fused("softmax", rows=(True,), precision="high", dims="... v -> ... v")
def softmax_last(x: Array) -> Array:
    """exp(x) / sum(exp(x)) over the last axis."""
    e = ops.exp(_shifted(wide(x)))
    return like(ops.div(e, along_last(reduce_sum(e, last(e)), e)), x)


@fused("softmax_forward", dims="... v -> ... v, ... v")
def _softmax_forward(x: Any) -> tuple[Any, ...]:
    y = softmax_last.reference(x)
    return (y,), (y,)


@fused("softmax_backward", dims="... v, ... v -> ... v")
def _softmax_backward(residuals: Any, ct: Any, *, needs: Any) -> tuple[Any, ...]:
    (y,) = residuals
    y, g = wide(y), wide(ct)
    yg = ops.mul(y, g)
    return (like(ops.sub(yg, ops.mul(y, along_last(reduce_sum(yg, last(y)), y))), ct),)


softmax_last.defvjp(_softmax_forward, _softmax_backward)


@fused("log_softmax", rows=(True,), precision="high", dims="... v -> ... v")
def log_softmax_last(x: Array) -> Array:
    """x - logsumexp(x) over the last axis."""
    d = _shifted(wide(x))
    return like(ops.sub(d, along_last(ops.log(reduce_sum(ops.exp(d), last(d))), d)), x)


@fused("log_softmax_forward", dims="... v -> ... v, ... v")
def _log_softmax_forward(x: Any) -> tuple[Any, ...]:
    y = log_softmax_last.reference(x)
    return (y,), (y,)


@fused("log_softmax_backward", dims="... v, ... v -> ... v")
def _log_softmax_backward(residuals: Any, ct: Any, *, needs: Any) -> tuple[Any, ...]:
    (y,) = residuals
    y, g = wide(y), wide(ct)
    total = along_last(reduce_sum(g, last(g)), g)
    return (like(ops.sub(g, ops.mul(ops.exp(y), total)), ct),)


log_softmax_last.defvjp(_log_softmax_forward, _log_softmax_backward)


@fused("logsumexp", rows=(True,), precision="high", dims="... v -> ...")
def logsumexp_last(x: Array) -> Array:
    """log(sum(exp(x))) over the last axis."""
    w = wide(x)
    top = _top(w)
    top = ops.select(ops.is_finite(top), top, 0.0)  # the log of a sum may be infinite
    d = ops.sub(w, along_last(top, w))
    return like(ops.add(ops.log(reduce_sum(ops.exp(d), last(d))), top), x)


@fused("logsumexp_forward", dims="... v -> ..., ... v, ...")
def _logsumexp_forward(x: Any) -> tuple[Any, ...]:
    y = logsumexp_last.reference(x)
    return (y,), (x, y)


@fused("logsumexp_backward", dims="... v, ..., ... -> ... v")
def _logsumexp_backward(residuals: Any, ct: Any, *, needs: Any) -> tuple[Any, ...]:
    x, y = residuals
    w, y = wide(x), wide(y)
    # An infinite row sum has a softmax of zeros, not NaN; that of a NaN is one.
    y = ops.select(ops.eq(ops.abs(y), math.inf), 0.0, y)
    p = ops.exp(ops.sub(w, along_last(y, w)))
    return (like(ops.mul(p, along_last(wide(ct), w)), x),)


logsumexp_last.defvjp(_logsumexp_forward, _logsumexp_backward)
