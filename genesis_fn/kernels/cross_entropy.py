"""Cross-entropy of integer labels over given logits: the loss and its gradient, one kernel each.

Rows up to `RESIDENT` classes stay in registers. Longer rows are read once for log-sum-exp (online)
and once more, from the L2 cache where it reaches, for the gradient, which may overwrite the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl

from genesis_fn.kernels.error_word import flag_error, flag_error_scalar
from genesis_fn.kernels.language import cast, up
from genesis_fn.kernels.launch import Buf, Plan, Scalar
from genesis_fn.kernels.planning import INT32_MAX, PlanBuilder, accumulator, cdiv, row_tile
from genesis_fn.kernels.softmax import exponential, online_logsumexp, online_tile, soft_cap

RESIDENT = 16384
REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """loss = lse - (1 - s) x[label] - s mean(x) + z_loss lse^2 for each row x of the logits.

    s is `label_smoothing` and x = cap tanh(logits / cap) if `soft_cap` is not 0. Rows labelled
    `ignore_index` count for nothing; "mean" divides by the other rows, or by 1 if there is none.
    A label outside [0, classes) is clamped and, if `site` > 0, reported in the error word.
    """

    rows: int
    classes: int
    dtype: str
    label_dtype: str = "i32"
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    soft_cap: float = 0.0
    reduction: str = "mean"
    site: int = 0

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"reduction is one of {REDUCTIONS}, not {self.reduction!r}")
        if self.classes < 1:
            raise ValueError("cross-entropy needs at least one class")

    @property
    def scale(self) -> float | None:
        """The factor of every row's loss, or None where the labels decide it."""
        if self.reduction != "mean":
            return 1.0
        return 1.0 / max(self.rows, 1) if self.ignore_index is None else None

    @property
    def resident(self) -> bool:
        """Whether a row fits in the registers of one program."""
        return self.classes <= (RESIDENT // 4 if self.dtype == "fp64" else RESIDENT)

    @property
    def formula(self) -> dict[str, Any]:
        """The constants that every row kernel takes."""
        return {
            "COLUMNS": self.classes,
            "SCALE": self.scale,
            "HAS_IGNORE": self.ignore_index is not None,
            "IGNORE": self.ignore_index or 0,
            "SMOOTHING": self.label_smoothing,
            "Z_LOSS": self.z_loss,
            "CAP": self.soft_cap,
            "SITE": self.site,
        }


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
def logit_gradient(
    raw,
    is_label,
    lse,
    factor,
    COLUMNS: tl.constexpr,
    SMOOTHING: tl.constexpr,
    Z: tl.constexpr,
    CAP: tl.constexpr,
):
    """factor * d(row_loss)/d(raw logit)."""
    x = soft_cap(raw, CAP)
    p = exponential(x - lse)
    if Z != 0.0:
        p = p * (1.0 + 2.0 * Z * lse)
    d = tl.where(is_label, p - (1.0 - SMOOTHING), p)
    if SMOOTHING != 0.0:
        d -= SMOOTHING / COLUMNS
    if CAP != 0.0:
        d = d * (1.0 - (x / CAP) * (x / CAP))
    return d * factor


@triton.jit
def row_factor(scale, cotangent, row, valid, SCALE: tl.constexpr, COTANGENT: tl.constexpr):
    """What each row's gradient is multiplied by: 1 / count times the cotangent, 0 if not valid."""
    factor = tl.load(scale) if SCALE is None else SCALE
    if COTANGENT == "scalar":
        factor = factor * tl.load(cotangent)
    elif COTANGENT == "rows":
        factor = factor * tl.load(cotangent + row, valid, other=0.0)
    return tl.where(valid, factor, 0.0)


@triton.jit
def cross_entropy_kernel(
    logits,
    labels,
    scale,
    cotangent,
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
    LOSS: tl.constexpr,
    SAVE: tl.constexpr,
    GRADIENT: tl.constexpr,
    COTANGENT: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Losses, log-sum-exps and gradients, as asked, of rows that fit in registers."""
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    exists = row < rows
    label = tl.load(labels + row, exists, other=0)
    valid = exists
    if HAS_IGNORE:
        valid = exists & (label != IGNORE)
    flag_error(error, valid & ((label < 0) | (label >= COLUMNS)), label, SITE)
    label = tl.minimum(tl.maximum(label, 0), COLUMNS - 1).to(tl.int32)
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    inside = column < COLUMNS
    base = (row.to(tl.int64) * STRIDE if WIDE else row * STRIDE)[:, None]
    mask = exists[:, None] & inside
    raw = up(tl.load(logits + base + column, mask, other=float("-inf")))
    is_label = column == label[:, None]
    if LOSS:
        x = tl.where(inside, soft_cap(raw, CAP), float("-inf"))
        top = tl.max(x, 1)
        z = top + tl.log(tl.sum(exponential(x - top[:, None]), 1))
        target = tl.sum(tl.where(is_label, x, 0.0), 1)
        total = tl.sum(tl.where(inside, x, 0.0), 1)
        loss = row_loss(z, target, total, COLUMNS, SMOOTHING, Z_LOSS)
        tl.store(losses + row, tl.where(valid, loss, 0.0), exists)
        if SAVE:
            tl.store(lse + row, z, exists)
    else:
        z = tl.load(lse + row, exists, other=0.0)
    if GRADIENT:
        factor = row_factor(scale, cotangent, row, valid, SCALE, COTANGENT)[:, None]
        d = logit_gradient(raw, is_label, z[:, None], factor, COLUMNS, SMOOTHING, Z_LOSS, CAP)
        # Not 0 * d: an ignored row may hold inf or NaN.
        d = tl.where(valid[:, None], d, 0.0)
        tl.store(dlogits + base + column, cast(d, dlogits.dtype.element_ty), mask)


@triton.jit
def cross_entropy_looped_kernel(
    logits,
    labels,
    scale,
    cotangent,
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
    LOSS: tl.constexpr,
    SAVE: tl.constexpr,
    GRADIENT: tl.constexpr,
    COTANGENT: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """As `cross_entropy_kernel`, of one long row a program, which is read in blocks."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    valid = label == label
    if HAS_IGNORE:
        valid = label != IGNORE
    flag_error_scalar(error, valid & ((label < 0) | (label >= COLUMNS)), label, SITE)
    label = tl.minimum(tl.maximum(label, 0), COLUMNS - 1).to(tl.int32)
    logits += row * STRIDE
    if LOSS:
        # Before the gradient overwrites it.
        target = soft_cap(up(tl.load(logits + label)), CAP)
        top, sum_exp, total = online_logsumexp(
            logits, COLUMNS, CAP, LANES, VECTOR, DOUBLE, SMOOTHING != 0.0
        )
        z = top + tl.log(sum_exp)
        loss = row_loss(z, target, total, COLUMNS, SMOOTHING, Z_LOSS)
        tl.store(losses + row, tl.where(valid, loss, 0.0))
        if SAVE:
            tl.store(lse + row, z)
    else:
        z = tl.load(lse + row)
    if GRADIENT:
        dlogits += row * STRIDE
        factor = row_factor(scale, cotangent, row, valid, SCALE, COTANGENT)
        lane = tl.arange(0, LANES * VECTOR)
        # The label's logit was read above by every thread: no element may be overwritten before.
        tl.debug_barrier()
        for start in range(0, COLUMNS, LANES * VECTOR):
            column = start + lane
            inside = column < COLUMNS
            raw = up(tl.load(logits + column, inside, other=0.0, eviction_policy="evict_first"))
            d = logit_gradient(raw, column == label, z, factor, COLUMNS, SMOOTHING, Z_LOSS, CAP)
            d = tl.where(valid, d, 0.0)
            tl.store(dlogits + column, cast(d, dlogits.dtype.element_ty), inside)


@triton.jit
def count_labels_kernel(
    labels, scale, ROWS: tl.constexpr, IGNORE: tl.constexpr, BLOCK: tl.constexpr
):
    """scale = 1 / the number of labels other than IGNORE, which counts as one if there are none."""
    lane = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, ROWS, BLOCK):
        at = start + lane
        label = tl.load(labels + at, at < ROWS, other=IGNORE)
        count += (label != IGNORE).to(tl.int32)
    total = tl.maximum(tl.sum(count, 0), 1).to(scale.dtype.element_ty)
    tl.store(scale, 1.0 / total)


@triton.jit
def sum_losses_kernel(
    losses, scale, loss, ROWS: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr
):
    """loss = scale * the sum of the rows' losses, in a fixed order."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), losses.dtype.element_ty)
    for start in range(0, ROWS, BLOCK):
        at = start + lane
        total += tl.load(losses + at, at < ROWS, other=0.0)
    factor = tl.load(scale) if SCALE is None else SCALE
    tl.store(loss, tl.sum(total, 0) * factor)


def add_scale(builder: PlanBuilder, spec: CrossEntropy, labels: Buf) -> Buf:
    """The buffer that holds 1 / (number of labels that count), computed if the spec needs it."""
    if spec.scale is not None:
        return labels
    scale = builder.workspace(1, accumulator(spec.dtype))
    builder.launch(
        count_labels_kernel,
        (1,),
        {"labels": labels, "scale": scale},
        {"ROWS": spec.rows, "IGNORE": spec.ignore_index, "BLOCK": 4096},
        num_warps=8,
    )
    return scale


def add_row_losses(
    builder: PlanBuilder,
    spec: CrossEntropy,
    rows: int,
    buffers: dict[str, Buf],
    *,
    loss: bool,
    save: bool = False,
    cotangent: str | None = None,
    stride: int | None = None,
    warps: int | None = None,
) -> None:
    """Append the row kernel over `rows` rows: losses and lse if `loss`, dlogits if `cotangent`.

    `buffers` names logits, labels and whichever of scale, cotangent, lse, losses, dlogits and error
    are used. `cotangent` is "one", "scalar" or "rows", or None for no gradient. `stride` elements
    lie between rows of logits, if not `classes`.
    """
    unused = buffers["logits"]
    names = ("logits", "labels", "scale", "cotangent", "lse", "losses", "dlogits", "error")
    arguments: dict[str, Any] = {name: buffers.get(name, unused) for name in names}
    stride = stride or spec.classes
    flags = {"LOSS": loss, "SAVE": save, "GRADIENT": cotangent is not None}
    flags |= {"COTANGENT": cotangent, "STRIDE": stride}
    if spec.resident:
        row_block, column_block, tile_warps = row_tile(spec.classes, spec.dtype)
        tile = {"ROW_BLOCK": row_block, "COLUMN_BLOCK": column_block}
        builder.launch(
            cross_entropy_kernel,
            (cdiv(rows, row_block),),
            arguments | {"rows": Scalar(rows)},
            spec.formula | flags | tile | {"WIDE": rows * stride > INT32_MAX},
            num_warps=tile_warps,
        )
        return
    if warps is None:
        # With a gradient, few rows at a time: the second read of a row then finds it in the cache.
        warps = 32 if loss and cotangent else 8
    builder.launch(
        cross_entropy_looped_kernel,
        (rows,),
        arguments,
        spec.formula | flags | online_tile(spec.dtype, warps) | {"DOUBLE": spec.dtype == "fp64"},
        num_warps=warps,
    )


def add_reduction(
    builder: PlanBuilder, spec: CrossEntropy, losses: Buf, scale: Buf, loss: Buf
) -> None:
    """Append loss = sum of losses * scale, in a fixed order."""
    builder.launch(
        sum_losses_kernel,
        (1,),
        {"losses": losses, "scale": scale, "loss": loss},
        {"ROWS": spec.rows, "SCALE": spec.scale, "BLOCK": 4096},
        num_warps=8,
    )


def plan_cross_entropy_forward(spec: CrossEntropy) -> Plan:
    """logits, labels -> loss, lse[, error]: the reduced loss and each row's log-sum-exp.

    loss is one element, or `rows` for "none"; it and lse are fp32 (fp64 for fp64 logits). The error
    word is there if `spec.site` > 0.
    """
    statistic = accumulator(spec.dtype)
    builder = PlanBuilder(2, 2 + (spec.site > 0))
    logits, labels = Buf(0, spec.dtype), Buf(1, spec.label_dtype)
    loss, lse, error = Buf(2, statistic), Buf(3, statistic), Buf(4, "i64")
    losses = loss
    if spec.reduction != "none":
        losses = builder.workspace(spec.rows, statistic)
    buffers = {"logits": logits, "labels": labels, "lse": lse, "losses": losses}
    if spec.site:
        buffers["error"] = error
    add_row_losses(builder, spec, spec.rows, buffers, loss=True, save=True)
    if spec.reduction != "none":
        add_reduction(builder, spec, losses, add_scale(builder, spec, labels), loss)
    return builder.build()


def plan_cross_entropy_backward(spec: CrossEntropy) -> Plan:
    """logits, labels, lse, cotangent -> dlogits, with the logits' type.

    The cotangent has the loss's shape and type.
    """
    statistic = accumulator(spec.dtype)
    builder = PlanBuilder(4, 1)
    labels = Buf(1, spec.label_dtype)
    buffers = {
        "logits": Buf(0, spec.dtype),
        "labels": labels,
        "scale": add_scale(builder, spec, labels),
        "lse": Buf(2, statistic),
        "cotangent": Buf(3, statistic),
        "dlogits": Buf(4, spec.dtype),
    }
    # The forward has already reported what is wrong with the labels.
    silent = replace(spec, site=0)
    cotangent = "rows" if spec.reduction == "none" else "scalar"
    add_row_losses(builder, silent, spec.rows, buffers, loss=False, cotangent=cotangent)
    return builder.build()
