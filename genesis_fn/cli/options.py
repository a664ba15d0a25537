"""The options that commands share: how they are parsed, and how their help is written."""

from __future__ import annotations

import argparse
import copy
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import genesis_fn
from genesis_fn.core.files import brief

Run = Callable[[argparse.Namespace], int]
SEED = "decides every random draw: the same seed, the same result"
_EXAMPLES = "examples:"
_DEVICE = re.compile(r"cpu|(cuda|gpu)(:\d{1,4})?")


def add_command(
    commands: Any, name: str, run: Run, *, help: str, description: str, examples: Sequence[str]
) -> argparse.ArgumentParser:
    """The parser of a command, one of a parser's `commands`.

    Args:
        commands: what `add_subparsers` returned.
        name: the command.
        run: takes the parsed arguments, and returns the exit status.
        help: the line of the command among the others.
        description: what it does, in paragraphs.
        examples: command lines, which the help ends with.
    """
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog(examples),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    add_version(parser)
    parser.set_defaults(run=run)
    return parser


class HelpFormatter(argparse.HelpFormatter):
    """Help as wide as the terminal, in which names of commands and options stay whole. Paragraphs
    are filled, lines of examples stay as they are. Of spellings that differ in hyphens and
    underscores alone the first is shown."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        spellings = {s.replace("_", "-"): s for s in reversed(action.option_strings)}
        shown.option_strings = [s for s in action.option_strings if s in spellings.values()]
        return super()._format_action_invocation(shown)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            p if p.startswith(_EXAMPLES) else "\n".join(self._split_lines(p, width))
            for p in paragraphs
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False)


def epilog(examples: Sequence[str]) -> str:
    """The end of a help text."""
    return "\n".join([_EXAMPLES, *[f"  {line}" for line in examples]])


def add_version(parser: argparse.ArgumentParser) -> None:
    """`--version`."""
    version = f"genesis-fn {genesis_fn.__version__}"
    parser.add_argument(
        "--version", action="version", version=version, help="show the version and exit"
    )


def option(
    parser: Any, *flags: str, help: str, shown: str | None = None, **settings: Any
) -> argparse.Action:
    """Add an option whose help says its default, which is `shown` where the value says nothing."""
    if settings.get("required"):
        shown = "required"
    elif shown is None:
        off = settings.get("action") == "store_true"
        shown = f"default: {'off' if off else settings['default']}"
    else:
        shown = f"default: {shown}"
    return parser.add_argument(*flags, help=f"{help} ({shown})".replace("%", "%%"), **settings)


def add_device(parser: Any) -> None:
    """`--device`."""
    option(
        parser,
        "--device",
        type=device,
        metavar="NAME",
        help="where to compute: cpu, cuda, cuda:1",
        shown="GENESIS_DEVICE, else a usable GPU, else the CPU",
    )


def add_seed(parser: Any) -> None:
    """`--seed`."""
    option(parser, "--seed", type=seed, default=0, metavar="N", help=SEED)


# ---- types of options: an error of one is an error of usage ----


def count(text: str) -> int:
    """A positive integer."""
    return _integer(text, 1, 10**9)


def natural(text: str) -> int:
    """An integer that is not negative."""
    return _integer(text, 0, 10**9)


def seed(text: str) -> int:
    """A seed of random keys."""
    return _integer(text, 0, 2**63 - 1)


def _integer(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no integer") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{brief(text)[1:-1]} does not lie in {least} to {most}")
    return value


def number(text: str, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number from `least` to `most`."""
    value = _float(text)
    if not (math.isfinite(value) and least <= value <= most):
        limits = f"{least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
        raise argparse.ArgumentTypeError(f"{brief(text)[1:-1]} is no number of {limits}")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no number") from None


def duration(text: str) -> float:
    """Seconds, not negative; "inf" is as long as it takes."""
    value = _float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{brief(text)[1:-1]} is no number of seconds")
    return value


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    return number(text, 0.0, 1.0)


def share(text: str) -> float:
    """A number above 0, at most 1."""
    return _above_zero(fraction(text))


def positive(text: str) -> float:
    """A finite number above 0."""
    return _above_zero(number(text))


def _above_zero(value: float) -> float:
    if value == 0:
        raise argparse.ArgumentTypeError("0 is not above 0")
    return value


def words(text: str) -> str:
    """A text of Unicode characters; a command line may hold other bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{ascii(text)[:80]} is not UTF-8") from None
    return text


def stop_string(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text would stop at once")
    return words(text)


def path(text: str) -> str:
    """A path, which is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text is no path")
    return text


def device(text: str) -> str:
    """The name of a device, which may not be there."""
    if not _DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{brief(text)} is none of cpu, cuda, cuda:1, cuda:2, ...")
    return text
