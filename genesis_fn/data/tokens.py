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
    """int32 tokens of all texts, each followed by the `end` token. Raises ValueError where the
    tokenizer has no such token."""
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
    """Nats per token of a model that knows only how often each token occurs in `tokens`."""
    counts = np.bincount(tokens)
    p = counts[counts > 0] / tokens.size
    return float(-(p * np.log(p)).sum())


@dataclasses.dataclass(frozen=True)
class TokenWindows:
    """Random windows of `length` + 1 tokens: `windows[step]` is a batch of them, for any step.

    The batch of a step depends on (seed, step) only, so that a resumed run sees what an
    uninterrupted one would. A loop over the object never ends. Raises ArgumentError where `tokens`
    are not integers [n].
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
