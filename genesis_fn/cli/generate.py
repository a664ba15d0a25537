"""`genesis-fn generate`: a prompt continued, for scripts."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import genesis_fn.random as random
from genesis_fn.cli import language_model, options, sampling
from genesis_fn.cli.chat import add_template
from genesis_fn.cli.continuation import Continuation
from genesis_fn.cli.language_model import LanguageModel
from genesis_fn.cli.options import option
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import read_plain
from genesis_fn.models import GenerationConfig, Session

_LONGEST = 256  # tokens of a continuation, where nothing else says it
_LARGEST_PROMPT = 1 << 26  # bytes
_DESCRIPTION = """Continue a prompt. Only the result goes to stdout.

The prompt is --prompt, the file of --prompt-file, or stdin; a line end that closes a file or stdin
is no part of it. The result is the text behind the prompt and a line end. The same seed and prompt
give the same result."""
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
    language_model.add_model(parser)
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
        default=1,
        metavar="N",
        help="how many continuations; with --num-beams the N best",
    )
    form = parser.add_mutually_exclusive_group()
    option(
        form,
        "--json",
        action="store_true",
        help="a continuation is a line of JSON: text, tokens, logprobs, finish_reason",
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
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Write the continuations. Returns the exit status."""
    _check(arguments)
    prompt_text = _prompt(arguments)
    model = language_model.load(arguments.model, arguments.dtype)
    prompt = _encode(arguments, model, prompt_text)
    generation = sampling.chosen(arguments, model.generation, _LONGEST)
    for index, found in enumerate(_continuations(arguments, model, prompt, generation)):
        pieces = iter(found)
        with contextlib.closing(pieces):
            for piece in pieces:
                if arguments.stream:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        if arguments.json:
            print(json.dumps(_row(index, found), ensure_ascii=False))
        elif arguments.logprobs:
            for token, logprob in zip(found.tokens, found.logprobs, strict=True):
                text = model.tokenizer.decode([token], skip_special_tokens=False)
                print(f"{logprob:.6f}\t{token}\t{json.dumps(text, ensure_ascii=False)}")
        else:
            print("" if arguments.stream else found.text)
        sys.stdout.flush()
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """End with status 2 where options contradict each other."""
    for name in ("system", "template"):
        if getattr(arguments, name) is not None and not arguments.chat:
            arguments.usage_error(f"argument --{name}: needs --chat")
    if arguments.num_beams > 1:
        if arguments.stream:
            arguments.usage_error(
                "argument --stream: not allowed with --num-beams, whose result is known at the end"
            )
        if arguments.count > arguments.num_beams:
            arguments.usage_error("argument --count: above --num-beams")
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
    return text.removesuffix("\n").removesuffix("\r")


def _encode(arguments: argparse.Namespace, model: LanguageModel, text: str) -> list[int]:
    if not arguments.chat:
        return model.encode(text, add_special_tokens=True)
    template = language_model.load_template(arguments.model, arguments.template)
    messages = [{"role": "user", "content": text}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    return model.encode(template.render(messages), add_special_tokens=False)


def _continuations(
    arguments: argparse.Namespace,
    model: LanguageModel,
    prompt: list[int],
    generation: GenerationConfig,
) -> Iterator[Continuation]:
    capacity = language_model.capacity(arguments.capacity, model)
    session = Session(model.params, model.config, capacity=capacity)
    key = random.key(arguments.seed)
    for index in range(arguments.count):
        yield Continuation(model, session, prompt, generation, random.fold_in(key, index))


def _row(index: int, found: Continuation) -> dict[str, Any]:
    return {
        "index": index,
        "text": found.text,
        "tokens": found.tokens,
        "logprobs": [round(x, 6) for x in found.logprobs],
        "finish_reason": found.finish,
        "prompt_tokens": len(found.prompt),
    }
