"""Generation on the GPU's path: the CPU's tokens, and loops that the host has no part in."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import random
from genesis_fn.backends.cuda.run.steps import has_host
from genesis_fn.models import GenerationConfig, Session, beam_search, generate, qwen
from genesis_fn.transforms.jitting import jit

CONFIG = qwen.QwenConfig(
    vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, rope_theta=1e4, initializer_range=0.5,
)  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 24, (2, 4)).astype(np.int32)


def made() -> Any:
    return jit(lambda: qwen.init(random.key(3), CONFIG))()


def penalized(params: Any, tokens: Any) -> Any:
    return generate(
        params, tokens, CONFIG, max_new_tokens=2, temperature=1.2, top_k=9, top_p=0.95, min_p=0.02,
        typical_p=0.9, repetition_penalty=1.3, presence_penalty=0.3, frequency_penalty=0.2,
        min_new_tokens=1, eos=[3, 5], lengths=gnp.array([4, 2]), key=random.key(1),
        return_logprobs=True,
    )  # fmt: skip


def searched(params: Any, tokens: Any) -> Any:
    return beam_search(
        params, tokens, CONFIG, num_beams=2, max_new_tokens=2, eos=[3, 5], num_return_sequences=2
    )


@pytest.mark.parametrize("f", [penalized, searched], ids=lambda f: f.__name__)
def test_the_loop_stays_on_the_device(f: Any) -> None:
    with g.default_matmul_precision("float32"):
        executable = programs.compare(f, made(), TOKENS)
    assert not any(map(has_host, executable.schedule.steps))
    assert {graph.segments for graph in executable.io.graphs.values()} == {1}


def test_a_session_on_the_device() -> None:
    """Arrays there, while the default device is another one."""
    generation = GenerationConfig(max_new_tokens=3, do_sample=True, top_k=2, seed=1)
    found = []
    with g.default_matmul_precision("float32"):
        params = made()
        for place in (g.cpu(), programs.PLACE):
            session = Session(g.device_put(params, place), CONFIG, capacity=24)
            first = [t.token for t in session.stream(TOKENS[0], generation)]
            second = list(session.stream([*TOKENS[0], *first, 1], generation, chunk=1))
            found.append([*first, *[t.token for t in second], session.reused])
    assert found[0] == found[1] and found[0][-1] == 6
