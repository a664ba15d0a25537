"""Where the answers of the model stand in the text of a conversation.

Few templates mark them. Of the others, what the model would be asked to write is known: the text
up to an answer, with the generation prompt, against the text with it. Some templates write earlier
answers otherwise than the last one, and leave out what the model thought: there the text is
rendered once more with another content of the message, and the two differ where it stands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from genesis_fn.core.errors import ArgumentError
from genesis_fn.data.chat_template import ChatTemplate

Message = Mapping[str, Any]
Span = tuple[int, int]
# Characters for a content that is no other's: the first that the text has not.
_RARE = "\u2603\u2318\u2766\u23f0\u265e\u2702\u260e\u2708\u2693\u2615"


def find_answers(
    template: ChatTemplate,
    messages: Sequence[Message],
    special: Sequence[str],
    variables: Mapping[str, Any],
) -> tuple[str, list[Span]]:
    """The text of a conversation, and the spans of the answers that are learned.

    An answer begins behind the generation prompt and ends with the token that ends its turn. That
    of a message with "train" false or "weight" 0 is left out.

    Args:
        template: chat template.
        messages: the conversation.
        special: the texts of special tokens.
        variables: what else the template is given, as `tools`.

    Raises:
        ArgumentError: the template refuses the conversation, or an answer is not found in its text.
    """
    said = [{k: v for k, v in m.items() if k not in ("train", "weight")} for m in messages]
    text, marked = template.render_marked(said, add_generation_prompt=False, **variables)
    answers = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    if marked:
        if len(marked) != len(answers):  # a template may mark what it likes
            return text, marked if all(map(_learned, messages)) else _refuse_weights()
        spans = marked
    else:
        found = _Conversation(template, said, text, tuple(special), variables)
        spans = [found.answer(i) for i in answers]
    return text, [span for i, span in zip(answers, spans) if _learned(messages[i])]


def _learned(message: Message) -> bool:
    return message.get("train", True) is not False and message.get("weight", 1) != 0


def _refuse_weights() -> list[Span]:
    raise ArgumentError(
        "a message is left out by train or weight, and the template marks other parts of the text "
        "than messages: it is not known which of them to leave out"
    )


class _Conversation:
    """A conversation and its text."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: list[dict[str, Any]],
        text: str,
        special: tuple[str, ...],
        variables: Mapping[str, Any],
    ) -> None:
        self.template, self.messages, self.text = template, messages, text
        self.special, self.variables = special, variables

    def answer(self, i: int) -> Span:
        """The span of the answer that is message `i`."""
        span = self._continued(i) or self._changed(i)
        if span is None:
            raise ArgumentError(
                f"messages[{i}]: the chat template does not show where this answer stands in the "
                'text; mark answers by {% generation %} in it, or train on "all"'
            )
        start, end = span
        return start, self._turn_end(start, end)

    def _continued(self, i: int) -> Span | None:
        """What the answer adds to the text of the messages before it, if the text begins so."""
        if not i:  # there is no prompt of nothing
            return None
        prompt = self._render(self.messages[:i], True)
        upto = self._render(self.messages[: i + 1], False)
        if prompt is None or upto is None or not upto.startswith(prompt):
            return None
        return (len(prompt), len(upto)) if self.text.startswith(upto) else None

    def _changed(self, i: int) -> Span | None:
        """The span that another content changes, from the generation prompt before it on."""
        rare = next((c for c in _RARE if c not in self.text), None)
        if rare is None:
            return None
        other = {"role": self.messages[i]["role"], "content": rare * 3}
        text = self._render([*self.messages[:i], other, *self.messages[i + 1 :]], False)
        if text is None or text.count(rare) != 3:
            return None
        start = len(os.path.commonprefix([text, self.text]))
        ours, others = self.text[start:], text[start:]
        end = len(self.text) - len(os.path.commonprefix([ours[::-1], others[::-1]]))
        prompt = self._generation_prompt(i)
        at = self.text.rfind(prompt, self._end_before(i, start), start) if prompt else -1
        return (start if at < 0 else at + len(prompt)), end

    def _end_before(self, i: int, start: int) -> int:
        """The end of the content of the message before message `i`, which stands at `start`."""
        content = self.messages[i - 1].get("content") if i else None
        content = content.strip() if isinstance(content, str) else ""
        at = self.text.rfind(content, 0, start) if content else -1
        return max(at, 0) + len(content)

    def _generation_prompt(self, i: int) -> str:
        before = self._render(self.messages[:i], False) if i else ""
        asked = self._render(self.messages[:i], True) if i else ""
        if before is None or asked is None or not asked.startswith(before):
            return ""
        return asked[len(before) :]

    def _turn_end(self, start: int, end: int) -> int:
        """The end of the special token that ends the turn: the last of the span with nothing but
        blanks behind it, or the next one with nothing but blanks before."""
        stripped = self.text[start:end].rstrip()
        if stripped.endswith(self.special):
            return start + len(stripped)
        rest = self.text[end:]
        blanks = len(rest) - len(rest.lstrip())
        for token in self.special:
            if rest[blanks:].startswith(token) and not self._begins_a_turn(end + blanks):
                return end + blanks + len(token)
        return end

    def _begins_a_turn(self, at: int) -> bool:
        """Whether the special token at a place is the first of the next message."""
        following = [i for i, m in enumerate(self.messages) if m.get("role") != "assistant"]
        first = self._render(self.messages[:1], False) if following else None
        if not first:
            return False
        opening = next((t for t in self.special if first.startswith(t)), None)
        return opening is not None and self.text.startswith(opening, at)

    def _render(self, messages: list[dict[str, Any]], prompt: bool) -> str | None:
        """The text of some messages; None where the template refuses them."""
        try:
            return self.template.render(messages, add_generation_prompt=prompt, **self.variables)
        except ArgumentError:
            return None
