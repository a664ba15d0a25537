"""What changes logits before a token is chosen: penalties of tokens that were there, and a least
number of tokens before an end.

A row's `Uses` are part of a loop's state only where a penalty reads them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array

Uses = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Penalties:
    """Which logits are lowered; by default none.

    Args:
        repetition_penalty: divides positive logits, and multiplies negative ones, of tokens in the
            prompt or the continuation (Keskar et al., "CTRL", 2019).
        presence_penalty: taken off the logits of tokens that the continuation has.
        frequency_penalty: taken off as often as the continuation has the token.
        delays_end: whether there is a least number of tokens before one of `eos` may come.
        eos: the tokens that end a row, ascending.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    delays_end: bool = False
    eos: tuple[int, ...] = ()

    @property
    def reads_prompt(self) -> bool:
        """Whether tokens of the prompt count."""
        return self.repetition_penalty != 1

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens of the continuation count, other than by being there."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


def first_uses(tokens: Array, lengths: Array, vocabulary: int, penalties: Penalties) -> Uses:
    """What the prompts [B, T] use: "seen", booleans [B, vocabulary], and "counts" of zeros for the
    continuation; each only if a penalty reads it."""
    uses: Uses = {}
    rows = jnp.arange(tokens.shape[0])[:, None]
    if penalties.reads_prompt:
        real = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
        zeros = jnp.zeros((tokens.shape[0], vocabulary), jnp.int32)
        uses["seen"] = zeros.at[rows, tokens].add(jnp.astype(real, jnp.int32)) > 0
    if penalties.counts_tokens:
        uses["counts"] = jnp.zeros((tokens.shape[0], vocabulary), jnp.int32)
    return uses


def more_uses(uses: Uses, token: Array) -> Uses:
    """The uses after one more token [B] of the continuation."""
    if not uses:
        return uses
    here = jnp.arange(next(iter(uses.values())).shape[-1])[None, :] == token[:, None]
    new: dict[str, Any] = {}
    if "seen" in uses:
        new["seen"] = uses["seen"] | here
    if "counts" in uses:
        new["counts"] = uses["counts"] + jnp.astype(here, jnp.int32)
    return new


def penalized(logits: Array, uses: Uses, step: Array, least: Array, penalties: Penalties) -> Array:
    """The logits [B, vocabulary] of token number `step` of the continuation, as they are where
    nothing is to be lowered. `least` is how many tokens come before an end.

    The repetition penalty and the delay of ends are transformers', the other two vLLM's (which are
    OpenAI's), between them.
    """
    if uses:
        logits = jnp.astype(logits, jnp.float32)
    if penalties.reads_prompt:
        by = penalties.repetition_penalty
        lower = jnp.where(logits < 0, logits * by, logits / by)
        logits = jnp.where(uses["seen"], lower, logits)
    if penalties.counts_tokens:
        counts = uses["counts"]
        logits = logits - penalties.frequency_penalty * jnp.astype(counts, jnp.float32)
        logits = jnp.where(counts > 0, logits - penalties.presence_penalty, logits)
    if penalties.delays_end:
        excluded = is_one_of(jnp.arange(logits.shape[-1]), penalties.eos)
        logits = jnp.where(excluded & (step < least), -jnp.inf, logits)
    return logits


def is_one_of(tokens: Array, ends: tuple[int, ...]) -> Array:
    """Booleans of the shape of `tokens`: whether each is one of a few."""
    found = jnp.zeros(tokens.shape, bool)
    for end in ends:
        found = found | (tokens == end)
    return found
