"""Cross-entropy of integer labels: from logits, and from a linear layer without keeping its
logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.primitive import typeof
from genesis_fn.lax.fused.softmax import along_last, last, like, logsumexp_last, wide
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.factories import zeros
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim, iota
from genesis_fn.transforms.custom.fused import fused

# ---- from logits ----


def _one_hot(labels: Any, like: Any) -> Any:
    """Booleans over the last axis of `like`: which class is the label."""
    kind = typeof(like)
    classes = iota(typeof(labels).dtype, kind.shape, kind.ndim - 1)
    return ops.eq(classes, along_last(labels, like))


def _check(labels: torch.Tensor, classes: int, ignore: int | None) -> None:
    """Raises IndexOutOfRange for a label that is neither a class nor ignored."""
    bad = (labels < 0) | (labels >= classes)
    if ignore is not None:
        bad &= labels != ignore
    if bad.any():
        index = int(labels[bad].flatten()[0])
        raise errors.IndexOutOfRange(
            f"label {index} is out of range for {classes} classes", None, classes, index
        )


def _torch_cross_entropy(avals: Sequence[Any]) -> Callable | None:
    run = _torch_cross_entropy_forward(avals)
    return None if run is None else lambda logits, labels: run(logits, labels)[:1]


def _torch_cross_entropy_forward(avals: Sequence[Any]) -> Callable | None:
    if avals[0].dtype not in (dtypes.F32, dtypes.F64):
        return None
    classes = avals[0].shape[-1]

    def run(logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        _check(labels, classes, None)
        lse = torch.logsumexp(logits, -1)
        at_label = logits.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
        return [lse - at_label, logits, labels, lse]

    return run


@fused("cross_entropy", rows=(True, True), precision="high", torch=_torch_cross_entropy)
def cross_entropy_last(logits: Any, labels: Any) -> Any:
    """logsumexp(logits) - logits[label] over the last axis; labels are integers below its
    length."""
    return _cross_entropy_forward.reference(logits, labels)[0][0]


@fused("cross_entropy_forward", torch=_torch_cross_entropy_forward)
def _cross_entropy_forward(logits: Any, labels: Any) -> Any:
    w = wide(logits)
    lse = logsumexp_last.reference(w)
    at_label = reduce_sum(ops.select(_one_hot(labels, w), w, 0.0), last(w))
    return (like(ops.sub(lse, at_label), logits),), (logits, labels, lse)


def _torch_cross_entropy_backward(avals: Sequence[Any], *, needs: Any) -> Callable | None:
    if avals[0].dtype not in (dtypes.F32, dtypes.F64):
        return None

    def run(logits: Any, labels: Any, lse: Any, ct: Any) -> list[torch.Tensor]:
        p = torch.exp_(logits - lse.unsqueeze(-1))
        p.mul_(ct.unsqueeze(-1))
        return [p.scatter_add_(-1, labels.long().unsqueeze(-1), -ct.unsqueeze(-1))]

    return run


@fused("cross_entropy_backward", static=("needs",), torch=_torch_cross_entropy_backward)
def _cross_entropy_backward(residuals: Any, ct: Any, *, needs: Any) -> Any:
    logits, labels, lse = residuals
    w, g = wide(logits), wide(ct)
    p = ops.exp(ops.sub(w, along_last(lse, w)))
    p = ops.select(_one_hot(labels, w), ops.sub(p, 1.0), p)
    return (like(ops.mul(p, along_last(g, w)), logits),)


cross_entropy_last.defvjp(_cross_entropy_forward, _cross_entropy_backward)

# ---- from a linear layer ----


def _losses(
    logits: Any, labels: Any, ignore_index: int | None, label_smoothing: float, z_loss: float,
    softcap: float,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(loss per row, gradient of the loss by the uncapped logits, whether a row counts)."""
    raw = logits
    if softcap:
        logits = ops.mul(ops.tanh(ops.mul(raw, 1.0 / softcap)), softcap)
    lse = logsumexp_last.reference(logits)
    hot = _one_hot(labels, logits)
    at_label = reduce_sum(ops.select(hot, logits, 0.0), last(logits))
    classes = typeof(logits).shape[-1]
    p = ops.exp(ops.sub(logits, along_last(lse, logits)))
    low = label_smoothing / classes
    target = ops.select(hot, 1.0 - label_smoothing + low, ops.add(ops.mul(p, 0.0), low))
    if label_smoothing:
        mean = ops.mul(reduce_sum(logits, last(logits)), 1.0 / classes)
        at_label = ops.add(ops.mul(at_label, 1.0 - label_smoothing), ops.mul(mean, label_smoothing))
    loss = ops.sub(lse, at_label)
    scale = along_last(ops.add(ops.mul(lse, 2.0 * z_loss), 1.0), p)
    if z_loss:
        loss = ops.add(loss, ops.mul(ops.mul(lse, lse), z_loss))
        grad = ops.sub(ops.mul(p, scale), target)
    else:
        grad = ops.sub(p, target)
    if softcap:
        t = ops.mul(logits, 1.0 / softcap)
        grad = ops.mul(grad, ops.sub(1.0, ops.mul(t, t)))
    if ignore_index is None:
        return loss, grad, None
    counts = ops.ne(labels, ignore_index)
    loss = ops.select(counts, loss, 0.0)
    return loss, ops.select(along_last(counts, grad), grad, 0.0), counts


def _weights(loss: Any, counts: Any, reduction: str) -> tuple[Any, Any]:
    """(reduced loss, weight of each row in it)."""
    rows = typeof(loss)
    one = ops.exp(zeros(rows))
    if reduction == "none":
        return loss, one
    total = reduce_sum(loss, tuple(range(rows.ndim)))
    if reduction == "sum":
        return total, one
    if counts is None:
        return ops.mul(total, 1.0 / rows.size), ops.mul(one, 1.0 / rows.size)
    n = reduce_sum(ops.convert(counts, rows.dtype), tuple(range(rows.ndim)))
    n = ops.max(n, 1.0)  # a batch that is ignored whole has loss 0
    return ops.div(total, n), ops.div(one, broadcast_in_dim(n, rows.shape, ()))


def _logits(x: Any, weight: Any) -> Any:
    contract = ((typeof(x).ndim - 1,), (1,))
    return dot_general(x, weight, (contract, ((), ())), preferred_element_type=_wide_type(x))


def _wide_type(x: Any) -> Any:
    kind = typeof(x).dtype
    return dtypes.F32 if kind.itemsize < 4 else kind


_OPTIONS = ("ignore_index", "label_smoothing", "z_loss", "softcap", "reduction")


def _torch_linear(
    avals: Sequence[Any], *, ignore_index: int | None, label_smoothing: float, z_loss: float,
    softcap: float, reduction: str,
) -> Callable | None:  # fmt: skip
    """(x, weight, labels) -> (reduced loss, gradient by the logits)."""
    if any(a.dtype != dtypes.F32 for a in avals[:2]):
        return None
    classes = avals[1].shape[0]
    low = label_smoothing / classes

    def run(x: Any, weight: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _check(labels, classes, ignore_index)
        logits = x @ weight.T
        if softcap:
            logits = torch.tanh_(logits.div_(softcap))
            slope = 1 - logits * logits
            logits = logits.mul_(softcap)
        index = labels.long().clamp(0, classes - 1).unsqueeze(-1)
        # One pass over the logits; what it leaves is one more from their gradient.
        logs = torch.log_softmax(logits, -1)
        at_label = logs.gather(-1, index).squeeze(-1)
        if label_smoothing:
            at_label = at_label * (1 - label_smoothing) + logs.mean(-1) * label_smoothing
        loss = -at_label
        if z_loss:
            lse = logits[..., 0] - logs[..., 0]
            loss = loss + z_loss * lse * lse
        row = torch.ones_like(loss)
        if ignore_index is not None:
            row = (labels != ignore_index).float()
            loss = loss * row
        if reduction == "mean":
            row = row / row.sum().clamp(min=1)
            value = (loss * row).sum()
        else:
            value = loss.sum()
        grad = logs.exp_()
        if z_loss:
            grad.mul_((1 + 2 * z_loss * lse).unsqueeze(-1))
        if low:
            grad.sub_(low)
        grad.scatter_add_(-1, index, torch.full_like(index, -(1 - label_smoothing), dtype=x.dtype))
        if softcap:
            grad.mul_(slope)
        return value, grad.mul_(row.unsqueeze(-1))

    return run


def _torch_linear_cross_entropy(avals: Sequence[Any], **options: Any) -> Callable | None:
    run = _torch_linear(avals, **options)
    return None if run is None else lambda *xs: [run(*xs)[0]]


def _torch_linear_cross_entropy_forward(avals: Sequence[Any], **options: Any) -> Callable | None:
    run = _torch_linear(avals, **options)
    if run is None:
        return None

    def forward(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        value, grad = run(x, weight, labels)
        return [value, grad @ weight, grad.T @ x]

    return forward


@fused("linear_cross_entropy", static=_OPTIONS, precision="low", torch=_torch_linear_cross_entropy)
def linear_cross_entropy_rows(
    x: Any, weight: Any, labels: Any, *, ignore_index: int | None, label_smoothing: float,
    z_loss: float, softcap: float, reduction: str,
) -> Any:  # fmt: skip
    """Cross-entropy of x @ weight.T ([rows, features], [classes, features]) against labels
    [rows]."""
    loss, _, counts = _losses(
        _logits(x, weight), labels, ignore_index, label_smoothing, z_loss, softcap
    )
    return _weights(loss, counts, reduction)[0]


@fused("linear_cross_entropy_forward", static=_OPTIONS, torch=_torch_linear_cross_entropy_forward)
def _linear_cross_entropy_forward(
    x: Any, weight: Any, labels: Any, *, ignore_index: int | None, label_smoothing: float,
    z_loss: float, softcap: float, reduction: str,
) -> Any:  # fmt: skip
    """The loss, and with it its gradients: the logits are there now and need not be made again."""
    loss, grad, counts = _losses(
        _logits(x, weight), labels, ignore_index, label_smoothing, z_loss, softcap
    )
    value, row = _weights(loss, counts, reduction)
    grad = like(ops.mul(grad, along_last(row, grad)), x)
    dx = dot_general(grad, weight, (((1,), (0,)), ((), ())), preferred_element_type=typeof(x).dtype)
    dw = dot_general(grad, x, (((0,), (0,)), ((), ())), preferred_element_type=typeof(weight).dtype)
    return (value,), (dx, dw)


@fused("linear_cross_entropy_backward", static=(*_OPTIONS, "needs"))
def _linear_cross_entropy_backward(residuals: Any, ct: Any, *, needs: Any, **_: Any) -> Any:
    def scaled(g: Any) -> Any:
        factor = broadcast_in_dim(like(ct, g), typeof(g).shape, ())
        return ops.mul(g, factor)

    return tuple([scaled(g) for g in residuals])


linear_cross_entropy_rows.defvjp(_linear_cross_entropy_forward, _linear_cross_entropy_backward)


def linear_cross_entropy(
    x: Any, weight: Any, labels: Any, *, ignore_index: int | None = None,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Softmax cross-entropy of the linear layer x @ weight.T, without keeping its logits.

    x is [..., features], weight [classes, features], labels [...] integers. `reduction` is "mean"
    (over the rows not ignored), "sum" or "none". `z_loss` adds z_loss * logsumexp**2 per row,
    `softcap` replaces the logits by softcap * tanh(logits / softcap). The loss is float32 for
    16-bit operands.
    """
    from genesis_fn.primitives.shape import reshape

    x, weight, labels = as_array(x), as_array(weight), as_array(labels)
    kind = typeof(x)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f'linear_cross_entropy: reduction is "mean", "sum" or "none", not {reduction!r}'
        )
    if typeof(weight).ndim != 2 or typeof(weight).shape[1] != kind.shape[-1]:
        raise errors.ShapeError(
            f"linear_cross_entropy: x {kind} does not fit weight {typeof(weight)}"
        )
    if typeof(labels).shape != kind.shape[:-1]:
        raise errors.ShapeError(
            f"linear_cross_entropy: labels {typeof(labels)} do not fit the rows of x {kind}"
        )
    options = {
        "ignore_index": ignore_index, "label_smoothing": float(label_smoothing),
        "z_loss": float(z_loss), "softcap": float(softcap), "reduction": reduction,
    }  # fmt: skip
    rows = reshape(x, (kind.size // max(kind.shape[-1], 1), kind.shape[-1]))
    flat = reshape(labels, (typeof(labels).size,))
    if reduction == "none":
        loss = linear_cross_entropy_rows.reference(rows, weight, flat, **options)
        return reshape(loss, typeof(labels).shape)
    return linear_cross_entropy_rows(rows, weight, flat, **options)
