"""How text is generated, under the names of Hugging Face's generation_config.json."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from genesis_fn.errors import ArgumentError, FileError
from genesis_fn.extend import brief, read_json
from genesis_fn.models.generation.config_fields import CHECKS, NEUTRAL, honoured

_LARGEST_FILE = 1 << 20  # bytes; a real generation_config.json has some hundred
_DEFAULT_NEW_TOKENS = 20  # transformers', where no length is set
_SPECIAL = ("eos_token_id", "bos_token_id", "pad_token_id")


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """How text is generated: fields and defaults of transformers' class, and three more
    (`presence_penalty`, `frequency_penalty`, `seed`).

    Args:
        max_new_tokens: the most tokens that a row gains.
        max_length: the most tokens of prompt and continuation, where `max_new_tokens` is None;
            without both it is 20 new tokens. A batch's prompts count with their padding.
        min_new_tokens: how many tokens come before one of `eos_token_id` may.
        min_length: the same with the prompt's, where `min_new_tokens` is None.
        do_sample: whether tokens are drawn; False takes the most likely, and the five fields that
            follow have no effect.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: the most likely tokens that are kept; 0 or None keeps all.
        top_p, min_p, typical_p: as in `sample`.
        repetition_penalty: divides positive and multiplies negative logits of tokens that the
            prompt or the continuation has.
        presence_penalty: taken off the logits of tokens that the continuation has.
        frequency_penalty: taken off as often as it has them.
        eos_token_id: token, or several, after which a row ends.
        pad_token_id: stands behind a row's end; None means 0.
        bos_token_id: the token that texts begin with; generation does not read it.
        stop_strings: strings that end a row with the token that completes one of them.
        num_beams: beams of a beam search; 1 is none.
        length_penalty: exponent of the length that a beam's score is divided by.
        early_stopping: when a beam search ends: True with enough finished beams, False where a
            better one is unlikely, "never" where there can be none.
        num_return_sequences: how many continuations there are of each prompt.
        seed: of the random key where a call has none; None means 0.

    Raises:
        ValueError: a field has a value out of range; the message names the field.

    >>> GenerationConfig(do_sample=True, temperature=0.7, eos_token_id=[1, 2]).eos_token_id
    (1, 2)
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    min_p: float | None = None
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    stop_strings: str | Sequence[str] = ()
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or "None" not in str(field.type):
                object.__setattr__(self, field.name, CHECKS[field.name](field.name, value))
        if self.top_k == 0:
            object.__setattr__(self, "top_k", None)
        if self.num_return_sequences > 1:
            if self.num_beams == 1 and not self.do_sample:
                raise ValueError(
                    f"num_return_sequences is {self.num_return_sequences}, but there is one "
                    "continuation without do_sample or num_beams"
                )
            if 1 < self.num_beams < self.num_return_sequences:
                raise ValueError(
                    f"num_return_sequences is {self.num_return_sequences}, more than num_beams, "
                    f"{self.num_beams}"
                )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GenerationConfig:
        """From the contents of a generation_config.json; absent fields and null are the defaults.

        Raises ValueError naming a field that is malformed, unknown or not honoured.
        """
        if not isinstance(values, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"generation config: {brief(values)} is no dictionary of fields")
        try:
            return cls(**honoured(values))
        except ValueError as error:
            raise ValueError(f"generation config: {error}") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> GenerationConfig:
        """From a generation_config.json, or the folder of a model.

        Special tokens that the file does not have are those of the folder's config.json. Where the
        folder has no such file, all fields are: those of older models are there. Raises FileError
        naming file and field.
        """
        path = os.fspath(path)
        if not os.path.isdir(path):
            return cls._from_values(path, read_json(path, _LARGEST_FILE))
        own, model = (os.path.join(path, n) for n in ("generation_config.json", "config.json"))
        found: dict[str, Any] = {}
        if os.path.lexists(model):
            found = read_json(model, _LARGEST_FILE)
        if os.path.lexists(own):
            special = {n: found[n] for n in _SPECIAL if found.get(n) is not None}
            given = read_json(own, _LARGEST_FILE)
            given = {n: v for n, v in given.items() if v is not None or n not in special}
            return cls._from_values(own, {**special, **given})
        if not os.path.lexists(model):
            raise FileError(f"{path} has no generation_config.json and no config.json")
        # Its other fields describe the model.
        given = {n: v for n, v in found.items() if n in CHECKS or n in NEUTRAL}
        return cls._from_values(model, given)

    @classmethod
    def _from_values(cls, path: str, values: dict[str, Any]) -> GenerationConfig:
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise FileError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The contents of a generation_config.json, as `from_dict` and transformers read them."""
        values: dict[str, Any] = {}
        for name, value in dataclasses.asdict(self).items():
            if name == "top_k" and value is None:
                value = 0  # where nothing stands, the default is kept
            own = name in ("presence_penalty", "frequency_penalty") and value == 0
            if value is not None and value != () and not own:
                values[name] = list(value) if isinstance(value, tuple) else value
        return values

    # ---- what a call makes of it ----

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a row, ascending."""
        ends = self.eos_token_id
        if ends is None:
            return ()
        return (ends,) if isinstance(ends, int) else tuple(sorted({*ends}))

    def least_tokens(self, prompt_length: int) -> int:
        """How many tokens a prompt of this length gains before an end may come."""
        if self.min_new_tokens is not None:
            return self.min_new_tokens
        return max(self.min_length - prompt_length, 0)

    def new_tokens(self, prompt_length: int) -> int:
        """The most tokens that a prompt of this length gains.

        Raises ValueError where the prompt alone has `max_length` tokens.
        """
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.max_length is None:
            return _DEFAULT_NEW_TOKENS
        if prompt_length >= self.max_length:
            raise ValueError(
                f"generation: the prompt has {prompt_length} tokens, and max_length is "
                f"{self.max_length} with it; give max_new_tokens, or a longer max_length"
            )
        return self.max_length - prompt_length
