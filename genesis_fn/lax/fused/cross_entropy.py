"""Cross-entropy of integer labels: from logits, and from a linear layer without keeping its
logits."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.fused.softmax import along_last, last, like, logsumexp_last, wide
from genesis_fn.lax.operands import array
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.factories import zeros
from genesis_fn.primitives.indexing.gather import take_rows
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim, iota, reshape
from genesis_fn.transforms.custom.fused_functions import fused

# ---- from logits ----


def class_labels(name: str, labels: ArrayLike) -> Array:
    """The labels that a loss was given, in int32, or in int64 if they are of a wider type: what
    kernels take, and what holds an `ignore_index` below 0. Raises DTypeError unless they are
    integers."""
    x = array(labels)
    d = x.aval.dtype
    if not dtypes.is_integer(d):
        raise errors.DTypeError(f"{name} takes integer labels, got {x.aval}")
    narrow = d.itemsize < 4 or d == dtypes.I32
    return ops.convert(x, dtypes.I32 if narrow else dtypes.I64)


def _one_hot(labels: Any, like: Any) -> Any:
    """Booleans over the last axis of `like`: which class is the label. Raises IndexOutOfRange, when
    the program runs, for a label that is no class."""
    aval = typeof(like)
    known = take_rows(iota(dtypes.I32, aval.shape[-1:], 0), labels)
    classes = iota(dtypes.I32, aval.shape, aval.ndim - 1)
    return ops.eq(classes, along_last(known, like))


@fused("cross_entropy", rows=(True, True), precision="high")
def cross_entropy_last(logits: ArrayLike, labels: ArrayLike) -> Array:
    """logsumexp(logits) - logits[label] over the last axis; labels are integers below its
    length."""
    return _cross_entropy_forward.reference(logits, labels)[0][0]


@fused("cross_entropy_forward")
def _cross_entropy_forward(logits: Any, labels: Any) -> tuple[Any, ...]:
    w = wide(logits)
    lse = logsumexp_last.reference(w)
    at_label = reduce_sum(ops.select(_one_hot(labels, w), w, 0.0), last(w))
    return (like(ops.sub(lse, at_label), logits),), (logits, labels, lse)


@fused("cross_entropy_backward")
def _cross_entropy_backward(residuals: Any, ct: Any, *, needs: Any) -> tuple[Any, ...]:
    logits, labels, lse = residuals
    w, g = wide(logits), wide(ct)
    p = ops.exp(ops.sub(w, along_last(lse, w)))
    p = ops.select(_one_hot(labels, w), ops.sub(p, 1.0), p)
    return (like(ops.mul(p, along_last(g, w)), logits),)


cross_entropy_last.defvjp(_cross_entropy_forward, _cross_entropy_backward)

# ---- from a linear layer ----


def _losses(
    logits: Any,
    labels: Any,
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> tuple[Any, Any, Any]:
    """(loss per row, gradient of the loss by the uncapped logits, whether a row counts)."""
    raw = logits
    if softcap:
        logits = ops.mul(ops.tanh(ops.mul(raw, 1.0 / softcap)), softcap)
    lse = logsumexp_last.reference(logits)
    counts = None if ignore_index is None else ops.ne(labels, ignore_index)
    classed = labels if counts is None else ops.select(counts, labels, 0)
    hot = _one_hot(classed, logits)
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
    if counts is None:
        return loss, grad, None
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
        share = 1.0 / max(rows.size, 1)
        return ops.mul(total, share), ops.mul(one, share)
    n = reduce_sum(ops.convert(counts, rows.dtype), tuple(range(rows.ndim)))
    n = ops.max(n, 1.0)  # a batch that is ignored whole has loss 0
    return ops.div(total, n), ops.div(one, broadcast_in_dim(n, rows.shape, ()))


def _logits(x: Any, weight: Any) -> Array:
    contract = ((typeof(x).ndim - 1,), (1,))
    return dot_general(x, weight, (contract, ((), ())), preferred_element_type=_wide_type(x))


def _wide_type(x: Any) -> Any:
    dtype = typeof(x).dtype
    return dtypes.F32 if dtype.itemsize < 4 else dtype


_OPTIONS = ("ignore_index", "label_smoothing", "z_loss", "softcap", "reduction")


@fused("linear_cross_entropy", static=_OPTIONS, precision="low")
def linear_cross_entropy_rows(
    x: Array,
    weight: Array,
    labels: Array,
    *,
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
) -> Array:
    """Cross-entropy of x @ weight.T ([rows, features], [classes, features]) against labels
    [rows]."""
    loss, _, counts = _losses(
        _logits(x, weight), labels, ignore_index, label_smoothing, z_loss, softcap
    )
    return _weights(loss, counts, reduction)[0]


@fused("linear_cross_entropy_forward", static=_OPTIONS)
def _linear_cross_entropy_forward(
    x: Any,
    weight: Any,
    labels: Any,
    *,
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
) -> tuple[Any, ...]:
    """The loss, and with it its gradients: the logits are there now and need not be made again."""
    loss, grad, counts = _losses(
        _logits(x, weight), labels, ignore_index, label_smoothing, z_loss, softcap
    )
    value, row = _weights(loss, counts, reduction)
    grad = like(ops.mul(grad, along_last(row, grad)), x)
    dx = dot_general(grad, weight, (((1,), (0,)), ((), ())), preferred_element_type=typeof(x).dtype)
    dw = dot_general(grad, x, (((0,), (0,)), ((), ())), preferred_element_type=typeof(weight).dtype)
    return (value,), (dx, dw)


@fused("linear_cross_entropy_backward", static=_OPTIONS)
def _linear_cross_entropy_backward(
    residuals: Any, ct: Any, *, needs: Any, **_: Any
) -> tuple[Any, ...]:
    def scaled(g: Any) -> Array:
        factor = broadcast_in_dim(like(ct, g), typeof(g).shape, ())
        return ops.mul(g, factor)

    return tuple([scaled(g) for g in residuals])


linear_cross_entropy_rows.defvjp(_linear_cross_entropy_forward, _linear_cross_entropy_backward)


def linear_cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
) -> Array:
    """Softmax cross-entropy of the linear layer x @ weight.T, without keeping its logits.

    Args:
        x: floating array [..., features].
        weight: array [classes, features].
        labels: integer classes [...].
        ignore_index: label of rows that do not count.
        label_smoothing: share of the target that is spread evenly over all classes.
        z_loss: adds z_loss * logsumexp(logits)**2 to the loss of a row.
        softcap: replaces the logits by softcap * tanh(logits / softcap); 0 does not.
        reduction: "mean" over the rows that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each row [...]; float32 for 16-bit operands.

    Raises:
        ShapeError: `weight` is no matrix over the features of `x`, or `labels` does not have its
            leading dimensions.
        DTypeError: `labels` are not integers, or `x` or `weight` is not floating.
        ValueError: `reduction` is another.

    >>> x, weight = jnp.ones((2, 3)), jnp.zeros((4, 3))
    >>> nn.linear_cross_entropy(x, weight, jnp.array([0, 3]))
    Array(1.3862944, dtype=float32)
    """
    x, weight = array(x), array(weight)
    labels = class_labels("linear_cross_entropy", labels)
    aval = typeof(x)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f'linear_cross_entropy: reduction is "mean", "sum" or "none", not {reduction!r}'
        )
    if not aval.ndim or typeof(weight).shape[1:] != aval.shape[-1:]:
        raise errors.ShapeError(
            f"linear_cross_entropy: x {aval} does not fit weight {typeof(weight)}"
        )
    if typeof(labels).shape != aval.shape[:-1]:
        raise errors.ShapeError(
            f"linear_cross_entropy: labels {typeof(labels)} do not fit the rows of x {aval}"
        )
    options: dict[str, Any] = {
        "ignore_index": ignore_index,
        "label_smoothing": float(label_smoothing),
        "z_loss": float(z_loss),
        "softcap": float(softcap),
        "reduction": reduction,
    }
    rows = reshape(x, (aval.size // max(aval.shape[-1], 1), aval.shape[-1]))
    flat = reshape(labels, (typeof(labels).size,))
    if reduction == "none":
        loss = linear_cross_entropy_rows.reference(rows, weight, flat, **options)
        return reshape(loss, typeof(labels).shape)
    return linear_cross_entropy_rows(rows, weight, flat, **options)
