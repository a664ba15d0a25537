"""Forward attention with specialised warps, in Gluon: one producer of tiles, two consumers.

The producer keeps the TMA copies of key and value tiles ahead; each consumer warpgroup owns half of
a query tile and runs one tile's scores while the previous tile's values are still in the tensor
cores (Shah et al., "FlashAttention-3", arXiv:2407.08608). Plain logits, dense or causal with square
tiles. Gluon has no interpreter: `forward.attention_forward_kernel` computes the same there and
serves everything else.

Barriers come in pairs for each stage: `full`, which the producer's copies arrive at, and `free`, at
which both consumers arrive. A wait for phase p returns when the barrier's phase p is complete, so a
stage's phase alternates with every round through the stages; producers start with the opposite
phase, for which a fresh barrier does not block.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.attention.spec import (
    AttentionSpec,
    dense_strides,
    operand_strides,
    rows_view,
    serves_descriptors,
)
from genesis_fn.kernels.plan import Argument, BufferArg, Launch, Plan

# Triton 3.9 renamed the copies of 3.6.
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
BLOCK_M = 128
BLOCK_N = 128
HEAD_DIM = 128  # the general kernels are 10 % faster at 64
CONSUMER_REGISTERS = 240  # of a thread; the producer keeps 24


@gluon.jit
def _produce(
    q,
    k,
    v,
    q_tiles,
    k_tiles,
    v_tiles,
    q_full,
    k_full,
    k_free,
    v_full,
    v_free,
    batch,
    head,
    row,
    tiles,
    G: gl.constexpr,
    Q_HEAD: gl.constexpr,
    K_HEAD: gl.constexpr,
    V_HEAD: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Copies both query halves, then key and value tiles from the last to the first."""
    # From the last: a causal program's masked tile then comes first, outside of the main loop.
    N: gl.constexpr = k.block_type.shape[1]
    HALF: gl.constexpr = q.block_type.shape[1]
    for half in gl.static_range(2):
        bar = q_full.index(half)
        mbarrier.expect(bar, q.block_type.nbytes)
        copy_in(q, [batch, row + half * HALF, head * Q_HEAD], bar, q_tiles.index(half))
    for step in range(tiles):
        stage = step % STAGES
        phase = (step // STAGES) & 1
        col = (tiles - 1 - step) * N
        mbarrier.wait(k_free.index(stage), phase ^ 1)
        mbarrier.expect(k_full.index(stage), k.block_type.nbytes)
        copy_in(k, [batch, col, (head // G) * K_HEAD], k_full.index(stage), k_tiles.index(stage))
        mbarrier.wait(v_free.index(stage), phase ^ 1)
        mbarrier.expect(v_full.index(stage), v.block_type.nbytes)
        copy_in(v, [batch, col, (head // G) * V_HEAD], v_full.index(stage), v_tiles.index(stage))


@gluon.jit
def _consume(
    half: gl.constexpr,
    out,
    lse,
    q_tiles,
    k_tiles,
    v_tiles,
    q_full,
    k_full,
    k_free,
    v_full,
    v_free,
    batch,
    head,
    row,
    tiles,
    T: gl.constexpr,
    S: gl.constexpr,
    H: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    OUT_HEAD: gl.constexpr,
):
    """One warpgroup's half of the query tile: online softmax, then its rows of out and lse."""
    dtype: gl.constexpr = q_tiles.dtype
    M: gl.constexpr = q_tiles.shape[2]
    D: gl.constexpr = q_tiles.shape[3]
    N: gl.constexpr = k_tiles.shape[2]
    DV: gl.constexpr = v_tiles.shape[3]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16]
    )
    value_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 16]
    )
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=value_layout, k_width=2)
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    out_layout: gl.constexpr = gl.SliceLayout(1, value_layout)
    rows = row + half * M + gl.arange(0, M, row_layout)
    cols = gl.arange(0, N, gl.SliceLayout(0, score_layout))

    queries = q_tiles.index(half).reshape([M, D])
    mbarrier.wait(q_full.index(half), 0)
    mbarrier.wait(k_full.index(0), 0)
    keys = k_tiles.index(0).reshape([N, D]).permute([1, 0])
    zero = gl.zeros([M, N], gl.float32, score_layout)
    scores = warpgroup_mma(queries, keys, zero, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k_free.index(0), count=1)
    # Only the first tile that is processed, the last one in the row, needs a mask.
    last = (tiles - 1) * N
    if CAUSAL:
        seen = rows[:, None] >= (last + cols)[None, :]
        scores = gl.where(seen, scores, -1e30)
    elif S % N != 0:
        scores = gl.where((last + cols < S)[None, :], scores, -1e30)
    top = gl.max(scores, 1) * FACTOR
    probs = gl.exp2(scores * FACTOR - top[:, None])
    total = gl.sum(probs, 1)
    weights = gl.convert_layout(probs.to(dtype), operand)
    acc = gl.zeros([M, DV], gl.float32, value_layout)
    for step in range(1, tiles):
        stage = step % STAGES
        phase = (step // STAGES) & 1
        before = (step - 1) % STAGES
        mbarrier.wait(k_full.index(stage), phase)
        keys = k_tiles.index(stage).reshape([N, D]).permute([1, 0])
        zero = gl.zeros([M, N], gl.float32, score_layout)
        # Both products are in flight at once: this tile's scores, and the previous tile's values,
        # which run on under this tile's softmax.
        pending = warpgroup_mma(queries, keys, zero, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), ((step - 1) // STAGES) & 1)
        values = v_tiles.index(before).reshape([N, DV])
        acc_pending = warpgroup_mma(weights, values, acc, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[pending])
        mbarrier.arrive(k_free.index(stage), count=1)
        new_top = gl.maximum(top, gl.max(scores, 1) * FACTOR)
        probs = gl.exp2(scores * FACTOR - new_top[:, None])
        decay = gl.exp2(top - new_top)
        total = total * decay + gl.sum(probs, 1)
        top = new_top
        # Rescaled only now: the product in flight owns the accumulator until it has ended.
        acc = warpgroup_mma_wait(0, deps=[acc_pending])
        mbarrier.arrive(v_free.index(before), count=1)
        acc = acc * gl.convert_layout(decay, out_layout)[:, None]
        weights = gl.convert_layout(probs.to(dtype), operand)
    before = (tiles - 1) % STAGES
    mbarrier.wait(v_full.index(before), ((tiles - 1) // STAGES) & 1)
    values = v_tiles.index(before).reshape([N, DV])
    acc_pending = warpgroup_mma(weights, values, acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc_pending])
    if lse is not None:
        offset = (batch.to(gl.int64) * H + head) * T + rows
        gl.store(lse + offset, (top + gl.log2(total)) * LN2, mask=rows < T)
    acc = acc / gl.convert_layout(total, out_layout)[:, None]
    # This half's queries are spent: their memory carries the result out.
    staging = q_tiles.index(half).reshape([M, DV])
    staging.store(acc.to(dtype))
    fence_async_shared()
    copy_out(out, [batch, row + half * M, head * OUT_HEAD], q_tiles.index(half))
    tma.store_wait(pendings=0)


@gluon.jit
def attention_specialized_kernel(
    q,
    k,
    v,
    out,
    lse,
    T: gl.constexpr,
    S: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    Q_HEAD: gl.constexpr,
    K_HEAD: gl.constexpr,
    V_HEAD: gl.constexpr,
    OUT_HEAD: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    TILES: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """out and lse of two half tiles of queries of one head."""
    HALF: gl.constexpr = q.block_type.shape[1]
    N: gl.constexpr = k.block_type.shape[1]
    # As `scores.tile_and_head`, the longest tiles first.
    order = gl.program_id(0)
    head_group = order // (TILES * HEAD_GROUP)
    inside = order % (TILES * HEAD_GROUP)
    heads = gl.minimum(HEADS - head_group * HEAD_GROUP, HEAD_GROUP)
    tile = TILES - 1 - inside // heads
    line = head_group * HEAD_GROUP + inside % heads
    batch = line // H
    head = line % H
    row = tile * (2 * HALF)
    tiles = (S + N - 1) // N
    if CAUSAL:
        tiles = gl.minimum(tiles, (row + 2 * HALF + N - 1) // N)

    q_tiles = gl.allocate_shared_memory(q.dtype, [2] + q.block_type.shape, q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_type.shape, v.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for half in gl.static_range(2):
        mbarrier.init(q_full.index(half), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_free.index(stage), count=2)
    fence_async_shared()
    # Written here, since a tuple in a variable would lose which of its elements are constants.
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    0,
                    out,
                    lse,
                    q_tiles,
                    k_tiles,
                    v_tiles,
                    q_full,
                    k_full,
                    k_free,
                    v_full,
                    v_free,
                    batch,
                    head,
                    row,
                    tiles,
                    T,
                    S,
                    H,
                    FACTOR,
                    CAUSAL,
                    STAGES,
                    OUT_HEAD,
                ),
            ),
            (
                _consume,
                (
                    1,
                    out,
                    lse,
                    q_tiles,
                    k_tiles,
                    v_tiles,
                    q_full,
                    k_full,
                    k_free,
                    v_full,
                    v_free,
                    batch,
                    head,
                    row,
                    tiles,
                    T,
                    S,
                    H,
                    FACTOR,
                    CAUSAL,
                    STAGES,
                    OUT_HEAD,
                ),
            ),
            (
                _produce,
                (
                    q,
                    k,
                    v,
                    q_tiles,
                    k_tiles,
                    v_tiles,
                    q_full,
                    k_full,
                    k_free,
                    v_full,
                    v_free,
                    batch,
                    head,
                    row,
                    tiles,
                    G,
                    Q_HEAD,
                    K_HEAD,
                    V_HEAD,
                    STAGES,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, 24],
    )


def serves_specialized(spec: AttentionSpec, target: Target) -> bool:
    """Whether the specialised kernels compute `spec`: plain logits, no masks but the causal one."""
    return (
        target.warp_groups
        and serves_descriptors(spec, target)
        and spec.plain_scores
        and not spec.fully_masked_rows
        and not spec.every_tile_masked
        and spec.segments is None
        and spec.left < 0
        and spec.right in (-1, 0)
        and spec.head_dim == spec.v_dim == HEAD_DIM
        and (spec.right < 0 or spec.q_len == spec.kv_len)
    )


def specialized_plan(spec: AttentionSpec, *, stages: int = 2, head_group: int = 4) -> Plan:
    """The plan of `forward.general_plan`, by the specialised kernel."""
    b, t, s, n, kv = spec.batch, spec.q_len, spec.kv_len, spec.q_heads, spec.kv_heads
    d, dtype, half = spec.head_dim, spec.dtype, BLOCK_M // 2
    q_strides, k_strides, v_strides = operand_strides(spec)
    out_strides = dense_strides(t, n, d)
    arguments: dict[str, Argument] = {
        "q": rows_view(BufferArg(0, dtype), b, t, n, d, q_strides, half),
        "k": rows_view(BufferArg(1, dtype), b, s, kv, d, k_strides, BLOCK_N),
        "v": rows_view(BufferArg(2, dtype), b, s, kv, d, v_strides, BLOCK_N),
        "out": rows_view(BufferArg(3, dtype), b, t, n, d, out_strides, half),
    }
    constants: dict[str, object] = {}
    if spec.return_lse:
        arguments["lse"] = BufferArg(4, "fp32")
    else:
        constants["lse"] = None
    heads, tiles = b * n, -(-t // BLOCK_M)
    constants |= {
        "T": t,
        "S": s,
        "H": n,
        "G": spec.group,
        "Q_HEAD": q_strides[2],
        "K_HEAD": k_strides[2],
        "V_HEAD": v_strides[2],
        "OUT_HEAD": d,
        "FACTOR": spec.softmax_scale * LOG2E.value,
        "CAUSAL": spec.right == 0,
        "TILES": tiles,
        "HEADS": heads,
        "HEAD_GROUP": min(head_group, heads),
        "STAGES": stages,
        "CONSUMER_REGISTERS": CONSUMER_REGISTERS,
    }
    launch = Launch(
        attention_specialized_kernel, (tiles * heads, 1, 1), arguments, constants, num_warps=4
    )
    return Plan(3, 2 if spec.return_lse else 1, (launch,))
