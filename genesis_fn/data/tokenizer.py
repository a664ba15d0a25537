"""Byte-level byte-pair tokenizers, trained and run by Hugging Face's `tokenizers`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import read_plain
from genesis_fn.data.byte_level import LARGEST_FILE, add_tokens, read_byte_level
from genesis_fn.data.corpus import refuse_one_text
from genesis_fn.io.safetensors import atomic_write

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"


_LONGEST_RUN = 128
_RUN = re.compile(rf"\S{{{_LONGEST_RUN}}}|\s{{{_LONGEST_RUN}}}")


def pieces(text: str) -> Iterator[str]:
    """The parts that a text is trained on and encoded in: the whole, but for cuts in runs of more
    than 128 characters without a blank, or of blanks only.

    A run is one word to a byte-pair tokenizer, and training takes the square of its length.
    """
    start = 0
    for run in _RUN.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    if start < len(text):
        yield text[start:]


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer: its entries are the bytes, `<|endoftext|>` and merges.

    Ctrl-C ends the training at once.

    Source: Sennrich et al., "Neural machine translation of rare words with subword units", 2015; of
    bytes: Radford et al., "Language models are unsupervised multitask learners", 2019.

    Args:
        texts: texts to learn from.
        vocab_size: largest number of entries; there are 257 at least, and fewer than `vocab_size`
            where the texts give no more merges.

    Returns:
        A tokenizer of Hugging Face's `tokenizers`.

    Raises:
        ArgumentError: `texts` is one text, whose characters would be taken for texts.

    >>> tokenizer = gf.data.train_tokenizer(["hello hello world"], vocab_size=270)
    >>> tokenizer.decode(tokenizer.encode("hello world").ids)
    'hello world'
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    refuse_one_text("train_tokenizer", "texts", texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    parts = (part for text in texts for part in pieces(text))
    _interruptible(lambda given: tokenizer.train_from_iterator(given, trainer), parts)
    return tokenizer


def _interruptible(work: Callable[[Iterator[str]], None], parts: Iterator[str]) -> None:
    """`work(parts)`, in a thread: native code holds back the signals of the one that it runs in.

    An interrupted thread is waited for while it takes parts. At the end of the process it would
    find no interpreter to take one from, and abort; behind the parts it needs none.
    """
    errors: list[BaseException] = []
    # Of events, as an interrupted `Thread.join` of Python 3.11 takes the thread for ended. The
    # thread begins with `begun`: an interrupted `Thread.start` leaves one that takes nothing.
    begun, interrupted = threading.Event(), threading.Event()
    taken, ended = threading.Event(), threading.Event()

    def given() -> Iterator[str]:
        for part in parts:
            if interrupted.is_set():
                raise KeyboardInterrupt
            yield part
        taken.set()

    def run() -> None:
        begun.wait()
        try:
            work(given())
        except BaseException as error:
            errors.append(error)
        ended.set()

    threading.Thread(target=run, name="tokenizer", daemon=True).start()
    try:
        begun.set()
        while not ended.wait(0.1):
            pass
    except BaseException:
        interrupted.set()
        begun.set()
        while not taken.is_set() and not ended.wait(0.01):
            pass
        ended.wait(0.3)  # the last part was given, and is about to be taken
        raise
    if errors:
        raise errors[0]


def save_tokenizer(tokenizer: Tokenizer, path: str | os.PathLike[str]) -> None:
    """Write a tokenizer.json, whole or not at all.

    Args:
        tokenizer: tokenizer, as of `train_tokenizer`.
        path: path of the file, whose folder is there.

    Raises:
        FileNotFoundError: the folder is not there.

    >>> import tempfile
    >>> tokenizer = gf.data.train_tokenizer(["hello world"], vocab_size=257)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gf.data.save_tokenizer(tokenizer, f"{folder}/tokenizer.json")
    ...     gf.data.load_tokenizer(folder).get_vocab_size()
    257
    """
    with atomic_write(path) as f:
        f.write(tokenizer.to_str(pretty=True).encode())


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Read the tokenizer of a model's folder.

    It is that of tokenizer.json, or of vocab.json and merges.txt where the folder's
    tokenizer_config.json names Qwen2's class or GPT-2's. Tokens that the other files of the folder
    add are added. Texts are neither cut nor filled up, whatever tokenizer.json says.

    Special tokens that a text holds are found in it. A tokenizer may add more, such as one of the
    beginning: `encode(text, add_special_tokens=False)` does not, as is right for the text of a
    `ChatTemplate`.

    Args:
        path: path of the folder, or of a tokenizer.json alone.

    Returns:
        A tokenizer of Hugging Face's `tokenizers`.

    Raises:
        FileError: a file is malformed, contradicts another, or has more than 100 million bytes; or
            the folder has a tokenizer of another kind, and what to do.
        FileNotFoundError: there is no such file.

    >>> import tempfile
    >>> tokenizer = gf.data.train_tokenizer(["hello world"], vocab_size=257)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gf.data.save_tokenizer(tokenizer, f"{folder}/tokenizer.json")
    ...     gf.data.load_tokenizer(folder).get_vocab_size()
    257
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        return _read(path)
    file = os.path.join(path, "tokenizer.json")
    tokenizer = _read(file) if os.path.lexists(file) else read_byte_level(path)
    add_tokens(tokenizer, path)
    return tokenizer


def _read(path: str) -> Tokenizer:
    from tokenizers import Tokenizer

    content = read_plain(path, LARGEST_FILE)
    try:
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        raise FileError(f"{path} is not a tokenizer: {str(error)[:200]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
