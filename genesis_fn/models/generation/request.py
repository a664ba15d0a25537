"""What a call asks for: its arguments, or what its `GenerationConfig` says where it has none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from genesis_fn import Key, PyTree, errors, random, tree
from genesis_fn.extend import brief, default_device_of
from genesis_fn.models.generation.config_fields import (
    CHECKS,
    count_argument,
    end_tokens,
    number_argument,
)
from genesis_fn.models.generation.generation_config import GenerationConfig
from genesis_fn.models.generation.penalties import Penalties
from genesis_fn.models.generation.sampling import Sampling, sampling_of
from genesis_fn.models.generation.text_stream import check_tokenizer


@dataclasses.dataclass(frozen=True)
class Request:
    """How a call generates: the parts that programs are made for, and numbers that they take."""

    sampling: Sampling
    penalties: Penalties
    limit: int
    least: int
    key: Key | None
    stop: tuple[str, ...]
    pad: int


def check_generation(caller: str, generation: GenerationConfig | None) -> None:
    """Raise ArgumentError where something else is given for a config."""
    if generation is not None and not isinstance(generation, GenerationConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise errors.ArgumentError(
            f"{caller}: generation is {brief(generation)}, a {type(generation).__name__}, expected "
            "a GenerationConfig; GenerationConfig.from_dict makes one of a dictionary"
        )


def check_stop(caller: str, request: Request, tokenizer: Any) -> None:
    """Raise ArgumentError where stop strings come without a tokenizer that reads them."""
    if not request.stop:
        return
    if tokenizer is None:
        raise errors.ArgumentError(f"{caller}: stop_strings {request.stop} need a tokenizer")
    check_tokenizer(caller, tokenizer)


def requested(
    caller: str,
    params: PyTree,
    vocabulary: int,
    prompt_length: int,
    generation: GenerationConfig | None,
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
    stop_strings: str | Sequence[str] | None = None,
) -> Request:
    """The request of a call, whose arguments count before `generation`; checked. A key that the
    call does not give lies where `params` do."""
    # Without a `generation` all of the vocabulary is kept, and nothing is drawn by itself.
    base = GenerationConfig(top_k=None) if generation is None else generation
    if max_new_tokens is None:
        if generation is None:
            raise ValueError(f"{caller}: give max_new_tokens, or a generation config")
        limit = base.new_tokens(prompt_length)
    else:
        limit = count_argument(caller, "max_new_tokens", max_new_tokens)
    if min_new_tokens is None:
        least = base.least_tokens(prompt_length)
    else:
        least = count_argument(caller, "min_new_tokens", min_new_tokens)
    if temperature is None:
        temperature = base.temperature if base.do_sample else 0.0
    sampling = sampling_of(
        caller,
        temperature,
        base.top_k if top_k is None else top_k,
        base.top_p if top_p is None else top_p,
        base.min_p if min_p is None else min_p,
        base.typical_p if typical_p is None else typical_p,
    )
    ends = end_tokens(caller, base.eos_token_id if eos is None else eos)
    for end in ends:
        if not 0 <= end < vocabulary:
            raise ValueError(f"{caller}: eos {end} is no token of a vocabulary of {vocabulary}")
    given = {
        "repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }  # fmt: skip
    by = {n: getattr(base, n) if v is None else _penalty(caller, n, v) for n, v in given.items()}
    penalties = Penalties(**by, delays_end=least > 0 and bool(ends), eos=ends)
    if key is None and sampling.temperature > 0:  # so that programs take one whoever gives it
        with default_device_of(tree.leaves(params)):
            key = random.key(base.seed or 0)
    stop = base.stop_strings if stop_strings is None else stop_strings
    stop = CHECKS["stop_strings"](f"{caller}: stop_strings", stop)
    pad = base.pad_token_id or 0
    return Request(sampling, penalties, limit, least, key, stop, pad)


def _penalty(caller: str, name: str, value: float) -> float:
    by = number_argument(caller, name, value)
    if not math.isfinite(by):
        raise errors.ArgumentError(f"{caller}: {name} {by} must be finite")
    if name == "repetition_penalty" and not by > 0:
        raise errors.ArgumentError(f"{caller}: {name} {by} must be positive")
    return by
