"""`genesis-fn chat`: a conversation with a model, at a terminal or through a pipe."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import sys
from typing import Any

import genesis_fn.random as random
from genesis_fn.cli import options
from genesis_fn.cli.dialogue.chat import Chat
from genesis_fn.cli.dialogue.commands import COMMANDS
from genesis_fn.cli.dialogue.conversation import Conversation, Message
from genesis_fn.cli.dialogue.loop import converse
from genesis_fn.cli.dialogue.reading import Keyboard, Lines
from genesis_fn.cli.dialogue.screen import Screen
from genesis_fn.cli.dialogue.transcript import Transcript
from genesis_fn.cli.language_model import opening, sampling
from genesis_fn.cli.language_model.continuation import Continuation
from genesis_fn.cli.language_model.memory import check_cache
from genesis_fn.cli.language_model.opening import LanguageModel
from genesis_fn.cli.options import option
from genesis_fn.data import ChatTemplate
from genesis_fn.models import GenerationConfig, Session

_LONGEST = 1024  # tokens of an answer, where nothing else says it
_DESCRIPTION = """Chat with a model. Answers appear while they are generated.

At a terminal, /help lists the commands. Ctrl-C stops an answer, which stays in the history as far
as it was shown; a second Ctrl-C at the prompt, Ctrl-D or /exit end the chat. Input from a pipe is
one message a line, or a command; stdout has the answers alone, and the first error ends the chat
with status 1. A line that ends in a backslash goes on in the next, and three double quotes begin
and end a message of several lines. When the history outgrows the cache, the oldest turns are
dropped, and a line says so. The same seed and messages give the same answers."""
_EXAMPLES = (
    "genesis-fn chat --model runs/demo",
    "genesis-fn chat --model Qwen3-0.6B --system 'Answer in one sentence.' --temperature 0.7",
    "genesis-fn chat --model Qwen3-0.6B --device cuda --transcript chats.jsonl",
    "echo 'What is a pytree?' | genesis-fn chat --model Qwen3-0.6B --temperature 0",
)


def add(commands: Any) -> None:
    """The command and its options."""
    parser = options.add_command(
        commands,
        "chat",
        run,
        help="chat with a model",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    opening.add_model(parser)
    add_template(parser)
    option(
        parser,
        "--transcript",
        metavar="FILE",
        help="append every turn to this file, as JSON lines, when it ends",
        shown="none",
    )
    sampling.add_sampling(parser, _LONGEST)


def add_template(parser: Any) -> None:
    """The options of messages: their template and the system prompt."""
    option(
        parser,
        "--template",
        metavar="FILE",
        help="a chat template of Jinja",
        shown="that of the model's folder",
    )
    option(
        parser,
        "--system",
        type=options.words,
        metavar="TEXT",
        help="the system prompt",
        shown="none, or what the template writes by itself",
    )


class _Speaker:
    """A model as what answers in a chat. Draws differ from answer to answer."""

    def __init__(
        self, model: LanguageModel, template: ChatTemplate, capacity: int, seed: int
    ) -> None:
        self.model, self.template, self.capacity = model, template, capacity
        self.key, self.answers = random.key(seed), 0
        self.renew()

    def renew(self) -> None:
        self.session = Session(self.model.params, self.model.config, capacity=self.capacity)

    def encode(self, messages: list[Message], *, answer: bool = True) -> list[int]:
        text = self.template.render(messages, add_generation_prompt=answer)
        return self.model.encode(text, add_special_tokens=False)

    def check_system(self, system: str) -> None:
        opening.check_system(self.template, system)

    def answer(self, prompt: list[int], generation: GenerationConfig) -> Continuation:
        key = random.fold_in(self.key, self.answers)
        self.answers += 1
        return Continuation(self.model, self.session, prompt, generation, key)


def run(arguments: argparse.Namespace) -> int:
    """Chat to the end of the input. Returns the exit status."""
    screen = Screen()
    model = opening.load(arguments.model, arguments.dtype)
    template = opening.load_template(arguments.model, arguments.template)
    file = model.generation
    for name in ("num_beams", "num_return_sequences"):
        if (value := getattr(file, name)) > 1:
            screen.notice(f"[{name} {value} of the model's settings is left out]")
    file = dataclasses.replace(file, num_beams=1, num_return_sequences=1)
    generation = sampling.chosen(arguments, file, _LONGEST)
    capacity = opening.capacity(arguments.capacity, model)
    check_cache(model, 1, capacity, f"--capacity {capacity}")
    speaker = _Speaker(model, template, capacity, generation.seed or 0)
    conversation = Conversation(arguments.system)
    # What a template refuses is said now.
    if arguments.system is not None:
        speaker.check_system(arguments.system)
    speaker.encode(conversation.messages("?"))
    with contextlib.ExitStack() as stack:
        transcript = None
        if arguments.transcript is not None:
            transcript = stack.enter_context(contextlib.closing(Transcript(arguments.transcript)))
        chat = Chat(speaker, screen, conversation, generation, transcript)
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        chat.record(
            {"event": "start", "time": began, "model": arguments.model}, *conversation.messages()
        )
        if sys.stdin.isatty():
            source = stack.enter_context(Keyboard(list(COMMANDS)))
            screen.notice(
                f"[{arguments.model}: {model.config.size:,} parameters, room for {capacity} "
                "tokens; /help lists the commands]"
            )
        else:
            source = Lines(sys.stdin)
        converse(chat, source)
    return 0
