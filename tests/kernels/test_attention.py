"""Attention kernels against float64 formulas and against JAX, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.kernels.attention.backward import BackwardConfig, general_backward_plan
from genesis_fn.kernels.attention.decode import DecodeConfig, decode_plan
from genesis_fn.kernels.attention.forward import AttentionConfig, general_plan
from genesis_fn.kernels.attention.scores import tile_and_head
from genesis_fn.kernels.attention.segments import spans_launch
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.plan import BufferArg, Launch, Plan
from tests.kernels.attention_reference import (
    TORCH,
    attention_reference,
    random_inputs,
    reference_gradients,
)
from tests.kernels.run import run_plan

INTERPRETED = replace(H200, interpreted=True)
WITHOUT_DESCRIPTORS = replace(OF_ARCHITECTURE[80], interpreted=True)
TOLERANCE = {"fp32": 5e-6, "bf16": 1.5e-2, "fp16": 2e-3}


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Distance over the norm of what is wanted (at least 1); NaN counts as infinitely far."""
    distance = (found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1.0)
    return float(torch.nan_to_num(distance, nan=float("inf")))


def forward(spec, inputs, config, target=INTERPRETED):
    out = torch.full((spec.batch, spec.q_len, spec.q_heads, spec.v_dim), 7.0).to(TORCH[spec.dtype])
    lse = torch.full((spec.batch, spec.q_heads, spec.q_len), 7.0)
    plan = general_plan(spec, target, config)
    run_plan(plan, list(inputs.values()), [out, lse][: plan.outputs])
    return out, lse


def backward(spec, inputs, out, lse, dout, config):
    results = {f"d{n}": torch.full_like(inputs[n], 7.0) for n in ("q", "k", "v")}
    if "bias" in inputs:
        results["dbias"] = torch.full_like(inputs["bias"], 7.0)
    q, k, v, *options = inputs.values()
    given = [q, k, v, out, lse, dout, *options]
    plan = general_backward_plan(spec, INTERPRETED, config)
    run_plan(plan, given, list(results.values()))
    return results


def check(spec, block_m=32, block_n=16, *, seed=0, inputs=None):
    """Holds forward and gradients of one spec to the float64 reference."""
    tile = AttentionConfig(block_m, block_n, 4, 2, head_group=3)
    inputs = inputs or random_inputs(spec, seed)
    g = torch.Generator().manual_seed(seed + 1)
    dout = torch.randn(spec.batch, spec.q_len, spec.q_heads, spec.v_dim, generator=g).to(
        TORCH[spec.dtype]
    )
    wanted = reference_gradients(spec, inputs, dout)
    out, lse = forward(spec, inputs, tile)
    tolerance = TOLERANCE[spec.dtype]
    assert error(out, wanted["out"]) < tolerance
    fully_masked = wanted["lse"] < -1e30
    assert torch.equal(fully_masked, lse < -1e30)
    assert error(lse[~fully_masked], wanted["lse"][~fully_masked]) < min(tolerance, 1e-3)
    turned = replace(tile, block_m=block_n, block_n=block_m)
    found = backward(spec, inputs, out, lse, dout, BackwardConfig(turned, tile))
    for name, value in found.items():
        terms = 1.0
        if name == "dbias":
            # Terms may cancel: the rounding errors of a sum follow the norm of what is summed.
            full = (spec.batch, spec.q_heads, spec.q_len, spec.kv_len)
            spread = inputs | {"bias": inputs["bias"].expand(full).clone()}
            norms = [
                x["dbias"].norm().clamp(min=1.0)
                for x in (reference_gradients(spec, spread, dout), wanted)
            ]
            terms = max(float(norms[0] / norms[1]), 1.0)
        assert error(value, wanted[name]) < tolerance * terms, name


SMALL = AttentionSpec(2, 4, 2, 40, 40, 32, dtype="fp32")

CASES = {
    "full": SMALL,
    "causal": replace(SMALL, causal=True),
    "one_head": replace(SMALL, q_heads=1, kv_heads=1, causal=True),
    "multi_query": replace(SMALL, q_heads=3, kv_heads=1, head_dim=16),
    "odd_sizes": AttentionSpec(1, 2, 1, 37, 53, 24, 20, dtype="fp32"),
    "short_queries_causal": AttentionSpec(2, 2, 1, 21, 50, 16, dtype="fp32", causal=True),
    "long_queries_causal": AttentionSpec(2, 2, 1, 50, 21, 16, dtype="fp32", causal=True),
    "one_query": AttentionSpec(2, 2, 2, 1, 33, 16, dtype="fp32"),
    "one_key": AttentionSpec(1, 2, 2, 5, 1, 16, dtype="fp32", causal=True),
    "window": replace(SMALL, window=(5, 9), q_len=70, kv_len=70, batch=1),
    "window_causal": replace(SMALL, window=(11, None), causal=True, q_len=70, kv_len=70, batch=1),
    "window_left": replace(SMALL, window=(7, None), q_len=65, kv_len=70, batch=1),
    "window_right": replace(SMALL, window=(None, 3), q_len=65, kv_len=70, batch=1),
    "window_fully_masked": AttentionSpec(1, 2, 1, 60, 24, 16, dtype="fp32", window=(4, 2)),
    "mask": replace(SMALL, mask=(2, 4, 40, 40)),
    "mask_broadcast": replace(SMALL, mask=(1, 1, 40, 40), causal=True),
    "mask_keys": replace(SMALL, mask=(2, 1, 1, 40)),
    "lengths": replace(SMALL, kv_lengths=True, batch=4),
    "kv_lengths_causal": replace(SMALL, kv_lengths=True, batch=4, causal=True),
    "segments": replace(SMALL, segments="shared", batch=4),
    "segments_causal": replace(SMALL, segments="shared", batch=4, causal=True, q_len=90, kv_len=90),
    "segments_window": replace(SMALL, segments="shared", batch=3, window=(9, 4)),
    "segments_separate": replace(SMALL, segments="separate", batch=4, q_len=37, kv_len=53),
    "segments_lengths": replace(SMALL, segments="separate", batch=4, kv_lengths=True, causal=True),
    "segments_bias": replace(SMALL, segments="shared", batch=3, bias=(3, 4, 40, 40), softcap=2.0),
    "softcap": replace(SMALL, softcap=1.5, causal=True),
    "scale_negative": replace(SMALL, scale=-0.4),
    "bias": replace(SMALL, bias=(2, 4, 40, 40)),
    "bias_heads": replace(SMALL, bias=(1, 4, 40, 40), causal=True),
    "bias_batch": replace(SMALL, bias=(2, 1, 40, 40)),
    "bias_keys": replace(SMALL, bias=(2, 1, 1, 40), kv_lengths=True),
    "bias_rows": replace(SMALL, bias=(1, 4, 40, 1), softcap=2.0),
    "bias_scalar": replace(SMALL, bias=(1, 1, 1, 1), causal=True),
    "bias_bf16": replace(SMALL, bias=(1, 4, 1, 40), window=(9, 9), bias_dtype="bf16", dtype="bf16"),
    "everything": AttentionSpec(
        2, 4, 2, 41, 51, 24, 16, "fp32", 0.3, causal=True, window=(30, None),
        bias=(1, 4, 41, 51), mask=(2, 1, 41, 51), kv_lengths=True, segments="separate", softcap=3.0,
    ),
    "bf16": AttentionSpec(1, 2, 1, 50, 50, 32, causal=True),
    "fp16": AttentionSpec(1, 2, 1, 50, 50, 32, dtype="fp16", causal=True),
    "tma_bf16": AttentionSpec(2, 2, 1, 64, 64, 64, causal=True),
    "tma_tails": AttentionSpec(2, 2, 1, 50, 70, 64, 128, dtype="fp16"),
    "tma_causal_tails": AttentionSpec(2, 2, 1, 70, 70, 64, causal=True),
    "tma_fully_masked": AttentionSpec(2, 2, 1, 33, 50, 64, kv_lengths=True),
    "tma_segments": AttentionSpec(3, 2, 1, 70, 70, 64, causal=True, segments="shared"),
    "tma_window": AttentionSpec(1, 2, 1, 70, 70, 64, window=(20, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradients_match_the_formula(name):
    check(CASES[name])


@pytest.mark.parametrize("blocks", [(16, 32), (64, 16)])
@pytest.mark.parametrize(
    "name", ["causal", "window", "kv_lengths_causal", "segments_causal", "tma_causal_tails"]
)
def test_tiles_of_any_shape_agree(name, blocks):
    check(CASES[name], *blocks)


def test_rows_without_keys_take_the_mean_of_all_values_and_give_no_nan():
    spec = AttentionSpec(2, 2, 1, 20, 33, 16, dtype="fp32", kv_lengths=True, causal=True)
    inputs = random_inputs(spec)
    inputs["kv_lengths"] = torch.tensor([0, 33], dtype=torch.int32)
    out, _ = forward(spec, inputs, None)
    assert torch.allclose(out[0], inputs["v"][0].mean(0, keepdim=True).expand(20, 2, 16), atol=1e-6)
    check(spec, inputs=inputs)


@pytest.mark.parametrize("segments", [None, "separate"])
def test_gradients_of_some_of_the_keys(segments):
    """Of out and lse over all keys, the backward pass of a part of them gives that part's terms."""
    spec = AttentionSpec(1, 2, 1, 20, 40, 16, dtype="fp32", segments=segments)
    inputs = random_inputs(spec)
    if segments:  # no query sees a key of the first part, but every query one of the second
        inputs["q_segments"] = torch.arange(20)[None].int() % 3
        inputs["kv_segments"] = torch.cat([torch.full((1, 20), 9), inputs["q_segments"]], 1).int()
    config = BackwardConfig(AttentionConfig(16, 16, 4, 1), AttentionConfig(16, 16, 4, 1))
    out, lse = forward(spec, inputs, None)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    every = backward(spec, inputs, out, lse, dout, config)
    half = replace(spec, kv_len=20)
    found = []
    for some in (slice(0, 20), slice(20, 40)):
        names = [n for n in ("k", "v", "kv_segments") if n in inputs]
        keys = {n: inputs[n][:, some].contiguous() for n in names}
        found.append(backward(half, inputs | keys, out, lse, dout, config))
    assert error(found[0]["dq"] + found[1]["dq"], every["dq"]) < 5e-6
    for name in ("dk", "dv"):
        assert error(torch.cat([f[name] for f in found], 1), every[name]) < 5e-6


@pytest.mark.parametrize("fill", [float("-inf"), torch.finfo(torch.float32).min])
def test_an_additive_mask_as_bias(fill):
    spec = replace(SMALL, bias=(1, 1, 40, 40))
    inputs = random_inputs(spec)
    seen = torch.rand(1, 1, 40, 40, generator=torch.Generator().manual_seed(3)) < 0.3
    seen[..., 0] = True
    inputs["bias"] = torch.where(seen, 0.0, fill)
    out, _ = forward(spec, inputs, AttentionConfig(32, 16, 4, 1), WITHOUT_DESCRIPTORS)
    masked = {n: x for n, x in inputs.items() if n != "bias"} | {"mask": seen}
    wide = {n: x.double() if x.is_floating_point() else x for n, x in masked.items()}
    wanted, _ = attention_reference(replace(SMALL, mask=(1, 1, 40, 40)), wide)
    assert error(out, wanted) < 5e-6


def test_pointers_give_what_descriptors_give():
    spec = AttentionSpec(2, 4, 2, 40, 40, 64, causal=True)
    inputs = random_inputs(spec)
    config = AttentionConfig(32, 16, 4, 1)
    wanted, _ = forward(spec, inputs, config)
    found, _ = forward(spec, inputs, config, WITHOUT_DESCRIPTORS)
    assert torch.equal(found, wanted)


def test_two_runs_are_bit_identical():
    spec = replace(CASES["bias_heads"], kv_lengths=True)
    inputs = random_inputs(spec)
    runs = []
    for _ in range(2):
        out, lse = forward(spec, inputs, None)
        found = backward(spec, inputs, out, lse, torch.ones_like(out), None)
        runs.append([out, lse, *found.values()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


JAX_CASES = [
    AttentionSpec(2, 4, 2, 24, 40, 16, dtype="fp32", causal=True, window=(6, 3)),
    AttentionSpec(2, 4, 2, 40, 24, 16, dtype="fp32", window=(6, 3)),
    AttentionSpec(3, 2, 1, 24, 24, 16, dtype="fp32", kv_lengths=True),
    AttentionSpec(2, 2, 1, 24, 24, 16, dtype="fp32", bias=(1, 2, 24, 24), mask=(2, 1, 24, 24)),
]


@pytest.mark.parametrize("spec", JAX_CASES)
def test_values_and_gradients_are_jax_s(spec):
    jax = pytest.importorskip("jax")
    inputs = random_inputs(spec, 5)
    if spec.kv_lengths:
        inputs["kv_lengths"][0] = 0
    given = {n: np.asarray(x) for n, x in inputs.items()}
    arrays = [given[n] for n in ("q", "k", "v", "bias") if n in given]

    def attend(q, k, v, bias=None):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            bias,
            given.get("mask"),
            is_causal=spec.causal,
            key_value_seq_lengths=given.get("kv_lengths"),
            local_window_size=spec.window,
        )

    wanted, pull = jax.vjp(attend, *arrays)
    dout = np.random.default_rng(0).normal(size=wanted.shape).astype(np.float32)
    out, lse = forward(spec, inputs, None)
    found = backward(spec, inputs, out, lse, torch.from_numpy(dout), None)
    assert error(out, torch.from_numpy(np.array(wanted))) < 5e-6
    for value, gradient in zip(found.values(), pull(dout), strict=True):
        assert error(value, torch.from_numpy(np.array(gradient))) < 1e-5


@pytest.mark.parametrize("dim", [32, 64])  # by pointers and by descriptors
def test_what_no_segment_of_a_tile_reaches_is_not_read(dim):
    spec = AttentionSpec(1, 2, 1, 96, 96, dim, causal=True, segments="shared")
    inputs = random_inputs(spec)
    inputs["q_segments"] = torch.tensor([[1] * 32 + [2] * 32 + [3] * 32], dtype=torch.int32)
    for name in ("q", "k", "v"):
        inputs[name][:, 32:64] = float("nan")
    tile = AttentionConfig(32, 16, 4, 1)
    out, lse = forward(spec, inputs, tile)
    turned = BackwardConfig(AttentionConfig(16, 32, 4, 1), tile)
    found = backward(spec, inputs, out, lse, torch.ones_like(out), turned)
    for name, value in {"out": out, **found}.items():
        assert value[:, 32:64].isnan().all(), name
        assert value[:, :32].isfinite().all() and value[:, 64:].isfinite().all(), name


def spans_of(own, theirs, tile):
    own, theirs = [torch.tensor([ids], dtype=torch.int32) for ids in (own, theirs)]
    spec = AttentionSpec(1, 1, 1, own.shape[1], theirs.shape[1], 16, segments="separate")
    found = torch.zeros(-(-own.shape[1] // tile), 4, dtype=torch.int32)
    step = spans_launch(spec, tile, BufferArg(5, "i32"), 3)
    run_plan(Plan(5, 1, (step,)), [own, own, own, own, theirs], [found])
    return found.tolist()


def test_spans_say_where_the_ids_of_a_tile_are():
    # Two tiles of one id, one of two, and a last one that is half a tile.
    own = [1] * 8 + [2, 2, 3, 3] + [3]
    found = spans_of(own, own, 4)
    assert found == [[0, 8, 0, 8], [0, 8, 0, 8], [8, 13, 0, 0], [10, 13, 10, 13]]
    # An id that comes back has a span with others in it, which is not full; one that is nowhere
    # has an empty one.
    assert spans_of([1, 1, 5, 5], [1, 2, 1, 2, 2], 2) == [[0, 3, 0, 0], [5, 0, 0, 0]]


DECODE_CASES = {
    "plain": AttentionSpec(2, 4, 2, 1, 70, 32, dtype="fp32"),
    "lengths": AttentionSpec(3, 6, 2, 1, 70, 32, dtype="fp32", kv_lengths=True),
    "several_queries": AttentionSpec(
        2, 4, 2, 3, 70, 32, dtype="fp32", kv_lengths=True, causal=True
    ),
    "window": AttentionSpec(2, 4, 1, 3, 70, 32, dtype="fp32", kv_lengths=True, window=(20, 0)),
    "softcap_mask": AttentionSpec(2, 4, 2, 1, 70, 24, 20, "fp32", softcap=2.0, mask=(2, 1, 1, 70)),
    "bias": AttentionSpec(2, 4, 2, 2, 70, 24, dtype="fp32", bias=(1, 4, 2, 70)),
    "segments": AttentionSpec(3, 4, 2, 3, 70, 24, dtype="fp32", segments="separate"),
    "bf16": AttentionSpec(2, 16, 8, 1, 70, 128, kv_lengths=True),
    "many_heads": AttentionSpec(1, 40, 2, 1, 70, 16, dtype="fp32"),
    "own_heads": AttentionSpec(2, 3, 3, 1, 45, 20, 33, dtype="fp16", mask=(1, 1, 1, 45)),
    "mask_of_heads": AttentionSpec(2, 6, 2, 2, 33, 16, dtype="fp32", mask=(1, 6, 1, 33)),
    "mask_of_queries": AttentionSpec(2, 2, 2, 3, 33, 16, dtype="fp32", mask=(1, 1, 3, 1)),
    "few_keys": AttentionSpec(2, 2, 2, 2, 3, 16, dtype="fp32", bias=(1, 1, 2, 3), causal=True),
}


# Tensor cores; lanes that read a key each, several keys, and none; the choice for the sizes.
DECODE_CONFIGS = {
    "matrix": DecodeConfig(16, 4),
    "lanes": DecodeConfig(8, 4, 8),
    "depth": DecodeConfig(32, 4, 4),
    "more": DecodeConfig(128, 4, 128),
    "chosen": None,
}


@pytest.mark.parametrize("config", DECODE_CONFIGS)
@pytest.mark.parametrize("splits", [1, 3, None])
@pytest.mark.parametrize("name", DECODE_CASES)
def test_decode_matches_the_formula(name, splits, config):
    spec = DECODE_CASES[name]
    inputs = random_inputs(spec)
    if spec.kv_lengths:
        inputs["kv_lengths"][0] = 0
    wide = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    wanted, lse_wanted = attention_reference(spec, wide)
    out = torch.full((spec.batch, spec.q_len, spec.q_heads, spec.v_dim), 7.0).to(TORCH[spec.dtype])
    lse = torch.full((spec.batch, spec.q_heads, spec.q_len), 7.0)
    plan = decode_plan(spec, INTERPRETED, splits=splits, config=DECODE_CONFIGS[config])
    run_plan(plan, list(inputs.values()), [out, lse])
    assert error(out, wanted) < TOLERANCE[spec.dtype]
    live = lse_wanted > -1e30
    assert torch.equal(live, lse > -1e30)
    assert error(lse[live], lse_wanted[live]) < 1e-3


@pytest.mark.parametrize("config", ["matrix", "lanes", "depth", "more"])
def test_what_a_lane_sees_alone_may_be_infinite_or_not_a_number(config):
    spec = AttentionSpec(1, 2, 2, 1, 40, 16, dtype="fp32")
    inputs = random_inputs(spec)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    q[..., 0] = 1.0
    # The second key's score is minus infinity, which counts for nothing; one of the second head is
    # not a number.
    k[:, 1, :, 0] = -float("inf")
    k[:, 7, 1, 3] = float("nan")
    out, lse = torch.full((1, 1, 2, 16), 7.0), torch.full((1, 2, 1), 7.0)
    plan = decode_plan(spec, INTERPRETED, config=DECODE_CONFIGS[config])
    run_plan(plan, list(inputs.values()), [out, lse])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
    wanted = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert bool(wanted[0, 0, 0].isfinite().all()) and bool(wanted[0, 0, 1].isnan().all())


@triton.jit
def order_kernel(places, TILES: tl.constexpr, HEADS: tl.constexpr, HEAD_GROUP: tl.constexpr):
    order = tl.program_id(0)
    tile, head = tile_and_head(order, TILES, HEADS, HEAD_GROUP, True)
    tl.store(places + 2 * order, tile)
    tl.store(places + 2 * order + 1, head)


def test_the_longest_tiles_of_a_head_group_come_first():
    places = torch.zeros(24, 2, dtype=torch.int32)
    constants = {"TILES": 4, "HEADS": 6, "HEAD_GROUP": 4}
    step = Launch(order_kernel, (24, 1, 1), {"places": BufferArg(0, "i32")}, constants)
    run_plan(Plan(0, 1, (step,)), [], [places])
    order = [tuple(x) for x in places.tolist()]
    assert sorted(order) == [(tile, head) for tile in range(4) for head in range(6)]
    assert order[:4] == [(3, 0), (3, 1), (3, 2), (3, 3)]
    assert order[16:18] == [(3, 4), (3, 5)]


def test_bad_specs_say_what_is_wrong():
    with pytest.raises(ValueError, match="multiple"):
        AttentionSpec(1, 3, 2, 4, 4, 16)
    with pytest.raises(ValueError, match="bias of shape"):
        AttentionSpec(1, 2, 2, 4, 4, 16, bias=(1, 2, 3, 4))
    with pytest.raises(ValueError, match="5 queries and 4 keys cannot share segments"):
        AttentionSpec(1, 2, 2, 5, 4, 16, segments="shared")
    with pytest.raises(ValueError, match="exceed 256"):
        AttentionSpec(1, 2, 2, 4, 4, 257)
