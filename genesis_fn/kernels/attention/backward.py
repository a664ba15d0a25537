"""Backward attention without atomics: delta, then dK and dV by key tiles, dQ by query tiles, dbias.

With probabilities p, cotangent g of the output and delta = <out, g> of each row, the gradient of
the logits is ds = p * (<v, g> - delta), and dQ = scale * ds K, dK = scale * ds^T Q, dV = p^T g.

Probabilities are recomputed from the saved log-sum-exp (Dao, "FlashAttention-2", arXiv:2307.08691).
Every output element is summed by one program in a fixed order, the query heads that share a key
head inside the kernel, so results are the same from run to run. Fully masked rows (see `spec`) give
their uniform probabilities to dV and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.attention.bias_gradient import attention_dbias_kernel
from genesis_fn.kernels.attention.forward import AttentionConfig, heads_per_group
from genesis_fn.kernels.attention.scores import (
    LOG2E,
    MASKED_BELOW,
    key_bounds,
    keys_of,
    load_rows,
    logits,
    query_bounds,
    store_rows,
    tile_and_head,
    visible,
)
from genesis_fn.kernels.attention.segments import spans_launch, spans_workspace
from genesis_fn.kernels.attention.spec import (
    AttentionSpec,
    dense_strides,
    operand_strides,
    option_arguments,
    option_inputs,
    padded,
    problem_constants,
    rows_view,
    serves_descriptors,
)
from genesis_fn.kernels.language.language import cast, dot, up
from genesis_fn.kernels.plan import Argument, BufferArg, Launch, Plan, Workspace

LARGE_SHARED = 160 << 10  # what the widest tiles take, pipelined


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """The tiles of the dK/dV pass and of the dQ pass; in both block_m counts queries."""

    dkdv: AttentionConfig
    dq: AttentionConfig


@triton.jit
def attention_delta_kernel(
    out,
    dout,
    delta,
    T: tl.constexpr,
    H: tl.constexpr,
    LINES: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """delta[b, n, t] = <out[b, t, n], dout[b, t, n]>."""
    # It is the sum of p * dp of a row, which softmax's derivative subtracts: with `out` at hand it
    # takes no pass over the keys.
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, BLOCK_DV)
    offsets = line.to(tl.int64)[:, None] * DV + cols[None, :]
    inside = (line < LINES)[:, None] & (cols < DV)[None, :]
    a = up(tl.load(out + offsets, mask=inside, other=0.0))
    b = up(tl.load(dout + offsets, mask=inside, other=0.0))
    value = tl.sum(a * b, 1)
    head = line % H
    time = line // H % T
    offset = (line // (H * T) * H + head).to(tl.int64) * T + time
    tl.store(delta + offset, value, mask=line < LINES)


@triton.jit
def attention_dkdv_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dk,
    dv,
    bias,
    mask,
    kv_lengths,
    q_segments,
    kv_segments,
    spans,
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
    HEADS: tl.constexpr,
    HEAD_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dk and dv of one tile of BLOCK_N keys of one key head; score tiles are [keys, queries]."""
    # Under a causal mask the first keys are seen by the most queries and run first; with a left
    # window alone it is the last ones. Transposed score tiles are the left operands of both sums
    # over queries as they come.
    KV: tl.constexpr = H // G
    tile, line = tile_and_head(
        tl.program_id(0), (S + BLOCK_N - 1) // BLOCK_N, HEADS, HEAD_GROUP, RIGHT < 0 and LEFT >= 0
    )
    batch = line // KV
    kv_head = line % KV
    col = tile * BLOCK_N
    col_end = keys_of(batch, kv_lengths, S)
    mask_all: tl.constexpr = MASK_ALL or kv_lengths is not None
    banded: tl.constexpr = LEFT >= 0 or RIGHT >= 0 or spans is not None
    if spans is not None:
        spans += 4 * (batch * ((S + BLOCK_N - 1) // BLOCK_N) + tile)
    start, full_start, full_end, end = query_bounds(
        col, col + BLOCK_N - 1, spans, T, LEFT, RIGHT, BLOCK_M, mask_all
    )
    cols = col + tl.arange(0, BLOCK_N)
    keys = load_rows(k, batch, kv_head, col, S, K_BATCH, K_TIME, K_HEAD, BLOCK_N, D, BLOCK_D, TMA)
    values = load_rows(
        v, batch, kv_head, col, S, V_BATCH, V_TIME, V_HEAD, BLOCK_N, DV, BLOCK_DV, TMA
    )
    factor = 1.0
    if PLAIN:
        factor = SCALE * LOG2E
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    # One loop over the queries of all heads that share the keys, so that it is pipelined as one and
    # each element of dK and dV has a single writer.
    count = tl.cdiv(tl.maximum(end - start, 0), BLOCK_M)
    for step in tl.range(0, G * count, num_stages=STAGES):
        head = kv_head
        row = start + step * BLOCK_M
        if G > 1:
            head = kv_head * G + step // count
            row = start + step % count * BLOCK_M
        saved = (batch.to(tl.int64) * H + head) * T
        rows = row + tl.arange(0, BLOCK_M)
        queries = load_rows(
            q, batch, head, row, T, Q_BATCH, Q_TIME, Q_HEAD, BLOCK_M, D, BLOCK_D, TMA
        )
        cotangents = load_rows(
            dout, batch, head, row, T, T * H * DV, H * DV, DV, BLOCK_M, DV, BLOCK_DV, TMA
        )
        # Rows past the end get probability exp2(-inf) = 0.
        norm = tl.load(lse + saved + rows, mask=rows < T, other=float("inf")) * LOG2E
        mean = tl.load(delta + saved + rows, mask=rows < T, other=0.0)
        scores = dot(keys, tl.trans(queries), tl.zeros((BLOCK_N, BLOCK_M), tl.float32), PRECISION)
        slope = 1.0
        if not PLAIN:
            scores, slope = logits(
                scores,
                rows[None, :],
                cols[:, None],
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
        # From the saved log-sum-exp: no maximum, no sum and no rescaling.
        probs = tl.exp2(scores * factor - norm[None, :])
        if mask_all:
            seen = visible(
                rows[None, :],
                cols[:, None],
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
                kv_lengths is not None,
            )
            if FULLY_MASKED:
                seen = seen & (norm > MASKED_BELOW)[None, :]
            probs = tl.where(seen, probs, 0.0)
        elif banded:
            if (row < full_start) | (row >= full_end):
                seen = visible(
                    rows[None, :],
                    cols[:, None],
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
                    kv_lengths is not None,
                )
                if FULLY_MASKED:
                    seen = seen & (norm > MASKED_BELOW)[None, :]
                probs = tl.where(seen, probs, 0.0)
        dprobs = dot(
            values, tl.trans(cotangents), tl.zeros((BLOCK_N, BLOCK_M), tl.float32), PRECISION
        )
        dv_acc = dot(cast(probs, cotangents.dtype), cotangents, dv_acc, PRECISION)
        dscores = probs * (dprobs - mean[None, :])
        if SOFTCAP > 0.0:
            dscores = dscores * slope
        dk_acc = dot(cast(dscores, queries.dtype), queries, dk_acc, PRECISION)
    if FULLY_MASKED:
        # Fully masked rows spread their cotangent over all values; their logits have no gradient.
        for member in range(G):
            head = kv_head * G + member
            saved = (batch.to(tl.int64) * H + head) * T
            for row in tl.range(0, T, BLOCK_M, num_stages=1):
                rows = row + tl.arange(0, BLOCK_M)
                norm = tl.load(lse + saved + rows, mask=rows < T, other=0.0) * LOG2E
                fully_masked = norm < MASKED_BELOW
                if tl.sum(fully_masked.to(tl.int32), 0) > 0:
                    probs = tl.where(fully_masked[None, :] & (cols < S)[:, None], 1.0 / S, 0.0)
                    cotangents = load_rows(
                        dout,
                        batch,
                        head,
                        row,
                        T,
                        T * H * DV,
                        H * DV,
                        DV,
                        BLOCK_M,
                        DV,
                        BLOCK_DV,
                        TMA,
                    )
                    dv_acc = dot(cast(probs, cotangents.dtype), cotangents, dv_acc, PRECISION)
    # The scale of the logits is applied once, to the sum.
    store_rows(dk, dk_acc * SCALE, batch, kv_head, col, S, KV, BLOCK_N, D, BLOCK_D, TMA)
    store_rows(dv, dv_acc, batch, kv_head, col, S, KV, BLOCK_N, DV, BLOCK_DV, TMA)


@triton.jit
def attention_dq_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dq,
    bias,
    mask,
    kv_lengths,
    q_segments,
    kv_segments,
    spans,
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
    HEADS: tl.constexpr,
    HEAD_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dq of one tile of BLOCK_M queries of one head."""
    # Under a causal mask the last queries see the most keys and run first.
    tile, line = tile_and_head(
        tl.program_id(0), (T + BLOCK_M - 1) // BLOCK_M, HEADS, HEAD_GROUP, RIGHT >= 0
    )
    batch = line // H
    head = line % H
    row = tile * BLOCK_M
    col_end = keys_of(batch, kv_lengths, S)
    if spans is not None:
        spans += 4 * (batch * ((T + BLOCK_M - 1) // BLOCK_M) + tile)
    start, full_start, full_end, end = key_bounds(
        row, row + BLOCK_M - 1, col_end, spans, LEFT, RIGHT, BLOCK_N, MASK_ALL
    )
    rows = row + tl.arange(0, BLOCK_M)
    queries = load_rows(q, batch, head, row, T, Q_BATCH, Q_TIME, Q_HEAD, BLOCK_M, D, BLOCK_D, TMA)
    cotangents = load_rows(
        dout, batch, head, row, T, T * H * DV, H * DV, DV, BLOCK_M, DV, BLOCK_DV, TMA
    )
    # Saved in natural logarithm, while logits are base 2.
    saved = line.to(tl.int64) * T
    norm = tl.load(lse + saved + rows, mask=rows < T, other=float("inf")) * LOG2E
    mean = tl.load(delta + saved + rows, mask=rows < T, other=0.0)
    factor = 1.0
    if PLAIN:
        factor = SCALE * LOG2E
    # Keys past the end load as zeros and must be masked: exp2 of their logit is not zero.
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    cols_end: tl.constexpr = kv_lengths is not None or S % BLOCK_N != 0
    banded: tl.constexpr = LEFT >= 0 or RIGHT >= 0 or cols_end or spans is not None
    for col in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        cols = col + tl.arange(0, BLOCK_N)
        keys = load_rows(
            k, batch, head // G, col, S, K_BATCH, K_TIME, K_HEAD, BLOCK_N, D, BLOCK_D, TMA
        )
        values = load_rows(
            v, batch, head // G, col, S, V_BATCH, V_TIME, V_HEAD, BLOCK_N, DV, BLOCK_DV, TMA
        )
        scores = dot(queries, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
        dprobs = dot(
            cotangents, tl.trans(values), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION
        )
        slope = 1.0
        if not PLAIN:
            scores, slope = logits(
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
        probs = tl.exp2(scores * factor - norm[:, None])
        if MASK_ALL:
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
                cols_end,
            )
            if FULLY_MASKED:
                seen = seen & (norm > MASKED_BELOW)[:, None]
            probs = tl.where(seen, probs, 0.0)
        elif banded:
            if (col < full_start) | (col >= full_end):
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
                    cols_end,
                )
                if FULLY_MASKED:
                    seen = seen & (norm > MASKED_BELOW)[:, None]
                probs = tl.where(seen, probs, 0.0)
        dscores = probs * (dprobs - mean[:, None])
        if SOFTCAP > 0.0:
            dscores = dscores * slope
        acc = dot(cast(dscores, keys.dtype), keys, acc, PRECISION)
    store_rows(dq, acc * SCALE, batch, head, row, T, H, BLOCK_M, D, BLOCK_D, TMA)


def backward_configs(spec: AttentionSpec, target: Target) -> list[BackwardConfig]:
    """The configurations worth timing for `spec`, the default first."""
    # dK/dV holds two accumulators and four tiles, dQ one and four: what shared memory and registers
    # leave decides the sizes.
    wide = max(spec.head_dim, spec.v_dim)
    little = target.shared_memory < LARGE_SHARED
    if spec.dtype == "fp32":
        side = 16 if little and wide > 128 else 32
        tile = AttentionConfig(side, side, 4 if wide <= 64 else 8, 1)
        return [BackwardConfig(tile, tile)]
    if wide > 128:
        dkdv = AttentionConfig(32, 32 if little else 64, 8, 1)
        return [BackwardConfig(dkdv, AttentionConfig(64, 32, 8, 1))]
    whole = {spec.head_dim, spec.v_dim} <= {64, 128}
    masks = not spec.plain_scores or spec.every_tile_masked
    if masks or not whole or little and wide > 64:
        stages = 2 if whole else 1
        tile = AttentionConfig(32, 64, 4, stages)
        return [BackwardConfig(tile, AttentionConfig(64, 32, 4, stages))]
    dkdv = [(64, 64, 4, 2), (32, 64, 4, 3), (64, 128, 8, 2), (32, 128, 8, 3), (64, 128, 8, 3)]
    dq = [(128, 64, 8, 3), (64, 64, 4, 2), (128, 64, 8, 2), (128, 128, 8, 2), (128, 32, 8, 2)]
    if wide <= 64:
        dkdv[:2], dq[:2] = dkdv[1::-1], dq[1::-1]
    return [
        BackwardConfig(AttentionConfig(*a), AttentionConfig(*b))
        for a, b in zip(dkdv, dq, strict=True)
    ]


def general_backward_plan(
    spec: AttentionSpec, target: Target, config: BackwardConfig | None = None
) -> Plan:
    """The plan (query, key, value, out, lse, dout, *options) -> (dq, dk, dv[, dbias]).

    `out` and `lse` are the forward's, `dout` is dense like `out`; options are as in the forward.
    With a bias its gradient follows, in the bias's shape and dtype, rounded once.
    """
    config = config or backward_configs(spec, target)[0]
    wanted = option_inputs(spec)
    inputs = 6 + len(wanted)
    outputs = 4 if spec.bias is not None else 3
    delta = BufferArg(inputs + outputs, "fp32")
    workspaces = [Workspace(4 * spec.batch * spec.q_heads * spec.q_len)]
    steps = [delta_launch(spec, delta)]
    of_keys = of_queries = None  # the spans of each pass's tiles
    if spec.segments is not None:
        of_keys, of_queries = [BufferArg(inputs + outputs + n, "i32") for n in (1, 2)]
        k_tile, q_tile = config.dkdv.block_n, config.dq.block_m
        steps.append(spans_launch(spec, k_tile, of_keys, 6, keys=True))
        steps.append(spans_launch(spec, q_tile, of_queries, 6))
        workspaces.append(spans_workspace(spec.batch, spec.kv_len, k_tile))
        workspaces.append(spans_workspace(spec.batch, spec.q_len, q_tile))
    steps.append(_pass_launch(spec, target, config.dkdv, inputs, delta, of_keys, "dkdv"))
    steps.append(_pass_launch(spec, target, config.dq, inputs, delta, of_queries, "dq"))
    if spec.bias is not None:
        steps.append(_dbias_launch(spec, target, inputs, delta))
    return Plan(inputs, outputs, tuple(steps), tuple(workspaces))


def delta_launch(spec: AttentionSpec, delta: BufferArg) -> Launch:
    """The first launch of every backward plan: the row sums of out * dout."""
    lines = spec.batch * spec.q_heads * spec.q_len
    return Launch(
        attention_delta_kernel,
        (-(-lines // 32), 1, 1),
        {"out": BufferArg(3, spec.dtype), "dout": BufferArg(5, spec.dtype), "delta": delta},
        {
            "T": spec.q_len,
            "H": spec.q_heads,
            "LINES": lines,
            "DV": spec.v_dim,
            "BLOCK_DV": padded(spec.v_dim),
            "BLOCK": 32,
        },
        num_warps=4,
        num_stages=1,
    )


def _operands(
    spec: AttentionSpec, descriptors: bool, block_m: int, block_n: int, delta: BufferArg
) -> dict[str, Argument]:
    """The operands of all passes: q, k, v, dout as tiles or pointers, lse and delta."""
    b, t, s, n, kv = spec.batch, spec.q_len, spec.kv_len, spec.q_heads, spec.kv_heads
    d, dv = spec.head_dim, spec.v_dim
    q_strides, k_strides, v_strides = operand_strides(spec)
    rows: dict[str, Argument] = {
        "q": BufferArg(0, spec.dtype),
        "k": BufferArg(1, spec.dtype),
        "v": BufferArg(2, spec.dtype),
        "dout": BufferArg(5, spec.dtype),
    }
    if descriptors:
        dense = dense_strides(t, n, dv)
        rows = {
            "q": rows_view(BufferArg(0, spec.dtype), b, t, n, d, q_strides, block_m),
            "k": rows_view(BufferArg(1, spec.dtype), b, s, kv, d, k_strides, block_n),
            "v": rows_view(BufferArg(2, spec.dtype), b, s, kv, dv, v_strides, block_n),
            "dout": rows_view(BufferArg(5, spec.dtype), b, t, n, dv, dense, block_m),
        }
    return rows | {"lse": BufferArg(4, "fp32"), "delta": delta}


def _pass_launch(
    spec: AttentionSpec,
    target: Target,
    config: AttentionConfig,
    inputs: int,
    delta: BufferArg,
    spans: BufferArg | None,
    which: str,
) -> Launch:
    """The launch of the dK/dV pass (`which="dkdv"`) or of the dQ pass (`which="dq"`)."""
    b, t, s, n, kv = spec.batch, spec.q_len, spec.kv_len, spec.q_heads, spec.kv_heads
    d, dv = spec.head_dim, spec.v_dim
    m, c = config.block_m, config.block_n
    options, absent = option_arguments(spec, 6)
    descriptors = serves_descriptors(spec, target)
    arguments = _operands(spec, descriptors, m, c, delta)
    if which == "dq":
        results = {"dq": (0, t, n, d, m)}
        heads, tiles, head_group = b * n, -(-t // m), heads_per_group(spec, target)
        kernel = attention_dq_kernel
    else:
        results = {"dk": (1, s, kv, d, c), "dv": (2, s, kv, dv, c)}
        # One division by `group` counts key heads instead of query heads, the other is for the
        # queries and cotangents of `group` heads that each of them reads.
        heads, tiles = b * kv, -(-s // c)
        head_group = max(1, heads_per_group(spec, target) // spec.group**2)
        kernel = attention_dkdv_kernel
    for name, (number, length, count, dim, rows) in results.items():
        buffer = BufferArg(inputs + number, spec.dtype)
        strides = dense_strides(length, count, dim)
        arguments[name] = (
            rows_view(buffer, b, length, count, dim, strides, rows) if descriptors else buffer
        )
    constants = problem_constants(spec) | absent
    if spans is not None:
        options["spans"] = spans
    else:
        constants["spans"] = None
    constants |= {
        "TMA": descriptors,
        "HEADS": heads,
        "HEAD_GROUP": min(config.head_group or head_group, heads),
        "BLOCK_M": m,
        "BLOCK_N": c,
        "STAGES": config.num_stages,
    }
    return Launch(
        kernel,
        (tiles * heads, 1, 1),
        arguments | options,
        constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        max_registers=config.registers,
    )


def _dbias_launch(spec: AttentionSpec, target: Target, inputs: int, delta: BufferArg) -> Launch:
    assert spec.bias is not None
    options, absent = option_arguments(spec, 6)
    wide = max(spec.head_dim, spec.v_dim)
    m, c = 32, 32 if spec.dtype == "fp32" or wide > 128 else 64
    if target.shared_memory < LARGE_SHARED and spec.dtype == "fp32" and wide > 128:
        m, c = 16, 16
    arguments = _operands(spec, False, m, c, delta)
    arguments["dbias"] = BufferArg(inputs + 3, spec.bias_dtype)
    # A grid over the bias's own tiles: each program sums over what it broadcasts along.
    batches, heads, rows, cols = spec.bias
    constants = problem_constants(spec) | absent
    constants |= {
        "TMA": False,
        "BATCHES": spec.batch,
        "BIAS_BATCHES": batches,
        "BIAS_HEADS": heads,
        "BIAS_ROWS": rows,
        "BIAS_COLS": cols,
        "BLOCK_M": m,
        "BLOCK_N": c,
    }
    return Launch(
        attention_dbias_kernel,
        (-(-cols // c), -(-rows // m), batches * heads),
        arguments | options,
        constants,
        num_warps=4 if wide <= 128 else 8,
        num_stages=1,
    )
