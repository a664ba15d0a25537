"""RMSNorm and LayerNorm over the last axis with a shared weight: one operation each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array
from genesis_fn.lax.fused.softmax import along_last, last, like, wide
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.custom.fused_functions import fused


def _over_rows(w: Any, x: Any) -> Array:
    """A vector along the last axis, repeated over the rows of `x`."""
    shape = typeof(x).shape
    return broadcast_in_dim(w, shape, (len(shape) - 1,))


def _mean(x: Any) -> Array:
    return ops.mul(reduce_sum(x, last(x)), 1.0 / max(typeof(x).shape[-1], 1))


def _sum_rows(x: Any) -> Array:
    return reduce_sum(x, tuple(range(typeof(x).ndim - 1)))


# ---- RMSNorm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 ----


@fused("rms_norm", static=("eps",), rows=(True, False), precision="high")
def rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    """x / sqrt(mean(x**2) + eps) * weight over the last axis, in the dtype of x."""
    w = wide(x)
    rstd = ops.rsqrt(ops.add(_mean(ops.mul(w, w)), eps))
    return _scaled(w, rstd, weight, x)


def _scaled(w: Any, rstd: Any, weight: Any, x: Any) -> Array:
    weight = ops.convert(weight, typeof(w).dtype)
    return like(ops.mul(ops.mul(w, along_last(rstd, w)), _over_rows(weight, w)), x)


@fused("rms_norm_forward", static=("eps",))
def _rms_norm_forward(x: Any, weight: Any, *, eps: float) -> tuple[Any, ...]:
    w = wide(x)
    rstd = ops.rsqrt(ops.add(_mean(ops.mul(w, w)), eps))
    return (_scaled(w, rstd, weight, x),), (x, weight, rstd)


@fused("rms_norm_backward", static=("eps",))
def _rms_norm_backward(
    residuals: Any, ct: Any, *, eps: float, needs: Sequence[bool]
) -> tuple[Any, ...]:
    x, weight, rstd = residuals
    w, g = wide(x), wide(ct)
    hat = ops.mul(w, along_last(rstd, w))
    d_weight = like(_sum_rows(ops.mul(g, hat)), weight)
    g = ops.mul(g, _over_rows(ops.convert(weight, typeof(w).dtype), w))
    dot = along_last(_mean(ops.mul(g, hat)), w)
    dx = ops.mul(ops.sub(g, ops.mul(hat, dot)), along_last(rstd, w))
    return like(dx, x), d_weight


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)

# ---- LayerNorm: Ba, Kiros and Hinton, "Layer Normalization", 2016 ----


@fused("layer_norm", static=("eps",), rows=(True, False, False), precision="high")
def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, in the dtype of x."""
    return _layer_norm_forward.reference(x, weight, bias, eps=eps)[0][0]


@fused("layer_norm_forward", static=("eps",))
def _layer_norm_forward(x: Any, weight: Any, bias: Any, *, eps: float) -> tuple[Any, ...]:
    w = wide(x)
    mean = _mean(w)
    d = ops.sub(w, along_last(mean, w))
    rstd = ops.rsqrt(ops.add(_mean(ops.mul(d, d)), eps))
    hat = ops.mul(d, along_last(rstd, w))
    kind = typeof(w).dtype
    y = ops.add(
        ops.mul(hat, _over_rows(ops.convert(weight, kind), w)),
        _over_rows(ops.convert(bias, kind), w),
    )
    return (like(y, x),), (x, weight, bias, mean, rstd)


@fused("layer_norm_backward", static=("eps",))
def _layer_norm_backward(
    residuals: Any, ct: Any, *, eps: float, needs: Sequence[bool]
) -> tuple[Any, ...]:
    x, weight, bias, mean, rstd = residuals
    w, g = wide(x), wide(ct)
    hat = ops.mul(ops.sub(w, along_last(mean, w)), along_last(rstd, w))
    d_weight, d_bias = _sum_rows(ops.mul(g, hat)), _sum_rows(g)
    g = ops.mul(g, _over_rows(ops.convert(weight, typeof(w).dtype), w))
    dot, mean_g = along_last(_mean(ops.mul(g, hat)), w), along_last(_mean(g), w)
    dx = ops.mul(ops.sub(ops.sub(g, mean_g), ops.mul(hat, dot)), along_last(rstd, w))
    return like(dx, x), like(d_weight, weight), like(d_bias, bias)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
