"""Cross-entropy of a linear layer, x @ weight.T, without ever holding all of its logits.

Rows are taken in chunks, through one buffer of logits: their product, one row kernel that writes
the losses and overwrites the logits with their gradient, then the products for dx and, accumulated
in float32, dweight. Chunks are long enough to keep the products at full rate.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.matmul.matmul import plan_matmul
from genesis_fn.kernels.matmul.spec import MatmulSpec
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder, accumulator, cdiv
from genesis_fn.kernels.rows.cross_entropy import CrossEntropy, add_row_losses

LOGITS_BYTES = 1 << 30  # of one chunk's logits
REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True, slots=True)
class LinearCrossEntropy:
    """The reduced `loss` of the rows of x @ weight.T, and with `gradients` its gradients.

    x is [rows, features] and weight [classes, features], both of the type of the loss's logits.
    "mean" divides by the number of rows that are not ignored, or by 1 if there is none. "none" is
    the loss of each row; its gradients are those of the sum of the losses times cotangents.
    `row_weights` are these cotangents, and with "sum" weights of the losses in it.
    `chunk_rows` is chosen for about 1 GiB of logits, and at least 4096 rows, if None.
    """

    loss: CrossEntropy
    features: int
    reduction: str = "mean"
    gradients: bool = True
    precision: str = "default"
    chunk_rows: int | None = None
    row_weights: bool = False

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"reduction is one of {REDUCTIONS}, not {self.reduction!r}")
        if self.loss.rows < 1:
            raise ValueError("linear cross-entropy needs at least one row")
        if self.row_weights != (self.reduction == "none" and self.gradients) and (
            self.reduction != "sum"
        ):
            raise ValueError(
                'weights of rows are for reduction="sum", and the gradients of "none" need them'
            )

    @property
    def operands(self) -> tuple[str, ...]:
        """What the plan reads."""
        optional = {"row_weights": self.row_weights, "class_weights": self.loss.class_weights}
        return ("x", "weight", "labels", *[name for name, read in optional.items() if read])

    @property
    def results(self) -> tuple[str, ...]:
        """What the plan writes: with weights of rows and gradients also each row's loss, which is
        the gradient by its weight."""
        gradients = ("dx", "dweight") if self.gradients else ()
        if self.reduction == "none":
            return gradients or ("losses",)
        rows = ("losses",) if self.gradients and self.row_weights else ()
        return ("loss", *gradients, *rows)

    @property
    def scale(self) -> float | None:
        """The factor of every row's loss, or None where the labels decide it."""
        if self.reduction != "mean":
            return 1.0
        return 1.0 / self.loss.rows if self.loss.ignore_index is None else None

    @property
    def stride(self) -> int:
        """Elements between two rows of the logits buffer: a multiple of 128 bytes."""
        unit = 128 // ITEMSIZE[self.loss.dtype]
        return cdiv(self.loss.classes, unit) * unit

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """(first row, rows) of each chunk."""
        rows = self.loss.rows
        most = self.chunk_rows
        if most is None:
            most = max(4096, LOGITS_BYTES // (self.stride * ITEMSIZE[self.loss.dtype]))
        count = cdiv(rows, most)
        # Whole tiles, and buffers at 16-byte offsets whatever the types.
        size = rows if count == 1 else cdiv(cdiv(rows, count), 128) * 128
        return tuple((start, min(size, rows - start)) for start in range(0, rows, size))


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
    losses,
    scale,
    row_weights,
    loss,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr,
    BY_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """loss = scale * the sum of the rows' losses, times their weights if BY_ROW, in a fixed
    order."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), losses.dtype.element_ty)
    for start in range(0, ROWS, BLOCK):
        at = start + lane
        each = tl.load(losses + at, at < ROWS, other=0.0)
        if BY_ROW:
            each *= tl.load(row_weights + at, at < ROWS, other=0.0)
        total += each
    total = tl.sum(total, 0)
    # Not through a variable: a number by itself would be one of float32, whatever it multiplies.
    tl.store(loss, total * tl.load(scale) if SCALE is None else total * SCALE)


def plan_linear_cross_entropy(spec: LinearCrossEntropy, target: Target) -> Plan:
    """x, weight, labels[, row_weights][, class_weights] -> `spec.results`[, error].

    loss is one element, fp32 (fp64 for fp64 logits), as are losses and the weights; dx and dweight
    have the type of x and weight. The error word is there if `loss.site` > 0.
    """
    loss_spec, dtype, statistic = spec.loss, spec.loss.dtype, accumulator(spec.loss.dtype)
    kinds = {"x": dtype, "weight": dtype, "labels": loss_spec.label_dtype}
    kinds |= {"dx": dtype, "dweight": dtype}
    names = (*spec.operands, *spec.results)
    given = {name: BufferArg(i, kinds.get(name, statistic)) for i, name in enumerate(names)}
    builder = PlanBuilder(len(spec.operands), len(spec.results) + (loss_spec.site > 0))
    x, weight, labels = (given[name] for name in ("x", "weight", "labels"))
    error = BufferArg(len(names), "i64")

    chunks = spec.chunks
    logits = builder.workspace(chunks[0][1] * spec.stride, dtype)
    losses = given.get("losses") or builder.workspace(loss_spec.rows, statistic)
    # Sums over chunks are kept in float32: rounding after each would add up.
    dx, dweight = given.get("dx", x), given.get("dweight", weight)
    dweight_sum = dweight
    if spec.gradients and len(chunks) > 1 and dtype != statistic:
        dweight_sum = builder.workspace(loss_spec.classes * spec.features, statistic)
    # A mean over rows that are not ignored is known on the device only.
    scale = labels
    if spec.scale is None:
        scale = builder.workspace(1, statistic)
        builder.launch(
            count_labels_kernel,
            (1,),
            {"labels": labels, "scale": scale},
            {"ROWS": loss_spec.rows, "IGNORE": loss_spec.ignore_index, "BLOCK": 4096},
            num_warps=8,
        )

    def add_product(name: str, buffers: tuple[BufferArg, ...], rows: int, **options: Any) -> None:
        builder.include(plan_matmul(product(spec, name, rows, **options), target), buffers)

    for i, (start, rows) in enumerate(chunks):
        x_rows = _advance(x, start * spec.features)
        add_product("logits", (x_rows, weight, logits), rows)
        buffers = {
            "logits": logits,
            "labels": _advance(labels, start),
            "scale": scale,
            "losses": _advance(losses, start),
        }
        if loss_spec.class_weights:
            buffers["class_weights"] = given["class_weights"]
        # In place: a chunk's logits are not needed after their gradient.
        if spec.gradients:
            buffers["dlogits"] = logits
            if spec.row_weights:
                buffers["cotangent"] = _advance(given["row_weights"], start)
        if loss_spec.site:
            buffers["error"] = error
        add_row_losses(builder, loss_spec, rows, buffers, scale=spec.scale, stride=spec.stride)
        if not spec.gradients:
            continue
        add_product("dx", (logits, weight, _advance(dx, start * spec.features)), rows)
        buffers_of_sum: tuple[BufferArg, ...] = (logits, x_rows, dweight_sum)
        options: dict[str, Any] = {"out_dtype": dweight_sum.dtype, "accumulate": i > 0}
        if dweight_sum != dweight and i == len(chunks) - 1:
            # The last chunk adds what the others came to and rounds once.
            buffers_of_sum = (logits, x_rows, dweight_sum, dweight)
            options = {"out_dtype": dtype, "residual": dweight_sum.dtype}
        add_product("dweight", buffers_of_sum, rows, **options)
    if "loss" not in given:
        return builder.build()
    weights = given.get("row_weights", labels)
    builder.launch(
        sum_losses_kernel,
        (1,),
        {"losses": losses, "scale": scale, "row_weights": weights, "loss": given["loss"]},
        {"ROWS": loss_spec.rows, "SCALE": spec.scale, "BY_ROW": spec.row_weights, "BLOCK": 4096},
        num_warps=8,
    )
    return builder.build()


def _advance(buffer: BufferArg, elements: int) -> BufferArg:
    return replace(buffer, offset=buffer.offset + elements * ITEMSIZE[buffer.dtype])


def product(
    spec: LinearCrossEntropy,
    name: str,
    rows: int,
    *,
    out_dtype: str | None = None,
    residual: str | None = None,
    accumulate: bool = False,
) -> MatmulSpec:
    """The matrix product "logits", "dx" or "dweight" of a chunk of `rows` rows."""
    classes, features, dtype = spec.loss.classes, spec.features, spec.loss.dtype
    matmul = functools.partial(
        MatmulSpec,
        lhs_dtype=dtype,
        rhs_dtype=dtype,
        out_dtype=out_dtype or dtype,
        precision=spec.precision,
    )
    if name == "logits":
        return matmul(rows, classes, features, rhs_transposed=True, out_strides=(spec.stride, 1))
    if name == "dx":
        return matmul(rows, features, classes, lhs_strides=(spec.stride, 1))
    return matmul(
        classes,
        features,
        rows,
        lhs_strides=(1, spec.stride),
        accumulate=accumulate,
        residual=residual,
    )
