"""`genesis-fn eval`: the perplexity of a model, and its answers to questions."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from typing import Any

from genesis_fn import io, nn
from genesis_fn.cli import options
from genesis_fn.cli.language_model import opening
from genesis_fn.cli.options import option
from genesis_fn.cli.processes import said_once
from genesis_fn.core.errors import FileError
from genesis_fn.data import Mapped, RecordFiles
from genesis_fn.data.streams.stream import BadRecords
from genesis_fn.training import datasets
from genesis_fn.training.evaluation import Question, multiple_choice, perplexity, question_of
from genesis_fn.training.model import TrainedModel, template_of
from genesis_fn.training.settings.sections import Data, Evaluate, TrainingSettings
from genesis_fn.training.step import Batch

_DESCRIPTION = """Evaluate a model: its perplexity on texts or chats, and the share of questions
that it answers rightly.

Questions are JSON lines with question, choices and answer: the choice is taken that is likeliest
behind the question."""
_EXAMPLES = (
    "genesis-fn eval --model runs/train/model --data texts.jsonl",
    "genesis-fn eval --model qwen --adapter runs/sft/adapter --choices questions.jsonl",
)


def add(commands: Any) -> None:
    """The command and its options."""
    parser = options.add_command(
        commands,
        "eval",
        run,
        help="the perplexity of a model, and its answers to questions",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    option(
        parser,
        "--model",
        type=options.path,
        required=True,
        metavar="FOLDER",
        help="a model: config.json, safetensors files, tokenizer.json",
    )
    option(
        parser,
        "--adapter",
        type=options.path,
        metavar="FOLDER",
        help="adapters of the model, of PEFT",
        shown="none",
    )
    option(
        parser,
        "--data",
        type=options.path,
        nargs="+",
        metavar="FILE",
        help="files, folders or patterns of texts or chats",
        shown="none",
    )
    option(
        parser,
        "--choices",
        type=options.path,
        nargs="+",
        metavar="FILE",
        help="files of questions",
        shown="none",
    )
    option(
        parser, "--length", type=options.count, default=1024, metavar="N", help="tokens of a row"
    )
    option(parser, "--batch", type=options.count, default=8, metavar="N", help="rows at once")
    option(
        parser,
        "--batches",
        type=options.natural,
        default=0,
        metavar="N",
        help="batches of --data; 0 takes all",
    )
    option(
        parser,
        "--train-on",
        choices=("answers", "all"),
        default="answers",
        metavar="NAME",
        help="which tokens of chats count, answers or all",
    )
    option(
        parser,
        "--on-bad-line",
        choices=("stop", "skip"),
        default="stop",
        metavar="NAME",
        help="what a line that is no record does, stop or skip",
    )
    options.add_device(parser)
    opening.add_dtype(parser)
    option(parser, "--json", action="store_true", help="print one JSON object")
    parser.set_defaults(usage_error=said_once()(parser.error))


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print what was found. Returns the exit status."""
    if not arguments.data and not arguments.choices:
        arguments.usage_error("give --data or --choices: what to evaluate on")
    model = opening.load(arguments.model, arguments.dtype)
    params = model.params
    if arguments.adapter:
        params = nn.lora.merge(params, *io.load_adapter(arguments.adapter, params))
    found: dict[str, Any] = {}
    if arguments.data:
        result = perplexity(params, model.config, _batches(arguments, model))
        found |= {"loss": result.loss, "perplexity": result.perplexity, "tokens": result.tokens}
    if arguments.choices:
        questions = _questions(arguments)
        batch = arguments.batch
        answers = multiple_choice(
            params,
            model.config,
            model.tokenizer,
            questions,
            batch=batch,
            prefix=datasets.end_token(model.folder, model.tokenizer),
        )
        found |= {
            "accuracy": answers.accuracy,
            "accuracy_norm": answers.accuracy_norm,
            "questions": answers.questions,
        }
    print(json.dumps(found) if arguments.json else _table(found))
    return 0


def _questions(arguments: argparse.Namespace) -> Iterator[Question]:
    """The questions of --choices. Raises FileError where there is none."""
    report = datasets.BadLines()
    records = RecordFiles(arguments.choices, on_bad_line=arguments.on_bad_line, report=report)
    questions = Mapped(records, question_of, BadRecords(arguments.on_bad_line, report))
    first = next(questions, None)
    if first is None:
        raise FileError(f"{arguments.choices[0]}: no line of it is a question")
    return itertools.chain([first], questions)


def _batches(arguments: argparse.Namespace, model: opening.LanguageModel) -> Iterator[Batch]:
    """The batches of --data. Raises FileError where there is none."""
    # Chats are whole, texts go on in the next row.
    first = next(RecordFiles(arguments.data, on_bad_line=arguments.on_bad_line))
    settings = TrainingSettings(
        batch=arguments.batch,
        data=Data(
            valid=tuple(arguments.data),
            length=arguments.length,
            packing="cut" if "text" in first else "fit",
            train_on=arguments.train_on,
            on_bad_line=arguments.on_bad_line,
        ),
        evaluate=Evaluate(batches=arguments.batches),
    )
    folder = model.folder
    template = template_of(folder, None)
    opened = TrainedModel(model.config, None, None, None, folder, folder, model.tokenizer, template)
    batches = datasets.evaluation_stream(settings, opened)
    begun = next(batches, None)
    if begun is None:
        raise datasets.nothing_in(arguments.data, "evaluate", f"{arguments.length} (--length)")
    return itertools.islice(itertools.chain([begun], batches), arguments.batches or None)


def _table(found: dict[str, Any]) -> str:
    shown = {
        "loss": "{:.4f} nats per token",
        "perplexity": "{:.3f}",
        "tokens": "{:,}",
        "accuracy": "{:.2%}",
        "accuracy_norm": "{:.2%}, by the bytes of the choices",
        "questions": "{:,}",
    }
    return "\n".join(f"{name:<14} {shown[name].format(value)}" for name, value in found.items())
