"""Tokens of one row as they are drawn, and a cache that stays between texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from genesis_fn import ArrayLike, DTypeLike, Key, PyTree, errors
from genesis_fn.extend import brief
from genesis_fn.models.generation import causal_model
from genesis_fn.models.generation.config_fields import count_argument
from genesis_fn.models.generation.generation_config import GenerationConfig
from genesis_fn.models.generation.programs import (
    GenerationPlan,
    Numbers,
    State,
    decode_program,
    prefill_program,
    resume_program,
)
from genesis_fn.models.generation.prompts import bucket, check_tokens
from genesis_fn.models.generation.request import Request, check_generation, check_stop, requested
from genesis_fn.models.generation.text_stream import TextStream

_CAPACITY = 4096  # positions of a session that says nothing else, if the model is meant for so many
_CHUNK = 8


@dataclasses.dataclass(frozen=True, slots=True)
class StreamedToken:
    """One token of a stream.

    Args:
        token: the token.
        logprob: logarithm of the probability that the model alone, without temperature or
            penalties, gave to it.
        finished: whether it is the last one.
        reason: why it is the last: "eos", "stop_string", "length" (as many as were asked for) or
            "capacity" (the session is full); "" for others.
    """

    token: int
    logprob: float
    finished: bool
    reason: str = ""


class Session:
    """One row of text that grows, as that of a chat: what its cache holds of a text is not computed
    again.

    The cache takes the tokens of a text up to the first that differs from those before, so a
    history that was extended costs its new tokens only. With `nn.DynamicScaling` nothing of a text
    longer than the trained context is reused: each token changes the keys of all before it.

    Args:
        params: parameters, from `qwen.init` or `io.load_model`.
        config: the hyperparameters.
        capacity: how many tokens fit, prompt and continuation together; None means 4096, or
            `max_position_embeddings` where that is less. The cache has room for as many from the
            start.
        cache_dtype: dtype of the cached keys and values; None means that of the output layer's
            weight.

    Attributes:
        reused: tokens of the last history that were in the cache.
        capacity: how many tokens fit.

    Raises:
        ValueError: `capacity` is not positive, or `params` and `config` are not a decoder's.

    >>> config = gf.models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> session = Session(gf.models.qwen.init(random.key(0), config), config, capacity=64)
    >>> generation = gf.models.GenerationConfig(max_new_tokens=3)
    >>> history = [1, 2, 3]
    >>> history += [t.token for t in session.stream(history, generation)]
    >>> len(history), len(list(session.stream([*history, 4, 5], generation))), session.reused
    (6, 3, 5)
    """

    def __init__(
        self,
        params: PyTree,
        config: causal_model.Config,
        *,
        capacity: int | None = None,
        cache_dtype: DTypeLike | None = None,
    ) -> None:
        causal_model.check_model("Session", params, config)
        if capacity is None:
            capacity = min(_CAPACITY, config.max_position_embeddings)
        capacity = count_argument("Session", "capacity", capacity, 1)
        self.params, self.config, self.capacity = params, config, capacity
        self.cache_dtype = causal_model.cache_dtype_of(params, cache_dtype)
        self.reused = 0
        # The cache, and the tokens whose keys and values it holds. A call takes both away and puts
        # them back when it has succeeded, so that an interrupted one leaves none.
        self._cache: PyTree = None
        self._cached = np.zeros(0, np.int32)
        self._streams = 0

    def stream(
        self,
        tokens: Sequence[int] | ArrayLike,
        generation: GenerationConfig | None = None,
        *,
        key: Key | None = None,
        chunk: int = _CHUNK,
        tokenizer: Any = None,
    ) -> Iterator[StreamedToken]:
        """The continuation of a history, token by token.

        The first token comes as soon as it is there; then the device draws `chunk` of them between
        two reads of the host. The tokens are those of `generate` with the same key. The iterator
        may be closed at any time.

        Args:
            tokens: the whole history, int [T].
            generation: how to generate; None means `GenerationConfig()`. Beams and several
                continuations are not streamed.
            key: random key; None means that of the seed of `generation`, or `random.key(0)`.
            chunk: tokens that are drawn between two reads.
            tokenizer: what the `stop_strings` of `generation` need, as `TextStream` takes it.

        Yields:
            `StreamedToken`s, the last of them `finished`; none if no new tokens are asked for.

        Raises:
            ShapeError, DTypeError: `tokens` are no integers [T].
            ValueError: the history is empty or longer than `capacity`, a setting is out of range,
                or another stream of the session has begun since.
            AssertionFailed: logits are NaN, when they are read.
        """
        return self._begun("Session.stream", tokens, generation, key, chunk, tokenizer)

    def _begun(
        self,
        caller: str,
        tokens: Sequence[int] | ArrayLike,
        generation: GenerationConfig | None,
        key: Key | None,
        chunk: int,
        tokenizer: Any,
    ) -> Iterator[StreamedToken]:
        """`stream`, for a caller whose name errors have."""
        vocabulary = self.config.vocab_size
        history = _history(caller, tokens, vocabulary)
        if len(history) > self.capacity:
            raise errors.ArgumentError(
                f"{caller}: the history has {len(history)} tokens, more than the session's "
                f"capacity of {self.capacity}; leave the oldest out, or make a session of a larger "
                "capacity"
            )
        check_generation(caller, generation)
        how = GenerationConfig() if generation is None else generation
        if how.num_beams > 1 or how.num_return_sequences > 1:
            raise errors.ArgumentError(
                f"{caller}: num_beams {how.num_beams} and num_return_sequences "
                f"{how.num_return_sequences} must be 1; beam_search and generate take others"
            )
        request = requested(caller, self.params, vocabulary, len(history), how, key=key)
        check_stop(caller, request, tokenizer)
        chunk = count_argument(caller, "chunk", chunk, 1)
        self._streams += 1
        return self._tokens(history, request, chunk, tokenizer, self._streams)

    def _tokens(
        self, history: np.ndarray, request: Request, chunk: int, tokenizer: Any, number: int
    ) -> Iterator[StreamedToken]:
        # The last token needs no place in the cache.
        limit = min(request.limit, self.capacity + 1 - len(history))
        if limit < 1:
            return
        text = TextStream(tokenizer, request.stop, history.tolist()) if request.stop else None
        plan = GenerationPlan(
            self.config, request.sampling, request.penalties, 1, bucket(self.capacity),
            self.cache_dtype, logprobs=True,
        )  # fmt: skip
        numbers = Numbers(limit, request.least, request.key)
        self._check_turn(number)
        state = self._prefill(plan, history, numbers)
        given, until = 0, 1
        while True:
            # Copies: the next call writes into the state's memory.
            new, logprobs = np.array(state["new"])[0], np.array(state["logprobs"])[0]
            count = int(np.asarray(state["count"])[0])
            # The cache lacks the token that was drawn last.
            self._cached = np.concatenate([history, new[: count - 1]])
            self._cache = state["cache"]
            for at in range(given, count):
                token, reason = int(new[at]), ""
                if text is not None:
                    text.push(token)
                if token in request.penalties.eos:
                    reason = "eos"
                elif text is not None and text.stopped:
                    reason = "stop_string"
                elif at + 1 == limit:
                    reason = "length" if limit == request.limit else "capacity"
                yield StreamedToken(token, float(logprobs[at]), bool(reason), reason)
                self._check_turn(number)
                if reason:
                    return
            given, until = count, min(until + chunk, limit)
            self._cache = None
            ended = np.zeros(1, bool)
            state = decode_program(plan)(self.params, state, ended, until, numbers)

    def _check_turn(self, number: int) -> None:
        if number != self._streams:
            raise errors.ArgumentError(
                "Session.stream: another stream of this session has begun since; a session has one "
                "at a time"
            )

    def _prefill(self, plan: GenerationPlan, history: np.ndarray, numbers: Numbers) -> State:
        """The state after the history and one more token."""
        cache, self._cache = self._cache, None
        longest = max(len(history), len(self._cached))
        if cache is None or longest > causal_model.lasting_length(self.config):
            self.reused, self._cached = 0, history[:0]
            tokens, count = _padded(history, bucket(len(history)))
            return prefill_program(plan, tokens.shape[1])(self.params, tokens, count, numbers)
        # The last token is computed in any case, for what follows it.
        longest = min(len(self._cached), len(history) - 1)
        other = np.flatnonzero(self._cached[:longest] != history[:longest])
        common = int(other[0]) if other.size else longest
        length = bucket(len(history) - common)
        # The padding needs room, too: where the end is near, some tokens are computed once more.
        self.reused = start = max(min(common, plan.capacity - length), 0)
        tokens, count = _padded(history[start:], length)
        whole = tokens, count
        if plan.penalties.reads_prompt:
            whole = _padded(history, plan.capacity)
        return resume_program(plan, length)(
            self.params, cache, start, tokens, count, whole, numbers
        )


def stream(
    params: PyTree,
    tokens: Sequence[int] | ArrayLike,
    config: causal_model.Config,
    *,
    generation: GenerationConfig | None = None,
    key: Key | None = None,
    chunk: int = _CHUNK,
    tokenizer: Any = None,
    cache_dtype: DTypeLike | None = None,
) -> Iterator[StreamedToken]:
    """The continuation of one prompt, token by token.

    The first token comes as soon as it is there; then the device draws `chunk` of them between two
    reads of the host. The tokens are those of `generate` with the same key and dtype of the cache.
    A `Session` keeps its cache for the next prompt.

    Args:
        params: parameters, from `qwen.init` or `io.load_model`.
        tokens: the prompt, int [T].
        config: the hyperparameters.
        generation: how to generate; None means `GenerationConfig()`. Beams and several
            continuations are not streamed.
        key: random key; None means that of the seed of `generation`, or `random.key(0)`.
        chunk: tokens that are drawn between two reads.
        tokenizer: what the `stop_strings` of `generation` need, as `TextStream` takes it.
        cache_dtype: dtype of the cached keys and values; None means that of the output layer's
            weight.

    Returns:
        An iterator of `StreamedToken`s, the last of them `finished`; it is empty if no new tokens
        are asked for.

    Raises:
        ShapeError, DTypeError: `tokens` are no integers [T].
        ValueError: a setting is out of range.
        AssertionFailed: logits are NaN, when they are read.

    >>> config = gf.models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.qwen.init(random.key(0), config)
    >>> generation = gf.models.GenerationConfig(max_new_tokens=3)
    >>> [t.finished for t in stream(params, [1, 2, 3], config, generation=generation)]
    [False, False, True]
    """
    causal_model.check_model("stream", params, config)
    check_generation("stream", generation)
    history = _history("stream", tokens, config.vocab_size)
    how = GenerationConfig() if generation is None else generation
    capacity = bucket(bucket(len(history)) + how.new_tokens(len(history)))
    session = Session(params, config, capacity=capacity, cache_dtype=cache_dtype)
    # Errors name this function.
    return session._begun(  # pyright: ignore[reportPrivateUsage]
        "stream", history, how, key, chunk, tokenizer
    )


def _history(caller: str, tokens: Sequence[int] | ArrayLike, vocabulary: int) -> np.ndarray:
    try:
        found = np.asarray(tokens)
    except ValueError:  # rows of several lengths
        raise errors.ShapeError(f"{caller}: tokens {brief(tokens)} must be [length]") from None
    if found.ndim != 1 or found.size == 0:
        raise errors.ShapeError(
            f"{caller}: tokens of shape {found.shape} must be [length], at least one"
        )
    if found.dtype.kind not in "iu":
        raise errors.DTypeError(f"{caller}: tokens of dtype {found.dtype} must be integers")
    check_tokens(caller, found, vocabulary)
    return found.astype(np.int32)


def _padded(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(one row of tokens with zeros behind them, how many they are)."""
    return np.pad(tokens, (0, length - len(tokens)))[None], np.array([len(tokens)], np.int32)
