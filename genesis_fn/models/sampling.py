"""Sampling tokens from logits (temperature, top-k, top-p), and the decoding loop."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes, errors, jit
from genesis_fn.extend import Aval, typeof
from genesis_fn.lax import bitcast_convert_type, top_k as largest, while_loop
from genesis_fn.models import qwen
from genesis_fn.nn import softmax
from genesis_fn.transforms import assert_


def sample(
    key: Key,
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Array:
    """Tokens drawn from logits.

    Args:
        key: random key; the call uses it up, unless `temperature` is 0.
        logits: array [..., vocabulary].
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep the k most likely tokens; None keeps all.
        top_p: keep the fewest most likely tokens whose probability reaches p, always at least one
            (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019); None keeps all.

    Returns:
        int32 tokens [...].

    Raises:
        ValueError: a setting is out of range.
        AssertionFailed: logits are NaN, or all of a row are -inf, when the program runs.

    >>> sample(random.key(0), jnp.array([[0.0, 1.0, 9.0]]), temperature=0.0)
    Array([2], dtype=int32)
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
        return _checked_token(token, _take(jnp.asarray(logits), token))
    scores: Array = jnp.astype(logits, jnp.float32)
    if temperature < _SMALL:
        # The quotient alone overflows. Differences below the least temperature are zero.
        scores = scores - jnp.max(scores, -1, keepdims=True)
    scores = scores / max(temperature, _LEAST)
    if top_k is not None and top_k < scores.shape[-1]:
        # Largest first, so what follows is about k numbers.
        scores, index = largest(scores, top_k)
        best = scores[..., 0]
        if top_p is not None and top_p < 1:
            p = softmax(scores, -1)
            # A token stays if those more likely than it have not reached p yet.
            scores = jnp.where(jnp.cumsum(p, -1) - p < top_p, scores, -jnp.inf)
        chosen = random.categorical(key, scores)
        return _checked_token(_take(index, chosen), best)
    if top_p is not None and top_p < 1:
        scores = jnp.where(_nucleus(scores, top_p), scores, -jnp.inf)
    token = random.categorical(key, scores)
    return _checked_token(token, _take(scores, token))


_SMALL = 1e-3  # temperatures below it take care of overflow
_LEAST = 1e-30  # float32 logits that differ at all differ by more than a hundred times that


def _take(values: Array, index: Array) -> Array:
    return jnp.take_along_axis(values, index[..., None], -1)[..., 0]


def _checked_token(token: Array, logit: Array) -> Array:
    """Return `token` as int32, and check `logit`, a row's largest or the one drawn: it is NaN in a
    row that has a NaN, which sorting and argmax take for the largest."""
    assert_(logit > -jnp.inf, "sample: the logits are NaN, or all of a row are -inf")
    return jnp.astype(token, jnp.int32)


def _nucleus(logits: Array, top_p: float) -> Array:
    """The nucleus of top-p sampling: booleans [..., n] for the fewest most likely of float32 logits
    whose probability reaches p.

    Needs no sort: floats order like the integers `ranks`, and the least rank that stays is found by
    a search of 16 branches, four bits at a time, on the probability at or above each candidate.
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
    params: PyTree,
    tokens: ArrayLike,
    config: qwen.QwenConfig,
    *,
    max_new_tokens: int,
    key: Key | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos: int | Sequence[int] | None = None,
    lengths: ArrayLike | None = None,
    cache_dtype: DTypeLike = jnp.float32,
) -> tuple[Array, Array]:
    """Prompts continued token by token, in one compiled program.

    Args:
        params: parameters, from `qwen.init` or `io.load_qwen`.
        tokens: int prompts [B, T]; shorter ones are padded at their end.
        config: the hyperparameters.
        max_new_tokens: the most tokens that a row gains.
        key: random key for `temperature` above 0; None means `random.key(0)`.
        temperature, top_k, top_p: as in `sample`; by default the most likely token is taken.
        eos: token, or several, after which a row stops.
        lengths: length of each prompt, integers [B] from 1 to T; None means T.
        cache_dtype: dtype of the cached keys and values.

    Returns:
        (int32 tokens [B, T + max_new_tokens], with zeros behind a row's end; their lengths [B]).

    Raises:
        ShapeError, DTypeError: `tokens` or `lengths` have another shape, or are no integers.
        ValueError: a setting is out of range.
        AssertionFailed: a length is out of range or logits are NaN, when the program runs.

    >>> config = gf.models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.qwen.init(random.key(0), config)
    >>> tokens, lengths = generate(params, jnp.array([[1, 2, 3]]), config, max_new_tokens=4)
    >>> tokens.shape, lengths.tolist()
    ((1, 7), [7])
    """
    prompts: Array = jnp.asarray(tokens)
    aval = typeof(prompts)
    if aval.ndim != 2 or aval.shape[1] == 0:
        raise errors.ShapeError(
            f"generate: tokens {aval} must be [batch, length], of at least one token a row"
        )
    if not dtypes.is_integer(aval.dtype):
        raise errors.DTypeError(f"generate: tokens {aval} must be integers")
    max_new_tokens = operator.index(max_new_tokens)
    if max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens {max_new_tokens} must not be negative")
    ends = _end_tokens(eos)
    for end in ends:
        if not 0 <= end < config.vocab_size:
            raise ValueError(
                f"generate: eos {end} is no token of a vocabulary of {config.vocab_size}"
            )
    prompt_lengths: Array | None = None if lengths is None else jnp.asarray(lengths)
    return _generate(
        params,
        prompts,
        config,
        max_new_tokens=max_new_tokens,
        key=key,
        ends=ends,
        lengths=prompt_lengths,
        temperature=float(temperature),
        top_k=top_k,
        top_p=top_p,
        cache_dtype=cache_dtype,
    )


def _end_tokens(eos: int | Sequence[int] | None) -> tuple[int, ...]:
    if eos is None:
        return ()
    several: Any = eos
    try:
        several = [operator.index(several)]
    except TypeError:  # a sequence, or an array of several
        several = list(several)
    return tuple(sorted({operator.index(end) for end in several}))


@functools.partial(
    jit, static_argnames=("config", "max_new_tokens", "temperature", "top_k", "top_p", "ends",
                          "cache_dtype"),
)  # fmt: skip
def _generate(
    params: PyTree,
    tokens: Array,
    config: qwen.QwenConfig,
    *,
    max_new_tokens: int,
    key: Key | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    ends: tuple[int, ...],
    lengths: Array | None,
    cache_dtype: DTypeLike,
) -> tuple[Array, Array]:
    b, t = tokens.shape
    total = t + max_new_tokens
    key = random.key(0) if key is None else key
    if lengths is None:
        row_lengths = jnp.full((b,), t, jnp.int32)
    else:
        _check_lengths(typeof(lengths), b)
        row_lengths = jnp.astype(lengths, jnp.int32)
        assert_((row_lengths >= 1) & (row_lengths <= t), f"generate: lengths must lie in 1 to {t}")
    positions = jnp.arange(total)[None, :]
    out = jnp.pad(jnp.astype(tokens, jnp.int32), ((0, 0), (0, max_new_tokens)))
    out = jnp.where(positions < row_lengths[:, None], out, 0)
    cache = qwen.init_cache(config, b, total, cache_dtype)
    logits, cache = qwen.extend_within(params, out[:, :t], cache, config, row_lengths)
    # Clipped, so that an invalid length fails the check of lengths, not this indexing.
    last = jnp.take_along_axis(logits, (row_lengths - 1)[:, None, None], axis=1, mode="clip")[:, 0]

    def draw(step: Array, logits: Array) -> Array:
        return sample(
            random.fold_in(key, step), logits, temperature=temperature, top_k=top_k, top_p=top_p
        )

    def unfinished(state: tuple[Any, ...]) -> Array:
        step, _, _, done, _, _ = state
        return (step < max_new_tokens) & ~jnp.all(done)

    def advance(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, out, lengths, done, logits, cache = state
        token = draw(step, logits)
        here = (positions == lengths[:, None]) & ~done[:, None]
        out = jnp.where(here, token[:, None], out)
        lengths = jnp.where(done, lengths, lengths + 1)
        for end in ends:
            done = done | (token == end)
        logits, cache = qwen.extend_within(params, token[:, None], cache, config)
        return step + 1, out, lengths, done, logits[:, 0], cache

    start = (jnp.asarray(0), out, row_lengths, jnp.zeros((b,), bool), last, cache)
    _, out, row_lengths, _, _, _ = while_loop(unfinished, advance, start)
    return out, row_lengths


def _check_lengths(aval: Aval, batch: int) -> None:
    if aval.shape != (batch,) or not dtypes.is_integer(aval.dtype):
        raise errors.ShapeError(f"generate: lengths {aval} must be [{batch}] integers")
