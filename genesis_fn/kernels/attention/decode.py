"""Decode attention: few queries against a cache, which is split along the keys if it is long.

One program per (batch, key head, split) holds all queries of the heads that share the keys as the
rows of one tile, so that the cache is read once; a second kernel combines the partial softmaxes
(Dao et al., "Flash-Decoding", 2023). With many rows or few keys there is one split, whose program
finishes its queries itself. Lengths are read from device memory and the grid depends on the cache's
capacity only, so one captured graph serves every length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.attention.scores import (
    LN2,
    MASKED_BELOW,
    MASKED_LSE,
    UNSEEN,
    key_bounds,
    keys_of,
    load_rows,
    logits,
    visible,
)
from genesis_fn.kernels.attention.spec import (
    AttentionSpec,
    option_arguments,
    option_inputs,
    padded,
    problem_constants,
)
from genesis_fn.kernels.language.language import (
    cast,
    dot,
    launch_dependents,
    rounded_product,
    up,
    wait_for_dependencies,
)
from genesis_fn.kernels.plan import Argument, BufferArg, Launch, Plan, Workspace

MAX_ROWS = 128
# Rows of a key head up to which products are written out, by how operands are multiplied. On an
# H200, microseconds between the starts of kernels, 64 key heads of 256 keys of 64: one row of
# bfloat16 3.8 (tensor cores 5.0), two of 2,048 keys of 128 26.9 (21.9); of float32 in TF32 two rows
# 5.7 (7.6 in one stage), four 8.5 (7.7); exactly multiplied eight 13.2 (26).
VECTOR_ROWS = {"16-bit": 1, "tf32": 2, "ieee": 16}
# Bytes of keys and values from which on programs share them: a program reads 64 KiB in 0.6 us, and
# combining takes 0.8 us.
LONG_CACHE = 256 << 10
VECTOR_WARPS = 8
DEPTH = 8  # 16-byte loads of keys that a thread has under way
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}


@triton.jit
def mean_of_values(
    v,
    batch,
    kv_head,
    V_BATCH: tl.constexpr,
    V_TIME: tl.constexpr,
    V_HEAD: tl.constexpr,
    S: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The mean of all values of one key head: the result of a query that may see no key, all keys
    with equal weight, as in the other kernels."""
    dims = tl.arange(0, BLOCK_DV)
    value = tl.zeros((BLOCK_DV,), tl.float32)
    source = v + batch.to(tl.int64) * V_BATCH + kv_head * V_HEAD
    for col in range(0, S, BLOCK_N):
        cols = col + tl.arange(0, BLOCK_N)
        tile = tl.load(
            source + cols.to(tl.int64)[:, None] * V_TIME + dims[None, :],
            mask=(cols < S)[:, None] & (dims < DV)[None, :],
            other=0.0,
        )
        value += tl.sum(up(tile), 0) / S
    return value


@triton.jit
def store_split(
    top,
    total,
    acc,
    tops,
    totals,
    partials,
    out,
    lse,
    v,
    split,
    line,
    V_BATCH: tl.constexpr,
    V_TIME: tl.constexpr,
    V_HEAD: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    FULLY_MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Writes a split's partial softmax; out and lse of its queries if there is one split."""
    packed = tl.arange(0, BLOCK_M)
    outs = tl.arange(0, BLOCK_DV)
    if SPLITS > 1:
        offset = (line * SPLITS + split) * BLOCK_M + packed
        tl.store(tops + offset, top)
        tl.store(totals + offset, total)
        tl.store(partials + offset.to(tl.int64)[:, None] * BLOCK_DV + outs[None, :], acc)
    else:
        KV: tl.constexpr = H // G
        batch = line // KV
        kv_head = line % KV
        rows = packed // G
        heads = kv_head * G + packed % G
        norm = (top + tl.log2(tl.maximum(total, 1e-37))) * LN2
        if FULLY_MASKED:
            fully_masked = top < MASKED_BELOW
            total = tl.where(fully_masked, 1.0, total)
            norm = tl.where(fully_masked, MASKED_LSE, norm)
            if tl.max((fully_masked & (rows < T)).to(tl.int32), 0) > 0:
                mean = mean_of_values(
                    v, batch, kv_head, V_BATCH, V_TIME, V_HEAD, S, DV, BLOCK_DV, BLOCK_N
                )
                acc = tl.where(fully_masked[:, None], mean[None, :], acc)
        line_out = (batch * T + rows) * H + heads
        tl.store(
            out + line_out.to(tl.int64)[:, None] * DV + outs[None, :],
            cast(acc / total[:, None], out.dtype.element_ty),
            mask=(rows < T)[:, None] & (outs < DV)[None, :],
        )
        if lse is not None:
            tl.store(lse + (batch * H + heads) * T + rows, norm, mask=rows < T)


@triton.jit
def attention_split_kernel(
    q,
    k,
    v,
    tops,
    totals,
    partials,
    out,
    lse,
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
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
    FULLY_MASKED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """Maximum, sum and weighted values of CHUNK keys, for every query of one key head's group; out
    and lse of these queries if there is one split."""
    if PROGRAMMATIC and SPLITS > 1:
        # The combining kernel may be launched while this one works: it waits for its end.
        launch_dependents()
    KV: tl.constexpr = H // G
    split = tl.program_id(0)
    line = tl.program_id(1)
    batch = line // KV
    kv_head = line % KV
    # Row `packed` of the tile is query packed // G of head packed % G: few queries alone would not
    # fill the 16 rows of a tensor core's tile.
    packed = tl.arange(0, BLOCK_M)
    rows = packed // G
    heads = kv_head * G + packed % G
    col_end = keys_of(batch, kv_lengths, S)
    start, _full_start, _full_end, end = key_bounds(
        0, T - 1, col_end, None, LEFT, RIGHT, BLOCK_N, False
    )
    dims = tl.arange(0, BLOCK_D)
    offsets = rows[:, None] * Q_TIME + heads[:, None] * Q_HEAD + dims[None, :]
    inside = (rows < T)[:, None] & (dims < D)[None, :]
    queries = tl.load(q + batch.to(tl.int64) * Q_BATCH + offsets, mask=inside, other=0.0)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    # A split may begin behind the last key: its partial softmax is then empty, with maximum -inf.
    low = tl.maximum(split * CHUNK, start)
    high = tl.minimum(split * CHUNK + CHUNK, end)
    for col in tl.range(low, high, BLOCK_N, num_stages=STAGES):
        cols = col + tl.arange(0, BLOCK_N)
        keys = load_rows(
            k, batch, kv_head, col, col_end, K_BATCH, K_TIME, K_HEAD, BLOCK_N, D, BLOCK_D, False
        )
        values = load_rows(
            v, batch, kv_head, col, col_end, V_BATCH, V_TIME, V_HEAD, BLOCK_N, DV, BLOCK_DV, False
        )
        products = dot(queries, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
        scores, _slope = logits(
            products,
            rows[:, None],
            cols[None, :],
            batch,
            heads[:, None],
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
            heads[:, None],
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
        scores = tl.where(seen, scores, UNSEEN)
        new_top = tl.maximum(top, tl.max(scores, 1))
        probs = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(probs, 1)
        top = new_top
        acc = dot(cast(probs, values.dtype), values, acc * decay[:, None], PRECISION)
    store_split(
        top,
        total,
        acc,
        tops,
        totals,
        partials,
        out,
        lse,
        v,
        split,
        line,
        V_BATCH,
        V_TIME,
        V_HEAD,
        T,
        S,
        H,
        G,
        DV,
        BLOCK_DV,
        FULLY_MASKED,
        SPLITS,
        BLOCK_M,
        BLOCK_N,
    )


@triton.jit
def attention_vector_kernel(
    q,
    k,
    v,
    tops,
    totals,
    partials,
    out,
    lse,
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
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    FULLY_MASKED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    LANES: tl.constexpr,
    ROUNDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """As `attention_split_kernel`, for so few queries that tensor cores would mostly multiply
    padding: products written out, in float32.

    Key `col + LANES * j + w` belongs to lane w. Each lane has a softmax of its own, and they are
    combined once, behind the last key: LANES is such that threads hold whole lanes, so that inside
    of the loop no warp waits for another. With ROUNDED threads may exchange single products.
    """
    if PROGRAMMATIC and SPLITS > 1:
        launch_dependents()
    KV: tl.constexpr = H // G
    DEPTH: tl.constexpr = BLOCK_N // LANES
    split = tl.program_id(0)
    line = tl.program_id(1)
    batch = line // KV
    kv_head = line % KV
    packed = tl.arange(0, BLOCK_M)
    rows = packed // G
    heads = kv_head * G + packed % G
    col_end = keys_of(batch, kv_lengths, S)
    start, _full_start, _full_end, end = key_bounds(
        0, T - 1, col_end, None, LEFT, RIGHT, BLOCK_N, False
    )
    dims = tl.arange(0, BLOCK_D)
    offsets = rows[:, None] * Q_TIME + heads[:, None] * Q_HEAD + dims[None, :]
    inside = (rows < T)[:, None] & (dims < D)[None, :]
    queries = up(tl.load(q + batch.to(tl.int64) * Q_BATCH + offsets, mask=inside, other=0.0))
    # Tiles are [lane, depth, query, dimension]: Triton gives neighbouring threads the last axis,
    # and then the first.
    queries = tl.reshape(queries, (1, 1, BLOCK_M, BLOCK_D))
    of_queries = tl.reshape(rows, (1, 1, BLOCK_M))
    of_heads = tl.reshape(heads, (1, 1, BLOCK_M))
    order = tl.arange(0, LANES)[:, None] + tl.arange(0, DEPTH)[None, :] * LANES
    k_dims = dims[None, None, None, :]
    v_dims = tl.arange(0, BLOCK_DV)[None, None, None, :]
    k_base = k + batch.to(tl.int64) * K_BATCH + kv_head * K_HEAD
    v_base = v + batch.to(tl.int64) * V_BATCH + kv_head * V_HEAD
    # Finite: a lane may see minus infinities only, and another one more.
    top = tl.full((LANES, BLOCK_M), UNSEEN, tl.float32)
    total = tl.zeros((LANES, BLOCK_M), tl.float32)
    acc = tl.zeros((LANES, BLOCK_M, BLOCK_DV), tl.float32)
    low = tl.maximum(split * CHUNK, start)
    high = tl.minimum(split * CHUNK + CHUNK, end)
    for col in tl.range(low, high, BLOCK_N, num_stages=1):
        cols = col + order[:, :, None]
        ranks = cols.to(tl.int64)[:, :, :, None]
        there = (cols < col_end)[:, :, :, None]
        keys = tl.load(k_base + ranks * K_TIME + k_dims, mask=there & (k_dims < D), other=0.0)
        values = tl.load(v_base + ranks * V_TIME + v_dims, mask=there & (v_dims < DV), other=0.0)
        seen = visible(
            of_queries,
            cols,
            batch,
            of_heads,
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
        if ROUNDED:
            products = tl.sum(rounded_product(queries, up(keys)), 3)
        else:
            products = tl.sum(queries * up(keys), 3)
        scores, _slope = logits(
            products,
            of_queries,
            cols,
            batch,
            of_heads,
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
        scores = tl.where(seen, scores, UNSEEN)
        new_top = tl.maximum(top, tl.max(scores, 1))
        probs = tl.exp2(scores - new_top[:, None, :])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(probs, 1)
        top = new_top
        if ROUNDED:
            added = tl.sum(rounded_product(probs[:, :, :, None], up(values)), 1)
        else:
            added = tl.sum(probs[:, :, :, None] * up(values), 1)
        acc = acc * decay[:, :, None] + added
    highest = tl.max(top, 0)
    weights = tl.exp2(top - highest[None, :])
    total = tl.sum(rounded_product(total, weights), 0)
    acc = tl.sum(rounded_product(acc, weights[:, :, None]), 0)
    top = highest
    store_split(
        top,
        total,
        acc,
        tops,
        totals,
        partials,
        out,
        lse,
        v,
        split,
        line,
        V_BATCH,
        V_TIME,
        V_HEAD,
        T,
        S,
        H,
        G,
        DV,
        BLOCK_DV,
        FULLY_MASKED,
        SPLITS,
        BLOCK_M,
        BLOCK_N,
    )


@triton.jit
def attention_combine_kernel(
    tops,
    totals,
    partials,
    v,
    out,
    lse,
    V_BATCH: tl.constexpr,
    V_TIME: tl.constexpr,
    V_HEAD: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    FULLY_MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """out and lse of one query of one head from its partial softmaxes."""
    if PROGRAMMATIC:
        wait_for_dependencies()
    program = tl.program_id(0)
    batch = program // (T * H)
    row = program // H % T
    head = program % H
    KV: tl.constexpr = H // G
    line = batch * KV + head // G
    packed = row * G + head % G
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_DV)
    entries = (line * SPLITS + splits) * BLOCK_M + packed
    inside = splits < SPLITS
    tops_here = tl.load(tops + entries, mask=inside, other=float("-inf"))
    top = tl.max(tops_here, 0)
    # Finite, so that a row without keys (-inf in every split) does not subtract inf from inf.
    base = tl.maximum(top, MASKED_BELOW)
    weights = tl.exp2(tops_here - base)
    totals_here = tl.load(totals + entries, mask=inside, other=0.0)
    total = tl.sum(rounded_product(weights, totals_here), 0)
    parts = tl.load(
        partials + entries.to(tl.int64)[:, None] * BLOCK_DV + dims[None, :],
        mask=inside[:, None],
        other=0.0,
    )
    value = tl.sum(rounded_product(parts, weights[:, None]), 0)
    norm = (top + tl.log2(tl.maximum(total, 1e-37))) * LN2
    if FULLY_MASKED:
        fully_masked = top < MASKED_BELOW
        total = tl.where(fully_masked, 1.0, total)
        norm = tl.where(fully_masked, MASKED_LSE, norm)
        if fully_masked:
            value = mean_of_values(
                v, batch, head // G, V_BATCH, V_TIME, V_HEAD, S, DV, BLOCK_DV, BLOCK_N
            )
    value = value / total
    element = out.dtype.element_ty
    tl.store(out + program.to(tl.int64) * DV + dims, cast(value, element), mask=dims < DV)
    if lse is not None:
        tl.store(lse + (batch * H + head) * T + row, norm)


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How few queries are computed: keys of a tile, warps, the lanes of the kernel that writes its
    products out (0: the one of tensor cores), and the tiles that the other one loads ahead."""

    block_n: int
    num_warps: int
    lanes: int = 0
    stages: int = 3


def decode_config(spec: AttentionSpec, target: Target) -> DecodeConfig:
    """The configuration for `spec`, by its rows for a key head."""
    if spec.dtype != "fp32":
        most = VECTOR_ROWS["16-bit"]
    else:
        most = VECTOR_ROWS["ieee" if spec.precision == "ieee" else "tf32"]
    # A thread holds parts of all queries and results, twice as much of heads wider than 128.
    held = spec.q_len * spec.group * max(1, padded(max(spec.head_dim, spec.v_dim)) // 128)
    return vector_config(spec) if held <= most else matrix_config(spec, target)


def matrix_config(spec: AttentionSpec, target: Target) -> DecodeConfig:
    """Tensor cores."""
    if spec.dtype != "fp32":
        return DecodeConfig(32 if spec.v_dim > 128 else 64, 4)
    wide = padded(max(spec.head_dim, spec.v_dim))
    block_n = 64 if wide <= 64 else 32
    # Of eight rows for a key head, one stage takes 7.5 us, two 6.7 and three 5.8.
    tile = 2 * block_n * wide * ITEMSIZE[spec.dtype]
    stages = max(1, min(3, 4 * target.shared_memory // 5 // tile))
    return DecodeConfig(block_n, 4, stages=stages)


def vector_config(spec: AttentionSpec) -> DecodeConfig:
    """Products written out. A thread loads 16 bytes of each of `DEPTH` keys at once, and as much of
    their values."""
    rows = spec.q_len * spec.group
    wide = padded(max(spec.head_dim, spec.v_dim))
    loads = wide * ITEMSIZE[spec.dtype] // 16  # of 16 bytes, for a key
    threads = min(32, loads)
    # The products of all rows with a key are in registers at once.
    depth = max(1, 2 * DEPTH // (max(1, loads // 32) * max(2, rows)))
    # Not many more lanes than keys, but at least a warp of them.
    keys = 1 << (spec.kv_len - 1).bit_length()
    lanes = min(32 * VECTOR_WARPS, max(keys * threads, 32)) // threads
    depth = max(1, min(depth, keys // lanes))
    return DecodeConfig(lanes * depth, lanes * threads // 32, lanes)


def decode_splits(spec: AttentionSpec, target: Target, block_n: int = 64) -> int:
    """The number of programs that share a (batch, key head)'s keys: about one per multiprocessor,
    and one where combining would take longer than reading all keys."""
    if spec.kv_len * (spec.head_dim + spec.v_dim) * ITEMSIZE[spec.dtype] < LONG_CACHE:
        return 1
    # By the capacity of the cache: the grid, and with it a captured graph, serves every length.
    tiles = -(-spec.kv_len // block_n)
    return max(1, min(tiles, target.processors // (spec.batch * spec.kv_heads)))


def decode_plan(
    spec: AttentionSpec,
    target: Target,
    *,
    splits: int | None = None,
    config: DecodeConfig | None = None,
) -> Plan:
    """The plan (query, key, value, *options) -> (out, lse), as the forward's, for few queries.

    `q_len * q_heads / kv_heads` may be at most 128. A cache of capacity `kv_len` whose valid part
    is `kv_lengths` is read only so far.
    """
    rows = spec.q_len * spec.group
    if rows > MAX_ROWS:
        raise ValueError(
            f"decode attention: {spec.q_len} queries of {spec.group} heads per key head make "
            f"{rows} rows, at most {MAX_ROWS} fit; use the general plan"
        )
    config = config or decode_config(spec, target)
    block_n = config.block_n
    splits = splits or decode_splits(spec, target, block_n)
    kernel: Any = attention_vector_kernel if config.lanes else attention_split_kernel
    block_m = 1 << (rows - 1).bit_length() if config.lanes else padded(rows)
    chunk = -(-spec.kv_len // (splits * block_n)) * block_n
    wanted = option_inputs(spec)
    inputs = 3 + len(wanted)
    outputs = 2 if spec.return_lse else 1
    options, absent = option_arguments(spec, 3)
    constants = problem_constants(spec) | absent
    constants["PROGRAMMATIC"] = target.programmatic_launch
    parts: dict[str, Argument] = {
        name: BufferArg(inputs + outputs + i, "fp32")
        for i, name in enumerate(("tops", "totals", "partials"))
    }
    results: dict[str, Argument] = {"out": BufferArg(inputs, spec.dtype)}
    if spec.return_lse:
        results["lse"] = BufferArg(inputs + 1, "fp32")
    written, left = (parts, ("out", "lse")) if splits > 1 else (results, (*parts, "lse"))
    sizes = {
        "CHUNK": chunk,
        "SPLITS": splits,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "LANES": config.lanes,
        "ROUNDED": (spec.head_dim | spec.v_dim) % 2 == 1 or _padding_differs(spec),
        "STAGES": config.stages,
    }
    # The constants of a problem are those of the general kernels; not all are parameters here.
    names = set(kernel.arg_names)
    known = constants | {name: None for name in left if name not in written} | sizes
    split = Launch(
        kernel,
        (splits, spec.batch * spec.kv_heads, 1),
        {
            "q": BufferArg(0, spec.dtype),
            "k": BufferArg(1, spec.dtype),
            "v": BufferArg(2, spec.dtype),
        }
        | written
        | options,
        {name: value for name, value in known.items() if name in names},
        num_warps=config.num_warps,
        num_stages=3,
    )
    if splits == 1:
        return Plan(inputs, outputs, (split,))
    arguments = parts | {"v": BufferArg(2, spec.dtype)} | results
    combine = _combine_launch(spec, constants, splits, block_m, arguments)
    # A maximum, a sum and a row of values for each split of each row, in float32.
    lines = spec.batch * spec.kv_heads * splits * block_m
    scratch = (lines, lines, lines * padded(spec.v_dim))
    return Plan(inputs, outputs, (split, combine), tuple(Workspace(4 * size) for size in scratch))


def _padding_differs(spec: AttentionSpec) -> bool:
    """Whether threads that hold lanes of keys do not hold the same lanes of values."""
    return padded(spec.head_dim) != padded(spec.v_dim)


def _combine_launch(
    spec: AttentionSpec,
    constants: dict[str, Any],
    splits: int,
    block_m: int,
    arguments: dict[str, Argument],
) -> Launch:
    absent = {} if spec.return_lse else {"lse": None}
    shared = (
        "V_BATCH",
        "V_TIME",
        "V_HEAD",
        "T",
        "S",
        "H",
        "G",
        "DV",
        "BLOCK_DV",
        "FULLY_MASKED",
        "PROGRAMMATIC",
    )
    return Launch(
        attention_combine_kernel,
        (spec.batch * spec.q_len * spec.q_heads, 1, 1),
        arguments,
        {name: constants[name] for name in shared}
        | absent
        | {
            "SPLITS": splits,
            "BLOCK_SPLITS": 1 << (splits - 1).bit_length(),
            "BLOCK_M": block_m,
            "BLOCK_N": 32,
        },
        num_warps=4,
        num_stages=1,
        programmatic=constants["PROGRAMMATIC"],
    )
