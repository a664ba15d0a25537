"""The fields of a generation_config.json: which are honoured, which change nothing, and which are
refused unless they say that nothing is to be done. And what the arguments of a call may be."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from genesis_fn.errors import ArgumentError, ConcretizationTypeError
from genesis_fn.extend import brief
from genesis_fn.models.field_checks import LARGEST_SIZE, boolean, integer

Field = Callable[[str, Any], Any]  # (name, value of a file) to the value that is kept; it may raise


def _integer(least: int, most: int = LARGEST_SIZE) -> Field:
    def check(name: str, value: Any) -> int:
        integer(name, value, least, most)
        return int(value)

    return check


def _number(accepts: Callable[[float], bool], expected: str) -> Field:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError(f"{name} is {brief(value)}, expected {expected}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and accepts(number)):
            raise ValueError(f"{name} is {brief(value)}, expected {expected}")
        return number

    return check


def _bool(name: str, value: Any) -> bool:
    kept = bool(value) if isinstance(value, np.bool_) else value
    boolean(name, kept)
    return kept


def _early_stopping(name: str, value: Any) -> bool | str:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if not isinstance(value, str) or value != "never":
        raise ValueError(f"{name} is {brief(value)}, expected true, false or 'never'")
    return value


def _tokens(name: str, value: Any) -> int | tuple[int, ...]:
    if _has_several(value):
        return tuple([_TOKEN(name, token) for token in value])
    return _TOKEN(name, value)


def _has_several(tokens: Any) -> bool:
    """Whether these are several tokens, of a list or an array say, and not one."""
    several = isinstance(tokens, Iterable) and not isinstance(tokens, str)
    return several and getattr(tokens, "ndim", 1) != 0


def _padding(name: str, value: Any) -> int | None:
    # The first files of LLaMA say -1 where there is none.
    return None if type(value) is int and value == -1 else _TOKEN(name, value)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(s, str) and s for s in several):
        raise ValueError(f"{name} is {brief(value)}, expected strings of at least one character")
    return tuple(several)


_TOKEN = _integer(0)
_SHARE = _number(lambda x: 0 < x <= 1, "a number above 0 and up to 1")

CHECKS: dict[str, Field] = {
    "max_new_tokens": _integer(0),
    "max_length": _integer(1),
    "min_new_tokens": _integer(0),
    "min_length": _integer(0),
    "do_sample": _bool,
    "temperature": _number(lambda x: x >= 0, "a finite number, not negative"),
    "top_k": _integer(0),
    "top_p": _SHARE,
    "min_p": _number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "typical_p": _SHARE,
    "repetition_penalty": _number(lambda x: x > 0, "a finite positive number"),
    "presence_penalty": _number(lambda _: True, "a finite number"),
    "frequency_penalty": _number(lambda _: True, "a finite number"),
    "eos_token_id": _tokens,
    "pad_token_id": _padding,
    "bos_token_id": _TOKEN,
    "stop_strings": _strings,
    "num_beams": _integer(1),
    "length_penalty": _number(lambda _: True, "a finite number"),
    "early_stopping": _early_stopping,
    "num_return_sequences": _integer(1),
    "seed": _integer(0, 2**63 - 1),
}

# Fields that change no token, whatever they hold: how transformers caches, compiles, speculates
# without loss and returns its results, and what models with an encoder begin with.
HARMLESS = frozenset((
    "_commit_hash", "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_lookbehind", "cache_config", "cache_implementation", "compile_config",
    "continuous_batching_config", "decoder_start_token_id", "disable_compile", "is_assistant",
    "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "prefill_chunk_size", "prompt_lookup_num_tokens", "return_dict_in_generate",
    "speculation_type", "target_lookbehind", "transformers_version", "use_cache", "use_mtp",
))  # fmt: skip

# Fields that change tokens unless they have one of these values, or none.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "assistant_ensemble_weight": (), "bad_words_ids": ([],), "begin_suppress_tokens": ([],),
    "constraints": (), "diversity_penalty": (0,), "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "exponential_decay_length_penalty": (),
    "force_words_ids": (), "forced_bos_token_id": (), "forced_eos_token_id": (),
    "guidance_scale": (1,), "low_memory": (False,), "max_time": (), "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,), "penalty_alpha": (0,), "remove_invalid_values": (False,),
    "renormalize_logits": (False,), "sequence_bias": ({}, []), "suppress_tokens": ([],),
    "token_healing": (False,), "top_h": (), "watermarking_config": (),
}  # fmt: skip


def honoured(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a file that `CHECKS` has and that are set.

    Raises ValueError naming a field that this library does not know or does not honour.
    """
    found = {}
    for name, value in values.items():
        if name in CHECKS:
            if value is not None:  # null is unset, and has the default
                found[name] = value
        elif name in NEUTRAL:
            same = [value == v and isinstance(value, bool) == isinstance(v, bool)
                    for v in NEUTRAL[name]]  # fmt: skip
            if value is not None and not any(same):
                raise ValueError(f"{name} is {brief(value)}, which this library does not honour")
        elif name not in HARMLESS:
            raise ValueError(f"{name} is {brief(value)}, a field that this library does not know")
    return found


# ---- arguments ----


def integer_argument(caller: str, name: str, value: Any) -> int:
    """The integer that an argument is, of Python, NumPy or an array; no bool."""
    if isinstance(value, bool):
        raise _other_kind(caller, name, value, "an integer")
    try:
        return operator.index(value)
    except ConcretizationTypeError:  # says what a traced value may not do
        raise
    except TypeError:
        raise _other_kind(caller, name, value, "an integer") from None


def count_argument(caller: str, name: str, value: Any, least: int = 0) -> int:
    """An argument that counts tokens: an integer from `least` to 2**31 - 1."""
    count = integer_argument(caller, name, value)
    if count < least:
        bound = f"below {least}" if least else "negative"
        raise ArgumentError(f"{caller}: {name} {brief(count)} must not be {bound}")
    if count > LARGEST_SIZE:
        raise ArgumentError(f"{caller}: {name} {brief(count)} must not be above {LARGEST_SIZE}")
    return count


def number_argument(caller: str, name: str, value: Any) -> float:
    """The number that an argument is, of Python, NumPy or an array; no bool and no text."""
    if isinstance(value, bool | str | bytes | bytearray):
        raise _other_kind(caller, name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ConcretizationTypeError:
        raise
    except (TypeError, ValueError):
        raise _other_kind(caller, name, value, "a number") from None


def end_tokens(caller: str, eos: int | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens that end a row, ascending, of one or several."""
    if eos is None:
        return ()
    several: Any = eos if _has_several(eos) else [eos]
    return tuple(sorted({integer_argument(caller, "eos", end) for end in several}))


def _other_kind(caller: str, name: str, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(
        f"{caller}: {name} is {brief(value)}, a {type(value).__name__}, expected {expected}"
    )
