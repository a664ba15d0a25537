"""`genesis-fn`: the command that pyproject installs."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence

import genesis_fn
from genesis_fn.cli import chat, demo, generate, info, options
from genesis_fn.cli.failures import EXPECTED, line_of
from genesis_fn.cli.interrupt import Interrupted

_COMMANDS = (demo, chat, generate, info)
_DESCRIPTION = """Train small language models, chat with them, continue text.

A command ends with 0, with 1 after an error, which is one line on stderr, with 2 where it was
called wrongly, and with 130 after Ctrl-C. Output that goes to no terminal is plain lines."""
_EXAMPLES = (
    "genesis-fn demo",
    "genesis-fn chat --model runs/demo",
    "genesis-fn generate --model runs/demo --prompt 'def read(self):'",
    "genesis-fn chat --help",
)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="genesis-fn",
        description=_DESCRIPTION,
        epilog=options.epilog(_EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"genesis-fn {genesis_fn.__version__}"
    top.add_argument("--version", action="version", version=version)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status; errors of files and settings are one line.

    It is 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, which end a run when it is saved,
    and 141 where nobody reads the output any more, as behind `| head`.
    """
    _prepare_streams()
    arguments = parser().parse_args(argv)
    try:
        with genesis_fn.default_device(arguments.device):
            status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except Interrupted as interrupted:
        return interrupted.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "genesis_fn":
            raise
        if isinstance(error, ModuleNotFoundError):
            return _failed(f"the command needs the package {package}: pip install {package}")
        return _failed(line_of(error))
    except EXPECTED as error:
        return _failed(line_of(error))


def _prepare_streams() -> None:
    """Open streams that the caller has closed (`>&-`), and decide about text that has no code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # names of files can be any bytes
            stream.reconfigure(errors="strict" if mode == "r" else "backslashreplace")


def _failed(message: str) -> int:
    with contextlib.suppress(OSError):  # there is nobody to read it
        print(f"genesis-fn: {message}", file=sys.stderr)
    return 1


def _discard_output() -> None:
    """Let what stdout holds back go nowhere: it would be written again, and fail again, when the
    process ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
