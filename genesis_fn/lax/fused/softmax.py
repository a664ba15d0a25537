"""softmax, log_softmax and logsumexp over the last axis: one operation each, float32 inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.core import dtypes
from genesis_fn.core.primitive import typeof
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.custom.fused import fused


def wide(x: Any) -> Any:
    """`x` in float32 where it is a 16- or 8-bit float: the type that rows are computed in."""
    kind = typeof(x).dtype
    return ops.convert(x, dtypes.F32) if kind.itemsize < 4 else x


def like(x: Any, other: Any) -> Any:
    """`x` in the dtype of `other`."""
    return ops.convert(x, typeof(other).dtype)


def along_last(x: Any, like: Any) -> Any:
    """One number per row, repeated over the last axis of `like`."""
    shape = typeof(like).shape
    return broadcast_in_dim(x, shape, tuple(range(len(shape) - 1)))


def last(x: Any) -> tuple[int, ...]:
    """The last axis, as reductions take it."""
    return (typeof(x).ndim - 1,)


def _top(x: Any) -> Any:
    """The maximum of each row, which has no derivative here."""
    return ops.stop_gradient(reduce_max(x, last(x)))


def _shifted(x: Any) -> Any:
    """x minus its row maximum: NaN in the whole row where that is infinite, as in JAX."""
    return ops.sub(x, along_last(_top(x), x))


def _plain(avals: Sequence[Any]) -> bool:
    """Whether torch's own kernel has the dtype and this library's accuracy."""
    return avals[0].dtype in (dtypes.F32, dtypes.F64, dtypes.BF16)


def _torch_softmax(avals: Sequence[Any]) -> Callable | None:
    if not _plain(avals):
        return None
    return lambda x: [torch.softmax(x, -1)]


@fused("softmax", rows=(True,), precision="high", torch=_torch_softmax)
def softmax_last(x: Any) -> Any:
    """exp(x) / sum(exp(x)) over the last axis."""
    e = ops.exp(_shifted(wide(x)))
    return like(ops.div(e, along_last(reduce_sum(e, last(e)), e)), x)


@fused("softmax_forward", torch=lambda avals: _twice(_torch_softmax(avals)))
def _softmax_forward(x: Any) -> Any:
    y = softmax_last.reference(x)
    return (y,), (y,)


def _twice(run: Callable | None) -> Callable | None:
    if run is None:
        return None

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        (y,) = run(x)
        return [y, y]

    return forward


def _torch_softmax_backward(avals: Sequence[Any], *, needs: Any) -> Callable | None:
    if not _plain(avals):
        return None
    back = torch.ops.aten._softmax_backward_data
    return lambda y, ct: [back(ct, y, y.ndim - 1, y.dtype)]


@fused("softmax_backward", static=("needs",), torch=_torch_softmax_backward)
def _softmax_backward(residuals: Any, ct: Any, *, needs: Any) -> Any:
    (y,) = residuals
    y, g = wide(y), wide(ct)
    yg = ops.mul(y, g)
    return (like(ops.sub(yg, ops.mul(y, along_last(reduce_sum(yg, last(y)), y))), ct),)


softmax_last.defvjp(_softmax_forward, _softmax_backward)


def _torch_log_softmax(avals: Sequence[Any]) -> Callable | None:
    return (lambda x: [torch.log_softmax(x, -1)]) if _plain(avals) else None


@fused("log_softmax", rows=(True,), precision="high", torch=_torch_log_softmax)
def log_softmax_last(x: Any) -> Any:
    """x - logsumexp(x) over the last axis."""
    d = _shifted(wide(x))
    return like(ops.sub(d, along_last(ops.log(reduce_sum(ops.exp(d), last(d))), d)), x)


@fused("log_softmax_forward", torch=lambda avals: _twice(_torch_log_softmax(avals)))
def _log_softmax_forward(x: Any) -> Any:
    y = log_softmax_last.reference(x)
    return (y,), (y,)


def _torch_log_softmax_backward(avals: Sequence[Any], *, needs: Any) -> Callable | None:
    if not _plain(avals):
        return None
    back = torch.ops.aten._log_softmax_backward_data
    return lambda y, ct: [back(ct, y, y.ndim - 1, y.dtype)]


@fused("log_softmax_backward", static=("needs",), torch=_torch_log_softmax_backward)
def _log_softmax_backward(residuals: Any, ct: Any, *, needs: Any) -> Any:
    (y,) = residuals
    y, g = wide(y), wide(ct)
    total = along_last(reduce_sum(g, last(g)), g)
    return (like(ops.sub(g, ops.mul(ops.exp(y), total)), ct),)


log_softmax_last.defvjp(_log_softmax_forward, _log_softmax_backward)


def _torch_logsumexp(avals: Sequence[Any]) -> Callable | None:
    return (lambda x: [torch.logsumexp(x, -1)]) if _plain(avals) else None


@fused("logsumexp", rows=(True,), precision="high", torch=_torch_logsumexp)
def logsumexp_last(x: Any) -> Any:
    """log(sum(exp(x))) over the last axis."""
    w = wide(x)
    top = _top(w)
    top = ops.select(ops.is_finite(top), top, 0.0)  # the log of a sum may be infinite
    d = ops.sub(w, along_last(top, w))
    return like(ops.add(ops.log(reduce_sum(ops.exp(d), last(d))), top), x)


@fused("logsumexp_forward")
def _logsumexp_forward(x: Any) -> Any:
    y = logsumexp_last.reference(x)
    return (y,), (x, y)


@fused("logsumexp_backward", static=("needs",))
def _logsumexp_backward(residuals: Any, ct: Any, *, needs: Any) -> Any:
    x, y = residuals
    w, y = wide(x), wide(y)
    # An infinite row sum has a softmax of zeros, not NaN.
    y = ops.select(ops.is_finite(y), y, 0.0)
    p = ops.exp(ops.sub(w, along_last(y, w)))
    return (like(ops.mul(p, along_last(wide(ct), w)), x),)


logsumexp_last.defvjp(_logsumexp_forward, _logsumexp_backward)
