"""A conversation: questions and answers, which of them still fit, and its file."""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_json
from genesis_fn.io.safetensors import atomic_write

Message = dict[str, str]  # with "role" and "content", as chat templates take it
_LARGEST_FILE = 1 << 26  # bytes


@dataclasses.dataclass(frozen=True)
class Turn:
    """A message of the user and the answer to it.

    `finish` says why the answer ends: "stop" by itself, "length" where there was no more room,
    "interrupted" where the user stopped it.
    """

    question: str
    answer: str
    finish: str = "stop"


@dataclasses.dataclass(frozen=True)
class Conversation:
    """The system prompt and the turns. The `forgotten` oldest of them are not shown to the model,
    which has no room for them; they are kept for files and `/history`."""

    system: str | None = None
    turns: tuple[Turn, ...] = ()
    forgotten: int = 0

    def messages(self, question: str | None = None) -> list[Message]:
        """What the model is shown, and `question` behind it."""
        found = _messages(self.system, self.turns[self.forgotten :])
        return found if question is None else [*found, {"role": "user", "content": question}]

    def answered(self, turn: Turn) -> Conversation:
        """With another turn."""
        return dataclasses.replace(self, turns=(*self.turns, turn))

    def without_last(self) -> Conversation:
        """Without the newest turn."""
        turns = self.turns[:-1]
        return dataclasses.replace(self, turns=turns, forgotten=min(self.forgotten, len(turns)))

    def fitted(
        self,
        question: str,
        size: Callable[[list[Message]], int],
        limit: int,
        remedy: str = "start with a larger --capacity",
    ) -> Conversation:
        """With as many of the oldest turns forgotten as it takes for `question` to fit.

        Args:
            question: the user's next message.
            size: the number of tokens that messages take.
            limit: the most tokens that they may take.
            remedy: what makes the limit larger, for the message of an error.

        Raises:
            ValueError: system prompt and question alone are too long.
        """

        def fits(forgotten: int) -> bool:
            shown = dataclasses.replace(self, forgotten=forgotten)
            return size(shown.messages(question)) <= limit

        if fits(self.forgotten):
            return self
        most = len(self.turns)
        if not fits(most):
            alone = size(dataclasses.replace(self, forgotten=most).messages(question))
            prompt = " with the system prompt" if self.system is not None else ""
            raise ValueError(
                f"the message{prompt} is {alone} tokens, and there is room for {limit}: shorten "
                f"it, or {remedy}"
            )
        later = range(self.forgotten + 1, most)
        return dataclasses.replace(
            self, forgotten=self.forgotten + 1 + bisect.bisect_left(later, True, key=fits)
        )


def _messages(system: str | None, turns: tuple[Turn, ...]) -> list[Message]:
    found = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        found.append({"role": "user", "content": turn.question})
        found.append({"role": "assistant", "content": turn.answer})
    return found


# ---- files: {"messages": [{"role", "content"}, ...]}, answers with their "finish_reason" ----


def save(conversation: Conversation, path: str) -> None:
    """Write a conversation, whole or not at all.

    Raises FileError where the file is there and holds something else.
    """
    if os.path.lexists(path):
        try:
            load(path)
        except FileError as error:
            raise FileError(f"not replaced, as it is no saved conversation: {error}") from None
    messages = _messages(conversation.system, conversation.turns)
    answers = [m for m in messages if m["role"] == "assistant"]
    for message, turn in zip(answers, conversation.turns, strict=True):
        message["finish_reason"] = turn.finish
    with atomic_write(path) as f:
        f.write(json.dumps({"messages": messages}, ensure_ascii=False, indent=2).encode() + b"\n")


def load(path: str) -> Conversation:
    """Read a conversation. Raises FileError naming file and message, OSError if there is none."""
    messages: Any = read_json(path, _LARGEST_FILE).get("messages")
    if not isinstance(messages, list):
        raise FileError(f"{path}: messages is {brief(messages)}, expected a list")
    for i, message in enumerate(messages):
        _check(message, f"{path}: message {i + 1}")
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else None
    asked, answers = messages[::2], messages[1::2]
    roles = [(m["role"], "user") for m in asked] + [(m["role"], "assistant") for m in answers]
    if len(asked) != len(answers) or any(found != wanted for found, wanted in roles):
        raise FileError(
            f"{path}: the roles are {brief([m['role'] for m in messages])}, expected user and "
            "assistant by turns, with the answer to the last message"
        )
    turns = [
        Turn(q["content"], a["content"], a.get("finish_reason", "stop"))
        for q, a in zip(asked, answers, strict=True)
    ]
    return Conversation(system, tuple(turns))


def _check(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise FileError(f"{where} is {brief(message)}, expected an object")
    for name in ("role", "content", *(["finish_reason"] if "finish_reason" in message else [])):
        text = message.get(name)
        if not isinstance(text, str):
            raise FileError(f"{where}: {name} is {brief(text)}, expected a text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise FileError(f"{where}: {name} holds half a character") from None
