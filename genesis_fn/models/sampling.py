"""From logits to tokens: temperature, top-k, top-p, and the decoding loop."""

from __future__ import annotations

import functools
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn.lax.elementwise import bitcast_convert_type
from genesis_fn.models import qwen
from genesis_fn.nn.functions import softmax
from genesis_fn.primitives.sort import top_k as largest
from genesis_fn.transforms.jit import jit
from genesis_fn.transforms.loops import while_loop


def sample(
    key: Any, logits: Any, *, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None,
) -> Any:  # fmt: skip
    """int32 tokens [...] drawn from logits [..., vocabulary].

    `temperature` 0 takes the most likely. `top_k` keeps the k most likely; `top_p` the fewest whose
    probability reaches p (Holtzman et al., 2019), always at least one.
    """
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError(
            f"sample: temperature {temperature} must not be negative, top_k {top_k} not below 1"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"sample: top_p must lie in (0, 1], got {top_p}")
    if temperature == 0:
        return jnp.astype(jnp.argmax(logits, -1), jnp.int32)
    logits = jnp.astype(logits, jnp.float32) / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        # Largest first, so what follows is about k numbers.
        logits, places = largest(logits, top_k)
        if top_p is not None and top_p < 1:
            p = softmax(logits, -1)
            # A token stays if those more likely than it have not reached p yet.
            logits = jnp.where(jnp.cumsum(p, -1) - p < top_p, logits, -jnp.inf)
        chosen = random.categorical(key, logits)
        return jnp.astype(jnp.take_along_axis(places, chosen[..., None], -1)[..., 0], jnp.int32)
    if top_p is not None and top_p < 1:
        logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
    return jnp.astype(random.categorical(key, logits), jnp.int32)


def _nucleus(logits: Any, top_p: float) -> Any:
    """Which of float32 logits [..., n] are among the most likely whose probability reaches p.

    Nothing is sorted: the least logit that stays is found as an integer of the same order as the
    floats, four bits at a time, each time by the probability of what lies at or above 15 integers.
    """
    bits = bitcast_convert_type(logits, jnp.int32)
    ranks = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    p = softmax(logits, -1)
    least = jnp.full((*logits.shape[:-1], 1), -(2**31), jnp.int32)
    for shift in range(28, -1, -4):
        steps = jnp.arange(1, 16, dtype=jnp.int32) * (1 << shift)
        above = ranks[..., None, :] >= (least + steps)[..., None]
        mass = jnp.sum(jnp.where(above, p[..., None, :], 0.0), -1)
        reached = jnp.sum(jnp.astype(mass >= top_p, jnp.int32), -1, keepdims=True)
        least = least + reached * (1 << shift)
    return ranks >= least


@functools.partial(
    jit, static_argnames=("config", "max_new_tokens", "temperature", "top_k", "top_p", "eos",
                          "cache_dtype"),
)  # fmt: skip
def generate(
    params: Any, tokens: Any, config: qwen.QwenConfig, *, max_new_tokens: int, key: Any = None,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    eos: int | None = None, lengths: Any = None, cache_dtype: Any = jnp.float32,
) -> tuple[Any, Any]:  # fmt: skip
    """(tokens [B, T + max_new_tokens], lengths [B]): int prompts [B, T] continued.

    Prompts shorter than T are padded at the end, `lengths` [B] saying how long each is. A row stops
    after `eos`, and all rows after `max_new_tokens`; behind a row's end stand zeros.
    """
    b, t = tokens.shape
    total = t + max_new_tokens
    key = random.key(0) if key is None else key
    lengths = jnp.full((b,), t, jnp.int32) if lengths is None else jnp.astype(lengths, jnp.int32)
    positions = jnp.arange(total)[None, :]
    out = jnp.pad(jnp.astype(tokens, jnp.int32), ((0, 0), (0, max_new_tokens)))
    out = jnp.where(positions < lengths[:, None], out, 0)
    cache = qwen.init_cache(config, b, total, cache_dtype)
    logits, cache = qwen.extend(params, out[:, :t], cache, config, lengths)
    last = jnp.take_along_axis(logits, (lengths - 1)[:, None, None], axis=1)[:, 0]

    def draw(step: Any, logits: Any) -> Any:
        return sample(
            random.fold_in(key, step), logits, temperature=temperature, top_k=top_k, top_p=top_p
        )

    def going(state: Any) -> Any:
        step, _, _, done, _, _ = state
        return (step < max_new_tokens) & ~jnp.all(done)

    def advance(state: Any) -> Any:
        step, out, lengths, done, logits, cache = state
        token = draw(step, logits)
        here = (positions == lengths[:, None]) & ~done[:, None]
        out = jnp.where(here, token[:, None], out)
        lengths = jnp.where(done, lengths, lengths + 1)
        if eos is not None:
            done = done | (token == eos)
        logits, cache = qwen.decode_step(params, token, cache, config)
        return step + 1, out, lengths, done, logits, cache

    start = (jnp.asarray(0), out, lengths, jnp.zeros((b,), bool), last, cache)
    _, out, lengths, _, _, _ = while_loop(going, advance, start)
    return out, lengths
