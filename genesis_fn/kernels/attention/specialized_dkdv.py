"""The dK/dV pass of the attention backward with specialised warps, in Gluon.

A producer warp streams query tiles and their cotangents, of every query head that shares the key
head; each of two consumer warpgroups holds half of a key tile and of its values and accumulates its
rows of dK and dV; the product for dK runs on under the next tile's. Serves what `specialized`
serves, from one full tile on; `backward.attention_dkdv_kernel` computes the same for the
interpreter and serves everything else. `docs/experiments.md` has the variants that were tried.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from genesis_fn.kernels.attention.spec import (
    AttentionSpec,
    dense_strides,
    operand_strides,
    rows_view,
)
from genesis_fn.kernels.attention.specialized import CONSUMER_REGISTERS, LOG2E, copy_in, copy_out
from genesis_fn.kernels.plan import Argument, BufferArg, Launch

BLOCK_KEYS = 128
BLOCK_QUERIES = 64  # tiles of 32 with both products overlapped were 15 % slower


@gluon.jit
def _produce(
    q,
    k,
    v,
    dout,
    q_tiles,
    o_tiles,
    k_tiles,
    v_tiles,
    kv_full,
    full,
    free,
    batch,
    kv_head,
    col,
    first,
    count,
    steps,
    G: gl.constexpr,
    Q_HEAD: gl.constexpr,
    K_HEAD: gl.constexpr,
    V_HEAD: gl.constexpr,
    O_HEAD: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Copies both halves of keys and values, then query tiles with their cotangents."""
    N: gl.constexpr = q.block_type.shape[1]
    HALF: gl.constexpr = k.block_type.shape[1]
    for half in gl.static_range(2):
        bar = kv_full.index(half)
        mbarrier.expect(bar, k.block_type.nbytes + v.block_type.nbytes)
        copy_in(k, [batch, col + half * HALF, kv_head * K_HEAD], bar, k_tiles.index(half))
        copy_in(v, [batch, col + half * HALF, kv_head * V_HEAD], bar, v_tiles.index(half))
    # Queries and cotangents share a barrier: a step needs both.
    for step in range(steps):
        stage = step % STAGES
        head = kv_head * G + step // count
        row = (first + step % count) * N
        mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
        bar = full.index(stage)
        mbarrier.expect(bar, q.block_type.nbytes + dout.block_type.nbytes)
        copy_in(q, [batch, row, head * Q_HEAD], bar, q_tiles.index(stage))
        copy_in(dout, [batch, row, head * O_HEAD], bar, o_tiles.index(stage))


@gluon.jit
def _step(
    step,
    dk_pending,
    dv_pending,
    keys,
    values,
    positions,
    lse,
    delta,
    batch,
    kv_head,
    first,
    count,
    q_tiles,
    o_tiles,
    full,
    free,
    T: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Adds one query tile to dK and dV; its last product is left in flight."""
    M: gl.constexpr = keys.shape[0]
    D: gl.constexpr = keys.shape[1]
    DV: gl.constexpr = values.shape[1]
    N: gl.constexpr = q_tiles.shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16]
    )
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 16]
    )
    dk_operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dk_layout, k_width=2)
    dv_operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dv_layout, k_width=2)
    stage = step % STAGES
    rows = (first + step % count) * N + gl.arange(0, N, gl.SliceLayout(0, score_layout))
    saved = (batch * H + kv_head * G + step // count) * T + rows
    # Rows past the end get probability exp2(-inf) = 0.
    if T % (2 * M) == 0:
        norm = gl.load(lse + saved) * LOG2E
    else:
        norm = gl.load(lse + saved, mask=rows < T, other=float("inf")) * LOG2E
    queries = q_tiles.index(stage).reshape([N, D])
    cotangents = o_tiles.index(stage).reshape([N, DV])
    zero = gl.zeros([M, N], gl.float32, score_layout)
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    # In flight are now dK of the previous tile and both products of this tile's scores; the wait
    # leaves the last of them.
    scores_pending = warpgroup_mma(
        keys, queries.permute([1, 0]), zero, use_acc=False, is_async=True
    )
    dprobs_pending = warpgroup_mma(
        values, cotangents.permute([1, 0]), zero, use_acc=False, is_async=True
    )
    scores, dk_acc, dv_acc = warpgroup_mma_wait(1, deps=[scores_pending, dk_pending, dv_pending])
    # The products that were in flight were the last readers of the previous tile.
    mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    probs = gl.exp2(scores * FACTOR - norm[None, :])
    # One mask for all tiles: masked ones in code of their own were not faster.
    if CAUSAL:
        probs = gl.where(rows[None, :] >= positions[:, None], probs, 0.0)
    weights = gl.convert_layout(probs.to(q_tiles.dtype), dv_operand)
    dv_next = warpgroup_mma(weights, cotangents, dv_acc, is_async=True)
    # Read only now: while the scores are held there is no register for it.
    if T % (2 * M) == 0:
        mean = gl.load(delta + saved)
    else:
        mean = gl.load(delta + saved, mask=rows < T, other=0.0)
    dprobs, dv_next = warpgroup_mma_wait(0, deps=[dprobs_pending, dv_next])
    dscores = probs * (dprobs - mean[None, :])
    slopes = gl.convert_layout(dscores.to(q_tiles.dtype), dk_operand)
    return warpgroup_mma(slopes, queries, dk_acc, is_async=True), dv_next


@gluon.jit
def _consume(
    half: gl.constexpr,
    dk,
    dv,
    lse,
    delta,
    q_tiles,
    o_tiles,
    k_tiles,
    v_tiles,
    kv_full,
    full,
    free,
    batch,
    kv_head,
    col,
    first,
    count,
    steps,
    T: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    SCALE: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One warpgroup's half of the key tile."""
    M: gl.constexpr = k_tiles.shape[2]
    D: gl.constexpr = k_tiles.shape[3]
    DV: gl.constexpr = v_tiles.shape[3]
    N: gl.constexpr = q_tiles.shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16]
    )
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 16]
    )
    positions = col + half * M + gl.arange(0, M, gl.SliceLayout(1, score_layout))
    keys = k_tiles.index(half).reshape([M, D])
    values = v_tiles.index(half).reshape([M, DV])
    mbarrier.wait(kv_full.index(half), 0)
    dk_pending = warpgroup_mma_init(gl.zeros([M, D], gl.float32, dk_layout))
    dv_pending = warpgroup_mma_init(gl.zeros([M, DV], gl.float32, dv_layout))
    # The first step is peeled: ptxas overlaps nothing in a loop whose first iteration does not.
    dk_pending, dv_pending = _step(
        0,
        dk_pending,
        dv_pending,
        keys,
        values,
        positions,
        lse,
        delta,
        batch,
        kv_head,
        first,
        count,
        q_tiles,
        o_tiles,
        full,
        free,
        T,
        H,
        G,
        FACTOR,
        CAUSAL,
        STAGES,
    )
    for step in range(1, steps):
        dk_pending, dv_pending = _step(
            step,
            dk_pending,
            dv_pending,
            keys,
            values,
            positions,
            lse,
            delta,
            batch,
            kv_head,
            first,
            count,
            q_tiles,
            o_tiles,
            full,
            free,
            T,
            H,
            G,
            FACTOR,
            CAUSAL,
            STAGES,
        )
    dk_acc, dv_acc = warpgroup_mma_wait(0, deps=[dk_pending, dv_pending])
    # This half's keys and values are spent: their memory carries the results out.
    keys.store((dk_acc * SCALE).to(k_tiles.dtype))
    values.store(dv_acc.to(v_tiles.dtype))
    fence_async_shared()
    copy_out(dk, [batch, col + half * M, kv_head * D], k_tiles.index(half))
    copy_out(dv, [batch, col + half * M, kv_head * DV], v_tiles.index(half))
    tma.store_wait(pendings=0)


@gluon.jit
def attention_specialized_dkdv_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dk,
    dv,
    T: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    Q_HEAD: gl.constexpr,
    K_HEAD: gl.constexpr,
    V_HEAD: gl.constexpr,
    O_HEAD: gl.constexpr,
    SCALE: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    TILES: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """dk and dv of two half tiles of keys of one key head."""
    HALF: gl.constexpr = k.block_type.shape[1]
    N: gl.constexpr = q.block_type.shape[1]
    KV: gl.constexpr = H // G
    # As `scores.tile_and_head`: under a causal mask the first keys have the most queries.
    order = gl.program_id(0)
    head_group = order // (TILES * HEAD_GROUP)
    inside = order % (TILES * HEAD_GROUP)
    heads = gl.minimum(HEADS - head_group * HEAD_GROUP, HEAD_GROUP)
    tile = inside // heads
    line = head_group * HEAD_GROUP + inside % heads
    batch = line // KV
    kv_head = line % KV
    col = tile * (2 * HALF)
    # Queries before the keys see none of them.
    first = 0
    if CAUSAL:
        first = col // N
    count = (T + N - 1) // N - first
    steps = G * count

    q_tiles = gl.allocate_shared_memory(q.dtype, [STAGES] + q.block_type.shape, q.layout)
    o_tiles = gl.allocate_shared_memory(dout.dtype, [STAGES] + dout.block_type.shape, dout.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [2] + k.block_type.shape, k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [2] + v.block_type.shape, v.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for half in gl.static_range(2):
        mbarrier.init(kv_full.index(half), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    # Written here, since a tuple in a variable would lose which of its elements are constants.
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    0,
                    dk,
                    dv,
                    lse,
                    delta,
                    q_tiles,
                    o_tiles,
                    k_tiles,
                    v_tiles,
                    kv_full,
                    full,
                    free,
                    batch,
                    kv_head,
                    col,
                    first,
                    count,
                    steps,
                    T,
                    H,
                    G,
                    SCALE,
                    FACTOR,
                    CAUSAL,
                    STAGES,
                ),
            ),
            (
                _consume,
                (
                    1,
                    dk,
                    dv,
                    lse,
                    delta,
                    q_tiles,
                    o_tiles,
                    k_tiles,
                    v_tiles,
                    kv_full,
                    full,
                    free,
                    batch,
                    kv_head,
                    col,
                    first,
                    count,
                    steps,
                    T,
                    H,
                    G,
                    SCALE,
                    FACTOR,
                    CAUSAL,
                    STAGES,
                ),
            ),
            (
                _produce,
                (
                    q,
                    k,
                    v,
                    dout,
                    q_tiles,
                    o_tiles,
                    k_tiles,
                    v_tiles,
                    kv_full,
                    full,
                    free,
                    batch,
                    kv_head,
                    col,
                    first,
                    count,
                    steps,
                    G,
                    Q_HEAD,
                    K_HEAD,
                    V_HEAD,
                    O_HEAD,
                    STAGES,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, 24],
    )


def specialized_dkdv_launch(
    spec: AttentionSpec, inputs: int, delta: BufferArg, stages: int, head_group: int
) -> Launch:
    """The dK/dV pass of a backward plan of so many inputs, by the specialised kernel."""
    b, t, s, n, kv = spec.batch, spec.q_len, spec.kv_len, spec.q_heads, spec.kv_heads
    d, dtype, half = spec.head_dim, spec.dtype, BLOCK_KEYS // 2
    q_strides, k_strides, v_strides = operand_strides(spec)
    dense, dense_kv = dense_strides(t, n, d), dense_strides(s, kv, d)
    arguments: dict[str, Argument] = {
        "q": rows_view(BufferArg(0, dtype), b, t, n, d, q_strides, BLOCK_QUERIES),
        "k": rows_view(BufferArg(1, dtype), b, s, kv, d, k_strides, half),
        "v": rows_view(BufferArg(2, dtype), b, s, kv, d, v_strides, half),
        "dout": rows_view(BufferArg(5, dtype), b, t, n, d, dense, BLOCK_QUERIES),
        "lse": BufferArg(4, "fp32"),
        "delta": delta,
        "dk": rows_view(BufferArg(inputs + 1, dtype), b, s, kv, d, dense_kv, half),
        "dv": rows_view(BufferArg(inputs + 2, dtype), b, s, kv, d, dense_kv, half),
    }
    heads, tiles = b * kv, -(-s // BLOCK_KEYS)
    constants = {
        "T": t,
        "H": n,
        "G": spec.group,
        "Q_HEAD": q_strides[2],
        "K_HEAD": k_strides[2],
        "V_HEAD": v_strides[2],
        "O_HEAD": d,
        "SCALE": spec.softmax_scale,
        "FACTOR": spec.softmax_scale * LOG2E.value,
        "CAUSAL": spec.right == 0,
        "TILES": tiles,
        "HEADS": heads,
        "HEAD_GROUP": min(head_group, heads),
        "STAGES": stages,
        "CONSUMER_REGISTERS": CONSUMER_REGISTERS,
    }
    return Launch(
        attention_specialized_dkdv_kernel, (tiles * heads, 1, 1), arguments, constants, num_warps=4
    )
