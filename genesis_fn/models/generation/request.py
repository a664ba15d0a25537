"""What a call asks for: its arguments, or what its `GenerationConfig` says where it has none."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

from genesis_fn import Key, PyTree, random, tree
from genesis_fn.extend import default_device_of
from genesis_fn.models.generation.config_fields import CHECKS, end_tokens
from genesis_fn.models.generation.generation_config import GenerationConfig
from genesis_fn.models.generation.penalties import Penalties
from genesis_fn.models.generation.sampling import Sampling


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
    """The request of a call, whose arguments count before `generation`; checked. The key of a seed
    lies where `params` do."""
    # Without a `generation` all of the vocabulary is kept, and nothing is drawn by itself.
    base = GenerationConfig(top_k=None) if generation is None else generation
    if max_new_tokens is None:
        if generation is None:
            raise ValueError(f"{caller}: give max_new_tokens, or a generation config")
        limit = base.new_tokens(prompt_length)
    else:
        limit = _count(caller, "max_new_tokens", max_new_tokens)
    if min_new_tokens is None:
        least = base.least_tokens(prompt_length)
    else:
        least = _count(caller, "min_new_tokens", min_new_tokens)
    if temperature is None:
        temperature = base.temperature if base.do_sample else 0.0
    sampling = Sampling(
        temperature,
        base.top_k if top_k is None else top_k,
        base.top_p if top_p is None else top_p,
        base.min_p if min_p is None else min_p,
        base.typical_p if typical_p is None else typical_p,
    )
    ends = end_tokens(base.eos_token_id if eos is None else eos)
    for end in ends:
        if not 0 <= end < vocabulary:
            raise ValueError(f"{caller}: eos {end} is no token of a vocabulary of {vocabulary}")
    penalties = Penalties(
        base.repetition_penalty if repetition_penalty is None else repetition_penalty,
        base.presence_penalty if presence_penalty is None else presence_penalty,
        base.frequency_penalty if frequency_penalty is None else frequency_penalty,
        least > 0 and bool(ends),
        ends,
    )
    if key is None and base.seed is not None:
        with default_device_of(tree.leaves(params)):
            key = random.key(base.seed)
    stop = base.stop_strings if stop_strings is None else stop_strings
    stop = CHECKS["stop_strings"](f"{caller}: stop_strings", stop)
    pad = base.pad_token_id or 0
    return Request(sampling, penalties, limit, least, key, stop, pad)


def _count(caller: str, name: str, value: int) -> int:
    value = operator.index(value)
    if value < 0:
        raise ValueError(f"{caller}: {name} {value} must not be negative")
    return value
