"""Which attention kernels the door chooses on which GPU, and that they fit there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.kernels.attention.select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.plan import Descriptor, Launch, Plan
from tests.kernels.attention_reference import random_inputs
from tests.kernels.run import TARGET, run_plan
from tests.kernels.test_attention import CASES, DECODE_CASES

ROOT = Path(__file__).parents[2]
INTERPRETED = replace(H200, interpreted=True)
SPEC = AttentionSpec(2, 8, 4, 2048, 2048, 128, causal=True)


def kernels(plan: Plan) -> list[str]:
    """The names of a plan's kernels, without "attention" and "kernel"."""
    names = [step.kernel.__name__ for step in plan.steps if isinstance(step, Launch)]
    return [name.removeprefix("attention_").removesuffix("_kernel") for name in names]


def test_hopper_s_warp_groups_run_where_they_are_fastest():
    assert kernels(plan_attention(SPEC, H200)) == ["specialized"]
    backward = ["delta", "specialized_dkdv", "specialized_dq"]
    assert kernels(plan_attention_backward(SPEC, H200)) == backward
    lengths = replace(SPEC, q_len=300, kv_len=8000, causal=False)
    assert kernels(plan_attention_backward(lengths, H200)) == backward


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 64}, {"head_dim": 256}, {"value_dim": 64}, {"dtype": "fp32"}, {"softcap": 3.0},
        {"window": (70, None)}, {"bias": (1, 1, 2048, 2048)}, {"kv_lengths": True}, {"scale": -1.0},
        {"q_len": 1024},
    ],
)  # fmt: skip
def test_other_problems_take_the_general_kernels(change):
    spec = replace(SPEC, **change)
    assert kernels(plan_attention(spec, H200)) == ["forward"]
    wanted = ["delta", "dkdv", "dq"] + ["dbias"] * (spec.bias is not None)
    assert kernels(plan_attention_backward(spec, H200)) == wanted


def test_less_than_a_tile_of_keys_has_a_general_backward_pass():
    spec = replace(SPEC, q_len=100, kv_len=100)
    assert kernels(plan_attention(spec, H200)) == ["specialized"]
    assert kernels(plan_attention_backward(spec, H200)) == ["delta", "dkdv", "dq"]


@pytest.mark.parametrize("target", [*OF_ARCHITECTURE.values(), INTERPRETED], ids=str)
def test_only_hopper_has_kernels_of_warp_groups(target):
    special = target.warp_groups
    assert special == (target == H200)
    assert kernels(plan_attention(SPEC, target)) == ["specialized" if special else "forward"]
    for plan in (plan_attention(SPEC, target), plan_attention_backward(SPEC, target)):
        arguments = [a for step in plan.steps for a in step.arguments.values()]
        assert any(isinstance(a, Descriptor) for a in arguments) == target.descriptors


@pytest.mark.parametrize("target", [*OF_ARCHITECTURE.values(), INTERPRETED], ids=str)
def test_few_queries_against_a_long_cache_are_split_among_the_processors(target):
    cache = AttentionSpec(1, 16, 8, 1, 4096, 128, kv_lengths=True, return_lse=False)
    plan = plan_attention(cache, target)
    assert kernels(plan) == ["split", "combine"]
    assert plan.steps[0].grid == (target.processors // 8, 8, 1) and plan.outputs == 1
    assert kernels(plan_attention(replace(cache, return_lse=True), target)) == ["forward"]
    assert kernels(plan_attention(replace(cache, kv_len=500), target)) == ["split"]
    assert kernels(plan_attention(replace(cache, q_len=9), target)) == ["forward"]


def test_products_of_few_queries_are_written_out_where_tensor_cores_would_multiply_padding():
    cache = AttentionSpec(8, 8, 8, 1, 256, 64, dtype="fp32", return_lse=False)

    def chosen(**changes):
        return kernels(plan_attention(replace(cache, **changes), H200))

    assert chosen() == chosen(mask=(1, 1, 1, 256)) == chosen(kv_lengths=True) == ["vector"]
    assert chosen(dtype="bf16") == chosen(bias=(1, 8, 1, 1)) == chosen(causal=True) == ["vector"]
    assert chosen(q_len=2, precision="tf32") == chosen(q_len=16) == ["vector"]
    assert chosen(q_heads=24, precision="tf32") == chosen(q_len=2, dtype="bf16") == ["split"]
    assert chosen(q_len=17) == chosen(return_lse=True) == ["forward"]
    assert chosen(kv_len=4096) == ["vector", "combine"]
    assert chosen(kv_len=4096, batch=100) == ["vector"]


@pytest.mark.parametrize("target", [*OF_ARCHITECTURE.values(), INTERPRETED], ids=str)
def test_every_problem_is_served(target):
    for spec in (*CASES.values(), *DECODE_CASES.values()):
        forward, backward = plan_attention(spec, target), plan_attention_backward(spec, target)
        assert forward.outputs == 2 and backward.outputs == 3 + (spec.bias is not None)
        spans = 0 if spec.segments is None else 2
        assert len(backward.steps) == 1 + spans + backward.outputs - 1


@pytest.mark.parametrize(
    ("q_heads", "precision", "tolerance"), [(4, "ieee", 2e-6), (12, "tf32", 2e-3)]
)
def test_a_cache_gives_what_the_general_kernel_gives(q_heads, precision, tolerance):
    cache = AttentionSpec(
        2, q_heads, 2, 1, 1100, 32, dtype="fp32", kv_lengths=True, return_lse=False,
        precision=precision,
    )  # fmt: skip
    inputs = random_inputs(cache)
    inputs["kv_lengths"] = torch.tensor([1, 1050], dtype=torch.int32)
    found = []
    for spec in (cache, replace(cache, return_lse=True)):
        outs = [torch.full((2, 1, q_heads, 32), 7.0), torch.full((2, q_heads, 1), 7.0)]
        run_plan(plan_attention(spec, TARGET), list(inputs.values()), outs[: 1 + spec.return_lse])
        found.append(outs[0])
    assert torch.allclose(*found, atol=tolerance)


PROGRAM = """
import json, sys
from genesis_fn.compiler.target import OF_ARCHITECTURE
from genesis_fn.kernels.attention.select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention.spec import AttentionSpec
from tests.kernels.compile_only import compile_plan

target = OF_ARCHITECTURE[int(sys.argv[1])]
found = []
for dtype, dim in (("bf16", 128), ("bf16", 256), ("fp32", 256)):
    spec = AttentionSpec(2, 4, 2, 300, 300, dim, dtype=dtype, bias=(2, 4, 300, 300))
    for plan in (plan_attention(spec, target), plan_attention_backward(spec, target)):
        found += compile_plan(plan, target)
print(json.dumps(found))
"""


def test_the_widest_heads_fit_in_the_least_shared_memory():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", PROGRAM, "89"]
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    for record in json.loads(run.stdout.splitlines()[-1]):
        assert record["shared"] <= OF_ARCHITECTURE[89].shared_memory, record
