"""Cross-entropy of integer labels over logits in memory: the loss and its gradient, one kernel
each.

Rows of up to 16384 classes stay in registers. Longer rows are read once for log-sum-exp (online)
and once more, from the L2 cache where it reaches, for the gradient, which may overwrite the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.error_word import flag_error, flag_error_scalar
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import (
    PlanBuilder,
    accumulator,
    add_row_kernel,
    fits_registers,
    row_tile,
)
from genesis_fn.kernels.rows.softmax import exponential, online_logsumexp, online_tile, soft_cap


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """loss = lse - (1 - s) x[label] - s mean(x) + z_loss lse^2 for each row x of the logits.

    With `class_weights` w it is w[label] ((1 - s) (lse - x[label]) + z_loss lse^2) plus s times the
    mean of w (lse - x). s is `label_smoothing` and x = cap tanh(logits / cap) if `soft_cap` is not
    0. Rows labelled `ignore_index` count for nothing. A label outside [0, classes) is clamped and,
    if `site` > 0, reported in the error word.
    """

    rows: int
    classes: int
    dtype: str
    label_dtype: str = "i32"
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    soft_cap: float = 0.0
    class_weights: bool = False
    site: int = 0

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise ValueError("cross-entropy needs at least one class")


@triton.jit
def row_loss(lse, target, total, COLUMNS: tl.constexpr, SMOOTHING: tl.constexpr, Z: tl.constexpr):
    """The loss of rows from their log-sum-exp, the label's logit and the sum of logits."""
    loss = lse - target
    if SMOOTHING != 0.0:
        loss = lse - (1.0 - SMOOTHING) * target - SMOOTHING * (total / COLUMNS)
    if Z != 0.0:
        loss += Z * lse * lse
    return loss


@triton.jit
def weighted_row_loss(
    lse, target, total, own, mass, COLUMNS: tl.constexpr, SMOOTHING: tl.constexpr, Z: tl.constexpr
):
    """The loss of rows as `row_loss`, with the label's weight, and the sums of the weights and of
    the weighted logits."""
    loss = own * (1.0 - SMOOTHING) * (lse - target) + SMOOTHING / COLUMNS * (mass * lse - total)
    if Z != 0.0:
        loss += own * Z * lse * lse
    return loss


@triton.jit
def logit_gradient(
    raw,
    is_label,
    lse,
    factor,
    weight,
    own,
    mass,
    COLUMNS: tl.constexpr,
    SMOOTHING: tl.constexpr,
    Z: tl.constexpr,
    CAP: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """factor * d(row_loss)/d(raw logit), or of weighted_row_loss: `weight` is that of the logit's
    class."""
    # d lse / dx is the probability p, d (z lse^2) / dx is 2 z lse p, and the chain rule through the
    # soft cap, x = cap * tanh(raw / cap), multiplies by 1 - (x / cap)^2.
    x = soft_cap(raw, CAP)
    p = exponential(x - lse)
    if WEIGHTED:
        certain = own * (1.0 - SMOOTHING)
        slope = certain + SMOOTHING / COLUMNS * mass
        if Z != 0.0:
            slope += 2.0 * Z * own * lse
        d = p * slope - SMOOTHING / COLUMNS * weight
        d = tl.where(is_label, d - certain, d)
    else:
        if Z != 0.0:
            p = p * (1.0 + 2.0 * Z * lse)
        d = tl.where(is_label, p - (1.0 - SMOOTHING), p)
        if SMOOTHING != 0.0:
            d -= SMOOTHING / COLUMNS
    if CAP != 0.0:
        d = d * (1.0 - (x / CAP) * (x / CAP))
    return d * factor


@triton.jit
def row_factor(scale, cotangent, row, valid, lse, SCALE: tl.constexpr, BY_ROW: tl.constexpr):
    """The factor of each row's gradient: the row's cotangent if BY_ROW, else the scale of the loss;
    0 if not valid."""
    if BY_ROW:
        factor = tl.load(cotangent + row, valid, other=0.0)
    elif SCALE is None:
        factor = tl.load(scale)
    else:
        # A number by itself would be one of float32, whatever it multiplies.
        factor = tl.full((), SCALE, lse.dtype)
    return tl.where(valid, factor, 0.0)


@triton.jit
def cross_entropy_kernel(
    logits,
    labels,
    scale,
    cotangent,
    class_weights,
    lse,
    losses,
    dlogits,
    error,
    rows,
    COLUMNS: tl.constexpr,
    SCALE: tl.constexpr,
    HAS_IGNORE: tl.constexpr,
    IGNORE: tl.constexpr,
    SMOOTHING: tl.constexpr,
    Z_LOSS: tl.constexpr,
    CAP: tl.constexpr,
    SITE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOSS: tl.constexpr,
    SAVE: tl.constexpr,
    GRADIENT: tl.constexpr,
    BY_ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Losses, log-sum-exps and gradients (LOSS, SAVE, GRADIENT) of rows that fit in registers."""
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    exists = row < rows
    label = tl.load(labels + row, exists, other=0)
    valid = exists
    if HAS_IGNORE:
        valid = exists & (label != IGNORE)
    # Reported, then clamped: the kernel must not read out of bounds whatever the labels are.
    flag_error(error, valid & ((label < 0) | (label >= COLUMNS)), label, SITE)
    label = tl.minimum(tl.maximum(label, 0), COLUMNS - 1).to(tl.int32)
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    inside = column < COLUMNS
    base = (row.to(tl.int64) * STRIDE if WIDE else row * STRIDE)[:, None]
    mask = exists[:, None] & inside
    raw = up(tl.load(logits + base + column, mask, other=float("-inf")))
    # The label's logit is selected from the registers: no second load.
    is_label = column == label[:, None]
    weight, own, mass = 1.0, 1.0, 1.0
    if WEIGHTED:
        weight = tl.load(class_weights + column, inside, other=0.0)
        own = tl.load(class_weights + label, exists, other=0.0)
        mass = tl.sum(weight, 1)
    if LOSS:
        x = tl.where(inside, soft_cap(raw, CAP), float("-inf"))
        top = tl.max(x, 1)
        z = top + tl.log(tl.sum(exponential(x - top[:, None]), 1))
        target = tl.sum(tl.where(is_label, x, 0.0), 1)
        if WEIGHTED:
            total = tl.sum(tl.where(weight != 0.0, weight * x, 0.0), 1)
            loss = weighted_row_loss(z, target, total, own, mass, COLUMNS, SMOOTHING, Z_LOSS)
        else:
            total = tl.sum(tl.where(inside, x, 0.0), 1)
            loss = row_loss(z, target, total, COLUMNS, SMOOTHING, Z_LOSS)
        tl.store(losses + row, tl.where(valid, loss, 0.0), exists)
        if SAVE:
            tl.store(lse + row, z, exists)
    else:
        z = tl.load(lse + row, exists, other=0.0)
    if GRADIENT:
        factor = row_factor(scale, cotangent, row, valid, z, SCALE, BY_ROW)[:, None]
        if WEIGHTED:
            own, mass = own[:, None], mass[:, None]  # pyright: ignore[reportIndexIssue]  tensors where WEIGHTED
        d = logit_gradient(
            raw, is_label, z[:, None], factor, weight, own, mass,
            COLUMNS, SMOOTHING, Z_LOSS, CAP, WEIGHTED,
        )  # fmt: skip
        # Not 0 * d: an ignored row may hold inf or NaN.
        d = tl.where(valid[:, None], d, 0.0)
        tl.store(dlogits + base + column, cast(d, dlogits.dtype.element_ty), mask)


@triton.jit
def cross_entropy_looped_kernel(
    logits,
    labels,
    scale,
    cotangent,
    class_weights,
    lse,
    losses,
    dlogits,
    error,
    COLUMNS: tl.constexpr,
    SCALE: tl.constexpr,
    HAS_IGNORE: tl.constexpr,
    IGNORE: tl.constexpr,
    SMOOTHING: tl.constexpr,
    Z_LOSS: tl.constexpr,
    CAP: tl.constexpr,
    SITE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOSS: tl.constexpr,
    SAVE: tl.constexpr,
    GRADIENT: tl.constexpr,
    BY_ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """`cross_entropy_kernel` for rows too long for registers: a row a program, read in blocks."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    valid = label == label
    if HAS_IGNORE:
        valid = label != IGNORE
    flag_error_scalar(error, valid & ((label < 0) | (label >= COLUMNS)), label, SITE)
    label = tl.minimum(tl.maximum(label, 0), COLUMNS - 1).to(tl.int32)
    logits += row * STRIDE
    own, mass = 1.0, 1.0
    if WEIGHTED:
        own = tl.load(class_weights + label)
    if LOSS:
        # Before the gradient overwrites it.
        target = soft_cap(up(tl.load(logits + label)), CAP)
        top, sum_exp, total, mass = online_logsumexp(
            logits, COLUMNS, CAP, LANES, VECTOR, DOUBLE, SMOOTHING != 0.0, class_weights, WEIGHTED
        )
        z = top + tl.log(sum_exp)
        if WEIGHTED:
            loss = weighted_row_loss(z, target, total, own, mass, COLUMNS, SMOOTHING, Z_LOSS)
        else:
            loss = row_loss(z, target, total, COLUMNS, SMOOTHING, Z_LOSS)
        tl.store(losses + row, tl.where(valid, loss, 0.0))
        if SAVE:
            tl.store(lse + row, z)
    else:
        z = tl.load(lse + row)
    if GRADIENT:
        dlogits += row * STRIDE
        factor = row_factor(scale, cotangent, row, valid, z, SCALE, BY_ROW)
        lane = tl.arange(0, LANES * VECTOR)
        # The label's logit was read above by every thread: no element may be overwritten before.
        tl.debug_barrier()
        for start in range(0, COLUMNS, LANES * VECTOR):
            column = start + lane
            inside = column < COLUMNS
            raw = up(tl.load(logits + column, inside, other=0.0, eviction_policy="evict_first"))
            weight = 1.0
            if WEIGHTED:
                weight = tl.load(class_weights + column, inside, other=0.0)
            d = logit_gradient(
                raw, column == label, z, factor, weight, own, mass,
                COLUMNS, SMOOTHING, Z_LOSS, CAP, WEIGHTED,
            )  # fmt: skip
            d = tl.where(valid, d, 0.0)
            tl.store(dlogits + column, cast(d, dlogits.dtype.element_ty), inside)


def add_row_losses(
    builder: PlanBuilder,
    spec: CrossEntropy,
    rows: int,
    buffers: dict[str, BufferArg],
    *,
    scale: float | None = 1.0,
    stride: int | None = None,
) -> None:
    """Append the row kernel over `rows` rows. `buffers` are its operands and results by name.

    `logits` and `labels` are always read. With `losses` it writes these, with `lse` also each row's
    log-sum-exp, and with `dlogits` also the gradient of their sum times `scale` (None: times the
    number in the buffer `scale`), or with a `cotangent` of each row that of their sum times these.
    Without `losses` it writes `dlogits`, from `lse` and `cotangent`, without class weights.
    `class_weights` are read if the spec has them, `error` is needed if `spec.site` > 0. Rows of
    logits are `stride` elements apart, by default `classes`.
    """
    # A pointer that a variant does not use must still be some buffer's.
    unused = buffers["logits"]
    names = (
        "logits", "labels", "scale", "cotangent", "class_weights", "lse", "losses", "dlogits",
        "error",
    )  # fmt: skip
    loss, gradient = "losses" in buffers, "dlogits" in buffers
    stride = stride or spec.classes
    constants = {
        "COLUMNS": spec.classes,
        "SCALE": scale,
        "HAS_IGNORE": spec.ignore_index is not None,
        "IGNORE": spec.ignore_index or 0,
        "SMOOTHING": spec.label_smoothing,
        "Z_LOSS": spec.z_loss,
        "CAP": spec.soft_cap,
        "SITE": spec.site,
        "WEIGHTED": spec.class_weights,
        "LOSS": loss,
        "SAVE": loss and "lse" in buffers,
        "GRADIENT": gradient,
        "BY_ROW": "cotangent" in buffers,
        "STRIDE": stride,
    }
    # With a gradient, few rows at a time: the second read of a row then finds it in the cache.
    warps = 32 if loss and gradient else 8
    fits = fits_registers(spec.classes, spec.dtype)
    add_row_kernel(
        builder,
        (cross_entropy_kernel, cross_entropy_looped_kernel),
        (rows, stride),
        {name: buffers.get(name, unused) for name in names},
        constants,
        row_tile(spec.classes, spec.dtype) if fits else None,
        online_tile(spec.dtype, warps) | {"DOUBLE": spec.dtype == "fp64"},
        warps,
    )


def plan_cross_entropy_forward(spec: CrossEntropy, target: Target) -> Plan:
    """logits, labels -> losses, lse[, error]: each row's loss and log-sum-exp.

    Both are fp32 (fp64 for fp64 logits). The error word is there if `spec.site` > 0.
    """
    statistic = accumulator(spec.dtype)
    builder = PlanBuilder(2, 2 + (spec.site > 0))
    buffers = {
        "logits": BufferArg(0, spec.dtype),
        "labels": BufferArg(1, spec.label_dtype),
        "losses": BufferArg(2, statistic),
        "lse": BufferArg(3, statistic),
    }
    if spec.site:
        buffers["error"] = BufferArg(4, "i64")
    add_row_losses(builder, spec, spec.rows, buffers)
    return builder.build()


def plan_cross_entropy_backward(spec: CrossEntropy, target: Target) -> Plan:
    """logits, labels, lse, cotangent -> dlogits, with the logits' type.

    The cotangent has the losses' shape and type.
    """
    statistic = accumulator(spec.dtype)
    builder = PlanBuilder(4, 1)
    buffers = {
        "logits": BufferArg(0, spec.dtype),
        "labels": BufferArg(1, spec.label_dtype),
        "lse": BufferArg(2, statistic),
        "cotangent": BufferArg(3, statistic),
        "dlogits": BufferArg(4, spec.dtype),
    }
    # The forward has already reported what is wrong with the labels.
    add_row_losses(builder, replace(spec, site=0), spec.rows, buffers)
    return builder.build()
