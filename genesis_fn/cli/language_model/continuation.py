"""A prompt continued, token by token, as text that can be shown at once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator

from genesis_fn.cli.language_model.opening import LanguageModel
from genesis_fn.core.device import default_device
from genesis_fn.core.types.annotations import Key
from genesis_fn.models import GenerationConfig, Session, TextStream

_CHUNK = 8  # tokens that are drawn between two reads


def longest(generation: GenerationConfig, prompt: list[int], capacity: int) -> int:
    """The most tokens that a prompt gains.

    Args:
        generation: settings, of which `max_new_tokens` and `max_length` count here.
        prompt: tokens.
        capacity: the most tokens of prompt and answer together, for which there is room.

    Raises:
        ValueError: the prompt is empty, or as long as `capacity` or `max_length`.
    """
    if not prompt:
        raise ValueError("the prompt is empty")
    if len(prompt) >= capacity:
        raise ValueError(
            f"the prompt is {len(prompt)} tokens, and prompt and answer may have {capacity} "
            "together: shorten it, or give a larger --capacity"
        )
    return min(generation.new_tokens(len(prompt)), capacity - len(prompt))


class Continuation:
    """The text behind a prompt; iterating generates it and gives it piece by piece, "" for a token
    of which nothing is certain yet.

    What has been generated so far is in `tokens`, `logprobs` and `text`. `finish` is "stop" after
    an end token or a stop string, which `text` leaves out, "length" where there is no more room,
    and "interrupted" before. `first` and `seconds` are seconds up to the first token and the last.

    Args:
        model: the model.
        session: of the same model; what its cache holds of the prompt is not computed again.
        prompt: tokens, at least one.
        generation: settings.
        key: random key of the draws.

    Raises:
        ValueError: the prompt is empty, or leaves no room for an answer.
    """

    def __init__(
        self,
        model: LanguageModel,
        session: Session,
        prompt: list[int],
        generation: GenerationConfig,
        key: Key,
    ) -> None:
        most = longest(generation, prompt, session.capacity)
        self.model, self.session, self.prompt, self.key = model, session, prompt, key
        self.generation = dataclasses.replace(generation, max_new_tokens=most, stop_strings=())
        self.stop = generation.stop_strings
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.text, self.finish = "", "interrupted"
        self.reused, self.first, self.seconds = 0, 0.0, 0.0

    def __iter__(self) -> Generator[str]:
        began = time.perf_counter()
        text = TextStream(self.model.tokenizer, self.stop, self.prompt)
        # To read from a CPU costs nothing; a GPU goes on drawing meanwhile.
        chunk = 1 if default_device().kind == "cpu" else _CHUNK
        reason = ""
        for token in self.session.stream(self.prompt, self.generation, key=self.key, chunk=chunk):
            self.seconds = time.perf_counter() - began
            if not self.tokens:
                self.first, self.reused = self.seconds, self.session.reused
            self.tokens.append(token.token)
            self.logprobs.append(token.logprob)
            reason = token.reason
            if reason != "eos":
                yield self._more(text.push(token.token))
            if text.stopped:
                break
        if last := self._more(text.finish()):
            yield last
        self.finish = "stop" if text.stopped or reason == "eos" else "length"

    def _more(self, piece: str) -> str:
        self.text += piece
        return piece
