"""RMSNorm and LayerNorm over the last axis with a shared weight: one operation each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.fused.softmax import along_last, last, like, wide
from genesis_fn.lax.operands import array
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.custom.fused_functions import fused


def _operands(name: str, x: ArrayLike, *vectors: ArrayLike) -> list[Array]:
    rows, *rest = [array(v) for v in (x, *vectors)]
    if not dtypes.is_float(rows.aval.dtype):
        raise errors.DTypeError(f"{name} takes floats, got {rows.aval}\n  at {where().describe()}")
    for v in rest:
        # Kernels read as many elements of a vector as a row has.
        if not rows.ndim or v.aval.shape != rows.aval.shape[-1:]:
            raise errors.ShapeError(
                f"{name}: {v.aval} is no vector along the last axis of {rows.aval}\n"
                f"  at {where().describe()}"
            )
        if dtypes.is_complex(v.aval.dtype):
            raise errors.DTypeError(f"{name} takes real vectors, got {v.aval}")
    return [rows, *rest]


def _over_rows(w: Any, x: Any) -> Array:
    """A vector along the last axis, repeated over the rows of `x`."""
    shape = typeof(x).shape
    return broadcast_in_dim(w, shape, (len(shape) - 1,))


def _mean(x: Any) -> Array:
    return ops.mul(reduce_sum(x, last(x)), 1.0 / max(typeof(x).shape[-1], 1))


def _sum_rows(x: Any) -> Array:
    return reduce_sum(x, tuple(range(typeof(x).ndim - 1)))


# ---- RMSNorm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 ----


def rms_norm(x: ArrayLike, weight: ArrayLike, *, eps: float) -> Array:
    """x / sqrt(mean(x**2) + eps) * weight, with the mean over the last axis.

    Rows of 16- and 8-bit floats are computed in float32. Source: Zhang and Sennrich, "Root Mean
    Square Layer Normalization", 2019.

    Args:
        x: floating array [..., features].
        weight: array [features] of any real dtype.
        eps: added to the mean square; a Python number.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        ShapeError: `x` has no axis, or `weight` is not a vector of the length of its last one.
        DTypeError: `x` is not floating, or `weight` is complex.

    >>> lax.rms_norm(jnp.array([3.0, 4.0]), jnp.ones(2), eps=1e-6)
    Array([0.8485281, 1.1313708], dtype=float32)
    """
    return _rms_norm(*_operands("rms_norm", x, weight), eps=eps)


@fused("rms_norm", static=("eps",), rows=(True, False), precision="high", dims="... d, d -> ... d")
def _rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    w = wide(x)
    rstd = ops.rsqrt(ops.add(_mean(ops.mul(w, w)), eps))
    return _scaled(w, rstd, weight, x)


def _scaled(w: Any, rstd: Any, weight: Any, x: Any) -> Array:
    weight = ops.convert(weight, typeof(w).dtype)
    return like(ops.mul(ops.mul(w, along_last(rstd, w)), _over_rows(weight, w)), x)


@fused("rms_norm_forward", static=("eps",), dims="... d, d -> ... d, ... d, =d, ...")
def _rms_norm_forward(x: Any, weight: Any, *, eps: float) -> tuple[Any, ...]:
    w = wide(x)
    rstd = ops.rsqrt(ops.add(_mean(ops.mul(w, w)), eps))
    return (_scaled(w, rstd, weight, x),), (x, weight, rstd)


@fused("rms_norm_backward", static=("eps",), dims="... d, d, ..., ... d -> ... d, d")
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


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)

# ---- LayerNorm: Ba, Kiros and Hinton, "Layer Normalization", 2016 ----


def layer_norm(x: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the statistics of the last axis.

    The variance is the mean of (x - mean)**2, divided by the number of features and not by one
    less. Rows of 16- and 8-bit floats are computed in float32. Source: Ba, Kiros and Hinton, "Layer
    Normalization", 2016.

    Args:
        x: floating array [..., features].
        weight, bias: arrays [features] of any real dtype.
        eps: added to the variance; a Python number.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        ShapeError: `x` has no axis, or `weight` or `bias` is not a vector of the length of its last
            one.
        DTypeError: `x` is not floating, or `weight` or `bias` is complex.

    >>> lax.layer_norm(jnp.array([1.0, 2.0, 3.0]), jnp.ones(3), jnp.zeros(3), eps=1e-5)
    Array([-1.2247356,  0.       ,  1.2247356], dtype=float32)
    """
    return _layer_norm(*_operands("layer_norm", x, weight, bias), eps=eps)


@fused(
    "layer_norm",
    static=("eps",),
    rows=(True, False, False),
    precision="high",
    dims="... d, d, d -> ... d",
)
def _layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> Array:
    return _layer_norm_forward.reference(x, weight, bias, eps=eps)[0][0]


@fused("layer_norm_forward", static=("eps",), dims="... d, d, d -> ... d, ... d, =d, =d, ..., ...")
def _layer_norm_forward(x: Any, weight: Any, bias: Any, *, eps: float) -> tuple[Any, ...]:
    w = wide(x)
    mean = _mean(w)
    d = ops.sub(w, along_last(mean, w))
    rstd = ops.rsqrt(ops.add(_mean(ops.mul(d, d)), eps))
    hat = ops.mul(d, along_last(rstd, w))
    dtype = typeof(w).dtype
    y = ops.add(
        ops.mul(hat, _over_rows(ops.convert(weight, dtype), w)),
        _over_rows(ops.convert(bias, dtype), w),
    )
    return (like(y, x),), (x, weight, bias, mean, rstd)


@fused("layer_norm_backward", static=("eps",), dims="... d, d, d, ..., ..., ... d -> ... d, d, d")
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


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
