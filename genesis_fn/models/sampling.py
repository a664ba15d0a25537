"""From logits to tokens: temperature, top-k, top-p, and the decoding loop."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import typeof
from genesis_fn.lax.elementwise import bitcast_convert_type
from genesis_fn.models import qwen
from genesis_fn.nn.functions import softmax
from genesis_fn.primitives.sort import top_k as largest
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.debugging.assertions import assert_
from genesis_fn.transforms.jitting import jit


def sample(
    key: Any,
    logits: Any,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Any:
    """int32 tokens [...] drawn from logits [..., vocabulary].

    `temperature` 0 takes the most likely. `top_k` keeps the k most likely; `top_p` the fewest whose
    probability reaches p (Holtzman et al., 2019), always at least one. Raises ValueError for
    settings out of range, and AssertionFailed, when the program runs, for logits that are NaN or
    leave no token a probability.
    """
    temperature = float(temperature)
    if not 0 <= temperature < math.inf:
        raise ValueError(f"sample: temperature {temperature} must be finite and not negative")
    top_k = None if top_k is None else operator.index(top_k)
    if top_k is not None and top_k < 1:
        raise ValueError(f"sample: top_k {top_k} must not be below 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"sample: top_p must lie in (0, 1], got {top_p}")
    if temperature == 0:
        token = jnp.argmax(logits, -1)
        return _checked(token, _at(logits, token))
    logits = jnp.astype(logits, jnp.float32)
    if temperature < _SMALL:
        # The quotient alone overflows. Differences below the least temperature are zero.
        logits = logits - jnp.max(logits, -1, keepdims=True)
    logits = logits / max(temperature, _LEAST)
    if top_k is not None and top_k < logits.shape[-1]:
        # Largest first, so what follows is about k numbers.
        logits, places = largest(logits, top_k)
        best = logits[..., 0]
        if top_p is not None and top_p < 1:
            p = softmax(logits, -1)
            # A token stays if those more likely than it have not reached p yet.
            logits = jnp.where(jnp.cumsum(p, -1) - p < top_p, logits, -jnp.inf)
        chosen = random.categorical(key, logits)
        return _checked(_at(places, chosen), best)
    if top_p is not None and top_p < 1:
        logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
    token = random.categorical(key, logits)
    return _checked(token, _at(logits, token))


_SMALL = 1e-3  # temperatures below it take care of overflow
_LEAST = 1e-30  # float32 logits that differ at all differ by more than a hundred times that


def _at(values: Any, places: Any) -> Any:
    return jnp.take_along_axis(values, places[..., None], -1)[..., 0]


def _checked(token: Any, logit: Any) -> Any:
    """`token` as int32; `logit` is a row's largest, or the one drawn, which is NaN in a row that
    has one: sorting and drawing take it for the largest."""
    assert_(logit > -jnp.inf, "sample: the logits are NaN, or all of a row are -inf")
    return jnp.astype(token, jnp.int32)


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


def generate(
    params: Any,
    tokens: Any,
    config: qwen.QwenConfig,
    *,
    max_new_tokens: int,
    key: Any = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos: int | Sequence[int] | None = None,
    lengths: Any = None,
    cache_dtype: Any = jnp.float32,
) -> tuple[Any, Any]:
    """(tokens [B, T + max_new_tokens], lengths [B]): int prompts [B, T] continued.

    Prompts shorter than T are padded at the end, `lengths` [B] saying how long each is, at least 1.
    A row stops after `eos`, or any of several, and all rows after `max_new_tokens`; behind a row's
    end stand zeros. Raises ValueError for settings out of range, and when the program runs
    AssertionFailed for lengths out of range and for NaN logits.
    """
    tokens = jnp.asarray(tokens)
    kind = typeof(tokens)
    if kind.ndim != 2 or kind.shape[1] == 0:
        raise errors.ShapeError(
            f"generate: tokens {kind} must be [batch, length], of at least one token a row"
        )
    if not dtypes.is_integer(kind.dtype):
        raise errors.DTypeError(f"generate: tokens {kind} must be integers")
    max_new_tokens = operator.index(max_new_tokens)
    if max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens {max_new_tokens} must not be negative")
    several: Any = () if eos is None else eos if isinstance(eos, list | tuple) else (eos,)
    ends = tuple(sorted({operator.index(end) for end in several}))
    for end in ends:
        if not 0 <= end < config.vocab_size:
            raise ValueError(
                f"generate: eos {end} is no token of a vocabulary of {config.vocab_size}"
            )
    if lengths is not None:
        lengths = jnp.asarray(lengths)
    return _generate(
        params,
        tokens,
        config,
        max_new_tokens=max_new_tokens,
        key=key,
        ends=ends,
        lengths=lengths,
        temperature=float(temperature),
        top_k=top_k,
        top_p=top_p,
        cache_dtype=cache_dtype,
    )


@functools.partial(
    jit, static_argnames=("config", "max_new_tokens", "temperature", "top_k", "top_p", "ends",
                          "cache_dtype"),
)  # fmt: skip
def _generate(
    params: Any,
    tokens: Any,
    config: qwen.QwenConfig,
    *,
    max_new_tokens: int,
    key: Any,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    ends: tuple[int, ...],
    lengths: Any,
    cache_dtype: Any,
) -> tuple[Any, Any]:
    b, t = tokens.shape
    total = t + max_new_tokens
    key = random.key(0) if key is None else key
    if lengths is None:
        lengths = jnp.full((b,), t, jnp.int32)
    else:
        _check_lengths(typeof(lengths), b)
        lengths = jnp.astype(lengths, jnp.int32)
        assert_((lengths >= 1) & (lengths <= t), f"generate: lengths must lie in 1 to {t}")
    positions = jnp.arange(total)[None, :]
    out = jnp.pad(jnp.astype(tokens, jnp.int32), ((0, 0), (0, max_new_tokens)))
    out = jnp.where(positions < lengths[:, None], out, 0)
    cache = qwen.init_cache(config, b, total, cache_dtype)
    logits, cache = qwen.extend_within(params, out[:, :t], cache, config, lengths)
    # Clipped, so that a length that is out of range is named as that.
    last = jnp.take_along_axis(logits, (lengths - 1)[:, None, None], axis=1, mode="clip")[:, 0]

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
        for end in ends:
            done = done | (token == end)
        logits, cache = qwen.extend_within(params, token[:, None], cache, config)
        return step + 1, out, lengths, done, logits[:, 0], cache

    start = (jnp.asarray(0), out, lengths, jnp.zeros((b,), bool), last, cache)
    _, out, lengths, _, _, _ = while_loop(going, advance, start)
    return out, lengths


def _check_lengths(kind: Any, batch: int) -> None:
    if kind.shape != (batch,) or not dtypes.is_integer(kind.dtype):
        raise errors.ShapeError(f"generate: lengths {kind} must be [{batch}] integers")
