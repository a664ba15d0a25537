"""`genesis-fn demo`: a small Qwen3 learns the text of the Python standard library."""

from __future__ import annotations

import argparse
import os
import re
import time
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import data
from genesis_fn.backends.cpu.lowerings.contraction import native_bfloat16
from genesis_fn.cli.training import Recipe, train
from genesis_fn.core.convert import as_array
from genesis_fn.io.lock import exclusive
from genesis_fn.models import generate, qwen

# What `atomic_write` leaves of a file where its process is killed.
_HALF_WRITTEN = re.compile(r"\.(log\.jsonl|loss\.png|tokenizer\.json)\.[a-z0-9_]{8}")
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", help="a folder of text (default: the Python standard library)")
    parser.add_argument("--out", default="runs/demo", help="where the run is kept")
    parser.add_argument("--steps", type=_count, default=500)
    parser.add_argument("--batch", type=_count, default=12)
    parser.add_argument("--length", type=_count, default=128)
    parser.add_argument(
        "--seconds", type=_duration, default=420, help="stop training after so many seconds"
    )
    parser.add_argument("--seed", type=_seed, default=0)
    parser.add_argument("--prompt", default="def read(self, size):\n", help="what to continue")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _count(text: str) -> int:
    return _integer(text, 1, 10**9)


def _seed(text: str) -> int:
    return _integer(text, 0, 2**63 - 1)


def _integer(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} does not lie in {least} to {most}")
    return value


def _duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def prepare(folder: str, source: str, limit: int = 6_000_000) -> tuple[Any, ...]:
    """(tokenizer, training tokens, validation tokens), made once and kept in `folder`."""
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
    return (
        tokenizer,
        data.encode(tokenizer, texts, data.END),
        data.encode(tokenizer, held_out, data.END),
    )


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
    tokenizer, train_tokens, valid_tokens = prepare(arguments.out, source)
    print(
        f"{source}: {train_tokens.size:,} training and {valid_tokens.size:,} validation tokens "
        f"({VOCABULARY} byte-pair entries); the model has {CONFIG.size:,} parameters"
    )
    # bfloat16 pays only where the processor multiplies it natively.
    recipe = Recipe(
        steps=arguments.steps,
        batch=arguments.batch,
        length=arguments.length,
        seconds=arguments.seconds,
        seed=arguments.seed,
        evaluate_every=max(arguments.steps // 5, 1),
        warmup=max(arguments.steps // 12, 1),
        compute="bfloat16" if native_bfloat16() else "float32",
    )
    summary = train(
        arguments.out, CONFIG, recipe, train_tokens, valid_tokens, quiet=arguments.quiet
    )
    entropy = data.unigram_entropy(valid_tokens)
    gain = entropy - summary["validation_loss"]
    print(
        f"step {summary['step']}: validation loss {summary['validation_loss']:.3f} nats per token; "
        f"unigram entropy {entropy:.3f}; {gain:.3f} below it; "
        f"{summary['tokens_per_s']:,.0f} tokens/s; {time.perf_counter() - began:.0f} s"
    )
    print(f"written: {arguments.out}/loss.png, log.jsonl, checkpoints, tokenizer.json")
    end = tokenizer.token_to_id(data.END)
    prompt = np.asarray([tokenizer.encode(arguments.prompt).ids or [end]], np.int32)
    out, lengths = generate(
        summary["params"],
        as_array(prompt),
        CONFIG,
        max_new_tokens=96,
        key=random.key(arguments.seed),
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        eos=end,
        cache_dtype=jnp.float32,
    )
    text = tokenizer.decode(np.asarray(out)[0, : int(lengths[0])].tolist())
    print("a sampled continuation:\n" + "\n".join(f"    {line}" for line in text.splitlines()))
    return 0
