"""`genesis-fn demo`: a small Qwen3 learns the text of the Python standard library."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import genesis_fn.random as random
from genesis_fn import data
from genesis_fn.backends.cpu.lowerings.contraction import native_bfloat16
from genesis_fn.cli import options
from genesis_fn.cli.language_model.exporting import PLAIN_TEMPLATE, export
from genesis_fn.cli.options import count, duration, option
from genesis_fn.cli.training import Recipe, train
from genesis_fn.core.device import default_device
from genesis_fn.io.lock import exclusive
from genesis_fn.models import GenerationConfig, generate, qwen

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DESCRIPTION = """Train a small Qwen3 on text found on this machine, and continue a prompt with it.

It downloads nothing. Ctrl-C, SIGTERM or SIGHUP save the run and end it; the same command goes on
from there, to the same numbers. A finished run is a model that `genesis-fn chat` and transformers
open."""
_EXAMPLES = (
    "genesis-fn demo",
    "genesis-fn demo --data ~/notes --out runs/notes --seconds 120",
    "genesis-fn demo --steps 2000 --seconds 3600 --device cuda",
    "genesis-fn chat --model runs/demo",
)
# What `atomic_write` leaves of a file where its process is killed.
_HALF_WRITTEN = re.compile(
    r"\.(log\.jsonl|loss\.png|chat_template\.jinja|"
    r"(tokenizer|generation_config|tokenizer_config)\.json)\.[a-z0-9_]{8}"
)
# How a small model of text is best drawn from.
_GENERATION = GenerationConfig(
    do_sample=True, temperature=0.8, top_k=50, top_p=0.95, max_new_tokens=96
)
VOCABULARY = 2048
CONFIG = qwen.QwenConfig(
    vocab_size=VOCABULARY,
    hidden_size=192,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=1e4,
    max_position_embeddings=1024,
)


def add(commands: Any) -> None:
    """The command and its options."""
    parser = options.add_command(
        commands,
        "demo",
        run,
        help="train a small Qwen3 on text found on this machine",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    option(
        parser,
        "--data",
        metavar="FOLDER",
        help="a folder of text, or a file",
        shown="the Python standard library",
    )
    option(parser, "--out", default="runs/demo", metavar="FOLDER", help="where the run is kept")
    option(parser, "--steps", type=count, default=500, metavar="N", help="steps of the optimizer")
    option(parser, "--batch", type=count, default=12, metavar="N", help="windows of text a step")
    option(parser, "--length", type=count, default=128, metavar="N", help="tokens of a window")
    option(
        parser,
        "--seconds",
        type=duration,
        default=420,
        metavar="N",
        help="stop training after so many seconds; inf trains all steps",
    )
    options.add_seed(parser)
    options.add_device(parser)
    option(
        parser,
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        metavar="NAME",
        help="dtype of products, auto, float32 or bfloat16; auto is bfloat16 where the processor "
        "multiplies it natively",
    )
    option(
        parser,
        "--prompt",
        type=options.words,
        default="def read(self, size):\n",
        metavar="TEXT",
        help="what to continue when training has ended",
        shown="a line of Python",
    )
    option(parser, "--quiet", action="store_true", help="no progress bar")


class Corpus(NamedTuple):
    """A tokenizer, and tokens [n] to train on and of other files."""

    tokenizer: Tokenizer
    train: np.ndarray
    valid: np.ndarray


def prepare(folder: str, source: str, limit: int = 6_000_000) -> Corpus:
    """The corpus of a folder or file of text. Its tokenizer is made once and kept in `folder`."""
    files = data.text_files(source)
    train_files, valid_files = data.split_files(files)
    texts = list(data.read_texts(train_files, limit))
    held_out = list(data.read_texts(valid_files, limit // 10))
    if not texts:
        raise ValueError(f"the text files of {source} are empty, unreadable, or not UTF-8")
    if not held_out:  # one file, say: its end is for validation
        whole = texts.pop()
        texts.append(whole[: len(whole) - len(whole) // 10])
        held_out.append(whole[len(whole) - len(whole) // 10 :])
    path = os.path.join(folder, "tokenizer.json")
    if os.path.isfile(path):
        tokenizer = data.load_tokenizer(path)
    else:
        tokenizer = data.train_tokenizer(texts, VOCABULARY)
        data.save_tokenizer(tokenizer, path)
    train_tokens = data.encode(tokenizer, texts, data.END)
    return Corpus(tokenizer, train_tokens, data.encode(tokenizer, held_out, data.END))


def run(arguments: argparse.Namespace) -> int:
    """Train, report, and print a sampled continuation. Returns the exit status.

    Raises BlockingIOError where another run uses the same folder.
    """
    os.makedirs(arguments.out, exist_ok=True)
    with exclusive(arguments.out):
        for name in filter(_HALF_WRITTEN.fullmatch, os.listdir(arguments.out)):
            os.unlink(os.path.join(arguments.out, name))
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    source = arguments.data or data.standard_library()
    corpus = prepare(arguments.out, source)
    print(
        f"{source}: {corpus.train.size:,} training and {corpus.valid.size:,} validation tokens "
        f"({VOCABULARY} byte-pair entries); the model has {CONFIG.size:,} parameters"
    )
    recipe = _recipe(arguments)
    summary = train(
        arguments.out, CONFIG, recipe, corpus.train, corpus.valid, quiet=arguments.quiet
    )
    entropy = data.unigram_entropy(corpus.valid)
    gain = entropy - summary.validation_loss
    print(
        f"step {summary.step}: validation loss {summary.validation_loss:.3f} nats per token; "
        f"unigram entropy {entropy:.3f}; {abs(gain):.3f} {'above' if gain < 0 else 'below'} it; "
        f"{summary.tokens_per_s:,.0f} tokens/s; {time.perf_counter() - began:.0f} s"
    )
    end = corpus.tokenizer.token_to_id(data.END)
    generation = dataclasses.replace(
        _GENERATION, eos_token_id=end, pad_token_id=end, bos_token_id=end
    )
    export(arguments.out, summary.params, CONFIG, generation, PLAIN_TEMPLATE)
    print(
        f"written: {arguments.out}/loss.png, log.jsonl, checkpoints; config.json, "
        "model.safetensors, tokenizer.json, chat_template.jinja and settings"
    )
    prompt = np.asarray([corpus.tokenizer.encode(arguments.prompt).ids or [end]], np.int32)
    tokens, lengths = generate(
        summary.params, prompt, CONFIG, key=random.key(arguments.seed), generation=generation
    )
    text = corpus.tokenizer.decode(tokens[0, : int(lengths[0])].tolist())
    print("a sampled continuation:\n" + "\n".join(f"    {line}" for line in text.splitlines()))
    print(f"chat with it: {_program()} chat --model {shlex.quote(arguments.out)}")
    return 0


def _recipe(arguments: argparse.Namespace) -> Recipe:
    return Recipe(
        steps=arguments.steps,
        batch=arguments.batch,
        length=arguments.length,
        seconds=arguments.seconds,
        seed=arguments.seed,
        evaluate_every=max(arguments.steps // 5, 1),
        warmup=max(arguments.steps // 12, 1),
        compute=_compute(arguments.dtype),
    )


def _program() -> str:
    """What to type for this program. After `make demo` it is in a folder that no shell searches."""
    typed = sys.argv[0]
    if os.path.basename(typed) == "genesis-fn" and shutil.which("genesis-fn") is None:
        return shlex.quote(typed)
    return "genesis-fn"


def _compute(dtype: str) -> str:
    """The dtype of products. On a CPU bfloat16 pays only where it is multiplied natively."""
    if dtype != "auto":
        return dtype
    return "float32" if default_device().kind == "cpu" and not native_bfloat16() else "bfloat16"
