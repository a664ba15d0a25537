"""`genesis-fn generate`: a prompt continued, for scripts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import genesis_fn.random as random
from genesis_fn.cli import options
from genesis_fn.cli.chat import add_template
from genesis_fn.cli.dialogue.screen import Screen
from genesis_fn.cli.language_model import opening, sampling
from genesis_fn.cli.language_model.continuation import Continuation, longest
from genesis_fn.cli.language_model.memory import check_cache
from genesis_fn.cli.language_model.opening import LanguageModel
from genesis_fn.cli.options import option
from genesis_fn.cli.processes import said_once
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import read_plain
from genesis_fn.models import GenerationConfig, Session, TextStream, beam_search

_LONGEST = 256  # tokens of a continuation, where nothing else says it
_LARGEST_PROMPT = 1 << 26  # bytes
_DESCRIPTION = """Continue a prompt. Only the result goes to stdout.

The prompt is --prompt, the file of --prompt-file, or stdin; a byte order mark that begins a file or
stdin, and a line end that closes it, are no part of the prompt. The result is the text behind the
prompt and a line end. The same seed and prompt give the same result."""
_EXAMPLES = (
    "genesis-fn generate --model runs/demo --prompt 'def read(self):' --temperature 0",
    "genesis-fn generate --model runs/demo --prompt 'import ' --count 5 --json",
    "genesis-fn generate --model Qwen3-0.6B --chat --prompt 'What is a pytree?' --stream",
    "cat notes.txt | genesis-fn generate --model Qwen3-0.6B --max-new-tokens 64 --stop '.'",
    "genesis-fn generate --model Qwen3-0.6B --prompt-file notes.txt --num-beams 4",
)


def add(commands: Any) -> None:
    """The command and its options."""
    parser = options.add_command(
        commands,
        "generate",
        run,
        help="continue a prompt, for scripts",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    opening.add_model(parser)
    prompt = parser.add_mutually_exclusive_group()
    option(
        prompt,
        "--prompt",
        type=options.words,
        metavar="TEXT",
        help="what to continue",
        shown="stdin",
    )
    option(
        prompt, "--prompt-file", metavar="FILE", help="a file with what to continue", shown="stdin"
    )
    option(
        parser,
        "--chat",
        action="store_true",
        help="the prompt is a message to answer, which the chat template renders",
    )
    add_template(parser)
    option(
        parser,
        "--count",
        type=options.count,
        metavar="N",
        help="how many continuations; with --num-beams the N best",
        shown="generation_config.json's num_return_sequences, else 1",
    )
    form = parser.add_mutually_exclusive_group()
    option(
        form,
        "--json",
        action="store_true",
        help="a continuation is a line of JSON: text, tokens, logprobs (with beams score instead), "
        "finish_reason (stop or length)",
    )
    option(
        form,
        "--logprobs",
        action="store_true",
        help="a continuation is a line for each token: logprob, token and its text, with tabs",
    )
    option(form, "--stream", action="store_true", help="write the text while it is generated")
    option(
        parser,
        "--num-beams",
        type=options.count,
        metavar="N",
        help="search the likeliest continuation with N beams, where N is not 1",
        shown="generation_config.json's, else 1",
    )
    sampling.add_sampling(parser, _LONGEST)
    parser.set_defaults(usage_error=said_once()(parser.error))


def run(arguments: argparse.Namespace) -> int:
    """Write the continuations. Returns the exit status."""
    _check(arguments)
    prompt_text = _prompt(arguments)
    model = opening.load(arguments.model, arguments.dtype)
    prompt = _encode(arguments, model, prompt_text)
    file, count = model.generation, _Count.of(arguments, model.generation)
    beams = arguments.num_beams or file.num_beams
    file = dataclasses.replace(file, num_beams=1, num_return_sequences=1)
    generation = sampling.chosen(arguments, file, _LONGEST)
    if beams > 1:
        generation = dataclasses.replace(generation, num_beams=beams)
        found = _beams(arguments, model, prompt, generation, count)
    else:
        found = _draws(arguments, model, prompt, generation, count)
    for index, row in enumerate(found):
        _write(arguments, model, {"index": index, **row, "prompt_tokens": len(prompt)})
    return 0


def _write(arguments: argparse.Namespace, model: LanguageModel, row: dict[str, Any]) -> None:
    """Write a continuation in the form that was asked for."""
    if arguments.json:
        print(json.dumps(row, ensure_ascii=False), flush=True)
    elif arguments.logprobs:
        for token, logprob in zip(row["tokens"], row["logprobs"], strict=True):
            text = model.tokenizer.decode([token], skip_special_tokens=False)
            print(f"{logprob:.6f}\t{token}\t{json.dumps(text, ensure_ascii=False)}")
    else:
        print("" if arguments.stream else row["text"], flush=True)


def _check(arguments: argparse.Namespace) -> None:
    """End with status 2 where options contradict each other."""
    for name in ("system", "template"):
        if getattr(arguments, name) is not None and not arguments.chat:
            arguments.usage_error(f"argument --{name}: needs --chat")
    given = arguments.prompt is not None or arguments.prompt_file is not None
    if not given and sys.stdin.isatty():
        arguments.usage_error(
            "one of --prompt and --prompt-file is required where stdin is a terminal"
        )


def _prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt is not None:
        return arguments.prompt
    name = arguments.prompt_file
    if name is None:
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError:
            raise FileError("stdin is not UTF-8") from None
    else:
        try:
            text = read_plain(name, _LARGEST_PROMPT).decode("utf-8")
        except UnicodeDecodeError:
            raise FileError(f"{name}: not UTF-8") from None
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def _encode(arguments: argparse.Namespace, model: LanguageModel, text: str) -> list[int]:
    if not arguments.chat:
        return model.encode(text, add_special_tokens=True)
    template = opening.load_template(arguments.model, arguments.template)
    messages = [{"role": "user", "content": text}]
    if arguments.system is not None:
        opening.check_system(template, arguments.system)
        messages.insert(0, {"role": "system", "content": arguments.system})
    return model.encode(template.render(messages), add_special_tokens=False)


class _Count(NamedTuple):
    """How many continuations, and what asked for them."""

    number: int
    asked: str

    @classmethod
    def of(cls, arguments: argparse.Namespace, file: GenerationConfig) -> _Count:
        if arguments.count is not None:
            return cls(arguments.count, f"--count {arguments.count}")
        number = file.num_return_sequences
        return cls(number, f"num_return_sequences {number} of generation_config.json")


def _draws(
    arguments: argparse.Namespace,
    model: LanguageModel,
    prompt: list[int],
    generation: GenerationConfig,
    count: _Count,
) -> Iterator[dict[str, Any]]:
    """Continuations one by one. With `--stream` the text is written meanwhile."""
    if count.number > 1 and not generation.do_sample:
        raise ValueError(
            f"{count.asked} of the most likely continuation are all the same: give a "
            "--temperature above 0, --num-beams, or --count 1"
        )
    capacity = opening.capacity(arguments.capacity, model)
    check_cache(model, 1, capacity, f"--capacity {capacity}")
    session = Session(model.params, model.config, capacity=capacity)
    key = random.key(generation.seed or 0)
    for index in range(count.number):
        found = Continuation(model, session, prompt, generation, random.fold_in(key, index))
        for piece in found:
            if arguments.stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
        yield {
            "text": found.text,
            "tokens": found.tokens,
            "logprobs": [round(x, 6) for x in found.logprobs],
            "finish_reason": found.finish,
        }


def _beams(
    arguments: argparse.Namespace,
    model: LanguageModel,
    prompt: list[int],
    generation: GenerationConfig,
    count: _Count,
) -> Iterator[dict[str, Any]]:
    """The best continuations of a beam search, each with its score."""
    beams = generation.num_beams
    _check_beams(arguments, beams, count)
    if generation.do_sample:
        Screen().notice("[do_sample of the model's settings is left out: beams draw no tokens]")
    most = longest(generation, prompt, opening.capacity(arguments.capacity, model))
    check_cache(model, beams, len(prompt) + most, f"--num-beams {beams}")
    tokens, lengths, scores = beam_search(
        model.params,
        np.asarray([prompt], np.int32),
        model.config,
        generation=dataclasses.replace(
            generation,
            max_new_tokens=most,
            num_return_sequences=count.number,
            do_sample=False,
            stop_strings=(),
        ),
    )
    ends = set(generation.ends)
    for row, length, score in zip(tokens.tolist()[0], lengths.tolist()[0], scores.tolist()[0]):
        new = row[len(prompt) : length]
        stream = TextStream(model.tokenizer, generation.stop_strings, prompt)
        text = "".join(stream.push(token) for token in new if token not in ends) + stream.finish()
        ended = stream.stopped or bool(new) and new[-1] in ends
        yield {
            "text": text,
            "tokens": new,
            "score": round(score, 6),
            "finish_reason": "stop" if ended else "length",
        }


def _check_beams(arguments: argparse.Namespace, beams: int, count: _Count) -> None:
    """Raise ValueError for options that a beam search cannot follow."""
    if arguments.stream or arguments.logprobs:
        raise ValueError(
            "a beam search has neither a stream nor logprobs: leave them out, or give --num-beams 1"
        )
    if drawing := sampling.drawing_options(arguments):
        raise ValueError(
            f"a search with {beams} beams draws no tokens, which {' and '.join(drawing)} ask for: "
            "leave them out, or give --num-beams 1"
        )
    if count.number > beams:
        raise ValueError(f"{count.asked} is more than the {beams} beams")
