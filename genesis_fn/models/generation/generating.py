"""Batches of prompts continued token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, tree
from genesis_fn.extend import Tracer
from genesis_fn.models.generation import causal_model
from genesis_fn.models.generation.beams import beams_of
from genesis_fn.models.generation.generation_config import GenerationConfig
from genesis_fn.models.generation.programs import (
    GenerationPlan,
    Numbers,
    State,
    decode_program,
    joined_program,
    prefill_program,
)
from genesis_fn.models.generation.prompts import Prompts, prompts_of
from genesis_fn.models.generation.request import Request, check_generation, check_stop, requested
from genesis_fn.models.generation.text_stream import TextStream

_CHUNK = 16  # tokens between two looks for stop strings


@overload
def generate(
    params: PyTree,
    tokens: ArrayLike,
    config: causal_model.Config,
    *,
    return_logprobs: Literal[True],
    **options: Any,
) -> tuple[Array, Array, Array]: ...
@overload
def generate(
    params: PyTree,
    tokens: ArrayLike,
    config: causal_model.Config,
    *,
    max_new_tokens: int | None = None,
    key: Key | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    min_new_tokens: int | None = None,
    eos: int | Sequence[int] | None = None,
    lengths: ArrayLike | None = None,
    cache_dtype: DTypeLike | None = None,
    generation: GenerationConfig | None = None,
    tokenizer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    return_logprobs: Literal[False] = False,
) -> tuple[Array, Array]: ...
def generate(  # pyright: ignore[reportInconsistentOverload] - `options` are those here
    params: PyTree,
    tokens: ArrayLike,
    config: causal_model.Config,
    *,
    max_new_tokens: int | None = None,
    key: Key | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    min_new_tokens: int | None = None,
    eos: int | Sequence[int] | None = None,
    lengths: ArrayLike | None = None,
    cache_dtype: DTypeLike | None = None,
    generation: GenerationConfig | None = None,
    tokenizer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    return_logprobs: bool = False,
) -> tuple[Array, ...]:
    """Prompts continued token by token: one program reads them, another is a loop on the device
    that draws tokens until all rows have ended.

    Prompts and caches are padded to lengths that many calls share (2**k and 3 * 2**k, from 16 on),
    and how many tokens follow is data: calls whose padded lengths are the same run the same two
    programs. Within a function that is being traced nothing is padded.

    An argument that is None is what `generation` says. Without a `generation` the most likely token
    is taken, nothing is penalised, and `max_new_tokens` is required.

    The tokens of a row depend on its prompt, the key and, where tokens are drawn, the row's number;
    not on the other rows, nor on how they are padded, but as far as sums of floats are rounded
    otherwise in other shapes. With `nn.DynamicScaling` the rows share the frequencies of the
    longest one, as in transformers: behind the trained context a row does depend on the others.

    Args:
        params: parameters, from `qwen.init` or `io.load_model`.
        tokens: int prompts [B, T]; shorter ones are padded at their end.
        config: the hyperparameters.
        max_new_tokens: the most tokens that a row gains.
        key: random key for `temperature` above 0; None means that of the seed of `generation`, or
            `random.key(0)`.
        temperature, top_k, top_p, min_p, typical_p: as in `sample`; a temperature of 0 takes the
            most likely token.
        repetition_penalty, presence_penalty, frequency_penalty: as in `GenerationConfig`.
        min_new_tokens: how many tokens come before one of `eos` may.
        eos: token, or several, after which a row stops.
        lengths: length of each prompt, integers [B] from 1 to T; None means T.
        cache_dtype: dtype of the cached keys and values; None means that of the output layer's
            weight.
        generation: what holds where an argument is None, `num_beams`, `num_return_sequences` (so
            many rows for each prompt, one after the other) and `pad_token_id`.
        tokenizer: what `stop_strings` need, as `TextStream` takes it.
        stop_strings: strings that end a row, with the token that completes one.
        return_logprobs: whether to return log-probabilities.

    Returns:
        (int32 tokens [B, T + max_new_tokens], with `pad_token_id` or zeros behind a row's end;
        their lengths [B]), and with `return_logprobs` the logarithm of the probability that the
        model alone, without temperature or penalties, gave to each new token, float32
        [B, max_new_tokens], with zeros behind a row's end.

    Raises:
        ShapeError, DTypeError: `tokens` or `lengths` have another shape, or are no integers.
        IndexError: a token is none of the vocabulary (a ValueError too, where `tokens` are known).
        ValueError: a setting is out of range, or cannot be combined with another.
        AssertionFailed: a length is out of range or logits are NaN, when the program runs.

    >>> config = gf.models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.qwen.init(random.key(0), config)
    >>> tokens, lengths = generate(params, jnp.array([[1, 2, 3]]), config, max_new_tokens=4)
    >>> tokens.shape, lengths.tolist()
    ((1, 7), [7])
    """
    causal_model.check_model("generate", params, config)
    check_generation("generate", generation)
    copies = 1 if generation is None else _rows(generation)
    prompts = prompts_of("generate", tokens, lengths, config.vocab_size, copies)
    request = requested(
        "generate", params, config.vocab_size, prompts.width, generation,
        max_new_tokens=max_new_tokens, key=key, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, typical_p=typical_p, repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        min_new_tokens=min_new_tokens, eos=eos, stop_strings=stop_strings,
    )  # fmt: skip
    if generation is not None and generation.num_beams > 1:
        if request.sampling.temperature > 0 or return_logprobs:
            raise ValueError(
                f"generate: num_beams {generation.num_beams} can neither be combined with "
                "do_sample or a temperature, nor with return_logprobs"
            )
        beams, ends, _ = beams_of(
            "generate", params, prompts, config, generation, request, cache_dtype
        )
        return jnp.reshape(beams, (-1, beams.shape[-1])), jnp.reshape(ends, (-1,))
    check_stop("generate", request, tokenizer)
    traced = prompts.traced or any(isinstance(x, Tracer) for x in tree.leaves((params, key)))
    if request.stop and traced:
        raise ValueError(
            "generate: the host reads text for stop_strings, which it cannot within a function "
            "that is being traced"
        )
    plan = GenerationPlan(
        config,
        request.sampling,
        request.penalties,
        prompts.rows,
        prompts.capacity(request.limit),
        causal_model.cache_dtype_of(params, cache_dtype),
        return_logprobs,
    )
    return _continued(params, plan, prompts, request, tokenizer)


def _rows(generation: GenerationConfig) -> int:
    """How many rows a prompt is; beams of one are found together."""
    return generation.num_return_sequences if generation.num_beams == 1 else 1


def _continued(
    params: PyTree, plan: GenerationPlan, prompts: Prompts, request: Request, tokenizer: Any
) -> tuple[Array, ...]:
    """`generate` of what was checked."""
    numbers = Numbers(request.limit, request.least, request.key)
    state = prefill_program(plan, prompts.padded)(params, prompts.tokens, prompts.lengths, numbers)
    if request.stop:
        state, count = _until_stopped(params, plan, state, numbers, prompts, request, tokenizer)
    else:
        ended = np.zeros(prompts.rows, bool)
        state = decode_program(plan)(params, state, ended, request.limit, numbers)
        count = state["count"]
    join = joined_program(prompts.rows, prompts.padded, plan.capacity)
    out, ends = join(prompts.tokens, prompts.lengths, state["new"], count, request.pad)
    out = out[:, : prompts.width + request.limit]
    if not plan.logprobs:
        return out, ends
    logprobs = state["logprobs"][:, : request.limit]
    real = jnp.arange(request.limit)[None, :] < (ends - prompts.lengths)[:, None]
    return out, ends, jnp.where(real, logprobs, 0.0)


def _until_stopped(
    params: PyTree,
    plan: GenerationPlan,
    state: State,
    numbers: Numbers,
    prompts: Prompts,
    request: Request,
    tokenizer: Any,
) -> tuple[State, np.ndarray]:
    """(the state when all rows have ended, the number of tokens of each row): the loop runs for
    some tokens at a time, between which the host reads their text."""
    texts = [
        TextStream(tokenizer, request.stop, row[:n].tolist())
        for row, n in zip(prompts.tokens, prompts.lengths, strict=True)
    ]
    ended = np.zeros(prompts.rows, bool)
    count = np.zeros(prompts.rows, np.int32)
    until = 1
    while True:
        # Copies: the next call writes into the state's memory.
        new, upto, done = (np.array(state[name]) for name in ("new", "count", "done"))
        for row in np.flatnonzero(~ended):
            while count[row] < upto[row] and not ended[row]:
                texts[row].push(int(new[row, count[row]]))
                ended[row] = texts[row].stopped
                count[row] += 1
        if until >= request.limit or (done | ended).all():
            return state, count
        until = min(until + _CHUNK, request.limit)
        state = decode_program(plan)(params, state, ended, until, numbers)
