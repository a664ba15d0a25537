"""Text as one array of tokens, and the batches that training takes from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis_fn.core.errors import ArgumentError
from genesis_fn.data.corpus import refuse_one_text
from genesis_fn.data.tokenizer import pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def encode(tokenizer: Tokenizer, texts: Iterable[str], end: str) -> np.ndarray:
    """Encode texts as one array of tokens, each text followed by the `end` token.

    Args:
        tokenizer: tokenizer of Hugging Face's `tokenizers`.
        texts: texts.
        end: the token, as `data.END`.

    Returns:
        An int32 array [tokens].

    Raises:
        ArgumentError: `texts` is one text, whose characters would be taken for texts.
        ValueError: the tokenizer has no such token.

    >>> tokenizer = gf.data.train_tokenizer(["ab"], vocab_size=257)
    >>> gf.data.encode(tokenizer, ["ab", "c"], gf.data.END)
    array([65, 66,  0, 67,  0], dtype=int32)
    """
    refuse_one_text("encode", "texts", texts)
    stop = tokenizer.token_to_id(end)
    if stop is None:
        raise ValueError(f"the tokenizer has no token {end!r}")
    rows = []
    for text in texts:
        rows += [np.asarray(tokenizer.encode(part).ids, np.int32) for part in pieces(text)]
        rows.append(np.asarray([stop], np.int32))
    return np.concatenate(rows) if rows else np.zeros(0, np.int32)


def unigram_entropy(tokens: np.ndarray) -> float:
    """Compute the loss of a model that knows only how often each token occurs.

        -sum over tokens i of p_i log(p_i),  p_i = (number of i in `tokens`) / (number of all)

    Args:
        tokens: integer array of one dimension, not negative.

    Returns:
        The entropy, in nats per token.

    >>> round(gf.data.unigram_entropy(np.array([0, 1, 0, 1])), 4)
    0.6931
    """
    counts = np.bincount(tokens)
    p = counts[counts > 0] / tokens.size
    return float(-(p * np.log(p)).sum())


@dataclasses.dataclass(frozen=True)
class TokenWindows:
    """Draws random windows of `length` + 1 tokens: `windows[step]` is a batch, for any step.

    The batch of a step depends on (seed, step) only, so that a resumed run sees what an
    uninterrupted one would. A loop over the object never ends.

    Args:
        tokens: integer array [tokens], more than `length`.
        length: number of tokens that a model sees, positive.
        batch: number of windows in a batch, positive.
        seed: integer.

    Raises:
        ArgumentError: `tokens` are not integers [n], or `length` or `batch` is not positive.
        ValueError: there are too few tokens for one window.

    >>> windows = gf.data.TokenWindows(np.arange(100), length=3, batch=2)
    >>> windows[0].shape, bool((windows[7] == windows[7]).all())
    ((2, 4), True)
    >>> next(windows.in_order(1))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]], dtype=int32)
    """

    tokens: Any
    length: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        shape, dtype = np.shape(self.tokens), np.asarray(self.tokens[:1]).dtype
        if len(shape) != 1 or dtype.kind not in "iu":
            raise ArgumentError(
                f"TokenWindows: tokens have to be integers [n], got {dtype}{list(shape)}"
            )
        if self.length < 1 or self.batch < 1:
            raise ArgumentError(
                f"TokenWindows: length and batch must be positive, got {self.length} and "
                f"{self.batch}"
            )
        if len(self.tokens) <= self.length:
            raise ValueError(
                f"{len(self.tokens)} tokens are too few for windows of {self.length + 1}: give "
                "more text, or a smaller length"
            )

    def check_one_batch(self, name: str) -> None:
        """Raise ValueError where `in_order` would give nothing."""
        wanted = self.batch * (self.length + 1)
        if len(self.tokens) < wanted:
            raise ValueError(
                f"{name} has {len(self.tokens)} tokens, and one batch takes {wanted}: give more "
                "text, or a smaller batch or length"
            )

    def __getitem__(self, step: int) -> np.ndarray:
        """int32 [batch, length + 1]: inputs without the last column, labels without the first."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        starts = generator.integers(0, len(self.tokens) - self.length, self.batch)
        return np.stack([self.tokens[s : s + self.length + 1] for s in starts]).astype(np.int32)

    def in_order(self, limit: int) -> Iterator[np.ndarray]:
        """Up to `limit` batches of consecutive windows that do not overlap: for validation."""
        span = self.length + 1
        count = min(len(self.tokens) // span // self.batch, limit)
        for i in range(count):
            rows = self.tokens[i * self.batch * span : (i + 1) * self.batch * span]
            yield np.asarray(rows, np.int32).reshape(self.batch, span)
