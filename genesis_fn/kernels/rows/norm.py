"""RMSNorm and LayerNorm over the rows of a matrix, forward and backward.

Rows of up to 16384 columns (backward: 8192) stay in registers; longer rows are looped over. Weight
and bias gradients are summed by each program over its own rows, then across programs by a second
kernel, so the order of every sum depends on shapes and the number of multiprocessors alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import (
    INT32_MAX,
    PlanBuilder,
    Tile,
    accumulator,
    add_row_kernel,
    cdiv,
    fits_registers,
    next_power_of_two,
    row_tile,
)
from genesis_fn.kernels.rows.split_reduce import add_sum_of_partials

RESIDENT_BACKWARD = 8192  # elements of the longest row whose backward pass keeps it in registers
BACKWARD_TILE = 8192  # elements of a program's tile there


@dataclass(frozen=True, slots=True)
class Norm:
    """y = (x - mean(x)) * rstd * weight + bias over each row, rstd = 1 / sqrt(variance + epsilon).

    With a bias it is a LayerNorm; without one an RMSNorm, which leaves the mean out. `statistics`:
    whether the forward keeps rstd and mean.
    """

    rows: int
    columns: int
    dtype: str
    epsilon: float
    weight_dtype: str
    bias_dtype: str | None = None
    statistics: bool = True

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise ValueError("a norm needs at least one column")

    @property
    def centered(self) -> bool:
        """Whether it is a LayerNorm, which takes the mean out and adds a bias."""
        return self.bias_dtype is not None

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
    # Two passes over registers: the mean, then squared deviations. The mean of squares less the
    # squared mean would cancel where the mean is large.
    if CENTER:
        average = tl.sum(v, 1) / COLUMNS
        v = tl.where(inside, v - average[:, None], 0.0)
        if SAVE:
            tl.store(mean + row, average, row < rows)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, 1) / COLUMNS + EPSILON)
    if SAVE:
        tl.store(rstd + row, scale, row < rows)
    v = v * scale[:, None]
    v *= up(tl.load(weight + column, inside, other=0.0))
    if CENTER:
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
    SAVE: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """`norm_forward_kernel` for rows too long for registers: a row a program, read in blocks."""
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
        # A sum for each lane, reduced once: shorter chains of additions, and one reduction.
        lanes = tl.zeros((BLOCK,), ACC)
        for start in range(0, COLUMNS, BLOCK):
            v = up(tl.load(x + start + lane, start + lane < COLUMNS, other=0.0))
            lanes += v * v
        squares = tl.sum(lanes, 0)
    scale = 1.0 / tl.sqrt(squares / COLUMNS + EPSILON)
    if SAVE:
        tl.store(rstd + row, scale)
    # The row is read a second time, from the L2 cache where it reaches.
    for start in range(0, COLUMNS, BLOCK):
        column = start + lane
        inside = column < COLUMNS
        v = (up(tl.load(x + column, inside, other=0.0)) - average) * scale
        v *= up(tl.load(weight + column, inside, other=0.0))
        if CENTER:
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
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """dx of rows that fit in registers, and each program's share of the parameters' gradients."""
    # With h the normalised row and g = dy * weight: dx = rstd * (g - mean(g) - h * mean(g * h)),
    # the mean of g only if the row was centred. dweight sums dy * h and dbias dy over the rows:
    # each program walks a slab of them, and `add_sum_of_partials` adds the programs' shares in
    # order.
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    program = tl.program_id(0)
    column = tl.arange(0, COLUMN_BLOCK)
    inside = column < COLUMNS
    w = tl.zeros((COLUMN_BLOCK,), ACC) + up(tl.load(weight + column, inside, other=0.0))
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
        weight_sum += g * h
        if CENTER:
            bias_sum += g
        g = g * w[None, :]
        along = tl.sum(g * h, 1) / COLUMNS
        d = g - h * along[:, None]
        if CENTER:
            d -= (tl.sum(g, 1) / COLUMNS)[:, None]
        tl.store(dx + base, cast(d * scale, dx.dtype.element_ty), mask)
    tl.store(dweight + program * COLUMNS + column, tl.sum(weight_sum, 0), inside)
    if CENTER:
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
        g *= up(tl.load(weight + column, inside, other=0.0))
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
        g *= up(tl.load(weight + column, inside, other=0.0))
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
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """Gradients of weight and bias: sums over a slab of rows for a block of columns."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    # Rows are too long for registers here: blocks of columns are independent, and read x once more.
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
        h = up(tl.load(x + at, mask, other=0.0))
        if CENTER:
            bias_sum += g
            h -= tl.load(mean + row, valid, other=0.0)[:, None]
        weight_sum += g * (h * tl.load(rstd + row, valid, other=0.0)[:, None])
    offset = slab.to(tl.int64) * COLUMNS + column
    tl.store(dweight + offset, tl.sum(weight_sum, 0), inside)
    if CENTER:
        tl.store(dbias + offset, tl.sum(bias_sum, 0), inside)


def forward_tile(columns: int, dtype: str) -> Tile:
    """The forward's tiles, as measured: 32 elements a thread of short rows, eight of long ones."""
    padded = next_power_of_two(columns)
    if dtype == "fp64" or padded > 4096:
        return row_tile(columns, dtype)
    elements = 2048 if padded <= 512 else 4096
    rows = elements // padded
    return rows, padded, 16 if padded == 4096 else elements // 1024


def backward_tile(columns: int, dtype: str) -> Tile:
    """The backward's tiles: each program keeps one under way."""
    padded = next_power_of_two(columns)
    rows = max(1, BACKWARD_TILE // (4 if dtype == "fp64" else 1) // padded)
    return rows, padded, min(8, max(1, rows * padded // 1024))


def plan_norm_forward(spec: Norm, target: Target) -> Plan:
    """x, weight[, bias] -> y[, rstd[, mean]]: the norm of each row.

    rstd and, of a LayerNorm, mean are fp32 vectors of `rows` elements, fp64 for fp64 input; they
    are outputs if `spec.statistics`.
    """
    inputs = 2 + spec.centered
    builder = PlanBuilder(inputs, 1 + (1 + spec.centered) * spec.statistics)
    x, y = BufferArg(0, spec.dtype), BufferArg(inputs, spec.dtype)
    statistic = accumulator(spec.dtype)
    rstd = BufferArg(inputs + 1, statistic) if spec.statistics else y
    mean = BufferArg(inputs + 2, statistic) if spec.statistics and spec.centered else y
    bias = BufferArg(2, spec.bias_dtype) if spec.bias_dtype else x
    fits = fits_registers(spec.columns, spec.dtype)
    add_row_kernel(
        builder,
        (norm_forward_kernel, norm_forward_looped_kernel),
        (spec.rows, spec.columns),
        {
            "x": x,
            "weight": BufferArg(1, spec.weight_dtype),
            "bias": bias,
            "y": y,
            "rstd": rstd,
            "mean": mean,
        },
        {
            "COLUMNS": spec.columns,
            "EPSILON": spec.epsilon,
            "CENTER": spec.centered,
            "SAVE": spec.statistics,
        },
        forward_tile(spec.columns, spec.dtype) if fits else None,
        {"BLOCK": 4096, "DOUBLE": spec.dtype == "fp64"},
    )
    return builder.build()


def plan_norm_backward(spec: Norm, target: Target) -> Plan:
    """dy, x, weight, rstd[, mean] -> dx, dweight[, dbias]: the gradients of the norm.

    dy and dx have x's type, dweight and dbias have their parameters'.
    """
    inputs = 4 + spec.centered
    builder = PlanBuilder(inputs, 2 + spec.centered)
    statistic = accumulator(spec.dtype)
    dy, x, weight = (
        BufferArg(0, spec.dtype),
        BufferArg(1, spec.dtype),
        BufferArg(2, spec.weight_dtype),
    )
    rstd = BufferArg(3, statistic)
    mean = BufferArg(4, statistic) if spec.centered else rstd
    rows = Scalar(spec.rows)
    statistics = {"rstd": rstd, "mean": mean}
    constants = {"COLUMNS": spec.columns, "CENTER": spec.centered, "DOUBLE": spec.dtype == "fp64"}
    row_block, column_block, warps = backward_tile(spec.columns, spec.dtype)
    resident = fits_registers(spec.columns, spec.dtype, RESIDENT_BACKWARD)
    # Slabs: as many as programs run at once, so that partial sums stay few and every row of dy and
    # x is read once. Longer rows take a second kernel for the sums, whose slabs are by rows alone.
    if resident:
        programs = target.processors * (1 if column_block > 512 else 2)
        slabs = min(programs, cdiv(spec.rows, row_block))
    else:
        slabs = min(16, cdiv(spec.rows, 64))
    dweight = builder.workspace(slabs * spec.columns, statistic)
    dbias = builder.workspace(slabs * spec.columns, statistic) if spec.centered else rstd
    arguments = {
        "dy": dy,
        "x": x,
        "weight": weight,
        **statistics,
        "dx": BufferArg(inputs, spec.dtype),
    }
    sums = {"dweight": dweight, "dbias": dbias, "rows": rows}
    if resident:
        sizes = {"ROW_BLOCK": row_block, "COLUMN_BLOCK": column_block, "WIDE": spec.wide}
        builder.launch(
            norm_backward_kernel, (slabs,), arguments | sums, constants | sizes, num_warps=warps
        )
    else:
        builder.launch(
            norm_backward_looped_kernel,
            (spec.rows,),
            arguments,
            constants | {"BLOCK": 4096},
            num_warps=8,
        )
        column_block = min(128, next_power_of_two(spec.columns))
        builder.launch(
            norm_parameter_gradient_kernel,
            (cdiv(spec.columns, column_block), slabs),
            {"dy": dy, "x": x, **statistics, **sums},
            constants | {"ROW_BLOCK": 32, "COLUMN_BLOCK": column_block},
        )
    results = [(dweight, spec.weight_dtype), (dbias, spec.bias_dtype)]
    for i, (partials, dtype) in enumerate(results, inputs + 1):
        if dtype is not None:  # an RMSNorm has no bias
            add_sum_of_partials(builder, partials, BufferArg(i, dtype), slabs, spec.columns)
    return builder.build()
