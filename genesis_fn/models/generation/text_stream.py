"""Text out of tokens, one by one: what is certain of it, and where it is to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from genesis_fn.errors import ArgumentError
from genesis_fn.extend import brief
from genesis_fn.models.generation.config_fields import count_argument

_BROKEN = "\ufffd"  # what decoders write for bytes that are no character, or none yet
_WINDOW = 8  # tokens that are decoded together, before the oldest are left out
_CONTEXT = 4  # how many stay
_MOST = 64  # tokens of a window, whatever the text is
_LONGEST = 4  # bytes of a character, each of which may be a token


def check_tokenizer(caller: str, tokenizer: Any) -> None:
    """Raise ArgumentError where something else is given for a tokenizer."""
    if not callable(getattr(tokenizer, "decode", None)):
        raise ArgumentError(
            f"{caller}: tokenizer is {brief(tokenizer)}, a {type(tokenizer).__name__}, without a "
            "method `decode`; give one of Hugging Face's tokenizers or transformers"
        )


class TextStream:
    """The text of tokens as they come.

    `push` gives what is certain: never a part of a character, and nothing that may turn out to be
    the beginning of a stop string. The texts together are the tokenizer's text of all tokens,
    without special ones, up to the first stop string. A token costs the same however many there
    were before.

    Args:
        tokenizer: of Hugging Face's `tokenizers` or `transformers`: its `decode(tokens,
            skip_special_tokens=...)` is called.
        stop: strings that end the text; special tokens count by what is written for them.
        prompt: the tokens before, whose text is not given. A blank between it and the text stays,
            and a stop string may begin in it.

    Attributes:
        stopped: whether a stop string was found, with the token that was pushed last or before.

    Raises:
        ValueError: `tokenizer` does not decode, or a stop string is empty or no string.

    >>> tokenizer = gf.data.train_tokenizer(["hello hello world"], vocab_size=270)
    >>> text = gf.models.TextStream(tokenizer, stop=["wo"])
    >>> [text.push(token) for token in tokenizer.encode("hello world").ids], text.stopped
    (['hello', ' '], True)
    """

    def __init__(
        self, tokenizer: Any, stop: str | Sequence[str] = (), prompt: Sequence[int] = ()
    ) -> None:
        check_tokenizer("TextStream", tokenizer)
        several: Any = [stop] if isinstance(stop, str) else stop
        if not isinstance(several, Sequence) or not all(isinstance(s, str) for s in several):
            raise ArgumentError(f"TextStream: stop is {brief(stop)}, expected strings")
        self._stop: tuple[str, ...] = tuple(several)
        if not all(self._stop):
            raise ArgumentError(f"TextStream: stop strings {self._stop!r} must not be empty")
        self._tokenizer = tokenizer
        self._special: dict[int, str] = {}
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that are certain and passed on
        self._waiting = 0  # tokens since the text got longer
        self._next_cut = _WINDOW
        # Characters that may begin a stop string, and whether each is shown.
        self._held, self._shown = "", list[bool]()
        self.stopped = False
        if not isinstance(prompt, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"TextStream: prompt is {brief(prompt)}, expected tokens")
        for token in self._behind(list(prompt)):
            text, _ = self._decoded(token)
            self._hold(text, False, seek=False)

    def push(self, token: int) -> str:
        """The text that is certain with this token and was not before; "" after a stop string.

        Raises ValueError where `token` is no integer, or negative.
        """
        token = count_argument("TextStream.push", "token", token)
        if self.stopped:
            return ""
        text, shown = self._decoded(token)
        return self._hold(text, shown)

    def finish(self) -> str:
        """The rest of the text, when no token follows: a beginning of a stop string, and the mark
        of an incomplete character."""
        if self.stopped:
            return ""
        rest = self._decode(self._window)[self._given :]
        self._given += len(rest)
        text = self._hold(rest, True)
        if not self.stopped:
            text += self._release(len(self._held))
        return text

    # ---- tokens to text ----

    def _behind(self, prompt: list[Any]) -> list[int]:
        """The last tokens of a prompt: as many as a stop string may begin in and some context,
        from the beginning of a character on. Where bytes stand for themselves, decoders mark all
        of a run of them that begins within a character, whatever follows."""
        longest = max(map(len, self._stop), default=0)
        latest = max(len(prompt) - _LONGEST * longest - _CONTEXT, 0)
        earliest = max(latest - _LONGEST + 1, 0)
        last = [count_argument("TextStream", "a token of the prompt", t) for t in prompt[earliest:]]
        for first in range(latest - earliest, -1, -1):
            texts = [self._decode(last[first : first + n]) for n in range(1, _LONGEST + 1)]
            if any(text and _BROKEN not in text for text in texts):
                return last[first:]
        return last[latest - earliest :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False) if tokens else ""

    def _decoded(self, token: int) -> tuple[str, bool]:
        """(the text that is certain with one more token, whether it is to be shown)."""
        if token not in self._special:
            shown = self._tokenizer.decode([token], skip_special_tokens=True)
            self._special[token] = "" if shown else self._decode([token])
        if self._special[token]:  # written as nothing, or as its name: it stands for itself
            return self._special[token], False
        self._window.append(token)
        text = self._decode(self._window)
        # Of a run of marks none is certain: with the rest of their bytes they become characters.
        certain = len(text.rstrip(_BROKEN))
        self._waiting = 0 if certain > self._given or certain == len(text) else self._waiting + 1
        if self._waiting >= _LONGEST:  # no character has so many bytes: the first are none
            certain, self._waiting = max(certain, len(text) - _LONGEST + 1), 0
        new = text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._window) > self._next_cut:
            self._cut(text[self._given :])
        return new, True

    def _cut(self, rest: str) -> None:
        """Leave the oldest tokens of the window out, where the text of the others ends in the same
        `rest` and is more than it: what decoders strip from a beginning is none of `rest`."""
        for first in range(len(self._window) - _CONTEXT, 0, -1):
            tokens = self._window[first:]
            text = self._decode(tokens)
            given = len(text) - len(rest)
            whole = text[:1] != _BROKEN and bool(text[:given].strip())
            if text.endswith(rest) and (whole or len(self._window) > _MOST):
                self._window, self._given, self._next_cut = tokens, given, _WINDOW
                return
            if len(self._window) - first > 2 * _WINDOW:
                break
        self._next_cut = 2 * len(self._window)  # rarer with each failure, so that it stays cheap

    # ---- text to what is shown ----

    def _hold(self, text: str, shown: bool, seek: bool = True) -> str:
        """Take more text in, and give what can no longer begin a stop string."""
        if not self._stop:
            return text if shown else ""
        before = len(self._held)
        self._held += text
        self._shown += [shown] * len(text)
        if seek:
            # One that was whole before is of the prompt alone.
            found = [(self._held.find(s, max(before + 1 - len(s), 0)), len(s)) for s in self._stop]
            ends = [(at + length, -length) for at, length in found if at >= 0]
            if ends:  # the first to be complete, whatever the tokens were
                end, length = min(ends)
                self.stopped = True
                return self._release(end + length)
        return self._release(len(self._held) - self._beginning())

    def _beginning(self) -> int:
        """How many of the last characters begin a stop string."""
        return max(
            n
            for s in self._stop
            for n in range(min(len(s) - 1, len(self._held)), -1, -1)
            if self._held.endswith(s[:n])
        )

    def _release(self, count: int) -> str:
        text = "".join(c for c, shown in zip(self._held[:count], self._shown) if shown)
        self._held, self._shown = self._held[count:], self._shown[count:]
        return text
