"""The gradient of attention's bias, in the bias's own shape."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.attention.scores import (
    LOG2E,
    MASKED_BELOW,
    key_bounds,
    keys_of,
    load_rows,
    logits,
    visible,
)
from genesis_fn.kernels.language.language import cast, dot


@triton.jit
def attention_dbias_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dbias,
    bias,
    mask,
    kv_lengths,
    q_segments,
    kv_segments,
    Q_BATCH: tl.constexpr,
    Q_TIME: tl.constexpr,
    Q_HEAD: tl.constexpr,
    K_BATCH: tl.constexpr,
    K_TIME: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_BATCH: tl.constexpr,
    V_TIME: tl.constexpr,
    V_HEAD: tl.constexpr,
    BIAS_BATCH: tl.constexpr,
    BIAS_HEAD: tl.constexpr,
    BIAS_ROW: tl.constexpr,
    BIAS_COL: tl.constexpr,
    MASK_BATCH: tl.constexpr,
    MASK_HEAD: tl.constexpr,
    MASK_ROW: tl.constexpr,
    MASK_COL: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PLAIN: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    MASK_ALL: tl.constexpr,
    FULLY_MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    BATCHES: tl.constexpr,
    BIAS_BATCHES: tl.constexpr,
    BIAS_HEADS: tl.constexpr,
    BIAS_ROWS: tl.constexpr,
    BIAS_COLS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One tile of the bias's gradient, summed over the axes along which the bias was broadcast.

    The program's grid indices are its column tile, row tile and (batch, head) of the bias; every
    axis of size one loops over the whole problem instead, in order.
    """
    bias_batch = tl.program_id(2) // BIAS_HEADS
    bias_head = tl.program_id(2) % BIAS_HEADS
    one_row: tl.constexpr = BIAS_ROWS == 1
    one_col: tl.constexpr = BIAS_COLS == 1
    row_low = tl.program_id(1) * BLOCK_M
    col_low = tl.program_id(0) * BLOCK_N
    row_high = row_low + BLOCK_M
    col_high = col_low + BLOCK_N
    if one_row:
        row_high = T
    if one_col:
        col_high = S
    # A loop for each axis that the bias broadcasts along: the order of the sum is fixed, and
    # nothing is accumulated in memory.
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for summed in range((BATCHES // BIAS_BATCHES) * (H // BIAS_HEADS)):
        batch = bias_batch + summed // (H // BIAS_HEADS)
        head = bias_head + summed % (H // BIAS_HEADS)
        col_end = keys_of(batch, kv_lengths, S)
        saved = (batch.to(tl.int64) * H + head) * T
        for row in range(row_low, row_high, BLOCK_M):
            rows = row + tl.arange(0, BLOCK_M)
            norm = tl.load(lse + saved + rows, mask=rows < T, other=float("inf")) * LOG2E
            mean = tl.load(delta + saved + rows, mask=rows < T, other=0.0)
            start, _full_start, _full_end, end = key_bounds(
                row, row + BLOCK_M - 1, col_end, None, LEFT, RIGHT, BLOCK_N, MASK_ALL
            )
            for col in range(tl.maximum(col_low, start), tl.minimum(col_high, end), BLOCK_N):
                cols = col + tl.arange(0, BLOCK_N)
                queries = load_rows(
                    q, batch, head, row, T, Q_BATCH, Q_TIME, Q_HEAD, BLOCK_M, D, BLOCK_D, TMA
                )
                cotangents = load_rows(
                    dout, batch, head, row, T, T * H * DV, H * DV, DV, BLOCK_M, DV, BLOCK_DV, TMA
                )
                keys = load_rows(
                    k, batch, head // G, col, S, K_BATCH, K_TIME, K_HEAD, BLOCK_N, D, BLOCK_D, TMA
                )
                values = load_rows(
                    v, batch, head // G, col, S, V_BATCH, V_TIME, V_HEAD, BLOCK_N, DV, BLOCK_DV, TMA
                )
                zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                scores = dot(queries, tl.trans(keys), zero, PRECISION)
                dprobs = dot(cotangents, tl.trans(values), zero, PRECISION)
                scores, _slope = logits(
                    scores,
                    rows[:, None],
                    cols[None, :],
                    batch,
                    head,
                    bias,
                    BIAS_BATCH,
                    BIAS_HEAD,
                    BIAS_ROW,
                    BIAS_COL,
                    T,
                    S,
                    SCALE,
                    SOFTCAP,
                )
                seen = visible(
                    rows[:, None],
                    cols[None, :],
                    batch,
                    head,
                    col_end,
                    mask,
                    q_segments,
                    kv_segments,
                    MASK_BATCH,
                    MASK_HEAD,
                    MASK_ROW,
                    MASK_COL,
                    T,
                    S,
                    LEFT,
                    RIGHT,
                    True,
                )
                seen = seen & (norm > MASKED_BELOW)[:, None]
                probs = tl.where(seen, tl.exp2(scores - norm[:, None]), 0.0)
                acc += probs * (dprobs - mean[:, None])
    rows = row_low + tl.arange(0, BLOCK_M)
    cols = col_low + tl.arange(0, BLOCK_N)
    base = dbias + bias_batch.to(tl.int64) * BIAS_BATCH + bias_head.to(tl.int64) * BIAS_HEAD
    element = dbias.dtype.element_ty
    if one_row and one_col:
        tl.store(base, cast(tl.sum(tl.sum(acc, 1), 0), element))
    elif one_row:
        tl.store(base + cols, cast(tl.sum(acc, 0), element), mask=cols < S)
    elif one_col:
        tl.store(base + rows.to(tl.int64), cast(tl.sum(acc, 1), element), mask=rows < T)
    else:
        pointers = base + rows.to(tl.int64)[:, None] * BIAS_ROW + cols[None, :]
        tl.store(pointers, cast(acc, element), mask=(rows < T)[:, None] & (cols < S)[None, :])
