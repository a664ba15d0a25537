"""The settings of sampling: one table for the options of commands and for `/set` in a chat."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from genesis_fn.cli import options
from genesis_fn.cli.options import (
    count,
    fraction,
    natural,
    number,
    option,
    positive,
    share,
    stop_string,
)
from genesis_fn.models import GenerationConfig

_FILE = "generation_config.json's"


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a setting is read from text, and what it does."""

    parse: Callable[[str], Any]
    help: str


SETTINGS = {
    "temperature": Setting(number, "divides the logits; 0 takes the most likely token"),
    "top_k": Setting(natural, "draw from the N most likely tokens; 0 from all"),
    "top_p": Setting(
        share, "draw from the most likely tokens whose probability reaches P; 1 from all"
    ),
    "min_p": Setting(
        fraction, "draw from tokens of at least P times the probability of the most likely"
    ),
    "repetition_penalty": Setting(
        positive, "above 1, tokens that were there before become less likely"
    ),
    "max_new_tokens": Setting(count, "the most tokens of an answer"),
}
_DRAWING = ("top_k", "top_p", "min_p")  # of no effect unless tokens are drawn
_LENGTH = "max_new_tokens"


def add_sampling(parser: Any, max_new_tokens: int) -> None:
    """The options of sampling. Those that are not given leave what generation_config.json says."""
    group = parser.add_argument_group("sampling")
    neutral = {**shown(GenerationConfig()), _LENGTH: max_new_tokens}
    for name, setting in SETTINGS.items():
        option(
            group,
            "--" + name.replace("_", "-"),
            type=setting.parse,
            metavar="P" if setting.parse in (share, fraction) else "N",
            help=setting.help,
            shown=f"{_FILE}{', or its max_length' * (name == _LENGTH)}, else {neutral[name]}",
        )
    option(
        group,
        "--stop",
        type=stop_string,
        action="append",
        metavar="TEXT",
        help="end before this text; may be given several times",
        shown=f"{_FILE} stop_strings, else none",
    )
    option(
        group, "--seed", type=options.seed, metavar="N", help=options.SEED, shown=f"{_FILE}, else 0"
    )


def chosen(arguments: argparse.Namespace, file: GenerationConfig, longest: int) -> GenerationConfig:
    """The settings of `file`, those of generation_config.json, under the options that were given.

    Args:
        arguments: parsed by a parser that `add_sampling` extended.
        file: settings of the model's folder.
        longest: `max_new_tokens` where neither says it, nor the file a `max_length`.

    Raises:
        ValueError: the file asks for no tokens, and no option for some.
    """
    how = file
    if how.max_new_tokens is None and how.max_length is None:
        how = dataclasses.replace(how, max_new_tokens=longest)
    # The temperature is the last, as one of 0 is to take the most likely token whatever else holds.
    for name in sorted((*SETTINGS, "stop"), key=lambda name: name == "temperature"):
        value = getattr(arguments, name)
        if value is not None:
            how = changed(how, name, value)
    if how.max_new_tokens == 0:
        raise ValueError(
            f"{_FILE} max_new_tokens is 0, which leaves no room for an answer: give "
            "--max-new-tokens"
        )
    seed = arguments.seed if arguments.seed is not None else how.seed or 0
    return dataclasses.replace(how, seed=seed)


def changed(generation: GenerationConfig, name: str, value: Any) -> GenerationConfig:
    """`generation` with a setting of another value. To ask for a way of drawing is to ask for
    draws; a temperature of 0 is to take the most likely token."""
    if name == "stop":
        return dataclasses.replace(generation, stop_strings=tuple(value))
    if name == "temperature" and value == 0:
        return dataclasses.replace(generation, do_sample=False)
    draws = generation.do_sample or name == "temperature" or name in _DRAWING
    return dataclasses.replace(generation, do_sample=draws, **{name: value})


def drawing_options(arguments: argparse.Namespace) -> list[str]:
    """The options that were given and ask for draws: ["--temperature", ...]."""
    given = [name for name in ("temperature", *_DRAWING) if getattr(arguments, name) is not None]
    if arguments.temperature == 0:
        given.remove("temperature")
    return ["--" + name.replace("_", "-") for name in given]


def parse(name: str, text: str) -> Any:
    """The value that `text` gives to a setting. Raises ValueError naming the setting.

    That of `stop` is one text, or a JSON string such as "\\n"; "off" is none.
    """
    try:
        if name != "stop":
            return SETTINGS[name].parse(text)
        if text == "off":
            return ()
        return (stop_string(json.loads(text) if text.startswith('"') else text),)
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def shown(generation: GenerationConfig) -> dict[str, Any]:
    """The settings by name, as they are in force."""
    found = {name: getattr(generation, name) for name in SETTINGS}
    if not generation.do_sample:
        found["temperature"] = 0
    found["min_p"] = found["min_p"] or 0
    if generation.max_new_tokens is None:
        found[_LENGTH] = f"up to max_length, {generation.max_length} with the prompt"
    return {**found, "stop": list(generation.stop_strings) or "off"}
