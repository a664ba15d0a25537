"""Beam search on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, errors, jit, tree
from genesis_fn.lax import dynamic_update_slice, top_k as largest, while_loop
from genesis_fn.models.generation import causal_model
from genesis_fn.models.generation.generation_config import GenerationConfig
from genesis_fn.models.generation.penalties import (
    Penalties,
    first_uses,
    is_one_of,
    more_uses,
    penalized,
)
from genesis_fn.models.generation.prompts import Prompts, prompts_of
from genesis_fn.models.generation.request import Request, check_generation, requested
from genesis_fn.nn import log_softmax
from genesis_fn.transforms import JitFunction, assert_

_NEVER = -1e9  # transformers' score of what must not be chosen
_KEPT = 64  # programs that stay


@dataclasses.dataclass(frozen=True)
class BeamPlan:
    """What a beam search is compiled for; `capacity` is the cache's, and the most new tokens."""

    config: causal_model.Config
    penalties: Penalties
    rows: int
    length: int
    capacity: int
    cache_dtype: DTypeLike
    beams: int
    length_penalty: float
    early_stopping: bool | str


def beam_search(
    params: PyTree,
    tokens: ArrayLike,
    config: causal_model.Config,
    *,
    num_beams: int | None = None,
    max_new_tokens: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    num_return_sequences: int | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    min_new_tokens: int | None = None,
    eos: int | Sequence[int] | None = None,
    lengths: ArrayLike | None = None,
    cache_dtype: DTypeLike | None = None,
    generation: GenerationConfig | None = None,
) -> tuple[Array, Array, Array]:
    """The continuations of prompts that score best among those that beams find.

        score = sum of log p(token | tokens before) / (number of new tokens)**length_penalty

    Each step keeps the `num_beams` best unfinished continuations of each prompt, and the
    `num_beams` best finished ones, as transformers' beam search does. An argument that is None is
    what `generation` says, or else has the default of `GenerationConfig`; `num_beams` and
    `max_new_tokens` are required without it.

    Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012; length penalty: Wu
    et al., "Google's Neural Machine Translation System", 2016.

    Args:
        params: parameters, from `qwen.init` or `io.load_model`.
        tokens: int prompts [B, T]; shorter ones are padded at their end.
        config: the hyperparameters.
        num_beams: the number of beams, K.
        max_new_tokens: the most tokens that a row gains.
        length_penalty: exponent of the length; above 0 longer continuations score better.
        early_stopping: True ends the search of a prompt with K finished continuations, False where
            a better one is unlikely, "never" where there can be none.
        num_return_sequences: how many continuations are returned, R.
        repetition_penalty, presence_penalty, frequency_penalty: as in `GenerationConfig`, of the
            log-probabilities.
        min_new_tokens: how many tokens come before one of `eos` may.
        eos: token, or several, that finish a continuation.
        lengths: length of each prompt, integers [B] from 1 to T; None means T.
        cache_dtype: dtype of the cached keys and values; None means that of the output layer's
            weight.
        generation: what holds where an argument is None.

    Returns:
        (int32 tokens [B, R, T + max_new_tokens], best first, with `pad_token_id` or zeros behind a
        continuation's end; their lengths [B, R]; their scores, float32 [B, R]).

    Raises:
        ShapeError, DTypeError: `tokens` or `lengths` have another shape, or are no integers.
        IndexError: a token is none of the vocabulary (a ValueError too, where `tokens` are known).
        ValueError: a setting is out of range, or the vocabulary has too few tokens for the beams.
        AssertionFailed: a length is out of range or logits are NaN, when the program runs.

    >>> config = gf.models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.qwen.init(random.key(0), config)
    >>> prompts = jnp.array([[1, 2, 3]])
    >>> found = beam_search(params, prompts, config, num_beams=2, max_new_tokens=4)
    >>> tokens, lengths, scores = found
    >>> tokens.shape, lengths.tolist(), scores.shape
    ((1, 1, 7), [[7]], (1, 1))
    """
    causal_model.check_model("beam_search", params, config)
    check_generation("beam_search", generation)
    given = {
        "num_beams": num_beams, "length_penalty": length_penalty, "early_stopping": early_stopping,
        "num_return_sequences": num_return_sequences,
    }  # fmt: skip
    base = GenerationConfig() if generation is None else generation
    if num_beams is None and generation is None:
        raise ValueError("beam_search: give num_beams, or a generation config")
    try:
        how = dataclasses.replace(base, **{n: v for n, v in given.items() if v is not None})
    except ValueError as error:
        raise errors.ArgumentError(f"beam_search: {error}") from None
    prompts = prompts_of("beam_search", tokens, lengths, config.vocab_size)
    request = requested(
        "beam_search", params, config.vocab_size, prompts.width, generation,
        max_new_tokens=max_new_tokens,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, min_new_tokens=min_new_tokens, eos=eos,
    )  # fmt: skip
    return beams_of("beam_search", params, prompts, config, how, request, cache_dtype)


def beams_of(
    caller: str,
    params: PyTree,
    prompts: Prompts,
    config: causal_model.Config,
    how: GenerationConfig,
    request: Request,
    cache_dtype: DTypeLike | None,
) -> tuple[Array, Array, Array]:
    """`beam_search` of what was checked: `how` has the fields about beams, `request` the others."""
    kept = max(2, 1 + len(request.penalties.eos))
    if kept > config.vocab_size:
        raise ValueError(
            f"{caller}: {kept} continuations of each beam are kept, one more than there are ends, "
            f"but the vocabulary has {config.vocab_size} tokens"
        )
    if request.sampling.temperature > 0 or request.stop:
        raise ValueError(f"{caller}: beams are neither drawn (do_sample) nor ended by stop_strings")
    if request.limit < 1:
        raise ValueError(f"{caller}: max_new_tokens {request.limit} must not be below 1")
    plan = BeamPlan(
        config, request.penalties, prompts.rows, prompts.padded, prompts.capacity(request.limit),
        causal_model.cache_dtype_of(params, cache_dtype), how.num_beams, how.length_penalty,
        how.early_stopping,
    )  # fmt: skip
    out, ends, scores = _program(plan)(
        params, prompts.tokens, prompts.lengths, request.limit, request.least,
        request.pad,
    )  # fmt: skip
    wanted = how.num_return_sequences
    return (out[:, :wanted, : prompts.width + request.limit], ends[:, :wanted], scores[:, :wanted])


# ---- the search ----

# The state of the loop, for B prompts of K beams:
#     step         int32 []        new tokens of each unfinished beam
#     new          int32 [B, K, N] those tokens, and their sum of log p in `scores` [B, K]
#     finished     int32 [B, K, N] the best finished ones, with `finished_scores`, `counts` (their
#                  number of tokens) and `is_finished` [B, K]: others are places that are free
#     improvable   bool [B]        whether an unfinished beam may still become one of them
#     stuck        bool []         whether every continuation of the last step was finished
#     token        int32 [B * K]   the last tokens, which the cache lacks yet
#     parent       int32 [B * K]   the row of the cache that each one continues
#     uses, cache                  of B * K rows
_State = dict[str, Any]


@functools.lru_cache(_KEPT)
def _program(plan: BeamPlan) -> JitFunction[..., tuple[Array, Array, Array]]:
    """(params, tokens, lengths, limit, least, pad) to (tokens [B, K, capacity], lengths,
    scores)."""

    def search(
        params: PyTree, tokens: Array, lengths: Array, limit: Array, least: Array, pad: Array
    ) -> tuple[Array, Array, Array]:
        # As arrays where `disable_jit` leaves what the host passes as it is.
        tokens, lengths, limit, least = map(jnp.asarray, (tokens, lengths, limit, least))
        logits, state = _start(plan, params, tokens, lengths)
        state = _chosen(plan, state, logits, limit, least)

        def advance(state: _State) -> _State:
            cache = tree.map(lambda x: x[state["parent"]], state["cache"])
            token = state["token"][:, None]
            logits, cache = causal_model.extend_within(params, token, cache, plan.config)
            return _chosen(plan, {**state, "cache": cache}, logits[:, 0], limit, least)

        state = while_loop(lambda state: _goes_on(plan, state), advance, state)
        return _joined(plan, tokens, lengths, state, pad)

    return jit(search)


def _start(plan: BeamPlan, params: PyTree, tokens: Array, lengths: Array) -> tuple[Array, _State]:
    """(logits of the first tokens [B * K, vocabulary], the state before them)."""
    b, k = plan.rows, plan.beams
    cache = causal_model.init_cache(plan.config, b, plan.capacity, plan.cache_dtype)
    logits, cache = causal_model.extend_within(
        params, tokens, cache, plan.config, lengths, last=True
    )
    uses = first_uses(tokens, lengths, logits.shape[-1], plan.penalties)
    logits, uses, cache = tree.map(lambda x: jnp.repeat(x, k, axis=0), (logits, uses, cache))
    places = jnp.zeros((b, k, plan.capacity), jnp.int32)
    # All beams are the prompt yet: one alone may be continued.
    first = jnp.where(jnp.arange(k)[None, :] == 0, 0.0, _NEVER)
    return logits, {
        "step": jnp.zeros((), jnp.int32),
        "new": places,
        "scores": jnp.astype(jnp.broadcast_to(first, (b, k)), jnp.float32),
        "finished": places,
        "finished_scores": jnp.full((b, k), _NEVER, jnp.float32),
        "counts": jnp.zeros((b, k), jnp.int32),
        "is_finished": jnp.zeros((b, k), bool),
        "improvable": jnp.ones((b,), bool),
        "stuck": jnp.zeros((), bool),
        "token": jnp.zeros((b * k,), jnp.int32),
        "parent": jnp.arange(b * k),
        "uses": uses,
        "cache": cache,
    }


def _goes_on(plan: BeamPlan, state: _State) -> Array:
    on = jnp.any(state["improvable"]) & ~state["stuck"]
    if plan.early_stopping is True:
        on = on & ~jnp.all(state["is_finished"])
    return on


def _chosen(plan: BeamPlan, state: _State, logits: Array, limit: Array, least: Array) -> _State:
    """The state with one more token for every beam, of these logits [B * K, vocabulary]."""
    b, k = plan.rows, plan.beams
    step, length = state["step"], state["step"] + 1
    logp = log_softmax(jnp.astype(logits, jnp.float32), -1)
    assert_(~jnp.any(jnp.isnan(logp)), "beam_search: the logits are NaN, or all of a row are -inf")
    logp = penalized(logp, state["uses"], step, least, plan.penalties)
    vocabulary = logp.shape[-1]
    sums = jnp.reshape(logp, (b, k, vocabulary)) + state["scores"][:, :, None]
    # So many that K are unfinished, even if every end follows every beam.
    candidates = k * max(2, 1 + len(plan.penalties.eos))
    scores, place = largest(jnp.reshape(sums, (b, k * vocabulary)), candidates)
    beam, token = place // vocabulary, jnp.astype(place % vocabulary, jnp.int32)
    texts = _of_beams(state["new"], beam)
    zero = jnp.zeros((), jnp.int32)
    texts = dynamic_update_slice(texts, token[:, :, None], (zero, zero, step))
    ending = is_one_of(token, plan.penalties.eos) | (length >= limit)
    finished = _finished(plan, state, texts, scores, ending, length)
    running, chosen = largest(scores + jnp.where(ending, _NEVER, 0.0), k)
    beam, token = (jnp.take_along_axis(x, chosen, axis=1) for x in (beam, token))
    parent = jnp.reshape(beam + jnp.arange(b)[:, None] * k, (b * k,))
    token = jnp.reshape(token, (b * k,))
    uses = tree.map(lambda x: x[parent], state["uses"])
    return {
        "step": length,
        "new": _of_beams(texts, chosen),
        "scores": running,
        **finished,
        "improvable": state["improvable"] & _improvable(plan, running, finished, length, limit),
        "stuck": jnp.all(ending),
        "token": token,
        "parent": parent,
        "uses": more_uses(uses, token),
        "cache": state["cache"],
    }


def _of_beams(values: Array, beam: Array) -> Array:
    """`values` [B, K, N] of the beams [B, C]."""
    return jnp.take_along_axis(values, beam[:, :, None], axis=1)


def _finished(
    plan: BeamPlan, state: _State, texts: Array, scores: Array, ending: Array, length: Array
) -> _State:
    """The best finished continuations, of those before and of the candidates that end."""
    k = plan.beams
    # Candidates behind the first K are there to continue, not to be results.
    ends = ending & (jnp.arange(ending.shape[1])[None, :] < k)
    scores = scores / _length_divisor(plan, length)
    closed = ~state["improvable"]
    if plan.early_stopping is True:
        closed = closed | jnp.all(state["is_finished"], -1)
    scores = scores + jnp.where(closed[:, None], _NEVER, 0.0) + jnp.where(ends, 0.0, _NEVER)
    merged = {
        "finished": jnp.concatenate([state["finished"], texts], 1),
        "counts": jnp.concatenate([state["counts"], jnp.broadcast_to(length, ends.shape)], 1),
        "is_finished": jnp.concatenate([state["is_finished"], ends], 1),
    }
    best, place = largest(jnp.concatenate([state["finished_scores"], scores], 1), k)
    return {
        "finished": _of_beams(merged["finished"], place),
        "counts": jnp.take_along_axis(merged["counts"], place, axis=1),
        "is_finished": jnp.take_along_axis(merged["is_finished"], place, axis=1),
        "finished_scores": best,
    }


def _improvable(
    plan: BeamPlan, running: Array, finished: _State, length: Array, limit: Array
) -> Array:
    """Whether the best unfinished beam of each prompt may become better than its worst finished
    one. With `early_stopping` "never" it is given the length at which it would score best."""
    if plan.early_stopping == "never" and plan.length_penalty > 0:
        length = limit
    best = running[:, 0] / _length_divisor(plan, length)
    worst = jnp.min(finished["finished_scores"], -1, keepdims=True)
    worst = jnp.where(finished["is_finished"], worst, _NEVER)
    return jnp.any(best[:, None] > worst, -1)


def _length_divisor(plan: BeamPlan, length: Array) -> Array:
    return jnp.astype(length, jnp.float32) ** plan.length_penalty


def _joined(
    plan: BeamPlan, tokens: Array, lengths: Array, state: _State, pad: Array
) -> tuple[Array, Array, Array]:
    """(prompts with the finished continuations behind them, their lengths, their scores)."""
    at = (jnp.arange(plan.capacity)[None, :] - lengths[:, None])[:, None, :]
    behind = jnp.take_along_axis(state["finished"], at, axis=2, mode="clip")
    prompt = jnp.pad(tokens, ((0, 0), (0, plan.capacity - plan.length)))[:, None, :]
    out = jnp.where(at < 0, prompt, behind)
    out = jnp.where(at < state["counts"][:, :, None], out, pad)
    return out, lengths[:, None] + state["counts"], state["finished_scores"]
