"""The dQ pass of the attention backward with specialised warps, in Gluon.

A producer warp streams key and value tiles; each of two consumer warpgroups holds half of a query
tile with its output cotangents and accumulates its rows of dQ, whose product runs on under the next
tile's. Serves what `specialized` serves; `backward.attention_dq_kernel` computes the same for the
interpreter and serves everything else.
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

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.attention.backward import delta_launch
from genesis_fn.kernels.attention.spec import (
    AttentionSpec,
    dense_strides,
    operand_strides,
    rows_view,
)
from genesis_fn.kernels.attention.specialized import (
    BLOCK_M,
    CONSUMER_REGISTERS,
    LOG2E,
    copy_in,
    copy_out,
    serves_specialized,
)
from genesis_fn.kernels.attention.specialized_dkdv import specialized_dkdv_launch
from genesis_fn.kernels.plan import Argument, BufferArg, Launch, Plan, Workspace

BLOCK_N = 64
LONG = 8192  # keys, from which on fewer heads side by side were faster on an H200


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
    O_HEAD: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Copies queries and cotangents, then key and value tiles from the last to the first."""
    N: gl.constexpr = k.block_type.shape[1]
    HALF: gl.constexpr = q.block_type.shape[1]
    for half in gl.static_range(2):
        bar = q_full.index(half)
        mbarrier.expect(bar, q.block_type.nbytes + dout.block_type.nbytes)
        copy_in(q, [batch, row + half * HALF, head * Q_HEAD], bar, q_tiles.index(half))
        copy_in(dout, [batch, row + half * HALF, head * O_HEAD], bar, o_tiles.index(half))
    # Keys and values have barriers of their own: keys are in use longer, for dQ as well.
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
def _step(
    step,
    pending,
    MASKED: gl.constexpr,
    queries,
    cotangents,
    norm,
    mean,
    rows,
    k_tiles,
    v_tiles,
    k_full,
    k_free,
    v_full,
    v_free,
    tiles,
    S: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Adds one key tile, counted from the end, to dQ; its last product is left in flight."""
    M: gl.constexpr = queries.shape[0]
    D: gl.constexpr = queries.shape[1]
    DV: gl.constexpr = cotangents.shape[1]
    N: gl.constexpr = k_tiles.shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16]
    )
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dq_layout, k_width=2)
    stage = step % STAGES
    phase = (step // STAGES) & 1
    keys = k_tiles.index(stage).reshape([N, D])
    values = v_tiles.index(stage).reshape([N, DV])
    zero = gl.zeros([M, N], gl.float32, score_layout)
    mbarrier.wait(k_full.index(stage), phase)
    scores_pending = warpgroup_mma(
        queries, keys.permute([1, 0]), zero, use_acc=False, is_async=True
    )
    mbarrier.wait(v_full.index(stage), phase)
    dprobs_pending = warpgroup_mma(
        cotangents, values.permute([1, 0]), zero, use_acc=False, is_async=True
    )
    scores, acc = warpgroup_mma_wait(1, deps=[scores_pending, pending])
    # The product that was in flight was the last reader of the previous tile's keys.
    mbarrier.arrive(k_free.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    probs = gl.exp2(scores * FACTOR - norm[:, None])
    if MASKED:
        cols = (tiles - 1 - step) * N + gl.arange(0, N, gl.SliceLayout(0, score_layout))
        if CAUSAL:
            probs = gl.where(rows[:, None] >= cols[None, :], probs, 0.0)
        else:
            probs = gl.where((cols < S)[None, :], probs, 0.0)
    # Values are read by this product only; keys by the one that is left in flight as well.
    dprobs = warpgroup_mma_wait(0, deps=[dprobs_pending])
    mbarrier.arrive(v_free.index(stage), count=1)
    dscores = probs * (dprobs - mean[:, None])
    weights = gl.convert_layout(dscores.to(k_tiles.dtype), operand)
    return warpgroup_mma(weights, keys, acc, is_async=True)


@gluon.jit
def _consume(
    half: gl.constexpr,
    dq,
    lse,
    delta,
    q_tiles,
    o_tiles,
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
    SCALE: gl.constexpr,
    FACTOR: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    MASKED: gl.constexpr,
):
    """One warpgroup's half of the query tile."""
    M: gl.constexpr = q_tiles.shape[2]
    D: gl.constexpr = q_tiles.shape[3]
    DV: gl.constexpr = o_tiles.shape[3]
    N: gl.constexpr = k_tiles.shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16]
    )
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    rows = row + half * M + gl.arange(0, M, gl.SliceLayout(1, score_layout))
    offset = (batch.to(gl.int64) * H + head) * T + rows
    # In registers for all key tiles. Rows past the end get probability exp2(-inf) = 0.
    norm = gl.load(lse + offset, mask=rows < T, other=float("inf")) * LOG2E
    mean = gl.load(delta + offset, mask=rows < T, other=0.0)
    queries = q_tiles.index(half).reshape([M, D])
    cotangents = o_tiles.index(half).reshape([M, DV])
    mbarrier.wait(q_full.index(half), 0)
    # The masked tiles are unrolled: with a second loop around products in flight, ptxas runs every
    # product by itself.
    pending = warpgroup_mma_init(gl.zeros([M, D], gl.float32, dq_layout))
    for step in gl.static_range(MASKED):
        pending = _step(
            step,
            pending,
            True,
            queries,
            cotangents,
            norm,
            mean,
            rows,
            k_tiles,
            v_tiles,
            k_full,
            k_free,
            v_full,
            v_free,
            tiles,
            S,
            FACTOR,
            CAUSAL,
            STAGES,
        )
    for step in range(MASKED, tiles):
        pending = _step(
            step,
            pending,
            False,
            queries,
            cotangents,
            norm,
            mean,
            rows,
            k_tiles,
            v_tiles,
            k_full,
            k_free,
            v_full,
            v_free,
            tiles,
            S,
            FACTOR,
            CAUSAL,
            STAGES,
        )
    acc = warpgroup_mma_wait(0, deps=[pending])
    # This half's queries are spent: their memory carries the result out.
    queries.store((acc * SCALE).to(q_tiles.dtype))
    fence_async_shared()
    copy_out(dq, [batch, row + half * M, head * D], q_tiles.index(half))
    tma.store_wait(pendings=0)


@gluon.jit
def attention_specialized_dq_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dq,
    T: gl.constexpr,
    S: gl.constexpr,
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
    MASKED: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """dq of two half tiles of queries of one head."""
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
    # Key tiles beyond the diagonal are not visited.
    tiles = (S + N - 1) // N
    if CAUSAL:
        tiles = gl.minimum(tiles, (row + 2 * HALF + N - 1) // N)

    q_tiles = gl.allocate_shared_memory(q.dtype, [2] + q.block_type.shape, q.layout)
    o_tiles = gl.allocate_shared_memory(dout.dtype, [2] + dout.block_type.shape, dout.layout)
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
                    dq,
                    lse,
                    delta,
                    q_tiles,
                    o_tiles,
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
                    SCALE,
                    FACTOR,
                    CAUSAL,
                    STAGES,
                    MASKED,
                ),
            ),
            (
                _consume,
                (
                    1,
                    dq,
                    lse,
                    delta,
                    q_tiles,
                    o_tiles,
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
                    SCALE,
                    FACTOR,
                    CAUSAL,
                    STAGES,
                    MASKED,
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
                    O_HEAD,
                    STAGES,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, 24],
    )


def serves_specialized_backward(spec: AttentionSpec, target: Target) -> bool:
    """Whether the specialised passes compute `spec`: as the forward, from one full tile on."""
    return serves_specialized(spec, target) and spec.kv_len >= BLOCK_M


def specialized_backward_plan(
    spec: AttentionSpec,
    *,
    stages: int = 3,
    head_group: int | None = None,
    dkdv_stages: int = 2,
    dkdv_head_group: int = 4,
) -> Plan:
    """The plan of `backward.general_backward_plan`, both passes by the specialised kernels."""
    inputs, outputs = 6, 3
    delta = BufferArg(inputs + outputs, "fp32")
    steps = (
        delta_launch(spec, delta),
        specialized_dkdv_launch(spec, inputs, delta, dkdv_stages, dkdv_head_group),
        _dq_launch(spec, inputs, delta, stages, head_group or (16 if spec.kv_len < LONG else 8)),
    )
    lines = spec.batch * spec.q_heads * spec.q_len
    return Plan(inputs, outputs, steps, (Workspace(4 * lines),))


def _dq_launch(
    spec: AttentionSpec, inputs: int, delta: BufferArg, stages: int, head_group: int
) -> Launch:
    b, t, s, n, kv = spec.batch, spec.q_len, spec.kv_len, spec.q_heads, spec.kv_heads
    d, dtype, half = spec.head_dim, spec.dtype, BLOCK_M // 2
    q_strides, k_strides, v_strides = operand_strides(spec)
    dense = dense_strides(t, n, d)
    arguments: dict[str, Argument] = {
        "q": rows_view(BufferArg(0, dtype), b, t, n, d, q_strides, half),
        "k": rows_view(BufferArg(1, dtype), b, s, kv, d, k_strides, BLOCK_N),
        "v": rows_view(BufferArg(2, dtype), b, s, kv, d, v_strides, BLOCK_N),
        "dout": rows_view(BufferArg(5, dtype), b, t, n, d, dense, half),
        "lse": BufferArg(4, "fp32"),
        "delta": delta,
        "dq": rows_view(BufferArg(inputs, dtype), b, t, n, d, dense, half),
    }
    heads, tiles = b * n, -(-t // BLOCK_M)
    constants = {
        "T": t,
        "S": s,
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
        # Tiles from the end that need a mask: causal ones on the diagonal, else a partial one.
        "MASKED": BLOCK_M // BLOCK_N if spec.right == 0 else int(s % BLOCK_N > 0),
        "CONSUMER_REGISTERS": CONSUMER_REGISTERS,
    }
    return Launch(
        attention_specialized_dq_kernel, (tiles * heads, 1, 1), arguments, constants, num_warps=4
    )
