"""RMSNorm and LayerNorm over the rows of a matrix, forward and backward.

Rows up to `RESIDENT` columns stay in registers; longer rows are looped over. Weight and bias
gradients are summed by each program over its own rows, then across programs by a second kernel, so
the order of every sum depends on shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.kernels.language import cast, up
from genesis_fn.kernels.launch import Buf, Plan, Scalar
from genesis_fn.kernels.partials import add_sum_of_partials
from genesis_fn.kernels.planning import (
    INT32_MAX,
    PlanBuilder,
    accumulator,
    cdiv,
    next_power_of_two,
    row_tile,
)

RESIDENT = 16384
RESIDENT_BACKWARD = 8192
BACKWARD_TILE = 8192
PROCESSORS = 132  # of an H100 or H200


@dataclass(frozen=True, slots=True)
class Norm:
    """y = (x - mean(x)) * rstd * weight + bias over each row; "rms" leaves the mean out.

    rstd = 1 / sqrt(variance + epsilon). `weight_dtype` and `bias_dtype` are None where absent.
    `unit_offset` multiplies by 1 + weight instead of weight.
    """

    rows: int
    columns: int
    dtype: str
    kind: str = "rms"
    epsilon: float = 1e-6
    weight_dtype: str | None = None
    bias_dtype: str | None = None
    unit_offset: bool = False
    out_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("rms", "layer"):
            raise ValueError(f"a norm is 'rms' or 'layer', not {self.kind!r}")
        if self.columns < 1:
            raise ValueError("a norm needs at least one column")

    @property
    def wide(self) -> bool:
        """Whether element offsets need 64 bits."""
        return self.rows * self.columns > INT32_MAX


@triton.jit
def norm_forward_kernel(
    x,
    weight,
    bias,
    y,
    rstd,
    mean,
    rows,
    COLUMNS: tl.constexpr,
    EPSILON: tl.constexpr,
    CENTER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    SAVE: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Normalised rows, and their statistics if SAVE, of rows that fit in registers."""
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    inside = column < COLUMNS
    mask = (row < rows)[:, None] & inside
    base = (row.to(tl.int64) * COLUMNS if WIDE else row * COLUMNS)[:, None]
    v = up(tl.load(x + base + column, mask, other=0.0))
    if CENTER:
        average = tl.sum(v, 1) / COLUMNS
        v = tl.where(inside, v - average[:, None], 0.0)
        if SAVE:
            tl.store(mean + row, average, row < rows)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, 1) / COLUMNS + EPSILON)
    if SAVE:
        tl.store(rstd + row, scale, row < rows)
    v = v * scale[:, None]
    if HAS_WEIGHT:
        w = up(tl.load(weight + column, inside, other=0.0))
        v = v * (w + 1.0) if UNIT_OFFSET else v * w
    if HAS_BIAS:
        v += up(tl.load(bias + column, inside, other=0.0))
    tl.store(y + base + column, cast(v, y.dtype.element_ty), mask)


@triton.jit
def norm_forward_looped_kernel(
    x,
    weight,
    bias,
    y,
    rstd,
    mean,
    COLUMNS: tl.constexpr,
    EPSILON: tl.constexpr,
    CENTER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    SAVE: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """As `norm_forward_kernel`, of one long row a program, which is read in blocks."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    x += row * COLUMNS
    y += row * COLUMNS
    lane = tl.arange(0, BLOCK)
    average = tl.sum(tl.zeros((BLOCK,), ACC), 0)
    if CENTER:
        # Chan, Golub & LeVeque (1979): merge each block's mean and squared deviation.
        squares = average
        for start in range(0, COLUMNS, BLOCK):
            inside = start + lane < COLUMNS
            v = up(tl.load(x + start + lane, inside, other=0.0))
            count = tl.minimum(COLUMNS - start, BLOCK).to(ACC)
            block_mean = tl.sum(v, 0) / count
            deviation = tl.where(inside, v - block_mean, 0.0)
            step = block_mean - average
            seen = start + count
            average += step * (count / seen)
            squares += tl.sum(deviation * deviation, 0) + step * step * (start * count / seen)
        if SAVE:
            tl.store(mean + row, average)
    else:
        lanes = tl.zeros((BLOCK,), ACC)
        for start in range(0, COLUMNS, BLOCK):
            v = up(tl.load(x + start + lane, start + lane < COLUMNS, other=0.0))
            lanes += v * v
        squares = tl.sum(lanes, 0)
    scale = 1.0 / tl.sqrt(squares / COLUMNS + EPSILON)
    if SAVE:
        tl.store(rstd + row, scale)
    for start in range(0, COLUMNS, BLOCK):
        column = start + lane
        inside = column < COLUMNS
        v = (up(tl.load(x + column, inside, other=0.0)) - average) * scale
        if HAS_WEIGHT:
            w = up(tl.load(weight + column, inside, other=0.0))
            v = v * (w + 1.0) if UNIT_OFFSET else v * w
        if HAS_BIAS:
            v += up(tl.load(bias + column, inside, other=0.0))
        tl.store(y + column, cast(v, y.dtype.element_ty), inside)


@triton.jit
def norm_backward_kernel(
    dy,
    x,
    weight,
    rstd,
    mean,
    dx,
    dweight,
    dbias,
    rows,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """dx of rows that fit in registers, and each program's share of the parameters' gradients."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    program = tl.program_id(0)
    column = tl.arange(0, COLUMN_BLOCK)
    inside = column < COLUMNS
    w = tl.zeros((COLUMN_BLOCK,), ACC)
    if HAS_WEIGHT:
        w += up(tl.load(weight + column, inside, other=0.0))
    if not HAS_WEIGHT or UNIT_OFFSET:
        w += 1.0
    weight_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), ACC)
    bias_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), ACC)
    step = tl.num_programs(0) * ROW_BLOCK
    row = program * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    base = (row.to(tl.int64) * COLUMNS if WIDE else row * COLUMNS)[:, None] + column[None, :]
    mask = (row < rows)[:, None] & inside[None, :]
    next_g = tl.load(dy + base, mask, other=0.0)
    next_h = tl.load(x + base, mask, other=0.0)
    for start in range(program * ROW_BLOCK, rows, step):
        row = start + tl.arange(0, ROW_BLOCK)
        valid = row < rows
        base = (row.to(tl.int64) * COLUMNS if WIDE else row * COLUMNS)[:, None] + column[None, :]
        mask = valid[:, None] & inside[None, :]
        g = up(next_g)
        h = up(next_h)
        # The next rows are under way while these are worked on.
        ahead = row + step
        ahead_base = (ahead.to(tl.int64) * COLUMNS if WIDE else ahead * COLUMNS)[:, None]
        ahead_mask = (ahead < rows)[:, None] & inside[None, :]
        next_g = tl.load(dy + ahead_base + column[None, :], ahead_mask, other=0.0)
        next_h = tl.load(x + ahead_base + column[None, :], ahead_mask, other=0.0)
        scale = tl.load(rstd + row, valid, other=0.0)[:, None]
        if CENTER:
            h = tl.where(mask, h - tl.load(mean + row, valid, other=0.0)[:, None], 0.0)
        h = h * scale
        if HAS_WEIGHT:
            weight_sum += g * h
        if HAS_BIAS:
            bias_sum += g
        g = g * w[None, :]
        along = tl.sum(g * h, 1) / COLUMNS
        d = g - h * along[:, None]
        if CENTER:
            d -= (tl.sum(g, 1) / COLUMNS)[:, None]
        tl.store(dx + base, cast(d * scale, dx.dtype.element_ty), mask)
    if HAS_WEIGHT:
        tl.store(dweight + program * COLUMNS + column, tl.sum(weight_sum, 0), inside)
    if HAS_BIAS:
        tl.store(dbias + program * COLUMNS + column, tl.sum(bias_sum, 0), inside)


@triton.jit
def norm_backward_looped_kernel(
    dy,
    x,
    weight,
    rstd,
    mean,
    dx,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """dx of one long row a program, which is read in blocks."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    dy += row * COLUMNS
    x += row * COLUMNS
    dx += row * COLUMNS
    lane = tl.arange(0, BLOCK)
    scale = tl.load(rstd + row)
    average = scale * 0.0
    if CENTER:
        average = tl.load(mean + row)
    along_lanes = tl.zeros((BLOCK,), ACC)
    sum_lanes = tl.zeros((BLOCK,), ACC)
    for start in range(0, COLUMNS, BLOCK):
        column = start + lane
        inside = column < COLUMNS
        g = up(tl.load(dy + column, inside, other=0.0))
        h = (up(tl.load(x + column, inside, other=0.0)) - average) * scale
        if HAS_WEIGHT:
            w = up(tl.load(weight + column, inside, other=0.0))
            g = g * (w + 1.0) if UNIT_OFFSET else g * w
        along_lanes += g * h
        sum_lanes += g
    along = tl.sum(along_lanes, 0) / COLUMNS
    shift = scale * 0.0
    if CENTER:
        shift = tl.sum(sum_lanes, 0) / COLUMNS
    for start in range(0, COLUMNS, BLOCK):
        column = start + lane
        inside = column < COLUMNS
        g = up(tl.load(dy + column, inside, other=0.0))
        h = (up(tl.load(x + column, inside, other=0.0)) - average) * scale
        if HAS_WEIGHT:
            w = up(tl.load(weight + column, inside, other=0.0))
            g = g * (w + 1.0) if UNIT_OFFSET else g * w
        d = (g - shift - h * along) * scale
        tl.store(dx + column, cast(d, dx.dtype.element_ty), inside)


@triton.jit
def norm_parameter_gradient_kernel(
    dy,
    x,
    rstd,
    mean,
    dweight,
    dbias,
    rows,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """Gradients of weight and bias: sums over a slab of rows for a block of columns."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    column = tl.program_id(0) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
    slab = tl.program_id(1)
    inside = column < COLUMNS
    weight_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), ACC)
    bias_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), ACC)
    for start in range(slab * ROW_BLOCK, rows, tl.num_programs(1) * ROW_BLOCK):
        row = start + tl.arange(0, ROW_BLOCK)
        valid = row < rows
        at = (row.to(tl.int64) * COLUMNS)[:, None] + column[None, :]
        mask = valid[:, None] & inside[None, :]
        g = up(tl.load(dy + at, mask, other=0.0))
        if HAS_BIAS:
            bias_sum += g
        if HAS_WEIGHT:
            h = up(tl.load(x + at, mask, other=0.0))
            if CENTER:
                h -= tl.load(mean + row, valid, other=0.0)[:, None]
            weight_sum += g * (h * tl.load(rstd + row, valid, other=0.0)[:, None])
    place = slab.to(tl.int64) * COLUMNS + column
    if HAS_WEIGHT:
        tl.store(dweight + place, tl.sum(weight_sum, 0), inside)
    if HAS_BIAS:
        tl.store(dbias + place, tl.sum(bias_sum, 0), inside)


def plan_norm_forward(
    spec: Norm, *, save_statistics: bool = True, tile: tuple[int, int, int] | None = None
) -> Plan:
    """x[, weight][, bias] -> y[, rstd[, mean]]: the norm of each row.

    rstd and (for "layer") mean are fp32 vectors of `rows` elements, fp64 for fp64 input; they are
    outputs if `save_statistics`. `tile` replaces `row_tile`'s choice for resident rows.
    """
    center = spec.kind == "layer"
    inputs = 1 + (spec.weight_dtype is not None) + (spec.bias_dtype is not None)
    builder = PlanBuilder(inputs, 1 + (1 + center) * save_statistics)
    x = Buf(0, spec.dtype)
    weight = Buf(1, spec.weight_dtype) if spec.weight_dtype else x
    bias = Buf(inputs - 1, spec.bias_dtype) if spec.bias_dtype else x
    y = Buf(inputs, spec.out_dtype or spec.dtype)
    statistic = accumulator(spec.dtype)
    rstd = Buf(inputs + 1, statistic) if save_statistics else y
    mean = Buf(inputs + 2, statistic) if save_statistics and center else y
    arguments = {"x": x, "weight": weight, "bias": bias, "y": y, "rstd": rstd, "mean": mean}
    constants = {
        "COLUMNS": spec.columns,
        "EPSILON": spec.epsilon,
        "CENTER": center,
        "HAS_WEIGHT": spec.weight_dtype is not None,
        "HAS_BIAS": spec.bias_dtype is not None,
        "UNIT_OFFSET": spec.unit_offset,
        "SAVE": save_statistics,
    }
    if spec.columns <= RESIDENT // (4 if spec.dtype == "fp64" else 1):
        rows, columns, warps = tile or forward_tile(spec.columns, spec.dtype)
        builder.launch(
            norm_forward_kernel,
            (cdiv(spec.rows, rows),),
            arguments | {"rows": Scalar(spec.rows)},
            constants | {"ROW_BLOCK": rows, "COLUMN_BLOCK": columns, "WIDE": spec.wide},
            num_warps=warps,
        )
    else:
        builder.launch(
            norm_forward_looped_kernel,
            (spec.rows,),
            arguments,
            constants | {"BLOCK": 4096, "DOUBLE": spec.dtype == "fp64"},
            num_warps=8,
        )
    return builder.build()


def forward_tile(columns: int, dtype: str) -> tuple[int, int, int]:
    """(rows, padded columns, warps) of the forward's tiles, as measured: 32 elements a thread of
    short rows, eight of long ones."""
    padded = next_power_of_two(columns)
    if dtype == "fp64" or padded > 4096:
        return row_tile(columns, dtype)
    elements = 2048 if padded <= 512 else 4096
    rows = elements // padded
    return rows, padded, 16 if padded == 4096 else elements // 1024


def backward_tile(columns: int, dtype: str) -> tuple[int, int, int]:
    """(rows, padded columns, warps) of the backward's tiles: each program keeps one under way."""
    padded = next_power_of_two(columns)
    rows = max(1, BACKWARD_TILE // (4 if dtype == "fp64" else 1) // padded)
    return rows, padded, min(8, max(1, rows * padded // 1024))


def plan_norm_backward(
    spec: Norm, tile: tuple[int, int, int] | None = None, programs: int | None = None
) -> Plan:
    """dy, x[, weight], rstd[, mean] -> dx[, dweight][, dbias]: the gradients of the norm.

    dy has the forward's output type; dx has x's type, dweight and dbias have their parameters'.
    """
    center = spec.kind == "layer"
    has_weight, has_bias = spec.weight_dtype is not None, spec.bias_dtype is not None
    inputs = 3 + has_weight + center
    builder = PlanBuilder(inputs, 1 + has_weight + has_bias)
    statistic = accumulator(spec.dtype)
    dy, x = Buf(0, spec.out_dtype or spec.dtype), Buf(1, spec.dtype)
    weight = Buf(2, spec.weight_dtype) if spec.weight_dtype else x
    rstd = Buf(2 + has_weight, statistic)
    mean = Buf(3 + has_weight, statistic) if center else rstd
    dx = Buf(inputs, spec.dtype)
    arguments = {"dy": dy, "x": x, "weight": weight, "rstd": rstd, "mean": mean, "dx": dx}
    constants = {
        "COLUMNS": spec.columns,
        "CENTER": center,
        "HAS_WEIGHT": has_weight,
        "UNIT_OFFSET": spec.unit_offset,
        "DOUBLE": spec.dtype == "fp64",
    }
    resident = spec.columns <= RESIDENT_BACKWARD // (4 if spec.dtype == "fp64" else 1)
    if resident:
        row_block, column_block, warps = tile or backward_tile(spec.columns, spec.dtype)
        if programs is None:
            programs = PROCESSORS * (1 if column_block > 512 else 2)
        slabs = min(programs, cdiv(spec.rows, row_block))
    else:
        slabs = min(16, cdiv(spec.rows, 64))
    dweight = builder.workspace(slabs * spec.columns, statistic) if has_weight else rstd
    dbias = builder.workspace(slabs * spec.columns, statistic) if has_bias else rstd
    if resident:
        builder.launch(
            norm_backward_kernel,
            (slabs,),
            arguments | {"dweight": dweight, "dbias": dbias, "rows": Scalar(spec.rows)},
            constants
            | {
                "HAS_BIAS": has_bias,
                "ROW_BLOCK": row_block,
                "COLUMN_BLOCK": column_block,
                "WIDE": spec.wide,
            },
            num_warps=warps,
        )
    else:
        builder.launch(
            norm_backward_looped_kernel,
            (spec.rows,),
            arguments,
            constants | {"BLOCK": 4096},
            num_warps=8,
        )
        if has_weight or has_bias:
            column_block = min(128, next_power_of_two(spec.columns))
            del constants["UNIT_OFFSET"]
            builder.launch(
                norm_parameter_gradient_kernel,
                (cdiv(spec.columns, column_block), slabs),
                {
                    "dy": dy,
                    "x": x,
                    "rstd": rstd,
                    "mean": mean,
                    "dweight": dweight,
                    "dbias": dbias,
                    "rows": Scalar(spec.rows),
                },
                constants | {"HAS_BIAS": has_bias, "ROW_BLOCK": 32, "COLUMN_BLOCK": column_block},
                num_warps=4,
            )
    if has_weight:
        out = Buf(inputs + 1, spec.weight_dtype)
        add_sum_of_partials(builder, dweight, out, slabs, spec.columns)
    if has_bias:
        out = Buf(inputs + 1 + has_weight, spec.bias_dtype)
        add_sum_of_partials(builder, dbias, out, slabs, spec.columns)
    return builder.build()
