"""`genesis-fn train`, `sft` and `resume`: training and fine-tuning as settings say."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from typing import Any

from genesis_fn.cli import options
from genesis_fn.cli.options import option
from genesis_fn.training.forecast import forecast
from genesis_fn.training.memory.budget import within_budget
from genesis_fn.training.memory.shortage import telling_what_fits
from genesis_fn.training.monitoring.progress import say
from genesis_fn.training.parallel.processes import is_first
from genesis_fn.training.run import RunSummary, prepare, resume, train
from genesis_fn.training.settings.reading import KEYS, accepted, read_settings, value_of
from genesis_fn.training.settings.sections import Data, Model, Optim, TrainingSettings
from genesis_fn.training.verify import verify

_ABOUT = """Settings are read of a TOML or YAML file, --config, and each is an option too, which
goes before the file; hyphens do for underscores. The run's folder records them all in config.yaml;
the same command goes on with a run that was stopped, and so does `genesis-fn resume`. Ctrl-C,
SIGTERM and SIGHUP save a run and end it."""
_TRAIN = f"""Train a language model on texts: files of text, JSON lines or Parquet.

{_ABOUT}"""
_SFT = f"""Fine-tune a language model on chats, with all parameters or by adapters.

The data are JSON lines with messages, or with prompt and completion; the answers are learned.

{_ABOUT}"""
# What a run leaves in its folder, beside the model.
_FILES = ("config.yaml", "checkpoints", "log.jsonl", "metrics.csv", "tensorboard", "loss.png",
          "curves.png")  # fmt: skip
_SHORT = {"data.on_bad_line": "on-bad-line"}
TRAIN = TrainingSettings(out="runs/train")
SFT = TrainingSettings(
    out="runs/sft",
    model=Model(),
    data=Data(packing="fit"),
    optim=Optim(lr=1e-5, weight_decay=0.0, b2=0.999),
    epochs=None,
)
_EXAMPLES = {
    "train": (
        "genesis-fn train --config train.toml",
        "genesis-fn train --model.config qwen3-0.6b --model.tokenizer qwen --data.train texts "
        "--steps 1000",
        "genesis-fn train --config train.toml --optim.lr 3e-4 --out runs/second",
    ),
    "sft": (
        "genesis-fn sft --model.path qwen --data.train chats.jsonl --epochs 2",
        "genesis-fn sft --method lora --model.path qwen --data.train chats.jsonl --epochs 2",
        "genesis-fn sft --config sft.toml --lora.r 16",
    ),
}


def add(commands: Any) -> None:
    """The commands and their options."""
    _add_settings(commands, "train", TRAIN, "train a language model on texts", _TRAIN)
    _add_settings(commands, "sft", SFT, "fine-tune a language model on chats", _SFT)
    parser = options.add_command(
        commands,
        "resume",
        _resume,
        help="go on with a run that was stopped",
        description="Go on with a run of train or sft from its newest checkpoint, as its "
        "config.yaml says, to the same numbers as if it had not been stopped.",
        examples=("genesis-fn resume --out runs/train",),
    )
    parser.set_defaults(joins=True)
    option(
        parser, "--out", type=options.path, required=True, metavar="FOLDER", help="the run's folder"
    )
    option(
        parser,
        "--parallel",
        metavar="AXES",
        help="other axes over processes than the run was begun with, as fsdp=4",
        shown="those of the run where its processes are as many, else data over all of them",
    )
    option(
        parser,
        "--verify",
        type=options.count,
        metavar="K",
        help="take K steps of the run again instead, from a checkpoint or the beginning, and "
        "compare every bit with what the run came to; ends with 1 where one differs",
        shown="off",
    )
    options.add_device(parser)
    option(parser, "--quiet", action="store_true", help="no progress bar")


def _add_settings(
    commands: Any, name: str, base: TrainingSettings, help: str, description: str
) -> None:
    parser = options.add_command(
        commands, name, _train, help=help, description=description, examples=_EXAMPLES[name]
    )
    parser.set_defaults(base=base, joins=True)
    option(
        parser,
        "--config",
        type=options.path,
        metavar="FILE",
        help="a .toml, .yaml or .yml file of settings",
        shown="none",
    )
    options.add_device(parser)
    option(parser, "--quiet", action="store_true", help="no progress bar")
    option(
        parser,
        "--dry-run",
        action="store_true",
        help="train nothing: print shapes, the memory that a step takes, steps and time",
    )
    parser.usage = f"genesis-fn {name} [--config FILE] [--SETTING VALUE ...]"
    groups: dict[str, Any] = {"": parser}
    for key in KEYS.values():
        section = key.name.rpartition(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        default = value_of(base, key.name)
        kind = accepted(key.kind)
        several = kind.startswith("a list")
        extra: dict[str, Any] = {"nargs": "+"} if several else {}
        if kind == "true or false":
            extra = {"nargs": "?", "const": "true"}
        option(
            groups[section],
            *_flags(key.name),
            dest=f"setting {key.name}",
            metavar="VALUE",
            help=f"{key.help}; {kind}",
            shown=_shown(default),
            **extra,
        )


def _flags(name: str) -> list[str]:
    """The spellings of a setting's option: with hyphens or underscores, and short ones."""
    hyphens = name.replace("_", "-")
    spellings = (name, hyphens) if "." in name else (hyphens, name)
    short = [_SHORT[name]] if name in _SHORT else []
    return [f"--{flag}" for flag in dict.fromkeys((*spellings, *short))]


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _train(arguments: argparse.Namespace) -> int:
    given = {
        name.removeprefix("setting "): value
        for name, value in vars(arguments).items()
        if name.startswith("setting ") and value is not None
    }
    settings = read_settings(arguments.config, given, arguments.base)
    if arguments.dry_run:
        chosen = within_budget(settings, say)
        _show(str(telling_what_fits(chosen, lambda: forecast(prepare(chosen, say)))))
        return 0
    _report(train(settings, quiet=arguments.quiet), settings.out)
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    if arguments.verify:
        return _verify(arguments.out, arguments.verify, arguments.parallel)
    again = resume(arguments.out, quiet=arguments.quiet, parallel=arguments.parallel)
    _report(again, arguments.out)
    return 0


def _show(text: str) -> None:
    """Print, in the first process of several."""
    if is_first():
        print(text)


def _verify(out: str, steps: int, parallel: str | None) -> int:
    found = verify(out, steps, parallel)
    _show(
        f"{found.steps} steps behind step {found.start} were taken again, and compared with "
        f"{found.compared} rows of the log"
        + (f" and the state of step {found.state}" if found.state is not None else "")
    )
    for line in found.differences[:10]:
        _show(line)
    if found.differences:
        _show(f"{len(found.differences)} numbers differ")
        return 1
    _show("every bit is the same")
    return 0


def _report(summary: RunSummary, out: str) -> None:
    _show(f"step {summary.step}: ended by {summary.ended_by}")
    if math.isfinite(summary.validation_loss):
        _show(
            f"validation loss {summary.validation_loss:.4f} nats per token (perplexity "
            f"{math.exp(min(summary.validation_loss, 700)):.2f}); the best was "
            f"{summary.best_loss:.4f} at step {summary.best_step}"
        )
    written = [name for name in _FILES if os.path.exists(os.path.join(out, name))]
    _show(f"written: {out}: {', '.join(written)}")
    _show(f"the model: {shlex.quote(summary.model)}")
