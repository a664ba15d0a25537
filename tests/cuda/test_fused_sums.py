"""Sums by segment that compute what they add, and share sorts, against NumPy."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import ops
from genesis_fn.backends.cuda.lower.fused_sums import takes_updates
from genesis_fn.backends.cuda.lower.shared_sorts import share_sorts
from genesis_fn.backends.cuda.lowerings.segment_sums import ordered_sum_p, sort_rows_p
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.compiler.fusion.fuse import FusionGroup, fuse_jaxpr
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.device import using_device
from genesis_fn.kernels.sort import block_sort
from genesis_fn.primitives.indexing.gather import take_rows_p
from genesis_fn.primitives.indexing.scatter import segment_sum_p

NODES, EDGES = 1100, 300  # rows enough for atomics


def graph(columns: int) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(columns)
    ends = draw.integers(0, NODES, (2, EDGES)).astype(np.int32)
    numbers = [draw.standard_normal(n).astype(np.float32) for n in ((NODES, columns), EDGES)]
    return *numbers, *ends


def messages(x, weights, source, target):
    return ops.segment_sum(x[source] * weights[:, None], target, NODES)


def loss(x, weights, source, target):
    return jnp.sum(messages(x, weights, source, target) ** 2)


def steps(f, *args) -> list[FusionGroup]:
    jaxpr = share_sorts(simplify_jaxpr(programs.traced(f, *args)[0]))
    return fuse_jaxpr(jaxpr, H200, None, takes_updates).groups


def bits(f, *args) -> list[bytes]:
    jaxpr, inputs = programs.traced(f, *args)
    outs = compile_jaxpr(jaxpr, programs.PLACE)(*[programs.put(x) for x in inputs])
    return [programs.get(y).tobytes() for y in outs]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("columns", [1, 9])
def test_messages_along_edges_and_their_gradients(columns: int, deterministic: bool) -> None:
    x, weights, source, target = args = graph(columns)
    with gf.deterministic(deterministic):
        with using_device(gf.cuda(0)):
            out = messages(*map(jnp.asarray, args))
            found = gf.jit(gf.grad(loss, (0, 1)))(*args)
        fused = [g.sum for g in steps(gf.grad(loss, 0), *args) if g.sum is not None]
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    want = np.zeros_like(x)
    np.add.at(want, target, x[source] * weights[:, None])
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    back, rows = np.zeros_like(x), (2 * want)[target]
    np.add.at(back, source, rows * weights[:, None])
    np.testing.assert_allclose(found[0], back, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], (rows * x[source]).sum(1), rtol=1e-4, atol=1e-4)
    # Rows that take a sector of memory are computed in any order, others where none is sorted.
    expected = 2 if columns > 8 or not deterministic else 0
    assert len(fused) == expected and all(len(f.gathers) == 1 for f in fused)


def test_fusion_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sort, "BLOCK", 64)  # more are sorted by digits
    args = graph(16)

    def f(x, weights, source, target):
        plain = ops.segment_sum(x[source], target, NODES)
        scaled = jnp.exp(jnp.take(x, source, axis=0, mode="fill", fill_value=2.0) + x[0])
        sums = ops.segment_sum(scaled * weights[:, None], source - 3, NODES)
        narrow = ops.segment_sum((x[target] / 3).astype(jnp.bfloat16), source, NODES)
        return plain, sums, narrow

    assert len([g for g in steps(f, *args) if g.sum is not None]) == 3
    got = bits(f, *args)
    with without("sums"):
        assert bits(f, *args) == got


@pytest.mark.parametrize("nodes", [20, NODES])
def test_what_has_other_readers_is_stored_and_small_tables_read_again(nodes: int) -> None:
    x, weights, source, target = graph(9)
    args = x[:nodes], weights, source % nodes, target

    def f(x, weights, source, target):
        rows = x[source]
        return ops.segment_sum(rows * 2.0, target, NODES), rows * weights[:, None] @ x.T

    found = steps(f, *args)
    (fused,) = [g.sum for g in found if g.sum is not None]
    assert len(fused.gathers) == (nodes == 20) and not fused.checks
    assert any(g.eqn and g.eqn.prim is take_rows_p for g in found)
    got = bits(f, *args)
    with without("sums"):
        assert bits(f, *args) == got


def test_indices_of_a_fused_gather_are_checked() -> None:
    x, weights, source, target = graph(9)
    source[7] = NODES + 5
    with using_device(gf.cuda(0)), pytest.raises(gf.errors.IndexOutOfRange, match="1105"):
        gf.jit(messages)(x, weights, source, target).tolist()


def test_equal_ids_are_sorted_once() -> None:
    x, weights, source, target = graph(9)

    def f(x, weights, target):
        wide = ops.segment_sum(x, target, NODES)
        return wide, ops.segment_sum(weights, target, NODES), ops.segment_sum(x, target, 7)

    args = x[:EDGES], weights, target
    prims = [e.prim for e in share_sorts(simplify_jaxpr(programs.traced(f, *args)[0])).eqns]
    assert prims.count(sort_rows_p) == 1 and prims.count(ordered_sum_p) == 2
    assert prims.count(segment_sum_p) == 1  # into fewer segments
    programs.compare(f, *args)
