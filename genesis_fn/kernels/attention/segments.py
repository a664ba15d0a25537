"""Spans of segments: where in a row the ids of a tile's positions occur, once for all its heads.

Attention inside the texts of a packed row then visits the tiles of keys that its queries' texts
reach, and compares no ids in those that lie in one text with them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.attention.spec import AttentionSpec, option_arguments
from genesis_fn.kernels.plan import BufferArg, Launch, Workspace


@triton.jit
def segment_spans_kernel(
    own,
    others,
    spans,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Four numbers for each TILE positions of `own` [batch, OWN]: the positions of `others`
    [batch, OTHERS] outside of [low, high) have no id of theirs, and with those of
    [full low, full high) they share the only one that they have."""
    tiles: tl.constexpr = (OWN + TILE - 1) // TILE
    program = tl.program_id(0)
    batch = (program // tiles).to(tl.int64)
    rows = program % tiles * TILE + tl.arange(0, TILE)
    # Positions past the end are as the last one: they add no id.
    ids = tl.load(own + batch * OWN + tl.minimum(rows, OWN - 1))
    least = tl.min(ids, 0)
    most = tl.max(ids, 0)
    # Between the least and the most: ids that grow along a row, as those of packed texts, skip all
    # that can be skipped; others skip less, and are compared one by one in any case.
    low = tl.full((BLOCK,), OTHERS, tl.int32)
    high = tl.zeros((BLOCK,), tl.int32)
    count = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, OTHERS, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        theirs = tl.load(others + batch * OTHERS + tl.minimum(cols, OTHERS - 1))
        met = (cols < OTHERS) & (theirs >= least) & (theirs <= most)
        low = tl.where(met, tl.minimum(low, cols), low)
        high = tl.where(met, tl.maximum(high, cols + 1), high)
        count += met.to(tl.int32)
    first_met = tl.min(low, 0)
    end_met = tl.max(high, 0)
    alone = (least == most) & (tl.sum(count, 0) == end_met - first_met)
    target = spans + program * 4
    tl.store(target, first_met)
    tl.store(target + 1, end_met)
    tl.store(target + 2, tl.where(alone, first_met, 0))
    tl.store(target + 3, tl.where(alone, end_met, 0))


def spans_workspace(batch: int, length: int, tile: int) -> Workspace:
    """Memory for the spans of rows of `length` positions in tiles of `tile`."""
    return Workspace(16 * batch * -(-length // tile))


def spans_launch(
    spec: AttentionSpec, tile: int, spans: BufferArg, first: int, *, keys: bool = False
) -> Launch:
    """The spans, among the keys, of each tile of queries; with `keys` the other way around. Options
    are numbered from buffer `first`."""
    options, _ = option_arguments(spec, first)
    own, others = options["q_segments"], options["kv_segments"]
    lengths = spec.q_len, spec.kv_len
    if keys:
        own, others, lengths = others, own, lengths[::-1]
    return Launch(
        segment_spans_kernel,
        (spec.batch * -(-lengths[0] // tile), 1, 1),
        {"own": own, "others": others, "spans": spans},
        {"OWN": lengths[0], "OTHERS": lengths[1], "TILE": tile, "BLOCK": 1024},
        num_warps=4,
        num_stages=1,
    )
