"""Records as examples: texts, prompts with completions, and chats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from genesis_fn.core.errors import ArgumentError
from genesis_fn.core.files import brief
from genesis_fn.data.chat_template import ChatTemplate
from genesis_fn.data.examples.answers import Span, find_answers
from genesis_fn.data.examples.example import Example
from genesis_fn.data.tokenizer import pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Record = Mapping[str, Any]
# The roles of ShareGPT's `from`.
_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
_KINDS = ("messages", "conversations", "prompt")
_NO_VARIABLES = (*_KINDS, "completion", "train", "weight", "id")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Records to examples, by the fields that a record has.

    * {"text": ...}: all tokens are learned, and the end of the text; a text that has "ends" false
      goes on in the next record.
    * {"prompt": ..., "completion": ...}: two texts, or two lists of messages; the completion and
      its end are learned.
    * {"messages": [{"role", "content"}, ...]}: the text of the chat template, as transformers'
      `apply_chat_template` gives it; of its answers, those of messages with "train": false or
      "weight": 0 excepted, every token up to the end of the turn is learned. Other fields of the
      record, as "tools", are given to the template. {"conversations": [{"from", "value"}]} is the
      same.

    Args:
        tokenizer: tokenizer of Hugging Face's `tokenizers`.
        end: token behind a text and behind a completion; None: none.
        template: chat template, or a function that gives it or says why there is none.
        text_field: the name of the text.
        train_on: of chats, "answers" or "all" of the text.
        length: most tokens of an example that is no text; the rest is cut off. None: any number.

    Raises:
        ArgumentError: when it is called: the record has no such fields, or several; a message is
            malformed; the template refuses the conversation.

    >>> tokenizer = gf.data.train_tokenizer(["ab"], vocab_size=257)
    >>> examples = Examples(tokenizer, end=0)
    >>> example = examples({"prompt": "a", "completion": "b"})
    >>> example.tokens.tolist(), example.counted.tolist()
    ([65, 66, 0], [False, True, True])
    """

    tokenizer: Tokenizer
    end: int | None
    template: ChatTemplate | Callable[[], ChatTemplate] | None = None
    text_field: str = "text"
    train_on: Literal["answers", "all"] = "answers"
    length: int | None = None

    def __post_init__(self) -> None:
        if self.train_on not in ("answers", "all"):
            raise ArgumentError(f'Examples: train_on is "answers" or "all", not {self.train_on!r}')
        if self.length is not None and self.length < 2:
            raise ArgumentError(f"Examples: length must be 2 at least, got {self.length}")
        added = self.tokenizer.get_added_tokens_decoder().values()
        special = tuple(t.content for t in added if t.special)
        object.__setattr__(self, "_special", special)

    _special: tuple[str, ...] = dataclasses.field(init=False, repr=False, default=())

    def __call__(self, record: Record) -> Example | None:
        """The example of a record; None where no token of it is learned."""
        kinds = [k for k in (*_KINDS, self.text_field) if record.get(k) is not None]
        if len(kinds) != 1:
            wanted = f"{', '.join(_KINDS)} and {self.text_field}"
            found = ", ".join(kinds) if kinds else ", ".join(map(str, record)) or "nothing"
            raise ArgumentError(f"a record has one of {wanted}; this one has {found[:200]}")
        (kind,) = kinds
        if kind == self.text_field:
            return self._text(record)
        found = self._prompted(record) if kind == "prompt" else self._chat(record)
        return self._cut(found)

    # ---- kinds of records ----

    def _text(self, record: Record) -> Example | None:
        text = _text_of(record, self.text_field)
        # A tokenizer may begin texts with a token of its own.
        parts = [
            self.tokenizer.encode(part, add_special_tokens=not i).ids
            for i, part in enumerate(pieces(text))
        ]
        tokens = [token for part in parts for token in part]
        end = self.end if record.get("ends", True) else None
        if end is not None and (not tokens or tokens[-1] != end):
            tokens.append(end)
        return _example(tokens, np.ones(len(tokens), np.bool_)) if text else None

    def _prompted(self, record: Record) -> Example:
        prompt, completion = record["prompt"], record.get("completion")
        if isinstance(prompt, list) and isinstance(completion, list):
            given = [{**_mapping(m), "train": False} for m in prompt]
            return self._conversation([*given, *completion], record)
        text, more = _text_of(record, "prompt"), _text_of(record, "completion")
        encoded = self.tokenizer.encode(text + more)
        counted = _inside(encoded.offsets, [(len(text), len(text) + len(more))])
        if self.train_on == "all":
            counted[:] = True
        tokens = list(encoded.ids)
        if self.end is not None and tokens[-1:] != [self.end]:
            tokens.append(self.end)
            counted = np.append(counted, True)
        return _example(tokens, counted)

    def _chat(self, record: Record) -> Example:
        if record.get("messages") is not None:
            return self._conversation(record["messages"], record)
        return self._conversation(_of_sharegpt(record["conversations"]), record)

    def _conversation(self, messages: Any, record: Record) -> Example:
        _check_messages(messages)
        template = self.template() if callable(self.template) else self.template
        if template is None:
            raise ArgumentError("a chat needs a chat template, and none was given")
        variables = {k: v for k, v in record.items() if k not in _NO_VARIABLES and v is not None}
        variables.pop(self.text_field, None)
        if self.train_on == "all":
            said = [{k: v for k, v in m.items() if k not in ("train", "weight")} for m in messages]
            text = template.render(said, add_generation_prompt=False, **variables)
            spans = [(0, len(text))]
        else:
            text, spans = find_answers(template, messages, self._special, variables)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return _example(encoded.ids, _inside(encoded.offsets, spans))

    def _cut(self, example: Example) -> Example | None:
        """The example in `length` tokens; None where none of them is learned."""
        tokens, counted, _ = example
        cut = 0 if self.length is None else max(tokens.size - self.length, 0)
        if cut:
            example = Example(tokens[: self.length], counted[: self.length], cut)
        return example if example.counted[1:].any() else None


@dataclasses.dataclass
class ExampleCounts:
    """What became of records: `Mapped` calls it with the examples of each.

    Args:
        examples: examples so far.
        tokens: tokens of them.
        learned: tokens of them that are learned.
        truncated: examples that were cut off.
        lost: tokens that were cut off.
        longest: tokens of the longest example, before it was cut.
        empty: records of which no token is learned, which are left out.
    """

    examples: int = 0
    tokens: int = 0
    learned: int = 0
    truncated: int = 0
    lost: int = 0
    longest: int = 0
    empty: int = 0

    def __call__(self, examples: Sequence[Example]) -> None:
        self.empty += not examples
        for example in examples:
            self.examples += 1
            self.tokens += example.tokens.size
            self.learned += int(example.counted.sum())
            self.truncated += example.cut > 0
            self.lost += example.cut
            self.longest = max(self.longest, example.tokens.size + example.cut)

    def __str__(self) -> str:
        text = (
            f"{self.examples:,} examples of {self.tokens:,} tokens, {self.learned:,} of which are "
            f"learned; the longest has {self.longest:,}"
        )
        if self.truncated:
            text += f"; {self.truncated:,} were truncated by {self.lost:,} tokens"
        if self.empty:
            text += f"; {self.empty:,} without a token to learn were left out"
        return text


# ---- records ----


def _example(tokens: Sequence[int], counted: np.ndarray) -> Example:
    return Example(np.asarray(tokens, np.int32), counted)


def _inside(offsets: Sequence[Span], spans: Sequence[Span]) -> np.ndarray:
    """Which tokens overlap a span, or are without characters and stand in one."""
    counted = np.zeros(len(offsets), np.bool_)
    if not len(offsets):
        return counted
    starts, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    for start, end in spans:
        counted |= (np.maximum(ends, starts + 1) > start) & (starts < end)
    return counted


def _text_of(record: Record, field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise ArgumentError(f"{field} is {brief(value)}, expected a text")
    return value


def _mapping(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(f"a message is {brief(message)}, expected an object with a role")
    return message


def _check_messages(messages: Any) -> None:
    """Raise ArgumentError for what is no conversation with an answer."""
    if not isinstance(messages, list) or not messages:
        raise ArgumentError(f"messages is {brief(messages)}, expected a list of messages")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise ArgumentError(f"{where} is {brief(message)}, expected an object")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise ArgumentError(f"{where}: role is {brief(role)}, expected a text, as user")
        if not isinstance(content, str | list) and not message.get("tool_calls"):
            raise ArgumentError(f"{where}: content is {brief(content)}, expected a text")
    if not any(m["role"] == "assistant" for m in messages):
        roles = ", ".join(dict.fromkeys(m["role"] for m in messages))
        raise ArgumentError(f"the messages have no answer of the role assistant, only of {roles}")


def _of_sharegpt(turns: Any) -> list[dict[str, Any]]:
    if not isinstance(turns, list):
        raise ArgumentError(f"conversations is {brief(turns)}, expected a list")
    found = []
    for i, turn in enumerate(turns):
        kind = turn.get("from") if isinstance(turn, Mapping) else None
        if kind not in _SHAREGPT:
            raise ArgumentError(
                f"conversations[{i}]: from is {brief(kind)}, expected one of {', '.join(_SHAREGPT)}"
            )
        found.append({"role": _SHAREGPT[kind], "content": turn.get("value")})
    return found
