"""The loop of a chat: a message or a command, then the answer."""

from __future__ import annotations

import signal

from genesis_fn.cli.dialogue.chat import Chat
from genesis_fn.cli.dialogue.commands import is_command, obey
from genesis_fn.cli.dialogue.reading import LineSource, TakenBack, read_message
from genesis_fn.cli.failures import line_of, wants_traceback
from genesis_fn.training.interrupt import Interrupted

_ENDING = "Ctrl-C again, Ctrl-D or /exit ends the chat"


def converse(chat: Chat, source: LineSource) -> None:
    """Answer what `source` gives, up to its end or `/exit`.

    At a terminal Ctrl-C stops an answer, a second one at the prompt ends the chat, and an error is
    shown. Otherwise either ends it.

    Raises:
        Interrupted: a signal ended it, and the answer that was under way is in the transcript.
    """
    prompt, more = chat.screen.prompt("> "), chat.screen.prompt("... ")
    interrupts = 0
    while True:
        try:
            text = read_message(source, prompt, more)
            if text is None:
                if source.interactive:
                    chat.screen.show("")
                return
            if not text.strip():
                continue
            if is_command(text):
                stopped = obey(chat, text)
            else:
                stopped = chat.ask(text.removeprefix("/"), chat.conversation)
        except KeyboardInterrupt as interrupt:
            if not source.interactive:
                raise
            # One that took back half a message ends no chat, however many there were before.
            interrupts = 1 if isinstance(interrupt, TakenBack) else interrupts + 1
            chat.screen.show("")
            if interrupts > 1:
                return
            chat.screen.notice(f"[{_ENDING}]")
            continue
        except Exception as error:
            gone = isinstance(error, BrokenPipeError)
            if not source.interactive or gone or wants_traceback(error):
                raise
            chat.screen.error(f"error: {line_of(error)}")
            stopped = None
        if stopped is not None and (stopped != signal.SIGINT or not source.interactive):
            raise Interrupted(stopped)
        if chat.ended:
            return
        interrupts = 0
        if stopped is not None:
            interrupts = 1
            chat.screen.notice(f"[stopped: {_ENDING}]")
