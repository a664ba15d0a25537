"""Decoding with Qwen as one program: the CPU's tokens, a cache that stays in place, few launches
for each layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import random
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.backends.cuda.run.steps import Copy, SubProgram, While
from genesis_fn.core import tree
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import BF16, I32
from genesis_fn.kernels.plan import Launch
from genesis_fn.models import generate, qwen, sample
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import stage

SMALL = qwen.QwenConfig(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    initializer_range=0.3,
)
# At the sizes of Qwen3-0.6B: a layer is the products of q, k and v; their norms, rotation and
# values into the cache; keys into the cache; attention in parts; its combination; o; gate and up;
# down.
LAUNCHES_OF_A_LAYER = 8
# Of several rows: two norms are no part of a product, and the sum over k of `down` is split.
LAUNCHES_OF_SEVERAL_ROWS = 11
# The check of the cache's room, positions, embedding, last norm, logits, the largest in two, the
# loop's test.
LAUNCHES_AROUND = 9
LAUNCHES_TO_SAMPLE = 12  # two of them look for NaN logits
CACHED = 2048


@pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")  # once a case
@pytest.mark.parametrize(("batch", "dtype", "options"), [
    (1, gnp.float32, {}), (2, gnp.bfloat16, {}),
    (2, gnp.float32, dict(sliding_window=2, num_experts=3, num_experts_per_tok=2,
                          moe_intermediate_size=16, mlp_bias=True)),
], ids=["float32", "bfloat16", "windows and experts"])  # fmt: skip
def test_generation_is_one_graph(batch: int, dtype: Any, options: dict[str, Any]) -> None:
    tokens = np.random.default_rng(0).integers(0, 32, (batch, 3)).astype(np.int32)
    config = dataclasses.replace(SMALL, **options)
    params = jit(lambda: qwen.init(random.key(3), config, dtype))()

    def f(params: Any, tokens: Any) -> Any:
        return generate(params, tokens, config, max_new_tokens=3, cache_dtype=dtype)

    with g.default_matmul_precision("float32"):
        executable = programs.compare(f, params, tokens)
    assert {graph.segments for graph in executable.io.graphs.values()} == {1}


def shapes(x: Any, dtype: Any) -> Any:
    """The avals of a tree of arrays, floats as `dtype`."""
    return tree.map(
        lambda a: aval(a.shape, dtype if gnp.issubdtype(a.dtype, gnp.floating) else a.dtype), x
    )


def planned(layers: int, choose: Any, in_a_loop: bool = False, batch: int = 1) -> CudaExecutable:
    """The plan of decoding at the sizes of Qwen3-0.6B; nothing runs."""
    config = dataclasses.replace(qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=layers)
    params = g.eval_shape(lambda: qwen.init(random.key(0), config))
    cache = g.eval_shape(lambda: qwen.init_cache(config, batch, CACHED))
    token = aval((batch,), I32)
    args = shapes(params, BF16), token, shapes(cache, BF16)
    leaves, structure = tree.flatten(args)

    def step(params: Any, token: Any, cache: Any) -> tuple[Any, Any]:
        logits, cache = qwen.decode_step(params, token, cache, config)
        return choose(cache["lengths"][0], logits), cache

    def f(*xs: Any) -> list[Any]:
        params, token, cache = tree.unflatten(structure, xs)
        if not in_a_loop:
            return tree.leaves(step(params, token, cache))

        def advance(state: Any) -> Any:
            n, token, cache = state
            return n + 1, *step(params, token, cache)

        start = gnp.asarray(0), token, cache
        return tree.leaves(while_loop(lambda state: state[0] < 64, advance, start))

    jaxpr, captured = stage(f, leaves)
    kept = len(tree.leaves(args[0]))
    donated = [False] * (len(captured) + kept) + [True] * (len(leaves) - kept)
    return programs.compile_jaxpr(jaxpr, programs.PLACE, donated=donated)


def greedy(_: Any, logits: Any) -> Any:
    return gnp.argmax(logits, -1).astype(gnp.int32)


def flat(steps: Sequence[Any]) -> Iterator[Any]:
    """Launches and copies, of loops' bodies too."""
    for step in steps:
        if isinstance(step, SubProgram):
            yield from flat(step.steps)
        elif isinstance(step, While):
            yield from flat((*step.condition, *step.body))
        else:
            yield step


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["step", "loop"])
def test_launches_of_a_layer(in_a_loop: bool, batch: int) -> None:
    counts, most = [], LAUNCHES_OF_A_LAYER if batch == 1 else LAUNCHES_OF_SEVERAL_ROWS
    for layers in (1, 2):
        executable = planned(layers, greedy, in_a_loop, batch)
        steps = list(flat(executable.schedule.steps))
        counts.append(sum(isinstance(step, Launch) for step in steps))
        # The cache is updated where it is: nothing but a counter and a token is copied.
        assert all(step.bytes <= 4 * batch for step in steps if isinstance(step, Copy))
        assert executable.schedule.arena < (2 << 20) * batch
        # Every cache, the lengths, and in a loop the token.
        assert len(executable.replaced) >= 2 * layers + 1
    assert counts[1] - counts[0] <= most
    assert counts[0] <= most + LAUNCHES_AROUND


def test_sampling_sorts_no_vocabulary() -> None:
    def drawn(step: Any, logits: Any) -> Any:
        key = random.fold_in(random.key(0), step)
        return sample(key, logits, temperature=0.7, top_k=50, top_p=0.9)

    def launches(choose: Any) -> int:
        steps = flat(planned(1, choose).schedule.steps)
        return sum(isinstance(step, Launch) for step in steps)

    assert launches(drawn) - launches(greedy) <= LAUNCHES_TO_SAMPLE
