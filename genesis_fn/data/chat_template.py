"""Chat templates: messages to the text that a model was trained on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.core.files import brief
from genesis_fn.data.chat_files import TemplateText, is_text, read_special_tokens, read_templates
from genesis_fn.data.chat_process import process

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Names of what a model thought before it answered. The first is the one that templates read.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Options of transformers' `apply_chat_template`, which never reach its templates.
_OPTIONS = ("chat_template", "continue_final_message", "return_assistant_tokens_mask", "tokenize")
_LARGEST_INTEGER = 1 << 13  # bits; Python writes no text of an integer of 4300 digits


class Rendered(NamedTuple):
    """The text of a conversation, and the spans of it that a template marks as the model's."""

    text: str
    generated: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """The text of a conversation, as the template of a model's folder writes it.

    It is the text of transformers' `apply_chat_template(..., tokenize=False)`. A template is a
    program that came with the model: it runs in a sandbox, in a process of its own that has two
    seconds and 512 MiB for each text and cannot write files. That process is started by the
    first text; jinja2 has to be installed.

    Args:
        templates: templates by name. "tool_use" is taken where there are tools, "default" else.
        special_tokens: what templates see as `bos_token`, `eos_token`, ...

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(f"{folder}/chat_template.jinja", "w") as f:
    ...     _ = f.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template = gf.data.ChatTemplate.from_folder(folder)
    >>> template.render([{"role": "user", "content": "Hello!"}])
    '<user>Hello!'
    """

    templates: Mapping[str, TemplateText]
    special_tokens: Mapping[str, str]

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> ChatTemplate:
        """Read the template of a model's folder.

        Templates are chat_template.jinja and additional_chat_templates/*.jinja, or else
        `chat_template` in tokenizer_config.json. Special tokens are those of tokenizer_config.json
        and special_tokens_map.json.

        Args:
            folder: the model's folder.

        Returns:
            The template. It is not run yet, nor is its syntax checked.

        Raises:
            FileError: there is no template, or a file is malformed.
        """
        folder = os.fspath(folder)
        if not os.path.isdir(folder):
            raise FileError(f"{folder}: no folder")
        return cls(read_templates(folder), read_special_tokens(folder))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: a dict for each message, with "role" and "content", and what else the template
                reads: "tool_calls", "reasoning_content".
            add_generation_prompt: whether the beginning of the model's answer follows.
            tools: the JSON schema of each function that the model may call.
            variables: what else the template reads: `enable_thinking=False`, `documents=[...]`.

        Returns:
            The text. Special tokens stand in it as text: encode it with `add_special_tokens=False`,
            as `encode` does.

        Raises:
            ArgumentError: the template refuses the messages, or they hold what JSON has not.
            FileError: the template is wrong: a line of it cannot be read, fails, or takes more time
                or memory than a template may; names file and line.
            ImportError: jinja2 is not installed.
        """
        return self.render_marked(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
        ).text

    def render_marked(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Rendered:
        """The text of a conversation, and what of it stands between `{% generation %}` tags.

        Args:
            messages, add_generation_prompt, tools, variables: as `render` takes them.

        Returns:
            (text, [(start, end), ...]), with spans of its characters: what the model says. There
            are none where the template has no such tags.

        Raises:
            ArgumentError, FileError, ImportError: as `render` does.
        """
        for name in _OPTIONS:
            if name in variables:
                raise ArgumentError(f"ChatTemplate.render: {name} is not an option here")
        said = _listed(messages)
        if not said:
            raise ArgumentError(
                f"ChatTemplate.render: messages is {brief(messages)}, expected a list of at least "
                'one dict, such as {"role": "user", "content": "Hello!"}'
            )
        listed = [] if tools is None else _listed(tools)
        if listed is None:
            raise ArgumentError(
                f"ChatTemplate.render: tools is {brief(tools)}, expected a list of dicts: the "
                "schema of each"
            )
        for tool in listed:
            if not isinstance(tool, Mapping):
                raise ArgumentError(
                    f"ChatTemplate.render: a tool is {brief(tool)}, expected a dict: its schema"
                )
        text, place = self._chosen(tools is not None)
        values = {
            "documents": None,
            **self.special_tokens,
            **variables,
            "messages": [_message(m, f"messages[{i}]") for i, m in enumerate(said)],
            "tools": None if tools is None else listed,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            reply = process.render(text, _plain(values, ""))
        except RecursionError:
            raise ArgumentError("ChatTemplate.render: messages are nested too deeply") from None
        if "error" not in reply:
            if not is_text(reply["text"]):
                raise FileError(f"{place}: the chat template writes half a character")
            return Rendered(reply["text"], [(a, b) for a, b in reply["generated"]])
        where = place if reply.get("line") is None else f"{place}: line {reply['line']}"
        if reply.get("refused"):
            raise ArgumentError(
                f"ChatTemplate.render: the template refuses the messages: {reply['error']}\n"
                f"  at {where}"
            )
        raise FileError(f"{where}: the chat template fails: {reply['error']}")

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The tokens of a conversation.

        The template writes special tokens itself, so that the tokenizer adds none: no second token
        of the beginning.

        Args:
            tokenizer: the model's tokenizer, from `load_tokenizer`.
            messages, add_generation_prompt, tools, variables: as `render` takes them.

        Returns:
            Token numbers.

        Raises:
            ArgumentError, FileError, ImportError: as `render` does.
        """
        text = self.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
        )
        return tokenizer.encode(text, add_special_tokens=False).ids

    def _chosen(self, tools: bool) -> TemplateText:
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            known = ", ".join(map(brief, sorted(self.templates)[:10]))
            raise FileError(
                f"{next(iter(self.templates.values())).place}: there is no chat template of the "
                f"name 'default', only {known}"
            )
        return self.templates[name]


def _listed(value: Any) -> list[Any] | None:
    """The elements of a list; None where it is none."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    return list(value)


def _message(message: Any, where: str) -> dict[str, Any]:
    """A message without what is None, and with reasoning under the name that templates read."""
    if not isinstance(message, Mapping):
        raise ArgumentError(f"ChatTemplate.render: {where} is {brief(message)}, expected a dict")
    given = {name: value for name, value in message.items() if value is not None}
    thought = next((given[n] for n in _REASONING if n in given), None)
    if thought is None:
        return given
    return {"thinking": thought, **given, "reasoning_content": thought}


def _plain(value: Any, where: str) -> Any:
    """The value as JSON has it. Raises ArgumentError naming the place of anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            _check_json(value, where)
            return kind(value) if type(value) is not kind else value
    if isinstance(value, Mapping):
        for name in value:
            if not is_text(name):
                raise ArgumentError(
                    f"ChatTemplate.render: {where or 'variables'} has the key {brief(name)}, "
                    "expected texts for keys"
                )
        return {str(n): _plain(v, f"{where}[{n!r:.80}]" if where else n) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise ArgumentError(
        f"ChatTemplate.render: {where} is {brief(value)}, expected texts, numbers, lists and dicts"
    )


def _check_json(value: str | float, where: str) -> None:
    """Raise ArgumentError for a text or number that has no place in JSON."""
    if isinstance(value, str) and not is_text(value):
        raise ArgumentError(f"ChatTemplate.render: {where} holds half a character: {brief(value)}")
    if isinstance(value, int) and value.bit_length() > _LARGEST_INTEGER:
        raise ArgumentError(
            f"ChatTemplate.render: {where} is an integer of {value.bit_length():,} bits, more than "
            f"the {_LARGEST_INTEGER:,} that it may have"
        )
