"""Device functions shared by the attention kernels: tiles, logits, visibility, scheduling.

A score tile is either [queries, keys] or its transpose; `rows` are query indices and `cols` key
indices shaped to broadcast to the tile. Logits are kept in base 2, times log2(e), so that
probabilities are one exp2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.language.language import cast, up

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
# The logit of an invisible element. Finite, so that differences of two of them are not NaN, and far
# above the most negative float32, so that multiples of it do not overflow.
UNSEEN: tl.constexpr = tl.constexpr(-1e30)
# Row maxima (base 2) and log-sum-exps below this belong to rows that see no key.
MASKED_BELOW: tl.constexpr = tl.constexpr(-5e29)
# Log-sum-exp of such a row, in JAX -0.7 * finfo(float32).max (+ log(kv_len), absorbed by rounding).
MASKED_LSE: tl.constexpr = tl.constexpr(-2.3819763e38)


@triton.jit
def load_rows(
    source,
    batch,
    head,
    row,
    limit,
    BATCH: tl.constexpr,
    TIME: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TMA: tl.constexpr,
):
    """The tile [ROWS, BLOCK_DIM] of one head from `row` on, zero past `limit` rows or DIM columns.

    By TMA the descriptor's bounds take the place of `limit`: the array must end there.
    """
    if TMA:
        return tl.reshape(source.load([batch, row, head * HEAD]), (ROWS, BLOCK_DIM))
    else:
        rows = row + tl.arange(0, ROWS)
        cols = tl.arange(0, BLOCK_DIM)
        base = source + batch.to(tl.int64) * BATCH + head * HEAD
        pointers = base + rows.to(tl.int64)[:, None] * TIME + cols[None, :]
        inside = (rows < limit)[:, None]
        if DIM < BLOCK_DIM:
            inside = inside & (cols < DIM)[None, :]
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_rows(
    target,
    tile,
    batch,
    head,
    row,
    limit,
    heads: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TMA: tl.constexpr,
):
    """Stores a float32 tile at `row` of one head of a dense BTNH array with `limit` rows."""
    if TMA:
        narrow = cast(tile, target.dtype)
        target.store([batch, row, head * DIM], tl.reshape(narrow, (1, ROWS, BLOCK_DIM)))
    else:
        rows = row + tl.arange(0, ROWS)
        cols = tl.arange(0, BLOCK_DIM)
        base = target + (batch.to(tl.int64) * limit * heads + head) * DIM
        pointers = base + rows.to(tl.int64)[:, None] * (heads * DIM) + cols[None, :]
        inside = (rows < limit)[:, None] & (cols < DIM)[None, :]
        tl.store(pointers, cast(tile, target.dtype.element_ty), mask=inside)


@triton.jit
def logits(
    products,
    rows,
    cols,
    batch,
    head,
    bias,
    BIAS_BATCH: tl.constexpr,
    BIAS_HEAD: tl.constexpr,
    BIAS_ROW: tl.constexpr,
    BIAS_COL: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """(base-2 logits, derivative of the scaled product's soft cap) of a tile of dot products."""
    slope = 1.0
    if SOFTCAP > 0.0:
        # tanh(y) = 1 - 2 / (exp(2 y) + 1), exact at both infinities.
        tanh = 1.0 - 2.0 / (tl.exp2(products * (2.0 * LOG2E * SCALE / SOFTCAP)) + 1.0)
        slope = 1.0 - tanh * tanh
        scores = tanh * (SOFTCAP * LOG2E)
    else:
        scores = products * (SCALE * LOG2E)
    if bias is not None:
        base = bias + batch.to(tl.int64) * BIAS_BATCH + head.to(tl.int64) * BIAS_HEAD
        pointers = base + rows.to(tl.int64) * BIAS_ROW + cols * BIAS_COL
        added = up(tl.load(pointers, mask=(rows < T) & (cols < S), other=0.0))
        scores = tl.maximum(scores + added * LOG2E, UNSEEN)
    return scores, slope


@triton.jit
def visible(
    rows,
    cols,
    batch,
    head,
    col_end,
    mask,
    q_segments,
    kv_segments,
    MASK_BATCH: tl.constexpr,
    MASK_HEAD: tl.constexpr,
    MASK_ROW: tl.constexpr,
    MASK_COL: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    COLS_END: tl.constexpr,
):
    """Whether each element of a tile is visible: inside the keys, the band, the mask and the
    query's segment.

    COLS_END says whether the tile may reach past the end of the keys.
    """
    seen = tl.full((1, 1), 1, tl.int1)
    if COLS_END:
        seen = seen & (cols < col_end)
    if LEFT >= 0:
        seen = seen & (cols >= rows - LEFT)
    if RIGHT >= 0:
        seen = seen & (cols <= rows + RIGHT)
    if mask is not None:
        base = mask + batch.to(tl.int64) * MASK_BATCH + head.to(tl.int64) * MASK_HEAD
        pointers = base + rows.to(tl.int64) * MASK_ROW + cols * MASK_COL
        seen = seen & (tl.load(pointers, mask=(rows < T) & (cols < S), other=0) != 0)
    if q_segments is not None:
        of_rows = tl.load(q_segments + batch.to(tl.int64) * T + rows, mask=rows < T, other=0)
        of_cols = tl.load(kv_segments + batch.to(tl.int64) * S + cols, mask=cols < S, other=0)
        seen = seen & (of_rows == of_cols)
    return seen


@triton.jit
def keys_of(batch, kv_lengths, S: tl.constexpr):
    """The number of keys of a batch entry."""
    col_end = S
    if kv_lengths is not None:
        col_end = tl.minimum(tl.load(kv_lengths + batch), S)
    return col_end


@triton.jit
def key_bounds(
    first,
    last,
    col_end,
    spans,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASK_ALL: tl.constexpr,
):
    """(start, full start, full end, end): the keys that queries first..last see, in whole tiles.

    Tiles in [full start, full end) are seen completely; those around them need `visible`. `spans`
    are the four numbers of `segments.segment_spans_kernel` for these queries, or None.
    """
    # The first query bounds what the others see on the right, the last one on the left: a tile is
    # full if both see all of it.
    start = 0
    end = col_end
    full_start = 0
    full_end = col_end // BLOCK_N * BLOCK_N
    if LEFT >= 0:
        start = tl.maximum(first - LEFT, 0) // BLOCK_N * BLOCK_N
        edge = tl.maximum(last - LEFT, 0)
        full_start = (edge + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    if RIGHT >= 0:
        end = tl.maximum(tl.minimum(last + RIGHT + 1, col_end), 0)
        inner = tl.maximum(tl.minimum(first + RIGHT + 1, col_end), 0)
        full_end = inner // BLOCK_N * BLOCK_N
    return within_spans(start, full_start, full_end, end, spans, BLOCK_N, MASK_ALL)


@triton.jit
def query_bounds(
    first,
    last,
    spans,
    T: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    MASK_ALL: tl.constexpr,
):
    """(start, full start, full end, end): the queries that may see keys first..last, likewise."""
    start = 0
    end = T
    full_start = 0
    full_end = T
    if RIGHT >= 0:
        start = tl.maximum(first - RIGHT, 0) // BLOCK_M * BLOCK_M
        edge = tl.maximum(last - RIGHT, 0)
        full_start = (edge + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    if LEFT >= 0:
        end = tl.maximum(tl.minimum(last + LEFT + 1, T), 0)
        inner = tl.maximum(tl.minimum(first + LEFT + 1, T), 0)
        full_end = inner // BLOCK_M * BLOCK_M
    return within_spans(start, full_start, full_end, end, spans, BLOCK_M, MASK_ALL)


@triton.jit
def within_spans(
    start, full_start, full_end, end, spans, BLOCK: tl.constexpr, MASK_ALL: tl.constexpr
):
    """The bounds of `key_bounds` or `query_bounds` inside the spans of segments, in order."""
    if spans is not None:
        low = tl.load(spans)
        high = tl.load(spans + 1)
        full_low = tl.load(spans + 2)
        full_high = tl.load(spans + 3)
        start = tl.maximum(start, low // BLOCK * BLOCK)
        end = tl.minimum(end, high)
        full_start = tl.maximum(full_start, (full_low + BLOCK - 1) // BLOCK * BLOCK)
        full_end = tl.minimum(full_end, full_high // BLOCK * BLOCK)
    if MASK_ALL:
        full_end = start
    # A narrow band has no full tile: keep the bounds in order, so that the range is empty.
    full_start = tl.maximum(start, tl.minimum(full_start, end))
    full_end = tl.maximum(full_start, tl.minimum(full_end, end))
    return start, full_start, full_end, end


@triton.jit
def tile_and_head(
    order,
    TILES: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_GROUP: tl.constexpr,
    REVERSED: tl.constexpr,
):
    """(tile, batch * heads + head) of the `order`-th program, a head group's longest tiles first.

    A head group is HEAD_GROUP consecutive heads, few enough for their keys and values to stay in
    the L2 cache; inside one, all heads' tiles of one length run together, so that short ones fill
    the end.
    """
    head_group = order // (TILES * HEAD_GROUP)
    inside = order % (TILES * HEAD_GROUP)
    heads = tl.minimum(HEADS - head_group * HEAD_GROUP, HEAD_GROUP)
    tile = inside // heads
    if REVERSED:
        tile = TILES - 1 - tile
    return tile, head_group * HEAD_GROUP + inside % heads
