"""`genesis-fn`: the command that pyproject installs."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import signal
import sys
from collections.abc import Sequence

from genesis_fn.cli import chat, demo, evaluate, generate, info, merge, options, train
from genesis_fn.cli.failures import line_of, wants_traceback
from genesis_fn.cli.processes import joined, said_once, tell_others
from genesis_fn.training.interrupt import Interrupted
from genesis_fn.training.settings.reading import KEYS

_COMMANDS = (demo, train, evaluate, merge, chat, generate, info)
_DESCRIPTION = """Train small language models, chat with them, continue text.

A command ends with 0, with 1 after an error, which is one line on stderr, with 2 where it was
called wrongly, and with 130 after Ctrl-C. Output that goes to no terminal is plain lines."""
_EXAMPLES = (
    "genesis-fn demo",
    "genesis-fn chat --model runs/demo",
    "genesis-fn sft --method lora --model.path runs/demo --data.train chats.jsonl --epochs 2",
    "genesis-fn generate --model runs/demo --prompt 'def read(self):'",
    "genesis-fn chat --help",
)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="genesis-fn",
        description=_DESCRIPTION,
        epilog=options.epilog(_EXAMPLES),
        formatter_class=options.HelpFormatter,
        allow_abbrev=False,
    )
    options.add_version(top)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status; errors are one line.

    It is 1 after an error, 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, which end a
    run when it is saved, and 141 where nobody reads the output any more, as behind `| head`.
    """
    _prepare_streams()
    try:
        arguments = _parsed(argv)
        with joined(arguments):
            status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except Interrupted as interrupted:
        return interrupted.status
    except KeyboardInterrupt as error:
        tell_others(error, "")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except ImportError as error:
        if wants_traceback(error):
            raise
        package = (error.name or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package != "genesis_fn":
            needs = f"the command needs the package {package}: pip install {package}"
            return _failed(error, needs)
        return _failed(error, line_of(error))
    except Exception as error:
        if wants_traceback(error):
            raise
        return _failed(error, line_of(error))


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line. Ends the process behind --help, --version, a wrong call."""
    try:
        with said_once():
            top = parser()
            arguments, unknown = top.parse_known_args(argv)
            if unknown:
                _refuse(top, arguments, unknown)
            return arguments
    except SystemExit:
        sys.stdout.flush()
        raise


def _refuse(top: argparse.ArgumentParser, given: argparse.Namespace, unknown: list[str]) -> None:
    """End with a wrong call; the option that is nearest to an unknown one is named."""
    (commands,) = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]  # pyright: ignore[reportPrivateUsage]
    flags = list(commands.choices[given.command]._option_string_actions)  # pyright: ignore[reportPrivateUsage]
    name = unknown[0].partition("=")[0]
    near = difflib.get_close_matches(name, flags, 1) if name.startswith("-") else []
    hint = f"; did you mean {near[0]}?" if near else ""
    if given.command == "resume" and name.lstrip("-").replace("-", "_") in KEYS:
        hint = "; the settings of a run are those of its config.yaml"
    top.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _prepare_streams() -> None:
    """Open streams that the caller has closed (`>&-`), and decide about text that has no code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # names of files can be any bytes
            stream.reconfigure(errors="strict" if mode == "r" else "backslashreplace")


def _failed(error: BaseException, message: str) -> int:
    message = tell_others(error, message)
    try:
        sys.stdout.flush()
    except OSError:  # the failure itself, or one more: a full disk
        _discard_output()
    with contextlib.suppress(OSError):  # there is nobody to read it
        if message:
            print(f"genesis-fn: {message}", file=sys.stderr)
    return 1


def _discard_output() -> None:
    """Let what stdout holds back go nowhere: it would be written again, and fail again, when the
    process ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
