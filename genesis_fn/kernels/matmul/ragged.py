"""Matrix products by groups of rows whose sizes only the device knows: mixtures of experts.

`plan_ragged_dot` multiplies rows by the matrix of their group, `plan_ragged_contraction` the rows
of each group with one another. A program finds the rows of its tile by adding up the sizes, so that
nothing runs before it and the host never waits. (`grouped.py` joins products of known sizes.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import FLOATING, ITEMSIZE
from genesis_fn.kernels.language.language import (
    add_products,
    cast,
    dot,
    halves,
    tile_of,
    up,
    zeros_of,
)
from genesis_fn.kernels.matmul.spec import PRECISIONS
from genesis_fn.kernels.plan import Argument, BufferArg, Descriptor, Plan, Scalar
from genesis_fn.kernels.plan_builder import (
    INT32_MAX,
    PlanBuilder,
    accumulator,
    cdiv,
    dense,
    next_power_of_two,
)

MAX_GROUPS = 1 << 14  # whose sizes a program holds in registers; more are looked up in memory
_TOGETHER = tl.constexpr(8)  # rows of tiles that are walked together, for the L2 cache


@dataclass(frozen=True, slots=True)
class RaggedSpec:
    """`groups` groups of the `rows` rows of each of `batch` products, by int sizes [batch, groups].

    A ragged dot is lhs [batch, rows, k] times rhs [batch, groups, k, n] -> [batch, rows, n]; rhs is
    [.., n, k] if `rhs_transposed`, and without its batch axis if `rhs_shared`. A ragged contraction
    is lhs [batch, rows, k], transposed, times rhs [batch, rows, n] -> [batch, groups, k, n].
    """

    rows: int
    k: int
    n: int
    groups: int
    batch: int = 1
    lhs_dtype: str = "bf16"
    rhs_dtype: str = "bf16"
    out_dtype: str = "bf16"
    sizes_dtype: str = "i32"
    rhs_transposed: bool = False
    rhs_shared: bool = False
    precision: str = "default"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {PRECISIONS}, got {self.precision!r}")
        if self.groups < 1:
            raise ValueError(f"there must be a group, got {self.groups}")
        for name in ("lhs_dtype", "rhs_dtype", "out_dtype"):
            if ITEMSIZE[getattr(self, name)] == 1 and getattr(self, name) in FLOATING:
                raise ValueError(f"{name} must be a float of 16 bits or more, or an integer")
        if (self.lhs_dtype in FLOATING) != (self.rhs_dtype in FLOATING):
            raise ValueError("both operands are floats or none is")
        if (self.lhs_dtype == "fp64") != (self.rhs_dtype == "fp64"):
            raise ValueError("both operands are fp64 or none is")

    @property
    def operand_dtype(self) -> str:
        """The type that operands are multiplied in: fp32 where floats differ, that of sums for
        integers."""
        if self.lhs_dtype not in FLOATING:
            return self.acc_dtype
        return self.lhs_dtype if self.lhs_dtype == self.rhs_dtype else "fp32"

    @property
    def acc_dtype(self) -> str:
        """The type of sums: fp64 for fp64, fp32 for other floats, the results' width of integers,
        which wrap."""
        if self.lhs_dtype in FLOATING:
            return accumulator(self.operand_dtype)
        return "i64" if ITEMSIZE[self.out_dtype] == 8 else "i32"


@dataclass(frozen=True, slots=True)
class RaggedConfig:
    """Tile [bm, bn], depth bk of a step, and how programs walk the tiles.

    `tma`: tiles are read and, where they are whole, written through descriptors. `residents`
    persistent programs share a multiprocessor; 0 is a program for each tile. `flatten`, of
    contractions: the loads of a program's next tile begin before its tile is stored. `halves`: a
    tile is stored in two. `swap` computes the transposed tile, for few rows.
    """

    tma: bool
    bm: int
    bn: int
    bk: int
    warps: int = 4
    stages: int = 3
    residents: int = 1
    flatten: bool = False
    halves: bool = False
    swap: bool = False
    tensor_cores: bool = True


# ---- the kernels ----


@triton.jit
def group_rows(sizes, rows, GROUPS: tl.constexpr, PADDED: tl.constexpr):
    """(first row, end) of each group, int32[PADDED]; past the last one both are the last end."""
    index = tl.arange(0, PADDED)
    size = tl.load(sizes + index, mask=index < GROUPS, other=0).to(tl.int64)
    # Sizes are data: whatever they are, rows stay within those that there are.
    size = tl.minimum(tl.maximum(size, 0), rows)
    end = tl.cumsum(size, 0)
    first = tl.minimum(end - size, rows).to(tl.int32)
    return first, tl.minimum(end, rows).to(tl.int32)


@triton.jit
def store_tile(out, out_tiles, value, row, row_end, column, before, N: tl.constexpr):
    """Store the tile `value` at (row, column), but no row from `row_end` on, which the next group
    has; `before` rows lie before the product's own."""
    height: tl.constexpr = value.shape[0]
    width: tl.constexpr = value.shape[1]
    value = cast(value, out.dtype.element_ty)
    if out_tiles is None:
        store_part(out, value, row, row_end, column, before, N, height, width)
    else:
        if row + height <= row_end:
            out_tiles.store([before + row, column], value)
        else:
            store_part(out, value, row, row_end, column, before, N, height, width)


@triton.jit
def store_part(
    out, value, row, row_end, column, before, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr
):
    """Store the rows of a tile that end before `row_end`, through pointers."""
    r = row + tl.arange(0, H)[:, None]
    c = column + tl.arange(0, W)[None, :]
    tl.store(out + (before + r).to(tl.int64) * N + c, value, mask=(r < row_end) & (c < N))


@triton.jit
def multiply(
    a,
    b,
    acc,
    PRECISION: tl.constexpr,
    UP: tl.constexpr,
    SWAP: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
):
    """`acc + a @ b`, of the transposed tile if SWAP; operands of two types meet in float32."""
    if UP:
        a = up(a)
        b = up(b)
    if not TENSOR_CORES:
        acc = add_products(a, b, acc)
    elif SWAP:
        acc = dot(tl.trans(b), tl.trans(a), acc, PRECISION)
    else:
        acc = dot(a, b, acc, PRECISION)
    return acc


@triton.jit
def ragged_dot_kernel(
    lhs,
    rhs,
    sizes,
    out,
    out_tiles,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED: tl.constexpr,
    SHARED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
    UP: tl.constexpr,
    ACC: tl.constexpr,
    TMA: tl.constexpr,
    SWAP: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
    HALVES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Tiles of rows of one group each, times the group's matrix; zeros for rows of no group."""
    TILES_N: tl.constexpr = (N + BN - 1) // BN
    batch = tl.program_id(1)
    before = batch * rows
    first, end = group_rows(sizes + batch * GROUPS, rows, GROUPS, PADDED)
    index = tl.arange(0, PADDED)
    height = (end - first + (BM - 1)) // BM
    last = tl.cumsum(height, 0) * TILES_N
    # Not flattened: Triton 3.6 cannot compile the flattened loops of this kernel.
    for tile in tl.range(tl.program_id(0), tl.max(last, 0), PROGRAMS):
        group = tl.sum((last <= tile).to(tl.int32), 0)
        mine = index == group
        row_start = tl.sum(tl.where(mine, first, 0), 0)
        row_end = tl.sum(tl.where(mine, end, 0), 0)
        tiles_m = (row_end - row_start + (BM - 1)) // BM
        inside = tile - tl.sum(tl.where(mine, last, 0), 0) + tiles_m * TILES_N
        tile_m, tile_n = tile_of(inside, tiles_m, TILES_N, _TOGETHER)
        row = row_start + tile_m * BM
        column = tile_n * BN
        matrix = group if SHARED else batch * GROUPS + group
        if SWAP:
            acc = zeros_of(ACC, BN, BM)
        else:
            acc = zeros_of(ACC, BM, BN)
        if not TMA:
            r = row + tl.arange(0, BM)[:, None]
            c = column + tl.arange(0, BN)[None, :]
            left = lhs + (before + r).to(tl.int64) * K
            right = rhs + matrix.to(tl.int64) * (K * N) + c.to(tl.int64) * (K if TRANSPOSED else 1)
        for step in range((K + BK - 1) // BK):
            depth = step * BK
            if TMA:
                a = lhs.load([before + row, depth])
                if TRANSPOSED:
                    b = tl.trans(tl.reshape(rhs.load([matrix, column, depth]), (BN, BK)))
                else:
                    b = tl.reshape(rhs.load([matrix, depth, column]), (BK, BN))
            else:
                i = depth + tl.arange(0, BK)[None, :]
                j = depth + tl.arange(0, BK)[:, None]
                # All of these were bound above, under the same condition.
                a = tl.load(left + i, mask=(r < row_end) & (i < K), other=0)  # pyright: ignore[reportPossiblyUnboundVariable]
                at = right + (j if TRANSPOSED else j.to(tl.int64) * N)  # pyright: ignore[reportPossiblyUnboundVariable]
                b = tl.load(at, mask=(j < K) & (c < N), other=0)  # pyright: ignore[reportPossiblyUnboundVariable]
            acc = multiply(a, b, acc, PRECISION, UP, SWAP, TENSOR_CORES)
        if SWAP:
            acc = tl.trans(acc)
        if HALVES:
            acc, right_half = halves(acc)
            store_tile(out, out_tiles, acc, row, row_end, column, before, N)
            store_tile(out, out_tiles, right_half, row, row_end, column + BN // 2, before, N)
        else:
            store_tile(out, out_tiles, acc, row, row_end, column, before, N)
    # A loop of its own, so that every tile above has equally many steps.
    start = tl.max(end, 0)
    spare = (rows - start + (BM - 1)) // BM * TILES_N
    for tile in tl.range(tl.program_id(0), spare, PROGRAMS):
        zero = tl.zeros((BM, BN), out.dtype.element_ty)
        row = start + tile // TILES_N * BM
        store_part(out, zero, row, rows, tile % TILES_N * BN, before, N, BM, BN)


@triton.jit
def ragged_contraction_kernel(
    lhs,
    rhs,
    lhs_rows,
    rhs_rows,
    sizes,
    out,
    out_tiles,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    UP: tl.constexpr,
    ACC: tl.constexpr,
    TMA: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Tiles [BM, BN] of each group's lhs^T rhs, in steps of BK rows; by TMA whole steps, and the
    rows that are left through pointers, since a descriptor does not end where the group does."""
    TILES_M: tl.constexpr = (K + BM - 1) // BM
    TILES_N: tl.constexpr = (N + BN - 1) // BN
    batch = tl.program_id(1)
    before = batch * rows
    first, end = group_rows(sizes + batch * GROUPS, rows, GROUPS, PADDED)
    index = tl.arange(0, PADDED)
    for tile in tl.range(tl.program_id(0), GROUPS * TILES_M * TILES_N, PROGRAMS, flatten=FLATTEN):
        group = tile // (TILES_M * TILES_N)
        mine = index == group
        row_start = tl.sum(tl.where(mine, first, 0), 0)
        row_end = tl.sum(tl.where(mine, end, 0), 0)
        tile_m, tile_n = tile_of(tile % (TILES_M * TILES_N), TILES_M, TILES_N, _TOGETHER)
        m = tile_m * BM
        n = tile_n * BN
        i = m + tl.arange(0, BM)[None, :]
        j = n + tl.arange(0, BN)[None, :]
        acc = zeros_of(ACC, BM, BN)
        if TMA:
            steps = (row_end - row_start) // BK
            # Asked for before the loop and used after it, so that nothing waits for them.
            r = row_start + steps * BK + tl.arange(0, BK)[:, None]
            at = (before + r).to(tl.int64)
            a_rest = tl.load(lhs_rows + at * K + i, mask=(r < row_end) & (i < K), other=0)
            b_rest = tl.load(rhs_rows + at * N + j, mask=(r < row_end) & (j < N), other=0)
            for step in range(steps):
                row = before + row_start + step * BK
                a = lhs.load([row, m])
                b = rhs.load([row, n])
                acc = multiply(tl.trans(a), b, acc, PRECISION, UP, False, TENSOR_CORES)
            acc = multiply(tl.trans(a_rest), b_rest, acc, PRECISION, UP, False, TENSOR_CORES)
        else:
            for step in range((row_end - row_start + (BK - 1)) // BK):
                r = row_start + step * BK + tl.arange(0, BK)[:, None]
                at = (before + r).to(tl.int64)
                a = tl.load(lhs_rows + at * K + i, mask=(r < row_end) & (i < K), other=0)
                b = tl.load(rhs_rows + at * N + j, mask=(r < row_end) & (j < N), other=0)
                acc = multiply(tl.trans(a), b, acc, PRECISION, UP, False, TENSOR_CORES)
        matrix = batch * GROUPS + group
        if HALVES:
            acc, right_half = halves(acc)
            store_matrix(out, out_tiles, acc, matrix, m, n, K, N)
            store_matrix(out, out_tiles, right_half, matrix, m, n + BN // 2, K, N)
        else:
            store_matrix(out, out_tiles, acc, matrix, m, n, K, N)


@triton.jit
def store_matrix(out, out_tiles, value, matrix, m, n, K: tl.constexpr, N: tl.constexpr):
    """Store the tile `value` at (m, n) of a matrix [K, N]."""
    height: tl.constexpr = value.shape[0]
    width: tl.constexpr = value.shape[1]
    value = cast(value, out.dtype.element_ty)
    if out_tiles is None:
        at = out + matrix.to(tl.int64) * (K * N)
        store_part(at, value, m, K, n, 0, N, height, width)
    else:
        out_tiles.store([matrix, m, n], tl.reshape(value, (1, height, width)))


# ---- of more groups than a program holds: each has few rows ----


@triton.jit
def group_ends_kernel(sizes, ends, rows, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """ends[g] = the row behind group g, of one product for each program."""
    before = tl.program_id(0).to(tl.int64) * GROUPS
    total = tl.program_id(0).to(tl.int64) * 0
    for start in range(0, GROUPS, BLOCK):
        index = start + tl.arange(0, BLOCK)
        size = tl.load(sizes + before + index, mask=index < GROUPS, other=0).to(tl.int64)
        size = tl.minimum(tl.maximum(size, 0), rows)
        end = tl.minimum(total + tl.cumsum(size, 0), rows)
        tl.store(ends + before + index, end.to(tl.int32), mask=index < GROUPS)
        total += tl.sum(size, 0)


@triton.jit
def ragged_row_kernel(
    lhs,
    rhs,
    ends,
    out,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    STEPS: tl.constexpr,
    SHARED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ACC: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """BN columns of one row times its group's matrix; zeros for a row of no group."""
    TILES: tl.constexpr = (N + BN - 1) // BN
    batch = tl.program_id(1)
    row = tl.program_id(0) // TILES
    column = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[None, :]
    # The first group that ends behind the row, by bisection.
    group = row * 0
    behind = group + GROUPS
    for _ in range(STEPS):
        middle = (group + behind) // 2
        end = tl.load(ends + batch.to(tl.int64) * GROUPS + tl.minimum(middle, GROUPS - 1))
        later = (group < behind) & (end <= row)
        behind = tl.where(later, behind, tl.minimum(middle, behind))
        group = tl.where(later, middle + 1, group)
    inside = group < GROUPS
    matrix = group.to(tl.int64) if SHARED else batch.to(tl.int64) * GROUPS + group
    left = lhs + (batch.to(tl.int64) * rows + row) * K
    right = rhs + matrix * (K * N) + column.to(tl.int64) * (K if TRANSPOSED else 1)
    acc = zeros_of(ACC, 1, BN)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(left + k[None, :], mask=(k < K)[None, :] & inside, other=0)
        at = right + k[:, None].to(tl.int64) * (1 if TRANSPOSED else N)
        b = tl.load(at, mask=(k < K)[:, None] & (column < N) & inside, other=0)
        acc = add_products(a, b, acc)
    at = (batch.to(tl.int64) * rows + row) * N + column
    tl.store(out + at, cast(acc, out.dtype.element_ty), mask=column < N)


@triton.jit
def ragged_group_kernel(
    lhs,
    rhs,
    ends,
    out,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    ACC: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A tile [BM, BN] of one group's lhs^T rhs."""
    TILES_N: tl.constexpr = (N + BN - 1) // BN
    TILES: tl.constexpr = (K + BM - 1) // BM * TILES_N
    batch = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) // TILES
    m = (tl.program_id(0) % TILES) // TILES_N * BM
    n = (tl.program_id(0) % TILES) % TILES_N * BN
    i = m + tl.arange(0, BM)[None, :]
    j = n + tl.arange(0, BN)[None, :]
    mine = ends + batch * GROUPS + group
    first = tl.load(mine - 1, mask=group > 0, other=0)
    end = tl.load(mine)
    acc = zeros_of(ACC, BM, BN)
    for start in range(first, end, BK):
        r = start + tl.arange(0, BK)[:, None]
        at = batch * rows + r
        a = tl.load(lhs + at * K + i, mask=(r < end) & (i < K), other=0)
        b = tl.load(rhs + at * N + j, mask=(r < end) & (j < N), other=0)
        acc = add_products(tl.trans(a), b, acc)
    target = out + (batch * GROUPS + group) * (K * N)
    value = cast(acc, out.dtype.element_ty)
    store_part(target, value, m, K, n, 0, N, BM, BN)


# ---- their doors ----


def plan_ragged_dot(spec: RaggedSpec, target: Target, config: RaggedConfig | None = None) -> Plan:
    """The plan (lhs, rhs, sizes) -> out of a ragged dot."""
    builder = PlanBuilder(3, 1)
    if 0 in (spec.rows, spec.n, spec.batch):
        return builder.build()
    if spec.groups > MAX_GROUPS:
        _add_rows(builder, spec)
        return builder.build()
    config = _fitted(spec, config or ragged_dot_configs(spec, target)[0], target)
    lhs, rhs, out = _buffers(spec)
    arguments: dict[str, Argument] = {"lhs": lhs, "rhs": rhs}
    constants: dict[str, object] = {"out_tiles": None}
    if config.tma:
        matrices = spec.groups * (1 if spec.rhs_shared else spec.batch)
        inner, block = (spec.k, spec.n), (config.bk, config.bn)
        if spec.rhs_transposed:
            inner, block = inner[::-1], block[::-1]
        arguments["lhs"] = _tiles(lhs, (spec.batch * spec.rows, spec.k), (config.bm, config.bk))
        arguments["rhs"] = _tiles(rhs, (matrices, *inner), (1, *block))
    arguments |= {"sizes": BufferArg(2, spec.sizes_dtype), "out": out}
    if config.tma and _describable(spec.n, spec.out_dtype):
        width = config.bn // (2 if config.halves else 1)
        block = (config.bm, width)
        arguments["out_tiles"] = _tiles(out, (spec.batch * spec.rows, spec.n), block)
        del constants["out_tiles"]
    arguments["rows"] = Scalar(spec.rows)
    # Each group may have one tile that is not whole.
    tiles = (cdiv(spec.rows, config.bm) + spec.groups) * cdiv(spec.n, config.bn)
    constants |= {"SHARED": spec.rhs_shared, "TRANSPOSED": spec.rhs_transposed, "SWAP": config.swap}
    _launch(builder, ragged_dot_kernel, spec, config, target, tiles, arguments, constants)
    return builder.build()


def plan_ragged_contraction(
    spec: RaggedSpec, target: Target, config: RaggedConfig | None = None
) -> Plan:
    """The plan (lhs, rhs, sizes) -> out of a ragged contraction."""
    builder = PlanBuilder(3, 1)
    if 0 in (spec.k, spec.n, spec.batch):
        return builder.build()
    if spec.groups > MAX_GROUPS:
        _add_groups(builder, spec)
        return builder.build()
    config = _fitted(spec, config or ragged_contraction_configs(spec, target)[0], target, True)
    lhs, rhs, out = _buffers(spec)
    arguments: dict[str, Argument] = {}
    constants: dict[str, object] = {"lhs": None, "rhs": None, "out_tiles": None}
    if config.tma:
        rows = spec.batch * spec.rows
        arguments["lhs"] = _tiles(lhs, (rows, spec.k), (config.bk, config.bm))
        arguments["rhs"] = _tiles(rhs, (rows, spec.n), (config.bk, config.bn))
    arguments |= {"lhs_rows": lhs, "rhs_rows": rhs}
    arguments |= {"sizes": BufferArg(2, spec.sizes_dtype), "out": out}
    if config.tma and _describable(spec.n, spec.out_dtype):
        width = config.bn // (2 if config.halves else 1)
        shape = (spec.batch * spec.groups, spec.k, spec.n)
        arguments["out_tiles"] = _tiles(out, shape, (1, config.bm, width))
    arguments["rows"] = Scalar(spec.rows)
    constants = {name: value for name, value in constants.items() if name not in arguments}
    constants["FLATTEN"] = config.flatten
    tiles = spec.groups * cdiv(spec.k, config.bm) * cdiv(spec.n, config.bn)
    _launch(builder, ragged_contraction_kernel, spec, config, target, tiles, arguments, constants)
    return builder.build()


def _add_rows(builder: PlanBuilder, spec: RaggedSpec) -> None:
    """A ragged dot of any number of groups, row by row."""
    lhs, rhs, out = _buffers(spec)
    bn = min(128, next_power_of_two(spec.n))
    builder.launch(
        ragged_row_kernel,
        (spec.rows * cdiv(spec.n, bn), spec.batch),
        {
            "lhs": lhs,
            "rhs": rhs,
            "ends": _group_ends(builder, spec),
            "out": out,
            "rows": Scalar(spec.rows),
        },
        {
            "K": spec.k,
            "N": spec.n,
            "GROUPS": spec.groups,
            "STEPS": spec.groups.bit_length(),
            "SHARED": spec.rhs_shared,
            "TRANSPOSED": spec.rhs_transposed,
            "ACC": spec.acc_dtype,
            "BN": bn,
            "BK": 16,
        },
    )


def _add_groups(builder: PlanBuilder, spec: RaggedSpec) -> None:
    """A ragged contraction of any number of groups, tile by tile of each."""
    lhs, rhs, out = _buffers(spec)
    bm, bn = min(32, next_power_of_two(spec.k)), min(32, next_power_of_two(spec.n))
    builder.launch(
        ragged_group_kernel,
        (spec.groups * cdiv(spec.k, bm) * cdiv(spec.n, bn), spec.batch),
        {
            "lhs": lhs,
            "rhs": rhs,
            "ends": _group_ends(builder, spec),
            "out": out,
            "rows": Scalar(spec.rows),
        },
        {
            "K": spec.k,
            "N": spec.n,
            "GROUPS": spec.groups,
            "ACC": spec.acc_dtype,
            "BM": bm,
            "BN": bn,
            "BK": 8,
        },
    )


def _group_ends(builder: PlanBuilder, spec: RaggedSpec) -> BufferArg:
    """A buffer with the row behind each group, once a launch has filled it."""
    ends = builder.workspace(spec.batch * spec.groups, "i32")
    builder.launch(
        group_ends_kernel,
        (spec.batch,),
        {"sizes": BufferArg(2, spec.sizes_dtype), "ends": ends, "rows": Scalar(spec.rows)},
        {"GROUPS": spec.groups, "BLOCK": 1024},
    )
    return ends


def _buffers(spec: RaggedSpec) -> tuple[BufferArg, BufferArg, BufferArg]:
    return (
        BufferArg(0, spec.lhs_dtype),
        BufferArg(1, spec.rhs_dtype),
        BufferArg(3, spec.out_dtype),
    )


def _tiles(buffer: BufferArg, shape: tuple[int, ...], block: tuple[int, ...]) -> Descriptor:
    return Descriptor(buffer, shape, dense(shape), block)


def _launch(
    builder: PlanBuilder,
    kernel: object,
    spec: RaggedSpec,
    config: RaggedConfig,
    target: Target,
    tiles: int,
    arguments: dict[str, Argument],
    constants: dict[str, object],
) -> None:
    programs = tiles
    if config.residents:
        programs = min(tiles, cdiv(target.processors * config.residents, spec.batch))
    constants |= {
        "K": spec.k,
        "N": spec.n,
        "GROUPS": spec.groups,
        "PADDED": next_power_of_two(spec.groups),
        "PRECISION": spec.precision,
        "UP": spec.lhs_dtype != spec.rhs_dtype,
        "ACC": spec.acc_dtype,
        "TMA": config.tma,
        "TENSOR_CORES": config.tensor_cores,
        "HALVES": config.halves,
        "BM": config.bm,
        "BN": config.bn,
        "BK": config.bk,
        "PROGRAMS": programs,
    }
    builder.launch(
        kernel,
        (programs, spec.batch),
        arguments,
        constants,
        num_warps=config.warps,
        num_stages=config.stages,
    )


# ---- configurations ----


def _describable(columns: int, dtype: str) -> bool:
    """Whether TMA can move tiles of rows of so many elements."""
    return columns > 0 and columns * ITEMSIZE[dtype] % 16 == 0


def _takes_descriptors(spec: RaggedSpec, target: Target, *sides: tuple[int, str]) -> bool:
    if not target.descriptors or spec.operand_dtype == "fp64" or spec.precision == "ieee":
        return False
    if spec.operand_dtype != spec.lhs_dtype or spec.operand_dtype != spec.rhs_dtype:
        return False
    rows = spec.batch * spec.rows
    return 0 < rows <= INT32_MAX and all(_describable(*side) for side in sides)


def _kind(spec: RaggedSpec, tma: bool) -> str:
    operand = spec.operand_dtype
    if operand == "fp32":
        return spec.precision if spec.precision in ("ieee", "tf32x3") else "tf32"
    if operand == "fp64" or tma:
        return "fp64" if operand == "fp64" else "half"
    # A copy into shared memory moves at least four bytes; narrower ones pass through registers.
    return "narrow" if spec.k % 2 or spec.n % 2 else "half pointer"


_TILES = {
    "half": [
        (128, 256, 64, 8, 4),
        (128, 128, 64, 4, 4),
        (128, 128, 64, 8, 4),
        (64, 256, 64, 4, 4),
        (64, 128, 64, 4, 4),
    ],
    "half pointer": [(128, 128, 64, 8, 3), (128, 128, 32, 4, 4), (64, 64, 64, 4, 3)],
    "narrow": [(128, 128, 32, 8, 3), (64, 64, 64, 4, 3)],
    "tf32": [(128, 128, 32, 8, 4), (128, 128, 32, 4, 4), (64, 128, 32, 4, 4)],
    "tf32x3": [(128, 128, 32, 8, 3), (64, 64, 32, 4, 3)],
    "ieee": [(128, 128, 16, 8, 3), (64, 64, 16, 4, 3)],
    "fp64": [(64, 64, 16, 8, 3), (32, 32, 16, 4, 3)],
}
"""(rows, columns, depth, warps, stages) of the tiles worth trying."""


def on_tensor_cores(spec: RaggedSpec, target: Target) -> bool:
    """Whether the target's tensor cores multiply such operands."""
    if spec.operand_dtype == "fp64":
        return target.double_tensor_cores
    return spec.operand_dtype in FLOATING


def ragged_dot_configs(spec: RaggedSpec, target: Target) -> list[RaggedConfig]:
    """Configurations worth timing for a ragged dot, the default first."""
    if not on_tensor_cores(spec, target):
        return [RaggedConfig(False, 32, 32, 8, 4, 2, residents=0, tensor_cores=False)]
    rhs_columns = spec.k if spec.rhs_transposed else spec.n
    sides = (spec.k, spec.lhs_dtype), (rhs_columns, spec.rhs_dtype)
    tma = _takes_descriptors(spec, target, *sides)
    mean = cdiv(spec.rows, spec.groups)
    if mean <= 32 and spec.operand_dtype in ("fp16", "bf16"):
        bm = max(16, next_power_of_two(mean))
        few = [(bm, 64, 128, 4, 4), (bm, 128, 64, 4, 4), (bm, 128, 128, 4, 3)]
        return [RaggedConfig(tma, *tile, residents=0, swap=True) for tile in few]
    return _menu(spec, tma, min(mean, spec.rows), spec.n, flatten=False)


def ragged_contraction_configs(spec: RaggedSpec, target: Target) -> list[RaggedConfig]:
    """Configurations worth timing for a ragged contraction, the default first."""
    if not on_tensor_cores(spec, target):
        return [RaggedConfig(False, 32, 32, 8, 4, 2, residents=0, tensor_cores=False)]
    sides = (spec.k, spec.lhs_dtype), (spec.n, spec.rhs_dtype)
    tma = _takes_descriptors(spec, target, *sides)
    menu = _menu(spec, tma, spec.k, spec.n, flatten=tma)
    if _kind(spec, tma) == "half" and min(spec.k, spec.n) > 64:
        # Sums over few rows begin and end often, which two residents hide behind each other: over
        # 256 rows each, 302 us beside the 373 of one large tile at a time on an H200.
        paired = RaggedConfig(True, 128, 128, 32, 4, 4, residents=2)
        menu.insert(0 if cdiv(spec.rows, spec.groups) <= 512 else len(menu), paired)
    return menu


def _menu(
    spec: RaggedSpec, tma: bool, rows: int, columns: int, *, flatten: bool
) -> list[RaggedConfig]:
    tiles = _TILES[_kind(spec, tma)]
    fitting = [t for t in tiles if t[0] < 2 * rows and t[1] < 2 * columns]
    if not fitting:
        fitting = [
            (tiles[-1][0], min(tiles[-1][1], max(32, next_power_of_two(columns))), *tiles[-1][2:])
        ]
    return [
        RaggedConfig(
            tma,
            bm,
            bn,
            bk,
            warps,
            stages,
            residents=1 if tma else 0,
            flatten=flatten,
            halves=tma and bn >= 256,
        )
        for bm, bn, bk, warps, stages in fitting
    ]


def _shared_bytes(spec: RaggedSpec, config: RaggedConfig, target: Target, contraction: bool) -> int:
    """Shared memory of a pipelined kernel: the stages, and what passes through after them."""
    step = ITEMSIZE[spec.operand_dtype] * config.bk * (config.bm + config.bn)
    tile = config.bm * config.bn * ITEMSIZE[spec.out_dtype]
    stored = tile // 2 if config.halves else tile
    if contraction:
        # The rows that are left of a group have a step of their own.
        after = max(step // 2 + stored, tile)
        if target.tensor_memory and ITEMSIZE[spec.operand_dtype] == 4:
            after += tile  # of the sums, on their way out of tensor memory
    else:
        after = stored
    return config.stages * step + after + 256  # of barriers


def _fitted(
    spec: RaggedSpec, config: RaggedConfig, target: Target, contraction: bool = False
) -> RaggedConfig:
    """The configuration with as many of its stages as fit in shared memory."""
    limit = target.shared_memory // max(config.residents, 1) - 1024 * (config.residents > 1)
    while config.stages > 1 and _shared_bytes(spec, config, target, contraction) > limit:
        config = replace(config, stages=config.stages - 1)
    return config
