"""Forward attention: one kernel for every option, tiles by TMA where the shapes allow it.

Online softmax over key tiles (Dao, "FlashAttention-2", arXiv:2307.08691), in base 2 with the scale
folded into the exponent. Key tiles outside the causal or window band are skipped, those inside it
need no mask; heads that share keys run side by side, and query tiles with many key tiles run first,
so that short ones fill the end of the launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.attention.scores import (
    LN2,
    LOG2E,
    MASKED_BELOW,
    MASKED_LSE,
    UNSEEN,
    key_bounds,
    keys_of,
    load_rows,
    logits,
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
    problem_constants,
    rows_view,
    serves_descriptors,
)
from genesis_fn.kernels.language.language import cast, dot
from genesis_fn.kernels.plan import Argument, BufferArg, Launch, Plan, Workspace


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Tuning choices of an attention kernel: tile [block_m, block_n], warps, pipeline stages.

    `head_group` is how many heads run side by side (0: as many as fit in the L2 cache); `registers`
    caps those of a thread (None: no cap), so that two programs share a multiprocessor and one's
    softmax hides under the other's products.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    head_group: int = 0
    registers: int | None = None


@triton.jit
def attention_forward_kernel(
    q,
    k,
    v,
    out,
    lse,
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
    """out and lse of one tile of BLOCK_M queries of one head."""
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
    # With plain logits the running maximum is scaled and the tile is not: one fused multiply-add
    # per element does for scale and shift.
    factor = 1.0
    if PLAIN:
        factor = SCALE * LOG2E
    # Online softmax: the running maximum, sum of exponentials and weighted values of each row. The
    # division by the sum is left to the end: once a row, not once a tile.
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    cols_end: tl.constexpr = kv_lengths is not None or S % BLOCK_N != 0
    banded: tl.constexpr = LEFT >= 0 or RIGHT >= 0 or cols_end or spans is not None
    for col in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        keys = load_rows(
            k, batch, head // G, col, S, K_BATCH, K_TIME, K_HEAD, BLOCK_N, D, BLOCK_D, TMA
        )
        scores = dot(queries, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
        cols = col + tl.arange(0, BLOCK_N)
        if not PLAIN:
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
            scores = tl.where(seen, scores, UNSEEN / factor)
        elif banded:
            # A branch of the whole program: only tiles at the band's edges pay for the mask.
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
                scores = tl.where(seen, scores, UNSEEN / factor)
        # What was summed so far is rescaled to the new maximum, so that no exponent is positive.
        new_top = tl.maximum(top, tl.max(scores, 1) * factor)
        probs = tl.exp2(scores * factor - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(probs, 1)
        top = new_top
        values = load_rows(
            v, batch, head // G, col, S, V_BATCH, V_TIME, V_HEAD, BLOCK_N, DV, BLOCK_DV, TMA
        )
        acc = acc * decay[:, None]
        acc = dot(cast(probs, values.dtype), values, acc, PRECISION)
    if FULLY_MASKED:
        # These rows attend to all keys equally, also those outside of the tiles that were visited.
        # Programs without such rows skip the second walk over the values.
        fully_masked = (top < MASKED_BELOW) & (rows < T)
        total = tl.where(top < MASKED_BELOW, 1.0, total)
        acc = tl.where((top < MASKED_BELOW)[:, None], 0.0, acc)
        if tl.sum(fully_masked.to(tl.int32), 0) > 0:
            for col in tl.range(0, S, BLOCK_N, num_stages=1):
                cols = col + tl.arange(0, BLOCK_N)
                probs = tl.where(fully_masked[:, None] & (cols < S)[None, :], 1.0 / S, 0.0)
                values = load_rows(
                    v, batch, head // G, col, S, V_BATCH, V_TIME, V_HEAD, BLOCK_N, DV, BLOCK_DV, TMA
                )
                acc = dot(cast(probs, values.dtype), values, acc, PRECISION)
    acc = acc / total[:, None]
    store_rows(out, acc, batch, head, row, T, H, BLOCK_M, DV, BLOCK_DV, TMA)
    if lse is not None:
        value = (top + tl.log2(total)) * LN2
        if FULLY_MASKED:
            value = tl.where(top < MASKED_BELOW, MASKED_LSE, value)
        tl.store(lse + line.to(tl.int64) * T + rows, value, mask=rows < T)


def forward_configs(spec: AttentionSpec, target: Target) -> list[AttentionConfig]:
    """The configurations worth timing for `spec`, the default first."""
    if not serves_descriptors(spec, target):
        return [_pointer_config(spec)]
    wide = max(spec.head_dim, spec.v_dim)
    # Wider heads leave fewer registers: the accumulator of a row has as many elements as its
    # values.
    if wide == 256:
        return [AttentionConfig(128, 64, 8, 2), AttentionConfig(64, 64, 4, 2)]
    if not spec.plain_scores or spec.every_tile_masked:
        return [AttentionConfig(64, 64, 4, 2), AttentionConfig(128, 32, 8, 3)]
    tiles = [(64, 64, 4, 2), (128, 64, 8, 3), (128, 32, 8, 3), (128, 128, 8, 2), (128, 64, 8, 2)]
    found = [AttentionConfig(*x) for x in tiles]
    # At 128 registers, two programs of eight warps share a multiprocessor.
    shared = AttentionConfig(128, 64, 8, 2, registers=128)
    return [shared, *found] if wide > 64 else [*found, shared]


def _pointer_config(spec: AttentionSpec) -> AttentionConfig:
    wide = max(spec.head_dim, spec.v_dim)
    if spec.dtype == "fp32":
        return AttentionConfig(32, 32, 4 if wide <= 64 else 8, 1)
    if wide > 128:
        return AttentionConfig(64, 32, 4, 2)
    return AttentionConfig(64, 64, 4, 2)


def heads_per_group(spec: AttentionSpec, target: Target) -> int:
    """The number of query heads in a head group: as many as keep their keys and values in the L2
    cache."""
    size = 4 if spec.dtype == "fp32" else 2
    pair = spec.kv_len * (spec.head_dim + spec.v_dim) * size
    # A little less than half of it, as measured on an H200.
    shared = max(1, 12 * target.l2 // 25 // pair)
    return min(shared * spec.group, spec.batch * spec.q_heads)


def general_plan(
    spec: AttentionSpec, target: Target, config: AttentionConfig | None = None
) -> Plan:
    """The plan (query, key, value, *options) -> (out [B, T, N, V], lse [B, N, T] float32).

    Options follow in the order of `option_inputs(spec)`; without `return_lse` there is no lse.
    lse is in natural logarithm.
    """
    config = config or forward_configs(spec, target)[0]
    descriptors = serves_descriptors(spec, target)
    wanted = option_inputs(spec)
    inputs = 3 + len(wanted)
    options, absent = option_arguments(spec, 3)
    arguments: dict[str, Argument] = {"q": BufferArg(0, spec.dtype), "k": BufferArg(1, spec.dtype)}
    arguments |= {"v": BufferArg(2, spec.dtype), "out": BufferArg(inputs, spec.dtype)}
    if descriptors:
        q_strides, k_strides, v_strides = operand_strides(spec)
        out_strides = dense_strides(spec.q_len, spec.q_heads, spec.v_dim)
        b, t, s, n, d, dv = (
            spec.batch,
            spec.q_len,
            spec.kv_len,
            spec.q_heads,
            spec.head_dim,
            spec.v_dim,
        )
        kv = spec.kv_heads
        m, c = config.block_m, config.block_n
        arguments = {
            "q": rows_view(BufferArg(0, spec.dtype), b, t, n, d, q_strides, m),
            "k": rows_view(BufferArg(1, spec.dtype), b, s, kv, d, k_strides, c),
            "v": rows_view(BufferArg(2, spec.dtype), b, s, kv, dv, v_strides, c),
            "out": rows_view(BufferArg(inputs, spec.dtype), b, t, n, dv, out_strides, m),
        }
    constants = problem_constants(spec) | absent
    if spec.return_lse:
        arguments["lse"] = BufferArg(inputs + 1, "fp32")
    else:
        constants["lse"] = None
    steps: list[Launch] = []
    workspaces: list[Workspace] = []
    outputs = 2 if spec.return_lse else 1
    if spec.segments is not None:
        options["spans"] = spans = BufferArg(inputs + outputs, "i32")
        steps.append(spans_launch(spec, config.block_m, spans, 3))
        workspaces.append(spans_workspace(spec.batch, spec.q_len, config.block_m))
    else:
        constants["spans"] = None
    heads = spec.batch * spec.q_heads
    launch = Launch(
        attention_forward_kernel,
        (-(-spec.q_len // config.block_m) * heads, 1, 1),
        arguments | options,
        constants
        | {
            "TMA": descriptors,
            "HEADS": heads,
            "HEAD_GROUP": min(config.head_group or heads_per_group(spec, target), heads),
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "STAGES": config.num_stages,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        max_registers=config.registers,
    )
    return Plan(inputs, outputs, (*steps, launch), tuple(workspaces))
