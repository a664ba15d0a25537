"""Byte-level byte-pair tokenizers, trained and run by Hugging Face's `tokenizers`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from genesis_fn.io.safetensors import FileError, atomic_write

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of `vocab_size` entries, `<|endoftext|>` among them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: str | os.PathLike) -> None:
    """Write a tokenizer.json, whole or not at all."""
    with atomic_write(path) as f:
        f.write(tokenizer.to_str(pretty=True).encode())


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """The tokenizer of a tokenizer.json, or of a folder that holds one. Raises FileError for a file
    that is not one."""
    from tokenizers import Tokenizer

    path = os.fspath(path)
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    try:
        return Tokenizer.from_str(text)
    except Exception as error:
        raise FileError(f"{path} is not a tokenizer: {error}") from None
