"""A chat under way: a question goes to what answers, the answer to the screen and the history."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator
from typing import Any, Protocol

from genesis_fn.cli.dialogue.conversation import Conversation, Message, Turn
from genesis_fn.cli.dialogue.screen import Screen
from genesis_fn.cli.dialogue.transcript import Transcript
from genesis_fn.models import GenerationConfig
from genesis_fn.training.interrupt import Interrupt


class Answer(Protocol):
    """An answer while it is generated: iterating gives its text, piece by piece.

    `finish` is "interrupted" until the answer has ended, "stop" or "length" then.
    """

    text: str
    finish: str
    tokens: list[int]
    reused: int
    first: float
    seconds: float

    def __iter__(self) -> Generator[str]: ...


class Speaker(Protocol):
    """What answers. `capacity` is the number of tokens that prompt and answer may have together."""

    capacity: int

    def encode(self, messages: list[Message], *, answer: bool = True) -> list[int]:
        """The tokens of messages; with `answer` the beginning of an answer follows them."""
        ...

    def check_system(self, system: str) -> None:
        """Raises ValueError for a system prompt that it would not be shown."""
        ...

    def answer(self, prompt: list[int], generation: GenerationConfig) -> Answer:
        """The answer to a prompt."""
        ...

    def renew(self) -> None:
        """Forget what is cached, of which a part may be half written."""
        ...


class Chat:
    """A conversation under way.

    Args:
        speaker: what answers.
        screen: where answers go.
        conversation: what has been said.
        generation: settings of sampling.
        transcript: gets every turn; None keeps none.
    """

    def __init__(
        self,
        speaker: Speaker,
        screen: Screen,
        conversation: Conversation,
        generation: GenerationConfig,
        transcript: Transcript | None = None,
    ) -> None:
        self.speaker, self.screen = speaker, screen
        self.conversation, self.generation, self.transcript = conversation, generation, transcript
        self.last: Answer | None = None
        self.ended = False

    def record(self, *rows: dict[str, Any]) -> None:
        """Append to the transcript, if there is one."""
        if self.transcript is not None:
            self.transcript.write(*rows)

    @property
    def room(self) -> int:
        """The most tokens that prompt and answer may have together."""
        most = self.speaker.capacity
        if self.generation.max_new_tokens is None and self.generation.max_length is not None:
            most = min(most, self.generation.max_length)
        return most

    def size(self, messages: list[Message]) -> int:
        """The number of tokens of messages, as a prompt."""
        return len(self.speaker.encode(messages))

    def ask(self, question: str, before: Conversation) -> int | None:
        """Answer `question` behind what was said `before`. Returns the signal that stopped it.

        An answer that was stopped stays as far as it was shown; one of which nothing was shown is
        no turn. After an error the conversation is as it was.
        """
        room, capacity = self.room, self.speaker.capacity
        reserve = max(1, min(self.generation.new_tokens(0), room // 4))
        limit, remedy = f"the cache holds {capacity} tokens", "start with a larger --capacity"
        if room < capacity:
            limit, remedy = f"max_length is {room}", "/set max_new_tokens"
        shown = before.fitted(question, self.size, room - reserve, remedy)
        if more := shown.forgotten - before.forgotten:
            turns = "the oldest turn" if more == 1 else f"the {more} oldest turns"
            self.screen.notice(f"[dropped {turns}: {limit}]")
        prompt = self.speaker.encode(shown.messages(question))
        answer = self.speaker.answer(prompt, self.generation)
        stopped = self._write(answer)
        self.last = answer
        if stopped is not None and not answer.text.strip():
            self.screen.notice("[stopped before the answer began: the message is taken back]")
            return stopped
        if not answer.text:
            self.screen.show("")
        self.screen.end()
        if answer.finish == "length":
            self._say_cut(answer, full=len(prompt) + len(answer.tokens) >= capacity)
        self.conversation = shown.answered(Turn(question, answer.text, answer.finish))
        self._record_turn(question, answer)
        return stopped

    def _say_cut(self, answer: Answer, *, full: bool) -> None:
        """Say after how many tokens an answer was cut, and why: the cache is `full`, or a setting
        says so."""
        setting = "max_new_tokens" if self.generation.max_new_tokens else "max_length"
        count = len(answer.tokens)
        tokens = "1 token" if count == 1 else f"{count} tokens"
        self.screen.notice(f"[cut after {tokens}: {'the cache is full' if full else setting}]")

    def _record_turn(self, question: str, answer: Answer) -> None:
        self.record(
            {"role": "user", "content": question},
            {
                "role": "assistant",
                "content": answer.text,
                "finish_reason": answer.finish,
                "tokens": len(answer.tokens),
                "seconds": round(answer.seconds, 3),
            },
        )

    def _write(self, answer: Answer) -> int | None:
        """Show an answer. Returns the signal that stopped it, or None.

        The first Ctrl-C ends it with the token that is computed now. A second one, where that takes
        long, ends it at once, and the cache is filled anew.
        """
        with Interrupt() as interrupt:
            try:
                with contextlib.closing(iter(answer)) as pieces:
                    for piece in pieces:
                        self.screen.piece(piece)
                        if interrupt.asked is not None:
                            break
            except KeyboardInterrupt:
                self.speaker.renew()
                interrupt.asked = interrupt.asked or signal.SIGINT
            except BaseException:
                self.speaker.renew()
                raise
        return interrupt.asked
