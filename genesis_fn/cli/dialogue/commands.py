"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from genesis_fn.cli.dialogue import conversation as files
from genesis_fn.cli.dialogue.chat import Chat
from genesis_fn.cli.dialogue.conversation import Conversation
from genesis_fn.cli.language_model import sampling


@dataclasses.dataclass(frozen=True)
class Command:
    """What a command does to a chat, with the text behind its name; what its argument is called,
    and what is said of it. `run` returns the signal that stopped an answer, or None."""

    run: Callable[[Chat, str], int | None]
    argument: str
    help: str


def is_command(text: str) -> bool:
    """Whether a message is a command; two slashes begin a message that begins with one."""
    return text.startswith("/") and not text.startswith("//")


def obey(chat: Chat, text: str) -> int | None:
    """Run a command. Returns the signal that stopped an answer, or None.

    Raises:
        ValueError: there is no such command, or it cannot be done; the chat is as it was.
        OSError: a file cannot be read or written.
    """
    name, _, argument = text.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise ValueError(
            f"there is no command {name[:40]}: /help lists them, and // begins a message that "
            "begins with a slash"
        )
    argument = argument.strip()
    if argument and not command.argument:
        raise ValueError(f"{name} takes nothing behind it")
    if not argument and command.argument and not command.argument.startswith("["):
        raise ValueError(f"{name} needs {command.argument}")
    return command.run(chat, argument)


def _help(chat: Chat, argument: str) -> None:
    rows = [(f"{name} {command.argument}", command.help) for name, command in COMMANDS.items()]
    chat.screen.show("\n".join(f"{usage:<20} {text}" for usage, text in rows))
    chat.screen.show(
        "Any other line is a message; // begins one with a slash. A backslash at the end of a\n"
        'line goes on in the next, and """ begins and ends a message of several lines. Ctrl-C\n'
        "stops an answer; a second Ctrl-C at the prompt, or Ctrl-D, ends the chat."
    )


def _system(chat: Chat, argument: str) -> None:
    if not argument:
        chat.screen.show(chat.conversation.system or "no system prompt")
        return
    system = None if argument == "off" else argument
    if system is not None:
        chat.speaker.check_system(system)
    chat.conversation = dataclasses.replace(chat.conversation, system=system)
    if system is None:
        chat.record({"event": "system off"})
        chat.screen.notice("[system prompt removed]")
    else:
        chat.record({"role": "system", "content": system})
        chat.screen.notice("[system prompt set]")


def _clear(chat: Chat, argument: str) -> None:
    chat.conversation = Conversation(chat.conversation.system)
    chat.record({"event": "clear"})
    chat.screen.notice("[forgotten: a new conversation begins]")


def _undo(chat: Chat, argument: str) -> None:
    last = _last(chat)
    chat.conversation = chat.conversation.without_last()
    chat.record({"event": "undo"})
    chat.screen.notice(f"[taken back: {_brief(last)}]")


def _retry(chat: Chat, argument: str) -> int | None:
    question = chat.conversation.turns[-1].question if _last(chat) else ""
    chat.record({"event": "retry"})
    return chat.ask(question, chat.conversation.without_last())


def _last(chat: Chat) -> str:
    if not chat.conversation.turns:
        raise ValueError("nothing was said yet")
    return chat.conversation.turns[-1].question


def _brief(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _save(chat: Chat, argument: str) -> None:
    path = os.path.expanduser(argument)
    files.save(chat.conversation, path)
    chat.screen.notice(f"[saved {_turns(chat.conversation)} to {path}]")


def _load(chat: Chat, argument: str) -> None:
    path = os.path.expanduser(argument)
    loaded = files.load(path)
    if loaded.system is not None:
        chat.speaker.check_system(loaded.system)
    if loaded.turns:
        chat.size(dataclasses.replace(loaded, turns=loaded.turns[:1]).messages("?"))
    chat.conversation = loaded
    chat.record({"event": "load", "file": path, "messages": loaded.messages()})
    chat.screen.notice(f"[loaded {_turns(loaded)} from {path}]")


def _turns(conversation: Conversation) -> str:
    count = len(conversation.turns)
    return "1 turn" if count == 1 else f"{count} turns"


def _history(chat: Chat, argument: str) -> None:
    said = chat.conversation
    if said.system is not None:
        chat.screen.show(f"system: {said.system}")
    for i, turn in enumerate(said.turns):
        out = " (dropped)" if i < said.forgotten else ""
        chat.screen.show(f"user{out}: {turn.question}")
        cut = "" if turn.finish == "stop" else f" [{turn.finish}]"
        chat.screen.show(f"assistant{out}: {turn.answer}{cut}")
    if not said.turns and said.system is None:
        chat.screen.show("nothing was said yet")


def _set(chat: Chat, argument: str) -> None:
    name, _, text = argument.partition(" ")
    name = name.replace("-", "_")
    if not name:
        for each, value in sampling.shown(chat.generation).items():
            chat.screen.show(f"{each:<20} {value}")
        return
    if name != "stop" and name not in sampling.SETTINGS:
        known = ", ".join([*sampling.SETTINGS, "stop"])
        raise ValueError(f"there is no setting {name[:40]!r}; there are {known}")
    if text.strip():
        value = sampling.parse(name, text.strip())
        chat.generation = sampling.changed(chat.generation, name, value)
    chat.screen.show(f"{name:<20} {sampling.shown(chat.generation)[name]}")


def _tokens(chat: Chat, argument: str) -> None:
    said = chat.conversation
    size = len(chat.speaker.encode(said.messages(), answer=False)) if said.turns else 0
    chat.screen.show(f"history: {size} of {chat.speaker.capacity} tokens")
    if chat.last is not None:
        last = chat.last
        rate = len(last.tokens) / last.seconds if last.seconds else 0.0
        chat.screen.show(
            f"last answer: {len(last.tokens)} tokens in {last.seconds:.2f} s ({rate:.1f} a "
            f"second), the first after {last.first:.2f} s; {last.reused} of the prompt's tokens "
            "were cached"
        )


def _exit(chat: Chat, argument: str) -> None:
    chat.ended = True


COMMANDS = {
    "/help": Command(_help, "", "this list"),
    "/system": Command(_system, "[TEXT]", "set the system prompt; /system off removes it"),
    "/clear": Command(_clear, "", "forget what was said, but for the system prompt"),
    "/reset": Command(_clear, "", "the same"),
    "/undo": Command(_undo, "", "take back the last message and its answer"),
    "/retry": Command(_retry, "", "answer the last message again"),
    "/history": Command(_history, "", "what was said"),
    "/save": Command(_save, "FILE", "write the conversation to a JSON file"),
    "/load": Command(_load, "FILE", "go on with a saved conversation"),
    "/set": Command(_set, "[NAME [VALUE]]", "show or change the settings of sampling"),
    "/tokens": Command(_tokens, "", "how much of the cache is used, and how fast it went"),
    "/stats": Command(_tokens, "", "the same"),
    "/exit": Command(_exit, "", "end the chat"),
    "/quit": Command(_exit, "", "the same"),
}
