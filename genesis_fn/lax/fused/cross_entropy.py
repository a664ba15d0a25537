"""Cross-entropy of integer labels: from logits, and from a linear layer without keeping its
logits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.fused.softmax import along_last, last, like, logsumexp_last, wide
from genesis_fn.lax.operands import array
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.factories import full, zeros
from genesis_fn.primitives.indexing.gather import take_rows
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim, concatenate, iota, reshape, slice_in_dim
from genesis_fn.transforms.batching.collectives import axis_index, axis_size, pmax, psum
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.fused_functions import fused

# ---- what losses take ----


def floats(name: str, *arrays: ArrayLike) -> list[Array]:
    """The arguments of a loss as arrays. Raises DTypeError where one is not floating."""
    converted = [array(x) for x in arrays]
    for x in converted:
        if not dtypes.is_float(x.aval.dtype):
            raise errors.DTypeError(f"{name} takes floats, got {x.aval}")
    return converted


def check_same_shape(name: str, **arguments: Array) -> None:
    """Raises ShapeError naming two arguments where their shapes differ."""
    (a, x), (b, y) = arguments.items()
    if typeof(x).shape != typeof(y).shape:
        raise errors.ShapeError(
            f"{name}: {a} {typeof(x)} and {b} {typeof(y)} differ in shape\n"
            f"  reshape or index one of them: {b} of another shape would be broadcast to pairs"
        )


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


@dataclass(frozen=True, slots=True)
class _Classes:
    """The classes of logits along their last axis: all, or this device's part of them, which the
    `axes` of a mesh divide in order."""

    axes: tuple[Hashable, ...] = ()

    def count(self, logits: Any) -> int:
        """How many there are, on all devices."""
        own = typeof(logits).shape[-1]
        return own * axis_size(self.axes) if self.axes else own

    def sum(self, x: Any) -> Any:
        """The sum over all classes."""
        own = reduce_sum(x, last(x))
        return psum(own, self.axes) if self.axes else own

    def logsumexp(self, logits: Any) -> Any:
        """Over all classes."""
        if not self.axes:
            return logsumexp_last.reference(logits)
        top = pmax(reduce_max(logits, last(logits)), self.axes)
        # Minus infinity from itself would be NaN; such a row has it on every device.
        finite = ops.select(ops.is_finite(top), top, 0.0)
        parts = ops.exp(ops.sub(logits, along_last(finite, logits)))
        return ops.add(ops.log(self.sum(parts)), finite)

    def hot(self, labels: Any, logits: Any) -> Any:
        """Booleans over the last axis of logits: which class is the label. Raises IndexOutOfRange,
        when the program runs, for a label that is no class."""
        aval = typeof(logits)
        known = take_rows(iota(dtypes.I32, (self.count(logits),), 0), labels)
        if self.axes:
            first = ops.mul(axis_index(self.axes), aval.shape[-1])
            known = ops.sub(known, broadcast_in_dim(first, typeof(known).shape, ()))
        return ops.eq(iota(dtypes.I32, aval.shape, aval.ndim - 1), along_last(known, logits))


_ALL = _Classes()

# ---- from logits ----


@fused("cross_entropy", rows=(True, True), precision="high", dims="... v, ... -> ...")
def cross_entropy_last(logits: ArrayLike, labels: ArrayLike) -> Array:
    """logsumexp(logits) - logits[label] over the last axis; labels are integers below its
    length."""
    return _cross_entropy_forward.reference(logits, labels)[0][0]


@fused("cross_entropy_forward", dims="... v, ... -> ..., ... v, ..., ...")
def _cross_entropy_forward(logits: Any, labels: Any) -> tuple[Any, ...]:
    w = wide(logits)
    lse = logsumexp_last.reference(w)
    at_label = _ALL.sum(ops.select(_ALL.hot(labels, w), w, 0.0))
    return (like(ops.sub(lse, at_label), logits),), (logits, labels, lse)


@fused("cross_entropy_backward", dims="... v, ..., ..., ... -> ... v")
def _cross_entropy_backward(residuals: Any, ct: Any, *, needs: Any) -> tuple[Any, ...]:
    logits, labels, lse = residuals
    w, g = wide(logits), wide(ct)
    p = ops.exp(ops.sub(w, along_last(lse, w)))
    p = ops.select(_ALL.hot(labels, w), ops.sub(p, 1.0), p)
    return (like(ops.mul(p, along_last(g, w)), logits),)


cross_entropy_last.defvjp(_cross_entropy_forward, _cross_entropy_backward)

# ---- from a linear layer ----
#
# Three fused functions of rows x [rows, features], weight [classes, features] and labels [rows]:
# the loss reduced, the loss of each row, and the sum of these times weights of rows. The first and
# the last make their gradients in the forward pass, while the logits are there; the second makes
# the logits anew in its backward pass, which is where the cotangents of the rows are known.


def _losses(
    logits: Any,
    labels: Any,
    class_weight: Sequence[Any],
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    classes: _Classes = _ALL,
) -> tuple[Any, Any, Any]:
    """(loss per row, gradient of the loss by the uncapped logits, whether a row counts).
    `class_weight` has one array, or none."""
    raw = logits
    if softcap:
        logits = ops.mul(ops.tanh(ops.mul(raw, 1.0 / softcap)), softcap)
    lse = classes.logsumexp(logits)
    counts = None if ignore_index is None else ops.ne(labels, ignore_index)
    classed = labels if counts is None else ops.select(counts, labels, 0)
    hot = classes.hot(classed, logits)
    if class_weight:
        loss, grad = _weighed(logits, lse, hot, class_weight[0], label_smoothing, z_loss)
    else:
        loss, grad = _alike(logits, lse, hot, label_smoothing, z_loss, classes)
    if softcap:
        t = ops.mul(logits, 1.0 / softcap)
        grad = ops.mul(grad, ops.sub(1.0, ops.mul(t, t)))
    if counts is None:
        return loss, grad, None
    loss = ops.select(counts, loss, 0.0)
    return loss, ops.select(along_last(counts, grad), grad, 0.0), counts


def _alike(
    logits: Any, lse: Any, hot: Any, label_smoothing: float, z_loss: float, classes: _Classes
) -> Any:
    """(loss per row, gradient by the logits) of classes that weigh alike."""
    at_label = classes.sum(ops.select(hot, logits, 0.0))
    count = classes.count(logits)
    p = ops.exp(ops.sub(logits, along_last(lse, logits)))
    low = label_smoothing / count
    target = ops.select(hot, 1.0 - label_smoothing + low, ops.add(ops.mul(p, 0.0), low))
    if label_smoothing:
        mean = ops.mul(classes.sum(logits), 1.0 / count)
        at_label = ops.add(ops.mul(at_label, 1.0 - label_smoothing), ops.mul(mean, label_smoothing))
    loss = ops.sub(lse, at_label)
    scale = along_last(ops.add(ops.mul(lse, 2.0 * z_loss), 1.0), p)
    if not z_loss:
        return loss, ops.sub(p, target)
    loss = ops.add(loss, ops.mul(ops.mul(lse, lse), z_loss))
    return loss, ops.sub(ops.mul(p, scale), target)


def _weighed(
    logits: Any, lse: Any, hot: Any, class_weight: Any, label_smoothing: float, z_loss: float
) -> Any:
    """(loss per row, gradient by the logits) of classes with weights w:
    w[label] ((1 - s) (lse - x[label]) + z_loss lse^2) + s / classes sum of w (lse - x)."""
    share = label_smoothing / typeof(logits).shape[-1]
    w = broadcast_in_dim(class_weight, typeof(logits).shape, (1,))
    at_label = reduce_sum(ops.select(hot, logits, 0.0), last(logits))
    of_label = reduce_sum(ops.select(hot, w, 0.0), last(logits))
    # A class of weight 0 may be excluded by a logit of -inf.
    total = reduce_sum(ops.select(ops.ne(w, 0.0), ops.mul(w, logits), 0.0), last(logits))
    every = reduce_sum(w, last(logits))
    certain = ops.mul(of_label, 1.0 - label_smoothing)
    smooth = ops.mul(ops.sub(ops.mul(every, lse), total), share)
    loss = ops.add(ops.mul(certain, ops.sub(lse, at_label)), smooth)
    slope = ops.add(certain, ops.mul(every, share))  # by lse
    if z_loss:
        z = ops.mul(of_label, z_loss)
        loss = ops.add(loss, ops.mul(z, ops.mul(lse, lse)))
        slope = ops.add(slope, ops.mul(ops.mul(z, 2.0), lse))
    p = ops.exp(ops.sub(logits, along_last(lse, logits)))
    target = ops.add(ops.select(hot, along_last(certain, w), 0.0), ops.mul(w, share))
    return loss, ops.sub(ops.mul(p, along_last(slope, p)), target)


def _class_weight_gradient(
    logits: Any,
    labels: Any,
    row: Any,
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> Any:
    """The gradient of the sum of `row` times the losses of `_weighed` by the weights of classes."""
    if softcap:
        logits = ops.mul(ops.tanh(ops.mul(logits, 1.0 / softcap)), softcap)
    lse = logsumexp_last.reference(logits)
    counts = ops.ne(labels, -1 if ignore_index is None else ignore_index)
    hot = _ALL.hot(ops.select(counts, labels, 0), logits)
    nll = ops.sub(along_last(lse, logits), logits)
    z = along_last(ops.mul(ops.mul(lse, lse), z_loss), nll)
    own = ops.add(ops.mul(nll, 1.0 - label_smoothing), z)
    share = ops.mul(nll, label_smoothing / typeof(logits).shape[-1])
    each = ops.mul(ops.add(ops.select(hot, own, 0.0), share), along_last(row, nll))
    return reduce_sum(ops.select(along_last(counts, each), each, 0.0), (0,))


def _weights(loss: Any, counts: Any, reduction: str) -> tuple[Any, Any]:
    """(reduced loss, weight of each row in it)."""
    rows = typeof(loss)
    one = ops.exp(zeros(rows))
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


def _operand_gradients(grad: Any, row: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    """The gradients by x and weight, of one by the logits whose rows are multiplied by `row`."""
    grad = like(ops.mul(grad, along_last(row, grad)), x)
    dx = _product(grad, weight, 1, 0, typeof(x).dtype)
    return dx, _product(grad, x, 0, 0, typeof(weight).dtype)


def _product(x: Any, y: Any, dim_x: int, dim_y: int, dtype: Any) -> Array:
    return dot_general(x, y, (((dim_x,), (dim_y,)), ((), ())), preferred_element_type=dtype)


def _scaled(g: Any, ct: Any) -> Array:
    return ops.mul(g, broadcast_in_dim(like(ct, g), typeof(g).shape, ()))


_ROW_OPTIONS = ("ignore_index", "label_smoothing", "z_loss", "softcap")


def _row_dims(avals: Sequence[Any], rows: int, kept: bool = False) -> str:
    """The dimensions of x, weight, labels, with `rows` 4 a weight of each row, and perhaps a weight
    of each class; of the same as results, if they are `kept`."""
    same = "=" * kept
    return f"R d, {same}v d, R" + ", R" * (rows - 3) + f", {same}v" * (len(avals) - rows)


_OPTIONS = (*_ROW_OPTIONS, "reduction")


@fused("linear_cross_entropy", static=_OPTIONS, precision="low")
def linear_cross_entropy_reduced(
    x: Array, weight: Array, labels: Array, *, reduction: str, **options: Any
) -> Array:
    """The mean or the sum of the cross-entropies of the rows of x @ weight.T against labels."""
    loss, _, counts = _losses(_logits(x, weight), labels, (), **options)
    return _weights(loss, counts, reduction)[0]


@fused("linear_cross_entropy_forward", static=_OPTIONS)
def _linear_cross_entropy_forward(
    x: Any, weight: Any, labels: Any, *, reduction: str, **options: Any
) -> tuple[Any, ...]:
    """The loss, and with it its gradients: the logits are there now and need not be made again."""
    loss, grad, counts = _losses(_logits(x, weight), labels, (), **options)
    value, row = _weights(loss, counts, reduction)
    return (value,), _operand_gradients(grad, row, x, weight)


@fused("linear_cross_entropy_backward", static=_OPTIONS)
def _linear_cross_entropy_backward(
    residuals: Any, ct: Any, *, needs: Any, **_: Any
) -> tuple[Any, ...]:
    return tuple([_scaled(g, ct) for g in residuals])


linear_cross_entropy_reduced.defvjp(_linear_cross_entropy_forward, _linear_cross_entropy_backward)

_CHUNK_BYTES = 1 << 30  # of logits that are there at a time, as in the kernel
_CHUNK_ROWS = 4096  # and of rows the fewest, which keep products at full rate


def _sum_of_parts(
    axes: tuple[Hashable, ...], x: Any, weight: Any, labels: Any, *, reduction: str, **options: Any
) -> list[Any]:
    """The sum of the cross-entropies where `axes` of a mesh divide the classes, and each device has
    the rows of `weight` of its own: rows exchange three numbers each, and no weight.

    Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
    """

    def of_rows(x: Any, labels: Any) -> tuple[Any, tuple[()]]:
        loss, _, _ = _losses(_logits(x, weight), labels, (), **options, classes=_Classes(axes))
        return reduce_sum(loss, (0,)), ()

    total, _ = _over_chunks(of_rows, x, labels, _chunk_rows(x, weight))
    return [total]


def _gradients_of_parts(
    axes: tuple[Hashable, ...], x: Any, weight: Any, labels: Any, *, reduction: str, **options: Any
) -> list[Any]:
    """`_sum_of_parts` with its gradients by x, a term for each device of a sum over `axes`, and by
    the part of `weight`."""

    def of_rows(x: Any, labels: Any) -> tuple[Any, Any]:
        logits = _logits(x, weight)
        loss, grad, _ = _losses(logits, labels, (), **options, classes=_Classes(axes))
        grad = like(grad, x)
        # Sums over chunks are kept in float32: rounding after each would add up.
        of_weight = _product(grad, x, 0, 0, _wide_type(x))
        return (reduce_sum(loss, (0,)), of_weight), _product(grad, weight, 1, 0, typeof(x).dtype)

    (total, of_weight), of_x = _over_chunks(of_rows, x, labels, _chunk_rows(x, weight))
    return [total, of_x, like(of_weight, weight)]


def _chunk_rows(x: Any, weight: Any) -> int:
    classes = max(typeof(weight).shape[0], 1)
    return max(_CHUNK_ROWS, _CHUNK_BYTES // (classes * _wide_type(x).itemsize))


def _over_chunks(
    f: Callable[[Any, Any], tuple[Any, Any]], x: Any, labels: Any, most: int
) -> tuple[Any, Any]:
    """`f(rows of x, their labels) -> (sums, rows)` of at most so many rows at a time: the sums of
    all, and the rows of all. A loop holds one chunk, where a schedule may hold several."""
    rows = typeof(x).shape[0]
    if rows <= most:
        return f(x, labels)
    size = -(-rows // -(-rows // most))
    cut = lambda start, end: (slice_in_dim(x, start, end), slice_in_dim(labels, start, end))
    sums, first = f(*cut(0, size))
    made = [first]
    looped = rows // size - 1  # beside the first, which says how the sums vary over the mesh

    def step(carry: Any, chunk: Any) -> tuple[Any, Any]:
        own, made = f(*chunk)
        return tree.map(ops.add, carry, own), made

    if looped > 0:
        end = size * (1 + looped)
        split = lambda v: reshape(v, (looped, size, *typeof(v).shape[1:]))
        sums, several = scan(step, sums, tuple(map(split, cut(size, end))))
        made.append(tree.map(lambda v: reshape(v, (looped * size, *typeof(v).shape[2:])), several))
    if rows % size:
        sums, last = step(sums, cut(rows - rows % size, rows))
        made.append(last)
    return sums, tree.map(lambda *parts: concatenate(parts, 0), *made)


linear_cross_entropy_reduced.of_parts = _sum_of_parts
_linear_cross_entropy_forward.of_parts = _gradients_of_parts


@fused(
    "linear_cross_entropy_rows",
    static=_ROW_OPTIONS,
    precision="low",
    exact=(3,),
    dims=lambda avals, static: f"{_row_dims(avals, 3)} -> R",
)
def linear_cross_entropy_rows(
    x: Array, weight: Array, labels: Array, *class_weight: Array, **options: Any
) -> Array:
    """The cross-entropy of each row of x @ weight.T, with or without weights of classes."""
    return _losses(_logits(x, weight), labels, class_weight, **options)[0]


@fused(
    "linear_cross_entropy_rows_forward",
    static=_ROW_OPTIONS,
    dims=lambda avals, static: f"{_row_dims(avals, 3)} -> R, {_row_dims(avals, 3, kept=True)}",
)
def _rows_forward(
    x: Any, weight: Any, labels: Any, *class_weight: Any, **options: Any
) -> tuple[Any, ...]:
    loss = linear_cross_entropy_rows.reference(x, weight, labels, *class_weight, **options)
    return (loss,), (x, weight, labels, *class_weight)


@fused(
    "linear_cross_entropy_rows_backward",
    static=_ROW_OPTIONS,
    dims=lambda avals, static: (
        f"{_row_dims(avals[:-1], 3)}, R -> R d, v d"
        f"{', v' * (len(avals) > 4 and static['needs'][2])}"
    ),
)
def _rows_backward(residuals: Any, ct: Any, *, needs: Any, **options: Any) -> tuple[Any, ...]:
    x, weight, labels, *class_weight = residuals
    logits = _logits(x, weight)
    grad = _losses(logits, labels, class_weight, **options)[1]
    of_operands = _operand_gradients(grad, ct, x, weight)
    if not class_weight:
        return of_operands
    by_class = _class_weight_gradient(logits, labels, ct, **options) if needs[2] else None
    return *of_operands, by_class


linear_cross_entropy_rows.defvjp(_rows_forward, _rows_backward)


@fused(
    "linear_cross_entropy_weighted",
    static=_ROW_OPTIONS,
    precision="low",
    exact=(3, 4),
    dims=lambda avals, static: f"{_row_dims(avals, 4)} -> ",
)
def linear_cross_entropy_weighted(
    x: Array, weight: Array, labels: Array, row_weight: Array, *class_weight: Array, **options: Any
) -> Array:
    """The sum of row_weight times the cross-entropies of the rows of x @ weight.T."""
    loss = linear_cross_entropy_rows.reference(x, weight, labels, *class_weight, **options)
    return reduce_sum(ops.mul(loss, row_weight), (0,))


@fused(
    "linear_cross_entropy_weighted_forward",
    static=_ROW_OPTIONS,
    dims=lambda avals, static: (
        f"{_row_dims(avals, 4)} -> , R d, v d, R{', R d, =v d, R, R, =v' * (len(avals) > 4)}"
    ),
)
def _weighted_forward(
    x: Any, weight: Any, labels: Any, row_weight: Any, *class_weight: Any, **options: Any
) -> tuple[Any, ...]:
    loss, grad, _ = _losses(_logits(x, weight), labels, class_weight, **options)
    value = reduce_sum(ops.mul(loss, row_weight), (0,))
    operands = (x, weight, labels, row_weight) if class_weight else ()
    return (value,), (*_operand_gradients(grad, row_weight, x, weight), loss, operands)


@fused("linear_cross_entropy_weighted_backward", static=_ROW_OPTIONS)
def _weighted_backward(residuals: Any, ct: Any, *, needs: Any, **options: Any) -> tuple[Any, ...]:
    *gradients, operands = residuals
    scaled = [_scaled(g, ct) for g in gradients]
    if not operands:
        return tuple(scaled)
    if not needs[3]:
        return *scaled, None
    x, weight, labels, row = operands
    by_class = _class_weight_gradient(_logits(x, weight), labels, _scaled(row, ct), **options)
    return *scaled, by_class


linear_cross_entropy_weighted.defvjp(_weighted_forward, _weighted_backward)

_MASKED = -(2**31)  # the label of rows that `where` leaves out, if none is ignored
_BIAS_COLUMNS = 8  # rows of 16-bit numbers stay 16-byte aligned, as tensor cores load them


def linear_cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    class_weight: ArrayLike | None = None,
    row_weight: ArrayLike | None = None,
    where: ArrayLike | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
) -> Array:
    """Softmax cross-entropy of the linear layer x @ weight.T + bias, without keeping its logits.

        row_weight (sum over classes c of class_weight[c] target[c] (lse - logits[c])
                    + class_weight[label] z_loss lse**2),
        target = (1 - label_smoothing) one_hot(label) + label_smoothing / classes,
        lse = logsumexp(logits)

    `nn.cross_entropy` is the same loss of logits. With reduction "none" the backward pass makes the
    logits once more. Where the derivative by `class_weight` is asked for together with label
    smoothing, they are made as a whole.

    Args:
        x: floating array [..., features].
        weight: array [classes, features].
        labels: integer classes [...].
        bias: array [classes] that is added to the logits, as one more column of the product and in
            its precision; None: none.
        class_weight: array [classes], the weight of each class; None: all alike.
        row_weight: array [...], the weight of each row; None: all alike.
        where: boolean array that broadcasts to [...]: rows that count; None: all. The others may
            have any label, and infinite or NaN features.
        ignore_index: label of rows that do not count; None: every row counts (in torch -100 is
            the default).
        label_smoothing: share of the target that is spread evenly over all classes, in [0, 1].
        z_loss: adds z_loss * logsumexp(logits)**2 to the loss of a row.
        softcap: replaces the logits by softcap * tanh(logits / softcap); 0 does not.
        reduction: "mean", which divides by the number of rows that count, or by the sum of their
            weights and their labels' weights, "sum", or "none". A mean over nothing is 0.

    Returns:
        A scalar, or with "none" the loss of each row [...]; float32 for 16-bit operands.

    Raises:
        ShapeError: `weight` is no matrix over the features of `x`, `labels` does not have its
            leading dimensions, or another argument does not fit them or the classes.
        DTypeError: `labels` are not integers, `where` is not boolean, or another is not floating.
        IndexOutOfRange: a label of a row that counts is no class.
        ValueError: `reduction` is another, or `label_smoothing` is not in [0, 1].

    >>> x, weight = jnp.ones((2, 3)), jnp.zeros((4, 3))
    >>> nn.linear_cross_entropy(x, weight, jnp.array([0, 3]))
    Array(1.3862944, dtype=float32)
    >>> bias = jnp.array([1.0, 0.0, 0.0, 0.0])
    >>> nn.linear_cross_entropy(x, weight, jnp.array([0, -100]), bias=bias, ignore_index=-100)
    Array(0.7436684, dtype=float32)
    """
    x, weight = array(x), array(weight)
    labels = class_labels("linear_cross_entropy", labels)
    aval = typeof(x)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f'linear_cross_entropy: reduction is "mean", "sum" or "none", not {reduction!r}'
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(
            f"linear_cross_entropy: label_smoothing is in [0, 1], not {label_smoothing}"
        )
    if not aval.ndim or typeof(weight).ndim != 2 or typeof(weight).shape[1:] != aval.shape[-1:]:
        raise errors.ShapeError(
            f"linear_cross_entropy: x {aval} does not fit weight {typeof(weight)}"
        )
    shape, classes = aval.shape[:-1], typeof(weight).shape[:1]
    if typeof(labels).shape != shape:
        raise errors.ShapeError(
            f"linear_cross_entropy: labels {typeof(labels)} do not fit the rows of x {aval}"
        )
    of_bias = _checked("bias", bias, classes, typeof(weight).dtype)
    of_class = _checked("class_weight", class_weight, classes, _wide_type(x))
    of_row = _checked("row_weight", row_weight, shape, _wide_type(x))
    rows = reshape(x, (aval.size // max(aval.shape[-1], 1), aval.shape[-1]))
    flat: Array = reshape(labels, (typeof(labels).size,))
    if where is not None:
        mask = _mask(where, shape)
        flat, ignore_index = _masked(flat, mask, ignore_index)
        # The gradient by weight multiplies by these rows.
        rows = ops.select(broadcast_in_dim(mask, typeof(rows).shape, (0,)), rows, 0.0)
    table = weight
    if of_bias is not None:
        rows, table = _with_bias(rows, weight, of_bias)
    options: dict[str, Any] = {
        "ignore_index": ignore_index,
        "label_smoothing": float(label_smoothing),
        "z_loss": float(z_loss),
        "softcap": float(softcap),
    }
    plain = of_class is None and of_row is None
    if plain and reduction != "none":
        return linear_cross_entropy_reduced(rows, table, flat, reduction=reduction, **options)
    row, labelled, total = _row_weights(flat, of_row, of_class, ignore_index)
    # Without smoothing a class's weight is one of the rows that it is the label of.
    smoothed: list[Array] = [of_class] if of_class is not None and label_smoothing else []
    weights = row if smoothed else labelled
    if reduction == "none":
        loss = linear_cross_entropy_rows(rows, table, flat, *smoothed, **options)
        return reshape(loss if plain else ops.mul(loss, weights), shape)
    if reduction == "mean":
        total = ops.select(ops.ne(total, 0.0), total, 1.0)  # a batch that is ignored has loss 0
        weights = ops.div(weights, broadcast_in_dim(total, typeof(weights).shape, ()))
    return linear_cross_entropy_weighted(rows, table, flat, weights, *smoothed, **options)


def _checked(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if value is None:
        return None
    x = array(value)
    if not dtypes.is_float(typeof(x).dtype):
        raise errors.DTypeError(f"linear_cross_entropy: {name} is floating, got {typeof(x)}")
    if typeof(x).shape != shape:
        raise errors.ShapeError(
            f"linear_cross_entropy: {name} {typeof(x)} has to be {list(shape)}, one for each "
            f"{'row' if name == 'row_weight' else 'class'}"
        )
    return ops.convert(x, dtype)


def _mask(where: ArrayLike, shape: tuple[int, ...]) -> Any:
    """`where` for each row, in one dimension."""
    mask = array(where)
    aval = typeof(mask)
    if aval.dtype != dtypes.BOOL:
        raise errors.DTypeError(
            f"linear_cross_entropy: where= is a boolean mask of the rows that count, got {aval}\n"
            "  compare it, as in where=mask > 0"
        )
    try:
        fits = np.broadcast_shapes(aval.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise errors.ShapeError(
            f"linear_cross_entropy: where {aval} does not broadcast to the rows {list(shape)}"
        )
    dims = tuple(range(len(shape) - aval.ndim, len(shape)))
    ones = tuple([i for i, n in enumerate(aval.shape) if n == shape[dims[i]]])
    kept = reshape(mask, tuple([aval.shape[i] for i in ones]))
    mask = broadcast_in_dim(kept, shape, tuple([dims[i] for i in ones]))
    return reshape(mask, (typeof(mask).size,))


def _masked(labels: Any, mask: Any, ignore_index: int | None) -> tuple[Any, int]:
    """(labels of which those of other rows are ignored, the label that is)."""
    if ignore_index is None:
        # One that a row might have had stays an error.
        labels, ignore_index = ops.max(labels, _MASKED + 1), _MASKED
    return ops.select(mask, labels, ignore_index), ignore_index


def _with_bias(x: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """x and weight with columns more, whose product is the bias."""
    (rows, _), (classes, _) = typeof(x).shape, typeof(weight).shape
    rest = _BIAS_COLUMNS - 1
    ones = full((rows, 1), 1.0, typeof(x).dtype)
    x = concatenate([x, ones, full((rows, rest), 0.0, typeof(x).dtype)], 1)
    padding = full((classes, rest), 0.0, typeof(weight).dtype)
    return x, concatenate([weight, reshape(bias, (classes, 1)), padding], 1)


def _row_weights(
    labels: Any, row_weight: Any, class_weight: Any, ignore_index: int | None
) -> tuple[Any, Any, Any]:
    """(weights of rows, these times their labels' weights, the sum of the latter); 0 where a row
    does not count."""
    given = class_weight if row_weight is None else row_weight
    dtype = dtypes.F32 if given is None else typeof(given).dtype
    row = full(typeof(labels).shape, 1.0, dtype)
    if row_weight is not None:
        row = reshape(row_weight, typeof(labels).shape)
    counts = None if ignore_index is None else ops.ne(labels, ignore_index)
    if counts is not None:
        labels = ops.select(counts, labels, 0)
        row = ops.select(counts, row, 0.0)
    labelled = row if class_weight is None else ops.mul(row, take_rows(class_weight, labels))
    return row, labelled, reduce_sum(labelled, (0,))
