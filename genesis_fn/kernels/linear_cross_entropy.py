"""Cross-entropy of a linear layer, x @ weight.T, without ever holding all of its logits.

Rows are taken in chunks, through one buffer of logits: their product, one row kernel that writes
the losses and overwrites the logits with their gradient, then the products for dx and, accumulated
in float32, dweight. Chunks are long enough to keep the products at full rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.cross_entropy import (
    CrossEntropy,
    add_reduction,
    add_row_losses,
    add_scale,
)
from genesis_fn.kernels.launch import Buf, Plan
from genesis_fn.kernels.matmul import plan_matmul
from genesis_fn.kernels.matmul_spec import Config, Epilogue, MatmulSpec
from genesis_fn.kernels.matmul_tuning import fitted
from genesis_fn.kernels.planning import ITEMSIZE, PlanBuilder, accumulator, cdiv

LOGITS_BYTES = 1 << 30
COTANGENTS = ("one", "scalar", "rows")


@dataclass(frozen=True, slots=True)
class LinearCrossEntropy:
    """`loss` (a `CrossEntropy`, whose dtype is the logits') of x @ weight.T.

    x is [rows, features] of `dtype`, weight [classes, features] of `weight_dtype`. The gradients,
    if asked for, are those of the loss times the `cotangent`: "one", or an input that is one number
    ("scalar") or one for each row ("rows", the only choice for the reduction "none").
    `chunk_rows` is chosen for about 1 GiB of logits, and at least 4096 rows, if None.
    """

    loss: CrossEntropy
    features: int
    dtype: str = "bf16"
    weight_dtype: str = "bf16"
    gradients: bool = True
    cotangent: str = "one"
    weight_gradient_dtype: str | None = None
    precision: str = "default"
    chunk_rows: int | None = None

    def __post_init__(self) -> None:
        if self.cotangent not in COTANGENTS:
            raise ValueError(f"cotangent is one of {COTANGENTS}, not {self.cotangent!r}")
        if self.gradients and self.loss.reduction == "none" and self.cotangent != "rows":
            raise ValueError('gradients of unreduced losses need cotangent="rows"')
        if self.loss.rows < 1:
            raise ValueError("linear cross-entropy needs at least one row")

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


def plan_linear_cross_entropy(
    spec: LinearCrossEntropy,
    target: Target,
    configs: Mapping[str, Config] | None = None,
    row_warps: int | None = None,
) -> Plan:
    """x, weight, labels[, cotangent] -> loss[, dx, dweight][, error].

    loss is fp32 (fp64 for fp64 logits): one element, or `rows` for "none". dx has x's type, dweight
    `weight_gradient_dtype` (the weight's if None). The error word is there if `loss.site` > 0.
    `configs` chooses the products' tiles, by "logits", "dx" and "dweight".
    """
    loss_spec, statistic = spec.loss, accumulator(spec.loss.dtype)
    takes_cotangent = spec.gradients and spec.cotangent != "one"
    inputs = 3 + takes_cotangent
    builder = PlanBuilder(inputs, 1 + 2 * spec.gradients + (loss_spec.site > 0))
    x, weight, labels = Buf(0, spec.dtype), Buf(1, spec.weight_dtype), Buf(2, loss_spec.label_dtype)
    cotangent = Buf(3, statistic)
    loss, dx = Buf(inputs, statistic), Buf(inputs + 1, spec.dtype)
    dweight = Buf(inputs + 2, spec.weight_gradient_dtype or spec.weight_dtype)
    error = Buf(inputs + 1 + 2 * spec.gradients, "i64")

    chunks = spec.chunks
    logits = builder.workspace(chunks[0][1] * spec.stride, loss_spec.dtype)
    losses = loss
    if loss_spec.reduction != "none":
        losses = builder.workspace(loss_spec.rows, statistic)
    held = dweight
    if spec.gradients and len(chunks) > 1 and dweight.dtype != statistic:
        held = builder.workspace(loss_spec.classes * spec.features, statistic)
    scale = add_scale(builder, loss_spec, labels)

    def add_product(name: str, places: tuple[Buf, ...], rows: int, **options: Any) -> None:
        matmul = product(spec, name, rows, **options)
        config = (configs or {}).get(name)
        if config is not None and fitted(matmul, config, target) != config:
            config = None
        builder.include(plan_matmul(matmul, target, config), places)

    for i, (start, rows) in enumerate(chunks):
        x_rows = _advance(x, start * spec.features)
        add_product("logits", (x_rows, weight, logits), rows)
        buffers = {
            "logits": logits,
            "labels": _advance(labels, start),
            "scale": scale,
            "losses": _advance(losses, start),
            "dlogits": logits,
        }
        if takes_cotangent:
            shift = start if spec.cotangent == "rows" else 0
            buffers["cotangent"] = _advance(cotangent, shift)
        if loss_spec.site:
            buffers["error"] = error
        add_row_losses(
            builder,
            loss_spec,
            rows,
            buffers,
            loss=True,
            cotangent=spec.cotangent if spec.gradients else None,
            stride=spec.stride,
            warps=row_warps,
        )
        if not spec.gradients:
            continue
        dx_rows = _advance(dx, start * spec.features)
        add_product("dx", (logits, weight, dx_rows), rows)
        buffers_of_sum: tuple[Buf, ...] = (logits, x_rows, held)
        options: dict[str, Any] = {"out_dtype": held.dtype, "accumulate": i > 0}
        if held != dweight and i == len(chunks) - 1:
            # The last chunk adds what the others came to and rounds once.
            buffers_of_sum = (logits, x_rows, held, dweight)
            options = {"out_dtype": dweight.dtype, "residual": held.dtype}
        add_product("dweight", buffers_of_sum, rows, **options)
    if loss_spec.reduction != "none":
        add_reduction(builder, loss_spec, losses, scale, loss)
    return builder.build()


def _advance(buffer: Buf, elements: int) -> Buf:
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
    classes, features, logits = spec.loss.classes, spec.features, spec.loss.dtype
    if name == "logits":
        return MatmulSpec(
            rows,
            classes,
            features,
            lhs_dtype=spec.dtype,
            rhs_dtype=spec.weight_dtype,
            out_dtype=logits,
            rhs_transposed=True,
            out_strides=(spec.stride, 1),
            precision=spec.precision,
        )
    if name == "dx":
        return MatmulSpec(
            rows,
            features,
            classes,
            lhs_dtype=logits,
            rhs_dtype=spec.weight_dtype,
            out_dtype=spec.dtype,
            lhs_strides=(spec.stride, 1),
            precision=spec.precision,
        )
    return MatmulSpec(
        classes,
        features,
        rows,
        lhs_dtype=logits,
        rhs_dtype=spec.dtype,
        out_dtype=out_dtype or accumulator(logits),
        lhs_strides=(1, spec.stride),
        precision=spec.precision,
        epilogue=Epilogue(residual=residual),
        accumulate=accumulate,
    )
